//! Listening, draining, stopping.

use std::future::IntoFuture as _;
use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::router::router;
use super::state::ApiState;

/// Time for connections to write out what they hold after the last episode is over.
const FLUSH: Duration = Duration::from_secs(5);

/// Serves until the state's [`crate::shutdown::Shutdown`] drains, and then until what runs is over, `drain_s` at most.
///
/// While draining it still accepts connections, so that `/ready` and new questions are told 503 rather than refused.
///
/// # Errors
/// When the listener fails.
pub async fn serve(listener: TcpListener, state: ApiState) -> io::Result<()> {
    let close = CancellationToken::new();
    let app = router(state.clone());
    let server = axum::serve(listener, app).with_graceful_shutdown(close.clone().cancelled_owned());
    let mut server = pin!(server.into_future());
    tokio::select! {
        result = &mut server => return result,
        () = drained(&state) => {},
    }
    close.cancel();
    // Connections that still hang on then go with the process.
    timeout(FLUSH, server).await.unwrap_or(Ok(()))
}

async fn drained(state: &ApiState) {
    let shutdown = state.shutdown();
    shutdown.draining().await;
    let drain = Duration::from_secs(state.config().drain_s);
    tokio::select! {
        finished = timeout(drain, state.admission().idle()) => if finished.is_err() {
            tracing::warn!("some episodes did not finish in time");
        },
        () = shutdown.cutting() => {},
    }
    shutdown.cut();
}
