//! Chat templates: the Jinja that Hugging Face puts into `tokenizer_config.json` and GGUF files.
//!
//! Rendering equals `transformers.apply_chat_template`: blocks trimmed, lines stripped, Python's
//! string methods, Python's JSON, Python's spelling of true, false and none.

use super::template_fns;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, ErrorKind, context};
use serde::{Deserialize, Serialize};

const NAME: &str = "chat_template";

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or what else the template knows.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message from its two parts.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// What can go wrong with a chat template.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template is not valid Jinja, or uses what is not supported.
    #[error("the chat template cannot be read: {0}")]
    Syntax(String),
    /// The template itself refused the conversation (`raise_exception`).
    #[error("the chat template refused the conversation: {0}")]
    Refused(String),
    /// An error while rendering.
    #[error("the chat template failed: {0}")]
    Render(String),
}

/// A chat template, ready to render.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

impl ChatTemplate {
    /// Reads a template. The two tokens are what `bos_token` and `eos_token` mean in it.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        template_fns::add_to(&mut environment);
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|error| TemplateError::Syntax(describe(&error)))?;
        Ok(Self { environment, bos_token: bos_token.to_owned(), eos_token: eos_token.to_owned() })
    }

    /// Makes `strftime_now` answer with this time (seconds since 1970, UTC) and not with the clock's.
    #[must_use]
    pub fn at(mut self, unix_s: i64) -> Self {
        template_fns::set_clock(&mut self.environment, move || unix_s);
        self
    }

    /// The prompt for a conversation; with `add_generation_prompt` it ends where the answer begins.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, TemplateError> {
        let template = self.environment.get_template(NAME).map_err(|error| TemplateError::Syntax(describe(&error)))?;
        let context = context! {
            messages => Value::from_serialize(messages),
            add_generation_prompt,
            bos_token => self.bos_token,
            eos_token => self.eos_token,
            tools => Value::from(()),
            documents => Value::from(()),
        };
        template.render(context).map_err(|error| match template_fns::raised(&error) {
            Some(message) => TemplateError::Refused(message),
            None => TemplateError::Render(describe(&error)),
        })
    }
}

/// The error with its line and the errors below it.
fn describe(error: &minijinja::Error) -> String {
    let mut text = match (error.kind(), error.detail()) {
        (ErrorKind::SyntaxError, Some(detail)) => detail.to_owned(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    if let Some(line) = error.line() {
        text.push_str(&format!(" (line {line})"));
    }
    let mut below = std::error::Error::source(error);
    while let Some(error) = below {
        text.push_str(&format!(": {error}"));
        below = error.source();
    }
    text
}

/// `{% generation %}` marks the assistant's text for training and prints nothing. It becomes a
/// block that is always rendered, so that its whitespace control keeps its meaning.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            out.push_str(tag);
            return out;
        };
        let (tag, after) = tag.split_at(end + 2);
        let inner = &tag[2..tag.len() - 2];
        let word = inner.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        match word {
            "generation" => out.push_str(&tag.replacen(word, "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen(word, "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}
