//! What the headers of an answer say, and what it is that they speak of. Pure.

use std::ops::Range;
use std::time::Duration;

use reqwest::header::{CONTENT_ENCODING, CONTENT_RANGE, DATE, ETAG, HeaderMap, HeaderName, HeaderValue, LAST_MODIFIED};
use sha2::{Digest as _, Sha256};
use url::Url;

use super::BLOCK_BYTES;
use crate::media::source::name;

/// How long ago a change must be for its time to tell it from others.
const SETTLED: Duration = Duration::from_secs(60);

/// By which a change of a file on the web is noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Validator {
    /// A strong entity tag: another for each other content.
    Strong(HeaderValue),
    /// When it was last changed, a while before it was asked for. Weaker: clocks may be wrong.
    Modified(HeaderValue),
}

/// A strong entity tag and the place it is of: elsewhere the same tag says nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::media) struct Tag {
    pub(super) etag: HeaderValue,
    pub(super) resource: String,
}

impl Tag {
    /// The tag of an answer from a URL, if it has a strong one.
    pub(super) fn new(headers: &HeaderMap, url: &Url) -> Option<Self> {
        Some(Self { etag: strong(headers)?, resource: resource(url) })
    }
}

impl Validator {
    /// The best there is.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        strong(headers).map(Self::Strong).or_else(|| settled(headers).cloned().map(Self::Modified))
    }

    /// Whether an answer is of the same content.
    pub(super) fn holds(&self, headers: &HeaderMap) -> bool {
        match self {
            Self::Strong(tag) => strong(headers).as_ref() == Some(tag),
            Self::Modified(date) => only(headers, LAST_MODIFIED) == Some(date),
        }
    }
}

/// A header that is there once.
fn only(headers: &HeaderMap, name: HeaderName) -> Option<&HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

/// When it was last changed, where that is long enough ago for a second change in the same second to be ruled out
/// (RFC 9110, 8.8.2.2).
fn settled(headers: &HeaderMap) -> Option<&HeaderValue> {
    let date = |value: &HeaderValue| httpdate::parse_http_date(value.to_str().ok()?).ok();
    let modified = only(headers, LAST_MODIFIED)?;
    let age = date(only(headers, DATE)?)?.duration_since(date(modified)?).ok()?;
    (age >= SETTLED).then_some(modified)
}

/// `"…"`; neither weak nor without quotes.
fn strong(headers: &HeaderMap) -> Option<HeaderValue> {
    let tag = only(headers, ETAG)?;
    let inner = tag.as_bytes().strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    (!inner.is_empty() && !inner.contains(&b'"')).then(|| tag.clone())
}

/// Whether the bytes come as they are, not compressed.
pub(super) fn is_identity(headers: &HeaderMap) -> bool {
    headers.get_all(CONTENT_ENCODING).iter().all(|value| value.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// `bytes=0-99` for a range that is not empty.
pub(super) fn range(range: &Range<u64>) -> HeaderValue {
    let text = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("bytes=0-0"))
}

/// Which bytes of how many an answer holds, from `Content-Range: bytes 0-99/1000`.
pub(super) fn content_range(headers: &HeaderMap) -> Option<(Range<u64>, u64)> {
    let text = only(headers, CONTENT_RANGE)?.to_str().ok()?;
    let (unit, rest) = text.trim().split_once(' ')?;
    let (range, total) = rest.trim().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if digits { text.parse::<u64>().ok() } else { None }
    };
    let (first, end, total) = (number(first)?, number(last)?.checked_add(1)?, number(total)?);
    (unit.eq_ignore_ascii_case("bytes") && first < end && end <= total).then_some((first..end, total))
}

/// The length of a file and its validator, from the answer to the question for its first block. `None` when the answer is
/// odd, or a change would go unnoticed: then the file can't be read in pieces.
pub(super) fn first(headers: &HeaderMap) -> Option<(u64, Validator)> {
    let (range, total) = content_range(headers)?;
    let whole = range.start == 0 && range.end == total.min(BLOCK_BYTES);
    if whole && is_identity(headers) { Some((total, Validator::of(headers)?)) } else { None }
}

/// The place of a file on the web: a URL without what only signs it, which is another each time it is handed out.
///
/// A parameter that is not known for a signature stays: at worst, the same file is kept twice.
pub(super) fn resource(url: &Url) -> String {
    let signed_like_azure = ["sig", "sv"].iter().all(|name| url.query_pairs().any(|(key, _)| key == *name));
    let signs = |key: &str| {
        let key = key.to_ascii_lowercase();
        key.starts_with("x-amz-")
            || key.starts_with("x-goog-")
            || SIGNATURE.contains(&key.as_str())
            || (signed_like_azure && AZURE_SIGNATURE.contains(&key.as_str()))
    };
    let kept: Vec<_> = url.query_pairs().filter(|(key, _)| !signs(key)).collect();
    let mut place = url.clone();
    place.set_fragment(None);
    place.set_query(None);
    if !kept.is_empty() {
        place.query_pairs_mut().extend_pairs(kept);
    }
    place.into()
}

/// Parameters of URLs signed by the large object stores and their caches.
const SIGNATURE: [&str; 6] = ["awsaccesskeyid", "googleaccessid", "signature", "expires", "key-pair-id", "policy"];
const AZURE_SIGNATURE: [&str; 18] = [
    "sig", "sv", "se", "st", "sp", "sr", "ss", "srt", "spr", "sip", "si", "sdd", "skoid", "sktid", "skt", "ske", "sks",
    "skv",
];

/// The identity of a file on the web. `place`: the URL asked for, and the one it led to. Both count: who owns the first says
/// at each renewal where the bytes come from, so what came that way is good for those who ask it and for no others. The first
/// block is part of it in any case, as it is at hand; `tail` where the validator alone says too little.
pub(super) fn identity(
    place: (&Url, &Url),
    validator: &Validator,
    total: u64,
    head: &[u8],
    tail: Option<&[u8]>,
) -> String {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    add(resource(place.0).as_bytes());
    add(resource(place.1).as_bytes());
    match validator {
        Validator::Strong(tag) => add(tag.as_bytes()),
        Validator::Modified(date) => add(date.as_bytes()),
    }
    add(&total.to_le_bytes());
    add(head);
    add(tail.unwrap_or_default());
    name("web", hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).expect("a value"));
        }
        headers
    }

    #[test]
    fn content_ranges_are_read_strictly() {
        let read = |text: &str| content_range(&headers(&[("content-range", text)]));
        assert_eq!(read("bytes 0-99/1000"), Some((0..100, 1000)));
        assert_eq!(read("Bytes 999-999/1000"), Some((999..1000, 1000)));
        for odd in [
            "",
            "bytes 0-99/*",
            "bytes */1000",
            "bytes 0-99",
            "bytes 5-4/1000",
            "bytes 0-1000/1000",
            "bytes +0-99/1000",
            "bytes -5-99/1000",
            "items 0-99/1000",
            "bytes=0-99/1000",
            "bytes 0-18446744073709551615/18446744073709551615",
            "bytes 0-99999999999999999999/1000",
        ] {
            assert_eq!(read(odd), None, "{odd}");
        }
        assert_eq!(
            content_range(&headers(&[("content-range", "bytes 0-1/2"), ("content-range", "bytes 0-1/2")])),
            None
        );
    }

    #[test]
    fn only_strong_tags_are_trusted() {
        let of = |tag: &str| Validator::of(&headers(&[("etag", tag)]));
        assert!(matches!(of("\"a-1\""), Some(Validator::Strong(_))));
        for weak in ["W/\"a\"", "a", "\"\"", "\"", "\"a\"b\""] {
            assert_eq!(of(weak), None, "{weak}");
        }
        let changed = ("last-modified", "Mon, 01 Jan 2024 00:00:00 GMT");
        let dated = |date| Validator::of(&headers(&[("etag", "W/\"a\""), changed, ("date", date)]));
        assert!(matches!(dated("Mon, 01 Jan 2024 00:01:00 GMT"), Some(Validator::Modified(_))));
        for recent in ["Mon, 01 Jan 2024 00:00:59 GMT", "Sun, 31 Dec 2023 00:00:00 GMT", "yesterday"] {
            assert_eq!(dated(recent), None, "{recent}");
        }
        assert_eq!(Validator::of(&headers(&[changed])), None, "as of when is not told");
        assert_eq!(Validator::of(&headers(&[("etag", "\"a\""), ("etag", "\"b\"")])), None);
    }

    #[test]
    fn a_signature_is_no_part_of_a_place_and_all_else_is() {
        let of = |text: &str| resource(&Url::parse(text).expect("a URL"));
        let same = |a: &str, b: &str| assert_eq!(of(a), of(b));
        same("https://a.test/v?X-Amz-Signature=1&X-Amz-Date=2", "https://a.test/v?X-Amz-Signature=3#t");
        same(
            "https://a.test/v?id=7&Expires=1&Signature=x&Key-Pair-Id=k",
            "https://a.test/v?id=7&Expires=2&Signature=y",
        );
        same("https://a.test/v?sv=1&se=2&sr=b&sig=3", "https://a.test/v?sv=1&se=9&sr=b&sig=8");
        for (a, b) in [
            ("https://a.test/v?id=7", "https://a.test/v?id=8"),
            ("https://a.test/v?se=7", "https://a.test/v?se=8"),
            ("https://a.test/v", "https://b.test/v"),
            ("https://a.test/v", "http://a.test/v"),
            ("https://a.test/v", "https://a.test:444/v"),
            ("https://a.test/v?versionId=1&X-Amz-Date=2", "https://a.test/v?versionId=2&X-Amz-Date=2"),
        ] {
            assert_ne!(of(a), of(b));
        }
    }
}
