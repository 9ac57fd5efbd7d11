//! How slow a server may be. Whoever reads from it holds a place that others wait for: of the requests, of ffmpeg's processes,
//! of the disk.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::media::MediaError;

/// How long a server may take before its speed counts.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes a second that must have come on average from then on. Half a megabit: below the rate of most videos.
const SLOWEST: u64 = 64 << 10;

/// What is asked of a server's speed, from a moment on.
#[derive(Debug)]
pub(super) struct Pace {
    since: Instant,
    patience: Duration,
}

impl Pace {
    /// From now on.
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), patience: PATIENCE }
    }

    /// Waits for more; `bytes` have come, or shall have when it is there.
    ///
    /// # Errors
    /// [`MediaError::Timeout`] when that took too long.
    pub(super) async fn keep<T>(&self, bytes: u64, more: impl Future<Output = T>) -> Result<T, MediaError> {
        let until = self.since + allowed(self.patience, bytes);
        timeout_at(until, more).await.map_err(|_| MediaError::Timeout("fetching the file"))
    }
}

fn allowed(patience: Duration, bytes: u64) -> Duration {
    patience.saturating_add(Duration::from_millis((bytes / SLOWEST).saturating_mul(1000).min(1 << 40)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_given_for_bytes() {
        assert_eq!(allowed(PATIENCE, 0), PATIENCE);
        assert_eq!(allowed(PATIENCE, 4 << 20), Duration::from_secs(94));
        assert!(allowed(PATIENCE, u64::MAX) > Duration::from_secs(1 << 20));
    }

    #[tokio::test]
    async fn who_does_not_keep_up_is_given_up() {
        let pace = Pace { since: Instant::now(), patience: Duration::ZERO };
        let got = pace.keep(0, std::future::pending::<()>()).await;
        assert!(matches!(got, Err(MediaError::Timeout(_))));
        assert!(pace.keep(1 << 20, async { 7 }).await.is_ok_and(|got| got == 7));
    }
}
