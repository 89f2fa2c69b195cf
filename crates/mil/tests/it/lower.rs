//! Programs in older opsets.

use thane_mil::literal::Literal;
use thane_mil::lower::with_opset;
use thane_mil::opset::{Opset, find_in};
use thane_mil::program::{Arg, Program};
use thane_mil::text::parse;
use thane_mil::valid;

fn program(opset: &str, inputs: &str, body: &str) -> Program {
    let text = format!("program(1.3) {{ func main<{opset}>({inputs}) {{ {body} }} -> (y); }}");
    parse(&text, &|_, _, _| None).unwrap()
}

#[test]
fn a_program_goes_to_the_opsets_that_have_it() {
    let x = "tensor<fp32, [2, 3]> x";
    for (inputs, body, lowest) in [
        (x, "tensor<fp32, [2, 3]> y = relu(x = x);", Opset::CoreMl5),
        (
            "state<tensor<fp32, [2, 3]>> x",
            "tensor<fp32, [2, 3]> y = read_state(input = x);",
            Opset::CoreMl8,
        ),
    ] {
        let p = program("ios18", inputs, body);
        let older = Opset::ALL.iter().filter(|opset| **opset < lowest);
        assert!(
            older
                .into_iter()
                .all(|opset| with_opset(&p, *opset).is_err())
        );
        let lower = with_opset(&p, lowest).unwrap();
        assert_eq!(lower.functions()[0].opset, lowest);
        valid::check(&lower).unwrap();
    }
}

#[test]
fn everything_that_prevents_lowering_is_listed() {
    let inputs = "state<tensor<fp32, [2, 3]>> s, state<tensor<fp32, [2, 3]>> t";
    let body = "tensor<fp32, [2, 3]> a = read_state(input = s); \
                tensor<fp32, [2, 3]> b = read_state(input = t); \
                tensor<fp32, [2, 3]> y = add(x = a, y = b);";
    let errors = with_opset(&program("ios18", inputs, body), Opset::CoreMl6).unwrap_err();
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let expected = |v: &str| {
        format!("main: read_state `{v}`: opset ios16 does not have this op, it requires ios18")
    };
    assert_eq!(errors, [expected("a"), expected("b")]);
}

#[test]
fn ops_are_rebound_to_the_form_of_the_opset() {
    let p = program(
        "ios15",
        "tensor<fp32, [2, 3]> x",
        "tensor<fp16, [2, 3]> y = cast(x = x, dtype = string(\"fp16\"));",
    );
    for opset in Opset::ALL {
        let other = with_opset(&p, *opset).unwrap();
        let f = &other.functions()[0];
        assert_eq!(Some(f.op(f.body().ops[0]).def), find_in("cast", *opset));
    }
}

/// Compressed constants of iOS 16 have the same bytes in the form of iOS 18.
#[test]
fn packed_constants_are_unpacked_for_newer_opsets() {
    let nine = "shape = tensor<uint32, [2]>([3, 3])";
    let entries = |n: usize| {
        let numbers: Vec<String> = (0..n).map(|i| i.to_string()).collect();
        format!("tensor<fp32, [{n}]>([{}])", numbers.join(", "))
    };
    let bytes = |n: usize| {
        // No bits behind the last code.
        let byte = |i: usize| if i + 1 == n { 1 } else { i * 37 % 251 };
        let codes: Vec<String> = (0..n).map(|i| byte(i).to_string()).collect();
        format!("tensor<uint8, [{n}]>([{}])", codes.join(", "))
    };
    let lut = |n_bits: usize| {
        let (indices, lut) = (bytes((9 * n_bits).div_ceil(8)), entries(1 << n_bits));
        format!(
            "tensor<fp32, [3, 3]> y = constexpr_lut_to_dense()[indices = {indices}, lut = {lut}, \
             {nine}];"
        )
    };
    let sparse = format!(
        "tensor<fp32, [3, 3]> y = constexpr_sparse_to_dense()[nonzero_data = {}, mask = \
         tensor<uint8, [2]>([7, 1]), {nine}];",
        entries(4)
    );
    let bodies = [1, 2, 4, 6, 8].map(lut).into_iter().chain([sparse]);
    for body in bodies {
        let old = program("ios16", "tensor<fp32, [1]> x", &body);
        let new = with_opset(&old, Opset::CoreMl8).unwrap();
        valid::check(&new).unwrap();
        let data = |program: &Program| {
            let f = &program.functions()[0];
            let op = f.all_ops().into_iter().map(|id| f.op(id));
            let mut op = op.filter(|op| op.def.name.starts_with("constexpr"));
            let args = op.next().unwrap().args.iter().flatten();
            let data = args.filter_map(|arg| match arg {
                Arg::Literal(Literal::Tensor(_, data)) => Some(data.to_vec()),
                _ => None,
            });
            data.take(2).collect::<Vec<_>>()
        };
        assert_eq!(data(&new), data(&old), "{body}");
        let f = &new.functions()[0];
        let is_old = |id| f.op(id).def.attributes && !f.op(id).def.is_const();
        assert!(!f.all_ops().into_iter().any(is_old), "{body}");
    }
}
