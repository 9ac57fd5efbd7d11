//! What several tests share.

#[cfg(any(feature = "native", feature = "mistralrs"))]
pub(crate) mod board;

use std::path::PathBuf;
use std::sync::Arc;

use futures::StreamExt;
use paravt::agent::{Agent, AgentError, AgentEvent, AskRequest, Outcome};
use paravt::card::ModelCard;
use paravt::config::{AgentConfig, MediaConfig};
use paravt::engine::Engine;
use paravt::media::{Media, SourceRequest};

/// A path below the package.
pub(crate) fn root(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The demonstration video: 300.2 s, three lit windows.
pub(crate) fn demo_video() -> PathBuf {
    root("model_cards/paravt-tiny/demo.mp4")
}

/// The bundled tiny card.
pub(crate) fn tiny_card() -> ModelCard {
    ModelCard::load(&root("model_cards/paravt-tiny")).expect("the bundled card")
}

/// An agent of the tiny card on this engine.
pub(crate) fn agent_with(engine: Arc<dyn Engine>, config: AgentConfig) -> Agent {
    let media = Media::new(MediaConfig::default()).expect("ffmpeg is installed");
    Agent::new(Arc::new(tiny_card()), engine, media, config)
}

/// A question about the demonstration video.
pub(crate) fn ask(question: &str) -> AskRequest {
    ask_about(SourceRequest::Path(demo_video()), question)
}

/// A question about a video.
pub(crate) fn ask_about(video: SourceRequest, question: &str) -> AskRequest {
    AskRequest::about(video, question.to_owned(), "test".to_owned())
}

/// All events of an episode, and how it ended.
pub(crate) async fn story(agent: &Agent, request: AskRequest) -> (Vec<AgentEvent>, Result<Outcome, AgentError>) {
    let mut events = Vec::new();
    let mut stream = agent.ask(request);
    while let Some(event) = stream.next().await {
        match event {
            Ok(AgentEvent::Finished(outcome)) => return (events, Ok(*outcome)),
            Ok(event) => events.push(event),
            Err(error) => return (events, Err(error)),
        }
    }
    panic!("the stream ended without an end");
}

/// Waits until the embedded engine does nothing, and not for ever.
#[cfg(any(feature = "native", feature = "mistralrs"))]
pub(crate) async fn idle(engine: &dyn Engine) {
    let idle = async {
        while engine.load() != paravt::engine::EngineLoad::default() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), idle).await.expect("the engine goes idle");
}
