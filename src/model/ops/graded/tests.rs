//! What these operations give and pass back is what candle's formulas give in f64.

use std::sync::Arc;

use candle_core::Var;

use super::*;
use crate::model::{Attend as _, Branch, Causal, Mode, log_probabilities as probabilities};

fn values(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + seed * 101 + (i * i) % 53) % 199) as f32 / 60.0 - 1.6).collect()
}

fn variable(shape: &[usize], seed: usize) -> Var {
    let count = shape.iter().product();
    Var::from_tensor(&Tensor::from_vec(values(count, seed), shape, &Device::Cpu).expect("a tensor"))
        .expect("a variable")
}

fn double(variable: &Var) -> Var {
    Var::from_tensor(&variable.to_dtype(DType::F64).expect("doubles")).expect("a variable")
}

fn floats_of(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).and_then(|tensor| tensor.flatten_all()?.to_vec1()).expect("numbers")
}

/// The same operation on f32 and on f64: results, and gradients of a loss that weighs every result differently.
fn same(name: &str, shapes: &[&[usize]], op: impl Fn(&[Tensor]) -> Result<Tensor>) {
    let singles: Vec<Var> = shapes.iter().zip(1..).map(|(shape, seed)| variable(shape, seed)).collect();
    let doubles: Vec<Var> = singles.iter().map(double).collect();
    let run = |variables: &[Var]| {
        let tensors: Vec<Tensor> = variables.iter().map(|variable| variable.as_tensor().clone()).collect();
        let y = op(&tensors).expect(name);
        let weights =
            Tensor::from_vec(values(y.elem_count(), 9), y.shape(), &Device::Cpu).and_then(|w| w.to_dtype(y.dtype()));
        let loss = weights.and_then(|weights| (&y * weights)?.sum_all()).expect("a loss");
        let store = loss.backward().expect("goes back");
        let of = |variable: &Var| floats_of(store.get(variable).expect("a gradient"));
        (floats_of(&y), variables.iter().map(of).collect::<Vec<_>>())
    };
    let ((y, gradients), (expected_y, expected)) = (run(&singles), run(&doubles));
    near(name, &y, &expected_y);
    for (gradient, expected) in gradients.iter().zip(&expected) {
        near(name, gradient, expected);
    }
}

fn near(name: &str, given: &[f64], expected: &[f64]) {
    assert_eq!(given.len(), expected.len(), "{name}");
    let size = expected.iter().fold(1.0_f64, |size, x| size.max(x.abs()));
    for (given, expected) in given.iter().zip(expected) {
        assert!((given - expected).abs() < 2e-5 * size, "{name}: {given} for {expected}");
    }
}

#[test]
fn gradients_are_those_of_the_formulas() {
    const T: Mode = Mode::Training;
    same("rms norm", &[&[7, 24], &[24]], |x| T.rms_norm(&x[0], &x[1], 1e-6));
    same("rms norm of heads", &[&[5, 3, 8], &[8]], |x| T.rms_norm(&x[0], &x[1], 1e-6));
    same("layer norm", &[&[7, 24], &[24], &[24]], |x| T.layer_norm(&x[0], &x[1], &x[2], 1e-6));
    same("swiglu", &[&[7, 24], &[7, 24]], |x| T.swiglu(&x[0], &x[1]));
    same("gelu", &[&[7, 24]], |x| T.gelu(&x[0]));
    same("tanh gelu", &[&[7, 24]], |x| T.gelu_tanh(&x[0]));
    let angles = |x: &Tensor| {
        let angles = Tensor::from_vec(values(28, 5), (7, 4), &Device::Cpu)?.to_dtype(x.dtype())?;
        Ok::<_, candle_core::Error>((angles.cos()?, angles.sin()?))
    };
    same("rotary", &[&[7, 24]], |x| angles(&x[0]).and_then(|(cos, sin)| T.rotary(&x[0], None, (&cos, &sin))));
    same("a part's rotary", &[&[7, 30]], |x| {
        angles(&x[0]).and_then(|(cos, sin)| T.rotary(&x[0].narrow(1, 3, 24)?, None, (&cos, &sin)))
    });
    same("normed rotary", &[&[7, 24], &[8]], |x| {
        angles(&x[0]).and_then(|(cos, sin)| T.rotary(&x[0], Some((&x[1], 1e-6)), (&cos, &sin)))
    });
    same("log probabilities", &[&[6, 40]], |x| probabilities(&x[0], &[0, 39, 7, 7, 12, 30]));
}

#[test]
fn a_frozen_weight_gets_no_gradient() {
    let (x, weight) = (variable(&[5, 6], 1), variable(&[4, 6], 2));
    for frozen in [false, true] {
        let y = product(&x, &weight, frozen).and_then(|y| y.sqr()?.sum_all()).expect("a loss");
        let expected = x.matmul(&weight.t().expect("turned")).and_then(|y| y.sqr()?.sum_all()).expect("a loss");
        let (store, reference) = (y.backward().expect("back"), expected.backward().expect("back"));
        near(
            "input",
            &floats_of(store.get(&x).expect("a gradient")),
            &floats_of(reference.get(&x).expect("a gradient")),
        );
        match store.get(&weight) {
            Some(gradient) => {
                assert!(!frozen);
                near("weight", &floats_of(gradient), &floats_of(reference.get(&weight).expect("a gradient")));
            }
            None => assert!(frozen),
        }
    }
}

#[test]
fn a_bias_is_added_to_each_row() {
    let (x, width) = (variable(&[5, 6], 1), variable(&[6], 2));
    let y = bias(&x, &width).expect("adds");
    near("sum", &floats_of(&y), &floats_of(&x.broadcast_add(&width).expect("adds")));
    let store = y.sqr().and_then(|y| y.sum_all()?.backward()).expect("back");
    let expected = (y.detach() * 2.0).and_then(|y| y.sum(0)).expect("a sum");
    near("bias", &floats_of(store.get(&width).expect("a gradient")), &floats_of(&expected));
    assert!(bias(&x, &variable(&[5], 1)).is_err());
}

/// Runs of tokens after one another and after earlier ones, one of them longer than a block.
fn branches() -> Vec<Branch> {
    let run = |tokens, after| Branch { tokens, after };
    vec![run(9, None), run(70, Some(0)), run(3, Some(1)), run(5, Some(0)), run(0, None), run(4, None)]
}

#[test]
fn attention_over_shared_beginnings_is_that_of_the_formula() {
    let rows = branches().iter().map(|branch| branch.tokens).sum::<usize>();
    same("causal", &[&[rows, 4, 8], &[rows, 2, 8], &[rows, 2, 8]], |x| {
        Causal::tree(&branches(), Mode::Training).attend(0, &x[0], &x[1], &x[2])
    });
    let run = |patches, layers| crate::model::ops::Run { patches, layers };
    same("full", &[&[86, 12], &[86, 12], &[86, 12]], |x| {
        Mode::Training.full_attention((&x[0], &x[1], &x[2]), 3, &[run(4, 3), run(70, 1), run(4, 1)])
    });
}

#[test]
fn a_shared_beginning_is_seen_by_each_that_goes_on_from_it() {
    // Two sequences with the same first five tokens, apart and as a tree.
    let part = |x: &Tensor, from, rows| x.narrow(0, from, rows).expect("rows");
    let all = |heads, seed| variable(&[12, heads, 8], seed).as_tensor().clone();
    let (query, key, value) = (all(4, 1), all(2, 2), all(2, 3));
    let apart = |x: &Tensor| Tensor::cat(&[&part(x, 0, 9), &part(x, 0, 5), &part(x, 9, 3)], 0).expect("joined");
    let sequences = Causal::new(&[9, 8], Mode::Training).attend(0, &apart(&query), &apart(&key), &apart(&value));
    let run = |tokens, after| Branch { tokens, after };
    let tree = [run(5, None), run(4, Some(0)), run(3, Some(0))];
    let shared = Causal::tree(&tree, Mode::Training).attend(0, &query, &key, &value).expect("reads");
    let sequences = sequences.expect("reads");
    near("first", &floats_of(&part(&shared, 0, 9)), &floats_of(&part(&sequences, 0, 9)));
    near("second", &floats_of(&part(&shared, 9, 3)), &floats_of(&part(&sequences, 14, 3)));
}

#[test]
fn what_does_not_fit_is_refused() {
    let x = |shape: &[usize]| variable(shape, 1).as_tensor().clone();
    let piece =
        |rows, past: Option<std::ops::Range<usize>>| Piece { rows, past: past.into_iter().collect(), causal: true };
    let pieces = |pieces: Vec<Piece>| -> Arc<[Piece]> { pieces.into() };
    for (query, key, pieces) in [
        (x(&[4, 3, 8]), x(&[4, 2, 8]), pieces(vec![piece(0..4, None)])),
        (x(&[4, 2, 8]), x(&[4, 2, 6]), pieces(vec![piece(0..4, None)])),
        (x(&[4, 2, 8]), x(&[4, 2, 8]), pieces(vec![piece(0..3, None)])),
        (x(&[4, 2, 8]), x(&[4, 2, 8]), pieces(vec![piece(0..4, Some(2..9))])),
    ] {
        assert!(attention(&query, &key, &key, &pieces).is_err());
    }
    assert!(log_probabilities(&x(&[2, 3]), vec![0, 3]).is_err());
    assert!(log_probabilities(&x(&[2, 3]), vec![0]).is_err());
    assert!(product(&x(&[2, 3]), &x(&[2, 4]), false).is_err());
}
