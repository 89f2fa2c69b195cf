//! Options of an answer as bindings to other languages give them: JSON.

use serde::Deserialize;
use serde_json::Value;
use thane_engine::text::{Message, TemplateInput};

use crate::error::RuntimeError;
use crate::generator::Generator;
use crate::grammar::GrammarSource;
use crate::sampling::Sampling;

/// Options of one answer. What is absent or null is as the model's files recommend.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AnswerOptions {
    /// Most tokens.
    pub max_tokens: Option<usize>,
    /// 0 for the most likely token.
    pub temperature: Option<f32>,
    /// How many of the most likely tokens take part.
    pub top_k: Option<usize>,
    /// Probability of the most likely tokens that take part.
    pub top_p: Option<f32>,
    /// Least probability of a token, as a share of that of the most likely one.
    pub min_p: Option<f32>,
    /// The divisor of the logits of tokens that occurred before.
    pub repetition_penalty: Option<f32>,
    /// Seed of the random numbers.
    pub seed: Option<u64>,
    /// Texts that end the answer.
    pub stop: Option<Vec<String>>,
    /// Tools that the model can call, as JSON schemas of functions.
    pub tools: Option<Vec<Value>>,
    /// A JSON schema that the answer follows.
    pub schema: Option<Value>,
    /// A regular expression that the answer follows.
    pub regex: Option<String>,
    /// A grammar in Lark's syntax that the answer follows.
    pub lark: Option<String>,
}

/// The question of an answer.
#[derive(Clone, Copy, Debug)]
pub enum Question<'a> {
    /// Messages as a JSON array of objects with `role` and `content`.
    Messages(&'a str),
    /// A text that is continued without the chat template.
    Text(&'a str),
}

impl AnswerOptions {
    /// Reads options. An empty text stands for none.
    pub fn parse(json: &str) -> Result<Self, RuntimeError> {
        const WHAT: &str = "the options of an answer";
        match json {
            "" => Ok(Self::default()),
            // A list would give the fields by their places.
            json if json.trim_start().starts_with('[') => {
                let source = serde::de::Error::custom("expected an object, found a list");
                Err(RuntimeError::Json { what: WHAT, source })
            }
            json => parsed(WHAT, json),
        }
    }

    /// Sets the options of a generator, and encodes what is answered.
    pub fn encode(
        self,
        model: &mut Generator,
        question: Question<'_>,
    ) -> Result<Vec<u32>, RuntimeError> {
        let grammar = self.grammar()?;
        let sampling = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed.unwrap_or_default(),
            ..Sampling::default()
        };
        let sampling = sampling.choose(model.recommended(), true);
        model.set_sampling(sampling.options)?;
        model.max_tokens = self.max_tokens;
        model.stop = self.stop.unwrap_or_default();
        match grammar {
            None => model.clear_grammar(),
            Some(grammar) => model.set_grammar(&grammar, &|| false)?,
        }
        let messages = match question {
            Question::Text(text) => return model.prompts.encode_prompt(text),
            Question::Messages(json) => json,
        };
        const WHAT: &str = "the messages";
        let mut messages: Vec<Message> = parsed(WHAT, messages)?;
        if messages.is_empty() {
            let source = serde::de::Error::custom("expected at least one, found none");
            return Err(RuntimeError::Json { what: WHAT, source });
        }
        let tools = self.tools.unwrap_or_default();
        if tools.is_empty() {
            return Ok(model.encode_conversation(&mut messages)?.tokens);
        }
        let given = TemplateInput {
            tools,
            variables: model.prompts.variables.clone(),
        };
        let rendered = model.prompts.render(&messages, &given, &|| false)?;
        model.prompts.encode_rendered(&rendered, &|| false)
    }

    fn grammar(&self) -> Result<Option<GrammarSource>, RuntimeError> {
        let schema = self.schema.clone().map(GrammarSource::JsonSchema);
        let regex = self.regex.clone().map(GrammarSource::Regex);
        let lark = self.lark.clone().map(GrammarSource::Lark);
        let mut given = [schema, regex, lark].into_iter().flatten();
        match (given.next(), given.next()) {
            (first, None) => Ok(first),
            _ => Err(RuntimeError::OneGrammar),
        }
    }
}

fn parsed<'a, T: Deserialize<'a>>(what: &'static str, json: &'a str) -> Result<T, RuntimeError> {
    serde_json::from_str(json).map_err(|source| RuntimeError::Json { what, source })
}
