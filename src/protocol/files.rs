//! `/v1/files`.

use serde::Serialize;
use utoipa::ToSchema;

use super::Invalid;

/// What OpenAI's clients say a file is for. It changes nothing here.
const PURPOSES: [&str; 6] = ["user_data", "vision", "assistants", "batch", "fine-tune", "evals"];
/// Most files in one list.
const MAX_LISTED: u32 = 10_000;
/// Seconds a file may be kept for: as OpenAI has it, an hour to thirty days.
const KEPT_S: std::ops::RangeInclusive<u64> = 3600..=2_592_000;
/// Longest text of a query's field that is looked at.
const MAX_TEXT: usize = 256;

/// A file.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct FileObject {
    /// What content parts call it.
    pub(crate) id: String,
    /// `file`.
    pub(crate) object: &'static str,
    /// Its length.
    pub(crate) bytes: u64,
    /// When it was complete, in seconds since 1970.
    pub(crate) created_at: u64,
    /// From when on it is gone, in seconds since 1970.
    pub(crate) expires_at: u64,
    /// Its name at the client's.
    pub(crate) filename: String,
    /// What it is for.
    pub(crate) purpose: String,
    /// `processed`: it can be asked about.
    pub(crate) status: &'static str,
}

/// Files.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct FileList {
    /// `list`.
    pub(crate) object: &'static str,
    /// The newest first, unless asked for otherwise.
    pub(crate) data: Vec<FileObject>,
    /// The first one's.
    pub(crate) first_id: Option<String>,
    /// The last one's: `after` for the next list.
    pub(crate) last_id: Option<String>,
    /// Whether more come after these.
    pub(crate) has_more: bool,
}

/// A file that is gone.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct FileDeleted {
    /// What it was called.
    pub(crate) id: String,
    /// `file`.
    pub(crate) object: &'static str,
    /// `true`.
    pub(crate) deleted: bool,
}

/// The fields of an upload, in any order.
#[derive(Serialize, ToSchema)]
pub(crate) struct FileUpload {
    /// The file. What it is, is told by its first bytes, not by its name or type.
    #[schema(value_type = String, format = Binary)]
    file: Vec<u8>,
    /// What it is for. It changes nothing here.
    purpose: UploadPurpose,
    /// What its end is counted from.
    #[serde(rename = "expires_after[anchor]")]
    #[schema(nullable = false)]
    anchor: Option<UploadAnchor>,
    /// Seconds from then to the file's end.
    #[serde(rename = "expires_after[seconds]")]
    #[schema(nullable = false, minimum = 3600, maximum = 2_592_000)]
    seconds: Option<u64>,
}

/// OpenAI's purposes of files that are uploaded, as [`PURPOSES`] has them.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes in the OpenAPI document what `UploadFields` reads")]
pub(crate) enum UploadPurpose {
    /// Anything of the user's.
    UserData,
    /// Pictures.
    Vision,
    /// The Assistants API.
    Assistants,
    /// The Batch API.
    Batch,
    /// Fine-tuning.
    #[serde(rename = "fine-tune")]
    FineTune,
    /// Evaluations.
    Evals,
}

/// What an expiry counts from.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes in the OpenAPI document what `UploadFields` reads")]
pub(crate) enum UploadAnchor {
    /// The upload.
    CreatedAt,
}

/// The order of a list.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[expect(dead_code, reason = "describes in the OpenAPI document what `ListQuery` reads")]
pub(crate) enum ListOrder {
    /// The oldest first.
    Asc,
    /// The newest first, the default.
    Desc,
}

/// The text fields of an upload.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct UploadFields {
    purpose: Option<String>,
    anchored: bool,
    seconds: Option<u64>,
}

impl UploadFields {
    /// Whether a field is one of these.
    pub(crate) fn knows(name: &str) -> bool {
        ["purpose", "expires_after[anchor]", "expires_after[seconds]"].contains(&name)
    }

    /// Takes a field.
    ///
    /// # Errors
    /// [`Invalid`] for a value that is not taken.
    pub(crate) fn take(&mut self, name: &str, text: &str) -> Result<(), Invalid> {
        match name {
            "purpose" => self.purpose = Some(purpose(name, text)?.to_owned()),
            "expires_after[anchor]" if text == "created_at" => self.anchored = true,
            "expires_after[anchor]" => return Err(Invalid::new(name, "must be \"created_at\"")),
            "expires_after[seconds]" => {
                let seconds = text.parse().ok().filter(|seconds| KEPT_S.contains(seconds));
                let problem = || format!("must be a whole number from {} to {}", KEPT_S.start(), KEPT_S.end());
                self.seconds = Some(seconds.ok_or_else(|| Invalid::new(name, problem()))?);
            }
            _ => {}
        }
        Ok(())
    }

    /// What it is for, and the seconds to keep it.
    ///
    /// # Errors
    /// [`Invalid`] for a field that is missing.
    pub(crate) fn done(self) -> Result<(String, Option<u64>), Invalid> {
        let missing = |name: &str| Invalid {
            param: name.to_owned(),
            problem: "is required".to_owned(),
            code: "missing_required_parameter",
        };
        if self.anchored != self.seconds.is_some() {
            return Err(missing(if self.anchored { "expires_after[seconds]" } else { "expires_after[anchor]" }));
        }
        Ok((self.purpose.ok_or_else(|| missing("purpose"))?, self.seconds))
    }
}

fn purpose<'a>(name: &str, text: &'a str) -> Result<&'a str, Invalid> {
    if PURPOSES.contains(&text) {
        return Ok(text);
    }
    Err(Invalid::new(name, format!("must be one of {}", PURPOSES.map(|known| format!("\"{known}\"")).join(", "))))
}

/// Which files a list holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListQuery {
    /// At most so many.
    pub(crate) limit: u32,
    /// Only those after this one.
    pub(crate) after: Option<String>,
    /// The oldest first.
    pub(crate) oldest_first: bool,
    /// Only those for this.
    pub(crate) purpose: Option<String>,
}

impl ListQuery {
    /// Reads a URL's query. What it does not know is not looked at.
    ///
    /// # Errors
    /// [`Invalid`] for a value that is not taken.
    pub(crate) fn read(query: &str) -> Result<Self, Invalid> {
        let mut read = Self { limit: MAX_LISTED, after: None, oldest_first: false, purpose: None };
        for (name, text) in url::form_urlencoded::parse(query.as_bytes()) {
            let text = text.get(..MAX_TEXT).unwrap_or(&text);
            match &*name {
                "limit" => {
                    let limit = text.parse().ok().filter(|limit| (1..=MAX_LISTED).contains(limit));
                    let problem = || format!("must be a whole number from 1 to {MAX_LISTED}");
                    read.limit = limit.ok_or_else(|| Invalid::new("limit", problem()))?;
                }
                "order" => {
                    read.oldest_first = match text {
                        "asc" => true,
                        "desc" => false,
                        _ => return Err(Invalid::new("order", "must be \"asc\" or \"desc\"")),
                    }
                }
                "after" => read.after = Some(text.to_owned()),
                "purpose" => read.purpose = Some(text.to_owned()),
                _ => {}
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(given: &[(&str, &str)]) -> Result<(String, Option<u64>), Invalid> {
        let mut fields = UploadFields::default();
        for (name, text) in given {
            fields.take(name, text)?;
        }
        fields.done()
    }

    #[test]
    fn an_uploads_fields_are_openais() {
        let purpose = ("purpose", "user_data");
        let (anchor, seconds) = (("expires_after[anchor]", "created_at"), ("expires_after[seconds]", "3600"));
        assert_eq!(fields(&[purpose]), Ok(("user_data".to_owned(), None)));
        assert_eq!(fields(&[seconds, purpose, anchor]), Ok(("user_data".to_owned(), Some(3600))));
        for (given, param) in [
            (&[][..], "purpose"),
            (&[("purpose", "anything")], "purpose"),
            (&[purpose, anchor], "expires_after[seconds]"),
            (&[purpose, seconds], "expires_after[anchor]"),
            (&[("expires_after[anchor]", "now")], "expires_after[anchor]"),
            (&[("expires_after[seconds]", "3599")], "expires_after[seconds]"),
            (&[("expires_after[seconds]", "2592001")], "expires_after[seconds]"),
            (&[("expires_after[seconds]", "1e4")], "expires_after[seconds]"),
        ] {
            assert_eq!(fields(given).expect_err(param).param, param, "{given:?}");
        }
    }

    #[test]
    fn a_query_is_read_field_by_field() {
        let all = ListQuery { limit: 10_000, after: None, oldest_first: false, purpose: None };
        assert_eq!(ListQuery::read(""), Ok(all));
        let some = ListQuery {
            limit: 2,
            after: Some("file-1".to_owned()),
            oldest_first: true,
            purpose: Some("fine-tune".to_owned()),
        };
        assert_eq!(ListQuery::read("order=asc&limit=2&x=y&after=file-1&purpose=fine-tune"), Ok(some));
        for (query, param) in
            [("limit=0", "limit"), ("limit=10001", "limit"), ("limit=x", "limit"), ("order=up", "order")]
        {
            assert_eq!(ListQuery::read(query).expect_err(query).param, param);
        }
    }
}
