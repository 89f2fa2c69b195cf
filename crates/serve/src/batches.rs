//! The thread that owns an embedding model. It takes what is queued, up to a number of tokens, and
//! embeds the texts of all these requests together: texts of similar length share a call of the
//! program, whoever sent them.

use std::sync::{Arc, mpsc};
use std::time::Instant;

use thane_engine::embed::output::{self, Kept};
use thane_engine::embed::{Document, EmbedError, Sequence, Watch};
use thane_mil::budget::{Budget, Reservation};
use thane_runtime::{EmbedOptions, Embedder};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::counts::Counts;
use crate::error::{ApiError, of_cause};

/// Tokens that are gathered: those of two calls of the program. More would find neighbors of more
/// similar length, and make the first request wait longer.
const BATCH_TOKENS: usize = 2 * EmbedOptions::BATCH_TOKENS;

/// The tokens of a request.
#[derive(Debug)]
pub(crate) enum Work {
    /// A vector for each.
    Texts(Vec<Sequence>),
    /// A vector for each chunk.
    Documents(Vec<Document>),
    /// A vector for each token.
    Tokens(Vec<Vec<u32>>),
}

/// The vectors of a request.
#[derive(Debug)]
pub(crate) struct Vectors {
    /// Vectors of as many elements as were asked for, in the order of the inputs.
    pub rows: Vec<f32>,
    /// Vectors of each input.
    pub n_rows: Vec<usize>,
    /// Tokens of all inputs.
    pub n_tokens: usize,
    /// Inputs that were cut.
    pub n_cut: usize,
    /// The memory of the rows.
    pub _held: Reservation,
}

/// A request and who waits for its vectors.
pub(crate) struct Job {
    pub work: Work,
    /// How many elements of each vector to keep.
    pub kept: Kept,
    pub answer: oneshot::Sender<Result<Vectors, ApiError>>,
    pub arrived: Instant,
    pub _place: OwnedSemaphorePermit,
}

impl Job {
    fn is_gone(&self) -> bool {
        self.answer.is_closed()
    }

    fn n_tokens(&self) -> usize {
        match &self.work {
            Work::Texts(sequences) => sequences.iter().map(|s| s.tokens.len()).sum(),
            Work::Tokens(sequences) => sequences.iter().map(Vec::len).sum(),
            Work::Documents(documents) => documents.iter().map(|d| d.tokens().len()).sum(),
        }
    }

    /// Vectors of each input.
    fn n_rows(&self) -> Vec<usize> {
        match &self.work {
            Work::Texts(sequences) => vec![1; sequences.len()],
            Work::Tokens(sequences) => sequences.iter().map(Vec::len).collect(),
            Work::Documents(documents) => documents.iter().map(|d| d.spans().len()).collect(),
        }
    }

    /// Answers, and counts how the request ended; with `None` if the client has gone.
    fn end(self, found: Result<Option<Vectors>, ApiError>, counts: &Counts) {
        let n_tokens = found.as_ref().map(|v| v.as_ref().map(|v| v.n_tokens));
        counts.note_vectors(n_tokens, self.arrived.elapsed());
        if let Some(found) = found.transpose() {
            let _ = self.answer.send(found);
        }
    }

    /// Answers with whole rows, whose memory is `held`.
    fn answer(self, rows: Vec<f32>, held: Reservation, (embedder, counts): (&Embedder, &Counts)) {
        let row_len = embedder.engine.dim();
        let vectors = Vectors {
            rows: output::shorten(rows, row_len, self.kept),
            n_rows: self.n_rows(),
            n_tokens: self.n_tokens(),
            n_cut: 0,
            _held: held,
        };
        self.end(Ok(Some(vectors)), counts);
    }
}

/// Texts of requests that are embedded together.
#[derive(Default)]
struct Batch {
    /// Jobs of texts, with the memory for their vectors.
    jobs: Vec<(Job, Reservation)>,
    /// Those that fill a batch by themselves. They run alone and last, so that they end when their
    /// clients go, and nobody waits for them.
    large: Vec<(Job, Reservation)>,
    n_tokens: usize,
}

pub(crate) struct Worker {
    pub embedder: Embedder,
    pub budget: Budget,
    pub counts: Arc<Counts>,
}

impl Worker {
    /// Works until the server is gone.
    pub fn run(&mut self, jobs: &mpsc::Receiver<Job>) {
        while let Ok(first) = jobs.recv() {
            let mut batch = Batch::default();
            self.counts.running.set(1);
            self.take(first, &mut batch);
            while batch.n_tokens < BATCH_TOKENS
                && let Ok(job) = jobs.try_recv()
            {
                self.take(job, &mut batch);
            }
            self.counts.running.set(batch.jobs.len() as u64);
            self.embed(batch.jobs);
            for job in batch.large {
                self.embed(vec![job]);
            }
            self.counts.running.set(0);
        }
    }

    /// Puts the texts of a job into the batch; documents and tokens are embedded at once.
    fn take(&mut self, job: Job, batch: &mut Batch) {
        if job.is_gone() {
            return job.end(Ok(None), &self.counts);
        }
        let n_vectors: usize = job.n_rows().iter().sum();
        // As computed and as shortened.
        let n_bytes = n_vectors.saturating_mul(8 * self.embedder.engine.dim());
        let what = || format!("{n_vectors} vectors");
        let held = match self.budget.reserve(n_bytes, what) {
            Ok(held) => held,
            Err(error) => return job.end(Err(error.into()), &self.counts),
        };
        let rows = match &job.work {
            Work::Texts(_) => {
                let n_tokens = job.n_tokens();
                batch.n_tokens += n_tokens;
                let is_large = n_tokens >= BATCH_TOKENS;
                return match is_large {
                    true => batch.large.push((job, held)),
                    false => batch.jobs.push((job, held)),
                };
            }
            Work::Documents(documents) => self.documents(documents, &|| job.is_gone()),
            Work::Tokens(sequences) => self.tokens(sequences, &|| job.is_gone()),
        };
        match rows {
            Ok(Some(rows)) => job.answer(rows, held, (&self.embedder, &self.counts)),
            Ok(None) => job.end(Ok(None), &self.counts),
            Err(error) => job.end(Err(shown(&error)), &self.counts),
        }
    }

    fn documents(
        &mut self,
        documents: &[Document],
        is_gone: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<f32>>, EmbedError> {
        let mut rows = Vec::new();
        for (index, document) in documents.iter().enumerate() {
            if is_gone() {
                return Ok(None);
            }
            let of_document = self.embedder.engine.chunks(document);
            rows.extend(of_document.map_err(|error| match error {
                EmbedError::NotFinite { .. } => EmbedError::NotFinite { index },
                EmbedError::Token { id, .. } => EmbedError::Token { index, id },
                other => other,
            })?);
        }
        Ok(Some(rows))
    }

    fn tokens(
        &mut self,
        sequences: &[Vec<u32>],
        is_gone: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<f32>>, EmbedError> {
        let mut watch = Watch {
            interrupted: is_gone,
            progress: &mut |_| {},
        };
        let rows = self.embedder.engine.tokens(sequences, &mut watch)?;
        Ok(rows.map(|rows| rows.concat()))
    }

    /// Embeds the texts of jobs together. If one of them cannot be embedded, each is alone.
    fn embed(&mut self, jobs: Vec<(Job, Reservation)>) {
        if jobs.is_empty() {
            return;
        }
        let all: Vec<&Job> = jobs.iter().map(|(job, _)| job).collect();
        match self.texts(&all) {
            Ok(None) => {
                let jobs = jobs.into_iter();
                jobs.for_each(|(job, _held)| job.end(Ok(None), &self.counts));
            }
            Ok(Some(rows)) => {
                let mut rest = rows.as_slice();
                for (job, held) in jobs {
                    let n_rows: usize = job.n_rows().iter().sum();
                    let (rows, after) = rest.split_at(n_rows * self.embedder.engine.dim());
                    rest = after;
                    job.answer(rows.to_vec(), held, (&self.embedder, &self.counts));
                }
            }
            Err(_) if jobs.len() > 1 => {
                for one in jobs {
                    self.embed(vec![one]);
                }
            }
            Err(error) => {
                for (job, _held) in jobs {
                    job.end(Err(shown(&error)), &self.counts);
                }
            }
        }
    }

    /// `None` if all clients have gone.
    fn texts(&mut self, jobs: &[&Job]) -> Result<Option<Vec<f32>>, EmbedError> {
        let texts = jobs.iter().filter_map(|job| match &job.work {
            Work::Texts(sequences) => Some(sequences.as_slice()),
            Work::Documents(_) | Work::Tokens(_) => None,
        });
        let sequences: Vec<Sequence> = texts.flatten().cloned().collect();
        let mut watch = Watch {
            interrupted: &|| jobs.iter().all(|job| job.is_gone()),
            progress: &mut |_| {},
        };
        self.embedder.engine.texts(&sequences, &mut watch)
    }
}

/// The error of a request that was embedded alone.
fn shown(error: &EmbedError) -> ApiError {
    match (error, error.index()) {
        (_, Some(idx)) => at(idx, error),
        (EmbedError::TooManyChunks { .. }, None) => ApiError::field("input", error.to_string()),
        (_, None) => of_cause(error, ApiError::failed),
    }
}

/// The error of one input.
pub(crate) fn at(idx: usize, error: &(dyn std::error::Error + 'static)) -> ApiError {
    of_cause(error, |said| {
        ApiError::field("input", format!("input[{idx}]: {said}"))
    })
}
