//! What is kept of a run, a line a question.

use serde::{Deserialize, Serialize};

use super::item::Gold;
use crate::ledger::{Entry, Ledger};

/// A run's file of results.
pub type Store = Ledger<Run, Record>;

/// What a run is. Results of different ones are never mixed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The benchmark.
    pub suite: String,
    /// The model card's name.
    pub model: String,
    /// `parallel`, `sequential` or `none`.
    pub dispatch: String,
    /// Questions of the whole run, and a digest of what they ask.
    pub questions: usize,
    /// SHA-256 of all ids, prompts and right answers.
    pub digest: String,
    /// SHA-256 of what else the answers depend on: the card, the checkpoint, the engine, the agent's settings, the temperature.
    pub settings: String,
}

/// What came of one question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The question's.
    pub id: String,
    /// The right answer.
    pub gold: Gold,
    /// What was understood of the reply.
    pub prediction: String,
    /// 0 to 1. 0 where there was no reply.
    pub score: f64,
    /// The answer as callers get it.
    pub answer: String,
    /// All that the model wrote in its last turn.
    #[serde(default)]
    pub reply: String,
    /// The video, by which questions belong together.
    #[serde(default)]
    pub video: String,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Windows that were asked for, and those of them that were watched well.
    pub calls: u32,
    /// Windows that were watched well.
    pub watched: u32,
    /// Main turns.
    pub turns: u32,
    /// Tokens that the main agent read (whether they were in its cache or not) and wrote.
    pub main_tokens: (u64, u64),
    /// Tokens that all sub-agents read and wrote.
    pub sub_tokens: (u64, u64),
    /// Of the tokens read, those that were in a cache.
    pub cached_tokens: u64,
    /// From asking to the end of the answer.
    pub total_ms: f64,
    /// To the first text of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_answer_ms: Option<f64>,
    /// By what results are broken down.
    pub groups: Vec<(String, String)>,
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { suite, model, dispatch, questions, digest, settings } = self;
        let short = |digest: &str| digest.get(..8).unwrap_or(digest).to_owned();
        write!(f, "{suite}, {model}, {dispatch}, {questions} questions {}, settings {}", short(digest), short(settings))
    }
}

impl Entry for Record {
    fn id(&self) -> &str {
        &self.id
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::eval) fn run(dispatch: &str) -> Run {
        let text = str::to_owned;
        Run {
            suite: text("s"),
            model: text("m"),
            dispatch: text(dispatch),
            questions: 3,
            digest: text("d"),
            settings: text("s"),
        }
    }

    pub(in crate::eval) fn record(id: &str, score: f64) -> Record {
        Record {
            id: id.to_owned(),
            gold: Gold::Letter { letter: Some('A') },
            prediction: "A".to_owned(),
            score,
            answer: "A\n\"quoted\"".to_owned(),
            reply: "<answer>A</answer>".to_owned(),
            video: format!("{id}.mp4"),
            error: None,
            calls: 2,
            watched: 1,
            turns: 2,
            main_tokens: (100, 20),
            sub_tokens: (50, 10),
            cached_tokens: 60,
            total_ms: 1500.0,
            first_answer_ms: Some(900.0),
            groups: vec![("duration".to_owned(), "long".to_owned())],
        }
    }
}
