//! The files of a publication: packages, their compiled models, manifest and tokenizer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use thane_hub::known::HUB_NAMES;
use thane_hub::{Format, PublishedPackage, PushFile};
use thane_mil::package::{Package, Partial, items};
use thane_runtime::contract::{AUTHOR, Contract, Facts};
use thane_runtime::files::{link_equal, walk};
use thane_runtime::manifest::read_checked_manifest;
use thane_runtime::{
    ForeignLayout, Quality, RuntimeError, is_package, read_contents, recorded_quality,
};

use crate::app::App;
use crate::exit::{Failure, other, usage, usage_in};
use crate::out::file_name;

/// Where a package has its weights, and a compiled model.
const WEIGHTS: [&str; 2] = [
    "Data/com.apple.CoreML/weights/weight.bin",
    "weights/weight.bin",
];

/// What is published.
pub struct Collected {
    /// Every file but the list of them and the model card.
    pub files: Vec<PushFile>,
    /// The packages of the model.
    pub packages: Vec<PublishedPackage>,
    /// What the packages say about the model.
    pub about: About,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Compiled models, until they are published.
    compiled: Option<Partial>,
}

/// What packages say about their model.
#[derive(Default)]
pub struct About {
    /// What the model is; `None` for packages of other programs.
    pub facts: Option<Facts>,
    /// The model that the packages were made of.
    pub source: Option<String>,
    /// License, as the packages name it.
    pub license: Option<String>,
    /// How far the packages are from a reference.
    pub quality: Option<Quality>,
    /// Inputs and outputs of the first package, for the example in Swift.
    pub inputs: Vec<String>,
}

impl About {
    /// What the model does, as a publication says it.
    pub fn task(&self) -> Option<&'static str> {
        match self.facts.as_ref()? {
            Facts::Embed(_) => Some("embed"),
            Facts::Generate(_) => Some("generate"),
        }
    }
}

/// A package on this machine.
struct Local {
    /// Its folder, relative to the repository.
    folder: String,
    path: PathBuf,
    tokens: Option<u64>,
}

/// What is at a path: packages, all files, and whether packages can be left out.
pub struct Found {
    locals: Vec<Local>,
    files: Named,
    is_whole: bool,
}

/// Finds the packages at `path`. No model is read.
pub fn find(path: &Path, app: &App) -> Result<Found, Failure> {
    app.output.busy("checking the packages");
    if path.symlink_metadata().is_err() {
        return Err(missing(path, app));
    }
    let (locals, files, is_whole) = locals(path)?;
    Ok(Found {
        locals,
        files,
        is_whole,
    })
}

/// There is nothing at `path`, which may be the name of a model that can be converted.
fn missing(path: &Path, app: &App) -> Failure {
    let name = path.to_string_lossy();
    let of_catalog = app.hub.catalog.iter().any(|entry| entry.name == name);
    let of_hub = HUB_NAMES.iter().any(|named| named.name == name);
    let is_model = name.starts_with("hf:") || of_catalog || of_hub;
    let (model, stem) = match is_model {
        true => (&*name, name.rsplit([':', '/']).next().unwrap_or_default()),
        false => ("MODEL", "NAME"),
    };
    let what = match is_model {
        true => "expected a package on this machine, found the name of a model",
        false => "there is no such file or folder",
    };
    usage!("{name}: {what}").remedy(format!(
        "thane convert {model} --target a19 -o {stem}.mlpackage, which writes a package, then \
         thane push {stem}.mlpackage hf:org/name"
    ))
}

/// Checks the packages that were found at `path` and collects what is published of them.
pub fn collect(
    path: &Path,
    found: Found,
    formats: &[Format],
    app: &App,
) -> Result<Collected, Failure> {
    let Found {
        locals,
        mut files,
        is_whole,
    } = found;
    let mut all = Collected {
        files: Vec::new(),
        packages: Vec::new(),
        about: About::default(),
        notes: Vec::new(),
        compiled: None,
    };
    if let Some(first) = locals.iter().find(|local| is_package(&local.path)) {
        all.about = about(path, &first.path)?;
        files.extend(tokenizer(&first.path)?);
    }
    let wants_packages = formats.contains(&Format::Mlpackage);
    for local in &locals {
        all.add_package(local, formats, app)?;
    }
    let is_dropped = |name: &str| {
        // The manifest describes packages.
        let is_package = locals
            .iter()
            .any(|l| name.starts_with(&format!("{}/", l.folder)));
        !wants_packages && is_whole && (is_package || name == "manifest.json")
    };
    files.retain(|name, _| !is_dropped(name));
    app.output.busy("hashing the files");
    for (name, from) in files {
        let known = all.files.iter().any(|file| file.path == name);
        if !known {
            all.files.push(PushFile::from_disk(name, from)?);
        }
    }
    all.files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(all)
}

/// Files by their paths in the repository.
type Named = BTreeMap<String, PathBuf>;

/// The packages at `path`, all files, and whether Thane can leave out the packages and publish
/// compiled models alone.
fn locals(path: &Path) -> Result<(Vec<Local>, Named, bool), Failure> {
    if is_package(path) {
        let folder = file_name(path);
        let files = named(path, &format!("{folder}/"))?;
        let local = Local {
            path: path.to_owned(),
            tokens: None,
            folder,
        };
        return Ok((vec![local], files, true));
    }
    if let Some((manifest, _)) = read_checked_manifest(path).map_err(RuntimeError::from)? {
        let local = |entry: &thane_runtime::manifest::Entry| Local {
            folder: entry.path.clone(),
            path: path.join(&entry.path),
            tokens: entry.tokens.map(|n| n as u64),
        };
        let locals = manifest.packages.iter().map(local).collect();
        return Ok((locals, named(path, "")?, true));
    }
    let Some(layout) = ForeignLayout::of(path) else {
        let shown = path.display();
        return Err(usage!(
            "{shown}: expected a Core ML package or a folder of packages, found neither"
        )
        .remedy(format!(
            "thane convert {shown} -o NAME.mlpackage, if it is a model, then NAME.mlpackage"
        )));
    };
    // Files are those that its reader takes, so a bundle that cannot be run is not published.
    let parts = layout.open(path)?.parts;
    let local = |part: &thane_runtime::ForeignPart| Local {
        folder: file_name(&part.path),
        path: part.path.clone(),
        tokens: None,
    };
    Ok((parts.iter().map(local).collect(), named(path, "")?, false))
}

/// The files below a folder, named with `prefix`, without hidden ones and those of an earlier push.
fn named(folder: &Path, prefix: &str) -> Result<Named, Failure> {
    let made = [thane_hub::PUBLICATION, thane_hub::SIGNATURE, "README.md"];
    let files = walk(folder).map_err(usage_in(folder))?.into_iter();
    let is_hidden = |name: &str| name.split('/').any(|part| part.starts_with('.'));
    let files = files.filter(|(name, _)| !is_hidden(name) && !made.contains(&name.as_str()));
    let named = files.map(|(name, _)| {
        let from = folder.join(&name);
        (format!("{prefix}{name}"), from)
    });
    Ok(named.collect())
}

/// The tokenizer of a package under the name that other programs look for.
fn tokenizer(package: &Path) -> Result<Option<(String, PathBuf)>, Failure> {
    if !package.join("Manifest.json").is_file() {
        return Ok(None);
    }
    let items = items(package).map_err(usage)?.into_iter();
    let mut own = items.filter(|item| item.author == AUTHOR && item.name == "tokenizer.json");
    Ok(own.next().map(|item| (item.name, item.path)))
}

fn about(path: &Path, package: &Path) -> Result<About, Failure> {
    let read = Package::open(package).map_err(usage)?;
    let contract = read_contents(package, &read.program)?.map(|contents| contents.contract);
    let license = read.metadata.license.trim();
    let manifest = thane_runtime::manifest::read_manifest(path).map_err(RuntimeError::from)?;
    let facts = manifest.map(|manifest| manifest.model);
    let facts = facts.or_else(|| contract.as_ref().map(|c| c.model.clone()));
    Ok(About {
        source: contract
            .as_ref()
            .map(|contract| contract.source.model.clone()),
        inputs: contract.as_ref().map(inputs).unwrap_or_default(),
        license: (!license.is_empty()).then(|| license.to_owned()),
        quality: recorded_quality(path)?,
        facts,
    })
}

/// The inputs of the first function, each as `name: type [shape]`.
fn inputs(contract: &Contract) -> Vec<String> {
    let first = contract.functions.values().next();
    let inputs = first.map(|ports| ports.inputs.iter());
    let shape = |shape: &[Option<usize>]| {
        let dims = shape
            .iter()
            .map(|n| n.map_or("?".to_owned(), |n| n.to_string()));
        dims.collect::<Vec<_>>().join(", ")
    };
    let text = |port: &thane_runtime::contract::Port| {
        format!("{}: {} [{}]", port.name, port.dtype, shape(&port.shape))
    };
    inputs.into_iter().flatten().map(text).collect()
}

impl Collected {
    /// Adds a package with the forms that are asked for.
    fn add_package(&mut self, local: &Local, formats: &[Format], app: &App) -> Result<(), Failure> {
        let Some((name, found)) = stem(&local.folder) else {
            return Ok(());
        };
        let mut forms = BTreeMap::new();
        if found == Format::Mlmodelc || formats.contains(&Format::Mlpackage) {
            forms.insert(found, local.folder.clone());
        }
        if found == Format::Mlpackage && formats.contains(&Format::Mlmodelc) {
            let folder = format!("{name}.mlmodelc");
            match self.compile(local, &folder, app) {
                Ok(()) => drop(forms.insert(Format::Mlmodelc, folder)),
                Err(e) if forms.is_empty() => return Err(e.remedy("--formats mlpackage")),
                Err(e) => self.notes.push(format!(
                    "{} is published as a package only: {:#}",
                    local.folder,
                    e.error()
                )),
            }
        }
        let known = self.packages.iter_mut().find(|p| p.name == name);
        match known {
            Some(package) => package.forms.extend(forms),
            None => self.packages.push(PublishedPackage {
                name: name.to_owned(),
                tokens: local.tokens,
                forms,
            }),
        }
        Ok(())
    }

    /// Writes the compiled model of a package into the cache, and adds its files.
    fn compile(&mut self, local: &Local, folder: &str, app: &App) -> Result<(), Failure> {
        app.output.busy(&format!("compiling {}", local.folder));
        if self.compiled.is_none() {
            let place = app.hub.places.cache.join("compiled").join("push");
            self.compiled = Some(Partial::folder(&place).map_err(usage_in(&place))?);
        }
        let at = self
            .compiled
            .as_ref()
            .map(Partial::path)
            .unwrap_or(Path::new(""));
        let at = at.join(folder);
        let package = Package::open(&local.path).map_err(usage)?;
        package.write_compiled(&at).map_err(other)?;
        let [from, to] = WEIGHTS;
        let (from, to) = (local.path.join(from), at.join(to));
        if from.is_file() && to.is_file() {
            // The disk has the weights once.
            link_equal(&from, &to).map_err(usage_in(&to))?;
        }
        for (name, from) in named(&at, &format!("{folder}/"))? {
            self.files.push(PushFile::from_disk(name, from)?);
        }
        Ok(())
    }
}

/// The name of a package's folder without its extension, and its form.
fn stem(folder: &str) -> Option<(&str, Format)> {
    let (name, _) = folder.rsplit_once('.')?;
    Some((name, Format::of_folder(folder)?))
}
