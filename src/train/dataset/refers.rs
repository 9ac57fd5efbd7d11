//! Whether a call was chosen by what an earlier response told: then the two can't be made at the same time.
//!
//! A heuristic on words, and a careful one: what it can't tell is taken to refer. The turn that calls is split into sentences
//! that *plan* (they name a bound of its windows, or use a word of looking such as "check") and sentences on what was *seen*. It
//! refers to the response when
//! - a window is planned by no sentence, so that nothing tells why it was chosen;
//! - a planning sentence draws a conclusion ("so", "because") or tells what was seen ("shows");
//! - a planning sentence, or the window itself, shares a word of four letters or a number with the response that nobody had used
//!   before it;
//! - such a number of the response lies inside the window;
//! - either is written in a script without blanks, whose words can't be compared here.
//!
//! Windows that the assistant had named, both bounds, before the response came were chosen without it, whatever is said later.
//! What it can't see: pronouns, synonyms, and that a response found nothing and another place is tried. The last is meant to be
//! merged: looking in both places at once is what parallel calls are for.

use std::collections::HashSet;

use super::trace::Window;
use crate::types::MediaTime;

/// Words that conclude from what came before, or tell it. Whole words.
const CONCLUDING: [&str; 23] = [
    "accordingly",
    "based",
    "because",
    "confirmed",
    "confirms",
    "consequently",
    "given",
    "hence",
    "indicates",
    "observed",
    "reveals",
    "saw",
    "seen",
    "showed",
    "shown",
    "shows",
    "since",
    "so",
    "suggests",
    "therefore",
    "thus",
    "visible",
    "appeared",
];
/// Words that begin a look. Whole words.
const LOOKING: [&str; 10] =
    ["call", "check", "crop", "examine", "inspect", "inspecting", "checking", "verify", "watch", "zoom"];
/// Words that say nothing by themselves, cut as [`stem`] cuts.
const IDLE: [&str; 56] = [
    "about", "after", "again", "also", "anothe", "around", "before", "betwee", "call", "check", "clip", "crop", "does",
    "each", "examin", "first", "frame", "from", "have", "here", "inspec", "into", "last", "later", "look", "moment",
    "need", "next", "only", "other", "part", "period", "remain", "same", "second", "segmen", "shall", "should", "some",
    "still", "than", "that", "them", "then", "there", "they", "third", "this", "time", "until", "verify", "video",
    "watch", "will", "window", "with",
];
/// Shortest word that is compared, and where longer ones are cut so that endings do not count.
const SHORTEST: usize = 4;
const STEM: usize = 6;

/// Words and numbers of a text.
#[derive(Debug, Clone, Default)]
pub(super) struct Terms {
    words: HashSet<String>,
    numbers: HashSet<MediaTime>,
}

impl Terms {
    /// Adds those of a text.
    pub(super) fn add(&mut self, text: &str) {
        self.words.extend(words(text).filter(|word| word.chars().count() >= SHORTEST).map(|word| stem(&word)));
        self.numbers.extend(numbers(text));
    }

    /// Adds the bounds of windows.
    pub(super) fn add_windows(&mut self, windows: &[Window]) {
        self.numbers.extend(bounds(windows));
    }

    fn of(text: &str) -> Self {
        let mut terms = Self::default();
        terms.add(text);
        terms
    }
}

/// The sentences of a turn that plan its windows, and the others: what was seen. `earlier` are the windows before: a number that
/// is a bound of both says nothing.
pub(super) fn split(text: &str, windows: &[Window], earlier: &[Window]) -> (Vec<String>, Vec<String>) {
    let own = own_bounds(windows, earlier);
    let plans = |sentence: &&str| {
        let looks = !windows.is_empty() && words(sentence).any(|word| LOOKING.contains(&word.as_str()));
        looks || numbers(sentence).any(|number| own.contains(&number))
    };
    let (plan, seen): (Vec<&str>, Vec<&str>) = sentences(text).into_iter().partition(plans);
    let owned = |sentences: Vec<&str>| sentences.into_iter().map(str::to_owned).collect();
    (owned(plan), owned(seen))
}

/// Whether the choice of `windows` refers to `response`. `plan` is what [`split`] gave, `known` all that was said before the
/// response, `thought` what the assistant itself had said by then.
pub(super) fn refers(
    response: &str,
    plan: &[String],
    (windows, earlier): (&[Window], &[Window]),
    (known, thought): (&Terms, &Terms),
) -> bool {
    if bounds(windows).all(|bound| thought.numbers.contains(&bound)) {
        return false;
    }
    let text = plan.join(" ");
    let named: HashSet<MediaTime> = numbers(&text).collect();
    let own = own_bounds(windows, earlier);
    let is_planned = |window: &Window| [window.start, window.end].iter().any(|b| own.contains(b) && named.contains(b));
    let planned = if windows.len() == 1 { !plan.is_empty() } else { windows.iter().all(is_planned) };
    if !planned || unspaced(response) || unspaced(&text) {
        return true;
    }
    if words(&text).any(|word| CONCLUDING.contains(&word.as_str())) {
        return true;
    }
    let (told, mut used) = (Terms::of(response), Terms::of(&text));
    used.add_windows(windows);
    let is_news = |word: &&String| !known.words.contains(*word) && !IDLE.contains(&word.as_str());
    let news = |number: &&MediaTime| !known.numbers.contains(*number);
    let inside = |number: &MediaTime| windows.iter().any(|window| window.start <= *number && *number <= window.end);
    told.words.iter().filter(is_news).any(|word| used.words.contains(word))
        || told.numbers.iter().filter(news).any(|number| used.numbers.contains(number) || inside(number))
}

/// Whether no window of one list shares a moment with one of the other. Those of videos with different names do not.
pub(super) fn disjoint(one: &[Window], other: &[Window]) -> bool {
    let apart = |a: &Window, b: &Window| {
        let videos = matches!((&a.video, &b.video), (Some(a), Some(b)) if a != b);
        videos || a.end <= b.start || b.end <= a.start
    };
    one.iter().all(|a| other.iter().all(|b| apart(a, b)))
}

fn bounds(windows: &[Window]) -> impl Iterator<Item = MediaTime> {
    windows.iter().flat_map(|window| [window.start, window.end])
}

fn own_bounds(windows: &[Window], earlier: &[Window]) -> HashSet<MediaTime> {
    bounds(windows).filter(|bound| bounds(earlier).all(|other| other != *bound)).collect()
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

fn stem(word: &str) -> String {
    // A plural is its singular.
    let word = word.strip_suffix('s').filter(|rest| rest.chars().count() >= SHORTEST).unwrap_or(word);
    word.chars().take(STEM).collect()
}

/// Numbers and clocks, as times: `20`, `20.0` and `00:20` are one.
fn numbers(text: &str) -> impl Iterator<Item = MediaTime> {
    let fields = text.split(|c: char| !c.is_ascii_digit() && c != '.' && c != ':');
    fields.filter_map(|field| field.trim_matches(['.', ':']).parse().ok())
}

fn sentences(text: &str) -> Vec<&str> {
    let (mut sentences, mut from) = (Vec::new(), 0);
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let next = chars.peek().map(|(_, next)| *next);
        let ends = c == '\n' || c == '。' || (matches!(c, '.' | '!' | '?') && next.is_none_or(char::is_whitespace));
        if ends {
            sentences.push(&text[from..at + c.len_utf8()]);
            from = at + c.len_utf8();
        }
    }
    sentences.push(&text[from..]);
    sentences.into_iter().map(str::trim).filter(|sentence| !sentence.is_empty()).collect()
}

/// Whether a text has letters of a script that writes words without blanks between: Thai to Burmese, Khmer, Chinese, Japanese.
fn unspaced(text: &str) -> bool {
    text.chars().any(|c| {
        matches!(c, '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}'
        | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(start: i64, end: i64) -> Window {
        let time = |seconds: i64| MediaTime::from_micros(seconds * 1_000_000);
        Window { video: None, start: time(start), end: time(end) }
    }

    /// After "I begin with 20 to 60." and a window there.
    fn refers_to(response: &str, text: &str, windows: &[Window]) -> bool {
        let earlier = [window(20, 60)];
        let (plan, _) = split(text, windows, &earlier);
        let (mut known, thought) =
            (Terms::of("Which shapes? I begin with 20 to 60."), Terms::of("I begin with 20 to 60."));
        known.add_windows(&earlier);
        refers(response, &plan, (windows, &earlier), (&known, &thought))
    }

    #[test]
    fn what_a_response_told_is_found_again() {
        let circle = "[20.0s - 60.0s] A red circle leaves through the door.";
        for (response, text, refers) in [
            (circle, "The border is lit once more, check 160 to 180.", false),
            (circle, "A red circle. Now I check 160 to 180.", false),
            (circle, "Check 160 to 180 for other shapes.", false),
            (circle, "I check 02:40 to 03:00, where the door is.", true),
            (circle, "Circles may come back, check 160 to 180.", true),
            (circle, "So I check 160 to 180.", true),
            (circle, "The first clip shows nothing, 160 to 180 may.", true),
            (circle, "A red circle.", true),
            (circle, "", true),
            ("[20.0s - 60.0s] A sign says 160.", "Check 160 to 180.", true),
            ("[20.0s - 60.0s] At 02:50 it will go on.", "Check 160 to 180.", true),
            ("[20.0s - 60.0s] 一个红色的圆。", "Check 160 to 180.", true),
        ] {
            assert_eq!(refers_to(response, text, &[window(160, 180)]), refers, "{text}");
        }
    }

    #[test]
    fn windows_that_were_named_before_do_not_refer() {
        let windows = [window(160, 180)];
        let (known, thought) = (Terms::default(), Terms::of("The border is lit at 20-60 and at 02:40-03:00."));
        assert!(!refers("A door.", &["So check the door.".to_owned()], (&windows, &[]), (&known, &thought)));
        let half = Terms::of("Something is at 160.");
        assert!(refers("A door.", &["So check the door.".to_owned()], (&windows, &[]), (&known, &half)));
    }

    #[test]
    fn of_several_windows_each_must_be_planned() {
        let windows = [window(160, 180), window(200, 220)];
        assert!(!refers_to("A circle.", "Check 160 and 200.", &windows));
        assert!(refers_to("A circle.", "Check 160.", &windows));
    }

    #[test]
    fn sentences_that_plan_are_told_from_what_was_seen() {
        let (plan, seen) =
            split("At 25.5 s, a circle. Nothing else!\nNow 160-180.", &[window(160, 180)], &[window(20, 60)]);
        assert_eq!(
            (plan, seen),
            (vec!["Now 160-180.".to_owned()], vec!["At 25.5 s, a circle.".to_owned(), "Nothing else!".to_owned()])
        );
        let shared = split("From 60 on.", &[window(60, 80)], &[window(20, 60)]);
        assert_eq!(shared.0, [""; 0]);
        assert_eq!(split("I watch and check.", &[], &[]).0, [""; 0]);
    }

    #[test]
    fn windows_that_touch_are_disjoint() {
        assert!(disjoint(&[window(0, 10)], &[window(10, 20), window(20, 30)]));
        assert!(!disjoint(&[window(0, 11)], &[window(20, 30), window(10, 20)]));
        let named = |name: &str| Window { video: Some(name.to_owned()), ..window(0, 10) };
        assert!(disjoint(&[named("a")], &[named("b")]) && !disjoint(&[named("a")], &[named("a")]));
    }
}
