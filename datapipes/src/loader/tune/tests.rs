//! Grid and search over made-up costs, tunings of small graphs, and settings files. Nothing here
//! depends on a clock.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;

use super::search::{Space, grid, search};
use super::*;
use crate::{DataLoader, Graph, Rng};

fn trial(point: Point, seconds: Option<f64>) -> Trial {
    Trial {
        point,
        seconds,
        memory: 0,
    }
}

fn point(workers: usize, prefetch: usize) -> Point {
    Point { workers, prefetch }
}

/// Returns a path that no other test uses, in a folder that exists.
fn fresh(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("datapipes-tune-tests-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    dir.join(name)
}

fn batches() -> Graph<Vec<u64>> {
    Graph::range(0..40).map(|n| n * n).batch(4)
}

fn tuner<'a>(graph: &'a Graph<Vec<u64>>) -> Tuner<'a, Vec<u64>> {
    Tuner::new(|| DataLoader::builder(graph.clone()).seed(7))
        .cores(2)
        .most_prefetch(2)
        .batches(15)
}

#[test]
fn the_grid_has_the_points_of_the_papers_loops() {
    let space = Space::new(12, 4, 3);
    let points = |space: &Space| -> Vec<(usize, usize)> {
        let trials = grid(space, |point| Ok(trial(point, Some(1.0))))
            .unwrap()
            .trials;
        let points = trials.iter().map(|trial| trial.point);
        points
            .map(|point| (point.workers, point.prefetch))
            .collect()
    };
    let expected = [4, 8, 12].map(|workers| [1, 2, 3].map(|prefetch| (workers, prefetch)));
    assert_eq!(points(&space), expected.concat());
    assert_eq!(space.points(), 9);
    // `while i < N { i += G; … }`: the last step passes N.
    assert_eq!(Space::new(4, 3, 1).workers, [3, 6]);
    assert_eq!(Space::new(2, 8, 1).workers, [8]);
    assert_eq!(Space::new(48, 1, 48).points(), 48 * 48);
}

#[test]
fn the_grid_takes_the_first_of_the_quickest() {
    let space = Space::new(2, 1, 2);
    let times = |at: Point| [3.0, 2.0, 2.0, 2.5][2 * (at.workers - 1) + at.prefetch - 1];
    let outcome = grid(&space, |at| Ok(trial(at, Some(times(at))))).unwrap();
    assert_eq!(outcome.best, Some(point(1, 2)));
    let outcome = grid(&space, |at| Ok(trial(at, None))).unwrap();
    assert_eq!((outcome.best, outcome.trials.len()), (None, 2));
}

#[test]
fn a_longer_queue_is_not_tried_after_one_that_passed_the_bound() {
    let space = Space::new(4, 1, 5);
    let cost = |point: Point| {
        let fits = point.workers * point.prefetch <= 6;
        Ok(trial(point, fits.then_some(1.0 / point.workers as f64)))
    };
    let outcome = grid(&space, cost).unwrap();
    let trials = &outcome.trials;
    let of = |workers| {
        let of = trials.iter().filter(|trial| trial.point.workers == workers);
        of.map(|trial| (trial.point.prefetch, trial.seconds.is_some()))
            .collect::<Vec<_>>()
    };
    assert_eq!(of(1).len(), 5);
    assert_eq!(of(2), [(1, true), (2, true), (3, true), (4, false)]);
    assert_eq!(of(4), [(1, true), (2, false)]);
    assert_eq!(outcome.best, Some(point(4, 1)));

    // The search, too, chooses what fits.
    let outcome = search(&space, cost).unwrap();
    assert_eq!(outcome.best, Some(point(4, 1)));
    assert!(outcome.trials.iter().any(|trial| trial.seconds.is_none()));
    // A point that passes the bound in a later run only.
    let mut runs = 0;
    let outcome = search(&space, |at| {
        runs += usize::from(at == point(4, 1));
        let fits = at.prefetch == 1 && (at.workers < 4 || runs < 2);
        Ok(trial(at, fits.then_some(1.0 / at.workers as f64)))
    })
    .unwrap();
    assert_ne!(outcome.best, Some(point(4, 1)));
    assert_eq!(outcome.best.map(|best| best.prefetch), Some(1));
    let nothing_fits = |point| Ok(trial(point, None));
    assert_eq!(search(&space, nothing_fits).unwrap().best, None);
    assert_eq!(
        search(&Space::new(2, 1, 2), nothing_fits).unwrap().best,
        None
    );
}

/// Time of a batch beside a training step: work that `most` workers share, each further worker
/// costs; a queue of `queue` batches hides jitter.
fn time(point: Point, most: f64, queue: usize) -> f64 {
    let (workers, prefetch) = (point.workers as f64, point.prefetch);
    let jitter = 0.08 * queue.saturating_sub(prefetch) as f64;
    1.0 / workers.min(most) + 0.004 * (workers - most).max(0.0) + 0.01 + jitter / most
}

#[test]
fn the_search_finds_the_best_within_noise_in_far_fewer_runs_than_the_grid() {
    for noise in [0.0, 0.01, 0.03] {
        let (mut most_runs, mut worst) = (0, 0.0f64);
        for case in 0..60u64 {
            let mut rng = Rng::from_key([case, 1, 2, 3]);
            let space = Space::new(48, 1, 48);
            let (most, queue) = (1.0 + rng.below(48) as f64, rng.below(12) as usize);
            let of = |point| time(point, most, queue);
            let outcome = search(&space, |point| {
                let factor = 1.0 + noise * (rng.f64() + rng.f64() + rng.f64() - 1.5) * 2.0;
                Ok(trial(point, Some(of(point) * factor)))
            })
            .unwrap();
            let all = grid(&space, |point| Ok(trial(point, Some(of(point))))).unwrap();
            let least = of(all.best.unwrap());
            worst = worst.max(of(outcome.best.unwrap()) / least - 1.0);
            most_runs = most_runs.max(outcome.trials.len());
            let found = outcome.noise.expect("runs were repeated");
            assert!(
                (0.3 * noise..=2.0 * noise + 1e-9).contains(&found),
                "{noise}, {found}"
            );
        }
        println!("noise {noise}: at most {most_runs} runs, {worst:.3} above the best");
        assert!(most_runs <= 110, "noise {noise}: {most_runs} runs of 2304");
        assert!(worst <= 0.05 + 2.0 * noise, "noise {noise}: {worst}");
    }
}

#[test]
fn settings_that_gain_nothing_are_not_chosen() {
    for case in 0..40 {
        let mut rng = Rng::from_key([case, 4, 5, 6]);
        for space in [Space::new(32, 1, 16), Space::new(3, 1, 3)] {
            // Nothing helps; the third worker only pretends to.
            let outcome = search(&space, |point| {
                let time = 1.0 + 0.004 * (rng.f64() - 0.5) - 0.005 * f64::from(point.workers == 3);
                Ok(trial(point, Some(time)))
            })
            .unwrap();
            assert_eq!(outcome.best, Some(point(1, 1)), "case {case}");
        }
    }
}

#[test]
fn an_error_of_a_run_ends_the_tuning() {
    let fails = |at: Point| match at {
        Point { workers: 2, .. } => Err(Error::new(ErrorKind::User, "broken")),
        at => Ok(trial(at, Some(1.0))),
    };
    let space = Space::new(4, 1, 4);
    assert_eq!(grid(&space, fails).unwrap_err().kind(), ErrorKind::User);
    assert_eq!(search(&space, fails).unwrap_err().kind(), ErrorKind::User);
}

#[test]
fn a_tuning_runs_each_point_with_its_batches_and_prints_a_table() {
    let (graph, seen) = (batches(), Cell::new(0));
    let mut tuner = tuner(&graph).step(|batch: Vec<u64>| {
        assert_eq!(batch.len(), 4);
        seen.set(seen.get() + 1);
        crate::Ok(())
    });
    let tuning = tuner.grid().unwrap();
    // Four points, and one run that does not count; an epoch has ten batches.
    assert_eq!((tuning.trials.len(), seen.get()), (4, 5 * 15));
    let least = tuning.seconds_at(tuning.best).unwrap();
    assert!(
        tuning
            .trials
            .iter()
            .all(|trial| trial.seconds.unwrap() >= least)
    );
    assert_eq!(tuning.seconds_at(point(9, 9)), None);

    let text = tuning.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!(lines[0].chars().count(), lines[1].chars().count(), "{text}");
    assert_eq!(lines[0].chars().count(), lines[2].chars().count(), "{text}");
    assert_eq!(text.matches('*').count(), 1, "{text}");
    let expected = format!("best by grid: {}, ", tuning.best);
    assert!(lines[3].starts_with(&expected), "{text}");
    assert!(
        lines[3].contains("4 runs of 15 batches for 4 points"),
        "{text}"
    );

    let json = serde_json::to_value(&tuning).unwrap();
    assert_eq!(json["best"]["workers"], tuning.best.workers);
    assert_eq!(json["trials"].as_array().unwrap().len(), 4);

    let tuning = tuner.search().unwrap();
    assert_eq!(tuning.points(), 4);
    assert!(tuning.trials.len() >= 4);
    assert!(tuning.seconds_at(tuning.best).is_some());
}

#[test]
fn a_tuning_leaves_the_checkpoint_of_a_training_alone() {
    let (graph, path) = (batches(), fresh("train.state"));
    fs::write(&path, "a checkpoint").unwrap();
    let builder = || DataLoader::builder(graph.clone()).autosave(&path, 1);
    let mut tuner = Tuner::new(builder).cores(1).most_prefetch(1).batches(12);
    tuner.grid().unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "a checkpoint");
}

#[test]
fn the_heat_map_has_a_cell_for_each_point_and_a_frame_for_the_best() {
    let trials = [(1, 1, Some(0.004)), (1, 2, None), (2, 1, Some(0.002))];
    let trials = trials.map(|(workers, prefetch, time)| trial(point(workers, prefetch), time));
    let tuning = Tuning {
        method: "grid",
        best: point(2, 1),
        trials: trials.to_vec(),
        noise: Some(0.021),
        batches: 5,
        seconds: 1.0,
        space: Space::new(2, 1, 2),
        requests: Vec::new(),
        nodes: Vec::new(),
    };
    let svg = tuning.heat_map();
    assert!(
        svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"),
        "{svg}"
    );
    assert_eq!(svg.matches("class=\"hot\"").count(), 1);
    assert_eq!(svg.matches("class=\"f0\"").count(), 2);
    assert_eq!(svg.matches("class=\"box\"").count(), 1);
    for text in [">4.00 ms<", ">2.00 ms<", ">memory<", ">prefetch 2<"] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
    // The slowest is the darkest.
    assert!(
        svg.contains("\"0.60\"") && svg.contains("\"0.08\""),
        "{svg}"
    );
    let text = tuning.to_string();
    assert!(
        text.contains("memory") && text.ends_with("; equal runs differ by 2.1 %"),
        "{text}"
    );
}

#[test]
fn a_bound_that_no_settings_keep_is_an_error_and_so_is_a_run_without_batches() {
    let tensors = Graph::range(0..40).map(|_| vec![0u8; 10_000]).batch(4);
    let tensor_tuner = || {
        Tuner::new(|| DataLoader::builder(tensors.clone()))
            .cores(2)
            .most_prefetch(2)
            .batches(8)
    };
    let error = tensor_tuner().memory(1000).grid().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("bound of 1000 bytes"), "{error}");
    let tuning = tensor_tuner().memory(1 << 30).grid().unwrap();
    assert!(tuning.trials.iter().all(|trial| trial.memory > 1000));

    let graph = batches();
    let empty = Graph::range(0..0).batch(4);
    for (problem, result) in [
        ("no batches", tuner(&graph).batches(0).grid()),
        ("cores is 0", tuner(&graph).cores(0).grid()),
        (
            "workers is 6000",
            tuner(&graph).cores(4096).gpus(3000).grid(),
        ),
        ("GPUs is 0", tuner(&graph).gpus(0).search()),
        ("queue is 0", tuner(&graph).most_prefetch(0).search()),
        ("epoch without a batch", tuner(&empty).grid()),
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains(problem), "{error}");
    }
    let broken = tuner(&graph).step(|_| Err("broken step")).grid();
    let error = broken.unwrap_err();
    assert!(error.to_string().contains("broken step"), "{error}");
}

/// A tuning of the graph, without runs.
fn found(graph: &Graph<Vec<u64>>, best: Point) -> Tuning {
    let loader = DataLoader::builder(graph.clone()).build().unwrap();
    Tuning {
        method: "grid",
        best,
        trials: Vec::new(),
        noise: None,
        batches: 1,
        seconds: 0.0,
        space: Space::new(1, 1, 1),
        requests: Vec::new(),
        nodes: super::super::checkpoint::nodes(&loader.engine.flow, |_| None),
    }
}

#[test]
fn a_settings_file_sets_workers_and_prefetch_and_the_last_call_wins() {
    let (graph, path) = (batches(), fresh("round-trip.json"));
    found(&graph, point(3, 5)).save(&path).unwrap();
    let builder = || DataLoader::builder(graph.clone());
    let settings = |builder: Builder<Vec<u64>>| {
        let loader = builder.build().unwrap();
        (
            loader.engine.settings.workers,
            loader.engine.settings.prefetch,
        )
    };
    let from_file = |builder: Builder<_>| builder.settings_from(&path).unwrap();
    assert_eq!(settings(from_file(builder())), (3, Some(5)));
    assert_eq!(
        settings(from_file(builder().workers(1).prefetch(1))),
        (3, Some(5))
    );
    assert_eq!(settings(from_file(builder()).workers(1)), (1, Some(5)));
    assert_eq!(settings(from_file(builder()).prefetch(1)), (3, Some(1)));
    // Seed, ranks and order are no part of the graph.
    let _ = from_file(builder().seed(9).order(crate::Order::Arrival));
}

#[test]
fn a_settings_file_that_does_not_fit_is_an_error_with_its_path_and_a_remedy() {
    let (graph, path) = (batches(), fresh("bad.json"));
    found(&graph, point(3, 5)).save(&path).unwrap();
    let good = fs::read_to_string(&path).unwrap();
    let load = |graph: Graph<Vec<u64>>| {
        let error = DataLoader::builder(graph).settings_from(&path).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("bad.json"), "{text}");
        (error.kind(), text)
    };
    let edited = |from: &str, to: &str| {
        assert!(good.contains(from), "{good}");
        fs::write(&path, good.replacen(from, to, 1)).unwrap();
        load(graph.clone())
    };
    for (from, to, kind, said) in [
        ("{", "", ErrorKind::Corrupt, "not JSON"),
        ("}\n", "", ErrorKind::Corrupt, "tune again"),
        (
            "\"version\": 3",
            "\"version\": 4",
            ErrorKind::Unsupported,
            "update the library",
        ),
        (
            "\"version\": 3",
            "\"version\": \"x\"",
            ErrorKind::Config,
            "no settings file",
        ),
        (
            "\"version\": 3",
            "\"version\": 0",
            ErrorKind::Config,
            "no settings file",
        ),
        (
            "\"workers\": 3",
            "\"workers\": 0",
            ErrorKind::Config,
            "`workers` is 0",
        ),
        (
            "\"workers\": 3",
            "\"workers\": -3",
            ErrorKind::Config,
            "correct them",
        ),
        (
            "\"workers\": 3",
            "\"workers\": 99999",
            ErrorKind::Config,
            "1 to 4096",
        ),
        (
            "\"prefetch\": 5",
            "\"prefetch\": 70000",
            ErrorKind::Config,
            "0 to 65536",
        ),
        (
            "\"tuned_prefetch\": null",
            "\"tuned_prefetch\": 17",
            ErrorKind::Config,
            "1 to 16",
        ),
        (
            "\"prefetch\": 5",
            "\"prefecth\": 5",
            ErrorKind::Config,
            "prefecth",
        ),
    ] {
        let (found, text) = edited(from, to);
        assert_eq!(found, kind, "{to}: {text}");
        assert!(text.contains(said), "{to}: {text}");
    }
    fs::write(&path, &good).unwrap();
    let (kind, text) = load(Graph::range(0..40).map(|n| n * n).batch(8));
    assert_eq!(kind, ErrorKind::Config);
    assert!(text.contains("another graph: `batch` was"), "{text}");
    assert!(text.contains("tune this graph"), "{text}");
    fs::remove_file(&path).unwrap();
    assert_eq!(load(graph.clone()).0, ErrorKind::NotFound);
    fs::create_dir_all(&path).unwrap();
    assert_eq!(load(graph.clone()).0, ErrorKind::Io);

    let error = found(&graph, point(1, 1)).save(&path).unwrap_err();
    assert!(error.to_string().contains("bad.json"), "{error}");
    let error = found(&graph, point(1, 1))
        .save(path.join("no/folder"))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn samples_and_their_order_are_the_same_with_any_settings_that_a_tuning_may_find() {
    let graphs: [fn() -> Graph<Vec<u64>>; 3] = [
        || Graph::range(0..300).shuffle(50).map(|n| n + 1).batch(7),
        || {
            let random = |n: u64, rng: &mut Rng| crate::Ok(n * 1000 + rng.below(1000));
            let graph = Graph::range(0..200).try_map_with_rng(random);
            graph.filter(|n| n % 3 != 0).shuffle(20).batch(5)
        },
        || {
            let members = Graph::range(0..30).flat_map(|n| vec![n; n as usize % 5]);
            members.map(|n| n * n).shuffle(40).batch(3)
        },
    ];
    let path = fresh("any.json");
    let mut rng = Rng::from_key([7, 7, 7, 7]);
    for graph in graphs {
        let all = |builder: Builder<Vec<u64>>| {
            let loader = builder.seed(11).build().unwrap();
            let epoch = |number| loader.epoch(number).blocking().collect::<Result<Vec<_>>>();
            [epoch(0).unwrap(), epoch(3).unwrap()]
        };
        let expected = all(DataLoader::builder(graph()).workers(0));
        for _ in 0..8 {
            let best = point(1 + rng.below(6) as usize, 1 + rng.below(9) as usize);
            found(&graph(), best).save(&path).unwrap();
            let builder = DataLoader::builder(graph()).settings_from(&path).unwrap();
            assert_eq!(all(builder), expected, "{best}");
        }
    }
}

/// A graph with requests that a store answers at once, and so many that an epoch is longer than the
/// least time of a round.
fn requests() -> Graph<Vec<u64>> {
    let answered = Graph::range(0..20_000).map_async(async |n: u64| crate::Ok(n + 1));
    answered.batch(500)
}

#[test]
fn what_a_run_has_learned_of_its_requests_is_where_the_next_begins() {
    let path = fresh("learned.json");
    let first = DataLoader::builder(requests()).workers(2).build().unwrap();
    assert_eq!(first.engine.requests(), []);
    let mut epoch = 0;
    while first.engine.requests().is_empty() {
        first
            .epoch(epoch)
            .blocking()
            .for_each(|batch| drop(batch.unwrap()));
        epoch += 1;
    }
    let learned = first.engine.requests();
    assert_eq!((learned.len(), &*learned[0].node), (1, "map_async"));
    first.save_settings(&path).unwrap();
    let builder = DataLoader::builder(requests()).settings_from(&path);
    let second = builder.unwrap().build().unwrap();
    assert_eq!(second.engine.requests(), learned);
    assert_eq!(second.engine.settings.workers, 2);
    assert_eq!(second.engine.settings.prefetch, None);
}

#[test]
fn settings_that_nobody_chose_are_not_saved() {
    let path = fresh("automatic.json");
    let saved = |builder: Builder<Vec<u64>>| {
        builder.build().unwrap().save_settings(&path).unwrap();
        let builder = DataLoader::builder(batches()).settings_from(&path).unwrap();
        let settings = builder.build().unwrap().engine.settings.clone();
        (settings.cpu_share, settings.workers, settings.prefetch)
    };
    let cores = DataLoader::builder(batches()).build().unwrap();
    let cores = cores.engine.settings.workers;
    assert_eq!(
        saved(DataLoader::builder(batches())),
        (Some(1.0), cores, None)
    );
    // A share of other cores is another number.
    let share = DataLoader::builder(batches()).cpu_share(0.5);
    assert_eq!(saved(share), (Some(1.0), cores, None));
    let chosen = DataLoader::builder(batches()).workers(3).prefetch(2);
    assert_eq!(saved(chosen), (None, 3, Some(2)));
}

#[cfg(unix)]
#[test]
fn a_settings_file_is_replaced_whole_or_not_at_all() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let path = fresh("whole.json");
    found(&batches(), point(3, 5)).save(&path).unwrap();
    let before = fs::metadata(&path).unwrap().ino();
    found(&batches(), point(4, 5)).save(&path).unwrap();
    // A reader that has the old file open reads on in it.
    assert_ne!(fs::metadata(&path).unwrap().ino(), before);
    assert!(
        fs::read_to_string(&path)
            .unwrap()
            .contains("\"workers\": 4")
    );
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o400, 0o400);
}

#[cfg(unix)]
#[test]
fn a_settings_file_that_would_block_is_refused() {
    let path = fresh("pipe.json");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    let error = found(&batches(), point(3, 5)).save(&path).unwrap_err();
    assert!(error.to_string().contains("pipe.json"), "{error}");
    let error = DataLoader::builder(batches())
        .settings_from(&path)
        .unwrap_err();
    assert!(error.to_string().contains("pipe.json"), "{error}");
}

#[test]
fn a_settings_file_of_version_1_is_still_read() {
    let (graph, path) = (batches(), fresh("version-1.json"));
    found(&graph, point(3, 5)).save(&path).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let older = text.replace("\"version\": 3", "\"version\": 1");
    let older = older.replace("  \"requests\": [],\n", "");
    assert!(!older.contains("requests"), "{older}");
    fs::write(&path, older).unwrap();
    let loader = DataLoader::builder(graph)
        .settings_from(&path)
        .unwrap()
        .build()
        .unwrap();
    assert_eq!(loader.engine.settings.workers, 3);
}

#[test]
fn a_built_loader_is_tuned_without_a_trace_of_it() {
    let graph = batches();
    let state = fresh("tuned.state");
    let loader = DataLoader::builder(graph.clone())
        .seed(7)
        .autosave(&state, 1)
        .build()
        .unwrap();
    let mut seen = Vec::new();
    let tuning = Tuner::of(&loader)
        .cores(2)
        .most_prefetch(2)
        .batches(15)
        .step(|batch| {
            seen.push(batch);
            crate::Ok(())
        })
        .grid()
        .unwrap();
    let points: Vec<Point> = tuning.trials.iter().map(|trial| trial.point).collect();
    assert_eq!(points, [point(1, 1), point(1, 2), point(2, 1), point(2, 2)]);
    // Each run, and the one that does not count, has the loader's own batches.
    let epochs = (0..2).flat_map(|epoch| loader.without_autosave().epoch(epoch).blocking());
    let own: Vec<Vec<u64>> = epochs.take(15).map(Result::unwrap).collect();
    assert_eq!(seen, vec![own; 5].concat());
    let fresh_loader = loader.with_point(point(2, 1)).unwrap();
    assert!(fresh_loader.stats().is_none() && fresh_loader.saver.is_none());
    assert!(!state.exists());
    let path = fresh("of-a-loader.json");
    tuning.save(&path).unwrap();
    let builder = DataLoader::builder(graph).settings_from(&path).unwrap();
    assert_eq!(builder.build().unwrap().epoch(0).blocking().count(), 10);
}
