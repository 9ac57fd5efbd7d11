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
//! - `prompt` turns a conversation into tokens, and lets a continued turn keep the tokens it was written with; [`transcript`] writes
//!   one that is over;
//! - `worker` runs them, a step after another, on a thread of its own;
//! - `places` bounds what is taken on before anything is prepared, `mailbox` what callers leave unread;
//! - [`simulation`] runs the same scheduler against a modelled step time.
//!
//! On the CPU a text depends on its request and its seed alone, to the last bit, whatever else runs. On CUDA it may not: the
//! products there sum in an order that depends on the size of the batch, and where two tokens are almost equally likely,
//! that can decide.

pub mod attention;
pub mod batch;
pub mod device_attention;
mod draft;
mod executor;
mod grammar;
pub mod kv_cache;
mod mailbox;
mod output;
mod places;
pub mod policy;
mod prompt;
mod sampler;
pub mod scheduler;
pub mod simulation;
pub mod transcript;
mod vision_cache;
mod worker;
mod writer;

use std::path::Path;
use std::sync::{Arc, mpsc as channel};
use std::thread::JoinHandle;
use std::time::Instant;

use async_trait::async_trait;
use candle_core::{DType, Device};
use futures::{StreamExt, stream};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, oneshot};

use self::attention::BLOCK;
use self::draft::Lookup;
use self::executor::{Executor, Facts, Reading};
use self::grammar::Grammars;
use self::mailbox::{MOST_UNREAD_BYTES, Receiver, Sender, mailbox};
use self::output::Output;
use self::places::{Bounds, Places};
use self::policy::Policy;
use self::prompt::Prompts;
use self::sampler::Sampler;
use self::scheduler::{PictureSpan, Scheduler, SchedulerConfig, SequenceRequest};
use self::worker::{Command, Job, Replacement, Submission, Worker};
use self::writer::Writer;
use super::chat::bytes::TokenBytes;
use super::chat::geometry::{Geometry, Limits};
use super::chat::vocabulary::Vocabulary;
use super::error::first_line;
use super::{
    Batching, Constraint, Engine, EngineError, EngineInfo, EngineLoad, GenerateRequest, Grammar, Speaker, Supported,
    TokenEvent, TokenStream,
};
pub use crate::model::Quantization;
use crate::model::{LoadOptions, Mode, ModelConfig, ModelError, Qwen3Vl};
use crate::types::Turn;

/// Memory for keys and values where the options say nothing, and the most tokens that it is used for then.
const DEFAULT_KV_BYTES: usize = if cfg!(feature = "cuda") { 8 << 30 } else { 2 << 30 };
/// See [`DEFAULT_KV_BYTES`].
const MOST_DEFAULT_TOKENS: usize = 1 << 16;
/// For so many bytes of encoded pictures one byte of remembered prompts, but at least [`LEAST_PROMPT_BYTES`].
const PICTURES_TO_PROMPTS: usize = 4;
/// See [`PICTURES_TO_PROMPTS`].
const LEAST_PROMPT_BYTES: usize = 8 << 20;
/// Tokens of a sequence that drafts are looked up in.
const LOOKUP_TOKENS: usize = 1 << 15;

/// How to run the model.
#[derive(Debug, Clone)]
pub struct NativeOptions {
    /// Requests waiting before more are refused. Together with [`Self::max_running`] it also bounds those that are prepared
    /// for the queue and those that are over and not read to their end yet.
    pub max_queued: usize,
    /// Sequences that run at the same time.
    pub max_running: usize,
    /// Longest prompt in tokens, frames included. `None`: the model's context.
    pub max_prompt_tokens: Option<u32>,
    /// Pixels, in bytes, that all requests may hold together; more are refused. A frame that several have counts for each.
    pub max_pixel_bytes: usize,
    /// Memory for keys and values: also bounds what a prompt and its output may have of tokens. `None`: 2 GiB on the CPU, 8
    /// GiB on a GPU, and never more than 65,536 tokens take.
    pub kv_cache_bytes: Option<usize>,
    /// Memory for encoded pictures, and a quarter as much again, at least 8 MiB, for prompts. Beside it, each running sequence
    /// keeps the picture that it has read in part.
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
            max_pixel_bytes: 4 << 30,
            kv_cache_bytes: None,
            vision_cache_bytes: 256 << 20,
            chunk_tokens: if cfg!(feature = "cuda") { 2048 } else { 512 },
            max_drafts: 6,
            policy: Policy::Episodes,
            quantization: None,
            threads: None,
        }
    }
}

/// A loaded model and the thread that runs it.
///
/// Dropping it ends the thread, and waits until that has let go of the model: for as long as the step under way takes, and
/// for nothing else. What was being generated ends with [`EngineError::Unavailable`].
pub struct Native {
    /// `None` while it is dropped.
    commands: Option<channel::Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    front: Arc<Front>,
    places: Arc<Places>,
    /// So many requests are prepared at the same time.
    preparing: Arc<Semaphore>,
    /// Held by who loads other weights, until one of the models is gone.
    swapping: Arc<Mutex<()>>,
    /// SHA-256 of `tokenizer.json`.
    tokenizer: [u8; 32],
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
        let config = ModelConfig::load(checkpoint).map_err(|error| load_error(&error))?;
        let dtype = kept_dtype(config.stored_dtype.as_deref(), device.is_cpu());
        let load = LoadOptions { device, dtype, quantization: options.quantization, mode: Mode::Inference };
        let model = Qwen3Vl::load(checkpoint, &load).map_err(|error| load_error(&error))?;
        let tokenizer = tokenizer_hash(checkpoint)?;
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
        let block_bytes = facts.block_bytes(model.dtype().size_in_bytes());
        let blocks = blocks(options.kv_cache_bytes, block_bytes, model.device().is_cpu())?;
        // What keys and values have no room for would never be admitted.
        let context = model.config().text.context_tokens.min(blocks.saturating_mul(BLOCK));
        let limits = Limits::new(u32::try_from(context).unwrap_or(u32::MAX), options.max_prompt_tokens);
        let memory = LEAST_PROMPT_BYTES.max(options.vision_cache_bytes / PICTURES_TO_PROMPTS);
        let prompts = Prompts::new(Arc::clone(&vocabulary), Arc::clone(&tokens), geometry, limits, memory);
        let prompts = Arc::new(prompts);
        let grammars = Grammars::new(vocabulary, Arc::clone(&tokens), facts.vocab_size, &ends)?;
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
        let requests = options.max_queued.saturating_add(options.max_running);
        let places = Arc::new(Places::new(Bounds { requests, pixel_bytes: options.max_pixel_bytes }));
        let worker = Worker::new(scheduler, executor, Arc::clone(&prompts), received, Arc::clone(&places));
        let threads = options.threads.unwrap_or(0);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|n| format!("paravt-model-{n}"));
        let pool = pool.build().map_err(|error| EngineError::Load(error.to_string()))?;
        // Inside its pool: a product that is shared out needs no other thread to wake for it.
        let thread = std::thread::Builder::new()
            .name("paravt-engine".to_owned())
            .spawn(move || pool.install(|| worker.run()))
            .map_err(|error| EngineError::Load(error.to_string()))?;
        let front = Front { prompts, grammars, tokens, ends: ends.into(), facts, max_drafts: options.max_drafts };
        Ok(Self {
            commands: Some(commands),
            thread: Some(thread),
            front: Arc::new(front),
            places,
            preparing: Arc::new(Semaphore::new(preparations())),
            swapping: Arc::default(),
            tokenizer,
            load,
            detail,
        })
    }

    /// Loads another checkpoint of the same shape beside the running one and lets it take over between two steps. What
    /// runs keeps its text so far and goes on with the new weights; no keys, values or encoded pictures are kept. One swap
    /// waits for another, so that there are never three models in memory.
    ///
    /// # Errors
    /// [`EngineError::Load`] when it can't be loaded, or differs in more than its weights (shape, context length, tokenizer,
    /// tokens that end a text): then the old one goes on.
    pub async fn swap(&self, checkpoint: &Path) -> Result<(), EngineError> {
        let turn = Arc::clone(&self.swapping).lock_owned().await;
        let (folder, options, tokenizer) = (checkpoint.to_path_buf(), self.load.clone(), self.tokenizer);
        // The turn goes along: loading ends only by itself, even where the caller has gone.
        let loading = tokio::task::spawn_blocking(move || {
            if tokenizer_hash(&folder)? != tokenizer {
                let problem = "the new checkpoint has another tokenizer.json than the one that runs";
                return Err(EngineError::Load(problem.to_owned()));
            }
            let model = Qwen3Vl::load(&folder, &options).map_err(|error| load_error(&error))?;
            Ok(Replacement { model, turn })
        });
        let replacement =
            loading.await.map_err(|_| EngineError::Load("the checkpoint could not be read".to_owned()))??;
        let (reply, answer) = oneshot::channel();
        self.command(Command::Swap(Box::new(replacement), reply))?;
        answer.await.map_err(|_| stopped())?
    }

    fn command(&self, command: Command) -> Result<(), EngineError> {
        self.commands.as_ref().and_then(|commands| commands.send(command).ok()).ok_or_else(stopped)
    }

    /// Leave to prepare a request, as soon as there are not too many others at it.
    async fn may_prepare(&self, deadline: Option<Instant>) -> Result<OwnedSemaphorePermit, EngineError> {
        let turn = Arc::clone(&self.preparing).acquire_owned();
        let turn = match deadline {
            Some(deadline) => {
                tokio::time::timeout_at(deadline.into(), turn).await.map_err(|_| EngineError::DeadlineExceeded)?
            }
            None => turn.await,
        };
        turn.map_err(|_| stopped())
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // It waits for nothing but its step, so this is short on an async thread too. A panic of it was told already.
            let _ = thread.join();
        }
    }
}

impl Front {
    /// Everything about a request that needs no model: tokens, grammar, sampler. Breaks off between the parts of it once
    /// nobody waits for the request any more.
    fn prepare(&self, request: GenerateRequest, gang: Option<u64>, events: Sender) -> Result<Submission, EngineError> {
        let GenerateRequest { turns, prefix, sampling, session, speaker, seat: _, deadline, trace: _ } = request;
        if sampling.max_tokens == 0 {
            return Err(EngineError::Invalid("max_tokens must be at least 1".to_owned()));
        }
        let wanted = || {
            let late = deadline.is_some_and(|deadline| deadline <= Instant::now());
            if late || events.is_closed() { Err(EngineError::DeadlineExceeded) } else { Ok(()) }
        };
        wanted()?;
        // The sub-agents of an episode share its name, and each has a conversation of its own.
        let remembered = (speaker == Speaker::Main).then_some(&session);
        let written = self.prompts.write(turns, &prefix, sampling.max_tokens, remembered, wanted)?;
        wanted()?;
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
        let job = Job { reading, writer, memory, events, deadline, started: false };
        Ok(Submission { request, job })
    }
}

#[async_trait]
impl Engine for Native {
    async fn generate(&self, mut request: GenerateRequest) -> Result<TokenStream, EngineError> {
        let seat = request.seat.take();
        let gang = seat.as_ref().map(|seat| seat.gang().id());
        // First of all: nothing is done for a request that has no place.
        let (events, received) = mailbox(self.places.take(pixel_bytes(&request.turns))?, MOST_UNREAD_BYTES);
        let turn = self.may_prepare(request.deadline).await?;
        let front = Arc::clone(&self.front);
        let prepared = tokio::task::spawn_blocking(move || {
            let prepared = front.prepare(request, gang, events);
            drop(turn);
            prepared
        });
        let prepared =
            prepared.await.map_err(|_| EngineError::Failed("the request could not be prepared".to_owned()))??;
        let (reply, answer) = oneshot::channel();
        self.command(Command::Submit(Box::new(prepared), reply))?;
        answer.await.map_err(|_| stopped())??;
        drop(seat);
        Ok(events_of(received))
    }

    async fn check(&self, grammar: &Grammar) -> Result<(), EngineError> {
        let turn = self.may_prepare(None).await?;
        let (front, grammar) = (Arc::clone(&self.front), grammar.clone());
        let checked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            front.grammars.compile(&Constraint { grammar, after: None, then: None }, "").map(drop)
        });
        checked.await.map_err(|_| EngineError::Failed("the grammar could not be checked".to_owned()))?
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
        self.places.load()
    }
}

/// A generation's events up to its end. Events that stop before it are an error: the thread is gone.
fn events_of(received: Receiver) -> TokenStream {
    stream::unfold(Some(received), async |received| {
        let mut received = received?;
        let event = received.next().await.unwrap_or_else(|| Err(stopped()));
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

/// What weights are kept as: on a GPU bf16, on the CPU as they are stored. There f16 becomes f32, which takes twice the
/// memory: the product with f16 sums in an order that depends on the rest of the batch.
fn kept_dtype(stored: Option<&str>, is_cpu: bool) -> DType {
    if !is_cpu || stored == Some("bfloat16") { DType::BF16 } else { DType::F32 }
}

fn tokenizer_hash(checkpoint: &Path) -> Result<[u8; 32], EngineError> {
    let bytes = std::fs::read(checkpoint.join("tokenizer.json"));
    let bytes = bytes.map_err(|error| EngineError::Load(format!("tokenizer.json can't be read: {error}")))?;
    Ok(Sha256::digest(bytes).into())
}

/// How many requests are prepared at the same time: half of the cores are left to the model.
fn preparations() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, 8))
}

fn pixel_bytes(turns: &[Turn]) -> usize {
    turns.iter().flat_map(Turn::frames).map(|frame| frame.rgb.len()).sum()
}

/// How many blocks of keys and values there are: as many as fit the bytes given, or the default and its own bound.
fn blocks(bytes: Option<usize>, block_bytes: usize, is_cpu: bool) -> Result<usize, EngineError> {
    let most = bytes.map_or(MOST_DEFAULT_TOKENS / BLOCK, |_| u32::MAX as usize);
    let blocks = (bytes.unwrap_or(DEFAULT_KV_BYTES) / block_bytes.max(1)).min(most);
    if blocks == 0 {
        return Err(EngineError::Load(format!("kv_cache_bytes is less than one block, which takes {block_bytes}")));
    }
    // Asked for in vain, memory ends the process: better an error. A GPU says so itself.
    let mut probe = Vec::<u8>::new();
    if is_cpu && probe.try_reserve_exact(blocks.saturating_mul(block_bytes)).is_err() {
        return Err(EngineError::Load("kv_cache_bytes is more than this machine has".to_owned()));
    }
    // Else the compiler may see that nobody uses it, and ask for nothing.
    std::hint::black_box(&probe);
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_where_nothing_is_given_a_number_of_tokens_bounds_keys_and_values() {
        let blocks = |bytes| super::blocks(bytes, 64, true).expect("fits");
        assert_eq!(blocks(None) * BLOCK, MOST_DEFAULT_TOKENS);
        assert_eq!(blocks(Some(64 * 10_000)), 10_000);
        assert_eq!(blocks(Some(64 * 3 + 63)), 3);
        assert_eq!(super::blocks(None, DEFAULT_KV_BYTES / 2, false).expect("fits"), 2);
        for (bytes, problem) in [(63, "less than one block"), (usize::MAX, "more than this machine has")] {
            let error = super::blocks(Some(bytes), if bytes == 63 { 64 } else { 1 << 40 }, true).expect_err("refused");
            assert!(matches!(&error, EngineError::Load(told) if told.contains(problem)), "{error}");
        }
    }

    #[test]
    fn on_the_cpu_weights_are_kept_in_a_type_whose_products_do_not_depend_on_the_batch() {
        let kept = ["float32", "bfloat16", "float16"].map(|stored| kept_dtype(Some(stored), true));
        assert_eq!(kept, [DType::F32, DType::BF16, DType::F32]);
        assert_eq!((kept_dtype(None, true), kept_dtype(Some("float16"), false)), (DType::F32, DType::BF16));
    }
}
