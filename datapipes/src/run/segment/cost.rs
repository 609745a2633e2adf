//! The cost of an item, and what follows from it: where the chain runs, and the size of a morsel.

use super::SegmentSettings;
use crate::{Arity, Order, Work, items};

/// Least work of a morsel that is worth its hop.
const MORSEL_NS: f64 = 200_000.0;
/// Work of a morsel of which the hop is a hundredth, if nothing speaks against more items: the reader
/// gets them in order, and their input and output stay in the cache of a core.
const LONG_MORSEL_NS: f64 = 1_000_000.0;
const LONG_MORSEL_BYTES: usize = 256 << 10;
/// Least work of a morsel that is worth its hop to another process and back.
const MORSEL_NS_APART: f64 = 4_000_000.0;
/// Greatest number of items in a morsel.
const MAX_MORSEL: usize = 1024;
/// Cost of an item below which a chain runs inline. A chain that costs more than twice as much
/// leaves the inline mode.
pub(super) const INLINE_NS: f64 = 150.0;
/// Number of chunks measured before a decision.
const PROBES: u32 = 4;

/// Cost of an item in the chain of a segment, on average over the last ones.
#[derive(Default)]
pub(super) struct ItemCost {
    /// Recent bytes of an item of the input.
    pub input: usize,
    ns: f64,
    probes: u32,
}

impl ItemCost {
    /// Begins with the cost in an earlier epoch, in nanoseconds, if it is above 0.
    pub(super) fn begin_with(ns: u64) -> ItemCost {
        ItemCost {
            ns: ns as f64,
            probes: u32::from(ns > 0),
            ..ItemCost::default()
        }
    }

    /// Returns the cost, in nanoseconds; 0 before it is known.
    pub(super) fn ns(&self) -> u64 {
        self.ns as u64
    }

    /// Adds a measurement, in nanoseconds.
    pub(super) fn learn(&mut self, ns: f64) {
        self.add(ns, 0.2);
    }

    /// Adds a measurement of near files. The first ones pay for cold caches, and are forgotten sooner.
    pub(super) fn learn_near(&mut self, ns: f64) {
        let is_early = self.probes < 2 * PROBES;
        self.add(ns, if is_early { 0.5 } else { 0.2 });
    }

    /// Adds that the last items cost no more than this, in nanoseconds: more that was measured is soon
    /// forgotten.
    pub(super) fn learn_at_most(&mut self, ns: f64) {
        self.add(ns.min(self.ns), 0.5);
    }

    fn add(&mut self, ns: f64, weight: f64) {
        self.ns = match self.probes {
            0 => ns,
            _ => self.ns + (ns - self.ns) * weight,
        };
        self.probes = self.probes.saturating_add(1);
    }

    /// Returns true if enough is known to decide where the chain runs.
    pub(super) fn is_known(&self) -> bool {
        self.probes >= PROBES || self.ns > MORSEL_NS / 10.0
    }

    /// Returns true if a chain that runs in morsels should run inline.
    pub(super) fn is_cheap(&self) -> bool {
        self.probes >= PROBES && self.ns < INLINE_NS
    }

    /// Returns true if a chain that was polled inline this often should run in morsels. The first
    /// items pay for cold caches, so their limit is generous.
    pub(super) fn is_expensive(&self, polls: u32) -> bool {
        self.ns > INLINE_NS * if polls > 16 { 2.0 } else { 20.0 }
    }

    /// Returns the number of items for one morsel, after `taken` items in morsels before.
    pub(super) fn morsel(&self, settings: &SegmentSettings, taken: usize) -> usize {
        let most = match settings.shared.work {
            _ if self.ns <= 0.0 => 1,
            // Small files share a hop; remote objects go one by one.
            Work::Io if settings.set_by_user => 1,
            Work::Io => (settings.concurrency / 4).max(1),
            // Items that come together from upstream are not to wait for each other.
            Work::Cpu if settings.processes => MAX_MORSEL,
            Work::Cpu => MAX_MORSEL.min(items::at_once(0.0, taken)),
        };
        let items = |worth: f64| (worth / self.ns) as usize;
        let worth = match settings.shared.work {
            _ if settings.processes => items(MORSEL_NS_APART),
            Work::Cpu if settings.order == Order::Strict && settings.shared.arity != Arity::Any => {
                let weight = self.input + settings.shared.account.heaviest();
                let small = LONG_MORSEL_BYTES / weight.max(1);
                items(LONG_MORSEL_NS).min(small).max(items(MORSEL_NS))
            }
            _ => items(MORSEL_NS),
        };
        worth.clamp(1, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_items_that_are_measured_first_do_not_make_a_chain_expensive() {
        let mut cost = ItemCost::default();
        // Most of it is the poll that each of them has for itself.
        for ns in [5_000.0, 450.0, 350.0, 350.0] {
            cost.learn(ns);
        }
        assert!(cost.is_known() && !cost.is_expensive(0) && cost.is_expensive(17));
        // Chunks come quickly, and only the first of them is timed.
        cost.learn(60.0);
        (0..15).for_each(|_| cost.learn_at_most(80.0));
        assert!(!cost.is_expensive(17) && cost.is_cheap());
        // A bound above the average changes nothing: the reader may have been away meanwhile.
        cost.learn_at_most(5_000.0);
        assert!(cost.is_cheap());
        (0..4).for_each(|_| cost.learn(1_000.0));
        assert!(cost.is_expensive(17));
    }

    #[test]
    fn a_cold_first_item_is_soon_forgotten_and_a_slow_one_later_changes_little() {
        let mut cost = ItemCost::default();
        cost.learn_near(100_000.0);
        (0..8).for_each(|_| cost.learn_near(5_000.0));
        assert!(cost.ns() < 6_000, "{}", cost.ns());
        cost.learn_near(100_000.0);
        assert!(cost.ns() < 25_000, "{}", cost.ns());
    }
}
