//! What a turn of a conversation says in the agent's tags: its calls, its answer, and whether its tags are closed. Read by the
//! agent's own parser, so that what is good here is what the server would do.

use crate::agent::parser::{Parser, Segment, ToolCall};
use crate::agent::{CROP_VIDEO, window_arguments};
use crate::types::MediaTime;

/// Names of the tags that come in pairs.
pub(super) const TAGS: [&str; 5] = ["think", "tool_call", "answer", "tool_code", "tool_response"];

/// A window that a call asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Window {
    /// The video's name in the call.
    pub(super) video: Option<String>,
    /// As it is written: perhaps not before the end.
    pub(super) start: MediaTime,
    /// As it is written.
    pub(super) end: MediaTime,
}

/// What a turn of the assistant says.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// The windows it calls for, or why a call is none. In order.
    pub(super) calls: Vec<Result<Window, String>>,
    /// Its answer, or what stands for one. `None` beside calls.
    pub(super) answer: Option<String>,
}

/// Reads a turn.
pub(super) fn said(text: &str) -> Said {
    let mut parser = Parser::new();
    let mut segments = parser.push(text);
    // As if cut: thinking alone is no answer to imitate.
    let (rest, parsed) = parser.finish(true);
    segments.extend(rest);
    let calls = segments.into_iter().filter_map(|segment| match segment {
        Segment::Call(Ok(call)) => Some(window(&call)),
        Segment::Call(Err(malformed)) => Some(Err(malformed.problem)),
        _ => None,
    });
    Said { calls: calls.collect(), answer: parsed.answer }
}

fn window(call: &ToolCall) -> Result<Window, String> {
    if call.name != CROP_VIDEO {
        return Err(format!("a call of {:?}, which is not {CROP_VIDEO}", call.name));
    }
    let (start, end) = window_arguments(&call.arguments)?;
    let video = call.arguments.get("video_path").and_then(|video| video.as_str()).map(str::to_owned);
    Ok(Window { video, start, end })
}

/// A tag in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag {
    /// Which of [`TAGS`].
    pub(super) name: usize,
    /// `<name>`, not `</name>`.
    pub(super) opens: bool,
    /// Its first byte.
    pub(super) at: usize,
    /// The byte after its last.
    pub(super) end: usize,
}

/// The tags of a text, in order.
pub(super) fn tags(text: &str) -> impl Iterator<Item = Tag> {
    text.match_indices('<').filter_map(|(at, _)| {
        let rest = &text[at + 1..];
        let (opens, rest) = rest.strip_prefix('/').map_or((true, rest), |rest| (false, rest));
        let ends = |name: &&str| rest.strip_prefix(*name).is_some_and(|rest| rest.starts_with('>'));
        let name = TAGS.iter().position(ends)?;
        Some(Tag { name, opens, at, end: at + TAGS[name].len() + if opens { 2 } else { 3 } })
    })
}

/// What is wrong with a text's tags, if something is: one that is not closed, or closes nothing.
pub(super) fn unclosed(text: &str) -> Option<String> {
    let mut open = Vec::new();
    for tag in tags(text) {
        if tag.opens {
            open.push(tag.name);
        } else if open.last() == Some(&tag.name) {
            open.pop();
        } else if open.contains(&tag.name) {
            break;
        } else {
            return Some(format!("</{}> closes nothing", TAGS[tag.name]));
        }
    }
    open.last().map(|name| format!("<{}> is not closed", TAGS[*name]))
}

/// Whether a message answers calls.
pub(super) fn is_response(role: &str, text: &str) -> bool {
    role == "tool" || tags(text).any(|tag| tag.opens && TAGS[tag.name] == "tool_response")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_that_are_not_closed_are_named() {
        for (text, wanted) in [
            ("<think>a</think><answer>b</answer>", None),
            ("<think>a <tool_call>{}</tool_call></think>", None),
            ("<think>a", Some("<think> is not closed")),
            ("<think>a<answer>b</answer>", Some("<think> is not closed")),
            ("a</think>", Some("</think> closes nothing")),
            ("<think><answer></think></answer>", Some("<answer> is not closed")),
            ("a < b, </thinking> <thinking>", None),
        ] {
            assert_eq!(unclosed(text).as_deref(), wanted, "{text}");
        }
    }

    #[test]
    fn a_turn_is_read_as_the_agent_reads_it() {
        let call = |start: &str, end: &str| {
            format!(
                "<tool_call>{{\"name\": \"crop_video\", \"arguments\": {{\"video_path\": \"v\", \"start_time\": {start}, \
                 \"end_time\": {end}}}}}</tool_call>"
            )
        };
        let turn = said(&format!("<think>two</think>{}\n{}", call("1", "\"00:02\""), call("9", "x")));
        let window = turn.calls[0].clone().expect("a window");
        assert_eq!((window.start.seconds(), window.end.seconds(), window.video.as_deref()), (1.0, 2.0, Some("v")));
        assert!(turn.calls[1].is_err() && turn.answer.is_none());
        assert!(said("<tool_call>{\"name\": \"zoom\"}</tool_call>").calls[0].is_err());
        assert_eq!(said("<think>a</think>\n<answer> b </answer>").answer.as_deref(), Some("b"));
        for text in ["<think>a</think><answer> </answer>", "<think>a</think>", ""] {
            assert_eq!(said(text).answer, None, "{text}");
        }
    }
}
