//! Opens what is audited: packages, compiled models, MIL text, folders of packages, and
//! checkpoints, which are built first.
//!
//! Weights are mapped and not read. Hashes of folders are not checked, because that would read the
//! weights (`thane verify` checks them).

use std::path::{Component, Path, PathBuf};

use thane_audit::report::chain::ChainCall;
use thane_audit::report::{Part, Subject};
use thane_audit::target::Target;
use thane_mil::package::{Package, PackageError, read_lines, read_source};
use thane_mil::program::{Function, Program};
use thane_mil::text::Lines;
use thane_models::checkpoint::Checkpoint;
use thane_models::{EncoderInfo, Options};
use thane_runtime::contract::Facts;
use thane_runtime::manifest::{catch_all, is_flexible, read_manifest};
use thane_runtime::{
    ForeignBundle, ForeignLayout, MAIN, RuntimeError, compile, in_opset, interface, is_package,
    lower_for_ane, read_facts,
};

use crate::app::App;
use crate::embed::bundle;
use crate::exit::{Failure, usage, usage_in};
use crate::foreign;
use crate::out::{file_name, has_extension};
use crate::output::counted;

/// What is audited, and the checkpoint that it was built from.
pub struct Opened {
    /// The programs.
    pub subject: Subject,
    /// The checkpoint of a decoder, which can be built for other contexts.
    pub decoder: Option<(PathBuf, Box<Checkpoint>)>,
}

impl From<Subject> for Opened {
    fn from(subject: Subject) -> Self {
        Self {
            subject,
            decoder: None,
        }
    }
}

/// How a checkpoint is built.
#[derive(Clone, Debug)]
pub struct Build<'a> {
    /// Tokens that the cache holds.
    pub context: Option<usize>,
    pub embedding: &'a bundle::Flags,
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
    match build.embedding.given() {
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
            return Ok(folder(path, &packages, app)?.into());
        }
        // One that is named as a package is a damaged package.
        if !app.hub.is_model_name(spec) && path.extension().and_then(|e| e.to_str()).is_none() {
            return Err(nothing_in(path));
        }
    }
    if has_extension(path, &["mlpackage", "mlmodelc"]) || exists && is_package(path) {
        return Ok(package(spec, path, app)?.into());
    }
    let files = app.hub.resolve(spec)?;
    if is_package(&files.path) {
        return Ok(package(spec, &files.path, app)?.into());
    }
    checkpoint(spec, &files.path, build, app)
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

fn package(spec: &str, path: &Path, app: &App) -> Result<Subject, Failure> {
    let kind = match path.join("Manifest.json").is_file() {
        true => "package",
        false => "compiled",
    };
    let package = read(path, app)?;
    let facts = read_facts(path)?;
    let is_bundle = matches!(facts, Some(Facts::Embed(facts)) if facts.flexible);
    let catch_all = is_bundle.then(|| catch_all(&package.program)).flatten();
    let part = Part {
        catch_all,
        ..Part::from(package)
    };
    Ok(Subject::new(spec, kind, vec![part]))
}

fn read(path: &Path, app: &App) -> Result<Package, Failure> {
    app.output.explain(&format!("reading {}", path.display()));
    Package::open(path).map_err(usage)
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

fn folder(path: &Path, packages: &[PathBuf], app: &App) -> Result<Subject, Failure> {
    let manifest = read_manifest(path).map_err(RuntimeError::from)?;
    let facts = manifest.as_ref().map(|m| m.model.clone());
    let entries = manifest.map(|m| m.packages).unwrap_or_default();
    let has_buckets = entries.iter().any(|e| e.tokens.is_some());
    let takes_any = |package: &str| {
        let mut others = entries.iter().filter(|e| e.tokens.is_none());
        has_buckets && others.any(|e| e.path == package)
    };
    let part = |path: &PathBuf| -> Result<Part, Failure> {
        let package = file_name(path);
        let read = read(path, app)?;
        let mut functions = read.program.functions().iter();
        let any = functions.find(|f| takes_any(&package) && is_flexible(f));
        let catch_all = any.map(|f| f.name.clone());
        Ok(Part {
            package,
            catch_all,
            ..Part::from(read)
        })
    };
    let parts: Vec<Part> = packages.iter().map(part).collect::<Result<_, _>>()?;
    let calls = facts.map(|facts| calls_of_chunks(&facts, &parts));
    Ok(Subject {
        calls: calls.unwrap_or_default(),
        ..Subject::new(&path.to_string_lossy(), "folder", parts)
    })
}

/// The calls of a language model whose layers are cut into packages: `chunk2_decode` is the
/// function `decode` of `chunk2.mlpackage`, or its only function, `main`.
fn calls_of_chunks(facts: &Facts, parts: &[Part]) -> Vec<ChainCall> {
    let Facts::Generate(facts) = facts else {
        return Vec::new();
    };
    let place = |name: &String| {
        let Some((chunk, function)) = name.split_once('_') else {
            return name.clone();
        };
        let package = format!("{chunk}.mlpackage");
        let part = parts.iter().find(|part| part.package == package);
        let function = match part.map(|part| part.program.functions()) {
            Some([only]) if only.name == MAIN => MAIN,
            _ => function,
        };
        format!("{package}/{function}")
    };
    let calls = facts.fixed.iter().flat_map(|fixed| &fixed.calls);
    let calls = calls.map(|call| ChainCall {
        tokens: call.tokens,
        from: 0,
        to: call.context,
        functions: call.functions.iter().map(place).collect(),
    });
    calls.collect()
}

fn checkpoint(spec: &str, path: &Path, build: &Build<'_>, app: &App) -> Result<Opened, Failure> {
    let checkpoint = Checkpoint::open(path).map_err(usage)?;
    // What has modules of sentence-transformers makes vectors, whatever else it could.
    if path.join("modules.json").is_file() {
        return Ok(encoder(spec, &checkpoint, build, app)?.into());
    }
    match decoder(&checkpoint, build.context, build, app) {
        Ok((program, said)) => {
            let subject = Subject {
                built: Some(said),
                ..Subject::new(spec, "decoder", vec![Part::new(program)])
            };
            let decoder = Some((path.to_owned(), Box::new(checkpoint)));
            Ok(Opened { subject, decoder })
        }
        Err(failure) => {
            let encoder = encoder(spec, &checkpoint, build, app).map_err(|_| failure)?;
            Ok(encoder.into())
        }
    }
}

/// The program that `thane convert --form ane` writes for a decoder, and a description of it.
pub fn decoder(
    checkpoint: &Checkpoint,
    context: Option<usize>,
    build: &Build<'_>,
    app: &App,
) -> Result<(Program, String), Failure> {
    let ane = Some(build.embedding.form.decoder());
    let options = Options {
        context,
        ane,
        ..Options::default()
    };
    let path = &checkpoint.path;
    let made = thane_models::build(checkpoint, &options);
    let made = made.map_err(|e| RuntimeError::model(path, e))?;
    let program = in_opset(&compile(made.program, path, app.output.as_ref())?, None)?;
    let calls = made.info.fixed.iter().flat_map(|fixed| &fixed.calls);
    let block = calls.map(|call| call.tokens).max().unwrap_or(1);
    let said = format!(
        "{}, {}, context of {}, {block} of a prompt a call, as `thane convert --form ane` \
         writes it, but for a divisor that depends on weights, which were not read",
        made.info.architecture,
        counted(made.info.n_layers, "layer"),
        counted(made.info.context, "token")
    );
    Ok((program, said))
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
    let target = Target::usual();
    let (options, _) = build.embedding.priced(checkpoint, false, &target, app)?;
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
    let program = in_opset(&made.program, None)?;
    let catch_all = catch_all(&program);
    let declared = |f: &Function| (f.name.clone(), interface(f, made.info.max_tokens));
    let interfaces = program.functions().iter().map(declared).collect();
    let part = Part {
        interfaces,
        catch_all,
        ..Part::new(program)
    };
    Ok(Subject {
        built: Some(said),
        ..Subject::new(spec, "encoder", vec![part])
    })
}
