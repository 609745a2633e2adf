//! Tests of the kit on sources, joins and splits: those of the library pass, and each mistake is
//! found and described.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use super::*;
use crate::items::{Held, HeldPlace};
use crate::pipe::Split;
use crate::pipes::*;
use crate::{Hints, Join, Source};

fn three() -> Vec<Vec<u64>> {
    vec![(0..5).collect(), (10..13).collect(), (20..21).collect()]
}

#[test]
fn joins_of_the_library_keep_the_contract() {
    for inputs in some_of([
        three(),
        vec![vec![], vec![1, 2]],
        vec![vec![], vec![]],
        vec![vec![7]],
    ]) {
        let count = inputs.len();
        check_join(&Concat::new(count), inputs.clone());
        check_join(&Mux::new(count), inputs.clone());
        check_join(&Mux::new(count).stop_at_first(), inputs.clone());
        for (cycle, block) in [(1, 1), (2, 2), (9, 1)] {
            check_join(&Interleave::new(count, cycle, block), inputs.clone());
        }
    }
    check_join(&Zip::new(), (vec![1, 2, 3, 4], vec!["a", "b"]));
    check_join(&Zip::new().strict(), (vec![1, 2], vec!["a", "b", "c"]));
    check_join(
        &Zip::new(),
        (
            vec![1u8, 2, 3],
            vec!["a", "b"],
            (0..9).collect::<Vec<u64>>(),
        ),
    );
}

#[test]
fn splits_of_the_library_keep_the_contract() {
    let numbers = || Vec::from_iter(0..cases(8).max(4) as u64);
    for outputs in some_of([1, 2, 3]) {
        check_split(&Fork::new(outputs), numbers());
        check_split(
            &Demux::new(outputs, move |n: &u64| (n / 2) as usize % outputs),
            numbers(),
        );
    }
    // Room for two, so that some sequences of reading are impossible.
    check_split(&Fork::new(2).buffer(2), numbers());
    check_split(
        &Demux::new(2, |n: &u64| (*n % 2) as usize).buffer(2),
        numbers(),
    );
    // An output that gets nothing; a class that does not exist.
    check_split(&Demux::new(2, |_: &u64| 1), numbers());
    check_split(&Demux::new(2, |n: &u64| (*n % 3) as usize), numbers());
}

fn problem(check: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(check)).expect_err("it passes");
    payload
        .downcast::<String>()
        .map_or_else(|p| p.downcast::<&str>().unwrap().to_string(), |text| *text)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    Nothing,
    Eager,
    OtherOnceMore,
    OriginOfAnother,
    OriginTwice,
    RoundsAlike,
    Length,
    KeepsTooLittle,
    KeepsTooLate,
    SaysPositions,
    SaysBoth,
    LeavesFilesOpen,
}

/// Counts to ten, with one mistake.
struct Numbers(Wrong, Arc<Mutex<Vec<File>>>, AtomicUsize);

impl Numbers {
    fn new(wrong: Wrong) -> Self {
        Numbers(wrong, Arc::default(), AtomicUsize::new(0))
    }
}

impl Source for Numbers {
    type Out = u64;

    fn open(&self, cx: &Context) -> Items<u64> {
        let (wrong, cx, left_open) = (self.0, cx.clone(), self.1.clone());
        let file = || File::open("/dev/null").unwrap();
        let opened = (wrong == Wrong::Eager).then(file);
        let opening = self.2.fetch_add(1, Ordering::SeqCst) as u64;
        let first: u64 = cx.restored().unwrap().unwrap_or(0);
        Items::generate(async move |out| {
            let _held = opened;
            if wrong == Wrong::LeavesFilesOpen {
                left_open.lock().unwrap().push(file());
            }
            for n in first..10 {
                out.snapshot(&cx, || match wrong {
                    Wrong::KeepsTooLittle => 0,
                    Wrong::KeepsTooLate => n + 1,
                    _ => n,
                });
                let origin = match wrong {
                    Wrong::OriginOfAnother => Origin::root(0, n),
                    Wrong::OriginTwice => cx.origin(n / 2),
                    Wrong::RoundsAlike => Origin::root(3, n),
                    _ => cx.origin(n),
                };
                let value = if wrong == Wrong::OtherOnceMore {
                    n + opening
                } else {
                    n
                };
                out.emit(Ok(Item::new(value, origin))).await;
            }
            out.snapshot(&cx, || 10u64);
        })
    }
    fn len_hint(&self) -> Option<u64> {
        Some(if self.0 == Wrong::Length { 11 } else { 10 })
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .is_resumable(self.0 != Wrong::SaysPositions)
            .by_position(matches!(self.0, Wrong::SaysPositions | Wrong::SaysBoth))
    }
}

#[test]
fn mistakes_of_sources_are_found() {
    check_source(&Numbers::new(Wrong::Nothing));
    let mut mistakes = vec![
        (
            Wrong::OtherOnceMore,
            "a second one, beside a first, gives something else",
        ),
        (
            Wrong::OriginOfAnother,
            "an origin that is not of this source",
        ),
        (Wrong::OriginTwice, "two items have the origin 3:0"),
        (
            Wrong::RoundsAlike,
            "in another round of a repeat an item has the same origin",
        ),
        (Wrong::Length, "its hint of the length is wrong"),
        (
            Wrong::KeepsTooLittle,
            "says that it keeps what it takes to go on, but stopped after",
        ),
        (
            Wrong::KeepsTooLate,
            "says that it keeps what it takes to go on, but stopped after",
        ),
        (Wrong::SaysPositions, "says that it goes by position; of"),
        (
            Wrong::SaysBoth,
            "says that it goes by position, and that it keeps something",
        ),
    ];
    if cfg!(target_os = "linux") {
        mistakes.push((
            Wrong::Eager,
            "opening it has files open before the first poll",
        ));
        mistakes.push((
            Wrong::LeavesFilesOpen,
            "dropped half-way, it keeps files open",
        ));
    }
    for (wrong, words) in mistakes {
        let text = problem(|| check_source(&Numbers::new(wrong)));
        assert!(text.contains(words), "{wrong:?}: {text}");
    }
}

#[test]
fn a_source_without_end_is_no_endless_check() {
    let text = problem(|| check_source(&FromIterator::new(|| 0u64..)));
    assert!(text.contains("gives more than 4096 items"), "{text}");
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    Eager,
    Remembers,
    Chunks,
    LosesErrors,
    DelaysErrors,
    DoublesErrors,
    ErrorCostsItem,
    SwallowsPanics,
    Length,
    KeepsInputs,
    KeepsTooLittle,
}

/// Concatenates its inputs, with one mistake.
struct Behind(Mistake, AtomicUsize, Mutex<Vec<Items<u64>>>);

impl Behind {
    fn new(mistake: Mistake) -> Self {
        Behind(mistake, AtomicUsize::new(0), Mutex::default())
    }
}

impl Join<Vec<u64>> for Behind {
    type Out = u64;

    fn join(&self, inputs: Vec<Items<u64>>, cx: &Context) -> Items<u64> {
        use Mistake::*;
        let (mistake, cx) = (self.0, cx.clone());
        let mut inputs: std::collections::VecDeque<_> = inputs.into();
        if mistake == Eager {
            let _ = poll_once(&mut inputs[0]);
        }
        if mistake == KeepsInputs {
            self.2.lock().unwrap().extend(inputs.pop_back());
        }
        let applied = self.1.fetch_add(1, Ordering::SeqCst) as u64;
        let (first, mut sum) = cx.restored().unwrap().unwrap_or((0u64, 0u64));
        inputs.drain(..first as usize);
        Items::generate(async move |out| {
            let (mut at, mut late) = (first, Vec::new());
            while let Some(mut input) = inputs.pop_front() {
                if mistake == SwallowsPanics {
                    // Panics raised in here are lost.
                    let mut all = Vec::new();
                    let reading = AssertUnwindSafe(|| {
                        while let Some(item) = block_on(futures::StreamExt::next(&mut input)) {
                            all.push(item);
                        }
                    });
                    let _ = catch_unwind(reading);
                    for item in all {
                        out.emit(item).await;
                    }
                    continue;
                }
                loop {
                    out.snapshot(&cx, || {
                        (at, if mistake == KeepsTooLittle { 0 } else { sum })
                    });
                    let most = if mistake == Chunks { out.wanted() } else { 1 };
                    let Some(chunk) = input.next_chunk(most).await else {
                        break;
                    };
                    if chunk.len() < most && mistake == Chunks {
                        break;
                    }
                    for item in chunk {
                        match (item, mistake) {
                            (Err(_), LosesErrors) => {}
                            (Err(error), DelaysErrors) => late.push(error),
                            (Err(_), DoublesErrors) => {
                                for _ in 0..2 {
                                    out.emit(Err(Error::new(ErrorKind::User, MARK))).await;
                                }
                            }
                            (Err(error), ErrorCostsItem) => {
                                out.emit(Err(error)).await;
                                drop(input.next_chunk(1).await);
                            }
                            (Ok(item), _) => {
                                sum += *item + if mistake == Remembers { applied } else { 0 };
                                let now = sum;
                                let place = |_| if mistake == KeepsTooLittle { now } else { sum };
                                out.emit(Ok(item.map(place))).await;
                            }
                            (error, _) => out.emit(error).await,
                        }
                    }
                }
                at += 1;
            }
            for error in late {
                out.emit(Err(error)).await;
            }
        })
    }
    fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64> {
        let known: u64 = inputs.iter().flatten().sum();
        (self.0 == Mistake::Length || !inputs.contains(&None)).then_some(known)
    }
    fn hints(&self) -> Hints {
        // Adds up, so an error in place of an item would give another sum.
        let selects = self.0 == Mistake::ErrorCostsItem;
        Hints::default()
            .ignores_order(selects)
            .selects(selects)
            .is_resumable(true)
    }
}

#[test]
fn mistakes_of_joins_are_found() {
    use Mistake::*;
    check_join(&Behind::new(None), three());
    let mistakes = [
        (Eager, "making its outputs polls its inputs"),
        (
            Remembers,
            "a second one, beside a first, gives something else",
        ),
        (
            Chunks,
            "asked for other amounts at once, gives something else",
        ),
        (
            LosesErrors,
            "an error in input 0, before its item 0, was taken, and did not come out",
        ),
        (
            DelaysErrors,
            "an error in input 0, before its item 0, came out of its place",
        ),
        (
            DoublesErrors,
            "an error in input 0, before its item 0, came out 2 times",
        ),
        (
            ErrorCostsItem,
            "an error in input 0, before its item 0, costs another",
        ),
        (SwallowsPanics, "a panic of input 0 is swallowed"),
        (
            Length,
            "its hint of the length is wrong, for inputs of [None, Some(3), Some(1)]",
        ),
        (KeepsInputs, "keeps input Some(2) alive"),
        (
            KeepsTooLittle,
            "says that it is resumable, but stopped after",
        ),
    ];
    for (mistake, words) in mistakes {
        let text = problem(|| check_join(&Behind::new(mistake), three()));
        assert!(text.contains(words), "{mistake:?}: {text}");
    }
    // An order by timing is not allowed.
    let text = problem(|| check_join(&GreedyJoin::new(3), three()));
    assert!(
        text.contains("an input that pauses, gives something else"),
        "{text}"
    );
}

/// Deals items out by turns, with one mistake.
struct Deals(Mistake);

/// Items that wait for each output.
struct Dealt {
    input: Option<Items<u64>>,
    queues: [std::collections::VecDeque<Result<Item<u64>>>; 2],
    turn: u64,
}

struct DealtTo {
    at: usize,
    dealt: Arc<Mutex<Dealt>>,
    mistake: Mistake,
    cx: Context,
}

impl Chunks<u64> for DealtTo {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, _: Demand) -> Poll<Option<Chunk<u64>>> {
        let (mut this, mistake) = (self.dealt.lock().unwrap(), self.mistake);
        loop {
            if let Some(item) = this.queues[self.at].pop_front() {
                return Poll::Ready(Some([item].into_iter().collect()));
            }
            // Items that wait for another output would be lost.
            if this.queues.iter().all(|queue| queue.is_empty()) {
                let turn = this.turn;
                self.cx.snapshot(|| {
                    if mistake == Mistake::KeepsTooLittle {
                        0
                    } else {
                        turn
                    }
                });
            }
            let Some(input) = &mut this.input else {
                return Poll::Ready(None);
            };
            let next = std::task::ready!(Pin::new(input).poll_next(cx));
            let to = (this.turn % 2) as usize;
            match next {
                None => this.input = None,
                Some(Err(_)) if mistake == Mistake::LosesErrors => {}
                Some(Err(error)) => this.queues[0].push_back(Err(error)),
                // Deals by the output that asks.
                Some(item) if mistake == Mistake::Remembers => this.queues[self.at].push_back(item),
                Some(item) => {
                    this.turn += 1;
                    this.queues[to].push_back(item);
                }
            }
        }
    }
}

impl Split<u64> for Deals {
    type Out = u64;

    fn outputs(&self) -> usize {
        if self.0 == Mistake::Chunks { 3 } else { 2 }
    }
    fn split(&self, mut input: Items<u64>, cx: &Context) -> Vec<Items<u64>> {
        let mistake = self.0;
        if mistake == Mistake::Eager {
            let _ = poll_once(&mut input);
        }
        let turn = cx.restored().unwrap().unwrap_or(0u64);
        let dealt = Arc::new(Mutex::new(Dealt {
            input: Some(input),
            queues: Default::default(),
            turn,
        }));
        let output = |at| {
            let (dealt, cx) = (dealt.clone(), cx.clone());
            Items::from_chunks(DealtTo {
                at,
                dealt,
                mistake,
                cx,
            })
        };
        vec![output(0), output(1)]
    }
    fn hints(&self) -> Hints {
        Hints::default().is_resumable(matches!(self.0, Mistake::KeepsTooLittle | Mistake::None))
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        (self.0 == Mistake::Length).then_some(input / 2)
    }
}

#[test]
fn mistakes_of_splits_are_found() {
    use Mistake::*;
    let numbers = || Vec::from_iter(0..9u64);
    check_split(&Deals(None), numbers());
    let mistakes = [
        (Eager, "making its outputs polls its inputs"),
        (
            Chunks,
            "says that it has 3 outputs, and makes another number",
        ),
        (Remembers, "read in another sequence"),
        (LosesErrors, "was taken, and did not come out"),
        (
            Length,
            "its hint of the length is wrong, for inputs of [Some(9)]",
        ),
        (
            KeepsTooLittle,
            "says that it is resumable, but stopped after",
        ),
    ];
    for (mistake, words) in mistakes {
        let text = problem(|| check_split(&Deals(mistake), numbers()));
        assert!(text.contains(words), "{mistake:?}: {text}");
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Untold {
    Nothing,
    /// Holds this many places from its position back, as if no error had come between.
    CountsBack,
    /// Holds items that it has not taken.
    NotTaken,
    OutputWithoutPlaces,
    ErrorsWithoutPlaces,
    OneForTwo,
    PlacesOfTheNext,
    LeftOut,
    OriginOfTheFirst,
    Decides,
    OtherStream,
}

/// Makes batches of three, with one mistake.
struct Threes(Untold);

impl Pipe<u64> for Threes {
    type Out = Vec<u64>;

    fn apply(&self, mut input: Items<u64>, cx: &Context) -> Items<Vec<u64>> {
        use Untold::*;
        let (mistake, cx) = (self.0, cx.clone());
        let kept: Option<Vec<u64>> = cx.restored().unwrap();
        let mut known = kept.unwrap_or_default();
        if mistake == OtherStream {
            input = Items::from_stream(input);
        }
        Items::generate(async move |out| {
            let mut batch: Vec<Held<u64>> = Vec::new();
            loop {
                out.snapshot_with(&cx, |held| {
                    let (next, len) = (cx.position(0), batch.len() as u64);
                    match mistake {
                        CountsBack if cx.lineage().is_none() => {
                            held.hold(next.saturating_sub(len)..next)
                        }
                        NotTaken => held.hold(next..next + len),
                        _ => {}
                    }
                    known.clone()
                });
                let next = match mistake {
                    ErrorsWithoutPlaces => {
                        let Some(item) = out.next_from(&mut input).await else {
                            break;
                        };
                        out.emit(Ok(item.map(|n| vec![n]))).await;
                        continue;
                    }
                    // Holds nothing but the items that it records itself.
                    CountsBack if cx.lineage().is_none() => {
                        out.next_from(&mut input).await.map(|item| {
                            Held::new(item, HeldPlace::next(&Context::default(), &input).unwrap())
                        })
                    }
                    _ => out.hold_from(&cx, &mut input).await,
                };
                let ended = next.is_none();
                match next {
                    Some(item) if mistake == LeftOut && **item % 4 == 1 => drop(item),
                    Some(item) if mistake == Decides && known.contains(&item) => {
                        cx.leave_out([item])
                    }
                    next => {
                        known.extend(
                            next.iter()
                                .filter(|_| mistake == Decides)
                                .map(|item| ***item),
                        );
                        batch.extend(next);
                    }
                }
                if batch.len() == 3 || (ended && !batch.is_empty()) {
                    let (mut items, mut places): (Vec<_>, Vec<_>) =
                        batch.drain(..).map(Held::into_parts).unzip();
                    if mistake == PlacesOfTheNext && cx.lineage().is_some() {
                        places.rotate_left(1);
                        places.pop();
                    }
                    match mistake {
                        OutputWithoutPlaces => out.emit(Ok(Item::gather(items, 0))).await,
                        OriginOfTheFirst => {
                            let first = items.remove(0);
                            let all = [
                                &[*first],
                                &*items.iter().map(|item| **item).collect::<Vec<_>>(),
                            ]
                            .concat();
                            out.emit_of(places, Ok(first.map(|_| all))).await;
                        }
                        OneForTwo => {
                            cx.lineage().inspect(|lineage| lineage.gave(Vec::new()));
                            out.emit_of(places, Ok(Item::gather(items, 0))).await;
                        }
                        _ => out.emit_of(places, Ok(Item::gather(items, 0))).await,
                    }
                }
                if ended {
                    return;
                }
            }
        })
    }
    fn hints(&self) -> Hints {
        Hints::any_order().is_resumable(true).lineage(true)
    }
}

#[test]
fn a_pipe_that_does_not_say_rightly_what_it_holds_or_gave_is_found_out() {
    use Untold::*;
    let numbers = || Vec::from_iter(0..8u64);
    check_pipe(&Threes(Nothing), numbers());
    let mistakes = [
        (CountsBack, "says that it is resumable, but stopped after"),
        (NotTaken, "says that it holds what is at place"),
        (
            OutputWithoutPlaces,
            "but has named those of 0 outputs, and given 1 items and errors",
        ),
        (
            ErrorsWithoutPlaces,
            "but has named those of 0 outputs, and given 1 items and errors",
        ),
        (
            OneForTwo,
            "but has named those of 2 outputs, and given 1 items and errors",
        ),
        (
            PlacesOfTheNext,
            "is made of something else than its origin names",
        ),
        (
            LeftOut,
            "at its end there are some of which it said nothing",
        ),
        (
            OriginOfTheFirst,
            "is made of something else than its origin names",
        ),
        (Decides, "says that it is resumable, but stopped after"),
        (OtherStream, "a stream that is not its input"),
    ];
    for (mistake, words) in mistakes {
        let text = problem(|| check_pipe(&Threes(mistake), numbers()));
        assert!(text.contains(words), "{mistake:?}: {text}");
    }
}

/// Adds one to each number that comes after some errors of the input.
struct WrongAfterErrors(usize);

impl Pipe<u64> for WrongAfterErrors {
    type Out = u64;

    fn apply(&self, mut input: Items<u64>, _: &Context) -> Items<u64> {
        let mut left = self.0;
        Items::generate(async move |out| {
            while let Some(item) = futures::StreamExt::next(&mut input).await {
                left -= usize::from(item.is_err() && left > 0);
                out.emit(item.map(|item| item.map(|n| n + u64::from(left == 0))))
                    .await;
            }
        })
    }
}

#[test]
fn a_pipe_that_gives_other_values_after_errors_is_found_out() {
    let numbers = || (0..10).collect();
    let one = problem(|| check_pipe(&WrongAfterErrors(1), numbers()));
    assert!(
        one.contains("an error in the input, before item 0"),
        "{one}"
    );
    let two = problem(|| check_pipe(&WrongAfterErrors(2), numbers()));
    assert!(two.contains("as many errors as items"), "{two}");
}
