//! Checkpoints good and bad.

use std::path::Path;

use proptest::prelude::*;
use safetensors::serialize;
use safetensors::tensor::TensorView;
use tempfile::TempDir;

use super::*;

const NORM: &str = "model.language_model.norm.weight";

fn folder(file: &str, bytes: &[u8]) -> TempDir {
    let folder = tempfile::tempdir().expect("tempdir");
    std::fs::write(folder.path().join(file), bytes).expect("writes");
    folder
}

/// A file of f32 tensors, each `[length]` and holding 0, 1, 2 …
fn file(tensors: &[(&str, usize)]) -> Vec<u8> {
    let data: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, length)| (0..*length).flat_map(|value| (value as f32).to_le_bytes()).collect())
        .collect();
    let views = tensors
        .iter()
        .zip(&data)
        .map(|((name, length), data)| (*name, TensorView::new(Dtype::F32, vec![*length], data).expect("a tensor")));
    serialize(views, None).expect("serializes")
}

/// A file with this header and so many bytes of data.
fn raw(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(std::iter::repeat_n(0, data));
    bytes
}

fn one(dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#"{{"{NORM}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
}

fn read_norm(folder: &Path, shape: &[usize]) -> Result<Tensor, ModelError> {
    Weights::open(folder)?.read(NORM, shape, DType::F32)
}

fn problem(bytes: &[u8]) -> String {
    read_norm(folder(WHOLE, bytes).path(), &[4]).expect_err("must be refused").to_string()
}

#[test]
fn a_tensor_is_read_in_the_type_it_is_wanted_in() {
    let folder = folder(WHOLE, &file(&[(NORM, 5)]));
    let mut weights = Weights::open(folder.path()).expect("opens");
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let tensor = weights.read(NORM, &[5], dtype).expect("reads");
        assert_eq!(tensor.dtype(), dtype);
        let values = tensor.to_dtype(DType::F32).and_then(|tensor| tensor.to_vec1::<f32>()).expect("values");
        assert_eq!(values, [0.0, 1.0, 2.0, 3.0, 4.0]);
    }
    assert!(weights.read(NORM, &[5], DType::U8).is_err());
    weights.finish().expect("nothing left");
}

#[test]
fn sixteen_bits_are_read_and_long_tensors_come_in_pieces() {
    let count = BUFFER_BYTES / 2 + 3;
    for (dtype, encode) in [
        (Dtype::BF16, (|value| bf16::from_f32(value).to_le_bytes()) as fn(f32) -> [u8; 2]),
        (Dtype::F16, |value| f16::from_f32(value).to_le_bytes()),
    ] {
        let data: Vec<u8> = (0..count).flat_map(|value| encode((value % 128) as f32)).collect();
        let view = TensorView::new(dtype, vec![count], &data).expect("a tensor");
        let folder = folder(WHOLE, &serialize([(NORM, view)], None).expect("serializes"));
        let values = read_norm(folder.path(), &[count]).and_then(|tensor| Ok(tensor.to_vec1::<f32>()?)).expect("reads");
        assert!(values.iter().zip(0..).all(|(value, index)| *value == (index % 128) as f32));
    }
}

#[test]
fn tensors_are_stacked_in_the_order_asked_for() {
    let names = ["model.visual.a", "model.visual.b"];
    let folder = folder(WHOLE, &file(&[(names[0], 2), (names[1], 3)]));
    let mut weights = Weights::open(folder.path()).expect("opens");
    let parts = [(names[1].to_owned(), 3), (names[0].to_owned(), 2)];
    let stacked = weights.read_stacked(&parts, &[], DType::F32).expect("reads");
    assert_eq!(stacked.to_vec1::<f32>().expect("values"), [0.0, 1.0, 2.0, 0.0, 1.0]);
}

#[test]
fn other_layouts_of_names_are_the_same_tensors() {
    for (stored, asked) in [
        ("language_model.model.layers.0.x", "model.language_model.layers.0.x"),
        ("model.layers.0.x", "model.language_model.layers.0.x"),
        ("visual.merger.x", "model.visual.merger.x"),
        ("model.visual.merger.x", "model.visual.merger.x"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
    ] {
        let folder = folder(WHOLE, &file(&[(stored, 1)]));
        assert!(Weights::open(folder.path()).expect("opens").has(asked), "{stored}");
    }
}

#[test]
fn shards_are_found_by_the_index() {
    let folder = folder("model-1-of-2.safetensors", &file(&[(NORM, 4)]));
    let second = file(&[("lm_head.weight", 2)]);
    std::fs::write(folder.path().join("model-2-of-2.safetensors"), second).expect("writes");
    let index = format!(
        r#"{{"weight_map":{{"{NORM}":"model-1-of-2.safetensors","lm_head.weight":"model-2-of-2.safetensors"}}}}"#
    );
    std::fs::write(folder.path().join(INDEX), index).expect("writes");
    let mut weights = Weights::open(folder.path()).expect("opens");
    weights.read("lm_head.weight", &[2], DType::F32).expect("reads");
    weights.read(NORM, &[4], DType::F32).expect("reads");
    weights.finish().expect("nothing left");
}

#[test]
fn an_index_names_files_beside_it_and_nothing_else() {
    for (index, expected) in [
        (r#"{"weight_map":{"a":"../model.safetensors"}}"#, "not a weight file"),
        (r#"{"weight_map":{"a":"/etc/passwd"}}"#, "not a weight file"),
        (r#"{"weight_map":{"a":7}}"#, "not a weight file"),
        (r#"{"weight_map":{}}"#, "no weight files"),
        (r#"{"weights":{}}"#, "no weight_map"),
        (r#"{"weight_map":{"a":"b.safetensors"}}"#, "b.safetensors"),
        ("[", INDEX),
    ] {
        let folder = folder(INDEX, index.as_bytes());
        let error = Weights::open(folder.path()).expect_err("must be refused").to_string();
        assert!(error.contains(expected), "{index}: {error}");
    }
    let nothing = tempfile::tempdir().expect("tempdir");
    assert!(Weights::open(nothing.path()).expect_err("must be refused").to_string().contains("missing"));
}

#[test]
fn files_that_lie_are_refused() {
    let good = file(&[(NORM, 4)]);
    assert!(read_norm(folder(WHOLE, &good).path(), &[4]).is_ok());
    for (bytes, expected) in [
        (good[..good.len() - 1].to_vec(), "not as long"),
        ([good.clone(), vec![0]].concat(), "not as long"),
        (good[..20].to_vec(), "longer than the file"),
        (good[..5].to_vec(), "shorter than a header"),
        (Vec::new(), "shorter than a header"),
        (u64::MAX.to_le_bytes().to_vec(), "longer than the file"),
        (raw("{", 0), "EOF"),
        (raw(&one("F32", "[4]", "[0,12]"), 12), "nvalid"),
        (raw(&one("F32", "[4]", "[4,20]"), 20), "nvalid"),
        (raw(&one("F32", "[4]", "[16,0]"), 16), "nvalid"),
        (raw(&one("F32", "[4611686018427387904,4]", "[0,16]"), 16), ""),
        (raw(&one("F32", "[18446744073709551615,18446744073709551615]", "[0,16]"), 16), ""),
        (raw(&one("F32", "[1099511627776]", "[0,4398046511104]"), 16), "not as long"),
        (raw(&one("F32", "[4]", "[0,18446744073709551615]"), 16), ""),
        (raw(&one("I64", "[4]", "[0,32]"), 32), "I64"),
        (raw(&one("F32", "[2,2]", "[0,16]"), 16), "[2, 2]"),
        (raw(&one("F99", "[4]", "[0,16]"), 16), "F99"),
        (file(&[("audio.norm.weight", 4)]), "audio.norm.weight"),
        (file(&[("lm_head.weight", 4)]), "is missing"),
        (file(&[(NORM, 4), ("model.norm.weight", 4)]), "twice"),
    ] {
        let error = problem(&bytes);
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let two = |second: &str| {
        let header = format!(
            r#"{{"{NORM}":{{"dtype":"F32","shape":[4],"data_offsets":[0,16]}},"lm_head.weight":{{"dtype":"F32","shape":[4],"data_offsets":{second}}}}}"#
        );
        raw(&header, 32)
    };
    assert!(read_norm(folder(WHOLE, &two("[16,32]")).path(), &[4]).is_ok());
    for overlapping in ["[8,24]", "[0,16]", "[12,28]"] {
        assert!(problem(&two(overlapping)).contains("nvalid"), "{overlapping}");
    }
}

#[test]
fn a_tensor_without_a_place_is_named() {
    let folder = folder(WHOLE, &file(&[(NORM, 4), ("lm_head.extra", 1)]));
    let mut weights = Weights::open(folder.path()).expect("opens");
    weights.read(NORM, &[4], DType::F32).expect("reads");
    let error = weights.finish().expect_err("one is left").to_string();
    assert!(error.contains("lm_head.extra"), "{error}");
}

#[test]
fn a_file_cut_short_after_opening_is_an_error() {
    let folder = folder(WHOLE, &file(&[(NORM, 4)]));
    let mut weights = Weights::open(folder.path()).expect("opens");
    let cut = std::fs::File::options().write(true).open(folder.path().join(WHOLE)).expect("opens");
    cut.set_len(40).expect("cuts");
    assert!(weights.read(NORM, &[4], DType::F32).is_err());
}

proptest! {
    #[test]
    fn no_damage_makes_it_panic(at in 0_usize..200, value: u8, cut in 0_usize..300) {
        let mut bytes = file(&[(NORM, 4), ("lm_head.weight", 3)]);
        let at = at % bytes.len();
        bytes[at] = value;
        bytes.truncate(cut.max(1));
        let folder = folder(WHOLE, &bytes);
        if let Ok(mut weights) = Weights::open(folder.path()) {
            let _ = weights.read(NORM, &[4], DType::F32);
            let _ = weights.read("lm_head.weight", &[3], DType::F16);
        }
    }
}
