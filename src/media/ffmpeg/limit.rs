//! What a child may take of the machine.

use std::time::Duration;

use tokio::process::Child;

/// Files a child may have open: its pipes, its input, its libraries.
const MAX_OPEN: u64 = 64;

/// Bounds of one child.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of address space.
    pub(super) address_space: u64,
    /// Time it may take.
    pub(super) timeout: Duration,
    /// Bytes of a file it may write: 0 for those that write to pipes alone.
    pub(super) file: u64,
}

/// Bounds a child's memory and processor time from outside, so that nothing runs between fork and exec.
#[cfg(target_os = "linux")]
pub(super) fn limit(child: &Child, limits: &Limits) {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) else { return };
    // A few decoding threads may each be busy for the whole time.
    let cpu = limits.timeout.as_secs().saturating_mul(4).max(1);
    let bounds = [
        (Resource::As, limits.address_space),
        (Resource::Cpu, cpu),
        (Resource::Core, 0),
        (Resource::Fsize, limits.file),
        (Resource::Nofile, MAX_OPEN),
    ];
    for (resource, bound) in bounds {
        // At the soft limit of processor time comes a signal of its own; at the hard one the one that others kill with.
        let most = if resource == Resource::Cpu { bound + 1 } else { bound };
        let bound = Rlimit { current: Some(bound), maximum: Some(most) };
        if let Err(error) = prlimit(Some(pid), resource, bound) {
            // It has ended already, or a stricter limit is in place.
            tracing::debug!(%error, ?resource, "limiting a child");
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn limit(_child: &Child, _limits: &Limits) {}
