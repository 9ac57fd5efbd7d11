//! Pixels to patches, in the order in which the vision tower was trained to read them.
//!
//! Order and normalisation are those of transformers' `image_processing_qwen2_vl` and `video_processing_qwen3_vl`, without the
//! scaling: frames arrive in the size they shall have. Knows nothing of tensors.

use crate::model::{ModelError, ProcessorConfig};
use crate::types::Frame;

/// Patches of a picture: in time, down and across.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Layers of patches in time: 1 for an image.
    pub t: usize,
    /// Rows.
    pub h: usize,
    /// Columns.
    pub w: usize,
}

impl Grid {
    /// Patches in all.
    #[must_use]
    pub const fn patches(self) -> usize {
        self.t * self.h * self.w
    }

    /// Tokens in all, where squares of `merge` by `merge` patches become one token.
    #[must_use]
    pub const fn tokens(self, merge: usize) -> usize {
        self.t * (self.h / merge) * (self.w / merge)
    }
}

/// A picture as the vision tower reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct Patches {
    /// `[grid.patches(), channels * frames * side * side]`, row by row: patches that become one token stand together, layers of
    /// time one after another; in a patch first colour, then frame, row and column.
    pub values: Vec<f32>,
    /// How many there are.
    pub grid: Grid,
}

/// An image: the frame fills the patch's depth in time by being repeated.
pub(in crate::model) fn image(config: &ProcessorConfig, frame: &Frame) -> Result<Patches, ModelError> {
    video(config, std::slice::from_ref(frame))
}

/// A video: each patch reaches over `temporal_patch_size` frames; the last frame is repeated to fill the last one.
pub(in crate::model) fn video(config: &ProcessorConfig, frames: &[Frame]) -> Result<Patches, ModelError> {
    let Some(last) = frames.last() else { return Err(ModelError::input("a video without a frame")) };
    let (width, height) = (last.size.width as usize, last.size.height as usize);
    let factor = config.patch_size * config.merge_size;
    if width == 0 || height == 0 || !width.is_multiple_of(factor) || !height.is_multiple_of(factor) {
        return Err(ModelError::input(format!("a frame of {width}x{height}: its sides must be multiples of {factor}")));
    }
    if frames.iter().any(|frame| frame.size != last.size) {
        return Err(ModelError::input("frames of one video differ in size"));
    }
    if frames.iter().any(|frame| Some(frame.rgb.len()) != width.checked_mul(height).and_then(|n| n.checked_mul(3))) {
        return Err(ModelError::input("a frame with more or fewer pixels than its size says"));
    }
    let (side, merge, depth) = (config.patch_size, config.merge_size, config.temporal_patch_size);
    let grid = Grid { t: frames.len().div_ceil(depth), h: height / side, w: width / side };
    let colours = tables(config);
    let mut values = Vec::with_capacity(grid.patches() * 3 * depth * side * side);
    for layer in 0..grid.t {
        for (row, column) in block_order(grid, merge) {
            for (channel, colours) in colours.iter().enumerate() {
                for frame in layer * depth..(layer + 1) * depth {
                    let rgb = &frames.get(frame).unwrap_or(last).rgb;
                    for y in row * side..(row + 1) * side {
                        let start = (y * width + column * side) * 3;
                        let (pixels, _) = rgb[start..start + 3 * side].as_chunks::<3>();
                        values.extend(pixels.iter().map(|pixel| colours[usize::from(pixel[channel])]));
                    }
                }
            }
        }
    }
    Ok(Patches { values, grid })
}

/// Row and column of each patch of one layer of time, in the order in which they stand: square by square of those that
/// become one token, row by row in a square.
pub(super) fn block_order(grid: Grid, merge: usize) -> impl Iterator<Item = (usize, usize)> {
    let inside = move |top: usize, left: usize| {
        (0..merge).flat_map(move |row| (0..merge).map(move |column| (top + row, left + column)))
    };
    let squares = (0..grid.h / merge).flat_map(move |row| (0..grid.w / merge).map(move |column| (row, column)));
    squares.flat_map(move |(row, column)| inside(row * merge, column * merge))
}

/// What each 8-bit value of each colour becomes.
fn tables(config: &ProcessorConfig) -> [[f32; 256]; 3] {
    std::array::from_fn(|channel| {
        // As the reference does: one step for scaling to 0..1 and normalising.
        let (mean, deviation) = (config.mean[channel] * 255.0, config.deviation[channel] * 255.0);
        std::array::from_fn(|value| (value as f32 - mean) / deviation)
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::types::FrameSize;

    const CONFIG: ProcessorConfig =
        ProcessorConfig { patch_size: 2, merge_size: 2, temporal_patch_size: 2, mean: [0.5; 3], deviation: [0.5; 3] };

    /// Every pixel has its number in red; green is the number of the frame.
    fn frame(width: u32, height: u32, number: u8) -> Frame {
        let rgb: Vec<u8> = (0..width * height).flat_map(|pixel| [pixel as u8, number, 255]).collect();
        Frame { time: None, size: FrameSize { width, height }, rgb: Bytes::from(rgb) }
    }

    fn byte(value: f32) -> i32 {
        ((value * 0.5 + 0.5) * 255.0).round() as i32
    }

    #[test]
    fn patches_of_one_token_stand_together() {
        let patches = image(&CONFIG, &frame(8, 4, 7)).expect("fits");
        assert_eq!(patches.grid, Grid { t: 1, h: 2, w: 4 });
        assert_eq!(patches.grid.tokens(2), 2);
        let width = 3 * 2 * 2 * 2;
        let firsts: Vec<i32> = patches.values.chunks(width).map(|patch| byte(patch[0])).collect();
        assert_eq!(firsts, [0, 2, 16, 18, 4, 6, 20, 22]);
    }

    #[test]
    fn a_patch_is_colour_by_colour_frame_by_frame() {
        let patches = video(&CONFIG, &[frame(4, 4, 1), frame(4, 4, 2), frame(4, 4, 3)]).expect("fits");
        assert_eq!(patches.grid, Grid { t: 2, h: 2, w: 2 });
        let width = 3 * 2 * 2 * 2;
        let first: Vec<i32> = patches.values[..width].iter().map(|value| byte(*value)).collect();
        assert_eq!(first[..16], [0, 1, 4, 5, 0, 1, 4, 5, 1, 1, 1, 1, 2, 2, 2, 2]);
        let second: Vec<i32> = patches.values[4 * width..5 * width].iter().map(|value| byte(*value)).collect();
        assert_eq!(second[8..16], [3; 8], "the last frame is repeated");
    }

    #[test]
    fn frames_that_do_not_fit_are_refused() {
        for (width, height) in [(6, 4), (4, 6), (0, 4)] {
            assert!(matches!(image(&CONFIG, &frame(width, height, 0)), Err(ModelError::Input(_))));
        }
        assert!(video(&CONFIG, &[]).is_err());
        assert!(video(&CONFIG, &[frame(4, 4, 0), frame(8, 4, 0)]).is_err());
        let mut short = frame(4, 4, 0);
        short.rgb = short.rgb.slice(1..);
        assert!(image(&CONFIG, &short).is_err());
    }
}
