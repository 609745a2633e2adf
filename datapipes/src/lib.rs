//! Composable, deterministic data loading as a typed dataflow graph.
//!
//! A [`Graph`] *describes* where samples come from and what happens to them. A [`DataLoader`]
//! checks the graph, plans where each part runs, and runs it on all cores, epoch after epoch; a
//! [`for` loop](Epoch#examples) or an [async stream](Epoch) takes the batches.
//!
//! ```
//! use datapipes::{DataLoader, Graph};
//!
//! let graph = Graph::range(0..1000)                // a source
//!     .shuffle(1000)                               // seeded, reproducible
//!     // Augmentation: the generator belongs to the sample.
//!     .map_with_rng(|n, rng| n * 10 + rng.below(10))
//!     .batch(64)
//!     .collate();                                  // one tensor a batch
//!
//! let loader = DataLoader::builder(graph).seed(42).build()?;
//! for epoch in 0..3 {
//!     for batch in loader.epoch(epoch) {
//!         assert!(batch?.shape()[0] <= 64);
//!     }
//! }
//! println!("{}", loader.explain());                // the plan, as a tree
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - All built-in steps are methods of [`Graph`]; their types, with the rarer settings, are in
//!   [`pipes`].
//! - Data that is read by index or key, in an order decided before anything is read (a global
//!   shuffle, splits, samplers): [`Indexed`] and [`index`].
//! - Workers, order, ranks, memory, error policy: [`loader::Builder`] and [`OnError`].
//! - The next batch on the GPU while a step is computed: [`DataLoader::prefetch_to_device`].
//! - Figures and the bottleneck: [`DataLoader::stats`] and [`DataLoader::explain`].
//! - Requirements on a value that is sent to another process: [`Wire`](trait@Wire).
//! - Requirements on a sample that becomes part of a batch: [`Collate`]; the type of a batch:
//!   [`Tensor`].
//! - Steps of your own: [`Graph::map`] and its siblings for a closure, [`Graph::through`] for a
//!   function from stream to stream, [`Pipe`] if the executor should spread it over workers;
//!   [`Source`] for data from elsewhere.
//! - Files, stores (HTTP, S3, …), archives and WebDataset samples are in the crate `datapipes-io`,
//!   data sets in databases in `datapipes-tables`, pictures in `datapipes-image`,
//!   recordings in `datapipes-audio`, tokenizers and
//!   packing in `datapipes-text`; `datapipes-burn` and `datapipes-candle` give batches to those
//!   frameworks. The program `datapipes` of `datapipes-cli` prints files, tokenizes texts
//!   and watches running loaders.
//!
//! # When it does not compile
//! The usual compiler messages, and their cures:
//!
//! | message | cure |
//! |---|---|
//! | `E0283: type annotations needed`, at an `Ok(..)`: `cannot satisfy _: Into<Box<dyn Error + Send + Sync>>` | The closure uses `?`, and its error type is not known. End it in [`datapipes::Ok(..)`](fn@Ok) if errors of this library and of `std::io` pass, in `Ok::<_, datapipes::BoxError>(..)` if any do |
//! | `E0277: .. is no list of samples`, at `collate`, `collate_with` or `unbatch` | Put [`.batch(n)`](Graph::batch) before it |
//! | `E0277: a list of .. cannot be made into a batch` | `#[derive(Collate)]` on the struct (feature `derive`), or [`collate_with`](Graph::collate_with) |
//! | `E0599: no method named .. found for struct Graph<..>` | The method is another crate's: `use datapipes_io::prelude::*;` for files, archives and samples, `use datapipes_image::prelude::*;` for pictures, `datapipes_audio` and `datapipes_text` in the same way. Or its [feature](#features) is off: `on_workers` needs `remote`, `Epoch::progress` needs `progress`, and of the builder `metrics`, `monitor` and `settings_from` (`tune`) need theirs. On an [`Epoch`], `next` and `map` are `futures::StreamExt`'s |
//! | `E0277: .. cannot be sent`, or `shared, between threads safely`; `E0594` or `E0596: cannot assign` or `borrow .. as mutable` in a `Fn` closure; `E0521` or `E0597`: something borrowed does not live long enough | A closure runs on several threads, for as long as the loader lives. Move what it needs into it (`move`, `Arc` in place of `Rc` and of borrows). Replace a value that changes from item to item by a [`scan`](Graph::scan), a counter by an atomic |
//!
//! The first message, as code that fails and code that works:
//! ```compile_fail,E0283
//! # use datapipes::Graph;
//! Graph::from_vec(vec!["1"]).try_map(|text| {
//!     let number: u64 = text.parse()?;
//!     Ok(number)
//! });
//! ```
//! ```
//! # use datapipes::Graph;
//! let numbers = Graph::from_vec(vec!["1"]).try_map(|text| {
//!     let number: u64 = text.parse()?;
//!     Ok::<_, datapipes::BoxError>(number)
//! });
//! assert_eq!(numbers.collect()?, [1]);
//! # Ok::<(), datapipes::Error>(())
//! ```
//! For a type that is missing because its feature is off, the compiler names the feature.
//!
//! # Features
//! - `derive`: `#[derive(Collate)]` for structs, `#[derive(Wire)]` for structs and enums.
//! - `metrics`: figures through the facade `metrics`, for Prometheus and others
//!   (`loader::Builder::metrics`).
//! - `monitor`: a running loader shows its figures to other processes
//!   (`loader::Builder::monitor`, the program `datapipes top`).
//! - `ndarray`: tensors as arrays of `ndarray`, and back ([`Tensor`]'s `view`, `view_mut`,
//!   `into_array`, `from_array`).
//! - `progress`: progress bars on standard error, `Epoch::progress`.
//! - `remote`: parts of a graph on other machines (`Graph::on_workers`; Linux). `remote-tls`: the
//!   same over TLS (`Remote::tls`).
//! - `serde`: [`Wire`] for types that serde can write and read
//!   ([`Serde`](https://docs.rs/datapipes/latest/datapipes/struct.Serde.html)).
//! - `isolation`: processes of a graph restricted to paths, and without network ([`Processes`];
//!   Linux).
//! - `testing`: the conformance kit for pipes, `datapipes::testing`.
//! - `tune`: tries settings of a loader, and saves the best (`loader::tune`,
//!   `loader::Builder::settings_from`).

#![warn(missing_docs)]
#![cfg_attr(
    not(target_os = "linux"),
    allow(
        dead_code,
        unused_imports,
        reason = "processes of a graph are for Linux, and some of what they need is in the contract"
    )
)]

#[macro_use]
mod macros;

mod backoff;
mod batch_buffer;
mod budget;
mod caught;
mod checkpoint;
mod chunk;
mod codec;
mod collate;
mod context;
mod dtype;
mod error;
mod histogram;
mod item;
mod items;
#[cfg(feature = "ndarray")]
mod ndarray;
mod origin;
mod pipe;
mod processes;
mod rank;
mod rng;
mod settings;
mod sync;
mod tensor;
mod weigh;
#[doc(hidden)]
pub mod whole_file;
pub mod worker;

pub mod graph;
pub mod index;
pub mod loader;
pub mod pipes;
mod plan;
mod queue;
mod run;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use backoff::{Attempts, Backoff};
pub use caught::catch_panic;
pub use checkpoint::{HeldPositions, Lineage, PipeSnapshot, Wanted};
pub use chunk::{Chunk, ChunkIter};
#[cfg(feature = "serde")]
pub use codec::Serde;
pub use codec::{Reader, Wire, Writer};
pub use collate::{Collate, Padded, Padding, Ragged, Sequence};
pub use context::Context;
/// Makes a batch type of a struct; see the trait [`Collate`].
#[cfg(feature = "derive")]
pub use datapipes_derive::Collate;
/// Makes a struct or an enum that can be sent to other processes; see the trait [`Wire`].
#[cfg(feature = "derive")]
pub use datapipes_derive::Wire;
pub use dtype::{DType, Element, TypedVec};
pub use error::{BoxError, Error, ErrorKind, Ok, Result};
pub use graph::{BuildError, Graph};
pub use histogram::Histogram;
pub use index::{Indexed, Lookup, MapPipe};
pub use item::{Item, labelled};
pub use items::{Chunks, Demand, Emitter, Held, HeldPlace, Items};
pub use loader::{Agreed, Blocking, Checkpoint, DataLoader, Edited, Epoch, OnError, Replay};
pub use origin::{Children, Origin};
pub use pipe::{
    Arity, Crossing, Dealing, Hints, Inputs, Join, Pipe, Rerun, Revision, Role, Source, Split,
    Upstream, Work,
};
pub use processes::Processes;
#[cfg(feature = "remote")]
pub use processes::Remote;
pub use rank::{Rank, Uneven};
pub use rng::{Rng, mix_bits, stable_hash};
pub use run::blocking;
pub use settings::Order;
pub use tensor::{Mismatch, Tensor};
pub use weigh::Weigh;

/// Makes an implementation of [`MapPipe`], [`Lookup`] or a store from `async fn`s.
pub use async_trait::async_trait;

/// Locks that ignore poisoning, for our other crates; not part of the interface.
#[doc(hidden)]
pub use sync::lock;

/// Functions called by derived code; not part of the interface.
#[doc(hidden)]
pub mod derived {
    pub use crate::codec::no_variant;
    #[cfg(feature = "serde")]
    pub use crate::codec::{Serial, decode_serde, encode_serde};
    pub use crate::collate::{field, named, padded};
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts, when it is compiled, that values move between threads.
    fn sent<T: Send>() {}
    /// Asserts, when it is compiled, that values move between threads and are shared by them.
    fn shared<T: Send + Sync>() {}

    /// An item type that is not `Sync`.
    type Local = std::cell::Cell<u64>;

    #[test]
    fn what_users_move_between_threads_is_send_and_what_they_share_is_sync() {
        shared::<Graph<Local>>();
        shared::<Indexed<Local>>();
        shared::<loader::Builder<Local>>();
        shared::<DataLoader<Local>>();
        sent::<Epoch<Local>>();
        sent::<Blocking<Local>>();
        sent::<Items<Local>>();
        sent::<Item<Local>>();
        shared::<Checkpoint>();
        shared::<loader::Stats>();
        sent::<Replay>();
        shared::<Context>();
        shared::<Error>();
        shared::<BuildError>();
        shared::<Origin>();
        shared::<Rng>();
        shared::<Tensor>();
        shared::<TypedVec>();
        shared::<OnError>();
        shared::<Processes>();
        shared::<Backoff>();
    }
}
