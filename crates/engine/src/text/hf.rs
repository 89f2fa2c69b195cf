//! A tokenizer of the `tokenizers` crate around any model, and a copy that ignores control tokens.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::TextError;
use super::guard::{self, TextCost};
use super::pair::{Cut, Pair, kept_lengths};
use super::stop::{Stop, Threads};
use super::unigram::{self, Pairs};
use serde::{Deserialize, Deserializer};
use tokenizers::models::TrainerWrapper;
use tokenizers::normalizers::{Lowercase, Sequence};
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::{
    AddedToken, AddedVocabulary, DecoderWrapper, Encoding, Model, ModelWrapper, NormalizerWrapper,
    OffsetType, PostProcessor, PostProcessorWrapper, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper, Token, TokenizerImpl,
};

/// A tokenizer of the crate with any model.
pub(super) type HfTokenizer<M> =
    TokenizerImpl<M, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// A model that can stop.
pub(super) trait StoppableModel: Model + Clone + Send + Sync + 'static {
    /// The highest cost of a byte of a word, which [`Self::tokenize_until`] takes; 0 for models
    /// that need none.
    fn cost_per_byte(&self) -> usize {
        0
    }

    /// The tokens of a word, which is as long as a text in some tokenizers.
    fn tokenize_until(
        &self,
        word: &str,
        cost_per_byte: usize,
        stop: &Stop,
    ) -> tokenizers::Result<Vec<Token>>;
}

/// The tokenizer in a `tokenizer.json`.
pub(super) type JsonTokenizer = HfTokenizer<Shared>;

/// The model in a `tokenizer.json`; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Shared(Arc<WithPairs>);

#[derive(Debug)]
struct WithPairs {
    model: ModelWrapper,
    /// Of a Unigram model, once a long word was tokenized.
    pairs: OnceLock<Pairs>,
}

impl Shared {
    /// The model.
    pub(super) fn get(&self) -> &ModelWrapper {
        &self.0.model
    }
}

impl<M: Into<ModelWrapper>> From<M> for Shared {
    fn from(model: M) -> Self {
        Self(Arc::new(WithPairs {
            model: model.into(),
            pairs: OnceLock::new(),
        }))
    }
}

impl<'de> Deserialize<'de> for Shared {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ModelWrapper::deserialize(deserializer).map(Self::from)
    }
}

impl Model for Shared {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        self.get().tokenize(word)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.get().token_to_id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.get().id_to_token(id)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.get().get_vocab()
    }

    fn get_vocab_size(&self) -> usize {
        self.get().get_vocab_size()
    }

    fn save(&self, folder: &Path, name: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        self.get().save(folder, name)
    }

    fn get_trainer(&self) -> TrainerWrapper {
        self.get().get_trainer()
    }
}

impl StoppableModel for Shared {
    fn cost_per_byte(&self) -> usize {
        match self.get() {
            ModelWrapper::Unigram(model) => unigram::cost_per_byte(model),
            _ => 0,
        }
    }

    fn tokenize_until(
        &self,
        word: &str,
        cost_per_byte: usize,
        stop: &Stop,
    ) -> tokenizers::Result<Vec<Token>> {
        if let ModelWrapper::Unigram(model) = self.get() {
            return unigram::tokenize((model, &self.0.pairs), word, cost_per_byte, stop);
        }
        stop.note(word.len())?;
        self.tokenize(word)
    }
}

/// The engine of a [`super::Tokenizer`] that the `tokenizers` crate runs.
#[derive(Debug)]
pub(super) struct Hf<M> {
    pub(super) parsing: Arc<HfTokenizer<M>>,
    /// A copy that encodes control tokens as text; created on first use.
    plain: OnceLock<Arc<HfTokenizer<M>>>,
    cost: TextCost,
    /// Of a byte of a word, as the model says.
    cost_per_byte: usize,
    threads: Threads,
}

/// Token ids with their byte ranges in the text.
type IdsWithOffsets = Vec<(u32, (usize, usize))>;

impl<M: StoppableModel> Hf<M> {
    pub(super) fn new(tokenizer: HfTokenizer<M>, cost: TextCost) -> Self {
        Self {
            cost_per_byte: tokenizer.get_model().cost_per_byte(),
            parsing: Arc::new(tokenizer),
            plain: OnceLock::new(),
            cost,
            threads: Threads::default(),
        }
    }

    /// Appends the token ids of `text` to `ids`.
    pub(super) fn encode(
        &self,
        text: &str,
        (parse_special, add_special): (bool, bool),
        stop: &Stop,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let cost = self.cost_per_byte;
        let encode = move |hf: &HfTokenizer<M>, text: &str, stop: &Stop| {
            let encoding = encoding(hf, (text, true), OffsetType::None, (cost, stop))?;
            let encoding = hf.post_process(encoding, None, add_special);
            Ok(encoding.map_err(failed)?.get_ids().to_vec())
        };
        ids.extend(self.run(
            if parse_special {
                &self.parsing
            } else {
                self.plain()?
            },
            text,
            stop,
            encode,
        )?);
        Ok(())
    }

    /// Appends the token ids of `text`, in which no byte within `message_ranges` is part of a
    /// control token. `is_control` takes a token and the text that it stands for.
    pub(super) fn encode_with_messages(
        &self,
        (text, message_ranges): (&str, &[Range<usize>]),
        is_control: &dyn Fn(u32, &str) -> bool,
        stop: &Stop,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let overlaps = |from: &(usize, usize)| {
            let first = message_ranges.partition_point(|range| range.end <= from.0);
            message_ranges
                .get(first)
                .is_some_and(|range| range.start < from.1)
        };
        let is_control = |id: u32, spelled: &str| {
            let is_byte = |name: &str| name.len() == 6 && name.starts_with("<0x");
            // A character may become the tokens of its bytes, which may be special.
            let bytes = self.parsing.id_to_token(id).filter(|name| is_byte(name));
            is_control(id, spelled) && bytes.is_none_or(|name| name == spelled.trim())
        };
        let found = self.with_offsets(text, stop)?;
        let mut spelled = found
            .iter()
            .filter(|(id, from)| overlaps(from) && is_control(*id, &text[from.0..from.1]));
        if spelled.next().is_none() {
            ids.extend(found.into_iter().map(|(id, _)| id));
            return Ok(());
        }
        // A control token without a byte of a message lies between two messages.
        let (mut controls, mut start) = (Vec::new(), 0);
        let end = text.len()..text.len();
        for message in message_ranges.iter().chain([&end]) {
            let between = self.with_offsets(&text[start..message.start], stop)?;
            let placed = between
                .iter()
                .map(|(id, from)| (*id, start + from.0..start + from.1));
            controls.extend(placed.filter(|(id, from)| is_control(*id, &text[from.clone()])));
            start = message.end;
        }
        self.take_spaces(text, &mut controls);
        self.around_controls(text, &controls, stop, ids)
    }

    /// Gives control tokens the spaces beside them that they stand for, those of messages too.
    fn take_spaces(&self, text: &str, controls: &mut [(u32, Range<usize>)]) {
        let added = self
            .parsing
            .get_added_vocabulary()
            .get_added_tokens_decoder();
        let is_normalized = self.parsing.get_normalizer().is_some();
        let mut last = 0;
        for (id, from) in controls {
            // A normalizer decides which spaces are beside normalized tokens.
            let token = added
                .get(id)
                .filter(|token| !(token.normalized && is_normalized));
            if token.is_some_and(|token| token.lstrip) {
                from.start = text[..from.start].trim_end().len().max(last);
            }
            if token.is_some_and(|token| token.rstrip) {
                from.end = text.len() - text[from.end..].trim_start().len();
            }
            last = from.end;
        }
    }

    /// Appends these control tokens, and the text between them as plain text.
    fn around_controls(
        &self,
        text: &str,
        controls: &[(u32, Range<usize>)],
        stop: &Stop,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let mut start = 0;
        for (id, from) in controls {
            self.encode_part(text, start..from.start, stop, ids)?;
            ids.push(*id);
            start = from.end.max(start);
        }
        self.encode_part(text, start..text.len(), stop, ids)
    }

    /// Appends the token ids of a part of a text, in which control tokens are text.
    fn encode_part(
        &self,
        text: &str,
        part: Range<usize>,
        stop: &Stop,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        if part.is_empty() {
            return Ok(());
        }
        let (cost, is_first) = (self.cost_per_byte, part.start == 0);
        let encode = move |hf: &HfTokenizer<M>, part: &str, stop: &Stop| {
            let encoding = encoding(hf, (part, is_first), OffsetType::None, (cost, stop))?;
            Ok(encoding.get_ids().to_vec())
        };
        ids.extend(self.run(self.plain()?, &text[part], stop, encode)?);
        Ok(())
    }

    /// Two texts without special tokens as one sequence with those of pairs, cut to `most` tokens.
    pub(super) fn join(
        &self,
        [first, second]: [&[u32]; 2],
        (most, cut): (usize, Cut),
    ) -> Result<Pair, TextError> {
        let n_added = self
            .parsing
            .get_post_processor()
            .map_or(0, |processor| processor.added_tokens(true));
        let Some(room) = most.checked_sub(n_added) else {
            let reason = format!("a pair of texts needs {n_added} special tokens, not {most}");
            return Err(TextError::Encode(reason));
        };
        let lengths = kept_lengths(first.len(), second.len(), room);
        let first_half = without_texts(cut.keep(first, lengths.0), 0);
        let second_half = without_texts(cut.keep(second, lengths.1), 1);
        let both = guard::catch_panics(|| {
            self.parsing
                .post_process(first_half, Some(second_half), true)
                .map_err(failed)
        })?;
        Ok(Pair {
            tokens: both.get_ids().to_vec(),
            types: both.get_type_ids().to_vec(),
            is_cut: lengths != (first.len(), second.len()),
        })
    }

    /// Token ids with their byte ranges in the text.
    fn with_offsets(&self, text: &str, stop: &Stop) -> Result<IdsWithOffsets, TextError> {
        let cost = self.cost_per_byte;
        self.run(&self.parsing, text, stop, move |hf, text, stop| {
            // What follows adds tokens, which are not wanted, or trims ranges by characters.
            let encoding = encoding(hf, (text, true), OffsetType::Byte, (cost, stop))?;
            Ok(encoding
                .get_ids()
                .iter()
                .copied()
                .zip(encoding.get_offsets().iter().copied())
                .collect())
        })
    }

    /// Runs `work` on a text that is not too long, with panics caught and, if needed, in a thread
    /// and with a time limit.
    fn run<T: Send + 'static>(
        &self,
        hf: &Arc<HfTokenizer<M>>,
        text: &str,
        stop: &Stop,
        work: impl FnOnce(&HfTokenizer<M>, &str, &Stop) -> Result<T, TextError> + Send + 'static,
    ) -> Result<T, TextError> {
        self.cost.check(text)?;
        let is_slow = self.cost.is_slow;
        if is_slow || Threads::take(text.len()) {
            let (hf, text) = (Arc::clone(hf), text.to_owned());
            let work = move |stop: &Stop| work(&hf, &text, stop);
            return self.threads.run(is_slow, stop, work);
        }
        guard::catch_panics(|| work(hf, text, stop))
    }

    fn plain(&self) -> Result<&Arc<HfTokenizer<M>>, TextError> {
        if self.plain.get().is_none() {
            let copy = guard::catch_panics(|| {
                let mut copy = self.parsing.as_ref().clone();
                copy.set_encode_special_tokens(true);
                Ok(Arc::new(copy))
            })?;
            // Another thread may have been first.
            let _ = self.plain.set(copy);
        }
        self.plain.get().ok_or_else(|| {
            TextError::Encode("the copy without control tokens is missing".to_owned())
        })
    }

    /// Adds a normalizer that lowercases texts first, unless a normalizer lowercases them.
    pub(super) fn lower_case(&mut self) {
        let is_lower = |step: &NormalizerWrapper| matches!(step, NormalizerWrapper::Lowercase(_));
        let has_lower = match self.parsing.get_normalizer() {
            Some(NormalizerWrapper::Sequence(steps)) => steps.as_ref().iter().any(is_lower),
            step => step.is_some_and(is_lower),
        };
        if has_lower {
            return;
        }
        let mut steps = vec![NormalizerWrapper::from(Lowercase)];
        steps.extend(self.parsing.get_normalizer().cloned());
        let mut tokenizer = self.parsing.as_ref().clone();
        tokenizer.with_normalizer(Some(Sequence::new(steps)));
        add_anew(&mut tokenizer);
        self.parsing = Arc::new(tokenizer);
        self.plain.take();
    }
}

/// Adds the added tokens once more: the crate (0.22) normalizes their texts as they are added, and
/// not when the normalizer is replaced.
fn add_anew<M: StoppableModel>(hf: &mut HfTokenizer<M>) {
    let added: BTreeMap<u32, AddedToken> = hf.get_added_tokens_decoder().into_iter().collect();
    let is_split = hf.get_encode_special_tokens();
    hf.with_added_vocabulary(AddedVocabulary::new());
    hf.add_tokens(&added.into_values().collect::<Vec<_>>());
    hf.set_encode_special_tokens(is_split);
}

/// The tokens of a text without those around it, step by step as the crate's `encode` has them. The
/// text may be a part of another, and then says whether it is the first.
fn encoding<M: StoppableModel>(
    hf: &HfTokenizer<M>,
    (text, is_first): (&str, bool),
    offsets: OffsetType,
    (cost_per_byte, stop): (usize, &Stop),
) -> Result<Encoding, TextError> {
    stop.ask()?;
    let added = hf.get_added_vocabulary();
    let mut text = added.extract_and_normalize(hf.get_normalizer(), text);
    stop.ask()?;
    if let Some(step) = hf.get_pre_tokenizer() {
        split(step, &mut text, is_first, stop).map_err(failed)?;
    }
    let model = hf.get_model();
    text.tokenize(|word| model.tokenize_until(word.get(), cost_per_byte, stop))
        .map_err(failed)?;
    text.into_encoding(None, 0, offsets).map_err(failed)
}

/// Splits a text into words, and asks between the steps of a sequence. The only step that asks
/// where a text begins is a [`Metaspace`] that prepends a space to the first word.
fn split(
    step: &PreTokenizerWrapper,
    text: &mut PreTokenizedString,
    is_first: bool,
    stop: &Stop,
) -> tokenizers::Result<()> {
    match step {
        PreTokenizerWrapper::Sequence(steps) => {
            let mut steps = steps.as_ref().iter();
            return steps.try_for_each(|step| split(step, text, is_first, stop));
        }
        PreTokenizerWrapper::Metaspace(step)
            if !is_first && step.prepend_scheme == PrependScheme::First =>
        {
            let replacement = step.get_replacement();
            Metaspace::new(replacement, PrependScheme::Never, step.split).pre_tokenize(text)?;
        }
        step => step.pre_tokenize(text)?,
    }
    Ok(stop.ask()?)
}

fn failed(error: tokenizers::Error) -> TextError {
    match error.downcast::<TextError>() {
        Ok(error) => *error,
        Err(error) => TextError::Encode(error.to_string()),
    }
}

/// Tokens as the crate's post-processors take them, all of one type. The spellings and offsets,
/// which no post-processor needs to place tokens, are empty.
fn without_texts(ids: &[u32], kind: u32) -> Encoding {
    let tokens = ids.iter().map(|id| Token::new(*id, String::new(), (0, 0)));
    Encoding::from_tokens(tokens.collect(), kind)
}

/// The token for what the vocabulary cannot express, of models that have it as a text.
pub(super) fn unknown_token(model: &ModelWrapper) -> Option<&str> {
    match model {
        ModelWrapper::BPE(bpe) => bpe.unk_token.as_deref(),
        ModelWrapper::WordPiece(words) => Some(&words.unk_token),
        ModelWrapper::WordLevel(words) => Some(&words.unk_token),
        ModelWrapper::Unigram(_) => None,
    }
}
