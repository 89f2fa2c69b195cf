//! An embedding model as Core ML packages: a function for each bucket in one package, or a package
//! for each in a folder whose packages share one file of weights; with golden vectors that tell a
//! good copy from a bad one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use thane_mil::package::{Metadata, Package, Partial};
use thane_mil::program::Program;
use thane_models::checkpoint::Checkpoint;
use thane_models::{Encoder, EncoderInfo, EncoderOptions, Encoding, Engine, Pooling, Target};

use super::encoder;
use super::golden::Reference;
use crate::app::App;
use crate::contract::{self, Contract, Embeds, Facts, FileHash, SCHEMA, Source};
use crate::exit::{Code, Failure};
use crate::form::FormFlags;
use crate::language::Parts;
use crate::output::counted;
use crate::packaging::{interface, unwritten, weight_files};

/// The manifest of a folder of packages.
pub const MANIFEST: &str = "manifest.json";
/// The version of the manifest that is written, and the only one that is read.
pub const MANIFEST_SCHEMA: u32 = 1;
/// Buckets where nobody says otherwise, as far as the model goes.
const BUCKETS: [usize; 6] = [128, 256, 512, 1024, 2048, 4096];

/// Flags of `thane convert --task embed`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Embedding models (--task embed)")]
pub struct Flags {
    /// Lengths that get a function of their own, such as 128,512.
    ///
    /// [default: 128,256,512,1024,2048,4096, as far as the model goes].
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    pub buckets: Vec<usize>,
    /// Leave out the function that takes any length.
    #[arg(long)]
    pub no_flexible: bool,
    /// package: one package with a function for each bucket; folder: a package for each, which
    /// share one file of weights.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Layout::Package)]
    pub layout: Layout,
    /// Vectors of the chunks of one text (late chunking), by a matrix that pools them.
    #[arg(long)]
    pub chunks: bool,
    /// How the vectors of tokens become one: mean, cls, lasttoken, max or weightedmean [default: as
    /// the model says].
    #[arg(long, value_name = "HOW", value_parser = pooling)]
    pub pooling: Option<Pooling>,
    #[command(flatten)]
    pub form: FormFlags,
}

/// The values of `--layout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Layout {
    Package,
    Folder,
}

/// Parses the name of a pooling.
pub fn pooling(name: &str) -> Result<Pooling, String> {
    Pooling::from_name(name)
        .ok_or_else(|| "the ways are mean, cls, lasttoken, max and weightedmean".to_owned())
}

/// What is known of an embedding model that is to be written.
pub struct Model<'a> {
    /// As it was asked for.
    pub name: &'a str,
    pub license: Option<String>,
    pub checkpoint: &'a Checkpoint,
}

/// What was written.
#[derive(Debug, Default, Serialize)]
pub struct Written {
    pub buckets: Vec<usize>,
    pub flexible: bool,
    /// Packages.
    pub packages: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes that they take on disk: files that are the same file count once.
    pub disk_bytes: u64,
}

/// The manifest of a folder of packages, which says what each of its files is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub schema: u32,
    pub generator: String,
    pub model: Facts,
    pub packages: Vec<Entry>,
    /// Every file but this one.
    pub files: Vec<FileHash>,
}

/// A package of a bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its folder.
    pub path: String,
    /// Its length; null for the one that takes any.
    pub tokens: Option<usize>,
}

/// Write a model as a package or as a folder of packages.
pub fn write(
    model: &Model<'_>,
    out: &Path,
    force: bool,
    flags: &Flags,
    app: &App,
) -> Result<Written, Failure> {
    let usage = |e: anyhow::Error| Failure::new(Code::Usage, e);
    let encoder = build(model, flags, app)?;
    crate::model::check_numbers(&model.checkpoint.path, &encoder.stored)?;
    let parts = Parts::of(model.checkpoint, encoder.info.vocab_size).map_err(usage)?;
    let options = EncoderOptions {
        pooling: flags.pooling,
        encoding: encoding(flags),
        ..EncoderOptions::default()
    };
    let reference = parts
        .is_some()
        .then(|| Reference::new(model.checkpoint, &options, app))
        .transpose()?;
    let reference = RefCell::new(reference);
    let source = contract::hash_files(weight_files(model.checkpoint)?);
    let source = source
        .join()
        .map_err(|_| usage(anyhow::anyhow!("a file could not be hashed")))?;
    let source = Source {
        model: model.name.to_owned(),
        files: source.map_err(|e| usage(e.into()))?,
    };
    let bundle = Bundle {
        model,
        flags,
        info: &encoder.info,
        parts: parts.as_ref(),
        reference,
        source,
    };
    match flags.layout {
        Layout::Package => bundle.package(encoder.program, out, force),
        Layout::Folder => bundle.folder(encoder.program, out, force),
    }
}

/// What the packages give vectors of.
fn encoding(flags: &Flags) -> Encoding {
    if flags.chunks {
        Encoding::Chunks
    } else {
        Encoding::Text
    }
}

/// The program that is written.
pub fn build(model: &Model<'_>, flags: &Flags, app: &App) -> Result<Encoder, Failure> {
    let path = &model.checkpoint.path;
    let lengths = |most: usize| -> Vec<usize> {
        let mut lengths = flags.buckets.clone();
        if lengths.is_empty() {
            lengths = BUCKETS.into_iter().filter(|n| *n <= most).collect();
        }
        if lengths.is_empty() {
            lengths.push(most);
        }
        lengths.sort_unstable();
        lengths.dedup();
        lengths
    };
    // Which lengths there can be, the model says.
    let plain = EncoderOptions {
        pooling: flags.pooling,
        encoding: encoding(flags),
        ..EncoderOptions::default()
    };
    let unusable = |e| crate::model::unusable(path, e);
    let info = thane_models::build_encoder(model.checkpoint, &plain)
        .map_err(unusable)?
        .info;
    let engine = Engine {
        buckets: lengths(info.max_tokens),
        flexible: !flags.no_flexible,
        residual_divisor: flags.form.residual_divisor,
        norm: flags.form.norm.form(),
    };
    let options = EncoderOptions {
        target: Target::Engine(engine),
        ..plain
    };
    let mut encoder = thane_models::build_encoder(model.checkpoint, &options).map_err(unusable)?;
    encoder.program = crate::model::compile(encoder.program, path, app)?;
    Ok(encoder)
}

struct Bundle<'a> {
    model: &'a Model<'a>,
    flags: &'a Flags,
    info: &'a EncoderInfo,
    parts: Option<&'a Parts>,
    /// What golden vectors are made with; none where there is no tokenizer.
    reference: RefCell<Option<Reference>>,
    source: Source,
}

impl Bundle<'_> {
    fn package(&self, program: Program, out: &Path, force: bool) -> Result<Written, Failure> {
        let facts = self.facts(&program);
        self.write_one(program, out, force, &facts)?;
        let (buckets, flexible) = (facts.buckets, facts.flexible);
        let bytes = folder_bytes(out)?;
        Ok(Written {
            buckets,
            flexible,
            packages: 1,
            bytes,
            disk_bytes: bytes,
        })
    }

    /// Packages in a folder beside its place, which is renamed when all of it is there.
    fn folder(&self, program: Program, out: &Path, force: bool) -> Result<Written, Failure> {
        let io = |e: std::io::Error| {
            Failure::new(
                Code::Other,
                anyhow::Error::new(e).context(format!("{} is not written", out.display())),
            )
        };
        let facts = self.facts(&program);
        let partial = Partial::folder(out).map_err(io)?;
        let (mut entries, mut first): (Vec<Entry>, Option<PathBuf>) = (Vec::new(), None);
        for function in program.functions() {
            let tokens = length(&function.name);
            let path = tokens.map_or("any.mlpackage".to_owned(), |n| format!("L{n}.mlpackage"));
            let to = partial.path().join(&path);
            let mut function = function.clone();
            MAIN.clone_into(&mut function.name);
            let alone = Embeds {
                buckets: tokens.into_iter().collect(),
                flexible: tokens.is_none(),
                ..facts.clone()
            };
            self.write_one(Program::new(vec![function]), &to, false, &alone)?;
            let weights = to.join("Data/com.apple.CoreML/weights/weight.bin");
            match &first {
                None => first = Some(weights),
                Some(first) => share(first, &weights).map_err(io)?,
            }
            entries.push(Entry { path, tokens });
        }
        let files = contract::hash_tree(partial.path()).map_err(io)?;
        let manifest = Manifest {
            schema: MANIFEST_SCHEMA,
            generator: concat!("thane ", env!("CARGO_PKG_VERSION")).to_owned(),
            model: Facts::Embed(Box::new(facts.clone())),
            packages: entries,
            files,
        };
        let mut text = serde_json::to_vec_pretty(&manifest).map_err(|e| io(e.into()))?;
        text.push(b'\n');
        fs::write(partial.path().join(MANIFEST), text).map_err(io)?;
        let bytes = folder_bytes(partial.path())?;
        let disk_bytes = disk_bytes(partial.path()).map_err(io)?;
        if force {
            partial.replace()
        } else {
            partial.put()
        }
        .map_err(io)?;
        let (buckets, flexible) = (facts.buckets, facts.flexible);
        Ok(Written {
            buckets,
            flexible,
            packages: manifest.packages.len(),
            bytes,
            disk_bytes,
        })
    }

    fn facts(&self, program: &Program) -> Embeds {
        let info = self.info;
        let lengths: Vec<Option<usize>> = program
            .functions()
            .iter()
            .map(|f| length(&f.name))
            .collect();
        Embeds {
            architecture: info.architecture.clone(),
            layers: info.n_layers,
            vocabulary: info.vocab_size,
            positions: info.n_positions,
            dimensions: info.dim,
            max_tokens: info.max_tokens,
            flexible: lengths.contains(&None),
            buckets: lengths.into_iter().flatten().collect(),
            encoding: encoder::encoding(encoding(self.flags)).to_owned(),
            pooling: info.pooling.name().to_owned(),
            normalize: info.normalize,
            quantize: info.quantize,
            prompts: info.prompts.clone(),
            default_prompt: info.default_prompt.clone(),
            include_prompt: info.include_prompt,
            similarity: info.similarity.clone(),
            lower_case: info.lower_case,
            residual_divisor: self.flags.form.residual_divisor,
            norm: self.flags.form.norm.name().to_owned(),
        }
    }

    fn write_one(
        &self,
        program: Program,
        out: &Path,
        force: bool,
        facts: &Embeds,
    ) -> Result<(), Failure> {
        let usage = |e: anyhow::Error| Failure::new(Code::Usage, e);
        let most = self.info.n_positions;
        let interfaces = program
            .functions()
            .iter()
            .map(|f| (f.name.clone(), interface(f, most)))
            .collect();
        let generator = concat!("thane ", env!("CARGO_PKG_VERSION")).to_owned();
        let metadata = Metadata {
            short_description: format!(
                "{}, {}, vectors of {}",
                facts.architecture,
                counted(facts.layers, "layer"),
                facts.dimensions
            ),
            license: self.model.license.clone().unwrap_or_default(),
            user_defined: BTreeMap::from([
                ("ai.thane.generator".to_owned(), generator.clone()),
                ("ai.thane.source".to_owned(), self.model.name.to_owned()),
            ]),
            ..Metadata::default()
        };
        let package = Package {
            metadata,
            interfaces,
            ..Package::new(program)
        }
        .in_lowest_opset();
        let contract = Contract {
            schema: SCHEMA,
            generator,
            model: Facts::Embed(Box::new(facts.clone())),
            source: self.source.clone(),
            functions: contract::ports(&package.program).map_err(usage)?,
            files: Vec::new(),
        };
        // A text that is longer than the package takes is cut, there as here.
        let most = if facts.flexible {
            facts.max_tokens
        } else {
            facts.buckets.iter().copied().max().unwrap_or(0)
        };
        let goldens = match &mut *self.reference.borrow_mut() {
            Some(reference) => reference.goldens(most).map_err(usage)?,
            None => Vec::new(),
        };
        let golden = (!goldens.is_empty())
            .then(|| serde_json::to_vec(&goldens))
            .transpose();
        let golden = golden.map_err(|e| usage(e.into()))?;
        let items = contract::items(contract, self.parts, golden, None).map_err(usage)?;
        let written = if force {
            package.replace(out, &items)
        } else {
            package.write(out, &items)
        };
        written.map(drop).map_err(|e| unwritten(e, out))
    }
}

/// What the one function of a package is called.
pub const MAIN: &str = "main";

/// The length in the name of a function, `encode_128`.
pub fn length(function: &str) -> Option<usize> {
    function.rsplit('_').next()?.parse().ok()
}

/// Make `second` the same file as `first`, where it holds the same bytes and the system can.
pub fn share(first: &Path, second: &Path) -> std::io::Result<()> {
    if contract::hash(first, String::new())? != contract::hash(second, String::new())? {
        return Ok(());
    }
    let beside = second.with_extension("link");
    // Two copies are no worse than two packages of anybody else.
    if fs::hard_link(first, &beside).is_ok() {
        fs::rename(&beside, second)?;
    }
    Ok(())
}

fn folder_bytes(folder: &Path) -> Result<u64, Failure> {
    let sum = || -> anyhow::Result<u64> {
        Ok(contract::walk(folder)?.iter().map(|(_, m)| m.len()).sum())
    };
    sum()
        .with_context(|| folder.display().to_string())
        .map_err(|e| Failure::new(Code::Other, e))
}

/// Bytes of files, each counted once however many names it has.
fn disk_bytes(folder: &Path) -> std::io::Result<u64> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let files: BTreeMap<u64, u64> = contract::walk(folder)?
            .into_iter()
            .map(|(_, m)| (m.ino(), m.len()))
            .collect();
        Ok(files.values().sum())
    }
    #[cfg(not(unix))]
    Ok(contract::walk(folder)?.iter().map(|(_, m)| m.len()).sum())
}
