//! The training module as its users see it: by its command line.

mod data;
mod sft;
