//! Our own engine: one scheduler that owns a [`crate::model`], and runs ragged batches in which nothing is computed twice.
//!
//! ```text
//! generate() ─► prompt: turns to tokens ─► worker thread: scheduler ─► executor: model, keys and values ─► logits
//!                                              ▲                                                            │
//!                                              └───────── writer: sampling, grammar, drafts, text ◄─────────┘
//! ```
//!
//! - [`scheduler`] (with `kv_cache`, `policy`, `batch`) is pure accounting over token ids and blocks;
//! - `executor` (with [`attention`], [`device_attention`], `vision_cache`) computes a batch;
//! - `writer` (with `sampler`, `grammar`, `draft`, `output`) turns logits into text;
//! - `prompt` turns a conversation into tokens, and lets a continued turn keep the tokens it was written with;
//! - `worker` runs them, a step after another, on a thread of its own;
//! - [`simulation`] runs the same scheduler against a modelled step time.

pub mod attention;
pub mod batch;
pub mod device_attention;
mod draft;
mod executor;
mod grammar;
pub mod kv_cache;
mod output;
pub mod policy;
mod prompt;
mod sampler;
pub mod scheduler;
pub mod simulation;
mod vision_cache;
mod worker;
mod writer;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc as channel};

use async_trait::async_trait;
use candle_core::{DType, Device};
use futures::{StreamExt, stream};
use tokio::sync::{mpsc, oneshot};

use self::attention::BLOCK;
use self::draft::Lookup;
use self::executor::{Executor, Facts, Reading};
use self::grammar::Grammars;
use self::output::Output;
use self::policy::Policy;
use self::prompt::Prompts;
use self::sampler::Sampler;
use self::scheduler::{PictureSpan, Scheduler, SchedulerConfig, SequenceRequest};
use self::worker::{Command, Counts, Job, Lease, Submission, Worker};
use self::writer::Writer;
use super::chat::bytes::TokenBytes;
use super::chat::geometry::{Geometry, Limits};
use super::chat::vocabulary::Vocabulary;
use super::error::first_line;
use super::{
    Batching, Engine, EngineError, EngineInfo, EngineLoad, GenerateRequest, Speaker, Supported, TokenEvent, TokenStream,
};
pub use crate::model::Quantization;
use crate::model::{LoadOptions, Mode, ModelError, Qwen3Vl};

/// Tokens of keys and values where the options say nothing: what memory holds of them, and no more than this.
const MOST_DEFAULT_TOKENS: usize = 1 << 16;
/// Memory for remembered prompts.
const PROMPT_MEMORY_BYTES: usize = 64 << 20;
/// Tokens of a sequence that drafts are looked up in.
const LOOKUP_TOKENS: usize = 1 << 15;

/// How to run the model.
#[derive(Debug, Clone)]
pub struct NativeOptions {
    /// Requests waiting before more are refused.
    pub max_queued: usize,
    /// Sequences that run at the same time.
    pub max_running: usize,
    /// Longest prompt in tokens, frames included. `None`: the model's context.
    pub max_prompt_tokens: Option<u32>,
    /// Memory for keys and values.
    pub kv_cache_bytes: usize,
    /// Memory for encoded pictures.
    pub vision_cache_bytes: usize,
    /// Prompt tokens read in a step, all sequences together. Smaller steps let running texts flow more evenly.
    pub chunk_tokens: usize,
    /// Most tokens guessed ahead of a sequence by looking up what followed the last time; 0: none. Never changes a text.
    pub max_drafts: usize,
    /// Who goes first.
    pub policy: Policy,
    /// How the decoder's weights are kept. `None`: as the checkpoint has them.
    pub quantization: Option<Quantization>,
    /// Threads that compute. `None`: one for each core.
    pub threads: Option<usize>,
}

impl Default for NativeOptions {
    fn default() -> Self {
        Self {
            max_queued: 256,
            max_running: 64,
            max_prompt_tokens: None,
            kv_cache_bytes: if cfg!(feature = "cuda") { 8 << 30 } else { 2 << 30 },
            vision_cache_bytes: 256 << 20,
            chunk_tokens: if cfg!(feature = "cuda") { 2048 } else { 512 },
            max_drafts: 6,
            policy: Policy::Episodes,
            quantization: None,
            threads: None,
        }
    }
}

/// A loaded model and the thread that runs it. The thread ends when this is dropped.
pub struct Native {
    commands: channel::Sender<Command>,
    front: Arc<Front>,
    counts: Arc<Counts>,
    load: LoadOptions,
    detail: String,
}

/// What requests are prepared with.
struct Front {
    prompts: Arc<Prompts>,
    grammars: Grammars,
    tokens: Arc<TokenBytes>,
    ends: Arc<[u32]>,
    facts: Facts,
    max_drafts: usize,
}

impl std::fmt::Debug for Native {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Native").field("detail", &self.detail).field("load", &self.load()).finish_non_exhaustive()
    }
}

impl Native {
    /// Loads a Qwen3-VL checkpoint in Hugging Face layout. Asks no network. The heavy work is done off the async threads.
    ///
    /// # Errors
    /// [`EngineError::Load`], naming the file that is missing or wrong where it is one.
    pub async fn load(checkpoint: &Path, options: NativeOptions) -> Result<Self, EngineError> {
        let folder = checkpoint.to_path_buf();
        tokio::task::spawn_blocking(move || Self::load_blocking(&folder, &options))
            .await
            .map_err(|_| EngineError::Load("the checkpoint could not be read".to_owned()))?
    }

    fn load_blocking(checkpoint: &Path, options: &NativeOptions) -> Result<Self, EngineError> {
        let device = device().map_err(|error| load_error(&error.into()))?;
        let (dtype, quantization) = (stored_dtype(checkpoint, &device), options.quantization);
        let load = LoadOptions { device, dtype, quantization, mode: Mode::Inference };
        let model = Qwen3Vl::load(checkpoint, &load).map_err(|error| load_error(&error))?;
        let vocabulary = Arc::new(Vocabulary::load(&checkpoint.join("tokenizer.json"))?);
        let tokens = Arc::new(vocabulary.token_bytes()?);
        let facts = Facts::of(&model);
        let mut ends = model.eos_ids().to_vec();
        if !ends.contains(&vocabulary.turn_end()) {
            ends.push(vocabulary.turn_end());
        }
        if tokens.len() > facts.vocab_size {
            let problem = format!("tokenizer.json has {} tokens, the model {}", tokens.len(), facts.vocab_size);
            return Err(EngineError::Load(problem));
        }
        let geometry = u32::try_from(model.token_side()).ok().and_then(Geometry::new);
        let geometry = geometry.ok_or_else(|| EngineError::Load("config.json: patches without a size".to_owned()))?;
        let context = u32::try_from(model.config().text.context_tokens).unwrap_or(u32::MAX);
        let limits = Limits::new(context, options.max_prompt_tokens);
        let prompts =
            Arc::new(Prompts::new(Arc::clone(&vocabulary), Arc::clone(&tokens), geometry, limits, PROMPT_MEMORY_BYTES));
        let grammars = Grammars::new(vocabulary, Arc::clone(&tokens), facts.vocab_size, &ends)?;
        let blocks = blocks(options.kv_cache_bytes, facts.block_bytes(model.dtype().size_in_bytes()))?;
        let name = checkpoint.file_name().map_or_else(|| "checkpoint".into(), |name| name.to_string_lossy());
        let place = if model.device().is_cpu() { "CPU" } else { "CUDA" };
        let weights = model.weight_bytes().div_ceil(1_000_000);
        let detail =
            format!("{name} on {place}, {weights} MB of weights, {} tokens of keys and values", blocks * BLOCK);

        let scheduler = Scheduler::new(SchedulerConfig {
            block_tokens: BLOCK,
            blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
            chunk_tokens: options.chunk_tokens,
            running_max: options.max_running,
            queue_max: options.max_queued,
            drafts_max: options.max_drafts,
            policy: options.policy,
            ..SchedulerConfig::default()
        });
        let executor = Executor::new(model, blocks, options.vision_cache_bytes).map_err(|error| load_error(&error))?;
        let (commands, received) = channel::channel();
        let counts = Arc::new(Counts::default());
        let worker = Worker::new(scheduler, executor, Arc::clone(&prompts), received, Arc::clone(&counts));
        let threads = options.threads.unwrap_or(0);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|n| format!("paravt-model-{n}"));
        let pool = pool.build().map_err(|error| EngineError::Load(error.to_string()))?;
        // Inside its pool: a product that is shared out needs no other thread to wake for it.
        std::thread::Builder::new()
            .name("paravt-engine".to_owned())
            .spawn(move || pool.install(|| worker.run()))
            .map_err(|error| EngineError::Load(error.to_string()))?;
        let front = Front { prompts, grammars, tokens, ends: ends.into(), facts, max_drafts: options.max_drafts };
        Ok(Self { commands, front: Arc::new(front), counts, load, detail })
    }

    /// Loads another checkpoint of the same shape beside the running one and lets it take over between two steps. What
    /// runs keeps its text so far and goes on with the new weights; no keys, values or encoded pictures are kept.
    ///
    /// # Errors
    /// [`EngineError::Load`] when it can't be loaded or has another shape: then the old one goes on.
    pub async fn swap(&self, checkpoint: &Path) -> Result<(), EngineError> {
        let (folder, options) = (checkpoint.to_path_buf(), self.load.clone());
        let model = tokio::task::spawn_blocking(move || Qwen3Vl::load(&folder, &options));
        let model = model.await.map_err(|_| EngineError::Load("the checkpoint could not be read".to_owned()))?;
        let model = model.map_err(|error| load_error(&error))?;
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Swap(Box::new(model), reply)).map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }
}

impl Front {
    /// Everything about a request that needs no model: tokens, grammar, sampler.
    fn prepare(
        &self,
        request: GenerateRequest,
        gang: Option<u64>,
        events: worker::Events,
        lease: Lease,
    ) -> Result<Submission, EngineError> {
        let GenerateRequest { turns, prefix, sampling, session, speaker, seat: _, deadline } = request;
        if sampling.max_tokens == 0 {
            return Err(EngineError::Invalid("max_tokens must be at least 1".to_owned()));
        }
        // The sub-agents of an episode share its name, and each has a conversation of its own.
        let remembered = (speaker == Speaker::Main).then_some(&session);
        let written = self.prompts.write(turns, &prefix, sampling.max_tokens, remembered)?;
        let matcher = sampling.constraint.as_ref().map(|constraint| self.grammars.compile(constraint, &prefix));
        let mut lookup = Lookup::new(LOOKUP_TOKENS, self.max_drafts);
        let mut at = 0;
        for picture in &written.pictures {
            lookup.extend(&written.ids[at..picture.start]);
            lookup.gap();
            at = picture.start + picture.tokens();
        }
        lookup.extend(&written.ids[at..]);
        let output = Output::new(Arc::clone(&self.tokens), Arc::clone(&self.ends), &sampling, written.room);
        let writer = Writer::new(Sampler::new(&sampling, &written.ids)?, matcher.transpose()?, lookup, output);
        let span = |picture: &prompt::Picture| PictureSpan {
            first: picture.start,
            tokens: picture.tokens(),
            hash: picture.hash,
        };
        let pictures = written.pictures.iter().map(span).collect();
        let reading = Reading::new(&self.facts, written.ids.len(), written.pictures)
            .map_err(|error| EngineError::Invalid(error.to_string()))?;
        let memory = (speaker == Speaker::Main).then(|| (session.clone(), written.opening));
        let max_new_tokens = written.room as usize;
        let request = SequenceRequest { prompt: written.ids, pictures, max_new_tokens, session, speaker, gang };
        let job = Job { reading, writer, memory, events, deadline, started: false, _lease: lease };
        Ok(Submission { request, job })
    }
}

#[async_trait]
impl Engine for Native {
    async fn generate(&self, mut request: GenerateRequest) -> Result<TokenStream, EngineError> {
        let seat = request.seat.take();
        let gang = seat.as_ref().map(|seat| seat.gang().id());
        let (events, received) = mpsc::unbounded_channel();
        let (front, lease) = (Arc::clone(&self.front), Lease::new(&self.counts));
        let prepared = tokio::task::spawn_blocking(move || front.prepare(request, gang, events, lease));
        let prepared =
            prepared.await.map_err(|_| EngineError::Failed("the request could not be prepared".to_owned()))??;
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Submit(Box::new(prepared), reply)).map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())??;
        drop(seat);
        Ok(events_of(received))
    }

    fn info(&self) -> EngineInfo {
        EngineInfo {
            name: "native",
            detail: self.detail.clone(),
            batching: Batching::Ragged,
            supported: Supported::ALL,
        }
    }

    fn load(&self) -> EngineLoad {
        let (accepted, running) =
            (self.counts.accepted.load(Ordering::Relaxed), self.counts.running.load(Ordering::Relaxed));
        let running = running.min(accepted);
        EngineLoad { running, queued: accepted - running }
    }
}

/// A generation's events up to its end. Events that stop before it are an error: the thread is gone.
fn events_of(received: mpsc::UnboundedReceiver<Result<TokenEvent, EngineError>>) -> TokenStream {
    stream::unfold(Some(received), async |received| {
        let mut received = received?;
        let event = received.recv().await.unwrap_or_else(|| Err(stopped()));
        let over = matches!(event, Ok(TokenEvent::Finished(_)) | Err(_));
        Some((event, (!over).then_some(received)))
    })
    .boxed()
}

fn stopped() -> EngineError {
    EngineError::Unavailable("the model is not running".to_owned())
}

fn load_error(error: &ModelError) -> EngineError {
    EngineError::Load(first_line(error))
}

/// The first GPU where that was built in, else the CPU.
fn device() -> candle_core::Result<Device> {
    #[cfg(feature = "cuda")]
    return Device::new_cuda(0);
    #[cfg(not(feature = "cuda"))]
    Ok(Device::Cpu)
}

/// What weights are kept as: on the CPU as they are stored, on a GPU bf16.
fn stored_dtype(checkpoint: &Path, device: &Device) -> DType {
    if !device.is_cpu() {
        return DType::BF16;
    }
    let config = std::fs::read(checkpoint.join("config.json")).ok();
    let config = config.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok()).unwrap_or_default();
    let named =
        |at: &serde_json::Value| ["dtype", "torch_dtype"].iter().find_map(|n| at[*n].as_str().map(str::to_owned));
    match named(&config).or_else(|| named(&config["text_config"])).as_deref() {
        Some("bfloat16") => DType::BF16,
        Some("float16") => DType::F16,
        _ => DType::F32,
    }
}

/// How many blocks of keys and values there are.
fn blocks(bytes: usize, block_bytes: usize) -> Result<usize, EngineError> {
    let blocks = (bytes / block_bytes.max(1)).min(MOST_DEFAULT_TOKENS / BLOCK);
    if blocks == 0 {
        return Err(EngineError::Load(format!("kv_cache_bytes is less than one block, which takes {block_bytes}")));
    }
    Ok(blocks)
}
