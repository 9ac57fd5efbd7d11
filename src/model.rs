//! Qwen3-VL on candle: one definition of the network, used for inference and, through the same functions, for gradients.
//!
//! This room turns token ids, positions and pictures into logits. It knows nothing of requests, of sampling, of scheduling,
//! and of how keys and values are kept: attention over the past is the caller's, through [`Attend`].
//!
//! Nothing here is for the CPU alone, but on the CPU activations are f32 whatever the weights are, because candle's matrix
//! product knows no bf16 there. CUDA comes through candle's feature of that name; we have never run it.

mod attend;
mod causal;
mod config;
pub mod cpu;
mod error;
mod linear;
mod loss;
mod ops;
mod qwen3_vl;
mod weights;

pub use attend::{Attend, AttendByRows};
pub use causal::{Branch, Causal};
pub use config::{ModelConfig, ProcessorConfig, TextConfig, TokenIds, VisionConfig, eos_ids};
pub use error::ModelError;
pub use linear::Quantization;
pub use loss::log_probabilities;
pub use ops::Mode;
pub use qwen3_vl::processor::{Grid, Patches};
pub use qwen3_vl::rope::{Positions, Span, positions};
pub use qwen3_vl::text::{TextInput, VisionRows};
pub use qwen3_vl::vision::VisionFeatures;
pub use qwen3_vl::{LoadOptions, Qwen3Vl};
pub use weights::Draw;
use weights::Weights;
