//! What this process holds on to: its memory with its children's, looked at again and again while something is measured;
//! and what it has at a moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use tokio_util::task::AbortOnDropHandle;

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(5);

/// Watches until it is dropped.
#[derive(Debug)]
pub(super) struct Memory {
    peak: Arc<AtomicU64>,
    _watch: AbortOnDropHandle<()>,
}

impl Memory {
    /// Begins.
    pub(super) fn watch() -> Self {
        let peak = Arc::new(AtomicU64::new(resident()));
        let theirs = Arc::clone(&peak);
        let watch = async move {
            loop {
                theirs.fetch_max(resident(), Ordering::Relaxed);
                tokio::time::sleep(EVERY).await;
            }
        };
        Self { peak, _watch: AbortOnDropHandle::new(tokio::spawn(watch)) }
    }

    /// The most bytes that were resident until now. `None` where the system does not tell.
    pub(super) fn peak(&self) -> Option<u64> {
        Some(self.peak.load(Ordering::Relaxed).max(resident())).filter(|bytes| *bytes > 0)
    }
}

/// Resident bytes of this process and its children, by Linux's `/proc`; 0 elsewhere. What they share is counted for each. A
/// child that is not yet another program still has our memory, and is left out.
fn resident() -> u64 {
    let own = std::process::id();
    let program = std::fs::read_link("/proc/self/exe").ok();
    let Ok(processes) = std::fs::read_dir("/proc") else { return 0 };
    let bytes = processes.flatten().filter_map(|entry| {
        // Looked at before its memory: once another program it stays one.
        let foreign = std::fs::read_link(entry.path().join("exe")).ok() != program;
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        let field = |name| field(&status, name);
        let child = foreign && field("PPid:") == Some(u64::from(own));
        if field("Pid:")? == u64::from(own) || child {
            field("VmRSS:").map(|kilobytes| kilobytes.saturating_mul(1024))
        } else {
            None
        }
    });
    bytes.sum()
}

/// A line of `/proc/…/status` that is a number: `VmRSS:`.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// What this process alone has now. `None` where the system does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Footprint {
    /// Resident bytes.
    pub(super) resident_bytes: Option<u64>,
    /// Threads.
    pub(super) threads: Option<u64>,
    /// Open descriptors, but for the one that is needed to count them.
    pub(super) descriptors: Option<u64>,
}

impl Footprint {
    /// Looks.
    pub(super) fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let open = std::fs::read_dir("/proc/self/fd").ok().map(Iterator::count);
        Self {
            resident_bytes: field(&status, "VmRSS:").map(|kilobytes| kilobytes.saturating_mul(1024)),
            threads: field(&status, "Threads:"),
            descriptors: open.map(|count| (count as u64).saturating_sub(1)),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_touched_is_seen() {
        let memory = Memory::watch();
        let before = memory.peak().expect("Linux tells");
        let block = vec![1_u8; 64 << 20];
        let seen = async {
            while memory.peak.load(Ordering::Relaxed) < before + (48 << 20) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), seen).await.expect("the watcher looks");
        drop(block);
    }

    #[test]
    fn a_footprint_has_what_is_open() {
        let known = |footprint: Footprint| footprint.resident_bytes > Some(0) && footprint.threads > Some(0);
        assert!(known(Footprint::now()), "{:?}", Footprint::now());
        // Other tests open and close as they like: more of our own than they ever have.
        let held: Vec<_> = (0..300).map(|_| std::fs::File::open("/dev/null").expect("opens")).collect();
        assert!(Footprint::now().descriptors >= Some(held.len() as u64), "{:?}", Footprint::now());
    }
}
