//! Activations for the CPU in one pass, over all threads: candle's own run on one and call the C library for each number.

use candle_core::{CpuStorage, CustomOp1, CustomOp2, DType, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use crate::model::cpu::math;

/// Numbers a thread takes at a time.
const CHUNK: usize = 4096;

/// True where these kernels run.
pub(super) fn applies(x: &Tensor) -> bool {
    x.device().is_cpu() && x.dtype() == DType::F32 && x.rank() == 2
}

/// `silu(gate) * up`, both `[rows, width]`. Rows may lie apart, as in the halves of a joint product.
pub(super) fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate.apply_op2_no_bwd(up, &SwiGlu)
}

/// `x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x³))`, which is the tanh form. `x` is `[rows, width]`.
pub(super) fn gelu_tanh(x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1_no_bwd(&GeluTanh)
}

struct SwiGlu;

impl CustomOp2 for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn cpu_fwd(&self, s1: &CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout) -> Result<(CpuStorage, Shape)> {
        let (gate, up) = (Rows::new(s1, l1)?, Rows::new(s2, l2)?);
        if l1.dims() != l2.dims() {
            bail!("swiglu of {:?} and {:?}", l1.dims(), l2.dims());
        }
        let mut out = vec![0f32; l1.shape().elem_count()];
        let width = gate.width;
        let rows_a_time = CHUNK.div_ceil(width.max(1));
        out.par_chunks_mut((rows_a_time * width).max(1)).enumerate().for_each(|(chunk, out)| {
            for (row, out) in out.chunks_mut(width).enumerate() {
                let row = chunk * rows_a_time + row;
                math::silu_mul(gate.row(row), up.row(row), out);
            }
        });
        Ok((CpuStorage::F32(out), l1.shape().clone()))
    }
}

struct GeluTanh;

impl CustomOp1 for GeluTanh {
    fn name(&self) -> &'static str {
        "gelu-tanh"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Some((start, end)) = layout.contiguous_offsets() else { bail!("gelu of rows that lie apart") };
        let x = &storage.as_slice::<f32>()?[start..end];
        let mut out = vec![0f32; x.len()];
        out.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(out, x)| math::gelu_tanh(x, out));
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

/// A matrix whose rows are contiguous each.
struct Rows<'a> {
    values: &'a [f32],
    start: usize,
    stride: usize,
    width: usize,
}

impl<'a> Rows<'a> {
    fn new(storage: &'a CpuStorage, layout: &Layout) -> Result<Self> {
        let (&[_, width], &[stride, 1]) = (layout.dims(), layout.stride()) else {
            bail!("swiglu of a layout {layout:?}");
        };
        Ok(Self { values: storage.as_slice()?, start: layout.start_offset(), stride, width })
    }

    fn row(&self, row: usize) -> &'a [f32] {
        let start = self.start + row * self.stride;
        &self.values[start..start + self.width]
    }
}
