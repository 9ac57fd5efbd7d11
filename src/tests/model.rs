//! Qwen3-VL against golden values of the reference, and against itself in other forms. `fixtures/qwen3_vl/make_golden.py`
//! made the values and says how.

mod golden;
mod gradients;
mod parity;
mod variants;
