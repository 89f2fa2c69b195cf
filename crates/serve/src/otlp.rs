//! Sends a span of each request to a collector of OpenTelemetry: OTLP over HTTP, in JSON.
//!
//! A thread of its own sends what has come, so that no request waits. The opentelemetry crates
//! would do the same with an SDK, protobuf and a second client for HTTP; a span of a request is one
//! object of JSON, and a client for HTTP is here already.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fmt, io};

use serde_json::{Value, json};
use thane_runtime::shown_url;
use ureq::Agent;
use ureq::tls::TlsConfig;

use crate::client::is_address;
use crate::log::{LogEntry, LogSink};
use crate::threads::{join_within, lock};

/// Spans that wait to be sent; more are lost.
const MAX_WAITING: usize = 2048;
/// Most spans of a request to the collector.
const MAX_BATCH: usize = 512;
/// How long spans are gathered.
const GATHER: Duration = Duration::from_secs(1);
/// How long the collector may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most time that nothing is sent because the collector asks for it (`Retry-After`).
const MAX_REST: Duration = Duration::from_secs(60);
/// How long it may take for what is left at the end.
const CLOSE_TIME: Duration = Duration::from_secs(2);

/// Where spans are sent, and as whose.
#[derive(Clone)]
pub struct OtlpOptions {
    /// The address of the collector, such as `http://localhost:4318`; `/v1/traces` is added.
    pub endpoint: String,
    /// The certificates that are trusted.
    pub tls: TlsConfig,
    /// Headers of each request, such as a key.
    pub headers: Vec<(String, String)>,
    /// The name of the service.
    pub service: String,
    /// Tells whoever runs the server that the collector does not take spans.
    pub complain: fn(&str),
}

/// Why traces cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The address is not one of http or https, or names no host.
    #[error("expected the address of a collector, such as http://localhost:4318, found `{0}`")]
    Address(String),
    /// The system refused a thread.
    #[error("spans cannot be sent")]
    Start(#[from] io::Error),
}

/// Sends spans. What waits is sent when it is dropped, if the collector takes it soon.
pub struct Traces {
    spans: Arc<Mutex<Option<SyncSender<Value>>>>,
    thread: Option<JoinHandle<()>>,
    complain: fn(&str),
}

impl Traces {
    /// Starts to send. Nothing is asked of the collector before there is a span.
    pub fn start(options: OtlpOptions) -> Result<Self, OtlpError> {
        let endpoint = options.endpoint.trim().trim_end_matches('/');
        if !is_address(endpoint) {
            return Err(OtlpError::Address(shown_url(&options.endpoint)));
        }
        let config = Agent::config_builder()
            .max_redirects(0)
            .http_status_as_error(false)
            .user_agent(concat!("thane/", env!("CARGO_PKG_VERSION")))
            .timeout_global(Some(PATIENCE))
            .tls_config(options.tls.clone())
            .proxy(None)
            .build();
        let sender = Sender {
            agent: config.into(),
            url: format!("{endpoint}/v1/traces"),
            options,
            n_lost: 0,
            rests_until: None,
        };
        let complain = sender.options.complain;
        let (spans, waiting) = sync_channel(MAX_WAITING);
        let thread = std::thread::Builder::new()
            .name("traces".to_owned())
            .spawn(move || sender.run(&waiting))?;
        Ok(Self {
            spans: Arc::new(Mutex::new(Some(spans))),
            thread: Some(thread),
            complain,
        })
    }

    /// Takes entries of requests whose trace is recorded.
    pub fn sink(&self) -> LogSink {
        let spans = Arc::clone(&self.spans);
        Arc::new(move |entry| {
            let spans = lock(&spans);
            if let (Some(spans), Some(span)) = (&*spans, span(entry)) {
                // A collector that is too slow does not stop requests.
                let _ = spans.try_send(span);
            }
        })
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // The thread ends with the last span.
        drop(lock(&self.spans).take());
        if let Some(thread) = self.thread.take()
            && !join_within(thread, CLOSE_TIME)
        {
            (self.complain)("the last traces are lost: the collector does not answer");
        }
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traces").finish_non_exhaustive()
    }
}

/// The thread that sends.
struct Sender {
    agent: Agent,
    url: String,
    options: OtlpOptions,
    /// Spans that the collector did not take since it took some.
    n_lost: usize,
    /// Nothing is sent before.
    rests_until: Option<Instant>,
}

impl Sender {
    fn run(mut self, waiting: &Receiver<Value>) {
        while let Ok(first) = waiting.recv() {
            let mut spans = vec![first];
            let end = Instant::now() + GATHER;
            while spans.len() < MAX_BATCH {
                match waiting.recv_timeout(end.saturating_duration_since(Instant::now())) {
                    Ok(span) => spans.push(span),
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
                }
            }
            self.send(spans);
        }
    }

    /// Sends spans once. A collector that is gone is told of once.
    fn send(&mut self, spans: Vec<Value>) {
        let n = spans.len();
        if self.rests_until.is_some_and(|end| Instant::now() < end) {
            self.n_lost += n;
            return;
        }
        let said = match self.post(spans) {
            Ok(()) if self.n_lost > 0 => {
                let n = std::mem::take(&mut self.n_lost);
                let url = shown_url(&self.url);
                format!("the collector at {url} takes traces again; {n} spans are lost")
            }
            Ok(()) => return,
            Err(error) => {
                self.n_lost += n;
                if self.n_lost > n {
                    return;
                }
                let url = shown_url(&self.url);
                format!("the collector at {url} takes no traces: {error}")
            }
        };
        (self.options.complain)(&said);
    }

    /// A redirect is an error too: the collector has not taken the spans, and the headers may be
    /// secret.
    fn post(&mut self, spans: Vec<Value>) -> Result<(), String> {
        let attributes = json!([
            text("service.name", &self.options.service),
            text("service.version", env!("CARGO_PKG_VERSION")),
        ]);
        let body = json!({"resourceSpans": [{
            "resource": {"attributes": attributes},
            "scopeSpans": [{"scope": {"name": "thane"}, "spans": spans}],
        }]});
        let request = self.agent.post(&self.url);
        let headers = self.options.headers.iter();
        let request = headers.fold(request, |request, (name, value)| {
            request.header(name, value)
        });
        let request = request.header("Content-Type", "application/json");
        let answer = request.send(body.to_string()).map_err(|e| e.to_string())?;
        if answer.status().is_success() {
            return Ok(());
        }
        let asked = answer.headers().get("retry-after");
        let seconds = asked.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let rest = Duration::from_secs(seconds.unwrap_or(0)).min(MAX_REST);
        self.rests_until = Instant::now().checked_add(rest);
        let (status, place) = (answer.status().as_u16(), answer.headers().get("location"));
        let place = place.and_then(|value| value.to_str().ok());
        Err(match place.filter(|_| answer.status().is_redirection()) {
            Some(place) => format!("it redirects to {}", shown_url(place)),
            None => format!("http status: {status}"),
        })
    }
}

/// The span of a request, by the names of OpenTelemetry's conventions for HTTP and models.
fn span(entry: &LogEntry<'_>) -> Option<Value> {
    let trace = entry.trace.filter(|trace| trace.is_sampled)?;
    let at = |time: Duration| nanos(trace.began + time);
    let mut attributes = vec![
        text("http.request.method", entry.method),
        text("http.route", entry.route),
        text("thane.request_id", entry.request),
    ];
    attributes.extend(
        entry
            .status
            .map(|n| number("http.response.status_code", u64::from(n))),
    );
    for (name, n) in [
        ("gen_ai.usage.input_tokens", entry.prompt_tokens),
        ("gen_ai.usage.output_tokens", entry.answer_tokens),
    ] {
        attributes.extend((n > 0).then(|| number(name, n)));
    }
    let has_failed = entry.status.is_none_or(|status| status >= 500) || !entry.is_whole;
    let event = |time| json!({"name": "first_token", "timeUnixNano": at(time)});
    let events: Vec<Value> = entry.first_token.map(event).into_iter().collect();
    let mut span = json!({
        "traceId": hex(&trace.trace_id),
        "spanId": hex(&trace.span_id),
        "name": format!("{} {}", if entry.method == "_OTHER" { "HTTP" } else { entry.method }, entry.route),
        // A server's.
        "kind": 2,
        "startTimeUnixNano": at(Duration::ZERO),
        "endTimeUnixNano": at(entry.time),
        "attributes": attributes,
        "events": events,
        // Unset, or an error.
        "status": {"code": if has_failed { 2 } else { 0 }},
    });
    if let Some(parent) = &trace.parent_id {
        span["parentSpanId"] = hex(parent).into();
    }
    if !trace.state.is_empty() {
        span["traceState"] = trace.state.as_str().into();
    }
    Some(span)
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// JSON has 64-bit integers as text, as protobuf writes them.
fn number(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

fn nanos(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos().to_string()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
