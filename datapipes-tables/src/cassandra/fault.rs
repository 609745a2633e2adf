//! Conversion of the driver's errors, by the reaction that they require.

use datapipes::{Error, ErrorKind};
use scylla::errors::{
    ConnectionError, ConnectionPoolError, ConnectionSetupRequestErrorKind, DbError, ExecutionError,
    MetadataError, MetadataFetchErrorKind, NewSessionError, NextPageError, NextRowError,
    PrepareError, RequestAttemptError, RequestError, SchemaAgreementError, UseKeyspaceError,
};

/// Conversion of an error of the driver.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    kind: ErrorKind,
    transient: bool,
    /// Text in place of the server's message, which names the user.
    words: Option<&'static str>,
}

impl Fault {
    fn of(kind: ErrorKind) -> Self {
        Fault {
            kind,
            transient: false,
            words: None,
        }
    }

    fn transient() -> Self {
        Fault {
            transient: true,
            ..Fault::of(ErrorKind::Unavailable)
        }
    }

    fn denied(words: &'static str) -> Self {
        Fault {
            words: Some(words),
            ..Fault::of(ErrorKind::Denied)
        }
    }

    /// Returns the error, which begins with the affected object.
    pub(super) fn error(self, at: impl Into<String>, cause: &dyn std::error::Error) -> Error {
        let error = Error::new(self.kind, at);
        let error = match self.words {
            // The driver's errors print their own causes, so the text is sufficient.
            None => error.with_source(cause.to_string()),
            Some(words) => error.with_source(words),
        };
        if self.transient {
            error.transient()
        } else {
            error
        }
    }
}

pub(super) fn session(error: &NewSessionError) -> Fault {
    match error {
        NewSessionError::MetadataError(error) => metadata(error),
        NewSessionError::UseKeyspaceError(error) => keyspace(error),
        // An unknown host name usually stays unknown.
        NewSessionError::FailedToResolveAnyHostname(_) => Fault::of(ErrorKind::Unavailable),
        _ => Fault::of(ErrorKind::Config),
    }
}

pub(super) fn execution(error: &ExecutionError) -> Fault {
    match error {
        ExecutionError::LastAttemptError(error) => attempt(error),
        ExecutionError::ConnectionPoolError(error) => pool(error),
        ExecutionError::RequestTimeout(_) => Fault::transient(),
        ExecutionError::PrepareError(error) => prepare(error),
        ExecutionError::UseKeyspaceError(error) => keyspace(error),
        ExecutionError::SchemaAgreementError(error) => match error {
            SchemaAgreementError::PrepareError(error) => prepare(error),
            SchemaAgreementError::RequestError(error) => attempt(error),
            SchemaAgreementError::ConnectionPoolError(error) => pool(error),
            _ => Fault::transient(),
        },
        ExecutionError::MetadataError(error) => metadata(error),
        ExecutionError::BadQuery(_) => Fault::of(ErrorKind::Shape),
        // No node is in the requested data center.
        ExecutionError::EmptyPlan => Fault::of(ErrorKind::Config),
        _ => Fault::of(ErrorKind::Io),
    }
}

pub(super) fn prepare(error: &PrepareError) -> Fault {
    match error {
        PrepareError::ConnectionPoolError(error) => pool(error),
        PrepareError::AllAttemptsFailed { first_attempt } => attempt(first_attempt),
        _ => Fault::of(ErrorKind::Protocol),
    }
}

fn keyspace(error: &UseKeyspaceError) -> Fault {
    match error {
        UseKeyspaceError::RequestError(error) => attempt(error),
        UseKeyspaceError::RequestTimeout(_) => Fault::transient(),
        _ => Fault::of(ErrorKind::Config),
    }
}

fn metadata(error: &MetadataError) -> Fault {
    match error {
        MetadataError::ConnectionPoolError(error) => pool(error),
        MetadataError::FetchError(error) => match &error.error {
            MetadataFetchErrorKind::PrepareError(error) => attempt(error),
            MetadataFetchErrorKind::NextRowError(NextRowError::NextPageError(
                NextPageError::RequestFailure(error),
            )) => request(error),
            _ => Fault::of(ErrorKind::Protocol),
        },
        // A node that starts may not know the others yet.
        MetadataError::Peers(_) => Fault::transient(),
        _ => Fault::of(ErrorKind::Protocol),
    }
}

fn request(error: &RequestError) -> Fault {
    match error {
        RequestError::ConnectionPoolError(error) => pool(error),
        RequestError::RequestTimeout(_) => Fault::transient(),
        RequestError::LastAttemptError(error) => attempt(error),
        _ => Fault::of(ErrorKind::Config),
    }
}

fn pool(error: &ConnectionPoolError) -> Fault {
    match error {
        ConnectionPoolError::Broken {
            last_connection_error,
        } => connection(last_connection_error),
        _ => Fault::transient(),
    }
}

fn connection(error: &ConnectionError) -> Fault {
    use ConnectionSetupRequestErrorKind as Setup;
    match error {
        ConnectionError::IoError(error) => {
            let tls = error
                .get_ref()
                .and_then(|inner| inner.downcast_ref::<rustls::Error>());
            match tls {
                Some(
                    rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented,
                ) => Fault::denied("the certificate is not trusted"),
                Some(_) => Fault::of(ErrorKind::Protocol),
                None => Fault::transient(),
            }
        }
        ConnectionError::ConnectionSetupRequestError(error) => match error.get_error() {
            Setup::DbError(error, reason) => database(error, reason),
            Setup::MissingAuthentication => Fault::denied("a user and a password are asked for"),
            Setup::StartAuthSessionError(_)
            | Setup::AuthChallengeEvaluationError(_)
            | Setup::AuthFinishError(_) => {
                Fault::denied("the way in which the server asks who is there is not known")
            }
            Setup::BrokenConnection(_) | Setup::UnableToAllocStreamId => Fault::transient(),
            _ => Fault::of(ErrorKind::Protocol),
        },
        ConnectionError::UseKeyspaceError(error) => keyspace(error),
        _ => Fault::transient(),
    }
}

fn attempt(error: &RequestAttemptError) -> Fault {
    match error {
        RequestAttemptError::DbError(error, reason) => database(error, reason),
        RequestAttemptError::BrokenConnectionError(_)
        | RequestAttemptError::UnableToAllocStreamId => Fault::transient(),
        RequestAttemptError::SerializationError(_) => Fault::of(ErrorKind::Shape),
        // A request of more than 256 MB.
        RequestAttemptError::CqlRequestSerialization(_) => Fault::of(ErrorKind::Limit),
        _ => Fault::of(ErrorKind::Protocol),
    }
}

/// Converts an error of the server. Its message distinguishes cases that its codes do not.
fn database(error: &DbError, reason: &str) -> Fault {
    let says = |words: &[&str]| {
        let reason = reason.to_ascii_lowercase();
        words.iter().any(|word| reason.contains(word))
    };
    match error {
        DbError::AuthenticationError => Fault::denied("wrong user or password"),
        DbError::Unauthorized => Fault::denied("the user may not do this"),
        DbError::Unavailable { .. }
        | DbError::Overloaded
        | DbError::IsBootstrapping
        | DbError::TruncateError
        | DbError::ReadTimeout { .. }
        | DbError::WriteTimeout { .. }
        | DbError::ReadFailure { .. }
        | DbError::WriteFailure { .. }
        | DbError::ServerError
        | DbError::RateLimitReached { .. }
        | DbError::Unprepared { .. } => Fault::transient(),
        DbError::Invalid | DbError::ConfigError => {
            if says(&[
                "does not exist",
                "doesn't exist",
                "unconfigured table",
                "unknown keyspace",
            ]) {
                Fault::of(ErrorKind::NotFound)
            } else if says(&["too large", "too big", "exceeds"]) {
                Fault::of(ErrorKind::Limit)
            } else if says(&["column", "type"]) {
                Fault::of(ErrorKind::Shape)
            } else {
                Fault::of(ErrorKind::Config)
            }
        }
        _ => Fault::of(ErrorKind::Protocol),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scylla::statement::Consistency;

    fn of_server(error: DbError, reason: &str) -> Error {
        let error = ExecutionError::LastAttemptError(RequestAttemptError::DbError(
            error,
            reason.to_owned(),
        ));
        execution(&error).error("cassandra://a/k.t: KEY", &error)
    }

    #[test]
    fn row_72_what_a_busy_or_broken_server_says_passes() {
        let consistency = Consistency::LocalOne;
        for error in [
            DbError::Overloaded,
            DbError::ServerError,
            DbError::IsBootstrapping,
            DbError::Unavailable {
                consistency,
                required: 1,
                alive: 0,
            },
            DbError::ReadTimeout {
                consistency,
                received: 0,
                required: 1,
                data_present: false,
            },
            DbError::Unprepared {
                statement_id: Default::default(),
            },
        ] {
            let error = of_server(error, "");
            assert!(
                error.kind() == ErrorKind::Unavailable && error.is_transient(),
                "{error}"
            );
            assert!(
                error.to_string().contains("cassandra://a/k.t: KEY"),
                "{error}"
            );
        }
        let slow = ExecutionError::RequestTimeout(std::time::Duration::from_secs(1));
        assert_eq!(execution(&slow), Fault::transient());
    }

    #[test]
    fn row_72_what_is_not_there_or_does_not_fit_is_final() {
        for (reason, kind) in [
            ("unconfigured table t", ErrorKind::NotFound),
            ("Keyspace 'k' does not exist", ErrorKind::NotFound),
            ("keyspace k does not exist", ErrorKind::NotFound),
            ("Undefined column name label in table k.t", ErrorKind::Shape),
            (
                "Mutation of 17 MiB is too large for the maximum size",
                ErrorKind::Limit,
            ),
        ] {
            let error = of_server(DbError::Invalid, reason);
            assert!(error.kind() == kind && !error.is_transient(), "{error}");
        }
    }

    #[test]
    fn row_73_who_was_refused_is_not_repeated() {
        for (error, reason) in [
            (
                DbError::AuthenticationError,
                "Provided username somebody and/or password are incorrect",
            ),
            (
                DbError::Unauthorized,
                "User somebody has no SELECT permission on <table k.t> or any of its parents",
            ),
        ] {
            let error = of_server(error, reason);
            assert!(
                error.kind() == ErrorKind::Denied && !error.is_transient(),
                "{error}"
            );
            assert!(
                !format!("{error} {error:#?}").contains("somebody"),
                "{error:#?}"
            );
        }
    }
}
