//! Frames as JPEG data URLs, each encoded once however often it is sent.

use std::num::NonZero;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{StreamExt, TryStreamExt, stream};
use image::ExtendedColorType;
use image::codecs::jpeg::JpegEncoder;
use moka::future::Cache;
use sha2::{Digest, Sha256};

use crate::engine::EngineError;
use crate::types::Frame;

/// JPEG quality: what is lost is well below what the model's patches resolve.
const QUALITY: u8 = 95;
/// Bytes of data URLs kept.
const CACHE_BYTES: u64 = 64 << 20;

/// A SHA-256.
pub(super) type Key = [u8; 32];

/// Encodes frames on the blocking pool and keeps the results by content: an overview is sent again every turn.
#[derive(Debug, Clone)]
pub(super) struct Frames {
    cache: Cache<Key, Arc<str>>,
    at_once: usize,
}

impl Frames {
    pub(super) fn new() -> Self {
        let weigh = |_: &Key, url: &Arc<str>| u32::try_from(url.len()).unwrap_or(u32::MAX);
        let cache = Cache::builder().weigher(weigh).max_capacity(CACHE_BYTES).build();
        Self { cache, at_once: std::thread::available_parallelism().map_or(1, NonZero::get) }
    }

    /// The data URLs of these frames, in order, each with a digest of the frame that is the same everywhere.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] for a frame without pixels.
    pub(super) async fn encode(&self, frames: Vec<Frame>) -> Result<Vec<(u64, Arc<str>)>, EngineError> {
        if frames.is_empty() {
            return Ok(Vec::new());
        }
        let keyed =
            blocking(move || Ok(frames.into_iter().map(|frame| (key(&frame), frame)).collect::<Vec<_>>())).await?;
        let encoded = keyed.into_iter().map(|(key, frame)| async move {
            let url = self.cache.try_get_with(key, blocking(move || data_url(&frame))).await;
            let url = url.map_err(|error: Arc<EngineError>| EngineError::clone(&error))?;
            Ok((first_bytes(key), url))
        });
        stream::iter(encoded).buffered(self.at_once).try_collect().await
    }
}

/// Runs this off the async threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<T, EngineError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(EngineError::Failed("a request could not be encoded".to_owned())))
}

/// The first bytes of a digest, as a number.
pub(super) fn first_bytes(key: Key) -> u64 {
    key.iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

fn key(frame: &Frame) -> Key {
    let mut hash = Sha256::new();
    hash.update(frame.size.width.to_le_bytes());
    hash.update(frame.size.height.to_le_bytes());
    hash.update(&frame.rgb);
    hash.finalize().into()
}

fn data_url(frame: &Frame) -> Result<Arc<str>, EngineError> {
    let (width, height) = (frame.size.width, frame.size.height);
    let invalid = || EngineError::Invalid(format!("a frame of {width}x{height} pixels can't be sent"));
    // The encoder panics on a buffer of another length.
    if frame.rgb.is_empty() || u64::from(width) * u64::from(height) * 3 != frame.rgb.len() as u64 {
        return Err(invalid());
    }
    let mut jpeg = Vec::new();
    let mut encoder = JpegEncoder::new_with_quality(&mut jpeg, QUALITY);
    encoder.encode(&frame.rgb, width, height, ExtendedColorType::Rgb8).map_err(|_| invalid())?;
    let mut url = String::from("data:image/jpeg;base64,");
    STANDARD.encode_string(&jpeg, &mut url);
    Ok(url.into())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::types::FrameSize;

    fn frame(width: u32, height: u32, rgb: Vec<u8>) -> Frame {
        Frame { time: None, size: FrameSize { width, height }, rgb: Bytes::from(rgb) }
    }

    #[tokio::test]
    async fn a_frame_comes_back_as_it_was_and_is_encoded_once() {
        let rgb: Vec<u8> = (0..64_u32 * 32).flat_map(|at| [(at % 64 * 4) as u8, (at / 64 * 8) as u8, 90]).collect();
        let frames = Frames::new();
        let (one, other) = (frame(64, 32, rgb.clone()), frame(32, 64, rgb.clone()));
        let encoded = frames.encode(vec![one.clone(), other, one]).await.expect("encodes");
        let (digests, urls): (Vec<_>, Vec<_>) = encoded.into_iter().unzip();
        assert!(digests[0] == digests[2] && digests[0] != digests[1]);
        assert!(Arc::ptr_eq(&urls[0], &urls[2]));
        assert_ne!(urls[0], urls[1], "the same bytes in another shape");
        let jpeg = STANDARD.decode(urls[0].strip_prefix("data:image/jpeg;base64,").expect("a JPEG")).expect("base64");
        let decoded = image::load_from_memory(&jpeg).expect("a picture").to_rgb8();
        let apart = decoded.as_raw().iter().zip(&rgb).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(decoded.dimensions() == (64, 32) && apart < Some(16), "{apart:?}");
    }

    #[tokio::test]
    async fn a_frame_that_lies_about_its_size_is_refused() {
        for (width, height, bytes) in [(2, 2, 11), (0, 0, 0), (70_000, 1, 210_000)] {
            let frames = Frames::new().encode(vec![frame(width, height, vec![0; bytes])]).await;
            assert!(matches!(frames, Err(EngineError::Invalid(_))), "{width}x{height}");
        }
    }
}
