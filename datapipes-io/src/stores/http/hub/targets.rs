//! Signed URLs that redirects led to, to be used again while they are valid.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use datapipes::lock;
use reqwest::Url;

use crate::stores::http::address::same_origin;

/// Maximum number of URLs that are kept.
const MOST: usize = 1024;

/// Maximum time for which a URL is used.
const LONGEST: Duration = Duration::from_secs(300);

/// Targets of redirects by the URLs that led to them, with the time until which they are used.
#[derive(Default)]
pub struct Targets(Mutex<HashMap<Url, (Url, Instant)>>);

impl Targets {
    pub fn get(&self, resolve: &Url) -> Option<Url> {
        let known = lock(&self.0);
        let (target, until) = known.get(resolve)?;
        (Instant::now() < *until).then(|| target.clone())
    }

    pub fn forget(&self, resolve: &Url) {
        lock(&self.0).remove(resolve);
    }

    /// Keeps the target, if it is of another host and says how long it is valid.
    pub fn keep(&self, resolve: Url, target: Url) {
        let Some(valid) = valid_for(&target, SystemTime::now()) else {
            return;
        };
        if same_origin(&resolve, &target) {
            return;
        }
        let (mut known, now) = (lock(&self.0), Instant::now());
        if known.len() >= MOST {
            known.retain(|_, (_, until)| now < *until);
        }
        if known.len() < MOST {
            known.insert(resolve, (target, now + LONGEST.min(valid / 2)));
        }
    }
}

/// Returns the time for which a URL that was just signed is valid: `Expires`, a time, or
/// `X-Amz-Expires`, seconds.
fn valid_for(url: &Url, now: SystemTime) -> Option<Duration> {
    let seconds = |name: &str| {
        let mut pairs = url.query_pairs();
        let (_, value) = pairs.find(|(known, _)| known == name)?;
        value.parse().ok().map(Duration::from_secs)
    };
    let until = || seconds("Expires")?.checked_sub(now.duration_since(UNIX_EPOCH).ok()?);
    seconds("X-Amz-Expires").or_else(until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_used_again_while_it_is_surely_valid() {
        let now = UNIX_EPOCH + Duration::from_secs(1000);
        let valid = |query: &str| {
            let url = format!("https://cdn.example/a?{query}").parse().unwrap();
            valid_for(&url, now).map(|time| time.as_secs())
        };
        assert_eq!(valid("Policy=x&Expires=1600&Signature=y"), Some(600));
        assert_eq!(
            valid("X-Amz-Date=20260101T000000Z&X-Amz-Expires=3600"),
            Some(3600)
        );
        for none in ["Expires=999", "Expires=soon", "Signature=x", ""] {
            assert_eq!(valid(none), None, "{none}");
        }
        let targets = Targets::default();
        let url = |text: &str| Url::parse(text).unwrap();
        let (resolve, target) = (
            url("https://hub.example/a"),
            url("https://cdn.example/a?X-Amz-Expires=60"),
        );
        targets.keep(
            resolve.clone(),
            url("https://hub.example/b?X-Amz-Expires=60"),
        );
        targets.keep(resolve.clone(), url("https://cdn.example/b"));
        assert_eq!(targets.get(&resolve), None);
        targets.keep(resolve.clone(), target.clone());
        assert_eq!(targets.get(&resolve), Some(target.clone()));
        targets.forget(&resolve);
        assert_eq!(targets.get(&resolve), None);
        for n in 0..2 * MOST {
            targets.keep(url(&format!("https://hub.example/{n}")), target.clone());
        }
        assert_eq!(lock(&targets.0).len(), MOST);
    }
}
