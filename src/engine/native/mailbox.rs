//! The way from the engine's thread to one caller. The thread never waits, and what is unread never grows without bound.
//!
//! Texts that nobody has read yet are joined, and so are tokens. A caller who is further behind than a bound is told so by
//! [`Sender::lags`]: the engine's thread then ends the generation with an error. The request's [`Lease`] lives here, until
//! the thread has nothing more to say and the caller has heard all of it or is gone.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::places::Lease;
use crate::engine::{EngineError, Generated, TokenAlternative, TokenEvent, TokenInfo};

/// What a caller may leave unread. Plain text of the longest context is far below it; with log-probabilities of twenty
/// alternatives it is some five thousand tokens.
pub(super) const MOST_UNREAD_BYTES: usize = 8 << 20;

/// The engine's end.
#[derive(Debug)]
pub(super) struct Sender(Arc<Shared>);

/// The caller's end.
#[derive(Debug)]
pub(super) struct Receiver(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    news: Notify,
    most_unread_bytes: usize,
}

#[derive(Debug)]
struct State {
    started: Option<TokenEvent>,
    tokens: Vec<TokenInfo>,
    text: String,
    end: Option<Result<Generated, EngineError>>,
    unread_bytes: usize,
    /// More may come.
    writes: bool,
    /// Somebody is there to read it.
    reads: bool,
    lease: Option<Lease>,
}

/// Both ends for a request that holds a lease.
pub(super) fn mailbox(lease: Lease, most_unread_bytes: usize) -> (Sender, Receiver) {
    let state = State {
        started: None,
        tokens: Vec::new(),
        text: String::new(),
        end: None,
        unread_bytes: 0,
        writes: true,
        reads: true,
        lease: Some(lease),
    };
    let shared = Arc::new(Shared { state: Mutex::new(state), news: Notify::new(), most_unread_bytes });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    const fn is_read(&self) -> bool {
        self.started.is_none() && self.tokens.is_empty() && self.text.is_empty() && self.end.is_none()
    }

    /// Gives the lease back when neither end needs it.
    fn settle(&mut self) {
        if !self.writes && (!self.reads || self.is_read()) {
            self.lease = None;
        }
    }

    fn next(&mut self) -> Option<Result<TokenEvent, EngineError>> {
        let event = if let Some(started) = self.started.take() {
            Ok(started)
        } else if !self.tokens.is_empty() {
            // Before the text they add.
            Ok(TokenEvent::Tokens(std::mem::take(&mut self.tokens)))
        } else if !self.text.is_empty() {
            Ok(TokenEvent::Text(std::mem::take(&mut self.text)))
        } else {
            self.end.take()?.map(TokenEvent::Finished)
        };
        self.unread_bytes -= event.as_ref().map_or(0, bytes);
        Some(event)
    }
}

impl Sender {
    /// Says what comes next. The end of a generation, or an error, is the last that is heard.
    pub(super) fn send(&self, event: Result<TokenEvent, EngineError>) {
        let mut state = self.0.state();
        if !state.writes || !state.reads {
            return;
        }
        state.unread_bytes += event.as_ref().map_or(0, bytes);
        match event {
            Ok(started @ TokenEvent::Started { .. }) => state.started = Some(started),
            Ok(TokenEvent::Tokens(more)) => state.tokens.extend(more),
            Ok(TokenEvent::Text(more)) => state.text.push_str(&more),
            Ok(TokenEvent::Finished(generated)) => state.end = Some(Ok(generated)),
            Err(error) => state.end = Some(Err(error)),
        }
        // At once, and not when this end is dropped: who has heard the end must find his place free.
        state.writes = state.end.is_none();
        drop(state);
        self.0.news.notify_one();
    }

    /// Nobody listens any more.
    pub(super) fn is_closed(&self) -> bool {
        !self.0.state().reads
    }

    /// The caller has left too much unread.
    pub(super) fn lags(&self) -> bool {
        self.0.state().unread_bytes > self.0.most_unread_bytes
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.writes = false;
        state.settle();
        drop(state);
        self.0.news.notify_one();
    }
}

impl Receiver {
    /// The next event; `None` when the engine's end is gone and all was read.
    pub(super) async fn next(&mut self) -> Option<Result<TokenEvent, EngineError>> {
        loop {
            {
                let mut state = self.0.state();
                let event = state.next();
                state.settle();
                if event.is_some() || !state.writes {
                    return event;
                }
            }
            self.0.news.notified().await;
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.reads = false;
        (state.tokens, state.text) = Default::default();
        if let Some(lease) = &mut state.lease {
            lease.abandon();
        }
        state.settle();
    }
}

/// Memory that an unread event takes, roughly.
fn bytes(event: &TokenEvent) -> usize {
    let alternative = |other: &TokenAlternative| size_of::<TokenAlternative>() + other.bytes.len();
    let token =
        |info: &TokenInfo| size_of::<TokenInfo>() + info.bytes.len() + info.top.iter().map(alternative).sum::<usize>();
    match event {
        TokenEvent::Text(text) => text.len(),
        TokenEvent::Tokens(infos) => infos.iter().map(token).sum(),
        TokenEvent::Started { .. } | TokenEvent::Finished(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::super::places::{Bounds, Places};
    use super::*;
    use crate::engine::FinishReason;
    use crate::types::TokenUsage;

    fn places() -> Arc<Places> {
        Arc::new(Places::new(Bounds { requests: 1, pixel_bytes: 0 }))
    }

    fn pair(places: &Arc<Places>) -> (Sender, Receiver) {
        mailbox(places.take(0).expect("free"), 100)
    }

    fn said(text: &str) -> TokenEvent {
        TokenEvent::Text(text.to_owned())
    }

    fn token(id: u32) -> TokenEvent {
        TokenEvent::Tokens(vec![TokenInfo { id: Some(id), bytes: vec![0; 40], logprob: 0.0, top: Vec::new() }])
    }

    const END: TokenEvent = TokenEvent::Finished(Generated {
        reason: FinishReason::Stop,
        usage: TokenUsage { prompt_tokens: 1, cached_tokens: 0, completion_tokens: 2 },
    });

    fn now(receiver: &mut Receiver) -> Option<Option<Result<TokenEvent, EngineError>>> {
        receiver.next().now_or_never()
    }

    fn heard(receiver: &mut Receiver) -> TokenEvent {
        now(receiver).flatten().expect("there is something").expect("no error")
    }

    #[test]
    fn what_is_unread_is_joined_and_comes_in_order() {
        let (sender, mut receiver) = pair(&places());
        sender.send(Ok(TokenEvent::Started { prompt_tokens: Some(1) }));
        for (id, text) in [(1, "a"), (2, "b")] {
            sender.send(Ok(token(id)));
            sender.send(Ok(said(text)));
        }
        assert_eq!(heard(&mut receiver), TokenEvent::Started { prompt_tokens: Some(1) });
        assert!(matches!(heard(&mut receiver), TokenEvent::Tokens(infos) if infos.len() == 2));
        assert_eq!(heard(&mut receiver), said("ab"));
        assert!(now(&mut receiver).is_none(), "it waits");
        sender.send(Ok(said("c")));
        sender.send(Ok(END));
        sender.send(Ok(said("after the end")));
        assert_eq!((heard(&mut receiver), heard(&mut receiver)), (said("c"), END));
        assert!(matches!(now(&mut receiver), Some(None)));
    }

    #[test]
    fn a_reader_who_is_too_far_behind_is_known_and_one_who_catches_up_is_not() {
        let (sender, mut receiver) = pair(&places());
        sender.send(Ok(said(&"x".repeat(100))));
        assert!(!sender.lags());
        sender.send(Ok(said("x")));
        assert!(sender.lags());
        heard(&mut receiver);
        assert!(!sender.lags());
        sender.send(Ok(token(1)));
        assert!(sender.lags(), "tokens count with all that is in them");
    }

    #[test]
    fn the_place_is_held_until_all_is_read_and_is_free_with_the_end() {
        let places = places();
        let (sender, mut receiver) = pair(&places);
        sender.send(Ok(said("x")));
        sender.send(Ok(END));
        assert!(matches!(places.take(0), Err(EngineError::Overloaded)));
        heard(&mut receiver);
        assert!(matches!(places.take(0), Err(EngineError::Overloaded)), "the end is not read yet");
        heard(&mut receiver);
        assert!(places.take(0).is_ok(), "though both ends are there");
        drop(sender);
    }

    #[test]
    fn the_place_of_who_has_left_is_others_and_its_memory_is_counted_until_the_engine_lets_go() {
        let places = places();
        let (sender, receiver) = pair(&places);
        assert!(!sender.is_closed());
        sender.send(Ok(said("x")));
        drop(receiver);
        assert!(sender.is_closed());
        let (other, mut reader) = pair(&places);
        assert_eq!(places.load().queued, 2);
        drop(sender);
        assert_eq!(places.load().queued, 1);
        other.send(Ok(said("x")));
        drop(other);
        assert_eq!(places.load().queued, 1, "there is something to read");
        heard(&mut reader);
        assert!(matches!(now(&mut reader), Some(None)));
        assert_eq!(places.load().queued, 0);
    }

    #[tokio::test]
    async fn a_reader_who_waits_is_woken() {
        let (sender, mut receiver) = pair(&places());
        let waiting = tokio::spawn(async move { (receiver.next().await, receiver.next().await) });
        tokio::task::yield_now().await;
        sender.send(Ok(said("x")));
        tokio::task::yield_now().await;
        sender.send(Err(EngineError::Overloaded));
        let (first, last) = waiting.await.expect("ends");
        assert!(matches!(first, Some(Ok(TokenEvent::Text(text))) if text == "x"));
        assert!(matches!(last, Some(Err(EngineError::Overloaded))));
    }
}
