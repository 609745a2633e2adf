//! The error type: node, item and cause.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::Origin;

/// The result of any operation that can fail on an item.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Makes an `Ok` of this library's [`Result`], for closures with `?` in them whose error type is
/// not known otherwise.
///
/// In such a closure `?` takes this library's errors and those of [`std::io`]; any other goes
/// through [`Error::user`]. If errors of several types meet, use [`BoxError`] instead, which takes
/// them all and loses nothing: an error of this library comes out as it was.
///
/// Use the full name, and do not import this crate by `*`: the name would hide the `Ok` of the
/// prelude.
///
/// ```
/// use datapipes::Graph;
/// let graph = Graph::range(0..3).try_map(|n| {
///     let text = std::str::from_utf8(b"7").map_err(datapipes::Error::user)?;
///     datapipes::Ok(n + text.len() as u64)
/// });
/// assert_eq!(graph.collect().unwrap(), [1, 2, 3]);
///
/// let graph = Graph::from_vec(vec!["7"]).try_map(|text| {
///     let number: u64 = text.parse()?;
///     let utf8 = std::str::from_utf8(text.as_bytes())?;
///     Ok::<_, datapipes::BoxError>(number + utf8.len() as u64)
/// });
/// assert_eq!(graph.collect().unwrap(), [8]);
/// ```
///
/// # Errors
/// None.
#[expect(non_snake_case, reason = "it stands where `Ok` would")]
pub fn Ok<T>(value: T) -> Result<T> {
    Result::Ok(value)
}

/// An error of any type, boxed.
///
/// A plain `Box<dyn Error>` is not enough where a closure runs on other threads: it is not `Send`.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// An error about one item or about the graph: the node, the item and the cause.
///
/// `Display` prints one line, `node: item: what: cause: deeper cause`, with control characters
/// escaped, so that a hostile file name cannot forge log lines. The causes are also reachable
/// through [`source`](std::error::Error::source). `{:?}` prints the same line, `{:#?}` the fields.
///
/// [`DataLoader::replay`](crate::DataLoader::replay), given the item and the number of the epoch,
/// runs the item through the graph once more and shows the output of each node.
///
/// The executor fills in the node. The item's [`Origin`] is filled in by the steps that take a
/// closure, such as [`try_map`](crate::Graph::try_map). A pipe or a source of your own adds it with
/// [`of`](Error::of) or [`Context::fail`](crate::Context::fail).
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    node: Option<Arc<str>>,
    item: Option<Origin>,
    message: String,
    source: Option<BoxError>,
    transient: bool,
    fatal: bool,
    echo: bool,
    counted_once: bool,
    retry_after: Option<Duration>,
}

words! {
    /// The kind of an [`Error`], by which a caller can decide what to do.
    #[non_exhaustive]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum ErrorKind {
        /// Something was not there: a file that vanished, a missing key.
        NotFound = "not found",
        /// Permission was refused.
        Denied = "permission denied",
        /// The operating system or the network failed in another way.
        Io = "I/O error",
        /// A service does not answer now, or not in time: it is overloaded, unreachable, or too slow.
        Unavailable = "unavailable",
        /// The data changed while it was read, or since it was listed.
        Changed = "changed",
        /// A service's answer violates its protocol: another range than was asked for, a wrong length.
        Protocol = "against the protocol",
        /// The data ends before it should.
        Truncated = "truncated",
        /// The data violates its format.
        Corrupt = "corrupt",
        /// The data is legal, but this library does not read it.
        Unsupported = "unsupported",
        /// A limit was reached: expansion, pixels, buffered items, skipped errors.
        Limit = "limit reached",
        /// Items that must fit together do not: different shapes, dtypes, lengths or keys.
        Shape = "shape mismatch",
        /// A user's own function returned an error.
        User = "error",
        /// A user's own function, or a pipe, panicked.
        Panic = "panicked",
        /// The graph or its settings are wrong; see [`BuildError`](crate::BuildError).
        Config = "wrong configuration",
        /// The process that worked on the item failed twice, the second time with this item alone. It
        /// was ended by a signal, ended itself, ran out of memory, sent an unreadable message, or did
        /// not answer in time.
        Crashed = "crashed",
        /// The processes of a part of the graph cannot be started, or end again and again; or threads
        /// cannot be started.
        Worker = "no child process",
    }
}

/// All kinds, by the number that stands for them between processes.
const KINDS: [ErrorKind; 16] = [
    ErrorKind::NotFound,
    ErrorKind::Denied,
    ErrorKind::Io,
    ErrorKind::Unavailable,
    ErrorKind::Changed,
    ErrorKind::Protocol,
    ErrorKind::Truncated,
    ErrorKind::Corrupt,
    ErrorKind::Unsupported,
    ErrorKind::Limit,
    ErrorKind::Shape,
    ErrorKind::User,
    ErrorKind::Panic,
    ErrorKind::Config,
    ErrorKind::Crashed,
    ErrorKind::Worker,
];

impl ErrorKind {
    /// Returns the kind that is displayed by a text.
    #[cfg(feature = "serde")]
    pub(crate) fn of_text(text: &str) -> Option<Self> {
        KINDS.into_iter().find(|kind| kind.to_string() == text)
    }

    /// Returns true if an error of this kind is about one item, so that a policy may skip it.
    ///
    /// Panics, configuration errors and the loss of all workers are not: after them nothing is
    /// known about the items that follow.
    pub fn is_about_an_item(self) -> bool {
        !matches!(
            self,
            ErrorKind::Panic | ErrorKind::Config | ErrorKind::Worker
        )
    }

    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        KINDS.get(usize::from(number)).copied()
    }
}

impl Error {
    /// Makes an error of a kind, with the facts in words (lower case, no full stop).
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner {
            kind,
            node: None,
            item: None,
            message: message.into(),
            source: None,
            transient: false,
            fatal: false,
            echo: false,
            counted_once: false,
            retry_after: None,
        }))
    }

    /// Wraps an error of a user's own type, as [`ErrorKind::User`].
    ///
    /// An [`Error`] that was boxed on its way comes out as it was.
    pub fn user(error: impl Into<BoxError>) -> Self {
        match error.into().downcast::<Error>() {
            Result::Ok(own) => *own,
            Err(other) => {
                let mut error = Error::new(ErrorKind::User, String::new());
                error.0.source = Some(other);
                error
            }
        }
    }

    /// Wraps an error of the operating system, sorted by its kind.
    pub fn io(error: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        if error.get_ref().is_some_and(|inner| inner.is::<Error>()) {
            return Error::user(error.into_inner().expect("checked in the line above"));
        }
        let kind = match error.kind() {
            Io::NotFound => ErrorKind::NotFound,
            Io::PermissionDenied => ErrorKind::Denied,
            Io::UnexpectedEof => ErrorKind::Truncated,
            Io::InvalidData => ErrorKind::Corrupt,
            Io::FileTooLarge => ErrorKind::Limit,
            Io::Unsupported => ErrorKind::Unsupported,
            _ => ErrorKind::Io,
        };
        Error::new(kind, String::new()).with_source(error)
    }

    /// Makes an error from the payload of a panic.
    pub fn panic(payload: Box<dyn std::any::Any + Send>) -> Self {
        let message = match (
            payload.downcast_ref::<&str>(),
            payload.downcast_ref::<String>(),
        ) {
            (Some(text), _) => (*text).to_owned(),
            (_, Some(text)) => text.clone(),
            _ => "with a value that is not text".to_owned(),
        };
        // A payload may panic again when dropped; it must not take the executor with it.
        if let Err(second) =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(payload)))
        {
            std::mem::forget(second);
        }
        Error::new(ErrorKind::Panic, message)
    }

    setters! {
        /// Adds the cause.
        #[must_use]
        with_source(source: impl Into<BoxError>) => 0.source = Some(source.into());

        /// Marks the error as transient: the same attempt may succeed later, as with an overloaded
        /// service or a connection that was cut. An unmarked error is final.
        #[must_use]
        transient() => 0.transient = true;

        /// Marks the error as fatal: after it nothing is known about the items that would follow, as where
        /// a listing breaks off. No [policy](crate::OnError) skips it. A source of your own marks each error
        /// after which it cannot go on.
        #[must_use]
        fatal() => 0.fatal = true;

        /// Marks the error as an echo: a copy of an error that another output of the node gives. A
        /// [policy](crate::OnError) that skips leaves it out and does not count it, however many there are.
        #[must_use]
        echo() => 0.echo = true;

        /// Marks the error as one of several copies of one failure, which outputs of a node give: of the
        /// errors of one node and item that have this mark, a [policy](crate::OnError) that skips counts the
        /// first that reaches the consumer. Without node and item, each counts. An [echo](Error::echo) never does.
        #[must_use]
        counted_once() => 0.counted_once = true;
    }

    /// Marks the error as [transient](Error::transient), and records how long the service asked to
    /// be left alone.
    #[must_use]
    pub fn with_retry_after(mut self, pause: Duration) -> Self {
        self.0.retry_after = Some(pause);
        self.transient()
    }

    /// Returns true if the same attempt may succeed later, as far as the reporter of the error can
    /// tell.
    pub fn is_transient(&self) -> bool {
        self.0.transient
    }

    /// Returns true if the error is about one item, so that a policy may skip it: it is not
    /// [fatal](Error::fatal), and its kind is [about an item](ErrorKind::is_about_an_item).
    pub fn is_about_an_item(&self) -> bool {
        !self.0.fatal && self.kind().is_about_an_item()
    }

    /// Returns true if the error is an [echo](Error::echo).
    pub fn is_echo(&self) -> bool {
        self.0.echo
    }

    /// Returns true if the error is one of several that are [counted once](Error::counted_once).
    pub fn is_counted_once(&self) -> bool {
        self.0.counted_once
    }

    /// Returns how long the service asked to be left alone, if it did.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Prefixes the message with `{context}: `: which object of which store.
    #[must_use]
    pub fn within(mut self, context: impl fmt::Display) -> Self {
        let said = std::mem::take(&mut self.0.message);
        let colon = if said.is_empty() { "" } else { ": " };
        self.0.message = format!("{context}{colon}{said}");
        self
    }

    /// Sets the node in which the error happened, unless that is known already.
    #[must_use]
    pub fn at(mut self, node: &Arc<str>) -> Self {
        self.name(node);
        self
    }

    pub(crate) fn name(&mut self, node: &Arc<str>) {
        self.0.node.get_or_insert_with(|| node.clone());
    }

    /// Sets the item of the error, unless that is known already.
    #[must_use]
    pub fn of(mut self, item: &Origin) -> Self {
        self.0.item.get_or_insert_with(|| item.with_names_made());
        self
    }

    /// Returns the kind, by which a caller decides.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the name of the node in which the error happened, once the error has left that node.
    pub fn node(&self) -> Option<&str> {
        self.0.node.as_deref()
    }

    /// Returns the item of the error: its coordinates, and its name if it has one.
    /// [`DataLoader::replay`](crate::DataLoader::replay) shows what each node made of it.
    pub fn item(&self) -> Option<&Origin> {
        self.0.item.as_ref()
    }
}

/// Writes one constructor for each kind whose cause is told in words.
macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident = $kind:ident;)*) => {
        /// Constructors of errors of one kind, with the facts in words (lower case, no full stop).
        impl Error {
            $(
                $(#[$doc])*
                pub fn $name(message: impl Into<String>) -> Self {
                    Error::new(ErrorKind::$kind, message)
                }
            )*
        }
    };
}

constructors! {
    /// Makes an error of [`ErrorKind::NotFound`]: something was not there.
    not_found = NotFound;
    /// Makes an error of [`ErrorKind::Denied`]: permission was refused.
    denied = Denied;
    /// Makes an error of [`ErrorKind::Unavailable`]: a service does not answer now, or not in time.
    unavailable = Unavailable;
    /// Makes an error of [`ErrorKind::Changed`]: the data changed while it was read, or since it was
    /// listed.
    changed = Changed;
    /// Makes an error of [`ErrorKind::Protocol`]: a service's answer violates its protocol.
    protocol = Protocol;
    /// Makes an error of [`ErrorKind::Truncated`]: the data ends before it should.
    truncated = Truncated;
    /// Makes an error of [`ErrorKind::Corrupt`]: the data violates its format.
    corrupt = Corrupt;
    /// Makes an error of [`ErrorKind::Unsupported`]: the data is legal, but is not read here.
    unsupported = Unsupported;
    /// Makes an error of [`ErrorKind::Limit`]: a limit was reached.
    limit = Limit;
    /// Makes an error of [`ErrorKind::Shape`]: items that must fit together do not.
    shape = Shape;
    /// Makes an error of [`ErrorKind::Config`]: the graph or its settings are wrong.
    config = Config;
}

impl Error {
    /// Makes another error that says the same, for failures that concern several items: kind, node,
    /// item, message and marks are equal, and the text of the causes is its cause.
    ///
    /// ```
    /// use datapipes::Error;
    ///
    /// let error = Error::unavailable("shard 3").with_source("connection reset").transient();
    /// let copy = error.copied();
    /// assert_eq!(copy.to_string(), error.to_string());
    /// assert!(copy.is_transient());
    /// ```
    #[must_use]
    pub fn copied(&self) -> Error {
        let Inner {
            kind,
            node,
            item,
            message,
            source: _,
            transient,
            fatal,
            echo,
            counted_once,
            retry_after,
        } = &*self.0;
        let causes = self.causes();
        Error(Box::new(Inner {
            kind: *kind,
            node: node.clone(),
            item: item.clone(),
            message: message.clone(),
            source: (!causes.is_empty()).then(|| causes.join(": ").into()),
            transient: *transient,
            fatal: *fatal,
            echo: *echo,
            counted_once: *counted_once,
            retry_after: *retry_after,
        }))
    }

    /// Returns what went wrong and why, in one line: the displayed text without the node and the
    /// item.
    pub fn cause(&self) -> String {
        let (kind, said) = (self.kind(), self.said());
        match kind {
            ErrorKind::User if self.0.source.is_some() => said,
            _ if said.is_empty() => kind.to_string(),
            _ => format!("{kind}: {said}"),
        }
    }

    /// Returns the [cause](Error::cause) without the kind.
    pub(crate) fn said(&self) -> String {
        let message = Some(self.0.message.clone()).filter(|message| !message.is_empty());
        let parts: Vec<String> = message.into_iter().chain(self.causes()).collect();
        escape(&parts.join(": ")).into_owned()
    }

    /// Returns the messages of the causes, the nearest first.
    pub(crate) fn causes(&self) -> Vec<String> {
        let mut causes = Vec::new();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            causes.push(error.to_string());
            // An `Error` prints its own causes.
            cause = if error.is::<Error>() {
                None
            } else {
                error.source()
            };
        }
        causes
    }

    /// Returns the message, without kind and causes.
    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(node) = self.node() {
            write!(f, "{}: ", escape(node))?;
        }
        if let Some(item) = self.item() {
            write!(f, "{}: ", escape(&item.to_string()))?;
        }
        f.write_str(&self.cause())
    }
}

/// Prints a line to standard error. A failure to write is ignored, where `eprintln!` would panic.
pub(crate) fn print_line(line: impl fmt::Display) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Writes to the log. A panic of the log is ignored: it is not worth losing an item.
pub(crate) fn quietly(say: impl FnOnce()) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(say));
}

/// Replaces control characters by escapes, so that a name stays on its line.
pub(crate) fn escape(text: &str) -> std::borrow::Cow<'_, str> {
    if text.chars().any(char::is_control) {
        text.chars()
            .flat_map(|c| {
                if c.is_control() {
                    c.escape_default().collect()
                } else {
                    vec![c]
                }
            })
            .collect::<String>()
            .into()
    } else {
        text.into()
    }
}

/// Prints the displayed text, since `main` and `unwrap` print this; the fields by `{:#?}`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("node", &self.0.node)
            .field("item", &self.0.item)
            .field("message", &self.0.message)
            .field("source", &self.0.source)
            .field("transient", &self.0.transient)
            .field("fatal", &self.0.fatal)
            .field("echo", &self.0.echo)
            .field("retry_after", &self.0.retry_after)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|e| &**e as _)
    }
}

conversions! {
    |error: std::io::Error| -> Error { Error::io(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_node_item_and_every_cause_on_one_line() {
        let cause = std::io::Error::other("disk\non fire");
        let item = Origin::root(0, 17).named("a\tb.tar");
        let error = Error::corrupt("bad header")
            .with_source(cause)
            .at(&"untar".into())
            .of(&item);
        assert_eq!(
            error.to_string(),
            "untar: a\\tb.tar: corrupt: bad header: disk\\non fire"
        );
        assert_eq!(error.cause(), "corrupt: bad header: disk\\non fire");
    }

    #[test]
    fn what_main_prints_is_for_people() {
        let error = Error::corrupt("bad header").at(&"untar".into());
        assert_eq!(format!("{error:?}"), "untar: corrupt: bad header");
        assert!(format!("{error:#?}").contains("kind: Corrupt"));
    }

    #[test]
    fn a_users_error_is_shown_as_it_is() {
        assert_eq!(Error::user("no such label").to_string(), "no such label");
        let own = Error::user(Error::limit("too many"));
        assert_eq!(own.kind(), ErrorKind::Limit);
    }

    #[test]
    fn every_kind_has_a_number() {
        for (number, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(
                (
                    usize::from(kind.number()),
                    ErrorKind::from_number(number as u8)
                ),
                (number, Some(kind))
            );
        }
        assert_eq!(ErrorKind::Worker.number() as usize + 1, KINDS.len());
    }

    #[test]
    fn the_innermost_node_and_item_win() {
        let error = Error::new(ErrorKind::Io, "x")
            .at(&"inner".into())
            .at(&"outer".into());
        assert_eq!(error.node(), Some("inner"));
    }

    #[test]
    fn a_panic_payload_that_panics_when_dropped_is_contained() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                if !std::thread::panicking() {
                    std::panic::resume_unwind(Box::new("again"));
                }
            }
        }
        assert_eq!(Error::panic(Box::new(Bomb)).kind(), ErrorKind::Panic);
    }
}
