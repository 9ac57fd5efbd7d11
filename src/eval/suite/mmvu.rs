//! MMVU, validation: `validation.json`, `videos/<Subject_With_Underscores>/<n>.mp4`.
//!
//! The authors judge all replies with another model. Here multiple choice is judged by its letter, and open questions, where
//! they are wanted, by their words: lower than a judge would have it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::{SuiteError, found, letter_of, table, video, with_options};
use crate::eval::item::{Gold, Item};

/// Files of questions, the first of which is taken.
pub(super) const TABLES: &[&str] = &["validation.json"];

#[derive(Debug, Deserialize)]
struct Row {
    id: String,
    /// A Hub address, or a path below the data set.
    video: String,
    question_type: String,
    metadata: Metadata,
    question: String,
    #[serde(default)]
    choices: Option<BTreeMap<char, Option<String>>>,
    answer: String,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    subject: String,
}

pub(super) fn load(path: &Path, open_too: bool) -> Result<Vec<Item>, SuiteError> {
    let (file, root) = found(path, TABLES)?;
    let mut items = Vec::new();
    for (at, value) in table::rows(&file)?.into_iter().enumerate() {
        let row: Row = table::read(&file, at + 1, value)?;
        let is_choice = row.question_type == "multiple-choice";
        if !is_choice && !open_too {
            continue;
        }
        let name = row.video.split_once("/main/").map_or(row.video.as_str(), |(_, name)| name);
        if name.contains("://") {
            return Err(SuiteError::row(&file, at + 1, format!("its video is elsewhere: {name}")));
        }
        let (prompt, gold) = if is_choice {
            let choices = row.choices.unwrap_or_default();
            let shown = choices.iter().filter_map(|(letter, text)| Some((*letter, text.as_deref()?)));
            let prompt = with_options(&row.question, shown.filter(|(_, text)| !text.is_empty()));
            (prompt, Gold::Letter { letter: letter_of(&row.answer) })
        } else {
            (format!("Question: {}", row.question), Gold::Words { text: row.answer.trim().to_owned() })
        };
        items.push(Item {
            id: row.id,
            video: video(&root, &[""], &[name.to_owned()]),
            prompt,
            gold,
            groups: vec![("type", row.question_type), ("subject", row.metadata.subject)],
        });
    }
    Ok(items)
}
