//! Configuration: parsed once into small documented structs, checked at start.
//!
//! A TOML file, then `PARAVT_<SECTION>_<FIELD>` from the environment (for traces OpenTelemetry's variables too), then the
//! command line; the later wins.
//! Nothing below the command line reads the environment for settings of ours. What the system keeps there (`PATH`, the
//! loader's and the Hub cache's variables) is looked up where it is needed.

mod agent;
mod engine;
mod files;
mod host;
mod keys;
mod media;
mod server;
mod telemetry;

use std::path::Path;

use serde::Deserialize;

pub use agent::{AgentConfig, Dispatch};
pub use engine::{EngineConfig, EngineKind, QuantizationKind, Upstream};
pub use files::FilesConfig;
pub(crate) use host::HostPattern;
pub(crate) use keys::MAX_KEY;
pub use keys::{KeyDigest, KeyEntry, KeyLimits, KeysError, PlainKeys, read_keys};
pub use media::{MediaConfig, OverviewSampling};
pub use server::ServerConfig;
pub use telemetry::TelemetryConfig;

/// Everything that can be set.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The HTTP server.
    pub server: ServerConfig,
    /// What generates.
    pub engine: EngineConfig,
    /// Fetching and decoding.
    pub media: MediaConfig,
    /// Uploaded files.
    pub files: FilesConfig,
    /// Episodes.
    pub agent: AgentConfig,
    /// Traces.
    pub telemetry: TelemetryConfig,
}

/// A configuration that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not there or can't be read.
    #[error("can't read the configuration file {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A variable with a value that does not fit, or for a field there is none of.
    #[error("the environment's {name} is not valid: {error}")]
    Setting {
        /// The variable.
        name: String,
        /// What is wrong.
        error: toml::de::Error,
    },
    /// Not TOML, an unknown key, a wrong type.
    #[error("the configuration is not valid: {0}")]
    Parse(#[from] toml::de::Error),
    /// A name that starts like ours and is none of ours: most likely a slip, and a setting that is silently not set.
    #[error("the environment sets {0}, which is no setting: they are called PARAVT_<SECTION>_<FIELD>")]
    Variable(String),
    /// Right in type, wrong in value.
    #[error("the configuration is not valid: {field} {problem}")]
    Value {
        /// `section.field`.
        field: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl Config {
    /// Reads the file, if one is given, and lays the environment over it.
    ///
    /// # Errors
    /// [`ConfigError`] when the file can't be read, a key or a variable `PARAVT_…` is unknown, or a value is of the wrong
    /// type or out of range.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut table = match file {
            None => toml::Table::new(),
            Some(path) => std::fs::read_to_string(path)
                .map_err(|source| ConfigError::Read { path: path.display().to_string(), source })?
                .parse()
                .map_err(without_its_text)?,
        };
        // Alone first: what is wrong with the file is no variable's fault.
        table.clone().try_into::<Self>()?;
        for (name, value) in environment {
            if overlay(&mut table, &name, &value)? {
                // Read after each, so that an error names the variable. There are few, and this is done once.
                table.clone().try_into::<Self>().map_err(|error| ConfigError::Setting { name, error })?;
            }
        }
        let config: Self = table.try_into()?;
        config.check()?;
        Ok(config)
    }

    /// Checks what types can't.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for the first value out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.server.check()?;
        self.media.check()?;
        self.files.check(&self.media.allowed_directories)?;
        self.agent.check()?;
        self.telemetry.check()
    }
}

const SECTIONS: [&str; 6] = ["server", "engine", "media", "files", "agent", "telemetry"];

/// A line that can't be read may hold a key: it is not quoted.
fn without_its_text(mut error: toml::de::Error) -> toml::de::Error {
    error.set_input(None);
    error
}

/// Variables that start like settings and are none: logs and the installation of ffmpeg belong to the command line, the
/// last to a test.
const NO_SETTINGS: [&str; 4] = ["PARAVT_LOG", "PARAVT_LOG_FORMAT", "PARAVT_FFMPEG_INSTALL", "PARAVT_UPDATE_OPENAPI"];

/// Whether Kubernetes (or a Docker link) set the variable, as it does in every pod beside a Service called `paravt…`:
/// `PARAVT_SERVICE_HOST`, `PARAVT_SERVICE_PORT_HTTP`, `PARAVT_PORT`, `PARAVT_PORT_8080_TCP_ADDR`.
fn is_of_a_service(name: &str) -> bool {
    let numbered = |rest: &str| rest.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with('_');
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || name.match_indices("_PORT_").any(|(at, found)| numbered(&name[at + found.len()..]))
}

/// Puts `PARAVT_MEDIA_MAX_BYTES=5` at `media.max_bytes`. The value is read as TOML where it is, else as a string. False: it is
/// no setting.
fn overlay(table: &mut toml::Table, name: &str, value: &str) -> Result<bool, ConfigError> {
    if let Some((field, value)) = telemetry::standard(name, value) {
        put(table, "telemetry", field, value);
        return Ok(true);
    }
    let Some(rest) = name.strip_prefix("PARAVT_").map(str::to_ascii_lowercase) else { return Ok(false) };
    if NO_SETTINGS.contains(&name) || is_of_a_service(name) {
        return Ok(false);
    }
    let Some((section, field)) = rest.split_once('_').filter(|(section, _)| SECTIONS.contains(section)) else {
        return Err(ConfigError::Variable(name.to_owned()));
    };
    let value = format!("v = {value}")
        .parse::<toml::Table>()
        .ok()
        .and_then(|mut parsed| parsed.remove("v"))
        .unwrap_or_else(|| toml::Value::String(value.to_owned()));
    put(table, section, field, value);
    Ok(true)
}

fn put(table: &mut toml::Table, section: &str, field: &str, value: toml::Value) {
    let entry = table.entry(section).or_insert_with(|| toml::Value::Table(toml::Table::new()));
    if let Some(entry) = entry.as_table_mut() {
        entry.insert(field.to_owned(), value);
    }
}

/// A number that must not be 0.
fn positive(value: u64, field: &'static str) -> Result<(), ConfigError> {
    if value > 0 { Ok(()) } else { Err(ConfigError::Value { field, problem: "must be above 0" }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn the_environment_wins_over_the_file() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("paravt.toml");
        std::fs::write(&path, "[server]\nlisten = \"0.0.0.0:1\"\n[media]\nmax_bytes = 7\n").expect("write");
        let config =
            Config::load(Some(&path), env(&[("PARAVT_MEDIA_MAX_BYTES", "9"), ("PATH", "/bin")])).expect("loads");
        assert_eq!(config.media.max_bytes, 9);
        assert_eq!(config.server.listen.port(), 1);
    }

    #[test]
    fn variables_that_an_orchestrator_sets_for_a_service_of_our_name_are_no_settings() {
        let names = [
            "PARAVT_SERVICE_HOST",
            "PARAVT_SERVICE_PORT",
            "PARAVT_SERVICE_PORT_HTTP",
            "PARAVT_PORT",
            "PARAVT_PORT_8080_TCP_ADDR",
            "PARAVT_SERVER_SERVICE_HOST",
            "PARAVT_SERVER_PORT_8080_TCP",
        ];
        for name in names {
            assert!(Config::load(None, env(&[(name, "tcp://10.0.0.1:8080")])).is_ok(), "{name}");
        }
        assert!(Config::load(None, env(&[("PARAVT_SERVR_LISTEN", "x")])).is_err());
    }

    #[test]
    fn an_error_names_the_variable() {
        let error = Config::load(None, env(&[("PARAVT_MEDIA_ALLOWED_DIRECTORIES", "/srv")])).expect_err("no list");
        assert!(error.to_string().contains("PARAVT_MEDIA_ALLOWED_DIRECTORIES"), "{error}");
        assert!(Config::load(None, env(&[("PARAVT_MEDIA_ALLOWED_DIRECTORIES", "[\"/srv\"]")])).is_ok());
    }

    #[test]
    fn what_is_wrong_with_the_file_is_no_variables_fault() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("paravt.toml");
        std::fs::write(&path, "[server]\nlisn = 5\n").expect("write");
        for name in ["PATH", "PARAVT_MEDIA_MAX_BYTES"] {
            let error = Config::load(Some(&path), env(&[(name, "9")])).expect_err("an unknown key");
            assert!(matches!(&error, ConfigError::Parse(_)) && error.to_string().contains("lisn"), "{error}");
        }
    }

    #[test]
    fn a_broken_line_is_not_quoted() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("paravt.toml");
        std::fs::write(&path, "[server]\nkeys = [\"paravt-secret]\n").expect("write");
        let error = Config::load(Some(&path), []).expect_err("no TOML");
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn an_unknown_key_is_an_error() {
        assert!(Config::load(None, env(&[("PARAVT_MEDIA_MAX_BITES", "9")])).is_err());
    }

    #[test]
    fn an_unknown_section_is_an_error_and_what_is_no_setting_is_not() {
        for name in ["PARAVT_SERVR_LISTEN", "PARAVT_SERVER", "PARAVT_", "PARAVT_MAX_BYTES"] {
            let error = Config::load(None, env(&[(name, "9")])).expect_err(name);
            assert!(matches!(&error, ConfigError::Variable(told) if told == name), "{error}");
        }
        let others = env(&[("PARAVT_LOG", "debug"), ("PARAVT_LOG_FORMAT", "json"), ("PARAVT_FFMPEG_INSTALL", "never")]);
        assert!(Config::load(None, others).is_ok());
        assert!(Config::load(None, env(&[("PARAVTX_Y", "1"), ("paravt_server", "1")])).is_ok());
    }

    #[test]
    fn a_value_out_of_range_is_an_error() {
        for name in [
            "AGENT_WINDOW_DEADLINE_S",
            "AGENT_EPISODE_DEADLINE_S",
            "SERVER_MAX_RUNNING",
            "SERVER_KEEP_ALIVE_S",
            "FILES_EXPIRE_AFTER_S",
            "MEDIA_MAX_PROCESSES",
            "MEDIA_MAX_DURATION_S",
            "MEDIA_MAX_PIXELS",
            "MEDIA_MAX_PROCESS_BYTES",
        ] {
            let error = Config::load(None, env(&[(&format!("PARAVT_{name}"), "0")])).expect_err(name);
            let ConfigError::Value { field, .. } = error else { panic!("{name}: {error}") };
            assert_eq!(field.replace('.', "_").to_uppercase(), name);
        }
    }

    #[test]
    fn the_default_is_valid() {
        assert!(Config::default().check().is_ok());
    }
}
