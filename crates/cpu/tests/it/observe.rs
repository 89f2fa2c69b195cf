//! What ops take and give while a function runs.

use std::ops::ControlFlow;

use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::{RunError, View};
use thane_mil::observe::{Given, Observe, ObserveError};
use thane_mil::program::{Function, OpId, Program};
use thane_mil::text::parse;
use thane_mil::types::DType;
use thane_mil::valid;

const CPU: Cpu = Cpu::new(Numerics::F32, 1);

/// Two products of one x, which a plan joins; sums in place of their operands; a state; a loop.
const TEXT: &str = "program(1.3) {
    func main<ios18>(tensor<int32, [1]> n, tensor<fp32, [1, 2]> x, state<tensor<fp32, [1, 2]>> s) {
        tensor<fp32, [2, 2]> w = constexpr_blockwise_shift_scale(data = tensor<int8, [2, 2]>([[2, -4], [6, 8]]), scale = tensor<fp32, [2, 1]>([[0.5], [0.25]]));
        tensor<fp32, [2, 2]> swap = const()[val = tensor<fp32, [2, 2]>([[0, 1], [1, 0]])];
        fp32 three = const()[val = fp32(3)];
        tensor<int32, [1]> zero = const()[val = tensor<int32, [1]>([0])];
        tensor<int32, [1]> one = const()[val = tensor<int32, [1]>([1])];
        tensor<fp32, [1, 2]> a = linear(x = x, weight = w);
        tensor<fp32, [1, 2]> b = linear(x = x, weight = swap);
        tensor<fp32, [1, 2]> sum = add(x = a, y = b);
        tensor<fp32, [1, 2]> old = read_state(input = s);
        tensor<fp32, [1, 2]> new = add(x = sum, y = old);
        tensor<fp32, [1, 2]> kept = coreml_update_state(state = s, value = new);
        tensor<int32, [1]> end, tensor<fp32, [1, 2]> last = while_loop(loop_vars = (zero, new)) {
            block(tensor<int32, [1]> i, tensor<fp32, [1, 2]> v) {
                tensor<bool, [1]> less = less(x = i, y = n);
                bool more = squeeze(axes = tensor<int32, [1]>([0]), x = less);
            } -> (more);
            block(tensor<int32, [1]> j, tensor<fp32, [1, 2]> u) {
                tensor<int32, [1]> next = add(x = j, y = one);
                tensor<fp32, [1, 2]> triple = mul(x = u, y = three);
            } -> (next, triple);
        };
        tensor<fp32, [1, 2]> y = relu(x = last);
    } -> (end, y);
}";

/// What [`TEXT`] gives for two rounds of its loop, by numpy 2.4 in f64:
/// `w = [[2, -4], [6, 8]] * [[0.5], [0.25]]`, `a = x @ w.T`, `b = x @ [[0, 1], [1, 0]]` for
/// `x = [[3, -1]]`, where the state is `[[10, 20]]` at first.
const EXPECTED: [&str; 14] = [
    "0 a: x [3.0, -1.0], w [1.0, -2.0, 1.5, 2.0] -> [5.0, 2.5]",
    "0 b: x [3.0, -1.0], swap [0.0, 1.0, 1.0, 0.0] -> [-1.0, 3.0]",
    "0 sum: a [5.0, 2.5], b [-1.0, 3.0] -> [4.0, 5.5]",
    "0 new: sum [4.0, 5.5], old [10.0, 20.0] -> [14.0, 25.5]",
    "0 kept: s [10.0, 20.0], new [14.0, 25.5] -> [14.0, 25.5]",
    "0 triple: u [14.0, 25.5], three [3.0] -> [42.0, 76.5]",
    "0 triple: u [42.0, 76.5], three [3.0] -> [126.0, 229.5]",
    "1 a: x [3.0, -1.0], w [1.0, -2.0, 1.5, 2.0] -> [5.0, 2.5]",
    "1 b: x [3.0, -1.0], swap [0.0, 1.0, 1.0, 0.0] -> [-1.0, 3.0]",
    "1 sum: a [5.0, 2.5], b [-1.0, 3.0] -> [4.0, 5.5]",
    "1 new: sum [4.0, 5.5], old [14.0, 25.5] -> [18.0, 31.0]",
    "1 kept: s [14.0, 25.5], new [18.0, 31.0] -> [18.0, 31.0]",
    "1 triple: u [18.0, 31.0], three [3.0] -> [54.0, 93.0]",
    "1 triple: u [54.0, 93.0], three [3.0] -> [162.0, 279.0]",
];

fn program() -> Program {
    let program = parse(TEXT, &|_, _, _| None).unwrap();
    valid::check(&program).unwrap();
    program
}

/// The ops of floats, with those inside of the loop.
fn asks(f: &Function, op: OpId) -> bool {
    let result = f.op(op).results[0];
    let is_named = ["linear", "add", "mul", "coreml_update_state"].contains(&f.op(op).def.name);
    is_named && f.value(result).name != "next"
}

/// Calls of the asked ops in two runs, as text, until `visit` is done with one.
fn observe(
    f: &Function,
    visit: impl Fn(&str) -> Result<ControlFlow<()>, String> + Sync,
) -> (Vec<String>, Result<ControlFlow<()>, ObserveError>) {
    let bytes = |values: [f32; 2]| values.map(f32::to_ne_bytes).concat();
    let (n, x, s) = (2i32.to_ne_bytes(), bytes([3.0, -1.0]), bytes([10.0, 20.0]));
    let view = |dtype, shape, bytes| View {
        dtype,
        shape,
        bytes,
    };
    let inputs = [
        ("n", view(DType::Int32, &[1][..], &n[..])),
        ("x", view(DType::Fp32, &[1, 2], &x)),
    ];
    let states = [("s", view(DType::Fp32, &[1, 2][..], &s[..]))];
    let runs = [&states[..], &[]].map(|states| Given {
        inputs: &inputs,
        states,
    });
    let mut calls = Vec::new();
    let ran = CPU.observe(f, &runs, &|op| asks(f, op), &mut |call| {
        let numbers = |value| {
            let numbers = call.value(value)?.f32s().map(<[f32]>::to_vec);
            numbers.ok_or("expected fp32".to_owned())
        };
        let (op, mut operands) = (f.op(call.op), Vec::new());
        for value in op.uses() {
            operands.push(format!("{} {:?}", f.value(value).name, numbers(value)?));
        }
        let name = &f.value(op.results[0]).name;
        let (run, operands) = (call.run, operands.join(", "));
        let result = numbers(op.results[0])?;
        calls.push(format!("{run} {name}: {operands} -> {result:?}"));
        // What the op does not take is not handed over.
        let stranger = call.value(*f.body().outputs.last().unwrap()).unwrap_err();
        assert!(stranger.contains("found `y`"), "{stranger}");
        visit(name)
    });
    (calls, ran)
}

#[test]
fn ops_that_are_asked_for_show_what_they_take_and_give() {
    let (calls, ran) = observe(&program().functions()[0], |_| Ok(ControlFlow::Continue(())));
    assert_eq!(ran.unwrap(), ControlFlow::Continue(()));
    assert_eq!(calls, EXPECTED);
}

/// Outside of the loop, and inside of it.
#[test]
fn a_caller_ends_the_runs() {
    for (last, n_calls) in [("b", 2), ("triple", 6)] {
        let (calls, ran) = observe(&program().functions()[0], |name| {
            Ok(if name == last {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        });
        assert_eq!(ran.unwrap(), ControlFlow::Break(()));
        assert_eq!(calls, EXPECTED[..n_calls]);
    }
}

#[test]
fn a_caller_that_cannot_go_on_is_named_with_the_op() {
    let (calls, ran) = observe(&program().functions()[0], |name| {
        if name == "triple" {
            return Err("the sums are full".to_owned());
        }
        Ok(ControlFlow::Continue(()))
    });
    let error = ran.unwrap_err().to_string();
    assert_eq!(
        error,
        "main: op `mul` that makes `triple`: the sums are full"
    );
    assert_eq!(calls, EXPECTED[..6]);
}

#[test]
fn runs_without_their_inputs_are_refused() {
    let program = program();
    let f = &program.functions()[0];
    let observe = |inputs| {
        let given = Given {
            inputs,
            states: &[],
        };
        let ran = CPU.observe(f, &[given], &|_| true, &mut |_| Ok(ControlFlow::Break(())));
        ran.unwrap_err()
    };
    let error = observe(&[]);
    assert!(
        matches!(&error, ObserveError::Run(RunError::NoInput(name)) if name == "n"),
        "{error}"
    );
    let view = View {
        dtype: DType::Fp32,
        shape: &[1],
        bytes: &[0; 4],
    };
    let error = observe(&[("n", view)]).to_string();
    assert!(
        error.contains("expected 4 bytes of int32, found 4 of fp32"),
        "{error}"
    );
}
