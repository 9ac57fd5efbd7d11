//! Charades-STA, test: the authors' `charades_sta_test.txt` or the Parquet file, `Charades_v1_480/<id>.mp4`.
//!
//! The Parquet file holds times with 11 bits: 24.3 is 24.296875 there, and a score on the edge of a threshold can differ.
//! Results of the two are not to be mixed.

use std::path::Path;

use serde::Deserialize;

use super::{SuiteError, found, table, video};
use crate::eval::item::{Gold, Item};
use crate::types::MediaTime;

/// Files of questions, the first of which is taken.
pub(super) const TABLES: &[&str] =
    &["charades_sta_test.txt", "data/test-00000-of-00001.parquet", "test-00000-of-00001.parquet"];

#[derive(Debug, Deserialize)]
struct Row {
    video: String,
    caption: String,
    timestamp: [f64; 2],
}

pub(super) fn load(path: &Path) -> Result<Vec<Item>, SuiteError> {
    let (file, root) = found(path, TABLES)?;
    let is_text = file.extension().is_some_and(|extension| extension == "txt");
    let rows = if is_text { lines(&file)? } else { table_rows(&file)? };
    let rows = rows.into_iter().enumerate();
    rows.map(|(at, row)| {
        let time = |seconds: f64| {
            MediaTime::from_seconds(seconds).ok_or_else(|| SuiteError::row(&file, at + 1, "names no time"))
        };
        let name = if row.video.ends_with(".mp4") { row.video } else { format!("{}.mp4", row.video) };
        Ok(Item {
            // One sentence may be asked about twice in a video.
            id: format!("{}-{}", name.trim_end_matches(".mp4"), at + 1),
            video: video(&root, &["Charades_v1_480", "videos", "video"], &[name]),
            prompt: prompt(&row.caption),
            gold: Gold::Span { start: time(row.timestamp[0])?, end: time(row.timestamp[1])? },
            groups: Vec::new(),
        })
    })
    .collect()
}

/// `3MSZA 24.3 30.4##person turn a light on.`
fn lines(file: &Path) -> Result<Vec<Row>, SuiteError> {
    let text = table::text(file)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(at, line)| {
            let wrong = || SuiteError::row(file, at + 1, "is not of the form `ID START END##SENTENCE`");
            let (head, caption) = line.split_once("##").ok_or_else(wrong)?;
            let [id, start, end] = head.split_whitespace().collect::<Vec<_>>()[..] else { return Err(wrong()) };
            let number = |text: &str| text.parse::<f64>().map_err(|_| wrong());
            let (video, caption) = (id.to_owned(), caption.trim().to_owned());
            Ok(Row { video, caption, timestamp: [number(start)?, number(end)?] })
        })
        .collect()
}

fn table_rows(file: &Path) -> Result<Vec<Row>, SuiteError> {
    table::rows(file)?.into_iter().enumerate().map(|(at, value)| table::read(file, at + 1, value)).collect()
}

fn prompt(caption: &str) -> String {
    format!(
        "Please find the visual event described by a sentence in the video, determining its starting and ending times. The \
         format should be: 'The event happens in the start time - end time'. For example, The event 'person turn a light on' \
         happens in the 24.3 - 30.4 seconds. Now I will give you the textual sentence: \"{caption}\". Please return its start \
         time and end time."
    )
}
