//! What a board shows and when.

use serde::{Deserialize, Serialize};

use super::random::Random;
use crate::types::{MediaTime, TimeSpan};

/// A colour of shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "their names say it")]
pub enum Color {
    Red,
    Green,
    Blue,
    Yellow,
    Purple,
    Orange,
}

impl Color {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Red, Self::Green, Self::Blue, Self::Yellow, Self::Purple, Self::Orange];

    /// In English.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Red => "red",
            Self::Green => "green",
            Self::Blue => "blue",
            Self::Yellow => "yellow",
            Self::Purple => "purple",
            Self::Orange => "orange",
        }
    }
}

/// A shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "their names say it")]
pub enum Shape {
    Circle,
    Square,
    Triangle,
    Cross,
}

impl Shape {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Circle, Self::Square, Self::Triangle, Self::Cross];

    /// In English.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Circle => "circle",
            Self::Square => "square",
            Self::Triangle => "triangle",
            Self::Cross => "cross",
        }
    }
}

/// A shape that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// Its colour.
    pub color: Color,
    /// Its form.
    pub shape: Shape,
    /// From here on, in milliseconds.
    pub from_ms: i64,
    /// Until here.
    pub until_ms: i64,
    /// Half the side of a square of its size, in pixels.
    pub size: i64,
    /// How far its middle is from the picture's, in pixels.
    pub offset: (i64, i64),
}

impl Shown {
    /// In English.
    #[must_use]
    pub fn name(&self) -> String {
        named(self.color, self.shape)
    }

    /// From when to when it shows.
    #[must_use]
    pub const fn times(&self) -> (MediaTime, MediaTime) {
        (MediaTime::from_micros(self.from_ms * 1000), MediaTime::from_micros(self.until_ms * 1000))
    }
}

/// A shape in a colour, in English.
#[must_use]
pub fn named(color: Color, shape: Shape) -> String {
    format!("{} {}", color.name(), shape.name())
}

/// A stretch in which the border is lit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lit {
    /// From here on, in milliseconds.
    pub from_ms: i64,
    /// Until here.
    pub until_ms: i64,
    /// What shows meanwhile.
    pub shown: Option<Shown>,
}

/// A video and all that is true of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Board {
    /// Its grey, 0 to 255.
    pub grey: u8,
    /// Frames; the last one shows at `(frames - 1) / 5` seconds.
    pub frames: u32,
    /// In order, apart from each other by more than one step of the grid: the times of an overview of sixteen frames, 20 s on
    /// boards of the bundled model's length.
    pub lit: Vec<Lit>,
}

/// How hard a board is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difficulty {
    /// Lit stretches, at most 4.
    pub stretches: u32,
    /// How many of a hundred of them show nothing.
    pub empty_percent: i64,
    /// Seconds that a shape shows, least and most.
    pub shown_s: (i64, i64),
    /// Steps of the grid that a lit stretch reaches over at most, at least one.
    pub steps: i64,
}

impl Difficulty {
    /// From the easiest on. All but the last are like what the bundled model was trained with; that one has a stretch more.
    pub const LEVELS: [Self; 5] = [
        Self { stretches: 1, empty_percent: 0, shown_s: (6, 7), steps: 2 },
        Self { stretches: 2, empty_percent: 0, shown_s: (5, 7), steps: 2 },
        Self { stretches: 3, empty_percent: 0, shown_s: (3, 7), steps: 2 },
        Self { stretches: 3, empty_percent: 35, shown_s: (3, 5), steps: 2 },
        Self { stretches: 4, empty_percent: 25, shown_s: (3, 4), steps: 1 },
    ];
}

impl Board {
    /// Frames a second.
    pub const FPS: u32 = 5;
    /// Frames of the boards that the bundled model knows: 300.2 s.
    pub const FRAMES: u32 = 1501;
    /// Steps of the grid: an overview has sixteen frames.
    const STEPS: i64 = 15;

    /// A board of so many frames, at least 751 (150 s). It always has the number of stretches that was asked for, all of which
    /// can be found in an overview of sixteen frames.
    #[must_use]
    pub fn random(difficulty: &Difficulty, frames: u32, random: &mut Random) -> Self {
        let frames = frames.max(Self::FRAMES / 2 + 1);
        let (last, on) = (Self::STEPS, Grid::of(frames));
        let stretches = i64::from(difficulty.stretches.clamp(1, 4));
        let mut lengths: Vec<i64> = (0..stretches).map(|_| random.number(1, difficulty.steps.max(1))).collect();
        // Between two stretches at least one time of the grid is dark, so that they can be told apart.
        let needed = |lengths: &[i64]| lengths.iter().sum::<i64>() + 2 * (stretches - 1);
        while needed(&lengths) > last {
            lengths.iter_mut().for_each(|length| *length = (*length - 1).max(1));
        }
        let mut slack = last - needed(&lengths);
        let (mut at, mut lit) = (0, Vec::new());
        for length in lengths {
            let gap = random.number(0, slack);
            slack -= gap;
            let first = at + gap;
            lit.push(Self::stretch((first, first + length), on, difficulty, random));
            at = first + length + 2;
        }
        let grey = u8::try_from(random.number(90, 130)).unwrap_or(110);
        Self { grey, frames, lit }
    }

    /// A board of so many times [`Board::FRAMES`], but for the frames where two meet, lit now and then anywhere in it, at steps of 20 s.
    /// Its parts are boards that the bundled model knows, as long as they begin at such a step.
    #[must_use]
    pub fn long(difficulty: &Difficulty, parts: u32, random: &mut Random) -> Self {
        let frames = parts.max(1).saturating_mul(Self::FRAMES - 1).saturating_add(1);
        let step_ms = grid_of(Self::FRAMES);
        let end_ms = i64::from(frames) * 1000 / i64::from(Self::FPS);
        let on = Grid { step_ms, steps: i64::from(frames - 1) * 1000 / i64::from(Self::FPS) / step_ms, end_ms };
        let (mut at, mut lit) = (random.number(1, 6), Vec::new());
        loop {
            let until = at + random.number(1, difficulty.steps.max(1));
            if until > on.steps {
                break;
            }
            lit.push(Self::stretch((at, until), on, difficulty, random));
            at = until + random.number(3, 8);
        }
        let grey = u8::try_from(random.number(90, 130)).unwrap_or(110);
        Self { grey, frames, lit }
    }

    /// Lit at the steps `first` to `until` of the grid, and at none beside them.
    fn stretch((first, until): (i64, i64), on: Grid, difficulty: &Difficulty, random: &mut Random) -> Lit {
        let Grid { step_ms, steps, end_ms } = on;
        let grid = |step: i64| step * step_ms;
        let before = if first == 0 { 0 } else { random.number(500, step_ms - 2_000) };
        // The end of the video may be lit as well.
        let after = if until == steps { i64::MAX } else { random.number(2_000, step_ms - 2_000) };
        let shown = (!random.chance(difficulty.empty_percent)).then(|| {
            let (least, most) = difficulty.shown_s;
            let length = random.number(least * 1000, most * 1000);
            // Where a crop from the first to the last lit frame sees it.
            let from_ms = random.number(grid(first) + 250, grid(until) - length - 250);
            Shown {
                color: random.one(&Color::ALL).unwrap_or(Color::Red),
                shape: random.one(&Shape::ALL).unwrap_or(Shape::Circle),
                from_ms,
                until_ms: from_ms + length,
                size: 52 + 4 * random.number(0, 3),
                offset: (4 * random.number(-3, 3), 4 * random.number(-3, 3)),
            }
        });
        Lit { from_ms: grid(first) - before, until_ms: grid(until).saturating_add(after).min(end_ms), shown }
    }

    /// Its length, the last frame's included.
    #[must_use]
    pub fn length(&self) -> MediaTime {
        MediaTime::from_micros(i64::from(self.frames) * 1_000_000 / i64::from(Self::FPS))
    }

    /// What shows, in order.
    pub fn shown(&self) -> impl Iterator<Item = Shown> {
        self.lit.iter().filter_map(|lit| lit.shown)
    }

    /// The windows to look at: each stretch from its first to its last lit time of the grid.
    #[must_use]
    pub fn windows(&self) -> Vec<TimeSpan> {
        let step_ms = grid_of(self.frames);
        let window = |lit: &Lit| {
            let first = (lit.from_ms + step_ms - 1).div_euclid(step_ms) * step_ms;
            let last = lit.until_ms.div_euclid(step_ms) * step_ms;
            TimeSpan::new(MediaTime::from_micros(first * 1000), MediaTime::from_micros(last * 1000))
        };
        self.lit.iter().filter_map(window).collect()
    }
}

/// Times at which something may be lit.
#[derive(Debug, Clone, Copy)]
struct Grid {
    step_ms: i64,
    /// The last step.
    steps: i64,
    /// The end of the video.
    end_ms: i64,
}

impl Grid {
    fn of(frames: u32) -> Self {
        let end_ms = i64::from(frames) * 1000 / i64::from(Board::FPS);
        Self { step_ms: grid_of(frames), steps: Board::STEPS, end_ms }
    }
}

/// Milliseconds from one frame of an overview of sixteen to the next.
fn grid_of(frames: u32) -> i64 {
    i64::from(frames.saturating_sub(1)) * 1000 / i64::from(Board::FPS) / Board::STEPS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_shows_can_be_found() {
        for frames in [751, Board::FRAMES, 6001] {
            for (level, difficulty) in Difficulty::LEVELS.iter().enumerate() {
                for place in 0..100 {
                    let board = Board::random(difficulty, frames, &mut Random::new(1, place));
                    assert_eq!(board.lit.len(), difficulty.stretches as usize, "{level}");
                    findable(&board);
                }
            }
        }
    }

    fn findable(board: &Board) {
        let (step_ms, end_ms) = (grid_of(board.frames), i64::from(board.frames) * 200);
        let windows = board.windows();
        assert_eq!(windows.len(), board.lit.len());
        for (lit, window) in board.lit.iter().zip(&windows) {
            let (start, end) = (window.start.micros() / 1000, window.end.micros() / 1000);
            assert!(start < end && lit.from_ms >= 0 && lit.until_ms <= end_ms, "{lit:?}");
            if let Some(shown) = lit.shown {
                assert!(start < shown.from_ms && shown.until_ms < end, "{lit:?} {window:?}");
                assert!((3000..=7000).contains(&(shown.until_ms - shown.from_ms)));
            }
        }
        for pair in windows.windows(2) {
            assert!(pair[1].start.micros() - pair[0].end.micros() >= 2 * step_ms * 1000, "{board:?}");
        }
        for pair in board.lit.windows(2) {
            assert!(pair[0].until_ms < pair[1].from_ms);
        }
    }

    #[test]
    fn boards_of_the_bundled_models_length_have_its_grid() {
        assert_eq!(grid_of(Board::FRAMES), 20_000);
        let board = Board::random(&Difficulty::LEVELS[2], Board::FRAMES, &mut Random::new(1, 1));
        assert_eq!(board.length().micros(), 300_200_000);
        assert!(board.lit.iter().all(|lit| lit.until_ms - lit.from_ms >= 20_000));
    }

    #[test]
    fn a_long_board_is_lit_all_over_and_its_parts_are_boards() {
        let board = Board::long(&Difficulty::LEVELS[2], 18, &mut Random::new(1, 1));
        assert_eq!(board.length().micros(), 5_400_200_000);
        assert!((25..60).contains(&board.lit.len()), "{}", board.lit.len());
        let thirds = [0, 1, 2].map(|third| {
            let part = third * 1_800_000..(third + 1) * 1_800_000;
            board.lit.iter().filter(|lit| part.contains(&lit.from_ms)).count()
        });
        assert!(thirds.iter().all(|count| *count > 4), "{thirds:?}");
        for pair in board.lit.windows(2) {
            // Two times of the grid are dark between them.
            assert!(pair[1].from_ms.div_euclid(20_000) - pair[0].until_ms.div_euclid(20_000) >= 2, "{pair:?}");
        }
        for lit in &board.lit {
            let shown = lit.shown.expect("none is empty");
            let (first, last) = ((lit.from_ms + 19_999) / 20_000 * 20_000, lit.until_ms / 20_000 * 20_000);
            assert!(first < shown.from_ms && shown.until_ms < last, "{lit:?}");
        }
        assert_eq!(board, Board::long(&Difficulty::LEVELS[2], 18, &mut Random::new(1, 1)));
    }

    #[test]
    fn the_same_seed_is_the_same_board() {
        let board = |seed, place| Board::random(&Difficulty::LEVELS[2], Board::FRAMES, &mut Random::new(seed, place));
        assert_eq!(board(1, 2), board(1, 2));
        assert_ne!(board(1, 2), board(1, 3));
        assert_ne!(board(1, 2), board(2, 2));
    }
}
