//! Warm-up: the first computation of a model that was loaded. It touches all weights and packs
//! those that are packed, so that no client waits for it, and it refuses weights that give no
//! numbers.

use thane_engine::sample::{SampleOptions, Sampler};
use thane_engine::sessions::Sessions;
use thane_runtime::{Embedder, PromptEncoder, Reranker, RuntimeError};

/// The text that is computed.
const TEXT: &str = "a";

/// Computes the tokens that come first of an answer. Weights are packed at the second of them; the
/// last one calls `decode_top`, if the program has that function. No cache keeps the tokens.
pub(crate) fn answer(
    sessions: &mut Sessions,
    prompts: &PromptEncoder,
    gives_all_logits: bool,
) -> Result<(), RuntimeError> {
    const N_GREATEST: [Option<usize>; 3] = [None, None, Some(1)];
    let mut tokens = prompts.encode_prompt(TEXT)?;
    tokens.truncate(sessions.context().saturating_sub(N_GREATEST.len()));
    let Some(last) = tokens
        .last()
        .copied()
        .filter(|_| sessions.n_sequences() > 0)
    else {
        return Ok(());
    };
    sessions.feed(&[(0, &tokens)], &|| false)?;
    if gives_all_logits {
        let greedy = SampleOptions {
            temperature: 0.0,
            ..SampleOptions::default()
        };
        let mut logits = sessions.logits(0)?.into_owned();
        let sampled = Sampler::new(greedy).and_then(|mut s| s.sample(&mut logits, &[]));
        sampled.map_err(|e| RuntimeError::from(thane_engine::generate::GenerateError::from(e)))?;
    }
    for n_greatest in N_GREATEST {
        sessions.decode(&[(0, last)], n_greatest)?;
    }
    Ok(sessions.reset(0)?)
}

/// Computes a vector.
pub(crate) fn vector(embedder: &mut Embedder) -> Result<(), RuntimeError> {
    let tokens = embedder.text().encode(TEXT)?;
    embedder.embed_tokens(tokens).map(|_| ())
}

/// Computes a score.
pub(crate) fn score(reranker: &mut Reranker) -> Result<(), RuntimeError> {
    reranker.rank(TEXT, &[TEXT]).map(|_| ())
}
