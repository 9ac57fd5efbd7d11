//! The same model in other batches, other files and fewer bits.

use std::path::Path;

use candle_core::{CpuStorage, DType, Device, Result, Storage, Tensor};
use paravt::engine::native::attention::{CpuCache, Segment};
use paravt::model::{
    Attend, Causal, LoadOptions, Mode, ModelError, Patches, Quantization, Qwen3Vl, TextInput, VisionRows,
};

use super::golden::{Golden, distance, fixture, load, tiny_folder};

#[test]
fn a_sequence_does_not_notice_what_else_is_in_the_batch() {
    for (folder, golden) in [(tiny_folder(), "tiny"), (fixture("random"), "random")] {
        let model = load(&folder, Mode::Inference);
        let golden = Golden::read(golden);
        let prompts: Vec<_> = golden.names().iter().map(|name| golden.case(name).prompt(&model)).collect();
        let (mut tokens, mut positions, mut vision, mut outputs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut lengths = Vec::new();
        for prompt in &prompts {
            let first = tokens.len() as u32;
            vision.extend(prompt.vision(first));
            tokens.extend(&prompt.tokens);
            positions.extend(&prompt.positions);
            lengths.push(prompt.tokens.len());
            outputs.push(tokens.len() as u32 - 1);
        }
        let input = TextInput { tokens: &tokens, positions: &positions, vision: &vision, outputs: &outputs };
        let together = model.forward(&input, &mut Causal::new(&lengths, Mode::Inference)).expect("logits");
        for (row, prompt) in prompts.iter().enumerate() {
            let alone = prompt.logits(&model, &[prompt.tokens.len() as u32 - 1]);
            let distance = distance(&together.narrow(0, row, 1).expect("a row"), &alone);
            println!("{row}: largest difference {distance:e}");
            assert!(distance < 3e-5, "sequence {row}: {distance}");
        }
    }
}

#[test]
fn a_picture_does_not_notice_what_else_is_encoded() {
    let model = load(&fixture("random"), Mode::Inference);
    let golden = Golden::read("random");
    let patches: Vec<Patches> = golden.names().iter().flat_map(|name| golden.case(name).patches(&model)).collect();
    let together = model.encode(&patches).expect("encodes");
    assert_eq!(together.len(), patches.len());
    for (picture, features) in patches.iter().zip(&together) {
        let alone = model.encode(std::slice::from_ref(picture)).expect("encodes").remove(0);
        assert_eq!(features.tokens(), picture.grid.tokens(2));
        assert_eq!((alone.bytes(), alone.deepstack.len()), (features.bytes(), 3));
        assert!(distance(&features.embeddings, &alone.embeddings) < 1e-5);
        for (a, b) in features.deepstack.iter().zip(&alone.deepstack) {
            assert!(distance(a, b) < 1e-5);
        }
    }
    assert!(model.encode(&[]).expect("nothing").is_empty());
}

#[test]
fn a_layer_of_a_video_is_the_image_of_its_frames() {
    // Attention stays inside a layer of time, so the features of a video are those of its layers.
    let model = load(&tiny_folder(), Mode::Inference);
    let video = Golden::read("tiny").case("video").patches(&model).remove(0);
    let whole = model.encode(std::slice::from_ref(&video)).expect("encodes").remove(0);
    let size = video.values.len() / video.grid.t;
    let tokens = whole.tokens() / video.grid.t;
    for (layer, values) in video.values.chunks(size).enumerate() {
        let mut grid = video.grid;
        grid.t = 1;
        let alone = model.encode(&[Patches { values: values.to_vec(), grid }]).expect("encodes").remove(0);
        let part = whole.embeddings.narrow(0, layer * tokens, tokens).expect("rows");
        assert!(distance(&part, &alone.embeddings) < 1e-5);
    }
}

#[test]
fn a_picture_holds_no_memory_of_those_that_were_encoded_with_it() {
    let model = load(&tiny_folder(), Mode::Inference);
    let golden = Golden::read("tiny");
    let pictures: Vec<Patches> = (0..3).flat_map(|_| golden.case("video").patches(&model)).collect();
    for features in model.encode(&pictures).expect("encodes") {
        let mut held = 0;
        for tensor in features.deepstack.iter().chain([&features.embeddings]) {
            let (storage, _) = tensor.storage_and_layout();
            let Storage::Cpu(CpuStorage::F32(numbers)) = &*storage else { panic!("another device or type") };
            held += size_of_val(numbers.as_slice());
        }
        assert_eq!(held, features.bytes());
    }
}

#[test]
fn rows_that_are_shared_out_are_what_one_thread_makes_of_them() {
    let model = load(&tiny_folder(), Mode::Inference);
    let config = &model.config().text;
    let lengths = [40, 1, 21];
    let tokens: Vec<u32> = (0..62).map(|at| 300 + at * 7 % 900).collect();
    let positions: Vec<[u32; 3]> = lengths.iter().flat_map(|length| (0..*length).map(|at| [at; 3])).collect();
    let outputs = [39, 40, 61];
    let input = TextInput { tokens: &tokens, positions: &positions, vision: &[], outputs: &outputs };
    let segments = [
        Segment { rows: 0..40, past: 0, blocks: &[5, 1, 8] },
        Segment { rows: 40..41, past: 0, blocks: &[2] },
        Segment { rows: 41..62, past: 0, blocks: &[7, 0] },
    ];
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("starts");
        let mut cache = CpuCache::new(config.layers, 9, config.kv_heads, config.head_dim);
        pool.install(|| model.forward(&input, &mut cache.pass(&segments))).expect("logits")
    };
    let alone = with(1);
    for threads in [2, 3] {
        let (alone, shared) = (alone.to_vec2::<f32>(), with(threads).to_vec2::<f32>());
        assert_eq!(alone.expect("logits"), shared.expect("logits"));
    }
    let lengths = lengths.map(|length| length as usize);
    let expected = model.forward(&input, &mut Causal::new(&lengths, Mode::Inference)).expect("logits");
    assert!(distance(&alone, &expected) < 1e-4);
}

/// An [`Attend`] with a cache, as an engine has one: what it has seen of one sequence.
#[derive(Default)]
struct Cached(Vec<(Tensor, Tensor)>);

impl Attend for Cached {
    fn attend(&mut self, layer: usize, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let (key, value) = match self.0.get(layer) {
            Some((past_key, past_value)) => (Tensor::cat(&[past_key, key], 0)?, Tensor::cat(&[past_value, value], 0)?),
            None => (key.clone(), value.clone()),
        };
        let entry = (key.clone(), value.clone());
        if layer < self.0.len() {
            self.0[layer] = entry;
        } else {
            self.0.push(entry);
        }
        // Queries of what came before do not matter to the new rows.
        let (rows, past) = (query.dim(0)?, key.dim(0)? - query.dim(0)?);
        let padded = query.pad_with_zeros(0, past, 0)?;
        Causal::new(&[past + rows], Mode::Inference).attend(layer, &padded, &key, &value)?.narrow(0, past, rows)
    }
}

#[test]
fn a_prompt_may_be_read_in_pieces_that_cut_a_picture() {
    for (folder, golden) in [(tiny_folder(), "tiny"), (fixture("random"), "random")] {
        let model = load(&folder, Mode::Inference);
        let prompt = Golden::read(golden).case("both").prompt(&model);
        let length = prompt.tokens.len() as u32;
        let whole = prompt.logits(&model, &[length - 1]);
        let mut cache = Cached::default();
        let mut last = None;
        for start in (0..length).step_by(5) {
            let end = (start + 5).min(length);
            let runs = prompt.vision(0).into_iter().filter_map(|run| {
                let run_end = run.first + run.rows.len() as u32;
                let (from, to) = (run.first.max(start), run_end.min(end));
                let offset = run.rows.start + from.saturating_sub(run.first);
                (from < to).then(|| VisionRows { first: from - start, rows: offset..offset + (to - from), ..run })
            });
            let vision: Vec<_> = runs.collect();
            let rows = start as usize..end as usize;
            let outputs: &[u32] = if end == length { &[length - 1 - start] } else { &[] };
            let input = TextInput {
                tokens: &prompt.tokens[rows.clone()],
                positions: &prompt.positions[rows],
                vision: &vision,
                outputs,
            };
            let logits = model.forward(&input, &mut cache).expect("logits");
            assert_eq!(logits.dims(), [outputs.len(), model.config().text.vocab_size]);
            last = Some(logits);
        }
        let distance = distance(&last.expect("logits"), &whole);
        assert!(distance < 5e-5, "{distance}");
    }
}

#[test]
fn rows_come_in_the_order_asked_for() {
    let model = load(&fixture("random"), Mode::Inference);
    let prompt = Golden::read("random").case("one").prompt(&model);
    let all: Vec<u32> = (0..prompt.tokens.len() as u32).collect();
    let all = prompt.logits(&model, &all);
    let some = prompt.logits(&model, &[9, 2, 2]);
    for (row, from) in [(0, 9), (1, 2), (2, 2)] {
        let expected = all.narrow(0, from, 1).expect("a row");
        assert!(distance(&some.narrow(0, row, 1).expect("a row"), &expected) < 5e-5);
    }
}

#[test]
fn quantized_weights_stay_close() {
    for (quantization, folder, golden, most) in [
        (Quantization::Q8_0, tiny_folder(), "tiny", 0.03),
        (Quantization::Q8_0, fixture("random"), "random", 0.06),
        // Four bits of random numbers, the worst there is.
        (Quantization::Q4K, fixture("random"), "random", 0.4),
    ] {
        let options = LoadOptions { quantization: Some(quantization), ..LoadOptions::cpu(Mode::Inference) };
        let model = Qwen3Vl::load(&folder, &options).expect("loads");
        assert!(model.weight_bytes() < load(&folder, Mode::Inference).weight_bytes());
        let golden = Golden::read(golden);
        for name in golden.names() {
            let case = golden.case(&name);
            let logits = case.prompt(&model).logits(&model, &case.rows);
            let length = |x: &Tensor| x.sqr().and_then(|x| x.sum_all()?.sqrt()?.to_scalar::<f32>()).expect("a number");
            let relative = length(&(logits - &case.logits).expect("equal shapes")) / length(&case.logits);
            println!("{quantization:?} {name}: {relative} of the logits");
            assert!(relative < most, "{quantization:?} {name}: {relative}");
        }
    }
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let quantized = LoadOptions { quantization: Some(Quantization::Q8_0), ..LoadOptions::cpu(Mode::Training) };
    let integers = LoadOptions { dtype: DType::U8, ..LoadOptions::cpu(Mode::Inference) };
    for options in [quantized, integers] {
        assert!(matches!(Qwen3Vl::load(&tiny_folder(), &options), Err(ModelError::Options(_))));
    }
}

#[test]
fn input_that_contradicts_itself_is_refused() {
    let model = load(&tiny_folder(), Mode::Inference);
    let case = Golden::read("tiny").case("one");
    let prompt = case.prompt(&model);
    let vision = prompt.vision(0);
    let run = |first, rows| [VisionRows { first, rows, ..vision[0].clone() }];
    let good = TextInput { tokens: &prompt.tokens, positions: &prompt.positions, vision: &vision, outputs: &[0] };
    let (beyond, empty, late) = (run(0, 0..5), run(0, 2..2), run(prompt.tokens.len() as u32 - 1, 0..4));
    let overlapping = [vision[0].clone(), vision[0].clone()];
    for wrong in [
        TextInput { tokens: &[], positions: &[], vision: &[], ..good },
        TextInput { positions: &prompt.positions[1..], ..good },
        TextInput { tokens: &[2048; 26], ..good },
        TextInput { outputs: &[26], ..good },
        TextInput { vision: &beyond, ..good },
        TextInput { vision: &empty, ..good },
        TextInput { vision: &late, ..good },
        TextInput { vision: &overlapping, ..good },
    ] {
        let result = model.forward(&wrong, &mut Causal::new(&[wrong.tokens.len()], Mode::Inference));
        assert!(matches!(result, Err(ModelError::Input(_))), "{:?}", wrong.vision);
    }
    model.forward(&good, &mut Causal::new(&[prompt.tokens.len()], Mode::Inference)).expect("the good one");
    let mut patches = case.patches(&model).remove(0);
    patches.values.pop();
    assert!(matches!(model.encode(&[patches]), Err(ModelError::Input(_))));
}

/// The random checkpoint under other names, cut in two files with an index.
fn renamed_and_sharded(folder: &Path) {
    let tensors = candle_core::safetensors::load(fixture("random").join("model.safetensors"), &Device::Cpu);
    let mut shards: [std::collections::HashMap<String, Tensor>; 2] = Default::default();
    let mut map = serde_json::Map::new();
    let mut tensors: Vec<_> = tensors.expect("reads").into_iter().collect();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    for (index, (name, tensor)) in tensors.into_iter().enumerate() {
        let name = name.replace("model.language_model.", "language_model.model.").replace("model.visual.", "visual.");
        let file = format!("model-0000{}-of-00002.safetensors", index % 2 + 1);
        map.insert(name.clone(), file.into());
        shards[index % 2].insert(name, tensor);
    }
    for (index, shard) in shards.iter().enumerate() {
        let file = folder.join(format!("model-0000{}-of-00002.safetensors", index + 1));
        candle_core::safetensors::save(shard, file).expect("writes");
    }
    let index = serde_json::json!({ "weight_map": map });
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).expect("writes");
    std::fs::copy(fixture("random").join("config.json"), folder.join("config.json")).expect("copies");
}

#[test]
fn names_and_files_of_another_layout_are_the_same_model() {
    let folder = tempfile::tempdir().expect("tempdir");
    renamed_and_sharded(folder.path());
    let (model, other) = (load(&fixture("random"), Mode::Inference), load(folder.path(), Mode::Inference));
    let case = Golden::read("random").case("five");
    let logits = |model: &Qwen3Vl| case.prompt(model).logits(model, &case.rows);
    assert_eq!(distance(&logits(&model), &logits(&other)), 0.0);
    std::fs::remove_file(folder.path().join("model-00002-of-00002.safetensors")).expect("removes");
    let error = Qwen3Vl::load(folder.path(), &LoadOptions::cpu(Mode::Inference)).expect_err("a file is missing");
    assert!(error.to_string().contains("model-00002-of-00002"), "{error}");
}
