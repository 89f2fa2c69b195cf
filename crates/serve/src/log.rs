//! The log: one entry for each request, once its answer has ended. An entry has no text of a
//! request: neither its body nor its query.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, Response};
use axum::middleware::Next;
use hyper::body::{Body as _, Frame, SizeHint};

use thane_mil::budget::{Budget, OverBudget, Reservation};

use crate::counts::Count;
use crate::rate::Account;
use crate::threads::lock;
use crate::trace::Trace;

/// The header that names a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Most characters of a name that a client gives a request.
const MAX_ID: usize = 64;

/// What is known of a request whose answer has ended.
#[derive(Clone, Debug)]
pub struct LogEntry<'a> {
    /// The name of the request, which its answer has in the header `X-Request-Id`.
    pub request: &'a str,
    /// The method, such as `POST`; `_OTHER` if it is none of HTTP's.
    pub method: &'static str,
    /// The route, such as `/v1/models/{*id}`; `-` where there is none.
    pub route: &'a str,
    /// The status; `None` if the client left before there was one.
    pub status: Option<u16>,
    /// From the head of the request to the end of the answer.
    pub time: Duration,
    /// Tokens of prompts and inputs.
    pub prompt_tokens: u64,
    /// Tokens of answers.
    pub answer_tokens: u64,
    /// Whether the answer was sent to its end.
    pub is_whole: bool,
    /// From the arrival of the request to the first token of an answer, if there was one.
    pub first_token: Option<Duration>,
    /// The trace of the request.
    pub trace: Option<&'a Trace>,
}

/// Writes entries; it must not wait.
pub type LogSink = Arc<dyn Fn(&LogEntry<'_>) + Send + Sync>;

/// Names requests, and writes of them where somebody wants it.
pub(crate) struct Log {
    sink: Option<LogSink>,
    budget: Budget,
    n: AtomicU64,
    /// Of which names of requests and ids of traces are made: none tells how many there were.
    random: RandomState,
}

/// A request of which nobody has written yet: whoever drops it last does.
pub(crate) struct Record {
    sink: Option<LogSink>,
    request: String,
    method: &'static str,
    route: String,
    start: Instant,
    /// When the whole body was there.
    arrived: OnceLock<Instant>,
    /// 0 before there is one.
    status: AtomicU16,
    prompt_tokens: Count,
    answer_tokens: Count,
    is_whole: AtomicBool,
    first_token: OnceLock<Duration>,
    /// `None` if nobody takes entries.
    trace: Option<Trace>,
    /// Who asks; nobody in particular before that is known.
    account: OnceLock<Arc<Account>>,
    budget: Budget,
    /// The memory of the body, and of what is made of it.
    held: Mutex<Option<Reservation>>,
}

tokio::task_local! {
    /// The request that a handler answers.
    static RECORD: Arc<Record>;
}

impl Log {
    /// The memory of requests counts against `budget`.
    pub fn new(sink: Option<LogSink>, budget: Budget) -> Self {
        Self {
            sink,
            budget,
            n: AtomicU64::new(1),
            random: RandomState::new(),
        }
    }

    /// The client's name of a request, if it is a short word, or a new one.
    fn name(&self, request: &Request, n: u64) -> String {
        let given = request.headers().get(&REQUEST_ID);
        let is_word = |text: &&str| {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            (1..=MAX_ID).contains(&text.len()) && text.bytes().all(is_part)
        };
        let given = given.and_then(|value| value.to_str().ok()).filter(is_word);
        let new = || format!("{:016x}", self.random.hash_one(n));
        given.map_or_else(new, str::to_owned)
    }
}

impl Record {
    /// The request that the current handler answers, for threads that count its tokens. An answer
    /// that has ended is not kept from the log by a thread that has not noticed yet.
    pub fn current() -> Weak<Self> {
        let current = RECORD.try_with(Arc::downgrade);
        current.unwrap_or_default()
    }

    /// Notes that an answer has a first token now.
    pub fn note_first_token(&self) {
        let _ = self.first_token.set(self.start.elapsed());
    }

    /// Counts tokens of the request.
    pub fn add_tokens(&self, prompt: usize, answer: usize) {
        self.prompt_tokens.add(prompt as u64);
        self.answer_tokens.add(answer as u64);
    }

    fn held(&self) -> MutexGuard<'_, Option<Reservation>> {
        lock(&self.held)
    }

    /// Counts an answer of `n_tokens` that was counted as `n_counted` before.
    pub fn correct_tokens(&self, n_counted: usize, n_tokens: usize) {
        self.answer_tokens.add(n_tokens as u64);
        self.answer_tokens.subtract(n_counted as u64);
    }
}

/// Answers the current request on another thread.
pub(crate) fn in_record<T>(answer: impl Future<Output = T>) -> impl Future<Output = T> {
    let record = RECORD.try_with(Arc::clone);
    async move {
        match record {
            Ok(record) => RECORD.scope(record, answer).await,
            Err(_) => answer.await,
        }
    }
}

/// Notes that the body of the current request is there.
pub(crate) fn note_arrival() {
    let _ = RECORD.try_with(|record| record.arrived.set(Instant::now()));
}

/// When the body of the current request was there: how long a client takes to send it counts for
/// nothing that is limited here.
pub(crate) fn arrived() -> Instant {
    let arrived = RECORD.try_with(|record| *record.arrived.get().unwrap_or(&record.start));
    arrived.unwrap_or_else(|_| Instant::now())
}

/// Counts tokens of inputs of the request that the current handler answers.
pub(crate) fn add_input_tokens(n: usize) {
    let _ = RECORD.try_with(|record| {
        record.add_tokens(n, 0);
        if let Some(account) = record.account.get() {
            account.spend(n);
        }
    });
}

/// Makes a client the one that asks.
pub(crate) fn set_account(account: &Arc<Account>) {
    let _ = RECORD.try_with(|record| record.account.set(Arc::clone(account)));
}

/// Who asks. A thread may count tokens after the client has gone.
pub(crate) fn current_account() -> Arc<Account> {
    let account = RECORD.try_with(|record| record.account.get().cloned());
    account.ok().flatten().unwrap_or_default()
}

/// What the memory of the current request counts against.
pub(crate) fn current_budget() -> Budget {
    let budget = RECORD.try_with(|record| record.budget.clone());
    budget.unwrap_or_default()
}

/// Lets memory count until the current request has its answer.
pub(crate) fn hold(memory: Reservation) {
    let _ = RECORD.try_with(|record| *record.held() = Some(memory));
}

/// Bytes that the current request holds.
pub(crate) fn held_bytes() -> usize {
    let held = RECORD.try_with(|record| record.held().as_ref().map_or(0, Reservation::bytes));
    held.unwrap_or(0)
}

/// Lets so many bytes more count until the current request has its answer. `what` names them.
pub(crate) fn hold_more(n_bytes: usize, what: impl FnOnce() -> String) -> Result<(), OverBudget> {
    let held = RECORD.try_with(|record| {
        let mut held = record.held();
        match &mut *held {
            Some(held) => held.grow(n_bytes, what),
            none => {
                *none = Some(record.budget.reserve(n_bytes, what)?);
                Ok(())
            }
        }
    });
    held.unwrap_or(Ok(()))
}

impl Drop for Record {
    fn drop(&mut self) {
        let Some(sink) = &self.sink else { return };
        let status = self.status.load(Ordering::Relaxed);
        sink(&LogEntry {
            request: &self.request,
            method: self.method,
            route: &self.route,
            status: (status > 0).then_some(status),
            time: self.start.elapsed(),
            prompt_tokens: self.prompt_tokens.get(),
            answer_tokens: self.answer_tokens.get(),
            is_whole: self.is_whole.load(Ordering::Relaxed),
            first_token: self.first_token.get().copied(),
            trace: self.trace.as_ref(),
        });
    }
}

/// The name of a method of HTTP. Another one may be as long as the head of a request, which is too
/// much to keep until it is written; its name is that of OpenTelemetry's conventions.
fn known(method: &Method) -> &'static str {
    const NAMES: [&str; 9] = [
        "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE",
    ];
    let name = NAMES.iter().find(|name| method == **name);
    name.copied().unwrap_or("_OTHER")
}

/// Names a request, and keeps a record of it until its answer has ended.
pub(crate) async fn record(
    State(log): State<Arc<Log>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let n = log.n.fetch_add(1, Ordering::Relaxed);
    let name = log.name(&request, n);
    let header = HeaderValue::from_str(&name);
    let route = request.extensions().get::<MatchedPath>();
    let trace = || Trace::of(request.headers(), &log.random, n);
    let trace = log.sink.is_some().then(trace);
    let record = Arc::new(Record {
        sink: log.sink.clone(),
        request: name,
        method: known(request.method()),
        route: route.map_or("-", MatchedPath::as_str).to_owned(),
        start: Instant::now(),
        arrived: OnceLock::new(),
        status: AtomicU16::new(0),
        prompt_tokens: Count::default(),
        answer_tokens: Count::default(),
        is_whole: AtomicBool::new(false),
        first_token: OnceLock::new(),
        trace,
        account: OnceLock::new(),
        budget: log.budget.clone(),
        held: Mutex::default(),
    });
    let answered = RECORD.scope(Arc::clone(&record), next.run(request));
    let mut response = answered.await;
    let status = response.status().as_u16();
    record.status.store(status, Ordering::Relaxed);
    if let Ok(header) = header {
        response.headers_mut().insert(REQUEST_ID, header);
    }
    response.map(|body| Body::new(Recorded { body, record }))
}

/// A body that notes its end.
struct Recorded {
    body: Body,
    record: Arc<Record>,
}

impl Recorded {
    fn note_end(&self) {
        if self.body.is_end_stream() {
            self.record.is_whole.store(true, Ordering::Relaxed);
        }
    }
}

impl hyper::body::Body for Recorded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(None) => self.record.is_whole.store(true, Ordering::Relaxed),
            // Nobody asks again behind the last frame.
            Poll::Ready(Some(Ok(_))) => self.note_end(),
            _ => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.note_end();
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").finish_non_exhaustive()
    }
}
