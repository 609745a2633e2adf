use super::*;

const BOTH: MayChange = MayChange {
    workers: true,
    prefetch: true,
    processes: false,
};

/// A load whose time for a batch, and share of waiting, is a function of the settings.
struct Load<F> {
    search: Search,
    cost: F,
    /// Relative noise of a window.
    noise: f64,
    state: u64,
    seconds: f64,
    batches: u64,
    tried: Vec<String>,
}

/// Seconds for a batch, and the share in which the consumer waits.
type Cost = (f64, f64);

impl<F: Fn(Setting, f64) -> Cost> Load<F> {
    fn new(workers: usize, noise: f64, cost: F) -> Self {
        let begin = Setting {
            workers,
            prefetch: 4,
            processes: 0,
        };
        Load {
            search: Search::new(begin, BOTH),
            cost,
            noise,
            state: 7,
            seconds: 0.0,
            batches: 0,
            tried: Vec::new(),
        }
    }

    /// Returns a number near a normal distribution of deviation 1.
    fn normal(&mut self) -> f64 {
        let mut sum = -6.0;
        for _ in 0..12 {
            self.state = crate::mix_bits(self.state.wrapping_add(1));
            sum += (self.state >> 11) as f64 / (1u64 << 53) as f64;
        }
        sum
    }

    /// Runs windows until so many seconds have gone by.
    fn run(&mut self, until: f64) -> Setting {
        while self.seconds < until {
            let now = self.search.now();
            let (cost, waited) = (self.cost)(now, self.seconds);
            let seconds = cost * (self.noise * self.normal()).exp();
            let batches = (0.25 / seconds).ceil().max(16.0);
            let figures = Figures {
                seconds: seconds * batches,
                batches: batches as u64,
                waited,
                full: if waited > 0.0 { 0.05 } else { 0.9 },
                depth: now.prefetch,
                may_grow: true,
            };
            self.seconds += figures.seconds;
            self.batches += figures.batches;
            let tried = self.search.window(&figures);
            self.tried.extend(tried.map(|tried| tried.to_string()));
        }
        self.search.best
    }
}

/// Work that workers share, and a consumer's step.
fn shared(work: f64, step: f64) -> impl Fn(Setting, f64) -> Cost {
    move |at, _| {
        let time = (work / at.workers as f64).max(step);
        (time, (time - step) / time)
    }
}

/// Returns the least time of any settings.
fn best(workers: usize, cost: impl Fn(Setting, f64) -> Cost) -> f64 {
    let all = (1..=workers).flat_map(|workers| (1..=16).map(move |prefetch| (workers, prefetch)));
    all.map(|(workers, prefetch)| {
        cost(
            Setting {
                workers,
                prefetch,
                processes: 0,
            },
            0.0,
        )
        .0
    })
    .fold(f64::INFINITY, f64::min)
}

/// A trainer that needs two of eight cores, and slows down if workers take them.
fn trainer(at: Setting, _: f64) -> Cost {
    let step = 0.010 * (1.0 + 0.1 * at.workers.saturating_sub(6) as f64);
    let time = (0.020 / at.workers as f64).max(step);
    (time, (time - step) / time)
}

/// Work that more than four workers do no faster, since they wait for the memory.
fn crowded(at: Setting, _: f64) -> Cost {
    let crowd = at.workers.saturating_sub(4) as f64;
    let time = 0.04 / at.workers.min(4) as f64 * (1.0 + 0.05 * crowd);
    (time, (time - 0.001) / time)
}

/// Batches that come in bursts, for which a longer queue is needed.
fn bursts(at: Setting, _: f64) -> Cost {
    let lost = 0.3 / (at.prefetch as f64).powi(2);
    (
        0.010 * (1.0 + lost),
        if lost < 0.008 { 0.0 } else { lost.max(0.03) },
    )
}

#[test]
fn ends_within_three_per_cent_of_the_best_settings_at_little_cost() {
    fn check(name: &str, cost: impl Fn(Setting, f64) -> Cost + Copy) {
        for noise in [0.0, 0.01] {
            let mut load = Load::new(8, noise, cost);
            let at = load.run(120.0);
            let least = best(8, cost);
            let (time, _) = cost(at, 0.0);
            assert!(time <= 1.03 * least, "{name} at {at:?}: {:#?}", load.tried);
            // Time lost in the two minutes: by trials, and before the best point was found.
            let lost = load.seconds - load.batches as f64 * least;
            assert!(lost <= 0.05 * load.seconds, "{name}: {lost} s");
        }
    }
    check("workers that hold each other up", crowded);
    check("decode sets the pace", |at, t| shared(0.08, 0.001)(at, t));
    check("the step sets the pace", |at, t| shared(0.02, 0.01)(at, t));
    check("a trainer on the same cores", trainer);
    check("bursts", bursts);
}

#[test]
fn workers_that_hold_each_other_up_become_fewer() {
    let mut load = Load::new(8, 0.005, crowded);
    let at = load.run(120.0);
    assert_eq!(at.workers, 4, "{:#?}", load.tried);
    let first = &load.tried.iter().find(|tried| tried.starts_with("workers"));
    let words = "workers 8 → 6, as workers may hold each other up: ";
    assert!(first.unwrap().starts_with(words), "{first:?}");
    // With a load that needs each worker, the trial ends soon.
    let mut load = Load::new(8, 0.005, shared(0.08, 0.001));
    assert_eq!(load.run(600.0).workers, 8, "{:#?}", load.tried);
}

#[test]
fn a_consumer_that_waits_a_little_gets_its_batches_with_less() {
    let mut load = Load::new(8, 0.002, |at, seconds| {
        let (time, waited) = shared(0.02, 0.01)(at, seconds);
        (time, waited.max(0.015))
    });
    let at = load.run(120.0);
    assert!(at.workers <= 3, "{at:?}: {:#?}", load.tried);
}

#[test]
fn a_consumer_that_does_not_wait_gets_its_batches_with_less() {
    let mut load = Load::new(8, 0.002, shared(0.02, 0.01));
    let at = load.run(200.0);
    assert!((2..=3).contains(&at.workers), "{at:?}: {:#?}", load.tried);
    assert_eq!(at.prefetch, 1, "{:#?}", load.tried);
    let first = &load.tried[0];
    assert!(
        first.starts_with("workers 8 → 6, as the consumer does not wait: "),
        "{first}"
    );
    let last = &load.tried.iter().rfind(|tried| tried.contains(", kept"));
    assert!(
        last.unwrap().ends_with("kept: equally fast with less"),
        "{last:?}"
    );
}

#[test]
fn a_load_that_changes_in_the_middle_is_followed() {
    let cost = |at: Setting, seconds: f64| {
        let work = if seconds < 300.0 { 0.02 } else { 0.16 };
        shared(work, 0.01)(at, seconds)
    };
    let mut load = Load::new(8, 0.01, cost);
    assert!(load.run(300.0).workers < 8);
    assert_eq!(load.run(320.0).workers, 8, "{:#?}", load.tried);
}

#[test]
fn noise_makes_no_move() {
    // Neither workers nor the queue are faster or slower, but that cannot be seen.
    let (mut longer, mut later) = (0, 0);
    for seed in 0..20 {
        let mut load = Load::new(4, 0.1, |_, _| (0.01, 0.1));
        load.state = seed << 32;
        let at = load.run(600.0);
        assert!(!load.tried.is_empty());
        assert_eq!(at.workers, 4, "{seed}: {:#?}", load.tried);
        longer += u32::from(at.prefetch > 4);
        let seldom = load.tried.len();
        load.run(3000.0);
        later += load.tried.len() - seldom;
    }
    // One trial in a hundred is mistaken, and a longer queue does no harm.
    assert!(longer <= 4, "{longer} of 20");
    assert!(later < 20 * 18, "{later} trials in 20 times 40 minutes");
}

#[test]
fn what_costs_much_ends_after_two_windows() {
    let mut load = Load::new(2, 0.0, shared(0.0198, 0.0099));
    load.run(10.0);
    assert_eq!(load.search.best.workers, 2);
    assert!(load.tried[0].contains("workers 2 → 1") && load.tried[0].ends_with("not kept"));
}

#[test]
fn settings_that_were_given_stay() {
    let begin = Setting {
        workers: 4,
        prefetch: 3,
        processes: 5,
    };
    let figures = Figures {
        seconds: 1.0,
        batches: 100,
        waited: 0.0,
        full: 0.9,
        depth: 3,
        may_grow: true,
    };
    for place in 0..4 {
        let changes = [0, 1, 2].map(|one| one == place);
        let [workers, prefetch, processes] = changes;
        let may_change = MayChange {
            workers,
            prefetch,
            processes,
        };
        let mut search = Search::new(begin, may_change);
        (0..100).for_each(|_| _ = search.window(&figures));
        let now = search.best;
        let changed = [now.workers != 4, now.prefetch != 3, now.processes != 5];
        assert_eq!(changed, changes);
    }
}

#[test]
fn the_queue_does_not_grow_without_room_in_memory() {
    let begin = Setting {
        workers: 2,
        prefetch: 4,
        processes: 0,
    };
    for may_grow in [false, true] {
        let mut search = Search::new(begin, BOTH);
        for _ in 0..40 {
            let ahead = search.now().prefetch;
            search.window(&Figures {
                seconds: 1.0 / ahead as f64,
                batches: 100,
                waited: 0.2,
                full: 0.2,
                depth: ahead,
                may_grow,
            });
        }
        assert_eq!(search.best.prefetch, if may_grow { 16 } else { 4 });
    }
}

#[test]
fn processes_are_given_back_and_taken_again() {
    let begin = Setting {
        workers: 2,
        prefetch: 4,
        processes: 8,
    };
    let may_change = MayChange {
        processes: true,
        ..MayChange::default()
    };
    let mut load = Load::new(2, 0.01, |now: Setting, seconds| {
        // The consumer takes 20 ms, and later 5 ms.
        let made = 0.04 / now.processes as f64;
        let step = if seconds < 600.0 { 0.02 } else { 0.005 };
        let waits = if made > step { 0.3 } else { 0.0 };
        (made.max(step), waits)
    });
    load.search = Search::new(begin, may_change);
    assert_eq!(load.run(600.0).processes, 2);
    assert_eq!(load.run(1200.0).processes, 8);
    let said = &load.tried[0];
    assert!(
        said.starts_with("processes 8 → 6, as the consumer does not wait"),
        "{said}"
    );
}
