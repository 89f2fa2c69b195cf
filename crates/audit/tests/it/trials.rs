//! Which rewrites are kept: the faster of two, none that differs, none beyond a budget.

use thane_audit::fix::{self, Numbers, Options, Proof, Prover, Verdict};
use thane_audit::target::{Route, Target, Units};
use thane_cpu::OpByOp;
use thane_mil::backend::Limits;
use thane_mil::budget::Budget;
use thane_mil::program::Program;
use thane_prove::{ByRunning, Settings};

use crate::fixes::{folder, on_cpu, program, prove, within};

/// Of two fixes that answer one rule the faster is kept, and of the other it is said why not.
#[test]
fn the_faster_of_two_answers_is_kept() {
    let text = std::fs::read_to_string(folder().join("tests/fixes/fuse_rms_norm.mil")).unwrap();
    let target = Target::parse("m4", Units::default(), Route::default()).unwrap();
    let (_, report) =
        fix::run(program(&text), &target, &Options::default(), &mut on_cpu()).unwrap();
    let answers = |f: &str| -> Vec<_> {
        report
            .steps
            .iter()
            .filter(|s| s.function == f && s.rules == ["ANE105"])
            .cloned()
            .collect()
    };
    for f in ["channels", "rows"] {
        let [slower, kept] = &answers(f)[..] else {
            panic!("{f}:\n{report}")
        };
        assert!(
            matches!(kept.verdict, Verdict::Kept(Proof::Equal(_))),
            "{f}:\n{report}"
        );
        let Verdict::Rejected(why) = &slower.verdict else {
            panic!("{f}:\n{report}")
        };
        assert!(
            why.contains("predicted to be faster") && why.contains(kept.fix),
            "{why}"
        );
        assert!(kept.after.ms <= slower.after.ms && kept.fix != slower.fix);
    }
}

/// A prover that nothing passes would let everything through the tests above: it must see a weight
/// that is off, a term that is left out, and a constant of another sign.
#[test]
fn what_is_not_the_same_is_seen() {
    let text = |scale: &str, seed: u64, last: &str| {
        program(&format!(
            "program(1.3) {{ func f<ios18>(tensor<fp16, [3, 40]> x) {{
            tensor<fp16, [20, 40]> w = const()[val = tensor<fp16, [20, 40]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed})))];
            tensor<fp16, [3, 20]> a = linear(x = x, weight = w);
            tensor<fp16, [3, 20]> b = mul(x = a, y = fp16({scale}));
            tensor<fp16, [3, 20]> y = add(x = {last}, y = fp16(0x1p-2)); }} -> (y); }}"
        ))
    };
    let right = text("0x1p+0", 3, "b");
    let prove =
        |other: &Program| prove(&right.functions()[0], &other.functions()[0], Numbers::Exact);
    assert!(
        matches!(prove(&text("0x1p+0", 3, "a")), Proof::Equal(_)),
        "a product with 1 changes nothing"
    );
    for wrong in [
        text("0x1p+0", 4, "b"),
        text("-0x1p+0", 3, "b"),
        text("0x1.04p+0", 3, "b"),
    ] {
        assert!(
            matches!(prove(&wrong), Proof::Differs(_)),
            "{:?}",
            prove(&wrong)
        );
    }
}

/// Issue 30, 1.1: a logarithm of small powers. Nothing of it may be called proven once it is in
/// fp16, and with a bound it is kept only where quiet inputs stay within it. The same program with
/// powers that fp16 holds is kept, as lossy.
#[test]
fn a_logarithm_of_small_powers_is_not_narrowed() {
    let text = |floor: &str| {
        program(&format!(
            "program(1.3) {{ func f<ios18>(tensor<fp32, [4, 64]> audio) {{
            tensor<fp32, [4, 64]> x = clip(x = audio, alpha = fp32(-0x1p+1), beta = fp32(0x1p+1));
            tensor<fp32, [32, 64]> w = const()[val = tensor<fp32, [32, 64]>(BLOBFILE(path = string(\"noise\"), offset = uint64(5)))];
            tensor<fp32, [4, 32]> bands = linear(x = x, weight = w);
            tensor<fp32, [4, 32]> power = mul(x = bands, y = bands);
            tensor<fp32, [4, 32]> floored = add(x = power, y = fp32({floor}));
            tensor<fp32, [4, 32]> level = log(x = floored);
            tensor<fp32, [4, 32]> y = mul(x = level, y = fp32(0x1p-5)); }} -> (y); }}"
        ))
    };
    let target = Target::parse("m4+macos26", Units::default(), Route::default()).unwrap();
    let run = |program: &Program, mut prover: ByRunning<'static, OpByOp>| {
        fix::run(program.clone(), &target, &Options::default(), &mut prover)
            .unwrap()
            .1
    };
    let trap = text("0x1.b7cdfep-34");
    let untouched = run(&trap, on_cpu());
    assert_eq!(untouched.kept().count(), 0, "{untouched}");
    let reason = "narrow_floats changes precision: --lossy MAX_ERROR tries it";
    assert!(
        untouched
            .left
            .iter()
            .any(|l| l.rule == "ANE048" && l.reason.starts_with(reason)),
        "{untouched}"
    );
    let bounded = run(&trap, within(0.05));
    let (kept, tried): (Vec<_>, Vec<_>) = bounded
        .steps
        .iter()
        .partition(|s| matches!(s.verdict, Verdict::Kept(_)));
    assert!(
        kept.iter().all(
            |s| matches!(&s.verdict, Verdict::Kept(Proof::Lossy { error, .. }) if *error <= 0.05)
        ),
        "{bounded}"
    );
    let is_told = |s: &&fix::Step| matches!(&s.verdict, Verdict::Rejected(why) if why.contains("`y` is off by"));
    assert!(
        tried
            .iter()
            .any(|s| is_told(s) && s.sites.iter().any(|p| p.op.contains("log"))),
        "{bounded}"
    );
    let harmless = run(&text("0x1p-2"), within(0.05));
    let is_lossy = |s: &fix::Step| matches!(&s.verdict, Verdict::Kept(Proof::Lossy { how, .. }) if how.contains("silence"));
    assert!(
        harmless.kept().count() > 0 && harmless.kept().all(is_lossy),
        "{harmless}"
    );
    assert!(!harmless.to_string().contains("proven"), "{harmless}");
}

/// Issue 30, 1.1: a value in the middle overflows fp16 although inputs and outputs do not.
#[test]
fn an_intermediate_that_overflows_is_not_equal() {
    let text = |body: &str| {
        program(&format!(
            "program(1.3) {{ func f<ios18>(tensor<fp16, [3, 40]> x) {{ {body} }} -> (y); }}"
        ))
    };
    let plain = text("tensor<fp16, [3, 40]> y = mul(x = x, y = fp16(0x1p+0));");
    let detour = text(
        "tensor<fp16, [3, 40]> a = mul(x = x, y = fp16(0x1p+15)); tensor<fp16, [3, 40]> y = mul(x = a, y = fp16(0x1p-15));",
    );
    let proof = prove(
        &plain.functions()[0],
        &detour.functions()[0],
        Numbers::Exact,
    );
    assert!(
        matches!(&proof, Proof::Differs(how) if how.contains("`a`") && how.contains("overflows fp16")),
        "{proof:?}"
    );
    let detour = text(
        "tensor<fp16, [3, 40]> a = mul(x = x, y = fp16(0x1p-14)); tensor<fp16, [3, 40]> y = mul(x = a, y = fp16(0x1p+14));",
    );
    let proof = prove(
        &plain.functions()[0],
        &detour.functions()[0],
        Numbers::Exact,
    );
    assert!(
        matches!(&proof, Proof::Differs(how) if how.contains("`y` in fp16 is off")),
        "{proof:?}"
    );
}

/// Issue 30, 3.5: tensors of trials are bounded together. Each of these takes 256 MB.
#[test]
fn trials_stay_within_a_memory_budget() {
    let text = "program(1.3) { func f<ios18>(tensor<fp16, [1, 1]> x) {
        tensor<fp16, [8192, 8192]> a = tile(x = x, reps = tensor<int32, [2]>([8192, 8192]));
        tensor<fp16, [8192, 8192]> b = add(x = a, y = a);
        tensor<fp16, [8192, 8192]> c = mul(x = a, y = b);
        tensor<fp16, [8192, 8192]> d = add(x = c, y = b);
        tensor<fp16, [8192, 1]> y = reduce_sum(x = d, axes = tensor<int32, [1]>([1]), keep_dims = bool(true)); } -> (y); }";
    let budget = Budget::new(500_000_000);
    let mut prover = ByRunning::new(
        OpByOp::new(2, None),
        Settings {
            budget: budget.clone(),
            ..Settings::default()
        },
    );
    let target = Target::parse("m4", Units::default(), Route::default()).unwrap();
    let (_, report) = fix::run(program(text), &target, &Options::default(), &mut prover).unwrap();
    let is_told = |s: &&fix::Step| matches!(&s.verdict, Verdict::Rejected(why) if why.contains("--memory allows more"));
    assert!(
        report.kept().count() == 0 && report.steps.iter().any(|s| is_told(&s)),
        "{report}"
    );
    drop(prover);
    assert_eq!(budget.used_bytes(), 0);
}

/// Issue 30, 3.5: no proof begins when the time is over, and what is not tried says so.
#[test]
fn the_time_for_proofs_is_bounded() {
    let text = "program(1.3) { func f<ios18>(tensor<fp16, [2, 4]> x) { tensor<fp16, [2, 4]> y = tan(x = x); } -> (y); }";
    let time_limit = Some(std::time::Duration::ZERO);
    let mut prover = ByRunning::new(
        OpByOp::new(1, None),
        Settings {
            time_limit,
            ..Settings::default()
        },
    );
    let target = Target::parse("m4", Units::default(), Route::default()).unwrap();
    let (_, report) = fix::run(program(text), &target, &Options::default(), &mut prover).unwrap();
    assert!(report.steps.is_empty(), "{report}");
    assert!(
        report
            .left
            .iter()
            .any(|l| l.rule == "ANE001" && l.reason.contains("--time-limit allows more")),
        "{report}"
    );
}

/// Loops of a proof end too, and nothing is proven of them.
#[test]
fn nested_loops_of_a_proof_are_bounded() {
    let text = |body: &str| {
        let inner = format!(
            "tensor<int32, [1]> k, tensor<fp32, [2]> b = while_loop(loop_vars = (zero, v)) {{
                block(tensor<int32, [1]> p, tensor<fp32, [2]> q) {{
                    tensor<bool, [1]> on = less(x = p, y = n); }} -> (on);
                block(tensor<int32, [1]> r, tensor<fp32, [2]> s) {{
                    tensor<int32, [1]> t = add(x = r, y = one);
                    tensor<fp32, [2]> u = {body}; }} -> (t, u); }};"
        );
        program(&format!(
            "program(1.3) {{ func f<ios18>(tensor<fp32, [2]> x) {{
            tensor<int32, [1]> zero = const()[val = tensor<int32, [1]>([0])];
            tensor<int32, [1]> one = const()[val = tensor<int32, [1]>([1])];
            tensor<int32, [1]> n = const()[val = tensor<int32, [1]>([20])];
            tensor<int32, [1]> e, tensor<fp32, [2]> y = while_loop(loop_vars = (zero, x)) {{
                block(tensor<int32, [1]> i, tensor<fp32, [2]> w) {{
                    tensor<bool, [1]> more = less(x = i, y = n); }} -> (more);
                block(tensor<int32, [1]> j, tensor<fp32, [2]> v) {{
                    tensor<int32, [1]> next = add(x = j, y = one);
                    {inner} }} -> (next, b); }}; }} -> (y); }}"
        ))
    };
    let form = text("tanh(x = s)");
    let f = &form.functions()[0];
    for (rounds, is_proven) in [(20 + 20 * 20, true), (20 + 20 * 20 - 1, false)] {
        let limits = Limits {
            rounds,
            ..Limits::default()
        };
        let mut prover = ByRunning::new(
            OpByOp::new(1, None),
            Settings {
                limits,
                ..Settings::default()
            },
        );
        let proof = prover.confirm(f, f, false);
        match proof {
            Proof::Equal(_) => assert!(is_proven),
            Proof::Unknown(why) => {
                let is_told = why.contains("expected at most 419 rounds of all loops");
                assert!(!is_proven && is_told, "{why}");
            }
            Proof::Differs(_) | Proof::Lossy { .. } => panic!("{proof:?}"),
        }
    }
}

/// A long op ends with the time for proofs: this one takes 2e12 multiplications.
#[test]
fn a_long_op_ends_with_the_time_for_proofs() {
    let form = |last: &str| {
        program(&format!(
            "program(1.3) {{ func f<ios15>(tensor<fp32, [1]> x) {{
                tensor<fp32, [1, 1, 1500, 1500]> a = fill(value = fp32(0x1p-2), \
                    shape = tensor<int32, [4]>([1, 1, 1500, 1500]));
                tensor<fp32, [1, 1, 1001, 1001]> w = fill(value = fp32(0x1p-2), \
                    shape = tensor<int32, [4]>([1, 1, 1001, 1001]));
                tensor<fp32, [1, 1, 1500, 1500]> b = conv(x = a, weight = w, groups = int32(1), \
                    strides = tensor<int32, [2]>([1, 1]), dilations = tensor<int32, [2]>([1, 1]), \
                    pad_type = string(\"same\"), pad = tensor<int32, [4]>([0, 0, 0, 0]));
                tensor<fp32, [1, 1, 1500, 1500]> c = add(x = b, y = x);
                tensor<fp32, [1, 1, 1500, 1500]> y = {last}; }} -> (y); }}"
        ))
    };
    let (before, after) = (
        form("add(x = c, y = c)"),
        form("mul(x = c, y = fp32(0x1p+1))"),
    );
    let settings = Settings {
        time_limit: Some(std::time::Duration::from_secs(1)),
        ..Settings::default()
    };
    let mut prover = ByRunning::new(OpByOp::new(2, None), settings);
    let [before, after] = [&before, &after].map(|program| &program.functions()[0]);
    let proof = prover.confirm(before, after, false);
    assert!(
        matches!(&proof, Proof::Unknown(why) if why.contains("--time-limit allows more")),
        "{proof:?}"
    );
}

/// Attention in one op keeps its scores in more than fp16, so products in its place differ by more
/// than rounding: they are kept only within a bound. A rewrite that takes it off the list of
/// findings is kept though it is predicted to be slower.
#[test]
fn attention_in_one_op_is_expanded_within_a_bound() {
    let text = "program(1.3) { func f<ios18>(tensor<fp16, [2, 3, 20, 8]> x, \
        tensor<fp16, [2, 3, 30, 8]> z, tensor<fp16, [2, 3, 30, 6]> v) {
        tensor<fp16, [2, 3, 20, 8]> q = clip(x = x, alpha = fp16(-0x1p+3), beta = fp16(0x1p+3));
        tensor<fp16, [2, 3, 30, 8]> k = clip(x = z, alpha = fp16(-0x1p+3), beta = fp16(0x1p+3));
        tensor<fp16, [20, 30]> mask = const()[val = tensor<fp16, [20, 30]>(BLOBFILE(path = string(\"noise\"), offset = uint64(5)))];
        tensor<fp16, [2, 3, 20, 6]> y = scaled_dot_product_attention(query = q, key = k, value = v, attn_mask = mask); } -> (y); }";
    let target = Target::parse("m5+macos27.2", Units::default(), Route::default()).unwrap();
    let options = Options {
        only: Some("expand_softmax"),
        ..Options::default()
    };
    let (_, exact) = fix::run(program(text), &target, &options, &mut on_cpu()).unwrap();
    assert!(
        exact.is_unchanged() && exact.to_string().contains("roundings allow"),
        "{exact}"
    );
    let (after, lossy) = fix::run(program(text), &target, &options, &mut within(0.05)).unwrap();
    assert_eq!(lossy.kept().count(), 1, "{lossy}");
    let kinds: Vec<&str> = after.functions()[0]
        .body()
        .ops
        .iter()
        .map(|op| after.functions()[0].op(*op).def.name)
        .filter(|name| !["const", "clip"].contains(name))
        .collect();
    let expected = [
        "mul",
        "matmul",
        "add",
        "reduce_max",
        "sub",
        "exp",
        "reduce_sum",
        "inverse",
        "mul",
        "matmul",
    ];
    assert_eq!(kinds, expected, "{lossy}");
}
