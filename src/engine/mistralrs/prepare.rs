//! Makes a checkpoint in Hugging Face layout loadable: a temporary folder with rewritten configuration and links to the
//! rest, and the facts about the model that this engine checks requests against.
//!
//! Configurations of transformers 4 and 5 are read. Knows nothing of mistralrs' types, only of what it can parse.

use std::path::Path;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::engine::EngineError;
use crate::engine::chat::geometry::Geometry;
use crate::engine::chat::vocabulary::Vocabulary;

/// Writes the prompt through unchanged: we have rendered it.
const PASS_THROUGH: &str = "{{ messages[0].content }}";
/// Name of that template in the prepared folder.
pub(super) const TEMPLATE: &str = "chat_template.jinja";
/// What the vision tower of Qwen3-VL was trained with, where a configuration leaves it out. mistralrs' own defaults are
/// those of another family.
const MEAN_AND_DEVIATION: [f64; 3] = [0.5, 0.5, 0.5];
/// Frames arrive in the size they shall have (the model card's), so mistralrs must not scale them again, whatever the
/// checkpoint's own bounds say: our token counts would be wrong. Large enough for any frame, and below what its parser
/// takes.
const NO_LIMIT_PIXELS: u64 = 1 << 31;

/// A checkpoint ready to load.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Removed when dropped; weights stay mapped.
    pub(super) folder: TempDir,
    /// What is known of the model.
    pub(super) model: ModelFacts,
    /// Size of the weights on disk.
    pub(super) weight_bytes: u64,
}

/// What requests are checked against.
#[derive(Debug)]
pub(super) struct ModelFacts {
    pub(super) vocabulary: Vocabulary,
    pub(super) geometry: Geometry,
    /// What the model was made for, prompt and output together.
    pub(super) context_tokens: u32,
}

/// Reads, checks, rewrites and links.
///
/// # Errors
/// [`EngineError::Load`], naming the file that is missing or wrong.
pub(super) fn prepare(checkpoint: &Path) -> Result<Prepared, EngineError> {
    if !checkpoint.is_dir() {
        return Err(EngineError::Load("the checkpoint is not a folder".to_owned()));
    }
    let config = rewrite_config(read_json(checkpoint, "config.json")?)?;
    let vocabulary = Vocabulary::load(&checkpoint.join("tokenizer.json"))?;
    let processor = rewrite_processor(&read_processor(checkpoint)?, &config);
    let generation = rewrite_generation(read_optional(checkpoint, "generation_config.json")?, &config, &vocabulary)?;
    let geometry = geometry(&processor)?;
    let context_tokens = config["text_config"]["max_position_embeddings"]
        .as_u64()
        .and_then(|tokens| u32::try_from(tokens).ok())
        .ok_or_else(|| wrong("config.json", "text_config.max_position_embeddings is missing"))?;

    let folder = TempDir::with_prefix("paravt-checkpoint-").map_err(|error| EngineError::Load(error.to_string()))?;
    write_json(folder.path(), "config.json", &config)?;
    write_json(folder.path(), "preprocessor_config.json", &processor)?;
    write_json(folder.path(), "generation_config.json", &generation)?;
    write(folder.path(), TEMPLATE, PASS_THROUGH)?;
    link(checkpoint, folder.path(), "tokenizer.json")?;
    let mut weight_bytes = 0;
    for weights in weight_files(checkpoint)? {
        link(checkpoint, folder.path(), &weights)?;
        weight_bytes += std::fs::metadata(checkpoint.join(&weights)).map_err(|error| wrong(&weights, error))?.len();
    }
    Ok(Prepared { folder, model: ModelFacts { vocabulary, geometry, context_tokens }, weight_bytes })
}

fn wrong(file: &str, problem: impl std::fmt::Display) -> EngineError {
    EngineError::Load(format!("{file}: {problem}"))
}

fn read_optional(folder: &Path, file: &str) -> Result<Option<Value>, EngineError> {
    match std::fs::read(folder.join(file)) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| wrong(file, error)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(wrong(file, error)),
    }
}

fn read_json(folder: &Path, file: &str) -> Result<Value, EngineError> {
    read_optional(folder, file)?.ok_or_else(|| wrong(file, "missing"))
}

fn write(folder: &Path, file: &str, text: &str) -> Result<(), EngineError> {
    std::fs::write(folder.join(file), text).map_err(|error| wrong(file, error))
}

fn write_json(folder: &Path, file: &str, value: &Value) -> Result<(), EngineError> {
    write(folder, file, &value.to_string())
}

/// A symbolic link where there are such, else a hard link: weights are never copied.
fn link(from: &Path, to: &Path, file: &str) -> Result<(), EngineError> {
    let source = std::fs::canonicalize(from.join(file)).map_err(|error| wrong(file, error))?;
    #[cfg(unix)]
    let linked = std::os::unix::fs::symlink(source, to.join(file));
    #[cfg(not(unix))]
    let linked = std::fs::hard_link(source, to.join(file));
    linked.map_err(|error| wrong(file, error))
}

/// Brings `config.json` to what mistralrs 0.8.1 parses, which is the layout of transformers 4.
fn rewrite_config(mut config: Value) -> Result<Value, EngineError> {
    const FILE: &str = "config.json";
    let family = config["architectures"].as_array().map(Vec::as_slice).unwrap_or_default();
    let known = ["Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"];
    if family.len() != 1 || !family[0].as_str().is_some_and(|name| known.contains(&name)) {
        return Err(wrong(FILE, "architectures is not Qwen3-VL"));
    }
    let root = config.as_object_mut().ok_or_else(|| wrong(FILE, "not an object"))?;
    rename(root, "dtype", "torch_dtype");
    let tied = root.get("text_config").and_then(|text| text.get("tie_word_embeddings")).cloned();
    root.entry("tie_word_embeddings").or_insert_with(|| tied.unwrap_or(Value::Bool(false)));
    let text = root
        .get_mut("text_config")
        .and_then(Value::as_object_mut)
        .ok_or_else(|| wrong(FILE, "text_config is missing"))?;
    rename(text, "dtype", "torch_dtype");
    if let Some(Value::Object(mut rope)) = text.remove("rope_parameters") {
        if let Some(theta) = rope.remove("rope_theta") {
            text.entry("rope_theta").or_insert(theta);
        }
        text.entry("rope_scaling").or_insert(Value::Object(rope));
    }
    for field in ["rope_theta", "rope_scaling"] {
        if text.get(field).is_none_or(Value::is_null) {
            return Err(wrong(FILE, format!("text_config has neither rope_parameters nor {field}")));
        }
    }
    if text.get("head_dim").is_none_or(Value::is_null) {
        let number = |field: &str| text.get(field).and_then(Value::as_u64).filter(|number| *number > 0);
        let (Some(hidden), Some(heads)) = (number("hidden_size"), number("num_attention_heads")) else {
            return Err(wrong(FILE, "text_config has no head_dim"));
        };
        text.insert("head_dim".to_owned(), json!(hidden / heads));
    }
    if !root.get("vision_config").is_some_and(Value::is_object) {
        return Err(wrong(FILE, "vision_config is missing"));
    }
    Ok(config)
}

fn rename(object: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = object.remove(from) {
        object.entry(to).or_insert(value);
    }
}

/// `preprocessor_config.json`, or the part of transformers 5's `processor_config.json` that took its place.
fn read_processor(checkpoint: &Path) -> Result<Value, EngineError> {
    if let Some(processor) = read_optional(checkpoint, "preprocessor_config.json")? {
        return Ok(processor);
    }
    read_optional(checkpoint, "processor_config.json")?
        .and_then(|mut processor| processor.get_mut("image_processor").map(Value::take))
        .filter(Value::is_object)
        .ok_or_else(|| {
            wrong("preprocessor_config.json", "missing, and no processor_config.json with an image_processor")
        })
}

/// Only what mistralrs reads for Qwen3-VL, with nothing left to its defaults.
fn rewrite_processor(given: &Value, config: &Value) -> Value {
    let vision = &config["vision_config"];
    let number = |name: &str, in_config: &str, default: u64| {
        given[name].as_u64().or_else(|| vision[in_config].as_u64()).unwrap_or(default)
    };
    let colour = |name: &str| match &given[name] {
        Value::Array(values) if values.len() == 3 => given[name].clone(),
        _ => json!(MEAN_AND_DEVIATION),
    };
    let patch_size = number("patch_size", "patch_size", 16);
    let merge_size = number("merge_size", "spatial_merge_size", 2);
    json!({
        "do_resize": true,
        "do_normalize": true,
        "do_rescale": true,
        "resample": 3,
        "min_pixels": patch_size * merge_size,
        "max_pixels": NO_LIMIT_PIXELS,
        "patch_size": patch_size,
        "merge_size": merge_size,
        "temporal_patch_size": number("temporal_patch_size", "temporal_patch_size", 2),
        "image_mean": colour("image_mean"),
        "image_std": colour("image_std"),
    })
}

fn geometry(processor: &Value) -> Result<Geometry, EngineError> {
    let side = |name: &str| processor[name].as_u64().and_then(|size| u32::try_from(size).ok());
    side("patch_size")
        .zip(side("merge_size"))
        .and_then(|(patch, merge)| patch.checked_mul(merge))
        .and_then(Geometry::new)
        .ok_or_else(|| wrong("preprocessor_config.json", "patch_size and merge_size are not sizes"))
}

/// The ids that end a generation. Those of the checkpoint, and always the end of a turn.
fn rewrite_generation(given: Option<Value>, config: &Value, vocabulary: &Vocabulary) -> Result<Value, EngineError> {
    let given = given.unwrap_or_default();
    let listed = match &given["eos_token_id"] {
        Value::Null => &config["text_config"]["eos_token_id"],
        listed => listed,
    };
    let mut ids: Vec<u64> = match listed {
        Value::Array(ids) => ids.iter().filter_map(Value::as_u64).collect(),
        id => id.as_u64().into_iter().collect(),
    };
    let turn_end = u64::from(vocabulary.turn_end());
    if !ids.contains(&turn_end) {
        ids.push(turn_end);
    }
    // mistralrs panics on an id that its tokenizer does not know.
    if let Some(unknown) = ids.iter().find(|id| !u32::try_from(**id).is_ok_and(|id| vocabulary.knows(id))) {
        return Err(wrong("generation_config.json", format!("eos_token_id {unknown} is not in tokenizer.json")));
    }
    Ok(json!({ "eos_token_id": ids }))
}

/// `model.safetensors`, or every shard that the index lists.
fn weight_files(checkpoint: &Path) -> Result<Vec<String>, EngineError> {
    const WHOLE: &str = "model.safetensors";
    const INDEX: &str = "model.safetensors.index.json";
    if checkpoint.join(WHOLE).is_file() {
        return Ok(vec![WHOLE.to_owned()]);
    }
    let index =
        read_optional(checkpoint, INDEX)?.ok_or_else(|| wrong(WHOLE, format!("missing, and no {INDEX} either")))?;
    let map = index["weight_map"].as_object().ok_or_else(|| wrong(INDEX, "has no weight_map"))?;
    let mut shards: Vec<String> = map.values().filter_map(|file| file.as_str().map(str::to_owned)).collect();
    shards.sort();
    shards.dedup();
    for shard in &shards {
        // A name, never a path: the index comes with the checkpoint.
        if shard.contains(['/', '\\']) || !shard.ends_with(".safetensors") {
            return Err(wrong(INDEX, "lists something that is not a weight file"));
        }
        if !checkpoint.join(shard).is_file() {
            return Err(wrong(shard, "missing"));
        }
    }
    if shards.is_empty() { Err(wrong(INDEX, "lists no weight files")) } else { Ok(shards) }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn tiny() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("model_cards/paravt-tiny")
    }

    /// A copy of the bundled checkpoint with one file changed or, with `None`, removed.
    fn changed(file: &str, content: Option<&str>) -> TempDir {
        let folder = tempfile::tempdir().expect("tempdir");
        for entry in std::fs::read_dir(tiny()).expect("the bundled checkpoint") {
            let name = entry.expect("entry").file_name();
            std::fs::copy(tiny().join(&name), folder.path().join(&name)).expect("copies");
        }
        match content {
            Some(content) => std::fs::write(folder.path().join(file), content).expect("writes"),
            None => std::fs::remove_file(folder.path().join(file)).expect("removes"),
        }
        folder
    }

    fn prepared_json(prepared: &Prepared, file: &str) -> Value {
        read_json(prepared.folder.path(), file).expect("is there")
    }

    fn config() -> Value {
        read_json(&tiny(), "config.json").expect("is there")
    }

    #[test]
    fn the_bundled_checkpoint_is_ready_to_load() {
        let prepared = prepare(&tiny()).expect("prepares");
        assert_eq!(prepared.model.context_tokens, 32768);
        assert!(prepared.folder.path().join("model.safetensors").is_file());
        let generation = prepared_json(&prepared, "generation_config.json");
        assert_eq!(generation, json!({"eos_token_id": [1584, 1582]}));
        let template = std::fs::read_to_string(prepared.folder.path().join(TEMPLATE)).expect("is there");
        assert_eq!(template, PASS_THROUGH);
    }

    #[test]
    fn a_configuration_of_transformers_5_becomes_one_of_transformers_4() {
        let mut new = config();
        let dtype = new["torch_dtype"].take();
        new["dtype"] = dtype;
        let root = new.as_object_mut().expect("object");
        root.remove("torch_dtype");
        root.remove("tie_word_embeddings");
        let text = root["text_config"].as_object_mut().expect("object");
        let theta = text.remove("rope_theta").expect("theta");
        let mut rope = text.remove("rope_scaling").expect("scaling");
        rope["rope_theta"] = theta;
        text.insert("rope_parameters".to_owned(), rope);
        assert_eq!(rewrite_config(new).expect("rewrites"), config());
    }

    #[test]
    fn a_configuration_of_transformers_4_is_left_as_it_is() {
        assert_eq!(rewrite_config(config()).expect("rewrites"), config());
    }

    #[test]
    fn both_pixel_bounds_are_always_written_and_never_scale_a_frame() {
        let folder =
            changed("preprocessor_config.json", Some(r#"{"size": {"shortest_edge": 65536, "longest_edge": 4096}}"#));
        let prepared = prepare(folder.path()).expect("prepares");
        let processor = prepared_json(&prepared, "preprocessor_config.json");
        assert!(processor["min_pixels"].as_u64().is_some_and(|pixels| pixels <= 32 * 32));
        assert!(processor["max_pixels"].as_u64().is_some_and(|pixels| pixels > 4096 * 4096));
        assert_eq!(processor["patch_size"], 16);
        assert_eq!(processor["image_mean"], json!([0.5, 0.5, 0.5]));
    }

    #[test]
    fn the_processor_of_transformers_5_is_found() {
        let folder = changed("preprocessor_config.json", None);
        let error = prepare(folder.path()).expect_err("nothing there").to_string();
        assert!(error.contains("preprocessor_config.json"), "{error}");
        let content = r#"{"image_processor": {"patch_size": 16, "merge_size": 2, "image_mean": [0.1, 0.2, 0.3]}}"#;
        std::fs::write(folder.path().join("processor_config.json"), content).expect("writes");
        let prepared = prepare(folder.path()).expect("prepares");
        assert_eq!(prepared_json(&prepared, "preprocessor_config.json")["image_mean"], json!([0.1, 0.2, 0.3]));
    }

    #[test]
    fn a_missing_or_invalid_file_is_named() {
        for (file, content) in [
            ("config.json", None),
            ("config.json", Some("{")),
            ("config.json", Some(r#"{"architectures": ["LlamaForCausalLM"]}"#)),
            ("tokenizer.json", None),
            ("tokenizer.json", Some("[]")),
            ("model.safetensors", None),
            ("preprocessor_config.json", Some("nonsense")),
            ("generation_config.json", Some(r#"{"eos_token_id": 99999}"#)),
        ] {
            let folder = changed(file, content);
            let error = prepare(folder.path()).expect_err(file).to_string();
            assert!(error.contains(file), "{file} is not named: {error}");
        }
    }

    #[test]
    fn a_missing_shard_is_named() {
        let folder = changed("model.safetensors", None);
        let index =
            r#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
        std::fs::write(folder.path().join("model.safetensors.index.json"), index).expect("writes");
        std::fs::write(folder.path().join("model-00001-of-00002.safetensors"), "").expect("writes");
        let error = prepare(folder.path()).expect_err("incomplete").to_string();
        assert!(error.contains("model-00002-of-00002.safetensors"), "{error}");
    }

    #[test]
    fn without_a_generation_configuration_the_end_of_a_turn_ends_it() {
        let folder = changed("generation_config.json", None);
        let prepared = prepare(folder.path()).expect("prepares");
        assert_eq!(prepared_json(&prepared, "generation_config.json"), json!({"eos_token_id": [1584]}));
    }
}
