//! LongVideoBench, validation: `lvb_val.json` or `validation-00000-of-00001.parquet`, `videos/<video_path>`. As in the paper's
//! evaluation, without subtitles.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{SuiteError, found, plain, table, video, with_options};
use crate::eval::item::{Gold, Item, letter_at};

/// Files of questions, the first of which is taken.
pub(super) const TABLES: &[&str] =
    &["lvb_val.json", "validation-00000-of-00001.parquet", "data/validation-00000-of-00001.parquet"];

#[derive(Debug, Deserialize)]
struct Row {
    id: String,
    video_path: String,
    question: String,
    /// The JSON's; the Parquet file has `option0` to `option4`.
    #[serde(default)]
    candidates: Option<Vec<String>>,
    correct_choice: i64,
    duration_group: Value,
    question_category: String,
    topic_category: String,
}

pub(super) fn load(path: &Path) -> Result<Vec<Item>, SuiteError> {
    let (file, root) = found(path, TABLES)?;
    let rows = table::rows(&file)?.into_iter().enumerate();
    rows.map(|(at, value)| {
        // One that is missing keeps its place, and the others their letters.
        let column = |n: usize| value.get(format!("option{n}")).and_then(Value::as_str).unwrap_or_default().to_owned();
        let columns: Vec<String> = (0..5).map(column).collect();
        let row: Row = table::read(&file, at + 1, value)?;
        let options = row.candidates.unwrap_or(columns);
        // Letters are of their places, also where one is left out.
        let shown = ('A'..='J').zip(&options).filter(|(_, option)| !option.is_empty() && *option != "N/A");
        let prompt = with_options(&row.question, shown.map(|(letter, option)| (letter, option.as_str())));
        Ok(Item {
            id: row.id,
            video: video(&root, &["videos", "video"], &[row.video_path]),
            prompt,
            gold: Gold::Letter { letter: usize::try_from(row.correct_choice).ok().and_then(letter_at) },
            groups: vec![
                ("duration", plain(&row.duration_group)),
                ("question", row.question_category),
                ("topic", row.topic_category),
            ],
        })
    })
    .collect()
}
