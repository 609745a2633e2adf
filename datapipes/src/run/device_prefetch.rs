//! Uploads the items of a stream ahead of the consumer, on one fixed thread.

use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{self, Poll};
use std::time::Instant;

use futures::channel::oneshot;
use futures::future::{AbortHandle, Abortable};
use futures::task::AtomicWaker;
use futures::{Stream, StreamExt};

use super::gauge::{Wait, WaitTime};
use super::scope::{Scope, Scoped};
use super::{JOIN_TIMEOUT, PinnedThread};
use crate::histogram::DurationRecorder;
use crate::queue::{Limits, Put, Take, Weight, thread};
use crate::{Error, ErrorKind, Item, Result};

/// Function that puts a batch on a device.
pub(crate) type Upload<T, U> = Arc<dyn Fn(T) -> Result<U> + Send + Sync>;

/// Measurements of the device stage.
#[derive(Debug, Default)]
pub(crate) struct DevicePrefetchGauge {
    /// Time the consumer waited for a batch.
    pub waited: Arc<WaitTime>,
    /// Each of its waits.
    pub waits: DurationRecorder,
    /// Time spent in uploads.
    pub busy_ns: AtomicU64,
    pub uploaded: AtomicU64,
    pub depth: AtomicU64,
    uploading: AtomicBool,
}

impl DevicePrefetchGauge {
    /// Returns true if no upload is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        !self.uploading.load(Ordering::Relaxed)
    }
}

/// Uploaded batch or error, with the position of the stream after it; there is no position if the
/// stage itself failed.
pub(crate) type Uploaded<U, P> = (Result<Item<U>>, Option<P>);

/// Consumer's end of the queue.
type Receiving<U, P> = Box<dyn Take<Uploaded<U, P>>>;

/// Consumer's end of a stream that is uploaded ahead. Dropping it ends the stream.
pub(crate) struct DevicePrefetch<U, P> {
    take: Option<Receiving<U, P>>,
    gauge: Arc<DevicePrefetchGauge>,
    waiting_since: Option<(Instant, Wait)>,
    /// Wakes the stage for each batch that is taken: the queue alone would wake the stage only once
    /// half of the queue is free.
    room: Arc<AtomicWaker>,
    abort: AbortHandle,
    /// True if the stream came to its end, so that no batch is missing.
    whole: Arc<AtomicBool>,
    ended: mpsc::Receiver<()>,
    /// Sends the queue to the stage's thread, which drops the ready batches if the consumer's
    /// thread must not.
    leave: Option<oneshot::Sender<Receiving<U, P>>>,
}

impl<U: Send + 'static, P: Send + 'static> DevicePrefetch<U, P> {
    /// Starts to upload on thread `on`, keeping up to `depth` batches ready. If it is `polled` as a
    /// stream, dropping it does not wait, and ready batches are dropped on the stage's thread.
    pub(crate) fn start<T: Send + 'static>(
        on: &PinnedThread,
        source: impl Stream<Item = Uploaded<T, P>> + Send + Unpin + 'static,
        upload: Upload<T, U>,
        depth: usize,
        gauge: Arc<DevicePrefetchGauge>,
        polled: bool,
    ) -> io::Result<Self> {
        let depth = depth.max(1);
        gauge.depth.store(depth as u64, Ordering::Relaxed);
        let (put, take) = thread(Limits {
            items: depth,
            bytes: usize::MAX,
        });
        let (abort, registration) = AbortHandle::new_pair();
        let (send_ended, ended) = mpsc::channel();
        let whole = Arc::new(AtomicBool::new(false));
        let room = Arc::new(AtomicWaker::new());
        let work = drive(
            source,
            upload,
            put,
            room.clone(),
            gauge.clone(),
            whole.clone(),
        );
        let (leave, left) = oneshot::channel();
        let job = async move {
            // Aborted or not, the stream is dropped here, on the stage's thread.
            let _ = Abortable::new(work, registration).await;
            drop::<mpsc::Sender<()>>(send_ended);
            drop(left.await);
        };
        match Scope::current() {
            Some(scope) => on.run(Scoped::new(&scope, job))?,
            None => on.run(job)?,
        }
        let leave = polled.then_some(leave);
        let take: Receiving<U, P> = Box::new(take);
        Ok(DevicePrefetch {
            take: Some(take),
            gauge,
            waiting_since: None,
            room,
            abort,
            whole,
            ended,
            leave,
        })
    }

    pub(crate) fn poll_next(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Uploaded<U, P>>> {
        let Some(take) = &mut self.take else {
            return Poll::Ready(None);
        };
        match take.poll_take(cx) {
            Poll::Pending => {
                let waited = &self.gauge.waited;
                (self.waiting_since)
                    .get_or_insert_with(|| (Instant::now(), WaitTime::start(waited)));
                Poll::Pending
            }
            Poll::Ready(next) => {
                if let Some((since, _ended)) = self.waiting_since.take() {
                    let waited = since.elapsed().as_nanos() as u64;
                    // The wait for the end is no wait for a batch.
                    if next.is_some() {
                        self.gauge.waits.record(waited, 1);
                    }
                }
                if next.is_some() {
                    self.room.wake();
                    return Poll::Ready(next);
                }
                self.take = None;
                if self.whole.load(Ordering::Acquire) {
                    return Poll::Ready(None);
                }
                // Batches may be missing, so the end of the queue is an error.
                let error = Error::new(ErrorKind::Panic, "the device stage broke off");
                Poll::Ready(Some((Err(error), None)))
            }
        }
    }
}

impl<U, P> Drop for DevicePrefetch<U, P> {
    fn drop(&mut self) {
        self.abort.abort();
        let take = self.take.take();
        if let Some(leave) = self.leave.take() {
            let _ = take.map(|take| leave.send(take));
            return;
        }
        drop(take);
        let _ = self.ended.recv_timeout(JOIN_TIMEOUT);
    }
}

/// Uploads one batch after another, each as soon as there is room for it.
async fn drive<T, U, P>(
    mut source: impl Stream<Item = Uploaded<T, P>> + Unpin,
    upload: Upload<T, U>,
    mut put: impl Put<Uploaded<U, P>>,
    room: Arc<AtomicWaker>,
    gauge: Arc<DevicePrefetchGauge>,
    whole: Arc<AtomicBool>,
) {
    let node: Arc<str> = NODE.into();
    loop {
        let has_room = poll_fn(|cx| {
            room.register(cx.waker());
            put.poll_ready(cx)
        });
        if has_room.await.is_none() {
            break;
        }
        let next = match source.next().await {
            None => break,
            Some((Err(error), progress)) => (Err(error), progress),
            Some((Ok(item), progress)) => {
                let (value, origin) = item.into_parts();
                let begun = Instant::now();
                gauge.uploading.store(true, Ordering::Relaxed);
                let uploaded = catch_unwind(AssertUnwindSafe(|| upload(value)));
                gauge.uploading.store(false, Ordering::Relaxed);
                gauge
                    .busy_ns
                    .fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
                match uploaded.unwrap_or_else(|payload| Err(Error::panic(payload))) {
                    Ok(value) => {
                        gauge.uploaded.fetch_add(1, Ordering::Relaxed);
                        (Ok(Item::new(value, origin)), progress)
                    }
                    Err(error) => {
                        whole.store(true, Ordering::Release);
                        let error = error.at(&node).of(&origin);
                        put.put((Err(error), None), Weight { items: 1, bytes: 0 });
                        return;
                    }
                }
            }
        };
        put.put(next, Weight { items: 1, bytes: 0 });
    }
    whole.store(true, Ordering::Release);
}

/// Node name in errors of an upload.
const NODE: &str = "prefetch_to_device";

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;
    use crate::Origin;

    #[test]
    fn a_stream_that_breaks_off_is_no_quiet_end() {
        let thread = PinnedThread::new("test");
        let mut left = 2;
        let source = stream::poll_fn(move |_| {
            assert!(left > 0, "broken");
            left -= 1;
            Poll::Ready(Some((Ok(Item::new(left, Origin::root(0, 0))), Some(left))))
        });
        let upload: Upload<i32, i32> = Arc::new(Ok);
        let mut ahead =
            DevicePrefetch::start(&thread, source, upload, 1, Arc::default(), false).unwrap();
        let mut next = || super::super::block_on(poll_fn(|cx| ahead.poll_next(cx)));
        for left in [1, 0] {
            let (item, progress) = next().unwrap();
            assert_eq!((item.unwrap().into_inner(), progress), (left, Some(left)));
        }
        let (broken, progress) = next().unwrap();
        assert_eq!(
            (broken.unwrap_err().kind(), progress),
            (ErrorKind::Panic, None)
        );
        assert!(next().is_none());
    }
}
