//! Tells the story line by line, for pipes, logs and terminals without colours. ASCII but for the model's own words.
//!
//! Pure: story and event in, lines out.

use super::line::Line;
use super::report::{self, Fills};
use super::story::{Step, Story};
use super::{text, timeline};
use crate::agent::{AgentEvent, Outcome};
use crate::types::MediaTime;

/// Columns a line of a log may take.
pub(super) const WIDTH: usize = 100;

/// Tells events in the order they come. Some tell late of what was over before (a turn's end waits for its windows): their
/// lines are stamped when they are told, so that a reader's time never goes back.
#[derive(Debug, Default)]
pub(super) struct Teller {
    told_ms: f64,
}

impl Teller {
    /// What is told of an event, after the story took it in.
    pub(super) fn tell(&mut self, story: &Story, event: &AgentEvent) -> Option<String> {
        let (at_ms, who, what) = line_of(story, event)?;
        self.told_ms = self.told_ms.max(at_ms);
        let line = format!("{:>7}  {who:<10}  {}", text::seconds(self.told_ms), text::line(&what));
        Some(text::fit(&line, WIDTH, true))
    }
}

/// When what happened to whom.
fn line_of(story: &Story, event: &AgentEvent) -> Option<(f64, String, String)> {
    let main = || "main agent".to_owned();
    let told = match event {
        AgentEvent::Overview(record) => {
            let kind = if record.keyframes { "key frames" } else { "frames" };
            let said = format!("{} {kind} over {}", record.frame_times.len(), record.duration.clock());
            (record.at_ms, "overview".to_owned(), said)
        }
        AgentEvent::TurnStarted { turn, at_ms } => (*at_ms, main(), format!("begins turn {}", turn + 1)),
        AgentEvent::WindowStarted { id, window, at_ms, .. } => (*at_ms, name(*id), format!("[{window}] decoding")),
        AgentEvent::WindowFrames { id, frame_times, at_ms, .. } => {
            (*at_ms, name(*id), format!("watching {} frames", frame_times.len()))
        }
        AgentEvent::WindowFinished(record) => {
            let known = story.windows.iter().find(|window| window.id == record.id);
            (record.finished_ms, name(record.id), known.map_or_else(String::new, |window| window.text.clone()))
        }
        AgentEvent::TurnFinished(record) if !story.thought.trim().is_empty() => {
            (record.finished_ms, main(), format!("thought: {}", text::line(&story.thought)))
        }
        AgentEvent::Finished(outcome) => (outcome.total_ms, main(), "has its answer".to_owned()),
        AgentEvent::TurnFinished(_)
        | AgentEvent::Reasoning(_)
        | AgentEvent::Answer(_)
        | AgentEvent::AnswerTokens(_)
        | AgentEvent::ToolCall(_)
        | AgentEvent::WindowDelta { .. } => return None,
    };
    Some(told)
}

/// What stands at the end: the timeline, where the time went, the answer.
pub(super) fn end(story: &Story, outcome: &Outcome) -> Vec<String> {
    let mut lines = bar(story, 80);
    lines.extend(report::draw(outcome, 80, Fills::ASCII).iter().map(Line::plain));
    lines.push(format!("answer    {}", text::line(&outcome.answer)));
    lines
}

/// The video as a bar of `-`, its windows `#`, failed ones `x`, with their numbers below.
fn bar(story: &Story, width: usize) -> Vec<String> {
    let Some(duration) = story.duration else { return Vec::new() };
    let (from, to) = (MediaTime::ZERO.clock(), duration.clock());
    let cells = width.saturating_sub(from.len() + to.len() + 2).min(66);
    let spans = story.spans();
    let fill = |cell: &Option<usize>| match cell.and_then(|index| story.windows.get(index)).map(|window| window.step) {
        None => '-',
        Some(Step::Failed) => 'x',
        Some(_) => '#',
    };
    let row: String = timeline::cells(duration, &spans, cells).iter().map(fill).collect();
    let labels = timeline::labels(duration, &spans, cells);
    vec![format!("{from} {row} {to}"), format!("{}{labels}", " ".repeat(from.len() + 1))]
}

fn name(id: usize) -> String {
    format!("window {}", id + 1)
}

#[cfg(test)]
mod tests {
    use super::super::story::fixture;
    use super::*;

    #[test]
    fn the_whole_story_in_lines() {
        let mut story = Story::new("demo.mp4", "Which shapes?");
        let (mut teller, mut told) = (Teller::default(), Vec::new());
        for event in fixture::events() {
            story.apply(&event);
            told.extend(teller.tell(&story, &event));
        }
        told.extend(end(&story, &fixture::outcome()));
        insta::assert_snapshot!(told.join("\n"), @r#"
          0.30s  overview    16 frames over 05:00
          0.30s  main agent  begins turn 1
          0.60s  window 1    [20.0s - 60.0s] decoding
          0.68s  window 2    [160.0s - 180.0s] decoding
          0.70s  window 3    failed: unknown tool "x"
          0.72s  main agent  thought: The border is lit at 20.0, 40.0, 60.0 and at 160.0, 180.0.
          0.72s  window 1    watching 2 frames
          0.78s  window 2    watching 2 frames
          1.80s  window 1    A red circle appears.
          1.90s  window 2    A blue square appears.
          1.90s  main agent  begins turn 2
          2.40s  main agent  has its answer
        00:00 ----##########---------------------#####-------------------------- 05:00
                      1                            2
         open        0.12s  ===
         overview    0.18s     ====
         main turns  0.92s         ###########                             ############
         window 1    1.20s                 ==.##########################
         window 2    1.22s                   ==.###########################
         total       2.40s
         = decoding  . waiting  # model
         2.32s of work on windows in 1.30s of wall time: 1.02s saved, 2 at once
        answer    red circle, blue square
        "#);
    }

    #[test]
    fn long_summaries_are_cut_and_nothing_but_text_is_left() {
        let mut story = Story::new("v.mp4", "q");
        let summary = format!("\u{1b}[31m{}\r\nend", "very ".repeat(100));
        let event = AgentEvent::WindowFinished(fixture::record(0, (1.0, 2.0), &summary, (0.0, 400.0)));
        story.apply(&event);
        let told = Teller::default().tell(&story, &event).expect("a line");
        assert!(text::width(&told) <= WIDTH && told.ends_with('~'), "{told:?}");
        assert!(!told.contains(char::is_control), "{told:?}");
    }
}
