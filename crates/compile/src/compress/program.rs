//! Compresses the weights of a program.
//!
//! ```
//! use std::sync::Arc;
//! use thane_compile::compress::{job::Memory, program::{Compression, Settings}};
//! use thane_mil::text::parse;
//!
//! let zeros = "0, ".repeat(2047);
//! let text = format!("program(1.3) {{
//!   func main<ios18>(tensor<fp16, [1, 32]> x) {{
//!     tensor<fp16, [64, 32]> w = const()[val = tensor<fp16, [64, 32]>([{zeros}0])];
//!     tensor<fp16, [1, 64]> y = linear(x = x, weight = w);
//!   }} -> (y);
//! }}");
//! let program = parse(&text, &|_, _, _| None)?;
//! let compression = Compression::new(&program, Settings::default(), Arc::new(Memory::default()))?;
//! compression.run(2, &|_, _| {})?;
//! let (program, report) = compression.apply(&program)?;
//! assert_eq!(report.rows[0].bytes, 64 * 32 / 2 + 32);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use thane_mil::data::DataId;
use thane_mil::edit::{Patch, PatchError};
use thane_mil::graph::Graph;
use thane_mil::literal::Literal;
use thane_mil::opset::Opset;
use thane_mil::program::{Arg, OpId, Program, ValueId};
use thane_mil::types::{DType, TensorType};

use super::job::{self, Job, Made, NotFinite, Store, Tensor};
use super::report::{Left, Report, Row};
use super::sites::{self, Found};
use super::values::Matrix;
use super::write;
use super::{Encoding, Scale};

/// Scales stand behind a product where they leave at most this share of the error: less is not
/// worth an op.
const WORTH_A_MUL: f64 = 0.97;

/// How a program is compressed.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How weights are stored.
    pub encoding: Encoding,
    /// Where scales of channels stand beside palettes; `None` for behind a product where they
    /// lower the error, which is known once the weights are read.
    pub scale: Option<Scale>,
    /// Constants of fewer elements stay as they are.
    pub least: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            encoding: Encoding::palette(4),
            scale: None,
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
}

/// A weight in one function.
pub(super) struct Site {
    function: usize,
    op: OpId,
    name: String,
    place: String,
    pub(super) ways: Ways,
}

/// Rows of a table that no program has.
pub(super) struct TableSite {
    pub(super) name: String,
    pub(super) ways: Ways,
}

/// The ways in which a tensor may be stored, which all its uses share.
#[derive(Clone)]
pub(super) enum Ways {
    One(Scale, Arc<Job>),
    /// Without scales, and with scales behind products: whichever has the lower error.
    Better([Arc<Job>; 2]),
}

impl Ways {
    pub(super) fn jobs(&self) -> &[Arc<Job>] {
        match self {
            Self::One(_, job) => std::slice::from_ref(job),
            Self::Better(jobs) => jobs,
        }
    }

    /// The way that is taken, and the error without scales if both were computed.
    pub(super) fn taken(&self) -> Result<(Scale, &Arc<Job>, Option<f64>), NotFinite> {
        match self {
            Self::One(scale, job) => Ok((*scale, job, None)),
            Self::Better([plain, scaled]) => {
                let of = |job: &Arc<Job>| job.made().map(Made::relative_error);
                let without = of(plain)?;
                Ok(match of(scaled)? <= WORTH_A_MUL * without {
                    true => (Scale::Behind, scaled, Some(without)),
                    false => (Scale::None, plain, Some(without)),
                })
            }
        }
    }
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
        check_opsets(program, &settings)?;
        let mut found: Vec<(usize, Found)> = Vec::new();
        let mut left = Vec::new();
        for (at, f) in program.functions().iter().enumerate() {
            let (weights, others) = sites::find(f);
            for (op, value, reason) in others {
                left.push(left_as_it_is(program, (at, op, value), reason));
            }
            for weight in weights {
                match fits(&weight, &settings) {
                    Ok(()) => found.push((at, weight)),
                    Err(why) => {
                        left.push(left_as_it_is(program, (at, weight.op, weight.value), why))
                    }
                }
            }
        }
        let mut takes_mul: HashMap<Same, bool> = HashMap::new();
        for (_, weight) in &found {
            *takes_mul.entry(same(weight)).or_insert(true) &= weight.takes_mul;
        }
        let mut known: HashMap<Same, Ways> = HashMap::new();
        let mut sites = Vec::with_capacity(found.len());
        for (function, weight) in found {
            let f = &program.functions()[function];
            let name = f.value(weight.value).name.clone();
            let key = same(&weight);
            let ways = known
                .entry(key.clone())
                .or_insert_with(|| ways(&weight, &name, takes_mul[&key], &settings, &store));
            sites.push(Site {
                function,
                op: weight.op,
                name,
                place: f.op(weight.users[0]).origin.place.to_string(),
                ways: ways.clone(),
            });
        }
        let mut named = HashSet::new();
        left.retain(|left: &Left| named.insert((left.name.clone(), left.reason.clone())));
        Ok(Self {
            settings,
            sites,
            tables: Vec::new(),
            left,
            store,
        })
    }

    /// The jobs, each once.
    pub fn jobs(&self) -> Vec<Arc<Job>> {
        let mut known = HashSet::new();
        let jobs = self.sites.iter().flat_map(|site| site.ways.jobs());
        let tables = self.tables.iter().flat_map(|table| table.ways.jobs());
        let jobs = jobs.chain(tables);
        jobs.filter(|job| known.insert(Arc::as_ptr(job).addr()))
            .cloned()
            .collect()
    }

    /// Computes all codes on `n_threads` threads. `progress` is told how many weights are done, of
    /// how many.
    pub fn run(
        &self,
        n_threads: usize,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<(), CompressError> {
        let jobs = self.jobs();
        let all = jobs.iter().map(|job| job.n_weights()).sum();
        Ok(job::run(&jobs, n_threads, &|done| progress(done, all))?)
    }

    /// The program with compressed weights, and what was done. Codes that are not computed yet
    /// stay so, unless where scales stand depends on them.
    pub fn apply(&self, program: &Program) -> Result<(Program, Report), CompressError> {
        let out = self.written(program)?;
        Ok((out, self.report()?))
    }

    /// The program with compressed weights.
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
            let mut whole = Patch::new();
            for site in own {
                let failed = |why: String| CompressError::Write {
                    name: site.name.clone(),
                    why,
                };
                let weight = weights.iter().find(|weight| weight.op == site.op);
                let weight = weight.ok_or_else(|| failed("it is no weight".to_owned()))?;
                let (scale, job, _) = site.ways.taken()?;
                let patch = write::patch(&graph, weight, (self.settings.encoding, scale), job);
                whole.append(patch.map_err(failed)?);
            }
            whole.apply_to(&mut out, at).map_err(Box::new)?;
        }
        Ok(out)
    }

    /// What was done, computed now if it is not yet.
    pub fn report(&self) -> Result<Report, CompressError> {
        let mut known = HashSet::new();
        let mut rows = Vec::new();
        let sites = self.sites.iter();
        let sites = sites.map(|site| (site.name.as_str(), site.place.as_str(), &site.ways));
        let tables = self.tables.iter();
        let tables = tables.map(|table| (table.name.as_str(), "", &table.ways));
        for (name, place, ways) in sites.chain(tables) {
            let (scale, job, without) = ways.taken()?;
            if !known.insert(Arc::as_ptr(job).addr()) {
                continue;
            }
            let encoding = (self.settings.encoding, scale);
            rows.push(row((name, place), encoding, job, without)?);
        }
        Ok(Report {
            rows,
            left: self.left.clone(),
        })
    }
}

fn row(
    (name, place): (&str, &str),
    (encoding, scale): (Encoding, Scale),
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
        encoding: encoding.to_string(),
        scale: scale.name(),
        bits: 8.0 * job.byte_len() as f64 / n.max(1) as f64,
        bytes_before: n * tensor.dtype.bits() / 8,
        bytes: job.byte_len(),
        error: made.relative_error(),
        error_without_scale,
        squares: [made.error, made.energy],
    })
}

fn check_opsets(program: &Program, settings: &Settings) -> Result<(), CompressError> {
    let scale = settings.scale.unwrap_or(Scale::Behind);
    let needs = settings.encoding.oldest_opset(scale);
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

fn same(weight: &Found) -> Same {
    let constant = &weight.constant;
    // A matrix and a kernel of one element are one tensor.
    let matrix = &weight.matrix;
    (constant.data.id(), constant.dtype, squeezed(matrix))
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

fn fits(weight: &Found, settings: &Settings) -> Result<(), String> {
    let n = weight.matrix.len();
    if n < settings.least {
        return Err(format!("it has fewer than {} elements", settings.least));
    }
    settings
        .encoding
        .fits(&weight.matrix, weight.constant.dtype)
}

fn ways(
    weight: &Found,
    name: &str,
    takes_mul: bool,
    settings: &Settings,
    store: &Arc<dyn Store>,
) -> Ways {
    let tensor = Tensor {
        name: name.to_owned(),
        dtype: weight.constant.dtype,
        matrix: squeezed(&weight.matrix),
        data: weight.constant.data.clone(),
        importance: Arc::new([]),
    };
    ways_of(&tensor, takes_mul, settings, store)
}

/// The ways in which a tensor may be stored. `takes_mul` says whether scales can stand behind it.
pub(super) fn ways_of(
    tensor: &Tensor,
    takes_mul: bool,
    settings: &Settings,
    store: &Arc<dyn Store>,
) -> Ways {
    let job = |has_scales| {
        let encoding = settings.encoding;
        Job::new(tensor.clone(), encoding, has_scales, Arc::clone(store))
    };
    match settings.scale {
        _ if !settings.encoding.takes_scales() => Ways::One(Scale::None, job(false)),
        Some(Scale::Behind) if !takes_mul => Ways::One(Scale::None, job(false)),
        Some(scale) => Ways::One(scale, job(scale != Scale::None)),
        None if takes_mul => Ways::Better([job(false), job(true)]),
        None => Ways::One(Scale::None, job(false)),
    }
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
