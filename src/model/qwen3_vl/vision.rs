//! The vision tower: patches to embeddings that stand in the text, and to what is added to the decoder's first layers.
//!
//! Linear layers run over the patches of all pictures at once; attention is full inside each layer of time of each picture and
//! never beyond, so what is in a batch with a picture does not matter to it (but see `linear` on rounding). Rules:
//! `Qwen3VLVisionModel` of transformers. Knows nothing of text.

use candle_core::{Device, Result, Tensor};

use super::loader::{LayerNorm, Loader, Shape};
use super::processor::{Grid, Patches, block_order};
use super::rope::{Angles, VisionRotary};
use crate::model::linear::Linear;
use crate::model::ops::Run;
use crate::model::{Mode, ModelError, VisionConfig};

/// What the decoder needs of one picture.
#[derive(Debug, Clone)]
pub struct VisionFeatures {
    /// `[tokens, hidden]`, in the place of token embeddings.
    pub embeddings: Tensor,
    /// Added after each of the decoder's first layers, one `[tokens, hidden]` for each.
    pub deepstack: Vec<Tensor>,
}

impl VisionFeatures {
    /// Rows of text the picture takes.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.embeddings.dims().first().copied().unwrap_or(0)
    }

    /// Bytes on the device.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        bytes(&self.embeddings) + self.deepstack.iter().map(bytes).sum::<usize>()
    }
}

/// The network.
#[derive(Debug)]
pub(super) struct VisionTower {
    patch: Linear,
    /// `[side², hidden]`, a square table.
    positions: Tensor,
    blocks: Vec<Block>,
    merger: Merger,
    deepstack: Vec<Merger>,
    rotary: VisionRotary,
    config: VisionConfig,
    mode: Mode,
}

#[derive(Debug)]
struct Block {
    before_attention: LayerNorm,
    qkv: Linear,
    output: Linear,
    before_mlp: LayerNorm,
    up: Linear,
    down: Linear,
}

/// Joins the patches of a token.
#[derive(Debug)]
struct Merger {
    norm: LayerNorm,
    /// The norm sees joined patches; else it sees each alone.
    norm_joined: bool,
    up: Linear,
    down: Linear,
}

impl VisionTower {
    pub(super) fn load(loader: &mut Loader<'_>, config: &VisionConfig) -> std::result::Result<Self, ModelError> {
        const ROOT: &str = "model.visual";
        let (hidden, side) = (config.hidden_size, config.patch_size);
        let shape = [hidden, config.channels, config.temporal_patch_size, side, side];
        let kernel = loader.matrix(&format!("{ROOT}.patch_embed.proj.weight"), &shape)?;
        // Patches don't overlap, so the convolution is a matrix product.
        let kernel = kernel.reshape((hidden, config.patch_width()))?;
        let bias = loader.vector(&format!("{ROOT}.patch_embed.proj.bias"), &[hidden])?;
        let table = [config.position_side * config.position_side, hidden];
        let positions = loader.vector(&format!("{ROOT}.pos_embed.weight"), &table)?;
        let blocks = (0..config.depth)
            .map(|index| Block::load(loader, &format!("{ROOT}.blocks.{index}"), config))
            .collect::<std::result::Result<_, _>>()?;
        let merger = Merger::load(loader, &format!("{ROOT}.merger"), config, false)?;
        let deepstack = (0..config.deepstack.len())
            .map(|index| Merger::load(loader, &format!("{ROOT}.deepstack_merger_list.{index}"), config, true))
            .collect::<std::result::Result<_, _>>()?;
        Ok(Self {
            patch: loader.plain(kernel, Some(bias))?,
            positions,
            blocks,
            merger,
            deepstack,
            rotary: VisionRotary::new(config),
            config: config.clone(),
            mode: loader.mode(),
        })
    }

    /// Encodes pictures of any sizes.
    pub(super) fn encode(
        &self,
        pictures: &[Patches],
        device: &Device,
    ) -> std::result::Result<Vec<VisionFeatures>, ModelError> {
        let merge = self.config.merge_size;
        let width = self.config.patch_width();
        for Patches { values, grid } in pictures {
            let whole = grid.h.is_multiple_of(merge) && grid.w.is_multiple_of(merge) && grid.patches() > 0;
            if !whole || values.len() != grid.patches() * width {
                return Err(ModelError::input(format!("patches of {grid:?} that are not this model's")));
            }
        }
        if pictures.is_empty() {
            return Ok(Vec::new());
        }
        let grids: Vec<Grid> = pictures.iter().map(|picture| picture.grid).collect();
        let patches: usize = grids.iter().map(|grid| grid.patches()).sum();
        let mut values = Vec::with_capacity(patches * width);
        pictures.iter().for_each(|picture| values.extend_from_slice(&picture.values));
        let values = Tensor::from_vec(values, (patches, width), device)?.to_dtype(self.positions.dtype())?;
        let (embeddings, deepstack) = self.forward(&values, &grids)?;

        let mut start = 0;
        let mut features = Vec::with_capacity(pictures.len());
        for grid in &grids {
            let tokens = grid.tokens(merge);
            // A copy of these rows alone (`copy` takes all that lies in memory): a picture that is kept must not keep the batch.
            let cut = |all: &Tensor| all.narrow(0, start, tokens)?.force_contiguous();
            let deepstack = deepstack.iter().map(cut).collect::<Result<_>>()?;
            features.push(VisionFeatures { embeddings: cut(&embeddings)?, deepstack });
            start += tokens;
        }
        Ok(features)
    }

    /// Embeddings and deepstack features of all pictures, `[tokens, out]` each.
    fn forward(&self, patches: &Tensor, grids: &[Grid]) -> Result<(Tensor, Vec<Tensor>)> {
        let mut x = (self.patch.forward(patches)? + self.position_embeddings(grids)?)?;
        let angles = self.rotary.angles(grids, self.config.merge_size);
        let (cos, sin) = tables(&angles, &x)?;
        let runs = runs(grids);
        let mut deepstack = Vec::with_capacity(self.deepstack.len());
        for (index, block) in self.blocks.iter().enumerate() {
            x = self.block(block, &x, (&cos, &sin), &runs)?;
            if let Some(at) = self.config.deepstack.iter().position(|block| *block == index) {
                deepstack.push(self.merge(&self.deepstack[at], &x)?);
            }
        }
        Ok((self.merge(&self.merger, &x)?, deepstack))
    }

    fn block(&self, block: &Block, x: &Tensor, angles: (&Tensor, &Tensor), runs: &[Run]) -> Result<Tensor> {
        let hidden = self.config.hidden_size;
        let qkv = block.qkv.forward(&block.before_attention.forward(x, self.mode)?)?;
        let part = |index: usize| qkv.narrow(1, index * hidden, hidden);
        let turned = |index| self.mode.rotary(&part(index)?, None, angles)?.flatten_from(1);
        let read = self.mode.full_attention((&turned(0)?, &turned(1)?, &part(2)?), self.config.heads, runs)?;
        let x = (x + block.output.forward(&read)?)?;
        let inner = block.up.forward(&block.before_mlp.forward(&x, self.mode)?)?;
        &x + block.down.forward(&self.mode.gelu_tanh(&inner)?)?
    }

    fn merge(&self, merger: &Merger, x: &Tensor) -> Result<Tensor> {
        let joined = self.config.hidden_size * self.config.merge_size * self.config.merge_size;
        let x = if merger.norm_joined {
            merger.norm.forward(&x.reshape(((), joined))?, self.mode)?
        } else {
            merger.norm.forward(x, self.mode)?.reshape(((), joined))?
        };
        merger.down.forward(&self.mode.gelu(&merger.up.forward(&x)?)?)
    }

    /// The square table stretched over each picture: between four neighbours by distance, corners on corners.
    fn position_embeddings(&self, grids: &[Grid]) -> Result<Tensor> {
        let side = self.config.position_side;
        let mut indices: [Vec<u32>; 4] = Default::default();
        let mut shares: [Vec<f32>; 4] = Default::default();
        for grid in grids {
            let order: Vec<_> = block_order(*grid, self.config.merge_size).collect();
            for (row, column) in std::iter::repeat_n(&order, grid.t).flatten() {
                let (rows, columns) = (neighbours(*row, grid.h, side), neighbours(*column, grid.w, side));
                for corner in 0..4 {
                    let ((row, by_row), (column, by_column)) = (rows[corner / 2], columns[corner % 2]);
                    indices[corner].push((row * side + column) as u32);
                    shares[corner].push(by_row * by_column);
                }
            }
        }
        let device = self.positions.device();
        let mut sum: Option<Tensor> = None;
        for (indices, shares) in indices.into_iter().zip(shares) {
            let rows = indices.len();
            let picked = self.positions.index_select(&Tensor::from_vec(indices, rows, device)?, 0)?;
            let shares = Tensor::from_vec(shares, (rows, 1), device)?.to_dtype(picked.dtype())?;
            let part = picked.broadcast_mul(&shares)?;
            sum = Some(match sum {
                Some(sum) => (sum + part)?,
                None => part,
            });
        }
        sum.ok_or_else(|| candle_core::Error::Msg("no corners".to_owned()))
    }
}

impl Block {
    fn load(loader: &mut Loader<'_>, name: &str, config: &VisionConfig) -> std::result::Result<Self, ModelError> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let shape = |rows, width| Shape { rows, width, bias: true, quantize: false };
        Ok(Self {
            before_attention: loader.layer_norm(&format!("{name}.norm1"), hidden)?,
            qkv: loader.linear(&format!("{name}.attn.qkv"), shape(3 * hidden, hidden))?,
            output: loader.linear(&format!("{name}.attn.proj"), shape(hidden, hidden))?,
            before_mlp: loader.layer_norm(&format!("{name}.norm2"), hidden)?,
            up: loader.linear(&format!("{name}.mlp.linear_fc1"), shape(inner, hidden))?,
            down: loader.linear(&format!("{name}.mlp.linear_fc2"), shape(hidden, inner))?,
        })
    }
}

impl Merger {
    fn load(
        loader: &mut Loader<'_>,
        name: &str,
        config: &VisionConfig,
        norm_joined: bool,
    ) -> std::result::Result<Self, ModelError> {
        let joined = config.hidden_size * config.merge_size * config.merge_size;
        let normed = if norm_joined { joined } else { config.hidden_size };
        let shape = |rows| Shape { rows, width: joined, bias: true, quantize: false };
        Ok(Self {
            norm: loader.layer_norm(&format!("{name}.norm"), normed)?,
            norm_joined,
            up: loader.linear(&format!("{name}.linear_fc1"), shape(joined))?,
            down: loader.linear(&format!("{name}.linear_fc2"), shape(config.out_hidden_size))?,
        })
    }
}

/// The two rows (or columns) of a table of `side` that place `index` of `length` lies between, each with its share.
fn neighbours(index: usize, length: usize, side: usize) -> [(usize, f32); 2] {
    // In f32 and in this order, as the reference computes it.
    let place = (index * (side - 1)) as f32 / length.saturating_sub(1).max(1) as f32;
    let first = place.floor();
    let share = place - first;
    let first = first as usize;
    [(first.min(side - 1), 1.0 - share), ((first + 1).min(side - 1), share)]
}

/// Layers of time see nothing of each other.
fn runs(grids: &[Grid]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for grid in grids {
        let patches = grid.h * grid.w;
        match runs.last_mut() {
            Some(run) if run.patches == patches => run.layers += grid.t,
            _ => runs.push(Run { patches, layers: grid.t }),
        }
    }
    runs
}

/// Cosines and sines as tensors beside `x`.
pub(super) fn tables(angles: &Angles, x: &Tensor) -> Result<(Tensor, Tensor)> {
    let table = |values: &[f32]| {
        Tensor::from_slice(values, (values.len() / angles.width, angles.width), x.device())?.to_dtype(x.dtype())
    };
    Ok((table(&angles.cos)?, table(&angles.sin)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corners_lie_on_corners_and_shares_add_up() {
        assert_eq!(neighbours(0, 5, 7)[0], (0, 1.0));
        assert_eq!(neighbours(4, 5, 7)[0], (6, 1.0));
        assert_eq!(neighbours(1, 5, 7), [(1, 0.5), (2, 0.5)]);
        assert_eq!(neighbours(0, 1, 7)[0], (0, 1.0));
        assert_eq!(neighbours(2, 4, 1), [(0, 1.0), (0, 0.0)]);
        for length in 1..40 {
            for index in 0..length {
                let [(a, by_a), (b, by_b)] = neighbours(index, length, 24);
                assert!(a < 24 && b < 24 && (by_a + by_b - 1.0).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn equal_layers_run_together() {
        let grid = |t, h, w| Grid { t, h, w };
        let runs = runs(&[grid(1, 4, 6), grid(2, 6, 4), grid(1, 2, 2), grid(1, 4, 6)]);
        assert_eq!(
            runs,
            [Run { patches: 24, layers: 3 }, Run { patches: 4, layers: 1 }, Run { patches: 24, layers: 1 }]
        );
    }
}
