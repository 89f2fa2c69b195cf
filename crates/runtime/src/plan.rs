//! Plans the form of a model for the Neural Engine: builds the program of each candidate, which
//! reads no weights, and lets `audit` price them.

use thane_audit::place::Backend;
use thane_audit::plan::form::{self, Choice, Goal, Pinned};
use thane_audit::target::{RELEASES, Target};
use thane_calls::{Form, Lookup};
use thane_mil::opset::Opset;
use thane_mil::program::Program;
use thane_models::checkpoint::Checkpoint;
use thane_models::{AneDecoder, Options};

use crate::audited::BuiltDecoder;
use crate::bundle_writer::{BundleOptions, lower_for_ane};
use crate::compress::{CompressOptions, compress_late};
use crate::error::RuntimeError;
use crate::observer::Observer;
use crate::opened::Model;
use crate::passes::in_opset;

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
    /// How weights are compressed; `None` if they are not.
    pub compress: Option<&'a CompressOptions>,
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
            return Err(RuntimeError::OldTarget {
                target: target.described(),
                newer: newer(target),
            });
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
            self.decoder_in(options, form)?
                .subject("", options.compress)
        };
        let asked = (options.decoder.form.clone(), options.pinned);
        form::choose(info.context, asked, (targets, goal), &mut build)
    }

    /// The decoder in a form, built for the context and with what else `options` decide.
    pub fn decoder_in(
        &self,
        options: &PlanOptions<'_>,
        form: &Form,
    ) -> Result<BuiltDecoder, RuntimeError> {
        let ane = AneDecoder {
            form: form.clone(),
            ..options.decoder.clone()
        };
        let options = Options {
            context: options.context,
            ane: Some(ane),
            ..Options::default()
        };
        BuiltDecoder::new(self.checkpoint()?, &options, &())
    }
}

/// The chip of a target with the oldest system that reads several functions.
fn newer(target: &Target) -> String {
    let mut releases = RELEASES.iter();
    let release = releases.find(|release| release.opset == Opset::CoreMl8);
    let release = release.unwrap_or(target.release);
    Target { release, ..*target }.name()
}

/// The program of an embedding model with its predicted price.
#[derive(Clone, Debug)]
pub struct PricedEncoder {
    /// Who looks up the rows of embeddings.
    pub lookup: Lookup,
    /// Milliseconds of a call of each length, all together.
    pub total_ms: f64,
    /// The function of the longest length.
    pub function: String,
    /// Milliseconds of its call.
    pub ms: f64,
    /// Its ops; constants do not count.
    pub ops: usize,
    /// How many of them run on the Neural Engine.
    pub ane_ops: usize,
    /// The kinds of the others in the order of their first ops, with their numbers.
    pub elsewhere: Vec<(&'static str, usize)>,
}

/// Prices an embedding model with each of these ways to look up rows, for each target: first the
/// way whose time over the best of a target is smallest where it is greatest; of equal ones, the
/// first.
pub fn price_lookups(
    checkpoint: &Checkpoint,
    options: &BundleOptions,
    lookups: &[Lookup],
    targets: &[Target],
    observer: &dyn Observer,
) -> Result<Vec<Vec<PricedEncoder>>, RuntimeError> {
    let price = |lookup: &Lookup| {
        observer.step(&format!("pricing tables: {}", lookup.name()));
        let options = BundleOptions {
            lookup: *lookup,
            flexible: false,
            ..options.clone()
        };
        let program = in_opset(
            &lower_for_ane(checkpoint, &options, observer)?.program,
            None,
        )?;
        let program = match &options.compress {
            Some(compress) => compress_late(&program, &[], compress)?.program,
            None => program,
        };
        let prices = targets
            .iter()
            .map(|target| priced(&program, *lookup, target));
        Ok(prices.collect())
    };
    let ways = lookups.iter().map(price);
    let mut ways: Vec<Vec<PricedEncoder>> = ways.collect::<Result<_, RuntimeError>>()?;
    let least = |at: usize| {
        ways.iter()
            .map(|way| way[at].total_ms)
            .fold(f64::MAX, f64::min)
    };
    let least: Vec<f64> = (0..targets.len()).map(least).collect();
    let worst = |way: &[PricedEncoder]| {
        let ratios = way.iter().zip(&least);
        ratios.fold(0.0, |most, (priced, least)| {
            f64::max(most, priced.total_ms / least)
        })
    };
    ways.sort_by(|a, b| worst(a).total_cmp(&worst(b)));
    Ok(ways)
}

/// The predicted milliseconds of a call of each of these lengths, which are in rising order.
pub fn price_lengths(
    checkpoint: &Checkpoint,
    options: &BundleOptions,
    lengths: &[usize],
    target: &Target,
    observer: &dyn Observer,
) -> Result<Vec<f64>, RuntimeError> {
    /// Functions that are built at once.
    const MOST: usize = 16;
    let mut all = Vec::new();
    for buckets in lengths.chunks(MOST) {
        observer.step(&format!("pricing length {}", buckets[0]));
        let options = BundleOptions {
            buckets: buckets.to_vec(),
            flexible: false,
            ..options.clone()
        };
        let program = in_opset(&lower_for_ane(checkpoint, &options, &())?.program, None)?;
        let audit = thane_audit::audit(&program, target);
        all.extend(audit.functions.iter().map(|f| f.latency.ms));
    }
    Ok(all)
}

fn priced(program: &Program, lookup: Lookup, target: &Target) -> PricedEncoder {
    let audit = thane_audit::audit(program, target);
    let mut priced = PricedEncoder {
        lookup,
        total_ms: audit.functions.iter().map(|f| f.latency.ms).sum(),
        function: String::new(),
        ms: 0.0,
        ops: 0,
        ane_ops: 0,
        elsewhere: Vec::new(),
    };
    // Functions are in the order of their lengths.
    if let (Some(f), Some(last)) = (program.functions().last(), audit.functions.last()) {
        let off = last.placement.ops.iter();
        for op in off.filter(|op| op.chosen != Backend::Ane) {
            let kind = f.op(op.op).def.name;
            match priced
                .elsewhere
                .iter_mut()
                .find(|(known, _)| *known == kind)
            {
                Some((_, n)) => *n += 1,
                None => priced.elsewhere.push((kind, 1)),
            }
        }
        priced.function.clone_from(&last.name);
        priced.ms = last.latency.ms;
        priced.ops = last.placement.ops.len();
        priced.ane_ops = last.placement.n_ane_ops();
    }
    priced
}
