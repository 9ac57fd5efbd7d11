//! Training mode: every weight learns, and in the right direction.

use std::path::Path;

use candle_core::{DType, Device, Tensor, Var};
use paravt::model::{Causal, LoadOptions, Mode, Qwen3Vl, TextInput, log_probabilities};

use super::golden::{Golden, fixture, load, tiny_folder};

/// A loss that reads every logit, from a prompt with images and a video.
fn loss(model: &Qwen3Vl, golden: &str) -> Tensor {
    let prompt = Golden::read(golden).case("both").prompt(model);
    let outputs: Vec<u32> = (0..prompt.tokens.len() as u32).collect();
    let vision = prompt.vision(0);
    let input = TextInput { tokens: &prompt.tokens, positions: &prompt.positions, vision: &vision, outputs: &outputs };
    let logits = model.forward(&input, &mut Causal::new(&[prompt.tokens.len()], model.mode())).expect("logits");
    logits.log_sum_exp(1).and_then(|sum| sum - logits.mean(1)?).and_then(|loss| loss.sqr()?.mean_all()).expect("a loss")
}

fn number(tensor: &Tensor) -> f64 {
    tensor.to_dtype(DType::F64).and_then(|tensor| tensor.to_scalar()).expect("a number")
}

#[test]
fn every_weight_has_a_gradient() {
    for (folder, golden) in [(tiny_folder(), "tiny"), (fixture("random"), "random")] {
        let model = load(&folder, Mode::Training);
        assert!(!model.variables().is_empty());
        let gradients = loss(&model, golden).backward().expect("gradients");
        for (name, variable) in model.variables() {
            let gradient = gradients.get(variable).unwrap_or_else(|| panic!("{name} has no gradient"));
            assert_eq!(gradient.dims(), variable.dims(), "{name}");
            let size = number(&gradient.abs().and_then(|g| g.sum_all()).expect("a sum"));
            assert!(size > 1e-7 && size.is_finite(), "{name}: {size}");
        }
        let file = std::fs::read(folder.join("model.safetensors")).expect("reads");
        let stored = safetensors_names(&file);
        let mut names: Vec<&str> = model.variables().iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, stored, "variables are the checkpoint's tensors");
    }
    assert!(load(&tiny_folder(), Mode::Inference).variables().is_empty());
}

fn safetensors_names(file: &[u8]) -> Vec<String> {
    let length = u64::from_le_bytes(file[..8].try_into().expect("a prefix")) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).expect("a header");
    let mut names: Vec<String> = header.as_object().expect("an object").keys().cloned().collect();
    names.retain(|name| name != "__metadata__");
    names.sort();
    names
}

/// A model in double precision.
fn exact(folder: &Path) -> Qwen3Vl {
    let options = LoadOptions { dtype: DType::F64, ..LoadOptions::cpu(Mode::Training) };
    Qwen3Vl::load(folder, &options).expect("loads")
}

fn doubles(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).and_then(|tensor| tensor.flatten_all()?.to_vec1()).expect("numbers")
}

/// Every weight of both models: what its gradient says of a step is what the step does, in f64 and from the formulas.
#[test]
fn gradients_are_those_of_finite_differences() {
    for (folder, golden) in [(tiny_folder(), "tiny"), (fixture("random"), "random")] {
        let model = exact(&folder);
        let gradients = loss(&model, golden).backward().expect("gradients");
        for (number, (name, variable)) in model.variables().iter().enumerate() {
            let gradient = gradients.get(variable).unwrap_or_else(|| panic!("{name} has no gradient"));
            // A direction that is not the gradient's: half of it, and signs that have nothing to do with it.
            let signs = (0..variable.elem_count()).map(|i| if (i * 7 + i / 5 + number) % 3 == 0 { 1.0 } else { -0.5 });
            let signs =
                Tensor::from_iter(signs.collect::<Vec<f64>>(), &Device::Cpu).and_then(|s| s.reshape(variable.shape()));
            let length = |x: &Tensor| doubles(x).iter().map(|x| x * x).sum::<f64>().sqrt();
            let signs = signs.expect("signs");
            let towards = ((gradient / length(gradient)).expect("a direction")
                + (&signs / length(&signs)).expect("a direction"))
            .expect("a direction");
            let expected: f64 = doubles(gradient).iter().zip(doubles(&towards)).map(|(g, d)| g * d).sum();
            let step = 1e-5;
            let slope = (at(&model, golden, variable, &towards, step) - at(&model, golden, variable, &towards, -step))
                / (2.0 * step);
            let wrong = (slope - expected).abs() / expected.abs().max(1e-3);
            assert!(wrong < 1e-4, "{name}: {slope} where the gradient says {expected}");
        }
    }
}

/// One of the directions of `make_golden.py`.
fn direction(count: usize, kind: usize) -> impl Iterator<Item = f64> {
    (0..count as i64).map(move |i| match kind {
        0 => (i * 7 + i / 5) % 11 - 5,
        1 => (i * i) % 13 - 6,
        _ => (i % 2) * 2 - 1,
    } as f64)
}

/// One step on two prompts, the second halves of which are to be written: loss and gradients are those of transformers and
/// PyTorch.
#[test]
fn a_step_is_pytorchs() {
    let text = std::fs::read(fixture("gradients.json")).expect("golden gradients");
    let expected: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    for (folder, golden) in [(tiny_folder(), "tiny"), (fixture("random"), "random")] {
        let (model, expected) = (load(&folder, Mode::Training), &expected[golden]);
        let parts = ["sixteen", "both"].map(|case| {
            let prompt = Golden::read(golden).case(case).prompt(&model);
            let half = prompt.tokens.len() / 2;
            let outputs: Vec<u32> = (half as u32 - 1..prompt.tokens.len() as u32 - 1).collect();
            let logits = prompt.logits(&model, &outputs);
            log_probabilities(&logits, &prompt.tokens[half..]).expect("probabilities")
        });
        let loss = Tensor::cat(&parts, 0).and_then(|p| p.mean_all()?.neg()).expect("a loss");
        let wanted = expected["loss"].as_f64().expect("a loss");
        assert!((number(&loss) - wanted).abs() < 1e-4 * wanted, "{golden}: {} for {wanted}", number(&loss));
        let gradients = loss.backward().expect("back");
        for (name, variable) in model.variables() {
            let gradient = doubles(gradients.get(variable).expect("a gradient"));
            let wanted: Vec<f64> = serde_json::from_value(expected["gradients"][name].clone()).expect("numbers");
            let length = gradient.iter().map(|x| x * x).sum::<f64>().sqrt();
            assert!((length - wanted[0]).abs() < 1e-4 * wanted[0], "{name}: {length} for {}", wanted[0]);
            for kind in 0..3 {
                let along: f64 = gradient.iter().zip(direction(gradient.len(), kind)).map(|(g, d)| g * d).sum();
                // As far as a difference of 1e-4 of the gradient's length can change it.
                let most = direction(gradient.len(), kind).map(|d| d * d).sum::<f64>().sqrt() * 1e-4 * length;
                assert!((along - wanted[kind + 1]).abs() < most, "{name}, {kind}: {along} for {}", wanted[kind + 1]);
            }
        }
    }
}

/// What is computed in f32, in one pass an operation, is what the formulas give in f64.
#[test]
fn fused_gradients_are_the_exact_ones() {
    for (folder, golden) in [(tiny_folder(), "tiny"), (fixture("random"), "random")] {
        let (fused, exact) = (load(&folder, Mode::Training), exact(&folder));
        let (given, expected) = (loss(&fused, golden), loss(&exact, golden));
        assert!((number(&given) - number(&expected)).abs() < 1e-5 * number(&expected));
        let (given, expected) = (given.backward().expect("back"), expected.backward().expect("back"));
        for ((name, variable), (_, exact)) in fused.variables().iter().zip(exact.variables()) {
            let (given, expected) =
                (doubles(given.get(variable).expect("one")), doubles(expected.get(exact).expect("one")));
            let size = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
            let wrong = given.iter().zip(&expected).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
            assert!(wrong < 1e-4 * size, "{name}: off by {} of its length", wrong / size);
        }
    }
}

/// The loss with a variable moved along a direction; the variable is put back.
fn at(model: &Qwen3Vl, golden: &str, variable: &Var, direction: &Tensor, step: f64) -> f64 {
    let before = variable.as_tensor().copy().expect("a copy");
    let moved = (direction * step).and_then(|moved| &before + moved).expect("moved");
    variable.set(&moved).expect("set");
    let loss = number(&loss(model, golden));
    variable.set(&before).expect("set");
    loss
}
