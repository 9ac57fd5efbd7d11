//! Runs the queue: on each copy of the model one group at a time, pumping what it generates to the callers; the next group
//! starts there when the last sequence of this one has really left the model.
//!
//! Knows a copy of the model only as a [`Backend`], so everything here is tested without weights.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::future::select_all;
use futures::stream::{BoxStream, Stream, StreamExt};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};

use super::queue::{Entry, Queue};
use crate::engine::chat::prompt::Prompt;
use crate::engine::{EngineError, EngineLoad, FinishReason, Generated, Sampling, StopFilter, TokenEvent};
use crate::types::{Frame, TokenUsage};

/// Runs sequences that have one shape.
#[async_trait]
pub(super) trait Backend: Send + Sync + 'static {
    /// Starts all of them in the same step, and gives one [`Sequence`] each, in order.
    async fn start(&self, group: Vec<Work>) -> Result<Vec<Sequence>, EngineError>;
}

/// What a backend needs to run one sequence.
#[derive(Debug, Clone)]
pub(super) struct Work {
    pub(super) prompt: Prompt,
    pub(super) frames: Vec<Frame>,
    pub(super) sampling: Sampling,
}

/// A sequence that runs.
pub(super) struct Sequence {
    /// What it generates. Dropping it cancels the sequence at its next token.
    pub(super) steps: BoxStream<'static, Result<Step, EngineError>>,
    /// Resolves, with a value or an error, when the sequence has left the model.
    pub(super) gone: oneshot::Receiver<()>,
    /// How many tokens were sampled so far.
    pub(super) sampled: Arc<AtomicU64>,
}

/// A step of a sequence.
#[derive(Debug, Default)]
pub(super) struct Step {
    /// New text.
    pub(super) text: String,
    /// Set on the last step that counts.
    pub(super) finish: Option<Finish>,
}

/// How a sequence ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Finish {
    pub(super) reason: FinishReason,
    /// Prompt and completion tokens as the model counted them, where it did.
    pub(super) usage: Option<TokenUsage>,
}

/// A request on its way.
#[derive(Debug)]
pub(super) struct Job {
    work: Work,
    prompt_tokens: usize,
    events: mpsc::Sender<Result<TokenEvent, EngineError>>,
    /// Whether the caller has been told.
    started: bool,
}

impl Job {
    /// A job and the stream of its events.
    pub(super) fn new(work: Work, prompt_tokens: usize) -> (Self, mpsc::Receiver<Result<TokenEvent, EngineError>>) {
        // As large as the output can be: neither the model's thread nor a batch neighbour ever waits for a slow reader.
        let (events, receiver) = mpsc::channel(work.sampling.max_tokens as usize + 8);
        (Self { work, prompt_tokens, events, started: false }, receiver)
    }

    /// The prompt, for padding.
    pub(super) const fn prompt_mut(&mut self) -> &mut Prompt {
        &mut self.work.prompt
    }

    fn wanted(&self) -> bool {
        !self.events.is_closed()
    }
}

/// Pads a job by so many tokens, or leaves it alone and says no.
pub(super) type Pad = Box<dyn Fn(&mut Job, usize) -> bool + Send + Sync>;

struct State {
    queue: Queue<Job>,
    running: usize,
}

struct Shared {
    state: Mutex<State>,
    wake: Notify,
    pad: Pad,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next group out of the queue and counts it as running, in one step: never looks idle in between.
    fn take(&self) -> Vec<Entry<Job>> {
        let mut state = self.state();
        state.queue.retain(Job::wanted);
        let group = state.queue.next(Instant::now(), &self.pad);
        state.running += group.len();
        group
    }

    /// One sequence has left the model; it may have to run again.
    fn leave(&self, retry: Option<Entry<Job>>) {
        let mut state = self.state();
        state.running = state.running.saturating_sub(1);
        if let Some(entry) = retry {
            state.queue.push_front(entry);
            drop(state);
            self.wake.notify_waiters();
        }
    }
}

/// How long a window waits for the rest of its burst. A burst of the size that fits a card is written in less on an engine
/// worth waiting for; past that, an early start is the better deal.
const PATIENCE: Duration = Duration::from_secs(3);

/// Owns the tasks that run the queue, one for each copy of the model.
pub(super) struct Driver {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        // The streams share the queue, and would wait for ever on jobs that still sit in it.
        self.shared.state().queue.retain(|_| false);
    }
}

impl Driver {
    /// Starts running. At most `capacity` requests wait and at most `widest` run together on one copy.
    pub(super) fn new<B: Backend>(copies: Vec<B>, capacity: usize, widest: usize, pad: Pad) -> Self {
        let state = State { queue: Queue::new(capacity, widest, PATIENCE), running: 0 };
        let shared = Arc::new(Shared { state: Mutex::new(state), wake: Notify::new(), pad });
        let tasks = copies.into_iter().map(|copy| tokio::spawn(drive(Arc::clone(&shared), copy))).collect();
        Self { shared, tasks }
    }

    /// Queues a job. Its place is taken when this returns.
    ///
    /// # Errors
    /// [`EngineError::Overloaded`] when the queue is full.
    pub(super) fn submit(&self, entry: Entry<Job>) -> Result<(), EngineError> {
        let mut state = self.shared.state();
        state.queue.retain(Job::wanted);
        state.queue.push(entry, Instant::now()).map_err(|_| EngineError::Overloaded)?;
        drop(state);
        self.shared.wake.notify_waiters();
        Ok(())
    }

    /// The caller's end of a job.
    pub(super) fn stream(&self, events: mpsc::Receiver<Result<TokenEvent, EngineError>>) -> EventStream {
        EventStream { events, over: false, shared: Arc::clone(&self.shared) }
    }

    /// What runs and what waits; what nobody wants any more does not count as waiting.
    pub(super) fn load(&self) -> EngineLoad {
        let state = self.shared.state();
        EngineLoad { running: state.running, queued: state.queue.iter().filter(|job| job.wanted()).count() }
    }
}

/// Events of one job. Dropping it cancels the job.
pub(super) struct EventStream {
    events: mpsc::Receiver<Result<TokenEvent, EngineError>>,
    over: bool,
    shared: Arc<Shared>,
}

impl Stream for EventStream {
    type Item = Result<TokenEvent, EngineError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        let event = std::task::ready!(self.events.poll_recv(context))
            .unwrap_or_else(|| Err(EngineError::Unavailable("it is shutting down".to_owned())));
        self.over = !matches!(event, Ok(TokenEvent::Started { .. } | TokenEvent::Text(_) | TokenEvent::Tokens(_)));
        Poll::Ready(Some(event))
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        // So that a job still waiting gives up its place and its frames at once.
        self.events.close();
        self.shared.wake.notify_waiters();
    }
}

async fn drive(shared: Arc<Shared>, backend: impl Backend) {
    let mut running: JoinSet<Option<Entry<Job>>> = JoinSet::new();
    loop {
        // Listens before it looks: what happens in between is not missed.
        let mut woken = pin!(shared.wake.notified());
        woken.as_mut().enable();
        let (mut awaited, mut until) = (Vec::new(), None);
        if running.is_empty() {
            let group = shared.take();
            if !group.is_empty() {
                start(&shared, &backend, group, &mut running).await;
                continue;
            }
            (awaited, until) = shared.state().queue.awaited();
        } else {
            shared.state().queue.retain(Job::wanted);
        }
        tokio::select! {
            () = woken => {}
            Some(left) = running.join_next() => shared.leave(left.ok().flatten()),
            () = any_complete(&awaited), if !awaited.is_empty() => {}
            () = passed(until), if until.is_some() => {}
        }
    }
}

/// Returns at `until`.
async fn passed(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

async fn any_complete(gangs: &[crate::engine::Gang]) {
    select_all(gangs.iter().map(|gang| Box::pin(gang.completed()))).await;
}

async fn start(
    shared: &Arc<Shared>,
    backend: &impl Backend,
    group: Vec<Entry<Job>>,
    running: &mut JoinSet<Option<Entry<Job>>>,
) {
    let work = group.iter().map(|entry| entry.item.work.clone()).collect();
    let company = group.len() > 1;
    match backend.start(work).await {
        Ok(sequences) => {
            let mut sequences = VecDeque::from(sequences);
            for entry in group {
                match sequences.pop_front() {
                    Some(sequence) => drop(running.spawn(pump(entry, sequence, company))),
                    None => give_up(shared, &entry, &EngineError::Failed("a sequence was not started".to_owned())),
                }
            }
        }
        Err(error) => group.iter().for_each(|entry| give_up(shared, entry, &error)),
    }
}

fn give_up(shared: &Shared, entry: &Entry<Job>, error: &EngineError) {
    // Nobody listening is as good.
    let _ = entry.item.events.try_send(Err(error.clone()));
    shared.leave(None);
}

/// How pumping one sequence ended.
enum End {
    /// Well: this is the last event.
    Finished(FinishReason, Option<TokenUsage>),
    /// The caller is gone.
    Cancelled,
    /// The model said so.
    Failed(EngineError),
    /// The sequence left without a word.
    Lost,
}

/// Carries a sequence's text to its caller. Returns when the sequence has left the model, with the entry when it has to
/// run again.
async fn pump(mut entry: Entry<Job>, sequence: Sequence, company: bool) -> Option<Entry<Job>> {
    let Sequence { mut steps, gone, sampled } = sequence;
    let job = &mut entry.item;
    if !job.started {
        job.started = true;
        let _ = job.events.send(Ok(TokenEvent::Started { prompt_tokens: Some(job.prompt_tokens as u64) })).await;
    }
    let (end, spoke) = carry(job, &mut steps).await;
    // First the caller is told, then the sequence is let go, and awaited: it may go on for a token, and the next group
    // must not meet it.
    let retry = company && !spoke && matches!(end, End::Finished(FinishReason::Stop, _) | End::Lost);
    if !retry {
        tell(job, end, sampled.load(Ordering::Relaxed)).await;
    }
    drop(steps);
    let _ = gone.await;
    retry.then(|| {
        tracing::debug!("a sequence ended without a token in a batch and runs again alone");
        entry.alone = true;
        entry
    })
}

/// Until the sequence ends or the caller goes. Also says whether there was any text.
async fn carry(job: &Job, steps: &mut BoxStream<'static, Result<Step, EngineError>>) -> (End, bool) {
    let mut stops = StopFilter::new(&job.work.sampling.stop);
    let mut spoke = false;
    loop {
        let step = tokio::select! {
            biased;
            () = job.events.closed() => return (End::Cancelled, spoke),
            step = steps.next() => step,
        };
        let step = match step {
            Some(Ok(step)) => step,
            Some(Err(error)) => return (End::Failed(error), spoke),
            None => {
                show(job, stops.finish()).await;
                return (End::Lost, spoke);
            }
        };
        spoke |= !step.text.is_empty();
        let (mut text, stopped) = stops.push(&step.text);
        if !stopped && step.finish.is_some() {
            text.push_str(&stops.finish());
        }
        show(job, text).await;
        if stopped {
            return (End::Finished(FinishReason::Stop, None), spoke);
        }
        // The first finish counts. mistralrs may overwrite it and go on; that is not read any more.
        if let Some(finish) = step.finish {
            return (End::Finished(finish.reason, finish.usage), spoke);
        }
    }
}

async fn show(job: &Job, text: String) {
    if !text.is_empty() {
        let _ = job.events.send(Ok(TokenEvent::Text(text))).await;
    }
}

async fn tell(job: &Job, end: End, sampled: u64) {
    let counted = TokenUsage {
        prompt_tokens: job.prompt_tokens as u64,
        cached_tokens: 0,
        completion_tokens: sampled.min(u64::from(job.work.sampling.max_tokens)),
    };
    let finished = |reason, usage: Option<TokenUsage>| {
        Ok(TokenEvent::Finished(Generated { reason, usage: usage.unwrap_or(counted) }))
    };
    let last = match end {
        End::Cancelled => return,
        End::Finished(reason, usage) => finished(reason, usage),
        End::Failed(error) => Err(error),
        // mistralrs says nothing at the end of a text that is cut inside a character.
        End::Lost if sampled >= u64::from(job.work.sampling.max_tokens) => finished(FinishReason::Length, None),
        End::Lost => Err(EngineError::Failed("the model stopped without a result".to_owned())),
    };
    let _ = job.events.send(last).await;
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::super::queue::Shape;
    use super::*;
    use crate::engine::Gang;
    use crate::engine::chat::prompt::render;
    use crate::engine::chat::prompt::tests::frame;
    use crate::engine::chat::vocabulary::tests::tiny;
    use crate::types::{Role, Turn};

    /// A sequence in the hands of the test.
    struct Hand {
        question: String,
        steps: mpsc::UnboundedSender<Result<Step, EngineError>>,
        gone: oneshot::Sender<()>,
        sampled: Arc<AtomicU64>,
    }

    impl Hand {
        fn say(&self, text: &str) {
            let _ = self.steps.send(Ok(Step { text: text.to_owned(), finish: None }));
        }

        fn finish(&self, text: &str) {
            let finish = Some(Finish { reason: FinishReason::Stop, usage: None });
            let _ = self.steps.send(Ok(Step { text: text.to_owned(), finish }));
        }

        fn leave(self) {
            let _ = self.gone.send(());
        }
    }

    /// Shows every group it is given.
    struct Shown(mpsc::UnboundedSender<Vec<Hand>>);

    #[async_trait]
    impl Backend for Shown {
        async fn start(&self, group: Vec<Work>) -> Result<Vec<Sequence>, EngineError> {
            let mut hands = Vec::new();
            let mut sequences = Vec::new();
            for work in group {
                let (steps, mut received) = mpsc::unbounded_channel();
                let (gone, left) = oneshot::channel();
                let sampled = Arc::new(AtomicU64::new(0));
                hands.push(Hand { question: work.prompt.text(), steps, gone, sampled: Arc::clone(&sampled) });
                let steps = futures::stream::poll_fn(move |context| received.poll_recv(context)).boxed();
                sequences.push(Sequence { steps, gone: left, sampled });
            }
            let _ = self.0.send(hands);
            Ok(sequences)
        }
    }

    fn driver(capacity: usize) -> (Driver, mpsc::UnboundedReceiver<Vec<Hand>>) {
        let (shown, groups) = mpsc::unbounded_channel();
        (Driver::new(vec![Shown(shown)], capacity, 8, Box::new(|_, _| true)), groups)
    }

    fn submit_of(
        driver: &Driver,
        question: &str,
        tokens: usize,
        gang: Option<&Gang>,
    ) -> Result<EventStream, EngineError> {
        let prompt = render(vec![Turn::text(Role::User, question)], "", &tiny()).expect("renders").prompt;
        let sampling = Sampling { max_tokens: 10, stop: vec!["STOP".to_owned()], ..Sampling::default() };
        let frames = vec![frame(64, 64)];
        let shape = Shape { tokens, frames: frames.iter().map(|frame| frame.size).collect() };
        let (job, events) = Job::new(Work { prompt, frames, sampling }, tokens);
        let stream = driver.stream(events);
        driver.submit(Entry { shape, gang: gang.cloned(), patience: None, alone: false, item: job })?;
        Ok(stream)
    }

    fn submit(driver: &Driver, question: &str, tokens: usize) -> EventStream {
        submit_of(driver, question, tokens, None).expect("there is room")
    }

    async fn all(stream: EventStream) -> Vec<Result<TokenEvent, EngineError>> {
        stream.collect().await
    }

    fn text(events: &[Result<TokenEvent, EngineError>]) -> String {
        events
            .iter()
            .filter_map(|event| match event {
                Ok(TokenEvent::Text(text)) => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }

    async fn idle(driver: &Driver) {
        let idle = async {
            while driver.load() != EngineLoad::default() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), idle).await.expect("the driver goes idle");
    }

    #[tokio::test]
    async fn the_next_group_starts_when_the_last_sequence_has_left() {
        let (driver, mut groups) = driver(8);
        let (first, second, other) = (submit(&driver, "a", 5), submit(&driver, "b", 5), submit(&driver, "c", 6));
        let group = groups.recv().await.expect("a group");
        assert_eq!(group.len(), 2);
        assert_eq!(driver.load(), EngineLoad { running: 2, queued: 1 });
        group.iter().for_each(|hand| hand.finish("x"));
        assert_eq!(text(&all(first).await), "x");
        assert_eq!(text(&all(second).await), "x");
        // Both callers have their answer, but the sequences are still in the model.
        assert!(groups.recv().now_or_never().is_none());
        group.into_iter().for_each(Hand::leave);
        let group = groups.recv().await.expect("a group");
        assert!(group[0].question.contains("user\nc"));
        group[0].finish("y");
        assert_eq!(text(&all(other).await), "y");
        group.into_iter().for_each(Hand::leave);
        idle(&driver).await;
    }

    #[tokio::test]
    async fn every_copy_of_the_model_takes_the_next_when_it_is_free() {
        let (shown, mut groups) = mpsc::unbounded_channel();
        let copies = vec![Shown(shown.clone()), Shown(shown)];
        let driver = Driver::new(copies, 8, 1, Box::new(|_, _| true));
        let (first, second, third) = (submit(&driver, "a", 5), submit(&driver, "b", 6), submit(&driver, "c", 7));
        let one = groups.recv().await.expect("a group").remove(0);
        let two = groups.recv().await.expect("a group").remove(0);
        assert_eq!(driver.load(), EngineLoad { running: 2, queued: 1 });
        // Each answers only when both have begun.
        two.finish("y");
        two.leave();
        let three = groups.recv().await.expect("a group").remove(0);
        one.finish("x");
        three.finish("z");
        one.leave();
        three.leave();
        for (stream, said) in [(first, "x"), (second, "y"), (third, "z")] {
            assert_eq!(text(&all(stream).await), said);
        }
        idle(&driver).await;
    }

    #[tokio::test]
    async fn a_burst_starts_when_its_last_seat_is_given_back() {
        let (driver, mut groups) = driver(8);
        let gang = Gang::new();
        let dispatcher = gang.seat();
        let first = submit_of(&driver, "a", 5, Some(&gang)).expect("room");
        let second = submit_of(&driver, "b", 7, Some(&gang)).expect("room");
        tokio::task::yield_now().await;
        assert_eq!(driver.load(), EngineLoad { running: 0, queued: 2 });
        drop(dispatcher);
        let group = groups.recv().await.expect("a group");
        assert_eq!(group.len(), 2);
        drop((first, second));
    }

    #[tokio::test]
    async fn a_cancelled_request_is_skipped_while_it_waits() {
        let (driver, mut groups) = driver(8);
        let first = submit(&driver, "a", 5);
        let group = groups.recv().await.expect("a group");
        let (gone, third) = (submit(&driver, "b", 6), submit(&driver, "c", 7));
        drop(gone);
        assert_eq!(driver.load().queued, 1);
        group[0].finish("x");
        group.into_iter().for_each(Hand::leave);
        let group = groups.recv().await.expect("a group");
        assert!(group[0].question.contains("user\nc"));
        drop((first, third));
    }

    #[tokio::test]
    async fn a_cancelled_sequence_is_let_go_and_the_engine_goes_idle() {
        let (driver, mut groups) = driver(8);
        let mut stream = submit(&driver, "a", 5);
        let group = groups.recv().await.expect("a group");
        group[0].say("x");
        assert!(matches!(stream.next().await, Some(Ok(TokenEvent::Started { .. }))));
        drop(stream);
        group[0].steps.closed().await;
        assert_eq!(driver.load().running, 1);
        group.into_iter().for_each(Hand::leave);
        idle(&driver).await;
    }

    #[tokio::test]
    async fn a_sequence_that_ended_without_a_token_in_a_batch_runs_again_alone_once() {
        let (driver, mut groups) = driver(8);
        let (first, second) = (submit(&driver, "a", 5), submit(&driver, "b", 5));
        let group = groups.recv().await.expect("a group");
        group[0].finish("");
        group[1].finish("fine");
        group.into_iter().for_each(Hand::leave);
        let group = groups.recv().await.expect("a group");
        assert_eq!(group.len(), 1);
        group[0].finish("");
        group.into_iter().for_each(Hand::leave);
        let events = all(first).await;
        // Alone, an empty text is the model's own word.
        assert!(matches!(events[..], [Ok(TokenEvent::Started { .. }), Ok(TokenEvent::Finished(_))]), "{events:?}");
        assert_eq!(text(&all(second).await), "fine");
    }

    #[tokio::test]
    async fn a_sequence_that_is_lost_fails_or_was_full() {
        let (driver, mut groups) = driver(8);
        let (lost, full) = (submit(&driver, "a", 5), submit(&driver, "b", 6));
        let hand = groups.recv().await.expect("a group").remove(0);
        hand.say("half");
        drop(hand);
        let events = all(lost).await;
        assert!(matches!(events.last(), Some(Err(EngineError::Failed(_)))), "{events:?}");
        let hand = groups.recv().await.expect("a group").remove(0);
        hand.say("half a charact");
        hand.sampled.store(10, Ordering::Relaxed);
        drop(hand);
        let events = all(full).await;
        let usage = TokenUsage { prompt_tokens: 6, cached_tokens: 0, completion_tokens: 10 };
        assert_eq!(
            events.last().and_then(|event| event.as_ref().ok()),
            Some(&TokenEvent::Finished(Generated { reason: FinishReason::Length, usage }))
        );
    }

    #[tokio::test]
    async fn what_comes_after_the_first_finish_is_ignored() {
        let (driver, mut groups) = driver(8);
        let stream = submit(&driver, "a", 5);
        let group = groups.recv().await.expect("a group");
        group[0].finish("x");
        group[0].say("more");
        group[0].finish("and more");
        let events = all(stream).await;
        assert_eq!((text(&events).as_str(), events.len()), ("x", 3));
    }

    #[tokio::test]
    async fn a_stop_text_ends_the_sequence() {
        let (driver, mut groups) = driver(8);
        let stream = submit(&driver, "a", 5);
        let group = groups.recv().await.expect("a group");
        group[0].say("before ST");
        group[0].say("OP after");
        let events = all(stream).await;
        assert_eq!(text(&events), "before ");
        assert!(matches!(events.last(), Some(Ok(TokenEvent::Finished(Generated { reason: FinishReason::Stop, .. })))));
        group[0].steps.closed().await;
    }

    #[tokio::test]
    async fn a_full_queue_refuses() {
        let (driver, mut groups) = driver(1);
        let running = submit(&driver, "a", 5);
        groups.recv().await.expect("a group");
        let waiting = submit(&driver, "b", 6);
        assert!(matches!(submit_of(&driver, "c", 7, None), Err(EngineError::Overloaded)));
        drop(waiting);
        assert!(submit_of(&driver, "c", 7, None).is_ok());
        drop(running);
    }

    #[tokio::test]
    async fn an_error_of_the_model_is_the_last_event() {
        let (driver, mut groups) = driver(8);
        let stream = submit(&driver, "a", 5);
        let group = groups.recv().await.expect("a group");
        let _ = group[0].steps.send(Err(EngineError::Failed("no".to_owned())));
        let events = all(stream).await;
        assert!(matches!(events[..], [Ok(TokenEvent::Started { .. }), Err(EngineError::Failed(_))]), "{events:?}");
    }

    #[tokio::test]
    async fn shutting_down_ends_every_stream_with_an_error() {
        let (driver, mut groups) = driver(8);
        let (running, waiting) = (submit(&driver, "a", 5), submit(&driver, "b", 6));
        let group = groups.recv().await.expect("a group");
        drop(driver);
        for stream in [running, waiting] {
            let events = all(stream).await;
            assert!(matches!(events.last(), Some(Err(EngineError::Unavailable(_)))), "{events:?}");
        }
        drop(group);
    }
}
