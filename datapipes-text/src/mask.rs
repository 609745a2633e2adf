//! Attention masks, made from the bounds of segments alone.

use datapipes::{Element, Error, Result, Tensor};

/// Tokens of its own segment that a token attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attention {
    /// Itself and those before it, as for a model that predicts the next token.
    Causal,
    /// All of them, as for a model that fills in masked tokens.
    Full,
}

/// The form of a mask, in which frameworks differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MaskForm {
    /// `bool`, true where a token attends: PyTorch's `scaled_dot_product_attention`; candle's
    /// `where_cond`, once it is `u8`.
    Attend,
    /// `bool`, true where a token does not attend: burn's `mask_fill` and `mask_attn`.
    Hide,
    /// `f32` to add to the scores before the softmax: 0 where a token attends, −∞ elsewhere. As
    /// models in candle do.
    Add,
}

/// Returns the attention masks of packed rows, `[rows, length, length]`: in row `r`, at `[r, q, k]`,
/// if token `q` attends to token `k`. A token attends to none of another segment, so documents of a
/// row do not see each other (a block-diagonal mask).
///
/// `cu_seqlens` are the bounds of the segments in all rows together, as in
/// [`PackedBatch`](crate::PackedBatch). The mask has `rows × length²` elements; attention kernels
/// that take `cu_seqlens` need none.
///
/// # Errors
/// `Shape` if the bounds do not begin with 0, ascend, end at `rows × length` and include the bounds
/// of rows.
///
/// # Examples
/// ```
/// use datapipes_text::{Attention, MaskForm, attention_mask};
/// let mask = attention_mask(&[0, 2, 3], 1, 3, Attention::Causal, MaskForm::Attend)?;
/// let expected = [
///     true, false, false, //
///     true, true, false, //
///     false, false, true,
/// ];
/// assert_eq!(mask.as_slice::<bool>()?, expected);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn attention_mask(
    cu_seqlens: &[u32],
    rows: usize,
    length: usize,
    attention: Attention,
    form: MaskForm,
) -> Result<Tensor> {
    check(cu_seqlens, rows, length)?;
    let shape = (rows, length);
    match form {
        MaskForm::Attend => filled(cu_seqlens, shape, attention, (false, true)),
        MaskForm::Hide => filled(cu_seqlens, shape, attention, (true, false)),
        MaskForm::Add => filled(cu_seqlens, shape, attention, (f32::NEG_INFINITY, 0.0)),
    }
}

fn filled<E: Element>(
    cu_seqlens: &[u32],
    (rows, length): (usize, usize),
    attention: Attention,
    (hidden, seen): (E, E),
) -> Result<Tensor> {
    let mut mask = vec![hidden; rows * length * length];
    for pair in cu_seqlens.windows(2) {
        let (begin, end) = (pair[0] as usize, pair[1] as usize);
        for query in begin..end {
            // The keys of a row begin anew with each row.
            let first = query * length + begin % length;
            let count = match attention {
                Attention::Causal => query + 1 - begin,
                Attention::Full => end - begin,
            };
            mask[first..first + count].fill(seen);
        }
    }
    Tensor::from_vec(mask, [rows, length, length])
}

fn check(cu_seqlens: &[u32], rows: usize, length: usize) -> Result<()> {
    let problem = |what: String| Err(Error::shape(format!("cu_seqlens: {what}")));
    if cu_seqlens.first() != Some(&0) {
        return problem("they do not begin with 0".to_owned());
    }
    for pair in cu_seqlens.windows(2) {
        let (begin, end) = (pair[0] as usize, pair[1] as usize);
        if end <= begin {
            return problem(format!("{end} comes after {begin}"));
        }
        if begin / length.max(1) != (end - 1) / length.max(1) {
            return problem(format!(
                "a segment from {begin} to {end} is in two rows of {length}"
            ));
        }
    }
    let end = cu_seqlens.last().map_or(0, |&end| end as usize);
    match rows.checked_mul(length) {
        Some(tokens) if tokens == end && end.checked_mul(length).is_some() => Ok(()),
        _ => problem(format!("they end at {end}, not at {rows} × {length}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    fn plain(cu_seqlens: &[u32], rows: usize, length: usize, attention: Attention) -> Vec<bool> {
        let segment = |at: usize| {
            cu_seqlens
                .iter()
                .filter(|&&begin| begin as usize <= at)
                .count()
        };
        let mut mask = Vec::new();
        for row in 0..rows {
            for q in 0..length {
                for k in 0..length {
                    let same = segment(row * length + q) == segment(row * length + k);
                    mask.push(same && (attention == Attention::Full || k <= q));
                }
            }
        }
        mask
    }

    #[test]
    fn a_token_attends_within_its_segment() {
        let bounds = [0, 2, 3, 4, 7, 8];
        for attention in [Attention::Causal, Attention::Full] {
            let mask = |form| attention_mask(&bounds, 2, 4, attention, form).unwrap();
            let seen = plain(&bounds, 2, 4, attention);
            assert_eq!(mask(MaskForm::Attend).as_slice::<bool>().unwrap(), seen);
            let hidden: Vec<bool> = seen.iter().map(|seen| !seen).collect();
            assert_eq!(mask(MaskForm::Hide).as_slice::<bool>().unwrap(), hidden);
            let added = seen
                .iter()
                .map(|&seen| if seen { 0.0 } else { f32::NEG_INFINITY });
            let added: Vec<f32> = added.collect();
            assert_eq!(mask(MaskForm::Add).as_slice::<f32>().unwrap(), added);
        }
        let none = attention_mask(&[0], 0, 0, Attention::Full, MaskForm::Add).unwrap();
        assert_eq!(none.shape(), [0, 0, 0]);
    }

    #[test]
    fn bounds_that_make_no_mask_are_refused() {
        for (bounds, rows, length, said) in [
            (&[1, 4][..], 1, 4, "do not begin with 0"),
            (&[], 0, 0, "do not begin with 0"),
            (&[0, 2, 2, 4], 1, 4, "2 comes after 2"),
            (&[0, 3, 8], 2, 4, "from 3 to 8 is in two rows of 4"),
            (&[0, 3], 1, 4, "end at 3, not at 1 × 4"),
            (&[0, 4, 8], 1, 4, "end at 8, not at 1 × 4"),
        ] {
            let mask = attention_mask(bounds, rows, length, Attention::Full, MaskForm::Hide);
            let error = mask.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Shape);
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
