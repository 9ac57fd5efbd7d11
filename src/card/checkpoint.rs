//! Finds a card's checkpoint on disk, and fetches it from the Hub when it is not there yet; and files of the Hub's data sets.
//!
//! A folder named in the configuration or the card is used as it is. A Hub repository is looked up in the local cache
//! first (the layout of `huggingface_hub`, shared with it); what is complete there is never asked for again. Knows
//! nothing of engines: whether the files make a model is for the one who loads them.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hf_hub::api::tokio::{ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};

use super::ModelCard;
use crate::config::EngineConfig;

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// One of these describes the pictures; the second is transformers 5's.
const PROCESSORS: [&str; 2] = ["preprocessor_config.json", "processor_config.json"];
/// Fetched where the repository has them.
const OPTIONAL: [&str; 5] = [
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "video_preprocessor_config.json",
];
/// How long the Hub may take to list a repository. Downloads have no limit of their own: they show progress and resume.
const LISTING_TIMEOUT: Duration = Duration::from_secs(30);

/// A checkpoint that can't be had.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The folder that was asked for is not there.
    #[error("there is no checkpoint folder at {0}")]
    NoFolder(String),
    /// Neither a folder nor a repository.
    #[error("the card names neither a folder nor a Hub repository")]
    NoSource,
    /// Not in the cache, and the Hub must not be asked.
    #[error("{repository} at {revision} is not complete in the cache ({missing} is missing), and offline is set")]
    Offline {
        /// `owner/name`.
        repository: String,
        /// Branch, tag or commit.
        revision: String,
        /// The first file that is missing.
        missing: String,
    },
    /// The repository lacks a file that a checkpoint needs.
    #[error("{repository} at {revision} has no {missing}")]
    Incomplete {
        /// `owner/name`.
        repository: String,
        /// Branch, tag or commit.
        revision: String,
        /// The file.
        missing: String,
    },
    /// The Hub could not be asked or did not answer well.
    #[error("{what} could not be fetched from the Hub: {source}")]
    Hub {
        /// Repository or file.
        what: String,
        /// The cause.
        source: Box<ApiError>,
    },
    /// The Hub did not answer in time.
    #[error("the Hub did not list {0} in time")]
    Timeout(String),
}

/// The checkpoint's folder: `config.model_directory`, else the card's own folder, else its Hub repository, downloaded
/// unless the cache has all of it. `progress` shows a bar for each file where stderr is a terminal. An interrupted
/// download goes on where it stopped.
///
/// # Errors
/// [`CheckpointError`] when there is none, or it can't be fetched.
pub async fn resolve(card: &ModelCard, config: &EngineConfig, progress: bool) -> Result<PathBuf, CheckpointError> {
    if let Some(folder) = config.model_directory.clone().or_else(|| card.directory()) {
        return if folder.is_dir() { Ok(folder) } else { Err(CheckpointError::NoFolder(folder.display().to_string())) };
    }
    let repository = card.source.hub.clone().ok_or(CheckpointError::NoSource)?;
    let hub = Hub::new(RepoType::Model, repository, card.source.revision.clone(), config, progress);
    match hub.cached() {
        Ok(folder) => Ok(folder),
        Err(missing) if config.offline => {
            Err(CheckpointError::Offline { repository: hub.repository, revision: hub.revision, missing })
        }
        Err(_) => hub.download().await,
    }
}

/// Files of a data set on the Hub, in the cache, by name: each the file of that path, or the only one whose path ends with it.
///
/// # Errors
/// [`CheckpointError`] when it has none of them, or they can't be fetched.
pub async fn dataset(
    repository: &str,
    names: &[&str],
    config: &EngineConfig,
    progress: bool,
) -> Result<Vec<(String, PathBuf)>, CheckpointError> {
    let hub = Hub::new(RepoType::Dataset, repository.to_owned(), "main".to_owned(), config, progress);
    if config.offline {
        let missing = names.first().copied().unwrap_or_default().to_owned();
        return Err(CheckpointError::Offline { repository: hub.repository, revision: hub.revision, missing });
    }
    hub.named(names).await
}

/// One repository and where it is kept.
struct Hub {
    kind: RepoType,
    repository: String,
    revision: String,
    cache: Cache,
    /// Another server than the Hub's usual one.
    endpoint: Option<String>,
    progress: bool,
}

impl Hub {
    fn new(kind: RepoType, repository: String, revision: String, config: &EngineConfig, progress: bool) -> Self {
        let cache = config.cache_directory.clone().map_or_else(Cache::from_env, Cache::new);
        let progress = progress && std::io::stderr().is_terminal();
        Self { kind, repository, revision, cache, endpoint: None, progress }
    }

    fn repo(&self) -> Repo {
        Repo::with_revision(self.repository.clone(), self.kind, self.revision.clone())
    }

    /// The snapshot in the cache, or the first file that it lacks.
    fn cached(&self) -> Result<PathBuf, String> {
        let folder = self.snapshot().ok_or_else(|| CONFIG.to_owned())?;
        missing(&folder).map_or(Ok(folder), Err)
    }

    /// Where the cache keeps this revision: what the reference names, or the revision itself when it is a commit.
    fn snapshot(&self) -> Option<PathBuf> {
        let root = self.cache.path().join(self.repo().folder_name());
        let commit = std::fs::read_to_string(root.join("refs").join(&self.revision))
            .map_or_else(|_| self.revision.clone(), |commit| commit.trim().to_owned());
        // A name and not a path, whatever the file says.
        let plain = !commit.is_empty() && commit.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
        Some(root.join("snapshots").join(commit)).filter(|folder| plain && folder.is_dir())
    }

    async fn download(&self) -> Result<PathBuf, CheckpointError> {
        let pick = |listed: Vec<String>| {
            let files = wanted(listed.into_iter());
            let files = lacking(&files).map_or(Ok(files), |missing| Err(self.incomplete(missing)))?;
            Ok(files.into_iter().map(|file| (file, ())).collect())
        };
        let fetched = self.fetch(pick).await?;
        let folder = fetched.last().and_then(|(_, path)| path.parent()).map(Path::to_path_buf);
        let folder = folder.ok_or_else(|| self.incomplete(CONFIG.to_owned()))?;
        missing(&folder).map_or(Ok(folder), |missing| Err(self.incomplete(missing)))
    }

    /// See [`dataset`].
    async fn named(&self, names: &[&str]) -> Result<Vec<(String, PathBuf)>, CheckpointError> {
        let plain = |listed: &&String| !listed.split(['/', '\\']).any(|part| part.is_empty() || part == "..");
        let file_of = |listed: &[String], name: &str| {
            let mut ending = listed.iter().filter(plain).filter(|listed| Path::new(listed).ends_with(name));
            let exact = listed.iter().find(|listed| *listed == name);
            exact.or_else(|| ending.next().filter(|_| ending.next().is_none())).cloned()
        };
        let pick = |listed: Vec<String>| {
            let mut files: Vec<(String, &str)> = Vec::new();
            for name in names {
                let file = file_of(&listed, name);
                files
                    .extend(file.filter(|file| files.iter().all(|(other, _)| other != file)).map(|file| (file, *name)));
            }
            if files.is_empty() { Err(self.incomplete(names.join(", "))) } else { Ok(files) }
        };
        let fetched = self.fetch(pick).await?;
        Ok(fetched.into_iter().map(|(name, path)| (name.to_owned(), path)).collect())
    }

    /// Downloads what is picked of the files that the repository lists, and is not in the cache.
    async fn fetch<T>(
        &self,
        pick: impl Fn(Vec<String>) -> Result<Vec<(String, T)>, CheckpointError>,
    ) -> Result<Vec<(T, PathBuf)>, CheckpointError> {
        let failed = |what: &str| {
            let what = what.to_owned();
            move |source| CheckpointError::Hub { what, source: Box::new(source) }
        };
        let mut builder = ApiBuilder::from_env().with_cache_dir(self.cache.path().clone()).with_progress(self.progress);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        let api = builder.build().map_err(failed(&self.repository))?.repo(self.repo());
        let listing = tokio::time::timeout(LISTING_TIMEOUT, api.info())
            .await
            .map_err(|_| CheckpointError::Timeout(self.repository.clone()))?
            .map_err(failed(&self.repository))?;
        let files = pick(listing.siblings.into_iter().map(|file| file.rfilename).collect())?;
        let mut fetched = Vec::new();
        for (file, name) in files {
            let path = api.get(&file).await.map_err(failed(&file))?;
            tracing::debug!(file, "a file of the Hub's is there");
            fetched.push((name, path));
        }
        Ok(fetched)
    }

    fn incomplete(&self, missing: String) -> CheckpointError {
        CheckpointError::Incomplete { repository: self.repository.clone(), revision: self.revision.clone(), missing }
    }
}

/// The files of a repository that make a checkpoint. Only plain names: a listing is not trusted to name paths.
fn wanted(listed: impl Iterator<Item = String>) -> BTreeSet<String> {
    let shard = |name: &str| name.starts_with("model-") && name.ends_with(".safetensors");
    listed
        .filter(|name| !name.contains(['/', '\\']))
        .filter(|name| {
            let name = name.as_str();
            [CONFIG, TOKENIZER, WEIGHTS, INDEX].contains(&name)
                || PROCESSORS.contains(&name)
                || OPTIONAL.contains(&name)
                || shard(name)
        })
        .collect()
}

/// What a listing lacks to be a checkpoint.
fn lacking(files: &BTreeSet<String>) -> Option<String> {
    let has = |name: &str| files.contains(name);
    [CONFIG, TOKENIZER].into_iter().find(|name| !has(name)).map(str::to_owned).or_else(|| {
        if !PROCESSORS.into_iter().any(has) {
            Some(PROCESSORS[0].to_owned())
        } else if !has(WEIGHTS) && !has(INDEX) {
            Some(WEIGHTS.to_owned())
        } else {
            None
        }
    })
}

/// What a folder that can be read lacks to be a checkpoint; every shard of the index counts.
#[must_use]
pub fn missing(folder: &Path) -> Option<String> {
    let listed = std::fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    // A link into the cache may point at nothing.
    let files: BTreeSet<String> = wanted(listed).into_iter().filter(|name| folder.join(name).is_file()).collect();
    lacking(&files).or_else(|| {
        if files.contains(WEIGHTS) {
            return None;
        }
        let index = std::fs::read(folder.join(INDEX)).ok()?;
        let index: serde_json::Value = serde_json::from_slice(&index).unwrap_or_default();
        let Some(map) = index["weight_map"].as_object() else { return Some(INDEX.to_owned()) };
        map.values().filter_map(|file| file.as_str()).find(|file| !files.contains(*file)).map(str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::extract::{Path as UrlPath, State};
    use axum::http::{HeaderMap, StatusCode};
    use axum::response::IntoResponse;
    use axum::routing::get;

    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    /// A checkpoint of two shards, small enough to read.
    fn files() -> BTreeMap<&'static str, &'static str> {
        BTreeMap::from([
            (CONFIG, "{}"),
            (TOKENIZER, "{ }"),
            (PROCESSORS[0], "{  }"),
            (
                INDEX,
                r#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#,
            ),
            ("model-00001-of-00002.safetensors", "one"),
            ("model-00002-of-00002.safetensors", "two"),
        ])
    }

    fn card(directory: Option<&str>, hub: Option<&str>, revision: &str) -> ModelCard {
        let mut source = format!("revision = \"{revision}\"\n");
        for (key, value) in [("directory", directory), ("hub", hub)] {
            if let Some(value) = value {
                source.push_str(&format!("{key} = \"{value}\"\n"));
            }
        }
        toml::from_str(&format!(
            "name = \"n\"\ndescription = \"d\"\n[source]\n{source}\
             [prompts]\nsystem = \"\"\nquestion = \"\"\nsub_agent = \"\"\nlast_turn = \"\"\n\
             [agent]\nmax_turns = 1\nmax_calls = 1\nturn_tokens = 1\nsummary_tokens = 1\n\
             [overview]\nfps = 1.0\nmin_frames = 1\nmax_frames = 1\ntimestamps = true\n\
             [window]\nfps = 1.0\nmin_frames = 1\nmax_frames = 1\ntimestamps = true\n\
             [pixels]\nfactor = 32\nmin_pixels = 1024\nmax_pixels = 4096\n"
        ))
        .expect("a card")
    }

    fn offline(cache: &Path) -> EngineConfig {
        EngineConfig { cache_directory: Some(cache.to_path_buf()), offline: true, ..EngineConfig::default() }
    }

    /// Lays out a cache as `huggingface_hub` does.
    fn cache_with(files: &BTreeMap<&str, &str>) -> tempfile::TempDir {
        let cache = tempfile::tempdir().expect("tempdir");
        let root = cache.path().join("models--owner--name");
        let snapshot = root.join("snapshots").join(COMMIT);
        std::fs::create_dir_all(&snapshot).expect("creates");
        std::fs::create_dir_all(root.join("refs")).expect("creates");
        std::fs::write(root.join("refs/main"), format!("{COMMIT}\n")).expect("writes");
        for (name, content) in files {
            std::fs::write(snapshot.join(name), content).expect("writes");
        }
        cache
    }

    #[tokio::test]
    async fn a_folder_of_the_configuration_wins_over_the_cards() {
        let (own, other) = (tempfile::tempdir().expect("tempdir"), tempfile::tempdir().expect("tempdir"));
        let mut card = card(Some("."), None, "main");
        card.folder = own.path().to_path_buf();
        let mut config = EngineConfig::default();
        assert_eq!(resolve(&card, &config, false).await.expect("is there"), own.path().join("."));
        config.model_directory = Some(other.path().to_path_buf());
        assert_eq!(resolve(&card, &config, false).await.expect("is there"), other.path());
        config.model_directory = Some(other.path().join("nothing"));
        assert!(matches!(resolve(&card, &config, false).await, Err(CheckpointError::NoFolder(_))));
    }

    #[tokio::test]
    async fn what_is_cached_is_used_offline_by_branch_and_by_commit() {
        let cache = cache_with(&files());
        let expected = cache.path().join("models--owner--name/snapshots").join(COMMIT);
        for revision in ["main", COMMIT] {
            let card = card(None, Some("owner/name"), revision);
            assert_eq!(resolve(&card, &offline(cache.path()), false).await.expect("is cached"), expected);
        }
    }

    #[tokio::test]
    async fn what_is_not_all_cached_is_an_error_offline() {
        let mut incomplete = files();
        incomplete.remove("model-00002-of-00002.safetensors");
        let cache = cache_with(&incomplete);
        let card = card(None, Some("owner/name"), "main");
        let error = resolve(&card, &offline(cache.path()), false).await.expect_err("incomplete");
        assert!(
            matches!(&error, CheckpointError::Offline { missing, .. } if missing == "model-00002-of-00002.safetensors"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_card_without_a_source_is_an_error() {
        let error = resolve(&card(None, None, "main"), &EngineConfig::default(), false).await;
        assert!(matches!(error, Err(CheckpointError::NoSource)));
    }

    #[test]
    fn a_listing_can_not_name_paths_and_other_files_are_left() {
        let listed = ["../config.json", "original/model.safetensors", "README.md", "pytorch_model.bin", "config.json"];
        assert_eq!(wanted(listed.map(str::to_owned).into_iter()), BTreeSet::from([CONFIG.to_owned()]));
    }

    #[derive(Clone)]
    struct Server {
        files: Arc<BTreeMap<&'static str, &'static str>>,
        downloads: Arc<AtomicUsize>,
    }

    async fn list(State(server): State<Server>) -> impl IntoResponse {
        let names = server.files.keys().chain([&"README.md", &"../evil.safetensors"]);
        let siblings: Vec<_> = names.map(|name| serde_json::json!({"rfilename": name})).collect();
        axum::Json(serde_json::json!({"siblings": siblings, "sha": COMMIT}))
    }

    async fn file(
        State(server): State<Server>,
        UrlPath((_, _, _, name)): UrlPath<(String, String, String, String)>,
        headers: HeaderMap,
    ) -> impl IntoResponse {
        let Some(content) = server.files.get(name.as_str()) else { return StatusCode::NOT_FOUND.into_response() };
        let range = headers.get("range").and_then(|range| range.to_str().ok()).unwrap_or("bytes=0-0");
        let ends: Vec<usize> = range["bytes=".len()..].split('-').filter_map(|end| end.parse().ok()).collect();
        let (first, last) = (ends[0], ends[1].min(content.len() - 1));
        if last > 0 {
            server.downloads.fetch_add(1, Ordering::Relaxed);
        }
        let headers = [
            ("content-range", format!("bytes {first}-{last}/{}", content.len())),
            ("etag", format!("\"{name}-tag\"")),
            ("x-repo-commit", COMMIT.to_owned()),
        ];
        (StatusCode::PARTIAL_CONTENT, headers, content[first..=last].to_owned()).into_response()
    }

    /// A Hub of one repository on a socket of this machine.
    async fn serve(files: BTreeMap<&'static str, &'static str>) -> (String, Server, tokio::task::JoinSet<()>) {
        let server = Server { files: Arc::new(files), downloads: Arc::default() };
        let routes = Router::new()
            .route("/api/models/{owner}/{name}", get(list))
            .route("/api/models/{owner}/{name}/revision/{revision}", get(list))
            .route("/{owner}/{name}/resolve/{revision}/{file}", get(file))
            .route("/api/datasets/{owner}/{name}/revision/{revision}", get(list))
            .route("/datasets/{owner}/{name}/resolve/{revision}/{*file}", get(file))
            .with_state(server.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let address = listener.local_addr().expect("an address");
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, routes).await.expect("serves") });
        (format!("http://{address}"), server, tasks)
    }

    fn hub(cache: &Path, endpoint: String) -> Hub {
        Hub {
            kind: RepoType::Model,
            repository: "owner/name".to_owned(),
            revision: "main".to_owned(),
            cache: Cache::new(cache.to_path_buf()),
            endpoint: Some(endpoint),
            progress: false,
        }
    }

    #[tokio::test]
    async fn a_repository_is_downloaded_once_and_then_cached() {
        let (endpoint, server, _tasks) = serve(files()).await;
        let cache = tempfile::tempdir().expect("tempdir");
        let hub = hub(cache.path(), endpoint);
        assert!(hub.cached().is_err());
        let folder = hub.download().await.expect("downloads");
        for (name, content) in files() {
            assert_eq!(std::fs::read_to_string(folder.join(name)).expect("is there"), content);
        }
        assert!(!folder.join("README.md").exists());
        let asked = server.downloads.load(Ordering::Relaxed);
        assert_eq!(hub.cached().expect("is cached"), folder);
        hub.download().await.expect("is there");
        assert_eq!(server.downloads.load(Ordering::Relaxed), asked);
    }

    #[tokio::test]
    async fn a_data_sets_tables_are_fetched_by_the_ends_of_their_paths() {
        let files = [
            ("Set/json/1_plot.json", "[]"),
            ("Set/video/1.mp4", "film"),
            ("json/2_ego.json", "[1]"),
            ("old/json/2_ego.json", "[0]"),
            ("a/test.json", "[2]"),
            ("b/test.json", "[3]"),
        ];
        let (endpoint, server, _tasks) = serve(BTreeMap::from(files)).await;
        let cache = tempfile::tempdir().expect("tempdir");
        let hub = Hub { kind: RepoType::Dataset, ..hub(cache.path(), endpoint) };
        let fetched = hub
            .named(&["json/1_plot.json", "json/2_ego.json", "evil.safetensors", "test.json"])
            .await
            .expect("fetched");
        let read: Vec<(&str, String)> = fetched
            .iter()
            .map(|(name, path)| (name.as_str(), std::fs::read_to_string(path).expect("is there")))
            .collect();
        assert_eq!(read, [("json/1_plot.json", "[]".to_owned()), ("json/2_ego.json", "[1]".to_owned())]);
        assert_eq!(server.downloads.load(Ordering::Relaxed), 2);
        let error = hub.named(&["validation.json"]).await.expect_err("not there");
        assert!(
            matches!(&error, CheckpointError::Incomplete { missing, .. } if missing == "validation.json"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_repository_that_is_no_checkpoint_is_named_before_anything_is_downloaded() {
        let mut files = files();
        files.remove(TOKENIZER);
        let (endpoint, server, _tasks) = serve(files).await;
        let cache = tempfile::tempdir().expect("tempdir");
        let error = hub(cache.path(), endpoint).download().await.expect_err("incomplete");
        assert!(matches!(&error, CheckpointError::Incomplete { missing, .. } if missing == TOKENIZER), "{error}");
        assert_eq!(server.downloads.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_hub_that_is_not_there_is_an_error() {
        let cache = tempfile::tempdir().expect("tempdir");
        let error = hub(cache.path(), "http://127.0.0.1:1".to_owned()).download().await.expect_err("nobody there");
        assert!(matches!(error, CheckpointError::Hub { .. }));
    }
}
