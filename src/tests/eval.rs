//! A benchmark from its questions to its report, with made-up boards, real videos and the bundled checkpoint.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use paravt::agent::Agent;
use paravt::config::{AgentConfig, MediaConfig};
use paravt::engine::native::{Native, NativeOptions};
use paravt::eval::{self, Asking, Boards, Comparison, Item, Mode, Record, Report, Run, Store};
use paravt::media::Media;
use paravt::synthetic::Board;

use super::support::{agent_with, board};

const ASKING: Asking = Asking { mode: Mode::Parallel, at_once: 3, temperature: None };

async fn agent() -> Agent {
    let engine = Native::load(&board::checkpoint(), NativeOptions::default()).await.expect("loads");
    agent_with(Arc::new(engine), AgentConfig::default())
}

async fn questions(folder: &Path, count: usize) -> Vec<Item> {
    let media = Media::new(MediaConfig::default()).expect("these tests need ffmpeg");
    let boards = Boards { seed: 2026, count, frames: Board::FRAMES };
    let asked = eval::signal_board(folder, &boards);
    let mut made = 0;
    eval::film_boards(&media, &asked, 2, |done| made = done).await.expect("made");
    assert_eq!((asked.len(), made), (count, count));
    eval::film_boards(&media, &asked, 2, |_| panic!("they are there")).await.expect("nothing to do");
    asked.into_iter().map(|(item, _)| item).collect()
}

fn run_of(items: &[Item], dispatch: &str) -> Run {
    Run {
        suite: "signal-board-2026".to_owned(),
        model: "paravt-tiny".to_owned(),
        dispatch: dispatch.to_owned(),
        questions: items.len(),
        digest: eval::digest(items),
        settings: "as it is".to_owned(),
    }
}

async fn ask(agent: &Agent, items: &[Item], asking: &Asking, path: &Path, run: &Run) -> usize {
    let (mut store, known) = Store::open(path, run).expect("opens");
    let done: HashSet<String> = known.into_iter().map(|record| record.id).collect();
    let left: Vec<Item> = items.iter().filter(|item| !done.contains(&item.id)).cloned().collect();
    eval::run(agent, &left, asking, &mut store, |_| ()).await.expect("written");
    left.len()
}

/// Records without what differs from run to run: how long things took, and what was cached by chance.
fn timeless(records: &[Record]) -> Vec<Record> {
    let of = |record: &Record| Record { total_ms: 0.0, first_answer_ms: None, cached_tokens: 0, ..record.clone() };
    records.iter().map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_off_run_and_shards_come_to_what_one_run_comes_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let items = questions(folder.path(), 10).await;
    let (agent, run) = (agent().await, run_of(&items, "parallel"));
    let whole = folder.path().join("whole.jsonl");
    assert_eq!(ask(&agent, &items, &ASKING, &whole, &run).await, 10);
    let (_, expected) = eval::Store::load(&whole).expect("reads");
    let report = Report::of(run.clone(), &expected);
    // The model answers most of what it was made for. Chance is below one in twenty.
    assert!(report.all.score.mean >= 0.5 && report.errors == 0, "{}", report.markdown());
    assert!(report.tool_rate > 0.5, "{}", report.markdown());

    // Broken off in the middle of the sixth line.
    let text = std::fs::read_to_string(&whole).expect("reads");
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let resumed = folder.path().join("resumed.jsonl");
    std::fs::write(&resumed, lines[..6].concat() + &lines[6][..30]).expect("written");
    assert_eq!(ask(&agent, &items, &ASKING, &resumed, &run).await, 5);
    assert_eq!(timeless(&eval::Store::load(&resumed).expect("reads").1), timeless(&expected));
    assert_eq!(ask(&agent, &items, &ASKING, &resumed, &run).await, 0, "nothing is left");

    let mut together = Vec::new();
    for place in 0..3 {
        let share: Vec<Item> = items.iter().skip(place).step_by(3).cloned().collect();
        let path = folder.path().join(format!("{place}.jsonl"));
        ask(&agent, &share, &ASKING, &path, &run).await;
        together.extend(eval::Store::load(&path).expect("reads").1);
    }
    together.sort_by(|one, other| one.id.cmp(&other.id));
    assert_eq!(timeless(&together), timeless(&expected));

    // Without windows the shapes can't be seen: on the same questions, the same model does worse.
    let blind = folder.path().join("blind.jsonl");
    let without = Asking { mode: Mode::None, ..ASKING };
    ask(&agent, &items, &without, &blind, &run_of(&items, "none")).await;
    let (_, records) = eval::Store::load(&blind).expect("reads");
    assert!(records.iter().all(|record| record.calls == 0 && record.error.is_none()), "{records:?}");
    let comparison = Comparison::of(&expected, &records).expect("the same questions");
    assert!(comparison.difference.mean > 0.0, "{comparison:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_a_result_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut items = questions(folder.path(), 1).await;
    items[0].video = folder.path().join("gone.mp4");
    let (agent, run) = (agent().await, run_of(&items, "parallel"));
    let path = folder.path().join("run.jsonl");
    ask(&agent, &items, &ASKING, &path, &run).await;
    let (_, records) = eval::Store::load(&path).expect("reads");
    assert!(records[0].error.is_some() && records[0].score == 0.0, "{records:?}");
    assert_eq!(Report::of(run, &records).errors, 1);
}
