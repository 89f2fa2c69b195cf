//! Several instances that run together: [`crate::lockstep`] over what each of them brings.

use std::sync::Arc;

use thane_mil::backend::{Batch, Instance, RunError, check_each_once};
use thane_mil::loops::Loops;
use thane_mil::types::TensorType;

use crate::ane::Tally;
use crate::exec::{Frame, Plan};
use crate::instance::{Running, run_error};
use crate::lockstep::Lockstep;
use crate::ops::random::Seeds;
use crate::shared::Shared;
use crate::tensor::Pool;

/// Instances of one program, and what they share in a call.
pub struct Together {
    shared: Arc<Shared>,
    members: Vec<Running>,
    pool: Pool,
}

impl Together {
    /// `n` instances with fresh states.
    pub fn new(shared: Arc<Shared>, n: usize) -> Result<Self, RunError> {
        let n_bytes = |(_, ty): &(String, TensorType)| ty.byte_len().unwrap_or(usize::MAX);
        let of_one = shared
            .states
            .iter()
            .map(n_bytes)
            .fold(0usize, usize::saturating_add);
        let (bytes, most) = (of_one.saturating_mul(n), shared.limits.batch_bytes);
        if bytes > most {
            return Err(RunError::Memory { n, bytes, most });
        }
        let members = (0..n)
            .map(|_| Running::new(Arc::clone(&shared)))
            .collect::<Result<_, _>>()?;
        let pool = Pool::new(shared.limits.tensor_bytes, &shared.budget);
        Ok(Self {
            shared,
            members,
            pool,
        })
    }

    fn lockstep(&mut self, shared: &Shared, plan: &Plan, which: &[usize]) -> Result<(), RunError> {
        let mut which = which.to_vec();
        which.sort_unstable();
        let mut frames = Vec::with_capacity(which.len());
        for (idx, member) in self.members.iter_mut().enumerate() {
            if which.binary_search(&idx).is_ok() {
                frames.push(member.frame(shared, plan)?);
            }
        }
        let all = Frame {
            context: &shared.context,
            numerics: shared.numerics,
            may_round: shared.may_round,
            states: Vec::new(),
            slots: vec![None; plan.function.n_values()],
            pool: &mut self.pool,
            loops: Loops::within(shared.limits),
            // No op that draws numbers runs for all of them at once.
            seeds: &mut Seeds::new(shared.seed),
            tally: Tally::default(),
            mask_tiles: Vec::new(),
            masks: Vec::new(),
            profile: shared.profile.as_deref(),
            watch: None,
            n_frames: which.len(),
            path: None,
            unread: None,
        };
        let mut lockstep = Lockstep::new(plan, frames, all);
        for step in &plan.steps {
            if let Err((frame, reason)) = lockstep.step(step) {
                let refused = lockstep.refusal(&reason);
                let reason = match frame.and_then(|at| which.get(at)) {
                    Some(idx) => format!("of sequence {idx}: {reason}"),
                    None => reason,
                };
                return Err(run_error(plan, step.op, reason, refused));
            }
        }
        let slots = match (lockstep.finish(), plan.steps.last()) {
            (Ok(slots), _) => slots,
            (Err(reason), Some(step)) => {
                let refused = lockstep.refusal(&reason);
                return Err(run_error(plan, step.op, reason, refused));
            }
            (Err(_), None) => return Err(RunError::NoFunction(plan.function.name.clone())),
        };
        for (idx, slots) in which.into_iter().zip(slots) {
            self.members[idx].keep_outputs(plan, slots);
        }
        Ok(())
    }
}

impl Batch for Together {
    fn n_instances(&self) -> usize {
        self.members.len()
    }

    fn instance(&self, idx: usize) -> Result<&dyn Instance, RunError> {
        let n = self.members.len();
        let member = self
            .members
            .get(idx)
            .ok_or(RunError::NoInstance { idx, n })?;
        Ok(member)
    }

    fn instance_mut(&mut self, idx: usize) -> Result<&mut dyn Instance, RunError> {
        let n = self.members.len();
        let member = self
            .members
            .get_mut(idx)
            .ok_or(RunError::NoInstance { idx, n })?;
        Ok(member)
    }

    fn run(&mut self, function: &str, which: &[usize]) -> Result<(), RunError> {
        check_each_once(which, self.members.len())?;
        let shared = Arc::clone(&self.shared);
        match *which {
            [] => shared.plan(function).map(|_| ()),
            // Nothing is to be joined.
            [idx] => self.members[idx].run(function),
            _ => self.lockstep(&shared, shared.plan(function)?, which),
        }
    }
}
