//! What a request may ask of its answer: several of them, calls of its own tools, raw text, pictures, OpenAI's newer shape.

use std::sync::Arc;

use paravt::engine::scripted::{Reply, ScriptedEngine};
use paravt::engine::{Batching, Engine, EngineInfo, Grammar, Speaker, Supported};
use serde_json::{Value, json};

use super::server::{Server, data_lines, error_of, text_question, video_question};
use super::{ANSWER, looking, saying};

fn weather() -> Value {
    json!({"type": "function", "function": {"name": "weather", "description": "Says the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}})
}

const CALL: &str = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\"}}\n</tool_call>";

/// An engine that says it knows grammars.
fn constrained(reply: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Arc<ScriptedEngine> {
    let engine = ScriptedEngine::new(move |request, _| reply(&request.prefix));
    let info = EngineInfo { supported: Supported::ALL, batching: Batching::Ragged, ..engine.info() };
    Arc::new(engine.with_info(info))
}

async fn json_of(server: &Server, question: &Value) -> Value {
    let response = server.ask(question).await;
    assert_eq!(response.status(), 200, "{question}");
    response.json().await.expect("JSON")
}

#[tokio::test]
async fn n_answers_come_from_n_episodes_and_one_stream() {
    let engine = looking(|| Reply::text("A red circle."));
    let server = Server::start(Arc::clone(&engine)).await;
    let mut question = text_question();
    question["n"] = json!(3);
    question["seed"] = json!(7);
    question["temperature"] = json!(1);
    let answer = json_of(&server, &question).await;
    let indexes: Vec<&Value> = answer["choices"].as_array().expect("choices").iter().map(|c| &c["index"]).collect();
    assert_eq!(indexes, [0, 1, 2]);
    assert_eq!(answer["paravt"]["sampling"]["seed"], 7);
    let mut seeds: Vec<_> = engine.requests().iter().map(|request| request.sampling.seed).collect();
    seeds.sort_unstable();
    assert_eq!(seeds, [Some(7), Some(8), Some(9)]);

    question["stream"] = json!(true);
    let lines = data_lines(&server.ask(&question).await.text().await.expect("a body"));
    assert_eq!(lines.iter().filter(|line| *line == "[DONE]").count(), 1);
    let ends: Vec<u64> = lines[..lines.len() - 1]
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .filter(|chunk| chunk["choices"][0]["finish_reason"] == "stop")
        .filter_map(|chunk| chunk["choices"][0]["index"].as_u64())
        .collect();
    assert_eq!(ends.len(), 3);
}

#[tokio::test]
async fn a_drawn_seed_is_told_so_that_the_answer_can_be_had_again() {
    let engine = saying(|| Reply::text("hello"));
    let server = Server::start(Arc::clone(&engine)).await;
    let mut question = text_question();
    assert_eq!(json_of(&server, &question).await["paravt"]["sampling"]["seed"], Value::Null, "greedy by the card");
    question["temperature"] = json!(0.7);
    let seed = json_of(&server, &question).await["paravt"]["sampling"]["seed"].as_u64().expect("a seed");
    assert_eq!(engine.requests().last().and_then(|request| request.sampling.seed), Some(seed));
    // Whatever is sent, what comes back can be sent again: also by clients whose numbers are doubles.
    question["seed"] = json!(-1);
    assert_eq!(json_of(&server, &question).await["paravt"]["sampling"]["seed"], (1_u64 << 53) - 1);
}

#[tokio::test]
async fn calls_that_nobody_can_run_are_text_where_nothing_else_was_said() {
    let other = "<tool_call>\n{\"name\":\"time\",\"arguments\":{\"city\":\"Ulm\"}}\n</tool_call>".to_owned();
    let said = Arc::new(std::sync::Mutex::new(String::new()));
    let server = Server::start(saying({
        let said = Arc::clone(&said);
        move || Reply::text(said.lock().expect("fine").clone())
    }))
    .await;
    let mut question = text_question();
    question["tools"] = json!([weather()]);
    let broken = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\"\n</tool_call>";
    for (text, content, calls) in [
        (other.clone(), Some(other.as_str()), 0),
        (broken.to_owned(), Some(broken), 0),
        (format!("Sunny. {broken}"), Some("Sunny."), 0),
        (format!("{other}\n{CALL}"), None, 1),
        (format!("<think>hm</think>{other}"), Some(other.as_str()), 0),
    ] {
        said.lock().expect("fine").clone_from(&text);
        let answer = json_of(&server, &question).await;
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["content"].as_str().map(str::trim), content, "{text}");
        assert_eq!(message["tool_calls"].as_array().map_or(0, Vec::len), calls, "{text}");
    }
    // Not what was thought of when the turn was cut.
    let thought = "<think>I could <tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call> and";
    let cut = Reply::text(thought).finish(paravt::engine::FinishReason::Length);
    let server = Server::start(saying(move || cut.clone())).await;
    let answer = json_of(&server, &question).await;
    assert_eq!(answer["choices"][0]["message"]["content"].as_str().unwrap_or_default(), "", "{answer}");
}

#[tokio::test]
async fn the_callers_tool_comes_back_as_a_call_and_its_result_goes_in() {
    let engine = saying(|| Reply::text(format!("Let me see. {CALL}")));
    let server = Server::start(Arc::clone(&engine)).await;
    let mut question = text_question();
    question["tools"] = json!([weather()]);
    let answer = json_of(&server, &question).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "Let me see.");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"], json!({"name": "weather", "arguments": "{\"city\":\"Ulm\"}"}));
    let first = engine.requests().pop().expect("asked");
    assert!(first.turns[0].text.contains("\"name\":\"weather\""), "{}", first.turns[0].text);

    let messages = question["messages"].as_array_mut().expect("a list");
    messages.push(choice["message"].clone());
    messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "Fog </tool_response>."}));
    json_of(&server, &question).await;
    let second = engine.requests().pop().expect("asked");
    let texts: Vec<&str> = second.turns.iter().map(|turn| turn.text.as_str()).collect();
    assert!(texts[2].contains("<tool_call>") && texts[2].contains("Ulm"), "{texts:?}");
    assert_eq!(texts[3], "<tool_response>\nFog < /tool_response>.\n</tool_response>");
}

#[tokio::test]
async fn the_callers_tool_beside_windows_waits_for_them() {
    let engine = Arc::new(ScriptedEngine::new(|request, call| match (request.speaker, call) {
        (Speaker::Sub, _) => Reply::text("A red circle."),
        (Speaker::Main, 0) => {
            Reply::text(format!("hm</think>\n{}\n{CALL}", super::BURST.split("</think>").nth(1).expect("calls")))
        }
        (Speaker::Main, _) => Reply::text(format!("so</think>\n{CALL}")),
    }));
    let server = Server::start(Arc::clone(&engine)).await;
    let mut question = video_question();
    question["tools"] = json!([weather()]);
    question["stream"] = json!(true);
    question["paravt"] = json!({"events": true});
    let lines = data_lines(&server.ask(&question).await.text().await.expect("a body"));
    let chunks: Vec<Value> =
        lines[..lines.len() - 1].iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let calls: Vec<&Value> = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"].get("tool_calls")).collect();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert_eq!(calls[0][0]["index"], 0);
    let windows = chunks.iter().filter(|chunk| chunk["paravt"]["event"] == "window.finished").count();
    assert_eq!(windows, 2);
    assert_eq!(chunks.last().expect("an end")["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn an_answers_form_constrains_the_answer_and_not_the_thinking() {
    let engine = constrained(|prefix| {
        if prefix.ends_with("<answer>") { Reply::text("{\"colour\": \"red\"}") } else { Reply::text(ANSWER) }
    });
    let server = Server::start(Arc::clone(&engine)).await;
    let mut question = video_question();
    let schema = json!({"type": "object", "properties": {"colour": {"type": "string"}}});
    question["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let answer = json_of(&server, &question).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "{\"colour\": \"red\"}");
    assert_eq!(answer["choices"][0]["message"]["reasoning"], "The crops show it.");
    let grammars: Vec<Option<Grammar>> =
        engine.requests().into_iter().map(|request| request.sampling.constraint.map(|c| c.grammar)).collect();
    assert_eq!(grammars, [None, Some(Grammar::JsonSchema(schema.to_string()))]);
}

#[tokio::test]
async fn a_tool_that_must_be_called_is_called() {
    let engine = constrained(|_| Reply::text("{\"city\": \"Ulm\"}"));
    let server = Server::start(Arc::clone(&engine)).await;
    let mut question = text_question();
    question["tools"] = json!([weather()]);
    question["tool_choice"] = json!({"type": "function", "function": {"name": "weather"}});
    let answer = json_of(&server, &question).await;
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"city\":\"Ulm\"}");
    assert_eq!(message["content"], Value::Null);
}

#[tokio::test]
async fn raw_text_keeps_every_tag_and_blank() {
    let text = "<think>\nhm</think>\n<tool_call>{}</tool_call> <answer>red</answer>\n";
    let server = Server::start(saying(move || Reply::text(text))).await;
    let mut question = text_question();
    question["paravt"] = json!({"raw": true});
    let answer = json_of(&server, &question).await;
    assert_eq!(answer["choices"][0]["message"]["content"], text);
    assert!(answer["choices"][0]["message"].get("reasoning").is_none());
    let mut question = video_question();
    question["paravt"] = json!({"raw": true});
    let refused = server.ask(&question).await;
    assert_eq!((refused.status().as_u16(), error_of(refused).await["param"].clone()), (400, json!("paravt.raw")));
}

#[tokio::test]
async fn events_bring_pictures_where_they_are_wanted() {
    let server = Server::start(looking(|| Reply::text("A red circle."))).await;
    let mut question = video_question();
    question["stream"] = json!(true);
    for wanted in [false, true] {
        question["paravt"] = json!({"events": true, "thumbnails": wanted});
        let lines = data_lines(&server.ask(&question).await.text().await.expect("a body"));
        let events: Vec<Value> = lines[..lines.len() - 1]
            .iter()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["paravt"].clone())
            .filter(|event| event.get("frame_times").is_some() && event["event"] != "window.finished")
            .collect();
        assert_eq!(events.len(), 3, "an overview and two windows");
        for event in events {
            let pictures = event.get("thumbnails").and_then(Value::as_array).map_or(0, Vec::len);
            let frames = event["frame_times"].as_array().expect("times").len();
            assert_eq!(pictures, if wanted { frames } else { 0 });
            if wanted {
                assert!(event["thumbnails"][0].as_str().expect("text").starts_with("data:image/jpeg;base64,/9j/"));
            }
        }
    }
}

#[tokio::test]
async fn a_response_tells_windows_as_items_streamed_or_not() {
    let server = Server::start(looking(|| Reply::text("A red circle."))).await;
    let part = &video_question()["messages"][0]["content"][0]["video_url"]["url"];
    let mut question = json!({"input": [{"role": "user", "content": [
        {"type": "input_video", "video_url": part}, {"type": "input_text", "text": "Which shapes appear?"}]}]});
    let post = |question: &Value| server.client.post(server.url("/v1/responses")).json(question).send();
    let plain: Value = post(&question).await.expect("an answer").json().await.expect("JSON");
    let kinds = |response: &Value| -> Vec<String> {
        let items = response["output"].as_array().expect("items").iter();
        items.map(|item| item["type"].as_str().expect("a type").to_owned()).collect()
    };
    assert_eq!(kinds(&plain), ["reasoning", "mcp_call", "mcp_call", "reasoning", "message"]);
    assert_eq!(plain["output"][4]["content"][0]["text"], "red circle");
    assert_eq!(plain["output"][1]["output"], "A red circle.");
    assert_eq!(plain["status"], "completed");

    question["stream"] = json!(true);
    let body = post(&question).await.expect("an answer").text().await.expect("a body");
    let names: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(names[..2], ["response.created", "response.in_progress"]);
    assert_eq!(names.last(), Some(&"response.completed"));
    let last: Value = serde_json::from_str(data_lines(&body).last().expect("an event")).expect("JSON");
    assert_eq!(kinds(&last["response"]), kinds(&plain));

    question["input"][0]["content"][0]["video_url"] = json!("file:///nowhere.mp4");
    let refused = post(&question).await.expect("an answer");
    assert_eq!(refused.status(), 403);
    assert_eq!(error_of(refused).await["param"], "input[0].content[0].video_url");
}
