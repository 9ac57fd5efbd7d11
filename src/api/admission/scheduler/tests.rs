//! The scheduler's rules one by one, and what must hold whatever comes.

use proptest::prelude::*;

use super::*;

const PLACE: u64 = QUANTUM;

fn bounds(places: u64, max_queued: usize) -> Bounds {
    Bounds { places, max_queued, max_wait: None }
}

fn caller(name: &str) -> Caller {
    limited(name, KeyLimits::default())
}

fn limited(name: &str, limits: KeyLimits) -> Caller {
    Caller::new(name.into(), limits, None)
}

fn places(places: u64) -> Cost {
    Cost::thousandths(places * PLACE)
}

/// A scheduler at a time, and what it started since it was last looked at.
struct World {
    scheduler: Scheduler,
    now: Instant,
    started: Vec<Ticket>,
}

impl World {
    fn new(bounds: Bounds) -> Self {
        Self { scheduler: Scheduler::new(bounds), now: Instant::now(), started: Vec::new() }
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn ask(&mut self, caller: &Caller, cost: Cost) -> Result<(Ticket, bool), Refusal> {
        self.scheduler.enter(caller, cost, self.now)
    }

    fn runs(&mut self, caller: &Caller, cost: Cost) -> Ticket {
        let (ticket, runs) = self.ask(caller, cost).expect("taken on");
        assert!(runs);
        ticket
    }

    fn waits(&mut self, caller: &Caller, cost: Cost) -> Ticket {
        let (ticket, runs) = self.ask(caller, cost).expect("taken on");
        assert!(!runs);
        ticket
    }

    fn refused(&mut self, caller: &Caller, cost: Cost) -> Refusal {
        let before = (self.scheduler.running(), self.scheduler.queued(), self.scheduler.requests.len());
        let refusal = self.ask(caller, cost).expect_err("refused");
        assert_eq!((self.scheduler.running(), self.scheduler.queued(), self.scheduler.requests.len()), before);
        refusal
    }

    fn leave(&mut self, ticket: Ticket) -> Vec<Ticket> {
        let started = self.scheduler.leave(ticket, self.now);
        self.started.extend(&started);
        started
    }
}

#[test]
fn cheap_requests_share_a_place_and_large_ones_take_several() {
    let mut world = World::new(bounds(2, 10));
    let nobody = caller("");
    for _ in 0..8 {
        world.runs(&nobody, Cost::LEAST);
    }
    world.runs(&nobody, Cost::PLACE);
    world.waits(&nobody, Cost::LEAST);
    let mut world = World::new(bounds(4, 10));
    let large = world.runs(&nobody, places(3));
    world.runs(&nobody, places(1));
    let waiting = world.waits(&nobody, places(2));
    assert_eq!(world.leave(large), [waiting]);
}

#[test]
fn what_is_larger_than_the_server_gets_all_of_it() {
    let mut world = World::new(bounds(2, 10));
    let nobody = caller("");
    let small = world.runs(&nobody, Cost::LEAST);
    let large = world.waits(&nobody, places(50));
    assert_eq!(world.leave(small), [large]);
    let next = world.waits(&nobody, Cost::LEAST);
    assert_eq!(world.leave(large), [next]);
}

#[test]
fn nobody_passes_the_one_whose_turn_it_is() {
    let mut world = World::new(bounds(2, 10));
    let (a, b) = (caller("a"), caller("b"));
    let (first, second) = (world.runs(&b, places(1)), world.runs(&b, places(1)));
    let large = world.waits(&a, places(2));
    let small = world.waits(&b, Cost::LEAST);
    // Its first turn is not worth enough for the large one, so the small one has one in between.
    assert_eq!(world.leave(first), [small]);
    let other = world.waits(&b, Cost::LEAST);
    assert_eq!(world.leave(second), [], "there is room for a small one, but it is not its turn");
    assert_eq!(world.leave(small), [large]);
    assert_eq!(world.leave(large), [other]);
}

#[test]
fn callers_take_turns_by_cost() {
    let mut world = World::new(bounds(1, 100));
    let (a, b) = (caller("a"), caller("b"));
    let mut running = world.runs(&a, places(1));
    let of_a: Vec<Ticket> = (0..3).map(|_| world.waits(&a, places(1))).collect();
    let of_b: Vec<Ticket> = (0..6).map(|_| world.waits(&b, Cost::thousandths(500))).collect();
    let mut order = Vec::new();
    while let Some(next) = world.leave(running).first().copied() {
        order.push(next);
        running = next;
        // Both halves of a place start at once.
        if let Some(half) = world.started.iter().find(|ticket| **ticket != next && !order.contains(ticket)) {
            let half = *half;
            order.push(half);
            world.leave(half);
        }
    }
    let turns = [of_a[0], of_b[0], of_b[1], of_a[1], of_b[2], of_b[3], of_a[2], of_b[4], of_b[5]];
    assert_eq!(order, turns);
}

#[test]
fn a_keys_own_limit_holds_back_its_own_requests_alone() {
    let mut world = World::new(bounds(8, 10));
    let few = limited("few", KeyLimits { max_running: Some(1), max_queued: Some(2), ..KeyLimits::default() });
    let running = world.runs(&few, Cost::PLACE);
    let waiting = [world.waits(&few, Cost::PLACE), world.waits(&few, Cost::PLACE)];
    assert_eq!(world.refused(&few, Cost::PLACE).reason, Reason::KeyQueue);
    assert_eq!(world.scheduler.may_ask(&few).expect_err("known before").reason, Reason::KeyQueue);
    world.scheduler.may_ask(&caller("other")).expect("another may");
    world.runs(&caller("other"), Cost::PLACE);
    assert_eq!(world.leave(running), [waiting[0]]);
    assert_eq!(world.leave(waiting[0]), [waiting[1]]);
    let none = limited("none", KeyLimits { max_running: Some(1), max_queued: Some(0), ..KeyLimits::default() });
    world.runs(&none, Cost::PLACE);
    assert_eq!(world.refused(&none, Cost::PLACE).reason, Reason::KeyQueue);
}

#[test]
fn who_has_nobody_waiting_gets_in_where_others_filled_the_queue() {
    let mut world = World::new(bounds(1, 2));
    let (a, b) = (caller("a"), caller("b"));
    let running = world.runs(&a, Cost::PLACE);
    let first = world.waits(&a, Cost::PLACE);
    world.waits(&a, Cost::PLACE);
    assert_eq!(world.refused(&a, Cost::LEAST).reason, Reason::Queue);
    assert_eq!(world.scheduler.may_ask(&a).expect_err("known before").reason, Reason::Queue);
    world.scheduler.may_ask(&b).expect("it has nobody waiting");
    let of_b = world.waits(&b, Cost::PLACE);
    assert_eq!(world.refused(&b, Cost::PLACE).reason, Reason::Queue);
    assert_eq!(world.leave(running), [first]);
    assert_eq!(world.leave(first), [of_b], "and has its turn before the other's second");
    let mut none = World::new(bounds(1, 0));
    none.runs(&a, Cost::PLACE);
    assert_eq!(none.refused(&b, Cost::PLACE).reason, Reason::Queue);
}

#[test]
fn a_wait_that_is_too_long_is_refused_and_told() {
    let most = Duration::from_secs(30);
    let mut world = World::new(Bounds { max_wait: Some(most), ..bounds(2, 100) });
    let (a, b) = (caller("a"), caller("b"));
    // Nothing is known yet: whoever comes may wait.
    let first = [world.runs(&a, places(1)), world.runs(&a, places(1))];
    let waiting = [world.waits(&a, places(1)), world.waits(&a, places(1))];
    world.pass(20);
    for ticket in first {
        world.leave(ticket);
    }
    assert_eq!(world.started, waiting);
    // A place is held for 20 s, and there are two: one more place to wait for is 10 s.
    for _ in 0..3 {
        world.waits(&a, places(1));
    }
    assert_eq!(world.refused(&a, places(1)), Refusal { reason: Reason::Wait, retry_after_s: 40 });
    assert_eq!(world.scheduler.may_ask(&a).expect_err("31.25 s").reason, Reason::Wait);
    // Another caller takes turns with the first: it waits for one of its places, not for all.
    world.scheduler.may_ask(&b).expect("soon");
    world.waits(&b, places(1));
    // By its own limit a key may wait longer than by the server's.
    let one = limited("one", KeyLimits { max_running: Some(1), ..KeyLimits::default() });
    let mut world = World::new(Bounds { max_wait: Some(most), ..bounds(8, 100) });
    let first = world.runs(&one, places(1));
    world.pass(20);
    world.leave(first);
    world.runs(&one, places(1));
    world.waits(&one, places(1));
    assert_eq!(world.refused(&one, places(1)), Refusal { reason: Reason::Wait, retry_after_s: 40 });
}

#[test]
fn when_to_try_again_is_within_a_minute() {
    for (after, seconds) in [(None, 2), (Some(0.0), 1), (Some(0.2), 1), (Some(7.1), 8), (Some(1e9), 60)] {
        let after = after.map(Duration::from_secs_f64);
        assert_eq!(Refusal::new(Reason::Queue, after).retry_after_s, seconds);
    }
}

#[test]
fn who_gave_up_frees_the_way_for_those_behind() {
    let mut world = World::new(bounds(4, 10));
    let (a, b) = (caller("a"), caller("b"));
    world.runs(&a, places(2));
    let large = world.waits(&a, places(4));
    let small = world.waits(&b, places(1));
    assert_eq!(world.leave(large), [small]);
    assert_eq!(world.leave(large), [], "once is enough");
    assert_eq!(world.scheduler.queued(), Sum::default());
}

/// What a property test does next.
#[derive(Debug, Clone)]
enum Step {
    Enter { caller: usize, thousandths: u64 },
    Leave(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let enter = (0..4_usize, 0..6000_u64).prop_map(|(caller, thousandths)| Step::Enter { caller, thousandths });
    prop::collection::vec(prop_oneof![3 => enter, 2 => any::<prop::sample::Index>().prop_map(Step::Leave)], 1..200)
}

/// What the test knows of a request that is not over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Live {
    ticket: Ticket,
    caller: usize,
    cost: u64,
    runs: bool,
}

fn check(scheduler: &Scheduler, live: &[Live], callers: &[Caller]) -> Result<(), TestCaseError> {
    let sum = |runs: bool| {
        let of = live.iter().filter(|live| live.runs == runs);
        of.fold(Sum::default(), |mut sum, live| {
            sum.add(live.cost);
            sum
        })
    };
    prop_assert_eq!(scheduler.running(), sum(true));
    prop_assert_eq!(scheduler.queued(), sum(false));
    prop_assert!(scheduler.running().cost <= scheduler.capacity);
    prop_assert!(scheduler.queued().count <= scheduler.bounds.max_queued + callers.len());
    prop_assert_eq!(scheduler.requests.len(), live.len());
    for (place, caller) in callers.iter().enumerate() {
        let own = || live.iter().filter(|live| live.caller == place);
        let running = own().filter(|live| live.runs).count();
        prop_assert!(caller.limits().max_running.is_none_or(|most| running <= most));
        prop_assert!(caller.limits().max_queued.is_none_or(|most| own().count() - running <= most));
        // First come, first served: none that waits came before one that runs.
        let last_running = own().filter(|live| live.runs).map(|live| live.ticket).max();
        let first_waiting = own().filter(|live| !live.runs).map(|live| live.ticket).min();
        prop_assert!(last_running.zip(first_waiting).is_none_or(|(runs, waits)| runs < waits));
        // Nothing is kept of who has nothing.
        prop_assert_eq!(scheduler.lanes.contains_key(caller), own().count() > 0);
        prop_assert_eq!(
            scheduler.ring.iter().filter(|other| *other == caller).count(),
            usize::from(own().count() > running)
        );
    }
    let none_runs = scheduler.running().count == 0;
    prop_assert!(!none_runs || scheduler.queued().count == 0, "somebody waits for nobody");
    Ok(())
}

proptest! {
    #[test]
    fn whatever_comes_and_goes_bounds_and_order_hold_and_nothing_is_left(steps in steps(), places in 1..6_u64, max_queued in 0..8_usize) {
        let limits = KeyLimits { max_running: Some(2), max_queued: Some(3), ..KeyLimits::default() };
        let callers = [caller(""), caller("a"), limited("b", limits), limited("c", KeyLimits { max_queued: None, ..limits })];
        let mut scheduler = Scheduler::new(bounds(places, max_queued));
        let now = Instant::now();
        let mut live: Vec<Live> = Vec::new();
        let over = |scheduler: &mut Scheduler, live: &mut Vec<Live>, place: usize| {
            let gone = live.remove(place);
            let started = scheduler.leave(gone.ticket, now);
            for ticket in &started {
                let found = live.iter_mut().find(|live| live.ticket == *ticket && !live.runs);
                found.expect("it waited").runs = true;
            }
        };
        for step in steps {
            match step {
                Step::Enter { caller, thousandths } => {
                    let cost = Cost::thousandths(thousandths);
                    let known = scheduler.may_ask(&callers[caller]);
                    match scheduler.enter(&callers[caller], cost, now) {
                        Ok((ticket, runs)) => {
                            prop_assert!(known.is_ok(), "refused before it was read, and then taken on");
                            live.push(Live { ticket, caller, cost: cost.get().min(scheduler.capacity), runs });
                        }
                        Err(_) => prop_assert!(live.iter().any(|live| live.runs)),
                    }
                }
                Step::Leave(place) if !live.is_empty() => {
                    let place = place.index(live.len());
                    over(&mut scheduler, &mut live, place);
                }
                Step::Leave(_) => {}
            }
            check(&scheduler, &live, &callers)?;
        }
        // Whoever waits gets its turn when those that run finish, one after the other.
        while !live.is_empty() {
            let oldest = live.iter().position(|live| live.runs).expect("somebody runs");
            over(&mut scheduler, &mut live, oldest);
            check(&scheduler, &live, &callers)?;
        }
        prop_assert!(scheduler.lanes.is_empty() && scheduler.ring.is_empty() && scheduler.requests.is_empty());
    }

    #[test]
    fn callers_who_always_want_more_get_the_same_share(
        costs in prop::collection::vec(1..4000_u64, 2..5), places in 1..6_u64, finish in prop::collection::vec(any::<prop::sample::Index>(), 300),
    ) {
        let mut scheduler = Scheduler::new(bounds(places, 1000));
        let now = Instant::now();
        let callers: Vec<Caller> = (0..costs.len()).map(|place| caller(&place.to_string())).collect();
        let costs: Vec<Cost> = costs.into_iter().map(|cost| Cost::thousandths(cost.min(places * PLACE))).collect();
        let filler = scheduler.enter(&caller("filler"), Cost::thousandths(places * PLACE), now).expect("the first").0;
        let mut of = HashMap::new();
        // More than can run: nobody's queue is ever empty.
        for _ in 0..64 {
            for (place, caller) in callers.iter().enumerate() {
                of.insert(scheduler.enter(caller, costs[place], now).expect("room").0, place);
            }
        }
        let mut served = vec![0_u64; callers.len()];
        let mut running = Vec::new();
        let mut leaving = filler;
        for choice in finish {
            for ticket in scheduler.leave(leaving, now) {
                let place = of[&ticket];
                served[place] += costs[place].get();
                running.push(ticket);
                of.insert(scheduler.enter(&callers[place], costs[place], now).expect("room").0, place);
            }
            leaving = running.swap_remove(choice.index(running.len()));
        }
        let (least, most) = (served.iter().min().expect("some"), served.iter().max().expect("some"));
        // Deficit round robin's own bound: a turn, and what one request may be over it.
        let dearest = costs.iter().map(|cost| cost.get()).max().expect("some");
        prop_assert!(most - least <= PLACE + 2 * dearest, "{served:?} of {costs:?}");
    }

    #[test]
    fn a_large_request_comes_after_a_few_turns_however_many_small_ones_come(places in 2..16_u64, cost in 1..1000_u64) {
        let mut scheduler = Scheduler::new(bounds(places, 1000));
        let now = Instant::now();
        let (small, large) = (caller("small"), caller("large"));
        let cost = Cost::thousandths(cost);
        let mut running = VecDeque::new();
        while let (ticket, true) = scheduler.enter(&small, cost, now).expect("room") {
            running.push_back(ticket);
        }
        let wanted = scheduler.enter(&large, Cost::thousandths(places * PLACE), now).expect("room").0;
        let mut passed = 0;
        loop {
            scheduler.enter(&small, cost, now).expect("room");
            let oldest = running.pop_front().expect("somebody runs");
            let started = scheduler.leave(oldest, now);
            if started.contains(&wanted) {
                break;
            }
            passed += started.len() as u64 * cost.get();
            running.extend(started);
            prop_assert!(passed <= (places + 1) * PLACE, "{passed}");
        }
    }
}
