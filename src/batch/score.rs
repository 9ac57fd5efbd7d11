//! How many of the true events were told, and how many of the told ones are true. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::event::Event;
use crate::types::MediaTime;

/// A video's true events, or those that were told of it: a line of JSON, whose other fields don't matter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    /// The task's.
    pub id: String,
    /// In any order.
    pub events: Vec<Event>,
}

/// How well events are found, at one tolerance.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// Most seconds between the middles of a true event and a told one that are taken for the same.
    pub tolerance_s: f64,
    /// True events.
    pub events: usize,
    /// Told events.
    pub told: usize,
    /// Told events that are true.
    pub right: usize,
    /// Share of the told events that are true. 1 where none were told.
    pub precision: f64,
    /// Share of the true events that were told. 1 where there are none.
    pub recall: f64,
    /// Harmonic mean of the two.
    pub f1: f64,
    /// Mean distance of those that were found, in seconds.
    pub mean_error_s: Option<f64>,
}

/// Scores what was told: an event is right when it has the label of a true one that no other was taken for, and the middles of
/// the two are near enough in time. As many are taken for right as can be. Told videos without a truth don't count.
#[must_use]
pub fn score(truth: &[Truth], told: &[Truth], tolerance: MediaTime) -> Score {
    let by_label = |all: &[Truth]| {
        let mut sorted: BTreeMap<(String, String), Vec<i64>> = BTreeMap::new();
        for (id, event) in all.iter().flat_map(|one| one.events.iter().map(|event| (&one.id, event))) {
            let middle = event.start.micros() + (event.end.micros() - event.start.micros()) / 2;
            sorted.entry((id.clone(), event.label.trim().to_lowercase())).or_default().push(middle);
        }
        sorted.values_mut().for_each(|middles| middles.sort_unstable());
        sorted
    };
    let known: BTreeSet<&String> = truth.iter().map(|one| &one.id).collect();
    let told: Vec<Truth> = told.iter().filter(|one| known.contains(&one.id)).cloned().collect();
    let (truths, tolds) = (by_label(truth), by_label(&told));
    let count = |all: &BTreeMap<_, Vec<i64>>| all.values().map(Vec::len).sum::<usize>();
    let (mut right, mut error_s) = (0, 0.0);
    for (key, middles) in &truths {
        let (mut left, mut others) = (middles.as_slice(), tolds.get(key).map(Vec::as_slice).unwrap_or_default());
        // Both are in order, so that taking the first that fit leaves most for the rest.
        while let ([one, rest @ ..], [other, others_rest @ ..]) = (left, others) {
            if one.abs_diff(*other) <= tolerance.micros().unsigned_abs() {
                right += 1;
                error_s += one.abs_diff(*other) as f64 / 1e6;
                (left, others) = (rest, others_rest);
            } else if one < other {
                left = rest;
            } else {
                others = others_rest;
            }
        }
    }
    let (events, told) = (count(&truths), count(&tolds));
    let share = |of: usize| if of > 0 { right as f64 / of as f64 } else { 1.0 };
    let (precision, recall) = (share(told), share(events));
    let f1 = if precision + recall > 0.0 { 2.0 * precision * recall / (precision + recall) } else { 0.0 };
    let mean_error_s = (right > 0).then(|| error_s / right as f64);
    Score { tolerance_s: tolerance.seconds(), events, told, right, precision, recall, f1, mean_error_s }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> MediaTime {
        MediaTime::from_seconds(seconds).expect("a time")
    }

    fn video(id: &str, events: &[(f64, f64, &str)]) -> Truth {
        let event = |(start, end, label): &(f64, f64, &str)| Event {
            start: at(*start),
            end: at(*end),
            label: (*label).to_owned(),
            description: String::new(),
        };
        Truth { id: id.to_owned(), events: events.iter().map(event).collect() }
    }

    #[test]
    fn an_event_is_right_by_label_and_time_and_only_once() {
        let truth = [
            video("a", &[(10.0, 14.0, "goal"), (100.0, 104.0, "goal"), (50.0, 50.0, "foul")]),
            video("b", &[(5.0, 5.0, "goal")]),
        ];
        let told = [
            // 11, 13 and 108 are the middles; only one of the first two can be the goal at 12.
            video("a", &[(10.0, 12.0, "Goal"), (12.0, 14.0, "goal"), (108.0, 108.0, "goal"), (50.0, 50.0, "card")]),
            video("c", &[(5.0, 5.0, "goal")]),
        ];
        let of = |tolerance: f64| {
            let score = score(&truth, &told, at(tolerance));
            (score.events, score.told, score.right, score.mean_error_s)
        };
        assert_eq!(of(0.5), (4, 4, 0, None));
        assert_eq!(of(2.0), (4, 4, 1, Some(1.0)));
        assert_eq!(of(6.0), (4, 4, 2, Some(3.5)));
        let score = score(&truth, &told, at(6.0));
        assert_eq!((score.precision, score.recall, score.f1), (0.5, 0.5, 0.5));
    }

    #[test]
    fn as_many_as_can_be_are_right() {
        // Taking the nearest pair first (5 for 6) would leave the others alone.
        let (truth, told) =
            ([video("a", &[(0.0, 0.0, "x"), (6.0, 6.0, "x")])], [video("a", &[(5.0, 5.0, "x"), (10.0, 10.0, "x")])]);
        assert_eq!(score(&truth, &told, at(5.0)).right, 2);
    }

    #[test]
    fn nothing_told_of_nothing_is_right() {
        let none = score(&[video("a", &[])], &[video("a", &[])], at(1.0));
        assert_eq!((none.precision, none.recall, none.f1), (1.0, 1.0, 1.0));
        let missed = score(&[video("a", &[(1.0, 2.0, "x")])], &[], at(1.0));
        assert_eq!((missed.precision, missed.recall, missed.f1), (1.0, 0.0, 0.0));
    }
}
