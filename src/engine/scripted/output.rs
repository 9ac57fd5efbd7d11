//! Stop texts and the longest output, applied to text as it comes. Pure.

use crate::engine::{FinishReason, Sampling, StopFilter};

/// Characters a token has here.
const TOKEN_CHARS: u64 = 4;

/// Tokens of a text: four characters each, the last one perhaps shorter.
pub(super) fn tokens(text: &str) -> u64 {
    (text.chars().count() as u64).div_ceil(TOKEN_CHARS)
}

/// What of a text may go out.
#[derive(Debug)]
pub(super) struct Output {
    stops: StopFilter,
    chars: u64,
    most_chars: u64,
}

impl Output {
    pub(super) fn new(sampling: &Sampling) -> Self {
        let most_chars = u64::from(sampling.max_tokens) * TOKEN_CHARS;
        Self { stops: StopFilter::new(&sampling.stop), chars: 0, most_chars }
    }

    /// Takes text, gives what may be said, and whether that was the end.
    pub(super) fn push(&mut self, text: &str) -> (String, Option<FinishReason>) {
        let (text, stopped) = self.stops.push(text);
        let (said, cut) = self.say(text);
        (said, cut.or(stopped.then_some(FinishReason::Stop)))
    }

    /// Gives what was held back.
    pub(super) fn flush(&mut self) -> (String, Option<FinishReason>) {
        let held = self.stops.finish();
        self.say(held)
    }

    /// As much of the text as there is room for.
    fn say(&mut self, text: String) -> (String, Option<FinishReason>) {
        let room = self.most_chars - self.chars;
        match text.char_indices().nth(usize::try_from(room).unwrap_or(usize::MAX)) {
            Some((at, _)) => {
                self.chars = self.most_chars;
                (text[..at].to_owned(), Some(FinishReason::Length))
            }
            None => {
                self.chars += text.chars().count() as u64;
                (text, None)
            }
        }
    }

    /// Tokens said.
    pub(super) const fn tokens(&self) -> u64 {
        self.chars.div_ceil(TOKEN_CHARS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(stop: &[&str], max_tokens: u32, pieces: &[&str]) -> (String, Option<FinishReason>) {
        let stop = stop.iter().map(|stop| (*stop).to_owned()).collect();
        let mut output = Output::new(&Sampling { stop, max_tokens, ..Sampling::default() });
        let mut said = String::new();
        for piece in pieces {
            let (text, end) = output.push(piece);
            said.push_str(&text);
            if end.is_some() {
                return (said, end);
            }
        }
        let (text, end) = output.flush();
        (said + &text, end)
    }

    #[test]
    fn a_stop_text_ends_it_wherever_it_is_cut() {
        for pieces in [&["one</s>two"][..], &["one<", "/s>two"], &["on", "e</", "s", ">two"], &["one", "</s>", "two"]] {
            assert_eq!(say(&["</s>"], 99, pieces), ("one".to_owned(), Some(FinishReason::Stop)), "{pieces:?}");
        }
    }

    #[test]
    fn what_only_looked_like_a_stop_text_is_said() {
        assert_eq!(say(&["</s>"], 99, &["a <", "/", "b </s"]), ("a </b </s".to_owned(), None));
    }

    #[test]
    fn the_longest_output_is_counted_in_characters_not_bytes() {
        assert_eq!(say(&[], 1, &["äöü", "ßé"]), ("äöüß".to_owned(), Some(FinishReason::Length)));
        assert_eq!(say(&[], 1, &["four"]), ("four".to_owned(), None));
    }

    #[test]
    fn tokens_round_up() {
        assert_eq!([tokens(""), tokens("a"), tokens("abcd"), tokens("abcde")], [0, 1, 1, 2]);
    }
}
