//! Items that a pipe took and holds: they come again when an epoch is resumed.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::checkpoint::{Given, Places, Unordered};
use crate::sync::lock;
use crate::{Context, Error, Item, Items, Result};

/// An item that a pipe took of its input and still holds, as a pipe that groups, sorts or shuffles
/// does; returned by [`Emitter::hold_from`](crate::Emitter::hold_from).
///
/// It contains its [`HeldPlace`], too. The places of held items that were taken apart are
/// [given](crate::Emitter::emit_of), or [left out](Context::leave_out).
#[derive(Debug)]
pub struct Held<T> {
    item: Item<T>,
    place: HeldPlace,
}

impl<T> Held<T> {
    pub(crate) fn new(item: Item<T>, place: HeldPlace) -> Self {
        Held { item, place }
    }

    /// Returns the item and its place.
    pub fn into_parts(self) -> (Item<T>, HeldPlace) {
        (self.item, self.place)
    }
}

impl<T> Deref for Held<T> {
    type Target = Item<T>;

    fn deref(&self) -> &Item<T> {
        &self.item
    }
}

impl Context {
    /// Drops items that were held, and counts them as dropped.
    pub fn leave_out<T>(&self, held: impl IntoIterator<Item = Held<T>>) {
        let places: Vec<HeldPlace> = held.into_iter().map(|held| held.into_parts().1).collect();
        self.count_dropped(places.len() as u64);
        HeldPlace::leave_out(places);
    }
}

/// The place of an item in the input that it was taken of.
///
/// As long as the place exists, it belongs to the pipe's [snapshots](Context::snapshot). An epoch
/// that is resumed from one of them gives the item again, in the original sequence and before all
/// items that were not taken at the snapshot. A snapshot therefore need not contain the item, and
/// an error that came between two held items is not given again. Dropping the place means that the
/// item is held no longer.
#[must_use = "dropping it says that the item is held no longer, so a resumed epoch would not have it again"]
pub struct HeldPlace(Option<(Taker, u64)>);

/// The records of the items taken of an input.
enum Taker {
    InOrder(Arc<Places>),
    AnyOrder(Arc<Unordered>),
}

impl HeldPlace {
    /// Returns the place of the next item taken of an input; an empty one if no checkpoints are
    /// taken.
    ///
    /// # Errors
    /// `Config` if the stream is not an input of this node.
    pub(crate) fn next<T: Send + 'static>(cx: &Context, input: &Items<T>) -> Result<HeldPlace> {
        let place = if let Some(unordered) = cx.unordered() {
            let taker = || (Taker::AnyOrder(unordered.clone()), unordered.next());
            input.is_counted_by(unordered.counter()).then(taker)
        } else if let Some(recorder) = cx.recorder() {
            let place = recorder.input(|taken| input.is_counted_by(taken));
            place.map(|(held, at)| (Taker::InOrder(held), at))
        } else {
            return Ok(HeldPlace(None));
        };
        let unknown = || {
            let message = "takes items to hold from a stream that is not its input as it got it, so that nobody knows their \
                           places; take them from the input itself";
            Error::config(message).at(cx.node())
        };
        place
            .map(|place| HeldPlace(Some(place)))
            .ok_or_else(unknown)
    }

    /// Holds the item at this place from now on.
    pub(crate) fn hold(&self) {
        if let Some((Taker::InOrder(held), at)) = &self.0 {
            lock(held).insert(*at);
        }
    }

    /// Records that the items at these places are in the next output.
    pub(crate) fn give(places: impl IntoIterator<Item = HeldPlace>) {
        if let Some((unordered, positions)) = HeldPlace::in_any_order(places) {
            unordered.gave(Given::All(positions));
        }
    }

    /// Records that no output is made of the items at these places.
    fn leave_out(places: impl IntoIterator<Item = HeldPlace>) {
        if let Some((unordered, positions)) = HeldPlace::in_any_order(places) {
            unordered.left_out(positions);
        }
    }

    fn in_any_order(
        places: impl IntoIterator<Item = HeldPlace>,
    ) -> Option<(Arc<Unordered>, Vec<u64>)> {
        let mut all: Option<(Arc<Unordered>, Vec<u64>)> = None;
        for place in places {
            if let Some((Taker::AnyOrder(unordered), at)) = &place.0 {
                all.get_or_insert_with(|| (unordered.clone(), Vec::new()))
                    .1
                    .push(*at);
            }
        }
        all
    }
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        if let Some((Taker::InOrder(held), at)) = &self.0 {
            lock(held).remove(at);
        }
    }
}

impl fmt::Debug for HeldPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldPlace")
            .field(&self.0.as_ref().map(|(_, at)| at))
            .finish()
    }
}
