//! The request of `POST /v1/chat/completions`.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::content::{MAX_FRAMES, Message, fps, messages};
use super::field::{Field, Fields, Invalid};
use super::tools::{ResponseFormat, Tool, ToolChoice, response_format, tool_choice, tools};
use crate::config::Dispatch;

/// Most characters of `user`.
const MAX_USER: usize = 512;
/// Most texts in `stop`, as OpenAI allows, and the longest.
const MAX_STOPS: usize = 4;
const MAX_STOP_BYTES: usize = 256;
/// More tokens than any answer has: the largest number of the document's `int32`.
pub(super) const MAX_TOKENS: u32 = i32::MAX as u32;
/// OpenAI's bounds of `n` and `top_logprobs`.
const MAX_CHOICES: u32 = 128;
const MAX_LOGPROBS: u32 = 20;

/// A question. Fields that are not listed are accepted and have no effect, save those of OpenAI's that would change the
/// answer and that paravt can't honour (`functions`, `logit_bias`): these are refused.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(example = json!({"model": "paravt", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}))]
pub(crate) struct ChatCompletionRequest {
    /// Name of the model card, or `paravt`, or empty for the one there is.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub(crate) model: String,
    /// The conversation. The last message is the user's; with `continue_final_message`, the assistant's.
    #[schema(min_items = 1, max_items = 256)]
    pub(crate) messages: Vec<Message>,
    /// How to choose tokens.
    #[serde(flatten)]
    pub(crate) sampling: SamplingFields,
    /// Answer as server-sent events.
    #[schema(value_type = Option<bool>)]
    pub(crate) stream: bool,
    /// What the stream holds.
    pub(crate) stream_options: Option<StreamOptions>,
    /// How many answers, each from an episode of its own. With a `seed`, each has the next one.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 128)]
    pub(crate) n: u32,
    /// Give the log-probabilities of the answer's tokens, where the engine can.
    #[schema(value_type = Option<bool>)]
    pub(crate) logprobs: bool,
    /// And of so many others at each place. Needs `logprobs`.
    #[schema(minimum = 0, maximum = 20)]
    pub(crate) top_logprobs: Option<u32>,
    /// What the answer must be, where the engine can hold it to that.
    pub(crate) response_format: Option<ResponseFormat>,
    /// Functions of the caller's own. `crop_video` is the agent's.
    #[schema(value_type = Option<Vec<Tool>>, max_items = 128)]
    pub(crate) tools: Vec<Tool>,
    /// Whether windows of the video may (`auto`), may not (`none`), or must (`required`) be watched, and tools called.
    pub(crate) tool_choice: Option<ToolChoice>,
    /// `false`: at most one call of the caller's tools in an answer.
    pub(crate) parallel_tool_calls: Option<bool>,
    /// Goes on where the last message, text of the assistant's, breaks off, as vLLM does: one plain completion, without
    /// windows. What that message says is not repeated.
    #[schema(value_type = Option<bool>)]
    pub(crate) continue_final_message: bool,
    /// The opposite of `continue_final_message`, as vLLM takes it.
    pub(crate) add_generation_prompt: Option<bool>,
    /// What paravt adds.
    #[schema(value_type = Option<ParavtOptions>)]
    pub(crate) paravt: ParavtOptions,
    /// How videos are sampled, as vLLM takes it. `fps` and `num_frames` exclude each other. A part's own fields win.
    pub(crate) mm_processor_kwargs: Option<VideoSampling>,
    /// How videos are read, as vLLM takes it. `mm_processor_kwargs` wins.
    pub(crate) media_io_kwargs: Option<MediaIo>,
    /// Names the end user. Accepted, and without effect.
    #[schema(max_length = 512)]
    pub(crate) user: Option<String>,
    /// Accepted, and without effect.
    #[schema(value_type = Option<Object>)]
    pub(crate) metadata: Option<()>,
}

/// How to choose tokens. What is not given is the model card's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct SamplingFields {
    /// 0 is greedy.
    #[schema(minimum = 0.0, maximum = 2.0)]
    pub(crate) temperature: Option<f64>,
    /// Nucleus mass.
    #[schema(exclusive_minimum = 0.0, maximum = 1.0)]
    pub(crate) top_p: Option<f64>,
    /// Number of candidates; 0 or -1: all.
    #[schema(value_type = Option<i32>, minimum = -1)]
    pub(crate) top_k: Option<u32>,
    /// Candidates below this share of the best one are dropped.
    #[schema(minimum = 0.0, maximum = 1.0)]
    pub(crate) min_p: Option<f64>,
    /// Against repeating tokens, by count.
    #[schema(minimum = -2.0, maximum = 2.0)]
    pub(crate) frequency_penalty: Option<f64>,
    /// Against repeating tokens at all.
    #[schema(minimum = -2.0, maximum = 2.0)]
    pub(crate) presence_penalty: Option<f64>,
    /// Above 1 against repeating tokens, 1 is none.
    #[schema(exclusive_minimum = 0.0, maximum = 10.0)]
    pub(crate) repetition_penalty: Option<f64>,
    /// Same seed, same text, where the engine can. Its lower 53 bits count.
    #[schema(value_type = Option<i64>)]
    pub(crate) seed: Option<u64>,
    /// Texts that end the generation.
    #[schema(value_type = Option<Stop>)]
    pub(crate) stop: Vec<String>,
    /// Longest answer in tokens: in an episode thinking and calls have the card's budget, in a plain completion they count too.
    /// At most, and by default, as many as the model card allows a turn.
    #[schema(minimum = 1)]
    pub(crate) max_tokens: Option<u32>,
    /// OpenAI's newer name for `max_tokens`; wins over it.
    #[schema(minimum = 1)]
    pub(crate) max_completion_tokens: Option<u32>,
    /// Keep going at the end-of-text token, where the engine can. Only in plain completions: an episode's turns end where their
    /// calls do.
    #[schema(value_type = Option<bool>)]
    pub(crate) ignore_eos: bool,
}

/// One text, or up to four.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes in the OpenAPI document what `stop` reads")]
pub(crate) enum Stop {
    /// One.
    One(String),
    /// Up to four.
    Many(Vec<String>),
}

/// What a stream holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct StreamOptions {
    /// One more chunk at the end, with the usage and no choices.
    #[schema(value_type = Option<bool>)]
    pub(crate) include_usage: bool,
}

/// What paravt adds to OpenAI's request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ParavtOptions {
    /// `false`: one plain completion, no windows. By default `true` when there is a video.
    pub(crate) agent: Option<bool>,
    /// All windows of a burst at once, or one after another.
    pub(crate) dispatch: Option<Dispatch>,
    /// Fewer turns with windows than the model card allows.
    #[schema(minimum = 0, maximum = 1000)]
    pub(crate) max_turns: Option<u32>,
    /// Fewer windows a turn than the model card allows.
    #[schema(minimum = 1, maximum = 1000)]
    pub(crate) max_calls: Option<u32>,
    /// Chunks that tell what happens while it happens. Streams only.
    #[schema(value_type = Option<bool>)]
    pub(crate) events: bool,
    /// The whole story in the last object.
    #[schema(value_type = Option<bool>)]
    pub(crate) trace: bool,
    /// Events of frames bring these as small JPEG pictures (`data:` URLs). Needs `events`.
    #[schema(value_type = Option<bool>)]
    pub(crate) thumbnails: bool,
    /// The model's text as it is: thinking, calls and all other tags in `content`. Only for plain completions.
    #[schema(value_type = Option<bool>)]
    pub(crate) raw: bool,
}

/// Frames of each video.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct VideoSampling {
    /// Frames a second.
    #[schema(exclusive_minimum = 0.0, maximum = 60.0)]
    pub(crate) fps: Option<f64>,
    /// Frames in all; at most the model card's.
    #[schema(minimum = 1, maximum = 2048)]
    pub(crate) num_frames: Option<u32>,
}

/// vLLM's settings of its readers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct MediaIo {
    /// Of videos.
    pub(crate) video: Option<VideoSampling>,
}

impl ChatCompletionRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// [`Invalid`] for the first field that is missing, wrong, or not supported yet.
    pub(crate) fn read(body: Value) -> Result<Self, Invalid> {
        let mut fields = Fields::root(body)?;
        refuse_what_is_not_done(&mut fields)?;
        let logprobs = fields.read("logprobs", Field::flag)?.unwrap_or_default();
        let continued = fields.read("continue_final_message", Field::flag)?.unwrap_or_default();
        Ok(Self {
            model: fields.read("model", Field::string)?.unwrap_or_default(),
            messages: fields.need("messages", |field| messages(field, continued))?,
            continue_final_message: continued,
            add_generation_prompt: fields.read("add_generation_prompt", |field| {
                let path = field.path.clone();
                match field.flag()? {
                    opened if opened == continued => {
                        Err(Invalid::new(path, "must be the opposite of continue_final_message"))
                    }
                    opened => Ok(opened),
                }
            })?,
            sampling: SamplingFields::read(&mut fields)?,
            stream: fields.read("stream", Field::flag)?.unwrap_or_default(),
            stream_options: fields.read("stream_options", |field| {
                let include_usage = field.object()?.read("include_usage", Field::flag)?.unwrap_or_default();
                Ok(StreamOptions { include_usage })
            })?,
            n: fields.read("n", |field| field.count(1, MAX_CHOICES))?.unwrap_or(1),
            logprobs,
            top_logprobs: fields.read("top_logprobs", |field| {
                let path = field.path.clone();
                match field.count(0, MAX_LOGPROBS)? {
                    // Some clients send 0 where they mean nothing.
                    1.. if !logprobs => Err(Invalid::new(path, "needs logprobs to be true")),
                    count => Ok(count),
                }
            })?,
            response_format: fields.read("response_format", response_format)?,
            tools: fields.read("tools", tools)?.unwrap_or_default(),
            tool_choice: fields.read("tool_choice", tool_choice)?,
            parallel_tool_calls: fields.read("parallel_tool_calls", Field::flag)?,
            paravt: fields.read("paravt", ParavtOptions::read)?.unwrap_or_default(),
            mm_processor_kwargs: fields.read("mm_processor_kwargs", VideoSampling::read_one)?,
            media_io_kwargs: fields.read("media_io_kwargs", MediaIo::read)?,
            user: fields.read("user", |field| field.bounded_string(MAX_USER))?,
            metadata: fields.read("metadata", |field| field.object().map(|_| ()))?,
        })
    }
}

/// OpenAI's fields that change the answer and that paravt can't honour, where they ask for something.
fn refuse_what_is_not_done(fields: &mut Fields) -> Result<(), Invalid> {
    let asked = [
        // The forerunner of `tools`.
        ("functions", fields.read("functions", |field| Ok(!field.list(0, 128)?.is_empty()))?),
        ("logit_bias", fields.read("logit_bias", |field| Ok(!field.object()?.is_empty()))?),
    ];
    match asked.iter().find(|(_, asked)| *asked == Some(true)) {
        Some((name, _)) => Err(Invalid::not_yet(*name)),
        None => Ok(()),
    }
}

impl SamplingFields {
    pub(super) fn read(fields: &mut Fields) -> Result<Self, Invalid> {
        let penalty = |field: Field| field.number("a number from -2 to 2", |value| value.abs() <= 2.0);
        let tokens = |field: Field| field.count(1, MAX_TOKENS);
        Ok(Self {
            temperature: fields
                .read("temperature", |f| f.number("a number from 0 to 2", |value| (0.0..=2.0).contains(&value)))?,
            top_p: fields
                .read("top_p", |f| f.number("a number above 0 and at most 1", |value| value > 0.0 && value <= 1.0))?,
            top_k: fields
                .read("top_k", |f| f.integer(-1, i64::from(MAX_TOKENS)))?
                .and_then(|k| u32::try_from(k).ok())
                .filter(|k| *k > 0),
            min_p: fields.read("min_p", |f| f.number("a number from 0 to 1", |value| (0.0..=1.0).contains(&value)))?,
            frequency_penalty: fields.read("frequency_penalty", penalty)?,
            presence_penalty: fields.read("presence_penalty", penalty)?,
            repetition_penalty: fields.read("repetition_penalty", |f| {
                f.number("a number above 0 and at most 10", |value| value > 0.0 && value <= 10.0)
            })?,
            seed: fields.read("seed", Field::seed)?,
            stop: fields.read("stop", stop)?.unwrap_or_default(),
            max_tokens: fields.read("max_tokens", tokens)?,
            max_completion_tokens: fields.read("max_completion_tokens", tokens)?,
            ignore_eos: fields.read("ignore_eos", Field::flag)?.unwrap_or_default(),
        })
    }
}

fn stop(field: Field) -> Result<Vec<String>, Invalid> {
    let items = if field.is_string() { vec![field] } else { field.list(0, MAX_STOPS)? };
    items
        .into_iter()
        .map(|item| {
            let path = item.path.clone();
            let text = item.string()?;
            if (1..=MAX_STOP_BYTES).contains(&text.len()) {
                Ok(text)
            } else {
                Err(Invalid::new(path, format!("must be a string of 1 to {MAX_STOP_BYTES} bytes")))
            }
        })
        .collect()
}

impl ParavtOptions {
    pub(super) fn read(field: Field) -> Result<Self, Invalid> {
        let mut fields = field.object()?;
        Ok(Self {
            agent: fields.read("agent", Field::flag)?,
            dispatch: fields.read("dispatch", |field| {
                field.choice(&[("parallel", Dispatch::Parallel), ("sequential", Dispatch::Sequential)])
            })?,
            max_turns: fields.read("max_turns", |field| field.count(0, 1000))?,
            max_calls: fields.read("max_calls", |field| field.count(1, 1000))?,
            events: fields.read("events", Field::flag)?.unwrap_or_default(),
            trace: fields.read("trace", Field::flag)?.unwrap_or_default(),
            thumbnails: fields.read("thumbnails", Field::flag)?.unwrap_or_default(),
            raw: fields.read("raw", Field::flag)?.unwrap_or_default(),
        })
    }
}

impl MediaIo {
    pub(super) fn read(field: Field) -> Result<Self, Invalid> {
        Ok(Self { video: field.object()?.read("video", VideoSampling::read)? })
    }
}

impl VideoSampling {
    /// A rate or a number.
    pub(super) fn read_one(field: Field) -> Result<Self, Invalid> {
        let path = field.path.clone();
        match Self::read(field)? {
            Self { fps: Some(_), num_frames: Some(_) } => {
                Err(Invalid::new(path, "must hold fps or num_frames, not both"))
            }
            sampling => Ok(sampling),
        }
    }

    fn read(field: Field) -> Result<Self, Invalid> {
        let mut fields = field.object()?;
        Ok(Self {
            fps: fields.read("fps", fps)?,
            num_frames: fields.read("num_frames", |field| field.count(1, MAX_FRAMES))?,
        })
    }
}

#[cfg(test)]
mod tests;
