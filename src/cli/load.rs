//! Puts an agent together while someone watches.

use tokio_util::task::AbortOnDropHandle;

use super::view::View;
use super::{CliError, text};
use crate::agent::Agent;
use crate::app::App;

/// Loads the model. That runs in a task of its own: it computes for long stretches, and signals must still get through.
pub(super) async fn agent(app: &App, view: &View) -> Result<Agent, CliError> {
    // A download draws its own bars; the spinner comes after.
    let checkpoint = app.checkpoint(view.is_live()).await?;
    let _wait = view.wait(&format!("loading   {}", text::line(&app.card().name)))?;
    let app = app.clone();
    let loading = AbortOnDropHandle::new(tokio::spawn(async move { app.agent(checkpoint.as_deref()).await }));
    Ok(loading.await.map_err(|_| CliError::Failed("loading the model broke off".to_owned()))??)
}
