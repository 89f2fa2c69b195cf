//! Packages whose programs are changed: read with all else that they hold, and written again. A
//! package keeps its metadata and, if Thane wrote it, its contract, as long as no change touches
//! its interface.

pub mod folder;
pub mod place;

use std::path::Path;

use thane_mil::package::{self, Package, PackageError, write_source};
use thane_runtime::contract::AUTHOR;
use thane_runtime::{Compressed, PackageContents, read_contents};

use crate::exit::{Failure, usage};
use crate::out;
use crate::runtime::unwritten;

/// A package that was read to be changed.
pub struct Rewritten {
    /// The program, whose weights are mapped, and what describes it.
    pub package: Package,
    /// What Thane wrote beside the program; `None` in a package of others.
    contents: Option<PackageContents>,
    /// The items of other tools, and tables.
    items: Vec<package::Item>,
}

impl Rewritten {
    /// Reads a package, and checks what Thane wrote into it.
    pub fn open(from: &Path) -> Result<Self, Failure> {
        let package = Package::open(from).map_err(usage)?;
        let contents = read_contents(from, &package.program)?;
        let items = kept_items(from, contents.is_some())?;
        Ok(Self {
            package,
            contents,
            items,
        })
    }

    /// Whether Thane wrote it, so that a contract says what its functions take.
    pub fn is_ours(&self) -> bool {
        self.contents.is_some()
    }

    /// What Thane wrote beside the program.
    pub fn contents(&self) -> Option<&PackageContents> {
        self.contents.as_ref()
    }

    /// Takes what callers look up from a program that was compressed.
    pub fn compressed(&mut self, made: &Compressed) -> Result<(), Failure> {
        let Some(contents) = &mut self.contents else {
            return Ok(());
        };
        let gone = contents.compressed(made)?;
        let is_gone = |item: &package::Item| {
            let input = item.name.strip_suffix(".npy");
            item.author == AUTHOR && input.is_some_and(|input| gone.iter().any(|g| g == input))
        };
        self.items.retain(|item| !is_gone(item));
        Ok(())
    }

    /// Writes the package to `at`, which is renamed to `to`.
    pub fn write(mut self, at: &Path, to: &Path) -> Result<(), Failure> {
        if let Some(contents) = self.contents {
            self.items
                .extend(contents.items_with(&self.package.program)?);
        }
        write(at, to, &self.package, &self.items)
    }
}

/// Writes a package, or its program as text, to `at`, which is renamed to `to`.
pub fn write(
    at: &Path,
    to: &Path,
    package: &Package,
    items: &[package::Item],
) -> Result<(), Failure> {
    let done = if place::is_text(at) {
        write_source(at, &package.program).map(drop)
    } else {
        package.write(at, items).map(drop)
    };
    done.map_err(|error| match error {
        PackageError::Io { fault, .. } => out::unwritten(to, fault),
        error => unwritten(error, to),
    })
}

/// The items of other tools. Thane writes its own items again, with the contract that has their
/// hashes.
fn kept_items(path: &Path, ours: bool) -> Result<Vec<package::Item>, Failure> {
    let items = package::items(path).map_err(usage)?;
    // Tables are as they were.
    let kept = |i: &package::StoredItem| {
        !ours || i.author != AUTHOR || i.path.extension().is_some_and(|e| e == "npy")
    };
    let foreign = items.into_iter().filter(kept);
    Ok(foreign
        .map(|i| package::Item {
            author: i.author,
            name: i.name,
            description: i.description,
            content: package::Content::File(i.path),
        })
        .collect())
}
