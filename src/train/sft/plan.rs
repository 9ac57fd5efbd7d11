//! What a run does, as its file says it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::synthetic::Random;
use crate::train::optimizer::OptimizerConfig;
use crate::train::synthetic::Lesson;

/// The presets that come with paravt.
const PRESETS: [(&str, &str); 1] = [("tiny", include_str!("tiny.toml"))];

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The card to learn for: its prompts, and where its checkpoint is. A bundled card's name, or a folder.
    pub card: PathBuf,
    /// Draws weights anew, where it is there; else training goes on from the card's checkpoint.
    #[serde(default)]
    pub fresh: Option<Fresh>,
    /// What examples, their order and fresh weights follow from.
    #[serde(default)]
    pub seed: u64,
    /// How weights follow gradients.
    #[serde(default)]
    pub optimizer: OptimizerConfig,
    /// Rows of a batch: what is computed in one pass.
    #[serde(default = "rows")]
    pub batch_rows: usize,
    /// Steps between two evaluations, and two saved states.
    #[serde(default = "every")]
    pub evaluate_every: u64,
    /// Rows that each source is evaluated on. They are none of those that are learned from.
    #[serde(default = "rows")]
    pub evaluate_rows: usize,
    /// One after another.
    #[serde(rename = "stage")]
    pub stages: Vec<Stage>,
}

const fn rows() -> usize {
    16
}

const fn every() -> u64 {
    100
}

/// How fresh weights are drawn: normally, with these deviations. Norms are ones, biases zeros.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fresh {
    /// Of the decoder's matrices.
    pub deviation: f64,
    /// Of the embedding table.
    pub embeddings: f64,
    /// Of the picture encoder's matrices and tables.
    pub vision: f64,
}

/// A part of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// For people.
    pub name: String,
    /// So many steps.
    pub steps: u64,
    /// Rows of a step.
    pub rows: usize,
    /// What is learned from.
    #[serde(rename = "source")]
    pub sources: Vec<Source>,
}

/// Where rows come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// Its share of the rows, beside the other sources'.
    pub share: f64,
    /// What it teaches.
    #[serde(flatten)]
    pub lesson: Lesson,
}

/// A plan that can't be run.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// It is no TOML, or has fields that are not there.
    #[error("{0}")]
    Parse(String),
    /// There is no such preset.
    #[error("there is no preset {0}: tiny")]
    Preset(String),
    /// Numbers that make no sense.
    #[error("{0}")]
    Value(String),
}

impl Plan {
    /// A preset.
    ///
    /// # Errors
    /// [`PlanError::Preset`].
    pub fn preset(name: &str) -> Result<Self, PlanError> {
        let found = PRESETS.iter().find(|(preset, _)| *preset == name);
        Self::parse(found.ok_or_else(|| PlanError::Preset(name.to_owned()))?.1)
    }

    /// From TOML.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let plan: Self = toml::from_str(text).map_err(|error| PlanError::Parse(error.message().to_owned()))?;
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<(), PlanError> {
        let wrong = |problem: String| Err(PlanError::Value(problem));
        if self.stages.is_empty() || self.batch_rows == 0 || self.evaluate_every == 0 {
            return wrong("a run needs a stage, and batch_rows and evaluate_every above 0".to_owned());
        }
        for stage in &self.stages {
            let shares = stage.sources.iter().all(|source| source.share.is_finite() && source.share >= 0.0);
            if stage.steps == 0 || stage.rows == 0 || !shares || stage.total() <= 0.0 {
                return wrong(format!("the stage {} needs steps, rows and sources with shares", stage.name));
            }
        }
        Ok(())
    }

    /// Steps in all.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.stages.iter().map(|stage| stage.steps).sum()
    }

    /// The stage that a step, counted from 0, is in, and how far in it.
    #[must_use]
    pub fn stage(&self, step: u64) -> Option<(&Stage, u64)> {
        let mut first = 0;
        for stage in &self.stages {
            if step < first + stage.steps {
                return Some((stage, step - first));
            }
            first += stage.steps;
        }
        None
    }

    /// What the rows of a step teach, in order.
    #[must_use]
    pub fn lessons(&self, step: u64) -> Vec<(usize, Lesson)> {
        let Some((stage, _)) = self.stage(step) else { return Vec::new() };
        // Evenly: each row goes to the source that is furthest behind its share.
        let total = stage.total();
        let mut given = vec![0_usize; stage.sources.len()];
        let mut random = Random::new(self.seed ^ 0x5f37_59df, step);
        let mut lessons = Vec::with_capacity(stage.rows);
        let offset = random.number(0, 999) as f64 / 1000.0;
        for row in 0..stage.rows {
            let behind = |(at, source): (usize, &Source)| {
                let due = source.share / total * (row as f64 + 1.0) + offset * source.share / total;
                (at, due - given[at] as f64)
            };
            let next = stage.sources.iter().enumerate().map(behind).max_by(|one, other| one.1.total_cmp(&other.1));
            let Some((at, _)) = next else { break };
            given[at] += 1;
            lessons.push((at, stage.sources[at].lesson));
        }
        lessons
    }
}

impl Stage {
    fn total(&self) -> f64 {
        self.sources.iter().map(|source| source.share).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_plans() {
        for (name, _) in PRESETS {
            let plan = Plan::preset(name).expect("a plan");
            let again = Plan::parse(&toml::to_string(&plan).expect("TOML")).expect("a plan");
            assert_eq!(plan, again);
        }
        assert!(matches!(Plan::preset("huge"), Err(PlanError::Preset(_))));
    }

    fn plan(sources: &str) -> Result<Plan, PlanError> {
        Plan::parse(&format!("card = \"paravt-tiny\"\n[[stage]]\nname = \"one\"\nsteps = 4\nrows = 8\n{sources}"))
    }

    #[test]
    fn rows_go_to_sources_by_their_shares() {
        let plan = plan("[[stage.source]]\nkind = \"glance\"\nshare = 1.0\n[[stage.source]]\nkind = \"recall\"\nlevel = 3\nshare = 3.0")
            .expect("a plan");
        for step in 0..4 {
            let lessons = plan.lessons(step);
            assert_eq!(lessons.len(), 8);
            assert_eq!(lessons.iter().filter(|(source, _)| *source == 0).count(), 2);
            assert_eq!(lessons, plan.lessons(step));
        }
        assert!(plan.lessons(4).is_empty());
        assert_eq!(plan.steps(), 4);
    }

    #[test]
    fn plans_that_cannot_be_run_are_refused() {
        for wrong in
            ["", "[[stage.source]]\nkind = \"glance\"\nshare = 0.0", "[[stage.source]]\nkind = \"fly\"\nshare = 1.0"]
        {
            assert!(plan(wrong).is_err(), "{wrong}");
        }
    }
}
