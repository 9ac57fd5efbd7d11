//! What a model's reply says: an option's letter, a stretch of time, or words. Pure.
//!
//! Letters and times are read as the ParaVT paper's own evaluation reads them (`paravt/eval/utils.py` of
//! `EvolvingLMMs-Lab/ParaVT`, commit `cf55249e`), oddities included, because scores are compared with its own: "I believe it
//! is B" is I. What a person would mark is not what its tables say.

use std::sync::LazyLock;

use regex::Regex;

use crate::types::MediaTime;

/// Letters of options, whatever the number of options.
const LETTERS: std::ops::RangeInclusive<char> = 'A'..='J';

/// Expressions are constants: one that does not compile would fail every test.
fn regex(pattern: &str) -> Option<Regex> {
    Regex::new(pattern).ok()
}

macro_rules! patterns {
    ($($name:ident = $pattern:expr;)*) => {
        $(static $name: LazyLock<Option<Regex>> = LazyLock::new(|| regex($pattern));)*
    };
}

patterns! {
    ANSWER = r"(?s)<answer>(.*?)</answer>";
    ALONE = r"\b([A-J])\b";
    IS = r"(?:answer|Answer)\s*(?:is|:)\s*([A-J])";
    TAGGED = r"<time>([^<]+)</time>";
    CLOCKS = r"(\d+):(\d+(?:\.\d+)?)\s*[-–—]\s*(\d+):(\d+(?:\.\d+)?)";
    NUMBERS = r"(\d+\.?\d*)\s*[-–—]\s*(\d+\.?\d*)";
    STARTS = r"(?i)(?:start(?:ing)?|begin(?:ning)?)\s*(?:time)?[:\s]*(\d+\.?\d*)";
    ENDS = r"(?i)(?:end(?:ing)?|finish(?:ing)?)\s*(?:time)?[:\s]*(\d+\.?\d*)";
    NUMBER = r"(\d+\.?\d*)";
}

fn first<'a>(pattern: &Option<Regex>, text: &'a str) -> Option<&'a str> {
    pattern.as_ref()?.captures(text)?.get(1).map(|found| found.as_str())
}

fn only_letter(text: &str) -> Option<char> {
    let mut characters = text.chars();
    let (only, None) = (characters.next()?, characters.next()) else { return None };
    LETTERS.contains(&only).then_some(only)
}

/// The letter that a reply to a multiple-choice question stands for, or the reply's first character where it has none. `None`
/// for an empty reply.
///
/// In this order: the content of the first `<answer>` (alone, else its first letter that stands alone), the whole text if it is
/// a letter, what follows "answer is" or "answer:", the first letter that stands alone anywhere, thinking included.
pub(super) fn letter(reply: &str) -> Option<char> {
    let reply = reply.trim();
    let alone = |text: &str| first(&ALONE, text).and_then(|found| found.chars().next());
    let tagged = first(&ANSWER, reply).map(str::trim).and_then(|inner| only_letter(inner).or_else(|| alone(inner)));
    tagged
        .or_else(|| only_letter(reply))
        .or_else(|| first(&IS, reply).and_then(|found| found.chars().next()))
        .or_else(|| alone(reply))
        .or_else(|| reply.chars().next())
}

/// The stretch of time that a reply names, in seconds: start and end, which may be in the wrong order. `None`: it names none.
///
/// In this order, of the content of `<time>` and then of the whole text: `MM:SS - MM:SS`, `S - S`, both only if they ascend and
/// only the first of each; then of the whole text what follows "start" and "end"; then its first two numbers.
pub(super) fn interval(reply: &str) -> Option<(f64, f64)> {
    let places = [first(&TAGGED, reply), Some(reply)];
    places
        .into_iter()
        .flatten()
        .find_map(|text| clocks(text).or_else(|| numbers(text)))
        .or_else(|| Some((number(first(&STARTS, reply)?)?, number(first(&ENDS, reply)?)?)))
        .or_else(|| {
            let mut all = NUMBER.as_ref()?.find_iter(reply).filter_map(|found| number(found.as_str()));
            Some((all.next()?, all.next()?))
        })
}

fn number(text: &str) -> Option<f64> {
    text.trim_end_matches('.').parse().ok().filter(|number: &f64| number.is_finite())
}

fn clocks(text: &str) -> Option<(f64, f64)> {
    let found = CLOCKS.as_ref()?.captures(text)?;
    let part = |group| found.get(group).and_then(|part| number(part.as_str()));
    let (start, end) = (part(1)? * 60.0 + part(2)?, part(3)? * 60.0 + part(4)?);
    (end > start && end < 3600.0).then_some((start, end))
}

fn numbers(text: &str) -> Option<(f64, f64)> {
    let found = NUMBERS.as_ref()?.captures(text)?;
    let part = |group| found.get(group).and_then(|part| number(part.as_str()));
    let (start, end) = (part(1)?, part(2)?);
    (end > start).then_some((start, end))
}

/// How much two stretches of time have in common: their overlap by what both span together, from the first start to the last
/// end. Stretches that end before they start have nothing in common with any.
pub(super) fn overlap((start, end): (f64, f64), gold: (MediaTime, MediaTime)) -> f64 {
    let (from, until) = (gold.0.seconds(), gold.1.seconds());
    let hull = end.max(until) - start.min(from);
    if hull > 0.0 { ((end.min(until) - start.max(from)) / hull).max(0.0) } else { 0.0 }
}

/// Words: lower case, without punctuation and articles, with single blanks. Signs that belong to a number or a name stay: `-5`,
/// `1.5`, `C++`, `1/2`.
pub(super) fn normal(text: &str) -> String {
    let characters: Vec<char> = text.to_lowercase().chars().collect();
    let near =
        |place: Option<usize>| place.and_then(|place| characters.get(place)).is_some_and(|c| c.is_alphanumeric());
    let keep = |(place, c): (usize, &char)| match c {
        c if c.is_alphanumeric() || c.is_whitespace() => *c,
        // A point or a stroke between two, a sign before one, a plus behind one.
        '.' | '/' if near(place.checked_sub(1)) && near(Some(place + 1)) => *c,
        '-' if near(Some(place + 1)) && !near(place.checked_sub(1)) => *c,
        '+' => *c,
        _ => ' ',
    };
    let plain: String = characters.iter().enumerate().map(keep).collect();
    let words = plain.split_whitespace().filter(|word| !["a", "an", "the"].contains(word));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the reference gives for each, computed with its rules.
    #[test]
    fn letters_are_read_as_the_reference_reads_them() {
        for (reply, expected) in [
            ("B", "B"),
            ("  C\n", "C"),
            ("<think>maybe A</think><answer>D</answer>", "D"),
            ("<answer> B. Candles. </answer>", "B"),
            ("<answer>(C)</answer>", "C"),
            ("<answer>A man walks in, so C</answer>", "A"),
            ("<answer>I think B</answer>", "I"),
            ("<answer>b</answer>", "<"),
            ("<answer>Candles</answer>", "<"),
            ("<think>Option B fits, not A.</think><answer>unknown</answer>", "B"),
            ("<answer></answer>", "<"),
            ("<answer>A</answer> then <answer>B</answer>", "A"),
            ("<answer>B", "B"),
            ("<ANSWER>D</ANSWER>", "D"),
            ("The answer is D.", "D"),
            ("The answer is Dog, i.e. option B", "D"),
            ("The best answer is (B).", "B"),
            ("A quick look shows the answer is (B).", "A"),
            ("A quick look shows: answer : C", "C"),
            ("Final answer is: C", "C"),
            ("Answer:E", "E"),
            ("ANSWER: B", "B"),
            ("I believe it is B", "I"),
            ("It is A or B, so B", "A"),
            ("A and C", "A"),
            ("**B**", "B"),
            ("Option_B", "O"),
            ("B)", "B"),
            ("Because the Dolphin Appears", "B"),
            ("bottle", "b"),
            ("G", "G"),
            ("<answer>K</answer>", "<"),
            ("H. none of these", "H"),
            ("", ""),
            ("答案是B", "答"),
            ("选 B。", "B"),
            ("<think>C is wrong</think>\nB", "C"),
            ("[API error: Error code: 400]", "["),
            ("<answer>F</answer>", "F"),
            ("Vitamin-C deficiency: D", "C"),
            ("<answer>Dolly Zoom</answer>", "<"),
            ("3", "3"),
            ("<tool_call>{\"name\":\"crop_video\"}</tool_call>", "<"),
        ] {
            assert_eq!(letter(reply).map(String::from).unwrap_or_default(), expected, "{reply}");
        }
    }

    #[test]
    fn times_are_read_as_the_reference_reads_them() {
        for (reply, gold, parsed, score) in [
            ("The event happens in the 24.3 - 30.4 seconds.", (24.3, 30.4), Some((24.3, 30.4)), 1.0),
            (
                "The event 'person turn a light on' happens in the 10 - 20 seconds",
                (10.0, 20.0),
                Some((10.0, 20.0)),
                1.0,
            ),
            ("<time>00:19.7 - 00:25.6</time>", (19.7, 25.6), Some((19.7, 25.6)), 1.0),
            ("00:19.7 - 00:25.6", (19.7, 25.6), Some((19.7, 25.6)), 1.0),
            ("<time>5.0 - 9.0</time> earlier I said 1.0 - 2.0", (5.0, 9.0), Some((5.0, 9.0)), 1.0),
            ("From 3.0s to 7.5s", (3.0, 7.5), Some((3.0, 7.5)), 1.0),
            ("3.0s - 7.5s", (3.0, 7.5), Some((3.0, 7.5)), 1.0),
            ("30.4 - 24.3 seconds", (24.3, 30.4), Some((30.4, 24.3)), 0.0),
            ("start time: 30.4, end time: 24.3", (24.3, 30.4), Some((30.4, 24.3)), 0.0),
            ("01:00:05 - 01:00:10", (3605.0, 3610.0), Some((5.0, 60.0)), 0.0),
            ("00:00:18 - 00:00:23", (18.0, 23.0), Some((0.0, 0.0)), 0.0),
            ("00:18 to 00:23", (18.0, 23.0), Some((0.0, 18.0)), 0.0),
            ("1:05 - 2:10", (65.0, 130.0), Some((65.0, 130.0)), 1.0),
            ("59:00 - 61:00", (0.0, 10.0), Some((0.0, 61.0)), 0.1639),
            ("between 12 and 15.5 seconds", (12.0, 15.5), Some((12.0, 15.5)), 1.0),
            ("It starts at 4.2 and ends at 8.8", (4.2, 8.8), Some((4.2, 8.8)), 1.0),
            ("Start: 4.2s End: 8.8s", (4.2, 8.8), Some((4.2, 8.8)), 1.0),
            ("[4.2, 8.8]", (4.2, 8.8), Some((4.2, 8.8)), 1.0),
            ("<answer>12.0 – 20.0</answer>", (12.0, 20.0), Some((12.0, 20.0)), 1.0),
            ("12.0—20.0", (12.0, 20.0), Some((12.0, 20.0)), 1.0),
            ("frames 10-16: the event is 2.0 - 6.0", (2.0, 6.0), Some((10.0, 16.0)), 0.0),
            ("The event happens at 7.0 seconds.", (7.0, 9.0), None, 0.0),
            ("no idea", (0.0, 10.0), None, 0.0),
            ("", (0.0, 10.0), None, 0.0),
            ("12.5 - 12.5", (0.0, 20.0), Some((12.5, 12.5)), 0.0),
            ("0.0 - 6.9", (0.0, 6.9), Some((0.0, 6.9)), 1.0),
            ("-3.0 - 5.0", (0.0, 5.0), Some((3.0, 5.0)), 0.4),
            ("In 2 steps: starts 5.0, finish 9.0", (5.0, 9.0), Some((2.0, 5.0)), 0.0),
            ("<time>unknown</time> 3 - 8", (3.0, 8.0), Some((3.0, 8.0)), 1.0),
            ("2024-05-01: 3.0 - 8.0", (3.0, 8.0), Some((2024.0, 5.0)), 0.0),
            ("24.3 -> 30.4", (24.3, 30.4), Some((24.3, 30.4)), 1.0),
            ("24.3 ~ 30.4", (24.3, 30.4), Some((24.3, 30.4)), 1.0),
            ("[API error: Error code: 400 after 3 retries]", (0.0, 10.0), Some((400.0, 3.0)), 0.0),
        ] {
            assert_eq!(interval(reply), parsed, "{reply}");
            let time = |seconds: f64| MediaTime::from_seconds(seconds).expect("a time");
            let found = interval(reply).map_or(0.0, |found| overlap(found, (time(gold.0), time(gold.1))));
            assert!((found - score).abs() < 1e-4, "{reply}: {found}");
        }
    }

    #[test]
    fn words_are_compared_without_what_does_not_matter() {
        assert_eq!(normal("  The Red circle, a  blue-square. "), "red circle blue square");
        for (text, expected) in
            [("-5", "-5"), ("1.5.", "1.5"), ("C++", "c++"), ("1/2", "1/2"), ("e.g. - this", "e.g this")]
        {
            assert_eq!(normal(text), expected);
        }
    }
}
