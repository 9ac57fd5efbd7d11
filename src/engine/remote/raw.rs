//! Turns what an upstream made of a model's text back into that text. Pure.
//!
//! vLLM and SGLang without parsers, and `transformers serve`, stream raw text: it passes as it is. With a reasoning
//! parser they send the thinking apart, with a tool parser the calls: both go back between their tags.
//! Nothing is repaired: arguments that are no JSON are passed on, for the agent to say so.

use std::collections::BTreeMap;

use super::chunk::{Delta, ToolDelta};

/// Calls a turn may hold; what is beyond is left out.
const MOST_CALLS: usize = 64;
/// Bytes of a call's arguments; a call that goes on is passed on cut, so it is malformed.
const ARGUMENT_BYTES: usize = 64 << 10;

/// One generation's text so far.
#[derive(Debug)]
pub(super) struct Raw {
    /// The text is inside `<think>`, opened by the prefix or by us.
    thinking: bool,
    /// The last text came as reasoning: `</think>` is due before anything else.
    close_due: bool,
    calls: BTreeMap<u32, Call>,
    last_index: u32,
}

#[derive(Debug, Default)]
struct Call {
    name: String,
    arguments: String,
    said: bool,
}

impl Raw {
    /// For a turn that already starts with this.
    pub(super) fn new(prefix: &str) -> Self {
        let thinking = match (prefix.rfind("<think>"), prefix.rfind("</think>")) {
            (Some(open), Some(close)) => open > close,
            (open, _) => open.is_some(),
        };
        Self { thinking, close_due: false, calls: BTreeMap::new(), last_index: 0 }
    }

    /// The text a delta stands for; may be empty.
    pub(super) fn push(&mut self, delta: Delta) -> String {
        let mut text = String::new();
        let full = |part: Option<String>| part.filter(|part| !part.is_empty());
        // Some servers send both names with the same text.
        if let Some(reasoning) = full(delta.reasoning_content).or_else(|| full(delta.reasoning)) {
            if !self.thinking {
                text.push_str("<think>");
            }
            (self.thinking, self.close_due) = (true, true);
            text.push_str(&reasoning);
        }
        if let Some(content) = full(delta.content) {
            self.close(&mut text);
            text.push_str(&content);
        }
        for call in delta.tool_calls.unwrap_or_default() {
            self.add(call);
        }
        self.say_calls(&mut text, false);
        text
    }

    /// What is left when the generation has ended. Thinking that was cut off stays open, as it would in raw text.
    pub(super) fn finish(&mut self) -> String {
        let mut text = String::new();
        self.say_calls(&mut text, true);
        text
    }

    fn close(&mut self, text: &mut String) {
        if self.close_due {
            text.push_str("</think>");
            (self.thinking, self.close_due) = (false, false);
        }
    }

    fn add(&mut self, delta: ToolDelta) {
        let function = delta.function.unwrap_or_default();
        // Without an index, a name begins a call and arguments continue the last one.
        let begins = function.name.is_some() && !self.calls.is_empty();
        let index = delta.index.unwrap_or(self.last_index.saturating_add(u32::from(begins)));
        if self.calls.len() == MOST_CALLS && !self.calls.contains_key(&index) {
            return;
        }
        self.last_index = index;
        let call = self.calls.entry(index).or_default();
        if call.name.is_empty() {
            call.name = function.name.unwrap_or_default();
        }
        let part = match function.arguments {
            Some(serde_json::Value::String(part)) => part,
            None | Some(serde_json::Value::Null) => return,
            Some(whole) => whole.to_string(),
        };
        if call.arguments.len() + part.len() <= ARGUMENT_BYTES {
            call.arguments.push_str(&part);
        }
    }

    /// Says the calls that are complete, in order; each as soon as those before it are said.
    fn say_calls(&mut self, text: &mut String, all: bool) {
        let mut calls = std::mem::take(&mut self.calls);
        for call in calls.values_mut().filter(|call| !call.said) {
            if !all && !call.complete() {
                break;
            }
            self.close(text);
            let name = serde_json::Value::from(call.name.as_str());
            let arguments = if call.arguments.trim().is_empty() { "{}" } else { call.arguments.trim() };
            text.push_str("<tool_call>\n{\"name\": ");
            text.push_str(&format!("{name}, \"arguments\": {arguments}}}\n</tool_call>\n"));
            call.said = true;
        }
        self.calls = calls;
    }
}

impl Call {
    fn complete(&self) -> bool {
        // The cheap look first: the arguments grow by a token at a time.
        self.arguments.trim_end().ends_with('}')
            && serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&self.arguments).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn raw(prefix: &str, deltas: &[serde_json::Value]) -> Vec<String> {
        let mut raw = Raw::new(prefix);
        let mut said: Vec<String> =
            deltas.iter().map(|delta| raw.push(serde_json::from_value(delta.clone()).expect("a delta"))).collect();
        said.push(raw.finish());
        said
    }

    #[test]
    fn raw_text_passes_as_it_is() {
        let deltas = [json!({"role": "assistant", "content": ""}), json!({"content": "a</think>"}), json!({})];
        assert_eq!(raw("<think>\n", &deltas).concat(), "a</think>");
    }

    #[test]
    fn reasoning_goes_back_between_its_tags() {
        for name in ["reasoning", "reasoning_content"] {
            let deltas = [json!({name: "I "}), json!({name: "look."}), json!({"content": "\nred"})];
            assert_eq!(raw("", &deltas), ["<think>I ", "look.", "</think>\nred", ""]);
            assert_eq!(raw("<think>\n", &deltas), ["I ", "look.", "</think>\nred", ""]);
            assert_eq!(raw("<think>\n\n</think>\n", &deltas)[0], "<think>I ");
        }
        let both = json!({"reasoning": "once", "reasoning_content": "once", "content": "so"});
        assert_eq!(raw("", &[both]).concat(), "<think>once</think>so");
    }

    #[test]
    fn thinking_that_was_cut_off_stays_open() {
        assert_eq!(raw("", &[json!({"reasoning": "I wonder"})]).concat(), "<think>I wonder");
    }

    #[test]
    fn parsed_calls_become_text_as_soon_as_each_is_complete() {
        let call =
            |index: u32, function: serde_json::Value| json!({"tool_calls": [{"index": index, "function": function}]});
        let deltas = [
            json!({"reasoning": "look"}),
            call(0, json!({"name": "crop_video", "arguments": ""})),
            call(0, json!({"arguments": "{\"start_time\": 1, "})),
            call(0, json!({"arguments": "\"end_time\": 2}"})),
            call(1, json!({"name": "crop_video", "arguments": "{\"start_time\": {}"})),
            call(1, json!({"arguments": "}"})),
        ];
        let first = "<tool_call>\n{\"name\": \"crop_video\", \"arguments\": {\"start_time\": 1, \"end_time\": 2}}\n</tool_call>\n";
        let second = "<tool_call>\n{\"name\": \"crop_video\", \"arguments\": {\"start_time\": {}}}\n</tool_call>\n";
        let closed = format!("</think>{first}");
        assert_eq!(raw("", &deltas), ["<think>look", "", "", closed.as_str(), "", second, ""]);
    }

    #[test]
    fn calls_keep_the_order_of_their_indexes() {
        let both = json!({"tool_calls": [
            {"index": 1, "function": {"name": "b", "arguments": {"x": 1}}},
            {"index": 0, "function": {"name": "a", "arguments": "{}"}},
        ]});
        let said = raw("", &[both]);
        let (a, b) = (said[0].find("\"a\""), said[0].find("\"b\""));
        assert!(a < b && a.is_some(), "{said:?}");
    }

    #[test]
    fn calls_without_indexes_are_told_apart_by_their_names() {
        let deltas = [
            json!({"tool_calls": [{"function": {"name": "a", "arguments": "{\"x\""}}]}),
            json!({"tool_calls": [{"function": {"arguments": ": 1}"}}]}),
            json!({"tool_calls": [{"function": {"name": "b", "arguments": "{}"}}]}),
        ];
        let said = raw("", &deltas).concat();
        assert!(said.contains("{\"name\": \"a\", \"arguments\": {\"x\": 1}}"), "{said}");
        assert!(said.contains("{\"name\": \"b\", \"arguments\": {}}"), "{said}");
    }

    #[test]
    fn broken_arguments_are_passed_on_and_names_can_not_break_out() {
        let deltas = [json!({"tool_calls": [{"index": 0, "function": {"name": "a\"}", "arguments": "{\"x\": "}}]})];
        assert_eq!(
            raw("", &deltas),
            ["", "<tool_call>\n{\"name\": \"a\\\"}\", \"arguments\": {\"x\":}\n</tool_call>\n"]
        );
    }

    #[test]
    fn the_number_of_calls_is_bounded() {
        let deltas: Vec<_> = (0..1000_u32)
            .map(|index| json!({"tool_calls": [{"index": index, "function": {"name": "a", "arguments": "{}"}}]}))
            .collect();
        assert_eq!(raw("", &deltas).concat().matches("<tool_call>").count(), MOST_CALLS);
    }
}
