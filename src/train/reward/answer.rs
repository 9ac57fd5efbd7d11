//! R_acc: what the answer is, and how right it is. Pure.

use std::collections::HashSet;
use std::sync::LazyLock;

use regex::Regex;

use super::text::{between, blank, lines, strip, without, words};
use super::{AnswerMode, Compat, QuestionType, RewardConfig, Truth};

/// Expressions are constants: one that does not compile would fail every test.
static ARTICLES: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\b(?:an?|the)\b").ok());
/// Where a letter is looked for. The reference has two patterns more, for a letter alone and for one with a sign after it at
/// the very start: what they find, the last of these finds too.
static LETTERS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let patterns = [r"[Tt]he answer is\s*\(?([A-D])", r"[Oo]ption\s*\(?([A-D])", r"\b([A-D])\b"];
    patterns.iter().filter_map(|pattern| Regex::new(pattern).ok()).collect()
});
static PAIR: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"([0-9.]+)\s*,\s*([0-9.]+)").ok());

/// The answer in a completion: the first closed `<answer>`, even an empty one; else what follows the first `</think>` without
/// closed tool blocks, if that is something; else the last line that is no tag of a tool or of a turn.
pub(super) fn extract(completion: &str) -> String {
    if let Some(answer) = between(completion, "<answer>", "</answer>").next().filter(|answer| answer.closed) {
        return strip(answer.body).to_owned();
    }
    if let Some((_, tail)) = completion.split_once("</think>") {
        let mut tail = without(tail, "<tool_call>", "</tool_call>");
        tail = without(&tail, "<tool_code>", "</tool_code>");
        tail = without(&tail, "<tool_response>", "</tool_response>");
        tail = tail.replace("<|im_end|>", "").replace("<|im_start|>", "");
        let tail = strip(&tail);
        if !tail.is_empty() {
            return tail.to_owned();
        }
    }
    let last = lines(completion).rfind(|line| !line.starts_with("<|im_") && !line.starts_with("<tool_"));
    last.unwrap_or_default().to_owned()
}

/// How right an answer is, from 0 to 1.
pub(super) fn accuracy(said: &str, truth: &Truth<'_>, config: &RewardConfig) -> f64 {
    if said.is_empty() || truth.answer.is_empty() {
        return 0.0;
    }
    if same(said, truth.answer, config.compat) {
        return 1.0;
    }
    match (truth.question, config.mode) {
        (QuestionType::Choice, _) => f64::from(u8::from(chooses(said, truth.answer))),
        (QuestionType::Grounding, _) => overlap(said, truth.answer),
        (QuestionType::Open, AnswerMode::Exact) => 0.0,
        (QuestionType::Open, AnswerMode::F1) => f1(said, truth.answer),
    }
}

/// Whether two answers are the same but for case, articles, punctuation and blanks, whatever is asked for: so "10 - 20" is right
/// for `[10, 20]`, and so is "[1.0, 2.0]". A true answer of which that leaves nothing, such as the letter A, keeps its articles,
/// and without letters it is compared as it stands.
fn same(said: &str, truth: &str, compat: Compat) -> bool {
    let normal_truth = normal(truth);
    if !normal_truth.is_empty() || compat == Compat::Upstream {
        return normal(said) == normal_truth;
    }
    let plain_truth = plain(&truth.to_lowercase());
    if plain_truth.is_empty() {
        return strip(said) == strip(truth);
    }
    plain(&said.to_lowercase()) == plain_truth
}

/// In lower case, without articles and punctuation, with single blanks.
fn normal(text: &str) -> String {
    let lower = text.to_lowercase();
    match ARTICLES.as_ref() {
        Some(articles) => plain(&articles.replace_all(&lower, " ")),
        None => plain(&lower),
    }
}

/// Without punctuation, which leaves no gap: `blue-square` is one word.
fn plain(text: &str) -> String {
    let kept: String = text.chars().filter(|c| c.is_alphanumeric() || *c == '_' || blank(*c)).collect();
    words(&kept).collect::<Vec<_>>().join(" ")
}

/// Whether this says the letter: alone, or found first by any of the patterns.
fn chooses(said: &str, truth: &str) -> bool {
    let truth = strip(truth).to_uppercase();
    if !["A", "B", "C", "D"].contains(&truth.as_str()) {
        return false;
    }
    let found = |pattern: &Regex| pattern.captures(said).and_then(|found| Some(found.get(1)?.as_str() == truth));
    said.to_uppercase() == truth || LETTERS.iter().filter_map(found).any(|right| right)
}

/// Words that both have, each once, by the words of each: the harmonic mean of the two shares.
fn f1(said: &str, truth: &str) -> f64 {
    let (said, truth) = (normal(said), normal(truth));
    let (said, truth): (Vec<&str>, Vec<&str>) = (words(&said).collect(), words(&truth).collect());
    let known: HashSet<&str> = truth.iter().copied().collect();
    let common = said.iter().copied().filter(|word| known.contains(word)).collect::<HashSet<_>>().len();
    if common == 0 {
        return 0.0;
    }
    let (precision, recall) = (common as f64 / said.len() as f64, common as f64 / truth.len() as f64);
    2.0 * precision * recall / (precision + recall)
}

/// What two stretches of time have in common by what they cover: of the first two numbers with a comma between. Stretches that
/// do not go forward have nothing in common with any.
fn overlap(said: &str, truth: &str) -> f64 {
    let (Some((start, end)), Some((from, until))) = (stretch(said), stretch(truth)) else { return 0.0 };
    let common = (end.min(until) - start.max(from)).max(0.0);
    let both = (end - start) + (until - from) - common;
    if both > 0.0 { (common / both).clamp(0.0, 1.0) } else { 0.0 }
}

fn stretch(text: &str) -> Option<(f64, f64)> {
    let found = PAIR.as_ref()?.captures(text)?;
    let number = |group| found.get(group)?.as_str().parse().ok().filter(|number: &f64| number.is_finite());
    Some((number(1)?, number(2)?)).filter(|(start, end)| start < end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(said: &str, answer: &str, question: &str, compat: Compat) -> f64 {
        let truth = Truth { answer, question: question.into() };
        accuracy(said, &truth, &RewardConfig { compat, ..RewardConfig::default() })
    }

    #[test]
    fn answers_are_found_in_three_places() {
        for (completion, expected) in [
            ("<think>x</think><answer> red </answer><answer>blue</answer>", "red"),
            ("red\n<answer> </answer>", ""),
            ("<think>x</think><tool_call>1</tool_call> red <tool_code>2</tool_code><|im_end|>", "red"),
            ("<think>x</think>red <answer>blue", "red <answer>blue"),
            ("first\n<think>x</think><tool_call>1</tool_call>", "<think>x</think><tool_call>1</tool_call>"),
            ("first\n<tool_call>1\n<|im_end|>", "first"),
            ("<|im_start|>", ""),
        ] {
            assert_eq!(extract(completion), expected, "{completion}");
        }
    }

    #[test]
    fn letters_are_choices() {
        for (said, answer, upstream, paper) in [
            ("The", "A", 1.0, 0.0),
            ("...", "A", 1.0, 0.0),
            ("a", "A", 1.0, 1.0),
            ("(a)", "A", 1.0, 1.0),
            ("A.", "A", 1.0, 1.0),
            ("The answer is A", "A", 1.0, 1.0),
            ("the b", "B", 1.0, 1.0),
            ("(b)", "B", 1.0, 1.0),
            ("option (B", "B", 1.0, 1.0),
            ("B: red", "B", 1.0, 1.0),
            ("b: red", "B", 0.0, 0.0),
            ("E", "E", 1.0, 1.0),
            ("option E", "E", 0.0, 0.0),
            ("The", "an", 1.0, 0.0),
            ("?", "!", 1.0, 0.0),
            ("!", "!", 1.0, 1.0),
        ] {
            let both = (judged(said, answer, "mcq", Compat::Upstream), judged(said, answer, "mcq", Compat::Paper));
            assert_eq!(both, (upstream, paper), "{said} for {answer}");
        }
    }

    #[test]
    fn stretches_that_make_no_sense_have_nothing_in_common() {
        let huge = format!("1, {}", "9".repeat(400));
        for said in ["[20, 10]", "10 - 19", "1.2.3, 4", "., 5", "", "5, 5", huge.as_str()] {
            assert_eq!(judged(said, "[10, 20]", "tvg", Compat::Paper), 0.0, "{said}");
        }
        assert_eq!(judged("at 3: 12 ,20.", "[10, 20]", "tvg", Compat::Paper), 0.8);
        assert_eq!(judged("[12, 20]", "[20, 10]", "tvg", Compat::Paper), 0.0);
    }

    #[test]
    fn words_are_compared_as_the_reference_compares_them() {
        assert_eq!(normal("  The Red, an  blue-Square! a_b"), "red bluesquare a_b");
        let exact = RewardConfig { mode: AnswerMode::Exact, ..RewardConfig::default() };
        let truth = Truth { answer: "red ball", question: QuestionType::Open };
        assert_eq!((accuracy("red", &truth, &exact), accuracy("Red ball.", &truth, &exact)), (0.0, 1.0));
        assert!((judged("red", "red ball", "else", Compat::Paper) - 2.0 / 3.0).abs() < 1e-12);
    }
}
