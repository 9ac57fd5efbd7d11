//! Time inside a video. Never a bare `f64` across a module boundary.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A point in a video, or a length of video: whole microseconds, counted from the video's first frame.
///
/// Microseconds hold ninety-minute matches and 1/90000 s clocks without drift, and make times `Eq` and `Hash`.
/// On the wire it is a number of seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MediaTime(i64);

impl MediaTime {
    /// The first frame.
    pub const ZERO: Self = Self(0);

    /// From seconds, rounded to the microsecond. `None` for NaN, infinities, and what lies beyond ±10,000 years.
    #[must_use]
    pub fn from_seconds(seconds: f64) -> Option<Self> {
        let micros = (seconds * 1e6).round();
        (micros.is_finite() && micros.abs() < 3.2e17).then_some(Self(micros as i64))
    }

    /// From whole microseconds.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Seconds.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Whole microseconds.
    #[must_use]
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// So much later.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// So much earlier; how far apart two points are.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `MM:SS`, minutes not wrapped at the hour, seconds cut, as the sub-agent prompts were written.
    #[must_use]
    pub fn clock(self) -> String {
        let seconds = self.0.max(0) / 1_000_000;
        format!("{:02}:{:02}", seconds / 60, seconds % 60)
    }
}

impl fmt::Display for MediaTime {
    /// Seconds with one decimal and no unit, as prompts write the times of frames: `12.0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", self.seconds())
    }
}

/// A time that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a time in seconds, MM:SS or HH:MM:SS")]
pub struct ParseTimeError;

impl FromStr for MediaTime {
    type Err = ParseTimeError;

    /// Reads `12`, `12.5`, `12.5s`, `01:05`, `1:02:03.5`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let text = text.strip_suffix('s').unwrap_or(text).trim_end();
        let fields: Vec<&str> = text.split(':').collect();
        if fields.len() > 3 {
            return Err(ParseTimeError);
        }
        let negative = text.starts_with('-');
        let mut seconds = 0.0_f64;
        for (place, field) in fields.iter().enumerate() {
            let last = place + 1 == fields.len();
            let digits = field.strip_prefix('-').filter(|_| place == 0).unwrap_or(field);
            let plain = digits.bytes().all(|b| b.is_ascii_digit() || (last && b == b'.'));
            if digits.is_empty() || !plain {
                return Err(ParseTimeError);
            }
            seconds = seconds * 60.0 + digits.parse::<f64>().map_err(|_| ParseTimeError)?;
        }
        Self::from_seconds(if negative { -seconds } else { seconds }).ok_or(ParseTimeError)
    }
}

impl Serialize for MediaTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.seconds())
    }
}

impl<'de> Deserialize<'de> for MediaTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        Self::from_seconds(seconds).ok_or_else(|| serde::de::Error::custom(ParseTimeError))
    }
}

/// A stretch of video, `start <= end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct TimeSpan {
    /// First instant.
    pub start: MediaTime,
    /// Last instant.
    pub end: MediaTime,
}

impl TimeSpan {
    /// A span, or `None` when it would end before it starts.
    #[must_use]
    pub fn new(start: MediaTime, end: MediaTime) -> Option<Self> {
        (start <= end).then_some(Self { start, end })
    }
}

impl fmt::Display for TimeSpan {
    /// `12.0s - 24.0s`, as tool responses write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s - {}s", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_seconds_and_clocks() {
        for (text, seconds) in [("12", 12.0), ("12.5s", 12.5), ("01:05", 65.0), ("1:02:03.5", 3723.5), ("-3", -3.0)] {
            assert_eq!(text.parse::<MediaTime>().map(MediaTime::seconds), Ok(seconds), "{text}");
        }
    }

    /// The times of frames as qwen-vl-utils writes them, from numbers of frames.
    #[test]
    fn frames_are_labelled_as_the_reference_labels_them() {
        #[derive(Deserialize)]
        struct Oracle {
            timestamps: Vec<Timestamps>,
        }
        #[derive(Deserialize)]
        struct Timestamps {
            fps: f64,
            indices: Vec<u64>,
            text: Vec<String>,
        }
        let oracle = include_str!("../tests/fixtures/frame_sampling.json");
        let cases = serde_json::from_str::<Oracle>(oracle).expect("the fixture reads").timestamps;
        assert_eq!(cases.len(), 40);
        let mut differing = Vec::new();
        for case in cases {
            assert_eq!(case.indices.len(), case.text.len());
            for (index, text) in case.indices.iter().zip(&case.text) {
                let time = MediaTime::from_seconds(*index as f64 / case.fps).expect("finite");
                let label = format!("<{time} seconds>");
                if label != *text {
                    differing.push((case.fps, *index, label, text.clone()));
                }
            }
        }
        // Frame 85200 at 24000/1001 is shown at 3553.55 s sharp. The reference divides to 3553.5499999999997, an error in
        // the last bit that decides its rounding. Whole microseconds have no such error: 3553.55 is rounded up.
        let known = (24_000.0 / 1001.0, 85_200, "<3553.6 seconds>".to_owned(), "<3553.5 seconds>".to_owned());
        assert_eq!(differing, [known]);
    }

    #[test]
    fn refuses_what_is_no_time() {
        for text in ["", "abc", "1:2:3:4", "nan", "inf", "1e9", "1..2", ":", "1:-2", "٣"] {
            assert!(text.parse::<MediaTime>().is_err(), "{text}");
        }
        assert_eq!(MediaTime::from_seconds(f64::NAN), None);
    }

    #[test]
    fn clock_counts_minutes_past_the_hour() {
        let time = MediaTime::from_seconds(3723.9).expect("finite");
        assert_eq!(time.clock(), "62:03");
    }
}
