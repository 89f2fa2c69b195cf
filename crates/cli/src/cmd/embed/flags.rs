//! The flags of `thane embed`, and what they stand for.

use std::path::{Path, PathBuf};

use thane_engine::embed::output::{Format, Kept};
use thane_models::{EncoderInfo, Encoding, Poolings};
use thane_runtime::{Prompt, kept_by_default};

use crate::app::App;
use crate::embed::bundle::pooling;
use crate::embed::files::{Kind, check_out};
use crate::embed::parquet::Codec;
use crate::embed::reader::TextFlags;
use crate::embed::table::OnNull;
use crate::exit::{Failure, usage};
use crate::model::EncoderFlags;
use crate::remote::ServerFlags;
use thane_texts::row::{Fields, Id};
use thane_texts::rows::Texts;

/// Flags of a model on this machine, for which OpenAI's API has no fields.
const OF_MACHINE: [&str; 9] = [
    "batch_tokens",
    "chunks",
    "max_length",
    "multi_vector",
    "numerics",
    "pooling",
    "prompt",
    "threads",
    "truncate",
];

/// Turn texts into vectors, one for each text, in their order.
#[derive(Debug, clap::Args)]
#[command(mut_arg("server", |arg| arg.conflicts_with_all(OF_MACHINE)))]
// `--file` takes all names that follow, so it comes last.
#[command(override_usage = "thane embed <MODEL> [OPTIONS] [TEXTS]...")]
pub struct Args {
    /// A path, hf:org/name[@revision], or a name of the catalog.
    pub(super) model: String,
    #[command(flatten)]
    pub(super) input: TextFlags,
    /// Field or column with an id to keep beside the vectors [default: id, where rows have it].
    ///
    /// JSON lines and Parquet files store it as `id`. An empty name keeps no id.
    #[arg(long, value_name = "NAME")]
    pub(super) id: Option<String>,
    /// What becomes of a row whose text is null or missing [default: error].
    ///
    /// `skip` leaves it out, `keep` writes null for its vector. With either, an empty field of CSV
    /// counts as null; by default it is an empty text.
    #[arg(long, value_name = "HOW", value_enum)]
    pub(super) on_null: Option<OnNull>,
    /// Write a .npy, .jsonl, .parquet or .safetensors file [default: stdout].
    ///
    /// On stdout, each line is a JSON array.
    #[arg(short, long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    /// Compression of the pages of a .parquet file [default: zstd].
    #[arg(long, value_name = "CODEC", value_enum, requires = "out")]
    pub(super) compression: Option<Codec>,
    /// Replace a file that exists.
    #[arg(long)]
    pub(super) force: bool,
    #[command(flatten)]
    pub(super) server: ServerFlags,
    #[command(flatten)]
    pub(super) vectors: Vectors,
    /// Print the similarity of two texts, by the model's similarity function.
    ///
    /// With int8 or binary vectors, the stored values are compared.
    #[arg(long, conflicts_with_all = ["file", "out", "chunks"])]
    pub(super) similarity: bool,
    #[command(flatten)]
    pub(super) run: EncoderFlags,
}

/// Flags for the vectors.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Vectors")]
pub struct Vectors {
    /// Element type: float, float16, int8, binary, ubinary [default: the model's].
    ///
    /// The default is int8 for models that were trained for it, else float.
    #[arg(long, value_name = "FORMAT", hide_possible_values = true, value_parser = ["float", "float16", "int8", "binary", "ubinary"])]
    pub(super) format: Option<String>,
    /// How bits are packed; docs/embed.md describes the three ways [default: pplx for models that
    /// quantize, else sentence-transformers].
    #[arg(long, value_name = "HOW", value_parser = ["pplx", "sentence-transformers", "lsb"])]
    pub(super) packing: Option<String>,
    /// Keep the first N dimensions (Matryoshka) [default: the model's].
    #[arg(long, value_name = "N")]
    pub(super) dimensions: Option<usize>,
    /// Put one of the model's prompts before each text; an empty name means none [default: the
    /// model's default prompt].
    #[arg(long, value_name = "NAME", conflicts_with = "chunks")]
    pub(super) prompt: Option<String>,
    /// Embed lists of chunks, each list in one pass with a vector per chunk (late chunking).
    #[arg(long)]
    pub(super) chunks: bool,
    /// Compute a vector for each token.
    #[arg(long, conflicts_with_all = ["chunks", "pooling"])]
    pub(super) multi_vector: bool,
    /// Pooling of token vectors: mean, cls, lasttoken, max, weightedmean, mean_sqrt_len_tokens, or
    /// several that are joined, such as mean+max [default: the model's].
    #[arg(long, value_name = "HOW", value_parser = pooling)]
    pub(super) pooling: Option<Poolings>,
    /// Most tokens of a text [default: the model's].
    #[arg(long, value_name = "N")]
    pub(super) max_length: Option<usize>,
    /// Truncate texts that are too long for the model, and count them.
    #[arg(long)]
    pub(super) truncate: bool,
}

impl Args {
    pub(super) fn on_null(&self) -> OnNull {
        self.on_null.unwrap_or_default()
    }
}

impl Vectors {
    /// What has a vector.
    pub(super) fn encoding(&self) -> Encoding {
        match (self.chunks, self.multi_vector) {
            (true, _) => Encoding::Chunks,
            (_, true) => Encoding::Tokens,
            _ => Encoding::Text,
        }
    }
}

/// The texts that the flags name.
pub fn texts(args: &Args, app: &App) -> Result<Texts, Failure> {
    let chunks = args.vectors.chunks;
    let n_texts = args.input.texts.len();
    if args.similarity && n_texts != 2 {
        return Err(usage!("--similarity: expected two texts, found {n_texts}")
            .remedy("thane embed MODEL --similarity \"a text\" \"another\""));
    }
    let source = args
        .input
        .source(args.id.is_some() || chunks)?
        .ok_or_else(|| {
            usage!("there are no texts")
                .remedy("thane embed MODEL \"a text\"")
                .remedy("thane embed MODEL --file texts.jsonl -o vectors.npy")
        })?;
    let of_rows = [
        ("--field names", args.input.field.is_some()),
        ("--on-null is of", args.on_null.is_some()),
    ];
    for (what, is_given) in of_rows {
        if source.has_lines() && is_given {
            return Err(usage!(
                "{what} a field of rows, and lines have none; rows of .jsonl, .csv and .parquet do"
            ));
        }
    }
    let id = match args.id.as_deref() {
        None => Id::IfAny,
        Some("") => Id::None,
        Some(name) => Id::Named(name.to_owned()),
    };
    let fields = Fields {
        id,
        takes_null: args.on_null() != OnNull::Error,
        ..Fields::text(args.input.field())
    };
    Texts::new(source, fields, chunks, &app.budget).map_err(usage)
}

/// The format of the output file.
pub fn target(path: &Path, is_ragged: bool, args: &Args, texts: &Texts) -> Result<Kind, Failure> {
    let kind = Kind::of(path, is_ragged).map_err(usage)?;
    if args.id.as_ref().is_some_and(|name| !name.is_empty()) && !kind.has_ids() {
        return Err(
            usage!("{}: such a file has no place for --id", path.display())
                .remedy("-o with a .jsonl or .parquet file"),
        );
    }
    if args.on_null() == OnNull::Keep && !kind.has_nulls(is_ragged) {
        return Err(usage!(
            "{}: such a file has no place for a vector that is null",
            path.display()
        )
        .remedy("-o with a .jsonl or .parquet file")
        .remedy("--on-null skip"));
    }
    if args.compression.is_some() && kind != Kind::Parquet {
        return Err(usage!(
            "--compression is of .parquet files, and {} is none",
            path.display()
        ));
    }
    check_out(path, args.force, &args.model, &texts.paths())?;
    Ok(kind)
}

/// The elements of vectors, and how bits are packed; those of a model that was trained for int8 if
/// it `quantizes`.
pub fn format(flags: &Vectors, quantizes: bool) -> Result<Format, Failure> {
    let own = Format::usual(quantizes);
    let kind = flags.format.as_deref().unwrap_or(own.0);
    let of_kind = || Format::ALL.into_iter().filter(|f| f.kind() == kind);
    let packings: Vec<&str> = of_kind().filter_map(Format::packing).collect();
    let wanted = match (packings.is_empty(), flags.packing.as_deref()) {
        (true, None) => None,
        (true, Some(_)) => {
            return Err(usage!("--packing is of bits, and --format {kind} has none")
                .remedy("--format binary, or --format ubinary"));
        }
        (false, packing) => Some(packing.unwrap_or(own.1)),
    };
    of_kind().find(|f| f.packing() == wanted).ok_or_else(|| {
        usage!(
            "--format {kind} has no packing {}",
            wanted.unwrap_or_default()
        )
        .remedy(format!("--packing {}", packings.join(" or ")))
    })
}

/// The dimensions to keep: those that were asked for, or those of the model's default, which has
/// none for vectors of tokens.
pub fn dimensions(args: &Args, info: &EncoderInfo) -> Result<Kept, Failure> {
    let Some(dim) = args.vectors.dimensions else {
        return Ok(match args.vectors.multi_vector {
            true => Kept {
                dim: info.dim,
                normalize: false,
            },
            false => kept_by_default(info),
        });
    };
    if (1..=info.dim).contains(&dim) {
        let normalize = info.normalize;
        return Ok(Kept { dim, normalize });
    }
    Err(usage!("the model does not offer {dim} dimensions")
        .remedy(format!("--dimensions 1 to {}", info.dim)))
}

/// The name of the prompt to use, and the prompt.
pub fn prompt(args: &Args, info: &EncoderInfo) -> Result<(Option<String>, String), Failure> {
    let Prompt { name, text } = Prompt::choose(args.vectors.prompt.as_deref(), info)?;
    if !text.is_empty() && args.vectors.chunks {
        return Err(
            usage!("the model has a default prompt, and chunks have no place for one")
                .remedy("the same without --chunks"),
        );
    }
    Ok((name, text))
}
