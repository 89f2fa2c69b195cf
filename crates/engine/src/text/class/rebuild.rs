//! Puts in place what the class of a tokenizer makes of it.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokenizers::models::unigram::Unigram;
use tokenizers::{
    AddedToken, AddedVocabulary, DecoderWrapper, ModelWrapper, NormalizerWrapper,
    PostProcessorWrapper, PreTokenizerWrapper,
};

use super::parts::Around;
use super::{Class, Named, Settings};
use crate::text::TextError;
use crate::text::guard::{self, Checked, TextCost};
use crate::text::hf::{JsonTokenizer, Shared};

const FILE: &str = "tokenizer.json";

impl Settings {
    /// Makes of the tokenizer in a `tokenizer.json` what transformers makes of it, for a model
    /// with `n_vocab` tokens. Returns what is known of that tokenizer.
    ///
    /// A class needs the kind of model that it was written for. transformers fails, or gives
    /// tokens that no model was trained with, where the file has another; there the file counts.
    pub(in crate::text) fn apply(
        &self,
        hf: &mut JsonTokenizer,
        checked: Checked,
        n_vocab: usize,
    ) -> Result<Checked, TextError> {
        let class = if self.fits(hf.get_model().get()) {
            self.class
        } else {
            Class::Backend
        };
        let settings = Self {
            class,
            ..self.clone()
        };
        settings.apply_fitting(hf, checked, n_vocab)
    }

    fn apply_fitting(
        &self,
        hf: &mut JsonTokenizer,
        mut checked: Checked,
        n_vocab: usize,
    ) -> Result<Checked, TextError> {
        let of_file = |(id, token): (u32, AddedToken)| {
            let id = checked.added_ids.get(&token.content).copied().unwrap_or(id);
            (id, token)
        };
        let own: BTreeMap<u32, AddedToken> =
            (hf.get_added_tokens_decoder().into_iter().map(of_file)).collect();
        let normalizer = serde_json::to_value(hf.get_normalizer()).map_err(bad)?;
        if let Some(parts) = self.parts(charsmap(&normalizer)) {
            checked.cost = guard::cost_of(&parts.normalizer, &parts.pre_tokenizer)?;
            self.rebuild_model(hf, &mut checked)?;
            hf.with_normalizer(part::<Option<NormalizerWrapper>>(parts.normalizer)?);
            hf.with_pre_tokenizer(part::<Option<PreTokenizerWrapper>>(parts.pre_tokenizer)?);
            hf.with_decoder(part::<Option<DecoderWrapper>>(parts.decoder)?);
            hf.with_added_vocabulary(AddedVocabulary::new());
        }
        self.add_tokens(hf, own, checked.cost, n_vocab)?;
        checked.cost = self.set_mistral_pattern(hf, checked.cost)?;
        self.set_around(hf)?;
        hf.set_encode_special_tokens(self.split_special);
        Ok(checked)
    }

    /// Whether the class has this kind of model.
    fn fits(&self, model: &ModelWrapper) -> bool {
        match model {
            ModelWrapper::BPE(_) => self.class.bpe().is_some(),
            ModelWrapper::WordPiece(_) => {
                matches!(self.class, Class::Bert | Class::Dpr | Class::Mpnet)
            }
            ModelWrapper::Unigram(_) => self.class.unigram_unknown(None).is_some(),
            ModelWrapper::WordLevel(_) => false,
        }
    }

    /// Gives the model the settings of the class. The vocabulary and the merges stay.
    fn rebuild_model(
        &self,
        hf: &mut JsonTokenizer,
        checked: &mut Checked,
    ) -> Result<(), TextError> {
        let unknown = self.token("unk_token");
        match hf.get_model().get() {
            ModelWrapper::BPE(old) => {
                let Some(form) = self.class.bpe() else {
                    return Ok(());
                };
                let prefix = old.continuing_subword_prefix.as_deref().unwrap_or("");
                if !prefix.is_empty() {
                    return Err(bad(format!(
                        "model.continuing_subword_prefix: expected none, because the class of the \
                         tokenizer has none, found {prefix:?}: name TokenizersBackend as \
                         tokenizer_class in tokenizer_config.json to use the file as it is"
                    )));
                }
                let unk_token = unknown.filter(|_| form.has_unknown).map(str::to_owned);
                let suffix = old.end_of_word_suffix.as_deref().unwrap_or("");
                let is_kept = old.unk_token == unk_token
                    && (old.fuse_unk, old.byte_fallback) == (form.fuse_unk, form.byte_fallback)
                    && (old.ignore_merges, old.dropout, suffix) == (false, None, "");
                if !is_kept {
                    checked.hold_copy()?;
                    let mut new = old.clone();
                    new.unk_token = unk_token;
                    (new.fuse_unk, new.byte_fallback) = (form.fuse_unk, form.byte_fallback);
                    (new.ignore_merges, new.dropout) = (false, None);
                    new.end_of_word_suffix = None;
                    hf.with_model(Shared::from(new));
                }
            }
            ModelWrapper::WordPiece(old) => {
                let settings = (unknown.unwrap_or("None"), "##", 100);
                let prefix = old.continuing_subword_prefix.as_str();
                if settings != (&old.unk_token, prefix, old.max_input_chars_per_word) {
                    checked.hold_copy()?;
                    let mut new = old.clone();
                    settings.0.clone_into(&mut new.unk_token);
                    settings.1.clone_into(&mut new.continuing_subword_prefix);
                    new.max_input_chars_per_word = settings.2;
                    hf.with_model(Shared::from(new));
                }
            }
            ModelWrapper::Unigram(old) => {
                let position = old
                    .iter()
                    .position(|(text, _)| Some(text.as_str()) == unknown);
                let id = self.class.unigram_unknown(position);
                if (checked.unk_id, checked.byte_fallback) != (id, false) {
                    checked.hold_copy()?;
                    let new = Unigram::from(old.iter().cloned().collect(), id, false);
                    hf.with_model(Shared::from(new.map_err(bad)?));
                    (checked.unk_id, checked.byte_fallback) = (id, false);
                }
            }
            ModelWrapper::WordLevel(_) => {}
        }
        Ok(())
    }

    /// Adds tokens in transformers' order: those with ids, those that are named, and others.
    fn add_tokens(
        &self,
        hf: &mut JsonTokenizer,
        own: BTreeMap<u32, AddedToken>,
        cost: TextCost,
        n_vocab: usize,
    ) -> Result<(), TextError> {
        let known: BTreeMap<u32, AddedToken> = hf.get_added_tokens_decoder().into_iter().collect();
        let known: Vec<AddedToken> = known.into_values().collect();
        let by_text: HashMap<&str, &AddedToken> =
            known.iter().map(|token| (&*token.content, token)).collect();
        let mut by_id = self.added.clone();
        if !self.replaces_added {
            by_id.extend(own);
        }
        let mut by_id: Vec<AddedToken> = by_id.into_values().collect();
        let named = named_as(&self.named, &by_id);
        let texts: HashSet<&str> = self
            .named
            .iter()
            .map(|named| &*named.token.content)
            .collect();
        for token in &mut by_id {
            token.special |= texts.contains(&*token.content);
        }
        let texts: HashSet<&str> = by_id.iter().map(|token| &*token.content).collect();
        let is_known = |text: &str| texts.contains(text) || by_text.contains_key(text);
        let missing = named
            .iter()
            .chain(&self.extra)
            .filter(|token| !is_known(&token.content));
        let missing: Vec<AddedToken> = missing.cloned().collect();
        let again = match self.class {
            // It adds the texts of its special tokens once more.
            Class::Qwen2 => self
                .all_named()
                .map(|text| AddedToken::from(text, true))
                .collect(),
            Class::Cohere => named
                .iter()
                .chain(&self.extra)
                .cloned()
                .map(|token| token.special(true))
                .collect(),
            _ => Vec::new(),
        };
        guard::check_added(by_id.iter().chain(&missing), cost)
            .map_err(|error| super::in_file(super::CONFIG, error))?;
        // Most files agree, and each call searches all tokens anew.
        by_id.retain(|token| by_text.get(&*token.content) != Some(&token));
        let last = last_forms([&known, &by_id, &missing, &again]);
        let formed = |tokens: &[AddedToken]| -> Vec<AddedToken> {
            let last_form = |token: &AddedToken| last.get(&*token.content).cloned();
            tokens.iter().filter_map(last_form).collect()
        };
        let first = formed(&known);
        if first != known {
            // The crate (0.22) keeps matching a known token as it was first added.
            hf.with_added_vocabulary(AddedVocabulary::new());
            hf.add_tokens(&first);
        }
        if !by_id.is_empty() {
            hf.add_tokens(&formed(&by_id));
        }
        for tokens in [&missing, &again] {
            let tokens = within(hf, formed(tokens), n_vocab);
            if !tokens.is_empty() {
                hf.add_tokens(&tokens);
            }
        }
        Ok(())
    }

    /// Sets the tokens around texts that the class makes itself.
    fn set_around(&self, hf: &mut JsonTokenizer) -> Result<(), TextError> {
        let processor = match (self.class.around(), self.adds) {
            (Around::File | Around::Bos | Around::Nothing, Some(adds)) => {
                let [single, second] = adds.words();
                self.template(hf, &single, &second)?
            }
            (Around::File, None) => return Ok(()),
            (Around::Bert, _) => {
                self.template(hf, "cls_token A:0 sep_token:0", "B:1 sep_token:1")?
            }
            (Around::Roberta, _) => {
                let (cls, sep) = (self.id(hf, "cls_token")?, self.id(hf, "sep_token")?);
                json!({
                    "type": "RobertaProcessing", "sep": [sep.0, sep.1], "cls": [cls.0, cls.1],
                    "trim_offsets": true, "add_prefix_space": false,
                })
            }
            (Around::XlmRoberta, _) => {
                self.template(hf, "bos_token A eos_token", "eos_token B eos_token")?
            }
            (Around::T5, _) => self.template(hf, "A eos_token", "B eos_token")?,
            (Around::Bos, None) => self.template(hf, "bos_token A", "bos_token:1 B:1")?,
            (Around::Nothing, None) => self.template(hf, "A", "B:1")?,
        };
        hf.with_post_processor(part::<Option<PostProcessorWrapper>>(processor)?);
        Ok(())
    }

    /// A post-processor: what surrounds one text, and what follows that for a second text. Names
    /// are those of tokens, with a token type behind a colon.
    fn template(&self, hf: &JsonTokenizer, single: &str, second: &str) -> Result<Value, TextError> {
        let mut tokens = Map::new();
        let mut pieces = |words: &str| -> Result<Vec<Value>, TextError> {
            let mut pieces = Vec::new();
            for word in words.split(' ') {
                let (name, kind) = word.split_once(':').unwrap_or((word, "0"));
                let kind = u32::from(kind == "1");
                pieces.push(if name.len() == 1 {
                    json!({"Sequence": {"id": name, "type_id": kind}})
                } else {
                    let (text, id) = self.id(hf, name)?;
                    tokens.insert(
                        text.to_owned(),
                        json!({"id": text, "ids": [id], "tokens": [text]}),
                    );
                    json!({"SpecialToken": {"id": text, "type_id": kind}})
                });
            }
            Ok(pieces)
        };
        let single = pieces(single)?;
        let pair = [single.clone(), pieces(second)?].concat();
        Ok(json!({
            "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens,
        }))
    }

    /// The text and the id of a named token.
    fn id(&self, hf: &JsonTokenizer, key: &str) -> Result<(&str, u32), TextError> {
        let what = super::NAMES
            .into_iter()
            .find(|name| *name == key)
            .unwrap_or("a token");
        let text = self.token(key).unwrap_or("null");
        let id = hf.token_to_id(text);
        let id = id.ok_or_else(|| TextError::UnknownToken {
            what,
            token: text.to_owned(),
        })?;
        Ok((text, id))
    }
}

/// Named tokens with the properties that they have among the tokens with ids. Tokens that only the
/// class names keep their own.
fn named_as(named: &[Named], by_id: &[AddedToken]) -> Vec<AddedToken> {
    let by_text: HashMap<&str, &AddedToken> =
        by_id.iter().map(|token| (&*token.content, token)).collect();
    let of_file = |named: &Named| {
        let found = by_text
            .get(&*named.token.content)
            .filter(|_| !named.is_default);
        found.map_or(&named.token, |token| token).clone()
    };
    named.iter().map(of_file).collect()
}

/// Each text's token as it was added last, as `tokenizers` (0.23, in Python) has it. A token that
/// was once special stays so.
fn last_forms(added: [&[AddedToken]; 4]) -> HashMap<&str, AddedToken> {
    let mut last: HashMap<&str, AddedToken> = HashMap::new();
    for token in added.into_iter().flatten() {
        let was_special = last
            .get(&*token.content)
            .is_some_and(|earlier| earlier.special);
        let special = token.special || was_special;
        last.insert(&token.content, token.clone().special(special));
    }
    last
}

/// The tokens that have an id, or get one below the number of the model's tokens. transformers adds
/// the others too, which the model cannot take.
fn within(hf: &JsonTokenizer, tokens: Vec<AddedToken>, n_vocab: usize) -> Vec<AddedToken> {
    let added = hf.get_added_tokens_decoder().into_keys().max();
    let mut next = hf
        .get_vocab_size(false)
        .max(added.map_or(0, |id| id as usize + 1));
    let mut new = HashSet::new();
    let mut fits = |token: &AddedToken| {
        if hf.token_to_id(&token.content).is_some() || new.contains(&token.content) {
            return true;
        }
        if next >= n_vocab {
            return false;
        }
        next += 1;
        new.insert(token.content.clone());
        true
    };
    tokens.into_iter().filter(|token| fits(token)).collect()
}

/// The character map of SentencePiece in a normalizer.
fn charsmap(normalizer: &Value) -> Option<Value> {
    let parts = normalizer["normalizers"].as_array();
    let parts = parts.map_or(std::slice::from_ref(normalizer), Vec::as_slice);
    parts
        .iter()
        .find(|part| part["type"] == "Precompiled")
        .cloned()
}

pub(super) fn part<T: DeserializeOwned>(value: Value) -> Result<T, TextError> {
    serde_json::from_value(value).map_err(bad)
}

pub(super) fn bad(error: impl ToString) -> TextError {
    TextError::Json {
        file: FILE,
        reason: error.to_string(),
    }
}
