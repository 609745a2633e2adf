//! Tests of the bytes that edges share.

use super::*;

const MIB: usize = 1 << 20;

fn account(budget: &Arc<Budget>, edge: usize, seen: usize) -> Account {
    Account::new(
        budget,
        edge,
        8 * MIB,
        1,
        (Arc::new(AtomicUsize::new(seen)), None),
        Vec::new(),
    )
}

fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Begins a request of 1 MiB, when items turned out as large as the whole limit and others have
/// taken the rest.
fn begun(budget: &Arc<Budget>) -> (Credit, Hold) {
    let account = account(budget, 0, MIB);
    let (mut large, mut begun) = (account.credit(), account.credit());
    assert!(large.reserve(&cx()) && begun.reserve(&cx()));
    assert!(
        begun
            .poll_begin(&cx(), 1, Limit::Share, || false)
            .is_ready()
    );
    begun.poll_pending(1);
    assert!(
        large
            .poll_begin(&cx(), 1, Limit::Share, || false)
            .is_ready()
    );
    (begun, large.give(1, 16 * MIB, 0))
}

fn may_go_on(credit: &mut Credit) -> bool {
    credit
        .poll_begin(&cx(), 1, Limit::Share, || false)
        .is_ready()
}

#[test]
fn who_has_begun_goes_on_where_the_consumer_waits_and_nothing_moves() {
    let budget = Budget::new(16 * MIB, 1, |_, _| true);
    let (mut credit, held) = begun(&budget);
    assert!(!may_go_on(&mut credit));
    // Something has moved since then.
    budget.consumer_waits(&cx());
    budget.tick();
    assert!(!may_go_on(&mut credit));
    // The consumer is asked whether it still waits, and does.
    budget.tick();
    assert!(!may_go_on(&mut credit));
    budget.consumer_waits(&cx());
    budget.tick();
    assert!(may_go_on(&mut credit));
    // In as many polls as that takes, until it is made.
    credit.poll_pending(1);
    assert!(may_go_on(&mut credit));
    drop(credit.give(1, 16 * MIB, 0));
    assert!(!may_go_on(&mut credit));
    drop(held);
    assert!(may_go_on(&mut credit));
}

#[test]
fn items_that_were_joined_give_back_the_bytes_of_all() {
    let budget = Budget::new(16 * MIB, 1, |_, _| true);
    let held = || lock(&budget.state).held;
    let mut credit = account(&budget, 0, MIB).credit();
    let mut first = credit.give(1, 3 * MIB, 0);
    first.join(credit.give(1, 5 * MIB, 0));
    assert_eq!(held(), 8 * MIB);
    drop(first);
    assert_eq!(held(), 0);
}

#[test]
fn nobody_goes_above_while_the_consumer_is_busy() {
    let budget = Budget::new(16 * MIB, 1, |_, _| true);
    let (mut credit, _held) = begun(&budget);
    assert!(!may_go_on(&mut credit));
    // The consumer found nothing once, and has not come back.
    budget.consumer_waits(&cx());
    for _ in 0..100 {
        budget.tick();
    }
    assert!(!may_go_on(&mut credit));
}

#[test]
fn a_credit_given_up_without_an_item_wakes_nobody_who_has_no_room() {
    struct Woken(AtomicU64);
    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let budget = Budget::new(16 * MIB, 2, |_, _| true);
    let (mut full, other) = (account(&budget, 0, MIB).credit(), account(&budget, 1, MIB));
    let _held = [16 * MIB, 0].map(|bytes| full.give(1, bytes, 0));
    let woken = Arc::new(Woken(AtomicU64::new(0)));
    let mut waiting = account(&budget, 0, MIB).credit();
    // After every number of items: some of them let those who wait look again.
    for _ in 0..2 * LOOK {
        assert!(!waiting.reserve(&Context::from_waker(&woken.clone().into())));
        let was = woken.0.load(Ordering::Relaxed);
        drop(other.credit());
        assert_eq!(woken.0.load(Ordering::Relaxed), was);
        drop(other.credit().give(1, 0, 0));
    }
    assert!(woken.0.load(Ordering::Relaxed) > 0);
}

#[test]
fn nobody_waits_where_no_clock_can_be_started() {
    let budget = Budget::new(16 * MIB, 1, |_, _| false);
    let (mut credit, _held) = begun(&budget);
    assert!(may_go_on(&mut credit));
}

#[test]
fn what_has_not_begun_goes_on_too_after_a_longer_time() {
    let budget = Budget::new(16 * MIB, 1, |_, _| true);
    let (_begun, _held) = begun(&budget);
    let mut credit = account(&budget, 0, MIB).credit();
    let mut ticks = 0;
    while !may_go_on(&mut credit) {
        ticks += 1;
        budget.consumer_waits(&cx());
        budget.tick();
    }
    assert_eq!(ticks, 2 + LONG as usize);
}

#[test]
fn a_request_that_has_its_bytes_is_not_suspended_for_want_of_more() {
    let budget = Budget::new(16 * MIB, 2, |_, _| true);
    let mut credit = account(&budget, 0, MIB).credit();
    assert!(credit.reserve(&cx()));
    // Everything else is taken, and more than that.
    let mut other = account(&budget, 1, MIB).credit();
    assert!(other.reserve(&cx()));
    let _held = other.give(1, 20 * MIB, 0);
    for _ in 0..3 {
        assert!(may_go_on(&mut credit));
        credit.poll_pending(1);
    }
}

/// Several workers that begin at the same moment know of no item so far.
#[test]
fn the_first_items_fit_if_the_largest_is_known() {
    for (largest, at_once) in [(Some(4 * MIB), 2), (None, 8)] {
        let budget = Budget::new(8 * MIB, 1, |_, _| true);
        let seen = (Arc::new(AtomicUsize::new(0)), largest);
        let account = Account::new(&budget, 0, 8 * MIB, 8, seen, Vec::new());
        let mut credits: Vec<Credit> = (0..8).map(|_| account.credit()).collect();
        let begin = |credit: &mut Credit| {
            credit.reserve(&cx())
                && credit
                    .poll_begin(&cx(), 1024, Limit::Share, || false)
                    .is_ready()
        };
        let begun = credits
            .iter_mut()
            .filter_map(|credit| begin(credit).then_some(()));
        assert_eq!(begun.count(), at_once);
        assert!(budget.figures().0.1 <= 8 * MIB);
    }
}
