//! Positions, and the angles they turn queries and keys by.
//!
//! A text token has one number for time, height and width; a picture's token has its place in the picture, counted from where
//! the picture begins. Rules: `Qwen3VLModel.get_rope_index`, `Qwen3VLTextRotaryEmbedding` and
//! `Qwen3VLVisionRotaryEmbedding` of transformers. Pure arithmetic.

use super::processor::{Grid, block_order};
use crate::model::{ModelError, TextConfig, VisionConfig};

/// A run of tokens of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// So many tokens of text.
    Text(usize),
    /// The tokens of a picture with this grid of patches. A video whose layers are told apart by time stamps (as Qwen3-VL's
    /// are) is one such span with `t` = 1 for each layer, with text between them.
    Vision(Grid),
}

/// Where tokens stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Positions {
    /// Time, height and width of each token.
    pub tokens: Vec<[u32; 3]>,
    /// What the next token of text gets, three times.
    pub next: u32,
}

/// Positions of a prompt, the first token at `start`. `merge` is the side, in patches, of what becomes one token.
///
/// # Errors
/// [`ModelError::Input`] when a grid does not divide into tokens, or positions leave 32 bits.
pub fn positions(spans: &[Span], merge: usize, start: u32) -> Result<Positions, ModelError> {
    let too_long = || ModelError::input("positions beyond 32 bits");
    let narrow = |number: usize| u32::try_from(number).map_err(|_| too_long());
    let mut next = start;
    let mut tokens = Vec::new();
    for span in spans {
        let length = match *span {
            Span::Text(length) => {
                let length = narrow(length)?;
                let end = next.checked_add(length).ok_or_else(too_long)?;
                tokens.extend((next..end).map(|position| [position; 3]));
                length
            }
            Span::Vision(Grid { t, h, w }) => {
                if merge == 0 || t == 0 || h == 0 || w == 0 || !h.is_multiple_of(merge) || !w.is_multiple_of(merge) {
                    return Err(ModelError::input(format!("a picture of {t}x{h}x{w} patches is not made of tokens")));
                }
                let (t, h, w) = (narrow(t)?, narrow(h / merge)?, narrow(w / merge)?);
                next.checked_add(t.max(h).max(w)).ok_or_else(too_long)?;
                let rows = (0..t).flat_map(|t| (0..h).map(move |h| (t, h)));
                tokens.extend(rows.flat_map(|(t, h)| (0..w).map(move |w| [next + t, next + h, next + w])));
                // Not by time: the next token follows the longer side.
                h.max(w)
            }
        };
        next = next.checked_add(length).ok_or_else(too_long)?;
    }
    Ok(Positions { tokens, next })
}

/// Cosines and sines, row by row: `[rows, width]` each.
#[derive(Debug, Clone)]
pub(super) struct Angles {
    pub(super) cos: Vec<f32>,
    pub(super) sin: Vec<f32>,
    pub(super) width: usize,
}

impl Angles {
    fn with_capacity(rows: usize, width: usize) -> Self {
        Self { cos: Vec::with_capacity(rows * width), sin: Vec::with_capacity(rows * width), width }
    }

    fn push(&mut self, angle: f32) {
        let (sin, cos) = angle.sin_cos();
        self.cos.push(cos);
        self.sin.push(sin);
    }
}

/// The decoder's angles: interleaved multimodal rotary embedding.
#[derive(Debug, Clone)]
pub(super) struct TextRotary {
    /// For each of the `head_dim / 2` angles: its frequency, and which of time, height and width it follows.
    frequencies: Vec<(f32, usize)>,
}

impl TextRotary {
    pub(super) fn new(config: &TextConfig) -> Self {
        let half = config.head_dim / 2;
        let axis = |index: usize| match index % 3 {
            axis @ (1 | 2) if index < 3 * config.mrope_section[axis] => axis,
            _ => 0,
        };
        let inverse = frequencies(config.rope_theta, config.head_dim);
        Self { frequencies: inverse.zip((0..half).map(axis)).collect() }
    }

    /// `[positions, head_dim / 2]`.
    pub(super) fn angles(&self, positions: &[[u32; 3]]) -> Angles {
        let mut angles = Angles::with_capacity(positions.len(), self.frequencies.len());
        for position in positions {
            for (frequency, axis) in &self.frequencies {
                angles.push(position[*axis] as f32 * frequency);
            }
        }
        angles
    }
}

/// The vision tower's angles: half of them follow the row, half the column.
#[derive(Debug, Clone)]
pub(super) struct VisionRotary {
    frequencies: Vec<f32>,
}

impl VisionRotary {
    pub(super) fn new(config: &VisionConfig) -> Self {
        let head_dim = config.hidden_size / config.heads;
        Self { frequencies: frequencies(config.rope_theta, head_dim / 2).collect() }
    }

    /// `[patches, head_dim / 2]` for pictures one after another.
    pub(super) fn angles(&self, grids: &[Grid], merge: usize) -> Angles {
        let patches = grids.iter().map(|grid| grid.patches()).sum();
        let mut angles = Angles::with_capacity(patches, 2 * self.frequencies.len());
        for grid in grids {
            for _ in 0..grid.t {
                for (row, column) in block_order(*grid, merge) {
                    for place in [row, column] {
                        self.frequencies.iter().for_each(|frequency| angles.push(place as f32 * frequency));
                    }
                }
            }
        }
        angles
    }
}

/// `theta^(-2i / width)` for each pair of `width`, in f32 as the reference has it.
fn frequencies(theta: f64, width: usize) -> impl Iterator<Item = f32> {
    (0..width / 2).map(move |i| 1.0 / (theta as f32).powf((2 * i) as f32 / width as f32))
}

#[cfg(test)]
mod tests;
