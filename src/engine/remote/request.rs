//! The request an upstream gets. Pure: the frames come in encoded.
//!
//! - Frames are `image_url` parts with JPEG data URLs, time stamps the `text` parts between them. vLLM keeps the order
//!   for chat templates that loop over parts, as Qwen3-VL's does.
//! - A prefix is a last, unfinished assistant message, continued through `continue_final_message` and
//!   `add_generation_prompt` as vLLM and SGLang have them; other servers mostly ignore both, so leave a card's
//!   `think_prefix` empty for those, and for templates that open the thinking themselves.
//! - Raw tags: `skip_special_tokens` is left alone, because `<think>` and `<tool_call>` are ordinary added tokens in
//!   Qwen's tokenizers, and the end-of-turn token must not become text.
//! - What the whole output must be is a `response_format`, as OpenAI has it. vLLM and SGLang hold what they generate to it, not
//!   the prefix they continue.
//! - No `paravt` field: another paravt runs its agent only for videos, and we send frames; strict servers
//!   (`transformers serve`) refuse fields they don't know. For the same reason nothing is sent that was not asked for, and
//!   no `continuous_usage_stats`, which only vLLM and SGLang have: the counts come at the end.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::engine::{Constraint, GenerateRequest, Grammar, Sampling};
use crate::types::{Part, Turn};

#[derive(Debug, Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<Message<'a>>,
    stream: bool,
    stream_options: StreamOptions,
    max_tokens: u32,
    #[serde(flatten)]
    sampling: Options<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_format: Option<Format<'a>>,
    #[serde(flatten)]
    continued: Option<Continued>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Format<'a> {
    JsonObject,
    JsonSchema { json_schema: Schema<'a> },
}

#[derive(Debug, Serialize)]
struct Schema<'a> {
    name: &'static str,
    schema: &'a RawValue,
    strict: bool,
}

/// Whether upstreams have a word for this constraint: JSON alone, over all that is generated after this prefix.
pub(super) fn can_hold(constraint: &Constraint, prefix: &str) -> bool {
    let from_the_first = match &constraint.after {
        Some(after) => prefix.ends_with(after.as_str()),
        None => prefix.is_empty(),
    };
    from_the_first
        && constraint.then.is_none()
        && matches!(constraint.grammar, Grammar::JsonSchema(_) | Grammar::JsonObject)
}

fn format(sampling: &Sampling) -> Result<Option<Format<'_>>, serde_json::Error> {
    Ok(match sampling.constraint.as_ref().map(|constraint| &constraint.grammar) {
        Some(Grammar::JsonSchema(schema)) => {
            let schema = serde_json::from_str(schema)?;
            Some(Format::JsonSchema { json_schema: Schema { name: "answer", schema, strict: true } })
        }
        Some(Grammar::JsonObject) => Some(Format::JsonObject),
        Some(Grammar::Regex(_) | Grammar::Lark(_)) | None => None,
    })
}

#[derive(Debug, Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Debug, Serialize)]
struct Continued {
    continue_final_message: bool,
    add_generation_prompt: bool,
}

#[derive(Debug, Serialize)]
struct Message<'a> {
    role: &'static str,
    content: Content<'a>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<Piece<'a>>),
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Piece<'a> {
    Text { text: Cow<'a, str> },
    ImageUrl { image_url: ImageUrl<'a> },
}

#[derive(Debug, Serialize)]
struct ImageUrl<'a> {
    url: &'a str,
}

#[derive(Debug, Serialize)]
struct Options<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frequency_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    presence_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repetition_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    ignore_eos: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<u32>,
}

impl<'a> Options<'a> {
    fn of(sampling: &'a Sampling) -> Self {
        Self {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            frequency_penalty: sampling.frequency_penalty,
            presence_penalty: sampling.presence_penalty,
            repetition_penalty: sampling.repetition_penalty,
            // Upstreams hold seeds in signed 64 bits. The API's are shorter anyway.
            seed: sampling.seed.map(|seed| seed & i64::MAX as u64),
            stop: &sampling.stop,
            ignore_eos: sampling.ignore_eos.then_some(true),
            logprobs: sampling.logprobs.map(|_| true),
            top_logprobs: sampling.logprobs,
        }
    }
}

/// The body as JSON. `frames` are the data URLs of all frames of all turns, in order.
pub(super) fn body(model: &str, request: &GenerateRequest, frames: &[Arc<str>]) -> Result<Vec<u8>, serde_json::Error> {
    let mut urls = frames.iter().map(AsRef::as_ref);
    let mut messages: Vec<_> = request.turns.iter().map(|turn| message(turn, &mut urls)).collect();
    let continued = (!request.prefix.is_empty()).then(|| {
        messages.push(Message { role: "assistant", content: Content::Text(Cow::Borrowed(&request.prefix)) });
        Continued { continue_final_message: true, add_generation_prompt: false }
    });
    serde_json::to_vec(&Body {
        model,
        messages,
        stream: true,
        stream_options: StreamOptions { include_usage: true },
        max_tokens: request.sampling.max_tokens,
        sampling: Options::of(&request.sampling),
        response_format: format(&request.sampling)?,
        continued,
    })
}

fn message<'a>(turn: &'a Turn, urls: &mut impl Iterator<Item = &'a str>) -> Message<'a> {
    let content = match turn.parts.as_slice() {
        [Part::Text(text)] => Content::Text(plain(text)),
        parts => {
            let mut pieces = Vec::with_capacity(parts.len());
            for part in parts {
                if let Part::Text(text) = part {
                    pieces.push(Piece::Text { text: plain(text) });
                }
                let images = urls.by_ref().take(part.frames().len());
                pieces.extend(images.map(|url| Piece::ImageUrl { image_url: ImageUrl { url } }));
            }
            Content::Parts(pieces)
        }
    };
    Message { role: turn.role.name(), content }
}

/// Keeps text from being read as special tokens: upstreams tokenize `<|im_end|>` and `<|image_pad|>` wherever they
/// stand, so a space is put behind the `<`.
fn plain(text: &str) -> Cow<'_, str> {
    let special = |rest: &str| {
        let name = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
        name.starts_with("|>")
    };
    let mut clean = String::new();
    let mut done = 0;
    for (at, mark) in text.match_indices("<|") {
        if special(&text[at + mark.len()..]) {
            clean.push_str(&text[done..at]);
            clean.push_str("< |");
            done = at + mark.len();
        }
    }
    if done == 0 {
        return Cow::Borrowed(text);
    }
    clean.push_str(&text[done..]);
    Cow::Owned(clean)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::engine::{SessionKey, Speaker};
    use crate::types::{Frame, FrameSize, Role};

    fn request(turns: Vec<Turn>, prefix: &str, sampling: Sampling) -> GenerateRequest {
        let session = SessionKey("s".into());
        let (prefix, speaker) = (prefix.to_owned(), Speaker::Main);
        GenerateRequest { turns, prefix, sampling, session, speaker, seat: None, deadline: None, trace: None }
    }

    fn json(request: &GenerateRequest, frames: &[Arc<str>]) -> serde_json::Value {
        serde_json::from_slice(&body("qwen", request, frames).expect("JSON")).expect("JSON")
    }

    #[test]
    fn a_form_of_the_answer_is_a_response_format() {
        let turns = || vec![Turn::text(Role::User, "hi")];
        let with = |grammar| {
            let constraint = Some(Constraint { grammar, after: None, then: None });
            json(&request(turns(), "", Sampling { constraint, ..Sampling::default() }), &[])["response_format"].clone()
        };
        let schema = r#"{"type":"object","properties":{"z":{},"a":{}}}"#;
        let expected =
            format!(r#"{{"type":"json_schema","json_schema":{{"name":"answer","schema":{schema},"strict":true}}}}"#);
        assert_eq!(with(Grammar::JsonSchema(schema.to_owned())).to_string(), expected);
        assert_eq!(with(Grammar::JsonObject).to_string(), r#"{"type":"json_object"}"#);
        let regex = Constraint { grammar: Grammar::Regex("a".to_owned()), after: None, then: None };
        let inside = Constraint { grammar: Grammar::JsonObject, after: Some("<answer>".to_owned()), then: None };
        assert!(!can_hold(&regex, "") && !can_hold(&inside, "") && !can_hold(&inside, "<answer>x"));
        assert!(can_hold(&inside, "hm</think>\n<answer>"));
        assert_eq!(json(&request(turns(), "", Sampling::default()), &[]).get("response_format"), None);
    }

    #[test]
    fn frames_and_times_stay_interleaved_and_the_prefix_is_continued() {
        let frame = || Part::Frame(Frame { time: None, size: FrameSize { width: 1, height: 1 }, rgb: Bytes::new() });
        let text = |text: &str| Part::Text(text.to_owned());
        let parts = vec![text("<0.0 seconds>"), frame(), text("<1.0 seconds>"), frame(), text("What?")];
        let turns = vec![Turn::text(Role::System, "Look."), Turn { role: Role::User, parts }];
        let sampling = Sampling { max_tokens: 7, ..Sampling::default() };
        insta::assert_json_snapshot!(json(&request(turns, "<think>\n", sampling), &["data:a".into(), "data:b".into()]), @r#"
        {
          "model": "qwen",
          "messages": [
            {
              "role": "system",
              "content": "Look."
            },
            {
              "role": "user",
              "content": [
                {
                  "type": "text",
                  "text": "<0.0 seconds>"
                },
                {
                  "type": "image_url",
                  "image_url": {
                    "url": "data:a"
                  }
                },
                {
                  "type": "text",
                  "text": "<1.0 seconds>"
                },
                {
                  "type": "image_url",
                  "image_url": {
                    "url": "data:b"
                  }
                },
                {
                  "type": "text",
                  "text": "What?"
                }
              ]
            },
            {
              "role": "assistant",
              "content": "<think>\n"
            }
          ],
          "stream": true,
          "stream_options": {
            "include_usage": true
          },
          "max_tokens": 7,
          "continue_final_message": true,
          "add_generation_prompt": false
        }
        "#);
    }

    #[test]
    fn what_was_asked_for_is_passed_on_and_nothing_else() {
        let sampling = Sampling {
            temperature: Some(0.5),
            top_p: Some(0.9),
            top_k: Some(20),
            min_p: Some(0.1),
            frequency_penalty: Some(0.2),
            presence_penalty: Some(0.3),
            repetition_penalty: Some(1.1),
            seed: Some(u64::MAX),
            stop: vec!["<tool_response>".to_owned()],
            max_tokens: 9,
            ignore_eos: true,
            logprobs: Some(2),
            constraint: None,
        };
        insta::assert_json_snapshot!(json(&request(vec![], "", sampling), &[]), @r#"
        {
          "model": "qwen",
          "messages": [],
          "stream": true,
          "stream_options": {
            "include_usage": true
          },
          "max_tokens": 9,
          "temperature": 0.5,
          "top_p": 0.9,
          "top_k": 20,
          "min_p": 0.1,
          "frequency_penalty": 0.2,
          "presence_penalty": 0.3,
          "repetition_penalty": 1.1,
          "seed": 9223372036854775807,
          "stop": [
            "<tool_response>"
          ],
          "ignore_eos": true,
          "logprobs": true,
          "top_logprobs": 2
        }
        "#);
    }

    #[test]
    fn special_tokens_in_text_are_defused() {
        for (text, expected) in [
            ("a <|im_end|> b", "a < |im_end|> b"),
            ("<|a|><|b|>", "< |a|>< |b|>"),
            ("<|<|im_end|>im_end|>", "<|< |im_end|>im_end|>"),
            ("<| not one |> a<|b", "<| not one |> a<|b"),
            ("<think> and <12.0 seconds>", "<think> and <12.0 seconds>"),
        ] {
            assert_eq!(plain(text), expected);
        }
    }
}
