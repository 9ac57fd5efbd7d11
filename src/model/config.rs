//! What a checkpoint says about itself: `config.json` as transformers 4 and 5 write it, the picture processor's numbers, and
//! the tokens that end a text.
//!
//! Every number is checked here, so that the network may divide and index by them. Knows nothing of tensors.

mod json;

use std::path::Path;

use serde_json::Value;

use super::ModelError;
use json::Section;

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
/// No width, count or id of a real model is larger; products of two of them stay far below `usize::MAX`.
const SIZE_MAX: u64 = 1 << 24;
const LAYERS_MAX: usize = 1024;
/// What the vision tower of Qwen3-VL was trained with, where a checkpoint leaves it out.
const MEAN_AND_DEVIATION: [f32; 3] = [0.5, 0.5, 0.5];
/// Base of the vision tower's rotary angles, which no configuration of transformers 4 states.
const VISION_THETA: f64 = 10_000.0;

/// The whole model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The decoder.
    pub text: TextConfig,
    /// The picture encoder.
    pub vision: VisionConfig,
    /// Ids that stand for pictures.
    pub tokens: TokenIds,
    /// The head is the embedding table.
    pub tied_head: bool,
    /// What it says its weights are stored as (`bfloat16`), in PyTorch's names. Weight files say it for themselves.
    pub stored_dtype: Option<String>,
}

/// The decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct TextConfig {
    /// Rows of the embedding table and of the head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated part.
    pub intermediate_size: usize,
    /// Number of layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head, even. `heads * head_dim` need not be `hidden_size`.
    pub head_dim: usize,
    /// Added to the mean square before its root.
    pub rms_norm_eps: f64,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// How many of the `head_dim / 2` angles follow time, height and width.
    pub mrope_section: [usize; 3],
    /// Longest text the model was made for, in tokens.
    pub context_tokens: usize,
    /// Attention's projections have biases.
    pub attention_bias: bool,
    /// Ids that end a text, as `config.json` has them. Often empty: see [`eos_ids`].
    pub eos_ids: Vec<u32>,
}

/// The picture encoder.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionConfig {
    /// Number of blocks.
    pub depth: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width between the two linear layers of a block.
    pub intermediate_size: usize,
    /// Attention heads; `hidden_size / heads` is a multiple of 4.
    pub heads: usize,
    /// Width of what leaves the merger: the decoder's `hidden_size`.
    pub out_hidden_size: usize,
    /// Colours of a pixel: 3.
    pub channels: usize,
    /// Side of a patch in pixels.
    pub patch_size: usize,
    /// Side, in patches, of the square that becomes one token.
    pub merge_size: usize,
    /// Frames in a patch.
    pub temporal_patch_size: usize,
    /// Side of the square table of position embeddings.
    pub position_side: usize,
    /// Blocks whose output is added to the decoder's first layers, ascending.
    pub deepstack: Vec<usize>,
    /// Base of the rotary angles.
    pub rope_theta: f64,
}

impl VisionConfig {
    /// Numbers in one patch.
    #[must_use]
    pub const fn patch_width(&self) -> usize {
        self.channels * self.temporal_patch_size * self.patch_size * self.patch_size
    }
}

/// Ids that stand for pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenIds {
    /// One row of an image.
    pub image: u32,
    /// One row of a video.
    pub video: u32,
    /// Before a picture.
    pub vision_start: u32,
    /// After a picture.
    pub vision_end: u32,
}

/// How pixels become patches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProcessorConfig {
    /// Side of a patch in pixels.
    pub patch_size: usize,
    /// Side, in patches, of the square that becomes one token.
    pub merge_size: usize,
    /// Frames in a patch.
    pub temporal_patch_size: usize,
    /// Subtracted from each colour (0 to 1).
    pub mean: [f32; 3],
    /// By which each colour is then divided.
    pub deviation: [f32; 3],
}

impl ModelConfig {
    /// Reads `config.json` of a checkpoint's folder.
    ///
    /// # Errors
    /// [`ModelError::Checkpoint`] when it is missing, is no Qwen3-VL (dense), or holds a number that can't be.
    pub fn load(folder: &Path) -> Result<Self, ModelError> {
        let root = json::read(folder, CONFIG)?.ok_or_else(|| ModelError::checkpoint(CONFIG, "missing"))?;
        Self::parse(&root)
    }

    /// The same from a value already read.
    ///
    /// # Errors
    /// As [`ModelConfig::load`].
    pub fn parse(root: &Value) -> Result<Self, ModelError> {
        let root = Section::root(CONFIG, root)?;
        let dense = |name: &Value| name.as_str() == Some("Qwen3VLForConditionalGeneration");
        match root.get("architectures") {
            Some(Value::Array(names)) if names.iter().any(dense) => {}
            None if root.text("model_type")? == Some("qwen3_vl") => {}
            _ => return Err(root.wrong("architectures", "is not Qwen3VLForConditionalGeneration")),
        }
        let text_section = root.section("text_config")?;
        let text = TextConfig::parse(&text_section)?;
        let vision = VisionConfig::parse(&root.section("vision_config")?)?;
        if vision.out_hidden_size != text.hidden_size {
            return Err(root.wrong("vision_config.out_hidden_size", "is not text_config.hidden_size"));
        }
        if vision.deepstack.len() > text.layers {
            return Err(root.wrong("vision_config.deepstack_visual_indexes", "are more than the decoder's layers"));
        }
        let id = |field| root.id(field, text.vocab_size);
        let tokens = TokenIds {
            image: id("image_token_id")?,
            video: id("video_token_id")?,
            vision_start: id("vision_start_token_id")?,
            vision_end: id("vision_end_token_id")?,
        };
        // transformers 4 writes it at the root; some of 5's checkpoints only beside the decoder's numbers.
        let tied_head = match root.flag("tie_word_embeddings")? {
            Some(tied) => tied,
            None => text_section.flag("tie_word_embeddings")?.unwrap_or(false),
        };
        // `torch_dtype` before transformers 5, and in some checkpoints only beside the decoder's numbers.
        let mut stored_dtype = None;
        for section in [&root, &text_section] {
            for field in ["dtype", "torch_dtype"] {
                stored_dtype = stored_dtype.or(section.text(field)?.map(str::to_owned));
            }
        }
        Ok(Self { text, vision, tokens, tied_head, stored_dtype })
    }
}

impl TextConfig {
    /// Numbers in the matrices of a layer.
    #[must_use]
    pub const fn layer_weights(&self) -> usize {
        let (query, key) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        self.hidden_size * (2 * query + 2 * key + 3 * self.intermediate_size)
    }

    fn parse(text: &Section<'_>) -> Result<Self, ModelError> {
        if text.text("hidden_act")?.is_some_and(|name| name != "silu") {
            return Err(text.wrong("hidden_act", "is not silu"));
        }
        let (hidden_size, heads) = (text.size("hidden_size")?, text.size("num_attention_heads")?);
        let kv_heads = text.optional_size("num_key_value_heads")?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(text.wrong("num_attention_heads", "is no multiple of num_key_value_heads"));
        }
        let head_dim = text.optional_size("head_dim")?.unwrap_or(hidden_size / heads);
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(text.wrong("head_dim", "is not even and above 0"));
        }
        let layers = text.size("num_hidden_layers")?;
        if layers > LAYERS_MAX {
            return Err(text.wrong("num_hidden_layers", "is too large"));
        }
        let (rope_theta, mrope_section) = rope(text, head_dim)?;
        let rms_norm_eps = text.optional_number("rms_norm_eps")?.unwrap_or(1e-6);
        if !(0.0..0.1).contains(&rms_norm_eps) {
            return Err(text.wrong("rms_norm_eps", "is not a small number"));
        }
        let vocab_size = text.size("vocab_size")?;
        Ok(Self {
            vocab_size,
            hidden_size,
            intermediate_size: text.size("intermediate_size")?,
            layers,
            heads,
            kv_heads,
            head_dim,
            rms_norm_eps,
            rope_theta,
            mrope_section,
            context_tokens: text.size("max_position_embeddings")?,
            attention_bias: text.flag("attention_bias")?.unwrap_or(false),
            eos_ids: text.ids("eos_token_id", vocab_size)?,
        })
    }
}

/// `rope_theta` and `rope_scaling` of transformers 4, or both in the `rope_parameters` of 5.
fn rope(text: &Section<'_>, head_dim: usize) -> Result<(f64, [usize; 3]), ModelError> {
    let parameters = match text.optional_section("rope_parameters")? {
        Some(parameters) => parameters,
        None => text
            .optional_section("rope_scaling")?
            .ok_or_else(|| text.wrong("rope_parameters", "is missing, and rope_scaling too"))?,
    };
    let theta = match parameters.optional_number("rope_theta")? {
        Some(theta) => theta,
        None => text.optional_number("rope_theta")?.ok_or_else(|| text.wrong("rope_theta", "is missing"))?,
    };
    if !(1.0..=1e12).contains(&theta) {
        return Err(text.wrong("rope_theta", "is not a base of angles"));
    }
    let kind = match parameters.text("rope_type")? {
        Some(kind) => Some(kind),
        None => parameters.text("type")?,
    };
    if kind.is_some_and(|kind| kind != "default" && kind != "mrope") {
        return Err(parameters.wrong("rope_type", "is not default: scaled angles are not supported"));
    }
    if parameters.flag("mrope_interleaved")? == Some(false) {
        return Err(parameters.wrong("mrope_interleaved", "is false: that is another model family"));
    }
    let sizes = parameters.sizes("mrope_section")?;
    match <[usize; 3]>::try_from(sizes) {
        Ok(section) if section.iter().sum::<usize>() == head_dim / 2 => Ok((theta, section)),
        _ => Err(parameters.wrong("mrope_section", "is not three counts with the sum head_dim / 2")),
    }
}

impl VisionConfig {
    fn parse(vision: &Section<'_>) -> Result<Self, ModelError> {
        if vision.text("hidden_act")?.is_some_and(|name| name != "gelu_pytorch_tanh") {
            return Err(vision.wrong("hidden_act", "is not gelu_pytorch_tanh"));
        }
        let (hidden_size, heads) = (vision.size("hidden_size")?, vision.size("num_heads")?);
        if !hidden_size.is_multiple_of(heads) || !(hidden_size / heads).is_multiple_of(4) {
            return Err(vision.wrong("num_heads", "does not cut hidden_size into heads of a multiple of 4"));
        }
        let depth = vision.size("depth")?;
        if depth > LAYERS_MAX {
            return Err(vision.wrong("depth", "is too large"));
        }
        let channels = vision.optional_size("in_channels")?.unwrap_or(3);
        if channels != 3 {
            return Err(vision.wrong("in_channels", "is not 3"));
        }
        let positions = vision.size("num_position_embeddings")?;
        let position_side = positions.isqrt();
        if position_side * position_side != positions {
            return Err(vision.wrong("num_position_embeddings", "is no square"));
        }
        let deepstack = vision.sizes("deepstack_visual_indexes")?;
        if !deepstack.is_sorted_by(|a, b| a < b) || deepstack.last().is_some_and(|last| *last >= depth) {
            return Err(vision.wrong("deepstack_visual_indexes", "are not ascending blocks"));
        }
        let theta = match vision.optional_section("rope_parameters")? {
            Some(rope) => rope.optional_number("rope_theta")?.unwrap_or(VISION_THETA),
            None => VISION_THETA,
        };
        if !(1.0..=1e12).contains(&theta) {
            return Err(vision.wrong("rope_parameters.rope_theta", "is not a base of angles"));
        }
        let config = Self {
            depth,
            hidden_size,
            intermediate_size: vision.size("intermediate_size")?,
            heads,
            out_hidden_size: vision.size("out_hidden_size")?,
            channels,
            patch_size: vision.size("patch_size")?,
            merge_size: vision.size("spatial_merge_size")?,
            temporal_patch_size: vision.size("temporal_patch_size")?,
            position_side,
            deepstack,
            rope_theta: theta,
        };
        let side = (config.patch_size, config.merge_size, config.temporal_patch_size);
        if side.0 > 256 || side.1 > 64 || side.2 > 64 {
            return Err(vision.wrong("patch_size", "or spatial_merge_size or temporal_patch_size is too large"));
        }
        Ok(config)
    }
}

impl ProcessorConfig {
    /// Reads `preprocessor_config.json`, `video_preprocessor_config.json`, or transformers 5's `processor_config.json`,
    /// whichever there is first. What none of them says is taken from the model.
    ///
    /// # Errors
    /// [`ModelError::Checkpoint`] when what they say can't be, or is not what the vision tower was made for.
    pub fn load(folder: &Path, vision: &VisionConfig) -> Result<Self, ModelError> {
        for file in ["preprocessor_config.json", "video_preprocessor_config.json"] {
            if let Some(given) = json::read(folder, file)? {
                return Self::parse(&Section::root(file, &given)?, vision);
            }
        }
        const JOINT: &str = "processor_config.json";
        if let Some(given) = json::read(folder, JOINT)? {
            let root = Section::root(JOINT, &given)?;
            for part in ["image_processor", "video_processor"] {
                if let Some(section) = root.optional_section(part)? {
                    return Self::parse(&section, vision);
                }
            }
        }
        Ok(Self {
            patch_size: vision.patch_size,
            merge_size: vision.merge_size,
            temporal_patch_size: vision.temporal_patch_size,
            mean: MEAN_AND_DEVIATION,
            deviation: MEAN_AND_DEVIATION,
        })
    }

    fn parse(given: &Section<'_>, vision: &VisionConfig) -> Result<Self, ModelError> {
        let size = |field: &'static str, of_model: usize| match given.optional_size(field)? {
            Some(size) if size != of_model => Err(given.wrong(field, "is not what the vision tower was made for")),
            _ => Ok(of_model),
        };
        let colours = |field: &'static str| match given.numbers(field)? {
            None => Ok(MEAN_AND_DEVIATION),
            Some(values) => match <[f64; 3]>::try_from(values) {
                Ok(values) => Ok(values.map(|value| value as f32)),
                Err(_) => Err(given.wrong(field, "is not three numbers")),
            },
        };
        let (mean, deviation) = (colours("image_mean")?, colours("image_std")?);
        if deviation.iter().any(|value| *value <= 0.0) {
            return Err(given.wrong("image_std", "is not above 0"));
        }
        Ok(Self {
            patch_size: size("patch_size", vision.patch_size)?,
            merge_size: size("merge_size", vision.merge_size)?,
            temporal_patch_size: size("temporal_patch_size", vision.temporal_patch_size)?,
            mean,
            deviation,
        })
    }
}

/// The ids that end a text: those of `generation_config.json`, else those of `config.json`. May be empty.
///
/// # Errors
/// [`ModelError::Checkpoint`] when the file can't be read or names an id that the model does not have.
pub fn eos_ids(folder: &Path, text: &TextConfig) -> Result<Vec<u32>, ModelError> {
    let given = json::read(folder, GENERATION)?;
    let listed = match &given {
        Some(given) => Section::root(GENERATION, given)?.ids("eos_token_id", text.vocab_size)?,
        None => Vec::new(),
    };
    Ok(if listed.is_empty() { text.eos_ids.clone() } else { listed })
}

#[cfg(test)]
mod tests;
