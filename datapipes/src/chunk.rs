//! Items that travel together, as columns.

use std::iter::FusedIterator;
use std::ops::Range;

use crate::origin::OriginRef;
use crate::{Error, Item, Origin, Result};

/// Items that travel together: a column of values and one of origins, and errors in their places.
///
/// An `Err` takes the place of the item that failed. Most pipes use a chunk only as a collection of
/// `Result<Item<T>>`, which it collects from and iterates over. The columns are for pipes that run
/// over millions of small items: a source's origins are kept as one run, so that a chunk of
/// integers is little more than a `Vec` of them.
#[derive(Debug)]
pub struct Chunk<T> {
    values: Vec<T>,
    origins: Origins,
    /// Errors, each with the number of values before it; in order.
    errors: Vec<(usize, Error)>,
}

/// A column of origins.
#[derive(Clone, Debug)]
enum Origins {
    /// Consecutive items of a source: the first (as returned by [`Origin::to_raw`]) and the number.
    Run(u64, usize),
    List(Vec<Origin>),
}

impl Origins {
    #[inline]
    fn at(&self, place: usize) -> Origin {
        match self {
            Origins::Run(first, _) => Origin::from_raw(first + place as u64),
            Origins::List(list) => list[place].clone(),
        }
    }

    /// Returns the column as a list; a run is turned into one.
    #[inline]
    fn list(&mut self) -> &mut Vec<Origin> {
        if let Origins::Run(first, len) = self {
            let list = (*first..*first + *len as u64)
                .map(Origin::from_raw)
                .collect();
            *self = Origins::List(list);
        }
        match self {
            Origins::List(list) => list,
            Origins::Run(..) => unreachable!("turned into a list above"),
        }
    }
}

impl IntoIterator for Origins {
    type Item = Origin;
    type IntoIter = OriginsIter;

    fn into_iter(self) -> OriginsIter {
        match self {
            Origins::Run(first, _) => OriginsIter::Run(first),
            Origins::List(list) => OriginsIter::List(list.into_iter()),
        }
    }
}

impl<T> Chunk<T> {
    /// Makes an empty chunk, with room for this many items.
    pub fn with_capacity(items: usize) -> Self {
        Chunk {
            values: Vec::with_capacity(items),
            origins: Origins::List(Vec::with_capacity(items)),
            errors: Vec::new(),
        }
    }

    /// Makes a chunk of consecutive items of a source, from `first` on, which must be a source's
    /// item ([`Origin::root`]).
    ///
    /// # Panics
    /// Panics if `first` is a child or was made of several.
    pub fn run(values: Vec<T>, first: Origin) -> Self {
        assert!(first.is_plain_root(), "a run starts at an item of a source");
        let origins = Origins::Run(first.to_raw(), values.len());
        Chunk {
            values,
            origins,
            errors: Vec::new(),
        }
    }

    /// Makes a chunk of values and their origins.
    ///
    /// # Panics
    /// Panics if the numbers of values and origins differ.
    pub fn from_columns(values: Vec<T>, origins: Vec<Origin>) -> Self {
        assert_eq!(values.len(), origins.len(), "each value has an origin");
        Chunk {
            values,
            origins: Origins::List(origins),
            errors: Vec::new(),
        }
    }

    /// Makes a chunk of one error.
    pub fn fail(error: Error) -> Self {
        Chunk {
            values: Vec::new(),
            origins: Origins::List(Vec::new()),
            errors: vec![(0, error)],
        }
    }

    /// Returns the number of items and errors.
    pub fn len(&self) -> usize {
        self.values.len() + self.errors.len()
    }

    /// Returns true if there are neither items nor errors.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the values, without the errors.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// Returns the number of errors.
    pub fn errors(&self) -> usize {
        self.errors.len()
    }

    /// Appends an item or an error.
    pub fn push(&mut self, item: Result<Item<T>>) {
        match item {
            Ok(item) => {
                let (value, origin) = item.into_parts();
                self.values.push(value);
                self.origins.list().push(origin);
            }
            Err(error) => self.errors.push((self.values.len(), error)),
        }
    }

    /// Iterates over the items and errors, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<(Origin, &T), &Error>> {
        let (mut value, mut errors) = (0, self.errors.iter().peekable());
        std::iter::from_fn(move || {
            if let Some((_, error)) = errors.next_if(|(before, _)| *before <= value) {
                return Some(Err(error));
            }
            let found = self.values.get(value)?;
            value += 1;
            Some(Ok((self.origins.at(value - 1), found)))
        })
    }

    /// Returns the values and their origins as two slices of one length: entry `i` of each belongs
    /// to the same item. Errors keep their places. A run of origins becomes a list.
    pub fn columns_mut(&mut self) -> (&mut [T], &mut [Origin]) {
        (&mut self.values, self.origins.list())
    }

    /// Returns the place of each error among the items and errors, ascending.
    pub fn error_places(&self) -> impl Iterator<Item = usize> {
        let errors = self.errors.iter().enumerate();
        errors.map(|(errors, (values, _))| values + errors)
    }

    pub(crate) fn errors_mut(&mut self) -> impl Iterator<Item = &mut Error> {
        self.errors.iter_mut().map(|(_, error)| error)
    }

    /// Returns the values, and the errors with the number of values before each, at these places
    /// among items and errors.
    pub(crate) fn columns(&self, places: Range<usize>) -> (Range<usize>, &[(usize, Error)]) {
        // Error number `e` stands at place `values before it + e`.
        let before = |place: usize| {
            let mut errors = 0;
            while self
                .errors
                .get(errors)
                .is_some_and(|(at, _)| at + errors < place)
            {
                errors += 1;
            }
            errors
        };
        let errors = before(places.start)..before(places.end);
        (
            places.start - errors.start..places.end - errors.end,
            &self.errors[errors],
        )
    }

    /// Returns the origin of this value as a number, if the values from it on are consecutive items
    /// of a source.
    pub(crate) fn run_from(&self, value: usize) -> Option<u64> {
        match &self.origins {
            Origins::Run(first, _) => Some(first + value as u64),
            Origins::List(_) => None,
        }
    }

    /// Returns the origins of some values.
    pub(crate) fn origins(&self, values: Range<usize>) -> impl Iterator<Item = OriginRef<'_>> {
        values.map(|at| match &self.origins {
            Origins::Run(first, _) => OriginRef {
                link: None,
                index: first + at as u64,
            },
            Origins::List(list) => list[at].by_ref(),
        })
    }

    pub(crate) fn set_errors(&mut self, errors: Vec<(usize, Error)>) {
        self.errors = errors;
    }

    /// Splits off the first `items` (or fewer, if the chunk has fewer).
    pub fn split_to(&mut self, items: usize) -> Chunk<T> {
        if items >= self.len() {
            return std::mem::replace(self, Chunk::with_capacity(0));
        }
        // Errors count as items: find how many values and errors are among the first.
        let mut values = items;
        let mut errors = 0;
        for (place, _) in &self.errors {
            if place + errors >= items {
                break;
            }
            errors += 1;
            values = items - errors;
        }
        let rest = self.values.split_off(values);
        let (head, tail) = match &mut self.origins {
            Origins::Run(first, len) => (
                Origins::Run(*first, values),
                Origins::Run(*first + values as u64, *len - values),
            ),
            Origins::List(list) => {
                let tail = list.split_off(values);
                (Origins::List(std::mem::take(list)), Origins::List(tail))
            }
        };
        let mut later = self.errors.split_off(errors);
        later.iter_mut().for_each(|(place, _)| *place -= values);
        let head = Chunk {
            values: std::mem::replace(&mut self.values, rest),
            origins: head,
            errors: std::mem::replace(&mut self.errors, later),
        };
        self.origins = tail;
        head
    }

    /// Applies `f` to every value; origins and errors keep their places. A panic of `f` becomes an
    /// error in the place of its item.
    pub fn map<U>(self, f: impl FnMut(T) -> U) -> Chunk<U> {
        let Chunk {
            values,
            mut origins,
            mut errors,
        } = self;
        let mut out = Vec::with_capacity(values.len());
        let mut rest = values.into_iter();
        let mut f = std::panic::AssertUnwindSafe(f);
        // A panic costs only the item that caused it; the items before and after it are kept, so
        // that a graph gives the same items whatever the size of its chunks.
        while let Err(payload) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let f = &mut f;
            out.extend(rest.by_ref().map(&mut **f));
        })) {
            let place = out.len();
            let origin = origins.list().remove(place);
            let after = errors.partition_point(|(at, _)| *at <= place);
            errors[after..].iter_mut().for_each(|(at, _)| *at -= 1);
            errors.insert(after, (place, Error::panic(payload).of(&origin)));
        }
        Chunk {
            values: out,
            origins,
            errors,
        }
    }

    /// Keeps the values that `keep` accepts, with their origins, and all errors, in order. A panic
    /// of `keep` becomes an error in the place of its item.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        let Chunk {
            values,
            origins,
            errors,
        } = self;
        let len = values.len();
        let mut list = Vec::with_capacity(len);
        // For each panic: its place in the input, the number of values kept before it, and the
        // error.
        let mut panics: Vec<(usize, usize, Error)> = Vec::new();
        // The kept values move to the front; for each error, the number kept before it is counted.
        let (mut place, mut kept) = (0, 0);
        let mut kept_before = Vec::with_capacity(errors.len());
        for end in errors.iter().map(|(at, _)| *at).chain([len]) {
            while let Err(payload) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                // Two loops, so that the common one has nothing to decide but what to keep.
                match &*origins {
                    Origins::Run(first, _) => {
                        while place < end {
                            let at = place;
                            place += 1;
                            if keep(&values[at]) {
                                values.swap(kept, at);
                                list.push(Origin::from_raw(first + at as u64));
                                kept += 1;
                            }
                        }
                    }
                    Origins::List(origins) => {
                        while place < end {
                            let at = place;
                            place += 1;
                            if keep(&values[at]) {
                                values.swap(kept, at);
                                list.push(origins[at].clone());
                                kept += 1;
                            }
                        }
                    }
                }
            })) {
                let origin = origins.at(place - 1);
                panics.push((place - 1, kept, Error::panic(payload).of(&origin)));
            }
            kept_before.push(kept);
        }
        values.truncate(kept);
        let mut all: Vec<(usize, usize, Error)> = std::mem::take(errors)
            .into_iter()
            .zip(kept_before)
            .map(|((at, error), kept)| (at, kept, error))
            .collect();
        all.extend(panics);
        // An error stands before the value at its place; a panic replaces the value, and is after
        // those errors, which the sort leaves in their order.
        all.sort_by_key(|(at, ..)| *at);
        *errors = all
            .into_iter()
            .map(|(_, kept, error)| (kept, error))
            .collect();
        *origins = Origins::List(list);
    }
}

impl<T> Default for Chunk<T> {
    fn default() -> Self {
        Chunk::with_capacity(0)
    }
}

impl<T> FromIterator<Result<Item<T>>> for Chunk<T> {
    fn from_iter<I: IntoIterator<Item = Result<Item<T>>>>(iter: I) -> Self {
        let mut chunk = Chunk::default();
        chunk.extend(iter);
        chunk
    }
}

impl<T> Extend<Result<Item<T>>> for Chunk<T> {
    fn extend<I: IntoIterator<Item = Result<Item<T>>>>(&mut self, iter: I) {
        let iter = iter.into_iter();
        let (low, _) = iter.size_hint();
        self.values.reserve(low);
        self.origins.list().reserve(low);
        iter.for_each(|item| self.push(item));
    }
}

impl<T> IntoIterator for Chunk<T> {
    type Item = Result<Item<T>>;
    type IntoIter = ChunkIter<T>;

    fn into_iter(self) -> ChunkIter<T> {
        ChunkIter {
            place: 0,
            values: self.values.into_iter(),
            origins: self.origins.into_iter(),
            errors: self.errors.into_iter().peekable(),
        }
    }
}

impl OriginsIter {
    /// Moves the next `count` to the end of a list.
    #[inline]
    fn move_to(&mut self, list: &mut Vec<Origin>, count: usize) {
        match self {
            OriginsIter::Run(next) => {
                list.extend((*next..*next + count as u64).map(Origin::from_raw));
                *next += count as u64;
            }
            OriginsIter::List(rest) => list.extend(rest.by_ref().take(count)),
        }
    }
}

/// Iterates over the items and errors of a [`Chunk`], in order.
#[derive(Debug)]
pub struct ChunkIter<T> {
    place: usize,
    values: std::vec::IntoIter<T>,
    origins: OriginsIter,
    errors: std::iter::Peekable<std::vec::IntoIter<(usize, Error)>>,
}

#[derive(Debug)]
enum OriginsIter {
    /// Endless: the values end the iteration.
    Run(u64),
    List(std::vec::IntoIter<Origin>),
}

impl Iterator for OriginsIter {
    type Item = Origin;

    #[inline]
    fn next(&mut self) -> Option<Origin> {
        match self {
            OriginsIter::Run(next) => {
                *next += 1;
                Some(Origin::from_raw(*next - 1))
            }
            OriginsIter::List(list) => list.next(),
        }
    }
}

impl<T> ChunkIter<T> {
    /// Returns the values that are still to come, without the errors among them.
    pub fn values(&self) -> &[T] {
        self.values.as_slice()
    }

    /// Moves the next values and their origins to the ends of two columns, and returns how many: at
    /// most `most`, and none after the next error. If it is fewer than `most`, the iterator goes on
    /// with an error, or is at its end. Costs less than moving items one by one.
    ///
    /// ```
    /// use datapipes::{Chunk, Error, Item, Origin};
    ///
    /// let number = |n| Ok(Item::new(n, Origin::root(0, n)));
    /// let chunk: Chunk<u64> = [number(0), number(1), Err(Error::user("two")), number(3)].into_iter().collect();
    /// let (mut items, mut values, mut origins) = (chunk.into_iter(), Vec::new(), Vec::new());
    /// assert_eq!(items.move_to(1, &mut values, &mut origins), 1);
    /// assert_eq!(items.move_to(9, &mut values, &mut origins), 1);
    /// assert!(items.next().is_some_and(|item| item.is_err()));
    /// assert_eq!(items.move_to(9, &mut values, &mut origins), 1);
    /// assert_eq!(values, [0, 1, 3]);
    /// assert_eq!(origins[2].index(), 3);
    /// ```
    pub fn move_to(
        &mut self,
        most: usize,
        values: &mut Vec<T>,
        origins: &mut Vec<Origin>,
    ) -> usize {
        let before_error = self
            .errors
            .peek()
            .map_or(usize::MAX, |(at, _)| at - self.place);
        let count = most.min(before_error).min(self.values.len());
        values.extend(self.values.by_ref().take(count));
        self.origins.move_to(origins, count);
        self.place += count;
        count
    }
}

impl<T> Iterator for ChunkIter<T> {
    type Item = Result<Item<T>>;

    #[inline]
    fn next(&mut self) -> Option<Result<Item<T>>> {
        if let Some((_, error)) = self.errors.next_if(|(at, _)| *at <= self.place) {
            return Some(Err(error));
        }
        let value = self.values.next()?;
        self.place += 1;
        let origin = self.origins.next().expect("as many origins as values");
        Some(Ok(Item::new(value, origin)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = self.values.len() + self.errors.len();
        (len, Some(len))
    }
}

impl<T> ExactSizeIterator for ChunkIter<T> {}
impl<T> FusedIterator for ChunkIter<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn sample(bad: &[usize], n: usize) -> Chunk<u64> {
        (0..n)
            .map(|i| match bad.contains(&i) {
                true => Err(Error::new(ErrorKind::User, i.to_string())),
                false => Ok(Item::new(i as u64, Origin::root(0, i as u64))),
            })
            .collect()
    }

    fn shown(chunk: Chunk<u64>) -> Vec<String> {
        chunk
            .into_iter()
            .map(|item| match item {
                Ok(item) => {
                    assert_eq!(item.origin().index(), *item);
                    item.to_string()
                }
                Err(error) => format!("!{error}"),
            })
            .collect()
    }

    #[test]
    fn splits_anywhere() {
        for bad in [&[][..], &[0], &[0, 1, 2], &[3, 4], &[9], &[0, 5, 9]] {
            for at in 0..12 {
                let mut rest = sample(bad, 10);
                let head = rest.split_to(at);
                assert_eq!(head.len(), at.min(10));
                let mut all = shown(head);
                all.extend(shown(rest));
                assert_eq!(all, shown(sample(bad, 10)), "{bad:?} at {at}");
            }
        }
        let mut run = Chunk::run(vec![4u64, 5, 6, 7], Origin::root(0, 4));
        assert_eq!(shown(run.split_to(1)), ["4"]);
        assert_eq!(shown(run), ["5", "6", "7"]);
    }

    #[test]
    fn errors_and_panics_keep_their_places() {
        let panicky = |v: u64| {
            if v % 4 == 2 {
                std::panic::resume_unwind(Box::new("two"))
            } else {
                v
            }
        };
        let mapped = sample(&[0, 5, 9], 10).map(panicky);
        let expected = [
            "!0",
            "1",
            "!0:2: panicked: two",
            "3",
            "4",
            "!5",
            "!0:6: panicked: two",
            "7",
            "8",
            "!9",
        ]
        .map(str::to_owned);
        let is = shown(mapped);
        assert_eq!(
            is.iter()
                .map(|s| s.replace("error: ", ""))
                .collect::<Vec<_>>(),
            expected
        );
        let mut kept = sample(&[0, 5, 9], 10);
        kept.retain(|v| panicky(*v) % 2 == 1);
        let is = shown(kept);
        let expected = [
            "!0",
            "1",
            "!0:2: panicked: two",
            "3",
            "!5",
            "!0:6: panicked: two",
            "7",
            "!9",
        ];
        assert_eq!(
            is.iter()
                .map(|s| s.replace("error: ", ""))
                .collect::<Vec<_>>(),
            expected
        );
    }
}
