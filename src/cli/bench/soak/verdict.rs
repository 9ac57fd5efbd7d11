//! Whether it held: what must be so at the end of a soak, and why it isn't. Pure.

use serde::Serialize;

use super::counts::Count;
use crate::cli::bench::median;
use crate::engine::EngineLoad;

/// Memory may grow by this share from the second quarter to the last, or by [`BYTES`] where that is more.
const SHARE: f64 = 0.05;
/// See [`SHARE`].
const BYTES: u64 = 16_000_000;

/// What the system says of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Growth {
    /// Median of the resident bytes in the second quarter: by then what is loaded once is loaded.
    pub(super) second_quarter_bytes: u64,
    /// Median in the last quarter.
    pub(super) last_quarter_bytes: u64,
    /// The most that the last may be.
    pub(super) allowed_bytes: u64,
}

impl Growth {
    /// Of what was resident from the beginning to the end, evenly. `None` where the system doesn't tell, or too seldom.
    pub(super) fn of(resident: &[u64]) -> Option<Self> {
        let quarter = resident.len() / 4;
        if quarter == 0 {
            return None;
        }
        let middle = |values: &[u64]| median(values.iter().map(|bytes| *bytes as f64).collect()) as u64;
        let second = middle(&resident[quarter..2 * quarter]);
        let last = middle(&resident[resident.len() - quarter..]);
        let grown = BYTES.max((second as f64 * SHARE) as u64);
        let allowed = second.saturating_add(grown);
        Some(Self { second_quarter_bytes: second, last_quarter_bytes: last, allowed_bytes: allowed })
    }
}

/// The end of a soak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Verdict {
    /// Whether there are no problems.
    pub(super) passed: bool,
    /// What is not as it must be.
    pub(super) problems: Vec<String>,
    /// All requests.
    #[serde(flatten)]
    pub(super) count: Count,
    /// Memory, where the system tells.
    pub(super) memory: Option<Growth>,
    /// Generations that still ran when all clients had gone and the engine had had time to see it.
    pub(super) running_after: usize,
    /// Generations that still waited then.
    pub(super) queued_after: usize,
}

impl Verdict {
    /// Judges.
    pub(super) fn of(count: Count, memory: Option<Growth>, after: EngineLoad) -> Self {
        let mut problems = Vec::new();
        if count.finished == 0 {
            problems.push("no request came to its end".to_owned());
        }
        if count.failed > 0 {
            problems.push(format!("{} requests failed", count.failed));
        }
        if count.unended + count.open() > 0 {
            problems.push(format!("{} requests had no end", count.unended + count.open()));
        }
        if after != EngineLoad::default() {
            let EngineLoad { running, queued } = after;
            problems.push(format!("{running} generations ran and {queued} waited after all clients had gone"));
        }
        if let Some(growth) = memory.filter(|growth| growth.last_quarter_bytes > growth.allowed_bytes) {
            problems.push(format!(
                "memory grew from {} MB in the second quarter to {} MB in the last; up to {} MB would do",
                growth.second_quarter_bytes / 1_000_000,
                growth.last_quarter_bytes / 1_000_000,
                growth.allowed_bytes / 1_000_000
            ));
        }
        let (running_after, queued_after) = (after.running, after.queued);
        Self { passed: problems.is_empty(), problems, count, memory, running_after, queued_after }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Count = Count {
        asked: 10,
        finished: 6,
        cancelled: 2,
        refused: 1,
        late: 1,
        failed: 0,
        unended: 0,
        prompt_tokens: 60,
        completion_tokens: 6,
    };

    fn problems(count: Count, resident: &[u64], after: EngineLoad) -> Vec<String> {
        let verdict = Verdict::of(count, Growth::of(resident), after);
        assert_eq!(verdict.passed, verdict.problems.is_empty());
        verdict.problems
    }

    #[test]
    fn who_leaves_is_refused_or_late_is_no_problem() {
        assert!(problems(GOOD, &[], EngineLoad::default()).is_empty());
    }

    #[test]
    fn each_thing_that_must_not_be_is_said() {
        let idle = EngineLoad::default();
        let told = |count, after| problems(count, &[], after).join("; ");
        assert_eq!(told(Count { finished: 0, cancelled: 8, ..GOOD }, idle), "no request came to its end");
        assert_eq!(told(Count { finished: 5, failed: 1, ..GOOD }, idle), "1 requests failed");
        assert_eq!(told(Count { finished: 5, unended: 1, ..GOOD }, idle), "1 requests had no end");
        assert_eq!(told(Count { asked: 12, ..GOOD }, idle), "2 requests had no end");
        assert!(told(GOOD, EngineLoad { running: 1, queued: 2 }).starts_with("1 generations ran and 2 waited"));
    }

    #[test]
    fn memory_is_judged_by_the_second_and_the_last_quarter() {
        let mb = |megabytes: [u64; 8]| megabytes.map(|megabytes| megabytes * 1_000_000);
        let idle = EngineLoad::default();
        // What is loaded in the first quarter, and one peak, do not count.
        assert!(problems(GOOD, &mb([1, 50, 100, 100, 900, 100, 116, 116]), idle).is_empty());
        let told = problems(GOOD, &mb([1, 50, 100, 100, 100, 100, 117, 117]), idle).join("; ");
        assert_eq!(told, "memory grew from 100 MB in the second quarter to 117 MB in the last; up to 116 MB would do");
        assert!(problems(GOOD, &mb([900, 1000, 1000, 1000, 1000, 1000, 1050, 1050]), idle).is_empty());
        assert_eq!(problems(GOOD, &mb([900, 1000, 1000, 1000, 1000, 1000, 1051, 1051]), idle).len(), 1);
        assert_eq!(Growth::of(&[1, 2, 3]), None);
    }
}
