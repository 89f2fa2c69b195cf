//! `thane embed` from end to end, on tiny models whose vectors sentence-transformers computed (`tests/models/README.md`).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::fixture::{Home, assert_ends, json as report, stderr, stdout};

const NAMES: [&str; 2] = ["bert-mean", "bert-cls"];

pub fn model(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny-embed").join(name);
    folder.canonicalize().unwrap()
}

/// What the reference says.
struct Golden {
    json: Value,
    floats: Vec<f32>,
}

impl Golden {
    fn of(name: &str) -> Self {
        let file = |end: &str| std::fs::read(model(name).join(format!("golden.{end}"))).unwrap();
        let floats = file("bin").as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        Self { json: serde_json::from_slice(&file("json")).unwrap(), floats }
    }

    fn array(&self, at: &Value) -> &[f32] {
        let n: u64 = at["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).product();
        &self.floats[at["offset"].as_u64().unwrap() as usize..][..n as usize]
    }

    /// Texts with this prompt, and their vectors.
    fn texts(&self, prompt: &Value) -> Vec<(&str, &[f32])> {
        let of_prompt = self.json["texts"].as_array().unwrap().iter().filter(|t| t["prompt"] == *prompt);
        of_prompt.map(|t| (t["text"].as_str().unwrap(), self.array(&t["embedding"]))).collect()
    }
}

/// A folder with texts as JSON lines.
fn with_texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> (Home, String) {
    let home = Home::new();
    let file = home.path("texts.jsonl");
    let lines = texts.into_iter().enumerate().map(|(i, text)| format!("{}\n", json!({"id": i, "text": text})));
    std::fs::write(&file, lines.collect::<String>()).unwrap();
    (home, file.to_str().unwrap().to_owned())
}

fn embed(home: &Home, name: &str, flags: &[&str]) -> Output {
    home.run(&[&["embed", model(name).to_str().unwrap()], flags].concat())
}

/// The vectors of stdout's lines.
fn vectors(output: &Output) -> Vec<Vec<f32>> {
    assert_ends(output, 0, &[]);
    stdout(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Norm of the difference over the norm of what is expected.
fn error(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let sum = |terms: &mut dyn Iterator<Item = f64>| terms.map(|v| v * v).sum::<f64>();
    let difference = sum(&mut found.iter().zip(expected).map(|(a, b)| f64::from(a - b)));
    (difference / sum(&mut expected.iter().map(|v| f64::from(*v)))).sqrt()
}

/// Texts of several lengths, each another.
fn many(n: usize) -> Vec<String> {
    let words = ["the", "sea", "stone", "warm", "cat", "sleeps", "above", "village", "ridge", "station"];
    let text = |i: usize| -> String {
        let word = |k: usize| format!("{} ", words[(i * 7 + k * k + i * k) % words.len()]);
        (0..1 + i * 13 % 9).map(word).chain([i.to_string()]).collect()
    };
    (0..n).map(text).collect()
}

#[test]
fn vectors_are_those_of_the_reference() {
    for name in NAMES {
        let golden = Golden::of(name);
        let prompts = golden.json["prompts"].as_object().unwrap().keys().map(|name| Value::from(name.as_str()));
        for prompt in prompts.chain([Value::Null]) {
            let texts = golden.texts(&prompt);
            if texts.is_empty() {
                continue;
            }
            let (home, file) = with_texts(texts.iter().map(|(text, _)| *text));
            let flags = ["--file", &file, "--truncate", "--numerics", "f32", "--prompt", prompt.as_str().unwrap_or("")];
            for (found, (text, expected)) in vectors(&embed(&home, name, &flags)).iter().zip(&texts) {
                let error = error(found, expected);
                assert!(error < 2e-5, "{name}, {prompt}, {text:?}: {error}");
            }
        }
    }
}

#[test]
fn fewer_dimensions_and_similarities_are_those_of_the_reference() {
    let golden = Golden::of("bert-cls");
    let texts = golden.texts(&Value::Null);
    let all: Vec<&Value> = golden.json["texts"].as_array().unwrap().iter().collect();
    let (home, file) = with_texts(texts.iter().map(|(text, _)| *text));
    let cut = &golden.json["dimensions"][0];
    let n = cut["n"].as_u64().unwrap() as usize;
    let flags = ["--file", &file, "--truncate", "--numerics", "f32", "--dimensions", &n.to_string()];
    let rows = golden.array(&cut["embeddings"]).chunks(n);
    let expected = rows.zip(&all).filter(|(_, text)| text["prompt"].is_null());
    for (found, (expected, text)) in vectors(&embed(&home, "bert-cls", &flags)).iter().zip(expected) {
        let error = error(found, expected);
        assert!(error < 2e-5, "{}: {error}", text["name"]);
    }
    let similarities = golden.array(&golden.json["similarities"]);
    let found = embed(&home, "bert-cls", &["--similarity", texts[2].0, texts[3].0, "--numerics", "f32"]);
    assert_ends(&found, 0, &[]);
    let found: f64 = stdout(&found).trim().parse().unwrap();
    assert!((found - f64::from(similarities[2 * all.len() + 3])).abs() < 2e-5, "{found}");
}

/// Whatever shares a call with a text, its vector is the same.
#[test]
fn batches_change_nothing() {
    let texts = many(300);
    let (home, file) = with_texts(texts.iter().map(String::as_str));
    let run = |budget: &str| vectors(&embed(&home, "bert-mean", &["--file", &file, "--batch-tokens", budget]));
    let (single, batch) = (run("1"), run("4096"));
    assert_eq!(single.len(), texts.len());
    for (single, batch) in single.iter().zip(&batch) {
        assert!(error(batch, single) < 1e-6);
    }
    let alone = vectors(&embed(&home, "bert-mean", &[&texts[17]]));
    assert!(error(&alone[0], &batch[17]) < 1e-6, "the order is kept");
}

#[test]
fn each_kind_of_file_has_the_same_numbers() {
    let texts = many(40);
    let (home, file) = with_texts(texts.iter().map(String::as_str));
    for (format, stored, dtype, tensor) in [
        ("float", 42, "<f4", "F32"),
        ("float16", 42, "<f2", "F16"),
        ("int8", 42, "|i1", "I8"),
        ("ubinary", 6, "|u1", "U8"),
    ] {
        let write = |name: &str| {
            let out = home.path(name);
            let flags = ["--file", &file, "--format", format, "-o", out.to_str().unwrap(), "--force"];
            let output = embed(&home, "bert-mean", &flags);
            assert_ends(&output, 0, &["40 texts, 40 vectors of 42 dimensions"]);
            assert_eq!(stdout(&output).trim(), out.to_str().unwrap());
            std::fs::read(out).unwrap()
        };
        let lines = vectors(&embed(&home, "bert-mean", &["--file", &file, "--format", format]));
        let text = String::from_utf8(write("x.jsonl")).unwrap();
        let rows: Vec<Vec<f32>> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows, lines);
        assert_eq!(rows.concat().len(), 40 * stored, "{format}");
        let npy = write("x.npy");
        let header = String::from_utf8_lossy(&npy[..128]).into_owned();
        assert!(header.contains(&format!("'{dtype}'")) && header.contains(&format!("(40, {stored})")), "{header}");
        let tensors = write("x.safetensors");
        let header_len = u64::from_le_bytes(*tensors.first_chunk().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&tensors[8..8 + header_len]).unwrap();
        assert_eq!(header["embeddings"]["dtype"], tensor);
        assert_eq!(header["embeddings"]["shape"], json!([40, stored]));
        assert_eq!(header["__metadata__"]["format"], format);
        assert_eq!(&tensors[8 + header_len..], &npy[128..], "{format}");
        if format == "float" {
            let floats: Vec<f32> = npy[128..].as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            assert_eq!(floats, rows.concat());
        }
    }
    let left: Vec<_> = home.files("").into_iter().filter(|n| n.contains("partial") || n.contains(".new")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn lines_from_stdin() {
    let home = Home::new();
    let run = |flags: &[&str], input: &[u8]| {
        let mut command = home.thane(&[&["embed", model("bert-cls").to_str().unwrap()], flags].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap()
    };
    // An empty line is an empty text, as sentence-transformers has it.
    let plain = vectors(&run(&[], b"the sea\n\nthe stone\n"));
    assert_eq!(plain.len(), 3);
    assert_eq!(vectors(&run(&["--field", "t"], b"{\"t\": \"the sea\"}\n{\"t\": \"\"}\n{\"t\": \"the stone\"}")), plain);
    assert_ends(&run(&[], b""), 2, &["stdin: there are no texts"]);
    assert_ends(&run(&[], b"the sea\n\xff\n"), 2, &["stdin, line 2: it is no UTF-8 from byte 1 on"]);
}

#[test]
fn what_cannot_be_embedded_is_named_before_anything_is_lost() {
    let home = Home::new();
    let write = |name: &str, text: &[u8]| {
        std::fs::write(home.path(name), text).unwrap();
        home.path(name).to_str().unwrap().to_owned()
    };
    let mixed = write("mixed.jsonl", b"{\"text\": \"a\"}\n{\"id\": 2}\n{\"text\": 7}\n\xff\n{\"text\": \"b\"}\n");
    let empty = write("empty.txt", b"");
    let long = write("long.txt", format!("short\n{}\n", "the sea ".repeat(25_000)).as_bytes());
    let there = write("there.npy", b"x");
    let odd = write("odd.csv", b"x");
    let cases: &[(&[&str], &[&str])] = &[
        (
            &["--file", &mixed],
            &[
                "mixed.jsonl, line 2: it has no field `text`, it has id; --field NAME names another",
                "mixed.jsonl, line 3: `text` is a number, a string is due",
                "mixed.jsonl, line 4: it is no UTF-8",
            ],
        ),
        (&["--file", &empty], &["empty.txt: there are no texts"]),
        (&["--file", "/nowhere.txt"], &["/nowhere.txt", "No such file"]),
        (&["--file", &odd], &["odd.csv: texts are read from .txt, .jsonl and .parquet files"]),
        (&["--file", &long], &["long.txt, line 2: it has 100002 tokens, the model takes 52", "try: --truncate"]),
        (&["a", "-o", "x.csv"], &["x.csv: vectors are written to .npy, .jsonl, .parquet and .safetensors"]),
        (&["a", "-o", &there], &["there.npy exists already", "try: --force"]),
        (&["a", "--prompt", "walk"], &["the model has no prompt `walk`", "try: --prompt document or query"]),
        (&["a", "--dimensions", "36"], &["does not offer 36 dimensions", "try: --dimensions 1 to 35"]),
        (&["a", "--dimensions", "0"], &["does not offer 0 dimensions"]),
        (&["a", "--packing", "lsb"], &["--packing is of bits", "try: --format binary"]),
        (
            &["a", "--format", "binary", "--packing", "lsb"],
            &["no packing lsb", "try: --packing pplx or sentence-transformers"],
        ),
        (&["a", "--pooling", "sum"], &["invalid value 'sum'", "mean, cls, lasttoken, max and weightedmean"]),
        (&["--similarity", "a"], &["--similarity compares two texts, 1 are given"]),
        (&["a", "--multi-vector", "-o", "x.npy"], &["x.npy: texts have several vectors each"]),
        (&["--chunks", "a", "b [SEP] c"], &["the command line, text 1: chunk 2 holds the separator"]),
    ];
    for (flags, texts) in cases {
        let output = embed(&home, "bert-cls", flags);
        assert_ends(&output, 2, texts);
        assert!(output.stdout.is_empty() && !stderr(&output).contains("panicked"), "{flags:?}");
    }
    let cut = embed(&home, "bert-cls", &["--file", &long, "--truncate", "--json"]);
    assert_ends(&cut, 0, &[]);
    assert_eq!((&report(&cut)["truncated"], &report(&cut)["rows"]), (&json!(1), &json!(2)));
}

/// A limit on the length of files kills the process in the midst of its second window.
#[cfg(target_os = "linux")]
#[test]
fn a_run_that_is_killed_goes_on() {
    use std::os::unix::process::ExitStatusExt;
    let texts: Vec<String> = (0..5000).map(|i| i.to_string()).collect();
    let (home, file) = with_texts(texts.iter().map(String::as_str));
    let out = home.path("x.npy");
    let flags = ["embed", model("bert-mean").to_str().unwrap(), "--file", &file, "-o", out.to_str().unwrap()]
        .map(str::to_owned);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let undisturbed = home.run(&[&flags[..5], &[home.path("y.npy").to_str().unwrap()]].concat());
    assert_ends(&undisturbed, 0, &[]);
    let mut shell = std::process::Command::new("/bin/sh");
    home.surround(&mut shell);
    // A window of 4,096 rows takes 705 kB; a block of sh's `ulimit -f` has 512 bytes.
    shell.args(["-c", "ulimit -c 0 && ulimit -f 1500 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_thane")]).args(&flags);
    let output = shell.output().unwrap();
    const SIGXFSZ: i32 = 25;
    assert_eq!(output.status.signal(), Some(SIGXFSZ), "{}", stderr(&output));
    assert!(!out.exists());
    // Other flags, or other texts, are another run.
    let partial = home.path("x.npy.partial");
    let before = std::fs::read(&partial).unwrap();
    let other = home.run(&[&flags[..], &["--format", "int8"]].concat());
    assert_ends(&other, 2, &["x.npy.partial was begun otherwise: --format was float, now it is int8", "try: remove "]);
    let (elsewhere, other_texts) = with_texts(["else"]);
    let other = home.run(&[&flags[..3], &[other_texts.as_str()], &flags[4..]].concat());
    assert_ends(&other, 2, &["its first 4096 texts are not those that were embedded"]);
    drop(elsewhere);
    assert!(before.starts_with(&std::fs::read(&partial).unwrap()), "what was done is still there");
    let output = home.run(&flags);
    assert_ends(&output, 0, &["going on behind the 4096 texts", "5000 texts, 5000 vectors"]);
    assert!(std::fs::read(&out).unwrap() == std::fs::read(home.path("y.npy")).unwrap(), "the same bytes");
    assert!(!partial.exists());
}
