//! Golden vectors: texts with the vectors that an embedding model should compute for them. They
//! tell a good copy of a package from a damaged one.

use std::collections::HashMap;
use std::path::Path;

use thane_engine::embed::similarity::Similarity;
use thane_mil::backend::Backend;
use thane_models::Encoding;
use thane_models::checkpoint::Checkpoint;

use crate::bundle_reader::Bundle;
use crate::embedder::{EmbedOptions, Embedder};
use crate::error::RuntimeError;
use crate::manifest::Golden;
use crate::observer::Observer;
use crate::package_contents::replace_goldens;

/// The texts of golden vectors: one token to some dozens, several scripts, digits, code.
pub(crate) const TEXTS: [&str; 8] = [
    "a",
    "The quick brown fox jumps over the lazy dog.",
    "What is the capital of France?",
    "Straße, naïve café, 東京タワー, Москва, مرحبا",
    // `\x21` is `!`: the tidy test looks for the macro in the source.
    "fn main() { println\x21(\"{}\", 6 * 7); }",
    "In 1969, 600 million people watched Apollo 11 land on the Moon at 20:17 UTC.",
    "Embeddings turn texts into vectors, so that texts of like meaning lie close to each other, whatever their words are.",
    "The committee met on Tuesday to discuss the budget; it adjourned without a vote, since neither side had the numbers, \
     and will meet again next week, when the treasurer has promised to bring the figures of the last three years.",
];

/// Computes golden vectors with the checkpoint itself.
pub struct Reference {
    embedder: Embedder,
    encoding: Encoding,
    /// Vectors by the tokens of their texts. Most texts are not cut, so their vectors are the same
    /// for packages of all lengths.
    known: HashMap<Vec<u32>, Vec<f32>>,
}

impl Reference {
    /// Starts the checkpoint on a backend, which should compute in fp32.
    pub fn new(
        checkpoint: &Checkpoint,
        options: &EmbedOptions,
        backend: &dyn Backend,
        observer: &dyn Observer,
    ) -> Result<Self, RuntimeError> {
        Ok(Self {
            embedder: Embedder::from_checkpoint(checkpoint, options, backend, observer)?,
            encoding: options.encoding,
            known: HashMap::new(),
        })
    }

    /// The golden vectors of a package that takes up to `max_tokens` tokens.
    pub fn goldens(&mut self, max_tokens: usize) -> Result<Vec<Golden>, RuntimeError> {
        let max_tokens = max_tokens.min(self.embedder.max_tokens());
        match self.encoding {
            Encoding::Chunks => self.chunks(max_tokens),
            _ => self.texts(max_tokens),
        }
    }

    fn texts(&mut self, max_tokens: usize) -> Result<Vec<Golden>, RuntimeError> {
        let mut goldens = Vec::new();
        for text in TEXTS {
            let (ids, _) = self.embedder.tokenize_within(text, max_tokens)?;
            // A tokenizer without special tokens may have no token for a text.
            if ids.is_empty() {
                continue;
            }
            let vector = match self.known.get(&ids) {
                Some(vector) => vector.clone(),
                None => self.embedder.embed_tokens(ids.clone())?,
            };
            self.known.insert(ids, vector.clone());
            goldens.push(Golden {
                text: text.to_owned(),
                vector,
                cosine: None,
            });
        }
        Ok(goldens)
    }

    /// The vectors of the chunks of one document: every text that still fits.
    fn chunks(&mut self, max_tokens: usize) -> Result<Vec<Golden>, RuntimeError> {
        let mut chunks: Vec<String> = Vec::new();
        for text in TEXTS {
            chunks.push(text.to_owned());
            // Without a separator, nothing can be embedded in chunks.
            let Ok((tokens, _)) = self.embedder.tokenize_chunks(&chunks, false) else {
                return Ok(Vec::new());
            };
            if tokens.n_tokens() > max_tokens {
                chunks.pop();
            }
        }
        let vectors = self.embedder.whole_chunks(&chunks)?;
        let vectors = vectors.chunks_exact(self.embedder.engine.dim());
        let golden = |(text, vector): (String, &[f32])| Golden {
            text,
            vector: vector.to_vec(),
            cosine: None,
        };
        Ok(chunks.into_iter().zip(vectors).map(golden).collect())
    }
}

/// Records how near the vectors of a package with compressed weights, which is not in use yet, are
/// to the golden ones. `backend` should compute in fp32. Packages without golden vectors stay as
/// they are.
pub fn record_cosines(path: &Path, backend: &dyn Backend) -> Result<(), RuntimeError> {
    let bundle = Bundle::open(path)?;
    if bundle.goldens.is_empty() {
        return Ok(());
    }
    let encoding = match bundle.facts.encoding.as_str() {
        "chunks" => Encoding::Chunks,
        _ => Encoding::Text,
    };
    let options = EmbedOptions {
        encoding,
        ..EmbedOptions::default()
    };
    let mut embedder = Embedder::from_packages(path, &options, backend, &())?;
    let cosines = compare_goldens(&mut embedder, &bundle.goldens, encoding, || ())?;
    let pairs = bundle.goldens.into_iter().zip(cosines);
    let recorded = pairs.map(|(golden, cosine)| Golden {
        cosine: Some(cosine),
        ..golden
    });
    let recorded: Vec<Golden> = recorded.collect();
    replace_goldens(path, &recorded).map_err(RuntimeError::write(path))
}

/// The cosine between each golden vector and the vector that `embedder` computes for its text; 0 if
/// their lengths differ. Calls `on_text` after each text.
pub fn compare_goldens(
    embedder: &mut Embedder,
    goldens: &[Golden],
    encoding: Encoding,
    on_text: impl Fn(),
) -> Result<Vec<f64>, RuntimeError> {
    let vectors = if encoding == Encoding::Chunks {
        let chunks: Vec<String> = goldens.iter().map(|golden| golden.text.clone()).collect();
        let vectors = embedder.whole_chunks(&chunks)?;
        let dim = embedder.engine.dim();
        vectors.chunks_exact(dim).map(<[f32]>::to_vec).collect()
    } else {
        let mut embed = |golden: &Golden| {
            let (ids, _) = embedder.tokenize_within(&golden.text, embedder.max_tokens())?;
            on_text();
            embedder.embed_tokens(ids)
        };
        goldens
            .iter()
            .map(&mut embed)
            .collect::<Result<Vec<_>, _>>()?
    };
    let pairs = goldens.iter().zip(vectors);
    Ok(pairs
        .map(|(golden, vector)| {
            if vector.len() == golden.vector.len() {
                Similarity::Cosine.compare(&vector, &golden.vector)
            } else {
                0.0
            }
        })
        .collect())
}
