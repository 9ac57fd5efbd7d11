//! What an episode costs in tokens, as `agent::cost` has it and as the engine counts it, with the bundled checkpoint.

use std::sync::Arc;

use paravt::agent::cost::{Footage, TokenCost, Way, Writing};
use paravt::agent::{AskOptions, AskRequest, Outcome, TurnRecord, WindowStatus, finished};
use paravt::config::{AgentConfig, Dispatch, MediaConfig};
use paravt::engine::native::{Native, NativeOptions};
use paravt::eval::{self, Boards};
use paravt::media::{Media, SourceRequest};
use paravt::synthetic::Board;
use paravt::types::FrameSize;

use super::support::{agent_with, ask_about, board, tiny_card};

/// Boards asked about in each way.
const BOARDS: usize = 15;

/// One episode: windows, tokens read and written by all agents, as counted and by the formula.
#[derive(Debug)]
struct Compared {
    windows: usize,
    read: (u64, usize),
    written: (u64, usize),
}

fn compared(outcome: &Outcome, question: &str, way: Way, count: &dyn Fn(&str) -> usize) -> Compared {
    let windows = outcome.windows.len();
    let (main, sub) = (outcome.usage.main, outcome.usage.sub);
    // By its text, and the token that ends it.
    let written = |turn: &TurnRecord| count(&turn.text[turn.prefix..]) + 1;
    let (first, last) = (&outcome.turns[0], &outcome.turns[outcome.turns.len() - 1]);
    let each = |tokens: u64| tokens as usize / windows.max(1);
    // How the first turn is divided between thinking and calls changes nothing.
    let writing = Writing {
        think: if windows > 0 { written(first) } else { 0 },
        think_again: 0,
        call: 0,
        answer: written(last),
        summary: each(sub.completion_tokens),
    };
    let size = FrameSize { width: 256, height: 256 };
    let footage = Footage { seconds: 300.2, fps: 5.0, size, window_s: 40.0 };
    let cost = TokenCost::of(&tiny_card(), &footage, question, &writing, count).expect("a size");
    let formula = cost.tokens(way, windows);
    Compared {
        windows,
        read: (main.prompt_tokens + sub.prompt_tokens, formula.read),
        written: (main.completion_tokens + sub.completion_tokens, formula.written),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_what_the_formulas_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let media = Media::new(MediaConfig::default()).expect("these tests need ffmpeg");
    let asked = eval::signal_board(folder.path(), &Boards { seed: 7, count: BOARDS, frames: Board::FRAMES });
    eval::film_boards(&media, &asked, 2, |_| ()).await.expect("made");
    let tokenizer = tokenizers::Tokenizer::from_file(board::checkpoint().join("tokenizer.json")).expect("a tokenizer");
    let count = |text: &str| tokenizer.encode_fast(text, false).expect("encodes").len();
    let engine = Native::load(&board::checkpoint(), NativeOptions::default()).await.expect("loads");
    let agent = agent_with(Arc::new(engine), AgentConfig::default());
    let mut seen = std::collections::BTreeSet::new();
    for (way, dispatch) in [(Way::Parallel, Dispatch::Parallel), (Way::Sequential, Dispatch::Sequential)] {
        for (item, _) in &asked {
            let options = AskOptions { dispatch: Some(dispatch), ..AskOptions::default() };
            let request = AskRequest { options, ..ask_about(SourceRequest::Path(item.video.clone()), &item.prompt) };
            let outcome = finished(agent.ask(request)).await.expect("answers");
            // One that is refused, or shares another's summary, has no sub-agent.
            if outcome.windows.iter().any(|window| window.status != WindowStatus::Ok) {
                continue;
            }
            let compared = compared(&outcome, &item.prompt, way, &count);
            println!("{way:?} {compared:?}");
            let Compared { windows, read, written } = compared;
            // A summary in its line, and times of fewer digits, may have a token more or less.
            let near = |(counted, formula): (u64, usize), most: usize| formula.abs_diff(counted as usize) <= most;
            assert!(near(read, 3 * windows), "{way:?} {windows}: {read:?}");
            // One window after another the first turn is cut behind its call, and its tokens are counted by pieces of text, of which a
            // draft has fewer.
            assert!(way == Way::Sequential || near(written, 3 + windows), "{way:?} {windows}: {written:?}");
            seen.insert((way == Way::Parallel, windows));
        }
    }
    assert!(seen.contains(&(true, 1)) && seen.contains(&(true, 3)) && seen.contains(&(false, 1)), "{seen:?}");
}
