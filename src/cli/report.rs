//! Sums an episode up: where the time went, and what `ask --json` prints. Pure.

use serde::Serialize;

use super::line::{Line, Tone};
use super::timeline::{self, Stretch};
use super::{text, timeline::chart};
use crate::agent::{Outcome, WindowRecord, WindowStatus};
use crate::types::{MediaTime, TokenUsage};

/// Where the time went, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Times {
    /// Fetching and probing.
    pub(super) open_ms: f64,
    /// Decoding the overview.
    pub(super) overview_ms: f64,
    /// All main turns.
    pub(super) main_ms: f64,
    /// Work on all windows, one added to the other: decoding, prefill, generation. Waiting for the engine is no work.
    pub(super) windows_ms: f64,
    /// Wall time in which at least one window was on its way.
    pub(super) burst_ms: f64,
    /// What one after another would have taken more.
    pub(super) saved_ms: f64,
    /// Most windows with a summary that the engine computed at the same time. Waiting and decoding do not count.
    pub(super) windows_at_once: usize,
    /// Until the main agent's first text.
    pub(super) first_token_ms: Option<f64>,
    /// Until the first text of the answer.
    pub(super) first_answer_ms: Option<f64>,
    /// All of it.
    pub(super) total_ms: f64,
}

impl Times {
    /// Sums up an outcome.
    pub(super) fn of(outcome: &Outcome) -> Self {
        let windows = || outcome.windows.iter().filter(ran);
        let windows_ms = windows().map(work_ms).sum();
        let on_their_way: Vec<_> = windows().map(|window| (window.started_ms, window.finished_ms)).collect();
        let burst_ms = timeline::union_ms(&on_their_way);
        let answered = windows().filter(|window| window.status == WindowStatus::Ok);
        let computed: Vec<_> = answered.map(|window| (computed_from(window), window.finished_ms)).collect();
        Self {
            open_ms: outcome.open_ms,
            overview_ms: (outcome.overview_ms - outcome.open_ms).max(0.0),
            main_ms: outcome.turns.iter().map(|turn| turn.finished_ms - turn.started_ms).sum(),
            windows_ms,
            burst_ms,
            saved_ms: (windows_ms - burst_ms).max(0.0),
            windows_at_once: timeline::most_at_once(&computed),
            first_token_ms: outcome.first_token_ms,
            first_answer_ms: outcome.first_answer_ms,
            total_ms: outcome.total_ms,
        }
    }
}

/// Whether it was watched itself: not refused, not another's summary.
const fn ran(window: &&WindowRecord) -> bool {
    matches!(window.status, WindowStatus::Ok | WindowStatus::Failed | WindowStatus::Late)
}

/// Time spent on it. An engine that can't say how long it computed leaves the whole span.
fn work_ms(window: &WindowRecord) -> f64 {
    let span = window.finished_ms - window.started_ms;
    let stages = window.timing.decode_ms + window.timing.prefill_ms + window.timing.generate_ms;
    if stages > 0.0 { stages.min(span) } else { span }
}

/// When the engine began to compute it: prefill and generation come last, one right after the other.
fn computed_from(window: &WindowRecord) -> f64 {
    let decoded = window.started_ms + window.timing.decode_ms;
    (window.finished_ms - window.timing.prefill_ms - window.timing.generate_ms).max(decoded)
}

/// Characters a chart is drawn with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fills {
    decode: char,
    wait: char,
    work: char,
    ascii: bool,
}

impl Fills {
    /// For terminals.
    pub(super) const BLOCKS: Self = Self { decode: '▒', wait: '·', work: '█', ascii: false };
    /// For logs.
    pub(super) const ASCII: Self = Self { decode: '=', wait: '.', work: '#', ascii: true };
}

/// A row for each stage and window over the same time axis, then the sums.
pub(super) fn draw(outcome: &Outcome, width: usize, fills: Fills) -> Vec<Line> {
    const LABEL: usize = 10;
    let times = Times::of(outcome);
    let cells = width.saturating_sub(LABEL + 11).min(64);
    let row = |label: &str, ms: f64, tone: Tone, stretches: &[Stretch]| {
        Line::new()
            .add(Tone::Plain, format!(" {label:<LABEL$} {:>6}  ", text::seconds(ms)))
            .add(tone, chart(outcome.total_ms, stretches, cells))
    };
    let stretch = |start_ms, end_ms, fill| Stretch { start_ms, end_ms, fill };
    let turns: Vec<Stretch> =
        outcome.turns.iter().map(|turn| stretch(turn.started_ms, turn.finished_ms, fills.work)).collect();
    let mut lines = vec![
        row("open", times.open_ms, Tone::Dim, &[stretch(0.0, outcome.open_ms, fills.decode)]),
        row("overview", times.overview_ms, Tone::Dim, &[stretch(outcome.open_ms, outcome.overview_ms, fills.decode)]),
        row("main turns", times.main_ms, Tone::Busy, &turns),
    ];
    for window in outcome.windows.iter().filter(ran) {
        let decoded = window.started_ms + window.timing.decode_ms;
        let computed = computed_from(window);
        let stages = [
            stretch(decoded, computed, fills.wait),
            stretch(window.started_ms, decoded, fills.decode),
            stretch(computed, window.finished_ms, fills.work),
        ];
        let tone = if window.status == WindowStatus::Ok { Tone::Good } else { Tone::Bad };
        let span = window.finished_ms - window.started_ms;
        lines.push(row(&format!("window {}", window.id + 1), span, tone, &stages));
    }
    lines.push(row("total", times.total_ms, Tone::Plain, &[]));
    let legend = format!(" {} decoding  {} waiting  {} model", fills.decode, fills.wait, fills.work);
    lines.push(Line::new().add(Tone::Dim, text::fit(&legend, width, fills.ascii)));
    lines.extend(sum(&times, width));
    lines
}

fn sum(times: &Times, width: usize) -> Vec<Line> {
    if times.burst_ms <= 0.0 {
        return vec![Line::new().add(Tone::Plain, " no window was watched")];
    }
    let told = format!(
        "{} of work on windows in {} of wall time: {} saved, {} at once",
        text::seconds(times.windows_ms),
        text::seconds(times.burst_ms),
        text::seconds(times.saved_ms),
        times.windows_at_once,
    );
    text::wrap(&told, width.saturating_sub(1))
        .into_iter()
        .map(|l| Line::new().add(Tone::Strong, format!(" {l}")))
        .collect()
}

/// What `ask --json` prints.
#[derive(Debug, Serialize)]
pub(super) struct AskReport<'a> {
    answer: &'a str,
    windows: Vec<WindowReport<'a>>,
    usage: UsageReport,
    timing: Times,
}

#[derive(Debug, Serialize)]
struct WindowReport<'a> {
    start: Option<MediaTime>,
    end: Option<MediaTime>,
    summary: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    frame_times: &'a [MediaTime],
    started_ms: f64,
    finished_ms: f64,
}

#[derive(Debug, Serialize)]
struct UsageReport {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    cached_tokens: u64,
    reasoning_tokens: u64,
    main: TokenUsage,
    sub_agents: TokenUsage,
}

impl<'a> AskReport<'a> {
    /// The report of an outcome.
    pub(super) fn of(outcome: &'a Outcome) -> Self {
        let window = |window: &'a WindowRecord| WindowReport {
            start: window.start,
            end: window.end,
            summary: window.summary.as_deref(),
            error: window.error.as_deref(),
            frame_times: &window.frame_times,
            started_ms: window.started_ms,
            finished_ms: window.finished_ms,
        };
        let usage = outcome.usage;
        let total: TokenUsage = [usage.main, usage.sub].into_iter().sum();
        Self {
            answer: &outcome.answer,
            windows: outcome.windows.iter().map(window).collect(),
            usage: UsageReport {
                prompt_tokens: total.prompt_tokens,
                completion_tokens: total.completion_tokens,
                total_tokens: total.total_tokens(),
                cached_tokens: total.cached_tokens,
                reasoning_tokens: usage.reasoning_tokens,
                main: usage.main,
                sub_agents: usage.sub,
            },
            timing: Times::of(outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::story::fixture;
    use super::*;

    fn drawn(outcome: &Outcome, width: usize, fills: Fills) -> String {
        draw(outcome, width, fills).iter().map(Line::plain).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_chart_shows_windows_side_by_side() {
        insta::assert_snapshot!(drawn(&fixture::outcome(), 80, Fills::BLOCKS), @r#"
        open        0.12s  ▒▒▒
        overview    0.18s     ▒▒▒▒
        main turns  0.92s         ███████████                             ████████████
        window 1    1.20s                 ▒▒·██████████████████████████
        window 2    1.22s                   ▒▒·███████████████████████████
        total       2.40s
        ▒ decoding  · waiting  █ model
        2.32s of work on windows in 1.30s of wall time: 1.02s saved, 2 at once
        "#);
    }

    #[test]
    fn the_chart_fits_a_narrow_terminal() {
        let told = drawn(&fixture::outcome(), 40, Fills::ASCII);
        assert!(told.lines().all(|line| line.len() <= 40) && told.is_ascii(), "{told}");
    }

    #[test]
    fn an_answer_without_windows_saves_nothing() {
        let mut outcome = fixture::outcome();
        outcome.windows.retain(|window| window.status == WindowStatus::Refused);
        let times = Times::of(&outcome);
        assert_eq!((times.windows_at_once, times.saved_ms), (0, 0.0));
        assert!(drawn(&outcome, 80, Fills::ASCII).ends_with("no window was watched"));
    }

    #[test]
    fn windows_that_wait_for_one_another_save_nothing() {
        let mut outcome = fixture::outcome();
        for (index, window) in outcome.windows.iter_mut().take(2).enumerate() {
            let begun = 600.0 + 500.0 * index as f64;
            (window.started_ms, window.finished_ms) = (600.0, begun + 500.0);
            window.timing.decode_ms = 0.0;
            window.timing.queue_ms = begun - 600.0;
            (window.timing.prefill_ms, window.timing.generate_ms) = (200.0, 300.0);
        }
        let times = Times::of(&outcome);
        assert!((times.windows_ms - 1000.0).abs() < 1e-9 && times.saved_ms.abs() < 1e-9, "{times:?}");
        assert_eq!(times.windows_at_once, 1, "the second waited for the first");
    }

    #[test]
    fn windows_that_are_only_decoded_at_the_same_time_are_not_watched_so() {
        let mut outcome = fixture::outcome();
        for (index, window) in outcome.windows.iter_mut().take(2).enumerate() {
            let first = index == 0;
            (window.started_ms, window.finished_ms) = (600.0, if first { 1000.0 } else { 1400.0 });
            window.timing.decode_ms = if first { 100.0 } else { 500.0 };
            (window.timing.queue_ms, window.timing.prefill_ms, window.timing.generate_ms) = (0.0, 100.0, 200.0);
        }
        assert_eq!(Times::of(&outcome).windows_at_once, 1);
    }

    #[test]
    fn json_has_exactly_the_promised_fields() {
        insta::assert_json_snapshot!(AskReport::of(&fixture::outcome()), @r#"
        {
          "answer": "red circle, blue square",
          "windows": [
            {
              "start": 20.0,
              "end": 60.0,
              "summary": "A red circle appears.",
              "frame_times": [
                20.0,
                60.0
              ],
              "started_ms": 600.0,
              "finished_ms": 1800.0
            },
            {
              "start": 160.0,
              "end": 180.0,
              "summary": "A blue square appears.",
              "frame_times": [
                160.0,
                180.0
              ],
              "started_ms": 680.0,
              "finished_ms": 1900.0
            },
            {
              "start": null,
              "end": null,
              "summary": null,
              "error": "failed: unknown tool \"x\"",
              "frame_times": [],
              "started_ms": 700.0,
              "finished_ms": 700.0
            }
          ],
          "usage": {
            "prompt_tokens": 800,
            "completion_tokens": 96,
            "total_tokens": 896,
            "cached_tokens": 0,
            "reasoning_tokens": 50,
            "main": {
              "prompt_tokens": 600,
              "cached_tokens": 0,
              "completion_tokens": 80
            },
            "sub_agents": {
              "prompt_tokens": 200,
              "cached_tokens": 0,
              "completion_tokens": 16
            }
          },
          "timing": {
            "open_ms": 120.0,
            "overview_ms": 180.0,
            "main_ms": 920.0,
            "windows_ms": 2320.0,
            "burst_ms": 1300.0,
            "saved_ms": 1020.0,
            "windows_at_once": 2,
            "first_token_ms": 420.0,
            "first_answer_ms": 2100.0,
            "total_ms": 2400.0
          }
        }
        "#);
    }
}
