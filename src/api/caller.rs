//! Who asks. Without keys, everybody is the same nobody in particular.

use std::convert::Infallible;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::config::KeyLimits;

/// Who asks. Put into a request's extensions by whoever checks keys; where nobody does, all callers are [`Self::default`].
///
/// Two callers are the same when their names are: limits may change while a caller waits.
#[derive(Debug, Clone, Default)]
pub(super) struct Caller {
    /// Name of the key, never the key.
    name: Option<Arc<str>>,
    limits: KeyLimits,
    /// Names of the models it may use; `None`: all.
    models: Option<Arc<[String]>>,
    /// Whether there are others with keys of their own.
    shares: bool,
}

impl Caller {
    /// The holder of a key of this name.
    pub(super) const fn new(name: Arc<str>, limits: KeyLimits, models: Option<Arc<[String]>>) -> Self {
        Self { name: Some(name), limits, models, shares: false }
    }

    /// The same, as one of so many keys.
    pub(super) fn among(self, keys: usize) -> Self {
        Self { shares: keys > 1, ..self }
    }

    /// Whether it has to leave room for others, who have keys of their own.
    pub(super) const fn shares(&self) -> bool {
        self.shares
    }

    /// The name of its key; empty without one.
    pub(super) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// What it may ask of the server.
    pub(super) const fn limits(&self) -> KeyLimits {
        self.limits
    }

    /// Whether it may use the model of this card.
    pub(super) fn may_use(&self, model: &str) -> bool {
        self.models.as_ref().is_none_or(|models| models.iter().any(|name| name == model))
    }
}

impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Caller {}

impl Hash for Caller {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}
