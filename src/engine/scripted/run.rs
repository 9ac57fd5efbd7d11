//! One scripted generation.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;

use super::output::Output;
use super::{Load, Reply, Step, ends};
use crate::engine::{EngineError, FinishReason, Gang, Generated, Sampling, TokenEvent};
use crate::types::TokenUsage;

/// A generation being counted in the engine's load. Dropping it takes it out, whatever state it is in.
#[derive(Debug)]
pub(super) struct Activity {
    load: Arc<watch::Sender<Load>>,
    running: bool,
}

impl Activity {
    pub(super) fn queued(load: Arc<watch::Sender<Load>>) -> Self {
        load.send_modify(|load| load.now.queued += 1);
        Self { load, running: false }
    }

    fn start(&mut self) {
        self.running = true;
        self.load.send_modify(|load| {
            load.now.queued -= 1;
            load.now.running += 1;
            load.most_running = load.most_running.max(load.now.running);
        });
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        self.load.send_modify(|load| {
            let counted = if self.running { &mut load.now.running } else { &mut load.now.queued };
            *counted -= 1;
        });
    }
}

/// A generation's remaining steps.
#[derive(Debug)]
pub(super) struct Run {
    steps: VecDeque<Step>,
    gang: Option<Gang>,
    output: Output,
    finish: FinishReason,
    usage: TokenUsage,
    started: bool,
    /// `None` once it has ended.
    activity: Option<Activity>,
}

impl Run {
    pub(super) fn new(
        reply: Reply,
        gang: Option<Gang>,
        sampling: &Sampling,
        usage: TokenUsage,
        activity: Activity,
    ) -> Self {
        let (finish, output) = (reply.finish, Output::new(sampling));
        let steps = reply.into_steps().collect();
        Self { steps, gang, output, finish, usage, started: false, activity: Some(activity) }
    }

    /// The next event; none after the one that ended it.
    pub(super) async fn next(&mut self) -> Option<Result<TokenEvent, EngineError>> {
        self.activity.as_ref()?;
        let event = self.advance().await;
        if ends(&event) {
            self.activity = None;
        }
        Some(event)
    }

    async fn advance(&mut self) -> Result<TokenEvent, EngineError> {
        if !self.started {
            if let Some(gang) = self.gang.take() {
                gang.completed().await;
            }
            self.started = true;
            if let Some(activity) = &mut self.activity {
                activity.start();
            }
            return Ok(TokenEvent::Started { prompt_tokens: Some(self.usage.prompt_tokens) });
        }
        loop {
            match self.steps.pop_front() {
                Some(Step::Text(text)) => {
                    let (said, end) = self.output.push(&text);
                    if let Some(event) = self.say(said, end) {
                        return Ok(event);
                    }
                }
                Some(Step::Delay(delay)) => tokio::time::sleep(delay).await,
                Some(Step::Gate(gate)) => gate.pass().await,
                Some(Step::Fail(error)) => return Err(error),
                Some(Step::Hang) => std::future::pending().await,
                None => {
                    let (said, end) = self.output.flush();
                    return Ok(self.say(said, end).unwrap_or_else(|| self.finished()));
                }
            }
        }
    }

    /// Text as an event, if there is any. The end, where there is one, is left to the next call.
    fn say(&mut self, said: String, end: Option<FinishReason>) -> Option<TokenEvent> {
        if let Some(reason) = end {
            self.finish = reason;
            self.steps.clear();
        }
        if said.is_empty() { end.map(|_| self.finished()) } else { Some(TokenEvent::Text(said)) }
    }

    fn finished(&self) -> TokenEvent {
        let usage = TokenUsage { completion_tokens: self.output.tokens(), ..self.usage };
        TokenEvent::Finished(Generated { reason: self.finish, usage })
    }
}
