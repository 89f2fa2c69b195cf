//! `thane quality` on tiny models, compared with transformers, sentence-transformers and
//! scikit-learn (`tests/oracle/make_quality.py`).

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::codes::copy;
use crate::decoder::models;
use crate::fixture::{Home, assert_ends, chat_folder, chat_gguf, conversion, json, stdout};

fn root() -> PathBuf {
    models().join("../quality")
}

fn golden(name: &str) -> Value {
    serde_json::from_slice(&fs::read(root().join(name)).unwrap()).unwrap()
}

/// A copy of a tiny model with another number in its configuration.
fn changed(home: &Home, model: &Path, key: &str, value: &Value) -> String {
    let to = home.path("changed");
    copy(model, &to);
    let config = fs::read(to.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config[key] = value.clone();
    fs::write(to.join("config.json"), config.to_string()).unwrap();
    to.to_str().unwrap().to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Numbers below `path` that differ by more than 1e-4, relative to what is large.
#[track_caller]
fn near(found: &Value, expected: &Value, what: &str) {
    let (x, y) = (found.as_f64().unwrap(), expected.as_f64().unwrap());
    assert!(
        (x - y).abs() < 1e-4 * y.abs().max(1.0),
        "{what}: {x}, expected {y}"
    );
}

#[test]
fn a_decoder_beside_a_reference_as_transformers_has_it() {
    let (home, golden) = (Home::new(), golden("decoder.json"));
    let model = changed(
        &home,
        &chat_folder(),
        "rms_norm_eps",
        &golden["rms_norm_eps"],
    );
    let (reference, prose) = (chat_folder(), models().join("perplexity.txt"));
    let args = [
        "quality",
        &model,
        text(&reference),
        "--file",
        text(&prose),
        "--numerics",
        "f32",
        "--tokens",
        "600",
        "--window",
        "256",
        "--answers",
        "4",
        "--answer-tokens",
        "24",
    ];
    let output = home.run(&[&args[..], &["--json"]].concat());
    assert_ends(&output, 0, &[]);
    let report = json(&output);
    assert_eq!(report["reference_is"], "given");
    assert_eq!(report["embedding"], Value::Null);
    let found = &report["language"];
    for key in ["tokens", "window"] {
        assert_eq!(found[key], golden[key], "{key}");
    }
    let intervals = [
        "perplexity",
        "reference_perplexity",
        "same_first",
        "same_five",
        "cosine",
    ];
    for key in intervals {
        near(&found[key]["value"], &golden[key], key);
    }
    near(&found["kl"]["mean"]["value"], &golden["kl"]["mean"], "mean");
    for key in ["median", "p90", "p99", "worst", "worst_at"] {
        near(&found["kl"][key], &golden["kl"][key], key);
    }
    let ratio =
        golden["perplexity"].as_f64().unwrap() / golden["reference_perplexity"].as_f64().unwrap();
    near(&found["perplexity_ratio"]["value"], &ratio.into(), "ratio");
    for interval in intervals
        .iter()
        .map(|key| &found[*key])
        .chain([&found["kl"]["mean"]])
    {
        let [low, value, high] =
            ["low", "value", "high"].map(|key| interval[key].as_f64().unwrap());
        assert!(low <= value && value <= high && low < high, "{interval}");
    }
    let (answers, expected) = (&found["answers"], golden["greedy"].as_array().unwrap());
    for (idx, expected) in expected.iter().enumerate() {
        let found = &answers[idx];
        assert_eq!(found["at"], expected["at"]);
        assert_eq!(found["tokens"], expected["tokens"]);
        assert_eq!(found["near_tie"].is_null(), expected["gap"].is_null());
        if !expected["gap"].is_null() {
            near(&found["gap"], &expected["gap"], "gap");
        }
    }
    let shown = stdout(&home.run(&args));
    for part in [
        "599 tokens in windows of 256 tokens; ranges are 95 % intervals",
        "same first token            98.33 %",
        "greedy answers: 1 of 4 part within 24 tokens, 0 at near-ties",
        "  prompt at token 142: after 18, by 0.2723",
    ] {
        assert!(shown.contains(part), "{part}:\n{shown}");
    }
}

/// `thane perplexity` and the first window of `thane quality` see the same tokens.
#[test]
fn the_perplexity_is_that_of_the_other_command() {
    let (home, model) = (Home::new(), chat_gguf());
    let prose = models().join("perplexity.txt");
    let given = [
        text(&model),
        "--file",
        text(&prose),
        "--tokens",
        "200",
        "--json",
    ];
    let perplexity = home.run(&[&["perplexity"], &given[..]].concat());
    let quality = home.run(&[&["quality", "--answers", "0"], &given[..]].concat());
    assert_ends(&quality, 0, &[]);
    let quality = json(&quality);
    assert_eq!(quality["reference_is"], "itself");
    let found = quality["language"]["perplexity"]["value"].as_f64().unwrap();
    let expected = json(&perplexity)["perplexity"].as_f64().unwrap();
    assert!((found / expected - 1.0).abs() < 1e-9, "{found}, {expected}");
}

#[test]
fn the_reference_of_a_package_is_its_source_where_that_is() {
    let home = Home::new();
    copy(&chat_folder(), &home.path("tiny-chat"));
    let (source, package) = (home.path("tiny-chat"), home.path("chat.mlpackage"));
    let form = "--form ane --context 64 --block 8";
    assert_ends(
        &home.run(&conversion(text(&source), text(&package), form)),
        0,
        &[],
    );
    let prose = models().join("perplexity.txt");
    let args = [
        "quality",
        text(&package),
        "--file",
        text(&prose),
        "--tokens",
        "80",
        "--json",
    ];
    let judged = || {
        let output = home.run(&args);
        assert_ends(&output, 0, &[]);
        json(&output)
    };
    let report = judged();
    assert_eq!(report["reference_is"], "source");
    assert_eq!(report["reference"], text(&source));
    let found = &report["language"];
    assert_eq!(found["window"], 64, "the context of the package");
    assert!(found["kl"]["worst"].as_f64().unwrap() < 1e-2, "{found}");
    let layers = found["layer_errors"].as_array().unwrap();
    assert_eq!(layers.len(), 2);
    for error in layers {
        // fp16 weights are those of the checkpoint; norms and divisors are of another form.
        assert!((1e-9..1e-2).contains(&error.as_f64().unwrap()), "{found}");
    }
    // Other weights are another model.
    fs::copy(chat_gguf(), source.join("model.safetensors")).unwrap();
    assert_eq!(judged()["reference_is"], "itself");
}

/// What is recorded survives, and `thane verify` checks it.
#[test]
fn a_package_carries_its_quality_and_is_verified_by_it() {
    let home = Home::new();
    let prose = models().join("perplexity.txt");
    for (name, flags) in [("one.mlpackage", ""), ("two", " --split 2 --kv explicit")] {
        let package = home.path(name);
        let form = format!("--form ane --context 64 --block 8{flags}");
        let convert = conversion(text(&chat_folder()), text(&package), &form).join(" ");
        let convert: Vec<&str> = convert.split(' ').collect();
        assert_ends(&home.run(&convert), 0, &[]);
        let verify = || home.run(&["verify", text(&package)]);
        let nothing = ["it holds no logits of known texts", "--file TEXT --record"];
        assert_ends(&verify(), 2, &nothing);
        let chat = chat_folder();
        let args = [
            "quality",
            text(&package),
            text(&chat),
            "--file",
            text(&prose),
            "--record",
        ];
        let measured = home.run(&[&args[..], &["--tokens", "60", "--json"]].concat());
        assert_ends(&measured, 0, &[]);
        let file = match flags {
            "" => package.join("Data/ai.thane/contract.json"),
            _ => package.join("manifest.json"),
        };
        let mut stored: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let quality = &stored["quality"];
        assert_eq!(
            (&quality["reference"], &quality["samples"]),
            (&"tiny-chat".into(), &59.into())
        );
        let layers = quality["layer_errors"].as_array().unwrap();
        assert_eq!(layers.len(), 2);
        for error in layers {
            assert!((1e-9..1e-2).contains(&error.as_f64().unwrap()), "{quality}");
        }
        let (kept, said) = (&quality["measures"]["kl"], json(&measured));
        assert_eq!(*kept, said["language"]["kl"]["mean"]);
        assert_ends(&home.run(&["check", text(&package)]), 0, &[]);
        // Random logits are large, and rounding to fp16 moves them.
        for (numerics, kl) in [("f32", "0.01"), ("fast", "0.01"), ("ane", "1")] {
            let flags = ["--numerics", numerics, "--kl", kl];
            let output = home.run(&[&["verify", text(&package)], &flags[..]].concat());
            assert_ends(&output, 0, &[]);
            assert!(
                stdout(&output).matches("pass KL 0.").count() >= 4,
                "{output:?}"
            );
        }
        // The reference said something else.
        let logprobs = stored["quality"]["goldens"][1]["logprobs"]
            .as_array_mut()
            .unwrap();
        logprobs.reverse();
        fs::write(&file, stored.to_string()).unwrap();
        let output = verify();
        assert_ends(&output, 1, &["logits are not what they were"]);
        assert!(stdout(&output).contains("FAIL KL"));
    }
    let args = [
        "quality",
        text(&chat_folder()),
        "--file",
        text(&prose),
        "--record",
    ]
    .map(str::to_owned);
    let output = home.run(&args.each_ref().map(String::as_str));
    assert_ends(
        &output,
        2,
        &["expected a package that Thane wrote, found another model"],
    );
}

/// One command writes, judges and measures.
#[test]
fn verbs_that_write_a_package_measure_it() {
    let home = Home::new();
    let prose = models().join("perplexity.txt");
    let [plain, small] = ["plain.mlpackage", "small.mlpackage"].map(|name| home.path(name));
    let chat = chat_folder();
    let begin = text(&prose);
    let short = home.path("short.txt");
    fs::write(&short, &fs::read_to_string(begin).unwrap()[..400]).unwrap();
    let form = "--form ane --context 64 --block 8";
    let convert = conversion(text(&chat), text(&plain), form).join(" ");
    let convert: Vec<&str> = convert.split(' ').collect();
    let missing = [&convert[..], &["--quality", "no.txt"]].concat();
    assert_ends(&home.run(&missing), 2, &["no.txt"]);
    assert!(!plain.exists());
    let measuring = ["--quality", text(&short)];
    let written = home.run(&[&convert[..], &measuring].concat());
    assert_ends(
        &written,
        0,
        &["quality on", "perplexity", "of the reference; KL"],
    );
    let quality_of = |package: &Path| {
        let contract = fs::read(package.join("Data/ai.thane/contract.json")).unwrap();
        serde_json::from_slice::<Value>(&contract).unwrap()["quality"].clone()
    };
    let args = ["quality", text(&plain), text(&chat), "--file", text(&short)];
    let f32 = ["--numerics", "f32", "--answers", "0", "--json"];
    let measured = json(&home.run(&[&args[..], &f32].concat()));
    let kl = &measured["language"]["kl"]["mean"];
    assert_eq!(quality_of(&plain)["measures"]["kl"], *kl);
    let compress = ["compress", text(&plain), "-o", text(&small), "--json"];
    let coarse = ["--compress", "pal2", "--quality", text(&short)];
    let done = home.run(&[&compress[..], &coarse].concat());
    assert_ends(&done, 0, &[]);
    let found = &json(&done)["quality"]["language"]["kl"]["mean"];
    assert_eq!(quality_of(&small)["measures"]["kl"], *found);
    assert!(found["value"].as_f64().unwrap() > 10.0 * kl["value"].as_f64().unwrap());
    let compiled = home.path("model.mlmodelc");
    let args = ["convert", text(&chat), "-o", text(&compiled)];
    let refused = home.run(&[&args[..], &measuring].concat());
    assert_ends(&refused, 2, &["record no quality"]);
}

/// The quality of a package says nothing of the program that another command makes of it.
#[test]
fn a_compressed_package_has_no_quality() {
    let home = Home::new();
    let [plain, small] = ["plain", "small"].map(|name| home.path(name));
    let [plain, small] = [plain, small].map(|p| p.with_extension("mlpackage"));
    let chat = chat_folder();
    let form = "--form ane --context 64 --block 8";
    let convert = conversion(text(&chat), text(&plain), form).join(" ");
    let convert: Vec<&str> = convert.split(' ').collect();
    assert_ends(&home.run(&convert), 0, &[]);
    let prose = models().join("perplexity.txt");
    let quality = ["quality", text(&plain), text(&chat), "--file", text(&prose)];
    let record = ["--record", "--tokens", "60", "--json"];
    assert_ends(&home.run(&[&quality[..], &record].concat()), 0, &[]);
    let quality_of = |package: &Path| {
        let contract = fs::read(package.join("Data/ai.thane/contract.json")).unwrap();
        serde_json::from_slice::<Value>(&contract).unwrap()["quality"].clone()
    };
    assert!(quality_of(&plain).is_object());
    let compress = ["compress", text(&plain), "-o", text(&small)];
    assert_ends(&home.run(&compress), 0, &[]);
    assert!(quality_of(&small).is_null());
    let nothing = ["it holds no logits of known texts"];
    assert_ends(&home.run(&["verify", text(&small)]), 2, &nothing);
}

#[test]
fn judgments_and_ids_count_as_in_beir() {
    let (home, set) = (Home::new(), root().join("retrieval"));
    let bert = crate::embed::model("bert-mean");
    let quality = |set: &Path| {
        let args = [
            "quality",
            text(&bert),
            text(&bert),
            "--retrieval",
            text(set),
        ];
        json(&home.run(&[&args[..], &["--numerics", "f32", "--json"]].concat()))
    };
    let report = quality(&set);
    // A pair that is judged twice counts once, by its last judgment.
    copy(&set, &home.path("twice"));
    let judged = home.path("twice/qrels/test.tsv");
    let text_of = fs::read_to_string(&judged).unwrap();
    let (header, pairs) = text_of.split_once('\n').unwrap();
    let first: String = pairs.lines().map(|line| format!("{line}00\n")).collect();
    fs::write(&judged, format!("{header}\n{first}{pairs}")).unwrap();
    let twice = home.path("twice");
    let answer = quality(&twice);
    assert_eq!(answer["embedding"], report["embedding"]);
    // A query as a document is no answer to itself, if it has the same id.
    let queries = fs::read_to_string(set.join("queries.jsonl")).unwrap();
    let corpus = fs::read_to_string(set.join("corpus.jsonl")).unwrap();
    let [own, other] = ["\"_id\": \"q", "\"_id\": \"z"].map(|id| {
        let documents = queries.replace("\"_id\": \"q", id);
        fs::write(
            home.path("twice/corpus.jsonl"),
            format!("{corpus}{documents}"),
        )
        .unwrap();
        let answer = quality(&twice);
        assert_eq!(answer["embedding"]["texts"], 60);
        let ndcg = &answer["embedding"]["dimensions"][0]["ndcg"]["value"];
        ndcg.as_f64().unwrap()
    });
    assert!(own > other, "{own} {other}");
}

#[test]
fn an_encoder_beside_a_reference_as_other_libraries_have_it() {
    let (home, golden) = (Home::new(), golden("encoder.json"));
    let reference = crate::embed::model("bert-mean");
    let model = changed(
        &home,
        &reference,
        "layer_norm_eps",
        &golden["layer_norm_eps"],
    );
    let set = root().join("retrieval");
    let args = [
        "quality",
        &model,
        text(&reference),
        "--retrieval",
        text(&set),
        "--numerics",
        "f32",
    ];
    let output = home.run(&[&args[..], &["--json"]].concat());
    assert_ends(&output, 0, &[]);
    let report = json(&output);
    let found = &report["embedding"];
    assert_eq!(
        (&found["texts"], &found["queries"]),
        (&40.into(), &20.into())
    );
    for (idx, expected) in golden["ndcg"].as_array().unwrap().iter().enumerate() {
        let found = &found["dimensions"][idx];
        assert_eq!(found["dimensions"], expected["dim"]);
        near(&found["ndcg"]["value"], &expected["model"], "nDCG");
        near(
            &found["reference_ndcg"]["value"],
            &expected["reference"],
            "nDCG of the reference",
        );
    }
    let whole = &found["dimensions"][0];
    near(&whole["cosine"]["value"], &golden["cosine"]["mean"], "mean");
    near(
        &whole["median_cosine"],
        &golden["cosine"]["median"],
        "median",
    );
    near(&whole["worst_cosine"], &golden["cosine"]["worst"], "worst");
    let shown = stdout(&home.run(&args));
    assert!(
        shown.contains("nDCG@10") && shown.contains("21 dimensions"),
        "{shown}"
    );
    // Lines of a file have cosines alone.
    let prose = models().join("perplexity.txt");
    let output = home.run(&[
        "quality",
        &model,
        text(&reference),
        "--file",
        text(&prose),
        "--json",
    ]);
    assert_ends(&output, 0, &[]);
    let dimensions = &json(&output)["embedding"]["dimensions"][0];
    assert!(dimensions["ndcg"].is_null() && dimensions["cosine"]["value"].is_number());
}

/// A copy of the tiny chat model whose tokenizer has two tokens in each other's place.
fn swapped(home: &Home) -> PathBuf {
    let to = home.path("swapped");
    copy(&chat_folder(), &to);
    let tokenizer = fs::read(to.join("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_slice(&tokenizer).unwrap();
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let (e, t) = (vocabulary["e"].clone(), vocabulary["t"].clone());
    vocabulary.insert("e".to_owned(), t);
    vocabulary.insert("t".to_owned(), e);
    fs::write(to.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    to
}

#[track_caller]
fn refuses(home: &Home, cases: &[(&[&str], &str)]) {
    for (args, said) in cases {
        let output = home.run(&[&["quality"], *args].concat());
        assert_ends(&output, 2, &[said]);
    }
}

#[test]
fn language_models_that_cannot_be_compared_are_refused() {
    let home = Home::new();
    let write = |name: &str, text: &str| {
        fs::write(home.path(name), text).unwrap();
        home.path(name).to_str().unwrap().to_owned()
    };
    let (short, empty) = (write("short", "x"), write("empty", ""));
    let [chat, bert] = [chat_folder(), crate::embed::model("bert-mean")];
    let (prose, other, swapped) = (
        models().join("perplexity.txt"),
        models().join("tiny/llama-bias"),
        swapped(&home),
    );
    let (chat, bert, prose) = (text(&chat), text(&bert), text(&prose));
    let alike = "expected two language models or two embedding models";
    let window = "expected at most the context of 512 tokens";
    let retrieval = "a retrieval set is for embedding models";
    let cases: &[(&[&str], &str)] = &[
        (&[chat], "is measured over a text, found none"),
        (&[chat, "--file", &short], "has fewer than two tokens"),
        (&[chat, "--file", &empty], "has fewer than two tokens"),
        (&[chat, "--file", prose, "--numerics", "f16"], "'f16'"),
        (&[chat, "--file", prose, "--tokens", "1"], "'1'"),
        (&[chat, "--file", prose, "--window", "513"], window),
        (&[chat, bert, "--file", prose], alike),
        (&[bert, chat, "--file", prose], alike),
        (&[chat, text(&swapped), "--file", prose], "of one tokenizer"),
        (&[chat, text(&other), "--file", prose], "of one vocabulary"),
        (&[chat, "--retrieval", chat], retrieval),
        (&["nosuch", "--file", prose], "unknown model `nosuch`"),
    ];
    refuses(&home, cases);
}

#[test]
fn embedding_models_that_cannot_be_compared_are_refused() {
    let home = Home::new();
    copy(&root().join("retrieval"), &home.path("bad"));
    let judged = "query-id\tcorpus-id\tscore\nq0\td999\t1\n";
    fs::write(home.path("bad/qrels/test.tsv"), judged).unwrap();
    copy(&root().join("retrieval"), &home.path("headless"));
    let judgments = fs::read_to_string(root().join("retrieval/qrels/test.tsv")).unwrap();
    let (_, headless) = judgments.split_once('\n').unwrap();
    fs::write(home.path("headless/qrels/test.tsv"), headless).unwrap();
    fs::write(home.path("empty"), "").unwrap();
    let [bad, empty, headless] = ["bad", "empty", "headless"].map(|name| home.path(name));
    let [bert, shorter] = ["bert-mean", "bert-cls"].map(crate::embed::model);
    let prose = models().join("perplexity.txt");
    let (bert, shorter, prose) = (text(&bert), text(&shorter), text(&prose));
    let length = "expected vectors of one length";
    let cases: &[(&[&str], &str)] = &[
        (&[bert], "expected texts for the embedding model"),
        (&[bert, "--file", text(&empty)], "expected a text per line"),
        (&[bert, "--retrieval", bert], "corpus.jsonl"),
        (&[bert, "--retrieval", text(&bad)], "has no `d999`"),
        (
            &[bert, "--retrieval", text(&headless)],
            "line 1: expected the header",
        ),
        (
            &[bert, "--file", prose, "--window", "16"],
            "--window is for language models",
        ),
        (&[bert, shorter, "--file", prose], length),
    ];
    refuses(&home, cases);
}
