//! `tracing` events of a child, on their way to the parent's log.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::task::AtomicWaker;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::protocol::LogLine;
use crate::sync::lock;

/// Greatest number of waiting lines; later ones are left out, and counted.
const WAITING: usize = 1000;
/// Greatest length of a line, in bytes.
const LONGEST: usize = 8 << 10;

/// Lines that wait to be sent.
#[derive(Default)]
pub(super) struct Lines {
    lines: Mutex<(VecDeque<LogLine>, usize)>,
    pub waker: AtomicWaker,
}

impl Lines {
    /// Collects this process's `tracing` events, up to a level.
    pub(super) fn collect(level: u8) -> Arc<Lines> {
        let lines = Arc::new(Lines::default());
        // If a library set a subscriber before, that one stays.
        let _ = tracing::subscriber::set_global_default(Forward {
            lines: lines.clone(),
            level,
        });
        lines
    }

    pub(super) fn next(&self) -> Option<LogLine> {
        let mut lines = self.lock();
        if lines.0.is_empty() && lines.1 > 0 {
            let text = format!("{} lines were left out", std::mem::take(&mut lines.1));
            return Some(LogLine {
                level: 2,
                target: "datapipes".to_owned(),
                text,
            });
        }
        lines.0.pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, (VecDeque<LogLine>, usize)> {
        lock(&self.lines)
    }
}

/// Returns a level as a number, from 1 (error) to 5 (trace).
pub(crate) fn number(level: Level) -> u8 {
    match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        _ => 5,
    }
}

/// Makes a line of each event; spans are ignored.
pub(super) struct Forward {
    pub lines: Arc<Lines>,
    pub level: u8,
}

impl Subscriber for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && number(*metadata.level()) <= self.level
    }
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        let metadata = event.metadata();
        let log = LogLine {
            level: number(*metadata.level()),
            target: metadata.target().to_owned(),
            text: line.0,
        };
        let mut lines = self.lines.lock();
        if lines.0.len() < WAITING {
            lines.0.push_back(log);
        } else {
            lines.1 += 1;
        }
        drop(lines);
        self.lines.waker.wake();
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The message, followed by the fields as `name=value`.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        cut(&mut text, LONGEST.saturating_sub(self.0.len()));
        if field.name() == "message" {
            let rest = std::mem::replace(&mut self.0, text);
            if !rest.is_empty() {
                self.0 += " ";
                self.0 += &rest;
            }
        } else {
            let space = if self.0.is_empty() { "" } else { " " };
            let _ = write!(self.0, "{space}{}={text}", field.name());
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// Cuts a text to a number of bytes, or to fewer where a character would be cut.
pub(super) fn cut(text: &mut String, most: usize) {
    let mut ends = (0..=most.min(text.len())).rev();
    let end = ends.find(|&end| text.is_char_boundary(end));
    text.truncate(end.unwrap_or(0));
}

/// Writes a log line of a child to this process's log.
pub(super) fn tell(node: &str, child: usize, log: &LogLine) {
    let LogLine {
        level,
        target,
        text,
    } = log;
    crate::error::quietly(|| match level {
        1 => tracing::error!(target: "datapipes::child", node, child, from = target, "{text}"),
        2 => tracing::warn!(target: "datapipes::child", node, child, from = target, "{text}"),
        3 => tracing::info!(target: "datapipes::child", node, child, from = target, "{text}"),
        4 => tracing::debug!(target: "datapipes::child", node, child, from = target, "{text}"),
        _ => tracing::trace!(target: "datapipes::child", node, child, from = target, "{text}"),
    });
}

/// Forwards a line that a child printed: to the log if there is one, otherwise to standard error.
pub(super) fn tell_printed(node: &str, child: usize, line: &str) {
    if tracing::dispatcher::get_default(|log| !log.is::<tracing::subscriber::NoSubscriber>()) {
        tell(
            node,
            child,
            &LogLine {
                level: 3,
                target: "output".to_owned(),
                text: line.to_owned(),
            },
        );
    } else {
        crate::error::print_line(format_args!("[{node}/{child}] {line}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_become_lines() {
        let lines = Arc::new(Lines::default());
        tracing::subscriber::with_default(
            Forward {
                lines: lines.clone(),
                level: 3,
            },
            || {
                tracing::info!(answer = 42, name = "x", "hello {}", 1);
                tracing::debug!("too quiet");
                tracing::error!("b");
            },
        );
        let first = lines.next().unwrap();
        assert_eq!(
            (first.level, first.text.as_str()),
            (3, "hello 1 answer=42 name=x")
        );
        assert_eq!(lines.next().unwrap().level, 1);
        assert_eq!(lines.next(), None);
    }

    #[test]
    fn too_many_lines_are_counted() {
        let lines = Arc::new(Lines::default());
        tracing::subscriber::with_default(
            Forward {
                lines: lines.clone(),
                level: 5,
            },
            || {
                (0..WAITING + 3).for_each(|n| tracing::trace!(n));
            },
        );
        let last = std::iter::from_fn(|| lines.next()).last().unwrap();
        assert_eq!(last.text, "3 lines were left out");
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        let lines = Arc::new(Lines::default());
        tracing::subscriber::with_default(
            Forward {
                lines: lines.clone(),
                level: 5,
            },
            || {
                tracing::info!("{}", "é".repeat(LONGEST));
            },
        );
        assert!(lines.next().unwrap().text.len() <= LONGEST);
    }
}
