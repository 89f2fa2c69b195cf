//! Loading a program: planning its functions.

use std::collections::HashMap;
use std::sync::Arc;

use thane_kernels::{BlockType, Isa};
use thane_mil::backend::{
    Backend, Batch, Executable, Instance, LoadError, LoadOptions, RunError, of_op,
};
use thane_mil::budget::{Budget, OverBudget};
use thane_mil::program::{Function, OpId, Program};
use thane_mil::types::{TensorType, Type};

use crate::ane::Effects;
use crate::batch::Together;
use crate::exec::{Kind, Plan};
use crate::instance::Running;
use crate::plan::fuse::{self, Fusion};
use crate::plan::rewrite::{rewrite, rewrite_fast};
use crate::plan::{Planner, plan};
use crate::shared::Shared;
use crate::weight::{Folds, Matrix};
use crate::{Cpu, Numerics};

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn load_with(
        &self,
        program: &Program,
        options: &LoadOptions,
    ) -> Result<Arc<dyn Executable>, LoadError> {
        same_states(program)?;
        program.check_files()?;
        Ok(Arc::new(Loaded {
            shared: Arc::new(self.plan(program.functions(), options)?),
        }))
    }

    fn budget(&self) -> Budget {
        self.budget.clone().unwrap_or_default()
    }
}

struct Loaded {
    shared: Arc<Shared>,
}

impl Executable for Loaded {
    fn instantiate(&self) -> Result<Box<dyn Instance>, RunError> {
        Ok(Box::new(Running::new(Arc::clone(&self.shared))?))
    }

    fn instantiate_batch(&self, n: usize) -> Result<Box<dyn Batch>, RunError> {
        Ok(Box::new(Together::new(Arc::clone(&self.shared), n)?))
    }
}

impl Cpu {
    /// The functions planned, with kernels for all patterns.
    pub(crate) fn plan(
        &self,
        functions: &[Function],
        options: &LoadOptions,
    ) -> Result<Shared, LoadError> {
        // The engine's numbers are those of each op.
        if matches!(self.numerics, Numerics::Ane(_)) {
            return self.plan_with(functions, options, &fuse::stored());
        }
        let rewrite = match self.numerics.is_fast() {
            true => rewrite_fast,
            false => rewrite,
        };
        let functions: Vec<Function> = functions.iter().map(|f| rewrite(f).into_owned()).collect();
        self.plan_with(&functions, options, &fuse::fusions())
    }

    /// A function planned so that each op is a step by itself and weights are as they are stored;
    /// in f32, or as on the engine if the numerics are.
    pub(crate) fn plan_op_by_op(
        &self,
        function: &Function,
        options: &LoadOptions,
    ) -> Result<Shared, LoadError> {
        let (effects, numerics) = match self.numerics {
            Numerics::Ane(effects) => (effects, self.numerics),
            Numerics::F32 | Numerics::Fast | Numerics::Int8 => (Effects::NONE, Numerics::F32),
        };
        let engine = Cpu {
            numerics: Numerics::Ane(effects),
            ..self.clone()
        };
        let planned = engine.plan(std::slice::from_ref(function), options)?;
        Ok(Shared {
            numerics,
            ..planned
        })
    }

    /// The functions planned, with kernels for these fusions.
    pub(crate) fn plan_with(
        &self,
        functions: &[Function],
        options: &LoadOptions,
        fusions: &[Fusion],
    ) -> Result<Shared, LoadError> {
        let context = Arc::new(self.context());
        let mut plans = HashMap::new();
        let budget = self.budget();
        let folds = Folds::new(&budget);
        let most_bytes = options.limits.tensor_bytes;
        let begin = |f| plan(&context, f, &folds, most_bytes, fusions, self.numerics);
        let planners: Vec<Planner> = functions.iter().map(begin).collect();
        for (function, planner) in functions.iter().zip(planners) {
            let plan = planner.plan(self.numerics).map_err(|(op, reason)| {
                let refused = folds.refusal(&reason);
                load_error(function, op, reason, refused)
            })?;
            plans.insert(function.name.clone(), plan);
        }
        let may_round = self.rounds(context.isa(), plans.values());
        let mut states: Vec<(String, TensorType)> = Vec::new();
        for plan in plans.values_mut() {
            for (name, ty) in &plan.states {
                let known = states.iter().position(|(known, _)| known == name);
                plan.state_idx.push(known.unwrap_or(states.len()));
                if known.is_none() {
                    states.push((name.clone(), ty.clone()));
                }
            }
        }
        let (numerics, plans) = (self.numerics, Arc::new(plans));
        Ok(Shared {
            context,
            numerics,
            may_round,
            limits: options.limits,
            budget,
            seed: options.seed,
            plans,
            states,
            profile: self.profile.clone(),
        })
    }

    /// Whether products with constant matrices round what they multiply, so that those of attention
    /// may, too.
    fn rounds<'p>(&self, isa: Isa, plans: impl Iterator<Item = &'p Plan>) -> bool {
        let is_rounded = |weight: &Matrix| {
            weight.multiplies_codes() || weight.stored.ty == BlockType::Bf16 && isa.has_bf16()
        };
        let mut steps = plans.flat_map(|plan| &plan.steps);
        match self.numerics {
            Numerics::F32 | Numerics::Ane(_) => false,
            Numerics::Int8 => true,
            Numerics::Fast => steps.any(|step| match &step.kind {
                Kind::Fused(kernel) => {
                    let mut products = kernel.facts().products.iter();
                    products.any(|p| is_rounded(&p.weight))
                }
                _ => false,
            }),
        }
    }
}

/// Functions share states by name, so a name must mean one type.
pub(crate) fn same_states(program: &Program) -> Result<(), LoadError> {
    let mut types = HashMap::new();
    for f in program.functions() {
        for value in f.body().inputs.iter().map(|v| f.value(*v)) {
            if let Type::State(ty) = &value.ty
                && *types.entry(&value.name).or_insert(ty) != ty
            {
                let reason = format!(
                    "the state `{}` is of another type in another function",
                    value.name
                );
                return Err(load_error(f, None, reason, None));
            }
        }
    }
    Ok(())
}

fn load_error(
    function: &Function,
    op: Option<OpId>,
    reason: String,
    refused: Option<OverBudget>,
) -> LoadError {
    let (name, place) = op.map_or((String::new(), String::new()), |id| {
        (
            function.op(id).def.name.to_owned(),
            function.op(id).origin.place.to_string(),
        )
    });
    match refused {
        Some(source) => LoadError::OverBudget {
            place: format!("{}: {}", function.name, of_op(&name, None, &place)),
            source,
        },
        None => LoadError::Op {
            function: function.name.clone(),
            op: name,
            place,
            reason,
        },
    }
}
