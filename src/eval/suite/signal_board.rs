//! The signal board: made-up videos of which everything is known, with questions of rising difficulty.

use std::path::Path;

use futures::StreamExt as _;

use super::super::item::{Gold, Item};
use super::super::run::digest_of;
use super::SuiteError;
use crate::media::{Media, MediaError};
use crate::synthetic::{Board, Difficulty, Random, SIDE};
use crate::types::FrameSize;

/// Its name.
pub const SIGNAL_BOARD: &str = "signal-board";

/// Which boards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boards {
    /// Each has boards of its own.
    pub seed: u64,
    /// The first so many questions, which are of all levels in turn.
    pub count: usize,
    /// Frames of each, five a second. The bundled model knows [`Board::FRAMES`] alone.
    pub frames: u32,
}

/// The questions, and the boards they are about, whose videos are to be made in this folder.
#[must_use]
pub fn questions(folder: &Path, boards: &Boards) -> Vec<(Item, Board)> {
    let Boards { seed, count, frames } = *boards;
    let levels = Difficulty::LEVELS.iter().enumerate().cycle();
    let numbered = (0..count).zip(levels);
    numbered
        .map(|(place, (level, difficulty))| {
            let mut random = Random::new(seed, place as u64);
            let board = Board::random(difficulty, frames, &mut random);
            // Each level has all four kinds of question.
            let asked = board.ask(place / Difficulty::LEVELS.len(), &mut random);
            // A board that is drawn anew is another file.
            let digest = digest_of(&serde_json::to_string(&board).unwrap_or_default());
            let digest = &digest[..8];
            let item = Item {
                video: folder.join(format!("board-{digest}-{place:03}.mp4")),
                id: format!("{seed}-{frames}-{place:03}"),
                prompt: asked.text,
                gold: Gold::Words { text: asked.answer },
                groups: vec![
                    ("level", (level + 1).to_string()),
                    ("kind", asked.question.kind().to_owned()),
                    ("stretches", board.lit.len().to_string()),
                    ("seconds", (frames / Board::FPS).to_string()),
                ],
            };
            (item, board)
        })
        .collect()
}

/// Makes the videos that are not there yet, some at a time. `told` is called with the number of those that were made.
///
/// # Errors
/// [`SuiteError::File`] when one can't be made.
pub async fn make(
    media: &Media,
    asked: &[(Item, Board)],
    at_once: usize,
    mut told: impl FnMut(usize),
) -> Result<(), SuiteError> {
    for folder in asked.iter().filter_map(|(item, _)| item.video.parent()).take(1) {
        std::fs::create_dir_all(folder).map_err(|error| SuiteError::file(folder, error))?;
    }
    let missing = asked.iter().filter(|(item, _)| !item.video.is_file());
    let films = missing.map(|(item, board)| async move {
        film(media, board, &item.video).await.map_err(|error| SuiteError::file(&item.video, error))
    });
    let mut films = futures::stream::iter(films).buffer_unordered(at_once.max(1)).enumerate();
    while let Some((made, done)) = films.next().await {
        done?;
        told(made + 1);
    }
    Ok(())
}

/// Makes a board's video.
///
/// # Errors
/// As [`Media::film`].
pub async fn film(media: &Media, board: &Board, path: &Path) -> Result<(), MediaError> {
    let side = u32::try_from(SIDE).unwrap_or_default();
    let frame_ms = 1000 / i64::from(Board::FPS);
    let board = board.clone();
    let mut last: Option<Vec<u8>> = None;
    let pictures = (0..i64::from(board.frames)).map(move |number| {
        let (before, at) = ((number - 1) * frame_ms, number * frame_ms);
        // Most of them are like the one before.
        let picture = last.take().filter(|_| board.is_still(before, at)).unwrap_or_else(|| board.picture(at));
        last = Some(picture.clone());
        picture
    });
    media.film(path, FrameSize { width: side, height: side }, Board::FPS, pictures).await
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn questions_are_of_all_levels_and_kinds_and_stay_what_they_are() {
        let folder = Path::new("boards");
        let all = questions(folder, &Boards { seed: 2026, count: 500, frames: Board::FRAMES });
        let values = |name: &str| -> Vec<String> {
            let of = |item: &Item| item.groups.iter().find(|(group, _)| *group == name).map(|(_, value)| value.clone());
            all.iter().filter_map(|(item, _)| of(item)).collect()
        };
        let levels = values("level");
        assert!((1..=5).all(|level| levels.iter().filter(|value| **value == level.to_string()).count() == 100));
        let kinds: BTreeSet<String> = values("kind").into_iter().collect();
        assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["color", "count", "list", "shape"]);
        // The first questions are the same however many are asked for.
        let few = questions(folder, &Boards { seed: 2026, count: 7, frames: Board::FRAMES });
        assert_eq!(few[..], all[..7]);
        assert_ne!(questions(folder, &Boards { seed: 1, count: 7, frames: Board::FRAMES })[0].1, few[0].1);
    }
}
