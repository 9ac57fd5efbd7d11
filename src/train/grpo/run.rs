//! Carries a plan out.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures::StreamExt as _;
use tokio_util::task::AbortOnDropHandle;

use super::measure::StepReport;
use super::plan::GrpoPlan;
use crate::agent::{Agent, AskPart, AskRequest};
use crate::card::ModelCard;
use crate::config::AgentConfig;
use crate::engine::native::transcript::Transcriber;
use crate::engine::native::{Native, NativeOptions};
use crate::eval::{Boards, Gold, Item, film_boards, signal_board};
use crate::media::{Media, SourceRequest};
use crate::model::{LoadOptions, Mode, Qwen3Vl};
use crate::synthetic::{Board, Random};
use crate::train::batch::Batch;
use crate::train::learner::Learner;
use crate::train::policy::PolicyTargets;
use crate::train::rollout::{Recorder, Rollout};
use crate::train::trajectory::Trajectory;
use crate::train::{QuestionType, RuleReward, Scores, TrainError, Truth, checkpoint};

/// Below a run's folder: the weights that the engine rolls out with, and the boards.
const POLICY: &str = "policy";
const VIDEOS: &str = "videos";
/// Rollouts at the same time: more wait, so that frames in memory stay bounded.
const AT_ONCE: usize = 64;

/// A run of PARA-GRPO.
#[derive(Debug)]
pub struct Grpo {
    plan: GrpoPlan,
    folder: PathBuf,
    base: PathBuf,
    items: Vec<Item>,
    roller: Roller,
    engine: Arc<Native>,
    transcriber: Transcriber,
    learner: Learner,
    reference: Qwen3Vl,
    step: u64,
}

/// What rolls out, and may go on while the learner learns.
#[derive(Debug, Clone)]
struct Roller {
    agent: Agent,
    recorder: Recorder,
    plan: Arc<GrpoPlan>,
    reward: RuleReward,
}

/// The rollouts of one prompt.
type Group = Vec<(Rollout, Scores)>;

/// Who hears of a step and of its rollouts.
type Told<'a> = dyn FnMut(&StepReport, &[Group]) -> Result<(), TrainError> + Send + 'a;

impl Grpo {
    /// Begins a run in `folder`, or goes on with the one that is there. `card` is the plan's, and `base` the checkpoint to begin from.
    /// Films the boards that are not there yet; `told` is called with how many were made.
    ///
    /// # Errors
    /// [`TrainError`]; [`TrainError::Options`] where `folder` holds a run of another plan.
    pub async fn open(
        plan: GrpoPlan,
        mut card: ModelCard,
        base: PathBuf,
        folder: PathBuf,
        media: Media,
        told: impl FnMut(usize),
    ) -> Result<Self, TrainError> {
        let options = LoadOptions::cpu(Mode::Training);
        let reference = Qwen3Vl::load(&base, &options)?;
        let last = checkpoint::last(&folder);
        let from = last.clone().unwrap_or_else(|| base.clone());
        let transcriber = Transcriber::load(&base, reference.token_side())?;
        let mut learner = Learner::new(Qwen3Vl::load(&from, &options)?, plan.optimizer)?;
        let step = match last {
            Some(last) => checkpoint::restore(&mut learner, &plan, &last)?,
            None => 0,
        };
        let boards = Boards { seed: plan.seed, count: plan.boards, frames: Board::FRAMES };
        let asked = signal_board(&folder.join(VIDEOS), &boards);
        film_boards(&media, &asked, 2, told).await.map_err(|error| TrainError::Options(error.to_string()))?;
        let policy = folder.join(POLICY);
        checkpoint::export(learner.model(), &base, &policy)?;
        let engine = Arc::new(Native::load(&policy, NativeOptions::default()).await?);
        let recorder = Recorder::new(engine.clone())?;
        if !plan.think_prefix {
            card.prompts.think_prefix.clear();
        }
        let agent = Agent::new(Arc::new(card), Arc::new(recorder.clone()), media, AgentConfig::default());
        let reward = RuleReward::new(plan.reward)?;
        let roller = Roller { agent, recorder, plan: Arc::new(plan.clone()), reward };
        let items = asked.into_iter().map(|(item, _)| item).collect();
        Ok(Self { plan, folder, base, items, roller, engine, transcriber, learner, reference, step })
    }

    /// Steps done.
    #[must_use]
    pub const fn done(&self) -> u64 {
        self.step
    }

    /// The model as it is now, in Hugging Face's layout.
    ///
    /// # Errors
    /// [`TrainError::File`].
    pub fn export(&self, folder: &Path) -> Result<(), TrainError> {
        checkpoint::export(self.learner.model(), &self.base, folder)
    }

    /// Trains to the end of the plan, or until `stop` is set: then the state is kept, and opening the run again goes on from there.
    /// `told` hears of every step, with its rollouts. Needs Tokio's runtime of several threads.
    ///
    /// # Errors
    /// [`TrainError`], and what `told` gives.
    pub async fn run(&mut self, stop: &AtomicBool, told: &mut Told<'_>) -> Result<(), TrainError> {
        let mut saved = None;
        let mut rolling: VecDeque<AbortOnDropHandle<Vec<Group>>> = VecDeque::new();
        while self.step < self.plan.steps && !stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            while rolling.len() <= self.plan.staleness {
                let next = self.step + rolling.len() as u64;
                if next >= self.plan.steps {
                    break;
                }
                let (roller, items) = (self.roller.clone(), self.items_of(next));
                rolling.push_back(AbortOnDropHandle::new(tokio::spawn(async move { roller.roll(next, items).await })));
            }
            let Some(rolled) = rolling.pop_front() else { break };
            let groups = rolled.await.map_err(|_| TrainError::Options("a rollout broke off".to_owned()))?;
            let rollout_s = began.elapsed().as_secs_f64();
            let mut report = tokio::task::block_in_place(|| self.learn(&groups))?;
            report.rollout_s = rollout_s;
            self.swap().await?;
            self.step += 1;
            report.step = self.step;
            told(&report, &groups)?;
            if self.step.is_multiple_of(self.plan.save_every) || self.step == self.plan.steps {
                self.save()?;
                saved = Some(self.step);
            }
        }
        if saved == Some(self.step) { Ok(()) } else { self.save() }
    }

    fn save(&self) -> Result<(), TrainError> {
        checkpoint::save(&self.learner, &self.base, self.step, &self.plan, &self.folder)
    }

    /// Gives the engine the weights as they are.
    async fn swap(&self) -> Result<(), TrainError> {
        let policy = self.folder.join(POLICY);
        checkpoint::export(self.learner.model(), &self.base, &policy)?;
        Ok(self.engine.swap(&policy).await?)
    }

    /// The prompts of a step, each with its number in the run.
    fn items_of(&self, step: u64) -> Vec<(u64, Item)> {
        let first = step * self.plan.prompts as u64;
        let item = |number: u64| {
            // Each pass over the boards in an order of its own.
            let count = self.items.len() as u64;
            let (pass, place) = (number / count, number % count);
            let mut order: Vec<usize> = (0..self.items.len()).collect();
            let mut random = Random::new(self.plan.seed ^ 0x6a09_e667, pass);
            for at in (1..order.len()).rev() {
                let other = random.number(0, i64::try_from(at).unwrap_or(0));
                order.swap(at, usize::try_from(other).unwrap_or(0));
            }
            let at = order.get(usize::try_from(place).unwrap_or(0)).copied().unwrap_or(0);
            (number, self.items[at].clone())
        };
        (first..first + self.plan.prompts as u64).map(item).collect()
    }

    /// One step along what the groups teach.
    fn learn(&mut self, groups: &[Group]) -> Result<StepReport, TrainError> {
        let began = Instant::now();
        let flat: Vec<&(Rollout, Scores)> = groups.iter().flatten().collect();
        let mut telling = 0;
        let (mut trajectories, mut worth) = (Vec::new(), Vec::new());
        for group in groups {
            let rewards: Vec<f64> = group.iter().map(|(_, scores)| self.roller.earned(scores)).collect();
            let advantages = self.plan.shaping.in_group(&rewards);
            telling += usize::from(advantages.iter().any(|advantage| *advantage != 0.0));
            for ((rollout, _), advantage) in group.iter().zip(advantages) {
                let mut of = Trajectory::of(&rollout.main, &self.transcriber, self.learner.model())?;
                if self.plan.train_subs {
                    for said in &rollout.subs {
                        let said = std::slice::from_ref(said);
                        of.extend(Trajectory::of(said, &self.transcriber, self.learner.model())?);
                    }
                }
                worth.extend(std::iter::repeat_n(advantage, of.len()));
                trajectories.extend(of);
            }
        }
        let (rows, behaviour): (Vec<_>, Vec<_>) = trajectories.into_iter().map(|one| (one.row, one.behaviour)).unzip();
        let chunks: Vec<_> = rows.chunks(self.plan.batch_rows).collect();
        let model = self.learner.model();
        let batches = self.learner.each(&chunks, |rows| Batch::pack(rows, model));
        let batches = batches.into_iter().collect::<Result<Vec<_>, _>>()?;
        let proximal = self.learner.evaluate(&batches)?;
        let reference = self.learner.evaluate_with(&self.reference, &batches)?;

        // Token by token, in the order of the trajectories.
        let of = |told: &[crate::train::learner::Told]| -> Vec<f32> {
            told.iter().flat_map(|told| told.log_probabilities.iter().copied()).collect()
        };
        let (proximal, reference) = (of(&proximal), of(&reference));
        let behaviour = behaviour.concat();
        let mut advantages = Vec::with_capacity(proximal.len());
        for (row, worth) in rows.iter().zip(&worth) {
            let first = advantages.len();
            let tokens = first..first + row.targets.len();
            // What a token costs in divergence counts for all tokens before it in its conversation.
            let mut rest = *worth;
            let mut own: Vec<f64> = tokens
                .rev()
                .map(|at| {
                    rest -= self.plan.policy.kl * f64::from(proximal[at] - reference[at]);
                    rest
                })
                .collect();
            own.reverse();
            advantages.extend(own);
        }
        let advantages = self.plan.shaping.over_batch(&advantages, &vec![1.0; advantages.len()]);
        let mut targets = Vec::with_capacity(batches.len());
        let mut first = 0;
        for batch in &batches {
            let tokens = first..first + batch.outputs.len();
            first = tokens.end;
            targets.push(PolicyTargets {
                advantages: advantages[tokens.clone()].iter().map(|advantage| *advantage as f32).collect(),
                behaviour: behaviour[tokens.clone()].to_vec(),
                proximal: proximal[tokens].to_vec(),
            });
        }
        let (policy, total) = (self.plan.policy, advantages.len() as f64);
        let rate = self.plan.optimizer.rate(self.step, self.plan.steps);
        let step = self.learner.step(&batches, rate, &|at, _, probabilities| {
            let nothing = PolicyTargets::default();
            policy.loss(probabilities, targets.get(at).unwrap_or(&nothing), total)
        })?;
        let moved: Vec<_> =
            step.told.iter().zip(&targets).map(|(told, of)| policy.statistics(&told.log_probabilities, of)).collect();
        let mut report = StepReport::of(&flat);
        report.moved(&moved);
        report.telling_groups = telling;
        let apart: f64 = proximal.iter().zip(&reference).map(|(one, other)| f64::from(one - other)).sum();
        report.kl = apart / total.max(1.0);
        let drift: f64 = proximal.iter().zip(&behaviour).map(|(one, other)| f64::from((one - other).abs())).sum();
        report.drift = drift / total.max(1.0);
        (report.gradient_norm, report.rate) = (step.gradient_norm, rate);
        report.learn_s = began.elapsed().as_secs_f64();
        Ok(report)
    }
}

impl Roller {
    fn earned(&self, scores: &Scores) -> f64 {
        if self.plan.without_tool_reward { scores.total - scores.tool } else { scores.total }
    }

    /// Rolls out the prompts of a step.
    async fn roll(self, step: u64, items: Vec<(u64, Item)>) -> Vec<Group> {
        let rollouts = items
            .iter()
            .enumerate()
            .flat_map(|(place, (number, item))| (0..self.plan.group).map(move |one| (place, *number, item, one)));
        let roller = &self;
        let rolled = rollouts
            .map(|(place, number, item, one)| async move { (place, roller.one(step, number, item, one).await) });
        // In their order, so that a step is the same however they overlap.
        let rolled: Vec<(usize, (Rollout, Scores))> =
            futures::stream::iter(rolled.collect::<Vec<_>>()).buffered(AT_ONCE).collect().await;
        let mut groups: Vec<Group> = items.iter().map(|_| Vec::with_capacity(self.plan.group)).collect();
        for (place, rollout) in rolled {
            groups[place].push(rollout);
        }
        groups
    }

    async fn one(&self, step: u64, number: u64, item: &Item, one: usize) -> (Rollout, Scores) {
        let id = format!("rollout-{}-{step}-{number}-{one}", self.plan.seed);
        let mut request = AskRequest::about(SourceRequest::Path(item.video.clone()), item.prompt.clone(), id.clone());
        request.sampling = self.agent.sampling_of(&id, Some(self.plan.temperature));
        if let Some(frames) = self.plan.gating.as_ref().and_then(|gating| gating.frames(number)) {
            for part in request.turns.iter_mut().flat_map(|turn| &mut turn.parts) {
                if let AskPart::Video(video) = part {
                    video.max_frames = Some(frames);
                }
            }
        }
        let rollout = Rollout::of(&self.agent, &self.recorder, request).await;
        let answer = match &item.gold {
            Gold::Words { text } => text.as_str(),
            Gold::Letter { .. } | Gold::Span { .. } => "",
        };
        let scores = rollout.score(&self.reward, &Truth { answer, question: QuestionType::Open });
        (rollout, scores)
    }
}

#[cfg(test)]
mod tests;
