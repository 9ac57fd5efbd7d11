//! Draws the story as it stands: what the live view shows between two events.
//!
//! Pure: story, width and time in, lines out.

use super::line::{Line, Tone};
use super::story::{Step, Story, Window};
use super::{text, timeline};
use crate::types::MediaTime;

const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// From here on a window's row has room for its frames and seconds.
const WIDE: usize = 60;

/// Lines of the answer shown while it is written.
const ANSWER_LINES: usize = 4;

/// What moves while nothing happens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// Milliseconds since the episode began.
    pub(super) now_ms: f64,
    /// Counts redraws.
    pub(super) tick: usize,
}

impl Moment {
    pub(super) const fn spinner(self) -> &'static str {
        SPINNER[self.tick % SPINNER.len()]
    }
}

/// The whole picture, no line wider than `width`.
pub(super) fn draw(story: &Story, width: usize, moment: Moment) -> Vec<Line> {
    let mut lines = vec![title(story, width), question(story, width), Line::new()];
    lines.extend(bar(story, width));
    lines.push(main_agent(story, width, moment));
    lines.extend(story.windows.iter().map(|window| row(story, window, width, moment)));
    if !story.answer.trim().is_empty() {
        lines.push(Line::new());
        lines.extend(answer(story, width));
    }
    lines
}

fn title(story: &Story, width: usize) -> Line {
    let facts = story.duration.map_or_else(
        || "  opening".to_owned(),
        |duration| format!("  {} · {} overview frames", duration.clock(), story.overview_frames),
    );
    let name = text::fit(&text::line(&story.title), width.saturating_sub(1 + text::width(&facts)).max(8), false);
    let facts = text::fit(&facts, width.saturating_sub(1 + text::width(&name)), false);
    Line::new().add(Tone::Strong, format!(" {name}")).add(Tone::Dim, facts)
}

fn question(story: &Story, width: usize) -> Line {
    Line::new()
        .add(Tone::Plain, format!(" {}", text::fit(&text::line(&story.question), width.saturating_sub(1), false)))
}

/// The video as a bar, its windows lit: `░` decoding, `▒` at the sub-agent, `█` done, `×` failed.
fn bar(story: &Story, width: usize) -> Vec<Line> {
    let Some(duration) = story.duration else { return Vec::new() };
    let (from, to) = (MediaTime::ZERO.clock(), duration.clock());
    let cells = width.saturating_sub(from.len() + to.len() + 4).min(100);
    let spans = story.spans();
    let mut line = Line::new().add(Tone::Dim, format!(" {from} "));
    for cell in timeline::cells(duration, &spans, cells) {
        let (tone, fill) = match cell.and_then(|index| story.windows.get(index)).map(|window| window.step) {
            None => (Tone::Dim, "─"),
            Some(Step::Decoding) => (Tone::Busy, "░"),
            Some(Step::Waiting | Step::Watching) => (Tone::Busy, "▒"),
            Some(Step::Done) => (Tone::Good, "█"),
            Some(Step::Failed) => (Tone::Bad, "×"),
        };
        line = line.add(tone, fill);
    }
    let labels = timeline::labels(duration, &spans, cells);
    let indent = " ".repeat(from.len() + 2);
    vec![line.add(Tone::Dim, format!(" {to}")), Line::new().add(Tone::Dim, format!("{indent}{labels}"))]
}

fn main_agent(story: &Story, width: usize, moment: Moment) -> Line {
    let running = story.running();
    let (mark, tone, state) = match (&story.outcome, story.turn) {
        (Some(outcome), _) => ("✓", Tone::Good, format!("answered in {}", text::seconds(outcome.total_ms))),
        (None, Some(_)) if !story.answer.is_empty() => (moment.spinner(), Tone::Busy, "answering".to_owned()),
        (None, Some(turn)) => {
            let thought = text::line(&story.thought);
            let colon = if thought.is_empty() { "" } else { ": " };
            (moment.spinner(), Tone::Busy, format!("turn {}{colon}{thought}", turn + 1))
        }
        (None, None) if running > 0 => {
            let windows = if running == 1 { "window" } else { "windows" };
            (moment.spinner(), Tone::Dim, format!("waits for {running} {windows}"))
        }
        (None, None) if story.duration.is_none() => (moment.spinner(), Tone::Busy, "opens the video".to_owned()),
        (None, None) => (moment.spinner(), Tone::Busy, "reads".to_owned()),
    };
    let room = width.saturating_sub(14);
    Line::new()
        .add(Tone::Plain, " main agent ")
        .add(tone, mark)
        .add(Tone::Plain, " ")
        .add(Tone::Dim, text::fit(&state, room, false))
}

fn row(story: &Story, window: &Window, width: usize, moment: Moment) -> Line {
    let number = format!(" {:>2} ", window.id + 1);
    let place =
        format!("{:<11}", window.span.map_or_else(String::new, |s| format!("{}–{}", s.start.clock(), s.end.clock())));
    let (mark, tone, state) = match window.step {
        Step::Decoding => (moment.spinner(), Tone::Busy, "decoding"),
        Step::Waiting => (moment.spinner(), Tone::Busy, "waiting"),
        Step::Watching => (moment.spinner(), Tone::Busy, "watching"),
        Step::Done => ("✓", Tone::Good, ""),
        Step::Failed => ("×", Tone::Bad, ""),
    };
    let words = text::line(&window.text);
    let mut line = Line::new().add(Tone::Strong, number).add(Tone::Dim, place).add(Tone::Plain, " ").add(tone, mark);
    let mut used = 17;
    if width >= WIDE {
        let state =
            if state.is_empty() && window.frames > 0 { format!("{} frames", window.frames) } else { state.to_owned() };
        // A refused call took no time, and a column of zeros says nothing.
        let ms = window.finished_ms.unwrap_or(moment.now_ms) - window.started_ms;
        let took = if ms > 0.0 { text::seconds(ms) } else { String::new() };
        line = line.add(Tone::Dim, format!(" {state:<9} {took:>6}"));
        used += 17;
    } else if words.is_empty() {
        return line.add(Tone::Dim, format!(" {}", text::fit(state, width.saturating_sub(used + 1), false)));
    }
    let tone = if window.step == Step::Failed { Tone::Bad } else { Tone::Plain };
    // What is still being written is quieter than what counts.
    let tone = if window.finished_ms.is_none() && story.outcome.is_none() { Tone::Dim } else { tone };
    line.add(tone, format!(" {}", text::fit(&words, width.saturating_sub(used + 1), false)))
}

fn answer(story: &Story, width: usize) -> Vec<Line> {
    const HEAD: &str = " answer  ";
    let whole = text::block(&story.answer);
    let mut lines = text::wrap(&whole, width.saturating_sub(HEAD.len()));
    if story.outcome.is_none() {
        lines = lines.split_off(lines.len().saturating_sub(ANSWER_LINES));
    }
    let indent = " ".repeat(HEAD.len());
    let head = |index| if index == 0 { HEAD } else { indent.as_str() };
    lines
        .iter()
        .enumerate()
        .map(|(index, line)| Line::new().add(Tone::Dim, head(index)).add(Tone::Strong, line))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::story::fixture;
    use super::*;

    fn after(events: usize) -> Story {
        let mut story = Story::new("demo.mp4", "Which shapes appear while the border is lit? List them in order.");
        fixture::events().iter().take(events).for_each(|event| story.apply(event));
        story
    }

    fn picture(story: &Story, width: usize) -> String {
        let lines = draw(story, width, Moment { now_ms: 1000.0, tick: 2 });
        lines.iter().map(Line::plain).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn before_the_video_is_open() {
        insta::assert_snapshot!(picture(&after(0), 80), @r#"
        demo.mp4  opening
        Which shapes appear while the border is lit? List them in order.

        main agent ⠹ opens the video
        "#);
    }

    #[test]
    fn while_windows_are_on_their_way() {
        insta::assert_snapshot!(picture(&after(12), 80), @r#"
        demo.mp4  05:00 · 16 overview frames
        Which shapes appear while the border is lit? List them in order.

        00:00 ────▒▒▒▒▒▒▒▒▒▒─────────────────────▒▒▒▒▒────────────────────────── 05:00
                      1                            2
        main agent ⠹ waits for 2 windows
         1 00:20–01:00 ⠹ watching   0.40s A red circle
         2 02:40–03:00 ⠹ waiting    0.32s
         3             ×                  failed: unknown tool "x"
        "#);
    }

    #[test]
    fn while_the_main_agent_thinks_on_a_narrow_terminal() {
        insta::assert_snapshot!(picture(&after(5), 40), @r#"
        demo.mp4  05:00 · 16 overview frames
        Which shapes appear while the border i…

        00:00 ─░░░░░──────────────────── 05:00
                 1
        main agent ⠹ turn 1: The border is lit…
         1 00:20–01:00 ⠹ decoding
        "#);
    }

    #[test]
    fn at_the_end() {
        insta::assert_snapshot!(picture(&after(usize::MAX), 80), @r#"
        demo.mp4  05:00 · 16 overview frames
        Which shapes appear while the border is lit? List them in order.

        00:00 ────██████████─────────────────────█████────────────────────────── 05:00
                      1                            2
        main agent ✓ answered in 2.40s
         1 00:20–01:00 ✓ 2 frames   1.20s A red circle appears.
         2 02:40–03:00 ✓ 2 frames   1.22s A blue square appears.
         3             ×                  failed: unknown tool "x"

        answer  red circle, blue square
        "#);
    }

    #[test]
    fn at_the_end_on_a_narrow_terminal() {
        insta::assert_snapshot!(picture(&after(usize::MAX), 40), @r#"
        demo.mp4  05:00 · 16 overview frames
        Which shapes appear while the border i…

        00:00 ─█████───────███────────── 05:00
                 1          2
        main agent ✓ answered in 2.40s
         1 00:20–01:00 ✓ A red circle appears.
         2 02:40–03:00 ✓ A blue square appears.
         3             × failed: unknown tool …

        answer  red circle, blue square
        "#);
    }

    #[test]
    fn no_escape_sequence_of_the_model_reaches_the_terminal() {
        let mut story = after(10);
        story.title = "\u{1b}]0;x\u{7}v.mp4".to_owned();
        story.question = "\u{1b}[2Jq".to_owned();
        story.answer = "\u{1b}[31mred".to_owned();
        let lines = draw(&story, 80, Moment { now_ms: 0.0, tick: 0 });
        assert!(lines.iter().all(|line| !line.plain().contains(char::is_control)), "{lines:?}");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_terminal(events in 0usize..20, width in 36usize..120) {
            let lines = draw(&after(events), width, Moment { now_ms: 900_000.0, tick: 7 });
            for line in lines {
                prop_assert!(text::width(&line.plain()) <= width, "{}", line.plain());
            }
        }
    }
}
