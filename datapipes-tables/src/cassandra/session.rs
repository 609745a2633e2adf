//! The driver's session: connections to the cluster, made in the async runtime that uses them.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datapipes::{Error, Result};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use scylla::client::PoolSize;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::errors::{DbError, RequestAttemptError};
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::policies::retry::{RequestInfo, RetryDecision, RetryPolicy, RetrySession};
use scylla::policies::speculative_execution::SimpleSpeculativeExecutionPolicy;
use scylla::statement::Consistency as Level;

use super::fault;
use super::options::{CassandraOptions, Compression, Consistency};

/// Connects. The driver's tasks run on the current runtime, and end with it or with the session.
pub(super) async fn connect(options: &CassandraOptions) -> Result<Session> {
    let mut balancing = DefaultPolicy::builder().token_aware(true);
    if let Some(datacenter) = &options.datacenter {
        balancing = balancing
            .prefer_datacenter(datacenter.clone())
            .permit_dc_failover(true);
    }
    let mut profile = ExecutionProfile::builder()
        .consistency(level(options.consistency))
        .request_timeout(Some(options.timeout))
        .retry_policy(Arc::new(OtherNode))
        .load_balancing_policy(balancing.build());
    if let Some(after) = options.speculate {
        let policy = SimpleSpeculativeExecutionPolicy {
            max_retry_count: 2,
            retry_interval: after,
        };
        profile = profile.speculative_execution_policy(Some(Arc::new(policy)));
    }
    let connections = NonZeroUsize::new(options.connections).unwrap_or(NonZeroUsize::MIN);
    let mut builder = SessionBuilder::new()
        .known_nodes(&options.nodes)
        .default_execution_profile_handle(profile.build().into_handle())
        .pool_size(PoolSize::PerHost(connections))
        .connection_timeout(options.connect_timeout)
        .keyspaces_to_fetch([&options.keyspace])
        .driver_config_reporting(false)
        .compression(options.compression.map(|compression| match compression {
            Compression::Lz4 => scylla::client::Compression::Lz4,
            Compression::Snappy => scylla::client::Compression::Snappy,
        }));
    if let Some((user, password)) = &options.credentials {
        builder = builder.user(user, password);
    }
    if options.tls {
        builder = builder.tls_context(Some(tls(options)?));
    }
    // The driver's own limit applies only until the connection is made; for a node that does not
    // answer after that the driver would wait for a minute.
    let limit = options.connect_timeout.saturating_add(options.timeout);
    match tokio::time::timeout(limit, builder.build()).await {
        Ok(built) => built.map_err(|error| fault::session(&error).error(&options.url, &error)),
        Err(_) => {
            let what = format!("{}: no session in {limit:?}", options.url);
            Err(Error::unavailable(what).transient())
        }
    }
}

pub(super) fn level(consistency: Consistency) -> Level {
    match consistency {
        Consistency::One => Level::One,
        Consistency::LocalOne => Level::LocalOne,
        Consistency::Quorum => Level::Quorum,
        Consistency::LocalQuorum => Level::LocalQuorum,
        Consistency::All => Level::All,
    }
}

fn tls(options: &CassandraOptions) -> Result<Arc<ClientConfig>> {
    let path = match &options.ca {
        Some(path) => path.clone(),
        None => systems_authorities().ok_or_else(|| {
            let what = format!(
                "{}: no authorities of the system were found; name a file (ca=)",
                options.url
            );
            Error::config(what)
        })?,
    };
    let unreadable = |error: &dyn std::fmt::Display| {
        Error::config(format!(
            "{}: authorities in {}: {error}",
            options.url,
            path.display()
        ))
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(&path).map_err(|error| unreadable(&error))? {
        let certificate = certificate.map_err(|error| unreadable(&error))?;
        let added = roots.add(certificate);
        // A system's file may contain a certificate that is too old to be parsed; all certificates
        // of a named file must be valid.
        if options.ca.is_some() {
            added.map_err(|error| unreadable(&error))?;
        }
    }
    if roots.is_empty() {
        return Err(unreadable(&"no certificate"));
    }
    let config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| unreadable(&error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Returns the file in which the system stores its certificate authorities.
fn systems_authorities() -> Option<PathBuf> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let usual = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
    ];
    named
        .into_iter()
        .chain(usual.map(PathBuf::from))
        .find(|path| Path::exists(path))
}

/// A retry policy that asks the next node if one cannot answer now. Every request may be repeated:
/// reads change nothing, and a sample that is written again replaces itself.
#[derive(Debug)]
struct OtherNode;

impl RetryPolicy for OtherNode {
    fn new_session(&self) -> Box<dyn RetrySession> {
        Box::new(OtherNode)
    }
}

impl RetrySession for OtherNode {
    fn decide_should_retry(&mut self, request: RequestInfo<'_>) -> RetryDecision {
        let transient = match request.error {
            RequestAttemptError::BrokenConnectionError(_)
            | RequestAttemptError::UnableToAllocStreamId => true,
            RequestAttemptError::DbError(error, _) => matches!(
                error,
                DbError::Overloaded
                    | DbError::ServerError
                    | DbError::IsBootstrapping
                    | DbError::TruncateError
                    | DbError::Unavailable { .. }
                    | DbError::ReadTimeout { .. }
                    | DbError::ReadFailure { .. }
                    | DbError::WriteTimeout { .. }
                    | DbError::RateLimitReached { .. }
            ),
            _ => false,
        };
        if transient && request.is_idempotent {
            RetryDecision::RetryNextTarget(None)
        } else {
            RetryDecision::DontRetry
        }
    }

    fn reset(&mut self) {}
}
