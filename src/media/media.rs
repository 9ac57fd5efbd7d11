//! The room's front: open a video, see its overview, watch a window.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::cache::{Frames, Key};
use super::plan::{self, Plan};
use super::probe::{Probed, VideoInfo};
use super::sample::{self, Density};
use super::source::{self, Kind, Local};
use super::{Ffmpeg, MediaError, SourceRequest, decode, image, probe};
use crate::card::{FrameBudget, PixelBudget};
use crate::config::MediaConfig;
use crate::types::{Clip, Frame, TimeSpan};

/// Largest still picture in bytes, where the configuration allows videos as large.
const MAX_IMAGE_BYTES: u64 = 64 << 20;
/// Largest clip in bytes of pixels.
const MAX_CLIP_BYTES: u64 = 1 << 30;
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
    frames: Frames,
    probes: moka::future::Cache<Arc<str>, Arc<Probed>>,
    /// Still pictures being decoded.
    pictures: Arc<Semaphore>,
}

/// An open video: fetched, probed, ready for frames. Cheap to clone; a downloaded file goes with its last clone.
#[derive(Debug, Clone)]
pub struct Video {
    inner: Arc<Opened>,
}

#[derive(Debug)]
struct Opened {
    id: Arc<str>,
    local: Local,
    probed: Arc<Probed>,
}

/// What media is doing and has done. No processes: idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MediaLoad {
    /// ffmpeg and ffprobe processes alive.
    pub processes: usize,
    /// Clips served from the cache of decoded frames, or from what another request decoded, since the start.
    pub cache_hits: u64,
    /// Decodings begun since the start.
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
            .weigher(|_: &Arc<str>, probed: &Arc<Probed>| {
                let least = MAX_PROBE_BYTES / MAX_PROBES;
                u32::try_from(least.max(probed.timing.bytes())).unwrap_or(u32::MAX)
            })
            .build();
        let frames = Frames::new(config.cache_bytes);
        let pictures = Arc::new(Semaphore::new(ffmpeg.slots()));
        Ok(Self { inner: Arc::new(Inner { config, ffmpeg, frames, probes, pictures }) })
    }

    /// Fetches where needed, checks against the limits, and probes.
    ///
    /// # Errors
    /// [`MediaError`] by cause: where it is, how large it is, what it is.
    pub async fn open(&self, source: &SourceRequest) -> Result<Video, MediaError> {
        let inner = &*self.inner;
        let local = Box::pin(source::fetch(source, Kind::Video, inner.config.max_bytes, &inner.config)).await?;
        let id: Arc<str> = local.id.as_str().into();
        let probe = async { Box::pin(probe::probe(&inner.ffmpeg, &local, &inner.config)).await.map(Arc::new) };
        let probed = inner.probes.try_get_with(Arc::clone(&id), probe).await;
        let probed = probed.map_err(|error| MediaError::clone(&error))?;
        Ok(Video { inner: Arc::new(Opened { id, local, probed }) })
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
        let plan = plan::plan(&video.inner.probed, span, density, budget)?;
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
        let plan = plan::plan(&video.inner.probed, Some(span), density, budget)?;
        self.clip(video, plan, pixels).await
    }

    async fn clip(&self, video: &Video, plan: Plan, pixels: &PixelBudget) -> Result<Clip, MediaError> {
        let Opened { id, local, probed } = &*video.inner;
        let size = sample::frame_size(probed.info.size, pixels)?;
        let bytes = 3 * u64::from(size.width) * u64::from(size.height) * plan.targets.len() as u64;
        if bytes > MAX_CLIP_BYTES {
            return Err(MediaError::TooLarge(
                "so many frames of this size are more than this server decodes".to_owned(),
            ));
        }
        let key = Key { content: Arc::clone(id), targets: plan.targets.clone(), size };
        let work = decode::decode(&self.inner.ffmpeg, local, probed, &plan.targets, size);
        let decoded = self.inner.frames.get(key, Box::pin(work)).await?;
        Ok(Clip { span: plan.span, frames: decoded.frames.clone(), partial: decoded.partial })
    }

    /// A still picture from `data:`/`http(s):`/`file:`, decoded with limits and scaled.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn image(&self, source: &SourceRequest, pixels: &PixelBudget) -> Result<Frame, MediaError> {
        let config = &self.inner.config;
        let local = Box::pin(source::fetch(source, Kind::Image, config.max_bytes.min(MAX_IMAGE_BYTES), config)).await?;
        let broken = |_| MediaError::Internal("a picture's decoder broke off".to_owned());
        let permit = Arc::clone(&self.inner.pictures).acquire_owned().await;
        let permit = permit.map_err(|_| MediaError::Internal("shutting down".to_owned()))?;
        let (pixels, max_pixels) = (*pixels, config.max_pixels);
        // Bounded by the limits on bytes and pixels; when the caller goes away, it ends by itself.
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let bytes = std::fs::read(&local.path);
            let bytes = bytes.map_err(|error| MediaError::Internal(format!("temporary file: {}", error.kind())))?;
            image::decode(&bytes, &pixels, max_pixels)
        })
        .await
        .map_err(broken)?
    }

    /// What is going on now.
    #[must_use]
    pub fn load(&self) -> MediaLoad {
        let (cache_hits, cache_misses, cache_bytes) = self.inner.frames.counts();
        MediaLoad { processes: self.inner.ffmpeg.processes(), cache_hits, cache_misses, cache_bytes }
    }

    /// Waits until no process of ours is left, as after a shutdown or when all callers have gone away.
    pub async fn idle(&self) {
        self.inner.ffmpeg.idle().await;
    }
}

impl Video {
    /// Length, size, rate.
    #[must_use]
    pub fn info(&self) -> &VideoInfo {
        &self.inner.probed.info
    }

    /// The same for the same content, as far as is known without reading all of a file. Not for callers: it tells
    /// whether two requests hold the same video.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.inner.id
    }
}
