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

/// `e` to the power of `x`, within 2.5e-7 of the result where that is a normal number; below it is 0, and above 88.37
/// infinity. A polynomial of what is left of the argument after whole powers of two (Cephes' coefficients), without branches,
/// so that loops of it become vector code.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts, so that the difference below is exact.
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let clamped = x.clamp(-87.336_54, 88.376_26);
    let power = (clamped * LOG2_E).round_ties_even();
    let rest = power.mul_add(-LN_2_HIGH, clamped);
    let rest = power.mul_add(-LN_2_LOW, rest);
    let mut sum = 1.987_569_1e-4_f32;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        sum = sum.mul_add(rest, coefficient);
    }
    let sum = (rest * rest).mul_add(sum, rest) + 1.0;
    // The exponent's bits; the clamp keeps it in range.
    let scale = f32::from_bits(((power as i32 + 127) as u32) << 23);
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
