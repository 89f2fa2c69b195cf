//! How answers are generated, as a model's files say.
//!
//! In a folder that is `generation_config.json`, or `config.json` without such a file. Keys and
//! their meaning are those of `GenerationConfig` in transformers 5.24. In GGUF files it is the keys
//! `general.sampling` of llama.cpp. A key that Thane cannot act on gives a note if its value
//! changes answers. Unknown keys are refused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::keys::{Class, GENERATION, Key};
use crate::checkpoint::{
    Checkpoint, Config, ConfigError, Gguf, HuggingFace, Range, Source, as_token_ids, shorten,
};
use crate::error::ModelError;

/// What a model's files say about how its answers are generated. The fields are the keys of
/// `generation_config.json`; the last three are those of GGUF files only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)] // the table in docs/chat.md describes the keys
pub struct Generation {
    pub do_sample: Option<bool>,
    pub temperature: Option<f64>,
    pub top_k: Option<usize>,
    pub top_p: Option<f64>,
    pub min_p: Option<f64>,
    pub top_h: Option<f64>,
    pub typical_p: Option<f64>,
    pub epsilon_cutoff: Option<f64>,
    pub eta_cutoff: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub encoder_repetition_penalty: Option<f64>,
    pub no_repeat_ngram_size: Option<usize>,
    pub encoder_no_repeat_ngram_size: Option<usize>,
    pub bad_words_ids: Vec<Vec<u32>>,
    pub sequence_bias: Vec<(Vec<u32>, f64)>,
    pub suppress_tokens: Vec<u32>,
    pub begin_suppress_tokens: Vec<u32>,
    /// Tokens of the answer that are free of the penalty, and its base.
    pub exponential_decay_length_penalty: Option<(usize, f64)>,
    /// The tokens that this penalty raises.
    pub eos_token_id: Vec<u32>,
    pub min_length: Option<usize>,
    pub min_new_tokens: Option<usize>,
    pub max_length: Option<usize>,
    pub max_new_tokens: Option<usize>,
    pub stop_strings: Vec<String>,
    pub penalty_last_n: Option<i32>,
    pub xtc_probability: Option<f64>,
    pub xtc_threshold: Option<f64>,
}

/// All known keys, which old files have in `config.json`.
pub(crate) fn keys() -> impl Iterator<Item = &'static str> {
    GENERATION.keys.iter().map(|row| row.name)
}

/// What answers are generated with, and notes on keys that are not applied.
type Read = (Generation, Vec<String>);

impl Generation {
    /// What a checkpoint says.
    ///
    /// # Errors
    ///
    /// If a value has the wrong type or range, or a key is unknown.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self, ModelError> {
        read(checkpoint).map(|(generation, _)| generation)
    }
}

/// [`Generation::of`], with notes on keys that are not applied.
pub(crate) fn read(checkpoint: &Checkpoint) -> Result<Read, ModelError> {
    match &checkpoint.source {
        Source::Gguf(gguf) => of_gguf(gguf),
        Source::HuggingFace(folder) => Ok(of_folder(folder)?),
    }
}

fn of_folder(folder: &HuggingFace) -> Result<Read, ConfigError> {
    let mut read = match &folder.generation_config {
        Some(config) => {
            let read = of_config(config)?;
            GENERATION.settle(config)?;
            read
        }
        // As transformers: the text part may have what the whole has not.
        None => {
            let text = folder.config.opt_object("text_config")?;
            let parts: Vec<&Config> = [&folder.config].into_iter().chain(&text).collect();
            of_config(&Config::first_of(&parts, keys()))?
        }
    };
    let (ends, generation) = (folder.eos_token_ids()?, &mut read.0);
    // As transformers: a token that ends the answer may do so.
    let is_end = |word: &Vec<u32>| matches!(word[..], [token] if ends.contains(&token));
    generation.bad_words_ids.retain(|word| !is_end(word));
    if generation.exponential_decay_length_penalty.is_some() {
        generation.eos_token_id = ends;
    }
    Ok(read)
}

/// Reads the keys `general.sampling`. Source: `common_init_sampler_from_model` of llama.cpp's
/// common/common.cpp.
fn of_gguf(gguf: &Gguf) -> Result<Read, ModelError> {
    const PREFIX: &str = "general.sampling.";
    let key = |name: &str| format!("{PREFIX}{name}");
    let float = |name: &str| Ok::<_, ModelError>(gguf.opt_f32(&key(name))?.map(f64::from));
    let generation = Generation {
        temperature: float("temp")?,
        // All tokens, if it is not above 0.
        top_k: gguf
            .opt_i32(&key("top_k"))?
            .map(|k| usize::try_from(k).unwrap_or(0)),
        top_p: float("top_p")?,
        min_p: float("min_p")?,
        repetition_penalty: float("penalty_repeat")?,
        penalty_last_n: gguf.opt_i32(&key("penalty_last_n"))?,
        xtc_probability: float("xtc_probability")?,
        xtc_threshold: float("xtc_threshold")?,
        suppress_tokens: suppressed(gguf)?,
        ..Generation::default()
    };
    let mut notes = Vec::new();
    let note =
        |name: &str, what: &str| format!("{} asks for {what}, which is not applied", key(name));
    if gguf.opt_i32(&key("mirostat"))?.is_some_and(|n| n != 0) {
        notes.push(note("mirostat", "mirostat"));
    }
    if gguf.opt_str(&key("sequence"))?.is_some() {
        notes.push(note("sequence", "an order of samplers"));
    }
    gguf.opt_f32(&key("mirostat_tau"))?;
    gguf.opt_f32(&key("mirostat_eta"))?;
    match gguf.unread(PREFIX) {
        keys if keys.is_empty() => Ok((generation, notes)),
        keys => Err(ModelError::UnknownKeys {
            family: "any",
            keys,
        }),
    }
}

/// The tokens that are never chosen. llama.cpp leaves out the ids that no token has.
fn suppressed(gguf: &Gguf) -> Result<Vec<u32>, ModelError> {
    let Some(ids) = gguf.opt_i32s("tokenizer.ggml.suppress_tokens")? else {
        return Ok(Vec::new());
    };
    let tokens = gguf.opt_byte_strings("tokenizer.ggml.tokens")?;
    let n_tokens = tokens.map_or(0, Iterator::count);
    let ids = ids.into_iter().filter_map(|id| u32::try_from(id).ok());
    Ok(ids.filter(|id| (*id as usize) < n_tokens).collect())
}

fn of_config(c: &Config) -> Result<Read, ConfigError> {
    let number = |key: &str, range: &Range| c.opt_number(key, range);
    let generation = Generation {
        do_sample: c.opt_bool("do_sample")?,
        temperature: number("temperature", &Range::FACTOR_OR_ZERO)?,
        top_k: c.opt_usize("top_k")?,
        top_p: number("top_p", &Range::SHARE)?,
        min_p: number("min_p", &Range::SHARE)?,
        top_h: number("top_h", &Range::SHARE)?,
        typical_p: number("typical_p", &Range::SHARE)?,
        epsilon_cutoff: number("epsilon_cutoff", &Range::SHARE)?,
        eta_cutoff: number("eta_cutoff", &Range::SHARE)?,
        repetition_penalty: number("repetition_penalty", &Range::FACTOR)?,
        encoder_repetition_penalty: number("encoder_repetition_penalty", &Range::FACTOR)?,
        no_repeat_ngram_size: c.opt_usize("no_repeat_ngram_size")?,
        encoder_no_repeat_ngram_size: c.opt_usize("encoder_no_repeat_ngram_size")?,
        bad_words_ids: bad_words(c)?,
        sequence_bias: sequence_bias(c)?,
        suppress_tokens: token_list(c, "suppress_tokens")?,
        begin_suppress_tokens: token_list(c, "begin_suppress_tokens")?,
        exponential_decay_length_penalty: length_penalty(c)?,
        eos_token_id: Vec::new(),
        min_length: c.opt_usize("min_length")?,
        min_new_tokens: c.opt_usize("min_new_tokens")?,
        max_length: c.opt_usize("max_length")?,
        max_new_tokens: c.opt_usize("max_new_tokens")?,
        stop_strings: stop_strings(c)?,
        ..Generation::default()
    };
    c.acknowledge(&["eos_token_id"]);
    Ok((generation, notes(c)))
}

/// Notes on keys that are not applied.
fn notes(c: &Config) -> Vec<String> {
    let note = |row: &Key| {
        let Class::Noted(unless) = row.class else {
            return None;
        };
        let value = c.value(row.name)?;
        let number = value.as_f64();
        if c.says_nothing(row.name) || number.is_some() && number == unless.map(|n| n as f64) {
            return None;
        }
        Some(format!(
            "{} asks for {} ({} {}), which is not applied",
            c.file(),
            row.note,
            row.name,
            shorten(value)
        ))
    };
    GENERATION.keys.iter().filter_map(note).collect()
}

/// Token ids; negative ones, which are those of no token, are left out.
fn token_list(c: &Config, key: &str) -> Result<Vec<u32>, ConfigError> {
    let Some(value) = c.value(key) else {
        return Ok(Vec::new());
    };
    let list = value.as_array().map(|list| {
        let tokens = list
            .iter()
            .filter(|id| id.as_i64().is_none_or(|id| id >= 0));
        as_token_ids(&tokens.cloned().collect())
    });
    list.flatten()
        .ok_or_else(|| c.refused(key, "a list of token ids"))
}

/// Sequences of token ids.
fn bad_words(c: &Config) -> Result<Vec<Vec<u32>>, ConfigError> {
    let key = "bad_words_ids";
    let Some(value) = c.value(key) else {
        return Ok(Vec::new());
    };
    let words = value.as_array().filter(|words| !words.is_empty());
    let words = words.and_then(|words| words.iter().map(sequence).collect());
    words.ok_or_else(|| c.refused(key, "a list of lists of token ids, none of them empty"))
}

/// A sequence of token ids, which is not empty.
fn sequence(value: &Value) -> Option<Vec<u32>> {
    let ids = value.as_array().filter(|ids| !ids.is_empty())?;
    let id = |id: &Value| u32::try_from(id.as_u64()?).ok();
    ids.iter().map(id).collect()
}

/// Biases of sequences; of equal sequences, transformers takes the last.
fn sequence_bias(c: &Config) -> Result<Vec<(Vec<u32>, f64)>, ConfigError> {
    let key = "sequence_bias";
    let Some(value) = c.value(key) else {
        return Ok(Vec::new());
    };
    let pair = |pair: &Value| match pair.as_array()?.as_slice() {
        [ids, bias] => {
            let bias = bias.as_f64().filter(|bias| bias.abs() <= 1e4)?;
            Some((sequence(ids)?, bias))
        }
        _ => None,
    };
    let pairs = value.as_array().filter(|pairs| !pairs.is_empty());
    let pairs = pairs.and_then(|p| p.iter().map(pair).collect::<Option<BTreeMap<_, _>>>());
    let expected = "a list of pairs: token ids, and a number from -10000 to 10000";
    let pairs = pairs.ok_or_else(|| c.refused(key, expected))?;
    Ok(pairs.into_iter().collect())
}

/// The tokens of an answer before the penalty begins, and its base.
fn length_penalty(c: &Config) -> Result<Option<(usize, f64)>, ConfigError> {
    let key = "exponential_decay_length_penalty";
    let pair = c
        .value(key)
        .map(|value| match value.as_array()?.as_slice() {
            [start, factor] => {
                let start = usize::try_from(start.as_u64()?).ok()?;
                let factor = factor.as_f64().filter(|f| Range::FACTOR.holds(*f))?;
                Some((start, factor))
            }
            _ => None,
        });
    let expected = "two numbers: tokens, and a factor above 0";
    let pair = pair.map(|pair| pair.ok_or_else(|| c.refused(key, expected)));
    pair.transpose()
}

/// One text or several.
fn stop_strings(c: &Config) -> Result<Vec<String>, ConfigError> {
    let key = "stop_strings";
    let texts = match c.value(key) {
        Some(Value::String(text)) => vec![text.as_str()],
        _ => c.opt_strs(key)?.unwrap_or_default(),
    };
    match texts.iter().any(|text| text.is_empty()) {
        true => Err(c.refused(key, "texts that are not empty")),
        false => Ok(texts.into_iter().map(str::to_owned).collect()),
    }
}
