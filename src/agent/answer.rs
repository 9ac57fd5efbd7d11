//! What of the answer the caller gets: up to a stop text of its own, and no more than it asked for.
//!
//! Stop texts and `max_tokens` are about the answer, not about the thinking and the calls before it: a client that wants
//! one letter and asks for few tokens still has its windows watched. Pure.

use crate::engine::{FinishReason, StopFilter};

/// An estimate for English text.
const BYTES_A_TOKEN: usize = 4;

/// Passes an answer on until it is over.
#[derive(Debug)]
pub(super) struct AnswerGate {
    stop: StopFilter,
    /// Tokens that may still pass. A piece of the engine's stream counts as one; an upstream may join a few.
    left: u32,
    closed: Option<FinishReason>,
}

impl AnswerGate {
    /// Closes at any of the `stop` texts, and after `tokens` tokens (0: never).
    pub(super) fn new(stop: &[String], tokens: u32) -> Self {
        Self { stop: StopFilter::new(stop), left: if tokens == 0 { u32::MAX } else { tokens }, closed: None }
    }

    /// A piece of the engine's stream with some of the answer in it is about to be pushed.
    pub(super) fn piece(&mut self) {
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => self.closed = self.closed.or(Some(FinishReason::Length)),
        }
    }

    /// Takes text and gives what may be shown of it now.
    pub(super) fn push(&mut self, text: &str) -> String {
        if self.closed.is_some() {
            return String::new();
        }
        let (shown, stopped) = self.stop.push(text);
        self.closed = stopped.then_some(FinishReason::Stop);
        shown
    }

    /// Takes an answer that comes all at once, when the turn is over: its tokens are estimated at four bytes each.
    pub(super) fn push_whole(&mut self, text: &str) -> String {
        let most = (self.left as usize).saturating_mul(BYTES_A_TOKEN);
        let cut = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let shown = self.push(&text[..cut]);
        if cut < text.len() {
            self.closed = self.closed.or(Some(FinishReason::Length));
        }
        shown
    }

    /// What was held back, when nothing more comes.
    pub(super) fn finish(&mut self) -> String {
        if self.closed == Some(FinishReason::Stop) { String::new() } else { self.stop.finish() }
    }

    /// Why it closed, if it did.
    pub(super) const fn closed(&self) -> Option<FinishReason> {
        self.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stop: &[&str], pieces: u32, text: &[&str]) -> (String, Option<FinishReason>) {
        let stop: Vec<String> = stop.iter().map(|stop| (*stop).to_owned()).collect();
        let mut gate = AnswerGate::new(&stop, pieces);
        let mut shown = String::new();
        for piece in text {
            gate.piece();
            shown.push_str(&gate.push(piece));
        }
        shown.push_str(&gate.finish());
        (shown, gate.closed())
    }

    #[test]
    fn an_answer_passes_whole_unless_it_was_asked_to_end() {
        assert_eq!(run(&[], 0, &["red ", "circle"]), ("red circle".to_owned(), None));
        assert_eq!(run(&["ci"], 0, &["red c", "ircle"]), ("red ".to_owned(), Some(FinishReason::Stop)));
        assert_eq!(run(&["cx"], 0, &["red c"]), ("red c".to_owned(), None));
        assert_eq!(run(&[], 1, &["red ", "circle"]), ("red ".to_owned(), Some(FinishReason::Length)));
        assert_eq!(run(&[], 2, &["red ", "circle"]), ("red circle".to_owned(), None));
        assert_eq!(run(&["cx"], 1, &["red c", "ircle"]), ("red c".to_owned(), Some(FinishReason::Length)));
    }

    #[test]
    fn an_answer_that_comes_at_once_is_cut_by_its_bytes() {
        let mut gate = AnswerGate::new(&[], 2);
        assert_eq!(
            (gate.push_whole("red cir\u{e9}le"), gate.closed()),
            ("red cir".to_owned(), Some(FinishReason::Length))
        );
        let mut gate = AnswerGate::new(&["ci".to_owned()], 2);
        assert_eq!((gate.push_whole("red circle"), gate.closed()), ("red ".to_owned(), Some(FinishReason::Stop)));
    }
}
