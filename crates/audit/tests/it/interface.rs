//! Inputs, outputs and states in rows that fill 64 bytes: only where it is asked for, all of a
//! program or nothing.

use thane_audit::fix::{self, Numbers, Options, Proof, Report, Verdict};
use thane_audit::target::{Route, Target, Units};
use thane_mil::program::{Function, Program};
use thane_mil::valid;

use crate::fixes::{on_cpu, program, prove};

fn padded(text: &str, route: Route, pad_interface: bool) -> (Program, Program, Report) {
    let before = program(text);
    let target = Target::parse("m4+macos27", Units::default(), route).unwrap();
    let options = Options {
        pad_interface,
        ..Options::default()
    };
    let (after, report) = fix::run(before.clone(), &target, &options, &mut on_cpu()).unwrap();
    valid::check(&after).unwrap();
    (before, after, report)
}

fn types(f: &Function) -> Vec<String> {
    let ends = f.body().inputs.iter().chain(&f.body().outputs);
    ends.map(|v| format!("{} {}", f.value(*v).name, f.value(*v).ty))
        .collect()
}

const CALL: &str = "program(1.3) {
    func main<ios18>(tensor<fp16, [2, 33]> x, tensor<int32, [2, 5]> i, tensor<fp16, [3, 64]> z) {
        tensor<fp16, [33, 7]> w = const()[val = tensor<fp16, [33, 7]>(BLOBFILE(path = string(\"noise\"), offset = uint64(1)))];
        tensor<fp16, [2, 7]> y = matmul(x = x, y = w);
        tensor<int32, [2, 5]> j = add(x = i, y = int32(1));
        tensor<fp16, [3, 64]> k = relu(x = z);
    } -> (y, j, k); }";

#[test]
fn rows_of_calls_fill_64_bytes_where_that_is_asked_for() {
    let (_, after, report) = padded(CALL, Route::Direct, true);
    let found = types(&after.functions()[0]);
    let due = [
        "x tensor<fp16, [2, 64]>",
        "i tensor<int32, [2, 32]>",
        "z tensor<fp16, [3, 64]>",
        "y tensor<fp16, [2, 32]>",
        "j tensor<int32, [2, 32]>",
        "k tensor<fp16, [3, 64]>",
    ];
    assert_eq!(found, due);
    let listed: Vec<String> = report.interface.iter().map(ToString::to_string).collect();
    assert_eq!(listed.len(), 4, "{listed:?}");
    assert_eq!(
        listed[0],
        "main: input `x` was tensor<fp16, [2, 33]>, is tensor<fp16, [2, 64]>; behind that anything: it is not read"
    );
    assert!(
        report
            .kept()
            .any(|s| s.fix == "pad_interface" && s.rules == ["ANE062"]),
        "{report}"
    );
    assert!(!report.left.iter().any(|l| l.rule == "ANE062"), "{report}");
    let (before, after, report) = padded(CALL, Route::Direct, false);
    assert_eq!(types(&after.functions()[0]), types(&before.functions()[0]));
    assert!(
        report
            .left
            .iter()
            .any(|l| l.rule == "ANE062" && l.reason.contains("not asked for")),
        "{report}"
    );
    // Core ML pads what a call passes by itself.
    let (before, after, _) = padded(CALL, Route::CoreMl, true);
    assert_eq!(types(&after.functions()[0]), types(&before.functions()[0]));
}

/// What reads an input behind its old end, or gives what lies there, is seen.
#[test]
fn what_lies_behind_the_end_does_not_count() {
    let text = |begin: usize, pad: usize| {
        format!(
            "program(1.3) {{ func f<ios18>(tensor<fp16, [2, 64]> x) {{
            tensor<fp16, [2, 33]> s = slice_by_size(x = x, begin = tensor<int32, [2]>([0, {begin}]), size = tensor<int32, [2]>([2, 33]));
            tensor<fp16, [2, 33]> e = exp(x = s);
            tensor<fp16, [2, 64]> y = pad(x = e, pad = tensor<int32, [4]>([0, 0, {pad}, {}]), mode = string(\"constant\"), constant_val = fp16(0x1p+0)); }} -> (y); }}",
            31 - pad
        )
    };
    let before = program(
        "program(1.3) { func f<ios18>(tensor<fp16, [2, 33]> x) { tensor<fp16, [2, 33]> y = exp(x = x); } -> (y); }",
    );
    let prove = |after: &str| {
        prove(
            &before.functions()[0],
            &program(after).functions()[0],
            Numbers::Exact,
        )
    };
    assert!(
        matches!(prove(&text(0, 0)), Proof::Equal(_)),
        "{:?}",
        prove(&text(0, 0))
    );
    for wrong in [text(1, 0), text(31, 0), text(0, 1)] {
        assert!(
            matches!(prove(&wrong), Proof::Differs(_)),
            "{:?}",
            prove(&wrong)
        );
    }
}

/// A cache of two functions: each writes a row, and gives what is read after.
const STATE: &str = "program(1.3) {
    func one<ios18>(state<tensor<fp16, [4, 33]>> cache, tensor<fp16, [1, 33]> x) {
        tensor<fp16, [4, 33]> r = read_state(input = cache);
        tensor<int32, [2]> b = const()[val = tensor<int32, [2]>([1, 0])];
        tensor<int32, [2]> e = const()[val = tensor<int32, [2]>([2, 33])];
        tensor<fp16, [4, 33]> u = slice_update(x = r, update = x, begin = b, end = e);
        tensor<fp16, [4, 33]> w = coreml_update_state(state = cache, value = u);
        tensor<fp16, [4, 33]> y = add(x = w, y = r);
    } -> (y);
    func two<ios18>(state<tensor<fp16, [4, 33]>> cache) {
        tensor<fp16, [4, 33]> r = read_state(input = cache);
        tensor<fp16, [4, 33]> y = exp(x = r);
    } -> (y); }";

#[test]
fn states_of_all_functions_are_padded_or_none() {
    let (_, after, report) = padded(STATE, Route::CoreMl, true);
    for f in after.functions() {
        assert!(types(f)[0].contains("[4, 64]"), "{}", f.name);
        assert!(
            types(f).last().unwrap().contains("[4, 33]"),
            "what Core ML passes stays"
        );
    }
    assert!(
        report
            .interface
            .iter()
            .all(|c| c.role == "state" && c.padding() == "0")
    );
    assert!(!report.left.iter().any(|l| l.rule == "ANE070"), "{report}");
}

/// What is refused names the reason, and leaves every function as it was.
#[test]
fn what_cannot_be_padded_is_refused_with_the_reason() {
    let direct = "program(1.3) {
        func a<ios18>(tensor<fp16, [2, 33]> x) { tensor<fp16, [2, 33]> y = relu(x = x); } -> (y);
        func b<ios18>(tensor<fp16, [2, 33]> x) { tensor<fp16, [2, 33]> y = relu(x = x); } -> (y, x); }";
    let (before, after, report) = padded(direct, Route::Direct, true);
    for (f, g) in before.functions().iter().zip(after.functions()) {
        assert_eq!(types(f), types(g));
    }
    let reasons: Vec<&str> = report
        .steps
        .iter()
        .filter_map(|s| match &s.verdict {
            Verdict::Rejected(why) if s.fix == "pad_interface" => Some(why.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(
        reasons,
        [
            "another function of the program cannot be padded",
            "an input of it is an output"
        ]
    );
    assert!(report.interface.is_empty());
}
