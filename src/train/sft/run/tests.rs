//! Runs go on as if they had never been broken off, and what they export can be loaded.

use super::*;
use crate::card::DEFAULT;

const PLAN: &str = r#"
card = "paravt-tiny"
seed = 3
batch_rows = 3
evaluate_every = 2
evaluate_rows = 2

[fresh]
deviation = 0.08
embeddings = 0.3
vision = 0.05

[optimizer]
learning_rate = 1e-3
warmup_steps = 2

[[stage]]
name = "first"
steps = 3
rows = 6
[[stage.source]]
kind = "glance"
share = 1.0
[[stage.source]]
kind = "recall"
level = 2
share = 1.0

[[stage]]
name = "second"
steps = 2
rows = 4
[[stage.source]]
kind = "episode"
frames = 4
level = 1
share = 1.0
[[stage.source]]
kind = "watch"
level = 4
frames = 3
share = 1.0
"#;

fn open(folder: &Path) -> Sft {
    open_with(Plan::parse(PLAN).expect("a plan"), folder).expect("opens")
}

fn open_with(plan: Plan, folder: &Path) -> Result<Sft, TrainError> {
    let card = ModelCard::load(Path::new(DEFAULT)).expect("the bundled card");
    let base = card.folder.clone();
    Sft::open(plan, card, base, folder.to_owned())
}

/// Losses of steps and evaluations until so many steps are done.
fn run(sft: &mut Sft, until: u64) -> Vec<(u64, f64)> {
    let (stop, mut losses) = (AtomicBool::new(false), Vec::new());
    let mut told = |progress: &Progress| {
        match progress {
            Progress::Step(report) => {
                losses.push((report.step, report.loss));
                stop.store(report.step >= until, Ordering::Relaxed);
            }
            Progress::Evaluation { step, sources } => {
                losses.extend(sources.iter().map(|source| (*step, source.loss)));
            }
        }
        Ok(())
    };
    sft.run(&stop, &mut told).expect("runs");
    losses
}

#[test]
fn a_run_that_is_broken_off_goes_on_with_the_same_losses() {
    let (whole, broken) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let mut sft = open(whole.path());
    let expected = run(&mut sft, 5);
    assert_eq!(expected.len(), 5 + 3 * 2);
    assert!(expected[0].1.is_finite() && expected[0].1 > 3.0);
    let mut losses = Vec::new();
    for until in [1, 2, 4, 5] {
        // Each time from the disk.
        losses.extend(run(&mut open(broken.path()), until));
    }
    // To the last bit.
    assert_eq!(losses, expected);
    assert_eq!(open(broken.path()).done(), 5);
    let other = Plan { seed: 4, ..Plan::parse(PLAN).expect("a plan") };
    assert!(matches!(open_with(other, broken.path()), Err(TrainError::Options(_))));

    let exported = tempfile::tempdir().expect("a folder");
    sft.export(exported.path()).expect("exports");
    let load = |folder: &Path, mode| Qwen3Vl::load(folder, &LoadOptions::cpu(mode)).expect("loads");
    let (trained, loaded) = (load(&broken.path().join("last"), Mode::Training), load(exported.path(), Mode::Training));
    for ((name, one), (_, other)) in trained.variables().iter().zip(loaded.variables()) {
        let numbers = |variable: &Tensor| variable.flatten_all().and_then(|v| v.to_vec1::<f32>()).expect("numbers");
        assert_eq!(numbers(one), numbers(other), "{name}");
    }
    assert!(load(exported.path(), Mode::Inference).weight_bytes() > 0);
}

#[test]
fn rows_that_share_their_beginning_teach_what_they_teach_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let sft = open(folder.path());
    let row = |lesson, place| {
        let example = sft.world.example(lesson, 1, place);
        let transcript = sft.transcriber.write(example.turns).expect("writes");
        Row::new(transcript, sft.learner.model(), example.last_only).expect("a row")
    };
    let episode = Lesson::Episode { frames: 4, level: 1 };
    let rows: Vec<Row> = vec![
        row(episode, 0),
        row(episode, 1),
        row(Lesson::Recall { level: 3 }, 2),
        row(Lesson::Watch { level: 4, frames: 4 }, 3),
        row(episode, 0),
    ];
    let loss = |batch: &Batch, p: &Tensor| (p * Tensor::new(batch.weights.as_slice(), p.device())?)?.sum_all()?.neg();
    let of = |rows: &[Row]| {
        let batch = Batch::pack(rows, sft.learner.model()).expect("packs");
        let gradients = crate::train::learner::gradients(sft.learner.model(), &batch, &loss).expect("gradients");
        (batch, gradients)
    };
    let (batch, shared) = of(&rows);
    assert!(batch.tokens.len() < batch.unshared_tokens * 3 / 4, "{} of {}", batch.tokens.len(), batch.unshared_tokens);
    let apart: Vec<_> = rows.iter().map(|row| of(std::slice::from_ref(row)).1).collect();
    let expected: f64 = apart.iter().map(|one| one.loss).sum();
    assert!((shared.loss - expected).abs() < 1e-4 * expected, "{} for {expected}", shared.loss);
    for (at, (name, _)) in sft.learner.model().variables().iter().enumerate() {
        let sum = |place: usize| apart.iter().map(|one| f64::from(one.of[at][place])).sum::<f64>();
        let sums: Vec<f64> = (0..shared.of[at].len()).map(sum).collect();
        let length = sums.iter().map(|x| x * x).sum::<f64>().sqrt();
        let wrong = sums.iter().zip(&shared.of[at]).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum::<f64>().sqrt();
        assert!(wrong <= 1e-4 * length + 1e-9, "{name}: off by {wrong} of {length}");
    }
    // And what its targets get is what they get in an engine that keeps nothing.
    let told: Vec<f32> = apart.iter().flat_map(|one| one.told.log_probabilities.clone()).collect();
    assert!(shared.told.log_probabilities.iter().zip(&told).all(|(a, b)| (a - b).abs() < 1e-4));
}

#[test]
fn drawn_weights_follow_from_the_seed() {
    let fresh = Fresh { deviation: 0.08, embeddings: 0.3, vision: 0.05 };
    let draw = |seed, name: &str, shape: &[usize]| drawn(fresh, seed)(name, shape);
    let name = "model.language_model.layers.0.mlp.up_proj.weight";
    let values = draw(1, name, &[100, 100]);
    assert_eq!(values, draw(1, name, &[100, 100]));
    assert_ne!(values, draw(2, name, &[100, 100]));
    let square = values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 1e4;
    assert!((square.sqrt() - 0.08).abs() < 0.002, "{square}");
    assert_eq!(draw(1, "model.language_model.norm.weight", &[3]), [1.0; 3]);
    assert_eq!(draw(1, "model.visual.blocks.0.norm1.bias", &[3]), [0.0; 3]);
}
