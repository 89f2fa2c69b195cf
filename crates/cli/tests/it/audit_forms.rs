//! What `thane audit` writes, where, and of which calls: targets, lengths, forms, files, and the
//! verdict behind `convert`.

use std::path::Path;

use crate::audit::example;
use crate::fixture::{Home, assert_ends, chat_folder, conversion, json, stderr, stdout};

fn audit(home: &Home, args: &[&str]) -> std::process::Output {
    home.run(&[&["audit"], args].concat())
}

fn write(home: &Home, name: &str, text: &str) -> String {
    std::fs::write(home.path(name), text).unwrap();
    path(home, name)
}

fn path(home: &Home, name: &str) -> String {
    home.path(name).to_str().unwrap().to_owned()
}

/// Issue 30, 1.4.
#[test]
fn a_system_implies_a_chip_of_its_kind_and_contradictions_are_errors() {
    let home = Home::new();
    let broken = example("broken");
    let report = json(&audit(
        &home,
        &[
            &broken,
            "--target",
            "iOS26,MACOS26,a19,m4+iPadOS26",
            "--json",
        ],
    ));
    let said: Vec<(&str, usize)> = report["targets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| {
            (
                t["target"].as_str().unwrap(),
                t["implied"].as_array().unwrap().len(),
            )
        })
        .collect();
    let units = "(cpuAndNeuralEngine)";
    let names = ["a14+ios26", "m1+macos26", "a19+ios27", "m4+ipados26"]
        .map(|name| format!("{name} {units}"));
    assert_eq!(
        said.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        names
    );
    assert_eq!(
        said.iter().map(|(_, n)| *n).collect::<Vec<_>>(),
        [1, 1, 1, 0]
    );
    assert_eq!(
        (
            &report["targets"][0]["implied"][0],
            &report["targets"][2]["implied"][0]
        ),
        (&"chip".into(), &"release".into())
    );
    let text = stdout(&audit(&home, &[&broken, "--target", "ios26"]));
    assert!(text.contains("implied   a14 of ios26"), "{text}");
    let page = stdout(&audit(
        &home,
        &[&broken, "--target", "ios26", "--format", "html"],
    ));
    assert!(page.contains("a14 of ios26 is implied."));
    for (target, said) in [
        ("a19+macos26", "no Mac has A19; write a19+ios26 or macos26"),
        (
            "m4+ios26",
            "no iPhone has M4; write m4+macos26 or m4+ipados26 or ios26",
        ),
        ("m4+m5", "expected one chip and one system, found m4 and m5"),
        ("m4mx", "did you mean m4-max or m4"),
    ] {
        for verb in [
            &["audit", &broken][..],
            &["explain", "-14", &broken],
            &["convert", "x", "-o", "y"],
        ] {
            assert_ends(
                &home.run(&[verb, &["--target", target]].concat()),
                2,
                &[said],
            );
        }
    }
}

#[test]
fn the_notes_of_format_mil_are_skipped_when_it_is_read() {
    let home = Home::new();
    let (broken, noted) = (example("broken"), path(&home, "noted.mil"));
    assert_ends(&audit(&home, &[&broken, "-o", &noted]), 0, &[]);
    let found = |file: &str| {
        let report = json(&audit(&home, &[file, "--json"]));
        report["targets"][0]["findings"].clone()
    };
    assert!(stdout(&audit(&home, &[&noted])).contains("ANE070"));
    assert_eq!(found(&noted), found(&broken));
    let text = std::fs::read_to_string(&noted).unwrap();
    let (before, _) = text.split_once("list<").unwrap();
    let unended = write(&home, "unended.mil", &format!("{before}list<"));
    let says = ["expected the value of an attribute, found the end"];
    assert_ends(&audit(&home, &[&unended]), 2, &says);
}

#[test]
fn requiring_the_engine_fails_at_warnings_of_a_failure() {
    let home = Home::new();
    for (id, what, flag) in [
        ("ANE078", "may not load", None),
        ("ANE079", "may not load", None),
        ("ANE129", "may fail when it is called", None),
        ("ANE145", "may not compile", Some("--direct")),
        ("ANE154", "may not load", Some("--direct")),
    ] {
        let file = chat_folder().join(format!("../../audit/{id}.mil"));
        let args = [file.to_str().unwrap(), "--function", "fires"];
        let args = [&args[..], flag.as_slice()].concat();
        let output = audit(&home, &[&args[..], &["--require-ane", "0"]].concat());
        assert_ends(
            &output,
            1,
            &[&format!("`fires` {what} on the engine: {id} (")],
        );
        let report = json(&audit(&home, &[&args[..], &["--json"]].concat()));
        let verdict = report["targets"][0]["verdict"].as_str().unwrap();
        assert!(["may-fail", "fails"].contains(&verdict), "{id}: {verdict}");
    }
}

/// Issue 30, 1.5: what does not load is not on the engine, however many of its ops would be.
#[test]
fn requiring_the_engine_fails_where_a_finding_says_that_it_does_not_load() {
    let home = Home::new();
    let broken = example("broken");
    let output = audit(&home, &[&broken, "--require-ane", "14"]);
    assert_ends(
        &output,
        1,
        &[
            "`main` may not load on the engine: ANE070 (",
            "; sources differ)",
        ],
    );
    let disputed = ["--require-ane", "14", "--allow-disputed"];
    assert_ends(
        &audit(&home, &[&[broken.as_str()], &disputed[..]].concat()),
        0,
        &[],
    );
    // A baseline that has it makes it known, as for --deny.
    let base = path(&home, "base.json");
    assert_ends(&audit(&home, &[&broken, "-o", &base]), 0, &[]);
    assert_ends(
        &audit(
            &home,
            &[&broken, "--require-ane", "14", "--baseline", &base],
        ),
        0,
        &[],
    );
    // All on the engine, but in a package of two functions, which phones do not compile.
    let state = "tensor<fp16, [1, 64, 32, 64]>";
    let function = |name: &str, n: usize| {
        format!(
            "func {name}<ios18>(tensor<fp16, [1, 64, {n}, 64]> x, state<{state}> cache) {{
            {state} old = read_state(input = cache);
            {state} new = slice_update(x = old, update = x, begin = tensor<int32, [4]>([0, 0, 0, 0]), \
             end = tensor<int32, [4]>([1, 64, {n}, 64]));
            {state} kept = coreml_update_state(state = cache, value = new);
            {state} y = mul(x = kept, y = kept); }} -> (y);"
        )
    };
    let two = write(
        &home,
        "two.mil",
        &format!(
            "program(1.3) {{ {} {} }}",
            function("decode", 1),
            function("prefill", 16)
        ),
    );
    let refused = ["`prefill` may not compile on the engine: ANE071 ("];
    let share =
        json(&audit(&home, &[&two, "--target", "a19", "--json"]))["targets"][0]["findings"].clone();
    assert!(
        share
            .as_array()
            .unwrap()
            .iter()
            .any(|f| f["rule"] == "ANE071"),
        "{share}"
    );
    assert_ends(
        &audit(&home, &[&two, "--target", "a19", "--require-ane", "0"]),
        1,
        &refused,
    );
    assert!(
        !stderr(&audit(
            &home,
            &[&two, "--target", "m4", "--require-ane", "0"]
        ))
        .contains("ANE071")
    );
    // Straight to the engine, ops that it refuses are failures too.
    assert_ends(
        &audit(&home, &[&broken, "--direct", "--require-ane", "1"]),
        1,
        &["the engine refuses", "does not compile"],
    );
}

/// Issue 30, 1.5: what takes any length is priced at lengths that are said in every form.
#[test]
fn functions_of_any_length_are_priced_at_lengths_that_are_said() {
    let home = Home::new();
    let range = |upper: i64| {
        format!(
            "[FlexibleShapeInformation = tuple<tuple<string, dict<string, tensor<int32, [?]>>>, tuple<string, dict<string, \
             list<tensor<int32, [2]>, ?>>>>(((\"DefaultShapes\", {{{{\"x\", [1, 4, 64]}}}}), (\"RangeDims\", {{{{\"x\", [[1, 1], \
             [1, {upper}], [64, 64]]}}}})))]"
        )
    };
    let program = |attributes: &str| {
        format!(
            "program(1.3) {{ func main<ios17>(tensor<fp16, [1, ?, 64]> x) {attributes} {{
            tensor<int32, [3]> s = shape(x = x);
            tensor<int32, [1]> at = const()[val = tensor<int32, [1]>([1])];
            tensor<int32, [2]> first = const()[val = tensor<int32, [2]>([1, 64])];
            tensor<int32, [1]> n = gather(x = s, indices = at, axis = int32(0));
            tensor<int32, [3]> to = concat(values = (first, n), axis = int32(0), interleave = bool(false));
            tensor<fp16, [1, ?, ?]> r = reshape(x = x, shape = to);
            tensor<fp16, [1, ?, ?]> y = matmul(x = x, y = r, transpose_x = bool(false), transpose_y = bool(false)); }} -> (y); }}"
        )
    };
    let function = |file: &str, args: &[&str]| {
        json(&audit(&home, &[&[file, "--json"], args].concat()))["targets"][0]["functions"][0]
            .clone()
    };
    let ranged = write(&home, "ranged.mil", &program(&range(2048)));
    let of = |f: &serde_json::Value| {
        let lengths = f["lengths"].as_array().unwrap().iter();
        lengths
            .map(|l| {
                (
                    l["text"].as_str().unwrap().to_owned(),
                    l["basis"].as_str().unwrap().to_owned(),
                )
            })
            .collect::<Vec<_>>()
    };
    let pair = |text: &str, basis: &str| (text.to_owned(), basis.to_owned());
    let f = function(&ranged, &[]);
    assert_eq!(of(&f), [pair("2048", "most"), pair("4", "default")]);
    // A product of [2048, 64] and [64, 2048]: the reshape's sizes are followed through its
    // arithmetic.
    let matmul = |f: &serde_json::Value| {
        let table = f["table"].as_array().unwrap();
        table.iter().find(|op| op["kind"] == "matmul").unwrap()["flops"]
            .as_f64()
            .unwrap()
    };
    assert_eq!(matmul(&f), 2.0 * 2048.0 * 64.0 * 2048.0);
    assert_eq!(f["latency"]["ms"], f["lengths"][0]["ms"]);
    assert!(f["lengths"][0]["ms"].as_f64() > f["lengths"][1]["ms"].as_f64());
    let stated = function(&ranged, &["--length", "256,16"]);
    assert_eq!(of(&stated), [pair("256", "stated"), pair("16", "stated")]);
    assert_eq!(matmul(&stated), 2.0 * 256.0 * 64.0 * 256.0);
    let open = write(&home, "open.mil", &program(""));
    assert_eq!(of(&function(&open, &[])), [pair("128", "assumed")]);
    for (format, said) in [
        ("text", "2048 (the most that it takes); 4 (its"),
        ("concise", "main at 2048 "),
        ("html", "2048 (the most that it takes)"),
    ] {
        let text = stdout(&audit(&home, &[&ranged, "--format", format]));
        assert!(text.contains(said), "{format}: {text}");
    }
    assert_ends(
        &audit(&home, &[&ranged, "--length", "16,4096"]),
        2,
        &["no function takes a call of length 4096"],
    );
    assert_ends(
        &audit(&home, &[&example("fixed"), "--length", "16"]),
        2,
        &["all of these have a fixed one"],
    );
    assert_ends(
        &audit(&home, &[&ranged, "--length", "0"]),
        2,
        &["expected a number from 1"],
    );
}

/// Issue 30, 4: `audit in.mil -o in.mil` replaced the program by the report.
#[test]
fn a_report_replaces_no_input_and_a_file_with_force_only() {
    let home = Home::new();
    let text = std::fs::read_to_string(example("broken")).unwrap();
    let program = write(&home, "in.mil", &text);
    let base = path(&home, "base.json");
    assert_ends(&audit(&home, &[&program, "-o", &base]), 0, &[]);
    let (program_to, base_to) = (
        [program.as_str(), "-o", &program],
        [&program, "--baseline", &base, "-o", &base],
    );
    for args in [&program_to[..], &base_to] {
        for force in [&[][..], &["--force"]] {
            assert_ends(
                &audit(&home, &[args, force].concat()),
                2,
                &["it would replace the input", "another path for -o"],
            );
        }
    }
    assert_eq!(std::fs::read_to_string(&program).unwrap(), text);
    assert_ends(
        &audit(&home, &[&program, "-o", &base]),
        2,
        &["base.json exists already", "--force"],
    );
    assert_ends(&audit(&home, &[&program, "-o", &base, "--force"]), 0, &[]);
    // Whole or not at all: nothing half-written is left beside it.
    assert_eq!(
        home.files("."),
        home.files(".")
            .into_iter()
            .filter(|f| !f.contains("partial"))
            .collect::<Vec<_>>()
    );
}

/// Issue 30, 4.
#[test]
fn a_format_follows_from_the_extension_of_the_output() {
    let home = Home::new();
    let broken = example("broken");
    for (name, begins) in [
        ("a.json", "{\"schema\":1"),
        ("a.sarif", "{\n  \"$schema\""),
        ("a.HTML", "<!doctype html>"),
        ("a.mil", "// Predicted by thane"),
        ("a.txt", &broken),
        ("a.md", "```text\n"),
        ("plain", &broken),
    ] {
        let out = path(&home, name);
        let output = audit(&home, &[&broken, "-o", &out]);
        assert_ends(&output, 0, &[]);
        assert_eq!(stdout(&output), format!("{out}\n"));
        let text = std::fs::read_to_string(&out).unwrap();
        assert!(text.starts_with(begins), "{name}: {}", &text[..80]);
    }
    assert_ends(
        &audit(&home, &[&broken, "-o", &path(&home, "a.yaml")]),
        2,
        &["found .yaml", "--format FORMAT"],
    );
    assert_ends(
        &audit(&home, &[&broken, "-o", &path(&home, "a.mlpackage")]),
        2,
        &["--fix, which writes a package"],
    );
    let odd = path(&home, "b.yaml");
    assert_ends(
        &audit(&home, &[&broken, "-o", &odd, "--format", "JSON"]),
        0,
        &[],
    );
    assert!(std::fs::read_to_string(odd).unwrap().starts_with('{'));
}

/// Issue 30, 4: three targets gave 350 lines.
#[test]
fn several_targets_are_one_table_and_findings_are_grouped_over_them() {
    let home = Home::new();
    let broken = example("broken");
    let args = [
        broken.as_str(),
        "--target",
        "m4,a19,m1+macos15",
        "--deny",
        "warning,ANE156",
    ];
    let output = audit(&home, &args);
    assert_ends(
        &output,
        1,
        &["5 findings denied by --deny warning: ANE070, ANE001, ANE046 (2 places), ANE054"],
    );
    let text = stdout(&output);
    assert!(text.lines().count() < 80, "{text}");
    for line in [
        "m4+macos27  may-fail     14.3 %",
        "a19+ios27   may-fail",
        "m1+macos15  may-fail",
        "6 findings: 1 error, 4 warnings, 1 note",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(text.matches("error ANE070").count(), 1);
    // Once, as an error.
    assert!(!text.contains("not hold"), "{text}");
    let concise = stdout(&audit(
        &home,
        &[&args[..], &["--format", "concise"]].concat(),
    ));
    let found = concise
        .lines()
        .filter(|l| l.starts_with(&format!("{broken}:")))
        .count();
    assert_eq!(
        (found, concise.lines().count()),
        (6, 6 + 3 + 1),
        "{concise}"
    );
    let line = text_line(&broken, "tan(x = ");
    assert!(
        concise.contains(&format!("{broken}:{line}: warning ANE001 main: tan `gate`")),
        "{concise}"
    );
    // What is found for some targets only says for which.
    let some = stdout(&audit(
        &home,
        &[&broken, "--target", "m4,m4+macos12", "--format", "concise"],
    ));
    assert!(
        some.lines()
            .any(|l| l.contains("ANE143") && l.ends_with("[m4+macos12]")),
        "{some}"
    );
    let held = stdout(&audit(
        &home,
        &[
            &example("fixed"),
            "--require-ane",
            "99.5",
            "--deny",
            "error",
        ],
    ));
    assert!(
        held.ends_with("requirements hold: --require-ane 99.5, --deny error\n"),
        "{held}"
    );
}

/// A time that is required is held against the middle of the prediction, on every target.
#[test]
fn calls_that_take_too_long_fail() {
    let home = Home::new();
    let fixed = example("fixed");
    let with = |most: &str| {
        let args = [
            &*fixed, "--target", "m4,a14", "--deny", "error", "--max-ms", most,
        ];
        audit(&home, &args)
    };
    let found = json(&audit(&home, &[&fixed, "--target", "m4,a14", "--json"]));
    let ms: Vec<f64> = (0..2)
        .map(|at| {
            found["targets"][at]["functions"][0]["latency"]["ms"]
                .as_f64()
                .unwrap()
        })
        .collect();
    let (least, most) = (ms[0].min(ms[1]), ms[0].max(ms[1]));
    assert!(least < most, "{ms:?}");
    assert_ends(&with(&format!("{}", 1.01 * most)), 0, &[]);
    let between = format!("{}", (least + most) / 2.0);
    let slow = with(&between);
    let held = format!("1 of 2 requirements does not hold: --max-ms {between}");
    assert_ends(
        &slow,
        1,
        &["a14", "a call of `main` takes", "in 80 % of cases", &held],
    );
    assert!(!stdout(&slow).contains("m4+macos27: a call of"), "{slow:?}");
    for wrong in ["0", "-1", "nan", "soon"] {
        let said = with(wrong);
        assert_ends(&said, 2, &["expected milliseconds above 0, such as 2.5"]);
    }
}

fn text_line(file: &str, part: &str) -> usize {
    1 + std::fs::read_to_string(file)
        .unwrap()
        .lines()
        .position(|l| l.contains(part))
        .unwrap()
}

#[test]
fn rules_are_found_in_any_case_and_near_ones_are_named() {
    let home = Home::new();
    assert_ends(&home.run(&["explain", "Ane070"]), 0, &[]);
    let broken = example("broken");
    for (rule, program, said) in [
        ("ANE070", broken.as_str(), "1 finding in "),
        ("ANE070", &example("fixed"), "the rule does not fire in "),
    ] {
        let output = home.run(&["explain", rule, program]);
        assert_ends(&output, 0, &[]);
        assert!(stdout(&output).contains(said), "{}", stdout(&output));
    }
    assert_ends(
        &home.run(&["explain", "ANE070", "nope.mil"]),
        2,
        &["no such file"],
    );
    assert_ends(
        &home.run(&["explain", "ANE7"]),
        2,
        &["no rule is called `ANE7`", "thane explain ANE007"],
    );
    assert_ends(
        &audit(&home, &[&example("broken"), "--deny", "ane-71"]),
        2,
        &["the nearest name is ANE071"],
    );
    assert_ends(
        &home.run(&["buckets", "x", "--histogram", "y", "--target", "m4x"]),
        2,
        &["did you mean m4"],
    );
}

#[test]
fn one_thing_is_not_counted_as_several() {
    let home = Home::new();
    let text = "program(1.3) { func f<ios18>(tensor<fp16, [1, 64]> x) { tensor<fp16, [1, 64]> y = tan(x = x); } -> (y); }";
    let file = write(&home, "one.mil", text);
    for format in ["text", "concise", "html"] {
        let output = audit(&home, &[&file, "--format", format, "--deny", "ANE001"]);
        let said = format!("{}{}", stdout(&output), stderr(&output));
        assert_ends(&output, 1, &["1 finding denied by --deny ANE001"]);
        for word in [
            "findings",
            "ops",
            "segments",
            "places",
            "functions",
            "warnings",
            "errors",
            "dispatches",
            "programs",
        ] {
            for (at, _) in said.match_indices(&format!("1 {word}")) {
                let before = said[..at].chars().next_back();
                assert!(
                    before.is_some_and(|c| c.is_ascii_digit() || c == '.'),
                    "1 {word}: {said}"
                );
            }
        }
    }
}

/// Issue 30, 4: packages that the engine does not run were written without a word.
#[test]
fn convert_says_what_the_audit_says_and_what_to_do() {
    let home = Home::new();
    let model = chat_folder().to_str().unwrap().to_owned();
    let convert = |name: &str, args: &[&str]| {
        let out = path(&home, name);
        home.run(&[&["convert", &model, "--context", "128", "-o", &out], args].concat())
    };
    let portable = convert("portable.mlpackage", &[]);
    assert_ends(
        &portable,
        0,
        &["portable form, for the CPU and GPU: --target a19"],
    );
    assert!(!stderr(&portable).contains("audit for"));
    let judged = convert(
        "judged.mlpackage",
        &["--form", "portable", "--target", "m4"],
    );
    let said = [
        "audit for m4+macos27: ",
        "0.0 % of ",
        "  try: --form ane, which is written for",
    ];
    assert_ends(&judged, 0, &said);
    assert_eq!(
        stdout(&portable).lines().count(),
        1,
        "the path alone is data"
    );
    let engine = convert("engine.mlpackage", &["--form", "ane", "--target", "A19"]);
    let said = [
        "audit for a19+ios27: may fail",
        "ANE071);",
        "one package for each function: --functions prefill, then",
    ];
    assert_ends(&engine, 0, &said);
    let quiet = convert("quiet.mlpackage", &["-q"]);
    assert_eq!(stderr(&quiet), "");
    let printed = json(&convert(
        "json.mlpackage",
        &["--form", "ane", "--target", "ios26", "--json"],
    ));
    let audit = &printed["audits"][0];
    assert_eq!(audit["target"], "a14+ios26 (cpuAndNeuralEngine)");
    assert!(
        audit["fails_by"]
            .as_array()
            .unwrap()
            .contains(&"ANE071".into()),
        "{audit}"
    );
    assert!(
        audit["remedy"]
            .as_str()
            .unwrap()
            .contains("--functions prefill")
            && audit["ms"].as_f64() > Some(0.0)
    );
    let alone = convert(
        "alone.mlpackage",
        &["--form", "ane", "--target", "a19", "--functions", "prefill"],
    );
    assert!(!stderr(&alone).contains("ANE071"), "{}", stderr(&alone));
    let embedder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny-embed/bert-mean");
    let out = path(&home, "embed.mlpackage");
    let embedder = home.run(&conversion(
        embedder.to_str().unwrap(),
        &out,
        "--task embed --buckets 16",
    ));
    assert_ends(&embedder, 0, &["audit for m4+macos27: ", "try: "]);
}
