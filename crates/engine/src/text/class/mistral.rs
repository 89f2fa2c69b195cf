//! The pattern that divides words in Mistral's tokenizers with 131,072 tokens, where
//! `fix_mistral_regex` asks for it: the files of some models have another. Source:
//! `_patch_mistral_regex` in `tokenization_utils_tokenizers.py`.

use serde_json::{Map, Value, json};

use super::Settings;
use super::rebuild::part;
use crate::text::TextError;
use crate::text::guard::{self, TextCost};
use crate::text::hf::JsonTokenizer;

/// The model types whose files may be wrong.
const MODELS: [&str; 5] = ["mistral", "mistral3", "voxtral", "ministral", "pixtral"];
/// Smaller vocabularies are of older models, which are right.
const MOST_RIGHT: usize = 100_000;
const PATTERN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|",
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

impl Settings {
    /// Reads `fix_mistral_regex`, which counts for files that transformers before 5 wrote:
    /// `version` is that of transformers in `config.json`.
    pub(in crate::text) fn read_mistral(
        &mut self,
        keys: &Map<String, Value>,
        model_type: Option<&str>,
        version: Option<&str>,
    ) {
        let asks = keys.get("fix_mistral_regex") == Some(&Value::Bool(true));
        let is_old = version.is_none_or(is_before_5);
        let is_mistral = model_type.is_none_or(|model| MODELS.contains(&model));
        self.mistral_pattern = asks && is_old && is_mistral;
    }

    /// Puts the pattern in place of the first pre-tokenizer, or before the only one.
    pub(super) fn set_mistral_pattern(
        &self,
        hf: &mut JsonTokenizer,
        cost: TextCost,
    ) -> Result<TextCost, TextError> {
        if !self.mistral_pattern || hf.get_vocab_size(true) <= MOST_RIGHT {
            return Ok(cost);
        }
        let Some(now) = hf.get_pre_tokenizer() else {
            return Ok(cost);
        };
        let mut now = serde_json::to_value(now).map_err(super::rebuild::bad)?;
        let pattern = super::parts::split(PATTERN);
        let steps = match now["pretokenizers"].as_array_mut() {
            Some(steps) if !steps.is_empty() => {
                steps[0] = pattern;
                now
            }
            Some(_) => now,
            None => {
                if now["type"] == "Metaspace" {
                    now = json!({
                        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                        "use_regex": false,
                    });
                }
                super::parts::sequence([pattern, now])
            }
        };
        let normalizer = serde_json::to_value(hf.get_normalizer()).map_err(super::rebuild::bad)?;
        let cost = guard::cost_of(&normalizer, &steps)?;
        hf.with_pre_tokenizer(part::<Option<tokenizers::PreTokenizerWrapper>>(steps)?);
        Ok(cost)
    }
}

/// Whether a version of transformers is older than 5.0.0, as its candidates are.
fn is_before_5(version: &str) -> bool {
    let major = version
        .split('.')
        .next()
        .and_then(|n| n.parse::<u32>().ok());
    let rest = version.strip_prefix("5.0.0");
    let is_candidate = rest.is_some_and(|rest| {
        let rest = rest.trim_start_matches('.');
        ["dev", "a", "b", "rc"]
            .iter()
            .any(|word| rest.starts_with(word))
    });
    major.is_some_and(|major| major < 5) || is_candidate
}
