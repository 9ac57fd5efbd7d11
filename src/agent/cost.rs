//! What an episode costs in tokens, by the number of its windows and the way they are watched. Pure.
//!
//! The paper weighs windows one after another against windows at the same time by their tokens (`T_seq`, `T_par`). Its own
//! formulas were in no source we could read: these are ours, counted off what `prompt` writes. [`TokenCost::requests`] is the
//! count step by step, [`TokenCost::tokens`] the same in closed form; a test holds them together.

use bytes::Bytes;
use serde::Serialize;

use super::prompt;
use super::request::{AskPart, AskTurn, VideoPart};
use crate::agent::WindowRecord;
use crate::card::ModelCard;
use crate::engine::Speaker;
use crate::media::{BadAspect, SourceRequest, frame_size, frame_times};
use crate::types::{Clip, Frame, FrameSize, MediaTime, Part, Role, TimeSpan, Turn};

/// How an episode's windows are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// All called in one turn, each watched by a sub-agent, the summaries in one response.
    Parallel,
    /// A turn for each window; a sub-agent watches it, its summary comes back.
    Sequential,
    /// A turn for each window, whose frames are put into the main agent's own context, as the paper's evaluation code does.
    Inline,
}

/// Tokens of an episode's pieces. Those that the model writes have their ending token with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TokenCost {
    /// The system's turn, which every main prompt begins with.
    pub system: usize,
    /// Of it, what other episodes left in the cache of prefixes: whole blocks, or 0.
    pub cached: usize,
    /// The overview: frames with their times, and what opens their turn.
    pub overview: usize,
    /// The question, and what opens the model's turn.
    pub question: usize,
    /// Written in the first turn before its first call.
    pub think: usize,
    /// Written in each later turn before its call, where windows are called one after another.
    pub think_again: usize,
    /// Written for a call.
    pub call: usize,
    /// Of a tool response, all but its lines; and what opens the model's next turn.
    pub response: usize,
    /// Of a line of a tool response, all but the summary.
    pub line: usize,
    /// Written in the last turn.
    pub answer: usize,
    /// What a sub-agent reads beside frames.
    pub instruction: usize,
    /// A window's frames.
    pub window: usize,
    /// Written by a sub-agent.
    pub summary: usize,
}

/// One request to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenRequest {
    /// Whose.
    pub speaker: Speaker,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Of them, what a cache of prefixes still has: at most all that the same conversation had computed before.
    pub found: usize,
    /// Tokens written.
    pub written: usize,
}

/// Tokens of a whole episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct EpisodeTokens {
    /// Prompts of all requests: what is computed without a cache of prefixes, and what APIs count.
    pub read: usize,
    /// Of them, what no cache has: computed in any case.
    pub read_new: usize,
    /// Written by all agents.
    pub written: usize,
    /// The longest prompt with what is written after it.
    pub longest: usize,
}

impl TokenCost {
    /// The requests of an episode with so many windows, in order; sub-agents stand after the turn that called them.
    #[must_use]
    pub fn requests(&self, way: Way, windows: usize) -> Vec<TokenRequest> {
        let opening = self.system + self.overview + self.question;
        let sub = TokenRequest {
            speaker: Speaker::Sub,
            prompt: self.window + self.instruction,
            found: 0,
            written: self.summary,
        };
        let mut out = Vec::new();
        let (mut prompt, mut found) = (opening, self.cached);
        let mut turn = |out: &mut Vec<TokenRequest>, written: usize, response: usize| {
            out.push(TokenRequest { speaker: Speaker::Main, prompt, found, written });
            // The last token written is computed when something comes after it.
            found = (prompt + written).saturating_sub(1);
            prompt += written + response;
        };
        match way {
            Way::Parallel if windows > 0 => {
                turn(&mut out, self.think + windows * self.call, self.response + windows * (self.line + self.summary));
                out.extend(std::iter::repeat_n(sub, windows));
            }
            Way::Parallel => {}
            Way::Sequential | Way::Inline => {
                for window in 0..windows {
                    let think = if window == 0 { self.think } else { self.think_again };
                    let shown = if way == Way::Inline { self.window } else { self.summary };
                    turn(&mut out, think + self.call, self.response + self.line + shown);
                    out.extend((way == Way::Sequential).then_some(sub));
                }
            }
        }
        turn(&mut out, self.answer, 0);
        out
    }

    /// The same in closed form. With `B` = system + overview + question, `K` windows, `t` think, `u` think again, `c` call, `f`
    /// response, `l` line, `a` answer, `I` instruction, `W` window, `s` summary:
    ///
    /// - parallel: `T_par = 2B + t + f + K (c + l + s) + K (I + W)` read, `t + a + K (c + s)` written;
    /// - sequential: `T_seq = (K+1) B + K t + K (K-1)/2 u + K (K+1)/2 (c + f + l + s) + K (I + W)` read, `(K-1) u` more written;
    /// - inline: the same with `W` in place of `s` in the response, and no sub-agents.
    ///
    /// With a cache of prefixes, each reads its opening and its responses once, and the last token of the turn before them.
    #[must_use]
    pub fn tokens(&self, way: Way, windows: usize) -> EpisodeTokens {
        let (k, opening) = (windows, self.system + self.overview + self.question);
        let subs = k * (self.instruction + self.window);
        let longest_sub = if k == 0 { 0 } else { self.instruction + self.window + self.summary };
        if k == 0 {
            let (read_new, longest) = (opening - self.cached.min(opening), opening + self.answer);
            return EpisodeTokens { read: opening, read_new, written: self.answer, longest };
        }
        let new = opening - self.cached.min(opening);
        let again = (k - 1) * self.think_again;
        match way {
            Way::Parallel => {
                let said = self.think + k * self.call;
                let told = self.response + k * (self.line + self.summary);
                EpisodeTokens {
                    read: 2 * opening + said + told + subs,
                    read_new: new + told + 1 + subs,
                    written: said + self.answer + k * self.summary,
                    longest: longest_sub.max(opening + said + told + self.answer),
                }
            }
            Way::Sequential | Way::Inline => {
                let inline = way == Way::Inline;
                let told = self.response + self.line + if inline { self.window } else { self.summary };
                let said = self.think + again + k * self.call;
                let (subs, summaries, longest_sub) =
                    if inline { (0, 0, 0) } else { (subs, k * self.summary, longest_sub) };
                EpisodeTokens {
                    read: (k + 1) * opening
                        + k * self.think
                        + k * (k - 1) / 2 * self.think_again
                        + k * (k + 1) / 2 * (self.call + told)
                        + subs,
                    read_new: new + k * (told + 1) + subs,
                    written: said + self.answer + summaries,
                    longest: longest_sub.max(opening + said + k * told + self.answer),
                }
            }
        }
    }
}

/// A video, and the windows asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Footage {
    /// Its length in seconds.
    pub seconds: f64,
    /// Pictures a second.
    pub fps: f64,
    /// Size of a picture.
    pub size: FrameSize,
    /// Length of a window in seconds.
    pub window_s: f64,
}

/// Tokens of what the model writes, each with its ending token: see [`TokenCost`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of TokenCost")]
pub struct Writing {
    pub think: usize,
    pub think_again: usize,
    pub call: usize,
    pub answer: usize,
    pub summary: usize,
}

impl TokenCost {
    /// Of a card's episode about a whole video with an even rate. `count` says how many tokens a text has.
    ///
    /// Frames, their number, times and size, and the tokens around turns and pictures are those of the real prompts, with texts
    /// cut where the native engine cuts them. A line of a response is counted alone: in place it may have a token more or
    /// less. The words that forbid further calls (`last_turn`) are not in it: they come after the last turn allowed.
    ///
    /// # Errors
    /// [`BadAspect`] for a size that no frame can have.
    pub fn of(
        card: &ModelCard,
        footage: &Footage,
        question: &str,
        writing: &Writing,
        count: impl Fn(&str) -> usize,
    ) -> Result<Self, BadAspect> {
        let size = frame_size(footage.size, &card.pixels)?;
        let picture = 2 + (size.width / card.pixels.factor * (size.height / card.pixels.factor)) as usize;
        let clip = |span: Option<(f64, f64)>, budget| {
            let time = |seconds| MediaTime::from_seconds(seconds).unwrap_or_default();
            let frame = |seconds| Frame { time: Some(time(seconds)), size, rgb: Bytes::new() };
            let times = frame_times(footage.seconds, footage.fps, span, budget);
            let (start, end) = span.unwrap_or((0.0, footage.seconds));
            let span = TimeSpan { start: time(start), end: time(end) };
            Clip { span, frames: times.into_iter().map(frame).collect(), partial: false, keyframes: false }
        };
        // In the middle of the video, so that its times have as many digits as most.
        let start = ((footage.seconds - footage.window_s) / 2.0).max(0.0);
        let window = clip(Some((start, start + footage.window_s)), &card.window);

        let video = AskPart::Video(VideoPart::whole(SourceRequest::Path("video".into())));
        let asked = [AskTurn { role: Role::User, parts: vec![video, AskPart::Text(question.to_owned())] }];
        let opening = prompt::opening(card, &asked, &[clip(None, &card.overview)], true, &[]);
        let sums = |turns: &[Turn]| {
            let each = turns.iter().map(|turn| turn_tokens(turn, picture, &count));
            each.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
        };
        let opens = |prefix: &str| 1 + count(&format!("{}\n{prefix}", Role::Assistant.name()));
        let main = opens(&card.prompts.think_prefix);

        let (system, user) = opening.split_at(1);
        let (overview, question_tokens) = sums(user);
        let (frames, instruction) = sums(&prompt::sub_agent(card, window.span, &window, question));
        // After the model's turn and its ending token, there is a line break.
        let response = |records: &[WindowRecord]| {
            let (before, after) = turn_tokens(&prompt::tool_response(records, &[], None), picture, &count);
            count("\n") + before + after + main
        };
        let record = WindowRecord {
            start: Some(window.span.start),
            end: Some(window.span.end),
            summary: Some(String::new()),
            ..WindowRecord::called(0, 0)
        };
        let Writing { think, think_again, call, answer, summary } = *writing;
        Ok(Self {
            system: sums(system).1,
            cached: 0,
            overview,
            question: question_tokens + main,
            think,
            think_again,
            call,
            response: response(&[]),
            line: response(&[record]) - response(&[]),
            answer,
            instruction: instruction + opens(""),
            window: frames,
            summary,
        })
    }
}

/// Tokens of a turn: up to the end of its last picture, and after that, its end included.
fn turn_tokens(turn: &Turn, picture: usize, count: &impl Fn(&str) -> usize) -> (usize, usize) {
    let mut text = format!("{}\n", turn.role.name());
    // The token that opens the turn.
    let (mut before, mut opening) = (0, 1);
    for part in &turn.parts {
        match part {
            Part::Text(more) => text.push_str(more),
            Part::Frame(_) | Part::FramePair(_) => {
                before += std::mem::take(&mut opening) + if text.is_empty() { 0 } else { count(&text) } + picture;
                text.clear();
            }
        }
    }
    let rest = if text.is_empty() { 0 } else { count(&text) };
    (before, opening + rest + 1 + count("\n"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    const MADE_UP: TokenCost = TokenCost {
        system: 100,
        cached: 0,
        overview: 1000,
        question: 20,
        think: 50,
        think_again: 7,
        call: 10,
        response: 5,
        line: 3,
        answer: 40,
        instruction: 30,
        window: 400,
        summary: 60,
    };

    #[test]
    fn a_made_up_conversation_counted_by_hand() {
        // Two windows at once: 1120 read; 50 + 2 * 10 written; 1120 + 70 + 5 + 2 * 63 read; 40 written; twice 430 and 60.
        let parallel = MADE_UP.tokens(Way::Parallel, 2);
        let expected = EpisodeTokens {
            read: 1120 + 1321 + 860,
            read_new: 1120 + 131 + 1 + 860,
            written: 70 + 40 + 120,
            longest: 1361,
        };
        assert_eq!(parallel, expected);
        // One after another: 1120, then 60 written and 68 told, then 17 written and 68 told.
        let sequential = MADE_UP.tokens(Way::Sequential, 2);
        let expected = EpisodeTokens {
            read: 1120 + 1248 + 1333 + 860,
            read_new: 1120 + 69 + 69 + 860,
            written: 60 + 17 + 40 + 120,
            longest: 1373,
        };
        assert_eq!(sequential, expected);
        // With the frames themselves: 408 told in place of 68.
        let inline = MADE_UP.tokens(Way::Inline, 2);
        let expected = EpisodeTokens {
            read: 1120 + 1588 + 2013,
            read_new: 1120 + 409 + 409,
            written: 60 + 17 + 40,
            longest: 2053,
        };
        assert_eq!(inline, expected);
    }

    fn any_cost() -> impl Strategy<Value = TokenCost> {
        prop::array::uniform12(1_usize..3000).prop_map(|n| TokenCost {
            system: n[0],
            cached: n[0] / 16 * 16,
            overview: n[1],
            question: n[2],
            think: n[3],
            think_again: n[4],
            call: n[5],
            response: n[6],
            line: n[7],
            answer: n[8],
            instruction: n[9],
            window: n[10],
            summary: n[11],
        })
    }

    proptest! {
        #[test]
        fn the_closed_forms_are_the_sums_of_the_requests(cost in any_cost(), windows in 0_usize..12) {
            for way in [Way::Parallel, Way::Sequential, Way::Inline] {
                let requests = cost.requests(way, windows);
                let sum = |of: fn(&TokenRequest) -> usize| requests.iter().map(of).sum::<usize>();
                let counted = EpisodeTokens {
                    read: sum(|request| request.prompt),
                    read_new: sum(|request| request.prompt - request.found),
                    written: sum(|request| request.written),
                    longest: requests.iter().map(|request| request.prompt + request.written).max().unwrap_or(0),
                };
                prop_assert_eq!(cost.tokens(way, windows), counted);
            }
        }

        /// With a cache of prefixes the way makes no difference but for what stands around K - 1 more responses, and the
        /// last token of as many turns. Without one, each window costs the whole conversation again.
        #[test]
        fn with_a_cache_of_prefixes_both_ways_read_the_same_but_for_the_responses(
            cost in any_cost(),
            windows in 1_usize..12,
        ) {
            let (parallel, sequential) = (cost.tokens(Way::Parallel, windows), cost.tokens(Way::Sequential, windows));
            let more = windows - 1;
            prop_assert_eq!(sequential.read_new, parallel.read_new + more * (cost.response + 1));
            prop_assert_eq!(sequential.written, parallel.written + more * cost.think_again);
            prop_assert!(sequential.read >= parallel.read + more * (cost.system + cost.overview + cost.question));
            prop_assert!(sequential.longest >= parallel.longest);
        }
    }

    fn card(name: &str) -> ModelCard {
        ModelCard::load(Path::new(name)).expect("a bundled card")
    }

    #[test]
    fn a_cards_episode_has_the_frames_and_tokens_of_its_prompts() {
        let footage =
            Footage { seconds: 5400.0, fps: 25.0, size: FrameSize { width: 1920, height: 1080 }, window_s: 16.0 };
        let writing = Writing { think: 1, think_again: 2, call: 3, answer: 4, summary: 5 };
        let words = |text: &str| text.split_whitespace().count();
        let cost = TokenCost::of(&card("paravt-8b"), &footage, "Who scores?", &writing, words).expect("a size");
        // 288x160 is 9 by 5 squares; around each there are two tokens, before it `<12.0 seconds>`, two words.
        assert_eq!(cost.overview, 1 + 1 + 64 * (2 + 45 + 2));
        assert_eq!(cost.window, 1 + 1 + 16 * (45 + 2));
        // `Who scores? The video path for this video is: video.mp4`, end of the turn, start of the next, `assistant <think>`.
        assert_eq!(cost.question, 10 + 1 + 1 + 2);
        assert_eq!((cost.think, cost.think_again, cost.call, cost.answer, cost.summary), (1, 2, 3, 4, 5));
        // `user <tool_response> </tool_response>` between start and end of a turn; `[2692.0s - 2708.0s]`.
        assert_eq!((cost.response, cost.line), (1 + 3 + 1 + 1 + 2, 3));

        let mut pairs = card("paravt-8b");
        pairs.prompts.frame_pairs = true;
        let paired = TokenCost::of(&pairs, &footage, "Who scores?", &writing, words).expect("a size");
        assert_eq!(paired.overview, 1 + 1 + 32 * (2 + 45 + 2));
    }
}
