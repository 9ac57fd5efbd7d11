//! Operations for training on the CPU: one pass forward, one pass back. candle's formulas take several passes over memory for
//! each step, and twice that for the way back.
//!
//! For f32 on the CPU; everywhere else training takes the formulas. That both agree is tested.

mod attention;

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, CustomOp3, DType, Device, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

pub(in crate::model) use self::attention::{Piece, attention};
use crate::model::cpu::{floats, gradient, math, slice};

/// Numbers a thread takes at a time.
const CHUNK: usize = 1 << 15;

/// True where these run.
pub(in crate::model) fn applies(x: &Tensor) -> bool {
    x.device().is_cpu() && x.dtype() == DType::F32
}

fn give(numbers: Vec<f32>, layout: &Layout) -> Result<(CpuStorage, Shape)> {
    Ok((CpuStorage::F32(numbers), layout.shape().clone()))
}

fn like(numbers: Vec<f32>, tensor: &Tensor) -> Result<Tensor> {
    Tensor::from_vec(numbers, tensor.shape(), &Device::Cpu)
}

/// How many numbers of rows of `width` are taken at a time.
fn at_once(width: usize) -> usize {
    CHUNK.div_ceil(width.max(1)) * width.max(1)
}

/// `x Wᵀ` of `[rows, in]` and `[out, in]`.
struct Product {
    /// The weight gets no gradient.
    frozen: bool,
}

/// `x Wᵀ`, `[rows, in]` by `[out, in]`. A frozen weight gets no gradient, and none is computed.
pub(in crate::model) fn product(x: &Tensor, weight: &Tensor, frozen: bool) -> Result<Tensor> {
    x.contiguous()?.apply_op2(weight, Product { frozen })
}

impl CustomOp2 for Product {
    fn name(&self) -> &'static str {
        "product"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((rows, inner), (outer, width)) = (xl.shape().dims2()?, wl.shape().dims2()?);
        if inner != width {
            bail!("a product of [{rows}, {inner}] with [{outer}, {width}]");
        }
        let product = x.matmul(w, (1, rows, outer, inner), xl, &wl.transpose(0, 1)?)?;
        Ok((product, Shape::from((rows, outer))))
    }

    fn bwd(&self, x: &Tensor, w: &Tensor, _: &Tensor, dy: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dx = dy.matmul(w)?;
        let dw = if self.frozen { None } else { Some(dy.t()?.matmul(x)?) };
        Ok((Some(dx), dw))
    }
}

struct RmsNorm {
    eps: f32,
}

/// `x / sqrt(mean(x²) + eps) * weight` over the last dimension.
pub(super) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    x.contiguous()?.apply_op2(weight, RmsNorm { eps })
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, weight) = (slice(x, xl)?, slice(w, wl)?);
        let mut y = vec![0.0; x.len()];
        y.par_chunks_mut(at_once(weight.len())).zip(x.par_chunks(at_once(weight.len()))).for_each(|(y, x)| {
            let width = weight.len();
            for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
                math::rms_norm(x, weight, self.eps, y);
            }
        });
        give(y, xl)
    }

    fn bwd(&self, x: &Tensor, w: &Tensor, _: &Tensor, dy: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dy = dy.contiguous()?;
        let (dx, dw) = floats(x, |x| floats(w, |w| floats(&dy, |dy| Ok(rms_norm_back(x, w, self.eps, dy)))))?;
        Ok((Some(like(dx, x)?), Some(like(dw, w)?)))
    }
}

/// Gradients of the input and of the weight. What chunks give to the weight is added in their order, whoever computes them.
fn rms_norm_back(x: &[f32], weight: &[f32], eps: f32, dy: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let (mut dx, each) = (vec![0.0; x.len()], at_once(weight.len()));
    let chunks = dx.par_chunks_mut(each).zip(x.par_chunks(each)).zip(dy.par_chunks(each));
    let parts: Vec<Vec<f32>> = chunks
        .map(|((dx, x), dy)| {
            let mut dw = vec![0.0; weight.len()];
            gradient::rms_norm(x, weight, eps, dy, dx, &mut dw);
            dw
        })
        .collect();
    (dx, summed(&parts, weight.len()))
}

fn summed(parts: &[Vec<f32>], width: usize) -> Vec<f32> {
    let mut sum = vec![0.0; width];
    for part in parts {
        sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
    }
    sum
}

struct LayerNorm {
    eps: f32,
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` over the last dimension.
pub(super) fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Tensor> {
    x.contiguous()?.apply_op3(weight, bias, LayerNorm { eps })
}

impl CustomOp3 for LayerNorm {
    fn name(&self) -> &'static str {
        "layer-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, weight, bias) = (slice(x, xl)?, slice(w, wl)?, slice(b, bl)?);
        let (width, mut y) = (weight.len(), vec![0.0; x.len()]);
        y.par_chunks_mut(at_once(width)).zip(x.par_chunks(at_once(width))).for_each(|(y, x)| {
            for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
                math::layer_norm(x, (weight, bias), self.eps, y);
            }
        });
        give(y, xl)
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        b: &Tensor,
        _: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let dy = dy.contiguous()?;
        let back = |x: &[f32], weight: &[f32], dy: &[f32]| {
            let (mut dx, each, width) = (vec![0.0; x.len()], at_once(weight.len()), weight.len());
            let chunks = dx.par_chunks_mut(each).zip(x.par_chunks(each)).zip(dy.par_chunks(each));
            let parts: (Vec<Vec<f32>>, Vec<Vec<f32>>) = chunks
                .map(|((dx, x), dy)| {
                    let (mut dw, mut db) = (vec![0.0; width], vec![0.0; width]);
                    gradient::layer_norm(x, (weight, self.eps), dy, dx, (&mut dw, &mut db));
                    (dw, db)
                })
                .unzip();
            (dx, summed(&parts.0, width), summed(&parts.1, width))
        };
        let (dx, dw, db) = floats(x, |x| floats(w, |w| floats(&dy, |dy| Ok(back(x, w, dy)))))?;
        Ok((Some(like(dx, x)?), Some(like(dw, w)?), Some(like(db, b)?)))
    }
}

/// Heads normed (with an epsilon) and turned.
struct Rotary {
    eps: f32,
    /// `[rows, half]` each.
    cos: Tensor,
    sin: Tensor,
}

/// Heads of `[rows, heads * width]` turned, and normed before where there is a norm; `cos` and `sin` are `[rows, width / 2]`.
/// The result has the input's shape.
pub(super) fn rotary(x: &Tensor, norm: Option<(&Tensor, f32)>, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let ((rows, width), (turned, half)) = (x.dims2()?, cos.dims2()?);
    if half == 0 || !width.is_multiple_of(2 * half) || turned != rows || sin.dims() != cos.dims() {
        bail!("rows of {:?} turned by {:?} and {:?}", x.dims(), cos.dims(), sin.dims());
    }
    let op = |eps| Rotary { eps, cos: cos.clone(), sin: sin.clone() };
    match norm {
        Some((weight, eps)) if weight.dims() == [2 * half] => x.contiguous()?.apply_op2(weight, op(eps)),
        Some((weight, _)) => bail!("heads of {} with a norm of {:?}", 2 * half, weight.dims()),
        None => x.contiguous()?.apply_op1(op(0.0)),
    }
}

impl Rotary {
    fn forward(&self, x: &[f32], norm: Option<&[f32]>, width: usize) -> Result<Vec<f32>> {
        let half = self.cos.dims2()?.1;
        let mut y = vec![0.0; x.len()];
        let norm = norm.map(|weight| (weight, self.eps));
        floats(&self.cos, |cos| {
            floats(&self.sin, |sin| {
                y.par_chunks_mut(width).zip(x.par_chunks(width)).with_min_len(64).enumerate().for_each(
                    |(row, (y, x))| {
                        let angles = row * half..(row + 1) * half;
                        math::rotary(x, norm, (&cos[angles.clone()], &sin[angles]), y);
                    },
                );
                Ok(())
            })
        })?;
        Ok(y)
    }

    /// What passes the rotation.
    fn turned_back(&self, dy: &Tensor) -> Result<Vec<f32>> {
        let (dy, half) = (dy.contiguous()?, self.cos.dims2()?.1);
        let mut dx = vec![0.0; dy.elem_count()];
        let width = dy.elem_count() / self.cos.dims2()?.0.max(1);
        floats(&dy, |dy| {
            floats(&self.cos, |cos| {
                floats(&self.sin, |sin| {
                    dx.par_chunks_mut(width).zip(dy.par_chunks(width)).with_min_len(64).enumerate().for_each(
                        |(row, (dx, dy))| {
                            let angles = row * half..(row + 1) * half;
                            gradient::rotary(dy, (&cos[angles.clone()], &sin[angles]), dx);
                        },
                    );
                    Ok(())
                })
            })
        })?;
        Ok(dx)
    }
}

impl CustomOp1 for Rotary {
    fn name(&self) -> &'static str {
        "rotary"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout) -> Result<(CpuStorage, Shape)> {
        give(self.forward(slice(x, xl)?, None, xl.shape().dims2()?.1)?, xl)
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        like(self.turned_back(dy)?, x).map(Some)
    }
}

impl CustomOp2 for Rotary {
    fn name(&self) -> &'static str {
        "normed-rotary"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        give(self.forward(slice(x, xl)?, Some(slice(w, wl)?), xl.shape().dims2()?.1)?, xl)
    }

    fn bwd(&self, x: &Tensor, w: &Tensor, _: &Tensor, dy: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dy = self.turned_back(dy)?;
        let (dx, dw) = floats(x, |x| floats(w, |w| Ok(rms_norm_back(x, w, self.eps, &dy))))?;
        Ok((Some(like(dx, x)?), Some(like(dw, w)?)))
    }
}

struct Swiglu;

/// `silu(gate) * up`.
pub(super) fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    if gate.dims() != up.dims() {
        bail!("swiglu of {:?} and {:?}", gate.dims(), up.dims());
    }
    gate.contiguous()?.apply_op2(&up.contiguous()?, Swiglu)
}

impl CustomOp2 for Swiglu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn cpu_fwd(&self, g: &CpuStorage, gl: &Layout, u: &CpuStorage, ul: &Layout) -> Result<(CpuStorage, Shape)> {
        let (gate, up) = (slice(g, gl)?, slice(u, ul)?);
        let mut y = vec![0.0; gate.len()];
        let chunks = y.par_chunks_mut(CHUNK).zip(gate.par_chunks(CHUNK)).zip(up.par_chunks(CHUNK));
        chunks.for_each(|((y, gate), up)| math::silu_mul(gate, up, y));
        give(y, gl)
    }

    fn bwd(&self, gate: &Tensor, up: &Tensor, _: &Tensor, dy: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dy = dy.contiguous()?;
        let back = |gate: &[f32], up: &[f32], dy: &[f32]| {
            let (mut dgate, mut dup) = (vec![0.0; gate.len()], vec![0.0; up.len()]);
            let into = dgate.par_chunks_mut(CHUNK).zip(dup.par_chunks_mut(CHUNK));
            let from = gate.par_chunks(CHUNK).zip(up.par_chunks(CHUNK)).zip(dy.par_chunks(CHUNK));
            into.zip(from).for_each(|((dgate, dup), ((gate, up), dy))| gradient::swiglu(gate, up, dy, dgate, dup));
            (dgate, dup)
        };
        let (dgate, dup) = floats(gate, |g| floats(up, |u| floats(&dy, |dy| Ok(back(g, u, dy)))))?;
        Ok((Some(like(dgate, gate)?), Some(like(dup, up)?)))
    }
}

/// An activation: forward, and back from its input.
struct Activation {
    forward: fn(&[f32], &mut [f32]),
    back: fn(&[f32], &[f32], &mut [f32]),
}

/// The tanh form of GELU.
pub(super) fn gelu_tanh(x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1(Activation { forward: math::gelu_tanh, back: gradient::gelu_tanh })
}

/// GELU itself.
pub(super) fn gelu(x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1(Activation { forward: math::gelu, back: gradient::gelu })
}

impl CustomOp1 for Activation {
    fn name(&self) -> &'static str {
        "activation"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = slice(x, xl)?;
        let mut y = vec![0.0; x.len()];
        y.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(y, x)| (self.forward)(x, y));
        give(y, xl)
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let dy = dy.contiguous()?;
        let back = |x: &[f32], dy: &[f32]| {
            let mut dx = vec![0.0; x.len()];
            let from = x.par_chunks(CHUNK).zip(dy.par_chunks(CHUNK));
            dx.par_chunks_mut(CHUNK).zip(from).for_each(|(dx, (x, dy))| (self.back)(x, dy, dx));
            dx
        };
        let dx = floats(x, |x| floats(&dy, |dy| Ok(back(x, dy))))?;
        like(dx, x).map(Some)
    }
}

/// Logarithms of what a softmax of each row gives to one of its columns.
struct LogProbabilities {
    targets: Vec<u32>,
}

/// For each row of `[rows, vocab]`, the logarithm of the share that its softmax gives to the row's target: `[rows]`.
pub(in crate::model) fn log_probabilities(logits: &Tensor, targets: Vec<u32>) -> Result<Tensor> {
    let (rows, vocab) = logits.dims2()?;
    if targets.len() != rows || targets.iter().any(|target| *target as usize >= vocab) {
        bail!("{} targets for logits of {:?}", targets.len(), logits.dims());
    }
    logits.contiguous()?.apply_op1(LogProbabilities { targets })
}

impl CustomOp1 for LogProbabilities {
    fn name(&self) -> &'static str {
        "log-probabilities"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout) -> Result<(CpuStorage, Shape)> {
        let (logits, (rows, vocab)) = (slice(x, xl)?, xl.shape().dims2()?);
        let rows_of = logits.par_chunks(vocab.max(1)).zip(&self.targets).with_min_len(16);
        let y = rows_of.map(|(row, target)| math::log_probability(row, *target as usize)).collect();
        Ok((CpuStorage::F32(y), Shape::from(rows)))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let (dy, vocab) = (dy.contiguous()?, x.dims2()?.1);
        let dx = floats(x, |x| {
            floats(&dy, |dy| {
                let mut dx = vec![0.0; x.len()];
                let rows = dx.par_chunks_mut(vocab.max(1)).zip(x.par_chunks(vocab.max(1))).with_min_len(16);
                rows.zip(dy.par_iter().zip(&self.targets)).for_each(|((dx, x), (dy, target))| {
                    gradient::log_probability(x, *target as usize, *dy, dx);
                });
                Ok(dx)
            })
        })?;
        like(dx, x).map(Some)
    }
}

/// Adds a bias `[width]` to rows: candle's own would spread the bias, and sum it up again on the way back, number by number.
struct Bias;

/// `x + bias` over rows of `[rows, width]`.
pub(in crate::model) fn bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    if x.dims2()?.1 != bias.dims1()? {
        bail!("a bias of {:?} for rows of {:?}", bias.dims(), x.dims());
    }
    x.contiguous()?.apply_op2(bias, Bias)
}

impl CustomOp2 for Bias {
    fn name(&self) -> &'static str {
        "bias"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, b: &CpuStorage, bl: &Layout) -> Result<(CpuStorage, Shape)> {
        let (mut y, bias) = (slice(x, xl)?.to_vec(), slice(b, bl)?);
        for row in y.chunks_exact_mut(bias.len().max(1)) {
            row.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
        }
        give(y, xl)
    }

    fn bwd(&self, _: &Tensor, b: &Tensor, _: &Tensor, dy: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dy = dy.contiguous()?;
        let sum = floats(&dy, |dy| {
            let mut sum = vec![0.0; b.elem_count()];
            for row in dy.chunks_exact(b.elem_count().max(1)) {
                sum.iter_mut().zip(row).for_each(|(sum, dy)| *sum += dy);
            }
            Ok(sum)
        })?;
        Ok((Some(dy), Some(like(sum, b)?)))
    }
}

#[cfg(test)]
mod tests;
