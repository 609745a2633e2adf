//! Applies a function to every item, with scratch memory that is made once and reused.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use crate::{
    Arity, BoxError, Chunk, Context, Error, Graph, Hints, Item, Items, Pipe, Result, Rng, lock,
};

/// Applies a function with scratch memory to every item; see [`Graph::try_map_init`].
#[derive(Clone, Debug)]
pub struct MapInit<I, F> {
    init: I,
    f: F,
}

impl<I, F> MapInit<I, F> {
    /// Applies `f` to the result of `init` and each item.
    pub fn new(init: I, f: F) -> Self {
        MapInit { init, f }
    }
}

impl<In, S, Out, A, B, I, F> Pipe<In> for MapInit<I, F>
where
    In: Send + 'static,
    S: Send + 'static,
    Out: Send + 'static,
    A: Into<BoxError>,
    B: Into<BoxError>,
    I: Fn() -> Result<S, A> + Clone + Send + Sync + 'static,
    F: Fn(&mut S, In) -> Result<Out, B> + Clone + Send + Sync + 'static,
{
    type Out = Out;

    fn apply(&self, input: Items<In>, cx: &Context) -> Items<Out> {
        let f = self.f.clone();
        with_scratch(input, cx, self.init.clone(), move |scratch, item| {
            item.try_map(|value| f(scratch, value).map_err(Error::user))
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::One).weighs_by_type(true)
    }
}

/// Applies a function with scratch memory and randomness to every item; see
/// [`Graph::map_init_with_rng`].
#[derive(Clone, Debug)]
pub struct MapInitWithRng<I, F> {
    init: I,
    f: F,
}

impl<I, F> MapInitWithRng<I, F> {
    /// Applies `f` to the result of `init`, each item and its random numbers.
    pub fn new(init: I, f: F) -> Self {
        MapInitWithRng { init, f }
    }
}

impl<In, S, Out, A, B, I, F> Pipe<In> for MapInitWithRng<I, F>
where
    In: Send + 'static,
    S: Send + 'static,
    Out: Send + 'static,
    A: Into<BoxError>,
    B: Into<BoxError>,
    I: Fn() -> Result<S, A> + Clone + Send + Sync + 'static,
    F: Fn(&mut S, In, &mut Rng) -> Result<Out, B> + Clone + Send + Sync + 'static,
{
    type Out = Out;

    fn apply(&self, input: Items<In>, cx: &Context) -> Items<Out> {
        let (f, context) = (self.f.clone(), cx.clone());
        with_scratch(input, cx, self.init.clone(), move |scratch, item| {
            let mut rng = context.rng(item.origin());
            item.try_map(|value| f(scratch, value, &mut rng).map_err(Error::user))
        })
    }
    /// The name that orders and checkpoints know it by.
    fn name(&self) -> String {
        "map_init_random".to_owned()
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::One).weighs_by_type(true)
    }
}

/// Idle scratch memory. Boxed, so that it moves cheaply.
struct ScratchPool<S>(Mutex<Vec<Box<S>>>);

/// Takes one scratch from the node's pool for each chunk, and returns it afterwards: there are as
/// many as chunks are worked on at once, on any worker, and nothing is locked for an item.
fn with_scratch<In, S, Out, A>(
    input: Items<In>,
    cx: &Context,
    init: impl Fn() -> Result<S, A> + Send + 'static,
    f: impl Fn(&mut S, Item<In>) -> Result<Item<Out>> + Send + 'static,
) -> Items<Out>
where
    In: Send + 'static,
    S: Send + 'static,
    Out: Send + 'static,
    A: Into<BoxError>,
{
    let pool: Arc<ScratchPool<S>> = cx.shared(|| ScratchPool(Mutex::default()));
    let context = cx.clone();
    input.each_chunk(cx, move |chunk| {
        let mut idle = lock(&pool.0).pop();
        let mut out = Chunk::with_capacity(chunk.len());
        for item in chunk {
            let item = match item {
                Ok(_) if context.is_cancelled() => break,
                Ok(item) => item,
                Err(error) => {
                    out.push(Err(error));
                    continue;
                }
            };
            let origin = item.origin().clone();
            // A panic may leave the scratch broken: it is dropped with the closure.
            let made = catch_unwind(AssertUnwindSafe(|| {
                let mut scratch = match idle.take() {
                    Some(scratch) => scratch,
                    None => Box::new(init().map_err(Error::user)?),
                };
                let made = f(&mut scratch, item);
                idle = Some(scratch);
                made
            }));
            let made = made.unwrap_or_else(|payload| Err(Error::panic(payload)));
            out.push(made.map_err(|error| error.of(&origin)));
        }
        lock(&pool.0).extend(idle);
        out
    })
}

impl<T: Send + 'static> Graph<T> {
    /// Applies a function to every item, with a scratch value that `init` makes. Such a value (a
    /// decoder, a plan, a buffer) is expensive to make and is used for one item after the other.
    /// The function runs where [`map`](Graph::map) would run it. The equivalent of rayon's
    /// `map_init`.
    ///
    /// **The scratch is a cache, never state.** Workers and timing decide which scratch an item
    /// gets, and what was done with it before; the output must not depend on either. `f` finds the
    /// scratch as the last item left it, also an item that failed, and has to clear contents that
    /// it does not want to see. For a state that goes from item to item see [`scan`](Graph::scan).
    ///
    /// `init` runs on the worker that needs a scratch, when no idle one is left. At most one
    /// scratch therefore lives for each worker, and one for the consumer's thread, which may run
    /// the first items itself; in [processes](Graph::in_processes), one for each worker of each
    /// process. They are dropped when the epoch ends or is dropped. A scratch whose function
    /// panicked is dropped at once.
    ///
    /// # Panics
    /// A panic of either function becomes an error that names the node and the item.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// let lengths = Graph::range(0..4).map_init(String::new, |text, n| {
    ///     text.clear();
    ///     (0..n).for_each(|n| text.push_str(&n.to_string()));
    ///     text.len()
    /// });
    /// assert_eq!(lengths.collect().unwrap(), [0, 1, 2, 3]);
    /// ```
    pub fn map_init<S, U, I, F>(self, init: I, f: F) -> Graph<U>
    where
        S: Send + 'static,
        U: Send + 'static,
        I: Fn() -> S + Clone + Send + Sync + 'static,
        F: Fn(&mut S, T) -> U + Clone + Send + Sync + 'static,
    {
        let init = move || Ok::<S, Error>(init());
        self.pipe(MapInit::new(init, move |scratch: &mut S, value| {
            Ok::<U, Error>(f(scratch, value))
        }))
    }

    /// Does the same as [`map_init`](Graph::map_init), for functions that may fail, including
    /// `init`.
    ///
    /// # Errors
    /// Fails as [`try_map`](Graph::try_map) does. An error of `init` takes the place of the item
    /// that the scratch was made for; the next item tries again.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{BoxError, Graph};
    /// let words = Graph::from_vec(vec!["1", "x"]).try_map_init(
    ///     || datapipes::Ok(Vec::new()),
    ///     |digits: &mut Vec<u32>, word| {
    ///         digits.clear();
    ///         digits.push(word.parse()?);
    ///         Ok::<_, BoxError>(digits[0])
    ///     },
    /// );
    /// assert_eq!(words.collect().unwrap_err().to_string(), "map_init: 0:1: invalid digit found in string");
    /// ```
    pub fn try_map_init<S, U, A, B, I, F>(self, init: I, f: F) -> Graph<U>
    where
        S: Send + 'static,
        U: Send + 'static,
        A: Into<BoxError>,
        B: Into<BoxError>,
        I: Fn() -> Result<S, A> + Clone + Send + Sync + 'static,
        F: Fn(&mut S, T) -> Result<U, B> + Clone + Send + Sync + 'static,
    {
        self.pipe(MapInit::new(init, f))
    }

    /// Does the same as [`map_init`](Graph::map_init), with the random numbers of the item, as in
    /// [`map_with_rng`](Graph::map_with_rng).
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// let noisy = Graph::range(0..3).map_init_with_rng(Vec::new, |noise, n, rng| {
    ///     noise.clear();
    ///     noise.extend((0..n).map(|_| rng.below(10)));
    ///     noise.iter().sum::<u64>()
    /// });
    /// assert_eq!(noisy.clone().collect().unwrap(), noisy.collect().unwrap());
    /// ```
    pub fn map_init_with_rng<S, U, I, F>(self, init: I, f: F) -> Graph<U>
    where
        S: Send + 'static,
        U: Send + 'static,
        I: Fn() -> S + Clone + Send + Sync + 'static,
        F: Fn(&mut S, T, &mut Rng) -> U + Clone + Send + Sync + 'static,
    {
        let init = move || Ok::<S, Error>(init());
        let f = move |scratch: &mut S, value, rng: &mut Rng| Ok::<U, Error>(f(scratch, value, rng));
        self.pipe(MapInitWithRng::new(init, f))
    }
}

#[cfg(test)]
mod tests;
