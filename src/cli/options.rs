//! Command line flags that several commands share, laid over the configuration.

use std::path::PathBuf;

use clap::Args;

use super::{CliError, Environment};
use crate::config::{EngineConfig, EngineKind, Upstream};

/// Which model, and what runs it.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Model")]
pub(super) struct EngineArgs {
    /// Model card: the name of a bundled card, or a folder with a card.toml [default: paravt-tiny]
    #[arg(long, value_name = "NAME|DIR")]
    card: Option<PathBuf>,
    /// Checkpoint folder in Hugging Face layout, in place of the card's
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// What generates [default: remote with --upstream, else native]
    #[arg(long, value_enum, value_name = "ENGINE")]
    engine: Option<EngineKind>,
    /// OpenAI-compatible server that has the model, with its /v1; several are replicas of each other
    #[arg(long, value_name = "URL")]
    upstream: Vec<String>,
    /// Environment variable that holds the upstreams' key
    #[arg(long, value_name = "VARIABLE", requires = "upstream")]
    upstream_key_env: Option<String>,
    /// The model's name at the upstreams [default: the card's]
    #[arg(long, value_name = "NAME")]
    upstream_model: Option<String>,
    /// Script of the scripted engine (JSON)
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Never ask the Hub: use what is cached
    #[arg(long)]
    offline: bool,
}

impl EngineArgs {
    /// Puts what was given over what was configured.
    pub(super) fn lay_over(&self, config: &mut EngineConfig, environment: &Environment) -> Result<(), CliError> {
        if !self.upstream.is_empty() {
            let key = self.upstream_key_env.as_deref().map(|name| {
                environment.get(name).map(str::to_owned).ok_or_else(|| {
                    CliError::Usage(format!("--upstream-key-env: the environment has no variable {name}"))
                })
            });
            let api_key = key.transpose()?;
            config.upstreams =
                self.upstream.iter().map(|url| Upstream { url: url.clone(), api_key: api_key.clone() }).collect();
            // Naming an upstream is asking for it, whatever the file says.
            config.kind = Some(EngineKind::Remote);
        }
        config.kind = self.engine.or(config.kind);
        overwrite(&mut config.card, self.card.as_ref());
        overwrite(&mut config.model_directory, self.model.as_ref());
        overwrite(&mut config.upstream_model, self.upstream_model.as_ref());
        overwrite(&mut config.script, self.script.as_ref());
        config.offline |= self.offline;
        Ok(())
    }

    /// The variable that holds the upstreams' key.
    pub(super) fn key_variable(&self) -> Option<&str> {
        self.upstream_key_env.as_deref()
    }

    /// Whether the command line names a card.
    pub(super) const fn has_card(&self) -> bool {
        self.card.is_some()
    }
}

fn overwrite<T: Clone>(configured: &mut Option<T>, given: Option<&T>) {
    if let Some(given) = given {
        *configured = Some(given.clone());
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        engine: EngineArgs,
    }

    fn laid(over: EngineConfig, arguments: &[&str], environment: &[(&str, &str)]) -> Result<EngineConfig, CliError> {
        let only = Only::parse_from(std::iter::once(&"paravt").chain(arguments));
        let environment = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let mut config = over;
        only.engine.lay_over(&mut config, &environment).map(|()| config)
    }

    #[test]
    fn what_is_not_given_stays_as_configured() {
        let configured = EngineConfig {
            card: Some("a".into()),
            kind: Some(EngineKind::Scripted),
            offline: true,
            ..Default::default()
        };
        let config = laid(configured, &[], &[]).expect("lays");
        assert_eq!((config.card, config.kind, config.offline), (Some("a".into()), Some(EngineKind::Scripted), true));
    }

    #[test]
    fn an_upstream_replaces_the_configured_engine_unless_one_is_named() {
        let configured = || EngineConfig { kind: Some(EngineKind::Mistralrs), ..Default::default() };
        let config =
            laid(configured(), &["--upstream", "http://a/v1", "--upstream", "http://b/v1"], &[]).expect("lays");
        assert_eq!((config.kind, config.upstreams.len()), (Some(EngineKind::Remote), 2));
        let config = laid(configured(), &["--upstream", "http://a/v1", "--engine", "scripted"], &[]).expect("lays");
        assert_eq!(config.kind, Some(EngineKind::Scripted));
    }

    #[test]
    fn the_key_comes_from_the_environment_and_never_shows() {
        let arguments = ["--upstream", "http://a/v1", "--upstream-key-env", "KEY"];
        let config = laid(EngineConfig::default(), &arguments, &[("KEY", "secret")]).expect("lays");
        assert_eq!(config.upstreams[0].api_key.as_deref(), Some("secret"));
        assert!(!format!("{config:?}").contains("secret"));
        assert!(matches!(laid(EngineConfig::default(), &arguments, &[]), Err(CliError::Usage(_))));
    }
}
