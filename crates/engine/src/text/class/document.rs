//! The document of a `tokenizer.json` with the pieces of a `tokenizer.model`.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use thane_mil::budget::Reservation;

use super::parts::{metaspace, sequence, split};
use super::sentencepiece::{
    FILE, Piece, PieceKind, REMEDY, SentencePiece, extra_ids, is_true, of_file,
};
use super::{Class, Settings, bad, in_file};
use crate::text::TextError;
use crate::text::guard::{self, DOUBLE_FIRST, ONE_SPACE, TRIM};

/// A `tokenizer.json`.
#[derive(Serialize)]
pub(super) struct Document<'a> {
    version: &'static str,
    added_tokens: [(); 0],
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: Model<'a>,
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum Model<'a> {
    #[serde(rename = "BPE")]
    Bpe {
        unk_token: Option<&'a str>,
        fuse_unk: bool,
        byte_fallback: bool,
        ignore_merges: bool,
        #[serde(serialize_with = "by_text")]
        vocab: Vec<Option<&'a str>>,
        merges: Vec<Pair<'a>>,
    },
    Unigram {
        unk_id: usize,
        byte_fallback: bool,
        vocab: Vec<(Cow<'a, str>, f64)>,
    },
}

/// The two tokens of a merge.
type Pair<'a> = (&'a str, &'a str);

/// The ids of tokens by their texts.
fn by_text<S: Serializer>(texts: &[Option<&str>], to: S) -> Result<S::Ok, S::Error> {
    let rows = texts.iter().zip(0u32..);
    to.collect_map(rows.filter_map(|(text, id)| Some(((*text)?, id))))
}

impl Settings {
    pub(super) fn document<'a>(
        &'a self,
        model: &'a SentencePiece,
        keys: &Map<String, Value>,
        held: &mut Reservation,
    ) -> Result<Document<'a>, TextError> {
        let follows_file = self.class == Class::Backend;
        let is_unigram = match self.class {
            Class::Backend | Class::Camembert => model.is_unigram,
            class => class.bpe().is_none(),
        };
        let added = self.added.iter().filter(|_| follows_file);
        let names: HashMap<usize, &str> = added
            .map(|(id, token)| (*id as usize, token.content.as_str()))
            .collect();
        let texts = if is_unigram {
            model
                .pieces
                .iter()
                .map(|piece| Some(&*piece.text))
                .collect()
        } else {
            renamed(&model.pieces, &names)?
        };
        let is_symbol = |piece: &Piece| piece.kind == PieceKind::UserDefined;
        let symbols: Vec<&str> = model
            .pieces
            .iter()
            .zip(&texts)
            .filter(|(piece, _)| is_symbol(piece))
            .filter_map(|(_, text)| *text)
            .collect();
        let [mut normalizer, mut pre_tokenizer, mut decoder] = [const { Value::Null }; 3];
        if follows_file {
            let is_legacy = keys.get("legacy").is_none_or(is_true);
            normalizer = model.normalizer(is_legacy);
            pre_tokenizer = model.pre_tokenizer(is_legacy, &symbols)?;
            decoder = model.decoder();
        } else if is_unigram && !model.charsmap.is_empty() {
            normalizer = model.precompiled();
        }
        guard::cost_of(&normalizer, &pre_tokenizer).map_err(|error| in_file(FILE, error))?;
        let model = if is_unigram {
            self.unigram(model, keys)?
        } else {
            self.bpe(model, texts, !symbols.is_empty(), held)?
        };
        Ok(Document {
            version: "1.0",
            added_tokens: [],
            normalizer,
            pre_tokenizer,
            decoder,
            model,
        })
    }

    fn bpe<'a>(
        &'a self,
        model: &'a SentencePiece,
        vocab: Vec<Option<&'a str>>,
        has_symbols: bool,
        held: &mut Reservation,
    ) -> Result<Model<'a>, TextError> {
        let Some(form) = self.class.bpe() else {
            return Ok(Model::Bpe {
                unk_token: Some(&model.unk.text),
                fuse_unk: true,
                byte_fallback: model.byte_fallback,
                ignore_merges: has_symbols,
                merges: ranked_merges(&model.pieces, &vocab, held)?,
                vocab,
            });
        };
        Ok(Model::Bpe {
            unk_token: self.token("unk_token").filter(|_| form.has_unknown),
            fuse_unk: form.fuse_unk,
            byte_fallback: form.byte_fallback,
            ignore_merges: false,
            merges: merges_by_id(&vocab, held)?,
            vocab,
        })
    }

    fn unigram<'a>(
        &self,
        model: &'a SentencePiece,
        keys: &Map<String, Value>,
    ) -> Result<Model<'a>, TextError> {
        let named = |key: &str, usual: &str| Cow::from(text_of(keys.get(key), usual));
        let row = |piece: &'a Piece| (Cow::from(piece.text.as_str()), f64::from(piece.score));
        let rest = |n: usize| model.pieces.iter().skip(n).map(row);
        let mask = || (named("mask_token", "<mask>"), 0.0);
        let vocab: Vec<(Cow<'a, str>, f64)> = match self.class {
            Class::XlmRoberta => {
                let first = [
                    named("bos_token", "<s>"),
                    named("pad_token", "<pad>"),
                    named("eos_token", "</s>"),
                    named("unk_token", "<unk>"),
                ];
                let first = first.into_iter().map(|text| (text, 0.0));
                first.chain(rest(3)).chain([mask()]).collect()
            }
            Class::Camembert => {
                let first = [
                    (Cow::from("<s>NOTUSED"), 0.0),
                    (named("pad_token", "<pad>"), 0.0),
                    (Cow::from("</s>NOTUSED"), 0.0),
                    (named("unk_token", "<unk>"), 0.0),
                    (Cow::from("<unk>NOTUSED"), -100.0),
                ];
                first.into_iter().chain(rest(1)).chain([mask()]).collect()
            }
            Class::T5 => {
                let ids = (0..extra_ids(keys)?).rev();
                let ids = ids.map(|i| (Cow::from(format!("<extra_id_{i}>")), 0.0));
                rest(0).chain(ids).collect()
            }
            _ => rest(0).collect(),
        };
        let unknown = self.token("unk_token");
        let position = vocab.iter().position(|(text, _)| Some(&**text) == unknown);
        let of_file = usize::try_from(model.unk.id).ok();
        let unk_id = match self.class {
            Class::Backend => of_file,
            class => class.unigram_unknown(position),
        };
        let Some(unk_id) = unk_id.filter(|id| *id < vocab.len()) else {
            let (found, n) = (model.unk.id, vocab.len());
            return Err(bad(
                FILE,
                format!("unk_id: expected the id of one of {n} tokens, found {found}: {REMEDY}"),
            ));
        };
        Ok(Model::Unigram {
            unk_id,
            byte_fallback: model.byte_fallback && self.class == Class::Backend,
            vocab,
        })
    }
}

/// The texts of BPE tokens by their ids, some of which get other names; `None` for an id whose text
/// a later id has too. A name that a piece keeps is not given to another one.
fn renamed<'a>(
    pieces: &'a [Piece],
    names: &HashMap<usize, &'a str>,
) -> Result<Vec<Option<&'a str>>, TextError> {
    let mut ids: HashMap<&str, usize> = HashMap::with_capacity(pieces.len());
    for (id, piece) in pieces.iter().enumerate() {
        if let Some(first) = ids.insert(&piece.text, id) {
            return Err(bad(
                FILE,
                format!(
                    "expected pieces with different texts, found {:.100?} as {first} and {id}: \
                     {REMEDY}",
                    piece.text
                ),
            ));
        }
    }
    let is_kept = |name: &str| ids.get(name).is_some_and(|id| !names.contains_key(id));
    let new_text = |(id, piece): (usize, &'a Piece)| match names.get(&id) {
        Some(name) if !is_kept(name) => *name,
        _ => &*piece.text,
    };
    let mut texts: Vec<Option<&str>> = pieces.iter().enumerate().map(new_text).map(Some).collect();
    let mut later = HashSet::with_capacity(texts.len());
    for text in texts.iter_mut().rev() {
        if text.is_some_and(|text| !later.insert(text)) {
            *text = None;
        }
    }
    Ok(texts)
}

/// The two parts of a text, divided after each character.
fn halves(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let places = text.char_indices().skip(1);
    places.map(|(at, _)| text.split_at(at))
}

/// The merges of all tokens, in the order of the ids of what they make.
fn merges_by_id<'a>(
    texts: &[Option<&'a str>],
    held: &mut Reservation,
) -> Result<Vec<Pair<'a>>, TextError> {
    let known: HashSet<&str> = texts.iter().copied().flatten().collect();
    let are_known = |(left, right): &(&str, &str)| known.contains(left) && known.contains(right);
    let (mut merges, mut n_held) = (Vec::new(), 0);
    for text in texts.iter().copied().flatten() {
        hold_merges(merges.len(), &mut n_held, held)?;
        merges.extend(halves(text).filter(are_known));
    }
    Ok(merges)
}

/// Reserves the memory of merges in steps, for as many as the next text may add.
fn hold_merges(n: usize, n_held: &mut usize, held: &mut Reservation) -> Result<(), TextError> {
    const STEP: usize = guard::MAX_TOKEN_BYTES;
    /// In a list that grows, and in the list of the document.
    const OF_MERGE: usize = 3 * size_of::<(f32, u32, Pair<'_>)>() + size_of::<Pair<'_>>();
    while n + STEP > *n_held {
        held.grow(STEP * OF_MERGE, || of_file("the merges"))?;
        *n_held += STEP;
    }
    Ok(())
}

/// The merges of normal pieces, in the order of the scores of what they make.
fn ranked_merges<'a>(
    pieces: &[Piece],
    texts: &[Option<&'a str>],
    held: &mut Reservation,
) -> Result<Vec<Pair<'a>>, TextError> {
    let normal = pieces
        .iter()
        .zip(texts)
        .zip(0u32..)
        .filter_map(|((piece, text), id)| {
            let rank = (piece.score, id);
            (piece.kind == PieceKind::Normal).then_some(((*text)?, rank))
        });
    let normal: Vec<(&str, (f32, u32))> = normal.collect();
    let known: HashSet<&str> = normal.iter().map(|(text, _)| *text).collect();
    let (mut ranked, mut n_held) = (Vec::new(), 0);
    for (text, (score, id)) in &normal {
        let parts =
            halves(text).filter(|(left, right)| known.contains(left) && known.contains(right));
        // Python compares -0.0 and 0.0 as equal.
        hold_merges(ranked.len(), &mut n_held, held)?;
        ranked.extend(parts.map(|pair| (-score + 0.0, *id, pair)));
    }
    ranked.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
    Ok(ranked.into_iter().map(|(.., pair)| pair).collect())
}

impl SentencePiece {
    fn precompiled(&self) -> Value {
        json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(&self.charsmap)})
    }

    /// The steps of SentencePiece, in its order.
    fn normalizer(&self, is_legacy: bool) -> Value {
        let regex = |(pattern, content)| replace(json!({"Regex": pattern}), content);
        let mut steps = Vec::new();
        if !self.charsmap.is_empty() {
            steps.push(self.precompiled());
        }
        if self.remove_extra_whitespaces {
            steps.extend([regex(TRIM), regex(ONE_SPACE)]);
        }
        if self.escape_whitespaces {
            steps.push(replace(json!({"String": " "}), "\u{2581}"));
        }
        if self.add_dummy_prefix && is_legacy {
            // The pre-tokenizer puts no space before one, and SentencePiece does.
            steps.push(regex(DOUBLE_FIRST));
        }
        json!({"type": "Sequence", "normalizers": steps})
    }

    /// Puts a space first, and isolates the symbols, the longest first.
    fn pre_tokenizer(&self, is_legacy: bool, symbols: &[&str]) -> Result<Value, TextError> {
        let mut steps = Vec::new();
        if self.add_dummy_prefix {
            let scheme = if is_legacy { "always" } else { "first" };
            steps.push(metaspace(scheme, false));
        }
        if !symbols.is_empty() {
            let mut symbols = symbols.to_vec();
            symbols.sort_by_key(|symbol| Reverse(symbol.chars().count()));
            let patterns: Vec<String> = symbols.into_iter().map(guard::literal).collect();
            let pattern = patterns.join("|");
            if pattern.len() > guard::MAX_LITERALS_BYTES {
                let (most, found) = (guard::MAX_LITERALS_BYTES, pattern.len());
                return Err(bad(
                    FILE,
                    format!(
                        "the user-defined pieces together: expected at most {most} bytes, found \
                         {found}: {REMEDY}"
                    ),
                ));
            }
            steps.push(split(&pattern));
        }
        if steps.is_empty() {
            return Ok(Value::Null);
        }
        Ok(sequence(steps))
    }

    fn decoder(&self) -> Value {
        let mut steps = vec![replace(json!({"String": "\u{2581}"}), " ")];
        if self.byte_fallback {
            steps.push(json!({"type": "ByteFallback"}));
        }
        if self.add_dummy_prefix || self.byte_fallback {
            steps.push(json!({"type": "Fuse"}));
        }
        if self.add_dummy_prefix {
            steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        json!({"type": "Sequence", "decoders": steps})
    }
}

fn replace(pattern: Value, content: &str) -> Value {
    json!({"type": "Replace", "pattern": pattern, "content": content})
}

/// The text of a key of a token, as Python's `str` has it.
fn text_of(value: Option<&Value>, usual: &str) -> String {
    match value {
        None => usual.to_owned(),
        Some(value) => {
            let text = value.as_str().or_else(|| value["content"].as_str());
            text.unwrap_or("None").to_owned()
        }
    }
}
