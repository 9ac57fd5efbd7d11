//! What a trace is told in: spans, and the seam to whoever takes them.
//!
//! A plain interface beside `types`, as `metrics` is: those that know what happened tell it here, and `telemetry` knows how it
//! leaves the process.

use std::borrow::Cow;
use std::fmt::Debug;
use std::time::SystemTime;

use crate::types::TraceContext;

/// Takes the spans of a server. None of it waits, and none of it fails: what can't be kept is counted and gone.
pub trait Tracer: Debug + Send + Sync {
    /// A place for a request. `traceparent` is the header as it came; what is not valid counts as none, and the request is the
    /// root of a trace then.
    fn begin(&self, traceparent: Option<&str>) -> Begun;

    /// Takes the spans of one request, all or none. Only for places that are sampled.
    fn send(&self, spans: Vec<Span>);

    /// What became of the spans since the start.
    fn counts(&self) -> SpanCounts;
}

/// A request's place, and whose child it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    /// The place of the request's own span.
    pub context: TraceContext,
    /// The caller's span.
    pub parent: Option<u64>,
}

/// Something that took time.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Its place.
    pub context: TraceContext,
    /// The span it is part of.
    pub parent: Option<u64>,
    /// What it is: one of a few words.
    pub name: &'static str,
    /// Which way it looks.
    pub kind: SpanKind,
    /// When it began.
    pub start: SystemTime,
    /// When it was over.
    pub end: SystemTime,
    /// What is known of it. Never what somebody asked or a model said.
    pub attributes: Vec<(&'static str, Value)>,
    /// `Some`: it failed, in a word or a few.
    pub error: Option<Cow<'static, str>>,
}

/// Which way a span looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// It answers a caller in another process.
    Server,
    /// All of it is in here.
    Internal,
}

/// An attribute's value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Text.
    Text(Cow<'static, str>),
    /// A count.
    Count(u64),
    /// Any number.
    Number(f64),
    /// Yes or no.
    Flag(bool),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

/// What became of spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpanCounts {
    /// A collector has taken them.
    pub exported: u64,
    /// Lost: the queue was full, or no collector took them.
    pub dropped: u64,
}
