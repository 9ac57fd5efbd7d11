//! The same logits and the same text as the reference.

use candle_core::{DType, Device};
use futures::StreamExt;
use paravt::engine::native::{Native, NativeOptions};
use paravt::engine::{Engine, GenerateRequest, Sampling, SessionKey, Speaker, TokenEvent};
use paravt::model::{LoadOptions, Mode, Qwen3Vl};
use paravt::types::{Part, Role, Turn};

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

/// The engine writes the prompt itself. transformers 5 leaves the placeholder's own brackets around a video; transformers 4,
/// which Qwen3-VL came with, and vLLM put the frames in their place, and so do we. So the brackets go, and the text is that
/// of the network, which agrees with the reference above.
#[tokio::test(flavor = "multi_thread")]
async fn a_video_in_pairs_of_frames_is_read_as_the_reference_reads_it() {
    let engine = Native::load(&tiny_folder(), NativeOptions::default()).await.expect("loads");
    let (golden, model) = (Golden::read("tiny"), load(&tiny_folder(), Mode::Inference));
    let ids = model.config().tokens;
    for (name, times, question) in [
        ("video", &["0.2", "1.2", "2.2", "3.2"][..], "Summarize what happens."),
        ("odd_video", &["0.5", "2.5", "4.0"], "Summarize."),
    ] {
        let mut case = golden.case(name);
        let closing = case.tokens.iter().rposition(|id| *id == ids.vision_end).expect("a bracket");
        let opening = case.tokens.iter().position(|id| *id == ids.vision_start).expect("a bracket");
        case.tokens.remove(closing);
        case.tokens.remove(opening);
        let length = case.tokens.len() as u64;
        let expected = case.prompt(&model).greedy(&model, case.greedy.len());
        let mut parts = Vec::new();
        for (time, frames) in times.iter().zip(case.video.chunks(2)) {
            let [first, last] = [frames.first(), frames.last()].map(|frame| frame.expect("not empty").clone());
            parts.extend([Part::Text(format!("<{time} seconds>")), Part::FramePair([first, last])]);
        }
        parts.push(Part::Text(question.to_owned()));
        let sampling = Sampling {
            temperature: Some(0.0),
            max_tokens: case.greedy.len() as u32,
            ignore_eos: true,
            logprobs: Some(0),
            ..Sampling::default()
        };
        let mut stream = engine
            .generate(GenerateRequest {
                turns: vec![Turn { role: Role::User, parts }],
                prefix: String::new(),
                sampling,
                session: SessionKey(name.into()),
                speaker: Speaker::Sub,
                seat: None,
                deadline: None,
                trace: None,
            })
            .await
            .expect("accepted");
        let (mut written, mut prompt) = (Vec::new(), 0);
        while let Some(event) = stream.next().await {
            match event.expect("generates") {
                TokenEvent::Tokens(tokens) => written.extend(tokens.iter().filter_map(|token| token.id)),
                TokenEvent::Finished(end) => prompt = end.usage.prompt_tokens,
                _ => {}
            }
        }
        assert_eq!((written, prompt), (expected, length), "{name}");
    }
}
