//! Runs a C program, under AddressSanitizer where the compiler has it, and compares what it prints
//! with the library.

// Clippy does not know helpers of tests as tests.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use thane_cpu::{Cpu, Numerics};
use thane_hub::{Hub, Places};
use thane_runtime::{AnswerOptions, Message, Model, Question, RerankOptions};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn model(path: &str) -> Model {
    let path = root().join("tests/models").join(path);
    let hub = Hub::new(Places::in_folder(std::env::temp_dir()));
    Model::open(path.to_str().unwrap(), &hub, &()).unwrap()
}

fn cpu() -> Cpu {
    Cpu::new(Numerics::F32, 1)
}

/// Compiles and runs the program; `None` without a compiler.
fn printed(flags: &[&str]) -> Option<String> {
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("thane");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiled = Command::new("cc")
        .args([
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-g",
            "-pthread",
        ])
        .args(flags)
        .arg("-I")
        .arg(here.join("include"))
        .arg(here.join("tests/thane.c"))
        .arg("-L")
        .arg(library)
        .arg("-lthane_c")
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-o")
        .arg(&program)
        .output()
        .ok()?;
    if !compiled.status.success() {
        let errors = String::from_utf8_lossy(&compiled.stderr);
        assert!(!flags.is_empty(), "{errors}");
        return None;
    }
    let models = ["tiny-embed/bert-mean", "tiny-rerank/bert", "tiny-chat"];
    let run = Command::new(&program)
        .args(models.map(|path| root().join("tests/models").join(path)))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{errors}");
    Some(String::from_utf8(run.stdout).unwrap())
}

/// The numbers of lines that begin with a name.
fn numbers(printed: &str, name: &str) -> Vec<Vec<f32>> {
    let lines = printed.lines().filter_map(|line| line.strip_prefix(name));
    let parsed = lines.map(|line| {
        let numbers = line.split_whitespace();
        numbers.map(|number| number.parse().unwrap()).collect()
    });
    parsed.collect()
}

fn json(printed: &str, name: &str) -> Value {
    let line = printed.lines().find_map(|line| line.strip_prefix(name));
    serde_json::from_str(line.unwrap()).unwrap()
}

#[test]
fn a_c_program_gets_what_the_library_computes() {
    let Some(printed) = printed(&["-fsanitize=address"]).or_else(|| printed(&[])) else {
        println!("skipped: no C compiler");
        return;
    };
    let texts = ["a cat", "", "naïve café"];
    let mut embedder = model("tiny-embed/bert-mean").embedder(&cpu()).unwrap();
    assert_eq!(
        numbers(&printed, "vector"),
        embedder.embed(&texts, None).unwrap()
    );
    let options = RerankOptions::default();
    let reranker = model("tiny-rerank/bert").reranker(&options, &cpu(), &());
    let texts = ["a dog", "a kitten on the mat", "rain"];
    let mut scores = vec![0.0; 3];
    for ranked in reranker.unwrap().rank("a cat", &texts).unwrap() {
        scores[ranked.index] = ranked.score;
    }
    assert_eq!(numbers(&printed, "scores"), [scores]);

    let mut chat = model("tiny-chat").generator(&cpu()).unwrap();
    let greedy = || AnswerOptions::parse(r#"{"max_tokens": 20, "temperature": 0}"#).unwrap();
    let question = r#"[{"role": "user", "content": "Hello there"}]"#;
    greedy()
        .encode(&mut chat, Question::Messages(question))
        .unwrap();
    let answer = chat
        .answer(&[Message::new("user", "Hello there")], |_| {})
        .unwrap();
    let said = json(&printed, "answer ");
    assert_eq!(said["text"], answer.text);
    assert_eq!(said["tokens"], serde_json::json!(answer.tokens));
    assert_eq!(numbers(&printed, "pieces"), [[answer.text.len() as f32]]);
    let tokens = greedy().encode(&mut chat, Question::Text("Once")).unwrap();
    let completion = chat
        .generate(&tokens, &|| false, &mut |_| {
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(json(&printed, "completion ")["text"], completion.text);
}
