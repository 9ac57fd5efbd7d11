//! The scheduler with a model that keeps its keys and values as data in the blocks.

mod fake;
mod properties;
mod world;

use std::sync::Arc;

use self::world::{World, config, request};
use super::*;
use crate::engine::{SessionKey, Speaker};

fn numbers(from: u32, count: usize) -> Vec<u32> {
    (from..).take(count).collect()
}

fn picture(first: usize, tokens: usize, hash: u8) -> PictureSpan {
    PictureSpan { first, tokens, hash: [hash; 32] }
}

/// A request of an episode's sub-agent.
fn window(prompt: &[u32], session: &str, gang: u64) -> SequenceRequest {
    let session = SessionKey(session.into());
    SequenceRequest { session, speaker: Speaker::Sub, gang: Some(gang), ..request(prompt, 4) }
}

fn named(prompt: &[u32], session: &str) -> SequenceRequest {
    SequenceRequest { session: SessionKey(session.into()), ..request(prompt, 4) }
}

/// Prompt tokens in each row of the next step, by sequence.
fn read(world: &mut World) -> Vec<(SequenceId, usize)> {
    let mut rows = Vec::new();
    let batch = world.plan().expect("there is work");
    for row in &batch.rows {
        rows.push((row.id, row.tokens.len()));
    }
    world.model.run(&batch);
    world.scheduler.commit(&batch);
    rows
}

#[test]
fn a_prefix_of_32_requests_that_come_together_is_computed_once() {
    let mut world = World::new(config(16, 1000, 4096));
    let system = numbers(1000, 200);
    for i in 0..32 {
        let prompt = [system.clone(), numbers(5000 + 100 * i, 20 + i as usize)].concat();
        world.submit(request(&prompt, 1)).expect("there is room");
    }
    world.drain();
    // 12 whole blocks are shared; each reads the rest of its own.
    let own: u64 = (0..32).map(|i| 8 + 20 + i).sum();
    assert_eq!(world.scheduler.stats().computed_tokens, 192 + own);
    assert_eq!(world.scheduler.stats().hit_tokens, 31 * 192);
}

#[test]
fn the_last_token_is_computed_even_where_the_whole_prompt_is_cached() {
    let mut world = World::new(config(4, 100, 64));
    for _ in 0..2 {
        world.submit(request(&numbers(1000, 16), 1)).expect("there is room");
        world.drain();
    }
    assert_eq!(world.scheduler.stats().computed_tokens, 16 + 4);
}

#[test]
fn who_waits_for_a_prefix_goes_on_when_its_owner_is_cancelled_in_the_step() {
    let mut world = World::new(config(4, 100, 8));
    let prompt = numbers(1000, 30);
    let owner = world.submit(request(&prompt, 4)).expect("there is room");
    let waiting = world.submit(request(&prompt, 4)).expect("there is room");
    let batch = world.plan().expect("there is work");
    assert_eq!(batch.rows.iter().map(|row| row.id).collect::<Vec<_>>(), [owner]);
    world.model.run(&batch);
    world.end(owner);
    world.scheduler.commit(&batch);
    assert_eq!(read(&mut world), [(waiting, 8)]);
    world.drain();
}

#[test]
fn a_step_that_was_not_committed_never_happened() {
    let mut world = World::new(config(4, 100, 8));
    let prompt = numbers(1000, 30);
    let id = world.submit(request(&prompt, 4)).expect("there is room");
    let lost = world.plan().expect("there is work");
    let next = world.plan().expect("there is work");
    world.scheduler.commit(&lost);
    assert_eq!(world.scheduler.sequence(id).map(|sequence| sequence.computed), Some(0));
    world.model.run(&next);
    world.scheduler.commit(&next);
    world.scheduler.commit(&lost);
    assert_eq!(world.scheduler.sequence(id).map(|sequence| sequence.computed), Some(8));
    world.drain();
}

#[test]
fn a_continued_turn_reads_only_what_is_new() {
    let mut world = World::new(config(16, 100, 64));
    world.submit(request(&numbers(1000, 39), 6)).expect("there is room");
    world.drain();
    let first = world.ended.remove(0);
    let computed = world.scheduler.stats().computed_tokens;
    assert_eq!(computed, first.tokens.len() as u64 - 1);
    let next = world.submit(request(&[first.tokens, numbers(2000, 10)].concat(), 1)).expect("there is room");
    assert_eq!(read(&mut world), [(next, 11)]);
    assert_eq!(world.scheduler.sequence(next).map(Sequence::cached_tokens), Some(computed as usize));
    world.end(next);
    world.drain();
}

#[test]
fn windows_make_room_before_the_turn_that_called_them() {
    let mut world = World::new(config(4, 14, 64));
    world.submit(named(&numbers(1000, 19), "a")).expect("there is room");
    world.drain();
    let first = world.ended.remove(0);
    for number in 0..3 {
        world.submit(window(&numbers(2000 + 100 * number, 20), "a", 1)).expect("there is room");
        world.drain();
    }
    // Six blocks each do not fit, and the first turn's were released first.
    let next = named(&[first.tokens, numbers(3000, 5)].concat(), "a");
    let next = world.submit(next).expect("there is room");
    assert_eq!(read(&mut world), [(next, 6)]);
    world.end(next);
    world.drain();
}

#[test]
fn pictures_are_told_apart_by_what_they_show() {
    let mut world = World::new(config(4, 100, 64));
    let prompt = [vec![1000; 2], vec![9; 10], vec![1001; 6]].concat();
    for (hash, computed) in [(1, 18), (2, 14), (1, 1)] {
        let before = world.scheduler.stats().computed_tokens;
        let pictures = Arc::new([picture(2, 5, 1), picture(7, 5, hash)]);
        world.submit(SequenceRequest { pictures, ..request(&prompt, 1) }).expect("there is room");
        world.drain();
        // The first block is common to all.
        assert_eq!(world.scheduler.stats().computed_tokens - before, computed);
    }
}

#[test]
fn rows_name_the_rows_of_pictures_they_need() {
    let mut world = World::new(config(4, 100, 8));
    let pictures = Arc::new([picture(1, 3, 1), picture(6, 5, 2), picture(13, 1, 3)]);
    let prompt = numbers(1000, 20);
    world.submit(SequenceRequest { pictures, ..request(&prompt, 1) }).expect("there is room");
    let mut seen = Vec::new();
    while let Some(batch) = world.plan().filter(|batch| batch.rows[0].outputs == 0) {
        seen.push(batch.pictures.iter().map(|p| (p.picture, p.offset, p.tokens.clone())).collect::<Vec<_>>());
        world.model.run(&batch);
        world.scheduler.commit(&batch);
    }
    assert_eq!(seen, [vec![(0, 0, 1..4), (1, 0, 6..8)], vec![(1, 2, 0..3), (2, 0, 5..6)]]);
}

#[test]
fn what_could_never_fit_and_what_is_malformed_is_refused() {
    let mut world = World::new(SchedulerConfig { queue_max: 1, ..config(4, 10, 8) });
    let prompt = numbers(1000, 30);
    let too_long = SubmitError::TooLong { needed_tokens: 41, capacity_tokens: 40 };
    assert_eq!(world.submit(request(&prompt, 11)), Err(too_long));
    assert_eq!(world.submit(request(&[], 1)), Err(SubmitError::EmptyPrompt));
    for spans in [vec![picture(0, 0, 1)], vec![picture(28, 3, 1)], vec![picture(usize::MAX, 2, 1)]] {
        let bad = SequenceRequest { pictures: spans.into(), ..request(&prompt, 1) };
        assert_eq!(world.submit(bad), Err(SubmitError::BadPicture { picture: 0 }));
    }
    let pictures = Arc::new([picture(4, 3, 1), picture(6, 3, 1)]);
    let overlapping = SequenceRequest { pictures, ..request(&prompt, 1) };
    assert_eq!(world.submit(overlapping), Err(SubmitError::BadPicture { picture: 1 }));
    assert!(world.submit(request(&prompt, 10)).is_ok());
    assert_eq!(world.submit(request(&prompt, 10)), Err(SubmitError::Overloaded { queued: 1 }));
    world.drain();
}

#[test]
fn strict_order_holds_small_requests_behind_a_large_one() {
    let mut world = World::new(config(4, 10, 40));
    world.stops = false;
    world.submit(request(&numbers(1000, 16), 4)).expect("there is room");
    let large = world.submit(request(&numbers(2000, 30), 10)).expect("there is room");
    let small = world.submit(request(&numbers(3000, 2), 2)).expect("there is room");
    world.step();
    assert!(world.scheduler.stats().running == 1 && world.scheduler.stats().queued == 2);
    while world.scheduler.sequence(large).is_some_and(|sequence| !sequence.is_running()) {
        assert!(!world.scheduler.sequence(small).expect("it waits").is_running());
        world.step();
    }
    world.drain();
}

#[test]
fn windows_and_continued_turns_are_read_before_new_episodes() {
    let mut world = World::new(config(4, 1000, 8));
    let first = world.submit(named(&numbers(1000, 8), "old")).expect("there is room");
    assert_eq!(read(&mut world), [(first, 8)]);
    let new = world.submit(named(&numbers(2000, 24), "new")).expect("there is room");
    assert_eq!(read(&mut world), [(new, 8)]);
    let sub = world.submit(window(&numbers(3000, 8), "old", 1)).expect("there is room");
    let main = world.submit(named(&numbers(4000, 8), "old")).expect("there is room");
    assert_eq!(read(&mut world), [(main, 8)]);
    assert_eq!(read(&mut world), [(sub, 8)]);
    assert_eq!(read(&mut world), [(new, 8)]);
}

#[test]
fn a_gang_is_admitted_and_read_together_before_younger_work() {
    let mut world = World::new(config(4, 1000, 16));
    let old = world.submit(named(&numbers(1000, 4), "old")).expect("there is room");
    assert_eq!(read(&mut world), [(old, 4)]);
    let mut submit =
        |start, session, gang| world.submit(window(&numbers(start, 6), session, gang)).expect("there is room");
    let (a, b, c) = (submit(2000, "old", 1), submit(3000, "old", 2), submit(4000, "young", 3));
    let (d, e) = (submit(5000, "old", 1), submit(6000, "old", 1));
    assert_eq!(read(&mut world), [(a, 6), (d, 6), (e, 4)]);
    assert_eq!(read(&mut world), [(e, 2), (b, 6), (c, 6)]);
}

#[test]
fn tokens_that_are_certain_are_taken_without_having_been_drafts() {
    let mut world = World::new(config(4, 100, 8));
    let id = world.submit(request(&numbers(1000, 5), 9)).expect("there is room");
    assert_eq!(read(&mut world), [(id, 5)]);
    assert!(world.scheduler.advance(id, &[1, 2, 3]));
    world.live.get_mut(&id).expect("it runs").tokens.extend([1, 2, 3]);
    assert_eq!(read(&mut world), [(id, 3)]);
    assert!(world.scheduler.advance(id, &[1; 20]));
    assert_eq!(world.scheduler.sequence(id).map(|sequence| sequence.generated().len()), Some(9));
    assert!(world.plan().is_none());
    world.end(id);
    world.drain();
}

#[test]
fn after_a_weight_swap_running_sequences_keep_their_tokens_and_are_read_again() {
    let mut world = World::new(config(4, 100, 8));
    world.stops = false;
    let prompt = numbers(1000, 30);
    let id = world.submit(request(&prompt, 40)).expect("there is room");
    for _ in 0..6 {
        world.step();
    }
    let tokens = world.scheduler.sequence(id).expect("it runs").tokens().to_vec();
    assert!(tokens.len() > 31);
    world.step_with(World::swap_weights);
    let stats = world.scheduler.stats();
    assert_eq!((stats.running, stats.queued, stats.blocks_free), (0, 1, 100));
    assert!(world.scheduler.sequence(id).expect("it runs").tokens().starts_with(&tokens));
    world.drain();
}

#[test]
fn what_ran_before_a_weight_swap_takes_no_place_in_the_queue() {
    let mut world = World::new(SchedulerConfig { queue_max: 1, running_max: 2, ..config(4, 100, 8) });
    world.stops = false;
    for start in [1000, 2000] {
        world.submit(request(&numbers(start, 9), 40)).expect("there is room");
        world.step();
    }
    world.swap_weights();
    assert_eq!(world.scheduler.stats().queued, 2);
    let prompt = numbers(3000, 9);
    let waiting = world.submit(request(&prompt, 4)).expect("the queue's one place is free");
    assert_eq!(world.submit(request(&prompt, 4)), Err(SubmitError::Overloaded { queued: 1 }));
    world.step();
    assert_eq!((world.scheduler.stats().running, world.scheduler.stats().queued), (2, 1));
    assert_eq!(world.submit(request(&prompt, 4)), Err(SubmitError::Overloaded { queued: 1 }));
    world.end(waiting);
    world.drain();
}

#[test]
fn after_a_weight_swap_no_more_than_the_prompt_counts_as_cached() {
    let mut world = World::new(config(4, 100, 64));
    world.stops = false;
    // The same prompt, so the same text.
    let ids = [0; 2].map(|_| world.submit(request(&numbers(1000, 10), 40)).expect("there is room"));
    for _ in 0..20 {
        world.step();
    }
    world.swap_weights();
    for _ in 0..3 {
        world.step();
    }
    let sequence = world.scheduler.sequence(ids[1]).expect("it runs");
    assert!(sequence.hits > 10, "it takes what the other one computes: {}", sequence.hits);
    assert_eq!(sequence.cached_tokens(), 10);
    world.drain();
}

#[test]
fn shared_blocks_are_reserved_once() {
    let mut world = World::new(config(4, 20, 64));
    let system = numbers(1000, 40);
    let first = world.submit(request(&[system.clone(), vec![1; 4]].concat(), 20)).expect("there is room");
    assert_eq!(read(&mut world), [(first, 44)]);
    let second = world.submit(request(&[system, vec![2; 4]].concat(), 1)).expect("there is room");
    assert_eq!(read(&mut world), [(second, 4)]);
    assert_eq!(world.scheduler.stats().blocks_used + world.scheduler.stats().blocks_promised, 18);
}

#[test]
fn of_an_ended_sequence_the_tail_is_forgotten_first() {
    let mut world = World::new(config(4, 10, 64));
    let prompt = numbers(1000, 33);
    world.submit(request(&prompt, 1)).expect("there is room");
    world.drain();
    // Four of its blocks have to go.
    world.submit(request(&numbers(2000, 20), 1)).expect("there is room");
    world.drain();
    let again = world.submit(request(&prompt, 1)).expect("there is room");
    world.plan();
    assert_eq!(world.scheduler.sequence(again).map(Sequence::cached_tokens), Some(5 * 4));
}
