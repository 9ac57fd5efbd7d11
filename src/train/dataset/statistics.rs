//! What a data set holds, in numbers.

use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Display};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::row::{Medium, RlRow, Row, SftRow};
use super::trace::{TAGS, said, tags};
use crate::types::MediaTime;

/// Question types that are told by name.
const MOST_TYPES: usize = 20;

/// Counts of a data set. Rows are added one at a time; [`Display`] draws a table.
#[derive(Debug, Clone, Default)]
pub struct Statistics {
    rows: u64,
    turns: u64,
    /// How many turns have so many calls, of those that have any.
    bursts: BTreeMap<usize, u64>,
    unreadable_calls: u64,
    windows: Vec<MediaTime>,
    /// Words of each answer.
    answers: Vec<usize>,
    types: BTreeMap<String, u64>,
    /// Of each tag, how often it is opened and how often of those it is closed.
    tags: [(u64, u64); TAGS.len()],
    videos: u64,
    images: u64,
    different_videos: HashSet<u64>,
}

impl Statistics {
    /// Counts a row.
    pub fn add(&mut self, row: &Row) {
        self.rows += 1;
        match row {
            Row::Sft(row) => self.conversation(row),
            Row::Rl(row) => self.prompt(row),
        }
    }

    /// Rows that were counted.
    #[must_use]
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    fn conversation(&mut self, row: &SftRow) {
        for message in &row.messages {
            for (medium, part) in message.media() {
                match medium {
                    Medium::Video => self.video(part.source().unwrap_or_default()),
                    Medium::Image => self.images += 1,
                }
            }
            if message.role == "assistant" {
                self.turn(&message.words());
            }
        }
    }

    fn turn(&mut self, text: &str) {
        self.turns += 1;
        let mut open = [0; TAGS.len()];
        for tag in tags(text) {
            let (opened, closed) = &mut self.tags[tag.name];
            if tag.opens {
                *opened += 1;
                open[tag.name] += 1;
            } else if open[tag.name] > 0 {
                *closed += 1;
                open[tag.name] -= 1;
            }
        }
        let said = said(text);
        if !said.calls.is_empty() {
            *self.bursts.entry(said.calls.len()).or_default() += 1;
        }
        for call in &said.calls {
            match call {
                Ok(window) => self.windows.push(window.end.saturating_sub(window.start)),
                Err(_) => self.unreadable_calls += 1,
            }
        }
        self.answers.extend(said.answer.map(|answer| answer.split_whitespace().count()));
    }

    fn prompt(&mut self, row: &RlRow) {
        self.answers.push(row.answer.split_whitespace().count());
        *self.types.entry(row.question_type.clone()).or_default() += 1;
        for video in &row.videos {
            self.video(&video.video);
        }
    }

    fn video(&mut self, source: &str) {
        self.videos += 1;
        let mut hasher = DefaultHasher::new();
        source.hash(&mut hasher);
        self.different_videos.insert(hasher.finish());
    }

    fn line(&self, f: &mut fmt::Formatter<'_>, name: &str, value: impl Display) -> fmt::Result {
        writeln!(f, "{name:<16}{value}")
    }
}

/// A line for each thing that there is some of.
impl Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.line(f, "rows", self.rows)?;
        if self.turns > 0 {
            self.line(f, "turns", format!("{}, {:.1} a row", self.turns, self.turns as f64 / self.rows as f64))?;
        }
        if !self.bursts.is_empty() {
            let counts = self.bursts.iter().map(|(calls, turns)| format!("{calls}: {turns}"));
            self.line(f, "calls a burst", counts.collect::<Vec<_>>().join("  "))?;
        }
        if self.unreadable_calls > 0 {
            self.line(f, "calls not read", self.unreadable_calls)?;
        }
        if let Some(lengths) = spread(&self.windows, |length| format!("{length} s")) {
            self.line(f, "windows", lengths)?;
        }
        if let Some(words) = spread(&self.answers, |words| format!("{words} words")) {
            self.line(f, "answers", words)?;
        }
        if !self.types.is_empty() {
            let mut types: Vec<_> = self.types.iter().collect();
            types.sort_by_key(|(_, rows)| std::cmp::Reverse(**rows));
            let others: u64 = types.iter().skip(MOST_TYPES).map(|(_, rows)| **rows).sum();
            let told = types.iter().take(MOST_TYPES).map(|(name, rows)| format!("{name} {rows}"));
            let told = told.chain((others > 0).then(|| format!("others {others}")));
            self.line(f, "question types", told.collect::<Vec<_>>().join(", "))?;
        }
        let used = TAGS.iter().zip(&self.tags).filter(|(_, (opened, _))| *opened > 0);
        let closed: Vec<String> = used.map(|(name, (opened, closed))| format!("{name} {closed} of {opened}")).collect();
        if !closed.is_empty() {
            self.line(f, "tags closed", closed.join(", "))?;
        }
        self.line(f, "videos", format!("{}, {} of them different", self.videos, self.different_videos.len()))?;
        if self.images > 0 {
            self.line(f, "images", self.images)?;
        }
        Ok(())
    }
}

/// How many there are, the smallest, the middle one and the largest.
fn spread<T: Ord + Copy>(values: &[T], show: impl Fn(T) -> String) -> Option<String> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let (first, last) = (sorted.first()?, sorted.last()?);
    let middle = sorted.get((sorted.len() - 1) / 2)?;
    Some(format!("{}: {} to {}, median {}", sorted.len(), show(*first), show(*last), show(*middle)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sft(messages: serde_json::Value) -> Row {
        Row::Sft(SftRow { messages: serde_json::from_value(messages).expect("messages") })
    }

    #[test]
    fn a_set_of_conversations_is_told_in_a_table() {
        let call = |start: u32, end: u32| {
            format!(
                "<tool_call>{}</tool_call>",
                json!({"name": "crop_video", "arguments": {"start": start, "end": end}})
            )
        };
        let video = json!([{"type": "video", "video": "a.mp4"}, {"type": "text", "text": "q"}]);
        let mut statistics = Statistics::default();
        for calls in [call(0, 20) + &call(30, 40), "<tool_call>{]</tool_call>".to_owned()] {
            statistics.add(&sft(json!([
                {"role": "system", "content": "s"},
                {"role": "user", "content": video},
                {"role": "assistant", "content": format!("<think>a</think>{calls}")},
                {"role": "user", "content": [{"type": "image", "image": "f.jpg"}]},
                {"role": "assistant", "content": "<think>b<answer>two words</answer>"},
            ])));
        }
        let table = "rows            2\n\
                     turns           4, 2.0 a row\n\
                     calls a burst   1: 1  2: 1\n\
                     calls not read  1\n\
                     windows         2: 10.0 s to 20.0 s, median 10.0 s\n\
                     tags closed     think 2 of 4, tool_call 3 of 3, answer 2 of 2\n\
                     videos          2, 1 of them different\n\
                     images          2\n";
        assert_eq!(statistics.to_string(), table);
    }

    #[test]
    fn a_set_of_prompts_is_told_by_its_questions() {
        let mut statistics = Statistics::default();
        for (answer, kind) in [("B", "mcq"), ("a red circle", "oe"), ("C", "mcq")] {
            let value = json!({"prompt": [], "videos": [{"video": answer}], "extra_info": {"answer": answer, "question_type": kind}});
            let row = Row::read(super::super::Layout::Rl, value, &mut Default::default()).expect("a row");
            statistics.add(&row);
        }
        let table = "rows            3\n\
                     answers         3: 1 words to 3 words, median 1 words\n\
                     question types  mcq 2, oe 1\n\
                     videos          3, 3 of them different\n";
        assert_eq!(statistics.to_string(), table);
    }
}
