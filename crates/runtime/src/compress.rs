//! Compresses the weights of programs that are written, and keeps finished tensors in files, so
//! that memory stays that of a few tensors and a run that was killed goes on.

use std::cmp::Reverse;
use std::fmt;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use thane_compile::compress::job::{Made, Memory, Store};
use thane_compile::compress::program::{Compression, Importance, Product, Settings};
use thane_compile::compress::report::Report;
use thane_compile::weights::Constant;
use thane_mil::budget::{Budget, Reservation};
use thane_mil::data::Bytes;
use thane_mil::opset::Opset;
use thane_mil::package::{Partial, create_folders, map};
use thane_mil::program::Program;
use thane_models::Table;

use crate::error::RuntimeError;
use crate::observer::Observer;
use crate::passes::in_opset;

/// The module that gives the logits of a language model.
const HEAD: &str = "lm_head";

/// How the weights of a program are compressed.
#[derive(Clone)]
pub struct CompressOptions {
    /// Encoding, scales, and what is too small.
    pub settings: Settings,
    /// Threads that compute.
    pub threads: usize,
    /// Where finished tensors are kept.
    pub store: Arc<dyn Store>,
    /// How much errors of weights count.
    pub importance: Arc<dyn Importance>,
    /// The limit on memory. Fewer threads compute where not all of them fit.
    pub budget: Budget,
}

impl CompressOptions {
    /// Options that keep finished tensors in memory.
    pub fn new(settings: Settings, threads: usize) -> Self {
        Self {
            settings,
            threads,
            store: Arc::new(Memory::default()),
            importance: Arc::new(()),
            budget: Budget::unlimited(),
        }
    }

    /// The oldest opset that has what these options write.
    pub fn oldest_opset(&self) -> Opset {
        self.settings.oldest_opset()
    }
}

impl fmt::Debug for CompressOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            settings, threads, ..
        } = self;
        write!(f, "CompressOptions({settings:?}, {threads} threads)")
    }
}

/// A program that was compressed.
pub struct Compressed {
    /// The program.
    pub program: Program,
    /// What tensors and tables became.
    pub(crate) compression: Compression,
}

impl Compressed {
    /// An error if no weight is compressed, which does not compute codes.
    pub fn check(&self) -> Result<(), RuntimeError> {
        let left = self.compression.left();
        match self.compression.is_empty() {
            false => Ok(()),
            true => Err(RuntimeError::NothingCompressed {
                n: left.len(),
                reason: left
                    .first()
                    .map_or("there are none", |left| &left.reason)
                    .to_owned(),
            }),
        }
    }

    /// What was done, computed now if it is not yet.
    pub fn report(&self) -> Result<Report, RuntimeError> {
        Ok(self.compression.report()?)
    }
}

/// The program with compressed weights, and tables of rows that it does not have. A program in an
/// opset that lacks the ops is written in the first that has them, unless `is_pinned`.
pub fn compress(
    program: &Program,
    is_pinned: bool,
    options: &CompressOptions,
    tables: &[Table],
    observer: &dyn Observer,
) -> Result<Compressed, RuntimeError> {
    program.check_files()?;
    let (newer, compression) = begun((program, tables), is_pinned, options)?;
    let (n_threads, _held) = threads_that_fit(&compression, options)?;
    compression.run(n_threads, &|done, all| {
        observer.progress("compressing", done as u64, all as u64);
    })?;
    Ok(Compressed {
        program: compression.written(newer.as_ref().unwrap_or(program))?,
        compression,
    })
}

/// As many threads as compute the largest tensors within the budget, and what they take.
fn threads_that_fit(
    compression: &Compression,
    options: &CompressOptions,
) -> Result<(usize, Reservation), RuntimeError> {
    compression.decide(options.threads);
    let jobs = compression.jobs()?;
    let mut sizes: Vec<usize> = jobs.iter().map(|job| job.peak_bytes()).collect();
    sizes.sort_unstable_by_key(|n_bytes| Reverse(*n_bytes));
    let reserve = |n: usize| {
        let n_bytes = sizes
            .iter()
            .take(n)
            .fold(0usize, |a, b| a.saturating_add(*b));
        let what = || "compressing the largest weight".to_owned();
        options.budget.reserve(n_bytes, what)
    };
    for n in (2..=options.threads).rev() {
        if let Ok(held) = reserve(n) {
            return Ok((n, held));
        }
    }
    Ok((1, reserve(1)?))
}

/// As [`compress`], but codes are computed when they are read, which pricing does not do: of the
/// weights, at most samples are read, where they decide on scales.
pub fn compress_late(
    program: &Program,
    tables: &[Table],
    options: &CompressOptions,
) -> Result<Compressed, RuntimeError> {
    let options = &CompressOptions {
        importance: Arc::new(AnyRange(Arc::clone(&options.importance))),
        ..options.clone()
    };
    let (newer, compression) = begun((program, tables), false, options)?;
    compression.decide(options.threads);
    Ok(Compressed {
        program: compression.written(newer.as_ref().unwrap_or(program))?,
        compression,
    })
}

/// Says that all activations are of one size, on which no price depends.
struct AnyRange(Arc<dyn Importance>);

impl Importance for AnyRange {
    fn of(&self, product: &Product<'_>, n_inputs: usize) -> Option<Arc<[f32]>> {
        self.0.of(product, n_inputs)
    }

    fn range(&self, _: &Product<'_>) -> Option<f32> {
        Some(1.0)
    }
}

/// The program in a newer opset if it needs one, and what its weights and these tables are to
/// become.
fn begun(
    (program, tables): (&Program, &[Table]),
    is_pinned: bool,
    options: &CompressOptions,
) -> Result<(Option<Program>, Compression), RuntimeError> {
    let newer = in_newer_opset(program, is_pinned, options)?;
    let mut compression = of(newer.as_ref().unwrap_or(program), options)?;
    let is_unknown = compression.n_quantized() == 0 && !compression.is_empty();
    if options.settings.activations && is_unknown {
        return Err(RuntimeError::NoRanges);
    }
    for table in tables {
        if let [data] = &table.parts[..] {
            let rows = Constant {
                dtype: table.dtype,
                shape: vec![table.n_rows, table.n_columns],
                data: data.clone(),
            };
            compression.add_table(&table.input, &rows);
        }
    }
    Ok((newer, compression))
}

/// The relative error of a program's weights, estimated from samples of some of them.
pub fn sampled_error(program: &Program, options: &CompressOptions) -> Result<f64, RuntimeError> {
    /// Tensors that are sampled.
    const MOST: usize = 48;
    let newer = in_newer_opset(program, false, options)?;
    let compression = of(newer.as_ref().unwrap_or(program), options)?;
    Ok(compression.sampled_error(MOST, options.threads)?)
}

fn of(program: &Program, options: &CompressOptions) -> Result<Compression, RuntimeError> {
    let store = Arc::clone(&options.store);
    let settings = Settings {
        head: Some(HEAD),
        ..options.settings
    };
    let importance = &*options.importance;
    Ok(Compression::weighted(program, settings, store, importance)?)
}

/// The program in the first opset that has the ops, if its own lacks them and may change.
fn in_newer_opset(
    program: &Program,
    is_pinned: bool,
    options: &CompressOptions,
) -> Result<Option<Program>, RuntimeError> {
    let oldest = options.oldest_opset();
    let is_old = program.functions().iter().any(|f| f.opset < oldest);
    match is_old && !is_pinned {
        true => Ok(Some(in_opset(program, Some(oldest))?)),
        false => Ok(None),
    }
}

/// Keeps finished tensors in a folder, a file for each, which are mapped.
///
/// A file has a line with a hash of what follows, the error, the sum of squares and the lengths of
/// the parts, then the parts. It is written under another name first, so that a file is whole or
/// not there; what a disk damaged is found by the hash, and computed again.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// A store in the folder at `path`, which is made when something is saved.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Removes the files of finished tensors, and the folder if nothing else is in it.
    pub fn remove(&self) {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let own = entries.filter(|entry| is_tensor(&entry.file_name().to_string_lossy()));
        // What is left costs space, and is found again by the next run.
        own.for_each(|entry| drop(fs::remove_file(entry.path())));
        let _ = fs::remove_dir(&self.path);
    }

    /// Bytes of the finished tensors.
    pub fn bytes(&self) -> u64 {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let lens = entries.filter_map(|entry| Some(entry.metadata().ok()?.len()));
        lens.sum()
    }

    fn write(&self, file: &Path, made: &Made) -> std::io::Result<()> {
        create_folders(&self.path)?;
        let lengths: Vec<String> = made.parts.iter().map(|p| p.len().to_string()).collect();
        let numbers = format!(
            "{:016x} {:016x} {}\n",
            made.error.to_bits(),
            made.energy.to_bits(),
            lengths.join(" ")
        );
        let mut hasher = Sha256::new();
        hasher.update(&numbers);
        made.parts
            .iter()
            .for_each(|part| hasher.update(part.as_slice()));
        let line = format!("{} {numbers}", hex(&hasher));
        let partial = Partial::file(file)?;
        let mut out = fs::File::create(partial.path())?;
        out.write_all(line.as_bytes())?;
        made.parts
            .iter()
            .try_for_each(|part| out.write_all(part.as_slice()))?;
        drop(out);
        partial.replace()
    }
}

/// True for the name of a finished tensor, and of one that was being written.
fn is_tensor(name: &str) -> bool {
    /// Digits of a key.
    const DIGITS: usize = 64;
    let name = name.strip_prefix('.').unwrap_or(name);
    let is_key = |key: &str| key.bytes().all(|b| b.is_ascii_hexdigit());
    let split = name.split_at_checked(DIGITS);
    split.is_some_and(|(key, end)| is_key(key) && (end.is_empty() || is_partial_end(end)))
}

fn is_partial_end(end: &str) -> bool {
    end.starts_with(".thane-partial-")
}

impl Store for Folder {
    fn load(&self, key: &str) -> Option<Made> {
        let file = self.path.join(key);
        let bytes = file.is_file().then(|| map(&file).ok())??;
        read(&bytes)
    }

    fn save(&self, key: &str, made: Made) -> Made {
        let file = self.path.join(key);
        // A disk that is full is named when the package is written.
        match self.write(&file, &made) {
            Ok(()) => self.load(key).unwrap_or(made),
            Err(_) => made,
        }
    }
}

/// What a file says; `None` if it is not what is written.
fn read(bytes: &Bytes) -> Option<Made> {
    let head = bytes.as_slice();
    let end = head.iter().take(256).position(|b| *b == b'\n')?;
    let (hash, numbers) = std::str::from_utf8(&head[..end]).ok()?.split_once(' ')?;
    let mut hasher = Sha256::new();
    hasher.update(&head[hash.len() + 1..]);
    if hex(&hasher) != hash {
        return None;
    }
    let mut words = numbers.split(' ');
    let mut number = || Some(f64::from_bits(u64::from_str_radix(words.next()?, 16).ok()?));
    let (error, energy) = (number()?, number()?);
    let mut at = end + 1;
    let mut parts = Vec::new();
    for len in words {
        let next = at.checked_add(len.parse().ok()?)?;
        parts.push(bytes.slice(at..next)?);
        at = next;
    }
    (at == bytes.len()).then_some(Made {
        parts,
        error,
        energy,
    })
}

fn hex(hasher: &Sha256) -> String {
    let digest = hasher.clone().finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded_and_what_is_damaged_is_not() {
        let home = tempfile::tempdir().unwrap();
        let store = Folder::new(home.path().join("codes"));
        assert!(store.load(&"a".repeat(64)).is_none());
        let made = Made {
            parts: vec![Bytes::new(vec![1, 2, 3]), Bytes::new(vec![10])],
            error: 0.25,
            energy: 3.0,
        };
        let (key, other) = ("a".repeat(64), "b".repeat(64));
        store.save(&key, made);
        let read = store.load(&key).unwrap();
        let parts: Vec<&[u8]> = read.parts.iter().map(Bytes::as_slice).collect();
        assert_eq!(parts, [&[1, 2, 3][..], &[10]]);
        assert_eq!((read.error, read.energy), (0.25, 3.0));
        let file = home.path().join("codes").join(&key);
        let whole = fs::read(&file).unwrap();
        drop(read);
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        let cut = &whole[..whole.len() - 1];
        for damaged in [cut, b"", b"no numbers\n", &[0; 300], &flipped] {
            fs::write(home.path().join("codes").join(&other), damaged).unwrap();
            assert!(store.load(&other).is_none());
        }
        // Files of others stay.
        let (thesis, partial) = (
            home.path().join("codes/thesis.txt"),
            home.path().join("codes"),
        );
        let partial = partial.join(format!(".{key}.thane-partial-12-0"));
        for path in [&thesis, &partial] {
            fs::write(path, "x").unwrap();
        }
        store.remove();
        assert!(thesis.exists() && !file.exists() && !partial.exists());
        fs::remove_file(&thesis).unwrap();
        store.remove();
        assert!(!home.path().join("codes").exists());
    }
}
