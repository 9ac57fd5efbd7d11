//! Both forms of each operation say the same.

use candle_core::{Device, Var};

use super::*;

fn matrix(rows: usize, width: usize, seed: usize) -> Tensor {
    let values: Vec<f32> = (0..rows * width).map(|i| ((i * 37 + seed * 101) % 199) as f32 / 25.0 - 4.0).collect();
    Tensor::from_vec(values, (rows, width), &Device::Cpu).expect("a matrix")
}

fn distance(a: &Tensor, b: &Tensor) -> f32 {
    (a - b).and_then(|d| d.abs()?.flatten_all()?.max(0)?.to_scalar()).expect("a number")
}

fn both(op: impl Fn(Mode) -> Result<Tensor>) {
    let (fused, formula) = (op(Mode::Inference).expect("fused"), op(Mode::Training).expect("formula"));
    assert_eq!(fused.dims(), formula.dims());
    let distance = distance(&fused, &formula);
    assert!(distance < 2e-6, "{distance}");
}

#[test]
fn fused_operations_equal_their_formulas() {
    let (x, y) = (matrix(7, 24, 1), matrix(7, 24, 2));
    let (weight, bias) = (matrix(1, 24, 3).squeeze(0).expect("a row"), matrix(1, 24, 4).squeeze(0).expect("a row"));
    both(|mode| mode.rms_norm(&x, &weight, 1e-6));
    both(|mode| mode.layer_norm(&x, &weight, &bias, 1e-6));
    both(|mode| mode.softmax(&x));
    both(|mode| mode.swiglu(&x, &y));
    both(|mode| mode.gelu_tanh(&x));
    both(|mode| mode.gelu(&x));
    let (angles, norm) = (matrix(7, 4, 5), weight.narrow(0, 0, 8).expect("a head"));
    let joint = matrix(7, 30, 6).narrow(1, 2, 24).expect("a part");
    for x in [&x, &joint] {
        both(|mode| mode.rotary(x, None, (&angles.cos()?, &angles.sin()?)));
        both(|mode| mode.rotary(x, Some((&norm, 1e-6)), (&angles.cos()?, &angles.sin()?)));
        both(|mode| mode.rms_norm(x, &weight, 1e-6));
    }
}

#[test]
fn many_rows_are_each_what_they_are_alone() {
    let (x, weight) = (matrix(600, 24, 1), matrix(1, 24, 3).squeeze(0).expect("a row"));
    let together = Mode::Inference.layer_norm(&x, &weight, &weight, 1e-6).expect("fused");
    for row in [0, 341, 342, 599] {
        let alone = Mode::Inference.layer_norm(&x.narrow(0, row, 1).expect("a row"), &weight, &weight, 1e-6);
        let there = together.narrow(0, row, 1).and_then(|row| row.to_vec2::<f32>()).expect("a row");
        assert_eq!(there, alone.and_then(|row| row.to_vec2::<f32>()).expect("a row"));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (x, weight) = (matrix(3, 8, 1), matrix(1, 6, 2).squeeze(0).expect("a row"));
    let mode = Mode::Inference;
    assert!(mode.rms_norm(&x, &weight, 1e-6).is_err() && mode.layer_norm(&x, &weight, &weight, 1e-6).is_err());
    let angles = matrix(3, 3, 3);
    assert!(mode.rotary(&x, None, (&angles, &angles)).is_err());
    assert!(mode.rotary(&x, Some((&weight, 1e-6)), (&matrix(3, 4, 1), &matrix(3, 4, 1))).is_err());
}

#[test]
fn halves_of_a_joint_product_are_gated_where_they_lie() {
    let joint = matrix(5, 20, 6);
    let (gate, up) = (joint.narrow(1, 0, 10).expect("gate"), joint.narrow(1, 10, 10).expect("up"));
    let here = Mode::Inference.swiglu(&gate, &up).expect("fused");
    let apart =
        Mode::Training.swiglu(&gate.contiguous().expect("gate"), &up.contiguous().expect("up")).expect("formula");
    assert!(distance(&here, &apart) < 2e-6);
    assert!(Mode::Inference.swiglu(&gate, &matrix(5, 9, 1)).is_err());
}

#[test]
fn minus_infinity_has_no_share() {
    let x = Tensor::new(&[[0f32, f32::NEG_INFINITY, 0.0]], &Device::Cpu).expect("a row");
    for mode in [Mode::Inference, Mode::Training] {
        assert_eq!(mode.softmax(&x).and_then(|y| y.to_vec2::<f32>()).expect("shares"), [[0.5, 0.0, 0.5]]);
    }
}

#[test]
fn formulas_have_gradients() {
    let x = Var::from_tensor(&matrix(3, 8, 1)).expect("a variable");
    let weight = matrix(1, 8, 2).squeeze(0).expect("a row");
    let mode = Mode::Training;
    let (turned, norm) = (matrix(3, 2, 3), weight.narrow(0, 0, 4).expect("a head"));
    let results = [
        mode.rms_norm(&x, &weight, 1e-6),
        mode.layer_norm(&x, &weight, &weight, 1e-6),
        mode.softmax(&x),
        mode.swiglu(&x, &matrix(3, 8, 4)),
        mode.swiglu(&matrix(3, 8, 4), &x),
        mode.gelu_tanh(&x),
        mode.gelu(&x),
        turned.cos().and_then(|cos| mode.rotary(&x, None, (&cos, &turned.sin()?))),
        turned.cos().and_then(|cos| mode.rotary(&x, Some((&norm, 1e-6)), (&cos, &turned.sin()?))),
    ];
    for (index, y) in results.into_iter().enumerate() {
        let loss = y.and_then(|y| (y.flatten_all()? * matrix(1, 24, 9).flatten_all()?)?.sum_all()).expect("a loss");
        let gradients = loss.backward().expect("gradients");
        let size = gradients.get(&x).map(|g| g.abs().and_then(|g| g.sum_all()?.to_scalar::<f32>()).expect("a number"));
        assert!(size.is_some_and(|size| size > 1e-3), "operation {index}: {size:?}");
    }
}
