//! Coordinates of items: where each came from.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock};

use crate::mix_bits;
use crate::sync::lock;

/// The coordinates of an item: the source, the index in it, and the child index at each fan-out.
///
/// Member 203 of archive 17 of the first source is `0:17/203`. Coordinates do not depend on
/// workers, ranks, queues or order. Random numbers ([`Context::rng`](crate::Context::rng)), error
/// reports and checkpoints are derived from them. Two items of one epoch have the same origin only
/// if a pipe clones items.
///
/// An origin may also carry a name (a path, a member, a key), which is shown instead of the number.
/// Names do not take part in comparison.
#[derive(Clone)]
pub struct Origin {
    /// Everything that precedes the index; `None` for an item of a source without a name, which is
    /// the cheap case.
    link: Option<Arc<Link>>,
    /// Position among the siblings. At the root the upper 16 bits are the source's number.
    index: u64,
}

pub(crate) enum Link {
    /// The item is a child of this item.
    Child(Origin),
    /// The item has a name; the first field is the link that it would have without the name.
    Named(Option<Arc<Link>>, Name),
    /// The item was made of these items.
    Joined(Box<[Origin]>),
}

/// The name of an item.
#[derive(Clone)]
pub(crate) enum Name {
    Text(Arc<str>),
    /// Made when it is first asked for.
    Late(Arc<LateName<dyn FnMut() -> Option<Arc<str>> + Send>>),
}

pub(crate) struct LateName<F: ?Sized> {
    made: OnceLock<Option<Arc<str>>>,
    make: Mutex<F>,
}

impl Name {
    /// Returns the name; `None` if it cannot be made.
    pub(crate) fn get(&self) -> Option<&Arc<str>> {
        match self {
            Name::Text(name) => Some(name),
            Name::Late(late) => late.made.get_or_init(|| lock(&late.make)()).as_ref(),
        }
    }
}

const SOURCE_SHIFT: u32 = 48;

impl Origin {
    /// Returns the origin of item `index` of source number `source`.
    ///
    /// # Panics
    /// Panics if `index` needs more than 48 bits.
    #[inline]
    pub fn root(source: u16, index: u64) -> Self {
        assert!(
            index >> SOURCE_SHIFT == 0,
            "a source may have at most 2^48 items"
        );
        Origin {
            link: None,
            index: (u64::from(source) << SOURCE_SHIFT) | index,
        }
    }

    /// Returns the origin of child `index` of this item.
    pub fn child(&self, index: u64) -> Self {
        Origin {
            link: Some(Arc::new(Link::Child(self.clone()))),
            index,
        }
    }

    /// Returns a cheap maker of the children's origins, which share everything that precedes their
    /// index.
    pub fn children(&self) -> Children {
        Children(Arc::new(Link::Child(self.clone())))
    }

    /// Gives the coordinates a readable name.
    pub fn named(self, name: impl Into<Arc<str>>) -> Self {
        self.with_name(Name::Text(name.into()))
    }

    /// Gives the coordinates a readable name that is made when it is first asked for, as by an
    /// error; most never are. `None` leaves the name that the origin has.
    ///
    /// ```
    /// let item = datapipes::Origin::root(0, 7).named_by(|| Some("7.jpg".into()));
    /// assert_eq!(item.to_string(), "7.jpg");
    /// ```
    pub fn named_by(self, name: impl FnMut() -> Option<Arc<str>> + Send + 'static) -> Self {
        self.with_name(Name::Late(Arc::new(LateName {
            made: OnceLock::new(),
            make: Mutex::new(name),
        })))
    }

    fn with_name(self, name: Name) -> Self {
        Origin {
            link: Some(Arc::new(Link::Named(self.link, name))),
            index: self.index,
        }
    }

    /// Returns the same origin with all names made, which holds nothing that they are made from.
    pub(crate) fn with_names_made(&self) -> Origin {
        match self.link.as_deref() {
            None => self.clone(),
            Some(Link::Child(parent)) => parent.with_names_made().child(self.index),
            Some(Link::Joined(parts)) => {
                let parts = parts.iter().map(Origin::with_names_made).collect();
                Origin::joined(parts, self.index)
            }
            Some(Link::Named(above, name)) => {
                let unnamed = Origin {
                    link: above.clone(),
                    index: self.index,
                };
                let unnamed = unnamed.with_names_made();
                match name.get() {
                    Some(name) => unnamed.named(name.clone()),
                    None => unnamed,
                }
            }
        }
    }

    /// Returns the origin of an item made of several; `index` counts these items.
    pub fn joined(parts: Vec<Origin>, index: u64) -> Self {
        Origin {
            link: Some(Arc::new(Link::Joined(parts.into()))),
            index,
        }
    }

    /// Returns the coordinates of the source item that this origin descends from, unless the item
    /// was made of several.
    pub(crate) fn top(&self) -> &Origin {
        let mut top = self;
        while let Some(parent) = top.parent() {
            top = parent;
        }
        top
    }

    /// Returns true if one of the two items is, or descends from, the other or an item that the
    /// other was made of.
    pub(crate) fn is_related(&self, other: &Origin) -> bool {
        self.comes_from(other) || other.comes_from(self)
    }

    /// Returns true if this is `item`, or descends from it.
    pub(crate) fn comes_from(&self, item: &Origin) -> bool {
        self == item
            || self.parts().iter().any(|part| part.comes_from(item))
            || self.parent().is_some_and(|parent| parent.comes_from(item))
    }

    /// Returns the origin that the item has in the first round of a
    /// [`repeat`](crate::Graph::repeat), given the origin that it has in `round`, the current
    /// [round](crate::Context::round). Round 0 changes nothing. Call it with origins of that round
    /// only: a child to which another step gave the same number cannot be told apart. For a pipe
    /// that keeps items from round to round.
    ///
    /// ```
    /// let first = datapipes::Origin::root(0, 7);
    /// assert_eq!(first.child(2).without_round(2), first);
    /// assert_eq!(first.child(0).without_round(0), first.child(0));
    /// ```
    pub fn without_round(&self, round: u64) -> Origin {
        match self.link.as_deref() {
            _ if round == 0 => self.clone(),
            None => self.clone(),
            Some(Link::Named(above, name)) => {
                let unnamed = Origin {
                    link: above.clone(),
                    index: self.index,
                };
                unnamed.without_round(round).with_name(name.clone())
            }
            Some(Link::Child(root)) if self.index == round && root.structure().is_none() => {
                root.clone()
            }
            Some(Link::Child(parent)) => parent.without_round(round).child(self.index),
            Some(Link::Joined(parts)) => Origin::joined(
                parts.iter().map(|part| part.without_round(round)).collect(),
                self.index,
            ),
        }
    }

    /// Returns true for an item of a source, without name or parent.
    pub(crate) fn is_plain_root(&self) -> bool {
        self.link.is_none()
    }

    /// Returns source and index of a plain root as one number; the next item of the source has the
    /// next number.
    pub(crate) fn to_raw(&self) -> u64 {
        self.index
    }

    #[inline]
    pub(crate) fn from_raw(raw: u64) -> Origin {
        Origin {
            link: None,
            index: raw,
        }
    }

    /// Returns a borrowed view of the origin's parts.
    pub(crate) fn by_ref(&self) -> OriginRef<'_> {
        OriginRef {
            link: self.link.as_ref(),
            index: self.index,
        }
    }

    pub(crate) fn from_parts(link: Option<Arc<Link>>, index: u64) -> Origin {
        Origin { link, index }
    }

    /// Returns the position among the siblings: in the source, the parent or the stream of groups.
    pub fn index(&self) -> u64 {
        match self.structure() {
            None => self.index & ((1 << SOURCE_SHIFT) - 1),
            Some(_) => self.index,
        }
    }

    /// Returns the number of the source; `None` for an item made of several.
    pub fn source(&self) -> Option<u16> {
        match self.structure() {
            None => Some((self.index >> SOURCE_SHIFT) as u16),
            Some(Link::Child(parent)) => parent.source(),
            _ => None,
        }
    }

    /// Returns the parent item.
    pub fn parent(&self) -> Option<&Origin> {
        matching!(self.structure(), Some(Link::Child(parent)) => parent)
    }

    /// Returns the items that the item was made of; empty unless it was joined.
    pub fn parts(&self) -> &[Origin] {
        match self.structure() {
            Some(Link::Joined(parts)) => parts,
            _ => &[],
        }
    }

    /// Returns the item's own name, without its parents'.
    pub fn name(&self) -> Option<&str> {
        self.shared_name().map(|name| &**name)
    }

    /// Returns the name as [`name`](Origin::name) does, to be kept without a copy.
    pub fn shared_name(&self) -> Option<&Arc<str>> {
        let mut link = self.link.as_deref();
        while let Some(Link::Named(above, name)) = link {
            if let Some(name) = name.get() {
                return Some(name);
            }
            link = above.as_deref();
        }
        None
    }

    /// Returns 64 bits that depend on the coordinates alone, for keyed randomness.
    ///
    /// The root's bits are its source and index; each step down mixes in the child's index
    /// (splitmix64's finaliser). This function never changes: a change would change every random
    /// order.
    pub fn key(&self) -> u64 {
        match self.structure() {
            None => self.index,
            Some(Link::Child(parent)) => mix_bits(mix_bits(parent.key()) ^ self.index),
            Some(Link::Joined(parts)) => parts.iter().fold(mix_bits(!self.index), |key, part| {
                mix_bits(key ^ part.key()).wrapping_add(1)
            }),
            Some(Link::Named(..)) => unreachable!("structure() looks through names"),
        }
    }

    /// Returns the link, looking through names.
    #[inline]
    fn structure(&self) -> Option<&Link> {
        let mut link = self.link.as_deref();
        while let Some(Link::Named(above, _)) = link {
            link = above.as_deref();
        }
        link
    }
}

/// The parts of an origin.
#[derive(Clone, Copy)]
pub(crate) struct OriginRef<'a> {
    pub link: Option<&'a Arc<Link>>,
    pub index: u64,
}

/// Makes the origins of one item's children; see [`Origin::children`].
#[derive(Clone)]
pub struct Children(Arc<Link>);

impl Children {
    /// Returns the origin of child `index`.
    #[inline]
    pub fn at(&self, index: u64) -> Origin {
        Origin {
            link: Some(self.0.clone()),
            index,
        }
    }
}

opaque_debug!(Children {});

impl PartialEq for Origin {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index
            && match (self.structure(), other.structure()) {
                (None, None) => true,
                (Some(Link::Child(a)), Some(Link::Child(b))) => a == b,
                (Some(Link::Joined(a)), Some(Link::Joined(b))) => a == b,
                _ => false,
            }
    }
}

impl Eq for Origin {}

impl Hash for Origin {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialOrd for Origin {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Sequential order: by source, then index, then child index at each depth.
impl Ord for Origin {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        fn path(origin: &Origin, out: &mut Vec<u64>) {
            match origin.structure() {
                Some(Link::Child(parent)) => path(parent, out),
                Some(Link::Joined(parts)) => parts.iter().for_each(|part| path(part, out)),
                _ => {}
            }
            out.push(origin.index);
        }
        let (mut a, mut b) = (Vec::new(), Vec::new());
        path(self, &mut a);
        path(other, &mut b);
        a.cmp(&b)
    }
}

/// Prints names where there are names, else coordinates: `train-000.tar/000017.jpg`, `0:17/203`,
/// `[0:1, 0:2, … 254 more]`.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 4;
        if let Some(Link::Child(parent)) = self.structure() {
            write!(f, "{parent}/")?;
        }
        match (self.name(), self.structure()) {
            (Some(name), _) => f.write_str(name),
            (None, None) => write!(f, "{}:{}", self.index >> SOURCE_SHIFT, self.index()),
            (None, Some(Link::Joined(parts))) => {
                f.write_str("[")?;
                for (i, part) in parts.iter().take(SHOWN).enumerate() {
                    write!(f, "{}{part}", if i == 0 { "" } else { ", " })?;
                }
                match parts.len().checked_sub(SHOWN) {
                    Some(more) if more > 0 => write!(f, ", … {more} more]"),
                    _ => f.write_str("]"),
                }
            }
            (None, _) => write!(f, "{}", self.index),
        }
    }
}

formatted! { Debug |origin: Origin| "Origin({origin})"; }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_names_and_coordinates() {
        let archive = Origin::root(0, 17);
        assert_eq!(archive.child(203).to_string(), "0:17/203");
        let named = archive.clone().named("a.tar").child(3).named("x.jpg");
        assert_eq!(named.to_string(), "a.tar/x.jpg");
        assert_eq!(named, archive.child(3));
        assert_eq!(
            Origin::joined(vec![Origin::root(1, 2); 6], 0).to_string(),
            "[1:2, 1:2, 1:2, 1:2, … 2 more]"
        );
    }

    #[test]
    fn keys_are_pinned() {
        let archive = Origin::root(0, 17);
        assert_eq!(archive.key(), 17);
        assert_eq!(archive.child(203).key(), archive.children().at(203).key());
        assert_eq!(
            archive.child(203).key(),
            0x0c4f_d51a_ff2e_e360,
            "{:#x}",
            archive.child(203).key()
        );
        assert_ne!(archive.child(203).key(), archive.child(204).key());
        assert_ne!(Origin::root(1, 17).key(), archive.key());
    }

    #[test]
    fn orders_as_the_sequence_does() {
        let (a, b) = (Origin::root(0, 1), Origin::root(0, 2));
        let mut all = vec![
            b.child(0),
            a.child(7),
            Origin::root(1, 0),
            b.clone(),
            a.child(2),
            a.clone(),
        ];
        all.sort();
        assert_eq!(
            all,
            [
                a.clone(),
                a.child(2),
                a.child(7),
                b.clone(),
                b.child(0),
                Origin::root(1, 0)
            ]
        );
    }

    #[test]
    fn items_are_small() {
        assert_eq!(size_of::<crate::Item<u64>>(), 24);
        assert!(size_of::<crate::Result<crate::Item<u64>>>() <= 32);
    }
}
