//! The command `top`, run as a program, on loaders of another process: this test once more.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use datapipes::loader::monitor::Figures;
use datapipes::{DataLoader, Graph};

// A part of a graph runs in a child of this executable.
datapipes::before_main!();

/// Set for the process that loads.
const LOADS: &str = "DATAPIPES_TEST_LOADS";

#[test]
#[ignore = "started by the tests below"]
fn loads_until_it_is_told_to_end() {
    if std::env::var_os(LOADS).is_none() {
        return;
    }
    #[cfg(target_os = "linux")]
    let graph = Graph::range(0..100).in_processes(1, add).batch(10);
    #[cfg(not(target_os = "linux"))]
    let graph = add(Graph::range(0..100)).batch(10);
    let loader = DataLoader::builder(graph).workers(1).build().unwrap();
    let validation = DataLoader::builder(Graph::range(0..10)).build().unwrap();
    let mut epoch = loader.epoch(5).blocking();
    epoch.next().unwrap().unwrap();
    println!("LOADS");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    drop(epoch);
    drop((loader, validation));
}

/// Adds one. The loader that it builds in a child process has no socket.
fn add(numbers: Graph<u64>) -> Graph<u64> {
    let add = |n| {
        if cfg!(target_os = "linux") {
            let inner = DataLoader::builder(Graph::range(0..1)).build().unwrap();
            std::mem::forget(inner);
        }
        n + 1
    };
    numbers.map(add).named("add")
}

/// A process with two loaders, the first of which runs an epoch.
/// Its output stays open, since the test harness there writes to it.
struct Loading {
    child: Child,
    _output: Lines<BufReader<ChildStdout>>,
}

impl Loading {
    fn begin(runtime: &Path, monitor: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "loads_until_it_is_told_to_end",
                "--ignored",
                "--nocapture",
            ])
            .env(LOADS, "1")
            .env("DATAPIPES_MONITOR", monitor)
            .env("XDG_RUNTIME_DIR", runtime)
            .env("TMPDIR", runtime)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("LOADS")));
        Loading {
            child,
            _output: lines,
        }
    }

    fn id(&self) -> String {
        self.child.id().to_string()
    }

    fn end(mut self) {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn top(runtime: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_datapipes"))
        .arg("top")
        .args(args)
        .env("XDG_RUNTIME_DIR", runtime)
        .env("TMPDIR", runtime)
        .stdin(Stdio::null())
        .output()
        .expect("the program runs")
}

/// Returns what was printed by a command that succeeded.
fn printed(output: Output) -> String {
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && problem.is_empty(), "{problem}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the message of a command that failed.
fn refused(output: Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

fn names(folder: &Path) -> usize {
    std::fs::read_dir(folder.join("datapipes")).map_or(0, Iterator::count)
}

#[test]
fn a_loader_is_found_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = folder.path();
    let problem = refused(top(runtime, &[]));
    assert!(
        problem.contains("no loader runs") && problem.contains("DATAPIPES_MONITOR=1"),
        "{problem}"
    );

    let loading = Loading::begin(runtime, "1");
    let id = loading.id();
    let loader = format!("{id}-0");
    let path = runtime.join(format!("datapipes/{loader}.sock"));
    assert_eq!(names(runtime), 2);
    for args in [
        &[][..],
        &[&*id],
        &[&*loader],
        &[path.to_str().unwrap()],
        &["--once"],
    ] {
        let page = printed(top(runtime, args));
        for part in [
            &*loader,
            "epoch 5",
            " of 10 items",
            "  add ",
            "segment",
            "bottleneck: ",
        ] {
            assert!(page.contains(part), "no {part} in\n{page}");
        }
    }
    let lines = printed(top(runtime, &["--json"]));
    assert_eq!(lines.lines().count(), 2);
    let shown = Figures::parse(lines.lines().next().unwrap()).unwrap();
    assert_eq!(
        (shown.process.to_string(), shown.epoch),
        (id.clone(), Some(5))
    );
    assert!(shown.running && shown.stats.unwrap().delivered == 1);

    let problem = refused(top(runtime, &["4000000"]));
    assert!(
        problem.contains("process 4000000 has no loader"),
        "{problem}"
    );
    let problem = refused(top(runtime, &["/nowhere/x.sock"]));
    assert!(
        problem.contains("/nowhere/x.sock: no monitored loader is there"),
        "{problem}"
    );
    assert_eq!(top(runtime, &["--json", "--once"]).status.code(), Some(2));

    // Without an argument, the loaders of several processes are listed.
    let other = Loading::begin(runtime, "1");
    let list = printed(top(runtime, &[]));
    assert!(
        [&id, &other.id()].iter().all(|id| list.contains(&**id)),
        "{list}"
    );
    assert!(list.contains("not begun"), "{list}");
    other.end();
    loading.end();
    assert_eq!(names(runtime), 0);
}

#[test]
fn sockets_of_a_killed_process_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mut loading = Loading::begin(folder.path(), "1");
    loading.child.kill().unwrap();
    loading.child.wait().unwrap();
    assert_eq!(names(folder.path()), 2);
    assert!(refused(top(folder.path(), &[])).contains("no loader runs"));
    assert_eq!(names(folder.path()), 0);
}

#[test]
fn nothing_is_opened_unless_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    for value in ["0", "", "yes"] {
        let _loading = Loading::begin(folder.path(), value);
        assert!(!folder.path().join("datapipes").exists());
    }
}

/// A folder that others may enter is a warning for who asks by the environment: the loader runs.
#[test]
fn an_unsafe_folder_stops_the_monitor_and_not_the_loader() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let sockets = folder.path().join("datapipes");
    std::fs::create_dir(&sockets).unwrap();
    std::fs::set_permissions(&sockets, std::fs::Permissions::from_mode(0o777)).unwrap();
    let _loading = Loading::begin(folder.path(), "1");
    assert_eq!(names(folder.path()), 0);
    let problem = refused(top(folder.path(), &[]));
    assert!(problem.contains("(mode 777)"), "{problem}");
}
