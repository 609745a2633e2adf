//! Language data for `datapipes`: from texts to packed, masked batches.
//!
//! - **Tokenize** texts, on all cores: [`TokenizeGraphExt::tokenize`], [`Tokenize`], with a tokenizer
//!   of Hugging Face (`HfTokenizer`, feature `tokenizers`) or any other [`Tokenizer`]; and
//!   conversations by a chat template, with the prompt not trained (`Tokenize::chat`, feature
//!   `chat`). [`Detokenizer`] shows the text of tokens as they come.
//! - **Pack** documents into rows of a fixed length, with labels, positions and the bounds of
//!   documents: [`PackGraphExt::pack`], [`Pack`]. Attention masks are made from the bounds alone:
//!   [`attention_mask`], [`PackedBatch::mask`].
//! - **Batches of a number of tokens**, of items of similar length: [`TokenBatchGraphExt::token_batch`],
//!   and of a token store [`TokenStore::token_batches`], the same plan for all ranks.
//!   Equal documents are left out by [`DistinctGraphExt::distinct`], and [`Fim`] moves the middle of
//!   documents to their end. [`MaskTokens`] and [`SpanCorruption`] make what BERT and T5 learn from.
//! - **Token stores**, for tokens made beforehand: [`TokenStore`] reads those of Megatron and
//!   datatrove, and files of tokens in a row, as data by index; [`TokenWriter`] writes them. [`PackPlan`] packs
//!   their documents by length before they are read, the same for any number of ranks; [`GptOrder`]
//!   has the samples of Megatron's `GPTDataset`.

mod corrupt;
mod distinct;
mod document;
mod fim;
mod mask;
mod pack;
mod packed;
mod plan;
mod store;
mod text;
mod token_budget;
mod tokenize;

pub use corrupt::{MaskTokens, SpanCorruption};
pub use distinct::{Distinct, DistinctGraphExt};
pub use document::{Document, Tokens};
pub use fim::Fim;
pub use mask::{Attention, MaskForm, attention_mask};
pub use pack::{Labels, Overflow, Pack, PackGraphExt, RowLayout};
pub use packed::{Packed, PackedBatch};
pub use plan::{PackPlan, PackReport, PlannedBatch, PlannedRow, TokenBatches};
pub use store::{GptOrder, GptSample, TokenStore, TokenWidth, TokenWriter, Window, WindowGraphExt};
pub use text::Text;
pub use token_budget::{TokenBatchGraphExt, TokenBudget};
#[cfg(feature = "tokenizers")]
pub use tokenize::HfTokenizer;
#[cfg(feature = "chat")]
pub use tokenize::{Chat, ChatTemplate, Message};
pub use tokenize::{Detokenizer, Tokenize, TokenizeGraphExt, Tokenizer};

/// Traits with the methods that this crate adds to a [`Graph`](datapipes::Graph).
pub mod prelude {
    pub use crate::{
        DistinctGraphExt, PackGraphExt, TokenBatchGraphExt, TokenizeGraphExt, WindowGraphExt,
    };
}

mod sealed {
    /// Graphs that have the methods of this crate; more may be added to its traits.
    pub trait Sealed {}

    impl<T> Sealed for datapipes::Graph<T> {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts, when it is compiled, that values move between threads and are shared by them.
    fn shared<T: Send + Sync>() {}

    #[test]
    fn tokenizers_stores_and_pipes_move_between_threads_and_are_shared_by_them() {
        shared::<Tokens>();
        shared::<Packed>();
        shared::<PackedBatch>();
        shared::<Pack>();
        shared::<PackPlan>();
        shared::<PlannedRow>();
        shared::<TokenBatches>();
        shared::<PlannedBatch>();
        shared::<TokenStore>();
        shared::<GptOrder>();
        shared::<GptSample>();
        shared::<Window>();
        shared::<Tokenize>();
        shared::<Fim>();
        shared::<MaskTokens>();
        shared::<SpanCorruption>();
        shared::<TokenBudget<fn(&Tokens) -> usize>>();
        #[cfg(feature = "tokenizers")]
        shared::<HfTokenizer>();
        #[cfg(feature = "chat")]
        shared::<ChatTemplate>();
    }
}
