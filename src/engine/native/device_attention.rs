//! Keys and values on any device, through candle's own operations: what runs on a GPU. Slower than
//! [`super::attention`] on a CPU, and there to check it.
//!
//! Never run on a GPU by us. Each sequence has its own products, in the device's number format and with a softmax in f32; there
//! is no flash attention yet.

use candle_core::{D, DType, Device, Result, Tensor};

use super::attention::{BLOCK, Segment};
use crate::model::Attend;

/// Keys and values of all sequences: for each layer two tensors of `[blocks * BLOCK, kv_heads * head_dim]`.
#[derive(Debug)]
pub struct DeviceCache {
    layers: Vec<(Tensor, Tensor)>,
    kv_heads: usize,
}

impl DeviceCache {
    /// Room for `blocks` blocks in each of `layers` layers, taken at once.
    ///
    /// # Errors
    /// When the device has not so much memory.
    pub fn new(
        layers: usize,
        blocks: usize,
        (kv_heads, head_dim): (usize, usize),
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let room = || Tensor::zeros((blocks * BLOCK, kv_heads * head_dim), dtype, device);
        let layers = (0..layers).map(|_| Ok((room()?, room()?))).collect::<Result<_>>()?;
        Ok(Self { layers, kv_heads })
    }

    /// Attention for one pass of the model over these segments.
    #[must_use]
    pub const fn pass<'a>(&'a mut self, segments: &'a [Segment<'a>]) -> DevicePass<'a> {
        DevicePass { cache: self, segments }
    }
}

/// One pass of the model: writes the new keys and values, reads all.
#[derive(Debug)]
pub struct DevicePass<'a> {
    cache: &'a mut DeviceCache,
    segments: &'a [Segment<'a>],
}

impl Attend for DevicePass<'_> {
    fn attend(&mut self, layer: usize, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let (tokens, heads, head_dim) = query.dims3()?;
        let kv_heads = self.cache.kv_heads;
        let Some((keys, values)) = self.cache.layers.get(layer) else {
            candle_core::bail!("the cache has fewer layers")
        };
        for segment in self.segments {
            if segment.past + segment.rows.len() > segment.blocks.len() * BLOCK {
                candle_core::bail!("a sequence's blocks do not hold its tokens");
            }
            write(keys, key, segment)?;
            write(values, value, segment)?;
        }
        let mut outputs = Vec::with_capacity(self.segments.len());
        for segment in self.segments {
            let rows = segment.rows.len();
            let total = segment.past + rows;
            let blocks = Tensor::new(&segment.blocks[..total.div_ceil(BLOCK)], query.device())?;
            // [kv_heads, total, head_dim]
            let gather = |pool: &Tensor| {
                pool.reshape(((), BLOCK * kv_heads * head_dim))?
                    .index_select(&blocks, 0)?
                    .reshape(((), kv_heads, head_dim))?
                    .narrow(0, 0, total)?
                    .transpose(0, 1)?
                    .contiguous()
            };
            let (keys, values) = (gather(keys)?, gather(values)?);
            let group = heads / kv_heads;
            let query = query
                .narrow(0, segment.rows.start, rows)?
                .reshape((rows, kv_heads, group, head_dim))?
                .permute((1, 2, 0, 3))?
                .reshape((kv_heads, group * rows, head_dim))?;
            let scores = (query.matmul(&keys.t()?)? * (1.0 / (head_dim as f64).sqrt()))?.to_dtype(DType::F32)?;
            let mask: Vec<f32> = (0..rows)
                .flat_map(|row| (0..total).map(move |at| if at > segment.past + row { f32::NEG_INFINITY } else { 0.0 }))
                .collect();
            let mask = Tensor::from_vec(mask, (1, 1, rows, total), scores.device())?;
            let scores = scores.reshape((kv_heads, group, rows, total))?.broadcast_add(&mask)?;
            let weights = candle_nn::ops::softmax(&scores, D::Minus1)?.to_dtype(values.dtype())?;
            let output = weights
                .reshape((kv_heads, group * rows, total))?
                .matmul(&values)?
                .reshape((kv_heads, group, rows, head_dim))?
                .permute((2, 0, 1, 3))?
                .reshape((rows, heads * head_dim))?;
            outputs.push(output);
        }
        let output = Tensor::cat(&outputs, 0)?;
        if output.dim(0)? != tokens {
            candle_core::bail!("the segments are not the batch");
        }
        Ok(output)
    }
}

/// Puts a segment's rows where its blocks say, a run of neighbours at a time.
fn write(pool: &Tensor, new: &Tensor, segment: &Segment<'_>) -> Result<()> {
    let new = new.flatten_from(1)?;
    let mut number = 0;
    while number < segment.rows.len() {
        let position = segment.past + number;
        let run = (BLOCK - position % BLOCK).min(segment.rows.len() - number);
        let rows = new.narrow(0, segment.rows.start + number, run)?.to_dtype(pool.dtype())?.contiguous()?;
        pool.slice_set(&rows, 0, segment.blocks[position / BLOCK] as usize * BLOCK + position % BLOCK)?;
        number += run;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::attention::CpuCache;
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

    fn sequences(lengths: &[usize], heads: Heads, seed: u64) -> Vec<Sequence> {
        let mut next = 0;
        let mut one = |(number, tokens): (usize, &usize)| {
            let seed = seed ^ (number as u64) << 32;
            let (wide, narrow) = (heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim);
            // Every second block is another's, last first.
            let blocks = (0..tokens.div_ceil(BLOCK))
                .map(|_| {
                    next += 2;
                    next
                })
                .collect::<Vec<u32>>();
            Sequence {
                tokens: *tokens,
                query: numbers(tokens * wide, seed),
                key: numbers(tokens * narrow, seed ^ 1),
                value: numbers(tokens * narrow, seed ^ 2),
                blocks: blocks.into_iter().rev().collect(),
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
            let (key, value) =
                (tensor(key, heads.kv_heads, heads.head_dim), tensor(value, heads.kv_heads, heads.head_dim));
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn both_caches_agree_however_prompts_are_cut(
            lengths in prop::collection::vec(1..70usize, 1..5), chunk in 1..80usize, shape in 0..4usize, seed: u64,
        ) {
            let (heads, kv_heads, head_dim) = [(4, 2, 32), (4, 1, 24), (2, 2, 128), (6, 2, 5)][shape];
            let heads = Heads { heads, kv_heads, head_dim };
            let sequences = sequences(&lengths, heads, seed);
            let given = on_cpu(&sequences, heads, chunk);
            let mut cache = DeviceCache::new(2, 64 * 3, (kv_heads, head_dim), DType::F32, &Device::Cpu).expect("fits");
            let expected = run(&sequences, heads, 1000, |segments, query, key, value| {
                cache.pass(segments).attend(1, query, key, value).expect("attends")
            });
            for (given, expected) in given.iter().zip(&expected) {
                prop_assert_eq!(given.len(), expected.len());
                for (given, expected) in given.iter().zip(expected) {
                    prop_assert!((given - expected).abs() < 1e-5, "{given} {expected}");
                }
            }
            // To the last bit: alone and in one piece.
            for (number, given) in given.iter().enumerate() {
                prop_assert_eq!(given, &on_cpu(&sequences[number..=number], heads, 1000)[0]);
            }
        }
    }

    #[test]
    fn blocks_that_do_not_hold_the_tokens_are_an_error() {
        let (query, key) = (tensor(vec![0.0; 128], 4, 32), tensor(vec![0.0; 64], 2, 32));
        for blocks in [&[][..], &[99]] {
            let segments = [Segment { rows: 0..1, past: 0, blocks }];
            let mut cache = CpuCache::new(1, 4, 2, 32);
            assert!(cache.pass(&segments).attend(0, &query, &key, &key).is_err());
        }
        let segments = [Segment { rows: 0..1, past: 0, blocks: &[0] }];
        assert!(CpuCache::new(1, 4, 2, 64).pass(&segments).attend(0, &query, &key, &key).is_err());
        assert!(CpuCache::new(1, 4, 2, 32).pass(&segments).attend(1, &query, &key, &key).is_err());
    }
}
