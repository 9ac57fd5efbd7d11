//! A fixed batch and steps on it, to time them, and to compute the same elsewhere.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Tensor};

use super::TrainError;
use super::batch::{Batch, Row};
use super::learner::Learner;
use super::optimizer::OptimizerConfig;
use super::synthetic::{Lesson, World};
use crate::card::ModelCard;
use crate::engine::native::transcript::Transcriber;
use crate::model::{LoadOptions, Mode, Patches, Qwen3Vl};

/// Whole episodes on signal boards, and a learner that takes the same step again and again.
#[derive(Debug)]
pub struct Bench {
    rows: Vec<Row>,
    learner: Learner,
}

impl Bench {
    /// So many rows, on the checkpoint in `base`.
    ///
    /// # Errors
    /// [`TrainError`].
    pub fn new(card: ModelCard, base: &Path, rows: usize) -> Result<Self, TrainError> {
        let model = Qwen3Vl::load(base, &LoadOptions::cpu(Mode::Training))?;
        let transcriber = Transcriber::load(base, model.token_side())?;
        let world = World::new(card)?;
        let row = |place| {
            let example = world.example(Lesson::Episode { frames: 16, level: 3 }, 1, place);
            Row::new(transcriber.write(example.turns)?, &model, example.last_only)
        };
        let rows = (0..rows as u64).map(row).collect::<Result<_, TrainError>>()?;
        // Of no size: the batch stays what it is.
        let config = OptimizerConfig { learning_rate: 0.0, ..OptimizerConfig::default() };
        Ok(Self { rows, learner: Learner::new(model, config)? })
    }

    /// Tokens of the rows.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.rows.iter().map(|row| row.ids.len()).sum()
    }

    /// Packs, computes gradients and takes a step that changes nothing; what rows have in common once, or each row apart. A batch for
    /// each worker. Gives the mean loss of a target, nats.
    ///
    /// # Errors
    /// [`TrainError`].
    pub fn step(&mut self, shared: bool) -> Result<f64, TrainError> {
        let chunks: Vec<&[Row]> = self.rows.chunks(self.rows.len().div_ceil(self.learner.workers()).max(1)).collect();
        let model = self.learner.model();
        let pack = |rows: &&[Row]| if shared { Batch::pack(rows, model) } else { Batch::pack_apart(rows, model) };
        let batches = self.learner.each(&chunks, pack).into_iter().collect::<Result<Vec<_>, _>>()?;
        let total: usize = batches.iter().map(|batch| batch.targets.len()).sum();
        let loss = |_: usize, _: &Batch, p: &Tensor| p.sum_all()? * (-1.0 / total.max(1) as f64);
        Ok(self.learner.step(&batches, 0.0, &loss)?.loss)
    }

    /// Writes the rows: for each its `ids.N` `[tokens]`, `positions.N` `[3, tokens]`, `targets.N` (places of the tokens that are
    /// learned), `pixels.N` `[patches, width]` and `grids.N` `[pictures, 3]`.
    ///
    /// # Errors
    /// [`TrainError`].
    pub fn dump(&self, file: &Path) -> Result<(), TrainError> {
        let (model, cpu) = (self.learner.model(), &Device::Cpu);
        let mut tensors: HashMap<String, Tensor> = HashMap::new();
        for (number, row) in self.rows.iter().enumerate() {
            let mut keep = |name: &str, tensor: Tensor| tensors.insert(format!("{name}.{number}"), tensor);
            let axis = |axis: usize| row.positions.iter().map(move |place| i64::from(place[axis]));
            let positions: Vec<i64> = (0..3).flat_map(axis).collect();
            keep("positions", Tensor::from_vec(positions, (3, row.ids.len()), cpu)?);
            keep("ids", Tensor::from_iter(row.ids.iter().map(|id| i64::from(*id)), cpu)?);
            keep("targets", Tensor::from_iter(row.targets.iter().map(|(at, _)| *at as i64), cpu)?);
            let patches = row.pictures.iter().map(|picture| model.video(&picture.frames));
            let patches = patches.collect::<Result<Vec<Patches>, _>>()?;
            let grids: Vec<i64> =
                patches.iter().flat_map(|p| [p.grid.t, p.grid.h, p.grid.w]).map(|n| n as i64).collect();
            keep("grids", Tensor::from_vec(grids, (patches.len(), 3), cpu)?);
            let count: usize = patches.iter().map(|patches| patches.grid.patches()).sum();
            let values: Vec<f32> = patches.into_iter().flat_map(|patches| patches.values).collect();
            let width = values.len() / count.max(1);
            keep("pixels", Tensor::from_vec(values, (count, width), cpu)?);
        }
        candle_core::safetensors::save(&tensors, file)?;
        Ok(())
    }
}
