//! Compresses the weights of a program.
//!
//! ```
//! use std::sync::Arc;
//! use thane_compile::compress::{job::Memory, program::{Compression, Settings}};
//! use thane_mil::text::parse;
//!
//! let row = format!("[{}0]", "0, ".repeat(31));
//! let rows = vec![row; 64].join(", ");
//! let text = format!("program(1.3) {{
//!   func main<ios18>(tensor<fp16, [1, 32]> x) {{
//!     tensor<fp16, [64, 32]> w = const()[val = tensor<fp16, [64, 32]>([{rows}])];
//!     tensor<fp16, [1, 64]> y = linear(x = x, weight = w);
//!   }} -> (y);
//! }}");
//! let program = parse(&text, &|_, _, _| None)?;
//! let compression = Compression::new(&program, Settings::default(), Arc::new(Memory::default()))?;
//! compression.run(2, &|_, _| {})?;
//! let (program, report) = compression.apply(&program)?;
//! let (codes, table, scales) = (64 * 32 / 2, 16 * 2, 64 * 2);
//! assert_eq!(report.rows[0].bytes, codes + table + scales);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use thane_mil::data::DataId;
use thane_mil::edit::{Patch, PatchError};
use thane_mil::graph::Graph;
use thane_mil::literal::Literal;
use thane_mil::opset::Opset;
use thane_mil::program::{Arg, Function, OpId, Program, ValueId};
use thane_mil::types::{DType, TensorType};

use super::activations::{Activations, Quantized};
use super::importance::product;
pub use super::importance::{Importance, Product};
use super::job::{self, Job, NotFinite, Store, Tensor};
use super::report::{Left, Report, Row};
use super::sites::{self, Found};
use super::values::Matrix;
use super::ways::{Ways, relative};
use super::{Encoding, Scale, activations, sample, write};

/// How a program is compressed.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How weights are stored.
    pub encoding: Encoding,
    /// How tables are stored that tokens are looked up in, and what `head` names; `None` for as
    /// other weights are.
    pub tables: Option<Encoding>,
    /// The module of the checkpoint that gives the logits: its errors go into every token's choice.
    pub head: Option<&'static str>,
    /// Where scales of channels stand beside palettes; `None` for behind a product where a sample
    /// of the weights says that they lower the error.
    pub scale: Option<Scale>,
    /// Quantizes the activations of products of compressed weights to 8-bit integers, where
    /// [`Importance::range`] is known.
    pub activations: bool,
    /// Constants of fewer elements stay as they are.
    pub least: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            encoding: Encoding::palette(4),
            tables: None,
            head: None,
            scale: None,
            activations: false,
            least: 2048,
        }
    }
}

/// Why a program cannot be compressed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompressError {
    /// The opset lacks the ops.
    #[error(
        "function `{function}`: expected an opset of {needs} or later for {encoding}, found {found}"
    )]
    Opset {
        /// Name of the function.
        function: String,
        /// The encoding, with where scales stand.
        encoding: String,
        /// The oldest opset that has it.
        needs: &'static str,
        /// The function's own.
        found: &'static str,
    },
    /// A weight is not finite.
    #[error(transparent)]
    NotFinite(#[from] NotFinite),
    /// A weight cannot be written, which is a bug.
    #[error("weight `{name}`: {why}")]
    Write {
        /// Name of the weight.
        name: String,
        /// Why.
        why: String,
    },
    /// A patch cannot be applied, which is a bug.
    #[error("{0}")]
    Patch(#[from] Box<PatchError>),
}

/// The weights of a program and the jobs that compress them.
pub struct Compression {
    pub(super) settings: Settings,
    pub(super) sites: Vec<Site>,
    pub(super) tables: Vec<TableSite>,
    pub(super) left: Vec<Left>,
    pub(super) store: Arc<dyn Store>,
    /// Products whose activations are quantized, by function.
    quantized: Vec<Vec<Quantized>>,
    /// Products whose activations are not, since nothing is known of them.
    n_unknown: usize,
}

/// A weight in one function.
pub(super) struct Site {
    function: usize,
    op: OpId,
    name: String,
    place: String,
    /// What it took before.
    bytes_before: usize,
    pub(super) ways: Ways,
}

/// Rows of a table that no program has.
pub(super) struct TableSite {
    pub(super) name: String,
    pub(super) ways: Ways,
}

/// What uses of one tensor have in common.
type Same = (DataId, DType, Matrix);

impl Compression {
    /// Finds the weights of a program. Nothing is computed yet. Equal tensors are found by their
    /// bytes in `store`, those of other programs too.
    pub fn new(
        program: &Program,
        settings: Settings,
        store: Arc<dyn Store>,
    ) -> Result<Self, CompressError> {
        Self::weighted(program, settings, store, &())
    }

    /// As [`Self::new`], where errors of some inputs count more than those of others.
    pub fn weighted(
        program: &Program,
        settings: Settings,
        store: Arc<dyn Store>,
        importance: &dyn Importance,
    ) -> Result<Self, CompressError> {
        check_opsets(program, &settings)?;
        let mut found: Vec<(usize, Found)> = Vec::new();
        let mut left = Vec::new();
        for (at, f) in program.functions().iter().enumerate() {
            let (weights, others) = sites::find(f);
            for (op, value, reason) in others {
                left.push(left_as_it_is(program, (at, op, value), reason));
            }
            found.extend(weights.into_iter().map(|weight| (at, weight)));
        }
        let uses = uses(program, &found, &settings, importance);
        let mut known: HashMap<Same, Ways> = HashMap::new();
        let mut sites = Vec::with_capacity(found.len());
        let mut activations = Activations::new(program, settings.activations.then_some(importance));
        for (function, weight) in found {
            let f = &program.functions()[function];
            let name = f.value(weight.value).name.clone();
            let key = same(&weight);
            let of = &uses[&key];
            let encoding = of.encoding;
            if let Err(why) = fits(&weight, encoding, &settings) {
                left.push(left_as_it_is(
                    program,
                    (function, weight.op, weight.value),
                    why,
                ));
                continue;
            }
            let settings = Settings {
                encoding,
                ..settings
            };
            let ways = known
                .entry(key)
                .or_insert_with(|| ways(&weight, &name, of, &settings, &store));
            activations.add(function, &weight);
            sites.push(Site {
                function,
                op: weight.op,
                name,
                place: f.op(weight.users[0]).origin.place.to_string(),
                bytes_before: weight.stored.byte_len(),
                ways: ways.clone(),
            });
        }
        // A constant that several functions use is one, whatever the reason in each.
        let mut named = HashSet::new();
        left.retain(|left: &Left| named.insert((left.name.clone(), left.bytes)));
        Ok(Self {
            settings,
            sites,
            tables: Vec::new(),
            left,
            store,
            n_unknown: activations.n_unknown,
            quantized: activations.quantized,
        })
    }

    /// True if there is nothing to compress.
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty() && self.tables.is_empty()
    }

    /// Number of products whose activations are quantized.
    pub fn n_quantized(&self) -> usize {
        self.quantized.iter().map(Vec::len).sum()
    }

    /// The constants that stay as they are.
    pub fn left(&self) -> &[Left] {
        &self.left
    }

    /// The jobs, each once. Where scales stand is decided by then.
    pub fn jobs(&self) -> Result<Vec<Arc<Job>>, CompressError> {
        let mut known = HashSet::new();
        let mut jobs = Vec::new();
        let tables = self.tables.iter().map(|table| &table.ways);
        for ways in self.sites.iter().map(|site| &site.ways).chain(tables) {
            let (_, job, _) = ways.taken()?;
            if known.insert(Arc::as_ptr(job).addr()) {
                jobs.push(Arc::clone(job));
            }
        }
        Ok(jobs)
    }

    /// Decides where scales stand, on `n_threads` threads. A sample of the weights is read.
    pub fn decide(&self, n_threads: usize) {
        let tables = self.tables.iter().map(|table| &table.ways);
        let all: Vec<&Ways> = self
            .sites
            .iter()
            .map(|site| &site.ways)
            .chain(tables)
            .collect();
        each(&all, n_threads, &|ways| {
            // A fault is that of the jobs.
            let _ = ways.taken();
        });
    }

    /// The relative error, estimated from samples of at most `most` tensors on `n_threads` threads.
    ///
    /// # Errors
    ///
    /// A number in a sample that is not finite.
    pub fn sampled_error(&self, most: usize, n_threads: usize) -> Result<f64, CompressError> {
        let jobs = self.jobs()?;
        let step = jobs.len().div_ceil(most.max(1)).max(1);
        let some: Vec<_> = jobs
            .iter()
            .step_by(step)
            .map(|job| (job, OnceLock::new()))
            .collect();
        each(&some, n_threads, &|(job, found)| {
            let _ = found.set(sample::squares(job));
        });
        let mut sums = [0.0; 2];
        for (job, found) in some {
            let Some(squares) = found.into_inner() else {
                continue;
            };
            let [error, energy] = squares?;
            // As much as the whole tensor has, if each weight counts the same.
            let scale = job.n_weights() as f64;
            sums = [sums[0] + scale * error, sums[1] + scale * energy];
        }
        Ok(relative(sums))
    }

    /// Computes all codes on `n_threads` threads. `progress` is told how many weights are done, of
    /// how many.
    pub fn run(
        &self,
        n_threads: usize,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<(), CompressError> {
        self.decide(n_threads);
        let jobs = self.jobs()?;
        let all = jobs.iter().map(|job| job.n_weights()).sum();
        Ok(job::run(&jobs, n_threads, &|done| progress(done, all))?)
    }

    /// The program with compressed weights, and what was done.
    pub fn apply(&self, program: &Program) -> Result<(Program, Report), CompressError> {
        let out = self.written(program)?;
        Ok((out, self.report()?))
    }

    /// The program with compressed weights. Codes that are not computed yet stay so.
    pub fn written(&self, program: &Program) -> Result<Program, CompressError> {
        let mut out = program.clone();
        for (at, f) in program.functions().iter().enumerate() {
            let own: Vec<&Site> = self
                .sites
                .iter()
                .filter(|site| site.function == at)
                .collect();
            let graph = Graph::new(f);
            let (weights, _) = sites::find(f);
            let (mut whole, mut sources) = (Patch::new(), Vec::new());
            for site in own {
                let failed = |why: String| CompressError::Write {
                    name: site.name.clone(),
                    why,
                };
                let weight = weights.iter().find(|weight| weight.op == site.op);
                let weight = weight.ok_or_else(|| failed("it is no weight".to_owned()))?;
                let (scale, job, _) = site.ways.taken()?;
                let patch = write::patch(&graph, weight, scale, job);
                whole.append(patch.map_err(failed)?);
                sources.extend(weight.source);
            }
            let quantized = activations::patch(&graph, &self.quantized[at]);
            whole.append(quantized.map_err(|why| CompressError::Write {
                name: f.name.clone(),
                why,
            })?);
            whole.apply_to(&mut out, at).map_err(Box::new)?;
            without_unused(&mut out, at, &sources)?;
        }
        Ok(out)
    }

    /// What was done, computed now if it is not yet.
    pub fn report(&self) -> Result<Report, CompressError> {
        let mut known = HashSet::new();
        let mut rows = Vec::new();
        let sites = self.sites.iter();
        let sites = sites.map(|site| {
            let names = (site.name.as_str(), site.place.as_str());
            (names, Some(site.bytes_before), &site.ways)
        });
        let tables = self.tables.iter();
        let tables = tables.map(|table| ((table.name.as_str(), ""), None, &table.ways));
        for (names, bytes_before, ways) in sites.chain(tables) {
            let (scale, job, without) = ways.taken()?;
            if !known.insert(Arc::as_ptr(job).addr()) {
                continue;
            }
            let row = row(names, scale, job, without)?;
            rows.push(Row {
                bytes_before: bytes_before.unwrap_or(row.bytes_before),
                ..row
            });
        }
        Ok(Report {
            rows,
            left: self.left.clone(),
            n_quantized: self.n_quantized(),
            n_unknown: self.n_unknown,
        })
    }
}

/// Removes those of a function's constants that nothing uses any more.
fn without_unused(
    program: &mut Program,
    at: usize,
    constants: &[OpId],
) -> Result<(), CompressError> {
    let mut patch = Patch::new();
    let graph = Graph::new(&program.functions()[at]);
    let mut known = HashSet::new();
    for op in constants.iter().filter(|op| known.insert(**op)) {
        let mut results = graph.op(*op).results.iter();
        if results.all(|value| graph.users(*value).is_empty() && !graph.is_output(*value)) {
            patch.remove(*op);
        }
    }
    Ok(patch.apply_to(program, at).map_err(Box::new)?)
}

/// Calls `work` on each item, on `n_threads` threads.
fn each<T: Sync>(items: &[T], n_threads: usize, work: &(dyn Fn(&T) + Sync)) {
    let next = AtomicUsize::new(0);
    let run = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(item);
        }
    };
    std::thread::scope(|scope| {
        (1..n_threads.clamp(1, 64)).for_each(|_| drop(scope.spawn(run)));
        run();
    });
}

fn row(
    (name, place): (&str, &str),
    scale: Scale,
    job: &Arc<Job>,
    error_without_scale: Option<f64>,
) -> Result<Row, CompressError> {
    let made = job.made()?;
    let tensor = job.tensor();
    let n = tensor.matrix.len();
    Ok(Row {
        name: name.to_owned(),
        place: place.to_owned(),
        shape: tensor.matrix.shape.clone(),
        encoding: job.encoding().to_string(),
        scale: scale.name(),
        bits: 8.0 * job.byte_len() as f64 / n.max(1) as f64,
        bytes_before: n * tensor.dtype.bits() / 8,
        bytes: job.byte_len(),
        error: made.relative_error(),
        error_without_scale,
        squares: [made.error, made.energy],
    })
}

impl Settings {
    /// The oldest opset that has the ops; scales stand behind products where that is not settled.
    pub fn oldest_opset(&self) -> Opset {
        let scale = self.scale.unwrap_or(Scale::Behind);
        let tables = self.tables.map(|tables| tables.oldest_opset(scale));
        let own = self.encoding.oldest_opset(scale);
        let oldest = tables.map_or(own, |tables| tables.max(own));
        match self.activations {
            true => oldest.max(Opset::CoreMl7),
            false => oldest,
        }
    }
}

fn check_opsets(program: &Program, settings: &Settings) -> Result<(), CompressError> {
    let needs = settings.oldest_opset();
    match program.functions().iter().find(|f| f.opset < needs) {
        None => Ok(()),
        Some(f) => Err(CompressError::Opset {
            function: f.name.clone(),
            encoding: settings.encoding.to_string(),
            needs: Opset::name(needs),
            found: f.opset.name(),
        }),
    }
}

/// What all uses of a tensor allow, and how it is stored.
struct Uses {
    takes_mul: bool,
    encoding: Encoding,
    importance: Option<Arc<[f32]>>,
}

fn uses(
    program: &Program,
    found: &[(usize, Found)],
    settings: &Settings,
    importance: &dyn Importance,
) -> HashMap<Same, Uses> {
    let mut uses: HashMap<Same, Uses> = HashMap::new();
    for (function, weight) in found {
        let of = uses.entry(same(weight)).or_insert(Uses {
            takes_mul: true,
            encoding: settings.encoding,
            importance: None,
        });
        of.takes_mul &= weight.takes_mul;
        let f = &program.functions()[*function];
        let n_inputs = weight.matrix.shape[weight.matrix.input];
        if of.importance.is_none() {
            let users = weight.users.iter();
            let mut products = users.filter_map(|user| product(f, weight.value, *user));
            of.importance = products.find_map(|product| importance.of(&product, n_inputs));
        }
        if weight
            .users
            .iter()
            .any(|user| is_table(f, *user, settings.head))
        {
            of.encoding = settings.tables.unwrap_or(settings.encoding);
        }
    }
    uses
}

/// Whether an op looks up rows or belongs to the head, whose place is in the name of its result
/// once a package is read.
fn is_table(f: &Function, user: OpId, head: Option<&str>) -> bool {
    let op = f.op(user);
    let is_named = |head: &str| {
        let result = op.results.first();
        *op.origin.place == *head || result.is_some_and(|r| f.value(*r).name.starts_with(head))
    };
    op.def.name == "gather" || head.is_some_and(is_named)
}

fn same(weight: &Found) -> Same {
    let constant = &weight.constant;
    // A matrix and a kernel of one element are one tensor.
    let matrix = &weight.matrix;
    (weight.stored.id(), constant.dtype, squeezed(matrix))
}

/// Without axes of length 1 behind the last of channels and inputs.
fn squeezed(matrix: &Matrix) -> Matrix {
    let mut shape = matrix.shape.clone();
    while shape.len() > matrix.axis.max(matrix.input) + 1 && shape.last() == Some(&1) {
        shape.pop();
    }
    Matrix {
        shape,
        ..matrix.clone()
    }
}

fn fits(weight: &Found, encoding: Encoding, settings: &Settings) -> Result<(), String> {
    let n = weight.matrix.len();
    if n < settings.least {
        return Err(format!("it has fewer than {} elements", settings.least));
    }
    let dtype = weight.constant.dtype;
    encoding.fits(&weight.matrix, dtype)?;
    let own = encoding.byte_len(&weight.matrix, dtype, false);
    match weight.stored.byte_len() {
        stored if own >= stored => Err(format!(
            "it would take {own} bytes, and takes {stored} as it is"
        )),
        _ => Ok(()),
    }
}

fn ways(
    weight: &Found,
    name: &str,
    of: &Uses,
    settings: &Settings,
    store: &Arc<dyn Store>,
) -> Ways {
    let tensor = Tensor {
        name: name.to_owned(),
        dtype: weight.constant.dtype,
        matrix: squeezed(&weight.matrix),
        data: weight.constant.data.clone(),
        importance: of.importance.clone().unwrap_or_default(),
    };
    Ways::of(
        &tensor,
        of.takes_mul,
        (settings.encoding, settings.scale),
        store,
    )
}

fn left_as_it_is(
    program: &Program,
    (at, op, value): (usize, OpId, ValueId),
    reason: String,
) -> Left {
    let f = &program.functions()[at];
    let ty = f.value(value).ty.tensor();
    let n_weights = ty.and_then(TensorType::n_elements).unwrap_or(0);
    let literals = f.op(op).args.iter().flatten();
    let in_place = literals.filter_map(|arg| match arg {
        Arg::Literal(Literal::Tensor(_, data)) => Some(data.byte_len()),
        Arg::Value(v) => match f.constant(*v)? {
            Literal::Tensor(_, data) => Some(data.byte_len()),
            _ => None,
        },
        _ => None,
    });
    Left {
        name: f.value(value).name.clone(),
        n_weights,
        bytes: in_place.sum(),
        reason,
    }
}
