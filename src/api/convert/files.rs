//! The uploaded files that a request names, looked up before it gets a place. They are opened only when it has one.

use std::collections::HashMap;

use crate::api::error::ApiError;
use crate::media::{FileId, SourceRequest, Upload, UploadError, Uploads};
use crate::protocol::Invalid;
use crate::protocol::content::{Content, ContentPart, FileSource, Message};

/// The files of one request by their ids.
#[derive(Debug, Default)]
pub(in crate::api) struct Files(HashMap<String, Upload>);

/// What a part's file is.
pub(super) struct Found {
    pub(super) source: SourceRequest,
    pub(super) is_picture: bool,
    /// The part's field that names it.
    pub(super) field: &'static str,
}

impl Files {
    /// Looks up what the messages name.
    ///
    /// # Errors
    /// [`ApiError::Invalid`] for the first file that is not there or not this owner's, with its path.
    pub(in crate::api) async fn look(messages: &[Message], uploads: &Uploads, owner: &str) -> Result<Self, ApiError> {
        let mut found = HashMap::new();
        for message in messages {
            let Content::Parts(parts) = &message.content else { continue };
            for (part_place, part) in parts.iter().enumerate() {
                let ContentPart::File(part) = part else { continue };
                let Some(id) = part.file.file_id.as_ref().filter(|id| !found.contains_key(*id)) else { continue };
                let upload = match FileId::parse(id) {
                    Some(id) => uploads.get(owner, &id).await,
                    None => Err(UploadError::NotFound),
                };
                let missing = || Invalid {
                    param: format!("{}.content[{part_place}].{}", message.path, part.file.field()),
                    problem: "names no file: there is none, it has expired, or it is not yours".to_owned(),
                    code: "file_not_found",
                };
                found.insert(
                    id.clone(),
                    upload.map_err(|error| match error {
                        UploadError::NotFound => missing().into(),
                        error => ApiError::from(error),
                    })?,
                );
            }
        }
        Ok(Self(found))
    }

    /// What a part means. `None`: it names a file that was not looked up.
    pub(super) fn find(&self, file: FileSource) -> Option<Found> {
        let (is_picture, field) = (file.holds_picture(), file.field());
        if let Some(data) = file.file_data {
            return Some(Found { source: SourceRequest::Url(data), is_picture, field });
        }
        let upload = self.0.get(&file.file_id?)?.clone();
        let is_picture = upload.is_picture();
        Some(Found { source: SourceRequest::Upload(upload), is_picture, field })
    }
}
