//! What small operations pass back: for each of those in `math`, the gradient of its input from the gradient of its result.
//!
//! Slices of several rows at a time; what a weight gets is added to what is there.

use pulp::{Arch, Simd, WithSimd};

use super::math::{dot, erf, exp, inverse_size, sum};

/// Of `x / sqrt(mean(x²) + eps) * weight`: into `dx`, and added to `dweight`, which is as long as a row.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, dy: &[f32], dx: &mut [f32], dweight: &mut [f32]) {
    struct Rows<'a>(&'a [f32], &'a [f32], f32, &'a [f32], &'a mut [f32], &'a mut [f32]);
    impl WithSimd for Rows<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self(x, weight, eps, dy, dx, dweight) = self;
            let width = weight.len();
            let rows = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width));
            for ((x, dy), dx) in rows {
                let scale = inverse_size(x, eps);
                // `dx` first holds what passes the weight.
                for ((dx, dy), weight) in dx.iter_mut().zip(dy).zip(weight) {
                    *dx = dy * weight;
                }
                let common = dot(dx, x) * scale * scale * scale / width as f32;
                for (((dx, x), dy), dweight) in dx.iter_mut().zip(x).zip(dy).zip(dweight.iter_mut()) {
                    *dx = *dx * scale - common * x;
                    *dweight += dy * (x * scale);
                }
            }
        }
    }
    if !weight.is_empty() {
        Arch::new().dispatch(Rows(x, weight, eps, dy, dx, dweight));
    }
}

/// Of `(x - mean) / sqrt(variance + eps) * weight + bias`: into `dx`, and added to `dweight` and `dbias`.
pub fn layer_norm(
    x: &[f32],
    (weight, eps): (&[f32], f32),
    dy: &[f32],
    dx: &mut [f32],
    (dweight, dbias): (&mut [f32], &mut [f32]),
) {
    struct Rows<'a>(&'a [f32], (&'a [f32], f32), &'a [f32], &'a mut [f32], (&'a mut [f32], &'a mut [f32]));
    impl WithSimd for Rows<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self(x, (weight, eps), dy, dx, (dweight, dbias)) = self;
            let width = weight.len();
            let mut normed = vec![0.0; width];
            let rows = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width));
            for ((x, dy), dx) in rows {
                let mean = sum(x, |x| x) / width as f32;
                normed.iter_mut().zip(x).for_each(|(normed, x)| *normed = x - mean);
                let scale = inverse_size(&normed, eps);
                for ((normed, dx), (dy, weight)) in normed.iter_mut().zip(dx.iter_mut()).zip(dy.iter().zip(weight)) {
                    *normed *= scale;
                    *dx = dy * weight;
                }
                let (mean, along) = (sum(dx, |dx| dx) / width as f32, dot(dx, &normed) / width as f32);
                for ((dx, normed), ((dy, dweight), dbias)) in
                    dx.iter_mut().zip(&normed).zip(dy.iter().zip(dweight.iter_mut()).zip(dbias.iter_mut()))
                {
                    *dx = scale * (*dx - mean - normed * along);
                    *dweight += dy * normed;
                    *dbias += dy;
                }
            }
        }
    }
    if !weight.is_empty() {
        Arch::new().dispatch(Rows(x, (weight, eps), dy, dx, (dweight, dbias)));
    }
}

/// Of a rotation of the two halves of each head of one row; it is the rotation back.
pub fn rotary(dy: &[f32], (cos, sin): (&[f32], &[f32]), dx: &mut [f32]) {
    struct Rows<'a>(&'a [f32], (&'a [f32], &'a [f32]), &'a mut [f32]);
    impl WithSimd for Rows<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self(dy, (cos, sin), dx) = self;
            let half = cos.len();
            for (dy, dx) in dy.chunks_exact(2 * half).zip(dx.chunks_exact_mut(2 * half)) {
                let ((dy, dy2), (dx, dx2)) = (dy.split_at(half), dx.split_at_mut(half));
                for (((dy, dy2), (dx, dx2)), (cos, sin)) in
                    dy.iter().zip(dy2).zip(dx.iter_mut().zip(dx2)).zip(cos.iter().zip(sin))
                {
                    (*dx, *dx2) = (dy * cos + dy2 * sin, dy2 * cos - dy * sin);
                }
            }
        }
    }
    if !cos.is_empty() {
        Arch::new().dispatch(Rows(dy, (cos, sin), dx));
    }
}

/// Of `silu(gate) * up`, into `dgate` and `dup`.
pub fn swiglu(gate: &[f32], up: &[f32], dy: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
    struct Each<'a>(&'a [f32], &'a [f32], &'a [f32], &'a mut [f32], &'a mut [f32]);
    impl WithSimd for Each<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self(gate, up, dy, dgate, dup) = self;
            for (((gate, up), dy), (dgate, dup)) in gate.iter().zip(up).zip(dy).zip(dgate.iter_mut().zip(dup)) {
                let open = 1.0 / (1.0 + exp(-gate));
                *dup = dy * gate * open;
                *dgate = dy * up * open * (gate * (1.0 - open) + 1.0);
            }
        }
    }
    Arch::new().dispatch(Each(gate, up, dy, dgate, dup));
}

/// Of the tanh form of GELU.
pub fn gelu_tanh(x: &[f32], dy: &[f32], dx: &mut [f32]) {
    struct Each<'a>(&'a [f32], &'a [f32], &'a mut [f32]);
    impl WithSimd for Each<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            /// 2 sqrt(2/pi)
            const SCALE: f32 = 1.595_769;
            for ((x, dy), dx) in self.0.iter().zip(self.1).zip(self.2) {
                let inner = (0.044_715 * x * x).mul_add(*x, *x);
                let open = 1.0 / (1.0 + exp(-SCALE * inner));
                let slope = SCALE * (0.134_145 * x * x + 1.0);
                *dx = dy * open * (x * (1.0 - open) * slope + 1.0);
            }
        }
    }
    Arch::new().dispatch(Each(x, dy, dx));
}

/// Of GELU itself.
pub fn gelu(x: &[f32], dy: &[f32], dx: &mut [f32]) {
    struct Each<'a>(&'a [f32], &'a [f32], &'a mut [f32]);
    impl WithSimd for Each<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            /// 1 / sqrt(2 pi)
            const DENSITY: f32 = 0.398_942_3;
            for ((x, dy), dx) in self.0.iter().zip(self.1).zip(self.2) {
                let below = 0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
                *dx = dy * (x * DENSITY * exp(-0.5 * x * x) + below);
            }
        }
    }
    Arch::new().dispatch(Each(x, dy, dx));
}

/// Of a softmax of which `shares` came, in rows of `width`: `ds`, which holds the gradient of the shares, becomes that of the scores.
pub fn softmax_rows(shares: &[f32], ds: &mut [f32], width: usize) {
    struct Rows<'a>(&'a [f32], &'a mut [f32], usize);
    impl WithSimd for Rows<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self(shares, ds, width) = self;
            for (shares, ds) in shares.chunks_exact(width).zip(ds.chunks_exact_mut(width)) {
                let mean = dot(shares, ds);
                ds.iter_mut().zip(shares).for_each(|(ds, share)| *ds = share * (*ds - mean));
            }
        }
    }
    if width > 0 {
        Arch::new().dispatch(Rows(shares, ds, width));
    }
}

/// Of the logarithm of the share that a softmax of `logits` gives to `target`, into `dx`.
pub fn log_probability(logits: &[f32], target: usize, dy: f32, dx: &mut [f32]) {
    struct Row<'a>(&'a [f32], usize, f32, &'a mut [f32]);
    impl WithSimd for Row<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self(logits, target, dy, dx) = self;
            dx.copy_from_slice(logits);
            let share = -dy / super::math::softmax(dx);
            dx.iter_mut().for_each(|dx| *dx *= share);
            if let Some(dx) = dx.get_mut(target) {
                *dx += dy;
            }
        }
    }
    Arch::new().dispatch(Row(logits, target, dy, dx));
}
