//! A checkpoint in a file, and other contents of the file.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Checkpoint;
use crate::{DataLoader, ErrorKind, Graph, Rng};

/// A new folder, which is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path =
            std::env::temp_dir().join(format!("datapipes-states-{name}-{}", std::process::id()));
        _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names =
            Vec::from_iter(entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()));
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn loader(items: u64) -> DataLoader<Vec<u64>> {
    let graph = Graph::range(0..items)
        .filter(|n| n % 3 != 1)
        .shuffle(20)
        .batch(4);
    DataLoader::builder(graph)
        .seed(7)
        .workers(0)
        .resumable()
        .build()
        .unwrap()
}

fn state(steps: usize) -> Checkpoint {
    let mut epoch = loader(300).epoch(0).blocking();
    assert_eq!(epoch.by_ref().take(steps).count(), steps);
    epoch.checkpoint().unwrap()
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_not_replaced() {
    let folder = Folder::new("socket");
    let path = folder.0.join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let error = state(1).save(&path).unwrap_err().to_string();
    assert!(
        error.ends_with("it exists, and is no regular file"),
        "{error}"
    );
    assert_eq!(folder.names(), ["socket"]);
    assert!(!fs::metadata(&path).unwrap().is_file());
}

#[test]
fn what_is_left_of_another_attempt_is_no_matter() {
    let folder = Folder::new("left");
    let path = folder.0.join("run.state");
    let (old, new) = (state(3), state(9));
    let bytes = new.to_bytes();
    // A temporary file with half of the bytes; with more than there will be, which have to go; with
    // none.
    for left in [&bytes[..bytes.len() / 2], &vec![0xff; 3 * bytes.len()], b""] {
        old.save(&path).unwrap();
        fs::write(folder.0.join(".run.state.new"), left).unwrap();
        assert!(
            Checkpoint::load(&path).unwrap() == old,
            "what lies beside it is not read"
        );
        new.save(&path).unwrap();
        assert!(Checkpoint::load(&path).unwrap() == new);
        assert_eq!(fs::read(&path).unwrap(), bytes);
        assert_eq!(folder.names(), ["run.state"]);
    }
}

#[test]
fn a_file_may_have_the_longest_name() {
    let folder = Folder::new("long");
    let paths = ["a", "b"].map(|end| folder.0.join(format!("{}{end}", "x".repeat(254))));
    let (first, second) = (state(3), state(9));
    first.save(&paths[0]).unwrap();
    second.save(&paths[1]).unwrap();
    assert!(Checkpoint::load(&paths[0]).unwrap() == first);
    assert_eq!(folder.names().len(), 2);
}

#[test]
fn what_cannot_be_written_leaves_what_was_there() {
    let folder = Folder::new("unwritable");
    let path = folder.0.join("run.state");
    let (old, new) = (state(3), state(9));
    old.save(&path).unwrap();
    // A folder blocks the path of the temporary file.
    let beside = folder.0.join(".run.state.new");
    fs::create_dir(&beside).unwrap();
    let problem = new.save(&path).unwrap_err();
    assert_eq!(problem.kind(), ErrorKind::Io);
    let named = |path: &Path| format!("{}: the checkpoint cannot be written", path.display());
    assert!(problem.to_string().contains(&named(&path)), "{problem}");
    assert!(Checkpoint::load(&path).unwrap() == old);
    fs::remove_dir(&beside).unwrap();
    new.save(&path).unwrap();
    assert!(Checkpoint::load(&path).unwrap() == new);

    // A missing folder is not created.
    let missing = folder.0.join("none").join("run.state");
    let problem = new.save(&missing).unwrap_err();
    assert_eq!(problem.kind(), ErrorKind::NotFound);
    assert!(problem.to_string().contains(&named(&missing)), "{problem}");
    assert_eq!(folder.names(), ["run.state"]);
    // A folder is not replaced either, nor the target of a path without a name.
    let taken = folder.0.join("folder");
    fs::create_dir_all(taken.join("inside")).unwrap();
    for path in [&taken, &folder.0.join("..")] {
        let problem = new.save(path).unwrap_err();
        assert!(problem.to_string().contains(&named(path)), "{problem}");
    }
    assert!(taken.join("inside").is_dir());
    assert!(Checkpoint::load(&path).unwrap() == new);
}

#[test]
fn row_120_a_file_that_is_cut_or_damaged_is_refused_with_its_path() {
    let folder = Folder::new("damaged");
    let path = folder.0.join("run.state");
    let problem = Checkpoint::load(&path).unwrap_err();
    assert_eq!(problem.kind(), ErrorKind::NotFound);
    assert!(
        problem.to_string().contains(&path.display().to_string()),
        "{problem}"
    );
    let problem = Checkpoint::load(&folder.0).unwrap_err();
    assert_eq!(problem.kind(), ErrorKind::Io);
    assert!(
        problem
            .to_string()
            .contains(&folder.0.display().to_string()),
        "{problem}"
    );

    let whole = state(9);
    let bytes = whole.to_bytes();
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let problem = Checkpoint::load(&path).unwrap_err();
        let named = format!("{}: {}: ", problem.kind(), path.display());
        let said = problem.to_string();
        let rest = said.strip_prefix(&named).expect(&said);
        assert!(!rest.contains(&problem.kind().to_string()), "{said}");
        assert!(
            matches!(problem.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported),
            "{problem}"
        );
    };
    for at in 0..bytes.len() {
        refused(&bytes[..at]);
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        refused(&damaged);
    }
    refused(&[&bytes[..], b"\n"].concat());
    // Blocks that were never written.
    let half = bytes.len() / 2;
    refused(&[&bytes[..half], &vec![0; bytes.len() - half]].concat());
    fs::write(&path, &bytes).unwrap();
    assert!(Checkpoint::load(&path).unwrap() == whole);
}

/// Environment variable of the process that a test starts: the path to write to.
const ALONE: &str = "DATAPIPES_TEST_STATES";
const ITEMS: u64 = 30_000;
const KILLS: usize = 40;

#[test]
#[ignore = "started by the test below"]
fn saves_until_it_is_killed() {
    let Some(path) = std::env::var_os(ALONE) else {
        return;
    };
    let loader = loader(ITEMS);
    let epoch = match Checkpoint::load(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => loader.epoch(0),
        state => loader.resume(&state.unwrap()).unwrap(),
    };
    let mut epoch = epoch.blocking();
    let mut out = std::io::stdout();
    while let Some(batch) = epoch.next() {
        batch.unwrap();
        epoch.checkpoint().unwrap().save(&path).unwrap();
        // The reader of this output knows that the checkpoint is written.
        out.write_all(b"#").and_then(|()| out.flush()).unwrap();
    }
}

#[test]
fn row_121_a_process_that_is_killed_while_it_saves_leaves_a_whole_state() {
    let folder = Folder::new("killed");
    let path = folder.0.join("run.state");
    let whole: Vec<_> = loader(ITEMS)
        .epoch(0)
        .blocking()
        .map(Result::unwrap)
        .collect();
    let name = format!(
        "{}::saves_until_it_is_killed",
        module_path!().strip_prefix("datapipes::").unwrap()
    );
    let mut rng = Rng::from_key([121, 0, 0, 0]);
    let mut before = 0;
    for round in 0..KILLS {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &name, "--ignored", "--test-threads=1", "--quiet"]);
        let mut child = command
            .env(ALONE, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // At some moment after some number of checkpoints.
        let wanted = rng.below(9);
        let (mut said, mut bytes) = (0, BufReader::new(child.stdout.take().unwrap()).bytes());
        while said < wanted {
            let byte = bytes
                .next()
                .expect("it goes on until it is killed")
                .unwrap();
            said += u64::from(byte == b'#');
        }
        let moment = Instant::now() + Duration::from_micros(rng.below(2000));
        while Instant::now() < moment {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success(), "it ended by itself");
        let state = match Checkpoint::load(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound && before + said == 0 => continue,
            state => state.unwrap_or_else(|error| panic!("kill {round}: {error}")),
        };
        // All steps that were reported, and no step that cannot have been reached.
        let delivered = state.delivered();
        assert!(
            delivered >= before + said,
            "kill {round}: {delivered}, and {before} and {said} more were saved"
        );
        let rest = loader(ITEMS).resume(&state).unwrap().blocking();
        assert_eq!(
            Vec::from_iter(rest.map(Result::unwrap)),
            whole[delivered as usize..],
            "kill {round}"
        );
        before = delivered;
    }
    assert!(before > 0 && before < whole.len() as u64);
}
