//! What every API asks of a language model. A route reads its own fields into an [`Ask`], and turns
//! the events of the answer into its own shape ([`Render`](crate::stream::Render)).

use std::sync::Arc;

use serde_json::Value;
use thane_engine::schedule::{Event, Request};
use thane_runtime::{Message, PromptEncoder, RuntimeError, Sampling, TemplateInput};
use tokio::sync::mpsc::UnboundedReceiver;

use super::format::Form;
use super::generate::{beside, check_length, choose, compile, encode, invalid};
use super::sampling::check_stops;
use crate::answers::Answers;
use crate::error::ApiError;

/// Most texts that can end an answer.
const MAX_STOPS: usize = 16;

/// A request to a language model.
pub(super) struct Ask {
    pub prompt: Prompt,
    pub sampling: Sampling,
    /// The form of the answer; `None` for text.
    pub form: Option<Form>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Most tokens of the answer; `None` for what the context allows.
    pub max_tokens: Option<usize>,
}

/// What is answered.
pub(super) enum Prompt {
    /// Messages, as the chat template renders them.
    Messages(Vec<Message>),
    /// A text that is continued.
    Text(String),
}

/// An answer that was begun.
pub(super) struct Begun {
    pub events: UnboundedReceiver<Event>,
    /// Tokens of the prompt.
    pub n_prompt: usize,
}

impl Prompt {
    /// The tokens of a prompt, encoded beside the connections.
    pub async fn encode(self, answers: &Answers) -> Result<Vec<u32>, ApiError> {
        let prompts = Arc::clone(&answers.prompts);
        encode(move || self.tokens(&prompts, false)).await
    }

    /// A grammar holds for the whole answer, so the model shall not think before it.
    fn tokens(self, prompts: &PromptEncoder, has_form: bool) -> Result<Vec<u32>, RuntimeError> {
        let messages = match self {
            Self::Text(text) => return prompts.encode_prompt(&text),
            Self::Messages(messages) => messages,
        };
        let mut given = TemplateInput::default();
        if has_form {
            let thinks = "enable_thinking".to_owned();
            given.variables.insert(thinks, Value::Bool(false));
        }
        let rendered = prompts.render(&messages, &given)?;
        prompts.encode_rendered(&rendered)
    }
}

impl Ask {
    /// Queues the request. Errors of stops and of the prompt name the fields `params`.
    pub async fn begin(
        self,
        answers: &Answers,
        (prompt_param, stop_param): (&str, &str),
    ) -> Result<Begun, ApiError> {
        let is_chat = matches!(self.prompt, Prompt::Messages(_));
        let sampling = choose(&self.sampling, answers, is_chat)?;
        check_stops(&self.stop, stop_param, MAX_STOPS)?;
        refuse_empty(&self.stop, stop_param)?;
        if let (Some(form), Some(known)) = (&self.form, &answers.known) {
            return Err(invalid(known.lacks("a grammar")).with_param(form.field));
        }
        let place = answers.places.take()?;
        let prompts = Arc::clone(&answers.prompts);
        let (asked, form) = (self.prompt, self.form);
        let (prompt, grammar) = beside(move || {
            let grammar = form.map(|form| compile(&prompts, &form.source, form.field));
            let grammar = grammar.transpose()?;
            let tokens = asked.tokens(&prompts, grammar.is_some());
            Ok((tokens.map_err(invalid)?, grammar))
        })
        .await?;
        let n_prompt = prompt.len();
        check_length(answers, n_prompt, prompt_param)?;
        if n_prompt == 0 {
            let message = format!("`{prompt_param}`: expected at least one token, found none");
            return Err(ApiError::field(prompt_param, message));
        }
        let request = Request {
            prompt,
            sampling,
            grammar,
            max_tokens: self.max_tokens.unwrap_or(usize::MAX),
            stop: self.stop,
            strip_space_prefix: is_chat,
            ..Request::default()
        };
        let events = answers.submit(request, place)?;
        Ok(Begun { events, n_prompt })
    }
}

fn refuse_empty(stop: &[String], param: &str) -> Result<(), ApiError> {
    if stop.iter().any(String::is_empty) {
        let message = format!("`{param}`: expected texts that are not empty, found an empty one");
        return Err(ApiError::field(param, message));
    }
    Ok(())
}
