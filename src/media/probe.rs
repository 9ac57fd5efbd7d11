//! What a file holds: the stream to show, its length, size, rate and frame times.
//!
//! Headers lie, so they are believed only where they agree with each other; else the packets are counted. This file
//! knows ffprobe's JSON and nothing of requests or budgets.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::MediaError;
use super::decode;
use super::ffmpeg::{self, Exit, Ffmpeg, Program};
use super::source::Local;
use crate::config::MediaConfig;
use crate::types::{FrameSize, MediaTime};

/// Containers that are read. None of them opens another file or address, as playlists and concat files do.
const FORMATS: &str = "mov,matroska,webm,mpegts,mpeg,avi,flv,ogg,gif,asf,nut,mxf,ivf";
/// Packets counted at most: six hours at 240 a second.
const MAX_PACKETS: usize = 6 * 3600 * 240;
/// Files over this size whose header gives a length are not read through only to count frames.
const MAX_SCAN_BYTES: u64 = 1 << 30;
/// Longest a count may take.
const SCAN_TIMEOUT: Duration = Duration::from_secs(60);

/// What is known of a video before its frames are decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct VideoInfo {
    /// From the first frame to the end of the last one.
    pub duration: MediaTime,
    /// Displayed size, after rotation and sample aspect.
    pub size: FrameSize,
    /// Average frames a second.
    pub fps: f64,
    /// Frames, counted or estimated from length and rate.
    pub frames: u64,
}

/// A video, ready for frames. Times are microseconds.
#[derive(Debug, Clone)]
pub(super) struct Probed {
    /// For callers.
    pub(super) info: VideoInfo,
    /// The stream's number in the file.
    pub(super) stream: u32,
    /// Presentation time of the first frame as the file counts.
    pub(super) first: i64,
    /// What ffmpeg's seeking counts from.
    pub(super) container_start: i64,
    /// When the frames are.
    pub(super) timing: Timing,
    /// Whether the container's index leads seeks to key frames.
    pub(super) indexed: bool,
    /// Pixels to decode a frame.
    pub(super) coded_pixels: u64,
}

/// When a video's frames are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Timing {
    /// Frame `i` at `i / fps`.
    Constant,
    /// At these microseconds from the first frame, ascending.
    Listed(Arc<[i64]>),
}

impl Timing {
    /// Memory taken by a list.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Constant => 0,
            Self::Listed(times) => size_of_val(times.as_ref()) as u64,
        }
    }
}

/// What every call on an untrusted file starts with: local files only, known containers only.
pub(super) fn guarded(local: &Local, before_input: &[&str]) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["-hide_banner", "-protocol_whitelist", "file", "-format_whitelist", FORMATS]
        .into_iter()
        .chain(before_input.iter().copied())
        .chain(["-i"])
        .map(OsString::from)
        .collect();
    // Named as a URL, so that no file name is read as another protocol or an option.
    let mut input = OsString::from("file:");
    input.push(&local.path);
    arguments.push(input);
    arguments
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Report {
    streams: Vec<Stream>,
    format: Format,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Format {
    format_name: String,
    start_time: Option<String>,
    duration: Option<String>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct Stream {
    index: u32,
    codec_type: String,
    codec_name: Option<String>,
    width: u32,
    height: u32,
    sample_aspect_ratio: Option<String>,
    r_frame_rate: Option<String>,
    avg_frame_rate: Option<String>,
    start_time: Option<String>,
    duration: Option<String>,
    nb_frames: Option<String>,
    disposition: Disposition,
    tags: Tags,
    side_data_list: Vec<SideData>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct Disposition {
    default: u8,
    attached_pic: u8,
    timed_thumbnails: u8,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct Tags {
    rotate: Option<String>,
    #[serde(rename = "DURATION")]
    duration: Option<String>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct SideData {
    rotation: Option<f64>,
}

const ENTRIES: &str = "format=format_name,start_time,duration:stream=index,codec_type,codec_name,width,height,\
    sample_aspect_ratio,r_frame_rate,avg_frame_rate,start_time,duration,nb_frames\
    :stream_disposition=default,attached_pic,timed_thumbnails:stream_tags=rotate,DURATION:stream_side_data=rotation";

/// Looks into a file, within the limits of the configuration.
///
/// # Errors
/// [`MediaError::NotVideo`] with words for the caller, [`MediaError::TooLarge`], [`MediaError::Timeout`].
pub(super) async fn probe(ffmpeg: &Ffmpeg, local: &Local, config: &MediaConfig) -> Result<Probed, MediaError> {
    if local.bytes == 0 {
        return Err(MediaError::NotVideo("the file is empty".to_owned()));
    }
    let report = read(ffmpeg, local).await?;
    let stream = choose(&report.streams)?;
    let coded_pixels = u64::from(stream.width) * u64::from(stream.height);
    if coded_pixels > config.max_pixels {
        return Err(MediaError::TooLarge(format!(
            "the picture of {}x{} is larger than the {} pixels this server takes",
            stream.width, stream.height, config.max_pixels
        )));
    }
    let first = decode::first_frame(ffmpeg, local, stream.index).await?.ok_or_else(|| {
        MediaError::NotVideo(
            "no frame of the video can be decoded: it is damaged, or its codec is not known".to_owned(),
        )
    })?;
    let header = Header::new(&report.format, &stream, first);
    let too_long = |length: f64| length > config.max_duration_s as f64;
    // Before anything is counted, so that a long file is refused without reading it.
    if header.length.is_some_and(too_long) {
        return Err(long(config));
    }
    let measured = match header.agreed() {
        Some(measured) => measured,
        None => measure(ffmpeg, local, &stream, first, &header, config).await?,
    };
    if too_long(measured.length) {
        return Err(long(config));
    }
    let duration = MediaTime::from_seconds(measured.length)
        .filter(|length| length.micros() > 0)
        .ok_or_else(|| MediaError::NotVideo("the video has no length".to_owned()))?;
    let info = VideoInfo { duration, size: displayed(&stream), fps: measured.fps, frames: measured.frames };
    let start = seconds(report.format.start_time.as_deref()).unwrap_or(0.0);
    Ok(Probed {
        info,
        stream: stream.index,
        first,
        container_start: (start * 1e6).round() as i64,
        timing: measured.timing,
        indexed: ["mov", "matroska"].iter().any(|name| report.format.format_name.split(',').any(|n| n == *name)),
        coded_pixels,
    })
}

fn long(config: &MediaConfig) -> MediaError {
    MediaError::TooLarge(format!("the video is longer than the {} s this server takes", config.max_duration_s))
}

async fn read(ffmpeg: &Ffmpeg, local: &Local) -> Result<Report, MediaError> {
    let mut arguments: Vec<OsString> =
        ["-v", "error", "-of", "json=c=1", "-show_entries", ENTRIES].map(Into::into).into();
    arguments.extend(guarded(local, &[]));
    let output = ffmpeg.run(Program::Ffprobe, arguments, "looking into the video", 1 << 20).await?;
    match output.exit {
        Exit::Done(status) if status.success() => serde_json::from_slice(&output.stdout)
            .map_err(|_| MediaError::Internal("ffprobe's report can't be read".to_owned())),
        _ => Err(MediaError::NotVideo(
            "the file is not a video that can be read: not a video file (MP4, MOV, MKV, WebM, AVI, MPEG, ...), \
             or cut off or damaged so that its header is missing"
                .to_owned(),
        )),
    }
}

/// The stream a player would show: the default one, else the largest.
fn choose(streams: &[Stream]) -> Result<Stream, MediaError> {
    let none = |problem: &str| MediaError::NotVideo(problem.to_owned());
    let videos = || streams.iter().filter(|stream| stream.codec_type == "video");
    let picture = |stream: &Stream| stream.disposition.attached_pic == 1 || stream.disposition.timed_thumbnails == 1;
    if videos().next().is_none() {
        let audio = streams.iter().any(|stream| stream.codec_type == "audio");
        return Err(none(if audio { "the file holds only sound, no video" } else { "the file holds no video" }));
    }
    let moving = || videos().filter(|stream| !picture(stream));
    if moving().next().is_none() {
        return Err(none("the file holds only a cover picture, no video"));
    }
    moving()
        .filter(|stream| stream.width > 0 && stream.height > 0 && stream.codec_name.is_some())
        .max_by_key(|stream| {
            let pixels = u64::from(stream.width) * u64::from(stream.height);
            (stream.disposition.default, pixels, std::cmp::Reverse(stream.index))
        })
        .cloned()
        .ok_or_else(|| none("the video's codec is not known, or its header is damaged"))
}

/// Size as shown: sample aspect and rotation applied.
fn displayed(stream: &Stream) -> FrameSize {
    let aspect = stream
        .sample_aspect_ratio
        .as_deref()
        .and_then(|text| ratio(text, ':'))
        // Beyond this it is a broken header, not a lens.
        .filter(|aspect| (0.1..=10.0).contains(aspect))
        .unwrap_or(1.0);
    let width = ((f64::from(stream.width) * aspect).round() as u32).max(1);
    let turned = stream
        .side_data_list
        .iter()
        .find_map(|data| data.rotation)
        .or_else(|| stream.tags.rotate.as_deref()?.parse().ok())
        .is_some_and(|degrees| (degrees.rem_euclid(180.0) - 90.0).abs() < 1.0);
    if turned { FrameSize { width: stream.height, height: width } } else { FrameSize { width, height: stream.height } }
}

/// What the header says. Length in seconds from the first frame.
#[derive(Debug, Clone, Copy)]
struct Header {
    length: Option<f64>,
    frames: Option<u64>,
    /// The rate all time stamps are multiples of.
    rate: Option<f64>,
    average: Option<f64>,
}

/// What a video turned out to be.
#[derive(Debug)]
struct Measured {
    length: f64,
    frames: u64,
    fps: f64,
    timing: Timing,
}

impl Header {
    fn new(format: &Format, stream: &Stream, first: i64) -> Self {
        let first = first as f64 / 1e6;
        let of_stream = seconds(stream.duration.as_deref()).or_else(|| clock(stream.tags.duration.as_deref()?));
        let end =
            of_stream.map(|length| seconds(stream.start_time.as_deref()).unwrap_or(first) + length).or_else(|| {
                Some(seconds(format.start_time.as_deref()).unwrap_or(0.0) + seconds(format.duration.as_deref())?)
            });
        let rate = |text: &Option<String>| {
            text.as_deref().and_then(|text| ratio(text, '/')).filter(|rate| (0.001..=1000.0).contains(rate))
        };
        Self {
            length: end.map(|end| end - first).filter(|length| length.is_finite() && *length > 0.0),
            frames: stream.nb_frames.as_deref().and_then(|text| text.parse().ok()).filter(|frames| *frames > 0),
            rate: rate(&stream.r_frame_rate),
            average: rate(&stream.avg_frame_rate),
        }
    }

    /// A constant rate, when length, count and rate all say so.
    fn agreed(&self) -> Option<Measured> {
        let (length, frames, fps) = (self.length?, self.frames?, self.rate?);
        let agrees = (frames as f64 / fps - length).abs() * fps < 1.0;
        let average = self.average.is_none_or(|average| (average / fps - 1.0).abs() < 0.001);
        (agrees && average).then_some(Measured { length, frames, fps, timing: Timing::Constant })
    }

    /// A guess, where counting is out of the question.
    fn estimated(&self) -> Option<Measured> {
        let length = self.length?;
        let fps = self.frames.map(|frames| frames as f64 / length).or(self.average).or(self.rate)?;
        let frames = self.frames.unwrap_or_else(|| (length * fps).round().max(1.0) as u64);
        Some(Measured { length, frames, fps, timing: Timing::Constant })
    }
}

/// Counts the stream's packets.
async fn measure(
    ffmpeg: &Ffmpeg,
    local: &Local,
    stream: &Stream,
    first: i64,
    header: &Header,
    config: &MediaConfig,
) -> Result<Measured, MediaError> {
    let estimate = || header.estimated();
    if local.bytes > MAX_SCAN_BYTES
        && let Some(measured) = estimate()
    {
        return Ok(measured);
    }
    let mut scan = Scan::default();
    let index = stream.index.to_string();
    let mut arguments: Vec<OsString> = ["-v", "error", "-select_streams", &index].map(Into::into).into();
    arguments
        .extend(["-show_entries", "packet=pts_time,dts_time,duration_time,flags", "-of", "csv=p=0"].map(Into::into));
    arguments.extend(guarded(local, &[]));
    let limit = SCAN_TIMEOUT.min(ffmpeg.timeout());
    let (mut stdout, mut stderr, control) = ffmpeg.start_within(Program::Ffprobe, arguments, limit).await?.split();
    let lines = ffmpeg::each_line(&mut stdout, |line| {
        if !scan.add(line, first) {
            control.stop();
        }
    });
    tokio::join!(lines, ffmpeg::each_line(&mut stderr, |_| ()));
    let exit = control.exit().await;
    match exit {
        Exit::TimedOut => estimate().ok_or(MediaError::Timeout("counting the video's frames")),
        Exit::Stopped => estimate().ok_or_else(|| long(config)),
        // A damaged end is no reason to forget what came before.
        Exit::Done(_) => scan
            .measured(header)
            .or_else(estimate)
            .ok_or_else(|| MediaError::NotVideo("the video's length can't be found".to_owned())),
    }
}

/// Packet times on their way in.
#[derive(Debug, Default)]
struct Scan {
    /// Microseconds from the first frame.
    times: Vec<i64>,
    longest: i64,
    /// Packets without any time.
    unknown: usize,
}

impl Scan {
    /// Takes a line `pts,dts,duration,flags`. False when there are too many.
    fn add(&mut self, line: &str, first: i64) -> bool {
        let mut fields = line.trim_end_matches(',').split(',');
        let (pts, dts, duration, flags) = (fields.next(), fields.next(), fields.next(), fields.next());
        // Discarded ones are before the start of an edit list: decoded, never shown.
        let Some(flags) = flags.filter(|flags| !flags.contains('D')) else { return true };
        let micros = |text: Option<&str>| seconds(text).map(|seconds| (seconds * 1e6).round() as i64);
        match micros(pts).or_else(|| micros(dts)) {
            // What is before the first frame that decodes belongs to pictures that were cut away.
            Some(time) if time < first => {}
            Some(time) => {
                self.times.push(time.saturating_sub(first));
                self.longest = self.longest.max(micros(duration).unwrap_or(0));
            }
            None if flags.is_empty() => {}
            None => self.unknown += 1,
        }
        self.times.len() + self.unknown <= MAX_PACKETS
    }

    fn measured(mut self, header: &Header) -> Option<Measured> {
        self.times.sort_unstable();
        self.times.dedup();
        let (last, frames) = (*self.times.last()?, self.times.len() as u64);
        // Streams whose packets carry times only now and then can be counted, not listed.
        if self.unknown as u64 > frames / 100 {
            let length = header.length.unwrap_or((last + self.longest) as f64 / 1e6);
            let frames = frames + self.unknown as u64;
            let rate = header.rate.filter(|rate| (frames as f64 / rate - length).abs() * rate < 2.0);
            let fps = rate.unwrap_or(frames as f64 / length);
            return (length > 0.0).then_some(Measured { length, frames, fps, timing: Timing::Constant });
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
            Some(fps) => Measured { length, frames, fps, timing: Timing::Constant },
            None => Measured { length, frames, fps: frames as f64 / length, timing: Timing::Listed(self.times.into()) },
        })
    }

    /// Whether frame `i` is at `i / fps`, give or take a rounding of time stamps.
    fn is_constant(&self, fps: f64) -> bool {
        let tolerance = (250_000.0 / fps).min(5_000.0);
        self.times.iter().enumerate().all(|(i, time)| (i as f64 * 1e6 / fps - *time as f64).abs() <= tolerance)
    }
}

fn seconds(text: Option<&str>) -> Option<f64> {
    text?.parse().ok().filter(|seconds: &f64| seconds.is_finite() && seconds.abs() < 1e10)
}

/// `00:00:20.000000000`, as Matroska's tags write lengths.
fn clock(text: &str) -> Option<f64> {
    text.parse::<MediaTime>().ok().map(MediaTime::seconds).filter(|seconds| *seconds > 0.0)
}

fn ratio(text: &str, separator: char) -> Option<f64> {
    let (over, under) = text.split_once(separator)?;
    let (over, under): (f64, f64) = (over.parse().ok()?, under.parse().ok()?);
    (over > 0.0 && under > 0.0).then_some(over / under)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(change: impl FnOnce(&mut Stream)) -> Stream {
        let mut stream = Stream {
            codec_type: "video".to_owned(),
            codec_name: Some("h264".to_owned()),
            width: 320,
            height: 180,
            ..Stream::default()
        };
        change(&mut stream);
        stream
    }

    fn header(length: Option<f64>, rate: f64) -> Header {
        Header { length, frames: None, rate: Some(rate), average: Some(rate) }
    }

    fn scan(lines: impl IntoIterator<Item = String>, first: i64) -> Scan {
        let mut scan = Scan::default();
        for line in lines {
            assert!(scan.add(&line, first));
        }
        scan
    }

    #[test]
    fn rotation_and_sample_aspect_are_in_the_size() {
        let size = |width, height| FrameSize { width, height };
        assert_eq!(displayed(&stream(|_| ())), size(320, 180));
        assert_eq!(displayed(&stream(|s| s.sample_aspect_ratio = Some("2:1".into()))), size(640, 180));
        assert_eq!(displayed(&stream(|s| s.sample_aspect_ratio = Some("0:1".into()))), size(320, 180));
        assert_eq!(displayed(&stream(|s| s.sample_aspect_ratio = Some("1000000:1".into()))), size(320, 180));
        for degrees in [90.0, -90.0, 270.0] {
            let turned = stream(|s| s.side_data_list = vec![SideData::default(), SideData { rotation: Some(degrees) }]);
            assert_eq!(displayed(&turned), size(180, 320), "{degrees}");
        }
        assert_eq!(displayed(&stream(|s| s.tags.rotate = Some("180".into()))), size(320, 180));
    }

    #[test]
    fn the_default_stream_wins_then_the_largest() {
        let small = stream(|s| s.index = 0);
        let large = stream(|s| (s.index, s.width) = (1, 640));
        let cover = stream(|s| (s.index, s.width, s.disposition.attached_pic) = (2, 2000, 1));
        assert_eq!(choose(&[small, large.clone(), cover.clone()]).expect("a video").index, 1);
        let default = stream(|s| (s.index, s.disposition.default) = (0, 1));
        assert_eq!(choose(&[default, large, cover.clone()]).expect("a video").index, 0);
        let message = |streams: &[Stream]| choose(streams).expect_err("none").to_string();
        assert!(message(&[cover]).contains("cover picture"));
        assert!(message(&[stream(|s| s.codec_type = "audio".into())]).contains("only sound"));
        assert!(message(&[]).contains("no video"));
    }

    #[test]
    fn packets_out_of_order_at_a_steady_rate_are_constant() {
        let order = [0, 3, 1, 2, 6, 4, 5];
        let lines = order.map(|i| format!("{:.6},N/A,0.040000,__", 2.0 + f64::from(i) * 0.04));
        let measured = scan(lines, 2_000_000).measured(&header(None, 25.0)).expect("frames");
        assert_eq!((measured.frames, measured.timing), (7, Timing::Constant));
        assert!((measured.length - 0.28).abs() < 1e-6);
    }

    #[test]
    fn gaps_are_listed_and_discarded_packets_left_out() {
        let lines = ["-0.04,-0.08,0.04,KD", "0.00,0.00,0.04,K_,", "0.04,0.04,0.04,__,", "", "1.00,1.00,0.04,__"];
        let measured = scan(lines.map(str::to_owned), 0).measured(&header(Some(1.04), 25.0)).expect("frames");
        assert_eq!(measured.timing, Timing::Listed([0, 40_000, 1_000_000].into()));
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
