//! A reranker and the thread that owns it. Requests are scored one after another, each in batches
//! of pairs of similar length.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thane_engine::embed::Watch;
use thane_engine::text::Cut;
use thane_mil::budget::Budget;
use thane_runtime::{Ranked, Reranker, RuntimeError, TokenizerMemory, sort_ranked};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::counts::Counts;
use crate::deadline;
use crate::error::{ApiError, TOO_LARGE, of_cause, stopped};
use crate::log::add_input_tokens;
use crate::places::Places;

/// Most bytes of the texts of a request, each with the query before it: a long query is read as
/// often as there are texts.
const MAX_PAIR_BYTES: usize = 16 << 20;

/// A query and the texts to score for it.
#[derive(Debug)]
pub(crate) struct Question {
    pub query: String,
    pub texts: Vec<String>,
    /// Where pairs that are too long are cut; `None` if they are an error.
    pub cut: Option<Cut>,
}

impl Question {
    fn check_size(&self) -> Result<(), ApiError> {
        let of_texts: usize = self.texts.iter().map(String::len).sum();
        let of_queries = self.query.len().saturating_mul(self.texts.len());
        let n = of_texts.saturating_add(of_queries);
        if n <= MAX_PAIR_BYTES {
            return Ok(());
        }
        let message = format!(
            "expected texts of at most {MAX_PAIR_BYTES} bytes, the query counted with each, found \
             {n} bytes: ask for fewer at a time"
        );
        Err(ApiError::invalid(message).with_code(TOO_LARGE))
    }
}

/// The scores of a request.
#[derive(Debug)]
pub(crate) struct Ranking {
    /// Best first.
    pub ranked: Vec<Ranked>,
    /// Tokens of all pairs.
    pub n_tokens: usize,
    /// Pairs that were cut.
    pub n_cut: usize,
}

/// A handle to a running reranker.
pub(crate) struct Ranks {
    /// Most tokens of a query and a text together.
    pub max_tokens: usize,
    /// Where the model's files cut pairs that are too long.
    pub cut: Cut,
    pub places: Places,
    pub counts: Arc<Counts>,
    answer_time: Option<Duration>,
    jobs: mpsc::Sender<Job>,
}

struct Job {
    question: Question,
    answer: oneshot::Sender<Result<Ranking, ApiError>>,
    arrived: Instant,
    _place: OwnedSemaphorePermit,
}

impl Ranks {
    /// Starts the thread, which ends when the result is dropped. The places are those of the queue
    /// and of the request that runs.
    pub fn start(
        mut reranker: Reranker,
        n_queue: usize,
        budget: Budget,
        answer_time: Option<Duration>,
    ) -> io::Result<(Self, JoinHandle<()>)> {
        let (jobs, waiting) = mpsc::channel::<Job>();
        let (max_tokens, cut) = (reranker.max_tokens(), reranker.cut());
        let counts: Arc<Counts> = Arc::default();
        let counted = Arc::clone(&counts);
        let thread = std::thread::Builder::new()
            .name("ranks".to_owned())
            .spawn(move || {
                for job in waiting {
                    counted.running.set(1);
                    let is_gone = || job.answer.is_closed();
                    let ranking = rank(&mut reranker, &budget, &job.question, &is_gone);
                    let n_tokens = ranking.as_ref().map(|r| r.as_ref().map(|r| r.n_tokens));
                    counted.note_vectors(n_tokens, job.arrived.elapsed());
                    counted.running.set(0);
                    if let Some(ranking) = ranking.transpose() {
                        let _ = job.answer.send(ranking);
                    }
                }
            })?;
        let started = Self {
            max_tokens,
            cut,
            places: Places::new(1 + n_queue, "requests"),
            counts,
            answer_time,
            jobs,
        };
        Ok((started, thread))
    }

    /// Scores texts when the requests that came earlier are done. If the caller is dropped, the
    /// work ends soon.
    pub async fn rank(&self, question: Question) -> Result<Ranking, ApiError> {
        question.check_size()?;
        deadline::within(self.answer_time, self.ranked(question)).await
    }

    async fn ranked(&self, question: Question) -> Result<Ranking, ApiError> {
        let place = self.places.take()?;
        let (answer, ranking) = oneshot::channel();
        let job = Job {
            question,
            answer,
            arrived: Instant::now(),
            _place: place,
        };
        self.jobs.send(job).map_err(|_| stopped())?;
        let ranking = ranking.await.map_err(|_| stopped())??;
        add_input_tokens(ranking.n_tokens);
        Ok(ranking)
    }
}

/// `None` if the client has gone.
fn rank(
    reranker: &mut Reranker,
    budget: &Budget,
    question: &Question,
    is_gone: &dyn Fn() -> bool,
) -> Result<Option<Ranking>, ApiError> {
    let mut held = budget.reserve(0, String::new)?;
    let query = {
        let _held = TokenizerMemory::reserve(budget, question.query.len(), "text")?;
        reranker.query(&question.query, is_gone)
    };
    if is_gone() {
        return Ok(None);
    }
    let query = query.map_err(|e| of_cause(&e, |said| ApiError::field("query", said)))?;
    let mut pairs = Vec::with_capacity(question.texts.len());
    for (idx, text) in question.texts.iter().enumerate() {
        let n_bytes = reranker.tokenized_len(&query, text);
        let _held = TokenizerMemory::reserve(budget, n_bytes, "text")?;
        let cut = question.cut.unwrap_or_default();
        let pair = reranker.tokenize(&query, text, cut, is_gone);
        if is_gone() {
            return Ok(None);
        }
        let pair = pair.map_err(|e| of_cause(&e, |said| at(idx, &said)))?;
        if pair.is_cut && question.cut.is_none() {
            let most = reranker.max_tokens();
            let said = format!("expected at most {most} tokens with the query, found more");
            return Err(at(idx, &said).with_code(TOO_LARGE));
        }
        let kept = pair.tokens.len() * 2 * size_of::<u32>();
        held.grow(kept, || "the tokens of the pairs".to_owned())?;
        pairs.push(pair);
    }
    let n_tokens = pairs.iter().map(|pair| pair.tokens.len()).sum();
    let n_cut = pairs.iter().filter(|pair| pair.is_cut).count();
    let mut watch = Watch {
        interrupted: is_gone,
        progress: &mut |_| {},
    };
    let failed = |error: RuntimeError| of_cause(&error, ApiError::failed);
    let ranked = reranker.score(&pairs, &mut watch).map_err(failed)?;
    Ok(ranked.map(|mut ranked| {
        sort_ranked(&mut ranked);
        Ranking {
            ranked,
            n_tokens,
            n_cut,
        }
    }))
}

/// The error of one text.
fn at(idx: usize, said: &str) -> ApiError {
    let place = format!("texts[{idx}]");
    ApiError::field(&place, format!("{place}: {said}"))
}
