//! The order of items and events, as the official clients' accumulators check it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::*;
use crate::agent::{AgentUsage, StageTiming};
use crate::api::admission::Waited;
use crate::api::convert::AnswerShape;
use crate::engine::EngineError;
use crate::types::{TimeSpan, TokenUsage};

fn writer() -> ResponseWriter {
    let envelope = Envelope {
        id: "resp_1".to_owned(),
        created: 7,
        model: "tiny".to_owned(),
        shape: AnswerShape::default(),
        waited: Waited::default(),
    };
    ResponseWriter::new(envelope, Echo::default())
}

fn span(start: f64, end: f64) -> TimeSpan {
    let time = |seconds| MediaTime::from_seconds(seconds).expect("finite");
    TimeSpan::new(time(start), time(end)).expect("ordered")
}

fn started(id: usize) -> AgentEvent {
    AgentEvent::WindowStarted { id, turn: 0, video: 0, window: span(1.0, 2.0), at_ms: 0.0 }
}

fn over(id: usize, status: WindowStatus) -> AgentEvent {
    let well = status == WindowStatus::Ok;
    AgentEvent::WindowFinished(WindowRecord {
        id,
        turn: 0,
        video: 0,
        start: Some(span(1.0, 2.0).start),
        end: Some(span(1.0, 2.0).end),
        status,
        summary: well.then(|| "a circle".to_owned()),
        error: (!well).then(|| "failed: late".to_owned()),
        shared_with: None,
        frame_times: Vec::new(),
        partial: false,
        started_ms: 0.0,
        finished_ms: 0.0,
        timing: StageTiming::default(),
        usage: TokenUsage::default(),
    })
}

fn finished(answer: &str, reason: FinishReason) -> AgentEvent {
    let main = TokenUsage { prompt_tokens: 10, cached_tokens: 4, completion_tokens: 5 };
    AgentEvent::Finished(Box::new(Outcome {
        answer: answer.to_owned(),
        finish_reason: reason,
        usage: AgentUsage { main, ..AgentUsage::default() },
        ..Outcome::default()
    }))
}

fn run(writer: &mut ResponseWriter, events: Vec<AgentEvent>) -> Vec<Value> {
    let mut lines = writer.open();
    for event in events {
        lines.extend(writer.write(Told { choice: 0, event, thumbnails: Vec::new() }));
    }
    lines.into_iter().map(|line| read(&line)).collect()
}

fn read(line: &Line) -> Value {
    let value: Value = serde_json::from_str(&line.data).expect("JSON");
    assert_eq!(value["type"], line.event.expect("a name"));
    value
}

/// What the official accumulators insist on: ids stay, places are added once and in order, everything added is done.
fn consistent(events: &[Value]) {
    let mut items = BTreeMap::new();
    for (n, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], n);
        match event["type"].as_str().expect("a type") {
            "response.output_item.added" => {
                assert_eq!(event["output_index"], items.len());
                items.insert(items.len() as u64, (event["item"]["id"].clone(), false));
            }
            "response.output_item.done" => {
                let item = items.get_mut(&event["output_index"].as_u64().expect("a place")).expect("added");
                assert!(item.0 == event["item"]["id"] && !item.1, "{event}");
                item.1 = true;
            }
            _ if event.get("output_index").is_some() => {
                let item = &items[&event["output_index"].as_u64().expect("a place")];
                assert!(item.0 == event["item_id"] && !item.1, "{event}");
            }
            _ => assert_eq!(event["response"]["id"], "resp_1"),
        }
    }
    let output = events.last().expect("an end")["response"]["output"].as_array().expect("items");
    assert_eq!(output.len(), items.len());
    for (item, (id, done)) in output.iter().zip(items.values()) {
        assert!(item["id"] == *id && *done, "{item}");
    }
}

#[test]
fn windows_are_items_of_their_own_between_thinking_and_answer() {
    let mut writer = writer();
    let events = run(
        &mut writer,
        vec![
            AgentEvent::TurnStarted { turn: 0, at_ms: 0.0 },
            AgentEvent::Reasoning("look".to_owned()),
            started(0),
            started(1),
            over(2, WindowStatus::Refused),
            over(1, WindowStatus::Ok),
            over(0, WindowStatus::Late),
            AgentEvent::Reasoning("\n\nso".to_owned()),
            AgentEvent::Answer("a ".to_owned()),
            finished("a circle", FinishReason::Stop),
        ],
    );
    consistent(&events);
    let last = events.last().expect("an end");
    assert_eq!(last["type"], "response.completed");
    let kinds: Vec<String> = last["response"]["output"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| format!("{} {}", item["type"].as_str().unwrap_or(""), item["status"].as_str().unwrap_or("")))
        .collect();
    assert_eq!(
        kinds,
        [
            "reasoning completed",
            "mcp_call failed",
            "mcp_call completed",
            "mcp_call failed",
            "reasoning completed",
            "message completed"
        ]
    );
    let output = &last["response"]["output"];
    assert_eq!(output[1]["error"]["content"], "failed: late");
    assert_eq!(output[2]["output"], "a circle");
    assert_eq!(output[4]["content"][0]["text"], "so");
    assert_eq!(output[5]["content"][0]["text"], "a circle");
    assert_eq!(last["response"]["usage"]["input_tokens_details"]["cached_tokens"], 4);
}

#[test]
fn a_call_of_the_callers_tool_is_an_item_with_its_arguments() {
    let mut writer = writer();
    let arguments = serde_json::Map::from_iter([("at".to_owned(), json!(5))]);
    let call = ToolCall { name: "note".to_owned(), arguments };
    let mut end = Outcome { tool_calls: vec![call.clone()], ..Outcome::default() };
    end.usage.main.completion_tokens = 1;
    let events = run(&mut writer, vec![AgentEvent::ToolCall(call), AgentEvent::Finished(Box::new(end))]);
    consistent(&events);
    let item = &events.last().expect("an end")["response"]["output"][0];
    assert_eq!((&item["type"], &item["arguments"]), (&json!("function_call"), &json!("{\"at\":5}")));
}

#[test]
fn a_cut_answer_is_incomplete_and_an_empty_one_still_a_message() {
    let mut cut = writer();
    let events = run(&mut cut, vec![finished("a", FinishReason::Length)]);
    consistent(&events);
    assert_eq!(events.last().expect("an end")["response"]["incomplete_details"]["reason"], "max_output_tokens");
    for (before, place) in [(vec![], 0), (vec![AgentEvent::Reasoning("look".to_owned())], 1)] {
        let mut empty = writer();
        let events = run(&mut empty, before.into_iter().chain([finished("", FinishReason::Stop)]).collect());
        consistent(&events);
        assert_eq!(events.last().expect("an end")["response"]["output"][place]["content"][0]["text"], "");
    }
}

#[test]
fn a_failure_ends_what_is_open() {
    let mut writer = writer();
    let mut events = run(&mut writer, vec![AgentEvent::Reasoning("look".to_owned()), started(0)]);
    let error = ApiError::Engine(EngineError::Failed("secret".to_owned()));
    events.extend(writer.fail(&error).iter().map(read));
    consistent(&events);
    let last = events.last().expect("an end");
    assert_eq!(
        (&last["type"], &last["response"]["error"]["code"]),
        (&json!("response.failed"), &json!("server_error"))
    );
    assert!(!last.to_string().contains("secret"));
}
