//! The conformance suite of queues, run on each carrier.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::{Limits, Put, Take, Weight};

type Ends = (Box<dyn Put<u64>>, Box<dyn Take<u64>>);

pub(crate) fn run(make: impl Fn(Limits) -> Ends) {
    delivers_in_order_once(&make);
    is_bounded_in_items(&make);
    is_bounded_in_bytes_but_lets_one_message_pass(&make);
    closing_the_put_end_delivers_the_rest(&make);
    closing_the_take_end_is_seen(&make);
    wakes_who_waits(&make);
    crosses_threads(&make);
}

#[derive(Default)]
pub(crate) struct Count(pub(crate) AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Maximum time to wait for a wake.
const WAKE_TIMEOUT: Duration = Duration::from_secs(20);

const ONE: Weight = Weight { items: 1, bytes: 8 };
const WIDE: Limits = Limits {
    items: 4,
    bytes: usize::MAX,
};

fn noop() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn delivers_in_order_once(make: &impl Fn(Limits) -> Ends) {
    let (mut put, mut take) = make(WIDE);
    for round in 0..10 {
        for i in 0..4 {
            assert!(put.poll_ready(&mut noop()).is_ready());
            put.put(round * 4 + i, ONE);
        }
        for i in 0..4 {
            assert_eq!(
                take.poll_take(&mut noop()),
                Poll::Ready(Some(round * 4 + i))
            );
        }
    }
    assert!(take.poll_take(&mut noop()).is_pending());
}

fn is_bounded_in_items(make: &impl Fn(Limits) -> Ends) {
    let (mut put, mut take) = make(Limits {
        items: 2,
        bytes: usize::MAX,
    });
    assert_eq!(put.poll_ready(&mut noop()), Poll::Ready(Some(2)));
    put.put(0, ONE);
    assert_eq!(put.poll_ready(&mut noop()), Poll::Ready(Some(1)));
    put.put(1, ONE);
    assert!(put.poll_ready(&mut noop()).is_pending());
    assert_eq!(
        take.held(),
        Weight {
            items: 2,
            bytes: 16
        }
    );
    assert!(take.poll_take(&mut noop()).is_ready());
    assert_eq!(put.poll_ready(&mut noop()), Poll::Ready(Some(1)));
    put.set_limits(Limits {
        items: 5,
        bytes: usize::MAX,
    });
    assert_eq!(put.poll_ready(&mut noop()), Poll::Ready(Some(4)));
}

fn is_bounded_in_bytes_but_lets_one_message_pass(make: &impl Fn(Limits) -> Ends) {
    let (mut put, mut take) = make(Limits {
        items: 100,
        bytes: 10,
    });
    put.put(
        0,
        Weight {
            items: 1,
            bytes: 1000,
        },
    );
    assert!(put.poll_ready(&mut noop()).is_pending());
    assert!(take.poll_take(&mut noop()).is_ready());
    assert!(put.poll_ready(&mut noop()).is_ready());
}

fn closing_the_put_end_delivers_the_rest(make: &impl Fn(Limits) -> Ends) {
    let (mut put, mut take) = make(WIDE);
    put.put(7, ONE);
    drop(put);
    assert_eq!(take.poll_take(&mut noop()), Poll::Ready(Some(7)));
    assert_eq!(take.poll_take(&mut noop()), Poll::Ready(None));
    assert_eq!(take.poll_take(&mut noop()), Poll::Ready(None));
}

fn closing_the_take_end_is_seen(make: &impl Fn(Limits) -> Ends) {
    let (mut put, take) = make(WIDE);
    put.put(7, ONE);
    drop(take);
    assert_eq!(put.poll_ready(&mut noop()), Poll::Ready(None));
    put.put(8, ONE);
}

fn wakes_who_waits(make: &impl Fn(Limits) -> Ends) {
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut cx = Context::from_waker(&waker);
    // A carrier may wake on another thread.
    let woken = || {
        let begun = Instant::now();
        while count.0.load(Ordering::SeqCst) == 0 && begun.elapsed() < WAKE_TIMEOUT {
            std::thread::yield_now();
        }
        count.0.swap(0, Ordering::SeqCst)
    };

    let (mut put, mut take) = make(Limits {
        items: 1,
        bytes: usize::MAX,
    });
    assert!(take.poll_take(&mut cx).is_pending());
    put.put(0, ONE);
    assert_eq!(woken(), 1, "a message wakes who waits for it");
    assert!(put.poll_ready(&mut cx).is_pending());
    assert!(take.poll_take(&mut noop()).is_ready());
    assert_eq!(woken(), 1, "room wakes who waits for it");
    assert!(take.poll_take(&mut cx).is_pending());
    drop(put);
    assert_eq!(woken(), 1, "the end wakes who waits for a message");

    let (mut put, take) = make(Limits {
        items: 1,
        bytes: usize::MAX,
    });
    put.put(0, ONE);
    assert!(put.poll_ready(&mut cx).is_pending());
    drop(take);
    assert_eq!(woken(), 1, "nobody listening wakes who waits for room");
}

fn crosses_threads(make: &impl Fn(Limits) -> Ends) {
    const N: u64 = 5000;
    for items in [1, 3, 64] {
        let (mut put, mut take) = make(Limits {
            items,
            bytes: usize::MAX,
        });
        let producer = move || {
            for i in 0..N {
                let room = crate::run::block_on(std::future::poll_fn(|cx| put.poll_ready(cx)));
                assert!(room.is_some_and(|room| room <= items));
                put.put(i, ONE);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(producer);
            for i in 0..N {
                assert_eq!(
                    crate::run::block_on(std::future::poll_fn(|cx| take.poll_take(cx))),
                    Some(i)
                );
            }
            assert_eq!(
                crate::run::block_on(std::future::poll_fn(|cx| take.poll_take(cx))),
                None
            );
        });
    }
}
