//! Video-MME: `videomme/test-00000-of-00001.parquet`, `data/<videoID>.mp4`, `subtitle/<videoID>.srt`.

use std::path::Path;

use serde::Deserialize;

use super::{SuiteError, found, letter_of, lettered, subtitles, table, video, with_options};
use crate::eval::item::{Gold, Item};

/// Files of questions, the first of which is taken.
pub(super) const TABLES: &[&str] =
    &["videomme/test-00000-of-00001.parquet", "test-00000-of-00001.parquet", "videomme.json"];

#[derive(Debug, Deserialize)]
struct Row {
    #[serde(rename = "videoID")]
    video_id: String,
    question_id: String,
    duration: String,
    domain: String,
    sub_category: String,
    task_type: String,
    question: String,
    /// With their letters: `A. Apples.` The prompt letters them once more, as the paper's evaluation does.
    options: Vec<String>,
    answer: String,
}

pub(super) fn load(path: &Path, with_subtitles: bool) -> Result<Vec<Item>, SuiteError> {
    let (file, root) = found(path, TABLES)?;
    let mut with_words = 0;
    let rows = table::rows(&file)?.into_iter().enumerate();
    let items = rows.map(|(at, value)| {
        let row: Row = table::read(&file, at + 1, value)?;
        let names = ["mp4", "MP4", "mkv"].map(|extension| format!("{}.{extension}", row.video_id));
        let mut prompt = with_options(&row.question, lettered(&row.options));
        if with_subtitles {
            let words = subtitles::words(&root.join("subtitle").join(format!("{}.srt", row.video_id)));
            if !words.is_empty() {
                with_words += 1;
                prompt = format!("This video's subtitles are listed below:\n{words}\n\n{prompt}");
            }
        }
        Ok(Item {
            id: row.question_id,
            video: video(&root, &["data", "videos", "video"], &names),
            prompt,
            gold: Gold::Letter { letter: letter_of(&row.answer) },
            groups: vec![
                ("duration", row.duration),
                ("domain", row.domain),
                ("category", row.sub_category),
                ("task", row.task_type),
            ],
        })
    });
    let items = items.collect::<Result<Vec<Item>, SuiteError>>()?;
    if with_subtitles && with_words == 0 {
        return Err(SuiteError::file(
            &root.join("subtitle"),
            "holds no subtitles of any question: unpack subtitle.zip",
        ));
    }
    Ok(items)
}
