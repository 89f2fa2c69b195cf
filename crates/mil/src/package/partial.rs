//! Files and folders that are being written: they are written beside their final path and renamed
//! when they are complete.
//!
//! A partial is locked while its writer lives. Before a process writes to a folder, it removes the
//! partials of dead writers in that folder.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

/// Marks the names of partials. No other file may contain this mark, because leftover partials are
/// removed.
const MARK: &str = ".thane-partial-";

/// Whether this process begins no partial any more; see [`Partial::begin_no_more`].
static IS_ENDING: RwLock<bool> = RwLock::new(false);

/// The path that a file will have: that of a file in a partial, with the final name of the partial.
pub fn final_path(path: &Path) -> PathBuf {
    let parts = path.components().map(|part| {
        let name = part.as_os_str();
        let of_partial = name
            .to_str()
            .and_then(|name| name.strip_prefix('.')?.split_once(MARK));
        of_partial.map_or(name, |(name, _)| name.as_ref())
    });
    parts.collect()
}

/// An incomplete file or folder; it is removed on drop unless it was renamed.
#[derive(Debug)]
pub struct Partial {
    path: PathBuf,
    /// The final path, with links resolved.
    place: PathBuf,
    /// An open file holds the lock, which ends with the process. Systems and file systems without
    /// such locks have none; there, no leftover partial is removed.
    #[expect(dead_code, reason = "held, not read")]
    lock: Option<File>,
    is_folder: bool,
}

impl Partial {
    /// Creates an empty folder beside `place`, including the folders above.
    pub fn folder(place: &Path) -> io::Result<Self> {
        Self::beside(place, true)
    }

    /// Creates an empty file beside `place`, including the folders above.
    pub fn file(place: &Path) -> io::Result<Self> {
        Self::beside(place, false)
    }

    fn beside(place: &Path, is_folder: bool) -> io::Result<Self> {
        let invalid = || io::Error::new(ErrorKind::InvalidInput, "the path has no file name");
        // The target of a link is replaced, not the link.
        let place = if place.is_symlink() {
            place.canonicalize()?
        } else {
            place.to_owned()
        };
        let name = place
            .file_name()
            .ok_or_else(invalid)?
            .to_string_lossy()
            .into_owned();
        let parent = parent(&place);
        let is_ending = IS_ENDING.read().unwrap_or_else(PoisonError::into_inner);
        if *is_ending {
            let why = "the program is ending and writes nothing more";
            return Err(io::Error::new(ErrorKind::Interrupted, why));
        }
        create_folders(parent)?;
        remove_leftovers(parent);
        for n in 0..10_000 {
            let path = parent.join(format!(".{name}{MARK}{}-{n}", std::process::id()));
            let made = if is_folder {
                fs::create_dir(&path)
            } else {
                File::create_new(&path).map(drop)
            };
            match made {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(e),
            }
            // Between creation and locking, another process may take the partial for a leftover.
            match lock(&path, is_folder) {
                Ok(lock) => {
                    return Ok(Self {
                        path,
                        place,
                        lock,
                        is_folder,
                    });
                }
                Err(e) if e.kind() == ErrorKind::NotFound || e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::new(
            ErrorKind::AlreadyExists,
            "10000 unfinished writes are beside this path: remove them",
        ))
    }

    /// The current path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the folders of `file` below this folder, but never this folder itself: a partial
    /// that was removed must not come back.
    pub(super) fn make_folders(&self, file: &Path) -> io::Result<()> {
        file.parent()
            .filter(|folder| folder.starts_with(&self.path))
            .map_or(Ok(()), create_folders)
    }

    /// Renames the partial to its final path, where nothing may exist. Of several concurrent
    /// writers exactly one succeeds.
    pub fn put(self) -> io::Result<()> {
        System.put(&self.path, &self.place)
    }

    /// Like [`Self::put`], but renames only `made`, a file or folder inside this folder.
    pub fn put_with(self, made: &Path) -> io::Result<()> {
        System.put(made, &self.place)
    }

    /// Renames the partial to its final path and removes what was there. If a step fails, either
    /// the old or the new version is there, complete.
    pub fn replace(self) -> io::Result<()> {
        if !self.is_folder || self.place.symlink_metadata().is_err() {
            return fs::rename(&self.path, &self.place);
        }
        // After the exchange, this path holds the old version, which is dropped.
        swap(&self.path, &self.place, &System)
    }

    /// Like [`Self::replace`], but moves only `made`, a file or folder inside this folder.
    pub fn replace_with(self, made: &Path) -> io::Result<()> {
        if !made.is_dir() || self.place.symlink_metadata().is_err() {
            return fs::rename(made, &self.place);
        }
        swap(made, &self.place, &System)
    }

    /// From now on, this process begins no partial. A signal handler that ends the program calls
    /// this before [`Self::remove_own`]; otherwise another thread could begin one after that.
    pub fn begin_no_more() {
        *IS_ENDING.write().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Removes the partials of this process beside `place`. Signal handlers call it while other
    /// threads may still write.
    pub fn remove_own(place: &Path) {
        let place = place.canonicalize().unwrap_or_else(|_| place.to_owned());
        let Some(name) = place.file_name() else {
            return;
        };
        let own = format!(".{}{MARK}{}-", name.to_string_lossy(), std::process::id());
        for _ in 0..20 {
            let mut is_left = false;
            for path in entries(parent(&place)).filter(|path| name_of(path).starts_with(&own)) {
                // Rename the partial first, in one step. If it were removed file by file, its
                // writer could rename it when it is half empty.
                let taken = path.with_file_name(format!("{}-x", name_of(&path)));
                let removed = fs::rename(&path, &taken).and_then(|()| remove(&taken));
                is_left |= removed.is_err()
                    && (path.symlink_metadata().is_ok() || taken.symlink_metadata().is_ok());
            }
            if !is_left {
                return;
            }
        }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // The path is gone after a rename. A failed removal has no remedy here.
        let _ = remove(&self.path);
    }
}

/// Create a folder and its parents, as `create_dir_all` does, but never a [`Partial`]: a partial
/// that the signal handler removed must not be created again by the thread that still writes.
pub fn create_folders(folder: &Path) -> io::Result<()> {
    let Some(partial) = folder.ancestors().find(|path| name_of(path).contains(MARK)) else {
        // A parent is a file. `AlreadyExists` would read as if the output itself existed.
        return fs::create_dir_all(folder).map_err(|e| match e.kind() {
            ErrorKind::AlreadyExists => io::Error::new(
                ErrorKind::NotADirectory,
                format!("{} is not a folder", folder.display()),
            ),
            _ => e,
        });
    };
    let mut at = partial.to_owned();
    for name in folder
        .strip_prefix(partial)
        .into_iter()
        .flat_map(Path::components)
    {
        at.push(name);
        match fs::create_dir(&at) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

fn parent(place: &Path) -> &Path {
    place
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn remove(path: &Path) -> io::Result<()> {
    if path.symlink_metadata()?.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    }
}

/// Locks a new partial. `NotFound` or `WouldBlock` if another process took it for a leftover.
fn lock(path: &Path, is_folder: bool) -> io::Result<Option<File>> {
    if is_folder && !cfg!(unix) {
        return Ok(None);
    }
    let file = File::open(path)?;
    match file.try_lock() {
        // The partial may have been removed before it was locked.
        Ok(()) => path.symlink_metadata().map(|_| Some(file)),
        Err(TryLockError::WouldBlock) => Err(ErrorKind::WouldBlock.into()),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// Removes partials whose writers are dead, which nobody holds a lock on.
fn remove_leftovers(folder: &Path) {
    let is_partial = |name: &str| name.starts_with('.') && name.contains(MARK);
    for path in entries(folder).filter(|path| is_partial(&name_of(path))) {
        let is_ours = path
            .symlink_metadata()
            .is_ok_and(|found| found.is_dir() || found.is_file());
        let Some(file) = is_ours.then(|| File::open(&path).ok()).flatten() else {
            continue;
        };
        // The lock is held until the partial is gone, so that nobody starts to write into it.
        if file.try_lock().is_ok() {
            let _ = remove(&path);
        }
    }
}

/// The file system operations of [`swap`].
pub trait Rename {
    /// Exchanges two files or folders in one step.
    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()>;
    /// Renames a file or folder.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
}

struct System;

impl System {
    /// Renames to a path where nothing exists, atomically if the system can, so that exactly one of
    /// several concurrent writers succeeds.
    fn put(&self, from: &Path, to: &Path) -> io::Result<()> {
        match self.rename_new(from, to) {
            Err(e) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput) => {}
            done => return done,
        }
        if to.symlink_metadata().is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        fs::rename(from, to)
    }

    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
    }

    #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
    fn rename_new(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }
}

impl Rename for System {
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        Ok(renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)?)
    }

    #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
    fn exchange(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }
}

/// Exchanges `new` and `place`: in one step if the system can, else in three steps that are undone
/// on failure.
pub fn swap(new: &Path, place: &Path, system: &dyn Rename) -> io::Result<()> {
    match system.exchange(new, place) {
        Err(e) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput) => {}
        done => return done,
    }
    // This name does not mark a partial, because for a moment it is the only name of the old
    // version.
    let aside = place.with_file_name(format!(".{}.old-{}", name_of(place), std::process::id()));
    system.rename(place, &aside)?;
    if let Err(fault) = system.rename(new, place) {
        return Err(match system.rename(&aside, place) {
            Ok(()) => fault,
            Err(_) => io::Error::new(
                fault.kind(),
                format!("{fault}; the old version is now at {}", aside.display()),
            ),
        });
    }
    system.rename(&aside, new)
}
