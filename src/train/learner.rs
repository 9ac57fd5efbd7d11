//! Gradients of a batch, and steps along them.
//!
//! A step's batches are computed by workers, each with a core of its own: for a small model that is faster than splitting each
//! product. What they give is added in the batches' order, so that a step is the same whoever computed what.

use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{DType, Device, Tensor};
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::TrainError;
use super::batch::Batch;
use super::optimizer::{AdamW, OptimizerConfig, numbers, on_cpu};
use crate::model::cpu::floats;
use crate::model::{Causal, Qwen3Vl, TextInput, VisionRows, log_probabilities};

/// A model that learns.
#[derive(Debug)]
pub struct Learner {
    model: Qwen3Vl,
    optimizer: AdamW,
    workers: Vec<ThreadPool>,
}

/// What a batch's targets got.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Told {
    /// The logarithm of each target's probability, nats.
    pub log_probabilities: Vec<f32>,
    /// Whether each target was the most probable token.
    pub first: Vec<bool>,
}

/// What a step did.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Step {
    /// The loss, summed over the batches.
    pub loss: f64,
    /// Length of the gradient before it was cut.
    pub gradient_norm: f64,
    /// For each batch.
    pub told: Vec<Told>,
}

/// From a batch, which of a step's it is, and the logarithms of its targets' probabilities, `[outputs]`, to a loss, a number.
pub type Loss<'a> = &'a (dyn Fn(usize, &Batch, &Tensor) -> candle_core::Result<Tensor> + Sync);

impl Learner {
    /// A model loaded for training, and how it shall learn.
    ///
    /// # Errors
    /// [`TrainError::Options`] for a model that was not loaded for training.
    pub fn new(model: Qwen3Vl, config: OptimizerConfig) -> Result<Self, TrainError> {
        if model.variables().is_empty() {
            return Err(TrainError::Options("the model was not loaded for training".to_owned()));
        }
        let optimizer = AdamW::new(config, model.variables());
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let worker = |_| ThreadPoolBuilder::new().num_threads(1).build();
        let workers = (0..cores).map(worker).collect::<Result<_, _>>();
        let workers = workers.map_err(|error| TrainError::Options(format!("no thread to compute on: {error}")))?;
        Ok(Self { model, optimizer, workers })
    }

    /// The model as it is now.
    #[must_use]
    pub const fn model(&self) -> &Qwen3Vl {
        &self.model
    }

    /// The optimizer as it is now.
    #[must_use]
    pub const fn optimizer(&self) -> &AdamW {
        &self.optimizer
    }

    /// The same, to be restored.
    pub const fn optimizer_mut(&mut self) -> &mut AdamW {
        &mut self.optimizer
    }

    /// How many batches are computed at the same time.
    #[must_use]
    pub const fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Does something for each of some things on the workers, and gives the results in their order.
    pub(super) fn each<T: Sync, R: Send>(&self, things: &[T], done: impl Fn(&T) -> R + Sync) -> Vec<R> {
        self.each_of(things, |_, thing| done(thing))
    }

    /// The same with each thing's number.
    fn each_of<T: Sync, R: Send>(&self, things: &[T], done: impl Fn(usize, &T) -> R + Sync) -> Vec<R> {
        let (next, count) = (AtomicUsize::new(0), things.len());
        let work = || {
            let mut results = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(thing) = things.get(at) else { return results };
                results.push((at, done(at, thing)));
            }
        };
        let mut results: Vec<(usize, R)> = match self.workers.as_slice() {
            // One batch, or one core: all threads there are work on its products.
            _ if count <= 1 => things.iter().map(|thing| (0, done(0, thing))).collect(),
            [_] | [] => work(),
            workers => std::thread::scope(|scope| {
                let started: Vec<_> = workers.iter().map(|worker| scope.spawn(|| worker.install(work))).collect();
                started
                    .into_iter()
                    .flat_map(|work| work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                    .collect()
            }),
        };
        results.sort_by_key(|(at, _)| *at);
        results.into_iter().map(|(_, result)| result).collect()
    }

    /// A step at a rate along the gradients of the batches' losses, which are added.
    ///
    /// # Errors
    /// [`TrainError`]; the model is as it was then.
    pub fn step(&mut self, batches: &[Batch], rate: f64, loss: Loss<'_>) -> Result<Step, TrainError> {
        let computed = self.each_of(batches, |at, batch| gradients(&self.model, batch, &|batch, p| loss(at, batch, p)));
        let mut step = Step::default();
        let mut sums: Option<Vec<Vec<f32>>> = None;
        for computed in computed {
            let Gradients { loss, told, of } = computed?;
            step.loss += loss;
            step.told.push(told);
            match sums.as_mut() {
                None => sums = Some(of),
                Some(sums) => sums.iter_mut().zip(of).for_each(|(sum, of)| {
                    sum.iter_mut().zip(of).for_each(|(sum, of)| *sum += of);
                }),
            }
        }
        if let Some(sums) = sums {
            step.gradient_norm = self.optimizer.step(self.model.variables(), &sums, rate)?;
        }
        Ok(step)
    }

    /// What the batches' targets get, without learning.
    ///
    /// # Errors
    /// [`TrainError`].
    pub fn evaluate(&self, batches: &[Batch]) -> Result<Vec<Told>, TrainError> {
        self.evaluate_with(&self.model, batches)
    }

    /// The same by another model.
    ///
    /// # Errors
    /// [`TrainError`].
    pub fn evaluate_with(&self, model: &Qwen3Vl, batches: &[Batch]) -> Result<Vec<Told>, TrainError> {
        self.each(batches, |batch| forward(model, batch).map(|(_, told)| told)).into_iter().collect()
    }
}

/// A batch's part of a step.
#[derive(Debug, Clone)]
pub struct Gradients {
    /// Its loss.
    pub loss: f64,
    /// What its targets got.
    pub told: Told,
    /// In the order of the model's variables, each as long as its variable. Zeros where a variable had no part in it.
    pub of: Vec<Vec<f32>>,
}

/// The gradients of a loss with respect to a model's variables.
///
/// # Errors
/// [`TrainError`].
pub fn gradients(
    model: &Qwen3Vl,
    batch: &Batch,
    loss: &dyn Fn(&Batch, &Tensor) -> candle_core::Result<Tensor>,
) -> Result<Gradients, TrainError> {
    let (probabilities, told) = forward(model, batch)?;
    let loss = loss(batch, &probabilities)?;
    let number = loss.to_dtype(DType::F64)?.to_device(&Device::Cpu)?.to_scalar::<f64>()?;
    let mut store = loss.backward()?;
    let variables = model.variables().iter();
    let of = variables.map(|(_, variable)| match store.remove(variable) {
        Some(gradient) => numbers(&gradient),
        None => Ok(vec![0.0; variable.elem_count()]),
    });
    Ok(Gradients { loss: number, told, of: of.collect::<Result<_, _>>()? })
}

/// Logarithms of the probabilities of a batch's targets, `[outputs]`, with a gradient; and all that the targets get.
fn forward(model: &Qwen3Vl, batch: &Batch) -> Result<(Tensor, Told), TrainError> {
    let features = model.encode(&batch.pictures)?;
    let places = batch.places.iter().filter_map(|(first, picture)| {
        let features = features.get(*picture)?;
        Some(VisionRows { first: *first, features, rows: 0..u32::try_from(features.tokens()).ok()? })
    });
    let vision: Vec<VisionRows<'_>> = places.collect();
    let input =
        TextInput { tokens: &batch.tokens, positions: &batch.positions, vision: &vision, outputs: &batch.outputs };
    let logits = model.forward(&input, &mut Causal::tree(&batch.branches, model.mode()))?;
    let probabilities = log_probabilities(&logits, &batch.targets)?;
    let first = most_probable(&logits, &batch.targets)?;
    let told = Told { log_probabilities: numbers(&probabilities)?, first };
    Ok((probabilities, told))
}

/// Whether each target has the highest of its row's logits.
fn most_probable(logits: &Tensor, targets: &[u32]) -> Result<Vec<bool>, TrainError> {
    let vocab = logits.dims2()?.1;
    let most = |(row, target): (&[f32], &u32)| {
        let own = row.get(*target as usize).copied().unwrap_or(f32::NEG_INFINITY);
        // Of equals the first is taken, as by who samples greedily.
        row.iter().enumerate().all(|(id, logit)| *logit < own || id >= *target as usize && *logit <= own)
    };
    let first = |logits: &[f32]| Ok(logits.chunks_exact(vocab.max(1)).zip(targets).map(most).collect());
    Ok(floats(&on_cpu(&logits.detach())?, first)?)
}
