//! What the reader of responses accepts, and how it names what it refuses.

use serde_json::{Value, json};

use super::*;
use crate::protocol::content::ContentPart;

fn read(body: Value) -> Result<ResponsesRequest, Invalid> {
    ResponsesRequest::read(body)
}

fn with(name: &str, value: Value) -> Value {
    let mut body = json!({"input": "hi"});
    body[name] = value;
    body
}

#[test]
fn a_conversation_of_items_becomes_messages() {
    let request = read(json!({
        "instructions": "be brief",
        "input": [
            {"role": "user", "content": [
                {"type": "input_video", "video_url": "file:///a.mp4", "start": 5},
                {"type": "input_image", "image_url": "data:image/png;base64,AA"},
                {"type": "input_file", "file_id": "file-1", "end": 9},
                {"type": "input_file", "file_url": "https://example.org/a.mp4"},
                {"type": "input_text", "text": "what?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "mcp_call", "id": "mcp_1", "server_label": "paravt", "name": "crop_video", "arguments": "{}", "output": "x"},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": "wait", "annotations": [], "logprobs": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "note", "arguments": "{\"at\": 5}"},
            {"type": "function_call", "call_id": "c2", "name": "note", "arguments": ""},
            {"type": "function_call_output", "call_id": "c1", "output": "done"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "too"}]}]
    }))
    .expect("valid");
    let roles: Vec<MessageRole> = request.chat.messages.iter().map(|message| message.role).collect();
    use MessageRole::{Assistant, System, Tool, User};
    assert_eq!(roles, [System, User, Assistant, Tool, Tool]);
    assert_eq!(request.chat.messages[2].tool_calls.len(), 2);
    assert_eq!(request.chat.messages[1].path, "input[0]");
    let Content::Parts(parts) = &request.chat.messages[1].content else { panic!("parts") };
    assert!(matches!(&parts[0], ContentPart::VideoUrl(part) if part.start.is_some() && part.url_field == "video_url"));
    assert!(matches!(&parts[2], ContentPart::File(part) if part.file.field() == "file_id" && part.end.is_some()));
    assert!(matches!(&parts[3], ContentPart::VideoUrl(part) if part.url_field == "file_url"));
    assert_eq!(request.echo.instructions.as_deref(), Some("be brief"));
}

#[test]
fn forms_tools_and_lengths_are_those_of_a_chat_completion() {
    let schema = json!({"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true});
    let request = read(json!({
        "input": "hi", "text": {"format": schema}, "max_output_tokens": 9, "parallel_tool_calls": false,
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 2,
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true}],
        "tool_choice": {"type": "function", "name": "f"}, "metadata": {"a": "b"}, "store": true, "temperature": 0.5
    }))
    .expect("valid");
    let chat = &request.chat;
    assert!(
        matches!(&chat.response_format, Some(ResponseFormat::JsonSchema { json_schema }) if json_schema.schema.is_some())
    );
    assert_eq!((chat.sampling.max_completion_tokens, chat.logprobs, chat.top_logprobs), (Some(9), true, Some(2)));
    assert_eq!(chat.tools[0].function.name, "f");
    assert_eq!(request.echo.tool_choice, json!({"type": "function", "name": "f"}));
    assert_eq!(serde_json::to_value(&request.echo.format).expect("JSON"), schema);
}

#[test]
fn what_is_wrong_or_needs_a_memory_is_named() {
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": ""}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": [{"role": "king", "content": "x"}]}), "input[0].role"),
        (json!({"input": [{"role": "user", "content": [{"type": "input_video"}]}]}), "input[0].content[0].video_url"),
        (json!({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}), "input[0].content[0].file_id"),
        (json!({"input": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}), "input[1]"),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0].type"),
        (json!({"input": [{"type": "function_call_output", "output": "x"}]}), "input[0].call_id"),
        (with("previous_response_id", json!("resp_1")), "previous_response_id"),
        (with("conversation", json!("conv_1")), "conversation"),
        (with("background", json!(true)), "background"),
        (with("tools", json!([{"type": "web_search"}])), "tools[0].type"),
        (with("tools", json!([{"type": "function"}])), "tools[0].name"),
        (with("text", json!({"format": {"type": "json_schema"}})), "text.format.name"),
        (with("paravt", json!({"events": true})), "paravt.events"),
        (with("store", json!({})), "store"),
    ] {
        let invalid = read(body.clone()).expect_err("refused");
        assert_eq!(invalid.param, param, "{body}");
    }
    assert!(read(with("background", json!(false))).is_ok());
    assert!(read(with("previous_response_id", json!(null))).is_ok());
}
