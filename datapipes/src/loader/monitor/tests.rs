use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::client::sockets_in;
use super::server::{CLIENTS, Monitor};
use super::*;
use crate::{DataLoader, ErrorKind, Graph};

/// A folder for sockets, removed at the end. Its path is short.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (process, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("datapipes-m{process}-{next}"));
        folder::open(&folder).unwrap();
        Folder(folder)
    }

    /// Has a loader monitored here; returns the socket.
    fn monitor<T>(&self, loader: &DataLoader<T>) -> PathBuf {
        let monitor = Monitor::open(&self.0, &loader.engine, &loader.latest).unwrap();
        let path = monitor.path.clone();
        loader.latest.observe(monitor);
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn loader() -> DataLoader<Vec<u64>> {
    let graph = Graph::range(0..1000).map(|n| n + 1).batch(10);
    DataLoader::builder(graph).workers(2).build().unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_client_sees_what_the_loader_says_of_itself() {
    let (folder, loader) = (Folder::new(), loader());
    let path = folder.monitor(&loader);
    assert_eq!((mode(&folder.0), mode(&path)), (0o700, 0o600));
    assert_eq!(sockets_in(&folder.0).unwrap(), std::slice::from_ref(&path));

    let mut client = Client::connect(&path).unwrap();
    let before = client.figures().unwrap();
    assert_eq!(before.process, std::process::id());
    assert!(path.ends_with(format!("{}-{}.sock", before.process, before.loader)));
    assert!(before.epoch.is_none() && before.stats.is_none() && !before.running);
    let description = before.description.unwrap();
    assert_eq!(description.length, Some(100));
    assert_eq!(description.inputs, [vec![], vec![0], vec![1]]);
    assert!(description.explain.contains("batch"), "{description:?}");

    let mut epoch = loader.epoch(3).blocking();
    epoch.next().unwrap().unwrap();
    let during = client.figures().unwrap();
    assert_eq!((during.epoch, during.running), (Some(3), true));
    assert!(during.description.is_none());
    assert_eq!(during.stats.unwrap().delivered, 1);
    assert_eq!(epoch.count(), 99);

    let after = client.figures().unwrap();
    assert!(!after.running);
    let (shown, own) = (after.stats.unwrap(), loader.stats().unwrap());
    assert_eq!(shown.to_string(), own.to_string());
}

#[test]
fn the_socket_goes_with_the_loader_and_its_last_epoch() {
    let (folder, loader) = (Folder::new(), loader());
    let path = folder.monitor(&loader);
    let mut client = Client::connect(&path).unwrap();
    let mut epoch = loader.epoch(0).blocking();
    drop(loader.clone());
    drop(loader);
    epoch.next().unwrap().unwrap();
    assert!(client.figures().unwrap().running);
    drop(epoch);
    assert!(!path.exists());
    assert_eq!(client.figures().unwrap_err().kind(), ErrorKind::NotFound);
    let error = Client::connect(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(sockets_in(&folder.0).unwrap().is_empty());
}

#[test]
fn loaders_of_a_process_have_a_socket_each() {
    let folder = Folder::new();
    let (one, two) = (loader(), loader());
    let paths = [folder.monitor(&one), folder.monitor(&two)];
    for (path, engine) in paths.iter().zip([&one.engine, &two.engine]) {
        let shown = Client::connect(path).unwrap().figures().unwrap();
        assert_eq!(shown.loader, engine.id);
    }
    drop(one);
    assert_eq!(sockets_in(&folder.0).unwrap(), paths[1..]);
}

/// Reads until the other side hangs up.
fn all(mut stream: UnixStream) -> String {
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

/// Clients that hang, send what is no request, or ask without reading: each is refused or left
/// aside, the others are served, and the items are the same.
#[test]
fn bad_clients_disturb_nobody() {
    let (folder, loader) = (Folder::new(), loader());
    let path = folder.monitor(&loader);
    let connect = || UnixStream::connect(&path).unwrap();

    let _silent = connect();
    let mut half = connect();
    half.write_all(b"sta").unwrap();
    // The answers are not read, so after a while no more requests are taken.
    let flood = connect();
    flood.set_nonblocking(true).unwrap();
    while (&flood).write(&b"stats\n".repeat(1000)).is_ok() {}

    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 1000], b"\n"] {
        let mut stream = connect();
        let _ = stream.write_all(garbage);
        let answer = all(stream);
        assert!(answer.contains("no such request"), "{answer}");
    }
    drop(connect());

    let mut client = Client::connect(&path).unwrap();
    for epoch in 0..3 {
        let items = loader.epoch(epoch).blocking().map(Result::unwrap);
        assert!(items.flatten().eq(1..=1000));
        // An answer may be a moment old.
        while client.figures().unwrap().epoch != Some(epoch) {}
    }
    // Requests that come together are answered one after the other.
    half.write_all(b"ts\nstats\nstats\n").unwrap();
    let answers = BufReader::new(half).lines().take(3);
    assert!(
        answers
            .map(Result::unwrap)
            .all(|line| Figures::parse(&line).is_ok())
    );
}

#[test]
fn a_client_too_many_is_told_so() {
    let (folder, loader) = (Folder::new(), loader());
    let path = folder.monitor(&loader);
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|_| Client::connect(&path).unwrap())
        .collect();
    for client in &mut clients {
        client.figures().unwrap();
    }
    let error = Client::connect(&path).unwrap().figures().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        error
            .to_string()
            .ends_with("the loader has 8 clients already"),
        "{error}"
    );
    clients.pop();
    // The thread learns of it in its own time.
    while Client::connect(&path).unwrap().figures().is_err() {}
}

#[test]
fn sockets_of_the_dead_are_removed_and_those_of_the_living_are_not() {
    let folder = Folder::new();
    let dead = folder.0.join("4000000-0.sock");
    drop(UnixListener::bind(&dead).unwrap());
    let hangs = folder.0.join("4000001-0.sock");
    let _listener = UnixListener::bind(&hangs).unwrap();
    fs::write(folder.0.join("notes.txt"), "not ours").unwrap();
    assert_eq!(sockets_in(&folder.0).unwrap(), std::slice::from_ref(&hangs));
    assert!(!dead.exists() && hangs.exists());
    assert!(folder.0.join("notes.txt").exists());
    let error = Client::connect(&hangs).unwrap().figures().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().ends_with("does not answer"), "{error}");

    // The name of this process's own loader: of a dead process with its number, or of a living one in
    // another container.
    let loader = loader();
    let name = |id: u64| folder.0.join(format!("{}-{id}.sock", std::process::id()));
    let own = name(loader.engine.id);
    drop(UnixListener::bind(&own).unwrap());
    let monitor = Monitor::open(&folder.0, &loader.engine, &loader.latest).unwrap();
    assert_eq!(monitor.path, own);
    let other = Monitor::open(&folder.0, &loader.engine, &loader.latest).unwrap();
    assert_eq!(other.path, name(loader.engine.id + 1_000_000));
    assert!(Client::connect(&own).unwrap().figures().is_ok());
}

#[test]
fn an_answer_that_is_none_is_an_error_and_not_a_panic() {
    let folder = Folder::new();
    let path = folder.0.join("1-0.sock");
    for (answer, expected) in [
        (&b"hello\n"[..], "is no monitored loader"),
        (b"{}\n", "is no monitored loader"),
        (
            b"{\"protocol\":1,\"version\":\"9.9\"}\n",
            "datapipes 9.9 answers by version 1",
        ),
        (b"{\"protocol\":7}\n", "by version 7"),
        (b"\xff\n", "is no text"),
        (b"", "the loader has ended"),
        (b"{\"protocol\":1", "the loader has ended"),
    ] {
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let mut client = Client::connect(&path).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        other.write_all(answer).unwrap();
        other.shutdown(std::net::Shutdown::Write).unwrap();
        let error = client.figures().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_folder_that_others_may_use_is_refused() {
    let folder = Folder::new();
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
    for refused in [folder::open(&folder.0), sockets_in(&folder.0).map(drop)] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("(mode 755)"), "{error}");
    }
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o700)).unwrap();
    let link = folder.0.join("link");
    symlink(&folder.0, &link).unwrap();
    let error = folder::open(&link).unwrap_err().to_string();
    assert!(error.contains("is no folder"), "{error}");

    let loader = loader();
    let long = folder.0.join("x".repeat(120));
    folder::open(&long).unwrap();
    let error = Monitor::open(&long, &loader.engine, &loader.latest).unwrap_err();
    assert!(
        error.to_string().contains("shorter than 104 bytes"),
        "{error}"
    );
    assert_eq!(fs::read_dir(&long).unwrap().count(), 0);
}
