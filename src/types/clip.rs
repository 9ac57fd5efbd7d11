//! Frames and runs of frames, already scaled to the size the model wants.

use bytes::Bytes;

use super::{MediaTime, TimeSpan};

/// Width and height in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FrameSize {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

/// One decoded picture: 8-bit RGB, row by row, no padding, `3 * width * height` bytes. Cloning shares the pixels.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    /// Presentation time of this very frame, from the video's first frame. `None` for a still image of the request.
    pub time: Option<MediaTime>,
    /// Its size.
    pub size: FrameSize,
    /// Its pixels.
    pub rgb: Bytes,
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frame({:?}, {}x{})", self.time.map(MediaTime::seconds), self.size.width, self.size.height)
    }
}

/// Frames of one stretch of a video in time order, all of one size.
#[derive(Debug, Clone)]
pub struct Clip {
    /// What was asked for, clamped to the video.
    pub span: TimeSpan,
    /// What was chosen. Never empty.
    pub frames: Vec<Frame>,
    /// True when the file ended or broke before all of the asked frames had decoded.
    pub partial: bool,
    /// True when the frames are key frames, each standing for the nearest frame of those that the sampling rules pick.
    pub keyframes: bool,
}

impl Clip {
    /// The times of the frames that were really chosen.
    #[must_use]
    pub fn times(&self) -> Vec<MediaTime> {
        self.frames.iter().filter_map(|frame| frame.time).collect()
    }
}
