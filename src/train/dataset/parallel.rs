//! Sequential traces made parallel: one call a turn becomes several calls in one turn where nothing stood against it.
//!
//! First, the frames that answer a call become text, as the main agent of ParaVT reads it: the words of the turn that looked at
//! them, but for those that plan its next call. Then two adjacent calling turns become one when their windows are disjoint, the
//! second does not refer to the first's response ([`super::refers`]), and nothing would be lost. The calls stand in their order,
//! the responses in one block in the same order. Of the second turn's words, those that plan go to the thinking of the burst,
//! those on what was seen stand in the response, or else at the beginning of the next turn. All else stays as it is: a turn that
//! is not well formed, an answer, and a conversation that does not begin with `[system, user]`.

use super::pieces::{Pieces, response};
use super::refers::{Terms, disjoint, refers, split};
use super::row::{Message, SftRow};
use super::trace::{Window, said};
use crate::agent::inside_response;
use crate::types::TimeSpan;

/// A conversation made parallel, and what was done.
#[derive(Debug, Clone, PartialEq)]
pub struct Parallel {
    /// The conversation.
    pub row: SftRow,
    /// Turns that became part of the one before.
    pub merged: usize,
    /// Responses of frames that became text.
    pub told: usize,
    /// Responses of frames that are left: several windows', or of a turn that says nothing.
    pub frames_left: usize,
}

/// Makes a conversation parallel. Doing so twice changes nothing more.
#[must_use]
pub fn parallel(row: &SftRow) -> Parallel {
    let mut messages = row.messages.clone();
    let (mut merged, mut told) = (0, 0);
    if is_conversation(&messages) {
        told = tell(&mut messages);
        let mut at = 2;
        while at + 2 < messages.len() {
            if merge(&mut messages, at).is_some() {
                merged += 1;
                // A turn that stood apart may not do so from what this one has become.
                at = 2;
            } else {
                at += 2;
            }
        }
    }
    let frames_left = messages.iter().skip(2).filter(|message| has_frames(message)).count();
    Parallel { row: SftRow { messages }, merged, told, frames_left }
}

fn is_conversation(messages: &[Message]) -> bool {
    messages.iter().enumerate().all(|(at, message)| match (at, message.role.as_str()) {
        (0, role) => role == "system",
        (_, "user") => at % 2 == 1,
        (_, "tool") => at % 2 == 1 && at > 1,
        (_, role) => at % 2 == 0 && role == "assistant",
    })
}

fn has_frames(message: &Message) -> bool {
    message.media().next().is_some()
}

/// The windows of a turn, if it has some and all can be watched.
fn windows(message: &Message) -> Option<Vec<Window>> {
    let calls: Result<Vec<Window>, String> = said(&message.words()).calls.into_iter().collect();
    calls.ok().filter(|windows| !windows.is_empty() && windows.iter().all(|window| window.start < window.end))
}

/// Turns frames into text, and gives the number of responses.
fn tell(messages: &mut [Message]) -> usize {
    let mut told = 0;
    for at in (2..messages.len()).step_by(2) {
        let [turn, response, next, ..] = &messages[at..] else { break };
        let Some(text) = has_frames(response).then(|| seen(turn, next)).flatten() else { continue };
        messages[at + 1] = response.saying(format!("<tool_response>\n{text}\n</tool_response>"));
        told += 1;
    }
    told
}

/// The line that tells what the next turn saw in a turn's one window.
fn seen(turn: &Message, next: &Message) -> Option<String> {
    let windows = windows(turn).filter(|windows| windows.len() == 1)?;
    let text = Pieces::of(&next.words())?.text();
    let planned = said(&next.words()).calls.into_iter().flatten().collect::<Vec<_>>();
    let (_, seen) = split(&text, &planned, &windows);
    let text = if seen.is_empty() { text } else { seen.join(" ") };
    let text = one_line(&text);
    let window = windows.first()?;
    let span = TimeSpan::new(window.start, window.end)?;
    (!text.is_empty()).then(|| format!("[{span}] {text}"))
}

/// As text stands in a response.
fn one_line(text: &str) -> String {
    inside_response(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Makes the calling turn after the one at `at` part of it. `None`, and nothing changed, where that can't be.
fn merge(messages: &mut Vec<Message>, at: usize) -> Option<()> {
    let [first, first_response, second, second_response, rest @ ..] = &messages[at..] else { return None };
    // What its thinking said of frames before it would not be told from what is added.
    let follows_frames = at > 2 && has_frames(&messages[at - 1]);
    let is_lost = |message: &Message| message.fields.values().any(|value| !value.is_null());
    if follows_frames || [first_response, second_response].into_iter().any(has_frames) {
        return None;
    }
    if is_lost(second) || is_lost(second_response) {
        return None;
    }
    let (earlier, later) = (windows(first)?, windows(second)?);
    let (mut burst, second) = (Pieces::of(&first.words())?, Pieces::of(&second.words())?);
    if burst.answer.is_some() || second.answer.is_some() || !disjoint(&earlier, &later) {
        return None;
    }
    let (told, outside) = response(&first_response.words())?;
    let (more, after) = response(&second_response.words())?;
    let (mut known, mut thought) = (Terms::default(), Terms::default());
    for message in &messages[..=at] {
        known.add(&message.words());
        if message.role == "assistant" {
            let turn = Pieces::of(&message.words()).map(|pieces| pieces.text());
            thought.add(&turn.unwrap_or_default());
            known.add_windows(&windows(message).unwrap_or_default());
        }
    }
    let (plan, mut left) = split(&second.text(), &later, &earlier);
    if !outside.is_empty() || refers(&told, &plan, (&later, &earlier), (&known, &thought)) {
        return None;
    }
    let lines = one_line(&told);
    left.retain(|sentence| !lines.contains(&one_line(sentence)));
    let next = match (left.is_empty(), rest.first()) {
        (true, _) => None,
        (false, None) => return None,
        (false, Some(next)) => {
            let mut pieces = Pieces::of(&next.words())?;
            pieces.think(&left, true);
            Some(next.saying(pieces.write()))
        }
    };
    burst.think(&plan, false);
    burst.calls.extend(second.calls);
    let mut text = format!("<tool_response>\n{told}\n{more}\n</tool_response>");
    if !after.is_empty() {
        text.push('\n');
        text.push_str(&after);
    }
    let pair = [first.saying(burst.write()), first_response.saying(text)];
    if let Some(next) = next {
        messages[at + 4] = next;
    }
    messages.splice(at..at + 4, pair);
    Some(())
}

#[cfg(test)]
mod tests;
