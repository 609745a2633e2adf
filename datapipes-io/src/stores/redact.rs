//! URLs without the parts that must not be shown.

/// Returns a URL without user, password, query and fragment, for messages. The part before the `@`
/// of an `abfss://` URL is the container, not a user, and stays.
///
/// In doubtful cases the function removes too much: if a password holds an unencoded `/` or `?`,
/// more than necessary is left out.
///
/// ```
/// use datapipes_io::stores::redacted;
/// assert_eq!(redacted("https://me:secret@host:8080/a/b?sig=secret"), "https://host:8080/a/b");
/// ```
pub fn redacted(url: &str) -> String {
    let shown = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = shown.split_once("://") else {
        return shown.to_owned();
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let rest = match authority.rsplit_once('@') {
        Some((user, host)) if matches!(scheme, "abfs" | "abfss") => {
            let container = user.split(':').next().unwrap_or_default();
            format!("{container}@{host}{path}")
        }
        Some((_, host)) => format!("{host}{path}"),
        None if is_host(authority) => rest.to_owned(),
        // The rest may be the beginning of a password.
        None => match rest.rsplit_once('@') {
            Some((_, rest)) => rest.to_owned(),
            None => "…".to_owned(),
        },
    };
    format!("{scheme}://{rest}")
}

/// Returns true if a `:` in the text is followed by a port or belongs to an IPv6 address.
fn is_host(authority: &str) -> bool {
    authority.starts_with('[')
        || authority
            .split_once(':')
            .is_none_or(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_73_nothing_secret_is_left_of_a_url() {
        for (url, shown) in [
            ("s3://bucket/a@b/c", "s3://bucket/a@b/c"),
            ("s3://KEY:SECRET@bucket/a", "s3://bucket/a"),
            ("s3://KEY:SEC/RET@bucket/a", "s3://bucket/a"),
            ("s3://KEY:SEC?RET@bucket/a", "s3://…"),
            ("s3://SECRET@bucket", "s3://bucket"),
            ("http://[::1]:80/x?sig=SECRET#SECRET", "http://[::1]:80/x"),
            (
                "abfss://box@account.dfs.core.windows.net/a?sig=SECRET",
                "abfss://box@account.dfs.core.windows.net/a",
            ),
            ("abfss://box:SECRET@account/a", "abfss://box@account/a"),
            (
                "cassandra://me:SECRET@host:9042,other:9042/space",
                "cassandra://host:9042,other:9042/space",
            ),
            ("not a url?SECRET", "not a url"),
        ] {
            assert_eq!(redacted(url), shown);
        }
    }
}
