//! Episodes: how windows are dispatched and how long things may take.

use serde::{Deserialize, Serialize};

use super::{ConfigError, positive};

/// Settings of the agent. Budgets of frames, turns and calls belong to the model card.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// How a burst is run when the request doesn't say.
    pub dispatch: Dispatch,
    /// Seconds one window may take, from its call to its summary.
    pub window_deadline_s: u64,
    /// Seconds a whole episode may take.
    pub episode_deadline_s: u64,
    /// Give all windows of a burst the same number of frames where the engine batches only equal shapes.
    pub align_bursts: bool,
}

/// One after another, or all at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Dispatch {
    /// All windows of a burst at the same time.
    Parallel,
    /// One window after another, each in a turn of its own.
    Sequential,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self { dispatch: Dispatch::Parallel, window_deadline_s: 120, episode_deadline_s: 600, align_bursts: true }
    }
}

impl AgentConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        positive(self.window_deadline_s, "agent.window_deadline_s")?;
        positive(self.episode_deadline_s, "agent.episode_deadline_s")
    }
}
