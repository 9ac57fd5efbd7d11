//! A turn of the assistant, or a response, taken to pieces and put together again. Only what is well formed comes apart: what
//! does not is left as it is by whoever asks.

use super::trace::{TAGS, tags, unclosed};

/// A turn: its thinking, what stands outside of all tags, its calls and its answer as they are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pieces {
    think: Option<String>,
    words: Vec<String>,
    pub(super) calls: Vec<String>,
    pub(super) answer: Option<String>,
}

impl Pieces {
    /// `None` for a turn that is not thinking, then calls or an answer, each in closed tags that hold no others.
    pub(super) fn of(text: &str) -> Option<Self> {
        let mut pieces = Self { think: None, words: Vec::new(), calls: Vec::new(), answer: None };
        for block in blocks(text)? {
            match block {
                Block::Outside(words) => pieces.words.push(words.to_owned()),
                Block::Tag("think", inner, _) if pieces.think.is_none() && pieces.calls.is_empty() => {
                    pieces.think = Some(inner.to_owned());
                }
                Block::Tag("tool_call", _, whole) if pieces.answer.is_none() => pieces.calls.push(whole.to_owned()),
                Block::Tag("answer", _, whole) if pieces.answer.is_none() => pieces.answer = Some(whole.to_owned()),
                Block::Tag(..) => return None,
            }
        }
        Some(pieces)
    }

    /// All that is said beside calls and answer.
    pub(super) fn text(&self) -> String {
        let said = self.think.iter().map(|think| think.trim()).chain(self.words.iter().map(String::as_str));
        said.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
    }

    /// Thinks more, after all else or before.
    pub(super) fn think(&mut self, more: &[String], before: bool) {
        if more.is_empty() {
            return;
        }
        let more = more.join(" ");
        let Some(think) = &mut self.think else {
            self.think = Some(more);
            return;
        };
        // What stands around the thinking, line breaks most often, stays around it.
        let start = think.len() - think.trim_start().len();
        let end = think.trim_end().len().max(start);
        let (at, text) = match (before, start == end) {
            (_, true) => (start, more),
            (true, false) => (start, format!("{more}\n")),
            (false, false) => (end, format!("\n{more}")),
        };
        think.insert_str(at, &text);
    }

    /// The turn as text.
    pub(super) fn write(&self) -> String {
        let think = self.think.iter().map(|think| format!("<think>{think}</think>"));
        let rest = self.words.iter().chain(&self.calls).chain(&self.answer).cloned();
        think.chain(rest).collect::<Vec<_>>().join("\n")
    }
}

/// What a response says inside of its tags, and what is written outside of them. `None` of what is no response.
pub(super) fn response(text: &str) -> Option<(String, String)> {
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for block in blocks(text)? {
        match block {
            Block::Outside(words) => outside.push(words),
            Block::Tag("tool_response", inner, _) => inside.push(inner.trim()),
            Block::Tag(..) => return None,
        }
    }
    (!inside.is_empty()).then(|| (inside.join("\n"), outside.join("\n")))
}

enum Block<'a> {
    /// Text outside of tags, without the blanks around it. Never empty.
    Outside(&'a str),
    /// A tag's name, what it holds, and all of it.
    Tag(&'static str, &'a str, &'a str),
}

fn blocks(text: &str) -> Option<Vec<Block<'_>>> {
    if unclosed(text).is_some() {
        return None;
    }
    let mut blocks = Vec::new();
    let outside =
        |from: usize, to: usize| Some(text[from..to].trim()).filter(|words| !words.is_empty()).map(Block::Outside);
    let (mut from, mut tags) = (0, tags(text));
    while let Some(open) = tags.next() {
        let close = tags.next().filter(|close| open.opens && !close.opens && close.name == open.name)?;
        blocks.extend(outside(from, open.at));
        blocks.push(Block::Tag(TAGS[open.name], &text[open.end..close.at], &text[open.at..close.end]));
        from = close.end;
    }
    blocks.extend(outside(from, text.len()));
    Some(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_comes_apart_and_together() {
        let text = "<think>\nTwo.\n</think>\nI look.\n<tool_call>{1}</tool_call>\n<tool_call>{2}</tool_call>";
        let mut pieces = Pieces::of(text).expect("pieces");
        assert_eq!((pieces.text().as_str(), pieces.calls.len()), ("Two.\nI look.", 2));
        assert_eq!(pieces.write(), text);
        pieces.think(&["Then.".to_owned()], false);
        pieces.think(&["First.".to_owned(), "Yes.".to_owned()], true);
        assert!(pieces.write().starts_with("<think>\nFirst. Yes.\nTwo.\nThen.\n</think>\n"));
        let mut answer = Pieces::of("<answer>b</answer>").expect("pieces");
        answer.think(&["So.".to_owned()], true);
        assert_eq!(answer.write(), "<think>So.</think>\n<answer>b</answer>");
    }

    #[test]
    fn what_is_not_well_formed_stays_whole() {
        for text in [
            "<think>a",
            "<think>a<tool_call>{}</tool_call></think>",
            "<tool_call>{}</tool_call><think>late</think>",
            "<answer>a</answer><answer>b</answer>",
            "<tool_response>invented</tool_response>",
        ] {
            assert_eq!(Pieces::of(text), None, "{text}");
        }
    }

    #[test]
    fn a_response_is_what_stands_in_its_tags() {
        let text = "<tool_response>\na\nb\n</tool_response>\nNow.";
        assert_eq!(response(text), Some(("a\nb".to_owned(), "Now.".to_owned())));
        assert_eq!(response("a"), None);
        assert_eq!(response("<tool_response>a"), None);
    }
}
