//! Converts text to token ids and back.
//!
//! ```
//! use thane_engine::text::{EncodeOptions, Tokenizer, TokenizerConfig};
//!
//! # fn main() -> Result<(), thane_engine::text::TextError> {
//! let json = br#"{
//!     "model": {"type": "BPE", "vocab": {"H": 0, "i": 1, "Hi": 2}, "merges": ["H i"]},
//!     "decoder": {"type": "Fuse"}}"#;
//! let config = TokenizerConfig { n_vocab: 3, ..TokenizerConfig::default() };
//! let tokenizer = Tokenizer::from_json(json, config)?;
//! let options = EncodeOptions { add_special: true, parse_special: false };
//! let ids = tokenizer.encode("HiH", options)?;
//! assert_eq!(ids, [2, 0]);
//! assert_eq!(tokenizer.decode(&ids, true), "HiH");
//! # Ok(())
//! # }
//! ```

use super::bpe::{self, Bpe};
use super::class::Settings;
use super::decoding::Decoding;
use super::guard::{self, Checked};
use super::hf::{Hf, JsonTokenizer, Shared, unknown_token};
use super::list_memory::MakingOfLists;
use super::memory::{self, Searched};
use super::pair::{Cut, Pair};
use super::pre::PreRule;
use super::ruby;
use super::spm::{Controls, Spm};
use super::stop::Stop;
use super::table::{Spelling, TokenTable};
use super::{Rendered, TextError, TokenizerConfig, Vocab, gemma4, wordpiece};
use thane_mil::budget::{Budget, Reservation};
use tokenizers::{ModelWrapper, TruncationDirection};

/// Tokens that end a turn in common chat formats. A token counts only if the model's chat template
/// writes it.
const TURN_ENDS: &[&str] = &[
    "<|im_end|>",
    "<end_of_turn>",
    "<|eot_id|>",
    "<|end|>",
    "<|END_OF_TURN_TOKEN|>",
];

const FILE: &str = "tokenizer.json";
/// Where the lists of a vocabulary come from.
const LISTS: &str = "the vocabulary lists";

/// In a template with channels, `<|end|>` ends a message and not the turn.
const CHANNEL: &str = "<|channel|>";

/// What [`Tokenizer::encode`] adds and recognizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Adds the special tokens of the file around the text (beginning-of-text, end-of-text). Off
    /// for a rendered chat template, which writes these tokens itself.
    pub add_special: bool,
    /// Recognizes control tokens in the text; otherwise their spellings are encoded as plain text.
    pub parse_special: bool,
}

/// The special tokens that [`EncodeOptions::add_special`] puts around a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Tokens before the text.
    pub before: Vec<u32>,
    /// Tokens after the text.
    pub after: Vec<u32>,
}

/// The implementation behind a tokenizer.
#[derive(Debug)]
enum Engine {
    /// From a `tokenizer.json`, whose post-processor adds the special tokens if there is one.
    Json(Hf<Shared>),
    Bpe(Hf<Bpe>),
    Spm(Box<Spm>),
}

/// The tokenizer of a model.
#[derive(Debug)]
pub struct Tokenizer {
    engine: Engine,
    table: TokenTable,
    n_vocab: usize,
    bos: Option<u32>,
    eos: Option<u32>,
    sep: Option<u32>,
    unk: Option<u32>,
    cut: Cut,
    /// Sorted.
    end_ids: Vec<u32>,
    /// The tokens that the files name.
    named: Vec<u32>,
    add_bos: bool,
    add_eos: bool,
    /// Whether the settings beside `tokenizer.json` ask for the end-of-text token.
    asks_eos: bool,
    /// Decoding drops the first space, because encoding adds it.
    space_prefix: bool,
    /// Bytes without a token, in a byte-level vocabulary without an unknown token.
    lost_bytes: Vec<u8>,
    /// The memory of all of it.
    held: Reservation,
}

impl Tokenizer {
    /// Builds the tokenizer from the vocabulary in a GGUF file.
    pub fn from_vocab(vocab: Vocab) -> Result<Self, TextError> {
        Self::from_vocab_within(vocab, &Budget::unlimited())
    }

    /// As [`Self::from_vocab`], within a memory limit: the memory that making the tokenizer takes
    /// is reserved before, and what the tokenizer takes for as long as it is there.
    ///
    /// # Errors
    ///
    /// [`TextError::Memory`] if it does not fit.
    pub fn from_vocab_within(mut vocab: Vocab, budget: &Budget) -> Result<Self, TextError> {
        vocab.check()?;
        let kinds = vocab.kinds()?;
        vocab.check_searched(&kinds)?;
        let mut held = budget.reserve(0, String::new)?;
        let making = MakingOfLists::new(&vocab, &kinds);
        memory::hold(&mut held, making.most, LISTS)?;
        if let "bert" | "gemma4" = vocab.model.as_str() {
            let (json, config) = match vocab.model.as_str() {
                "bert" => wordpiece::tokenizer_json(&vocab, &kinds)?,
                _ => gemma4::tokenizer_json(&vocab, &kinds)?,
            };
            memory::hold(&mut held, making.lists, LISTS)?;
            return Self::from_json_within(&json, config, budget);
        }
        let spelling = match vocab.model.as_str() {
            "gpt2" => Spelling::ByteLevel,
            "llama" => Spelling::SentencePiece,
            _ => return Err(TextError::UnknownModel(vocab.model)),
        };
        let mut table = TokenTable::with_capacity(kinds.len());
        for (token, &kind) in vocab.tokens.iter().zip(&kinds) {
            table.push(token, kind, spelling);
        }
        table.shrink();
        let mut add_bos = true;
        let engine = if spelling == Spelling::ByteLevel {
            let rule = PreRule::named(vocab.pre.as_deref())?;
            add_bos = rule.add_bos;
            Engine::Bpe(guard::catch_panics(|| {
                bpe::build(&mut vocab, &kinds, rule)
            })?)
        } else {
            Engine::Spm(Box::new(Spm::of_lists(&mut vocab, &kinds, &table)?))
        };
        let lost_bytes = if spelling == Spelling::ByteLevel {
            table.missing_bytes()
        } else {
            Vec::new()
        };
        let space_prefix =
            spelling == Spelling::SentencePiece && vocab.add_space_prefix.unwrap_or(true);
        let named = vocab.named();
        let mut tokenizer = Self {
            engine,
            table,
            n_vocab: vocab.n_vocab,
            bos: vocab.bos,
            eos: vocab.eos,
            sep: None,
            unk: vocab.unk,
            cut: Cut::default(),
            end_ids: [vocab.eos, vocab.eot, vocab.eom]
                .into_iter()
                .flatten()
                .chain(vocab.ends)
                .collect(),
            named,
            add_bos: vocab.add_bos.unwrap_or(add_bos),
            add_eos: vocab.add_eos.unwrap_or(false),
            asks_eos: false,
            space_prefix,
            lost_bytes,
            held,
        };
        tokenizer.add_turn_ends(vocab.chat_template.as_deref());
        memory::hold(&mut tokenizer.held, making.kept, LISTS)?;
        Ok(tokenizer)
    }

    /// Builds the tokenizer from the bytes of `tokenizer.json` and the settings of the files beside
    /// it.
    ///
    /// The file is not trusted.
    ///
    /// # Errors
    ///
    /// If the file is damaged, or would take too much memory or time.
    pub fn from_json(json: &[u8], config: TokenizerConfig) -> Result<Self, TextError> {
        Self::from_json_within(json, config, &Budget::unlimited())
    }

    /// As [`Self::from_json`], within a memory limit: the memory that making the tokenizer takes is
    /// reserved before, and what the tokenizer takes for as long as it is there.
    ///
    /// # Errors
    ///
    /// [`TextError::Memory`] if it does not fit.
    pub fn from_json_within(
        json: &[u8],
        config: TokenizerConfig,
        budget: &Budget,
    ) -> Result<Self, TextError> {
        let settings = config.settings.as_ref();
        let others = settings.map_or_else(Searched::default, Settings::added);
        let checked = guard::check(json, others, budget)?;
        guard::catch_panics(|| Self::from_checked_json(json, checked, config))
    }

    fn from_checked_json(
        json: &[u8],
        checked: Checked,
        config: TokenizerConfig,
    ) -> Result<Self, TextError> {
        let bad = |reason: String| TextError::Json { file: FILE, reason };
        let parts = checked.parts.as_ref().map(|parts| parts.each_ref());
        let changed = parts.map(|parts| ruby::with_parts(json, parts)).transpose();
        let changed = changed.map_err(|error| bad(error.to_string()))?;
        let json = changed.as_deref().unwrap_or(json);
        let mut hf: JsonTokenizer =
            serde_json::from_slice(json).map_err(|error| bad(error.to_string()))?;
        drop(changed);
        let in_file = hf.get_truncation().map(|params| match params.direction {
            TruncationDirection::Left => Cut::Start,
            TruncationDirection::Right => Cut::End,
        });
        // Callers truncate and pad, not the tokenizer.
        hf.with_truncation(None)
            .map_err(|error| bad(error.to_string()))?
            .with_padding(None);
        let checked = match &config.settings {
            Some(settings) => settings.apply(&mut hf, checked, config.n_vocab)?,
            None => checked,
        };
        let decoder =
            serde_json::to_value(hf.get_decoder()).map_err(|error| bad(error.to_string()))?;
        let decoding = Decoding::of(&decoder)?;
        let table = TokenTable::of_json(&hf, decoding.spelling, config.n_vocab)?;
        let lost_bytes = if decoding.spelling == Spelling::ByteLevel {
            table.missing_bytes()
        } else {
            Vec::new()
        };
        let id_of = |what, token: &Option<String>| -> Result<Option<u32>, TextError> {
            let named = || config.settings.as_ref()?.token(what);
            let Some(token) = token else {
                return Ok(named().and_then(|token| hf.token_to_id(token)));
            };
            let id = hf.token_to_id(token);
            id.map(Some).ok_or_else(|| TextError::UnknownToken {
                what,
                token: token.clone(),
            })
        };
        let bos = id_of("bos_token", &config.bos_token)?;
        let eos = id_of("eos_token", &config.eos_token)?;
        let sep = id_of("sep_token", &config.sep_token)?;
        let unk = match hf.get_model().get() {
            // The crate (0.22) keeps it private.
            ModelWrapper::Unigram(_) => checked.unk_id.and_then(|id| u32::try_from(id).ok()),
            model => {
                let token = unknown_token(model).or(config.unk_token.as_deref());
                token.and_then(|token| hf.token_to_id(token))
            }
        };
        // transformers compares the ids of other tokens too, which no model gives.
        let is_token = |id: &u32| (*id as usize) < config.n_vocab;
        let eos_ids = config.eos_ids.iter().copied().filter(is_token);
        let end_ids = eos.into_iter().chain(eos_ids).collect();
        let named = config
            .named_tokens
            .iter()
            .filter_map(|token| hf.token_to_id(token));
        let named = named.collect();
        let adds = hf.get_post_processor().is_none() && config.settings.is_none();
        let mut tokenizer = Self {
            engine: Engine::Json(Hf::new(hf, checked.cost)),
            table,
            n_vocab: config.n_vocab,
            bos,
            eos,
            sep,
            unk,
            cut: config.truncation_side.or(in_file).unwrap_or_default(),
            end_ids,
            named,
            add_bos: adds && config.add_bos_token.unwrap_or(false),
            add_eos: adds && config.add_eos_token.unwrap_or(false),
            asks_eos: config.add_eos_token.unwrap_or(false),
            space_prefix: decoding.space_prefix,
            lost_bytes,
            held: checked.held,
        };
        tokenizer.add_turn_ends(config.chat_template.as_deref());
        tokenizer.add_turn_ends(config.tool_template.as_deref());
        memory::hold(&mut tokenizer.held, checked.making.kept, FILE)?;
        Ok(tokenizer)
    }

    /// Adds the end-of-turn tokens that the chat template writes.
    fn add_turn_ends(&mut self, chat_template: Option<&str>) {
        let template = chat_template.unwrap_or("");
        let written = |token: &str| {
            template.contains(token) && !(token == "<|end|>" && template.contains(CHANNEL))
        };
        let ids: Vec<u32> = TURN_ENDS
            .iter()
            .filter(|token| written(token))
            .filter_map(|token| self.id_of(token))
            .collect();
        self.end_ids.extend(ids);
        self.end_ids.sort_unstable();
        self.end_ids.dedup();
    }

    /// The token ids of `text`.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TextError> {
        self.encode_until(text, options, &|| false)
    }

    /// [`Self::encode`] that ends if `is_stopped`, which is asked every few milliseconds.
    ///
    /// # Errors
    ///
    /// [`TextError::Interrupted`] then.
    pub fn encode_until(
        &self,
        text: &str,
        options: EncodeOptions,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Vec<u32>, TextError> {
        let stop = &Stop::new(is_stopped);
        let mut ids = Vec::new();
        if options.add_special && self.add_bos {
            ids.extend(self.bos);
        }
        match &self.engine {
            Engine::Spm(spm) => {
                let controls = if options.parse_special {
                    Controls::All
                } else {
                    Controls::None
                };
                spm.encode(&self.table, text, controls, stop, &mut ids)?;
            }
            Engine::Json(hf) => {
                let adds = (options.parse_special, options.add_special);
                hf.encode(text, adds, stop, &mut ids)?
            }
            Engine::Bpe(hf) => hf.encode(text, (options.parse_special, false), stop, &mut ids)?,
        }
        if options.add_special && self.add_eos {
            ids.extend(self.eos);
        }
        Ok(ids)
    }

    /// Two texts as one sequence, such as a query and a document, cut to `most` tokens. Each is
    /// encoded without special tokens around it. Tokens are removed from one side of the longer
    /// text until the pair fits, like the tokenizers of transformers do it (`longest_first`).
    ///
    /// # Errors
    ///
    /// If the tokenizer is that of a GGUF file, which does not say how pairs are formed.
    pub fn join(&self, texts: [&[u32]; 2], limit: (usize, Cut)) -> Result<Pair, TextError> {
        match &self.engine {
            Engine::Json(hf) => hf.join(texts, limit),
            Engine::Bpe(_) | Engine::Spm(_) => Err(TextError::NoPairs),
        }
    }

    /// The token ids of a rendered chat template. Only control tokens that the template wrote are
    /// recognized; spellings of control tokens within `rendered.from_messages`, the bytes of
    /// messages, are encoded as plain text. Without such spellings the ids equal those of
    /// [`Tokenizer::encode`].
    pub fn encode_rendered(&self, rendered: &Rendered) -> Result<Vec<u32>, TextError> {
        self.encode_rendered_until(rendered, &|| false)
    }

    /// [`Self::encode_rendered`] that ends like [`Self::encode_until`].
    pub fn encode_rendered_until(
        &self,
        rendered: &Rendered,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Vec<u32>, TextError> {
        let stop = &Stop::new(is_stopped);
        let mut ids = Vec::new();
        let (text, message_ranges) = (rendered.text.as_str(), rendered.from_messages.as_slice());
        // The unknown token also stands for text that does not spell it.
        let is_spelled = |text: &str| {
            let spelling = self.unk.map(|id| self.token_bytes(id));
            spelling == Some(text.trim().as_bytes())
        };
        let is_control =
            |id, text: &str| self.is_special(id) && (self.unk != Some(id) || is_spelled(text));
        match &self.engine {
            Engine::Spm(spm) => spm.encode(
                &self.table,
                text,
                Controls::Outside(message_ranges),
                stop,
                &mut ids,
            )?,
            Engine::Json(hf) => {
                hf.encode_with_messages((text, message_ranges), &is_control, stop, &mut ids)?
            }
            Engine::Bpe(hf) => {
                hf.encode_with_messages((text, message_ranges), &is_control, stop, &mut ids)?
            }
        }
        Ok(ids)
    }

    /// The tokens that `add_special` puts before and after a text.
    pub fn special_tokens(&self) -> Result<SpecialTokens, TextError> {
        const PROBE: char = 'a';
        let probe = PROBE.to_string();
        let encode = |add_special| {
            self.encode(
                &probe,
                EncodeOptions {
                    add_special,
                    parse_special: false,
                },
            )
        };
        let (bare, mut before) = (encode(false)?, encode(true)?);
        let found = before
            .windows(bare.len().max(1))
            .position(|ids| ids == bare);
        let at = found.ok_or(TextError::Unencodable { character: PROBE })?;
        let after = before.split_off(at + bare.len());
        before.truncate(at);
        Ok(SpecialTokens { before, after })
    }

    /// Ends each text with the end-of-text token if `tokenizer_config.json` asks for that token and
    /// `tokenizer.json` puts no token after a text. Embedding models that pool the last token were
    /// trained so: the files of e5-mistral contradict each other, and transformers before version 5
    /// followed `tokenizer_config.json` (mteb pull request 5237). A prompt that a language model
    /// continues must not end, so this is not the default.
    ///
    /// # Errors
    ///
    /// If the tokenizer cannot encode text at all.
    pub fn end_texts(&mut self) -> Result<(), TextError> {
        if self.asks_eos && self.special_tokens()?.after.is_empty() {
            self.add_eos = true;
        }
        Ok(())
    }

    /// Lowercases texts before anything else, as some embedding models require, unless a step of
    /// the normalizer is that alone, as in sentence-transformers (6.2). It has no effect on the
    /// SentencePiece vocabularies of GGUF files, which are never lowercased.
    pub fn lower_case(&mut self) {
        match &mut self.engine {
            Engine::Json(hf) => hf.lower_case(),
            Engine::Bpe(hf) => hf.lower_case(),
            Engine::Spm(_) => {}
        }
    }

    /// The characters of `text` that the vocabulary cannot express. [`Tokenizer::encode`] drops
    /// them, wholly or in part, like the model's published tokenizer does. (SmolLM2 has no token
    /// for six control characters.)
    pub fn unencodable<'a>(&'a self, text: &'a str) -> impl Iterator<Item = char> + 'a {
        let mut bytes = [0; 4];
        let lost = move |c: &char| {
            c.encode_utf8(&mut bytes)
                .bytes()
                .any(|byte| self.lost_bytes.contains(&byte))
        };
        // Most vocabularies can express every byte, so the text need not be searched.
        let text = if self.lost_bytes.is_empty() { "" } else { text };
        text.chars().filter(lost)
    }

    /// The text of a whole sequence of tokens. Invalid UTF-8 becomes U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        let mut first = true;
        for &id in ids
            .iter()
            .filter(|&&id| !(skip_special && self.is_special(id)))
        {
            let mut token = self.token_bytes(id);
            if std::mem::take(&mut first) && self.space_prefix {
                token = token.strip_prefix(b" ").unwrap_or(token);
            }
            bytes.extend_from_slice(token);
        }
        String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// Bytes of memory that count for the tokenizer: at least as many as it takes.
    pub fn held_bytes(&self) -> usize {
        self.held.bytes()
    }

    /// The bytes of one token; empty for an embedding row without a token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.table.get(id)
    }

    /// The id of the token with this spelling in the file.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        match &self.engine {
            Engine::Json(hf) => hf.parsing.token_to_id(token),
            Engine::Bpe(hf) => hf.parsing.token_to_id(token),
            Engine::Spm(spm) => spm.id_of(&self.table, token),
        }
    }

    /// The ids of all tokens whose bytes contain any of these texts, apart from control tokens.
    pub fn ids_containing(&self, texts: &[String]) -> Vec<u32> {
        let holds = |bytes: &[u8], text: &str| {
            !text.is_empty()
                && bytes
                    .windows(text.len())
                    .any(|part| part == text.as_bytes())
        };
        let n = u32::try_from(self.n_vocab).unwrap_or(u32::MAX);
        let is_found = |id: &u32| {
            let bytes = self.token_bytes(*id);
            !self.is_special(*id) && texts.iter().any(|text| holds(bytes, text))
        };
        (0..n).filter(is_found).collect()
    }

    /// Whether a token is a control token, which is not displayed.
    pub fn is_special(&self, id: u32) -> bool {
        self.table.is_special(id)
    }

    /// Whether the files name a token, such as the one that ends texts.
    pub fn is_named(&self, id: u32) -> bool {
        self.named.contains(&id)
    }

    /// Number of rows of the model's embedding; all ids are below it.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// The beginning-of-text token.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The end-of-text token.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The token that separates the parts of a text.
    pub fn sep(&self) -> Option<u32> {
        self.sep
    }

    /// The side of texts that loses tokens where they are too long.
    pub fn cut(&self) -> Cut {
        self.cut
    }

    /// Whether `add_special` puts the beginning-of-text token first.
    pub fn adds_bos(&self) -> bool {
        self.add_bos && self.bos.is_some()
    }

    /// All tokens that end a generation, sorted: end of text, end of turn, and the ids in the
    /// model's files.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// Whether this token ends a generation.
    pub fn is_end(&self, id: u32) -> bool {
        self.end_ids.binary_search(&id).is_ok()
    }

    /// Whether a decoded text begins with a space that encoding added (SentencePiece).
    pub fn has_space_prefix(&self) -> bool {
        self.space_prefix
    }
}
