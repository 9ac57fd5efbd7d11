//! The engine's thread: takes requests, plans a step, runs it, chooses tokens, tells the callers. One step after another.
//!
//! The only owner of the scheduler and of the model. Everybody else sends [`Command`]s and reads events.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use tokio::sync::{OwnedMutexGuard, oneshot};

use super::batch::{Batch, SequenceId};
use super::executor::{Compute, Reading};
use super::grammar;
use super::mailbox::Sender;
use super::places::Places;
use super::prompt::{Opening, Prompts};
use super::sampler::Scratch;
use super::scheduler::{Scheduler, SequenceRequest, SubmitError};
use super::writer::Writer;
use crate::engine::error::first_line;
use crate::engine::{EngineError, SessionKey, TokenEvent};
use crate::model::Qwen3Vl;

/// What the thread is told.
pub(super) enum Command {
    /// A request, and where to say whether it was taken.
    Submit(Box<Submission>, oneshot::Sender<Result<(), EngineError>>),
    /// Other weights, from the next step on.
    Swap(Box<Replacement>, oneshot::Sender<Result<(), EngineError>>),
}

/// A model that is to take over.
pub(super) struct Replacement {
    pub(super) model: Qwen3Vl,
    /// Held until one of the two models is gone: a third must not be loaded before.
    pub(super) turn: OwnedMutexGuard<()>,
}

/// A request, ready to run.
pub(super) struct Submission {
    pub(super) request: SequenceRequest,
    pub(super) job: Job,
}

/// What belongs to a sequence beside its tokens.
pub(super) struct Job {
    pub(super) reading: Reading,
    pub(super) writer: Writer,
    /// Where to keep what was written, for the session's next turn.
    pub(super) memory: Option<(SessionKey, Opening)>,
    /// Its end says that the generation is over.
    pub(super) events: Sender,
    pub(super) deadline: Option<Instant>,
    pub(super) started: bool,
}

impl Job {
    /// Whether its caller has left, or the time is past in which a result is of use.
    fn is_abandoned(&self, now: Instant) -> bool {
        self.events.is_closed() || self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Says the last. Everything else goes before that: who hears it may come again at once, and needs the room.
    fn end(self, last: impl Iterator<Item = Result<TokenEvent, EngineError>>) {
        let Self { reading, writer, memory, events, .. } = self;
        drop((reading, writer, memory));
        last.for_each(|event| events.send(event));
    }
}

/// See the module's header.
pub(super) struct Worker<C> {
    scheduler: Scheduler,
    executor: C,
    prompts: Arc<Prompts>,
    commands: Receiver<Command>,
    jobs: HashMap<SequenceId, Job>,
    places: Arc<Places>,
    scratch: Scratch,
    began: Instant,
    /// Reused from step to step.
    events: Vec<TokenEvent>,
}

impl<C: Compute> Worker<C> {
    pub(super) fn new(
        scheduler: Scheduler,
        executor: C,
        prompts: Arc<Prompts>,
        commands: Receiver<Command>,
        places: Arc<Places>,
    ) -> Self {
        let (jobs, scratch, events) = (HashMap::new(), Scratch::default(), Vec::new());
        Self { scheduler, executor, prompts, commands, jobs, places, scratch, began: Instant::now(), events }
    }

    /// Works until nobody can send commands any more; what runs then is dropped.
    pub(super) fn run(mut self) {
        while self.listen() {
            self.step();
            self.places.set_running(self.scheduler.stats().running);
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
        // Before anybody is told that the queue is full.
        self.drop_abandoned();
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
                let _ = reply.send(self.submit(*submission));
            }
            Command::Swap(replacement, reply) => {
                let Replacement { model, turn } = *replacement;
                let swapped = self.executor.swap(model).map_err(|error| EngineError::Load(first_line(&error)));
                if swapped.is_ok() {
                    self.scheduler.restart_all();
                }
                let _ = reply.send(swapped);
                drop(turn);
            }
        }
    }

    /// Takes a request, unless nobody waits for it any more.
    fn submit(&mut self, submission: Submission) -> Result<(), EngineError> {
        let Submission { request, job } = submission;
        if job.is_abandoned(Instant::now()) {
            return Err(EngineError::DeadlineExceeded);
        }
        let id = self.scheduler.submit(request, self.began.elapsed()).map_err(refusal)?;
        self.jobs.insert(id, job);
        Ok(())
    }

    /// Ends what nobody waits for.
    fn drop_abandoned(&mut self) {
        let now = Instant::now();
        let over = self.jobs.iter().filter(|(_, job)| job.is_abandoned(now));
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
                match &batch.rows[..] {
                    [row] => self.fail(row.id, error),
                    _ => self.step_apart(&batch),
                }
            }
        }
    }

    /// Computes a batch that failed once more, each row alone, so that the fault of one sequence ends no other.
    fn step_apart(&mut self, batch: &Batch) {
        let mut computed = Vec::with_capacity(batch.rows.len());
        for row in &batch.rows {
            let alone = batch.alone(row);
            match self.compute(&alone) {
                Ok(logits) => computed.push((alone, logits)),
                Err(error) => {
                    tracing::error!(%error, tokens = alone.tokens.len(), "a sequence failed");
                    self.fail(row.id, error);
                }
            }
        }
        // Of those that are still there, every row was computed.
        self.scheduler.commit(batch);
        for (alone, logits) in computed {
            self.write(&alone, &logits);
        }
    }

    /// Tells those who left the queue.
    fn start(&mut self, batch: &Batch) {
        for id in &batch.admitted {
            let Some(job) = self.jobs.get_mut(id).filter(|job| !job.started) else { continue };
            job.started = true;
            let prompt_tokens = self.scheduler.sequence(*id).map(|sequence| sequence.prompt_tokens() as u64);
            job.events.send(Ok(TokenEvent::Started { prompt_tokens }));
        }
    }

    /// The logits of a batch, row after row. Neither an error nor a panic of the tensor library ends the thread: blocks that
    /// were not committed are nobody's.
    fn compute(&mut self, batch: &Batch) -> Result<Vec<f32>, EngineError> {
        let readings = batch.rows.iter().map(|row| self.jobs.get(&row.id).map(|job| &job.reading));
        let readings = readings.collect::<Option<Vec<_>>>();
        let readings = readings.ok_or_else(|| EngineError::Failed("a sequence without a prompt".to_owned()))?;
        let executor = &mut self.executor;
        match catch_unwind(AssertUnwindSafe(|| executor.run(batch, &readings))) {
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
            let last = std::mem::take(&mut self.events);
            self.end(id, last.into_iter().map(Ok));
            return;
        }
        for event in self.events.drain(..) {
            job.events.send(Ok(event));
        }
        if job.events.lags() {
            self.fail(id, EngineError::Failed("too much of it was not read".to_owned()));
        }
    }

    fn fail(&mut self, id: SequenceId, error: EngineError) {
        self.end(id, std::iter::once(Err(error)));
    }

    fn end(&mut self, id: SequenceId, last: impl Iterator<Item = Result<TokenEvent, EngineError>>) {
        self.scheduler.end(id);
        self.executor.forget(id);
        if let Some(job) = self.jobs.remove(&id) {
            job.end(last);
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

#[cfg(test)]
mod tests;
