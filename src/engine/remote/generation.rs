//! One generation: an upstream's events become ours, and a replica that dies before its first token is replaced.

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
    tries: Tries,
    counted: Option<Counted>,
    asked: Asked,
    silence: Duration,
    ready: VecDeque<TokenEvent>,
    /// Some text went out: from here on nothing is tried again.
    said: bool,
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
    pub(super) fn new(opened: (Lease, Body), tries: Tries, counted: Counted, asked: Asked, silence: Duration) -> Self {
        let connection = Some(Connection::new(opened, &asked, silence));
        let counted = Some(counted);
        Self { connection, tries, counted, asked, silence, ready: VecDeque::new(), said: false }
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
        if complete { Ok(Step::End) } else { Err(Trouble::Broken(lost.to_string())) }
    }

    fn say(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let Some(connection) = &mut self.connection else { return };
        if !self.said {
            connection.lease.report(Outcome::Answered);
        }
        self.said = true;
        self.ready.extend(connection.tokens.text(text));
    }

    /// The last events. The connection and the count are given up now: nobody has to poll or drop us for it.
    fn finish(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        let rest = connection.raw.finish();
        let counted = TokenUsage { completion_tokens: connection.pieces, ..TokenUsage::default() };
        let usage = connection.usage.unwrap_or(counted);
        let reason = connection.reason.unwrap_or(FinishReason::Stop);
        connection.lease.report(Outcome::Answered);
        self.ready.extend(connection.tokens.text(&rest));
        self.ready.extend(connection.tokens.finish());
        self.ready.push_back(TokenEvent::Finished(Generated { reason, usage }));
        self.counted = None;
    }

    /// Starts over on another replica, if nothing was said yet.
    async fn again(&mut self, trouble: Trouble) -> Result<(), EngineError> {
        if let Some(connection) = self.connection.take() {
            connection.lease.report(trouble.outcome());
        }
        if self.said || matches!(trouble, Trouble::Refused(_)) {
            // Text is out, so even a replica that only is gone has failed this request.
            return Err(match trouble {
                Trouble::Gone(problem) | Trouble::Broken(problem) => EngineError::Failed(problem),
                other => other.into_error(),
            });
        }
        let opened = self.tries.open(Some(trouble)).await?;
        self.connection = Some(Connection::new(opened, &self.asked, self.silence));
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
