//! What every API asks of a language model. A route reads its own fields into an [`Ask`], and turns
//! the events of the answer into its own shape ([`Render`](crate::stream::Render)).

use std::sync::Arc;

use thane_engine::sample::SampleOptions;
use thane_engine::schedule::Request;
use thane_runtime::{PromptEncoder, Sampling};

use super::conversation::Conversation;
use super::generate::{Prepared, Room, beside, check_memory, choose, grammar, invalid, places};
use crate::answers::Answers;
use crate::compiling::Form;
use crate::error::ApiError;
use crate::stream::Choice;

/// A request to a language model.
pub(super) struct Ask {
    /// A conversation, or texts that are continued.
    pub prompts: Vec<Prompt>,
    pub sampling: Sampling,
    /// The form of the answer; `None` for text.
    pub form: Option<Form>,
    /// Texts and tokens that end the answer.
    pub stop: Vec<String>,
    pub stop_tokens: Vec<u32>,
    pub min_tokens: usize,
    /// Most tokens of the answer; `None` for what the context allows.
    pub max_tokens: Option<usize>,
    /// Most likely tokens whose log probabilities are shown beside each token's.
    pub logprobs: Option<usize>,
    /// Answers to each prompt.
    pub n: usize,
    /// Whether each answer begins with its prompt.
    pub is_echo: bool,
    /// Whether the text of all log probabilities is in memory at once.
    pub in_one_piece: bool,
}

/// What is answered.
pub(super) enum Prompt {
    /// Messages, as the chat template renders them.
    Conversation(Conversation),
    Text(String),
    Tokens(Vec<u32>),
}

/// Answers that were begun.
pub(super) struct Begun {
    /// Those of the first prompt come first.
    pub choices: Vec<Choice>,
    /// Tokens of the first prompt.
    pub n_prompt: usize,
}

impl Prompt {
    /// Encodes the prompt. The form of the answer may have to be that of calls.
    fn prepare(
        self,
        prompts: &PromptEncoder,
        (form, is_echo): (&mut Option<Form>, bool),
        (room, is_gone): (Room, &dyn Fn() -> bool),
    ) -> Result<Prepared, ApiError> {
        match self {
            Self::Conversation(conversation) => {
                let has_form = form.is_some();
                *form = conversation.form(form.take(), prompts)?;
                conversation.prepare(prompts, has_form, (room, is_gone))
            }
            Self::Text(text) => {
                room.check_bytes(text.len())?;
                let tokens = prompts.encode_prompt_until(&text, is_gone);
                let tokens = tokens.map_err(invalid)?;
                Ok(Prepared::of_text(tokens, is_echo.then_some(text)))
            }
            Self::Tokens(tokens) => {
                room.check_ids(&tokens)?;
                let echo = is_echo.then(|| prompts.tokenizer().decode(&tokens, false));
                Ok(Prepared::of_text(tokens, echo))
            }
        }
    }
}

impl Ask {
    /// Asks for one answer, as long as the context allows.
    pub fn new(prompts: Vec<Prompt>, sampling: Sampling) -> Self {
        Self {
            prompts,
            sampling,
            form: None,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            min_tokens: 0,
            max_tokens: None,
            logprobs: None,
            n: 1,
            is_echo: false,
            in_one_piece: false,
        }
    }

    /// Queues the request, whose prompts are in the field `param`.
    pub async fn begin(
        mut self,
        answers: &Answers,
        param: &'static str,
    ) -> Result<Begun, ApiError> {
        let is_chat = matches!(self.prompts[..], [Prompt::Conversation(_)]);
        let sampling = choose(&self.sampling, answers, is_chat)?;
        if let (Some(form), Some(known)) = (&self.form, &answers.known) {
            return Err(invalid(known.lacks("a grammar")).with_param(form.field));
        }
        if let [Prompt::Conversation(conversation)] = &mut self.prompts[..] {
            conversation.check(param)?;
            refuse_forced(conversation, answers)?;
        }
        let places = places(answers, self.n.saturating_mul(self.prompts.len()))?;
        let room = Room::new(answers, param);
        let (list, mut form) = (std::mem::take(&mut self.prompts), self.form.take());
        let (prompts, is_echo) = (Arc::clone(&answers.prompts), self.is_echo);
        let prepared = beside(places, move |is_gone| {
            let mut prepared = Vec::with_capacity(list.len());
            for prompt in list {
                prepared.push(prompt.prepare(&prompts, (&mut form, is_echo), (room, is_gone))?);
            }
            Ok((prepared, form))
        });
        let ((prepared, form), places) = answers.in_time(prepared).await?;
        let n_prompts: Vec<usize> = prepared.iter().map(|p| p.tokens.len()).collect();
        n_prompts.iter().try_for_each(|n| room.check_tokens(*n))?;
        let n_tokens = prepared
            .iter()
            .map(|p| self.n * self.logprob_tokens(p, answers));
        check_memory(n_tokens.sum(), self.logprobs, self.in_one_piece)?;
        let grammar = grammar(answers, form).await?;
        let mut places = places.into_iter();
        let mut choices = Vec::new();
        for prompt in prepared {
            for (idx, place) in places.by_ref().take(self.n).enumerate() {
                let request = Request {
                    prompt: prompt.tokens.clone(),
                    counts_prompt: idx == 0,
                    sampling: SampleOptions {
                        seed: sampling.seed.wrapping_add(idx as u64),
                        ..sampling.clone()
                    },
                    grammar: grammar.clone(),
                    logprobs: self.logprobs,
                    scores_prompt: prompt.echo.is_some() && self.logprobs.is_some(),
                    min_tokens: self.min_tokens,
                    max_tokens: self.max_tokens.unwrap_or(usize::MAX),
                    stop: self.stop.clone(),
                    stop_tokens: self.stop_tokens.clone(),
                    shown_tokens: prompt.shown.clone(),
                    strip_space_prefix: !prompt.continues,
                    ..Request::default()
                };
                let events = answers.submit(request, place)?;
                let mut choice = Choice::new(events, prompt.parser.clone(), prompt.max_calls);
                choice.echo = prompt.echo.clone();
                choice.is_first = idx == 0;
                choices.push(choice);
            }
        }
        let n_prompt = n_prompts.first().copied().unwrap_or(0);
        Ok(Begun { choices, n_prompt })
    }

    /// Tokens of an answer to a prompt that the client asks for, with those of the prompt that are
    /// scored.
    fn logprob_tokens(&self, prompt: &Prepared, answers: &Answers) -> usize {
        let n_prompt = prompt.tokens.len();
        let n_due = self.max_tokens.unwrap_or(self.min_tokens);
        let n_scored = if prompt.echo.is_some() { n_prompt } else { 0 };
        n_due.min(answers.context.saturating_sub(n_prompt)) + n_scored
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
    let place = answers.places.take()?;
    let prepared = beside(place, move |is_gone| {
        conversation.prepare(&prompts, has_form, (room, is_gone))
    });
    let (prepared, _place) = answers.in_time(prepared).await?;
    Ok(prepared.tokens.len())
}

/// Refuses calls that a model which does not give all logits cannot be held to.
fn refuse_forced(conversation: &Conversation, answers: &Answers) -> Result<(), ApiError> {
    match &answers.known {
        Some(known) if conversation.is_forced() => {
            Err(invalid(known.lacks("a grammar")).with_param("tool_choice"))
        }
        _ => Ok(()),
    }
}
