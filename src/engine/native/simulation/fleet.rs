//! Many replicas behind several front ends, in modelled time: the real scheduler in each replica, the real dispatcher in each
//! front end, and decoding as a queue.
//!
//! Episodes come to the front ends in turns. A front end has so many of them at work at a time, others wait, more are refused.
//! Frames are decoded by its cores, first come, first served, each piece of work by one core. What is decoded is sent to the
//! replica that the front end's dispatcher names; it knows of its own requests alone. Nothing else takes time: no network, no
//! work of a front end beside decoding, and no replica fails. Same arguments, same report.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::Serialize;

use super::dispatcher::Dispatcher;
use super::episode::{self, Call, Episode};
use super::node::Node;
use super::{Spread, StepCost, Workload, duration};
use crate::engine::native::batch::{Batch, SequenceId};
use crate::engine::native::scheduler::{SchedulerConfig, SubmitError};
use crate::engine::remote::replicas::{MOST_TRIES, Place};

/// What there is.
#[derive(Debug, Clone, Serialize)]
pub struct Fleet {
    /// Replicas of the model.
    pub replicas: usize,
    /// Each replica's scheduler.
    pub scheduler: SchedulerConfig,
    /// Each replica's times.
    pub cost: StepCost,
    /// Front ends.
    pub front_ends: usize,
    /// Cores of each front end that decode.
    pub cores: usize,
    /// Episodes that each front end has at work at a time.
    pub places: usize,
    /// Episodes that wait in each front end; more are refused.
    pub waiting: usize,
    /// Whether all front ends have the replicas in the same order. Else each begins its list elsewhere.
    pub same_order: bool,
    /// Pieces that decoding an overview is cut into, each for one core.
    pub overview_pieces: usize,
    /// Seconds of a core for each of them.
    pub overview_piece_s: f64,
    /// Seconds of a core for a window.
    pub window_s: f64,
}

/// What came of it. Times are of episodes that arrived when a share of them had, shares those of the time from then to the
/// last arrival: the fleet begins empty.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FleetReport {
    /// From an episode's arrival to its last token, seconds.
    pub episode_s: Spread,
    /// From an episode's arrival to its first token, seconds.
    pub ttft_s: Spread,
    /// Episodes that ended a second.
    pub episodes_per_s: f64,
    /// Episodes of the whole run that were served to the end.
    pub finished: usize,
    /// Episodes of the whole run that were refused, by a front end or by the replicas.
    pub refused: usize,
    /// Share of the time in which a replica computed: mean of all.
    pub replica_busy: f64,
    /// The same of the busiest.
    pub replica_busy_max: f64,
    /// The same of the idlest.
    pub replica_busy_min: f64,
    /// Share of the time in which a decoding core worked, mean of all.
    pub core_busy: f64,
    /// Of all prompts' tokens, those that were found and not computed.
    pub found: f64,
    /// Steps that all replicas computed.
    pub steps: u64,
    /// Seconds that shares are of.
    pub measured_s: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrived(usize),
    /// A core of a front end is through with a piece of what a call looks at.
    Decoded(usize, usize, Call),
    /// A replica's step is over.
    Stepped(usize),
}

#[derive(Debug)]
struct FrontEnd {
    dispatcher: Dispatcher,
    idle_cores: usize,
    jobs: VecDeque<(usize, Call)>,
    at_work: usize,
    waiting: VecDeque<usize>,
}

#[derive(Debug)]
struct Replica {
    node: Node,
    /// The step under way.
    batch: Option<Batch>,
    /// Where the places of its sequences are to be given back.
    places: HashMap<SequenceId, Place>,
    busy: Duration,
}

#[derive(Debug)]
struct Run<'a> {
    fleet: &'a Fleet,
    now: Duration,
    /// Of what happens at the same time, what was planned first is first.
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    planned: u64,
    episodes: Vec<Episode>,
    /// Of each episode, pieces of its overview that are not decoded.
    undecoded: Vec<usize>,
    front_ends: Vec<FrontEnd>,
    replicas: Vec<Replica>,
    /// From when to when shares are measured.
    measured: (Duration, Duration),
    cores_busy: Duration,
    ended: usize,
    prompt_tokens: u64,
    steps: u64,
}

/// Serves a workload, whose `crop_s` plays no part. Of its episodes the first `warm_up` (a share) are served and not reported.
/// The seed decides arrivals and lengths.
#[must_use]
pub fn simulate_fleet(fleet: &Fleet, workload: &Workload, warm_up: f64, seed: u64) -> FleetReport {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let episodes = episode::draw(workload, &mut random);
    let first = (warm_up.clamp(0.0, 1.0) * episodes.len() as f64) as usize;
    let from = episodes.get(first).map_or(Duration::ZERO, |episode| episode.arrival);
    let until = episodes.last().map_or(Duration::ZERO, |episode| episode.arrival);
    let (replicas, front_ends) = (fleet.replicas.max(1), fleet.front_ends.max(1));
    let front_end = |number: usize| FrontEnd {
        dispatcher: Dispatcher::new(replicas, if fleet.same_order { 0 } else { number * replicas / front_ends }),
        idle_cores: fleet.cores.max(1),
        jobs: VecDeque::new(),
        at_work: 0,
        waiting: VecDeque::new(),
    };
    let replica = |_| Replica {
        node: Node::new(fleet.scheduler.clone()),
        batch: None,
        places: HashMap::new(),
        busy: Duration::ZERO,
    };
    let mut run = Run {
        fleet,
        now: Duration::ZERO,
        events: BinaryHeap::new(),
        planned: 0,
        undecoded: vec![fleet.overview_pieces.max(1); episodes.len()],
        front_ends: (0..front_ends).map(front_end).collect(),
        replicas: (0..replicas).map(replica).collect(),
        measured: (from, until),
        cores_busy: Duration::ZERO,
        ended: 0,
        prompt_tokens: 0,
        steps: 0,
        episodes,
    };
    for number in 0..run.episodes.len() {
        run.plan(run.episodes[number].arrival, Event::Arrived(number));
    }
    while let Some(Reverse((at, _, event))) = run.events.pop() {
        run.now = at;
        match event {
            Event::Arrived(number) => run.arrive(number),
            Event::Decoded(front_end, number, call) => run.decoded(front_end, number, call),
            Event::Stepped(replica) => run.stepped(replica),
        }
    }
    run.report(first)
}

impl Run<'_> {
    fn plan(&mut self, at: Duration, event: Event) {
        self.planned += 1;
        self.events.push(Reverse((at, self.planned, event)));
    }

    fn front_end_of(&self, number: usize) -> usize {
        number % self.front_ends.len()
    }

    /// How much of what takes so long from now on is in the measured time.
    fn measured(&self, took: Duration) -> Duration {
        let (from, until) = self.measured;
        (self.now + took).min(until).saturating_sub(self.now.max(from))
    }

    fn arrive(&mut self, number: usize) {
        let front_end = self.front_end_of(number);
        let FrontEnd { at_work, waiting, .. } = &mut self.front_ends[front_end];
        if *at_work < self.fleet.places.max(1) {
            *at_work += 1;
            self.begin(number);
        } else if waiting.len() < self.fleet.waiting {
            waiting.push_back(number);
        } else {
            self.episodes[number].refused = true;
        }
    }

    fn begin(&mut self, number: usize) {
        for _ in 0..self.undecoded[number] {
            self.decode(number, Call::First);
        }
    }

    /// An episode is over, served or refused: another may begin.
    fn leave(&mut self, number: usize) {
        let front_end = self.front_end_of(number);
        match self.front_ends[front_end].waiting.pop_front() {
            Some(next) => self.begin(next),
            None => self.front_ends[front_end].at_work -= 1,
        }
    }

    fn decode(&mut self, number: usize, call: Call) {
        let front_end = self.front_end_of(number);
        self.front_ends[front_end].jobs.push_back((number, call));
        self.next_job(front_end);
    }

    fn next_job(&mut self, front_end: usize) {
        let FrontEnd { idle_cores, jobs, .. } = &mut self.front_ends[front_end];
        if *idle_cores > 0
            && let Some((number, call)) = jobs.pop_front()
        {
            *idle_cores -= 1;
            let overview = call == Call::First;
            let took = duration(if overview { self.fleet.overview_piece_s } else { self.fleet.window_s });
            self.cores_busy += self.measured(took);
            self.plan(self.now + took, Event::Decoded(front_end, number, call));
        }
    }

    fn decoded(&mut self, front_end: usize, number: usize, call: Call) {
        self.front_ends[front_end].idle_cores += 1;
        self.next_job(front_end);
        if call == Call::First {
            self.undecoded[number] -= 1;
            if self.undecoded[number] > 0 {
                return;
            }
        }
        if let Some(replica) = self.submit(number, call) {
            self.step(replica);
        }
    }

    /// Sends a request to the replica that the dispatcher names, and to another when that one is full. Says where it is.
    fn submit(&mut self, number: usize, call: Call) -> Option<usize> {
        if self.episodes[number].refused {
            return None;
        }
        let front_end = self.front_end_of(number);
        let mut tried = Vec::new();
        while tried.len() < MOST_TRIES {
            let request = self.episodes[number].request(number, call);
            let tokens = request.prompt.len() as u64;
            let dispatcher = &mut self.front_ends[front_end].dispatcher;
            let whose = (request.speaker, &request.session, number);
            let Some(place) = dispatcher.take(whose, &tried, self.now) else { break };
            let index = place.index;
            let replica = &mut self.replicas[index];
            match replica.node.submit(request, number, call, self.now) {
                Ok(id) => {
                    replica.places.insert(id, place);
                    self.prompt_tokens += tokens;
                    self.episodes[number].submitted(call, self.now);
                    return Some(index);
                }
                Err(error) => {
                    dispatcher.release(place);
                    tried.push(index);
                    if !matches!(error, SubmitError::Overloaded { .. }) {
                        break;
                    }
                }
            }
        }
        // What it asked for before is served all the same, and nobody waits for it.
        self.episodes[number].refused = true;
        self.leave(number);
        None
    }

    /// Begins a replica's next step, where none is under way.
    fn step(&mut self, index: usize) {
        let replica = &mut self.replicas[index];
        if replica.batch.is_some() {
            return;
        }
        let Some(batch) = replica.node.step() else { return };
        let took = duration(self.fleet.cost.seconds(&batch));
        replica.batch = Some(batch);
        let measured = self.measured(took);
        self.replicas[index].busy += measured;
        self.steps += 1;
        self.plan(self.now + took, Event::Stepped(index));
    }

    fn stepped(&mut self, index: usize) {
        let replica = &mut self.replicas[index];
        let Some(batch) = replica.batch.take() else { return };
        let mut all = Vec::new();
        replica.node.take(&batch, &mut self.episodes, self.now, |told| all.push(told));
        for told in all {
            let number = told.number;
            let front_end = self.front_end_of(number);
            if told.first
                && let Some(place) = self.replicas[index].places.get_mut(&told.id)
            {
                self.front_ends[front_end].dispatcher.spoke(place, self.now);
            }
            if told.ended
                && let Some(place) = self.replicas[index].places.remove(&told.id)
            {
                self.front_ends[front_end].dispatcher.release(place);
            }
            for call in told.followers {
                match call {
                    Call::Window(_) if self.episodes[number].refused => {}
                    Call::Window(_) => self.decode(number, call),
                    Call::First | Call::Second => {
                        if let Some(other) = self.submit(number, call).filter(|other| *other != index) {
                            self.step(other);
                        }
                    }
                }
            }
            let episode = &self.episodes[number];
            if told.ended && episode.is_over() && !episode.refused {
                let (from, until) = self.measured;
                self.ended += usize::from((from..until).contains(&self.now));
                self.leave(number);
            }
        }
        self.step(index);
    }

    fn report(self, first: usize) -> FleetReport {
        let served = |episode: &&Episode| episode.is_over() && !episode.refused;
        let times = |pick: fn(&Episode) -> Option<Duration>| {
            let served = self.episodes[first.min(self.episodes.len())..].iter().filter(served);
            Spread::of(served.filter_map(pick).map(|time| time.as_secs_f64()).collect())
        };
        let measured_s = self.measured.1.saturating_sub(self.measured.0).as_secs_f64();
        let share = |busy: Duration, of: usize| {
            if measured_s > 0.0 { busy.as_secs_f64() / measured_s / of as f64 } else { 0.0 }
        };
        let busy: Vec<f64> = self.replicas.iter().map(|replica| share(replica.busy, 1)).collect();
        let found: u64 = self.replicas.iter().map(|replica| replica.node.stats().hit_tokens).sum();
        FleetReport {
            episode_s: times(Episode::latency),
            ttft_s: times(Episode::first_token),
            episodes_per_s: if measured_s > 0.0 { self.ended as f64 / measured_s } else { 0.0 },
            finished: self.episodes.iter().filter(served).count(),
            refused: self.episodes.iter().filter(|episode| episode.refused).count(),
            replica_busy: busy.iter().sum::<f64>() / busy.len() as f64,
            replica_busy_max: busy.iter().copied().fold(0.0, f64::max),
            replica_busy_min: busy.iter().copied().fold(f64::INFINITY, f64::min),
            core_busy: share(self.cores_busy, self.front_ends.len() * self.fleet.cores.max(1)),
            found: found as f64 / self.prompt_tokens.max(1) as f64,
            steps: self.steps,
            measured_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(replicas: usize, front_ends: usize) -> Fleet {
        Fleet {
            replicas,
            scheduler: SchedulerConfig { blocks: 16_000, chunk_tokens: 2048, ..SchedulerConfig::default() },
            cost: StepCost::default(),
            front_ends,
            cores: 64,
            places: 1000,
            waiting: 1000,
            same_order: false,
            overview_pieces: 2,
            overview_piece_s: 0.5,
            window_s: 0.3,
        }
    }

    fn workload(episodes: usize, episodes_per_s: f64) -> Workload {
        Workload { episodes, episodes_per_s, ..Workload::default() }
    }

    #[test]
    fn the_same_seed_gives_the_same_report_and_another_one_another() {
        let run = |seed| simulate_fleet(&fleet(3, 2), &workload(60, 2.0), 0.2, seed);
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn everything_is_given_back_and_everybody_is_served() {
        let report = simulate_fleet(&fleet(3, 2), &workload(60, 2.0), 0.0, 1);
        assert_eq!((report.finished, report.refused), (60, 0));
        // The first turn of each is read on where it was read, and its system prompt is found.
        assert!(report.found > 0.3, "{report:?}");
        assert!(report.replica_busy_min > 0.0 && report.replica_busy_max < 1.0, "{report:?}");
    }

    #[test]
    fn a_fleet_of_one_without_decoding_is_the_simulation_of_one_engine() {
        let workload = Workload { crop_s: 0.0, ..workload(60, 0.7) };
        let one = Fleet { overview_piece_s: 0.0, window_s: 0.0, ..fleet(1, 1) };
        let (fleet, alone) =
            (simulate_fleet(&one, &workload, 0.0, 1), super::super::simulate(&one.scheduler, &workload, &one.cost, 1));
        // Not to the last bit: what arrives in the middle of a step is ranked in another order.
        assert!((fleet.episode_s.mean / alone.episode_s.mean - 1.0).abs() < 0.01, "{fleet:?} {alone:?}");
        assert!((fleet.ttft_s.mean / alone.ttft_s.mean - 1.0).abs() < 0.01, "{fleet:?} {alone:?}");
    }

    #[test]
    fn too_few_cores_are_busy_all_the_time_and_bound_what_is_served() {
        // 2.35 seconds of a core an episode on average; two cores, three episodes a second. Without a bound on what is at
        // work, overviews of new episodes would keep windows of old ones waiting, and few would end.
        let report = simulate_fleet(&Fleet { cores: 2, places: 8, ..fleet(4, 1) }, &workload(200, 3.0), 0.2, 1);
        assert!(report.core_busy > 0.98, "{report:?}");
        assert!((report.episodes_per_s / (2.0 / 2.35) - 1.0).abs() < 0.1, "{report:?}");
    }

    #[test]
    fn a_full_front_end_lets_wait_and_refuses() {
        let small = Fleet { places: 2, waiting: 3, ..fleet(2, 1) };
        let report = simulate_fleet(&small, &workload(50, 5.0), 0.0, 1);
        assert!(report.refused > 20 && report.finished >= 5, "{report:?}");
        assert_eq!(report.refused + report.finished, 50);
    }

    #[test]
    fn full_replicas_refuse_after_others_were_tried() {
        let scheduler = SchedulerConfig { queue_max: 2, running_max: 2, blocks: 16_000, ..SchedulerConfig::default() };
        let report = simulate_fleet(&Fleet { scheduler, ..fleet(2, 1) }, &workload(60, 5.0), 0.0, 1);
        assert!(report.refused > 0 && report.finished > 0, "{report:?}");
        assert_eq!(report.refused + report.finished, 60);
    }

    #[test]
    fn nothing_to_do_takes_no_time() {
        let report = simulate_fleet(&fleet(2, 1), &workload(0, 1.0), 0.2, 1);
        assert_eq!((report.finished, report.steps, report.measured_s, report.replica_busy), (0, 0, 0.0, 0.0));
    }
}
