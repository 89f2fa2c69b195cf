//! Embeds rows with a model on this machine.

use thane_engine::embed::output::{Kept, shorten};
use thane_engine::embed::{EmbedError, Sequence, Watch};
use thane_models::Encoding;
use thane_runtime::{Embedder, Prefix, TOKENIZER_BYTES, Tokens};

use super::job::{Encoded, Engine, Vectors, at};
use crate::app::App;
use crate::exit::{Failure, usage};
use crate::runtime::embedding_remedy;
use thane_texts::row::{Place, Row};
use thane_texts::rows::Texts;

/// A model, and what is asked of it.
pub struct Local<'a> {
    pub app: &'a App,
    pub embedder: Embedder,
    pub texts: &'a Texts,
    /// What has a vector.
    pub encoding: Encoding,
    /// Prompt that is put before each text.
    pub prefix: Prefix,
    /// Dimensions to keep.
    pub kept: Kept,
    pub truncate: bool,
}

impl Engine for Local<'_> {
    type Content = Tokens;

    fn encode(&self, row: &Row) -> Result<(Tokens, bool), Failure> {
        let max_tokens = self.embedder.max_tokens();
        let text_bytes: usize = row.texts.iter().map(String::len).sum();
        let what = || format!("the tokens of {}", self.texts.place(row.place));
        let _held = self
            .app
            .budget
            .reserve(text_bytes.saturating_mul(TOKENIZER_BYTES), what)
            .map_err(usage)?;
        let done = match self.encoding {
            Encoding::Chunks => self.embedder.tokenize_chunks(&row.texts, self.truncate),
            Encoding::Text | Encoding::Tokens | Encoding::Labels => {
                let text = row.texts.concat();
                self.embedder.tokenize(&self.prefix, &text, self.truncate)
            }
        };
        let (tokens, truncated) = done.map_err(|e| at(self.texts, row.place, e))?;
        // Checked here, before anything of the window is computed.
        match tokens.n_tokens() {
            0 => Err(self.refused(row.place, EmbedError::Empty { index: 0 })),
            n if n > max_tokens => Err(self.refused(
                row.place,
                EmbedError::TooLong {
                    index: 0,
                    tokens: n,
                    max_tokens,
                },
            )),
            _ => Ok((tokens, truncated)),
        }
    }

    fn n_tokens(&self, tokens: &Tokens) -> usize {
        tokens.n_tokens()
    }

    fn n_elements(&self, window: &[Encoded<Tokens>]) -> usize {
        let n_vectors: usize = window.iter().map(|e| self.n_vectors(&e.content)).sum();
        n_vectors.saturating_mul(self.embedder.engine.dim())
    }

    fn batches(&self, window: &[Encoded<Tokens>]) -> Vec<Vec<usize>> {
        if self.encoding == Encoding::Chunks {
            return (0..window.len()).map(|idx| vec![idx]).collect();
        }
        let lengths: Vec<usize> = window.iter().map(|e| e.content.n_tokens()).collect();
        self.embedder.engine.batches(&lengths)
    }

    fn vectors(
        &mut self,
        batch: &[&Encoded<Tokens>],
        watch: &mut Watch<'_>,
    ) -> Result<Option<Vectors>, Failure> {
        let Some(rows) = self.whole(batch, watch)? else {
            return Ok(None);
        };
        let dim = self.embedder.engine.dim();
        let keep = |row| shorten(row, dim, self.kept);
        let n_tokens = batch.iter().map(|e| e.content.n_tokens());
        Ok(Some(Vectors {
            n_tokens: n_tokens.sum::<usize>() as u64,
            rows: rows.into_iter().map(keep).collect(),
        }))
    }
}

impl Local<'_> {
    fn refused(&self, place: Place, error: EmbedError) -> Failure {
        match embedding_remedy(&error) {
            Some(remedy) => at(self.texts, place, error).remedy(remedy),
            None => usage(error),
        }
    }

    fn n_vectors(&self, tokens: &Tokens) -> usize {
        match (tokens, self.encoding) {
            (_, Encoding::Text) => 1,
            // There is at most one more chunk than separators.
            (tokens, _) => tokens.n_tokens() + 1,
        }
    }

    /// The vectors of each row with all dimensions, concatenated; `None` after an interrupt.
    fn whole(
        &mut self,
        batch: &[&Encoded<Tokens>],
        watch: &mut Watch<'_>,
    ) -> Result<Option<Vec<Vec<f32>>>, Failure> {
        let sequences = || -> Vec<Sequence> {
            let text = |e: &&Encoded<Tokens>| match &e.content {
                Tokens::Text(sequence) => sequence.clone(),
                Tokens::Chunks(_) => Sequence::default(),
            };
            batch.iter().map(text).collect()
        };
        let embedder = &mut self.embedder.engine;
        let dim = embedder.dim();
        let done = match self.encoding {
            Encoding::Text | Encoding::Labels => embedder
                .texts(&sequences(), watch)
                .map(|rows| rows.map(|rows| rows.chunks_exact(dim).map(<[f32]>::to_vec).collect())),
            Encoding::Tokens => {
                let tokens = sequences().into_iter().map(|s| s.tokens);
                embedder.tokens(&tokens.collect::<Vec<_>>(), watch)
            }
            Encoding::Chunks => return self.documents(batch, watch),
        };
        done.map_err(|e| match e.index().and_then(|index| batch.get(index)) {
            Some(encoded) => self.refused(encoded.place, e),
            None => usage(e),
        })
    }

    fn documents(
        &mut self,
        batch: &[&Encoded<Tokens>],
        watch: &mut Watch<'_>,
    ) -> Result<Option<Vec<Vec<f32>>>, Failure> {
        let mut out = Vec::with_capacity(batch.len());
        for encoded in batch {
            let Tokens::Chunks(document) = &encoded.content else {
                continue;
            };
            let rows = self.embedder.engine.chunks(document);
            out.push(rows.map_err(|e| self.refused(encoded.place, e))?);
            (watch.progress)(1);
        }
        Ok(Some(out))
    }
}
