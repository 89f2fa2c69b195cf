//! Divides x by its largest magnitude before a root mean square norm, so that no square overflows
//! fp16.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [1, 64, 1, 4]> x) {
//!     tensor<fp16, [1, 64, 1, 4]> q = mul(x = x, y = x);
//!     tensor<fp16, [1, 1, 1, 4]> m = reduce_mean(x = q, axes = tensor<int32, [1]>([1]), keep_dims = bool(true));
//!     tensor<fp16, [1, 1, 1, 4]> e = add(x = m, y = fp16(0x1p-14));
//!     tensor<fp16, [1, 1, 1, 4]> r = rsqrt(x = e);
//!     tensor<fp16, [1, 64, 1, 4]> y = mul(x = x, y = r);
//! } -> (y);
//! ```
//!
//! With t = max(1, max |x|) it becomes s = x / t, and s * rsqrt(mean(s^2) + e / t / t): the same,
//! since t cancels. It also does `sqrt` and a division, and `reduce_l2_norm` by itself, as t *
//! norm(s).

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "scale_rms_norm",
    rules: &["ANE105"],
    what: "sums of squares of what was divided by its largest magnitude",
    numbers: Numbers::Exact,
    pattern: Else(
        &OneOf(&[pattern!(sum @ reduce_l2_norm(x)), PRODUCT, QUOTIENT]),
        OTHER,
    ),
    write,
};

/// `x * rsqrt(mean(x^2) + epsilon)`, of the mean or the sum of squares.
pub const PRODUCT: Pattern = pattern!(mul{x, (ROOT)});
/// `x / sqrt(mean(x^2) + epsilon)`.
pub const QUOTIENT: Pattern = pattern!(real_div(x, (ROOT)));
/// Of what is neither.
pub const OTHER: &str = "no root and product of a norm follow it";

const ROOT: Pattern = Once(&pattern!(root @ [rsqrt, sqrt]((MEAN))));
const MEAN: Pattern = OneOf(&[
    Once(&pattern!(add{(SUM), (Number("epsilon", |_| true))})),
    SUM,
]);
const SUM: Pattern = Once(&OneOf(&[
    pattern!(sum @ reduce_sum_square(x)),
    pattern!(sum @ [reduce_mean, reduce_sum]((SQUARE))),
]));
const SQUARE: Pattern = OneOf(&[
    pattern!(square(x)),
    pattern!(mul(x, x)),
    pattern!(pow(x, (Number("", |y| y == 2.0)))),
]);

/// The epsilon that is added to the mean of squares in all; refused if it is another form.
pub fn epsilon(new: &Rewrite<'_>) -> Result<f32, &'static str> {
    let root = new.maker("root");
    let own = float(new.graph, root, "epsilon");
    let own = match (new.kind(new.root()), new.kind(root)) {
        ("mul", "rsqrt") if own.is_none_or(|own| own <= 1e-3) => own.unwrap_or(1e-12),
        ("real_div", "sqrt") => 0.0,
        _ => return Err(OTHER),
    };
    Ok(new.found.number("epsilon").unwrap_or(0.0) + own)
}

fn axes(new: &Rewrite<'_>, sum: OpId, rank: usize) -> Result<Vec<usize>, &'static str> {
    if new.graph.op(sum).arg("axes").is_none() {
        return Ok((0..rank).collect());
    }
    let axes = ints(new.graph, sum, "axes").ok_or("its axes are not constant")?;
    let axes = axes
        .into_iter()
        .map(|a| wrap(a, rank))
        .collect::<Option<_>>();
    axes.ok_or("its axes are none of x")
}

fn write(new: &Rewrite<'_>) -> Answer {
    let (sum, x) = (new.maker("sum"), new.value("x"));
    let (_, shape) = new.operand(sum, "x")?;
    let axes = axes(new, sum, shape.len())?;
    let out = result_shape(new.graph, sum)?;
    // max(1, max |x|) along the axes, which stay.
    let largest = || {
        x.abs()
            .reduce("reduce_max", &axes)
            .with_number("maximum", 1.0)
    };
    if new.kind(sum) == "reduce_l2_norm" {
        let t = largest();
        let norm = new.again(new.graph.op(sum), &[("x", x / t)]);
        let t = t.reshape(&out);
        return new.instead(norm * t);
    }
    let epsilon = epsilon(new)?;
    if out.len() != shape.len() {
        return Err("the reduced axes are dropped");
    }
    let t = largest();
    let s = x / t;
    // Squares that are no values of their own are not rounded to fp16, where small ones are 0.
    let squares = match new.kind(sum) {
        "reduce_sum_square" => s.reduce("reduce_sum_square", &axes),
        reduce => (s * s).reduce(reduce, &axes),
    };
    // Twice by t and not once by its square, which fp16 may not hold.
    let squares = squares + x.number(epsilon) / t / t;
    new.instead(match new.kind(new.maker("root")) {
        "sqrt" => s / squares.sqrt(),
        _ => s * new.op("rsqrt", &[("x", squares), ("epsilon", x.number(0.0))]),
    })
}
