//! The certificate with which a trainer shows its workers what it is.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;

use crate::error::escape;
use crate::{Error, Result};

/// A certificate with its key, as settings of the trainer's side of a connection.
#[derive(Clone)]
pub(crate) struct Identity(pub(crate) Arc<ServerConfig>);

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Identity {
    /// Reads the files.
    pub(super) fn load(chain: &Path, key: &Path) -> Result<Identity> {
        let certificates = certificates(chain)?;
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unread(key, error))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .map(|config| config.with_no_client_auth())
            .and_then(|config| config.with_single_cert(certificates, private))
            .map_err(|error| {
                let (chain, key) = (shown(chain), shown(key));
                let message = match error {
                    rustls::Error::InconsistentKeys(_) => {
                        format!("the key in {key} is not that of the first certificate in {chain}")
                    }
                    error => format!("the certificate in {chain} with the key in {key}: {error}"),
                };
                Error::config(message)
            })?;
        // Workers make a connection of their own each time.
        config.send_tls13_tickets = 0;
        Ok(Identity(Arc::new(config)))
    }
}

/// Reads the certificates of a PEM file, which has at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(path)
        .and_then(|found| found.collect::<Result<Vec<_>, _>>())
        .map_err(|error| unread(path, error))?;
    if found.is_empty() {
        return Err(unread(path, PemError::NoItemsFound));
    }
    Ok(found)
}

fn unread(path: &Path, error: PemError) -> Error {
    let path = shown(path);
    match error {
        PemError::Io(error) => Error::io(error).within(format!("cannot read {path}")),
        PemError::NoItemsFound => Error::config(format!(
            "{path} has no certificate or key in the PEM format (`-----BEGIN …`)"
        )),
        // The text of other errors may have bytes of the file, which may be a key.
        _ => Error::config(format!("{path} is damaged: no PEM file")),
    }
}

fn shown(path: &Path) -> String {
    escape(&path.display().to_string()).into_owned()
}
