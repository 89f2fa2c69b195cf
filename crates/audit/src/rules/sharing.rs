//! Finds constants that functions of a program share, or could share but do not. Only the first and
//! last bytes of each constant are compared.

use std::collections::hash_map::{DefaultHasher, Entry};
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};

use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Function, Program};
use thane_mil::types::DType;

use super::query::show_bytes;

/// Constants below this are parameters and small vectors, which are not worth sharing.
const MIN_SHARED_BYTES: usize = 1 << 14;
/// Bytes of copies that are worth a note: less is lost in what a process takes anyway.
const MIN_COPIED_BYTES: usize = 100_000_000;
/// Bytes of each constant that are compared, at its beginning and at its end.
const SAMPLE: usize = 1 << 10;

/// A constant that is worth sharing.
struct Weight<'a> {
    name: &'a str,
    dtype: DType,
    shape: Vec<usize>,
    data: &'a Data,
}

fn weights(f: &Function) -> impl Iterator<Item = Weight<'_>> {
    let consts = f
        .body()
        .ops
        .iter()
        .map(|op| f.op(*op))
        .filter(|op| op.def.is_const());
    consts.filter_map(|op| match op.args.first() {
        Some(Some(Arg::Literal(Literal::Tensor(ty, data))))
            if data.byte_len() >= MIN_SHARED_BYTES =>
        {
            let name = op.results.first().map_or("", |r| f.value(*r).name.as_str());
            Some(Weight {
                name,
                dtype: ty.dtype,
                shape: ty.known_shape()?,
                data,
            })
        }
        _ => None,
    })
}

/// A hash of the first bytes of a constant, and of the last if the whole is meant; of its identity
/// where its bytes are still to be computed.
fn sample(data: &Data, whole: bool) -> u64 {
    let mut bytes = [0; SAMPLE];
    let mut hasher = DefaultHasher::new();
    if is_late(data) {
        data.id().hash(&mut hasher);
        return hasher.finish();
    }
    let starts = if whole {
        [0, data.byte_len().saturating_sub(SAMPLE)]
    } else {
        [0, 0]
    };
    for start in starts {
        if data.read(start, &mut bytes) {
            hasher.write(&bytes);
        }
    }
    hasher.finish()
}

/// What later functions have that the first has in the same shape with other bytes.
pub fn differing(p: &Program) -> Vec<String> {
    let Some((first, others)) = p.functions().split_first() else {
        return Vec::new();
    };
    let mut known: HashMap<(DType, Vec<usize>), HashSet<u64>> = HashMap::new();
    for w in weights(first).filter(|_| !others.is_empty()) {
        known
            .entry((w.dtype, w.shape))
            .or_default()
            .insert(sample(w.data, true));
    }
    let mut out = Vec::new();
    for f in others {
        let differs = |w: &Weight<'_>| {
            known
                .get(&(w.dtype, w.shape.clone()))
                .is_some_and(|k| !k.contains(&sample(w.data, true)))
        };
        let found: Vec<Weight<'_>> = weights(f).filter(differs).collect();
        let n: usize = found
            .iter()
            .map(|w| w.data.byte_len())
            .fold(0, usize::saturating_add);
        if let Some(w) = found.first() {
            let message = format!(
                "{} constants of `{}` ({}) are of the shapes of `{}` and differ, first `{}`",
                found.len(),
                f.name,
                show_bytes(n as f64),
                first.name,
                w.name
            );
            out.push(message);
        }
    }
    out
}

/// Bytes of constants of a program that are worth sharing.
#[derive(Clone, Copy, Debug, Default)]
pub struct SharedWeights {
    /// Of all functions.
    all: usize,
    /// Those that an earlier function has too.
    copied: usize,
}

impl SharedWeights {
    /// The share of bytes, 0 to 1, that an earlier function has too.
    pub fn share(&self) -> f64 {
        self.copied as f64 / self.all.max(1) as f64
    }
}

/// What functions have of weights that an earlier function has too.
pub fn shared_weights(p: &Program) -> SharedWeights {
    let mut known: HashSet<(DType, Vec<usize>, u64)> = HashSet::new();
    let (mut all, mut copied) = (0usize, 0usize);
    for f in p.functions().iter().filter(|_| p.functions().len() > 1) {
        let weights: Vec<Weight<'_>> = weights(f).collect();
        let key = |w: &Weight<'_>| (w.dtype, w.shape.clone(), sample(w.data, true));
        for w in &weights {
            let bytes = w.data.byte_len();
            all = all.saturating_add(bytes);
            if known.contains(&key(w)) {
                copied = copied.saturating_add(bytes);
            }
        }
        known.extend(weights.iter().map(key));
    }
    SharedWeights { all, copied }
}

/// What functions hold in memory of weights that an earlier function holds too, if that is much.
pub fn copied_weights(p: &Program) -> Vec<String> {
    let copied = shared_weights(p).copied;
    let message = format!(
        "{} of copies of shared weights when all {} functions are loaded",
        show_bytes(copied as f64),
        p.functions().len()
    );
    (copied >= MIN_COPIED_BYTES)
        .then_some(message)
        .into_iter()
        .collect()
}

/// Element type, shape with 0 for the axis that is cut, and a hash of the first bytes.
type Beginning = (DType, Vec<usize>, u64);

/// A table of some rows in a function.
struct Table<'a> {
    n_rows: usize,
    function: &'a str,
    name: &'a str,
}

/// Constants of later functions that begin like one of an earlier and differ from it in one axis
/// only.
pub fn cut_tables(p: &Program) -> Vec<String> {
    let mut tables: HashMap<Beginning, Table<'_>> = HashMap::new();
    let mut out = Vec::new();
    for f in p.functions().iter().filter(|_| p.functions().len() > 1) {
        for mut w in weights(f) {
            let Some(axis) = w.shape.iter().position(|n| *n > 1) else {
                continue;
            };
            let len = std::mem::replace(&mut w.shape[axis], 0);
            // The bytes of one that is still to be computed are not known, and it is one for all.
            let is_vector = w.shape.iter().skip(axis + 1).all(|n| *n == 1);
            if is_vector || is_late(w.data) || is_uniform(w.data) {
                continue;
            }
            let table = Table {
                n_rows: len,
                function: &f.name,
                name: w.name,
            };
            match tables.entry((w.dtype, w.shape, sample(w.data, false))) {
                Entry::Occupied(e) if e.get().n_rows != len && e.get().function != f.name => {
                    let Table {
                        n_rows,
                        function,
                        name,
                    } = e.get();
                    let (here, there) = (
                        format!("`{}` of `{}`", w.name, f.name),
                        format!("`{name}` of `{function}`"),
                    );
                    out.push(format!(
                        "{here} and {there} are one table cut to {len} and {n_rows} rows"
                    ));
                }
                Entry::Occupied(_) => {}
                Entry::Vacant(e) => {
                    e.insert(table);
                }
            }
        }
    }
    out
}

/// Whether reading a byte computes all of them.
fn is_late(data: &Data) -> bool {
    matches!(data, Data::Source(source) if source.is_late())
}

/// Whether the first bytes are all alike: zeros and ones are not one table because they begin
/// alike.
fn is_uniform(data: &Data) -> bool {
    let mut bytes = [0; SAMPLE];
    !data.read(0, &mut bytes) || bytes.as_chunks::<2>().0.windows(2).all(|w| w[0] == w[1])
}
