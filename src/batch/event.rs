//! Events, and how they are read from what an episode gave. Pure.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::task::Task;
use crate::agent::{Outcome, WindowStatus};
use crate::types::{MediaTime, TimeSpan};

/// Most events of one segment.
const MOST: usize = 200;
/// Longest description that is kept, in characters.
const MOST_TEXT: usize = 2000;

/// Something that happens. Times are from the start of the video.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// From here on, in seconds.
    pub start: MediaTime,
    /// Until here.
    pub end: MediaTime,
    /// What kind: one of the task's labels where it has any.
    pub label: String,
    /// What the model says of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
}

/// Where events are taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventSource {
    /// The answer, which is held to [`events_schema`] where the engine can.
    Answer,
    /// The windows that were watched: each is an event of what its summary says. For models that write no JSON, such as the
    /// bundled one.
    Windows,
}

/// The JSON schema of an answer with events. With labels, no others can be given.
#[must_use]
pub fn events_schema(labels: &[String]) -> Value {
    let label = if labels.is_empty() { json!({"type": "string"}) } else { json!({"enum": labels}) };
    json!({
        "type": "object",
        "properties": {"events": {
            "type": "array",
            "maxItems": MOST,
            "items": {
                "type": "object",
                "properties": {
                    "start": {"type": "number", "description": "seconds from the start of the video"},
                    "end": {"type": "number", "description": "seconds from the start of the video"},
                    "label": label,
                    "description": {"type": "string"},
                },
                "required": ["start", "end", "label", "description"],
                "additionalProperties": false,
            },
        }},
        "required": ["events"],
        "additionalProperties": false,
    })
}

/// The question as it is put to a model that is to answer in JSON.
pub(super) fn question(task: &Task) -> String {
    let labels =
        if task.labels.is_empty() { String::new() } else { format!(" Only these labels: {}.", task.labels.join(", ")) };
    format!(
        "{}\nAnswer with JSON: {{\"events\": [{{\"start\": seconds, \"end\": seconds, \"label\": what, \"description\": one \
         sentence}}]}}, in the order of time, and an empty list if there are none.{labels}",
        task.question
    )
}

impl Event {
    /// Whether both are of one kind: letter case and outer space don't matter.
    pub(super) fn same_label(&self, other: &Self) -> bool {
        self.label.trim().to_lowercase() == other.label.trim().to_lowercase()
    }

    fn moved(self, by: MediaTime) -> Self {
        Self { start: self.start.saturating_add(by), end: self.end.saturating_add(by), ..self }
    }
}

/// The events of an episode over a segment that begins at `span.start`, in the whole video's times, and how many more were told that
/// are none.
///
/// # Errors
/// What is wrong with the answer.
pub(super) fn events(
    outcome: &Outcome,
    from: EventSource,
    labels: &[String],
    span: TimeSpan,
) -> Result<(Vec<Event>, usize), String> {
    let length = span.end.saturating_sub(span.start);
    let (found, said) = match from {
        EventSource::Answer => answered(&outcome.answer, labels, length)?,
        EventSource::Windows => {
            let found = watched(outcome, labels);
            let said = found.len();
            (found, said)
        }
    };
    let events: Vec<Event> = found.into_iter().take(MOST).map(|event| event.moved(span.start)).collect();
    let dropped = said - events.len();
    Ok((events, dropped))
}

/// Of an answer in JSON, those that can be, and how many it has. Engines that hold no answer to a schema may wrap it in words.
fn answered(answer: &str, labels: &[String], length: MediaTime) -> Result<(Vec<Event>, usize), String> {
    #[derive(Deserialize)]
    struct Answer {
        events: Vec<Said>,
    }
    #[derive(Deserialize)]
    struct Said {
        start: f64,
        end: f64,
        label: String,
        #[serde(default)]
        description: String,
    }
    let json = answer.find('{').zip(answer.rfind('}')).and_then(|(from, to)| answer.get(from..=to));
    let json = json.ok_or_else(|| "the answer is no list of events: it holds no JSON object".to_owned())?;
    let answer: Answer =
        serde_json::from_str(json).map_err(|error| format!("the answer is no list of events: {error}"))?;
    let event = |said: Said| {
        let (start, end) = (MediaTime::from_seconds(said.start)?, MediaTime::from_seconds(said.end)?);
        let inside = start <= end && start < length && end >= MediaTime::ZERO;
        let label = named(&said.label, labels)?;
        let (start, end) = (start.max(MediaTime::ZERO), end.min(length));
        inside.then(|| Event { start, end, label, description: cut(&said.description) })
    };
    let said = answer.events.len();
    let events: Vec<Event> = answer.events.into_iter().filter_map(event).collect();
    if events.is_empty() && said > 0 {
        return Err(format!(
            "none of the {said} events of the answer has a label of the task and a time within the segment"
        ));
    }
    Ok((events, said))
}

/// A label as the task writes it. `None`: it is none of the task's.
fn named(said: &str, labels: &[String]) -> Option<String> {
    if labels.is_empty() {
        return Some(cut(said.trim())).filter(|label| !label.is_empty());
    }
    labels.iter().find(|label| label.trim().eq_ignore_ascii_case(said.trim())).cloned()
}

/// Of the windows: with labels, those whose summaries name one, by the one that is named first.
fn watched(outcome: &Outcome, labels: &[String]) -> Vec<Event> {
    let windows = outcome.windows.iter().filter(|window| window.status == WindowStatus::Ok);
    let mut events: Vec<Event> = windows
        .filter_map(|window| {
            let (span, summary) = (window.span()?, window.summary.as_deref()?.trim());
            let label = if labels.is_empty() { named(summary, labels) } else { mentioned(summary, labels) };
            let description = if labels.is_empty() { String::new() } else { cut(summary) };
            Some(Event { start: span.start, end: span.end, label: label?, description })
        })
        .collect();
    events.sort_by_key(|event| (event.start, event.end));
    events
}

/// The label that a text names first, as words of their own; of two at one place the longer.
fn mentioned(text: &str, labels: &[String]) -> Option<String> {
    let words = |text: &str| -> Vec<String> {
        let lower = text.to_lowercase();
        lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let text = words(text);
    let place = |label: &String| {
        let label = words(label);
        let at = text.windows(label.len().max(1)).position(|window| window == label)?;
        Some((at, usize::MAX - label.len()))
    };
    labels
        .iter()
        .filter_map(|label| Some((place(label)?, label)))
        .min_by_key(|(place, _)| *place)
        .map(|(_, label)| label.clone())
}

fn cut(text: &str) -> String {
    text.chars().take(MOST_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::WindowRecord;

    fn at(seconds: f64) -> MediaTime {
        MediaTime::from_seconds(seconds).expect("a time")
    }

    fn labels(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn from_answer(answer: &str, names: &[&str]) -> Result<Vec<(f64, f64, String)>, String> {
        let outcome = Outcome { answer: answer.to_owned(), ..Outcome::default() };
        let span = TimeSpan { start: at(240.0), end: at(540.0) };
        let (events, dropped) = events(&outcome, EventSource::Answer, &labels(names), span)?;
        assert_eq!(dropped, answer.matches("start").count() - events.len());
        Ok(events.into_iter().map(|event| (event.start.seconds(), event.end.seconds(), event.label)).collect())
    }

    #[test]
    fn times_are_the_whole_videos_and_nothing_lies_outside_the_segment() {
        let answer = r#"Here: {"events": [
            {"start": 10, "end": 12.5, "label": "GOAL", "description": "Header."},
            {"start": -3, "end": 4, "label": "corner"},
            {"start": 290, "end": 999, "label": "foul"},
            {"start": 300, "end": 310, "label": "foul"},
            {"start": 50, "end": 40, "label": "foul"},
            {"start": 1e300, "end": 1e300, "label": "foul"},
            {"start": 60, "end": 61, "label": "dance"}
        ]}."#;
        let told = from_answer(answer, &["goal", "corner", "foul"]).expect("events");
        let expected = [(250.0, 252.5, "goal"), (240.0, 244.0, "corner"), (530.0, 540.0, "foul")];
        assert_eq!(told, expected.map(|(start, end, label)| (start, end, label.to_owned())));
        assert_eq!(from_answer(answer, &[]).expect("events").len(), 4);
        assert!(from_answer(r#"{"events": []}"#, &[]).expect("none").is_empty());
        assert!(from_answer(answer, &["yellow card"]).expect_err("none of these").starts_with("none of the 7 events"));
        for wrong in ["nothing happens", "{\"events\": [{\"start\": 1", "{\"events\": [{\"start\": \"soon\"}]}", "}{"] {
            assert!(from_answer(wrong, &[]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_window_is_an_event_of_what_was_seen_in_it() {
        let window = |start: f64, end: f64, status, summary: &str| WindowRecord {
            id: 0,
            turn: 0,
            video: 0,
            start: Some(at(start)),
            end: Some(at(end)),
            status,
            summary: Some(summary.to_owned()),
            error: None,
            shared_with: None,
            frame_times: Vec::new(),
            partial: false,
            started_ms: 0.0,
            finished_ms: 0.0,
            timing: crate::agent::StageTiming::default(),
            usage: crate::types::TokenUsage::default(),
        };
        let outcome = Outcome {
            windows: vec![
                window(40.0, 60.0, WindowStatus::Ok, "A red circle appears, then a blue square."),
                window(20.0, 30.0, WindowStatus::Ok, "No shape appears."),
                window(80.0, 90.0, WindowStatus::Failed, "A red circle"),
                window(100.0, 120.0, WindowStatus::Ok, "A BLUE SQUARE."),
                window(100.0, 120.0, WindowStatus::Shared, "A BLUE SQUARE."),
            ],
            ..Outcome::default()
        };
        let span = TimeSpan { start: at(300.0), end: at(600.0) };
        let told = |names: &[&str]| -> Vec<(f64, String)> {
            let (events, _) = events(&outcome, EventSource::Windows, &labels(names), span).expect("events");
            events.into_iter().map(|event| (event.start.seconds(), event.label)).collect()
        };
        let text = str::to_owned;
        assert_eq!(
            told(&["blue square", "red circle", "circle"]),
            [(340.0, text("red circle")), (400.0, text("blue square"))]
        );
        assert_eq!(told(&["dance"]), []);
        assert_eq!(told(&[])[0], (320.0, text("No shape appears.")));
        // Words of their own.
        assert_eq!(mentioned("an owngoal", &labels(&["goal"])), None);
        assert_eq!(mentioned("free kick!", &labels(&["free", "free kick"])), Some(text("free kick")));
        assert_eq!(mentioned("anything", &labels(&["!"])), None);
    }

    #[test]
    fn the_schema_names_the_labels_and_the_question_too() {
        let schema = events_schema(&labels(&["goal"]));
        assert_eq!(schema["properties"]["events"]["items"]["properties"]["label"], json!({"enum": ["goal"]}));
        let task: Task =
            serde_json::from_str(r#"{"video": "a", "question": "Goals?", "labels": ["goal"]}"#).expect("a task");
        assert!(question(&task).starts_with("Goals?\n") && question(&task).ends_with("Only these labels: goal."));
    }
}
