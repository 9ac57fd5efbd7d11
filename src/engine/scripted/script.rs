//! Scripts in files, for load tests without weights.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use super::reply::chunks;
use super::{Reply, Step};
use crate::engine::{EngineError, FinishReason, GenerateRequest, Speaker};
use crate::types::Role;

/// A script: what the main agent says in its turns, and what sub-agents say.
///
/// ```json
/// {
///   "main": [
///     { "text": "<tool_call>…</tool_call>", "prefill_ms": 40, "token_ms": 2 },
///     { "text": "<answer>blue</answer>", "prefill_ms": 10 }
///   ],
///   "sub": [{ "text": "A blue light.", "prefill_ms": 20, "token_ms": 1 }],
///   "repeat": true
/// }
/// ```
///
/// A main turn takes the reply that stands where its conversation does: as many replies are skipped as the request
/// holds assistant turns. So any number of episodes can run at the same time and each hears the replies in order.
/// Sub-agents take theirs in the order they arrive.
///
/// Past the end, `repeat` (the default) begins again with the first reply; without it the generation fails.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The main agent's turns. At least one.
    pub main: Vec<ReplySpec>,
    /// Sub-agents' replies. May be empty when no main turn calls any.
    #[serde(default)]
    pub sub: Vec<ReplySpec>,
    /// Begin again at the end.
    #[serde(default = "yes")]
    pub repeat: bool,
}

const fn yes() -> bool {
    true
}

/// One reply of a [`Script`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplySpec {
    /// What is said, raw: tags and all. The think prefix is not repeated here.
    pub text: String,
    /// Milliseconds before the first token.
    #[serde(default)]
    pub prefill_ms: u32,
    /// Milliseconds before each token (four characters).
    #[serde(default)]
    pub token_ms: u32,
    /// Ends as if the longest output had been reached.
    #[serde(default)]
    pub cut: bool,
    /// Fails with this message after the text.
    #[serde(default)]
    pub fail: Option<String>,
}

impl Script {
    /// Reads a script from a JSON file.
    ///
    /// # Errors
    /// [`EngineError::Load`] when the file can't be read or is not a script.
    pub fn read(path: &Path) -> Result<Self, EngineError> {
        let load = |problem: String| EngineError::Load(format!("the script {}: {problem}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| load(error.to_string()))?;
        let script: Self = serde_json::from_str(&text).map_err(|error| load(error.to_string()))?;
        if script.main.is_empty() {
            return Err(load("it has no main turn".to_owned()));
        }
        Ok(script)
    }

    /// The reply to a request that is its speaker's `call`th.
    pub(super) fn reply(&self, request: &GenerateRequest, call: usize) -> Reply {
        let (replies, at) = match request.speaker {
            Speaker::Main => (&self.main, request.turns.iter().filter(|turn| turn.role == Role::Assistant).count()),
            Speaker::Sub => (&self.sub, call),
        };
        let at = if self.repeat && !replies.is_empty() { at % replies.len() } else { at };
        let name = request.speaker.name();
        replies.get(at).map_or_else(
            || Reply::steps(vec![Step::Fail(EngineError::Failed(format!("the script has no reply {at} for {name}")))]),
            ReplySpec::reply,
        )
    }
}

impl ReplySpec {
    fn reply(&self) -> Reply {
        let wait = |ms: u32| (ms > 0).then(|| Step::Delay(Duration::from_millis(u64::from(ms))));
        let spoken = chunks(&self.text).flat_map(|chunk| wait(self.token_ms).into_iter().chain([Step::Text(chunk)]));
        let end = self.fail.clone().map(|message| Step::Fail(EngineError::Failed(message)));
        let reply = Reply::steps(wait(self.prefill_ms).into_iter().chain(spoken).chain(end).collect());
        if self.cut { reply.finish(FinishReason::Length) } else { reply }
    }
}
