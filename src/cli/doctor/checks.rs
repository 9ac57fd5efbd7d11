//! Looks at the machine, one check a function. Nothing here changes anything.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use url::Url;

use super::super::{Environment, ffmpeg as ours};
use super::Check;
use crate::card::checkpoint::{self, CheckpointError};
use crate::card::{self, ModelCard};
use crate::config::{Config, EngineConfig, EngineKind};

/// How long the outside may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// All of them, in the order people care.
pub(super) async fn all(config: &Config, environment: &Environment) -> Vec<Check> {
    let kind = config.engine.chosen_kind();
    let mut checks = vec![ffmpeg(config).await, engine(kind)];
    let chosen = card::chosen(&config.engine);
    let card = ModelCard::load(chosen);
    checks.extend(cards(chosen, card.as_ref().map_err(ToString::to_string)));
    if let Ok(card) = &card {
        checks.push(checkpoint(card, &config.engine, kind).await);
        if let Err(problem) = card.fits(kind) {
            checks.push(Check::missing("frame pairs", problem, "give --engine native, or another card"));
        }
    }
    checks.push(hub_cache(config, environment));
    if kind == EngineKind::Scripted {
        checks.push(script(config.engine.script.as_deref()));
    }
    for upstream in &config.engine.upstreams {
        checks.push(upstream_answers(&upstream.url).await);
    }
    if kind == EngineKind::Remote && config.engine.upstreams.is_empty() {
        checks.push(Check::missing("upstream", "the remote engine has none", "give --upstream URL"));
    }
    checks.push(machine());
    checks.push(gpu().await);
    checks
}

async fn ffmpeg(config: &Config) -> Check {
    match ours::found(&config.media).await {
        Some(found) if found.too_old => {
            Check::missing("ffmpeg", found.detail, "install a newer one, or name its folder: media.ffmpeg_directory")
        }
        Some(found) => Check::found("ffmpeg", found.detail),
        None => {
            let fix = format!("paravt doctor --install, or by hand: {}", ours::hint());
            Check::missing("ffmpeg", "ffmpeg or ffprobe is not there", fix)
        }
    }
}

fn engine(kind: EngineKind) -> Check {
    let features = [
        ("native", cfg!(feature = "native")),
        ("mistralrs", cfg!(feature = "mistralrs")),
        ("cuda", cfg!(feature = "cuda")),
        ("ffmpeg-download", cfg!(feature = "ffmpeg-download")),
    ];
    let built: Vec<&str> = features.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect();
    let built = if built.is_empty() { "none".to_owned() } else { built.join(", ") };
    let detail = format!("{} (features built in: {built})", kind.name());
    if !kind.is_built_in() {
        let fix = format!("build with the feature `{}`, or give --upstream URL", kind.name());
        return Check::missing("engine", detail, fix);
    }
    Check::found("engine", detail)
}

fn cards(configured: &Path, card: Result<&ModelCard, String>) -> Vec<Check> {
    let mut checks = vec![match card {
        Ok(card) => Check::found("model card", described(card)),
        Err(problem) => Check::missing("model card", problem, "give --card NAME|DIR"),
    }];
    for bundled in card::BUNDLED.map(Path::new) {
        if bundled != configured
            && let Ok(card) = ModelCard::load(bundled)
        {
            checks.push(Check::found("other card", described(&card)));
        }
    }
    checks
}

fn described(card: &ModelCard) -> String {
    format!("{}, {}: {}", card.name, card.description, card.folder.display())
}

/// As loading would find it, without asking the Hub.
async fn checkpoint(card: &ModelCard, config: &EngineConfig, kind: EngineKind) -> Check {
    const NAME: &str = "checkpoint";
    let (asked, needed) = (EngineConfig { offline: true, ..config.clone() }, kind.is_embedded());
    match checkpoint::resolve(card, &asked, false).await {
        Ok(folder) => local(&folder, needed),
        Err(problem) if !needed => {
            Check::absent(NAME, format!("{}; this engine needs none", without_offline(&problem)))
        }
        Err(problem @ CheckpointError::Offline { .. }) if !config.offline => {
            Check::absent(NAME, format!("{}; the first start downloads it", without_offline(&problem)))
        }
        Err(problem @ CheckpointError::Offline { .. }) => {
            Check::missing(NAME, problem.to_string(), "run once without --offline, or give --model DIR")
        }
        Err(problem) => Check::missing(NAME, problem.to_string(), "give --model DIR"),
    }
}

/// Offline is our way of asking, not the operator's setting.
fn without_offline(problem: &CheckpointError) -> String {
    match problem {
        CheckpointError::Offline { repository, revision, missing } => {
            format!("{repository} at {revision} is not complete in the cache ({missing} is missing)")
        }
        other => other.to_string(),
    }
}

/// A folder is taken as it is named, so whether it holds a checkpoint is looked at here.
fn local(folder: &Path, needed: bool) -> Check {
    const NAME: &str = "checkpoint";
    // Without the `.` that a card names its own folder by.
    let folder: PathBuf = folder.components().collect();
    let place = folder.display();
    let weights = weights_bytes(&folder);
    if weights > 0 && checkpoint::missing(&folder).is_none() {
        Check::found(NAME, format!("{place}, weights {}", size(weights)))
    } else if needed {
        Check::missing(
            NAME,
            format!("{place} has no complete checkpoint"),
            "it needs config.json, tokenizer.json, preprocessor_config.json and *.safetensors; give another with --model DIR",
        )
    } else {
        Check::absent(NAME, format!("{place} has none; this engine needs none"))
    }
}

fn hub_cache(config: &Config, environment: &Environment) -> Check {
    match hub_folder(config, environment) {
        Some(folder) if folder.is_dir() => Check::found("hub cache", folder.display().to_string()),
        Some(folder) => Check::absent("hub cache", format!("{}: made by the first download", folder.display())),
        None => Check::absent("hub cache", "no home folder; set engine.cache_directory to download checkpoints"),
    }
}

/// Where the Hub's own tools keep checkpoints: `HF_HOME`, else `~/.cache/huggingface`.
fn hub_folder(config: &Config, environment: &Environment) -> Option<PathBuf> {
    let default = || {
        let home = environment.get("HF_HOME").map(PathBuf::from);
        let home = home.or_else(|| environment.get("HOME").map(|home| Path::new(home).join(".cache/huggingface")));
        home.map(|home| home.join("hub"))
    };
    config.engine.cache_directory.clone().or_else(default)
}

fn weights_bytes(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let weights = files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|e| e == "safetensors"));
    weights.filter_map(|path| std::fs::metadata(path).ok()).map(|data| data.len()).sum()
}

fn script(path: Option<&Path>) -> Check {
    match path {
        Some(path) if path.is_file() => Check::found("script", path.display().to_string()),
        Some(path) => Check::missing("script", format!("no file {}", path.display()), "give --script FILE"),
        None => Check::missing("script", "the scripted engine has none", "give --script FILE"),
    }
}

/// Whether someone accepts connections there. Whether it has the model shows with the first question.
async fn upstream_answers(url: &str) -> Check {
    const NAME: &str = "upstream";
    let parsed = Url::parse(url).ok();
    let place = parsed.as_ref().and_then(|url| Some((url.host_str()?.to_owned(), url.port_or_known_default()?)));
    let (Some(url), Some((host, port))) = (parsed, place) else {
        return Check::missing(NAME, "the URL is not valid", "it looks like http://host:8000/v1");
    };
    // A URL may carry a password.
    let shown = format!("{}://{host}:{port}", url.scheme());
    let bare = host.trim_matches(['[', ']']).to_owned();
    match tokio::time::timeout(PATIENCE, tokio::net::TcpStream::connect((bare, port))).await {
        Ok(Ok(_)) => Check::found(NAME, format!("{shown} accepts connections")),
        Ok(Err(error)) => Check::missing(NAME, format!("{shown}: {error}"), "start it, or give another --upstream"),
        Err(_) => Check::missing(NAME, format!("{shown} does not answer"), "start it, or give another --upstream"),
    }
}

fn machine() -> Check {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = match (meminfo(&info, "MemTotal"), meminfo(&info, "MemAvailable")) {
        (Some(total), Some(free)) => format!("{} of memory, {} free", size(total), size(free)),
        _ => "memory unknown".to_owned(),
    };
    Check::found("machine", format!("{cores} cores, {memory}"))
}

/// A value of `/proc/meminfo` in bytes.
fn meminfo(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    rest.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Embedded inference runs on CPUs unless built for CUDA, so no GPU is never a fault.
async fn gpu() -> Check {
    let mut command = tokio::process::Command::new("nvidia-smi");
    command.arg("-L").stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let built = if cfg!(feature = "cuda") { "paravt is built for it" } else { "paravt is built for CPUs only" };
    match tokio::time::timeout(PATIENCE, command.output()).await {
        Ok(Ok(output)) if output.status.success() => {
            let listed = String::from_utf8_lossy(&output.stdout);
            let count = listed.lines().filter(|line| line.starts_with("GPU ")).count();
            let first = listed.lines().next().and_then(|line| line.split_once(": ")).map_or("", |(_, rest)| rest);
            let first = first.split(" (UUID").next().unwrap_or(first);
            Check::found("gpu", format!("{count} found, the first: {first}; {built}"))
        }
        Ok(Ok(_)) | Err(_) => Check::absent("gpu", "nvidia-smi is there but does not answer; not used"),
        Ok(Err(_)) => Check::absent("gpu", "none found (no nvidia-smi); embedded inference runs on the CPU"),
    }
}

fn size(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let info = "MemTotal:       16384 kB\nMemAvailable:    1024 kB\n";
        assert_eq!(meminfo(info, "MemTotal"), Some(16 << 20));
        assert_eq!(meminfo(info, "MemFree"), None);
        assert_eq!(meminfo("", "MemTotal"), None);
    }

    #[test]
    fn a_checkpoint_is_found_when_all_of_it_is_there() {
        let folder = tempfile::tempdir().expect("folder");
        for file in ["config.json", "tokenizer.json", "preprocessor_config.json", "model.safetensors"] {
            assert_eq!(local(folder.path(), true).state, State::Missing, "without {file}");
            assert_eq!(local(folder.path(), false).state, State::Absent, "without {file}");
            std::fs::write(folder.path().join(file), "12345").expect("write");
        }
        let check = local(folder.path(), true);
        assert!(check.state == State::Found && check.detail.contains("5 B"), "{check:?}");
    }

    #[test]
    fn a_checkpoint_that_lacks_a_shard_is_not_found() {
        let folder = tempfile::tempdir().expect("folder");
        let write = |file: &str, text: &str| std::fs::write(folder.path().join(file), text).expect("write");
        for file in ["config.json", "tokenizer.json", "preprocessor_config.json", "model-00001-of-00002.safetensors"] {
            write(file, "12345");
        }
        let second = "model-00002-of-00002.safetensors";
        write("model.safetensors.index.json", &format!(r#"{{"weight_map": {{"a": "{second}"}}}}"#));
        assert_eq!(local(folder.path(), true).state, State::Missing);
        write(second, "12345");
        assert_eq!(local(folder.path(), true).state, State::Found);
    }

    #[tokio::test]
    async fn a_cached_revision_counts_only_as_loading_would_take_it() {
        let cache = tempfile::tempdir().expect("folder");
        let mut card = ModelCard::load(Path::new(card::DEFAULT)).expect("the bundled card");
        (card.source.directory, card.source.hub) = (None, Some("owner/name".to_owned()));
        // Another revision's snapshot, and a broken one at that.
        let snapshot = cache.path().join("models--owner--name/snapshots/other");
        std::fs::create_dir_all(&snapshot).expect("folders");
        std::fs::write(snapshot.join("model.safetensors"), "12345").expect("write");
        let mut config = EngineConfig { cache_directory: Some(cache.path().into()), ..EngineConfig::default() };
        let check = checkpoint(&card, &config, EngineKind::EMBEDDED).await;
        assert!(check.state == State::Absent && check.detail.contains("downloads it"), "{check:?}");
        assert!(!check.detail.contains("offline"), "{check:?}");
        assert_eq!(checkpoint(&card, &config, EngineKind::Remote).await.state, State::Absent);
        config.offline = true;
        assert_eq!(checkpoint(&card, &config, EngineKind::EMBEDDED).await.state, State::Missing);
    }

    #[test]
    fn a_card_is_shown_with_what_it_is() {
        let card = ModelCard::load(Path::new(card::DEFAULT)).expect("the bundled card");
        let check = cards(Path::new(card::DEFAULT), Ok(&card)).remove(0);
        assert!(check.detail.contains(&card.description), "{check:?}");
    }

    #[test]
    fn the_hub_cache_is_where_the_hubs_tools_look() {
        let environment = |pairs: &[(&str, &str)]| -> Environment {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        let mut config = Config::default();
        let both = environment(&[("HOME", "/h"), ("HF_HOME", "/hf")]);
        assert_eq!(hub_folder(&config, &environment(&[("HOME", "/h")])), Some("/h/.cache/huggingface/hub".into()));
        assert_eq!(hub_folder(&config, &both), Some("/hf/hub".into()));
        config.engine.cache_directory = Some("/mine".into());
        assert_eq!(hub_folder(&config, &both), Some("/mine".into()));
        assert_eq!(hub_folder(&Config::default(), &environment(&[])), None);
    }

    #[tokio::test]
    async fn an_upstream_is_found_while_it_listens() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
        let url = format!("http://user:secret@{}/v1", listener.local_addr().expect("address"));
        let check = upstream_answers(&url).await;
        assert_eq!(check.state, State::Found);
        assert!(!check.detail.contains("secret"));
        // Bound and not listening: nobody else can take the port meanwhile.
        let deaf = tokio::net::TcpSocket::new_v4().expect("socket");
        deaf.bind(([127, 0, 0, 1], 0).into()).expect("binds");
        let url = format!("http://{}/v1", deaf.local_addr().expect("address"));
        assert_eq!(upstream_answers(&url).await.state, State::Missing);
        assert_eq!(upstream_answers("not a url").await.state, State::Missing);
    }
}
