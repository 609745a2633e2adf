//! Checkpoints that epochs save by themselves.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures::StreamExt;

use super::Every;
use crate::run::block_on;
use crate::sync::lock;
use crate::{BoxError, Checkpoint, DataLoader, ErrorKind, Graph, Result};

/// A new folder, which is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path =
            std::env::temp_dir().join(format!("datapipes-autosave-{name}-{}", std::process::id()));
        _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn checkpoint(&self) -> PathBuf {
        self.0.join("run.state")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes a loader of 25 batches.
fn loader(path: &Path, every: impl Into<Every>) -> DataLoader<Vec<u64>> {
    let graph = Graph::range(0..100).shuffle(20).batch(4);
    DataLoader::builder(graph)
        .seed(7)
        .workers(0)
        .autosave(path, every)
        .build()
        .unwrap()
}

fn delivered(loader: &DataLoader<Vec<u64>>, path: &Path) -> u64 {
    loader.flush_autosave().unwrap();
    Checkpoint::load(path).map_or(0, |state| state.delivered())
}

#[test]
fn an_experiment_leaves_the_checkpoint_of_a_training_alone() {
    let folder = Folder::new("headroom");
    let path = folder.checkpoint();
    let loader = loader(&path, 1);
    let headroom = loader.headroom(9, |_| crate::Ok(())).unwrap();
    assert_eq!(headroom.with_loading.count(), 9);
    loader.flush_autosave().unwrap();
    assert!(!path.exists());
}

#[test]
fn an_epoch_that_fails_before_its_first_item_leaves_the_checkpoint_of_an_earlier_one() {
    let folder = Folder::new("before");
    let path = folder.checkpoint();
    let earlier = loader(&path, 1);
    assert_eq!(earlier.epoch(0).blocking().take(5).count(), 5);
    earlier.flush_autosave().unwrap();
    let before = fs::read(&path).unwrap();
    let fails = |_| Err::<u64, _>(crate::Error::user("unreadable"));
    let graph = Graph::range(0..9).try_map(fails).batch(3);
    let builder = DataLoader::builder(graph).resumable();
    let failing = builder.autosave(&path, 1).build().unwrap();
    assert!(failing.epoch(0).blocking().next().unwrap().is_err());
    failing.flush_autosave().unwrap();
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_state_counts_what_the_loop_is_done_with() {
    let folder = Folder::new("done");
    let path = folder.checkpoint();
    for (every, saved) in [
        (Every::Items(3), [0, 0, 0, 3, 3, 3, 6]),
        (Duration::ZERO.into(), [0, 1, 2, 3, 4, 5, 6]),
    ] {
        _ = fs::remove_file(&path);
        let loader = loader(&path, every);
        let mut epoch = loader.epoch(0).blocking();
        for saved in saved {
            epoch.next().unwrap().unwrap();
            // The last item may be half done.
            assert_eq!(delivered(&loader, &path), saved);
        }
        drop(epoch);
        assert_eq!(
            delivered(&loader, &path),
            *saved.last().unwrap(),
            "a drop saves nothing"
        );
        assert_eq!(loader.epoch(0).blocking().count(), 25);
        loader.flush_autosave().unwrap();
        assert!(Checkpoint::load(&path).unwrap().is_finished());
    }
}

#[test]
fn every_way_to_read_an_epoch_saves_its_state() {
    type Way = (
        &'static str,
        fn(&DataLoader<Vec<u64>>) -> Vec<Result<Vec<u64>>>,
    );
    let ways: [Way; 7] = [
        ("blocking", |loader| {
            loader.epoch(0).blocking().take(7).collect()
        }),
        ("stream", |loader| {
            block_on(loader.epoch(0).take(7).collect())
        }),
        ("items", |loader| {
            loader
                .epoch(0)
                .blocking()
                .items()
                .map(|i| i.map(|i| i.into_inner()))
                .take(7)
                .collect()
        }),
        ("agreed", |loader| {
            loader.epoch(0).blocking().agreed(Ok).take(7).collect()
        }),
        ("agreed stream", |loader| {
            block_on(
                loader
                    .epoch(0)
                    .agreed(|mine| std::future::ready(Ok(mine)))
                    .take(7)
                    .collect(),
            )
        }),
        ("device", |loader| {
            loader
                .prefetch_to_device(Ok::<_, BoxError>)
                .epoch(0)
                .blocking()
                .take(7)
                .collect()
        }),
        ("agreed device stream", |loader| {
            let epoch = loader.prefetch_to_device(Ok::<_, BoxError>).epoch(0);
            block_on(
                epoch
                    .agreed(|mine| std::future::ready(Ok(mine)))
                    .take(7)
                    .collect(),
            )
        }),
    ];
    for (name, way) in ways {
        let folder = Folder::new("ways");
        let path = folder.checkpoint();
        let whole = Vec::from_iter(loader(&path, 1000).epoch(0).blocking().map(Result::unwrap));
        _ = fs::remove_file(&path);
        let first = loader(&path, 2);
        assert_eq!(
            way(&first).into_iter().collect::<Result<Vec<_>>>().unwrap(),
            whole[..7],
            "{name}"
        );
        drop(first);
        let again = loader(&path, 2);
        let rest = again
            .resume_or_start(&path)
            .unwrap()
            .blocking()
            .collect::<Result<Vec<_>>>()
            .unwrap();
        assert_eq!(rest, whole[6..], "{name}");
        // The epoch has ended, so the next is another.
        again.flush_autosave().unwrap();
        assert_eq!(again.resume_or_start(&path).unwrap().number(), 1, "{name}");
    }
}

#[test]
fn ranks_that_end_together_save_a_finished_state() {
    let folder = Folder::new("agreed");
    let path = folder.checkpoint();
    let loader = loader(&path, 1000);
    let mut left = 3;
    let epoch = loader.epoch(0).blocking().agreed(|mine| {
        left -= 1;
        Ok(mine && left >= 0)
    });
    assert_eq!(epoch.count(), 3);
    loader.flush_autosave().unwrap();
    let state = Checkpoint::load(&path).unwrap();
    assert_eq!((state.delivered(), state.is_finished()), (3, true));
}

#[test]
fn an_item_that_fails_is_what_the_saved_epoch_begins_with() {
    let folder = Folder::new("fails");
    let path = folder.checkpoint();
    let graph = || Graph::range(0..20).try_map(|n| if n == 5 { Err("no") } else { Ok(n) });
    let loader = DataLoader::builder(graph())
        .workers(0)
        .autosave(&path, 1000)
        .build()
        .unwrap();
    assert_eq!(loader.epoch(0).blocking().filter(Result::is_ok).count(), 5);
    loader.flush_autosave().unwrap();
    assert!(
        loader
            .resume_or_start(&path)
            .unwrap()
            .blocking()
            .next()
            .unwrap()
            .is_err()
    );
}

#[test]
fn a_state_that_cannot_be_written_is_said_once_and_tried_again() {
    let folder = Folder::new("unwritable");
    let path = folder.checkpoint();
    let missing = folder.0.join("none").join("run.state");
    for (path, said) in [
        (&*missing, "there is no folder"),
        (&folder.0, "it exists, and is no regular file"),
        (Path::new("/"), "it names no file"),
    ] {
        let graph = Graph::range(0..100).batch(4);
        let problem = DataLoader::builder(graph).autosave(path, 1).build();
        let problem = problem.unwrap_err().to_string();
        assert!(problem.contains(said), "{problem}");
    }

    let loader = loader(&path, 5);
    let whole = Vec::from_iter(loader.epoch(0).blocking().map(Result::unwrap));
    assert!(loader.flush_autosave().is_ok());
    // A folder blocks the path of the temporary file.
    let beside = folder.0.join(".run.state.new");
    fs::create_dir(&beside).unwrap();
    let (mut seen, mut errors) = (Vec::new(), 0);
    let mut epoch = loader.epoch(0).blocking();
    loop {
        if seen.len() == 12 {
            _ = fs::remove_dir(&beside);
        }
        match epoch.next() {
            None => break,
            Some(Ok(batch)) => seen.push(batch),
            Some(Err(error)) => {
                assert!(
                    error.kind() == ErrorKind::Io && error.to_string().contains("run.state"),
                    "{error}"
                );
                errors += 1;
                // The call does not take back the item delivered before the error.
                epoch.fail_last();
            }
        }
        // The checkpoint is written before the next item is asked for.
        while lock(&loader.saver.as_ref().unwrap().pending.work).is_writing {
            std::thread::yield_now();
        }
    }
    assert_eq!((seen, errors), (whole, 2));
    assert!(loader.flush_autosave().is_ok());
    assert!(Checkpoint::load(&path).unwrap().is_finished());

    // `flush_autosave` reports the error, too.
    fs::create_dir(&beside).unwrap();
    assert_eq!(
        loader
            .epoch(1)
            .blocking()
            .take(6)
            .map(Result::unwrap)
            .count(),
        6
    );
    assert_eq!(loader.flush_autosave().unwrap_err().kind(), ErrorKind::Io);
    assert!(loader.flush_autosave().is_ok(), "once");
}

#[cfg(unix)]
#[test]
fn the_step_does_not_wait_for_the_disk() {
    let folder = Folder::new("slow");
    let path = folder.checkpoint();
    let beside = folder.0.join(".run.state.new");
    // Opening the pipe for writing waits for a reader.
    assert!(
        Command::new("mkfifo")
            .arg(&beside)
            .status()
            .unwrap()
            .success()
    );
    let loader = loader(&path, 2);
    assert_eq!(loader.epoch(0).blocking().map(Result::unwrap).count(), 25);
    let pending = loader.saver.as_ref().unwrap().pending.clone();
    let waiting = |pending: &super::PendingSave| {
        let work = lock(&pending.work);
        (
            work.is_writing,
            work.waiting.as_ref().is_some_and(Checkpoint::is_finished),
        )
    };
    assert_eq!(
        waiting(&pending),
        (true, true),
        "the newest has taken the places of the others"
    );
    assert!(!path.exists());

    // A reader, which does not wait for a writer.
    let reader = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&beside)
        .unwrap();
    fs::remove_file(&beside).unwrap();
    _ = loader.flush_autosave();
    drop(reader);
    assert_eq!(loader.epoch(1).blocking().filter(Result::is_ok).count(), 25);
    loader.flush_autosave().unwrap();
    assert_eq!(Checkpoint::load(&path).unwrap().epoch(), 1);
}

#[test]
fn what_is_no_state_of_this_loader_is_not_taken_for_none() {
    let folder = Folder::new("refused");
    let path = folder.checkpoint();
    assert_eq!(loader(&path, 2).resume_or_start(&path).unwrap().number(), 0);
    fs::write(&path, b"nonsense").unwrap();
    assert!(loader(&path, 2).resume_or_start(&path).is_err());
    let other = DataLoader::builder(Graph::range(0..7))
        .resumable()
        .build()
        .unwrap();
    other.epoch(3).checkpoint().unwrap().save(&path).unwrap();
    assert_eq!(
        loader(&path, 2).resume_or_start(&path).unwrap_err().kind(),
        ErrorKind::Config
    );
    assert_eq!(other.resume_or_start(&path).unwrap().number(), 3);
}

/// Environment variable of the process that the test below starts: the path to save to.
const ALONE: &str = "DATAPIPES_TEST_AUTOSAVE";

#[test]
#[ignore = "started by the test below"]
fn trains_until_it_is_killed() {
    let Some(path) = std::env::var_os(ALONE) else {
        return;
    };
    let loader = loader(Path::new(&path), 1);
    let mut out = std::io::stdout();
    for batch in loader.resume_or_start(&path).unwrap().blocking() {
        batch.unwrap();
        // A step, which the reader of this output knows to have begun. It takes about as long as
        // writing a checkpoint.
        out.write_all(b"#").and_then(|()| out.flush()).unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(3) {
            std::hint::spin_loop();
        }
    }
    loader.flush_autosave().unwrap();
    out.write_all(b".").unwrap();
}

#[test]
fn a_killed_loop_goes_on_from_a_state_that_it_had_come_to() {
    let folder = Folder::new("killed");
    let path = folder.checkpoint();
    let whole = Vec::from_iter(loader(&path, 1000).epoch(0).blocking().map(Result::unwrap));
    _ = fs::remove_file(&path);
    let name = format!(
        "{}::trains_until_it_is_killed",
        module_path!().strip_prefix("datapipes::").unwrap()
    );
    let mut before = 0;
    for round in 0..40 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &name, "--ignored", "--test-threads=1", "--quiet"]);
        let mut child = command
            .env(ALONE, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut steps, mut bytes) = (0, BufReader::new(child.stdout.take().unwrap()).bytes());
        loop {
            match bytes.next().expect("it says when it is done").unwrap() {
                b'#' => steps += 1,
                b'.' => break,
                _ => {}
            }
            if steps > 2 + round % 5 {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let Ok(state) = Checkpoint::load(&path) else {
            assert_eq!(
                before, 0,
                "round {round}: there is none, where there was one"
            );
            continue;
        };
        let delivered = state.delivered();
        // On a busy machine it may come to its end before it is killed.
        assert!(
            (before..=25).contains(&delivered),
            "round {round}: {delivered}, {before} before"
        );
        let rest = loader(&folder.0.join("other.state"), 1000)
            .resume(&state)
            .unwrap()
            .blocking();
        assert_eq!(
            Vec::from_iter(rest.map(Result::unwrap)),
            whole[delivered as usize..],
            "round {round}"
        );
        before = delivered;
        if state.is_finished() {
            return;
        }
    }
    assert!(before > 0, "no state in 40 rounds");
}
