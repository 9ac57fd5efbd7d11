//! What a board looks like at one moment.

use super::board::{Board, Color, Shape, Shown};

/// Side of the picture in pixels.
pub const SIDE: usize = 256;
/// Width of the border.
const BORDER: usize = 24;
/// The border's white, which no coding clips.
const WHITE: [u8; 3] = [250; 3];

impl Color {
    const fn rgb(self) -> [u8; 3] {
        match self {
            Self::Red => [220, 40, 40],
            Self::Green => [40, 200, 60],
            Self::Blue => [50, 80, 230],
            Self::Yellow => [230, 220, 50],
            Self::Purple => [170, 50, 200],
            Self::Orange => [245, 140, 30],
        }
    }
}

impl Board {
    /// The picture at a time: 8-bit RGB, `SIDE` rows of `SIDE` pixels.
    #[must_use]
    pub fn picture(&self, at_ms: i64) -> Vec<u8> {
        let mut rgb = vec![self.grey; 3 * SIDE * SIDE];
        let Some(lit) = self.lit.iter().find(|lit| (lit.from_ms..lit.until_ms).contains(&at_ms)) else { return rgb };
        let shown = lit.shown.filter(|shown| (shown.from_ms..shown.until_ms).contains(&at_ms));
        for (place, pixel) in rgb.chunks_exact_mut(3).enumerate() {
            let (x, y) = (place % SIDE, place / SIDE);
            let inside = BORDER..SIDE - BORDER;
            if !(inside.contains(&x) && inside.contains(&y)) {
                pixel.copy_from_slice(&WHITE);
            }
            // A shape may reach over the border.
            if let Some(shown) = shown.filter(|shown| shown.covers(x, y)) {
                pixel.copy_from_slice(&shown.color.rgb());
            }
        }
        rgb
    }

    /// Whether nothing changes from one time to the other.
    #[must_use]
    pub fn is_still(&self, from_ms: i64, until_ms: i64) -> bool {
        let changes = self.lit.iter().flat_map(|lit| {
            let shown = lit.shown.map(|shown| [shown.from_ms, shown.until_ms]);
            [lit.from_ms, lit.until_ms].into_iter().chain(shown.into_iter().flatten())
        });
        !changes.into_iter().any(|change| from_ms < change && change <= until_ms)
    }
}

impl Shown {
    /// Whether the middle of a pixel is on it. All shapes of one size are about as large to the eye.
    fn covers(&self, x: usize, y: usize) -> bool {
        let middle = |at: usize, offset: i64| at as f64 + 0.5 - (SIDE as f64 / 2.0 + offset as f64);
        let size = self.size as f64;
        let (x, y) = (middle(x, self.offset.0) / size, middle(y, self.offset.1) / size);
        match self.shape {
            Shape::Square => x.abs() <= 1.02 && y.abs() <= 1.02,
            // A ring.
            Shape::Circle => (0.93..=1.4).contains(&x.hypot(y)),
            // Upright on the left, its slope from the top left to the bottom right.
            Shape::Triangle => x >= -1.36 && y <= 1.36 && x <= y,
            Shape::Cross => {
                let (long, thick) = (1.48, 0.31);
                (x.abs() <= long && y.abs() <= thick) || (x.abs() <= thick && y.abs() <= long)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::board::Lit;
    use super::*;

    fn board(shape: Shape) -> Board {
        let shown = Shown { color: Color::Red, shape, from_ms: 25_000, until_ms: 30_000, size: 56, offset: (0, 0) };
        Board { grey: 100, frames: 1501, lit: vec![Lit { from_ms: 10_000, until_ms: 50_000, shown: Some(shown) }] }
    }

    fn pixel(picture: &[u8], x: usize, y: usize) -> [u8; 3] {
        let at = 3 * (y * SIDE + x);
        [picture[at], picture[at + 1], picture[at + 2]]
    }

    #[test]
    fn the_border_is_lit_and_the_shape_shows_for_a_while() {
        let board = board(Shape::Square);
        for (at_ms, border, middle) in [
            (9_999, [100; 3], [100; 3]),
            (10_000, WHITE, [100; 3]),
            (25_000, WHITE, [220, 40, 40]),
            (30_000, WHITE, [100; 3]),
            (50_000, [100; 3], [100; 3]),
        ] {
            let picture = board.picture(at_ms);
            assert_eq!((pixel(&picture, 2, 128), pixel(&picture, 128, 128)), (border, middle), "{at_ms}");
        }
        assert!(board.is_still(10_000, 24_800) && board.is_still(0, 9_800));
        assert!(!board.is_still(9_800, 10_000) && !board.is_still(24_900, 25_100));
    }

    /// The share of the square around it that each shape covers, as measured on the bundled boards.
    #[test]
    fn shapes_are_those_of_the_bundled_boards() {
        for (shape, side, share) in [
            (Shape::Square, 114, 1.0),
            (Shape::Circle, 157, 0.44),
            (Shape::Triangle, 152, 0.5),
            (Shape::Cross, 166, 0.37),
        ] {
            let picture = board(shape).picture(27_000);
            let red: Vec<(usize, usize)> = (0..SIDE * SIDE)
                .map(|place| (place % SIDE, place / SIDE))
                .filter(|(x, y)| pixel(&picture, *x, *y) == [220, 40, 40])
                .collect();
            let width = |of: fn(&(usize, usize)) -> usize| {
                red.iter().map(of).max().zip(red.iter().map(of).min()).map_or(0, |(most, least)| most - least + 1)
            };
            let (wide, high) = (width(|at| at.0), width(|at| at.1));
            assert!(wide.abs_diff(side) <= 2 && high.abs_diff(side) <= 2, "{shape:?}: {wide} x {high}");
            let covered = red.len() as f64 / (wide * high) as f64;
            assert!((covered - share).abs() < 0.02, "{shape:?}: {covered}");
        }
    }
}
