//! What is put before each text: one of the prompts that the model's files have.

use thane_models::EncoderInfo;

use crate::exit::{Code, Failure};

/// The name of the prompt to use and its text: the one that is asked for, else the model's default.
/// None and empty where there is none, or the name is empty.
pub fn of(asked: Option<&String>, info: &EncoderInfo) -> Result<(Option<String>, String), Failure> {
    let usage = |e: anyhow::Error| Failure::new(Code::Usage, e);
    let name = asked
        .or(info.default_prompt.as_ref())
        .filter(|name| !name.is_empty());
    let Some(name) = name else {
        return Ok((None, String::new()));
    };
    let Some(text) = info.prompts.get(name) else {
        let names: Vec<&str> = info.prompts.keys().map(String::as_str).collect();
        let failure = usage(anyhow::anyhow!("the model has no prompt `{name}`"));
        return Err(match names.is_empty() {
            true => failure.remedy("the same without --prompt: the model has none"),
            false => failure.remedy(format!("--prompt {}", names.join(" or "))),
        });
    };
    if !text.is_empty() && !info.include_prompt {
        let error = anyhow::anyhow!(
            "the model leaves the tokens of its prompts out of its pooling, which is not supported"
        );
        return Err(usage(error).remedy("--prompt \"\", which takes no prompt"));
    }
    Ok((Some(name.clone()), text.clone()))
}
