//! What every API asks of a language model. A route reads its own fields into an [`Ask`], and turns
//! the events of the answer into its own shape ([`Render`](crate::stream::Render)).

use std::sync::Arc;

use thane_engine::schedule::Request;
use thane_runtime::chat::{AnswerParser, ChatSyntax};
use thane_runtime::{PromptEncoder, Sampling};

use super::conversation::Conversation;
use super::generate::{
    Prepared, Room, beside, check_logprobs, check_memory, choose, grammar, invalid,
};
use super::sampling::check_stops;
use crate::answers::Answers;
use crate::compiling::Form;
use crate::error::ApiError;
use crate::stream::Choice;

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
    /// Most likely tokens whose log probabilities are shown beside each token's.
    pub logprobs: Option<usize>,
}

/// What is answered.
pub(super) enum Prompt {
    /// Messages, as the chat template renders them.
    Conversation(Conversation),
    /// A text that is continued.
    Text(String),
}

/// The names of fields that errors have.
#[derive(Clone, Copy)]
pub(super) struct Params {
    pub prompt: &'static str,
    pub stop: &'static str,
    pub logprobs: &'static str,
}

/// An answer that was begun.
pub(super) struct Begun {
    pub choice: Choice,
    /// Tokens of the prompt.
    pub n_prompt: usize,
}

impl Prompt {
    /// Encodes the prompt. Also the form of the answer, which may have to be that of calls.
    pub fn prepare(
        self,
        prompts: &PromptEncoder,
        form: Option<Form>,
        (room, is_gone): (Room, &dyn Fn() -> bool),
    ) -> Result<(Prepared, Option<Form>), ApiError> {
        match self {
            Self::Text(text) => {
                room.check_bytes(text.len())?;
                let prepared = Prepared {
                    tokens: prompts
                        .encode_prompt_until(&text, is_gone)
                        .map_err(invalid)?,
                    parser: AnswerParser::new(ChatSyntax::default(), Vec::new(), ""),
                    shown: Vec::new(),
                    echo: None,
                    continues: true,
                    max_calls: 0,
                };
                Ok((prepared, form))
            }
            Self::Conversation(conversation) => {
                let has_form = form.is_some();
                let form = conversation.form(form, prompts)?;
                Ok((
                    conversation.prepare(prompts, has_form, (room, is_gone))?,
                    form,
                ))
            }
        }
    }
}

impl Ask {
    /// Queues the request.
    pub async fn begin(mut self, answers: &Answers, params: Params) -> Result<Begun, ApiError> {
        let is_chat = matches!(self.prompt, Prompt::Conversation(_));
        let sampling = choose(&self.sampling, answers, is_chat)?;
        check_stops(&self.stop, params.stop, MAX_STOPS)?;
        refuse_empty(&self.stop, params.stop)?;
        check_logprobs(self.logprobs, params.logprobs, answers)?;
        if let (Some(form), Some(known)) = (&self.form, &answers.known) {
            return Err(invalid(known.lacks("a grammar")).with_param(form.field));
        }
        if let Prompt::Conversation(conversation) = &mut self.prompt {
            conversation.check(params.prompt)?;
            refuse_forced(conversation, answers)?;
        }
        let room = Room::new(answers, params.prompt);
        let place = answers.places.take()?;
        let prompts = Arc::clone(&answers.prompts);
        let (asked, form) = (self.prompt, self.form);
        let prepared = beside(move |is_gone| asked.prepare(&prompts, form, (room, is_gone)));
        let (prepared, form) = answers.in_time(prepared).await?;
        let n_prompt = prepared.tokens.len();
        room.check_tokens(n_prompt)?;
        if n_prompt == 0 {
            let param = params.prompt;
            let message = format!("`{param}`: expected at least one token, found none");
            return Err(ApiError::field(param, message));
        }
        let n_left = answers.context - n_prompt;
        let n_tokens = self.max_tokens.map_or(0, |n| n.min(n_left));
        check_memory(n_tokens, self.logprobs, false)?;
        let grammar = grammar(answers, form).await?;
        let request = Request {
            prompt: prepared.tokens,
            sampling,
            grammar,
            logprobs: self.logprobs,
            max_tokens: self.max_tokens.unwrap_or(usize::MAX),
            stop: self.stop,
            shown_tokens: prepared.shown,
            strip_space_prefix: !prepared.continues,
            ..Request::default()
        };
        let events = answers.submit(request, place)?;
        let choice = Choice::new(events, prepared.parser, prepared.max_calls);
        Ok(Begun { choice, n_prompt })
    }
}

/// The tokens of the prompt of a request whose field of messages is `field`.
pub(super) async fn count_tokens(
    mut conversation: Conversation,
    form: Option<Form>,
    answers: &Answers,
    field: &'static str,
) -> Result<usize, ApiError> {
    conversation.check(field)?;
    let prompts = Arc::clone(&answers.prompts);
    let room = Room::new(answers, field);
    let has_form = form.is_some();
    let prepared = beside(move |is_gone| conversation.prepare(&prompts, has_form, (room, is_gone)));
    let prepared = answers.in_time(prepared).await?;
    Ok(prepared.tokens.len())
}

/// Refuses calls that a model which does not give all logits cannot be held to.
pub(super) fn refuse_forced(
    conversation: &Conversation,
    answers: &Answers,
) -> Result<(), ApiError> {
    match &answers.known {
        Some(known) if conversation.is_forced() => {
            Err(invalid(known.lacks("a grammar")).with_param("tool_choice"))
        }
        _ => Ok(()),
    }
}

fn refuse_empty(stop: &[String], param: &str) -> Result<(), ApiError> {
    if stop.iter().any(String::is_empty) {
        let message = format!("`{param}`: expected texts that are not empty, found an empty one");
        return Err(ApiError::field(param, message));
    }
    Ok(())
}
