//! The only place that wires the parts together: configuration and card in, an agent or a server out.
//!
//! Knows every room's front and none of their insides; knows nothing of arguments or terminals.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::agent::Agent;
use crate::api::{self, ApiState};
use crate::card::checkpoint::{self, CheckpointError};
use crate::card::{self, CardError, ModelCard};
use crate::config::{Config, EngineConfig, EngineKind, KeysError};
use crate::engine::remote::RemoteEngine;
use crate::engine::scripted::{Script, ScriptedEngine};
use crate::engine::{Engine, EngineError};
use crate::media::{Media, MediaError, UploadError, Uploads};
use crate::metrics::{Metrics, MetricsError};
use crate::shutdown::{Shutdown, follow_signals};
use crate::telemetry::otlp::{self, TraceError};

/// Parts that can't be put together.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The card.
    #[error(transparent)]
    Card(#[from] CardError),
    /// The checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Media.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The folder of uploaded files.
    #[error("the folder of uploaded files (files.directory) can't be used: {0}")]
    Uploads(#[from] UploadError),
    /// The configuration asks for what was not built in, or leaves out what is needed.
    #[error("{0}")]
    Setup(String),
    /// The address is taken, or not ours.
    #[error("can't listen on {address}: {cause}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        cause: std::io::Error,
    },
    /// The file of keys.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// Metrics.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// Traces.
    #[error(transparent)]
    Traces(#[from] TraceError),
    /// The server.
    #[error("the server can't run: {0}")]
    Serve(#[from] std::io::Error),
    /// A task of ours ended before its time.
    #[error("{0} broke off")]
    BrokeOff(&'static str),
}

/// A configuration with its card. Cheap to clone.
#[derive(Debug, Clone)]
pub struct App {
    config: Arc<Config>,
    card: Arc<ModelCard>,
}

impl App {
    /// Reads the card that the configuration names.
    ///
    /// # Errors
    /// [`AppError::Setup`] for settings that the engine has no use for, [`AppError::Card`].
    pub fn new(config: Config) -> Result<Self, AppError> {
        config.engine.check().map_err(|error| AppError::Setup(error.to_string()))?;
        let card = ModelCard::load(card::chosen(&config.engine))?;
        card.fits(config.engine.chosen_kind()).map_err(AppError::Setup)?;
        Ok(Self { config: Arc::new(config), card: Arc::new(card) })
    }

    /// The card.
    #[must_use]
    pub fn card(&self) -> &ModelCard {
        &self.card
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Finds the checkpoint, and downloads it where it is not here yet; `bars` shows how far that is where stderr is a
    /// terminal. `None` for engines that load none.
    ///
    /// # Errors
    /// [`AppError::Checkpoint`].
    pub async fn checkpoint(&self, bars: bool) -> Result<Option<PathBuf>, AppError> {
        let kind = self.config.engine.chosen_kind();
        if !kind.is_embedded() || !kind.is_built_in() {
            return Ok(None);
        }
        Ok(Some(checkpoint::resolve(&self.card, &self.config.engine, bars).await?))
    }

    /// Media alone, for what needs no model.
    ///
    /// # Errors
    /// [`AppError::Media`].
    pub fn media(&self) -> Result<Media, AppError> {
        Ok(Media::new(self.config.media.clone())?)
    }

    /// Loads the engine and puts an agent on it. Media come first: it takes no time to see that ffmpeg is missing.
    ///
    /// # Errors
    /// [`AppError`] of the part that fails.
    pub async fn agent(&self, checkpoint: Option<&Path>) -> Result<Agent, AppError> {
        let media = self.media()?;
        let engine = self.engine(checkpoint).await?;
        Ok(Agent::new(Arc::clone(&self.card), engine, media, self.config.agent.clone()))
    }

    /// Loads the engine alone, for what needs no media.
    ///
    /// # Errors
    /// [`AppError`] of the part that fails.
    pub async fn engine(&self, checkpoint: Option<&Path>) -> Result<Arc<dyn Engine>, AppError> {
        let config = &self.config.engine;
        match config.chosen_kind() {
            EngineKind::Native => native(config, needed(checkpoint), Drafts::Looked).await,
            EngineKind::Mistralrs => mistralrs(config, needed(checkpoint)).await,
            EngineKind::Remote => Ok(Arc::new(RemoteEngine::new(config, self.card.name.clone())?)),
            EngineKind::Scripted => {
                let path = config.script.as_deref();
                let path = path.ok_or_else(|| AppError::Setup("the scripted engine needs --script FILE".to_owned()))?;
                Ok(Arc::new(ScriptedEngine::from_script(Script::read(path)?)))
            }
        }
    }

    /// Loads the engine alone and has it guess no tokens ahead. `None`: it can't be told to, or never does.
    ///
    /// # Errors
    /// As [`App::engine`].
    pub async fn plain_engine(&self, checkpoint: Option<&Path>) -> Result<Option<Arc<dyn Engine>>, AppError> {
        let config = &self.config.engine;
        match config.chosen_kind() {
            EngineKind::Native => native(config, needed(checkpoint), Drafts::Never).await.map(Some),
            EngineKind::Mistralrs | EngineKind::Remote | EngineKind::Scripted => Ok(None),
        }
    }

    /// Serves the API: listens at once, loads the model meanwhile, and stops at a signal (the first lets episodes finish,
    /// the second does not).
    ///
    /// # Errors
    /// [`AppError`] when the address is taken, or one for others without keys, when the keys can't be read, and when the model
    /// does not load: a server without one is of no use.
    pub async fn serve(self) -> Result<(), AppError> {
        self.config.server.check_exposure().map_err(|error| AppError::Setup(error.to_string()))?;
        let uploads = Uploads::new(self.config.files.clone())?;
        let served = self.serve_with(uploads.clone()).await;
        uploads.close().await;
        served
    }

    async fn serve_with(self, uploads: Uploads) -> Result<(), AppError> {
        let address = self.config.server.listen;
        let listener = TcpListener::bind(address).await.map_err(|cause| AppError::Listen { address, cause })?;
        tracing::info!(address = %listener.local_addr()?, model = self.card.name, "listening; the model is being loaded");
        let shutdown = Shutdown::new();
        let metrics = Metrics::new()?;
        let (card, config) = (Arc::clone(&self.card), self.config.server.clone());
        let state = ApiState::new(card, config, uploads, metrics, shutdown.clone());
        state.load_keys()?;
        let traces = otlp::start(&self.config.telemetry, &self.card.name)?;
        let exporting = traces.map(|(tracer, exporting)| {
            state.set_tracer(tracer);
            exporting
        });
        let served = self.served(listener, state, shutdown).await;
        if let Some(exporting) = exporting {
            exporting.finish().await;
        }
        served
    }

    async fn served(self, listener: TcpListener, state: ApiState, shutdown: Shutdown) -> Result<(), AppError> {
        let mut signals = pin!(follow_signals(shutdown));
        let mut server = pin!(api::serve(listener, state.clone()));
        let mut loading = AbortOnDropHandle::new(tokio::spawn(async move {
            let checkpoint = self.checkpoint(true).await?;
            self.agent(checkpoint.as_deref()).await
        }));
        tokio::select! {
            result = &mut server => return Ok(result?),
            stopped = &mut signals => match stopped? {},
            loaded = &mut loading => {
                let agent = loaded.map_err(|_| AppError::BrokeOff("loading the model"))??;
                let engine = agent.engine().info();
                tracing::info!(engine = engine.name, detail = engine.detail, "ready");
                state.set_agent(agent);
            },
        }
        tokio::select! {
            result = server => Ok(result?),
            stopped = signals => match stopped? {},
        }
    }
}

/// The folder that [`App::checkpoint`] found.
fn needed(checkpoint: Option<&Path>) -> Result<&Path, AppError> {
    checkpoint.ok_or_else(|| AppError::Setup("an embedded engine needs a checkpoint".to_owned()))
}

/// Whether the native engine guesses tokens ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drafts {
    Looked,
    Never,
}

#[cfg(feature = "native")]
async fn native(
    config: &EngineConfig,
    checkpoint: Result<&Path, AppError>,
    drafts: Drafts,
) -> Result<Arc<dyn Engine>, AppError> {
    use crate::config::QuantizationKind;
    use crate::engine::native::{Native, NativeOptions, Quantization};
    let mut options = NativeOptions::default();
    if drafts == Drafts::Never {
        options.max_drafts = 0;
    }
    if config.max_queued > 0 {
        options.max_queued = config.max_queued;
    }
    if config.max_prompt_tokens > 0 {
        options.max_prompt_tokens = Some(config.max_prompt_tokens);
    }
    let bytes = |bytes: u64, key: &str| {
        usize::try_from(bytes).map_err(|_| AppError::Setup(format!("{key} is more than this machine can address")))
    };
    if config.kv_cache_bytes > 0 {
        options.kv_cache_bytes = Some(bytes(config.kv_cache_bytes, "engine.kv_cache_bytes")?);
    }
    if config.vision_cache_bytes > 0 {
        options.vision_cache_bytes = bytes(config.vision_cache_bytes, "engine.vision_cache_bytes")?;
    }
    if config.max_pixel_bytes > 0 {
        options.max_pixel_bytes = bytes(config.max_pixel_bytes, "engine.max_pixel_bytes")?;
    }
    options.quantization = config.quantization.map(|kind| match kind {
        QuantizationKind::Q8 => Quantization::Q8_0,
        QuantizationKind::Q4 => Quantization::Q4K,
    });
    Ok(Arc::new(Native::load(checkpoint?, options).await?))
}

#[cfg(not(feature = "native"))]
async fn native(_: &EngineConfig, _: Result<&Path, AppError>, _: Drafts) -> Result<Arc<dyn Engine>, AppError> {
    Err(not_built_in(EngineKind::Native))
}

#[cfg(feature = "mistralrs")]
async fn mistralrs(config: &EngineConfig, checkpoint: Result<&Path, AppError>) -> Result<Arc<dyn Engine>, AppError> {
    use crate::engine::mistralrs::{MistralRs, MistralRsOptions};
    let mut options = MistralRsOptions::default();
    if config.max_queued > 0 {
        options.max_queued = config.max_queued;
    }
    if config.max_prompt_tokens > 0 {
        options.max_prompt_tokens = Some(config.max_prompt_tokens);
    }
    Ok(Arc::new(MistralRs::load(checkpoint?, options).await?))
}

#[cfg(not(feature = "mistralrs"))]
async fn mistralrs(_: &EngineConfig, _: Result<&Path, AppError>) -> Result<Arc<dyn Engine>, AppError> {
    Err(not_built_in(EngineKind::Mistralrs))
}

#[cfg(not(all(feature = "native", feature = "mistralrs")))]
fn not_built_in(kind: EngineKind) -> AppError {
    let name = kind.name();
    AppError::Setup(format!(
        "this paravt was built without the feature `{name}`: give --upstream URL, or build it with the feature"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_with_frames_in_pairs_is_for_engines_that_read_them() {
        let bundled = ModelCard::load(Path::new(card::DEFAULT)).expect("the bundled card").folder.join("card.toml");
        let card = std::fs::read_to_string(bundled).expect("reads");
        let folder = tempfile::tempdir().expect("a folder");
        let card = card.replace("think_prefix =", "frame_pairs = true\nthink_prefix =");
        std::fs::write(folder.path().join("card.toml"), card).expect("writes");
        for (kind, reads) in [
            (EngineKind::Native, true),
            (EngineKind::Scripted, true),
            (EngineKind::Mistralrs, false),
            (EngineKind::Remote, false),
        ] {
            let mut config = Config::default();
            config.engine.card = Some(folder.path().to_owned());
            config.engine.kind = Some(kind);
            let app = App::new(config);
            assert_eq!(app.is_ok(), reads, "{kind:?}: {:?}", app.err());
        }
    }
}
