//! `thane serve`: an HTTP server for language and embedding models.

use std::cell::{Cell, RefCell};
use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System};
use thane_serve::{
    Cors, Hooks, ListenError, LogSink, Options, OtlpOptions, ReloadSink, RunError, Server, Traces,
    listen,
};

use crate::app::App;
use crate::config::ModelEntry;
use crate::exit::{Failure, Outcome, usage};
use crate::serve::keys;
use crate::serve::log::{self, Log};
pub use crate::serve::models::ModelFlags;
use crate::serve::models::{self, Alias, Asked};
use crate::serve::state;

/// Serve models over HTTP, with the APIs of OpenAI, Anthropic, Ollama and others.
///
/// Language models answer /v1/chat/completions, /v1/responses, /v1/completions, /v1/messages and
/// /api/chat; embedding models /v1/embeddings, /api/embed, /embed and Perplexity's routes below
/// /perplexity; rerankers /v1/rerank and /rerank. /openapi.json lists all routes. The address,
/// printed once the models are loaded, opens a page with a chat, similarity of texts, audits of
/// models and live charts. Ctrl-C stops the server: running answers have 10 seconds to finish.
/// SIGHUP loads the models again from their files, and opens the file of --log again.
/// docs/serve.md has the fields.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Models to serve: paths, hf:org/name[/file][@revision], or names of the catalog.
    #[arg(required_unless_present = "config", value_name = "MODEL")]
    models: Vec<String>,
    /// Read flags and models from a TOML file (docs/serve.md).
    ///
    /// A key is the name of a flag. Flags and variables come before the file; models that are given
    /// take the place of those of the file, and have its options.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The models of that file, with their options, and other names for them.
    #[arg(skip)]
    of_file: Vec<(Asked, Vec<String>)>,
    /// Address; one that others reach needs --api-key.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// Port to serve at; 0 takes any free one.
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,
    /// Another name for a model, such as gpt-4o=smollm2-135m; may be repeated.
    ///
    /// Clients whose model is fixed ask for it by that name.
    #[arg(long, value_name = "NAME=MODEL", value_parser = Alias::parse, value_delimiter = ',')]
    alias: Vec<Alias>,
    /// Key that clients must send (Authorization: Bearer KEY).
    ///
    /// May be repeated. Other users of this machine can see flags; they cannot see the variable
    /// THANE_SERVE_API_KEY, which does the same.
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// Read keys from a file, one on each line.
    ///
    /// Lines that begin with # are comments.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Most requests of a key in a minute; more are refused with status 429.
    ///
    /// Without keys, all clients share them. Requests that only look (GET) do not count.
    #[arg(long, value_name = "N")]
    requests_per_minute: Option<NonZeroU32>,
    /// Most tokens of a key in 24 hours, of prompts and answers; more are refused with status 429.
    ///
    /// They come back evenly. Without keys, all clients share them.
    #[arg(long, value_name = "N")]
    tokens_per_day: Option<NonZeroU64>,
    /// Let pages of this origin ask and read answers (CORS).
    ///
    /// May be repeated; * for all origins, which no server with keys takes.
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<String>,
    /// Certificate in PEM for TLS (https), with those that vouch for it behind.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of that certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Write a line of JSON for each request to a file, or to stdout (-).
    ///
    /// A file that is there is continued. A line has the id of the request, which clients get in
    /// the header X-Request-Id, the route, the status, the time and the tokens, and no text of the
    /// request.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Send traces to a collector of OpenTelemetry (OTLP over HTTP), such as http://localhost:4318.
    ///
    /// Each request is a span, in the trace of its header traceparent. The default is the variable
    /// OTEL_EXPORTER_OTLP_ENDPOINT.
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// Let clients download models (POST /api/pull): of the catalog, or hf:org/name.
    ///
    /// They are served at once, with the flags of this command. Whoever may ask may fill the disk.
    #[arg(long)]
    allow_pull: bool,
    #[command(flatten)]
    model: ModelFlags,
}

impl Args {
    /// Adds a model of the file, for which the command line would have been `own`.
    pub fn add_of_file(&mut self, entry: &ModelEntry, own: &Self) {
        let asked = Asked {
            spec: entry.spec.clone(),
            flags: own.model.clone(),
        };
        self.of_file.push((asked, entry.aliases.clone()));
    }

    /// The models to serve, and their other names.
    fn asked(&self) -> Result<(Vec<Asked>, Vec<Alias>), Failure> {
        let mut models: Vec<(Asked, Vec<String>)> = Vec::new();
        for spec in &self.models {
            let is_named = |(asked, aliases): &&(Asked, Vec<String>)| {
                asked.spec == *spec || aliases.contains(spec)
            };
            let of_flags = || {
                let (spec, flags) = (spec.clone(), self.model.clone());
                (Asked { spec, flags }, Vec::new())
            };
            let of_file = self.of_file.iter().find(is_named).cloned();
            models.push(of_file.unwrap_or_else(of_flags));
        }
        if models.is_empty() {
            models.clone_from(&self.of_file);
        }
        if models.is_empty() {
            let file = self.config.as_deref().unwrap_or_else(|| Path::new(""));
            let failure = usage!("{}: expected models, found none", file.display());
            return Err(failure.remedy("models = [\"smollm2-135m\"] in the file, or a MODEL"));
        }
        let mut aliases = self.alias.clone();
        for (asked, names) in &models {
            aliases.extend(names.iter().map(|name| Alias {
                name: name.clone(),
                model: asked.spec.clone(),
            }));
        }
        let asked = models.into_iter().map(|(asked, _)| asked).collect();
        Ok((asked, aliases))
    }
}

/// How long the program may take to end after the first Ctrl-C, beyond the time of the answers.
const GRACE: Duration = Duration::from_secs(2);

pub fn run(args: &Args, app: &App) -> Outcome {
    if app.output.is_json() {
        return Err(Failure::no_json("a server"));
    }
    // Before models are loaded, which takes long.
    let keys = keys::all(&args.api_key, args.api_key_file.as_deref())?;
    let cors = Cors::new(&args.cors, !keys.is_empty());
    let cors = cors.map_err(usage)?;
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => Some(keys::tls(certificate, key)?),
        _ => None,
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let listener = listen(&args.host, args.port, !keys.is_empty()).map_err(of_listen)?;
    let log = args.log.as_deref().map(Log::open).transpose()?;
    let traces = traces(args, app)?;
    let (asked, aliases) = args.asked()?;
    let models = models::open(&asked, &aliases, app)?;
    let ids: Vec<String> = models.iter().map(|model| model.id.clone()).collect();
    let address = format!("{scheme}://{}", listener.local_addr()?);
    let options = Options {
        api_keys: keys,
        requests_per_minute: args.requests_per_minute,
        tokens_per_day: args.tokens_per_day,
        cors,
        tls,
        budget: app.budget.clone(),
        answer_time: args.model.answer_time.0,
        resident_bytes,
        log: sink(log.as_ref(), traces.as_ref(), app),
        complain: models::complain,
        reloaded: reloaded(log.as_ref()),
        pull: args.allow_pull.then(|| models::puller(&args.model, app)),
        ..Options::default()
    };
    let grace = options.grace;
    let server = Server::new(listener, models, options)?;
    // While models are being loaded, Ctrl-C ends the program at once.
    let cooperative = RefCell::new(None);
    let announced = RefCell::new(None);
    let is_said = Cell::new(false);
    let on_ready = || {
        *cooperative.borrow_mut() = Some(app.interrupt.cooperate(Some(grace + GRACE)));
        app.output.clear();
        if let Some(log) = &log {
            log.started(&address, &ids);
        }
        let file = log.as_ref().and_then(Log::file);
        match state::announce(&address, &ids, file, app) {
            Ok(listed) => *announced.borrow_mut() = Some(listed),
            Err(e) => app.output.say(&format!("thane: not in `thane ps`: {e}")),
        }
        // Where stdout is the log, the address is in its first line.
        if log.as_ref().is_some_and(Log::is_stdout) {
            return Ok(());
        }
        app.output.data(&format!("{address}\n"))
    };
    let _hangups = app.interrupt.take_hangups();
    let is_stopped = || {
        let is_stopped = app.interrupt.is_set();
        if is_stopped && !is_said.replace(true) {
            app.output
                .say("thane: stopping; running answers finish first");
        }
        is_stopped
    };
    let ended = server.run(&Hooks {
        on_ready: &on_ready,
        is_stopped: &is_stopped,
        wants_reload: &|| {
            let is_wanted = app.interrupt.was_hung_up();
            if let Some(log) = log.as_ref().filter(|_| is_wanted) {
                log.reopen();
            }
            is_wanted
        },
    });
    ended.map_err(of_run)
}

/// Why a server ended.
fn of_run(error: RunError) -> Failure {
    match error {
        RunError::Load(error) => match error.cause.downcast::<Failure>() {
            Ok(failure) => *failure,
            Err(cause) => other!(cause),
        },
        RunError::Io(error) => error.into(),
    }
}

/// Tells of models that were loaded again, on stderr and in the log.
fn reloaded(log: Option<&Log>) -> ReloadSink {
    let to_log = log.map(Log::reload_sink);
    Arc::new(move |model, result| {
        let error = result.err().map(|error| error.cause.to_string());
        models::complain(&match &error {
            None => format!("{model}: loaded again"),
            Some(error) => format!("{model}: not loaded again, stays as it was: {error}"),
        });
        if let Some(to_log) = &to_log {
            to_log(model, error.as_deref());
        }
    })
}

/// Where traces are sent, if that is wanted.
fn traces(args: &Args, app: &App) -> Result<Option<Traces>, Failure> {
    let given = args.otlp_endpoint.as_ref().or(app.otlp.endpoint.as_ref());
    let Some(endpoint) = given else {
        return Ok(None);
    };
    let headers = app.otlp.headers.as_deref().unwrap_or_default().split(',');
    let headers = headers.filter_map(|header| header.split_once('='));
    let started = Traces::start(OtlpOptions {
        endpoint: endpoint.clone(),
        tls: app.hub.tls(),
        headers: headers
            .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
            .collect(),
        service: app.otlp.service.clone().unwrap_or("thane".to_owned()),
        complain: models::complain,
    });
    started.map(Some).map_err(|error| {
        let failure = usage(error);
        failure.remedy("--otlp-endpoint http://localhost:4318")
    })
}

/// Where entries of requests go: to the log, to the collector of traces, and to the terminal of a
/// user who wants details.
fn sink(log: Option<&Log>, traces: Option<&Traces>, app: &App) -> Option<LogSink> {
    let sinks = log
        .map(Log::sink)
        .into_iter()
        .chain(traces.map(Traces::sink));
    let sinks: Vec<LogSink> = sinks.collect();
    let is_shown = app.output.is_verbose();
    if sinks.is_empty() && !is_shown {
        return None;
    }
    let output = Arc::clone(&app.output);
    Some(Arc::new(move |entry| {
        sinks.iter().for_each(|sink| sink(entry));
        if is_shown {
            output.explain(&log::line(entry));
        }
    }))
}

/// Memory of this process, where the system says.
fn resident_bytes() -> Option<u64> {
    let id = sysinfo::get_current_pid().ok()?;
    let mut system = System::new();
    let of_memory = ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[id]), false, of_memory);
    Some(system.process(id)?.memory())
}

/// A port that another program has is the machine's state; the rest is in the flags.
fn of_listen(error: ListenError) -> Failure {
    let remedy = match &error {
        ListenError::Host { .. } => "--host 127.0.0.1",
        ListenError::NoKey { .. } => "--api-key-file FILE, or --host 127.0.0.1",
        ListenError::InUse { .. } => {
            "--port 0, which takes a free one, or another --port; thane ps lists servers of Thane"
        }
        ListenError::Open { .. } => "--port 8080, or another above 1023",
    };
    usage(error).remedy(remedy)
}
