//! Writes an embedding model for the Neural Engine: one package with a function for each length, or
//! a folder with a package for each length, whose packages share one file of weights and tables.
//! Golden vectors in each package tell a good copy from a damaged one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use thane_calls::Lookup;
use thane_compile::compress::report::Report;
use thane_mil::backend::Backend;
use thane_mil::lower::with_opset;
use thane_mil::opset::Opset;
use thane_mil::package::{Package, Partial};
use thane_mil::program::{Function, Program};
use thane_models::checkpoint::Checkpoint;
use thane_models::{
    AneEncoder, Encoder, EncoderInfo, EncoderOptions, Encoding, NormForm, Poolings, Target,
};

use crate::compress::{self, CompressOptions};
use crate::contract::{AUTHOR, Contract, Embeds, Facts, GENERATOR, SCHEMA, Source, ports};
use crate::embedder::EmbedOptions;
use crate::error::{ContractError, RuntimeError};
use crate::files::{disk_bytes, hash_files, link_equal, total_bytes};
use crate::golden::{Reference, record_cosines};
use crate::interface::{interface, metadata, put, source_name, weight_files, write_package};
use crate::language::LanguageData;
use crate::main_function::with_main;
use crate::manifest::{Entry, function_length, write_manifest};
use crate::observer::Observer;
use crate::opened::Model;
use crate::package_contents::{WrittenTables, items};
use crate::passes::{compile, counted};
use crate::placed_rows::{self, WEIGHTS};
use crate::shared_rows::Parted;
use crate::tables;

/// Default lengths, as far as the model goes.
const BUCKETS: [usize; 6] = [128, 256, 512, 1024, 2048, 4096];

/// How an embedding model is written.
#[derive(Clone, Debug)]
pub struct BundleOptions {
    /// Whether what exists at the path is replaced. It stays until the new one is complete.
    pub replace: bool,
    /// Lengths in tokens that get a function of their own; empty for 128 to 4096, as far as the
    /// model goes.
    pub buckets: Vec<usize>,
    /// Whether there is a function of any length too.
    pub flexible: bool,
    /// One package or a folder of packages.
    pub layout: Layout,
    /// What has a vector: texts or chunks.
    pub encoding: Encoding,
    /// How the vectors of tokens become one; `None` for what the model's files say.
    pub pooling: Option<Poolings>,
    /// Divisor of the residual stream, so that fp16 can hold it; `None` for what the family needs.
    pub residual_divisor: Option<f32>,
    /// Form of root mean square norms.
    pub norm: NormForm,
    /// The targets that the packages are for, which their metadata names.
    pub targets: Vec<String>,
    /// The newest opset that all systems read which the packages are for; `None` for the newest of
    /// all.
    pub newest: Option<Opset>,
    /// Who looks up the rows of embeddings.
    pub lookup: Lookup,
    /// How weights are compressed; `None` if they are not.
    pub compress: Option<CompressOptions>,
}

impl Default for BundleOptions {
    fn default() -> Self {
        Self {
            replace: false,
            buckets: Vec::new(),
            flexible: true,
            layout: Layout::Package,
            encoding: Encoding::Text,
            pooling: None,
            residual_divisor: None,
            norm: NormForm::Scaled,
            targets: Vec::new(),
            newest: None,
            lookup: Lookup::Inside,
            compress: None,
        }
    }
}

/// How the functions of an embedding model are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One package with a function for each length.
    Package,
    /// A folder with a package for each length, which share one file of weights.
    Folder,
}

/// An embedding model that was written.
#[derive(Clone, Debug, Default)]
pub struct WrittenBundle {
    /// Lengths that have a function, ascending.
    pub buckets: Vec<usize>,
    /// Whether there is a function of any length.
    pub flexible: bool,
    /// Number of packages.
    pub packages: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes that the files take on the disk: hard links to one file count once.
    pub disk_bytes: u64,
    /// What was compressed.
    pub compressed: Option<Report>,
}

impl Model {
    /// Writes the model to `out`. Golden vectors are computed on `reference`, a backend that should
    /// compute in fp32.
    pub fn write_bundle(
        &self,
        out: &Path,
        options: &BundleOptions,
        reference: &dyn Backend,
        observer: &dyn Observer,
    ) -> Result<WrittenBundle, RuntimeError> {
        let checkpoint = self.checkpoint()?;
        observer.step("writing the package");
        let mut encoder = lower_for_ane(checkpoint, options, observer)?;
        check_opset(&encoder.program, options)?;
        let path = &checkpoint.path;
        thane_models::check_numbers(&encoder.stored).map_err(|e| RuntimeError::model(path, e))?;
        let mut compressed = None;
        let mut tables = Parted {
            files: std::mem::take(&mut encoder.tables),
            rows: Vec::new(),
        };
        if let Some(options) = &options.compress {
            let own = tables.looked_up(&[]);
            let made = compress::compress(&encoder.program, false, options, &own, observer)?;
            made.check()?;
            tables = tables.compressed(&made)?;
            compressed = Some(made.report()?);
            encoder.program = made.program;
        }
        let language =
            LanguageData::from_checkpoint(checkpoint, encoder.info.vocab_size, &reference.budget())
                .map_err(|e| RuntimeError::language(path, e))?;
        let embed = EmbedOptions {
            pooling: options.pooling,
            encoding: options.encoding,
            ..EmbedOptions::default()
        };
        let backend = reference;
        let reference = language
            .is_some()
            .then(|| Reference::new(checkpoint, &embed, reference, observer))
            .transpose()?;
        let writer = Writer {
            model: self,
            options,
            info: &encoder.info,
            tables,
            language: language.as_ref(),
            reference: RefCell::new(reference),
            backend,
            source: self.source(checkpoint)?,
        };
        let written = match options.layout {
            Layout::Package => writer.package(encoder.program, out),
            Layout::Folder => writer.folder(encoder.program, out),
        };
        Ok(WrittenBundle {
            compressed,
            ..written?
        })
    }

    fn source(&self, checkpoint: &Checkpoint) -> Result<Source, RuntimeError> {
        let read = |source| RuntimeError::Read {
            path: checkpoint.path.clone(),
            source,
        };
        let hashing = hash_files(weight_files(checkpoint)?);
        let files = hashing
            .join()
            .map_err(|_| read(io::Error::other("a file could not be hashed")))?;
        Ok(Source {
            model: source_name(&self.name, &self.path),
            files: files.map_err(read)?,
        })
    }
}

/// Refuses packages that a system which they are for cannot read, before weights are.
pub fn check_opset(program: &Program, options: &BundleOptions) -> Result<(), RuntimeError> {
    let Some(newest) = options.newest.filter(|opset| *opset < Opset::CoreMl8) else {
        return Ok(());
    };
    let functions = program.functions();
    let is_flexible = |f: &&Function| function_length(&f.name).is_none();
    let flexible = functions.iter().find(is_flexible);
    let alone = |f: &Function| with_opset(&Program::new(vec![f.clone()]), newest).is_ok();
    let is_one = functions.len() == 1 || options.layout == Layout::Folder;
    match flexible.filter(|f| !alone(f)) {
        None if is_one => Ok(()),
        flexible => Err(RuntimeError::OldBundle {
            opset: newest.name(),
            several: !is_one,
            flexible: flexible.is_some(),
        }),
    }
}

/// The program that [`Model::write_bundle`] writes, after the passes of the compiler.
pub fn lower_for_ane(
    checkpoint: &Checkpoint,
    options: &BundleOptions,
    observer: &dyn Observer,
) -> Result<Encoder, RuntimeError> {
    let path = &checkpoint.path;
    let build = |options: &EncoderOptions| {
        thane_models::build_encoder(checkpoint, options).map_err(|e| RuntimeError::model(path, e))
    };
    let portable = EncoderOptions {
        pooling: options.pooling,
        encoding: options.encoding,
        ..EncoderOptions::default()
    };
    // Which lengths are possible depends on the model.
    let info = build(&portable)?.info;
    let ane = AneEncoder {
        buckets: buckets(&options.buckets, info.max_tokens),
        flexible: options.flexible,
        residual_divisor: options.residual_divisor,
        norm: options.norm,
        lookup: options.lookup,
    };
    let mut encoder = build(&EncoderOptions {
        target: Target::Ane(ane),
        ..portable
    })?;
    encoder.program = compile(encoder.program, path, observer)?;
    Ok(encoder)
}

/// The lengths that were asked for, or the default ones up to `most` tokens, ascending.
fn buckets(asked: &[usize], most: usize) -> Vec<usize> {
    let mut lengths = asked.to_vec();
    if lengths.is_empty() {
        lengths = BUCKETS.into_iter().filter(|n| *n <= most).collect();
    }
    if lengths.is_empty() {
        lengths.push(most);
    }
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

struct Writer<'a> {
    model: &'a Model,
    options: &'a BundleOptions,
    info: &'a EncoderInfo,
    tables: Parted,
    language: Option<&'a LanguageData>,
    /// Computes golden vectors; `None` without a tokenizer.
    reference: RefCell<Option<Reference>>,
    /// Computes the vectors of packages with compressed weights.
    backend: &'a dyn Backend,
    source: Source,
}

impl Writer<'_> {
    fn package(&self, program: Program, out: &Path) -> Result<WrittenBundle, RuntimeError> {
        let facts = self.facts(&program);
        if self.options.compress.is_none() {
            self.write_one(&program, out, self.options.replace, &facts)?;
        } else {
            self.measured(&program, out, &facts)?;
        }
        let bytes = total_bytes(out).map_err(RuntimeError::write(out))?;
        Ok(WrittenBundle {
            buckets: facts.buckets,
            flexible: facts.flexible,
            packages: 1,
            bytes,
            disk_bytes: bytes,
            compressed: None,
        })
    }

    /// Writes a package with compressed weights, which gets its name when its vectors are compared
    /// with the golden ones.
    fn measured(&self, program: &Program, out: &Path, facts: &Embeds) -> Result<(), RuntimeError> {
        let partial = Partial::folder(out).map_err(RuntimeError::write(out))?;
        let made = partial.path().join(out.file_name().unwrap_or_default());
        self.write_one(program, &made, false, facts)?;
        record_cosines(&made, self.backend)?;
        let put = match self.options.replace {
            true => partial.replace_with(&made),
            false => partial.put_with(&made),
        };
        put.map_err(RuntimeError::write(out))
    }

    /// Writes all packages into a folder beside `out`, which is renamed when it is complete.
    fn folder(&self, program: Program, out: &Path) -> Result<WrittenBundle, RuntimeError> {
        let facts = self.facts(&program);
        let partial = Partial::folder(out).map_err(RuntimeError::write(out))?;
        let entries = self.packages(&program, &facts, partial.path(), out)?;
        let packages = entries.len();
        let model = Facts::Embed(Box::new(facts.clone()));
        write_manifest(partial.path(), model, entries).map_err(RuntimeError::write(out))?;
        let bytes = total_bytes(partial.path()).map_err(RuntimeError::write(out))?;
        let disk_bytes = disk_bytes(partial.path()).map_err(RuntimeError::write(out))?;
        put(partial, self.options.replace).map_err(RuntimeError::write(out))?;
        Ok(WrittenBundle {
            buckets: facts.buckets,
            flexible: facts.flexible,
            packages,
            bytes,
            disk_bytes,
            compressed: None,
        })
    }

    /// Writes a package for each function into `folder`; errors name `out`.
    fn packages(
        &self,
        program: &Program,
        facts: &Embeds,
        folder: &Path,
        out: &Path,
    ) -> Result<Vec<Entry>, RuntimeError> {
        let (mut entries, mut first): (Vec<Entry>, Option<PathBuf>) = (Vec::new(), None);
        let mut tables = tables::items(&self.tables.files);
        tables.extend(placed_rows::items(&self.tables.rows));
        let tables = tables
            .iter()
            .map(|item| format!("Data/{AUTHOR}/{}", item.name));
        let shared: Vec<String> = std::iter::once(WEIGHTS.to_owned()).chain(tables).collect();
        for function in program.functions() {
            let tokens = function_length(&function.name);
            let path = tokens.map_or("any.mlpackage".to_owned(), |n| format!("L{n}.mlpackage"));
            let to = folder.join(&path);
            let alone = Embeds {
                buckets: tokens.into_iter().collect(),
                flexible: tokens.is_none(),
                ..facts.clone()
            };
            let program = Program::new(vec![function.clone()]);
            self.write_one(&program, &to, false, &alone)?;
            if self.options.compress.is_some() {
                record_cosines(&to, self.backend)?;
            }
            let first = first.get_or_insert_with(|| to.clone());
            for file in shared.iter().filter(|_| *first != to) {
                let (from, to) = (first.join(file), to.join(file));
                link_equal(&from, &to).map_err(RuntimeError::write(out))?;
            }
            entries.push(Entry { path, tokens });
        }
        Ok(entries)
    }

    fn facts(&self, program: &Program) -> Embeds {
        let lengths: Vec<Option<usize>> = program
            .functions()
            .iter()
            .map(|f| function_length(&f.name))
            .collect();
        Embeds::new(
            self.info,
            &lengths,
            self.options.encoding,
            self.options.residual_divisor,
            self.options.norm,
        )
    }

    fn write_one(
        &self,
        program: &Program,
        out: &Path,
        replace: bool,
        facts: &Embeds,
    ) -> Result<(), RuntimeError> {
        let program = with_main(program);
        let most = self.info.n_positions;
        let interfaces = program
            .functions()
            .iter()
            .map(|f| (f.name.clone(), interface(f, most)))
            .collect();
        let description = format!(
            "{}, {}, vectors of {}",
            facts.architecture,
            counted(facts.layers, "layer"),
            facts.dimensions
        );
        let license = self.model.license.as_ref();
        let package = Package {
            metadata: metadata(
                description,
                license,
                (&self.source.model, &self.options.targets),
            ),
            interfaces,
            ..Package::new(program)
        }
        .in_lowest_opset();
        let contract = Contract {
            schema: SCHEMA,
            generator: GENERATOR.to_owned(),
            model: Facts::Embed(Box::new(facts.clone())),
            source: self.source.clone(),
            functions: ports(&package.program)?,
            tables: BTreeMap::new(),
            files: Vec::new(),
            quality: None,
        };
        let golden = self.golden(facts)?;
        let tables = WrittenTables {
            files: &self.tables.files,
            shared: self.tables.rows.clone(),
        };
        let items = items(contract, self.language, golden, tables, None)?;
        write_package(&package, (out, replace), &items).map(drop)
    }

    /// The golden vectors of a package as JSON; `None` if there are none.
    fn golden(&self, facts: &Embeds) -> Result<Option<Vec<u8>>, RuntimeError> {
        let Some(reference) = &mut *self.reference.borrow_mut() else {
            return Ok(None);
        };
        // Longer texts are cut to what the package takes.
        let most = if facts.flexible {
            facts.max_tokens
        } else {
            facts.buckets.iter().copied().max().unwrap_or(0)
        };
        let goldens = reference.goldens(most)?;
        if goldens.is_empty() {
            return Ok(None);
        }
        let json = serde_json::to_vec(&goldens);
        Ok(Some(json.map_err(|source| ContractError::Json {
            path: "golden.json".into(),
            source,
        })?))
    }
}
