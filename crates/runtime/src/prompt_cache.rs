//! Pages of prompts in a folder, so that they outlive the program.
//!
//! A file holds a page: a magic number with the version of the format, a sha256, and the bytes. Its
//! name is the sha256 of all tokens up to its end, and the folder is that of the model. The sha256
//! in the file is that of the magic number, of what the pages of the model depend on, of the name
//! and of the bytes, so a page under the name of another, or in the folder of another model, is not
//! one. Files are written whole under another name first, so a program that is killed leaves
//! nothing that passes for a page. What does not have its sha256 is deleted.
//!
//! Pages tell what users wrote, so files and folders are readable for this user alone. Only regular
//! files are opened: a pipe would be waited for.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};
use thane_engine::pages::PageStore;
use thane_mil::package::{check_own_folder, create_private_folders, open_regular, private_options};

const MAGIC: &[u8; 8] = b"THANEKV2";
const HASH_BYTES: usize = 32;
const HEAD_BYTES: u64 = (MAGIC.len() + HASH_BYTES) as u64;
/// Ends the names of pages.
const SUFFIX: &str = ".page";

/// The pages of one model in a folder, of at most so many bytes in all; those that were not used
/// for longest are deleted first.
pub struct PromptCache {
    folder: PathBuf,
    /// sha256 of what the pages depend on.
    model: [u8; HASH_BYTES],
    limit: u64,
    n_bytes: u64,
    /// Bytes and last use of each page, by name.
    known: HashMap<String, (u64, u64)>,
    /// Names by last use.
    by_use: BTreeMap<u64, String>,
    clock: u64,
    /// Tells what could not be written, once.
    complain: Option<Complain>,
}

/// Takes a sentence for the user.
pub type Complain = Box<dyn FnOnce(&str) + Send>;

impl PromptCache {
    /// The pages of a model in `folder`, which is made if it does not exist. `model` says what the
    /// pages depend on: they are not those of another model or arithmetic.
    ///
    /// # Errors
    ///
    /// If the folder cannot be made or read, or that of the model in it is a link or another
    /// user's: whoever has it could read pages, or plant others.
    pub fn open(folder: &Path, model: &str, limit: u64, complain: Complain) -> io::Result<Self> {
        let model: [u8; HASH_BYTES] = Sha256::digest(model).into();
        let folder = folder.join(&hex(&model)[..32]);
        create_private_folders(&folder)?;
        check_own_folder(&folder).map_err(|error| {
            let said = format!("{}: {error}", folder.display());
            io::Error::new(error.kind(), said)
        })?;
        make_private(&folder);
        let mut found: Vec<(SystemTime, String, u64)> = Vec::new();
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let data = entry.metadata()?;
            // Of a link this is the link itself.
            if !data.is_file() {
                continue;
            }
            if !name.ends_with(SUFFIX) {
                // What a program that was killed did not finish.
                if name.ends_with(UNFINISHED) && is_old(&data) {
                    let _ = fs::remove_file(entry.path());
                }
                continue;
            }
            let written = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            found.push((written, name, data.len()));
        }
        found.sort();
        let mut cache = Self {
            folder,
            model,
            limit,
            n_bytes: 0,
            known: HashMap::new(),
            by_use: BTreeMap::new(),
            clock: 0,
            complain: Some(complain),
        };
        for (_, name, n_bytes) in found {
            cache.note(&name, n_bytes);
        }
        cache.shrink();
        Ok(cache)
    }

    /// Counts a page as used now.
    fn note(&mut self, name: &str, n_bytes: u64) {
        self.forget(name);
        self.clock += 1;
        self.n_bytes += n_bytes;
        self.known.insert(name.to_owned(), (n_bytes, self.clock));
        self.by_use.insert(self.clock, name.to_owned());
    }

    fn forget(&mut self, name: &str) {
        if let Some((n_bytes, used)) = self.known.remove(name) {
            self.n_bytes -= n_bytes;
            self.by_use.remove(&used);
        }
    }

    /// Deletes pages until the rest is within the limit.
    fn shrink(&mut self) {
        while self.n_bytes > self.limit
            && let Some((_, name)) = self.by_use.pop_first()
        {
            self.forget(&name);
            let _ = fs::remove_file(self.folder.join(name));
        }
    }

    /// The sha256 of a page of this model under this name.
    fn hash(&self, name: &str, bytes: &[u8]) -> [u8; HASH_BYTES] {
        let mut sha = Sha256::new();
        // All but the bytes have a fixed length.
        sha.update(MAGIC);
        sha.update(self.model);
        sha.update(name);
        sha.update(bytes);
        sha.finalize().into()
    }

    /// The bytes of a page. A file of another length is not one, however long it is.
    fn read(&self, name: &str, n_bytes: usize) -> io::Result<Vec<u8>> {
        let path = self.folder.join(name);
        if path.is_symlink() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut file = open_regular(&path)?;
        if file.metadata()?.len() != HEAD_BYTES + n_bytes as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let (mut magic, mut hash) = ([0; MAGIC.len()], [0; HASH_BYTES]);
        file.read_exact(&mut magic)?;
        file.read_exact(&mut hash)?;
        let mut bytes = Vec::new();
        file.take(n_bytes as u64).read_to_end(&mut bytes)?;
        if magic != *MAGIC || self.hash(name, &bytes) != hash {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(bytes)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        // A model that is loaded again writes beside the one before, and so may other machines.
        let id = random_name();
        let part = self.folder.join(format!("{name}.{id}{UNFINISHED}"));
        let created = private_options().write(true).create_new(true).open(&part);
        let written = created.and_then(|mut file| {
            file.write_all(MAGIC)?;
            file.write_all(&self.hash(name, bytes))?;
            file.write_all(bytes)?;
            fs::rename(&part, self.folder.join(name))
        });
        if written.is_err() {
            let _ = fs::remove_file(&part);
        }
        written
    }
}

/// Closes a folder that an earlier version made to other users, if it is this user's.
fn make_private(folder: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let _ = fs::set_permissions(folder, fs::Permissions::from_mode(0o700));
    }
    #[cfg(not(unix))]
    let _ = folder;
}

/// Ends the names of pages that are being written.
const UNFINISHED: &str = ".part";

/// A name that no other writer has.
fn random_name() -> String {
    let random = RandomState::new().build_hasher().finish();
    format!("{}-{random:016x}", std::process::id())
}

/// Whether nobody is writing a file any more.
fn is_old(data: &fs::Metadata) -> bool {
    const AGE: u64 = 3600;
    let age = data.modified().ok().and_then(|time| time.elapsed().ok());
    age.is_some_and(|age| age.as_secs() > AGE)
}

/// The name of the page that ends with the last of these tokens.
fn name_of(tokens: &[u32]) -> String {
    let mut sha = Sha256::new();
    tokens
        .iter()
        .for_each(|token| sha.update(token.to_le_bytes()));
    hex(&sha.finalize()) + SUFFIX
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl PageStore for PromptCache {
    fn has(&mut self, tokens: &[u32]) -> bool {
        self.known.contains_key(&name_of(tokens))
    }

    fn get(&mut self, tokens: &[u32], n_bytes: usize) -> Option<Vec<u8>> {
        let name = name_of(tokens);
        self.known.get(&name)?;
        match self.read(&name, n_bytes) {
            Ok(bytes) => {
                self.note(&name, HEAD_BYTES + bytes.len() as u64);
                Some(bytes)
            }
            Err(_) => {
                self.forget(&name);
                let _ = fs::remove_file(self.folder.join(name));
                None
            }
        }
    }

    fn put(&mut self, tokens: &[u32], bytes: &[u8]) {
        let name = name_of(tokens);
        match self.write(&name, bytes) {
            Ok(()) => {
                self.note(&name, HEAD_BYTES + bytes.len() as u64);
                self.shrink();
            }
            Err(error) => {
                if let Some(complain) = self.complain.take() {
                    let place = self.folder.display();
                    complain(&format!("{place}: prompts are not kept: {error}"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &Path, limit: u64) -> PromptCache {
        PromptCache::open(folder, "model", limit, Box::new(|_| {})).unwrap()
    }

    #[test]
    fn pages_outlive_the_program_and_stay_within_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let mut cache = open(folder.path(), 3 * (HEAD_BYTES + 100));
        let pages: Vec<[u32; 3]> = (0..4).map(|i| [i, 7, 9]).collect();
        for (i, page) in pages.iter().take(3).enumerate() {
            cache.put(page, &[i as u8; 100]);
        }
        assert_eq!(cache.get(&pages[0], 100), Some(vec![0; 100]));
        cache.put(&pages[3], &[3; 100]);
        // The second was not used for longest.
        let held: Vec<bool> = pages.iter().map(|page| cache.has(page)).collect();
        assert_eq!(held, [true, false, true, true]);
        let mut again = open(folder.path(), 1 << 20);
        assert_eq!(again.get(&pages[3], 100), Some(vec![3; 100]));
        assert_eq!(again.get(&pages[1], 100), None);
        let other = PromptCache::open(folder.path(), "other", 1 << 20, Box::new(|_| {}));
        assert!(!other.unwrap().has(&pages[3]));
        let mut small = open(folder.path(), 150);
        let held: Vec<bool> = pages.iter().map(|page| small.has(page)).collect();
        assert_eq!(held.iter().filter(|held| **held).count(), 1);
    }

    #[test]
    fn damaged_pages_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let mut cache = open(folder.path(), 1 << 20);
        let tokens = [1, 2, 3];
        let path = cache.folder.join(name_of(&tokens));
        let whole = {
            cache.put(&tokens, &[5; 100]);
            fs::read(&path).unwrap()
        };
        let mut flipped = whole.clone();
        flipped[90] ^= 1;
        for damaged in [
            &flipped[..],
            &whole[..60],
            &whole[..20],
            &[],
            &[whole.clone(), vec![0]].concat(),
        ] {
            fs::write(&path, damaged).unwrap();
            let mut cache = open(folder.path(), 1 << 20);
            assert_eq!((cache.get(&tokens, 100), path.exists()), (None, false));
        }
    }

    /// Whoever plants a page can give it the right hash, but not another length.
    #[test]
    fn pages_have_the_length_that_the_model_needs() {
        let folder = tempfile::tempdir().unwrap();
        let mut cache = open(folder.path(), 1 << 20);
        let tokens = [1, 2, 3];
        for n_bytes in [0, 99, 101, 1 << 19] {
            cache.put(&tokens, &vec![5; n_bytes]);
            assert_eq!(cache.get(&tokens, 100), None, "{n_bytes}");
            assert!(!cache.has(&tokens), "{n_bytes}");
        }
    }

    #[test]
    fn a_page_is_bound_to_its_name_and_its_model() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = ([1, 2, 3], [1, 2, 4]);
        let swapped = |from: &Path, to: &Path| {
            let (x, y) = (fs::read(from).unwrap(), fs::read(to).unwrap());
            fs::write(from, y).unwrap();
            fs::write(to, x).unwrap();
        };
        let mut cache = open(folder.path(), 1 << 20);
        let paths = [a, b].map(|tokens| cache.folder.join(name_of(&tokens)));
        cache.put(&a, &[5; 100]);
        cache.put(&b, &[6; 100]);
        swapped(&paths[0], &paths[1]);
        assert_eq!([cache.get(&a, 100), cache.get(&b, 100)], [None, None]);
        assert!(!paths[0].exists() && !paths[1].exists());

        let other = |folder: &Path| {
            PromptCache::open(folder, "model int8", 1 << 20, Box::new(|_| {})).unwrap()
        };
        let mut int8 = other(folder.path());
        cache.put(&a, &[5; 100]);
        int8.put(&a, &[7; 100]);
        swapped(&paths[0], &int8.folder.join(name_of(&a)));
        assert_eq!([cache.get(&a, 100), int8.get(&a, 100)], [None, None]);
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_regular_file_is_no_page() {
        use std::os::unix::fs::symlink;
        use std::os::unix::net::UnixListener;
        let folder = tempfile::tempdir().unwrap();
        let pipe = |path: &Path| {
            let made = std::process::Command::new("mkfifo").arg(path).status();
            assert!(made.unwrap().success());
        };
        let [elsewhere, file, socket] = ["pipe", "file", "s"].map(|name| folder.path().join(name));
        pipe(&elsewhere);
        fs::write(&file, "kept").unwrap();
        let makes: [&dyn Fn(&Path); 6] = [
            &pipe,
            &|path| symlink(&elsewhere, path).unwrap(),
            &|path| symlink("/dev/zero", path).unwrap(),
            &|path| symlink(&file, path).unwrap(),
            &|path| {
                // A socket is bound to a short path only.
                drop(UnixListener::bind(&socket).unwrap());
                fs::rename(&socket, path).unwrap();
            },
            &|path| fs::create_dir(path).unwrap(),
        ];
        let tokens = [1, 2, 3];
        for (i, make) in makes.into_iter().enumerate() {
            // There when the folder is opened, and put there later.
            let place = folder.path().join(i.to_string());
            let path = open(&place, 1 << 20).folder.join(name_of(&tokens));
            make(&path);
            let mut cache = open(&place, 1 << 20);
            assert_eq!((cache.has(&tokens), cache.get(&tokens, 100)), (false, None));
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
            cache.put(&tokens, &[5; 100]);
            assert_eq!(cache.get(&tokens, 100), Some(vec![5; 100]));
            fs::remove_file(&path).unwrap();
            make(&path);
            assert_eq!(cache.get(&tokens, 100), None, "{i}");
        }
        assert_eq!(fs::read(&file).unwrap(), b"kept");
    }

    /// Whoever has the folder of a model could read pages, or plant others.
    #[cfg(unix)]
    #[test]
    fn the_folder_of_a_model_is_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let (place, elsewhere) = (folder.path().join("place"), folder.path().join("elsewhere"));
        let of_model = open(&place, 1 << 20).folder;
        fs::create_dir(&elsewhere).unwrap();
        fs::remove_dir(&of_model).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &of_model).unwrap();
        let refused = PromptCache::open(&place, "model", 1 << 20, Box::new(|_| {}));
        let said = refused.err().unwrap().to_string();
        assert!(
            said.ends_with("expected a folder of this user, found a link"),
            "{said}"
        );
        assert!(said.starts_with(of_model.to_str().unwrap()), "{said}");
        // The folder itself may be one: whoever starts the program chose it.
        fs::remove_file(&of_model).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&place, &link).unwrap();
        open(&link, 1 << 20);
    }

    #[cfg(unix)]
    #[test]
    fn pages_are_for_this_user_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let place = folder.path().join("new/pages");
        let mut cache = open(&place, 1 << 20);
        cache.put(&[1, 2, 3], &[5; 100]);
        let page = cache.folder.join(name_of(&[1, 2, 3]));
        assert_eq!(
            (mode(&place), mode(&cache.folder), mode(&page)),
            (0o700, 0o700, 0o600)
        );
        // As an earlier version left it.
        fs::set_permissions(&cache.folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(mode(&open(&place, 1 << 20).folder), 0o700);
    }
}
