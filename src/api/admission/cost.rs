//! What a request takes of the server, in thousandths of a place. A place is what a typical episode takes.

/// A share of the server, before any work is done for it. Thousandths of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::api) struct Cost(u64);

impl Cost {
    /// A typical episode: a card's full overview and one full burst of windows.
    pub(in crate::api) const PLACE: Self = Self(1000);

    /// The least anything takes: also a request with nothing to read holds a sequence in the engine and a connection. So at
    /// most eight times `server.max_running` are at work at once, which is what an engine's own queue is made for.
    pub(in crate::api) const LEAST: Self = Self(125);

    /// So many thousandths, the least at least.
    pub(in crate::api) const fn thousandths(thousandths: u64) -> Self {
        if thousandths < Self::LEAST.0 { Self::LEAST } else { Self(thousandths) }
    }

    /// As a plain number.
    pub(super) const fn get(self) -> u64 {
        self.0
    }
}
