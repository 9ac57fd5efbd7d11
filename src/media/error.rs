//! What can go wrong with media, by cause. Messages are fit for callers: no path, address or stack of ours.

use super::sample::BadAspect;

/// A media failure.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MediaError {
    /// The URL can't be read or its scheme is not served.
    #[error("{0}")]
    BadSource(String),
    /// The host or folder is not allowed.
    #[error("{0}")]
    Forbidden(String),
    /// The file is not there, or the server said so.
    #[error("{0}")]
    NotFound(String),
    /// Too many bytes, seconds or pixels.
    #[error("{0}")]
    TooLarge(String),
    /// The server could not be reached or broke off.
    #[error("the file could not be fetched: {0}")]
    Fetch(String),
    /// Not a video, damaged beyond use, no video stream.
    #[error("{0}")]
    NotVideo(String),
    /// The asked stretch holds no frame.
    #[error("{0}")]
    NoFrames(String),
    /// The disk space for fetched files is taken; it gets free again.
    #[error("the server holds as many files as it can at the moment, try again later")]
    Busy,
    /// Took too long.
    #[error("{0} took too long")]
    Timeout(&'static str),
    /// Somebody else ended ffmpeg, twice in a row: most likely the system, for want of memory. No fault of the video's.
    #[error("the decoder was stopped by the system, try again later")]
    Killed,
    /// ffmpeg is not there.
    #[error("ffmpeg is not installed; `paravt doctor` says how to get it")]
    NoFfmpeg,
    /// A fault of ours or of the machine's.
    #[error("decoding failed: {0}")]
    Internal(String),
}

impl From<BadAspect> for MediaError {
    fn from(error: BadAspect) -> Self {
        Self::NotVideo(error.to_string())
    }
}
