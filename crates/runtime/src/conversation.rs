//! A query and a text as messages that the model's chat template renders, for rerankers that are
//! language models. Everything is done as sentence-transformers (6.2) does it.

use thane_engine::text::{
    ChatTemplate, Cut, EncodeOptions, Message, Pair, TemplateInput, Tokenizer,
};
use thane_models::checkpoint::PairMessages;

use crate::error::LanguageError;
use crate::template_source::TemplateSource;

/// The template writes all special tokens, and also those that texts spell are recognized.
const RENDERED: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: true,
};

/// The roles of a pair.
const ROLES: [&str; 2] = ["query", "document"];

/// What a template that reads the content of a message as a list of parts has in it.
const OF_PARTS: [&str; 5] = [
    "content[0]",
    ".type",
    "'type'",
    "\"type\"",
    "message.content[",
];

/// The architectures whose templates are known to read strings.
const OF_STRINGS: [&str; 4] = ["apertus", "deepseek_v3", "gpt_oss", "seed_oss"];

/// The conversations of a reranker.
pub(crate) struct Conversation {
    template: ChatTemplate,
    /// Bytes of the template, which bound what it writes by itself unless it loops.
    template_len: usize,
    prompts_answer: bool,
    input: TemplateInput,
    has_parts: bool,
    /// The system message before the pair.
    instruction: Option<String>,
    /// The tokens that take the place of the last ones of a pair that was cut: those that the
    /// template puts behind every pair.
    end: Vec<u32>,
}

impl Conversation {
    /// The conversations of a model of an architecture; refused if the template loses a text.
    pub fn new(
        source: &TemplateSource,
        form: &PairMessages,
        (architecture, instruction): (&str, Option<String>),
        tokenizer: &Tokenizer,
    ) -> Result<Self, LanguageError> {
        let reads_parts = || {
            !OF_STRINGS.contains(&architecture)
                && OF_PARTS.iter().any(|part| source.text.contains(part))
        };
        let mut conversation = Self {
            template: source.parse()?,
            template_len: source.text.len(),
            prompts_answer: form.prompts_answer,
            input: TemplateInput {
                variables: form.variables.clone(),
                ..TemplateInput::default()
            },
            has_parts: form.has_parts.unwrap_or_else(reads_parts),
            instruction,
            end: Vec::new(),
        };
        conversation.check_roles()?;
        if !form.cuts_end {
            conversation.end = conversation.common_end(tokenizer)?;
        }
        Ok(conversation)
    }

    /// About the bytes that the template writes around a pair.
    pub fn template_len(&self) -> usize {
        self.template_len
    }

    /// The tokens of a query and a text, at most `most`.
    pub fn tokenize(
        &self,
        tokenizer: &Tokenizer,
        texts: [&str; 2],
        (most, cut): (usize, Cut),
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Pair, LanguageError> {
        let mut tokens = self.tokens(tokenizer, texts, is_stopped)?;
        let is_cut = tokens.len() > most;
        if is_cut {
            tokens = cut.keep(&tokens, most).to_vec();
        }
        if tokens.len() == most {
            let n = self.end.len().min(most);
            tokens[most - n..].copy_from_slice(&self.end[self.end.len() - n..]);
        }
        let types = vec![0; tokens.len()];
        Ok(Pair {
            tokens,
            types,
            is_cut,
        })
    }

    fn tokens(
        &self,
        tokenizer: &Tokenizer,
        texts: [&str; 2],
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Vec<u32>, LanguageError> {
        Ok(tokenizer.encode_until(&self.rendered(texts)?, RENDERED, is_stopped)?)
    }

    fn rendered(&self, texts: [&str; 2]) -> Result<String, LanguageError> {
        let system = self.instruction.as_deref().map(|text| ("system", text));
        let said = system.into_iter().chain(ROLES.into_iter().zip(texts));
        let messages: Vec<Message> = said.map(|(role, text)| self.message(role, text)).collect();
        let rendered = self
            .template
            .render_with(&messages, self.prompts_answer, &self.input)?;
        Ok(rendered.text)
    }

    fn message(&self, role: &str, text: &str) -> Message {
        if !self.has_parts {
            return Message::new(role, text);
        }
        let mut message = Message::new(role, "");
        let parts = serde_json::json!([{"type": "text", "text": text}]);
        message.fields.insert("content".to_owned(), parts);
        message
    }

    /// Refuses a template that renders the same whatever the query is, or the text.
    fn check_roles(&self) -> Result<(), LanguageError> {
        let usual = self.rendered(["alpha", "bravo"])?;
        for (role, texts) in ROLES
            .into_iter()
            .zip([["charlie", "bravo"], ["alpha", "foxtrot"]])
        {
            if self.rendered(texts)? == usual {
                return Err(LanguageError::LostRole(role));
            }
        }
        Ok(())
    }

    /// The longest end that two pairs have in common, which is the template's.
    fn common_end(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>, LanguageError> {
        let tokens = |text| self.tokens(tokenizer, [text; 2], &|| false);
        let [first, second] = ["0", "1 2 3 4"].map(tokens);
        let (first, second) = (first?, second?);
        let both = first.iter().rev().zip(second.iter().rev());
        let n = both.take_while(|(one, other)| one == other).count();
        let is_end = n < first.len().min(second.len());
        Ok(if is_end {
            first[first.len() - n..].to_vec()
        } else {
            Vec::new()
        })
    }
}
