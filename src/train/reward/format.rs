//! R_fmt: thinking, its end and the answer, in this order; and which tags were closed. Pure.

use serde::Serialize;

use super::RewardConfig;
use super::text::{between, count, strip};

/// Characters of thinking from which on it is some.
const THINK_MIN: usize = 10;

/// Tags of one kind in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct TagCount {
    /// Opening tags.
    pub opened: usize,
    /// Closing tags.
    pub closed: usize,
}

impl TagCount {
    fn of(text: &str, name: &str) -> Self {
        Self { opened: count(text, &format!("<{name}>")), closed: count(text, &format!("</{name}>")) }
    }

    /// Whether all that was opened was closed; `None` where nothing was.
    #[must_use]
    pub const fn is_closed(&self) -> Option<bool> {
        if self.opened == 0 { None } else { Some(self.closed >= self.opened) }
    }

    const fn is_balanced(self) -> bool {
        self.opened == self.closed
    }
}

/// Tags of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Tags {
    /// `<think>`.
    pub think: TagCount,
    /// `<tool_call>`.
    pub tool_call: TagCount,
    /// `<tool_code>`, what the base model falls back to.
    pub tool_code: TagCount,
    /// `<answer>`.
    pub answer: TagCount,
    /// Calls that count, by the rules in force.
    pub calls: usize,
}

impl Tags {
    pub(super) fn of(text: &str, calls: usize) -> Self {
        let of = |name| TagCount::of(text, name);
        Self { think: of("think"), tool_call: of("tool_call"), tool_code: of("tool_code"), answer: of("answer"), calls }
    }

    /// Whether each kind was closed as often as it was opened.
    #[must_use]
    pub fn balanced(&self) -> bool {
        [self.think, self.tool_call, self.tool_code, self.answer].into_iter().all(TagCount::is_balanced)
    }
}

/// R_fmt: at most 1, below 0 where thinking never ends. `called` when a call counts.
///
/// T is thinking of at least ten characters, A a closed answer that is not blank. The sum of:
/// * 0.2 for T and 0.5 for A, or 0.3 for each without answer suffix;
/// * the anchor by its weight: 0.4 for T with `</think>`, 0.3 more with A, and 0.3 off for `<think>` without `</think>`;
/// * 0.3 for T and a call, where thinking was opened before the first call;
/// * 0.1 where the sum so far is above 0 and all tags are balanced.
pub(super) fn score(text: &str, called: bool, config: &RewardConfig) -> f64 {
    let thinks = thinks(text);
    let answers = between(text, "<answer>", "</answer>").any(|answer| answer.closed && !strip(answer.body).is_empty());
    let ends = text.contains("</think>");
    let (of_think, of_answer) = if config.answer_suffix { (0.2, 0.5) } else { (0.3, 0.3) };
    let given = |condition: bool, points: f64| if condition { points } else { 0.0 };
    let anchor = given(thinks && ends, 0.4) + given(thinks && ends && answers, 0.3)
        - given(text.contains("<think>") && !ends, 0.3);
    let mut score = given(thinks, of_think) + given(answers, of_answer) + config.anchor_weight * anchor;
    score += given(thinks && called && thinks_first(text), 0.3);
    score += given(score > 0.0 && Tags::of(text, 0).balanced(), 0.1);
    score.min(1.0)
}

/// Whether there is thinking worth the name: in the first `<think>`, closed or up to what ends it otherwise.
fn thinks(text: &str) -> bool {
    let Some(think) = between(text, "<think>", "</think>").next() else { return false };
    let ends: &[&str] = if think.closed { &[] } else { &["<tool_", "<answer>", "<|im_end|>"] };
    let end = ends.iter().filter_map(|end| think.body.find(end)).min().unwrap_or(think.body.len());
    strip(&think.body[..end]).chars().nth(THINK_MIN - 1).is_some()
}

/// Whether thinking was opened before any call was.
fn thinks_first(text: &str) -> bool {
    let call = ["<tool_call>", "<tool_code>"].iter().filter_map(|open| text.find(open)).min();
    text.find("<think>").zip(call).is_some_and(|(think, call)| think < call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinking_is_some_from_ten_characters_on() {
        for (text, expected) in [
            ("<think> äöüäöüäöü\n</think>", false),
            ("<think>äöüäöüäöüx</think>", true),
            ("<think>short</think><think>long enough, but second</think>", false),
            ("<think>never closed at all", true),
            ("<think>cut <answer>here, long enough", false),
            ("<think>cut <tool_call>here", false),
            ("long enough without a tag</think>", false),
        ] {
            assert_eq!(thinks(text), expected, "{text}");
        }
    }

    #[test]
    fn each_part_has_its_weight() {
        let text = "<think>long enough thinking</think><answer>x</answer>";
        let vanilla = RewardConfig { anchor_weight: 0.0, answer_suffix: false, ..RewardConfig::default() };
        for (config, text, called, expected) in [
            (RewardConfig { anchor_weight: 0.0, ..RewardConfig::default() }, text, false, 0.8),
            (RewardConfig { anchor_weight: 0.1, ..RewardConfig::default() }, text, false, 0.87),
            (vanilla, text, false, 0.7),
            (vanilla, "<think>long enough thinking", false, 0.3),
            (vanilla, "<think>long enough thinking</think><tool_call>", true, 0.6),
            (vanilla, "<tool_call><think>long enough thinking</think>", true, 0.3),
            (vanilla, "<think>long enough thinking</think>", true, 0.4),
            (RewardConfig::default(), "<think>", false, -0.15),
        ] {
            assert!((score(text, called, &config) - expected).abs() < 1e-12, "{text} {config:?}");
        }
    }

    #[test]
    fn closure_is_told_for_what_was_opened() {
        let tags = Tags::of("</answer><think>x</think><tool_call><tool_call>y</tool_call>", 1);
        assert_eq!((tags.think.is_closed(), tags.tool_call.is_closed()), (Some(true), Some(false)));
        assert_eq!((tags.answer.is_closed(), tags.tool_code.is_closed()), (None, None));
        assert!(!tags.balanced() && Tags::of("", 0).balanced());
    }
}
