//! One generation of the engine, with the time each stage took.

use futures::TryStreamExt;

use super::agent::Clock;
use super::event::StageTiming;
use crate::engine::{Engine, EngineError, GenerateRequest, TokenEvent, TokenStream};
use crate::types::TokenUsage;

/// One generation with its times.
pub(super) struct Generation {
    stream: TokenStream,
    clock: Clock,
    asked_ms: f64,
    started_ms: Option<f64>,
    pub(super) first_text_ms: Option<f64>,
    /// Tokens counted by us, for a generation that is cut before it reports its own count.
    pub(super) seen: TokenUsage,
    finished: bool,
}

impl Generation {
    pub(super) async fn start(
        engine: &dyn Engine,
        request: GenerateRequest,
        clock: Clock,
    ) -> Result<Self, EngineError> {
        let asked_ms = clock.ms();
        let stream = engine.generate(request).await?;
        Ok(Self {
            stream,
            clock,
            asked_ms,
            started_ms: None,
            first_text_ms: None,
            seen: TokenUsage::default(),
            finished: false,
        })
    }

    /// The next event; `None` after the end. A stream that stops without an end is a failure.
    pub(super) async fn next(&mut self) -> Result<Option<TokenEvent>, EngineError> {
        if self.finished {
            return Ok(None);
        }
        let event = self.stream.try_next().await?;
        match &event {
            None => return Err(EngineError::Failed("the generation broke off".to_owned())),
            Some(TokenEvent::Started { prompt_tokens }) => {
                self.started_ms = self.started_ms.or_else(|| Some(self.clock.ms()));
                self.seen.prompt_tokens = prompt_tokens.unwrap_or_default();
            }
            Some(TokenEvent::Text(_)) => {
                self.first_text_ms = self.first_text_ms.or_else(|| Some(self.clock.ms()));
                self.seen.completion_tokens += 1;
            }
            Some(TokenEvent::Tokens(_)) => {}
            Some(TokenEvent::Finished(_)) => self.finished = true,
        }
        Ok(event)
    }

    /// Its stages up to now, after `decode_ms` of decoding.
    pub(super) fn timing_after(&self, decode_ms: f64) -> StageTiming {
        let now = self.clock.ms();
        let started = self.started_ms.unwrap_or(now);
        let first = self.first_text_ms.unwrap_or(now);
        StageTiming {
            decode_ms,
            queue_ms: started - self.asked_ms,
            prefill_ms: (first - started).max(0.0),
            generate_ms: now - first,
        }
    }
}
