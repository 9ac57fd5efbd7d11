//! Uploads, what becomes of them, and questions about them, over real sockets.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use paravt::config::{FilesConfig, ServerConfig};
use paravt::engine::scripted::{Gate, Reply, ScriptedEngine};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::server::{Server, error_of};
use crate::support::demo_video;

/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn answering() -> Arc<ScriptedEngine> {
    Arc::new(ScriptedEngine::new(|_, _| Reply::text("I see.\n</think>\n<answer>red circle</answer>")))
}

async fn keeping(files: FilesConfig) -> Server {
    Server::keeping(ServerConfig::default(), files).await
}

/// A form with a file of this content.
fn form(filename: &str, content: &[u8]) -> Vec<u8> {
    let head = format!(
        "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nuser_data\r\n\
         --b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{filename}\"\r\n\r\n"
    );
    [head.as_bytes(), content, b"\r\n--b--\r\n"].concat()
}

async fn upload(server: &Server, form: Vec<u8>) -> reqwest::Response {
    let request = server.client.post(server.url("/v1/files"));
    let request = request.header("content-type", "multipart/form-data; boundary=b").body(form);
    request.send().await.expect("an answer")
}

async fn put(server: &Server, filename: &str, content: &[u8]) -> Value {
    let response = upload(server, form(filename, content)).await;
    assert_eq!(response.status(), 200);
    response.json().await.expect("JSON")
}

async fn json_of(response: reqwest::Response) -> Value {
    response.json().await.expect("JSON")
}

fn question(file: &Value) -> Value {
    json!({"messages": [{"role": "user", "content": [
        {"type": "file", "file": {"file_id": file["id"]}, "max_frames": 4}, {"type": "text", "text": "Which shapes appear?"}]}]})
}

/// The head of a request to upload, and its beginning.
async fn begin(server: &Server, told: usize, sent: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(server.address).await.expect("connects");
    let head = format!(
        "POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-type: multipart/form-data; boundary=b\r\n\
         content-length: {told}\r\nconnection: close\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.expect("written");
    socket.write_all(sent).await.expect("written");
    socket
}

async fn answer(mut socket: TcpStream) -> String {
    let mut answer = String::new();
    let read = tokio::time::timeout(PATIENCE, socket.read_to_string(&mut answer)).await;
    read.expect("does not hang").expect("an answer");
    answer
}

/// Returns when files in the folder take at least so many bytes; 0: when there are none.
async fn until(folder: &Path, bytes: u64) {
    let taken = || -> Option<u64> {
        let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
        let files = entries.filter(|entry| entry.file_name() != ".lock");
        files.map(|entry| entry.metadata().map_or(0, |metadata| metadata.len())).reduce(|sum, bytes| sum + bytes)
    };
    let reached = async {
        while if bytes == 0 { taken().is_some() } else { taken().unwrap_or_default() < bytes } {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, reached).await.is_ok(), "never {bytes}");
}

#[tokio::test]
async fn files_come_and_go_while_the_model_loads() {
    let server = keeping(FilesConfig::default()).await;
    let first = put(&server, "../Ünïcode.mp4", b"\0\0\0\x20ftypisom and more").await;
    assert_eq!((&first["filename"], &first["bytes"]), (&json!("Ünïcode.mp4"), &json!(21)));
    assert_eq!(
        (&first["object"], &first["status"], &first["purpose"]),
        (&json!("file"), &json!("processed"), &json!("user_data"),)
    );
    let kept = first["expires_at"].as_u64().expect("a time") - first["created_at"].as_u64().expect("a time");
    assert_eq!(kept, 24 * 3600);
    let second = put(&server, "b.png", b"\x89PNG\r\n\x1a\n").await;
    let path = format!("/v1/files/{}", first["id"].as_str().expect("an id"));
    assert_eq!(json_of(server.get(&path).await).await, first);

    let list = json_of(server.get("/v1/files").await).await;
    assert_eq!(list["data"].as_array().map(Vec::len), Some(2));
    assert_eq!((&list["object"], &list["has_more"]), (&json!("list"), &json!(false)));
    let page = json_of(server.get("/v1/files?limit=1&order=asc").await).await;
    assert_eq!((&page["data"], &page["has_more"], &page["last_id"]), (&json!([first]), &json!(true), &first["id"]));
    let next = format!("/v1/files?limit=1&order=asc&after={}", first["id"].as_str().expect("an id"));
    let page = json_of(server.get(&next).await).await;
    assert_eq!((&page["data"], &page["has_more"], &page["first_id"]), (&json!([second]), &json!(false), &second["id"]));
    let none = json_of(server.get("/v1/files?purpose=batch").await).await;
    assert_eq!(none, json!({"object": "list", "data": [], "first_id": null, "last_id": null, "has_more": false}));
    server.until_metric("paravt_media_uploads_bytes 29").await;

    let deleted = server.client.delete(server.url(&path)).send().await.expect("an answer");
    assert_eq!(json_of(deleted).await, json!({"id": first["id"], "object": "file", "deleted": true}));
    for gone in [server.get(&path).await, server.client.delete(server.url(&path)).send().await.expect("an answer")] {
        assert_eq!(gone.status(), 404);
        assert_eq!(error_of(gone).await["code"], "file_not_found");
    }
    server.until_metric("paravt_media_uploads_bytes 8").await;
    server.until_metric(r#"paravt_media_uploads_total{outcome="ok"} 2"#).await;
}

#[tokio::test]
async fn what_is_no_upload_is_refused_in_the_one_shape() {
    let server = keeping(FilesConfig { max_bytes: 100, ..FilesConfig::default() }).await;
    let post = || server.client.post(server.url("/v1/files"));
    let form_type = "multipart/form-data; boundary=b";
    let file = form("a", b"abc");
    let no_purpose = String::from_utf8_lossy(&file).replace("user_data", "nothing");
    for (request, status, code, param) in [
        (post().body("{}"), 415, "unsupported_media_type", None),
        (post().header("content-type", "multipart/form-data").body("{}"), 415, "unsupported_media_type", None),
        (post().header("content-type", form_type).body("{}"), 400, "invalid_multipart", None),
        (post().header("content-type", form_type).body(no_purpose), 400, "invalid_value", Some("purpose")),
        (post().header("content-type", form_type).body(form("a", &[0; 101])), 413, "file_too_large", None),
        (post().header("content-type", form_type).body(form("a", &[0; 10_000])), 413, "file_too_large", None),
        (
            post().header("content-type", form_type).header("origin", "https://evil.example").body(file),
            403,
            "origin_not_allowed",
            None,
        ),
        (server.client.get(server.url("/v1/files?limit=0")), 400, "invalid_value", Some("limit")),
        (server.client.get(server.url("/v1/files?after=x")), 400, "invalid_value", Some("after")),
        (server.client.get(server.url("/v1/files/..%2f..%2fetc%2fpasswd")), 404, "file_not_found", None),
        (server.client.get(server.url("/v1/files/%ff/content")), 404, "file_not_found", None),
        (server.client.put(server.url("/v1/files")), 405, "method_not_allowed", None),
    ] {
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), status, "{code} {param:?}");
        let error = error_of(response).await;
        assert_eq!((&error["code"], &error["param"]), (&json!(code), &json!(param)));
    }
    assert_eq!(json_of(server.get("/v1/files").await).await["data"], json!([]));
}

#[tokio::test]
async fn a_question_about_an_upload_is_answered_and_outlives_it() {
    let gate = Gate::closed();
    let engine = Arc::new(ScriptedEngine::new({
        let gate = gate.clone();
        move |_, _| Reply::text("I see.\n</think>\n<answer>red circle</answer>").gate(gate.clone())
    }));
    let server = Server::with(Arc::clone(&engine), ServerConfig::default()).await;
    let file = put(&server, "demo.mp4", &std::fs::read(demo_video()).expect("the video")).await;
    let asking = tokio::spawn(server.request(&question(&file)).send());
    engine.running(1).await;
    let path = format!("/v1/files/{}", file["id"].as_str().expect("an id"));
    assert_eq!(server.client.delete(server.url(&path)).send().await.expect("an answer").status(), 200);
    gate.open();
    let answer = asking.await.expect("no panic").expect("an answer");
    assert_eq!(answer.status(), 200);
    assert_eq!(json_of(answer).await["choices"][0]["message"]["content"], "red circle");

    let gone = server.ask(&question(&file)).await;
    assert_eq!(gone.status(), 400);
    let error = error_of(gone).await;
    let param = "messages[0].content[0].file.file_id";
    assert_eq!((&error["code"], &error["param"]), (&json!("file_not_found"), &json!(param)));
}

#[tokio::test]
async fn a_picture_is_one_whatever_it_is_called_and_what_is_no_video_names_the_field() {
    let server = Server::start(answering()).await;
    let mut png = std::io::Cursor::new(Vec::new());
    image::RgbImage::new(64, 64).write_to(&mut png, image::ImageFormat::Png).expect("a picture");
    let picture = put(&server, "video.mp4", png.get_ref()).await;
    let answer = server.ask(&question(&picture)).await;
    assert_eq!(answer.status(), 200);
    let text = put(&server, "video.mp4", b"this is no video").await;
    let refused = server.ask(&question(&text)).await;
    assert_eq!(refused.status(), 400);
    let error = error_of(refused).await;
    let param = "messages[0].content[0].file.file_id";
    assert_eq!((&error["code"], &error["param"]), (&json!("not_a_video"), &json!(param)));
}

#[tokio::test]
async fn a_browser_can_play_and_seek() {
    let server = keeping(FilesConfig::default()).await;
    let content: Vec<u8> = b"\0\0\0\x20ftypisom".iter().copied().chain((0..600_000_u32).map(|n| n as u8)).collect();
    let file = put(&server, "aé b.mp4", &content).await;
    let id = file["id"].as_str().expect("an id");
    let url = server.url(&format!("/v1/files/{id}/content"));
    let get = async |pairs: &[(&str, &str)]| {
        let request =
            pairs.iter().fold(server.client.get(&url), |request, (name, value)| request.header(*name, *value));
        request.send().await.expect("an answer")
    };
    let whole = get(&[]).await;
    assert_eq!(whole.status(), 200);
    let header = |response: &reqwest::Response, name: &str| {
        response.headers().get(name).map(|value| value.to_str().expect("text").to_owned())
    };
    for (name, value) in [
        ("content-type", "video/mp4"),
        ("content-length", "600012"),
        ("accept-ranges", "bytes"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "sandbox"),
        ("cross-origin-resource-policy", "same-origin"),
        ("content-disposition", "inline; filename=\"a_ b.mp4\"; filename*=UTF-8''a%C3%A9%20b.mp4"),
    ] {
        assert_eq!(header(&whole, name).as_deref(), Some(value), "{name}");
    }
    let (etag, modified) = (header(&whole, "etag").expect("one"), header(&whole, "last-modified").expect("one"));
    assert_eq!(whole.bytes().await.expect("a body"), content);

    let part = get(&[("range", "bytes=300000-"), ("if-range", &etag)]).await;
    assert_eq!(part.status(), 206);
    assert_eq!(header(&part, "content-range").as_deref(), Some("bytes 300000-600011/600012"));
    assert_eq!(header(&part, "content-length").as_deref(), Some("300012"));
    assert_eq!(part.bytes().await.expect("a body"), content[300_000..]);
    let tail = get(&[("range", "bytes=-5"), ("if-range", &modified)]).await;
    assert_eq!(tail.bytes().await.expect("a body"), content[content.len() - 5..]);
    assert_eq!(get(&[("range", "bytes=0-1"), ("if-range", "\"other\"")]).await.status(), 200);
    let beyond = get(&[("range", "bytes=600012-")]).await;
    assert_eq!((beyond.status().as_u16(), header(&beyond, "content-range").as_deref()), (416, Some("bytes */600012")));
    assert_eq!(get(&[("if-none-match", &etag)]).await.status(), 304);
    let head = server.client.head(&url).send().await.expect("an answer");
    assert_eq!((head.status().as_u16(), header(&head, "content-length").as_deref()), (200, Some("600012")));
    assert!(head.bytes().await.expect("no body").is_empty());

    let page = put(&server, "a.html", b"<html><script>alert(1)</script>").await;
    let page = server.get(&format!("/v1/files/{}/content", page["id"].as_str().expect("an id"))).await;
    assert_eq!(header(&page, "content-type").as_deref(), Some("application/octet-stream"));
    assert!(header(&page, "content-disposition").is_some_and(|found| found.starts_with("attachment; ")));
}

#[tokio::test]
async fn of_two_uploads_at_once_over_the_quota_one_is_kept() {
    let folder = tempfile::tempdir().expect("tempdir");
    let directory = Some(folder.path().to_owned());
    let server =
        keeping(FilesConfig { directory, max_bytes: 1 << 20, quota_bytes: 1 << 20, ..FilesConfig::default() }).await;
    let large = form("a", &vec![7; 600_000]);
    let mut first = begin(&server, large.len(), &large[..300_000]).await;
    // Its space is taken, though half of it is still to come.
    until(folder.path(), 500_000).await;
    let second = upload(&server, large.clone()).await;
    assert_eq!(second.status(), 413);
    assert_eq!(error_of(second).await["code"], "file_quota_exceeded");
    first.write_all(&large[300_000..]).await.expect("written");
    let first = answer(first).await;
    assert!(first.starts_with("HTTP/1.1 200 "), "{first}");
    server.until_metric("paravt_media_uploads_bytes 600000").await;
}

#[tokio::test]
async fn a_body_cut_half_way_leaves_nothing() {
    let folder = tempfile::tempdir().expect("tempdir");
    let server = keeping(FilesConfig { directory: Some(folder.path().to_owned()), ..FilesConfig::default() }).await;
    let form = form("a", &vec![7; 1 << 20]);
    let socket = begin(&server, form.len(), &form[..600_000]).await;
    until(folder.path(), 1).await;
    drop(socket);
    until(folder.path(), 0).await;
    server.until_metric(r#"paravt_media_uploads_total{outcome="aborted"} 1"#).await;
}

#[tokio::test]
async fn who_sends_nothing_more_is_told_and_a_stopping_server_takes_nothing() {
    let mut server = keeping(FilesConfig { idle_timeout_s: 1, ..FilesConfig::default() }).await;
    let form = form("a", &vec![7; 1 << 10]);
    let idle = answer(begin(&server, form.len(), &form[..500]).await).await;
    assert!(idle.starts_with("HTTP/1.1 408 ") && idle.contains("request_timeout"), "{idle}");
    server.state.shutdown().cut();
    server.stopped().await;
}
