//! Translation of the errors of cloud services.

use std::error::Error as StdError;
use std::io;

use datapipes::{Error, ErrorKind};
use object_store::Error as Theirs;
use object_store::client::HttpError;
use reqwest::StatusCode;

use super::link::{Answer, Fault, What, behind, deepest};

/// Translates an error of the request for `url`, with the answer that the service gave.
pub(super) fn translate(url: &str, error: &Theirs, answer: &Answer) -> Error {
    if let Some(status) = answer.status {
        return by_status(url, status, answer);
    }
    if let Some(fault) = &answer.fault {
        return by_fault(url, fault);
    }
    let kind = match error {
        Theirs::NotFound { .. } => ErrorKind::NotFound,
        Theirs::PermissionDenied { .. } | Theirs::Unauthenticated { .. } => ErrorKind::Denied,
        Theirs::Precondition { .. } | Theirs::NotModified { .. } => ErrorKind::Changed,
        Theirs::NotSupported { .. } | Theirs::NotImplemented { .. } => ErrorKind::Unsupported,
        Theirs::InvalidPath { .. } => ErrorKind::Unsupported,
        Theirs::UnknownConfigurationKey { .. } => ErrorKind::Config,
        _ => return unsorted(url, error),
    };
    let words = match kind {
        ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::Changed => url.to_owned(),
        _ => format!("{url}: {}", deepest(error)),
    };
    Error::new(kind, words)
}

/// Translates an error whose variant does not tell its kind: of a foreign store, or of an invalid
/// answer.
fn unsorted(url: &str, error: &Theirs) -> Error {
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    let mut deep = None;
    while let Some(cause) = next {
        if let Some(error) = cause.downcast_ref::<HttpError>() {
            return by_fault(url, &Fault::of(error));
        }
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            let own = Error::new(
                Error::io(error.kind().into()).kind(),
                format!("{url}: {}", deepest(error)),
            );
            return if is_transient(error.kind()) {
                own.transient()
            } else {
                own
            };
        }
        deep = Some(cause);
        next = behind(cause);
    }
    let words = deep.map(|cause| cause.to_string()).unwrap_or_default();
    // The type of `object_store` that holds the status is not public, and its message quotes the
    // error document.
    match words
        .split_once("non-2xx status code: ")
        .and_then(|(_, rest)| rest.get(..3)?.parse().ok())
    {
        Some(status) => by_status(url, status, &Answer::default()),
        None => Error::protocol(format!("{url}: {}", deepest(error))),
    }
}

fn is_transient(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as Io;
    matches!(
        kind,
        Io::TimedOut
            | Io::ConnectionReset
            | Io::ConnectionAborted
            | Io::ConnectionRefused
            | Io::BrokenPipe
            | Io::UnexpectedEof
            | Io::NotConnected
    )
}

/// Translates an error of a request for credentials, before the request for `url` could be made.
pub(super) fn of_credentials(url: &str, error: &Theirs, answer: &Answer, had_some: bool) -> Error {
    let what = match (answer.status, &answer.fault) {
        (Some(status), _) => said(status, answer),
        (_, Some(fault)) => fault.words.clone(),
        _ => deepest(error),
    };
    let error = Error::denied(format!("{url}: no credentials: {what}"));
    // If no credentials were ever found, none are configured.
    if had_some { error.transient() } else { error }
}

/// Translates an error that ended a body after `got` bytes of the announced number.
pub(super) fn of_body(url: &str, error: &Theirs, got: u64, want: u64) -> Error {
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    let mut late = false;
    while let Some(cause) = next {
        late |= cause
            .downcast_ref()
            .is_some_and(|http: &HttpError| Fault::of(http).what == What::Late);
        next = behind(cause);
    }
    match late {
        true => Error::unavailable(format!("{url}: stalled after {got} of {want} bytes")),
        false => {
            let why = deepest(error);
            Error::truncated(format!("{url}: {got} of {want} bytes: {why}"))
        }
    }
    .transient()
}

fn by_fault(url: &str, fault: &Fault) -> Error {
    let words = format!("{url}: {}", fault.words);
    match fault.what {
        What::Late => Error::unavailable(words).transient(),
        What::Cut => Error::unavailable(words).transient(),
        What::Short => Error::truncated(words).transient(),
        What::Certificate => Error::unavailable(words),
        What::Strange => Error::protocol(words),
    }
}

fn by_status(url: &str, status: u16, answer: &Answer) -> Error {
    let words = format!("{url}: {}", said(status, answer));
    let code = answer.code.as_deref().unwrap_or_default();
    let kind = match status {
        _ if is_transient_code(code) => ErrorKind::Unavailable,
        _ if is_expired(status, code) => ErrorKind::Denied,
        404 | 410 => ErrorKind::NotFound,
        401 | 403 => ErrorKind::Denied,
        304 | 412 => ErrorKind::Changed,
        408 | 409 | 425 | 429 | 500..=599 => ErrorKind::Unavailable,
        // An error document with a success status.
        200..=299 if code == "AccessDenied" => ErrorKind::Denied,
        _ => ErrorKind::Protocol,
    };
    let error = Error::new(kind, words);
    let passes =
        is_transient_code(code) || matches!(status, 408 | 425 | 429 | 500 | 502..=504 | 506..=599);
    match (kind == ErrorKind::Unavailable && passes, answer.pause) {
        (true, Some(pause)) => error.with_retry_after(pause),
        (true, None) => error.transient(),
        _ => error,
    }
}

/// Describes the status, with the error code of the service.
fn said(status: u16, answer: &Answer) -> String {
    let reason = StatusCode::from_u16(status)
        .ok()
        .and_then(|status| status.canonical_reason());
    let mut words = match reason {
        Some(reason) => format!("{status} {reason}"),
        None => status.to_string(),
    };
    if let Some(code) = &answer.code {
        words += &format!(" ({code})");
    }
    if is_expired(status, answer.code.as_deref().unwrap_or_default()) {
        words += ", the credentials have expired or are not known";
    }
    if let Some(region) = answer.region.as_deref().filter(|_| status <= 400) {
        words += &format!(", the bucket is in region {region}");
    }
    words
}

/// Returns true for codes of services that ask for a pause, whatever the status.
fn is_transient_code(code: &str) -> bool {
    matches!(
        code,
        "InternalError"
            | "SlowDown"
            | "ServiceUnavailable"
            | "RequestTimeout"
            | "OperationAborted"
            | "ServerBusy"
            | "OperationTimedOut"
            | "TooManyRequests"
            | "Throttling"
            | "ThrottlingException"
    )
}

/// Returns true if fresh credentials may help.
pub(super) fn is_expired(status: u16, code: &str) -> bool {
    let by_code = matches!(
        code,
        "ExpiredToken"
            | "ExpiredTokenException"
            | "TokenRefreshRequired"
            | "RequestExpired"
            | "InvalidAuthenticationInfo"
    );
    // The answer to a HEAD has no document: for S3, these are mostly expired tokens.
    by_code || status == 401 || status == 400 && code.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, code: &str) -> Error {
        let code = (!code.is_empty()).then(|| code.to_owned());
        by_status(
            "s3://b/k",
            status,
            &Answer {
                status: Some(status),
                code,
                ..Answer::default()
            },
        )
    }

    #[test]
    fn row_54_answers_that_are_final() {
        for (status, code, kind) in [
            (400, "InvalidArgument", ErrorKind::Protocol),
            (401, "", ErrorKind::Denied),
            (403, "AccessDenied", ErrorKind::Denied),
            (404, "NoSuchKey", ErrorKind::NotFound),
            (410, "", ErrorKind::NotFound),
            (412, "PreconditionFailed", ErrorKind::Changed),
            (416, "InvalidRange", ErrorKind::Protocol),
            (409, "BlobArchived", ErrorKind::Unavailable),
            (501, "NotImplemented", ErrorKind::Unavailable),
            (301, "PermanentRedirect", ErrorKind::Protocol),
            (400, "ExpiredToken", ErrorKind::Denied),
            (200, "AccessDenied", ErrorKind::Denied),
        ] {
            let error = of(status, code);
            assert!(error.kind() == kind && !error.is_transient(), "{error:#?}");
            assert!(
                error.to_string().contains(&format!("s3://b/k: {status}")),
                "{error}"
            );
        }
    }

    #[test]
    fn row_52_and_55_answers_that_ask_for_patience() {
        let answers = [
            (500, ""),
            (502, ""),
            (503, "SlowDown"),
            (504, ""),
            (429, ""),
            (408, ""),
            (400, "RequestTimeout"),
        ];
        for (status, code) in answers
            .into_iter()
            .chain([(200, "InternalError"), (409, "OperationAborted")])
        {
            let error = of(status, code);
            assert!(
                error.kind() == ErrorKind::Unavailable && error.is_transient(),
                "{error:#?}"
            );
        }
    }

    #[test]
    fn errors_of_stores_that_are_not_ours_are_sorted_by_what_is_behind_them() {
        let generic =
            |source: Box<dyn StdError + Send + Sync>| Theirs::Generic { store: "x", source };
        let none = Answer::default();
        let reset = generic(Box::new(io::Error::from(io::ErrorKind::ConnectionReset)));
        assert!(translate("u", &reset, &none).is_transient());
        let busy = "Server returned non-2xx status code: 503 Service Unavailable: <secret>";
        let busy = translate("u", &generic(busy.into()), &none);
        assert!(
            busy.is_transient() && !busy.to_string().contains("secret"),
            "{busy}"
        );
        let absent = Theirs::NotFound {
            path: "k".into(),
            source: "x".into(),
        };
        assert_eq!(translate("u", &absent, &none).kind(), ErrorKind::NotFound);
    }
}
