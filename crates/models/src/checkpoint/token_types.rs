//! Whether the tokenizer of a folder gives token types, which tell the tokens of two texts apart.
//!
//! transformers (5.24) decides: by `model_input_names` in `tokenizer_config.json`, else by the
//! class of the tokenizer. A model that has token types and is given none takes type 0 for all.

use serde_json::Value;

use super::error::CheckpointError;
use super::folder::HuggingFace;
use super::sentence::read_tokenizer_config;

/// The classes whose `model_input_names` have `token_type_ids`, without `Tokenizer` and `Fast`.
/// `tests/oracle/make_tiny_rerank.py` lists them.
const WITH_TYPES: &[&str] = &[
    "Bert",
    "Canine",
    "ConvBert",
    "DPRContextEncoder",
    "DPRQuestionEncoder",
    "Deberta",
    "DebertaV2",
    "Electra",
    "FNet",
    "LayoutLMv2",
    "Lxmert",
    "MarkupLM",
    "MobileBert",
    "SqueezeBert",
    "Tapas",
];
/// The model types whose tokenizer is one of these where no file names a class.
const MODELS_WITH_TYPES: &[&str] = &["bert", "distilbert", "nomic_bert"];

/// See the module.
pub(crate) fn gives_token_types(
    folder: &HuggingFace,
    model_type: &str,
) -> Result<bool, CheckpointError> {
    let in_config = folder
        .config
        .value("tokenizer_class")
        .and_then(Value::as_str);
    read_tokenizer_config(&folder.folder, |c| {
        if let Some(names) = c.opt_strs("model_input_names")? {
            return Ok(names.contains(&"token_type_ids"));
        }
        let Some(class) = c.opt_str("tokenizer_class")?.or(in_config) else {
            return Ok(MODELS_WITH_TYPES.contains(&model_type));
        };
        let class = class.strip_suffix("Fast").unwrap_or(class);
        let name = class.strip_suffix("Tokenizer");
        Ok(name.is_some_and(|name| WITH_TYPES.contains(&name)))
    })
}
