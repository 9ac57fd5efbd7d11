//! Whatever comes in whatever order: each sequence says what it says alone, no block is lost, nobody starves.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::super::{Policy, SchedulerConfig, SequenceRequest};
use super::fake::values;
use super::world::{POLICIES, World, request};
use super::{numbers, picture};
use crate::engine::{SessionKey, Speaker};

#[derive(Debug, Clone)]
enum Action {
    Submit(Shape),
    /// A turn after an ended one: its tokens and some more.
    Continue {
        which: usize,
        tail: Vec<u32>,
        max_new: usize,
    },
    Steps(usize),
    Cancel(usize),
    CancelInStep(usize),
    LoseStep,
    Swap,
    SwapInStep,
}

#[derive(Debug, Clone)]
struct Shape {
    family: usize,
    common: usize,
    tail: Vec<u32>,
    max_new: usize,
    session: u8,
    sub: bool,
    gang: Option<u64>,
}

impl Shape {
    /// Families share text, and pictures in part: the same placeholders stand for other pictures.
    fn request(&self) -> SequenceRequest {
        let spans = match self.family {
            0 => vec![],
            1 => vec![picture(3, 6, 1), picture(9, 4, 2), picture(20, 7, 1)],
            _ => vec![picture(3, 6, 1), picture(9, 4, 3), picture(20, 7, 1)],
        };
        let inside = spans.iter().find(|span| (span.first..span.first + span.tokens).contains(&self.common));
        let common = inside.map_or(self.common, |span| span.first + span.tokens);
        let pictures = spans.into_iter().filter(|span| span.first < common).collect();
        let prompt = [numbers(1, common), self.tail.clone(), vec![3]].concat();
        SequenceRequest {
            pictures,
            session: SessionKey(format!("episode {}", self.session).into()),
            speaker: if self.sub { Speaker::Sub } else { Speaker::Main },
            gang: self.gang,
            ..request(&prompt, self.max_new)
        }
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    let tail = prop::collection::vec(0..3_u32, 0..12);
    let gang = prop::option::of(0..3_u64);
    (0..3_usize, 0..40_usize, tail, 0..14_usize, 0..4_u8, any::<bool>(), gang).prop_map(
        |(family, common, tail, max_new, session, sub, gang)| Shape {
            family,
            common,
            tail,
            max_new,
            session,
            sub,
            gang,
        },
    )
}

fn action() -> impl Strategy<Value = Action> {
    let tail = prop::collection::vec(0..3_u32, 0..6);
    prop_oneof![
        6 => shape().prop_map(Action::Submit),
        2 => (any::<usize>(), tail, 1..10_usize)
            .prop_map(|(which, tail, max_new)| Action::Continue { which, tail, max_new }),
        6 => (1..8_usize).prop_map(Action::Steps),
        2 => any::<usize>().prop_map(Action::Cancel),
        2 => any::<usize>().prop_map(Action::CancelInStep),
        1 => Just(Action::LoseStep),
        1 => Just(Action::Swap),
        1 => Just(Action::SwapInStep),
    ]
}

fn bounds() -> impl Strategy<Value = SchedulerConfig> {
    (1..6_usize, 12..80_u32, 1..40_usize, 1..8_usize, 0..5_usize, 0..2_usize, 1..60_u64).prop_map(
        |(block_tokens, blocks, chunk_tokens, running_max, drafts_max, policy, memory)| SchedulerConfig {
            block_tokens,
            blocks,
            chunk_tokens,
            running_max,
            queue_max: 12,
            drafts_max,
            policy: POLICIES[policy],
            episode_memory: Duration::from_secs(memory),
            episodes_max: 3,
        },
    )
}

/// Refused or not.
fn submit(world: &mut World, request: SequenceRequest) {
    let queued = world.scheduler.stats().queued;
    let taken = world.submit(request).is_ok();
    assert_eq!(world.scheduler.stats().queued, queued + usize::from(taken));
}

fn steps(world: &mut World, count: usize) {
    for _ in 0..count {
        world.step();
    }
}

fn act(world: &mut World, action: Action) {
    let pick = |world: &World, which: usize| {
        let ids: Vec<_> = world.live.keys().copied().collect();
        (!ids.is_empty()).then(|| ids[which % ids.len()])
    };
    match action {
        Action::Submit(shape) => submit(world, shape.request()),
        Action::Continue { which, tail, max_new } => {
            if world.ended.is_empty() {
                return;
            }
            let ended = &world.ended[which % world.ended.len()];
            let prompt = [&ended.tokens[..], &tail, &[3]].concat();
            let pictures = Arc::clone(&ended.pictures);
            submit(world, SequenceRequest { pictures, ..request(&prompt, max_new) });
        }
        Action::Steps(count) => steps(world, count),
        Action::Cancel(which) => {
            if let Some(id) = pick(world, which) {
                world.end(id);
            }
        }
        Action::CancelInStep(which) => {
            world.step_with(|world| {
                if let Some(id) = pick(world, which) {
                    world.end(id);
                }
            });
        }
        Action::LoseStep => {
            // The model may have written some of it.
            if let Some(batch) = world.plan() {
                world.model.run(&batch);
            }
        }
        Action::Swap => world.swap_weights(),
        Action::SwapInStep => {
            world.step_with(World::swap_weights);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn each_sequence_says_what_it_says_alone_and_no_block_is_lost(
        config in bounds(), right_drafts in 0..9_u64, actions in prop::collection::vec(action(), 1..50),
    ) {
        let mut world = World::new(config);
        world.right_drafts = right_drafts;
        for action in actions {
            act(&mut world, action);
        }
        world.drain();
    }

    #[test]
    fn what_several_prompts_begin_with_is_computed_once(
        block_tokens in 1..6_usize, chunk_tokens in 1..40_usize, policy in 0..2_usize, drafts_max in 0..3_usize,
        shapes in prop::collection::vec((shape(), 0..4_usize), 1..20),
    ) {
        let policy = POLICIES[policy];
        let config = SchedulerConfig {
            block_tokens, blocks: 4000, chunk_tokens, policy, drafts_max, ..SchedulerConfig::default()
        };
        let mut world = World::new(config);
        let mut shared = Vec::new();
        for (shape, count) in shapes {
            let request = shape.request();
            // The ends of whole blocks before the last token. What comes after is each sequence's own.
            let whole = (request.prompt.len() - 1) / block_tokens * block_tokens;
            let values = values(1, &request.prompt, &request.pictures);
            shared.extend(values[..whole].iter().skip(block_tokens - 1).step_by(block_tokens).copied());
            world.submit(request).expect("there is room for all");
            steps(&mut world, count);
        }
        world.drain();
        // What ends a prompt or is generated may be computed again where another prompt goes on with it.
        let own: Vec<u64> = world.ended.iter().flat_map(|record| {
            let whole = (record.prompt_tokens - 1) / block_tokens * block_tokens;
            values(1, &record.tokens, &record.pictures).split_off(whole)
        }).collect();
        for value in shared.iter().filter(|value| !own.contains(value)) {
            prop_assert_eq!(world.model.computed[value], 1);
        }
    }

    #[test]
    fn nobody_starves_while_older_episodes_go_on_asking(
        policy in 0..2_usize, running_max in 1..4_usize, large: bool,
        stream in prop::collection::vec((0..3_u8, 1..20_usize, any::<bool>(), prop::option::of(0..2_u64)), 1..8),
    ) {
        let memory = 40;
        let starves = |memory, patience| {
            let mut world = World::new(SchedulerConfig {
                block_tokens: 4, blocks: 20, chunk_tokens: 4, running_max, queue_max: 10, policy: POLICIES[policy],
                episode_memory: Duration::from_secs(memory), ..SchedulerConfig::default()
            });
            let next = |world: &mut World, i: usize| {
                let (session, length, sub, gang) = stream[i % stream.len()];
                let tail = vec![1 + i as u32 % 3; length];
                let shape = Shape { family: 0, common: 0, tail, max_new: 8, session, sub, gang };
                submit(world, shape.request());
            };
            // The stream's episodes are there first.
            (0..8).for_each(|i| next(&mut world, i));
            let prompt = vec![9; if large { 70 } else { 3 }];
            let session = SessionKey("victim".into());
            let victim = world.submit(SequenceRequest { session, ..request(&prompt, 8) }).expect("there is room");
            for i in 0..patience {
                next(&mut world, i);
                next(&mut world, i + 1);
                world.step();
                if !world.live.contains_key(&victim) {
                    return false;
                }
            }
            true
        };
        // What is before it when its seniors' names are forgotten, each with all of its steps, and itself.
        let steps_each = 6 + 8;
        let bound = memory as usize + (10 + 4) * steps_each + 20 + 8;
        prop_assert!(!starves(memory, bound));
        if POLICIES[policy] == Policy::Episodes && running_max == 1 && stream.iter().all(|(_, length, ..)| *length > 8) {
            prop_assert!(starves(1_000_000, 4 * bound), "the stream is hostile");
        }
    }
}
