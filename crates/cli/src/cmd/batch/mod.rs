//! `thane batch`: answers a file of requests, as OpenAI's batch API does.

mod journal;
mod requests;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use thane_engine::pages::PageForm;
use thane_runtime::Model;
use thane_serve::{
    KeptPrompts, ModelOptions, Offline, OfflineError, Options, Reply, Request, Served,
};

use crate::app::App;
use crate::begun::{self, Settings};
use crate::exit::{Failure, Outcome, interrupted, other};
use crate::grammars;
use crate::model::RunFlags;
use crate::out;
use crate::output::counted;

use journal::{ID_PREFIX, Journal};
use requests::{Asked, Fault, Lines, Requests, Survey};

/// Answer a file of requests, as OpenAI's batch API does.
///
/// Each line of the file is a request to /v1/chat/completions, /v1/completions or /v1/embeddings,
/// and is answered as `thane serve` answers it. The output has a line for each, in their order. A
/// run that was interrupted or killed goes on with the same command. The exit code is 1 if a
/// request has no answer. docs/batch.md has examples.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Requests: JSON lines with custom_id, method, url and body.
    file: PathBuf,
    /// File to write: JSON lines with id, custom_id, response and error.
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Model to load; can be repeated [default: those of the file].
    ///
    /// NAME=MODEL is the model of the requests for NAME. By default, requests name their models:
    /// paths, hf:org/name[/file][@revision], or names of the catalog.
    #[arg(long, value_name = "[NAME=]MODEL")]
    model: Vec<String>,
    /// Replace a file that exists.
    #[arg(long)]
    force: bool,
    /// Answers of a model that run side by side.
    ///
    /// Each has a KV cache of its own, whose memory is taken as it fills.
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    slots: u16,
    #[command(flatten)]
    flags: RunFlags,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    out: &'a Path,
    requests: u64,
    /// Requests without an answer; their rows say why.
    failed: u64,
    /// Requests that an earlier run had answered.
    resumed_requests: u64,
    seconds: f64,
}

/// How long an interrupted run may take to end by itself. Rows are written whole.
const GRACE: Duration = Duration::from_millis(500);
/// The same while the output is written.
const WRITE_GRACE: Duration = Duration::from_secs(10);
/// Requests that run or wait at a time, beside those in slots: embedding models take what waits
/// together, and prompts are encoded before a slot is free.
const AHEAD: usize = 64;
/// More answers than the requests that run or wait can ask for.
const N_QUEUE: usize = 1 << 20;
/// Most memory for prompts that begin alike, for each language model, as in `thane serve`.
const PROMPT_BYTES: usize = 512_000_000;

pub fn run(args: &Args, app: &App) -> Outcome {
    let start = Instant::now();
    let requests = Requests::new(&args.file)?;
    out::check(&args.out, args.force, &[&args.file])?;
    let (survey, _held) = requests.survey(&app.budget)?;
    if survey.n == 0 {
        return Err(usage!("{}: there are no requests", args.file.display()));
    }
    let specs = specs(args, &survey)?;
    for (_, spec) in &specs {
        out::check(&args.out, args.force, &[Path::new(spec)])?;
    }
    let loaded = load(&specs, args, app)?;
    let partial = out::beside(&args.out, ".partial");
    out::create_parent(&args.out)?;
    let journal = Journal::open(&partial, &settings(args, &survey, &loaded))?;
    let resumed = journal.n();
    begun::say_resumed(resumed, "request", &partial, &app.output);
    let options = Options {
        budget: app.budget.clone(),
        ..Options::default()
    };
    let batch = Batch {
        app,
        requests: &requests,
        names: loaded.names,
        offline: Offline::new(loaded.served, &options),
        width: usize::from(args.slots) + AHEAD,
        journal: RefCell::new(journal),
    };
    batch.say_unknown(&survey);
    app.output.count("answering", Some(survey.n), resumed);
    let answered = batch.answer();
    app.output.clear();
    let journal = batch.journal.into_inner();
    let n = journal.n();
    if n == 0 {
        journal.remove()?;
        return answered;
    }
    let resumable = |failure: Failure| {
        failure.remedy(format!(
            "the same command, which resumes after {} in {}",
            counted(n, "request"),
            partial.display()
        ))
    };
    answered.map_err(resumable)?;
    write(&journal, args, app).map_err(resumable)?;
    let report = Report {
        out: &args.out,
        requests: n,
        failed: journal.n_failed(),
        resumed_requests: resumed,
        seconds: start.elapsed().as_secs_f64(),
    };
    journal.remove()?;
    say(&report, app)
}

/// The models to load, by the names that requests have for them; without a name, the server's.
fn specs(args: &Args, survey: &Survey) -> Result<Vec<(Option<String>, String)>, Failure> {
    if args.model.is_empty() {
        let names = survey.models.keys();
        let specs: Vec<_> = names
            .map(|name| (Some(name.clone()), name.clone()))
            .collect();
        if specs.is_empty() {
            let file = args.file.display();
            return Err(
                usage!("{file}: expected requests that name a model, found none").remedy(
                    "lines such as {\"custom_id\": \"1\", \"method\": \"POST\", \"url\": \
                         \"/v1/embeddings\", \"body\": {\"model\": \"minilm\", \"input\": \"a\"}}",
                ),
            );
        }
        return Ok(specs);
    }
    let spec = |given: &String| match given.split_once('=') {
        Some((name, spec)) if !Path::new(given).exists() => {
            (Some(name.to_owned()), spec.to_owned())
        }
        _ => (None, given.clone()),
    };
    Ok(args.model.iter().map(spec).collect())
}

/// Models that were started.
struct Loaded {
    served: Vec<Served>,
    /// The server's name of a model, by the name that requests have for it.
    names: BTreeMap<String, String>,
    /// A hash of the files of each model, by what it was asked for as.
    files: BTreeMap<String, String>,
}

fn load(specs: &[(Option<String>, String)], args: &Args, app: &App) -> Result<Loaded, Failure> {
    let backend = args.flags.backend(app);
    let options = ModelOptions {
        language: args.flags.program.served_options(),
        n_slots: usize::from(args.slots),
        n_queue: N_QUEUE,
        answer_time: None,
        deterministic: false,
        budget: app.budget.clone(),
        grammars: Some(grammars::program()),
        prompts: KeptPrompts {
            form: PageForm::Exact,
            memory: PROMPT_BYTES,
            folder: None,
            numerics: format!("{:?}", args.flags.program.numerics),
            complain: |_| {},
        },
    };
    let mut loaded = Loaded {
        served: Vec::new(),
        names: BTreeMap::new(),
        files: BTreeMap::new(),
    };
    let mut ids: BTreeMap<&str, String> = BTreeMap::new();
    for (name, spec) in specs {
        if !ids.contains_key(spec.as_str()) {
            let opened = Model::open(spec, &app.hub, app.output.as_ref());
            let model = opened.map_err(|e| of_model(e.into(), spec, args))?;
            let path = model.path.display().to_string();
            loaded.files.insert(spec.clone(), model.fingerprint()?);
            let id = thane_serve::name_of(&model);
            let served = Served::start(model, &id, &backend, &options, app.output.as_ref())
                .map_err(|e| Failure::from(e).naming(&path, spec))?;
            if ids.values().any(|other| *other == id) {
                return Err(
                    usage!("expected models with different names, found `{id}` twice")
                        .remedy("a link with another name to one of the folders or files"),
                );
            }
            loaded.served.push(served);
            ids.insert(spec, id);
        }
        let id = ids[spec.as_str()].clone();
        loaded
            .names
            .insert(name.clone().unwrap_or_else(|| id.clone()), id);
    }
    app.output.clear();
    Ok(loaded)
}

/// The failure of a model that only requests name.
fn of_model(failure: Failure, spec: &str, args: &Args) -> Failure {
    match args.model.is_empty() {
        true => failure.remedy(format!(
            "--model {spec}=MODEL, for requests that name {spec}"
        )),
        false => failure,
    }
}

/// The settings that an interrupted run must be continued with.
fn settings(args: &Args, survey: &Survey, loaded: &Loaded) -> Settings {
    let program = &args.flags.program;
    let pairs = |map: &BTreeMap<String, String>| {
        let pairs: Vec<String> = map.iter().map(|(a, b)| format!("{a}={b}")).collect();
        pairs.join(" ")
    };
    let context = program.context;
    [
        ("the requests (SHA-256 of the file)", survey.sha256.clone()),
        ("--model", pairs(&loaded.names)),
        (
            "the models' files (hash of names, lengths, times)",
            pairs(&loaded.files),
        ),
        (
            "the program",
            concat!("thane ", env!("CARGO_PKG_VERSION")).to_owned(),
        ),
        (
            "--context",
            context.map_or_else(|| "the model's".to_owned(), |n| n.to_string()),
        ),
        (
            "--numerics",
            format!("{:?}", program.numerics).to_lowercase(),
        ),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

/// A run over requests.
struct Batch<'a> {
    app: &'a App,
    requests: &'a Requests,
    /// See [`Loaded::names`].
    names: BTreeMap<String, String>,
    offline: Offline,
    /// Requests that run or wait at a time.
    width: usize,
    journal: RefCell<Journal>,
}

/// Whose answer it is.
struct Key {
    line: u64,
    custom_id: String,
}

impl Batch<'_> {
    /// Answers the requests that have no row yet.
    fn answer(&self) -> Outcome {
        let interrupt = &self.app.interrupt;
        let _cooperative = interrupt.cooperate(Some(GRACE));
        let mut lines = self.requests.lines()?;
        let is_done = self.offline.run(
            self.width,
            &mut || self.next(&mut lines),
            &mut |key, reply| self.done(&key, &reply),
            &|| interrupt.is_set(),
        )?;
        match is_done {
            true => Ok(()),
            false => Err(interrupted()),
        }
    }

    /// The next request without a row. Lines that are no requests get a row here.
    fn next(&self, lines: &mut Lines) -> Result<Option<(Key, Request)>, Failure> {
        loop {
            let line = lines.next_line().map_err(|e| self.requests.unread(e))?;
            let Some(line) = line else { return Ok(None) };
            if self.journal.borrow().has(line.number) {
                continue;
            }
            match line.request {
                Ok(asked) => return Ok(Some(self.request(line.number, asked))),
                Err(fault) => self.keep(line.number, fault_row(line.number, &fault), true)?,
            }
        }
    }

    /// Tells of models that requests name and that are not there, before hours go by.
    fn say_unknown(&self, survey: &Survey) {
        for (name, line) in &survey.models {
            if !self.names.contains_key(name) && !self.offline.has_model(name) {
                let known: Vec<&str> = self.names.keys().map(String::as_str).collect();
                self.app.output.say(&format!(
                    "thane: no --model for `{name}`, which line {line} names: expected one of {}; such \
                     requests get an error as their answer",
                    known.join(", ")
                ));
            }
        }
    }

    fn request(&self, line: u64, mut asked: Asked) -> (Key, Request) {
        if let Some(Value::String(name)) = asked.body.get_mut("model")
            && let Some(id) = self.names.get(name)
        {
            name.clone_from(id);
        }
        let request = Request {
            path: asked.url,
            body: Value::Object(asked.body).to_string().into_bytes(),
        };
        let custom_id = asked.custom_id;
        (Key { line, custom_id }, request)
    }

    fn done(&self, key: &Key, reply: &Reply) -> Outcome {
        self.keep(key.line, answer_row(key, reply), reply.status >= 400)
    }

    fn keep(&self, line: u64, row: String, has_failed: bool) -> Outcome {
        self.journal.borrow_mut().append(line, row, has_failed)?;
        self.app.output.advance(1);
        Ok(())
    }
}

/// The row of an answer. The body, which may be long, is put into it as it came.
fn answer_row(key: &Key, reply: &Reply) -> String {
    let body = String::from_utf8_lossy(&reply.body);
    let is_json = !body.contains('\n') && serde_json::from_str::<IgnoredAny>(&body).is_ok();
    let body = match is_json {
        true => body.into_owned(),
        false => json!(body).to_string(),
    };
    let (line, status) = (key.line, reply.status);
    let custom_id = json!(key.custom_id);
    format!(
        r#"{{"id":"{ID_PREFIX}{line}","custom_id":{custom_id},"response":{{"status_code":{status},"request_id":"req_{line}","body":{body}}},"error":null}}"#
    )
}

/// The row of a line that is no request.
fn fault_row(line: u64, fault: &Fault) -> String {
    json!({
        "id": format!("{ID_PREFIX}{line}"),
        "custom_id": fault.custom_id,
        "response": null,
        "error": {"code": fault.code, "message": fault.message},
    })
    .to_string()
}

/// Writes the output, which gets its name when it is complete.
fn write(journal: &Journal, args: &Args, app: &App) -> Outcome {
    let interrupt = &app.interrupt;
    let _cooperative = interrupt.cooperate(Some(WRITE_GRACE));
    let _writing = interrupt.writing(&args.out);
    let is_stopped = || interrupt.is_set();
    let write = |out: &mut (dyn Write + Send)| journal.write(out, &is_stopped);
    interrupt.ended(out::write_with(&args.out, args.force, write))
}

fn say(report: &Report<'_>, app: &App) -> Outcome {
    if app.output.is_json() {
        app.output.json(report)?;
        return outcome(report);
    }
    let n = report.requests;
    let n_now = n - report.resumed_requests;
    let rate = n_now as f64 / report.seconds.max(1e-9);
    app.output.explain(&format!(
        "{}, {rate:.1} requests/s",
        counted(n_now, "request")
    ));
    app.output.say(&counted(n, "request"));
    app.output.data(&format!("{}\n", report.out.display()))?;
    outcome(report)
}

/// The output is complete, and still not what was asked for if a request has no answer.
fn outcome(report: &Report<'_>) -> Outcome {
    if report.failed == 0 {
        return Ok(());
    }
    Err(other!(
        "{}: {} without an answer; their rows say why",
        report.out.display(),
        counted(report.failed, "request")
    ))
}

impl From<OfflineError> for Failure {
    fn from(error: OfflineError) -> Self {
        other(error)
    }
}
