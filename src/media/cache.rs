//! Decoded frames, kept one by one and weighed by their bytes; and the decoding of those that are not there, each once
//! however many ask.
//!
//! A *run* decodes frames of one video at one size. Until it begins, whoever asks for more frames of that video joins it, so
//! that windows called at the same time share the groups of pictures they share; a frame it is already at is waited for.
//! Waiters drive the run together: each goes as soon as it has its own frames, and with the last one the run ends.
//!
//! This file knows nothing of how frames come about.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, try_join_all};
use tokio::sync::{Notify, Semaphore};

use super::MediaError;
use super::plan::Target;
use crate::types::{Frame, FrameSize};

/// How long a run waits for others to join. The calls of a burst that were written together are handed out within this.
const GATHER: Duration = Duration::from_millis(2);

/// What a frame is of: the content and the size it is scaled to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Scene {
    /// Identity of the content.
    pub(super) content: Arc<str>,
    /// Scaled to this.
    pub(super) size: FrameSize,
}

/// Takes a frame for its target, each at most once.
pub(super) type Put = Arc<dyn Fn(Target, Frame) + Send + Sync>;

/// The cache. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Frames {
    kept: moka::future::Cache<(Scene, Target), Frame>,
    runs: Arc<Mutex<HashMap<Scene, Vec<Weak<Run>>>>>,
    /// Runs that may be at work; the others wait, and can be joined.
    turns: Arc<Semaphore>,
    counts: Arc<Counts>,
}

/// What came of the requests. Both only grow.
#[derive(Debug, Default)]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Frames being decoded together. Dropped, it stops.
struct Run {
    board: Arc<Board>,
    work: Shared<BoxFuture<'static, Result<(), MediaError>>>,
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("board", &self.board).finish_non_exhaustive()
    }
}

/// A run, and what one who waits for it wants of it.
type Joined = (Arc<Run>, Vec<Target>);

/// What a run is to get and has got.
#[derive(Debug, Default)]
struct Board {
    state: Mutex<State>,
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    begun: bool,
    wanted: BTreeSet<Target>,
    got: HashMap<Target, Frame>,
}

impl Board {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of `targets` that are there.
    fn got(&self, targets: &[Target]) -> Vec<(Target, Frame)> {
        let state = self.state();
        targets.iter().filter_map(|target| Some((*target, state.got.get(target)?.clone()))).collect()
    }
}

impl Frames {
    /// Keeps up to so many bytes of pixels (with 0, none), and lets so many runs work at a time.
    pub(super) fn new(bytes: u64, turns: usize) -> Self {
        let kept = moka::future::Cache::builder()
            .max_capacity(bytes)
            .weigher(|(scene, _): &(Scene, Target), frame: &Frame| {
                let rest = size_of::<(Scene, Target, Frame)>() + scene.content.len();
                u32::try_from(frame.rgb.len() + rest).unwrap_or(u32::MAX)
            })
            .build();
        Self { kept, runs: Arc::default(), turns: Arc::new(Semaphore::new(turns)), counts: Arc::default() }
    }

    /// A frame for each target, in their order, `None` for those that do not decode. `decode` is called when some are not
    /// there and no run that could take them is waiting; it may be given more than were asked for here. Failures are not
    /// kept.
    ///
    /// # Errors
    /// As `decode`.
    pub(super) async fn get<Work>(
        &self,
        scene: &Scene,
        targets: &[Target],
        decode: impl FnOnce(Vec<Target>, Put) -> Work + Send + 'static,
    ) -> Result<Vec<Option<Frame>>, MediaError>
    where
        Work: Future<Output = Result<(), MediaError>> + Send,
    {
        let mut frames = HashMap::with_capacity(targets.len());
        for target in targets {
            if let Some(frame) = self.kept.get(&(scene.clone(), *target)).await {
                frames.insert(*target, frame);
            }
        }
        let missing: Vec<Target> = targets.iter().filter(|target| !frames.contains_key(target)).copied().collect();
        let (runs, ours) = self.join(scene, missing, decode);
        let waits = runs.into_iter().map(|(run, targets)| self.wait(scene, run, targets));
        if ours {
            self.counts.misses.fetch_add(1, Ordering::Relaxed);
        }
        frames.extend(try_join_all(waits).await?.into_iter().flatten());
        if !ours {
            self.counts.hits.fetch_add(1, Ordering::Relaxed);
        }
        Ok(targets.iter().map(|target| frames.get(target).cloned()).collect())
    }

    /// The runs that decode these, and whether any of them would not be decoded without us.
    fn join<Work>(
        &self,
        scene: &Scene,
        mut missing: Vec<Target>,
        decode: impl FnOnce(Vec<Target>, Put) -> Work + Send + 'static,
    ) -> (Vec<Joined>, bool)
    where
        Work: Future<Output = Result<(), MediaError>> + Send,
    {
        let mut joined = Vec::new();
        if missing.is_empty() {
            return (joined, false);
        }
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|_, runs| {
            runs.retain(|run| run.strong_count() > 0);
            !runs.is_empty()
        });
        let alive: Vec<Arc<Run>> = runs.get(scene).into_iter().flatten().filter_map(Weak::upgrade).collect();
        // One that has failed is still held by those who have not looked yet.
        for run in alive.iter().filter(|run| run.work.peek().is_none()) {
            let state = run.board.state();
            let (theirs, left) = missing.into_iter().partition(|target| state.wanted.contains(target));
            drop(state);
            missing = left;
            joined.push((Arc::clone(run), theirs));
        }
        joined.retain(|(_, targets)| !targets.is_empty());
        if missing.is_empty() {
            return (joined, false);
        }
        let open = alive.into_iter().find(|run| {
            let mut state = run.board.state();
            if !state.begun {
                state.wanted.extend(&missing);
            }
            !state.begun
        });
        let run = open.unwrap_or_else(|| {
            let run = Arc::new(self.run(missing.clone(), decode));
            runs.entry(scene.clone()).or_default().push(Arc::downgrade(&run));
            run
        });
        joined.push((run, missing));
        (joined, true)
    }

    /// These of a run, kept before the run goes, so that no one decodes them again in between.
    async fn wait(
        &self,
        scene: &Scene,
        run: Arc<Run>,
        targets: Vec<Target>,
    ) -> Result<Vec<(Target, Frame)>, MediaError> {
        let got = drive(&run, &targets).await?;
        for (target, frame) in &got {
            self.kept.insert((scene.clone(), *target), frame.clone()).await;
        }
        Ok(got)
    }

    fn run<Work>(&self, targets: Vec<Target>, decode: impl FnOnce(Vec<Target>, Put) -> Work + Send + 'static) -> Run
    where
        Work: Future<Output = Result<(), MediaError>> + Send,
    {
        let state = State { wanted: targets.into_iter().collect(), ..State::default() };
        let board = Arc::new(Board { state: Mutex::new(state), news: Notify::new() });
        let (turns, theirs) = (Arc::clone(&self.turns), Arc::clone(&board));
        let work = async move {
            tokio::time::sleep(GATHER).await;
            let turn = turns.acquire_owned().await;
            let _turn = turn.map_err(|_| MediaError::Internal("shutting down".to_owned()))?;
            let targets = {
                let mut state = theirs.state();
                state.begun = true;
                state.wanted.iter().copied().collect()
            };
            let put: Put = Arc::new(move |target, frame| {
                theirs.state().got.insert(target, frame);
                theirs.news.notify_waiters();
            });
            decode(targets, put).await
        };
        Run { board, work: work.boxed().shared() }
    }

    /// Requests served without frames decoded for them, those that had some decoded, and bytes kept (as of the cache's last
    /// housekeeping).
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        let Counts { hits, misses } = &*self.counts;
        (hits.load(Ordering::Relaxed), misses.load(Ordering::Relaxed), self.kept.weighted_size())
    }
}

/// Drives a run until these are there, or it is over. A failure counts only where one of them is missing.
async fn drive(run: &Run, targets: &[Target]) -> Result<Vec<(Target, Frame)>, MediaError> {
    let mut work = run.work.clone();
    loop {
        let news = run.board.news.notified();
        tokio::pin!(news);
        news.as_mut().enable();
        let got = run.board.got(targets);
        if got.len() == targets.len() {
            return Ok(got);
        }
        tokio::select! {
            done = &mut work => {
                let got = run.board.got(targets);
                return if got.len() == targets.len() { Ok(got) } else { done.map(|()| got) };
            }
            () = news => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::types::MediaTime;

    const SIZE: FrameSize = FrameSize { width: 10, height: 10 };

    fn scene() -> Scene {
        Scene { content: "content".into(), size: SIZE }
    }

    fn targets(times: impl IntoIterator<Item = i64>) -> Vec<Target> {
        times.into_iter().map(|time| Target { time, from: time }).collect()
    }

    fn frame(target: Target) -> Frame {
        Frame { time: Some(MediaTime::from_micros(target.time)), size: SIZE, rgb: vec![0; 300].into() }
    }

    /// Decodes all it is asked for, and notes that.
    #[derive(Debug, Clone, Default)]
    struct Decoder {
        asked: Arc<Mutex<Vec<Vec<i64>>>>,
        gate: Arc<Notify>,
        alive: Arc<AtomicUsize>,
    }

    struct Alive(Arc<AtomicUsize>);

    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    impl Decoder {
        fn asked(&self) -> Vec<Vec<i64>> {
            self.asked.lock().expect("no panic").clone()
        }

        /// One that gives the first frame at once, and the others when the gate opens.
        fn gated(&self) -> impl FnOnce(Vec<Target>, Put) -> BoxFuture<'static, Result<(), MediaError>> + use<> {
            let Self { asked, gate, alive } = self.clone();
            move |targets, put| {
                alive.fetch_add(1, Ordering::Relaxed);
                let alive = Alive(alive);
                async move {
                    let _alive = alive;
                    asked.lock().expect("no panic").push(targets.iter().map(|target| target.time).collect());
                    for (place, target) in targets.into_iter().enumerate() {
                        if place == 1 {
                            gate.notified().await;
                        }
                        put(target, frame(target));
                    }
                    Ok(())
                }
                .boxed()
            }
        }

        fn free(&self) -> impl FnOnce(Vec<Target>, Put) -> BoxFuture<'static, Result<(), MediaError>> + use<> {
            self.gate.notify_one();
            self.gated()
        }
    }

    #[tokio::test]
    async fn requests_at_the_same_time_share_one_decoding() {
        let (frames, decoder) = (Frames::new(1 << 20, 4), Decoder::default());
        decoder.gate.notify_one();
        let get = |times: [i64; 3]| {
            let (frames, decoder) = (&frames, &decoder);
            async move { frames.get(&scene(), &targets(times), decoder.gated()).await.expect("decodes") }
        };
        let (first, second, third) = tokio::join!(get([1, 2, 3]), get([2, 3, 4]), get([1, 2, 3]));
        assert_eq!(decoder.asked(), [[1, 2, 3, 4]]);
        assert!(first.iter().chain(&second).chain(&third).all(Option::is_some));
        assert_eq!(
            first[1].as_ref().map(|frame| frame.rgb.as_ptr()),
            second[0].as_ref().map(|frame| frame.rgb.as_ptr())
        );
        // Two of them asked for something new.
        assert_eq!((frames.counts().0, frames.counts().1), (1, 2));
    }

    #[tokio::test]
    async fn frames_under_way_are_waited_for_and_only_the_others_decoded() {
        let (frames, decoder) = (Frames::new(1 << 20, 4), Decoder::default());
        let mut first = Box::pin(async { frames.get(&scene(), &targets([1, 2, 3]), decoder.gated()).await });
        while decoder.asked().is_empty() {
            assert!(futures::poll!(&mut first).is_pending());
            tokio::task::yield_now().await;
        }
        let mut second = Box::pin(async { frames.get(&scene(), &targets([2, 5]), decoder.gated()).await });
        while decoder.asked().len() < 2 {
            assert!(futures::poll!(&mut second).is_pending());
            tokio::task::yield_now().await;
        }
        assert_eq!(decoder.asked(), [vec![1, 2, 3], vec![5]]);
        decoder.gate.notify_one();
        // The second drives the first's run for the frame it wants.
        assert!(second.await.expect("decodes").iter().all(Option::is_some));
        assert!(first.await.expect("decodes").iter().all(Option::is_some));
    }

    #[tokio::test]
    async fn who_has_all_frames_does_not_wait_for_the_run_and_the_last_to_go_ends_it() {
        let (frames, decoder) = (Frames::new(1 << 20, 4), Decoder::default());
        {
            let early = async { frames.get(&scene(), &targets([1]), decoder.gated()).await };
            let mut late = Box::pin(async { frames.get(&scene(), &targets([1, 2]), decoder.gated()).await });
            let early = tokio::select! {
                early = early => early,
                _ = &mut late => panic!("its second frame is behind the gate"),
            };
            assert_eq!(early.expect("has it").len(), 1);
            assert_eq!(decoder.alive.load(Ordering::Relaxed), 1);
        }
        assert_eq!(decoder.alive.load(Ordering::Relaxed), 0, "nobody waits any more");
        let again = frames.get(&scene(), &targets([1, 2]), decoder.free()).await.expect("decodes");
        assert!(again.iter().all(Option::is_some));
    }

    #[tokio::test]
    async fn failures_reach_all_and_are_not_kept() {
        let (frames, decoder) = (Frames::new(1 << 20, 4), Decoder::default());
        let fail = |_, _| async { Err(MediaError::Timeout("decoding")) };
        let one = [Target { time: 1, from: 1 }];
        let scene = scene();
        let (first, second) = tokio::join!(frames.get(&scene, &one, fail), frames.get(&scene, &one, decoder.free()));
        assert!(matches!((first, second), (Err(MediaError::Timeout(_)), Err(MediaError::Timeout(_)))));
        assert!(frames.get(&scene, &one, decoder.free()).await.is_ok());
        let none = frames.get(&scene, &targets([9]), |_, _| async { Ok(()) }).await;
        assert_eq!(none.expect("no failure"), [None], "what does not decode does not come");
    }

    #[tokio::test]
    async fn other_sizes_and_contents_are_other_frames() {
        let (frames, decoder) = (Frames::new(1 << 20, 4), Decoder::default());
        let large = Scene { size: FrameSize { width: 20, height: 20 }, ..scene() };
        for scene in [scene(), large, scene()] {
            frames.get(&scene, &targets([1]), decoder.gated()).await.expect("decodes");
        }
        assert_eq!(decoder.asked().len(), 2);
    }

    #[tokio::test]
    async fn no_more_bytes_are_kept_than_allowed() {
        let (frames, decoder) = (Frames::new(2000, 4), Decoder::default());
        for time in 0..50 {
            frames.get(&scene(), &targets([time]), decoder.gated()).await.expect("decodes");
        }
        frames.kept.run_pending_tasks().await;
        assert!(frames.kept.weighted_size() <= 2000);
        assert!(frames.kept.entry_count() >= 1);
    }
}
