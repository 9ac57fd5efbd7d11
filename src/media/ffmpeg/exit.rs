//! How a child ended, and whose doing that was.

use std::process::ExitStatus;
use std::time::Duration;

use crate::media::MediaError;

/// Pause before what a killed child was to do is done again: what was short of memory is so for a while.
const PAUSE: Duration = Duration::from_millis(200);

/// Does what children are needed for, and once more where one was [killed](MediaError::Killed).
///
/// # Errors
/// Those of `work`, of the second try where there is one.
pub(in crate::media) async fn again<T, Work>(mut work: impl FnMut() -> Work) -> Result<T, MediaError>
where
    Work: Future<Output = Result<T, MediaError>>,
{
    match work().await {
        Err(MediaError::Killed) => {
            tracing::warn!("a child was killed; it is started again");
            tokio::time::sleep(PAUSE).await;
            work().await
        }
        done => done,
    }
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::media) enum Exit {
    /// By itself, or by a signal of its own making (a crash).
    Done(ExitStatus),
    /// By somebody else: the system, for want of memory, or a person.
    Killed,
    /// By us, because it took too long.
    TimedOut,
    /// By us, because nobody wanted it any more.
    Stopped,
}

impl Exit {
    /// Of a child that we did not end.
    #[cfg(unix)]
    pub(super) fn of(status: ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt as _;
        const SIGKILL: i32 = 9;
        const SIGTERM: i32 = 15;
        match status.signal() {
            Some(SIGKILL | SIGTERM) => Self::Killed,
            _ => Self::Done(status),
        }
    }

    /// Of a child that we did not end.
    #[cfg(not(unix))]
    pub(super) fn of(status: ExitStatus) -> Self {
        Self::Done(status)
    }
}
