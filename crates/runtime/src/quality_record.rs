//! Stores the quality of a package in its contract, or in the manifest of a folder of packages, and
//! computes the logits by which `thane verify` checks a language model on another machine.

use std::path::Path;

use thane_engine::quality::{coarse_divergence, greatest};
use thane_engine::sample::log_sum_exp;
use thane_engine::text::{EncodeOptions, Tokenizer};

use crate::error::{RuntimeError, Task};
use crate::golden::TEXTS;
use crate::manifest::{read_manifest, replace_manifest};
use crate::package_contents::{contract_of, replace_contract};
use crate::recorded::{GoldenLogits, Quality};
use crate::scorer::Scorer;

/// Tokens of a golden: they have nearly all of the probability, and all together take some
/// kilobytes.
const N_TOP: usize = 32;

/// What was recorded of the package or folder of packages at `path`; `None` if nothing was.
///
/// # Errors
///
/// If the contract or manifest cannot be read.
pub fn recorded_quality(path: &Path) -> Result<Option<Quality>, RuntimeError> {
    if let Some(manifest) = read_manifest(path)? {
        return Ok(manifest.quality);
    }
    Ok(contract_of(path)?.and_then(|contract| contract.quality))
}

/// Refuses what has no place for a record: checkpoints, and packages that Thane did not write.
///
/// # Errors
///
/// [`RuntimeError::NoContract`], or if the contract or manifest cannot be read.
pub fn check_record(path: &Path, task: Task) -> Result<(), RuntimeError> {
    if read_manifest(path)?.is_some() || contract_of(path)?.is_some() {
        return Ok(());
    }
    Err(RuntimeError::NoContract {
        path: path.to_owned(),
        task,
    })
}

/// Stores what was measured of the package or folder of packages at `path`, in the place of an
/// earlier record. The file that holds it is replaced when the new one is complete.
///
/// # Errors
///
/// If the contract or manifest cannot be read or written.
pub fn record_quality(path: &Path, quality: Quality) -> Result<(), RuntimeError> {
    let written = match (read_manifest(path)?, contract_of(path)?) {
        (Some(mut manifest), _) => {
            manifest.quality = Some(quality);
            replace_manifest(path, &manifest)
        }
        (None, Some(mut contract)) => {
            contract.quality = Some(quality);
            replace_contract(path, &contract)
        }
        (None, None) => return check_record(path, Task::Generate),
    };
    written.map_err(RuntimeError::write(path))
}

/// The golden logits of a package beside its reference. Texts that a context does not hold, or that
/// have no tokens, are left out.
///
/// # Errors
///
/// If a program fails, or gives logits that are no numbers.
pub fn golden_logits(
    model: &mut Scorer,
    reference: &mut Scorer,
    tokenizer: &Tokenizer,
) -> Result<Vec<GoldenLogits>, RuntimeError> {
    let mut goldens = Vec::new();
    for text in TEXTS {
        let rows = row_of(reference, tokenizer, text)?.zip(row_of(model, tokenizer, text)?);
        let Some((row, own)) = rows else {
            continue;
        };
        let sum = log_sum_exp(&row);
        let tokens = greatest(&row, N_TOP);
        let logprob = |id: &u32| f64::from(row[*id as usize]) - sum;
        let logprobs: Vec<f64> = tokens.iter().map(logprob).collect();
        if !logprobs.iter().all(|x| x.is_finite()) {
            return Err(reference.no_numbers());
        }
        let kl = coarse_divergence(&own, &tokens, &logprobs).filter(|kl| kl.is_finite());
        let golden = GoldenLogits {
            text: text.to_owned(),
            tokens,
            logprobs,
            kl: kl.ok_or_else(|| model.no_numbers())?,
        };
        goldens.push(golden);
    }
    Ok(goldens)
}

/// The KL divergence of what a model says after a known text from what the reference said; infinite
/// if the model cannot take the text, or excludes one of the tokens.
///
/// # Errors
///
/// If the program fails.
pub fn golden_divergence(
    model: &mut Scorer,
    tokenizer: &Tokenizer,
    golden: &GoldenLogits,
) -> Result<f64, RuntimeError> {
    let row = row_of(model, tokenizer, &golden.text)?;
    let kl = row.and_then(|row| coarse_divergence(&row, &golden.tokens, &golden.logprobs));
    Ok(kl.unwrap_or(f64::INFINITY))
}

/// The logits after a text; `None` if it has no tokens, or more than the context holds.
fn row_of(
    model: &mut Scorer,
    tokenizer: &Tokenizer,
    text: &str,
) -> Result<Option<Vec<f32>>, RuntimeError> {
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let ids = tokenizer.encode(text, options)?;
    if ids.is_empty() || ids.len() > model.session.context() {
        return Ok(None);
    }
    model.session.reset();
    Ok(Some(model.last_row(&ids)?))
}
