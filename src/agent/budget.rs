//! What an episode may spend, from the card, the configuration and the request. Pure.

use super::form::Forced;
use super::request::{AskOptions, ToolUse};
use crate::card::ModelCard;
use crate::config::{AgentConfig, Dispatch};
use crate::engine::Sampling;

/// The bounds and modes of one episode.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    pub(super) dispatch: Dispatch,
    /// Turns in which calls are run.
    pub(super) max_tool_turns: u32,
    /// Calls run a turn.
    pub(super) max_calls: u32,
    /// An answer does not count before a window was asked for.
    pub(super) must_look: bool,
    pub(super) think_prefix: String,
    pub(super) last_turn: String,
    /// Names of the caller's own tools.
    pub(super) client_tools: Vec<String>,
    /// At most one call of these.
    pub(super) single_call: bool,
    /// What the answer must be, where it must be something.
    pub(super) forced: Option<Forced>,
}

impl Rules {
    /// The request can lower the card's bounds, not raise them.
    ///
    /// Sequential dispatch runs one call a turn, so it gets as many turns as parallel dispatch has calls: both modes may
    /// watch the same number of windows.
    pub(super) fn new(card: &ModelCard, config: &AgentConfig, options: &AskOptions) -> Self {
        let dispatch = options.dispatch.unwrap_or(config.dispatch);
        let calls = options.max_calls.map_or(card.agent.max_calls, |calls| calls.min(card.agent.max_calls));
        let turns = options.max_turns.map_or(card.agent.max_turns, |turns| turns.min(card.agent.max_turns));
        let (turns, calls) = match dispatch {
            _ if options.tools == ToolUse::None || calls == 0 => (0, 0),
            Dispatch::Parallel => (turns, calls),
            Dispatch::Sequential => (turns.saturating_mul(calls), 1),
        };
        Self {
            dispatch,
            max_tool_turns: turns,
            max_calls: calls,
            must_look: options.tools == ToolUse::Required && turns > 0,
            think_prefix: card.prompts.think_prefix.clone(),
            last_turn: card.prompts.last_turn.clone(),
            client_tools: options.client_tools.iter().map(|tool| tool.name.clone()).collect(),
            single_call: options.single_call,
            forced: Forced::in_episode(options),
        }
    }
}

/// Sampling of a plain completion: the request's, else the card's; never more tokens than the card allows a turn.
pub(super) fn plain_sampling(card: &ModelCard, asked: &Sampling) -> Sampling {
    let defaults = &card.sampling;
    let max_tokens =
        if asked.max_tokens == 0 { card.agent.turn_tokens } else { asked.max_tokens.min(card.agent.turn_tokens) };
    Sampling {
        temperature: asked.temperature.or(defaults.temperature),
        top_p: asked.top_p.or(defaults.top_p),
        top_k: asked.top_k.or(defaults.top_k),
        repetition_penalty: asked.repetition_penalty.or(defaults.repetition_penalty),
        presence_penalty: asked.presence_penalty.or(defaults.presence_penalty),
        max_tokens,
        ..asked.clone()
    }
}

/// Sampling of an episode's main turns. The caller's stop texts and length are for the answer: see [`super::answer`]. A turn
/// ends where its model ends it, also for benchmarks that would have it go on: what is made up after a burst spoils the next turn.
pub(super) fn main_sampling(card: &ModelCard, asked: &Sampling) -> Sampling {
    Sampling { max_tokens: card.agent.turn_tokens, stop: Vec::new(), ignore_eos: false, ..plain_sampling(card, asked) }
}

/// Sampling of a sub-agent: like the main agent's, with its own length.
pub(super) fn sub_sampling(card: &ModelCard, asked: &Sampling) -> Sampling {
    Sampling { max_tokens: card.agent.summary_tokens, logprobs: None, constraint: None, ..main_sampling(card, asked) }
}
