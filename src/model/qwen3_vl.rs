//! The model as its users see it: loaded from a checkpoint's folder, it encodes pictures and turns tokens into logits.
//!
//! The parts stand below: `processor` and `rope` are plain arithmetic, `vision` and `text` the two networks, `loader` the one
//! place that decides how a weight is kept. Knows nothing of batches' origin or of caches.

mod loader;
pub(super) mod processor;
pub(super) mod rope;
pub(super) mod text;
pub(super) mod vision;

use std::path::Path;

use candle_core::{DType, Device, Tensor, Var};

use super::weights::Draw;
use super::{Attend, Mode, ModelConfig, ModelError, ProcessorConfig, Quantization, Weights, eos_ids};
use crate::types::Frame;
use loader::Loader;
use processor::Patches;
use text::{TextInput, TextModel};
use vision::{VisionFeatures, VisionTower};

/// How to load a model.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Where it runs.
    pub device: Device,
    /// What weights are kept as: f32, bf16 or f16. Off the CPU it is also what is computed in; on the CPU that is f32, but for
    /// f64, which is there to check gradients.
    pub dtype: DType,
    /// How the decoder's linear layers and the head are kept instead. Not with [`Mode::Training`].
    pub quantization: Option<Quantization>,
    /// What for.
    pub mode: Mode,
}

impl LoadOptions {
    /// Full precision on the CPU.
    #[must_use]
    pub const fn cpu(mode: Mode) -> Self {
        Self { device: Device::Cpu, dtype: DType::F32, quantization: None, mode }
    }
}

/// A Qwen3-VL with its weights. Running it changes nothing in it.
#[derive(Debug)]
pub struct Qwen3Vl {
    config: ModelConfig,
    processor: ProcessorConfig,
    eos_ids: Vec<u32>,
    text: TextModel,
    vision: VisionTower,
    variables: Vec<(String, Var)>,
    device: Device,
    dtype: DType,
    mode: Mode,
    weight_bytes: usize,
}

impl Qwen3Vl {
    /// Loads the checkpoint in `folder`.
    ///
    /// # Errors
    /// [`ModelError`] that names the file and what is wrong with it, or the option that can't be.
    pub fn load(folder: &Path, options: &LoadOptions) -> Result<Self, ModelError> {
        Self::with(folder, Weights::open(folder)?, options)
    }

    /// A model that has learned nothing: `folder` holds a checkpoint's configuration, and `draw` gives each tensor's numbers from
    /// its name and shape.
    ///
    /// # Errors
    /// As [`Self::load`]; [`ModelError::Options`] where `draw` gives too few or too many.
    pub fn fresh(folder: &Path, draw: Draw<'_>, options: &LoadOptions) -> Result<Self, ModelError> {
        Self::with(folder, Weights::drawn(draw), options)
    }

    fn with(folder: &Path, weights: Weights<'_>, options: &LoadOptions) -> Result<Self, ModelError> {
        let config = ModelConfig::load(folder)?;
        let processor = ProcessorConfig::load(folder, &config.vision)?;
        let eos_ids = eos_ids(folder, &config.text)?;
        let mut loader = Loader::new(weights, options.clone())?;
        let vision = VisionTower::load(&mut loader, &config.vision)?;
        let text = TextModel::load(&mut loader, &config)?;
        let dtype = loader.compute_dtype();
        let (variables, weight_bytes) = loader.finish()?;
        let (device, mode) = (options.device.clone(), options.mode);
        Ok(Self { config, processor, eos_ids, text, vision, variables, device, dtype, mode, weight_bytes })
    }

    /// Sizes and ids.
    #[must_use]
    pub const fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// How pixels become patches.
    #[must_use]
    pub const fn processor(&self) -> &ProcessorConfig {
        &self.processor
    }

    /// Ids that end a text. May be empty.
    #[must_use]
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// Where it runs.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// What activations are: so also queries, keys and values as [`Attend`] gets them.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// What it was loaded for.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Bytes that the weights take on the device.
    #[must_use]
    pub const fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Every weight under its name in the checkpoint's layout, in the checkpoint's shape. Empty unless loaded for training.
    /// Setting one changes the model.
    #[must_use]
    pub fn variables(&self) -> &[(String, Var)] {
        &self.variables
    }

    /// Side in pixels of the square that becomes one token: frames' sides are multiples of it.
    #[must_use]
    pub const fn token_side(&self) -> usize {
        self.processor.patch_size * self.processor.merge_size
    }

    /// Cuts one picture into patches.
    ///
    /// # Errors
    /// [`ModelError::Input`] when its sides are no multiples of [`Qwen3Vl::token_side`].
    pub fn image(&self, frame: &Frame) -> Result<Patches, ModelError> {
        processor::image(&self.processor, frame)
    }

    /// Cuts a run of frames into patches that reach over several frames each. The last frame is repeated to fill the last patch.
    ///
    /// # Errors
    /// [`ModelError::Input`] when there is none, they differ in size, or their sides are as for [`Qwen3Vl::image`].
    pub fn video(&self, frames: &[Frame]) -> Result<Patches, ModelError> {
        processor::video(&self.processor, frames)
    }

    /// Encodes pictures, each on its own whatever stands beside it.
    ///
    /// # Errors
    /// [`ModelError::Input`] for patches that are not this model's; those of the tensor library.
    pub fn encode(&self, pictures: &[Patches]) -> Result<Vec<VisionFeatures>, ModelError> {
        self.vision.encode(pictures, &self.device)
    }

    /// Runs the decoder over a ragged batch: `[outputs, vocab]` in f32 (f64 where the weights are), one row for each row of `input.outputs`.
    ///
    /// # Errors
    /// [`ModelError::Input`] for input that contradicts itself or the model; those of the tensor library and of `attention`.
    pub fn forward(&self, input: &TextInput<'_>, attention: &mut dyn Attend) -> Result<Tensor, ModelError> {
        self.text.forward(input, attention)
    }
}
