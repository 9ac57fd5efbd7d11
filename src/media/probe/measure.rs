//! How long a video is, how many frames it has, and when they are shown: from what a header claims and what was counted.
//!
//! Headers lie, so they are believed only where they agree with each other. Pure.

use super::Timing;
use super::report::{Format, Stream, ratio, seconds};

/// What the header says. Length in seconds from the first frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) length: Option<f64>,
    pub(super) frames: Option<u64>,
    /// The rate all time stamps are multiples of.
    pub(super) rate: Option<f64>,
    pub(super) average: Option<f64>,
}

/// What a video turned out to be.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) length: f64,
    pub(super) frames: u64,
    pub(super) fps: f64,
    pub(super) timing: Timing,
}

impl Header {
    /// From ffprobe's report. `first` is the first frame's time in microseconds as the file counts.
    pub(super) fn new(format: &Format, stream: &Stream, first: i64) -> Self {
        let first = first as f64 / 1e6;
        let end =
            stream.own_length().map(|length| seconds(stream.start_time.as_deref()).unwrap_or(first) + length).or_else(
                || Some(seconds(format.start_time.as_deref()).unwrap_or(0.0) + seconds(format.duration.as_deref())?),
            );
        let rate = |text: &Option<String>| {
            text.as_deref().and_then(|text| ratio(text, '/')).filter(|rate| (0.001..=1000.0).contains(rate))
        };
        Self {
            length: end.map(|end| end - first).filter(|length| length.is_finite() && *length > 0.0),
            frames: stream.frames(),
            rate: rate(&stream.r_frame_rate),
            average: rate(&stream.avg_frame_rate),
        }
    }

    /// A constant rate, when length, count and rate all say so.
    pub(super) fn agreed(&self) -> Option<Measured> {
        let (length, frames, fps) = (self.length?, self.frames?, self.rate?);
        let agrees = (frames as f64 / fps - length).abs() * fps < 1.0;
        let average = self.average.is_none_or(|average| (average / fps - 1.0).abs() < 0.001);
        (agrees && average).then_some(Measured { length, frames, fps, timing: Timing::Steady(None) })
    }

    /// A guess, where counting is out of the question.
    pub(super) fn estimated(&self) -> Option<Measured> {
        let length = self.length?;
        let fps = self.frames.map(|frames| frames as f64 / length).or(self.average).or(self.rate)?;
        let frames = self.frames.unwrap_or_else(|| (length * fps).round().max(1.0) as u64);
        Some(Measured { length, frames, fps, timing: Timing::Steady(None) })
    }
}

/// How long before it is shown a frame may be decoded, in microseconds.
const MAX_EARLY: i64 = 2_000_000;

/// Packet times on their way in.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Microseconds from the first frame.
    times: Vec<i64>,
    longest: i64,
    /// Packets without any time.
    unknown: usize,
    /// Whether some had only a time to decode at, as in AVI.
    by_decoding: bool,
}

impl Scan {
    /// Times that an index lists, in microseconds as the file counts.
    pub(super) fn listed(times: &[i64], first: i64) -> Self {
        let times = times.iter().filter(|time| **time >= first).map(|time| time.saturating_sub(first)).collect();
        Self { times, ..Self::default() }
    }

    /// Frames a second on the average.
    pub(super) fn average(&self) -> Option<f64> {
        let last = *self.times.last().filter(|last| **last > 0)?;
        Some((self.times.len() - 1) as f64 * 1e6 / last as f64)
    }

    /// Takes a line `pts,dts,duration,flags`. False when there are more than `most`.
    pub(super) fn add(&mut self, line: &str, first: i64, most: usize) -> bool {
        let mut fields = line.trim_end_matches(',').split(',');
        let (pts, dts, duration, flags) = (fields.next(), fields.next(), fields.next(), fields.next());
        // Discarded ones are before the start of an edit list: decoded, never shown.
        let Some(flags) = flags.filter(|flags| !flags.contains('D')) else { return true };
        let micros = |text: Option<&str>| seconds(text).map(|seconds| (seconds * 1e6).round() as i64);
        let shown = micros(pts);
        self.by_decoding |= shown.is_none() && micros(dts).is_some();
        match shown.or_else(|| micros(dts)) {
            // What is before the first frame that decodes belongs to pictures that were cut away.
            Some(time) if time < first && (shown.is_some() || first.saturating_sub(time) > MAX_EARLY) => {}
            Some(time) => {
                self.times.push(time.saturating_sub(first));
                self.longest = self.longest.max(micros(duration).unwrap_or(0));
            }
            None if flags.is_empty() => {}
            None => self.unknown += 1,
        }
        self.times.len() + self.unknown <= most
    }

    /// What comes of it all. `None` without a frame.
    pub(super) fn measured(mut self, header: &Header) -> Option<Measured> {
        self.times.sort_unstable();
        self.times.dedup();
        // Frames are decoded before they are shown, by as much as the first one is.
        if self.by_decoding
            && let Some(early) = self.times.first().copied().filter(|first| *first < 0)
        {
            self.times.iter_mut().for_each(|time| *time = time.saturating_sub(early));
        }
        let (last, frames) = (*self.times.last()?, self.times.len() as u64);
        // Streams whose packets carry times only now and then can be counted, not listed.
        if self.unknown as u64 > frames / 100 {
            let length = header.length.unwrap_or((last + self.longest) as f64 / 1e6);
            let frames = frames + self.unknown as u64;
            let rate = header.rate.filter(|rate| (frames as f64 / rate - length).abs() * rate < 2.0);
            let fps = rate.unwrap_or(frames as f64 / length);
            return (length > 0.0).then_some(Measured { length, frames, fps, timing: Timing::Steady(None) });
        }
        let apart = if frames > 1 { last as f64 / (frames - 1) as f64 } else { 0.0 };
        let shown = match (apart > 0.0, header.rate.or(header.average)) {
            (true, _) => apart,
            (false, Some(rate)) => 1e6 / rate,
            (false, None) => (self.longest as f64).max(40_000.0),
        };
        let counted = (last as f64 + shown) / 1e6;
        // The header is finer than the count where the two agree to a frame.
        let length = header.length.filter(|length| (length - counted).abs() * 1e6 < shown).unwrap_or(counted);
        let constant = [header.rate, header.average].into_iter().flatten().find(|rate| self.is_constant(*rate));
        Some(match constant {
            Some(fps) => Measured { length, frames, fps, timing: Timing::Steady(Some(self.times.into())) },
            None => {
                Measured { length, frames, fps: frames as f64 / length, timing: Timing::Varying(self.times.into()) }
            }
        })
    }

    /// Whether frame `i` is at `i / fps`, give or take a rounding of time stamps.
    fn is_constant(&self, fps: f64) -> bool {
        let tolerance = (250_000.0 / fps).min(5_000.0);
        self.times.iter().enumerate().all(|(i, time)| (i as f64 * 1e6 / fps - *time as f64).abs() <= tolerance)
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::clock;
    use super::*;

    fn header(length: Option<f64>, rate: f64) -> Header {
        Header { length, frames: None, rate: Some(rate), average: Some(rate) }
    }

    fn scan(lines: impl IntoIterator<Item = String>, first: i64) -> Scan {
        let mut scan = Scan::default();
        for line in lines {
            assert!(scan.add(&line, first, 1000));
        }
        scan
    }

    #[test]
    fn packets_out_of_order_at_a_steady_rate_are_constant() {
        let order = [0, 3, 1, 2, 6, 4, 5];
        let lines = order.map(|i| format!("{:.6},N/A,0.040000,__", 2.0 + f64::from(i) * 0.04));
        let measured = scan(lines, 2_000_000).measured(&header(None, 25.0)).expect("frames");
        assert_eq!(measured.frames, 7);
        assert!(matches!(measured.timing, Timing::Steady(Some(times)) if times.len() == 7));
        assert!((measured.length - 0.28).abs() < 1e-6);
    }

    #[test]
    fn times_to_decode_at_are_moved_to_where_frames_are_shown() {
        let lines = ["N/A,0.00,0.04,K_", "N/A,0.04,0.04,__", "N/A,0.08,0.04,__"];
        let measured = scan(lines.map(str::to_owned), 40_000).measured(&header(None, 25.0)).expect("frames");
        assert_eq!(measured.timing.times(), Some([0, 40_000, 80_000].as_slice()));
    }

    #[test]
    fn gaps_are_listed_and_discarded_packets_left_out() {
        let lines = ["-0.04,-0.08,0.04,KD", "0.00,0.00,0.04,K_,", "0.04,0.04,0.04,__,", "", "1.00,1.00,0.04,__"];
        let measured = scan(lines.map(str::to_owned), 0).measured(&header(Some(1.04), 25.0)).expect("frames");
        assert_eq!(measured.timing, Timing::Varying([0, 40_000, 1_000_000].into()));
        assert_eq!((measured.frames, measured.length), (3, 1.04));
    }

    #[test]
    fn a_header_that_agrees_is_believed_and_one_that_does_not_is_not() {
        let agreed = |frames, length| {
            Header { length: Some(length), frames: Some(frames), rate: Some(25.0), average: Some(25.0) }.agreed()
        };
        assert!(agreed(100, 4.0).is_some());
        assert!(agreed(100, 2.7).is_none());
        assert!(agreed(250, 20.0).is_none());
    }

    #[test]
    fn nonsense_from_a_file_gives_no_panic() {
        for line in [",,,", "nan,inf,1e300,K", "9e99,1,1,_", "a", "-9999999999,0,0,__"] {
            let scan = scan([line.to_owned()], i64::MAX / 2);
            assert!(scan.measured(&header(None, 25.0)).is_none(), "{line}");
        }
        assert_eq!(ratio("0/0", '/'), None);
        assert_eq!(clock("x"), None);
    }
}
