//! `paravt serve`: the HTTP server.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::options::EngineArgs;
use super::{CliError, Environment};
use crate::app::App;
use crate::config::Config;

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Address to listen on [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Folder below which file:// URLs may point; may be given several times
    #[arg(long, value_name = "DIR")]
    allow_dir: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
}

/// Runs the command: until a signal, or until the model turns out not to load.
pub(super) async fn run(args: &ServeArgs, mut config: Config, environment: &Environment) -> Result<(), CliError> {
    args.engine.lay_over(&mut config.engine, environment)?;
    config.server.listen = args.listen.unwrap_or(config.server.listen);
    config.media.allowed_directories.extend(args.allow_dir.iter().cloned());
    config.check()?;
    Ok(App::new(config)?.serve().await?)
}
