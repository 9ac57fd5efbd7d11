//! A written prompt cut at its structural tokens. Pure.

use crate::engine::chat::vocabulary::{FRAME_PAIR, PICTURE, TURN_END, TURN_START};

/// A piece of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Segment<'a> {
    TurnStart,
    TurnEnd,
    /// All three tokens of a picture, be it a frame or a pair.
    Picture,
    /// What is between two others; never empty.
    Text(&'a str),
}

/// All pieces, in order.
pub(super) fn segments(prompt: &str) -> impl Iterator<Item = Segment<'_>> {
    let mut rest = prompt;
    std::iter::from_fn(move || {
        let (segment, length) = next(rest)?;
        rest = &rest[length..];
        Some(segment)
    })
}

fn next(rest: &str) -> Option<(Segment<'_>, usize)> {
    const STRUCTURAL: [(&str, Segment<'_>); 4] = [
        (TURN_START, Segment::TurnStart),
        (TURN_END, Segment::TurnEnd),
        (PICTURE, Segment::Picture),
        (FRAME_PAIR, Segment::Picture),
    ];
    if rest.is_empty() {
        return None;
    }
    for (at, _) in rest.match_indices("<|") {
        let here = STRUCTURAL.iter().find(|(text, _)| rest[at..].starts_with(text));
        match here {
            Some((text, segment)) if at == 0 => return Some((*segment, text.len())),
            Some(_) => return Some((Segment::Text(&rest[..at]), at)),
            None => {}
        }
    }
    Some((Segment::Text(rest), rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_cut_at_each_structural_token() {
        let prompt = format!("{TURN_START}user\n<|x|>{PICTURE}{FRAME_PAIR}é <|im_{TURN_END}\n");
        let expected = [
            Segment::TurnStart,
            Segment::Text("user\n<|x|>"),
            Segment::Picture,
            Segment::Picture,
            Segment::Text("é <|im_"),
            Segment::TurnEnd,
            Segment::Text("\n"),
        ];
        assert_eq!(segments(&prompt).collect::<Vec<_>>(), expected);
        assert_eq!(segments("").count(), 0);
    }
}
