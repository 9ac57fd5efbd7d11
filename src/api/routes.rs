//! Thin handlers, each with its part of the OpenAPI document.

pub(super) mod chat;
pub(super) mod files;
pub(super) mod health;
pub(super) mod metrics;
pub(super) mod models;
pub(super) mod playground;
pub(super) mod responses;
