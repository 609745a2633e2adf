//! Checks of what another number of ranks relies on: dealing in turn, and computed snapshots.

use std::fmt::Debug;
use std::sync::Arc;

use super::node::{Node, Way};
use super::stopped::{How, Running, Stop};
use super::{collect, steady};
use crate::context::RunInfo;
use crate::{Arity, Context, Dealing, Item, Pipe, Rank, Role, Uneven, Wanted};

/// Deals the items to several numbers of ranks, and goes on from each computed snapshot.
pub(super) fn check_rescaled<In, P>(pipe: &P, node: &mut Node<'_, P::Out>, items: &[Item<In>])
where
    In: Clone + Debug + Send + 'static,
    P: Pipe<In>,
    P::Out: PartialEq + Debug,
{
    let hints = pipe.hints();
    let has_snapshots = !hints.is_shardable && !hints.by_position;
    let (size, worlds, can_pad) = match hints.role {
        Role::Shard {
            dealing: Dealing::InTurn,
            can_pad,
        } => (1, 1..=4, can_pad),
        Role::Batch(size) if has_snapshots => (size.max(1), 1..=1, false),
        _ if has_snapshots && hints.arity == Arity::One => (1, 1..=1, false),
        _ => return,
    };
    let ranks = worlds.flat_map(|world| (0..world).map(move |index| Rank { index, world }));
    let mut check = |rank: Rank, uneven| {
        let run = RunInfo {
            rank,
            uneven: Some(uneven),
            ..RunInfo::default()
        };
        node.context = Context::new("pipe".into(), 0, run, 0, Arc::default());
        check_rank(pipe, node, items, size * rank.world);
    };
    for rank in ranks {
        check(rank, Uneven::Allow);
        check(rank, Uneven::Drop);
        if can_pad {
            check(rank, Uneven::Pad);
        }
    }
}

/// Checks the outputs of a rank, for each of which all ranks together take `each` items.
fn check_rank<In, P>(pipe: &P, node: &Node<'_, P::Out>, items: &[Item<In>], each: usize)
where
    In: Clone + Debug + Send + 'static,
    P: Pipe<In>,
    P::Out: PartialEq + Debug,
{
    let (cx, rank) = (&node.context, node.context.rank());
    let whole = collect(pipe.apply(steady(items), cx));
    let (full, Rank { index, world }) = (items.len() / each, rank);
    if let Role::Shard { .. } = pipe.hints().role {
        let own = items.iter().skip(index).step_by(world).take(full);
        let dealt = whole.iter().take(full).flatten();
        assert!(
            own.map(Item::origin).eq(dealt.map(|(_, origin)| origin)),
            "says that it deals in turn, and gives rank {index} of {world} {whole:?}"
        );
    }
    let how = How {
        way: Way::Turns,
        chunk: 3,
        always: true,
        held: false,
    };
    for outputs in 0..=full {
        let computed = pipe.snapshot_at(outputs as u64, cx);
        let Some(snapshot) = computed.expect("a snapshot can be computed") else {
            continue;
        };
        let cursor = snapshot.cursor((outputs * each) as u64, outputs as u64);
        let start = |stop: &Stop| Running::start(node, &node.clean(), Some(stop), how);
        let mut run = start(&(cursor, vec![Wanted::since(outputs as u64)]));
        let mut seen = run.read(2, whole.len()).swap_remove(0);
        let rest = start(&run.stop(false)).read(usize::MAX, whole.len());
        seen.extend(rest.into_iter().flatten());
        let expected = whole.get(outputs..).unwrap_or(&[]);
        assert_eq!(
            seen, expected,
            "from the snapshot that it computes for {outputs} outputs on rank {index} of {world} (`snapshot_at`), it goes on with something else"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::check_pipe;
    use crate::pipes::ShardingFilter;
    use crate::{Arity, Context, Dealing, Hints, Items, Pipe, PipeSnapshot, Rank, Result, Role};

    /// Adds numbers up; wrongly tells the sum by the number of items.
    struct Sums;

    impl Pipe<u64> for Sums {
        type Out = u64;
        fn apply(&self, mut input: Items<u64>, cx: &Context) -> Items<u64> {
            let cx = cx.clone();
            Items::generate(async move |out| {
                let mut sum = cx.restored().ok().flatten().unwrap_or(0u64);
                loop {
                    out.snapshot(&cx, || sum);
                    let Some(item) = out.next_from(&mut input).await else {
                        return;
                    };
                    sum += *item;
                    out.emit(Ok(item.map(|_| sum))).await;
                }
            })
        }
        fn snapshot_at(&self, outputs: u64, _: &Context) -> Result<Option<PipeSnapshot>> {
            PipeSnapshot::new(&outputs).map(Some)
        }
        fn hints(&self) -> Hints {
            Hints::default().is_resumable(true).arity(Arity::One)
        }
    }

    /// Gives each rank a range, or its turn; always says that it is its turn.
    struct Deals {
        in_turn: bool,
    }

    impl Pipe<u64> for Deals {
        type Out = u64;
        fn apply(&self, input: Items<u64>, cx: &Context) -> Items<u64> {
            let Rank { index, world } = cx.rank();
            if self.in_turn {
                return ShardingFilter::new().apply(input, cx);
            }
            let mut number = 0;
            input.each(cx, move |item| {
                number += 1;
                ((number - 1) / 5 % world == index).then_some(Ok(item))
            })
        }
        fn hints(&self) -> Hints {
            Hints::default().arity(Arity::AtMostOne).role(Role::Shard {
                can_pad: false,
                dealing: Dealing::InTurn,
            })
        }
    }

    fn refused<P: Pipe<u64, Out = u64> + std::panic::RefUnwindSafe>(pipe: P) -> String {
        let refused = std::panic::catch_unwind(|| check_pipe(&pipe, (1..12).collect()));
        *refused.unwrap_err().downcast::<String>().unwrap()
    }

    #[test]
    fn a_wrong_snapshot_and_other_turns_are_found_out() {
        let text = refused(Sums);
        assert!(
            text.contains("from the snapshot that it computes for 2 outputs on rank 0 of 1"),
            "{text}"
        );
        check_pipe(&Deals { in_turn: true }, (0..12).collect());
        let text = refused(Deals { in_turn: false });
        assert!(
            text.contains("says that it deals in turn, and gives rank 0 of 2"),
            "{text}"
        );
    }
}
