//! Media: from a URL, a file or bytes to frames with their own times; and the files that callers upload.
//!
//! This room knows nothing of models, prompts, episodes or HTTP requests to us.

mod address;
mod cache;
mod content;
mod decode;
mod demux;
mod error;
mod ffmpeg;
mod film;
mod http;
mod image;
mod install;
#[expect(clippy::module_inception, reason = "the room's front has the room's name, as its type does")]
mod media;
mod picture;
mod plan;
mod probe;
mod sample;
mod source;
mod uploads;

pub use error::MediaError;
pub use ffmpeg::Ffmpeg;
pub use image::thumbnail;
pub use install::{INSTALL_HINT, InstallReport, install};
pub use media::{Media, MediaLoad, Video};
pub use probe::VideoInfo;
pub use sample::{BadAspect, frame_size, frame_times};
pub use source::SourceRequest;
pub use uploads::{About, FileId, Incoming, Listing, Stored, Turn, Upload, UploadError, Uploads};
