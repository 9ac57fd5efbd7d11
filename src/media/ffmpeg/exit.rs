//! How a child ended, and whose doing that was.

use std::process::ExitStatus;

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
