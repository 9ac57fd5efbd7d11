//! What is kept, for whom, how long, and what is left of what was not.

use std::path::{Path, PathBuf};

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

/// A store whose time stands still until it is told.
struct Store {
    uploads: Uploads,
    clock: Arc<AtomicU64>,
    folder: PathBuf,
    _root: Option<tempfile::TempDir>,
}

impl Store {
    fn new(set: impl FnOnce(&mut FilesConfig)) -> Self {
        let root = tempfile::tempdir().expect("tempdir");
        let folder = root.path().join("files");
        Self { _root: Some(root), ..Self::at(&folder, set) }
    }

    fn at(folder: &Path, set: impl FnOnce(&mut FilesConfig)) -> Self {
        let mut config = FilesConfig { directory: Some(folder.to_owned()), ..FilesConfig::default() };
        set(&mut config);
        let clock = Arc::new(AtomicU64::new(1_000_000));
        let time = Arc::clone(&clock);
        let uploads = Uploads::with_clock(config, move || Duration::from_millis(time.load(Ordering::Relaxed)));
        Self { uploads: uploads.expect("a folder"), clock, folder: folder.to_owned(), _root: None }
    }

    fn pass(&self, time: Duration) {
        self.clock.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }

    async fn begin(&self, owner: &str, told: u64) -> Result<Incoming, UploadError> {
        // What a request holds beside the file.
        self.uploads.admit(owner, (told > 0).then_some(told + incoming::AROUND))?.begin().await
    }

    async fn put(&self, owner: &str, bytes: usize) -> Result<Arc<Stored>, UploadError> {
        self.pass(Duration::from_millis(1));
        let mut incoming = self.begin(owner, bytes as u64).await?;
        incoming.write(&vec![7; bytes]).await?;
        incoming.keep(about("a.mp4")).await
    }

    async fn ids(&self, owner: &str) -> Vec<FileId> {
        let (files, more) =
            self.uploads.list(owner, Listing { limit: 100, ..Listing::default() }).await.expect("lists");
        assert!(!more);
        files.iter().map(|stored| stored.id.clone()).collect()
    }

    /// Names in the folder, the lock aside.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.folder).expect("a folder");
        let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
        names.filter(|name| name != ".lock").collect()
    }
}

fn about(filename: &str) -> About {
    About { filename: filename.to_owned(), purpose: "user_data".to_owned(), expire_after_s: None }
}

#[test]
fn only_names_of_ours_are_names() {
    let id = FileId::new(60_000);
    assert_eq!(FileId::parse(id.as_str()), Some(id.clone()));
    assert!(FileId::new(120_000) > id);
    let digits = "0".repeat(FileId::DIGITS);
    for text in [
        String::new(),
        "file-".to_owned(),
        digits.clone(),
        format!("file-{}", &digits[1..]),
        format!("file-{digits}0"),
        format!("file-{}G", &digits[1..]),
        format!("file-{}A", &digits[1..]),
        format!("file-../{}", &digits[3..]),
        format!("file-{}/", &digits[1..]),
        format!("file-{}\0", &digits[1..]),
        format!("file-{}é", &digits[2..]),
        format!("FILE-{digits}"),
        format!(" file-{digits}"),
    ] {
        assert_eq!(FileId::parse(&text), None, "{text:?}");
    }
}

#[tokio::test]
async fn a_file_is_there_when_it_is_complete_and_not_before() {
    let store = Store::new(|_| ());
    let mut incoming = store.begin("a", 0).await.expect("begins");
    incoming.write(b"\x89PNG\r\n").await.expect("writes");
    incoming.write(b"\x1a\n and more").await.expect("writes");
    assert!(store.ids("a").await.is_empty());
    assert!(store.names().iter().all(|name| name.ends_with(".part")));
    let stored = incoming.keep(about("Ünïcode.mp4")).await.expect("kept");
    assert_eq!(store.ids("a").await, std::slice::from_ref(&stored.id));
    let upload = store.uploads.get("a", &stored.id).await.expect("there");
    assert_eq!(upload.stored(), &*stored);
    assert!(upload.is_picture());
    assert_eq!((stored.bytes, stored.created_at, stored.expires_at), (17, 1000, 1000 + 24 * 3600));
    assert_eq!(std::fs::read(store.folder.join(stored.id.as_str())).expect("a file").len(), 17);
    assert_eq!(store.uploads.bytes(), 17);
}

#[tokio::test]
async fn what_breaks_off_leaves_nothing() {
    let store = Store::new(|_| ());
    let mut incoming = store.begin("a", 0).await.expect("begins");
    incoming.write(&vec![1; 1 << 20]).await.expect("writes");
    drop(incoming);
    assert!(store.names().is_empty(), "{:?}", store.names());
    let under_way = store.uploads.under_way();
    assert!(under_way.turns == 0 && under_way.turns_of.is_empty() && under_way.owners.is_empty());
}

#[tokio::test]
async fn what_a_dead_process_left_is_swept_and_what_a_living_one_writes_is_not() {
    let store = Store::new(|_| ());
    let other = Store::at(&store.folder, |_| ());
    let kept = store.put("a", 5).await.expect("kept");
    let mut living = other.begin("a", 0).await.expect("begins");
    living.write(b"x").await.expect("writes");
    let dead = FileId::new(60_000);
    for name in ["", ".part", ".json.part"] {
        std::fs::write(store.folder.join(format!("{}{name}", dead.as_str())), "left").expect("written");
    }
    std::fs::write(store.folder.join("notes.txt"), "not ours").expect("written");
    store.uploads.sweep().await.expect("sweeps");
    let mut names = store.names();
    names.retain(|name| !name.starts_with(kept.id.as_str()));
    names.sort();
    let [part, notes] = &names[..] else { panic!("{names:?}") };
    assert!(part.ends_with(".part") && notes == "notes.txt", "{names:?}");
    living.keep(about("b.mp4")).await.expect("kept");
    assert_eq!(store.ids("a").await.len(), 2);
}

#[tokio::test]
async fn another_owner_sees_nothing_of_it() {
    let store = Store::new(|_| ());
    let stored = store.put("a", 5).await.expect("kept");
    for other in ["b", "", "A"] {
        assert!(matches!(store.uploads.get(other, &stored.id).await, Err(UploadError::NotFound)));
        assert!(matches!(store.uploads.delete(other, &stored.id).await, Err(UploadError::NotFound)));
        assert!(store.ids(other).await.is_empty());
    }
    store.uploads.delete("a", &stored.id).await.expect("deleted");
    assert!(matches!(store.uploads.delete("a", &stored.id).await, Err(UploadError::NotFound)));
    assert!(store.names().is_empty());
    assert_eq!(store.uploads.bytes(), 0);
}

#[tokio::test]
async fn what_has_expired_is_gone_at_once_and_its_space_is_free() {
    let store = Store::new(|config| {
        (config.quota_bytes, config.expire_after_s) = (10, 60);
    });
    let first = store.put("a", 10).await.expect("kept");
    assert!(matches!(store.put("a", 1).await, Err(UploadError::Full)));
    store.pass(59 * Duration::from_secs(1));
    assert!(store.uploads.get("a", &first.id).await.is_ok());
    store.pass(MINUTE / 60);
    assert!(matches!(store.uploads.get("a", &first.id).await, Err(UploadError::NotFound)));
    assert!(store.ids("a").await.is_empty());
    // It still lies there, and gives way.
    assert_eq!(store.names().len(), 2);
    let second = store.put("a", 10).await.expect("kept");
    store.pass(MINUTE);
    store.uploads.sweep().await.expect("sweeps");
    assert!(store.names().is_empty(), "{second:?}");
}

#[tokio::test]
async fn an_upload_may_say_how_long() {
    let store = Store::new(|_| ());
    let mut incoming = store.begin("a", 0).await.expect("begins");
    incoming.write(b"x").await.expect("writes");
    let stored = incoming.keep(About { expire_after_s: Some(3600), ..about("a") }).await.expect("kept");
    assert_eq!(stored.expires_at - stored.created_at, 3600);
}

#[tokio::test]
async fn all_files_together_are_bounded_exactly() {
    let store = Store::new(|config| config.quota_bytes = 100);
    store.put("a", 60).await.expect("kept");
    // It is told at once, and not when so much of it has come.
    assert!(matches!(store.begin("a", 41).await, Err(UploadError::Full)));
    // Two that don't fit together: the second is told when it begins.
    let mut first = store.begin("b", 30).await.expect("begins");
    assert!(matches!(store.begin("c", 30).await, Err(UploadError::Full)));
    // And one that told nothing, when it has no more space.
    let mut silent = store.begin("c", 0).await.expect("begins");
    silent.write(&[0; 10]).await.expect("fits to the last byte");
    assert!(matches!(silent.write(&[0]).await, Err(UploadError::Full)));
    first.write(&[0; 30]).await.expect("was promised");
    drop(silent);
    first.keep(about("b")).await.expect("kept");
    store.put("c", 10).await.expect("fits to the last byte");
    assert_eq!(store.uploads.bytes(), 100);
}

#[tokio::test]
async fn the_bounds_hold_over_all_servers_on_a_folder() {
    let one = Store::new(|config| config.quota_bytes = 100);
    let other = Store::at(&one.folder, |config| config.quota_bytes = 100);
    let _under_way = one.begin("a", 60).await.expect("begins");
    assert!(matches!(other.begin("a", 41).await, Err(UploadError::Full)));
    let stored = other.put("a", 40).await.expect("kept");
    assert_eq!(one.ids("a").await, std::slice::from_ref(&stored.id));
}

#[tokio::test]
async fn one_key_takes_no_more_than_its_share() {
    let store = Store::new(|config| {
        (config.quota_bytes, config.owner_quota_bytes) = (100, 50);
        (config.max_files, config.max_uploads) = (4, 2);
    });
    let _under_way = store.begin("a", 30).await.expect("begins");
    assert!(matches!(store.begin("a", 1).await, Err(UploadError::Busy)));
    let _another = store.begin("b", 50).await.expect("begins");
    assert!(matches!(store.begin("c", 1).await, Err(UploadError::Busy)));
    drop((_under_way, _another));
    store.put("a", 30).await.expect("kept");
    assert!(matches!(store.put("a", 21).await, Err(UploadError::ShareFull)));
    store.put("a", 20).await.expect("kept");
    assert!(matches!(store.put("a", 0).await, Err(UploadError::ShareFull)), "two of four files");
    store.put("b", 25).await.expect("kept");
    store.put("b", 25).await.expect("kept");
    assert!(matches!(store.put("c", 0).await, Err(UploadError::Full)), "four of four files");
}

#[tokio::test]
async fn without_keys_all_is_everybodys() {
    let store = Store::new(|config| {
        (config.quota_bytes, config.owner_quota_bytes, config.max_files) = (100, 50, 2);
    });
    store.put("", 60).await.expect("kept");
    store.put("", 40).await.expect("kept");
}

#[tokio::test]
async fn a_file_is_bounded() {
    let store = Store::new(|config| config.max_bytes = 10);
    assert!(matches!(store.begin("a", 11).await, Err(UploadError::TooLarge(10))));
    let mut incoming = store.begin("a", 0).await.expect("begins");
    incoming.write(&[0; 10]).await.expect("fits");
    assert!(matches!(incoming.write(&[0]).await, Err(UploadError::TooLarge(10))));
}

#[tokio::test]
async fn a_list_goes_on_where_it_ended_even_when_that_file_is_gone() {
    let store = Store::new(|_| ());
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(store.put("a", 1).await.expect("kept").id.clone());
    }
    let page = async |after: Option<&FileId>, oldest_first| {
        let listing = Listing { after: after.cloned(), oldest_first, limit: 2, purpose: None };
        let (files, more) = store.uploads.list("a", listing).await.expect("lists");
        (files.iter().map(|stored| stored.id.clone()).collect::<Vec<_>>(), more)
    };
    assert_eq!(page(None, true).await, (ids[..2].to_vec(), true));
    store.uploads.delete("a", &ids[1]).await.expect("deleted");
    assert_eq!(page(Some(&ids[1]), true).await, (ids[2..4].to_vec(), true));
    assert_eq!(page(Some(&ids[3]), true).await, (vec![ids[4].clone()], false));
    assert_eq!(page(None, false).await, (vec![ids[4].clone(), ids[3].clone()], true));
    assert_eq!(page(Some(&ids[3]), false).await, (vec![ids[2].clone(), ids[0].clone()], false));
    let other = Listing { purpose: Some("vision".to_owned()), limit: 9, ..Listing::default() };
    assert!(store.uploads.list("a", other).await.expect("lists").0.is_empty());
}

#[tokio::test]
async fn a_folder_outlives_its_server_and_a_folder_of_ones_own_does_not() {
    let store = Store::new(|_| ());
    let stored = store.put("a", 5).await.expect("kept");
    let folder = store.folder.clone();
    store.uploads.close().await;
    let again = Store::at(&folder, |_| ());
    assert_eq!(again.uploads.get("a", &stored.id).await.expect("there").stored(), &*stored);

    let own = Uploads::new(FilesConfig::default()).expect("a folder");
    let path = own.inner.folder.own_path().expect("its own");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).expect("there").permissions());
    assert_eq!(mode & 0o777, 0o700);
    let forgotten = own.clone();
    own.close().await;
    assert!(!path.exists());
    assert!(matches!(forgotten.admit("", None).expect("a place").begin().await, Err(UploadError::Storage(_))));
}

#[tokio::test]
async fn links_and_strange_json_are_not_followed() {
    let store = Store::new(|_| ());
    let stored = store.put("a", 5).await.expect("kept");
    let (file, secret) = (store.folder.join(stored.id.as_str()), store.folder.join("secret"));
    std::fs::write(&secret, "secret").expect("written");
    std::fs::remove_file(&file).expect("removed");
    std::os::unix::fs::symlink(&secret, &file).expect("linked");
    let upload = store.uploads.get("a", &stored.id).await.expect("known");
    assert!(matches!(upload.open().await, Err(UploadError::NotFound)));
    // JSON of another name is none.
    let id = FileId::new(60_000);
    let json = store.folder.join(format!("{}.json", stored.id.as_str()));
    std::fs::copy(&json, store.folder.join(format!("{}.json", id.as_str()))).expect("copied");
    assert!(matches!(store.uploads.get("a", &id).await, Err(UploadError::NotFound)));
    std::fs::write(&json, "{").expect("written");
    assert!(matches!(store.uploads.get("a", &stored.id).await, Err(UploadError::NotFound)));
}

#[tokio::test]
async fn who_has_it_open_reads_on_after_it_was_deleted() {
    let store = Store::new(|_| ());
    let stored = store.put("a", 5).await.expect("kept");
    let upload = store.uploads.get("a", &stored.id).await.expect("there");
    let open = upload.open().await.expect("opens");
    store.uploads.delete("a", &stored.id).await.expect("deleted");
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut &open, &mut bytes).expect("reads");
    assert_eq!(bytes, [7; 5]);
    assert!(matches!(upload.open().await, Err(UploadError::NotFound)));
}

#[tokio::test]
async fn files_of_one_moment_are_in_the_order_they_came() {
    let store = Store::new(|_| ());
    let mut came = Vec::new();
    for _ in 0..20 {
        let mut incoming = store.begin("a", 1).await.expect("space");
        incoming.write(b"x").await.expect("written");
        came.push(incoming.keep(about("a.mp4")).await.expect("kept").id.clone());
    }
    came.reverse();
    assert_eq!(store.ids("a").await, came, "the newest first");
}
