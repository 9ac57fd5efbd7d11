//! Functions of many numbers at once.

use pulp::{Arch, Simd, WithSimd};

/// `gate * sigmoid(gate) * up`, elementwise: the gate of SwiGLU. What is longer than the others is left out.
pub fn silu_mul(gate: &[f32], up: &[f32], output: &mut [f32]) {
    struct SiluMul<'a>(&'a [f32], &'a [f32], &'a mut [f32]);
    impl WithSimd for SiluMul<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            for ((gate, up), output) in self.0.iter().zip(self.1).zip(self.2) {
                *output = gate / (1.0 + exp(-gate)) * up;
            }
        }
    }
    Arch::new().dispatch(SiluMul(gate, up, output));
}

/// `x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x³))`, elementwise: the tanh form of GELU. What is longer is left out.
pub fn gelu_tanh(input: &[f32], output: &mut [f32]) {
    struct GeluTanh<'a>(&'a [f32], &'a mut [f32]);
    impl WithSimd for GeluTanh<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            /// 2 sqrt(2/pi)
            const SCALE: f32 = 1.595_769;
            for (x, output) in self.0.iter().zip(self.1) {
                let inner = (0.044_715 * x * x).mul_add(*x, *x);
                *output = x / (1.0 + exp(-SCALE * inner));
            }
        }
    }
    Arch::new().dispatch(GeluTanh(input, output));
}

/// `x (1 + erf(x / sqrt(2))) / 2`, elementwise: GELU itself. What is longer is left out.
pub fn gelu(input: &[f32], output: &mut [f32]) {
    struct Gelu<'a>(&'a [f32], &'a mut [f32]);
    impl WithSimd for Gelu<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            for (x, output) in self.0.iter().zip(self.1) {
                *output = 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
            }
        }
    }
    Arch::new().dispatch(Gelu(input, output));
}

/// The error function, within 2e-7: formula 7.1.26 of Abramowitz and Stegun.
#[inline(always)]
pub(super) fn erf(x: f32) -> f32 {
    let size = x.abs();
    let t = 1.0 / 0.327_591_1_f32.mul_add(size, 1.0);
    let mut sum = 1.061_405_4_f32;
    for coefficient in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        sum = sum.mul_add(t, coefficient);
    }
    (1.0 - sum * t * exp(-size * size)).copysign(x)
}

/// `x / sqrt(mean(x²) + eps) * weight`.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, output: &mut [f32]) {
    struct RmsNorm<'a>(&'a [f32], &'a [f32], f32, &'a mut [f32]);
    impl WithSimd for RmsNorm<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self(x, weight, eps, output) = self;
            let scale = inverse_size(x, eps);
            for ((x, weight), output) in x.iter().zip(weight).zip(output) {
                *output = x * (scale * weight);
            }
        }
    }
    Arch::new().dispatch(RmsNorm(x, weight, eps, output));
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias`.
pub fn layer_norm(x: &[f32], (weight, bias): (&[f32], &[f32]), eps: f32, output: &mut [f32]) {
    struct LayerNorm<'a>(&'a [f32], (&'a [f32], &'a [f32]), f32, &'a mut [f32]);
    impl WithSimd for LayerNorm<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self(x, (weight, bias), eps, output) = self;
            let mean = sum(x, |x| x) / x.len() as f32;
            for (x, output) in x.iter().zip(output.iter_mut()) {
                *output = x - mean;
            }
            let scale = inverse_size(output, eps);
            for ((output, weight), bias) in output.iter_mut().zip(weight).zip(bias) {
                *output = (*output * scale).mul_add(*weight, *bias);
            }
        }
    }
    Arch::new().dispatch(LayerNorm(x, (weight, bias), eps, output));
}

/// Turns the two halves of each head of a row against each other. `cos` and `sin` are half a head long. With a norm (a
/// head's weight, and epsilon), each head is normed as by [`rms_norm`] before.
pub fn rotary(x: &[f32], norm: Option<(&[f32], f32)>, (cos, sin): (&[f32], &[f32]), output: &mut [f32]) {
    struct Rotary<'a>(&'a [f32], Option<(&'a [f32], f32)>, (&'a [f32], &'a [f32]), &'a mut [f32]);
    impl WithSimd for Rotary<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self(x, norm, (cos, sin), output) = self;
            let width = 2 * cos.len();
            for (x, output) in x.chunks_exact(width).zip(output.chunks_exact_mut(width)) {
                output.copy_from_slice(x);
                if let Some((weight, eps)) = norm {
                    let scale = inverse_size(x, eps);
                    for (output, weight) in output.iter_mut().zip(weight) {
                        *output *= scale * weight;
                    }
                }
                let (first, second) = output.split_at_mut(cos.len());
                for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
        }
    }
    if !cos.is_empty() {
        Arch::new().dispatch(Rotary(x, norm, (cos, sin), output));
    }
}

/// The softmax of each row of so many scores, in place.
pub fn softmax_rows(scores: &mut [f32], width: usize) {
    struct Rows<'a>(&'a mut [f32], usize);
    impl WithSimd for Rows<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            for row in self.0.chunks_exact_mut(self.1) {
                let share = 1.0 / softmax(row);
                row.iter_mut().for_each(|score| *score *= share);
            }
        }
    }
    if width > 0 {
        Arch::new().dispatch(Rows(scores, width));
    }
}

/// Exponentials of the scores less the largest, in place, and their sum: a softmax that is not divided yet.
#[inline(always)]
pub fn softmax(scores: &mut [f32]) -> f32 {
    let mut most = [f32::NEG_INFINITY; 16];
    let (whole, rest) = scores.as_chunks_mut::<16>();
    for part in whole.iter() {
        for (most, score) in most.iter_mut().zip(part) {
            *most = if *score > *most { *score } else { *most };
        }
    }
    let most = most.iter().chain(rest.iter()).copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0; 16];
    for part in whole {
        for (sum, score) in sums.iter_mut().zip(part) {
            *score = exp(*score - most);
            *sum += *score;
        }
    }
    for (sum, score) in sums.iter_mut().zip(rest) {
        *score = exp(*score - most);
        *sum += *score;
    }
    sums.iter().sum()
}

/// `1 / sqrt(mean(x²) + eps)`
#[inline(always)]
pub(super) fn inverse_size(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum(x, |x| x * x) / x.len() as f32 + eps).sqrt()
}

/// In sixteen parts that are added up at the end, on every machine.
#[inline(always)]
pub(super) fn sum(x: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0; 16];
    let (whole, rest) = x.as_chunks::<16>();
    for part in whole {
        for (sum, x) in sums.iter_mut().zip(part) {
            *sum += of(*x);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += of(*x);
    }
    sums.iter().sum()
}

/// The sum of products, in sixteen parts as [`sum`].
#[inline(always)]
pub(super) fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut sums = [0.0; 16];
    let ((whole, rest), (whole_y, rest_y)) = (x.as_chunks::<16>(), y.as_chunks::<16>());
    for (x, y) in whole.iter().zip(whole_y) {
        for (sum, (x, y)) in sums.iter_mut().zip(x.iter().zip(y)) {
            *sum = x.mul_add(*y, *sum);
        }
    }
    for (sum, (x, y)) in sums.iter_mut().zip(rest.iter().zip(rest_y)) {
        *sum = x.mul_add(*y, *sum);
    }
    sums.iter().sum()
}

/// The logarithm of the share that a softmax of `logits` gives to `target`: 0 or less. Minus infinity for what is not there.
pub fn log_probability(logits: &[f32], target: usize) -> f32 {
    struct Row<'a>(&'a [f32]);
    impl WithSimd for Row<'_> {
        type Output = (f32, f32);
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> (f32, f32) {
            let most = self.0.iter().copied().fold(f32::NEG_INFINITY, |most, x| if x > most { x } else { most });
            (most, sum(self.0, |x| exp(x - most)))
        }
    }
    let (most, sum) = Arch::new().dispatch(Row(logits));
    logits.get(target).map_or(f32::NEG_INFINITY, |logit| logit - most - sum.ln())
}

/// `e` to the power of `x`, within 2.5e-7 of the result where that is a normal number; below it is 0, and above 88.37
/// infinity. A polynomial of what is left of the argument after whole powers of two (Cephes' coefficients), without branches,
/// so that loops of it become vector code.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts, so that the difference below is exact.
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Adding it rounds to a whole number, to even where two are as near, and leaves that in the lowest bits. A conversion to
    // an integer would be checked number by number.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.336_54, 88.376_26);
    let rounded = clamped.mul_add(LOG2_E, ROUND);
    let power = rounded - ROUND;
    let rest = power.mul_add(-LN_2_HIGH, clamped);
    let rest = power.mul_add(-LN_2_LOW, rest);
    let mut sum = 1.987_569_1e-4_f32;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        sum = sum.mul_add(rest, coefficient);
    }
    let sum = (rest * rest).mul_add(sum, rest) + 1.0;
    // The exponent's bits; the clamp keeps it in range. What is above them is shifted out.
    let scale = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    let result = sum * scale;
    let result = if x < -87.336_54 { 0.0 } else { result };
    let result = if x > 88.376_26 { f32::INFINITY } else { result };
    if x.is_nan() { x } else { result }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_exponential_is_the_one_of_the_library(x in -90.0..90.0_f32) {
            let (given, expected) = (exp(x), x.exp());
            if !(-87.336_54..=88.376_26).contains(&x) {
                prop_assert!(given == 0.0 || given == f32::INFINITY);
            } else {
                prop_assert!((given - expected).abs() <= expected * 2.5e-7, "{x}: {given} {expected}");
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        assert!(exp(f32::NAN).is_nan());
        assert_eq!([f32::NEG_INFINITY, f32::INFINITY, 0.0].map(exp), [0.0, f32::INFINITY, 1.0]);
    }

    #[test]
    fn activations_are_what_their_formulas_say() {
        let (input, up) = ([-100.0, -2.0, 0.0, 0.5, 3.0, 100.0], [1.0, 1.0, 5.0, -2.0, 2.0, 3.0]);
        let (mut silu, mut gelu) = ([f32::NAN; 6], [f32::NAN; 6]);
        silu_mul(&input, &up, &mut silu);
        gelu_tanh(&input, &mut gelu);
        for (at, x) in input.into_iter().enumerate() {
            let (x, up) = (f64::from(x), f64::from(up[at]));
            let expected = x / (1.0 + (-x).exp()) * up;
            assert!((f64::from(silu[at]) - expected).abs() <= 1e-6 * expected.abs() + 1e-30, "{x}: {}", silu[at]);
            let tanh = (std::f64::consts::FRAC_2_PI.sqrt() * (x + 0.044_715 * x.powi(3))).tanh();
            let expected = 0.5 * x * (1.0 + tanh);
            assert!((f64::from(gelu[at]) - expected).abs() <= 1e-5 * expected.abs().max(1e-3), "{x}: {}", gelu[at]);
        }
    }
}
