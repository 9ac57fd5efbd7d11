//! Which tokens the answer is made of, for callers who want their log-probabilities. Pure.

use std::collections::VecDeque;
use std::ops::Range;

use crate::engine::TokenInfo;

/// The tokens of one turn that are not accounted for yet, by their place in the turn's generated text.
#[derive(Debug, Default)]
pub(super) struct Trail {
    tokens: VecDeque<(Range<usize>, TokenInfo)>,
    /// Bytes of all tokens so far.
    bytes: usize,
    /// Bytes of all text so far.
    told: usize,
}

impl Trail {
    /// More text. What no tokens were told of has none.
    pub(super) const fn text(&mut self, bytes: usize) {
        self.told += bytes;
    }

    /// The tokens of text that comes next, in order.
    pub(super) fn push(&mut self, tokens: Vec<TokenInfo>) {
        self.bytes = self.bytes.max(self.told);
        for token in tokens {
            let from = self.bytes;
            self.bytes += token.bytes.len();
            self.tokens.push_back((from..self.bytes, token));
        }
    }

    /// Takes the tokens that have a byte in `range`; those before it are dropped. A token at the border of two ranges is in
    /// the first. Of one that is half a tag only the other half is given: the tokens make up the answer.
    pub(super) fn take(&mut self, range: Range<usize>) -> Vec<TokenInfo> {
        let mut taken = Vec::new();
        while let Some((place, _)) = self.tokens.front() {
            if place.start >= range.end {
                break;
            }
            let inside = place.end > range.start;
            let Some((place, mut token)) = self.tokens.pop_front() else { break };
            if inside {
                if let Some(over) = place.end.checked_sub(range.end).map(|over| token.bytes.len().saturating_sub(over))
                    && token.bytes.get(over) == Some(&b'<')
                {
                    token.bytes.truncate(over);
                }
                cut_front(&mut token, range.start.saturating_sub(place.start));
                taken.push(token);
            }
        }
        taken
    }
}

/// Leaves the first bytes of a token out, and those of the others at its place that begin alike.
fn cut_front(token: &mut TokenInfo, count: usize) {
    let cut: Vec<u8> = token.bytes.drain(..count.min(token.bytes.len())).collect();
    for other in &mut token.top {
        if let Some(rest) = other.bytes.strip_prefix(cut.as_slice()) {
            other.bytes = rest.to_vec();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> TokenInfo {
        TokenInfo { id: None, bytes: text.as_bytes().to_vec(), logprob: 0.0, top: Vec::new() }
    }

    fn take(trail: &mut Trail, range: Range<usize>) -> String {
        let taken = trail.take(range).into_iter().map(|token| String::from_utf8(token.bytes).expect("text"));
        taken.collect::<Vec<_>>().join("|")
    }

    #[test]
    fn text_without_tokens_shifts_no_others() {
        let mut trail = Trail::default();
        trail.text("</think>".len());
        trail.push(["r", "ed"].map(token).into());
        trail.text("red".len());
        assert_eq!(take(&mut trail, 8..11), "r|ed");
    }

    #[test]
    fn tokens_belong_to_the_text_they_make() {
        let mut trail = Trail::default();
        trail.push(["<ans", "wer>r", "ed", ""].map(token).into());
        assert_eq!(take(&mut trail, 8..9), "r");
        assert_eq!(take(&mut trail, 9..11), "ed");
        trail.push([" circle", " ", "x</", "answer>"].map(token).into());
        assert_eq!((take(&mut trail, 11..18), take(&mut trail, 18..20)), (" circle".to_owned(), " |x".to_owned()));
        assert_eq!(take(&mut trail, 20..20), "");
    }
}
