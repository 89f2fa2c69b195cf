//! What a model writes in its answers beside text: thoughts, and calls of tools.
//!
//! [`ChatSyntax`] says how the model writes them, [`AnswerParser`] finds them in an answer, and
//! [`Tool::grammar`] holds an answer to calls. The syntaxes are those of [`thane_models::chat`].

mod answer;
mod calls;
mod forced;
pub(crate) mod generic;
mod literals;

use serde_json::Value;
use thane_engine::text::Tokenizer;
use thane_models::chat::{
    CALL_SYNTAXES, CallBody, CallSyntax, GENERIC_CALLS, THOUGHT_SYNTAXES, ThoughtSyntax,
};

pub use answer::{AnswerParser, Part};
pub use calls::ToolCall;

/// A function that a model can call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Name of the function.
    pub name: String,
    /// JSON schema of its arguments, an object.
    pub parameters: Value,
}

/// How the answers of a model write calls and thoughts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatSyntax {
    /// Calls of tools: [`GENERIC_CALLS`] if the chat template knows no tools, or the model's own
    /// syntax is unknown. `None` without a chat template.
    pub calls: Option<CallSyntax>,
    /// Thoughts; `None` if the chat template knows none.
    pub thoughts: Option<ThoughtSyntax>,
}

impl ChatSyntax {
    /// The syntax of a model with this chat template.
    pub fn of(template: &str, tokenizer: &Tokenizer) -> Self {
        let is_known = |text: &str| template.contains(text) || tokenizer.id_of(text).is_some();
        let calls = CALL_SYNTAXES.iter().find(|syntax| is_known(syntax.marker));
        let thoughts = THOUGHT_SYNTAXES.iter();
        let thoughts = thoughts.copied().find(|s| template.contains(s.begin));
        Self {
            calls: calls
                .copied()
                .filter(|_| template.contains("tools"))
                .or(Some(GENERIC_CALLS)),
            thoughts,
        }
    }

    /// Whether a message has to tell the model of tools, because the chat template does not.
    pub fn is_generic(&self) -> bool {
        self.calls == Some(GENERIC_CALLS)
    }

    /// Control tokens that are part of calls and thoughts, so that answers have to show them.
    pub fn shown_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let calls = self.calls.iter();
        let calls = calls.flat_map(|s| match s.body {
            CallBody::Braces { quote } => [s.begin, s.end, quote],
            _ => [s.begin, s.end, s.marker],
        });
        let thoughts = self.thoughts.iter().flat_map(|s| {
            // The token may be a part of the text.
            let begin = s.begin.find('>').map_or(s.begin, |at| &s.begin[..=at]);
            [begin, s.end]
        });
        let texts = calls.chain(thoughts).filter(|text| !text.is_empty());
        texts.filter_map(|text| tokenizer.id_of(text)).collect()
    }
}
