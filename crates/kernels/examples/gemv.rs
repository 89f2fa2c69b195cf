//! Speed of the products, as JSON lines:
//! `cargo run --release -p thane-kernels --example gemv -- [threads] [isa] [figure]`.
//!
//! For each shape of SmolLM2-135M (Q4_1 and Q8_0) and Gemma 3 270M (Q4_K_M), and one shape in every
//! type: GB/s of weights for one token, and GOP/s (two per multiplication) for 512; `packed` is the
//! time of the packed form. The first lines give the memory's read speed, to which the others
//! compare. `greatest` is a vocabulary of which only the best row is wanted, beside all of it.
//!
//! The weights of a figure are more than the last-level cache, as they are in a decode step: enough
//! copies of the matrix, used in turn.
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use thane_kernels::linear::{
    Epilogue, Int8Block, Int8Weight, LINE_BYTES, Operand, PackedCodes, Precision, Product, Start,
    int8_len, linear, linear_codes_best, linear_codes_best_scratch_len, linear_scratch_len,
    pack_codes, pack_codes_scratch_len, pack_int8, packed_codes_len,
};
use thane_kernels::{
    Attention, BlockType, Context, HeadRows, Isa, KvData, KvView, Weight, attention,
    attention_scratch_len,
};

/// Bytes of weights to go through: twice a last-level cache of 32 MiB.
const WORKING_SET_BYTES: usize = 64 << 20;
const N_SAMPLES: usize = 9;

const SHAPES: [(BlockType, usize, usize); 24] = [
    (BlockType::Q4_1, 576, 576),
    (BlockType::Q4_1, 192, 576),
    (BlockType::Q4_1, 1536, 576),
    (BlockType::Q4_1, 576, 1536),
    (BlockType::Q8_0, 49152, 576),
    (BlockType::Q5_0, 2048, 640),
    (BlockType::Q4K, 640, 2048),
    (BlockType::Q6K, 640, 2048),
    (BlockType::Q8_0, 262_144, 640),
    (BlockType::Q4_0, 1024, 1024),
    (BlockType::Q4_1, 1024, 1024),
    (BlockType::Q5_0, 1024, 1024),
    (BlockType::Q5_1, 1024, 1024),
    (BlockType::Q8_0, 1024, 1024),
    (BlockType::Q2K, 1024, 1024),
    (BlockType::Q3K, 1024, 1024),
    (BlockType::Q4K, 1024, 1024),
    (BlockType::Q5K, 1024, 1024),
    (BlockType::Q6K, 1024, 1024),
    (BlockType::Iq4Nl, 1024, 1024),
    (BlockType::Iq4Xs, 1024, 1024),
    (BlockType::F16, 1024, 1024),
    (BlockType::Bf16, 1536, 576),
    (BlockType::Bf16, 2048, 640),
];

/// Of float weights as codes of 8 bits: those of MiniLM and of an encoder of 0.6B.
const INT8_SHAPES: [(usize, usize); 6] = [
    (1152, 384),
    (1536, 384),
    (384, 1536),
    (3072, 1024),
    (1024, 2048),
    (1024, 3072),
];
/// Of bf16 weights: two of the models, and one that alone is more than the last-level cache.
const BF16_SHAPES: [(usize, usize); 3] = [(1536, 576), (2048, 640), (32768, 640)];

fn main() {
    let mut args = std::env::args().skip(1);
    let n_threads = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(1);
    let name = args.next();
    let isa = match &name {
        None => Some(Isa::detect()),
        Some(name) => Isa::available().into_iter().find(|isa| isa.name() == name),
    };
    let Some(isa) = isa else {
        println!(
            "{{\"error\":\"this machine does not have {}\"}}",
            name.unwrap_or_default()
        );
        return;
    };
    let only = args.next();
    let wanted = |figure: &str| only.as_deref().is_none_or(|only| only == figure);
    let ctx = Context::with_isa(n_threads, isa);
    for _ in 0..3 {
        read_speed(&ctx);
    }
    for (ty, n_rows, n_cols) in SHAPES.into_iter().filter(|_| wanted("gemv")) {
        time(&ctx, ty, n_rows, n_cols, 1, "gemv");
    }
    for (ty, n_rows, n_cols) in SHAPES
        .into_iter()
        .filter(|(_, n_rows, _)| *n_rows < 5000 && wanted("gemm"))
    {
        time(&ctx, ty, n_rows, n_cols, 512, "gemm");
    }
    for n_tokens in [2, 4, 5, 8, 16, 32].into_iter().filter(|_| wanted("few")) {
        time(&ctx, BlockType::Q4_1, 1536, 576, n_tokens, "few");
        time(&ctx, BlockType::Q5_0, 2048, 640, n_tokens, "few");
        time(&ctx, BlockType::Q8_0, 262_144, 640, n_tokens, "few");
    }
    for (n_rows, n_cols) in [(49152, 576), (262_144, 640), (151_936, 896)]
        .into_iter()
        .filter(|_| wanted("greatest"))
    {
        greatest(&ctx, n_rows, n_cols);
    }
    for (n_rows, n_cols) in BF16_SHAPES.into_iter().filter(|_| wanted("bf16")) {
        for n_tokens in [1, 2, 4, 5, 8, 67, 512] {
            bf16_against_f32(&ctx, n_rows, n_cols, n_tokens);
        }
    }
    for (n_rows, n_cols) in INT8_SHAPES.into_iter().filter(|_| wanted("int8")) {
        for n_tokens in [16, 128, 512] {
            int8(&ctx, n_rows, n_cols, n_tokens);
        }
    }
    for (name, n_kv_heads, group, head_dim) in [("smollm2", 3, 3, 64), ("gemma3", 1, 4, 256)] {
        for (n_tokens, n_keys) in [(1, 128), (1, 700), (1, 4096), (512, 512)]
            .into_iter()
            .filter(|_| wanted("attention"))
        {
            for may_round in [false, true] {
                attend(
                    &ctx,
                    name,
                    [n_kv_heads, group * n_tokens, head_dim, n_keys],
                    n_tokens,
                    may_round,
                );
            }
        }
    }
    if wanted("fork_join") {
        fork_join(&ctx);
    }
}

/// Median and spread of several samples of `run`, which does `n` things.
fn measure(n: usize, mut run: impl FnMut()) -> [f64; 3] {
    run();
    let mut samples: Vec<f64> = (0..N_SAMPLES)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64() / n as f64
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    [samples[N_SAMPLES / 2], samples[0], samples[N_SAMPLES - 1]]
}

fn read_speed(ctx: &Context) {
    let data = vec![1u64; 2 * WORKING_SET_BYTES / 8];
    let mut sums = vec![0u64; data.len() / 8192];
    let [median, best, worst] = measure(1, || {
        ctx.pool().run_chunks(&mut sums, 16, |chunk_idx, sums| {
            for (i, sum) in sums.iter_mut().enumerate() {
                let data = &data[(chunk_idx * 16 + i) * 8192..][..8192];
                *sum = data.iter().fold(0, |sum, x| sum ^ x);
            }
        });
        black_box(&sums);
    });
    let gb = size_of_val(&data[..]) as f64 / 1e9;
    println!(
        "{{\"figure\":\"read\",\"threads\":{},\"gb_per_s\":{:.1},\"min\":{:.1},\"max\":{:.1}}}",
        ctx.pool().n_threads(),
        gb / median,
        gb / worst,
        gb / best
    );
}

/// Bytes that are good for any type: small scales, no infinity or NaN, whatever field they fall
/// into.
fn weight_bytes(len: usize) -> Vec<u8> {
    let mut next = random(0x2b);
    (0..len).map(|_| next()).collect()
}

/// Bytes of these bits.
fn random(bits: u8) -> impl FnMut() -> u8 {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8 & bits
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
    let precision = Precision::Fast;
    linear(
        ctx,
        precision,
        &mut product,
        x,
        n_tokens,
        Epilogue::None,
        scratch,
    );
}

fn time(ctx: &Context, ty: BlockType, n_rows: usize, n_cols: usize, n_tokens: usize, figure: &str) {
    let Some(row_bytes) = ty.byte_len(n_cols) else {
        return;
    };
    let weight_len = row_bytes * n_rows;
    let n_copies = if n_tokens < 64 {
        WORKING_SET_BYTES.div_ceil(weight_len)
    } else {
        1
    };
    let bytes = weight_bytes(weight_len * n_copies);
    let weight = |copy: usize| Weight {
        ty,
        bytes: &bytes[copy * weight_len..][..weight_len],
        n_rows,
        n_cols,
    };
    let x: Vec<f32> = (0..n_tokens * n_cols)
        .map(|i| (i % 17) as f32 / 17.0 - 0.4)
        .collect();
    let mut y = vec![0.0; n_tokens * n_rows];
    let (fast, none) = (Precision::Fast, Epilogue::None);
    let products = [Product::new(weight(0), n_tokens, Start::NONE, &mut y)];
    let len = linear_scratch_len(ctx, fast, &products, n_tokens, none);
    let mut scratch = vec![0.0; len];
    let [median, best, worst] = measure(n_copies, || {
        for copy in 0..n_copies {
            let products = &mut [Product::new(weight(copy), n_tokens, Start::NONE, &mut y)];
            linear(ctx, fast, products, &x, n_tokens, none, &mut scratch);
        }
        black_box(&y);
    });
    let packed = packed_time(ctx, &weight(0), &x, n_tokens)
        .map_or("null".to_owned(), |us| format!("{us:.2}"));
    let gb = weight_len as f64 / 1e9;
    let gop = 2e-9 * (n_rows * n_cols * n_tokens) as f64;
    println!(
        "{{\"figure\":\"{figure}\",\"isa\":\"{}\",\"threads\":{},\"type\":\"{ty:?}\",\"rows\":{n_rows},\"cols\":{n_cols},\"tokens\":{n_tokens},\
         \"us\":{:.2},\"us_min\":{:.2},\"us_max\":{:.2},\"packed_us\":{packed},\"gb_per_s\":{:.2},\"gop_per_s\":{:.1}}}",
        ctx.isa().name(),
        ctx.pool().n_threads(),
        median * 1e6,
        best * 1e6,
        worst * 1e6,
        gb / median,
        gop / median
    );
}

/// Microseconds of the packed form, where there is one, with as many copies as [`time`] has.
fn packed_time(ctx: &Context, weight: &Weight, x: &[f32], n_tokens: usize) -> Option<f64> {
    let Weight {
        ty, n_rows, n_cols, ..
    } = *weight;
    let len = packed_codes_len(ty, n_rows, n_cols)?;
    let n_copies = if n_tokens < 64 {
        WORKING_SET_BYTES.div_ceil(weight.bytes.len())
    } else {
        1
    };
    let mut bytes = vec![0; len * n_copies + LINE_BYTES];
    let start = bytes.as_ptr().align_offset(LINE_BYTES);
    let bytes = &mut bytes[start..][..len * n_copies];
    let mut scratch = vec![0.0; pack_codes_scratch_len(ctx, n_cols)];
    for bytes in bytes.chunks_mut(len) {
        pack_codes(ctx, weight, 0..n_rows, bytes, &mut scratch);
    }
    let mut y = vec![0.0; n_tokens * n_rows];
    // As many as stored codes need, which are unpacked.
    let product = [Product::new(*weight, n_tokens, Start::NONE, &mut y)];
    let len = linear_scratch_len(ctx, Precision::Fast, &product, n_tokens, Epilogue::None);
    let mut scratch = vec![0.0; len.max((n_tokens + 8) * (n_cols + 64) * 2)];
    let [median, ..] = measure(n_copies, || {
        for bytes in bytes.chunks(len) {
            let packed = PackedCodes {
                ty,
                bytes,
                n_rows,
                n_cols,
            };
            one(ctx, packed.into(), (x, n_tokens), &mut y, &mut scratch);
        }
        black_box(&y);
    });
    Some(median * 1e6)
}

/// The greatest output of a vocabulary, and all of them, in turn: of codes and activations that are
/// uniform, so that few rows stand out.
fn greatest(ctx: &Context, n_rows: usize, n_cols: usize) {
    let ty = BlockType::Q8_0;
    let mut random = random(0xff);
    let mut bytes: Vec<u8> = (0..ty.byte_len(n_cols).unwrap_or(0) * n_rows)
        .map(|_| random())
        .collect();
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        block[..2].copy_from_slice(&0x1c00u16.to_le_bytes());
    }
    let weight = Weight {
        ty,
        bytes: &bytes,
        n_rows,
        n_cols,
    };
    let Some(len) = packed_codes_len(ty, n_rows, n_cols) else {
        return;
    };
    let mut packed = vec![0; len + LINE_BYTES];
    let start = packed.as_ptr().align_offset(LINE_BYTES);
    let packed = &mut packed[start..][..len];
    pack_codes(
        ctx,
        &weight,
        0..n_rows,
        packed,
        &mut vec![0.0; pack_codes_scratch_len(ctx, n_cols)],
    );
    let packed = PackedCodes {
        ty,
        bytes: packed,
        n_rows,
        n_cols,
    };
    let x: Vec<f32> = (0..n_cols)
        .map(|_| f32::from(random()) / 255.0 - 0.5)
        .collect();
    let mut y = vec![0.0; n_rows];
    let product = [Product::new(packed, 1, Start::NONE, &mut y)];
    let len = linear_scratch_len(ctx, Precision::Fast, &product, 1, Epilogue::None)
        .max(linear_codes_best_scratch_len(&packed, 1));
    let mut scratch = vec![0.0; len];
    let mut read = 0;
    let mut seconds = |is_whole: bool| {
        let start = Instant::now();
        if is_whole {
            one(ctx, packed.into(), (&x, 1), &mut y, &mut scratch);
        } else {
            read = linear_codes_best(ctx, &packed, 1, &x, &mut y, &mut scratch);
        }
        black_box(&y);
        start.elapsed().as_secs_f64()
    };
    seconds(true);
    let mut pairs: Vec<[f64; 2]> = (0..N_SAMPLES)
        .map(|_| [seconds(false), seconds(true)])
        .collect();
    pairs.sort_by(|a, b| (a[1] / a[0]).total_cmp(&(b[1] / b[0])));
    let [best, whole] = pairs[N_SAMPLES / 2];
    println!(
        "{{\"figure\":\"greatest\",\"isa\":\"{}\",\"threads\":{},\"rows\":{n_rows},\"cols\":{n_cols},\"us\":{:.1},\"us_whole\":{:.1},\
         \"ratio\":{:.2},\"share_read\":{:.3},\"gb_per_s\":{:.1},\"gb_per_s_whole\":{:.1}}}",
        ctx.isa().name(),
        ctx.pool().n_threads(),
        best * 1e6,
        whole * 1e6,
        whole / best,
        read as f64 / packed.bytes.len() as f64,
        read as f64 / best / 1e9,
        packed.bytes.len() as f64 / whole / 1e9
    );
}

/// The fast and the exact product of a bf16 weight, in turn: with copies of more than the
/// last-level cache for few tokens, one copy for many.
fn bf16_against_f32(ctx: &Context, n_rows: usize, n_cols: usize, n_tokens: usize) {
    let weight_len = 2 * n_rows * n_cols;
    let n_copies = if n_tokens < 64 {
        WORKING_SET_BYTES.div_ceil(weight_len)
    } else {
        1
    };
    let bytes = weight_bytes(weight_len * n_copies);
    let weight = |copy: usize| {
        let bytes = &bytes[copy * weight_len..][..weight_len];
        Weight {
            ty: BlockType::Bf16,
            bytes,
            n_rows,
            n_cols,
        }
    };
    let x: Vec<f32> = (0..n_tokens * n_cols)
        .map(|i| (i % 17) as f32 / 17.0 - 0.4)
        .collect();
    let mut y = vec![0.0; n_tokens * n_rows];
    let scratch_len = |precision, y: &mut [f32]| {
        let products = [Product::new(weight(0), n_tokens, Start::NONE, y)];
        linear_scratch_len(ctx, precision, &products, n_tokens, Epilogue::None)
    };
    let precisions = [Precision::Exact, Precision::Fast];
    let mut scratches = precisions.map(|precision| vec![0.0; scratch_len(precision, &mut y)]);
    let mut seconds = |is_fast: bool| {
        let (precision, none) = (precisions[usize::from(is_fast)], Epilogue::None);
        let scratch = &mut scratches[usize::from(is_fast)];
        let start = Instant::now();
        for copy in 0..n_copies {
            let products = &mut [Product::new(weight(copy), n_tokens, Start::NONE, &mut y)];
            linear(ctx, precision, products, &x, n_tokens, none, scratch);
        }
        black_box(&y);
        start.elapsed().as_secs_f64() / n_copies as f64
    };
    seconds(true);
    let mut pairs: Vec<[f64; 2]> = (0..N_SAMPLES)
        .map(|_| [seconds(true), seconds(false)])
        .collect();
    pairs.sort_by(|a, b| (a[1] / a[0]).total_cmp(&(b[1] / b[0])));
    let [fast, exact] = pairs[N_SAMPLES / 2];
    let ratio = |[fast, exact]: [f64; 2]| exact / fast;
    println!(
        "{{\"figure\":\"bf16\",\"isa\":\"{}\",\"has_bf16\":{},\"threads\":{},\"rows\":{n_rows},\"cols\":{n_cols},\"tokens\":{n_tokens},\
         \"us\":{:.1},\"us_f32\":{:.1},\"ratio\":{:.2},\"ratio_min\":{:.2},\"ratio_max\":{:.2}}}",
        ctx.isa().name(),
        ctx.isa().has_bf16(),
        ctx.pool().n_threads(),
        fast * 1e6,
        exact * 1e6,
        exact / fast,
        ratio(pairs[0]),
        ratio(pairs[N_SAMPLES - 1])
    );
}

/// Rounding activations, and their product with rounded weights.
fn int8(ctx: &Context, n_rows: usize, n_cols: usize, n_tokens: usize) {
    let values: Vec<u8> = weight_bytes(2 * n_rows * n_cols);
    let weight = Weight {
        ty: BlockType::Bf16,
        bytes: &values,
        n_rows,
        n_cols,
    };
    let mut blocks = vec![Int8Block::ZERO; int8_len(n_rows, n_cols).unwrap_or_default()];
    pack_int8(ctx, &weight, &mut blocks);
    let packed = Int8Weight {
        blocks: &blocks,
        n_rows,
        n_cols,
    };
    let x: Vec<f32> = (0..n_tokens * n_cols)
        .map(|i| (i % 17) as f32 / 17.0 - 0.4)
        .collect();
    let mut y = vec![0.0; n_tokens * n_rows];
    let product = [Product::new(packed, n_tokens, Start::NONE, &mut y)];
    let len = linear_scratch_len(ctx, Precision::Fast, &product, n_tokens, Epilogue::None);
    let mut scratch = vec![0.0; len];
    let n = (512 / n_tokens).max(1);
    let [us, us_min, us_max] = measure(n, || {
        (0..n).for_each(|_| one(ctx, packed.into(), (&x, n_tokens), &mut y, &mut scratch));
        black_box(&y);
    })
    .map(|seconds| seconds * 1e6);
    println!(
        "{{\"figure\":\"int8\",\"isa\":\"{}\",\"threads\":{},\"rows\":{n_rows},\"cols\":{n_cols},\"tokens\":{n_tokens},\
         \"us\":{us:.1},\"us_min\":{us_min:.1},\"us_max\":{us_max:.1},\"gop_per_s\":{:.1}}}",
        ctx.isa().name(),
        ctx.pool().n_threads(),
        2.0 * (n_rows * n_cols * n_tokens) as f64 / us / 1e3,
    );
}

/// One layer's attention over an f16 cache; causal where there are several tokens.
fn attend(
    ctx: &Context,
    model: &str,
    [n_kv_heads, n_rows, head_dim, n_keys]: [usize; 4],
    n_tokens: usize,
    may_round: bool,
) {
    let cache: Vec<u16> = (0..n_kv_heads * n_keys * head_dim)
        .map(|i| 0x3000 + (i % 1021) as u16)
        .collect();
    let q: Vec<f32> = (0..n_kv_heads * n_rows * head_dim)
        .map(|i| (i % 23) as f32 / 23.0 - 0.5)
        .collect();
    let causal = |row: usize, key: usize| {
        if key <= n_keys - n_tokens + row % n_tokens {
            0.0
        } else {
            f32::NEG_INFINITY
        }
    };
    let mask: Vec<f32> = (0..n_rows * n_keys)
        .map(|i| causal(i / n_keys, i % n_keys))
        .collect();
    let mut out = vec![0.0; q.len()];
    let mut scratch = vec![0.0; attention_scratch_len(ctx, n_kv_heads, n_rows, head_dim, n_keys)];
    let view = KvView {
        data: KvData::F16(&cache),
        head_stride: n_keys * head_dim,
        key_stride: head_dim,
    };
    let n = if n_tokens == 1 { 200 } else { 2 };
    let [median, best, worst] = measure(n, || {
        for _ in 0..n {
            let mask = Some(&mask[..]);
            let out = &mut out[..];
            let args = Attention {
                q: &q,
                q_rows: HeadRows::by_head(n_rows, head_dim),
                k: view,
                v: view,
                mask,
                tiles: None,
                scale: 0.1,
                more: None,
                may_round,
                n_kv_heads,
                n_rows,
                head_dim,
                n_keys,
                out_rows: HeadRows::by_head(n_rows, head_dim),
                out,
            };
            attention(ctx, args, &mut scratch);
        }
        black_box(&out);
    });
    println!(
        "{{\"figure\":\"attention\",\"isa\":\"{}\",\"threads\":{},\"model\":\"{model}\",\"tokens\":{n_tokens},\"keys\":{n_keys},\"may_round\":{may_round},\
         \"us\":{:.2},\"us_min\":{:.2},\"us_max\":{:.2}}}",
        ctx.isa().name(),
        ctx.pool().n_threads(),
        median * 1e6,
        best * 1e6,
        worst * 1e6
    );
}

/// The cost of a run of one empty task per thread, called again at once and after a pause of 30 us.
fn fork_join(ctx: &Context) {
    for pause in [Duration::ZERO, Duration::from_micros(30)] {
        let mut spent = Duration::ZERO;
        let [_, best, worst] = measure(1000, || {
            spent = Duration::ZERO;
            for _ in 0..1000 {
                let start = Instant::now();
                while start.elapsed() < pause {
                    std::hint::spin_loop();
                }
                let start = Instant::now();
                ctx.pool().run(ctx.pool().n_threads(), |task_idx| {
                    black_box(task_idx);
                });
                spent += start.elapsed();
            }
        });
        println!(
            "{{\"figure\":\"fork_join\",\"threads\":{},\"pause_us\":{},\"us\":{:.2},\"us_with_pause_min\":{:.2},\"us_with_pause_max\":{:.2}}}",
            ctx.pool().n_threads(),
            pause.as_micros(),
            spent.as_secs_f64() * 1e3,
            best * 1e6,
            worst * 1e6
        );
    }
}
