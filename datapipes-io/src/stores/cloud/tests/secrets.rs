//! Row 73: no message contains a secret.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};

use datapipes::ErrorKind;
use futures::TryStreamExt;
use tracing::field::{Field, Visit};
use tracing::span;

use super::alone;
use super::service::{Reply, Service, Then};
use crate::stores::cloud::{Cloud, CloudBuilder};
use crate::stores::{Get, Store};

/// Part of every secret that is planted.
const MARKER: &str = "sEcReTmArKeR";

/// A writer that records all logs, at every level.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        attributes.record(&mut self.clone());
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        values.record(&mut self.clone());
    }
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        writeln!(self.0.lock().unwrap(), "{}={value:?}", field.name()).unwrap();
    }
}

#[tokio::test]
async fn row_73_secrets_are_in_no_error_no_debug_output_and_no_log() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let secret = |what: &str| format!("{MARKER}{what}");
    let mut said = String::new();

    // URLs that cannot be opened.
    for url in [
        format!("s3://id:{MARKER}@bucket/a"),
        format!("s3://id:{MARKER}/x@bucket/a"),
        format!("s3://{MARKER}@bucket/a"),
        format!("s3://bucket/a?{MARKER}"),
        format!("s3://bucket/a?secret={MARKER}"),
        format!("s3://bucket/a?endpoint=http://id:{MARKER}@host"),
        format!("s3://bucket/a?endpoint={MARKER}://x"),
        format!("s3://bucket/a?endpoint={MARKER}"),
        format!("s3://bucket/a#{MARKER}"),
        format!("s3://bucket:{MARKER}/a"),
        format!("abfss://box:{MARKER}@account.dfs.core.windows.net/a"),
        format!("gs://[{MARKER}@/a"),
    ] {
        let error = CloudBuilder::parse(&url)
            .and_then(|builder| alone(builder).build())
            .unwrap_err();
        writeln!(said, "{error} {error:#?}").unwrap();
    }
    // Invalid settings.
    let azure = alone(Cloud::azure("box")).endpoint("http://127.0.0.1:1");
    let google = alone(Cloud::gcs("bucket")).endpoint("http://127.0.0.1:1");
    for builder in [
        azure.clone().keys("account", secret(" not base64 !")),
        azure.clone().account("a").option("sas_token", secret("")),
        google.clone().option(
            "service_account_key",
            format!("{{\"private_key\": \"{MARKER}\"}}"),
        ),
        google.clone().option("service_account_key", secret("")),
    ] {
        match builder.build() {
            Ok(store) => writeln!(said, "{store:?}"),
            Err(error) => writeln!(said, "{error} {error:#?}"),
        }
        .unwrap();
    }

    // A service that quotes the request, with every kind of failure.
    let replies: Vec<Box<dyn Fn(String) -> Reply + Send + Sync>> = vec![
        Box::new(|echo| {
            Reply::status(
                403,
                format!("<Error><Code>InvalidAccessKeyId</Code><Message>{echo}</Message></Error>"),
            )
        }),
        Box::new(|echo| Reply::status(403, format!("<Error><Code>{echo}</Code></Error>"))),
        Box::new(|echo| {
            Reply::status(
                400,
                format!("<Error><Code>ExpiredToken</Code><Token>{echo}</Token></Error>"),
            )
        }),
        Box::new(|echo| Reply::status(500, echo)),
        Box::new(|echo| Reply::status(404, echo)),
        Box::new(|echo| Reply::ok(format!("<Error><Message>{echo}</Message></Error>"))),
        Box::new(|echo| Reply::with(307, &[("Location", "http://127.0.0.1:1/x")], echo)),
        Box::new(|_| Reply::ok("").cut(10, Then::Close)),
        Box::new(|_| Reply::ok("").cut(0, Then::Close)),
        Box::new(|_| {
            Reply::with(
                200,
                &[
                    ("ETag", "\"v\""),
                    ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
                ],
                "12345",
            )
            .cut(120, Then::Close)
        }),
    ];
    for reply in replies {
        let service = Service::new(move |request| reply(format!("{request:?}")));
        let stores = [
            alone(Cloud::s3("bucket"))
                .keys(secret("id"), secret("key"))
                .token(secret("token")),
            alone(Cloud::gcs("bucket")).token(secret("bearer")),
            alone(Cloud::azure("box"))
                .account("a")
                .option("sas_token", format!("sv=1&sig={MARKER}")),
            alone(Cloud::azure("box"))
                .account("a")
                .token(secret("bearer")),
        ];
        for builder in stores {
            let builder = builder.endpoint(service.url());
            writeln!(said, "{builder:?} {builder:#?}").unwrap();
            let store = builder.build().unwrap();
            writeln!(
                said,
                "{store:?} {store:#?} {} {}",
                store.url(),
                store.url_of("k")
            )
            .unwrap();
            for get in [Get::default(), Get::range(1..3)] {
                match store.get("k", get).await {
                    Err(error) => writeln!(said, "{error} {error:?} {error:#?}").unwrap(),
                    Ok(object) => {
                        writeln!(said, "{object:?}").unwrap();
                        // A body that is read is data, whatever it contains.
                        writeln!(said, "{:#?}", object.bytes().await.map(drop)).unwrap();
                    }
                }
            }
            writeln!(
                said,
                "{:#?}",
                store
                    .head("k")
                    .await
                    .map_err(|error| error.kind() != ErrorKind::Panic)
            )
            .unwrap();
            writeln!(
                said,
                "{:#?}",
                store.list("p").try_collect::<Vec<_>>().await.unwrap_err()
            )
            .unwrap();
        }
        // The secrets were sent, so that they could have been shown.
        assert!(
            service
                .requests()
                .iter()
                .any(|request| format!("{request:?}").contains(MARKER))
        );
    }
    let logged = log.0.lock().unwrap().clone();
    assert!(
        !logged.is_empty(),
        "nothing was logged, so nothing was tested"
    );
    for (name, text) in [("errors", &said), ("log", &logged)] {
        if let Some(at) = text.find(MARKER) {
            panic!(
                "{name}: {}",
                &text[at.saturating_sub(300)..text.len().min(at + 100)]
            );
        }
    }
}
