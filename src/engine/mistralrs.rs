//! Qwen3-VL embedded through the mistralrs crate (0.8.1). The only file that imports it.
//!
//! Its scheduler, its input handling and its cache have traps; each is stepped around in one place:
//! - its CPU attention for single tokens writes all sequences of a batch over each other, so that all of them go on as the
//!   last (`flash_attn_cpu_single_q` has no batch index in its scratch space): on the CPU a batch is one sequence, and
//!   sequences run at the same time on copies of the model, where it is small enough to be copied;
//! - unequal shapes in one batch take turns, prefill again and lose text: [`queue`] starts only equal shapes together,
//!   [`align`] makes a burst equal, [`driver`] starts nothing before the last group has really left the model;
//! - special tokens in typed text, frames it would scale, prompts it measures too early: [`super::chat`];
//! - configurations of transformers 5, defaults of other families: [`prepare`];
//! - tags are dropped from the text unless a request has tools and may not call them: [`MistralBackend`] always asks so;
//! - it stops at stop texts one token late and has sent them by then, so [`driver`] looks itself; it can't batch by itself
//!   what arrives a moment apart: [`Gate`];
//! - its prefix cache matches whole blocks of tokens, and where a match ends inside a picture, the rest of that picture is
//!   read without its pixels, silently. Two questions about one video begin with the same frames, so no text of ours is
//!   sure to differ before the first picture, and the cache stays off, with `cuda` too. (On the CPU it also goes on at
//!   wrong positions and grows without bound.) The price: every turn reads its whole prompt again, and so does, on a GPU,
//!   a sequence that was preempted;
//! - a prefill can't be cancelled: when the caller leaves during one, the copy of the model computes it to its end, for
//!   minutes on a CPU. So prompts are bounded: [`MistralRsOptions::max_prompt_tokens`].
//!
//! Not offered: seeds (its generator is shared) and `ignore_eos` (an engine-wide switch). White space before the first
//! word of a generation is lost in it. The `nccl` feature stays off: it starts our own program again for each GPU.
//!
//! With the feature `cuda` it loads in bf16 with paged attention sized by the GPU's memory. That path follows mistralrs'
//! sources and has never been run on a GPU.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures::StreamExt;
use image::{DynamicImage, RgbImage};
use mistralrs::{
    CustomLogitsProcessor, Function, Model, ModelDType, MultimodalModelBuilder, NormalRequest, Request, RequestMessage,
    Response, SamplingParams, Tensor, TokenSource, Tool, ToolChoice, ToolType,
};
use tokio::sync::{mpsc, oneshot};

use super::chat::geometry::Limits;
use super::chat::prompt;
use super::error::first_line;
use super::{
    Batching, Engine, EngineError, EngineInfo, EngineLoad, FinishReason, GenerateRequest, Sampling, Supported,
    TokenStream,
};
use crate::types::{Frame, Part, TokenUsage, Turn};

mod align;
mod driver;
mod prepare;
mod queue;

use driver::{Backend, Driver, Finish, Job, Sequence, Step, Work};
use prepare::ModelFacts;
use queue::{Entry, Shape};

/// Sequences in one batch. More than one gives wrong text on the CPU, see the module's header.
const DEFAULT_BATCH: usize = if cfg!(feature = "cuda") { 8 } else { 1 };
/// Longest prompt where the options say nothing else. On a CPU a longer one can take minutes, and can't be stopped.
const DEFAULT_PROMPT_TOKENS: Option<u32> = if cfg!(feature = "cuda") { None } else { Some(8192) };
/// Copies of a model whose weights, at four bytes each, all together take no more than this.
const COPIES_BYTES: u64 = 2 << 30;
/// Most copies: enough for a main turn and the windows beside it.
const MOST_COPIES: u64 = 4;

/// How to run the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MistralRsOptions {
    /// Requests waiting before more are refused.
    pub max_queued: usize,
    /// Sequences in one batch on one copy of the model. Above 1, only sequences of equal shape share a batch.
    pub max_batch: usize,
    /// How often the model is loaded. Each copy runs one batch at a time. `None`: on the CPU as often as a small model
    /// fits in 2 GiB, at most four times; else once.
    pub copies: Option<usize>,
    /// Longest prompt in tokens, frames included; a longer one is [`EngineError::TooLong`]. `None`: the model's context.
    pub max_prompt_tokens: Option<u32>,
}

impl Default for MistralRsOptions {
    fn default() -> Self {
        Self { max_queued: 256, max_batch: DEFAULT_BATCH, copies: None, max_prompt_tokens: DEFAULT_PROMPT_TOKENS }
    }
}

/// A loaded model.
pub struct MistralRs {
    driver: Driver,
    model: Arc<ModelFacts>,
    limits: Limits,
    detail: String,
    batching: Batching,
}

impl std::fmt::Debug for MistralRs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MistralRs").field("detail", &self.detail).field("load", &self.load()).finish_non_exhaustive()
    }
}

impl MistralRs {
    /// Loads a Qwen3-VL checkpoint in Hugging Face layout, written by transformers 4 or 5. Asks no network. The heavy
    /// work is done off the async threads. Must be called inside a tokio runtime, which has to outlive the engine.
    ///
    /// # Errors
    /// [`EngineError::Load`], naming the file that is missing or wrong where it is one.
    pub async fn load(checkpoint: &Path, options: MistralRsOptions) -> Result<Self, EngineError> {
        let name = checkpoint.file_name().map_or_else(|| "checkpoint".into(), |name| name.to_string_lossy());
        let device = if cfg!(feature = "cuda") { "CUDA" } else { "CPU" };
        let folder = checkpoint.to_path_buf();
        let runtime = tokio::runtime::Handle::current();
        let max_batch = options.max_batch.max(1);
        let loaded = tokio::task::spawn_blocking(move || {
            let prepared = prepare::prepare(&folder)?;
            let copies = options.copies.unwrap_or_else(|| copies_that_fit(prepared.weight_bytes)).max(1);
            let models = (0..copies)
                .map(|_| {
                    runtime.block_on(build(prepared.folder.path(), max_batch)).map(|model| MistralBackend { model })
                })
                .collect::<Result<Vec<_>, _>>()?;
            Ok((models, prepared.model))
        });
        // It panics on much that is wrong with a checkpoint.
        let (models, facts) =
            loaded.await.map_err(|_| EngineError::Load("mistralrs gave up on the checkpoint".to_owned()))??;
        let detail = format!("mistralrs 0.8.1 on {device}, {name}, copies: {}", models.len());
        let limits = Limits::new(facts.context_tokens, options.max_prompt_tokens);
        let facts = Arc::new(facts);
        let padding = Arc::clone(&facts);
        let pad = move |job: &mut Job, missing| align::pad(job.prompt_mut(), missing, &padding.vocabulary);
        let driver = Driver::new(models, options.max_queued, max_batch, Box::new(pad));
        let batching = if max_batch > 1 { Batching::EqualShapes } else { Batching::Ragged };
        Ok(Self { driver, model: facts, limits, detail, batching })
    }
}

/// How often a model of so many bytes on disk is loaded. Two bytes there become four in memory.
fn copies_that_fit(weight_bytes: u64) -> usize {
    if cfg!(feature = "cuda") {
        return 1;
    }
    let fit = COPIES_BYTES / weight_bytes.saturating_mul(2).max(1);
    fit.clamp(1, MOST_COPIES) as usize
}

async fn build(folder: &Path, max_batch: usize) -> Result<Model, EngineError> {
    let load = |error: &dyn std::fmt::Display| EngineError::Load(first_line(error));
    let path = |path: &Path| {
        path.to_str()
            .map(str::to_owned)
            .ok_or_else(|| EngineError::Load("the temporary folder is not UTF-8".to_owned()))
    };
    let builder = MultimodalModelBuilder::new(path(folder)?)
        .with_token_source(TokenSource::None)
        .with_jinja_explicit(path(&folder.join(prepare::TEMPLATE))?)
        .with_max_num_seqs(max_batch)
        // Off, whatever its default is: see the module's header.
        .with_prefix_cache_n(None);
    #[cfg(not(feature = "cuda"))]
    let builder = builder.with_force_cpu().with_dtype(ModelDType::F32);
    #[cfg(feature = "cuda")]
    let builder = {
        use mistralrs::{MemoryGpuConfig, PagedAttentionMetaBuilder};
        let pages = PagedAttentionMetaBuilder::default()
            .with_gpu_memory(MemoryGpuConfig::Utilization(0.85))
            .build()
            .map_err(|error| load(&error))?;
        builder.with_dtype(ModelDType::BF16).with_paged_attn(pages)
    };
    builder.build().await.map_err(|error| load(&error))
}

/// A request, checked and measured.
struct Measured {
    work: Work,
    prompt_tokens: usize,
}

fn check_sampling(sampling: &Sampling) -> Result<(), EngineError> {
    if sampling.seed.is_some() {
        return Err(EngineError::Unsupported("seed"));
    }
    if sampling.ignore_eos {
        return Err(EngineError::Unsupported("ignore_eos"));
    }
    if sampling.logprobs.is_some() {
        return Err(EngineError::Unsupported("logprobs"));
    }
    if sampling.constraint.is_some() {
        return Err(EngineError::Unsupported("response_format"));
    }
    if sampling.max_tokens == 0 {
        return Err(EngineError::Invalid("max_tokens must be at least 1".to_owned()));
    }
    Ok(())
}

/// Renders, cleans and measures. Tokenizing takes milliseconds: not for an async thread.
fn measure(
    model: &ModelFacts,
    limits: Limits,
    turns: Vec<Turn>,
    prefix: &str,
    mut sampling: Sampling,
    may_be_padded: bool,
) -> Result<Measured, EngineError> {
    limits.check_prompt(model.vocabulary.fewest_tokens(turns.iter().map(text_bytes).sum()))?;
    let rendered = prompt::render(turns, prefix, &model.vocabulary)?;
    let single = |picture: Vec<Frame>| <[Frame; 1]>::try_from(picture).ok().map(|[frame]| frame);
    let frames = rendered.pictures.into_iter().map(single).collect::<Option<Vec<_>>>();
    let frames = frames.ok_or(EngineError::Unsupported("pairs of frames"))?;
    let mut prompt_tokens = model.vocabulary.count_prompt(&rendered.prompt.text(), rendered.structure)?;
    for frame in &frames {
        // One of its tokens is counted already.
        prompt_tokens += model.geometry.tokens(frame)? - 1;
    }
    let padding = if may_be_padded { align::MAX_PADDING } else { 0 };
    sampling.max_tokens = limits.output_room(prompt_tokens, padding, sampling.max_tokens)?;
    Ok(Measured { work: Work { prompt: rendered.prompt, frames, sampling }, prompt_tokens })
}

fn text_bytes(turn: &Turn) -> usize {
    turn.parts.iter().map(|part| if let Part::Text(text) = part { text.len() } else { 0 }).sum()
}

#[async_trait]
impl Engine for MistralRs {
    async fn generate(&self, request: GenerateRequest) -> Result<TokenStream, EngineError> {
        // The seat is given back when it is dropped: after the job has its place, or with any error.
        let GenerateRequest { turns, prefix, sampling, seat, session: _, speaker: _, deadline: _, trace: _ } = request;
        check_sampling(&sampling)?;
        let (model, limits) = (Arc::clone(&self.model), self.limits);
        let padded = seat.is_some() && self.batching == Batching::EqualShapes;
        let measured = tokio::task::spawn_blocking(move || measure(&model, limits, turns, &prefix, sampling, padded));
        let Measured { work, prompt_tokens } =
            measured.await.map_err(|_| EngineError::Failed("the request could not be prepared".to_owned()))??;
        let shape = Shape { tokens: prompt_tokens, frames: work.frames.iter().map(|frame| frame.size).collect() };
        let (job, events) = Job::new(work, prompt_tokens);
        let stream = self.driver.stream(events);
        let gang = seat.as_ref().map(|seat| seat.gang().clone());
        self.driver.submit(Entry { shape, gang, patience: None, alone: false, item: job })?;
        drop(seat);
        Ok(stream.boxed())
    }

    fn info(&self) -> EngineInfo {
        EngineInfo {
            name: "mistralrs",
            detail: self.detail.clone(),
            batching: self.batching,
            supported: Supported {
                seed: false,
                min_p: true,
                top_k: true,
                repetition_penalty: true,
                ignore_eos: false,
                logprobs: false,
                constraint: false,
            },
        }
    }

    fn load(&self) -> EngineLoad {
        self.driver.load()
    }
}

struct MistralBackend {
    model: Model,
}

#[async_trait]
impl Backend for MistralBackend {
    async fn start(&self, group: Vec<Work>) -> Result<Vec<Sequence>, EngineError> {
        // Starts its thread again, should it have died.
        let sender = self.model.inner().get_sender(None).map_err(|error| EngineError::Failed(first_line(&error)))?;
        let mut requests = Vec::with_capacity(group.len());
        let mut sequences = Vec::with_capacity(group.len());
        for work in group {
            let (request, sequence) = request(work)?;
            requests.push(request);
            sequences.push(sequence);
        }
        let gate = if requests.len() > 1 { Some(Gate::close(&sender).await?) } else { None };
        for request in requests {
            sender.send(Request::Normal(Box::new(request))).await.map_err(|_| stopped())?;
        }
        if let Some(gate) = gate {
            gate.open().await;
        }
        Ok(sequences)
    }
}

fn stopped() -> EngineError {
    EngineError::Failed("the model is not running".to_owned())
}

/// Holds the model's thread while a group is handed over, so that all of it is there at its next step.
///
/// A request it must refuse, whose channel for the refusal is already full: it waits there until we read.
struct Gate(mpsc::Receiver<Response>);

impl Gate {
    async fn close(sender: &mpsc::Sender<Request>) -> Result<Self, EngineError> {
        let (refusals, receiver) = mpsc::channel(1);
        let _ = refusals.try_send(Response::ValidationError("closed".into()));
        // A vision model refuses this kind of request before it looks at it.
        let message = RequestMessage::Embedding { prompt: String::new() };
        let request = NormalRequest::new_simple(message, SamplingParams::neutral(), refusals, 0, None, None);
        sender.send(Request::Normal(Box::new(request))).await.map_err(|_| stopped())?;
        Ok(Self(receiver))
    }

    async fn open(mut self) {
        while self.0.recv().await.is_some() {}
    }
}

/// Lives as long as the sequence does inside mistralrs, and sees every token it samples. The logits pass unchanged.
struct Lease {
    sampled: Arc<AtomicU64>,
    /// Dropped with the lease, which resolves the other end.
    _gone: oneshot::Sender<()>,
}

impl CustomLogitsProcessor for Lease {
    fn apply(&self, logits: &Tensor, _context: &[u32]) -> mistralrs::Result<Tensor> {
        self.sampled.fetch_add(1, Ordering::Relaxed);
        Ok(logits.clone())
    }
}

fn request(work: Work) -> Result<(NormalRequest, Sequence), EngineError> {
    let Work { prompt, frames, sampling } = work;
    let images = frames.iter().map(picture).collect::<Result<Vec<_>, _>>()?;
    // One user message that already holds the whole prompt: the prepared template writes its content and nothing else.
    let message = [("role", "user".to_owned()), ("content", prompt.text())]
        .map(|(field, value)| (field.to_owned(), mistralrs::MessageContent::Left(value)))
        .into_iter()
        .collect();
    let messages = RequestMessage::MultimodalChat {
        images,
        audios: Vec::new(),
        videos: Vec::new(),
        messages: vec![message],
        enable_thinking: None,
        reasoning_effort: None,
    };
    // As large as the output can be: its thread blocks, with everybody in the batch, on a full one.
    let (responses, mut received) = mpsc::channel(sampling.max_tokens as usize + 8);
    let (gone, left) = oneshot::channel();
    let sampled = Arc::new(AtomicU64::new(0));
    let lease = Lease { sampled: Arc::clone(&sampled), _gone: gone };
    let mut request = NormalRequest::new_simple(
        messages,
        parameters(&sampling),
        responses,
        0,
        Some(vec![tool()]),
        Some(ToolChoice::None),
    );
    // Always: a dropped receiver of a whole answer kills the thread and every request in flight.
    request.is_streaming = true;
    request.logits_processors = Some(vec![Arc::new(lease)]);
    let steps = futures::stream::poll_fn(move |context| received.poll_recv(context)).map(step).boxed();
    Ok((request, Sequence { steps, gone: left, sampled }))
}

fn picture(frame: &Frame) -> Result<DynamicImage, EngineError> {
    RgbImage::from_raw(frame.size.width, frame.size.height, frame.rgb.to_vec())
        .map(DynamicImage::ImageRgb8)
        .ok_or_else(|| EngineError::Invalid("a frame's pixels do not fill its size".to_owned()))
}

/// Never called and never shown to the model. With a tool present and no tool allowed, mistralrs leaves `<think>`,
/// `<tool_call>` and the like in the text; without one it drops them silently.
fn tool() -> Tool {
    let function = Function { description: None, name: "none".to_owned(), parameters: None };
    Tool { tp: ToolType::Function, function }
}

fn parameters(sampling: &Sampling) -> SamplingParams {
    // It looks at `min_p` only when `top_p` is below 1.
    let top_p = match (sampling.top_p, sampling.min_p) {
        (None | Some(1.0..), Some(_)) => Some(0.999_999),
        (top_p, _) => top_p,
    };
    SamplingParams {
        temperature: sampling.temperature,
        top_k: sampling.top_k.map(|candidates| candidates as usize),
        top_p,
        min_p: sampling.min_p,
        frequency_penalty: sampling.frequency_penalty.map(|penalty| penalty as f32),
        presence_penalty: sampling.presence_penalty.map(|penalty| penalty as f32),
        repetition_penalty: sampling.repetition_penalty.map(|penalty| penalty as f32),
        max_len: Some(sampling.max_tokens as usize),
        ..SamplingParams::neutral()
    }
}

fn step(response: Response) -> Result<Step, EngineError> {
    match response {
        Response::Chunk(chunk) => {
            let usage = chunk.usage.map(|usage| TokenUsage {
                prompt_tokens: usage.prompt_tokens as u64,
                cached_tokens: 0,
                completion_tokens: usage.completion_tokens as u64,
            });
            let Some(choice) = chunk.choices.into_iter().next() else { return Ok(Step::default()) };
            let finish = match choice.finish_reason.as_deref() {
                None => None,
                Some("length") => Some(FinishReason::Length),
                Some("canceled") => return Err(EngineError::Failed("the model cancelled the sequence".to_owned())),
                Some(_) => Some(FinishReason::Stop),
            };
            let text = choice.delta.content.unwrap_or_default();
            Ok(Step { text, finish: finish.map(|reason| Finish { reason, usage }) })
        }
        Response::ValidationError(error) => Err(EngineError::Invalid(first_line(&error))),
        Response::InternalError(error) => Err(EngineError::Failed(first_line(&error))),
        Response::ModelError(error, _) => Err(EngineError::Failed(first_line(&error))),
        _ => Err(EngineError::Failed("the model gave an answer of another kind".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temperature_zero_stays_zero_and_min_p_is_always_looked_at() {
        let sampling = Sampling { temperature: Some(0.0), min_p: Some(0.1), max_tokens: 7, ..Sampling::default() };
        let parameters = parameters(&sampling);
        assert_eq!((parameters.temperature, parameters.max_len), (Some(0.0), Some(7)));
        assert!(parameters.top_p.is_some_and(|mass| mass < 1.0));
    }

    #[test]
    fn what_it_can_not_honour_is_refused() {
        let sampling = |seed, ignore_eos, max_tokens| Sampling { seed, ignore_eos, max_tokens, ..Sampling::default() };
        assert!(matches!(check_sampling(&sampling(Some(1), false, 5)), Err(EngineError::Unsupported("seed"))));
        assert!(matches!(check_sampling(&sampling(None, true, 5)), Err(EngineError::Unsupported("ignore_eos"))));
        assert!(matches!(check_sampling(&sampling(None, false, 0)), Err(EngineError::Invalid(_))));
        assert!(check_sampling(&sampling(None, false, 5)).is_ok());
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_small_model_is_copied_and_a_large_one_is_not() {
        assert_eq!(copies_that_fit(7_000_000), 4);
        assert_eq!(copies_that_fit(16_000_000_000), 1);
        assert_eq!(copies_that_fit(0), 4);
    }
}
