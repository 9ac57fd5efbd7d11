//! The thread's work step by step, with a model that says a letter and fails when it is told to.

use std::sync::mpsc::{Sender as Commands, channel};

use futures::FutureExt;

use super::*;
use crate::engine::chat::bytes::TokenBytes;
use crate::engine::chat::geometry::{Geometry, Limits};
use crate::engine::chat::vocabulary::tests::tiny;
use crate::engine::native::draft::Lookup;
use crate::engine::native::mailbox::{Receiver, mailbox};
use crate::engine::native::output::Output;
use crate::engine::native::places::Bounds;
use crate::engine::native::sampler::Sampler;
use crate::engine::native::scheduler::SchedulerConfig;
use crate::engine::{FinishReason, Sampling, Speaker};
use crate::model::ModelError;

const VOCABULARY: usize = 1600;

/// How a sequence goes wrong.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Error,
    Panic,
}

/// Says one letter for each sequence, `a` for the first. Sequences with a fault fail whatever batch they are in.
struct Letters {
    letters: Vec<u32>,
    faults: HashMap<SequenceId, Fault>,
    forgotten: Vec<SequenceId>,
    batches: Vec<usize>,
}

impl Compute for Letters {
    fn run(&mut self, batch: &Batch, readings: &[&Reading]) -> Result<Vec<f32>, ModelError> {
        assert_eq!(batch.rows.len(), readings.len());
        self.batches.push(batch.rows.len());
        let mut logits = Vec::new();
        for row in &batch.rows {
            match self.faults.get(&row.id) {
                Some(Fault::Error) => return Err(ModelError::Input("a fault".to_owned())),
                Some(Fault::Panic) => panic!("a fault"),
                None => {}
            }
            for _ in 0..row.outputs {
                let mut output = vec![0.0; VOCABULARY];
                output[self.letters[row.id.0 as usize] as usize] = 1.0;
                logits.extend(output);
            }
        }
        Ok(logits)
    }

    fn forget(&mut self, id: SequenceId) {
        self.forgotten.push(id);
    }

    fn swap(&mut self, _: Qwen3Vl) -> Result<(), ModelError> {
        Err(ModelError::Options("there is only this one".to_owned()))
    }
}

struct World {
    worker: Worker<Letters>,
    commands: Commands<Command>,
    places: Arc<Places>,
    tokens: Arc<TokenBytes>,
}

type Answer = oneshot::Receiver<Result<(), EngineError>>;

fn world(config: SchedulerConfig) -> World {
    let vocabulary = Arc::new(tiny());
    let tokens = Arc::new(vocabulary.token_bytes().expect("byte-level"));
    let letters = ('a'..='z').map(|c| vocabulary.encode_text(&c.to_string()).expect("encodes")[0]).collect();
    let geometry = Geometry::new(32).expect("not 0");
    let limits = Limits::new(4096, None);
    let prompts = Arc::new(Prompts::new(vocabulary, Arc::clone(&tokens), geometry, limits, 1 << 20));
    let places = Arc::new(Places::new(Bounds { requests: 100, pixel_bytes: 0 }));
    let (commands, received) = channel();
    let executor = Letters { letters, faults: HashMap::new(), forgotten: Vec::new(), batches: Vec::new() };
    let worker = Worker::new(Scheduler::new(config), executor, prompts, received, Arc::clone(&places));
    World { worker, commands, places, tokens }
}

impl World {
    /// Sends a request for so many tokens; may leave so many bytes unread.
    fn submit_for(&self, most: u32, unread: usize, deadline: Option<Instant>) -> (Receiver, Answer) {
        let (events, received) = mailbox(self.places.take(0).expect("there is room"), unread);
        let sampling = Sampling { temperature: Some(0.0), ..Sampling::default() };
        let output = Output::new(Arc::clone(&self.tokens), Arc::default(), &sampling, most);
        let prompt = vec![5; 20];
        let sampler = Sampler::new(&sampling, &prompt).expect("valid");
        let request = SequenceRequest {
            pictures: Arc::new([]),
            max_new_tokens: most as usize,
            session: SessionKey("test".into()),
            speaker: Speaker::Sub,
            gang: None,
            prompt,
        };
        let writer = Writer::new(sampler, None, Lookup::new(0, 0), output);
        let job = Job { reading: Reading::of_text(20), writer, memory: None, events, deadline, started: false };
        let (reply, answer) = oneshot::channel();
        let command = Command::Submit(Box::new(Submission { request, job }), reply);
        assert!(self.commands.send(command).is_ok());
        (received, answer)
    }

    fn submit(&self, most: u32) -> (Receiver, Answer) {
        self.submit_for(most, 1 << 20, None)
    }

    /// Takes what was sent, and computes a step.
    fn step(&mut self) {
        assert!(self.worker.listen());
        self.worker.step();
    }

    /// To the end of all that was sent.
    fn drain(&mut self) {
        loop {
            self.step();
            if self.worker.jobs.is_empty() {
                break;
            }
        }
        let stats = self.worker.scheduler.stats();
        assert_eq!((stats.running, stats.queued, stats.blocks_used, stats.blocks_promised), (0, 0, 0, 0));
    }
}

/// What was heard so far, and how it ended if it has.
fn heard(receiver: &mut Receiver) -> (String, Option<Result<FinishReason, EngineError>>) {
    let mut text = String::new();
    loop {
        match receiver.next().now_or_never().flatten() {
            None => return (text, None),
            Some(Ok(TokenEvent::Text(more))) => text.push_str(&more),
            Some(Ok(TokenEvent::Finished(generated))) => return (text, Some(Ok(generated.reason))),
            Some(Ok(_)) => {}
            Some(Err(error)) => return (text, Some(Err(error))),
        }
    }
}

fn answered(answer: Answer) -> Result<(), EngineError> {
    answer.now_or_never().expect("at once").expect("the worker is there")
}

#[test]
fn the_fault_of_one_sequence_ends_no_other() {
    for fault in [Fault::Error, Fault::Panic] {
        let mut world = world(SchedulerConfig::default());
        let mut callers: Vec<Receiver> = (0..4).map(|_| world.submit(6).0).collect();
        world.step();
        world.step();
        assert_eq!(world.worker.executor.batches, [1, 4], "one reads the prompt, the others take it from there");
        world.step();
        world.worker.executor.faults.insert(SequenceId(2), fault);
        world.drain();
        // The whole batch, then each alone, then those that are left.
        assert_eq!(world.worker.executor.batches[3..9], [4, 1, 1, 1, 1, 3]);
        let ends: Vec<_> = callers.iter_mut().map(heard).collect();
        for (number, letter) in [(0, "a"), (1, "b"), (3, "d")] {
            let (text, end) = &ends[number];
            assert_eq!(text, &letter.repeat(6));
            assert!(matches!(end, Some(Ok(FinishReason::Length))), "{end:?}");
        }
        assert!(matches!(&ends[2], (text, Some(Err(EngineError::Failed(_)))) if "cccccc".starts_with(text.as_str())));
        assert!(world.worker.executor.forgotten.contains(&SequenceId(2)));
    }
}

#[test]
fn who_waits_for_a_prompt_that_another_reads_goes_on_when_that_one_fails() {
    let mut world = world(SchedulerConfig::default());
    world.worker.executor.faults.insert(SequenceId(0), Fault::Error);
    let mut callers: Vec<Receiver> = (0..3).map(|_| world.submit(3).0).collect();
    world.drain();
    let ends: Vec<_> = callers.iter_mut().map(heard).collect();
    assert!(matches!(&ends[0].1, Some(Err(EngineError::Failed(_)))));
    assert_eq!([ends[1].0.as_str(), ends[2].0.as_str()], ["bbb", "ccc"]);
}

#[test]
fn the_abandoned_leave_the_queue_before_others_are_refused() {
    let mut world = world(SchedulerConfig { running_max: 1, queue_max: 1, ..SchedulerConfig::default() });
    let (mut running, _) = world.submit(50);
    world.step();
    let (waiting, taken) = world.submit(3);
    let (_refused, answer) = world.submit(3);
    world.step();
    assert!(answered(taken).is_ok() && matches!(answered(answer), Err(EngineError::Overloaded)));
    drop(waiting);
    let (mut next, answer) = world.submit(3);
    world.step();
    assert!(answered(answer).is_ok());
    world.drain();
    assert!(matches!(heard(&mut running).1, Some(Ok(FinishReason::Length))));
    assert!(matches!(heard(&mut next).1, Some(Ok(FinishReason::Length))));
}

#[test]
fn what_nobody_waits_for_when_it_comes_is_not_taken() {
    let mut world = world(SchedulerConfig::default());
    let (_late, answer) = world.submit_for(3, 1 << 20, Some(Instant::now()));
    drop(world.submit(3));
    world.step();
    assert!(matches!(answered(answer), Err(EngineError::DeadlineExceeded)));
    assert!(world.worker.jobs.is_empty() && world.worker.executor.batches.is_empty());
}

#[test]
fn a_deadline_ends_what_waits_in_the_queue() {
    let mut world = world(SchedulerConfig { running_max: 1, ..SchedulerConfig::default() });
    let (mut running, _) = world.submit(50);
    let (mut waiting, answer) = world.submit(3);
    world.step();
    assert!(answered(answer).is_ok());
    world.worker.jobs.get_mut(&SequenceId(1)).expect("it waits").deadline = Some(Instant::now());
    world.step();
    assert!(matches!(heard(&mut waiting), (text, Some(Err(EngineError::DeadlineExceeded))) if text.is_empty()));
    assert!(heard(&mut running).1.is_none(), "the other one runs");
    world.drain();
}

#[test]
fn who_reads_too_little_is_told_so_and_others_go_on() {
    let mut world = world(SchedulerConfig::default());
    let (mut slow, _) = world.submit_for(50, 9, None);
    let (mut other, _) = world.submit_for(50, 50, None);
    world.drain();
    let (text, end) = heard(&mut slow);
    assert_eq!(text, "a".repeat(10));
    assert!(matches!(end, Some(Err(EngineError::Failed(_)))), "{end:?}");
    assert_eq!(heard(&mut other).0, "b".repeat(50));
}

#[test]
fn who_hears_the_end_finds_his_place_free() {
    let mut world = world(SchedulerConfig::default());
    let (mut caller, _) = world.submit(3);
    world.drain();
    assert_eq!(world.places.load().queued, 1);
    assert!(heard(&mut caller).1.is_some());
    assert_eq!(world.places.load().queued, 0);
}
