//! Applies a function to every item.

use std::fmt::Display;

use crate::{Arity, BoxError, Context, Error, Graph, Hints, Items, Pipe, Result, Rng};

/// Applies a function to every item; see [`Graph::map`].
#[derive(Clone, Debug)]
pub struct Map<F>(F);

impl<F> Map<F> {
    /// Applies `f`.
    pub fn new(f: F) -> Self {
        Map(f)
    }
}

impl<In, Out, F> Pipe<In> for Map<F>
where
    In: Send + 'static,
    Out: Send + 'static,
    F: Fn(In) -> Out + Clone + Send + Sync + 'static,
{
    type Out = Out;

    fn apply(&self, input: Items<In>, cx: &Context) -> Items<Out> {
        let f = self.0.clone();
        input.each_chunk(cx, move |chunk| chunk.map(&f))
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::One).weighs_by_type(true)
    }
}

/// Applies a function that may fail to every item; see [`Graph::try_map`].
#[derive(Clone, Debug)]
pub struct TryMap<F>(F);

impl<F> TryMap<F> {
    /// Applies `f`.
    pub fn new(f: F) -> Self {
        TryMap(f)
    }
}

impl<In, Out, E, F> Pipe<In> for TryMap<F>
where
    In: Send + 'static,
    Out: Send + 'static,
    E: Into<BoxError>,
    F: Fn(In) -> Result<Out, E> + Clone + Send + Sync + 'static,
{
    type Out = Out;

    fn apply(&self, input: Items<In>, cx: &Context) -> Items<Out> {
        let f = self.0.clone();
        input.each(cx, move |item| {
            Some(item.try_map(|value| f(value).map_err(Error::user)))
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::One).weighs_by_type(true)
    }
}

/// Applies a function with randomness, which may fail, to every item; see
/// [`Graph::try_map_with_rng`].
///
/// A crate with steps of its own, such as those of images and audio, gives each a kind and settings,
/// by which the plan and checkpoints know it:
/// ```
/// use datapipes::{Graph, pipes::MapWithRng};
///
/// fn scale(graph: Graph<u64>, by: u64) -> Graph<u64> {
///     let step = MapWithRng::new(move |n, _: &mut _| datapipes::Ok(n * by)).kind("scale");
///     graph.pipe(step.settings(by).problem((by == 0).then_some("all would be 0")))
/// }
/// assert_eq!(scale(Graph::range(0..3), 2).collect()?, [0, 2, 4]);
/// assert!(scale(Graph::range(0..3), 0).collect().is_err());
/// # datapipes::Ok(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct MapWithRng<F> {
    f: F,
    kind: Option<&'static str>,
    settings: String,
    problem: Option<String>,
}

impl<F> MapWithRng<F> {
    /// Applies `f`.
    pub fn new(f: F) -> Self {
        MapWithRng {
            f,
            kind: None,
            settings: String::new(),
            problem: None,
        }
    }

    setters! {
        /// Sets the kind of step, which names its nodes: the method that adds it.
        kind(kind: &'static str) => kind = Some(kind);

        /// Sets the text of the settings, which a resumed epoch compares.
        settings(settings: impl Display) => settings = settings.to_string();

        /// Refuses the graph if there is a problem with the settings.
        problem(problem: Option<impl Display>) => problem = problem.map(|problem| problem.to_string());
    }
}

impl<In, Out, E, F> Pipe<In> for MapWithRng<F>
where
    In: Send + 'static,
    Out: Send + 'static,
    E: Into<BoxError>,
    F: Fn(In, &mut Rng) -> Result<Out, E> + Clone + Send + Sync + 'static,
{
    type Out = Out;

    fn apply(&self, input: Items<In>, cx: &Context) -> Items<Out> {
        let (f, context) = (self.f.clone(), cx.clone());
        input.each(cx, move |item| {
            let mut rng = context.rng(item.origin());
            Some(item.try_map(|value| f(value, &mut rng).map_err(Error::user)))
        })
    }
    fn name(&self) -> String {
        self.kind.unwrap_or("map_random").to_owned()
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .arity(Arity::One)
            .weighs_by_type(true)
            .settings(&self.settings)
            .problem(self.problem.as_deref())
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Applies a function to every item.
    ///
    /// The function runs on the CPU workers, on many items at once, and order is kept. Neighbouring
    /// steps of this kind run as one piece of work. Use [`try_map`](Graph::try_map) for a function
    /// that may fail, [`map_with_rng`](Graph::map_with_rng) for augmentation and
    /// [`map_async`](Graph::map_async) for a function that waits.
    ///
    /// # Panics
    /// A panic of the function becomes an error that names the node and the item.
    ///
    /// # Examples
    /// ```
    /// let squares = datapipes::Graph::range(0..4).map(|n| n * n);
    /// assert_eq!(squares.collect().unwrap(), [0, 1, 4, 9]);
    /// ```
    pub fn map<U, F>(self, f: F) -> Graph<U>
    where
        U: Send + 'static,
        F: Fn(T) -> U + Clone + Send + Sync + 'static,
    {
        self.pipe(Map::new(f))
    }

    /// Applies a function that may fail to every item, where [`map`](Graph::map) would run it.
    ///
    /// A closure with `?` in it must name its error type at the end:
    /// [`datapipes::Ok(value)`](crate::Ok) if only errors of this library pass, `Ok::<_,
    /// BoxError>(value)` if any do.
    ///
    /// # Errors
    /// An error of the function takes the item's place, with the names of node and item added; the
    /// loader's [`OnError`](crate::OnError) decides what follows.
    ///
    /// # Examples
    /// ```
    /// let numbers = datapipes::Graph::from_vec(vec!["1", "two"]).try_map(|text| text.parse::<i32>());
    /// let error = numbers.collect().unwrap_err();
    /// assert_eq!(error.to_string(), "try_map: 0:1: invalid digit found in string");
    /// ```
    pub fn try_map<U, E, F>(self, f: F) -> Graph<U>
    where
        U: Send + 'static,
        E: Into<BoxError>, // With `?` in it a closure ends in `datapipes::Ok(..)`, or `Ok::<_, BoxError>(..)`.
        F: Fn(T) -> Result<U, E> + Clone + Send + Sync + 'static,
    {
        self.pipe(TryMap::new(f))
    }

    /// Applies a function with randomness to every item, where [`map`](Graph::map) would run it:
    /// augmentation.
    ///
    /// The [`Rng`] is keyed by (seed, epoch, node, item), so the same item gets the same numbers on
    /// any worker, in any order; and other numbers in another epoch.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// let noisy = Graph::range(0..3).map_with_rng(|n, rng| n * 10 + rng.below(10));
    /// assert_eq!(noisy.clone().collect().unwrap(), noisy.collect().unwrap());
    /// ```
    pub fn map_with_rng<U, F>(self, f: F) -> Graph<U>
    where
        U: Send + 'static,
        F: Fn(T, &mut Rng) -> U + Clone + Send + Sync + 'static,
    {
        self.pipe(MapWithRng::new(move |value, rng: &mut Rng| {
            Ok::<U, Error>(f(value, rng))
        }))
    }

    /// Does the same as [`map_with_rng`](Graph::map_with_rng), for a function that may fail.
    ///
    /// # Errors
    /// Fails as [`try_map`](Graph::try_map) does.
    ///
    /// # Examples
    /// ```
    /// let cut = datapipes::Graph::from_vec(vec!["abcdef", ""]).try_map_with_rng(|text, rng| match text.len() {
    ///     0 => Err("no text"),
    ///     len => Ok(&text[rng.below(len as u64) as usize..]),
    /// });
    /// let error = cut.collect().unwrap_err();
    /// assert_eq!(error.to_string(), "map_random: 0:1: no text");
    /// ```
    pub fn try_map_with_rng<U, E, F>(self, f: F) -> Graph<U>
    where
        U: Send + 'static,
        E: Into<BoxError>, // With `?` in it a closure ends in `datapipes::Ok(..)`, or `Ok::<_, BoxError>(..)`.
        F: Fn(T, &mut Rng) -> Result<U, E> + Clone + Send + Sync + 'static,
    {
        self.pipe(MapWithRng::new(f))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn keep_the_contract() {
        testing::check_pipe(&Map::new(|n: u64| n * 2), (0..20).collect());
        testing::check_pipe(
            &TryMap::new(|n: u64| if n == 7 { Err("seven") } else { Ok(n) }),
            (0..20).collect(),
        );
        let noisy = |n: u64, rng: &mut Rng| Ok::<_, Error>(n + rng.below(9));
        testing::check_pipe(&MapWithRng::new(noisy), (0..20).collect());
    }

    #[test]
    fn a_panic_names_node_and_item_and_costs_one_item() {
        let panics = Map::new(|n: u64| if n == 3 { panic!("three") } else { n });
        let items = testing::numbered(&[1, 2, 3, 4]).into_iter().map(Ok);
        let out = testing::collect(panics.apply(
            Items::from_results(items.collect::<Vec<_>>()),
            &Context::default(),
        ));
        let shown: Vec<String> = out
            .into_iter()
            .map(|r| r.map_or_else(|e| e, |(v, _)| v.to_string()))
            .collect();
        assert_eq!(shown, ["1", "2", "pipe: 0:2: panicked: three", "4"]);
    }
}
