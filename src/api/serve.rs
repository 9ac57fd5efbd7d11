//! Listening, draining, stopping.
//!
//! Our own loop over hyper rather than axum's: only here a client that sends its request's head a byte at a time can be
//! stopped, connections counted, and small chunks sent without waiting for more (Nagle's algorithm would hold a stream's next
//! token back until the last one is acknowledged).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt as _;

use super::linger::{Lingering, Unread};
use super::router::router;
use super::state::ApiState;

/// Time for connections to write out what they hold after the last episode is over.
const FLUSH: Duration = Duration::from_secs(5);
/// Pause after a connection could not be taken: most likely there are no handles left, and some will be given back.
const PAUSE: Duration = Duration::from_millis(100);
/// Time between two looks for files whose time is up.
const SWEEP: Duration = Duration::from_secs(60);

/// Serves until the state's [`crate::shutdown::Shutdown`] drains, and then until what runs is over, `drain_s` at most.
///
/// Meanwhile it follows the file of keys. While draining it still accepts connections, so that `/ready` and new questions are
/// told 503 rather than refused.
///
/// # Errors
/// Never by itself: a connection that fails is that client's trouble.
pub async fn serve(listener: TcpListener, state: ApiState) -> io::Result<()> {
    let app = router(state.clone());
    let _sweeping = AbortOnDropHandle::new(tokio::spawn(sweep(state.clone())));
    let graceful = GracefulShutdown::new();
    // Aborted when dropped: no connection outlives the server.
    let mut connections = JoinSet::new();
    tokio::select! {
        never = accept(listener, app, &state, &graceful, &mut connections) => match never {},
        () = drained(&state) => {},
        never = Arc::clone(state.keys()).follow() => match never {},
    }
    // Connections that still hang on then go with the process.
    let _ = timeout(FLUSH, graceful.shutdown()).await;
    Ok(())
}

async fn accept(
    listener: TcpListener,
    app: Router,
    state: &ApiState,
    graceful: &GracefulShutdown,
    connections: &mut JoinSet<()>,
) -> std::convert::Infallible {
    // Who comes over the limit waits in the system's queue until another goes.
    let places = Arc::new(Semaphore::new(state.config().max_connections.min(Semaphore::MAX_PERMITS)));
    let head = Duration::from_secs(state.config().read_timeout_s);
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { continue };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(kind = %error.kind(), "a connection could not be taken");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let connection = connection(stream, app.clone(), head, graceful);
        connections.spawn(async move {
            connection.await;
            drop(place);
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Serves one connection to its end.
fn connection(
    stream: TcpStream,
    app: Router,
    head: Duration,
    graceful: &GracefulShutdown,
) -> impl Future<Output = ()> + Send + 'static {
    let _ = stream.set_nodelay(true);
    end_when_unread(&stream, head);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head);
    let unread = Unread::default();
    let stream = TokioIo::new(Lingering::new(stream, unread.clone()));
    let app = app.map_request(move |request: Request<Incoming>| request.map(|body| unread.clone().watch(body)));
    let connection = builder.serve_connection(stream, TowerToHyperService::new(app));
    let connection = graceful.watch(connection);
    async move {
        if let Err(error) = connection.await {
            // It went away, or sent what is no HTTP.
            tracing::debug!(%error, "a connection ended early");
        }
    }
}

/// Has the system end a connection whose client takes nothing for so long: hyper waits for ever to write.
#[cfg(target_os = "linux")]
fn end_when_unread(stream: &TcpStream, after: Duration) {
    let ms = u32::try_from(after.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, ms);
}

#[cfg(not(target_os = "linux"))]
fn end_when_unread(_: &TcpStream, _: Duration) {}

/// Removes files whose time is up, again and again. That they are gone does not wait for it: this gives their space back.
async fn sweep(state: ApiState) {
    loop {
        if let Err(error) = state.uploads().sweep().await {
            tracing::warn!(%error, "uploaded files could not be looked through");
        }
        tokio::time::sleep(SWEEP).await;
    }
}

async fn drained(state: &ApiState) {
    let shutdown = state.shutdown();
    shutdown.draining().await;
    let drain = Duration::from_secs(state.config().drain_s);
    let idle = async { tokio::join!(state.admission().idle(), state.uploads().idle()) };
    tokio::select! {
        finished = timeout(drain, idle) => if finished.is_err() {
            tracing::warn!("some episodes or uploads did not finish in time");
        },
        () = shutdown.cutting() => {},
    }
    shutdown.cut();
}
