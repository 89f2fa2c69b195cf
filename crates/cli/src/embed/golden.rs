//! Known texts and their vectors, which tell a good copy of a package from a bad one.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use thane_models::checkpoint::Checkpoint;
use thane_models::{EncoderOptions, Encoding};

use super::encoder::{self, Encoder, Run, Tokens};
use crate::app::App;
use crate::exit::Failure;
use crate::model::NumericsFlag;

/// The known texts: lengths of one token to some dozens, scripts, digits, code.
const TEXTS: [&str; 8] = [
    "a",
    "The quick brown fox jumps over the lazy dog.",
    "What is the capital of France?",
    "Straße, naïve café, 東京タワー, Москва, مرحبا",
    "fn main() { println!(\"{}\", 6 * 7); }",
    "In 1969, 600 million people watched Apollo 11 land on the Moon at 20:17 UTC.",
    "Embeddings turn texts into vectors, so that texts of like meaning lie close to each other, whatever their words are.",
    "The committee met on Tuesday to discuss the budget; it adjourned without a vote, since neither side had the numbers, \
     and will meet again next week, when the treasurer has promised to bring the figures of the last three years.",
];

/// A vector that a text has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Golden {
    pub text: String,
    /// What the reference makes of it, cut to what the package takes: fp32, not truncated or
    /// quantised.
    pub vector: Vec<f32>,
}

/// The model that the vectors are made with: the checkpoint in fp32, on this machine.
pub struct Reference {
    encoder: Encoder,
    encoding: Encoding,
    /// Vectors of texts that were embedded, by their tokens: most are the same for packages of all
    /// lengths.
    known: HashMap<Vec<u32>, Vec<f32>>,
}

impl Reference {
    pub fn new(
        checkpoint: &Checkpoint,
        options: &EncoderOptions,
        app: &App,
    ) -> Result<Self, Failure> {
        let numerics = NumericsFlag::F32;
        let run = Run {
            numerics,
            threads: None,
            batch_tokens: 1024,
            max_length: None,
            profile: None,
        };
        let encoder = encoder::of_checkpoint(checkpoint, options, &run, app)?;
        Ok(Self {
            encoder,
            encoding: options.encoding,
            known: HashMap::new(),
        })
    }

    /// The golden vectors of a package that takes up to `max_tokens`.
    pub fn goldens(&mut self, max_tokens: usize) -> anyhow::Result<Vec<Golden>> {
        match self.encoding {
            Encoding::Chunks => self.of_chunks(max_tokens),
            _ => self.of_texts(max_tokens),
        }
    }

    fn of_texts(&mut self, max_tokens: usize) -> anyhow::Result<Vec<Golden>> {
        let mut goldens = Vec::new();
        for text in TEXTS {
            let (ids, _) = self
                .encoder
                .text_within(text, max_tokens.min(self.encoder.max_tokens()))?;
            // Tokenizers without special tokens have none for some texts.
            if ids.is_empty() {
                continue;
            }
            let vector = match self.known.get(&ids) {
                Some(vector) => vector.clone(),
                None => self.encoder.embed(ids.clone())?,
            };
            self.known.insert(ids, vector.clone());
            goldens.push(Golden {
                text: text.to_owned(),
                vector,
            });
        }
        Ok(goldens)
    }

    /// Those of the chunks of one document: the texts that fit whole.
    fn of_chunks(&mut self, max_tokens: usize) -> anyhow::Result<Vec<Golden>> {
        let mut chunks: Vec<String> = Vec::new();
        for text in TEXTS {
            chunks.push(text.to_owned());
            // Without a separator nothing can be embedded in chunks.
            let Ok((tokens, _)) = self.encoder.chunks(&chunks, false) else {
                return Ok(Vec::new());
            };
            if tokens.len() > max_tokens.min(self.encoder.max_tokens()) {
                chunks.pop();
            }
        }
        let vectors = vectors_of_chunks(&mut self.encoder, &chunks)?;
        Ok(chunks
            .into_iter()
            .zip(vectors)
            .map(|(text, vector)| Golden { text, vector })
            .collect())
    }
}

/// The vectors that `encoder` makes of the texts of golden vectors; `tick` is called for each text.
pub fn vectors(
    encoder: &mut Encoder,
    goldens: &[Golden],
    encoding: Encoding,
    tick: impl Fn(),
) -> anyhow::Result<Vec<Vec<f32>>> {
    if encoding == Encoding::Chunks {
        let chunks: Vec<String> = goldens.iter().map(|golden| golden.text.clone()).collect();
        return vectors_of_chunks(encoder, &chunks);
    }
    let one = |golden: &Golden| {
        let (ids, _) = encoder.text_within(&golden.text, encoder.max_tokens())?;
        tick();
        encoder.embed(ids)
    };
    goldens.iter().map(one).collect()
}

fn vectors_of_chunks(encoder: &mut Encoder, chunks: &[String]) -> anyhow::Result<Vec<Vec<f32>>> {
    if chunks.is_empty() {
        return Ok(Vec::new());
    }
    let dim = encoder.embedder.dim();
    match encoder.chunks(chunks, false)? {
        (Tokens::Chunks(document), _) => {
            let rows = encoder.embedder.chunks(&document)?;
            Ok(rows.chunks_exact(dim).map(<[f32]>::to_vec).collect())
        }
        (Tokens::Text(_), _) => Ok(Vec::new()),
    }
}
