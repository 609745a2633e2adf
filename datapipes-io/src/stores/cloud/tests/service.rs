//! A service on a port of its own: each connection has a thread, and a closure answers each
//! request.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub target: String,
    headers: HashMap<String, String>,
}

/// Bytes to write, and the state of the connection after them.
#[derive(Clone, Debug)]
pub struct Reply {
    pub bytes: Vec<u8>,
    pub then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Then {
    Keep,
    Close,
    /// Nothing more comes, until the other side gives up.
    Hang,
}

impl Reply {
    pub fn ok(body: impl AsRef<[u8]>) -> Self {
        Reply::status(200, body)
    }
    pub fn status(status: u16, body: impl AsRef<[u8]>) -> Self {
        Reply::with(status, &[], body)
    }
    pub fn with(status: u16, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let mut head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        Reply {
            bytes: [head.as_bytes(), b"\r\n", body].concat(),
            then: Then::Keep,
        }
    }
    /// Cuts the answer after its first bytes.
    pub fn cut(mut self, at: usize, then: Then) -> Self {
        self.bytes.truncate(at);
        Reply { then, ..self }
    }
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub fn forget(&mut self, header: &str) {
        self.headers.remove(header);
    }

    pub fn query(&self) -> HashMap<String, String> {
        let query = self.target.split_once('?').map_or("", |(_, query)| query);
        url::form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect()
    }

    /// Returns the answer of a service that has this object, whatever the key.
    pub fn object(&self, data: &[u8], tag: &str) -> Reply {
        let date = ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT");
        if self.header("if-match").is_some_and(|wanted| wanted != tag) {
            return Reply::status(412, "<Error><Code>PreconditionFailed</Code></Error>");
        }
        if self.method == "HEAD" {
            let mut reply = Reply::with(200, &[("ETag", tag), date], data);
            reply.bytes.truncate(reply.bytes.len() - data.len());
            return reply;
        }
        let Some(range) = self
            .header("range")
            .and_then(|range| range.strip_prefix("bytes="))
        else {
            return Reply::with(200, &[("ETag", tag), date], data);
        };
        let (start, end) = range.split_once('-').unwrap();
        let start: usize = start.parse().unwrap();
        let end = end
            .parse()
            .map_or(data.len(), |end: usize| (end + 1).min(data.len()));
        if start >= data.len() {
            return Reply::status(416, "<Error><Code>InvalidRange</Code></Error>");
        }
        let range = format!("bytes {start}-{}/{}", end - 1, data.len());
        Reply::with(
            206,
            &[("ETag", tag), date, ("Content-Range", &range)],
            &data[start..end],
        )
    }
}

type Answer = dyn Fn(&Request) -> Reply + Send + Sync;

pub struct Service {
    url: String,
    shared: Arc<Shared>,
}

struct Shared {
    answer: Box<Answer>,
    requests: Mutex<Vec<Request>>,
    connections: AtomicUsize,
    over: AtomicBool,
}

impl Service {
    pub fn new(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            answer: Box::new(answer),
            requests: Mutex::default(),
            connections: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        });
        let of_thread = shared.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                if of_thread.over.load(Ordering::Relaxed) {
                    return;
                }
                let (connection, shared) = (connection.unwrap(), of_thread.clone());
                shared.connections.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || shared.talk(connection));
            }
        });
        Service { url, shared }
    }

    pub fn url(&self) -> &str {
        &self.url
    }
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.url.trim_start_matches("http://"));
    }
}

impl Shared {
    fn talk(&self, mut connection: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(connection.try_clone().ok()?);
        loop {
            let request = read(&mut reader)?;
            let reply = (self.answer)(&request);
            self.requests.lock().unwrap().push(request);
            connection.write_all(&reply.bytes).ok()?;
            match reply.then {
                Then::Keep => {}
                Then::Close => return None,
                Then::Hang => {
                    let _ = reader.read(&mut [0]);
                    return None;
                }
            }
        }
    }
}

fn read(reader: &mut impl BufRead) -> Option<Request> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        lines.push(line.trim_end().to_owned());
    }
    let mut words = lines[0].split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let headers: HashMap<_, _> = lines[1..]
        .iter()
        .filter_map(|line| line.split_once(": "))
        .map(|(k, v)| (k.to_lowercase(), v.to_owned()))
        .collect();
    let length = headers
        .get("content-length")
        .and_then(|length| length.parse().ok())
        .unwrap_or(0);
    std::io::copy(&mut reader.take(length), &mut std::io::sink()).ok()?;
    Some(Request {
        method,
        target,
        headers,
    })
}
