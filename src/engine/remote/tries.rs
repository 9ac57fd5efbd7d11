//! One request's tries: on one replica after the other, until one answers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;

use super::Http;
use super::events::Body;
use super::frames::blocking;
use super::generation::Asked;
use super::refusal::Trouble;
use super::replicas::{MOST_TRIES, Outcome, Place, Replicas, Wish};
use super::request;
use crate::engine::{EngineError, GenerateRequest};

/// A request's tries. It is never sent to one replica twice.
#[derive(Debug)]
pub(super) struct Tries {
    http: Arc<Http>,
    model: Arc<str>,
    request: GenerateRequest,
    /// The request's frames.
    urls: Vec<Arc<str>>,
    /// See [`Wish`].
    prefix: Option<u64>,
    body: Bytes,
    tried: Vec<usize>,
    /// Some replica was only busy.
    busy: bool,
}

/// A place on a replica. Dropping it gives the place back.
#[derive(Debug)]
pub(super) struct Lease {
    http: Arc<Http>,
    place: Place,
}

impl Tries {
    /// `urls` are the request's frames; `prefix`: see [`Wish`].
    ///
    /// # Errors
    /// [`EngineError::Failed`] when the request can't be written.
    pub(super) async fn new(
        http: Arc<Http>,
        model: Arc<str>,
        request: GenerateRequest,
        urls: Vec<Arc<str>>,
        prefix: Option<u64>,
    ) -> Result<Self, EngineError> {
        Self { http, model, request, urls, prefix, body: Bytes::new(), tried: Vec::new(), busy: false }.written().await
    }

    async fn written(self) -> Result<Self, EngineError> {
        blocking(move || {
            let failed = |_| EngineError::Failed("the request could not be written".to_owned());
            let body = request::body(&self.model, &self.request, &self.urls).map_err(failed)?.into();
            Ok(Self { body, ..self })
        })
        .await
    }

    /// What the answer is read by.
    pub(super) fn asked(&self) -> Asked {
        let sampling = &self.request.sampling;
        let (max_tokens, logprobs) = (sampling.max_tokens, sampling.logprobs.is_some());
        Asked { prefix: self.request.prefix.clone(), max_tokens, logprobs }
    }

    /// Whether another replica can go on where one broke off. Only where the request continues a prefix as it is: then the card
    /// relies on the upstreams' doing that, which not all of them can.
    pub(super) const fn can_go_on(&self) -> bool {
        let sampling = &self.request.sampling;
        !self.request.prefix.is_empty() && sampling.constraint.is_none() && sampling.logprobs.is_none()
    }

    /// Asks from now on for what follows this text, which has so many tokens.
    ///
    /// # Errors
    /// As [`Tries::new`].
    pub(super) async fn after(mut self, text: &str, tokens: u64) -> Result<Self, EngineError> {
        self.request.prefix.push_str(text);
        let left = u64::from(self.request.sampling.max_tokens).saturating_sub(tokens);
        self.request.sampling.max_tokens = u32::try_from(left).unwrap_or(u32::MAX);
        self.written().await
    }

    /// Sends the request until a replica accepts it. Call again when that one failed before it had said anything.
    ///
    /// # Errors
    /// What the last trouble means when no replica is left; `last` is the one that led here.
    pub(super) async fn open(&mut self, mut last: Option<Trouble>) -> Result<(Lease, Body), EngineError> {
        loop {
            let Some(lease) = self.lease() else { return Err(self.give_up(last)) };
            match self.http.post(lease.place.index, self.body.clone(), self.request.trace).await {
                Ok(body) => return Ok((lease, body)),
                Err(trouble) => {
                    lease.report(trouble.outcome());
                    if let Trouble::Refused(error) = trouble {
                        return Err(error);
                    }
                    self.busy |= matches!(trouble, Trouble::Busy);
                    last = Some(trouble);
                }
            }
        }
    }

    fn lease(&mut self) -> Option<Lease> {
        let mut replicas = lock(&self.http.replicas);
        if self.tried.len() >= MOST_TRIES.min(replicas.len()) {
            return None;
        }
        let (speaker, session) = (self.request.speaker, &self.request.session);
        let wish = Wish { speaker, session, prefix: self.prefix };
        let place = replicas.take(wish, &self.tried, Instant::now())?;
        self.tried.push(place.index);
        Some(Lease { http: Arc::clone(&self.http), place })
    }

    /// Busy wins over gone: it tells the client to come again.
    fn give_up(&self, last: Option<Trouble>) -> EngineError {
        match last {
            _ if self.busy => EngineError::Overloaded,
            Some(trouble) => trouble.into_error(),
            None => EngineError::Unavailable("no upstream is alive".to_owned()),
        }
    }
}

impl Lease {
    /// Tells what became of the request.
    pub(super) fn report(&self, outcome: Outcome) {
        let changed = lock(&self.http.replicas).report(self.place, outcome, Instant::now());
        match outcome {
            _ if !changed => {}
            Outcome::Answered | Outcome::Busy => {
                tracing::info!(upstream.index = self.place.index, "an upstream is back");
            }
            Outcome::Gone | Outcome::Broken => {
                tracing::warn!(upstream.index = self.place.index, "an upstream is out");
            }
        }
    }

    /// The first text came.
    pub(super) fn spoke(&mut self) {
        self.place = lock(&self.http.replicas).spoke(self.place, Instant::now());
    }

    /// Reads an error that came in the stream.
    pub(super) fn trouble(&self, error: &serde_json::Value) -> Trouble {
        Trouble::from_event(error, self.http.secrets(self.place.index))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        lock(&self.http.replicas).release(self.place);
    }
}

pub(super) fn lock(replicas: &Mutex<Replicas>) -> MutexGuard<'_, Replicas> {
    replicas.lock().unwrap_or_else(PoisonError::into_inner)
}
