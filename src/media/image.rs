//! Still pictures of a request: decoded within limits, upright, without transparency, scaled as the model wants.
//!
//! This file knows nothing of videos.

use std::io::Cursor;

use image::codecs::jpeg::JpegEncoder;
use image::imageops::{self, FilterType};
use image::{DynamicImage, ImageDecoder as _, ImageError, ImageReader, Limits, RgbImage};

use super::MediaError;
use super::sample;
use crate::card::PixelBudget;
use crate::types::{Frame, FrameSize};

/// Bytes a decoder may take for each pixel allowed: 16 bits of four channels.
const BYTES_A_PIXEL: u64 = 8;

/// Decodes and scales. Takes processor time: not for an async thread.
///
/// # Errors
/// [`MediaError::NotVideo`] when it is no picture that can be read, [`MediaError::TooLarge`].
pub(super) fn decode(bytes: &[u8], budget: &PixelBudget, max_pixels: u64) -> Result<Frame, MediaError> {
    let unreadable =
        || MediaError::NotVideo("the picture can't be read: it is not PNG, JPEG or WebP, or damaged".to_owned());
    let too_large =
        || MediaError::TooLarge(format!("the picture is larger than the {max_pixels} pixels this server takes"));
    let explain = |error: ImageError| match error {
        ImageError::Limits(_) => too_large(),
        _ => unreadable(),
    };
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|_| unreadable())?;
    let mut limits = Limits::default();
    limits.max_alloc = Some(max_pixels.saturating_mul(BYTES_A_PIXEL));
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(explain)?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > max_pixels {
        return Err(too_large());
    }
    let orientation = decoder.orientation().map_err(explain)?;
    let mut picture = DynamicImage::from_decoder(decoder).map_err(explain)?;
    picture.apply_orientation(orientation);
    let picture = opaque(picture);
    let size = FrameSize { width: picture.width(), height: picture.height() };
    let size = sample::frame_size(size, budget)?;
    // PIL's bicubic is Catmull-Rom, and both widen the kernel when they shrink.
    let scaled = imageops::resize(&picture, size.width, size.height, FilterType::CatmullRom);
    Ok(Frame { time: None, size, rgb: scaled.into_raw().into() })
}

/// A frame as a small JPEG, its longer side so many pixels at most. `None` for a frame without pixels. Takes processor time.
#[must_use]
pub fn thumbnail(frame: &Frame, side: u32) -> Option<Vec<u8>> {
    const QUALITY: u8 = 75;
    let FrameSize { width, height } = frame.size;
    let picture = RgbImage::from_raw(width, height, frame.rgb.to_vec())?;
    let scale = f64::from(side) / f64::from(width.max(height).max(1));
    let picture = if scale < 1.0 {
        let scaled = |side: u32| ((f64::from(side) * scale).round() as u32).max(1);
        imageops::thumbnail(&picture, scaled(width), scaled(height))
    } else {
        picture
    };
    let mut jpeg = Vec::new();
    JpegEncoder::new_with_quality(&mut jpeg, QUALITY).encode_image(&picture).ok()?;
    Some(jpeg)
}

/// Puts a picture on white, as qwen-vl-utils does.
fn opaque(picture: DynamicImage) -> RgbImage {
    if !picture.color().has_alpha() {
        return picture.into_rgb8();
    }
    let picture = picture.into_rgba8();
    RgbImage::from_fn(picture.width(), picture.height(), |x, y| {
        let [r, g, b, alpha] = picture.get_pixel(x, y).0;
        let alpha = u32::from(alpha);
        let over = |value: u8| ((u32::from(value) * alpha + 255 * (255 - alpha) + 127) / 255) as u8;
        image::Rgb([over(r), over(g), over(b)])
    })
}

#[cfg(test)]
mod tests {
    use image::{ImageFormat, Rgba, RgbaImage};

    use super::*;

    const BUDGET: PixelBudget = PixelBudget { factor: 32, min_pixels: 1024, max_pixels: 16_384 };

    fn encode(picture: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        picture.into().write_to(&mut bytes, format).expect("encodes");
        bytes.into_inner()
    }

    #[test]
    fn a_picture_is_scaled_to_the_budget() {
        let red = RgbImage::from_pixel(640, 320, image::Rgb([250, 0, 0]));
        for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP] {
            let frame = decode(&encode(red.clone(), format), &BUDGET, 1 << 20).expect("decodes");
            assert_eq!(frame.size, FrameSize { width: 160, height: 64 }, "{format:?}");
            assert_eq!(frame.rgb.len(), 160 * 64 * 3);
            assert!(frame.rgb[0] > 240 && frame.rgb[1] < 10, "{format:?}");
            assert_eq!(frame.time, None);
        }
    }

    #[test]
    fn transparency_becomes_white() {
        let clear = RgbaImage::from_pixel(64, 64, Rgba([0, 0, 0, 0]));
        let frame = decode(&encode(clear, ImageFormat::Png), &BUDGET, 1 << 20).expect("decodes");
        assert!(frame.rgb.iter().all(|value| *value == 255));
    }

    #[test]
    fn a_tiny_picture_is_a_patch() {
        let frame = decode(&encode(RgbImage::new(1, 1), ImageFormat::Png), &BUDGET, 100).expect("decodes");
        assert_eq!(frame.size, FrameSize { width: 32, height: 32 });
    }

    #[test]
    fn what_is_too_large_or_no_picture_is_refused() {
        let large = encode(RgbImage::new(200, 200), ImageFormat::Png);
        assert!(matches!(decode(&large, &BUDGET, 100), Err(MediaError::TooLarge(_))));
        for bytes in [&b""[..], b"text", large.get(..60).expect("longer")] {
            assert!(matches!(decode(bytes, &BUDGET, 1 << 20), Err(MediaError::NotVideo(_))));
        }
        let line = encode(RgbImage::new(1000, 1), ImageFormat::Png);
        assert!(matches!(decode(&line, &BUDGET, 1 << 20), Err(MediaError::NotVideo(_))));
    }
}
