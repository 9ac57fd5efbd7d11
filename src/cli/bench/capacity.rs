//! `paravt bench capacity`: from traffic to GPUs, cores, network and cost, on paper and simulated.
//!
//! `paper` computes, `fleet` simulates, `page` writes the tables, those of `load_tests/CAPACITY.md` among them.

mod fleet;
mod page;
mod paper;

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use self::fleet::Simulated;
use self::paper::{BLOCK, Inputs, Need};
use super::tell;
use crate::agent::cost::{Footage, TokenCost, Writing};
use crate::card::ModelCard;
use crate::cli::CliError;
use crate::engine::native::simulation::StepCost;
use crate::media::{frame_size, frame_times};
use crate::types::FrameSize;

/// A question of usual length.
const QUESTION: &str =
    "Who scores the second goal, and which team leads after it? (A) Home (B) Away (C) Nobody (D) Unclear";

/// Arguments of `bench capacity`.
#[derive(Debug, Clone, Args)]
pub(super) struct CapacityArgs {
    /// Episodes a second; several make a row each
    #[arg(long, value_delimiter = ',', default_values_t = [0.1, 1.0, 10.0, 100.0, 1000.0], value_parser = positive)]
    traffic: Vec<f64>,
    /// Model card: prompts, frames, budgets
    #[arg(long, value_name = "NAME|DIR", default_value = "paravt-8b")]
    card: PathBuf,
    /// Length of a video in minutes
    #[arg(long, default_value_t = 90.0, value_parser = positive)]
    minutes: f64,
    /// Its pictures a second
    #[arg(long, default_value_t = 25.0, value_parser = positive)]
    video_fps: f64,
    /// Their size
    #[arg(long, default_value = "1920x1080", value_parser = size)]
    video_size: FrameSize,
    /// Windows of an episode, on average; simulated are 1 to twice as many less 1
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    windows: u16,
    /// Length of a window in seconds
    #[arg(long, default_value_t = 16.0, value_parser = positive)]
    window_s: f64,
    /// Tokens that the main agent writes before its first call; simulated are half to one and a half times as many, as of summaries and answers
    #[arg(long, default_value_t = 100)]
    think_tokens: usize,
    /// Tokens that it writes before each later call, where windows are watched one after another
    #[arg(long, default_value_t = 40)]
    think_again_tokens: usize,
    /// Tokens of a call
    #[arg(long, default_value_t = 45)]
    call_tokens: usize,
    /// Tokens of a summary
    #[arg(long, default_value_t = 115)]
    summary_tokens: usize,
    /// Tokens of the last turn
    #[arg(long, default_value_t = 70)]
    answer_tokens: usize,
    /// What one GPU bears
    #[command(flatten)]
    gpu: GpuArgs,
    /// What front ends take
    #[command(flatten)]
    front: FrontArgs,
    /// Price of a GPU for an hour, in any currency: a placeholder, nobody's offer
    #[arg(long, default_value_t = 3.0, value_parser = positive)]
    gpu_hour: f64,
    /// Price of a core for an hour, likewise
    #[arg(long, default_value_t = 0.05, value_parser = positive)]
    core_hour: f64,
    /// Share of what everything bears that is planned with
    #[arg(long, default_value_t = 0.7, value_parser = positive)]
    utilisation: f64,
    /// Simulate fleets of so many GPUs
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=10_000))]
    nodes: Vec<u32>,
    /// Simulate fleets of 1 and 10 GPUs: short for --nodes 1,10
    #[arg(long, conflicts_with = "nodes")]
    simulate: bool,
    /// Loads to simulate, in parts of what the fleet bears on paper
    #[arg(long, value_delimiter = ',', default_values_t = [0.5, 0.7, 0.8, 0.9, 1.2], value_parser = positive)]
    shares: Vec<f64>,
    /// Episodes to simulate for each GPU [default: 40,000 together, but 40 to 400 for each]
    #[arg(long)]
    episodes_per_gpu: Option<usize>,
    /// The 99th percentile of an episode's seconds that is promised
    #[arg(long, default_value_t = 20.0, value_parser = positive)]
    target_p99_s: f64,
    /// Simulate front ends that all have the replicas in the same order, as one configuration file gives them
    #[arg(long)]
    same_order: bool,
    /// Seed of arrivals and lengths
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print the tables of load_tests/CAPACITY.md that are computed on paper, between their markers
    #[arg(long, conflicts_with_all = ["json", "nodes", "simulate"])]
    page: bool,
}

/// Times and room of one GPU: assumptions, nothing of it was measured by us.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "GPU (assumptions: no GPU was measured by us)")]
struct GpuArgs {
    /// Milliseconds of each step
    #[arg(long, default_value_t = 8.0, value_parser = positive)]
    step_ms: f64,
    /// Microseconds for each prompt token, pictures' encoding included
    #[arg(long, default_value_t = 40.0, value_parser = positive)]
    read_token_us: f64,
    /// Microseconds for each written token
    #[arg(long, default_value_t = 50.0, value_parser = positive)]
    write_token_us: f64,
    /// Nanoseconds for each key that a token attends to
    #[arg(long, default_value_t = 2.0, value_parser = positive)]
    attention_ns: f64,
    /// Prompt tokens a step reads at most
    #[arg(long, default_value_t = 2048)]
    chunk_tokens: usize,
    /// Sequences at the same time
    #[arg(long, default_value_t = 64)]
    running_max: usize,
    /// Gigabytes for keys and values
    #[arg(long, default_value_t = 40.0, value_parser = positive)]
    kv_gb: f64,
    /// Bytes of a token's keys and values: 36 layers, 8 heads of 128, bf16
    #[arg(long, default_value_t = 147_456.0, value_parser = positive)]
    kv_token_bytes: f64,
    /// Episodes at work for each GPU [default: as many as keys and values have room for]
    #[arg(long)]
    places_per_gpu: Option<usize>,
}

/// What frames and the network take.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Front ends")]
struct FrontArgs {
    /// Milliseconds of a core that an overview's frames take
    #[arg(long, default_value_t = 3000.0, value_parser = positive)]
    overview_decode_ms: f64,
    /// Cores that share this work
    #[arg(long, default_value_t = 2)]
    overview_pieces: usize,
    /// Milliseconds of a core that a window's frames take
    #[arg(long, default_value_t = 2450.0, value_parser = positive)]
    window_decode_ms: f64,
    /// Microseconds of a core for each token that is passed on
    #[arg(long, default_value_t = 36.5, value_parser = positive)]
    passing_us: f64,
    /// Megabytes of the video that an overview reads
    #[arg(long, default_value_t = 8.0, value_parser = positive)]
    overview_mb: f64,
    /// Megabytes of the video that a window reads
    #[arg(long, default_value_t = 10.0, value_parser = positive)]
    window_mb: f64,
    /// Kilobytes of a frame as upstreams get it, before base64
    #[arg(long, default_value_t = 30.0, value_parser = positive)]
    jpeg_kb: f64,
    /// Decode cores bought with each GPU
    #[arg(long, default_value_t = 32)]
    cores_per_gpu: usize,
    /// Cores of a front end
    #[arg(long, default_value_t = 64)]
    cores_per_front_end: usize,
    /// Gigabits a second of a front end's network, each way
    #[arg(long, default_value_t = 25.0, value_parser = positive)]
    front_end_gbit: f64,
    /// Gigabits a second of the one store that all videos come from
    #[arg(long, default_value_t = 100.0, value_parser = positive)]
    store_gbit: f64,
}

/// All that was found out.
#[derive(Debug, Serialize)]
struct Report {
    inputs: Inputs,
    episode: paper::Episode,
    replica: paper::Replica,
    needs: Vec<Need>,
    simulated: Vec<Simulated>,
}

/// Runs the command.
pub(super) fn run(args: &CapacityArgs) -> Result<(), CliError> {
    let inputs = args.inputs()?;
    if args.page {
        return tell(&(), false, || page::blocks(&inputs, &args.traffic));
    }
    let nodes: Vec<usize> =
        if args.simulate { vec![1, 10] } else { args.nodes.iter().map(|nodes| *nodes as usize).collect() };
    let simulated = fleet::simulate(&inputs, &nodes, args);
    if args.json {
        let episode = inputs.episode();
        let replica = paper::Replica::of(&inputs, &episode);
        let needs = args.traffic.iter().map(|traffic| inputs.need(*traffic)).collect();
        return tell(&Report { episode, replica, needs, simulated, inputs }, true, String::new);
    }
    tell(&(), false, || {
        if simulated.is_empty() {
            page::tables(&inputs, &args.traffic)
        } else {
            page::simulated(&simulated, &inputs, args.target_p99_s)
        }
    })
}

impl CapacityArgs {
    fn inputs(&self) -> Result<Inputs, CliError> {
        let card = ModelCard::load(&self.card).map_err(|error| CliError::Usage(error.to_string()))?;
        let Self { gpu, front, .. } = self;
        let seconds = self.minutes * 60.0;
        let footage =
            Footage { seconds, fps: self.video_fps, size: self.video_size, window_s: self.window_s.min(seconds) };
        let writing = Writing {
            think: self.think_tokens.max(1),
            think_again: self.think_again_tokens,
            call: self.call_tokens.max(1),
            answer: self.answer_tokens.max(1),
            summary: self.summary_tokens.max(1),
        };
        // No tokenizer of the card is at hand. Qwen's has a token for each digit; for the rest four characters a token are a
        // rule of thumb.
        let estimate = |text: &str| {
            let digits = text.bytes().filter(u8::is_ascii_digit).count();
            digits + (text.len() - digits).div_ceil(4)
        };
        let bad = |_| CliError::Usage("--video-size: no such picture can be looked at".to_owned());
        let tokens = TokenCost::of(&card, &footage, QUESTION, &writing, estimate).map_err(bad)?;
        let tokens = TokenCost { cached: tokens.system / BLOCK * BLOCK, ..tokens };
        let size = frame_size(self.video_size, &card.pixels).map_err(bad)?;
        let window = Some((0.0, footage.window_s));
        let mut inputs = Inputs {
            tokens,
            windows: usize::from(self.windows),
            step: StepCost {
                step_s: gpu.step_ms * 1e-3,
                prefill_token_s: gpu.read_token_us * 1e-6,
                decode_token_s: gpu.write_token_us * 1e-6,
                attention_s: gpu.attention_ns * 1e-9,
            },
            chunk_tokens: gpu.chunk_tokens.max(BLOCK),
            running_max: gpu.running_max.max(1),
            kv_tokens: (gpu.kv_gb * 1e9 / gpu.kv_token_bytes) as usize,
            kv_token_bytes: gpu.kv_token_bytes,
            overview_pieces: front.overview_pieces.max(1),
            overview_piece_s: front.overview_decode_ms * 1e-3 / front.overview_pieces.max(1) as f64,
            window_s: front.window_decode_ms * 1e-3,
            passing_s: front.passing_us * 1e-6,
            overview_bytes: front.overview_mb * 1e6,
            window_bytes: front.window_mb * 1e6,
            overview_frames: frame_times(footage.seconds, footage.fps, None, &card.overview).len(),
            window_frames: frame_times(footage.seconds, footage.fps, window, &card.window).len(),
            jpeg_bytes: front.jpeg_kb * 1e3,
            pixel_bytes: 3.0 * f64::from(size.width) * f64::from(size.height),
            gpu_hour: self.gpu_hour,
            core_hour: self.core_hour,
            utilisation: self.utilisation.min(1.0),
            cores_per_gpu: front.cores_per_gpu.max(1),
            cores_per_front_end: front.cores_per_front_end.max(1),
            places_per_gpu: 0,
            front_end_bits: front.front_end_gbit * 1e9,
            store_bits: front.store_gbit * 1e9,
        };
        inputs.places_per_gpu = gpu.places_per_gpu.unwrap_or(inputs.kv_tokens / inputs.kept_tokens()).max(1);
        Ok(inputs)
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "a number above 0".to_owned())
}

fn size(text: &str) -> Result<FrameSize, String> {
    let sides = text.split_once('x').and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
    sides.map(|(width, height)| FrameSize { width, height }).ok_or_else(|| "WIDTHxHEIGHT in pixels".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        args: CapacityArgs,
    }

    /// As the command line gives them, `paravt bench capacity` left out.
    pub(super) fn parse(line: &str) -> Result<CapacityArgs, clap::Error> {
        Only::try_parse_from(std::iter::once("paravt").chain(line.split_whitespace())).map(|only| only.args)
    }

    pub(super) fn inputs() -> Inputs {
        parse("").expect("defaults").inputs().expect("the bundled card")
    }

    #[test]
    fn an_overview_of_a_match_has_64_frames_of_45_squares() {
        let inputs = inputs();
        assert_eq!((inputs.overview_frames, inputs.window_frames), (64, 16));
        assert_eq!(inputs.pixel_bytes, 288.0 * 160.0 * 3.0);
        assert!((2800..4500).contains(&inputs.tokens.overview), "{:?}", inputs.tokens);
    }

    #[test]
    fn nonsense_is_refused() {
        for line in ["--traffic 0", "--minutes nan", "--video-size 3", "--windows 0", "--page --json", "--nodes 0"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
