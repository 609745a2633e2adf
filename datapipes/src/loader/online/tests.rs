use super::*;
#[cfg(feature = "tune")]
use crate::loader::Builder;
use crate::{DataLoader, Graph};

const BOTH: MayChange = MayChange {
    workers: true,
    prefetch: true,
    processes: false,
};

/// Returns a loader whose items take 100 µs.
fn loader() -> DataLoader<Vec<u64>> {
    let graph = Graph::range(0..4000)
        .shuffle(100)
        .map(|n| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(100) {
                std::hint::spin_loop();
            }
            n * n
        })
        .batch(8);
    let builder = DataLoader::builder(graph).seed(3).workers(4).resumable();
    builder.build().unwrap()
}

/// Changes the settings after batch `n`, always to others.
fn switch(loader: &DataLoader<Vec<u64>>, n: usize) {
    loader.engine.set_active_workers(1 + n % 4);
    let depth = &loader.engine.live.depth;
    depth.store(1 + 7 * n % 16, Ordering::Relaxed);
}

#[test]
fn settings_that_change_at_each_batch_change_neither_the_order_nor_a_resumed_epoch() {
    let whole: Vec<Vec<u64>> = loader()
        .epoch(0)
        .blocking()
        .take(60)
        .map(Result::unwrap)
        .collect();
    let loader = loader();
    let mut epoch = loader.epoch(0).blocking();
    let mut checkpoints = Vec::new();
    for (n, expected) in whole.iter().enumerate() {
        assert_eq!(epoch.next().unwrap().unwrap(), *expected);
        switch(&loader, n);
        if n % 12 == 5 {
            checkpoints.push(epoch.checkpoint().unwrap());
        }
    }
    drop(epoch);
    for checkpoint in checkpoints {
        let from = checkpoint.delivered() as usize;
        let rest = loader.resume(&checkpoint).unwrap().blocking();
        for (n, batch) in rest.take(60 - from).enumerate() {
            assert_eq!(batch.unwrap(), whole[from + n]);
            switch(&loader, n);
        }
    }
}

fn tuner() -> Arc<Mutex<OnlineTuner>> {
    let begin = Setting {
        workers: 4,
        prefetch: 4,
        processes: 0,
    };
    Arc::new(Mutex::new(OnlineTuner::new(begin, BOTH)))
}

/// Returns a function that takes a batch of the running epoch, 10 ms later than the last, as a
/// consumer does that does not wait; its argument is true if that consumer runs the graph itself.
fn consumer(
    loader: &DataLoader<Vec<u64>>,
    tuner: &Arc<Mutex<OnlineTuner>>,
) -> impl FnMut(bool) + use<> {
    let run = lock(&loader.latest.runs().unwrap())[0].clone();
    let mut windows = Windows::new(Some(tuner.clone()));
    let (mut now, mut delivered) = (Instant::now(), 0);
    move |is_inline| {
        (now, delivered) = (now + Duration::from_millis(10), delivered + 1);
        if windows.is_due(delivered) {
            windows.look(now, delivered, &run, is_inline);
        }
    }
}

#[test]
fn a_second_epoch_ends_a_trial() {
    let loader = loader();
    let mut epoch = loader.epoch(0).blocking();
    epoch.next().unwrap().unwrap();
    let mut take = consumer(&loader, &tuner());
    while loader.engine.active_workers() == 4 {
        take(false);
    }
    let mut other = loader.epoch(1).blocking();
    other.next().unwrap().unwrap();
    (0..1000).for_each(|_| take(false));
    assert_eq!(loader.engine.active_workers(), 4);
}

/// Starts an epoch when the one before has given workers back: a start has more to do, such as to
/// fill a shuffle buffer.
#[test]
fn each_epoch_begins_with_all_workers() {
    let (loader, tuner) = (loader(), tuner());
    let mut epoch = loader.epoch(0).blocking();
    epoch.next().unwrap().unwrap();
    let mut take = consumer(&loader, &tuner);
    (0..60_000).for_each(|_| take(false));
    assert_eq!(loader.engine.active_workers(), 1);
    let mut take = consumer(&loader, &tuner);
    // An epoch that is iterated begins on the consumer's thread.
    take(true);
    assert_eq!(loader.engine.active_workers(), 4);
    (0..1000).for_each(|_| take(false));
    assert_eq!(loader.engine.active_workers(), 1);
}

#[test]
fn windows_of_an_epoch_that_is_alone_change_its_settings() {
    let loader = loader();
    let mut epoch = loader.epoch(0).blocking();
    epoch.next().unwrap().unwrap();
    let mut take = consumer(&loader, &tuner());
    let mut ten_minutes = |is_inline| (0..60_000).for_each(|_| take(is_inline));
    let mut other = loader.epoch(1).blocking();
    other.next().unwrap().unwrap();
    ten_minutes(false);
    assert!(loader.stats().unwrap().tuned.is_empty());
    drop(other);
    ten_minutes(true);
    assert!(loader.stats().unwrap().tuned.is_empty());
    ten_minutes(false);
    let stats = epoch.stats().unwrap();
    assert_eq!((stats.workers, loader.engine.active_workers()), (1, 1));
    assert!(stats.tuned.len() <= TRIED);
    let text = stats.to_string();
    assert!(text.contains("tuned: workers"), "{text}");
}

#[test]
fn what_was_set_is_not_tuned() {
    let builder = || {
        let builder = DataLoader::builder(Graph::range(0..10).batch(2));
        builder.cpu_share(1.0).tune(true)
    };
    assert!(builder().build().unwrap().tuner.is_some());
    assert!(builder().tune(false).build().unwrap().tuner.is_none());
    assert!(builder().workers(0).build().unwrap().tuner.is_none());
    // By default the queue alone is tuned.
    let by_default = || DataLoader::builder(Graph::range(0..10).batch(2)).cpu_share(1.0);
    assert!(by_default().build().unwrap().tuner.is_some());
    assert!(by_default().prefetch(2).build().unwrap().tuner.is_none());
    let given = builder().workers(3).prefetch(2).build().unwrap();
    assert!(given.tuner.is_none());
    // An experiment measures what it is asked to measure.
    let loader = builder().build().unwrap();
    assert!(loader.without_autosave().tuner.is_none());
    assert!(loader.clone().tuner.is_some());
}

#[test]
fn a_share_of_the_cores_is_at_least_one_worker() {
    let workers = |share| {
        let builder = DataLoader::builder(Graph::range(0..10)).workers(9);
        let loader = builder.cpu_share(share).build().unwrap();
        loader.engine.settings.workers
    };
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(workers(1.0), cores);
    assert_eq!(workers(1e-9), 1);
    let half = (cores / 2).max(1);
    assert_eq!(workers(0.5), half);
}

#[test]
fn a_share_that_is_none_of_the_cores_is_refused() {
    for share in [0.0, -0.5, 1.5, f64::NAN, f64::INFINITY] {
        let builder = DataLoader::builder(Graph::range(0..10)).cpu_share(share);
        let error = builder.build().unwrap_err();
        let problem = format!("`cpu_share` is above 0 and at most 1, not {share}");
        assert_eq!(error.problems(), [problem]);
    }
    let replaced = DataLoader::builder(Graph::range(0..10)).cpu_share(0.0);
    assert!(replaced.workers(1).build().is_ok());
}

/// Saves what a tuner has found, and gives it to a builder.
#[cfg(feature = "tune")]
fn with_found(name: &str, found: Setting) -> (std::path::PathBuf, Builder<Vec<u64>>) {
    let name = format!("datapipes-online-{name}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let graph = || Graph::range(0..40).batch(4);
    let loader = DataLoader::builder(graph()).tune(true).build().unwrap();
    let tuner = OnlineTuner::new(found, BOTH);
    let loader = DataLoader {
        tuner: Some(Arc::new(Mutex::new(tuner))),
        ..loader
    };
    loader.save_settings(&path).unwrap();
    let builder = DataLoader::builder(graph()).settings_from(&path).unwrap();
    (path, builder)
}

#[cfg(feature = "tune")]
#[test]
fn what_was_found_is_where_the_next_run_begins_and_is_still_tuned() {
    let found = Setting {
        workers: 1,
        prefetch: 7,
        processes: 0,
    };
    let (path, builder) = with_found("begin", found);
    let loader = builder.tune(true).build().unwrap();
    let cores = DataLoader::builder(Graph::range(0..1)).build().unwrap();
    let cores = cores.engine.settings.workers;
    assert_eq!(loader.engine.settings.workers, cores);
    let prefetch = &loader.engine.plan.prefetch;
    assert_eq!((prefetch.items, prefetch.adaptive), (7, true));
    let best = lock(loader.tuner.as_ref().unwrap()).search.best();
    assert_eq!(best, found);
    // The tuner may find others, or none.
    loader.save_settings(&path).unwrap();
    let graph = || DataLoader::builder(Graph::range(0..40).batch(4));
    let again = graph().settings_from(&path).unwrap().tune(true);
    let again = again.build().unwrap();
    assert_eq!(lock(again.tuner.as_ref().unwrap()).search.best(), found);
    // A number that the user chose is not tuned, nor in a later run that reads it from the file.
    let chosen = graph().settings_from(&path).unwrap().tune(true);
    let chosen = chosen.workers(3).prefetch(2).build().unwrap();
    assert!(chosen.tuner.is_none());
    chosen.save_settings(&path).unwrap();
    let loader = graph().settings_from(&path).unwrap().tune(true);
    let loader = loader.build().unwrap();
    let settings = &loader.engine.settings;
    assert_eq!((settings.workers, settings.prefetch), (3, Some(2)));
    assert!(loader.tuner.is_none());
    std::fs::remove_file(path).unwrap();
}

#[cfg(feature = "tune")]
#[test]
fn what_was_found_is_set_where_nothing_is_tuned_and_is_kept() {
    let found = Setting {
        workers: 1,
        prefetch: 7,
        processes: 0,
    };
    let (path, builder) = with_found("set", found);
    let loader = builder.tune(false).build().unwrap();
    assert!(loader.tuner.is_none());
    assert_eq!(loader.engine.settings.workers, 1);
    assert_eq!(loader.engine.plan.prefetch.items, 7);
    loader.save_settings(&path).unwrap();
    let graph = Graph::range(0..40).batch(4);
    let loader = DataLoader::builder(graph).settings_from(&path).unwrap();
    let loader = loader.tune(true).build().unwrap();
    assert_eq!(lock(loader.tuner.as_ref().unwrap()).search.best(), found);
    std::fs::remove_file(path).unwrap();
}
