//! A conversation as Qwen3-VL's chat template writes it, with room for padding at the end of the last user turn.
//!
//! mistralrs' own request builder puts every picture before the text, so we write the prompt ourselves and hand it
//! through a template that changes nothing. Knows nothing of scheduling or of mistralrs' types.

use super::vocabulary::{FRAME_PAIR, PICTURE, Structure, TURN_END, TURN_START, Vocabulary};
use crate::engine::EngineError;
use crate::types::{Frame, Part, Role, Turn};

/// A rendered conversation.
#[derive(Debug, Clone)]
pub(in crate::engine) struct Prompt {
    /// Up to the end of what the last user turn says.
    head: String,
    /// Neutral text that makes it as long as others.
    filler: String,
    /// The rest: the end of that turn, and the opened assistant turn.
    tail: String,
    /// Where in `head` the text after the last special token begins.
    #[cfg_attr(not(any(feature = "mistralrs", test)), expect(dead_code, reason = "only mistralrs needs padding"))]
    open: usize,
    /// Whether there is a user turn to pad.
    #[cfg_attr(not(any(feature = "mistralrs", test)), expect(dead_code, reason = "only mistralrs needs padding"))]
    paddable: bool,
}

impl Prompt {
    /// The whole text.
    pub(in crate::engine) fn text(&self) -> String {
        [self.head.as_str(), self.filler.as_str(), self.tail.as_str()].concat()
    }

    /// The text that padding would follow, back to the last special token: what comes before it can't change its tokens.
    #[cfg(any(feature = "mistralrs", test))]
    pub(in crate::engine) fn open_text(&self) -> Option<&str> {
        self.paddable.then(|| &self.head[self.open..])
    }

    /// Puts neutral text at the end of the last user turn.
    #[cfg(any(feature = "mistralrs", test))]
    pub(in crate::engine) fn fill(&mut self, filler: String) {
        self.filler = filler;
    }
}

/// A prompt, its pictures in order, and which special tokens it holds.
#[derive(Debug)]
pub(in crate::engine) struct Rendered {
    pub(in crate::engine) prompt: Prompt,
    /// One frame each, or the two of a pair.
    pub(in crate::engine) pictures: Vec<Vec<Frame>>,
    pub(in crate::engine) structure: Structure,
}

/// Writes the conversation and opens the assistant's turn with `prefix`.
///
/// # Errors
/// [`EngineError::Invalid`] when there is no turn.
pub(in crate::engine) fn render(
    turns: Vec<Turn>,
    prefix: &str,
    vocabulary: &Vocabulary,
) -> Result<Rendered, EngineError> {
    if turns.is_empty() {
        return Err(EngineError::Invalid("the conversation is empty".to_owned()));
    }
    let structure = Structure { starts: turns.len() + 1, ends: turns.len(), pictures: 0 };
    let last_user = turns.iter().rposition(|turn| turn.role == Role::User);
    let (mut written, mut pictures) = (String::new(), Vec::new());
    let (mut open, mut split) = (0, None);
    for (number, turn) in turns.into_iter().enumerate() {
        written.push_str(TURN_START);
        written.push_str(turn.role.name());
        written.push('\n');
        // After the role's name no token can reach back over the line break into it.
        open = written.len() - turn.role.name().len() - 1;
        let mut text = String::new();
        for part in turn.parts {
            let (structural, frames) = match part {
                // Neighbouring texts are joined first: a special token could be split between two of them.
                Part::Text(more) => {
                    text.push_str(&more);
                    continue;
                }
                Part::Frame(frame) => (PICTURE, vec![frame]),
                Part::FramePair(pair) => (FRAME_PAIR, pair.into()),
            };
            written.push_str(&vocabulary.clean(&std::mem::take(&mut text)));
            written.push_str(structural);
            open = written.len();
            pictures.push(frames);
        }
        written.push_str(&vocabulary.clean(&text));
        if Some(number) == last_user {
            split = Some((written.len(), open));
        }
        written.push_str(TURN_END);
        written.push('\n');
    }
    written.push_str(TURN_START);
    written.push_str("assistant\n");
    written.push_str(&vocabulary.clean(prefix));
    let paddable = split.is_some();
    let (split, open) = split.unwrap_or((written.len(), open));
    let tail = written.split_off(split);
    let structure = Structure { pictures: pictures.len(), ..structure };
    Ok(Rendered { prompt: Prompt { head: written, filler: String::new(), tail, open, paddable }, pictures, structure })
}

#[cfg(test)]
pub(in crate::engine) mod tests {
    use bytes::Bytes;
    use minijinja::{Environment, context};
    use serde_json::{Value, json};

    use super::super::vocabulary::tests::tiny;
    use super::*;
    use crate::types::FrameSize;

    pub(in crate::engine) fn frame(width: u32, height: u32) -> Frame {
        let rgb = Bytes::from(vec![128; (3 * width * height) as usize]);
        Frame { time: None, size: FrameSize { width, height }, rgb }
    }

    fn conversation() -> Vec<Turn> {
        vec![
            Turn::text(Role::System, "You watch. <tool_call>"),
            Turn {
                role: Role::User,
                parts: vec![
                    Part::Text("<0.0 seconds>".to_owned()),
                    Part::Frame(frame(64, 64)),
                    Part::Text("<20.0 seconds>".to_owned()),
                    Part::Frame(frame(64, 64)),
                    Part::Text("What is red?\n".to_owned()),
                ],
            },
            Turn::text(Role::Assistant, "<think>\nHm.\n</think>\n<tool_call>{}</tool_call>"),
            Turn::text(Role::User, "<tool_response>\n[1.0s - 2.0s] Nothing.\n</tool_response>"),
        ]
    }

    /// The same conversation through the checkpoint's own template.
    fn by_template(turns: &[Turn]) -> String {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/model_cards/paravt-tiny/chat_template.jinja");
        let source = std::fs::read_to_string(file).expect("the bundled template");
        let mut environment = Environment::new();
        environment.add_template("chat", &source).expect("parses");
        let messages: Vec<Value> = turns
            .iter()
            .map(|turn| {
                let content: Vec<Value> = turn
                    .parts
                    .iter()
                    .map(|part| match part {
                        Part::Text(text) => json!({"type": "text", "text": text}),
                        // The bundled template knows no videos.
                        Part::Frame(_) | Part::FramePair(_) => json!({"type": "image"}),
                    })
                    .collect();
                json!({"role": turn.role.name(), "content": content})
            })
            .collect();
        let template = environment.get_template("chat").expect("is there");
        template.render(context! { messages, add_generation_prompt => true }).expect("renders")
    }

    #[test]
    fn the_prompt_is_what_the_checkpoints_template_writes() {
        let turns = conversation();
        let expected = by_template(&turns);
        let rendered = render(turns, "<think>\n", &tiny()).expect("renders");
        assert_eq!(rendered.prompt.text(), format!("{expected}<think>\n"));
        assert_eq!(rendered.structure, Structure { starts: 5, ends: 4, pictures: 2 });
        assert!(tiny().count_prompt(&rendered.prompt.text(), rendered.structure).is_ok());
    }

    #[test]
    fn a_special_token_split_between_two_parts_is_broken() {
        let parts = ["<|im_", "end|>"].map(|text| Part::Text(text.to_owned())).to_vec();
        let rendered = render(vec![Turn { role: Role::User, parts }], "", &tiny()).expect("renders");
        assert_eq!(rendered.prompt.text(), "<|im_start|>user\n< |im_end|><|im_end|>\n<|im_start|>assistant\n");
    }

    #[test]
    fn padding_goes_to_the_end_of_the_last_user_turn() {
        let mut prompt = render(conversation(), "", &tiny()).expect("renders").prompt;
        prompt.fill("PAD".to_owned());
        let text = prompt.text();
        assert!(text.ends_with("</tool_response>PAD<|im_end|>\n<|im_start|>assistant\n"), "{text}");
    }

    #[test]
    fn the_open_text_begins_after_the_last_picture() {
        let mut turns = conversation();
        turns.truncate(2);
        let prompt = render(turns, "", &tiny()).expect("renders").prompt;
        assert_eq!(prompt.open_text(), Some("What is red?\n"));
    }

    #[test]
    fn without_a_user_turn_there_is_nothing_to_pad() {
        let prompt = render(vec![Turn::text(Role::System, "x")], "", &tiny()).expect("renders").prompt;
        assert_eq!(prompt.open_text(), None);
    }

    #[test]
    fn an_empty_conversation_is_refused() {
        assert!(matches!(render(Vec::new(), "", &tiny()), Err(EngineError::Invalid(_))));
    }
}
