//! AdamW (Loshchilov and Hutter, arXiv 1711.05101) over a model's variables, its state in f32 whatever the weights are.

use candle_core::{DType, Device, Tensor, Var};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::TrainError;
use crate::model::cpu::floats;

/// How weights follow gradients.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// Largest step, reached after the warm-up.
    pub learning_rate: f64,
    /// Share of the largest step that is left at the end.
    pub final_share: f64,
    /// Steps in which the rate grows from nothing.
    pub warmup_steps: u64,
    /// How long gradients are remembered, and their squares.
    pub betas: [f64; 2],
    /// Added to the root of the squares.
    pub epsilon: f64,
    /// Weights of matrices shrink by this times the rate in a step. Norms and biases don't.
    pub weight_decay: f64,
    /// Longest gradient, over all weights together; longer ones are cut to it.
    pub clip_norm: f64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            learning_rate: 2e-5,
            final_share: 0.0,
            warmup_steps: 0,
            betas: [0.9, 0.95],
            epsilon: 1e-8,
            weight_decay: 0.0,
            clip_norm: 1.0,
        }
    }
}

impl OptimizerConfig {
    /// The rate of a step, counted from 0, of so many: linear up, then half a cosine down.
    #[must_use]
    pub fn rate(&self, step: u64, steps: u64) -> f64 {
        if step < self.warmup_steps {
            return self.learning_rate * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let falling = steps.saturating_sub(self.warmup_steps).max(1) as f64;
        let done = ((step - self.warmup_steps) as f64 / falling).min(1.0);
        let share = f64::midpoint(1.0, (std::f64::consts::PI * done).cos());
        self.learning_rate * (self.final_share + (1.0 - self.final_share) * share)
    }
}

/// Running means of one variable's gradients and of their squares.
#[derive(Debug, Clone, PartialEq)]
pub struct Moments {
    /// Of the gradients.
    pub mean: Vec<f32>,
    /// Of their squares.
    pub square: Vec<f32>,
}

/// The optimizer.
#[derive(Debug, Clone)]
pub struct AdamW {
    config: OptimizerConfig,
    /// Steps done.
    steps: u64,
    moments: Vec<Moments>,
}

impl AdamW {
    /// For these variables.
    #[must_use]
    pub fn new(config: OptimizerConfig, variables: &[(String, Var)]) -> Self {
        let zeros = |(_, variable): &(String, Var)| {
            let count = variable.elem_count();
            Moments { mean: vec![0.0; count], square: vec![0.0; count] }
        };
        Self { config, steps: 0, moments: variables.iter().map(zeros).collect() }
    }

    /// Steps done, and what they left, in the variables' order.
    #[must_use]
    pub fn state(&self) -> (u64, &[Moments]) {
        (self.steps, &self.moments)
    }

    /// Goes on from a state.
    ///
    /// # Errors
    /// [`TrainError::Options`] for that of other variables.
    pub fn restore(&mut self, steps: u64, moments: Vec<Moments>) -> Result<(), TrainError> {
        let sizes =
            |moments: &[Moments]| moments.iter().map(|one| (one.mean.len(), one.square.len())).collect::<Vec<_>>();
        if sizes(&moments) != sizes(&self.moments) {
            return Err(TrainError::Options("the optimizer's state is that of another model".to_owned()));
        }
        (self.steps, self.moments) = (steps, moments);
        Ok(())
    }

    /// One step at this rate. `gradients` are in the variables' order, as long as each variable. Gives how long they were together,
    /// before they were cut.
    ///
    /// # Errors
    /// [`TrainError::Options`] where the gradients are not finite: nothing is changed then. [`TrainError::Tensor`].
    pub fn step(&mut self, variables: &[(String, Var)], gradients: &[Vec<f32>], rate: f64) -> Result<f64, TrainError> {
        let squares = |gradient: &Vec<f32>| gradient.iter().map(|g| f64::from(*g) * f64::from(*g)).sum::<f64>();
        // In the variables' order, so that the sum is the same whoever computes its parts.
        let norm = gradients.par_iter().map(squares).collect::<Vec<f64>>().iter().sum::<f64>().sqrt();
        if !norm.is_finite() {
            return Err(TrainError::Options("the gradients are not finite: training has come apart".to_owned()));
        }
        self.steps += 1;
        let OptimizerConfig { betas: [beta, beta_square], epsilon, weight_decay, clip_norm, .. } = self.config;
        let cut = if clip_norm > 0.0 { (clip_norm / norm.max(1e-12)).min(1.0) } else { 1.0 };
        let power = i32::try_from(self.steps).unwrap_or(i32::MAX);
        let (unbias, unbias_square) = (1.0 - beta.powi(power), 1.0 - beta_square.powi(power));
        let rule = Rule {
            cut: cut as f32,
            beta: beta as f32,
            beta_square: beta_square as f32,
            rate: (rate / unbias) as f32,
            root: (1.0 / unbias_square.sqrt()) as f32,
            epsilon: epsilon as f32,
        };
        let all = variables.par_iter().zip(gradients).zip(&mut self.moments);
        all.try_for_each(|(((_, variable), gradient), moments)| {
            let decay = if variable.rank() > 1 { (1.0 - rate * weight_decay) as f32 } else { 1.0 };
            let mut values = numbers(variable)?;
            rule.apply(&mut values, gradient, moments, decay);
            let updated = Tensor::from_vec(values, variable.shape(), &Device::Cpu)?;
            variable.set(&updated.to_dtype(variable.dtype())?.to_device(variable.device())?)?;
            Ok::<_, TrainError>(())
        })?;
        Ok(norm)
    }
}

/// The numbers of a tensor, in f32 and in a copy.
pub(super) fn numbers(tensor: &Tensor) -> Result<Vec<f32>, TrainError> {
    Ok(floats(&on_cpu(tensor)?, |numbers| Ok(numbers.to_vec()))?)
}

/// A tensor as the CPU's kernels take it: itself, where it is so already.
pub(super) fn on_cpu(tensor: &Tensor) -> candle_core::Result<Tensor> {
    tensor.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.contiguous()
}

/// A step's numbers, the same for all weights.
struct Rule {
    cut: f32,
    beta: f32,
    beta_square: f32,
    rate: f32,
    root: f32,
    epsilon: f32,
}

impl Rule {
    fn apply(&self, values: &mut [f32], gradient: &[f32], moments: &mut Moments, decay: f32) {
        let state = moments.mean.iter_mut().zip(moments.square.iter_mut());
        for ((value, gradient), (mean, square)) in values.iter_mut().zip(gradient).zip(state) {
            let gradient = gradient * self.cut;
            *mean += (gradient - *mean) * (1.0 - self.beta);
            *square += (gradient * gradient - *square) * (1.0 - self.beta_square);
            *value = *value * decay - self.rate * *mean / (square.sqrt() * self.root + self.epsilon);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(values: &[f32]) -> Vec<(String, Var)> {
        let tensor = Tensor::from_slice(values, (1, values.len()), &Device::Cpu).expect("a tensor");
        vec![("w".to_owned(), Var::from_tensor(&tensor).expect("a variable"))]
    }

    /// What torch.optim.AdamW (2.15, lr 0.1, betas 0.9 and 0.95, weight decay 0.1) gives for [1, -2] after gradients
    /// [0.5, -0.25] and [0.1, 0.3].
    #[test]
    fn steps_are_pytorchs() {
        let config = OptimizerConfig {
            learning_rate: 0.1,
            betas: [0.9, 0.95],
            weight_decay: 0.1,
            clip_norm: 0.0,
            ..OptimizerConfig::default()
        };
        let variables = variables(&[1.0, -2.0]);
        let mut optimizer = AdamW::new(config, &variables);
        optimizer.step(&variables, &[vec![0.5, -0.25]], 0.1).expect("steps");
        optimizer.step(&variables, &[vec![0.1, 0.3]], 0.1).expect("steps");
        let values = numbers(&variables[0].1).expect("numbers");
        for (value, expected) in values.iter().zip(EXPECTED) {
            assert!((value - expected).abs() < 1e-6, "{values:?}");
        }
    }
    const EXPECTED: [f32; 2] = [0.7998471, -1.8754622];

    #[test]
    fn long_gradients_are_cut_and_broken_ones_refused() {
        let variables = variables(&[0.0, 0.0]);
        let mut optimizer = AdamW::new(OptimizerConfig::default(), &variables);
        let norm = optimizer.step(&variables, &[vec![3.0, 4.0]], 0.1).expect("steps");
        assert!((norm - 5.0).abs() < 1e-9);
        let (steps, moments) = optimizer.state();
        assert!(steps == 1 && (moments[0].mean[1] - 0.08).abs() < 1e-6, "{moments:?}");
        assert!(optimizer.step(&variables, &[vec![f32::NAN, 0.0]], 0.1).is_err());
        assert_eq!(optimizer.state().0, 1);
        assert!(optimizer.restore(3, Vec::new()).is_err());
    }

    #[test]
    fn the_rate_rises_and_falls() {
        let config =
            OptimizerConfig { learning_rate: 1.0, final_share: 0.1, warmup_steps: 10, ..OptimizerConfig::default() };
        let near = |step, rate: f64| assert!((config.rate(step, 110) - rate).abs() < 1e-9, "{step}");
        near(0, 0.1);
        near(9, 1.0);
        near(10, 1.0);
        near(60, 0.55);
        near(110, 0.1);
        near(1000, 0.1);
    }
}
