//! Token counts.

use serde::Serialize;

/// Tokens of one generation, or a sum over several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct TokenUsage {
    /// Tokens read, frames included.
    pub prompt_tokens: u64,
    /// Of these, tokens whose keys and values were reused.
    pub cached_tokens: u64,
    /// Tokens written.
    pub completion_tokens: u64,
}

impl TokenUsage {
    /// Read and written together.
    #[must_use]
    pub const fn total_tokens(self) -> u64 {
        self.prompt_tokens + self.completion_tokens
    }
}

impl std::ops::AddAssign for TokenUsage {
    fn add_assign(&mut self, other: Self) {
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.completion_tokens += other.completion_tokens;
    }
}

impl std::iter::Sum for TokenUsage {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), |mut total, usage| {
            total += usage;
            total
        })
    }
}
