//! The `tokenizer.json` that transformers (5.24) makes of a `tokenizer.model`, where a model has no
//! `tokenizer.json` of its own.
//!
//! `TokenizersBackend` follows the settings of the file, so that its tokens are those of the
//! SentencePiece library. The other classes take the pieces, merge those of BPE in the order of
//! their ids, and make all else themselves ([`super::parts`]); [`super::document`] has the file.
//! Source: `_convert_from_sentencepiece` in `tokenization_utils_tokenizers.py`,
//! `build_tokenizer_from_spm_proto` and `convert_from_spm` in `convert_slow_tokenizer.py`,
//! `generate_merges` in `tokenization_utils_base.py`.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thane_mil::budget::{OverBudget, Reservation};
use thane_mil::footprint;
use tokenizers::AddedToken;

use super::{Class, EXTRA, Named, OLD_EXTRA, Settings, bad, in_file};
use crate::text::TextError;
use crate::text::guard::{self, TextCost};
use crate::text::memory::FIXED;

pub(super) const FILE: &str = "tokenizer.model";
/// What to do about a file that is refused.
pub(super) const REMEDY: &str = "save the tokenizer with save_pretrained of transformers, which \
    writes a tokenizer.json, and name \"PreTrainedTokenizerFast\" as tokenizer_class";

/// What a `tokenizer.model` says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SentencePiece {
    /// The pieces by their ids.
    pub pieces: Vec<Piece>,
    /// Whether texts are divided by a unigram model, not by BPE.
    pub is_unigram: bool,
    /// Whether characters without a piece become pieces of their bytes.
    pub byte_fallback: bool,
    /// The piece for what no other piece expresses.
    pub unk: NamedPiece,
    /// The piece that begins a text.
    pub bos: NamedPiece,
    /// The piece that ends a text.
    pub eos: NamedPiece,
    /// The character map of the normalizer; empty if there is none.
    pub charsmap: Vec<u8>,
    /// Whether a space is put before a text.
    pub add_dummy_prefix: bool,
    /// Whether spaces around a text are removed, and several between words become one.
    pub remove_extra_whitespaces: bool,
    /// Whether spaces become U+2581.
    pub escape_whitespaces: bool,
}

/// A piece that the file names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedPiece {
    /// Its id; negative if the model has none.
    pub id: i32,
    /// Its text.
    pub text: String,
}

/// A piece of text.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    /// The text, in which U+2581 stands for a space.
    pub text: String,
    /// The logarithm of the probability, or the negative rank of a merge.
    pub score: f32,
    /// What the piece is for.
    pub kind: PieceKind,
}

/// The kinds of pieces that differ here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceKind {
    /// A part of texts.
    Normal,
    /// A token that controls the model.
    Control,
    /// A symbol that is never divided.
    UserDefined,
    /// The unknown piece, a byte or an unused piece.
    Other,
}

/// Removes further special tokens that the control and user-defined pieces of a `tokenizer.model`
/// replace: those under the older key that do not take the place of the newer key.
pub(in crate::text) fn drop_replaced(
    config: &mut Map<String, Value>,
    special: Option<&mut Map<String, Value>>,
) {
    if config.get(EXTRA).is_some_and(is_true) {
        config.shift_remove(OLD_EXTRA);
    }
    if let Some(special) = special {
        special.shift_remove(OLD_EXTRA);
    }
}

/// What memory in a file is for.
pub(super) fn of_file(what: &str) -> String {
    format!("{what} of {FILE}")
}

/// Bytes that are written into memory, which is reserved before.
struct Growing<'a> {
    bytes: Vec<u8>,
    held: &'a mut Reservation,
    refusal: Option<OverBudget>,
}

impl Write for Growing<'_> {
    fn write(&mut self, new: &[u8]) -> io::Result<usize> {
        let (before, len) = (self.bytes.capacity(), self.bytes.len() + new.len());
        if len > before {
            let capacity = len.next_power_of_two();
            // The old bytes are there until the new ones are.
            let reserved = self.held.grow(capacity, || of_file("the tokenizer.json"));
            if let Err(over) = reserved {
                self.refusal = Some(over);
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            self.bytes.reserve_exact(capacity - self.bytes.len());
            self.held.shrink(before);
        }
        self.bytes.extend_from_slice(new);
        Ok(new.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Settings {
    /// The settings of a class that makes a tokenizer of a `tokenizer.model`, from the keys of
    /// [`super::merge`], and the bytes of a `tokenizer.json` with these pieces.
    pub(in crate::text) fn of_pieces(
        (class, name): (Class, Option<&str>),
        model: &SentencePiece,
        (keys, added_tokens): (&mut Map<String, Value>, Option<&Map<String, Value>>),
        held: &mut Reservation,
    ) -> Result<(Self, Vec<u8>), TextError> {
        model.check()?;
        held.grow(pieces_bytes(model), || of_file("the pieces"))?;
        class.check_pieces(name, model)?;
        let in_files = keys.get(EXTRA).is_some_and(|tokens| !tokens.is_object());
        if !keys.get(EXTRA).is_some_and(Value::is_array) {
            keys.insert(EXTRA.to_owned(), Value::Array(Vec::new()));
        }
        let mut settings = Self::read(class, keys, added_tokens)?;
        // Pieces may get their names.
        guard::check_added(settings.added.values(), TextCost::BUILT_IN)
            .map_err(|error| in_file(super::CONFIG, error))?;
        if class == Class::Backend {
            settings.name_pieces(model, keys);
        }
        let extra = settings.extra_pieces(model, keys)?;
        if !in_files {
            settings.extra = extra;
        }
        let adds = |key, default| keys.get(key).map_or(default, is_true);
        settings.adds = Some(Adds {
            bos: adds("add_bos_token", class == Class::CodeLlama)
                && settings.token("bos_token").is_some(),
            eos: adds("add_eos_token", false) && settings.token("eos_token").is_some(),
        });
        if class == Class::Backend && model.add_dummy_prefix {
            let tokens = std::mem::take(&mut settings.added).into_iter();
            settings.added = tokens.map(|(id, t)| (id, t.normalized(false))).collect();
        }
        let document = settings.document(model, keys, held)?;
        let mut bytes = Growing {
            bytes: Vec::new(),
            held,
            refusal: None,
        };
        let written = serde_json::to_writer(&mut bytes, &document);
        match (bytes.refusal, written) {
            (Some(over), _) => Err(over.into()),
            (None, Err(error)) => Err(bad(FILE, error.to_string())),
            (None, Ok(())) => {
                let mut json = bytes.bytes;
                held.grow(json.len(), || of_file("the tokenizer.json"))?;
                json.shrink_to_fit();
                Ok((settings, json))
            }
        }
    }

    /// Names the tokens that only the file of the pieces names.
    fn name_pieces(&mut self, model: &SentencePiece, keys: &Map<String, Value>) {
        let defaults = [
            ("bos_token", &model.bos, "<s>"),
            ("eos_token", &model.eos, "</s>"),
            ("unk_token", &model.unk, "<unk>"),
        ];
        for (key, piece, usual) in defaults {
            if piece.id >= 0 && !keys.contains_key(key) {
                let text = if piece.text.is_empty() {
                    usual
                } else {
                    &piece.text
                };
                self.named.push(Named {
                    key: key.to_owned(),
                    token: AddedToken::from(text, true),
                    is_default: true,
                });
            }
        }
        let place = |named: &Named| super::NAMES.iter().position(|name| *name == named.key);
        self.named
            .sort_by_key(|named| place(named).unwrap_or(usize::MAX));
    }

    /// The further special tokens where no file lists them: control and user-defined pieces.
    fn extra_pieces(
        &self,
        model: &SentencePiece,
        keys: &Map<String, Value>,
    ) -> Result<Vec<AddedToken>, TextError> {
        let is_extra = |piece: &&Piece| match piece.kind {
            PieceKind::Control => true,
            // The tokenizer itself isolates those of the backend.
            PieceKind::UserDefined => self.class != Class::Backend,
            PieceKind::Normal | PieceKind::Other => false,
        };
        let token = |piece: &Piece| {
            AddedToken::from(piece.text.as_str(), piece.kind == PieceKind::Control)
                .normalized(false)
        };
        let mut tokens: Vec<AddedToken> = model.pieces.iter().filter(is_extra).map(token).collect();
        if self.class == Class::T5 {
            let ids = extra_ids(keys)?;
            let in_file = |token: &&AddedToken| token.content.contains("<extra_id_");
            match tokens.iter().filter(in_file).count() {
                0 => {
                    let ids = (0..ids).map(|i| AddedToken::from(format!("<extra_id_{i}>"), true));
                    tokens.extend(ids);
                }
                found if ids > 0 && found != ids => {
                    return Err(bad(
                        FILE,
                        format!(
                            "expected {ids} control or user-defined pieces `<extra_id_..>`, as \
                             extra_ids of {} says, found {found}: correct extra_ids",
                            super::CONFIG
                        ),
                    ));
                }
                _ => {}
            }
        }
        Ok(tokens)
    }
}

impl SentencePiece {
    /// Refuses pieces that would take too much memory or time, and those that no library writes.
    fn check(&self) -> Result<(), TextError> {
        let refused = |reason: String| Err(bad(FILE, format!("{reason}: {REMEDY}")));
        if self.pieces.is_empty() {
            return refused("expected pieces, found none".to_owned());
        }
        for (id, piece) in self.pieces.iter().enumerate() {
            if piece.text.is_empty() || !piece.score.is_finite() {
                return refused(format!(
                    "piece {id}: expected a text and a finite score, found {:.100?} and {}",
                    piece.text, piece.score
                ));
            }
        }
        let lens = || self.pieces.iter().map(|piece| piece.text.len());
        let all = lens().fold(0, usize::saturating_add);
        // Each of the merges that make a text holds it, and there may be one for each character.
        let halves = lens().fold(0usize, |sum, len| {
            sum.saturating_add(len.saturating_mul(len))
        });
        let (most, longest) = guard::vocab_limits(self.is_unigram);
        let limits = [
            ("a piece", lens().max().unwrap_or(0), longest),
            ("the pieces together", all, most),
            (
                "the halves of the pieces",
                halves,
                guard::MAX_FILE_BYTES / 2,
            ),
        ];
        match limits.into_iter().find(|(_, found, most)| found > most) {
            Some((what, found, most)) => {
                let reason = format!("{what}: expected at most {most} bytes, found {found}");
                Err(bad(FILE, reason))
            }
            None => Ok(()),
        }
    }
}

impl Class {
    /// Refuses a class that makes no tokenizer of these pieces, or one that is not made here.
    fn check_pieces(self, name: Option<&str>, model: &SentencePiece) -> Result<(), TextError> {
        let is_made = match self {
            Self::Backend => true,
            Self::Camembert => model.is_unigram,
            class => class.bpe().is_some() || class.unigram_unknown(None).is_some(),
        };
        if is_made {
            return Ok(());
        }
        let kind = if model.is_unigram { "unigram" } else { "BPE" };
        let found = name.map_or("that of the model type".to_owned(), |name| {
            format!("{name:?}")
        });
        Err(bad(
            super::CONFIG,
            format!(
                "tokenizer_class: expected a class that makes a tokenizer of the {kind} model in \
                 {FILE} and is supported here, such as \"LlamaTokenizer\", found {found}: {REMEDY}"
            ),
        ))
    }
}

/// `extra_ids` of `tokenizer_config.json`.
pub(super) fn extra_ids(keys: &Map<String, Value>) -> Result<usize, TextError> {
    const MOST: u64 = 1000;
    let Some(value) = keys.get("extra_ids") else {
        return Ok(100);
    };
    let n = value.as_u64().filter(|n| *n <= MOST);
    n.and_then(|n| usize::try_from(n).ok()).ok_or_else(|| {
        bad(
            super::CONFIG,
            format!("extra_ids: expected a number up to {MOST}, found {value:.100}"),
        )
    })
}

/// What Python's `bool` says of a value.
pub(super) fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(values) => !values.is_empty(),
        Value::Object(values) => !values.is_empty(),
    }
}

/// Whether a class puts the named tokens around texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Adds {
    pub(super) bos: bool,
    pub(super) eos: bool,
}

impl Adds {
    /// The tokens around one text, and what follows for a second one, as
    /// [`Settings::template`](super::rebuild) takes them.
    pub(super) fn words(self) -> [String; 2] {
        ["A", "B"].map(|text| {
            let kind = u32::from(text == "B");
            let named = |name: &str, adds: bool| adds.then(|| format!("{name}:{kind}"));
            let words = [
                named("bos_token", self.bos),
                Some(format!("{text}:{kind}")),
                named("eos_token", self.eos),
            ];
            words.into_iter().flatten().collect::<Vec<_>>().join(" ")
        })
    }
}

/// Bytes of what the pieces of a `tokenizer.model` become before they are written as a
/// `tokenizer.json`, apart from merges.
fn pieces_bytes(model: &SentencePiece) -> usize {
    /// The map of characters as text, in the document and as it is checked.
    const OF_CHARSMAP: usize = 6;
    /// As a token, as a name, and in lists of them.
    const COPIES: usize = 3;
    let n = model.pieces.len();
    // Ids by texts, texts by ids, texts that are known; all at once.
    let maps = footprint::table(n, 24) + 2 * footprint::table(n, 16);
    let lists = 2 * footprint::list(n, 24)
        + footprint::list(n, size_of::<(Cow<'_, str>, f64)>())
        + footprint::list(n, 16);
    let special = model
        .pieces
        .iter()
        .filter(|piece| matches!(piece.kind, PieceKind::Control | PieceKind::UserDefined));
    let of_special = |special: &Piece| {
        COPIES * (2 * size_of::<AddedToken>() + footprint::piece(special.text.len()))
    };
    let specials: usize = special.map(of_special).sum();
    // Symbols become a pattern.
    maps + lists + 2 * specials + OF_CHARSMAP * model.charsmap.len() + FIXED
}
