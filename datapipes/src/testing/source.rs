//! Checks of the contract of any source.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;

use super::node::{Node, Reading, Way};
use super::stopped::check_stopped;
use super::{Outcome, Resources};
use crate::context::RunInfo;
use crate::{Context, Items, Source};

/// Checks that a source keeps the contract of [`Source`]. Ten or some more items show most; an
/// endless source cannot be checked.
///
/// - *Lazy*: opening it starts no thread and opens no file, before it is polled (observed on
///   Linux).
/// - *Reusable*: opened again it gives the same, also while a first opening is half-way, and for
///   any demands.
/// - *Drop releases*: dropped anywhere, it keeps no file open and no thread running (observed on
///   Linux).
/// - *Origins* are those of the [`Context`], each once, and others in another round of a repeat.
/// - *Length hint*: it equals the number of items, if nothing fails.
/// - *By position*, if it is declared: for any [wanted](Context::wanted) positions it gives the
///   items there, and nothing else.
/// - *Resumable*, if it [takes snapshots](field@crate::Hints::is_resumable): stopped after any item, and
///   again, and resumed from its snapshot, it gives the same as without a stop. A source that
///   declares neither is opened from the beginning, for which it is enough to be reusable.
///
/// For a source that exists [once](crate::Hints::once) only the properties of one opening are
/// checked: origins, and the length.
///
/// # Panics
/// Panics if one of these properties does not hold; the message names it.
///
/// # Examples
/// ```
/// use datapipes::{Context, Hints, Items, Source, testing};
///
/// /// Numbers below a limit; resumes after the last number it gave.
/// struct Below(u64);
///
/// impl Source for Below {
///     type Out = u64;
///     fn open(&self, cx: &Context) -> Items<u64> {
///         let (cx, end) = (cx.clone(), self.0);
///         let first: u64 = match cx.restored() {
///             Ok(saved) => saved.unwrap_or(0),
///             Err(error) => return Items::fail(error),
///         };
///         Items::generate(async move |out| {
///             for n in first..end {
///                 out.snapshot(&cx, || n);
///                 out.emit(Ok(datapipes::Item::new(n, cx.origin(n)))).await;
///             }
///             out.snapshot(&cx, || end);
///         })
///     }
///     fn hints(&self) -> Hints {
///         Hints::any_order().is_resumable(true)
///     }
///     fn len_hint(&self) -> Option<u64> {
///         Some(self.0)
///     }
/// }
///
/// testing::check_source(&Below(12));
/// ```
pub fn check_source<S>(source: &S)
where
    S: Source,
    S::Out: PartialEq + Debug,
{
    let hints = source.hints();
    assert!(
        !(hints.by_position && hints.is_resumable),
        "says that it goes by position, and that it keeps something: a source is one or the other"
    );
    let context = context();
    let open = |_, cx: &Context| vec![source.open(cx)];
    let node = Node {
        feeds: Vec::new(),
        outputs: 1,
        hints: hints.clone(),
        apply: &open,
        context: context.clone(),
        held: &|_| None,
    };
    if hints.once {
        let whole = Reading::new(vec![source.open(&context)], Way::Turns).read(usize::MAX, 1);
        check_origins(source, &whole[0], None);
        return;
    }
    check_lazy(|| source.open(&context));
    let (whole, ways) = node.whole();
    check_origins(source, &whole[0], Some(&context));
    node.check_plain(&whole, &ways);
    check_released(|| {
        let mut reading = Reading::new(vec![source.open(&context)], Way::Turns);
        reading.read(whole[0].len() / 2, 1);
    });
    if hints.by_position {
        node.check_positions();
    } else if hints.is_resumable {
        check_stopped(&node, &ways, "it keeps what it takes to go on");
    }
}

/// Returns the context of a node that is not the first source of its graph.
fn context() -> Context {
    Context::new(
        "source".into(),
        NUMBER,
        RunInfo::default(),
        0,
        Arc::default(),
    )
}

const NUMBER: u16 = 3;
/// Number of sources that are open at once: enough to tell their files and threads from those that
/// others open meanwhile.
const MANY: usize = 64;
/// Number of times that a check must find the same problem: the counts are those of the whole
/// process, whose other tests open files too, but not each time.
const TRIES: usize = 4;

/// Returns the resource that grew by as much as this many sources would add.
fn grew(before: &Resources) -> Option<&'static str> {
    // Others may have closed some meanwhile.
    let (now, many) = (Resources::now(), MANY / 2);
    if now.descriptors >= before.descriptors + many {
        return Some("files open");
    }
    (now.threads >= before.threads + many).then_some("threads running")
}

/// Returns the problem that each try finds.
fn in_each_try(mut find: impl FnMut() -> Option<&'static str>) -> Option<&'static str> {
    for _ in 1..TRIES {
        find()?;
    }
    find()
}

fn check_lazy<T>(open: impl Fn() -> Items<T>) {
    let problem = in_each_try(|| {
        let before = Resources::now();
        let _opened: Vec<_> = (0..MANY).map(|_| open()).collect();
        grew(&before)
    });
    assert!(
        problem.is_none(),
        "opening it has {} before the first poll",
        problem.unwrap_or_default()
    );
}

fn check_released(read_some: impl Fn()) {
    let problem = in_each_try(|| {
        let before = Resources::now();
        (0..MANY).for_each(|_| read_some());
        let begun = std::time::Instant::now();
        loop {
            match grew(&before) {
                Some(problem) if begun.elapsed().as_millis() > 500 => return Some(problem),
                Some(_) => std::thread::yield_now(),
                None => return None,
            }
        }
    });
    assert!(
        problem.is_none(),
        "dropped half-way, it keeps {}",
        problem.unwrap_or_default()
    );
}

/// Checks origins, and the number of items.
fn check_origins<S: Source>(source: &S, whole: &Outcome<S::Out>, again: Option<&Context>) {
    let mut seen = HashSet::new();
    for (_, origin) in whole.iter().flatten() {
        let number = origin.source();
        assert!(
            number == Some(NUMBER),
            "an origin that is not of this source: of {number:?}, which is {NUMBER}; see `Context::origin`"
        );
        assert!(
            seen.insert(origin.clone()),
            "two items have the origin {origin}"
        );
    }
    if let Some(expected) = source
        .len_hint()
        .filter(|_| whole.iter().all(std::result::Result::is_ok))
    {
        assert_eq!(
            whole.len() as u64,
            expected,
            "its hint of the length is wrong"
        );
    }
    let Some(context) = again else { return };
    let second =
        Reading::new(vec![source.open(&context.in_round(1))], Way::Turns).read(usize::MAX, 1);
    let twice = second
        .iter()
        .flatten()
        .flatten()
        .find(|(_, origin)| seen.contains(origin));
    if let Some((_, origin)) = twice {
        panic!(
            "in another round of a repeat an item has the same origin, {origin}; see `Context::origin`"
        );
    }
}
