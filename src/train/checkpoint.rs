//! Models and states of training on disk: weights in Hugging Face's layout, and beside them what is needed to go on.
//!
//! Everything is written to a folder of its own first, which then takes the place of the one before: a run that is killed while it
//! writes has the last whole one.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::Var;
use safetensors::Dtype;
use safetensors::tensor::{SafeTensors, TensorView};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::TrainError;
use super::learner::Learner;
use super::optimizer::{Moments, numbers};
use crate::model::Qwen3Vl;

const WEIGHTS: &str = "model.safetensors";
const MOMENTS: &str = "optimizer.safetensors";
const STATE: &str = "state.json";
/// What belongs to a checkpoint beside its weights, in the folder that the model came from. Those that are there are copied.
const BESIDE: [&str; 12] = [
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
];

/// Writes a model in Hugging Face's layout, in f32, with all that belongs to it in `base`, the folder it came from.
///
/// # Errors
/// [`TrainError::File`].
pub fn export(model: &Qwen3Vl, base: &Path, folder: &Path) -> Result<(), TrainError> {
    make(folder)?;
    for name in BESIDE {
        let (from, to) = (base.join(name), folder.join(name));
        if from.is_file() && from != to {
            std::fs::copy(&from, &to).map_err(|error| TrainError::file(&to, error))?;
        }
    }
    let tensors = model
        .variables()
        .iter()
        .map(|(name, variable)| Ok((name.clone(), variable.dims().to_vec(), numbers(variable)?)));
    // Readers of PyTorch's files ask for it.
    let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    write(&folder.join(WEIGHTS), &tensors.collect::<Result<Vec<_>, TrainError>>()?, Some(about))
}

/// Where a run's last state is, below its folder.
const LAST: &str = "last";

/// What goes on from one session to the next, beside the model and its optimizer.
#[derive(Serialize, Deserialize)]
struct State<P> {
    step: u64,
    plan: P,
}

/// Keeps a run's state below `folder`, in place of the one before: the model with all that belongs to it, the optimizer, the steps
/// done and the plan.
///
/// # Errors
/// [`TrainError::File`].
pub fn save(learner: &Learner, base: &Path, step: u64, plan: &impl Serialize, folder: &Path) -> Result<(), TrainError> {
    let folder = &folder.join(LAST);
    let (fresh, old) = (beside(folder, "new"), beside(folder, "old"));
    clear(&fresh)?;
    export(learner.model(), base, &fresh)?;
    let (steps, moments) = learner.optimizer().state();
    let variables = learner.model().variables().iter().zip(moments);
    let tensors: Vec<_> = variables
        .flat_map(|((name, variable), moments)| {
            let of =
                |kind: &str, values: &Vec<f32>| (format!("{kind}.{name}"), variable.dims().to_vec(), values.clone());
            [of("mean", &moments.mean), of("square", &moments.square)]
        })
        .collect();
    write(&fresh.join(MOMENTS), &tensors, None)?;
    let kept = serde_json::json!({"steps": steps, "state": State { step, plan }});
    let file = fresh.join(STATE);
    std::fs::write(&file, kept.to_string()).map_err(|error| TrainError::file(&file, error))?;
    // Where a run was killed right here, the old one is all there is.
    if folder.exists() {
        clear(&old)?;
        std::fs::rename(folder, &old).map_err(|error| TrainError::file(folder, error))?;
    }
    std::fs::rename(&fresh, folder).map_err(|error| TrainError::file(folder, error))?;
    clear(&old)
}

/// The last whole state of the run in `folder`; where it was killed between two, the one before. `None`: there is none.
#[must_use]
pub fn last(folder: &Path) -> Option<PathBuf> {
    let last = folder.join(LAST);
    let old = beside(&last, "old");
    [last, old].into_iter().find(|folder| folder.join(STATE).is_file())
}

/// Brings an optimizer to where [`save`] left it in the state that [`last`] found, and gives the steps done.
///
/// # Errors
/// [`TrainError::File`] naming what is missing or not ours; [`TrainError::Options`] for a state of another model or plan.
pub fn restore<P: DeserializeOwned + PartialEq>(
    learner: &mut Learner,
    plan: &P,
    folder: &Path,
) -> Result<u64, TrainError> {
    let file = folder.join(MOMENTS);
    let wrong = |problem: &dyn std::fmt::Display| TrainError::file(&file, problem);
    let bytes = std::fs::read(&file).map_err(|error| wrong(&error))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| wrong(&error))?;
    let read = |name: String, variable: &Var| {
        let tensor = tensors.tensor(&name).map_err(|error| wrong(&error))?;
        if tensor.dtype() != Dtype::F32 || tensor.shape() != variable.dims() {
            return Err(wrong(&format!("{name} is not what the model has")));
        }
        let (numbers, _) = tensor.data().as_chunks::<4>();
        Ok(numbers.iter().map(|number| f32::from_le_bytes(*number)).collect::<Vec<f32>>())
    };
    let variables = learner.model().variables().iter();
    let moments = variables.map(|(name, variable)| {
        Ok(Moments { mean: read(format!("mean.{name}"), variable)?, square: read(format!("square.{name}"), variable)? })
    });
    let moments = moments.collect::<Result<Vec<_>, TrainError>>()?;
    let file = folder.join(STATE);
    let text = std::fs::read_to_string(&file).map_err(|error| TrainError::file(&file, error))?;
    #[derive(Deserialize)]
    struct Kept<P> {
        steps: u64,
        state: State<P>,
    }
    let kept: Kept<P> = serde_json::from_str(&text).map_err(|error| TrainError::file(&file, error))?;
    learner.optimizer_mut().restore(kept.steps, moments)?;
    if kept.state.plan != *plan {
        let run = folder.parent().unwrap_or(folder);
        return Err(TrainError::Options(format!("{} holds a run of another plan", run.display())));
    }
    Ok(kept.state.step)
}

type Named = (String, Vec<usize>, Vec<f32>);

fn write(file: &Path, tensors: &[Named], about: Option<HashMap<String, String>>) -> Result<(), TrainError> {
    let wrong = |problem: &dyn std::fmt::Display| TrainError::file(file, problem);
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(.., values)| values.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        Ok((name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).map_err(|error| wrong(&error))?))
    });
    let views = views.collect::<Result<Vec<_>, TrainError>>()?;
    safetensors::serialize_to_file(views, about, file).map_err(|error| wrong(&error))
}

fn beside(folder: &Path, suffix: &str) -> PathBuf {
    let mut name = folder.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{suffix}"));
    folder.with_file_name(name)
}

fn make(folder: &Path) -> Result<(), TrainError> {
    std::fs::create_dir_all(folder).map_err(|error| TrainError::file(folder, error))
}

fn clear(folder: &Path) -> Result<(), TrainError> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(TrainError::file(folder, error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_killed_between_two_states_has_the_one_before() {
        let root = tempfile::tempdir().expect("a folder");
        let (run, folder) = (root.path(), root.path().join("last"));
        assert_eq!(last(run), None);
        let state = |folder: &Path| {
            std::fs::create_dir_all(folder).expect("a folder");
            std::fs::write(folder.join(STATE), "{}").expect("a state");
        };
        // Not whole yet: nobody goes on from it.
        state(&beside(&folder, "new"));
        assert_eq!(last(run), None);
        state(&beside(&folder, "old"));
        assert_eq!(last(run), Some(root.path().join("last.old")));
        state(&folder);
        assert_eq!(last(run), Some(folder));
    }
}
