//! A tokenizer of the `tokenizers` crate around any model, and its copy that knows no control tokens.

use std::sync::OnceLock;

use super::TextError;
use tokenizers::normalizers::{Lowercase, Sequence};
use tokenizers::{DecoderWrapper, Model, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl};

type Whole<M> = TokenizerImpl<M, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

#[derive(Debug)]
pub(super) struct Hf<M> {
    pub(super) parsing: Box<Whole<M>>,
    /// A copy that reads control tokens as text; made when first needed.
    plain: OnceLock<Box<Whole<M>>>,
}

impl<M: Model + Clone> Hf<M> {
    pub(super) fn new(model: M) -> Self {
        Self::from(TokenizerImpl::new(model))
    }

    /// Appends the ids of `text`.
    pub(super) fn encode(
        &self,
        text: &str,
        parse_special: bool,
        add_special: bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let hf = if parse_special {
            &self.parsing
        } else {
            self.plain.get_or_init(|| {
                let mut copy = self.parsing.clone();
                copy.set_encode_special_tokens(true);
                copy
            })
        };
        let encoding = hf.encode_fast(text, add_special);
        ids.extend_from_slice(encoding.map_err(|error| TextError::Encode(error.to_string()))?.get_ids());
        Ok(())
    }

    pub(super) fn lower_case(&mut self) {
        let mut steps = vec![NormalizerWrapper::from(Lowercase)];
        steps.extend(self.parsing.get_normalizer().cloned());
        self.parsing.with_normalizer(Some(Sequence::new(steps)));
        self.plain.take();
    }
}

impl<M> From<Whole<M>> for Hf<M> {
    fn from(whole: Whole<M>) -> Self {
        Self { parsing: Box::new(whole), plain: OnceLock::new() }
    }
}
