//! Both ends in one process.

use std::task::{Context, Poll, Waker};

use tokio::runtime::{Builder, Runtime};

use super::{ProcessPut, ProcessTake, TypedPut, TypedTake, sockets};
use crate::queue::{Limits, Weight, conformance};

pub(super) const WIDE: Limits = Limits { items: usize::MAX, bytes: usize::MAX };

pub(super) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_io().build().unwrap()
}

#[test]
fn conforms() {
    let runtime = runtime();
    let _inside = runtime.enter();
    conformance::run(|limits| {
        let (put, take) = sockets().unwrap();
        (Box::new(TypedPut::new(put, limits).unwrap()), Box::new(TypedTake::new(take).unwrap()))
    });
}
