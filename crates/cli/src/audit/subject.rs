//! What is audited: packages, compiled models, MIL text, folders of packages, and checkpoints,
//! which are built first.
//!
//! Weights are mapped and not read; hashes of folders are not checked, which would read them
//! (`thane verify` does).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use thane_mil::package::{Interface, Package, PackageError, read_lines, read_source};
use thane_mil::program::{Function, Program, ValueId};
use thane_mil::text::Lines;
use thane_models::checkpoint::Checkpoint;
use thane_models::{EncoderInfo, Options};

use crate::app::App;
use crate::cmd::convert;
use crate::contract::{self, Facts};
use crate::embed::{bundle, packages};
use crate::exit::{Code, Failure};
use crate::model::{self, is_package};
use crate::output::counted;

/// A program that loads by itself.
pub struct Part {
    /// The package's name in its folder; empty where there is one program only.
    pub package: String,
    pub program: Program,
    /// The shapes that functions declare, by their names.
    pub interfaces: BTreeMap<String, Interface>,
    /// The function that takes what is too long for the others, by what was written with the
    /// program: it has no fixed shape and is not meant for the engine.
    pub catch_all: Option<String>,
}

/// What is audited.
pub struct Subject {
    /// As it was asked for.
    pub name: String,
    /// `package`, `compiled`, `text`, `folder`, `decoder` or `encoder`.
    pub kind: &'static str,
    /// What was built, of a checkpoint.
    pub built: Option<String>,
    /// Constants of a text whose file is not there.
    pub n_absent: usize,
    pub parts: Vec<Part>,
    /// The checkpoint of a decoder, which can be built for other contexts.
    pub decoder: Option<(PathBuf, Box<Checkpoint>)>,
}

/// How a checkpoint is built.
#[derive(Clone, Debug)]
pub struct Build<'a> {
    /// Tokens that the cache holds.
    pub context: Option<usize>,
    pub embedding: &'a bundle::Flags,
}

impl Subject {
    /// Where functions and values stand, if it is a text.
    pub fn lines(&self) -> Result<Option<Lines>, PackageError> {
        if self.kind == "text" {
            read_lines(Path::new(&self.name)).map(Some)
        } else {
            Ok(None)
        }
    }
}

/// Find and read what is to be audited.
pub fn open(spec: &str, build: &Build<'_>, app: &App) -> Result<Subject, Failure> {
    app.output.busy("reading the program");
    let path = Path::new(spec);
    let named = path
        .extension()
        .and_then(|e| e.to_str())
        .unwrap_or_default();
    let exists = path.exists();
    if ["mil", "mlpackage", "mlmodelc"].contains(&named) && !exists {
        let error = anyhow::anyhow!("no such file or folder: {spec}");
        return Err(Failure::new(Code::Usage, error)
            .remedy("the path of a package, a compiled model or a .mil file"));
    }
    if exists && path.is_file() && named == "mil" {
        return text(spec, path);
    }
    if exists && path.is_dir() && !is_package(path) && !path.join("config.json").is_file() {
        let packages = packages_in(path).map_err(|e| {
            Failure::new(Code::Usage, anyhow::Error::new(e).context(spec.to_owned()))
        })?;
        if !packages.is_empty() {
            return folder(spec, &packages, app);
        }
        // One that is named as a package is a damaged package.
        if !app.hub.is_model_name(spec) && named.is_empty() {
            return Err(nothing_in(path));
        }
    }
    if ["mlpackage", "mlmodelc"].contains(&named) || exists && is_package(path) {
        return package(spec, path, app);
    }
    let files = app.hub.resolve(spec)?;
    if is_package(&files.path) {
        return package(spec, &files.path, app);
    }
    checkpoint(spec, &files.path, build, app)
}

/// The failure of a folder in which nothing can be audited.
pub fn nothing_in(path: &Path) -> Failure {
    let error = anyhow::anyhow!(
        "{}: found no package, compiled model or config.json in the folder",
        path.display()
    );
    Failure::new(Code::Usage, error)
        .remedy("the path of a package, a compiled model, a .mil file or a folder of packages")
        .remedy("a GGUF file, a Hugging Face folder, hf:org/name or a name of the catalogue")
}

fn text(spec: &str, path: &Path) -> Result<Subject, Failure> {
    let source = read_source(path).map_err(|e| Failure::new(Code::Usage, e))?;
    let (program, interfaces) = (source.program, source.interfaces);
    let part = Part {
        package: String::new(),
        program,
        interfaces,
        catch_all: None,
    };
    Ok(Subject {
        n_absent: source.n_absent,
        ..of_parts(spec, "text", vec![part])
    })
}

fn of_parts(spec: &str, kind: &'static str, parts: Vec<Part>) -> Subject {
    Subject {
        name: spec.to_owned(),
        kind,
        built: None,
        n_absent: 0,
        parts,
        decoder: None,
    }
}

fn package(spec: &str, path: &Path, app: &App) -> Result<Subject, Failure> {
    let kind = if path.join("Manifest.json").is_file() {
        "package"
    } else {
        "compiled"
    };
    let Package {
        program,
        interfaces,
        ..
    } = read(path, app)?;
    let facts = contract::facts(path).map_err(|e| Failure::new(Code::Usage, e))?;
    let is_bundle = matches!(facts, Some(Facts::Embed(facts)) if facts.flexible);
    let catch_all = if is_bundle { catch_all(&program) } else { None };
    Ok(of_parts(
        spec,
        kind,
        vec![Part {
            package: String::new(),
            program,
            interfaces,
            catch_all,
        }],
    ))
}

fn read(path: &Path, app: &App) -> Result<Package, Failure> {
    app.output.explain(&format!("reading {}", path.display()));
    Package::open(path).map_err(|e| Failure::new(Code::Usage, e))
}

/// The function of any length beside those of buckets.
fn catch_all(program: &Program) -> Option<String> {
    let functions = program.functions();
    let any = functions
        .iter()
        .find(|f| bundle::length(&f.name).is_none() && is_flexible(f))?;
    functions
        .iter()
        .any(|f| bundle::length(&f.name).is_some())
        .then(|| any.name.clone())
}

/// Whether an input has no fixed shape.
fn is_flexible(f: &Function) -> bool {
    let open = |v: &ValueId| {
        f.value(*v)
            .ty
            .tensor()
            .is_some_and(|t| t.known_shape().is_none())
    };
    f.body().inputs.iter().any(open)
}

/// The packages of a folder, in the order of names.
pub fn packages_in(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut packages = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        let is_named = path
            .extension()
            .is_some_and(|e| e == "mlpackage" || e == "mlmodelc");
        if is_named && is_package(&path) {
            packages.push(path);
        }
    }
    packages.sort();
    Ok(packages)
}

fn folder(spec: &str, packages: &[PathBuf], app: &App) -> Result<Subject, Failure> {
    let manifest = packages::manifest(Path::new(spec)).map_err(|e| Failure::new(Code::Usage, e))?;
    let entries = manifest.map(|m| m.packages).unwrap_or_default();
    let has_buckets = entries.iter().any(|e| e.tokens.is_some());
    let takes_any = |package: &str| {
        has_buckets
            && entries
                .iter()
                .any(|e| e.path == package && e.tokens.is_none())
    };
    let part = |path: &PathBuf| -> Result<Part, Failure> {
        let package = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let Package {
            program,
            interfaces,
            ..
        } = read(path, app)?;
        let any = program
            .functions()
            .iter()
            .find(|f| takes_any(&package) && is_flexible(f));
        let catch_all = any.map(|f| f.name.clone());
        Ok(Part {
            package,
            program,
            interfaces,
            catch_all,
        })
    };
    Ok(of_parts(
        spec,
        "folder",
        packages.iter().map(part).collect::<Result<_, _>>()?,
    ))
}

fn checkpoint(spec: &str, path: &Path, build: &Build<'_>, app: &App) -> Result<Subject, Failure> {
    let checkpoint = Checkpoint::open(path).map_err(|e| Failure::new(Code::Usage, e))?;
    // What has modules of sentence-transformers makes vectors, whatever else it could.
    if path.join("modules.json").is_file() {
        return encoder(spec, &checkpoint, build, app);
    }
    match decoder(&checkpoint, build.context, build, app) {
        Ok((program, said)) => {
            let part = Part {
                package: String::new(),
                program,
                interfaces: BTreeMap::new(),
                catch_all: None,
            };
            let decoder = Some((path.to_owned(), Box::new(checkpoint)));
            Ok(Subject {
                built: Some(said),
                decoder,
                ..of_parts(spec, "decoder", vec![part])
            })
        }
        Err(failure) => encoder(spec, &checkpoint, build, app).map_err(|_| failure),
    }
}

/// The program that `thane convert --form engine` writes of a decoder, with a word about it.
pub fn decoder(
    checkpoint: &Checkpoint,
    context: Option<usize>,
    build: &Build<'_>,
    app: &App,
) -> Result<(Program, String), Failure> {
    let engine = Some(build.embedding.form.decoder());
    let options = Options {
        context,
        engine,
        ..Options::default()
    };
    let made = thane_models::build(checkpoint, &options)
        .map_err(|e| model::unusable(&checkpoint.path, e))?;
    let program = convert::in_opset(model::compile(made.program, &checkpoint.path, app)?, None)?;
    let block = made.info.fixed.map_or(1, |fixed| fixed.block);
    let said = format!(
        "{}, {}, context of {}, {block} of a prompt a call, as `thane convert --form engine` writes it",
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
        let error =
            anyhow::anyhow!("{spec}: --context is for models that answer, this one makes vectors");
        return Err(Failure::new(Code::Usage, error)
            .remedy("--buckets 128,512, the lengths of its functions"));
    }
    let model = bundle::Model {
        name: spec,
        license: None,
        checkpoint,
    };
    let made = bundle::build(&model, build.embedding, app)?;
    let EncoderInfo {
        architecture,
        n_layers,
        ..
    } = &made.info;
    let layers = counted(*n_layers, "layer");
    let said = format!(
        "{architecture}, {layers}, as `thane convert --task embed` writes it for the Neural Engine"
    );
    let program = convert::in_opset(made.program, None)?;
    let catch_all = catch_all(&program);
    let declared = |f: &Function| (f.name.clone(), convert::interface(f, made.info.max_tokens));
    let interfaces = program.functions().iter().map(declared).collect();
    let part = Part {
        package: String::new(),
        program,
        interfaces,
        catch_all,
    };
    Ok(Subject {
        built: Some(said),
        ..of_parts(spec, "encoder", vec![part])
    })
}
