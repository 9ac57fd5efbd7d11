//! Asks about all segments, some at a time, and keeps what comes of them.

use std::collections::HashMap;
use std::path::Path;

use futures::{StreamExt as _, stream};

use super::event::{EventSource, events, events_schema, question};
use super::output::{Found, Journal, Place, Tokens};
use super::task::{FileState, Task};
use crate::agent::{Agent, AnswerForm, AskOptions, AskRequest, Outcome, WindowStatus, finished};
use crate::engine::{FinishReason, Grammar};
use crate::ledger::LedgerError;
use crate::media::{SourceRequest, Video};
use crate::types::{MediaTime, TimeSpan};

/// Videos that are opened before the one before them is done.
const AHEAD: usize = 2;

/// How tasks are asked.
#[derive(Debug, Clone, Copy)]
pub struct Asking {
    /// Where events are taken from.
    pub events: EventSource,
    /// Segments at the same time.
    pub at_once: usize,
    /// Temperature in place of the card's. Each segment has a seed of its own, the same in every run.
    pub temperature: Option<f64>,
}

/// What just came.
#[derive(Debug)]
pub struct Told<'a> {
    /// Of which task.
    pub task: &'a Task,
    /// What.
    pub found: &'a Found,
    /// Whether the task is through with it.
    pub is_last: bool,
}

/// A segment to ask about.
struct Segment<'a> {
    task: &'a Task,
    key: String,
    video: Video,
    file: Option<FileState>,
    span: TimeSpan,
    number: usize,
    of: usize,
}

/// Asks about all that is not known, and writes each result as it comes. `told` is called with each. What a segment ends with is
/// part of its result.
///
/// # Errors
/// [`LedgerError`] when a result can't be written.
pub async fn run(
    agent: &Agent,
    tasks: &[Task],
    asking: &Asking,
    journal: &mut Journal,
    mut told: impl FnMut(Told<'_>),
) -> Result<(), LedgerError> {
    let left: Vec<(&Task, String, Vec<Place>)> = tasks
        .iter()
        .filter(|task| !journal.is_done(task))
        .map(|task| (task, journal.key(task).to_owned(), journal.known(task)))
        .collect();
    // Segments of a task that are still to come.
    let mut waiting: HashMap<String, usize> = HashMap::new();
    let cut = journal.cut();
    let opened = stream::iter(left).map(|(task, key, known)| async move {
        let opened = open(agent, task).await;
        (task, key, known, opened)
    });
    let segments = opened.buffered(AHEAD).flat_map(|(task, key, known, opened)| {
        let segments: Vec<Result<Segment<'_>, Box<Found>>> = match opened {
            Err(error) => {
                let closed = nothing(task, format!("{key}/open"));
                vec![Err(Box::new(Found { error: Some(error), ..closed }))]
            }
            Ok((video, file, stretch)) => {
                let spans = cut.segments(stretch);
                let (of, duration) = (spans.len(), video.duration());
                let left = spans.into_iter().enumerate();
                let left = left.filter(|(number, span)| !known.contains(&(*number, of, *span, duration)));
                left.map(|(number, span)| {
                    Ok(Segment { task, key: key.clone(), video: video.clone(), file, span, number, of })
                })
                .collect()
            }
        };
        let count = segments.len();
        stream::iter(segments.into_iter().map(move |segment| (task, count, segment)))
    });
    let mut found = segments
        .map(|(task, count, segment)| async move {
            let found = match segment {
                Ok(segment) => ask(agent, &segment, asking).await,
                Err(found) => *found,
            };
            (task, count, found)
        })
        .buffer_unordered(asking.at_once.max(1));
    while let Some((task, count, found)) = found.next().await {
        journal.add(found.clone())?;
        let left = waiting.entry(task.id.clone()).or_insert(count);
        *left = left.saturating_sub(1);
        let is_last = *left == 0;
        if is_last {
            waiting.remove(&task.id);
            journal.tell(task)?;
        }
        told(Told { task, found: &found, is_last });
    }
    drop(found);
    journal.write(tasks)
}

/// A task's video, its file, and the stretch of it that is looked at.
async fn open(agent: &Agent, task: &Task) -> Result<(Video, Option<FileState>, TimeSpan), String> {
    // Before it is read: what changes meanwhile is another file.
    let file = task.file();
    let video =
        agent.media().open(&SourceRequest::named(Path::new(&task.video))).await.map_err(|error| error.to_string())?;
    let duration = video.duration();
    let start = task.start.unwrap_or(MediaTime::ZERO);
    let end = task.end.unwrap_or(duration).min(duration);
    let stretch = TimeSpan::new(start, end).filter(|span| span.start < span.end);
    let stretch =
        stretch.ok_or_else(|| format!("start and end leave nothing of the video, which is {duration} s long"))?;
    Ok((video, file, stretch))
}

/// Nothing yet, of a video that is not open.
fn nothing(task: &Task, id: String) -> Found {
    Found {
        id,
        task: task.id.clone(),
        of: 0,
        number: 0,
        file: None,
        duration: MediaTime::ZERO,
        start: MediaTime::ZERO,
        end: MediaTime::ZERO,
        events: Vec::new(),
        dropped: 0,
        windows: 0,
        tokens: Tokens::default(),
        error: None,
    }
}

async fn ask(agent: &Agent, segment: &Segment<'_>, asking: &Asking) -> Found {
    let Segment { task, key, video, file, span, number, of } = segment;
    let found = Found {
        of: *of,
        number: *number,
        file: *file,
        duration: video.duration(),
        start: span.start,
        end: span.end,
        ..nothing(task, format!("{key}/{number}"))
    };
    let whole = span.start == MediaTime::ZERO && span.end == video.duration();
    let Some(part) = (if whole { Some(video.clone()) } else { video.part(*span) }) else {
        return Found { error: Some("there is nothing of the video".to_owned()), ..found };
    };
    let (text, form) = match asking.events {
        EventSource::Answer => {
            (question(task), AnswerForm::Fits(Grammar::JsonSchema(events_schema(&task.labels).to_string())))
        }
        EventSource::Windows => (task.question.clone(), AnswerForm::Free),
    };
    let id = format!("batch-{}", uuid::Uuid::now_v7().simple());
    let events = agent.ask(AskRequest {
        sampling: agent.sampling_of(&found.id, asking.temperature),
        options: AskOptions { agent: Some(true), form, ..AskOptions::default() },
        ..AskRequest::about(SourceRequest::Open(part), text, id)
    });
    match finished(events).await {
        Ok(outcome) => told_by(&outcome, asking, segment, found),
        Err(error) => Found { error: Some(error.to_string()), ..found },
    }
}

fn told_by(outcome: &Outcome, asking: &Asking, segment: &Segment<'_>, found: Found) -> Found {
    let (main, sub) = (outcome.usage.main, outcome.usage.sub);
    let watched = outcome.windows.iter().filter(|window| window.status == WindowStatus::Ok).count();
    let found = Found {
        windows: watched as u64,
        tokens: Tokens {
            prompt: main.prompt_tokens + sub.prompt_tokens,
            completion: main.completion_tokens + sub.completion_tokens,
        },
        ..found
    };
    let answered = asking.events == EventSource::Answer;
    let events = if answered && outcome.finish_reason == FinishReason::Length {
        Err("the answer was cut off where its tokens end: shorter segments have fewer events".to_owned())
    } else {
        events(outcome, asking.events, &segment.task.labels, segment.span)
    };
    match events {
        // What was seen counts; what could not be looked at is tried again.
        Ok((events, dropped)) => Found { events, dropped, error: unseen(outcome, asking.events), ..found },
        Err(error) => Found { error: Some(error), ..found },
    }
}

/// Why an episode that ended well does not tell all there is: windows that could not be watched. The answer is about the whole
/// segment as long as any of them could.
fn unseen(outcome: &Outcome, from: EventSource) -> Option<String> {
    let failed = |status| matches!(status, WindowStatus::Failed | WindowStatus::Late);
    let all = &outcome.windows;
    let last = all.iter().rfind(|window| failed(window.status))?;
    let count = all.iter().filter(|window| failed(window.status)).count();
    let seen = all.iter().any(|window| matches!(window.status, WindowStatus::Ok | WindowStatus::Shared));
    (from == EventSource::Windows || !seen).then(|| {
        let reason = last.error.as_deref().unwrap_or("failed");
        format!("{count} of {} windows were not watched, the last: {reason}", all.len())
    })
}
