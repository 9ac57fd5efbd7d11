//! R_tool: whether a tool was called, ran and helped; and what a call is. Pure.

use serde_json::{Map, Value};

use super::WrittenTurn;
use super::text::{between, lines, strip};
use crate::agent::parser::{Parser, Segment};

/// R_tool: 0.1 for a call, 0.3 once one `ran`, and 0.5 more where the answer is at all right. Without a call nothing.
pub(super) fn score(called: bool, ran: bool, accuracy: f64) -> f64 {
    if !called {
        return 0.0;
    }
    let level = if ran { 0.3 } else { 0.1 };
    if accuracy > 0.0 { level + 0.5 } else { level }
}

/// Calls that the agent would run, by its own parser: readable ones that were more than a thought. Whether their window makes
/// sense shows when they run.
pub(super) fn runnable(turns: &[WrittenTurn<'_>]) -> usize {
    let calls = |turn: &WrittenTurn<'_>| {
        let mut parser = Parser::new();
        let mut segments = parser.push(turn.text);
        segments.extend(parser.finish(true).0);
        segments.iter().filter(|segment| matches!(segment, Segment::Call(Ok(_)))).count()
    };
    turns.iter().map(calls).sum()
}

/// Blocks that the reference takes for a call, closed or not, wherever they stand: in `<tool_call>` one JSON object with a name,
/// whatever its arguments; in `<tool_code>` any line with a bracket that is no comment.
///
/// Its reader of JSON also takes `NaN` and `Infinity`, which no call has had.
pub(super) fn parseable(completion: &str) -> usize {
    let is_object = |body: &str| {
        serde_json::from_str::<Map<String, Value>>(strip(body)).is_ok_and(|object| object.contains_key("name"))
    };
    let is_code = |body: &str| {
        !strip(body).starts_with("<|im_end|>") && lines(body).any(|line| line.contains('(') && !line.starts_with('#'))
    };
    let objects = between(completion, "<tool_call>", "</tool_call>").filter(|block| is_object(block.body));
    let codes = between(completion, "<tool_code>", "</tool_code>").filter(|block| is_code(block.body));
    objects.count() + codes.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_rules_for_calls_differ_where_the_agent_forgives_or_doubts() {
        let call = r#"{"name": "crop_video", "arguments": {"start_time": 1, "end_time": 5}}"#;
        let closed = format!("<tool_call>{call}</tool_call>");
        for (text, upstream, paper) in [
            (closed.clone(), 1, 1),
            (format!("{closed}{closed}"), 2, 2),
            (format!("<tool_call>[{call}, {call}]</tool_call>"), 0, 2),
            ("<tool_call>{'name': 'crop_video', 'arguments': {},}</tool_call>".to_owned(), 0, 1),
            (format!("<tool_call>{call}"), 1, 1),
            ("<tool_call>{\"name\": \"x\", \"argum".to_owned(), 0, 0),
            ("<tool_call>{\"name\": 3}</tool_call>".to_owned(), 1, 0),
            ("<tool_call>\"name\"</tool_call>".to_owned(), 0, 0),
            ("<tool_call></tool_call><tool_code></tool_code>".to_owned(), 0, 0),
            ("<tool_code># f(\ncrop_video('v.mp4', 1, 5)</tool_code>".to_owned(), 1, 1),
            ("<tool_code>(just a thought)</tool_code>".to_owned(), 1, 0),
            ("<tool_code><|im_end|>f(</tool_code>".to_owned(), 0, 0),
            (format!("<think>perhaps {closed}</think><answer>red</answer>"), 1, 0),
            (format!("<tool_response>x</tool_response>{closed}"), 1, 0),
        ] {
            let counts = (parseable(&text), runnable(&[WrittenTurn { text: &text, prefix: 0 }]));
            assert_eq!(counts, (upstream, paper), "{text}");
        }
    }

    #[test]
    fn levels_add_up() {
        let scores = [(false, true, 1.0), (true, false, 0.0), (true, true, 0.0), (true, false, 0.2), (true, true, 1.0)]
            .map(|(called, ran, accuracy)| score(called, ran, accuracy));
        assert_eq!(scores, [0.0, 0.1, 0.3, 0.6, 0.8]);
    }
}
