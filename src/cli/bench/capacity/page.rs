//! Tables, as Markdown. Those that need no simulation stand in `load_tests/CAPACITY.md`, and a test compares them.

use super::fleet::Simulated;
use super::paper::{Episode, Inputs, Replica};
use crate::agent::cost::Way;

/// Windows of the table of tokens.
const WINDOWS: [usize; 4] = [1, 3, 5, 10];
/// Fleets of the table of what saturates.
const FLEETS: [usize; 3] = [1, 10, 1000];

/// The page's tables with their names.
fn sections(inputs: &Inputs, traffic: &[f64]) -> [(&'static str, String); 4] {
    [
        ("tokens", tokens(inputs)),
        ("episode", episode(inputs)),
        ("traffic", needs(inputs, traffic)),
        ("saturation", saturation(inputs)),
    ]
}

/// All tables that need no simulation.
pub(super) fn tables(inputs: &Inputs, traffic: &[f64]) -> String {
    sections(inputs, traffic).map(|(_, table)| table).join("\n\n")
}

/// The same between markers.
pub(super) fn blocks(inputs: &Inputs, traffic: &[f64]) -> String {
    sections(inputs, traffic).map(|(name, table)| block(name, &table)).join("\n\n")
}

fn begin(name: &str) -> String {
    format!("<!-- paravt bench capacity --page: {name} -->")
}

fn block(name: &str, table: &str) -> String {
    format!("{}\n{table}\n<!-- end -->", begin(name))
}

fn table(head: &[&str], words: usize, rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
    let rule = (0..head.len()).map(|column| if column < words { "---".to_owned() } else { "---:".to_owned() });
    let head = head.iter().map(|cell| (*cell).to_owned());
    let mut lines = vec![line(&head.collect::<Vec<_>>()), line(&rule.collect::<Vec<_>>())];
    lines.extend(rows.map(|cells| line(&cells)));
    lines.join("\n")
}

fn tokens(inputs: &Inputs) -> String {
    let head = ["windows", "way", "read", "of it new", "written", "longest", "GPU work s", "alone s"];
    let rows = WINDOWS.into_iter().flat_map(|windows| {
        [Way::Parallel, Way::Sequential, Way::Inline].map(|way| {
            let tokens = inputs.tokens.tokens(way, windows);
            let episode = Episode::of(inputs, way, windows);
            vec![
                windows.to_string(),
                format!("{way:?}").to_lowercase(),
                tokens.read.to_string(),
                tokens.read_new.to_string(),
                tokens.written.to_string(),
                tokens.longest.to_string(),
                digits(episode.work_s),
                digits(episode.latency_s(inputs, 0.0)),
            ]
        })
    });
    table(&head, 2, rows)
}

fn episode(inputs: &Inputs) -> String {
    let episode = inputs.episode();
    let replica = Replica::of(inputs, &episode);
    let tokens = inputs.tokens.tokens(Way::Parallel, inputs.windows);
    let most = replica.most();
    let frames = inputs.overview_frames + inputs.windows * inputs.window_frames;
    let rows = [
        ("tokens read, of them new, written", format!("{}, {}, {}", tokens.read, tokens.read_new, tokens.written)),
        ("work of a GPU `w`, s", digits(episode.work_s)),
        ("steps one after another", episode.steps.to_string()),
        ("waits for frames, s", digits(episode.media_s)),
        ("first token, alone, s", digits(episode.first_s)),
        ("episode, alone, s", digits(episode.latency_s(inputs, 0.0))),
        ("keys and values kept, tokens", inputs.kept_tokens().to_string()),
        ("the same, GB", digits(inputs.kept_tokens() as f64 * inputs.kv_token_bytes * 1e-9)),
        ("episodes at work a GPU has room for", inputs.places_per_gpu.to_string()),
        ("episodes/s of a GPU: by sequences at a time", digits(replica.by_running)),
        ("by tokens read a step", digits(replica.by_chunk)),
        ("by episodes at work", digits(replica.by_places)),
        ("seconds of a GPU, saturated", digits(1.0 / most)),
        ("the same, of a core: decoding", digits(inputs.decode_s())),
        ("of a core: passing tokens on", digits(inputs.core_s() - inputs.decode_s())),
        ("decode cores that one GPU keeps busy", digits(most * inputs.core_s())),
        ("pixels in a front end, MB", digits(frames as f64 * inputs.pixel_bytes * 1e-6)),
        ("read of the video, MB", digits(inputs.bytes_in() * 1e-6)),
        ("sent to upstreams, MB", digits(inputs.bytes_out() * 1e-6)),
    ];
    table(&["an episode", ""], 1, rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]))
}

fn needs(inputs: &Inputs, traffic: &[f64]) -> String {
    let head = [
        "episodes/s",
        "GPUs",
        "decode cores",
        "front ends",
        "at work",
        "mean s",
        "in Gbit/s",
        "out Gbit/s",
        "keys and values GB",
        "price an hour",
        "price of 1,000 episodes",
    ];
    let rows = traffic.iter().map(|traffic| {
        let need = inputs.need(*traffic);
        let whole = |number: f64| format!("{number:.0}");
        vec![
            digits(need.episodes_per_s),
            whole(need.gpus),
            whole(need.cores),
            whole(need.front_ends),
            whole(need.places),
            digits(need.latency_s),
            digits(need.gbit_in),
            digits(need.gbit_out),
            digits(need.kv_bytes * 1e-9),
            digits(need.hour),
            format!("{:.2}", need.thousand),
        ]
    });
    table(&head, 0, rows)
}

fn saturation(inputs: &Inputs) -> String {
    let head = ["GPUs", "front ends", "decode cores", "first", "second", "third", "fourth", "fifth"];
    let rows = FLEETS.into_iter().map(|gpus| {
        let front_ends = inputs.front_ends(gpus);
        let mut cells = vec![gpus.to_string(), front_ends.to_string(), (front_ends * inputs.cores(gpus)).to_string()];
        cells.extend(inputs.bounds(gpus).sorted().into_iter().map(|(name, bears)| format!("{name} {}", digits(bears))));
        cells
    });
    table(&head, 0, rows)
}

/// What was simulated, and what it says of each fleet.
pub(super) fn simulated(all: &[Simulated], inputs: &Inputs, target_p99_s: f64) -> String {
    let head = [
        "GPUs",
        "front ends",
        "load",
        "episodes/s",
        "ended/s",
        "episode mean s",
        "on paper",
        "p50",
        "p99",
        "first token p50 s",
        "p99",
        "GPUs busy mean",
        "least",
        "most",
        "cores busy",
        "tokens found",
        "refused",
    ];
    let share = |share: f64| format!("{share:.2}");
    let rows = all.iter().map(|one| {
        let report = &one.report;
        vec![
            one.gpus.to_string(),
            one.front_ends.to_string(),
            share(one.share),
            digits(one.episodes_per_s),
            digits(report.episodes_per_s),
            digits(report.episode_s.mean),
            if one.share < 1.0 { digits(one.paper_s) } else { "–".to_owned() },
            digits(report.episode_s.p50),
            digits(report.episode_s.p99),
            digits(report.ttft_s.p50),
            digits(report.ttft_s.p99),
            share(report.replica_busy),
            share(report.replica_busy_min),
            share(report.replica_busy_max),
            share(report.core_busy),
            share(report.found),
            report.refused.to_string(),
        ]
    });
    let mut out = table(&head, 0, rows);
    let mut gpus: Vec<usize> = all.iter().map(|one| one.gpus).collect();
    gpus.dedup();
    let verdicts = gpus.iter().map(|gpus| {
        let of: Vec<&Simulated> = all.iter().filter(|one| one.gpus == *gpus).collect();
        verdict(&of, inputs, target_p99_s)
    });
    out.push_str("\n\n");
    out.push_str(&verdicts.collect::<Vec<_>>().join("\n"));
    out
}

fn verdict(of: &[&Simulated], inputs: &Inputs, target_p99_s: f64) -> String {
    let Some(first) = of.first() else { return String::new() };
    let bounds = inputs.bounds(first.gpus);
    let saturates = bounds.sorted();
    let (name, bears) = saturates[0];
    let kept = of.iter().rfind(|one| one.report.refused == 0 && one.report.episode_s.p99 <= target_p99_s);
    let kept = kept.map_or_else(
        || format!("no load simulated kept p99 within {target_p99_s} s"),
        |one| {
            format!(
                "p99 stays within {target_p99_s} s up to {} episodes/s ({:.2})",
                digits(one.episodes_per_s),
                one.share
            )
        },
    );
    let most = of.iter().map(|one| one.report.episodes_per_s).fold(0.0, f64::max);
    let ratio = if of.iter().any(|one| one.share > 1.0) {
        format!("; saturated it serves {} a second, {:.2} of the paper's", digits(most), most / bounds.simulated())
    } else {
        String::new()
    };
    format!("- {} GPUs: on paper {name} saturate first, at {} episodes/s; {kept}{ratio}.", first.gpus, digits(bears))
}

/// Three digits that count.
fn digits(number: f64) -> String {
    let size = if number == 0.0 { 0 } else { number.abs().log10().floor() as i32 };
    let decimals = usize::try_from(2 - size).unwrap_or(0).min(6);
    format!("{number:.decimals$}")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::tests::{inputs, parse};
    use super::*;

    fn path() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("load_tests/CAPACITY.md")
    }

    /// What stands between a table's markers, with them.
    fn committed<'a>(page: &'a str, name: &str) -> &'a str {
        let rest = page.find(&begin(name)).map_or("", |at| &page[at..]);
        rest.find("<!-- end -->").map_or("", |end| &rest[..end + "<!-- end -->".len()])
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a switch of this test, for who regenerates the page")]
    fn the_committed_page_has_the_commands_tables() {
        let traffic = parse("").expect("defaults").traffic;
        let mut page = fs::read_to_string(path()).expect("the page");
        let sections = sections(&inputs(), &traffic);
        if std::env::var_os("PARAVT_UPDATE_CAPACITY").is_some() {
            for (name, table) in &sections {
                let old = committed(&page, name).to_owned();
                assert!(!old.is_empty(), "the page has no place for {name}");
                page = page.replace(&old, &block(name, table));
            }
            fs::write(path(), &page).expect("written");
        }
        for (name, table) in &sections {
            let told = "run this test with PARAVT_UPDATE_CAPACITY=1 and look at the difference";
            assert!(committed(&page, name) == block(name, table), "{name}: {told}");
        }
    }

    /// Simulations take minutes, and their last digits may depend on the machine's logarithm: only their commands are checked.
    #[test]
    fn the_pages_simulations_have_commands_that_exist() {
        let page = fs::read_to_string(path()).expect("the page");
        let commands: Vec<&str> = page
            .split("<!-- paravt bench capacity ")
            .skip(1)
            .filter_map(|rest| rest.split_once(" -->").map(|(line, _)| line))
            .filter(|line| !line.starts_with("--page"))
            .collect();
        assert!(commands.len() >= 2, "{commands:?}");
        for command in commands {
            let args = parse(command).expect(command);
            assert!(!args.nodes.is_empty(), "{command}");
        }
    }

    #[test]
    fn three_digits_count() {
        assert_eq!(
            [0.0, 0.0012345, 0.5, 12.34, 123.4, 1234.5].map(digits),
            ["0.00", "0.00123", "0.500", "12.3", "123", "1234"]
        );
    }
}
