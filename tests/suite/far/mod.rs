//! Stores beyond this machine: against misbehaving servers inside the test, and against real
//! servers on loopback. `.ci/servers/all` starts the real servers and sets the variables with their
//! addresses. A test whose server is absent reports this and passes.

#[cfg(all(feature = "http", unix))]
#[path = "../../../datapipes-io/tests/support/bad_http.rs"]
#[allow(dead_code, reason = "other tests use the rest of it")]
mod bad_http;
mod conformance;
#[cfg(all(feature = "http", unix))]
mod engine;
#[cfg(all(feature = "http", unix))]
#[path = "../../../datapipes-io/tests/support/hub.rs"]
#[allow(dead_code, reason = "other tests use the rest of it")]
mod hub;
#[cfg(all(feature = "http", unix))]
mod nginx;
#[cfg(feature = "cloud")]
mod s3;
#[cfg(all(feature = "cloud", feature = "http", unix))]
mod secrets;
#[cfg(all(feature = "http", feature = "text", unix))]
mod text;

/// A variable that says where a server is.
#[cfg(any(feature = "cloud", feature = "http"))]
fn server(variable: &str) -> Option<String> {
    let place = std::env::var(variable)
        .ok()
        .filter(|place| !place.is_empty());
    if place.is_none() {
        println!("skipped: set {variable}; see .ci/servers/all");
    }
    place
}
