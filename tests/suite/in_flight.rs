//! The number of requests in flight: at first the number that the first batch needs, near by two for
//! each that completes up to 64, then five for every four that complete.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use datapipes::{
    Arity, Chunk, Chunks, DataLoader, Demand, Error, Graph, Hints, Items, Lookup, Order, Pipe,
    Result, Work, async_trait,
};
use futures::StreamExt;
use tokio::sync::watch;

/// Requests that have begun and ended, to be waited for.
#[derive(Clone)]
struct Desk(Arc<watch::Sender<(usize, usize)>>);

impl Desk {
    fn new() -> Self {
        Desk(Arc::new(watch::Sender::new((0, 0))))
    }

    fn begin(&self) {
        self.0.send_modify(|(begun, _)| *begun += 1);
    }

    fn end(&self) {
        self.0.send_modify(|(_, ended)| *ended += 1);
    }

    /// Waits until `begun` requests have begun and `ended` have ended. Returns an error if they do
    /// not.
    async fn until(&self, begun: usize, ended: usize) -> Result<(), Error> {
        let mut seen = self.0.subscribe();
        let waited = tokio::time::timeout(
            Duration::from_secs(20),
            seen.wait_for(|seen| seen.0 >= begun && seen.1 >= ended),
        );
        match waited.await {
            Ok(_) => Ok(()),
            Err(_) => {
                let what = format!(
                    "{begun} begun and {ended} ended wanted, {:?} seen",
                    *self.0.borrow()
                );
                Err(Error::limit(what))
            }
        }
    }
}

fn two_workers<T: Send + 'static>(graph: Graph<T>) -> DataLoader<T> {
    DataLoader::builder(graph).workers(2).build().unwrap()
}

/// Reads an epoch that has no errors.
fn all<T: Send + 'static>(loader: &DataLoader<T>) -> Vec<T> {
    loader.epoch(0).blocking().map(Result::unwrap).collect()
}

#[test]
fn the_first_batch_asks_for_all_its_items_at_once() {
    let desk = Desk::new();
    let asked = desk.clone();
    let graph = Graph::range(0..128).map_async(move |n| {
        let desk = asked.clone();
        async move {
            desk.begin();
            // None is answered before all of the batch have been asked for.
            desk.until(32, 0).await?;
            datapipes::Ok(n)
        }
    });
    // Steps of the CPU between do not hide what the batch needs.
    let batches = graph.map(|n| n).filter(|_| true).batch(32);
    let loader = two_workers(batches);
    let seen = all(&loader);
    assert_eq!(seen.concat(), (0..128).collect::<Vec<_>>());
}

/// A pipe that may read local files, and asks a server instead, which answers none before so many have
/// asked.
struct Asks {
    desk: Desk,
    together: usize,
    /// Bytes of an answer, if a listing tells.
    weight: Option<usize>,
}

impl Pipe<u64> for Asks {
    type Out = u64;

    fn apply(&self, mut input: Items<u64>, _: &datapipes::Context) -> Items<u64> {
        let (desk, together) = (self.desk.clone(), self.together);
        Items::generate(async move |out| {
            while let Some(item) = input.next().await {
                desk.begin();
                let item = match desk.until(together, 0).await {
                    Ok(()) => item,
                    Err(error) => Err(error),
                };
                out.emit(item).await;
            }
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .work(Work::Io)
            .seldom_waits(true)
            .arity(Arity::One)
    }
    fn expected_weight(&self, _: &u64) -> Option<usize> {
        self.weight
    }
}

/// Reads items that are all there only if so many are asked for before the first answer.
fn asked_for(together: usize, weight: Option<usize>) {
    let desk = Desk::new();
    let asks = Asks {
        desk,
        together,
        weight,
    };
    let loader = two_workers(Graph::range(0..1024).pipe(asks).batch(32));
    assert_eq!(all(&loader).concat(), (0..1024).collect::<Vec<_>>());
}

#[test]
fn requests_are_noticed_where_local_files_are_expected() {
    for _ in 0..20 {
        asked_for(32, None);
    }
}

#[test]
fn small_objects_of_a_listing_are_all_asked_for_before_the_first_answer() {
    // If their size were unknown, 128 would be: four times the first batch.
    asked_for(512, Some(1_000));
}

#[test]
fn one_slow_answer_does_not_idle_the_others() {
    for order in [Order::Strict, Order::Bounded(64), Order::Arrival] {
        let desk = Desk::new();
        let asked = desk.clone();
        let graph = Graph::range(0..64).map_async(move |n| {
            let desk = asked.clone();
            async move {
                if n == 0 {
                    // Three more would be in flight if what is through held its place.
                    desk.until(0, 12).await?;
                }
                desk.end();
                datapipes::Ok(n)
            }
        });
        let loader = DataLoader::builder(graph.batch(4))
            .workers(2)
            .order(order)
            .build()
            .unwrap();
        let mut seen = all(&loader).concat();
        if order != Order::Strict {
            seen.sort_unstable();
        }
        assert_eq!(seen, (0..64).collect::<Vec<_>>(), "{order}");
    }
}

#[test]
fn a_slow_first_answer_holds_back_none_of_the_others() {
    let desk = Desk::new();
    let asked = desk.clone();
    let graph = Graph::range(0..1500).map_async(move |n| {
        let desk = asked.clone();
        async move {
            if n == 0 {
                // Many times the number in flight.
                desk.until(0, 1200).await?;
            }
            desk.end();
            datapipes::Ok(n)
        }
    });
    let loader = two_workers(graph.batch(4));
    let seen = all(&loader);
    assert_eq!(seen.concat(), (0..1500).collect::<Vec<_>>());
}

#[test]
fn five_are_asked_for_where_four_came_through() {
    const BATCH: usize = 16;
    /// Number of small objects near by that may be in flight from the first answers on.
    const NEAR: usize = 64;
    let desk = Desk::new();
    let worst = Arc::new(AtomicUsize::new(0));
    let (asked, most) = (desk.clone(), worst.clone());
    let graph = Graph::range(0..2000).map_async(move |n| {
        let (desk, most) = (asked.clone(), most.clone());
        async move {
            desk.begin();
            let (begun, ended) = *desk.0.borrow();
            // At the start as many as a batch needs; two for each that ended, until those of near objects
            // are in flight; then five for four. What has ended may not be delivered yet.
            let started = (BATCH + ended).min(NEAR);
            let allowed = started + ended + ended / 4 + 2;
            most.fetch_max(begun.saturating_sub(allowed), SeqCst);
            tokio::task::yield_now().await;
            desk.end();
            datapipes::Ok(n)
        }
    });
    let loader = two_workers(graph.batch(BATCH));
    assert_eq!(loader.epoch(0).blocking().count(), 2000 / BATCH);
    assert_eq!(worst.load(SeqCst), 0, "requests too many at once");
}

#[test]
fn an_epoch_begins_with_what_the_last_one_found() {
    let desk = Desk::new();
    let wanted = Arc::new(AtomicUsize::new(0));
    let (asked, at_once) = (desk.clone(), wanted.clone());
    let graph = Graph::range(0..400).map_async(move |n| {
        let (desk, at_once) = (asked.clone(), at_once.clone());
        async move {
            desk.begin();
            match at_once.load(SeqCst) {
                // As from far away, so that the consumer waits.
                0 => tokio::time::sleep(Duration::from_millis(1)).await,
                wanted => desk.until(wanted, 0).await?,
            }
            datapipes::Ok(n)
        }
    });
    let loader = two_workers(graph.batch(4));
    assert_eq!(loader.epoch(0).blocking().count(), 100);
    let found = loader.stats().unwrap().segments[0].concurrency as usize;
    assert!(found > 8, "{found}");
    // Now none is answered before more have been asked for than the first batch needs.
    wanted.store(400 + 9, SeqCst);
    loader
        .epoch(1)
        .blocking()
        .try_for_each(|batch| batch.map(drop))
        .unwrap();
}

#[test]
fn what_waits_for_a_slow_first_answer_stays_within_the_bytes() {
    let desk = Desk::new();
    let asked = desk.clone();
    let graph = Graph::range(0..200).map_async(move |n| {
        let desk = asked.clone();
        async move {
            desk.begin();
            if n == 0 {
                // Items in flight at the start come through, at least as many as fit, and then as
                // many more as are allowed.
                desk.until(0, 9).await?;
                tokio::time::sleep(Duration::from_millis(50)).await;
                let begun = desk.0.borrow().0;
                return if begun <= 20 {
                    Ok(n)
                } else {
                    Err(Error::limit(begun.to_string()))
                };
            }
            if n > 1 {
                // So that weights are known.
                desk.until(0, 1).await?;
            }
            desk.end();
            datapipes::Ok(n)
        }
    });
    // Ten fit into the share of the segment; the first batch needs 17.
    let graph = graph.weighed(|_| 1000).batch(17);
    let loader = DataLoader::builder(graph)
        .workers(2)
        .memory(20_000)
        .build()
        .unwrap();
    let first = loader.epoch(0).blocking().next().unwrap();
    assert_eq!(first.unwrap().len(), 17);
}

/// One item each weighs more than its part of the bytes, so that its piece ends only when it was
/// taken.
fn large(
    millis: impl Fn(u64) -> u64 + Clone + Send + Sync + 'static,
) -> datapipes::loader::Builder<u64> {
    let graph = Graph::range(0..1500).map_async(move |n| {
        let wait = Duration::from_millis(millis(n));
        async move {
            tokio::time::sleep(wait).await;
            datapipes::Ok(n)
        }
    });
    DataLoader::builder(graph.weighed(|_| 50_000))
        .workers(2)
        .memory(2 * 2048 * 40_000)
}

#[test]
fn a_slow_consumer_of_large_items_makes_nothing_grow() {
    let loader = large(|_| 0).prefetch(1).build().unwrap();
    for item in loader.epoch(0).blocking().take(100) {
        item.unwrap();
        std::thread::sleep(Duration::from_millis(3));
    }
    let window = loader.stats().unwrap().segments[0].concurrency;
    // As many requests as complete in 4 ms may always be in flight, at most 64. The number grows
    // beyond that only if the consumer waits for items, and this one is slow.
    assert!(window <= 64, "{window}");
}

#[test]
fn the_wait_for_an_earlier_item_is_not_taken_for_the_link() {
    let window = || {
        let loader = large(|n| if n % 32 == 31 { 12 } else { 1 })
            .build()
            .unwrap();
        assert_eq!(loader.epoch(0).blocking().count(), 1500);
        loader.stats().unwrap().segments[0].concurrency
    };
    // Without growth it would be 32, and up to 40 while more is tried. Fewer are enough on a machine
    // that does something else meanwhile.
    let grown = (0..20).filter(|_| window() > 40).count();
    assert!(grown > 10, "{grown} of 20");
}

/// A thread that reads epochs in turn leaves requests of one epoch unfinished. These requests
/// continue, so that they release the resources that they hold.
#[test]
fn epochs_read_in_turn_by_one_thread_do_not_wait_for_each_other() {
    struct OneAtATime(tokio::sync::Semaphore);

    #[async_trait]
    impl Lookup<u64> for OneAtATime {
        type Out = u64;

        async fn get(&self, key: u64) -> Result<u64> {
            let _permit = self.0.acquire().await.map_err(Error::user)?;
            if key % 4 == 3 {
                tokio::task::yield_now().await;
            }
            Ok(key)
        }
    }

    /// Asks for eight at a time, and gives what it gets.
    struct Greedy(Items<u64>);

    impl Chunks<u64> for Greedy {
        fn poll_chunk(&mut self, cx: &mut Context<'_>, demand: Demand) -> Poll<Option<Chunk<u64>>> {
            self.0.poll_chunk(cx, Demand { max: 8, ..demand })
        }
    }

    for workers in [0, 2] {
        // Each key comes by itself, so that eight are more than one request.
        let keys = Graph::concat((0..40).map(|key| Graph::from_vec(vec![key])));
        let graph = keys.fetch(OneAtATime(tokio::sync::Semaphore::new(1)));
        let graph = graph.through(|items: Items<u64>| Items::from_chunks(Greedy(items)));
        let loader = DataLoader::builder(graph).workers(workers).build().unwrap();
        let mut epochs = [0, 1, 2].map(|epoch| (loader.epoch(epoch).blocking(), Vec::new()));
        for _ in 0..41 {
            for (epoch, items) in &mut epochs {
                items.extend(epoch.next().map(Result::unwrap));
            }
        }
        for (_, items) in epochs {
            assert_eq!(items, Vec::from_iter(0..40), "{workers} workers");
        }
    }
}

#[test]
fn a_block_of_small_items_is_made_while_an_earlier_one_is_read() {
    const BLOCK: u64 = 2_000;
    // Blocks that show that the work is worth a worker.
    const LONG: u64 = 16;
    let desk = Desk::new();
    let made = desk.clone();
    let graph = Graph::range(0..LONG + 2).flat_map(move |block| {
        let desk = made.clone();
        let items = if block < LONG { 1 } else { BLOCK };
        (0..items).map(move |n| {
            if block < LONG {
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_millis(1) {}
            } else if block == LONG && n == 1 {
                // This block goes on when the last item of the next one has been made.
                futures::executor::block_on(desk.until(0, 1))?;
            } else if block > LONG && n == BLOCK - 1 {
                desk.end();
            }
            datapipes::Ok((block, n))
        })
    });
    let graph = graph.try_map(|item| item);
    let loader = two_workers(graph);
    let seen = all(&loader);
    assert_eq!(seen.len() as u64, LONG + 2 * BLOCK);
    assert!(seen.is_sorted());
}

#[test]
fn large_items_that_cost_little_share_a_hop() {
    // The bytes that are made in one poll have a limit, so these items come one by one.
    let large = bytes::Bytes::from_static(&[7; 64 << 10]);
    let graph = Graph::from_vec(vec![large; 3000]).weighed(|bytes| bytes.len());
    let graph = graph.map(|bytes| {
        bytes
            .iter()
            .take(1000)
            .map(|&byte| u64::from(byte))
            .sum::<u64>()
    });
    let loader = DataLoader::builder(graph)
        .workers(2)
        .memory(4 << 20)
        .build()
        .unwrap();
    let started = std::time::Instant::now();
    for epoch in 0.. {
        let sums: Vec<u64> = loader.epoch(epoch).blocking().map(Result::unwrap).collect();
        assert_eq!(sums, [7000; 3000]);
        let stats = loader.stats().unwrap();
        let segment = &stats.segments[0];
        let (items, pieces) = (segment.items, segment.morsels);
        // The number that comes within some microseconds, and the gain of a queue, depend on the
        // machine.
        if pieces > 0 && 2 * pieces < items {
            return;
        }
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{items} items in {pieces} pieces"
        );
    }
}

/// Blocking work that seldom waits, and records which items the workers did. There is no lock: a
/// thread that sleeps for one would be found to wait.
#[derive(Clone)]
struct Reads {
    begun: Arc<AtomicUsize>,
    on_worker: Arc<[AtomicBool]>,
}

impl Reads {
    /// Items that wait, as files on a slow disk do.
    const SLOW: Range<u64> = 300..812;

    fn read(&self, n: u64) -> u64 {
        let thread = std::thread::current();
        let on_worker = thread.name().unwrap_or("").starts_with("datapipes-cpu");
        self.on_worker[n as usize].store(on_worker, SeqCst);
        let deadline = Instant::now() + Duration::from_secs(20);
        if !Self::SLOW.contains(&n) {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(20) {}
        } else if n < Self::SLOW.start + 256 {
            std::thread::sleep(Duration::from_millis(2));
        } else {
            // None ends before four have begun: twice the workers, and as many as are in flight on a
            // machine of any speed.
            let mine = self.begun.fetch_add(1, SeqCst) / 4 * 4 + 4;
            while self.begun.load(SeqCst) < mine && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(Instant::now() < deadline, "{n} waits for three others");
        }
        n
    }
}

impl Pipe<u64> for Reads {
    type Out = u64;

    fn apply(&self, mut input: Items<u64>, cx: &datapipes::Context) -> Items<u64> {
        let (reads, cx) = (self.clone(), cx.clone());
        Items::generate(async move |out| {
            while let Some(item) = input.next().await {
                let item = match item {
                    Ok(item) => {
                        let (n, reads) = (*item, reads.clone());
                        let read = cx.blocking(move || reads.read(n)).await;
                        read.map(|n| item.map(|_| n))
                    }
                    Err(error) => Err(error),
                };
                out.emit(item).await;
            }
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .work(Work::Io)
            .seldom_waits(true)
            .arity(Arity::One)
    }
}

#[test]
fn work_that_seldom_waits_is_done_by_the_workers_until_it_waits() {
    const ITEMS: u64 = 5000;
    for order in [Order::Strict, Order::Bounded(64), Order::Arrival] {
        let reads = Reads {
            begun: Arc::default(),
            on_worker: (0..ITEMS).map(|_| AtomicBool::default()).collect(),
        };
        let graph = Graph::range(0..ITEMS).pipe(reads.clone());
        let loader = DataLoader::builder(graph)
            .workers(2)
            .order(order)
            .build()
            .unwrap();
        let plan = loader.explain();
        assert!(
            plan.contains("I/O by the 2 workers; where it waits, 1 in flight"),
            "{plan}"
        );
        let mut seen = all(&loader);
        if order != Order::Strict {
            seen.sort_unstable();
        }
        assert_eq!(seen, Vec::from_iter(0..ITEMS), "{order}");
        let on_worker = |n: &u64| reads.on_worker[*n as usize].load(SeqCst);
        assert!(on_worker(&0), "{order}");
        let slow = Reads::SLOW.start + 256..Reads::SLOW.end;
        assert!(!slow.clone().any(|n| on_worker(&n)), "{order}");
        // Much work without waiting, and the workers do it again.
        assert!((Reads::SLOW.end..ITEMS).any(|n| on_worker(&n)), "{order}");
    }
}

/// Takes as many items as one piece of work may make, and gives how many that was, and how many requests
/// might have begun.
struct Together;

impl Pipe<u64> for Together {
    type Out = (usize, usize);

    fn apply(&self, mut input: Items<u64>, cx: &datapipes::Context) -> Items<(usize, usize)> {
        let cx = cx.clone();
        Items::generate(async move |out| {
            while let Some(chunk) = input.next_chunk(out.wanted_together()).await {
                let made = (chunk.len(), out.wanted());
                let chunk = cx.blocking(move || chunk.map(|_| made)).await;
                out.emit_chunk(chunk.unwrap_or_else(Chunk::fail)).await;
            }
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .work(Work::Io)
            .seldom_waits(true)
            .arity(Arity::One)
    }
}

#[test]
fn without_workers_one_piece_of_work_makes_what_a_batch_needs() {
    let items = Graph::range(0..40).pipe(Together);
    let run = |graph| all(&DataLoader::builder(graph).workers(0).build().unwrap());
    assert_eq!(run(items.clone().batch(8)), vec![vec![(8, 1); 8]; 5]);
    // Items that are of use one by one come one by one.
    assert_eq!(run(items.batch(1)), vec![vec![(1, 1)]; 40]);
}

/// A pipe that seldom waits, whose function reads an epoch of another loader.
struct ReadsEpochs(DataLoader<bool>);

impl Pipe<u64> for ReadsEpochs {
    type Out = bool;

    fn apply(&self, input: Items<u64>, cx: &datapipes::Context) -> Items<bool> {
        let inner = self.0.clone();
        input.each(cx, move |item| {
            let here = std::thread::current().id();
            let there = inner.epoch(*item).blocking().all(Result::unwrap);
            assert_eq!(here, std::thread::current().id());
            Some(Ok(item.map(|_| there)))
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .work(Work::Io)
            .seldom_waits(true)
            .arity(Arity::One)
    }
}

#[test]
fn blocking_work_of_an_epoch_inside_work_that_seldom_waits_is_done_elsewhere() {
    for workers in [0, 1] {
        let inner = Graph::range(0..20).map_async(|_| async {
            let here = std::thread::current().id();
            let there = datapipes::blocking(|| std::thread::current().id()).await?;
            datapipes::Ok(here != there)
        });
        let inner = DataLoader::builder(inner).workers(workers).build().unwrap();
        let outer = Graph::range(0..50).pipe(ReadsEpochs(inner));
        let seen = all(&two_workers(outer));
        assert!(seen.into_iter().all(|there| there), "{workers} workers");
    }
}
