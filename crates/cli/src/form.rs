//! The flags that say in which form a program for the Neural Engine is written.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::LazyLock;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use thane_audit::plan::form::Pinned;
use thane_audit::target::{Route, Target, most_channels};
use thane_calls::{AttentionForm, CacheForm, Form, Head, Lookup, Split, Streaming};
use thane_models::{AneDecoder, NormForm};
use thane_runtime::{ForeignLayout, ForeignWriter};

use crate::small::refuse_named_pipe;

/// The form of programs for the Neural Engine; flags of every verb that writes one.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Programs for the Neural Engine (--form ane, --task embed)")]
pub struct FormFlags {
    /// Divide the residual stream by K, so that fp16 can hold it [default: convert computes it,
    /// other verbs take what the family is known to need].
    #[arg(long, value_name = "K", value_parser = divisor)]
    pub residual_divisor: Option<f32>,
    /// Form of root mean square norms: scaled cannot overflow, native has fewer ops, cat is a layer
    /// norm [default: scaled].
    #[arg(long, value_name = "HOW", value_enum)]
    pub norm: Option<Norm>,
    /// Tokens of a prompt per call of prefill [default: 64, or the context if that is less].
    #[arg(long, value_name = "TOKENS")]
    pub block: Option<usize>,
    /// Add the function verify, which takes K tokens and gives the logits of each.
    ///
    /// Several numbers, such as 2,4,8, add a function each: verify_2, verify_4 and verify_8.
    #[arg(long, value_name = "K", value_delimiter = ',')]
    pub verify: Vec<usize>,
    /// Shorter contexts that get functions of their own, such as 512,1024.
    ///
    /// The Neural Engine reads the whole cache in each call, so a call is faster while few tokens
    /// are in it.
    #[arg(long, value_name = "LENGTHS", value_delimiter = ',')]
    pub contexts: Vec<usize>,
    /// Where the KV cache is: state, or explicit inputs that the app fills [default: state].
    #[arg(long, value_name = "WHERE", value_parser = named(&CacheForm::ALL, CacheForm::name))]
    pub kv: Option<CacheForm>,
    /// Who looks up embeddings and rotations: inside, or host for the app, in tables of the
    /// package; with host-int8 embeddings are int8 with a scale for each row [default: inside; of
    /// embedding models, what is predicted to be faster].
    #[arg(long, value_name = "WHO", value_parser = named(&Lookup::ALL, Lookup::name))]
    pub lookup: Option<Lookup>,
    /// Cut the model into packages: 3, or ranges of layers such as 0-8,8-15,15-30 and ,head for the
    /// output head, or 400MB for the most weights that each may have.
    #[arg(long, value_name = "CHUNKS", value_parser = split)]
    pub split: Option<Split>,
    /// Add the function decode_lanes, which takes a token each of N sequences, 2 to 128, with
    /// caches and states of their own; needs --kv explicit.
    #[arg(long, value_name = "N")]
    pub lanes: Option<usize>,
    /// What functions give of the logits: logits for all, argmax for the greatest and its token,
    /// top40 for the 40 greatest and their tokens, or host for final hidden states, from which the
    /// app computes logits on the CPU [default: logits].
    #[arg(long, value_name = "WHAT", value_parser = str::parse::<Head>)]
    pub head: Option<Head>,
    /// For direct access to the engine, without Core ML: calls of 32 tokens for one too, copies of
    /// outputs that are read, logits in parts; has --kv explicit and --lookup host.
    #[arg(long)]
    pub direct: bool,
    #[command(flatten)]
    pub attention: AttentionFlags,
}

/// How attention reads the cache.
#[derive(Clone, Debug, clap::Args)]
pub struct AttentionFlags {
    /// Multiply so many rows of the cache at once, with one softmax over all.
    #[arg(long, value_name = "ROWS")]
    attention_tile: Option<usize>,
    /// Let full-attention layers see only the first and so many last tokens. Changes the answers.
    #[arg(long, value_name = "TOKENS")]
    attention_window: Option<usize>,
    /// First tokens that --attention-window keeps.
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = 4,
        requires = "attention_window"
    )]
    attention_sinks: usize,
    /// Show older tokens than those of --attention-window as means of keys and values, each of so
    /// many tokens.
    #[arg(long, value_name = "TOKENS", requires = "attention_window")]
    attention_pool: Option<usize>,
    /// Key heads that see all tokens in spite of --attention-window: a file with a line for each
    /// layer, a number for each head, at least 0.5 for such heads.
    ///
    /// This is the file full_attention_heads.tsv of DuoAttention.
    #[arg(long, value_name = "FILE", requires = "attention_window", value_parser = heads)]
    retrieval_heads: Option<Heads>,
}

/// For each layer and key head, whether the head sees all tokens.
type Heads = Vec<Vec<bool>>;

impl AttentionFlags {
    fn form(&self) -> AttentionForm {
        AttentionForm {
            tile: self.attention_tile,
            streaming: self.attention_window.map(|window| Streaming {
                sinks: self.attention_sinks,
                window,
                pool: self.attention_pool,
            }),
            retrieval_heads: self.retrieval_heads.clone().unwrap_or_default(),
        }
    }
}

/// Reads a file of retrieval heads.
fn heads(path: &str) -> Result<Heads, String> {
    const MOST_BYTES: u64 = 1 << 20;
    let read = || -> io::Result<String> {
        let mut text = String::new();
        refuse_named_pipe(Path::new(path))?;
        File::open(path)?
            .take(MOST_BYTES + 1)
            .read_to_string(&mut text)?;
        if text.len() as u64 > MOST_BYTES {
            return Err(io::Error::other(format!(
                "expected at most {MOST_BYTES} bytes"
            )));
        }
        Ok(text)
    };
    let text = read().map_err(|e| format!("{path}: {e}"))?;
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    let heads = lines.map(|(i, line)| {
        let numbers = line.split(|c: char| c == ',' || c.is_whitespace());
        let numbers = numbers.filter(|number| !number.is_empty());
        let numbers = numbers.map(|number| {
            let value = number.parse::<f64>().ok().filter(|value| value.is_finite());
            let fault = || format!("{path}:{}: expected a number, found `{number}`", i + 1);
            value.map(|value| value >= 0.5).ok_or_else(fault)
        });
        numbers.collect()
    });
    let heads: Heads = heads.collect::<Result<_, String>>()?;
    if heads.is_empty() {
        return Err(format!(
            "{path}: expected a line for each layer, found none"
        ));
    }
    Ok(heads)
}

impl FormFlags {
    /// The first flag that differs from its default, but for `--direct`, which packages can be
    /// judged by, too.
    pub fn given(&self) -> Option<&'static str> {
        let flags = [
            ("--residual-divisor", self.residual_divisor.is_some()),
            ("--norm", self.norm.is_some()),
            ("--block", self.block.is_some()),
            ("--lookup", self.lookup.is_some()),
        ];
        let flags = flags.into_iter().chain(self.of_decoder());
        let mut given = flags.filter(|(name, is_given)| *is_given && *name != "--direct");
        given.next().map(|(name, _)| name)
    }

    /// The flags that only decoders have, and whether they differ from their defaults.
    pub fn of_decoder(&self) -> [(&'static str, bool); 9] {
        [
            ("--verify", !self.verify.is_empty()),
            ("--contexts", !self.contexts.is_empty()),
            ("--kv", self.kv.is_some()),
            ("--split", self.split.is_some()),
            ("--attention-tile", self.attention.attention_tile.is_some()),
            (
                "--attention-window",
                self.attention.attention_window.is_some(),
            ),
            ("--head", self.head.is_some()),
            ("--lanes", self.lanes.is_some()),
            ("--direct", self.direct),
        ]
    }

    /// The form of root mean square norms.
    pub fn norm_form(&self) -> NormForm {
        self.norm.unwrap_or(Norm::Scaled).form()
    }

    /// The form of a decoder that these flags stand for.
    pub fn decoder(&self) -> AneDecoder {
        AneDecoder {
            residual_divisor: self.residual_divisor,
            norm: self.norm_form(),
            ..self.form().into()
        }
    }

    fn form(&self) -> Form {
        // Where the cache is, and who looks up rows, if no flag says it.
        let (cache, lookup) = match self.direct {
            true => (CacheForm::Explicit, Lookup::Host),
            false => (CacheForm::State, Lookup::Inside),
        };
        Form {
            block: self.block,
            verify: self.verify.clone(),
            contexts: self.contexts.clone(),
            cache: self.kv.unwrap_or(cache),
            lookup: self.lookup.unwrap_or(lookup),
            split: self.split.clone().unwrap_or_default(),
            head: self.head.unwrap_or_default(),
            lanes: self.lanes,
            attention: self.attention.form(),
            direct: self.direct.then(most_channels),
        }
    }

    /// What these flags decide.
    pub fn pinned(&self) -> Pinned {
        Pinned {
            cache: self.kv.is_some(),
            lookup: self.lookup.is_some(),
            contexts: !self.contexts.is_empty(),
            split: self.split.is_some(),
            block: self.block.is_some(),
            head: self.head.is_some(),
        }
    }

    /// A target, with the route that the program is for.
    pub fn routed(&self, target: Target) -> Target {
        match self.direct {
            true => Target {
                route: Route::Direct,
                ..target
            },
            false => target,
        }
    }
}

/// Parses the name of one of `all` values.
fn named<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let names = all.iter().map(|value| name(*value));
    PossibleValuesParser::new(names).try_map(move |text| {
        let found = all.iter().find(|value| name(**value) == text);
        found.copied().ok_or("expected a known name")
    })
}

/// Parses a number of chunks, the bytes that each may have, or ranges of layers that follow each
/// other.
fn split(text: &str) -> Result<Split, String> {
    if let Ok(n) = text.parse::<usize>() {
        return Ok(Split::Into(n));
    }
    let units = [("MB", 1_000_000), ("GB", 1_000_000_000)];
    let size = units.into_iter().find_map(|(unit, bytes)| {
        let n = text.strip_suffix(unit)?.trim().parse::<usize>().ok()?;
        Some(n.saturating_mul(bytes)).filter(|n| *n > 0)
    });
    if let Some(bytes) = size {
        return Ok(Split::Within(bytes));
    }
    let (layers, head) = match text.strip_suffix(",head") {
        Some(layers) => (layers, true),
        None => (text, false),
    };
    let range = |range: &str| {
        let (first, end) = range.split_once('-')?;
        let first: usize = first.trim().parse().ok()?;
        Some(first..end.trim().parse().ok()?)
    };
    let ranges: Option<Vec<Range<usize>>> = layers.split(',').map(range).collect();
    let ranges = ranges.map(|layers| Split::Ranges { layers, head });
    ranges.ok_or_else(|| {
        format!(
            "expected a number of chunks, the most that each may have such as 400MB, or ranges of \
             layers such as 0-8,8-15, with ,head for a chunk of the output head, found `{text}`"
        )
    })
}

/// The values of `--form`.
#[derive(Clone, Copy, Debug)]
pub enum FormFlag {
    /// fp32, any number of tokens: the reference.
    Portable,
    /// fp16, features in channels, fixed lengths: for the Neural Engine.
    Ane,
    /// A folder for apps that run bundles of another project.
    Foreign(&'static ForeignWriter),
}

impl clap::ValueEnum for FormFlag {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<FormFlag>> = LazyLock::new(|| {
            let foreign = ForeignLayout::writers().map(FormFlag::Foreign);
            [FormFlag::Portable, FormFlag::Ane]
                .into_iter()
                .chain(foreign)
                .collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let value = |name: &'static str, help: &str| PossibleValue::new(name).help(help.to_owned());
        Some(match self {
            Self::Portable => value("portable", "fp32, any number of tokens: the reference"),
            Self::Ane => value(
                "ane",
                "fp16, features in channels, fixed lengths: for the Neural Engine",
            )
            .alias("engine"),
            Self::Foreign(writer) => {
                let help = format!("A folder for apps that run bundles of {}", writer.project);
                value(writer.form, &help)
            }
        })
    }
}

/// The values of `--norm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Norm {
    Scaled,
    Native,
    Cat,
}

impl Norm {
    pub fn form(self) -> NormForm {
        match self {
            Self::Scaled => NormForm::Scaled,
            Self::Native => NormForm::Native,
            Self::Cat => NormForm::Cat,
        }
    }
}

fn divisor(text: &str) -> Result<f32, String> {
    let value: f32 = text
        .parse()
        .map_err(|_| format!("expected a number, found `{text}`"))?;
    let fits = (1.0..=1024.0).contains(&value) && value.log2().fract() == 0.0;
    if fits {
        Ok(value)
    } else {
        Err("expected a power of two from 1 to 1024, which keeps every weight exact".to_owned())
    }
}
