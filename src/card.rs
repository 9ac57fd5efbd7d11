//! Model cards: what to load, the prompts, and the budgets. Prompts are data, not code.
//!
//! A card is a folder with a `card.toml`. The bundled ones, `paravt-tiny` with its checkpoint, are looked for below
//! `./model_cards`, beside the program, and where it was built.

pub mod checkpoint;

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::config::{EngineConfig, EngineKind};

/// The card used when none is configured.
pub const DEFAULT: &str = "paravt-tiny";
/// The cards that come with paravt.
pub const BUNDLED: [&str; 2] = [DEFAULT, "paravt-8b"];

/// Which card is meant: a folder, or a bundled card's name.
#[must_use]
pub fn chosen(config: &EngineConfig) -> &Path {
    config.card.as_deref().unwrap_or(Path::new(DEFAULT))
}

/// A model card.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelCard {
    /// The model's name in the API.
    pub name: String,
    /// One line for people.
    pub description: String,
    /// Where the checkpoint is.
    pub source: ModelSource,
    /// What the agents are told.
    pub prompts: Prompts,
    /// Turns, calls, lengths.
    pub agent: AgentBudget,
    /// Frames of the overview.
    pub overview: FrameBudget,
    /// Frames of a window.
    pub window: FrameBudget,
    /// Size of every frame.
    pub pixels: PixelBudget,
    /// Used where a request does not say.
    #[serde(default)]
    pub sampling: SamplingDefaults,
    /// The folder the card was read from. Empty for a card made in memory.
    #[serde(skip)]
    pub folder: PathBuf,
}

/// Where a checkpoint in Hugging Face layout is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSource {
    /// A folder, relative to the card's own.
    #[serde(default)]
    pub directory: Option<PathBuf>,
    /// A repository on the Hub (`owner/name`).
    #[serde(default)]
    pub hub: Option<String>,
    /// Branch, tag or commit there.
    #[serde(default = "main_revision")]
    pub revision: String,
}

fn main_revision() -> String {
    "main".to_owned()
}

/// Prompts. `{question}`, `{video}`, `{start}`, `{end}` stand for their values.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompts {
    /// System prompt of the main agent.
    pub system: String,
    /// What follows the overview frames; `{question}` and `{video}`.
    pub question: String,
    /// What follows a window's frames; `{start}` and `{end}` as `MM:SS`, `{question}` where the card wants it.
    pub sub_agent: String,
    /// Put after the last tool response: answer now, without tools.
    pub last_turn: String,
    /// What the main agent is told of tools of the caller's own; `{tools}` stands for their signatures, one a line. By default
    /// in Qwen's words, which Qwen3-VL was trained under.
    #[serde(default = "client_tools")]
    pub client_tools: String,
    /// Frames of a video go into prompts in pairs, as Qwen3-VL reads videos: two frames take the tokens of one, and have one
    /// time, the middle of theirs. Only the native engine reads them.
    #[serde(default)]
    pub frame_pairs: bool,
    /// Name of the request's video in prompts and calls. With several videos, numbered (`video_2.mp4`).
    #[serde(default = "video_name")]
    pub video_name: String,
    /// Text the main agent's turns are opened with, `<think>\n` or nothing.
    #[serde(default)]
    pub think_prefix: String,
}

fn video_name() -> String {
    "video.mp4".to_owned()
}

/// The convention of Qwen's chat template (`tokenizer_config.json` of Qwen3-VL): these words are what the model knows.
fn client_tools() -> String {
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n\
     You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{tools}\n</tools>\n\n\
     For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML \
     tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>"
        .to_owned()
}

/// Bounds of an episode.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentBudget {
    /// Turns in which tools may be called.
    pub max_turns: u32,
    /// Windows a turn.
    pub max_calls: u32,
    /// Longest main turn in tokens.
    pub turn_tokens: u32,
    /// Longest summary in tokens; cut there with ` [truncated]`.
    pub summary_tokens: u32,
}

/// How densely a stretch of video is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrameBudget {
    /// Frames a second.
    pub fps: f64,
    /// Fewest frames.
    pub min_frames: u32,
    /// Most frames; spread evenly over the stretch when there would be more.
    pub max_frames: u32,
    /// Whether each frame is preceded by its own time, `<12.0 seconds>`.
    pub timestamps: bool,
}

/// Size of a frame as the model sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PixelBudget {
    /// Sides are multiples of this (patch size times merge size).
    pub factor: u32,
    /// Fewest pixels.
    pub min_pixels: u32,
    /// Most pixels.
    pub max_pixels: u32,
}

/// Sampling where the request does not say.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingDefaults {
    /// See [`crate::engine::Sampling`].
    pub temperature: Option<f64>,
    /// Likewise.
    pub top_p: Option<f64>,
    /// Likewise.
    pub top_k: Option<u32>,
    /// Likewise.
    pub repetition_penalty: Option<f64>,
    /// Likewise.
    pub presence_penalty: Option<f64>,
}

/// A card that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    /// No such card.
    #[error("no model card at {0}: a folder with a card.toml, or one of the bundled cards: {bundled}", bundled = BUNDLED.join(", "))]
    Missing(String),
    /// Not a card.
    #[error("the model card {path} is not valid: {problem}")]
    Invalid {
        /// The file.
        path: String,
        /// What is wrong.
        problem: String,
    },
}

impl ModelCard {
    /// Checks that an engine can do what the card asks for.
    ///
    /// # Errors
    /// What it can't, in words.
    pub fn fits(&self, kind: EngineKind) -> Result<(), String> {
        if self.prompts.frame_pairs && !kind.reads_frame_pairs() {
            let engine = kind.name();
            return Err(format!("the model card gives frames in pairs, which the engine {engine} does not read"));
        }
        Ok(())
    }

    /// Reads `<folder>/card.toml`, or a bundled card by its name.
    ///
    /// # Errors
    /// [`CardError`] when there is none, or it is not valid.
    pub fn load(folder: &Path) -> Result<Self, CardError> {
        let folder = Self::find(folder)?;
        let path = folder.join("card.toml");
        let invalid = |problem: String| CardError::Invalid { path: path.display().to_string(), problem };
        let text = std::fs::read_to_string(&path).map_err(|error| invalid(error.to_string()))?;
        let mut card: Self = toml::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        card.folder = folder;
        card.check().map_err(invalid)?;
        Ok(card)
    }

    /// The folder of a card: as given, below `model_cards` here, beside the program, or where it was built.
    fn find(folder: &Path) -> Result<PathBuf, CardError> {
        let bundled = || {
            let beside = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_path_buf));
            [Some(PathBuf::from(".")), beside, Some(PathBuf::from(env!("CARGO_MANIFEST_DIR")))]
                .into_iter()
                .flatten()
                .map(|root| root.join("model_cards").join(folder))
        };
        std::iter::once(folder.to_path_buf())
            .chain(bundled())
            .find(|candidate| candidate.join("card.toml").is_file())
            .ok_or_else(|| CardError::Missing(folder.display().to_string()))
    }

    /// The checkpoint's folder, when it is a local one.
    #[must_use]
    pub fn directory(&self) -> Option<PathBuf> {
        self.source.directory.as_ref().map(|directory| self.folder.join(directory))
    }

    fn check(&self) -> Result<(), String> {
        let budget = |name: &str, budget: &FrameBudget| {
            let ok = budget.fps > 0.0
                && budget.fps.is_finite()
                && budget.min_frames >= 1
                && budget.min_frames <= budget.max_frames;
            if ok { Ok(()) } else { Err(format!("{name}: fps above 0 and 1 <= min_frames <= max_frames")) }
        };
        budget("overview", &self.overview)?;
        budget("window", &self.window)?;
        let pixels = self.pixels;
        if pixels.factor < 1
            || pixels.min_pixels > pixels.max_pixels
            || u64::from(pixels.max_pixels) < u64::from(pixels.factor).pow(2)
        {
            return Err("pixels: min_pixels <= max_pixels, and max_pixels holds at least one patch".to_owned());
        }
        if self.source.directory.is_none() && self.source.hub.is_none() {
            return Err("source: a directory or a Hub repository".to_owned());
        }
        if self.agent.max_calls == 0 || self.agent.turn_tokens == 0 || self.agent.summary_tokens == 0 {
            return Err("agent: max_calls, turn_tokens and summary_tokens are above 0".to_owned());
        }
        Ok(())
    }
}
