//! One window's watcher: decodes the window and has a fresh conversation summarise it, within the window's own deadline.

use std::time::Duration;

use super::agent::{Agent, Clock, Emitter};
use super::episode::Watched;
use super::event::{AgentEvent, StageTiming, WindowRecord};
use super::generation::Generation;
use super::{AgentError, prompt};
use crate::engine::{
    Batching, EngineError, FinishReason, GenerateRequest, Sampling, Seat, SessionKey, Speaker, TokenEvent,
};
use crate::media::{MediaError, Video};
use crate::types::{TimeSpan, TraceContext};

/// Everything a window needs to be watched.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) agent: Agent,
    pub(super) emit: Emitter,
    pub(super) clock: Clock,
    pub(super) video: Video,
    pub(super) window: TimeSpan,
    pub(super) question: String,
    pub(super) sampling: Sampling,
    pub(super) session: SessionKey,
    pub(super) seat: Seat,
    pub(super) trace: Option<TraceContext>,
}

impl Watch {
    /// Watches. The record says how far it came, [`Watched`] how it ended; a failure is this window's alone.
    pub(super) async fn run(self, mut record: WindowRecord) -> (WindowRecord, Watched) {
        let deadline = self.agent.config().window_deadline_s;
        let watched = match tokio::time::timeout(Duration::from_secs(deadline), self.watch(&mut record)).await {
            Ok(Ok(summary)) => Watched::Summary(summary),
            Ok(Err(error)) => {
                log(&record, "failed", &error);
                Watched::Failed(told(&error))
            }
            Err(_) => {
                let reason = format!("not watched within {deadline} s");
                log(&record, "late", &reason);
                Watched::Late(reason)
            }
        };
        (record, watched)
    }

    async fn watch(self, record: &mut WindowRecord) -> Result<String, AgentError> {
        let card = self.agent.card();
        // An engine that batches only equal shapes wants equal windows: shorter ones are sampled more densely.
        let dense = self.agent.config().align_bursts && self.agent.engine().info().batching == Batching::EqualShapes;
        let before = self.clock.ms();
        let clip = self.agent.media().window(&self.video, self.window, &card.window, dense, &card.pixels).await?;
        let at_ms = self.clock.ms();
        record.timing.decode_ms = at_ms - before;
        record.frame_times = clip.times();
        record.partial = clip.partial;
        let frames = clip.frames.clone();
        self.emit.send(AgentEvent::WindowFrames { id: record.id, frame_times: clip.times(), frames, at_ms });

        let request = GenerateRequest {
            turns: prompt::sub_agent(card, self.window, &clip, &self.question),
            prefix: String::new(),
            sampling: self.sampling,
            session: self.session,
            speaker: Speaker::Sub,
            seat: Some(self.seat),
            deadline: None,
            trace: self.trace,
        };
        let mut generation = Generation::start(self.agent.engine().as_ref(), request, self.clock).await?;
        let mut summary = String::new();
        while let Some(event) = generation.next().await? {
            record.timing = generation.timing_after(record.timing.decode_ms);
            // What was spent counts, also when the window never ends well.
            record.usage = generation.seen;
            match event {
                TokenEvent::Started { .. } | TokenEvent::Tokens(_) => {}
                TokenEvent::Text(text) => {
                    summary.push_str(&text);
                    self.emit.send(AgentEvent::WindowDelta { id: record.id, text });
                }
                TokenEvent::Finished(end) => {
                    record.usage = end.usage;
                    summary.truncate(summary.trim_end().len());
                    if end.reason == FinishReason::Length {
                        summary.push_str(" [truncated]");
                    }
                }
            }
        }
        Ok(summary.trim_start().to_owned())
    }
}

/// One line for a window that came to nothing: how far it was, and why it went no further.
fn log(record: &WindowRecord, outcome: &'static str, error: &dyn std::fmt::Display) {
    let StageTiming { decode_ms, queue_ms, prefill_ms, generate_ms } = record.timing;
    tracing::warn!(
        window.id = record.id,
        outcome,
        %error,
        decode_ms,
        queue_ms,
        prefill_ms,
        generate_ms,
        prompt_tokens = record.usage.prompt_tokens,
        completion_tokens = record.usage.completion_tokens,
        "window"
    );
}

/// A failure in words for the main agent: what it can act on, and nothing of ours.
fn told(error: &AgentError) -> String {
    match error {
        AgentError::Media(MediaError::Internal(_)) => "the window could not be decoded".to_owned(),
        AgentError::Media(error) => error.to_string(),
        AgentError::Engine(EngineError::TooLong { .. }) => "the window's frames do not fit the model".to_owned(),
        _ => "the window could not be watched".to_owned(),
    }
}
