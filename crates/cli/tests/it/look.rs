//! `thane show` and `thane inspect`.

use std::cell::RefCell;
use std::collections::HashMap;

use thane_mil::data::Data;
use thane_mil::text::{Blobs, parse, print};
use thane_mil::types::TensorType;

use crate::fixture::{Home, assert_ends, chat_folder, chat_gguf, json, stdout, verbs};

/// The weights are not in the text: bytes of the right number stand in for them, the same ones
/// wherever the text refers to the same place and others elsewhere, so that the printer can tell
/// what is shared.
fn read_back(text: &str) -> String {
    let zeros: RefCell<HashMap<u64, Data>> = RefCell::default();
    let resolve = |_: &str, offset: u64, ty: &TensorType| {
        let n_bytes = ty.dtype.byte_len(ty.n_elements()?)?;
        let made = || {
            Data::owned(
                (offset / 64)
                    .to_le_bytes()
                    .into_iter()
                    .cycle()
                    .take(n_bytes)
                    .collect(),
            )
        };
        Some(
            zeros
                .borrow_mut()
                .entry(offset)
                .or_insert_with(made)
                .clone(),
        )
    };
    let program = parse(text, &resolve).unwrap_or_else(|e| panic!("{e}"));
    thane_mil::valid::check(&program).unwrap_or_else(|e| panic!("{e:?}"));
    assert!(zeros.borrow().len() > 10, "the weights are referred to");
    print(&program, &mut Blobs::default())
}

#[test]
fn what_inspect_prints_is_a_program_that_reads_back_equal() {
    for model in [chat_gguf(), chat_folder()] {
        for flags in [
            &[][..],
            &["--function", "decode"],
            &["--numerics", "f32", "--context", "77"],
        ] {
            let output = Home::new().run(&[&["inspect", model.to_str().unwrap()], flags].concat());
            assert_ends(&output, 0, &[]);
            let text = stdout(&output);
            assert_eq!(read_back(&text), text, "{flags:?}");
            assert_eq!(
                text.contains(" prefill<"),
                !flags.contains(&"decode"),
                "{flags:?}"
            );
            assert!(text.contains(" decode<"));
        }
    }
}

#[test]
fn the_json_of_inspect_has_the_same_text_and_counts_its_ops() {
    let (home, model) = (Home::new(), chat_gguf());
    let text = stdout(&home.run(&["inspect", model.to_str().unwrap(), "--function", "prefill"]));
    let report = json(&home.run(&[
        "inspect",
        model.to_str().unwrap(),
        "--function",
        "prefill",
        "--json",
    ]));
    assert_eq!(report["text"], text.as_str());
    let [function] = report["functions"].as_array().unwrap().as_slice() else {
        panic!("one function was asked for")
    };
    for (op, n) in function["ops"].as_object().unwrap() {
        let found = text.matches(&format!(" = {op}(")).count();
        assert_eq!(found as u64, n.as_u64().unwrap(), "{op}");
    }
    for port in ["inputs", "outputs"] {
        for port in function[port].as_array().unwrap() {
            assert!(
                text.contains(port["name"].as_str().unwrap())
                    && text.contains(port["type"].as_str().unwrap())
            );
        }
    }
}

#[test]
fn show_counts_what_the_file_holds() {
    let (home, model) = (Home::new(), chat_gguf());
    let report = json(&home.run(&["show", model.to_str().unwrap(), "--json"]));
    // Sizes of `make_tiny_chat.py`: vocabulary 282, hidden 48, MLP 64, 2 layers of 4 heads over 2
    // of 16 numbers each.
    let layer = 48 * 16 * (4 + 2 + 2 + 4) + 3 * 48 * 64 + 2 * 48;
    assert_eq!(report["parameters"], 2 * 282 * 48 + 2 * layer + 48);
    assert_eq!(
        report["weight_bytes"],
        2 * (2 * 282 * 48 + 2 * (layer - 2 * 48)) + 4 * 5 * 48
    );
    assert_eq!(
        (&report["layers"], &report["vocabulary"], &report["context"]),
        (&2.into(), &282.into(), &512.into())
    );
    // Keys and values, two bytes each.
    assert_eq!(report["cache_bytes"], 2 * 2 * 2 * 2 * 16 * 512);
    assert_eq!(
        report["quantization"]["F32"],
        serde_json::json!({"tensors": 5, "parameters": 240, "bytes": 960})
    );
    assert_eq!(report["quantization"]["F16"]["tensors"], 16);
    let f32_cache = json(&home.run(&[
        "show",
        model.to_str().unwrap(),
        "--json",
        "--numerics",
        "f32",
        "--context",
        "9",
    ]));
    assert_eq!(f32_cache["cache_bytes"], 2 * 2 * 2 * 4 * 16 * 9);
}

#[test]
fn show_is_a_page_and_with_tensors_a_list() {
    let (home, model) = (Home::new(), chat_gguf());
    let page = stdout(&home.run(&["show", model.to_str().unwrap()]));
    for text in [
        "architecture  llama, 2 layers",
        "context       512 of 512 tokens",
        "F16       16 tensors",
    ] {
        assert!(page.contains(text), "{page}");
    }
    let list = stdout(&home.run(&["show", model.to_str().unwrap(), "--tensors"]));
    assert!(
        list.starts_with(&page) && list.lines().count() == page.lines().count() + 1 + 21,
        "{list}"
    );
    assert!(
        list.contains("F16     [282, 48]            token_embd.weight"),
        "{list}"
    );
}

#[test]
fn completions_and_manual_pages_have_every_verb_and_its_flags() {
    let home = Home::new();
    let verbs = verbs(&home);
    let page = stdout(&home.run(&["man"]));
    assert!(page.contains(".TH thane 1"), "{page}");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = stdout(&home.run(&["completions", shell]));
        assert!(
            verbs.iter().all(|verb| script.contains(verb)) && script.contains("require-ane"),
            "{shell}"
        );
        // The generators of the others leave out values.
        if ["bash", "fish", "zsh"].contains(&shell) {
            for value in ["ANE070", "a19-pro", "macos26", "smollm2-135m", "qwen3-0.6b"] {
                assert!(script.contains(value), "{shell}: {value}");
            }
        }
        if shell == "zsh" {
            assert!(
                script.contains(":{_files; compadd smollm2-135m "),
                "{script}"
            );
        }
    }
    for verb in &verbs {
        assert!(
            page.contains(&format!("thane\\-{verb}")),
            "{verb} is not in {page}"
        );
        let own = stdout(&home.run(&["man", verb]));
        assert!(own.contains(&format!(".TH thane-{verb} 1")), "{own}");
    }
    assert!(stdout(&home.run(&["man", "audit"])).contains("require\\-ane"));
}
