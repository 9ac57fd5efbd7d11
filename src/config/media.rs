//! Fetching and decoding of videos.

use std::path::PathBuf;

use serde::Deserialize;

use super::{ConfigError, HostPattern, positive};

/// How an overview's frames are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverviewSampling {
    /// Key frames where there are at least four for each frame of the overview, so that the nearest is at most an eighth of the
    /// overview's spacing away. Else exactly. A key frame carries its own time.
    #[default]
    Auto,
    /// The very frames that the reference picks.
    Exact,
    /// The nearest key frames, however far.
    Keyframes,
}

/// Limits and places for media.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MediaConfig {
    /// Folders below which `file://` URLs may point. None by default.
    pub allowed_directories: Vec<PathBuf>,
    /// Whether `http://` and `https://` URLs are fetched.
    pub allow_http: bool,
    /// Whether URLs may lead to private and loopback addresses. Link-local ones, where clouds keep a machine's keys, never.
    pub allow_private_addresses: bool,
    /// Hosts that URLs and their redirects may lead to: `example.org`, or `*.example.org` for all names below it. Empty: all.
    /// A host's addresses are checked in any case.
    pub allowed_hosts: Vec<String>,
    /// Largest video in bytes.
    pub max_bytes: u64,
    /// Bytes of temporary files that all downloads and videos in requests may take together. Those from one host may take a
    /// quarter, and so may those in requests; or `max_bytes` where that is more.
    pub max_temporary_bytes: u64,
    /// Longest video in seconds.
    pub max_duration_s: u64,
    /// Largest picture in pixels.
    pub max_pixels: u64,
    /// Most frames of a video.
    pub max_frames: usize,
    /// Most pixels of a picture times seconds of video, against small files that take for ever.
    pub max_pixel_seconds: u64,
    /// Which frames an overview takes.
    pub overview_sampling: OverviewSampling,
    /// Seconds for a download, for reading a video's index, or for one piece of a video that stays on the web. A server that
    /// sends less than 64 KiB a second on average is given up earlier, after half a minute.
    pub fetch_timeout_s: u64,
    /// Seconds for one ffmpeg process.
    pub decode_timeout_s: u64,
    /// ffmpeg processes at the same time.
    pub max_processes: usize,
    /// Address space of one ffmpeg process in bytes.
    pub max_process_bytes: u64,
    /// Decoded frames kept, in bytes.
    pub cache_bytes: u64,
    /// Pieces of videos on the web that are kept in memory, in bytes.
    pub range_cache_bytes: u64,
    /// Folder of `ffmpeg` and `ffprobe`. By default they are looked for on the path and beside paravt.
    pub ffmpeg_directory: Option<PathBuf>,
}

impl Default for MediaConfig {
    fn default() -> Self {
        Self {
            allowed_directories: Vec::new(),
            allow_http: true,
            allow_private_addresses: false,
            allowed_hosts: Vec::new(),
            max_bytes: 8 << 30,
            max_temporary_bytes: 32 << 30,
            max_duration_s: 6 * 3600,
            max_pixels: 8192 * 4320,
            // Six hours at 240 a second.
            max_frames: 6 * 3600 * 240,
            // 8K for an hour, 1080p for the longest video.
            max_pixel_seconds: 8192 * 4320 * 3600,
            overview_sampling: OverviewSampling::Auto,
            fetch_timeout_s: 300,
            decode_timeout_s: 300,
            max_processes: 4,
            max_process_bytes: 4 << 30,
            cache_bytes: 512 << 20,
            range_cache_bytes: 32 << 20,
            ffmpeg_directory: None,
        }
    }
}

impl MediaConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        positive(self.max_processes as u64, "media.max_processes")?;
        positive(self.decode_timeout_s, "media.decode_timeout_s")?;
        positive(self.fetch_timeout_s, "media.fetch_timeout_s")?;
        positive(self.max_bytes, "media.max_bytes")?;
        if self.max_temporary_bytes < self.max_bytes {
            // Else a video of a size we take could never be downloaded.
            let problem = "must not be below media.max_bytes";
            return Err(ConfigError::Value { field: "media.max_temporary_bytes", problem });
        }
        if !self.allowed_hosts.iter().all(|host| HostPattern::parse(host).is_some()) {
            let problem = "must hold host names such as example.org or *.example.org, without scheme or port";
            return Err(ConfigError::Value { field: "media.allowed_hosts", problem });
        }
        positive(self.max_duration_s, "media.max_duration_s")?;
        positive(self.max_pixels, "media.max_pixels")?;
        positive(self.max_frames as u64, "media.max_frames")?;
        positive(self.max_pixel_seconds, "media.max_pixel_seconds")?;
        positive(self.max_process_bytes, "media.max_process_bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_never_work_is_refused() {
        let host = |name: &str| MediaConfig { allowed_hosts: vec![name.to_owned()], ..MediaConfig::default() };
        assert!(MediaConfig::default().check().is_ok() && host("*.example.org").check().is_ok());
        assert!(host("https://example.org").check().is_err());
        let small = MediaConfig { max_temporary_bytes: 5, max_bytes: 6, ..MediaConfig::default() };
        assert!(small.check().is_err());
    }
}
