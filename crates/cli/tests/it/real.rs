//! The command on the real models, from text to tokens, against the goldens of `tests/models`.
//!
//! Needs the files that `scripts/models.sh` fetches, in the folder that THANE_MODELS names.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn golden(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models").join(format!("{name}.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The texts, their token ids and the 64 greedy tokens are transformers'; an end token ends `run`, not the reference.
#[test]
fn run_gives_the_reference_tokens_from_text() {
    let Some(models) = std::env::var_os("THANE_MODELS").map(PathBuf::from) else {
        println!("skipped: THANE_MODELS names no folder; scripts/models.sh makes one");
        return;
    };
    let texts = golden("prompts");
    for name in ["smollm2-135m", "gemma3-270m"] {
        let golden = golden(name);
        let file = models.join(golden["file"].as_str().unwrap());
        for prompt in ["sky", "japanese", "code"] {
            let find = |list: &Value| list.as_array().unwrap().iter().find(|p| p["name"] == prompt).unwrap().clone();
            let expected = find(&golden["prompts"]);
            let is_chat = expected["chat"].as_bool().unwrap();
            let text = find(if texts.is_array() { &texts } else { &texts["prompts"] });
            let text = if is_chat { text["messages"][0]["content"].clone() } else { expected["text"].clone() };
            let mut command = Command::new(env!("CARGO_BIN_EXE_thane"));
            command.args(["run", "--json", "--numerics", "f32", "--max-tokens", "64"]).arg(&file);
            command.args(if is_chat { None } else { Some("--raw") }).arg(text.as_str().unwrap());
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(report["prompt_tokens"], expected["ids"], "{name}, {prompt}");
            let tokens = report["tokens"].as_array().unwrap();
            let greedy = expected["greedy"].as_array().unwrap();
            assert_eq!(tokens.as_slice(), &greedy[..tokens.len()], "{name}, {prompt}");
            let reason = if tokens.len() == 64 { "length" } else { "stop" };
            assert_eq!(report["finish_reason"], reason, "{name}, {prompt}");
        }
    }
}
