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

use thane_mil::edit::New;
use thane_mil::program::OpId;
use thane_mil::types::DType;

use super::rewrite::{Rewrite, one, result_shape};
use super::weights::Constant;
use super::{Answer, Fix, Numbers};
use crate::rules::query::int;
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "lower_gather",
    rules: &["ANE014", "ANE142"],
    what: "rows of a small table by a product with a one-hot matrix",
    numbers: Numbers::Exact,
    run,
};

/// Indices up to here are exact in fp16.
const MOST: usize = 2048;

fn run(view: &View<'_>, id: OpId) -> Answer {
    let op = view.op(id);
    if op.def.name != "gather"
        || int(view, id, "axis").unwrap_or(0) != 0
        || int(view, id, "batch_dims").unwrap_or(0) != 0
    {
        return Err("only a gather of rows is a product: look up on the host");
    }
    let table =
        Constant::of(view, op, "x").ok_or("its table is no plain constant: look up on the host")?;
    let n = table.shape[0];
    if n > MOST {
        return Err("its table has more than 2048 rows: look up on the host");
    }
    let indices = op.value_arg("indices").ok_or("its indices are constant")?;
    let index_shape = view
        .known_shape(indices)
        .ok_or("the shape of its indices is not fixed")?;
    let (n_indices, width) = (
        index_shape.iter().product(),
        table.shape[1..].iter().product(),
    );
    let out = result_shape(view, id)?;
    let dtype = table.dtype;
    let mut new = Rewrite::new(view, id, FIX.name);
    let column = new.reshape(New::Value(indices), &[n_indices, 1]);
    let column = new.cast(column, DType::Fp16);
    let below = new.with_number("less", column, DType::Fp16, 0.0);
    let from_end = new.with_number("add", column, DType::Fp16, n as f32);
    let column = new.op(
        "select",
        vec![one("cond", below), one("a", from_end), one("b", column)],
    );
    let row = new.numbers(DType::Fp16, &[1, n], (0..n).map(|i| i as f32));
    let hot = new.binary("equal", column, row);
    let hot = new.cast(hot, dtype);
    let table = new.literal(table.reshaped(vec![n, width]).literal());
    let y = new.binary("matmul", hot, table);
    let y = new.reshape(y, &out);
    new.instead(y)
}
