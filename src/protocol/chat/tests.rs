//! What the request reader accepts, refuses, and how it names what it refuses.

use serde_json::{Value, json};

use super::*;

fn with(name: &str, value: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body[name] = value;
    body
}

fn fields(value: Value) -> serde_json::Map<String, Value> {
    let Value::Object(fields) = value else { panic!("not an object: {value}") };
    fields
}

fn refused(body: Value) -> (String, &'static str) {
    let invalid = ChatCompletionRequest::read(body).expect_err("refused");
    (invalid.param, invalid.code)
}

fn video(part: Value) -> Value {
    let mut whole = json!({"type": "video_url", "video_url": {"url": "file:///a.mp4"}});
    for (name, value) in fields(part) {
        whole[name] = value;
    }
    json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}, whole]}]})
}

#[test]
fn a_full_request_is_read_field_by_field() {
    let body = json!({
        "model": "m", "messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [
                {"type": "video_url", "video_url": {"url": "file:///a.mp4"}, "start": "01:05", "end": 70.5, "fps": 2,
                 "max_frames": 9, "detail": "low"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "auto"}},
                {"type": "text", "text": "what?"}]}],
        "temperature": 0, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "frequency_penalty": -2, "presence_penalty": 2,
        "repetition_penalty": 1.1, "seed": 7, "stop": "END", "max_tokens": 10, "max_completion_tokens": 20,
        "ignore_eos": true, "stream": true, "continue_final_message": false, "add_generation_prompt": true, "stream_options": {"include_usage": true}, "tool_choice": "required",
        "paravt": {"agent": true, "dispatch": "sequential", "max_turns": 2, "max_calls": 3, "events": true, "trace": true},
        "mm_processor_kwargs": {"fps": 4}, "media_io_kwargs": {"video": {"num_frames": 40}}, "user": "u",
        "metadata": {"a": "b"}, "something_else": [1]
    });
    let request = ChatCompletionRequest::read(body).expect("valid");
    insta::assert_json_snapshot!(request, @r##"
    {
      "model": "m",
      "messages": [
        {
          "role": "developer",
          "content": "be brief"
        },
        {
          "role": "user",
          "content": [
            {
              "type": "video_url",
              "video_url": {
                "url": "file:///a.mp4"
              },
              "start": 65.0,
              "end": 70.5,
              "fps": 2.0,
              "max_frames": 9,
              "detail": "low"
            },
            {
              "type": "image_url",
              "image_url": {
                "url": "data:image/png;base64,AA",
                "detail": "auto"
              }
            },
            {
              "type": "text",
              "text": "what?"
            }
          ]
        }
      ],
      "temperature": 0.0,
      "top_p": 0.9,
      "top_k": 20,
      "min_p": 0.1,
      "frequency_penalty": -2.0,
      "presence_penalty": 2.0,
      "repetition_penalty": 1.1,
      "seed": 7,
      "stop": [
        "END"
      ],
      "max_tokens": 10,
      "max_completion_tokens": 20,
      "ignore_eos": true,
      "stream": true,
      "stream_options": {
        "include_usage": true
      },
      "n": 1,
      "logprobs": false,
      "top_logprobs": null,
      "response_format": null,
      "tools": [],
      "tool_choice": "required",
      "parallel_tool_calls": null,
      "continue_final_message": false,
      "add_generation_prompt": true,
      "paravt": {
        "agent": true,
        "dispatch": "sequential",
        "max_turns": 2,
        "max_calls": 3,
        "events": true,
        "trace": true,
        "thumbnails": false,
        "raw": false
      },
      "mm_processor_kwargs": {
        "fps": 4.0,
        "num_frames": null
      },
      "media_io_kwargs": {
        "video": {
          "fps": null,
          "num_frames": 40
        }
      },
      "user": "u",
      "metadata": null
    }
    "##);
}

#[test]
fn null_is_absent() {
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "temperature": null, "stop": null, "tools": null,
        "paravt": null, "stream_options": null, "seed": null, "n": null, "response_format": null, "metadata": null});
    assert!(ChatCompletionRequest::read(body).is_ok());
}

#[test]
fn values_that_ask_for_nothing_are_accepted() {
    for (name, value) in [
        ("n", json!(1)),
        ("logprobs", json!(false)),
        ("top_logprobs", json!(0)),
        ("n", json!(1.0)),
        ("tools", json!([])),
        ("functions", json!([])),
        ("logit_bias", json!({})),
        ("response_format", json!({"type": "text"})),
        ("top_k", json!(-1)),
        ("stop", json!([])),
        ("max_tokens", json!(5.0)),
        ("seed", json!(-1)),
    ] {
        assert!(ChatCompletionRequest::read(with(name, value)).is_ok(), "{name}");
    }
}

#[test]
fn what_is_not_supported_yet_is_refused_by_name() {
    for (name, value) in [("functions", json!([{"name": "f"}])), ("logit_bias", json!({"1": 2}))] {
        assert_eq!(refused(with(name, value)), (name.to_owned(), "unsupported_parameter"));
    }
    let audio = json!({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]});
    assert_eq!(refused(audio), ("messages[0].content[0].type".to_owned(), "unsupported_parameter"));
    let function = json!({"messages": [{"role": "function", "content": "x", "name": "f"}]});
    assert_eq!(refused(function), ("messages[0].role".to_owned(), "unsupported_parameter"));
}

#[test]
fn tools_and_forms_are_checked_where_they_are_written() {
    let tool = |function: Value| with("tools", json!([{"type": "function", "function": function}]));
    let format = |format: Value| with("response_format", format);
    for (body, param) in [
        (with("tools", json!([{"type": "web"}])), "tools[0].type"),
        (tool(json!({})), "tools[0].function.name"),
        (tool(json!({"name": "a b"})), "tools[0].function.name"),
        (tool(json!({"name": "a", "parameters": 5})), "tools[0].function.parameters"),
        (tool(json!({"name": "a", "parameters": {"x": "y".repeat(70_000)}})), "tools[0].function.parameters"),
        (with("tool_choice", json!({"type": "function"})), "tool_choice.function"),
        (with("tool_choice", json!("maybe")), "tool_choice"),
        (format(json!({"type": "xml"})), "response_format.type"),
        (format(json!({"type": "json_schema"})), "response_format.json_schema"),
        (format(json!({"type": "json_schema", "json_schema": {"schema": {}}})), "response_format.json_schema.name"),
        (with("top_logprobs", json!(3)), "top_logprobs"),
        (with("n", json!(0)), "n"),
    ] {
        let invalid = ChatCompletionRequest::read(body.clone()).expect_err("refused");
        assert_eq!(invalid.param, param, "{body}");
    }
}

#[test]
fn calls_and_their_results_are_read_as_sdks_send_them() {
    let body = json!({"messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": null, "refusal": null, "audio": null, "function_call": null, "annotations": [],
         "reasoning": "hm", "tool_calls": [{"id": "call_1", "type": "function",
            "function": {"name": "note", "arguments": "{\"at\": 5}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "done"}], "name": "note"}]});
    let messages = ChatCompletionRequest::read(body).expect("valid").messages;
    assert_eq!(messages[1].tool_calls[0].function.arguments["at"], 5);
    assert_eq!(messages[2].tool_call_id.as_deref(), Some("call_1"));
    let call = |arguments: &str| {
        json!({"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "function",
            "function": {"name": "f", "arguments": arguments}}]}, {"role": "tool", "tool_call_id": "c", "content": "x"}]})
    };
    assert!(ChatCompletionRequest::read(call("")).is_ok());
    assert_eq!(refused(call("[1]")).0, "messages[0].tool_calls[0].function.arguments");
    let loose = json!({"messages": [{"role": "tool", "content": "x"}]});
    assert_eq!(refused(loose), ("messages[0].tool_call_id".to_owned(), "missing_required_parameter"));
}

#[test]
fn a_wrong_field_is_named_by_its_path() {
    for (body, param) in [
        (json!([]), ""),
        (json!({}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": [{"content": "hi"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "king", "content": "hi"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": []}]}), "messages[0].content"),
        (json!({"messages": [{"role": "assistant", "content": "hi"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}), "messages[0].content[0].text"),
        (json!({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}), "messages[0].content[0].type"),
        (video(json!({"video_url": "a.mp4"})), "messages[0].content[1].video_url"),
        (video(json!({"video_url": {"url": 5}})), "messages[0].content[1].video_url.url"),
        (video(json!({"video_url": {"url": " "}})), "messages[0].content[1].video_url.url"),
        (video(json!({"start": "soon"})), "messages[0].content[1].start"),
        (video(json!({"start": -1})), "messages[0].content[1].start"),
        (video(json!({"start": 5, "end": 5})), "messages[0].content[1].end"),
        (video(json!({"fps": 0})), "messages[0].content[1].fps"),
        (video(json!({"max_frames": 0})), "messages[0].content[1].max_frames"),
        (video(json!({"detail": "ultra"})), "messages[0].content[1].detail"),
        (continued(&json!({"role": "user", "content": "a"})), "messages[1].role"),
        (json!({"messages": [{"role": "assistant", "content": "a"}], "continue_final_message": true}), "messages"),
        (
            json!({"messages": [{"role": "system", "content": "a"}, {"role": "assistant", "content": "a"}],
                "continue_final_message": true}),
            "messages[0].role",
        ),
        (with("continue_final_message", json!("yes")), "continue_final_message"),
        (with("add_generation_prompt", json!(false)), "add_generation_prompt"),
        (with("temperature", json!(2.1)), "temperature"),
        (with("temperature", json!("hot")), "temperature"),
        (with("top_p", json!(0)), "top_p"),
        (with("top_k", json!(1.5)), "top_k"),
        (with("max_tokens", json!(0)), "max_tokens"),
        (with("stop", json!(["a", "b", "c", "d", "e"])), "stop"),
        (with("stop", json!(["a", ""])), "stop[1]"),
        (with("stream", json!("yes")), "stream"),
        (with("stream_options", json!({"include_usage": 1})), "stream_options.include_usage"),
        (with("tool_choice", json!("crop_video")), "tool_choice"),
        (with("paravt", json!({"dispatch": "warp"})), "paravt.dispatch"),
        (with("paravt", json!({"max_calls": 0})), "paravt.max_calls"),
        (with("mm_processor_kwargs", json!({"fps": 1, "num_frames": 2})), "mm_processor_kwargs"),
        (with("media_io_kwargs", json!({"video": {"num_frames": -1}})), "media_io_kwargs.video.num_frames"),
        (with("seed", json!(1.5)), "seed"),
    ] {
        assert_eq!(refused(body.clone()).0, param, "{body}");
    }
}

fn continued(last: &Value) -> Value {
    json!({"messages": [{"role": "user", "content": "hi"}, last], "continue_final_message": true,
        "add_generation_prompt": false})
}

#[test]
fn the_assistants_last_message_may_be_continued() {
    let request = ChatCompletionRequest::read(continued(&json!({"role": "assistant", "content": "<think>\n"})));
    assert!(request.expect("valid").continue_final_message);
    let mut both = continued(&json!({"role": "assistant", "content": "a"}));
    both["add_generation_prompt"] = json!(true);
    assert_eq!(refused(both), ("add_generation_prompt".to_owned(), "invalid_value"));
}

#[test]
fn a_wrong_value_is_wrong_even_where_the_field_is_not_supported_yet() {
    for (name, value) in [
        ("n", json!(0)),
        ("n", json!("x")),
        ("n", json!(1.5)),
        ("logprobs", json!("x")),
        ("top_logprobs", json!(-1)),
        ("tools", json!("x")),
        ("functions", json!({})),
        ("logit_bias", json!([])),
    ] {
        assert_eq!(refused(with(name, value)), (name.to_owned(), "invalid_value"));
    }
}

#[test]
fn pictures_and_videos_belong_to_the_user() {
    let body = json!({"messages": [
        {"role": "system", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
        {"role": "user", "content": "hi"}]});
    assert_eq!(refused(body).0, "messages[0].content[0].type");
}

#[test]
fn the_number_of_videos_is_bounded() {
    let part = json!({"type": "video_url", "video_url": {"url": "file:///a.mp4"}});
    let many = |n| json!({"messages": [{"role": "user", "content": vec![part.clone(); n]}]});
    assert!(ChatCompletionRequest::read(many(8)).is_ok());
    assert_eq!(refused(many(9)).0, "messages");
}

/// The document and the reader are two declarations of the same fields; this holds them together.
#[test]
fn every_documented_field_is_read() {
    let mut names = Vec::new();
    for schema in [
        <ChatCompletionRequest as utoipa::PartialSchema>::schema(),
        <SamplingFields as utoipa::PartialSchema>::schema(),
    ] {
        let schema = serde_json::to_value(schema).expect("serialises");
        let objects = [Some(&schema)].into_iter().chain(schema["allOf"].as_array().into_iter().flatten().map(Some));
        for object in objects.flatten() {
            names.extend(object["properties"].as_object().into_iter().flat_map(|map| map.keys().cloned()));
        }
    }
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        // A list that holds a list fits no field.
        let param = refused(with(&name, json!([[[]]]))).0;
        assert!(param.starts_with(&name), "{name}: {param}");
    }
}
