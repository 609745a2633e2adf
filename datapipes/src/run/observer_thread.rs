//! A thread that reads the figures of a loader, and ends with its owner.

use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::thread::ThreadId;

use super::{JOIN_TIMEOUT, may_wait, spawn_thread};

/// A thread of an observer. The owner tells it to end, then drops this handle, which waits for the
/// end, but only briefly: a reader of the figures never holds up a drop.
#[derive(Debug)]
pub(crate) struct ObserverThread {
    ended: Receiver<()>,
    id: ThreadId,
}

impl ObserverThread {
    pub(crate) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (send_ended, ended) = channel();
        let thread = spawn_thread(format!("datapipes-{name}"), move || {
            body();
            drop(send_ended);
        })?;
        let id = thread.thread().id();
        Ok(ObserverThread { ended, id })
    }
}

impl Drop for ObserverThread {
    fn drop(&mut self) {
        // The last handle on the figures may be dropped by the thread that has just read them.
        if may_wait() && std::thread::current().id() != self.id {
            let _ = self.ended.recv_timeout(JOIN_TIMEOUT);
        }
    }
}
