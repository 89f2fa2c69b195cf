//! Plans the form of a decoder for the Neural Engine: builds the program of each candidate, which
//! reads no weights, and lets `audit` price them and choose.

use thane_audit::plan::form::{self, Choice, Goal, Pinned};
use thane_audit::report::Subject;
use thane_audit::target::Target;
use thane_calls::Form;
use thane_mil::opset::Opset;
use thane_models::checkpoint::Checkpoint;
use thane_models::{AneDecoder, Options};

use crate::audited::decoder_subject;
use crate::error::RuntimeError;
use crate::observer::Observer;
use crate::opened::Model;

/// How a form is chosen.
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions<'a> {
    /// Tokens that the cache holds; `None` for the model's own limit, at most 8192.
    pub context: Option<usize>,
    /// The decoder to begin with. Of its form, what is pinned stays.
    pub decoder: &'a AneDecoder,
    /// What of the form is decided.
    pub pinned: Pinned,
    /// The chips, the systems and the way in which programs are called there.
    pub targets: &'a [Target],
    /// What it is chosen for.
    pub goal: Goal,
}

impl Model {
    /// Chooses the form of a checkpoint by its predicted price: one form, and what it costs on each
    /// target.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::OldTarget`] if a target cannot load such programs,
    /// [`RuntimeError::ExpectedCheckpoint`] if this is none, and errors of a model that can have
    /// none of the forms.
    pub fn plan(
        &self,
        options: &PlanOptions<'_>,
        observer: &dyn Observer,
    ) -> Result<Vec<Choice>, RuntimeError> {
        let (targets, goal) = (options.targets, options.goal);
        let is_old = |target: &&Target| target.release.opset < Opset::CoreMl8;
        if let Some(target) = targets.iter().find(is_old) {
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
        form::choose(info.context, asked, (targets, goal), &mut build)
    }
}

/// The packages of a form.
fn built(
    checkpoint: &Checkpoint,
    options: &PlanOptions<'_>,
    form: &Form,
) -> Result<Subject, RuntimeError> {
    let options = Options {
        context: options.context,
        ane: Some(AneDecoder {
            form: form.clone(),
            ..options.decoder.clone()
        }),
        ..Options::default()
    };
    Ok(decoder_subject("", checkpoint, &options, &())?.0)
}
