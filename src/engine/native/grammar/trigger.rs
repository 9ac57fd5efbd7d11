//! Watches an output for the text that a constrained part follows. Pure.

use crate::engine::chat::bytes::TokenBytes;

/// Waits for a text.
///
/// A token may hold the end of it and more. What is more would not have been chosen under the grammar, so such tokens are
/// forbidden where they would complete the text; there are few, and only where the output is in the middle of it.
#[derive(Debug)]
pub(super) struct Trigger {
    text: Vec<u8>,
    /// The last bytes of the output: one less than the text has.
    seen: Vec<u8>,
    /// By how many bytes of the text are written already: the tokens that complete it and go on.
    overlong: Vec<Vec<u32>>,
}

impl Trigger {
    /// `text` is not empty.
    pub(super) fn new(text: &[u8], tokens: &TokenBytes) -> Self {
        let mut overlong = vec![Vec::new(); text.len()];
        for id in (0..).take(tokens.len()) {
            let token = tokens.text(id);
            for (written, overlong) in overlong.iter_mut().enumerate() {
                let rest = &text[written..];
                let reaches_over = match written {
                    0 => find(token, rest).is_some_and(|at| at + rest.len() < token.len()),
                    _ => token.len() > rest.len() && token.starts_with(rest),
                };
                if reaches_over {
                    overlong.push(id);
                }
            }
        }
        Self { text: text.to_vec(), seen: Vec::new(), overlong }
    }

    /// The output goes on. When the text is complete, gives what follows it.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.seen.extend_from_slice(bytes);
        if let Some(at) = find(&self.seen, &self.text) {
            return Some(self.seen.split_off(at + self.text.len()));
        }
        let surplus = self.seen.len().saturating_sub(self.text.len() - 1);
        self.seen.drain(..surplus);
        None
    }

    /// Tokens that would complete the text and go on.
    pub(super) fn forbidden(&self) -> impl Iterator<Item = &u32> {
        let begun = |written: usize| self.seen.ends_with(&self.text[..written]);
        self.overlong.iter().enumerate().filter(move |(written, _)| begun(*written)).flat_map(|(_, tokens)| tokens)
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::super::super::super::chat::vocabulary::tests::tiny;
    use super::*;

    #[test]
    fn the_text_is_found_over_any_pieces() {
        let tokens = tiny().token_bytes().expect("byte-level");
        for pieces in [&["x<answer>"][..], &["x<ans", "wer>"], &["<", "a", "<", "a", "n", "s", "w", "e", "r", ">"]] {
            let mut trigger = Trigger::new(b"<answer>", &tokens);
            let (last, first) = pieces.split_last().expect("some");
            assert!(first.iter().all(|piece| trigger.push(piece.as_bytes()).is_none()), "{pieces:?}");
            assert_eq!(trigger.push(last.as_bytes()), Some(Vec::new()));
        }
        assert_eq!(Trigger::new(b"ab", &tokens).push(b"aabc"), Some(b"c".to_vec()));
        let mut trigger = Trigger::new(b"a", &tokens);
        assert_eq!((trigger.push(b"bcd"), trigger.push(b"xay")), (None, Some(b"y".to_vec())));
    }

    #[test]
    fn tokens_that_reach_over_the_end_are_known() {
        let tokens = tiny().token_bytes().expect("byte-level");
        let mut trigger = Trigger::new(b"<answer>", &tokens);
        let over = |trigger: &Trigger| trigger.forbidden().map(|id| tokens.text(*id).to_vec()).collect::<Vec<_>>();
        assert!(over(&trigger).is_empty());
        trigger.push(b"well <answer");
        let forbidden = over(&trigger);
        let expected: Vec<Vec<u8>> = (0..)
            .take(tokens.len())
            .map(|id| tokens.text(id).to_vec())
            .filter(|t| t.len() > 1 && t[0] == b'>')
            .collect();
        assert_eq!(forbidden, expected);
        assert!(!forbidden.is_empty(), "the tiny vocabulary has such tokens");
    }
}
