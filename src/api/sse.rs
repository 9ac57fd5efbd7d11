//! A streamed answer: when its headers go out, how events become lines, and who stops what.
//!
//! ```text
//! Episode ──► pump (a task) ──► channel of 4,096 events ──► Writer ──► body ──► client
//! ```
//! The body owns the pump: a client that goes away drops the body, and with it the episode. A client that reads slowly holds
//! nothing but memory: most episodes fit the channel as a whole, and give their place and the engine back when they are over,
//! not when they are read. One that does not fit waits `read_timeout_s` for a client that does not read at all, and ends. The
//! connection of such a client ends by TCP's own timeout (see `serve`).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt as _, stream};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use super::error::ApiError;
use super::observe::{Episode, Told};
use crate::agent::AgentEvent;
use crate::config::ServerConfig;

/// Events a client may lag behind.
const CHANNEL: usize = 4096;
/// Events held back before the headers go out.
const MOST_HELD: usize = 64;

/// One server-sent event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// Its name; chat completions have none.
    pub(super) event: Option<&'static str>,
    /// JSON, or `[DONE]`: one line.
    pub(super) data: String,
}

impl Line {
    /// An object without a name.
    pub(super) fn data<T: Serialize>(object: &T) -> Self {
        Self { event: None, data: json(object) }
    }

    /// An object under a name.
    pub(super) fn named<T: Serialize>(event: &'static str, object: &T) -> Self {
        Self { event: Some(event), data: json(object) }
    }
}

/// Wire objects hold nothing JSON can't; JSON in one line holds no line break.
fn json<T: Serialize>(object: &T) -> String {
    serde_json::to_string(object).unwrap_or_default()
}

/// Turns what happens into the lines of one kind of stream.
pub(super) trait Writer: Send + 'static {
    /// What opens the stream.
    fn open(&mut self) -> Vec<Line>;
    /// Whether the client is shown anything of this event.
    fn shows(&self, event: &AgentEvent) -> bool;
    /// The lines of one thing that happened, in order. After the last one: those that end the stream.
    fn write(&mut self, told: Told) -> Vec<Line>;
    /// True once the stream is ended.
    fn is_over(&self) -> bool;
    /// The lines that end the stream in an error: the status is out already.
    fn fail(&mut self, error: &ApiError) -> Vec<Line>;
}

/// Streams an episode.
///
/// The headers wait for the first event that the client is shown, so that an error before it has a proper status: a full
/// queue, a video that is not there, a prompt too long. They wait one keep-alive interval at most, counted from here: a
/// request may stand in the queue or fetch its video for longer than the proxies on its way are patient. What fails later
/// is told in the stream.
///
/// # Errors
/// What the episode ended with before the stream was opened.
pub(super) async fn respond<W: Writer>(
    mut episode: Episode,
    writer: W,
    config: &ServerConfig,
) -> Result<Response, ApiError> {
    let keep_alive = Duration::from_secs(config.keep_alive_s);
    let held = hold(&mut episode, &writer, keep_alive).await?;
    let events = pump(episode, Duration::from_secs(config.read_timeout_s));
    let lines = lines(held, events, writer);
    let mut response =
        Sse::new(lines).keep_alive(KeepAlive::new().interval(keep_alive).text("keep-alive")).into_response();
    // nginx would collect the whole answer first.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

async fn hold<W: Writer>(episode: &mut Episode, writer: &W, patience: Duration) -> Result<VecDeque<Told>, ApiError> {
    let mut held = VecDeque::new();
    let until = tokio::time::Instant::now() + patience;
    loop {
        let Ok(next) = tokio::time::timeout_at(until, episode.next()).await else { return Ok(held) };
        let told = next.unwrap_or(Err(ApiError::Internal))?;
        let enough = writer.shows(&told.event) || held.len() + 1 >= MOST_HELD;
        held.push_back(told);
        if enough {
            return Ok(held);
        }
    }
}

/// What comes out of the pump, and the pump itself.
struct Pumped {
    events: mpsc::Receiver<Result<Told, ApiError>>,
    pump: AbortOnDropHandle<Option<ApiError>>,
}

fn pump(mut episode: Episode, stall: Duration) -> Pumped {
    let (send, events) = mpsc::channel(CHANNEL);
    let work = async move {
        while let Some(event) = episode.next().await {
            match tokio::time::timeout(stall, send.send(event)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) => return Some(ApiError::ClientStalled),
            }
        }
        None
    };
    Pumped { events, pump: AbortOnDropHandle::new(tokio::spawn(work.in_current_span())) }
}

impl Pumped {
    /// The next event. After the last one: why it was the last, if that was no event.
    async fn next(&mut self) -> Result<Told, ApiError> {
        match self.events.recv().await {
            Some(event) => event,
            // Only a stall or a panic ends the pump without a last event.
            None => Err((&mut self.pump).await.ok().flatten().unwrap_or(ApiError::Internal)),
        }
    }
}

struct Lines<W> {
    ready: VecDeque<Line>,
    held: VecDeque<Told>,
    events: Pumped,
    writer: W,
    over: bool,
}

fn lines<W: Writer>(
    held: VecDeque<Told>,
    events: Pumped,
    mut writer: W,
) -> impl Stream<Item = Result<Event, Infallible>> + Send + 'static {
    let ready = writer.open().into();
    let lines = Lines { ready, held, events, writer, over: false };
    stream::unfold(lines, |mut lines| async move {
        loop {
            if let Some(line) = lines.ready.pop_front() {
                return Some((Ok(event(line)), lines));
            }
            if lines.over {
                return None;
            }
            let told = match lines.held.pop_front() {
                Some(told) => Ok(told),
                None => lines.events.next().await,
            };
            lines.take(told);
        }
    })
}

impl<W: Writer> Lines<W> {
    fn take(&mut self, told: Result<Told, ApiError>) {
        match told {
            Ok(told) => {
                self.ready.extend(self.writer.write(told));
                self.over = self.writer.is_over();
            }
            // The error is the last event, and nothing pretends that all is well.
            Err(error) => {
                self.over = true;
                self.ready.extend(self.writer.fail(&error));
            }
        }
    }
}

fn event(line: Line) -> Event {
    let event = Event::default().data(line.data);
    match line.event {
        Some(name) => event.event(name),
        None => event,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt as _;

    use super::*;
    use crate::api::admission::Waited;
    use crate::api::convert::AnswerShape;
    use crate::api::wire::{ChunkWriter, Envelope};
    use crate::engine::EngineError;

    fn writer(events: bool) -> ChunkWriter {
        let shape = AnswerShape { stream: true, events, ..AnswerShape::default() };
        ChunkWriter::new(Envelope {
            id: String::new(),
            created: 0,
            model: String::new(),
            shape,
            waited: Waited::default(),
        })
    }

    fn told(event: AgentEvent) -> Result<Told, ApiError> {
        Ok(Told { choice: 0, event, thumbnails: Vec::new() })
    }

    fn turn_started() -> Result<Told, ApiError> {
        told(AgentEvent::TurnStarted { turn: 0, at_ms: 0.0 })
    }

    fn too_long() -> ApiError {
        ApiError::Engine(EngineError::TooLong { needed: 2, limit: 1 })
    }

    #[tokio::test]
    async fn a_refusal_right_after_the_start_still_has_a_status() {
        let mut episode = stream::iter([turn_started(), Err(too_long())]).boxed();
        let held = hold(&mut episode, &writer(false), Duration::from_secs(60)).await;
        assert!(matches!(held, Err(ApiError::Engine(EngineError::TooLong { .. }))));
    }

    #[tokio::test]
    async fn what_the_client_is_shown_opens_the_stream() {
        for (shown, first) in [(true, turn_started()), (false, told(AgentEvent::Reasoning("x".to_owned())))] {
            let mut episode = stream::iter([first]).chain(stream::pending()).boxed();
            let held = hold(&mut episode, &writer(shown), Duration::from_secs(60)).now_or_never();
            assert_eq!(held.expect("does not wait").expect("no error").len(), 1);
        }
    }

    #[tokio::test]
    async fn a_long_silence_opens_the_stream() {
        let mut nothing = stream::pending().boxed();
        let held = hold(&mut nothing, &writer(false), Duration::ZERO).await;
        assert_eq!(held.expect("no error").len(), 0);
        let mut episode = stream::iter([turn_started()]).chain(stream::pending()).boxed();
        let held = hold(&mut episode, &writer(false), Duration::ZERO).await;
        assert_eq!(held.expect("no error").len(), 1);
    }

    #[tokio::test]
    async fn who_does_not_read_loses_the_episode() {
        let alive = Arc::new(());
        let held_by_episode = Arc::clone(&alive);
        let episode = stream::repeat_with(move || {
            let _ = &held_by_episode;
            turn_started()
        });
        let mut pumped = pump(episode.boxed(), Duration::ZERO);
        let reason = (&mut pumped.pump).await.expect("no panic");
        assert!(matches!(reason, Some(ApiError::ClientStalled)));
        assert_eq!(Arc::strong_count(&alive), 1, "the episode is gone");
        for _ in 0..CHANNEL {
            assert!(pumped.events.recv().await.is_some_and(|event| event.is_ok()));
        }
        assert!(pumped.events.recv().await.is_none());
    }

    #[tokio::test]
    async fn a_dropped_body_drops_the_episode() {
        let alive = Arc::new(tokio::sync::Notify::new());
        struct Gone(Arc<tokio::sync::Notify>);
        impl Drop for Gone {
            fn drop(&mut self) {
                self.0.notify_one();
            }
        }
        let gone = Gone(Arc::clone(&alive));
        let episode = stream::pending().map(move |event: Result<Told, ApiError>| {
            let _ = &gone;
            event
        });
        drop(pump(episode.boxed(), Duration::from_secs(60)));
        alive.notified().await;
    }
}
