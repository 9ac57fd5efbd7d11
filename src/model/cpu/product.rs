//! Products of a ragged batch with a weight matrix that was brought into panels once.
//!
//! candle's product (the `gemm` crate) arranges the matrix anew at each call, which for a batch of two to eight rows
//! takes five to fifteen times as long as the product itself. Here every output is one chain of fused multiplications and
//! additions in the order of the inputs, whatever the number of rows and threads is.

use half::bf16;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

/// Outputs that are computed side by side.
const PANEL: usize = 32;
/// Multiplications below which a second thread costs more than it brings.
const SHARED_FROM: usize = 1 << 19;
/// Inputs whose part of a panel, 8 KiB, stays in the first cache for all rows, while the next is on its way.
const DEPTH: usize = 64;
/// Rows whose numbers stay in the second cache while all panels pass.
const ROWS_AT_ONCE: usize = 96;
/// Up to so many rows go through a panel in pairs, where the sums of more leave no registers for all of it at once: so it is
/// read straight on, which counts where it comes from memory.
const PAIRED_ROWS: usize = 4;
/// Rows for each thread from which rows, not outputs, are shared out.
const ROWS_A_THREAD: usize = 16;

/// A weight matrix, ready for products. Rows of [`PANEL`] outputs stand side by side; the last panel is filled with zeros.
#[derive(Debug, Clone)]
pub struct Packed {
    panels: Panels,
    inputs: usize,
    outputs: usize,
}

#[derive(Debug, Clone)]
enum Panels {
    F32(Vec<f32>),
    /// Half the memory and half the reading; widened when used.
    Bf16(Vec<bf16>),
}

/// What panels can be made of.
trait Weight: Copy + Send + Sync {
    /// A panel to compute with; `room` is there to widen it into.
    fn wide<'a>(panel: &'a [Self], room: &'a mut Vec<f32>) -> &'a [f32];
}

impl Weight for f32 {
    #[inline(always)]
    fn wide<'a>(panel: &'a [Self], _: &'a mut Vec<f32>) -> &'a [f32] {
        panel
    }
}

impl Weight for bf16 {
    #[inline(always)]
    fn wide<'a>(panel: &'a [Self], room: &'a mut Vec<f32>) -> &'a [f32] {
        room.clear();
        room.extend(panel.iter().map(|weight| f32::from_bits(u32::from(weight.to_bits()) << 16)));
        room
    }
}

impl Packed {
    /// From `[outputs, inputs]`, row by row, as checkpoints store it. `None` when `weight` is not of that size.
    #[must_use]
    pub fn f32(weight: &[f32], outputs: usize, inputs: usize) -> Option<Self> {
        Some(Self { panels: Panels::F32(pack(weight, outputs, inputs, 0.0)?), inputs, outputs })
    }

    /// The same in 16 bits.
    #[must_use]
    pub fn bf16(weight: &[bf16], outputs: usize, inputs: usize) -> Option<Self> {
        Some(Self { panels: Panels::Bf16(pack(weight, outputs, inputs, bf16::ZERO)?), inputs, outputs })
    }

    /// Length of a row that goes in.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.inputs
    }

    /// Length of a row that comes out.
    #[must_use]
    pub const fn outputs(&self) -> usize {
        self.outputs
    }

    /// Size in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.panels {
            Panels::F32(panels) => size_of_val(panels.as_slice()),
            Panels::Bf16(panels) => size_of_val(panels.as_slice()),
        }
    }

    /// `[rows, inputs]` to `[rows, outputs]`. What does not fill a row is left out.
    #[must_use]
    pub fn product(&self, input: &[f32]) -> Vec<f32> {
        self.by_threads(input, rayon::current_num_threads())
    }

    /// The same by the calling thread alone, for what is a task among many.
    #[must_use]
    pub fn product_here(&self, input: &[f32]) -> Vec<f32> {
        self.by_threads(input, 1)
    }

    fn by_threads(&self, input: &[f32], threads: usize) -> Vec<f32> {
        let rows = input.len().checked_div(self.inputs).unwrap_or(0);
        let input = &input[..rows * self.inputs];
        match &self.panels {
            Panels::F32(panels) => self.shared(panels, input, rows, threads),
            Panels::Bf16(panels) => self.shared(panels, input, rows, threads),
        }
    }

    fn shared<W: Weight>(&self, panels: &[W], input: &[f32], rows: usize, threads: usize) -> Vec<f32> {
        let (inputs, outputs) = (self.inputs, self.outputs);
        let mut output = vec![0.0; rows * outputs];
        if output.is_empty() || inputs == 0 {
            return output;
        }
        if threads == 1 || rows * panels.len() < SHARED_FROM {
            run(Block { input, inputs, panels, outputs, output: &mut output });
        } else if rows >= ROWS_A_THREAD * threads {
            let each = rows.div_ceil(threads).next_multiple_of(ROWS_A_THREAD);
            let parts = output.par_chunks_mut(each * outputs).zip(input.par_chunks(each * inputs));
            parts.for_each(|(output, input)| run(Block { input, inputs, panels, outputs, output }));
        } else {
            let width = PANEL * outputs.div_ceil(PANEL).div_ceil(threads);
            let part = |(number, panels): (usize, &[W])| {
                let outputs = width.min(outputs - number * width);
                let mut output = vec![0.0; rows * outputs];
                run(Block { input, inputs, panels, outputs, output: &mut output });
                output
            };
            let parts: Vec<Vec<f32>> = panels.par_chunks(width * inputs).enumerate().map(part).collect();
            for (number, part) in parts.iter().enumerate() {
                let width = part.len() / rows;
                let first = number * parts[0].len() / rows;
                for (to, from) in output.chunks_exact_mut(outputs).zip(part.chunks_exact(width)) {
                    to[first..first + width].copy_from_slice(from);
                }
            }
        }
        output
    }
}

fn pack<W: Copy>(weight: &[W], outputs: usize, inputs: usize, zero: W) -> Option<Vec<W>> {
    if weight.len() != outputs.checked_mul(inputs)? {
        return None;
    }
    let mut panels = vec![zero; outputs.div_ceil(PANEL) * inputs * PANEL];
    if inputs > 0 {
        for (panel, rows) in panels.chunks_exact_mut(inputs * PANEL).zip(weight.chunks(PANEL * inputs)) {
            for (column, row) in rows.chunks_exact(inputs).enumerate() {
                for (to, value) in panel.iter_mut().skip(column).step_by(PANEL).zip(row) {
                    *to = *value;
                }
            }
        }
    }
    Some(panels)
}

/// One thread's share: some rows, some panels.
struct Block<'a, W> {
    input: &'a [f32],
    inputs: usize,
    panels: &'a [W],
    outputs: usize,
    output: &'a mut [f32],
}

fn run<W: Weight>(block: Block<'_, W>) {
    Arch::new().dispatch(block);
}

impl<W: Weight> WithSimd for Block<'_, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Rows of a tile; vectors of a panel; vectors of a tile with many rows, and with one or two: what registers hold.
        match S::F32_LANES {
            16 => self.tiles::<S, 8, 2, 2, 2>(simd),
            8 => self.tiles::<S, 6, 4, 2, 4>(simd),
            4 => self.tiles::<S, 6, 8, 2, 4>(simd),
            _ => self.tiles::<S, 2, PANEL, 4, 8>(simd),
        }
    }
}

impl<W: Weight> Block<'_, W> {
    #[inline(always)]
    fn tiles<S: Simd, const ROWS: usize, const PANEL_VECTORS: usize, const MANY: usize, const FEW: usize>(
        self,
        simd: S,
    ) {
        let Self { input, inputs, panels, outputs, output } = self;
        let rows_at_once = ROWS_AT_ONCE / ROWS * ROWS;
        let most = input.len().min(rows_at_once * inputs);
        let height = if MANY < PANEL_VECTORS && input.len() <= PAIRED_ROWS * inputs { 2 } else { ROWS };
        // Rows, interleaved; a panel's sums, row by row; a panel to widen.
        let (mut tiles, mut sums, mut room) = (vec![0.0; most], vec![0.0; most / inputs * PANEL], Vec::new());
        let blocks = input.chunks(rows_at_once * inputs).zip(output.chunks_mut(rows_at_once * outputs));
        for (input, output) in blocks {
            let (tiles, sums) = (&mut tiles[..input.len()], &mut sums[..input.len() / inputs * PANEL]);
            for (rows, tile) in input.chunks(height * inputs).zip(tiles.chunks_mut(height * inputs)) {
                if rows.len() == ROWS * inputs {
                    interleave::<ROWS>(rows, tile);
                } else {
                    let count = rows.len() / inputs;
                    for (row, values) in rows.chunks_exact(inputs).enumerate() {
                        tile.iter_mut().skip(row).step_by(count).zip(values).for_each(|(to, value)| *to = *value);
                    }
                }
            }
            for (number, panel) in panels.chunks_exact(inputs * PANEL).enumerate() {
                sums.fill(0.0);
                let panel = W::wide(panel, &mut room);
                for (part, panel) in panel.chunks(DEPTH * PANEL).enumerate() {
                    let (panel, _) = S::as_simd_f32s(panel);
                    let (panel, _) = panel.as_chunks::<PANEL_VECTORS>();
                    for (rows, sums) in tiles.chunks(height * inputs).zip(sums.chunks_mut(height * PANEL)) {
                        let count = rows.len() / inputs;
                        let rows = &rows[part * DEPTH * count..][..panel.len() * count];
                        match count {
                            1 => tile::<S, 1, PANEL_VECTORS, FEW>(simd, rows, panel, sums),
                            2 => tile::<S, 2, PANEL_VECTORS, FEW>(simd, rows, panel, sums),
                            3 if ROWS >= 3 => tile::<S, 3, PANEL_VECTORS, MANY>(simd, rows, panel, sums),
                            4 if ROWS >= 4 => tile::<S, 4, PANEL_VECTORS, MANY>(simd, rows, panel, sums),
                            5 if ROWS >= 5 => tile::<S, 5, PANEL_VECTORS, MANY>(simd, rows, panel, sums),
                            6 if ROWS >= 6 => tile::<S, 6, PANEL_VECTORS, MANY>(simd, rows, panel, sums),
                            7 if ROWS >= 7 => tile::<S, 7, PANEL_VECTORS, MANY>(simd, rows, panel, sums),
                            _ if ROWS >= 8 => tile::<S, 8, PANEL_VECTORS, MANY>(simd, rows, panel, sums),
                            _ => {}
                        }
                    }
                }
                let columns = number * PANEL..((number + 1) * PANEL).min(outputs);
                for (output, sums) in output.chunks_exact_mut(outputs).zip(sums.chunks_exact(PANEL)) {
                    output[columns.clone()].copy_from_slice(&sums[..columns.len()]);
                }
            }
        }
    }
}

/// Brings what is read at the same time side by side: with as many rows as there are, each a stream of its own, the
/// registers for their addresses run out.
#[inline(always)]
fn interleave<const ROWS: usize>(rows: &[f32], tile: &mut [f32]) {
    let (tile, _) = tile.as_chunks_mut::<ROWS>();
    let inputs = tile.len();
    let rows: [&[f32]; ROWS] = std::array::from_fn(|row| &rows[row * inputs..][..inputs]);
    for (at, values) in tile.iter_mut().enumerate() {
        for (value, row) in values.iter_mut().zip(&rows) {
            *value = row[at];
        }
    }
}

/// Adds to `sums`, `[ROWS, PANEL]`, the products of some interleaved rows with a part of a panel: some of its vectors at a
/// time, so that their sums stay in registers.
#[inline(always)]
fn tile<S: Simd, const ROWS: usize, const PANEL_VECTORS: usize, const VECTORS: usize>(
    simd: S,
    rows: &[f32],
    panel: &[[S::f32s; PANEL_VECTORS]],
    sums: &mut [f32],
) {
    let (rows, _) = rows.as_chunks::<ROWS>();
    let (all, _) = S::as_mut_simd_f32s(sums);
    let (all, _) = all.as_chunks_mut::<PANEL_VECTORS>();
    let Some(all) = all.first_chunk_mut::<ROWS>() else { return };
    for at in (0..PANEL_VECTORS).step_by(VECTORS) {
        let mut sums: [[S::f32s; VECTORS]; ROWS] = std::array::from_fn(|row| std::array::from_fn(|v| all[row][at + v]));
        for (values, weights) in rows.iter().zip(panel) {
            let Some(weights) = weights[at..].first_chunk::<VECTORS>() else { return };
            for (sums, value) in sums.iter_mut().zip(values) {
                let value = simd.splat_f32s(*value);
                for (sum, weights) in sums.iter_mut().zip(weights) {
                    *sum = simd.mul_add_e_f32s(value, *weights, *sum);
                }
            }
        }
        for (to, sums) in all.iter_mut().zip(&sums) {
            to[at..at + VECTORS].copy_from_slice(sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn plain(weight: &[f32], input: &[f32], outputs: usize, inputs: usize) -> Vec<f32> {
        let row = |row: &[f32]| {
            let output = |weights: &[f32]| {
                weights.iter().zip(row).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>() as f32
            };
            weight.chunks(inputs).map(output).collect::<Vec<_>>()
        };
        let product: Vec<f32> = input.chunks(inputs).flat_map(row).collect();
        assert_eq!(product.len(), input.len() / inputs * outputs);
        product
    }

    proptest! {
        #[test]
        fn a_product_is_the_plain_one(rows in 1..40usize, inputs in 1..70usize, outputs in 1..140usize, seed: u32) {
            let (weight, input) = (numbers(outputs * inputs, seed), numbers(rows * inputs, !seed));
            let expected = plain(&weight, &input, outputs, inputs);
            let product = Packed::f32(&weight, outputs, inputs).expect("fits").product(&input);
            for (given, expected) in product.iter().zip(&expected) {
                prop_assert!((given - expected).abs() < 1e-4, "{given} {expected}");
            }
            let short: Vec<bf16> = weight.iter().map(|weight| bf16::from_f32(*weight)).collect();
            let rounded: Vec<f32> = short.iter().map(|weight| weight.to_f32()).collect();
            let product = Packed::bf16(&short, outputs, inputs).expect("fits").product(&input);
            prop_assert_eq!(product, Packed::f32(&rounded, outputs, inputs).expect("fits").product(&input));
        }

        #[test]
        fn a_row_does_not_feel_the_others_nor_the_threads(rows in 2..80usize, threads in 1..4usize, seed: u32) {
            let (inputs, outputs) = (96, 200);
            let packed = Packed::f32(&numbers(outputs * inputs, seed), outputs, inputs).expect("fits");
            let input = numbers(rows * inputs, !seed);
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("starts");
            let together = pool.install(|| packed.product(&input));
            let alone: Vec<f32> = input.chunks(inputs).flat_map(|row| packed.product(row)).collect();
            prop_assert_eq!(together, alone);
        }
    }

    #[test]
    fn a_weight_of_another_size_is_refused() {
        assert!(Packed::f32(&[0.0; 5], 2, 3).is_none());
        assert!(Packed::f32(&[], usize::MAX, 2).is_none());
    }

    #[test]
    fn nothing_in_nothing_out() {
        let packed = Packed::f32(&numbers(6, 1), 2, 3).expect("fits");
        assert_eq!(packed.product(&[]), Vec::<f32>::new());
        assert_eq!(packed.product(&[1.0, 2.0]), Vec::<f32>::new());
        assert_eq!(Packed::f32(&[], 2, 0).expect("fits").product(&[]), Vec::<f32>::new());
    }
}
