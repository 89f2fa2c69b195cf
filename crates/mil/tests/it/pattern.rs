//! Patterns match, refuse or say nothing.

use thane_mil::graph::Graph;
use thane_mil::pattern;
use thane_mil::pattern::Pattern::{self, Else, Number, Once, OneOf};
use thane_mil::text::parse;

const NORM: Pattern = pattern!(mul(x, root @ rsqrt((OneOf(&[SUM, MEAN])))));
const SUM: Pattern = pattern!(sum@add{(MEAN), (Number("epsilon", |e| e > 0.0))});
const MEAN: Pattern = Once(&pattern!(mean@reduce_mean((SQUARE))));
const SQUARE: Pattern = Else(&pattern!(mul(x, x)), "it is no mean of squares");

/// What the pattern answers around each op of a body: the numbers and ops that it found.
fn answers(body: &str) -> Vec<String> {
    let text = format!(
        "program(1.3) {{ func f<ios18>(tensor<fp32, [2, 3]> x, tensor<fp32, [2, 3]> z) {{
           {} }} -> (y); }}",
        body
    );
    let program = parse(&text, &|_, _, _| None).unwrap_or_else(|e| panic!("{e}"));
    let f = &program.functions()[0];
    let graph = Graph::new(f);
    let ops = f.body().ops.iter().filter(|op| !f.op(**op).def.is_const());
    ops.map(|op| match NORM.find_around(&graph, *op) {
        Ok(None) => "no".to_owned(),
        Ok(Some(found)) => format!("{} {:?}", found.ops.len(), found.number("epsilon")),
        Err(words) => words.to_owned(),
    })
    .collect()
}

const AXES: &str = "axes = tensor<int32, [1]>([1]), keep_dims = bool(true)";

#[test]
fn a_pattern_matches_refuses_or_says_nothing() {
    let norm = |square: &str, sum: &str, last: &str| {
        answers(&format!(
            "tensor<fp32, [2, 3]> q = mul({square});
             tensor<fp32, [2, 1]> m = reduce_mean(x = q, {AXES});
             {sum}
             tensor<fp32, [2, 3]> y = mul({last});"
        ))
    };
    let root = "tensor<fp32, [2, 1]> r = rsqrt(x = m);";
    let added = "tensor<fp32, [2, 1]> e = add(x = fp32(0x1p-3), y = m);
        tensor<fp32, [2, 1]> r = rsqrt(x = e);";
    // Each op of it, be it written with an epsilon or without.
    assert_eq!(norm("x = x, y = x", root, "x = x, y = r"), ["4 None"; 4]);
    let with = norm("x = x, y = x", added, "x = x, y = r");
    assert_eq!(with, ["5 Some(0.125)"; 5]);
    // A name stands for one value.
    let other = norm("x = x, y = x", root, "x = z, y = r");
    assert_eq!(other, ["it is no mean of squares"; 4]);
    let product = norm("x = x, y = z", root, "x = x, y = r");
    assert_eq!(product, ["it is no mean of squares"; 4]);
    // A number that the condition does not hold for, and a mean that is used twice.
    let below = added.replace("0x1p-3", "-0x1p-3");
    assert_eq!(norm("x = x, y = x", &below, "x = x, y = r"), ["no"; 5]);
    let twice = format!("{root} tensor<fp32, [2, 1]> t = exp(x = m);");
    assert_eq!(norm("x = x, y = x", &twice, "x = x, y = r"), ["no"; 5]);
}
/// The arguments that names stand for, values and what is written in place, and the ops.
#[test]
fn arguments_are_in_the_order_of_parameters_and_may_be_written_in_place() {
    const KINDS: &[&str] = &["exp", "tanh"];
    let text = "program(1.3) { func f<ios18>(tensor<fp32, [2, 3]> x, tensor<fp32, [2, 3]> z) {
        tensor<fp32, [2, 3]> a = exp(x = x);
        tensor<fp32, [2, 3]> b = mul(x = a, y = fp32(0x1p-1));
        tensor<fp32, [2, 9]> y = concat(values = (a, z, b), axis = int32(1));
      } -> (y); }";
    let program = parse(text, &|_, _, _| None).unwrap_or_else(|e| panic!("{e}"));
    let f = &program.functions()[0];
    let graph = Graph::new(f);
    let root = graph.maker(f.body().outputs[0]).unwrap();
    let found = |pattern: Pattern| {
        let found = pattern.at(&graph, root)?;
        let name = |name: &str| found.value(name).map(|v| f.value(v).name.as_str());
        Some((found.ops.len(), name("x"), name("z"), found.number("half")))
    };
    let (x, z) = (Some("x"), Some("z"));
    // Each value of a variadic parameter is an argument; an op that two arguments come from counts
    // once.
    let scaled = pattern!(concat(a@(KINDS)(x), z, [sub, mul](a, #half)));
    assert_eq!(found(scaled), Some((3, x, z, Some(0.5))));
    let unordered = pattern!(concat(_, z, mul{#half, exp()}));
    assert_eq!(found(unordered), Some((3, None, z, Some(0.5))));
    // A literal is no value, `z` is made by no op, and there is no third factor.
    assert_eq!(found(pattern!(concat(_, z, mul(a, half)))), None);
    assert_eq!(found(pattern!(concat(_, exp(), _))), None);
    assert_eq!(found(pattern!(concat(_, _, mul(_, _, _)))), None);
    // A number that is written in place twice is two.
    assert_eq!(found(pattern!(concat(_, _, mul(#half, #half)))), None);
}
