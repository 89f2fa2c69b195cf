//! The folder `OUT.codes` beside an output, which keeps finished tensors while they are compressed,
//! so that a run that was killed goes on.
//!
//! A file in it says whose it is, and is locked while a run uses the folder: what Thane did not
//! begin is neither written to nor removed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thane_compile::compress::program::Settings;
use thane_mil::budget::Budget;
use thane_mil::package::create_folders;
use thane_runtime::{CompressOptions, Folder};

use crate::begun::{self, Begun, Kind};
use crate::exit::{Failure, Outcome};
use crate::model::n_threads;
use crate::out::{beside, unwritten};
use crate::output::bytes;

/// The file that marks the folder.
const MARKER: &str = "thane-codes";
const KIND: Kind = Kind {
    verb: "codes",
    version: 1,
};

/// Options, and where finished tensors are kept beside an output.
pub struct Compressing {
    pub options: CompressOptions,
    folder: Arc<Folder>,
    path: PathBuf,
    /// Folders that were made for it, the innermost first.
    made: Vec<PathBuf>,
    /// Holds the lock.
    marker: Option<Begun>,
}

impl Compressing {
    /// Begins the folder beside `out`, or goes on with one that an earlier run has left.
    pub fn begin(settings: Settings, out: &Path, budget: &Budget) -> Result<Self, Failure> {
        let path = beside(out, ".codes");
        check(&path)?;
        let missing = path.ancestors().take_while(|path| {
            let is_some = !path.as_os_str().is_empty();
            is_some && path.symlink_metadata().is_err()
        });
        let made = missing.map(Path::to_owned).collect();
        create_folders(&path).map_err(|e| unwritten(&path, e))?;
        let marker = begun::open(&path.join(MARKER), KIND, &begun::Settings::new())?;
        let folder = Arc::new(Folder::new(path.clone()));
        let mut options = CompressOptions::new(settings, n_threads(None));
        options.store = Arc::clone(&folder) as Arc<_>;
        options.budget = budget.clone();
        Ok(Self {
            options,
            folder,
            path,
            made,
            marker: Some(marker),
        })
    }

    /// The output is complete: finished tensors are in it.
    pub fn done(mut self) {
        self.remove();
    }

    /// A failure to write the output, which says how much room finished tensors take.
    pub fn explained(&self, failure: Failure) -> Failure {
        let is_full = |cause: &(dyn std::error::Error + 'static)| {
            let fault = cause.downcast_ref::<io::Error>();
            fault.is_some_and(|fault| fault.kind() == io::ErrorKind::StorageFull)
        };
        if !failure.error().chain().any(is_full) {
            return failure;
        }
        failure.remedy(format!(
            "room for {}, where {} of finished tensors are, and for the output beside it: another \
             run goes on with them",
            self.path.display(),
            bytes(self.folder.bytes())
        ))
    }

    /// Removes what is Thane's.
    fn remove(&mut self) {
        // Some systems do not remove files that are open.
        if self.marker.take().is_some() {
            let _ = fs::remove_file(self.path.join(MARKER));
        }
        self.folder.remove();
    }
}

impl Drop for Compressing {
    /// A folder without a finished tensor is not worth keeping.
    fn drop(&mut self) {
        let is_marker = |entry: &fs::DirEntry| entry.file_name() == MARKER;
        let mut entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        if self.marker.is_some() && entries.all(|entry| is_marker(&entry)) {
            self.remove();
        }
        // Those that are empty.
        self.made.iter().for_each(|path| drop(fs::remove_dir(path)));
    }
}

/// Removes finished tensors once an output is written; without an output, they stay.
pub fn finished<T>(
    compressing: Option<Compressing>,
    written: Result<T, Failure>,
) -> Result<T, Failure> {
    let Some(compressing) = compressing else {
        return written;
    };
    let written = written.map_err(|failure| compressing.explained(failure))?;
    compressing.done();
    Ok(written)
}

/// Refuses a link, a file, and a folder that holds something and has no marker.
fn check(path: &Path) -> Outcome {
    let refuse = |what: &str| {
        let why = "finished tensors are kept in a folder of that name while weights are compressed";
        let text = format!("{} {what}: {why}", path.display());
        Err(usage!("{text}").remedy("remove it, or another -o"))
    };
    let Ok(found) = path.symlink_metadata() else {
        return Ok(());
    };
    if !found.is_dir() {
        return refuse(if found.is_symlink() {
            "is a link"
        } else {
            "is no folder"
        });
    }
    let mut entries = fs::read_dir(path).map_err(|e| unwritten(path, e))?;
    let is_ours = path.join(MARKER).symlink_metadata().is_ok();
    match is_ours || entries.next().is_none() {
        true => Ok(()),
        false => refuse("holds what thane did not write"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(out: &Path) -> Result<Compressing, Failure> {
        Compressing::begin(Settings::default(), out, &Budget::unlimited())
    }

    #[track_caller]
    fn refused(out: &Path, says: &str) {
        let Err(failure) = begin(out) else {
            panic!("expected a refusal");
        };
        let said = failure.error().to_string();
        assert!(said.contains(says), "{said}");
    }

    #[test]
    fn what_is_of_others_is_not_touched() {
        let home = tempfile::tempdir().unwrap();
        let out = home.path().join("new/small.mlpackage");
        let codes = home.path().join("new/small.mlpackage.codes");
        // A run that ends before a tensor is finished leaves nothing.
        drop(begin(&out).unwrap());
        assert!(!home.path().join("new").exists());
        fs::create_dir_all(&codes).unwrap();
        let thesis = codes.join("thesis.txt");
        fs::write(&thesis, "precious").unwrap();
        refused(&out, "holds what thane did not write");
        assert_eq!(fs::read(&thesis).unwrap(), b"precious");
        fs::remove_dir_all(&codes).unwrap();
        fs::write(&codes, "precious").unwrap();
        refused(&out, "is no folder");
        fs::remove_file(&codes).unwrap();
        #[cfg(unix)]
        {
            let other = home.path().join("other");
            fs::create_dir(&other).unwrap();
            std::os::unix::fs::symlink(&other, &codes).unwrap();
            refused(&out, "is a link");
            assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
            fs::remove_file(&codes).unwrap();
        }
        // A file that somebody puts there meanwhile stays; finished tensors go.
        let running = begin(&out).unwrap();
        refused(&out, "is being written by another thane");
        let tensor = codes.join("0".repeat(64));
        for path in [&thesis, &tensor] {
            fs::write(path, "x").unwrap();
        }
        running.done();
        assert!(thesis.exists() && !tensor.exists() && !codes.join(MARKER).exists());
    }

    #[test]
    fn finished_tensors_are_there_for_the_next_run() {
        let home = tempfile::tempdir().unwrap();
        let out = home.path().join("small.mlpackage");
        let tensor = home
            .path()
            .join("small.mlpackage.codes")
            .join("0".repeat(64));
        let running = begin(&out).unwrap();
        fs::write(&tensor, "x").unwrap();
        let full = Failure::from(io::Error::from(io::ErrorKind::StorageFull));
        let mut said = Vec::new();
        running.explained(full).print(&mut said).unwrap();
        let said = String::from_utf8(said).unwrap();
        assert!(said.contains("small.mlpackage.codes, where"), "{said}");
        drop(running);
        let again = begin(&out).unwrap();
        assert!(tensor.exists());
        again.done();
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }
}
