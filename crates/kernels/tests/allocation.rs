//! Kernels allocate nothing: what they work on comes from the caller. A program of its own, for it
//! has an allocator that counts. Threads that run no kernels, such as those of the test runner, do
//! not count.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use thane_kernels::activation::{self, Unary};
use thane_kernels::linear::{
    self, Epilogue, Int8Block, Int8Weight, Operand, Packed, PackedCodes,
    Precision::{Exact, Fast},
    Product, Start, linear, linear_scratch_len,
};
use thane_kernels::rope::{Angles, RopeShape, RopeStyle, rope, rope_halves};
use thane_kernels::{
    Attention, BlockType, Context, HeadRows, Isa, KvData, KvView, Weight, attention,
    attention_scratch_len, f16, norm, softmax, topk,
};

struct Counting;

static N_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Whether this thread's allocations count. It needs none itself, and is never dropped.
    static COUNTS: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: hands everything on to the system's allocator, whose promises are those that are due.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTS.get() {
            N_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's promises are those that are asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `alloc`, with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[track_caller]
fn allocates_nothing(what: &str, work: &mut dyn FnMut()) {
    let before = N_ALLOCATIONS.load(Ordering::SeqCst);
    work();
    assert_eq!(N_ALLOCATIONS.load(Ordering::SeqCst) - before, 0, "{what}");
}

const COLS: usize = 256;
const ROWS: usize = 37;

fn products(ctx: &Context, n_tokens: usize) {
    let x = vec![0.5; n_tokens * COLS];
    let bias = [1.0; ROWS];
    let mut y = vec![0.0; n_tokens * ROWS];
    for ty in BlockType::ALL {
        let bytes = vec![0; ROWS * ty.byte_len(COLS).unwrap()];
        let weight = Weight::new(ty, &bytes, ROWS, COLS).unwrap();
        let none = Epilogue::None;
        for (precision, start) in [(Exact, Start::bias(&bias)), (Fast, Start::NONE)] {
            let product = &mut [Product::new(weight, n_tokens, start, &mut y)];
            let len = linear_scratch_len(ctx, precision, product, n_tokens, none);
            let mut scratch = vec![0.0; len];
            allocates_nothing("products", &mut || {
                linear(ctx, precision, product, &x, n_tokens, none, &mut scratch);
            });
        }
        allocates_nothing("rows", &mut || {
            linear::dequantize_rows_gather(ctx, &weight, &[3, 36], &mut [0.0; 2 * COLS]);
        });
        if let Some(len) = linear::packed_codes_len(ty, ROWS, COLS) {
            let mut packed = vec![0; len];
            let mut pack_scratch = vec![0.0; linear::pack_codes_scratch_len(ctx, COLS)];
            let product = [Product::new(weight, n_tokens, Start::NONE, &mut y)];
            let len = linear_scratch_len(ctx, Fast, &product, n_tokens, Epilogue::None);
            let mut scratch = vec![0.0; 2 * len];
            allocates_nothing("products with packed codes", &mut || {
                linear::pack_codes(ctx, &weight, 0..ROWS, &mut packed, &mut pack_scratch);
                let codes = PackedCodes {
                    ty,
                    bytes: &packed,
                    n_rows: ROWS,
                    n_cols: COLS,
                };
                for weight in [Operand::Codes(codes), Operand::Stored(weight)] {
                    one(ctx, weight, (&x, n_tokens), &mut y, &mut scratch);
                }
            });
        }
    }
    other_forms(ctx, &x, n_tokens);
}

/// The best of a vocabulary, and products with integers and with packed floats.
fn other_forms(ctx: &Context, x: &[f32], n_tokens: usize) {
    let mut y = vec![0.0; n_tokens * ROWS];
    if n_tokens == 1 {
        let (ty, n_rows) = (BlockType::Q8_0, 17 * COLS);
        let bytes = vec![0; linear::packed_codes_len(ty, n_rows, COLS).unwrap()];
        let vocabulary = PackedCodes {
            ty,
            bytes: &bytes,
            n_rows,
            n_cols: COLS,
        };
        let mut y = vec![0.0; n_rows];
        let mut scratch = vec![0.0; linear::linear_codes_best_scratch_len(&vocabulary, 3)];
        allocates_nothing("the best of a vocabulary", &mut || {
            linear::linear_codes_best(ctx, &vocabulary, 3, x, &mut y, &mut scratch);
        });
    }
    let bytes = vec![0; ROWS * COLS * 4];
    let weight = Weight::new(BlockType::F32, &bytes, ROWS, COLS).unwrap();
    let mut blocks = vec![Int8Block::ZERO; linear::int8_len(ROWS, COLS).unwrap()];
    let mut scratch = vec![0.0; (n_tokens + 8) * (COLS + 64)];
    allocates_nothing("products of integers", &mut || {
        linear::pack_int8(ctx, &weight, &mut blocks);
        let packed = Int8Weight {
            blocks: &blocks,
            n_rows: ROWS,
            n_cols: COLS,
        };
        one(ctx, packed.into(), (x, n_tokens), &mut y, &mut scratch);
    });
    for ty in [BlockType::F32, BlockType::Bf16] {
        let Some(len) = linear::packed_len(ctx.isa(), ty, ROWS, COLS) else {
            continue;
        };
        let mut panels = vec![linear::PackedColumn::ZERO; len];
        let bytes = &bytes[..ROWS * ty.byte_len(COLS).unwrap()];
        let mut scratch = vec![0.0; n_tokens * (COLS + 64)];
        allocates_nothing("packed products", &mut || {
            linear::pack(
                ctx,
                &Weight::new(ty, bytes, ROWS, COLS).unwrap(),
                &mut panels,
            );
            let packed = Packed {
                ty,
                panels: &panels,
                n_rows: ROWS,
                n_cols: COLS,
            };
            one(ctx, packed.into(), (x, n_tokens), &mut y, &mut scratch);
        });
    }
}

fn one(
    ctx: &Context,
    weight: Operand,
    (x, n_tokens): (&[f32], usize),
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let mut product = [Product::new(weight, n_tokens, Start::NONE, y)];
    linear(
        ctx,
        Fast,
        &mut product,
        x,
        n_tokens,
        Epilogue::None,
        scratch,
    );
}

/// One row over keys that are divided, and many rows.
fn attends(ctx: &Context, n_rows: usize) {
    const KEYS: usize = 300;
    const DIM: usize = 20;
    let (q, cache, mask) = (
        vec![0.5; 2 * n_rows * DIM],
        vec![0.25; 2 * KEYS * DIM],
        vec![0.0; n_rows * KEYS],
    );
    let mut out = vec![0.0; q.len()];
    let mut scratch = vec![0.0; attention_scratch_len(ctx, 2, n_rows, DIM, KEYS)];
    allocates_nothing("attention", &mut || {
        let view = KvView {
            data: KvData::F32(&cache),
            head_stride: KEYS * DIM,
            key_stride: DIM,
        };
        let args = Attention {
            q: &q,
            q_rows: HeadRows::by_head(n_rows, DIM),
            k: view,
            v: view,
            mask: Some(&mask),
            tiles: None,
            scale: 0.25,
            more: None,
            may_round: true,
            n_kv_heads: 2,
            n_rows,
            head_dim: DIM,
            n_keys: KEYS,
            out_rows: HeadRows::by_head(n_rows, DIM),
            out: &mut out,
        };
        attention(ctx, args, &mut scratch);
    });
}

fn elements(ctx: &Context) {
    const LEN: usize = 64 * 200;
    let (x, mut gate, scale) = (vec![0.5; LEN], vec![0.25; LEN], vec![1.0; 200]);
    let (mut out, mut halves, mut indices, mut values) =
        (vec![0.0; LEN], vec![0; LEN], [0; 9], [0.0; 9]);
    allocates_nothing("norms, activations and the rest", &mut || {
        norm::rms_norm(ctx, &x, Some(&scale), 1e-5, 200, &mut out);
        norm::rms_norm_by_largest(ctx, &x, Some(&scale), [1e-5, 0.0], 200, &mut out);
        norm::layer_norm(ctx, &x, Some(&scale), Some(&scale), 1e-5, 200, &mut out);
        activation::gated(ctx, Unary::GeluTanh, &mut gate, &x);
        activation::unary(ctx, Unary::Silu, &x, &mut out);
        let shape = RopeShape {
            n_heads: 64,
            n_tokens: 1,
            rotary_dim: 200,
            head_stride: 200,
            token_stride: 200,
        };
        for style in [RopeStyle::Half, RopeStyle::Interleaved] {
            rope(ctx, &mut out, shape, &scale[..100], &scale[..100], style);
        }
        let angles = Angles {
            values: &scale,
            strides: &[0],
        };
        rope_halves(ctx, &x, (&[64], 200), [angles; 2], &mut out);
        softmax::softmax(ctx, &mut out, 200);
        f16::f32_to_f16_slice(ctx.isa(), &x, &mut halves);
        f16::f16_to_f32_slice(ctx.isa(), &halves, &mut out);
        assert_eq!(
            (topk::argmax(&x), topk::top_k(&x, &mut indices, &mut values)),
            (Some(0), 9)
        );
    });
}

/// What threads need when they begin is theirs. From then on, their allocations count.
fn wait_for_threads(ctx: &Context) {
    let begun = AtomicUsize::new(0);
    while begun.load(Ordering::SeqCst) != (1 << ctx.pool().n_threads()) - 1 {
        ctx.pool().run_indexed(64, |worker_idx, _| {
            COUNTS.set(true);
            begun.fetch_or(1 << worker_idx, Ordering::SeqCst);
            std::thread::yield_now();
        });
    }
}

#[test]
fn kernels_allocate_nothing() {
    for isa in Isa::available() {
        for n_threads in [1, 3] {
            let ctx = Context::with_isa(n_threads, isa);
            wait_for_threads(&ctx);
            for n_tokens in [1, 2, 29] {
                products(&ctx, n_tokens);
            }
            attends(&ctx, 1);
            attends(&ctx, 130);
            elements(&ctx);
        }
    }
    let ctx = Context::with_isa(3, Isa::detect());
    wait_for_threads(&ctx);
    let allocate = || drop(std::hint::black_box(vec![0u8; 9]));
    let count = |work: &dyn Fn()| {
        let before = N_ALLOCATIONS.load(Ordering::SeqCst);
        work();
        N_ALLOCATIONS.load(Ordering::SeqCst) - before
    };
    assert_eq!(count(&allocate), 1, "those of the caller count");
    let by_pool = || ctx.pool().run_indexed(64, |_, _| allocate());
    assert_eq!(count(&by_pool), 64, "those of the pool count");
    let by_another = || {
        COUNTS.set(false);
        std::thread::spawn(allocate).join().unwrap();
        COUNTS.set(true);
    };
    assert_eq!(count(&by_another), 0, "those of other threads do not");
}
