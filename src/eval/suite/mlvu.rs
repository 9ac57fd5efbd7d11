//! MLVU, multiple choice: `json/1_plotQA.json` to `json/7_topic_reasoning.json` with `video/<file's name>/<video>`, or the
//! flattened Parquet file. The two generation tasks are judged by a model elsewhere and are not loaded.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{LETTER_ONLY, SuiteError, found, letter_of, lettered, plain, table, video, with_options};
use crate::eval::item::{Gold, Item, letter_at};

const TASKS: [&str; 7] = ["1_plotQA", "2_needle", "3_ego", "4_count", "5_order", "6_anomaly_reco", "7_topic_reasoning"];

/// Files of questions: the flattened one, or one for each task.
pub(super) const TABLES: &[&str] = &[
    "mlvu/test-00000-of-00001.parquet",
    "data/test-00000-of-00001.parquet",
    "test-00000-of-00001.parquet",
    "json/1_plotQA.json",
    "json/2_needle.json",
    "json/3_ego.json",
    "json/4_count.json",
    "json/5_order.json",
    "json/6_anomaly_reco.json",
    "json/7_topic_reasoning.json",
];

#[derive(Debug, Deserialize)]
struct Row {
    #[serde(alias = "video_name")]
    video: String,
    question: String,
    #[serde(default)]
    candidates: Vec<String>,
    answer: String,
    #[serde(alias = "task_type")]
    question_type: String,
    #[serde(default)]
    question_id: Option<Value>,
}

pub(super) fn load(path: &Path) -> Result<Vec<Item>, SuiteError> {
    if path.is_dir() && path.join("json").is_dir() {
        let files = TASKS.iter().map(|task| (*task, path.join("json").join(format!("{task}.json"))));
        let mut items = Vec::new();
        // Some of the tasks are as good as all.
        for (task, file) in files.filter(|(_, file)| file.is_file()) {
            items.extend(read(path, &file, Some(task))?);
        }
        return Ok(items);
    }
    let (file, root) = found(path, TABLES)?;
    let task = file.file_stem().and_then(|stem| stem.to_str()).filter(|stem| TASKS.contains(stem));
    read(&root, &file, task)
}

fn read(root: &Path, file: &Path, task: Option<&str>) -> Result<Vec<Item>, SuiteError> {
    let rows = table::rows(file)?.into_iter().enumerate();
    rows.map(|(at, value)| {
        let row: Row = table::read(file, at + 1, value)?;
        let name = task.map_or_else(|| row.question_type.clone(), str::to_owned);
        // The folder with the number of its task, as it is published, or without; the flattened set has one for all.
        let folders = [
            format!("video/{name}"),
            format!("video/{}", name.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_')),
        ];
        let folders = [folders[0].as_str(), folders[1].as_str(), "video", "videos"];
        let options_inside = row.candidates.is_empty() || row.question.contains("\n(A)");
        let prompt = if options_inside {
            format!("{}\n{LETTER_ONLY}", row.question)
        } else {
            with_options(&row.question, lettered(&row.candidates))
        };
        Ok(Item {
            id: row.question_id.map_or_else(|| format!("{name}-{}", at + 1), |id| format!("{name}-{}", plain(&id))),
            video: video(root, &folders, std::slice::from_ref(&row.video)),
            prompt,
            gold: Gold::Letter { letter: gold(&row.answer, &row.candidates) },
            groups: vec![("task", row.question_type)],
        })
    })
    .collect()
}

/// The authors give the right option's text, the flattened set its letter.
fn gold(answer: &str, candidates: &[String]) -> Option<char> {
    let answer = answer.trim();
    let place = candidates.iter().position(|candidate| candidate.trim() == answer);
    let within =
        |letter: &char| candidates.is_empty() || ('A'..='J').take(candidates.len()).any(|known| known == *letter);
    place
        .and_then(letter_at)
        .or_else(|| Some(answer).filter(|answer| answer.len() == 1).and_then(letter_of).filter(within))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_option_is_known_by_its_text_or_its_letter() {
        let options = ["2", "A", "Yellow "].map(str::to_owned);
        for (answer, expected) in
            [("Yellow", Some('C')), ("2", Some('A')), ("A", Some('B')), ("D", None), ("none", None)]
        {
            assert_eq!(gold(answer, &options), expected, "{answer}");
        }
    }
}
