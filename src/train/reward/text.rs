//! Text as the reference reads it: what a blank is, what a line is, what stands between two tags. Pure, and linear in the text.

/// What stands between an opening and a closing tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Between<'a> {
    pub(super) body: &'a str,
    /// False when the text ends first: then the body is all the rest, and there is no further one.
    pub(super) closed: bool,
}

/// All of them, from left to right, each from its opening tag to the first closing one after it. Tags in a body are text.
pub(super) fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = Between<'a>> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let (_, after) = rest?.split_once(open)?;
        let (body, more) = match after.split_once(close) {
            Some((body, more)) => (body, Some(more)),
            None => (after, None),
        };
        rest = more;
        Some(Between { body, closed: more.is_some() })
    })
}

/// The text without closed blocks of this tag.
pub(super) fn without(text: &str, open: &str, close: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(open) {
        let Some((_, more)) = after.split_once(close) else { break };
        out.push_str(before);
        rest = more;
    }
    out.push_str(rest);
    out
}

/// How often it stands there.
pub(super) fn count(text: &str, what: &str) -> usize {
    text.matches(what).count()
}

/// Python's blanks: Unicode's, and four separators.
pub(super) fn blank(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Without blanks at its ends.
pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(blank)
}

/// Its words.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(blank).filter(|word| !word.is_empty())
}

/// Lines with something in them, without blanks at their ends. Python ends a line at more signs than Rust.
pub(super) fn lines(text: &str) -> impl DoubleEndedIterator<Item = &str> {
    let ends = |c| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    text.split(ends).map(strip).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_from_left_to_right_and_the_last_may_be_open() {
        let read = |text| between(text, "<a>", "</a>").map(|b| (b.body, b.closed)).collect::<Vec<_>>();
        assert_eq!(read("x<a>1</a>y<a>2</a>"), [("1", true), ("2", true)]);
        assert_eq!(read("</a><a>1<a>2</a>3</a><a>4<a>"), [("1<a>2", true), ("4<a>", false)]);
        assert_eq!(read("<a></a><a>"), [("", true), ("", false)]);
        assert_eq!(read("none"), []);
        assert_eq!(without("x<a>1</a>y<a>2", "<a>", "</a>"), "xy<a>2");
    }

    #[test]
    fn blanks_and_lines_are_those_of_python() {
        assert_eq!(strip("\u{1c} \u{a0}x y\u{1f}\n"), "x y");
        assert_eq!(words(" a\u{1d}b\t").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(lines("a\r\n\n b \u{b}c\u{85}d\u{2028}e").collect::<Vec<_>>(), ["a", "b", "c", "d", "e"]);
    }
}
