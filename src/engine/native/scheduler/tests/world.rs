//! A scheduler, the fake model, and the clients' books: what each sequence must say, whatever else happens.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::super::{Batch, PictureSpan, Policy, Scheduler, SchedulerConfig, SequenceId, SequenceRequest, SubmitError};
use super::fake::{EOS, FakeModel, alone};
use crate::engine::{SessionKey, Speaker};

pub(super) struct World {
    pub(super) scheduler: Scheduler,
    pub(super) model: FakeModel,
    pub(super) live: BTreeMap<SequenceId, Record>,
    pub(super) ended: Vec<Record>,
    pub(super) now: Duration,
    pub(super) steps: usize,
    /// Drafts are right this often of eight.
    pub(super) right_drafts: u64,
    /// Whether the end token ends a generation, or only its length.
    pub(super) stops: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) tokens: Vec<u32>,
    pub(super) pictures: Arc<[PictureSpan]>,
    pub(super) prompt_tokens: usize,
    pub(super) max_new_tokens: usize,
}

pub(super) fn config(block_tokens: usize, blocks: u32, chunk_tokens: usize) -> SchedulerConfig {
    SchedulerConfig { block_tokens, blocks, chunk_tokens, ..SchedulerConfig::default() }
}

pub(super) fn request(prompt: &[u32], max_new_tokens: usize) -> SequenceRequest {
    SequenceRequest {
        prompt: prompt.to_vec(),
        pictures: Arc::new([]),
        max_new_tokens,
        session: SessionKey("episode".into()),
        speaker: Speaker::Main,
        gang: None,
    }
}

impl World {
    pub(super) fn new(config: SchedulerConfig) -> Self {
        let scheduler = Scheduler::new(config);
        let model = FakeModel::new(scheduler.config().blocks, scheduler.config().block_tokens);
        let (live, ended, now) = (BTreeMap::new(), Vec::new(), Duration::ZERO);
        Self { scheduler, model, live, ended, now, steps: 0, right_drafts: 4, stops: true }
    }

    pub(super) fn submit(&mut self, request: SequenceRequest) -> Result<SequenceId, SubmitError> {
        let record = Record {
            tokens: request.prompt.clone(),
            pictures: Arc::clone(&request.pictures),
            prompt_tokens: request.prompt.len(),
            max_new_tokens: request.max_new_tokens,
        };
        let id = self.scheduler.submit(request, self.now)?;
        self.model.pictures.insert(id, Arc::clone(&record.pictures));
        self.live.insert(id, record);
        Ok(id)
    }

    pub(super) fn plan(&mut self) -> Option<Batch> {
        let (live, right, weights) = (&self.live, self.right_drafts, self.model.weights);
        let batch = self.scheduler.step(|id, tokens, most| {
            let record = &live[&id];
            assert_eq!(tokens, record.tokens);
            let mut known = tokens.to_vec();
            // One more than may be, which has to be cut off.
            for i in 0..=most as u64 {
                let next = alone(weights, &known, &record.pictures);
                known.push(if (id.0 * 5 + tokens.len() as u64 * 3 + i) % 8 < right { next } else { next + 1 });
            }
            known.split_off(tokens.len())
        });
        self.now += Duration::from_secs(1);
        self.steps += 1;
        if let Some(batch) = &batch {
            self.check_batch(batch);
        }
        self.check_books();
        batch
    }

    /// One step; false when there was nothing to do. `interrupt` comes between computing and committing.
    pub(super) fn step_with(&mut self, interrupt: impl FnOnce(&mut Self)) -> bool {
        let Some(batch) = self.plan() else { return false };
        let outputs = self.model.run(&batch);
        let weights = self.model.weights;
        interrupt(self);
        self.scheduler.commit(&batch);
        for (row, chosen) in batch.rows.iter().zip(outputs) {
            let Some(record) = self.live.get_mut(&row.id) else { continue };
            let drafts = &batch.tokens[row.tokens.end - row.drafts..row.tokens.end];
            let mut accepted = Vec::new();
            for (i, token) in chosen.iter().enumerate() {
                let expected = alone(weights, &record.tokens, &record.pictures);
                assert_eq!(*token, expected, "sequence {:?} says what it says alone", row.id);
                record.tokens.push(*token);
                accepted.push(*token);
                if (self.stops && *token == EOS) || drafts.get(i) != Some(token) {
                    break;
                }
            }
            if accepted.is_empty() {
                continue;
            }
            assert!(self.scheduler.advance(row.id, &accepted));
            if (self.stops && accepted.contains(&EOS))
                || record.tokens.len() - record.prompt_tokens >= record.max_new_tokens
            {
                self.end(row.id);
            }
        }
        self.check_books();
        true
    }

    pub(super) fn step(&mut self) -> bool {
        self.step_with(|_| ())
    }

    pub(super) fn end(&mut self, id: SequenceId) {
        if let Some(record) = self.live.remove(&id) {
            if record.max_new_tokens > 0 {
                assert!(record.tokens.len() <= record.prompt_tokens + record.max_new_tokens);
            }
            self.ended.push(record);
        }
        self.scheduler.end(id);
        assert!(self.scheduler.sequence(id).is_none() && !self.scheduler.end(id));
    }

    pub(super) fn swap_weights(&mut self) {
        self.model.weights += 1;
        self.scheduler.restart_all();
    }

    /// Runs until all is done, and looks for what was left behind.
    pub(super) fn drain(&mut self) {
        let left: usize = self.live.values().map(|record| record.tokens.len() + record.max_new_tokens + 2).sum();
        for _ in 0..=left {
            if !self.step() {
                break;
            }
        }
        assert!(self.live.is_empty(), "every sequence ends: {:?}", self.live);
        let stats = self.scheduler.stats();
        assert_eq!((stats.running, stats.queued, stats.blocks_used, stats.blocks_promised), (0, 0, 0, 0));
        assert_eq!(stats.blocks_free + stats.blocks_cached, self.scheduler.config().blocks as usize);
        assert_eq!(self.scheduler.ranks.gangs(), 0, "every gang is forgotten");
        assert_eq!(self.scheduler.sequences.len(), 0);
    }

    fn check_batch(&self, batch: &Batch) {
        let config = self.scheduler.config();
        let mut read = 0;
        let (mut tokens, mut blocks, mut pictures) = (0, 0, 0);
        for row in &batch.rows {
            assert_eq!((row.tokens.start, row.blocks.start, row.pictures.start), (tokens, blocks, pictures));
            (tokens, blocks, pictures) = (row.tokens.end, row.blocks.end, row.pictures.end);
            assert!(!row.tokens.is_empty());
            let record = &self.live[&row.id];
            let known = row.tokens.len() - row.drafts;
            assert_eq!(batch.tokens[row.tokens.clone()][..known], record.tokens[row.first..row.first + known]);
            let last = row.first + known == record.tokens.len();
            assert_eq!(row.outputs, if last { 1 + row.drafts } else { 0 });
            let generated = record.tokens.len() - record.prompt_tokens;
            assert!(row.drafts <= config.drafts_max && row.drafts < (record.max_new_tokens - generated).max(1));
            if generated == 0 || known > config.block_tokens {
                read += known;
            }
        }
        assert_eq!((tokens, blocks, pictures), (batch.tokens.len(), batch.blocks.len(), batch.pictures.len()));
        assert!(read <= config.chunk_tokens, "{read} prompt tokens in a step");
        for id in self.scheduler.running.values() {
            let sequence = &self.scheduler.sequences[id];
            if !sequence.generated().is_empty() && sequence.remaining() == 1 {
                assert!(batch.rows.iter().any(|row| row.id == *id), "every decoding sequence is in every step");
            }
        }
        assert!(self.scheduler.running.len() <= config.running_max);
        // Nobody writes where another one writes or reads in the same step.
        let mut writers: HashMap<u32, SequenceId> = HashMap::new();
        for row in &batch.rows {
            for block in &batch.blocks[row.blocks.clone()][row.first / config.block_tokens..] {
                assert_eq!(writers.insert(*block, row.id), None, "two rows write block {block}");
            }
        }
        for row in &batch.rows {
            for block in &batch.blocks[row.blocks.clone()][..row.first / config.block_tokens] {
                assert_eq!(writers.get(block), None, "a block is read and written in one step");
            }
        }
    }

    pub(super) fn check_books(&self) {
        let mut held: HashMap<u32, u32> = HashMap::new();
        let mut promised = 0;
        for (id, sequence) in &self.scheduler.sequences {
            sequence.table.iter().for_each(|block| *held.entry(*block).or_default() += 1);
            promised += sequence.promised;
            let places = (self.scheduler.queue.get(&sequence.rank), self.scheduler.running.get(&sequence.rank));
            assert_eq!(places, if sequence.admitted { (None, Some(id)) } else { (Some(id), None) });
            if sequence.admitted {
                let most = sequence.blocks_max(self.scheduler.config().block_tokens);
                assert_eq!(sequence.table.len() + sequence.promised, most, "a running sequence has all it can need");
            }
        }
        let returned = self.scheduler.sequences.values().filter(|sequence| sequence.returned);
        assert_eq!(returned.inspect(|sequence| assert!(!sequence.admitted)).count(), self.scheduler.returned);
        assert_eq!(promised, self.scheduler.pool.promised());
        self.scheduler.pool.check(&held);
    }
}

/// What the tests order by.
pub(super) const POLICIES: [Policy; 2] = [Policy::Fcfs, Policy::Episodes];
