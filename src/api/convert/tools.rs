//! The caller's own tools, and the form of the answer: from the wire's words to the agent's.

use serde_json::Value;

use crate::agent::{AnswerForm, ClientTool, ToolUse};
use crate::engine::{Grammar, Supported};
use crate::protocol::Invalid;
use crate::protocol::tools::{ResponseFormat, Tool, ToolChoice, ToolMode};

/// The agent's own tool: a name the caller's can't have beside it.
const CROP_VIDEO: &str = "crop_video";

/// What a request says of tools and of the answer's form.
pub(super) struct Asked {
    pub(super) tools: Vec<Tool>,
    pub(super) choice: Option<ToolChoice>,
    pub(super) format: Option<ResponseFormat>,
    /// Whether it is an episode with windows.
    pub(super) agent: bool,
}

/// What the agent is asked.
#[derive(Debug, PartialEq)]
pub(super) struct Answering {
    pub(super) tools: ToolUse,
    pub(super) client_tools: Vec<ClientTool>,
    pub(super) form: AnswerForm,
}

impl Asked {
    /// Checks and puts together.
    ///
    /// # Errors
    /// [`Invalid`] for the first field that doesn't fit.
    pub(super) fn read(self, supported: Supported) -> Result<Answering, Invalid> {
        let format = format(self.format.as_ref(), supported)?;
        let mut names = self.tools.iter().map(|tool| tool.function.name.as_str()).enumerate();
        let twice = |(place, name): (usize, &str)| self.tools[..place].iter().any(|tool| tool.function.name == name);
        if let Some((place, name)) = names.clone().find(|named| twice(*named)) {
            let problem = format!("must not be {name:?}, which another tool is called");
            return Err(Invalid::new(format!("tools[{place}].function.name"), problem));
        }
        if let Some((place, _)) = names.clone().find(|(_, name)| self.agent && *name == CROP_VIDEO) {
            let problem =
                "must not be \"crop_video\", which is the agent's own tool (paravt.agent false leaves it out)";
            return Err(Invalid::new(format!("tools[{place}].function.name"), problem));
        }
        let has_tools = !self.tools.is_empty();
        let (tools, forced) = match &self.choice {
            None | Some(ToolChoice::Mode(ToolMode::Auto)) => (ToolUse::Auto, None),
            Some(ToolChoice::Mode(ToolMode::None)) => (ToolUse::None, None),
            Some(ToolChoice::Mode(ToolMode::Required)) if has_tools => (ToolUse::Auto, Some(AnswerForm::Call(None))),
            Some(ToolChoice::Mode(ToolMode::Required)) if self.agent => (ToolUse::Required, None),
            Some(ToolChoice::Mode(ToolMode::Required)) => {
                let problem = "must not be \"required\" without tools and without a video, or with paravt.agent false";
                return Err(Invalid::new("tool_choice", problem));
            }
            Some(ToolChoice::Named(named)) => {
                let place = names.find(|(_, name)| *name == named.function.name).map(|(place, _)| place);
                let place = place
                    .ok_or_else(|| Invalid::new("tool_choice.function.name", "must be the name of one of tools"))?;
                (ToolUse::Auto, Some(AnswerForm::Call(Some(place))))
            }
        };
        let form = match (format, forced) {
            (Some(_), Some(_)) => {
                return Err(Invalid::new("response_format", "must be text where tool_choice forces a call"));
            }
            (Some(grammar), None) => AnswerForm::Fits(grammar),
            (None, Some(call)) => call,
            (None, None) => AnswerForm::Free,
        };
        let silent = self.choice == Some(ToolChoice::Mode(ToolMode::None));
        let client_tools = if silent { Vec::new() } else { self.tools.into_iter().map(client_tool).collect() };
        Ok(Answering { tools, client_tools, form })
    }
}

fn client_tool(tool: Tool) -> ClientTool {
    let mut parameters = tool.function.parameters;
    // OpenAI: no parameters, no arguments.
    parameters.entry("type").or_insert_with(|| Value::from("object"));
    ClientTool { name: tool.function.name, description: tool.function.description, parameters }
}

fn format(format: Option<&ResponseFormat>, supported: Supported) -> Result<Option<Grammar>, Invalid> {
    let grammar = match format {
        None | Some(ResponseFormat::Text) => return Ok(None),
        Some(ResponseFormat::JsonObject) => Grammar::JsonObject,
        Some(ResponseFormat::JsonSchema { json_schema }) => match &json_schema.schema {
            None => Grammar::JsonObject,
            Some(schema) => Grammar::JsonSchema(Value::Object(schema.clone()).to_string()),
        },
    };
    if supported.constraint {
        return Ok(Some(grammar));
    }
    Err(super::not_honoured("response_format"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protocol::chat::ChatCompletionRequest;

    fn read(extra: Value, agent: bool, supported: Supported) -> Result<Answering, String> {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        let Value::Object(extra) = extra else { panic!("an object") };
        for (name, value) in extra {
            body[name] = value;
        }
        let request = ChatCompletionRequest::read(body).expect("readable");
        let asked = Asked { tools: request.tools, choice: request.tool_choice, format: request.response_format, agent };
        asked.read(supported).map_err(|invalid| invalid.param)
    }

    fn function(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
    }

    #[test]
    fn choices_and_forms_become_what_the_agent_knows() {
        let tools = json!([function("a"), function("b")]);
        let named = json!({"type": "function", "function": {"name": "b"}});
        for (choice, agent, expected) in [
            (json!(null), false, (ToolUse::Auto, 2, AnswerForm::Free)),
            (json!("none"), true, (ToolUse::None, 0, AnswerForm::Free)),
            (json!("required"), true, (ToolUse::Auto, 2, AnswerForm::Call(None))),
            (json!("required"), false, (ToolUse::Auto, 2, AnswerForm::Call(None))),
            (named, true, (ToolUse::Auto, 2, AnswerForm::Call(Some(1)))),
        ] {
            let read = read(json!({"tools": tools, "tool_choice": choice}), agent, Supported::ALL).expect("valid");
            assert_eq!((read.tools, read.client_tools.len(), read.form), expected, "{choice}");
        }
        let looks = read(json!({"tool_choice": "required"}), true, Supported::ALL).expect("valid");
        assert_eq!((looks.tools, looks.form), (ToolUse::Required, AnswerForm::Free));
        let schema = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}});
        let form = read(schema, true, Supported::ALL).expect("valid").form;
        assert_eq!(form, AnswerForm::Fits(Grammar::JsonSchema(r#"{"type":"object"}"#.to_owned())));
    }

    #[test]
    fn what_does_not_fit_together_is_named() {
        let named = |name: &str| json!({"type": "function", "function": {"name": name}});
        for (extra, agent, supported, param) in [
            (json!({"tools": [function("a"), function("a")]}), false, Supported::ALL, "tools[1].function.name"),
            (json!({"tools": [function("crop_video")]}), true, Supported::ALL, "tools[0].function.name"),
            (json!({"tool_choice": "required"}), false, Supported::ALL, "tool_choice"),
            (json!({"tool_choice": named("a")}), false, Supported::ALL, "tool_choice.function.name"),
            (json!({"response_format": {"type": "json_object"}}), false, Supported::NONE, "response_format"),
            (
                json!({"tools": [function("a")], "tool_choice": named("a"), "response_format": {"type": "json_object"}}),
                false,
                Supported::ALL,
                "response_format",
            ),
        ] {
            assert_eq!(read(extra.clone(), agent, supported), Err(param.to_owned()), "{extra}");
        }
        assert!(read(json!({"tools": [function("crop_video")]}), false, Supported::ALL).is_ok());
    }
}
