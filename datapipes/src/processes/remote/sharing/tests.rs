//! Tests of shared workers in virtual time.

use super::*;

/// Time that a part waits for a worker.
const WAIT: Duration = Duration::from_secs(60);

/// Parts that share workers in virtual time. A worker that is handed over is there again at
/// once, and works after the time in which it makes the part.
struct Play {
    sharing: Sharing,
    now: Instant,
    parts: BTreeMap<u64, Standing>,
    handed_over: usize,
    making: Duration,
    /// A part that no worker can make.
    hangs: Option<u64>,
    made_at: Vec<(Instant, u64)>,
    /// Time when each part was last made, or joined.
    worked: BTreeMap<u64, Instant>,
    /// Longest time without a worker that has made it.
    longest: BTreeMap<u64, Duration>,
}

impl Play {
    fn new(workers: usize) -> Play {
        let mut play = Play {
            sharing: Sharing::default(),
            now: Instant::now(),
            parts: BTreeMap::new(),
            handed_over: 0,
            making: Duration::ZERO,
            hangs: None,
            made_at: Vec::new(),
            worked: BTreeMap::new(),
            longest: BTreeMap::new(),
        };
        play.join();
        (0..workers).for_each(|_| play.arrive());
        play
    }

    fn join(&mut self) -> u64 {
        let id = self.sharing.join(Rules::default(), (8, WAIT), self.now);
        let standing = self.sharing.parts[&id].standing;
        self.parts.insert(id, standing);
        self.worked.insert(id, self.now);
        id
    }

    fn need(&mut self, id: u64, need: Need) {
        self.parts.get_mut(&id).unwrap().need = need;
        self.tell(id);
    }

    fn tell(&mut self, id: u64) {
        let waker = Waker::noop();
        self.sharing.set(id, self.parts[&id], waker, self.now);
    }

    fn is_made(&mut self, id: u64) {
        self.parts.get_mut(&id).unwrap().ready += 1;
        self.tell(id);
    }

    fn arrive(&mut self) {
        let first: Vec<u64> = self
            .parts
            .keys()
            .copied()
            .filter(|&id| self.sharing.is_first(id))
            .collect();
        assert_eq!(first.len(), 1, "one lets it in");
        let first = first[0];
        self.parts.get_mut(&first).unwrap().workers += 1;
        self.tell(first);
        if self.hangs == Some(first) {
            return;
        }
        // Time passes until it has made the part.
        if self.making.is_zero() {
            self.is_made(first);
        } else {
            self.made_at.push((self.now + self.making, first));
        }
    }

    /// Takes a worker from a part, which need not have made it.
    fn depart(&mut self, id: u64) {
        let part = self.parts.get_mut(&id).unwrap();
        part.workers -= 1;
        part.ready = part.ready.min(part.workers);
        if part.workers == 0 {
            self.made_at.retain(|(_, making)| *making != id);
        }
        self.tell(id);
    }

    /// Checks that no part was longer without a worker that has made it.
    fn assert_longest(&self, most: Duration) {
        let in_time = |longest: &Duration| *longest < most;
        assert!(self.longest.values().all(in_time), "{:?}", self.longest);
    }

    fn measure(&mut self) {
        for (&id, part) in &self.parts {
            let worked = self.worked.get_mut(&id).unwrap();
            let longest = self.longest.entry(id).or_default();
            *longest = (*longest).max(self.now - *worked);
            if part.ready > 0 {
                *worked = self.now;
            }
        }
    }

    /// Lets time pass, and returns the numbers of workers.
    fn after(&mut self, millis: u64) -> Vec<usize> {
        for _ in 0..millis.div_ceil(50) {
            self.now += Duration::from_millis(50);
            let now = self.now;
            for (_, id) in self
                .made_at
                .extract_if(.., |(at, _)| *at <= now)
                .collect::<Vec<_>>()
            {
                self.is_made(id);
            }
            for id in self.parts.keys().copied().collect::<Vec<_>>() {
                while self.sharing.take_surplus(id, self.now) {
                    self.handed_over += 1;
                    self.depart(id);
                    self.arrive();
                }
            }
            self.measure();
        }
        self.parts.values().map(|part| part.workers).collect()
    }
}

#[test]
fn shares_are_equal_and_stay() {
    let mut play = Play::new(5);
    play.join();
    assert_eq!(play.after(50), [3, 2]);
    play.join();
    assert_eq!(play.after(50), [2, 2, 1]);
    let before = play.handed_over;
    assert_eq!(play.after(10_000), [2, 2, 1]);
    assert_eq!(play.handed_over, before);
}

#[test]
fn those_without_an_epoch_hand_over_all_and_get_theirs_back() {
    let mut play = Play::new(4);
    let second = play.join();
    play.need(0, Need::Nothing);
    assert_eq!(play.after(50), [0, 4]);
    play.need(second, Need::Nothing);
    // Nobody needs them: they stay where they are.
    assert_eq!(play.after(5000), [0, 4]);
    play.need(0, Need::Share);
    assert_eq!(play.after(50), [4, 0]);
}

#[test]
fn a_consumer_that_waits_leaves_one_worker_there() {
    let mut play = Play::new(4);
    play.join();
    play.after(50);
    play.need(0, Need::One);
    assert_eq!(play.after(50), [1, 3]);
    assert_eq!(play.after(5000), [1, 3]);
    play.need(0, Need::Share);
    assert_eq!(play.after(50), [2, 2]);
}

#[test]
fn one_worker_takes_turns() {
    let mut play = Play::new(1);
    play.join();
    play.join();
    let mut had = [0; 3];
    for _ in 0..300 {
        let workers = play.after(50);
        assert_eq!(workers.iter().sum::<usize>(), 1);
        (0..3).for_each(|id| had[id] += workers[id]);
    }
    assert!(had.iter().all(|&had| (80..=120).contains(&had)), "{had:?}");
}

/// A turn that began before would be over when it has made the part.
#[test]
fn row_149_a_worker_that_takes_long_to_make_parts_works_for_each_of_them() {
    let mut play = Play::new(0);
    play.making = 3 * LONGEST_TURN / 10;
    play.join();
    play.arrive();
    let mut worked = [0; 2];
    for _ in 0..3000 {
        play.after(50);
        (0..2).for_each(|id| worked[id as usize] += play.parts[&id].ready);
    }
    // Each nearly half of the time.
    assert!(worked.iter().all(|&worked| worked > 900), "{worked:?}");
}

/// Such a part would keep the only worker, and all others would fail.
#[test]
fn row_149_a_part_that_no_worker_can_make_leaves_time_for_others() {
    for others in [1, 5] {
        let mut play = Play::new(0);
        (play.hangs, play.making) = (Some(0), Duration::from_millis(500));
        (0..others).for_each(|_| _ = play.join());
        play.arrive();
        play.after(300_000);
        play.longest.remove(&0);
        play.assert_longest(WAIT);
    }
}

/// A part would be handed over again and again before it is made.
#[test]
fn row_149_parts_that_take_nearly_all_of_the_time_to_make_are_made() {
    for (parts, making) in [(3, 25), (2, 40)] {
        let mut play = Play::new(0);
        play.making = Duration::from_secs(making);
        (1..parts).for_each(|_| _ = play.join());
        play.arrive();
        play.after(300_000);
        // After the first attempts, which may have been too short.
        play.longest.clear();
        play.after(300_000);
        let all = Duration::from_secs(making * parts) + LONGEST_TURN * 2;
        play.assert_longest(all);
    }
}

/// Turns of 3 s would leave a part without one for two minutes.
#[test]
fn row_149_turns_of_many_parts_leave_nobody_without_a_worker_for_too_long() {
    let mut play = Play::new(0);
    play.making = Duration::from_secs(1);
    (1..30).for_each(|_| _ = play.join());
    play.arrive();
    play.after(600_000);
    play.assert_longest(WAIT * 9 / 10);
    // A third of the time is work.
    assert!(play.handed_over < 420, "{}", play.handed_over);
}

#[test]
fn row_149_a_part_that_loses_its_worker_gets_the_rest_of_its_turn() {
    let mut play = Play::new(0);
    play.making = Duration::from_secs(1);
    (0..2).for_each(|_| _ = play.join());
    play.arrive();
    play.after(10_000);
    let its_turn = |play: &Play| play.parts.iter().position(|(_, part)| part.ready > 0);
    let lost = loop {
        let before = its_turn(&play);
        play.after(50);
        if let (None, Some(lost)) = (before, its_turn(&play)) {
            break lost as u64;
        }
    };
    play.after(1000);
    play.depart(lost);
    play.arrive();
    assert_eq!(play.parts[&lost].workers, 1, "it keeps its place");
    play.after(1000);
    assert_eq!(play.parts[&lost].ready, 1);
    let rest = LONGEST_TURN - Duration::from_secs(1);
    play.after(rest.as_millis() as u64 - 200);
    assert_eq!(play.parts[&lost].ready, 1, "for the rest of its turn");
    play.after(300);
    assert_eq!(play.parts[&lost].workers, 0, "and no longer");
    // A part that ends all of its workers does not keep them from others.
    while its_turn(&play).is_none() {
        play.after(50);
    }
    let ends = its_turn(&play).unwrap() as u64;
    for _ in 0..2 {
        assert_eq!(play.parts[&ends].workers, 1);
        play.depart(ends);
        play.arrive();
        play.after(1000);
    }
    assert_eq!(play.parts[&ends].workers, 0);
}

#[test]
fn a_worker_on_its_way_is_not_asked_for_twice() {
    let mut sharing = Sharing::default();
    let mut now = Instant::now();
    let waker = Waker::noop();
    let first = sharing.join(Rules::default(), (8, WAIT), now);
    let set = |sharing: &mut Sharing, workers, now| {
        let standing = Standing {
            workers,
            ready: workers,
            most: 8,
            need: Need::Share,
        };
        sharing.set(first, standing, waker, now);
    };
    set(&mut sharing, 2, now);
    sharing.join(Rules::default(), (8, WAIT), now);
    assert!(sharing.take_surplus(first, now));
    // As long as it is at work there.
    now += 10 * LONGEST_TURN;
    assert!(!sharing.take_surplus(first, now));
    set(&mut sharing, 1, now);
    assert!(!sharing.take_surplus(first, now));
    // It does not come again: its machine may have ended.
    assert!(sharing.take_surplus(first, now + ON_THE_WAY));
}
