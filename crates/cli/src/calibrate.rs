//! `--calibrate`: the form of a decoder for the Neural Engine, as far as a text decides it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use thane_engine::text::EncodeOptions;
use thane_models::{DecoderEngine, NormForm};
use thane_runtime::{LanguageOptions, Model, OverflowOptions, calibrate};

use crate::app::App;
use crate::exit::{Code, Failure};
use crate::model;

/// Tokens of the text that are computed.
const MOST_TOKENS: usize = 256;

/// Bytes of the text that are read: more than so many tokens have.
const MOST_BYTES: u64 = 1 << 16;

/// The form with the divisor of the residual stream and the form of norms that `text` calls for,
/// where the flags leave them open. `pins_norm` says whether a flag gives the form of norms.
pub fn calibrated(
    (engine, pins_norm): (DecoderEngine, bool),
    (name, text): (&str, &Path),
    app: &App,
) -> Result<DecoderEngine, Failure> {
    let bad = |e: anyhow::Error| Failure::new(Code::Usage, e);
    let text_read = read_start(text).map_err(bad)?;
    let portable = Model::from_files(app.hub.resolve(name)?)?;
    let options = LanguageOptions {
        context: Some(MOST_TOKENS),
        ..LanguageOptions::default()
    };
    let portable = portable.language_model(&options, app.output.as_ref())?;
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let tokens = portable.language()?.tokenizer.encode(&text_read, options);
    let mut tokens = tokens.map_err(|e| bad(e.into()))?;
    tokens.truncate(MOST_TOKENS);
    if tokens.len() < 2 {
        let error = anyhow::anyhow!(
            "--calibrate: expected a text of two tokens or more, found {} in {}",
            tokens.len(),
            text.display()
        );
        return Err(bad(error).remedy("a text as the model will see it, of some 200 words"));
    }
    app.output.busy("calibrating");
    let options = OverflowOptions {
        n_threads: model::n_threads(None),
        isa: app.isa,
        budget: app.budget.clone(),
    };
    let found = calibrate(&portable, &tokens, options);
    app.output.clear();
    let found = found.map_err(|e| Failure::new(Code::Other, e))?;
    let divisor = engine.residual_divisor.unwrap_or(found.divisor);
    // A divisor that a flag pins is not the one that norms were judged with.
    let judged = divisor == found.divisor && !pins_norm;
    let norm = if judged { found.norm } else { engine.norm };
    let form = match norm {
        NormForm::Native => "native",
        NormForm::Cat => "cat",
        NormForm::Scaled => "scaled",
    };
    app.output.say(&format!(
        "the residual stream reaches {:.1} in {} tokens: --residual-divisor {divisor} --norm \
         {form}",
        found.largest, found.n_tokens
    ));
    if divisor < found.divisor || (norm == NormForm::Native && found.norm == NormForm::Scaled) {
        app.output.say(&format!(
            "this text calls for --residual-divisor {} --norm scaled: with the flags that were \
             given, fp16 may overflow",
            found.divisor
        ));
    }
    Ok(DecoderEngine {
        residual_divisor: Some(divisor),
        norm,
        ..engine
    })
}

/// The first [`MOST_BYTES`] of a text.
fn read_start(path: &Path) -> anyhow::Result<String> {
    let in_file = || path.display().to_string();
    let mut bytes = Vec::new();
    let mut file = File::open(path).with_context(in_file)?.take(MOST_BYTES);
    file.read_to_end(&mut bytes).with_context(in_file)?;
    if let Err(error) = std::str::from_utf8(&bytes)
        && error.error_len().is_none()
        && bytes.len() as u64 == MOST_BYTES
    {
        // A character goes on beyond what was read.
        bytes.truncate(error.valid_up_to());
    }
    let text = String::from_utf8(bytes).context("expected UTF-8 text");
    text.with_context(in_file)
}
