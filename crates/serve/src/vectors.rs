//! An embedding model. Handlers turn inputs into tokens on a few threads; the thread that owns the
//! model takes what is queued, up to a number of tokens, and embeds it together ([`batches`]).
//!
//! [`batches`]: crate::batches

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thane_engine::embed::output::Kept;
use thane_engine::embed::{Document, EmbedError, Sequence, shorten};
use thane_engine::text::{Cut, EncodeOptions};
use thane_mil::budget::Budget;
use thane_runtime::{
    Embedder, EncoderInfo, Encoding, Prefix, Prompt, TextEncoder, TokenizerMemory, kept_by_default,
};
use tokio::sync::oneshot;

use crate::batches::{Job, Vectors, Work, Worker, at};
use crate::counts::Counts;
use crate::deadline;
use crate::error::{ApiError, TOO_LARGE, error_chain, stopped};
use crate::log::add_input_tokens;
use crate::places::Places;

/// Most numbers of an answer with a vector for each token: they take some 12 bytes each.
const MAX_TOKEN_NUMBERS: usize = 1 << 22;

/// Something to embed.
#[derive(Debug)]
pub(crate) enum Input {
    /// A text, with the prompt before it.
    Text(String),
    /// Token ids, used as they are.
    Tokens(Vec<u32>),
    /// The chunks of a document, which share one pass.
    Chunks(Vec<String>),
}

impl From<String> for Input {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// What is asked of an embedding model.
#[derive(Debug)]
pub(crate) struct Ask {
    /// All texts and tokens, or all chunks.
    pub inputs: Vec<Input>,
    /// How many elements of each vector to keep.
    pub kept: Kept,
    /// What becomes of texts that are too long; `None` for an error.
    pub cut: Option<Cut>,
    /// The name of the prompt to put before texts; `None` for the model's default, an empty name
    /// for none.
    pub prompt: Option<String>,
    /// Whether each token has a vector.
    pub of_tokens: bool,
}

impl Ask {
    /// Asks for one vector for each input, with the model's prompt.
    pub fn new(inputs: Vec<Input>, kept: Kept) -> Self {
        Self {
            inputs,
            kept,
            cut: None,
            prompt: None,
            of_tokens: false,
        }
    }
}

/// A handle to a running embedding model.
pub(crate) struct Embeddings {
    /// Elements of a vector.
    pub dim: usize,
    /// Most tokens of an input.
    pub max_tokens: usize,
    pub places: Places,
    pub counts: Arc<Counts>,
    pub info: EncoderInfo,
    pub texts: Arc<TextEncoder>,
    encodings: Vec<Encoding>,
    budget: Budget,
    answer_time: Option<Duration>,
    jobs: mpsc::Sender<Job>,
}

impl Embeddings {
    /// Starts the thread, which ends when the result is dropped. The places are those of the queue
    /// and of the request that runs.
    pub fn start(
        embedder: Embedder,
        n_queue: usize,
        budget: Budget,
        answer_time: Option<Duration>,
    ) -> io::Result<(Self, JoinHandle<()>)> {
        let (jobs, waiting) = mpsc::channel();
        let (dim, max_tokens) = (embedder.engine.dim(), embedder.max_tokens());
        let counts: Arc<Counts> = Arc::default();
        let (info, texts) = (embedder.info.clone(), embedder.text());
        let encodings = embedder.encodings.clone();
        let mut worker = Worker {
            embedder,
            budget: budget.clone(),
            counts: Arc::clone(&counts),
        };
        let thread = std::thread::Builder::new()
            .name("embeddings".to_owned())
            .spawn(move || worker.run(&waiting))?;
        let started = Self {
            dim,
            max_tokens,
            places: Places::new(1 + n_queue, "requests"),
            counts,
            info,
            texts,
            encodings,
            budget,
            answer_time,
            jobs,
        };
        Ok((started, thread))
    }

    /// The elements of a vector that are kept unless a request says otherwise.
    pub fn kept(&self) -> Kept {
        kept_by_default(&self.info)
    }

    /// Embeds inputs when those that came earlier are done. If the caller is dropped, the work ends
    /// soon.
    pub async fn embed(&self, ask: Ask) -> Result<Vectors, ApiError> {
        deadline::within(self.answer_time, self.embedded(ask)).await
    }

    async fn embedded(&self, ask: Ask) -> Result<Vectors, ApiError> {
        let place = self.places.take()?;
        let (kept, of_tokens) = (ask.kept, ask.of_tokens);
        let encoder = self.encoder(ask.prompt.as_deref(), ask.cut)?;
        let (answer, vectors) = oneshot::channel();
        let encoded = tokio::task::spawn_blocking(move || {
            let encoded = encoder.encode(ask.inputs, of_tokens, &|| answer.is_closed());
            (encoded, answer, place)
        });
        let encoded = encoded.await;
        let (encoded, answer, place) =
            encoded.map_err(|_| ApiError::failed("the inputs could not be encoded"))?;
        let (work, n_cut) = encoded?;
        self.check(&work)?;
        let job = Job {
            work,
            kept,
            answer,
            arrived: Instant::now(),
            _place: place,
        };
        self.jobs.send(job).map_err(|_| stopped())?;
        let vectors = vectors.await.map_err(|_| stopped())??;
        add_input_tokens(vectors.n_tokens);
        Ok(Vectors { n_cut, ..vectors })
    }

    /// The tokens of texts, with a prompt before each. If the caller is dropped, the work ends
    /// soon.
    pub async fn tokenize(
        &self,
        texts: Vec<String>,
        prompt: Option<&str>,
        add_special: bool,
    ) -> Result<Vec<Vec<u32>>, ApiError> {
        let encoder = self.encoder(prompt, None)?;
        let (caller, _held) = oneshot::channel::<()>();
        let encoded = tokio::task::spawn_blocking(move || {
            let texts = texts.iter().enumerate().take_while(|_| !caller.is_closed());
            texts
                .map(|(idx, text)| {
                    encoder.encode_text(text, idx, add_special, &|| caller.is_closed())
                })
                .collect()
        });
        let unfinished = || ApiError::failed("the inputs could not be encoded");
        let encoded = async { encoded.await.map_err(|_| unfinished())? };
        deadline::within(self.answer_time, encoded).await
    }

    /// Refuses work for which the program has no function, and token vectors that would take too
    /// much of an answer.
    fn check(&self, work: &Work) -> Result<(), ApiError> {
        if let Work::Tokens(sequences) = work {
            let n: usize = sequences.iter().map(Vec::len).sum();
            let most = MAX_TOKEN_NUMBERS / self.dim;
            if n > most {
                let message = format!("`inputs`: expected at most {most} tokens in all, found {n}");
                return Err(ApiError::field("inputs", message).with_code(TOO_LARGE));
            }
        }
        let needed = match work {
            Work::Texts(_) => Encoding::Text,
            Work::Documents(_) => Encoding::Chunks,
            Work::Tokens(_) => Encoding::Tokens,
        };
        if self.encodings.contains(&needed) {
            return Ok(());
        }
        let message = format!(
            "the model has no function `{}`: it pools in several ways, or is a package without it",
            needed.function()
        );
        Err(ApiError::field("model", message))
    }

    fn encoder(&self, prompt: Option<&str>, cut: Option<Cut>) -> Result<InputEncoder, ApiError> {
        let prompt = Prompt::choose(prompt, &self.info);
        let prompt = prompt.map_err(|e| ApiError::field("prompt_name", error_chain(&e)))?;
        let prefix = self.texts.prefix(prompt.text, self.max_tokens);
        Ok(InputEncoder {
            texts: Arc::clone(&self.texts),
            prefix: prefix.map_err(|e| ApiError::failed(error_chain(&e)))?,
            cut,
            max_tokens: self.max_tokens,
            n_vocab: self.info.vocab_size,
            budget: self.budget.clone(),
        })
    }
}

/// Turns inputs into tokens.
struct InputEncoder {
    texts: Arc<TextEncoder>,
    /// Put before each text.
    prefix: Prefix,
    cut: Option<Cut>,
    max_tokens: usize,
    n_vocab: usize,
    budget: Budget,
}

impl InputEncoder {
    /// The work of inputs, and how many were cut. If the client goes, what was encoded so far,
    /// which nobody waits for.
    fn encode(
        &self,
        inputs: Vec<Input>,
        of_tokens: bool,
        is_gone: &dyn Fn() -> bool,
    ) -> Result<(Work, usize), ApiError> {
        let (mut sequences, mut documents) = (Vec::new(), Vec::new());
        let mut n_cut = 0;
        for (idx, input) in inputs.into_iter().enumerate() {
            if is_gone() {
                break;
            }
            match input {
                Input::Text(text) => {
                    let (tokens, is_cut) = self.text(&text, idx, is_gone)?;
                    n_cut += usize::from(is_cut);
                    sequences.push(tokens);
                }
                Input::Tokens(tokens) => sequences.push(self.tokens(tokens, idx)?.into()),
                Input::Chunks(chunks) => documents.push(self.chunks(&chunks, idx, is_gone)?),
            }
        }
        let work = if !documents.is_empty() {
            Work::Documents(documents)
        } else if of_tokens {
            Work::Tokens(sequences.into_iter().map(|s: Sequence| s.tokens).collect())
        } else {
            Work::Texts(sequences)
        };
        Ok((work, n_cut))
    }

    /// The tokens of a text, and whether it was cut.
    fn text(
        &self,
        text: &str,
        idx: usize,
        is_gone: &dyn Fn() -> bool,
    ) -> Result<(Sequence, bool), ApiError> {
        let mut tokens = self.encode_text(text, idx, true, is_gone)?;
        let around = self.texts.around();
        let shortened = |cut| shorten(&mut tokens, self.max_tokens, around, cut);
        let is_cut = self.cut.is_some_and(shortened);
        self.check_length(tokens.len(), idx)?;
        let sequence = self.prefix.before(tokens).map_err(|e| at(idx, &e))?;
        Ok((sequence, is_cut))
    }

    /// The tokens of a text, however many.
    fn encode_text(
        &self,
        text: &str,
        idx: usize,
        add_special: bool,
        is_gone: &dyn Fn() -> bool,
    ) -> Result<Vec<u32>, ApiError> {
        let _held = self.reserve(text.len(), idx)?;
        let whole = [self.prefix.text.as_str(), text].concat();
        let options = EncodeOptions {
            add_special,
            parse_special: true,
        };
        let tokenizer = self.texts.tokenizer();
        let encoded = tokenizer.encode_until(&whole, options, is_gone);
        encoded.map_err(|e| at(idx, &e))
    }

    fn tokens(&self, tokens: Vec<u32>, idx: usize) -> Result<Vec<u32>, ApiError> {
        let n_vocab = self.n_vocab;
        if let Some(id) = tokens.iter().find(|id| **id as usize >= n_vocab) {
            let message = format!("input[{idx}]: expected token ids below {n_vocab}, found {id}");
            return Err(ApiError::field("input", message));
        }
        self.check_length(tokens.len(), idx)?;
        Ok(tokens)
    }

    fn chunks(
        &self,
        chunks: &[String],
        idx: usize,
        is_gone: &dyn Fn() -> bool,
    ) -> Result<Document, ApiError> {
        let _held = self.reserve(chunks.iter().map(String::len).sum(), idx)?;
        let document = self.texts.document(chunks, is_gone);
        let document = document.map_err(|e| at(idx, &e))?;
        self.check_length(document.tokens().len(), idx)?;
        Ok(document)
    }

    fn reserve(&self, len: usize, idx: usize) -> Result<impl Sized + use<>, ApiError> {
        TokenizerMemory::reserve(&self.budget, len, "text").map_err(|e| at(idx, &e))
    }

    fn check_length(&self, n: usize, index: usize) -> Result<(), ApiError> {
        let max_tokens = self.max_tokens;
        match n {
            0 => Err(at(index, &EmbedError::Empty { index })),
            tokens if tokens > max_tokens => {
                let error = EmbedError::TooLong {
                    index,
                    tokens,
                    max_tokens,
                };
                Err(at(index, &error).with_code(TOO_LARGE))
            }
            _ => Ok(()),
        }
    }
}
