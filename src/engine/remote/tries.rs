//! One request's tries: on one replica after the other, until one answers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;

use super::Http;
use super::events::Body;
use super::refusal::Trouble;
use super::replicas::{Outcome, Place, Replicas};
use crate::engine::{EngineError, SessionKey, Speaker};
use crate::types::TraceContext;

/// Replicas a request is tried on at most.
const MOST_TRIES: usize = 3;

/// A request's tries. It is never sent to one replica twice.
#[derive(Debug)]
pub(super) struct Tries {
    http: Arc<Http>,
    speaker: Speaker,
    session: SessionKey,
    body: Bytes,
    trace: Option<TraceContext>,
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
    pub(super) const fn new(
        http: Arc<Http>,
        speaker: Speaker,
        session: SessionKey,
        body: Bytes,
        trace: Option<TraceContext>,
    ) -> Self {
        Self { http, speaker, session, body, trace, tried: Vec::new(), busy: false }
    }

    /// Sends the request until a replica accepts it. Call again when that one failed before it had said anything.
    ///
    /// # Errors
    /// What the last trouble means when no replica is left; `last` is the one that led here.
    pub(super) async fn open(&mut self, mut last: Option<Trouble>) -> Result<(Lease, Body), EngineError> {
        loop {
            let Some(lease) = self.lease() else { return Err(self.give_up(last)) };
            match self.http.post(lease.place.index, self.body.clone(), self.trace).await {
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
        let place = replicas.take(self.speaker, &self.session, &self.tried, Instant::now())?;
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
        if changed && outcome == Outcome::Answered {
            tracing::info!(upstream.index = self.place.index, "an upstream is back");
        } else if changed {
            tracing::warn!(upstream.index = self.place.index, "an upstream is out");
        }
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
