//! What a rollout earns: R = R_acc + w R_fmt + R_tool (ParaVT, section 3.2). Pure: text in, numbers out.
//!
//! The rules are those of the reference code as it was released (`paravt/rl/rewards` of `EvolvingLMMs-Lab/ParaVT`, commit
//! `cf55249e`), and forty completions that it scored are the oracle (`src/tests/fixtures/rewards.json`). This room knows no
//! tensors, no engines and no prompts: whoever rolls out says what was written and what was run.
//!
//! # Where the paper and the released code disagree
//!
//! [`Compat`] decides, and nothing else differs between its two values:
//!
//! | | `paper` (default) | `upstream` |
//! | --- | --- | --- |
//! | Text that R_fmt reads | what the model wrote, after the think prefix that opened each turn | only what it wrote: with a prefix in the prompt no `<think>` is seen, so thinking, its anchor and the order of thinking and calls earn nothing |
//! | Level 0.3 of R_tool | a tool really ran | `<tool_response>` stands in the model's own text: it never sees real ones, so only inventing one earns it |
//! | A call | what the agent's parser would run: lists of calls and slips that it repairs count, calls that were only thought do not | an object with a `name` in strict JSON, or a line with `(` in `<tool_code>` |
//! | True answer `A` | a letter, compared as one | an article, which leaves nothing: "The" is right |
//! | Frames of the overview ([`super::FrameGating`]) | drawn for each prompt | the rate of frames wins, nothing is drawn |
//! | A second question about a video ([`Compat::prompt_key`]) | has its own prompt | gets the first one's prompt |
//!
//! # Where the rules in words and the oracle disagree
//!
//! The oracle wins. In words, the answer after `</think>` is taken without tool blocks: a block that is not closed stays. The
//! last line is also taken where nothing follows `</think>`. A degenerate completion scores nothing, and its answer is told
//! all the same. A choice by letter is right if *any* of the patterns finds the true letter first, so that a reply which names
//! three letters can be right. A call in a block that is not closed counts when its JSON is whole.

mod answer;
mod format;
mod text;
mod tool;

use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use format::{TagCount, Tags};

use super::TrainError;
use crate::agent::TurnRecord;

/// From so many `<|im_start|>` on, a completion below [`DEGENERATE_BELOW`] characters is nothing but them.
const DEGENERATE_STARTS: usize = 5;
/// Characters.
const DEGENERATE_BELOW: usize = 300;
/// Largest weight that is no slip of the pen. It keeps the reward bounded.
const WEIGHT_MAX: f64 = 100.0;

/// Whose rules count where the paper and the code released with it disagree. The module's header lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compat {
    /// What the paper says.
    #[default]
    Paper,
    /// What the released code does.
    Upstream,
}

impl Compat {
    /// Rollouts with the same key share one prepared prompt. The released code keeps prompts by video alone, so that a second
    /// question about a video is asked the first.
    #[must_use]
    pub const fn prompt_key<'a>(self, video: &'a str, question: &'a str) -> (&'a str, &'a str) {
        match self {
            Self::Paper => (video, question),
            Self::Upstream => (video, ""),
        }
    }
}

impl FromStr for Compat {
    type Err = TrainError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "paper" => Ok(Self::Paper),
            "upstream" => Ok(Self::Upstream),
            other => Err(TrainError::Options(format!("compat is paper or upstream, not {other:?}"))),
        }
    }
}

/// How answers in words are judged that are not equal to the true one. The reference's third mode asks another model, and this
/// room does no I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerMode {
    /// By the words that both have.
    #[default]
    F1,
    /// They are wrong.
    Exact,
}

/// Settings of the reward. The defaults are those of the reference's PARA-GRPO recipe.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RewardConfig {
    /// Whose rules.
    pub compat: Compat,
    /// How answers in words are judged.
    pub mode: AnswerMode,
    /// Weight of the anchor inside R_fmt, the paper's λ_anchor: 0.5. Without it (0) this is the reward of plain GRPO.
    pub anchor_weight: f64,
    /// Weight of R_fmt in the sum: 1.
    pub format_weight: f64,
    /// The answer's tags carry most of R_fmt (0.5 of 0.7) and not the thinking's (0.3 each): on.
    pub answer_suffix: bool,
}

impl Default for RewardConfig {
    fn default() -> Self {
        Self {
            compat: Compat::Paper,
            mode: AnswerMode::F1,
            anchor_weight: 0.5,
            format_weight: 1.0,
            answer_suffix: true,
        }
    }
}

impl RewardConfig {
    /// Checks the weights.
    ///
    /// # Errors
    /// A weight that is no number, negative, or above 100.
    pub fn check(&self) -> Result<(), TrainError> {
        for (name, weight) in [("anchor_weight", self.anchor_weight), ("format_weight", self.format_weight)] {
            if !(0.0..=WEIGHT_MAX).contains(&weight) {
                return Err(TrainError::Options(format!("{name} is between 0 and {WEIGHT_MAX}, not {weight}")));
            }
        }
        Ok(())
    }
}

/// What kind of question it is: what its true answer looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "String", into = "&'static str")]
pub enum QuestionType {
    /// `mcq`: one letter, A to D.
    Choice,
    /// `tvg`, temporal grounding: a stretch of time, `[start, end]` in seconds.
    Grounding,
    /// `oe`, and whatever else data name: words.
    #[default]
    Open,
}

impl From<&str> for QuestionType {
    fn from(name: &str) -> Self {
        match name {
            "mcq" => Self::Choice,
            "tvg" => Self::Grounding,
            _ => Self::Open,
        }
    }
}

impl From<String> for QuestionType {
    fn from(name: String) -> Self {
        Self::from(name.as_str())
    }
}

impl From<QuestionType> for &'static str {
    fn from(question: QuestionType) -> Self {
        match question {
            QuestionType::Choice => "mcq",
            QuestionType::Grounding => "tvg",
            QuestionType::Open => "oe",
        }
    }
}

/// What is true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truth<'a> {
    /// The true answer, as the data write it.
    pub answer: &'a str,
    /// What kind of answer that is.
    pub question: QuestionType,
}

/// One turn of the main agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WrittenTurn<'a> {
    /// Its raw text: first what the prompt held already (`<think>\n`), then what the model wrote. The released code scores
    /// text with its end tokens, which is what to give for the very same `upstream` numbers.
    pub text: &'a str,
    /// Bytes of it that the prompt held.
    pub prefix: usize,
}

impl<'a> WrittenTurn<'a> {
    fn written(&self) -> &'a str {
        self.text.get(self.prefix..).unwrap_or_default()
    }
}

impl<'a> From<&'a TurnRecord> for WrittenTurn<'a> {
    fn from(turn: &'a TurnRecord) -> Self {
        Self { text: &turn.text, prefix: turn.prefix }
    }
}

/// What a rollout came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written<'a> {
    /// The main agent's turns, in their order. What the tools said is no part of them.
    pub turns: &'a [WrittenTurn<'a>],
    /// How many tools really ran: windows that a sub-agent watched and told of.
    pub tools_run: usize,
}

/// What a rollout earned, and what was seen of it.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Scores {
    /// The answer as it was understood; may be empty.
    pub extracted: String,
    /// R_acc, 0 to 1.
    pub accuracy: f64,
    /// R_fmt before its weight: at most 1, below 0 for thinking that does not end.
    pub format: f64,
    /// R_tool, 0 to 0.8.
    pub tool: f64,
    /// R.
    pub total: f64,
    /// Tags opened and closed, and calls: what closure rates of a run are made of. Always of the text with its prefix, so that
    /// the rates of runs with different [`Compat`] can be compared.
    pub tags: Tags,
}

/// Judges rollouts.
pub trait Reward: Send + Sync {
    /// What this rollout earns. Always finite.
    fn score(&self, written: &Written<'_>, truth: &Truth<'_>) -> Scores;
}

/// The paper's reward: by rules alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct RuleReward {
    config: RewardConfig,
}

impl RuleReward {
    /// With these settings.
    ///
    /// # Errors
    /// Those of [`RewardConfig::check`].
    pub fn new(config: RewardConfig) -> Result<Self, TrainError> {
        config.check()?;
        Ok(Self { config })
    }
}

impl Reward for RuleReward {
    fn score(&self, written: &Written<'_>, truth: &Truth<'_>) -> Scores {
        let config = &self.config;
        let whole: String = written.turns.iter().map(|turn| turn.text).collect();
        let own: String = written.turns.iter().map(WrittenTurn::written).collect();
        let (read, calls) = match config.compat {
            Compat::Paper => (&whole, tool::runnable(written.turns)),
            Compat::Upstream => (&own, tool::parseable(&own)),
        };
        let tags = Tags::of(&whole, calls);
        // A prefix holds no answer, and on its own it must not become one.
        let extracted = answer::extract(&own);
        if text::count(&own, "<|im_start|>") >= DEGENERATE_STARTS && own.chars().count() < DEGENERATE_BELOW {
            return Scores { extracted, tags, ..Scores::default() };
        }
        let accuracy = answer::accuracy(&extracted, truth, config);
        let format = format::score(read, calls > 0, config);
        let ran = match config.compat {
            Compat::Paper => written.tools_run > 0,
            Compat::Upstream => own.contains("<tool_response>"),
        };
        let tool = tool::score(calls > 0, ran, accuracy);
        Scores { total: accuracy + config.format_weight * format + tool, extracted, accuracy, format, tool, tags }
    }
}

#[cfg(test)]
mod tests;
