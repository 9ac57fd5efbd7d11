//! One plain completion over the frames: no prompt of ours, no windows.

use std::sync::Arc;

use super::AgentError;
use super::budget;
use super::dispatch::{FirstTimes, Run, Scene};
use super::event::{AgentEvent, Outcome, Story, TurnRecord};
use super::form::Forced;
use super::generation::Generation;
use super::parser::{Malformed, Parser, Segment, ToolCall};
use super::prompt;
use super::tokens::Trail;
use crate::engine::{FinishReason, Sampling, TokenEvent};
use crate::types::Turn;

/// Reads one plain completion and tells what it reads.
struct Reader<'a> {
    run: &'a Run,
    /// `None`: the text is passed on as it is.
    parser: Option<Parser>,
    trail: Trail,
    story: Story,
    times: FirstTimes,
    /// Bytes of the prefix.
    skipped: usize,
    /// Whether text is an answer, or only calls count.
    answers: bool,
    /// Calls that were left out, as they were written.
    dropped: Vec<Arc<str>>,
}

impl Run {
    pub(super) async fn plain(&self, scene: &Scene) -> Result<Outcome, AgentError> {
        let (card, options) = (self.agent.card(), &self.request.options);
        let mut forced = Forced::in_plain(options);
        if !self.agent.engine().info().supported.constraint {
            forced = forced.map(Forced::unconstrained);
        }
        let sampling = budget::plain_sampling(card, &self.request.sampling);
        let turns = prompt::plain(card, &self.request.turns, &scene.clips, &options.client_tools);
        let mut records = Vec::new();
        // With tools of the caller's the model may call one instead of giving an answer of the form: it is asked first.
        if !options.client_tools.is_empty() && forced.as_ref().is_some_and(|forced| !forced.call) {
            let (reader, record) = self.pass(0, turns.clone(), &sampling, None, false).await?;
            records.push(record);
            if !reader.story.tool_calls.is_empty() {
                return Ok(self.done(scene, reader, records, sampling));
            }
        }
        let number = records.len() as u32;
        let (reader, record) = self.pass(number, turns, &sampling, forced.as_ref(), true).await?;
        records.push(record);
        Ok(self.done(scene, reader, records, sampling))
    }

    /// One generation. `answers`: what is said is the answer; else only calls count.
    async fn pass(
        &self,
        number: u32,
        turns: Vec<Turn>,
        sampling: &Sampling,
        forced: Option<&Forced>,
        answers: bool,
    ) -> Result<(Reader<'_>, TurnRecord), AgentError> {
        let opened = forced.map_or("", |forced| forced.open.as_str());
        let prefix = format!("{}{opened}", self.request.prefix);
        let mut record = TurnRecord::begun(number, self.clock.ms());
        self.emit.send(AgentEvent::TurnStarted { turn: number, at_ms: record.started_ms });
        let constraint = forced.and_then(|forced| forced.constraint(&prefix));
        let request = self.main_request(number, turns, prefix.clone(), Sampling { constraint, ..sampling.clone() });
        let mut generation = Generation::start(self.agent.engine().as_ref(), request, self.clock).await?;
        let all_answer = self.request.options.raw || forced.is_some_and(|forced| !forced.call);
        let mut reader = Reader::new(self, &prefix, all_answer, answers);
        while let Some(event) = generation.next().await? {
            match event {
                TokenEvent::Started { .. } => {}
                TokenEvent::Tokens(tokens) => reader.trail.push(tokens),
                TokenEvent::Text(text) => {
                    record.text.push_str(&text);
                    reader.push(text);
                }
                TokenEvent::Finished(end) => (record.usage, record.finish_reason) = (end.usage, end.reason),
            }
        }
        // What was cut is not whole, and nothing makes it so.
        let whole = record.finish_reason != FinishReason::Length;
        if let Some(close) = forced.map(Forced::close).filter(|close| whole && !close.is_empty()) {
            reader.push(close.to_owned());
        }
        reader.finish();
        if whole && forced.is_none() {
            reader.show_dropped();
        }
        reader.times.token = generation.first_text_ms;
        record.timing = generation.timing_after(0.0);
        record.finished_ms = self.clock.ms();
        self.emit.send(AgentEvent::TurnFinished(record.clone()));
        Ok((reader, record))
    }

    fn done(&self, scene: &Scene, reader: Reader<'_>, records: Vec<TurnRecord>, sampling: Sampling) -> Outcome {
        let Reader { mut story, times, .. } = reader;
        story.finish_reason = records.last().map_or(FinishReason::Stop, |record| record.finish_reason);
        story.turns = records;
        self.outcome(scene, &times, story, sampling)
    }
}

impl<'a> Reader<'a> {
    fn new(run: &'a Run, prefix: &str, all_answer: bool, answers: bool) -> Self {
        let parser = match (all_answer, run.request.options.client_tools.is_empty()) {
            (true, _) => None,
            (false, true) => Some(Parser::plain()),
            (false, false) => Some(Parser::with_tools()),
        };
        let parser = parser.map(|mut parser| {
            parser.open(prefix);
            parser
        });
        let (trail, story, times) = (Trail::default(), Story::default(), FirstTimes::default());
        Self { run, parser, trail, story, times, skipped: prefix.len(), answers, dropped: Vec::new() }
    }

    fn push(&mut self, text: String) {
        self.trail.text(text.len());
        match &mut self.parser {
            None => self.answer(text, Some(0)),
            Some(parser) => {
                let segments = parser.push(&text);
                // An answer that the prefix began goes on with the first byte.
                let at = parser.answer_at().map(|at| at.saturating_sub(self.skipped));
                self.tell(segments, at);
            }
        }
    }

    /// What was kept back, at the end.
    fn finish(&mut self) {
        if let Some(parser) = self.parser.take() {
            let at = parser.answer_at().map(|at| at.saturating_sub(self.skipped));
            self.tell(parser.finish(false).0, at);
        }
    }

    fn tell(&mut self, segments: Vec<Segment>, answer_at: Option<usize>) {
        for segment in segments {
            match segment {
                Segment::Think(text) => {
                    self.story.reasoning.push_str(&text);
                    self.run.emit.send(AgentEvent::Reasoning(text));
                }
                Segment::Answer(text) => self.answer(text, answer_at),
                Segment::Call(call) => self.call(call),
                Segment::Answered | Segment::Stop => {}
            }
        }
    }

    fn answer(&mut self, text: String, at: Option<usize>) {
        if !self.answers {
            return;
        }
        self.times.answer = self.times.answer.or_else(|| Some(self.run.clock.ms()));
        if let Some(from) = at.map(|at| at + self.story.answer.len()) {
            let tokens = self.trail.take(from..from + text.len());
            if !tokens.is_empty() {
                self.story.tokens.extend_from_slice(&tokens);
                self.run.emit.send(AgentEvent::AnswerTokens(tokens));
            }
        }
        self.story.answer.push_str(&text);
        self.run.emit.send(AgentEvent::Answer(text));
    }

    /// A call of a tool that the caller has not is none of its business: it could not be run. Beside an answer or another call
    /// it is left out.
    fn call(&mut self, call: Result<ToolCall, Malformed>) {
        let options = &self.run.request.options;
        match call {
            Ok(call) if options.client_tools.iter().any(|tool| tool.name == call.name) => {
                if !options.single_call || self.story.tool_calls.is_empty() {
                    self.story.tool_calls.push(call.clone());
                    self.run.emit.send(AgentEvent::ToolCall(call));
                }
            }
            Ok(call) => self.dropped.extend(serde_json::to_string(&call).ok().map(Arc::from)),
            // Once for its block.
            Err(malformed) if self.dropped.last().is_some_and(|last| Arc::ptr_eq(last, &malformed.body)) => {}
            Err(malformed) => self.dropped.push(malformed.body),
        }
    }

    /// Where nothing else was said, calls that nobody can run are better read by a person than not at all.
    fn show_dropped(&mut self) {
        if self.story.answer.is_empty() && self.story.tool_calls.is_empty() && !self.dropped.is_empty() {
            let calls = self.dropped.iter().map(|call| format!("<tool_call>\n{call}\n</tool_call>"));
            self.answer(calls.collect::<Vec<_>>().join("\n"), None);
        }
    }
}
