//! A line of terminal text in pieces with a tone each. What draws decides on tones, what prints on colours.

use console::Style;

/// What a piece of text means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    /// Plain text.
    Plain,
    /// Beside the point.
    Dim,
    /// What one looks for.
    Strong,
    /// At work.
    Busy,
    /// Went well.
    Good,
    /// Did not.
    Bad,
}

/// One line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Line(Vec<(Tone, String)>);

impl Line {
    /// An empty line.
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// With one more piece.
    #[must_use]
    pub(super) fn add(mut self, tone: Tone, text: impl Into<String>) -> Self {
        self.0.push((tone, text.into()));
        self
    }

    /// The text alone.
    pub(super) fn plain(&self) -> String {
        let text: String = self.0.iter().map(|(_, text)| text.as_str()).collect();
        text.trim_end().to_owned()
    }

    /// The text with ANSI colours.
    pub(super) fn painted(&self) -> String {
        self.0.iter().map(|(tone, text)| paint(*tone, text)).collect()
    }
}

fn paint(tone: Tone, text: &str) -> String {
    let style = match tone {
        Tone::Plain => return text.to_owned(),
        Tone::Dim => Style::new().dim(),
        Tone::Strong => Style::new().bold(),
        Tone::Busy => Style::new().cyan(),
        Tone::Good => Style::new().green(),
        Tone::Bad => Style::new().red(),
    };
    // Whether colours are wanted was decided where the view was opened.
    style.force_styling(true).apply_to(text).to_string()
}
