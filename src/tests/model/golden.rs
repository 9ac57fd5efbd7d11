//! Prompts of the golden files, rebuilt: token ids from the file, pixels from the formula.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use candle_core::{D, Device, Tensor};
use paravt::model::{
    Causal, LoadOptions, Mode, Patches, Qwen3Vl, Span, TextInput, VisionFeatures, VisionRows, positions,
};
use paravt::types::{Frame, FrameSize};
use serde_json::Value;

use crate::support::root;

/// A folder or file of the fixtures.
pub(super) fn fixture(name: &str) -> PathBuf {
    root("src/tests/fixtures/qwen3_vl").join(name)
}

pub(super) fn tiny_folder() -> PathBuf {
    root("model_cards/paravt-tiny")
}

pub(super) fn load(folder: &Path, mode: Mode) -> Qwen3Vl {
    Qwen3Vl::load(folder, &LoadOptions::cpu(mode)).expect("loads")
}

/// One file of golden values.
pub(super) struct Golden {
    cases: Value,
    rows: HashMap<String, Tensor>,
}

impl Golden {
    pub(super) fn read(name: &str) -> Self {
        let text = std::fs::read(fixture(&format!("{name}.json"))).expect("golden values");
        let rows = candle_core::safetensors::load(fixture(&format!("{name}.safetensors")), &Device::Cpu);
        Self { cases: serde_json::from_slice(&text).expect("json"), rows: rows.expect("golden rows") }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.cases.as_object().expect("cases").keys().cloned().collect()
    }

    pub(super) fn case(&self, name: &str) -> Case {
        let case = &self.cases[name];
        let numbers = |value: &Value| -> Vec<u32> {
            value.as_array().expect("a list").iter().map(|number| number.as_u64().expect("a number") as u32).collect()
        };
        let size = |width: &Value, height: &Value| FrameSize {
            width: width.as_u64().expect("a width") as u32,
            height: height.as_u64().expect("a height") as u32,
        };
        let images = case["images"].as_array().expect("images").iter().enumerate();
        let images = images.map(|(index, pair)| frame(index as u32, size(&pair[0], &pair[1]))).collect();
        let video = &case["video"];
        let count = video["frames"].as_u64().unwrap_or(0) as u32;
        let video = (0..count).map(|index| frame(100 + index, size(&video["width"], &video["height"]))).collect();
        let positions = case["positions"].as_array().expect("positions").iter();
        Case {
            tokens: numbers(&case["tokens"]),
            positions: positions.map(|place| numbers(place).try_into().expect("three")).collect(),
            images,
            video,
            rows: numbers(&case["rows"]),
            greedy: numbers(&case["greedy"]),
            logits: self.rows[name].clone(),
        }
    }
}

/// A prompt and what the reference makes of it.
pub(super) struct Case {
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<[u32; 3]>,
    images: Vec<Frame>,
    pub(super) video: Vec<Frame>,
    pub(super) rows: Vec<u32>,
    pub(super) greedy: Vec<u32>,
    pub(super) logits: Tensor,
}

/// A picture by the formula that the script uses too.
fn frame(index: u32, size: FrameSize) -> Frame {
    let mut rgb = Vec::with_capacity((3 * size.width * size.height) as usize);
    for y in 0..size.height {
        for x in 0..size.width {
            for c in 0..3 {
                let value = x * 3 + y * 5 + (x * y) / 7 + c * 61 + index * 37 + ((x / 8) ^ (y / 8)) * 17;
                rgb.push((value % 256) as u8);
            }
        }
    }
    Frame { time: None, size, rgb: Bytes::from(rgb) }
}

/// A prompt whose pictures are encoded.
pub(super) struct Prompt {
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<[u32; 3]>,
    pub(super) next: u32,
    features: Vec<VisionFeatures>,
    /// First row, which picture, which of its rows.
    runs: Vec<(u32, usize, Range<u32>)>,
}

impl Case {
    pub(super) fn patches(&self, model: &Qwen3Vl) -> Vec<Patches> {
        let mut patches: Vec<Patches> = self.images.iter().map(|frame| model.image(frame).expect("patches")).collect();
        if !self.video.is_empty() {
            patches.push(model.video(&self.video).expect("patches"));
        }
        patches
    }

    /// Encodes the pictures and lays the tokens out: runs of a picture's id are its rows; a video gives one layer to each run.
    pub(super) fn prompt(&self, model: &Qwen3Vl) -> Prompt {
        let patches = self.patches(model);
        let features = model.encode(&patches).expect("encodes");
        let ids = model.config().tokens;
        let merge = model.config().vision.merge_size;
        let (mut spans, mut runs) = (Vec::new(), Vec::new());
        let (mut at, mut image, mut layer) = (0, 0, 0);
        for run in
            self.tokens.chunk_by(|a, b| a == b || ![*a, *b].iter().any(|id| *id == ids.image || *id == ids.video))
        {
            let length = run.len() as u32;
            if run[0] == ids.image {
                spans.push(Span::Vision(patches[image].grid));
                runs.push((at, image, 0..length));
                image += 1;
            } else if run[0] == ids.video {
                let picture = self.images.len();
                let mut grid = patches[picture].grid;
                grid.t = 1;
                assert_eq!(grid.tokens(merge) as u32, length);
                spans.push(Span::Vision(grid));
                runs.push((at, picture, layer * length..(layer + 1) * length));
                layer += 1;
            } else {
                spans.push(Span::Text(run.len()));
            }
            at += length;
        }
        let places = positions(&spans, merge, 0).expect("positions");
        Prompt { tokens: self.tokens.clone(), positions: places.tokens, next: places.next, features, runs }
    }
}

impl Prompt {
    pub(super) fn vision(&self, first: u32) -> Vec<VisionRows<'_>> {
        let rows = |(at, picture, rows): &(u32, usize, Range<u32>)| VisionRows {
            first: first + at,
            features: &self.features[*picture],
            rows: rows.clone(),
        };
        self.runs.iter().map(rows).collect()
    }

    /// One more token of text.
    pub(super) fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.positions.push([self.next; 3]);
        self.next += 1;
    }

    /// Logits of these rows, computed on its own.
    pub(super) fn logits(&self, model: &Qwen3Vl, rows: &[u32]) -> Tensor {
        let input =
            TextInput { tokens: &self.tokens, positions: &self.positions, vision: &self.vision(0), outputs: rows };
        model.forward(&input, &mut Causal::new(&[self.tokens.len()], model.mode())).expect("logits")
    }

    pub(super) fn greedy(mut self, model: &Qwen3Vl, count: usize) -> Vec<u32> {
        let mut text = Vec::new();
        for _ in 0..count {
            let last = self.tokens.len() as u32 - 1;
            let best = self.logits(model, &[last]).argmax(D::Minus1).and_then(|best| best.to_vec1::<u32>());
            let best = best.expect("a token")[0];
            text.push(best);
            self.push(best);
        }
        text
    }
}

/// Largest absolute difference.
pub(super) fn distance(a: &Tensor, b: &Tensor) -> f32 {
    assert_eq!(a.dims(), b.dims());
    (a - b).and_then(|d| d.abs()?.flatten_all()?.max(0)?.to_scalar()).expect("a number")
}
