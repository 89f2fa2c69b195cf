//! Opens what is audited: packages, compiled models, MIL text, folders of packages, and
//! checkpoints, which are built first.
//!
//! Weights are mapped and not read. Hashes of folders are not checked, because that would read the
//! weights (`thane verify` checks them).

use std::path::{Component, Path, PathBuf};

use thane_audit::report::{Part, Subject, catch_all, is_flexible};
use thane_audit::target::Target;
use thane_mil::package::{Package, PackageError, read_lines, read_source};
use thane_mil::text::Lines;
use thane_models::checkpoint::Checkpoint;
use thane_models::{AneDecoder, EncoderInfo};
use thane_runtime::contract::Facts;
use thane_runtime::files::disk_bytes;
use thane_runtime::manifest::read_manifest;
use thane_runtime::{
    CompressOptions, ForeignBundle, ForeignLayout, Model, RuntimeError, Task, encoder_subject,
    host_matrix_bytes, host_table_bytes, is_package, lower_for_ane, read_facts,
};

use crate::app::App;
use crate::exit::{Failure, usage, usage_in};
use crate::foreign;
use crate::out::{file_name, has_extension};
use crate::output::counted;
use crate::planned::{self, Build};

/// What is audited, and what it was built from.
pub struct Opened {
    /// The programs.
    pub subject: Subject,
    /// A decoder, which can be built for other contexts.
    pub decoder: Option<Decoder>,
    /// The targets that a package was written for; empty where it does not say.
    pub targets: Vec<Target>,
}

/// A decoder, and the form that it was built in.
pub struct Decoder {
    model: Model,
    ane: Option<AneDecoder>,
    compress: Option<CompressOptions>,
}

impl From<Subject> for Opened {
    fn from(subject: Subject) -> Self {
        Self {
            subject,
            decoder: None,
            targets: Vec::new(),
        }
    }
}

/// Where functions and values stand, if the subject is a text, which was read from `path`.
pub fn lines(subject: &Subject, path: &Path) -> Result<Option<Lines>, PackageError> {
    (subject.kind == "text")
        .then(|| read_lines(path))
        .transpose()
}

/// The path of a file as code review bots find it: without `.` and `..`, and relative to the
/// working folder where it is in that folder. A name that is no path stays what it is.
pub fn relative(name: &str) -> String {
    let path = Path::new(name);
    let Ok(folder) = std::env::current_dir() else {
        return name.to_owned();
    };
    if !path.exists() {
        return name.to_owned();
    }
    let mut whole = PathBuf::new();
    for part in folder.join(path).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(whole.pop()),
            part => whole.push(part),
        }
    }
    let inside = whole.strip_prefix(&folder).unwrap_or(&whole);
    inside.to_string_lossy().replace('\\', "/")
}

/// Find and read what is to be audited: a path, or the name of a model. A flag that says how to
/// build a checkpoint is an error with anything else.
pub fn open(path: &Path, build: &Build<'_>, app: &App) -> Result<Opened, Failure> {
    let opened = find(path, build, app)?;
    let given = build.embedding.given();
    match given.or(build.compression.given()) {
        Some(flag) if opened.subject.built.is_none() => Err(no_checkpoint(&opened.subject, flag)),
        _ => Ok(opened),
    }
}

/// The failure of a flag that is about checkpoints.
pub fn no_checkpoint(subject: &Subject, flag: &str) -> Failure {
    usage!(
        "{}: {flag} builds a checkpoint anew, and this is a {}",
        subject.name,
        subject.kind
    )
    .remedy("the checkpoint that it was made of")
}

/// As [`open`], for a caller whose flags also said how a package was made.
pub fn find(path: &Path, build: &Build<'_>, app: &App) -> Result<Opened, Failure> {
    app.output.busy("reading the program");
    let spec = &*path.to_string_lossy();
    let exists = path.exists();
    if has_extension(path, &["mil", "mlpackage", "mlmodelc"]) && !exists {
        return Err(usage!("no such file or folder: {spec}")
            .remedy("the path of a package, a compiled model or a .mil file"));
    }
    if exists && path.is_file() && has_extension(path, &["mil"]) {
        return Ok(text(spec, path)?.into());
    }
    if let Some(layout) = ForeignLayout::of(path).filter(|_| exists) {
        return Ok(bundle_of_parts(spec, layout.open(path)?).into());
    }
    if exists && path.is_dir() && !is_package(path) && !path.join("config.json").is_file() {
        let packages = packages_in(path).map_err(usage_in(path))?;
        if !packages.is_empty() {
            return folder(path, &packages, app);
        }
        // One that is named as a package is a damaged package.
        if !app.hub.is_model_name(spec) && path.extension().and_then(|e| e.to_str()).is_none() {
            return Err(nothing_in(path));
        }
    }
    if has_extension(path, &["mlpackage", "mlmodelc"]) || exists && is_package(path) {
        return package(spec, path, app);
    }
    let files = app.hub.resolve(spec)?;
    if is_package(&files.path) {
        return package(spec, &files.path, app);
    }
    let model = Model::from_files(files)?;
    match model.checkpoint() {
        Ok(_) => checkpoint(spec, model, build, app),
        Err(_) => find(&model.path, build, app),
    }
}

/// Read packages on this machine: one, a folder of them, or a bundle of another project.
pub fn local(path: &Path, app: &App) -> Result<Opened, Failure> {
    let spec = path.to_string_lossy();
    match ForeignLayout::of(path) {
        _ if is_package(path) => package(&spec, path, app),
        Some(layout) => Ok(bundle_of_parts(&spec, layout.open(path)?).into()),
        None => folder(path, &packages_in(path).map_err(usage_in(path))?, app),
    }
}

/// The failure of a folder that holds nothing to audit.
pub fn nothing_in(path: &Path) -> Failure {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let texts = entries.map(|entry| entry.path());
    let mut texts: Vec<PathBuf> = texts.filter(|path| has_extension(path, &["mil"])).collect();
    texts.sort();
    if let Some(first) = texts.first() {
        return usage!(
            "{}: expected a folder of packages, found {}; one is taken at a time",
            path.display(),
            counted(texts.len(), ".mil file")
        )
        .remedy(first.display().to_string());
    }
    usage!(
        "{}: found no package, compiled model or config.json in the folder",
        path.display()
    )
    .remedy("the path of a package, a compiled model, a .mil file or a folder of packages")
    .remedy("a GGUF file, a Hugging Face folder, hf:org/name or a name of the catalog")
}

/// The packages of another project's bundle, and the calls that they make up.
fn bundle_of_parts(spec: &str, bundle: ForeignBundle) -> Subject {
    let calls = foreign::calls(&bundle);
    let parts = bundle.parts.into_iter().map(|part| Part {
        package: part.file(),
        ..Part::from(part.package)
    });
    Subject {
        calls,
        ..Subject::new(spec, "bundle", parts.collect())
    }
}

fn text(spec: &str, path: &Path) -> Result<Subject, Failure> {
    let source = read_source(path).map_err(usage)?;
    let part = Part {
        interfaces: source.interfaces,
        ..Part::new(source.program)
    };
    Ok(Subject {
        n_absent: source.n_absent,
        ..Subject::new(spec, "text", vec![part])
    })
}

fn package(spec: &str, path: &Path, app: &App) -> Result<Opened, Failure> {
    let kind = match path.join("Manifest.json").is_file() {
        true => "package",
        false => "compiled",
    };
    let package = read(path, app)?;
    let targets = Target::written_for(&package);
    let facts = read_facts(path)?;
    let is_bundle = matches!(&facts, Some(Facts::Embed(facts)) if facts.flexible);
    let catch_all = is_bundle.then(|| catch_all(&package.program)).flatten();
    let part = Part {
        catch_all,
        ..Part::from(package)
    };
    let mut subject = Subject {
        disk_bytes: disk_bytes(path).map_err(usage_in(path))?,
        ..Subject::new(spec, kind, vec![part])
    };
    if facts.is_some() {
        subject.table_bytes = host_table_bytes(path)?;
    }
    called(&mut subject, facts.as_ref(), path)?;
    Ok(Opened {
        targets,
        ..subject.into()
    })
}

/// Says how the functions of a language model are called, as a contract has it; the tables that
/// the host looks up are in the package at `tables`.
fn called(subject: &mut Subject, facts: Option<&Facts>, tables: &Path) -> Result<(), Failure> {
    let Some(Facts::Generate(facts)) = facts else {
        return Ok(());
    };
    if let Some(calls) = &facts.fixed {
        subject.set_calls(calls);
        subject.host_bytes = host_matrix_bytes(tables, calls)? as f64;
    }
    Ok(())
}

/// The targets that a package, or the packages of a folder, were written for. What cannot be read
/// says nothing here: whoever works on it finds the error.
pub fn written_for(path: &Path) -> Vec<Target> {
    let package = match is_package(path) {
        true => Some(path.to_owned()),
        false => packages_in(path).unwrap_or_default().into_iter().next(),
    };
    let package = package.and_then(|path| Package::open(&path).ok());
    package
        .as_ref()
        .map(Target::written_for)
        .unwrap_or_default()
}

fn read(path: &Path, app: &App) -> Result<Package, Failure> {
    app.output.explain(&format!("reading {}", path.display()));
    Package::open(path).map_err(usage)
}

/// The packages at these paths: the only one at `path`, or those of a folder there.
pub fn packages(path: &Path, packages: &[PathBuf], app: &App) -> Result<Opened, Failure> {
    let spec = path.to_string_lossy();
    match packages {
        [only] if only == path => package(&spec, only, app),
        _ => folder(path, packages, app),
    }
}

/// The packages of a folder, in the order of names.
pub fn packages_in(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut packages = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        if has_extension(&path, &["mlpackage", "mlmodelc"]) && is_package(&path) {
            packages.push(path);
        }
    }
    packages.sort();
    Ok(packages)
}

fn folder(path: &Path, packages: &[PathBuf], app: &App) -> Result<Opened, Failure> {
    let manifest = read_manifest(path).map_err(RuntimeError::from)?;
    let facts = manifest.as_ref().map(|m| m.model.clone());
    let entries = manifest.map(|m| m.packages).unwrap_or_default();
    let has_buckets = entries.iter().any(|e| e.tokens.is_some());
    let takes_any = |package: &str| {
        let mut others = entries.iter().filter(|e| e.tokens.is_none());
        has_buckets && others.any(|e| e.path == package)
    };
    let mut targets = Vec::new();
    let mut part = |path: &PathBuf| -> Result<Part, Failure> {
        let package = file_name(path);
        let read = read(path, app)?;
        targets = Target::written_for(&read);
        let mut functions = read.program.functions().iter();
        let any = functions.find(|f| takes_any(&package) && is_flexible(f));
        let catch_all = any.map(|f| f.name.clone());
        Ok(Part {
            package,
            catch_all,
            ..Part::from(read)
        })
    };
    let parts: Vec<Part> = packages.iter().map(&mut part).collect::<Result<_, _>>()?;
    let mut subject = Subject {
        disk_bytes: disk_bytes(path).map_err(usage_in(path))?,
        ..Subject::new(&path.to_string_lossy(), "folder", parts)
    };
    if let Some(first) = entries.first() {
        // Packages share the tables, or only the first has some.
        let first = path.join(&first.path);
        subject.table_bytes = host_table_bytes(&first)?;
        called(&mut subject, facts.as_ref(), &first)?;
    }
    Ok(Opened {
        targets,
        ..subject.into()
    })
}

fn checkpoint(spec: &str, model: Model, build: &Build<'_>, app: &App) -> Result<Opened, Failure> {
    if model.task()? == Task::Embed {
        return Ok(encoder(spec, model.checkpoint()?, build, app)?.into());
    }
    let planned::Made {
        ane,
        choices,
        compress,
    } = planned::made(&model, build, app)?;
    let decoder = Decoder {
        model,
        ane,
        compress,
    };
    let mut subject = decoder.subject(spec, build.context, app)?;
    let how = match (choices.is_empty(), &decoder.ane) {
        (true, None) => "--form portable".to_owned(),
        (true, Some(_)) => "--form ane".to_owned(),
        (false, _) => {
            let names = choices.iter().map(|choice| choice.target);
            let names: Vec<String> = names.map(|t| t.name()).collect();
            format!("--target {}", names.join(","))
        }
    };
    let how = match build.compression.compress {
        Some(asked) => format!("{how} --compress {asked}"),
        None => how,
    };
    let form = choices.first().map(|choice| choice.chosen.describe());
    let form = form.map(|form| format!(" ({form})"));
    if let Some(built) = &mut subject.built {
        *built = format!(
            "{built}, as `thane convert {how}` writes it{}, but for a divisor that depends on \
             weights, which were not read",
            form.unwrap_or_default()
        );
    }
    Ok(Opened {
        decoder: Some(decoder),
        ..subject.into()
    })
}

impl Decoder {
    /// The packages for a context of so many tokens; `None` for the model's own limit.
    pub fn subject(
        &self,
        spec: &str,
        context: Option<usize>,
        app: &App,
    ) -> Result<Subject, Failure> {
        let mut ane = self.ane.clone();
        if let (Some(ane), Some(context)) = (&mut ane, context) {
            ane.form.contexts.retain(|shorter| *shorter < context);
            ane.form.block = ane.form.block.map(|block| block.min(context));
        }
        app.output.busy("building");
        let made = planned::built(&self.model, context, ane)?;
        let subject = made.subject(spec, self.compress.as_ref())?;
        let info = made.info;
        let built = format!(
            "{}, {}, context of {}",
            info.architecture,
            counted(info.n_layers, "layer"),
            counted(info.context, "token")
        );
        Ok(Subject {
            built: Some(built),
            ..subject
        })
    }
}

fn encoder(
    spec: &str,
    checkpoint: &Checkpoint,
    build: &Build<'_>,
    app: &App,
) -> Result<Subject, Failure> {
    if build.context.is_some() {
        return Err(
            usage!("{spec}: --context is for models that answer, this one makes vectors")
                .remedy("--buckets 128,512, the lengths of its functions"),
        );
    }
    let flags = &build.embedding;
    let (options, _) = flags.priced(checkpoint, build.targets, &build.compression, app)?;
    let made = lower_for_ane(checkpoint, &options, app.output.as_ref())?;
    let EncoderInfo {
        architecture,
        n_layers,
        ..
    } = &made.info;
    let layers = counted(*n_layers, "layer");
    let said = format!(
        "{architecture}, {layers}, as `thane convert --task embed --lookup {}` writes it for the \
         Neural Engine; weights were not read",
        options.lookup.name()
    );
    Ok(Subject {
        built: Some(said),
        ..encoder_subject(spec, &made, options.compress.as_ref())?
    })
}
