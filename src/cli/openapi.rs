//! `paravt openapi`: the API's description on stdout.

use super::CliError;
use super::output::Target;

/// Runs the command.
pub(super) fn run() -> Result<(), CliError> {
    let document = crate::api::openapi_json().map_err(|error| CliError::Output(error.into()))?;
    Ok(Target::Stdout.line(document.trim_end())?)
}
