//! LVBench: the authors' `video_info.meta.jsonl`, a line a video, or the flattened Parquet file, a row a question. The options
//! are part of the question.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{LETTER_ONLY, SuiteError, found, letter_of, plain, table, texts, video};
use crate::eval::item::{Gold, Item};

/// Files of questions, the first of which is taken.
pub(super) const TABLES: &[&str] =
    &["video_info.meta.jsonl", "data/train-00000-of-00001.parquet", "train-00000-of-00001.parquet"];

#[derive(Debug, Deserialize)]
struct Line {
    key: String,
    #[serde(default, rename = "type")]
    genre: Value,
    qa: Vec<Question>,
}

#[derive(Debug, Deserialize)]
struct Question {
    uid: Value,
    question: String,
    answer: String,
    #[serde(default)]
    question_type: Value,
    /// The flattened table's.
    #[serde(default)]
    video_path: Option<String>,
    #[serde(default, rename = "type")]
    genre: Value,
}

pub(super) fn load(path: &Path) -> Result<Vec<Item>, SuiteError> {
    let (file, root) = found(path, TABLES)?;
    let mut items = Vec::new();
    for (at, value) in table::rows(&file)?.into_iter().enumerate() {
        if value.get("qa").is_some() {
            let line: Line = table::read(&file, at + 1, value)?;
            let name = format!("{}.mp4", line.key);
            items.extend(line.qa.into_iter().map(|question| item(&root, &name, &line.genre, &question)));
        } else {
            let mut question: Question = table::read(&file, at + 1, value)?;
            let video = question.video_path.take();
            let name = video.ok_or_else(|| SuiteError::row(&file, at + 1, "names no video_path"))?;
            let genre = question.genre.take();
            items.push(item(&root, &name, &genre, &question));
        }
    }
    Ok(items)
}

fn item(root: &Path, name: &str, genre: &Value, question: &Question) -> Item {
    let genres = texts(genre).into_iter().map(|genre| ("genre", genre));
    // A question counts in each type it lists.
    let types = texts(&question.question_type).into_iter().map(|kind| ("question", kind));
    Item {
        id: plain(&question.uid),
        video: video(root, &["videos", "video", "all_videos", ""], &[name.to_owned()]),
        prompt: format!("{}\n{LETTER_ONLY}", question.question),
        gold: Gold::Letter { letter: letter_of(&question.answer) },
        groups: genres.chain(types).collect(),
    }
}
