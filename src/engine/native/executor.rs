//! Runs the scheduler's batches through the model: positions, pictures, keys and values in; logits out.
//!
//! Owns the model, the memory for keys and values, and the vision cache. Knows nothing of requests, of sampling, or of why a
//! batch is as it is.

use std::collections::{BTreeSet, HashMap};

use candle_core::{Device, Tensor};

use super::attention::{BLOCK, CpuCache, Segment};
use super::batch::{Batch, SequenceId};
use super::device_attention::DeviceCache;
use super::prompt::Picture;
use super::vision_cache::VisionCache;
use crate::model::{
    Attend, Grid, ModelError, Positions, Qwen3Vl, Span, TextInput, VisionFeatures, VisionRows, positions,
};

/// What running a sequence needs to know of its prompt.
#[derive(Debug)]
pub(super) struct Reading {
    positions: Positions,
    pictures: Vec<Picture>,
}

impl Reading {
    /// For a prompt of so many tokens.
    ///
    /// # Errors
    /// [`ModelError::Input`] when its pictures are not the model's.
    pub(super) fn new(model: &Facts, tokens: usize, pictures: Vec<Picture>) -> Result<Self, ModelError> {
        let (mut spans, mut at) = (Vec::with_capacity(2 * pictures.len() + 1), 0);
        for picture in &pictures {
            let patches = |tokens| tokens * model.merge;
            spans.push(Span::Text(picture.start.saturating_sub(at)));
            spans.push(Span::Vision(Grid { t: 1, h: patches(picture.rows), w: patches(picture.columns) }));
            at = picture.start + picture.tokens();
        }
        spans.push(Span::Text(tokens.saturating_sub(at)));
        let positions = positions(&spans, model.merge, 0)?;
        if positions.tokens.len() != tokens {
            return Err(ModelError::Input("pictures do not fit the prompt".to_owned()));
        }
        Ok(Self { positions, pictures })
    }

    /// Where the token at an index of the sequence stands. Behind the prompt there is only text.
    fn position(&self, index: usize) -> [u32; 3] {
        self.positions.tokens.get(index).copied().unwrap_or_else(|| {
            let written = u32::try_from(index - self.positions.tokens.len()).unwrap_or(u32::MAX);
            [self.positions.next.saturating_add(written); 3]
        })
    }
}

/// What must be known of a model to prepare prompts for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    /// Side in patches of what becomes one token.
    pub(super) merge: usize,
    /// Logits in a row.
    pub(super) vocab_size: usize,
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    token_side: usize,
    deepstack: usize,
    hidden_size: usize,
    context_tokens: usize,
}

impl Facts {
    /// A model's.
    pub(super) fn of(model: &Qwen3Vl) -> Self {
        let config = model.config();
        Self {
            merge: model.processor().merge_size,
            vocab_size: config.text.vocab_size,
            layers: config.text.layers,
            kv_heads: config.text.kv_heads,
            head_dim: config.text.head_dim,
            token_side: model.token_side(),
            deepstack: config.vision.deepstack.len(),
            hidden_size: config.text.hidden_size,
            context_tokens: config.text.context_tokens,
        }
    }

    /// Bytes of one block of keys and values, all layers, on a device that computes in numbers of so many bytes.
    pub(super) const fn block_bytes(&self, number_bytes: usize) -> usize {
        2 * self.layers * self.kv_heads * self.head_dim * BLOCK * number_bytes
    }
}

/// What computes batches: the [`Executor`]; in tests something that fails when it is to.
pub(super) trait Compute {
    /// Computes a batch. Gives its logits, `[outputs, vocab]`, the rows in the batch's order. `readings` are those of its
    /// rows' sequences.
    ///
    /// # Errors
    /// [`ModelError`]. Rows may be computed again then, and alone.
    fn run(&mut self, batch: &Batch, readings: &[&Reading]) -> Result<Vec<f32>, ModelError>;

    /// A sequence is over: nothing is kept for it.
    fn forget(&mut self, id: SequenceId);

    /// Other weights of the same shape take over. Keys and values of the old ones must not be read any more.
    ///
    /// # Errors
    /// [`ModelError::Options`] when it is not the same model with other weights: then the old ones stay.
    fn swap(&mut self, model: Qwen3Vl) -> Result<(), ModelError>;
}

/// Keys and values where the model runs.
#[derive(Debug)]
enum Cache {
    Cpu(CpuCache),
    Device(DeviceCache),
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Executor {
    model: Qwen3Vl,
    cache: Cache,
    vision: VisionCache,
    /// Pictures encoded so far.
    #[cfg(test)]
    encoded: usize,
}

impl Executor {
    /// A model with room for so many blocks and so many bytes of encoded pictures.
    ///
    /// # Errors
    /// When the device has not so much memory.
    pub(super) fn new(model: Qwen3Vl, blocks: usize, vision_bytes: usize) -> Result<Self, ModelError> {
        let Facts { layers, kv_heads, head_dim, .. } = Facts::of(&model);
        let cache = match model.device() {
            Device::Cpu => Cache::Cpu(CpuCache::new(layers, blocks, kv_heads, head_dim)),
            device => Cache::Device(DeviceCache::new(layers, blocks, (kv_heads, head_dim), model.dtype(), device)?),
        };
        Ok(Self {
            model,
            cache,
            vision: VisionCache::new(vision_bytes),
            #[cfg(test)]
            encoded: 0,
        })
    }

    /// What of another model is not as here, but for its weights.
    fn difference(&self, other: &Qwen3Vl) -> Option<&'static str> {
        let (facts, others) = (Facts::of(&self.model), Facts::of(other));
        let ends = |model: &Qwen3Vl| BTreeSet::from_iter(model.eos_ids().iter().copied());
        if facts.context_tokens != others.context_tokens {
            return Some("has another context length");
        }
        if facts != others || self.model.dtype() != other.dtype() {
            return Some("is of another shape");
        }
        if ends(&self.model) != ends(other) {
            return Some("ends a text with other tokens");
        }
        (!other.device().same_device(self.model.device())).then_some("is on another device")
    }

    fn forward(&mut self, batch: &Batch, readings: &[&Reading]) -> Result<Tensor, ModelError> {
        let features = self.features(batch, readings)?;
        self.keep_partly_read(batch, readings, &features);
        let (mut positions, mut outputs) = (Vec::with_capacity(batch.tokens.len()), Vec::new());
        let (mut segments, mut vision) = (Vec::with_capacity(batch.rows.len()), Vec::new());
        for (row, reading) in batch.rows.iter().zip(readings) {
            positions.extend((row.first..).take(row.tokens.len()).map(|index| reading.position(index)));
            outputs.extend(narrow(row.tokens.end - row.outputs)?..narrow(row.tokens.end)?);
            let blocks = &batch.blocks[row.blocks.clone()];
            segments.push(Segment { rows: row.tokens.clone(), past: row.first, blocks });
        }
        for (rows, features) in batch.pictures.iter().zip(&features) {
            let offset = narrow(rows.offset)?;
            let rows_of_it = offset..offset + narrow(rows.tokens.len())?;
            vision.push(VisionRows { first: narrow(rows.tokens.start)?, features, rows: rows_of_it });
        }
        let input = TextInput { tokens: &batch.tokens, positions: &positions, vision: &vision, outputs: &outputs };
        let (mut cpu, mut device);
        let attend: &mut dyn Attend = match &mut self.cache {
            Cache::Cpu(cache) => {
                cpu = cache.pass(&segments);
                &mut cpu
            }
            Cache::Device(cache) => {
                device = cache.pass(&segments)?;
                &mut device
            }
        };
        self.model.forward(&input, attend)
    }

    /// Features for each entry of the batch's pictures. What is not cached is encoded, all of it in one pass.
    fn features(&mut self, batch: &Batch, readings: &[&Reading]) -> Result<Vec<VisionFeatures>, ModelError> {
        let mut needed = Vec::with_capacity(batch.pictures.len());
        for (row, reading) in batch.rows.iter().zip(readings) {
            for rows in &batch.pictures[row.pictures.clone()] {
                let picture = reading.pictures.get(rows.picture);
                needed.push(picture.ok_or_else(|| ModelError::Input("a picture that is not there".to_owned()))?);
            }
        }
        let mut known = HashMap::new();
        let (mut hashes, mut patches) = (Vec::new(), Vec::new());
        for picture in &needed {
            if known.contains_key(&picture.hash) || hashes.contains(&picture.hash) {
                continue;
            }
            match self.vision.get(&picture.hash) {
                Some(features) => {
                    known.insert(picture.hash, features);
                }
                None => {
                    hashes.push(picture.hash);
                    let patched = self.model.video(&picture.frames)?;
                    // A patch need not reach over two frames.
                    if patched.grid.tokens(self.model.processor().merge_size) != picture.tokens() {
                        return Err(ModelError::Input("this model reads no pairs of frames".to_owned()));
                    }
                    patches.push(patched);
                }
            }
        }
        if !patches.is_empty() {
            #[cfg(test)]
            {
                self.encoded += patches.len();
            }
            for (hash, features) in hashes.into_iter().zip(self.model.encode(&patches)?) {
                self.vision.insert(hash, features.clone());
                known.insert(hash, features);
            }
        }
        let found = needed.iter().map(|picture| known.get(&picture.hash).cloned()).collect::<Option<Vec<_>>>();
        found.ok_or_else(|| ModelError::Input("a picture was not encoded".to_owned()))
    }

    /// The last picture of a piece of a prompt goes on in the next piece, unless it ends in this one.
    fn keep_partly_read(&mut self, batch: &Batch, readings: &[&Reading], features: &[VisionFeatures]) {
        for (row, reading) in batch.rows.iter().zip(readings) {
            let last = batch.pictures[row.pictures.clone()].last().zip(features[row.pictures.clone()].last());
            let picture = last.and_then(|(rows, _)| reading.pictures.get(rows.picture));
            match picture.zip(last) {
                Some((picture, (rows, features))) if rows.offset + rows.tokens.len() < picture.tokens() => {
                    self.vision.keep_for(row.id, picture.hash, features.clone());
                }
                _ => self.vision.release(row.id),
            }
        }
    }
}

impl Compute for Executor {
    fn run(&mut self, batch: &Batch, readings: &[&Reading]) -> Result<Vec<f32>, ModelError> {
        Ok(self.forward(batch, readings)?.flatten_all()?.to_vec1()?)
    }

    fn forget(&mut self, id: SequenceId) {
        self.vision.release(id);
    }

    fn swap(&mut self, model: Qwen3Vl) -> Result<(), ModelError> {
        if let Some(difference) = self.difference(&model) {
            return Err(ModelError::Options(format!("the new checkpoint {difference} than the one that runs")));
        }
        self.model = model;
        self.vision.clear();
        Ok(())
    }
}

fn narrow(number: usize) -> Result<u32, ModelError> {
    u32::try_from(number).map_err(|_| ModelError::Input("a batch beyond 32 bits".to_owned()))
}

#[cfg(test)]
mod tests;
