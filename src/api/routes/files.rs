//! `/v1/files`.

use std::io::SeekFrom;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_SECURITY_POLICY,
    CONTENT_TYPE, ETAG, LAST_MODIFIED, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio_util::io::ReaderStream;

use crate::api::caller::Caller;
use crate::api::error::ApiError;
use crate::api::extract::FileName;
use crate::api::ranges::{Wanted, date, disposition, wanted};
use crate::api::state::ApiState;
use crate::api::upload;
use crate::media::{FileId, Listing, Stored, UploadError};
use crate::metrics::{Metrics, UploadOutcome};
use crate::protocol::Invalid;
use crate::protocol::error::ErrorResponse;
use crate::protocol::files::{FileDeleted, FileList, FileObject, FileUpload, ListOrder, ListQuery};

/// Bytes read at once from a file that is sent.
const PIECE: usize = 256 << 10;
const SAME_SITE: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Uploads a video or picture to ask about: `{"type": "file", "file": {"file_id": …}}`.
///
/// The fields may come in any order. The file is there when all of it has come. It is removed when its time is up, which is
/// the server's setting or `expires_after`, and may be deleted before. Files belong to the key they were uploaded with.
#[utoipa::path(post, path = "/v1/files", tag = "files",
    request_body(content = FileUpload, content_type = "multipart/form-data"),
    responses(
        (status = 200, body = FileObject),
        (status = 401, description = "No key, or a wrong one, where keys are wanted.", body = ErrorResponse),
        (status = 400, description = "A field is missing or wrong (`param` names it), or the body is no form.", body = ErrorResponse),
        (status = 403, description = "A page of another site sent it.", body = ErrorResponse),
        (status = 408, description = "It came too slowly, or broke off.", body = ErrorResponse),
        (status = 413, description = "The file is too large, or there is no space for it (`file_quota_exceeded`).", body = ErrorResponse),
        (status = 415, description = "The body is no form by its Content-Type.", body = ErrorResponse),
        (status = 429, description = "Too many uploads at the same time; see Retry-After.", body = ErrorResponse),
        (status = 503, description = "Draining; see Retry-After.", body = ErrorResponse),
    )
)]
pub(in crate::api) async fn create_file(
    State(state): State<ApiState>,
    caller: Caller,
    request: Request,
) -> Result<Json<FileObject>, ApiError> {
    let mut counted = Counted { metrics: state.metrics().clone(), outcome: UploadOutcome::Aborted };
    let shutdown = state.shutdown();
    let stored = tokio::select! {
        biased;
        () = shutdown.cutting() => Err(ApiError::Draining),
        stored = receive(&state, &caller, request) => stored,
    };
    counted.outcome = outcome(&stored);
    stored.map(|stored| Json(object(&stored)))
}

async fn receive(state: &ApiState, caller: &Caller, request: Request) -> Result<Arc<Stored>, ApiError> {
    let headers = request.headers();
    upload::check_origin(headers)?;
    let boundary = upload::boundary(headers)?;
    let turn = upload::admit(state.uploads(), caller.name(), headers)?;
    // Looked at with a turn in hand, which draining waits for.
    if state.shutdown().is_draining() {
        return Err(ApiError::Draining);
    }
    let pieces = request.into_body().into_data_stream();
    Box::pin(upload::receive(pieces, boundary, turn, state.uploads().config())).await
}

fn outcome<T>(result: &Result<T, ApiError>) -> UploadOutcome {
    match result {
        Ok(_) => UploadOutcome::Ok,
        Err(ApiError::ReadTimeout | ApiError::Draining) => UploadOutcome::Aborted,
        Err(ApiError::Upload(UploadError::Storage(_)) | ApiError::Internal) => UploadOutcome::Error,
        Err(_) => UploadOutcome::Refused,
    }
}

/// Counts when dropped, so that an upload whose client went away counts too.
struct Counted {
    metrics: Metrics,
    outcome: UploadOutcome,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.metrics.upload(self.outcome);
    }
}

/// Lists files, the newest first.
#[utoipa::path(get, path = "/v1/files", tag = "files",
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 10000, description = "At most so many."),
        ("after" = Option<String>, Query, pattern = "^file-[0-9a-f]{44}$", description = "Only those after this id, in the order asked for."),
        ("order" = Option<ListOrder>, Query, description = "By when they were uploaded."),
        ("purpose" = Option<String>, Query, description = "Only those for this purpose."),
    ),
    responses(
        (status = 200, body = FileList),
        (status = 400, body = ErrorResponse),
        (status = 401, description = "No key, or a wrong one, where keys are wanted.", body = ErrorResponse),
    ))]
pub(in crate::api) async fn list_files(
    State(state): State<ApiState>,
    caller: Caller,
    uri: Uri,
) -> Result<Json<FileList>, ApiError> {
    let query = ListQuery::read(uri.query().unwrap_or_default())?;
    let after = match query.after.as_deref().map(FileId::parse) {
        Some(None) => return Err(Invalid::new("after", "must be the id of a file").into()),
        after => after.flatten(),
    };
    let limit = usize::try_from(query.limit).unwrap_or(usize::MAX);
    let listing = Listing { purpose: query.purpose, after, oldest_first: query.oldest_first, limit };
    let (files, has_more) = state.uploads().list(caller.name(), listing).await?;
    let data: Vec<FileObject> = files.iter().map(|stored| object(stored)).collect();
    let id = |file: Option<&FileObject>| file.map(|file| file.id.clone());
    let (first_id, last_id) = (id(data.first()), id(data.last()));
    Ok(Json(FileList { object: "list", data, first_id, last_id, has_more }))
}

/// Tells of one file.
#[utoipa::path(get, path = "/v1/files/{file_id}", tag = "files", params(("file_id" = String, Path)),
    responses(
        (status = 200, body = FileObject),
        (status = 401, description = "No key, or a wrong one, where keys are wanted.", body = ErrorResponse),
        (status = 404, body = ErrorResponse),
    ))]
pub(in crate::api) async fn retrieve_file(
    State(state): State<ApiState>,
    caller: Caller,
    FileName(id): FileName,
) -> Result<Json<FileObject>, ApiError> {
    let upload = state.uploads().get(caller.name(), &id).await?;
    Ok(Json(object(upload.stored())))
}

/// Deletes a file, at once. A question about it that is being answered goes on.
#[utoipa::path(delete, path = "/v1/files/{file_id}", tag = "files", params(("file_id" = String, Path)),
    responses(
        (status = 200, body = FileDeleted),
        (status = 401, description = "No key, or a wrong one, where keys are wanted.", body = ErrorResponse),
        (status = 404, body = ErrorResponse),
    ))]
pub(in crate::api) async fn delete_file(
    State(state): State<ApiState>,
    caller: Caller,
    FileName(id): FileName,
) -> Result<Json<FileDeleted>, ApiError> {
    state.uploads().delete(caller.name(), &id).await?;
    Ok(Json(FileDeleted { id: id.as_str().to_owned(), object: "file", deleted: true }))
}

/// A file's bytes, all of them or one range: a browser can play a video from here.
///
/// Videos and pictures have their own type, anything else is `application/octet-stream` to be saved.
#[utoipa::path(get, path = "/v1/files/{file_id}/content", tag = "files",
    params(
        ("file_id" = String, Path),
        ("range" = Option<String>, Header, description = "`bytes=0-1023`. Of several ranges none is honoured."),
        ("if-range" = Option<String>, Header, description = "The file's ETag or Last-Modified."),
    ),
    responses(
        (status = 401, description = "No key, or a wrong one, where keys are wanted.", body = ErrorResponse),
        (status = 200, description = "The file.", body = Vec<u8>, content_type = "*/*"),
        (status = 206, description = "The range.", body = Vec<u8>, content_type = "*/*"),
        (status = 304, description = "The client has it (If-None-Match)."),
        (status = 404, body = ErrorResponse),
        (status = 416, description = "The file has none of these bytes.", body = ErrorResponse),
    ))]
pub(in crate::api) async fn retrieve_file_content(
    State(state): State<ApiState>,
    caller: Caller,
    FileName(id): FileName,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let upload = state.uploads().get(caller.name(), &id).await?;
    let file = upload.open().await?;
    let stored = upload.stored();
    // The same bytes as long as it has this name.
    let etag = format!("\"{}\"", id.as_str());
    let (status, range) = match wanted(&method, &headers, stored.bytes, &etag, stored.created_at) {
        Wanted::All => (StatusCode::OK, 0..stored.bytes),
        Wanted::Some(range) => (StatusCode::PARTIAL_CONTENT, range),
        Wanted::Nothing => (StatusCode::NOT_MODIFIED, 0..0),
        Wanted::Beyond => return Err(ApiError::RangeBeyond(stored.bytes)),
    };
    let length = range.end - range.start;
    let body = if method == Method::HEAD || length == 0 {
        Body::empty()
    } else {
        let mut file = tokio::fs::File::from_std(file);
        let failed = |error: std::io::Error| UploadError::Storage(error.to_string());
        file.seek(SeekFrom::Start(range.start)).await.map_err(failed)?;
        Body::from_stream(ReaderStream::with_capacity(file.take(length), PIECE))
    };
    let mut response = (status, body).into_response();
    let own = response.headers_mut();
    describe(own, stored, &etag);
    if status != StatusCode::NOT_MODIFIED {
        own.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    if status == StatusCode::PARTIAL_CONTENT {
        let content = format!("bytes {}-{}/{}", range.start, range.end.saturating_sub(1), stored.bytes);
        put(own, CONTENT_RANGE, &content);
    }
    Ok(response)
}

/// What a browser may do with it: show a video or picture, save anything else, and run nothing.
fn describe(headers: &mut HeaderMap, stored: &Stored, etag: &str) {
    let shown = ["video/", "image/"].iter().any(|kind| stored.media_type.starts_with(kind));
    let kind = if shown { &stored.media_type } else { "application/octet-stream" };
    for (name, value) in [
        (CONTENT_TYPE, kind),
        (CONTENT_DISPOSITION, &disposition(shown, &stored.filename)),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CONTENT_SECURITY_POLICY, "sandbox"),
        (SAME_SITE, "same-origin"),
        (ACCEPT_RANGES, "bytes"),
        (CACHE_CONTROL, "private, no-cache"),
        (ETAG, etag),
        (LAST_MODIFIED, &date(stored.created_at)),
    ] {
        put(headers, name, value);
    }
}

/// All of these values are made so that they fit.
fn put(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

fn object(stored: &Stored) -> FileObject {
    FileObject {
        id: stored.id.as_str().to_owned(),
        object: "file",
        bytes: stored.bytes,
        created_at: stored.created_at,
        expires_at: stored.expires_at,
        filename: stored.filename.clone(),
        purpose: stored.purpose.clone(),
        status: "processed",
    }
}
