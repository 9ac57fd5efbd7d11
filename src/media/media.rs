//! The room's front: open a video, see its overview, watch a window.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::cache::{Frames, Put, Scene};
use super::content::Content;
use super::decode::{Job, covers};
use super::plan::{self, Plan, Target};
use super::probe::{Access, Probed, VideoInfo};
use super::sample::{self, Density};
use super::source::{Kind, Sources};
use super::{Ffmpeg, MediaError, SourceRequest, image, probe};
use crate::card::{FrameBudget, PixelBudget};
use crate::config::MediaConfig;
use crate::types::{Clip, Frame, MediaTime, TimeSpan};

/// Largest still picture in bytes, where the configuration allows videos as large.
const MAX_IMAGE_BYTES: u64 = 64 << 20;
/// Largest clip in bytes of pixels.
const MAX_CLIP_BYTES: u64 = 1 << 30;
/// All clips being decoded at the same time, in MiB of pixels.
const MAX_CLIPS_MIB: u32 = 2 << 10;
/// Videos whose probing is remembered.
const MAX_PROBES: u64 = 256;
/// Frame times a remembered probing may hold in all.
const MAX_PROBE_BYTES: u64 = 64 << 20;

/// Opens videos and gives frames. Cheap to clone; all clones share the cache and the limits.
#[derive(Debug, Clone)]
pub struct Media {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: MediaConfig,
    ffmpeg: Ffmpeg,
    sources: Sources,
    frames: Frames,
    /// What is known of contents, by their identity and whether they are here; `None` for what must be downloaded first.
    probes: moka::future::Cache<(Arc<str>, bool), Option<Arc<Probed>>>,
    /// Still pictures being decoded.
    pictures: Arc<Semaphore>,
    /// MiB of clips being decoded.
    clips: Semaphore,
}

/// An open video: fetched, probed, ready for frames. Cheap to clone; a downloaded file goes with its last clone.
#[derive(Debug, Clone)]
pub struct Video {
    inner: Arc<Opened>,
    /// The part of it that this is. All times are then from the part's start.
    part: Option<TimeSpan>,
}

/// The same open file, and the same part of it.
impl PartialEq for Video {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner) && self.part == other.part
    }
}

impl Eq for Video {}

#[derive(Debug)]
struct Opened {
    id: Arc<str>,
    content: Arc<Content>,
    probed: Arc<Probed>,
}

/// What media is doing and has done. No processes: idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MediaLoad {
    /// ffmpeg and ffprobe processes alive.
    pub processes: usize,
    /// Processes that ended with an error, or took too long, since the start.
    pub process_failures: u64,
    /// Bytes that came from the web since the start.
    pub fetched_bytes: u64,
    /// Clips served from the cache of decoded frames, or from what another request decoded, since the start.
    pub cache_hits: u64,
    /// Clips that had frames decoded for them since the start.
    pub cache_misses: u64,
    /// Bytes of decoded frames kept.
    pub cache_bytes: u64,
}

impl Media {
    /// Finds ffmpeg and prepares the cache.
    ///
    /// # Errors
    /// [`MediaError::NoFfmpeg`].
    pub fn new(config: MediaConfig) -> Result<Self, MediaError> {
        let ffmpeg = Ffmpeg::find(&config)?;
        let probes = moka::future::Cache::builder()
            .max_capacity(MAX_PROBE_BYTES)
            .weigher(|_: &(Arc<str>, bool), probed: &Option<Arc<Probed>>| {
                let least = MAX_PROBE_BYTES / MAX_PROBES;
                u32::try_from(least.max(probed.as_ref().map_or(0, |probed| probed.bytes()))).unwrap_or(u32::MAX)
            })
            .build();
        let frames = Frames::new(config.cache_bytes, ffmpeg.slots());
        let pictures = Arc::new(Semaphore::new(ffmpeg.slots()));
        let clips = Semaphore::new(MAX_CLIPS_MIB as usize);
        let sources = Sources::new(&config);
        Ok(Self { inner: Arc::new(Inner { config, ffmpeg, sources, frames, probes, pictures, clips }) })
    }

    /// Fetches where needed, checks against the limits, and probes.
    ///
    /// # Errors
    /// [`MediaError`] by cause: where it is, how large it is, what it is.
    pub async fn open(&self, source: &SourceRequest) -> Result<Video, MediaError> {
        if let SourceRequest::Open(video) = source {
            return Ok(video.clone());
        }
        let inner = &*self.inner;
        let max_bytes = inner.config.max_bytes;
        let content = Arc::new(Box::pin(inner.sources.open(source, Kind::Video, max_bytes)).await?);
        let whole = match self.probe(Arc::clone(&content)).await {
            Ok(Some(video)) => return Ok(video),
            Ok(None) => Box::pin(content.download()).await,
            Err(error) => Err(error),
        };
        let whole = match whole {
            // Nothing was shown of it yet, so it may be another file by now. Once: what then comes is whole.
            Err(_) if content.is_lost() => Box::pin(inner.sources.open_whole(source, Kind::Video, max_bytes)).await,
            whole => whole,
        };
        let content = Arc::new(whole?);
        let unread = || MediaError::Internal("a downloaded file is no file".to_owned());
        self.probe(content).await?.ok_or_else(unread)
    }

    async fn probe(&self, content: Arc<Content>) -> Result<Option<Video>, MediaError> {
        let inner = &*self.inner;
        let id: Arc<str> = content.id().into();
        let probe = async {
            Box::pin(probe::probe(&inner.ffmpeg, &content, &inner.config)).await.map(|found| found.map(Arc::new))
        };
        let probed = inner.probes.try_get_with((Arc::clone(&id), content.is_local()), probe).await;
        let probed = probed.map_err(|error| MediaError::clone(&error))?;
        Ok(probed.map(|probed| Video { inner: Arc::new(Opened { id, content, probed }), part: None }))
    }

    /// Frames spread over the whole video or over `span`: `frames` exactly, or as the budget says. Never more than there
    /// are.
    ///
    /// # Errors
    /// [`MediaError::NoFrames`] when the span is past the end or nothing there decodes, [`MediaError::Timeout`].
    pub async fn overview(
        &self,
        video: &Video,
        budget: &FrameBudget,
        frames: Option<u32>,
        span: Option<TimeSpan>,
        pixels: &PixelBudget,
    ) -> Result<Clip, MediaError> {
        let density = frames.map_or(Density::Budget, Density::Exactly);
        let plan = plan::plan(&video.inner.probed, video.within(span), density, budget)?;
        let plan = plan.sampled(&video.inner.probed, self.inner.config.overview_sampling);
        self.clip(video, plan, pixels).await
    }

    /// Frames of one window (widened to hold a frame), or when `dense` exactly `budget.max_frames` where the window has as many.
    ///
    /// # Errors
    /// As [`Self::overview`].
    pub async fn window(
        &self,
        video: &Video,
        span: TimeSpan,
        budget: &FrameBudget,
        dense: bool,
        pixels: &PixelBudget,
    ) -> Result<Clip, MediaError> {
        let density = if dense { Density::Dense } else { Density::Budget };
        let plan = plan::plan(&video.inner.probed, video.within(Some(span)), density, budget)?;
        self.clip(video, plan, pixels).await
    }

    async fn clip(&self, video: &Video, plan: Plan, pixels: &PixelBudget) -> Result<Clip, MediaError> {
        let Opened { id, content, probed } = &*video.inner;
        let size = sample::frame_size(probed.info.size, pixels)?;
        let bytes = 3 * u64::from(size.width) * u64::from(size.height) * plan.targets.len() as u64;
        if bytes > MAX_CLIP_BYTES {
            return Err(MediaError::TooLarge(
                "so many frames of this size are more than this server decodes".to_owned(),
            ));
        }
        let mib = u32::try_from(bytes >> 20).unwrap_or(u32::MAX).saturating_add(1).min(MAX_CLIPS_MIB);
        let _room = self.inner.clips.acquire_many(mib).await;
        let scene = Scene { content: Arc::clone(id), size };
        let (ffmpeg, content, theirs) = (self.inner.ffmpeg.clone(), Arc::clone(content), Arc::clone(probed));
        let decode = move |targets: Vec<Target>, put: Put| async move {
            let job = Job { ffmpeg: &ffmpeg, content: &content, probed: &theirs, size };
            job.decode(&targets, &*put).await
        };
        let found = Box::pin(self.inner.frames.get(&scene, &plan.targets, decode)).await?;
        let covered = |(target, frame): (&Target, &Option<Frame>)| {
            frame.as_ref().is_some_and(|frame| covers(frame, target, probed))
        };
        let partial = !plan.targets.iter().zip(&found).all(covered);
        let mut frames: Vec<Frame> = found.into_iter().flatten().collect();
        frames.sort_by_key(|frame| frame.time);
        frames.dedup_by_key(|frame| frame.time);
        if frames.is_empty() {
            let problem = "no frame of this stretch can be decoded: the file is cut off or damaged there";
            return Err(MediaError::NoFrames(problem.to_owned()));
        }
        Ok(video.told(Clip { span: plan.span, frames, partial, keyframes: plan.keyframes }))
    }

    /// A still picture from `data:`/`http(s):`/`file:`, decoded with limits and scaled.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn image(&self, source: &SourceRequest, pixels: &PixelBudget) -> Result<Frame, MediaError> {
        let config = &self.inner.config;
        let content =
            Box::pin(self.inner.sources.open(source, Kind::Image, config.max_bytes.min(MAX_IMAGE_BYTES))).await?;
        let broken = |_| MediaError::Internal("a picture's decoder broke off".to_owned());
        let permit = Arc::clone(&self.inner.pictures).acquire_owned().await;
        let permit = permit.map_err(|_| MediaError::Internal("shutting down".to_owned()))?;
        let (pixels, max_pixels) = (*pixels, config.max_pixels);
        let bytes = content.read(0..content.bytes()).await?;
        // Bounded by the limits on bytes and pixels; when the caller goes away, it ends by itself.
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            image::decode(&bytes, &pixels, max_pixels)
        })
        .await
        .map_err(broken)?
    }

    /// What is going on now.
    #[must_use]
    pub fn load(&self) -> MediaLoad {
        let (cache_hits, cache_misses, cache_bytes) = self.inner.frames.counts();
        MediaLoad {
            processes: self.inner.ffmpeg.processes(),
            process_failures: self.inner.ffmpeg.failures(),
            fetched_bytes: self.inner.sources.fetched_bytes(),
            cache_hits,
            cache_misses,
            cache_bytes,
        }
    }

    /// Waits until no process of ours is left, as after a shutdown or when all callers have gone away.
    pub async fn idle(&self) {
        self.inner.ffmpeg.idle().await;
    }

    /// The processes.
    pub(super) fn ffmpeg(&self) -> &Ffmpeg {
        &self.inner.ffmpeg
    }
}

impl Video {
    /// Length, size, rate.
    #[must_use]
    pub fn info(&self) -> &VideoInfo {
        &self.inner.probed.info
    }

    /// Its length, or the part's.
    #[must_use]
    pub fn duration(&self) -> MediaTime {
        self.part.map_or(self.inner.probed.info.duration, |part| part.end.saturating_sub(part.start))
    }

    /// A part of it as a video of its own, whose first instant is 0. `span` is in this video's own times. `None` where it holds
    /// nothing of the video.
    #[must_use]
    pub fn part(&self, span: TimeSpan) -> Option<Self> {
        let part = self.within(Some(span))?;
        let first = self.part.map_or(MediaTime::ZERO, |part| part.start);
        let part = TimeSpan { start: part.start.max(first), end: part.end.min(self.inner.probed.info.duration) };
        (part.start < part.end).then(|| Self { inner: Arc::clone(&self.inner), part: Some(part) })
    }

    /// A stretch, or all of it, in the times of the whole video. `None` is all of a whole video.
    fn within(&self, span: Option<TimeSpan>) -> Option<TimeSpan> {
        let (Some(part), Some(span)) = (self.part, span) else { return span.or(self.part) };
        let start = span.start.saturating_add(part.start);
        Some(TimeSpan { start, end: span.end.saturating_add(part.start).min(part.end) })
    }

    /// A clip in this part's times.
    fn told(&self, clip: Clip) -> Clip {
        let Some(part) = self.part else { return clip };
        // A frame may be shown since before the part begins.
        let moved = |time: MediaTime| time.saturating_sub(part.start).max(MediaTime::ZERO);
        let span = TimeSpan { start: moved(clip.span.start), end: moved(clip.span.end) };
        let frames = clip.frames.into_iter().map(|frame| Frame { time: frame.time.map(moved), ..frame }).collect();
        Clip { span, frames, ..clip }
    }

    /// Size of the video's file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.inner.content.bytes()
    }

    /// Bytes read of it through this value until now, from a disk or the network. `None` where ffmpeg reads the file by
    /// itself.
    #[must_use]
    pub fn bytes_read(&self) -> Option<u64> {
        let Opened { content, probed, .. } = &*self.inner;
        matches!(probed.access, Access::Index(_)).then(|| content.bytes_read())
    }

    /// The same for the same content, as far as is known without reading all of a file. Not for callers: it tells
    /// whether two requests hold the same video.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.inner.id
    }
}
