//! What ends a command, and with which exit status.

use std::process::ExitCode;

use super::output::Target;
use super::text;
use crate::agent::AgentError;
use crate::app::AppError;
use crate::config::ConfigError;
use crate::telemetry::LogError;

/// Something that a command is for and that did not come about.
pub(super) fn failed(error: impl std::fmt::Display) -> CliError {
    CliError::Failed(error.to_string())
}

/// A command's failure.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The configuration does not.
    #[error("{}", config_problem(.0))]
    Config(#[from] ConfigError),
    /// Logs can't be set up as asked.
    #[error(transparent)]
    Logs(#[from] LogError),
    /// The parts could not be put together.
    #[error(transparent)]
    App(#[from] AppError),
    /// The episode failed.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The command did not do what it is for.
    #[error("{0}")]
    Failed(String),
    /// Something needed is missing. The command has said what.
    #[error("")]
    Told,
    /// The episode broke off without an answer or an error.
    #[error("the episode ended without an answer")]
    Unfinished,
    /// The terminal, the runtime or a signal handler.
    #[error("{0}")]
    Output(#[from] std::io::Error),
    /// A signal with this number.
    #[error("")]
    Interrupted(u8),
}

impl CliError {
    /// Says what happened in one line on stderr, and gives the exit status.
    #[must_use]
    pub fn report(&self) -> ExitCode {
        let message = text::line(&self.to_string());
        if !message.is_empty() {
            // Without stderr there is no one to tell.
            let _ = Target::Stderr.line(&format!("paravt: {message}"));
        }
        ExitCode::from(self.status())
    }

    const fn status(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Logs(_) => 2,
            Self::Interrupted(signal) => 128 + *signal,
            _ => 1,
        }
    }
}

/// TOML's own messages draw the file over several lines.
fn config_problem(error: &ConfigError) -> String {
    match error {
        ConfigError::Parse(problem) => format!("the configuration is not valid: {}", problem.message()),
        other => other.to_string(),
    }
}
