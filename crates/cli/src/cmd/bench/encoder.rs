//! Measures embedding.

use std::time::Instant;

use thane_engine::embed::{Sequence, Watch};
use thane_runtime::{EmbedOptions, Model};

use super::texts::{ids, lengths};
use super::{Bench, Length};
use crate::exit::{Failure, Outcome, interrupted, usage};

impl Bench<'_> {
    pub fn embed(&self, figures: &mut Vec<serde_json::Value>) -> Outcome {
        let n_texts = self.n_texts()?;
        let output = self.app.output.as_ref();
        let mut embedder = Model::open(&self.args.model, &self.app.hub, output)?.embedding_model(
            &EmbedOptions::default(),
            &self.backend(),
            output,
        )?;
        for length @ Length(from, to) in self.lengths() {
            if to > embedder.max_tokens() {
                return Err(usage!(
                    "expected at most {} tokens, which the model takes, found {to}",
                    embedder.max_tokens()
                )
                .remedy(format!("--lengths {}", embedder.max_tokens())));
            }
            let numbered = lengths(length, n_texts).into_iter().zip(7..);
            let texts: Vec<Sequence> = numbered
                .map(|(n, seed)| ids(n, embedder.info.vocab_size, seed).into())
                .collect();
            let n_tokens: usize = texts.iter().map(|text| text.tokens.len()).sum();
            for batch in self.batches(&[1, 32]) {
                let rates = self.rounds(&mut || {
                    let start = Instant::now();
                    for texts in texts.chunks(usize::from(batch)) {
                        let stop = || self.app.interrupt.is_set();
                        let mut watch = Watch {
                            interrupted: &stop,
                            progress: &mut |_| {},
                        };
                        let done = embedder.engine.texts(texts, &mut watch);
                        if done.map_err(usage)?.is_none() {
                            return Err(interrupted());
                        }
                    }
                    Ok(texts.len() as f64 / start.elapsed().as_secs_f64())
                })?;
                let mut figure = self.figure(&embedder.name, [from, to], rates, "texts/s");
                figure.batch = Some(batch);
                figure.tokens_per_s = Some(figure.median * n_tokens as f64 / texts.len() as f64);
                self.say(figure, figures)?;
            }
        }
        Ok(())
    }

    /// Number of texts per round; never fewer than a batch.
    fn n_texts(&self) -> Result<usize, Failure> {
        let batch = self.batches(&[1, 32]).into_iter().max().unwrap_or(1);
        match self.args.texts {
            Some(texts) if texts < batch => {
                Err(usage!("--texts {texts}: fewer than the {batch} of --batch")
                    .remedy(format!("--texts {batch}")))
            }
            texts => Ok(usize::from(texts.unwrap_or(batch.max(128)))),
        }
    }
}
