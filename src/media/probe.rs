//! What a file holds: the stream to show, its length, size, rate, frame times, and what its pictures need.
//!
//! Where the container's index can be read (see [`super::demux`]), times come from it and ffprobe sees one key frame; else
//! ffprobe reads the file. This file knows the order of these steps and the limits, nothing of requests or budgets.

mod measure;
mod report;

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::content::Content;
use super::demux::{Cut, Index, Limits, Unindexed};
use super::ffmpeg::{self, Exit, Ffmpeg, Input, Program, STDIN};
use super::picture::Picture;
use super::{MediaError, decode};
use crate::config::MediaConfig;
use crate::types::{FrameSize, MediaTime};
use measure::{Header, Measured, Scan};
use report::{ENTRIES, Report, Stream};

/// Decoders that are used. The hundreds of others are for what no one films in, and each is a way in. Not for ffprobe on whole
/// files: it opens the sound's as well.
pub(super) const CODECS: &str = "h264,hevc,av1,libdav1d,libaom-av1,vp8,vp9,libvpx,libvpx-vp9,vp6,vp6f,vp6a,mpeg1video,mpeg2video,\
    mpeg4,msmpeg4,msmpeg4v1,msmpeg4v2,msmpeg4v3,h261,h263,h263p,flv,wmv1,wmv2,wmv3,vc1,theora,mjpeg,mjpegb,png,gif,prores,\
    dnxhd,dvvideo,cinepak,svq1,svq3,qtrle,rawvideo,huffyuv,ffvhuff,ffv1,utvideo,jpeg2000,libopenjpeg,vvc";
/// Containers that are read. None of them opens another file or address, as playlists and concat files do.
const FORMATS: &str = "mov,matroska,webm,mpegts,mpeg,avi,flv,ogg,gif,asf,nut,mxf,ivf";
/// Files over this size whose header gives a length are not read through only to count frames.
const MAX_SCAN_BYTES: u64 = 1 << 30;
/// Pixels that ffprobe may decode of a whole file's picture at least, so that what is over the limit is told by its size.
const PROBE_PIXELS: u64 = 8192 * 8192;
/// Longest a count may take.
const SCAN_TIMEOUT: Duration = Duration::from_secs(60);
/// Headers and tables of an index, in bytes.
const MAX_INDEX_BYTES: u64 = 256 << 20;
/// Indexes being read at the same time, on threads and in memory of the whole process, whatever asks for them. A slow server
/// does not keep files that are here waiting.
static LOCAL_READERS: Semaphore = Semaphore::const_new(4);
static REMOTE_READERS: Semaphore = Semaphore::const_new(8);

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
    /// What is done to its pictures beyond scaling, in words: turned, one field taken, tone-mapped.
    pub treatment: Vec<String>,
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
    /// When the frames are.
    pub(super) timing: Timing,
    /// How to get at them.
    pub(super) access: Access,
    /// Key frames in microseconds from the first frame, ascending, where they are known.
    pub(super) keys: Option<Arc<[i64]>>,
    /// Pixels to decode a frame.
    pub(super) coded_pixels: u64,
    /// What its pictures need.
    pub(super) picture: Picture,
}

/// How frames are reached.
#[derive(Debug, Clone)]
pub(super) enum Access {
    /// By an index of ours: only the bytes that are needed go to ffmpeg.
    Index(Arc<Index>),
    /// ffmpeg opens the file and seeks.
    Seek {
        /// What ffmpeg's seeking counts from.
        container_start: i64,
        /// Whether the container has an index that leads to key frames.
        indexed: bool,
    },
}

/// When a video's frames are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Timing {
    /// Frame `i` at `i / fps`, give or take a rounding; exactly then, where that is known.
    Steady(Option<Arc<[i64]>>),
    /// At these microseconds from the first frame, ascending.
    Varying(Arc<[i64]>),
}

impl Timing {
    /// The frames' own times, where they are known.
    pub(super) fn times(&self) -> Option<&[i64]> {
        match self {
            Self::Steady(times) => times.as_deref(),
            Self::Varying(times) => Some(times),
        }
    }
}

impl Probed {
    /// Memory taken.
    pub(super) fn bytes(&self) -> u64 {
        let times = self.timing.times().map_or(0, |times| size_of_val(times) as u64);
        let keys = self.keys.as_ref().map_or(0, |keys| size_of_val(keys.as_ref()) as u64);
        keys + times + if let Access::Index(index) = &self.access { index.bytes() } else { 0 }
    }
}

/// What every call on an untrusted file starts with: local files only, known containers only.
pub(super) fn guarded(before_input: &[impl AsRef<str>]) -> Vec<OsString> {
    ["-hide_banner", "-protocol_whitelist", "file", "-format_whitelist", FORMATS]
        .into_iter()
        .chain(before_input.iter().map(AsRef::as_ref))
        .chain(["-i", STDIN])
        .map(OsString::from)
        .collect()
}

/// The same for a container of our own making, written to the child's standard input.
pub(super) fn spliced(format: &str, before_input: &[impl AsRef<str>]) -> Vec<OsString> {
    ["-hide_banner", "-protocol_whitelist", "pipe", "-format_whitelist", "mov,matroska", "-f", format]
        .into_iter()
        .chain(before_input.iter().map(AsRef::as_ref))
        .chain(["-i", "pipe:0"])
        .map(OsString::from)
        .collect()
}

/// For ffprobe on a whole file. Looking for the streams' sizes decodes pictures, too.
fn probing(ffmpeg: &Ffmpeg) -> Vec<OsString> {
    guarded(&["-max_pixels", &ffmpeg.max_pixels().max(PROBE_PIXELS).to_string()])
}

/// The file for a child to read.
pub(super) fn whole(content: &Content) -> Result<Input, MediaError> {
    content.opened()?.map(Input::File).ok_or_else(|| MediaError::Internal("the video is no file".to_owned()))
}

/// Looks into content. `None` for remote content without an index that can be read from afar: it must be downloaded.
///
/// # Errors
/// [`MediaError::NotVideo`] with words for the caller, [`MediaError::TooLarge`], [`MediaError::Timeout`], and what reading
/// it fails with.
pub(super) async fn probe(
    ffmpeg: &Ffmpeg,
    content: &Arc<Content>,
    config: &MediaConfig,
) -> Result<Option<Probed>, MediaError> {
    if content.bytes() == 0 {
        return Err(MediaError::NotVideo("the file is empty".to_owned()));
    }
    match index(content, config).await? {
        Some(index) => match Box::pin(by_index(ffmpeg, content, index, config)).await {
            Ok(Some(probed)) => return Ok(Some(probed)),
            // What does not decode from afar does not decode here.
            Ok(None) if !content.is_local() => return Err(undecodable()),
            // The index was wrong, which ffmpeg may not mind.
            Err(MediaError::NotVideo(_)) if !content.is_local() => return Ok(None),
            Ok(None) => {}
            Err(error) => return Err(error),
        },
        None if !content.is_local() => return Ok(None),
        None => {}
    }
    Box::pin(by_ffprobe(ffmpeg, content, config)).await.map(Some)
}

/// The container's index, where it is one of ours.
async fn index(content: &Arc<Content>, config: &MediaConfig) -> Result<Option<Index>, MediaError> {
    let limit = Duration::from_secs(config.fetch_timeout_s);
    let readers = if content.is_local() { &LOCAL_READERS } else { &REMOTE_READERS };
    let permit = tokio::time::timeout(limit, readers.acquire()).await;
    let permit = permit
        .map_err(|_| MediaError::Timeout("waiting to read the video's index"))?
        .map_err(|_| MediaError::Internal("shutting down".to_owned()))?;
    let (mut cursor, bytes) = (content.cursor(limit), content.bytes());
    // Nobody can abort the thread: when we are dropped, its reads fail.
    let _stopper = cursor.stopper();
    let limits = Limits { frames: config.max_frames, bytes: MAX_INDEX_BYTES, scan: content.is_local() };
    let read = tokio::task::spawn_blocking(move || {
        // Held until the thread is done, whoever still waits for it.
        let _permit = permit;
        let read = Index::read(&mut cursor, bytes, &limits);
        (read, cursor.into_error())
    });
    match read.await {
        Ok((Ok(index), _)) => {
            let holds = index.check(content).await?;
            if !holds {
                tracing::debug!("key frames are none; left to ffmpeg");
            }
            Ok(holds.then_some(index))
        }
        // The network broke, which says nothing of the file.
        Ok((Err(_), Some(error))) => Err(error),
        // Before ffprobe fills its memory with them.
        Ok((Err(Unindexed::TooManyFrames), None)) => Err(many(config)),
        Ok((Err(reason), None)) => {
            tracing::debug!(%reason, "left to ffmpeg");
            Ok(None)
        }
        Err(_) => {
            tracing::error!("reading an index broke off");
            Ok(None)
        }
    }
}

/// With an index: ffprobe is shown the first key frame that decodes, and nothing else is read.
async fn by_index(
    ffmpeg: &Ffmpeg,
    content: &Content,
    index: Index,
    config: &MediaConfig,
) -> Result<Option<Probed>, MediaError> {
    let Some(report) = ffmpeg::again(|| shown(ffmpeg, content, &index)).await? else { return Ok(None) };
    // One stream was fed, whatever else the file holds.
    let Ok(stream) = report::choose(&report.streams) else { return Ok(None) };
    let Some(key) = index.groups.first().map(|group| group.time) else { return Ok(None) };
    let first = index.times.as_ref().and_then(|times| times.first().copied()).unwrap_or(key);
    let scan = index.times.as_ref().map(|times| Scan::listed(times, first));
    let header = Header {
        length: index.length.map(|length| length as f64 / 1e6).filter(|length| *length > 0.0),
        frames: None,
        rate: index.rate,
        average: scan.as_ref().and_then(Scan::average),
    };
    let Some(measured) = scan.map_or_else(|| header.estimated(), |scan| scan.measured(&header)) else {
        return Ok(None);
    };
    let picture = picture(ffmpeg, &stream).await?;
    let found = Found { stream: index.stream, first, measured, access: Access::Index(Arc::new(index)), picture };
    found.within(&stream, config).map(Some)
}

/// What ffprobe says of a container that holds the first key frame only. `None` when that does not decode.
async fn shown(ffmpeg: &Ffmpeg, content: &Content, index: &Index) -> Result<Option<Report>, MediaError> {
    let Some(key) = index.groups.first() else { return Ok(None) };
    let cut = Cut { group: 0, frames: vec![key.time] };
    let mut arguments: Vec<OsString> =
        ["-v", "error", "-of", "json=c=1", "-read_intervals", "%+#1", "-show_entries"].map(Into::into).into();
    arguments.push(format!("{ENTRIES}:frame=best_effort_timestamp_time").into());
    let pixels = ffmpeg.max_pixels().to_string();
    arguments.extend(spliced(index.format(), &["-max_pixels", &pixels, "-codec_whitelist", CODECS]));
    let mut child = ffmpeg.start(Program::Ffprobe, arguments, Input::Pipe).await?;
    let stdin = child.take_stdin();
    let (over, cuts) = (CancellationToken::new(), [cut]);
    let feed = async {
        let Some(mut stdin) = stdin else { return Ok(()) };
        over.run_until_cancelled(index.splice(content, &cuts, &mut stdin)).await.unwrap_or(Ok(()))
    };
    let output = async {
        let output = child.output("looking into the video", 1 << 20).await;
        // Nobody reads what is still fed.
        over.cancel();
        output
    };
    let (fed, output) = tokio::join!(feed, output);
    fed?;
    let output = output?;
    let report: Option<Report> = serde_json::from_str(&String::from_utf8_lossy(&output.stdout)).ok();
    Ok(report.filter(|report| !report.frames.is_empty()))
}

/// Without: ffprobe reads the file, and the packets are counted where the header is not to be believed.
async fn by_ffprobe(ffmpeg: &Ffmpeg, content: &Content, config: &MediaConfig) -> Result<Probed, MediaError> {
    let report = read(ffmpeg, content).await?;
    let stream = report::choose(&report.streams)?;
    too_many_pixels(&stream, config)?;
    // Before anything is decoded or counted, so that a long file is refused without reading it.
    if stream.length(&report.format).is_some_and(|length| length > config.max_duration_s as f64) {
        return Err(long(config));
    }
    if stream.frames().is_some_and(|frames| frames > config.max_frames as u64) {
        return Err(many(config));
    }
    let first = decode::first_frame(ffmpeg, content, stream.index).await?.ok_or_else(undecodable)?;
    let header = Header::new(&report.format, &stream, first);
    let measured = match header.agreed() {
        Some(measured) => measured,
        None => match ffmpeg::again(|| measure(ffmpeg, content, &stream, first, &header, config)).await {
            Err(MediaError::Killed) => header.estimated().ok_or(MediaError::Killed)?,
            measured => measured?,
        },
    };
    let start = report::seconds(report.format.start_time.as_deref()).unwrap_or(0.0);
    let named = |name: &str| report.format.format_name.split(',').any(|format| format == name);
    let access = Access::Seek {
        container_start: (start * 1e6).round() as i64,
        indexed: ["mov", "matroska"].into_iter().any(named),
    };
    let picture = picture(ffmpeg, &stream).await?;
    Found { stream: stream.index, first, measured, access, picture }.within(&stream, config)
}

async fn picture(ffmpeg: &Ffmpeg, stream: &Stream) -> Result<Picture, MediaError> {
    let coded = stream.coded();
    Ok(Picture::new(&coded, coded.wide_range().is_some() && ffmpeg.tone_maps().await?))
}

/// All that was found out, not yet held against the limits.
struct Found {
    stream: u32,
    first: i64,
    measured: Measured,
    access: Access,
    picture: Picture,
}

impl Found {
    fn within(self, stream: &Stream, config: &MediaConfig) -> Result<Probed, MediaError> {
        let Self { measured, picture, .. } = self;
        too_many_pixels(stream, config)?;
        if measured.length > config.max_duration_s as f64 {
            return Err(long(config));
        }
        if measured.frames > config.max_frames as u64 {
            return Err(many(config));
        }
        if stream.pixels() as f64 * measured.length > config.max_pixel_seconds as f64 {
            return Err(MediaError::TooLarge("the video is too long for pictures of this size".to_owned()));
        }
        let duration = MediaTime::from_seconds(measured.length)
            .filter(|length| length.micros() > 0)
            .ok_or_else(|| MediaError::NotVideo("the video has no length".to_owned()))?;
        let keys = if let Access::Index(index) = &self.access {
            let keys = index.groups.iter().map(|group| group.time.saturating_sub(self.first));
            Some(keys.filter(|time| *time >= 0).collect())
        } else {
            None
        };
        let info = VideoInfo {
            duration,
            size: stream.displayed(),
            fps: measured.fps,
            frames: measured.frames,
            treatment: picture.notes().to_vec(),
        };
        Ok(Probed {
            info,
            stream: self.stream,
            first: self.first,
            timing: measured.timing,
            access: self.access,
            keys,
            coded_pixels: stream.pixels(),
            picture,
        })
    }
}

fn too_many_pixels(stream: &Stream, config: &MediaConfig) -> Result<(), MediaError> {
    if stream.pixels() <= config.max_pixels {
        return Ok(());
    }
    Err(MediaError::TooLarge(format!(
        "the picture of {}x{} is larger than the {} pixels this server takes",
        stream.width, stream.height, config.max_pixels
    )))
}

fn undecodable() -> MediaError {
    let problem = "no frame of the video can be decoded: it is damaged, or its codec is not known";
    MediaError::NotVideo(problem.to_owned())
}

fn many(config: &MediaConfig) -> MediaError {
    MediaError::TooLarge(format!("the video has more than the {} frames this server takes", config.max_frames))
}

fn long(config: &MediaConfig) -> MediaError {
    MediaError::TooLarge(format!("the video is longer than the {} s this server takes", config.max_duration_s))
}

async fn read(ffmpeg: &Ffmpeg, content: &Content) -> Result<Report, MediaError> {
    let mut arguments: Vec<OsString> =
        ["-v", "error", "-of", "json=c=1", "-show_entries", ENTRIES].map(Into::into).into();
    arguments.extend(probing(ffmpeg));
    let output = ffmpeg::again(async || {
        let what = "looking into the video";
        ffmpeg.run(Program::Ffprobe, arguments.clone(), whole(content)?, what, 1 << 20).await
    });
    let output = output.await?;
    match output.exit {
        // Names in a file need not be text.
        Exit::Done(status) if status.success() => serde_json::from_str(&String::from_utf8_lossy(&output.stdout))
            .map_err(|_| MediaError::Internal("ffprobe's report can't be read".to_owned())),
        _ => Err(MediaError::NotVideo(
            "the file is not a video that can be read: not a video file (MP4, MOV, MKV, WebM, AVI, MPEG, ...), \
             or cut off or damaged so that its header is missing"
                .to_owned(),
        )),
    }
}

/// Counts the stream's packets.
async fn measure(
    ffmpeg: &Ffmpeg,
    content: &Content,
    stream: &Stream,
    first: i64,
    header: &Header,
    config: &MediaConfig,
) -> Result<Measured, MediaError> {
    let estimate = || header.estimated();
    if content.bytes() > MAX_SCAN_BYTES
        && let Some(measured) = estimate()
    {
        return Ok(measured);
    }
    let mut scan = Scan::default();
    let index = stream.index.to_string();
    let mut arguments: Vec<OsString> = ["-v", "error", "-select_streams", &index].map(Into::into).into();
    arguments
        .extend(["-show_entries", "packet=pts_time,dts_time,duration_time,flags", "-of", "csv=p=0"].map(Into::into));
    arguments.extend(probing(ffmpeg));
    let limit = SCAN_TIMEOUT.min(ffmpeg.timeout());
    let child = ffmpeg.start_within(Program::Ffprobe, arguments, whole(content)?, limit).await?;
    let (mut stdout, mut stderr, control) = child.split();
    let lines = ffmpeg::each_line(&mut stdout, |line| {
        if !scan.add(line, first, config.max_frames) {
            control.stop();
        }
    });
    tokio::join!(lines, ffmpeg::each_line(&mut stderr, |_| ()));
    let exit = control.exit().await;
    match exit {
        Exit::TimedOut => estimate().ok_or(MediaError::Timeout("counting the video's frames")),
        Exit::Stopped => Err(many(config)),
        Exit::Killed => Err(MediaError::Killed),
        // A damaged end is no reason to forget what came before.
        Exit::Done(_) => scan
            .measured(header)
            .or_else(estimate)
            .ok_or_else(|| MediaError::NotVideo("the video's length can't be found".to_owned())),
    }
}
