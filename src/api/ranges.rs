//! Which bytes of a file a request asks for (RFC 9110, 13 and 14), and what a browser is told of it. Pure.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::header::{IF_NONE_MATCH, IF_RANGE, RANGE};
use axum::http::{HeaderMap, HeaderValue, Method};

/// What to answer with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    /// 200: all of it.
    All,
    /// 206: these bytes.
    Some(Range<u64>),
    /// 304: the client has it.
    Nothing,
    /// 416: bytes that the file does not have.
    Beyond,
}

/// What the headers ask for of a file of so many bytes that never changes.
pub(super) fn wanted(method: &Method, headers: &HeaderMap, bytes: u64, etag: &str, modified: u64) -> Wanted {
    let texts = |name| headers.get_all(name).into_iter().filter_map(|value: &HeaderValue| value.to_str().ok());
    let text = |name| texts(name).next();
    let ours = |tag: &str| matches!(tag.trim().trim_start_matches("W/"), tag if tag == etag || tag == "*");
    if texts(IF_NONE_MATCH).any(|tags| tags.split(',').any(ours)) {
        return Wanted::Nothing;
    }
    // A condition that does not hold, or can't be read, makes it the whole file. A weak tag is never enough here.
    let holds =
        |condition: &str| condition == etag || httpdate::parse_http_date(condition).ok() == Some(time(modified));
    match text(RANGE) {
        // Ranges are defined for GET alone.
        Some(range) if method == Method::GET && text(IF_RANGE).is_none_or(holds) => range_of(range, bytes),
        _ => Wanted::All,
    }
}

/// A moment as HTTP writes it.
pub(super) fn date(seconds: u64) -> String {
    httpdate::fmt_http_date(time(seconds))
}

/// Clamped, since later than the year 9999 is no date of HTTP's.
fn time(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds.min(253_402_300_799))
}

/// One range. Of several, or of what can't be read, nothing needs to be honoured: it is the whole file then.
fn range_of(header: &str, bytes: u64) -> Wanted {
    let Some((unit, range)) = header.split_once('=') else { return Wanted::All };
    let Some((first, last)) = range.trim().split_once('-') else { return Wanted::All };
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return Wanted::All;
    }
    // Digits alone: `parse` would take a sign.
    let number = |text: &str| match text {
        "" => Some(None),
        text if text.bytes().all(|byte| byte.is_ascii_digit()) => Some(Some(text.parse().unwrap_or(u64::MAX))),
        _ => None,
    };
    match (number(first), number(last)) {
        (Some(Some(first)), Some(last)) if last.is_none_or(|last| last >= first) => {
            let end = last.map_or(bytes, |last| last.saturating_add(1).min(bytes));
            if first < bytes { Wanted::Some(first..end) } else { Wanted::Beyond }
        }
        (Some(None), Some(Some(count))) if count > 0 && bytes > 0 => Wanted::Some(bytes.saturating_sub(count)..bytes),
        (Some(None), Some(Some(_))) => Wanted::Beyond,
        _ => Wanted::All,
    }
}

/// `Content-Disposition` with a name of anyone's making: ASCII that can't end its quotes, and the whole name in percent code
/// (RFC 6266, 8187).
pub(super) fn disposition(inline: bool, name: &str) -> String {
    let kind = if inline { "inline" } else { "attachment" };
    let plain: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || " .-_()[]+,".contains(c) { c } else { '_' }).collect();
    let mut coded = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_' => coded.push(char::from(byte)),
            byte => coded.push_str(&format!("%{byte:02X}")),
        }
    }
    format!("{kind}; filename=\"{plain}\"; filename*=UTF-8''{coded}")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    #[test]
    fn ranges_are_read_as_the_standard_says() {
        for (range, expected) in [
            ("bytes=0-", Wanted::Some(0..10)),
            ("bytes=0-0", Wanted::Some(0..1)),
            ("Bytes = 2-4", Wanted::Some(2..5)),
            ("bytes=2-99", Wanted::Some(2..10)),
            ("bytes=9-99999999999999999999999", Wanted::Some(9..10)),
            ("bytes=-3", Wanted::Some(7..10)),
            ("bytes=-30", Wanted::Some(0..10)),
            ("bytes=10-", Wanted::Beyond),
            ("bytes=99999999999999999999999-", Wanted::Beyond),
            ("bytes=-0", Wanted::Beyond),
            ("bytes=4-2", Wanted::All),
            ("bytes=0-1,3-4", Wanted::All),
            ("bytes=+1-2", Wanted::All),
            ("bytes=-", Wanted::All),
            ("bytes=a-b", Wanted::All),
            ("items=0-1", Wanted::All),
            ("0-1", Wanted::All),
        ] {
            assert_eq!(range_of(range, 10), expected, "{range}");
        }
        assert_eq!(range_of("bytes=-5", 0), Wanted::Beyond);
        assert_eq!(range_of("bytes=0-", 0), Wanted::Beyond);
    }

    #[test]
    fn conditions_are_about_the_file() {
        let tag = "\"file-1\"";
        let as_method = |method: &Method, pairs: &[(HeaderName, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(name, value.parse().expect("a value"));
            }
            wanted(method, &headers, 10, tag, 1_000_000)
        };
        let ask = |pairs: &[(HeaderName, &str)]| as_method(&Method::GET, pairs);
        let range = (RANGE, "bytes=1-2");
        let some = Wanted::Some(1..3);
        assert_eq!(ask(&[]), Wanted::All);
        assert_eq!(ask(std::slice::from_ref(&range)), some);
        assert_eq!(ask(&[range.clone(), (IF_RANGE, tag)]), some);
        assert_eq!(ask(&[range.clone(), (IF_RANGE, &date(1_000_000))]), some);
        for stale in ["\"file-2\"", "W/\"file-1\"", "yesterday", &date(1_000_001)] {
            assert_eq!(ask(&[range.clone(), (IF_RANGE, stale)]), Wanted::All, "{stale}");
        }
        assert_eq!(ask(&[(IF_NONE_MATCH, "\"x\", W/\"file-1\"")]), Wanted::Nothing);
        assert_eq!(ask(&[range.clone(), (IF_NONE_MATCH, "*")]), Wanted::Nothing);
        assert_eq!(ask(&[(IF_NONE_MATCH, "\"x\""), (IF_NONE_MATCH, tag)]), Wanted::Nothing);
        assert_eq!(ask(&[range.clone(), (IF_NONE_MATCH, "\"x\"")]), some);
        assert_eq!(as_method(&Method::HEAD, &[range]), Wanted::All);
    }

    #[test]
    fn no_name_ends_its_quotes() {
        assert_eq!(
            disposition(false, "a\"; x=\"é\\.mp4"),
            "attachment; filename=\"a__ x____.mp4\"; filename*=UTF-8''a%22%3B%20x%3D%22%C3%A9%5C.mp4"
        );
        assert!(axum::http::HeaderValue::from_str(&disposition(true, "\r\n\u{202e}日本.mp4")).is_ok());
    }
}
