//! Chat templates: the Jinja that Hugging Face puts into `tokenizer_config.json` and GGUF files.
//!
//! Rendering equals `transformers.apply_chat_template`: blocks trimmed, lines stripped, Python's
//! string methods, Python's JSON, Python's spelling of true, false and none. A template comes with
//! a downloaded file: what it may cost is bounded ([`super::jinja`]).

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use super::jinja;
use serde::{Deserialize, Serialize};

/// What the parser and the interpreter may need at their deepest, several times over.
const STACK_BYTES: usize = 64 << 20;

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
        Self {
            role: role.into(),
            content: content.into(),
        }
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
    /// An error while rendering, or more work or memory than a template may take.
    #[error("the chat template failed: {0}")]
    Render(String),
    /// The system gave no thread to render in.
    #[error("the chat template cannot be rendered: {0}")]
    Thread(#[from] std::io::Error),
}

/// A rendered conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt.
    pub text: String,
    /// The bytes of it that came with the content of messages, in order and apart from each other.
    /// Whatever is spelled like a control token in there was typed by somebody, and not written by
    /// the template.
    pub typed: Vec<Range<usize>>,
}

/// A chat template, ready to render.
#[derive(Debug)]
pub struct ChatTemplate {
    template: jinja::Template,
    bos_token: String,
    eos_token: String,
    now: Option<i64>,
}

impl ChatTemplate {
    /// Reads a template. The two tokens are what `bos_token` and `eos_token` mean in it.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, TemplateError> {
        let template = with_deep_stack(|| jinja::Template::parse(source))?;
        let template = template.map_err(|error| TemplateError::Syntax(error.to_string()))?;
        Ok(Self {
            template,
            bos_token: bos_token.to_owned(),
            eos_token: eos_token.to_owned(),
            now: None,
        })
    }

    /// Makes `strftime_now` answer with this time (seconds since 1970, UTC) and not with the
    /// clock's.
    #[must_use]
    pub fn at(mut self, unix_s: i64) -> Self {
        self.now = Some(unix_s);
        self
    }

    /// The prompt for a conversation; with `add_generation_prompt` it ends where the answer begins.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Rendered, TemplateError> {
        let clock = || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
        };
        let input = jinja::Input {
            messages: messages
                .iter()
                .map(|m| (m.role.as_str(), m.content.as_str()))
                .collect(),
            add_generation_prompt,
            bos_token: &self.bos_token,
            eos_token: &self.eos_token,
            now: self.now.unwrap_or_else(clock),
        };
        let rendered = with_deep_stack(|| jinja::render(&self.template, &input))?.map_err(
            |error| match error {
                jinja::Error {
                    is_raised: true,
                    message,
                    ..
                } => TemplateError::Refused(message),
                error => TemplateError::Render(error.to_string()),
            },
        )?;
        let typed = rendered
            .typed
            .into_iter()
            .map(|(start, end)| start..end)
            .collect();
        Ok(Rendered {
            text: rendered.text,
            typed,
        })
    }
}

/// Runs in a thread whose stack holds any nesting that the parser and the interpreter allow.
fn with_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)?;
        Ok(thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
