//! Log probabilities of tokens as JSON: OpenAI's `logprobs` of chats and responses, and Ollama's.

use serde_json::{Value, json};
use thane_engine::sample::TokenLogprob;
use thane_runtime::PromptEncoder;

/// A token with its bytes, its log probability, and those of the likely tokens in its place.
pub(crate) fn tokens_json(tokens: &[TokenLogprob], prompts: &PromptEncoder) -> Vec<Value> {
    let one = |id: u32, logprob: Option<f32>| {
        let bytes = prompts.tokenizer().token_bytes(id);
        json!({"token": token_text(id, prompts), "logprob": number(logprob), "bytes": bytes})
    };
    let token = |token: &TokenLogprob| {
        let top = token.top.iter();
        let top = top.map(|(id, logprob)| one(*id, Some(*logprob)));
        let mut shown = one(token.token, token.logprob);
        shown["top_logprobs"] = top.collect::<Vec<Value>>().into();
        shown
    };
    tokens.iter().map(token).collect()
}

/// The text of a token.
pub(crate) fn token_text(id: u32, prompts: &PromptEncoder) -> String {
    String::from_utf8_lossy(prompts.tokenizer().token_bytes(id)).into_owned()
}

/// JSON has no infinity; OpenAI's API has this number for it.
pub(crate) fn number(logprob: Option<f32>) -> Value {
    logprob.map_or(Value::Null, |x| json!(x.max(-9999.0)))
}
