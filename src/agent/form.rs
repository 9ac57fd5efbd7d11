//! Answers that must be of a form: JSON of a schema, or a call of one of the caller's tools. Pure.
//!
//! Thinking and windows are free. The answer is then generated in a turn of its own, which is opened here and whose whole
//! output is constrained: so it works on every engine that continues a prefix and knows grammars, and however the model
//! came to its answer, the answer is of the form.

use serde_json::{Map, Value, json};

use super::request::{AnswerForm, AskOptions, ClientTool};
use crate::engine::{Constraint, Grammar};

/// What ends the thinking, and comes only once: thinking may name the tag that opens an answer.
const THOUGHT: &str = "</think>\n";

/// How the turn of such an answer is opened, constrained and closed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Forced {
    /// What the turn begins with, after the thinking.
    pub(super) open: String,
    /// What follows the constrained output, which ends without it.
    close: &'static str,
    grammar: Option<Grammar>,
    /// Whether the answer is a call; else all of the output is the answer, whatever it looks like.
    pub(super) call: bool,
}

impl Forced {
    /// For an episode's answer. `None`: it is free.
    pub(super) fn in_episode(options: &AskOptions) -> Option<Self> {
        match &options.form {
            AnswerForm::Free => None,
            AnswerForm::Fits(grammar) => Some(Self::text("<answer>", grammar.clone())),
            AnswerForm::Call(chosen) => Some(Self::call(*chosen, &options.client_tools)),
        }
    }

    /// For a plain completion, which has no tags around its answer.
    pub(super) fn in_plain(options: &AskOptions) -> Option<Self> {
        match &options.form {
            AnswerForm::Fits(grammar) => Some(Self::text("", grammar.clone())),
            AnswerForm::Free | AnswerForm::Call(_) => Self::in_episode(options),
        }
    }

    fn text(open: &str, grammar: Grammar) -> Self {
        Self { open: open.to_owned(), close: "", grammar: Some(grammar), call: false }
    }

    fn call(chosen: Option<usize>, tools: &[ClientTool]) -> Self {
        if let Some(tool) = chosen.and_then(|place| tools.get(place)) {
            let open = format!("<tool_call>\n{{\"name\": {}, \"arguments\": ", Value::from(tool.name.as_str()));
            let grammar = Grammar::JsonSchema(Value::Object(tool.parameters.clone()).to_string());
            return Self { open, close: "}\n</tool_call>", grammar: Some(grammar), call: true };
        }
        let grammar = Grammar::JsonSchema(any_call(tools).to_string());
        Self { open: "<tool_call>\n".to_owned(), close: "\n</tool_call>", grammar: Some(grammar), call: true }
    }

    /// For an engine that knows no grammars: the turn is opened, and the model left to go on as it should.
    pub(super) fn unconstrained(self) -> Self {
        Self { grammar: None, close: "", ..self }
    }

    /// What its turn opens with, after the model's thinking so far.
    pub(super) fn opened_after(&self, thought: Option<&str>) -> String {
        thought.map_or_else(|| self.open.clone(), |thought| format!("{thought}\n{THOUGHT}{}", self.open))
    }

    /// What its turn's output must be. A turn's prefix counts as output: what stands at its end is what the grammar follows.
    pub(super) fn constraint(&self, prefix: &str) -> Option<Constraint> {
        let thought = format!("{THOUGHT}{}", self.open);
        let after = if prefix.ends_with(&thought) { thought } else { self.open.clone() };
        let after = Some(after).filter(|after| !after.is_empty());
        self.grammar.clone().map(|grammar| Constraint { grammar, after, then: None })
    }

    /// What its output must be.
    pub(super) const fn grammar(&self) -> Option<&Grammar> {
        self.grammar.as_ref()
    }

    /// What is still to be read after an output of the grammar.
    pub(super) const fn close(&self) -> &'static str {
        self.close
    }
}

/// A schema of a call of any of these. Definitions of the parameters' own are moved to the root, where `$ref` looks for them,
/// under names that no other tool's have.
fn any_call(tools: &[ClientTool]) -> Value {
    let mut definitions = Map::new();
    let calls: Vec<Value> = tools
        .iter()
        .enumerate()
        .map(|(place, tool)| {
            let mut parameters = Value::Object(tool.parameters.clone());
            for key in DEFINITIONS {
                let Some(Value::Object(own)) = parameters.as_object_mut().and_then(|map| map.remove(key)) else {
                    continue;
                };
                for (name, mut definition) in own {
                    rename(&mut definition, place);
                    definitions.insert(renamed(place, key, &name), definition);
                }
            }
            rename(&mut parameters, place);
            json!({
                "type": "object",
                "properties": {"name": {"const": tool.name}, "arguments": parameters},
                "required": ["name", "arguments"],
                "additionalProperties": false,
            })
        })
        .collect();
    json!({"anyOf": calls, "$defs": definitions})
}

const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

fn renamed(place: usize, key: &str, name: &str) -> String {
    format!("{place}_{}_{name}", key.trim_start_matches('$'))
}

/// Has all `$ref` of a schema point to where its definitions are moved.
fn rename(schema: &mut Value, place: usize) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, place)),
        Value::Object(fields) => {
            for (field, value) in fields {
                let target = value.as_str().filter(|_| field == "$ref").and_then(|target| target.strip_prefix("#/"));
                let moved =
                    target.and_then(|target| target.split_once('/')).filter(|(key, _)| DEFINITIONS.contains(key));
                match moved.map(|(key, name)| format!("#/$defs/{}", renamed(place, key, name))) {
                    Some(moved) => *value = Value::String(moved),
                    None => rename(value, place),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, parameters: Value) -> ClientTool {
        let Value::Object(parameters) = parameters else { panic!("an object") };
        ClientTool { name: name.to_owned(), description: None, parameters }
    }

    #[test]
    fn a_chosen_tool_opens_its_call() {
        let options = AskOptions {
            client_tools: vec![tool("a", json!({})), tool("note", json!({"type": "object"}))],
            form: AnswerForm::Call(Some(1)),
            ..AskOptions::default()
        };
        let forced = Forced::in_plain(&options).expect("forced");
        let whole = format!("{}{}{}", forced.open, "{\"x\": 1}", forced.close());
        assert_eq!(whole, "<tool_call>\n{\"name\": \"note\", \"arguments\": {\"x\": 1}}\n</tool_call>");
        let grammar = Grammar::JsonSchema(r#"{"type":"object"}"#.to_owned());
        let after = Some(forced.open.clone());
        assert_eq!(forced.constraint(&forced.open), Some(Constraint { grammar, after, then: None }));
        let thoughtful = forced.opened_after(Some("<think>\nhm"));
        let after = forced.constraint(&thoughtful).and_then(|constraint| constraint.after).expect("a place");
        assert!(
            after.starts_with("</think>") && thoughtful.ends_with(&after) && thoughtful.matches(&after).count() == 1
        );
        assert_eq!(forced.unconstrained().constraint(""), None);
    }

    #[test]
    fn any_tool_is_one_schema_with_all_definitions_at_its_root() {
        let schema = any_call(&[
            tool("a", json!({"$defs": {"P": {"type": "string"}}, "properties": {"p": {"$ref": "#/$defs/P"}}})),
            tool("b", json!({"$defs": {"P": {"items": {"$ref": "#/$defs/Q"}}, "Q": {"type": "number"}}})),
            tool("c", json!({})),
        ]);
        assert_eq!(
            schema["$defs"],
            json!({
                "0_defs_P": {"type": "string"},
                "1_defs_P": {"items": {"$ref": "#/$defs/1_defs_Q"}},
                "1_defs_Q": {"type": "number"}
            })
        );
        assert_eq!(schema["anyOf"][0]["properties"]["name"], json!({"const": "a"}));
        let arguments = &schema["anyOf"][0]["properties"]["arguments"];
        assert_eq!(arguments["properties"]["p"], json!({"$ref": "#/$defs/0_defs_P"}));
        assert_eq!(schema["anyOf"][2]["properties"]["arguments"], json!({}));
    }

    #[test]
    fn an_answer_is_opened_in_episodes_only() {
        let options = AskOptions { form: AnswerForm::Fits(Grammar::JsonObject), ..AskOptions::default() };
        assert_eq!(Forced::in_episode(&options).expect("forced").open, "<answer>");
        let plain = Forced::in_plain(&options).expect("forced");
        assert_eq!((plain.open.as_str(), plain.constraint("").and_then(|constraint| constraint.after)), ("", None));
        assert_eq!(Forced::in_plain(&AskOptions::default()), None);
    }
}
