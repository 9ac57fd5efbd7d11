//! The engine's thread: takes requests, plans a step, runs it, chooses tokens, tells the callers. One step after another.
//!
//! The only owner of the scheduler and of the model. Everybody else sends [`Command`]s and reads events.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use super::batch::{Batch, SequenceId};
use super::executor::{Executor, Reading};
use super::grammar;
use super::prompt::{Opening, Prompts};
use super::sampler::Scratch;
use super::scheduler::{Scheduler, SequenceRequest, SubmitError};
use super::writer::Writer;
use crate::engine::error::first_line;
use crate::engine::{EngineError, SessionKey, TokenEvent};
use crate::model::Qwen3Vl;

/// What callers hear.
pub(super) type Events = mpsc::UnboundedSender<Result<TokenEvent, EngineError>>;

/// What the thread is told.
pub(super) enum Command {
    /// A request, and where to say whether it was taken.
    Submit(Box<Submission>, oneshot::Sender<Result<(), EngineError>>),
    /// Other weights, from the next step on.
    Swap(Box<Qwen3Vl>, oneshot::Sender<Result<(), EngineError>>),
}

/// A request, ready to run.
pub(super) struct Submission {
    pub(super) request: SequenceRequest,
    pub(super) job: Job,
}

/// What belongs to a sequence beside its tokens. Dropping it says that the generation is over.
pub(super) struct Job {
    pub(super) reading: Reading,
    pub(super) writer: Writer,
    /// Where to keep what was written, for the session's next turn.
    pub(super) memory: Option<(SessionKey, Opening)>,
    pub(super) events: Events,
    pub(super) deadline: Option<Instant>,
    pub(super) started: bool,
    /// Counts it as accepted for as long as it lives.
    pub(super) _lease: Lease,
}

/// Generations accepted and not over, and how many of them run.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) accepted: AtomicUsize,
    pub(super) running: AtomicUsize,
}

/// Counts one accepted generation until it is dropped.
pub(super) struct Lease(Arc<Counts>);

impl Lease {
    pub(super) fn new(counts: &Arc<Counts>) -> Self {
        counts.accepted.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counts))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.accepted.fetch_sub(1, Ordering::Relaxed);
    }
}

/// See the module's header.
pub(super) struct Worker {
    scheduler: Scheduler,
    executor: Executor,
    prompts: Arc<Prompts>,
    commands: Receiver<Command>,
    jobs: HashMap<SequenceId, Job>,
    counts: Arc<Counts>,
    scratch: Scratch,
    began: Instant,
    /// Reused from step to step.
    events: Vec<TokenEvent>,
}

impl Worker {
    pub(super) fn new(
        scheduler: Scheduler,
        executor: Executor,
        prompts: Arc<Prompts>,
        commands: Receiver<Command>,
        counts: Arc<Counts>,
    ) -> Self {
        let (jobs, scratch, events) = (HashMap::new(), Scratch::default(), Vec::new());
        Self { scheduler, executor, prompts, commands, jobs, counts, scratch, began: Instant::now(), events }
    }

    /// Works until nobody can send commands any more; what runs then is dropped.
    pub(super) fn run(mut self) {
        while self.listen() {
            self.drop_abandoned();
            self.step();
            self.counts.running.store(self.scheduler.stats().running, Ordering::Relaxed);
        }
    }

    /// Takes what was sent; waits when there is nothing else to do. False when nobody is there any more.
    fn listen(&mut self) -> bool {
        if self.jobs.is_empty() {
            match self.commands.recv() {
                Ok(command) => self.obey(command),
                Err(_) => return false,
            }
        }
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(submission, reply) => {
                let Submission { request, job } = *submission;
                let taken = self.scheduler.submit(request, self.began.elapsed());
                let answer = taken.map_err(refusal).map(|id| {
                    self.jobs.insert(id, job);
                });
                // A caller that left meanwhile has dropped its events, too.
                let _ = reply.send(answer);
            }
            Command::Swap(model, reply) => {
                let swapped = self.executor.swap(*model).map_err(|error| EngineError::Load(error.to_string()));
                if swapped.is_ok() {
                    self.scheduler.restart_all();
                }
                let _ = reply.send(swapped);
            }
        }
    }

    /// Ends what nobody waits for.
    fn drop_abandoned(&mut self) {
        let now = Instant::now();
        let late = |job: &Job| job.deadline.is_some_and(|deadline| deadline <= now);
        let over = self.jobs.iter().filter(|(_, job)| job.events.is_closed() || late(job));
        for id in over.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.fail(id, EngineError::DeadlineExceeded);
        }
    }

    fn step(&mut self) {
        let (scheduler, jobs) = (&mut self.scheduler, &mut self.jobs);
        let drafts = |id, _: &[u32], most| jobs.get_mut(&id).map_or_else(Vec::new, |job| job.writer.drafts(most));
        let Some(batch) = scheduler.step(drafts) else {
            // What was accepted can always go on. Should that be wrong once, better an error than a thread that spins.
            for id in self.jobs.keys().copied().collect::<Vec<_>>() {
                self.fail(id, EngineError::Failed("the scheduler had no step for it".to_owned()));
            }
            return;
        };
        self.start(&batch);
        match self.compute(&batch) {
            Ok(logits) => {
                self.scheduler.commit(&batch);
                self.write(&batch, &logits);
            }
            Err(error) => {
                tracing::error!(%error, rows = batch.rows.len(), "a step failed");
                for row in &batch.rows {
                    self.fail(row.id, error.clone());
                }
            }
        }
    }

    /// Tells those who left the queue.
    fn start(&mut self, batch: &Batch) {
        for id in &batch.admitted {
            let Some(job) = self.jobs.get_mut(id).filter(|job| !job.started) else { continue };
            job.started = true;
            let prompt_tokens = self.scheduler.sequence(*id).map(|sequence| sequence.prompt_tokens() as u64);
            let _ = job.events.send(Ok(TokenEvent::Started { prompt_tokens }));
        }
    }

    /// The logits of a batch, row after row. Neither an error nor a panic of the tensor library ends the thread: blocks that
    /// were not committed are nobody's.
    fn compute(&mut self, batch: &Batch) -> Result<Vec<f32>, EngineError> {
        let jobs = &self.jobs;
        let executor = &mut self.executor;
        let run = || {
            let logits = executor.run(batch, |id| jobs.get(&id).map(|job| &job.reading))?;
            Ok::<_, crate::model::ModelError>(logits.flatten_all()?.to_vec1::<f32>()?)
        };
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(logits)) => Ok(logits),
            Ok(Err(error)) => Err(EngineError::Failed(first_line(&error))),
            Err(_) => Err(EngineError::Failed("the tensor library gave up".to_owned())),
        }
    }

    /// Chooses tokens from logits and tells what they say.
    fn write(&mut self, batch: &Batch, logits: &[f32]) {
        self.prepare_masks(batch);
        let outputs: usize = batch.rows.iter().map(|row| row.outputs).sum();
        let Some(width) = logits.len().checked_div(outputs).filter(|width| *width > 0) else { return };
        let mut rows = logits.chunks_exact(width);
        for row in batch.rows.iter().filter(|row| row.outputs > 0) {
            let mine: Vec<&[f32]> = rows.by_ref().take(row.outputs).collect();
            let Some(job) = self.jobs.get_mut(&row.id) else { continue };
            let drafts = &batch.tokens[row.tokens.end - row.drafts..row.tokens.end];
            match job.writer.take(mine, drafts, &mut self.scratch) {
                Ok(step) => {
                    self.scheduler.advance(row.id, &step.tokens);
                    self.tell(row.id, step.finish.is_some());
                }
                Err(error) => self.fail(row.id, error),
            }
        }
    }

    /// One pass over the grammars of all sequences that get a token.
    fn prepare_masks(&mut self, batch: &Batch) {
        let gets_one = |id: SequenceId| batch.rows.iter().any(|row| row.id == id && row.outputs > 0);
        // Few have a grammar: the rows are looked through for those alone.
        let matchers = self.jobs.iter_mut().filter_map(|(id, job)| Some((*id, job.writer.matcher_mut()?)));
        let mut matchers: Vec<_> = matchers.filter(|(id, _)| gets_one(*id)).map(|(_, matcher)| matcher).collect();
        grammar::prepare(&mut matchers);
    }

    /// Sends what is new of a sequence, and ends it when it is over.
    fn tell(&mut self, id: SequenceId, over: bool) {
        let (Some(job), Some(sequence)) = (self.jobs.get_mut(&id), self.scheduler.sequence(id)) else { return };
        let (prompt, cached) = (sequence.prompt_tokens() as u64, sequence.cached_tokens() as u64);
        job.writer.output_mut().take(prompt, cached, &mut self.events);
        if over && let Some((session, opening)) = job.memory.take() {
            // Before the caller hears of the end and goes on.
            self.prompts.remember(&session, opening, sequence.generated());
        }
        if over {
            self.scheduler.end(id);
        }
        for event in self.events.drain(..) {
            let _ = job.events.send(Ok(event));
        }
        if over {
            self.jobs.remove(&id);
        }
    }

    fn fail(&mut self, id: SequenceId, error: EngineError) {
        self.scheduler.end(id);
        if let Some(job) = self.jobs.remove(&id) {
            let _ = job.events.send(Err(error));
        }
    }
}

fn refusal(error: SubmitError) -> EngineError {
    match error {
        SubmitError::TooLong { needed_tokens, capacity_tokens } => {
            EngineError::TooLong { needed: needed_tokens as u64, limit: capacity_tokens as u64 }
        }
        SubmitError::Overloaded { .. } => EngineError::Overloaded,
        SubmitError::EmptyPrompt | SubmitError::BadPicture { .. } => EngineError::Invalid(error.to_string()),
    }
}
