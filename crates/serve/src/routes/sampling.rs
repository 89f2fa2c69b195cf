//! The fields of a request that say how tokens are chosen.

use std::collections::BTreeMap;

use thane_engine::sample::{Dry, Mirostat};
use thane_runtime::Sampling;

use crate::answers::Answers;
use crate::body::{Fields, refused};
use crate::error::ApiError;

/// Largest bias of a token, as in OpenAI's API.
const MAX_BIAS: f32 = 100.0;

/// Most texts at which DRY ends a sequence.
const MAX_BREAKERS: usize = 16;

/// Longest text that can end an answer, in bytes. Each token looks for it.
const MAX_STOP_BYTES: usize = 1024;

/// Most texts that can end an answer, apart from OpenAI's API.
const MAX_STOPS: usize = 16;

/// Takes the texts that end an answer; `param` is the whole name of the field.
pub(super) fn take_stops(
    fields: &mut Fields,
    name: &str,
    param: &str,
) -> Result<Vec<String>, ApiError> {
    let stop: Vec<String> = fields.take(name)?.unwrap_or_default();
    check_stops(&stop, param, MAX_STOPS)?;
    if stop.iter().any(String::is_empty) {
        return Err(refused(param, "texts that are not empty", "an empty one"));
    }
    Ok(stop)
}

/// Refuses more than `most` texts that end an answer, and long ones.
pub(super) fn check_stops(stop: &[String], param: &str, most: usize) -> Result<(), ApiError> {
    if stop.len() > most {
        return Err(refused(
            param,
            format_args!("at most {most} texts"),
            stop.len(),
        ));
    }
    let longest = stop.iter().map(String::len).max().unwrap_or(0);
    if longest > MAX_STOP_BYTES {
        let expected = format_args!("texts of at most {MAX_STOP_BYTES} bytes");
        return Err(refused(param, expected, longest));
    }
    Ok(())
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
        other => Err(refused("mirostat", "0 or 2", other)),
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
    let n_breakers = breakers.as_ref().map_or(0, Vec::len);
    if n_breakers > MAX_BREAKERS {
        let expected = format_args!("at most {MAX_BREAKERS} texts");
        return Err(refused("dry_sequence_breakers", expected, n_breakers));
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
        Some(n) => usize::try_from(n)
            .map(Some)
            .map_err(|_| refused(name, "a number of tokens, or -1 for all", n)),
    }
}

fn logit_bias(fields: &mut Fields, answers: &Answers) -> Result<Vec<(u32, f32)>, ApiError> {
    let given: Option<BTreeMap<String, f32>> = fields.take("logit_bias")?;
    let n_vocab = answers.n_vocab;
    let bias = |(id, bias): (String, f32)| {
        let token = id.parse::<u32>().ok();
        // A token has one bias: `01` is no other spelling.
        let token = token.filter(|token| (*token as usize) < n_vocab && token.to_string() == id);
        let token = token.ok_or_else(|| {
            let expected = format_args!("token ids below {n_vocab}");
            refused("logit_bias", expected, format_args!("`{id}`"))
        })?;
        if !(-MAX_BIAS..=MAX_BIAS).contains(&bias) {
            let expected = format_args!("numbers from -{MAX_BIAS} to {MAX_BIAS}");
            return Err(refused("logit_bias", expected, bias));
        }
        Ok((token, bias))
    };
    given.unwrap_or_default().into_iter().map(bias).collect()
}
