//! A row of packed documents, and a batch of rows.

use std::mem;

use datapipes::{Collate, Element, Mismatch, Result, Tensor, Weigh, Wire};

use crate::{Attention, MaskForm, attention_mask};

/// A row of a fixed length that documents were packed into; made by [`Pack`](crate::Pack).
///
/// All fields but `cu_seqlens` have an element for each token of the row. A batch of rows is a
/// [`PackedBatch`].
///
/// The types are those that frameworks take. Ids and positions are looked up in tables, which
/// candle, burn and PyTorch do by `u32` or `i64`. Labels are indices and may be negative, so they
/// are `i64`. `cu_seqlens` is `u32`, as candle's flash attention takes it; the bits are those of
/// the `int32` that the original takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Wire)]
pub struct Packed {
    /// Token ids; the padding id where there is no token.
    pub ids: Vec<u32>,
    /// Labels. The label of a token is the id of the next token of the same document, which the
    /// model should predict. At the end of a document and in padding it is −100, or the label that
    /// [`Pack::ignore`](crate::Pack::ignore) sets.
    pub labels: Vec<i64>,
    /// Places of the tokens in their piece of a document, from 0; 0 in padding.
    pub positions: Vec<u32>,
    /// Places where segments begin, from 0, and the length of the row at the end. A segment is a
    /// piece of a document, or padding. Attention stays within a segment, so this field alone makes
    /// a mask. A token of padding attends to padding.
    pub cu_seqlens: Vec<u32>,
    /// Numbers of the pieces in the row, from 1; 0 in padding.
    pub document: Vec<u32>,
}

impl Packed {
    /// Returns the number of tokens in the row that are no padding.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// use datapipes_text::{Pack, prelude::*};
    /// let row = Graph::from_vec(vec![vec![5u32, 6], vec![7]]).pack(Pack::concat(8)).collect()?.remove(0);
    /// assert_eq!((row.ids.len(), row.tokens()), (8, 3));
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn tokens(&self) -> usize {
        self.document
            .iter()
            .filter(|&&document| document > 0)
            .count()
    }
}

impl Weigh for Packed {
    fn weigh(&self) -> usize {
        let narrow = [&self.ids, &self.positions, &self.cu_seqlens, &self.document];
        size_of::<Self>()
            + 4 * narrow.map(Vec::capacity).iter().sum::<usize>()
            + 8 * self.labels.capacity()
    }
}

/// A batch of packed rows: the output of [`collate`](datapipes::Graph::collate).
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_text::{Attention, MaskForm, Pack, prelude::*};
///
/// let documents = Graph::from_vec(vec![vec![5u32, 6, 7], vec![8, 9], vec![10, 11, 12]]);
/// let batch = documents.pack(Pack::concat(4)).batch(2).collate().collect()?.remove(0);
/// assert_eq!(batch.ids.as_slice::<u32>()?, [5, 6, 7, 8, 9, 10, 11, 12]); // of shape [2, 4]
/// assert_eq!(batch.labels.as_slice::<i64>()?, [6, 7, -100, 9, -100, 11, 12, -100]);
/// assert_eq!(batch.cu_seqlens.as_slice::<u32>()?, [0, 3, 4, 5, 8]);      // of the rows, one after another
/// assert_eq!(batch.mask(Attention::Causal, MaskForm::Attend)?.shape(), [2, 4, 4]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Wire)]
pub struct PackedBatch {
    /// Token ids, `[rows, length]` of `u32`.
    pub ids: Tensor,
    /// Labels, `[rows, length]` of `i64`.
    pub labels: Tensor,
    /// Positions, `[rows, length]` of `u32`.
    pub positions: Tensor,
    /// Places where segments begin in the batch as one sequence of `rows × length` tokens, and its
    /// length at the end; `[segments + 1]` of `u32`. As attention kernels for sequences of
    /// different lengths take it.
    pub cu_seqlens: Tensor,
    /// Numbers of the pieces in each row, `[rows, length]` of `u32`.
    pub document: Tensor,
}

impl PackedBatch {
    /// Makes a batch of what `fill` appends to empty fields, which have room for it.
    pub(crate) fn from_fill(
        shape: [usize; 2],
        fill: impl FnOnce(Packed) -> Result<Packed>,
    ) -> Result<PackedBatch> {
        let (mut bounds, mut labels, mut positions, mut document) = (Vec::new(), None, None, None);
        // Each tensor lends its memory to a closure, so that they are nested.
        let ids = Tensor::from_fill(shape, |ids: &mut Vec<u32>| {
            let filled = Tensor::from_fill(shape, |labels: &mut Vec<i64>| {
                let filled = Tensor::from_fill(shape, |positions: &mut Vec<u32>| {
                    let filled = Tensor::from_fill(shape, |document: &mut Vec<u32>| {
                        let packed = fill(Packed {
                            ids: mem::take(ids),
                            labels: mem::take(labels),
                            positions: mem::take(positions),
                            cu_seqlens: Vec::new(),
                            document: mem::take(document),
                        })?;
                        (*ids, *labels, *positions) = (packed.ids, packed.labels, packed.positions);
                        (*document, bounds) = (packed.document, packed.cu_seqlens);
                        Ok(())
                    });
                    document = Some(filled?);
                    Ok(())
                });
                positions = Some(filled?);
                Ok(())
            });
            labels = Some(filled?);
            Ok(())
        })?;
        let filled = "each was filled, or an error was returned";
        let count = bounds.len();
        Ok(PackedBatch {
            ids,
            labels: labels.expect(filled),
            positions: positions.expect(filled),
            cu_seqlens: Tensor::from_vec(bounds, [count])?,
            document: document.expect(filled),
        })
    }

    /// Returns the attention mask of each row, `[rows, length, length]`; see [`attention_mask`].
    ///
    /// # Errors
    /// `Shape` if the fields do not fit together, which those of a packed batch do.
    pub fn mask(&self, attention: Attention, form: MaskForm) -> Result<Tensor> {
        let &[rows, length] = self.ids.shape() else {
            return Err(Mismatch::of(0, format!("ids of shape {:?}", self.ids.shape())).into());
        };
        attention_mask(
            self.cu_seqlens.as_slice::<u32>()?,
            rows,
            length,
            attention,
            form,
        )
    }

    /// Returns the length of the longest segment, as attention kernels for sequences of different
    /// lengths ask for it.
    ///
    /// # Errors
    /// `Shape` if `cu_seqlens` is not of `u32`.
    pub fn max_seqlen(&self) -> Result<u32> {
        let bounds = self.cu_seqlens.as_slice::<u32>()?;
        let lengths = bounds
            .windows(2)
            .map(|pair| pair[1].saturating_sub(pair[0]));
        Ok(lengths.max().unwrap_or(0))
    }

    /// Returns ids, labels, positions, `cu_seqlens` and document numbers as a tuple, which the
    /// adapters to frameworks move to a device.
    pub fn into_tuple(self) -> (Tensor, Tensor, Tensor, Tensor, Tensor) {
        let PackedBatch {
            ids,
            labels,
            positions,
            cu_seqlens,
            document,
        } = self;
        (ids, labels, positions, cu_seqlens, document)
    }
}

impl Weigh for PackedBatch {
    fn weigh(&self) -> usize {
        let fields = [
            &self.ids,
            &self.labels,
            &self.positions,
            &self.cu_seqlens,
            &self.document,
        ];
        fields.map(Weigh::weigh).iter().sum()
    }
}

/// Collates rows into a batch.
///
/// # Errors
/// `Shape` if rows have different lengths.
impl Collate for Packed {
    type Batch = PackedBatch;

    fn collate(rows: Vec<Packed>) -> Result<PackedBatch> {
        let mut bounds = vec![0];
        for row in &rows {
            let base = *bounds.last().expect("it begins with 0");
            bounds.extend(row.cu_seqlens.iter().skip(1).map(|at| base + at));
        }
        let count = bounds.len();
        Ok(PackedBatch {
            ids: column("ids", &rows, |row| &row.ids)?,
            labels: column("labels", &rows, |row| &row.labels)?,
            positions: column("positions", &rows, |row| &row.positions)?,
            cu_seqlens: Tensor::from_vec(bounds, [count])?,
            document: column("document", &rows, |row| &row.document)?,
        })
    }

    fn weigh(batch: &PackedBatch) -> Option<usize> {
        Some(Weigh::weigh(batch))
    }
}

fn column<E: Element>(name: &str, rows: &[Packed], of: impl Fn(&Packed) -> &[E]) -> Result<Tensor> {
    let length = rows.first().map_or(0, |row| row.ids.len());
    Tensor::from_fill([rows.len(), length], |values| {
        for (place, row) in rows.iter().enumerate() {
            let row = of(row);
            if row.len() != length {
                let has = |length: usize| format!("length {length}");
                let mismatch = Mismatch::new((0, has(length)), (place, has(row.len())));
                return Err(mismatch.in_field(name).into());
            }
            values.extend_from_slice(row);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use datapipes::ErrorKind;
    use datapipes::testing::check_wire;

    use super::*;

    fn row(length: usize) -> Packed {
        Packed {
            ids: vec![7; length],
            labels: vec![-100; length],
            positions: vec![0; length],
            cu_seqlens: vec![0, 2, length as u32],
            document: vec![1; length],
        }
    }

    #[test]
    fn rows_and_batches_travel_to_other_processes() {
        check_wire(&row(3));
        check_wire(&Packed::collate(vec![row(3), row(3)]).unwrap());
    }

    #[test]
    fn segments_of_a_batch_are_those_of_its_rows_one_after_another() {
        let batch = Packed::collate(vec![row(3), row(3)]).unwrap();
        assert_eq!(batch.cu_seqlens.as_slice::<u32>().unwrap(), [0, 2, 3, 5, 6]);
        assert_eq!(batch.max_seqlen().unwrap(), 2);
        assert_eq!(batch.clone().into_tuple().0.shape(), [2, 3]);
        let none = Packed::collate(vec![]).unwrap();
        assert_eq!((none.ids.shape(), none.cu_seqlens.len()), (&[0, 0][..], 1));
    }

    #[test]
    fn rows_of_different_lengths_are_named() {
        let error = Packed::collate(vec![row(3), row(4)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        let said = "shape mismatch: ids: item 0 has length 3, item 1 has length 4";
        assert_eq!(error.to_string(), said);
        let odd = Packed {
            labels: vec![],
            ..row(3)
        };
        let error = Packed::collate(vec![odd]).unwrap_err().to_string();
        assert!(error.contains("labels: item 0 has length 3"), "{error}");
    }
}
