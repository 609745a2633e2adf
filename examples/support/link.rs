//! A web server on loopback at the end of a simulated long link, for measurements: objects in
//! memory, with round trips, bandwidth and slow connections as set by the URL.
//!
//! `http://127.0.0.1:PORT/rtt=150,cap=100,slow=25/KEY` is object `KEY` over a link of 150 ms round
//! trip (one to connect, one for each answer), of which all connections together carry 100 MB/s,
//! with every fourth connection ten times slower. `index.txt` in the place of `KEY` lists the
//! objects. The same link is also an endpoint of the Hugging Face Hub (`HubBuilder::endpoint`) whose
//! repositories all hold the objects: their files are redirected to `KEY` on another host name.
//! The server runs in a child process (this program again), so that its work is not
//! counted as the reader's, and ends with its parent.
//!
//! The link has no congestion window: a large object costs one round trip, as on a link that is
//! already warm.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until};

use super::usage;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Argument that makes the program a server.
const ROLE: &str = "--serve-a-link";

/// A running server; dropping it ends the server.
pub struct Link {
    child: Child,
    port: u16,
}

impl Link {
    /// Serves this number of objects of noise, `000000.jpg` and on, of half to one and a half times
    /// `size` bytes. `main` must begin with [`serve_if_asked`].
    #[allow(dead_code, reason = "not all who use this want noise")]
    pub fn noise(objects: usize, size: usize) -> Result<Link, Failure> {
        Link::start(&format!("noise:{objects}:{size}"))
    }

    /// Returns the sizes of these objects.
    #[allow(dead_code, reason = "not all who use this list")]
    pub fn sizes(objects: usize, size: usize) -> Vec<u64> {
        let objects = noise(objects, size);
        objects
            .values()
            .map(|object| (object.to - object.from) as u64)
            .collect()
    }

    /// Serves the files below a folder.
    #[allow(dead_code, reason = "not all who use this have one")]
    pub fn folder(root: &Path) -> Result<Link, Failure> {
        Link::start(root.to_str().ok_or("a path that is text")?)
    }

    fn start(what: &str) -> Result<Link, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([ROLE, what])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("an output")?).read_line(&mut line)?;
        let port = line
            .trim()
            .parse()
            .map_err(|_| format!("the server said {line:?}"))?;
        Ok(Link { child, port })
    }

    /// Returns the URL of the objects over a link such as `rtt=150,cap=100`.
    pub fn url(&self, link: &str) -> String {
        format!("http://127.0.0.1:{}/{link}/", self.port)
    }

    /// Returns the CPU seconds of the server so far.
    #[allow(dead_code, reason = "not all who use this ask")]
    pub fn cpu_seconds(&self) -> f64 {
        usage::cpu_seconds_of(self.child.id())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves, and never returns, if this process was started for that.
pub fn serve_if_asked() {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() != Some(ROLE) {
        return;
    }
    let what = args.next().unwrap_or_default();
    // The parent holds the other end as long as it lives.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    if let Err(error) = runtime
        .map_err(Failure::from)
        .and_then(|runtime| runtime.block_on(serve(&what)))
    {
        eprintln!("the server: {error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

struct Server {
    objects: BTreeMap<String, Object>,
    index: Arc<[u8]>,
    clocks: Mutex<HashMap<String, Arc<Clock>>>,
}

#[derive(Clone)]
struct Object {
    data: Arc<[u8]>,
    from: usize,
    to: usize,
}

async fn serve(what: &str) -> Result<(), Failure> {
    let objects = match what.strip_prefix("noise:") {
        Some(noises) => {
            let (objects, size) = noises.split_once(':').ok_or("a number and a size")?;
            noise(objects.parse()?, size.parse()?)
        }
        None => files(Path::new(what), "")?,
    };
    let mut index = String::new();
    for (key, object) in &objects {
        index += &format!("{key}\t{}\n", object.to - object.from);
    }
    let server = Arc::new(Server {
        objects,
        index: index.into_bytes().into(),
        clocks: Mutex::default(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?.port());
    std::io::stdout().flush()?;
    for number in 0u64.. {
        let (stream, _) = listener.accept().await?;
        let server = server.clone();
        let accepted = Instant::now();
        #[expect(clippy::disallowed_methods, reason = "a server of its own process")]
        tokio::spawn(async move {
            // A client that disconnects is normal.
            let _ = server.connection(stream, number, accepted).await;
        });
    }
    Ok(())
}

/// Returns objects of 57 to 173 kB, slices of one piece of memory.
fn noise(objects: usize, mean: usize) -> BTreeMap<String, Object> {
    let mut seed = 1u64;
    let mut draw = move || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize
    };
    let data: Arc<[u8]> = (0..8 << 20).map(|_| draw() as u8).collect();
    let object = |n| {
        let size = mean / 2 + draw() % mean;
        let from = draw() % (data.len() - size);
        (
            format!("{n:06}.jpg"),
            Object {
                data: data.clone(),
                from,
                to: from + size,
            },
        )
    };
    (0..objects).map(object).collect()
}

fn files(root: &Path, below: &str) -> Result<BTreeMap<String, Object>, Failure> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(root.join(below))? {
        let entry = entry?;
        let key = format!("{below}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            found.append(&mut files(root, &format!("{key}/"))?);
        } else {
            let data: Arc<[u8]> = std::fs::read(entry.path())?.into();
            found.insert(
                key,
                Object {
                    from: 0,
                    to: data.len(),
                    data,
                },
            );
        }
    }
    Ok(found)
}

/// Link settings in a URL.
#[derive(Default)]
struct Profile {
    rtt: Duration,
    /// Bandwidth in MB/s of all connections together; 0 for no limit.
    cap: f64,
    /// Percentage of connections that are ten times slower.
    slow: u64,
}

impl Profile {
    fn parse(text: &str) -> Option<Profile> {
        let mut profile = Profile::default();
        for part in text.split(',') {
            let (name, value) = part.split_once('=')?;
            match name {
                "rtt" => profile.rtt = Duration::from_secs_f64(value.parse::<f64>().ok()? / 1e3),
                "cap" => profile.cap = value.parse().ok()?,
                "slow" => profile.slow = value.parse().ok()?,
                // Distinguishes one measurement's link from another's.
                "run" => {}
                _ => return None,
            }
        }
        Some(profile)
    }
}

/// Time at which a link with limited bandwidth has carried all its bytes.
struct Clock(Mutex<Instant>);

impl Clock {
    /// Returns the time at which the last of these bytes will have passed, after all that wait.
    fn pass(&self, bytes: usize, cap: f64) -> Instant {
        let mut free = self
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        // Compensates for timers that slept up to 1 ms too long.
        let begin = (*free).max(
            Instant::now()
                .checked_sub(Duration::from_millis(2))
                .unwrap_or(*free),
        );
        *free = begin + Duration::from_secs_f64(bytes as f64 / (cap * 1e6));
        *free
    }
}

/// Number of bytes put on such a link at once.
const PIECE: usize = 32 << 10;

impl Server {
    async fn connection(
        &self,
        mut stream: TcpStream,
        number: u64,
        accepted: Instant,
    ) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut head = Vec::with_capacity(2048);
        let mut connected = false;
        loop {
            let asked = loop {
                if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
                    let request = String::from_utf8_lossy(&head[..end]).into_owned();
                    head.drain(..end + 4);
                    break request;
                }
                if head.len() > 1 << 16 || stream.read_buf(&mut head).await? == 0 {
                    return Ok(());
                }
            };
            let begun = Instant::now();
            let mut words = asked.split_whitespace();
            let method = words.next().unwrap_or_default();
            let path = words.next().unwrap_or_default().trim_start_matches('/');
            let (link, key) = path.split_once('/').unwrap_or((path, ""));
            let Some(profile) = Profile::parse(link) else {
                stream
                    .write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                    .await?;
                continue;
            };
            let slow = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
            let times = if slow % 100 < profile.slow { 10 } else { 1 };
            let mut due = begun + profile.rtt * times;
            if !std::mem::replace(&mut connected, true) {
                // The handshake took a round trip, too.
                due = due.max(accepted + 2 * profile.rtt * times);
            }
            let answer = match key.split_once("/resolve/") {
                Some((_, file)) => {
                    let key = file.split_once('/').map_or(file, |(_, key)| key);
                    let port = stream.local_addr()?.port();
                    Some(format!(
                        "HTTP/1.1 302 Found\r\nLocation: http://localhost:{port}/{link}/{key}\r\nContent-Length: 0\r\n\r\n"
                    ))
                }
                None => None,
            };
            let object = match key {
                "index.txt" => Some(Object {
                    data: self.index.clone(),
                    from: 0,
                    to: self.index.len(),
                }),
                key => self.objects.get(key).cloned(),
            };
            sleep_until(due).await;
            if let Some(answer) = answer {
                stream.write_all(answer.as_bytes()).await?;
                continue;
            }
            let Some(mut object) = object else {
                stream
                    .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    .await?;
                continue;
            };
            let size = object.to - object.from;
            let ranged = asked.lines().find_map(|line| {
                line.to_lowercase()
                    .strip_prefix("range: bytes=")
                    .map(str::to_owned)
            });
            let mut answer = format!("HTTP/1.1 200 OK\r\nETag: \"{}-{size}\"\r\n", object.from);
            if let Some((from, to)) = ranged.as_deref().and_then(|range| range.split_once('-')) {
                let from = from.parse().unwrap_or(0).min(size);
                let to = to
                    .parse()
                    .map_or(size, |last: usize| last.saturating_add(1))
                    .clamp(from, size);
                answer = answer.replacen("200 OK", "206 Partial Content", 1);
                answer += &format!(
                    "Content-Range: bytes {from}-{}/{size}\r\n",
                    to.saturating_sub(1)
                );
                (object.from, object.to) = (object.from + from, object.from + to);
            }
            answer += &format!("Content-Length: {}\r\n\r\n", object.to - object.from);
            stream.write_all(answer.as_bytes()).await?;
            if method == "HEAD" {
                continue;
            }
            let data = &object.data[object.from..object.to];
            if profile.cap == 0.0 {
                stream.write_all(data).await?;
                continue;
            }
            let clock = self.clock(link);
            for piece in data.chunks(PIECE) {
                sleep_until(clock.pass(piece.len(), profile.cap)).await;
                stream.write_all(piece).await?;
            }
        }
    }

    fn clock(&self, link: &str) -> Arc<Clock> {
        let mut clocks = self
            .clocks
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let fresh = || Arc::new(Clock(Mutex::new(Instant::now())));
        clocks.entry(link.to_owned()).or_insert_with(fresh).clone()
    }
}
