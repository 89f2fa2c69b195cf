//! Hands over what enters and leaves ops while a function runs.

use std::ops::ControlFlow;
use std::sync::Arc;

use thane_mil::backend::LoadOptions;
use thane_mil::observe::{Asks, Given, Observe, ObserveError, OpCall, Visit};
use thane_mil::program::{Function, OpId, Program, ValueId};

use crate::Cpu;
use crate::exec::Watch;
use crate::instance::{Running, run_error};
use crate::ops::Fault;
use crate::plan::constant;
use crate::shared::Shared;
use crate::tensor::Tensor;
use crate::weight::Folds;

/// In f32 on the weights' own values, each op by itself, and rounded to fp16 where a value is
/// declared so; with `Numerics::Ane`, in the engine's numbers. The roundings of `Fast` and `Int8`
/// are not shown.
///
/// ```
/// use std::ops::ControlFlow;
///
/// use thane_cpu::{Cpu, Numerics};
/// use thane_mil::backend::View;
/// use thane_mil::evaluate::HostTensor;
/// use thane_mil::observe::{Given, Observe};
/// use thane_mil::text::parse;
/// use thane_mil::types::DType;
///
/// let text = "program(1.3) {
///   func main<ios18>(tensor<fp32, [2]> x) {
///     tensor<fp32, [2]> squares = mul(x = x, y = x);
///     tensor<fp32, [2]> y = relu(x = squares);
///   } -> (y);
/// }";
/// let program = parse(text, &|_, _, _| None)?;
/// let f = &program.functions()[0];
/// let bytes: Vec<u8> = [3.0f32, -4.0].iter().flat_map(|v| v.to_ne_bytes()).collect();
/// let x = View { dtype: DType::Fp32, shape: &[2], bytes: &bytes };
/// let given = Given { inputs: &[("x", x)], states: &[] };
/// let mut largest = 0.0f32;
/// let _ = Cpu::new(Numerics::F32, 1).observe(
///     f,
///     &[given],
///     &|op| f.op(op).def.name == "mul",
///     &mut |call| {
///         let squares = call.value(f.op(call.op).results[0])?;
///         let all = squares.f32s().unwrap_or_default();
///         largest = all.iter().copied().fold(largest, f32::max);
///         Ok(ControlFlow::Continue(()))
///     },
/// )?;
/// assert_eq!(largest, 16.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Observe for Cpu {
    type Tensor = Tensor;

    fn observe(
        &self,
        function: &Function,
        runs: &[Given<'_>],
        asks: &Asks<'_>,
        visit: &mut Visit<'_, Tensor>,
    ) -> Result<ControlFlow<()>, ObserveError> {
        let alone = Program::new(vec![function.clone()]);
        let checked = alone.check_files().map_err(Into::into);
        checked.map_err(ObserveError::Load)?;
        let shared = Arc::new(self.plan_op_by_op(function, &LoadOptions::default())?);
        let plan = shared.plan(&function.name)?;
        let mut running = Running::new(Arc::clone(&shared))?;
        for (run, given) in runs.iter().enumerate() {
            running.fill(given.inputs, given.states)?;
            let mut watching = Watching {
                run,
                shared: &shared,
                asks,
                visit,
                end: None,
            };
            let ran = running.run_watched(&shared, plan, &mut watching);
            match (ran, watching.end) {
                (Ok(()), _) => {}
                (Err(_), Some(End::Break)) => return Ok(ControlFlow::Break(())),
                (Err(_), Some(End::Failed(op, reason))) => {
                    return Err(run_error(plan, op, reason, None).into());
                }
                (Err(error), None) => return Err(error.into()),
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Why a visit ended the run.
enum End {
    Break,
    Failed(OpId, Fault),
}

/// A run that is observed.
struct Watching<'w, 'v> {
    run: usize,
    shared: &'w Shared,
    asks: &'w Asks<'v>,
    visit: &'w mut Visit<'v, Tensor>,
    end: Option<End>,
}

impl Watch for Watching<'_, '_> {
    fn asks(&self, op: OpId) -> bool {
        (self.asks)(op)
    }

    fn called(
        &mut self,
        f: &Function,
        op: OpId,
        values: &[(ValueId, Tensor)],
    ) -> Result<(), Fault> {
        let shared = self.shared;
        let value = |wanted: ValueId| match values.iter().find(|(v, _)| *v == wanted) {
            Some((_, tensor)) => Ok(tensor.clone()),
            None if f.op(op).uses().any(|v| v == wanted) => constant_of(shared, f, wanted),
            None => Err(format!(
                "expected an operand or a result of `{}`, found `{}`",
                f.op(op).def.name,
                f.value(wanted).name
            )),
        };
        let call = OpCall {
            run: self.run,
            op,
            values: &value,
        };
        let (end, reason) = match (self.visit)(&call) {
            Ok(ControlFlow::Continue(())) => return Ok(()),
            Ok(ControlFlow::Break(())) => (End::Break, String::new()),
            Err(reason) => (End::Failed(op, reason.clone()), reason),
        };
        self.end = Some(end);
        Err(reason)
    }
}

fn constant_of(shared: &Shared, f: &Function, value: ValueId) -> Result<Tensor, Fault> {
    let folds = Folds::new(&shared.budget);
    constant(
        &shared.context,
        f,
        value,
        &folds,
        shared.limits.tensor_bytes,
    )
}
