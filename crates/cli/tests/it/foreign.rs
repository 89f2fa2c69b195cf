//! Bundles of other projects as the commands see them.

use std::path::Path;

use crate::fixture::{Home, assert_ends, json, stdout};

/// The path of a bundle of `tests/bundles`.
pub fn bundle(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/bundles");
    let path = folder.join(name).canonicalize().unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn run_gives_the_tokens_of_transformers() {
    let home = Home::new();
    for name in ["anemll-chat", "anemll-rotating", "coreml-llm-chunks"] {
        let path = bundle(name);
        let golden = std::fs::read(Path::new(&path).join("golden.json")).unwrap();
        let golden: serde_json::Value = serde_json::from_slice(&golden).unwrap();
        let expected = &golden["answers"][1];
        let n = expected["tokens"].as_array().unwrap().len().to_string();
        let prompt = expected["prompt"].as_str().unwrap();
        for numerics in ["fast", "f32"] {
            let flags = ["--max-tokens", &n, "--numerics", numerics, "--json"];
            let output = home.run(&[&["run", &path, prompt], &flags[..]].concat());
            assert_ends(&output, 0, &[]);
            assert_eq!(
                json(&output)["tokens"],
                expected["tokens"],
                "{name}, {numerics}"
            );
        }
    }
}

#[test]
fn inspect_names_layout_parts_functions_states_and_context() {
    let home = Home::new();
    let text = stdout(&home.run(&["inspect", "--stats", &bundle("anemll-rotating")]));
    for line in [
        "bundle     ANEMLL 0.3.5: gemma3, 3 layers, gives only the most likely token",
        "context    48 tokens, 282 tokens in the vocabulary",
        "part       chunk2      gemma3_FFN_PF_chunk_02of02.mlpackage: infer, infer_rotate, prefill, prefill_rotate",
        "function   chunk2_infer_rotate, opset ios18",
        "  state    model_model_kv_cache_local  state<tensor<fp16, [4, 2, 16, 14]>>",
    ] {
        assert!(text.contains(line), "expected `{line}` in {text}");
    }
    let output = home.run(&[
        "inspect",
        &bundle("coreml-llm-merged"),
        "--function",
        "chunk3",
    ]);
    assert_ends(&output, 0, &["bundle     CoreML-LLM: gemma4, 8 layers"]);
    assert!(stdout(&output).contains("func chunk3<ios18>"));
}

#[test]
fn the_audit_judges_every_package_and_adds_up_the_chain() {
    let home = Home::new();
    let report = json(&home.run(&["audit", &bundle("anemll-chat"), "--json"]));
    assert_eq!(report["subject"]["kind"], "bundle");
    let functions = report["targets"][0]["functions"].as_array().unwrap();
    let ms = |name: &str| {
        let row = functions.iter().find(|f| f["name"] == name).unwrap();
        row["latency"]["ms"].as_f64().unwrap()
    };
    assert_eq!(functions.len(), 6);
    let chains = report["chains"].as_array().unwrap();
    let tokens: Vec<u64> = chains
        .iter()
        .map(|c| c["tokens"].as_u64().unwrap())
        .collect();
    assert_eq!(tokens, [8, 1]);
    let names: Vec<&str> = chains[1]["functions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "llama_embeddings.mlpackage/main",
            "llama_FFN_PF_chunk_01of02.mlpackage/infer",
            "llama_FFN_PF_chunk_02of02.mlpackage/infer",
            "llama_lm_head.mlpackage/main",
        ]
    );
    let sum: f64 = names.iter().map(|name| ms(name)).sum();
    assert!((chains[1]["ms"].as_f64().unwrap() - sum).abs() < 1e-9);
}

#[test]
fn what_a_bundle_cannot_do_is_said_with_a_remedy() {
    let home = Home::new();
    let (chunks, chat) = (bundle("coreml-llm-chunks"), bundle("anemll-chat"));
    for (args, said) in [
        (
            &["run", &chunks, "x", "--temperature", "1"][..],
            &[
                "needs the logits of all",
                "try: thane run with --temperature 0",
            ],
        ),
        (
            &["run", &chat, "x", "--context", "65"],
            &[
                "the bundle holds 64 tokens",
                "try: leave --context out, or --context 64",
            ],
        ),
        (
            &["embed", &chat, "x"],
            &["makes answers, not vectors", "try: thane run"],
        ),
        (
            &["convert", &chat, "-o", "x.mlpackage"],
            &["expected a checkpoint", "try: thane inspect --stats"],
        ),
        (
            &["predict", &chat, "--out", "results"],
            &["found a bundle of ANEMLL", "try: thane run"],
        ),
        (
            &["predict", &chunks, "--out", "results"],
            &["found a bundle of CoreML-LLM", "try: the path of a package"],
        ),
        (
            &["diff", &chat, &chunks],
            &["found a bundle of ANEMLL", "try: thane run"],
        ),
    ] {
        assert_ends(&home.run(args), 2, said);
    }
    let shown = stdout(&home.run(&["show", &chat]));
    assert!(
        shown.contains("kind          bundle of Core ML packages"),
        "{shown}"
    );
    assert!(shown.contains("tokenizer     yes"), "{shown}");
}
