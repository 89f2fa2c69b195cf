//! The output heads of a decoder's form for the Neural Engine: greatest logits, in one part or
//! several, are those of all logits, and logits on the host are those of the program.

use std::path::Path;

use serde_json::Value;
use thane_calls::{CacheForm, Form, Head, Lookup, Split};
use thane_cpu::{Cpu, Numerics};
use thane_engine::generate::Session;
use thane_runtime::{LanguageModel, LanguageOptions, Model, PackageOptions};

use crate::decoder::{BLOCK, CONTEXT, cases, error, files, fp32, model, models, sequences};
use crate::fixture::{Home, assert_ends, chat_folder, json};

fn session(model: &LanguageModel) -> Session {
    model.session(&Cpu::new(Numerics::F32, 1)).unwrap()
}

fn plain() -> Form {
    Form {
        block: Some(BLOCK),
        cache: CacheForm::Explicit,
        verify: vec![3],
        ..Form::default()
    }
}

/// Checks that `found` has the `n` greatest of `all` logits and nothing else. Sums of products may
/// have other orders.
fn check_greatest(name: &str, found: &[f32], (all, n): (&[f32], usize)) {
    let scale = all.iter().fold(1e-3f32, |most, x| most.max(x.abs()));
    let known = (0..all.len()).filter(|i| found[*i] != f32::NEG_INFINITY);
    let known: Vec<usize> = known.collect();
    assert_eq!(known.len(), n.min(all.len()), "{name}");
    for i in &known {
        assert!((found[*i] - all[*i]).abs() <= 2e-5 * scale, "{name}");
    }
    let least = known
        .iter()
        .fold(f32::INFINITY, |least, i| least.min(all[*i]));
    let others = (0..all.len()).filter(|i| !known.contains(i));
    let most = others.fold(f32::NEG_INFINITY, |most, i| most.max(all[i]));
    assert!(
        most <= least + 2e-5 * scale,
        "{name}: {most} beyond {least}"
    );
}

#[test]
fn greatest_logits_of_all_families_are_those_of_all_logits() {
    for (name, file) in &cases() {
        let (ids, _) = sequences(name).pop().unwrap();
        let all = model(name, file, Some(fp32(plain())));
        let n_vocab = all.info.vocab_size;
        let mut all = session(&all);
        for (head, n, split) in [
            (Head::Greatest(1), 1, Split::Whole),
            // So few bytes that the head is several parts.
            (Head::Greatest(1), 1, Split::Within(4096)),
            (Head::Greatest(5), 5, Split::Within(4096)),
            (Head::Greatest(n_vocab), n_vocab, Split::Whole),
        ] {
            let engine = Form {
                head,
                split,
                ..plain()
            };
            let mut some = session(&model(name, file, Some(fp32(engine))));
            let what = format!("{name}, {head:?}");
            let at = BLOCK + 2;
            let [a, b] = [&mut all, &mut some]
                .map(|session| session.feed(&ids[..at], &|| false).unwrap().unwrap());
            check_greatest(&what, &b, (&a, n));
            let next = ids[at];
            let [a, b] = [&mut all, &mut some].map(|s| s.decode(next).unwrap().into_owned());
            check_greatest(&what, &b, (&a, n));
            let [a, b] = [&mut all, &mut some].map(|s| s.verify(&ids[at + 1..at + 4]).unwrap());
            let vocab_size = a.len() / 3;
            for (a, b) in a.chunks(vocab_size).zip(b.chunks(vocab_size)) {
                check_greatest(&what, b, (a, n));
            }
        }
    }
}

/// What is written says how logits are computed from its tables. A tied model, whose embeddings the
/// app looks up, has one table for both; one that looks them up itself has it as a constant.
#[test]
fn packages_with_the_head_on_the_host_give_all_logits() {
    let home = Home::new();
    for (name, lookup, matrix) in [
        ("tiny/qwen3", Lookup::Inside, "output_matrix"),
        ("tiny/qwen3", Lookup::Host, "embedding"),
        ("tiny/gemma4", Lookup::Host, "embedding"),
        ("tiny/granite", Lookup::Host, "embedding"),
    ] {
        let engine = Form {
            lookup,
            head: Head::Host(()),
            split: Split::Into(2),
            ..plain()
        };
        let built = model(name, "", Some(engine.into()));
        let fixed = built.info.fixed.clone().unwrap();
        let Head::Host(head) = fixed.head else {
            panic!("{name}: {:?}", fixed.head);
        };
        let path = home.path(&format!("{}-{matrix}", name.replace('/', "-")));
        built.write(&path, &PackageOptions::default(), &()).unwrap();
        assert_ends(&home.run(&["check", text(&path)]), 0, &[]);
        assert_eq!(head.matrix, matrix, "{name}");
        let table = path.join(format!(
            "chunk1.mlpackage/Data/ai.thane/{}.npy",
            head.matrix
        ));
        let is_constant = lookup == Lookup::Inside;
        assert_ne!(table.is_file(), is_constant, "{name}: {}", table.display());
        let read = Model::from_files(files(path.clone())).unwrap();
        let read = read
            .language_model(&LanguageOptions::default(), &())
            .unwrap();
        let (mut ours, mut theirs) = (session(&built), session(&read));
        let (ids, _) = sequences(name).pop().unwrap();
        let [a, b] = [&mut ours, &mut theirs].map(|session| session.verify(&ids[..11]).unwrap());
        assert!(error(&b, &a) < 1e-6, "{name}");
        if is_constant {
            continue;
        }
        // A table of another model.
        std::fs::remove_file(&table).unwrap();
        let output = home.run(&["check", text(&path)]);
        assert_ends(&output, 2, &[&head.matrix]);
    }
}

#[test]
fn what_a_head_does_not_give_is_refused() {
    let (home, checkpoint) = (Home::new(), chat_folder());
    let convert = |head: &str, out: &Path, more: &[&str]| {
        let fixed = [
            "convert",
            text(&checkpoint),
            "--form",
            "ane",
            "--context",
            "64",
        ];
        let head = ["--force", "--block", "8", "-o", text(out), "--head", head];
        home.run(&[&fixed[..], &head, more].concat())
    };
    let run = |package: &Path, more: &[&str]| {
        let fixed = [
            "run",
            text(package),
            "a few words",
            "--max-tokens",
            "12",
            "--json",
        ];
        home.run(&[&fixed[..], &["--numerics", "f32"], more].concat())
    };
    let tokens = |output: &std::process::Output| -> Value { json(output)["tokens"].clone() };
    let greedy = ["--temperature", "0"];
    let context = [&greedy[..], &["--context", "64"]].concat();
    let expected = tokens(&run(&checkpoint, &context));
    let prose = models().join("perplexity.txt");
    let perplexity = |package: &Path| {
        let args = ["perplexity", text(package), "--tokens", "20", "--file"];
        home.run(&[&args[..], &[text(&prose)]].concat())
    };
    let argmax = home.path("argmax.mlpackage");
    assert_ends(&convert("argmax", &argmax, &[]), 0, &[]);
    assert_ends(&home.run(&["check", text(&argmax)]), 0, &[]);
    assert_eq!(tokens(&run(&argmax, &greedy)), expected);
    let only = "gives only the most likely token";
    assert_ends(
        &run(&argmax, &["--temperature", "0.7"]),
        2,
        &[only, "--temperature 0"],
    );
    assert_ends(&perplexity(&argmax), 2, &[only, "the perplexity"]);
    let top = home.path("top.mlpackage");
    assert_ends(&convert("top8", &top, &["--verify", "3"]), 0, &[]);
    assert_eq!(tokens(&run(&top, &greedy)), expected);
    let warm = ["--temperature", "0.7", "--top-k"];
    assert_ends(&run(&top, &[&warm[..], &["8"]].concat()), 0, &[]);
    let only = "gives only the 8 greatest logits";
    assert_ends(
        &run(&top, &[&warm[..], &["9"]].concat()),
        2,
        &[only, "--top-k 1 to 8"],
    );
    assert_ends(
        &run(&top, &[&warm[..], &["0"]].concat()),
        2,
        &[only, "without top-k"],
    );
    assert_ends(&perplexity(&top), 2, &[only, "the perplexity"]);
    let host = home.path("host.mlpackage");
    assert_ends(&convert("host", &host, &["--lookup", "host"]), 0, &[]);
    assert_eq!(tokens(&run(&host, &greedy)), expected);
    assert_ends(&perplexity(&host), 0, &[]);
    for (head, more, said) in [
        ("top0", &[][..], "expected logits, argmax, host"),
        ("best", &[], "found `best`"),
        (
            "host",
            &["--split", "0-1,1-2,head"],
            "leave head out of the cut",
        ),
    ] {
        let out = home.path("no");
        assert_ends(&convert(head, &out, more), 2, &[said]);
    }
    assert_eq!(CONTEXT, 64);
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
