//! The parts of one tensor, computed once: when they are first read, or before, by [`run`].
//!
//! A [`Job`] knows the types and lengths of its parts at once, so that programs are compressed,
//! audited and priced without a weight being read. All uses of a tensor share its job.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use sha2::{Digest, Sha256};
use thane_mil::data::{Bytes, Data, Packed, Source};
use thane_mil::types::DType;

use super::values::{Coded, Matrix, Values};
use super::{Blocks, Codes, Encoding, Part, integers, palette, sparse, vectors};

/// The version of the codes that methods compute, a part of every key of a [`Store`].
const METHODS: u32 = 2;

/// A tensor that is to be compressed.
#[derive(Clone)]
pub struct Tensor {
    /// For messages.
    pub name: String,
    /// Element type, fp16 or fp32.
    pub dtype: DType,
    /// Axes.
    pub matrix: Matrix,
    /// Content.
    pub data: Data,
    /// How much an error counts, by input; empty where all count the same.
    pub importance: Arc<[f32]>,
}

/// A tensor that cannot be compressed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "weight `{name}`: expected finite numbers, found {found} at element {at}: convert the model \
     from a checkpoint without it"
)]
pub struct NotFinite {
    /// Name of the tensor.
    pub name: String,
    /// `inf`, `-inf` or `NaN`.
    pub found: String,
    /// Index of the element.
    pub at: usize,
}

/// Computed parts of a tensor.
#[derive(Clone, Debug)]
pub struct Made {
    /// Bytes of each part, in the order of [`Encoding::parts`].
    pub parts: Vec<Bytes>,
    /// `sum (w - q)^2` of the weights `w` and what they became.
    pub error: f64,
    /// `sum w^2`.
    pub energy: f64,
}

impl Made {
    /// The error relative to the root mean square of the weights.
    pub fn relative_error(&self) -> f64 {
        match self.energy > 0.0 {
            true => (self.error / self.energy).sqrt(),
            false => 0.0,
        }
    }
}

/// Keeps computed parts by a key, which names the content of a tensor and its encoding.
pub trait Store: Send + Sync {
    /// What was saved under the key.
    fn load(&self, key: &str) -> Option<Made>;

    /// Saves what was computed, and returns it as it is kept.
    fn save(&self, key: &str, made: Made) -> Made;
}

/// Keeps parts in memory.
#[derive(Default)]
pub struct Memory(Mutex<std::collections::HashMap<String, Made>>);

impl Store for Memory {
    fn load(&self, key: &str) -> Option<Made> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(key).cloned()
    }

    fn save(&self, key: &str, made: Made) -> Made {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.entry(key.to_owned()).or_insert(made).clone()
    }
}

/// One tensor in one encoding.
pub struct Job {
    tensor: Tensor,
    encoding: Encoding,
    has_scales: bool,
    parts: Vec<Part>,
    store: Arc<dyn Store>,
    made: OnceLock<Result<Made, NotFinite>>,
    /// The sources of the parts that somebody holds: all uses of a part are one constant.
    sources: Mutex<Vec<Weak<Lazy>>>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Job({} as {})", self.tensor.name, self.encoding)
    }
}

impl Job {
    /// A job that computes nothing yet. The encoding must fit the tensor.
    pub fn new(
        tensor: Tensor,
        encoding: Encoding,
        has_scales: bool,
        store: Arc<dyn Store>,
    ) -> Arc<Self> {
        let parts = encoding.parts(&tensor.matrix, tensor.dtype, has_scales);
        let sources = Mutex::new(parts.iter().map(|_| Weak::new()).collect());
        Arc::new(Self {
            tensor,
            encoding,
            has_scales,
            parts,
            store,
            made: OnceLock::new(),
            sources,
        })
    }

    /// Number of weights.
    pub fn n_weights(&self) -> usize {
        self.tensor.matrix.len()
    }

    /// What is compressed.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// How it is compressed.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Whether the last part has scales of channels.
    pub fn has_scales(&self) -> bool {
        self.has_scales
    }

    /// Bytes of all parts.
    pub fn byte_len(&self) -> usize {
        self.parts.iter().map(Part::byte_len).sum()
    }

    /// Bytes that computing the parts takes at once, without the parts themselves in a store.
    pub fn peak_bytes(&self) -> usize {
        let n = self.tensor.matrix.len();
        let numbers = self.tensor.dtype.bits() / 8 + usize::from(self.encoding.sparsity.is_some());
        let method = match self.encoding.codes {
            None => self.tensor.dtype.bits() / 8,
            // Codes, and the packed ones.
            Some(Codes::Palette(..)) => 2,
            // Places, numbers and how much they count, where one scale is for all.
            Some(Codes::Integers(_, Blocks::Tensor)) => 2 + size_of::<(usize, f32, f32)>(),
            Some(Codes::Integers(..)) => 2,
            // Numbers; weights and codes of each vector.
            Some(Codes::Vectors { width, .. }) => 4 + 6usize.div_ceil(width),
        };
        n.saturating_mul(numbers + method)
    }

    /// The types of the parts.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The bytes of a part, computed when they are first read.
    pub fn data(self: &Arc<Self>, part: usize) -> Data {
        if let Some(Ok(made)) = self.made.get() {
            return Data::Bytes(made.parts[part].clone());
        }
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let source = sources[part].upgrade().unwrap_or_else(|| {
            let job = Arc::clone(self);
            Arc::new(Lazy { job, part })
        });
        sources[part] = Arc::downgrade(&source);
        Data::Source(source)
    }

    /// The computed parts, which are computed now if they are not yet.
    pub fn made(&self) -> Result<&Made, NotFinite> {
        let made = self.made.get_or_init(|| self.compute());
        made.as_ref().map_err(Clone::clone)
    }

    /// The job that stores another tensor in the same way.
    pub(super) fn of_another(&self, tensor: Tensor) -> Arc<Self> {
        let store = Arc::clone(&self.store);
        Self::new(tensor, self.encoding, self.has_scales, store)
    }

    fn compute(&self) -> Result<Made, NotFinite> {
        let tensor = &self.tensor;
        let read = Values::read(tensor.matrix.clone(), tensor.dtype, &tensor.data);
        let mut values = read.map_err(|(at, found)| NotFinite {
            name: tensor.name.clone(),
            found: found.to_string(),
            at,
        })?;
        let key = self.key(&values);
        if let Some(made) = self.store.load(&key).filter(|made| self.has_lengths(made)) {
            return Ok(made);
        }
        // Where a text uses no input of a product, it does not say which errors count.
        if tensor.importance.iter().any(|x| *x > 0.0) {
            values.importance = tensor.importance.to_vec();
        }
        let mut lost = 0.0;
        let mut parts = Vec::new();
        if let Some(sparsity) = self.encoding.sparsity {
            let n_kept = self.encoding.n_kept(&tensor.matrix);
            sparse::keep(&mut values, sparsity, n_kept);
            lost = values.lost();
            parts.push(super::values::mask(&values.kept));
        }
        let coded = self.coded(&values);
        parts.extend(coded.parts);
        let made = Made {
            parts: parts.into_iter().map(Bytes::new).collect(),
            error: (lost + coded.error) * values.unit().powi(2),
            energy: values.energy() * values.unit().powi(2),
        };
        debug_assert!(self.has_lengths(&made), "{self:?}");
        Ok(self.store.save(&key, made))
    }

    fn coded(&self, values: &Values) -> Coded {
        let float = self.tensor.dtype;
        match self.encoding.codes {
            None => Coded {
                parts: vec![values.kept_numbers(float)],
                error: 0.0,
            },
            Some(Codes::Palette(bits, group)) => {
                palette::encode(values, (bits, group), self.has_scales, float)
            }
            Some(Codes::Vectors { width, entries }) => {
                vectors::encode(values, (width, entries), self.has_scales, float)
            }
            Some(Codes::Integers(bits, blocks)) => integers::encode(values, (bits, blocks), float),
        }
    }

    /// What a store has need not be what was saved there.
    fn has_lengths(&self, made: &Made) -> bool {
        let lengths = self.parts.iter().map(Part::byte_len);
        made.parts.iter().map(Bytes::len).eq(lengths)
    }

    fn key(&self, values: &Values) -> String {
        let Matrix { shape, axis, input } = &values.matrix;
        let settings = format!(
            "{METHODS} {} {} {} {shape:?} {axis} {input}",
            self.encoding, self.has_scales, self.tensor.dtype
        );
        let mut hasher = Sha256::new();
        hasher.update(settings);
        values.each_piece(|piece| hasher.update(piece));
        for x in self.tensor.importance.iter() {
            hasher.update(x.to_le_bytes());
        }
        let digest = hasher.finalize();
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A part that is computed when it is first read.
struct Lazy {
    job: Arc<Job>,
    part: usize,
}

impl Source for Lazy {
    fn byte_len(&self) -> usize {
        self.job.parts[self.part].byte_len()
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        // Whoever writes codes runs the jobs first, and sees the error there.
        let is_read = self
            .job
            .made()
            .is_ok_and(|made| made.parts[self.part].read(offset, out));
        if !is_read {
            out.fill(0);
        }
    }

    fn packed(&self) -> Option<Packed> {
        None
    }

    fn is_late(&self) -> bool {
        true
    }
}

/// Computes jobs on `n_threads` threads, the largest first. `progress` is told how many weights
/// are done after each.
///
/// # Errors
///
/// The first tensor that cannot be compressed; the jobs behind it are not begun.
pub fn run(
    jobs: &[Arc<Job>],
    n_threads: usize,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<(), NotFinite> {
    let mut order: Vec<&Arc<Job>> = jobs.iter().collect();
    order.sort_by_key(|job| std::cmp::Reverse(job.n_weights()));
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some(job) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(fault) = job.made() {
                next.store(order.len(), Ordering::Relaxed);
                return Err(fault);
            }
            let n = job.n_weights();
            progress(done.fetch_add(n, Ordering::Relaxed) + n);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..n_threads.clamp(1, 64))
            .map(|_| scope.spawn(work))
            .collect();
        let own = work();
        let joined = others.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        joined.fold(own, Result::and)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rewrite::bytes_of;

    fn tensor(name: &str, number: impl Fn(usize) -> f32) -> Tensor {
        Tensor {
            name: name.to_owned(),
            dtype: DType::Fp16,
            matrix: Matrix::new(vec![16, 64], 0, 1),
            data: Data::owned(bytes_of(DType::Fp16, (0..1024).map(number))),
            importance: Arc::new([]),
        }
    }

    /// Every encoding fills its parts, and equal tensors have one result.
    #[test]
    fn parts_are_as_long_as_their_types_say() {
        for text in [
            "pal1",
            "pal2",
            "pal3",
            "pal4",
            "pal6",
            "pal8",
            "pal4g4",
            "pal3g16",
            "2x16",
            "4x64",
            "int8",
            "int8t",
            "int4",
            "int4t",
            "int4b32",
            "int8b8",
            "sparse50",
            "2:4",
            "sparse75+pal4",
            "1:4+int8",
            "sparse30+pal2g4",
            "2:4+int4b8",
        ] {
            let encoding: Encoding = text.parse().unwrap();
            let store = Arc::new(Memory::default());
            for has_scales in [false, true] {
                if has_scales && !encoding.takes_scales() {
                    continue;
                }
                let number = |i: usize| (i as f32 * 0.7).sin() * (1.0 + (i / 64) as f32);
                let job =
                    |name| Job::new(tensor(name, number), encoding, has_scales, store.clone());
                let (job, twin) = (job("a"), job("b"));
                let lazy = job.data(0);
                assert!(lazy.is_same(&job.data(0)), "{text}");
                assert_eq!(lazy.byte_len(), job.parts()[0].byte_len(), "{text}");
                run(&[job.clone(), twin.clone()], 2, &|_| {}).unwrap();
                let made = job.made().unwrap();
                let error = made.relative_error();
                assert!(error < 1.0, "{text}: {error}");
                assert_eq!(lazy.to_vec(), made.parts[0].as_slice(), "{text}");
                assert!(job.data(0).is_same(&twin.data(0)), "{text}");
            }
        }
    }

    #[test]
    fn numbers_that_are_not_finite_are_named() {
        let number = |i: usize| if i == 700 { f32::NAN } else { 1.0 };
        let encoding = Encoding::palette(4);
        let job = Job::new(
            tensor("w", number),
            encoding,
            false,
            Arc::new(Memory::default()),
        );
        let fault = run(&[job], 1, &|_| {}).unwrap_err();
        assert_eq!((fault.name.as_str(), fault.at), ("w", 700));
    }
}
