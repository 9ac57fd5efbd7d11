//! Those who ask: each episode a first turn, windows at the same time, perhaps a second turn; and some leave early.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::join_all;
use tokio::time::timeout;

use super::counts::{Counts, Open};
use super::draw::Draw;
use crate::card::ModelCard;
use crate::cli::bench::workload::Workload;
use crate::engine::{Engine, Gang, GenerateRequest, Seat, Speaker, Supported, TokenEvent};
use crate::types::Turn;

/// Most windows of an episode.
pub(super) const WINDOWS_MAX: usize = 8;
/// Most tokens of a text.
const TOKENS_MAX: u32 = 96;
/// Who leaves does so within this time, and a deadline is at most so far away.
const LONGEST: Duration = Duration::from_secs(4);
/// Overviews that are shown again and again.
const KNOWN: u64 = 4;

/// What all of them share.
#[derive(Debug)]
pub(super) struct Clients {
    engine: Arc<dyn Engine>,
    supported: Supported,
    card: ModelCard,
    workload: Workload,
    seed: u64,
    counts: Arc<Counts>,
}

/// A request with what the client means to do.
struct Ask {
    request: GenerateRequest,
    /// From when it is made.
    deadline: Option<Duration>,
    /// Leaves after this time.
    leaves: Option<Duration>,
}

impl Clients {
    /// Nobody has asked yet.
    pub(super) fn new(engine: Arc<dyn Engine>, card: ModelCard, workload: Workload, seed: u64) -> Self {
        let supported = engine.info().supported;
        Self { engine, supported, card, workload, seed, counts: Arc::default() }
    }

    pub(super) fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    pub(super) const fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    pub(super) const fn seed(&self) -> u64 {
        self.seed
    }

    /// The episode with a number, from its first request to its last; in one of eight the client leaves in the middle.
    pub(super) async fn episode(self: Arc<Self>, number: u64) {
        let mut draw = Draw::new(self.seed, number);
        let leaves = draw.once_in(8).then(|| draw.moment(LONGEST));
        let conversation = Box::pin(self.conversation(number, draw));
        match leaves {
            // Its open requests are counted where they are dropped.
            Some(after) => timeout(after, conversation).await.unwrap_or_default(),
            None => conversation.await,
        }
    }

    async fn conversation(&self, number: u64, mut draw: Draw) {
        // Everything is drawn before anything is asked, so that answers change nothing.
        let draw = &mut draw;
        let workload = Workload {
            overview_frames: draw.upto(self.workload.overview_frames),
            window_frames: draw.upto(self.workload.window_frames),
            ..self.workload.clone()
        };
        let shown = if draw.once_in(4) { draw.below(KNOWN) } else { KNOWN + number };
        let session = format!("soak-{number}");
        let opening = workload.opening(&self.card, shown);
        let first = self.drawn(&workload, opening.clone(), &session, None, draw);
        let gang = Gang::new();
        let windows = (0..draw.below(WINDOWS_MAX as u64 + 1) as usize).map(|window| {
            let turns = workload.window(&self.card, shown, window);
            self.drawn(&workload, turns, &session, Some(gang.seat()), draw)
        });
        let windows: Vec<Ask> = windows.collect();
        let mut second = self.drawn(&workload, Vec::new(), &session, None, draw);

        let Some(written) = self.ask(first).await else { return };
        let summaries = join_all(windows.into_iter().map(|window| self.ask(window))).await;
        let summaries: Vec<String> = summaries.into_iter().flatten().collect();
        second.request.turns = Workload::continued(opening, &written, &summaries);
        self.ask(second).await;
    }

    fn drawn(&self, workload: &Workload, turns: Vec<Turn>, session: &str, seat: Option<Seat>, draw: &mut Draw) -> Ask {
        let speaker = if seat.is_some() { Speaker::Sub } else { Speaker::Main };
        let mut request = workload.request(turns, session, speaker, 1, seat);
        request.sampling = draw.sampling(TOKENS_MAX, &self.supported);
        let deadline = draw.once_in(6).then(|| draw.moment(LONGEST));
        let leaves = draw.once_in(5).then(|| draw.moment(LONGEST));
        Ask { request, deadline, leaves }
    }

    /// Asks, and gives the text where it came to its end.
    async fn ask(&self, ask: Ask) -> Option<String> {
        let Ask { mut request, deadline, leaves } = ask;
        request.deadline = deadline.map(|after| Instant::now() + after);
        let answer = self.answer(request, self.counts.open());
        match leaves {
            Some(after) => timeout(after, answer).await.ok().flatten(),
            None => answer.await,
        }
    }

    async fn answer(&self, request: GenerateRequest, open: Open) -> Option<String> {
        let mut stream = match self.engine.generate(request).await {
            Ok(stream) => stream,
            Err(error) => {
                open.ended(&error);
                return None;
            }
        };
        let mut text = String::new();
        while let Some(event) = stream.next().await {
            match event {
                Ok(TokenEvent::Started { .. } | TokenEvent::Tokens(_)) => {}
                Ok(TokenEvent::Text(more)) => text.push_str(&more),
                Ok(TokenEvent::Finished(end)) => {
                    open.finished(end.usage);
                    return Some(text);
                }
                Err(error) => {
                    open.ended(&error);
                    return None;
                }
            }
        }
        open.stopped();
        None
    }
}
