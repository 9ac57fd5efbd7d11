//! The four questions that a board is asked, and their answers.

use serde::{Deserialize, Serialize};

use super::board::{Board, Color, Shape, Shown};
use super::random::Random;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Which shapes appear.
    List,
    /// How many.
    Count,
    /// The colour of a shape that shows once.
    ColorOf(Shape),
    /// The shape in a colour that shows once.
    ShapeIn(Color),
}

/// A question in words, and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// What.
    pub question: Question,
    /// As it is put to a model.
    pub text: String,
    /// The right answer.
    pub answer: String,
}

impl Question {
    /// Kind of question, for breakdowns.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Count => "count",
            Self::ColorOf(_) => "color",
            Self::ShapeIn(_) => "shape",
        }
    }
}

impl Board {
    /// A question of this board's that has an answer, of the kinds in turn: the first that it has, from the `turn`th on.
    #[must_use]
    pub fn ask(&self, turn: usize, random: &mut Random) -> Asked {
        let once = |same: &dyn Fn(&Shown, &Shown) -> bool| -> Vec<Shown> {
            self.shown().filter(|one| self.shown().filter(|other| same(one, other)).count() == 1).collect()
        };
        let by_shape = once(&|one, other| one.shape == other.shape);
        let by_color = once(&|one, other| one.color == other.color);
        let kinds = [
            Some(Question::List),
            Some(Question::Count),
            random.one(&by_shape).map(|shown| Question::ColorOf(shown.shape)),
            random.one(&by_color).map(|shown| Question::ShapeIn(shown.color)),
        ];
        let chosen = kinds.iter().cycle().skip(turn % kinds.len()).take(kinds.len()).flatten().next();
        let question = chosen.copied().unwrap_or(Question::List);
        Asked { question, text: question.text(), answer: self.answer(question) }
    }

    /// The right answer. Empty for a look-up of what does not show.
    #[must_use]
    pub fn answer(&self, question: Question) -> String {
        match question {
            Question::List => {
                let all: Vec<String> = self.shown().map(|shown| shown.name()).collect();
                if all.is_empty() { "none".to_owned() } else { all.join(", ") }
            }
            Question::Count => self.shown().count().to_string(),
            Question::ColorOf(shape) => self
                .shown()
                .find(|shown| shown.shape == shape)
                .map(|shown| shown.color.name())
                .unwrap_or_default()
                .to_owned(),
            Question::ShapeIn(color) => self
                .shown()
                .find(|shown| shown.color == color)
                .map(|shown| shown.shape.name())
                .unwrap_or_default()
                .to_owned(),
        }
    }
}

impl Question {
    /// As the bundled model was asked.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::List => "Which shapes appear while the border is lit? List them in order.".to_owned(),
            Self::Count => "How many shapes appear while the border is lit?".to_owned(),
            Self::ColorOf(shape) => format!("What color is the {}?", shape.name()),
            Self::ShapeIn(color) => format!("What shape is {}?", color.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::board::Lit;
    use super::*;

    fn board(shown: &[(Color, Shape)]) -> Board {
        let lit = |(place, (color, shape)): (i64, &(Color, Shape))| {
            let from_ms = place * 60_000;
            let shown = Shown {
                color: *color,
                shape: *shape,
                from_ms: from_ms + 5_000,
                until_ms: from_ms + 9_000,
                size: 52,
                offset: (0, 0),
            };
            Lit { from_ms, until_ms: from_ms + 30_000, shown: Some(shown) }
        };
        Board { grey: 100, frames: 1501, lit: (0..).zip(shown).map(lit).collect() }
    }

    #[test]
    fn questions_have_one_right_answer() {
        let two = board(&[(Color::Red, Shape::Circle), (Color::Red, Shape::Cross)]);
        let ask = |board: &Board, turn| {
            let asked = board.ask(turn, &mut Random::new(0, 0));
            (asked.text, asked.answer)
        };
        let pair = |text: &str, answer: &str| (text.to_owned(), answer.to_owned());
        let list = "Which shapes appear while the border is lit? List them in order.";
        assert_eq!(ask(&two, 0), pair(list, "red circle, red cross"));
        assert_eq!(ask(&two, 1), pair("How many shapes appear while the border is lit?", "2"));
        assert!(
            ["circle", "cross"].map(|name| pair(&format!("What color is the {name}?"), "red")).contains(&ask(&two, 2))
        );
        // Both are red: what shape is red has no answer, so the next kind is asked.
        assert_eq!(ask(&two, 3), ask(&two, 0));
        let none = board(&[]);
        assert_eq!((ask(&none, 0).1.as_str(), ask(&none, 2).1.as_str()), ("none", "none"));
    }
}
