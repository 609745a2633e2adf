use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::*;

const MS: u64 = 1_000_000;

fn ended(took: f64, complete: usize, now: u64, wanted: bool) -> Ended {
    Ended {
        took,
        complete,
        now,
        wanted,
        ..Ended::default()
    }
}

/// A link: a round trip, and a bottleneck that serves one morsel after another.
struct Link {
    rtt: u64,
    /// Nanoseconds that the bottleneck needs for a morsel.
    each: u64,
    free: u64,
    /// Number of morsels served.
    served: usize,
}

impl Link {
    fn ask(&mut self, now: u64) -> u64 {
        let begin = self.free.max(now + self.rtt / 2);
        self.free = begin + self.each;
        self.free + self.rtt / 2
    }
}

/// Runs until `end`. Returns the rate of the last quarter, in morsels a second, and the most that
/// were in flight.
fn run(window: &mut Concurrency, link: &mut Link, from: u64, end: u64) -> (f64, usize) {
    let mut flying = BinaryHeap::new();
    let (mut now, mut late, mut most) = (from, 0, 0);
    while now < end {
        while flying.len() < window.size() {
            flying.push(std::cmp::Reverse((link.ask(now), now)));
        }
        let next = flying.peek().expect("something is in flight").0.0;
        let deadline = window
            .deadline()
            .map(|after| from + after.as_nanos() as u64);
        if let Some(deadline) = deadline.filter(|&deadline| next > deadline) {
            now = deadline;
            window.open(0, Duration::ZERO, None);
            continue;
        }
        most = most.max(flying.len());
        let std::cmp::Reverse((done, asked)) = flying.pop().expect("something is in flight");
        now = done;
        link.served += 1;
        window.completed(ended((done - asked) as f64, link.served, now, true));
        late += u64::from(now >= end - (end - from) / 4);
    }
    (late as f64 / ((end - from) as f64 / 4e9), most)
}

#[test]
fn a_capped_link_is_filled_and_not_flooded() {
    for rtt in [0, 20, 150] {
        // 100 MB/s in morsels of 115 kB: 870 morsels/s.
        let mut link = Link {
            rtt: rtt * MS,
            each: 1_150_000,
            free: 0,
            served: 0,
        };
        let mut window = Concurrency::following(64, 2048, None);
        let (_, most) = run(&mut window, &mut link, 0, 1_000 * MS);
        let (rate, later) = run(&mut window, &mut link, 1_000 * MS, 60_000 * MS);
        assert!(rate > 0.97 * 869.5, "{rtt} ms: {rate}");
        let fills = (rtt as f64 / 1.15).max(64.0);
        // Before the first answers nothing is known of the link.
        assert!((most as f64) < 3.5 * fills, "{rtt} ms: {most} in flight");
        assert!((later as f64) < 2.0 * fills, "{rtt} ms: {later} later");
    }
}

#[test]
fn epoch_after_epoch_the_link_is_not_flooded() {
    let mut link = Link {
        rtt: 150 * MS,
        each: 1_150_000,
        free: 0,
        served: 0,
    };
    let (mut learned, mut best) = (64, None);
    let mut sizes = Vec::new();
    for epoch in 0..8 {
        let mut window = Concurrency::following(learned, 2048, best);
        run(
            &mut window,
            &mut link,
            epoch * 20_000 * MS,
            (epoch + 1) * 20_000 * MS,
        );
        // Everything in flight arrives before the next epoch.
        link.free = 0;
        (learned, best) = (window.proven(), window.best());
        sizes.push(learned);
    }
    assert!(learned < 460, "{sizes:?}");
}

/// Runs loaders over one link, each from its time on. Returns the share of each in the last quarter.
fn share(link: &mut Link, starts: &[u64], end: u64) -> Vec<f64> {
    let mut windows: Vec<_> = starts
        .iter()
        .map(|_| Concurrency::following(64, 2048, None))
        .collect();
    let (mut flying, mut counts) = (BinaryHeap::new(), vec![[0, 0, 0]; starts.len()]);
    let mut wake: BinaryHeap<_> = starts
        .iter()
        .enumerate()
        .map(|(who, &start)| std::cmp::Reverse((start, who)))
        .collect();
    loop {
        // A loader that begins, or the end of a morsel.
        let begins = wake.peek().map_or(u64::MAX, |next| next.0.0);
        let ends = flying
            .peek()
            .map_or(u64::MAX, |next: &std::cmp::Reverse<(u64, u64, usize)>| {
                next.0.0
            });
        let (now, who) = match begins <= ends {
            true => wake.pop().expect("one begins").0,
            false => {
                let std::cmp::Reverse((now, asked, who)) = flying.pop().expect("one ends");
                let [in_flight, complete, late] = &mut counts[who];
                (*in_flight, *complete) = (*in_flight - 1, *complete + 1);
                *late += usize::from(now >= end - end / 4);
                windows[who].completed(ended(
                    (now - asked) as f64,
                    *complete,
                    now - starts[who],
                    true,
                ));
                (now, who)
            }
        };
        if now >= end {
            let all: usize = counts.iter().map(|[.., late]| late).sum();
            return counts
                .iter()
                .map(|[.., late]| *late as f64 / all as f64)
                .collect();
        }
        let due = windows[who]
            .deadline()
            .map(|after| starts[who] + after.as_nanos() as u64);
        match due {
            Some(due) if now >= due => windows[who].open(0, Duration::ZERO, None),
            _ => {}
        }
        if let Some(after) = windows[who].deadline() {
            wake.push(std::cmp::Reverse((
                starts[who] + after.as_nanos() as u64,
                who,
            )));
        }
        while counts[who][0] < windows[who].size() {
            flying.push(std::cmp::Reverse((link.ask(now), now, who)));
            counts[who][0] += 1;
        }
    }
}

#[test]
fn two_loaders_share_a_link() {
    for (rtt, starts) in [
        (20, [0, 0]),
        (20, [0, 10_000]),
        (150, [0, 10_000]),
        (0, [0, 2_000]),
    ] {
        let mut link = Link {
            rtt: rtt * MS,
            each: 1_150_000,
            free: 0,
            served: 0,
        };
        let shares = share(&mut link, &starts.map(|start| start * MS), 300_000 * MS);
        assert!(
            shares.iter().all(|&share| share > 0.3),
            "{rtt} ms, {starts:?}: {shares:?}"
        );
    }
}

#[test]
fn an_uncapped_link_gets_all_there_is() {
    let mut link = Link {
        rtt: 150 * MS,
        each: 1_000,
        free: 0,
        served: 0,
    };
    let mut window = Concurrency::following(64, 2048, None);
    let (rate, most) = run(&mut window, &mut link, 0, 20_000 * MS);
    assert_eq!(most, 2048);
    assert!(rate > 0.95 * 2048.0 / 0.15, "{rate}");
}

#[test]
fn a_link_that_gets_longer_or_shorter_is_followed() {
    let mut link = Link {
        rtt: 20 * MS,
        each: 1_150_000,
        free: 0,
        served: 0,
    };
    let mut window = Concurrency::following(64, 2048, None);
    run(&mut window, &mut link, 0, 20_000 * MS);
    let before = window.size();
    link.rtt = 150 * MS;
    let (rate, most) = run(&mut window, &mut link, 20_000 * MS, 140_000 * MS);
    assert!(rate > 0.9 * 869.5, "{before} at first, then {most}: {rate}");
    assert!(most < 800, "{most}");
}

#[test]
fn a_distant_link_is_filled_in_a_few_round_trips() {
    let sizes: Vec<usize> = (1..6)
        .map(|trips| {
            let mut link = Link {
                rtt: 100 * MS,
                each: 1_000,
                free: 0,
                served: 0,
            };
            let mut window = Concurrency::following(64, 2048, None);
            run(&mut window, &mut link, 0, trips * 100 * MS + 20 * MS);
            window.size()
        })
        .collect();
    assert!(
        sizes.windows(2).all(|pair| pair[1] <= 4 * pair[0]),
        "{sizes:?}"
    );
    assert!(sizes[4] > 1024, "{sizes:?}");
}

#[test]
fn a_link_of_some_milliseconds_is_filled_soon() {
    for (rtt, each, goal) in [
        (2, 50_000, 0.9),
        (5, 40_000, 0.65),
        (10, 85_000, 0.85),
        (12, 40_000, 0.75),
    ] {
        let mut link = Link {
            rtt: rtt * MS,
            each,
            free: 0,
            served: 0,
        };
        let mut window = Concurrency::following(64, 2048, None);
        run(&mut window, &mut link, 0, 400 * MS);
        let used = link.served as f64 * each as f64 / (400 * MS) as f64;
        assert!(used > goal, "{rtt} ms: {used} of the link");
    }
}

#[test]
fn nothing_grows_for_a_consumer_that_does_not_wait() {
    let mut window = Concurrency::following(8, 2048, None);
    (0..10_000).for_each(|n| window.completed(ended(1e6, n as usize, n * MS, false)));
    assert_eq!(window.size(), 8);
}

#[test]
fn slow_connections_are_no_crowd() {
    // Every fourth is ten times slower, and every tenth had to connect first.
    let mut window = Concurrency::following(32, 1024, None);
    let mut flying = BinaryHeap::new();
    let (mut seed, mut now) = (1u64, 0);
    for complete in 1..20_001 {
        while flying.len() < window.size() {
            seed = crate::mix_bits(seed);
            let times = if seed % 4 == 0 { 10 } else { 1 } + u64::from(seed % 10 == 1);
            flying.push(std::cmp::Reverse((now + times * 150 * MS, now)));
        }
        let std::cmp::Reverse((done, asked)) = flying.pop().expect("something is in flight");
        now = done;
        window.completed(ended((done - asked) as f64, complete, now, true));
    }
    assert!(window.proven() > 800, "{window:?}");
}

/// Objects in a pass over a server.
const OBJECTS: usize = 2000;

/// A distant server with some slow connections, read in strict order. A connection is used again
/// by the next request, as a client's pool does; a new one takes a round trip more.
struct Server {
    rtt: u64,
    /// One in so many connections is ten times slower.
    slow: u64,
    seed: u64,
    connections: u64,
    idle: Vec<u64>,
    free: u64,
    /// Nanoseconds of the bottleneck for an object.
    each: u64,
    /// Bytes of an object.
    bytes: usize,
    /// The same if a listing tells it, if so.
    known: Option<usize>,
}

impl Server {
    fn new(rtt: u64, slow: u64, seed: u64) -> Self {
        Server {
            rtt,
            slow,
            seed,
            connections: 0,
            idle: Vec::new(),
            free: 0,
            each: 200_000,
            bytes: 115_000,
            known: None,
        }
    }

    /// Returns the time of the answer, before the bottleneck, and the connection.
    fn ask(&mut self, now: u64) -> (u64, u64) {
        let (trips, connection) = match self.idle.pop() {
            Some(connection) => (1, connection),
            None => {
                self.connections += 1;
                (2, self.connections)
            }
        };
        let is_slow = crate::mix_bits((self.seed << 32) + connection).is_multiple_of(self.slow);
        let times = if is_slow { 10 } else { 1 };
        (now + trips * times * self.rtt, connection)
    }

    /// Reads all objects, with at most `held` times the number in flight held for a slow earlier
    /// one, and at most `most` in all. Returns objects a second.
    fn pass(&mut self, window: &mut Concurrency, held: usize, most: usize) -> f64 {
        self.pass_of(window, held, most, OBJECTS)
    }

    /// Reads so many objects; see [`pass`](Server::pass).
    fn pass_of(
        &mut self,
        window: &mut Concurrency,
        held: usize,
        most: usize,
        objects: usize,
    ) -> f64 {
        self.free = 0;
        // Requests by number: the time at which each was asked for, and that of its end.
        let (mut asked, mut ends) = (Vec::new(), vec![None; objects]);
        let mut connects = Vec::new();
        let (mut answers, mut served) = (BinaryHeap::new(), BinaryHeap::new());
        let (mut now, mut taken, mut complete) = (0, 0, 0);
        let (mut wanted_at, mut begun) = (0, None);
        while taken < objects {
            let size = window.size();
            let room = (size + complete - taken).min(size.saturating_mul(held));
            while asked.len() < objects && asked.len() - taken < room.min(most) {
                let before = self.connections;
                let (answer, connection) = self.ask(now);
                connects.push(self.connections > before);
                answers.push(Reverse((answer, connection, asked.len())));
                asked.push(now);
            }
            if asked.len() - taken >= size {
                begun.get_or_insert(now);
            }
            let due = begun.zip(window.deadline());
            let due = due.map_or(u64::MAX, |(begun, after)| begun + after.as_nanos() as u64);
            let answer = answers.peek().map_or(u64::MAX, |next| next.0.0);
            let end = served
                .peek()
                .map_or(u64::MAX, |next: &Reverse<(u64, _, _)>| next.0.0);
            now = due.min(answer).min(end);
            if now == due {
                window.open(0, Duration::ZERO, self.known);
            } else if now == answer {
                let Reverse((_, connection, number)) = answers.pop().expect("an answer comes");
                self.free = self.free.max(now) + self.each;
                served.push(Reverse((self.free, connection, number)));
            } else {
                let Reverse((_, connection, number)) = served.pop().expect("an object comes");
                self.idle.push(connection);
                ends[number] = Some(now);
                complete += 1;
            }
            while let Some(end) = ends.get(taken).copied().flatten() {
                taken += 1;
                let waited = taken - wanted_at <= window.size();
                window.completed(Ended {
                    connects: connects[taken - 1],
                    bytes: self.bytes,
                    ..ended((end - asked[taken - 1]) as f64, complete, now, waited)
                });
            }
            wanted_at = taken;
        }
        objects as f64 / (now as f64 / 1e9)
    }
}

/// Servers of which every fourth connection is slow, or every twentieth.
fn servers() -> impl Iterator<Item = (u64, u64)> {
    [4, 20]
        .into_iter()
        .flat_map(|slow| (0..5).map(move |seed| (slow, seed)))
}

#[test]
fn a_slow_connection_in_front_leaves_the_others_busy() {
    for (slow, seed) in servers() {
        let [mut server, mut beside] = [0; 2].map(|_| Server::new(20 * MS, slow, seed));
        let mut found = Concurrency::following(64, 2048, None);
        let mut fixed = Concurrency::following(256, 1024, None);
        for epoch in 0..3 {
            let rate = server.pass(&mut found, usize::MAX, 2048);
            let best = beside.pass(&mut fixed, usize::MAX, 1024);
            assert!(
                rate > 0.85 * best,
                "1 of {slow} ({seed}), epoch {epoch}: {rate} beside {best}"
            );
            found = Concurrency::following(found.proven(), 2048, found.best());
            fixed = Concurrency::following(fixed.proven(), 1024, fixed.best());
        }
    }
}

#[test]
fn a_short_first_epoch_is_almost_as_fast_as_with_the_best_number() {
    let (small, medium) = ((4_000, 80_000, 6_000), (115_000, 200_000, OBJECTS));
    let large = (4_000_000, 2_000_000, 400);
    for (rtt, (bytes, each, objects), is_listed, goal) in [
        (20, small, false, 0.9),
        (150, small, false, 0.85),
        (150, small, true, 1.0),
        (20, medium, false, 0.95),
        (70, medium, false, 0.85),
        // At most 256 requests are in flight before the first answers, and so long a link takes more.
        (150, medium, false, 0.7),
        (150, medium, true, 0.7),
        (20, large, true, 0.95),
        (150, large, true, 0.8),
    ] {
        let first = |window: &mut Concurrency| {
            let mut server = Server {
                each,
                bytes,
                known: is_listed.then_some(bytes),
                ..Server::new(rtt * MS, u64::MAX, 0)
            };
            server.pass_of(window, usize::MAX, 2048, objects)
        };
        let best = [64, 128, 256, 512, 1024].map(|number| first(&mut Concurrency::fixed(number)));
        let best = best.into_iter().fold(0.0, f64::max);
        let rate = first(&mut Concurrency::following(64, 2048, None));
        assert!(
            rate > goal * best,
            "{bytes} bytes, {rtt} ms, listed: {is_listed}: {rate} beside {best}"
        );
    }
}

#[test]
fn large_objects_are_few_as_soon_as_their_size_is_known() {
    // 500 objects of 4 MB a second, 20 ms away: 10 fill the link, and 256 were asked for before the
    // first answers.
    let mut server = Server {
        each: 2 * MS,
        bytes: 4_000_000,
        ..Server::new(20 * MS, u64::MAX, 0)
    };
    let mut window = Concurrency::following(64, 2048, None);
    server.pass_of(&mut window, usize::MAX, 2048, 400);
    assert!(window.size() <= 40, "{window:?}");
}

#[test]
fn large_objects_whose_queue_hides_the_round_trip_are_few() {
    const IDLE: Duration = Duration::ZERO;
    // 256 were asked for within 32 ms, and answers began to arrive before 64 ms: many polls, or threads
    // that are busy. The client's own start kept them busy before.
    for looks in [
        [(0, IDLE), (0, IDLE), (0, IDLE), (4_000, IDLE)],
        [(0, IDLE), (0, IDLE), (0, IDLE), (800, 20 * PROBE_TIME / 8)],
        [
            (0, PROBE_TIME),
            (0, IDLE),
            (0, IDLE),
            (800, 20 * PROBE_TIME / 8),
        ],
    ] {
        let mut window = Concurrency::following(64, 2048, None);
        for (polls, busy) in looks {
            window.open(polls, busy, None);
        }
        assert_eq!(window.size(), 256);
        let mut complete = 0;
        let mut end = |window: &mut Concurrency, number: usize| {
            for _ in 0..number {
                complete += 1;
                window.completed(Ended {
                    bytes: 4_000_000,
                    ..ended(300e6, complete, (300 + complete as u64) * MS, true)
                });
            }
        };
        end(&mut window, LEAST_MORSELS);
        // A link of 2 GB/s carries as many in 64 ms.
        assert_eq!(window.size(), 32);
        // The 256, and the 32 that began while they were in flight, wait in one queue, so their durations
        // are not measured. The 32 that follow also take longer than the first answer did, as in another
        // queue: a part is tried.
        end(&mut window, 256 + 32);
        assert_eq!(window.size(), 32);
        assert!(window.is_guess());
        end(&mut window, 32);
        assert_eq!(window.size(), 32 / PART);
        end(&mut window, 600);
        assert!(!window.is_guess());
        // An epoch that begins with a guess tries a part in its first crowded round.
        let mut next = Concurrency::following(32, 2048, Some(32e6)).guessed();
        end(&mut next, 32);
        assert_eq!((next.size(), next.is_guess()), (32 / PART, true));
    }
}

#[test]
fn what_a_slow_connection_held_up_is_no_round() {
    // Answers that a slow one held up are taken all at once, and only fast connections gave them.
    for (slow, seed) in servers() {
        let mut server = Server::new(20 * MS, slow, seed);
        let mut window = Concurrency::following(64, 2048, None);
        for epoch in 0..3 {
            let rate = server.pass(&mut window, 4, 2048);
            let found = window.proven();
            assert!(
                rate > 1200.0 && found > 128,
                "1 of {slow} ({seed}), epoch {epoch}: {rate} with {found}"
            );
            window = Concurrency::following(found, 2048, window.best());
        }
    }
}

#[test]
fn unequal_sizes_are_no_crowd() {
    // A connection carries 1 MB/s, so the time follows the size; there is no bottleneck.
    let mut window = Concurrency::following(8, 512, None);
    let (mut seed, mut now) = (1u64, 0);
    for complete in 1..20_001 {
        seed = crate::mix_bits(seed);
        let took = 10 + seed % 1000;
        now += took * MS / window.size() as u64;
        window.completed(ended((took * MS) as f64, complete, now, true));
    }
    assert!(window.proven() > 400, "{window:?}");
}

#[test]
fn a_near_server_gets_few_at_first_and_a_distant_one_all() {
    // 50,000 morsels/s, 0.2 ms away.
    let mut link = Link {
        rtt: MS / 5,
        each: 20_000,
        free: 0,
        served: 0,
    };
    let mut window = Concurrency::following(256, 2048, None);
    assert!(window.size() == PROBE && window.deadline().is_some());
    let (rate, most) = run(&mut window, &mut link, 0, 1_000 * MS);
    assert!(rate > 0.97 * 50_000.0 && most <= 64, "{rate}, {most}");

    // Nothing came back in time.
    let mut window = Concurrency::following(256, 2048, None);
    window.open(0, Duration::ZERO, None);
    assert_eq!(window.size(), 256);
    (0..9).for_each(|_| window.open(0, Duration::ZERO, None));
    assert_eq!(window.size(), 1024);

    // Answers are on the way, and then they are not.
    let mut window = Concurrency::following(256, 2048, None);
    window.open(100, Duration::ZERO, None);
    assert!(window.size() == PROBE && window.deadline() == Some(2 * PROBE_TIME));
    window.open(0, Duration::ZERO, None);
    assert!(window.size() == 512 && window.deadline() == Some(4 * PROBE_TIME));
    // The client was busy with its own start, and then nothing came.
    let mut window = Concurrency::following(64, 2048, None);
    window.open(0, PROBE_TIME, None);
    assert_eq!(window.size(), PROBE);
    window.open(0, Duration::ZERO, None);
    assert_eq!(window.size(), 128);
    // They stay on the way.
    let mut window = Concurrency::following(256, 2048, None);
    (0..9).for_each(|_| window.open(100, Duration::ZERO, None));
    assert!(window.size() == PROBE && window.deadline().is_some());
    // To connect takes some polls, of those that have just begun.
    let mut window = Concurrency::following(256, 2048, None);
    window.open(40, Duration::ZERO, None);
    window.open(5 * 248, Duration::ZERO, None);
    assert_eq!(window.size(), 512);
}

#[test]
fn few_large_objects_from_a_near_server_are_in_flight() {
    // 1,000 objects/s, 0.5 ms away: one more than the first fills the link.
    let (mut learned, mut best) = (64, None);
    for epoch in 0..3 {
        let mut link = Link {
            rtt: MS / 2,
            each: MS,
            free: 0,
            served: 0,
        };
        let mut window = Concurrency::following(learned, 2048, best);
        let (rate, most) = run(&mut window, &mut link, 0, 400 * MS);
        (learned, best) = (window.proven(), window.best());
        assert!(rate > 970.0, "epoch {epoch}: {rate}");
        assert!(
            most <= 20 && learned <= 12,
            "epoch {epoch}: {most}, {learned}"
        );
    }
}

#[test]
fn a_near_server_that_answers_many_together_gets_many() {
    // It takes 0.5 ms for all that wait, and 0.05 ms for each of them.
    let takes = |objects: usize| MS / 2 + objects as u64 * MS / 20;
    let (mut learned, mut best) = (256, None);
    for epoch in 0..2 {
        let mut window = Concurrency::following(learned, 2048, best);
        let (mut now, mut complete) = (0, 0);
        while complete < OBJECTS {
            let (asked, size) = (now, window.size());
            now += takes(size);
            for _ in 0..size {
                complete += 1;
                window.completed(ended((now - asked) as f64, complete, now, true));
            }
        }
        (learned, best) = (window.proven(), window.best());
        let rate = |size: usize| size as f64 / takes(size) as f64;
        assert!(
            rate(learned) > 0.95 * rate(64) && learned <= 128,
            "epoch {epoch}: {learned}"
        );
    }
}

#[test]
fn pauses_of_the_consumer_leave_enough_for_its_next_batch() {
    // 10,000 objects/s, and a consumer that wants 64 every 100 ms.
    let mut link = Link {
        rtt: MS / 5,
        each: MS / 10,
        free: 0,
        served: 0,
    };
    let mut window = Concurrency::following(64, 2048, None);
    for step in 0..100 {
        let (mut now, mut asked, mut flying) = (step * 100 * MS, 0, BinaryHeap::new());
        loop {
            while asked < 64 && flying.len() < window.size() {
                flying.push(Reverse((link.ask(now), now)));
                asked += 1;
            }
            let Some(Reverse((end, begun))) = flying.pop() else {
                break;
            };
            now = end;
            link.served += 1;
            window.completed(ended((end - begun) as f64, link.served, now, true));
        }
        assert!(step < 4 || window.size() >= 32, "step {step}: {window:?}");
    }
}

#[test]
fn epochs_that_are_shorter_than_a_round_do_not_add_up() {
    // 120 objects of 4 MB from a server 40 ms away, at 250 a second.
    let mut begin = (64, None);
    for epoch in 0..4 {
        let mut window = Concurrency::following(begin.0, 2048, begin.1);
        let mut server = Server {
            each: 4 * MS,
            ..Server::new(40 * MS, u64::MAX, 0)
        };
        server.pass_of(&mut window, usize::MAX, 2048, 120);
        begin = window
            .found()
            .map_or(begin, |(number, best)| (number, Some(best)));
        assert!(begin.0 <= 128, "epoch {epoch}: {begin:?}");
    }
}

/// Reads objects from a server that divides its time equally among all requests, as parallel streams of
/// large objects are. Each takes `each` nanoseconds alone. Returns the part of the server's time in use,
/// and the most in flight.
fn read_divided(window: &mut Concurrency, each: u64, rtt: u64, objects: usize) -> (f64, usize) {
    // Requests on the way, with their arrival; and at the server, with what is left of each.
    let (mut coming, mut there) = (VecDeque::new(), Vec::new());
    let (mut now, mut asked, mut complete, mut most) = (0, 0, 0, 0);
    while complete < objects {
        while asked < objects && coming.len() + there.len() < window.size() {
            coming.push_back((now + rtt, now));
            asked += 1;
        }
        most = most.max(coming.len() + there.len());
        let next_end = there.iter().map(|&(left, _)| left).min();
        let ends = next_end.map_or(u64::MAX, |left| now + left * there.len() as u64);
        let comes = coming.front().map_or(u64::MAX, |&(time, _)| time);
        let due = window.deadline().map(|due| due.as_nanos() as u64);
        let due = due.filter(|&due| due > now).unwrap_or(u64::MAX);
        let next = ends.min(comes).min(due);
        let work = (next - now) / there.len().max(1) as u64;
        there.iter_mut().for_each(|(left, _)| *left -= work);
        now = next;
        if now == due {
            // Each comes in many pieces, which a thread reads half of the time.
            window.open(8 * there.len() as u64, Duration::from_nanos(now / 2), None);
        } else if now == comes {
            let (_, begun) = coming.pop_front().expect("one has come");
            there.push((each, begun));
        }
        there.retain(|&(left, begun)| {
            if left == 0 {
                complete += 1;
                window.completed(Ended {
                    // The server sends 2 GB/s.
                    bytes: 2 * each as usize,
                    ..ended((now - begun) as f64, complete, now, true)
                });
            }
            left > 0
        });
    }
    ((objects as u64 * each) as f64 / now as f64, most)
}

#[test]
fn a_near_server_that_divides_its_time_gets_few() {
    for (each, rtt) in [
        (MS, 0),
        (MS, MS / 2),
        (2 * MS, 0),
        (MS / 4, 0),
        (20 * MS, 0),
    ] {
        let (mut learned, mut best) = (64, None);
        for epoch in 0..3 {
            let mut window = Concurrency::following(learned, 2048, best);
            let (used, most) = read_divided(&mut window, each, rtt, 400);
            (learned, best) = (window.proven(), window.best());
            let what = format!("{each} ns, {rtt} ns away, epoch {epoch}");
            assert!(used > 0.9, "{what}: {used}");
            // Those of the first round, or what passes in the time of a queue.
            let few = (2 * PROBE).max((6 * MS / each) as usize);
            assert!(most <= few, "{what}: {most} in flight");
        }
    }
}
