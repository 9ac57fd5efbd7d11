//! Fetching and decoding of videos.

use std::path::PathBuf;

use serde::Deserialize;

use super::{ConfigError, positive};

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
    /// Largest video in bytes.
    pub max_bytes: u64,
    /// Longest video in seconds.
    pub max_duration_s: u64,
    /// Largest picture in pixels.
    pub max_pixels: u64,
    /// Seconds for a download.
    pub fetch_timeout_s: u64,
    /// Seconds for one ffmpeg process.
    pub decode_timeout_s: u64,
    /// ffmpeg processes at the same time.
    pub max_processes: usize,
    /// Address space of one ffmpeg process in bytes.
    pub max_process_bytes: u64,
    /// Decoded frames kept, in bytes.
    pub cache_bytes: u64,
    /// Folder of `ffmpeg` and `ffprobe`. By default they are looked for on the path and beside paravt.
    pub ffmpeg_directory: Option<PathBuf>,
}

impl Default for MediaConfig {
    fn default() -> Self {
        Self {
            allowed_directories: Vec::new(),
            allow_http: true,
            allow_private_addresses: false,
            max_bytes: 8 << 30,
            max_duration_s: 6 * 3600,
            max_pixels: 8192 * 4320,
            fetch_timeout_s: 300,
            decode_timeout_s: 300,
            max_processes: 4,
            max_process_bytes: 4 << 30,
            cache_bytes: 512 << 20,
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
        positive(self.max_duration_s, "media.max_duration_s")?;
        positive(self.max_pixels, "media.max_pixels")?;
        positive(self.max_process_bytes, "media.max_process_bytes")
    }
}
