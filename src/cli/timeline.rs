//! Draws stretches of time as rows of character cells: the video with its windows, and the run with its stages.
//!
//! Pure arithmetic on spans and cells; knows nothing of events, colours or terminals.

use crate::types::{MediaTime, TimeSpan};

/// Which windows light each of `cells` cells of a bar that stands for `duration`. A window lights at least one cell; where
/// windows share a cell the later one in the list is seen.
pub(super) fn cells(duration: MediaTime, windows: &[Option<TimeSpan>], cells: usize) -> Vec<Option<usize>> {
    let mut row = vec![None; cells];
    for (index, window) in windows.iter().enumerate() {
        let Some(range) = window.and_then(|window| range(duration, window, cells)) else { continue };
        for cell in &mut row[range] {
            *cell = Some(index);
        }
    }
    row
}

/// A row with each window's number under the middle of its cells. A number that would touch another is left out.
pub(super) fn labels(duration: MediaTime, windows: &[Option<TimeSpan>], cells: usize) -> String {
    let mut row = vec![' '; cells];
    for (index, window) in windows.iter().enumerate() {
        let Some(range) = window.and_then(|window| range(duration, window, cells)) else { continue };
        let label: Vec<char> = (index + 1).to_string().chars().collect();
        let middle = (range.start + range.end).saturating_sub(label.len()) / 2;
        let start = middle.min(cells.saturating_sub(label.len()));
        let around = start.saturating_sub(1)..(start + label.len() + 1).min(cells);
        if start + label.len() <= cells && row[around].iter().all(|c| *c == ' ') {
            row[start..start + label.len()].copy_from_slice(&label);
        }
    }
    row.into_iter().collect::<String>().trim_end().to_owned()
}

fn range(duration: MediaTime, window: TimeSpan, cells: usize) -> Option<std::ops::Range<usize>> {
    let whole = duration.micros();
    if whole <= 0 || cells == 0 {
        return None;
    }
    let at = |time: MediaTime| time.micros().clamp(0, whole) as f64 / whole as f64 * cells as f64;
    let first = (at(window.start).floor() as usize).min(cells - 1);
    let end = (at(window.end).ceil() as usize).clamp(first + 1, cells);
    Some(first..end)
}

/// A stretch of the run in milliseconds, drawn with one character.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stretch {
    /// When it begins.
    pub(super) start_ms: f64,
    /// When it is over.
    pub(super) end_ms: f64,
    /// What it is drawn with.
    pub(super) fill: char,
}

/// One row of a chart of `total_ms`: each stretch by its own character, later ones over earlier ones. A stretch that
/// lasted at all shows in at least one cell.
pub(super) fn chart(total_ms: f64, stretches: &[Stretch], cells: usize) -> String {
    let mut row = vec![' '; cells];
    if total_ms > 0.0 && cells > 0 {
        for stretch in stretches.iter().filter(|stretch| stretch.end_ms > stretch.start_ms) {
            let at = |ms: f64| (ms / total_ms).clamp(0.0, 1.0) * cells as f64;
            let first = (at(stretch.start_ms).round() as usize).min(cells - 1);
            let end = (at(stretch.end_ms).round() as usize).clamp(first + 1, cells);
            row[first..end].fill(stretch.fill);
        }
    }
    row.into_iter().collect::<String>().trim_end().to_owned()
}

/// Length of the union of these intervals: the wall time in which at least one was open.
pub(super) fn union_ms(intervals: &[(f64, f64)]) -> f64 {
    let mut sorted = intervals.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut total = 0.0;
    let mut reached = f64::NEG_INFINITY;
    for (start, end) in sorted {
        total += (end - start.max(reached)).max(0.0);
        reached = reached.max(end);
    }
    total
}

/// The most intervals open at the same time. Those that only touch do not count as two.
pub(super) fn most_at_once(intervals: &[(f64, f64)]) -> usize {
    let open_at = |time: f64| intervals.iter().filter(|(start, end)| *start <= time && time < *end).count();
    intervals.iter().map(|(start, _)| open_at(*start)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(start: f64, end: f64) -> Option<TimeSpan> {
        TimeSpan::new(MediaTime::from_seconds(start)?, MediaTime::from_seconds(end)?)
    }

    fn draw(duration: f64, windows: &[Option<TimeSpan>], width: usize) -> String {
        let row = cells(MediaTime::from_seconds(duration).expect("finite"), windows, width);
        row.into_iter().map(|cell| cell.map_or('-', |index| char::from(b'a' + index as u8))).collect()
    }

    #[test]
    fn windows_light_the_cells_they_touch() {
        assert_eq!(
            draw(300.0, &[span(20.0, 60.0), span(160.0, 180.0), span(240.0, 300.0)], 30),
            "--aaaa----------bb------cccccc"
        );
    }

    #[test]
    fn a_short_window_lights_one_cell_wherever_it_is() {
        assert_eq!(draw(300.0, &[span(300.0, 300.0), span(0.0, 0.0)], 10), "b--------a");
        assert_eq!(draw(0.0, &[span(0.0, 1.0)], 4), "----");
        assert_eq!(draw(10.0, &[None], 4), "----");
        assert_eq!(draw(10.0, &[span(0.0, 10.0)], 0), "");
    }

    #[test]
    fn labels_stand_under_their_windows_and_do_not_run_together() {
        let duration = MediaTime::from_seconds(300.0).expect("finite");
        let windows = [span(20.0, 60.0), span(160.0, 180.0), span(240.0, 300.0)];
        assert_eq!(labels(duration, &windows, 30), "   1            2         3");
        assert_eq!(labels(duration, &[span(0.0, 10.0), span(10.0, 20.0)], 30), "1");
    }

    #[test]
    fn a_chart_shows_even_the_shortest_stretch() {
        let stretch = |start_ms, end_ms, fill| Stretch { start_ms, end_ms, fill };
        assert_eq!(chart(100.0, &[stretch(10.0, 50.0, '='), stretch(50.0, 51.0, '#')], 10), " ====#");
        assert_eq!(chart(100.0, &[stretch(100.0, 100.0, '=')], 10), "");
        assert_eq!(chart(0.0, &[stretch(0.0, 1.0, '=')], 10), "");
    }

    #[test]
    fn union_counts_shared_time_once() {
        assert!((union_ms(&[(5.0, 9.0), (0.0, 4.0), (3.0, 6.0), (20.0, 21.0)]) - 10.0).abs() < 1e-9);
        assert!(union_ms(&[]).abs() < 1e-9);
    }

    #[test]
    fn only_true_overlap_counts_as_at_once() {
        assert_eq!(most_at_once(&[(0.0, 1.0), (1.0, 2.0)]), 1);
        assert_eq!(most_at_once(&[(0.0, 1.5), (1.0, 2.0), (1.2, 1.3), (5.0, 6.0)]), 3);
        assert_eq!(most_at_once(&[]), 0);
    }

    proptest! {
        #[test]
        fn no_span_can_break_a_bar(duration in -1e6..1e6f64, start in -1e6..1e6f64, length in 0.0..1e6f64, width in 0usize..200) {
            let duration = MediaTime::from_seconds(duration).expect("finite");
            let windows = [span(start, start + length)];
            prop_assert_eq!(cells(duration, &windows, width).len(), width);
            prop_assert!(labels(duration, &windows, width).len() <= width);
        }

        #[test]
        fn the_union_is_never_more_than_the_sum(intervals in proptest::collection::vec((0.0..1e3f64, 0.0..1e3f64), 0..8)) {
            let intervals: Vec<_> = intervals.into_iter().map(|(start, length)| (start, start + length)).collect();
            let sum: f64 = intervals.iter().map(|(start, end)| end - start).sum();
            prop_assert!(union_ms(&intervals) <= sum + 1e-6);
        }
    }
}
