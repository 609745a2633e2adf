//! Finds joins that pair items by position although the positions of their inputs may not belong to
//! the same samples.

use crate::graph::{Flow, Op};
use crate::{Arity, Role};

/// Identifies the sequence of samples of a stream: the output of a node that the stream derives
/// from one-to-one, and the steps on the way that regroup or thin it by position, in words. Streams
/// with equal values have the same samples at the same positions.
#[derive(PartialEq)]
struct SampleSequence {
    of: (usize, usize),
    steps: Vec<String>,
}

/// Returns a remark for a node that pairs items by position, if its inputs may not have the same
/// samples there.
pub(super) fn remark(flow: &Flow, id: usize) -> Option<String> {
    let node = &flow.nodes[id];
    if !node.hints().pairs {
        return None;
    }
    let inputs: Vec<SampleSequence> = node
        .inputs
        .iter()
        .map(|&input| places(flow, input))
        .collect();
    let first = inputs.first()?;
    let other = inputs.iter().find(|other| *other != first)?;
    let name = |places: &SampleSequence| {
        let node = &flow.nodes[places.of.0];
        let output = if node.node.outputs() > 1 {
            format!(" (output {})", places.of.1)
        } else {
            String::new()
        };
        let steps = places.steps.iter().map(|step| format!(" → {step}"));
        format!("`{}`{output}{}", node.name, steps.collect::<String>())
    };
    Some(format!(
        "(pairs by place, but {} and {} need not have the same sample at the same place; `join_by_key` pairs by key)",
        name(first),
        name(other)
    ))
}

fn places(flow: &Flow, of: (usize, usize)) -> SampleSequence {
    let node = &flow.nodes[of.0];
    let hints = node.hints();
    let above = || places(flow, node.inputs[0]);
    match (&node.node.op, hints.role) {
        // Each rank, and each batch, takes the items at the same positions.
        (Op::Pipe(_), Role::Shard { .. } | Role::Batch(_)) => {
            let mut places = above();
            places
                .steps
                .push(format!("{}({})", node.node.kind, hints.settings));
            places
        }
        (Op::Pipe(_), role)
            if hints.arity == Arity::One
                && !matches!(role, Role::Shuffle | Role::ShuffleWithinRank) =>
        {
            above()
        }
        (Op::Pipe(_), Role::Prefetch(_)) => above(),
        // Every output has all of the input.
        (Op::Split(split), _) if split.len_hint(1) == Some(1) => above(),
        _ => SampleSequence {
            of,
            steps: Vec::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use crate::pipes::Zip;
    use crate::{DataLoader, Graph};

    /// Returns the remark at the node that zips.
    fn said<T: Send + 'static>(graph: Graph<T>) -> String {
        let plan = DataLoader::builder(graph)
            .workers(2)
            .build()
            .unwrap()
            .explain();
        let line = plan.lines().find(|line| line.contains("─ zip")).unwrap();
        line.split_once("(pairs by place")
            .map_or(String::new(), |(_, remark)| remark.to_owned())
    }

    fn both(one: Graph<u64>, other: Graph<u64>) -> String {
        said(one.zip(other))
    }

    #[test]
    fn a_zip_of_streams_that_differ_in_origin_says_so_and_names_join_by_key() {
        let remark = both(Graph::range(0..9), Graph::from_vec(vec![1, 2]));
        assert!(
            remark.contains("but `range` and `from_vec` need not have the same sample"),
            "{remark}"
        );
        assert!(remark.contains("`join_by_key` pairs by key"), "{remark}");
        // One source, opened twice, is in one order only as long as it is read in one.
        assert!(both(Graph::range(0..9), Graph::range(0..9)).contains("`range#2`"));
        let steps: [fn(Graph<u64>) -> Graph<u64>; 6] = [
            |graph| graph.shuffle(9),
            |graph| graph.filter(|n| n % 2 == 0),
            |graph| graph.flat_map(|n| [n, n]),
            |graph| graph.repeat(2),
            |graph| graph.skip(1),
            |graph| graph.through(|items: crate::Items<u64>| items),
        ];
        for step in steps {
            let [a, b] = Graph::range(0..9).fork();
            assert!(both(a, step(b).map(|n| n + 1)).contains("join_by_key"));
            let [a, b] = Graph::range(0..9).fork();
            // A step applied to both inputs runs separately for each.
            assert!(both(step(a), step(b)).contains("join_by_key"));
        }
        let [a, b] = Graph::range(0..9).fork();
        let remark = said(a.batch(2).zip(b.batch(3)));
        assert!(
            remark.contains("but `range` → batch(2) and `range` → batch(3) need not"),
            "{remark}"
        );
        let [even, odd] = Graph::range(0..9).demux(|n| *n as usize % 2);
        assert!(both(even, odd).contains("`demux` (output 1)"));
        let [a, b] = Graph::range(0..9).fork();
        assert!(
            said(Graph::join((a, b.sharding_filter()), Zip::new().strict()))
                .contains("sharding_filter")
        );
        let [a, b] = Graph::range(0..9).fork();
        assert!(said(a.zip3(b, Graph::range(0..9))).contains("`range#2`"));
    }

    #[test]
    fn a_zip_of_forks_that_are_one_in_one_out_says_nothing() {
        let steps: [fn(Graph<u64>) -> Graph<u64>; 6] = [
            |graph| graph,
            |graph| graph.map(|n| n + 1).try_map(crate::Ok),
            |graph| graph.map_with_rng(|n, rng| n + rng.below(5)),
            |graph| graph.map_async(|n| async move { crate::Ok(n) }),
            |graph| graph.enumerate().map(|(_, n)| n).prefetch(3),
            |graph| graph.inspect(|_| ()).map_init(|| 0, |_, n| n),
        ];
        for step in steps {
            // The steps upstream of the fork run once.
            let [a, b] = Graph::range(0..9).shuffle(5).filter(|n| *n != 3).fork();
            assert_eq!(both(a, step(b)), "");
            let [a, b] = Graph::range(0..9).fork();
            assert_eq!(both(step(a), b), "");
        }
        let [a, b] = Graph::range(0..9).fork();
        assert_eq!(
            said(a.batch(4).zip(b.map(|n| n + 1).batch(4).collate())),
            ""
        );
        let [a, b] = Graph::range(0..9).fork();
        let [b, c] = b.fork();
        assert_eq!(
            said(
                a.sharding_filter()
                    .zip3(b.sharding_filter(), c.sharding_filter())
            ),
            ""
        );
        // A join by key pairs nothing by position.
        let joined = Graph::range(0..9).join_by_key(Graph::range(5..7), |n| *n, |n| *n);
        let plan = DataLoader::builder(joined).build().unwrap().explain();
        assert!(!plan.contains("pairs by place"), "{plan}");
    }
}
