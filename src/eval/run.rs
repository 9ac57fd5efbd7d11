//! Asks all questions of a benchmark, some at a time, and keeps what comes of them.

use std::time::{Duration, Instant};

use futures::StreamExt as _;
use sha2::{Digest as _, Sha256};

use super::item::{Gold, Item};
use super::record::{Record, Store};
use crate::agent::{Agent, AskOptions, AskRequest, Outcome, ToolUse, WindowStatus, finished};
use crate::config::Dispatch;
use crate::ledger::LedgerError;
use crate::media::SourceRequest;
use crate::types::hex;

/// How the agent looks at videos.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// All windows of a burst at the same time.
    Parallel,
    /// One window after another; as many of them as in parallel.
    Sequential,
    /// The overview alone.
    None,
}

impl Mode {
    /// Its name in files of results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Parallel => "parallel",
            Self::Sequential => "sequential",
            Self::None => "none",
        }
    }

    fn options(self) -> AskOptions {
        let (dispatch, tools) = match self {
            Self::Parallel => (Some(Dispatch::Parallel), ToolUse::Auto),
            Self::Sequential => (Some(Dispatch::Sequential), ToolUse::Auto),
            Self::None => (None, ToolUse::None),
        };
        AskOptions { dispatch, tools, agent: Some(true), ..AskOptions::default() }
    }
}

/// How questions are asked.
#[derive(Debug, Clone, Copy)]
pub struct Asking {
    /// How the agent looks.
    pub mode: Mode,
    /// Questions at the same time.
    pub at_once: usize,
    /// Temperature in place of the card's. Each question has a seed of its own, the same in every run.
    pub temperature: Option<f64>,
}

/// A digest of all that is asked, so that results of other questions are not taken for these.
#[must_use]
pub fn digest(items: &[Item]) -> String {
    let mut hash = Sha256::new();
    for item in items {
        for part in [item.id.as_str(), &item.prompt, &serde_json::to_string(&item.gold).unwrap_or_default()] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    hex(&hash.finalize())
}

/// A digest of a text.
#[must_use]
pub fn digest_of(text: &str) -> String {
    hex(&Sha256::digest(text))
}

/// Failures with nothing else before that end a run: what is wrong is wrong for all.
const HOPELESS: usize = 20;

/// Asks, and writes each result as it comes. `told` is called with each. False when nothing but failures came, and it gave up.
///
/// # Errors
/// [`LedgerError`] when a result can't be written. What a question ends with is part of its result.
pub async fn run(
    agent: &Agent,
    items: &[Item],
    asking: &Asking,
    store: &mut Store,
    mut told: impl FnMut(&Record),
) -> Result<bool, LedgerError> {
    let (mut failed, mut answered) = (0, false);
    let mut running = futures::stream::iter(items.iter().map(|item| one(agent, item, asking)))
        .buffer_unordered(asking.at_once.max(1));
    while let Some(record) = running.next().await {
        store.add(&record)?;
        told(&record);
        failed += usize::from(record.error.is_some());
        answered |= record.error.is_none();
        if failed >= HOPELESS && !answered {
            return Ok(false);
        }
    }
    Ok(answered || failed == 0)
}

async fn one(agent: &Agent, item: &Item, asking: &Asking) -> Record {
    let began = Instant::now();
    let id = format!("eval-{}", uuid::Uuid::now_v7().simple());
    let events = agent.ask(AskRequest {
        sampling: agent.sampling_of(&item.id, asking.temperature),
        options: asking.mode.options(),
        ..AskRequest::about(SourceRequest::named(&item.video), item.prompt.clone(), id)
    });
    let outcome = finished(events).await;
    let groups = item.groups.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let record = Record {
        id: item.id.clone(),
        gold: item.gold.clone(),
        prediction: String::new(),
        score: 0.0,
        answer: String::new(),
        reply: String::new(),
        video: item.video.to_string_lossy().into_owned(),
        error: None,
        calls: 0,
        watched: 0,
        turns: 0,
        main_tokens: (0, 0),
        sub_tokens: (0, 0),
        cached_tokens: 0,
        total_ms: ms(began.elapsed()),
        first_answer_ms: None,
        groups,
    };
    match outcome {
        Ok(outcome) => told_by(&outcome, &item.gold, record),
        Err(error) => Record { error: Some(error.to_string()), ..record },
    }
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// Bytes of a text that are kept.
const MOST_TEXT: usize = 32 << 10;

fn cut(text: &str) -> String {
    let end = (0..=text.len().min(MOST_TEXT)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    text[..end].to_owned()
}

/// The text of the last turn as the model wrote it, thinking, tags and all: what the paper's evaluation reads.
fn reply(outcome: &Outcome) -> &str {
    outcome.turns.last().and_then(|turn| turn.text.get(turn.prefix..)).unwrap_or(&outcome.answer)
}

fn told_by(outcome: &Outcome, gold: &Gold, record: Record) -> Record {
    let judged = gold.judge(reply(outcome), &outcome.answer);
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let watched = outcome.windows.iter().filter(|window| window.status == WindowStatus::Ok).count();
    let (main, sub) = (outcome.usage.main, outcome.usage.sub);
    Record {
        prediction: judged.prediction,
        score: judged.score,
        calls: count(outcome.windows.len()),
        watched: count(watched),
        turns: count(outcome.turns.len()),
        main_tokens: (main.prompt_tokens, main.completion_tokens),
        sub_tokens: (sub.prompt_tokens, sub.completion_tokens),
        cached_tokens: main.cached_tokens + sub.cached_tokens,
        first_answer_ms: outcome.first_answer_ms,
        reply: cut(reply(outcome)),
        answer: cut(&outcome.answer),
        ..record
    }
}
