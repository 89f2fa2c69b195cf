//! What a rewrite changed, by itself: the ops that it wrote against those that it removed, on
//! numbers that the function has there.
//!
//! Two forms of a function share most ops. Where an op of both takes another value than before, or
//! another value is an output, the rewrite claims that the two values are equal. Each claim is
//! computed from values that both forms share, so that intermediate values are judged, and a large
//! function is run once and not for every rewrite.

use std::collections::{HashMap, HashSet};

use thane_mil::program::{Arg, Function, Op, OpId, ValueId};

use super::diff::{ABSURD, Diff, Judged, MANY, ROUNDINGS, UNIT_16, UNIT_32, numbers, over};
use crate::walk::{Env, Held, Mode, Stop, Walk, is_half, rounds};
use thane_mil::evaluate::{Evaluate, HostTensor};

/// What two forms share, and what values of them are to be equal.
pub struct Claims {
    common: HashSet<ValueId>,
    pairs: Vec<(ValueId, ValueId)>,
}

impl Claims {
    /// Those of a rewrite; why there are none where it changes more than a graph of values.
    pub fn of(before: &Function, after: &Function) -> Result<Self, String> {
        let (old, new) = (before.body(), after.body());
        let types = |f: &Function, vs: &[ValueId]| {
            vs.iter()
                .map(|v| f.value(*v).ty.clone())
                .collect::<Vec<_>>()
        };
        if old.inputs != new.inputs || types(before, &old.inputs) != types(after, &new.inputs) {
            return Err("the interface changes".to_owned());
        }
        let mut common: HashSet<ValueId> = old.inputs.iter().copied().collect();
        let live: HashSet<OpId> = new.ops.iter().copied().collect();
        let kept: Vec<OpId> = old
            .ops
            .iter()
            .copied()
            .filter(|id| live.contains(id) && is_same(before, after, *id))
            .collect();
        common.extend(
            kept.iter()
                .flat_map(|id| before.op(*id).results.iter().copied()),
        );
        let writes = |f: &Function, id: &OpId| {
            matches!(f.op(*id).def.name, "coreml_update_state" | "write_state")
        };
        let n_writes = |f: &Function| f.body().ops.iter().filter(|id| writes(f, id)).count();
        let n_kept = kept.iter().filter(|id| writes(before, id)).count();
        if n_writes(before) != n_kept || n_writes(after) != n_kept {
            return Err("it writes states otherwise".to_owned());
        }
        let mut seen = HashSet::new();
        let mut pairs = Vec::new();
        let mut claim = |v: ValueId, w: ValueId| {
            if (v != w || !common.contains(&v)) && seen.insert((v, w)) {
                pairs.push((v, w));
            }
        };
        for id in &kept {
            let (old, new) = (before.op(*id), after.op(*id));
            old.uses().zip(new.uses()).for_each(|(v, w)| claim(v, w));
        }
        old.outputs
            .iter()
            .zip(&new.outputs)
            .for_each(|(v, w)| claim(*v, *w));
        Ok(Self { common, pairs })
    }

    /// The values of both forms that claims are computed from.
    pub fn taken(&self, before: &Function, after: &Function) -> HashSet<ValueId> {
        let (old, new): (Vec<ValueId>, Vec<ValueId>) = self.pairs.iter().copied().unzip();
        let (old, new) = (self.region(before, &old).1, self.region(after, &new).1);
        old.union(&new).copied().collect()
    }

    /// The ops that make some values of a form out of what both share, and what of that they take.
    fn region(&self, f: &Function, wanted: &[ValueId]) -> (Vec<OpId>, HashSet<ValueId>) {
        region(f, wanted, |v| self.common.contains(&v))
    }
}

/// The ops that make values, in their order, and the values where looking back ends.
pub fn region(
    f: &Function,
    wanted: &[ValueId],
    ends: impl Fn(ValueId) -> bool,
) -> (Vec<OpId>, HashSet<ValueId>) {
    let mut maker = HashMap::new();
    f.body()
        .ops
        .iter()
        .for_each(|id| maker.extend(f.op(*id).results.iter().map(|r| (*r, *id))));
    let (mut needed, mut given) = (HashSet::new(), HashSet::new());
    let mut open = wanted.to_vec();
    while let Some(value) = open.pop() {
        let by = maker.get(&value).copied();
        if by.is_some_and(|id| f.op(id).def.is_constexpr()) {
            continue;
        }
        match by {
            Some(id) if !ends(value) => {
                if needed.insert(id) {
                    open.extend(f.uses(id));
                }
            }
            _ => drop(given.insert(value)),
        }
    }
    (
        f.body()
            .ops
            .iter()
            .copied()
            .filter(|id| needed.contains(id))
            .collect(),
        given,
    )
}

/// Whether two forms are one: the same ops in the same order, with the same operands.
pub fn is_same_form(one: &Function, other: &Function) -> bool {
    let (a, b) = (one.body(), other.body());
    let types = |f: &Function| -> Vec<_> {
        let inputs = f.body().inputs.iter();
        inputs.map(|v| f.value(*v).ty.clone()).collect()
    };
    let names = |f: &Function| -> Vec<_> {
        let values = f.body().inputs.iter().chain(&f.body().outputs);
        values.map(|v| f.value(*v).name.clone()).collect()
    };
    let same = |id: &OpId| {
        let (old, new) = (one.op(*id), other.op(*id));
        old.args == new.args && is_same(one, other, *id)
    };
    a.inputs == b.inputs
        && a.outputs == b.outputs
        && a.ops == b.ops
        && types(one) == types(other)
        && names(one) == names(other)
        && a.ops.iter().all(same)
}

/// Whether an op is the same in both forms, but for the values that it takes.
fn is_same(before: &Function, after: &Function, id: OpId) -> bool {
    let (old, new) = (before.op(id), after.op(id));
    let types = |f: &Function, op: &Op| {
        op.results
            .iter()
            .map(|r| f.value(*r).ty.clone())
            .collect::<Vec<_>>()
    };
    let args = old.args.iter().zip(&new.args).all(|pair| match pair {
        (Some(Arg::Literal(a)), Some(Arg::Literal(b))) => a == b,
        (Some(Arg::Value(_)), Some(Arg::Value(_))) | (None, None) => true,
        (Some(Arg::Values(a)), Some(Arg::Values(b))) => a.len() == b.len(),
        _ => false,
    });
    let head = std::ptr::eq(old.def, new.def) && old.results == new.results && args;
    // What blocks of it compute is compared as a whole.
    let is_nested = !old.blocks.is_empty() || !new.blocks.is_empty();
    head && types(before, old) == types(after, new)
        && (!is_nested || blocks_are_same(before, after, old, new))
}

fn blocks_are_same(before: &Function, after: &Function, old: &Op, new: &Op) -> bool {
    old.blocks == new.blocks
        && old.blocks.iter().all(|b| {
            let (x, y) = (before.block(*b), after.block(*b));
            let same = |id: &OpId| {
                before.op(*id).args == after.op(*id).args && is_same(before, after, *id)
            };
            x.inputs == y.inputs
                && x.ops == y.ops
                && x.outputs == y.outputs
                && x.ops.iter().all(same)
        })
}

/// The values of a function on one set of inputs.
pub type Memo<T> = HashMap<ValueId, Held<T>>;

/// What was seen of a rewrite by itself.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Numbers compared.
    pub n_values: usize,
    /// Numbers that roundings move by as much as they are, so that nothing is seen of them.
    pub n_absurd: usize,
    /// The largest number of each claim: errors of small numbers are over it.
    magnitudes: Vec<f64>,
    /// The largest difference in f32, over the largest number.
    pub error: f64,
    /// What roundings allow at most.
    pub allowed: f64,
}

/// Why a rewrite is not proven by itself.
pub enum Fault {
    /// A value is off.
    Differs(String),
    /// It cannot be computed.
    Stop(Stop),
}

impl From<Stop> for Fault {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

/// What shared values are multiplied with besides: small numbers, where fp16 ends.
const SCALES: [f32; 2] = [1.0, 1.0 / 64.0];

/// Computes each claim of a rewrite on values that the function has on some inputs.
pub fn check<E: Evaluate>(
    before: &Function,
    after: &Function,
    claims: &Claims,
    memo: &Memo<E::Tensor>,
    seen: &mut Seen,
    env: &Env<E>,
) -> Result<(), Fault> {
    let sides = [before, after].map(|f| {
        let wanted: Vec<ValueId> = claims
            .pairs
            .iter()
            .map(|(v, w)| if std::ptr::eq(f, before) { *v } else { *w })
            .collect();
        let (ops, given) = claims.region(f, &wanted);
        Side {
            f,
            wanted,
            ops,
            given,
        }
    });
    seen.magnitudes.resize(claims.pairs.len(), 0.0);
    // Forms that begin at other values are not smaller by the same factor.
    let is_scaled = sides[0].given == sides[1].given;
    for scale in SCALES
        .into_iter()
        .filter(|scale| *scale == 1.0 || is_scaled)
    {
        let runs = Runs::new(&sides, memo, scale, env)?;
        for (i, (v, _)) in claims.pairs.iter().enumerate() {
            let name = &before.value(*v).name;
            if let Some(fault) = runs.wide(i, seen).or_else(|| runs.declared(i, seen)) {
                return Err(Fault::Differs(fault.replacen("{}", name, 1)));
            }
        }
    }
    Ok(())
}

/// What both forms give in each mode: the old one, then the new one.
struct Runs<T> {
    wide: [Values<T>; 2],
    nudged: [Values<T>; 2],
    declared: Option<[Values<T>; 2]>,
    /// Ops that round in the new form, of the longest chain.
    n_roundings: f64,
}

impl<T: HostTensor> Runs<T> {
    fn new<E: Evaluate<Tensor = T>>(
        sides: &[Side<'_>; 2],
        memo: &Memo<T>,
        scale: f32,
        env: &Env<E>,
    ) -> Result<Self, Stop> {
        let values = |mode| -> Result<[Values<T>; 2], Stop> {
            let [b, a] = sides;
            Ok([
                b.values(memo, mode, scale, env)?,
                a.values(memo, mode, scale, env)?,
            ])
        };
        let (wide, nudged) = (values(Mode::Wide)?, values(Mode::Nudged)?);
        let is_half = sides.iter().any(Side::is_half);
        let declared = if is_half {
            Some(values(Mode::Declared)?)
        } else {
            None
        };
        Ok(Self {
            wide,
            nudged,
            declared,
            n_roundings: sides[1].n_roundings(),
        })
    }

    /// How a claim is off in f32.
    fn wide(&self, i: usize, seen: &mut Seen) -> Option<String> {
        let [due, found] = [&self.wide[0].0[i], &self.wide[1].0[i]];
        let [nudged, nudged_found] = [&self.nudged[0].0[i], &self.nudged[1].0[i]];
        let judged = Judged::stable(due, nudged);
        let both = judged.and(&Judged::stable(found, nudged_found));
        let error = Diff::of(
            due,
            found,
            if due.dtype().is_float() {
                &both
            } else {
                &judged
            },
        );
        let most = &mut seen.magnitudes[i];
        *most = most.max(error.magnitude);
        let spread = Diff::of(due, nudged, &both)
            .most
            .max(Diff::of(found, nudged_found, &both).most);
        // Constants that are written in fp16 are rounded to it.
        let unit = ROUNDINGS * UNIT_32
            + if self.declared.is_some() {
                UNIT_16
            } else {
                0.0
            };
        let allowed = if error.is_float {
            MANY * spread + unit * error.magnitude
        } else {
            0.0
        };
        let is_beyond = self.wide[0].1.is_some();
        if error.n_lost > 0 || error.most > allowed && !is_beyond {
            let allowed = over(allowed, *most);
            return Some(format!(
                "`{{}}` is off by {error}, where roundings of f32 allow {allowed:.1e}"
            ));
        }
        if is_beyond || over(allowed, *most) > ABSURD {
            seen.n_absurd += error.n;
            return None;
        }
        seen.n_values += error.n;
        seen.error = seen.error.max(over(error.most, *most));
        seen.allowed = seen.allowed.max(over(allowed, *most));
        None
    }

    /// How a claim is off in what is declared.
    fn declared(&self, i: usize, seen: &Seen) -> Option<String> {
        let [own, other] = self.declared.as_ref()?;
        if let (Some(op), None) = (&other.1, &own.1) {
            return Some(format!(
                "{op}, which it writes, overflows fp16 where nothing did before"
            ));
        }
        let judged = Judged::finite(&own.0[i]);
        let due = &self.wide[0].0[i];
        let n_lost = judged.n_lost(&numbers(&other.0[i]));
        let (own, other) = (
            Diff::of(due, &own.0[i], &judged),
            Diff::of(due, &other.0[i], &judged),
        );
        let n_roundings = ROUNDINGS + self.n_roundings;
        let allowed = 2.0 * own.most + n_roundings * UNIT_16 * seen.magnitudes[i];
        if n_lost == 0 && other.most <= allowed {
            return None;
        }
        let (other, allowed) = (Diff { n_lost, ..other }, over(allowed, other.magnitude));
        Some(format!(
            "`{{}}` in fp16 is off by {other}; without the rewrite by {own}, and roundings allow {allowed:.1e}"
        ))
    }
}

/// One form of what is claimed.
struct Side<'a> {
    f: &'a Function,
    wanted: Vec<ValueId>,
    ops: Vec<OpId>,
    given: HashSet<ValueId>,
}

/// The values of all claims, and the op that overflowed.
type Values<T> = (Vec<T>, Option<String>);

impl Side<'_> {
    fn values<E: Evaluate>(
        &self,
        memo: &Memo<E::Tensor>,
        mode: Mode,
        scale: f32,
        env: &Env<E>,
    ) -> Result<Values<E::Tensor>, Stop> {
        let mut walk = Walk::new(self.f, env, mode);
        for value in &self.given {
            let held = memo
                .get(value)
                .ok_or_else(|| Stop::Op("a value is not at hand".to_owned()))?;
            let smaller = if scale == 1.0 {
                None
            } else {
                scaled(&held.tensor, scale)
            };
            match smaller {
                Some(tensor) => walk.give_tensor(*value, tensor)?,
                None => walk.give(*value, held)?,
            }
        }
        walk.ops(&self.ops)?;
        let values = self
            .wanted
            .iter()
            .map(|v| walk.value(*v).map(|held| held.tensor))
            .collect::<Result<_, _>>()?;
        Ok((values, walk.overflow))
    }

    fn is_half(&self) -> bool {
        let mut results = self.ops.iter().flat_map(|id| &self.f.op(*id).results);
        results.any(|v| is_half(self.f, *v))
    }

    /// Ops that round, of the longest chain.
    fn n_roundings(&self) -> f64 {
        let mut depth: HashMap<ValueId, usize> = HashMap::new();
        for id in &self.ops {
            let op = self.f.op(*id);
            let deepest = op
                .uses()
                .filter_map(|v| depth.get(&v))
                .max()
                .copied()
                .unwrap_or(0);
            depth.extend(
                op.results
                    .iter()
                    .map(|r| (*r, deepest + usize::from(rounds(op)))),
            );
        }
        depth.values().max().copied().unwrap_or(0) as f64
    }
}

fn scaled<T: HostTensor>(tensor: &T, scale: f32) -> Option<T> {
    let numbers = tensor.f32s()?;
    let smaller: Vec<f32> = numbers.iter().map(|x| x * scale).collect();
    Some(T::of_f32s(tensor.shape().to_vec(), smaller))
}
