//! `thane embed`: texts to vectors.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use thane_engine::embed::output::Format;
use thane_engine::embed::similarity::{Similarity, hamming};
use thane_mil::package::create_folders;
use thane_models::{EncoderInfo, EncoderOptions, Encoding, Pooling};

use crate::app::App;
use crate::embed::encoder::{self, Encoder, Run};
use crate::embed::files::{self, Kind, Line, Numbers, Table};
use crate::embed::job::{self, Job};
use crate::embed::journal::{self, Counts, Journal, Settings, Stored};
use crate::embed::prompt;
use crate::embed::rows::{Fields, Id, Source, Texts};
use crate::exit::{Code, Failure, Outcome};
use crate::model::NumericsFlag;
use crate::out;
use crate::output::counted;

/// 1,024: of 400 texts of 1 to 180 words (all-MiniLM-L6-v2, 2 threads of an EPYC, November 2026, a
/// busy machine) the CPU time was 10.0 s at 512, 10.7 s at 1,024, 14.1 s at 2,048, 44.9 s at
/// 16,384, and 16.5 s one by one; longer texts want the larger of the first two.
pub const BATCH_TOKENS: usize = 1024;

/// How long a run that is interrupted may take to end by itself; what is on disk is whole at any
/// moment.
const GRACE: Duration = Duration::from_millis(300);
/// The same where the output is written: it is left off between two rows, or the disk is waited for
/// once more.
const WRITE_GRACE: Duration = Duration::from_secs(10);
/// Bytes of a number as JSON, and of what it is made of.
const NUMBER_BYTES: usize = 24;

/// Turn texts into vectors, one for each text, in their order.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A path, hf:org/name[@revision], or a name of the catalog.
    model: String,
    /// The texts; without them and --file, stdin is read, a text a line.
    #[arg(conflicts_with = "file")]
    texts: Vec<String>,
    /// The texts: lines of a .txt file, rows of a .jsonl, .csv, .tsv or .parquet file.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The field or column of rows that has the text [default: text]; makes stdin JSON lines.
    #[arg(long, value_name = "NAME")]
    field: Option<String>,
    /// The field or column that names a row, kept beside its vectors [default: id, where the rows
    /// have it].
    ///
    /// JSON lines and Parquet files have it as `id`. An empty name keeps none.
    #[arg(long, value_name = "NAME")]
    id: Option<String>,
    /// A .npy, .jsonl, .parquet or .safetensors file [default: JSON on stdout].
    ///
    /// stdout has a JSON array a line.
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write in the place of the file that is there.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    vectors: Vectors,
    /// How alike two texts are, by the model's function.
    ///
    /// With int8 or bits, of what is stored.
    #[arg(long, conflicts_with_all = ["file", "out", "chunks"])]
    similarity: bool,
    /// Tokens of a call of the program at most, padding included.
    #[arg(long, value_name = "N", default_value_t = BATCH_TOKENS)]
    batch_tokens: usize,
    /// How to compute.
    ///
    /// fast takes quantised weights as they are, f32 is the reference, ane is fp16 after each op
    /// with the sums of the Apple Neural Engine.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = NumericsFlag::Fast)]
    numerics: NumericsFlag,
    /// Threads [default: the physical cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

/// What vectors are made.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Vectors")]
struct Vectors {
    /// Elements: float, float16, int8, binary, ubinary [default: the model's].
    ///
    /// The default is float, or int8 where the model's own output is.
    #[arg(long, value_name = "FORMAT", hide_possible_values = true, value_parser = ["float", "float16", "int8", "binary", "ubinary"])]
    format: Option<String>,
    /// How bits are packed: docs/embed.md has the three ways [default: pplx for models that
    /// quantise, else sentence-transformers].
    #[arg(long, value_name = "HOW", value_parser = ["pplx", "sentence-transformers", "lsb"])]
    packing: Option<String>,
    /// Keep the first N dimensions (Matryoshka), before anything is quantised.
    #[arg(long, value_name = "N")]
    dimensions: Option<usize>,
    /// Put one of the model's prompts before each text; an empty name takes none [default: the
    /// model's default prompt].
    #[arg(long, value_name = "NAME", conflicts_with = "chunks")]
    prompt: Option<String>,
    /// A row is a list of chunks that are embedded in one pass, a vector each (late chunking).
    #[arg(long)]
    chunks: bool,
    /// A vector for each token.
    #[arg(long, conflicts_with_all = ["chunks", "pooling"])]
    multi_vector: bool,
    /// How the vectors of tokens become one: mean, cls, lasttoken, max or weightedmean [default: as
    /// the model says].
    #[arg(long, value_name = "HOW", value_parser = pooling)]
    pooling: Option<Pooling>,
    /// Most tokens of a text [default: what the model was made for].
    #[arg(long, value_name = "N")]
    max_length: Option<usize>,
    /// Cut texts that are longer than the model takes, and count them.
    #[arg(long)]
    truncate: bool,
}

fn pooling(name: &str) -> Result<Pooling, String> {
    Pooling::from_name(name)
        .ok_or_else(|| "the ways are mean, cls, lasttoken, max and weightedmean".to_owned())
}

impl Vectors {
    fn encoding(&self) -> Encoding {
        match (self.chunks, self.multi_vector) {
            (true, _) => Encoding::Chunks,
            (_, true) => Encoding::Tokens,
            _ => Encoding::Text,
        }
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    #[serde(flatten)]
    counts: Counts,
    /// Dimensions of a vector.
    dimensions: usize,
    format: &'static str,
    /// How bits are packed; null where there are none.
    packing: Option<&'static str>,
    /// What was written; null where the vectors are below.
    out: Option<&'a Path>,
    /// Rows that an earlier run had done.
    resumed_rows: u64,
    seconds: f64,
    /// The vectors; null where they were written to a file.
    embeddings: Option<Vec<Numbers>>,
    /// The names of their rows; null where there are no vectors above, or the rows have no names.
    ids: Option<Vec<serde_json::Value>>,
    /// With `--similarity`; null else.
    similarity: Option<Likeness>,
}

/// How alike two texts are.
#[derive(Serialize)]
struct Likeness {
    /// `cosine`, `dot`, `euclidean`, `manhattan` or, of bits, `hamming`; of a vector for each token
    /// the sum of the likest.
    function: &'static str,
    value: f64,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let start = Instant::now();
    let usage = |e: anyhow::Error| Failure::new(Code::Usage, e);
    let texts = texts(args, app)?;
    let encoding = args.vectors.encoding();
    let is_ragged = encoding != Encoding::Text;
    let kind = args
        .out
        .as_deref()
        .map(|out| target(out, is_ragged, args))
        .transpose()?;
    let n_rows = texts.check().map_err(|e| usage(job::in_a_line(e)))?;
    if n_rows == Some(0) {
        return Err(nothing(&texts));
    }
    let how = Run {
        numerics: args.numerics,
        threads: args.threads,
        batch_tokens: args.batch_tokens,
        max_length: args.vectors.max_length,
        profile: None,
    };
    let options = EncoderOptions {
        pooling: args.vectors.pooling,
        encoding,
        ..EncoderOptions::default()
    };
    let mut encoder = encoder::open(&args.model, &options, &how, app)?;
    if let Some(out) = &args.out {
        out::check(out, args.force, &[&encoder.path])?;
    }
    let format = format(&args.vectors, &encoder.info)?;
    let dim = dimensions(args.vectors.dimensions, &encoder.info)?;
    let (prompt_name, prompt) = prompt(args, &encoder.info)?;
    let settings = settings(args, &encoder, format, dim, prompt_name)?;
    let name = encoder.name.clone();
    if args.similarity && is_ragged && format.is_packed() {
        let error =
            anyhow::anyhow!("texts with a vector of bits for each token cannot be compared");
        return Err(usage(error).remedy("--format float"));
    }
    let similarity = if args.similarity {
        Some(function(&encoder.info)?)
    } else {
        None
    };
    let job = Job {
        app,
        encoder: &mut encoder,
        texts: &texts,
        encoding,
        prompt,
        format,
        dim,
        truncate: args.vectors.truncate,
    };
    let mut report = Report {
        model: &name,
        counts: Counts::default(),
        dimensions: dim,
        format: format.kind(),
        packing: format.packing(),
        out: args.out.as_deref(),
        resumed_rows: 0,
        seconds: 0.0,
        embeddings: None,
        ids: None,
        similarity: None,
    };
    match (args.out.as_deref(), kind) {
        (Some(out), Some(kind)) => to_file(
            job,
            &Output {
                kind,
                path: out,
                force: args.force,
            },
            &settings,
            n_rows,
            &mut report,
        )?,
        _ => to_stdout(job, similarity, n_rows, &mut report)?,
    }
    report.seconds = start.elapsed().as_secs_f64();
    say(&report, app)
}

fn texts(args: &Args, app: &App) -> Result<Texts, Failure> {
    let usage = |e: anyhow::Error| Failure::new(Code::Usage, e);
    let chunks = args.vectors.chunks;
    if args.similarity && args.texts.len() != 2 {
        return Err(usage(anyhow::anyhow!(
            "--similarity compares two texts, {} are given",
            args.texts.len()
        ))
        .remedy("thane embed MODEL --similarity \"a text\" \"another\""));
    }
    let source = match &args.file {
        Some(file) => Source::file(file).map_err(usage)?,
        None if !args.texts.is_empty() => Source::CommandLine(args.texts.clone()),
        None if io::stdin().is_terminal() => {
            return Err(usage(anyhow::anyhow!("there are no texts"))
                .remedy("thane embed MODEL \"a text\"")
                .remedy("thane embed MODEL --file texts.jsonl -o vectors.npy"));
        }
        None if args.field.is_some() || args.id.is_some() || chunks => Source::JsonStdin,
        None => Source::Stdin,
    };
    let id = match args.id.as_deref() {
        None => Id::IfAny,
        Some("") => Id::None,
        Some(name) => Id::Named(name.to_owned()),
    };
    let text = args.field.clone().unwrap_or_else(|| "text".to_owned());
    Texts::new(source, Fields { text, id }, chunks, &app.budget).map_err(usage)
}

/// The kind of the file to write.
fn target(path: &Path, is_ragged: bool, args: &Args) -> Result<Kind, Failure> {
    let kind = Kind::of(path, is_ragged).map_err(|e| Failure::new(Code::Usage, e))?;
    if args.id.as_ref().is_some_and(|name| !name.is_empty()) && !kind.has_ids() {
        let error = anyhow::anyhow!("{}: such a file has no place for --id", path.display());
        return Err(Failure::new(Code::Usage, error).remedy("-o with a .jsonl or .parquet file"));
    }
    let inputs: Vec<&Path> = args
        .file
        .as_deref()
        .into_iter()
        .chain([Path::new(&args.model)])
        .collect();
    out::check(path, args.force, &inputs)?;
    Ok(kind)
}

fn format(flags: &Vectors, info: &EncoderInfo) -> Result<Format, Failure> {
    let own = if info.quantize {
        ("int8", "pplx")
    } else {
        ("float", "sentence-transformers")
    };
    let kind = flags.format.as_deref().unwrap_or(own.0);
    let of_kind = || Format::ALL.into_iter().filter(|f| f.kind() == kind);
    let packings: Vec<&str> = of_kind().filter_map(Format::packing).collect();
    let wanted = match (packings.is_empty(), flags.packing.as_deref()) {
        (true, None) => None,
        (true, Some(_)) => {
            let error = anyhow::anyhow!("--packing is of bits, and --format {kind} has none");
            return Err(
                Failure::new(Code::Usage, error).remedy("--format binary, or --format ubinary")
            );
        }
        (false, packing) => Some(packing.unwrap_or(own.1)),
    };
    of_kind().find(|f| f.packing() == wanted).ok_or_else(|| {
        let error = anyhow::anyhow!(
            "--format {kind} has no packing {}",
            wanted.unwrap_or_default()
        );
        Failure::new(Code::Usage, error).remedy(format!("--packing {}", packings.join(" or ")))
    })
}

/// The dimensions to keep.
fn dimensions(asked: Option<usize>, info: &EncoderInfo) -> Result<usize, Failure> {
    let dim = asked.unwrap_or(info.dim);
    if (1..=info.dim).contains(&dim) {
        return Ok(dim);
    }
    let error = anyhow::anyhow!("the model does not offer {dim} dimensions");
    Err(Failure::new(Code::Usage, error).remedy(format!("--dimensions 1 to {}", info.dim)))
}

/// The name of the prompt to use, and the prompt.
fn prompt(args: &Args, info: &EncoderInfo) -> Result<(Option<String>, String), Failure> {
    let (name, text) = prompt::of(args.vectors.prompt.as_ref(), info)?;
    if !text.is_empty() && args.vectors.chunks {
        let error =
            anyhow::anyhow!("the model has a default prompt, and chunks have no place for one");
        return Err(Failure::new(Code::Usage, error).remedy("the same without --chunks"));
    }
    Ok((name, text))
}

/// What makes a run another run. Cutting is not among it: what was done without it was not cut.
fn settings(
    args: &Args,
    encoder: &Encoder,
    format: Format,
    dim: usize,
    prompt: Option<String>,
) -> Result<Settings, Failure> {
    let field = args.field.as_deref().unwrap_or("text");
    Ok([
        ("the model", encoder.name.clone()),
        (
            "the model's files (hash of names, lengths, times)",
            encoder
                .fingerprint()
                .map_err(|e| Failure::new(Code::Usage, e))?,
        ),
        (
            "the program",
            concat!("thane ", env!("CARGO_PKG_VERSION")).to_owned(),
        ),
        ("--format", format.kind().to_owned()),
        ("--packing", format.packing().unwrap_or("none").to_owned()),
        ("--dimensions", dim.to_string()),
        ("--prompt", prompt.unwrap_or_default()),
        ("--pooling", encoder.info.pooling.name().to_owned()),
        (
            "the vectors",
            format!("{:?}", args.vectors.encoding()).to_lowercase(),
        ),
        ("--max-length", encoder.max_tokens().to_string()),
        ("--numerics", format!("{:?}", args.numerics).to_lowercase()),
        ("--field", field.to_owned()),
        (
            "--id",
            args.id
                .as_deref()
                .unwrap_or("id, where rows have it")
                .to_owned(),
        ),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect())
}

/// The file to write.
struct Output<'a> {
    kind: Kind,
    path: &'a Path,
    force: bool,
}

fn to_file(
    mut job: Job<'_>,
    out: &Output<'_>,
    settings: &Settings,
    n_rows: Option<u64>,
    report: &mut Report<'_>,
) -> Outcome {
    let partial = files::beside(out.path, ".partial");
    let folder = out
        .path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    create_folders(folder).map_err(|e| out::unwritten(out.path, e))?;
    let in_file =
        |e: io::Error| Failure::from(anyhow::Error::new(e).context(partial.display().to_string()));
    let (app, format, dim) = (job.app, job.format, job.dim);
    let vector_bytes = format.stored_bytes(dim);
    let mut journal = Journal::open(&partial, settings, vector_bytes, &app.budget)?;
    report.resumed_rows = journal.done().rows;
    if report.resumed_rows > 0 {
        app.output.say(&format!(
            "thane: going on behind {} in {}",
            counted(report.resumed_rows, "text"),
            partial.display()
        ));
    }
    app.output.count("embedding", n_rows, report.resumed_rows);
    let cooperative = app.interrupt.cooperate(Some(GRACE));
    let (skip, texts) = (report.resumed_rows, journal.texts().to_owned());
    let run = job.run(skip, &texts, n_rows, &mut |done| {
        journal
            .append(
                &done.counts,
                &journal::frame(&done.rows, vector_bytes),
                &done.texts,
            )
            .map_err(in_file)
    });
    drop(cooperative);
    app.output.clear();
    let n = journal.done().rows;
    if n == 0 {
        std::fs::remove_file(&partial).map_err(in_file)?;
        return Err(run.err().unwrap_or_else(|| nothing(job.texts)));
    }
    let resumable = |failure: Failure| {
        let behind = counted(n, "text");
        failure.remedy(format!(
            "the same command, which goes on behind {behind} in {}",
            partial.display()
        ))
    };
    run.map_err(resumable)?;
    let interrupted = || app.interrupt.is_set();
    let is_ragged = job.encoding != Encoding::Text;
    let table = Table {
        journal: &journal,
        format,
        dim,
        is_ragged,
        model: report.model,
        interrupted: &interrupted,
    };
    let cooperative = app.interrupt.cooperate(Some(WRITE_GRACE));
    let _writing = app.interrupt.writing(out.path);
    let written = files::write(&table, out.kind, out.path, out.force).map_err(|failure| {
        match interrupted() {
            true => Failure::new(Code::Interrupted, anyhow::anyhow!("interrupted")),
            false => failure,
        }
    });
    written.map_err(resumable)?;
    std::fs::remove_file(&partial).map_err(in_file)?;
    drop(cooperative);
    report.counts = journal.done().clone();
    Ok(())
}

fn nothing(texts: &Texts) -> Failure {
    Failure::new(
        Code::Usage,
        anyhow::anyhow!("{}: there are no texts", texts.name()),
    )
}

/// Print rows as they are done, or keep them for the report.
fn to_stdout(
    mut job: Job<'_>,
    similarity: Option<Similarity>,
    n_rows: Option<u64>,
    report: &mut Report<'_>,
) -> Outcome {
    let (app, format, dim, is_ragged) =
        (job.app, job.format, job.dim, job.encoding != Encoding::Text);
    let keeps = app.output.is_json() || similarity.is_some();
    let mut kept: Vec<Stored> = Vec::new();
    let mut held = app
        .budget
        .reserve(0, String::new)
        .map_err(|e| Failure::new(Code::Usage, e))?;
    if keeps {
        app.output.count("embedding", n_rows, 0);
    }
    let counts = job.run(0, "", n_rows, &mut |done| {
        if keeps {
            let n_numbers = usize::try_from(done.counts.vectors)
                .unwrap_or(usize::MAX)
                .saturating_mul(dim);
            let grown = held.grow(n_numbers.saturating_mul(NUMBER_BYTES), || {
                "the vectors to print".to_owned()
            });
            grown.map_err(|e| {
                Failure::new(Code::Usage, e).remedy("-o FILE, which keeps them on the disk")
            })?;
            kept.extend(done.rows);
            return Ok(());
        }
        let mut lines = String::new();
        for row in &done.rows {
            let line = Line::of(format, dim, is_ragged, row);
            lines.push_str(&serde_json::to_string(&line).map_err(io::Error::from)?);
            lines.push('\n');
        }
        Ok(app.output.data(&lines)?)
    });
    app.output.clear();
    report.counts = counts?;
    if report.counts.rows == 0 {
        return Err(nothing(job.texts));
    }
    if let (Some(similarity), [a, b]) = (similarity, &kept[..]) {
        report.similarity = Some(likeness(
            similarity, format, dim, is_ragged, &a.vectors, &b.vectors,
        ));
    }
    if app.output.is_json() {
        report.embeddings = Some(
            kept.iter()
                .map(|row| files::numbers(format, dim, is_ragged, &row.vectors))
                .collect(),
        );
        report.ids = kept.into_iter().map(|row| row.id).collect();
    }
    Ok(())
}

/// The model's function of two vectors; cosine where it names none.
fn function(info: &EncoderInfo) -> Result<Similarity, Failure> {
    let Some(name) = &info.similarity else {
        return Ok(Similarity::Cosine);
    };
    Similarity::from_name(name).ok_or_else(|| {
        let known: Vec<&str> = Similarity::ALL.iter().map(|s| s.name()).collect();
        let error = anyhow::anyhow!(
            "the model's similarity is `{name}`; {} are known",
            known.join(", ")
        );
        Failure::new(Code::Usage, error)
    })
}

/// How alike two rows are as they are stored.
fn likeness(
    similarity: Similarity,
    format: Format,
    dim: usize,
    is_ragged: bool,
    a: &[u8],
    b: &[u8],
) -> Likeness {
    if format.is_packed() {
        // The share of bits that are equal.
        let value = 1.0 - f64::from(hamming(a, b)) / dim as f64;
        return Likeness {
            function: "hamming",
            value,
        };
    }
    let (a, b) = (format.read(a), format.read(b));
    let value = if is_ragged {
        similarity.max_sim(&a, &b, dim)
    } else {
        similarity.compare(&a, &b)
    };
    Likeness {
        function: similarity.name(),
        value,
    }
}

fn say(report: &Report<'_>, app: &App) -> Outcome {
    if app.output.is_json() {
        return Ok(app.output.json(report)?);
    }
    let Counts {
        rows,
        vectors,
        tokens,
        truncated,
    } = &report.counts;
    let rate = (rows - report.resumed_rows) as f64 / report.seconds.max(1e-9);
    app.output.explain(&format!(
        "{}, {}, {rate:.1} texts/s",
        counted(*rows, "text"),
        counted(*tokens, "token")
    ));
    if *truncated > 0 {
        app.output.say(&format!(
            "thane: cut to what the model takes: {truncated} of {}",
            counted(*rows, "text")
        ));
    }
    if let Some(likeness) = &report.similarity {
        return Ok(app.output.data(&format!("{:.6}\n", likeness.value))?);
    }
    let Some(out) = report.out else { return Ok(()) };
    let packing = report
        .packing
        .map_or_else(String::new, |p| format!(" ({p})"));
    app.output.say(&format!(
        "{}, {} of {}, {}{packing}",
        counted(*rows, "text"),
        counted(*vectors, "vector"),
        counted(report.dimensions, "dimension"),
        report.format
    ));
    Ok(app.output.data(&format!("{}\n", out.display()))?)
}
