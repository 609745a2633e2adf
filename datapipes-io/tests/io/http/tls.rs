//! Encryption: the part of row 51 that is about certificates.

use super::*;
use crate::support::tls;

#[tokio::test]
async fn row_51_a_certificate_that_nobody_vouches_for_is_refused_for_good() {
    let (server, pem) = tls::start(&["127.0.0.1"]);
    server.on("/k", [object("data-of-ten")]);
    let error = store_of(&server).read("k").await.unwrap_err();
    is(&error, ErrorKind::Denied, false);
    assert!(
        error
            .to_string()
            .contains("/k: the certificate is not trusted"),
        "{error}"
    );
    assert_eq!(server.requests().len(), 0);
    let trusting = told(&server, |http| http.root_certificates(&pem));
    assert_eq!(trusting.read("k").await.unwrap(), "data-of-ten");
    check_ranges(&trusting, "k", b"data-of-ten").await;
}

#[tokio::test]
async fn row_51_a_certificate_of_another_name_is_refused_for_good() {
    let (server, pem) = tls::start(&["elsewhere.example"]);
    server.on("/k", [object("data")]);
    let error = told(&server, |http| http.root_certificates(&pem))
        .read("k")
        .await
        .unwrap_err();
    is(&error, ErrorKind::Denied, false);
    assert!(
        error.to_string().contains("the certificate is not trusted"),
        "{error}"
    );
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn row_51_a_server_without_tls_is_no_server_with() {
    let server = BadHttp::start();
    let store = Http::new(&server.url().replace("http://", "https://")).unwrap();
    let error = store.read("k").await.unwrap_err();
    is(&error, ErrorKind::Protocol, false);
}

#[tokio::test]
async fn row_51_a_handshake_that_does_not_end_is_given_up() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let http = Http::builder(&format!("https://{}/", listener.local_addr().unwrap()));
    let error = http
        .connect_timeout(Duration::from_millis(30))
        .build()
        .unwrap()
        .read("k")
        .await
        .unwrap_err();
    is(&error, ErrorKind::Unavailable, true);
    assert!(
        error.to_string().contains("no connection in time"),
        "{error}"
    );
}

#[tokio::test]
async fn row_57_a_body_that_is_cut_under_tls_is_known_to_be() {
    let (server, pem) = tls::start(&["127.0.0.1"]);
    server.on("/k", [cut_body(b"0123456789", 4), object("0123456789")]);
    let store = told(&server, |http| http.root_certificates(&pem));
    is(
        &store.read("k").await.unwrap_err(),
        ErrorKind::Truncated,
        true,
    );
    assert_eq!(store.read("k").await.unwrap(), "0123456789");
}

#[tokio::test]
async fn row_64_https_does_not_lead_to_http() {
    let (server, pem) = tls::start(&["127.0.0.1"]);
    let plain = BadHttp::start();
    server.on("/k", [redirect(&format!("{}k", plain.url()))]);
    let allowed = format!("127.0.0.1:{}", plain.port());
    let store = told(&server, |http| {
        http.root_certificates(&pem).allow_redirects_to(&allowed)
    });
    let error = store.read("k").await.unwrap_err();
    is(&error, ErrorKind::Denied, false);
    assert!(
        error.to_string().contains("https does not lead to http"),
        "{error}"
    );
    assert_eq!(plain.connections(), 0);
}
