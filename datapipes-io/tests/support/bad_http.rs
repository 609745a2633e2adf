//! A web server on raw sockets that misbehaves as scripted, and records and counts its requests.
//!
//! It is independent of this library and needs only threads, so that any test can start it. Each
//! path has a script: its first request gets the first [`Act`], the second the second, and so on;
//! the last act is repeated.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A scripted response to one request.
#[derive(Clone, Debug)]
pub enum Act {
    /// Serves an object correctly: ranges, HEAD, `If-Match`.
    Serve(Thing),
    /// Takes these steps, whatever the request is.
    Steps(Vec<Step>),
}

/// An object, and the features with which it is served.
#[derive(Clone, Debug)]
pub struct Thing {
    pub data: Vec<u8>,
    /// The ETag as it stands in the header.
    pub etag: Option<String>,
    pub kind: &'static str,
    pub ranges: bool,
    pub head: bool,
    pub if_match: bool,
}

#[derive(Clone, Debug)]
pub enum Step {
    Send(Vec<u8>),
    /// Sends one byte after another.
    Trickle(Vec<u8>, Duration),
    Pause(Duration),
    /// Sends nothing more until the server ends.
    Hold,
    /// Closes the connection in order.
    Close,
    /// Ends the connection by a TCP reset.
    Reset,
    /// Panics if the head of the request does not have this.
    Expect(&'static str),
    /// Sends the head of the request back, as the body of an answer with this status.
    Echo(u16),
}

/// A recorded request.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    /// Header fields, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// Number of the connection, from 0.
    pub connection: usize,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| &**value)
    }
}

/// A running server. Dropping it ends all its connections and threads.
pub struct BadHttp {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    scheme: &'static str,
}

#[derive(Default)]
struct Shared {
    scripts: Mutex<HashMap<String, (Vec<Act>, usize)>>,
    requests: Mutex<Vec<Request>>,
    connections: AtomicUsize,
    /// A second handle of each open socket, by the number of its connection.
    sockets: Mutex<HashMap<usize, TcpStream>>,
    ended: AtomicBool,
    hold: (Mutex<()>, Condvar),
    /// Closes every connection after one answer, at once and without announcement.
    no_keep_alive: AtomicBool,
}

/// A connection, to be read and written.
pub trait Wire: Read + Write + Send {}
impl<T: Read + Write + Send> Wire for T {}

impl BadHttp {
    pub fn start() -> BadHttp {
        BadHttp::start_with("http", |socket| Some(Box::new(socket)))
    }

    /// Starts a server that wraps each connection, for example in TLS.
    pub fn start_with(
        scheme: &'static str,
        wrap: impl Fn(TcpStream) -> Option<Box<dyn Wire>> + Send + Sync + 'static,
    ) -> BadHttp {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared::default());
        let (known, wrap) = (shared.clone(), Arc::new(wrap));
        let accept = move || {
            let mut threads = Vec::new();
            for socket in listener.incoming() {
                if known.ended.load(Ordering::SeqCst) {
                    break;
                }
                let Ok(socket) = socket else { continue };
                let number = known.connections.fetch_add(1, Ordering::SeqCst);
                known
                    .sockets
                    .lock()
                    .unwrap()
                    .insert(number, socket.try_clone().expect("a socket"));
                let (known, wrap) = (known.clone(), wrap.clone());
                threads.push(std::thread::spawn(move || {
                    let raw = socket.try_clone().expect("a socket");
                    let _ = raw.set_nodelay(true);
                    if let Some(wire) = wrap(socket) {
                        known.serve(number, wire, &raw);
                    }
                    // The socket closes when its last handle is dropped.
                    known.sockets.lock().unwrap().remove(&number);
                }));
            }
            threads.into_iter().for_each(|thread| drop(thread.join()));
        };
        let threads = vec![std::thread::spawn(accept)];
        BadHttp {
            address,
            shared,
            threads,
            scheme,
        }
    }

    /// Returns `http://127.0.0.1:port/`.
    pub fn url(&self) -> String {
        format!("{}://{}/", self.scheme, self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Sets the script for requests to a path with its query.
    pub fn on(&self, path: &str, acts: impl IntoIterator<Item = Act>) -> &Self {
        let acts: Vec<Act> = acts.into_iter().collect();
        assert!(!acts.is_empty());
        self.shared
            .scripts
            .lock()
            .unwrap()
            .insert(path.to_owned(), (acts, 0));
        self
    }

    /// Returns all requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Returns the requests to a path.
    pub fn requests_to(&self, path: &str) -> Vec<Request> {
        self.requests()
            .into_iter()
            .filter(|request| request.path == path)
            .collect()
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Returns the number of connections that are open.
    pub fn open(&self) -> usize {
        self.shared.sockets.lock().unwrap().len()
    }

    /// Closes all open connections, as a server does with idle ones.
    pub fn drop_connections(&self) {
        for (_, socket) in self.shared.sockets.lock().unwrap().drain() {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// From now on, closes each connection after one answer, without announcing it.
    pub fn without_keep_alive(&self) {
        self.shared.no_keep_alive.store(true, Ordering::SeqCst);
    }
}

impl Drop for BadHttp {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        drop(self.shared.hold.0.lock());
        self.shared.hold.1.notify_all();
        self.drop_connections();
        let _ = TcpStream::connect(self.address);
        self.drop_connections();
        self.threads
            .drain(..)
            .for_each(|thread| drop(thread.join()));
    }
}

impl Shared {
    fn serve(&self, number: usize, wire: Box<dyn Wire>, raw: &TcpStream) {
        let mut wire = BufReader::new(wire);
        while let Some((request, head)) = read_head(&mut wire, number) {
            let act = {
                let mut scripts = self.scripts.lock().unwrap();
                self.requests.lock().unwrap().push(request.clone());
                match scripts.get_mut(&request.path) {
                    Some((acts, next)) => {
                        let act = acts[(*next).min(acts.len() - 1)].clone();
                        *next += 1;
                        act
                    }
                    None => status(404, "not here"),
                }
            };
            let out = wire.get_mut();
            let goes_on = match act {
                Act::Serve(thing) => out.write_all(&thing.answer(&request)).is_ok(),
                Act::Steps(steps) => steps
                    .into_iter()
                    .all(|step| self.step(step, out, raw, &head)),
            };
            let _ = out.flush();
            if !goes_on || self.no_keep_alive.load(Ordering::SeqCst) {
                return;
            }
        }
    }

    /// Takes a step; returns true if the connection stays open.
    fn step(&self, step: Step, out: &mut Box<dyn Wire>, raw: &TcpStream, head: &str) -> bool {
        match step {
            Step::Send(data) => out.write_all(&data).and_then(|()| out.flush()).is_ok(),
            Step::Trickle(data, pause) => data.iter().all(|byte| {
                std::thread::sleep(pause);
                !self.ended.load(Ordering::SeqCst)
                    && out.write_all(&[*byte]).and_then(|()| out.flush()).is_ok()
            }),
            Step::Pause(pause) => {
                std::thread::sleep(pause);
                true
            }
            Step::Hold => {
                let mut guard = self.hold.0.lock().unwrap();
                while !self.ended.load(Ordering::SeqCst) {
                    guard = self.hold.1.wait(guard).unwrap();
                }
                false
            }
            Step::Close => false,
            Step::Reset => {
                // A pause, since a reset may overtake bytes that were sent before it.
                std::thread::sleep(Duration::from_millis(5));
                linger_zero(raw);
                false
            }
            Step::Expect(text) => {
                assert!(head.contains(text), "{text} is not in {head}");
                true
            }
            Step::Echo(code) => {
                let answer = format!(
                    "HTTP/1.1 {code} Echo\r\nContent-Length: {}\r\n\r\n{head}",
                    head.len()
                );
                out.write_all(answer.as_bytes()).is_ok()
            }
        }
    }
}

fn read_head(wire: &mut BufReader<Box<dyn Wire>>, connection: usize) -> Option<(Request, String)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        match wire.read_line(&mut head) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) => {
                // The bytes are no text, for example TLS. Web servers answer them in text.
                if error.kind() == std::io::ErrorKind::InvalidData {
                    let _ = wire
                        .get_mut()
                        .write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
                }
                return None;
            }
        }
    }
    let mut lines = head.lines();
    let mut words = lines.next()?.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    Some((
        Request {
            method,
            path,
            headers,
            connection,
        },
        head,
    ))
}

/// Makes closing a socket send a reset.
fn linger_zero(socket: &TcpStream) {
    use std::os::fd::AsRawFd;
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: the descriptor is open, and the pointer and size are those of a `linger` that lives
    // over the call.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    assert_eq!(done, 0, "SO_LINGER");
}

impl Thing {
    fn answer(&self, request: &Request) -> Vec<u8> {
        let head = request.method == "HEAD";
        if head && !self.head {
            return b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n".to_vec();
        }
        let etag = self
            .etag
            .as_ref()
            .map(|etag| format!("ETag: {etag}\r\n"))
            .unwrap_or_default();
        if let (true, Some(wanted)) = (self.if_match, request.header("if-match"))
            && self.etag.as_deref() != Some(wanted)
        {
            return b"HTTP/1.1 412 Changed\r\nContent-Length: 0\r\n\r\n".to_vec();
        }
        let size = self.data.len();
        let range = request
            .header("range")
            .filter(|_| self.ranges && !head)
            .map(|range| {
                let (first, last) = range
                    .trim_start_matches("bytes=")
                    .split_once('-')
                    .expect("a range");
                let first: usize = first.parse().expect("a number");
                (
                    first,
                    last.parse::<usize>()
                        .map_or(size, |last| size.min(last + 1)),
                )
            });
        let (line, data) = match range {
            Some((first, _)) if first >= size => {
                let head = format!(
                    "HTTP/1.1 416 No\r\nContent-Range: bytes */{size}\r\nContent-Length: 0\r\n\r\n"
                );
                return head.into_bytes();
            }
            Some((first, end)) => (
                format!(
                    "206 Partial Content\r\nContent-Range: bytes {first}-{}/{size}",
                    end - 1
                ),
                &self.data[first..end],
            ),
            None => ("200 OK".to_owned(), &self.data[..]),
        };
        let length = data.len();
        let kind = self.kind;
        let mut answer = format!(
            "HTTP/1.1 {line}\r\nContent-Type: {kind}\r\n{etag}Content-Length: {length}\r\n\r\n"
        )
        .into_bytes();
        if !head {
            answer.extend_from_slice(data);
        }
        answer
    }
}

/// Makes an act that serves an object with a strong ETag computed from its content.
pub fn object(data: impl Into<Vec<u8>>) -> Act {
    let data = data.into();
    let sum = data.iter().fold(17u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
    });
    let etag = Some(format!("\"{sum:x}-{}\"", data.len()));
    Act::Serve(Thing {
        data,
        etag,
        kind: "application/octet-stream",
        ranges: true,
        head: true,
        if_match: true,
    })
}

/// Makes an [`object`] with a change.
pub fn object_but(data: impl Into<Vec<u8>>, change: impl FnOnce(&mut Thing)) -> Act {
    let Act::Serve(mut thing) = object(data) else {
        unreachable!("it serves")
    };
    change(&mut thing);
    Act::Serve(thing)
}

/// Makes an act that serves a text of a content type.
pub fn page(kind: &'static str, text: &str) -> Act {
    object_but(text, |thing| thing.kind = kind)
}

/// Makes an act that sends these bytes in order, and keeps the connection open.
pub fn raw(text: impl Into<Vec<u8>>) -> Act {
    Act::Steps(vec![Step::Send(text.into())])
}

/// Makes an act that sends these bytes and closes the connection.
pub fn raw_then_close(text: impl Into<Vec<u8>>) -> Act {
    Act::Steps(vec![Step::Send(text.into()), Step::Close])
}

/// Makes an act that sends these bytes and resets the connection.
pub fn raw_then_reset(text: impl Into<Vec<u8>>) -> Act {
    Act::Steps(vec![Step::Send(text.into()), Step::Reset])
}

/// Makes an act that answers with a status and a text.
pub fn status(code: u16, text: &str) -> Act {
    status_with(code, "", text)
}

/// Makes an act that answers with a status, a text and more headers, each with its line end.
pub fn status_with(code: u16, headers: &str, text: &str) -> Act {
    raw(format!(
        "HTTP/1.1 {code} X\r\n{headers}Content-Length: {}\r\n\r\n{text}",
        text.len()
    ))
}

/// Makes an act that redirects.
pub fn redirect(to: &str) -> Act {
    status_with(302, &format!("Location: {to}\r\n"), "")
}

/// Makes an act that sends a good answer, cut after `after` of its bytes, head included.
pub fn cut(data: &[u8], after: usize, reset: bool) -> Act {
    let mut answer =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", data.len()).into_bytes();
    answer.extend_from_slice(data);
    answer.truncate(after);
    if reset {
        raw_then_reset(answer)
    } else {
        raw_then_close(answer)
    }
}

/// Makes an act that sends a good answer, cut after `after` bytes of its body.
pub fn cut_body(data: &[u8], after: usize) -> Act {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", data.len());
    cut(data, head.len() + after, false)
}

/// Returns an answer in chunks of `size` bytes.
pub fn chunked(data: &[u8], size: usize) -> Vec<u8> {
    let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for chunk in data.chunks(size) {
        answer.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        answer.extend_from_slice(chunk);
        answer.extend_from_slice(b"\r\n");
    }
    answer.extend_from_slice(b"0\r\n\r\n");
    answer
}
