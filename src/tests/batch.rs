//! Events of videos, from tasks to results: with a scripted model, so that what it says is known, and with the bundled one.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use paravt::batch::{self, Asking, Batch, Cut, Done, EventSource, Journal, Task};
use paravt::config::AgentConfig;
use paravt::engine::scripted::{Reply, ScriptedEngine};
use paravt::engine::{EngineError, Speaker};
use paravt::types::MediaTime;
use serde_json::json;

use super::support::{agent_with, demo_video};

fn at(seconds: f64) -> MediaTime {
    MediaTime::from_seconds(seconds).expect("a time")
}

/// Segments of the demonstration's 300.2 s: from 0, 80, 160 and 200.2, each of 100 s.
fn cut() -> Cut {
    Cut { segment: Some(at(100.0)), overlap: at(20.0) }
}

fn run_of() -> Batch {
    Batch { batch_of: "paravt-tiny".to_owned(), settings: "as it is".to_owned() }
}

fn asking(events: EventSource) -> Asking {
    Asking { events, at_once: 2, temperature: None }
}

fn tasks(lines: &[serde_json::Value]) -> Vec<Task> {
    let text: Vec<String> = lines.iter().map(ToString::to_string).collect();
    batch::read_tasks(text.join("\n").as_bytes()).expect("tasks")
}

fn results(path: &Path) -> Vec<Done> {
    let text = std::fs::read_to_string(path).expect("reads");
    text.lines().map(|line| serde_json::from_str(line).expect("a result")).collect()
}

/// Looks at a window from 10 to 20 s, and then tells an event at 12 s, wherever it is.
fn twelve() -> ScriptedEngine {
    ScriptedEngine::new(|request, _| match request.speaker {
        Speaker::Sub => Reply::text("A goal falls."),
        Speaker::Main if request.prefix.ends_with("<answer>") => {
            Reply::text(r#"{"events": [{"start": 12.0, "end": 14.0, "label": "goal", "description": "Header."}]}"#)
        }
        Speaker::Main if request.turns.len() < 3 => Reply::text(
            "There.\n</think>\n<tool_call>\n{\"name\": \"crop_video\", \"arguments\": {\"start_time\": 10, \"end_time\": 20}}\n</tool_call>",
        ),
        Speaker::Main => Reply::text("Now I know.\n</think>\n<answer>a goal</answer>"),
    })
}

#[tokio::test]
async fn each_segment_is_a_video_of_its_own_and_events_have_the_whole_videos_times() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("results.jsonl");
    let tasks = tasks(&[
        json!({"id": "all", "video": demo_video(), "labels": ["goal", "foul"]}),
        json!({"id": "part", "video": demo_video(), "start": "02:00", "end": 180, "metadata": {"team": "x"}}),
        json!({"id": "none", "video": "/no/such.mp4"}),
    ]);
    let engine = Arc::new(twelve());
    let agent = agent_with(engine.clone(), AgentConfig::default());
    let mut journal = Journal::open(&path, &run_of(), cut(), &tasks).expect("opens");
    batch::run(&agent, &tasks, &asking(EventSource::Answer), &mut journal, |_| ()).await.expect("written");

    let done = results(&path);
    assert_eq!(done.iter().map(|done| done.id.as_str()).collect::<Vec<_>>(), ["all", "part", "none"]);
    let starts = |done: &Done| done.events.iter().map(|event| event.start.seconds()).collect::<Vec<_>>();
    assert_eq!(starts(&done[0]), [12.0, 92.0, 172.0, 212.2]);
    assert_eq!((starts(&done[1]), done[1].segments), (vec![132.0], 1));
    assert_eq!(done[1].metadata, Some(json!({"team": "x"})));
    assert_eq!((done[0].windows, done[0].segments, done[0].failed.len()), (4, 4, 0));
    assert_eq!((done[2].duration, done[2].failed.len(), done[2].events.len()), (None, 1, 0));

    // The model was shown videos of 100 s (and one of 60) that begin at 0, and its windows are of them.
    let requests = engine.requests();
    let overviews = requests.iter().filter(|request| request.speaker == Speaker::Main && request.turns.len() == 2);
    for request in overviews {
        let times: Vec<f64> = request.frames().iter().flatten().map(|time| time.seconds()).collect();
        let length = times[times.len() - 1];
        assert!(times[0] < 0.2 && (59.0..=100.2).contains(&length), "{times:?}");
    }
    let windows = requests.iter().filter(|request| request.speaker == Speaker::Sub);
    for request in windows {
        assert!(request.text().contains("00:10 to 00:20"), "{}", request.text());
        assert!(request.frames().iter().flatten().all(|time| (9.9..=20.1).contains(&time.seconds())), "{request:?}");
    }

    // What is known is not asked again; what failed is.
    drop(journal);
    let before = engine.requests().len();
    let text = std::fs::read_to_string(&path).expect("reads");
    let mut journal = Journal::open(&path, &run_of(), cut(), &tasks).expect("opens");
    let mut tried = Vec::new();
    let told = |told: batch::Told<'_>| tried.push((told.task.id.clone(), told.found.error.is_some()));
    batch::run(&agent, &tasks, &asking(EventSource::Answer), &mut journal, told).await.expect("written");
    assert_eq!((tried, engine.requests().len()), (vec![("none".to_owned(), true)], before));
    assert_eq!(std::fs::read_to_string(&path).expect("reads"), text);
}

#[tokio::test]
async fn a_run_that_is_broken_off_anywhere_comes_to_the_same_results() {
    let folder = tempfile::tempdir().expect("a folder");
    let tasks = tasks(&[
        json!({"id": "a", "video": demo_video(), "labels": ["goal"]}),
        json!({"id": "b", "video": demo_video(), "question": "Fouls?"}),
    ]);
    let agent = agent_with(Arc::new(twelve()), AgentConfig::default());
    let whole = folder.path().join("whole.jsonl");
    let mut journal = Journal::open(&whole, &run_of(), cut(), &tasks).expect("opens");
    batch::run(&agent, &tasks, &asking(EventSource::Windows), &mut journal, |_| ()).await.expect("written");
    let whole = std::fs::read_to_string(&whole).expect("reads");
    assert_eq!(whole.lines().count(), 2);

    for broken_off_after in [1, 3, 4, 6] {
        let path = folder.path().join(format!("{broken_off_after}.jsonl"));
        let mut runs = 0;
        while std::fs::read_to_string(&path).unwrap_or_default() != whole {
            runs += 1;
            assert!(runs < 10, "it gets there");
            let mut journal = Journal::open(&path, &run_of(), cut(), &tasks).expect("opens");
            journal.write(&tasks).expect("written");
            let (found, stop) = (AtomicUsize::new(0), tokio::sync::Notify::new());
            let told = |_: batch::Told<'_>| {
                if found.fetch_add(1, Ordering::Relaxed) + 1 == broken_off_after {
                    stop.notify_one();
                }
            };
            let asking = asking(EventSource::Windows);
            let run = batch::run(&agent, &tasks, &asking, &mut journal, told);
            tokio::select! {
                biased;
                () = stop.notified() => {}
                ran = run => ran.expect("written"),
            }
        }
        assert!(runs > 1, "{broken_off_after}");
    }
}

#[tokio::test]
async fn an_answer_that_is_no_list_of_events_is_a_failure_of_its_segment_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("results.jsonl");
    let engine = ScriptedEngine::new(|request, _| {
        let last = request.turns.iter().flat_map(|turn| turn.frames()).filter_map(|frame| frame.time).max();
        let wide = last.is_some_and(|last| last > at(99.0));
        match request.speaker {
            Speaker::Main if request.prefix.ends_with("<answer>") => {
                Reply::text(if wide { "{\"events\": []}" } else { "{\"events\": [" })
            }
            _ => Reply::text("Hm.\n</think>\n<answer>?</answer>"),
        }
    });
    let agent = agent_with(Arc::new(engine), AgentConfig::default());
    // The second segment ends with the part, at 130 s, and is as long as the first.
    let tasks = tasks(&[
        json!({"id": "a", "video": demo_video(), "end": 130}),
        json!({"id": "b", "video": demo_video(), "end": 90}),
    ]);
    let mut journal = Journal::open(&path, &run_of(), cut(), &tasks).expect("opens");
    batch::run(&agent, &tasks, &asking(EventSource::Answer), &mut journal, |_| ()).await.expect("written");
    let done = results(&path);
    assert_eq!((done[0].failed.len(), done[0].segments), (0, 2));
    assert_eq!((done[1].failed.len(), done[1].segments), (1, 1));
    assert!(done[1].failed[0].error.contains("no list of events"), "{done:?}");
}

#[tokio::test]
async fn a_video_that_is_gone_keeps_its_results_and_one_that_was_changed_is_looked_at_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let (video, path) = (folder.path().join("v.mp4"), folder.path().join("results.jsonl"));
    std::fs::copy(demo_video(), &video).expect("copied");
    let tasks = tasks(&[json!({"id": "a", "video": video, "end": 90})]);
    let engine = Arc::new(twelve());
    let agent = agent_with(engine.clone(), AgentConfig::default());
    let run = async || {
        let mut journal = Journal::open(&path, &run_of(), cut(), &tasks).expect("opens");
        journal.write(&tasks).expect("written");
        batch::run(&agent, &tasks, &asking(EventSource::Answer), &mut journal, |_| ()).await.expect("written");
        (std::fs::read_to_string(&path).expect("reads"), engine.requests().len())
    };
    let (first, asked) = run().await;
    assert!(first.contains("\"goal\"") && asked > 0, "{first}");
    std::fs::remove_file(&video).expect("removed");
    assert_eq!(run().await, (first.clone(), asked), "nothing is asked, nothing is lost");
    std::fs::copy(demo_video(), &video).expect("copied");
    let changed = std::fs::File::options().write(true).open(&video).expect("opens");
    changed.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(9)).expect("set");
    let (second, more) = run().await;
    assert!(second == first && more > asked, "{second}");

    // Another list leaves out what it does not ask for, and the journal keeps it.
    let others = self::tasks(&[json!({"id": "b", "video": "/no/such.mp4"})]);
    let mut journal = Journal::open(&path, &run_of(), cut(), &others).expect("opens");
    assert_eq!(journal.strangers(), 1);
    batch::run(&agent, &others, &asking(EventSource::Answer), &mut journal, |_| ()).await.expect("written");
    drop(journal);
    assert_eq!(run().await, (first, more));
}

#[tokio::test]
async fn windows_that_could_not_be_watched_are_no_proof_that_nothing_happened() {
    let folder = tempfile::tempdir().expect("a folder");
    let call = |start: u32| {
        let arguments = format!("{{\"start_time\": {start}, \"end_time\": {}}}", start + 10);
        format!("<tool_call>\n{{\"name\": \"crop_video\", \"arguments\": {arguments}}}\n</tool_call>\n")
    };
    let burst = format!("There.\n</think>\n{}{}", call(10), call(30));
    for (from, fails_all) in [(EventSource::Windows, false), (EventSource::Answer, true), (EventSource::Answer, false)]
    {
        let path = folder.path().join(format!("{from:?}-{fails_all}.jsonl"));
        let burst = burst.clone();
        let engine = ScriptedEngine::new(move |request, call| match request.speaker {
            Speaker::Sub if fails_all || call == 0 => Reply::refuse(EngineError::Failed("broke off".to_owned())),
            Speaker::Sub => Reply::text("A goal falls."),
            Speaker::Main if request.prefix.ends_with("<answer>") => Reply::text("{\"events\": []}"),
            Speaker::Main if request.turns.len() < 3 => Reply::text(burst.clone()),
            Speaker::Main => Reply::text("Hm.\n</think>\n<answer>none</answer>"),
        });
        let agent = agent_with(Arc::new(engine), AgentConfig::default());
        let tasks = tasks(&[json!({"id": "a", "video": demo_video(), "end": 90, "labels": ["goal"]})]);
        let mut journal = Journal::open(&path, &run_of(), cut(), &tasks).expect("opens");
        batch::run(&agent, &tasks, &asking(from), &mut journal, |_| ()).await.expect("written");
        let done = results(&path).remove(0);
        let failed = from == EventSource::Windows || fails_all;
        assert_eq!((done.failed.len(), journal.is_done(&tasks[0])), (usize::from(failed), !failed), "{done:?}");
        // What was seen is told all the same.
        assert_eq!(done.events.len(), usize::from(from == EventSource::Windows), "{done:?}");
    }
}

#[cfg(feature = "native")]
#[tokio::test(flavor = "multi_thread")]
async fn the_bundled_model_finds_most_events_of_ten_minutes() {
    use paravt::batch::{Event, Truth};
    use paravt::engine::native::{Native, NativeOptions};
    use paravt::synthetic::{Board, Difficulty, Question, Random, Shown};

    use super::support::board;

    let folder = tempfile::tempdir().expect("a folder");
    let (video, path) = (folder.path().join("match.mp4"), folder.path().join("results.jsonl"));
    let engine = Native::load(&board::checkpoint(), NativeOptions::default()).await.expect("loads");
    let agent = agent_with(Arc::new(engine), AgentConfig::default());
    let made = Board::long(&Difficulty::LEVELS[1], 2, &mut Random::new(5, 0));
    paravt::eval::film_board(agent.media(), &made, &video).await.expect("made");
    let event = |shown: Shown| {
        let (start, end) = shown.times();
        Event { start, end, label: shown.name(), description: String::new() }
    };
    let truth = [Truth { id: "a".to_owned(), events: made.shown().map(event).collect() }];
    let mut labels: Vec<String> = made.shown().map(|shown| shown.name()).collect();
    labels.sort();
    labels.dedup();
    let question = Question::List.text();
    let tasks = tasks(&[json!({"id": "a", "video": video, "question": question, "labels": labels})]);
    let cut = Cut { segment: Some(at(300.0)), overlap: at(60.0) };
    let mut journal = Journal::open(&path, &run_of(), cut, &tasks).expect("opens");
    batch::run(&agent, &tasks, &asking(EventSource::Windows), &mut journal, |_| ()).await.expect("written");
    let told: Vec<Truth> = results(&path).into_iter().map(|done| Truth { id: done.id, events: done.events }).collect();
    let score = batch::score(&truth, &told, at(20.0));
    assert!(score.events >= 3 && score.recall >= 0.6 && score.precision >= 0.6, "{score:?} {truth:?} {told:?}");
}
