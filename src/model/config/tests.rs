//! Configurations as transformers 4 and 5 write them, and ones that can't be.

use serde_json::json;

use super::*;

fn tiny() -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("model_cards/paravt-tiny");
    json::read(&folder, CONFIG).expect("reads").expect("is there")
}

/// The same model as transformers 5 writes it.
fn tiny_of_5() -> Value {
    let mut root = tiny();
    root["dtype"] = root["torch_dtype"].take();
    let text = &mut root["text_config"];
    let mut rope = text["rope_scaling"].take();
    rope["rope_theta"] = text["rope_theta"].take();
    text["rope_parameters"] = rope;
    root["vision_config"]["rope_parameters"] = json!({"rope_type": "axial", "rope_theta": 10000.0});
    root["vision_config"]["model_type"] = json!("qwen3_vl_vision");
    root
}

fn with(mut root: Value, path: &str, value: Value) -> Value {
    let mut place = &mut root;
    for field in path.split('.') {
        place = &mut place[field];
    }
    *place = value;
    root
}

#[test]
fn the_bundled_model_is_read() {
    let config = ModelConfig::parse(&tiny()).expect("parses");
    assert_eq!((config.text.vocab_size, config.text.hidden_size, config.text.layers), (2048, 128, 4));
    assert_eq!((config.text.heads, config.text.kv_heads, config.text.head_dim), (4, 2, 32));
    assert_eq!((config.text.rope_theta, config.text.mrope_section), (10000.0, [6, 5, 5]));
    assert_eq!((config.text.context_tokens, config.text.attention_bias), (32768, false));
    assert_eq!(
        (config.vision.depth, config.vision.position_side, config.vision.deepstack.as_slice()),
        (2, 8, &[0][..])
    );
    assert_eq!(config.vision.patch_width(), 3 * 2 * 16 * 16);
    assert_eq!(config.tokens, TokenIds { image: 1588, video: 1589, vision_start: 1585, vision_end: 1586 });
    assert!(!config.tied_head);
}

#[test]
fn both_layouts_say_the_same() {
    assert_eq!(ModelConfig::parse(&tiny()).expect("4"), ModelConfig::parse(&tiny_of_5()).expect("5"));
}

#[test]
fn a_tied_head_is_found_at_either_level() {
    for (root, text, tied) in [
        (json!(true), json!(false), true),
        (json!(false), json!(true), false),
        (Value::Null, json!(true), true),
        (Value::Null, Value::Null, false),
    ] {
        let config = with(with(tiny(), "tie_word_embeddings", root), "text_config.tie_word_embeddings", text);
        assert_eq!(ModelConfig::parse(&config).expect("parses").tied_head, tied);
    }
}

#[test]
fn the_stored_type_is_found_under_both_names_and_at_either_level() {
    let bare = with(tiny(), "torch_dtype", Value::Null);
    assert_eq!(ModelConfig::parse(&bare).expect("parses").stored_dtype, None);
    for path in ["dtype", "torch_dtype", "text_config.dtype", "text_config.torch_dtype"] {
        let config = with(bare.clone(), path, json!("bfloat16"));
        assert_eq!(ModelConfig::parse(&config).expect("parses").stored_dtype.as_deref(), Some("bfloat16"), "{path}");
    }
}

#[test]
fn what_may_be_left_out_is_filled_in() {
    let mut config = tiny();
    for field in ["head_dim", "num_key_value_heads", "rms_norm_eps", "attention_bias", "hidden_act", "eos_token_id"] {
        config["text_config"].as_object_mut().expect("an object").remove(field);
    }
    let text = ModelConfig::parse(&config).expect("parses").text;
    assert_eq!((text.head_dim, text.kv_heads, text.rms_norm_eps), (32, 4, 1e-6));
    assert!(text.eos_ids.is_empty());
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    for (path, value) in [
        ("architectures", json!(["Qwen3VLMoeForConditionalGeneration"])),
        ("architectures", json!([])),
        ("text_config", json!(7)),
        ("text_config", Value::Null),
        ("text_config.hidden_size", json!(0)),
        ("text_config.hidden_size", json!(-1)),
        ("text_config.hidden_size", json!(1.5)),
        ("text_config.hidden_size", json!(u64::MAX)),
        ("text_config.hidden_size", json!("128")),
        ("text_config.hidden_act", json!("gelu")),
        ("text_config.num_hidden_layers", json!(0)),
        ("text_config.num_hidden_layers", json!(100_000)),
        ("text_config.num_attention_heads", json!(0)),
        ("text_config.num_attention_heads", json!(3)),
        ("text_config.head_dim", json!(31)),
        ("text_config.vocab_size", json!(1 << 30)),
        ("text_config.rms_norm_eps", json!(-1.0)),
        ("text_config.rope_theta", json!(0.0)),
        ("text_config.rope_theta", Value::Null),
        ("text_config.rope_scaling", Value::Null),
        ("text_config.rope_scaling.rope_type", json!("yarn")),
        ("text_config.rope_scaling.mrope_interleaved", json!(false)),
        ("text_config.rope_scaling.mrope_section", json!([6, 5])),
        ("text_config.rope_scaling.mrope_section", json!([6, 5, 6])),
        ("text_config.rope_scaling.mrope_section", Value::Null),
        ("text_config.max_position_embeddings", Value::Null),
        ("text_config.eos_token_id", json!(2048)),
        ("vision_config", Value::Null),
        ("vision_config.hidden_act", json!("silu")),
        ("vision_config.num_heads", json!(3)),
        ("vision_config.num_heads", json!(64)),
        ("vision_config.in_channels", json!(1)),
        ("vision_config.out_hidden_size", json!(64)),
        ("vision_config.num_position_embeddings", json!(63)),
        ("vision_config.patch_size", json!(4096)),
        ("vision_config.deepstack_visual_indexes", json!([2])),
        ("vision_config.deepstack_visual_indexes", json!([1, 0])),
        ("vision_config.deepstack_visual_indexes", json!([0, 0])),
        ("vision_config.deepstack_visual_indexes", json!([-1])),
        ("vision_config.rope_parameters", json!({"rope_theta": 0})),
        ("image_token_id", json!(2048)),
        ("video_token_id", Value::Null),
        ("tie_word_embeddings", json!("yes")),
    ] {
        let error = ModelConfig::parse(&with(tiny(), path, value.clone())).expect_err(path).to_string();
        let field = path.split('.').next_back().unwrap_or(path);
        let named =
            error.contains(field) || field == "rope_scaling" || (field == "in_channels" && error.contains("in_"));
        assert!(error.starts_with(CONFIG) && named, "{path} = {value}: {error}");
    }
    assert!(ModelConfig::parse(&json!([])).is_err());
}

fn folder(files: &[(&str, Value)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("tempdir");
    for (file, value) in files {
        std::fs::write(folder.path().join(file), value.to_string()).expect("writes");
    }
    folder
}

#[test]
fn the_processor_is_read_from_whichever_file_there_is() {
    let vision = ModelConfig::parse(&tiny()).expect("parses").vision;
    let given = json!({"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2,
        "image_mean": [0.25, 0.5, 0.75], "image_std": [0.5, 0.25, 1.0]});
    for files in [
        vec![("preprocessor_config.json", given.clone())],
        vec![("video_preprocessor_config.json", given.clone())],
        vec![("processor_config.json", json!({"image_processor": given}))],
        vec![("processor_config.json", json!({"video_processor": given}))],
    ] {
        let processor = ProcessorConfig::load(folder(&files).path(), &vision).expect("reads");
        assert_eq!((processor.mean, processor.deviation), ([0.25, 0.5, 0.75], [0.5, 0.25, 1.0]), "{files:?}");
        assert_eq!((processor.patch_size, processor.merge_size, processor.temporal_patch_size), (16, 2, 2));
    }
    let none = ProcessorConfig::load(folder(&[]).path(), &vision).expect("defaults");
    assert_eq!((none.mean, none.deviation, none.patch_size), ([0.5; 3], [0.5; 3], 16));
    for wrong in [
        json!({"patch_size": 14}),
        json!({"merge_size": 0}),
        json!({"image_mean": [0.5]}),
        json!({"image_mean": "white"}),
        json!({"image_std": [0.5, 0.5, 0.0]}),
        json!([]),
    ] {
        let folder = folder(&[("preprocessor_config.json", wrong.clone())]);
        assert!(ProcessorConfig::load(folder.path(), &vision).is_err(), "{wrong}");
    }
}

#[test]
fn the_ids_that_end_a_text_come_from_the_generation_settings_first() {
    let text = ModelConfig::parse(&tiny()).expect("parses").text;
    for (files, expected) in [
        (vec![], vec![1584]),
        (vec![(GENERATION, json!({}))], vec![1584]),
        (vec![(GENERATION, json!({"eos_token_id": 5}))], vec![5]),
        (vec![(GENERATION, json!({"eos_token_id": [5, 6]}))], vec![5, 6]),
    ] {
        assert_eq!(eos_ids(folder(&files).path(), &text).expect("reads"), expected);
    }
    assert!(eos_ids(folder(&[(GENERATION, json!({"eos_token_id": [5000]}))]).path(), &text).is_err());
    let broken = folder(&[]);
    std::fs::write(broken.path().join(GENERATION), "{").expect("writes");
    assert!(eos_ids(broken.path(), &text).is_err());
}
