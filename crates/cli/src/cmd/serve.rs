//! `thane serve`: an HTTP server for language and embedding models.

use std::cell::Cell;
use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System};
use thane_runtime::Model;
use thane_serve::{KeptPrompts, ListenError, ModelOptions, Options, Served, Server, listen};

use crate::app::{App, size};
use crate::exit::{Code, Failure, Outcome};
use crate::model::RunFlags;

/// Serve models over HTTP, with the APIs of OpenAI, Anthropic, Ollama and others.
///
/// Language models answer /v1/chat/completions, /v1/responses, /v1/completions, /v1/messages and
/// /api/chat; embedding models /v1/embeddings, /api/embed, /embed and Perplexity's routes below
/// /perplexity; rerankers /v1/rerank and /rerank. /openapi.json lists all routes. The address,
/// printed once the models are loaded, opens a page with a chat, similarity of texts, audits of
/// models and live charts. Ctrl-C stops the server: running answers have 10 seconds to finish.
/// docs/serve.md has the fields.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Models to serve: paths, hf:org/name[/file][@revision], or names of the catalog.
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<String>,
    /// Address; one that others reach needs --api-key.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// Port to serve at; 0 takes any free one.
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,
    /// Answers of a model that run side by side.
    ///
    /// Each has a KV cache of its own, whose memory is taken as it fills.
    #[arg(long, value_name = "N", default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    slots: u16,
    /// Most requests that wait for a model; more are refused with status 429.
    #[arg(long, value_name = "N", default_value_t = 64)]
    queue: u16,
    /// Give a text the same vector, bit by bit, whatever else is asked.
    ///
    /// Each text is embedded alone, which is slower. Otherwise, texts of all requests are embedded
    /// together, and the last digits depend on the company.
    #[arg(long)]
    deterministic: bool,
    /// Memory, for each language model, for prompts that no slot holds any more; 0 keeps none.
    ///
    /// A prompt that begins like an earlier one is computed from where they part.
    #[arg(long, value_name = "SIZE", default_value = "512MB", value_parser = size_or_none)]
    prompt_memory: usize,
    /// Also keep prompts in this folder, beyond that memory and for the next start.
    #[arg(long, value_name = "FOLDER")]
    prompt_cache: Option<PathBuf>,
    /// Most bytes in that folder, for each language model.
    #[arg(long, value_name = "SIZE", default_value = "8GB", value_parser = size,
        requires = "prompt_cache")]
    prompt_cache_size: usize,
    /// Key that clients must send (Authorization: Bearer KEY).
    ///
    /// Other users of this machine can see flags; they cannot see the variable
    /// THANE_SERVE_API_KEY, which does the same.
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    #[command(flatten)]
    flags: RunFlags,
}

/// Parses a size, or 0.
fn size_or_none(text: &str) -> Result<usize, String> {
    match text.trim() {
        "0" => Ok(0),
        text => size(text),
    }
}

/// How long the program may take to end after the first Ctrl-C, beyond the time of the answers.
const GRACE: Duration = Duration::from_secs(2);

pub fn run(args: &Args, app: &App) -> Outcome {
    if app.output.is_json() {
        return Err(Failure::no_json("a server"));
    }
    if args
        .api_key
        .as_deref()
        .is_some_and(|key| key.trim().is_empty())
    {
        let error = anyhow::anyhow!("expected a key that is not empty, found an empty --api-key");
        return Err(Failure::new(Code::Usage, error).remedy("--api-key with a long random text"));
    }
    // Before models are loaded, which takes long.
    let has_key = args.api_key.is_some();
    let listener = listen(&args.host, args.port, has_key).map_err(of_listen)?;
    let models = models(args, app)?;
    let address = listener.local_addr()?;
    let options = Options {
        api_key: args.api_key.clone(),
        budget: app.budget.clone(),
        resident_bytes,
        ..Options::default()
    };
    let grace = options.grace;
    let server = Server::new(listener, models, options)?;
    app.output.clear();
    app.output.data(&format!("http://{address}\n"))?;
    let _cooperative = app.interrupt.cooperate(Some(grace + GRACE));
    let is_said = Cell::new(false);
    server.run(&|| {
        let is_stopped = app.interrupt.is_set();
        if is_stopped && !is_said.replace(true) {
            app.output
                .say("thane: stopping; running answers finish first");
        }
        is_stopped
    })?;
    Ok(())
}

/// Loads the models and starts their threads.
fn models(args: &Args, app: &App) -> Result<Vec<Served>, Failure> {
    let backend = args.flags.backend(app);
    let options = ModelOptions {
        language: args.flags.program.options(false),
        n_slots: usize::from(args.slots),
        n_queue: usize::from(args.queue),
        deterministic: args.deterministic,
        budget: app.budget.clone(),
        prompts: KeptPrompts {
            memory: args.prompt_memory,
            folder: args
                .prompt_cache
                .clone()
                .map(|folder| (folder, args.prompt_cache_size as u64)),
            numerics: format!("{:?}", args.flags.program.numerics),
            complain: |what| eprintln!("thane: {what}"),
        },
    };
    let mut ids = HashSet::new();
    let mut models = Vec::with_capacity(args.models.len());
    for spec in &args.models {
        let model = Model::open(spec, &app.hub, app.output.as_ref())?;
        let path = model.path.display().to_string();
        let served = Served::start(model, &backend, &options, app.output.as_ref())
            .map_err(|e| Failure::from(e).naming(&path, spec))?;
        if !ids.insert(served.id().to_owned()) {
            let error = anyhow::anyhow!(
                "expected models with different names, found `{}` twice",
                served.id()
            );
            let failure = Failure::new(Code::Usage, error);
            return Err(failure.remedy("a link with another name to one of the folders or files"));
        }
        models.push(served);
    }
    Ok(models)
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
        ListenError::NoKey { .. } => "--api-key KEY, or --host 127.0.0.1",
        ListenError::InUse { .. } => "--port 0, which takes a free one, or another --port",
        ListenError::Open { .. } => "--port 8080, or another above 1023",
    };
    Failure::new(Code::Usage, error).remedy(remedy)
}
