//! What results come to: scores with intervals, by group, and the difference of two runs. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::item::Gold;
use super::record::{Record, Run};
use crate::synthetic::Random;

/// Resamplings of a bootstrap.
const SAMPLES: usize = 10_000;
/// Intervals leave out so much at each end.
const TAIL: f64 = 0.025;
/// Overlaps from which on a stretch of time counts as found.
const THRESHOLDS: [f64; 3] = [0.3, 0.5, 0.7];

/// A mean and where it lies with 95 % confidence, by a percentile bootstrap over videos: questions about one video are not
/// independent of each other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Scores of some questions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scores {
    /// Questions, those without a reply included.
    pub questions: usize,
    /// Share that is right; for stretches of time the mean overlap (mIoU).
    pub score: Estimate,
    /// Share of stretches with at least 0.3, 0.5 and 0.7 in common; none for other questions.
    pub recall: Option<[f64; 3]>,
    /// Seconds a question, the median of those that did not fail.
    pub median_s: f64,
}

/// All that a run comes to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// What was run.
    pub run: Run,
    /// Questions that were answered or failed.
    pub done: usize,
    /// Questions that failed. They count as wrong.
    pub errors: usize,
    /// Why, the most frequent first, three at most.
    pub reasons: Vec<(String, usize)>,
    /// Questions whose right answer the benchmark does not tell: none of their answers is right.
    pub unanswerable: usize,
    /// Over all questions.
    pub all: Scores,
    /// The score over questions that did not fail alone: how the paper counts stretches of time.
    pub without_errors: f64,
    /// By group and its value.
    pub groups: BTreeMap<String, BTreeMap<String, Scores>>,
    /// The mean over a group's values of their scores, each value counting the same.
    pub macros: BTreeMap<String, f64>,
    /// Share of questions with at least one window.
    pub tool_rate: f64,
    /// Windows a question.
    pub calls: f64,
    /// Main turns a question.
    pub turns: f64,
    /// Tokens a question: read by the main agent, written by it, read by sub-agents, written by them.
    pub tokens: [f64; 4],
    /// Of those read, found in a cache.
    pub cached: f64,
    /// Milliseconds a question, median and 95th percentile, and to the first text of the answer.
    pub total_ms: [f64; 2],
    /// The same to the first text of the answer.
    pub first_answer_ms: [f64; 2],
}

/// One run against another on the same questions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Questions that both have.
    pub questions: usize,
    /// Of these, those that failed in the first and in the second. They count as wrong.
    pub errors: (usize, usize),
    /// The difference over questions that failed in neither.
    pub without_errors: f64,
    /// Mean score of the first and of the second.
    pub scores: (f64, f64),
    /// First less second.
    pub difference: Estimate,
    /// How often a difference as large or larger comes up, in either direction, where there is none: by flipping the sign of
    /// each video's differences at random.
    pub p: f64,
    /// Questions where the first is better, and where the second is.
    pub better: (usize, usize),
}

impl Report {
    /// Sums up. The same records give the same numbers, in whatever order, and however often they are there.
    #[must_use]
    pub fn of(run: Run, records: &[Record]) -> Self {
        let records: Vec<&Record> = by_id(records).into_values().collect();
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        for reason in records.iter().filter_map(|record| record.error.as_deref()) {
            *reasons.entry(reason).or_default() += 1;
        }
        let mut reasons: Vec<(String, usize)> =
            reasons.into_iter().map(|(why, count)| (why.to_owned(), count)).collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        reasons.truncate(3);
        let mut groups: BTreeMap<String, BTreeMap<String, Vec<&Record>>> = BTreeMap::new();
        for record in &records {
            for (name, value) in &record.groups {
                groups.entry(name.clone()).or_default().entry(value.clone()).or_default().push(record);
            }
        }
        let answered: Vec<&Record> = records.iter().copied().filter(|record| record.error.is_none()).collect();
        let each = |of: &dyn Fn(&Record) -> f64| mean(&answered.iter().map(|record| of(record)).collect::<Vec<_>>());
        let times = |of: &dyn Fn(&Record) -> Option<f64>| {
            let mut times: Vec<f64> = answered.iter().filter_map(|record| of(record)).collect();
            times.sort_by(f64::total_cmp);
            [percentile(&times, 0.5), percentile(&times, 0.95)]
        };
        let groups: BTreeMap<String, BTreeMap<String, Scores>> = groups
            .into_iter()
            .map(|(name, values)| {
                let values = values.into_iter().map(|(value, records)| (value, Scores::of(&records)));
                (name, values.collect())
            })
            .collect();
        let macro_of = |values: &BTreeMap<String, Scores>| {
            mean(&values.values().map(|scores| scores.score.mean).collect::<Vec<_>>())
        };
        Self {
            done: records.len(),
            errors: records.len() - answered.len(),
            reasons,
            unanswerable: records.iter().filter(|record| record.gold == Gold::Letter { letter: None }).count(),
            all: Scores::of(&records),
            without_errors: each(&|record| record.score),
            macros: groups.iter().map(|(name, values)| (name.clone(), macro_of(values))).collect(),
            groups,
            tool_rate: each(&|record| if record.calls > 0 { 1.0 } else { 0.0 }),
            calls: each(&|record| f64::from(record.calls)),
            turns: each(&|record| f64::from(record.turns)),
            tokens: [
                each(&|record| record.main_tokens.0 as f64),
                each(&|record| record.main_tokens.1 as f64),
                each(&|record| record.sub_tokens.0 as f64),
                each(&|record| record.sub_tokens.1 as f64),
            ],
            cached: each(&|record| record.cached_tokens as f64),
            total_ms: times(&|record| Some(record.total_ms)),
            first_answer_ms: times(&|record| record.first_answer_ms),
            run,
        }
    }

    /// As a table for people.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        let Run { suite, model, dispatch, questions, .. } = &self.run;
        let _ = writeln!(text, "### {suite}: {model}, {dispatch}\n");
        let is_span = self.all.recall.is_some();
        let (name, more, rule) =
            if is_span { ("mIoU", " R@0.3 | R@0.5 | R@0.7 |", " ---: | ---: | ---: |") } else { ("accuracy", "", "") };
        let _ = writeln!(text, "| | questions | {name} | 95 % |{more} s |\n| --- | ---: | ---: | --- |{rule} ---: |");
        let row = |text: &mut String, name: &str, scores: &Scores| {
            let Estimate { mean, low, high } = scores.score;
            let _ =
                write!(text, "| {name} | {} | {} | {} to {} |", scores.questions, cent(mean), cent(low), cent(high));
            for share in scores.recall.iter().flatten() {
                let _ = write!(text, " {} |", cent(*share));
            }
            let _ = writeln!(text, " {:.2} |", scores.median_s);
        };
        row(&mut text, "**all**", &self.all);
        for (group, values) in &self.groups {
            let mut values: Vec<(&String, &Scores)> = values.iter().collect();
            // Numbers by their size, and before words.
            let number = |value: &str| value.parse::<f64>().unwrap_or(f64::INFINITY);
            values.sort_by(|one, other| number(one.0).total_cmp(&number(other.0)).then(one.0.cmp(other.0)));
            for (value, scores) in &values {
                row(&mut text, &format!("{group}: {}", value.replace('|', "\\|")), scores);
            }
            if let Some(mean) = self.macros.get(group).filter(|_| values.len() > 1) {
                let _ = writeln!(
                    text,
                    "| {group}: mean of these | | {} | |{} |",
                    cent(*mean),
                    " |".repeat(3 * usize::from(is_span))
                );
            }
        }
        let [read, wrote, sub_read, sub_wrote] = self.tokens;
        let _ = writeln!(
            text,
            "\n{} of {questions} questions, {} failed (counted as wrong; {} without them). Windows asked for in {} % of them, {:.2} a \
             question in {:.2} turns. Tokens a question: main {read:.0} read, {wrote:.0} written; sub-agents {sub_read:.0} and \
             {sub_wrote:.0}; {:.0} of those read were cached. Seconds a question: median {:.2}, p95 {:.2}; to the answer's first \
             text {:.2} and {:.2}.",
            self.done,
            self.errors,
            cent(self.without_errors),
            cent(self.tool_rate),
            self.calls,
            self.turns,
            self.cached,
            self.total_ms[0] / 1e3,
            self.total_ms[1] / 1e3,
            self.first_answer_ms[0] / 1e3,
            self.first_answer_ms[1] / 1e3,
        );
        for (reason, count) in &self.reasons {
            let _ = writeln!(text, "- {count} failed: {reason}");
        }
        if self.unanswerable > 0 {
            let _ = writeln!(text, "- {} have no right answer in the benchmark's own data.", self.unanswerable);
        }
        text
    }
}

/// A share as a number of hundred with one decimal.
fn cent(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

impl Scores {
    fn of(records: &[&Record]) -> Self {
        let scores: Vec<f64> = records.iter().map(|record| record.score).collect();
        let by_video = records.iter().map(|record| (record.video.as_str(), record.score));
        let is_span = !records.is_empty() && records.iter().all(|record| record.gold.is_span());
        let share = |threshold: f64| {
            mean(&scores.iter().map(|score| f64::from(u8::from(*score >= threshold))).collect::<Vec<_>>())
        };
        let mut times: Vec<f64> =
            records.iter().filter(|record| record.error.is_none()).map(|record| record.total_ms / 1e3).collect();
        times.sort_by(f64::total_cmp);
        Self {
            questions: scores.len(),
            score: estimate(&clusters(by_video)),
            recall: is_span.then(|| THRESHOLDS.map(share)),
            median_s: percentile(&times, 0.5),
        }
    }
}

impl Comparison {
    /// Compares by question. `None` where the two have none in common.
    #[must_use]
    pub fn of(first: &[Record], second: &[Record]) -> Option<Self> {
        let (first, second) = (by_id(first), by_id(second));
        let pairs: Vec<(&Record, &Record)> =
            first.iter().filter_map(|(id, record)| Some((*record, *second.get(id)?))).collect();
        let difference = |(one, other): &(&Record, &Record)| one.score - other.score;
        let by_video = clusters(pairs.iter().map(|pair| (pair.0.video.as_str(), difference(pair))));
        let scores = |of: fn(&(&Record, &Record)) -> f64| mean(&pairs.iter().map(of).collect::<Vec<_>>());
        let count = |of: &dyn Fn(&(&Record, &Record)) -> bool| pairs.iter().filter(|pair| of(pair)).count();
        let answered = pairs.iter().filter(|pair| pair.0.error.is_none() && pair.1.error.is_none());
        (!pairs.is_empty()).then(|| Self {
            questions: pairs.len(),
            errors: (count(&|pair| pair.0.error.is_some()), count(&|pair| pair.1.error.is_some())),
            without_errors: mean(&answered.map(difference).collect::<Vec<_>>()),
            scores: (scores(|pair| pair.0.score), scores(|pair| pair.1.score)),
            difference: estimate(&by_video),
            p: by_chance(&by_video),
            better: (count(&|pair| difference(pair) > 0.0), count(&|pair| difference(pair) < 0.0)),
        })
    }

    /// In words.
    #[must_use]
    pub fn markdown(&self, first: &Run, second: &Run) -> String {
        let Estimate { mean, low, high } = self.difference;
        format!(
            "{} against {}, {} of {} questions: {} and {}, a difference of {} points (95 %: {} to {}), p = {:.4} by paired sign \
             flips of videos. The first is better on {} questions, the second on {}. {} and {} failed and count as wrong; without \
             them the difference is {}.\n",
            first,
            second,
            self.questions,
            first.questions,
            cent(self.scores.0),
            cent(self.scores.1),
            cent(mean),
            cent(low),
            cent(high),
            self.p,
            self.better.0,
            self.better.1,
            self.errors.0,
            self.errors.1,
            cent(self.without_errors),
        )
    }
}

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// By the nearest rank. 0 of nothing.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// One record a question: an answer rather than a failure, else the last one.
fn by_id(records: &[Record]) -> BTreeMap<&str, &Record> {
    let mut all: BTreeMap<&str, &Record> = BTreeMap::new();
    for record in records {
        let known = all.entry(record.id.as_str()).or_insert(record);
        if record.error.is_none() || known.error.is_some() {
            *known = record;
        }
    }
    all
}

/// Values by video: their sum and their number.
fn clusters<'a>(values: impl Iterator<Item = (&'a str, f64)>) -> Vec<(f64, f64)> {
    let mut all: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (video, value) in values {
        let cluster = all.entry(video).or_default();
        *cluster = (cluster.0 + value, cluster.1 + 1.0);
    }
    all.into_values().collect()
}

/// The mean over all clusters' values.
fn pooled(clusters: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (sum, count) = clusters.fold((0.0, 0.0), |(sum, count), (more, number)| (sum + more, count + number));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// The mean with a percentile bootstrap of clusters around it, from a seed of its own.
fn estimate(clusters: &[(f64, f64)]) -> Estimate {
    let last = i64::try_from(clusters.len()).unwrap_or(i64::MAX) - 1;
    if last < 0 {
        return Estimate { mean: 0.0, low: 0.0, high: 0.0 };
    }
    let mut random = Random::new(0, 0);
    let mut draw = |_| {
        usize::try_from(random.number(0, last)).ok().and_then(|place| clusters.get(place)).copied().unwrap_or_default()
    };
    let mut means: Vec<f64> = (0..SAMPLES).map(|_| pooled((0..clusters.len()).map(&mut draw))).collect();
    means.sort_by(f64::total_cmp);
    Estimate {
        mean: pooled(clusters.iter().copied()),
        low: percentile(&means, TAIL),
        high: percentile(&means, 1.0 - TAIL),
    }
}

/// See [`Comparison::p`]. One more than was drawn, so that it is never 0.
fn by_chance(clusters: &[(f64, f64)]) -> f64 {
    let found = pooled(clusters.iter().copied()).abs() - 1e-12;
    let mut random = Random::new(1, 0);
    let mut flip = |(sum, count): &(f64, f64)| (if random.chance(50) { *sum } else { -sum }, *count);
    let as_large = (0..SAMPLES).filter(|_| pooled(clusters.iter().map(&mut flip)).abs() >= found).count();
    (as_large + 1) as f64 / (SAMPLES + 1) as f64
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;
    use crate::types::MediaTime;

    fn run() -> Run {
        let text = str::to_owned;
        Run {
            suite: text("made-up"),
            model: text("m"),
            dispatch: text("parallel"),
            questions: 4,
            digest: text("0123456789"),
            settings: text("abc"),
        }
    }

    fn group(record: Record, value: &str) -> Record {
        Record { groups: vec![("duration".to_owned(), value.to_owned())], ..record }
    }

    fn four() -> Vec<Record> {
        vec![
            group(record("1", 1.0), "short"),
            group(record("2", 1.0), "long"),
            group(record("3", 0.0), "long"),
            Record { error: Some("late".to_owned()), calls: 0, ..group(record("4", 0.0), "long") },
        ]
    }

    #[test]
    fn what_failed_counts_as_wrong_and_is_told_apart() {
        let report = Report::of(run(), &four());
        assert_eq!((report.done, report.errors, report.all.score.mean), (4, 1, 0.5));
        assert!((report.without_errors - 2.0 / 3.0).abs() < 1e-12);
        assert_eq!((report.tool_rate, report.calls, report.turns), (1.0, 2.0, 2.0));
        assert_eq!(report.groups["duration"]["long"].questions, 3);
        assert!((report.groups["duration"]["long"].score.mean - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!((report.all.recall, report.total_ms), (None, [1500.0, 1500.0]));
        let text = report.markdown();
        assert!(text.contains("| **all** | 4 | 50.0 |") && text.contains("| duration: long | 3 | 33.3 |"), "{text}");
        assert!(text.contains("| duration: mean of these | | 66.7 |") && text.contains("- 1 failed: late"), "{text}");
    }

    #[test]
    fn shards_in_any_order_come_to_the_same() {
        let mut shuffled = four();
        shuffled.rotate_left(2);
        shuffled.swap(0, 1);
        assert_eq!(Report::of(run(), &four()), Report::of(run(), &shuffled));
        // Nor does it matter how often a result is there, or that it failed before.
        let failed = Record { error: Some("late".to_owned()), score: 0.0, ..four()[0].clone() };
        let twice: Vec<Record> = four().into_iter().chain(shuffled).chain([failed]).collect();
        assert_eq!(Report::of(run(), &four()), Report::of(run(), &twice));
    }

    #[test]
    fn stretches_of_time_have_recalls() {
        let gold = Gold::Span { start: MediaTime::ZERO, end: MediaTime::from_micros(1) };
        let records: Vec<Record> = [0.3, 0.5, 0.69, 0.71]
            .iter()
            .zip(1..)
            .map(|(score, id)| Record { gold: gold.clone(), ..record(&id.to_string(), *score) })
            .collect();
        let report = Report::of(run(), &records);
        assert_eq!(report.all.recall, Some([1.0, 0.75, 0.25]));
        assert!(report.markdown().contains("mIoU"));
    }

    /// The interval of a share of a half of a hundred: about 0.4 to 0.6 by the normal approximation.
    #[test]
    fn intervals_are_about_as_wide_as_they_should_be() {
        let values: Vec<(f64, f64)> = (0..100).map(|place| (f64::from(place % 2), 1.0)).collect();
        let found = estimate(&values);
        assert_eq!(found, estimate(&values));
        assert!((found.low - 0.402).abs() < 0.02 && (found.high - 0.598).abs() < 0.02, "{found:?}");
        // The same answers about ten videos, all right or all wrong: a tenth of what there is to know.
        let videos: Vec<(f64, f64)> = (0..10).map(|place| (10.0 * f64::from(place % 2), 10.0)).collect();
        let few = estimate(&videos);
        assert_eq!(few.mean, 0.5);
        assert!(few.high - few.low > 2.0 * (found.high - found.low), "{few:?}");
        assert_eq!(estimate(&[(1.0, 1.0); 9]), Estimate { mean: 1.0, low: 1.0, high: 1.0 });
        assert_eq!(estimate(&[]), Estimate { mean: 0.0, low: 0.0, high: 0.0 });
    }

    #[test]
    fn a_difference_is_told_from_chance() {
        let scores = |of: &dyn Fn(usize) -> f64| -> Vec<Record> {
            (0..40).map(|place| record(&format!("{place:02}"), of(place))).collect()
        };
        let all = scores(&|_| 1.0);
        let half = scores(&|place| (place % 2) as f64);
        let clear = Comparison::of(&all, &half).expect("the same questions");
        assert_eq!((clear.questions, clear.better, clear.scores), (40, (20, 0), (1.0, 0.5)));
        assert!(clear.p < 0.001 && clear.difference.low > 0.3, "{clear:?}");
        // As many the one way as the other.
        let other = scores(&|place| ((place + 1) % 2) as f64);
        let none = Comparison::of(&half, &other).expect("the same questions");
        assert_eq!((none.difference.mean, none.better), (0.0, (20, 20)));
        assert!(none.p > 0.9, "{none:?}");
        assert_eq!(Comparison::of(&all, &[record("x", 1.0)]), None);
        assert!(clear.markdown(&run(), &run()).contains("a difference of 50.0 points"));
    }
}
