//! Attention of query rows over a key/value cache: `softmax(q k^T * scale + mask) v`.
//!
//! The keys are gone over in tiles of 64, with the softmax kept up to date as in "online softmax":
//! a running maximum, the sum of the weights and the weighted sum of the values. So the scratch
//! does not grow with the number of keys. A task is a few blocks of query rows of one key/value
//! head, for which a tile is read and turned once, or, where that makes too few tasks, one block
//! and a part of the keys; the parts are put together at the end.
//!
//! Both products have the same form: 16 keys, or 16 elements of a value, are the lanes, and a row's
//! elements, or its 64 weights, are broadcast.

use crate::Context;
use crate::simd::LANES;
use crate::threads::SharedMut;

mod few;
mod mask;
mod merge;
mod products;
mod rows;
mod tile;

pub use mask::{MaskTiles, mask_tiles_len};

/// Keys of a tile.
const TILE_KEYS: usize = 64;
/// What [`More::n_before`] is a multiple of.
pub const PART_KEYS: usize = TILE_KEYS;
/// Query rows that go over a tile together: enough for the packing of a tile of keys to be a tenth
/// of the work.
const BLOCK_ROWS: usize = 64;
/// Blocks of a task, at most.
const MOST_BLOCKS: usize = 4;
/// At or below this a mask says "not this key": half precision's stand-in for -inf is about -1e4.
const MASKED: f32 = -1e4;
/// Masks are not taken lower than this, so that a row of `-inf` has weights that are numbers.
const MASK_FLOOR: f32 = -1e38;
/// Keys that a task should at least have, when keys are split among tasks.
const MIN_SPLIT_KEYS: usize = 128;
/// Tasks that keys are split for: two for each of 16 threads, which evens out. Not of the threads
/// there are: parts are summed by themselves, and what is computed must not depend on how many
/// compute it.
const WANTED_TASKS: usize = 32;

/// The elements of a cache.
#[derive(Debug, Clone, Copy)]
pub enum KvData<'a> {
    /// f32.
    F32(&'a [f32]),
    /// f16 as bits.
    F16(&'a [u16]),
}

impl KvData<'_> {
    fn len(self) -> usize {
        match self {
            Self::F32(data) => data.len(),
            Self::F16(data) => data.len(),
        }
    }
}

/// Keys or values of several heads: element `i` of key `k` of head `h` is at
/// `h * head_stride + k * key_stride + i`.
#[derive(Debug, Clone, Copy)]
pub struct KvView<'a> {
    /// The elements.
    pub data: KvData<'a>,
    /// Elements from a head to the next.
    pub head_stride: usize,
    /// Elements from a key to the next.
    pub key_stride: usize,
}

/// Keys and values behind those of a cache, such as the new ones of a call.
#[derive(Debug, Clone, Copy)]
pub struct More<'a> {
    /// Keys in the cache in front of them: a multiple of [`PART_KEYS`].
    pub n_before: usize,
    /// The keys.
    pub k: KvView<'a>,
    /// The values.
    pub v: KvView<'a>,
}

/// Rows of several heads, queries or what becomes of them: element `i` of row `r` of head `h` is at
/// `h * head_stride + r * row_stride + i`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadRows {
    /// Elements from a head to the next.
    pub head_stride: usize,
    /// Elements from a row to the next.
    pub row_stride: usize,
}

impl HeadRows {
    /// Row behind row, head behind head.
    pub fn by_head(n_rows: usize, head_dim: usize) -> Self {
        Self {
            head_stride: n_rows * head_dim,
            row_stride: head_dim,
        }
    }

    /// The heads of a row behind each other, row behind row.
    pub fn by_row(n_heads: usize, head_dim: usize) -> Self {
        Self {
            head_stride: head_dim,
            row_stride: n_heads * head_dim,
        }
    }
}

/// What [`attention`] computes: for each head and row `softmax(q k^T * scale + mask) v`.
#[derive(Debug)]
pub struct Attention<'a> {
    /// The rows of a key/value head are its group's queries, in any order.
    pub q: &'a [f32],
    /// Where they are: by head or by row.
    pub q_rows: HeadRows,
    /// Keys.
    pub k: KvView<'a>,
    /// Values.
    pub v: KvView<'a>,
    /// Keys and values that follow, where not all are in `k` and `v`.
    pub more: Option<More<'a>>,
    /// [n_rows, n_keys], added to the scaled scores. At or below -10,000 it says "not this key":
    /// keys that no row of a block wants are not looked at.
    pub mask: Option<&'a [f32]>,
    /// What the mask says by tiles, where several calls have the same.
    pub tiles: Option<MaskTiles<'a>>,
    /// Factor of the scores.
    pub scale: f32,
    /// Where the machine [multiplies bf16](crate::Isa::has_bf16), queries, keys, weights and values
    /// of more than a few rows may be rounded to it: sums are in f32. The error of a score is then
    /// up to 2^-7 of the sum of its products' magnitudes.
    pub may_round: bool,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Query rows of each key/value head.
    pub n_rows: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Keys to attend over.
    pub n_keys: usize,
    /// As many rows as of `q`.
    pub out: &'a mut [f32],
    /// Where they are: by head or by row.
    pub out_rows: HeadRows,
}

/// How the work is divided.
#[derive(Debug, Clone, Copy)]
struct Division {
    n_row_blocks: usize,
    /// Row blocks of a task.
    n_task_blocks: usize,
    n_splits: usize,
    /// A multiple of [`TILE_KEYS`].
    split_keys: usize,
    /// The head's dimension in whole vectors.
    padded_dim: usize,
    /// Lanes of a row in bf16; 0 where rows are not rounded.
    rounded_dim: usize,
}

impl Division {
    fn new(
        ctx: &Context,
        n_kv_heads: usize,
        n_rows: usize,
        head_dim: usize,
        n_keys: usize,
    ) -> Self {
        /// Tasks of each thread, at least, for threads to end together: with a causal mask tasks
        /// are unequal.
        const THREAD_TASKS: usize = 12;
        let (n_threads, n_row_blocks) = (ctx.pool().n_threads(), n_rows.div_ceil(BLOCK_ROWS));
        let n_blocks = n_kv_heads * n_row_blocks;
        // Blocks do not depend on each other, so that threads may count.
        let n_task_blocks = if n_blocks < WANTED_TASKS {
            1
        } else {
            n_blocks / (THREAD_TASKS * n_threads)
        };
        let most_splits = Self::most_splits(n_kv_heads, n_rows, n_keys);
        let split_keys = n_keys
            .div_ceil(most_splits)
            .next_multiple_of(TILE_KEYS)
            .max(TILE_KEYS);
        let n_splits = n_keys.div_ceil(split_keys).max(1);
        let (n_task_blocks, padded_dim) = (
            n_task_blocks.clamp(1, MOST_BLOCKS),
            head_dim.next_multiple_of(LANES),
        );
        let is_rounded =
            ctx.isa().has_bf16() && n_rows > few::MOST_ROWS && head_dim.is_multiple_of(2 * LANES);
        let rounded_dim = if is_rounded { head_dim / 2 } else { 0 };
        Self {
            n_row_blocks,
            n_task_blocks,
            n_splits,
            split_keys,
            padded_dim,
            rounded_dim,
        }
    }

    /// What `n_splits` is below or at; never less for more keys.
    fn most_splits(n_kv_heads: usize, n_rows: usize, n_keys: usize) -> usize {
        let n_tasks = (n_kv_heads * n_rows.div_ceil(BLOCK_ROWS)).max(1);
        WANTED_TASKS
            .div_ceil(n_tasks)
            .min(n_keys / MIN_SPLIT_KEYS)
            .max(1)
    }

    /// Tasks for the rows of a head.
    fn n_row_tasks(self) -> usize {
        self.n_row_blocks.div_ceil(self.n_task_blocks)
    }

    /// f32s of a worker's scratch: keys, values, weights, rounded queries, sums of weights and of
    /// values.
    fn worker_len(self) -> usize {
        let row_len = LANES + self.rounded_dim + self.padded_dim;
        2 * TILE_KEYS * self.padded_dim + BLOCK_ROWS * (TILE_KEYS + self.n_task_blocks * row_len)
    }

    /// f32s of what a split says of a row: maximum, sum of weights, sums.
    fn partial_len(self) -> usize {
        if self.n_splits == 1 {
            0
        } else {
            self.padded_dim + 2
        }
    }
}

/// f32s of scratch that [`attention`] needs; never less for more keys.
pub fn attention_scratch_len(
    ctx: &Context,
    n_kv_heads: usize,
    n_rows: usize,
    head_dim: usize,
    n_keys: usize,
) -> usize {
    let division = Division::new(ctx, n_kv_heads, n_rows, head_dim, n_keys);
    let most_splits = Division::most_splits(n_kv_heads, n_rows, n_keys);
    let partials_len = if most_splits == 1 {
        0
    } else {
        n_kv_heads * n_rows * most_splits * (division.padded_dim + 2)
    };
    ctx.pool().n_threads() * division.worker_len() + mask_tiles_len(n_rows, n_keys) + partials_len
}

/// Attention. A row whose keys are all masked gets the softmax of its masked scores, never NaN;
/// with no keys at all the output is 0.
///
/// # Panics
/// If a size does not fit or the scratch is shorter than [`attention_scratch_len`].
pub fn attention(ctx: &Context, args: Attention, scratch: &mut [f32]) {
    check(ctx, &args, scratch);
    let Attention {
        q,
        q_rows,
        k,
        v,
        more,
        mask,
        tiles,
        scale,
        n_kv_heads,
        n_rows,
        head_dim,
        n_keys,
        ..
    } = args;
    let Attention {
        may_round,
        out,
        out_rows,
        ..
    } = args;
    if out.is_empty() {
        return;
    }
    if n_keys == 0 {
        out.fill(0.0);
        return;
    }
    let n_threads = ctx.pool().n_threads();
    let mut division = Division::new(ctx, n_kv_heads, n_rows, head_dim, n_keys);
    let worker_len = division.worker_len();
    if !may_round {
        division.rounded_dim = 0;
    }
    let (workers, scratch) = scratch.split_at_mut(n_threads * worker_len);
    let (own_tiles, partials) = scratch.split_at_mut(mask_tiles_len(n_rows, n_keys));
    let tiles = tiles.unwrap_or_else(|| MaskTiles::new(ctx, mask, n_keys, own_tiles));
    let partial_len = division.partial_len();
    let partials = &mut partials[..n_kv_heads * n_rows * division.n_splits * partial_len];
    let scale = scale * std::f32::consts::LOG2_E;
    let common = Common {
        q,
        q_rows,
        k,
        v,
        more,
        mask,
        tiles,
        scale,
        n_kv_heads,
        head_dim,
        n_keys,
        division,
        worker_len,
    };
    let of_tasks = [&mut *workers, &mut *partials, &mut *out];
    run_tasks(ctx, &common, n_rows, out_rows, of_tasks);
    if division.n_splits > 1 {
        let places = (0..n_kv_heads * n_rows)
            .map(|i| i / n_rows * out_rows.head_stride + i % n_rows * out_rows.row_stride);
        merge::merge(partials, division, places, head_dim, out);
    }
}

/// Runs all tasks, with the scratch of the workers, the partial sums and the outputs.
fn run_tasks(
    ctx: &Context,
    common: &Common,
    n_rows: usize,
    out_rows: HeadRows,
    of_tasks: [&mut [f32]; 3],
) {
    let division = common.division;
    let (worker_len, partial_len) = (common.worker_len, division.partial_len());

    let [workers, partials, out] = of_tasks.map(SharedMut::new);
    let n_row_tasks = division.n_row_tasks();
    let n_tasks = common.n_kv_heads * n_row_tasks * division.n_splits;
    ctx.pool().run_indexed(n_tasks, |worker_idx, task_idx| {
        let block = common.block(task_idx, n_rows);
        // SAFETY: no two tasks run at once with the same worker index.
        let scratch = unsafe { workers.slice(worker_idx * worker_len, worker_len) };
        // SAFETY: the rows and the split are one task's; those of the partials are ordered by
        // split, then row.
        let partials = unsafe {
            let split_idx = block.first_key / division.split_keys;
            let row_idx = block.head_idx * n_rows + block.first_row;
            partials.slice(
                (split_idx * common.n_kv_heads * n_rows + row_idx) * partial_len,
                block.n_rows * partial_len,
            )
        };
        let first = block.head_idx * out_rows.head_stride + block.first_row * out_rows.row_stride;
        let out = (division.n_splits == 1).then_some(tile::OutRows {
            all: &out,
            first,
            stride: out_rows.row_stride,
        });
        tile::RowTask {
            common,
            block,
            scratch,
            partials,
            out,
        }
        .run_on(ctx.isa());
    });
}

fn check(ctx: &Context, args: &Attention, scratch: &[f32]) {
    let Attention {
        q,
        n_kv_heads,
        n_rows,
        head_dim,
        n_keys,
        ..
    } = *args;
    assert_eq!(
        Some(q.len()),
        n_kv_heads
            .checked_mul(n_rows)
            .and_then(|n| n.checked_mul(head_dim)),
        "queries"
    );
    assert_eq!(args.out.len(), q.len(), "as many outputs as queries");
    let ways = [
        HeadRows::by_head(n_rows, head_dim),
        HeadRows::by_row(n_kv_heads, head_dim),
    ];
    assert!(
        ways.contains(&args.q_rows) && ways.contains(&args.out_rows),
        "rows by head or by row"
    );
    assert!(
        args.mask.is_none_or(|mask| mask.len() == n_rows * n_keys),
        "mask of {n_rows} rows and {n_keys} keys"
    );
    assert!(
        args.tiles
            .is_none_or(|tiles| tiles.len() == mask_tiles_len(n_rows, n_keys)),
        "tiles of the mask"
    );
    if n_kv_heads > 0 && n_keys > 0 {
        let holds = |view: KvView, n_keys: usize| {
            if n_keys == 0 {
                return;
            }
            let end =
                (n_kv_heads - 1) * view.head_stride + (n_keys - 1) * view.key_stride + head_dim;
            assert!(
                end <= view.data.len(),
                "cache of {n_kv_heads} heads and {n_keys} keys in {} elements",
                view.data.len()
            );
        };
        let n_cached = args.more.map_or(n_keys, |more| more.n_before);
        assert!(
            n_cached <= n_keys && (args.more.is_none() || n_cached.is_multiple_of(PART_KEYS)),
            "{n_cached} of {n_keys} keys in the cache"
        );
        holds(args.k, n_cached);
        holds(args.v, n_cached);
        if let Some(more) = args.more {
            holds(more.k, n_keys - n_cached);
            holds(more.v, n_keys - n_cached);
        }
    }
    let scratch_len = attention_scratch_len(ctx, n_kv_heads, n_rows, head_dim, n_keys);
    assert!(scratch.len() >= scratch_len, "scratch");
}

/// What all tasks share.
struct Common<'a> {
    q: &'a [f32],
    q_rows: HeadRows,
    k: KvView<'a>,
    v: KvView<'a>,
    more: Option<More<'a>>,
    mask: Option<&'a [f32]>,
    tiles: MaskTiles<'a>,
    /// Of scores whose weights are powers of 2.
    scale: f32,
    n_kv_heads: usize,
    head_dim: usize,
    n_keys: usize,
    division: Division,
    /// f32s of a worker's scratch.
    worker_len: usize,
}

impl Common<'_> {
    /// What a task is of: a block of rows of a head, and a part of the keys.
    fn block(&self, task_idx: usize, n_rows: usize) -> Block {
        let Division {
            n_splits,
            split_keys,
            n_task_blocks,
            ..
        } = self.division;
        let (row_task_idx, split_idx) = (task_idx / n_splits, task_idx % n_splits);
        let (most_rows, n_row_tasks) = (n_task_blocks * BLOCK_ROWS, self.division.n_row_tasks());
        // The last rows of a head have the most keys when the mask is causal: they go first, and
        // the small tasks even out the end.
        let first_row = (n_row_tasks - 1 - row_task_idx % n_row_tasks) * most_rows;
        let first_key = split_idx * split_keys;
        Block {
            head_idx: row_task_idx / n_row_tasks,
            first_row,
            n_rows: most_rows.min(n_rows - first_row),
            first_key,
            end_key: (first_key + split_keys).min(self.n_keys),
        }
    }

    /// The keys and values that the keys of a tile are among, and the first of these.
    #[inline(always)]
    fn part(&self, first_key: usize) -> Part<'_> {
        match self.more {
            Some(More { n_before, k, v }) if first_key >= n_before => Part {
                k,
                v,
                first_key: n_before,
                end_key: self.n_keys,
            },
            more => Part {
                k: self.k,
                v: self.v,
                first_key: 0,
                end_key: more.map_or(self.n_keys, |more| more.n_before),
            },
        }
    }

    /// The queries of a block.
    #[inline(always)]
    fn queries(&self, block: Block) -> &[f32] {
        let HeadRows {
            head_stride,
            row_stride,
        } = self.q_rows;
        let first = block.head_idx * head_stride + block.first_row * row_stride;
        &self.q[first..][..(block.n_rows - 1) * row_stride + self.head_dim]
    }
}

/// Keys and values that lie together, from one key to another.
struct Part<'a> {
    k: KvView<'a>,
    v: KvView<'a>,
    first_key: usize,
    end_key: usize,
}

/// The rows and keys of a task.
#[derive(Clone, Copy)]
struct Block {
    head_idx: usize,
    first_row: usize,
    n_rows: usize,
    first_key: usize,
    end_key: usize,
}
