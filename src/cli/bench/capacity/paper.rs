//! Capacity on paper: from tokens, service times and bytes to what an episode takes and a fleet bears. Pure.
//!
//! What a replica bears follows from three facts about steps. A step has a fixed part `o` and the work of its rows; with `w`
//! seconds of work an episode and `x` episodes a second, a busy replica's step lasts `o / (1 - x w)`. A step gives a token to
//! each running sequence, of which there are at most so many; it reads at most a chunk; and no more episodes are at work than
//! have places.

use serde::Serialize;

use crate::agent::cost::{TokenCost, TokenRequest, Way};
use crate::engine::Speaker;
use crate::engine::native::simulation::StepCost;

/// Tokens of a block: what is found of a prefix are whole ones.
pub(super) const BLOCK: usize = 16;

/// Everything that the paper and the simulation are given. Bytes and seconds are an episode's, or a piece's of it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Inputs {
    pub(super) tokens: TokenCost,
    /// Windows of an episode, on average.
    pub(super) windows: usize,
    pub(super) step: StepCost,
    /// Prompt tokens a step reads at most.
    pub(super) chunk_tokens: usize,
    /// Sequences a replica runs at the same time.
    pub(super) running_max: usize,
    /// Keys and values a replica has room for, in tokens.
    pub(super) kv_tokens: usize,
    pub(super) kv_token_bytes: f64,
    /// Pieces that decoding an overview is cut into.
    pub(super) overview_pieces: usize,
    /// Seconds of a core for each.
    pub(super) overview_piece_s: f64,
    /// Seconds of a core for a window.
    pub(super) window_s: f64,
    /// Seconds of a front end's core for each token that it passes on.
    pub(super) passing_s: f64,
    pub(super) overview_bytes: f64,
    pub(super) window_bytes: f64,
    pub(super) overview_frames: usize,
    pub(super) window_frames: usize,
    /// Of a frame as upstreams get it, before base64.
    pub(super) jpeg_bytes: f64,
    /// Of a decoded frame.
    pub(super) pixel_bytes: f64,
    pub(super) gpu_hour: f64,
    pub(super) core_hour: f64,
    /// Share of what everything bears that is planned with.
    pub(super) utilisation: f64,
    pub(super) cores_per_gpu: usize,
    pub(super) cores_per_front_end: usize,
    /// Episodes at work for each replica.
    pub(super) places_per_gpu: usize,
    /// Bits a second into a front end, and as many out of it.
    pub(super) front_end_bits: f64,
    /// Bits a second out of the one place where all videos are.
    pub(super) store_bits: f64,
}

/// What an episode takes of a way of watching.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Episode {
    /// Seconds of rows on a replica, the steps' fixed part not counted.
    pub(super) work_s: f64,
    /// Tokens that are written one a step.
    pub(super) step_tokens: usize,
    /// Tokens computed of prompts.
    pub(super) read_new: usize,
    /// Seconds in which its next token waits for frames.
    pub(super) media_s: f64,
    /// Steps one after another.
    pub(super) steps: usize,
    /// Work in them.
    pub(super) own_s: f64,
    /// The same up to the first token.
    pub(super) first_s: f64,
}

impl Episode {
    pub(super) fn of(inputs: &Inputs, way: Way, windows: usize) -> Self {
        let (step, chunk) = (&inputs.step, inputs.chunk_tokens.max(1));
        let reading = |request: &TokenRequest| step.reading_s(request.found, request.prompt - request.found);
        let work = |request: &TokenRequest| {
            reading(request) + step.writing_s(request.prompt, request.written.saturating_sub(1))
        };
        let read_steps = |request: &TokenRequest| (request.prompt - request.found).div_ceil(chunk);
        let steps = |request: &TokenRequest| read_steps(request) + request.written.saturating_sub(1);
        let requests = inputs.tokens.requests(way, windows);
        // Windows at the same time: one of them is waited for.
        let mut subs = 0;
        let critical: Vec<&TokenRequest> = requests
            .iter()
            .filter(|request| {
                subs += usize::from(request.speaker == Speaker::Sub);
                request.speaker == Speaker::Main || way != Way::Parallel || subs == 1
            })
            .collect();
        let one_by_one = match way {
            Way::Parallel => windows.min(1),
            Way::Sequential | Way::Inline => windows,
        };
        let overview_s = inputs.overview_piece_s * inputs.overview_pieces.div_ceil(inputs.cores_at_hand()) as f64;
        let first = requests.first();
        Self {
            work_s: requests.iter().map(work).sum(),
            step_tokens: requests.iter().map(|request| request.written.saturating_sub(1)).sum(),
            read_new: requests.iter().map(|request| request.prompt - request.found).sum(),
            media_s: overview_s + one_by_one as f64 * inputs.window_s,
            steps: critical.iter().map(|request| steps(request)).sum(),
            own_s: critical.iter().map(|request| work(request)).sum(),
            first_s: overview_s + first.map_or(0.0, |first| reading(first) + read_steps(first) as f64 * step.step_s),
        }
    }

    /// From arrival to the last token, on a replica that gets so many episodes a second: steps share the replica with the work
    /// of others. Infinite where that is more than there is.
    pub(super) fn latency_s(&self, inputs: &Inputs, episodes_per_s: f64) -> f64 {
        let free = 1.0 - episodes_per_s * self.work_s;
        if free <= 0.0 {
            return f64::INFINITY;
        }
        self.media_s + (self.steps as f64 * inputs.step.step_s + self.own_s) / free
    }
}

/// What bounds a replica, episodes a second.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Replica {
    /// By the sequences that run at the same time.
    pub(super) by_running: f64,
    /// By the tokens that a step reads.
    pub(super) by_chunk: f64,
    /// By the episodes that are at work at the same time.
    pub(super) by_places: f64,
}

impl Replica {
    pub(super) fn of(inputs: &Inputs, episode: &Episode) -> Self {
        let step_s = inputs.step.step_s;
        let each = |tokens: usize, most: usize| 1.0 / (episode.work_s + step_s * tokens as f64 / most.max(1) as f64);
        // Little's law: what is at work is arrivals a second by how long each takes, which grows with them.
        let at_work = |rate: f64| rate * episode.latency_s(inputs, rate);
        let (mut low, mut high) = (0.0, 1.0 / episode.work_s);
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if at_work(middle) < inputs.places_per_gpu as f64 { low = middle } else { high = middle }
        }
        Self {
            by_running: each(episode.step_tokens, inputs.running_max),
            by_chunk: each(episode.read_new, inputs.chunk_tokens),
            by_places: low,
        }
    }

    pub(super) fn most(&self) -> f64 {
        self.by_running.min(self.by_chunk).min(self.by_places)
    }
}

/// What a fleet bears of each of its parts, episodes a second.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Bounds {
    pub(super) gpus: f64,
    pub(super) cores: f64,
    pub(super) network_in: f64,
    pub(super) network_out: f64,
    pub(super) store: f64,
}

impl Bounds {
    /// With their names, the least first.
    pub(super) fn sorted(&self) -> Vec<(&'static str, f64)> {
        let mut all = vec![
            ("GPUs", self.gpus),
            ("decode cores", self.cores),
            ("network into front ends", self.network_in),
            ("network to upstreams", self.network_out),
            ("store of videos", self.store),
        ];
        all.sort_by(|a, b| a.1.total_cmp(&b.1));
        all
    }

    /// Of what is simulated.
    pub(super) fn simulated(&self) -> f64 {
        self.gpus.min(self.cores)
    }
}

impl Inputs {
    /// Cores that one episode can have for itself.
    fn cores_at_hand(&self) -> usize {
        self.cores_per_gpu.min(self.cores_per_front_end).max(1)
    }

    pub(super) fn episode(&self) -> Episode {
        Episode::of(self, Way::Parallel, self.windows)
    }

    /// Seconds of a core that decoding an episode's frames takes.
    pub(super) fn decode_s(&self) -> f64 {
        self.overview_pieces as f64 * self.overview_piece_s + self.windows as f64 * self.window_s
    }

    /// The same with what a front end does to pass tokens on.
    pub(super) fn core_s(&self) -> f64 {
        self.decode_s() + self.tokens.tokens(Way::Parallel, self.windows).written as f64 * self.passing_s
    }

    /// Bytes of the video that an episode reads.
    pub(super) fn bytes_in(&self) -> f64 {
        self.overview_bytes + self.windows as f64 * self.window_bytes
    }

    /// Bytes of pictures that an episode sends to upstreams: base64, the overview again in each main turn.
    pub(super) fn bytes_out(&self) -> f64 {
        let turns = if self.windows == 0 { 1 } else { 2 };
        let frames = turns * self.overview_frames + self.windows * self.window_frames;
        frames as f64 * self.jpeg_bytes * 4.0 / 3.0
    }

    /// Tokens of keys and values that an episode holds or wants to find again, all windows counted.
    pub(super) fn kept_tokens(&self) -> usize {
        let requests = self.tokens.requests(Way::Parallel, self.windows);
        let total = |request: &TokenRequest| request.prompt + request.written;
        let main = requests.iter().filter(|request| request.speaker == Speaker::Main).map(total).max().unwrap_or(0);
        main + requests.iter().filter(|request| request.speaker == Speaker::Sub).map(total).sum::<usize>()
    }

    pub(super) fn front_ends(&self, gpus: usize) -> usize {
        (gpus * self.cores_per_gpu).div_ceil(self.cores_per_front_end.max(1)).max(1)
    }

    /// Cores of each front end.
    pub(super) fn cores(&self, gpus: usize) -> usize {
        (gpus * self.cores_per_gpu).div_ceil(self.front_ends(gpus)).max(1)
    }

    pub(super) fn bounds(&self, gpus: usize) -> Bounds {
        let front_ends = self.front_ends(gpus) as f64;
        let bits = front_ends * self.front_end_bits / 8.0;
        Bounds {
            gpus: gpus as f64 * Replica::of(self, &self.episode()).most(),
            cores: front_ends * self.cores(gpus) as f64 / self.core_s(),
            network_in: bits / self.bytes_in(),
            network_out: bits / self.bytes_out(),
            store: self.store_bits / 8.0 / self.bytes_in(),
        }
    }

    /// What traffic needs.
    pub(super) fn need(&self, episodes_per_s: f64) -> Need {
        let each = Replica::of(self, &self.episode()).most() * self.utilisation;
        // What a whole GPU more makes no difference to.
        let gpus = (episodes_per_s / each).ceil().max(1.0);
        let cores = (episodes_per_s * self.core_s() / self.utilisation).ceil().max(1.0);
        let hour = gpus * self.gpu_hour + cores * self.core_hour;
        let latency_s = self.episode().latency_s(self, episodes_per_s / gpus);
        Need {
            episodes_per_s,
            gpus,
            cores,
            front_ends: (cores / self.cores_per_front_end as f64).ceil(),
            places: (episodes_per_s * latency_s).ceil(),
            latency_s,
            gbit_in: episodes_per_s * self.bytes_in() * 8e-9,
            gbit_out: episodes_per_s * self.bytes_out() * 8e-9,
            kv_bytes: episodes_per_s * latency_s * self.kept_tokens() as f64 * self.kv_token_bytes,
            hour,
            thousand: hour / 3600.0 / episodes_per_s * 1000.0,
        }
    }
}

/// What traffic needs.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Need {
    pub(super) episodes_per_s: f64,
    pub(super) gpus: f64,
    pub(super) cores: f64,
    pub(super) front_ends: f64,
    /// Episodes at work, on average.
    pub(super) places: f64,
    /// Of an episode, on average.
    pub(super) latency_s: f64,
    pub(super) gbit_in: f64,
    pub(super) gbit_out: f64,
    /// Keys and values of what is at work, all replicas together.
    pub(super) kv_bytes: f64,
    /// Price of an hour.
    pub(super) hour: f64,
    /// Price of a thousand episodes.
    pub(super) thousand: f64,
}

#[cfg(test)]
mod tests {
    use super::super::tests::inputs;
    use super::*;

    #[test]
    fn more_traffic_makes_a_step_longer_and_places_bound_what_a_replica_bears() {
        let inputs = inputs();
        let episode = inputs.episode();
        let alone = episode.latency_s(&inputs, 0.0);
        let half = episode.latency_s(&inputs, 0.5 / episode.work_s);
        // At half of the work a step takes twice as long; frames don't.
        assert!(((half - episode.media_s) / (alone - episode.media_s) - 2.0).abs() < 1e-9);
        assert!(episode.latency_s(&inputs, 1.0 / episode.work_s).is_infinite());
        let replica = Replica::of(&inputs, &episode);
        assert!(
            (replica.by_places * episode.latency_s(&inputs, replica.by_places) / inputs.places_per_gpu as f64 - 1.0)
                .abs()
                < 1e-6
        );
        let many = Inputs { places_per_gpu: 10_000, ..inputs };
        assert!(Replica::of(&many, &episode).by_places > replica.by_places);
        assert!(Replica::of(&many, &episode).most() <= 1.0 / episode.work_s);
    }

    #[test]
    fn twice_the_traffic_costs_twice_as_much_an_hour_and_the_same_an_episode() {
        let inputs = inputs();
        let (one, two) = (inputs.need(1000.0), inputs.need(2000.0));
        assert!((two.hour / one.hour - 2.0).abs() < 0.01 && (two.thousand / one.thousand - 1.0).abs() < 0.01);
        assert!((two.gbit_in / one.gbit_in - 2.0).abs() < 1e-9);
    }

    #[test]
    fn windows_one_after_another_take_longer_and_inline_ones_read_less_twice() {
        let inputs = inputs();
        let of = |way| Episode::of(&inputs, way, 5);
        let (parallel, sequential) = (of(Way::Parallel), of(Way::Sequential));
        assert!(sequential.latency_s(&inputs, 0.0) > 2.0 * parallel.latency_s(&inputs, 0.0));
        assert!(sequential.work_s > parallel.work_s && sequential.work_s < 1.2 * parallel.work_s);
    }
}
