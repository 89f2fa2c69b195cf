//! The driver: what it says of passes that are wrong, and where it stops.

use thane_compile::driver;
use thane_compile::pass::Answers;
use thane_compile::{CompileError, Options, Outcome, Pass, Site, pipeline, run};
use thane_mil::edit::{New, NewArg, Patch};
use thane_mil::opset::find;
use thane_mil::program::{Function, Origin, Program};
use thane_mil::text::{Blobs, parse, print};

const TEXT: &str = "program(1.3) {
    func main<ios18>(tensor<fp32, [4]> x, tensor<fp32, [3]> z) {
        tensor<fp32, [4]> a = exp(x = x);
        tensor<fp32, [4]> b = sin(x = a);
        tensor<fp32, [4]> c = cos(x = b);
        tensor<fp32, [3]> d = cos(x = z);
    } -> (c, d);
}";

fn program() -> Program {
    parse(TEXT, &|_, _, _| None).unwrap()
}

fn fails(name: &'static str, run: Answers, verify: bool) -> CompileError {
    let options = Options {
        verify,
        stop_after: None,
    };
    driver::run(program(), &[Pass { name, run }], &options).unwrap_err()
}

/// A site at the n-th op, with the patch that `change` makes of it.
fn site(f: &Function, n: usize, change: impl Fn(&mut Patch)) -> Site {
    let mut patch = Patch::new();
    change(&mut patch);
    Site {
        op: f.body().ops[n],
        outcome: Outcome::Applied(patch),
    }
}

/// Uses `b` before it is made; the site before it does no harm.
fn use_too_early(f: &Function) -> Vec<Site> {
    let ops = &f.body().ops;
    let [a, b, c] = [0, 1, 2].map(|n| f.op(ops[n]).results[0]);
    let harmless = site(f, 2, |patch| {
        let origin = Origin {
            pass: Some("harmless"),
            ..Origin::default()
        };
        let twin = patch.insert(
            ops[2],
            find("tanh").unwrap(),
            vec![("x", NewArg::One(New::Value(b)))],
            "t",
            origin,
        );
        patch.replace(c, twin);
        patch.remove(ops[2]);
    });
    vec![
        harmless,
        site(f, 1, |patch| patch.replace(a, New::Value(b))),
    ]
}

fn remove_what_is_used(f: &Function) -> Vec<Site> {
    vec![site(f, 0, |patch| patch.remove(f.body().ops[0]))]
}

fn change_a_type(f: &Function) -> Vec<Site> {
    let [b, d] = [1, 3].map(|n| f.op(f.body().ops[n]).results[0]);
    vec![site(f, 1, |patch| patch.replace(b, New::Value(d)))]
}

/// `exp` becomes `sin`, which becomes `exp`.
fn turn_around(f: &Function) -> Vec<Site> {
    let id = f.body().ops[0];
    let op = f.op(id);
    let other = if op.def.name == "exp" { "sin" } else { "exp" };
    vec![site(f, 0, |patch| {
        let args = vec![("x", NewArg::Same(op.args[0].clone().unwrap()))];
        let new = patch.insert(id, find(other).unwrap(), args, "other", Origin::default());
        patch.replace(op.results[0], new);
        patch.remove(id);
    })]
}

#[test]
fn errors_name_the_pass_and_the_op() {
    let cases: [(_, Answers, &str); 4] = [
        (
            "early",
            use_too_early,
            "early, function `main`, at sin `b`: the program is not legal any more: main: sin `b`",
        ),
        (
            "removal",
            remove_what_is_used,
            "removal, function `main`, at exp `a`: cannot remove op `exp`: its result",
        ),
        (
            "type",
            change_a_type,
            "type, function `main`, at sin `b`: cannot replace `b` of type tensor<fp32, [4]>",
        ),
        (
            "turn",
            turn_around,
            "turn, function `main`, at sin `other_14`: still changing after 16 rounds",
        ),
    ];
    for (name, run, expected) in cases {
        let error = fails(name, run, true).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let error = fails("removal", remove_what_is_used, false).to_string();
    assert!(
        error.starts_with("removal, function `main`, at exp `a`: cannot remove op `exp`"),
        "{error}"
    );
}

#[test]
fn an_illegal_program_is_refused_before_any_pass() {
    // A state as an output.
    let text = TEXT
        .replace("-> (c, d)", "-> (c, d, s)")
        .replace("[3]> z)", "[3]> z, state<tensor<fp32, [4]>> s)");
    let program = parse(&text, &|_, _, _| None).unwrap();
    let error = run(
        program,
        &Options {
            verify: true,
            stop_after: None,
        },
    )
    .unwrap_err()
    .to_string();
    assert!(
        error.starts_with("the program is not legal before any pass: main: s: expected an output"),
        "{error}"
    );
}

#[test]
fn a_pass_that_changes_nothing_has_no_effect() {
    let idle = Pass {
        name: "idle",
        run: |f| vec![site(f, 0, |_| {})],
    };
    let (_, report) = driver::run(program(), &[idle], &Options::default()).unwrap();
    assert_eq!(
        report.passes[0].to_string(),
        "idle: 0 changed, 1 without effect"
    );
}

#[test]
fn an_empty_program_goes_through() {
    let (program, report) = run(
        Program::default(),
        &Options {
            verify: true,
            stop_after: None,
        },
    )
    .unwrap();
    assert_eq!(
        (program.functions().len(), report.passes.len()),
        (0, pipeline::PASSES.len())
    );
}

/// A copy that is given, of what other ops read, is what programs without Core ML need.
#[test]
fn an_identity_stays_where_it_gives_what_other_ops_read() {
    let text = "program(1.3) { func main<ios18>(tensor<fp32, [2]> x) {
        tensor<fp32, [2]> a = relu(x = x);
        tensor<fp32, [2]> copy = identity(x = a);
        tensor<fp32, [2]> b = exp(x = a);
        tensor<fp32, [2]> only = identity(x = b);
    } -> (copy, only); }";
    let program = parse(text, &|_, _, _| None).unwrap();
    let options = Options {
        verify: true,
        stop_after: None,
    };
    let (better, _) = run(program, &options).unwrap();
    let text = print(&better, &mut Blobs::default());
    assert!(
        text.contains("copy = identity(x = a)") && text.matches("identity").count() == 1,
        "{text}"
    );
}

/// What a branch gives may be a value of the outside that a pass takes away, and an input may stand
/// for it.
#[test]
fn what_nested_blocks_give_is_redirected_too() {
    let text = "program(1.3) { func main<ios18>(tensor<fp32, [2]> x, tensor<bool, [1]> p) {
        tensor<fp32, [2]> same = identity(x = x);
        bool which = squeeze(x = p, axes = tensor<int32, [1]>([0]));
        tensor<fp32, [2]> y = cond(pred = which) {
            block() { } -> (same);
            block() { tensor<fp32, [2]> r = relu(x = same); } -> (r);
        };
    } -> (y); }";
    let program = parse(text, &|_, _, _| None).unwrap();
    let (better, _) = run(
        program,
        &Options {
            verify: true,
            stop_after: None,
        },
    )
    .unwrap();
    let text = print(&better, &mut Blobs::default());
    assert!(
        !text.contains("identity") && text.contains("-> (x)") && text.contains("relu(x = x)"),
        "{text}"
    );
}
