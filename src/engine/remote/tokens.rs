//! Which of an upstream's tokens make up which of its text. Pure.
//!
//! Upstreams tell tokens and text side by side, and not always of the same: text lags behind where a stop text may be about to
//! begin, parsers take tags and blanks away, what ends the output has no text, and a character in several tokens may be told
//! as replacement characters. So both are followed byte by byte. A token is told with the text it makes, or not at all.

use std::collections::VecDeque;

use crate::engine::{TokenEvent, TokenInfo};

/// Tokens looked at to find out where the text goes on.
const LOOK: usize = 64;
/// Tokens beyond `max_tokens` that are taken in: what ends the output.
const OVER: usize = 8;
/// What is put back where a parser took it away: it may be among the tokens or not.
const TAGS: [&str; 2] = ["<think>", "</think>"];

/// The tokens whose text has not come yet, and text whose token is not complete yet.
#[derive(Debug)]
pub(super) struct Tokens {
    queue: VecDeque<TokenInfo>,
    /// Tokens that may still come.
    left: usize,
    /// The beginning of the first token in the queue.
    held: String,
}

/// What is told of one piece of text, in order.
#[derive(Debug, Default)]
struct Told {
    events: Vec<TokenEvent>,
    text: Vec<u8>,
    tokens: Vec<TokenInfo>,
}

impl Told {
    fn flush(&mut self) {
        if self.text.is_empty() {
            return;
        }
        if !self.tokens.is_empty() {
            self.events.push(TokenEvent::Tokens(std::mem::take(&mut self.tokens)));
        }
        let text = std::mem::take(&mut self.text);
        self.events.push(TokenEvent::Text(String::from_utf8_lossy(&text).into_owned()));
    }

    /// Text without tokens.
    fn bare(&mut self, text: &str) {
        self.flush();
        self.text.extend_from_slice(text.as_bytes());
        self.flush();
    }
}

impl Tokens {
    /// For an output of so many tokens at most; 0 where nobody wants to know.
    pub(super) fn new(most: u32) -> Self {
        let left = if most == 0 { 0 } else { most as usize + OVER };
        Self { queue: VecDeque::new(), left, held: String::new() }
    }

    /// More tokens. What is more than can be is dropped.
    pub(super) fn push(&mut self, tokens: Vec<TokenInfo>) {
        let taken = tokens.len().min(self.left);
        self.left -= taken;
        self.queue.extend(tokens.into_iter().take(taken).filter(|token| !token.bytes.is_empty()));
    }

    /// More text, and what can be told now.
    pub(super) fn text(&mut self, text: &str) -> Vec<TokenEvent> {
        let text = std::mem::take(&mut self.held) + text;
        let (mut told, mut at) = (Told::default(), 0);
        while let Some(rest) = text.as_bytes().get(at..).filter(|rest| !rest.is_empty()) {
            let Some(first) = self.queue.front() else {
                told.text.extend_from_slice(rest);
                break;
            };
            if rest.starts_with(&first.bytes) {
                at += first.bytes.len();
                told.text.extend_from_slice(&first.bytes);
                told.tokens.extend(self.queue.pop_front());
            } else if first.bytes.starts_with(rest) && text.is_char_boundary(at) {
                text[at..].clone_into(&mut self.held);
                break;
            } else if let Some(skipped) = (1..self.queue.len().min(LOOK)).find(|skip| self.goes_on(*skip, rest)) {
                self.queue.drain(..skipped);
            } else {
                at = Self::without_tokens(&mut told, &text, at);
            }
        }
        told.flush();
        told.events
    }

    /// What is left at the end.
    pub(super) fn finish(&mut self) -> Option<TokenEvent> {
        Some(std::mem::take(&mut self.held)).filter(|held| !held.is_empty()).map(TokenEvent::Text)
    }

    /// Whether the tokens after the first `skip` say the same as the text, as far as both go.
    fn goes_on(&self, skip: usize, text: &[u8]) -> bool {
        let bytes = self.queue.iter().skip(skip).flat_map(|token| &token.bytes);
        bytes.zip(text).all(|(a, b)| a == b)
    }

    /// Passes what no token makes: a tag, a character that may have been told otherwise, or all of it. Where the text goes on.
    fn without_tokens(told: &mut Told, text: &str, at: usize) -> usize {
        let Some(rest) = text.get(at..) else {
            // In the middle of a character.
            told.text.extend_from_slice(&text.as_bytes()[at..]);
            return text.len();
        };
        let tag = TAGS.into_iter().find(|tag| rest.starts_with(tag));
        let character = rest.chars().next().filter(|character| !character.is_ascii()).map(char::len_utf8);
        let length = tag.map(str::len).or(character).unwrap_or(rest.len());
        told.bare(&rest[..length]);
        at + length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &[u8]) -> TokenInfo {
        TokenInfo { id: None, bytes: text.to_vec(), logprob: 0.0, top: Vec::new() }
    }

    /// Feeds tokens and text by turns. What comes out is text, each token of it in brackets.
    fn run(steps: &[(&[&str], &str)]) -> String {
        let mut tokens = Tokens::new(100);
        let (mut all, mut due) = (String::new(), 0);
        let mut tell = |event: TokenEvent| match event {
            TokenEvent::Tokens(tokens) => {
                for token in tokens {
                    all.push_str(&format!("[{}]", String::from_utf8_lossy(&token.bytes)));
                    due += token.bytes.len();
                }
            }
            TokenEvent::Text(text) => {
                all.push_str(&text[due..]);
                due = 0;
            }
            other => panic!("{other:?}"),
        };
        for (more, text) in steps {
            tokens.push(more.iter().map(|text| token(text.as_bytes())).collect());
            tokens.text(text).into_iter().for_each(&mut tell);
        }
        tokens.finish().into_iter().for_each(&mut tell);
        all
    }

    #[test]
    fn tokens_are_told_of_the_text_that_they_make() {
        type Step<'a> = (&'a [&'a str], &'a str);
        let cases: &[(&[Step<'_>], &str)] = &[
            (&[(&["A", " red"], "A red")], "[A][ red]"),
            (&[(&[], "A red")], "A red"),
            // What ends the output has no text.
            (&[(&["A"], "A"), (&[" red", "<|im_end|>"], " red")], "[A][ red]"),
            // A parser took the tag and the blanks away; the tag was put back.
            (&[(&["</think>", "\n\n", "A", " red"], "</think>A red")], "[</think>][A][ red]"),
            (&[(&["\n\n", "A", " red"], "</think>A red")], "</think>[A][ red]"),
            // Text that lags behind, as it does where a stop text may begin.
            (&[(&["A"], ""), (&[" red"], "A"), (&[" ball"], " re"), (&["."], "d ball.")], "[A][ red][ ball][.]"),
            (&[(&["He", "llo", " END", " of"], "Hel"), (&[], "lo")], "[He][llo]"),
            // A stop text cut a token in two.
            (&[(&["He", "llo"], "Hel")], "[He]l"),
            // Told as replacement characters.
            (&[(&["\u{fffd}", "\u{fffd}", " is", " it"], "日 is it")], "日[ is][ it]"),
            // Something else altogether.
            (&[(&["else"], "A red")], "A red"),
        ];
        for (steps, expected) in cases {
            assert_eq!(run(steps), *expected, "{steps:?}");
        }
    }

    #[test]
    fn a_character_may_be_in_two_tokens() {
        let mut tokens = Tokens::new(9);
        tokens.push(vec![token(b"a\xc3"), token(b"\xa9")]);
        let events = tokens.text("aé");
        assert!(
            matches!(&events[..], [TokenEvent::Tokens(tokens), TokenEvent::Text(text)] if tokens.len() == 2 && text == "aé")
        );
    }

    #[test]
    fn no_more_tokens_are_kept_than_there_can_be() {
        for (most, kept) in [(0, 0), (1, 1 + OVER)] {
            let mut tokens = Tokens::new(most);
            for _ in 0..100 {
                tokens.push(vec![token(b"x"); 10]);
            }
            assert_eq!(tokens.queue.len(), kept);
        }
    }
}
