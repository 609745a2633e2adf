//! Samples that a sampler chooses.

use std::sync::Arc;

use super::{Course, Entry, Indices, each};
use crate::index::{Draws, Sampler};
use crate::{Context, Error, Hints, Items, Pipe};

/// Samples that a sampler chooses from the order upstream.
pub(super) struct Sampled {
    pub sampler: Arc<dyn Sampler>,
    /// Mistake of the sampler for the length upstream, as far as that length is known.
    pub problem: Option<String>,
}

impl Pipe<Indices> for Sampled {
    type Out = Indices;

    fn apply(&self, input: Items<Indices>, cx: &Context) -> Items<Indices> {
        let (sampler, context) = (self.sampler.clone(), cx.clone());
        each(input, cx, move |above| {
            if let Some(problem) = sampler.problem(above.len()) {
                return Err(Error::config(problem));
            }
            Ok(Drawing::start(sampler.clone(), above, context.clone()))
        })
    }
    fn name(&self) -> String {
        self.sampler.name()
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(self.sampler.len(input))
    }
    fn hints(&self) -> Hints {
        self.sampler
            .hints()
            .many_readers(true)
            .problem(self.problem.as_deref())
    }
}

struct Drawing {
    sampler: Arc<dyn Sampler>,
    above: Indices,
    len: u64,
    draws: Draws,
    cx: Context,
}

impl Drawing {
    fn start(sampler: Arc<dyn Sampler>, above: Indices, cx: Context) -> Indices {
        let draws = sampler.start(above.len(), &mut cx.node_rng());
        let len = sampler.len(above.len());
        Arc::new(Drawing {
            sampler,
            above,
            len,
            draws,
            cx,
        })
    }
}

impl Course for Drawing {
    fn len(&self) -> u64 {
        self.len
    }
    fn at(&self, position: u64) -> Entry {
        let drawn = (self.draws)(position);
        let Entry { index, origin } = self.above.at(drawn.index);
        let origin = drawn
            .draw
            .map_or_else(|| origin.clone(), |draw| origin.child(draw));
        Entry { index, origin }
    }
    fn again(&self, round: u64) -> Indices {
        Drawing::start(
            self.sampler.clone(),
            self.above.again(round),
            self.cx.in_round(round),
        )
    }
    fn dropped(&self) -> u64 {
        self.above.dropped()
    }
}
