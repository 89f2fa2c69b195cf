//! Writes gathers from a small table as products with a one-hot matrix.
//!
//! ```text
//! func f<ios18>(tensor<int32, [3]> i) {
//!     tensor<fp16, [5, 8]> t = const()[val = tensor<fp16, [5, 8]>(BLOBFILE(path = string("noise"), offset = uint64(0)))];
//!     tensor<fp16, [3, 8]> y = gather(x = t, indices = i, axis = int32(0));
//! } -> (y);
//! ```
//!
//! becomes a comparison of the indices, as fp16, with 0, 1, .. 4, and a `matmul` with the table. To
//! indices below 0, which count from the end, 5 is added before. The `cast` of the indices leaves
//! the engine; without it, look rows up on the host.

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "lower_gather",
    rules: &["ANE014", "ANE142"],
    what: "rows of a small table by a product with a one-hot matrix",
    numbers: Numbers::Exact,
    pattern: Else(&pattern!(gather()), OTHER),
    write,
};

const OTHER: &str = "only a gather of rows is a product: look up on the host";

/// Indices up to here are exact in fp16.
const MOST: usize = 2048;

fn write(new: &Rewrite<'_>) -> Answer {
    let (id, op) = (new.root(), new.graph.op(new.root()));
    if ["axis", "batch_dims"]
        .iter()
        .any(|name| int(new.graph, id, name).unwrap_or(0) != 0)
    {
        return Err(OTHER);
    }
    let table = Constant::of(new.graph, op, "x");
    let table = table.ok_or("its table is no plain constant: look up on the host")?;
    let n = table.shape[0];
    if n > MOST {
        return Err("its table has more than 2048 rows: look up on the host");
    }
    let indices = op.value_arg("indices").ok_or("its indices are constant")?;
    let index_shape = new.graph.known_shape(indices);
    let index_shape = index_shape.ok_or("the shape of its indices is not fixed")?;
    let (n_indices, width) = (
        index_shape.iter().product(),
        table.shape[1..].iter().product(),
    );
    let out = new.result_shape()?;
    let column = new.of(indices).reshape(&[n_indices, 1]).cast(DType::Fp16);
    let below = column.with_number("less", 0.0);
    let column = below.select(column + n as f32, column);
    let row = new.numbers(DType::Fp16, &[1, n], (0..n).map(|i| i as f32));
    let hot = column.binary("equal", row).cast(table.dtype);
    let table = new.literal(table.reshaped(vec![n, width]).literal());
    new.instead(hot.binary("matmul", table).reshape(&out))
}
