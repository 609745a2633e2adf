//! TLS for the server of [`bad_http`](super::bad_http), with a self-signed certificate.

use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::bad_http::{BadHttp, Wire};

/// Starts a server with a self-signed certificate for these names, and returns it with the
/// certificate as PEM.
pub fn start(names: &[&str]) -> (BadHttp, String) {
    let (config, pem) = config(names, &[]);
    let wrap = move |mut socket: TcpStream| {
        let mut tls = ServerConnection::new(config.clone()).ok()?;
        while tls.is_handshaking() {
            tls.complete_io(&mut socket).ok()?;
        }
        Some(Box::new(StreamOwned::new(tls, socket)) as Box<dyn Wire>)
    };
    (BadHttp::start_with("https", wrap), pem)
}

/// Makes a self-signed certificate for these names, and returns the server's configuration and the
/// certificate as PEM.
pub fn config(names: &[&str], protocols: &[&str]) -> (Arc<ServerConfig>, String) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let own = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key.into())
        .expect("a key that fits");
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    (Arc::new(config), own.cert.pem())
}
