//! `GET /v1/models`.

use serde::Serialize;
use utoipa::ToSchema;

/// The models there are.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ModelList {
    /// `list`.
    pub(crate) object: &'static str,
    /// One, the card this server was started with; none where the key is for others.
    pub(crate) data: Vec<Model>,
}

/// A model.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Model {
    /// The model card's name.
    pub(crate) id: String,
    /// `model`.
    pub(crate) object: &'static str,
    /// When this server started, in seconds since 1970.
    pub(crate) created: u64,
    /// `paravt`.
    pub(crate) owned_by: &'static str,
}

/// How the server is.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Status {
    /// `ok` or `ready`.
    pub(crate) status: &'static str,
}
