//! What is said where something cannot be: the thing by its name, once, and a way on that works.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::codes::copy;
use crate::embed;
use crate::fixture::{Home, assert_ends, chat_folder, chat_gguf, conversion, stderr, stdout};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn example(name: &str) -> String {
    format!(
        "{}/../../tests/example/{name}.mil",
        env!("CARGO_MANIFEST_DIR")
    )
}

#[test]
fn verbs_of_packages_know_the_names_of_models() {
    let home = Home::new();
    let out = home.path("out");
    for args in [
        &["verify", "minilm"][..],
        &["check", "minilm"],
        &["predict", "minilm", "--out", text(&out)],
    ] {
        let output = home.run(args);
        assert_ends(
            &output,
            2,
            &[
                "found the name of a model",
                "try: thane convert minilm -o minilm.mlpackage",
            ],
        );
        assert!(!stderr(&output).contains("because"), "{args:?}");
    }
    for args in [
        ["inspect", "gone.mlpackage"],
        ["verify", "gone"],
        ["check", "gone.mil"],
    ] {
        let output = home.run(&args);
        assert_ends(
            &output,
            2,
            &["expected a Core ML package", "found no such file or folder"],
        );
        assert!(!stderr(&output).contains("because"), "{args:?}");
    }
}

#[test]
fn a_cause_is_said_once() {
    let home = Home::new();
    let file = home.path("file");
    fs::write(&file, "").unwrap();
    let out = file.join("x.mlpackage");
    let output = home.run(&conversion(text(&chat_gguf()), text(&out), "--context 32"));
    let said = stderr(&output);
    assert_eq!(said.matches("is not a folder").count(), 1, "{said}");
}

#[test]
fn caches_need_systems_with_states() {
    let home = Home::new();
    let (model, out) = (chat_folder(), home.path("out.mlpackage"));
    let args = ["convert", text(&model), "-o", text(&out)];
    let run = |more: &[&str]| home.run(&[&args[..], more].concat());
    let needs = "caches are states, which need iOS 18 or macOS 15";
    assert_ends(
        &run(&["--min-os", "macos14"]),
        2,
        &[needs, "try: --min-os macos15 or ios18"],
    );
    assert_ends(
        &run(&["--opset", "ios17"]),
        2,
        &[needs, "try: --opset ios18"],
    );
    let written = run(&["--form", "ane", "--target", "m1+macos14"]);
    assert_ends(
        &written,
        0,
        &["ANE143", &format!("try: --target m1+macos15: {needs}")],
    );
}

#[cfg(unix)]
#[test]
fn a_link_that_leads_nowhere_is_no_name_of_a_model() {
    let home = Home::new();
    let link = home.path("selfloop");
    std::os::unix::fs::symlink(&link, &link).unwrap();
    let mut command = home.thane(&["show", "selfloop"]);
    let output = command.current_dir(home.path("")).output().unwrap();
    assert_ends(
        &output,
        2,
        &["selfloop", "Too many levels of symbolic links"],
    );
    assert!(
        !stderr(&output).contains("unknown model"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_baseline_without_targets_is_told() {
    let home = Home::new();
    let base = home.path("base.json");
    let broken = example("broken");
    let audit = home.run(&["audit", &broken, "--json"]);
    let mut report = crate::fixture::json(&audit);
    report["targets"] = serde_json::json!([]);
    fs::write(&base, report.to_string()).unwrap();
    let output = home.run(&["audit", &broken, "--baseline", text(&base)]);
    let said = stdout(&output);
    assert!(said.contains("and no other"), "{said}");
}

#[test]
fn bench_names_its_own_flags_where_a_context_is_too_short() {
    let home = Home::new();
    let package = home.path("p.mlpackage");
    let (gguf, rounds) = (chat_gguf(), ["--rounds", "1"]);
    let convert = conversion(text(&gguf), text(&package), "--context 32");
    assert_ends(&home.run(&convert), 0, &[]);
    let bench = |what: &str, model: &Path, flags: &[&str]| {
        home.run(&[&["bench", what, text(model)], flags, &rounds].concat())
    };
    for (what, flags) in [
        ("prefill", &["--lengths", "32"][..]),
        ("decode", &["--lengths", "16", "--tokens", "16"]),
        (
            "batch",
            &["--lengths", "16", "--tokens", "16", "--batch", "2"],
        ),
    ] {
        assert_ends(&bench(what, &package, flags), 0, &[]);
    }
    for (what, model, remedy) in [
        ("prefill", &package, "try: --lengths 32, or less"),
        (
            "decode",
            &package,
            "try: --lengths and --tokens that are at most 32 together",
        ),
        (
            "batch",
            &package,
            "try: --lengths and --tokens that are at most 32 together",
        ),
        (
            "decode",
            &gguf,
            "try: --lengths and --tokens, with fewer tokens",
        ),
    ] {
        let output = bench(what, model, &["--lengths", "100000"]);
        assert_ends(&output, 2, &[remedy]);
        assert!(
            !stderr(&output).contains("--context"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn a_longer_context_keeps_the_form() {
    let home = Home::new();
    let model = chat_folder();
    for (name, flags, form) in [
        (
            "engine",
            &["--form", "ane"][..],
            " --form ane --kv explicit",
        ),
        ("portable", &[], ""),
    ] {
        let out = home.path(&format!("{name}.mlpackage"));
        let args = ["convert", text(&model), "--context", "64", "-o", text(&out)];
        assert_ends(&home.run(&[&args[..], flags].concat()), 0, &[]);
        let remedy = |n: usize| format!("thane convert tiny-chat{form} -o PACKAGE --context {n}");
        let longer = home.run(&["run", text(&out), "hi", "--context", "128"]);
        assert_ends(&longer, 2, &["holds 64 tokens", &remedy(128)]);
        let prompt = "x".repeat(200);
        assert_ends(
            &home.run(&["run", text(&out), &prompt]),
            2,
            &["the context of 64 tokens", &remedy(512)],
        );
    }
}

#[test]
fn requirements_that_hold_are_not_said_to_fail() {
    let home = Home::new();
    let (program, base) = (example("broken"), home.path("base.json"));
    assert_ends(
        &home.run(&["audit", &program, "--format", "json", "-o", text(&base)]),
        0,
        &[],
    );
    let output = home.run(&[
        "audit",
        &program,
        "--baseline",
        text(&base),
        "--deny",
        "note",
        "--require-ane",
        "50",
    ]);
    assert_ends(
        &output,
        1,
        &["1 of 2 requirements does not hold: --require-ane 50"],
    );
    let file = home.path("report.txt");
    let args = ["--deny", "note", "--require-ane", "50", "-o", text(&file)];
    let base = ["audit", &program, "--baseline", text(&base)];
    assert_ends(&home.run(&[&base[..], &args].concat()), 1, &[]);
    let written = fs::read_to_string(file).unwrap();
    assert!(
        written.contains("a requirement does not hold: --require-ane 50; holds: --deny note"),
        "{written}"
    );
}

#[test]
fn nothing_to_audit_is_said_with_all_that_can_be() {
    let home = Home::new();
    let (empty, out) = (home.path("empty"), home.path("out"));
    fs::create_dir(&empty).unwrap();
    let packages = "the path of a package, a compiled model, a .mil file or a folder of packages";
    assert_ends(
        &home.run(&["audit", text(&empty)]),
        2,
        &[packages, "a GGUF file, a Hugging Face folder"],
    );
    let fixed = home.run(&["audit", text(&empty), "--fix", "-o", text(&out)]);
    assert_ends(&fixed, 2, &[packages]);
    assert!(!stderr(&fixed).contains("thane convert"));
    let clean = home.path("clean.mil");
    let program = "program(1.3)\n{\n func main<ios18>(tensor<fp16, [1, 8, 1, 64]> x) {\n\
                   tensor<fp16, [1, 8, 1, 64]> y = relu(x = x);\n} -> (y);\n}";
    fs::write(&clean, program).unwrap();
    let nothing = home.run(&[
        "bisect",
        text(&clean),
        "--rule",
        "ANE070",
        "-o",
        text(&home.path("part.mil")),
    ]);
    assert_ends(&nothing, 2, &["ANE070 finds nothing in the program"]);
}

#[test]
fn a_wrong_target_has_the_nearest_name_before_all_names() {
    let output = Home::new().run(&["audit", &example("broken"), "--target", "m4mx"]);
    assert_ends(
        &output,
        2,
        &[
            "\"m4mx\" is no chip, system or device; did you mean m4-max or m4",
            "  systems  macos12",
        ],
    );
    assert!(
        stderr(&output)
            .lines()
            .all(|line| line.chars().count() <= 120),
        "{}",
        stderr(&output)
    );
}

#[test]
fn offline_is_named_where_it_is_the_reason() {
    let output = Home::new().run(&["run", "smollm2-135m", "hi", "--offline"]);
    assert_ends(&output, 5, &["try: the same without --offline"]);
    assert!(!stderr(&output).contains("HF_ENDPOINT"));
}

#[test]
fn a_line_of_json_is_counted_once() {
    let home = Home::new();
    let file = home.path("texts.jsonl");
    fs::write(
        &file,
        "{\"text\": \"a\"}\n{\"text\": \"b\"}\n{\"text\": \"\n",
    )
    .unwrap();
    let output = home.run(&[
        "embed",
        text(&embed::model("bert-mean")),
        "--file",
        text(&file),
    ]);
    assert_ends(&output, 2, &["line 3"]);
    assert!(
        !stderr(&output).contains("at line 1"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_long_literal_is_not_echoed_whole() {
    let home = Home::new();
    let file = home.path("long.mil");
    let literal = "1".repeat(100_000);
    let statement = format!("tensor<fp32, [1]> y = add(x = x, y = fp32({literal}z));");
    fs::write(
        &file,
        format!("program(1.3)\n{{\n func main<ios18>(tensor<fp32, [1]> x) {{\n{statement}\n}} -> (y);\n}}"),
    )
    .unwrap();
    let output = home.run(&["check", text(&file)]);
    assert_ends(&output, 2, &["111..111", "expected a number of type fp32"]);
    assert!(stderr(&output).len() < 1000);
}

#[test]
fn a_row_of_a_table_is_one_line() {
    let home = Home::new();
    let file = home.path("two\nlines.gguf");
    fs::copy(chat_gguf(), &file).unwrap();
    let printed = stdout(&home.run(&["show", text(&file)]));
    assert!(
        printed
            .lines()
            .nth(1)
            .unwrap()
            .ends_with("two\\nlines.gguf"),
        "{printed}"
    );
}

/// What no flag can undo is refused before a text is computed for the form, and no path of a
/// package that is still being written is named.
#[test]
fn refusals_come_before_the_work() {
    let home = Home::new();
    let (model, package) = (chat_folder(), home.path("out.mlpackage"));
    let (compiled, folder) = (home.path("out.mlmodelc"), home.path("out"));
    for (out, flags, said) in [
        (
            &package,
            "--form ane --min-os ios17",
            "opset ios17 cannot express a language model: caches are states",
        ),
        (
            &package,
            "--form ane --kv explicit --min-os macos14",
            "several functions in one package need iOS 18 or macOS 15",
        ),
        (
            &folder,
            "--form ane --kv explicit --split 2 --opset ios17",
            "try: --opset ios18",
        ),
        (&compiled, "--form ane --lookup host", "try: -o "),
        (&compiled, "--form ane --direct", "try: --lookup inside"),
        (
            &compiled,
            "--target a19 --head host",
            "no place for the tables",
        ),
        (
            &package,
            "--form ane --functions walk",
            "no function `walk`",
        ),
        (
            &folder,
            "--form ane --split 2 --functions decode",
            "packages of a model that is cut hold all functions",
        ),
    ] {
        let output = home.run(&conversion(text(&model), text(out), flags));
        assert_ends(&output, 2, &[said]);
        let all = stderr(&output);
        assert!(!all.contains("in 2048 tokens"), "{flags}: {all}");
        assert!(!all.contains("partial"), "{flags}: {all}");
        assert!(!out.exists(), "{flags}");
    }
    let flags = "--form ane --kv explicit --functions decode --context 64 --min-os ios17";
    let output = home.run(&conversion(text(&model), text(&package), flags));
    assert_ends(&output, 0, &["for ios17"]);
    // A plan for one compiled model has no tables.
    let flags = "--target m4 --context 64";
    let output = home.run(&conversion(text(&model), text(&compiled), flags));
    assert_ends(&output, 0, &["tables inside"]);
}

#[test]
fn a_model_that_is_cut_says_where_its_packages_go() {
    let home = Home::new();
    let (model, out) = (chat_folder(), home.path("out"));
    let flags = "--form ane --split 2 --context 64";
    let output = home.run(&conversion(text(&model), text(&out), flags));
    let folder = format!("{} will be a folder of 2 packages", text(&out));
    assert_ends(&output, 0, &[&folder]);
    let all = stderr(&output);
    assert!(all.find(&folder) < all.find("in 2048 tokens"), "{all}");
}

/// A copy of a model with a JSON file that is changed.
fn changed(home: &Home, from: &Path, file: &str, change: impl Fn(&mut Value)) -> PathBuf {
    let folder = home.path("changed");
    let _ = fs::remove_dir_all(&folder);
    copy(from, &folder);
    let old = fs::read(folder.join(file)).unwrap_or_else(|_| b"{}".to_vec());
    let mut value = serde_json::from_slice(&old).unwrap();
    change(&mut value);
    fs::write(folder.join(file), value.to_string()).unwrap();
    folder
}

/// What a file says and Thane does not take is said with the file, the key and a way on.
#[test]
fn a_setting_that_is_refused_is_named_with_its_file() {
    let home = Home::new();
    let sentence = "config_sentence_transformers.json";
    let similar = changed(&home, &embed::model("bert-mean"), sentence, |c| {
        c["similarity_fn_name"] = "hamming".into();
    });
    let said = [
        sentence,
        "similarity_fn_name",
        "hamming",
        "try: leave --similarity out",
    ];
    let output = home.run(&["embed", text(&similar), "--similarity", "a", "b"]);
    assert_ends(&output, 2, &said);
    let models = crate::decoder::models();
    let reranker = changed(
        &home,
        &models.join("tiny-rerank/bert"),
        "config.json",
        |c| {
            c["sentence_transformers"] = json!({"activation_fn": "mine.Act"});
        },
    );
    let place = "sentence_transformers.activation_fn in config.json";
    let output = home.run(&["rerank", text(&reranker), "q", "a", "b"]);
    assert_ends(&output, 2, &[place, "mine.Act", "torch.nn.Sigmoid"]);
    let quantized = changed(
        &home,
        &models.join("tiny/compressed-int8"),
        "config.json",
        |c| {
            c["quantization_config"]["kv_cache_scheme"] = json!({"num_bits": 8});
        },
    );
    let said = ["config.json", "kv_cache_scheme", "remove the key"];
    assert_ends(&home.run(&["show", text(&quantized)]), 2, &said);
}

/// A checkpoint is opened several times while it is converted; its note is one.
#[test]
fn a_note_about_a_checkpoint_is_printed_once() {
    let home = Home::new();
    let model = crate::decoder::models().join("tiny/fp8");
    for flags in ["--context 32 --target a19", "--context 32 --form ane"] {
        let out = home.path("x.mlpackage");
        let output = home.run(&conversion(
            text(&model),
            text(&out),
            &format!("{flags} --force"),
        ));
        assert_ends(&output, 0, &[]);
        let said = stderr(&output);
        let n = said.matches("made for quantized activations").count();
        assert_eq!(n, 1, "{flags}: {said}");
    }
}

#[test]
fn an_embedding_model_takes_calibrate_none() {
    let home = Home::new();
    let (model, out) = (embed::model("bert-mean"), home.path("x.mlpackage"));
    let flags = "--compress int8 --calibrate none";
    let output = home.run(&conversion(text(&model), text(&out), flags));
    assert_ends(&output, 0, &[]);
    let flags = "--force --calibrate some.txt";
    let output = home.run(&conversion(text(&model), text(&out), flags));
    let refused = ["embedding models that are compressed", "or add --compress"];
    assert_ends(&output, 2, &refused);
}
