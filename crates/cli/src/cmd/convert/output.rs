//! Whether the output is named as what is written: a package, a compiled model or a folder.

use std::path::Path;

use thane_audit::target::Target;
use thane_calls::Split;

use super::{Args, Task};
use crate::embed::bundle;
use crate::exit::{Failure, Outcome};
use crate::out::{self, Kind, has_extension};

/// Refuses an output whose extension is not that of a package or a compiled model.
pub(super) fn named_well(args: &Args) -> Outcome {
    if args.foreign().is_some() {
        return match is_model_file(&args.out) {
            true => Err(out::misnamed(&args.out, "a folder", "-o FOLDER")),
            false => Ok(()),
        };
    }
    let is_package = has_extension(&args.out, &["mlpackage"]);
    let is_folder = args.embedding.layout == bundle::Layout::Folder || args.is_split();
    // Whether the model is cut may depend on its size.
    let may_be_cut = !args.target.is_empty() || args.embedding.form.split.is_some();
    if may_be_cut && !is_model_file(&args.out) {
        return Ok(());
    }
    if args.is_split() && is_model_file(&args.out) {
        return Err(several(args));
    }
    if is_package || is_folder || is_compiled(&args.out) {
        return Ok(());
    }
    Err(misnamed(args))
}

fn misnamed(args: &Args) -> Failure {
    out::misnamed(
        &args.out,
        "a package (.mlpackage) or compiled model (.mlmodelc)",
        "-o NAME.mlpackage",
    )
}

/// The failure of several packages that were to be written as one.
fn several(args: &Args) -> Failure {
    usage!(
        "{}: several packages are written into a folder, which is no package itself",
        args.out.display()
    )
    .remedy("-o FOLDER")
}

/// The failure of a model that is cut into so many packages, and was to be written as one.
fn cut(args: &Args, n_packages: usize) -> Failure {
    if args.is_split() {
        return several(args);
    }
    let named = args.target.iter().map(Target::described);
    let chips = match args.target.is_empty() {
        true => String::new(),
        false => format!(" for {}", named.collect::<Vec<_>>().join(", ")),
    };
    usage!(
        "{}: the model is cut into {n_packages} packages{chips}, as one may be too large to load \
         there; they are written into a folder",
        args.out.display()
    )
    .remedy("-o FOLDER")
    .remedy("--split 1, for one package, which may be too large to load")
}

/// The kind of the output, which decides what may be replaced.
pub(super) fn kind(args: &Args, task: Task) -> Result<Kind, Failure> {
    if let (Task::Generate, Some(writer)) = (task, args.foreign()) {
        return Ok(Kind::Foreign(writer));
    }
    match task {
        Task::Embed if is_compiled(&args.out) => {
            let out = args.out.display();
            Err(usage!("{out}: compiled models hold language models only")
                .remedy("-o PACKAGE.mlpackage"))
        }
        Task::Embed if args.embedding.layout == bundle::Layout::Folder => Ok(Kind::Folder),
        Task::Generate if args.is_split() => Ok(Kind::Folder),
        Task::Generate if is_compiled(&args.out) => Ok(Kind::Compiled),
        _ => Ok(Kind::Package),
    }
}

/// Whether a path is named as a package, a compiled model or a text.
fn is_model_file(out: &Path) -> bool {
    has_extension(out, &["mlpackage", "mlmodelc", "mil"])
}

pub(super) fn is_compiled(out: &Path) -> bool {
    has_extension(out, &["mlmodelc"])
}

/// Refuses an output of another kind than so many packages made of `from`.
pub(super) fn check_out(args: &Args, n_packages: usize, from: &Path) -> Outcome {
    if n_packages == 1 && !is_model_file(&args.out) {
        return Err(misnamed(args).remedy("--split 2, to cut the model into a folder"));
    }
    if n_packages == 1 {
        return Ok(());
    }
    if is_model_file(&args.out) {
        return Err(cut(args, n_packages));
    }
    out::check_made(&args.out, Kind::Folder, args.force, &[from])
}

impl Args {
    /// Whether flags say that layers are cut into several packages.
    fn is_split(&self) -> bool {
        self.embedding.form.split.as_ref().is_some_and(is_split)
    }
}

/// Whether layers are cut into several packages.
fn is_split(split: &Split) -> bool {
    match split {
        Split::Whole => false,
        Split::Into(n) => *n > 1,
        Split::Ranges { layers, head } => *head || layers.len() > 1,
        // As many as the weights need.
        Split::Within(_) => false,
    }
}
