//! Frames by presentation time: which ffmpeg runs get them, and putting together what comes back.
//!
//! Every frame carries the time that the decoder gave it, never the one that was asked for. This file knows ffmpeg's
//! arguments and output; [`super::plan`] decides which frames.
//!
//! Pictures are turned as displayed and become 8-bit RGB. High dynamic range is cut to 8 bits, not tone-mapped, and
//! interlaced pictures stay woven: both are what the reference's decoders give.

use std::ffi::OsString;

use bytes::Bytes;
use tokio::io::AsyncReadExt as _;

use super::MediaError;
use super::ffmpeg::{self, Exit, Ffmpeg, Program};
use super::plan::Target;
use super::probe::{self, Probed};
use super::source::Local;
use crate::types::{Frame, FrameSize, MediaTime};

/// Frames of one run, so that the filter stays short and stretches decode side by side.
const RUN_FRAMES: usize = 64;
/// A gap is decoded through where that costs less than a new run: about so many seconds back to a key frame …
const SEEK_SECONDS: f64 = 5.0;
/// … and so many pixels' worth of starting a process.
const SEEK_PIXELS: f64 = 20e6;
/// Stretches longer than this many pixels are shared out among processes.
const SHARE_PIXELS: f64 = 600e6;

/// Scaling as PIL and torchvision do it (Keys' kernel with a = -0.5), rounded as exactly.
const BICUBIC: &str = "flags=bicubic+accurate_rnd+full_chroma_int:param0=0:param1=0.5";

/// What came of a plan.
#[derive(Debug, Clone)]
pub(super) struct Decoded {
    /// In time order, none twice.
    pub(super) frames: Vec<Frame>,
    /// Some of the planned ones could not be had.
    pub(super) partial: bool,
}

/// Decodes the frames of `targets`, scaled to `size`.
///
/// # Errors
/// [`MediaError::NoFrames`] when none decodes, [`MediaError::Timeout`] when that took too long.
pub(super) async fn decode(
    ffmpeg: &Ffmpeg,
    local: &Local,
    probed: &Probed,
    targets: &[Target],
    size: FrameSize,
) -> Result<Decoded, MediaError> {
    let job = Job { ffmpeg, local, probed, size, passthrough: passthrough(ffmpeg.version().await?) };
    let runs = runs(targets, probed, ffmpeg.slots()).into_iter().map(|run| Box::pin(job.stretch(run)));
    let mut frames: Vec<Frame> = futures::future::try_join_all(runs).await?.into_iter().flatten().collect();
    if let Some(last) = targets.last().filter(|last| !covers(&frames, last, probed)) {
        frames.extend(Box::pin(job.last_frame(last)).await?);
    }
    frames.sort_by_key(|frame| frame.time);
    frames.dedup_by_key(|frame| frame.time);
    if frames.is_empty() {
        let problem = "no frame of this stretch can be decoded: the file is cut off or damaged there";
        return Err(MediaError::NoFrames(problem.to_owned()));
    }
    let partial = !targets.iter().all(|target| covers(&frames, target, probed));
    Ok(Decoded { frames, partial })
}

/// Presentation time of the first frame that decodes, in microseconds as the file counts.
pub(super) async fn first_frame(ffmpeg: &Ffmpeg, local: &Local, stream: u32) -> Result<Option<i64>, MediaError> {
    let size = FrameSize { width: 16, height: 16 };
    let request = Request { seek: None, length: None, filter: String::new(), limit: Some(1), size };
    let passthrough = passthrough(ffmpeg.version().await?);
    let frames = run(ffmpeg, arguments(ffmpeg.max_pixels(), local, stream, passthrough, &request), &request).await?;
    Ok(frames.first().map(|(time, _)| *time).filter(|time| time.unsigned_abs() < 1 << 53))
}

/// Splits targets where seeking is cheaper than decoding on, and long stretches among the processes there are.
fn runs<'a>(targets: &'a [Target], probed: &Probed, slots: usize) -> Vec<&'a [Target]> {
    let pixels_a_second = (probed.coded_pixels as f64 * probed.info.fps).max(1.0);
    let gap = SEEK_SECONDS + SEEK_PIXELS / pixels_a_second;
    let apart = |from: i64, to: i64| (to - from) as f64 / 1e6;
    targets
        .chunk_by(|before, after| apart(before.time, after.from) <= gap)
        .flat_map(|stretch| {
            let length = match stretch {
                [first, .., last] => apart(first.time, last.time),
                _ => 0.0,
            };
            let shares = (length * pixels_a_second / SHARE_PIXELS).ceil().clamp(1.0, slots as f64) as usize;
            stretch.chunks(stretch.len().div_ceil(shares).clamp(1, RUN_FRAMES))
        })
        .collect()
}

/// How near a frame must be to count as the one planned: two frames, for time stamps that jitter.
fn near(probed: &Probed) -> i64 {
    (2e6 / probed.info.fps) as i64
}

fn covers(frames: &[Frame], target: &Target, probed: &Probed) -> bool {
    let near = near(probed);
    frames.iter().filter_map(|frame| frame.time).any(|time| (time.micros() - target.time).abs() <= near)
}

/// One plan's surroundings.
#[derive(Clone, Copy)]
struct Job<'a> {
    ffmpeg: &'a Ffmpeg,
    local: &'a Local,
    probed: &'a Probed,
    size: FrameSize,
    passthrough: &'static str,
}

impl Job<'_> {
    /// Decodes the targets of one run. When a seek landed too late to decode the first of them, starts further back.
    async fn stretch(self, targets: &[Target]) -> Result<Vec<Frame>, MediaError> {
        let Some(first) = targets.first() else { return Ok(Vec::new()) };
        let mut best: Vec<Frame> = Vec::new();
        let mut tried = None;
        for back in self.seeks() {
            let seek = back.and_then(|back| self.seek(first.from, back));
            if tried == Some(seek) {
                continue;
            }
            tried = Some(seek);
            let frames = self.attempt(targets, seek).await?;
            // A start at the very beginning can't be bettered; nor can a run that has its first frame.
            let done = seek.is_none() || frames.first().is_some_and(|_| covers(&frames, first, self.probed));
            if frames.len() > best.len() {
                best = frames;
            }
            if done {
                break;
            }
        }
        Ok(best)
    }

    /// How far before the first frame to start, attempt by attempt, in seconds; `None`: at the beginning of the file.
    fn seeks(self) -> impl Iterator<Item = Option<f64>> {
        // Without an index ffmpeg may land in the middle of a group of pictures, and lose all up to the next key frame.
        let steps: &[Option<f64>] =
            if self.probed.indexed { &[Some(0.0), Some(30.0)] } else { &[Some(5.0), Some(40.0), None] };
        steps.iter().copied()
    }

    /// Where to seek, in seconds from the container's start, or `None` when that is not worth it.
    fn seek(self, from: i64, back: f64) -> Option<f64> {
        // Half a frame more, so that the frame itself is not cut by a rounding.
        let slack = 0.5 / self.probed.info.fps;
        let start = (self.probed.first + from - self.probed.container_start) as f64 / 1e6 - slack.min(1.0) - back;
        (start > 0.5).then_some(start)
    }

    async fn attempt(self, targets: &[Target], seek: Option<f64>) -> Result<Vec<Frame>, MediaError> {
        let limit = targets.len();
        let request = self.request(targets, seek, Some(limit));
        let frames = self.run(&request).await?;
        Ok(frames.into_iter().map(|frame| self.frame(frame)).collect())
    }

    /// The very last frame, where a header promised one a little later. Nothing when the target is not near the end.
    async fn last_frame(self, target: &Target) -> Result<Option<Frame>, MediaError> {
        let back = near(self.probed).max(1_000_000);
        if target.time + back < self.probed.info.duration.micros() {
            return Ok(None);
        }
        let from = Target { time: target.time, from: (target.from - back).max(0) };
        let seek = self.seek(from.from, if self.probed.indexed { 0.0 } else { 5.0 });
        // All frames from there on; of these, `run` keeps the last.
        let request = Request { filter: select_from(self.probed.first, &from), ..self.request(&[from], seek, None) };
        Ok(self.run(&request).await?.pop().map(|frame| self.frame(frame)))
    }

    fn request(self, targets: &[Target], seek: Option<f64>, limit: Option<usize>) -> Request {
        let margin = (2.0 / self.probed.info.fps).max(1.0);
        let length = targets.last().map(|last| {
            let begin =
                seek.unwrap_or_else(|| ((self.probed.first - self.probed.container_start) as f64 / 1e6).min(0.0));
            (self.probed.first + last.time - self.probed.container_start) as f64 / 1e6 - begin + margin
        });
        Request { seek, length, filter: select(self.probed.first, targets), limit, size: self.size }
    }

    async fn run(self, request: &Request) -> Result<Vec<(i64, Bytes)>, MediaError> {
        let pixels = self.ffmpeg.max_pixels();
        run(self.ffmpeg, arguments(pixels, self.local, self.probed.stream, self.passthrough, request), request).await
    }

    fn frame(self, (time, rgb): (i64, Bytes)) -> Frame {
        let time = time.saturating_sub(self.probed.first).max(0);
        Frame { time: Some(MediaTime::from_micros(time)), size: self.size, rgb }
    }
}

/// One run of ffmpeg.
#[derive(Debug)]
struct Request {
    /// Seconds from the container's start.
    seek: Option<f64>,
    /// Seconds to decode.
    length: Option<f64>,
    /// Selects frames; empty for all.
    filter: String,
    /// Frames to write; without it all, of which the last is kept.
    limit: Option<usize>,
    size: FrameSize,
}

/// A filter that passes the first frame at or after each target's threshold.
///
/// It counts the thresholds passed by each frame, and passes a frame when there are more than at the frame before.
fn select(first: i64, targets: &[Target]) -> String {
    let passed: Vec<String> = targets.iter().map(|target| format!("gte(t,{})", decimal(first + target.from))).collect();
    format!("select='st(0,{});st(2,gt(ld(0),ld(1)));st(1,ld(0));ld(2)',", passed.join("+"))
}

/// A filter that passes all frames from a target's threshold on.
fn select_from(first: i64, target: &Target) -> String {
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

fn arguments(max_pixels: u64, local: &Local, stream: u32, passthrough: &str, request: &Request) -> Vec<OsString> {
    // Time stamps stay those of the file, so that a seek does not move them. Corrupt pictures after a seek into the
    // middle of a group are left out, so that a later start is noticed.
    let mut before: Vec<String> =
        ["-nostdin", "-copyts", "-threads", "2", "-flags", "-output_corrupt"].map(str::to_owned).into();
    // The probe saw the first picture's size; a later one may claim another.
    before.extend(["-max_pixels".to_owned(), max_pixels.to_string()]);
    for (option, seconds) in [("-ss", request.seek), ("-t", request.length)] {
        if let Some(seconds) = seconds {
            before.extend([option.to_owned(), format!("{seconds:.6}")]);
        }
    }
    // `info`, because that is where showinfo speaks.
    let mut arguments: Vec<OsString> = ["-v", "info", "-nostats"].map(Into::into).into();
    arguments.extend(probe::guarded(local, &before.iter().map(String::as_str).collect::<Vec<_>>()));
    let (width, height) = (request.size.width, request.size.height);
    let filter = format!("{}settb=1/1000000,scale={width}:{height}:{BICUBIC},format=rgb24,showinfo", request.filter);
    let limit = request.limit.map(|limit| limit.to_string());
    let after = ["-map", &format!("0:{stream}"), "-vf", &filter, passthrough, "passthrough"].map(OsString::from);
    arguments.extend(after);
    if let Some(limit) = limit {
        arguments.extend(["-frames:v".into(), limit.into()]);
    }
    arguments.extend(["-c:v", "rawvideo", "-f", "rawvideo", "pipe:1"].map(Into::into));
    arguments
}

/// Runs ffmpeg and pairs its pictures with the times it tells. Damaged files give what there is.
async fn run(ffmpeg: &Ffmpeg, arguments: Vec<OsString>, request: &Request) -> Result<Vec<(i64, Bytes)>, MediaError> {
    let (mut stdout, mut stderr, control) = ffmpeg.start(Program::Ffmpeg, arguments).await?.split();
    let bytes = 3 * request.size.width as usize * request.size.height as usize;
    let mut pictures: Vec<Bytes> = Vec::new();
    let mut count = 0_usize;
    let read = async {
        while request.limit.is_none_or(|limit| pictures.len() < limit) {
            let mut picture = vec![0; bytes];
            if stdout.read_exact(&mut picture).await.is_err() {
                break;
            }
            count += 1;
            if request.limit.is_none() {
                pictures.clear();
            }
            pictures.push(picture.into());
        }
        // What would follow is not wanted.
        control.stop();
    };
    let mut times: Vec<i64> = Vec::new();
    let tell = ffmpeg::each_line(&mut stderr, |line| {
        if let Some(time) = told_time(line) {
            if request.limit.is_none() {
                // Only the last pictures' are needed; a few may be told before their pictures are through.
                times.drain(..times.len().saturating_sub(1024));
            }
            times.push(time);
        }
    });
    tokio::join!(read, tell);
    let exit = control.exit().await;
    if exit == Exit::TimedOut {
        return Err(MediaError::Timeout("decoding"));
    }
    if request.limit.is_none() {
        // The pictures run to the end, and so do the times.
        return Ok(times.last().copied().zip(pictures.pop()).into_iter().collect());
    }
    if times.len() < pictures.len() {
        return Err(MediaError::Internal(format!("{count} frames, {} times", times.len())));
    }
    Ok(times.into_iter().zip(pictures).collect())
}

/// The time in a line of showinfo, in the time base set just before it.
fn told_time(line: &str) -> Option<i64> {
    // Only the filter's own lines start like this; what a file says of itself is indented.
    let rest = line.strip_prefix("[Parsed_showinfo_")?;
    let (_, rest) = rest.split_once("] n:")?;
    let (_, rest) = rest.split_once(" pts:")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::VideoInfo;
    use crate::media::probe::Timing;

    fn video(fps: f64, pixels: u64) -> Probed {
        let duration = MediaTime::from_micros(3_600_000_000);
        Probed {
            info: VideoInfo { duration, size: FrameSize { width: 64, height: 64 }, fps, frames: 1 },
            stream: 0,
            first: 0,
            container_start: 0,
            timing: Timing::Constant,
            indexed: true,
            coded_pixels: pixels,
        }
    }

    fn targets(count: i64, apart: i64) -> Vec<Target> {
        (0..count).map(|i| Target { time: i * apart * 1_000_000, from: i * apart * 1_000_000 - 100 }).collect()
    }

    #[test]
    fn showinfo_lines_are_read_and_others_are_not() {
        let line = "[Parsed_showinfo_4 @ 0x560d] n:   0 pts:110480000 pts_time:110.48  pos:    64108 fmt:rgb24";
        assert_eq!(told_time(line), Some(110_480_000));
        assert_eq!(told_time("[Parsed_showinfo_4 @ 0x5] n:   1 pts: -40000 pts_time:-0.04 "), Some(-40_000));
        assert_eq!(told_time("[Parsed_showinfo_4 @ 0x5] n:   1 pts:NOPTS pts_time:NOPTS"), None);
        assert_eq!(told_time("    title : [Parsed_showinfo_4 @ 0x5] n: 1 pts: 5 "), None);
        assert_eq!(told_time("[Parsed_showinfo_4 @ 0x5] config in time_base: 1/1000000, frame_rate: 25/1"), None);
    }

    #[test]
    fn small_pictures_are_decoded_through_and_large_ones_sought() {
        // A board: 300 s of 256x256 at 5 a second, a frame every 20 s.
        assert_eq!(runs(&targets(16, 20), &video(5.0, 65_536), 4).len(), 1);
        assert_eq!(runs(&targets(16, 20), &video(25.0, 1920 * 1080), 4).len(), 16);
        assert_eq!(runs(&targets(64, 1), &video(5.0, 65_536), 4).len(), 1);
    }

    #[test]
    fn long_stretches_of_large_pictures_are_shared_out_in_order() {
        let all = targets(64, 4);
        let shared = runs(&all, &video(25.0, 1920 * 1080), 4);
        assert_eq!(shared.len(), 4);
        assert_eq!(shared.concat(), all);
        let many = targets(300, 1);
        assert!(runs(&many, &video(5.0, 64), 1).iter().all(|run| run.len() <= RUN_FRAMES));
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
