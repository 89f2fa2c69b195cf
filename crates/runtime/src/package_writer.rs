//! Writes a language model as a Core ML package or as a compiled model.

use std::path::Path;

use thane_mil::opset::Opset;
use thane_mil::package::{Package, PackageError, Summary};
use thane_mil::program::{Function, Program};

use crate::contract::{Contract, Facts, GENERATOR, SCHEMA, Source, ports};
use crate::error::RuntimeError;
use crate::files::hash_files;
use crate::interface::{interface, metadata, source_name, weight_files};
use crate::language_model::{LanguageModel, Origin};
use crate::observer::{Note, Observer};
use crate::package_contents::items;
use crate::passes::{counted, in_opset};

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
}

/// A language model that was written.
#[derive(Clone, Debug)]
pub struct WrittenPackage {
    /// Name of the opset.
    pub opset: &'static str,
    /// Names of the functions.
    pub functions: Vec<String>,
    /// Tokens that the KV cache holds.
    pub context: usize,
    /// Number and bytes of what was written.
    pub summary: Summary,
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
        let package = self.package(program);
        let summary = if options.compiled {
            observer.note(&Note::Compiled);
            let written = if options.replace {
                package.replace_compiled(out)
            } else {
                package.write_compiled(out)
            };
            written.map_err(write_error(out))?
        } else {
            observer.step("writing the package");
            self.write_package(&package, out, options.replace, observer)?
        };
        let functions = package.program.functions();
        Ok(WrittenPackage {
            opset: functions.first().map_or("", |f| f.opset.name()),
            functions: functions.iter().map(|f| f.name.clone()).collect(),
            context: self.info.context,
            summary,
        })
    }

    fn write_package(
        &self,
        package: &Package,
        out: &Path,
        replace: bool,
        observer: &dyn Observer,
    ) -> Result<Summary, RuntimeError> {
        let Origin::Checkpoint(checkpoint) = &self.origin else {
            return Err(RuntimeError::ExpectedCheckpoint {
                path: self.path.clone(),
            });
        };
        let source = hash_files(weight_files(checkpoint)?);
        let language = self.language_data()?;
        if language.is_none() {
            observer.note(&Note::NoTokenizer);
        }
        let contract = self.contract(&package.program)?;
        let items = items(contract, language.as_ref(), None, Some(source))?;
        let written = if replace {
            package.replace(out, &items)
        } else {
            package.write(out, &items)
        };
        written.map_err(write_error(out))
    }

    fn package(&self, program: Program) -> Package {
        let info = &self.info;
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
            metadata: metadata(description, self.license.as_ref(), &self.source_name()),
            interfaces,
            ..Package::new(program)
        }
    }

    fn source_name(&self) -> String {
        source_name(&self.name, &self.path)
    }

    fn contract(&self, program: &Program) -> Result<Contract, RuntimeError> {
        Ok(Contract {
            schema: SCHEMA,
            generator: GENERATOR.to_owned(),
            model: Facts::Generate((&self.info).into()),
            source: Source {
                model: self.source_name(),
                files: Vec::new(),
            },
            functions: ports(program)?,
            files: Vec::new(),
        })
    }
}

fn write_error(path: &Path) -> impl FnOnce(PackageError) -> RuntimeError + '_ {
    move |source| RuntimeError::WritePackage {
        path: path.to_owned(),
        source,
    }
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
