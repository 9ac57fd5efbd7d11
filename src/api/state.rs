//! What handlers share.

use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use super::admission::Admission;
use super::error::ApiError;
use crate::agent::Agent;
use crate::card::ModelCard;
use crate::config::ServerConfig;
use crate::metrics::{Metrics, Readings};
use crate::shutdown::Shutdown;

/// What handlers share. Cheap to clone. It exists before the model does, so that the server can say "loading".
#[derive(Debug, Clone)]
pub struct ApiState {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    card: Arc<ModelCard>,
    config: ServerConfig,
    metrics: Metrics,
    admission: Admission,
    shutdown: Shutdown,
    agent: OnceLock<Agent>,
    created: u64,
}

impl ApiState {
    /// A server that is still loading its model.
    #[must_use]
    pub fn new(card: Arc<ModelCard>, config: ServerConfig, metrics: Metrics, shutdown: Shutdown) -> Self {
        let admission = Admission::new(&config, shutdown.clone());
        let created = now();
        let inner = Inner { card, config, metrics, admission, shutdown, agent: OnceLock::new(), created };
        Self { inner: Arc::new(inner) }
    }

    /// The model is loaded: from here on questions are answered. Only the first call counts.
    pub fn set_agent(&self, agent: Agent) {
        if self.inner.agent.set(agent).is_err() {
            tracing::warn!("the agent was set twice; the first one stays");
        }
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
        let media = agent.map(|agent| agent.media().load()).unwrap_or_default();
        Readings {
            running: self.inner.admission.running(),
            queued: self.inner.admission.queued(),
            engine_running: engine.running,
            engine_queued: engine.queued,
            processes: media.processes,
            cache_hits: media.cache_hits,
            cache_misses: media.cache_misses,
            cache_bytes: usize::try_from(media.cache_bytes).unwrap_or(usize::MAX),
        }
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
