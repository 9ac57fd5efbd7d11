//! The same logits and the same text as the reference.

use candle_core::{DType, Device};
use paravt::model::{LoadOptions, Mode, Qwen3Vl};

use super::golden::{Golden, distance, fixture, load, tiny_folder};

/// Absolute, in f32; logits are up to about 25.
const LOGITS_MOST: f32 = 1e-4;

fn agrees(model: &Qwen3Vl, golden: &str) {
    let golden = Golden::read(golden);
    for name in golden.names() {
        let case = golden.case(&name);
        let prompt = case.prompt(model);
        assert_eq!(prompt.positions, case.positions, "positions of {name}");
        let distance = distance(&prompt.logits(model, &case.rows), &case.logits);
        assert!(distance < LOGITS_MOST, "{name}: {distance}");
        assert_eq!(prompt.greedy(model, case.greedy.len()), case.greedy, "text of {name}");
    }
}

#[test]
fn the_bundled_model_says_what_the_reference_says() {
    agrees(&load(&tiny_folder(), Mode::Inference), "tiny");
}

#[test]
fn so_does_a_model_of_another_shape() {
    agrees(&load(&fixture("random"), Mode::Inference), "random");
}

#[test]
fn so_does_one_whose_head_is_its_embedding_table() {
    let folder = tempfile::tempdir().expect("tempdir");
    let from = fixture("random");
    std::fs::copy(from.join("model.safetensors"), folder.path().join("model.safetensors")).expect("copies");
    let config = std::fs::read_to_string(from.join("config.json")).expect("reads");
    let config = config.replace("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    std::fs::write(folder.path().join("config.json"), config).expect("writes");
    let model = load(folder.path(), Mode::Inference);
    assert!(model.config().tied_head);
    agrees(&model, "random_tied");
}

#[test]
fn training_mode_computes_the_same() {
    for (folder, golden) in [(tiny_folder(), "tiny"), (fixture("random"), "random")] {
        let (inference, training) = (load(&folder, Mode::Inference), load(&folder, Mode::Training));
        let golden = Golden::read(golden);
        for name in golden.names() {
            let case = golden.case(&name);
            let fused = case.prompt(&inference).logits(&inference, &case.rows);
            let formulas = case.prompt(&training).logits(&training, &case.rows);
            let distance = distance(&fused, &formulas);
            println!("{name}: largest difference {distance:e}");
            assert!(distance < 3e-5, "{name}: {distance}");
        }
    }
}

#[test]
fn weights_of_sixteen_bits_stay_close() {
    // The random checkpoint is stored in bf16, so that type loses nothing.
    for (folder, golden, dtype, most) in [
        (fixture("random"), "random", DType::BF16, LOGITS_MOST),
        (fixture("random"), "random", DType::F16, 0.05),
        (tiny_folder(), "tiny", DType::F16, 0.05),
        (tiny_folder(), "tiny", DType::BF16, 0.5),
    ] {
        let options = LoadOptions { dtype, ..LoadOptions::cpu(Mode::Inference) };
        let model = Qwen3Vl::load(&folder, &options).expect("loads");
        let whole = load(&folder, Mode::Inference).weight_bytes();
        assert!(model.weight_bytes() < whole * 11 / 20, "{} of {whole} bytes", model.weight_bytes());
        assert_eq!(model.dtype(), DType::F32, "activations on the CPU");
        let golden = Golden::read(golden);
        for name in golden.names() {
            let case = golden.case(&name);
            let distance = distance(&case.prompt(&model).logits(&model, &case.rows), &case.logits);
            println!("{dtype:?} {name}: largest difference {distance:e}");
            assert!(distance < most, "{dtype:?} {name}: {distance}");
        }
    }
    assert!(matches!(load(&tiny_folder(), Mode::Inference).device(), Device::Cpu));
}
