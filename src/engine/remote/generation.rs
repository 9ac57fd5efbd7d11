//! One generation: an upstream's events become ours, and a replica that dies is replaced: before its first token by one that
//! starts over, later by one that goes on from what was said, where that can be asked for.

use std::collections::VecDeque;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;

use super::chunk::{Chunk, finish_reason};
use super::events::{Body, Lost, events};
use super::load::Counted;
use super::raw::Raw;
use super::refusal::Trouble;
use super::replicas::Outcome;
use super::tokens::Tokens;
use super::tries::{Lease, Tries};
use crate::engine::{EngineError, FinishReason, Generated, TokenEvent};
use crate::types::TokenUsage;

/// Text bytes a token can hold at most, roughly: an upstream that ignores `max_tokens` is stopped by this.
const TOKEN_BYTES: u64 = 256;

/// What of a request its answer is read by.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) prefix: String,
    pub(super) max_tokens: u32,
    pub(super) logprobs: bool,
}

/// A generation under way. Dropping it closes the connection, which upstreams take as a cancellation.
pub(super) struct Generation {
    /// `None` once it has ended.
    connection: Option<Connection>,
    /// `None` while it is being changed, and after that came to nothing.
    tries: Option<Tries>,
    counted: Option<Counted>,
    /// What this connection is asked for.
    asked: Asked,
    silence: Duration,
    ready: VecDeque<TokenEvent>,
    /// The text that this connection gave.
    said: String,
    /// Tokens that earlier connections gave: pieces of text, of which an upstream that looks ahead has fewer.
    before: u64,
}

/// An accepted request on one replica.
struct Connection {
    events: BoxStream<'static, Result<String, Lost>>,
    lease: Lease,
    raw: Raw,
    reason: Option<FinishReason>,
    usage: Option<TokenUsage>,
    tokens: Tokens,
    /// Pieces of text so far: the tokens written, where an upstream does not count.
    pieces: u64,
    bytes: u64,
}

/// How one event left things.
enum Step {
    More,
    End,
}

impl Generation {
    pub(super) fn new(opened: (Lease, Body), tries: Tries, counted: Counted, silence: Duration) -> Self {
        let asked = tries.asked();
        let connection = Some(Connection::new(opened, &asked, silence));
        let counted = Some(counted);
        let (tries, ready) = (Some(tries), VecDeque::new());
        Self { connection, tries, counted, asked, silence, ready, said: String::new(), before: 0 }
    }

    /// The next event; none after the one that ended it.
    pub(super) async fn next(&mut self) -> Option<Result<TokenEvent, EngineError>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            let event = self.connection.as_mut()?.events.next().await;
            let step = match event {
                Some(Ok(data)) => self.take(&data),
                Some(Err(lost)) => self.lost(lost),
                None => self.lost(Lost::Closed),
            };
            match step {
                Ok(Step::More) => {}
                Ok(Step::End) => self.finish(),
                Err(trouble) => {
                    if let Err(error) = self.again(trouble).await {
                        (self.connection, self.counted) = (None, None);
                        self.ready.clear();
                        return Some(Err(error));
                    }
                }
            }
        }
    }

    /// Takes one event's data in.
    fn take(&mut self, data: &str) -> Result<Step, Trouble> {
        let Some(connection) = &mut self.connection else { return Ok(Step::End) };
        if self.counted.as_mut().is_some_and(Counted::start) {
            self.ready.push_back(TokenEvent::Started { prompt_tokens: None });
        }
        if data.trim() == "[DONE]" {
            return Ok(Step::End);
        }
        let mut chunk: Chunk = serde_json::from_str(data)
            .map_err(|_| Trouble::Broken("the upstream sent what is no completion chunk".to_owned()))?;
        if let Some(error) = &chunk.error {
            return Err(connection.lease.trouble(error));
        }
        connection.usage = chunk.usage().or(connection.usage);
        let Some(piece) = chunk.piece() else { return Ok(Step::More) };
        let text = connection.raw.push(piece.delta);
        connection.tokens.push(piece.tokens);
        if let Some(reason) = piece.reason {
            connection.reason = Some(finish_reason(&reason).map_err(Trouble::Refused)?);
        }
        connection.pieces += u64::from(!text.is_empty());
        connection.bytes += text.len() as u64;
        if connection.bytes > (u64::from(self.asked.max_tokens) + 1) * TOKEN_BYTES {
            return Err(Trouble::Refused(EngineError::Failed(
                "the upstream wrote more than it was asked for".to_owned(),
            )));
        }
        self.say(&text);
        Ok(Step::More)
    }

    /// The stream ended by itself. With a finish reason it was complete, whatever was to follow.
    fn lost(&self, lost: Lost) -> Result<Step, Trouble> {
        let complete = self.connection.as_ref().is_some_and(|connection| connection.reason.is_some());
        match lost {
            _ if complete => Ok(Step::End),
            Lost::CutOff => Err(Trouble::Gone(lost.to_string())),
            Lost::Closed | Lost::Silent | Lost::TooLarge | Lost::NotEvents => Err(Trouble::Broken(lost.to_string())),
        }
    }

    fn say(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let Some(connection) = &mut self.connection else { return };
        if self.said.is_empty() {
            connection.lease.report(Outcome::Answered);
            connection.lease.spoke();
        }
        self.said.push_str(text);
        self.ready.extend(connection.tokens.text(text));
    }

    /// The last events. The connection and the count are given up now: nobody has to poll or drop us for it.
    fn finish(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        let rest = connection.raw.finish();
        let counted = TokenUsage { completion_tokens: connection.pieces, ..TokenUsage::default() };
        let usage = connection.usage.unwrap_or(counted);
        // What one replica wrote is a prompt of the next.
        let usage = TokenUsage {
            prompt_tokens: usage.prompt_tokens.saturating_sub(self.before),
            completion_tokens: usage.completion_tokens + self.before,
            ..usage
        };
        let reason = connection.reason.unwrap_or(FinishReason::Stop);
        connection.lease.report(Outcome::Answered);
        self.ready.extend(connection.tokens.text(&rest));
        self.ready.extend(connection.tokens.finish());
        self.ready.push_back(TokenEvent::Finished(Generated { reason, usage }));
        self.counted = None;
    }

    /// Starts over on another replica, or has it go on from what was said.
    async fn again(&mut self, trouble: Trouble) -> Result<(), EngineError> {
        let lost = self.connection.take();
        if let Some(connection) = &lost {
            connection.lease.report(trouble.outcome());
        }
        let written = lost.map_or(0, |connection| connection.pieces);
        self.before += written;
        // When text is out, even a replica that only is gone has failed this request.
        let has_said = self.before > 0;
        let failed = move |error| match error {
            EngineError::Unavailable(problem) if has_said => EngineError::Failed(problem),
            EngineError::Overloaded if has_said => {
                EngineError::Failed("an upstream broke off, the others are full".to_owned())
            }
            error => error,
        };
        let goes_on = !self.said.is_empty();
        let tries = self.tries.take().filter(|tries| !goes_on || tries.can_go_on());
        let (Some(mut tries), false) = (tries, matches!(trouble, Trouble::Refused(_))) else {
            return Err(failed(trouble.into_error()));
        };
        if goes_on && written >= u64::from(self.asked.max_tokens) {
            // All that was asked for is there.
            let usage = TokenUsage { completion_tokens: self.before, ..TokenUsage::default() };
            self.ready.push_back(TokenEvent::Finished(Generated { reason: FinishReason::Length, usage }));
            self.counted = None;
            return Ok(());
        }
        if goes_on {
            tries = tries.after(&self.said, written).await?;
            self.asked = tries.asked();
            self.said.clear();
        }
        let opened = tries.open(Some(trouble)).await;
        self.tries = Some(tries);
        self.connection = Some(Connection::new(opened.map_err(failed)?, &self.asked, self.silence));
        Ok(())
    }
}

impl Connection {
    fn new((lease, body): (Lease, Body), asked: &Asked, silence: Duration) -> Self {
        let (events, raw) = (events(body, silence), Raw::new(&asked.prefix));
        let tokens = Tokens::new(if asked.logprobs { asked.max_tokens } else { 0 });
        Self { events, lease, raw, reason: None, usage: None, tokens, pieces: 0, bytes: 0 }
    }
}
