//! Scores pairs of texts: a reranker on a backend, with its tokenizer.

use std::path::PathBuf;

use thane_engine::embed::{self, Limits, Watch};
use thane_engine::text::{Cut, EncodeOptions, Pair, Tokenizer};
use thane_mil::backend::Backend;
use thane_mil::budget::Budget;
use thane_models::checkpoint::Checkpoint;
use thane_models::{ClassifierInfo, Target};

use crate::conversation::Conversation;
use crate::embedder::EmbedOptions;
use crate::error::{LanguageError, RuntimeError};
use crate::language::LanguageData;
use crate::observer::Observer;
use crate::opened::Model;
use crate::passes::compile;

/// How a reranker is run.
#[derive(Clone, Debug)]
pub struct RerankOptions {
    /// Most tokens of a pair; `None` for what the model was made for. Longer pairs are cut.
    pub max_tokens: Option<usize>,
    /// Most tokens of a call of the program, padding included.
    pub batch_tokens: usize,
}

impl Default for RerankOptions {
    fn default() -> Self {
        Self {
            max_tokens: None,
            batch_tokens: EmbedOptions::BATCH_TOKENS,
        }
    }
}

/// A running reranker with its tokenizer.
pub struct Reranker {
    /// The name by which the user can ask for this model again.
    pub name: String,
    /// The file or folder.
    pub path: PathBuf,
    /// Facts about the model.
    pub info: ClassifierInfo,
    engine: embed::Embedder,
    tokenizer: Tokenizer,
    /// How pairs are rendered; `None` if the model takes two texts.
    conversation: Option<Conversation>,
}

/// A query in the form that pairs are made of.
#[derive(Clone, Debug)]
pub struct Query {
    text: String,
    /// Empty where a chat template renders the text.
    tokens: Vec<u32>,
}

/// How each text of a pair is tokenized; the tokens around both are added to the pair.
const HALF: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: true,
};

/// A text that was scored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// Index of the text in the caller's list.
    pub index: usize,
    /// What the model computes.
    pub logit: f32,
    /// What the model's files make of the logit: its sigmoid, its tangent, or the logit itself.
    pub score: f32,
}

impl Model {
    /// Starts the model as a reranker on a backend. The model must be a checkpoint of a sequence
    /// classifier with one label, or of a language model that was saved as a reranker.
    pub fn reranker(
        self,
        options: &RerankOptions,
        backend: &dyn Backend,
        observer: &dyn Observer,
    ) -> Result<Reranker, RuntimeError> {
        let checkpoint = self.checkpoint()?;
        let path = &checkpoint.path;
        let classifier = thane_models::build_classifier(checkpoint, &Target::Portable)
            .map_err(|e| RuntimeError::model(path, e))?;
        let info = classifier.info;
        if info.n_labels != 1 {
            return Err(RuntimeError::Labels {
                path: path.clone(),
                found: info.n_labels,
            });
        }
        let max_tokens = options.max_tokens.unwrap_or(info.max_tokens);
        if max_tokens == 0 || max_tokens > info.n_positions {
            return Err(RuntimeError::MaxTokens {
                asked: max_tokens,
                positions: info.n_positions,
            });
        }
        let (tokenizer, conversation) = language(checkpoint, &info, &backend.budget())
            .map_err(|e| RuntimeError::language(path, e))?;
        let program = compile(classifier.program, path, observer)?;
        let instance = backend
            .load(&program)?
            .instantiate()
            .map_err(|e| RuntimeError::Run(Box::new(e)))?;
        let limits = Limits {
            max_tokens,
            batch_tokens: options.batch_tokens,
        };
        Ok(Reranker {
            engine: embed::Embedder::new(instance, info.n_labels, limits),
            path: path.clone(),
            name: self.name,
            info,
            tokenizer,
            conversation,
        })
    }
}

/// The tokenizer, and how pairs are rendered if they are.
fn language(
    checkpoint: &Checkpoint,
    info: &ClassifierInfo,
    budget: &Budget,
) -> Result<(Tokenizer, Option<Conversation>), LanguageError> {
    let data = LanguageData::from_checkpoint(checkpoint, info.vocab_size, budget)?;
    let data = data.ok_or(LanguageError::NoTokenizer(
        "it has no tokenizer: no tokenizer.json",
    ))?;
    let mut tokenizer = data.tokenizer.into_tokenizer(budget)?;
    if info.lower_case {
        tokenizer.lower_case();
    }
    let conversation = match (&info.messages, &data.template) {
        (Some(form), Some(template)) => {
            let of_model = (info.architecture.as_str(), info.prompt.clone());
            let made = Conversation::new(template, form, of_model, &tokenizer);
            Some(made?)
        }
        (Some(form), None) if form.needs_template => return Err(LanguageError::NoTemplate),
        _ => None,
    };
    Ok((tokenizer, conversation))
}

impl Reranker {
    /// Most tokens of a pair of texts.
    pub fn max_tokens(&self) -> usize {
        self.engine.limits().max_tokens
    }

    /// The side of texts that loses tokens where a pair is too long, by the model's files.
    pub fn cut(&self) -> Cut {
        self.tokenizer.cut()
    }

    /// A query, tokenized once for all texts if the model takes two texts. Ends with
    /// `TextError::Interrupted` if `is_stopped`.
    pub fn query(&self, query: &str, is_stopped: &dyn Fn() -> bool) -> Result<Query, RuntimeError> {
        let text = query.to_owned();
        if self.conversation.is_some() {
            let tokens = Vec::new();
            return Ok(Query { text, tokens });
        }
        let prompt = self.info.prompt.as_deref().unwrap_or_default();
        let prompted = format!("{prompt}{query}");
        let tokens = self.tokenizer.encode_until(&prompted, HALF, is_stopped)?;
        Ok(Query { text, tokens })
    }

    /// Bytes of text that [`Self::tokenize`] tokenizes for a query and a text. Where a chat
    /// template renders the pair, the query is tokenized with each text.
    pub fn tokenized_len(&self, query: &Query, text: &str) -> usize {
        let around = self.conversation.as_ref().map_or(0, |conversation| {
            conversation.template_len().saturating_add(query.text.len())
        });
        text.len().saturating_add(around)
    }

    /// The tokens of a query and a text, cut to [`Self::max_tokens`] at one side. Ends with
    /// `TextError::Interrupted` if `is_stopped`.
    pub fn tokenize(
        &self,
        query: &Query,
        text: &str,
        cut: Cut,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Pair, RuntimeError> {
        let limit = (self.max_tokens(), cut);
        let Some(conversation) = &self.conversation else {
            let text = self.tokenizer.encode_until(text, HALF, is_stopped)?;
            return Ok(self.tokenizer.join([&query.tokens, &text], limit)?);
        };
        let texts = [query.text.as_str(), text];
        let pair = conversation.tokenize(&self.tokenizer, texts, limit, is_stopped);
        pair.map_err(|source| match source {
            LanguageError::Text(source) => source.into(),
            source => RuntimeError::language(&self.path, source),
        })
    }

    /// Scores pairs, in their order. Returns `None` if the caller interrupts.
    pub fn score(
        &mut self,
        pairs: &[Pair],
        watch: &mut Watch<'_>,
    ) -> Result<Option<Vec<Ranked>>, RuntimeError> {
        let has_types = self.info.token_types;
        let logits = self.engine.logits(pairs, has_types, watch)?;
        let activation = self.info.activation;
        let ranked = |(index, logit): (usize, f32)| Ranked {
            index,
            logit,
            score: activation.score(logit),
        };
        Ok(logits.map(|logits| logits.into_iter().enumerate().map(ranked).collect()))
    }

    /// The texts in falling order of their scores for a query; equal scores keep their order.
    pub fn rank(&mut self, query: &str, texts: &[&str]) -> Result<Vec<Ranked>, RuntimeError> {
        let never = &|| false;
        let query = self.query(query, never)?;
        let pairs: Vec<Pair> = texts
            .iter()
            .map(|text| self.tokenize(&query, text, self.cut(), never))
            .collect::<Result<_, _>>()?;
        let mut watch = Watch {
            interrupted: &|| false,
            progress: &mut |_| {},
        };
        let mut ranked = self.score(&pairs, &mut watch)?.unwrap_or_default();
        sort(&mut ranked);
        Ok(ranked)
    }
}

/// Sorts by falling score. The logits decide, because the sigmoids of great logits are equal.
pub fn sort(ranked: &mut [Ranked]) {
    ranked.sort_by(|a, b| b.logit.total_cmp(&a.logit));
}
