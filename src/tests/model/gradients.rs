//! Training mode: every weight learns, and in the right direction.

use candle_core::{Tensor, Var};
use paravt::model::{Causal, Mode, Qwen3Vl, TextInput};

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

fn number(tensor: &Tensor) -> f32 {
    tensor.to_scalar().expect("a number")
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

#[test]
fn a_step_along_a_gradient_changes_the_loss_as_much_as_it_says() {
    let model = load(&fixture("random"), Mode::Training);
    let gradients = loss(&model, "random").backward().expect("gradients");
    for wanted in [
        "model.visual.patch_embed.proj.weight",
        "model.visual.pos_embed.weight",
        "model.visual.blocks.1.attn.qkv.weight",
        "model.visual.deepstack_merger_list.2.linear_fc1.weight",
        "model.visual.merger.norm.weight",
        "model.language_model.embed_tokens.weight",
        "model.language_model.layers.0.self_attn.q_proj.weight",
        "model.language_model.layers.1.self_attn.k_norm.weight",
        "model.language_model.layers.2.self_attn.v_proj.weight",
        "model.language_model.layers.3.mlp.gate_proj.weight",
        "lm_head.weight",
    ] {
        let (name, variable) = model.variables().iter().find(|(name, _)| name == wanted).expect("a variable");
        let gradient = gradients.get(variable).expect("a gradient").clone();
        let squared = number(&gradient.sqr().and_then(|g| g.sum_all()).expect("a sum"));
        // Far enough for f32 to see a difference, near enough for the loss to be straight.
        let step = f64::from(0.01 / squared);
        let slope = (at(&model, variable, &gradient, step) - at(&model, variable, &gradient, -step)) / 0.02;
        assert!((slope - 1.0).abs() < 0.05, "{name}: {slope} of what the gradient says");
    }
}

/// The loss with a variable moved along a direction; the variable is put back.
fn at(model: &Qwen3Vl, variable: &Var, direction: &Tensor, step: f64) -> f32 {
    let before = variable.as_tensor().copy().expect("a copy");
    let moved = (direction * step).and_then(|moved| &before + moved).expect("moved");
    variable.set(&moved).expect("set");
    let loss = number(&loss(model, "random"));
    variable.set(&before).expect("set");
    loss
}
