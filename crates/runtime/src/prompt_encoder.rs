//! Turns messages and texts into the tokens of prompts.

use std::sync::Arc;

use serde_json::{Map, Value};
use thane_engine::text::{
    ChatTemplate, EncodeOptions, Message, Rendered, TemplateError, TemplateInput, TextError,
    Tokenizer,
};
use thane_mil::budget::Budget;

use crate::chat::{ChatSyntax, generic};
use crate::error::RuntimeError;
use crate::grammar::Grammars;
use crate::language::{Language, TokenizerMemory};

/// Tokenizer and chat template of a language model.
pub struct PromptEncoder {
    /// Tokenizer and source of the chat template.
    pub language: Language,
    /// Whether control tokens that are spelled out in messages, such as `<|im_end|>`, act as
    /// control tokens. Otherwise they are text.
    pub allow_special_tokens: bool,
    /// Limits the memory for rendering and tokenizing.
    pub budget: Budget,
    /// Variables of the chat template, such as `enable_thinking`.
    pub variables: Map<String, Value>,
    /// Compiles grammars over the model's tokens.
    pub grammars: Grammars,
    name: String,
    template: Option<ChatTemplate>,
}

impl PromptEncoder {
    /// The encoder of the model `name`, without its chat template.
    pub fn new(language: Language, name: impl Into<String>) -> Self {
        Self {
            grammars: Grammars::new(Arc::clone(&language.tokenizer)),
            language,
            allow_special_tokens: false,
            budget: Budget::unlimited(),
            variables: Map::new(),
            name: name.into(),
            template: None,
        }
    }

    /// Parses the chat template, if the model has one.
    pub fn use_template(&mut self) -> Result<(), RuntimeError> {
        if let Some(source) = &self.language.template {
            let template = source.parse().map_err(|e| self.template_error(e))?;
            self.template = Some(template);
        }
        Ok(())
    }

    /// Whether messages can be encoded.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.language.tokenizer
    }

    /// The tokens of a text, with those that the tokenizer adds. Control tokens that are spelled
    /// out act as such.
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u32>, RuntimeError> {
        self.encode_prompt_until(prompt, &|| false)
    }

    /// [`Self::encode_prompt`] that ends with `TextError::Interrupted` if `is_stopped`.
    pub fn encode_prompt_until(
        &self,
        prompt: &str,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Vec<u32>, RuntimeError> {
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        let _held = self.reserve(prompt)?;
        Ok(self.tokenizer().encode_until(prompt, options, is_stopped)?)
    }

    /// The tokens of messages, as the chat template renders them.
    pub fn encode_messages(&self, messages: &[Message]) -> Result<Vec<u32>, RuntimeError> {
        let given = TemplateInput {
            variables: self.variables.clone(),
            ..TemplateInput::default()
        };
        let rendered = self.render(messages, &given, &|| false)?;
        self.encode_rendered(&rendered, &|| false)
    }

    /// Messages as text, as the chat template renders them with tools and other variables. Where
    /// the template knows no tools, or the model's own calls have an unknown form, messages tell
    /// the model of tools, calls and results. Ends with `TextError::Interrupted` if `is_stopped`.
    pub fn render(
        &self,
        messages: &[Message],
        given: &TemplateInput,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Rendered, RuntimeError> {
        let has_any = !given.tools.is_empty() || messages.iter().any(generic::has_calls);
        if has_any && self.syntax().is_generic() {
            return self.render_generic(messages, given, is_stopped);
        }
        self.render_as_given(messages, given, is_stopped)
    }

    fn render_generic(
        &self,
        messages: &[Message],
        given: &TemplateInput,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Rendered, RuntimeError> {
        let contents = messages.iter().map(|message| message.content.len());
        let fields = messages.iter().flat_map(|message| message.fields.values());
        let values = fields.chain(&given.tools).map(template_bytes);
        let what = || "tools and their calls as text".to_owned();
        let _held = self.budget.reserve(contents.chain(values).sum(), what)?;
        let plain = TemplateInput {
            tools: Vec::new(),
            variables: given.variables.clone(),
        };
        let texts = generic::as_texts(messages);
        if given.tools.is_empty() {
            return self.render_as_given(&texts, &plain, is_stopped);
        }
        let told = generic::told(&given.tools);
        let told_by = |role| {
            let messages = generic::told_by(role, &told, texts.clone());
            self.render_as_given(&messages, &plain, is_stopped)
        };
        match told_by("system") {
            // Some templates refuse system messages, or leave them out.
            Ok(rendered) if !rendered.text.contains(&told) => told_by("user"),
            Err(RuntimeError::Template {
                source: TemplateError::Refused(_),
                ..
            }) => told_by("user"),
            rendered => rendered,
        }
    }

    fn render_as_given(
        &self,
        messages: &[Message],
        given: &TemplateInput,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Rendered, RuntimeError> {
        let template = self.template.as_ref().ok_or(RuntimeError::NoTemplate)?;
        let fields = messages.iter().flat_map(|message| message.fields.values());
        let given_values = fields.chain(&given.tools).chain(given.variables.values());
        let n_bytes = given_values.map(template_bytes).sum();
        let what = || "what the chat template is given".to_owned();
        let _held = self.budget.reserve(n_bytes, what)?;
        let limits = (&self.budget, is_stopped);
        let rendered = template.render_within(messages, true, given, limits);
        rendered.map_err(|e| self.template_error(e))
    }

    /// How the model writes calls of tools, and what it thinks.
    pub fn syntax(&self) -> ChatSyntax {
        let template = self.language.template.as_ref();
        template.map_or_else(ChatSyntax::default, |template| {
            ChatSyntax::of(&template.all_text(), self.tokenizer())
        })
    }

    /// The tokens of rendered messages. Ends with `TextError::Interrupted` if `is_stopped`.
    pub fn encode_rendered(
        &self,
        rendered: &Rendered,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Vec<u32>, RuntimeError> {
        let _held = self.reserve(&rendered.text)?;
        let tokens = if self.allow_special_tokens {
            let options = EncodeOptions {
                add_special: false,
                parse_special: true,
            };
            self.tokenizer()
                .encode_until(&rendered.text, options, is_stopped)
        } else {
            self.tokenizer().encode_rendered_until(rendered, is_stopped)
        };
        Ok(tokens?)
    }

    /// The memory that the tokenizer takes for a text. A template may render a long one.
    fn reserve(&self, text: &str) -> Result<TokenizerMemory, RuntimeError> {
        let reserved = TokenizerMemory::reserve(&self.budget, text.len(), "prompt");
        Ok(reserved?)
    }

    fn template_error(&self, source: TemplateError) -> RuntimeError {
        match source {
            TemplateError::Budget(over) => RuntimeError::Budget(over),
            TemplateError::Interrupted => TextError::Interrupted.into(),
            source => RuntimeError::Template {
                model: self.name.clone(),
                source,
            },
        }
    }
}

/// Bytes of memory that a value takes in a template, beside itself.
fn template_bytes(value: &Value) -> usize {
    /// Of a text, or a list or object with room for four.
    const NODE: usize = 160;
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => size_of::<Value>(),
        Value::String(text) => NODE + text.len(),
        Value::Array(list) => NODE + list.iter().map(template_bytes).sum::<usize>(),
        Value::Object(map) => {
            let entry =
                |(name, value): (&String, &Value)| NODE + name.len() + template_bytes(value);
            NODE + map.iter().map(entry).sum::<usize>()
        }
    }
}
