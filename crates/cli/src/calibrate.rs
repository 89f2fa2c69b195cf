//! `--calibrate`: the form of a decoder for the Neural Engine, as far as a text decides it.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use thane_cpu::Cpu;
use thane_engine::text::EncodeOptions;
use thane_models::{AneDecoder, NormForm};
use thane_runtime::{
    Activations, Calibration, LanguageModel, LanguageOptions, Model, activations, calibrate,
};

use crate::app::App;
use crate::exit::{Failure, other, usage};
use crate::model::{self, NumericsFlag};
use crate::small::refuse_named_pipe;

/// Tokens of the text that are computed.
const MOST_TOKENS: usize = 256;

/// Bytes of the text that are read: more than so many tokens have.
const MOST_BYTES: u64 = 1 << 16;

/// A text of many kinds, for models that no other text is given for.
const USUAL_TEXT: &str = include_str!("calibration.txt");

/// The form with the divisor of the residual stream and the form of norms that `text` calls for,
/// where the flags leave them open. `pins_norm` says whether a flag gives the form of norms.
///
/// Without a text, one of this program decides the divisor alone: whether squares fit depends more
/// on what users will give the model. Where it cannot be computed, the divisor of the family stays.
pub fn calibrated(
    (ane, pins_norm): (AneDecoder, bool),
    (name, text): (&str, Option<&Path>),
    app: &App,
) -> Result<AneDecoder, Failure> {
    let Some(path) = text else {
        if ane.residual_divisor.is_some() {
            return Ok(ane);
        }
        return Ok(match computed(name, USUAL_TEXT, app) {
            Ok(found) => {
                app.output.say(&format!(
                    "{} (--residual-divisor {})",
                    reached(&found, found.stream_divisor),
                    found.stream_divisor
                ));
                AneDecoder {
                    residual_divisor: Some(found.stream_divisor),
                    ..ane
                }
            }
            Err(fault) => {
                app.output.say(&format!(
                    "no text could be computed, so numbers between layers are divided by what is known \
                     of the architecture (--residual-divisor): {fault}"
                ));
                ane
            }
        });
    };
    let text = read_start(path).map_err(usage)?;
    let found = computed(name, &text, app).map_err(|fault| match fault {
        Fault::Short(n) => usage!(
            "--calibrate: expected a text of two tokens or more, found {n} in {}",
            path.display()
        )
        .remedy("a text as the model will see it, of some 200 words"),
        Fault::Other(failure) => failure,
    })?;
    let divisor = ane.residual_divisor.unwrap_or(found.divisor);
    // A divisor that a flag pins is not the one that norms were judged with.
    let judged = divisor == found.divisor && !pins_norm;
    let norm = if judged { found.norm } else { ane.norm };
    let form = match norm {
        NormForm::Native => "native",
        NormForm::Cat => "cat",
        NormForm::Scaled => "scaled",
    };
    app.output.say(&format!(
        "{} (--residual-divisor {divisor} --norm {form})",
        reached(&found, divisor)
    ));
    if divisor < found.divisor || (norm == NormForm::Native && found.norm == NormForm::Scaled) {
        app.output.say(&format!(
            "this text calls for --residual-divisor {} --norm scaled: with the flags that were \
             given, fp16 may overflow",
            found.divisor
        ));
    }
    Ok(AneDecoder {
        residual_divisor: Some(divisor),
        norm,
        ..ane
    })
}

/// How large numbers become, and what is done so that fp16 holds them.
fn reached(found: &Calibration, divisor: f32) -> String {
    let (largest, n_tokens) = (found.largest, found.n_tokens);
    let reached = format!("numbers between layers reach {largest:.0} in {n_tokens} tokens");
    match divisor == 1.0 {
        true => format!("{reached}: fp16 holds them"),
        false => format!("{reached}: they are divided by {divisor}, so that fp16 holds them"),
    }
}

/// Why a text was not computed.
enum Fault {
    /// It has so few tokens.
    Short(usize),
    Other(Failure),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(n) => write!(f, "the text has {n} tokens"),
            Self::Other(failure) => write!(f, "{}", failure.error()),
        }
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self::Other(failure)
    }
}

/// How large the inputs of products are while the model named `name` reads the start of a text.
///
/// Without a text it is one of this program; where that cannot be computed, all count alike.
pub fn weighed(name: &str, text: Option<&Path>, app: &App) -> Result<Option<Activations>, Failure> {
    let run = |portable: &LanguageModel, tokens: &[u32], cpu: &Cpu| {
        activations(portable, tokens, cpu).map_err(other)
    };
    let Some(path) = text else {
        return Ok(match computed_by(name, USUAL_TEXT, true, app, run) {
            Ok(found) => Some(found),
            Err(fault) => {
                app.output.say(&format!(
                    "no text could be computed, so errors of all weights count alike: {fault}"
                ));
                None
            }
        });
    };
    let text = read_start(path).map_err(usage)?;
    let found = computed_by(name, &text, true, app, run).map_err(|fault| match fault {
        Fault::Short(n) => usage!("expected a text of two tokens or more, found {n}"),
        Fault::Other(failure) => failure,
    });
    found.map(Some)
}

/// What the model named `name` computes of the start of a text.
fn computed(name: &str, text: &str, app: &App) -> Result<Calibration, Fault> {
    computed_by(name, text, false, app, |portable, tokens, cpu| {
        calibrate(portable, tokens, cpu).map_err(other)
    })
}

/// Has `run` compute the start of a text by the portable form of the model named `name`, with
/// logits for each token if `verify` says so.
fn computed_by<T>(
    name: &str,
    text: &str,
    verify: bool,
    app: &App,
    run: impl FnOnce(&LanguageModel, &[u32], &Cpu) -> Result<T, Failure>,
) -> Result<T, Fault> {
    let portable = Model::from_files(app.hub.resolve(name).map_err(Failure::from)?);
    let options = LanguageOptions {
        context: Some(MOST_TOKENS),
        verify,
        ..LanguageOptions::default()
    };
    let portable = portable.map_err(Failure::from)?;
    let portable = portable.language_model(&options, app.output.as_ref());
    let portable = portable.map_err(Failure::from)?;
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let language = portable.language(&app.budget).map_err(Failure::from)?;
    let tokens = language.tokenizer.encode(text, options);
    let mut tokens = tokens.map_err(usage)?;
    tokens.truncate(MOST_TOKENS);
    if tokens.len() < 2 {
        return Err(Fault::Short(tokens.len()));
    }
    app.output.busy("calibrating");
    let cpu = model::cpu(NumericsFlag::F32, None, app);
    let found = run(&portable, &tokens, &cpu);
    app.output.clear();
    Ok(found?)
}

/// The first [`MOST_BYTES`] of a text.
fn read_start(path: &Path) -> anyhow::Result<String> {
    let in_file = || path.display().to_string();
    let mut bytes = Vec::new();
    refuse_named_pipe(path).with_context(in_file)?;
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
