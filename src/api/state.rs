//! What handlers share.

use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use super::admission::Admission;
use super::error::ApiError;
use super::keys::Keyring;
use crate::agent::Agent;
use crate::card::ModelCard;
use crate::config::{KeysError, ServerConfig};
use crate::media::Uploads;
use crate::metrics::{Metrics, Readings};
use crate::shutdown::Shutdown;
use crate::traces::Tracer;

/// What handlers share. Cheap to clone. It exists before the model does, so that the server can say "loading".
#[derive(Debug, Clone)]
pub struct ApiState {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    card: Arc<ModelCard>,
    config: ServerConfig,
    uploads: Uploads,
    metrics: Metrics,
    admission: Admission,
    keys: Arc<Keyring>,
    shutdown: Shutdown,
    agent: OnceLock<Agent>,
    tracer: OnceLock<Arc<dyn Tracer>>,
    created: u64,
}

impl ApiState {
    /// A server that is still loading its model.
    #[must_use]
    pub fn new(
        card: Arc<ModelCard>,
        config: ServerConfig,
        uploads: Uploads,
        metrics: Metrics,
        shutdown: Shutdown,
    ) -> Self {
        let admission = Admission::new(&config, shutdown.clone());
        let keys = Arc::new(Keyring::new(&config));
        let created = now();
        metrics.build(env!("CARGO_PKG_VERSION"), &card.name);
        let (agent, tracer) = (OnceLock::new(), OnceLock::new());
        let inner = Inner { card, config, uploads, metrics, admission, keys, shutdown, agent, tracer, created };
        Self { inner: Arc::new(inner) }
    }

    /// Reads the file of keys, if one is configured. Until then, none of its keys opens anything. Blocks.
    ///
    /// # Errors
    /// [`KeysError`] when the file can't be used.
    pub fn load_keys(&self) -> Result<(), KeysError> {
        self.inner.keys.load()
    }

    /// The model is loaded: from here on questions are answered. Only the first call counts.
    pub fn set_agent(&self, agent: Agent) {
        if self.inner.agent.set(agent).is_err() {
            tracing::warn!("the agent was set twice; the first one stays");
        }
    }

    /// From here on episodes are told to it. Only the first call counts.
    pub fn set_tracer(&self, tracer: Arc<dyn Tracer>) {
        if self.inner.tracer.set(tracer).is_err() {
            tracing::warn!("the tracer was set twice; the first one stays");
        }
    }

    /// Whom episodes are told to, if anybody.
    pub(super) fn tracer(&self) -> Option<&Arc<dyn Tracer>> {
        self.inner.tracer.get()
    }

    /// The stop switch that this server obeys.
    #[must_use]
    pub fn shutdown(&self) -> &Shutdown {
        &self.inner.shutdown
    }

    /// The metrics this server writes.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    pub(super) fn card(&self) -> &ModelCard {
        &self.inner.card
    }

    pub(super) fn config(&self) -> &ServerConfig {
        &self.inner.config
    }

    pub(super) fn admission(&self) -> &Admission {
        &self.inner.admission
    }

    pub(super) fn uploads(&self) -> &Uploads {
        &self.inner.uploads
    }

    pub(super) fn keys(&self) -> &Arc<Keyring> {
        &self.inner.keys
    }

    pub(super) fn created(&self) -> u64 {
        self.inner.created
    }

    /// The agent, when questions can be answered.
    pub(super) fn ready(&self) -> Result<&Agent, ApiError> {
        if self.inner.shutdown.is_draining() {
            return Err(ApiError::Draining);
        }
        self.inner.agent.get().ok_or(ApiError::Loading)
    }

    pub(super) fn readings(&self) -> Readings {
        let agent = self.inner.agent.get();
        let engine = agent.map(|agent| agent.engine().load()).unwrap_or_default();
        let upstreams = agent.map(|agent| agent.engine().upstreams()).unwrap_or_default();
        let media = agent.map(|agent| agent.media().load()).unwrap_or_default();
        let spans = self.tracer().map(|tracer| tracer.counts()).unwrap_or_default();
        let (running, queued) = (self.inner.admission.running(), self.inner.admission.queued());
        Readings {
            running: running.count,
            queued: queued.count,
            running_cost: running.cost,
            queued_cost: queued.cost,
            engine_running: engine.running,
            engine_queued: engine.queued,
            upstreams: upstreams.into_iter().map(|upstream| (upstream.up, upstream.outstanding)).collect(),
            processes: media.processes,
            process_failures: media.process_failures,
            fetched_bytes: media.fetched_bytes,
            cache_hits: media.cache_hits,
            cache_misses: media.cache_misses,
            cache_bytes: usize::try_from(media.cache_bytes).unwrap_or(usize::MAX),
            uploads_bytes: usize::try_from(self.inner.uploads.bytes()).unwrap_or(usize::MAX),
            spans_exported: spans.exported,
            spans_dropped: spans.dropped,
        }
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
