//! What a plan will take, from what it says and the model card alone: nothing is opened, fetched or decoded for it.

use serde_json::Value;

use super::{Plan, PlanPart};
use crate::agent::{AskPart, ToolUse, VideoPart};
use crate::api::admission::Cost;
use crate::card::{FrameBudget, ModelCard};

/// Bytes of text a token stands for, about.
const TEXT_BYTES: u64 = 4;
/// Tokens around a frame: its marks, and its time where it has one.
const MARKS: u64 = 2;
const TIME: u64 = 6;
/// Text that a typical question may have for nothing, in tokens, so that a plain episode is a place and not a little more.
const QUESTION: u64 = 512;

/// What is to be read and decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Work {
    /// To prefill.
    tokens: u64,
    /// To decode.
    frames: u64,
}

impl Work {
    /// A card's full episode: one whole video, and one full burst of windows.
    fn typical(card: &ModelCard) -> Self {
        let mut work = Self { tokens: QUESTION, frames: 0 };
        work.add_frames(card, &card.overview, u64::from(card.overview.max_frames));
        work.add_windows(card, card.agent.max_calls);
        work
    }

    fn add_text(&mut self, text: &str) {
        self.tokens += (text.len() as u64).div_ceil(TEXT_BYTES);
    }

    /// Frames of a video, as large as the card lets them be.
    fn add_frames(&mut self, card: &ModelCard, budget: &FrameBudget, frames: u64) {
        let pictures = if card.prompts.frame_pairs { frames.div_ceil(2) } else { frames };
        let time = if budget.timestamps { TIME } else { 0 };
        self.tokens += pictures * (picture(card) + MARKS + time);
        self.frames += frames;
    }

    /// A burst of so many full windows, one for each call.
    fn add_windows(&mut self, card: &ModelCard, calls: u32) {
        for _ in 0..calls {
            self.add_frames(card, &card.window, u64::from(card.window.max_frames));
            self.add_text(&card.prompts.sub_agent);
        }
    }

    /// The share of a typical episode's tokens or of its frames, whichever is larger: what is scarce decides, and which that
    /// is depends on the machine.
    fn share_of(self, typical: Self, choices: u64) -> Cost {
        let share = |part: u64, whole: u64| part.saturating_mul(choices).saturating_mul(1000).div_ceil(whole.max(1));
        Cost::thousandths(share(self.tokens, typical.tokens).max(share(self.frames, typical.frames)))
    }
}

/// Tokens of the largest picture.
fn picture(card: &ModelCard) -> u64 {
    u64::from(card.pixels.max_pixels).div_ceil(u64::from(card.pixels.factor.max(1)).pow(2))
}

/// Overview frames of a video of which only the request is known: a video whose length nobody has said is a long one.
fn overview_frames(card: &ModelCard, video: &VideoPart) -> u64 {
    let budget = &card.overview;
    let most = video.max_frames.map_or(budget.max_frames, |frames| frames.clamp(1, budget.max_frames));
    if let Some(frames) = video.frames {
        return u64::from(frames.min(most));
    }
    let fewest = budget.min_frames.min(most);
    let start = video.start.unwrap_or_default().seconds();
    let seconds = video.end.map_or(f64::INFINITY, |end| (end.seconds() - start).max(0.0));
    let frames = (seconds * video.fps.unwrap_or(budget.fps)).ceil();
    frames.clamp(f64::from(fewest), f64::from(most)) as u64
}

impl Plan {
    /// What answering it takes, `choices` times over. A card's full episode is a place.
    pub(in crate::api) fn cost(&self, card: &ModelCard, choices: usize) -> Cost {
        let mut work = Work::default();
        work.add_text(&self.prefix);
        for part in self.turns.iter().flat_map(|turn| &turn.parts) {
            match part {
                PlanPart::Ready(AskPart::Text(text) | AskPart::ToolResult(text)) => work.add_text(text),
                PlanPart::Ready(AskPart::ToolCall(call)) => {
                    work.add_text(&Value::Object(call.arguments.clone()).to_string());
                }
                PlanPart::Ready(AskPart::Video(video)) => {
                    work.add_frames(card, &card.overview, overview_frames(card, video));
                }
                PlanPart::Ready(AskPart::Image(_)) | PlanPart::Image { .. } => {
                    work.tokens += picture(card) + MARKS;
                    work.frames += 1;
                }
            }
        }
        // What the model is told of the caller's own tools.
        for tool in &self.options.client_tools {
            work.add_text(&tool.name);
            work.add_text(tool.description.as_deref().unwrap_or_default());
            work.add_text(&Value::Object(tool.parameters.clone()).to_string());
        }
        let options = &self.options;
        let looks = options.agent == Some(true) && options.tools != ToolUse::None && options.max_turns != Some(0);
        if looks && card.agent.max_turns > 0 {
            let most = card.agent.max_calls;
            work.add_windows(card, options.max_calls.map_or(most, |calls| calls.min(most)));
        }
        work.share_of(Work::typical(card), choices.max(1) as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::api::convert::Files;
    use crate::engine::Supported;
    use crate::protocol::chat::ChatCompletionRequest;

    fn card(name: &str) -> ModelCard {
        ModelCard::load(Path::new(name)).expect("a bundled card")
    }

    fn video() -> Value {
        json!({"type": "video_url", "video_url": {"url": "http://a/b.mp4"}})
    }

    fn with(mut part: Value, name: &str, value: Value) -> Value {
        part[name] = value;
        part
    }

    fn cost(card: &ModelCard, parts: Vec<Value>, more: &Value) -> Cost {
        let parts: Vec<Value> = parts.into_iter().chain([json!({"type": "text", "text": "What is it?"})]).collect();
        let mut body = json!({"messages": [{"role": "user", "content": parts}]});
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let request = ChatCompletionRequest::read(body).expect("valid");
        Plan::new(request, &Files::default(), card, Supported::ALL).expect("a plan").cost(card, 1)
    }

    #[test]
    fn a_cards_full_episode_is_one_place_and_the_rest_is_measured_by_it() {
        for card in [card("paravt-8b"), card("paravt-tiny")] {
            let costs = |parts: Vec<Value>, more: Value| cost(&card, parts, &more);
            assert_eq!(costs(vec![video()], json!({})), Cost::PLACE, "{}", card.name);
            assert_eq!(costs(vec![], json!({})), Cost::LEAST, "a text");
            let eight = costs(vec![video(); 8], json!({}));
            assert!(eight > Cost::thousandths(1900) && eight < Cost::thousandths(8000), "{eight:?}");
            // A stretch, fewer frames, no windows: less.
            let less = [
                (with(with(video(), "start", json!(5)), "end", json!(6)), json!({})),
                (with(video(), "max_frames", json!(2)), json!({})),
                (video(), json!({"mm_processor_kwargs": {"num_frames": 2}})),
                (video(), json!({"tool_choice": "none"})),
                (video(), json!({"paravt": {"max_calls": 1}})),
                (video(), json!({"paravt": {"max_turns": 0}})),
                (video(), json!({"paravt": {"agent": false}})),
            ];
            for (part, more) in less {
                assert!(costs(vec![part.clone()], more.clone()) < Cost::PLACE, "{part} {more}");
            }
            // Not less: a length that nobody said, a rate that can't be.
            assert_eq!(costs(vec![with(video(), "start", json!(5))], json!({})), Cost::PLACE);
            assert_eq!(costs(vec![with(video(), "fps", json!(60))], json!({})), Cost::PLACE);
            let picture = json!({"type": "image_url", "image_url": {"url": "http://a/b.png"}});
            assert!(costs(vec![picture; 1000], json!({})) > Cost::PLACE);
            let long = json!({"type": "text", "text": "x".repeat(200_000)});
            assert!(costs(vec![long], json!({})) > Cost::PLACE);
            let told = |n: usize| json!({"type": "function", "function": {"name": format!("f{n}"), "description": "x".repeat(16_000)}});
            let tools: Vec<Value> = (0..15).map(told).collect();
            assert!(costs(vec![], json!({"tools": tools})) > Cost::PLACE);
        }
    }

    #[test]
    fn choices_multiply_it() {
        let card = card("paravt-8b");
        let body = json!({"messages": [{"role": "user", "content": [video(), {"type": "text", "text": "What?"}]}]});
        let request = ChatCompletionRequest::read(body).expect("valid");
        let plan = Plan::new(request, &Files::default(), &card, Supported::ALL).expect("a plan");
        assert_eq!(plan.cost(&card, 0), Cost::PLACE);
        assert!(plan.cost(&card, 3) > Cost::thousandths(2500) && plan.cost(&card, 3) <= Cost::thousandths(3000));
        assert!(plan.cost(&card, usize::MAX) > plan.cost(&card, 128));
    }
}
