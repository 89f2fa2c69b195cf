//! Where the time of runs goes, by kind of step.

use std::collections::BTreeMap;
use std::ops::Add;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use thane_kernels::linear::Path;

use crate::tensor::Tensor;

/// What the steps of all runs so far took; [`Cpu::with_profile`](crate::Cpu::with_profile) fills
/// it.
#[derive(Debug, Default)]
pub struct Profile(Mutex<BTreeMap<Key, Row>>);

/// Function, step and path.
type Key = (String, &'static str, Option<&'static str>);

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
    /// How often it ran.
    pub calls: u64,
    /// What that took; steps of a nested block count for the op that runs it too.
    pub time: Duration,
    /// Bytes that it read and wrote, constants as stored.
    pub bytes: f64,
    /// Operations of its products; a multiplication and an addition are two.
    pub flops: f64,
    /// Those of them that multiply bf16.
    pub bf16_flops: f64,
    /// Those of them that multiply bytes.
    pub byte_ops: f64,
}

impl Profile {
    /// The rows, those that took longest first.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.time));
        rows
    }

    /// Forget what was measured.
    pub fn clear(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    fn add(&self, function: &str, begun: Begun, time: Duration, written: f64) {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let function = function.to_owned();
        let row = rows
            .entry((function.clone(), begun.name, begun.path))
            .or_insert(Row {
                function,
                step: begun.name,
                path: begun.path,
                is_fused: begun.is_fused,
                is_slow: begun.is_slow,
                calls: 0,
                time: Duration::ZERO,
                bytes: 0.0,
                flops: 0.0,
                bf16_flops: 0.0,
                byte_ops: 0.0,
            });
        row.calls += 1;
        row.time += time;
        row.bytes += begun.work.read + written;
        row.flops += begun.work.flops;
        row.bf16_flops += begun.work.bf16_flops;
        row.byte_ops += begun.work.byte_ops;
    }
}

/// A step that runs.
pub struct Begun {
    name: &'static str,
    is_fused: bool,
    is_slow: bool,
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
    pub fn new((name, is_fused): (&'static str, bool), is_slow: bool, work: Work) -> Self {
        Self {
            name,
            is_fused,
            is_slow,
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
        Self {
            name: "linear, screened",
            work: Work { read, ..self.work },
            ..self
        }
    }

    /// Count it.
    pub fn end<'a>(
        self,
        profile: &Profile,
        function: &str,
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
