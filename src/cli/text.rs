//! Makes text from outside (a model's words, names, messages of servers) fit to be written on a terminal.
//!
//! Model output is untrusted: an escape sequence in a summary could recolour, retitle or rewrite the caller's terminal.
//! Pure; knows nothing of events or terminals.

use std::iter::Peekable;
use std::str::Chars;

/// One line: no control characters, no escape sequences, runs of white space as one space.
pub(super) fn line(text: &str) -> String {
    clean(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Several lines: as [`line`], but line breaks and spaces stay. White space at both ends goes.
pub(super) fn block(text: &str) -> String {
    clean(text).trim().to_owned()
}

/// Columns the text takes on a terminal.
pub(super) fn width(text: &str) -> usize {
    console::measure_text_width(text)
}

/// At most `columns` wide, cut with `…` (or `~` where only ASCII is safe).
pub(super) fn fit(text: &str, columns: usize, ascii: bool) -> String {
    console::truncate_str(text, columns, if ascii { "~" } else { "…" }).into_owned()
}

/// Lines of at most `columns`, broken at spaces where there are some and through a word where it alone is too long.
pub(super) fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(2);
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut current = String::new();
        for word in paragraph.split_whitespace() {
            let gap = usize::from(!current.is_empty());
            if gap == 1 && width(&current) + gap + width(word) > columns {
                lines.push(std::mem::take(&mut current));
            } else if gap == 1 {
                current.push(' ');
            }
            for c in word.chars() {
                if width(&current) + width(c.encode_utf8(&mut [0; 4])) > columns {
                    lines.push(std::mem::take(&mut current));
                }
                current.push(c);
            }
        }
        lines.push(current);
    }
    lines
}

/// `1.24s`, `12.4s`, `124s`: three figures whatever the size.
pub(super) fn seconds(ms: f64) -> String {
    let s = ms.max(0.0) / 1000.0;
    match s {
        s if s < 9.995 => format!("{s:.2}s"),
        s if s < 99.95 => format!("{s:.1}s"),
        s => format!("{s:.0}s"),
    }
}

/// Drops escape sequences and control and direction-changing characters. Tabs and line breaks stay.
fn clean(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => skip_escape(&mut chars),
            '\u{9b}' => skip_control_sequence(&mut chars),
            '\n' | '\t' => kept.push(c),
            '\u{2028}' | '\u{2029}' => kept.push(' '),
            c if c.is_control() || reorders(c) => {}
            c => kept.push(c),
        }
    }
    kept
}

/// Invisible characters that reorder or hide what stands around them. Joiners stay: scripts and emoji need them.
const fn reorders(c: char) -> bool {
    matches!(c, '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// After ESC: the rest of a control sequence, of a control string, or one character.
fn skip_escape(chars: &mut Peekable<Chars<'_>>) {
    match chars.peek() {
        Some('[') => {
            chars.next();
            skip_control_sequence(chars);
        }
        Some(']' | 'P' | 'X' | '^' | '_') => {
            chars.next();
            skip_control_string(chars);
        }
        Some(c) if !c.is_control() => {
            chars.next();
        }
        _ => {}
    }
}

/// Parameter and intermediate bytes, then one final byte (ECMA-48, 5.4).
fn skip_control_sequence(chars: &mut Peekable<Chars<'_>>) {
    while chars.next_if(|c| matches!(c, ' '..='?')).is_some() {}
    chars.next_if(|c| matches!(c, '@'..='~'));
}

/// Up to BEL or `ESC \`. A string that never ends is kept as text: only its opening goes.
fn skip_control_string(chars: &mut Peekable<Chars<'_>>) {
    let mut ahead = chars.clone();
    while let Some(c) = ahead.next() {
        let ended = c == '\u{7}' || c == '\u{9c}' || (c == '\u{1b}' && ahead.next_if_eq(&'\\').is_some());
        if ended {
            *chars = ahead;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn escape_sequences_go_and_their_text_stays() {
        for (raw, clean) in [
            ("a \u{1b}[31mred\u{1b}[0m circle", "a red circle"),
            ("\u{1b}]0;pwned\u{7}title", "title"),
            ("\u{1b}]8;;http://x\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link"),
            ("\u{1b}]0;never ends", "0;never ends"),
            ("\u{9b}2Jcleared", "cleared"),
            ("up\u{1b}[1A\r\u{8}down", "updown"),
            ("two\nlines\tand  spaces", "two lines and spaces"),
            ("\u{202e}txet", "txet"),
            ("\u{1b}", ""),
            ("\u{1b}[", ""),
        ] {
            assert_eq!(line(raw), clean, "{raw:?}");
        }
    }

    #[test]
    fn blocks_keep_their_lines() {
        assert_eq!(block("\n1. a\n  2. b\u{1b}[0m\n"), "1. a\n  2. b");
    }

    #[test]
    fn wide_characters_count_double() {
        assert_eq!(fit("红色圆形出现", 7, false), "红色圆…");
        assert_eq!(fit("short", 7, true), "short");
        assert_eq!(fit("too long for this", 8, true), "too lon~");
    }

    #[test]
    fn wrapping_breaks_at_spaces_and_through_long_words() {
        assert_eq!(wrap("red circle, blue square\n\nx", 12), ["red circle,", "blue square", "", "x"]);
        assert_eq!(wrap("abcdefghij kl", 4), ["abcd", "efgh", "ij", "kl"]);
        assert_eq!(wrap("红色圆形", 5), ["红色", "圆形"]);
    }

    #[test]
    fn seconds_have_three_figures() {
        assert_eq!(
            [0.4, 1240.0, 9994.0, 9996.0, 124_000.0, -3.0].map(seconds).join(" "),
            "0.00s 1.24s 9.99s 10.0s 124s 0.00s"
        );
    }

    proptest! {
        #[test]
        fn nothing_that_moves_a_cursor_survives(text in "(\u{1b}|\\[|\\]|[0-9;]|m|\u{7}|\u{9b}|\r|\n|\u{8}|x|红){0,40}") {
            let cleaned = line(&text);
            prop_assert!(cleaned.chars().all(|c| !c.is_control()), "{cleaned:?}");
            prop_assert!(width(&fit(&cleaned, 10, false)) <= 10);
            prop_assert!(wrap(&cleaned, 7).iter().all(|line| width(line) <= 7));
        }
    }
}
