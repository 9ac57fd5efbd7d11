//! From the agent's events to the wire's objects. Pure: no I/O, no axum.

mod responses;

pub(super) use responses::ResponseWriter;

use serde::Serialize;
use serde_json::Value;

use super::admission::Waited;
use super::convert::AnswerShape;
use super::error::ApiError;
use super::observe::Told;
use super::sse::{Line, Writer};
use crate::agent::{AgentEvent, AgentUsage, Outcome, ToolCall as AgentToolCall, WindowStatus};
use crate::engine::{FinishReason, Sampling, TokenInfo};
use crate::protocol::chunk::{ChatCompletionChunk, ChunkChoice, ChunkExtra, ChunkToolCall, Delta, EpisodeEvent};
use crate::protocol::completion::{
    AnswerMessage, ChatCompletionResponse, Choice, CompletionDetails, ParavtResult, PromptDetails, SamplingEcho,
    Timing, TokenCounts, Usage, UsageByAgent, WireFinish,
};
use crate::protocol::logprobs::{ChoiceLogprobs, TokenLogprob, TopLogprob};
use crate::protocol::tools::{FunctionCall, FunctionKind, ToolCall};
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
    /// The whole answer in one object; an outcome a choice.
    pub(super) fn response(&self, outcomes: &[Outcome]) -> ChatCompletionResponse {
        ChatCompletionResponse {
            id: self.id.clone(),
            object: "chat.completion",
            created: self.created,
            model: self.model.clone(),
            choices: outcomes.iter().enumerate().map(|(index, outcome)| self.choice(index, outcome)).collect(),
            usage: usage(outcomes),
            paravt: self.result(outcomes),
        }
    }

    fn choice(&self, index: usize, outcome: &Outcome) -> Choice {
        let reasoning = Some(outcome.reasoning.clone()).filter(|text| !text.is_empty());
        let tool_calls: Vec<ToolCall> =
            outcome.tool_calls.iter().enumerate().map(|(place, call)| self.call(index, place, call)).collect();
        let content = Some(outcome.answer.clone()).filter(|answer| tool_calls.is_empty() || !answer.is_empty());
        Choice {
            index,
            message: AnswerMessage {
                role: "assistant",
                content,
                refusal: None,
                tool_calls,
                reasoning_content: reasoning.clone(),
                reasoning,
            },
            logprobs: self.shape.logprobs.then(|| logprobs(&outcome.tokens)),
            finish_reason: finish(outcome),
        }
    }

    /// A call with a name that no other call of this answer has.
    fn call(&self, choice: usize, place: usize, call: &AgentToolCall) -> ToolCall {
        let unique = self.id.rsplit('-').next().unwrap_or_default();
        let function = FunctionCall { name: call.name.clone(), arguments: call.arguments.clone() };
        ToolCall { id: format!("call_{unique}_{choice}_{place}"), kind: FunctionKind::Function, function }
    }

    fn result(&self, outcomes: &[Outcome]) -> ParavtResult {
        let slowest = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).fold(0.0, f64::max);
        let slowest_of = |of: fn(&Outcome) -> Option<f64>| outcomes.iter().filter_map(of).reduce(f64::max);
        let timing = Timing {
            queue_ms: self.waited.ms(),
            open_ms: slowest(|outcome| outcome.open_ms),
            overview_ms: slowest(|outcome| outcome.overview_ms),
            first_token_ms: slowest_of(|outcome| outcome.first_token_ms),
            first_answer_ms: slowest_of(|outcome| outcome.first_answer_ms),
            total_ms: slowest(|outcome| outcome.total_ms),
        };
        let first = outcomes.first();
        let sampling = echo(first.map(|outcome| &outcome.sampling).unwrap_or(&Sampling::default()));
        ParavtResult { timing, sampling, trace: first.filter(|_| self.shape.trace).map(json) }
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

/// Turns what happens into the chunks of one stream.
#[derive(Debug)]
pub(super) struct ChunkWriter {
    envelope: Envelope,
    choices: Vec<StreamedChoice>,
}

/// What was streamed of one choice.
#[derive(Debug, Default)]
struct StreamedChoice {
    answer: String,
    /// Tokens of the piece that comes next.
    tokens: Vec<TokenInfo>,
    calls: usize,
    outcome: Option<Outcome>,
}

impl Writer for ChunkWriter {
    fn open(&mut self) -> Vec<Line> {
        let delta = || Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
        (0..self.choices.len()).map(|choice| Line::data(&self.delta(choice, delta(), None))).collect()
    }

    fn shows(&self, event: &AgentEvent) -> bool {
        let shown = |event: &AgentEvent| {
            matches!(
                event,
                AgentEvent::Reasoning(_) | AgentEvent::Answer(_) | AgentEvent::ToolCall(_) | AgentEvent::Finished(_)
            )
        };
        self.envelope.shape.events || shown(event)
    }

    fn write(&mut self, told: Told) -> Vec<Line> {
        let mut lines: Vec<Line> = self.chunks(told).iter().map(Line::data).collect();
        if self.is_over() {
            lines.push(Line { event: None, data: "[DONE]".to_owned() });
        }
        lines
    }

    fn is_over(&self) -> bool {
        self.choices.iter().all(|choice| choice.outcome.is_some())
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Line> {
        vec![Line::data(&error.body())]
    }
}

impl ChunkWriter {
    pub(super) fn new(envelope: Envelope) -> Self {
        let choices = (0..envelope.shape.choices).map(|_| StreamedChoice::default()).collect();
        Self { envelope, choices }
    }

    /// The chunks for one thing that happened, in order.
    fn chunks(&mut self, told: Told) -> Vec<ChatCompletionChunk> {
        let Told { choice, event, thumbnails } = told;
        match event {
            AgentEvent::Reasoning(text) if text.is_empty() => Vec::new(),
            AgentEvent::Reasoning(text) => {
                let delta = Delta { reasoning_content: Some(text.clone()), reasoning: Some(text), ..Delta::default() };
                vec![self.delta(choice, delta, None)]
            }
            AgentEvent::AnswerTokens(tokens) => {
                self.choices[choice].tokens.extend(tokens);
                Vec::new()
            }
            AgentEvent::Answer(text) => self.answer(choice, text).into_iter().collect(),
            AgentEvent::ToolCall(call) => {
                let index = self.choices[choice].calls;
                self.choices[choice].calls += 1;
                let call = ChunkToolCall { index, call: self.envelope.call(choice, index, &call) };
                vec![self.delta(choice, Delta { tool_calls: Some(vec![call]), ..Delta::default() }, None)]
            }
            AgentEvent::Finished(outcome) => self.close(choice, *outcome),
            event => self.event(choice, event, thumbnails).into_iter().collect(),
        }
    }

    fn answer(&mut self, choice: usize, text: String) -> Option<ChatCompletionChunk> {
        if text.is_empty() {
            return None;
        }
        let streamed = &mut self.choices[choice];
        streamed.answer.push_str(&text);
        let tokens = std::mem::take(&mut streamed.tokens);
        let mut chunk = self.delta(choice, Delta { content: Some(text), ..Delta::default() }, None);
        if let Some(choice) = chunk.choices.first_mut().filter(|_| self.envelope.shape.logprobs) {
            choice.logprobs = Some(logprobs(&tokens));
        }
        Some(chunk)
    }

    fn close(&mut self, choice: usize, outcome: Outcome) -> Vec<ChatCompletionChunk> {
        // A stream and a plain answer hold the same text, even where the answer was known only at the end.
        let rest = outcome.answer.strip_prefix(&self.choices[choice].answer).unwrap_or_default().to_owned();
        let mut chunks: Vec<_> = self.answer(choice, rest).into_iter().collect();
        chunks.push(self.delta(choice, Delta::default(), Some(finish(&outcome))));
        self.choices[choice].outcome = Some(outcome);
        if self.is_over() {
            let outcomes: Vec<Outcome> =
                self.choices.iter_mut().filter_map(|choice| choice.outcome.as_mut()).map(std::mem::take).collect();
            if self.envelope.shape.include_usage {
                let mut last = self.envelope.chunk(Vec::new(), None);
                last.usage = Some(Some(usage(&outcomes)));
                chunks.push(last);
            }
            if let Some(last) = chunks.last_mut() {
                last.paravt = Some(ChunkExtra::Result(self.envelope.result(&outcomes)));
            }
        }
        chunks
    }

    fn event(&self, choice: usize, event: AgentEvent, thumbnails: Vec<String>) -> Option<ChatCompletionChunk> {
        if !self.envelope.shape.events {
            return None;
        }
        let event = match event {
            AgentEvent::Overview(record) => EpisodeEvent::Overview { record: json(&record), thumbnails },
            AgentEvent::TurnStarted { turn, at_ms } => EpisodeEvent::TurnStarted { turn, at_ms },
            AgentEvent::TurnFinished(record) => EpisodeEvent::TurnFinished { record: json(&record) },
            AgentEvent::WindowStarted { id, turn, video, window, at_ms } => {
                EpisodeEvent::WindowStarted { id, turn, video, start: window.start, end: window.end, at_ms }
            }
            AgentEvent::WindowFrames { id, frame_times, at_ms, .. } => {
                EpisodeEvent::WindowFrames { id, frame_times, thumbnails, at_ms }
            }
            AgentEvent::WindowDelta { id, text } => EpisodeEvent::WindowDelta { id, text },
            AgentEvent::WindowFinished(record) => match record.status {
                WindowStatus::Ok | WindowStatus::Shared => EpisodeEvent::WindowFinished { record: json(&record) },
                WindowStatus::Refused | WindowStatus::NotRun | WindowStatus::Failed | WindowStatus::Late => {
                    EpisodeEvent::WindowFailed { record: json(&record) }
                }
            },
            // These are no events of their own on the wire.
            AgentEvent::Reasoning(_)
            | AgentEvent::Answer(_)
            | AgentEvent::AnswerTokens(_)
            | AgentEvent::ToolCall(_)
            | AgentEvent::Finished(_) => return None,
        };
        let mut chunk = self.delta(choice, Delta::default(), None);
        chunk.paravt = Some(ChunkExtra::Event(event));
        Some(chunk)
    }

    fn delta(&self, index: usize, delta: Delta, finish_reason: Option<WireFinish>) -> ChatCompletionChunk {
        self.envelope.chunk(vec![ChunkChoice { index, delta, logprobs: None, finish_reason }], None)
    }
}

/// The agent's records are plain data; one that could not be written would be `null`.
fn json<T: Serialize>(record: &T) -> Value {
    serde_json::to_value(record).unwrap_or_default()
}

const fn finish(outcome: &Outcome) -> WireFinish {
    match outcome.finish_reason {
        FinishReason::Length => WireFinish::Length,
        FinishReason::Stop if !outcome.tool_calls.is_empty() => WireFinish::ToolCalls,
        FinishReason::Stop => WireFinish::Stop,
    }
}

fn echo(sampling: &Sampling) -> SamplingEcho {
    SamplingEcho {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        min_p: sampling.min_p,
        frequency_penalty: sampling.frequency_penalty,
        presence_penalty: sampling.presence_penalty,
        repetition_penalty: sampling.repetition_penalty,
        seed: sampling.seed,
        max_tokens: sampling.max_tokens,
    }
}

fn logprobs(tokens: &[TokenInfo]) -> ChoiceLogprobs {
    // JSON has no infinities.
    let finite = |logprob: f64| logprob.max(-9999.0);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let content = tokens
        .iter()
        .map(|token| TokenLogprob {
            token: text(&token.bytes),
            logprob: finite(token.logprob),
            bytes: token.bytes.clone(),
            top_logprobs: token
                .top
                .iter()
                .map(|other| TopLogprob {
                    token: text(&other.bytes),
                    logprob: finite(other.logprob),
                    bytes: other.bytes.clone(),
                })
                .collect(),
        })
        .collect();
    ChoiceLogprobs { content, refusal: None }
}

fn usage(outcomes: &[Outcome]) -> Usage {
    let by_agent = |of: fn(&AgentUsage) -> TokenUsage| outcomes.iter().map(|outcome| of(&outcome.usage)).sum();
    let (main, sub): (TokenUsage, TokenUsage) = (by_agent(|usage| usage.main), by_agent(|usage| usage.sub));
    let reasoning_tokens = outcomes.iter().map(|outcome| outcome.usage.reasoning_tokens).sum();
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
