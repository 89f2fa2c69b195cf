//! Byte-level BPE from the lists of a GGUF file, put together from the parts of the `tokenizers`
//! crate, so that it is the tokenizer that a `tokenizer.json` of the same model describes.

use super::TextError;
use super::pre::PreRule;
use super::vocab::{TokenKind, Vocab};
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BPE, Merges, Vocab as Ids};
use tokenizers::{AddedToken, Tokenizer};

/// Takes tokens and merges out of `vocab`: they are moved, not copied.
pub(super) fn build(vocab: &mut Vocab, kinds: &[TokenKind], rule: PreRule) -> Result<Tokenizer, TextError> {
    let merges = split_merges(vocab.merges.take().ok_or(TextError::Missing("merges"))?)?;
    let tokens = std::mem::take(&mut vocab.tokens);
    let mut added = Vec::new();
    for (token, kind) in tokens.iter().zip(kinds) {
        let special = *kind == TokenKind::Control;
        if special || *kind == TokenKind::UserDefined {
            added.push(AddedToken::from(token.clone(), special).normalized(false));
        }
    }
    // Of two tokens with the same text the one with the lower id counts.
    let ids: Ids = tokens.into_iter().enumerate().rev().map(|(id, token)| (token, id as u32)).collect();
    let model = BPE::builder()
        .vocab_and_merges(ids, merges)
        .ignore_merges(rule.ignore_merges)
        .build()
        .map_err(|error| TextError::Merges(error.to_string()))?;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer
        .with_normalizer(rule.normalizer())
        .with_pre_tokenizer(Some(rule.pre_tokenizer()?))
        .with_decoder(Some(ByteLevel::default()));
    tokenizer.add_tokens(&added);
    Ok(tokenizer)
}

fn split_merges(merges: Vec<String>) -> Result<Merges, TextError> {
    merges
        .into_iter()
        .enumerate()
        .map(|(index, merge)| match merge.split_once(' ') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() && !right.contains(' ') => {
                Ok((left.to_owned(), right.to_owned()))
            }
            _ => Err(TextError::BadMerge { index, merge, reason: "expected two tokens with one space between" }),
        })
        .collect()
}
