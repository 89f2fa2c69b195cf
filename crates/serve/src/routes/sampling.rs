//! The fields of a request that say how tokens are chosen.

use std::collections::BTreeMap;

use thane_engine::sample::{Dry, Mirostat};
use thane_runtime::Sampling;

use crate::answers::Answers;
use crate::body::Fields;
use crate::error::ApiError;

/// Largest bias of a token, as in OpenAI's API.
const MAX_BIAS: f32 = 100.0;

/// Most texts at which DRY ends a sequence.
const MAX_BREAKERS: usize = 16;

/// Longest text that can end an answer, in bytes. Each token looks for it.
const MAX_STOP_BYTES: usize = 1024;

/// Refuses more than `most` texts that end an answer, and long ones.
pub(super) fn check_stops(stop: &[String], param: &str, most: usize) -> Result<(), ApiError> {
    let refused = |expected: String, found: usize| {
        let message = format!("`{param}`: expected {expected}, found {found}");
        Err(ApiError::field(param, message))
    };
    if stop.len() > most {
        return refused(format!("at most {most} texts"), stop.len());
    }
    match stop.iter().map(String::len).max() {
        Some(n) if n > MAX_STOP_BYTES => {
            refused(format!("texts of at most {MAX_STOP_BYTES} bytes"), n)
        }
        _ => Ok(()),
    }
}

/// Takes the sampling fields. Without a seed, each request has another.
pub(super) fn take(
    fields: &mut Fields,
    answers: &Answers,
    number: u64,
) -> Result<Sampling, ApiError> {
    let seed: Option<i64> = fields.take("seed")?;
    Ok(Sampling {
        temperature: fields.take("temperature")?,
        top_k: fields.take("top_k")?,
        top_p: fields.take("top_p")?,
        min_p: fields.take("min_p")?,
        typical_p: fields.take("typical_p")?,
        xtc_probability: fields.take("xtc_probability")?,
        xtc_threshold: fields.take("xtc_threshold")?,
        mirostat: mirostat(fields)?,
        dry: dry(fields, answers)?,
        logit_bias: logit_bias(fields, answers)?,
        repetition_penalty: fields.take("repetition_penalty")?,
        presence_penalty: fields.take("presence_penalty")?.unwrap_or(0.0),
        frequency_penalty: fields.take("frequency_penalty")?.unwrap_or(0.0),
        repeat_last_n: last_n(fields, "repeat_last_n")?,
        seed: seed.map_or(number, i64::cast_unsigned),
    })
}

/// `mirostat` is 0 or 2.
fn mirostat(fields: &mut Fields) -> Result<Option<Mirostat>, ApiError> {
    let default = Mirostat::default();
    let version: u32 = fields.take("mirostat")?.unwrap_or(0);
    let mirostat = Mirostat {
        tau: fields.take("mirostat_tau")?.unwrap_or(default.tau),
        eta: fields.take("mirostat_eta")?.unwrap_or(default.eta),
    };
    match version {
        0 => Ok(None),
        2 => Ok(Some(mirostat)),
        other => {
            let message = format!("`mirostat`: expected 0 or 2, found {other}");
            Err(ApiError::field("mirostat", message))
        }
    }
}

fn dry(fields: &mut Fields, answers: &Answers) -> Result<Dry, ApiError> {
    let default = Dry::default();
    let breakers: Option<Vec<String>> = fields.take("dry_sequence_breakers")?;
    let mut dry = Dry {
        multiplier: fields.take("dry_multiplier")?.unwrap_or(default.multiplier),
        base: fields.take("dry_base")?.unwrap_or(default.base),
        allowed_length: fields
            .take("dry_allowed_length")?
            .unwrap_or(default.allowed_length),
        last_n: last_n(fields, "dry_penalty_last_n")?.filter(|n| *n != usize::MAX),
        breakers: Vec::new(),
    };
    if let Some(n) = breakers
        .as_ref()
        .map(Vec::len)
        .filter(|n| *n > MAX_BREAKERS)
    {
        let message =
            format!("`dry_sequence_breakers`: expected at most {MAX_BREAKERS} texts, found {n}");
        return Err(ApiError::field("dry_sequence_breakers", message));
    }
    if dry.multiplier != 0.0 {
        let usual = || ["\n", ":", "\"", "*"].map(str::to_owned).to_vec();
        let breakers = breakers.unwrap_or_else(usual);
        dry.breakers = answers.prompts.tokenizer().ids_containing(&breakers);
    }
    Ok(dry)
}

/// A number of tokens; -1, which stands for all, is `usize::MAX`.
fn last_n(fields: &mut Fields, name: &str) -> Result<Option<usize>, ApiError> {
    match fields.take::<i64>(name)? {
        None => Ok(None),
        Some(-1) => Ok(Some(usize::MAX)),
        Some(n) => usize::try_from(n).map(Some).map_err(|_| {
            let message =
                format!("`{name}`: expected a number of tokens, or -1 for all, found {n}");
            ApiError::field(name, message)
        }),
    }
}

fn logit_bias(fields: &mut Fields, answers: &Answers) -> Result<Vec<(u32, f32)>, ApiError> {
    let given: Option<BTreeMap<String, f32>> = fields.take("logit_bias")?;
    let n_vocab = answers.n_vocab;
    let bias = |(id, bias): (String, f32)| {
        let refused = |expected: String, found: String| {
            let message = format!("`logit_bias`: expected {expected}, found {found}");
            ApiError::field("logit_bias", message)
        };
        let token = id.parse::<u32>().ok();
        // A token has one bias: `01` is no other spelling.
        let token = token.filter(|token| (*token as usize) < n_vocab && token.to_string() == id);
        let token = token
            .ok_or_else(|| refused(format!("token ids below {n_vocab}"), format!("`{id}`")))?;
        if !(-MAX_BIAS..=MAX_BIAS).contains(&bias) {
            let expected = format!("numbers from -{MAX_BIAS} to {MAX_BIAS}");
            return Err(refused(expected, bias.to_string()));
        }
        Ok((token, bias))
    };
    given.unwrap_or_default().into_iter().map(bias).collect()
}
