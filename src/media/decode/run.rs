//! One run of ffmpeg: its arguments, and its pictures paired with the times it tells.
//!
//! This file knows ffmpeg's arguments and output, and nothing of how a video's frames are reached.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStdin;
use tokio_util::sync::CancellationToken;

use super::super::MediaError;
use super::super::ffmpeg::{self, Exit, Ffmpeg, Input, Program};
use super::super::plan::Target;
use super::super::probe::CODECS;
use crate::types::FrameSize;

/// What a run decodes.
#[derive(Debug)]
pub(super) struct Run {
    /// Everything up to the input, and the input.
    pub(super) input: Vec<OsString>,
    /// The stream's number in the input.
    pub(super) stream: u32,
    /// Selects frames, with a comma at its end; empty for all.
    pub(super) select: String,
    /// From a decoded frame to RGB.
    pub(super) filters: String,
    /// Frames to write; without it all.
    pub(super) limit: Option<usize>,
    /// The pictures' size.
    pub(super) size: FrameSize,
}

impl Run {
    /// Runs ffmpeg and gives each picture with its time in microseconds as the file counts. `feed` writes its standard
    /// input, where that is a pipe. Damaged files give what there is.
    ///
    /// # Errors
    /// [`MediaError::Timeout`], [`MediaError::Killed`], and what feeding fails with.
    pub(super) async fn go<Feed>(
        self,
        ffmpeg: &Ffmpeg,
        input: Input,
        feed: impl FnOnce(ChildStdin) -> Feed,
        emit: impl FnMut(i64, Bytes) + Send,
    ) -> Result<(), MediaError>
    where
        Feed: Future<Output = Result<(), MediaError>>,
    {
        let bytes = 3 * self.size.width as usize * self.size.height as usize;
        let limit = self.limit;
        let arguments = self.arguments(passthrough(ffmpeg.version().await?));
        let mut child = ffmpeg.start(Program::Ffmpeg, arguments, input).await?;
        let stdin = child.take_stdin();
        let (mut stdout, mut stderr, control) = child.split();
        let pairs = Mutex::new(Pairs { times: VecDeque::new(), pictures: VecDeque::new(), emit });
        let pair = |take: &dyn Fn(&mut Pairs<_>)| {
            let mut pairs = pairs.lock().unwrap_or_else(PoisonError::into_inner);
            take(&mut pairs);
            pairs.go();
        };
        // Once nothing more is read, be it that the child is gone, nothing more need be fed: a feed that waits for the
        // network would not notice.
        let over = CancellationToken::new();
        let read = async {
            let mut count = 0;
            while limit.is_none_or(|limit| count < limit) {
                let mut picture = vec![0; bytes];
                if stdout.read_exact(&mut picture).await.is_err() {
                    break;
                }
                count += 1;
                let picture = Bytes::from(picture);
                pair(&|pairs| pairs.pictures.push_back((count - 1, picture.clone())));
            }
            // What would follow is not wanted. A child that ended by itself, or was killed, is left to say so.
            if limit.is_some_and(|limit| count >= limit) {
                control.stop();
            }
            over.cancel();
        };
        // ffmpeg takes SIGTERM as a wish to end early and well.
        let mut told_to_end = false;
        let tell = ffmpeg::each_line(&mut stderr, |line| {
            told_to_end |= line.starts_with("Exiting normally, received signal 15");
            if let Some(told) = told_time(line) {
                pair(&|pairs| pairs.times.push_back(told));
            }
        });
        let feed = async {
            match stdin {
                Some(stdin) => over.run_until_cancelled(feed(stdin)).await.unwrap_or(Ok(())),
                None => Ok(()),
            }
        };
        let fed = tokio::join!(read, tell, feed).2;
        match control.exit().await {
            Exit::TimedOut => Err(MediaError::Timeout("decoding")),
            Exit::Killed => Err(MediaError::Killed),
            Exit::Done(_) if told_to_end => Err(MediaError::Killed),
            Exit::Done(_) | Exit::Stopped => fed,
        }
    }

    fn arguments(self, passthrough: &str) -> Vec<OsString> {
        // `info`, because that is where showinfo speaks.
        let mut arguments: Vec<OsString> = ["-v", "info", "-nostats", "-filter_threads", "1"].map(Into::into).into();
        arguments.extend(self.input);
        let filter = format!("{}settb=1/1000000,{},showinfo", self.select, self.filters);
        arguments.extend(
            ["-map", &format!("0:{}", self.stream), "-vf", &filter, passthrough, "passthrough"].map(Into::into),
        );
        if let Some(limit) = self.limit {
            arguments.extend(["-frames:v".into(), limit.to_string().into()]);
        }
        arguments.extend(["-c:v", "rawvideo", "-f", "rawvideo", "pipe:1"].map(Into::into));
        arguments
    }
}

/// Pictures and times on their way in, each in order and with the picture's number in this run.
struct Pairs<Emit> {
    times: VecDeque<(usize, i64)>,
    pictures: VecDeque<(usize, Bytes)>,
    emit: Emit,
}

impl<Emit: FnMut(i64, Bytes)> Pairs<Emit> {
    fn go(&mut self) {
        while let (Some((told, time)), Some((number, _))) = (self.times.front().copied(), self.pictures.front()) {
            match told.cmp(number) {
                Ordering::Less => drop(self.times.pop_front()),
                // Its time was lost among what other threads of ffmpeg said: better no picture than one with another's time.
                Ordering::Greater => drop(self.pictures.pop_front()),
                Ordering::Equal => {
                    self.times.pop_front();
                    if let Some((_, picture)) = self.pictures.pop_front() {
                        (self.emit)(time, picture);
                    }
                }
            }
        }
    }
}

/// Options for decoding, before the input. Time stamps stay those of the file, so that a seek does not move them.
///
/// `corrupt`: whether pictures come that may have been predicted from some that were not decoded. After a start in the middle
/// of a group they are left out, so that they are noticed to be missing; but a decoder that holds back pictures until it is
/// sure would lose the last ones of an open group.
pub(super) fn decoding(max_pixels: u64, threads: usize, corrupt: bool) -> Vec<String> {
    let corrupt = if corrupt { "+output_corrupt" } else { "-output_corrupt" };
    let fixed = ["-nostdin", "-copyts", "-flags", corrupt].map(str::to_owned);
    // The probe saw the first picture's size; a later one may claim another.
    let bounds = ["-threads", &threads.to_string(), "-max_pixels", &max_pixels.to_string(), "-codec_whitelist", CODECS];
    fixed.into_iter().chain(bounds.map(str::to_owned)).collect()
}

/// A filter that passes the first frame at or after each target's threshold.
///
/// It counts the thresholds passed by each frame, and passes a frame when there are more than at the frame before.
pub(super) fn select(first: i64, targets: &[Target]) -> String {
    let passed: Vec<String> = targets.iter().map(|target| format!("gte(t,{})", decimal(first + target.from))).collect();
    format!("select='st(0,{});st(2,gt(ld(0),ld(1)));st(1,ld(0));ld(2)',", passed.join("+"))
}

/// A filter that passes all frames from a target's threshold on.
pub(super) fn select_from(first: i64, target: &Target) -> String {
    format!("select='gte(t,{})',", decimal(first + target.from))
}

/// Microseconds as seconds, exactly.
fn decimal(micros: i64) -> String {
    let sign = if micros < 0 { "-" } else { "" };
    format!("{sign}{}.{:06}", micros.unsigned_abs() / 1_000_000, micros.unsigned_abs() % 1_000_000)
}

/// The option that keeps ffmpeg from repeating and dropping frames: `-fps_mode` since 5.1, `-vsync` before.
fn passthrough(version: &str) -> &'static str {
    let mut numbers = version.trim_start_matches('n').split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|text| text.parse::<u32>().ok());
    match (number(), number()) {
        (Some(5), Some(0)) | (Some(0..=4), _) => "-vsync",
        // Builds from the repository have no number; they are new.
        _ => "-fps_mode",
    }
}

/// The number and the time of a picture in a line of showinfo, in the time base set just before it.
fn told_time(line: &str) -> Option<(usize, i64)> {
    // Only the filter's own lines start like this; what a file says of itself is indented.
    let rest = line.strip_prefix("[Parsed_showinfo_")?;
    let (_, rest) = rest.split_once("] n:")?;
    let (number, rest) = rest.split_once(" pts:")?;
    Some((number.trim().parse().ok()?, rest.split_whitespace().next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn showinfo_lines_are_read_and_others_are_not() {
        let line = "[Parsed_showinfo_4 @ 0x560d] n:   0 pts:110480000 pts_time:110.48  pos:    64108 fmt:rgb24";
        assert_eq!(told_time(line), Some((0, 110_480_000)));
        assert_eq!(told_time("[Parsed_showinfo_4 @ 0x5] n:   1 pts: -40000 pts_time:-0.04 "), Some((1, -40_000)));
        assert_eq!(told_time("[Parsed_showinfo_4 @ 0x5] n:   1 pts:NOPTS pts_time:NOPTS"), None);
        assert_eq!(told_time("    title : [Parsed_showinfo_4 @ 0x5] n: 1 pts: 5 "), None);
        assert_eq!(told_time("[Parsed_showinfo_4 @ 0x5] config in time_base: 1/1000000, frame_rate: 25/1"), None);
    }

    #[tokio::test]
    async fn a_feed_that_waits_ends_with_its_reader() {
        let ffmpeg = Ffmpeg::find(&crate::config::MediaConfig::default()).expect("these tests need ffmpeg");
        let run = Run {
            input: super::super::super::probe::spliced("matroska", &[""; 0]),
            stream: 0,
            select: String::new(),
            filters: "null".to_owned(),
            limit: None,
            size: FrameSize { width: 16, height: 16 },
        };
        let waits = |stdin| async {
            drop(stdin);
            std::future::pending().await
        };
        let mut count = 0;
        let ended = run.go(&ffmpeg, Input::Pipe, waits, |_, _| count += 1).await;
        assert_eq!((ended.is_ok(), count), (true, 0));
    }

    #[test]
    fn a_picture_whose_time_is_lost_does_not_shift_the_others() {
        let mut pairs = Vec::new();
        let pictures = (0_u8..5).map(|number| (usize::from(number), Bytes::from(vec![number]))).collect();
        let times = [(0, 100), (2, 300), (3, 400)].into();
        Pairs { times, pictures, emit: |time, picture: Bytes| pairs.push((time, picture[0])) }.go();
        assert_eq!(pairs, [(100, 0), (300, 2), (400, 3)]);
    }

    #[test]
    fn the_option_follows_the_version() {
        for (version, option) in [
            ("4.4.2-0ubuntu0.22.04.1", "-vsync"),
            ("5.0.1", "-vsync"),
            ("5.1.9-0+deb12u1", "-fps_mode"),
            ("7.1", "-fps_mode"),
            ("n6.1", "-fps_mode"),
            ("N-118000-g1a2b3c", "-fps_mode"),
        ] {
            assert_eq!(passthrough(version), option, "{version}");
        }
    }

    #[test]
    fn microseconds_are_written_exactly() {
        assert_eq!(decimal(-40_000), "-0.040000");
        assert_eq!(decimal(5_137_000_001), "5137.000001");
    }
}
