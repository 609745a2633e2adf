//! A progress bar for an epoch.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::task::{self, Poll, ready};
use std::time::{Duration, Instant};

use futures::Stream;
use indicatif::{FormattedDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::latest::Runs;
use super::{Blocking, Epoch, Stats};
use crate::Result;
use crate::run::spawn_thread;

/// Time between two drawings.
const REDRAW: Duration = Duration::from_millis(100);
/// Longest time that the end of a loop waits for the last drawing: a terminal that is stopped takes
/// none.
const DRAW_TIMEOUT: Duration = Duration::from_millis(200);

impl<T: Send + 'static, E> Epoch<T, E> {
    /// Returns the epoch with a progress bar on standard error. The bar has the number of items
    /// (usually batches) taken, the total if it is [known](Epoch::steps_left), the rate, and the
    /// time left. It also has the share of the time in which the loop waited for data, and the
    /// number of skipped items if there are any.
    ///
    /// A resumed epoch begins where it goes on. Nothing is drawn if standard error is no terminal.
    /// A thread draws at most ten times a second, from the first item on; the loop itself adds one
    /// to a number. The last state of the bar remains when the loop ends, also by an error, `break`
    /// or a panic. A loop that prints lines of its own does so by [`WithProgress::suspend`].
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph};
    ///
    /// let loader = DataLoader::builder(Graph::range(0..100).batch(10)).build()?;
    /// let mut items = 0;
    /// for batch in loader.epoch(0).progress() {
    ///     items += batch?.len();
    /// }
    /// assert_eq!(items, 100);
    /// # Ok::<(), datapipes::BoxError>(())
    /// ```
    pub fn progress(self) -> WithProgress<Self> {
        let bar = Bar::new(&self, ProgressDrawTarget::stderr_with_hz(10));
        WithProgress { inner: self, bar }
    }
}

impl<T: Send + 'static, E> Blocking<T, E> {
    /// Returns the iterator with a progress bar; see [`Epoch::progress`].
    pub fn progress(self) -> WithProgress<Self> {
        let bar = Bar::new(&self.0, ProgressDrawTarget::stderr_with_hz(10));
        WithProgress { inner: self, bar }
    }
}

/// An epoch with a progress bar: an iterator or a stream, see [`Epoch::progress`].
#[must_use = "an epoch does nothing until it is read"]
pub struct WithProgress<I> {
    inner: I,
    bar: Bar,
}

impl<I> WithProgress<I> {
    /// Returns the epoch, for its checkpoint or figures.
    pub fn get_ref(&self) -> &I {
        &self.inner
    }

    /// Returns the epoch. Items that are taken from it directly are not counted.
    pub fn get_mut(&mut self) -> &mut I {
        &mut self.inner
    }

    /// Runs a function that prints, while the bar is not on the screen.
    pub fn suspend<R>(&self, print: impl FnOnce() -> R) -> R {
        self.bar.bar.suspend(print)
    }
}

impl<T: Send + 'static, E> Iterator for WithProgress<Blocking<T, E>> {
    type Item = Result<T, E>;

    #[inline]
    fn next(&mut self) -> Option<Result<T, E>> {
        self.bar.begin();
        let next = self.inner.next();
        self.bar.count(next.as_ref());
        next
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

impl<T: Send + 'static, E> Stream for WithProgress<Epoch<T, E>> {
    type Item = Result<T, E>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Option<Result<T, E>>> {
        self.bar.begin();
        let next = ready!(Pin::new(&mut self.inner).poll_next(cx));
        self.bar.count(next.as_ref());
        Poll::Ready(next)
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        Stream::size_hint(&self.inner)
    }
}

/// Iterates as [`Epoch::blocking`] does.
impl<T: Send + 'static, E> IntoIterator for WithProgress<Epoch<T, E>> {
    type Item = Result<T, E>;
    type IntoIter = WithProgress<Blocking<T, E>>;

    fn into_iter(self) -> WithProgress<Blocking<T, E>> {
        WithProgress {
            inner: self.inner.blocking(),
            bar: self.bar,
        }
    }
}

impl<I: fmt::Debug> fmt::Debug for WithProgress<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WithProgress").field(&self.inner).finish()
    }
}

/// The bar, and the thread that draws it.
struct Bar {
    bar: ProgressBar,
    runs: Runs,
    /// Items that the loop took, now and before the stop of a resumed epoch. It alone writes this.
    taken: Arc<AtomicU64>,
    drawing: Drawing,
}

enum Drawing {
    /// Before the first item.
    NotYet,
    /// A thread draws: it ends when the first end is dropped, and the second tells when it has.
    Runs(Sender<()>, Receiver<()>),
    /// Drawing has ended, or never begins.
    Over,
}

impl Bar {
    fn new<T: Send + 'static, E>(epoch: &Epoch<T, E>, target: ProgressDrawTarget) -> Bar {
        // Only an epoch that can have a checkpoint can have been resumed.
        let taken = epoch.checkpoint().map_or(0, |state| state.delivered());
        let len = epoch.steps_left().map(|left| taken + left);
        let template = match len {
            Some(_) => "{prefix} {wide_bar} {pos}/{len} {msg}",
            None => "{prefix} {spinner} {pos} taken, {msg}",
        };
        let style = ProgressStyle::with_template(template)
            .expect("a valid template")
            .progress_chars("━╸ ");
        let drawing = if target.is_hidden() {
            Drawing::Over
        } else {
            Drawing::NotYet
        };
        let bar = ProgressBar::with_draw_target(len, target)
            .with_style(style)
            .with_position(taken)
            .with_prefix(format!("epoch {}", epoch.number()))
            .with_message("begins");
        Bar {
            bar,
            runs: epoch.runs().clone(),
            taken: Arc::new(AtomicU64::new(taken)),
            drawing,
        }
    }

    /// Notes that the loop asks for an item. Starts the thread before the first.
    #[inline]
    fn begin(&mut self) {
        if let Drawing::NotYet = self.drawing {
            self.start();
        }
    }

    #[cold]
    fn start(&mut self) {
        let (bar, runs, taken) = (self.bar.clone(), self.runs.clone(), self.taken.clone());
        let (stop, stopped) = channel();
        let (over, is_over) = channel();
        let thread = spawn_thread("datapipes-progress".to_owned(), move || {
            draw(&bar, &runs, &taken, &stopped);
            drop(runs);
            drop(over);
        });
        // Without a thread there is no bar: an observer stops no epoch.
        self.drawing = match thread {
            Ok(_) => Drawing::Runs(stop, is_over),
            Err(_) => Drawing::Over,
        };
    }

    #[inline]
    fn count<T, E>(&mut self, next: Option<&Result<T, E>>) {
        match next {
            Some(Ok(_)) => self.taken.store(self.taken.load(Relaxed) + 1, Relaxed),
            Some(Err(_)) => {}
            None => self.end(),
        }
    }

    /// Ends the thread with a last drawing.
    fn end(&mut self) {
        if let Drawing::Runs(stop, is_over) = std::mem::replace(&mut self.drawing, Drawing::Over) {
            drop(stop);
            let _ = is_over.recv_timeout(DRAW_TIMEOUT);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.end();
    }
}

/// Draws the bar until the other end of the channel is dropped.
fn draw(bar: &ProgressBar, runs: &Runs, taken: &AtomicU64, stopped: &Receiver<()>) {
    let (begun, first) = (Instant::now(), taken.load(Relaxed));
    // The rate is that of this loop, without what came before the stop of a resumed epoch.
    bar.tick();
    bar.reset_eta();
    loop {
        let ended = stopped.recv_timeout(REDRAW) != Err(RecvTimeoutError::Timeout);
        let position = taken.load(Relaxed);
        bar.set_position(position);
        let stats = Stats::of_all(runs);
        let (waited, skipped) =
            stats.map_or((0.0, 0), |stats| (stats.consumer_waited(), stats.skipped));
        // The bar's own rate is that of the last seconds; the one that remains is of the whole.
        let rate = if ended {
            (position - first) as f64 / begun.elapsed().as_secs_f64().max(1e-9)
        } else {
            bar.per_sec()
        };
        let mut message = format!("{rate:.1}/s, waited {:.0} %", waited * 100.0);
        if skipped > 0 {
            message.push_str(&format!(", {skipped} skipped"));
        }
        message.push_str(&match bar.length() {
            Some(_) if !ended => format!(", {} left", FormattedDuration(bar.eta())),
            _ => format!(", {}", FormattedDuration(begun.elapsed())),
        });
        bar.set_message(message);
        if ended {
            bar.abandon();
            return;
        }
        bar.tick();
    }
}

#[cfg(test)]
mod tests;
