//! Pictures of boards in the size that a model reads, each drawn and scaled once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use image::imageops::{FilterType, resize};
use image::{ImageBuffer, Rgb};

use crate::synthetic::{Board, Color, SIDE, Shape};
use crate::types::FrameSize;

/// So many are kept at most; then it begins anew.
const MOST: usize = 1 << 13;

/// Pictures that were drawn.
#[derive(Debug)]
pub(super) struct Pictures {
    size: FrameSize,
    drawn: Mutex<HashMap<Look, Bytes>>,
}

/// All that a picture depends on: the grey, whether the border is lit, and what shows with its size and place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Look {
    grey: u8,
    lit: bool,
    shown: Option<(Color, Shape, i64, (i64, i64))>,
}

impl Pictures {
    pub(super) fn new(size: FrameSize) -> Self {
        Self { size, drawn: Mutex::new(HashMap::new()) }
    }

    /// The board at a time, in milliseconds: 8-bit RGB.
    pub(super) fn of(&self, board: &Board, at_ms: i64) -> Bytes {
        let lit = board.lit.iter().find(|lit| (lit.from_ms..lit.until_ms).contains(&at_ms));
        let shown = lit.and_then(|lit| lit.shown).filter(|shown| (shown.from_ms..shown.until_ms).contains(&at_ms));
        let shown = shown.map(|shown| (shown.color, shown.shape, shown.size, shown.offset));
        let look = Look { grey: board.grey, lit: lit.is_some(), shown };
        let known = || self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(picture) = known().get(&look) {
            return picture.clone();
        }
        let picture = self.scaled(board.picture(at_ms));
        let mut known = known();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(look, picture.clone());
        picture
    }

    /// By antialiased bicubic interpolation, as frames of videos are scaled.
    fn scaled(&self, picture: Vec<u8>) -> Bytes {
        let side = u32::try_from(SIDE).unwrap_or_default();
        let whole: Option<ImageBuffer<Rgb<u8>, Vec<u8>>> = ImageBuffer::from_raw(side, side, picture);
        let scaled = whole.map(|whole| resize(&whole, self.size.width, self.size.height, FilterType::CatmullRom));
        scaled.map(|scaled| Bytes::from(scaled.into_raw())).unwrap_or_default()
    }
}
