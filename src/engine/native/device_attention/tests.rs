//! Both forms of attention against the kernel for the CPU.

use std::cell::Cell;

use proptest::prelude::*;

use super::super::attention::CpuCache;
use super::packed::Group;
use super::*;

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Tokens of one sequence: queries, keys, values.
struct Sequence {
    tokens: usize,
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    blocks: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Heads {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

/// How the blocks of a sequence lie in the pool.
#[derive(Debug, Clone, Copy)]
enum Blocks {
    /// Every second one is another's, last first.
    Apart,
    /// One behind the other.
    Neighbours,
}

fn sequences(lengths: &[usize], heads: Heads, blocks: Blocks, seed: u64) -> Vec<Sequence> {
    let mut next = 0;
    let mut one = |(number, tokens): (usize, &usize)| {
        let seed = seed ^ (number as u64) << 32;
        let (wide, narrow) = (heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim);
        let count = tokens.div_ceil(BLOCK) as u32;
        let (blocks, taken): (Vec<u32>, u32) = match blocks {
            Blocks::Apart => ((0..count).rev().map(|number| next + 2 * number).collect(), 2 * count),
            Blocks::Neighbours => ((next..next + count).collect(), count),
        };
        next += taken;
        Sequence {
            tokens: *tokens,
            query: numbers(tokens * wide, seed),
            key: numbers(tokens * narrow, seed ^ 1),
            value: numbers(tokens * narrow, seed ^ 2),
            blocks,
        }
    };
    lengths.iter().enumerate().map(&mut one).collect()
}

fn tensor(numbers: Vec<f32>, heads: usize, head_dim: usize) -> Tensor {
    let tokens = numbers.len() / heads / head_dim;
    Tensor::from_vec(numbers, (tokens, heads, head_dim), &Device::Cpu).expect("fits")
}

/// Runs the sequences through a cache, `chunk` tokens of each at a time, all in one batch; gives each one's outputs.
fn run(
    sequences: &[Sequence],
    heads: Heads,
    chunk: usize,
    mut attend: impl FnMut(&[Segment<'_>], &Tensor, &Tensor, &Tensor) -> Tensor,
) -> Vec<Vec<f32>> {
    let (wide, narrow) = (heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim);
    let mut outputs = vec![Vec::new(); sequences.len()];
    let most = sequences.iter().map(|sequence| sequence.tokens).max().expect("some");
    for past in (0..most).step_by(chunk) {
        let (mut segments, mut members) = (Vec::new(), Vec::new());
        let (mut query, mut key, mut value, mut row) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (number, sequence) in sequences.iter().enumerate() {
            let count = chunk.min(sequence.tokens.saturating_sub(past));
            if count == 0 {
                continue;
            }
            let to = past + count;
            query.extend_from_slice(&sequence.query[past * wide..to * wide]);
            key.extend_from_slice(&sequence.key[past * narrow..to * narrow]);
            value.extend_from_slice(&sequence.value[past * narrow..to * narrow]);
            segments.push(Segment { rows: row..row + count, past, blocks: &sequence.blocks[..to.div_ceil(BLOCK)] });
            members.push(number);
            row += count;
        }
        let query = tensor(query, heads.heads, heads.head_dim);
        let (key, value) = (tensor(key, heads.kv_heads, heads.head_dim), tensor(value, heads.kv_heads, heads.head_dim));
        let output = attend(&segments, &query, &key, &value).to_vec2::<f32>().expect("two dimensions");
        for (segment, number) in segments.iter().zip(members) {
            outputs[number].extend(output[segment.rows.clone()].concat());
        }
    }
    outputs
}

fn on_cpu(sequences: &[Sequence], heads: Heads, chunk: usize) -> Vec<Vec<f32>> {
    let mut cache = CpuCache::new(2, 64, heads.kv_heads, heads.head_dim);
    run(sequences, heads, chunk, |segments, query, key, value| {
        cache.pass(segments).attend(1, query, key, value).expect("attends")
    })
}

/// Attention of sequences that stand one behind the other, number by number: what a kernel for ragged batches computes.
fn ragged(query: &Tensor, keys: &Tensor, values: &Tensor, group: &Group) -> Result<Tensor> {
    let ends = |ends: &Tensor| ends.to_vec1::<u32>();
    let (rows, tokens) = (ends(&group.row_ends)?, ends(&group.token_ends)?);
    assert_eq!(rows.windows(2).map(|ends| (ends[1] - ends[0]) as usize).max(), Some(group.most_rows));
    assert_eq!(tokens.windows(2).map(|ends| (ends[1] - ends[0]) as usize).max(), Some(group.most_tokens));
    assert_eq!(keys.dim(0)?, tokens[tokens.len() - 1] as usize);
    let (_, heads, head_dim) = query.dims3()?;
    let (query, keys, values) = (query.to_vec3::<f32>()?, keys.to_vec3::<f32>()?, values.to_vec3::<f32>()?);
    let mut output = Vec::new();
    for (rows, tokens) in rows.windows(2).zip(tokens.windows(2)) {
        for row in rows[0]..rows[1] {
            let seen = tokens[0] as usize..(tokens[1] - (rows[1] - 1 - row)) as usize;
            for head in 0..heads {
                let kv_head = head / (heads / keys[0].len());
                let query = &query[row as usize][head];
                let score = |at: usize| {
                    let product: f32 = query.iter().zip(&keys[at][kv_head]).map(|(a, b)| a * b).sum();
                    (product / (head_dim as f32).sqrt()).exp()
                };
                let scores: Vec<f32> = seen.clone().map(score).collect();
                let all: f32 = scores.iter().sum();
                let value = |column: usize| {
                    scores.iter().zip(seen.clone()).map(|(score, at)| score * values[at][kv_head][column]).sum::<f32>()
                };
                output.extend((0..head_dim).map(|column| value(column) / all));
            }
        }
    }
    Tensor::from_vec(output, (query.len(), heads, head_dim), &Device::Cpu)
}

fn device_cache(heads: Heads) -> DeviceCache {
    DeviceCache::new(2, 64, (heads.kv_heads, heads.head_dim), DType::F32, &Device::Cpu).expect("fits")
}

fn assert_near(given: &[Vec<f32>], expected: &[Vec<f32>]) {
    assert_eq!(given.len(), expected.len());
    for (given, expected) in given.iter().zip(expected) {
        assert_eq!(given.len(), expected.len());
        for (given, expected) in given.iter().zip(expected) {
            assert!((given - expected).abs() < 1e-5, "{given} {expected}");
        }
    }
}

fn shapes() -> impl Strategy<Value = Heads> {
    prop::sample::select(vec![(4, 2, 32), (4, 1, 24), (2, 2, 128), (6, 2, 5)])
        .prop_map(|(heads, kv_heads, head_dim)| Heads { heads, kv_heads, head_dim })
}

fn lengths() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..70usize, 1..5)
}

fn layouts() -> impl Strategy<Value = Blocks> {
    prop::sample::select(vec![Blocks::Apart, Blocks::Neighbours])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn both_caches_agree_however_prompts_are_cut(
        lengths in lengths(), chunk in 1..80usize, device_chunk in 1..80usize, heads in shapes(), blocks in layouts(),
        scores_bytes in prop::sample::select(vec![0, 3000, 20_000, SCORES_BYTES]), seed: u64,
    ) {
        let sequences = sequences(&lengths, heads, blocks, seed);
        let given = on_cpu(&sequences, heads, chunk);
        let mut cache = DeviceCache { scores_bytes, ..device_cache(heads) };
        let expected = run(&sequences, heads, device_chunk, |segments, query, key, value| {
            cache.pass(segments).expect("fits").attend(1, query, key, value).expect("attends")
        });
        assert_near(&given, &expected);
        // To the last bit: alone and in one piece.
        for (number, given) in given.iter().enumerate() {
            prop_assert_eq!(given, &on_cpu(&sequences[number..=number], heads, 1000)[0]);
        }
    }

    #[test]
    fn packed_batches_agree_however_they_are_grouped(
        lengths in lengths(), chunk in 1..80usize, heads in shapes(), blocks in layouts(),
        tokens_max in prop::sample::select(vec![0, 60, 1000]), seed: u64,
    ) {
        let sequences = sequences(&lengths, heads, blocks, seed);
        let cache = device_cache(heads);
        let calls = Cell::new(0);
        let given = run(&sequences, heads, chunk, |segments, query, key, value| {
            let width = heads.kv_heads * heads.head_dim;
            let places = Places::new(segments, cache.slots, width, &Device::Cpu).expect("fits");
            places.write(&cache.layers[1].0, key).expect("writes");
            places.write(&cache.layers[1].1, value).expect("writes");
            let groups = packed::groups(&places, tokens_max, &Device::Cpu).expect("groups");
            let kernel = |query: &Tensor, keys: &Tensor, values: &Tensor, group: &Group| {
                calls.set(calls.get() + 1);
                let sequences = group.token_ends.dim(0)? - 1;
                assert!(sequences == 1 || keys.dim(0)? <= tokens_max, "a group over the bound");
                ragged(query, keys, values, group)
            };
            calls.set(0);
            let output = packed::attend(query, &cache.layers[1], &places, &groups, heads.kv_heads, kernel);
            match tokens_max {
                0 => assert_eq!(calls.get(), segments.len()),
                1000 => assert_eq!(calls.get(), 1),
                _ => {}
            }
            output.expect("attends")
        });
        assert_near(&given, &on_cpu(&sequences, heads, chunk));
    }
}

#[test]
fn a_long_piece_behind_a_long_past_is_computed_in_several_blocks_of_rows() {
    let heads = Heads { heads: 4, kv_heads: 2, head_dim: 8 };
    let sequences = sequences(&[900, 1], heads, Blocks::Neighbours, 7);
    let mut cache = device_cache(heads);
    let given = run(&sequences, heads, 600, |segments, query, key, value| {
        cache.pass(segments).expect("fits").attend(1, query, key, value).expect("attends")
    });
    assert_near(&given, &on_cpu(&sequences, heads, 600));
}

#[test]
fn a_layer_is_written_and_read_alone() {
    let heads = Heads { heads: 2, kv_heads: 1, head_dim: 4 };
    let mut cache = device_cache(heads);
    let ones = tensor(vec![1.0; 3 * 4], 1, 4);
    let segments = [Segment { rows: 0..3, past: 0, blocks: &[5] }];
    let query = tensor(vec![1.0; 3 * 8], 2, 4);
    cache.pass(&segments).expect("fits").attend(0, &query, &ones, &ones).expect("attends");
    let sum = |pool: &Tensor| pool.sum_all().and_then(|sum| sum.to_scalar::<f32>()).expect("a number");
    let written = cache.layers.iter().map(|(keys, values)| (sum(keys), sum(values)));
    assert_eq!(written.collect::<Vec<_>>(), [(12.0, 12.0), (0.0, 0.0)]);
}

#[test]
fn a_segment_without_rows_changes_nothing_and_a_batch_without_rows_is_an_error() {
    let heads = Heads { heads: 4, kv_heads: 2, head_dim: 32 };
    let (query, key) = (tensor(numbers(2 * 128, 1), 4, 32), tensor(numbers(2 * 64, 2), 2, 32));
    let output = |segments: &[Segment<'_>]| {
        let mut cache = device_cache(heads);
        let output = cache.pass(segments)?.attend(0, &query, &key, &key)?;
        output.to_vec2::<f32>()
    };
    let (first, second) =
        (Segment { rows: 0..1, past: 0, blocks: &[3] }, Segment { rows: 1..2, past: 0, blocks: &[1] });
    let empty = Segment { rows: 1..1, past: 5, blocks: &[2] };
    let expected = output(&[first.clone(), second.clone()]).expect("attends");
    assert_eq!(output(&[first, empty.clone(), second]).expect("attends"), expected);
    assert!(device_cache(heads).pass(&[]).is_err());
    assert!(device_cache(heads).pass(&[Segment { rows: 0..0, ..empty }]).is_err());
}

#[test]
fn segments_that_are_not_the_batch_are_an_error() {
    let heads = Heads { heads: 4, kv_heads: 2, head_dim: 32 };
    let (query, key) = (tensor(vec![0.0; 2 * 128], 4, 32), tensor(vec![0.0; 2 * 64], 2, 32));
    let attend = |segments: &[Segment<'_>]| device_cache(heads).pass(segments)?.attend(0, &query, &key, &key);
    let segment = |rows| Segment { rows, past: 0, blocks: &[0] };
    assert!(attend(&[segment(0..2)]).is_ok());
    assert!(attend(&[segment(0..1)]).is_err());
    assert!(attend(&[segment(1..2)]).is_err());
    assert!(attend(&[segment(1..2), segment(0..1)]).is_err());
    assert!(attend(&[segment(0..1), segment(0..1), segment(1..2)]).is_err());
}

#[test]
fn blocks_that_do_not_hold_the_tokens_are_an_error() {
    let (query, key) = (tensor(vec![0.0; 128], 4, 32), tensor(vec![0.0; 64], 2, 32));
    let device = |layers, head_dim| DeviceCache::new(layers, 4, (2, head_dim), DType::F32, &Device::Cpu).expect("fits");
    for blocks in [&[][..], &[99], &[4]] {
        let segments = [Segment { rows: 0..1, past: 0, blocks }];
        let mut cache = CpuCache::new(1, 4, 2, 32);
        assert!(cache.pass(&segments).attend(0, &query, &key, &key).is_err());
        assert!(device(1, 32).pass(&segments).is_err());
    }
    let segments = [Segment { rows: 0..1, past: 0, blocks: &[0] }];
    assert!(CpuCache::new(1, 4, 2, 64).pass(&segments).attend(0, &query, &key, &key).is_err());
    assert!(CpuCache::new(1, 4, 2, 32).pass(&segments).attend(1, &query, &key, &key).is_err());
    assert!(device(1, 64).pass(&segments).expect("fits").attend(0, &query, &key, &key).is_err());
    assert!(device(1, 32).pass(&segments).expect("fits").attend(1, &query, &key, &key).is_err());
}
