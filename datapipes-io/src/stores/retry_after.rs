//! The pause that an HTTP service asks for.

use std::time::{Duration, SystemTime};

use reqwest::header::{HeaderMap, RETRY_AFTER};

/// Maximum pause that is accepted from a service.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns the pause that a service asks for: seconds or a date. Any other value is ignored.
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let pause = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().map_or(LONGEST_PAUSE, Duration::from_secs)
    } else {
        httpdate::parse_http_date(text)
            .ok()?
            .duration_since(now)
            .unwrap_or(Duration::ZERO)
    };
    Some(pause.min(LONGEST_PAUSE))
}
