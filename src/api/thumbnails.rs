//! Small pictures of the frames that the model sees, for pages that show what happens.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt as _;

use super::observe::{Episode, Told};
use crate::agent::AgentEvent;
use crate::media::thumbnail;
use crate::types::Frame;

/// Longer side in pixels.
const SIDE: u32 = 160;

/// The same episode, with pictures where there are frames. They are made off the async threads.
pub(super) fn added(episode: Episode) -> Episode {
    episode
        .then(|told| async {
            let mut told = told?;
            let frames = frames(&mut told.event);
            if !frames.is_empty() {
                told.thumbnails = tokio::task::spawn_blocking(move || urls(&frames)).await.unwrap_or_default();
            }
            Ok::<Told, _>(told)
        })
        .boxed()
}

/// The same episode without frames: a client that reads slowly would keep them in memory.
pub(super) fn left_out(episode: Episode) -> Episode {
    episode
        .map(|told| {
            let mut told = told?;
            drop(frames(&mut told.event));
            Ok::<Told, _>(told)
        })
        .boxed()
}

/// Takes an event's frames out.
fn frames(event: &mut AgentEvent) -> Vec<Frame> {
    match event {
        AgentEvent::Overview(record) => std::mem::take(&mut record.frames),
        AgentEvent::WindowFrames { frames, .. } => std::mem::take(frames),
        _ => Vec::new(),
    }
}

fn urls(frames: &[Frame]) -> Vec<String> {
    let url = |frame| {
        thumbnail(frame, SIDE)
            .map(|jpeg| format!("data:image/jpeg;base64,{}", STANDARD.encode(jpeg)))
            .unwrap_or_default()
    };
    frames.iter().map(url).collect()
}
