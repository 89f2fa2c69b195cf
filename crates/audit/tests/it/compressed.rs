//! Fixes that cut or turn weights, over each form in which weights are stored: the parts compute
//! what the whole did.

use thane_audit::View;
use thane_audit::fix::{FIXES, Proof, limits};
use thane_audit::target::{Route, Target, Units};
use thane_mil::program::{Function, Program};
use thane_mil::valid;

use crate::fixes::{program, prove};

/// How the matrix `w` of rows and columns is stored, where 32 columns or 2 rows share a scale or a
/// table.
type Store = fn(usize, usize) -> String;

/// A constant of made-up content.
fn stated(ty: &str, shape: &[usize], filler: &str) -> String {
    format!(
        "tensor<{ty}, {shape:?}>(BLOBFILE(path = string(\"{filler}\"), offset = uint64({})))",
        shape.len()
    )
}

fn by_op(rows: usize, columns: usize, op: &str, args: &[(&str, String)], in_place: bool) -> String {
    let args: Vec<String> = args
        .iter()
        .map(|(name, value)| format!("{name} = {value}"))
        .collect();
    let args = args.join(", ");
    let args = if in_place {
        format!("()[{args}]")
    } else {
        format!("({args})")
    };
    format!("tensor<fp16, [{rows}, {columns}]> w = {op}{args};")
}

fn blocks(ty: &str, (rows, columns): (usize, usize), groups: &[usize; 2], offset: bool) -> String {
    let mut args = vec![
        ("data", stated(ty, &[rows, columns], "codes")),
        ("scale", stated("fp16", groups, "noise")),
    ];
    args.extend(offset.then(|| ("offset", stated(ty, groups, "codes"))));
    by_op(
        rows,
        columns,
        "constexpr_blockwise_shift_scale",
        &args,
        false,
    )
}

fn palette(ty: &str, (rows, columns): (usize, usize), lut: &[usize; 4]) -> String {
    let indices = stated(ty, &[rows, columns / lut[3]], "codes");
    let mut args = vec![("indices", indices), ("lut", stated("fp16", lut, "noise"))];
    args.extend((lut[3] > 1).then(|| ("vector_axis", "int32(1)".to_owned())));
    by_op(rows, columns, "constexpr_lut_to_dense", &args, false)
}

/// The shape of a weight, which those packed in bytes have to be told.
fn sizes(rows: usize, columns: usize) -> String {
    format!("tensor<uint32, [2]>([{rows}, {columns}])")
}

const STORES: &[(&str, &str, Store)] = &[
    ("int4 in blocks of columns", "ios18", |r, c| {
        blocks("int4", (r, c), &[r, c / 32], true)
    }),
    ("uint4 in blocks of rows and columns", "ios18", |r, c| {
        blocks("uint4", (r, c), &[r / 2, c / 32], false)
    }),
    ("int8 by rows", "ios18", |r, c| {
        blocks("int8", (r, c), &[r, 1], false)
    }),
    ("uint3 with a table for 32 columns", "ios18", |r, c| {
        palette("uint3", (r, c), &[1, c / 32, 8, 1])
    }),
    ("uint6 with a table for two rows", "ios18", |r, c| {
        palette("uint6", (r, c), &[r / 2, 1, 64, 1])
    }),
    ("uint4 with pairs in its table", "ios18", |r, c| {
        palette("uint4", (r, c), &[1, 1, 16, 2])
    }),
    ("packed codes of 6 bits", "ios16", |r, c| {
        let indices = stated("uint8", &[(r * c * 6).div_ceil(8)], "codes");
        let args = [
            ("indices", indices),
            ("lut", stated("fp16", &[64], "noise")),
            ("shape", sizes(r, c)),
        ];
        by_op(r, c, "constexpr_lut_to_dense", &args, true)
    }),
    ("uint8 with zero points by rows", "ios16", |r, c| {
        let data = stated("uint8", &[r, c], "codes");
        let (zero, scale) = (
            stated("uint8", &[r], "codes"),
            stated("fp16", &[r], "noise"),
        );
        let args = [
            ("quantized_data", data),
            ("zero_point", zero),
            ("scale", scale),
            ("axis", "int32(0)".to_owned()),
        ];
        by_op(r, c, "constexpr_affine_dequantize", &args, true)
    }),
    ("sparse", "ios18", |r, c| {
        let elements = stated("fp16", &[(r * c).div_ceil(3)], "noise");
        let args = [
            ("nonzero_data", elements),
            ("mask", stated("uint1", &[r, c], "thirds")),
        ];
        by_op(r, c, "constexpr_sparse_to_dense", &args, false)
    }),
    ("sparse with a packed mask", "ios16", |r, c| {
        let mask = stated("uint8", &[(r * c).div_ceil(8)], "thirds");
        let args = [
            (
                "nonzero_data",
                stated("fp16", &[(r * c).div_ceil(3)], "noise"),
            ),
            ("mask", mask),
            ("shape", sizes(r, c)),
        ];
        by_op(r, c, "constexpr_sparse_to_dense", &args, true)
    }),
];

/// Fix, what uses the weight, and the weight's rows and columns. Numbers are small enough that sums
/// of parts stay within fp16. Elements of a row are no whole number of bytes in
/// some store of each.
const USES: &[(&str, &str, usize, usize)] = &[
    (
        "split_contraction",
        "tensor<fp16, [3, 4128]> z | tensor<fp16, [3, 4128]> x = clip(x = z, alpha = fp16(-0x1p+2), beta = fp16(0x1p+2)); tensor<fp16, [3, 20]> y = linear(x = x, weight = w);",
        20,
        4128,
    ),
    (
        "split_contraction",
        "tensor<fp16, [3, 4128]> z | tensor<fp16, [3, 4128]> x = clip(x = z, alpha = fp16(-0x1p+2), beta = fp16(0x1p+2)); tensor<fp16, [3, 96]> y = matmul(x = x, y = w, transpose_x = bool(false), transpose_y = bool(false));",
        4128,
        96,
    ),
    (
        "split_outputs",
        "tensor<fp16, [3, 32]> x | tensor<fp16, [3, 16448]> y = linear(x = x, weight = w);",
        16448,
        32,
    ),
    (
        "lower_matmul",
        "tensor<fp16, [2, 5, 96]> x | tensor<fp16, [2, 5, 14]> y = linear(x = x, weight = w);",
        14,
        96,
    ),
    (
        "lower_matmul",
        "tensor<fp16, [2, 5, 14]> x | tensor<fp16, [2, 5, 96]> y = matmul(x = x, y = w, transpose_x = bool(false), transpose_y = bool(false));",
        14,
        96,
    ),
];

fn written(usage: &str, opset: &str, weight: &str) -> Program {
    let (input, product) = usage.split_once('|').unwrap();
    program(&format!(
        "program(1.3) {{ func f<{opset}>({input}) {{ {weight} {product} }} -> (y); }}"
    ))
}

/// The function as the fix rewrites its one product, or why it does not.
fn rewritten(fix: &str, program: &Program) -> Result<Function, &'static str> {
    let fix = FIXES.iter().find(|f| f.name == fix).unwrap();
    // The chip with the shortest axes.
    let target = Target::parse("m1", Units::default(), Route::default()).unwrap();
    let f = &program.functions()[0];
    let view = View::new(program, f, &target);
    let patch = fix.answer(&view, limits(&target), *f.body().ops.last().unwrap())?;
    let mut after = f.clone();
    patch
        .apply(&mut after)
        .unwrap_or_else(|e| panic!("{}: {e}", fix.name));
    valid::check(&Program::new(vec![after.clone()]))
        .unwrap_or_else(|e| panic!("{}: {e:?}", fix.name));
    Ok(after)
}

/// How often ops of a kind are run.
fn count(f: &Function, kind: &str) -> usize {
    f.body()
        .ops
        .iter()
        .filter(|op| f.op(**op).def.name.starts_with(kind))
        .count()
}

/// Takes ten seconds or so: products are cut from 4,097 inputs and 16,385 outputs on, in ten ways
/// to store them.
#[test]
fn compressed_weights_are_cut_and_turned() {
    for (store, opset, weight) in STORES {
        for (fix, usage, rows, columns) in USES {
            let before = written(usage, opset, &weight(*rows, *columns));
            let after = match rewritten(fix, &before) {
                Ok(after) => after,
                // The mask would have to be made anew, element by element.
                Err(why) if store.starts_with("sparse") && why.contains("transposed") => continue,
                Err(why) => panic!("{store}, {fix}: {why}"),
            };
            let f = &before.functions()[0];
            let n_products = ["linear", "matmul", "conv"]
                .iter()
                .map(|kind| count(&after, kind))
                .sum::<usize>();
            assert_eq!(
                n_products,
                if fix.starts_with("split") { 2 } else { 1 },
                "{store}, {fix}"
            );
            let proof = prove(
                f,
                &after,
                FIXES.iter().find(|f| f.name == *fix).unwrap().numbers,
            );
            assert!(
                matches!(proof, Proof::Equal(_)),
                "{store}, {fix}: {proof:?}"
            );
        }
    }
}

/// A cut within what shares a scale or a table is refused, and says so.
#[test]
fn cuts_within_a_block_are_refused() {
    let usage = "tensor<fp16, [3, 4100]> x | tensor<fp16, [3, 20]> y = linear(x = x, weight = w);";
    let blocks = blocks("int4", (20, 4100), &[20, 41], false);
    let tables = palette("uint2", (20, 4100), &[1, 5, 4, 1]);
    for weight in [blocks, tables] {
        let why = rewritten("split_contraction", &written(usage, "ios18", &weight)).unwrap_err();
        assert!(why.contains("within one"), "{why}");
    }
}
