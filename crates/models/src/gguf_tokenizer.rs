//! What a user should know of the tokenizer of a GGUF file.

use std::path::Path;

use crate::checkpoint::keys::GGUF_TOKENIZER;
use crate::checkpoint::{Gguf, MetadataError};

const PRE: &str = "tokenizer.ggml.pre";
const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";

/// Notes on keys that are unknown, and on missing ones for which llama.cpp's default counts that
/// may not be the model's own.
pub(crate) fn notes(path: &Path, gguf: &Gguf) -> Result<Vec<String>, MetadataError> {
    let file = path.display();
    let mut notes = Vec::new();
    let keys = gguf.metadata.keys();
    for key in keys.filter(|key| key.starts_with("tokenizer.")) {
        if GGUF_TOKENIZER.row(key).is_none() {
            notes.push(format!(
                "{file}: the key `{key}` is unknown and not applied"
            ));
        }
    }
    match gguf.opt_str("tokenizer.ggml.model")? {
        Some("gpt2") if names_no_rule(gguf)? => notes.push(format!(
            "{file}: `{PRE}` does not name the rule by which the model's own tokenizer splits \
             texts into words; llama.cpp's default rule counts, which may give other tokens: \
             convert the model again with a current llama.cpp, or use its Hugging Face folder"
        )),
        Some("bert") if gguf.opt_bool(LOWERCASE)?.is_none() => {
            notes.extend(n_cased(gguf)?.map(|(n, first)| {
                format!(
                    "{file}: texts are lowercased, as in llama.cpp, because `{LOWERCASE}` is \
                     missing, but no lowercased text contains {n} tokens of the vocabulary, such \
                     as \"{first}\": if the model is cased, convert it again with a current \
                     llama.cpp, or use its Hugging Face folder"
                )
            }));
        }
        _ => {}
    }
    Ok(notes)
}

fn names_no_rule(gguf: &Gguf) -> Result<bool, MetadataError> {
    let name = gguf.opt_str(PRE)?.unwrap_or_default();
    Ok(matches!(name, "" | "default"))
}

/// How many words have letters that lowercasing changes, and the first of them. Other letters may
/// be capitals too: the vocabulary of bert-base-uncased has U+211D, which has no lowercase form.
fn n_cased(gguf: &Gguf) -> Result<Option<(usize, String)>, MetadataError> {
    const NORMAL: i32 = 1;
    let tokens = gguf
        .opt_strings("tokenizer.ggml.tokens")?
        .unwrap_or_default();
    let types = gguf
        .opt_i32s("tokenizer.ggml.token_type")?
        .unwrap_or_default();
    let is_cased = |c: char| !c.to_lowercase().eq([c]);
    let mut words = tokens.iter().zip(types).filter(|(token, kind)| {
        *kind == NORMAL && !token.contains('[') && token.chars().any(is_cased)
    });
    let first = words.next().map(|(token, _)| (*token).to_owned());
    Ok(first.map(|first| (1 + words.count(), first)))
}
