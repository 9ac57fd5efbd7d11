//! Training of the model that the server hosts: supervised fine-tuning on traces of the agent, then PARA-GRPO (ParaVT, section
//! 3.2 and on).
//!
//! This room may use the agent, engines, media and the model; nothing but the command line sees it. Everything that can be
//! without tensors is: rewards, data and traces are plain values.

mod error;

pub use error::TrainError;
