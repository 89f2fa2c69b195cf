//! `--json` of every verb, contracts and manifests have the fields that `docs/json.md` lists, and
//! no others.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::fixture::{Home, assert_ends, chat_gguf, conversion, json};

type Fields = BTreeMap<String, String>;

/// Objects whose keys are data.
const OF_DATA: [&str; 10] = [
    "packages[].forms",
    "quantization",
    "functions",
    "functions[].ops",
    "tables",
    "constants",
    "prompts",
    "model.prompts",
    "model.generation.settings",
    "quality.measures",
];

fn page(name: &str) -> String {
    std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../docs")
            .join(name),
    )
    .unwrap()
}

/// The tables of the page: per verb, field and type.
fn documented() -> BTreeMap<String, Fields> {
    let page = page("json.md");
    let mut verbs = BTreeMap::new();
    let mut verb = String::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            let name = heading.replace('`', "");
            verb = name.strip_prefix("thane ").unwrap_or(&name).to_owned();
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let [_, field, ty, _, _] = cells[..]
            && let Some(field) = field.strip_prefix('`').and_then(|f| f.strip_suffix('`'))
        {
            let fields: &mut Fields = verbs.entry(verb.clone()).or_default();
            fields.insert(field.to_owned(), ty.to_owned());
        }
    }
    verbs
}

/// Every field below `value`. Keys of maps whose keys are data are `*`, as on the page.
fn collect(path: &str, value: &Value, fields: &mut Fields) {
    if !path.is_empty() {
        let ty = match value {
            Value::String(_) => "string",
            Value::Bool(_) => "boolean",
            Value::Number(n) if n.is_u64() => "integer",
            Value::Number(_) => "number",
            Value::Array(_) => "list",
            Value::Object(_) => "object",
            Value::Null => "null",
        };
        fields.insert(path.to_owned(), ty.to_owned());
    }
    match value {
        Value::Array(items) => items
            .iter()
            .for_each(|item| collect(&format!("{path}[]"), item, fields)),
        Value::Object(map) => {
            for (key, item) in map {
                let key = if OF_DATA.contains(&path) { "*" } else { key };
                collect(
                    &if path.is_empty() {
                        key.to_owned()
                    } else {
                        format!("{path}.{key}")
                    },
                    item,
                    fields,
                );
            }
        }
        _ => {}
    }
}

#[track_caller]
pub fn agrees(verb: &str, report: &Value) {
    agree(verb, std::slice::from_ref(report));
}

/// Compares the fields that at least one of the reports has.
#[track_caller]
pub fn agree(verb: &str, reports: &[Value]) {
    let mut found = Fields::new();
    for report in reports {
        collect("", report, &mut found);
    }
    let listed = documented()
        .remove(verb)
        .unwrap_or_else(|| panic!("`thane {verb}` has no section"));
    let names = |fields: &Fields| fields.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(&listed), "{verb}");
    for (field, ty) in &found {
        let allowed: Vec<&str> = listed[field].split(" or ").collect();
        // A number may happen to be whole.
        let fits =
            allowed.contains(&ty.as_str()) || (ty == "integer" && allowed.contains(&"number"));
        assert!(
            fits,
            "{verb}: `{field}` is {ty}, the page says {}",
            listed[field]
        );
    }
}

#[test]
fn verbs_that_read_a_model() {
    let (home, model) = (Home::new(), chat_gguf());
    let text = home.path("text");
    std::fs::write(&text, "the air and the sea").unwrap();
    let (model, text) = (model.to_str().unwrap(), text.to_str().unwrap());
    let bundle = crate::foreign::bundle("anemll-rotating");
    let cases: [&[&str]; 5] = [
        &["run", model, "hello", "--logprobs", "2"],
        &["show", model],
        &["inspect", &bundle],
        &["ops"],
        &["perplexity", model, "--file", text],
    ];
    for args in cases {
        let output = home.run(&[args, &["--json"]].concat());
        assert_ends(&output, 0, &[]);
        assert_eq!(
            output.stdout.iter().filter(|b| **b == b'\n').count(),
            1,
            "one object, one line"
        );
        agrees(args[0], &json(&output));
    }
}

#[test]
fn embed_with_all_that_it_can_say() {
    let (home, model) = (Home::new(), crate::embed::model("bert-mean"));
    let args = [
        "embed",
        model.to_str().unwrap(),
        "--similarity",
        "the sea",
        "the stone",
        "--json",
    ];
    let output = home.run(&args);
    assert_ends(&output, 0, &[]);
    agrees("embed", &json(&output));
}

#[test]
fn quality_of_both_kinds_of_model() {
    let home = Home::new();
    let (chat, bert) = (chat_gguf(), crate::embed::model("bert-mean"));
    let root = crate::decoder::models();
    let (prose, set) = (
        root.join("perplexity.txt"),
        root.join("../quality/retrieval"),
    );
    let [chat, bert, prose, set] = [&chat, &bert, &prose, &set].map(|path| path.to_str().unwrap());
    // In `ane`, at least one answer parts.
    let ane = ["--tokens", "200", "--numerics", "ane"];
    let language = home.run(&[&["quality", chat, "--file", prose, "--json"], &ane[..]].concat());
    let embedding = home.run(&["quality", bert, "--retrieval", set, "--json"]);
    let reports = [language, embedding].map(|output| {
        assert_ends(&output, 0, &[]);
        json(&output)
    });
    agree("quality", &reports);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a list of packages")]
fn contracts_and_manifests() {
    let home = Home::new();
    let (decoder, encoder) = (
        crate::decoder::models().join("tiny/gemma3"),
        crate::embed::model("qwen3-embedding"),
    );
    let parse = |path: &str| serde_json::from_slice(&std::fs::read(home.path(path)).unwrap());
    let parse = |path: &str| -> Value { parse(path).unwrap() };
    let convert = |model: &Path, to: &str, flags: &str| {
        let out = home.path(to);
        let fixed = conversion(model.to_str().unwrap(), out.to_str().unwrap(), "");
        let flags: Vec<&str> = flags.split_whitespace().collect();
        assert_ends(&home.run(&[&fixed[..], &flags].concat()), 0, &[]);
    };
    let contract = |package: &str| parse(&format!("{package}/Data/ai.thane/contract.json"));
    let engine = "--form ane --context 64 --block 8 --kv explicit --attention-window 16 --lanes 2";
    convert(
        &decoder,
        "host.mlpackage",
        &format!("{engine} --head host --lookup host"),
    );
    convert(
        &decoder,
        "top.mlpackage",
        &format!("{engine} --head top3 --attention-pool 4"),
    );
    convert(
        &decoder,
        "tied.mlpackage",
        &format!("{engine} --lookup host"),
    );
    let coded = "--lookup host --compress pal4 --scale behind";
    convert(&decoder, "coded.mlpackage", &format!("{engine} {coded}"));
    let per_layer = crate::decoder::models().join("tiny/gemma4");
    let plain = "--form ane --context 64 --block 8 --kv explicit";
    convert(&per_layer, "file.mlpackage", &format!("{plain} {coded}"));
    let recurrent = crate::decoder::models().join("tiny/lfm2");
    convert(
        &recurrent,
        "lfm2.mlpackage",
        "--form ane --context 64 --block 8",
    );
    let sampled = home.path("sampled");
    std::fs::create_dir(&sampled).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(decoder.join(name), sampled.join(name)).unwrap();
    }
    let file = r#"{"do_sample": true, "temperature": 0.6}"#;
    std::fs::write(sampled.join("generation_config.json"), file).unwrap();
    convert(&sampled, "sampled.mlpackage", "");
    let engine = "--form ane --context 64 --block 8";
    convert(&crate::fixture::chat_folder(), "judged.mlpackage", engine);
    let prose = crate::decoder::models().join("perplexity.txt");
    let record = |package: &str, flags: &[&str]| {
        let (package, prose) = (home.path(package), prose.to_str().unwrap());
        let args = [
            "quality",
            package.to_str().unwrap(),
            "--file",
            prose,
            "--record",
        ];
        assert_ends(&home.run(&[&args[..], flags].concat()), 0, &[]);
    };
    record("judged.mlpackage", &["--tokens", "40", "--answers", "0"]);
    let packages = [
        "host.mlpackage",
        "top.mlpackage",
        "tied.mlpackage",
        "coded.mlpackage",
        "file.mlpackage",
        "lfm2.mlpackage",
        "sampled.mlpackage",
        "judged.mlpackage",
    ];
    agree("contract.json", &packages.map(contract));
    convert(&encoder, "e.mlpackage", "--task embed --buckets 24");
    let kept = crate::embed::model("bert-steps");
    convert(&kept, "kept.mlpackage", "--task embed --buckets 24");
    record("kept.mlpackage", &[]);
    let counted = crate::embed::model("roberta");
    let flags = "--task embed --buckets 24 --lookup host";
    convert(&counted, "counted.mlpackage", flags);
    convert(
        &counted,
        "coded-e.mlpackage",
        &format!("{flags} --compress pal4 --scale behind"),
    );
    agree(
        "contract.json of an embedding model",
        &[
            "e.mlpackage",
            "kept.mlpackage",
            "counted.mlpackage",
            "coded-e.mlpackage",
        ]
        .map(contract),
    );
    convert(
        &crate::fixture::chat_folder(),
        "chunks",
        &format!("{engine} --split 2"),
    );
    record("chunks", &["--tokens", "40", "--answers", "0"]);
    let mut manifest = parse("chunks/manifest.json");
    manifest["model"] = serde_json::json!({});
    agree("manifest.json", &[manifest]);
}

#[test]
fn show_families() {
    let output = Home::new().run(&["show", "--families", "--json"]);
    assert_ends(&output, 0, &[]);
    agrees("show --families", &json(&output));
}

#[test]
fn batch_with_a_request() {
    let (home, model) = (Home::new(), crate::embed::model("bert-mean"));
    let body = serde_json::json!({"model": model, "input": "a"});
    let (file, out) = (home.path("in.jsonl"), home.path("out.jsonl"));
    std::fs::write(&file, crate::batch::line("a", "/v1/embeddings", body)).unwrap();
    let (file, out) = (file.to_str().unwrap(), out.to_str().unwrap());
    agrees(
        "batch",
        &json(&home.run(&["batch", file, "-o", out, "--json"])),
    );
}

#[test]
fn rerank_with_ids() {
    let (home, model) = (Home::new(), crate::rerank::model("bert"));
    let file = home.path("texts.jsonl");
    std::fs::write(&file, "{\"text\": \"a cat\", \"id\": \"a\"}\n").unwrap();
    let args = [
        model.to_str().unwrap(),
        "a query",
        "--file",
        file.to_str().unwrap(),
    ];
    let output = home.run(&[&["rerank", "--json"], &args[..]].concat());
    agrees("rerank", &json(&output));
}

#[test]
fn show_of_an_embedding_model() {
    let (home, model) = (Home::new(), crate::embed::model("qwen3-embedding"));
    let output = home.run(&["show", model.to_str().unwrap(), "--json"]);
    assert_ends(&output, 0, &[]);
    agrees("show EMBEDDING_MODEL", &json(&output));
}

#[test]
fn show_of_a_reranker() {
    let (home, model) = (Home::new(), crate::rerank::model("bert"));
    let output = home.run(&["show", model.to_str().unwrap(), "--json"]);
    assert_ends(&output, 0, &[]);
    agrees("show RERANKER", &json(&output));
}

#[test]
#[expect(clippy::too_many_lines, reason = "most lines are cases")]
fn bench_of_language_and_embedding_models() {
    let home = Home::new();
    let language = chat_gguf().to_str().unwrap().to_owned();
    let encoder = crate::embed::model("bert-mean")
        .to_str()
        .unwrap()
        .to_owned();
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/packages/gru.mlpackage");
    let package = package.to_str().unwrap().to_owned();
    let cases: [&[&str]; 9] = [
        &["prefill", &language, "--lengths", "5,9", "--threads", "1,2"],
        &[
            "decode",
            &language,
            "--lengths",
            "5",
            "--tokens",
            "3",
            "--isa",
            "portable",
        ],
        &[
            "batch",
            &language,
            "--lengths",
            "5",
            "--tokens",
            "3",
            "--batch",
            "1,3",
        ],
        &["verify", &language, "--lengths", "5", "--verify", "2,7"],
        &["scheduler", &language, "--lengths", "5", "--tokens", "3"],
        &["embed", &encoder, "--lengths", "3-9", "--batch", "1,4"],
        &["cold", &language, "--lengths", "3"],
        &["convert", &language],
        &["predict", &package, "--threads", "1,2", "--profile"],
    ];
    let mut all = Vec::new();
    for (args, n) in cases.into_iter().zip([4, 1, 2, 2, 1, 2, 1, 1, 2]) {
        let output = home.run(&[&["bench", "--rounds", "1"], args, &["--json"]].concat());
        assert_ends(&output, 0, &[]);
        let figures = json(&output)["figures"].as_array().unwrap().clone();
        assert_eq!(figures.len(), n, "{args:?}");
        let best = thane_kernels::Isa::detect().name();
        for figure in &figures {
            let of = |name: &str| figure[name].as_f64().unwrap();
            assert_eq!(
                figure["machine"]["isa"],
                if args.contains(&"portable") {
                    "portable"
                } else {
                    best
                }
            );
            assert!(
                0.0 < of("least") && of("least") <= of("median") && of("median") <= of("most"),
                "{figure}"
            );
        }
        all.extend(figures);
    }
    agrees("bench", &serde_json::json!({ "figures": all }));
    let lines = home.run(&[
        "bench",
        "embed",
        &encoder,
        "--rounds",
        "1",
        "--lengths",
        "4",
        "--batch",
        "1,2",
    ]);
    let lines = String::from_utf8(lines.stdout).unwrap();
    assert!(
        lines.lines().count() == 2 && lines.lines().all(|l| l.starts_with("{\"bench\":\"embed\"")),
        "{lines}"
    );
    for (args, said) in [
        (
            &["bench", "prefill", &language, "--lengths", "3-9"][..],
            "a prompt has one length",
        ),
        (
            &["bench", "embed", &encoder, "--lengths", "100000"],
            "the model takes",
        ),
        (
            &["bench", "embed", &encoder, "--lengths", "0"],
            "a length such as 512",
        ),
        (
            &["bench", "embed", &encoder, "--batch", "8", "--texts", "3"],
            "fewer than the 8 of --batch",
        ),
        (&["bench", "decode", &encoder], ""),
    ] {
        assert_ends(&home.run(args), 2, &[said]);
    }
}

#[test]
fn buckets_with_all_that_they_can_say() {
    let (home, model) = (Home::new(), crate::embed::model("bert-mean"));
    let counts = home.path("counts.json");
    std::fs::write(&counts, "{\"5\": 3, \"40\": 1}").unwrap();
    let output = home.run(&[
        "buckets",
        model.to_str().unwrap(),
        "--histogram",
        counts.to_str().unwrap(),
        "--json",
    ]);
    assert_ends(&output, 0, &[]);
    agrees("buckets", &json(&output));
}

#[test]
fn plan_with_all_that_it_can_say() {
    let (home, model) = (Home::new(), crate::fixture::chat_folder());
    let model = model.to_str().unwrap();
    let output = home.run(&[
        "plan",
        model,
        "--target",
        "m4",
        "--contexts",
        "32",
        "--verify",
        "2",
        "--json",
    ]);
    assert_ends(&output, 0, &[]);
    agrees("plan", &json(&output));
}

/// The predicted speed of answers of a tiny model.
fn answer(home: &Home) -> Value {
    let model = crate::fixture::chat_folder();
    let args = [
        "audit",
        model.to_str().unwrap(),
        "--context",
        "64",
        "--json",
    ];
    json(&home.run(&args))["targets"][0]["answer"].clone()
}

/// A report that has something in every list, out of several.
fn full_audit(home: &Home) -> Value {
    let (broken, fixed) = (
        crate::audit::example("broken"),
        crate::audit::example("fixed"),
    );
    let path = |name: &str| home.path(name).to_str().unwrap().to_owned();
    let (base, plan) = (path("base.json"), path("plan.json"));
    assert_ends(
        &home.run(&["audit", &broken, "--format", "json", "-o", &base]),
        0,
        &[],
    );
    std::fs::write(
        &plan,
        "[{\"output\": \"q\", \"preferred\": \"gpu\", \"cost\": 0.5}]",
    )
    .unwrap();
    let gone = json(&home.run(&["audit", &fixed, "--baseline", &base, "--json"]));
    let args = [
        "audit",
        &broken,
        "--baseline",
        &base,
        "--compare",
        &plan,
        "--require-ane",
        "100",
        "--json",
    ];
    let output = home.run(&args);
    assert_ends(&output, 1, &[]);
    let mut report = json(&output);
    report["baseline"] = gone["baseline"].clone();
    // A list of which an example is due.
    report["baseline"]["missing"] = serde_json::json!(["m1+macos26 (cpuAndNeuralEngine)"]);
    let swept = json(&home.run(&[
        "audit",
        chat_gguf().to_str().unwrap(),
        "--context",
        "32",
        "--json",
    ]));
    report["contexts"] = swept["contexts"].clone();
    let chain = crate::foreign::bundle("anemll-chat");
    let chain = json(&home.run(&["audit", &chain, "--json"]));
    report["chains"] = chain["chains"].clone();
    report["targets"][0]["answer"] = answer(home);
    let large = json(&home.run(&["audit", &crate::audit::large(home), "--json"]));
    report["targets"][0]["functions"][0]["chunks"] =
        large["targets"][0]["functions"][0]["chunks"].clone();
    let disputed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/audit/ANE083.mil");
    let disputed = json(&home.run(&[
        "audit",
        disputed.to_str().unwrap(),
        "--function",
        "fires",
        "--json",
    ]));
    assert_eq!(
        disputed["targets"][0]["verdict"], "off-engine",
        "small as it is, it stays on the CPU"
    );
    let open = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/audit/ANE059.mil");
    let open = json(&home.run(&[
        "audit",
        open.to_str().unwrap(),
        "--function",
        "fires",
        "--json",
    ]));
    for field in ["length", "lengths"] {
        report["targets"][0]["functions"][0][field] =
            open["targets"][0]["functions"][0][field].clone();
    }
    let denied = json(&home.run(&["audit", &broken, "--deny", "error", "--json"]));
    report["denied"] = denied["denied"].clone();
    report["targets"][0]["functions"][0]["may_leave"] =
        disputed["targets"][0]["functions"][0]["may_leave"].clone();
    report
}

#[test]
fn fixes_and_parts() {
    let home = Home::new();
    let from = crate::fix::broken(&home);
    let path = |name: &str| home.path(name).to_str().unwrap().to_owned();
    let (from, to) = (from.to_str().unwrap().to_owned(), path("fixed.mlpackage"));
    agrees(
        "audit --fix",
        &json(&home.run(&[
            "audit",
            &from,
            "--fix",
            "-o",
            &to,
            "--json",
            "--direct",
            "--pad-interface",
        ])),
    );
    let part = path("part.mlpackage");
    agrees(
        "bisect",
        &json(&home.run(&["bisect", &from, "--rule", "ANE007", "-o", &part, "--json"])),
    );
}

#[test]
fn audits_scores_and_explanations() {
    let home = Home::new();
    agrees("audit", &full_audit(&home));
    let mut scores = json(&home.run(&["audit", "--self-check", "--json"]));
    // A list of which an example is due.
    scores["placement"][0]["misses"] =
        serde_json::json!([{"case": "a", "said": "b", "label": "c"}]);
    scores["placement"][0]["gpu_misses"] = scores["placement"][0]["misses"].clone();
    scores["plans"][0]["left_out"] = serde_json::json!([{"id": "a", "reason": "b"}]);
    agrees("audit --self-check", &scores);
    let mut explained =
        json(&home.run(&["explain", "-14", &crate::audit::example("broken"), "--json"]));
    explained["rules"] = json(&home.run(&["explain", "--list", "--json"]))["rules"].clone();
    let broken = crate::audit::example("broken");
    let of_rule = json(&home.run(&["explain", "ANE001", &broken, "--json"]));
    explained["findings"] = of_rule["findings"].clone();
    agrees("explain", &explained);
}

#[test]
fn verbs_of_packages() {
    let (home, model) = (Home::new(), chat_gguf());
    let path = |name: &str| home.path(name).to_str().unwrap().to_owned();
    let (a, b, out) = (path("a.mlpackage"), path("b.mlpackage"), path("out"));
    let npy = path("x.npy");
    std::fs::write(&npy, crate::package::ids(&[1, 5, 9])).unwrap();
    let given = format!("input_ids={npy}");
    let model = model.to_str().unwrap();
    let cases: [(&[&str], i32); 6] = [
        (
            &conversion(model, &a, "--context 32 --form portable --target m4"),
            0,
        ),
        (&conversion(model, &b, "--context 48"), 0),
        (&["check", &a], 0),
        (&["inspect", &a], 0),
        (
            &[
                "predict",
                &a,
                "--function",
                "prefill",
                "--numerics",
                "ane",
                "--input",
                &given,
                "--out",
                &out,
            ],
            0,
        ),
        (&["diff", &a, &b], 1),
    ];
    for (args, code) in cases {
        let output = home.run(&[args, &["--json"]].concat());
        assert_ends(&output, code, &[]);
        let mut report = json(&output);
        if args.contains(&"portable") {
            report["audits"][0]["answer"] = answer(&home);
        } else if args[0] == "convert" {
            continue;
        }
        if args[0] == "check" {
            // A list of which an example is due.
            report["errors"] = serde_json::json!(["an error"]);
            report["non_finite"] =
                serde_json::json!(["main: const `mask`: 1 of 4 elements are not finite"]);
        }
        if args[0] == "inspect" {
            let chain = crate::foreign::bundle("anemll-rotating");
            let chain = json(&home.run(&["inspect", &chain, "--stats", "--json"]));
            report["bundle"] = chain["bundle"].clone();
        }
        if args[0] == "diff" {
            report["constants"] = serde_json::json!(["`x` differs"]);
        }
        agrees(args[0], &report);
    }
}

#[test]
fn verbs_of_packages_of_embedding_models() {
    let home = Home::new();
    let out = home.path("model.mlpackage").to_str().unwrap().to_owned();
    let model = crate::embed::model("bert-cls").to_str().unwrap().to_owned();
    let convert = conversion(&model, &out, "--json --task embed --buckets 8,16");
    agrees("convert --task embed", &json(&home.run(&convert)));
    let chat = home.path("chat.mlpackage");
    let (chat, source) = (chat.to_str().unwrap(), crate::fixture::chat_folder());
    let form = "--form ane --context 64 --block 8";
    assert_ends(
        &home.run(&conversion(source.to_str().unwrap(), chat, form)),
        0,
        &[],
    );
    let prose = crate::decoder::models().join("perplexity.txt");
    let args = [
        "quality",
        chat,
        "--file",
        prose.to_str().unwrap(),
        "--tokens",
        "40",
        "--record",
    ];
    assert_ends(&home.run(&args), 0, &[]);
    let verified = |path: &str| json(&home.run(&["verify", "--json", path]));
    agree("verify", &[verified(&out), verified(chat)]);
}

#[test]
fn compress() {
    let home = Home::new();
    let small = home.path("small.mlpackage").to_str().unwrap().to_owned();
    let model = crate::embed::model("embeddinggemma");
    let gemma = home.path("gemma.mlpackage").to_str().unwrap().to_owned();
    let convert = conversion(model.to_str().unwrap(), &gemma, "--task embed --buckets 8");
    assert_ends(&home.run(&convert), 0, &[]);
    let compress = [
        "compress",
        "--json",
        "--compress",
        "int8",
        &gemma,
        "-o",
        &small,
    ];
    agrees("compress", &json(&home.run(&compress)));
}

#[test]
fn verbs_of_the_cache() {
    let home = Home::new();
    home.tiny(&[&[1; 4000]]);
    let catalogue = home.path("catalogue.json");
    for verb in ["pull tiny", "ls", "rm tiny"] {
        let args: Vec<&str> = verb.split(' ').chain(["--json"]).collect();
        let output = home
            .thane(&args)
            .env("THANE_CATALOGUE", &catalogue)
            .output()
            .unwrap();
        assert_ends(&output, 0, &[]);
        agrees(verb.split(' ').next().unwrap(), &json(&output));
    }
}

#[test]
fn each_section_is_a_verb_or_a_file() {
    let verbs: Vec<String> = documented().into_keys().collect();
    assert_eq!(
        verbs,
        [
            "audit",
            "audit --fix",
            "audit --self-check",
            "batch",
            "bench",
            "bisect",
            "buckets",
            "cache ls",
            "cache prune",
            "cache verify",
            "check",
            "compress",
            "contract.json",
            "contract.json of an embedding model",
            "convert",
            "convert --task embed",
            "diff",
            "embed",
            "explain",
            "inspect",
            "ls",
            "manifest.json",
            "ops",
            "perplexity",
            "plan",
            "predict",
            "ps",
            "pull",
            "push",
            "quality",
            "rerank",
            "rm",
            "run",
            "show",
            "show --families",
            "show EMBEDDING_MODEL",
            "show RERANKER",
            "stop",
            "thane.json",
            "verify"
        ]
    );
}

#[test]
fn the_example_of_a_catalogue_is_one() {
    let (home, page) = (Home::new(), page("catalog.md"));
    let example = page
        .split("```json\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    std::fs::write(home.path("catalogue.json"), example).unwrap();
    let file = home.path("catalogue.json");
    let args = |name| {
        [
            "pull",
            name,
            "--offline",
            "--catalogue",
            file.to_str().unwrap(),
        ]
    };
    assert_ends(
        &home.run(&args("mine")),
        5,
        &[
            "cannot get mine",
            "hf:org/name/mine.gguf",
            "mine-part2==1.0",
        ],
    );
    assert_ends(
        &home.run(&args("yours")),
        2,
        &["unknown model `yours`", "mine"],
    );
}
