//! A child, as its parent sees it: a process of this machine, or of another one.

use std::process::ExitStatus;
use std::task::{Context, Poll};
use std::time::Duration;

use super::child_process::ChildProcess;
use super::plan::ChildrenPlan;
use super::protocol::Order;
use super::queue_ends::{PutEnd, TakeEnd};
#[cfg(feature = "remote")]
use super::remote::{Arrival, RemoteWorker};
use super::vitals::Vitals;
use crate::queue::{Limits, Weight};
use crate::{Error, Result, Wire, Writer};

/// Amount of work that may wait in a child's queue. The supervisor limits the number of jobs.
const LIMITS: Limits = Limits {
    items: 1 << 20,
    bytes: 256 << 20,
};

/// A child with its queues. Dropping it ends the child.
pub(super) struct Child {
    pub orders: PutEnd,
    pub reports: TakeEnd,
    body: Body,
}

enum Body {
    Process(ChildProcess),
    #[cfg(feature = "remote")]
    Remote(RemoteWorker),
}

impl Child {
    /// Starts a process of this machine, and greets it. Must be called inside a tokio runtime, by a
    /// thread that lives as long as the child.
    pub(super) fn start(plan: &ChildrenPlan, place: usize) -> Result<Child> {
        let started = ChildProcess::start(plan, place, LIMITS);
        let (process, orders, reports) = started.map_err(Error::io)?;
        let (orders, reports) = (
            PutEnd::Local(Box::new(orders)),
            TakeEnd::Local(Box::new(reports)),
        );
        Child::greeted(plan, orders, reports, Body::Process(process))
    }

    /// Greets a worker of another machine, which has shown that it belongs to this program.
    #[cfg(feature = "remote")]
    pub(super) fn of_worker(plan: &ChildrenPlan, arrival: Arrival) -> Result<Child> {
        let Arrival {
            worker,
            mut orders,
            reports,
        } = arrival;
        orders.set_limits(LIMITS);
        Child::greeted(plan, orders, reports, Body::Remote(worker))
    }

    fn greeted(
        plan: &ChildrenPlan,
        mut orders: PutEnd,
        reports: TakeEnd,
        body: Body,
    ) -> Result<Child> {
        let (mut writer, hello) = (Writer::new(), Order::Hello);
        hello.encode(&mut writer)?;
        plan.hello.encode(&mut writer)?;
        orders.send(writer, Weight { items: 1, bytes: 0 })?;
        Ok(Child {
            orders,
            reports,
            body,
        })
    }

    /// Returns the number of its process, on its machine.
    pub(super) fn id(&self) -> u32 {
        match &self.body {
            Body::Process(process) => process.id(),
            #[cfg(feature = "remote")]
            Body::Remote(worker) => worker.process,
        }
    }

    /// Returns the name of its machine, if that is another one.
    pub(super) fn machine(&self) -> Option<&str> {
        match &self.body {
            Body::Process(_) => None,
            #[cfg(feature = "remote")]
            Body::Remote(worker) => Some(&worker.machine),
        }
    }

    /// Returns the number by which its machine reports how it ended, if that is another machine.
    pub(super) fn worker(&self) -> Option<u64> {
        match &self.body {
            Body::Process(_) => None,
            #[cfg(feature = "remote")]
            Body::Remote(worker) => Some(worker.id),
        }
    }

    /// Returns the time of a message to a worker of another machine and its answer, when it connected.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        match &self.body {
            Body::Process(_) => None,
            #[cfg(feature = "remote")]
            Body::Remote(worker) => Some(worker.round_trip),
        }
    }

    /// Returns its private memory, if it is a process of this machine.
    pub(super) fn vitals(&self) -> Option<Vitals> {
        match &self.body {
            Body::Process(process) => process.vitals(),
            #[cfg(feature = "remote")]
            Body::Remote(_) => None,
        }
    }

    /// Ready once the process has ended, or the connection to the worker.
    pub(super) fn poll_exit(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.body {
            Body::Process(process) => process.poll_exit(cx).map(|_| ()),
            #[cfg(feature = "remote")]
            Body::Remote(_) if self.reports.has_ended() => Poll::Ready(()),
            #[cfg(feature = "remote")]
            Body::Remote(_) => Poll::Pending,
        }
    }

    /// Forwards its output. A worker of another machine prints to its own.
    pub(super) fn poll_lines(&mut self, cx: &mut Context<'_>) {
        match &mut self.body {
            Body::Process(process) => process.poll_lines(cx),
            #[cfg(feature = "remote")]
            Body::Remote(_) => {}
        }
    }

    /// Ends the process at once, with everything that it started. The connection to a worker ends
    /// when this is dropped.
    pub(super) fn kill(&self) {
        match &self.body {
            Body::Process(process) => process.kill(),
            #[cfg(feature = "remote")]
            Body::Remote(_) => {}
        }
    }

    /// Ends it, and describes its end by `how`, which gets the status of a process of this machine,
    /// and its last output.
    pub(super) fn exit_report(&mut self, how: impl FnOnce(Option<ExitStatus>) -> String) -> String {
        match &mut self.body {
            Body::Process(process) => {
                let how = how(Some(process.end()));
                match process.last_lines() {
                    Some(lines) => format!("{how}; it printed: {lines}"),
                    None => how,
                }
            }
            #[cfg(feature = "remote")]
            Body::Remote(worker) => {
                let how = how(None);
                match self.reports.fault() {
                    Some(fault) => format!("at {worker} {how}: {}", fault.message()),
                    None => format!("at {worker} {how}"),
                }
            }
        }
    }
}
