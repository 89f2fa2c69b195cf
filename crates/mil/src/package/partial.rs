//! What is being written: a file or folder beside its place, which takes its name when it is whole.
//!
//! A partial is locked while its writer lives. Who writes to a folder removes what dead writers
//! have left in it.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// What the names of partials have in them: nothing else may, for such are removed.
const MARK: &str = ".thane-partial-";

/// A file or folder that is not whole yet; dropped, it is removed.
#[derive(Debug)]
pub struct Partial {
    path: PathBuf,
    /// Where it belongs: no link.
    place: PathBuf,
    /// Open as long as this lives: a lock that goes with the process. Systems and file systems
    /// without such locks have none, and there nothing is removed for being left.
    #[cfg_attr(not(test), expect(dead_code, reason = "held, not read"))]
    lock: Option<File>,
    is_folder: bool,
}

impl Partial {
    /// An empty folder beside `place`, which is made with the folders above it.
    pub fn folder(place: &Path) -> io::Result<Self> {
        Self::beside(place, true)
    }

    /// An empty file beside `place`.
    pub fn file(place: &Path) -> io::Result<Self> {
        Self::beside(place, false)
    }

    fn beside(place: &Path, is_folder: bool) -> io::Result<Self> {
        let invalid = || io::Error::new(ErrorKind::InvalidInput, "names no file or folder");
        // What a link leads to is replaced, not the link.
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
        create_folders(parent)?;
        remove_left(parent);
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
            // Between its making and its lock another process may take it for left.
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
            "has 10000 unfinished writes beside it: remove them",
        ))
    }

    /// Where it is now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of a file that belongs into this folder, made; never this folder itself, so that
    /// nothing that was removed comes back.
    pub(super) fn make_folders(&self, file: &Path) -> io::Result<()> {
        file.parent()
            .filter(|folder| folder.starts_with(&self.path))
            .map_or(Ok(()), create_folders)
    }

    /// Rename it to its place, which must be vacant. Of several concurrent writers exactly one
    /// succeeds.
    pub fn put(self) -> io::Result<()> {
        System.put(&self.path, &self.place)
    }

    /// As [`Self::put`], of a file or folder in this folder instead of all of it.
    pub fn put_with(self, made: &Path) -> io::Result<()> {
        System.put(made, &self.place)
    }

    /// Give it its name; what has that name goes away then, and whatever fails, the old or the new
    /// is there, whole.
    pub fn replace(self) -> io::Result<()> {
        if !self.is_folder || self.place.symlink_metadata().is_err() {
            return fs::rename(&self.path, &self.place);
        }
        // Of the two, this path has the old one then, which is dropped.
        swap(&self.path, &self.place, &System)
    }

    /// As [`Self::replace`], of a file or folder in this folder instead of all of it.
    pub fn replace_with(self, made: &Path) -> io::Result<()> {
        if !made.is_dir() || self.place.symlink_metadata().is_err() {
            return fs::rename(made, &self.place);
        }
        swap(made, &self.place, &System)
    }

    /// Remove what this process writes beside `place`: for the end by a signal, while other threads
    /// may still write.
    pub fn remove_own(place: &Path) {
        let place = place.canonicalize().unwrap_or_else(|_| place.to_owned());
        let Some(name) = place.file_name() else {
            return;
        };
        let own = format!(".{}{MARK}{}-", name.to_string_lossy(), std::process::id());
        for _ in 0..20 {
            let mut is_left = false;
            for path in entries(parent(&place)).filter(|path| name_of(path).starts_with(&own)) {
                // Taken from its writer first, in one step: removed file by file, it could get its
                // name when it is half empty.
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
        // Gone where it was renamed; elsewhere there is nothing to do about what cannot be removed.
        let _ = remove(&self.path);
    }
}

/// Create a folder and its parents, as `create_dir_all` does, but never a [`Partial`]: a partial
/// that the signal handler removed must not be created again by the thread that still writes.
pub fn create_folders(folder: &Path) -> io::Result<()> {
    let Some(partial) = folder.ancestors().find(|path| name_of(path).contains(MARK)) else {
        // A parent is a file. `AlreadyExists` would read as if the output itself were there.
        return fs::create_dir_all(folder).map_err(|e| match e.kind() {
            ErrorKind::AlreadyExists => io::Error::new(
                ErrorKind::NotADirectory,
                format!("{} is no folder", folder.display()),
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

/// Lock what was just made; `NotFound` or `WouldBlock` where another process took it for left.
fn lock(path: &Path, is_folder: bool) -> io::Result<Option<File>> {
    if is_folder && !cfg!(unix) {
        return Ok(None);
    }
    let file = File::open(path)?;
    match file.try_lock() {
        // Removed before it was locked, it may stand there no more.
        Ok(()) => path.symlink_metadata().map(|_| Some(file)),
        Err(TryLockError::WouldBlock) => Err(ErrorKind::WouldBlock.into()),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// Remove partials in a folder whose writers are dead: nobody holds their locks.
fn remove_left(folder: &Path) {
    let is_partial = |name: &str| name.starts_with('.') && name.contains(MARK);
    for path in entries(folder).filter(|path| is_partial(&name_of(path))) {
        let is_ours = path
            .symlink_metadata()
            .is_ok_and(|found| found.is_dir() || found.is_file());
        let Some(file) = is_ours.then(|| File::open(&path).ok()).flatten() else {
            continue;
        };
        // Held until it is gone, so that nobody starts to write into it.
        if file.try_lock().is_ok() {
            let _ = remove(&path);
        }
    }
}

/// What [`swap`] asks of the system.
trait Rename {
    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
}

struct System;

impl System {
    /// Rename to a vacant place, atomically where the system can, so that exactly one of several
    /// concurrent writers succeeds.
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

/// Exchange what is at `new` and at `place`, in one step where the system can; else in three, with
/// a way back.
fn swap(new: &Path, place: &Path, system: &dyn Rename) -> io::Result<()> {
    match system.exchange(new, place) {
        Err(e) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput) => {}
        done => return done,
    }
    // A name that nobody takes for left: for a moment it is the only one that the old has.
    let aside = place.with_file_name(format!(".{}.old-{}", name_of(place), std::process::id()));
    system.rename(place, &aside)?;
    if let Err(fault) = system.rename(new, place) {
        return Err(match system.rename(&aside, place) {
            Ok(()) => fault,
            Err(_) => io::Error::new(
                fault.kind(),
                format!("{fault}; what was there is now {}", aside.display()),
            ),
        });
    }
    system.rename(&aside, new)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::{Duration, Instant};

    use super::*;

    /// The folder's names, and what each holds.
    fn state(folder: &Path) -> Vec<(String, String)> {
        let mut found: Vec<_> = entries(folder)
            .map(|p| {
                (
                    name_of(&p),
                    fs::read_to_string(p.join("x")).unwrap_or_default(),
                )
            })
            .collect();
        found.sort();
        found
    }

    fn folder_with(path: &Path, text: &str) {
        fs::create_dir(path).unwrap();
        fs::write(path.join("x"), text).unwrap();
    }

    /// A system without an exchange, whose renames fail where the list says so.
    struct Failing(RefCell<Vec<bool>>);

    impl Rename for Failing {
        fn exchange(&self, _: &Path, _: &Path) -> io::Result<()> {
            Err(ErrorKind::Unsupported.into())
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            if self.0.borrow_mut().remove(0) {
                Err(ErrorKind::StorageFull.into())
            } else {
                fs::rename(from, to)
            }
        }
    }

    #[test]
    fn what_gets_its_name_while_its_writer_is_stopped_is_whole() {
        let root = tempfile::tempdir().unwrap();
        let (old, new) = (root.path().join("a"), root.path().join("b"));
        for round in 0..40 {
            for place in [&old, &new] {
                let partial = Partial::folder(place).unwrap();
                for n in 0..100 {
                    fs::write(partial.path().join(n.to_string()), b"x").unwrap();
                }
                std::thread::scope(|scope| {
                    scope.spawn(|| Partial::remove_own(place));
                    // Now the one and now the other comes first.
                    let begin = Instant::now();
                    while begin.elapsed() < Duration::from_micros(25 * round) {}
                    // One that was removed is not there to be named.
                    let _ = if place == &old {
                        partial.replace()
                    } else {
                        partial.put()
                    };
                });
                if let Ok(found) = fs::read_dir(place) {
                    assert_eq!(found.count(), 100, "round {round}, {}", place.display());
                }
            }
            let _ = fs::remove_dir_all(&new);
        }
        assert!(
            entries(root.path()).all(|path| path == old),
            "{:?}",
            entries(root.path()).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_replacement_that_fails_keeps_the_old() {
        let pair = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        for (fails, expected) in [
            (vec![true], vec![pair("new", "new"), pair("out", "old")]),
            (
                vec![false, true, false],
                vec![pair("new", "new"), pair("out", "old")],
            ),
            (
                vec![false, false, false],
                vec![pair("new", "old"), pair("out", "new")],
            ),
        ] {
            let root = tempfile::tempdir().unwrap();
            let [new, out] = ["new", "out"].map(|name| root.path().join(name));
            folder_with(&new, "new");
            folder_with(&out, "old");
            let fault = swap(&new, &out, &Failing(RefCell::new(fails.clone())));
            assert_eq!(fault.is_err(), fails.contains(&true), "{fails:?}");
            assert_eq!(state(root.path()), expected, "{fails:?}");
        }
        // Even the way back fails: the old is there, and the error says where.
        let root = tempfile::tempdir().unwrap();
        let [new, out] = ["new", "out"].map(|name| root.path().join(name));
        folder_with(&new, "new");
        folder_with(&out, "old");
        let fault = swap(&new, &out, &Failing(RefCell::new(vec![false, true, true])))
            .unwrap_err()
            .to_string();
        let aside = format!(".out.old-{}", std::process::id());
        assert!(
            fault.contains(&format!(
                "what was there is now {}",
                root.path().join(&aside).display()
            )),
            "{fault}"
        );
        assert_eq!(
            state(root.path()),
            [(aside, "old".to_owned()), pair("new", "new")]
        );
    }

    #[test]
    fn a_folder_is_replaced_whole_and_nothing_is_left() {
        let root = tempfile::tempdir().unwrap();
        let out = root.path().join("out");
        folder_with(&out, "old");
        let partial = Partial::folder(&out).unwrap();
        fs::write(partial.path().join("x"), "new").unwrap();
        assert!(
            Partial::folder(&out).unwrap().put().is_err(),
            "something is there"
        );
        partial.replace().unwrap();
        assert_eq!(state(root.path()), [("out".to_owned(), "new".to_owned())]);
        // A partial that has gone away before it is put there.
        let partial = Partial::folder(&out).unwrap();
        fs::remove_dir(partial.path()).unwrap();
        partial.replace().unwrap_err();
        assert_eq!(state(root.path()), [("out".to_owned(), "new".to_owned())]);
    }

    #[cfg(unix)]
    #[test]
    fn what_dead_writers_left_is_removed_and_what_live_ones_write_is_not() {
        let root = tempfile::tempdir().unwrap();
        let left = [
            ".gone.mlpackage.thane-partial-1-0",
            ".out.thane-partial-99-7",
        ]
        .map(|n| root.path().join(n));
        folder_with(&left[0], "half");
        fs::write(&left[1], "half a file").unwrap();
        let others = [".out.partial-1", "out.thane-partial-1-0"].map(|n| root.path().join(n));
        others
            .iter()
            .for_each(|path| folder_with(path, "of others"));
        let live = Partial::folder(&root.path().join("live")).unwrap();
        let file = Partial::file(&root.path().join("out")).unwrap();
        assert!(left.iter().all(|path| !path.exists()), "{left:?}");
        assert!(
            others.iter().all(|path| path.exists())
                && live.path().exists()
                && file.path().is_file()
        );
        let path = live.path().to_owned();
        // A process that dies unlocks and does not clean up.
        let mut live = std::mem::ManuallyDrop::new(live);
        live.lock = None;
        let _ = Partial::file(&root.path().join("third")).unwrap();
        assert!(!path.exists() && file.path().exists());
    }

    #[test]
    fn a_process_removes_what_it_writes_itself() {
        let root = tempfile::tempdir().unwrap();
        let partial = Partial::folder(&root.path().join("out")).unwrap();
        let other = root.path().join(".out.thane-partial-1-0");
        folder_with(&other, "of another process");
        folder_with(&partial.path().join("weights"), "half");
        Partial::remove_own(&root.path().join("out"));
        assert!(!partial.path().exists() && other.exists());
        partial
            .make_folders(&partial.path().join("Data/a/x"))
            .unwrap_err();
        assert!(!partial.path().exists(), "it does not come back");
    }
}
