//! Reads the main agent's raw text as it comes: thinking, calls, the answer. Pure: text in, [`Segment`]s out.
//!
//! Rules of the ParaVT format and of what models really write (oracle: `src/tests/fixtures/tool_bursts.json`):
//! - A call counts as soon as its block is closed. Calls inside `<think>` are held: if a real call or an answer follows
//!   they were only thoughts, else they are run at the end of the turn.
//! - The first non-empty `<answer>` outside `<think>` streams. Beside earlier calls it is a draft. What follows a
//!   complete answer is not read: the caller stops the generation there.
//! - An invented `<tool_response>` ends the turn.
//!
//! Feeding text in chunks of any size gives the same result as feeding it whole: whatever could still become a tag or a
//! trailing blank is kept back until it can't. Memory is bounded by the text of one turn.

mod block;
mod json;

pub use block::{Malformed, ToolCall};

use block::{Block, BlockKind};

/// Something the model said, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Segment {
    /// More thinking.
    Think(String),
    /// More of the answer.
    Answer(String),
    /// A complete call, or a block that could not be read as one.
    Call(Result<ToolCall, Malformed>),
    /// The answer is complete: what follows is not read. The model is about to end its turn by itself.
    Answered,
    /// Nothing after this counts: stop generating at once.
    Stop,
}

/// What a whole turn came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Parsed {
    /// The thinking, trimmed. `None` when there was none.
    pub think: Option<String>,
    /// The answer, trimmed. `None` for a turn with calls, readable or not.
    pub answer: Option<String>,
    /// An answer given beside calls.
    pub draft: Option<String>,
    /// What could stand for an answer in a turn with calls, when no call may be run any more.
    pub fallback: Option<String>,
    /// Calls and unreadable blocks.
    pub calls: usize,
}

/// Tags that mean something somewhere.
const TAGS: [&str; 9] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "<answer>",
    "</answer>",
    "<tool_code>",
    "<tool_response>",
    "</tool_call>",
    "</tool_code>",
];
/// The first of these count in plain completions too, and with the caller's own tools one more.
const PLAIN_TAGS: usize = 2;
const TOOL_TAGS: usize = 3;
/// Longest `<|special_token|>` looked for.
const SPECIAL_MAX: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Text,
    Think,
    Answer,
    /// After `<|im_start|>`: the role's name up to the end of the line is no text.
    RoleLine(Place),
    Block(BlockKind, Place),
    Done,
}

/// Where a block stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Outside,
    InThink,
}

/// What lies at the front of the unread text.
enum Token {
    Tag(&'static str),
    Special(usize),
    /// Not a tag: one `<`.
    Plain,
    /// Could still become one.
    More,
}

/// Incremental parser of one turn.
#[derive(Debug)]
pub struct Parser {
    state: State,
    unread: String,
    think: Trimmed,
    saw_think: bool,
    /// Thinking and blocks since the first call inside `<think>`.
    held: Vec<Held>,
    answer: Trimmed,
    draft: Trimmed,
    /// Text outside every tag.
    text: String,
    calls: usize,
    /// Bytes pushed so far, and where the turn stopped.
    pushed: usize,
    stopped_at: Option<usize>,
    one_call: bool,
    mode: Mode,
    /// Bytes of the turn's text before what is being read, and before the answer's first.
    here: usize,
    answer_at: Option<usize>,
}

/// What tags mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// All of the agent's.
    Agent,
    /// Thinking is told apart, all else is the answer.
    Plain,
    /// Calls are told apart too.
    Tools,
}

#[derive(Debug)]
enum Held {
    Text(String),
    Block { raw: String, calls: Vec<Result<ToolCall, Malformed>> },
}

impl Parser {
    /// A parser at the start of a turn. A prefix that the prompt already holds (`<think>`) is pushed like any text.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: State::Text,
            unread: String::new(),
            think: Trimmed::default(),
            saw_think: false,
            held: Vec::new(),
            answer: Trimmed::default(),
            draft: Trimmed::default(),
            text: String::new(),
            calls: 0,
            pushed: 0,
            stopped_at: None,
            one_call: false,
            mode: Mode::Agent,
            here: 0,
            answer_at: None,
        }
    }

    /// A parser for a plain completion: thinking is told apart, all else is the answer, tags and all.
    #[must_use]
    pub fn plain() -> Self {
        Self { mode: Mode::Plain, ..Self::new() }
    }

    /// A parser for a plain completion with tools of the caller's: calls are told apart as well.
    #[must_use]
    pub fn with_tools() -> Self {
        Self { mode: Mode::Tools, ..Self::new() }
    }

    /// Stops after the first block with calls: for sequential dispatch.
    #[must_use]
    pub const fn one_call(mut self) -> Self {
        self.one_call = true;
        self
    }

    /// Bytes of the turn's text up to where it stopped, if it did: what comes after them does not count.
    #[must_use]
    pub const fn stopped_at(&self) -> Option<usize> {
        self.stopped_at
    }

    /// Bytes of the turn's text before the first of the answer; `None` before there is one.
    #[must_use]
    pub const fn answer_at(&self) -> Option<usize> {
        self.answer_at
    }

    /// Reads more text.
    pub fn push(&mut self, text: &str) -> Vec<Segment> {
        let mut out = Vec::new();
        if self.state != State::Done {
            self.unread.push_str(text);
            self.pushed += text.len();
            self.read(false, &mut out);
        }
        out
    }

    /// Reads what the caller wrote itself, to the last blank: it is no news to it, and nothing of it comes again.
    pub fn open(&mut self, prefix: &str) {
        self.push(prefix);
        self.answer.blanks.clear();
    }

    /// Ends the turn: what was kept back is read as it stands. `cut` when the model was not done: then unfinished thinking
    /// is no answer.
    pub fn finish(mut self, cut: bool) -> (Vec<Segment>, Parsed) {
        let mut out = Vec::new();
        self.read(true, &mut out);
        let answered = !self.answer.is_empty();
        self.release_held(self.calls > 0 || answered, &mut out);
        let tool_turn = self.calls > 0;
        let mut parsed = Parsed { calls: self.calls, ..Parsed::default() };
        if tool_turn {
            parsed.draft = self.draft.text();
            parsed.fallback = parsed.draft.clone().or_else(|| self.untagged(cut));
        } else if let Some(answer) = self.answer.text() {
            parsed.answer = Some(answer);
        } else if self.mode != Mode::Agent {
            parsed.answer = None;
        } else if let Some(answer) = self.untagged(cut) {
            out.push(Segment::Answer(answer.clone()));
            parsed.answer = Some(answer);
        }
        parsed.think = self.saw_think.then(|| self.think.text()).flatten();
        (out, parsed)
    }

    /// What stands for an answer without tags: the text outside every tag, else the last line of the thinking.
    fn untagged(&self, cut: bool) -> Option<String> {
        trimmed(&self.text).or_else(|| last_line(self.think.as_str()).filter(|_| !cut))
    }

    fn read(&mut self, last: bool, out: &mut Vec<Segment>) {
        let unread = std::mem::take(&mut self.unread);
        let mut rest = unread.as_str();
        while let Some(after) = self.step(rest, last, out) {
            rest = after;
        }
        if self.state == State::Done {
            self.stopped_at = self.stopped_at.or(Some(self.pushed - rest.len()));
        } else {
            rest.clone_into(&mut self.unread);
        }
    }

    /// Reads the next thing and gives what comes after it; `None` when there is nothing more to read now.
    fn step<'a>(&mut self, rest: &'a str, last: bool, out: &mut Vec<Segment>) -> Option<&'a str> {
        match self.state {
            State::Done => None,
            State::Block(kind, place) => {
                let block = Block::close(kind, rest, last)?;
                self.end_block(kind, place, &block, &rest[..block.length], out);
                Some(&rest[block.length..])
            }
            State::RoleLine(place) => {
                let end = rest.find('\n').map(|at| at + 1).or(last.then_some(rest.len()))?;
                self.state = if place == Place::InThink { State::Think } else { State::Text };
                Some(&rest[end..])
            }
            State::Text | State::Think | State::Answer => {
                self.here = self.pushed - rest.len();
                let at = rest.find('<').unwrap_or(rest.len());
                if at > 0 {
                    self.words(&rest[..at], out);
                    return Some(&rest[at..]);
                }
                if rest.is_empty() {
                    return None;
                }
                let tags = match self.mode {
                    Mode::Agent => &TAGS[..],
                    Mode::Plain => &TAGS[..PLAIN_TAGS],
                    Mode::Tools => &TAGS[..TOOL_TAGS],
                };
                let length = match front(rest, tags, last) {
                    Token::More => return None,
                    Token::Plain => {
                        self.words("<", out);
                        1
                    }
                    Token::Special(length) => {
                        if &rest[..length] == "<|im_start|>" && self.state != State::Answer {
                            let place = if self.state == State::Think { Place::InThink } else { Place::Outside };
                            self.state = State::RoleLine(place);
                        }
                        length
                    }
                    Token::Tag(tag) => {
                        self.tag(tag, out);
                        tag.len()
                    }
                };
                Some(&rest[length..])
            }
        }
    }

    /// Text between tags.
    fn words(&mut self, text: &str, out: &mut Vec<Segment>) {
        match self.state {
            State::Think => match self.held.last_mut() {
                None => out.extend(self.think.push(text).map(Segment::Think)),
                Some(Held::Text(held)) => held.push_str(text),
                Some(Held::Block { .. }) => self.held.push(Held::Text(text.to_owned())),
            },
            State::Text if self.mode != Mode::Agent => out.extend(self.answers(text).map(Segment::Answer)),
            State::Answer if self.calls > 0 => {
                self.draft.push(text);
            }
            State::Answer => {
                let more = self.answers(text);
                if more.is_some() {
                    self.release_held(true, out);
                }
                out.extend(more.map(Segment::Answer));
            }
            _ => self.text.push_str(text),
        }
    }

    fn answers(&mut self, text: &str) -> Option<String> {
        let first = self.answer.is_empty();
        let more = self.answer.push(text)?;
        if first {
            self.answer_at = Some(self.here + text.len() - text.trim_start().len());
        }
        Some(more)
    }

    fn tag(&mut self, tag: &'static str, out: &mut Vec<Segment>) {
        match (self.state, tag) {
            (State::Think, "</think>") => self.state = State::Text,
            (State::Think, "<tool_call>") => self.state = State::Block(BlockKind::Call, Place::InThink),
            (State::Think, "<tool_code>") => self.state = State::Block(BlockKind::Code, Place::InThink),
            (State::Think, "<tool_response>") if !self.held.is_empty() => self.stop(out),
            (State::Think, "<think>" | "</tool_call>" | "</tool_code>") => {}
            (State::Think, raw) => self.words(raw, out),
            (State::Answer, "</answer>") => {
                // An empty answer is none, and beside calls the rest of the turn may hold more calls.
                if self.answer.is_empty() || self.calls > 0 {
                    self.state = State::Text;
                } else {
                    self.state = State::Done;
                    out.push(Segment::Answered);
                }
            }
            (State::Answer, "<tool_response>") => self.stop(out),
            (State::Answer, "<tool_call>" | "<tool_code>") if !self.answer.is_empty() => self.stop(out),
            (State::Text | State::Answer, "<tool_call>") => self.state = State::Block(BlockKind::Call, Place::Outside),
            (State::Text | State::Answer, "<tool_code>") => self.state = State::Block(BlockKind::Code, Place::Outside),
            (State::Text, "<think>") => {
                self.saw_think = true;
                self.state = State::Think;
                if !self.think.is_empty() {
                    self.words("\n", out);
                }
            }
            (State::Text, "</think>") if self.mode == Mode::Agent && !self.saw_think && self.calls == 0 => {
                // The template opened the thinking without telling: what came so far was it.
                self.saw_think = true;
                let text = std::mem::take(&mut self.text);
                out.extend(self.think.push(&text).map(Segment::Think));
            }
            (State::Text, "<answer>") => self.state = State::Answer,
            (State::Text, "<tool_response>") => self.stop(out),
            _ => {}
        }
    }

    fn stop(&mut self, out: &mut Vec<Segment>) {
        self.state = State::Done;
        out.push(Segment::Stop);
    }

    fn end_block(&mut self, kind: BlockKind, place: Place, block: &Block, raw: &str, out: &mut Vec<Segment>) {
        let calls = block::read(kind, &raw[..block.body], block.closed);
        match place {
            Place::Outside => {
                self.release_held(true, out);
                self.calls += calls.len();
                out.extend(calls.into_iter().map(Segment::Call));
                self.state = State::Text;
                if self.one_call {
                    self.stop(out);
                }
            }
            Place::InThink => {
                self.held.push(Held::Block { raw: format!("{}{raw}", kind.open()), calls });
                self.state = State::Think;
            }
        }
    }

    /// Settles the calls held back inside `<think>`: thoughts (their text is thinking), or calls to run.
    fn release_held(&mut self, thoughts: bool, out: &mut Vec<Segment>) {
        for held in std::mem::take(&mut self.held) {
            match held {
                Held::Text(text) => out.extend(self.think.push(&text).map(Segment::Think)),
                Held::Block { raw, .. } if thoughts => out.extend(self.think.push(&raw).map(Segment::Think)),
                Held::Block { calls, .. } => {
                    self.calls += calls.len();
                    out.extend(calls.into_iter().map(Segment::Call));
                }
            }
        }
    }
}

impl Default for Parser {
    fn default() -> Self {
        Self::new()
    }
}

/// What stands at the front of `text`, which begins with `<`.
fn front(text: &str, tags: &'static [&'static str], last: bool) -> Token {
    if let Some(tag) = tags.iter().find(|tag| text.starts_with(**tag)) {
        return Token::Tag(tag);
    }
    if !last && tags.iter().any(|tag| tag.starts_with(text)) {
        return Token::More;
    }
    if let Some(rest) = text.strip_prefix("<|") {
        let name = rest
            .bytes()
            .take(SPECIAL_MAX)
            .take_while(|b| b.is_ascii_lowercase() || matches!(b, b'_' | b'0'..=b'9'))
            .count();
        let after = &rest[name..];
        if name > 0 && after.starts_with("|>") {
            return Token::Special(name + 4);
        }
        if !last && name < SPECIAL_MAX && (after.is_empty() || after == "|") {
            return Token::More;
        }
    }
    Token::Plain
}

/// Text that grows, without the blanks at its two ends: the trailing ones wait until something follows.
#[derive(Debug, Default)]
struct Trimmed {
    text: String,
    blanks: String,
}

impl Trimmed {
    /// Adds text and gives what is new of the trimmed whole.
    fn push(&mut self, more: &str) -> Option<String> {
        let more = if self.text.is_empty() { more.trim_start() } else { more };
        let solid = more.trim_end();
        if solid.is_empty() {
            if !self.text.is_empty() {
                self.blanks.push_str(more);
            }
            return None;
        }
        let mut new = std::mem::take(&mut self.blanks);
        new.push_str(solid);
        self.blanks.push_str(&more[solid.len()..]);
        self.text.push_str(&new);
        Some(new)
    }

    const fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    fn as_str(&self) -> &str {
        &self.text
    }

    fn text(&self) -> Option<String> {
        trimmed(&self.text)
    }
}

fn trimmed(text: &str) -> Option<String> {
    Some(text.trim()).filter(|text| !text.is_empty()).map(str::to_owned)
}

/// The last line that says something, without tags.
fn last_line(text: &str) -> Option<String> {
    text.lines().rev().find_map(|line| trimmed(&without_tags(line)))
}

/// Without any tag, those included that only come about when another is taken out.
fn without_tags(line: &str) -> String {
    let mut line = line.to_owned();
    while let Some(tag) = TAGS.iter().find(|tag| line.contains(**tag)) {
        line = line.replace(tag, "");
    }
    line
}

#[cfg(test)]
mod tests;
