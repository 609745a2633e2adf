//! Forbidden actions of child processes, and helpers to inspect what remains of the children.

use std::fs;
use std::time::{Duration, Instant};

use datapipes::{DataLoader, Graph};

/// Settings of the part in a test: the action of guilty items, the guilty items, and the
/// microseconds that each item takes.
pub type Case = (String, Vec<u64>, u64);

pub fn case(crime: &str, guilty: &[u64], micros: u64) -> Case {
    (crime.to_owned(), guilty.to_vec(), micros)
}

/// Three times the number, or a crime.
pub fn decode(numbers: Graph<u64>, case: &Case) -> Graph<u64> {
    let (crime, guilty, micros) = case.clone();
    numbers
        .map(move |n| {
            if guilty.contains(&n) {
                return commit(&crime, n);
            }
            work(micros);
            n * 3
        })
        .named("decode")
}

/// Works for so long.
pub fn work(micros: u64) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_micros(micros) {
        std::hint::spin_loop();
    }
}

/// Does what `crime` says; some return from it.
pub fn commit(crime: &str, n: u64) -> u64 {
    match crime {
        "grandchild" => {
            // It stays; that is the point.
            let sleep = std::process::Command::new("sleep").arg("1000").spawn();
            return u64::from(sleep.expect("there is a `sleep`").id());
        }
        "print" => {
            print_much();
            return n * 3;
        }
        "print and end" => {
            print_much();
            eprint!("\nso long, and thanks for item {n}");
            std::process::exit(3);
        }
        _ => eprintln!("about to {crime} at {n}"),
    }
    match crime {
        // SAFETY: none. All that follows is about what is not safe.
        "segfault" => unsafe { std::ptr::without_provenance_mut::<u8>(8).write_volatile(1) },
        "overwrite" => write_to_what_was_told(),
        "bus" => read_behind_the_end(),
        "ill" => signal(libc::SIGILL),
        "abort" => std::process::abort(),
        "kill" => signal(libc::SIGKILL),
        "stop" => signal(libc::SIGSTOP),
        "exit 0" => std::process::exit(0),
        "exit 3" => std::process::exit(3),
        "panic" => panic!("it is {n}"),
        "overflow" => _ = overflow(n),
        "loop" => loop {
            std::hint::spin_loop();
        },
        "print for ever" => loop {
            eprintln!("{}", "and so on ".repeat(100));
        },
        "sleep" => std::thread::sleep(Duration::from_secs(1000)),
        "allocate" => _ = std::hint::black_box(Vec::<u8>::with_capacity(1 << 30)),
        "junk" => each_socket(|fd| {
            let junk = [0x99u8; 700];
            // SAFETY: the buffer has as many bytes as are sent.
            unsafe { libc::send(fd, junk.as_ptr().cast(), junk.len(), libc::MSG_NOSIGNAL) };
        }),
        "cut" => each_socket(|fd| {
            // A message whose weight and parts are missing.
            // SAFETY: the buffer has as many bytes as are sent.
            unsafe { libc::send(fd, [3u8, 1].as_ptr().cast(), 2, libc::MSG_NOSIGNAL) };
        }),
        "huge" => each_socket(|fd| {
            // A message with 2^60 parts.
            let bytes = [
                3u8, 1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f,
            ];
            // SAFETY: the buffer has as many bytes as are sent.
            unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
        }),
        "empty" => each_socket(|fd| {
            // SAFETY: no bytes are needed.
            unsafe { libc::send(fd, [0u8].as_ptr().cast(), 0, libc::MSG_NOSIGNAL) };
        }),
        // SAFETY: the descriptors are somebody else's, who will be surprised.
        "shut" => each_socket(|fd| _ = unsafe { libc::shutdown(fd, libc::SHUT_RDWR) }),
        "close" => {
            // SAFETY: as above.
            each_socket(|fd| _ = unsafe { libc::close(fd) });
            loop {
                std::hint::spin_loop();
            }
        }
        other => panic!("`{other}` is no crime"),
    }
    n * 3
}

fn signal(signal: i32) {
    // SAFETY: sends a signal to this process.
    unsafe { libc::kill(libc::getpid(), signal) };
}

/// Writes to memory that the parent shares with it.
fn write_to_what_was_told() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let told = maps
        .lines()
        .find(|line| line.contains(" r--s ") && line.contains("memfd:datapipes"))
        .unwrap();
    let start = usize::from_str_radix(told.split_once('-').unwrap().0, 16).unwrap();
    // SAFETY: there is none, which is seen at once.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(start).write_volatile(1) };
}

fn read_behind_the_end() {
    // SAFETY: a file without bytes is mapped, and read.
    unsafe {
        let fd = libc::memfd_create(c"short".as_ptr(), 0);
        let start = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_SHARED,
            fd,
            0,
        );
        std::hint::black_box(start.cast::<u8>().read_volatile());
    }
}

#[expect(unconditional_recursion, reason = "that is what it is for")]
fn overflow(n: u64) -> u64 {
    let much = std::hint::black_box([n; 1000]);
    overflow(much[n as usize % 1000] + 1) + much[7]
}

fn each_socket(act: impl Fn(i32)) {
    let all = fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| entry.unwrap());
    let all = all.filter(|entry| {
        fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    });
    let numbers: Vec<i32> = all
        .map(|entry| entry.file_name().to_string_lossy().parse().unwrap())
        .collect();
    numbers.into_iter().for_each(act);
}

/// Megabytes, of which some are no text.
fn print_much() {
    use std::io::Write;
    let bytes: Vec<u8> = (0..400 << 10)
        .map(|place| (place * 7 % 256) as u8)
        .collect();
    std::io::stdout().write_all(&bytes).unwrap();
    std::io::stderr().write_all(&bytes).unwrap();
}

/// The children that a loader has now, by their numbers.
pub fn children<T: Send + 'static>(loader: &DataLoader<T>) -> Vec<u32> {
    let segments = loader.stats().into_iter().flat_map(|stats| stats.segments);
    let children = segments
        .filter_map(|segment| segment.processes)
        .flat_map(|processes| processes.children);
    children.map(|child| child.process).collect()
}

/// Returns true if a process has ended, even if nobody has waited for it.
pub fn is_gone(process: u32) -> bool {
    match fs::read_to_string(format!("/proc/{process}/stat")) {
        Err(_) => true,
        Ok(stat) => stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])),
    }
}

/// Waits until something is so; not for ever.
pub fn soon(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is() {
        assert!(Instant::now() < deadline, "not after 10 s: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn all_gone(processes: &[u32]) {
    soon("processes are gone", || {
        processes.iter().all(|&process| is_gone(process))
    });
}
