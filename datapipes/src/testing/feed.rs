//! Inputs of the nodes that the kit checks.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::{Gauge, MARK, Pausing};
use crate::graph::AnyItems;
use crate::pipe::Inputs;
use crate::{Error, ErrorKind, Item, Items, Origin, Wanted};

/// The inputs of a [`Join`](crate::Join), as arguments of [`check_join`](super::check_join):
/// `(Vec<A>, Vec<B>)`, three of them, or `Vec<Vec<T>>`.
pub trait JoinInputs {
    /// Their item types.
    type Items: Inputs;
    #[doc(hidden)]
    fn feeds(self) -> Vec<Feed>;
}

impl<A: Clone + Send + 'static, B: Clone + Send + 'static> JoinInputs for (Vec<A>, Vec<B>) {
    type Items = (A, B);
    fn feeds(self) -> Vec<Feed> {
        vec![Feed::new(self.0, 0), Feed::new(self.1, 1)]
    }
}

impl<A, B, C> JoinInputs for (Vec<A>, Vec<B>, Vec<C>)
where
    A: Clone + Send + 'static,
    B: Clone + Send + 'static,
    C: Clone + Send + 'static,
{
    type Items = (A, B, C);
    fn feeds(self) -> Vec<Feed> {
        vec![
            Feed::new(self.0, 0),
            Feed::new(self.1, 1),
            Feed::new(self.2, 2),
        ]
    }
}

impl<T: Clone + Send + 'static> JoinInputs for Vec<Vec<T>> {
    type Items = Vec<T>;
    fn feeds(self) -> Vec<Feed> {
        (0u16..)
            .zip(self)
            .map(|(source, values)| Feed::new(values, source))
            .collect()
    }
}

/// Opens one input of a node, any number of times.
pub struct Feed {
    len: usize,
    open: Box<dyn Fn(&Opening) -> AnyItems>,
}

/// The way in which an input is opened.
#[derive(Clone)]
pub(super) struct Opening {
    /// Contents of the input: its items, by number, and errors between them.
    pub sequence: Vec<Option<usize>>,
    /// Wanted part of the contents.
    pub wanted: Wanted,
    /// True if a panic follows.
    pub panics: bool,
    /// Seed of the pattern of pauses, if there are any.
    pub pausing: Option<u64>,
    pub gauge: Option<Gauge>,
    pub taken: Option<Arc<AtomicU64>>,
}

impl Opening {
    /// Opens the whole sequence.
    pub fn all(sequence: Vec<Option<usize>>) -> Self {
        let wanted = Wanted::new(Vec::new(), 0);
        Opening {
            sequence,
            wanted,
            panics: false,
            pausing: None,
            gauge: None,
            taken: None,
        }
    }
}

impl Feed {
    /// Makes numbered items of a source.
    pub(super) fn new<T: Clone + Send + 'static>(values: Vec<T>, source: u16) -> Feed {
        let item = move |values: &[T], at: usize| {
            Item::new(values[at].clone(), Origin::root(source, at as u64))
        };
        let len = values.len();
        let open = move |opening: &Opening| -> AnyItems {
            let Opening {
                sequence,
                wanted,
                panics,
                pausing,
                gauge,
                taken,
            } = opening;
            let given = wanted.positions(sequence.len() as u64).map(|place| {
                match sequence[place as usize] {
                    Some(at) => Ok(item(&values, at)),
                    None => Err(Error::new(ErrorKind::User, MARK)),
                }
            });
            let given: Vec<_> = given.collect();
            let panic = panics.then(|| std::iter::repeat_with(|| panic!("{MARK}")).take(2));
            let mut items =
                Items::from_results(given.into_iter().chain(panic.into_iter().flatten()));
            if let Some(seed) = *pausing {
                items = Items::from_chunks(Pausing {
                    items,
                    seed,
                    ready: false,
                });
            }
            if let Some(gauge) = gauge {
                items = Items::from_chunks(gauge.watch(items));
            }
            Box::new(items.counted(taken.clone(), None))
        };
        Feed {
            len,
            open: Box::new(open),
        }
    }

    /// Returns its items without errors.
    pub(super) fn clean(&self) -> Vec<Option<usize>> {
        (0..self.len).map(Some).collect()
    }

    /// Returns its items with errors before these.
    pub(super) fn failing(&self, before: &[usize]) -> Vec<Option<usize>> {
        let mut sequence = Vec::new();
        for at in 0..=self.len {
            sequence.extend(before.iter().filter(|&&error| error == at).map(|_| None));
            sequence.extend((at < self.len).then_some(Some(at)));
        }
        sequence
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn open(&self, opening: &Opening) -> AnyItems {
        (self.open)(opening)
    }
}

opaque_debug!(Feed { len });
