//! Carries a plan out.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use super::plan::{Fresh, Plan};
use crate::card::ModelCard;
use crate::engine::native::transcript::Transcriber;
use crate::model::{LoadOptions, Mode, Qwen3Vl};
use crate::synthetic::Random;
use crate::train::TrainError;
use crate::train::batch::{Batch, Row};
use crate::train::learner::{Learner, Told};
use crate::train::synthetic::{Lesson, World};
use crate::train::{checkpoint, normal};

/// Rows of a step have places of their own, whatever the step's size.
const PLACES: u64 = 1 << 20;
/// Rows to evaluate on are of another series.
const HELD_OUT: u64 = 0x9e37_79b9_7f4a_7c15;

/// A run of supervised fine-tuning.
#[derive(Debug)]
pub struct Sft {
    plan: Plan,
    world: World,
    base: PathBuf,
    folder: PathBuf,
    transcriber: Transcriber,
    learner: Learner,
    step: u64,
}

/// What a step, or an evaluation, came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "snake_case")]
pub enum Progress {
    /// A step.
    Step(Report),
    /// An evaluation on rows that are held out.
    Evaluation {
        /// Steps done before it.
        step: u64,
        /// For each source of the stage.
        sources: Vec<SourceReport>,
    },
}

/// A step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Its number, from 1.
    pub step: u64,
    /// The stage's name.
    pub stage: String,
    /// Mean loss of a target, nats.
    pub loss: f64,
    /// The learning rate.
    pub rate: f64,
    /// Length of the gradient before it was cut.
    pub gradient_norm: f64,
    /// Tokens of its rows.
    pub tokens: usize,
    /// Those that were computed: what rows have in common counts once.
    pub computed_tokens: usize,
    /// How long it took.
    pub seconds: f64,
    /// For each source of the stage.
    pub sources: Vec<SourceReport>,
}

/// Rows of one source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceReport {
    /// What it teaches.
    pub lesson: Lesson,
    /// Rows.
    pub rows: usize,
    /// Mean loss of a target, nats.
    pub loss: f64,
    /// Rows of which every target was the most probable token: what sampling greedily would have written without a fault.
    pub exact: usize,
}

impl std::fmt::Display for SourceReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { lesson, rows, loss, exact } = self;
        write!(f, "{}: {loss:.3} {exact}/{rows}", lesson.name())
    }
}

impl Sft {
    /// Begins a run in `folder`, or goes on with the one that is there. `card` is the plan's, and `base` its checkpoint's folder.
    ///
    /// # Errors
    /// [`TrainError`]; [`TrainError::Options`] where `folder` holds a run of another plan.
    pub fn open(plan: Plan, card: ModelCard, base: PathBuf, folder: PathBuf) -> Result<Self, TrainError> {
        let options = LoadOptions::cpu(Mode::Training);
        let last = checkpoint::last(&folder);
        let model = match (&last, &plan.fresh) {
            (Some(last), _) => Qwen3Vl::load(last, &options)?,
            (None, Some(fresh)) => Qwen3Vl::fresh(&base, &mut drawn(*fresh, plan.seed), &options)?,
            (None, None) => Qwen3Vl::load(&base, &options)?,
        };
        let transcriber = Transcriber::load(&base, model.token_side())?;
        let mut learner = Learner::new(model, plan.optimizer)?;
        let step = match last {
            Some(last) => checkpoint::restore(&mut learner, &plan, &last)?,
            None => 0,
        };
        Ok(Self { world: World::new(card)?, plan, base, folder, transcriber, learner, step })
    }

    /// Steps done.
    #[must_use]
    pub const fn done(&self) -> u64 {
        self.step
    }

    /// Trains to the end of the plan, or until `stop` is set: then the state is kept, and opening the run again goes on from
    /// there. `told` hears of every step and evaluation.
    ///
    /// # Errors
    /// [`TrainError`], and what `told` gives.
    pub fn run(
        &mut self,
        stop: &AtomicBool,
        told: &mut dyn FnMut(&Progress) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let mut saved = None;
        while self.step < self.plan.steps() && !stop.load(Ordering::Relaxed) {
            told(&Progress::Step(self.next()?))?;
            if self.step.is_multiple_of(self.plan.evaluate_every) || self.step == self.plan.steps() {
                told(&self.evaluate()?)?;
                self.save()?;
                saved = Some(self.step);
            }
        }
        if saved == Some(self.step) { Ok(()) } else { self.save() }
    }

    /// Keeps the state.
    fn save(&self) -> Result<(), TrainError> {
        checkpoint::save(&self.learner, &self.base, self.step, &self.plan, &self.folder)
    }

    /// Writes the model as it is, in Hugging Face's layout.
    ///
    /// # Errors
    /// [`TrainError::File`].
    pub fn export(&self, folder: &Path) -> Result<(), TrainError> {
        checkpoint::export(self.learner.model(), &self.base, folder)
    }

    /// One step.
    fn next(&mut self) -> Result<Report, TrainError> {
        let began = Instant::now();
        let lessons = self.plan.lessons(self.step);
        let places = (0..).map(|row| self.step * PLACES + row);
        let wanted: Vec<(Lesson, u64)> = lessons.iter().map(|(_, lesson)| *lesson).zip(places).collect();
        let batches = self.batches(&wanted, self.plan.seed)?;
        let total: f64 = batches.iter().flat_map(|batch| &batch.weights).map(|weight| f64::from(*weight)).sum();
        let rate = self.plan.optimizer.rate(self.step, self.plan.steps());
        let loss = |_: usize, batch: &Batch, log_probabilities: &Tensor| {
            let weights = Tensor::new(batch.weights.as_slice(), log_probabilities.device())?;
            (log_probabilities * weights)?.sum_all()? * (-1.0 / total.max(1.0))
        };
        let step = self.learner.step(&batches, rate, &loss)?;
        let stage = self.plan.stage(self.step).map(|(stage, _)| stage.name.clone()).unwrap_or_default();
        self.step += 1;
        Ok(Report {
            step: self.step,
            stage,
            loss: step.loss,
            rate,
            gradient_norm: step.gradient_norm,
            tokens: batches.iter().map(|batch| batch.unshared_tokens).sum(),
            computed_tokens: batches.iter().map(|batch| batch.tokens.len()).sum(),
            seconds: began.elapsed().as_secs_f64(),
            sources: reports(&lessons, &batches, &step.told),
        })
    }

    /// How well held-out rows of the last step's stage are written.
    fn evaluate(&self) -> Result<Progress, TrainError> {
        let stage = self.plan.stage(self.step.saturating_sub(1)).map(|(stage, _)| stage);
        let sources = stage.map(|stage| stage.sources.as_slice()).unwrap_or_default();
        let of = |(at, source): (usize, &super::Source)| {
            (0..self.plan.evaluate_rows as u64)
                .map(move |row| (at, source.lesson, at as u64 * PLACES + row))
                .collect::<Vec<_>>()
        };
        let rows: Vec<(usize, Lesson, u64)> = sources.iter().enumerate().flat_map(of).collect();
        let wanted: Vec<(Lesson, u64)> = rows.iter().map(|(_, lesson, place)| (*lesson, *place)).collect();
        let batches = self.batches(&wanted, self.plan.seed ^ HELD_OUT)?;
        let told = self.learner.evaluate(&batches)?;
        let lessons: Vec<(usize, Lesson)> = rows.iter().map(|(at, lesson, _)| (*at, *lesson)).collect();
        Ok(Progress::Evaluation { step: self.step, sources: reports(&lessons, &batches, &told) })
    }

    /// Examples of lessons at places of a seed's series, packed in their order.
    fn batches(&self, wanted: &[(Lesson, u64)], seed: u64) -> Result<Vec<Batch>, TrainError> {
        let chunks: Vec<&[(Lesson, u64)]> = wanted.chunks(self.plan.batch_rows).collect();
        let pack = |chunk: &&[(Lesson, u64)]| {
            let row = |(lesson, place): &(Lesson, u64)| {
                let example = self.world.example(*lesson, seed, *place);
                Row::new(self.transcriber.write(example.turns)?, self.learner.model(), example.last_only)
            };
            Batch::pack(&chunk.iter().map(row).collect::<Result<Vec<_>, TrainError>>()?, self.learner.model())
        };
        self.learner.each(&chunks, pack).into_iter().collect()
    }
}

/// What the rows of each source got. `lessons` are the rows' own, each with its source.
fn reports(lessons: &[(usize, Lesson)], batches: &[Batch], told: &[Told]) -> Vec<SourceReport> {
    let rows = batches.iter().zip(told).flat_map(|(batch, told)| {
        let starts = std::iter::once(0).chain(batch.ends.iter().copied());
        starts.zip(&batch.ends).map(|(from, until)| {
            let loss: f64 = told.log_probabilities[from..*until].iter().map(|p| -f64::from(*p)).sum();
            (loss, until - from, told.first[from..*until].iter().all(|first| *first))
        })
    });
    let mut found: Vec<(usize, SourceReport, usize)> = Vec::new();
    for ((loss, targets, exact), (source, lesson)) in rows.zip(lessons) {
        let at = found.iter().position(|(known, ..)| known == source).unwrap_or_else(|| {
            found.push((*source, SourceReport { lesson: *lesson, rows: 0, loss: 0.0, exact: 0 }, 0));
            found.len() - 1
        });
        let (_, report, count) = &mut found[at];
        report.rows += 1;
        report.loss += loss;
        report.exact += usize::from(exact);
        *count += targets;
    }
    found.sort_by_key(|(source, ..)| *source);
    found
        .into_iter()
        .map(|(_, report, count)| SourceReport { loss: report.loss / count.max(1) as f64, ..report })
        .collect()
}

/// Fresh weights, each tensor's from its name and the seed.
fn drawn(fresh: Fresh, seed: u64) -> impl FnMut(&str, &[usize]) -> Vec<f32> {
    move |name, shape| {
        let count = shape.iter().product();
        let norm = name.contains("norm") && shape.len() == 1;
        if norm && name.ends_with(".weight") {
            return vec![1.0; count];
        }
        if shape.len() == 1 {
            return vec![0.0; count];
        }
        let deviation = if name.contains(".visual.") {
            fresh.vision
        } else if name.ends_with("embed_tokens.weight") {
            fresh.embeddings
        } else {
            fresh.deviation
        };
        // FNV-1a: the same everywhere.
        let place = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let mut random = Random::new(seed, place);
        normal(&mut random).map(|value| (value * deviation) as f32).take(count).collect()
    }
}

#[cfg(test)]
mod tests;
