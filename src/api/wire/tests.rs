//! Snapshots of what goes over the wire.

use super::*;
use crate::agent::{OverviewRecord, StageTiming, TurnRecord, WindowRecord};
use crate::types::{MediaTime, TimeSpan};

fn seconds(seconds: f64) -> MediaTime {
    MediaTime::from_seconds(seconds).expect("finite")
}

fn envelope(include_usage: bool, events: bool, trace: bool) -> Envelope {
    Envelope {
        id: "chatcmpl-1".to_owned(),
        created: 7,
        model: "tiny".to_owned(),
        shape: AnswerShape { stream: true, include_usage, events, trace, ..AnswerShape::default() },
        waited: {
            let waited = Waited::default();
            waited.set(0.5);
            waited
        },
    }
}

fn told(choice: usize, event: AgentEvent) -> Told {
    Told { choice, event, thumbnails: Vec::new() }
}

fn window(status: WindowStatus) -> WindowRecord {
    WindowRecord {
        id: 0,
        turn: 0,
        video: 0,
        start: Some(seconds(12.0)),
        end: Some(seconds(24.0)),
        status,
        summary: (status == WindowStatus::Ok).then(|| "A red circle.".to_owned()),
        error: (status != WindowStatus::Ok).then(|| "failed: too late".to_owned()),
        shared_with: None,
        frame_times: vec![seconds(12.0)],
        partial: false,
        started_ms: 1.0,
        finished_ms: 2.0,
        timing: StageTiming::default(),
        usage: TokenUsage { prompt_tokens: 10, cached_tokens: 0, completion_tokens: 4 },
    }
}

fn turn() -> TurnRecord {
    TurnRecord {
        turn: 0,
        text: "<think>look</think>".to_owned(),
        prefix: 0,
        finish_reason: FinishReason::Stop,
        started_ms: 0.0,
        finished_ms: 3.0,
        timing: StageTiming::default(),
        usage: TokenUsage::default(),
        draft: None,
        windows: vec![0],
    }
}

fn outcome() -> Outcome {
    Outcome {
        answer: "A red circle.".to_owned(),
        reasoning: "look".to_owned(),
        overviews: Vec::new(),
        windows: vec![window(WindowStatus::Ok)],
        turns: vec![turn()],
        usage: AgentUsage {
            main: TokenUsage { prompt_tokens: 100, cached_tokens: 60, completion_tokens: 20 },
            sub: TokenUsage { prompt_tokens: 10, cached_tokens: 0, completion_tokens: 4 },
            reasoning_tokens: 8,
        },
        open_ms: 1.0,
        overview_ms: 2.0,
        first_token_ms: Some(3.0),
        first_answer_ms: Some(4.0),
        total_ms: 5.25,
        ..Outcome::default()
    }
}

#[test]
fn a_plain_answer() {
    let response = envelope(false, false, false).response(&[outcome()]);
    insta::assert_json_snapshot!(response, @r##"
    {
      "id": "chatcmpl-1",
      "object": "chat.completion",
      "created": 7,
      "model": "tiny",
      "choices": [
        {
          "index": 0,
          "message": {
            "role": "assistant",
            "content": "A red circle.",
            "refusal": null,
            "reasoning_content": "look",
            "reasoning": "look"
          },
          "logprobs": null,
          "finish_reason": "stop"
        }
      ],
      "usage": {
        "prompt_tokens": 110,
        "completion_tokens": 24,
        "total_tokens": 134,
        "prompt_tokens_details": {
          "cached_tokens": 60
        },
        "completion_tokens_details": {
          "reasoning_tokens": 8
        },
        "paravt": {
          "main": {
            "prompt_tokens": 100,
            "cached_tokens": 60,
            "completion_tokens": 20
          },
          "sub": {
            "prompt_tokens": 10,
            "cached_tokens": 0,
            "completion_tokens": 4
          }
        }
      },
      "paravt": {
        "timing": {
          "queue_ms": 0.5,
          "open_ms": 1.0,
          "overview_ms": 2.0,
          "first_token_ms": 3.0,
          "first_answer_ms": 4.0,
          "total_ms": 5.25
        },
        "sampling": {
          "temperature": null,
          "top_p": null,
          "top_k": null,
          "min_p": null,
          "frequency_penalty": null,
          "presence_penalty": null,
          "repetition_penalty": null,
          "seed": null,
          "max_tokens": 0
        }
      }
    }
    "##);
    insta::assert_snapshot!(
        response.paravt.timing.header(),
        @"queue;dur=0.5, open;dur=1.0, overview;dur=2.0, first_token;dur=3.0, first_answer;dur=4.0, total;dur=5.2"
    );
}

#[test]
fn a_stream_without_extras_has_only_openais_chunks_and_the_timing() {
    let mut writer = ChunkWriter::new(envelope(false, false, false));
    let mut lines: Vec<String> = writer.open().into_iter().map(|line| line.data).collect();
    for event in [
        AgentEvent::TurnStarted { turn: 0, at_ms: 0.0 },
        AgentEvent::Reasoning("look".to_owned()),
        AgentEvent::WindowFinished(window(WindowStatus::Ok)),
        AgentEvent::TurnFinished(turn()),
        AgentEvent::Answer("A red ".to_owned()),
        AgentEvent::Answer("circle.".to_owned()),
        AgentEvent::Finished(Box::new(outcome())),
    ] {
        lines.extend(writer.write(told(0, event)).into_iter().map(|line| line.data));
    }
    insta::assert_snapshot!(lines.join("\n"), @r##"
    {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}
    {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"tiny","choices":[{"index":0,"delta":{"reasoning_content":"look","reasoning":"look"},"logprobs":null,"finish_reason":null}]}
    {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"tiny","choices":[{"index":0,"delta":{"content":"A red "},"logprobs":null,"finish_reason":null}]}
    {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"tiny","choices":[{"index":0,"delta":{"content":"circle."},"logprobs":null,"finish_reason":null}]}
    {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"tiny","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"paravt":{"timing":{"queue_ms":0.5,"open_ms":1.0,"overview_ms":2.0,"first_token_ms":3.0,"first_answer_ms":4.0,"total_ms":5.25},"sampling":{"temperature":null,"top_p":null,"top_k":null,"min_p":null,"frequency_penalty":null,"presence_penalty":null,"repetition_penalty":null,"seed":null,"max_tokens":0}}}
    [DONE]
    "##);
}

#[test]
fn usage_comes_in_a_last_chunk_without_choices() {
    let mut writer = ChunkWriter::new(envelope(true, false, true));
    let chunks = writer.chunks(told(0, AgentEvent::Finished(Box::new(outcome()))));
    let value = json(&chunks);
    assert_eq!(value[0]["choices"][0]["delta"]["content"], "A red circle.");
    assert_eq!(value[0]["usage"], Value::Null);
    assert!(value[0].as_object().expect("object").contains_key("usage"));
    assert_eq!(value[1]["choices"][0]["finish_reason"], "stop");
    assert!(value[1].get("paravt").is_none());
    assert_eq!(value[2]["choices"], serde_json::json!([]));
    assert_eq!(value[2]["usage"]["total_tokens"], 134);
    assert_eq!(value[2]["paravt"]["trace"]["windows"][0]["frame_times"][0], 12.0);
    assert_eq!(value.as_array().map(Vec::len), Some(3));
}

#[test]
fn events_are_chunks_with_an_empty_delta() {
    let mut writer = ChunkWriter::new(envelope(false, true, false));
    let span = TimeSpan::new(seconds(12.0), seconds(24.0)).expect("a span");
    let mut events = Vec::new();
    for event in [
        AgentEvent::Overview(OverviewRecord {
            video: 0,
            duration: seconds(30.0),
            frame_times: vec![seconds(0.0)],
            keyframes: true,
            partial: false,
            treatment: vec!["turned by 90 degrees".to_owned()],
            at_ms: 1.0,
            frames: Vec::new(),
        }),
        AgentEvent::TurnStarted { turn: 0, at_ms: 1.5 },
        AgentEvent::WindowStarted { id: 0, turn: 0, video: 0, window: span, at_ms: 2.0 },
        AgentEvent::WindowFrames { id: 0, frame_times: vec![seconds(12.0)], frames: Vec::new(), at_ms: 3.0 },
        AgentEvent::WindowDelta { id: 0, text: "A red".to_owned() },
        AgentEvent::WindowFinished(window(WindowStatus::Ok)),
        AgentEvent::WindowFinished(window(WindowStatus::Late)),
        AgentEvent::TurnFinished(turn()),
    ] {
        for chunk in writer.chunks(told(0, event)) {
            let chunk = json(&chunk);
            assert_eq!(chunk["choices"][0]["delta"], serde_json::json!({}));
            events.push(chunk["paravt"].to_string());
        }
    }
    insta::assert_snapshot!(events.join("\n"), @r##"
    {"event":"overview","video":0,"duration":30.0,"frame_times":[0.0],"keyframes":true,"partial":false,"treatment":["turned by 90 degrees"],"at_ms":1.0}
    {"event":"turn.started","turn":0,"at_ms":1.5}
    {"event":"window.started","id":0,"turn":0,"video":0,"start":12.0,"end":24.0,"at_ms":2.0}
    {"event":"window.frames","id":0,"frame_times":[12.0],"at_ms":3.0}
    {"event":"window.delta","id":0,"text":"A red"}
    {"event":"window.finished","id":0,"turn":0,"video":0,"start":12.0,"end":24.0,"status":"ok","summary":"A red circle.","frame_times":[12.0],"partial":false,"started_ms":1.0,"finished_ms":2.0,"timing":{"decode_ms":0.0,"queue_ms":0.0,"prefill_ms":0.0,"generate_ms":0.0},"usage":{"prompt_tokens":10,"cached_tokens":0,"completion_tokens":4}}
    {"event":"window.failed","id":0,"turn":0,"video":0,"start":12.0,"end":24.0,"status":"late","summary":null,"error":"failed: too late","frame_times":[12.0],"partial":false,"started_ms":1.0,"finished_ms":2.0,"timing":{"decode_ms":0.0,"queue_ms":0.0,"prefill_ms":0.0,"generate_ms":0.0},"usage":{"prompt_tokens":10,"cached_tokens":0,"completion_tokens":4}}
    {"event":"turn.finished","turn":0,"text":"<think>look</think>","finish_reason":"stop","started_ms":0.0,"finished_ms":3.0,"timing":{"decode_ms":0.0,"queue_ms":0.0,"prefill_ms":0.0,"generate_ms":0.0},"usage":{"prompt_tokens":0,"cached_tokens":0,"completion_tokens":0},"windows":[0]}
    "##);
}

#[test]
fn text_that_came_only_at_the_end_is_streamed_once() {
    let mut writer = ChunkWriter::new(envelope(false, false, false));
    let mut text = String::new();
    let mut take = |chunks: Vec<ChatCompletionChunk>| {
        for choice in chunks.into_iter().flat_map(|chunk| chunk.choices) {
            text.push_str(&choice.delta.content.unwrap_or_default());
        }
    };
    take(writer.chunks(told(0, AgentEvent::Answer("A red".to_owned()))));
    take(writer.chunks(told(0, AgentEvent::Finished(Box::new(outcome())))));
    assert_eq!(text, "A red circle.");
}

#[test]
fn calls_of_the_callers_tools_have_an_index_each_and_end_the_answer() {
    let call = |name: &str| AgentToolCall { name: name.to_owned(), arguments: serde_json::Map::new() };
    let mut envelope = envelope(false, false, false);
    envelope.id = "chatcmpl-a1".to_owned();
    let called = Outcome { answer: String::new(), tool_calls: vec![call("a"), call("b")], ..outcome() };
    let whole = json(&envelope.response(std::slice::from_ref(&called)));
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["content"], Value::Null);
    assert_eq!(message["tool_calls"][1]["function"], serde_json::json!({"name": "b", "arguments": "{}"}));
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
    let mut writer = ChunkWriter::new(envelope);
    let mut calls = Vec::new();
    for event in called.tool_calls.iter().cloned().map(AgentEvent::ToolCall) {
        calls.extend(
            writer.chunks(told(0, event)).iter().map(|chunk| json(&chunk.choices[0].delta)["tool_calls"][0].clone()),
        );
    }
    assert_eq!(calls[0]["index"], 0);
    assert_eq!(calls[1]["index"], 1);
    assert_eq!(calls[1]["id"], message["tool_calls"][1]["id"]);
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    let last = writer.chunks(told(0, AgentEvent::Finished(Box::new(called))));
    assert_eq!(json(&last.last())["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn several_choices_share_a_stream_and_one_end() {
    let mut envelope = envelope(true, false, false);
    envelope.shape.choices = 2;
    let mut writer = ChunkWriter::new(envelope);
    assert_eq!(writer.open().len(), 2);
    let finished = || AgentEvent::Finished(Box::new(outcome()));
    let lines = writer.write(told(1, finished()));
    assert_eq!(json(&lines.iter().map(|line| &line.data).collect::<Vec<_>>()).as_array().map(Vec::len), Some(2));
    assert!(!writer.is_over());
    let lines: Vec<Line> = writer.write(told(0, finished()));
    assert!(writer.is_over());
    assert_eq!(lines.last().map(|line| line.data.as_str()), Some("[DONE]"));
    let usage: Value = serde_json::from_str(&lines[2].data).expect("a chunk");
    assert_eq!(usage["usage"]["total_tokens"], 2 * 134);
}

#[test]
fn log_probabilities_go_with_the_text_they_belong_to() {
    let token = |text: &str, logprob: f64| TokenInfo {
        id: Some(0),
        bytes: text.as_bytes().to_vec(),
        logprob,
        top: vec![crate::engine::TokenAlternative { id: Some(1), bytes: vec![0xc3], logprob: f64::NEG_INFINITY }],
    };
    let mut envelope = envelope(false, false, false);
    envelope.shape.logprobs = true;
    let mut writer = ChunkWriter::new(envelope);
    assert!(writer.chunks(told(0, AgentEvent::AnswerTokens(vec![token("A", -0.5)]))).is_empty());
    let chunk = json(&writer.chunks(told(0, AgentEvent::Answer("A".to_owned()))));
    let expected = serde_json::json!([{"token": "A", "logprob": -0.5, "bytes": [65],
        "top_logprobs": [{"token": "\u{fffd}", "logprob": -9999.0, "bytes": [195]}]}]);
    assert_eq!(chunk[0]["choices"][0]["logprobs"]["content"], expected);
}
