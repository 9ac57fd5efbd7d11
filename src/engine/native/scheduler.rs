//! Plans the engine's steps: who is admitted, who is read on, who gets a token; nothing is computed twice.
//!
//! A state machine without a model, threads or clocks. A step goes `step` → the model runs → `commit` → for each row that
//! asked for logits, `advance` with the chosen tokens or `end`. One step is under way at a time.
//!
//! - *Admission* sets aside all the blocks a request can ever need. A running sequence therefore never waits for memory
//!   and is never put back; what could never fit is refused.
//! - *A step* has the next token of every decoding sequence (and drafts after it), and pieces of prompts up to a bound.
//! - *Sharing*: where a block of a prompt begins, it is looked up. What is cached is taken; what another row of this step
//!   computes is waited for, until that row is committed or gone; the rest is computed.

mod sequence;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use serde::Serialize;

pub use self::sequence::{PictureSpan, Sequence, SequenceRequest};
use super::batch::{Batch, PictureRows, Row, SequenceId};
use super::kv_cache::{BlockPool, PrefixHash};
use super::policy::{Policy, Rank, Ranks};

/// Bounds of the scheduler.
#[derive(Debug, Clone, Serialize)]
pub struct SchedulerConfig {
    /// Tokens a block holds.
    pub block_tokens: usize,
    /// Blocks there are.
    pub blocks: u32,
    /// Prompt tokens read in a step, all sequences together. At least a block's.
    pub chunk_tokens: usize,
    /// Sequences that run at the same time.
    pub running_max: usize,
    /// Requests that wait.
    pub queue_max: usize,
    /// Drafts after a token.
    pub drafts_max: usize,
    /// Who goes first.
    pub policy: Policy,
    /// For how long after its first request an episode keeps its age.
    pub episode_memory: Duration,
    /// Episodes whose age is kept.
    pub episodes_max: usize,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            block_tokens: 16,
            blocks: 4096,
            chunk_tokens: 512,
            running_max: 256,
            queue_max: 1024,
            drafts_max: 0,
            policy: Policy::Episodes,
            episode_memory: Duration::from_secs(600),
            episodes_max: 4096,
        }
    }
}

/// Why a request wasn't taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// It would not fit if it were alone.
    #[error("prompt and output need {needed_tokens} tokens of memory, there are {capacity_tokens}")]
    TooLong {
        /// Prompt and longest output.
        needed_tokens: usize,
        /// What all blocks hold.
        capacity_tokens: usize,
    },
    /// The queue is full.
    #[error("{queued} requests are waiting")]
    Overloaded {
        /// How many wait.
        queued: usize,
    },
    /// Nothing to read.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A picture is empty, outside the prompt, or not after the one before it.
    #[error("picture {picture} does not fit the prompt")]
    BadPicture {
        /// Which one.
        picture: usize,
    },
}

/// What the scheduler is doing and has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct SchedulerStats {
    /// Sequences admitted.
    pub running: usize,
    /// Sequences waiting.
    pub queued: usize,
    /// Blocks that hold nothing.
    pub blocks_free: usize,
    /// Blocks that nobody uses and that hold a prefix.
    pub blocks_cached: usize,
    /// Blocks in use.
    pub blocks_used: usize,
    /// Blocks set aside for running sequences, not in use yet.
    pub blocks_promised: usize,
    /// The most blocks that were in use at a time.
    pub blocks_peak_used: usize,
    /// Tokens computed so far, drafts not counted.
    pub computed_tokens: u64,
    /// Tokens found in the cache instead.
    pub hit_tokens: u64,
    /// Drafts computed.
    pub drafted_tokens: u64,
    /// Drafts accepted.
    pub accepted_tokens: u64,
}

/// See the module's header.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    pool: BlockPool,
    ranks: Ranks,
    sequences: HashMap<SequenceId, Sequence>,
    queue: BTreeMap<Rank, SequenceId>,
    running: BTreeMap<Rank, SequenceId>,
    /// Of the queue, those that ran when all was restarted: they are no new requests.
    returned: usize,
    arrivals: u64,
    /// Number of the last planned step.
    step: u64,
    /// Whether it can still be committed.
    under_way: bool,
    /// Whole blocks it computes.
    planned: HashSet<PrefixHash>,
    computed_tokens: u64,
    hit_tokens: u64,
    drafted_tokens: u64,
    accepted_tokens: u64,
}

impl Scheduler {
    /// An idle scheduler. Sizes of zero count as one, and a step reads at least a block.
    #[must_use]
    pub fn new(mut config: SchedulerConfig) -> Self {
        config.block_tokens = config.block_tokens.max(1);
        config.chunk_tokens = config.chunk_tokens.max(config.block_tokens);
        config.running_max = config.running_max.max(1);
        Self {
            pool: BlockPool::new(config.blocks),
            ranks: Ranks::new(config.policy, config.episode_memory, config.episodes_max),
            config,
            sequences: HashMap::new(),
            queue: BTreeMap::new(),
            running: BTreeMap::new(),
            returned: 0,
            arrivals: 0,
            step: 0,
            under_way: false,
            planned: HashSet::new(),
            computed_tokens: 0,
            hit_tokens: 0,
            drafted_tokens: 0,
            accepted_tokens: 0,
        }
    }

    /// Takes a request into the queue. `now` is any time that does not go backwards.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn submit(&mut self, request: SequenceRequest, now: Duration) -> Result<SequenceId, SubmitError> {
        self.verify(&request)?;
        let id = SequenceId(self.arrivals);
        self.arrivals += 1;
        let rank = self.ranks.join(id.0, &request.session, request.speaker, request.gang, now);
        self.sequences.insert(id, Sequence::new(request, rank, self.config.block_tokens));
        self.queue.insert(rank, id);
        Ok(id)
    }

    fn verify(&self, request: &SequenceRequest) -> Result<(), SubmitError> {
        if request.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        let mut end = 0;
        for (picture, span) in request.pictures.iter().enumerate() {
            let fits = span.tokens > 0 && span.first >= end;
            end = span.first.saturating_add(span.tokens);
            if !fits || end > request.prompt.len() || u32::try_from(span.tokens).is_err() {
                return Err(SubmitError::BadPicture { picture });
            }
        }
        let needed_tokens = request.prompt.len().saturating_add(request.max_new_tokens);
        let capacity_tokens = self.pool.blocks() * self.config.block_tokens;
        if needed_tokens > capacity_tokens {
            return Err(SubmitError::TooLong { needed_tokens, capacity_tokens });
        }
        let queued = self.queue.len() - self.returned;
        if queued >= self.config.queue_max {
            return Err(SubmitError::Overloaded { queued });
        }
        Ok(())
    }

    /// Plans a step; `None` when there is nothing to compute. The step before, if it was not committed, never happened.
    ///
    /// `draft` is asked for each decoding sequence for guesses of what comes after its tokens (prompt and output), at most
    /// so many; more are cut off.
    pub fn step(&mut self, mut draft: impl FnMut(SequenceId, &[u32], usize) -> Vec<u32>) -> Option<Batch> {
        self.step += 1;
        self.planned.clear();
        let mut batch = Batch { number: self.step, ..Batch::default() };
        self.admit(&mut batch.admitted);
        let mut reading = Vec::new();
        for id in self.running.values() {
            let Some(sequence) = self.sequences.get_mut(id) else { continue };
            if sequence.remaining() == 0 || (sequence.may_generate() == 0 && sequence.max_new_tokens > 0) {
                continue;
            }
            // After a weight swap whole conversations have to be read again, piece by piece.
            if sequence.generated().is_empty() || sequence.remaining() > self.config.block_tokens {
                reading.push(*id);
                continue;
            }
            let drafts_max = self.config.drafts_max.min(sequence.may_generate().saturating_sub(1));
            let mut drafts = if drafts_max > 0 { draft(*id, &sequence.tokens, drafts_max) } else { Vec::new() };
            drafts.truncate(drafts_max);
            let end = sequence.tokens.len();
            add_row(&mut batch, *id, sequence, end, &drafts, &mut self.pool, self.config.block_tokens);
        }
        self.read(&reading, &mut batch);
        self.under_way = !batch.rows.is_empty();
        self.under_way.then_some(batch)
    }

    /// Admits in strict order while there is room.
    fn admit(&mut self, admitted: &mut Vec<SequenceId>) {
        let size = self.config.block_tokens;
        while self.running.len() < self.config.running_max
            && let Some((rank, id)) = self.queue.first_key_value().map(|(rank, id)| (*rank, *id))
            && let Some(sequence) = self.sequences.get_mut(&id)
        {
            let needed = sequence.blocks_max(size);
            let shared = sequence.prefixes.iter().enumerate();
            let shared =
                shared.take_while(|(i, prefix)| sequence.is_shareable(*i, size) && self.pool.is_held(**prefix));
            if needed - shared.count() > self.pool.available() {
                return;
            }
            self.queue.remove(&rank);
            self.running.insert(rank, id);
            sequence.admitted = true;
            self.returned -= usize::from(std::mem::take(&mut sequence.returned));
            sequence.promised = needed;
            self.pool.promise(needed);
            sequence.take_cached(&mut self.pool, size);
            self.hit_tokens += sequence.hits as u64;
            admitted.push(id);
        }
    }

    /// Adds pieces of prompts until the step is full: each is read to its end before the next, as far as it can be.
    fn read(&mut self, reading: &[SequenceId], batch: &mut Batch) {
        let size = self.config.block_tokens;
        let mut budget = self.config.chunk_tokens;
        for id in reading {
            if budget == 0 {
                return;
            }
            let Some(sequence) = self.sequences.get_mut(id) else { continue };
            let hits = sequence.hits;
            sequence.take_cached(&mut self.pool, size);
            // Somebody else computes the next block in this step.
            let waits = sequence.next_shareable(size).is_some_and(|prefix| self.planned.contains(&prefix));
            // A block taken and not finished in this step would be computed again by whoever else needs it.
            if !waits && budget >= size.min(sequence.remaining()) {
                sequence.take_partial(&mut self.pool, size);
            }
            self.hit_tokens += (sequence.hits - hits) as u64;
            let end = piece_end(sequence, budget, size);
            if waits || end == sequence.computed {
                continue;
            }
            budget -= end - sequence.computed;
            let whole = sequence.computed / size..end / size;
            self.planned.extend(sequence.prefixes.get(whole).into_iter().flatten());
            add_row(batch, *id, sequence, end, &[], &mut self.pool, size);
        }
    }

    /// The step was computed: its keys and values are there. Rows of sequences that were ended meanwhile are skipped, and
    /// so is a batch that isn't the last planned one.
    pub fn commit(&mut self, batch: &Batch) {
        if !self.under_way || batch.number != self.step {
            return;
        }
        self.under_way = false;
        for row in &batch.rows {
            let Some(sequence) = self.sequences.get_mut(&row.id) else { continue };
            let known = row.tokens.len() - row.drafts;
            sequence.computed = row.first + known;
            sequence.drafts = batch.tokens[row.tokens.end - row.drafts..row.tokens.end].to_vec();
            sequence.register(&mut self.pool, self.config.block_tokens);
            self.computed_tokens += known as u64;
            self.drafted_tokens += row.drafts as u64;
        }
    }

    /// What comes after a sequence's tokens: as many of its drafts as are right and a new token, or tokens that are certain
    /// anyhow. What goes beyond the longest output is dropped. False when the sequence is gone.
    pub fn advance(&mut self, id: SequenceId, tokens: &[u32]) -> bool {
        let Some(sequence) = self.sequences.get_mut(&id) else { return false };
        let tokens = &tokens[..tokens.len().min(sequence.may_generate())];
        let right = sequence.drafts.iter().zip(tokens).take_while(|(draft, token)| draft == token).count();
        sequence.tokens.extend_from_slice(tokens);
        sequence.computed += right;
        sequence.drafts.clear();
        sequence.register(&mut self.pool, self.config.block_tokens);
        self.accepted_tokens += right as u64;
        true
    }

    /// Ends a sequence, finished or cancelled, waiting or running, whether or not a step under way computes it: its blocks
    /// are others' from the next step on. False when it is gone already.
    pub fn end(&mut self, id: SequenceId) -> bool {
        let Some(mut sequence) = self.sequences.remove(&id) else { return false };
        self.queue.remove(&sequence.rank);
        self.running.remove(&sequence.rank);
        self.returned -= usize::from(sequence.returned);
        self.ranks.leave(sequence.gang);
        sequence.release(&mut self.pool, self.config.block_tokens);
        true
    }

    /// Forgets all keys and values, and the step under way. Running sequences keep their tokens, wait for admission once
    /// more, at their places, and are read again. They take no places of the queue's bound.
    pub fn restart_all(&mut self) {
        self.under_way = false;
        while let Some((rank, id)) = self.running.pop_first() {
            if let Some(sequence) = self.sequences.get_mut(&id) {
                sequence.release(&mut self.pool, self.config.block_tokens);
                sequence.admitted = false;
                sequence.returned = true;
                self.returned += 1;
                self.queue.insert(rank, id);
            }
        }
        self.pool.forget();
    }

    /// A sequence that isn't ended.
    #[must_use]
    pub fn sequence(&self, id: SequenceId) -> Option<&Sequence> {
        self.sequences.get(&id)
    }

    /// Its bounds, as they are applied.
    #[must_use]
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// What it is doing and has done.
    #[must_use]
    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats {
            running: self.running.len(),
            queued: self.queue.len(),
            blocks_free: self.pool.free(),
            blocks_cached: self.pool.cached(),
            blocks_used: self.pool.used(),
            blocks_promised: self.pool.promised(),
            blocks_peak_used: self.pool.peak_used(),
            computed_tokens: self.computed_tokens,
            hit_tokens: self.hit_tokens,
            drafted_tokens: self.drafted_tokens,
            accepted_tokens: self.accepted_tokens,
        }
    }
}

/// Where a piece of at most `budget` tokens ends: at the end of all tokens, else where a block does.
fn piece_end(sequence: &Sequence, budget: usize, block_tokens: usize) -> usize {
    let bound = sequence.computed + budget;
    if bound >= sequence.tokens.len() {
        return sequence.tokens.len();
    }
    (bound / block_tokens * block_tokens).max(sequence.computed)
}

/// Adds a row with a sequence's tokens from the computed ones up to `end`, and drafts.
fn add_row(
    batch: &mut Batch,
    id: SequenceId,
    sequence: &mut Sequence,
    end: usize,
    drafts: &[u32],
    pool: &mut BlockPool,
    block_tokens: usize,
) {
    if !sequence.cover(end + drafts.len(), pool, block_tokens) {
        return;
    }
    let first = sequence.computed;
    let (tokens, blocks, pictures) = (batch.tokens.len(), batch.blocks.len(), batch.pictures.len());
    let unseen = sequence.pictures.partition_point(|span| span.first + span.tokens <= first);
    for (picture, span) in sequence.pictures.iter().enumerate().skip(unseen) {
        if span.first >= end {
            break;
        }
        let (from, to) = (span.first.max(first), (span.first + span.tokens).min(end));
        let place = tokens + from - first..tokens + to - first;
        batch.pictures.push(PictureRows { picture, offset: from - span.first, tokens: place });
    }
    let table = (end + drafts.len()).div_ceil(block_tokens);
    batch.tokens.extend_from_slice(&sequence.tokens[first..end]);
    batch.tokens.extend_from_slice(drafts);
    batch.blocks.extend_from_slice(&sequence.table[..table]);
    batch.rows.push(Row {
        id,
        tokens: tokens..batch.tokens.len(),
        blocks: blocks..batch.blocks.len(),
        pictures: pictures..batch.pictures.len(),
        first,
        outputs: if end == sequence.tokens.len() { 1 + drafts.len() } else { 0 },
        drafts: drafts.len(),
    });
}
