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
use super::tries::{Lease, Tries};
use crate::engine::{EngineError, FinishReason, Generated, TokenEvent, TokenInfo};
use crate::types::TokenUsage;

/// Text bytes a token can hold at most, roughly: an upstream that ignores `max_tokens` is stopped by this.
const TOKEN_BYTES: u64 = 256;

/// A generation under way. Dropping it closes the connection, which upstreams take as a cancellation.
pub(super) struct Generation {
    /// `None` once it has ended.
    connection: Option<Connection>,
    tries: Tries,
    counted: Option<Counted>,
    prefix: String,
    max_tokens: u32,
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
    /// Tokens whose text has not come yet.
    tokens: Vec<TokenInfo>,
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
    pub(super) fn new(
        opened: (Lease, Body),
        tries: Tries,
        counted: Counted,
        prefix: String,
        max_tokens: u32,
        silence: Duration,
    ) -> Self {
        let connection = Some(Connection::new(opened, &prefix, silence));
        let counted = Some(counted);
        Self { connection, tries, counted, prefix, max_tokens, silence, ready: VecDeque::new(), said: false }
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
        connection.tokens.extend(piece.tokens);
        if let Some(reason) = piece.reason {
            connection.reason = Some(finish_reason(&reason).map_err(Trouble::Refused)?);
        }
        connection.pieces += u64::from(!text.is_empty());
        connection.bytes += text.len() as u64;
        if connection.bytes > (u64::from(self.max_tokens) + 1) * TOKEN_BYTES {
            return Err(Trouble::Refused(EngineError::Failed(
                "the upstream wrote more than it was asked for".to_owned(),
            )));
        }
        self.say(text);
        Ok(Step::More)
    }

    /// The stream ended by itself. With a finish reason it was complete, whatever was to follow.
    fn lost(&self, lost: Lost) -> Result<Step, Trouble> {
        let complete = self.connection.as_ref().is_some_and(|connection| connection.reason.is_some());
        if complete { Ok(Step::End) } else { Err(Trouble::Broken(lost.to_string())) }
    }

    fn say(&mut self, mut text: String) {
        if text.is_empty() {
            return;
        }
        let Some(connection) = &mut self.connection else { return };
        if !self.said {
            connection.lease.report(Outcome::Answered);
        }
        self.said = true;
        let tokens = belonging(std::mem::take(&mut connection.tokens), &text);
        let bytes: usize = tokens.iter().map(|token| token.bytes.len()).sum();
        let own = text.split_off(text.len().saturating_sub(bytes));
        // What has no tokens comes without them.
        if !text.is_empty() {
            self.ready.push_back(TokenEvent::Text(text));
        }
        if !own.is_empty() {
            self.ready.push_back(TokenEvent::Tokens(tokens));
            self.ready.push_back(TokenEvent::Text(own));
        }
    }

    /// The last events. The connection and the count are given up now: nobody has to poll or drop us for it.
    fn finish(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        let rest = connection.raw.finish();
        let counted = TokenUsage { completion_tokens: connection.pieces, ..TokenUsage::default() };
        let usage = connection.usage.unwrap_or(counted);
        let reason = connection.reason.unwrap_or(FinishReason::Stop);
        connection.lease.report(Outcome::Answered);
        if !rest.is_empty() {
            self.ready.push_back(TokenEvent::Text(rest));
        }
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
        self.connection = Some(Connection::new(opened, &self.prefix, self.silence));
        Ok(())
    }
}

impl Connection {
    fn new((lease, body): (Lease, Body), prefix: &str, silence: Duration) -> Self {
        let (events, raw) = (events(body, silence), Raw::new(prefix));
        Self { events, lease, raw, reason: None, usage: None, tokens: Vec::new(), pieces: 0, bytes: 0 }
    }
}

/// Those of the tokens that make up the end of the text, all up to its last byte. Before them may be what a parser took away
/// (tags), after them the token that ended the output; the text may begin with a tag that we put back.
fn belonging(mut tokens: Vec<TokenInfo>, text: &str) -> Vec<TokenInfo> {
    let bytes = |tokens: &[TokenInfo]| tokens.iter().flat_map(|token| token.bytes.iter().copied()).collect::<Vec<u8>>();
    for end in [tokens.len(), tokens.len().saturating_sub(1)] {
        let fits = |start: &usize| {
            let own = bytes(&tokens[*start..end]);
            let at = text.len().checked_sub(own.len());
            !own.is_empty() && at.is_some_and(|at| text.is_char_boundary(at)) && text.as_bytes().ends_with(&own)
        };
        if let Some(start) = (0..end).find(fits) {
            tokens.truncate(end);
            return tokens.split_off(start);
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_told_of_the_text_that_they_make() {
        let token = |text: &str| TokenInfo { id: None, bytes: text.as_bytes().to_vec(), logprob: 0.0, top: Vec::new() };
        for (tokens, text, expected) in [
            (&["A", " red"] as &[&str], "A red", &["A", " red"] as &[&str]),
            (&[], "A red", &[]),
            (&["</think>", "\n\n", "A", " red"], "</think>A red", &["A", " red"]),
            (&["A", " red", "<|im_end|>"], "A red", &["A", " red"]),
            (&["</think>", "\n", "A", "<|im_end|>"], "</think>A", &["A"]),
            (&["else"], "A red", &[]),
            (&["<|im_end|>"], "A red", &[]),
        ] {
            let found = belonging(tokens.iter().map(|text| token(text)).collect(), text);
            let found: Vec<_> = found.iter().map(|token| String::from_utf8_lossy(&token.bytes)).collect();
            assert_eq!(found, expected, "{text}");
        }
        // A character in two tokens.
        let halves = [&[b'a', 0xc3] as &[u8], &[0xa9]].map(|bytes| TokenInfo { bytes: bytes.to_vec(), ..token("") });
        assert_eq!(belonging(halves.to_vec(), "aé").len(), 2);
    }
}
