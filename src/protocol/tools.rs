//! Functions of the caller's own, and the form an answer must have.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::field::{Field, Fields, Invalid};

/// OpenAI's bounds.
const MAX_TOOLS: usize = 128;
const MAX_NAME: usize = 64;
/// Most bytes of a description, and of a schema as JSON: both go into the prompt, or into a grammar.
const MAX_DESCRIPTION: usize = 16 << 10;
const MAX_SCHEMA: usize = 64 << 10;

/// A function of the caller's own. The model may call it; the caller runs it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct Tool {
    /// `function`.
    #[serde(rename = "type")]
    pub(crate) kind: FunctionKind,
    /// The function.
    pub(crate) function: FunctionTool,
}

/// A function.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct FunctionTool {
    /// Its name: letters, digits, `_` and `-`.
    #[schema(pattern = "^[a-zA-Z0-9_-]{1,64}$")]
    pub(crate) name: String,
    /// What it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) description: Option<String>,
    /// JSON schema of its arguments.
    #[schema(value_type = Option<Object>)]
    pub(crate) parameters: Map<String, Value>,
    /// Accepted; arguments are held to the schema where `tool_choice` forces the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) strict: Option<bool>,
}

/// Whether windows may be watched and tools called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum ToolChoice {
    /// In general.
    Mode(ToolMode),
    /// This function of the caller's must be called, after the windows, if any.
    Named(NamedTool),
}

/// Whether windows may be watched and tools called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ToolMode {
    /// Neither.
    None,
    /// The model decides.
    Auto,
    /// A call of one of the caller's tools, after the windows, if any; where it has no tools, at least one window.
    Required,
}

/// A function by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct NamedTool {
    /// `function`.
    #[serde(rename = "type")]
    pub(crate) kind: FunctionKind,
    /// Which.
    pub(crate) function: FunctionName,
}

/// A function's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct FunctionName {
    /// One of `tools`.
    pub(crate) name: String,
}

/// The one kind of tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FunctionKind {
    /// A function.
    Function,
}

/// A call that the model made: in an answer, and in later requests in the assistant's message.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct ToolCall {
    /// Names the call, for the message with its result.
    pub(crate) id: String,
    /// `function`.
    #[serde(rename = "type")]
    pub(crate) kind: FunctionKind,
    /// What is called.
    pub(crate) function: FunctionCall,
}

/// What is called, and with what.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct FunctionCall {
    /// The function.
    pub(crate) name: String,
    /// A JSON object, as text.
    #[serde(serialize_with = "as_text")]
    #[schema(value_type = String)]
    pub(crate) arguments: Map<String, Value>,
}

fn as_text<S: serde::Serializer>(arguments: &Map<String, Value>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&serde_json::to_string(arguments).map_err(serde::ser::Error::custom)?)
}

/// What the answer must be. It constrains the answer, not the thinking and the windows before it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ResponseFormat {
    /// Text.
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON of a schema.
    JsonSchema {
        /// The schema, and its name.
        json_schema: JsonSchemaFormat,
    },
}

/// A schema.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct JsonSchemaFormat {
    /// Accepted, and without effect.
    #[schema(pattern = "^[a-zA-Z0-9_-]{1,64}$")]
    pub(crate) name: String,
    /// JSON schema. Without one, any JSON object.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, nullable = false)]
    pub(crate) schema: Option<Map<String, Value>>,
    /// Accepted: the answer is always held to the schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) strict: Option<bool>,
}

/// Most bytes of all tools together: they are a part of every turn's prompt.
const MAX_ALL: usize = 256 << 10;

/// Reads `tools`.
pub(super) fn tools(field: Field) -> Result<Vec<Tool>, Invalid> {
    let path = field.path.clone();
    let tools: Vec<Tool> = field.list(0, MAX_TOOLS)?.into_iter().map(tool).collect::<Result<_, _>>()?;
    within(path, tools.iter().map(|tool| &tool.function))?;
    Ok(tools)
}

/// Checks what all tools take together.
pub(super) fn within<'a>(path: String, tools: impl Iterator<Item = &'a FunctionTool>) -> Result<(), Invalid> {
    let bytes = tools.map(|tool| serde_json::to_string(tool).map_or(0, |text| text.len())).sum::<usize>();
    if bytes > MAX_ALL { Err(Invalid::new(path, format!("must take at most {MAX_ALL} bytes as JSON"))) } else { Ok(()) }
}

fn tool(field: Field) -> Result<Tool, Invalid> {
    let mut fields = field.object()?;
    let kind = fields.need("type", kind)?;
    let mut function = fields.need("function", Field::object)?;
    Ok(Tool { kind, function: function_tool(&mut function)? })
}

/// Reads a function where its fields are.
pub(super) fn function_tool(fields: &mut Fields) -> Result<FunctionTool, Invalid> {
    Ok(FunctionTool {
        name: fields.need("name", name)?,
        description: fields.read("description", |field| field.bounded_string(MAX_DESCRIPTION))?,
        parameters: fields.read("parameters", schema)?.unwrap_or_default(),
        strict: fields.read("strict", Field::flag)?,
    })
}

fn kind(field: Field) -> Result<FunctionKind, Invalid> {
    field.choice(&[("function", FunctionKind::Function)])
}

fn schema(field: Field) -> Result<Map<String, Value>, Invalid> {
    let path = field.path.clone();
    let schema = field.object()?.into_map();
    let bytes = serde_json::to_string(&schema).map_or(usize::MAX, |text| text.len());
    if bytes > MAX_SCHEMA {
        return Err(Invalid::new(path, format!("must take at most {MAX_SCHEMA} bytes as JSON")));
    }
    Ok(schema)
}

/// Reads a function's name.
pub(super) fn name(field: Field) -> Result<String, Invalid> {
    let path = field.path.clone();
    let name = field.string()?;
    let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(known) {
        return Ok(name);
    }
    Err(Invalid::new(path, format!("must be 1 to {MAX_NAME} letters, digits, _ and -")))
}

/// Reads `tool_choice` of chat completions.
pub(super) fn tool_choice(field: Field) -> Result<ToolChoice, Invalid> {
    if field.is_string() {
        return tool_mode(field).map(ToolChoice::Mode);
    }
    let mut fields = field.object()?;
    let kind = fields.need("type", kind)?;
    let name = fields.need("function", Field::object)?.need("name", name)?;
    Ok(ToolChoice::Named(NamedTool { kind, function: FunctionName { name } }))
}

/// Reads a `tool_choice` that is a word.
pub(super) fn tool_mode(field: Field) -> Result<ToolMode, Invalid> {
    field.choice(&[("none", ToolMode::None), ("auto", ToolMode::Auto), ("required", ToolMode::Required)])
}

/// Reads `tool_calls` of an assistant's message.
pub(super) fn tool_calls(field: Field) -> Result<Vec<ToolCall>, Invalid> {
    let call = |field: Field| {
        let mut fields = field.object()?;
        let id = fields.need("id", |field| field.bounded_string(MAX_ID))?;
        let kind = fields.need("type", kind)?;
        let mut function = fields.need("function", Field::object)?;
        let name = function.need("name", name)?;
        Ok(ToolCall { id, kind, function: FunctionCall { name, arguments: function.need("arguments", arguments)? } })
    };
    field.list(0, MAX_TOOLS)?.into_iter().map(call).collect()
}

/// Longest name of a call.
pub(super) const MAX_ID: usize = 128;

/// Reads arguments: a JSON object as text.
pub(super) fn arguments(field: Field) -> Result<Map<String, Value>, Invalid> {
    let path = field.path.clone();
    let text = field.string()?;
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(&text).map_err(|_| Invalid::new(path, "must hold a JSON object as text"))
}

/// Reads `response_format`.
pub(super) fn response_format(field: Field) -> Result<ResponseFormat, Invalid> {
    #[derive(Clone, Copy)]
    enum Kind {
        Text,
        Object,
        Schema,
    }
    let mut fields = field.object()?;
    let kinds = [("text", Kind::Text), ("json_object", Kind::Object), ("json_schema", Kind::Schema)];
    match fields.need("type", |field| field.choice(&kinds))? {
        Kind::Text => Ok(ResponseFormat::Text),
        Kind::Object => Ok(ResponseFormat::JsonObject),
        Kind::Schema => {
            let mut inner = fields.need("json_schema", Field::object)?;
            Ok(ResponseFormat::JsonSchema { json_schema: json_schema(&mut inner)? })
        }
    }
}

/// Reads a schema and its name where they are.
pub(super) fn json_schema(fields: &mut Fields) -> Result<JsonSchemaFormat, Invalid> {
    Ok(JsonSchemaFormat {
        name: fields.need("name", name)?,
        schema: fields.read("schema", schema)?,
        strict: fields.read("strict", Field::flag)?,
    })
}
