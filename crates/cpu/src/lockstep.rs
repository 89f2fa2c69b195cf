//! Running a plan over several frames at once, step by step: a product reads its matrix once for
//! the rows of all of them.
//!
//! A value is *joined* where the elements of all frames lie behind each other in one buffer, as
//! rows of one width, or *apart* in the slots of each frame. Products with constant matrices join
//! what they take, and what treats each row by itself keeps it joined; what moves no element is
//! another shape of the same rows. Attention over caches belongs to each frame: it works on its
//! part of what is joined. All else puts values apart and runs in frame after frame, as it does
//! alone.

use std::ops::{Add, Range};
use std::sync::Arc;

use thane_kernels::threads::Pool;
use thane_mil::budget::OverBudget;
use thane_mil::program::ValueId;
use thane_mil::types::DType;

use crate::Numerics;
use crate::evaluate::view_shape;
use crate::exec::{Batching, Frame, Kernel, Kind, Parts, Plan, Rows, Step, operands};
use crate::ops::{Fault, Value};
use crate::plain::{Operand, Plain};
use crate::profile::Work;
use crate::tensor::{Buffer, Tensor, floats, floats_mut};

/// Several frames of one plan.
pub struct Lockstep<'a> {
    plan: &'a Plan,
    frames: Vec<Frame<'a>>,
    /// Has what is joined in its slots, as [rows, width].
    all: Frame<'a>,
    /// The shapes that the frames give what is joined.
    shapes: Vec<Option<Vec<Vec<usize>>>>,
    turns: Turns,
}

/// Which frames run side by side, each on one thread, and which after each other, with all threads
/// in each: those that others would wait for.
struct Turns {
    /// In falling order of what frames have to do, so that threads end together.
    side_by_side: Vec<usize>,
    alone: Vec<usize>,
}

impl Turns {
    /// For frames that have so much to do.
    fn new(sizes: &[usize], n_threads: usize) -> Self {
        let total: usize = sizes.iter().sum();
        // Half as much again as the share of a thread.
        let is_alone =
            |i: &usize| sizes[*i].saturating_mul(2 * n_threads) > total.saturating_mul(3);
        let (alone, mut side_by_side): (Vec<usize>, Vec<usize>) =
            (0..sizes.len()).partition(is_alone);
        side_by_side.sort_by_key(|i| (usize::MAX - sizes[*i], *i));
        match side_by_side.len() {
            // One thread would do what all can do.
            1 => Self {
                side_by_side: Vec::new(),
                alone: (0..sizes.len()).collect(),
            },
            _ => Self {
                side_by_side,
                alone,
            },
        }
    }

    /// Runs `task` for each job, one for each frame.
    fn run<J: Send>(&self, pool: &Pool, jobs: &mut [J], task: impl Fn(&mut J) + Sync) {
        let mut all: Vec<Option<&mut J>> = jobs.iter_mut().map(Some).collect();
        let mut take = |i: &usize| all.get_mut(*i).and_then(Option::take);
        self.alone.iter().filter_map(&mut take).for_each(&task);
        let mut side_by_side: Vec<&mut J> = self.side_by_side.iter().filter_map(take).collect();
        pool.run_chunks(&mut side_by_side, 1, |_, jobs| {
            jobs.iter_mut().for_each(|job| task(job));
        });
    }
}

/// A failure, and which frame it is of, where it is of one.
pub type FrameFault = (Option<usize>, Fault);

/// What a step gives: a tensor over the rows of all frames, and the shape that each gives its part.
type Joined = (Tensor, Vec<Vec<usize>>);

impl<'a> Lockstep<'a> {
    /// Frames of `plan`; `all` has no values yet.
    pub fn new(plan: &'a Plan, frames: Vec<Frame<'a>>, all: Frame<'a>) -> Self {
        let given = |f: &Frame<'_>| -> usize {
            plan.inputs
                .iter()
                .filter_map(|(_, id, _)| f.slots[id.index()].as_ref())
                .map(Tensor::len)
                .sum()
        };
        let sizes: Vec<usize> = frames.iter().map(given).collect();
        let turns = Turns::new(&sizes, all.context.pool().n_threads());
        Self {
            plan,
            frames,
            all,
            shapes: vec![None; plan.function.n_values()],
            turns,
        }
    }

    /// Run one step of all frames.
    pub fn step(&mut self, step: &Step) -> Result<(), FrameFault> {
        let begun = self.all.profile.map(|_| self.all.begin(self.plan, step));
        if self.joined(step)? {
            if let (Some(profile), Some(begun)) = (self.all.profile, begun) {
                let begun = begun.with(self.parts_work(step));
                let results = step
                    .results
                    .iter()
                    .filter_map(|r| self.all.slots[r.id.index()].as_ref());
                begun
                    .by(self.all.path.take())
                    .end(profile, &self.plan.function, results);
            }
            for frame in &mut self.frames {
                frame.drop_values(&step.last_uses);
            }
        } else {
            for value in operands(&step.kind) {
                self.part(value).map_err(|fault| (None, fault))?;
            }
            self.each(|frame, plan| frame.step(plan, step))?;
        }
        self.all.drop_values(&step.last_uses);
        Ok(())
    }

    /// The outputs of each frame.
    pub fn finish(&mut self) -> Result<Vec<Vec<Option<Tensor>>>, Fault> {
        for output in &self.plan.function.body().outputs {
            self.part(*output)?;
        }
        Ok(self
            .frames
            .iter_mut()
            .map(|frame| std::mem::take(&mut frame.slots))
            .collect())
    }

    /// The memory that was refused, if that is the reason of this failure.
    pub fn refusal(&mut self, reason: &str) -> Option<OverBudget> {
        let mut frames = self.frames.iter_mut().chain([&mut self.all]);
        frames.find_map(|frame| frame.pool.refusal(reason))
    }

    /// Run `task` in every frame.
    fn each(
        &mut self,
        task: impl Fn(&mut Frame<'a>, &'a Plan) -> Result<(), Fault> + Sync,
    ) -> Result<(), FrameFault> {
        let plan = self.plan;
        let mut jobs: Vec<_> = self
            .frames
            .iter_mut()
            .map(|frame| (frame, Ok(())))
            .collect();
        let pool = self.all.context.pool();
        self.turns.run(pool, &mut jobs, |(frame, result)| {
            *result = task(frame, plan)
        });
        let mut results = jobs.into_iter().enumerate();
        results.try_for_each(|(i, (_, result))| result.map_err(|fault| (Some(i), fault)))
    }

    /// Run a step on joined values, where that is possible and pays.
    fn joined(&mut self, step: &Step) -> Result<bool, FrameFault> {
        // What the engine's numbers need is done op by op, in the frame's own tensors.
        if matches!(self.all.numerics, Numerics::Ane(_)) {
            return Ok(false);
        }
        let of_all = |fault| (None, fault);
        let results = match &step.kind {
            Kind::View(plain) => self.view(plain).map_err(of_all)?.into_iter().collect(),
            Kind::Plain(plain) if plain.def.name == "transpose" => {
                self.view(plain).map_err(of_all)?.into_iter().collect()
            }
            Kind::Add(_, x, y) => self
                .by_rows(step, (&[*x], Some(*y), false), None)
                .map_err(of_all)?,
            Kind::Fused(kernel) => match kernel.facts().batching {
                Batching::Parts(parts) if parts.rows().iter().all(|v| self.is_joined(*v)) => {
                    vec![self.parts(step, parts)?]
                }
                Batching::Rows {
                    joined,
                    like,
                    always,
                } => self
                    .by_rows(step, (&joined, like, always), Some(&**kernel))
                    .map_err(of_all)?,
                _ => Vec::new(),
            },
            _ => Vec::new(),
        };
        if results.is_empty() {
            return Ok(false);
        }
        for (defined, (tensor, shapes)) in step.results.iter().zip(results) {
            for (i, shape) in shapes.iter().enumerate() {
                let is_checked = i > 0 && shapes[i - 1] == *shape;
                if !is_checked {
                    defined
                        .check(&self.plan.function, tensor.dtype, shape)
                        .map_err(|fault| (Some(i), fault))?;
                }
            }
            self.set(defined.id, tensor, shapes);
        }
        Ok(true)
    }

    /// What treats each row by itself, or each element: one call for the rows of all frames, of
    /// these values and one that has the shape of the result, where that pays.
    fn by_rows(
        &mut self,
        step: &Step,
        (joined, like, always): (&[ValueId], Option<ValueId>, bool),
        kernel: Option<&dyn Kernel>,
    ) -> Result<Vec<Joined>, Fault> {
        let all = || joined.iter().copied().chain(like);
        if !always && !all().any(|value| self.is_joined(value)) {
            return Ok(Vec::new());
        }
        // By frame, and then by result.
        let mut shapes = Vec::with_capacity(self.frames.len());
        for frame in 0..self.frames.len() {
            let Some((dtype, x)) = self.seen(frame, joined[0]) else {
                return Ok(Vec::new());
            };
            let made = match kernel {
                Some(kernel) => kernel.shapes(x)?,
                None => vec![x.to_vec()],
            };
            let is_alike = |like| {
                self.seen(frame, like) == Some((DType::Fp32, &made[0])) && dtype == DType::Fp32
            };
            if !like.is_none_or(is_alike) {
                return Ok(Vec::new());
            }
            shapes.push(made);
        }
        for value in all() {
            self.join(value)?;
        }
        let results = self
            .all
            .compute(self.plan, step, &|| false)?
            .into_iter()
            .enumerate();
        let shapes = |at: usize| shapes.iter().map(|made| made[at].clone()).collect();
        Ok(results.map(|(at, tensor)| (tensor, shapes(at))).collect())
    }

    /// The same rows under other shapes, where no element moves.
    fn view(&mut self, plain: &Plain) -> Result<Option<Joined>, Fault> {
        let Some((Some(Operand::Value(x)), others)) = plain.args.split_first() else {
            return Ok(None);
        };
        let Some(shapes) = &self.shapes[x.index()] else {
            return Ok(None);
        };
        let mut args = vec![None];
        for other in others {
            args.push(match other {
                None => None,
                Some(Operand::Constant(constant)) => Some(constant.clone()),
                Some(_) => return Ok(None),
            });
        }
        let joined = self.all.get(*x)?;
        let mut viewed: Vec<Vec<usize>> = Vec::with_capacity(shapes.len());
        for (i, shape) in shapes.iter().enumerate() {
            if let Some(last) = viewed.last().filter(|_| shapes[i - 1] == *shape) {
                viewed.push(last.clone());
                continue;
            }
            let view = plain.view(shape, || {
                // Only its type and its shape are looked at.
                args[0] = Some(Value::Tensor(Tensor {
                    shape: shape.clone(),
                    ..joined.clone()
                }));
                view_shape(plain.def, &args, self.all.pool)
            })?;
            let Some(view) = view else { return Ok(None) };
            viewed.push(view);
        }
        Ok(Some((joined.clone(), viewed)))
    }

    /// What each frame computes of its rows.
    fn parts(&mut self, step: &Step, parts: &dyn Parts) -> Result<Joined, FrameFault> {
        struct Job<'j, 'f> {
            frame: &'j mut Frame<'f>,
            rows: Option<Rows<'j>>,
            result: Result<(), Fault>,
        }
        let of_all = |fault| (None, fault);
        let mut own = parts.own().into_iter();
        own.try_for_each(|value| self.part(value)).map_err(of_all)?;
        let [query, key, value] = parts.rows();
        let (mut q, shapes) = self.take(step, query).map_err(of_all)?;
        let (mut k, k_shapes) = self.take(step, key).map_err(of_all)?;
        let Self {
            all, frames, turns, ..
        } = self;
        let v = all.get(value).map_err(of_all)?.clone();
        let (mut out, n) = all.pool.take_checked(&q.shape).map_err(of_all)?;
        let mut rest = (
            floats_mut(&mut q, all.pool).map_err(of_all)?,
            floats_mut(&mut k, all.pool).map_err(of_all)?,
            &mut out[..n],
        );
        let v = floats(&v).map_err(of_all)?;
        let v_shapes = self.shapes[value.index()].as_deref().unwrap_or_default();
        let all_parts = ranges(&shapes).zip(ranges(&k_shapes)).zip(ranges(v_shapes));
        let mut jobs = Vec::with_capacity(frames.len());
        for (frame, ((part, k_part), v_part)) in frames.iter_mut().zip(all_parts) {
            let (q, others) = rest.0.split_at_mut(part.len());
            let (k, other_keys) = rest.1.split_at_mut(k_part.len());
            let (out, other_out) = rest.2.split_at_mut(part.len());
            rest = (others, other_keys, other_out);
            let rows = Rows {
                q,
                k,
                v: &v[v_part],
                out,
            };
            jobs.push(Job {
                frame,
                rows: Some(rows),
                result: Ok(()),
            });
        }
        let attend = |job: &mut Job<'_, '_>| {
            if let Some(rows) = job.rows.take() {
                job.result = parts.run_part(job.frame, rows);
            }
        };
        turns.run(all.context.pool(), &mut jobs, attend);
        let mut results = jobs.into_iter().map(|job| job.result).enumerate();
        results.try_for_each(|(i, result)| result.map_err(|fault| (Some(i), fault)))?;
        [q, k].into_iter().for_each(|tensor| all.pool.give(tensor));
        Ok((Tensor::new(DType::Fp32, vec![n], Buffer::F32(out)), shapes))
    }

    /// What the profile cannot see in the joined values.
    fn parts_work(&self, step: &Step) -> Work {
        let Kind::Fused(kernel) = &step.kind else {
            return Work::default();
        };
        let Batching::Parts(parts) = kernel.facts().batching else {
            return Work::default();
        };
        let lens = self.shapes[parts.rows()[0].index()]
            .iter()
            .flatten()
            .map(|shape| shape.iter().product::<usize>());
        let work = self
            .frames
            .iter()
            .zip(lens)
            .map(|(frame, len)| parts.part_work(frame, len as f64));
        work.fold(Work::default(), Add::add)
    }

    fn is_joined(&self, value: ValueId) -> bool {
        self.all.slots[value.index()].is_some()
    }

    /// The type and the shape that a frame gives a value.
    fn seen(&self, frame: usize, value: ValueId) -> Option<(DType, &[usize])> {
        match (&self.all.slots[value.index()], &self.shapes[value.index()]) {
            (Some(joined), Some(shapes)) => Some((joined.dtype, &shapes[frame])),
            _ => self.frames[frame].slots[value.index()]
                .as_ref()
                .map(|t| (t.dtype, t.shape.as_slice())),
        }
    }

    /// A joined value for a step to change.
    fn take(&mut self, step: &Step, value: ValueId) -> Result<Joined, Fault> {
        let shapes = self.shapes[value.index()].clone().unwrap_or_default();
        Ok((self.all.take(step, value)?, shapes))
    }

    /// Keep a joined value; rows have the width that all frames agree on, or one element.
    fn set(&mut self, value: ValueId, mut tensor: Tensor, shapes: Vec<Vec<usize>>) {
        let total = shapes
            .iter()
            .map(|shape| shape.iter().product::<usize>())
            .sum::<usize>();
        let last = shapes
            .first()
            .and_then(|shape| shape.last())
            .copied()
            .unwrap_or(1);
        let width = if last > 0 && shapes.iter().all(|shape| shape.last() == Some(&last)) {
            last
        } else {
            1
        };
        tensor.shape = vec![total / width, width];
        self.all.slots[value.index()] = Some(tensor);
        self.shapes[value.index()] = Some(shapes);
    }

    /// Have a value of fp32 or int32 joined; the shape of each frame's part.
    fn join(&mut self, value: ValueId) -> Result<Vec<Vec<usize>>, Fault> {
        if let (true, Some(shapes)) = (self.is_joined(value), &self.shapes[value.index()]) {
            return Ok(shapes.clone());
        }
        let parts = self
            .frames
            .iter()
            .map(|frame| frame.get(value))
            .collect::<Result<Vec<_>, _>>()?;
        let shapes: Vec<Vec<usize>> = parts.iter().map(|t| t.shape.clone()).collect();
        let dtype = parts.first().map_or(DType::Fp32, |t| t.dtype);
        let mut joined = self
            .all
            .pool
            .tensor(dtype, vec![parts.iter().map(|t| t.len()).sum()])?;
        let data = Arc::get_mut(&mut joined.data).ok_or("a fresh buffer is shared")?;
        let mut at = 0;
        for part in parts {
            if !data.copy_from(at, &part.data, 0, part.len()) {
                return Err(format!(
                    "{} and {} are given for one value",
                    part.dtype, dtype
                ));
            }
            at += part.len();
        }
        self.set(value, joined, shapes.clone());
        Ok(shapes)
    }

    /// Have a joined value in the slots of the frames too.
    fn part(&mut self, value: ValueId) -> Result<(), Fault> {
        let (Some(joined), Some(shapes)) =
            (&self.all.slots[value.index()], &self.shapes[value.index()])
        else {
            return Ok(());
        };
        for ((frame, shape), part) in self.frames.iter_mut().zip(shapes).zip(ranges(shapes)) {
            if frame.slots[value.index()].is_some() {
                continue;
            }
            let mut own = frame.pool.tensor(joined.dtype, shape.clone())?;
            let data = Arc::get_mut(&mut own.data).ok_or("a fresh buffer is shared")?;
            if !data.copy_from(0, &joined.data, part.start, part.len()) {
                return Err("a frame's part lies outside of what is joined".to_owned());
            }
            frame.slots[value.index()] = Some(own);
        }
        Ok(())
    }
}

/// Where the elements of each frame lie.
fn ranges(shapes: &[Vec<usize>]) -> impl Iterator<Item = Range<usize>> {
    shapes.iter().scan(0, |at, shape| {
        let start = *at;
        *at += shape.iter().product::<usize>();
        Some(start..*at)
    })
}
