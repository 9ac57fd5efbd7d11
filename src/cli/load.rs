//! Puts an agent, or an engine alone, together while someone watches.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::task::AbortOnDropHandle;

use super::view::View;
use super::{CliError, text};
use crate::agent::Agent;
use crate::app::{App, AppError};
use crate::engine::Engine;

/// Loads the model and puts an agent on it.
pub(super) async fn agent(app: &App, view: &View) -> Result<Agent, CliError> {
    watched(app, view, |app, checkpoint| async move { app.agent(checkpoint.as_deref()).await }).await
}

/// Loads the model alone: no media, no ffmpeg.
pub(super) async fn engine(app: &App, view: &View) -> Result<Arc<dyn Engine>, CliError> {
    watched(app, view, |app, checkpoint| async move { app.engine(checkpoint.as_deref()).await }).await
}

/// The same, guessing no tokens ahead. `None` for engines that can't be told to, or never do.
pub(super) async fn plain_engine(app: &App, view: &View) -> Result<Option<Arc<dyn Engine>>, CliError> {
    watched(app, view, |app, checkpoint| async move { app.plain_engine(checkpoint.as_deref()).await }).await
}

/// Loads in a task of its own: it computes for long stretches, and signals must still get through.
async fn watched<T, F>(app: &App, view: &View, load: impl FnOnce(App, Option<PathBuf>) -> F) -> Result<T, CliError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, AppError>> + Send + 'static,
{
    // A download draws its own bars; the spinner comes after.
    let checkpoint = app.checkpoint(view.is_live()).await?;
    let _wait = view.wait(&format!("loading   {}", text::line(&app.card().name)))?;
    let loading = AbortOnDropHandle::new(tokio::spawn(load(app.clone(), checkpoint)));
    Ok(loading.await.map_err(|_| CliError::Failed("loading the model broke off".to_owned()))??)
}
