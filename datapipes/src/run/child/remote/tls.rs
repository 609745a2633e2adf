//! TLS between trainer and worker: the trust in certificates, and the text of errors.
//!
//! Only TLS 1.3, as both sides are the same executable.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::version::TLS13;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ConnectionCommon, DigitallySignedStruct,
    RootCertStore, SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::handshake::{Binding, Ends};
use crate::error::escape;
use crate::processes::{Identity, TCP, certificates};
use crate::{Error, ErrorKind, Result};

/// Variable with the path of the certificates that a worker trusts.
const CA: &str = "DATAPIPES_WORKER_CA";
/// Label of the value that binds the proofs of both sides to their connection (RFC 5705).
const LABEL: &[u8] = b"EXPORTER-datapipes-worker";

/// Bytes that are read at once from a connection. By itself rustls reads 4 KiB at a time, the quarter of
/// a record.
const BUFFER: usize = 64 << 10;

/// Makes the trainer's ends of a connection.
///
/// # Errors
/// [`ErrorKind::Denied`] if the worker does not accept the certificate; any other if the connection
/// is lost, or the other side is no worker.
pub(super) async fn accept<R, W>(identity: &Identity, read: R, write: W) -> Result<Ends>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let stream = tokio::io::join(BufReader::with_capacity(BUFFER, read), write);
    let accepted = TlsAcceptor::from(identity.0.clone()).accept(stream).await;
    let stream = accepted.map_err(|error| match alert(&error).and_then(refused) {
        Some(why) => Error::denied(format!(
            "it does not accept the certificate of this trainer: {why}"
        )),
        None => Error::io(error),
    })?;
    let binding = binding(stream.get_ref().1)?;
    Ok(ends(stream, binding))
}

/// Returns the reason that the other side gave for the end of the connection.
fn alert(error: &io::Error) -> Option<AlertDescription> {
    matching!(tls_error(error)?, rustls::Error::AlertReceived(alert) => *alert)
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Explains why a worker does not accept the certificate, if that is what the alert says.
fn refused(alert: AlertDescription) -> Option<String> {
    Some(match alert {
        AlertDescription::UnknownCA => format!("its {CA} has neither it nor its issuer"),
        AlertDescription::CertificateExpired => {
            "it is not valid at this time; make a new one, or set the clock of the worker machine"
                .to_owned()
        }
        AlertDescription::BadCertificate => {
            "it does not name the host that the worker has in DATAPIPES_WORKER".to_owned()
        }
        AlertDescription::CertificateUnknown
        | AlertDescription::CertificateRevoked
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::DecryptError => {
            format!("its {CA} may have another one of the same name; the worker's output says more")
        }
        _ => return None,
    })
}

/// Certificates that a worker trusts, and the name of its trainer.
pub(super) struct Trust {
    /// Host and port of the trainer, for messages.
    address: String,
    host: ServerName<'static>,
    config: Arc<ClientConfig>,
}

impl Trust {
    /// Reads the certificates of the variable, for the trainer at an address.
    ///
    /// # Errors
    /// The file cannot be read, or is not set.
    pub(super) fn of(address: &str) -> Result<Trust> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = ServerName::try_from(host.to_owned()).map_err(|_| {
            let message = format!("`{}` is no name of a host", escape(host));
            Error::config(message)
        })?;
        let path = std::env::var_os(CA).ok_or_else(|| {
            let message = format!(
                "{CA} is not set: it is the path of a PEM file with the certificate of the trainer, or of its issuer"
            );
            Error::config(message)
        })?;
        let roots = certificates(Path::new(&path)).map_err(|error| error.within(CA))?;
        let config = config(roots)
            .map_err(|error| Error::config(format!("the certificates of {CA}: {error}")))?;
        Ok(Trust {
            address: address.to_owned(),
            host,
            config: Arc::new(config),
        })
    }

    /// Makes the worker's ends of a connection.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if the other side is not trusted, or speaks no TLS.
    pub(super) async fn connect<R, W>(&self, read: R, write: W) -> Result<Ends>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let stream = tokio::io::join(BufReader::with_capacity(BUFFER, read), write);
        let connect = TlsConnector::from(self.config.clone()).connect(self.host.clone(), stream);
        match connect.into_fallible().await {
            Ok(stream) => {
                let binding = binding(stream.get_ref().1)?;
                Ok(ends(stream, binding))
            }
            Err((error, mut stream)) => {
                // The reason was sent to the trainer; closing with unread bytes could lose it.
                let _ = stream.shutdown().await;
                let _ = stream.read(&mut [0; 1 << 16]).await;
                Err(self.explain(error))
            }
        }
    }

    fn explain(&self, error: io::Error) -> Error {
        let Some(cause) = tls_error(&error) else {
            return Error::io(error);
        };
        let address = escape(&self.address);
        let message = match cause {
            rustls::Error::InvalidCertificate(why) => {
                let what_to_do = match why {
                    CertificateError::UnknownIssuer => {
                        format!(": {CA} has neither it nor its issuer")
                    }
                    CertificateError::NotValidForName
                    | CertificateError::NotValidForNameContext { .. } => {
                        "; DATAPIPES_WORKER needs a host that the certificate names".to_owned()
                    }
                    CertificateError::Expired
                    | CertificateError::ExpiredContext { .. }
                    | CertificateError::NotValidYet
                    | CertificateError::NotValidYetContext { .. } => {
                        "; make a new one, or set the clock of this machine".to_owned()
                    }
                    // An older certificate of the same name, for example.
                    _ => format!("; {CA} needs this certificate, or that of its issuer"),
                };
                let why = match why {
                    CertificateError::UnknownIssuer => "its issuer is unknown".to_owned(),
                    why => why.to_string(),
                };
                format!(
                    "the certificate of the trainer at {address} is not accepted: {why}{what_to_do}"
                )
            }
            rustls::Error::InvalidMessage(_) => format!(
                "the trainer at {address} does not speak TLS: start this worker with DATAPIPES_WORKER={TCP}…, or call \
                 `Remote::tls` in the trainer"
            ),
            error => format!("no TLS connection to the trainer at {address}: {error}"),
        };
        Error::denied(message)
    }
}

fn config(roots: Vec<CertificateDer<'static>>) -> Result<ClientConfig, Box<dyn std::error::Error>> {
    let provider = Arc::new(ring::default_provider());
    let mut store = RootCertStore::empty();
    for root in &roots {
        store.add(root.clone())?;
    }
    let verifier = Verifier {
        by_issuer: WebPkiServerVerifier::builder_with_provider(store.into(), provider.clone())
            .build()?,
        roots,
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// The usual rules for certificates, and one more: a certificate that is in the worker's own list
/// may be one that says it is an issuer, as the self-signed ones of `openssl req -x509` do.
#[derive(Debug)]
struct Verifier {
    by_issuer: Arc<WebPkiServerVerifier>,
    roots: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        issuers: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self
            .by_issuer
            .verify_server_cert(certificate, issuers, host, ocsp, now);
        match verified {
            // The times are looked at before what the certificate is for, and have errors of their
            // own.
            Err(rustls::Error::InvalidCertificate(CertificateError::Other(_)))
                if self.roots.contains(certificate) =>
            {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, host)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_issuer
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_issuer
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_issuer.supported_verify_schemes()
    }
}

/// Returns a value that only the two ends of a connection have.
fn binding<D>(connection: &ConnectionCommon<D>) -> Result<Binding> {
    let exported = connection.export_keying_material(Binding::default(), LABEL, None);
    exported.map_err(|error| Error::new(ErrorKind::Io, error.to_string()))
}

fn ends<S>(stream: S, binding: Binding) -> Ends
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (read, write) = tokio::io::split(stream);
    Ends::new(Box::pin(read), Box::pin(write), binding)
}
