//! One question of a benchmark, and when its reply is right. Pure.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::extract;
use crate::types::MediaTime;

/// A question about a video, as it is put to the model, with all that its reply is judged by.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Unlike that of any other question of the benchmark, and the same in every run.
    pub id: String,
    /// The video's file.
    pub video: PathBuf,
    /// The whole text that goes with the video.
    pub prompt: String,
    /// The right answer.
    pub gold: Gold,
    /// By what results are broken down: `("duration", "long")`.
    pub groups: Vec<(&'static str, String)>,
}

/// A right answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Gold {
    /// The letter of an option. `None` where the benchmark's own data name none: no reply is right.
    Letter {
        /// The letter, `A` to `J`.
        letter: Option<char>,
    },
    /// A stretch of time.
    Span {
        /// From here on.
        start: MediaTime,
        /// Until here.
        end: MediaTime,
    },
    /// Words, compared without case, punctuation and articles.
    Words {
        /// The words.
        text: String,
    },
}

/// How well a reply does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// What was understood: a letter, `12.0-24.0`, words. Empty where nothing was.
    pub prediction: String,
    /// 0 to 1: whether it is right, or how much of the stretch it shares.
    pub score: f64,
}

impl Gold {
    /// Judges a reply: letters and times by all that the model wrote in its last turn, thinking and tags too, as the paper's
    /// evaluation does; words by the answer alone.
    #[must_use]
    pub fn judge(&self, reply: &str, answer: &str) -> Judged {
        let exact = |right: bool| if right { 1.0 } else { 0.0 };
        match self {
            Self::Letter { letter } => {
                let found = extract::letter(reply);
                let prediction = found.map(String::from).unwrap_or_default();
                Judged { prediction, score: exact(letter.is_some() && found == *letter) }
            }
            Self::Span { start, end } => match extract::interval(reply) {
                Some(found) => Judged {
                    prediction: format!("{:.1}-{:.1}", found.0, found.1),
                    score: extract::overlap(found, (*start, *end)),
                },
                None => Judged { prediction: String::new(), score: 0.0 },
            },
            Self::Words { text } => {
                let (found, wanted) = (extract::normal(answer), extract::normal(text));
                // What is nothing but an article, such as the letter of an option, is compared as it is.
                let same =
                    if wanted.is_empty() { answer.trim().eq_ignore_ascii_case(text.trim()) } else { found == wanted };
                Judged { prediction: answer.trim().to_owned(), score: exact(same && !text.trim().is_empty()) }
            }
        }
    }

    /// Whether its score is a share of a stretch of time.
    #[must_use]
    pub const fn is_span(&self) -> bool {
        matches!(self, Self::Span { .. })
    }
}

/// The letter of an option by its place, as far as there are letters.
pub(super) fn letter_at(place: usize) -> Option<char> {
    ('A'..='J').nth(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> MediaTime {
        MediaTime::from_seconds(seconds).expect("a time")
    }

    #[test]
    fn replies_are_judged_by_what_is_asked() {
        let span = Gold::Span { start: seconds(19.7), end: seconds(25.6) };
        let letter = |letter| Gold::Letter { letter };
        let words = |text: &str| Gold::Words { text: text.to_owned() };
        for (gold, reply, prediction, score) in [
            (letter(Some('B')), "<answer>B</answer>", "B", 1.0),
            // The first letter that stands alone, thinking or not.
            (letter(Some('B')), "<think>C is wrong</think>\nB", "C", 0.0),
            (letter(Some('B')), "C", "C", 0.0),
            (letter(None), "?", "?", 0.0),
            (span.clone(), "00:19.7 - 00:25.6", "19.7-25.6", 1.0),
            (span.clone(), "from 19.7 to 22.65", "19.7-22.6", 0.5),
            (span, "never", "", 0.0),
            (words("red circle"), "The red circle.", "The red circle.", 1.0),
            (words("red circle"), "circle", "circle", 0.0),
            // Both are nothing without their article, and not the same.
            (words("A"), "The", "The", 0.0),
            (words("A"), "a", "a", 1.0),
            (words(""), "", "", 0.0),
            (words("-5"), "5", "5", 0.0),
            (words("1.5"), "1 5", "1 5", 0.0),
            (words("C++"), "C", "C", 0.0),
            (words("3.0."), "3.0", "3.0", 1.0),
        ] {
            let judged = gold.judge(reply, reply);
            assert_eq!(judged.prediction, prediction, "{gold:?} {reply}");
            assert!((judged.score - score).abs() < 1e-9, "{gold:?} {reply}: {judged:?}");
        }
        assert_eq!((letter_at(1), letter_at(10)), (Some('B'), None));
    }
}
