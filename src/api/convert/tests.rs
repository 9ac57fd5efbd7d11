//! What a valid request becomes, and what is refused before any work.

use serde_json::{Value, json};

use super::*;
use crate::agent::ToolUse;
use crate::config::FilesConfig;
use crate::media::{About, Uploads};

const ALL: Supported = Supported::ALL;
const NONE: Supported = Supported::NONE;

fn card() -> ModelCard {
    toml::from_str(
        r#"
        name = "tiny"
        description = "d"
        [source]
        directory = "."
        [prompts]
        system = "s"
        question = "{question}"
        sub_agent = "look"
        last_turn = "now"
        [agent]
        max_turns = 3
        max_calls = 5
        turn_tokens = 256
        summary_tokens = 64
        [overview]
        fps = 1.0
        min_frames = 1
        max_frames = 8
        timestamps = true
        [window]
        fps = 1.0
        min_frames = 1
        max_frames = 8
        timestamps = true
        [pixels]
        factor = 32
        min_pixels = 1024
        max_pixels = 1024
        "#,
    )
    .expect("a card")
}

fn plan(body: Value, supported: Supported) -> Result<Plan, ApiError> {
    Plan::new(ChatCompletionRequest::read(body).expect("readable"), &Files::default(), &card(), supported)
}

fn text(field: &str, value: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body[field] = value;
    body
}

fn fields(value: Value) -> serde_json::Map<String, Value> {
    let Value::Object(fields) = value else { panic!("not an object: {value}") };
    fields
}

fn with_video(part: Value, extra: Value) -> Value {
    let mut whole = json!({"type": "video_url", "video_url": {"url": "file:///a.mp4"}});
    for (name, value) in fields(part) {
        whole[name] = value;
    }
    let mut body = json!({"messages": [{"role": "user", "content": [whole, {"type": "text", "text": "q"}]}]});
    for (name, value) in fields(extra) {
        body[name] = value;
    }
    body
}

fn param_of(result: Result<Plan, ApiError>) -> String {
    match result {
        Err(ApiError::Invalid(invalid)) => invalid.param,
        other => panic!("not refused: {other:?}"),
    }
}

fn only_video(plan: &Plan) -> VideoPart {
    match &plan.turns[0].parts[0] {
        PlanPart::Ready(AskPart::Video(video)) => video.clone(),
        other => panic!("no video: {other:?}"),
    }
}

#[test]
fn the_model_may_be_named_generally_or_not_at_all() {
    for name in ["tiny", "paravt", ""] {
        assert!(plan(text("model", json!(name)), NONE).is_ok(), "{name}");
    }
    assert!(
        matches!(plan(text("model", json!("gpt-4o")), NONE), Err(ApiError::ModelNotFound(name)) if name == "gpt-4o")
    );
}

#[test]
fn what_the_engine_cannot_honour_is_refused_by_name() {
    for (field, value) in [
        ("seed", json!(1)),
        ("min_p", json!(0.1)),
        ("top_k", json!(5)),
        ("repetition_penalty", json!(1.2)),
        ("ignore_eos", json!(true)),
    ] {
        assert_eq!(param_of(plan(text(field, value.clone()), NONE)), field);
        assert!(plan(text(field, value), ALL).is_ok(), "{field}");
    }
}

#[test]
fn a_neutral_value_asks_nothing_of_the_engine() {
    for (field, value) in [
        ("min_p", json!(0)),
        ("top_k", json!(-1)),
        ("top_k", json!(0)),
        ("repetition_penalty", json!(1)),
        ("ignore_eos", json!(false)),
    ] {
        let plan = plan(text(field, value), NONE).expect("accepted");
        assert_eq!(plan.sampling, Sampling::default(), "{field}");
    }
}

#[test]
fn length_is_the_callers_and_0_where_it_says_nothing() {
    for (body, expected) in [
        (text("max_tokens", json!(7)), 7),
        (text("max_completion_tokens", json!(9)), 9),
        (text("max_tokens", json!(100_000)), 100_000),
        (text("user", json!("u")), 0),
    ] {
        assert_eq!(plan(body, NONE).expect("valid").sampling.max_tokens, expected);
    }
}

#[test]
fn the_agent_runs_where_there_is_a_video() {
    assert_eq!(plan(with_video(json!({}), json!({})), NONE).expect("valid").options.agent, Some(true));
    let off = json!({"paravt": {"agent": false}});
    assert_eq!(plan(with_video(json!({}), off), NONE).expect("valid").options.agent, Some(false));
    assert_eq!(plan(text("user", json!("u")), NONE).expect("valid").options.agent, Some(false));
    assert_eq!(param_of(plan(text("paravt", json!({"agent": true})), NONE)), "paravt.agent");
    assert_eq!(param_of(plan(text("tool_choice", json!("required")), NONE)), "tool_choice");
    let required = plan(with_video(json!({}), json!({"tool_choice": "required"})), NONE).expect("valid");
    assert_eq!(required.options.tools, ToolUse::Required);
}

#[test]
fn a_continued_message_is_a_plain_completions_prefix() {
    let continued = |extra: Value| {
        let mut body = with_video(json!({}), json!({"continue_final_message": true, "add_generation_prompt": false}));
        let content = json!([{"type": "text", "text": "<think>\n"}, {"type": "text", "text": "I see"}]);
        body["messages"].as_array_mut().expect("a list").push(json!({"role": "assistant", "content": content}));
        for (name, value) in fields(extra) {
            body[name] = value;
        }
        plan(body, NONE)
    };
    let plan = continued(json!({})).expect("valid");
    assert_eq!((plan.prefix.as_str(), plan.options.agent, plan.turns.len()), ("<think>\nI see", Some(false), 1));
    assert_eq!(param_of(continued(json!({"paravt": {"agent": true}}))), "paravt.agent");
    assert_eq!(param_of(continued(json!({"tool_choice": "required"}))), "tool_choice");
}

#[test]
fn a_request_without_a_question_is_refused() {
    let video = json!({"type": "video_url", "video_url": {"url": "file:///a.mp4"}});
    let words = json!({"type": "text", "text": " \n"});
    let ask = |content: Value, agent: Value| {
        plan(json!({"messages": [{"role": "user", "content": content}], "paravt": {"agent": agent}}), NONE)
    };
    assert_eq!(param_of(ask(json!(""), json!(null))), "messages[0].content");
    assert_eq!(param_of(ask(json!([words]), json!(null))), "messages[0].content");
    assert_eq!(param_of(ask(json!([video, words]), json!(null))), "messages[0].content");
    let picture = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}});
    assert!(ask(json!([picture]), json!(null)).is_ok());
    assert!(ask(json!([video]), json!(false)).is_ok());
}

#[test]
fn frames_are_chosen_by_the_nearest_field() {
    let mm = json!({"mm_processor_kwargs": {"num_frames": 6}, "media_io_kwargs": {"video": {"num_frames": 40}}});
    let io = json!({"media_io_kwargs": {"video": {"num_frames": 40}}});
    let io_fps = json!({"media_io_kwargs": {"video": {"num_frames": 40, "fps": 2}}});
    for (part, extra, fps, max_frames, frames) in [
        (json!({}), json!({}), None, None, None),
        (json!({}), mm.clone(), None, None, Some(6)),
        // Never more than the card allows.
        (json!({}), io, None, None, Some(8)),
        (json!({}), io_fps, Some(2.0), Some(40), None),
        (json!({"fps": 3}), mm.clone(), Some(3.0), None, None),
        (json!({"max_frames": 5}), mm, None, Some(5), None),
        (json!({}), json!({"mm_processor_kwargs": {"fps": 4}}), Some(4.0), None, None),
    ] {
        let video = only_video(&plan(with_video(part, extra), NONE).expect("valid"));
        assert_eq!((video.fps, video.max_frames, video.frames), (fps, max_frames, frames));
    }
}

#[test]
fn an_only_video_is_known_by_its_path() {
    let one = plan(with_video(json!({"start": 1, "end": "00:09"}), json!({})), NONE).expect("valid");
    let only = one.only_video.as_ref().expect("one");
    assert_eq!(only.param(&MediaError::NoFrames(String::new())), "messages[0].content[0].start");
    assert_eq!(only.param(&MediaError::NotVideo(String::new())), "messages[0].content[0].video_url.url");
    let whole = plan(with_video(json!({"end": 9}), json!({})), NONE).expect("valid").only_video.expect("one");
    assert_eq!(whole.param(&MediaError::NoFrames(String::new())), "messages[0].content[0].video_url.url");
    let video = only_video(&one);
    assert_eq!(video.end.map(|end| end.seconds()), Some(9.0));
    assert_eq!(video.source, SourceRequest::Url("file:///a.mp4".to_owned()));
    let part = json!({"type": "video_url", "video_url": {"url": "file:///a.mp4"}});
    let question = json!({"type": "text", "text": "q"});
    let body = json!({"messages": [{"role": "user", "content": [part.clone(), part, question]}]});
    assert_eq!(plan(body, NONE).expect("valid").only_video, None);
}

#[tokio::test]
async fn an_uploaded_file_is_what_its_first_bytes_say() {
    let uploads = Uploads::new(FilesConfig::default()).expect("a folder");
    let put = async |content: &[u8]| {
        let mut incoming = uploads.admit("me", None).expect("a place").begin().await.expect("begins");
        incoming.write(content).await.expect("writes");
        let about = About { filename: "a.txt".to_owned(), purpose: "vision".to_owned(), expire_after_s: None };
        incoming.keep(about).await.expect("kept").id.as_str().to_owned()
    };
    let (video, picture) = (put(b"\0\0\0\x20ftypisom").await, put(b"\x89PNG\r\n\x1a\n").await);
    let body = |ids: &[&str]| {
        let files = ids.iter().map(|id| json!({"type": "file", "file": {"file_id": id}, "start": 3, "fps": 2}));
        let content: Vec<Value> = files.chain([json!({"type": "text", "text": "q"})]).collect();
        ChatCompletionRequest::read(json!({"messages": [{"role": "user", "content": content}]})).expect("readable")
    };
    let request = body(&[&picture, &video]);
    let files = Files::look(&request.messages, &uploads, "me").await.expect("both are there");
    let plan = Plan::new(request, &files, &card(), NONE).expect("valid");
    let PlanPart::Image { source: SourceRequest::Upload(_), param } = &plan.turns[0].parts[0] else {
        panic!("{plan:?}")
    };
    assert_eq!(param, "messages[0].content[0].file.file_id");
    let PlanPart::Ready(AskPart::Video(part)) = &plan.turns[0].parts[1] else { panic!("{plan:?}") };
    assert_eq!((part.fps, part.start.map(|start| start.seconds())), (Some(2.0), Some(3.0)));
    assert_eq!(plan.options.agent, Some(true));
    let only = plan.only_video.expect("one");
    assert_eq!(only.param(&MediaError::NotVideo(String::new())), "messages[0].content[1].file.file_id");

    for (owner, ids) in
        [("me", vec![video.as_str(), "file-1"]), ("me", vec![&video, "../x"]), ("you", vec!["", &video])]
    {
        let ids: Vec<&str> = ids.into_iter().filter(|id| !id.is_empty()).collect();
        let error = Files::look(&body(&ids).messages, &uploads, owner).await.expect_err("not there");
        let ApiError::Invalid(invalid) = error else { panic!("{error:?}") };
        let place = ids.len() - 1;
        assert_eq!(invalid.param, format!("messages[0].content[{place}].file.file_id"));
        assert_eq!(invalid.code, "file_not_found");
    }

    let many = body(&[video.as_str(); 9]);
    let files = Files::look(&many.messages, &uploads, "me").await.expect("all are there");
    assert_eq!(param_of(Plan::new(many, &files, &card(), NONE)), "messages");
}

#[test]
fn a_file_in_the_request_is_a_video_or_a_picture_by_its_type() {
    let plan = |data: &str| {
        let part = json!({"type": "file", "file": {"file_data": data, "filename": "a"}});
        let question = json!({"type": "text", "text": "q"});
        plan(json!({"messages": [{"role": "user", "content": [part, question]}]}), NONE).expect("valid")
    };
    let video = plan("data:video/mp4;base64,AA");
    assert_eq!(only_video(&video).source, SourceRequest::Url("data:video/mp4;base64,AA".to_owned()));
    let only = video.only_video.expect("one");
    assert_eq!(only.param(&MediaError::NotVideo(String::new())), "messages[0].content[0].file.file_data");
    assert!(matches!(&plan("data:image/png;base64,AA").turns[0].parts[0], PlanPart::Image { .. }));
}

#[test]
fn roles_map_to_the_agents() {
    let body = json!({"messages": [
        {"role": "developer", "content": "a"}, {"role": "system", "content": "b"}, {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"}, {"role": "user", "content": "e"}]});
    let roles: Vec<Role> = plan(body, NONE).expect("valid").turns.iter().map(|turn| turn.role).collect();
    assert_eq!(roles, [Role::System, Role::System, Role::User, Role::Assistant, Role::User]);
}
