//! An embedding model and the thread that owns it. Requests are embedded one after another, each in
//! batches of texts of similar length.

use std::io;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use thane_engine::embed::{EmbedError, Watch, output};
use thane_mil::budget::Budget;
use thane_runtime::{Embedder, Prompt, TOKENIZER_BYTES};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::counts::Counts;
use crate::error::{ApiError, error_chain, stopped};
use crate::places::Places;

/// Something to embed.
#[derive(Debug)]
pub(crate) enum Input {
    /// A text; the model's default prompt is put before it.
    Text(String),
    /// Token ids, used as they are.
    Tokens(Vec<u32>),
}

/// The vectors of a request.
#[derive(Debug)]
pub(crate) struct Vectors {
    /// Vectors of [`Ask::dim`] elements, in the order of the inputs.
    pub rows: Vec<f32>,
    /// Tokens of all inputs.
    pub n_tokens: usize,
}

/// A handle to a running embedding model.
pub(crate) struct Embeddings {
    /// Elements of a vector.
    pub dim: usize,
    /// Most tokens of an input.
    pub max_tokens: usize,
    pub places: Places,
    pub counts: Arc<Counts>,
    jobs: mpsc::Sender<Job>,
}

/// What is asked of an embedding model.
#[derive(Debug)]
pub(crate) struct Ask {
    pub inputs: Vec<Input>,
    /// How many elements of each vector to keep.
    pub dim: usize,
}

struct Job {
    ask: Ask,
    answer: oneshot::Sender<Result<Vectors, ApiError>>,
    arrived: Instant,
    _place: OwnedSemaphorePermit,
}

impl Embeddings {
    /// Starts the thread. The places are those of the queue and of the request that runs.
    pub fn start(
        embedder: Embedder,
        prompt: Prompt,
        n_queue: usize,
        budget: Budget,
    ) -> io::Result<Self> {
        let (jobs, waiting) = mpsc::channel();
        let (dim, max_tokens) = (embedder.engine.dim(), embedder.max_tokens());
        let mut worker = Worker {
            embedder,
            prompt: prompt.text,
            budget,
            counts: Arc::default(),
        };
        let counts = Arc::clone(&worker.counts);
        std::thread::Builder::new()
            .name("embeddings".to_owned())
            .spawn(move || worker.run(&waiting))?;
        Ok(Self {
            dim,
            max_tokens,
            places: Places::new(1 + n_queue),
            counts,
            jobs,
        })
    }

    /// Embeds inputs when those that came earlier are done. If the caller is dropped, the work ends
    /// before the next call of the program.
    pub async fn embed(&self, ask: Ask, place: OwnedSemaphorePermit) -> Result<Vectors, ApiError> {
        let (answer, vectors) = oneshot::channel();
        let job = Job {
            ask,
            answer,
            arrived: Instant::now(),
            _place: place,
        };
        self.jobs.send(job).map_err(|_| stopped())?;
        vectors.await.map_err(|_| stopped())?
    }
}

struct Worker {
    embedder: Embedder,
    /// Put before each text.
    prompt: String,
    budget: Budget,
    counts: Arc<Counts>,
}

impl Worker {
    fn run(&mut self, jobs: &mpsc::Receiver<Job>) {
        for job in jobs {
            self.counts.running.set(1);
            let embedded = self.embed(&job.ask, &|| job.answer.is_closed());
            let n_tokens = embedded
                .as_ref()
                .map(|found| found.as_ref().map(|v| v.n_tokens));
            self.counts.note_vectors(n_tokens, job.arrived.elapsed());
            if let Some(embedded) = embedded.transpose() {
                let _ = job.answer.send(embedded);
            }
        }
    }

    /// `None` if the client has gone.
    fn embed(
        &mut self,
        ask: &Ask,
        is_gone: &dyn Fn() -> bool,
    ) -> Result<Option<Vectors>, ApiError> {
        let mut sequences = Vec::with_capacity(ask.inputs.len());
        for (idx, input) in ask.inputs.iter().enumerate() {
            if is_gone() {
                return Ok(None);
            }
            sequences.push(self.tokens(input, idx)?);
        }
        let n_tokens = sequences.iter().map(Vec::len).sum();
        let dim = self.embedder.engine.dim();
        // As computed, as shortened and as written.
        let n_bytes = sequences.len().saturating_mul(dim).saturating_mul(12);
        let what = || format!("the vectors of {} inputs", sequences.len());
        let reserved = self.budget.reserve(n_bytes, what);
        let _held = reserved.map_err(|e| ApiError::failed(e.to_string()))?;
        let mut watch = Watch {
            interrupted: is_gone,
            progress: &mut |_| {},
        };
        let rows = self.embedder.engine.texts(&sequences, &mut watch);
        let rows = rows.map_err(|error| match error.index() {
            Some(idx) => at(idx, &error),
            None => ApiError::failed(error_chain(&error)),
        })?;
        Ok(rows.map(|rows| Vectors {
            rows: output::shorten(rows, dim, ask.dim, self.embedder.info.normalize),
            n_tokens,
        }))
    }

    fn tokens(&self, input: &Input, idx: usize) -> Result<Vec<u32>, ApiError> {
        let tokens = match input {
            Input::Text(text) => {
                let what = || format!("the tokens of a text of {} bytes", text.len());
                let n_bytes = text.len().saturating_mul(TOKENIZER_BYTES);
                let reserved = self.budget.reserve(n_bytes, what);
                let _held = reserved.map_err(|e| at(idx, &e))?;
                let whole = [self.prompt.as_str(), text].concat();
                let encoded = self.embedder.tokenize_within(&whole, usize::MAX);
                encoded.map_err(|e| at(idx, &e))?.0
            }
            Input::Tokens(tokens) => tokens.clone(),
        };
        let n_vocab = self.embedder.info.vocab_size;
        if let Some(id) = tokens.iter().find(|id| **id as usize >= n_vocab) {
            let message = format!("input[{idx}]: expected token ids below {n_vocab}, found {id}");
            return Err(ApiError::field("input", message));
        }
        let max_tokens = self.embedder.max_tokens();
        match tokens.len() {
            0 => Err(at(idx, &EmbedError::Empty { index: idx })),
            n if n > max_tokens => Err(at(
                idx,
                &EmbedError::TooLong {
                    index: idx,
                    tokens: n,
                    max_tokens,
                },
            )),
            _ => Ok(tokens),
        }
    }
}

/// The error of one input.
fn at(idx: usize, error: &(dyn std::error::Error + 'static)) -> ApiError {
    ApiError::field("input", format!("input[{idx}]: {}", error_chain(error)))
}
