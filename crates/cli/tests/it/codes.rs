//! Exit codes: one table for all verbs, whatever the verb and whatever fails.

use std::path::Path;

use crate::fixture::{Home, assert_ends, chat_gguf, conversion, stderr, verbs};

/// What stands for files in the cases.
struct Files {
    home: Home,
    names: Vec<(&'static str, String)>,
}

impl Files {
    fn new() -> Self {
        let home = Home::new();
        let path = |name: &str| home.path(name).to_str().unwrap().to_owned();
        let gguf = chat_gguf().to_str().unwrap().to_owned();
        let bert = crate::embed::model("bert-mean")
            .to_str()
            .unwrap()
            .to_owned();
        let reranker = crate::rerank::model("bert").to_str().unwrap().to_owned();
        let (package, bundle) = (path("p.mlpackage"), path("e.mlpackage"));
        assert_ends(
            &home.run(&["convert", &gguf, "-o", &package, "--context", "32"]),
            0,
            &[],
        );
        let embeds = conversion(&bert, &bundle, "--task embed --buckets 8");
        assert_ends(&home.run(&embeds), 0, &[]);
        let bytes = std::fs::read(&gguf).unwrap();
        let half = |name: &str, bytes: &[u8]| {
            std::fs::write(home.path(name), &bytes[..bytes.len() / 2]).unwrap();
            path(name)
        };
        let (cut, cut_npy) = (
            half("cut.gguf", &bytes),
            half("cut.npy", &crate::package::ids(&[1, 5, 9])),
        );
        let broken = crate::audit::example("broken");
        let cut_mil = half("cut.mil", &std::fs::read(&broken).unwrap());
        let torn = |name: &str, from: &str, file: &str| {
            copy(Path::new(from), &home.path(name));
            let file = home.path(name).join("Data/com.apple.CoreML").join(file);
            let bytes = std::fs::read(&file).unwrap();
            std::fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
            path(name)
        };
        let cut_package = torn("cut.mlpackage", &package, "model.mlmodel");
        let cut_weights = torn("weights.mlpackage", &package, "weights/weight.bin");
        let cut_bundle = torn("bundle.mlpackage", &bundle, "weights/weight.bin");
        for (name, bytes) in [
            ("text.txt", &b"the air and the sea"[..]),
            ("latin.txt", b"caf\xe9 and tea"),
            ("cut.jsonl", b"{\"text\": \"a\"}\n{\"text\": \"b"),
            ("cut.json", b"{\"5\": 3, "),
        ] {
            std::fs::write(home.path(name), bytes).unwrap();
        }
        let body = serde_json::json!({"model": bert, "input": "a"});
        let request = crate::batch::line("a", "/v1/embeddings", body);
        std::fs::write(home.path("requests.jsonl"), request).unwrap();
        let names = vec![
            ("GGUF", gguf),
            ("BERT", bert),
            ("RERANKER", reranker),
            ("CUTPACKAGE", cut_package),
            ("CUTWEIGHTS", cut_weights),
            ("CUTBUNDLE", cut_bundle),
            ("CUTNPY", cut_npy),
            ("CUTMIL", cut_mil),
            ("CUTGGUF", cut),
            ("PACKAGE", package),
            ("BUNDLE", bundle),
            ("MIL", broken),
            ("FIXED", crate::audit::example("fixed")),
            ("TEXT", path("text.txt")),
            ("LATIN", path("latin.txt")),
            ("REQUESTS", path("requests.jsonl")),
            ("CUTJSONL", path("cut.jsonl")),
            ("CUTJSON", path("cut.json")),
            ("GONE", path("gone")),
        ];
        Self { home, names }
    }

    /// Every case ends with `code`, says why where it is not 0, and has no panic.
    fn end(&self, code: i32, cases: &[&str]) {
        let mut faults = Vec::new();
        // A path that nothing is at.
        let out = |i: usize| {
            self.home
                .path(&format!("out{code}-{i}"))
                .to_str()
                .unwrap()
                .to_owned()
        };
        let name = |i: usize, word: &str| {
            let (word, end) = word.split_at(word.find(['.', '/']).unwrap_or(word.len()));
            let (before, key) = word
                .split_once('=')
                .map_or(("", word), |(name, key)| (name, key));
            let found = self
                .names
                .iter()
                .find(|(name, _)| *name == key)
                .map(|(_, path)| path.clone());
            let found = found
                .or((key == "OUT").then(|| out(i)))
                .unwrap_or_else(|| key.to_owned());
            if before.is_empty() {
                format!("{found}{end}")
            } else {
                format!("{before}={found}{end}")
            }
        };
        for (i, case) in cases.iter().enumerate() {
            let args: Vec<String> = case.split(' ').map(|word| name(i, word)).collect();
            let output = self
                .home
                .run(&args.iter().map(String::as_str).collect::<Vec<_>>());
            let said = stderr(&output);
            let is_told = said.lines().any(|l| {
                l.starts_with("thane: ") || l.starts_with("error: ") || l.contains("Usage:")
            });
            let is_clean = !said.contains("panicked") && !said.contains("thane-cli");
            if output.status.code() != Some(code) || !is_clean || code != 0 && !is_told {
                faults.push(format!(
                    "thane {case}: {:?}, {code} is due\n{said}",
                    output.status.code()
                ));
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}

pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to)
        } else {
            assert!(std::fs::copy(entry.path(), to).is_ok())
        }
    }
}

/// Done.
const GOOD: &[&str] = &[
    "run GGUF hello --max-tokens 2",
    "ls",
    "ps",
    "list",
    "show GGUF",
    "inspect PACKAGE --stats",
    "ops",
    "perplexity GGUF --file TEXT",
    "quality GGUF --file TEXT",
    "convert GGUF -o OUT.mlpackage --context 32",
    "plan GGUF --target m4 --context 32",
    "check PACKAGE",
    "predict PACKAGE --function decode --out OUT",
    "diff PACKAGE PACKAGE",
    "verify BUNDLE",
    "compress BUNDLE -o OUT.mlpackage --compress int8",
    "embed BERT hello",
    "batch REQUESTS -o OUT.jsonl",
    "rerank RERANKER hello TEXT",
    "buckets BERT --file TEXT",
    "bench prefill GGUF --lengths 4 --rounds 1",
    "bench predict PACKAGE --function decode --rounds 1",
    "audit FIXED --require-ane 100 --deny warning",
    "explain -14",
    "bisect MIL -o OUT.mil",
    "completions bash",
    "man audit",
];

/// What was asked for does not hold.
const GATES: &[&str] = &[
    "audit MIL --require-ane 100",
    "audit MIL --deny error",
    "diff PACKAGE BUNDLE --no-run",
    "verify BUNDLE --cosine 1 --numerics ane",
];

/// The output cannot be written.
const UNWRITTEN: &[&str] = &[
    "audit MIL --format html -o /dev/full",
    "convert GGUF --context 32 -o TEXT/out.mlpackage",
    "embed BERT --file TEXT -o TEXT/out.npy",
    "predict PACKAGE --function decode --out TEXT/out",
    "bisect MIL -o TEXT/part.mlpackage",
];

/// Usage, and input that is not there.
const USAGE: &[&str] = &[
    "",
    "walk",
    "run",
    "run GGUF hello --bogus",
    "serve",
    "serve GONE.gguf --port 0",
    "serve GGUF --port 0 --host 0.0.0.0",
    "serve GGUF --port 0 --json",
    "batch GONE -o OUT.jsonl",
    "batch REQUESTS",
    "batch REQUESTS -o REQUESTS --force",
    "batch REQUESTS -o OUT.jsonl --model nosuch",
    "pull nosuch",
    "ls --bogus",
    "ps more",
    "stop 1 2",
    "logs --lines many",
    "logs --json",
    "show GONE.gguf",
    "inspect GONE.mlpackage",
    "ops more",
    "perplexity GGUF --file GONE",
    "perplexity GONE.gguf --file TEXT",
    "quality GGUF",
    "quality GGUF BERT --file TEXT",
    "rm nosuch",
    "remove nosuch",
    "convert GONE.gguf -o OUT.mlpackage",
    "plan GONE.gguf --target m4",
    "convert GGUF",
    "check GONE.mlpackage",
    "compress GONE.mlpackage -o OUT.mlpackage",
    "compress PACKAGE -o OUT.mlpackage --compress pal5",
    "predict GONE.mlpackage --out OUT",
    "predict PACKAGE --function decode --input token=GONE.npy --out OUT",
    "predict PACKAGE --function walk --out OUT",
    "completions tcsh",
    "completions bash --json",
    "man --json",
    "audit --self-check --require-ane 1",
    "audit --self-check --deny note",
    "audit --self-check --baseline CUTJSON",
    "audit --self-check --compare CUTJSON",
    "audit --self-check --length 8",
    "audit --self-check --function main",
    "audit --self-check --context 8",
    "audit --self-check --buckets 8",
    "audit --self-check --block 8",
    "audit --self-check --target a19",
    "audit --self-check -o OUT.sarif",
    "audit MIL --buckets 8",
    "audit MIL --pooling cls",
    "audit MIL --block 8",
    "audit MIL --norm cat",
    "audit MIL --layout folder",
    "audit PACKAGE --chunks",
    "audit PACKAGE --no-flexible",
    "explain ANE001 MIL --buckets 8",
    "bisect MIL --pooling cls -o OUT.mil",
    "predict PACKAGE --function decode --out OUT --effect flush-subnormals=on",
    "man nosuch",
    "verify BUNDLE --cosine 1.5",
    "verify BUNDLE --cosine nan",
    "verify BUNDLE --cosine inf",
    "verify BUNDLE --cosine=-1",
    "predict PACKAGE --function decode --out OUT --numerics ane --tolerance nan",
    "predict PACKAGE --function decode --out OUT --numerics ane --tolerance inf",
    "predict PACKAGE --function decode --out OUT --numerics ane --tolerance=-1",
    "diff PACKAGE GONE.mlpackage",
    "diff GONE.mlpackage PACKAGE",
    "verify GONE.mlpackage",
    "embed GONE hello",
    "rerank GONE hello TEXT",
    "rerank BERT hello TEXT",
    "rerank RERANKER hello --file GONE.txt",
    "embed BERT --file GONE.txt",
    "buckets BERT --file GONE.txt",
    "buckets BERT --histogram GONE.json",
    "buckets BERT",
    "bench prefill GONE.gguf",
    "bench prefill GGUF --function decode",
    "bench predict GONE.mlpackage",
    "bench predict PACKAGE --function gone",
    "bench predict PACKAGE --function decode --shape gone=1",
    "bench cold GONE.gguf --rounds 1",
    "bench convert GONE.gguf --rounds 1",
    "audit GONE.mil",
    "audit GONE.mlpackage",
    "audit MIL --target m99",
    "audit MIL --baseline GONE.json",
    "audit MIL --compare GONE.json",
    "audit --self-check GONE.csv",
    "audit GONE.mil --fix -o OUT.mil",
    "audit GONE.mlpackage --fix -o OUT.mlpackage",
    "explain nothing-that-is-known",
    "explain -14 GONE.mil",
    "bisect GONE.mil -o OUT.mil",
    "ls --catalogue GONE.json",
];

/// Input that is damaged.
const DAMAGED: &[&str] = &[
    "run CUTGGUF hello",
    "run CUTPACKAGE hello",
    "run CUTWEIGHTS hello",
    "show CUTGGUF",
    "inspect CUTGGUF",
    "inspect CUTPACKAGE",
    "inspect CUTWEIGHTS --stats",
    "perplexity CUTGGUF --file TEXT",
    "perplexity GGUF --file LATIN",
    "convert CUTGGUF -o OUT.mlpackage",
    "check CUTPACKAGE",
    "check CUTWEIGHTS",
    "predict CUTPACKAGE --out OUT",
    "predict PACKAGE --function prefill --input input_ids=CUTNPY --out OUT",
    "diff PACKAGE CUTPACKAGE",
    "diff CUTWEIGHTS PACKAGE",
    "verify CUTBUNDLE",
    "embed CUTBUNDLE hello",
    "batch REQUESTS -o OUT.jsonl --model CUTGGUF",
    "embed BERT --file CUTJSONL",
    "embed BERT --file LATIN",
    "buckets BERT --file CUTJSONL",
    "buckets BERT --histogram CUTJSON",
    "bench prefill CUTGGUF",
    "bench cold CUTGGUF --rounds 1",
    "audit CUTMIL",
    "audit CUTPACKAGE",
    "audit CUTGGUF",
    "audit MIL --baseline CUTJSON",
    "audit MIL --compare CUTJSON",
    "audit --self-check CUTJSON",
    "audit CUTMIL --fix -o OUT.mil",
    "audit CUTPACKAGE --fix -o OUT.mlpackage",
    "explain -14 CUTMIL",
    "bisect CUTMIL -o OUT.mil",
    "bisect CUTPACKAGE -o OUT.mil",
    "ls --catalogue CUTJSON",
];

/// Verbs that fetch a model.
const NETWORK: &[&str] = &[
    "run hf:org/name hello",
    "pull hf:org/name",
    "show hf:org/name",
    "inspect hf:org/name",
    "perplexity hf:org/name --file TEXT",
    "convert hf:org/name -o OUT.mlpackage",
    "embed hf:org/name hello",
    "buckets hf:org/name --file TEXT",
    "bench prefill hf:org/name",
    "bench cold hf:org/name --rounds 1",
    "audit hf:org/name",
    "explain -14 hf:org/name",
    "bisect hf:org/name -o OUT.mil",
    "run hf:org/name hello --offline",
];

#[test]
fn all_verbs_have_one_table_of_exit_codes() {
    let files = Files::new();
    files.end(0, GOOD);
    files.end(1, GATES);
    files.end(1, UNWRITTEN);
    files.end(2, USAGE);
    files.end(2, DAMAGED);
    let network: Vec<String> = NETWORK
        .iter()
        .map(|case| format!("{case} --attempts 1"))
        .collect();
    files.end(5, &network.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Help, versions and data that nobody got are a failure.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_stdout_is_named() {
    let home = Home::new();
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images/rgb.mlpackage");
    let package = package.to_str().unwrap();
    for args in [
        &["--help"][..],
        &["--version"],
        &["inspect", "--stats", package],
    ] {
        let full = std::fs::File::create("/dev/full").unwrap();
        let output = home.thane(args).stdout(full).output().unwrap();
        assert_ends(&output, 1, &["thane: stdout: No space left on device"]);
    }
}

#[test]
fn every_verb_is_in_the_table() {
    let verbs = verbs(&Home::new());
    assert!(verbs.len() > 15, "{verbs:?}");
    for verb in verbs.iter().map(String::as_str) {
        for table in [USAGE, GOOD] {
            let is_there = table
                .iter()
                .any(|case| case.split(' ').next() == Some(verb));
            // What is published, pulled and removed is in tests of its own, with a cache; so is a
            // server.
            let elsewhere = ["push", "pull", "cache", "rm", "serve", "stop", "logs"];
            let is_elsewhere = elsewhere.contains(&verb);
            assert!(is_there || is_elsewhere, "{verb}");
        }
    }
}
