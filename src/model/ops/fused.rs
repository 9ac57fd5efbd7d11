//! Small operations for the CPU in one pass: candle's own call the C library for each number, or give each row of a few
//! numbers to the threads as a task of its own, which for a decoding batch costs more than all of its arithmetic.
//!
//! `x` is always a matrix `[rows, width]` in f32. Rows may lie apart, as in the parts of a joint product.

use candle_core::{CpuStorage, DType, Device, Result, Storage, Tensor, bail};
use rayon::prelude::*;

use crate::model::cpu::{floats, math};

/// Numbers a thread takes at a time; so many or fewer are not shared out.
const CHUNK: usize = 1 << 13;

/// True where these kernels run.
pub(super) fn applies(x: &Tensor) -> bool {
    x.device().is_cpu() && x.dtype() == DType::F32 && x.rank() == 2
}

/// `silu(gate) * up`.
pub(super) fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    if gate.dims() != up.dims() {
        bail!("swiglu of {:?} and {:?}", gate.dims(), up.dims());
    }
    rows_of(up, |up| by_rows(gate, |row, gate, out| math::silu_mul(gate, up.row(row), out)))
}

/// `x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x³))`, which is the tanh form of GELU.
pub(super) fn gelu_tanh(x: &Tensor) -> Result<Tensor> {
    by_rows(x, |_, x, out| math::gelu_tanh(x, out))
}

/// `x (1 + erf(x / sqrt(2))) / 2`: GELU itself.
pub(super) fn gelu(x: &Tensor) -> Result<Tensor> {
    by_rows(x, |_, x, out| math::gelu(x, out))
}

/// `x / sqrt(mean(x²) + eps) * weight` over each row.
pub(super) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    if weight.dims1()? != x.dim(1)? {
        bail!("a norm of {:?} with {:?}", x.dims(), weight.dims());
    }
    floats(weight, |weight| by_rows(x, |_, x, out| math::rms_norm(x, weight, eps, out)))
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` over each row.
pub(super) fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Tensor> {
    if weight.dims1()? != x.dim(1)? || bias.dims() != weight.dims() {
        bail!("a norm of {:?} with {:?} and {:?}", x.dims(), weight.dims(), bias.dims());
    }
    floats(weight, |weight| floats(bias, |bias| by_rows(x, |_, x, out| math::layer_norm(x, (weight, bias), eps, out))))
}

/// The two halves of each head turned against each other; `cos` and `sin` are `[rows, head / 2]`. With a norm (its weight
/// `[head]` and epsilon), each head is normed before.
pub(super) fn rotary(x: &Tensor, norm: Option<(&Tensor, f32)>, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let ((rows, width), (turned, half)) = (x.dims2()?, cos.dims2()?);
    let fits = half > 0 && width.is_multiple_of(2 * half) && turned == rows && sin.dims() == cos.dims();
    if !fits || norm.is_some_and(|(weight, _)| weight.dims() != [2 * half]) {
        bail!("rows of {:?} turned by {:?} and {:?}", x.dims(), cos.dims(), sin.dims());
    }
    let turn = |norm: Option<(&[f32], f32)>| {
        floats(cos, |cos| {
            floats(sin, |sin| {
                by_rows(x, |row, x, out| {
                    let angles = row * half..(row + 1) * half;
                    math::rotary(x, norm, (&cos[angles.clone()], &sin[angles]), out);
                })
            })
        })
    };
    match norm {
        Some((weight, eps)) => floats(weight, |weight| turn(Some((weight, eps)))),
        None => turn(None),
    }
}

/// A new matrix of the same size, from each row on its own: its number, what it is, what it becomes.
fn by_rows(x: &Tensor, each: impl Fn(usize, &[f32], &mut [f32]) + Sync) -> Result<Tensor> {
    rows_of(x, |rows| {
        let (count, width) = x.dims2()?;
        let mut out = vec![0.0; count * width];
        let some = |first: usize, out: &mut [f32]| {
            for (row, out) in out.chunks_exact_mut(width).enumerate() {
                each(first + row, rows.row(first + row), out);
            }
        };
        if width > 0 && out.len() <= CHUNK {
            some(0, &mut out);
        } else if width > 0 {
            let at_once = CHUNK.div_ceil(width);
            out.par_chunks_mut(at_once * width).enumerate().for_each(|(chunk, out)| some(chunk * at_once, out));
        }
        Tensor::from_vec(out, (count, width), &Device::Cpu)
    })
}

/// A matrix each of whose rows is in one piece.
pub(super) struct Rows<'a> {
    values: &'a [f32],
    start: usize,
    stride: usize,
    width: usize,
}

impl<'a> Rows<'a> {
    pub(super) const fn width(&self) -> usize {
        self.width
    }

    pub(super) fn row(&self, row: usize) -> &'a [f32] {
        let start = self.start + row * self.stride;
        &self.values[start..start + self.width]
    }
}

pub(super) fn rows_of<R>(x: &Tensor, then: impl FnOnce(&Rows<'_>) -> Result<R>) -> Result<R> {
    let (storage, layout) = x.storage_and_layout();
    match (&*storage, layout.dims(), layout.stride()) {
        (Storage::Cpu(CpuStorage::F32(values)), &[_, width], &[stride, 1]) => {
            then(&Rows { values, start: layout.start_offset(), stride, width })
        }
        _ => bail!("rows of a layout {layout:?}"),
    }
}
