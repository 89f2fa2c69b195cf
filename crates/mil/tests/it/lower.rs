//! Programs in older opsets.

use thane_mil::lower::with_opset;
use thane_mil::opset::{Opset, find_in};
use thane_mil::program::Program;
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
