//! Answers of a form, calls of the caller's tools, log-probabilities and conversations, on the bundled checkpoint: what
//! comes out fits, whatever the model would have liked to say.

use std::sync::Arc;

use paravt::agent::{Agent, AgentError, AnswerForm, AskPart, AskRequest, AskTurn, ClientTool, Outcome};
use paravt::config::AgentConfig;
use paravt::engine::native::{Native, NativeOptions};
use paravt::engine::{FinishReason, Grammar};
use paravt::types::Role;
use serde_json::{Map, Value, json};

use super::support::{agent_with, ask, board, story};

const QUESTION: &str = "Which shapes appear while the border is lit? List them in order.";

async fn agent() -> Agent {
    let engine = Native::load(&board::checkpoint(), NativeOptions::default()).await.expect("loads");
    agent_with(Arc::new(engine), AgentConfig::default())
}

async fn outcome(agent: &Agent, request: AskRequest) -> Outcome {
    story(agent, request).await.1.expect("an answer")
}

fn object(value: Value) -> Map<String, Value> {
    let Value::Object(map) = value else { panic!("an object") };
    map
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "first": {"type": "string", "enum": ["purple square", "orange circle", "green circle", "none"]},
            "sure": {"type": "boolean"}
        },
        "required": ["first", "sure"],
        "additionalProperties": false
    })
}

/// Whether a value is what [`schema`] describes.
fn fits(value: &Value) -> bool {
    let fields = value.as_object().expect("an object");
    let known = schema()["properties"]["first"]["enum"].as_array().expect("names").contains(&fields["first"]);
    known && fields["sure"].is_boolean() && fields.len() == 2
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_fits_its_schema_after_free_thinking_and_windows() {
    let agent = agent().await;
    let mut request = ask(QUESTION);
    request.options.form = AnswerForm::Fits(Grammar::JsonSchema(schema().to_string()));
    let outcome = outcome(&agent, request).await;
    assert!(!outcome.windows.is_empty() && !outcome.reasoning.is_empty());
    let answer: Value = serde_json::from_str(&outcome.answer).expect("JSON");
    assert!(fits(&answer), "{answer}");
    assert_eq!(outcome.finish_reason, FinishReason::Stop);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_must_be_called_gets_arguments_that_fit() {
    let agent = agent().await;
    let tool = |name: &str| ClientTool {
        name: name.to_owned(),
        description: Some("Takes a note.".to_owned()),
        parameters: object(schema()),
    };
    for chosen in [Some(1), None] {
        let mut request = ask(QUESTION);
        request.options.client_tools = vec![tool("look"), tool("note")];
        request.options.form = AnswerForm::Call(chosen);
        let outcome = outcome(&agent, request).await;
        let call = outcome.tool_calls.first().expect("a call");
        assert!(fits(&Value::Object(call.arguments.clone())), "{call:?}");
        assert!(chosen.is_none() || call.name == "note", "{call:?}");
        assert_eq!(outcome.answer, "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answers_tokens_make_up_the_answer() {
    let agent = agent().await;
    let mut request = ask(QUESTION);
    request.sampling.logprobs = Some(3);
    let outcome = outcome(&agent, request).await;
    let bytes: Vec<u8> = outcome.tokens.iter().flat_map(|token| token.bytes.clone()).collect();
    let text = String::from_utf8(bytes).expect("text");
    assert!(!outcome.answer.is_empty());
    assert_eq!(text, outcome.answer);
    assert!(outcome.tokens.iter().all(|token| token.top.len() == 3 && token.logprob <= 0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follow_up_question_reads_the_video_from_the_cache() {
    let agent = agent().await;
    let first = outcome(&agent, ask(QUESTION)).await;
    let mut request = ask(QUESTION);
    let text = |role, text: &str| AskTurn { role, parts: vec![AskPart::Text(text.to_owned())] };
    request.turns.push(text(Role::Assistant, &first.answer));
    request.turns.push(text(Role::User, "And which of them is the first?"));
    request.id = "another".to_owned();
    let second = outcome(&agent, request).await;
    let read = first.turns[0].usage.prompt_tokens;
    let again = second.turns[0].usage;
    assert!(again.cached_tokens * 10 >= read * 9, "{again:?} after {read}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_that_cannot_be_held_is_refused_before_anything_is_decoded() {
    let agent = agent().await;
    let broken = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}, "required": ["a"]});
    let mut request = ask(QUESTION);
    request.options.form = AnswerForm::Fits(Grammar::JsonSchema(broken.to_string()));
    let mut of_tool = ask(QUESTION);
    let parameters = object(broken);
    of_tool.options.client_tools = vec![ClientTool { name: "note".to_owned(), description: None, parameters }];
    of_tool.options.form = AnswerForm::Call(Some(0));
    for (request, is_tools) in [(request, false), (of_tool, true)] {
        let (events, outcome) = story(&agent, request).await;
        assert!(matches!(outcome, Err(AgentError::Form { of_tools, .. }) if of_tools == is_tools), "{outcome:?}");
        assert!(events.is_empty(), "{events:?}");
    }
}
