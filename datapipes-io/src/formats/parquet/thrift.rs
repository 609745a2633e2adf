//! The part of Thrift's compact protocol that is needed to check sizes.
//!
//! Layout: <https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md>.
//! `None` marks invalid data.

/// Types of fields.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
pub(super) const I32: u8 = 5;
pub(super) const LIST: u8 = 9;
pub(super) const STRUCT: u8 = 12;

/// Maximum nesting depth of structs.
const DEPTH: usize = 64;

pub(super) struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Reader { data, at: 0 }
    }

    /// Returns the number of bytes read.
    pub fn at(&self) -> usize {
        self.at
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.data.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn pass(&mut self, bytes: u64) -> Option<()> {
        self.at = self
            .at
            .checked_add(usize::try_from(bytes).ok()?)
            .filter(|&at| at <= self.data.len())?;
        Some(())
    }

    /// Reads an unsigned number with seven bits in each byte.
    pub fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn zigzag(&mut self) -> Option<i64> {
        let number = self.varint()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    pub fn i32(&mut self) -> Option<i32> {
        self.zigzag()?.try_into().ok()
    }

    /// Reads the fields of a struct, each by `read`, or skips it if `read` returns `false`.
    pub fn fields(
        &mut self,
        mut read: impl FnMut(&mut Self, i16, u8) -> Option<bool>,
    ) -> Option<()> {
        let mut last = 0_i16;
        loop {
            let head = self.byte()?;
            let (delta, kind) = (head >> 4, head & 15);
            if kind == 0 {
                return Some(());
            }
            last = match delta {
                0 => self.zigzag()?.try_into().ok()?,
                delta => last.checked_add(delta.into())?,
            };
            if !read(self, last, kind)? {
                self.skip(kind, 0)?;
            }
        }
    }

    /// Reads the number and the type of the elements of a list.
    pub fn list(&mut self) -> Option<(u64, u8)> {
        let head = self.byte()?;
        let size = if head >> 4 == 15 {
            self.varint()?
        } else {
            u64::from(head >> 4)
        };
        // Each element takes at least one byte.
        (size <= (self.data.len() - self.at) as u64).then_some((size, head & 15))
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > DEPTH {
            return None;
        }
        match kind {
            TRUE | FALSE => Some(()),
            3 => self.pass(1),
            4..=6 => self.varint().map(drop),
            7 => self.pass(8),
            8 => {
                let length = self.varint()?;
                self.pass(length)
            }
            LIST | 10 => {
                let (size, kind) = self.list()?;
                (0..size).try_for_each(|_| self.skip_element(kind, depth))
            }
            11 => {
                let size = self.varint()?;
                if size == 0 {
                    return Some(());
                }
                let kinds = self.byte()?;
                (0..size).try_for_each(|_| {
                    self.skip_element(kinds >> 4, depth)?;
                    self.skip_element(kinds & 15, depth)
                })
            }
            STRUCT => loop {
                let head = self.byte()?;
                if head & 15 == 0 {
                    return Some(());
                }
                if head >> 4 == 0 {
                    self.varint()?;
                }
                self.skip(head & 15, depth + 1)?;
            },
            13 => self.pass(16),
            _ => None,
        }
    }

    /// Booleans of a list are bytes.
    fn skip_element(&mut self, kind: u8, depth: usize) -> Option<()> {
        if matches!(kind, TRUE | FALSE) {
            self.pass(1)
        } else {
            self.skip(kind, depth + 1)
        }
    }
}
