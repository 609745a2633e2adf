//! Paths and network that children may not use.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::*;

/// Makes a folder with a readable file, a writable file, and an inaccessible file.
fn folder(name: &str) -> PathBuf {
    let folder =
        std::env::temp_dir().join(format!("datapipes-isolate-{name}-{}", std::process::id()));
    for (below, text) in [("open", "yes"), ("closed", "no"), ("scratch", "old")] {
        fs::create_dir_all(folder.join(below)).unwrap();
        fs::write(folder.join(below).join("file"), text).unwrap();
    }
    folder
}

fn without_landlock() -> bool {
    let problems = Processes::new(1).only_reads(["/"]).problems();
    if !problems.is_empty() {
        println!("skipped: {problems:?}");
    }
    !problems.is_empty()
}

pub(super) fn restricted(role: &str) {
    let folder = PathBuf::from(std::env::var_os("FOLDER").unwrap_or_default());
    match role {
        "reads" => reads(&folder),
        "writes" => writes(&folder),
        "missing" => {
            let error =
                apply(&Processes::new(1).only_reads([folder.join("not there")])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Worker);
            assert!(error.message().contains("not there`: "), "{error}");
        }
        "network" => network(),
        role => panic!("{role}"),
    }
}

fn denied<T: std::fmt::Debug>(result: io::Result<T>) {
    assert_eq!(
        result.map_err(|error| error.kind()).unwrap_err(),
        io::ErrorKind::PermissionDenied
    );
}

#[track_caller]
fn in_folder(role: &str) {
    if without_landlock() {
        return;
    }
    let folder = folder(role);
    let mut command = again(role);
    command.env("FOLDER", &folder);
    let (output, text) = output(command);
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(
        output.status.code(),
        Some(GOOD),
        "{}: {text}",
        output.status
    );
}

#[test]
fn files_elsewhere_cannot_be_opened() {
    in_folder("reads");
}

fn reads(folder: &Path) {
    let cores = std::thread::available_parallelism().unwrap();
    // Neither a link nor a path with dots leads out.
    std::os::unix::fs::symlink(folder.join("closed/file"), folder.join("open/link")).unwrap();
    // A file that was open stays open.
    let mut held = fs::File::open(folder.join("closed/file")).unwrap();
    apply(&Processes::new(1).only_reads([folder.join("open"), folder.join("scratch/file")]))
        .unwrap();

    let inside = folder.to_owned();
    let check = move || {
        assert_eq!(fs::read_to_string(inside.join("open/file")).unwrap(), "yes");
        assert_eq!(
            fs::read_to_string(inside.join("scratch/file")).unwrap(),
            "old"
        );
        assert_eq!(fs::read_dir(inside.join("open")).unwrap().count(), 2);
        denied(fs::read(inside.join("closed/file")));
        denied(fs::read(inside.join("open/../closed/file")));
        denied(fs::read(inside.join("open/link")));
        denied(fs::read_dir(inside.join("closed")));
        denied(fs::read_dir("/"));
        denied(fs::read("/etc/passwd"));
        denied(fs::read(format!(
            "/proc/{}/cmdline",
            getppid().unwrap().as_raw_nonzero()
        )));
        denied(fs::write(inside.join("open/file"), "changed"));
        denied(fs::write(inside.join("open/new"), "new"));
        denied(fs::remove_file(inside.join("open/file")));
        denied(
            fs::OpenOptions::new()
                .write(true)
                .truncate(true)
                .open(inside.join("closed/file")),
        );
    };
    check();
    std::thread::spawn(check).join().unwrap();

    let mut text = String::new();
    held.read_to_string(&mut text).unwrap();
    assert_eq!(text, "no");
    denied(Command::new("/bin/true").status());
    denied(kill_process(getppid().unwrap(), Signal::CONT).map_err(io::Error::from));
    // Files that any program needs.
    assert_eq!(std::thread::available_parallelism().unwrap(), cores);
    assert!(
        fs::read_to_string("/proc/self/status")
            .unwrap()
            .contains("RssAnon")
    );
    fs::File::open("/dev/urandom").unwrap();
    fs::write("/dev/null", "x").unwrap();
    let trace = std::backtrace::Backtrace::force_capture().to_string();
    assert!(trace.contains("isolate::tests"), "{trace}");
}

#[test]
fn files_are_written_where_that_is_allowed() {
    in_folder("writes");
}

fn writes(folder: &Path) {
    apply(&Processes::new(1).only_writes([folder.join("scratch")])).unwrap();
    let scratch = folder.join("scratch");
    fs::create_dir(scratch.join("new")).unwrap();
    fs::write(scratch.join("new/file"), "new").unwrap();
    fs::rename(scratch.join("new/file"), scratch.join("file")).unwrap();
    assert_eq!(fs::read_to_string(scratch.join("file")).unwrap(), "new");
    fs::remove_file(scratch.join("file")).unwrap();
    denied(fs::write(folder.join("open/file"), "changed"));
    denied(fs::read(folder.join("open/file")));
    denied(fs::rename(folder.join("open/file"), scratch.join("file")));
}

#[test]
fn a_path_that_is_not_there_is_an_error() {
    in_folder("missing");
}

#[test]
fn there_is_no_network_but_the_socket_that_was_given() {
    let problems = Processes::new(1).no_network().problems();
    if !problems.is_empty() {
        return println!("skipped: {problems:?}");
    }
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut command = again("network");
    command
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let running = command.spawn().unwrap();
    drop(command);
    ours.write_all(b"ping").unwrap();
    let mut answer = String::new();
    let read = ours.read_to_string(&mut answer);
    let output = running.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(GOOD),
        "{}: {text}",
        output.status
    );
    read.unwrap();
    assert_eq!(answer, "pong");
}

fn network() {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    // As if it was inherited: the part of Landlock.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    apply(&Processes::new(1).no_network()).unwrap();
    let check = move || {
        denied(TcpListener::bind("127.0.0.1:0"));
        denied(TcpStream::connect(listener.local_addr().unwrap()));
        denied(UdpSocket::bind("[::1]:0"));
        UnixStream::pair().unwrap();
        let unbound = rustix::net::socket(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::DGRAM,
            None,
        );
        unbound.unwrap();
        let netlink = rustix::net::socket(
            rustix::net::AddressFamily::NETLINK,
            rustix::net::SocketType::RAW,
            None,
        );
        assert_eq!(netlink.unwrap_err(), Errno::ACCESS);
        #[cfg(target_arch = "x86_64")]
        other_calls();
    };
    check();
    // The inherited socket carries bytes.
    let mut given = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let mut ping = [0; 4];
    given.read_exact(&mut ping).unwrap();
    assert_eq!(&ping, b"ping");
    given.write_all(b"pong").unwrap();
}

/// Makes system calls that no safe function makes.
#[cfg(target_arch = "x86_64")]
fn other_calls() {
    /// Makes the call with these arguments and zeros.
    fn call(number: i64, first: u64, second: u64) -> i64 {
        let result;
        // SAFETY: all pointers passed to the calls below are null, which the kernel refuses; the
        // declared registers are those that a call changes.
        unsafe {
            std::arch::asm!(
                "syscall", inlateout("rax") number => result, in("rdi") first, in("rsi") second, in("rdx") 0, in("r10") 0,
                out("rcx") _, out("r11") _, options(nostack)
            );
        }
        result
    }
    let denied = -i64::from(Errno::ACCESS.raw_os_error());
    let (inet, stream) = (2, 1);
    assert_eq!(call(41, inet, stream), denied);
    // The kernel ignores the upper half of the argument, and so does the filter.
    assert_eq!(call(41, inet | 1 << 32, stream), denied);
    assert_eq!(
        call(41 | 0x4000_0000, inet, stream),
        denied,
        "socket of x32"
    );
    assert_eq!(call(53, inet, stream), denied, "socketpair");
    assert_eq!(call(425, 1, 0), denied, "io_uring_setup");
    assert_eq!(call(438, 0, 0), denied, "pidfd_getfd");
}
