//! Files of the caches. A file gets its final name only after all of its bytes are on the disk.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::config::Hub;
use crate::error::HubError;
use crate::small::{check, open_regular};

/// Bytes per read. 1 MiB is large enough for the disk and small enough for a smooth progress bar.
pub const CHUNK_BYTES: usize = 1 << 20;

pub fn create_folder(path: &Path) -> Result<(), HubError> {
    fs::create_dir_all(path).map_err(|e| HubError::disk("create the folder", path, e))
}

/// Removes a file or a folder, if it exists.
pub fn remove(path: &Path) -> Result<(), HubError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(e) => Err(e),
    };
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(HubError::disk("remove", path, e)),
        _ => Ok(()),
    }
}

/// Writes a small file atomically: a reader sees the old or the new content, and of several writers
/// one is the last.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), HubError> {
    let write = |incomplete: &Path| {
        let mut file = File::create_new(incomplete)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    replace(path, path, write).map_err(|e| HubError::disk("write", path, e))
}

/// Makes a file under a name beside `near` that nobody else has, and renames it to `path`.
pub fn replace(path: &Path, near: &Path, make: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    /// Names that other processes may have or have left.
    const MOST_NAMES: usize = 1000;
    let name = near.file_name().unwrap_or_default().to_string_lossy();
    for n in 0..MOST_NAMES {
        let incomplete = incomplete(&near.with_file_name(format!("{name}.{n}")));
        let made = make(&incomplete);
        if made.as_ref().is_err_and(is_taken) {
            continue;
        }
        let done = made.and_then(|()| fs::rename(&incomplete, path));
        if done.is_err() {
            let _ = fs::remove_file(&incomplete);
        }
        return done;
    }
    Err(io::Error::from(io::ErrorKind::AlreadyExists))
}

fn is_taken(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AlreadyExists
}

/// Whether a name is one of [`incomplete`].
pub fn is_incomplete(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == INCOMPLETE)
}

/// The extension of files that are not complete.
const INCOMPLETE: &str = "incomplete";

/// The name that a file has until it is complete.
pub fn incomplete(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(INCOMPLETE);
    path.with_file_name(name)
}

/// A file that is being downloaded, with the hash of its bytes so far.
pub struct Growing {
    path: PathBuf,
    file: File,
    hash: Sha256,
    len: u64,
    /// Final length where it is known, for the error of a full disk.
    expected: Option<u64>,
}

impl Growing {
    /// Opens or creates the file. Bytes that are there are read for the hash, unless they are more
    /// than `expected` or nothing is expected: then the file starts empty.
    pub fn open(path: &Path, expected: Option<u64>) -> Result<Self, HubError> {
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true);
        let file = check(path).and_then(|()| options.open(path));
        let file = file.map_err(|e| HubError::disk("write", path, e))?;
        let mut this = Self {
            path: path.to_owned(),
            file,
            hash: Sha256::new(),
            len: 0,
            expected,
        };
        let had = this
            .file
            .metadata()
            .map_err(|e| HubError::disk("read", path, e))?
            .len();
        if expected.is_none_or(|expected| had > expected) {
            this.restart()?;
        } else {
            (this.hash, this.len) =
                hash_reader(&mut this.file).map_err(|e| HubError::disk("read", path, e))?;
        }
        Ok(this)
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// Truncates the file to zero bytes.
    pub fn restart(&mut self) -> Result<(), HubError> {
        self.file
            .set_len(0)
            .map_err(|e| HubError::disk("write", &self.path, e))?;
        self.hash = Sha256::new();
        self.len = 0;
        Ok(())
    }

    pub fn push(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        self.file.write_all(bytes).map_err(|e| self.full(e))?;
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Flushes the bytes to the disk and returns their sha256, hexadecimal.
    pub fn seal(self) -> Result<String, HubError> {
        self.file.sync_all().map_err(|e| self.full(e))?;
        Ok(hex(self.hash))
    }

    fn full(&self, source: io::Error) -> HubError {
        HubError::Disk {
            action: "write",
            path: self.path.clone(),
            cache: None,
            needed: self.expected,
            source,
        }
    }
}

fn hash_reader(from: &mut impl Read) -> io::Result<(Sha256, u64)> {
    let mut hash = Sha256::new();
    let len = io::copy(from, &mut hash)?;
    Ok((hash, len))
}

/// The sha256 of a file, hexadecimal.
pub fn hash_file(path: &Path) -> Result<String, HubError> {
    let hash = open_regular(path).and_then(|mut file| hash_reader(&mut file));
    hash.map(|(hash, _)| hex(hash))
        .map_err(|e| HubError::disk("read", path, e))
}

/// The sha256 of a file, hexadecimal, and its length.
pub fn hash_and_length(path: &Path) -> Result<(String, u64), HubError> {
    let hash = open_regular(path).and_then(|mut file| hash_reader(&mut file));
    hash.map(|(hash, len)| (hex(hash), len))
        .map_err(|e| HubError::disk("read", path, e))
}

/// The sha256 of bytes, hexadecimal.
pub fn hash_of(bytes: &[u8]) -> String {
    hex(Sha256::new_with_prefix(bytes))
}

/// The hash that git gives to bytes as the content of a file.
pub fn git_hash_of(bytes: &[u8]) -> String {
    let header = format!("blob {}\0", bytes.len());
    hex(Sha1::new_with_prefix(header).chain_update(bytes))
}

/// The first bytes of a file, at most `most`.
pub fn beginning(path: &Path, most: u64) -> Result<Vec<u8>, HubError> {
    let mut bytes = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
    read.map_err(|e| HubError::disk("read", path, e))?;
    Ok(bytes)
}

/// The hash that git gives to the content of a file, and the sha1 of its bytes.
pub fn git_hashes(path: &Path) -> Result<[String; 2], HubError> {
    let sums = || {
        let mut file = open_regular(path)?;
        let header = format!("blob {}\0", file.metadata()?.len());
        let mut sums = [Sha1::new_with_prefix(header), Sha1::new()];
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            match file.read(&mut chunk)? {
                0 => return Ok(sums.map(hex)),
                n => sums.iter_mut().for_each(|sum| sum.update(&chunk[..n])),
            }
        }
    };
    sums().map_err(|e| HubError::disk("read", path, e))
}

fn hex(hash: impl Digest) -> String {
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Bytes of a file, or of the files below a folder. Symbolic links count 0.
pub fn folder_bytes(path: &Path) -> u64 {
    let Ok(meta) = fs::symlink_metadata(path) else {
        return 0;
    };
    if meta.is_file() {
        return meta.len();
    }
    if !meta.is_dir() {
        return 0;
    }
    fs::read_dir(path).map_or(0, |entries| {
        entries.flatten().map(|e| folder_bytes(&e.path())).sum()
    })
}

/// Bytes of the files below a folder that have no other name elsewhere. Symbolic links count 0.
pub fn own_bytes(folder: &Path) -> u64 {
    let files = files_below(folder).unwrap_or_default();
    let files = files.iter().filter_map(|file| {
        let found = fs::symlink_metadata(folder.join(file)).ok()?;
        found.is_file().then_some(found)
    });
    files.filter(has_one_name).map(|found| found.len()).sum()
}

#[cfg(unix)]
fn has_one_name(file: &fs::Metadata) -> bool {
    std::os::unix::fs::MetadataExt::nlink(file) == 1
}

#[cfg(not(unix))]
fn has_one_name(_: &fs::Metadata) -> bool {
    true
}

/// The files and links below a folder, sorted, relative to it. A folder that does not exist has
/// none.
pub fn files_below(folder: &Path) -> Result<Vec<PathBuf>, HubError> {
    let (mut files, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(below) = folders.pop() {
        let at = folder.join(&below);
        let entries = match fs::read_dir(&at) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(HubError::disk("read", &at, e)),
        };
        for entry in entries {
            let entry = entry.map_err(|e| HubError::disk("read", &at, e))?;
            let kind = entry
                .file_type()
                .map_err(|e| HubError::disk("read", &at, e))?;
            let path = below.join(entry.file_name());
            match kind.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files.sort();
    Ok(files)
}

/// A file lock between processes. The system releases it when the process ends, so no lock is
/// ever stale.
pub struct Lock(#[expect(dead_code, reason = "held for its lock")] Option<File>);

impl Lock {
    /// Takes the lock, and waits while another process holds it.
    pub fn wait(path: &Path, what: &str, hub: &Hub) -> Result<Self, HubError> {
        let mut told = false;
        loop {
            if let Some(lock) = Self::try_take(path)? {
                return Ok(lock);
            }
            if !told {
                hub.progress.note(&format!(
                    "{what}: waiting for another process that pulls it"
                ));
                told = true;
            }
            hub.sleep(Duration::from_millis(100), what)?;
        }
    }

    /// Takes the lock; `None` while another process holds it.
    pub fn try_take(path: &Path) -> Result<Option<Self>, HubError> {
        if let Some(folder) = path.parent() {
            create_folder(folder)?;
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let file = check(path).and_then(|()| options.open(path));
        let file = file.map_err(|e| HubError::disk("lock", path, e))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(Some(file)))),
            Err(TryLockError::WouldBlock) => Ok(None),
            // Some network file systems have no locks. Two downloads at once then waste work, but
            // every file is still checked before it gets its name.
            Err(TryLockError::Error(_)) => Ok(Some(Self(None))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growing_file_goes_on_with_its_hash() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.incomplete");
        Growing::open(&path, Some(6)).unwrap().push(b"abc").unwrap();
        let mut again = Growing::open(&path, Some(6)).unwrap();
        assert_eq!(again.len(), 3);
        again.push(b"def").unwrap();
        // printf abcdef | sha256sum
        let want = "bef57ec7f53a6d40beb640a780a639c83bc29ac8a9816f1fc6c5c6dcd93c4721";
        assert_eq!(again.seal().unwrap(), want);
        assert_eq!(hash_file(&path).unwrap(), want);
        assert_eq!(
            Growing::open(&path, Some(5)).unwrap().len(),
            0,
            "longer than expected: starts again"
        );
    }

    #[test]
    fn a_small_file_has_the_hash_that_git_gives_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        fs::write(&path, "hello\n").unwrap();
        // printf 'hello\n' | git hash-object --stdin; printf 'hello\n' | sha1sum
        let want = [
            "ce013625030ba8dba906f756967f9e9ca394464a",
            "f572d396fae9206628714fb2ce00f72e94f2258f",
        ];
        assert_eq!(git_hashes(&path).unwrap(), want);
    }

    /// Runs `work` on several threads, each many times.
    fn at_once(work: impl Fn(usize) + Sync) {
        std::thread::scope(|scope| {
            for i in 0..8 {
                let work = &work;
                scope.spawn(move || (0..50).for_each(|_| work(i)));
            }
        });
    }

    #[test]
    fn a_file_may_have_several_writers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("main");
        // A process that was killed has left one.
        fs::write(folder.path().join("main.0.incomplete"), "x").unwrap();
        at_once(|i| {
            write_whole(&path, &[b'0' + i as u8; 40]).unwrap();
            let read = fs::read(&path).unwrap();
            assert!(read.len() == 40 && read.iter().all(|byte| *byte == read[0]));
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_link_that_is_made_again_is_always_there() {
        let folder = tempfile::tempdir().unwrap();
        let repo = crate::layout::RepoFolder::new(folder.path(), "org/name");
        let etags = ["a".repeat(64), "b".repeat(64)];
        for etag in &etags {
            create_folder(repo.blob(etag).parent().unwrap()).unwrap();
            fs::write(repo.blob(etag), etag).unwrap();
        }
        let commit = "0".repeat(40);
        at_once(|i| {
            let name = repo.link(&commit, "x/y.bin", &etags[i % 2]).unwrap();
            let read = fs::read_to_string(name).unwrap();
            assert!(etags.contains(&read));
        });
        let blobs = fs::read_dir(repo.path.join("blobs")).unwrap();
        assert_eq!(blobs.count(), 2, "nothing is left");
    }

    #[test]
    fn a_lock_is_held_by_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/lock");
        let held = Lock::try_take(&path).unwrap();
        assert!(held.is_some());
        assert!(Lock::try_take(&path).unwrap().is_none());
        drop(held);
        assert!(Lock::try_take(&path).unwrap().is_some());
    }
}
