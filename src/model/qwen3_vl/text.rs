//! The decoder: a ragged batch of tokens to logits.
//!
//! All linear layers run over all tokens at once, whosever they are; only [`Attend`] knows where a sequence begins. Rules:
//! `Qwen3VLTextModel` of transformers. Knows nothing of caches, and of pictures only the rows that they become.

use std::ops::Range;

use candle_core::{D, DType, Device, Result, Tensor};
use rayon::prelude::*;

use super::loader::{Loader, Shape};
use super::rope::TextRotary;
use super::vision::{VisionFeatures, tables};
use crate::model::linear::{Fused, Linear};
use crate::model::{Attend, AttendByRows, Mode, ModelConfig, ModelError, TextConfig};

/// Weights of a layer that a core's second cache holds for the most part, give or take.
const CACHED_WEIGHTS: usize = 1 << 19;

/// Tokens to run through the decoder.
#[derive(Debug, Clone, Copy)]
pub struct TextInput<'a> {
    /// Ids of all sequences, one after another. Never empty.
    pub tokens: &'a [u32],
    /// Time, height and width of each token: see [`crate::model::positions`].
    pub positions: &'a [[u32; 3]],
    /// Rows whose embeddings come from pictures, ascending and apart. Their ids only have to be in the vocabulary.
    pub vision: &'a [VisionRows<'a>],
    /// Rows whose logits are wanted, in any order. May be empty.
    pub outputs: &'a [u32],
}

/// A run of a picture's tokens in the batch.
#[derive(Debug, Clone)]
pub struct VisionRows<'a> {
    /// Its first row in the batch.
    pub first: u32,
    /// The picture.
    pub features: &'a VisionFeatures,
    /// Which of the picture's tokens.
    pub rows: Range<u32>,
}

/// The network.
#[derive(Debug)]
pub(super) struct TextModel {
    /// `[vocab, hidden]`, in the weights' type.
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Linear,
    rotary: TextRotary,
    config: TextConfig,
    deepstack: usize,
    dtype: DType,
    mode: Mode,
}

#[derive(Debug)]
struct Layer {
    before_attention: Tensor,
    qkv: Fused,
    query_norm: Tensor,
    key_norm: Tensor,
    output: Linear,
    before_mlp: Tensor,
    gate_up: Fused,
    down: Linear,
}

impl TextModel {
    pub(super) fn load(loader: &mut Loader<'_>, config: &ModelConfig) -> std::result::Result<Self, ModelError> {
        const ROOT: &str = "model.language_model";
        const HEAD: &str = "lm_head";
        let text = &config.text;
        let (vocab, hidden) = (text.vocab_size, text.hidden_size);
        let table = format!("{ROOT}.embed_tokens");
        let embedding = loader.matrix(&format!("{table}.weight"), &[vocab, hidden])?;
        let layers = (0..text.layers)
            .map(|index| Layer::load(loader, &format!("{ROOT}.layers.{index}."), text))
            .collect::<std::result::Result<_, _>>()?;
        let norm = loader.vector(&format!("{ROOT}.norm.weight"), &[hidden])?;
        let shape = Shape { rows: vocab, width: hidden, bias: false, quantize: true };
        let head = if config.tied_head {
            // Some checkpoints store it all the same.
            loader.ignore(&format!("{HEAD}.weight"));
            loader.tied(&table, &embedding, shape)?
        } else {
            loader.linear(HEAD, shape)?
        };
        Ok(Self {
            embedding,
            layers,
            norm,
            head,
            rotary: TextRotary::new(text),
            config: text.clone(),
            deepstack: config.vision.deepstack.len(),
            dtype: loader.compute_dtype(),
            mode: loader.mode(),
        })
    }

    pub(super) fn forward(
        &self,
        input: &TextInput<'_>,
        attention: &mut dyn Attend,
    ) -> std::result::Result<Tensor, ModelError> {
        self.check(input)?;
        Ok(self.run(input, attention)?)
    }

    fn check(&self, input: &TextInput<'_>) -> std::result::Result<(), ModelError> {
        let rows = input.tokens.len();
        if rows == 0 || rows != input.positions.len() || u32::try_from(rows).is_err() {
            return Err(ModelError::input(format!("{rows} tokens with {} positions", input.positions.len())));
        }
        if let Some(id) = input.tokens.iter().find(|id| **id as usize >= self.config.vocab_size) {
            return Err(ModelError::input(format!("token {id} is not in the vocabulary")));
        }
        if let Some(row) = input.outputs.iter().find(|row| **row as usize >= rows) {
            return Err(ModelError::input(format!("row {row} is wanted of {rows}")));
        }
        let mut free = 0;
        for run in input.vision {
            let (first, tokens) = (run.first as usize, run.features.tokens());
            let inside = run.rows.start < run.rows.end && run.rows.end as usize <= tokens;
            if first < free || !inside || first + run.rows.len() > rows {
                return Err(ModelError::input(format!(
                    "rows {:?} of a picture of {tokens} tokens at {first}, where {free} to {rows} are free",
                    run.rows
                )));
            }
            if run.features.deepstack.len() != self.deepstack {
                return Err(ModelError::input("features of another model"));
            }
            free = first + run.rows.len();
        }
        Ok(())
    }

    fn run(&self, input: &TextInput<'_>, attention: &mut dyn Attend) -> Result<Tensor> {
        let device = self.embedding.device();
        let mut x = self.embed(input, device)?;
        let (cos, sin) = tables(&self.rotary.angles(input.positions), &x)?;
        let pictured = self.pictured_rows(input, device)?;
        let wanted = Wanted::new(input, device)?;
        let groups = self.groups(input);
        // What comes after the last attention is computed only for rows that are wanted, unless something is added there.
        let last = self.layers.len() - 1;
        let early = pictured.is_none() || self.deepstack <= last;
        // Of the layer that comes next.
        let mut projected = self.project(&self.layers[0], &x, (&cos, &sin))?;
        for (index, layer) in self.layers.iter().enumerate() {
            let (query, key, value) = &projected;
            let next = self.layers.get(index + 1);
            if groups.len() > 1
                && let Some(next) = next
                && let Some(attention) = attention.by_rows()
            {
                attention.write(index, key, value)?;
                let attention: &dyn AttendByRows = attention;
                let group = |rows: &Range<usize>| {
                    let cut = |tensor: &Tensor| tensor.narrow(0, rows.start, rows.len());
                    let read = attention.read(index, &cut(query)?, rows.clone())?;
                    let x = self.after_attention(layer, &cut(&x)?, &read)?;
                    let projected = self.project(next, &x, (&cut(&cos)?, &cut(&sin)?))?;
                    Ok((x, projected))
                };
                let parts = groups.par_iter().map(group).collect::<Result<Vec<_>>>()?;
                (x, projected) = joined(&parts)?;
                continue;
            }
            let mut read = attention.attend(index, query, key, value)?;
            if index == last && early {
                (x, read) = (wanted.pick(&x)?, wanted.pick(&read)?);
                if input.outputs.is_empty() {
                    break;
                }
            }
            x = self.after_attention(layer, &x, &read)?;
            if let Some(ids) = pictured.as_ref().filter(|_| index < self.deepstack) {
                let run = |run: &VisionRows<'_>| cut(&run.features.deepstack[index], run);
                let added = Tensor::cat(&input.vision.iter().map(run).collect::<Result<Vec<_>>>()?, 0)?;
                x = x.index_add(ids, &added, 0)?;
            }
            if let Some(next) = next {
                projected = self.project(next, &x, (&cos, &sin))?;
            }
        }
        if !early {
            x = wanted.pick(&x)?;
        }
        if input.outputs.is_empty() {
            // Not on a device: not every one gives memory of no bytes.
            return Tensor::zeros((0, self.config.vocab_size), DType::F32, &Device::Cpu);
        }
        let x = self.mode.rms_norm(&x, &self.norm, self.config.rms_norm_eps)?;
        let logits = self.head.forward(&x)?;
        if logits.dtype() == DType::F64 { Ok(logits) } else { logits.to_dtype(DType::F32) }
    }

    /// Rows that a thread takes through a layer on its own. A layer whose weights stay in a core's cache is left sooner by
    /// rows than by parts of each product: threads meet once a layer and not five times. A row's result is the same.
    fn groups(&self, input: &TextInput<'_>) -> Vec<Range<usize>> {
        let (rows, threads) = (input.tokens.len(), rayon::current_num_threads());
        let alike = self.mode == Mode::Inference && self.embedding.device().is_cpu() && input.vision.is_empty();
        let small = self.config.layer_weights() <= CACHED_WEIGHTS;
        let each = if alike && small { rows.div_ceil(threads) } else { rows };
        (0..rows).step_by(each.max(1)).map(|first| first..rows.min(first + each)).collect()
    }

    /// Embeddings of tokens and, in their rows, of pictures.
    fn embed(&self, input: &TextInput<'_>, device: &Device) -> Result<Tensor> {
        let ids = Tensor::from_slice(input.tokens, input.tokens.len(), device)?;
        let x = self.embedding.index_select(&ids, 0)?.to_dtype(self.dtype)?;
        if input.vision.is_empty() {
            return Ok(x);
        }
        let mut parts = Vec::with_capacity(2 * input.vision.len() + 1);
        let mut done = 0;
        for run in input.vision {
            let first = run.first as usize;
            if first > done {
                parts.push(x.narrow(0, done, first - done)?);
            }
            parts.push(cut(&run.features.embeddings, run)?);
            done = first + run.rows.len();
        }
        if done < input.tokens.len() {
            parts.push(x.narrow(0, done, input.tokens.len() - done)?);
        }
        Tensor::cat(&parts, 0)
    }

    /// The rows that deepstack features are added to, where there are any.
    fn pictured_rows(&self, input: &TextInput<'_>, device: &Device) -> Result<Option<Tensor>> {
        if self.deepstack == 0 || input.vision.is_empty() {
            return Ok(None);
        }
        let rows = |run: &VisionRows<'_>| run.first..run.first + run.rows.len() as u32;
        let ids: Vec<u32> = input.vision.iter().flat_map(rows).collect();
        let count = ids.len();
        Tensor::from_vec(ids, count, device).map(Some)
    }

    /// Queries, keys and values, normed and turned: `[tokens, heads, head_dim]` and twice `[tokens, kv_heads, head_dim]`.
    fn project(&self, layer: &Layer, x: &Tensor, angles: (&Tensor, &Tensor)) -> Result<Projected> {
        let eps = self.config.rms_norm_eps;
        let x = self.mode.rms_norm(x, &layer.before_attention, eps)?;
        let parts = layer.qkv.forward(&x)?;
        let turned = |part: &Tensor, norm: &Tensor| self.mode.rotary(part, Some((norm, eps)), angles);
        let value = parts[2].contiguous()?.reshape((x.dim(0)?, (), self.config.head_dim))?;
        Ok((turned(&parts[0], &layer.query_norm)?, turned(&parts[1], &layer.key_norm)?, value))
    }

    /// The rest of a layer: `read` is what its attention gave.
    fn after_attention(&self, layer: &Layer, x: &Tensor, read: &Tensor) -> Result<Tensor> {
        let x = &(x + layer.output.forward(read)?)?;
        let normed = self.mode.rms_norm(x, &layer.before_mlp, self.config.rms_norm_eps)?;
        let parts = layer.gate_up.forward(&normed)?;
        x + layer.down.forward(&self.mode.swiglu(&parts[0], &parts[1])?)?
    }
}

impl Layer {
    fn load(loader: &mut Loader<'_>, prefix: &str, text: &TextConfig) -> std::result::Result<Self, ModelError> {
        let (hidden, inner, head_dim) = (text.hidden_size, text.intermediate_size, text.head_dim);
        let (query, key) = (text.heads * head_dim, text.kv_heads * head_dim);
        let attention = Shape { rows: hidden, width: hidden, bias: text.attention_bias, quantize: true };
        let mlp = Shape { bias: false, ..attention };
        let name = |rest: &str| format!("{prefix}{rest}");
        Ok(Self {
            before_attention: loader.vector(&name("input_layernorm.weight"), &[hidden])?,
            qkv: loader.fused(
                &name("self_attn."),
                &[("q_proj", query), ("k_proj", key), ("v_proj", key)],
                attention,
            )?,
            query_norm: loader.vector(&name("self_attn.q_norm.weight"), &[head_dim])?,
            key_norm: loader.vector(&name("self_attn.k_norm.weight"), &[head_dim])?,
            output: loader.linear(&name("self_attn.o_proj"), Shape { width: query, ..attention })?,
            before_mlp: loader.vector(&name("post_attention_layernorm.weight"), &[hidden])?,
            gate_up: loader.fused(&name("mlp."), &[("gate_proj", inner), ("up_proj", inner)], mlp)?,
            down: loader.linear(&name("mlp.down_proj"), Shape { width: inner, ..mlp })?,
        })
    }
}

/// Queries, keys and values.
type Projected = (Tensor, Tensor, Tensor);

/// Rows and what was made of them, brought together again.
fn joined(parts: &[(Tensor, Projected)]) -> Result<(Tensor, Projected)> {
    let cat = |part: fn(&(Tensor, Projected)) -> &Tensor| Tensor::cat(&parts.iter().map(part).collect::<Vec<_>>(), 0);
    let projected = (cat(|(_, (query, ..))| query)?, cat(|(_, (_, key, _))| key)?, cat(|(_, (.., value))| value)?);
    Ok((cat(|(x, _)| x)?, projected))
}

/// The rows whose logits are wanted.
enum Wanted {
    All,
    None,
    These(Tensor),
}

impl Wanted {
    fn new(input: &TextInput<'_>, device: &Device) -> Result<Self> {
        let (rows, outputs) = (input.tokens.len(), input.outputs);
        if outputs.is_empty() {
            Ok(Self::None)
        } else if outputs.len() == rows && outputs.iter().zip(0..).all(|(row, index)| *row == index) {
            Ok(Self::All)
        } else {
            Tensor::from_slice(outputs, outputs.len(), device).map(Self::These)
        }
    }

    fn pick(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::All | Self::None => Ok(x.clone()),
            Self::These(rows) => x.index_select(rows, 0),
        }
    }
}

/// The rows of a picture's tensor that are in the batch.
fn cut(tensor: &Tensor, run: &VisionRows<'_>) -> Result<Tensor> {
    tensor.narrow(D::Minus2, run.rows.start as usize, run.rows.len())
}
