//! Videos of which everything is known, made up from a seed: the *signal board* that the bundled model was made for.
//!
//! A board is grey. One to three times its border is lit, and while it is, a coloured shape may show for a few seconds: too
//! short for an overview to catch, visible to who looks at the lit stretch closely. What a video shows and what is true of it
//! come from the same value, so that questions about it have right answers.
//!
//! This room draws and asks. It knows nothing of models, files or how pictures become a video.

mod board;
mod draw;
mod question;
mod random;

pub use board::{Board, Color, Difficulty, Lit, Shape, Shown, named};
pub use draw::SIDE;
pub use question::{Asked, Question};
pub use random::Random;
