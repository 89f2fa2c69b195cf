//! Plans the form of a decoder for the Neural Engine: builds the program of each candidate, which
//! reads no weights, and lets `audit` price them and choose.

use thane_audit::plan::form::{self, Built, Choice, Goal, Pinned};
use thane_audit::target::Target;
use thane_calls::{Form, Head};
use thane_mil::opset::Opset;
use thane_models::checkpoint::Checkpoint;
use thane_models::{AneDecoder, Options};

use crate::error::RuntimeError;
use crate::observer::Observer;
use crate::opened::Model;
use crate::passes::compile;

/// How a form is chosen.
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions<'a> {
    /// Tokens that the cache holds; `None` for the model's own limit, at most 8192.
    pub context: Option<usize>,
    /// The decoder to begin with. Of its form, what is pinned stays.
    pub decoder: &'a AneDecoder,
    /// What of the form is decided.
    pub pinned: Pinned,
    /// The chip, the system and the way in which programs are called there.
    pub target: &'a Target,
    /// What it is chosen for.
    pub goal: Goal,
}

impl Model {
    /// Chooses the form of a checkpoint by its predicted price.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::OldTarget`] if the target cannot load such programs,
    /// [`RuntimeError::ExpectedCheckpoint`] if this is none, and errors of a model that can have
    /// none of the forms.
    pub fn plan(
        &self,
        options: &PlanOptions<'_>,
        observer: &dyn Observer,
    ) -> Result<Choice, RuntimeError> {
        let (target, goal) = (options.target, options.goal);
        if target.release.opset < Opset::CoreMl8 {
            return Err(RuntimeError::OldTarget(target.to_string()));
        }
        let checkpoint = self.checkpoint()?;
        // A context that the model cannot have is an error of the first build.
        let portable = Options {
            context: options.context,
            ..Options::default()
        };
        let failed = |e| RuntimeError::model(&checkpoint.path, e);
        let info = thane_models::build(checkpoint, &portable)
            .map_err(failed)?
            .info;
        let mut n_tried = 0;
        let mut build = |form: &Form| {
            n_tried += 1;
            observer.step(&format!("pricing form {n_tried}: {form}"));
            built(checkpoint, options, form)
        };
        let asked = (options.decoder.form.clone(), options.pinned);
        form::choose(info.context, asked, (target, goal), &mut build)
    }
}

/// The program of a form.
fn built(
    checkpoint: &Checkpoint,
    options: &PlanOptions<'_>,
    form: &Form,
) -> Result<Built, RuntimeError> {
    let path = &checkpoint.path;
    let options = Options {
        context: options.context,
        ane: Some(AneDecoder {
            form: form.clone(),
            ..options.decoder.clone()
        }),
        ..Options::default()
    };
    let made = thane_models::build(checkpoint, &options);
    let made = made.map_err(|e| RuntimeError::model(path, e))?;
    let fixed = made.info.fixed;
    let matrix = fixed.as_ref().and_then(|fixed| match &fixed.head {
        Head::Host(head) => made.tables.iter().find(|table| table.input == head.matrix),
        Head::Logits | Head::Greatest(_) => None,
    });
    Ok(Built {
        host_bytes: matrix.map_or(0.0, |table| table.data.byte_len() as f64),
        calls: fixed.map(|fixed| fixed.calls).unwrap_or_default(),
        program: compile(made.program, path, &())?,
    })
}
