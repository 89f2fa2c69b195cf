//! Writes a language model as a Core ML package or as a compiled model.

use std::collections::BTreeMap;
use std::path::Path;

use thane_compile::compress::report::Report;
use thane_mil::budget::Budget;
use thane_mil::opset::Opset;
use thane_mil::package::{Package, Summary};
use thane_mil::program::{Function, Program};

use crate::chunks;
use crate::compress::{self, CompressOptions};
use crate::contract::{Contract, Facts, GENERATOR, Generates, SCHEMA, Source, multiplied, ports};
use crate::error::RuntimeError;
use crate::files::hash_files;
use crate::interface::{interface, metadata, source_name, weight_files, write_package};
use crate::language::LanguageData;
use crate::language_model::{LanguageModel, Origin};
use crate::main_function::with_main;
use crate::observer::{Note, Observer};
use crate::package_contents::{WrittenTables, items};
use crate::passes::{counted, in_opset};
use crate::recommended::Recommended;
use crate::shared_rows::{self, Parted};

/// How a language model is written.
#[derive(Clone, Debug, Default)]
pub struct PackageOptions {
    /// Whether a package that exists is replaced. It stays until the new one is complete.
    pub replace: bool,
    /// Whether a compiled model (`.mlmodelc`) is written, which has no tokenizer.
    pub compiled: bool,
    /// Functions to write; empty for all.
    pub functions: Vec<String>,
    /// Opset; `None` for the lowest that expresses the program.
    pub opset: Option<Opset>,
    /// The targets that the package is for, which its metadata names.
    pub targets: Vec<String>,
    /// How weights are compressed; `None` if they are not.
    pub compress: Option<CompressOptions>,
}

/// A language model that was written.
#[derive(Clone, Debug)]
pub struct WrittenPackage {
    /// Name of the opset.
    pub opset: &'static str,
    /// Names of the functions, as the contract has them.
    pub functions: Vec<String>,
    /// Tokens that the KV cache holds.
    pub context: usize,
    /// Number and bytes of what was written.
    pub summary: Summary,
    /// What was compressed.
    pub compressed: Option<Report>,
}

impl LanguageModel {
    /// Writes the model to `out`. It must have been lowered from a checkpoint with an fp16 cache.
    pub fn write(
        &self,
        out: &Path,
        options: &PackageOptions,
        observer: &dyn Observer,
    ) -> Result<WrittenPackage, RuntimeError> {
        let program = chosen(&self.program, &options.functions)?;
        let program = in_opset(&program, options.opset)?;
        thane_models::check_numbers(&self.stored)
            .map_err(|e| RuntimeError::model(&self.path, e))?;
        let tables = Parted::new(&program, &self.made_tables);
        let Some(compress) = &options.compress else {
            return self.write_program((program, tables), out, options, observer);
        };
        let is_pinned = options.opset.is_some();
        let fixed = self.info.fixed.as_ref();
        let own = tables.looked_up(&fixed.map_or(Vec::new(), |fixed| multiplied(&fixed.head)));
        let made = compress::compress(&program, is_pinned, compress, &own, observer)?;
        made.check()?;
        let (tables, report) = (tables.compressed(&made)?, made.report()?);
        let program = (made.program, tables);
        let written = self.write_program(program, out, options, observer)?;
        Ok(WrittenPackage {
            compressed: Some(report),
            ..written
        })
    }

    fn write_program(
        &self,
        (program, tables): (Program, Parted),
        out: &Path,
        options: &PackageOptions,
        observer: &dyn Observer,
    ) -> Result<WrittenPackage, RuntimeError> {
        let tables = WrittenTables {
            files: &tables.files,
            shared: tables.rows,
        };
        if chunks::count(self.program.functions()) > 1 {
            return self.write_chunks((program, &tables), out, options, observer);
        }
        let package = self.package(&program, &options.targets);
        let summary = if options.compiled {
            if !self.made_tables.is_empty() {
                return Err(RuntimeError::TablesOfCompiled);
            }
            observer.note(&Note::Compiled);
            let written = if options.replace {
                package.replace_compiled(out)
            } else {
                package.write_compiled(out)
            };
            written.map_err(RuntimeError::write_package(out))?
        } else {
            observer.step("writing the package");
            let facts = present(self.facts()?, &program);
            let contract = self.contract(&program, facts)?;
            let language = self.language_data(&Budget::unlimited())?;
            if language.is_none() {
                observer.note(&Note::NoTokenizer);
            }
            let extras = (language.as_ref(), tables);
            self.write_package(&package, (out, options.replace), contract, extras)?
        };
        let functions = program.functions();
        Ok(WrittenPackage {
            opset: functions.first().map_or("", |f| f.opset.name()),
            functions: functions.iter().map(|f| f.name.clone()).collect(),
            context: self.info.context,
            summary,
            compressed: None,
        })
    }

    /// Writes a folder of packages, one for each chunk of layers.
    fn write_chunks(
        &self,
        (program, tables): (Program, &WrittenTables<'_>),
        out: &Path,
        options: &PackageOptions,
        observer: &dyn Observer,
    ) -> Result<WrittenPackage, RuntimeError> {
        if !options.functions.is_empty() {
            return Err(RuntimeError::FunctionsOfChunks);
        }
        observer.step("writing the packages");
        let facts = self.facts()?;
        let language = self.language_data(&Budget::unlimited())?;
        if language.is_none() {
            observer.note(&Note::NoTokenizer);
        }
        let opset = program.functions().first().map_or("", |f| f.opset.name());
        let names = program.functions().iter().map(|f| f.name.clone()).collect();
        let write = |chunk: &str, functions: Vec<Function>, to: &Path, is_first: bool| {
            let program = Program::new(functions);
            let package = self.package(&program, &options.targets);
            let contract = self.contract(&program, of_chunk(&facts, chunk))?;
            let extras = if is_first {
                (language.as_ref(), tables.clone())
            } else {
                let shared = tables.shared.iter();
                let shared = shared.filter(|rows| !shared_rows::are_in_file(rows));
                let shared = shared.cloned().collect();
                (None, WrittenTables { files: &[], shared })
            };
            self.write_package(&package, (to, false), contract, extras)
        };
        let summary = chunks::write(&program, &facts, (out, options.replace), &write)?;
        Ok(WrittenPackage {
            opset,
            functions: names,
            context: self.info.context,
            summary,
            compressed: None,
        })
    }

    fn write_package(
        &self,
        package: &Package,
        (out, replace): (&Path, bool),
        contract: Contract,
        (language, tables): (Option<&LanguageData>, WrittenTables<'_>),
    ) -> Result<Summary, RuntimeError> {
        let Origin::Checkpoint(checkpoint) = &self.origin else {
            return Err(RuntimeError::ExpectedCheckpoint {
                path: self.path.clone(),
            });
        };
        let source = hash_files(weight_files(checkpoint)?);
        let items = items(contract, language, None, tables, Some(source))?;
        write_package(package, (out, replace), &items)
    }

    fn package(&self, program: &Program, targets: &[String]) -> Package {
        let info = &self.info;
        let program = with_main(program);
        let interfaces = program
            .functions()
            .iter()
            .map(|f| (f.name.clone(), interface(f, info.context)))
            .collect();
        let description = format!(
            "{}, {}, context of {}",
            info.architecture,
            counted(info.n_layers, "layer"),
            counted(info.context, "token")
        );
        Package {
            metadata: metadata(
                description,
                self.license.as_ref(),
                (&self.source_name(), targets),
            ),
            interfaces,
            ..Package::new(program)
        }
    }

    /// What the model is, and how its answers are generated.
    fn facts(&self) -> Result<Generates, RuntimeError> {
        let generation = self.recommended_sampling()?;
        Ok(Generates {
            generation: Some(generation).filter(Recommended::is_something),
            ..Generates::from(&self.info)
        })
    }

    fn source_name(&self) -> String {
        source_name(&self.name, &self.path)
    }

    fn contract(&self, program: &Program, facts: Generates) -> Result<Contract, RuntimeError> {
        Ok(Contract {
            schema: SCHEMA,
            generator: GENERATOR.to_owned(),
            model: Facts::Generate(facts),
            source: Source {
                model: self.source_name(),
                files: Vec::new(),
            },
            functions: ports(program)?,
            tables: BTreeMap::new(),
            files: Vec::new(),
            quality: None,
        })
    }
}

/// The calls whose functions a program has, and the context that they have.
fn present(mut facts: Generates, program: &Program) -> Generates {
    if let Some(fixed) = &mut facts.fixed {
        let has = |name: &String| program.function(name).is_some();
        fixed.calls.retain(|call| call.functions.iter().all(has));
        let longest = fixed.calls.iter().map(|call| call.context).max();
        facts.context = longest.unwrap_or(facts.context);
    }
    facts
}

/// What the contract of one chunk says: the calls of the model, by the functions of this package.
fn of_chunk(facts: &Generates, chunk: &str) -> Generates {
    let mut facts = facts.clone();
    for call in facts.fixed.iter_mut().flat_map(|fixed| &mut fixed.calls) {
        let own = call
            .functions
            .iter()
            .filter_map(|name| match chunks::parted(name) {
                Some((of, name)) if of == chunk => Some(name.to_owned()),
                _ => None,
            });
        call.functions = own.collect();
    }
    facts
}

/// A program of the functions with these names, in the order of `program`; all if there are no
/// names.
fn chosen(program: &Program, names: &[String]) -> Result<Program, RuntimeError> {
    let functions = program.functions();
    let is_known = |name: &&String| functions.iter().any(|f| f.name == **name);
    if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
        return Err(RuntimeError::UnknownFunction {
            name: unknown.clone(),
            known: functions.iter().map(|f| f.name.clone()).collect(),
        });
    }
    let wanted = |f: &&Function| names.is_empty() || names.contains(&f.name);
    Ok(Program::new(
        functions.iter().filter(wanted).cloned().collect(),
    ))
}
