//! What is chosen, by which rule, and that nothing else has a say.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn sampler(sampling: &Sampling) -> Sampler {
    Sampler::new(sampling, &[]).expect("valid")
}

fn choose(sampling: &Sampling, row: &[f32]) -> u32 {
    sampler(sampling).choose(row, None, &mut Scratch::default()).expect("chooses").id
}

fn greedy() -> Sampling {
    Sampling { temperature: Some(0.0), ..Sampling::default() }
}

/// Shares of each token over many places of an output. Nothing is accepted in between but the place.
fn shares(sampling: &Sampling, row: &[f32], draws: u32) -> BTreeMap<u32, f64> {
    let (mut sampler, mut scratch) = (sampler(sampling), Scratch::default());
    let mut counts = BTreeMap::new();
    for _ in 0..draws {
        let id = sampler.choose(row, None, &mut scratch).expect("chooses").id;
        *counts.entry(id).or_insert(0.0) += 1.0 / f64::from(draws);
        sampler.position += 1;
    }
    counts
}

#[test]
fn at_temperature_zero_the_highest_wins_and_the_lowest_number_among_equals() {
    assert_eq!(choose(&greedy(), &[0.0, 3.0, 1.0, 3.0]), 1);
    assert_eq!(choose(&Sampling { temperature: Some(1e-9), ..greedy() }, &[-5.0, -4.0]), 1);
}

#[test]
fn tokens_come_as_often_as_their_probability_says() {
    let row: Vec<f32> = [0.4f32, 0.3, 0.2, 0.1].map(f32::ln).to_vec();
    let sampling = |temperature, top_k, top_p, min_p| Sampling {
        temperature: Some(temperature),
        top_k,
        top_p,
        min_p,
        seed: Some(11),
        ..Sampling::default()
    };
    let squares = [0.16 / 0.3, 0.09 / 0.3, 0.04 / 0.3, 0.01 / 0.3];
    for (sampling, expected) in [
        (sampling(1.0, None, None, None), vec![0.4, 0.3, 0.2, 0.1]),
        (sampling(0.5, None, None, None), squares.to_vec()),
        (sampling(1.0, Some(2), None, None), vec![4.0 / 7.0, 3.0 / 7.0]),
        (sampling(1.0, None, Some(0.85), None), vec![4.0 / 9.0, 3.0 / 9.0, 2.0 / 9.0]),
        (sampling(1.0, None, None, Some(0.6)), vec![4.0 / 7.0, 3.0 / 7.0]),
    ] {
        let shares = shares(&sampling, &row, 20_000);
        assert_eq!(shares.len(), expected.len(), "{sampling:?}");
        for (id, probability) in (0..).zip(expected) {
            let share = shares[&id];
            // Four standard deviations of a share are below 0.0142.
            assert!((share - probability).abs() < 0.0142, "{sampling:?}: {id} has {share}, not {probability}");
        }
    }
}

#[test]
fn penalties_are_those_of_openai_and_of_ctrl() {
    let row = [1.0f32, 2.0, -1.0, 0.5];
    let logits = |sampling: &Sampling, prompt: &[u32], output: &[u32]| {
        let mut penalties = Penalties::new(sampling, prompt).expect("valid");
        output.iter().for_each(|id| penalties.count(*id));
        let mut logits = row;
        penalties.apply(&mut logits);
        logits
    };
    let repetition = Sampling { repetition_penalty: Some(2.0), ..Sampling::default() };
    assert_eq!(logits(&repetition, &[0, 0, 2, 77], &[1, 1]), [0.5, 1.0, -2.0, 0.5]);
    let frequency = Sampling { frequency_penalty: Some(0.5), ..Sampling::default() };
    assert_eq!(logits(&frequency, &[0, 2], &[1, 1, 3]), [1.0, 1.0, -1.0, 0.0]);
    let presence = Sampling { presence_penalty: Some(0.5), ..Sampling::default() };
    assert_eq!(logits(&presence, &[0, 2], &[1, 1, 3, 99]), [1.0, 1.5, -1.0, 0.0]);
    let all = Sampling { repetition_penalty: Some(2.0), frequency_penalty: Some(0.25), ..presence };
    assert_eq!(logits(&all, &[], &[1, 1]), [1.0, 0.0, -1.0, 0.5]);
}

#[test]
fn a_token_that_is_not_allowed_is_never_chosen() {
    let row = [5.0f32, 1.0, 4.0, 0.0];
    let mut scratch = Scratch::default();
    let mut greedy = sampler(&greedy());
    assert_eq!(greedy.choose(&row, Some(&[0b1010]), &mut scratch).expect("chooses").id, 1);
    let none = greedy.choose(&row, Some(&[0]), &mut scratch);
    assert!(matches!(none, Err(EngineError::Failed(_))), "{none:?}");
    // A mask that is too short forbids the rest.
    assert!(greedy.choose(&row, Some(&[]), &mut scratch).is_err());
    let mut warm = sampler(&Sampling { seed: Some(1), ..Sampling::default() });
    for _ in 0..200 {
        let id = warm.choose(&row, Some(&[0b1010]), &mut scratch).expect("chooses").id;
        assert!(id == 1 || id == 3);
        warm.accept(id);
    }
}

#[test]
fn logits_that_are_no_numbers_are_an_error() {
    for bad in [f32::NAN, f32::INFINITY] {
        for sampling in [greedy(), Sampling { logprobs: Some(2), ..Sampling::default() }] {
            let choice = sampler(&sampling).choose(&[0.0, bad, 1.0], None, &mut Scratch::default());
            assert!(matches!(choice, Err(EngineError::Failed(_))), "{choice:?}");
        }
    }
    for row in [&[][..], &[f32::NEG_INFINITY; 3]] {
        assert!(sampler(&greedy()).choose(row, None, &mut Scratch::default()).is_err());
    }
}

#[test]
fn values_out_of_range_are_refused() {
    for sampling in [
        Sampling { temperature: Some(-0.1), ..Sampling::default() },
        Sampling { temperature: Some(f64::NAN), ..Sampling::default() },
        Sampling { top_p: Some(0.0), ..Sampling::default() },
        Sampling { min_p: Some(1.5), ..Sampling::default() },
        Sampling { repetition_penalty: Some(0.0), ..Sampling::default() },
        Sampling { repetition_penalty: Some(1e-50), ..Sampling::default() },
        Sampling { presence_penalty: Some(f64::INFINITY), ..Sampling::default() },
    ] {
        assert!(matches!(Sampler::new(&sampling, &[]), Err(EngineError::Invalid(_))), "{sampling:?}");
    }
}

#[test]
fn log_probabilities_are_of_the_models_own_distribution() {
    let row = [0.1f32, 0.2, 0.3, 0.4].map(f32::ln);
    let sampling =
        Sampling { temperature: Some(0.0), presence_penalty: Some(2.0), logprobs: Some(2), ..Sampling::default() };
    let mut sampler = sampler(&sampling);
    sampler.accept(3);
    let choice = sampler.choose(&row, Some(&[0b1011]), &mut Scratch::default()).expect("chooses");
    assert_eq!(choice.id, 1);
    let logprobs = choice.logprobs.expect("asked for");
    let close = |one: f64, probability: f64| (one - probability.ln()).abs() < 1e-6;
    assert!(close(logprobs.logprob, 0.2), "{logprobs:?}");
    assert!(
        matches!(logprobs.top[..], [(3, first), (2, second)] if close(first, 0.4) && close(second, 0.3)),
        "{logprobs:?}"
    );
    assert_eq!(TokenLogprobs::new(&row, 0, 0).top, []);
    assert_eq!(TokenLogprobs::new(&[1.0, 1.0], 0, 9).top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn choosing_twice_is_choosing_once() {
    let mut sampler = sampler(&Sampling { seed: Some(3), ..Sampling::default() });
    let (row, mut scratch) = ([0.0f32; 64], Scratch::default());
    let first = sampler.choose(&row, None, &mut scratch).expect("chooses");
    assert_eq!(sampler.choose(&row, None, &mut scratch).expect("chooses"), first);
}

proptest! {
    #[test]
    fn the_same_seed_gives_the_same_tokens_whatever_ran_in_between(
        rows in prop::collection::vec(prop::collection::vec(-4.0f32..4.0, 40), 1..12),
        others in prop::collection::vec(prop::collection::vec(-4.0f32..4.0, 1..80), 1..12),
        seed: u64, top_k in prop::option::of(1..50u32), top_p in prop::option::of(0.1f64..1.0),
        penalty in prop::option::of(-2.0f64..2.0),
    ) {
        let sampling = Sampling { seed: Some(seed), top_k, top_p, frequency_penalty: penalty, ..Sampling::default() };
        let run = |shared: bool| {
            let (mut ours, mut theirs) = (sampler(&sampling), sampler(&Sampling::default()));
            let (mut scratch, mut own) = (Scratch::default(), Scratch::default());
            let mut ids = Vec::new();
            for (row, other) in rows.iter().zip(others.iter().cycle()) {
                let used = if shared { &mut scratch } else { &mut own };
                let id = ours.choose(row, None, used).expect("chooses").id;
                ours.accept(id);
                ids.push(id);
                if shared {
                    let id = theirs.choose(other, None, used).expect("chooses").id;
                    theirs.accept(id);
                }
            }
            ids
        };
        prop_assert_eq!(run(true), run(false));
    }

    #[test]
    fn any_logits_give_a_token_or_an_error(
        row in prop::collection::vec(prop::num::f32::ANY, 0..60), temperature in 0.0f64..2.0,
        top_p in 0.01f64..1.0, repetition in 0.01f64..100.0, mask in prop::option::of(prop::collection::vec(any::<u32>(), 0..3)),
    ) {
        let sampling = Sampling {
            temperature: Some(temperature), top_p: Some(top_p), repetition_penalty: Some(repetition), logprobs: Some(3),
            ..Sampling::default()
        };
        let mut sampler = Sampler::new(&sampling, &[0, 1, 2, 3]).expect("valid");
        sampler.accept(1);
        if let Ok(choice) = sampler.choose(&row, mask.as_deref(), &mut Scratch::default()) {
            prop_assert!((choice.id as usize) < row.len());
            prop_assert!(row[choice.id as usize] > f32::NEG_INFINITY);
        }
    }
}
