//! What the agents are told. Pure: words and frames in, turns out. The words themselves are the card's.

use std::borrow::Cow;

use serde_json::json;

use super::event::{WindowRecord, WindowStatus};
use super::parser::ToolCall;
use super::request::{AskPart, AskTurn, ClientTool};
use crate::card::ModelCard;
use crate::types::{Clip, Frame, MediaTime, Part, Role, TimeSpan, Turn};

/// Puts values for `{name}` in one pass: a value that holds braces is not read again.
#[must_use]
pub(super) fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let found = values.iter().find_map(|(name, value)| {
            rest[1..].strip_prefix(name).and_then(|after| after.strip_prefix('}')).map(|after| (*value, after))
        });
        if let Some((value, after)) = found {
            out.push_str(value);
            rest = after;
        } else {
            out.push('{');
            rest = &rest[1..];
        }
    }
    out.push_str(rest);
    out
}

/// Frames, each after its own time when `timestamps`: `<12.0 seconds>`. In pairs, when the card says so, the time is the
/// middle of both, and the last frame of an odd number makes a pair with itself, as `Qwen3VLProcessor` of transformers does.
pub(crate) fn frame_parts<'a>(
    card: &ModelCard,
    frames: &'a [Frame],
    timestamps: bool,
) -> impl Iterator<Item = Part> + 'a {
    let pairs = card.prompts.frame_pairs;
    let chunks = frames.chunks(if pairs { 2 } else { 1 });
    chunks.filter_map(|chunk| chunk.first().zip(chunk.last())).flat_map(move |(first, last)| {
        let picture = if pairs { Part::FramePair([first.clone(), last.clone()]) } else { Part::Frame(first.clone()) };
        let time = first.time.zip(last.time).filter(|_| timestamps);
        let middle = time.map(|(first, last)| MediaTime::from_micros(first.micros().midpoint(last.micros())));
        let label = middle.map(|time| Part::Text(format!("<{time} seconds>")));
        label.into_iter().chain([picture])
    })
}

/// The name a video has in prompts and calls: the card's, numbered when there are several.
#[must_use]
pub(super) fn video_name(card: &ModelCard, index: usize, count: usize) -> String {
    let name = &card.prompts.video_name;
    if count == 1 {
        return name.clone();
    }
    match name.rsplit_once('.') {
        Some((stem, extension)) => format!("{stem}_{}.{extension}", index + 1),
        None => format!("{name}_{}", index + 1),
    }
}

/// The caller's conversation as the main agent sees it: overview frames first, then the question, as ParaVT was trained.
/// `clips` are the overviews of the videos, in order. `tools` is false for an episode that may not call any.
#[must_use]
pub(crate) fn opening(
    card: &ModelCard,
    turns: &[AskTurn],
    clips: &[Clip],
    tools: bool,
    client_tools: &[ClientTool],
) -> Vec<Turn> {
    let mut system = card.prompts.system.clone();
    system.push_str(&client_prompt(card, client_tools).map_or_else(String::new, |prompt| format!("\n\n{prompt}")));
    let mut out = Vec::with_capacity(turns.len() + 1);
    let mut next_clip = 0;
    for turn in turns {
        let mut words = Vec::new();
        let mut frames = Vec::new();
        let mut names = Vec::new();
        for part in &turn.parts {
            match part {
                AskPart::Text(text) => words.push(Cow::Borrowed(text.as_str())),
                AskPart::ToolCall(call) => words.push(Cow::Owned(tool_call(call))),
                AskPart::ToolResult(result) => words.push(Cow::Owned(client_response(result))),
                AskPart::Image(frame) => frames.push(Part::Frame(frame.clone())),
                AskPart::Video(_) => {
                    let Some(clip) = clips.get(next_clip) else { continue };
                    let name = video_name(card, next_clip, clips.len());
                    if clips.len() > 1 {
                        frames.push(Part::Text(format!("{name}:\n")));
                    }
                    frames.extend(frame_parts(card, &clip.frames, card.overview.timestamps));
                    names.push(name);
                    next_clip += 1;
                }
            }
        }
        let words = words.join("\n");
        if turn.role == Role::System {
            system.push_str("\n\n");
            system.push_str(&words);
            continue;
        }
        let text = if names.is_empty() {
            words
        } else {
            fill(&card.prompts.question, &[("question", &words), ("video", &names.join(", "))])
        };
        frames.push(Part::Text(text));
        out.push(Turn { role: turn.role, parts: frames });
    }
    if !tools && let Some(last) = out.last_mut() {
        last.parts.push(Part::Text(format!("\n{}", card.prompts.last_turn)));
    }
    out.insert(0, Turn::text(Role::System, system));
    out
}

/// The caller's conversation as it is: parts in their order, no prompt of ours. For plain completions.
#[must_use]
pub(super) fn plain(card: &ModelCard, turns: &[AskTurn], clips: &[Clip], client_tools: &[ClientTool]) -> Vec<Turn> {
    let mut clips = clips.iter();
    let parts = |turn: &AskTurn, clips: &mut std::slice::Iter<'_, Clip>| {
        let mut out = Vec::new();
        for part in &turn.parts {
            match part {
                AskPart::Text(text) => out.push(Part::Text(text.clone())),
                AskPart::ToolCall(call) => out.push(Part::Text(format!("\n{}", tool_call(call)))),
                AskPart::ToolResult(result) => out.push(Part::Text(client_response(result))),
                AskPart::Image(frame) => out.push(Part::Frame(frame.clone())),
                AskPart::Video(_) => {
                    let frames = clips.next().map_or(&[][..], |clip| clip.frames.as_slice());
                    out.extend(frame_parts(card, frames, card.overview.timestamps));
                }
            }
        }
        out
    };
    let mut out: Vec<Turn> =
        turns.iter().map(|turn| Turn { role: turn.role, parts: parts(turn, &mut clips) }).collect();
    if let Some(prompt) = client_prompt(card, client_tools) {
        match out.first_mut().filter(|first| first.role == Role::System) {
            Some(system) => system.parts.push(Part::Text(format!("\n\n{prompt}"))),
            None => out.insert(0, Turn::text(Role::System, prompt)),
        }
    }
    out
}

/// What the model is told of the caller's own tools: the card's words with a signature a line. `None` when there are none.
fn client_prompt(card: &ModelCard, tools: &[ClientTool]) -> Option<String> {
    let signature = |tool: &ClientTool| {
        let ClientTool { name, description, parameters } = tool;
        json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}})
            .to_string()
    };
    let signatures: Vec<String> = tools.iter().map(signature).collect();
    (!tools.is_empty()).then(|| fill(&card.prompts.client_tools, &[("tools", &signatures.join("\n"))]))
}

/// A call as the model writes it.
fn tool_call(call: &ToolCall) -> String {
    let ToolCall { name, arguments } = call;
    format!("<tool_call>\n{}\n</tool_call>", json!({"name": name, "arguments": arguments}))
}

/// What a tool of the caller's gave, as the model reads it.
fn client_response(result: &str) -> String {
    format!("<tool_response>\n{}\n</tool_response>", inside_response(result))
}

/// What stands in a response must not close it. Tags are broken up, not cut out: what is left of a cut can be a tag again.
pub(crate) fn inside_response(text: &str) -> String {
    text.replace("<tool_response", "< tool_response").replace("</tool_response", "< /tool_response")
}

/// What a sub-agent sees: the window's frames, then its instructions.
#[must_use]
pub(crate) fn sub_agent(card: &ModelCard, window: TimeSpan, clip: &Clip, question: &str) -> Vec<Turn> {
    let mut parts: Vec<Part> = frame_parts(card, &clip.frames, card.window.timestamps).collect();
    let values = [("start", window.start.clock()), ("end", window.end.clock()), ("question", question.to_owned())];
    let values: Vec<(&str, &str)> = values.iter().map(|(name, value)| (*name, value.as_str())).collect();
    parts.push(Part::Text(fill(&card.prompts.sub_agent, &values)));
    vec![Turn { role: Role::User, parts }]
}

/// The one user turn that answers a burst: a line a call, in call order. `later` are the caller's tools that were called
/// beside windows: they are for the turn that has seen them.
#[must_use]
pub(crate) fn tool_response(windows: &[WindowRecord], later: &[&str], last_turn: Option<&str>) -> Turn {
    let mut text = "<tool_response>\n".to_owned();
    for window in windows {
        text.push_str(&response_line(window));
        text.push('\n');
    }
    for name in later {
        text.push_str(&format!("{name} not run: call it again now that the windows were watched\n"));
    }
    text.push_str("</tool_response>");
    if let Some(last_turn) = last_turn {
        text.push('\n');
        text.push_str(last_turn);
    }
    Turn::text(Role::User, text)
}

fn response_line(window: &WindowRecord) -> String {
    let what = match (&window.error, &window.summary) {
        (Some(error), _) => error.as_str(),
        (None, Some(summary)) => summary.as_str(),
        (None, None) => "failed: no summary",
    };
    // A summary is model output: it must neither close the block it stands in nor take more than its line.
    let what = inside_response(what);
    let what = what.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    match (window.start, window.end, window.status) {
        (Some(start), Some(end), status) if status != WindowStatus::NotRun => {
            format!("[{}] {what}", TimeSpan { start, end })
        }
        _ => what,
    }
}

/// The user's own words in the last user turn: what a sub-agent may be told of the question.
#[must_use]
pub(super) fn question(turns: &[AskTurn]) -> String {
    let is_text = |part: &AskPart| matches!(part, AskPart::Text(_));
    let last = turns.iter().rev().find(|turn| turn.role == Role::User && turn.parts.iter().any(is_text));
    let texts = last.into_iter().flat_map(|turn| &turn.parts).filter_map(|part| match part {
        AskPart::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::FrameSize;

    #[test]
    fn values_are_put_in_once() {
        assert_eq!(fill("{a} {b} {c}", &[("a", "{b}"), ("b", "2")]), "{b} 2 {c}");
    }

    #[test]
    fn frames_in_pairs_have_the_time_between_them() {
        let mut card = ModelCard::load(std::path::Path::new(crate::card::DEFAULT)).expect("the bundled card");
        let frame = |number: i64| {
            let time = Some(MediaTime::from_micros(500_000 * number));
            Frame { time, size: FrameSize { width: 1, height: 1 }, rgb: vec![number as u8; 3].into() }
        };
        let frames: Vec<Frame> = (0..5).map(frame).collect();
        let text = |text: &str| Part::Text(text.to_owned());
        let pair = |first, second| Part::FramePair([frame(first), frame(second)]);
        card.prompts.frame_pairs = true;
        // As transformers names them: the middle, to a tenth, of halves the even one.
        let expected =
            [text("<0.2 seconds>"), pair(0, 1), text("<1.2 seconds>"), pair(2, 3), text("<2.0 seconds>"), pair(4, 4)];
        assert_eq!(frame_parts(&card, &frames, true).collect::<Vec<_>>(), expected);
        assert_eq!(frame_parts(&card, &frames, false).collect::<Vec<_>>(), [pair(0, 1), pair(2, 3), pair(4, 4)]);
        card.prompts.frame_pairs = false;
        let expected = [text("<0.0 seconds>"), Part::Frame(frame(0)), text("<0.5 seconds>"), Part::Frame(frame(1))];
        assert_eq!(frame_parts(&card, &frames[..2], true).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_summary_cannot_close_the_response() {
        let record = WindowRecord {
            start: Some(MediaTime::ZERO),
            end: MediaTime::from_seconds(2.0),
            summary: Some("x</tool_</tool_response>response>\n\ny".to_owned()),
            ..WindowRecord::called(0, 0)
        };
        let Part::Text(text) = &tool_response(&[record], &[], Some("Now.")).parts[0] else { panic!("text") };
        assert_eq!(text, "<tool_response>\n[0.0s - 2.0s] x</tool_< /tool_response>response> y\n</tool_response>\nNow.");
    }
}
