//! The request of `POST /v1/responses`, read into what a chat completion is asked with.
//!
//! The server keeps nothing between requests: `previous_response_id`, `conversation` and `background` are refused, and the
//! whole conversation is sent in `input`, as with `store: false`.

mod event;
mod input;
mod object;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

pub(crate) use event::{ItemPart, ItemPlace, PartPlace, ResponseStreamEvent, Sequenced};
pub(crate) use object::{
    FunctionCallItem, IncompleteDetails, InputDetails, ItemStatus, MessageItem, OutputDetails, OutputItem, OutputText,
    ReasoningConfig, ReasoningItem, ReasoningText, ResponseFailure, ResponseObject, ResponseStatus, ResponseUsage,
    TextConfig, TextFormat, WindowError, WindowItem,
};

use super::chat::{ChatCompletionRequest, MAX_TOKENS, MediaIo, ParavtOptions, SamplingFields, VideoSampling};
use super::content::{Content, Message, MessageRole};
use super::field::{Field, Fields, Invalid};
use super::tools::{
    FunctionKind, FunctionName, FunctionTool, NamedTool, ResponseFormat, Tool, ToolChoice, function_tool, json_schema,
    name, tool_mode, within,
};

const MAX_TOOLS: usize = 128;
/// Most bytes of `metadata` as JSON; OpenAI's 16 pairs of 64 and 512 characters are less.
const MAX_METADATA: usize = 16 << 10;

/// A question.
#[derive(Debug, Clone)]
pub(crate) struct ResponsesRequest {
    /// What it comes to.
    pub(crate) chat: ChatCompletionRequest,
    /// What the answer repeats.
    pub(crate) echo: Echo,
}

/// What an answer repeats of its request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Echo {
    /// `instructions`.
    pub(crate) instructions: Option<String>,
    /// `metadata`.
    pub(crate) metadata: Map<String, Value>,
    /// `max_output_tokens`.
    pub(crate) max_output_tokens: Option<u32>,
    /// `parallel_tool_calls`.
    pub(crate) parallel_tool_calls: bool,
    /// `top_logprobs`.
    pub(crate) top_logprobs: u32,
    /// `tools`.
    pub(crate) tools: Vec<ResponseTool>,
    /// `tool_choice`.
    pub(crate) tool_choice: Value,
    /// `text.format`.
    pub(crate) format: TextFormat,
    /// `user`.
    pub(crate) user: Option<String>,
}

/// A question. What is not listed is accepted and has no effect; `previous_response_id`, `conversation`, `background` and
/// `prompt` are refused: the server keeps nothing between requests.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"model": "paravt", "input": "Say hello.", "max_output_tokens": 16}))]
pub(crate) struct ResponsesBody {
    /// Name of the model card, or `paravt`, or empty for the one there is.
    #[schema(value_type = Option<String>)]
    model: String,
    /// A question, or the conversation: messages, calls of the caller's tools and what they gave. Earlier output items can be
    /// sent back as they came.
    input: input::Input,
    /// Instructions. They follow the model card's own.
    instructions: Option<String>,
    /// How to choose tokens.
    #[serde(flatten)]
    sampling: SamplingFields,
    /// Longest answer in tokens, as `max_tokens` of chat completions.
    #[schema(minimum = 1)]
    max_output_tokens: Option<u32>,
    /// Answer as server-sent events.
    stream: Option<bool>,
    /// The answer's form.
    text: Option<RequestText>,
    /// Functions of the caller's own.
    #[schema(max_items = 128)]
    tools: Option<Vec<ResponseTool>>,
    /// `none`, `auto`, `required`, or `{"type": "function", "name": …}`.
    #[schema(value_type = Option<Value>)]
    tool_choice: Option<Value>,
    /// `false`: at most one call of the caller's tools in an answer.
    parallel_tool_calls: Option<bool>,
    /// `message.output_text.logprobs` asks for log-probabilities; all else is without effect.
    include: Option<Vec<String>>,
    /// Of so many other tokens at each place.
    #[schema(minimum = 0, maximum = 20)]
    top_logprobs: Option<u32>,
    /// What paravt adds. `events` and `thumbnails` are for chat completions: here windows are output items.
    paravt: Option<ParavtOptions>,
    /// As in chat completions.
    mm_processor_kwargs: Option<VideoSampling>,
    /// As in chat completions.
    media_io_kwargs: Option<MediaIo>,
    /// Comes back with the answer.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
    /// Names the end user. Comes back with the answer.
    #[schema(max_length = 512)]
    user: Option<String>,
    /// Accepted: nothing is stored.
    store: Option<bool>,
}

/// The answer's form, as it is asked for.
#[derive(Serialize, ToSchema)]
pub(crate) struct RequestText {
    /// Its form; text by default.
    format: Option<TextFormat>,
}

/// A function of the caller's own, with its fields beside its type.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct ResponseTool {
    /// `function`.
    #[serde(rename = "type")]
    pub(crate) kind: FunctionKind,
    /// The function.
    #[serde(flatten)]
    pub(crate) function: FunctionTool,
}

impl ResponsesRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// [`Invalid`] for the first field that is missing, wrong, or not supported.
    pub(crate) fn read(body: Value) -> Result<Self, Invalid> {
        let mut fields = Fields::root(body)?;
        refuse_what_is_kept(&mut fields)?;
        let instructions = fields.read("instructions", Field::string)?;
        let mut messages = fields.need("input", input::messages)?;
        if let Some(text) = &instructions {
            let (role, content) = (MessageRole::System, Content::Text(text.clone()));
            messages.insert(0, Message::said("instructions".to_owned(), role, content));
        }
        let max_output_tokens = fields.read("max_output_tokens", |field| field.count(1, MAX_TOKENS))?;
        let sampling = SamplingFields::read(&mut fields)?;
        let format = fields.read("text", text_format)?.flatten().unwrap_or_default();
        let tools = fields.read("tools", tools)?.unwrap_or_default();
        let tool_choice = fields.read("tool_choice", tool_choice)?;
        let parallel_tool_calls = fields.read("parallel_tool_calls", Field::flag)?;
        let include =
            fields.read("include", |field| field.list(0, MAX_TOOLS)?.into_iter().map(Field::string).collect())?;
        let include: Vec<String> = include.unwrap_or_default();
        let top_logprobs = fields.read("top_logprobs", |field| field.count(0, 20))?;
        let logprobs = include.iter().any(|wish| wish == "message.output_text.logprobs");
        let metadata = fields.read("metadata", |field| {
            let path = field.path.clone();
            let map = field.object()?.into_map();
            let bytes = serde_json::to_string(&map).map_or(usize::MAX, |text| text.len());
            if bytes > MAX_METADATA { Err(Invalid::new(path, "is too large")) } else { Ok(map) }
        })?;
        let user = fields.read("user", |field| field.bounded_string(512))?;
        fields.read("store", Field::flag)?;
        let paravt = fields.read("paravt", ParavtOptions::read)?.unwrap_or_default();
        if paravt.events || paravt.thumbnails {
            return Err(Invalid::new("paravt.events", "is for chat completions: here windows are output items"));
        }
        let echo = Echo {
            instructions,
            metadata: metadata.unwrap_or_default(),
            max_output_tokens,
            parallel_tool_calls: parallel_tool_calls.unwrap_or(true),
            top_logprobs: top_logprobs.unwrap_or_default(),
            tool_choice: echoed(tool_choice.as_ref()),
            format: format.clone(),
            tools: tools.clone(),
            user: user.clone(),
        };
        let function = |tool: ResponseTool| Tool { kind: tool.kind, function: tool.function };
        let chat = ChatCompletionRequest {
            model: fields.read("model", Field::string)?.unwrap_or_default(),
            messages,
            sampling: SamplingFields { max_completion_tokens: max_output_tokens, ..sampling },
            stream: fields.read("stream", Field::flag)?.unwrap_or_default(),
            stream_options: None,
            n: 1,
            logprobs,
            top_logprobs: top_logprobs.filter(|_| logprobs),
            response_format: Some(format.into()),
            tools: tools.into_iter().map(function).collect(),
            tool_choice,
            parallel_tool_calls,
            continue_final_message: false,
            add_generation_prompt: None,
            paravt,
            mm_processor_kwargs: fields.read("mm_processor_kwargs", VideoSampling::read_one)?,
            media_io_kwargs: fields.read("media_io_kwargs", MediaIo::read)?,
            user,
            metadata: None,
        };
        Ok(Self { chat, echo })
    }
}

/// What needs a memory of earlier requests.
fn refuse_what_is_kept(fields: &mut Fields) -> Result<(), Invalid> {
    for name in ["previous_response_id", "conversation", "background", "prompt"] {
        if let Some(field) = fields.take(name).filter(|field| !field.asks_nothing()) {
            return Err(Invalid {
                problem: "is not supported: this server keeps nothing between requests; send the conversation in input"
                    .to_owned(),
                ..Invalid::not_yet(field.path)
            });
        }
    }
    Ok(())
}

fn tools(field: Field) -> Result<Vec<ResponseTool>, Invalid> {
    let tool = |field: Field| {
        let mut fields = field.object()?;
        let type_path = fields.path("type");
        let kind = fields.need("type", Field::string)?;
        if kind != "function" {
            // Tools that OpenAI runs itself.
            return Err(Invalid::not_yet(type_path));
        }
        Ok(ResponseTool { kind: FunctionKind::Function, function: function_tool(&mut fields)? })
    };
    let path = field.path.clone();
    let tools: Vec<ResponseTool> = field.list(0, MAX_TOOLS)?.into_iter().map(tool).collect::<Result<_, _>>()?;
    within(path, tools.iter().map(|tool| &tool.function))?;
    Ok(tools)
}

fn tool_choice(field: Field) -> Result<ToolChoice, Invalid> {
    if field.is_string() {
        return tool_mode(field).map(ToolChoice::Mode);
    }
    let mut fields = field.object()?;
    let type_path = fields.path("type");
    if fields.need("type", Field::string)? != "function" {
        return Err(Invalid::not_yet(type_path));
    }
    let name = fields.need("name", name)?;
    Ok(ToolChoice::Named(NamedTool { kind: FunctionKind::Function, function: FunctionName { name } }))
}

fn echoed(choice: Option<&ToolChoice>) -> Value {
    match choice {
        None => Value::from("auto"),
        Some(ToolChoice::Mode(mode)) => serde_json::to_value(mode).unwrap_or_default(),
        Some(ToolChoice::Named(named)) => serde_json::json!({"type": "function", "name": named.function.name}),
    }
}

fn text_format(field: Field) -> Result<Option<TextFormat>, Invalid> {
    #[derive(Clone, Copy)]
    enum Kind {
        Text,
        Object,
        Schema,
    }
    field.object()?.read("format", |field| {
        let mut fields = field.object()?;
        let kinds = [("text", Kind::Text), ("json_object", Kind::Object), ("json_schema", Kind::Schema)];
        Ok(match fields.need("type", |field| field.choice(&kinds))? {
            Kind::Text => TextFormat::Text,
            Kind::Object => TextFormat::JsonObject,
            Kind::Schema => TextFormat::JsonSchema(json_schema(&mut fields)?),
        })
    })
}

impl From<TextFormat> for ResponseFormat {
    fn from(format: TextFormat) -> Self {
        match format {
            TextFormat::Text => Self::Text,
            TextFormat::JsonObject => Self::JsonObject,
            TextFormat::JsonSchema(json_schema) => Self::JsonSchema { json_schema },
        }
    }
}

#[cfg(test)]
mod tests;
