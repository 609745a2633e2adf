//! The printed form of an item, and how a graph comes to it.

use std::sync::Arc;

use datapipes::{Arity, Context, Graph, Hints, Item, Items, Origin, Pipe, Result, Tensor};
use datapipes_io::formats::{Array, Sample};
use futures::StreamExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The printed form of an item, and its other outputs.
#[derive(Clone)]
pub struct Shown {
    pub json: Value,
    pub array: Option<Dumped>,
    pub sample: Option<Sample>,
}

/// An array or a picture as an `.npy` file.
#[derive(Clone)]
pub struct Dumped {
    pub name: String,
    pub npy: Vec<u8>,
}

impl From<Value> for Shown {
    fn from(json: Value) -> Shown {
        Shown {
            json,
            array: None,
            sample: None,
        }
    }
}

impl Shown {
    pub fn array(json: Value, name: String, npy: Option<Vec<u8>>) -> Shown {
        Shown {
            array: npy.map(|npy| Dumped { name, npy }),
            ..json.into()
        }
    }

    pub fn sample(sample: Sample) -> Shown {
        let fields = sample
            .fields()
            .map(|(field, data)| (field.to_owned(), size_and_hash(data)));
        let fields: serde_json::Map<_, _> = fields.collect();
        Shown {
            json: json!({ "key": sample.key(), "fields": fields }),
            array: None,
            sample: Some(sample),
        }
    }
}

/// Turns errors into items, so that they keep their places.
pub fn with_errors<T: Send + 'static>(items: Items<T>) -> Items<Result<T>> {
    let mut number = 0;
    Items::from_stream(items.map(move |item| {
        number += 1;
        Ok(match item {
            Ok(item) => item.map(Ok),
            Err(error) => Item::new(Err(error), Origin::root(0, number)),
        })
    }))
}

/// Formats each item for printing; the workers compute the hashes.
pub fn show<T, F>(graph: Graph<T>, shown: F) -> Graph<Shown>
where
    T: Send + 'static,
    F: Fn(&Origin, T) -> Result<Shown> + Send + Sync + 'static,
{
    graph.pipe(Show(Arc::new(shown)))
}

struct Show<F>(Arc<F>);

impl<T, F> Pipe<T> for Show<F>
where
    T: Send + 'static,
    F: Fn(&Origin, T) -> Result<Shown> + Send + Sync + 'static,
{
    type Out = Shown;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<Shown> {
        let shown = self.0.clone();
        input.each(cx, move |item| {
            let origin = item.origin().clone();
            Some(item.try_map(|value| shown(&origin, value)))
        })
    }
    fn name(&self) -> String {
        "show".to_owned()
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::One)
    }
}

/// Returns NumPy's name of the type.
pub fn dtype(tensor: &Tensor) -> String {
    Array::from_tensor(tensor).map_or_else(
        |_| format!("{:?}", tensor.dtype()).to_lowercase(),
        |array| array.dtype().name().to_owned(),
    )
}

pub fn size_and_hash(data: &[u8]) -> Value {
    json!({ "size": data.len(), "sha256": sha256(data) })
}

pub fn sha256(data: &[u8]) -> String {
    Sha256::digest(data)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
