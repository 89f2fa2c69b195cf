//! Programs of odd sizes: too large for any device, without ops, of one position and of several.

use std::cell::Cell;

use thane_audit::report::require::{Requirements, judge};
use thane_audit::report::{FunctionRow, Part, Report, Scope, Subject, build, build_until};
use thane_audit::target::{CHIPS, Route, Target, Units, most_channels};
use thane_mil::text::parse;

use crate::rules::constant;

fn report(function: &str, target: &str, units: Units) -> Report {
    let program = parse(
        &format!("program(1.3) {{ func main<ios18>{function} }}"),
        &constant,
    );
    let subject = Subject::new("text", "text", vec![Part::new(program.unwrap())]);
    let target = Target::parse(target, units, Route::CoreMl).unwrap();
    build(&subject, &[target], Scope::default())
}

/// Whoever audits for others can stop when they have gone.
#[test]
fn an_audit_ends_when_it_is_interrupted() {
    let text = "(tensor<fp16, [1, 64, 1, 64]> x) { tensor<fp16, [1, 64, 1, 64]> y = relu(x = x); \
                } -> (y);";
    let program = parse(
        &format!("program(1.3) {{ func main<ios18>{text} }}"),
        &constant,
    );
    let subject = Subject::new("text", "text", vec![Part::new(program.unwrap())]);
    let target = Target::parse("m4", Units::All, Route::CoreMl).unwrap();
    let n_asked = Cell::new(0);
    let audit = |most: usize| {
        n_asked.set(0);
        let interrupted = || {
            n_asked.set(n_asked.get() + 1);
            n_asked.get() > most
        };
        build_until(&subject, &[target; 2], Scope::default(), &interrupted)
    };
    let whole = audit(usize::MAX).unwrap();
    assert_eq!(whole.targets.len(), 2);
    let n_all = n_asked.get();
    assert!(n_all > 100, "{n_all} times");
    for most in [0, 1, n_all / 2, n_all - 1] {
        assert!(audit(most).is_none());
        assert_eq!(n_asked.get(), most + 1);
    }
}

fn function(text: &str, target: &str) -> FunctionRow {
    let mut report = report(text, target, Units::CpuAndNeuralEngine);
    report.targets.remove(0).functions.remove(0)
}

/// `thane convert --direct` cuts logits into outputs of so many channels.
#[test]
fn every_chip_takes_the_most_channels_and_no_more() {
    let is_long = |n: usize, chip: &str| {
        let ty = format!("tensor<fp16, [1, {n}, 1, 32]>");
        let text = format!("({ty} x) {{ {ty} y = relu(x = x); }} -> (y);");
        let report = report(&text, chip, Units::CpuAndNeuralEngine);
        let mut found = report.targets[0].findings.iter();
        found.any(|finding| ["ANE055", "ANE056"].contains(&finding.rule))
    };
    assert_eq!(most_channels(), 65_536);
    for chip in CHIPS {
        assert!(!is_long(most_channels(), chip.name), "{}", chip.name);
        assert!(is_long(most_channels() + 1, chip.name), "{}", chip.name);
    }
}

/// A chain of two ops on a value of so many rows of 4,096 numbers, 16 for one row.
fn chain(rows: usize) -> String {
    let ty = format!("tensor<fp16, [1, 16, {rows}, 4096]>");
    format!("({ty} x) {{ {ty} a = relu(x = x); {ty} y = sqrt(x = a); }} -> (y);")
}

/// What a call has in memory at once is held against the memory of the largest device.
#[test]
fn activations_that_no_device_holds_do_not_load() {
    let cases = [
        ("m4", 16_000, "none", None),
        // 4.2 TB at once.
        ("m4", 16_000_000, "likely", Some("32 GiB")),
        ("m3-ultra", 16_000_000, "likely", Some("512 GiB")),
        ("a14", 32_000, "likely", Some("6 GiB")),
        ("m4", 32_000, "none", None),
    ];
    for (chip, rows, risk, memory) in cases {
        let mut report = report(&chain(rows), chip, Units::CpuAndNeuralEngine);
        let target = &report.targets[0];
        let peak = target.functions[0].latency.peak_bytes;
        assert_eq!(
            target.functions[0].latency.load_risk, risk,
            "{chip}, {rows}: {peak}"
        );
        assert!(memory.is_none() || target.verdict == "fails", "{chip}");
        let least = Some(1.0);
        judge(
            &mut report,
            Requirements {
                least,
                ..Requirements::default()
            },
        );
        let said = memory.map(|gib| format!("devices with this chip have {gib} at most"));
        let is_said = |said: &String| report.failures.iter().any(|f| f.contains(said));
        assert!(said.iter().all(is_said), "{:?}", report.failures);
    }
}

/// What has no op does not run on the engine.
#[test]
fn a_function_without_ops_is_not_on_the_engine() {
    let mut empty = report("(tensor<fp16, [1, 8]> x) { } -> (x);", "m4", Units::All);
    let target = &empty.targets[0];
    assert_eq!((target.verdict, target.residency), ("off-engine", 0.0));
    assert_eq!(target.functions[0].residency, 0.0);
    let required = |least| Requirements {
        least: Some(least),
        ..Requirements::default()
    };
    judge(&mut empty, required(100.0));
    let said = "m4+macos27: `main` has no op, so nothing of it runs on the engine";
    assert_eq!(empty.failures, [said]);
    judge(&mut empty, required(0.0));
    assert!(empty.passed);
}

fn weight(name: &str, shape: &str) -> String {
    format!(
        "tensor<fp16, [{shape}]> {name} = const()[val = tensor<fp16, [{shape}]>(BLOBFILE(path = \
         string(\"noise\"), offset = uint64(1)))]; "
    )
}

/// Tokens are counted where all products have one position: not for images whose last layer has
/// most of the weights, and not for a prompt whose head computes its last position only.
#[test]
fn only_steps_of_decoders_have_tokens() {
    let step = weight("w", "4096, 512") + "tensor<fp16, [1, 4096]> y = linear(x = x, weight = w);";
    let image = weight("c", "8, 3, 3, 3")
        + &weight("w", "1000, 512")
        + "tensor<fp16, [1, 8, 8, 8]> a = conv(x = x, weight = c, pad_type = string(\"same\"));
           tensor<fp16, [1, 512]> b = reshape(x = a, shape = tensor<int32, [2]>([1, 512]));
           tensor<fp16, [1, 1000]> y = linear(x = b, weight = w);";
    let prompt = weight("p", "64, 64")
        + &weight("w", "4096, 64")
        + "tensor<fp16, [1, 512, 64]> a = linear(x = x, weight = p);
           tensor<fp16, [1, 1, 64]> b = slice_by_index(x = a, begin = tensor<int32, [3]>([0, 511, 0]),
           end = tensor<int32, [3]>([1, 512, 64]));
           tensor<fp16, [1, 1, 4096]> y = linear(x = b, weight = w);";
    for (input, body, has) in [
        ("1, 512", step, true),
        ("1, 3, 8, 8", image, false),
        ("1, 512, 64", prompt, false),
    ] {
        let text = format!("(tensor<fp16, [{input}]> x) {{ {body} }} -> (y);");
        let found = function(&text, "m4").latency.tokens_per_second;
        assert_eq!(found.is_some(), has, "{input}: {found:?}");
    }
}

/// The CPU of a chip with a wider memory takes less time for the same bytes.
#[test]
fn cpus_have_the_memory_of_their_chip() {
    let ms = |chip| {
        let report = report(&chain(1000), chip, Units::CpuOnly);
        report.targets[0].functions[0].latency.ms
    };
    assert!(ms("m1-max") < ms("m1") && ms("m1") < ms("a14"));
    assert!(ms("m4-max") < ms("m4"));
}
