//! What is wrong with a data set: all of it, up to a bound, with the rows it is in.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::error::DatasetError;
use super::row::{Medium, Message, RlRow, Row, SftRow};
use super::trace::{is_response, said, unclosed};

/// Something that is wrong with a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Which row, from 1.
    pub row: u64,
    /// In which of its messages, from 1, if in one.
    pub message: Option<usize>,
    /// What.
    pub problem: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row {}", self.row)?;
        if let Some(message) = self.message {
            write!(f, ", message {message}")?;
        }
        write!(f, ": {}", self.problem)
    }
}

/// What a data set's check came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Rows that were looked at.
    pub rows: u64,
    /// Rows with problems.
    pub wrong_rows: u64,
    /// The first problems.
    pub problems: Vec<Problem>,
    /// How many more there are.
    pub more: u64,
}

/// A check under way: rows in, a [`Report`] out.
#[derive(Debug)]
pub struct Check {
    videos: Option<PathBuf>,
    most: usize,
    report: Report,
    /// Problems of the row at hand.
    found: u64,
    row: u64,
    /// Files that were looked for.
    files: HashMap<String, bool>,
}

impl Check {
    /// Problems that are told, where no other number is asked for.
    pub const MOST: usize = 100;

    /// A check that tells at most so many problems. Videos and images are looked for where a folder is given in which relative
    /// paths begin; what is on the web never is.
    #[must_use]
    pub fn new(videos: Option<&Path>, most: usize) -> Self {
        let videos = videos.map(Path::to_owned);
        Self { videos, most, report: Report::default(), found: 0, row: 0, files: HashMap::new() }
    }

    /// Looks at a row.
    pub fn add(&mut self, number: u64, row: &Row) {
        self.begin(number);
        match row {
            Row::Sft(row) => self.conversation(row),
            Row::Rl(row) => self.prompt(row),
        }
        self.report.wrong_rows += u64::from(self.found > 0);
    }

    /// Tells of a row that can't be read.
    pub fn unreadable(&mut self, number: u64, error: &DatasetError) {
        self.begin(number);
        self.tell(
            None,
            match error {
                DatasetError::Row { column, problem, .. } => format!("{column}: {problem}"),
                DatasetError::File { problem, .. } => problem.clone(),
            },
        );
        self.report.wrong_rows += 1;
    }

    /// What it came to.
    #[must_use]
    pub fn finish(self) -> Report {
        self.report
    }

    fn begin(&mut self, number: u64) {
        (self.row, self.found) = (number, 0);
        self.report.rows += 1;
    }

    fn tell(&mut self, message: Option<usize>, problem: impl Into<String>) {
        self.found += 1;
        if self.report.problems.len() < self.most {
            self.report.problems.push(Problem { row: self.row, message, problem: problem.into() });
        } else {
            self.report.more += 1;
        }
    }

    fn conversation(&mut self, row: &SftRow) {
        self.roles(&row.messages);
        // Calls that the next message is to answer.
        let mut calls = 0;
        for (at, message) in row.messages.iter().enumerate() {
            let (text, place) = (message.words(), Some(at + 1));
            self.media(message, at + 1);
            if message.role != "assistant" {
                let responds = is_response(&message.role, &text);
                if responds && calls == 0 {
                    self.tell(place, "a tool_response without a call");
                } else if calls > 0 && !responds && message.media().next().is_none() {
                    self.tell(place, "no tool_response where a call needs one");
                }
                calls = 0;
                continue;
            }
            calls = self.turn(&text, at + 1 == row.messages.len(), at + 1);
        }
    }

    /// Checks a turn of the assistant and gives the number of its calls.
    fn turn(&mut self, text: &str, is_last: bool, message: usize) -> usize {
        let place = Some(message);
        if let Some(problem) = unclosed(text) {
            self.tell(place, problem);
        }
        let said = said(text);
        for call in &said.calls {
            match call {
                Err(problem) => self.tell(place, format!("a call can't be parsed: {problem}")),
                Ok(window) if window.start >= window.end => {
                    self.tell(
                        place,
                        format!("the window's start {} is not before its end {}", window.start, window.end),
                    );
                }
                Ok(_) => {}
            }
        }
        match (is_last, said.calls.is_empty(), &said.answer) {
            (true, false, _) => self.tell(place, "the conversation ends with a call"),
            (_, true, None) => self.tell(place, "the answer is empty"),
            _ => {}
        }
        said.calls.len()
    }

    fn roles(&mut self, messages: &[Message]) {
        let roles: Vec<&str> = messages.iter().map(|message| message.role.as_str()).collect();
        if !matches!(roles.as_slice(), ["system", "user", ..]) {
            let begins = roles.iter().take(2).copied().collect::<Vec<_>>().join(", ");
            return self.tell(None, format!("begins with [{begins}], not with [system, user]"));
        }
        let is_in_place = |(at, role): (usize, &&str)| match at % 2 {
            0 => *role == "assistant",
            _ => matches!(*role, "user" | "tool"),
        };
        if let Some(at) = roles.iter().skip(2).enumerate().position(|turn| !is_in_place(turn)) {
            let problem = format!("{:?} after {:?}: turns do not alternate", roles[at + 2], roles[at + 1]);
            self.tell(Some(at + 3), problem);
        } else if roles.last() != Some(&"assistant") {
            self.tell(None, "does not end with a turn of the assistant");
        }
    }

    fn media(&mut self, message: &Message, number: usize) {
        for (medium, part) in message.media() {
            match part.source() {
                Some(source) if !self.is_there(source) => {
                    let what = if medium == Medium::Video { "video" } else { "image" };
                    self.tell(Some(number), format!("the {what} {source} is missing"));
                }
                // A list of frames in place of a path is for its reader.
                None if !part.fields.contains_key(&part.kind) => {
                    self.tell(Some(number), format!("a part of type {} without a source", part.kind));
                }
                _ => {}
            }
        }
    }

    fn is_there(&mut self, source: &str) -> bool {
        let Some(folder) = &self.videos else { return true };
        let path = source.strip_prefix("file://").unwrap_or(source);
        if path.starts_with("data:") || path.contains("://") {
            return true;
        }
        if let Some(known) = self.files.get(path) {
            return *known;
        }
        let there = folder.join(path).is_file();
        self.files.insert(path.to_owned(), there);
        there
    }

    fn prompt(&mut self, row: &RlRow) {
        let roles: Vec<&str> = row.prompt.iter().map(|message| message.role.as_str()).collect();
        if !matches!(roles.as_slice(), ["user"] | ["system", "user"]) {
            self.tell(None, format!("the prompt is [{}], not [user] or [system, user]", roles.join(", ")));
        }
        let marks: usize = row.prompt.iter().map(|message| message.content.matches("<video>").count()).sum();
        if row.videos.is_empty() {
            self.tell(None, "there is no video");
        } else if marks != row.videos.len() {
            self.tell(None, format!("{marks} marks <video> for {} videos", row.videos.len()));
        }
        for video in &row.videos {
            if video.video.is_empty() || !self.is_there(&video.video) {
                self.tell(None, format!("the video {} is missing", video.video));
            }
        }
        if row.answer.trim().is_empty() {
            self.tell(None, "the answer is empty");
        } else if row.question_type == "tvg" {
            match numbers(&row.answer)[..] {
                [start, end, ..] if start < end => {}
                [start, end, ..] => {
                    self.tell(None, format!("the window's start {start} is not before its end {end}"));
                }
                _ => self.tell(None, "the answer of a tvg question is no window"),
            }
        }
    }
}

/// The numbers in a text.
fn numbers(text: &str) -> Vec<f64> {
    let fields = text.split(|c: char| !c.is_ascii_digit() && c != '.');
    fields.filter_map(|field| field.trim_matches('.').parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::super::row::{PromptMessage, VideoFile};
    use super::*;

    const CALL: &str = "<think>The border is lit.</think>\n<tool_call>{\"name\": \"crop_video\", \"arguments\": \
                        {\"start_time\": 1, \"end_time\": 2}}</tool_call>";
    const RESPONSE: &str = "<tool_response>\n[1.0s - 2.0s] A circle.\n</tool_response>";
    const ANSWER: &str = "<think>So.</think><answer>a circle</answer>";

    fn problems(messages: &[(&str, &str)]) -> Vec<String> {
        let messages = messages.iter().map(|(role, text)| Message::text(*role, *text)).collect();
        problems_of(&Row::Sft(SftRow { messages }), None)
    }

    fn problems_of(row: &Row, videos: Option<&Path>) -> Vec<String> {
        let mut check = Check::new(videos, Check::MOST);
        check.add(3, row);
        check.finish().problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_good_conversation_has_no_problems() {
        let good = [("system", "s"), ("user", "q"), ("assistant", CALL), ("user", RESPONSE), ("assistant", ANSWER)];
        assert_eq!(problems(&good), [""; 0]);
        let plain = [("system", "s"), ("user", "q"), ("assistant", "a"), ("user", "q"), ("assistant", "b")];
        assert_eq!(problems(&plain), [""; 0]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let late = CALL.replace('1', "2");
        let broken = "<tool_call>{\"name\": crop}</tool_call>";
        for (messages, wanted) in [
            (vec![], "row 3: begins with [], not with [system, user]"),
            (vec![("user", "q"), ("assistant", "a")], "row 3: begins with [user, assistant], not with [system, user]"),
            (vec![("system", "s"), ("user", "q")], "row 3: does not end with a turn of the assistant"),
            (
                vec![("system", "s"), ("user", "q"), ("assistant", "a"), ("assistant", "b")],
                "row 3, message 4: \"assistant\" after \"assistant\": turns do not alternate",
            ),
            (
                vec![("system", "s"), ("user", "q"), ("assistant", "<think>a</think><answer> </answer>")],
                "row 3, message 3: the answer is empty",
            ),
            (
                vec![("system", "s"), ("user", "q"), ("assistant", "<think>a<answer>b</answer>")],
                "row 3, message 3: <think> is not closed",
            ),
            (
                vec![("system", "s"), ("user", "q"), ("assistant", broken), ("user", RESPONSE), ("assistant", ANSWER)],
                "row 3, message 3: a call can't be parsed: the call is not valid JSON",
            ),
            (
                vec![("system", "s"), ("user", "q"), ("assistant", &late), ("user", RESPONSE), ("assistant", ANSWER)],
                "row 3, message 3: the window's start 2.0 is not before its end 2.0",
            ),
            (
                vec![("system", "s"), ("user", "q"), ("assistant", "a"), ("user", RESPONSE), ("assistant", ANSWER)],
                "row 3, message 4: a tool_response without a call",
            ),
            (
                vec![("system", "s"), ("user", "q"), ("assistant", CALL), ("user", "go on"), ("assistant", ANSWER)],
                "row 3, message 4: no tool_response where a call needs one",
            ),
            (
                vec![("system", "s"), ("user", "q"), ("assistant", CALL)],
                "row 3, message 3: the conversation ends with a call",
            ),
        ] {
            let problems = problems(&messages);
            assert!(problems.iter().any(|problem| problem.starts_with(wanted)), "{problems:?} / {wanted}");
        }
    }

    #[test]
    fn missing_videos_are_told_where_they_are_looked_for() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("a.mp4"), "").expect("written");
        let part = |url: &str| json!({"type": "video_url", "video_url": {"url": url}});
        let messages = json!([
            {"role": "system", "content": "s"},
            {"role": "user", "content": [part("a.mp4"), part("b.mp4"), part("https://x/c.mp4"), {"type": "video"}]},
            {"role": "assistant", "content": "a"},
        ]);
        let row = Row::Sft(SftRow { messages: serde_json::from_value(messages).expect("messages") });
        let part = "row 3, message 2: a part of type video without a source";
        assert_eq!(problems_of(&row, None), [part]);
        assert_eq!(problems_of(&row, Some(folder.path())), ["row 3, message 2: the video b.mp4 is missing", part]);
    }

    #[test]
    fn prompts_are_checked_too() {
        let row = |content: &str, videos: &[&str], answer: &str, kind: &str| {
            Row::Rl(RlRow {
                prompt: vec![PromptMessage { role: "user".to_owned(), content: content.to_owned() }],
                videos: videos.iter().map(|video| VideoFile { video: (*video).to_owned() }).collect(),
                answer: answer.to_owned(),
                question_type: kind.to_owned(),
                extra: Map::new(),
            })
        };
        for (row, wanted) in [
            (row("<video>q", &["a.mp4"], "B", "mcq"), None),
            (row("<video>q", &["a.mp4"], "from 2.5 to 10 s.", "tvg"), None),
            (
                row("<video>q", &["a.mp4"], "[10, 2.5]", "tvg"),
                Some("row 3: the window's start 10 is not before its end 2.5"),
            ),
            (row("<video>q", &["a.mp4"], "soon", "tvg"), Some("row 3: the answer of a tvg question is no window")),
            (row("<video>q", &["a.mp4"], " ", "oe"), Some("row 3: the answer is empty")),
            (row("q", &["a.mp4"], "B", "mcq"), Some("row 3: 0 marks <video> for 1 videos")),
            (row("q", &[], "B", "mcq"), Some("row 3: there is no video")),
            (row("<video>q", &[""], "B", "mcq"), Some("row 3: the video  is missing")),
        ] {
            assert_eq!(problems_of(&row, None), wanted.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn problems_beyond_the_bound_are_counted() {
        let mut check = Check::new(None, 2);
        let good = ["system", "user", "assistant"].map(|role| Message::text(role, "a")).to_vec();
        check.add(1, &Row::Sft(SftRow { messages: good }));
        for row in 2..=5 {
            check.add(row, &Row::Sft(SftRow::default()));
        }
        let report = check.finish();
        assert_eq!((report.rows, report.wrong_rows, report.problems.len(), report.more), (5, 4, 2, 2));
    }
}
