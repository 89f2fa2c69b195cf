//! Embeds rows by asking a running server.

use thane_engine::embed::Watch;
use thane_serve::{Client, ClientError};

use super::job::{Encoded, Engine, Vectors, at};
use crate::exit::{Code, Failure};
use thane_texts::row::Row;
use thane_texts::rows::Texts;

/// Most texts of a request, and most bytes of them: a body has 4 MiB, and each byte may take six.
const MAX_TEXTS: usize = 128;
const MAX_BYTES: usize = 512 << 10;

/// A model of a server, and what is asked of it.
pub struct Remote<'a> {
    pub client: Client,
    pub model: &'a str,
    pub texts: &'a Texts,
    /// Dimensions that are asked for; `None` for all.
    pub asked_dim: Option<usize>,
    /// Dimensions of a vector.
    pub dim: usize,
}

impl Engine for Remote<'_> {
    type Content = String;

    fn encode(&self, row: &Row) -> Result<(String, bool), Failure> {
        Ok((row.texts.concat(), false))
    }

    fn n_tokens(&self, text: &String) -> usize {
        text.len() / 4 + 1
    }

    fn n_elements(&self, window: &[Encoded<String>]) -> usize {
        window.len().saturating_mul(self.dim)
    }

    fn batches(&self, window: &[Encoded<String>]) -> Vec<Vec<usize>> {
        let (mut batches, mut n_bytes) = (Vec::<Vec<usize>>::new(), 0);
        for (idx, row) in window.iter().enumerate() {
            n_bytes += row.content.len();
            match batches.last_mut() {
                Some(batch) if batch.len() < MAX_TEXTS && n_bytes <= MAX_BYTES => batch.push(idx),
                _ => {
                    n_bytes = row.content.len();
                    batches.push(vec![idx]);
                }
            }
        }
        batches
    }

    fn vectors(
        &mut self,
        batch: &[&Encoded<String>],
        watch: &mut Watch<'_>,
    ) -> Result<Option<Vectors>, Failure> {
        let texts: Vec<&str> = batch.iter().map(|row| row.content.as_str()).collect();
        let dims = (self.asked_dim, self.dim);
        let answer = self.client.embed(self.model, &texts, dims);
        let (rows, n_tokens) = answer.map_err(|e| self.refused(e, batch))?;
        if let Some(row) = rows.iter().find(|row| row.len() != self.dim) {
            let what = format!("expected vectors of {}, found {}", self.dim, row.len());
            return Err(self.client.answer(what).into());
        }
        (watch.progress)(batch.len());
        Ok(Some(Vectors { rows, n_tokens }))
    }
}

impl Remote<'_> {
    /// Names the row that the server refuses, if it says which (`input[3]: ..`), or embeds wrongly.
    fn refused(&self, error: ClientError, batch: &[&Encoded<String>]) -> Failure {
        let index = match &error {
            ClientError::Refused { message, .. } => message
                .strip_prefix("input[")
                .and_then(|rest| rest.split(']').next()?.parse().ok()),
            ClientError::Vector { index, .. } => Some(*index),
            _ => None,
        };
        match index.and_then(|index: usize| batch.get(index)) {
            Some(row) if matches!(error, ClientError::Vector { .. }) => {
                let place = self.texts.place(row.place);
                Failure::new(Code::Network, anyhow::anyhow!("{place}: {error}"))
            }
            Some(row) => at(self.texts, row.place, error),
            None => error.into(),
        }
    }
}
