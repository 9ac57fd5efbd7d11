//! What leaves the process for its operators: logs here, traces in [`otlp`].
//!
//! Logs: what is written, and how. Always on stderr; stdout belongs to answers. Knows nothing of commands: they say how much
//! they want to be told.

pub mod otlp;

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// How logs are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// Directives as tracing's `EnvFilter` reads them.
    pub filter: String,
    /// One JSON object a line.
    pub json: bool,
    /// Colours, where stderr is a terminal.
    pub colour: bool,
}

/// Logs that can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Not a filter.
    #[error("the log filter is not valid: {0}")]
    Filter(String),
    /// Not a format.
    #[error("the log format is `text` or `json`, not `{0}`")]
    Format(String),
    /// Something else has taken the logs.
    #[error("logs can't be set up: {0}")]
    Taken(String),
}

impl LogConfig {
    /// What `-v` and the variables `PARAVT_LOG` and `PARAVT_LOG_FORMAT` ask for. A server tells what it does (`info`), a
    /// command only what is wrong (`warn`).
    ///
    /// # Errors
    /// [`LogError::Format`].
    pub fn new(filter: Option<&str>, format: Option<&str>, verbose: u8, server: bool) -> Result<Self, LogError> {
        let json = match format.unwrap_or("text") {
            "text" | "" => false,
            "json" => true,
            other => return Err(LogError::Format(other.to_owned())),
        };
        // The engine's libraries narrate at every level; they are let in step by step.
        let default = match (verbose, server) {
            (0, false) => "warn,mistralrs=off,mistralrs_core=off,mistralrs_quant=off,mistralrs_vision=off,hf_hub=off",
            (0, true) => {
                "info,mistralrs=warn,mistralrs_core=warn,mistralrs_quant=warn,mistralrs_vision=warn,hf_hub=warn"
            }
            (1, _) => "info,mistralrs=warn,mistralrs_core=warn,mistralrs_quant=warn,mistralrs_vision=warn",
            (2, _) => "info,paravt=debug",
            (3.., _) => "debug,paravt=trace,hyper=info,h2=info",
        };
        // Whoever sends a file decides how much the libraries that read containers have to say of it.
        let default = || format!("{default},mkv_element=off,mp4_atom=off");
        let own = filter.filter(|filter| !filter.trim().is_empty());
        let filter = own.map_or_else(default, str::to_owned);
        Ok(Self { filter, json, colour: true })
    }

    /// Starts logging for the whole process.
    ///
    /// # Errors
    /// [`LogError`] when the filter is not valid, or when called twice.
    pub fn start(&self) -> Result<(), LogError> {
        let filter = EnvFilter::try_new(&self.filter).map_err(|error| LogError::Filter(error.to_string()))?;
        let colour = self.colour && std::io::stderr().is_terminal();
        let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colour);
        let started = if self.json { builder.json().try_init() } else { builder.compact().try_init() };
        started.map_err(|error| LogError::Taken(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_filter_is_valid() {
        for verbose in 0..5 {
            for server in [false, true] {
                let config = LogConfig::new(None, None, verbose, server).expect("valid");
                assert!(EnvFilter::try_new(&config.filter).is_ok(), "{}", config.filter);
                assert!(config.filter.contains("mkv_element=off"), "a file must not fill the logs");
            }
        }
    }

    #[test]
    fn a_filter_of_ones_own_wins_and_an_empty_one_does_not_count() {
        assert_eq!(LogConfig::new(Some("debug"), None, 0, true).expect("valid").filter, "debug");
        assert!(LogConfig::new(Some(" "), Some("json"), 0, true).expect("valid").filter.starts_with("info"));
    }

    #[test]
    fn an_unknown_format_is_an_error() {
        assert!(matches!(LogConfig::new(None, Some("xml"), 0, true), Err(LogError::Format(_))));
    }
}
