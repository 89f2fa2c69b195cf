//! `thane embed`: texts to vectors.

mod flags;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use thane_engine::embed::output::Format;
use thane_engine::embed::similarity::{Similarity, hamming};
use thane_models::Encoding;
use thane_runtime::{EmbedOptions, Model};
use thane_serve::Client;

use crate::app::App;
use crate::begun::{self, Settings};
use crate::embed::files::{self, Kind, Line, Numbers};
use crate::embed::job::{Engine, Job};
use crate::embed::journal::Journal;
use crate::embed::local::Local;
use crate::embed::reader::{Reader, in_a_line, say_notes};
use crate::embed::records::{Counts, Stored, json_bytes};
use crate::embed::remote::Remote;
use crate::embed::table::{OnNull, Table};
use crate::exit::{Code, Failure, Outcome, usage};
use crate::out;
use crate::output::counted;
use thane_texts::rows::Texts;

pub use flags::Args;
use flags::{dimensions, format, prompt, target, texts};

/// How long an interrupted run may take to end by itself. Files are consistent at any moment, so a
/// call of a large model or a request to a server is not awaited.
const GRACE: Duration = Duration::from_millis(300);
/// The same while the output is written: writing ends between two rows or after a flush.
const WRITE_GRACE: Duration = Duration::from_secs(10);
/// Bytes of lines that are printed together.
const LINES_BYTES: usize = 1 << 16;
/// Bytes of a number as JSON and in memory.
const NUMBER_BYTES: usize = 24;

/// What `--json` prints.
#[derive(Default, Serialize)]
struct Report<'a> {
    model: &'a str,
    #[serde(flatten)]
    counts: Counts,
    /// Dimensions of a vector.
    dimensions: usize,
    format: &'static str,
    /// How bits are packed; null for other element types.
    packing: Option<&'static str>,
    /// The file that was written; null if the vectors are in `embeddings`.
    out: Option<&'a Path>,
    /// Rows that an earlier run had embedded.
    resumed_rows: u64,
    seconds: f64,
    /// The vectors; null if they were written to a file.
    embeddings: Option<Vec<Numbers>>,
    /// The ids of the rows; null if there are no `embeddings`, or rows have no ids.
    ids: Option<Vec<serde_json::Value>>,
    /// The similarity with `--similarity`, otherwise null.
    similarity: Option<Comparison>,
}

/// The similarity of two texts.
#[derive(Serialize)]
struct Comparison {
    /// `cosine`, `dot`, `euclidean`, `manhattan`, or `hamming` for bits. With a vector per token,
    /// the sum of the greatest similarity of each (MaxSim).
    function: &'static str,
    value: f64,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let start = Instant::now();
    let texts = texts(args, app)?;
    let encoding = args.vectors.encoding();
    let is_ragged = encoding != Encoding::Text;
    let target = |out| target(out, is_ragged, args, &texts);
    let kind = args.out.as_deref().map(target);
    let kind = kind.transpose()?;
    let n_rows = texts.check().map_err(|e| usage(in_a_line(e)))?;
    if n_rows == Some(0) {
        return Err(nothing(&texts));
    }
    say_notes(&texts, app);
    let run = Run {
        start,
        args,
        app,
        texts: &texts,
        n_rows,
        kind,
    };
    match args.server.client(app)? {
        Some(client) => there(&run, client),
        None => here(&run),
    }
}

/// What is the same for a model on this machine and for one of a server.
struct Run<'a> {
    start: Instant,
    args: &'a Args,
    app: &'a App,
    texts: &'a Texts,
    /// Number of rows, if it is known before they are read.
    n_rows: Option<u64>,
    /// The format of the output file.
    kind: Option<Kind>,
}

/// Embeds with a model on this machine.
fn here(run: &Run<'_>) -> Outcome {
    let Run { args, app, .. } = run;
    let options = EmbedOptions {
        pooling: args.vectors.pooling,
        encoding: args.vectors.encoding(),
        max_tokens: args.vectors.max_length,
        batch_tokens: args.run.batch_tokens,
        ..EmbedOptions::default()
    };
    let backend = args.run.cpu(app);
    let model = Model::open(&args.model, &app.hub, app.output.as_ref())?;
    let path = model.path.display().to_string();
    let embedder = model
        .embedding_model(&options, &backend, app.output.as_ref())
        .map_err(|e| Failure::from(e).naming(&path, &args.model))?;
    if let Some(out) = &args.out {
        out::check(out, args.force, &[&embedder.path])?;
    }
    let info = &embedder.info;
    let format = format(&args.vectors, info.quantize)?;
    let kept = dimensions(args, info)?;
    let (prompt_name, prompt) = prompt(args, info)?;
    let mut settings = settings(args, &embedder.name, format);
    let more = [
        (
            "the model's files (hash of names, lengths, times)",
            embedder.fingerprint()?,
        ),
        ("--prompt", prompt_name.unwrap_or_default()),
        ("--pooling", info.pooling.to_string()),
        ("--max-length", embedder.max_tokens().to_string()),
        (
            "--numerics",
            format!("{:?}", args.run.numerics).to_lowercase(),
        ),
    ];
    settings.extend(more.map(|(key, value)| (key.to_owned(), value)));
    let similarity = similarity(args, format, info.similarity.as_deref())?;
    let name = embedder.name.clone();
    let engine = Local {
        app,
        texts: run.texts,
        encoding: args.vectors.encoding(),
        prefix: embedder.text().prefix(prompt, embedder.max_tokens())?,
        embedder,
        kept,
        truncate: args.vectors.truncate,
    };
    let of_vectors = (format, kept.dim);
    embed(run, engine, &name, of_vectors, similarity, &settings)
}

/// Embeds with a model of a server, which says what it is if it is ours.
fn there(run: &Run<'_>, client: Client) -> Outcome {
    let args = run.args;
    let (name, asked_dim) = (&args.model, args.vectors.dimensions);
    let output = &run.app.output;
    output.busy(&format!("asking {}", client.shown_url()));
    let facts = client.model(name)?;
    let (first, _) = client.embed(name, &["a"], (asked_dim, Client::MAX_DIM))?;
    let dim = first.first().map_or(0, Vec::len);
    if dim == 0 || asked_dim.is_some_and(|asked| asked != dim) {
        let expected = asked_dim.map_or_else(|| "some".to_owned(), |n| n.to_string());
        let what = format!("expected {expected} dimensions, found {dim}");
        return Err(client.answer(what).into());
    }
    let format = format(&args.vectors, facts["format"] == "int8")?;
    let mut settings = settings(args, name, format);
    settings.insert("--server".to_owned(), client.shown_url().to_owned());
    let similarity = similarity(args, format, facts["similarity"].as_str())?;
    let engine = Remote {
        client,
        model: name,
        texts: run.texts,
        asked_dim,
        dim,
    };
    embed(run, engine, name, (format, dim), similarity, &settings)
}

/// Embeds the texts with an engine.
fn embed<E: Engine>(
    run: &Run<'_>,
    engine: E,
    name: &str,
    (format, dim): (Format, usize),
    similarity: Option<Similarity>,
    settings: &Settings,
) -> Outcome {
    let Run { args, app, .. } = run;
    let job = Job {
        app,
        engine,
        texts: run.texts,
        format,
        dim,
        is_ragged: args.vectors.encoding() != Encoding::Text,
        kept: None,
    };
    let mut report = Report {
        model: name,
        dimensions: dim,
        format: format.kind(),
        packing: format.packing(),
        out: args.out.as_deref(),
        ..Report::default()
    };
    match (args.out.as_deref(), run.kind) {
        (Some(out), Some(kind)) => to_file(job, (out, kind), settings, run, &mut report)?,
        _ => to_stdout(job, similarity, run, &mut report)?,
    }
    // Those of stdin, which is read once.
    say_notes(run.texts, app);
    report.seconds = run.start.elapsed().as_secs_f64();
    say(&report, args.on_null(), app)
}

/// The similarity function, with `--similarity`.
fn similarity(
    args: &Args,
    format: Format,
    name: Option<&str>,
) -> Result<Option<Similarity>, Failure> {
    if !args.similarity {
        return Ok(None);
    }
    if args.vectors.encoding() != Encoding::Text && format.is_packed() {
        return Err(
            usage!("texts with a vector of bits for each token cannot be compared")
                .remedy("--format float"),
        );
    }
    function(name).map(Some)
}

/// The settings that an interrupted run must be continued with. `--truncate` may change: without
/// it, no text was truncated.
fn settings(args: &Args, model: &str, format: Format) -> Settings {
    // The default differs from an explicit number, after which vectors are normalized again.
    let dimensions = args.vectors.dimensions.map(|n| n.to_string());
    let dimensions = dimensions.unwrap_or_else(|| "the model's".to_owned());
    let id = args.id.as_deref().unwrap_or("id, where rows have it");
    let vectors = format!("{:?}", args.vectors.encoding()).to_lowercase();
    let on_null = match args.on_null() {
        OnNull::Error => "error",
        // What is computed and kept is the same.
        OnNull::Skip | OnNull::Keep => "skip or keep",
    };
    [
        ("the model", model),
        ("the program", concat!("thane ", env!("CARGO_PKG_VERSION"))),
        ("--format", format.kind()),
        ("--packing", format.packing().unwrap_or("none")),
        ("--dimensions", &dimensions),
        ("the vectors", &vectors),
        ("--field", args.input.field()),
        ("--id", id),
        ("--on-null", on_null),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

fn to_file<E: Engine>(
    mut job: Job<'_, E>,
    (out, kind): (&Path, Kind),
    settings: &Settings,
    run: &Run<'_>,
    report: &mut Report<'_>,
) -> Outcome {
    let partial = out::beside(out, ".partial");
    out::create_parent(out)?;
    let (app, format, dim) = (job.app, job.format, job.dim);
    let mut journal = Journal::open(&partial, settings, format.stored_bytes(dim), &app.budget)?;
    let remedy = |n: u64| {
        let done = counted(n, "finished text");
        format!("the same command again; {} keeps {done}", partial.display())
    };
    if journal.done().rows > 0 {
        app.interrupt.set_remedy(&remedy(journal.done().rows));
    }
    let reader = Reader::behind(job.texts, &mut journal)?;
    job.kept = journal.first_row()?;
    report.resumed_rows = journal.done().rows;
    begun::say_resumed(report.resumed_rows, "text", &partial, &app.output);
    app.output
        .count("embedding", run.n_rows, report.resumed_rows);
    let cooperative = app.interrupt.cooperate(Some(GRACE));
    let embedded = job.run(reader, run.n_rows, &mut |done| {
        journal
            .append(&done.counts, &done.rows)
            .map_err(|e| journal.fault(e))?;
        app.interrupt.set_remedy(&remedy(journal.done().rows));
        Ok(())
    });
    drop(cooperative);
    app.output.clear();
    let n = journal.done().rows;
    if n == 0 {
        std::fs::remove_file(&partial).map_err(|e| journal.fault(e))?;
        return Err(match embedded {
            Err(failure) if failure.code() == Code::Interrupted => Failure::new(
                Code::Interrupted,
                anyhow::anyhow!("interrupted before the first texts were saved"),
            ),
            Err(failure) => failure,
            Ok(_) => nothing(job.texts),
        });
    }
    if embedded.is_ok() && journal.done().vectors == 0 {
        std::fs::remove_file(&partial).map_err(|e| journal.fault(e))?;
        return Err(usage!(job.texts.all_null(n)));
    }
    let resumable = |failure: Failure| failure.remedy(remedy(n));
    embedded.map_err(resumable)?;
    let written = write(&job, &journal, (out, kind), (report.model, run));
    written.map_err(resumable)?;
    app.interrupt.set_remedy("");
    std::fs::remove_file(&partial).map_err(|e| journal.fault(e))?;
    report.counts = journal.done().clone();
    Ok(())
}

/// Writes the output of a finished run.
fn write<E>(
    job: &Job<'_, E>,
    journal: &Journal,
    (out, kind): (&Path, Kind),
    (model, run): (&str, &Run<'_>),
) -> Outcome {
    let interrupt = &job.app.interrupt;
    let is_stopped = || interrupt.is_set();
    let table = Table {
        journal,
        format: job.format,
        dim: job.dim,
        is_ragged: job.is_ragged,
        on_null: run.args.on_null(),
        model,
        interrupted: &is_stopped,
    };
    let _cooperative = interrupt.cooperate(Some(WRITE_GRACE));
    let _writing = interrupt.writing(out);
    let how = (kind, run.args.compression.unwrap_or_default());
    interrupt.ended(files::write(&table, how, out, run.args.force))
}

fn nothing(texts: &Texts) -> Failure {
    usage!("{}: there are no texts", texts.name())
}

/// Prints rows as they are embedded, or keeps them for the report.
fn to_stdout<E: Engine>(
    mut job: Job<'_, E>,
    similarity: Option<Similarity>,
    run: &Run<'_>,
    report: &mut Report<'_>,
) -> Outcome {
    let (app, format, dim, is_ragged) = (job.app, job.format, job.dim, job.is_ragged);
    let keeps = app.output.is_json() || similarity.is_some();
    let mut kept: Vec<Stored> = Vec::new();
    // Rows that wait for the one before them.
    let mut waiting: BTreeMap<u64, Stored> = BTreeMap::new();
    let mut next = 0;
    let mut held = app.budget.reserve(0, String::new).map_err(usage)?;
    if keeps {
        app.output.count("embedding", run.n_rows, 0);
    }
    let skips = run.args.on_null() == OnNull::Skip;
    let reader = Reader::new(job.texts);
    let counts = job.run(reader, run.n_rows, &mut |done| {
        if keeps {
            let n_vectors = usize::try_from(done.counts.vectors).unwrap_or(usize::MAX);
            let n_bytes = n_vectors.saturating_mul(dim).saturating_mul(NUMBER_BYTES);
            let ids = done.rows.iter().filter_map(|row| row.id.as_ref()?.as_str());
            let rows_bytes = done.rows.len() * 2 * size_of::<Stored>();
            let n_bytes = n_bytes.saturating_add(ids.map(str::len).sum::<usize>() + rows_bytes);
            let grown = held.grow(n_bytes, || "the vectors to print".to_owned());
            grown.map_err(|e| usage(e).remedy("-o FILE, which keeps them on the disk"))?;
        }
        waiting.extend(done.rows.into_iter().map(|row| (row.index, row)));
        let mut lines = String::new();
        while let Some(row) = waiting.remove(&next) {
            next += 1;
            if skips && row.vectors.is_empty() {
                continue;
            }
            if keeps {
                kept.push(row);
                continue;
            }
            // A line is a string that doubles.
            let id_bytes = row.id.as_ref().map(json_bytes).transpose()?.unwrap_or(0);
            let n_bytes = usize::try_from(id_bytes * 2).unwrap_or(usize::MAX);
            let what = || "a line with a long id".to_owned();
            let _line = app.budget.reserve(n_bytes, what).map_err(usage)?;
            let line = Line::of(format, dim, is_ragged, &row);
            lines.push_str(&serde_json::to_string(&line).map_err(io::Error::from)?);
            lines.push('\n');
            if lines.len() >= LINES_BYTES {
                app.output.data(&std::mem::take(&mut lines))?;
            }
        }
        Ok(app.output.data(&lines)?)
    });
    app.output.clear();
    report.counts = counts?;
    if report.counts.rows == 0 {
        return Err(nothing(job.texts));
    }
    if report.counts.vectors == 0 {
        return Err(usage!(job.texts.all_null(report.counts.rows)));
    }
    if let (Some(similarity), [a, b]) = (similarity, &kept[..]) {
        report.similarity = Some(compare(
            similarity, format, dim, is_ragged, &a.vectors, &b.vectors,
        ));
    }
    if app.output.is_json() {
        let numbers = |row: &Stored| files::numbers(format, dim, is_ragged, &row.vectors);
        report.embeddings = Some(kept.iter().map(numbers).collect());
        report.ids = kept.into_iter().map(|row| row.id).collect();
    }
    Ok(())
}

/// The model's similarity function; cosine if it names none.
fn function(name: Option<&str>) -> Result<Similarity, Failure> {
    let Some(name) = name else {
        return Ok(Similarity::Cosine);
    };
    Similarity::from_name(name).ok_or_else(|| {
        let known: Vec<&str> = Similarity::ALL.iter().map(|s| s.name()).collect();
        usage!(
            "similarity_fn_name in the model's config_sentence_transformers.json: expected {}, \
             found {name}",
            known.join(", ")
        )
        .remedy("leave --similarity out, and compare the vectors in another program")
    })
}

/// Compares two rows as they are stored.
fn compare(
    similarity: Similarity,
    format: Format,
    dim: usize,
    is_ragged: bool,
    a: &[u8],
    b: &[u8],
) -> Comparison {
    if format.is_packed() {
        // The proportion of equal bits.
        return Comparison {
            function: "hamming",
            value: 1.0 - f64::from(hamming(a, b)) / dim as f64,
        };
    }
    let (a, b) = (format.read(a), format.read(b));
    let value = if is_ragged {
        similarity.max_sim(&a, &b, dim)
    } else {
        similarity.compare(&a, &b)
    };
    Comparison {
        function: similarity.name(),
        value,
    }
}

fn say(report: &Report<'_>, on_null: OnNull, app: &App) -> Outcome {
    if app.output.is_json() {
        return Ok(app.output.json(report)?);
    }
    let Counts {
        rows,
        vectors,
        tokens,
        truncated,
        nulls,
    } = &report.counts;
    let rate = (rows - report.resumed_rows) as f64 / report.seconds.max(1e-9);
    let n_texts = rows - nulls;
    app.output.explain(&format!(
        "{}, {}, {rate:.1} texts/s",
        counted(n_texts, "text"),
        counted(*tokens, "token")
    ));
    if *nulls > 0 {
        let what = match on_null {
            OnNull::Skip => "left out",
            OnNull::Error | OnNull::Keep => "kept with null",
        };
        let rows = counted(*rows, "row");
        app.output.say(&format!(
            "thane: without a text and {what}: {nulls} of {rows}"
        ));
    }
    if *truncated > 0 {
        app.output.say(&format!(
            "thane: cut to what the model takes: {truncated} of {}",
            counted(n_texts, "text")
        ));
    }
    if let Some(comparison) = &report.similarity {
        return Ok(app.output.data(&format!("{:.6}\n", comparison.value))?);
    }
    let Some(out) = report.out else { return Ok(()) };
    let packing = report.packing.map(|packing| format!(" ({packing})"));
    let packing = packing.unwrap_or_default();
    app.output.say(&format!(
        "{}, {} of {}, {}{packing}",
        counted(n_texts, "text"),
        counted(*vectors, "vector"),
        counted(report.dimensions, "dimension"),
        report.format
    ));
    Ok(app.output.data(&format!("{}\n", out.display()))?)
}
