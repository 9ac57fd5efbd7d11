//! Real episodes of the bundled model on real files, and what is learned from them.

use super::*;
use crate::card::DEFAULT;
use crate::config::MediaConfig;

const PLAN: &str = r#"
card = "paravt-tiny"
seed = 5
steps = 3
prompts = 2
group = 3
boards = 2
temperature = 1.0
train_subs = true
save_every = 1
[optimizer]
learning_rate = 1e-4
[gating]
choices = [16, 8]
"#;

async fn open(folder: &Path, plan: &str) -> Grpo {
    let card = ModelCard::load(Path::new(DEFAULT)).expect("the bundled card");
    let base = card.folder.clone();
    let media = Media::new(MediaConfig::default()).expect("media");
    let plan = GrpoPlan::parse(plan).expect("a plan");
    Grpo::open(plan, card, base, folder.to_owned(), media, |_| {}).await.expect("opens")
}

async fn run(grpo: &mut Grpo, until: u64) -> Vec<StepReport> {
    let (stop, mut reports) = (AtomicBool::new(false), Vec::new());
    let mut told = |report: &StepReport, groups: &[Group]| {
        assert!(groups.iter().all(|group| group.len() == 3) && groups.len() == 2);
        stop.store(report.step >= until, Ordering::Relaxed);
        reports.push(report.clone());
        Ok(())
    };
    grpo.run(&stop, &mut told).await.expect("runs");
    reports
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_learned_from_is_what_was_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut grpo = open(folder.path(), PLAN).await;
    let mut reports = run(&mut grpo, 1).await;
    // Each time from the disk.
    reports.extend(run(&mut open(folder.path(), PLAN).await, 3).await);
    assert_eq!(reports.iter().map(|report| report.step).collect::<Vec<_>>(), [1, 2, 3]);
    for report in &reports {
        // The learner gives the tokens the probabilities that the engine gave them: same tokens, same weights, same pictures.
        assert!(report.drift < 1e-4, "{report:?}");
        assert!(report.failed == 0 && report.tool_rate > 0.0 && report.tokens > 50.0, "{report:?}");
        assert!(report.clipped == 0.0 && report.left_out == 0.0, "{report:?}");
    }
    // The first step is taken from the reference itself.
    assert!(reports[0].kl.abs() < 1e-6, "{reports:?}");
    assert!(reports.iter().any(|report| report.telling_groups > 0 && report.gradient_norm > 0.0), "{reports:?}");
    // An unbroken run goes the same way.
    let whole = tempfile::tempdir().expect("a folder");
    std::fs::create_dir_all(whole.path().join(VIDEOS)).expect("a folder");
    for video in std::fs::read_dir(folder.path().join(VIDEOS)).expect("videos") {
        let video = video.expect("a video");
        std::fs::copy(video.path(), whole.path().join(VIDEOS).join(video.file_name())).expect("copies");
    }
    let unbroken = run(&mut open(whole.path(), PLAN).await, 3).await;
    let told = |reports: &[StepReport]| -> Vec<(f64, f64, f64)> {
        reports.iter().map(|report| (report.reward, report.gradient_norm, report.kl)).collect()
    };
    assert_eq!(told(&unbroken), told(&reports));
}

#[tokio::test(flavor = "multi_thread")]
async fn rollouts_may_be_a_step_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let plan = PLAN.replace("save_every = 1", "save_every = 9\nstaleness = 1").replace("1e-4", "2e-3");
    let reports = run(&mut open(folder.path(), &plan).await, 3).await;
    assert_eq!(reports.len(), 3);
    assert!(reports[0].drift < 1e-4, "{reports:?}");
    let tokens: Vec<f64> = reports.iter().map(|report| report.tokens).collect();
    assert!(tokens.iter().all(|tokens| *tokens > 50.0), "{reports:?}");
}
