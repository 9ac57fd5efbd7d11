//! From the agent's events to the wire's objects. Pure: no I/O, no axum.

use serde::Serialize;
use serde_json::Value;

use super::admission::Waited;
use super::convert::AnswerShape;
use crate::agent::{AgentEvent, AgentUsage, Outcome, WindowStatus};
use crate::engine::FinishReason;
use crate::protocol::chunk::{ChatCompletionChunk, ChunkChoice, ChunkExtra, Delta, EpisodeEvent};
use crate::protocol::completion::{
    AnswerMessage, ChatCompletionResponse, Choice, CompletionDetails, ParavtResult, PromptDetails, Timing, TokenCounts,
    Usage, UsageByAgent, WireFinish,
};
use crate::types::TokenUsage;

/// What all objects of one answer have in common.
#[derive(Debug, Clone)]
pub(super) struct Envelope {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) shape: AnswerShape,
    pub(super) waited: Waited,
}

impl Envelope {
    /// The whole answer in one object.
    pub(super) fn response(&self, outcome: &Outcome) -> ChatCompletionResponse {
        let reasoning = Some(outcome.reasoning.clone()).filter(|text| !text.is_empty());
        ChatCompletionResponse {
            id: self.id.clone(),
            object: "chat.completion",
            created: self.created,
            model: self.model.clone(),
            choices: vec![Choice {
                index: 0,
                message: AnswerMessage {
                    role: "assistant",
                    content: outcome.answer.clone(),
                    refusal: None,
                    reasoning_content: reasoning.clone(),
                    reasoning,
                },
                logprobs: None,
                finish_reason: finish(outcome.finish_reason),
            }],
            usage: usage(&outcome.usage),
            paravt: self.result(outcome),
        }
    }

    fn result(&self, outcome: &Outcome) -> ParavtResult {
        let timing = Timing {
            queue_ms: self.waited.ms(),
            open_ms: outcome.open_ms,
            overview_ms: outcome.overview_ms,
            first_token_ms: outcome.first_token_ms,
            first_answer_ms: outcome.first_answer_ms,
            total_ms: outcome.total_ms,
        };
        ParavtResult { timing, trace: self.shape.trace.then(|| json(outcome)) }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>, paravt: Option<ChunkExtra>) -> ChatCompletionChunk {
        ChatCompletionChunk {
            id: self.id.clone(),
            object: "chat.completion.chunk",
            created: self.created,
            model: self.model.clone(),
            choices,
            usage: self.shape.include_usage.then_some(None),
            paravt,
        }
    }
}

/// Turns the events of one episode into the chunks of one stream.
#[derive(Debug)]
pub(super) struct ChunkWriter {
    envelope: Envelope,
    /// What was streamed of the answer.
    answer: String,
}

impl ChunkWriter {
    pub(super) const fn new(envelope: Envelope) -> Self {
        Self { envelope, answer: String::new() }
    }

    /// The chunk that opens the stream.
    pub(super) fn open(&self) -> ChatCompletionChunk {
        self.delta(Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() }, None)
    }

    /// True when the event becomes a chunk.
    pub(super) const fn shows(&self, event: &AgentEvent) -> bool {
        self.envelope.shape.events
            || matches!(event, AgentEvent::Reasoning(_) | AgentEvent::Answer(_) | AgentEvent::Finished(_))
    }

    /// The chunks for one event, in order.
    pub(super) fn write(&mut self, event: AgentEvent) -> Vec<ChatCompletionChunk> {
        match event {
            AgentEvent::Reasoning(text) if text.is_empty() => Vec::new(),
            AgentEvent::Reasoning(text) => {
                let delta = Delta { reasoning_content: Some(text.clone()), reasoning: Some(text), ..Delta::default() };
                vec![self.delta(delta, None)]
            }
            AgentEvent::Answer(text) => self.answer(text).into_iter().collect(),
            AgentEvent::Finished(outcome) => self.close(&outcome),
            event => self.event(event).into_iter().collect(),
        }
    }

    fn answer(&mut self, text: String) -> Option<ChatCompletionChunk> {
        if text.is_empty() {
            return None;
        }
        self.answer.push_str(&text);
        Some(self.delta(Delta { content: Some(text), ..Delta::default() }, None))
    }

    fn close(&mut self, outcome: &Outcome) -> Vec<ChatCompletionChunk> {
        // A stream and a plain answer hold the same text, even where the answer was known only at the end.
        let rest = outcome.answer.strip_prefix(&self.answer).unwrap_or_default().to_owned();
        let mut chunks: Vec<_> = self.answer(rest).into_iter().collect();
        chunks.push(self.delta(Delta::default(), Some(finish(outcome.finish_reason))));
        if self.envelope.shape.include_usage {
            let mut last = self.envelope.chunk(Vec::new(), None);
            last.usage = Some(Some(usage(&outcome.usage)));
            chunks.push(last);
        }
        if let Some(last) = chunks.last_mut() {
            last.paravt = Some(ChunkExtra::Result(self.envelope.result(outcome)));
        }
        chunks
    }

    fn event(&self, event: AgentEvent) -> Option<ChatCompletionChunk> {
        if !self.envelope.shape.events {
            return None;
        }
        let event = match event {
            AgentEvent::Overview(record) => EpisodeEvent::Overview { record: json(&record) },
            AgentEvent::TurnStarted { turn, at_ms } => EpisodeEvent::TurnStarted { turn, at_ms },
            AgentEvent::TurnFinished(record) => EpisodeEvent::TurnFinished { record: json(&record) },
            AgentEvent::WindowStarted { id, turn, video, window, at_ms } => {
                EpisodeEvent::WindowStarted { id, turn, video, start: window.start, end: window.end, at_ms }
            }
            AgentEvent::WindowFrames { id, frame_times, at_ms } => {
                EpisodeEvent::WindowFrames { id, frame_times, at_ms }
            }
            AgentEvent::WindowDelta { id, text } => EpisodeEvent::WindowDelta { id, text },
            AgentEvent::WindowFinished(record) => match record.status {
                WindowStatus::Ok | WindowStatus::Shared => EpisodeEvent::WindowFinished { record: json(&record) },
                WindowStatus::Refused | WindowStatus::NotRun | WindowStatus::Failed | WindowStatus::Late => {
                    EpisodeEvent::WindowFailed { record: json(&record) }
                }
            },
            // These are no events of their own on the wire.
            AgentEvent::Reasoning(_) | AgentEvent::Answer(_) | AgentEvent::Finished(_) => return None,
        };
        let mut chunk = self.delta(Delta::default(), None);
        chunk.paravt = Some(ChunkExtra::Event(event));
        Some(chunk)
    }

    fn delta(&self, delta: Delta, finish_reason: Option<WireFinish>) -> ChatCompletionChunk {
        self.envelope.chunk(vec![ChunkChoice { index: 0, delta, logprobs: None, finish_reason }], None)
    }
}

/// The agent's records are plain data; one that could not be written would be `null`.
fn json<T: Serialize>(record: &T) -> Value {
    serde_json::to_value(record).unwrap_or_default()
}

const fn finish(reason: FinishReason) -> WireFinish {
    match reason {
        FinishReason::Stop => WireFinish::Stop,
        FinishReason::Length => WireFinish::Length,
    }
}

fn usage(by_agent: &AgentUsage) -> Usage {
    let AgentUsage { main, sub, reasoning_tokens } = *by_agent;
    let total: TokenUsage = [main, sub].into_iter().sum();
    let counts = |usage: TokenUsage| TokenCounts {
        prompt_tokens: usage.prompt_tokens,
        cached_tokens: usage.cached_tokens,
        completion_tokens: usage.completion_tokens,
    };
    Usage {
        prompt_tokens: total.prompt_tokens,
        completion_tokens: total.completion_tokens,
        total_tokens: total.total_tokens(),
        prompt_tokens_details: PromptDetails { cached_tokens: total.cached_tokens },
        completion_tokens_details: CompletionDetails { reasoning_tokens },
        paravt: UsageByAgent { main: counts(main), sub: counts(sub) },
    }
}

#[cfg(test)]
mod tests;
