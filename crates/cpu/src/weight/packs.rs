//! The matrices of a program packed as products of few rows read them, all in one run of memory.
//!
//! A decode step reads all of it, so that it lies in pages as large as the machine has: with small
//! ones, a third of the time of a step went to finding where they are. Most matrices are smaller
//! than such a page.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use memmap2::MmapMut;
use thane_kernels::linear::{
    LINE_BYTES, half_panels_len, pack_code_rows, pack_codes, pack_codes_scratch_len, pack_halves,
    packed_codes_len,
};
use thane_kernels::{BlockType, Context, Isa, Weight};
use thane_mil::budget::{Budget, Reservation};

use super::compressed::Compressed;
use super::stored::Stored;

/// They are packed all at once, when products with few rows come again and again, and of most
/// matrices: the head and the last layer are multiplied so behind every prompt, and who asks for
/// one token, or for none, does not wait.
#[derive(Debug)]
pub struct Packs {
    matrices: Mutex<Vec<(Range<usize>, Source)>>,
    n_matrices: AtomicUsize,
    /// Those that were asked for twice.
    n_used: AtomicUsize,
    /// None where there is no memory for them: then they are read as they are stored, which takes
    /// longer.
    packed: OnceLock<Option<Packed>>,
    budget: Budget,
}

/// What a matrix is packed from.
#[derive(Debug)]
enum Source {
    /// Blocks or 16-bit floats.
    Stored(Stored),
    /// Codes with scales that become blocks of this type.
    Codes(Arc<Compressed>, BlockType),
    /// Codes with tables.
    Tables(Arc<Compressed>),
}

/// All matrices, packed.
#[derive(Debug)]
struct Packed {
    bytes: MmapMut,
    /// Where matrices begin that turned out not to be blocks of their type.
    failed: Vec<usize>,
    _memory: Reservation,
}

impl Packs {
    /// None yet; what they take counts against `budget`.
    pub fn new(budget: Budget) -> Self {
        let (matrices, n_matrices, n_used, packed) = Default::default();
        Self {
            matrices,
            n_matrices,
            n_used,
            packed,
            budget,
        }
    }

    /// Where the matrix will be; none where its type gains nothing.
    pub fn add(&self, isa: Isa, matrix: &Stored) -> Option<Range<usize>> {
        let len = len(isa, matrix)?;
        Some(self.add_source(Source::Stored(matrix.clone()), len))
    }

    /// Where the blocks of this type will be that codes become; none where it is not packed.
    pub fn add_codes(&self, codes: &Arc<Compressed>, ty: BlockType) -> Option<Range<usize>> {
        let [n_rows, n_cols] = codes.shape();
        let len = packed_codes_len(ty, n_rows, n_cols)?;
        Some(self.add_source(Source::Codes(codes.clone(), ty), len))
    }

    /// Where codes with tables will be; none where they are not packed.
    pub fn add_tables(&self, codes: &Arc<Compressed>) -> Option<Range<usize>> {
        let len = codes.weight().table_codes_len()?;
        Some(self.add_source(Source::Tables(codes.clone()), len))
    }

    fn add_source(&self, source: Source, len: usize) -> Range<usize> {
        let mut matrices = self.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        let start = matrices
            .last()
            .map_or(0, |(range, _)| range.end.next_multiple_of(LINE_BYTES));
        let range = start..start.saturating_add(len);
        matrices.push((range.clone(), source));
        self.n_matrices.fetch_add(1, Ordering::Relaxed);
        range
    }

    /// The matrix in this range, if all are packed or it is time for that; it says how often it was
    /// asked for before.
    pub fn bytes(&self, context: &Context, n_asked: usize, range: &Range<usize>) -> Option<&[u8]> {
        if self.packed.get().is_none() {
            if n_asked == 1 {
                self.n_used.fetch_add(1, Ordering::Relaxed);
            }
            let due = self.n_matrices.load(Ordering::Relaxed).div_ceil(2);
            let is_time = n_asked > 0 && self.n_used.load(Ordering::Relaxed) >= due;
            if !is_time {
                return None;
            }
        }
        self.bytes_now(context, range)
    }

    /// The matrix in this range; all are packed if they are not yet.
    pub fn bytes_now(&self, context: &Context, range: &Range<usize>) -> Option<&[u8]> {
        let packed = self.packed.get_or_init(|| self.pack(context));
        let packed = packed.as_ref()?;
        if packed.failed.contains(&range.start) {
            return None;
        }
        packed.bytes.get(range.clone())
    }

    fn pack(&self, context: &Context) -> Option<Packed> {
        let matrices =
            std::mem::take(&mut *self.matrices.lock().unwrap_or_else(PoisonError::into_inner));
        let n_bytes = matrices.last()?.0.end;
        let reserve = |n| {
            let what = || "the packed weights".to_owned();
            self.budget.reserve(n, what).ok()
        };
        // What they are multiplied with needs memory too, which cannot be taken from them later.
        let room = reserve(n_bytes / 8 + MIN_ROOM)?;
        let memory = reserve(n_bytes)?;
        drop(room);
        let mut bytes = MmapMut::map_anon(n_bytes).ok()?;
        // Not every machine has larger pages; any will do.
        #[cfg(target_os = "linux")]
        let _ = bytes.advise(memmap2::Advice::HugePage);
        let (mut scratch, mut failed) = (Vec::new(), Vec::new());
        for (range, source) in matrices {
            let n_cols = match &source {
                Source::Stored(matrix) => matrix.n_cols,
                Source::Codes(codes, _) | Source::Tables(codes) => codes.shape()[1],
            };
            scratch.resize(
                pack_codes_scratch_len(context, n_cols).max(scratch.len()),
                0.0,
            );
            let start = range.start;
            let out = &mut bytes[range];
            match &source {
                Source::Stored(matrix) => pack(context, matrix, out, &mut scratch),
                Source::Codes(codes, ty) => {
                    if !pack_blocks(context, codes, *ty, out, &mut scratch) {
                        failed.push(start);
                    }
                }
                Source::Tables(codes) => {
                    codes.weight().write_table_codes(context, out);
                    codes.codes.release();
                }
            }
        }
        Some(Packed {
            bytes,
            failed,
            _memory: memory,
        })
    }
}

/// Bytes of a matrix here; `None` for types that gain nothing.
fn len(isa: Isa, matrix: &Stored) -> Option<usize> {
    let Stored {
        ty, n_rows, n_cols, ..
    } = *matrix;
    match ty {
        BlockType::Bf16 if isa.has_bf16() => Some(matrix.bytes.len()),
        BlockType::Bf16 | BlockType::F16 => half_panels_len(ty, n_rows, n_cols),
        _ => packed_codes_len(ty, n_rows, n_cols),
    }
}

/// Bytes of the budget that packing leaves for tensors, at least.
const MIN_ROOM: usize = 1 << 20;
/// Rows that are packed before their pages of the mapped file are given back, a multiple of those
/// of a panel: packing takes as much memory at once as the packed form and a few MiB.
const PART_ROWS: usize = 4096;

fn pack(context: &Context, matrix: &Stored, packed: &mut [u8], scratch: &mut [f32]) {
    /// Bytes that a thread copies at a time.
    const COPY_LEN: usize = 1 << 20;
    let weight @ Weight { n_rows, .. } = matrix.weight();
    let row_bytes = weight.bytes.len() / n_rows.max(1);
    for start in (0..n_rows).step_by(PART_ROWS) {
        let rows = start..n_rows.min(start + PART_ROWS);
        let range = rows.start * row_bytes..rows.end * row_bytes;
        let Some(bytes) = matrix.bytes.slice(range.clone()) else {
            continue;
        };
        if matrix.has_codes() {
            pack_codes(context, &weight, rows, packed, scratch);
        } else if weight.ty == BlockType::Bf16 && context.isa().has_bf16() {
            // Its products read rows.
            context
                .pool()
                .run_chunks(&mut packed[range], COPY_LEN, |i, out| {
                    out.copy_from_slice(&bytes.as_slice()[i * COPY_LEN..][..out.len()]);
                });
        } else {
            pack_halves(context, &weight, rows, packed);
        }
        // What is packed takes the place of the mapped file in memory.
        bytes.release();
    }
}

/// Packs codes as blocks of a type; `false` where they are no such blocks.
fn pack_blocks(
    context: &Context,
    codes: &Compressed,
    ty: BlockType,
    packed: &mut [u8],
    scratch: &mut [f32],
) -> bool {
    let [n_rows, n_cols] = codes.shape();
    let row_bytes = ty.byte_len(n_cols).unwrap_or(0);
    let mut blocks = vec![0; PART_ROWS.min(n_rows) * row_bytes];
    for start in (0..n_rows).step_by(PART_ROWS) {
        let rows = start..n_rows.min(start + PART_ROWS);
        let blocks = &mut blocks[..rows.len() * row_bytes];
        if !codes.write_blocks(context, ty, rows.clone(), blocks) {
            return false;
        }
        let part = Weight {
            ty,
            bytes: blocks,
            n_rows: rows.len(),
            n_cols,
        };
        pack_code_rows(context, &part, (start, n_rows), packed, scratch);
    }
    // What is packed takes the place of the mapped file in memory.
    codes.codes.release();
    true
}
