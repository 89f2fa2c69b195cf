//! Where the time of runs goes, by kind of step.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Add;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thane_kernels::linear::Path;
use thane_mil::program::{Function, OpId};

use crate::tensor::Tensor;

/// What the steps of all runs so far took; [`Cpu::with_profile`](crate::Cpu::with_profile) fills
/// it.
#[derive(Debug, Default)]
pub struct Profile(Mutex<BTreeMap<Key, OpRow>>);

/// Function, step, path, and the number of the op.
type Key = (String, &'static str, Option<&'static str>, usize);

/// One op of a function, or the last of several that a kernel computes at once.
#[derive(Clone, Debug, PartialEq)]
pub struct OpRow {
    /// Name of the op.
    pub op: &'static str,
    /// Name of its first result; empty where it has none.
    pub output: String,
    /// What it took.
    pub row: Row,
}

/// The steps of one kind in one function.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Function name.
    pub function: String,
    /// Kernel, or the op where it is computed by itself.
    pub step: &'static str,
    /// How its products were computed ([`thane_kernels::linear::Path`]), where it has some.
    pub path: Option<&'static str>,
    /// Whether a kernel computes it, rather than the plain function of an op.
    pub is_fused: bool,
    /// Whether it is an op that computes much and that no kernel was found for.
    pub is_slow: bool,
    /// Whether an op handled elements one by one, each by its index, rather than in rows.
    pub is_by_element: bool,
    /// How often it ran.
    pub calls: u64,
    /// What that took; steps of a nested block count for the op that runs it too.
    pub time: Duration,
    /// What the fastest of them took.
    pub least_time: Duration,
    /// Bytes that it read and wrote, constants as stored.
    pub bytes: f64,
    /// Operations of its products; a multiplication and an addition are two.
    pub flops: f64,
    /// Those of them that multiply bf16.
    pub bf16_flops: f64,
    /// Those of them that multiply bytes.
    pub byte_ops: f64,
}

impl Row {
    /// This and another of its kind.
    fn join(&mut self, other: &Self) {
        self.is_by_element |= other.is_by_element;
        self.calls += other.calls;
        self.time += other.time;
        self.least_time = self.least_time.min(other.least_time);
        self.bytes += other.bytes;
        self.flops += other.flops;
        self.bf16_flops += other.bf16_flops;
        self.byte_ops += other.byte_ops;
    }
}

impl Profile {
    /// The rows, those that took longest first.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        // In the order of the keys, so that those of one kind lie together.
        for OpRow { row, .. } in self.locked().values() {
            match rows.last_mut() {
                Some(last)
                    if (&last.function, last.step, last.path)
                        == (&row.function, row.step, row.path) =>
                {
                    last.join(row);
                }
                _ => rows.push(row.clone()),
            }
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.time));
        rows
    }

    /// The same op by op, those that took longest first.
    pub fn ops(&self) -> Vec<OpRow> {
        let mut ops: Vec<OpRow> = self.locked().values().cloned().collect();
        ops.sort_by_key(|op| std::cmp::Reverse(op.row.time));
        ops
    }

    /// Forget what was measured.
    pub fn clear(&self) {
        self.locked().clear();
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<Key, OpRow>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, function: &Function, begun: Begun, time: Duration, written: f64) {
        let Begun {
            op,
            kind,
            path,
            work,
            ..
        } = begun;
        let row = Row {
            function: function.name.clone(),
            step: kind.name,
            path,
            is_fused: kind.is_fused,
            is_slow: kind.is_slow,
            is_by_element: kind.is_by_element,
            calls: 1,
            time,
            least_time: time,
            bytes: work.read + if kind.is_in_place { 0.0 } else { written },
            flops: work.flops,
            bf16_flops: work.bf16_flops,
            byte_ops: work.byte_ops,
        };
        let key = (row.function.clone(), row.step, path, op.index());
        match self.locked().entry(key) {
            Entry::Occupied(mut known) => known.get_mut().row.join(&row),
            Entry::Vacant(free) => {
                let op = function.op(op);
                let output = op.results.first();
                free.insert(OpRow {
                    op: op.def.name,
                    output: output.map_or_else(String::new, |v| function.value(*v).name.clone()),
                    row,
                });
            }
        }
    }
}

/// What a step is called, and how it is computed.
#[derive(Clone, Copy, Debug)]
pub struct StepKind {
    /// Kernel, or the op where it is computed by itself.
    pub name: &'static str,
    /// As [`Row::is_fused`].
    pub is_fused: bool,
    /// As [`Row::is_slow`].
    pub is_slow: bool,
    /// As [`Row::is_by_element`].
    pub is_by_element: bool,
    /// Whether results are what is there already, so that they are not written.
    pub is_in_place: bool,
}

/// A step that runs.
pub struct Begun {
    op: OpId,
    kind: StepKind,
    path: Option<&'static str>,
    work: Work,
    start: Instant,
}

/// What a step computes and reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Operations of products.
    pub flops: f64,
    /// Those of them that multiply bf16.
    pub bf16_flops: f64,
    /// Those of them that multiply bytes.
    pub byte_ops: f64,
    /// Bytes that are read.
    pub read: f64,
}

impl Work {
    /// Of so many operations of products.
    pub fn flops(flops: f64) -> Self {
        Self {
            flops,
            ..Self::default()
        }
    }
}

impl Add for Work {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        let Self {
            flops,
            bf16_flops,
            byte_ops,
            read,
        } = self;
        Self {
            flops: flops + other.flops,
            bf16_flops: bf16_flops + other.bf16_flops,
            byte_ops: byte_ops + other.byte_ops,
            read: read + other.read,
        }
    }
}

impl Begun {
    /// A step that runs from now on.
    pub fn new(op: OpId, kind: StepKind, work: Work) -> Self {
        Self {
            op,
            kind,
            path: None,
            work,
            start: Instant::now(),
        }
    }

    /// With its products computed by this path.
    pub fn by(self, path: Option<Path>) -> Self {
        Self {
            path: path.map(Path::name),
            ..self
        }
    }

    /// With more work.
    pub fn with(self, more: Work) -> Self {
        Self {
            work: self.work + more,
            ..self
        }
    }

    /// With rows of its matrix ruled out, and so many bytes of it not read.
    pub fn screened(self, unread: f64) -> Self {
        let read = self.work.read - unread;
        let kind = StepKind {
            name: "linear, screened",
            ..self.kind
        };
        Self {
            kind,
            work: Work { read, ..self.work },
            ..self
        }
    }

    /// Count it.
    pub fn end<'a>(
        self,
        profile: &Profile,
        function: &Function,
        results: impl Iterator<Item = &'a Tensor>,
    ) {
        let time = self.start.elapsed();
        profile.add(function, self, time, results.map(bytes).sum());
    }
}

/// Bytes of the elements of a tensor.
pub fn bytes(tensor: &Tensor) -> f64 {
    tensor.dtype.byte_len(tensor.len()).unwrap_or(0) as f64
}
