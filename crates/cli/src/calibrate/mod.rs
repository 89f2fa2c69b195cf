//! `--calibrate`: the form of a decoder for the Neural Engine, as far as a text decides it.

mod text;

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};

use thane_cpu::Cpu;
use thane_engine::text::EncodeOptions;
use thane_models::{AneDecoder, NormForm};
use thane_runtime::{
    Activations, Calibration, LanguageModel, LanguageOptions, Model, RuntimeError, Task,
    activations, activations_as_built, activations_of_embedder, calibrate,
};

use crate::app::App;
use crate::exit::{Failure, other, usage};
use crate::model::{self, NumericsFlag};
use text::{own, pieces_of, read_start};

/// Pieces of a text that are computed, each from the start of the cache.
const MOST_PIECES: usize = 32;

/// Tokens of a piece that are computed.
const PIECE_TOKENS: usize = 64;

/// The values of `--calibrate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Calibrate {
    /// No text.
    Nothing,
    File(PathBuf),
}

/// The parser of `--calibrate`.
pub fn calibrate_flag(text: &str) -> Result<Calibrate, Infallible> {
    Ok(match text {
        "none" => Calibrate::Nothing,
        path => Calibrate::File(path.into()),
    })
}

/// The form with the divisor of the residual stream and the form of norms that `text` calls for,
/// where the flags leave them open. `pins_norm` says whether a flag gives the form of norms.
///
/// Without a text, one of this program decides the divisor alone: whether squares fit depends more
/// on what users will give the model. Where it cannot be computed, the divisor of the family stays.
pub fn calibrated(
    (ane, pins_norm): (AneDecoder, bool),
    (name, text): (&str, Option<&Calibrate>),
    app: &App,
) -> Result<AneDecoder, Failure> {
    let path = match text {
        None => None,
        Some(Calibrate::Nothing) => return Ok(ane),
        Some(Calibrate::File(path)) => Some(path),
    };
    let Some(path) = path else {
        if ane.residual_divisor.is_some() {
            return Ok(ane);
        }
        return Ok(match computed(name, &own(MOST_PIECES), app) {
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
    let found =
        computed(name, &pieces_of(&text, MOST_PIECES), app).map_err(|fault| match fault {
            Fault::Short(n) => too_short(path, n),
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

/// How large the inputs of products are while the model named `name` reads pieces of a text.
///
/// Without a text it is one of this program; where that cannot be computed, all count alike.
pub fn weighed(
    name: &str,
    text: Option<&Calibrate>,
    app: &App,
) -> Result<Option<Activations>, Failure> {
    weighed_by(text, app, |pieces| {
        computed_by(name, pieces, true, app, |portable, pieces, cpu| {
            activations(portable, pieces, cpu).map_err(other)
        })
    })
}

/// As [`weighed`], of an embedding model.
pub fn weighed_embedder(
    name: &str,
    text: Option<&Calibrate>,
    app: &App,
) -> Result<Option<Activations>, Failure> {
    let found = weighed_by(text, app, |pieces| {
        app.output.busy("calibrating");
        let found = computed_as_built(name, pieces, app);
        app.output.clear();
        found
    });
    Ok(found?.map(Activations::of_another_form))
}

/// As [`weighed`], of a package or a folder of the packages of a model, in the form that it has.
pub fn weighed_package(
    path: &Path,
    text: Option<&Calibrate>,
    app: &App,
) -> Result<Option<Activations>, Failure> {
    weighed_by(text, app, |pieces| {
        app.output.busy("calibrating");
        let found = computed_as_built(&path.to_string_lossy(), pieces, app);
        app.output.clear();
        found
    })
}

/// As [`weighed_package`], of a language model in the form that it was built in. What cannot be
/// computed is an error.
pub fn weighed_model(
    model: &LanguageModel,
    text: Option<&Calibrate>,
    app: &App,
) -> Result<Activations, Failure> {
    let compute = |pieces: &[&str]| {
        let tokens = tokens_of(model, pieces, app)?;
        app.output.busy("calibrating");
        let cpu = model::cpu(NumericsFlag::F32, None, app);
        let found = activations_as_built(model, &tokens, &cpu);
        app.output.clear();
        known(found)
    };
    let file = match text {
        Some(Calibrate::File(path)) => Some(path),
        Some(Calibrate::Nothing) | None => None,
    };
    let found = match file {
        None => compute(&own(MOST_PIECES)),
        Some(path) => {
            let text = read_start(path).map_err(usage)?;
            compute(&pieces_of(&text, MOST_PIECES))
        }
    };
    found.map_err(|fault| match (fault, file) {
        (Fault::Other(failure), _) => failure,
        (Fault::Short(n), Some(path)) => too_short(path, n),
        (fault @ Fault::Short(_), None) => usage!("no text could be computed: {fault}"),
    })
}

/// The activations, or the reason why there are none.
fn known(found: Result<Result<Activations, String>, RuntimeError>) -> Result<Activations, Fault> {
    let found = found.map_err(Failure::from)?;
    found.map_err(|why| Fault::Other(other(anyhow::anyhow!(why))))
}

fn weighed_by(
    text: Option<&Calibrate>,
    app: &App,
    run: impl FnOnce(&[&str]) -> Result<Activations, Fault>,
) -> Result<Option<Activations>, Failure> {
    let path = match text {
        Some(Calibrate::Nothing) => return Ok(None),
        Some(Calibrate::File(path)) => path,
        None => {
            return Ok(match run(&own(MOST_PIECES)) {
                Ok(found) => Some(found),
                Err(fault) => {
                    app.output.say(&format!(
                        "no text could be computed, so errors of all weights count alike: {fault}"
                    ));
                    None
                }
            });
        }
    };
    let text = read_start(path).map_err(usage)?;
    match run(&pieces_of(&text, MOST_PIECES)) {
        Ok(found) => Ok(Some(found)),
        Err(Fault::Short(n)) => Err(too_short(path, n)),
        Err(Fault::Other(failure)) => Err(failure),
    }
}

fn too_short(path: &Path, n: usize) -> Failure {
    usage!(
        "--calibrate: expected a text of two tokens or more, found {n} in {}",
        path.display()
    )
    .remedy("a text as the model will see it, of some 1,000 words")
}

/// The activations of a package, of a folder with the packages of one model, or of a checkpoint,
/// in the form that it has.
fn computed_as_built(name: &str, pieces: &[&str], app: &App) -> Result<Activations, Fault> {
    let files = app.hub.resolve(name);
    let model = Model::from_files(files.map_err(Failure::from)?).map_err(Failure::from)?;
    let cpu = model::cpu(NumericsFlag::F32, None, app);
    let found = match model.task().map_err(Failure::from)? {
        Task::Embed if pieces.is_empty() => return Err(Fault::Short(0)),
        Task::Embed => activations_of_embedder(model, (pieces, PIECE_TOKENS), &cpu),
        Task::Generate => {
            let options = LanguageOptions::default();
            let built = model.language_model(&options, app.output.as_ref());
            let built = built.map_err(Failure::from)?;
            let tokens = tokens_of(&built, pieces, app)?;
            activations_as_built(&built, &tokens, &cpu)
        }
    };
    known(found)
}

/// The range of numbers that the model named `name` computes of pieces of a text.
fn computed(name: &str, pieces: &[&str], app: &App) -> Result<Calibration, Fault> {
    computed_by(name, pieces, false, app, |portable, pieces, cpu| {
        calibrate(portable, pieces, cpu).map_err(other)
    })
}

/// Has `run` compute pieces of a text by the portable form of the model named `name`, with logits
/// for each token if `verify` says so.
fn computed_by<T>(
    name: &str,
    pieces: &[&str],
    verify: bool,
    app: &App,
    run: impl FnOnce(&LanguageModel, &[Vec<u32>], &Cpu) -> Result<T, Failure>,
) -> Result<T, Fault> {
    let portable = Model::from_files(app.hub.resolve(name).map_err(Failure::from)?);
    let options = LanguageOptions {
        context: Some(PIECE_TOKENS),
        verify,
        ..LanguageOptions::default()
    };
    let portable = portable.map_err(Failure::from)?;
    let portable = portable.language_model(&options, app.output.as_ref());
    let portable = portable.map_err(Failure::from)?;
    let tokens = tokens_of(&portable, pieces, app)?;
    app.output.busy("calibrating");
    let cpu = model::cpu(NumericsFlag::F32, None, app);
    let found = run(&portable, &tokens, &cpu);
    app.output.clear();
    Ok(found?)
}

/// The first tokens of each piece, by the tokenizer of a model.
fn tokens_of(model: &LanguageModel, pieces: &[&str], app: &App) -> Result<Vec<Vec<u32>>, Fault> {
    let language = model.language(&app.budget).map_err(Failure::from)?;
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let mut all = Vec::new();
    for piece in pieces {
        let mut tokens = language.tokenizer.encode(piece, options).map_err(usage)?;
        tokens.truncate(PIECE_TOKENS);
        all.push(tokens);
    }
    all.retain(|tokens| !tokens.is_empty());
    match all.iter().map(Vec::len).sum() {
        n @ 0..2 => Err(Fault::Short(n)),
        _ => Ok(all),
    }
}
