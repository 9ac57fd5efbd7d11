//! Keys that callers show: how they are kept, and the file they are kept in. Pure, but for reading that file.
//!
//! What is kept of a key is its SHA-256. That is enough because keys are 256 random bits (`paravt keys new`): what can't be
//! guessed needs no slow hash, which would only let strangers keep the server busy with wrong keys. Keys that people make up
//! are another matter, so short ones are refused.
//!
//! No error here quotes a file or a setting: somebody may have put a key where its hash belongs.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Deserializer, de};
use sha2::{Digest as _, Sha256};
use toml::value::{Datetime, Offset};

/// Longest name of a key.
const MAX_NAME: usize = 64;
/// Shortest and longest key that is taken from the configuration.
const MIN_KEY: usize = 20;
/// Longest key there is: what a caller shows beyond this is not even hashed.
pub(crate) const MAX_KEY: usize = 256;
/// Most entries of a file.
const MAX_ENTRIES: usize = 10_000;

/// SHA-256 of a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// Of a key as its holder has it.
    #[must_use]
    pub fn of(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes()).into())
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// As the file has it: 64 hexadecimal digits.
    #[must_use]
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn from_hex(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() {
            return None;
        }
        let value = |digit: u8| char::from(digit).to_digit(16);
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::try_from(value(pair[0])? << 4 | value(pair[1])?).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyDigest(…)")
    }
}

impl<'de> Deserialize<'de> for KeyDigest {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        let text = String::deserialize(reader)?;
        Self::from_hex(&text).ok_or_else(|| de::Error::custom("must be 64 hexadecimal digits"))
    }
}

/// Keys of the configuration itself: written plain there, kept as hashes from the moment they are read.
///
/// A list, or one text with commas between them, so that an environment variable can hold them as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlainKeys(Vec<KeyDigest>);

impl PlainKeys {
    /// Their hashes, in order.
    #[must_use]
    pub fn digests(&self) -> &[KeyDigest] {
        &self.0
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for PlainKeys {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        let wrong = || de::Error::custom("must be a list of keys, each of 20 to 256 visible ASCII characters");
        // serde's own errors quote what they found.
        let value = toml::Value::deserialize(reader).map_err(|_| wrong())?;
        let texts: Vec<String> = match value {
            toml::Value::String(text) => {
                text.split(',').map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned).collect()
            }
            toml::Value::Array(items) => {
                let texts =
                    items.into_iter().map(|item| if let toml::Value::String(key) = item { Some(key) } else { None });
                texts.collect::<Option<_>>().ok_or_else(wrong)?
            }
            _ => return Err(wrong()),
        };
        let is_key =
            |key: &String| (MIN_KEY..=MAX_KEY).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic());
        if !texts.iter().all(is_key) {
            return Err(wrong());
        }
        Ok(Self(texts.iter().map(|key| KeyDigest::of(key)).collect()))
    }
}

/// What the holder of a key may ask of the server. `None`: as much as anybody.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeyLimits {
    /// Episodes at work at the same time; more wait.
    pub max_running: Option<usize>,
    /// Episodes that may wait; more get 429.
    pub max_queued: Option<usize>,
    /// Questions a minute, evenly: after a burst of so many, one every `60 / requests_per_minute` seconds.
    pub requests_per_minute: Option<u32>,
}

/// A key as the file has it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    /// What it is called in logs and in the queue. Letters, digits, `-._`, no two the same.
    pub name: String,
    /// Hash of the key.
    pub sha256: KeyDigest,
    /// What its holder may ask.
    #[serde(default)]
    pub limits: KeyLimits,
    /// Models it may use, by the names of their cards. Not given: all.
    #[serde(default)]
    pub models: Option<Vec<String>>,
    /// From when on it is no key any more: a date (its first moment) or a date and time, in UTC where no offset is given.
    #[serde(default)]
    expires: Option<Datetime>,
}

impl KeyEntry {
    /// Seconds since 1970 from which on it is no key any more.
    #[must_use]
    pub fn expires_at(&self) -> Option<i64> {
        self.expires.as_ref().and_then(seconds_since_1970)
    }

    /// Whether a key may be called so. `config-1`, `config-2` … are those of `server.keys` in their order: a name is whose files
    /// and whose queue it is, so where that matters, and keys come and go, they belong into a file, with names of their own.
    #[must_use]
    pub fn is_name(text: &str) -> bool {
        (1..=MAX_NAME).contains(&text.len())
            && !text.starts_with("config-")
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    }

    fn problem(&self) -> Option<&'static str> {
        let limits = self.limits;
        if !Self::is_name(&self.name) {
            Some("a name must be 1 to 64 letters, digits or -._, and not begin with config-")
        } else if limits.max_running == Some(0) || limits.requests_per_minute == Some(0) {
            Some("max_running and requests_per_minute must be above 0: remove a key that may do nothing")
        } else if self.expires.is_some() && self.expires_at().is_none() {
            Some("expires must be a date, or a date and time")
        } else {
            None
        }
    }
}

/// A file of keys that can't be used. Names lines, and never what stands there.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// It is not there, or can't be read.
    #[error("can't read the keys in {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// It makes no sense.
    #[error("the keys in {path} are not valid: {problem}")]
    Invalid {
        /// The file.
        path: String,
        /// What is wrong.
        problem: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    keys: Vec<KeyEntry>,
}

/// Reads a file of keys. Blocks.
///
/// # Errors
/// [`KeysError`].
pub fn read_keys(path: &Path) -> Result<Vec<KeyEntry>, KeysError> {
    let shown = || path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| KeysError::Read { path: shown(), source })?;
    parse_keys(&text).map_err(|problem| KeysError::Invalid { path: shown(), problem })
}

/// Entries of a file's text, or what is wrong with it.
fn parse_keys(text: &str) -> Result<Vec<KeyEntry>, String> {
    let file: File = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let place = before.map_or_else(String::new, |before| format!(" (line {})", before.matches('\n').count() + 1));
        format!("not TOML, or not [[keys]] with name, sha256, limits, models and expires{place}")
    })?;
    if file.keys.len() > MAX_ENTRIES {
        return Err(format!("more than {MAX_ENTRIES} entries"));
    }
    let mut names = std::collections::HashSet::new();
    let mut digests = std::collections::HashSet::new();
    for (place, entry) in file.keys.iter().enumerate() {
        let twice = || (!names.insert(&entry.name)).then_some("its name is another's too");
        let same = || (!digests.insert(entry.sha256)).then_some("its sha256 is another's too");
        if let Some(problem) = entry.problem().or_else(twice).or_else(same) {
            return Err(format!("entry {}: {problem}", place + 1));
        }
    }
    Ok(file.keys)
}

/// `None` without a date.
fn seconds_since_1970(when: &Datetime) -> Option<i64> {
    let date = when.date?;
    // Howard Hinnant's `days_from_civil`: years begin in March, so that the leap day is the last.
    let month = i64::from(date.month);
    let year = i64::from(date.year) - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day = (153 * ((month + 9) % 12) + 2) / 5 + i64::from(date.day) - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day - 719_468;
    let seconds =
        when.time.map_or(0, |time| i64::from(time.hour) * 3600 + i64::from(time.minute) * 60 + i64::from(time.second));
    let ahead = match when.offset {
        Some(Offset::Custom { minutes }) => i64::from(minutes) * 60,
        Some(Offset::Z) | None => 0,
    };
    Some(days * 86_400 + seconds - ahead)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";

    fn entry(rest: &str) -> String {
        format!("[[keys]]\nname = \"a\"\nsha256 = \"{HASH}\"\n{rest}\n")
    }

    #[test]
    fn a_file_holds_names_hashes_limits_models_and_expiry() {
        let text =
            entry("limits = { max_running = 2, requests_per_minute = 60 }\nmodels = [\"m\"]\nexpires = 2027-01-01");
        let keys = parse_keys(&text).expect("valid");
        let limits = KeyLimits { max_running: Some(2), max_queued: None, requests_per_minute: Some(60) };
        assert_eq!((keys[0].name.as_str(), keys[0].limits), ("a", limits));
        assert_eq!(keys[0].sha256, KeyDigest::of("foo"));
        assert_eq!(keys[0].sha256.hex(), HASH);
        assert_eq!(keys[0].models.as_deref(), Some(&["m".to_owned()][..]));
        assert_eq!(keys[0].expires_at(), Some(1_798_761_600));
        assert!(parse_keys("").expect("valid").is_empty());
        assert_eq!(parse_keys(&entry("")).expect("valid")[0].expires_at(), None);
    }

    #[test]
    fn times_are_utc_where_they_do_not_say() {
        for (written, seconds) in [
            ("1970-01-01", 0),
            ("1969-12-31T23:59:59Z", -1),
            ("2000-02-29T12:30:05", 951_827_405),
            ("2000-03-01", 951_868_800),
            ("2100-03-01", 4_107_542_400),
            ("2026-11-30T14:00:00+02:00", 1_796_040_000),
            ("2026-11-30T12:00:00.75Z", 1_796_040_000),
        ] {
            let keys = parse_keys(&entry(&format!("expires = {written}"))).expect(written);
            assert_eq!(keys[0].expires_at(), Some(seconds), "{written}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_and_never_quoted() {
        let slip = "paravt-thiswasmeanttobesecret";
        for text in [
            format!("keys = [\"{slip}\"]"),
            format!("[[keys]]\nname = \"a\"\nsha256 = \"{slip}\""),
            format!("{slip} = 1"),
            format!("[[keys]]\n{slip} ="),
            format!("[[keys]]\nname = \"{slip}"),
            entry(&format!("limits = {{ max_running = \"{slip}\" }}")),
            entry(&format!("{slip} = 1")),
            entry("expires = 12:00:00"),
            entry("limits = { max_running = 0 }"),
            entry("limits = { requests_per_minute = 0 }"),
            entry("").replace("\"a\"", "\"a b\""),
            entry("").replace("\"a\"", "\"\""),
            entry("") + &entry(""),
            entry("") + &entry("").replace("\"a\"", "\"b\""),
        ] {
            let problem = parse_keys(&text).expect_err(&text);
            assert!(!problem.contains("secret") && !problem.contains(HASH), "{problem}");
        }
        assert!(parse_keys("\n[[keys]]\nname = 5\n").expect_err("a number").contains("line 3"));
    }

    #[test]
    fn keys_of_the_configuration_are_hashed_at_once_and_never_shown() {
        #[derive(Debug, Deserialize)]
        struct Only {
            keys: PlainKeys,
        }
        let (one, two) = ("paravt-0123456789abcdef", "paravt-fedcba9876543210");
        for text in [format!("keys = [\"{one}\", \"{two}\"]"), format!("keys = \" {one},{two}, \"")] {
            let only: Only = toml::from_str(&text).expect("valid");
            assert_eq!(only.keys.digests(), [KeyDigest::of(one), KeyDigest::of(two)]);
            assert!(!format!("{only:?}").contains("0123456789"));
        }
        for text in
            ["keys = [\"secret\"]", "keys = [5]", "keys = { secret = 1 }", "keys = [\"secret key of many letters\"]"]
        {
            let error = text.parse::<toml::Table>().expect("TOML").try_into::<Only>().expect_err(text);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
