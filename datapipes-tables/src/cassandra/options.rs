//! Options of a connection to a cluster: from its URL, or set by methods.

use std::path::PathBuf;
use std::time::Duration;

use datapipes::{Error, Result, opaque_debug};
use percent_encoding::percent_decode_str;

use super::Cassandra;
use crate::{Schema, is_name};

/// Number of replicas that must answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Consistency {
    /// One replica.
    One,
    /// One replica of the local data center.
    LocalOne,
    /// More than half of the replicas.
    Quorum,
    /// More than half of the replicas of the local data center.
    LocalQuorum,
    /// All replicas.
    All,
}

/// Compression of requests and answers in transit. Pictures are compressed already; masks and
/// tensors may become smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Compression {
    /// LZ4: fast.
    Lz4,
    /// Snappy.
    Snappy,
}

/// Placement of the copies of a new keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Replication {
    /// A number of copies, on any nodes.
    Copies(u32),
    /// A number of copies in each data center, by name.
    ByDatacenter(Vec<(String, u32)>),
}

/// Options of a connection to a cluster; see [`Cassandra::connect`] for the URL.
///
/// `Debug` shows neither user nor password.
///
/// # Examples
/// ```no_run
/// use datapipes_tables::cassandra::CassandraOptions;
///
/// # async fn example() -> datapipes::Result<()> {
/// let table = CassandraOptions::from_url("cassandra://node1,node2/images.train?tls=true")?
///     .credentials("reader", std::env::var("CASSANDRA_PASSWORD").unwrap_or_default())
///     .connections(16)
///     .connect()
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct CassandraOptions {
    pub(super) nodes: Vec<String>,
    pub(super) keyspace: String,
    pub(super) table: String,
    pub(super) url: String,
    pub(super) credentials: Option<(String, String)>,
    pub(super) tls: bool,
    pub(super) ca: Option<PathBuf>,
    pub(super) datacenter: Option<String>,
    pub(super) connections: usize,
    pub(super) requests: usize,
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) consistency: Consistency,
    pub(super) write_consistency: Consistency,
    pub(super) compression: Option<Compression>,
    pub(super) speculate: Option<Duration>,
    pub(super) page: usize,
}

/// Maximum number of requests in flight on one connection. The driver closes a connection if more
/// than 1024 answers that nobody waits for any more (an epoch was dropped) are missing for a
/// second; with at most 1024 requests that cannot happen.
const REQUESTS_A_CONNECTION: usize = 1024;

impl CassandraOptions {
    /// Parses a URL; see [`Cassandra::connect`].
    ///
    /// # Errors
    /// `Config` for any other URL, or an unknown option. The message contains no user and no
    /// password.
    pub fn from_url(url: &str) -> Result<Self> {
        let wrong = |what: &str| Error::config(format!("a cassandra:// URL: {what}"));
        let rest = url
            .strip_prefix("cassandra://")
            .ok_or_else(|| wrong("does not begin so"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest
            .split_once('/')
            .ok_or_else(|| wrong("has no /keyspace.table"))?;
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        let decode = |text: &str| {
            let decoded = percent_decode_str(text).decode_utf8();
            decoded
                .map(|text| text.into_owned())
                .map_err(|_| wrong("user and password must be UTF-8"))
        };
        let credentials = match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
            Some((user, password)) => Some((decode(user)?, decode(password)?)),
            None => None,
        };
        let nodes = nodes(hosts).ok_or_else(|| wrong("host1,host2:port expected"))?;
        let (keyspace, table) = path
            .split_once('.')
            .ok_or_else(|| wrong("keyspace.table expected"))?;
        if !is_name(keyspace) || !is_name(table) {
            return Err(wrong(
                "the names of keyspace and table are a letter, then letters, digits and _",
            ));
        }
        let mut options = CassandraOptions {
            url: format!("cassandra://{hosts}/{keyspace}.{table}"),
            nodes,
            keyspace: keyspace.to_owned(),
            table: table.to_owned(),
            credentials,
            tls: false,
            ca: None,
            datacenter: None,
            connections: 8,
            requests: 1024,
            timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            consistency: Consistency::LocalOne,
            write_consistency: Consistency::LocalQuorum,
            compression: None,
            speculate: None,
            page: 5000,
        };
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            options = options.told(&name, &value)?;
        }
        Ok(options)
    }

    /// Sets an option by its name and value in the URL.
    fn told(mut self, name: &str, value: &str) -> Result<Self> {
        let url = self.url.clone();
        // The message contains no value, which may be a misplaced password.
        let wrong = |expected: &str| {
            let message = format!("{url}: option {name}: {expected} expected");
            Error::config(message)
        };
        let number = || {
            value
                .parse::<usize>()
                .ok()
                .filter(|n| *n > 0)
                .ok_or_else(|| wrong("a number above 0"))
        };
        let seconds = || {
            let seconds = value
                .parse()
                .ok()
                .and_then(|s| Duration::try_from_secs_f64(s).ok());
            seconds
                .filter(|time| !time.is_zero())
                .ok_or_else(|| wrong("seconds"))
        };
        let consistency = || {
            Ok(match value {
                "one" => Consistency::One,
                "local_one" => Consistency::LocalOne,
                "quorum" => Consistency::Quorum,
                "local_quorum" => Consistency::LocalQuorum,
                "all" => Consistency::All,
                _ => return Err(wrong("one, local_one, quorum, local_quorum or all")),
            })
        };
        match name {
            "tls" => {
                self.tls = match value {
                    "true" => true,
                    "false" => false,
                    _ => return Err(wrong("true or false")),
                }
            }
            "ca" => (self.ca, self.tls) = (Some(value.into()), true),
            "dc" => self.datacenter = Some(value.to_owned()),
            "connections" => self.connections = number()?,
            "requests" => self.requests = number()?,
            "timeout" => self.timeout = seconds()?,
            "connect_timeout" => self.connect_timeout = seconds()?,
            "consistency" => self.consistency = consistency()?,
            "write_consistency" => self.write_consistency = consistency()?,
            "compression" => {
                self.compression = match value {
                    "lz4" => Some(Compression::Lz4),
                    "snappy" => Some(Compression::Snappy),
                    _ => return Err(wrong("lz4 or snappy")),
                }
            }
            "speculate" => self.speculate = Some(seconds()?),
            "page" => self.page = number()?,
            _ => {
                let message = format!("{url}: there is no option {name}");
                return Err(Error::config(message));
            }
        }
        Ok(self)
    }

    /// Sets user and password, for a cluster that requires them.
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.credentials = Some((user.into(), password.into()));
        self
    }

    /// Uses TLS, with the certificate authorities of this PEM file, or those of the system. The
    /// certificate of a node must contain the IP address at which it is reached.
    pub fn tls(mut self, authorities: Option<PathBuf>) -> Self {
        self.tls = true;
        self.ca = authorities;
        self
    }

    /// Sets the local data center; by default any. Other data centers are asked if the local one
    /// does not answer.
    pub fn datacenter(mut self, name: impl Into<String>) -> Self {
        self.datacenter = Some(name.into());
        self
    }

    /// Sets the number of connections to each node. Defaults to 8.
    ///
    /// # Panics
    /// Panics at 0.
    pub fn connections(self, connections: usize) -> Self {
        assert!(connections > 0, "at least one connection");
        CassandraOptions {
            connections,
            ..self
        }
    }

    /// Sets the maximum number of requests in flight, over all connections; others wait. Defaults
    /// to 1024, and is never more than 1024 for each connection.
    ///
    /// # Panics
    /// Panics at 0.
    pub fn requests(self, requests: usize) -> Self {
        assert!(requests > 0, "at least one request");
        CassandraOptions { requests, ..self }
    }

    pub(super) fn concurrency(&self) -> usize {
        self.requests
            .min(self.connections.saturating_mul(REQUESTS_A_CONNECTION))
    }

    datapipes::setters! {
        /// Sets the maximum time of a request, including all its attempts on other nodes. Defaults to
        /// 10 s.
        timeout(timeout: Duration) => timeout = timeout;

        /// Sets the maximum time to make a connection. Defaults to 5 s. Connecting to a cluster fails
        /// after this time and one [`timeout`](CassandraOptions::timeout).
        connect_timeout(timeout: Duration) => connect_timeout = timeout;

        /// Sets the number of replicas for which a read waits. Defaults to
        /// [`LocalOne`](Consistency::LocalOne), since a data set does not change once it is written.
        consistency(consistency: Consistency) => consistency = consistency;

        /// Sets the number of replicas for which a write waits. Defaults to
        /// [`LocalQuorum`](Consistency::LocalQuorum).
        write_consistency(consistency: Consistency) => write_consistency = consistency;

        /// Compresses requests and answers. Defaults to no compression.
        compression(compression: Compression) => compression = Some(compression);

        /// Asks another node too if the first has not answered after this time, up to two. Off by
        /// default.
        speculate(after: Duration) => speculate = Some(after);
    }

    /// Sets the number of rows in a page of metadata. Defaults to 5000.
    ///
    /// # Panics
    /// Panics at 0.
    pub fn page(self, rows: usize) -> Self {
        assert!(rows > 0, "at least one row");
        CassandraOptions { page: rows, ..self }
    }

    /// Connects, as [`Cassandra::connect`] does.
    ///
    /// # Errors
    /// The errors of [`Cassandra::connect`].
    pub async fn connect(self) -> Result<Cassandra> {
        Cassandra::open(self, None).await
    }

    /// Creates missing keyspace and tables, and connects, as [`Cassandra::create`] does.
    ///
    /// # Errors
    /// The errors of [`Cassandra::create`].
    pub async fn create(self, schema: &Schema, replication: &Replication) -> Result<Cassandra> {
        Cassandra::open(self, Some((schema, replication))).await
    }
}

/// Parses `host1,host2:port`; each host has its own port or that of the next host with one.
fn nodes(hosts: &str) -> Option<Vec<String>> {
    let mut port = "9042";
    let mut nodes = Vec::new();
    for host in hosts.rsplit(',') {
        // An IPv6 address is in brackets.
        let bare = match host.rsplit_once(':') {
            Some((bare, own)) if !own.ends_with(']') => {
                own.parse::<u16>().ok()?;
                port = own;
                bare
            }
            _ => host,
        };
        if bare.is_empty() || bare.contains(char::is_whitespace) {
            return None;
        }
        nodes.push(format!("{bare}:{port}"));
    }
    nodes.reverse();
    Some(nodes)
}

opaque_debug! { CassandraOptions { url, tls, connections, requests } }

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    fn parsed(url: &str) -> CassandraOptions {
        CassandraOptions::from_url(url).unwrap()
    }

    #[test]
    fn a_url_says_all_of_it() {
        let options = parsed(
            "cassandra://me:p%40ss%3A@a,[::1]:9043/ks.t?tls=true&ca=/etc/ca.pem&dc=near&connections=3&requests=9\
             &timeout=2.5&connect_timeout=1&consistency=quorum&write_consistency=all&compression=lz4&speculate=0.2&page=7",
        );
        assert_eq!(options.nodes, ["a:9043", "[::1]:9043"]);
        assert_eq!(options.credentials, Some(("me".into(), "p@ss:".into())));
        assert_eq!((&*options.keyspace, &*options.table), ("ks", "t"));
        assert_eq!(options.url, "cassandra://a,[::1]:9043/ks.t");
        assert!(options.tls && options.ca == Some("/etc/ca.pem".into()));
        assert_eq!(options.datacenter.as_deref(), Some("near"));
        assert_eq!(
            (options.connections, options.requests, options.page),
            (3, 9, 7)
        );
        assert_eq!(options.timeout, Duration::from_millis(2500));
        assert_eq!(options.connect_timeout, Duration::from_secs(1));
        assert_eq!(options.consistency, Consistency::Quorum);
        assert_eq!(options.write_consistency, Consistency::All);
        assert_eq!(options.compression, Some(Compression::Lz4));
        assert_eq!(options.speculate, Some(Duration::from_millis(200)));
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        let options = parsed("cassandra://a/ks.t");
        assert_eq!(options.nodes, ["a:9042"]);
        assert!(options.credentials.is_none() && !options.tls);
        assert_eq!(
            parsed("cassandra://a:1,b:2,c/ks.t").nodes,
            ["a:1", "b:2", "c:9042"]
        );
    }

    #[test]
    fn requests_stay_below_what_the_driver_forgives() {
        assert_eq!(
            parsed("cassandra://a/k.t?connections=2&requests=10000").concurrency(),
            2048
        );
        assert_eq!(
            parsed("cassandra://a/k.t?connections=2&requests=10").concurrency(),
            10
        );
    }

    #[test]
    fn row_73_a_wrong_url_is_refused_without_its_secrets() {
        for wrong in [
            "http://me:SECRET@a/k.t",
            "cassandra://me:SECRET@a",
            "cassandra://me:SECRET@a/",
            "cassandra://me:SECRET@a/k",
            "cassandra://me:SECRET@a/k.t.x",
            "cassandra://me:SECRET@a/k.t\"; DROP",
            "cassandra://me:SECRET@/k.t",
            "cassandra://me:SECRET@a:x/k.t",
            "cassandra://me:SECRET@a,,b/k.t",
            "cassandra://me:SECRET%ff@a/k.t",
            "cassandra://me:SECRET@a/k.t?password=SECRET",
            "cassandra://me:SECRET@a/k.t?connections=0",
            "cassandra://me:SECRET@a/k.t?timeout=-1",
            "cassandra://me:SECRET@a/k.t?timeout=NaN",
            "cassandra://me:SECRET@a/k.t?tls=SECRET",
            "cassandra://me:SECRET@a/k.t?consistency=any",
        ] {
            let error = CassandraOptions::from_url(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{wrong}");
            assert!(!format!("{error} {error:#?}").contains("SECRET"), "{error}");
        }
        let options = parsed("cassandra://somebody:SECRET@a/k.t");
        let shown = format!("{options:?} {options:#?}");
        assert!(
            !shown.contains("SECRET") && !shown.contains("somebody"),
            "{shown}"
        );
    }
}
