//! Chat templates: Jinja templates from `tokenizer_config.json` and GGUF files.
//!
//! Rendering equals `transformers.apply_chat_template`: trimmed blocks, stripped lines, Python's
//! string methods, Python's JSON, Python's spelling of true, false and none. The filter `escape`
//! gives a text like any other: what is joined to it is not escaped. A template comes with a
//! downloaded file, so its cost is limited (module `jinja`).
//!
//! ```
//! use thane_engine::text::{ChatTemplate, Message, TemplateError};
//!
//! # fn main() -> Result<(), TemplateError> {
//! let source = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
//! let template = ChatTemplate::new(source, "<s>", "</s>")?;
//! let rendered = template.render(&[Message::new("user", "Hello")], true)?;
//! assert_eq!(rendered.text, "<s>[user]Hello");
//! assert_eq!(rendered.from_messages, [9..14]);
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::jinja;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thane_mil::budget::{Budget, OverBudget};

/// Several times the deepest stack that the parser and the interpreter can need, in bytes.
const STACK_BYTES: usize = 64 << 20;

/// Time between two questions of a caller that waits for a rendering.
const WAIT: Duration = Duration::from_millis(20);

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or another role that the template supports.
    pub role: String,
    /// The text of the message.
    pub content: String,
    /// What else templates read, such as `tool_calls`, `tool_call_id` and `reasoning_content`.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// What a template is told beside messages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TemplateInput {
    /// Tools that the model can call, as JSON schemas of functions.
    pub tools: Vec<Value>,
    /// Further variables, such as `enable_thinking`. They replace tokens of the same name, as in
    /// transformers, but cannot replace what the template gets of the conversation.
    pub variables: Map<String, Value>,
}

impl Message {
    /// A message with this role and content.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            fields: Map::new(),
        }
    }
}

/// Errors of chat templates.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template is not valid Jinja or uses an unsupported feature.
    #[error("the chat template is not valid: {0}")]
    Syntax(String),
    /// The template itself rejected the conversation (`raise_exception`).
    #[error("the chat template rejected the conversation: {0}")]
    Refused(String),
    /// None of the model's templates is the one for conversations.
    #[error(
        "{0}: put the one to use into chat_template.jinja, or in a GGUF file under the key \
         tokenizer.chat_template"
    )]
    NoDefault(NamedTemplates),
    /// Rendering failed, or the template exceeded its limits of work or memory.
    #[error("the chat template failed: {0}")]
    Render(String),
    /// Rendering takes more memory than the budget has.
    #[error(transparent)]
    Budget(#[from] OverBudget),
    /// The caller stopped the rendering.
    #[error("the chat template was interrupted")]
    Interrupted,
    /// The system could not create the thread for rendering.
    #[error("the chat template cannot be rendered: {0}")]
    Thread(#[from] std::io::Error),
}

/// Chat templates of which none is named `default`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedTemplates {
    /// The file or folder that has them.
    pub file: String,
    /// Their names.
    pub names: Vec<String>,
}

impl fmt::Display for NamedTemplates {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let names = match self.names.as_slice() {
            [] => "none".to_owned(),
            names => format!("{names:?}"),
        };
        let file = &self.file;
        write!(
            f,
            "{file}: expected a chat template named \"default\", found {names}"
        )
    }
}

/// A rendered conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt.
    pub text: String,
    /// The byte ranges of `text` that came from the contents of messages, in order and not
    /// overlapping. The spelling of a control token in such a range came from a user and was not
    /// written by the template.
    pub from_messages: Vec<Range<usize>>,
}

/// A parsed chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    template: jinja::Template,
    /// The template for conversations with tools, if it is another.
    tool_use: Option<jinja::Template>,
    tokens: BTreeMap<String, String>,
    now: Option<i64>,
}

impl ChatTemplate {
    /// Parses a template. `bos_token` and `eos_token` are the values of these variables in the
    /// template, which are undefined if they are empty.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, TemplateError> {
        Ok(Self {
            template: parse(source)?,
            tool_use: None,
            tokens: [("bos_token", bos_token), ("eos_token", eos_token)]
                .into_iter()
                .filter(|(_, token)| !token.is_empty())
                .map(|(name, token)| (name.to_owned(), token.to_owned()))
                .collect(),
            now: None,
        })
    }

    /// Renders conversations with tools by another template, the one that is named `tool_use`.
    pub fn with_tool_use(mut self, source: &str) -> Result<Self, TemplateError> {
        self.tool_use = Some(parse(source)?);
        Ok(self)
    }

    /// Adds the texts of further tokens, such as `pad_token`, as variables of the template.
    #[must_use]
    pub fn with_tokens(mut self, tokens: BTreeMap<String, String>) -> Self {
        self.tokens.extend(tokens);
        self
    }

    /// Sets the time (seconds since 1970, UTC) that `strftime_now` uses instead of the system
    /// clock.
    #[must_use]
    pub fn with_time(mut self, unix_s: i64) -> Self {
        self.now = Some(unix_s);
        self
    }

    /// Renders the prompt of a conversation. With `add_generation_prompt` the prompt ends where the
    /// answer begins.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Rendered, TemplateError> {
        self.render_with(messages, add_generation_prompt, &TemplateInput::default())
    }

    /// [`Self::render`] with tools and other variables.
    pub fn render_with(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        given: &TemplateInput,
    ) -> Result<Rendered, TemplateError> {
        let budget = Budget::unlimited();
        let limits: (_, &dyn Fn() -> bool) = (&budget, &|| false);
        self.render_within(messages, add_generation_prompt, given, limits)
    }

    /// [`Self::render_with`] in memory that counts against a budget while it is rendered. Ends soon
    /// with [`TemplateError::Interrupted`] if `is_stopped`.
    pub fn render_within(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        given: &TemplateInput,
        (budget, is_stopped): (&Budget, &dyn Fn() -> bool),
    ) -> Result<Rendered, TemplateError> {
        if is_stopped() {
            return Err(TemplateError::Interrupted);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let ask = || {
            if is_stopped() {
                stop.store(true, Ordering::Relaxed);
            }
        };
        let clock = || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
        };
        let input = jinja::Input {
            messages: messages
                .iter()
                .map(|m| (m.role.as_str(), m.content.as_str(), &m.fields))
                .collect(),
            tools: &given.tools,
            variables: &given.variables,
            add_generation_prompt,
            tokens: &self.tokens,
            now: self.now.unwrap_or_else(clock),
            budget,
            stop: &stop,
        };
        let tool_use = self.tool_use.as_ref().filter(|_| !given.tools.is_empty());
        let template = tool_use.unwrap_or(&self.template);
        let rendered = with_deep_stack(|| jinja::render(template, &input), &ask)?.map_err(
            |error| match error {
                jinja::Error {
                    is_stopped: true, ..
                } => TemplateError::Interrupted,
                jinja::Error {
                    is_raised: true,
                    message,
                    ..
                } => TemplateError::Refused(message),
                jinja::Error {
                    over: Some(over), ..
                } => TemplateError::Budget(over),
                error => TemplateError::Render(error.to_string()),
            },
        )?;
        let from_messages = rendered
            .message_ranges
            .into_iter()
            .map(|(start, end)| start..end)
            .collect();
        Ok(Rendered {
            text: rendered.text,
            from_messages,
        })
    }
}

fn parse(source: &str) -> Result<jinja::Template, TemplateError> {
    let template = with_deep_stack(|| jinja::Template::parse(source), &|| ())?;
    template.map_err(|error| TemplateError::Syntax(error.to_string()))
}

/// Runs `work` in a thread whose stack suffices for the deepest nesting that is allowed, and calls
/// `tick` every so often until the thread ends.
fn with_deep_stack<T: Send>(
    work: impl FnOnce() -> T + Send,
    tick: &dyn Fn(),
) -> Result<T, TemplateError> {
    std::thread::scope(|scope| {
        let (ends, ended) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, move || {
                let _ends = ends;
                work()
            })?;
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(WAIT) {
            tick();
        }
        Ok(thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
