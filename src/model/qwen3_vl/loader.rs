//! Turns named weights into layers: the one place that knows which are variables, which are quantized, and in which type each is kept.

use candle_core::{DType, Tensor, Var};

use super::LoadOptions;
use crate::model::linear::{Fused, Linear};
use crate::model::{Mode, ModelError, Weights};

/// A checkpoint being loaded.
pub(super) struct Loader<'a> {
    weights: Weights<'a>,
    options: LoadOptions,
    variables: Vec<(String, Var)>,
    bytes: usize,
}

/// Weight and bias of a layer norm.
#[derive(Debug, Clone)]
pub(super) struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
}

impl LayerNorm {
    /// Over the last dimension.
    pub(super) fn forward(&self, x: &Tensor, mode: Mode) -> candle_core::Result<Tensor> {
        /// Fixed in the reference.
        const EPS: f64 = 1e-6;
        mode.layer_norm(x, &self.weight, &self.bias, EPS)
    }
}

/// Name, rows, and whether to quantize.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) rows: usize,
    pub(super) width: usize,
    pub(super) bias: bool,
    /// Follow [`LoadOptions::quantization`].
    pub(super) quantize: bool,
}

impl<'a> Loader<'a> {
    pub(super) fn new(weights: Weights<'a>, options: LoadOptions) -> Result<Self, ModelError> {
        if options.mode == Mode::Training && options.quantization.is_some() {
            return Err(ModelError::Options("quantized weights can't be trained".to_owned()));
        }
        Ok(Self { weights, options, variables: Vec::new(), bytes: 0 })
    }

    /// The variables and how many bytes the weights take, once all of the checkpoint was used.
    pub(super) fn finish(self) -> Result<(Vec<(String, Var)>, usize), ModelError> {
        self.weights.finish()?;
        Ok((self.variables, self.bytes))
    }

    pub(super) const fn mode(&self) -> Mode {
        self.options.mode
    }

    /// What activations are.
    pub(super) fn compute_dtype(&self) -> DType {
        if self.options.device.is_cpu() && self.options.dtype != DType::F64 { DType::F32 } else { self.options.dtype }
    }

    /// A tensor that leaves the checkpoint unneeded.
    pub(super) fn ignore(&mut self, name: &str) {
        self.weights.ignore(name);
    }

    /// A norm's weight, a bias, a table of positions: small, and of the activations' type.
    pub(super) fn vector(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        self.tensor(name, shape, self.compute_dtype())
    }

    /// A large matrix, of the weights' type.
    pub(super) fn matrix(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        self.tensor(name, shape, self.options.dtype)
    }

    fn tensor(&mut self, name: &str, shape: &[usize], dtype: DType) -> Result<Tensor, ModelError> {
        let tensor = self.weights.read(name, shape, dtype)?;
        self.keep(name, &tensor)
    }

    /// Moves a tensor to its device, and makes it a variable where weights are such.
    fn keep(&mut self, name: &str, tensor: &Tensor) -> Result<Tensor, ModelError> {
        let tensor = tensor.to_device(&self.options.device)?;
        self.bytes += tensor.elem_count() * tensor.dtype().size_in_bytes();
        if self.options.mode == Mode::Inference {
            return Ok(tensor);
        }
        let variable = Var::from_tensor(&tensor)?;
        let tensor = variable.as_tensor().clone();
        self.variables.push((name.to_owned(), variable));
        Ok(tensor)
    }

    /// `<name>.weight` and `<name>.bias`, both `[width]`.
    pub(super) fn layer_norm(&mut self, name: &str, width: usize) -> Result<LayerNorm, ModelError> {
        let weight = self.vector(&format!("{name}.weight"), &[width])?;
        let bias = self.vector(&format!("{name}.bias"), &[width])?;
        Ok(LayerNorm { weight, bias })
    }

    /// `<name>.weight`, `[rows, width]`, and perhaps `<name>.bias`.
    pub(super) fn linear(&mut self, name: &str, shape: Shape) -> Result<Linear, ModelError> {
        self.stacked(&[(name.to_owned(), shape.rows)], shape)
    }

    /// Layers that read the same input: `<prefix><name>` for each, with its rows. `shape.rows` is not used.
    pub(super) fn fused(&mut self, prefix: &str, parts: &[(&str, usize)], shape: Shape) -> Result<Fused, ModelError> {
        let named: Vec<(String, usize)> = parts.iter().map(|(name, rows)| (format!("{prefix}{name}"), *rows)).collect();
        match self.options.mode {
            Mode::Inference => {
                let rows = parts.iter().map(|(_, rows)| *rows).collect();
                Ok(Fused::Together(self.stacked(&named, shape)?, rows))
            }
            Mode::Training => {
                let layers = named.iter().map(|(name, rows)| self.linear(name, Shape { rows: *rows, ..shape }));
                Ok(Fused::Apart(layers.collect::<Result<_, _>>()?))
            }
        }
    }

    /// A head that is the embedding table: the table itself, or a copy of it in panels or quantized.
    pub(super) fn tied(&mut self, name: &str, table: &Tensor, shape: Shape) -> Result<Linear, ModelError> {
        if self.options.quantization.is_some() {
            self.linear(name, shape)
        } else {
            Ok(self.plain(table.clone(), None)?)
        }
    }

    /// One layer from several whose rows stand one below the other.
    fn stacked(&mut self, parts: &[(String, usize)], shape: Shape) -> Result<Linear, ModelError> {
        let suffixed = |suffix: &str| -> Vec<(String, usize)> {
            parts.iter().map(|(name, rows)| (format!("{name}.{suffix}"), *rows)).collect()
        };
        let weights = suffixed("weight");
        let name = weights.first().map_or("", |(name, _)| name.as_str());
        let bias = if shape.bias {
            let names = suffixed("bias");
            let bias = self.weights.read_stacked(&names, &[], self.compute_dtype())?;
            Some(self.keep(&names[0].0, &bias)?)
        } else {
            None
        };
        if let Some(quantization) = self.options.quantization.filter(|_| shape.quantize) {
            let weight = self.weights.read_stacked(&weights, &[shape.width], DType::F32)?;
            let layer = Linear::quantized(&weight, bias.clone(), quantization, &self.options.device)?;
            // Off the CPU an f32 weight would meet input of another type.
            let dtype = self.compute_dtype();
            let layer = match layer {
                Some(layer) => layer,
                None => self.plain(weight.to_dtype(dtype)?.to_device(&self.options.device)?, bias)?,
            };
            self.bytes += layer.bytes();
            return Ok(layer);
        }
        let weight = self.weights.read_stacked(&weights, &[shape.width], self.options.dtype)?;
        let weight = self.keep(name, &weight)?;
        Ok(self.plain(weight, bias)?)
    }

    /// A layer that isn't quantized.
    pub(super) fn plain(&self, weight: Tensor, bias: Option<Tensor>) -> candle_core::Result<Linear> {
        match self.options.mode {
            Mode::Inference => Linear::for_inference(weight, bias),
            Mode::Training => Ok(Linear::for_training(weight, bias)),
        }
    }
}
