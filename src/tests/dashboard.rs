//! The dashboard for Grafana asks for metrics that there are, and leaves none out.

use std::collections::BTreeSet;

use paravt::metrics::{EpisodeOutcome, Metrics, Readings, UploadOutcome};
use serde_json::Value;

use super::support::root;

/// Metrics that no panel needs.
const NOT_SHOWN: [&str; 0] = [];

/// Names of all metrics and of their series, as they are rendered once each has something to tell.
fn rendered() -> (BTreeSet<String>, BTreeSet<String>) {
    let metrics = Metrics::new().expect("valid names");
    metrics.build("0", "m");
    metrics.request("/", 200);
    metrics.answer_began("/", 1.0);
    metrics.answer_ended("/", 1.0);
    metrics.error("x");
    metrics.waited(1.0);
    metrics.episode(EpisodeOutcome::Ok);
    metrics.answered(1.0, Some(1.0), Some(1.0));
    metrics.burst(1);
    metrics.window("ok");
    metrics.stage("main", "open", 1.0);
    metrics.tokens("main", 1, 1, 1);
    metrics.refused("rate");
    metrics.upload(UploadOutcome::Ok);
    let text = metrics.render(&Readings { upstreams: vec![(true, 0)], ..Readings::default() }).expect("renders");
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let series = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(['{', ' ']).next());
    (families.map(str::to_owned).collect(), series.map(str::to_owned).collect())
}

/// Words of an expression that are names of metrics of ours.
fn names(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| ["paravt_", "process_"].iter().any(|ours| word.starts_with(ours))).map(str::to_owned).collect()
}

fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if ["expr", "definition", "query"].contains(&name.as_str()) => {
                        found.push(text.clone());
                    }
                    value => expressions(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

fn asked() -> BTreeSet<String> {
    let text = std::fs::read_to_string(root("docker/grafana/dashboard.json")).expect("readable");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let mut found = Vec::new();
    expressions(&dashboard, &mut found);
    assert!(found.len() > 30, "{found:?}");
    found.iter().flat_map(|expression| names(expression)).collect()
}

#[test]
fn it_asks_for_nothing_that_is_not_there() {
    let (_, series) = rendered();
    // The process's own are there on Linux alone.
    let linux = cfg!(target_os = "linux");
    let missing: Vec<_> =
        asked().into_iter().filter(|name| !series.contains(name) && (linux || name.starts_with("paravt_"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_metric_of_ours_is_on_it() {
    let (families, _) = rendered();
    let source = std::fs::read_to_string(root("src/metrics.rs")).expect("readable");
    let declared = source.lines().filter_map(|line| line.trim().strip_prefix("pub const ")?.split('"').nth(1));
    let asked = asked();
    let shown =
        |family: &str| ["", "_bucket", "_sum", "_count"].iter().any(|end| asked.contains(&format!("{family}{end}")));
    let mut count = 0;
    for family in declared {
        count += 1;
        assert!(families.contains(family), "{family} is declared and never rendered");
        assert!(shown(family) || NOT_SHOWN.contains(&family), "{family} is on no panel");
    }
    let ours = families.iter().filter(|family| family.starts_with("paravt_")).count();
    assert_eq!(count, ours, "a name stands outside of `metrics::name`");
}

#[test]
fn its_panels_have_places_and_numbers_of_their_own() {
    let text = std::fs::read_to_string(root("docker/grafana/dashboard.json")).expect("readable");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let number = |panel: &Value, name: &str| panel["gridPos"][name].as_u64().expect("a number");
    let mut cells = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{}", panel["title"]);
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|name| number(panel, name));
        assert!(x + w <= 24, "{}", panel["title"]);
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(cells.insert(cell), "{} lies over another", panel["title"]);
        }
    }
}
