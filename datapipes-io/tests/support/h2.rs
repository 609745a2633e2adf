//! An HTTP/2 server, in the clear or under TLS, that serves `/whole`, `/open` and `/cut`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use bytes::Bytes;
use h2::server::{SendResponse, handshake};
use hyper::{Request, Response};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// A running server, which ends when it is dropped.
pub struct H2 {
    pub address: SocketAddr,
    pub connections: Arc<AtomicUsize>,
    ended: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl H2 {
    pub fn start(data: Bytes, tls: Option<Arc<ServerConfig>>) -> H2 {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("it is bound");
        let connections = Arc::new(AtomicUsize::new(0));
        let (ended, end) = oneshot::channel();
        let count = connections.clone();
        let serve = async move {
            let listener = TcpListener::from_std(listener).expect("a socket");
            let mut tasks = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let (data, tls) = (data.clone(), tls.clone());
                tasks.spawn(async move {
                    match tls {
                        None => connection(socket, data).await,
                        Some(config) => {
                            if let Ok(socket) =
                                tokio_rustls::TlsAcceptor::from(config).accept(socket).await
                            {
                                connection(socket, data).await;
                            }
                        }
                    }
                });
            }
        };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                tokio::select! {
                    () = serve => {}
                    _ = end => {}
                }
            });
        });
        H2 {
            address,
            connections,
            ended: Some(ended),
            thread: Some(thread),
        }
    }
}

impl Drop for H2 {
    fn drop(&mut self) {
        drop(self.ended.take());
        drop(self.thread.take().map(JoinHandle::join));
    }
}

async fn connection(socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, data: Bytes) {
    let Ok(mut connection) = handshake(socket).await else {
        return;
    };
    let mut tasks = JoinSet::new();
    while let Some(Ok((request, respond))) = connection.accept().await {
        tasks.spawn(answer(request, respond, data.clone()));
    }
}

async fn answer(request: Request<h2::RecvStream>, mut respond: SendResponse<Bytes>, data: Bytes) {
    let range = request
        .headers()
        .get("range")
        .and_then(|range| range.to_str().ok()?.strip_prefix("bytes="));
    let range = range.and_then(|range| range.split_once('-'));
    let range = range.map(|(first, last)| {
        first.parse().unwrap_or(0)..last.parse().unwrap_or(data.len() - 1) + 1
    });
    let path = request.uri().path().to_owned();
    let mut head = Response::builder().status(if range.is_some() { 206 } else { 200 });
    if let Some(range) = &range {
        head = head.header(
            "content-range",
            format!("bytes {}-{}/{}", range.start, range.end - 1, data.len()),
        );
    }
    let data = data.slice(range.unwrap_or(0..data.len()));
    if path != "/open" {
        head = head.header("content-length", data.len());
    }
    let Ok(mut body) = respond.send_response(head.body(()).expect("a head"), false) else {
        return;
    };
    if path == "/cut" {
        let _ = body.send_data(data.slice(..3), false);
        // A pause, so that the bytes sent arrive before the reset.
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        body.send_reset(h2::Reason::INTERNAL_ERROR);
        return;
    }
    let _ = body.send_data(data, true);
    // While the stream lives, data is sent as far as the flow-control windows allow.
    let _ = std::future::poll_fn(|cx| body.poll_reset(cx)).await;
}
