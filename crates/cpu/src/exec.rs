//! Running a plan: values in slots, buffers from a pool, kernels on slices.

use std::borrow::Cow;
use std::sync::Arc;

use thane_kernels::activation::gated;
use thane_kernels::linear::dequantize_rows_gather;
use thane_kernels::norm::rms_norm;
use thane_kernels::rope::{RopeShape, RopeStyle, rope};
use thane_kernels::{Context, Weight};
use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::opset::{ArgType, Infer, Known, OpDef};
use thane_mil::program::ValueId;
use thane_mil::types::{DType, TensorType, Type};

use crate::Numerics;
use crate::ane::{self, Tally};
use crate::fuse::Fused;
use crate::ops::gather::row;
use crate::ops::random::{Seeds, is_random};
use crate::ops::{self, Call, Eval, Fault, Value};
use crate::plain::{Item, Operand, Plain};
use crate::plan::{Branch, Kind, Plan, Step};
use crate::profile::{Begun, Profile};
use crate::tensor::{Buffer, Pool, Tensor};
use crate::weight::Matrix;

/// Elements that a task adds in place.
const ADD_LEN: usize = 1 << 13;

/// What one call of a plan works on.
pub struct Frame<'a> {
    /// Threads and instructions.
    pub context: &'a Context,
    /// How products are computed.
    pub numerics: Numerics,
    /// Whether products of values may be rounded, as those with constant matrices are.
    pub may_round: bool,
    /// The states of the instance, by the plan's numbers.
    pub states: Vec<&'a mut Tensor>,
    /// Values by id.
    pub slots: Vec<Option<Tensor>>,
    /// Buffers to use again.
    pub pool: &'a mut Pool,
    /// How often a loop may go round.
    pub most_rounds: usize,
    /// Seeds of random ops that have none.
    pub seeds: &'a mut Seeds,
    /// What happened to numbers, where that is counted.
    pub tally: Tally,
    /// What masks say by tiles, looked up once for all layers: by their elements, which stay as
    /// they are for it.
    pub mask_tiles: Vec<(Arc<Buffer>, Vec<f32>)>,
    /// What is told what each step takes.
    pub profile: Option<&'a Profile>,
    /// Frames whose rows are in the values: those of several where they run together.
    pub n_frames: usize,
    /// Values of which no more than so many of the greatest elements are wanted.
    pub greatest: Vec<(ValueId, usize)>,
    /// Bytes of its constants that the step did not read, where it screened them.
    pub unread: Option<f64>,
}

/// Compute one op by its plain function: infer the result types, widen fp16, call, round to fp16.
pub fn evaluate(
    context: &Context,
    def: &'static OpDef,
    eval: Eval,
    mut args: Vec<Option<Value>>,
    pool: &mut Pool,
) -> Result<Vec<Tensor>, Fault> {
    let types = infer(def, &args)?;
    // These say themselves what is rounded, and when.
    let rounds = def.name == "cast" || def.is_constexpr();
    if !rounds {
        for tensor in args.iter_mut().flatten().flat_map(tensors_mut) {
            *tensor = pool.widened(tensor)?;
        }
    }
    let results = compute(
        (context, def),
        &types,
        &args,
        pool,
        rounds,
        &mut |call, out| eval(call, out),
    )?;
    for arg in args.into_iter().flatten() {
        match arg {
            Value::Tensor(t) => pool.give(t),
            Value::Tensors(ts) => ts.into_iter().for_each(|t| pool.give(t)),
            Value::Literal(_) => {}
        }
    }
    let rounded = results.into_iter().zip(&types);
    rounded
        .map(|(tensor, ty)| {
            if rounds {
                Ok(tensor)
            } else {
                pool.narrowed(tensor, ty.dtype)
            }
        })
        .collect()
}

/// The tensors of an argument.
pub fn tensors_mut(arg: &mut Value) -> &mut [Tensor] {
    match arg {
        Value::Tensor(t) => std::slice::from_mut(t),
        Value::Tensors(ts) => ts,
        Value::Literal(_) => &mut [],
    }
}

/// Computes the results of an op, as [`Eval`] does.
pub type Evaluate<'a> = dyn FnMut(&Call<'_>, &mut [Buffer]) -> Result<(), Fault> + 'a;

/// Compute one op into fresh tensors of these types; `keeps_halves` says whether those of fp16 are,
/// or are fp32 still.
pub fn compute(
    (context, def): (&Context, &'static OpDef),
    types: &[TensorType],
    args: &[Option<Value>],
    pool: &mut Pool,
    keeps_halves: bool,
    eval: &mut Evaluate<'_>,
) -> Result<Vec<Tensor>, Fault> {
    let mut types = Cow::Borrowed(types);
    if types.iter().any(|t| t.known_shape().is_none()) {
        types = Cow::Owned(sized(&Call {
            context,
            def,
            args,
            results: &types,
        })?);
    }
    let working = ops::working_bytes(def.name, args, &types);
    let _working = (working > 0)
        .then(|| pool.reserve(working, || "what it computes with".to_owned()))
        .transpose()?;
    let mut out = Vec::with_capacity(types.len());
    for ty in types.iter() {
        let shape = ty
            .known_shape()
            .ok_or_else(|| format!("the size of {ty} is not known"))?;
        let dtype = if ty.dtype == DType::Fp16 && !keeps_halves {
            DType::Fp32
        } else {
            ty.dtype
        };
        out.push(pool.tensor(dtype, shape)?);
    }
    let (mut tensors, mut buffers) = (Vec::new(), Vec::new());
    for mut tensor in out {
        let data = std::mem::replace(&mut tensor.data, Arc::new(Buffer::Bool(Vec::new().into())));
        buffers.push(Arc::try_unwrap(data).map_err(|_| "a fresh buffer is shared".to_owned())?);
        tensors.push(tensor);
    }
    eval(
        &Call {
            context,
            def,
            args,
            results: &types,
        },
        &mut buffers,
    )?;
    let finished = tensors
        .into_iter()
        .zip(buffers)
        .map(|(mut tensor, buffer)| {
            tensor.data = Arc::new(buffer);
            tensor
        });
    Ok(finished.collect())
}

/// The types of what an op gives for these arguments.
pub fn infer(def: &'static OpDef, args: &[Option<Value>]) -> Result<Vec<TensorType>, Fault> {
    let ty = |t: &Tensor| Type::Tensor(TensorType::new(t.dtype, t.shape.iter().copied()));
    let types: Vec<Vec<Type>> = args
        .iter()
        .map(|arg| match arg {
            Some(Value::Tensor(t)) => vec![ty(t)],
            Some(Value::Tensors(ts)) => ts.iter().map(ty).collect(),
            Some(Value::Literal(l)) => vec![l.ty()],
            None => Vec::new(),
        })
        .collect();
    let literals: Vec<Vec<Option<Literal>>> = args
        .iter()
        .map(|arg| tensors(arg).iter().map(small_literal).collect())
        .collect();
    let infos: Vec<Option<ArgType<'_>>> = args
        .iter()
        .zip(&types)
        .zip(&literals)
        .map(|((arg, types), literals)| match arg {
            Some(Value::Tensor(t)) => Some(ArgType::One(&types[0], known(t, literals[0].as_ref()))),
            Some(Value::Tensors(ts)) => {
                let items = ts.iter().zip(types).zip(literals);
                Some(ArgType::Many(
                    items
                        .map(|((t, ty), literal)| (ty, known(t, literal.as_ref())))
                        .collect(),
                ))
            }
            Some(Value::Literal(l)) => Some(ArgType::One(&types[0], Known::Literal(l))),
            None => None,
        })
        .collect();
    let mut next_symbol = 0;
    let results = Infer::new(def, &infos, &mut next_symbol)
        .run()
        .map_err(|e| e.0)?;
    results
        .into_iter()
        .map(|t| {
            t.tensor()
                .cloned()
                .ok_or_else(|| "a result is no tensor".to_owned())
        })
        .collect()
}

fn tensors(arg: &Option<Value>) -> &[Tensor] {
    match arg {
        Some(Value::Tensor(t)) => std::slice::from_ref(t),
        Some(Value::Tensors(ts)) => ts,
        _ => &[],
    }
}

fn known<'a>(t: &'a Tensor, literal: Option<&'a Literal>) -> Known<'a> {
    match (t.i32s(), literal) {
        (Some(v), _) => Known::Ints(v),
        (None, Some(l)) => Known::Literal(l),
        (None, None) => Known::No,
    }
}

/// What shapes may follow from beside int32: truth values, narrow integers, and the one number of a
/// scalar.
fn small_literal(t: &Tensor) -> Option<Literal> {
    let is_held_as_is = matches!(
        t.dtype,
        DType::Bool | DType::Int8 | DType::Uint8 | DType::Int16 | DType::Uint16 | DType::Uint32
    );
    let is_scalar = t.dtype.is_float() && t.shape.is_empty();
    if t.len() > 64 || !is_held_as_is && !is_scalar {
        return None;
    }
    let bytes = t.data.bytes().get(..t.dtype.byte_len(t.len())?)?;
    Some(Literal::Tensor(
        TensorType::new(t.dtype, t.shape.iter().copied()),
        Data::owned(bytes.to_vec()),
    ))
}

/// The result types of an op whose sizes follow from its data.
fn sized(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    let unknown = || {
        call.results
            .iter()
            .map(|t| format!("the size of {t} is not known"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let sizes = ops::find_sizes(call.def.name).ok_or_else(unknown)?;
    let shapes = sizes(call)?;
    Ok(call
        .results
        .iter()
        .zip(shapes)
        .map(|(t, shape)| TensorType::new(t.dtype, shape))
        .collect())
}

impl Frame<'_> {
    /// Run the step.
    pub fn step(&mut self, plan: &Plan, step: &Step) -> Result<(), Fault> {
        let begun = self.profile.map(|_| Begun::new(self, plan, step));
        let results = self.compute(plan, step)?;
        let unread = self.unread.take();
        if let (Some(profile), Some(begun)) = (self.profile, begun) {
            let begun = if let Some(bytes) = unread {
                begun.screened(bytes)
            } else {
                begun
            };
            begun.end(profile, plan, results.iter());
        }
        self.drop_values(&step.last_uses);
        for (defined, tensor) in step.results.iter().zip(results) {
            // A label and a dictionary are declared, and no tensor holds them.
            if !matches!(step.kind, Kind::Classify(..)) {
                defined.check(&plan.function, tensor.dtype, &tensor.shape)?;
            }
            if !step.last_uses.contains(&defined.id) {
                self.slots[defined.id.index()] = Some(tensor);
            }
        }
        Ok(())
    }

    /// Give back the buffers of values that are used no more.
    pub fn drop_values(&mut self, values: &[ValueId]) {
        for value in values {
            if let Some(tensor) = self.slots[value.index()].take() {
                self.pool.give(tensor);
            }
        }
    }

    /// What the step gives.
    pub fn compute(&mut self, plan: &Plan, step: &Step) -> Result<Vec<Tensor>, Fault> {
        Ok(match &step.kind {
            Kind::Plain(plain) => self.plain(plain)?,
            Kind::View(plain) => vec![self.view(plain)?.ok_or("elements move")?],
            Kind::Add(plain, x, y) => match self.add_in_place(step, *x, *y)? {
                Some(sum) => vec![sum],
                None => self.plain(plain)?,
            },
            Kind::Read(state) => vec![self.states[*state].clone()],
            Kind::Write(state, value) => {
                let value = self.get(*value)?.clone();
                let kept = &self.states[*state];
                if (kept.dtype, &kept.shape) != (value.dtype, &value.shape) {
                    return Err(format!(
                        "{:?} does not fit a state {:?}",
                        value.shape, kept.shape
                    ));
                }
                *self.states[*state] = value.clone();
                vec![value]
            }
            Kind::Fused(fused) => self.fused(step, fused)?,
            Kind::Cond(pred, [then, otherwise]) => {
                let branch = if self.truth(*pred)? { then } else { otherwise };
                self.branch(plan, branch, Vec::new())?
            }
            Kind::Loop(vars, branches) => self.repeat(plan, vars, branches)?,
            Kind::Classify(probabilities, n_classes) => {
                self.classify(*probabilities, *n_classes)?
            }
            Kind::List(list) => vec![list.run(&self.args(&list.args)?, self.pool)?],
        })
    }

    fn branch(
        &mut self,
        plan: &Plan,
        branch: &Branch,
        inputs: Vec<Tensor>,
    ) -> Result<Vec<Tensor>, Fault> {
        for (id, tensor) in branch.inputs.iter().zip(inputs) {
            self.slots[id.index()] = Some(tensor);
        }
        for step in &branch.steps {
            self.step(plan, step)?;
        }
        branch
            .outputs
            .iter()
            .map(|v| self.get(*v).cloned())
            .collect()
    }

    fn repeat(
        &mut self,
        plan: &Plan,
        vars: &[ValueId],
        branches: &[Branch; 2],
    ) -> Result<Vec<Tensor>, Fault> {
        let mut values = vars
            .iter()
            .map(|v| self.get(*v).cloned())
            .collect::<Result<Vec<_>, _>>()?;
        for _ in 0..self.most_rounds {
            let goes_on = self.branch(plan, &branches[0], values.clone())?;
            if !goes_on.first().is_some_and(is_true) {
                return Ok(values);
            }
            values = self.branch(plan, &branches[1], values)?;
        }
        Err(format!(
            "the loop does not end in {} rounds",
            self.most_rounds
        ))
    }

    /// The place of the first greatest probability, and all of them.
    fn classify(&self, probabilities: ValueId, n_classes: usize) -> Result<Vec<Tensor>, Fault> {
        let all = floats(self.get(probabilities)?)?;
        if all.len() != n_classes || all.is_empty() {
            return Err(format!(
                "there are {} probabilities for {n_classes} classes",
                all.len()
            ));
        }
        let greatest = (0..all.len())
            .rev()
            .max_by(|a, b| all[*a].total_cmp(&all[*b]))
            .unwrap_or_default();
        let greatest =
            i32::try_from(greatest).map_err(|_| "there are too many classes".to_owned())?;
        let dictionary = Tensor::new(
            DType::Fp32,
            vec![n_classes],
            Buffer::F32(all.to_vec().into()),
        );
        Ok(vec![
            Tensor::new(DType::Int32, Vec::new(), Buffer::I32(vec![greatest].into())),
            dictionary,
        ])
    }

    fn truth(&self, value: ValueId) -> Result<bool, Fault> {
        self.get(value).map(is_true)
    }

    pub fn get(&self, value: ValueId) -> Result<&Tensor, Fault> {
        self.slots[value.index()]
            .as_ref()
            .ok_or_else(|| "a value is used after it was dropped".to_owned())
    }

    /// The value for this step to change: taken out of its slot when the step is its last user.
    pub fn take(&mut self, step: &Step, value: ValueId) -> Result<Tensor, Fault> {
        if step.last_uses.contains(&value) {
            self.slots[value.index()]
                .take()
                .ok_or_else(|| "a value is used after it was dropped".to_owned())
        } else {
            self.get(value).cloned()
        }
    }

    fn args(&self, args: &[Option<Operand>]) -> Result<Vec<Option<Value>>, Fault> {
        args.iter()
            .map(|arg| match arg {
                None => Ok(None),
                Some(Operand::Constant(v)) => Ok(Some(v.clone())),
                Some(Operand::Value(v)) => Ok(Some(Value::Tensor(self.get(*v)?.clone()))),
                Some(Operand::Values(items)) => {
                    let tensor = |item: &Item| match item {
                        Item::Constant(t) => Ok(t.clone()),
                        Item::Value(v) => self.get(*v).cloned(),
                    };
                    Ok(Some(Value::Tensors(
                        items.iter().map(tensor).collect::<Result<_, Fault>>()?,
                    )))
                }
            })
            .collect()
    }

    fn plain(&mut self, plain: &Plain) -> Result<Vec<Tensor>, Fault> {
        if plain.def.name == "transpose"
            && let Some(view) = self.view(plain)?
        {
            return Ok(vec![view]);
        }
        let mut args = self.args(&plain.args)?;
        if is_random(plain.def) {
            self.seeds.bind(plain.def, &mut args);
        }
        match self.numerics {
            Numerics::Ane(effects) => ane::evaluate(
                self.context,
                plain,
                args,
                effects,
                self.pool,
                &mut self.tally,
            ),
            Numerics::F32 | Numerics::Fast | Numerics::Int8 => {
                evaluate(self.context, plain.def, plain.eval, args, self.pool)
            }
        }
    }

    /// The first argument under another shape, sharing its buffer; none where elements move.
    fn view(&mut self, plain: &Plain) -> Result<Option<Tensor>, Fault> {
        let x = match plain.args.first() {
            Some(Some(Operand::Value(x))) => self.get(*x)?.clone(),
            Some(Some(Operand::Constant(Value::Tensor(x)))) => x.clone(),
            _ => return Err("`x` is missing".to_owned()),
        };
        let shape = plain.view(&x.shape, || {
            view_shape(plain.def, &self.args(&plain.args)?, self.pool)
        })?;
        Ok(shape.map(|shape| Tensor { shape, ..x }))
    }

    /// `x + y` in the buffer of x, when x ends here and both have one shape.
    fn add_in_place(
        &mut self,
        step: &Step,
        x: ValueId,
        y: ValueId,
    ) -> Result<Option<Tensor>, Fault> {
        let fits = {
            let (x, y) = (self.get(x)?, self.get(y)?);
            x.shape == y.shape && x.f32s().is_some() && y.f32s().is_some()
        };
        let rounds = matches!(self.numerics, Numerics::Ane(_));
        if x == y || !fits || rounds || !step.last_uses.contains(&x) {
            return Ok(None);
        }
        let mut sum = self.take(step, x)?;
        let n = sum.len();
        let unique = matches!(Arc::get_mut(&mut sum.data), Some(Buffer::F32(_)));
        if !unique {
            self.slots[x.index()] = Some(sum);
            return Ok(None);
        }
        if let (Some(Buffer::F32(a)), Some(b)) = (Arc::get_mut(&mut sum.data), self.get(y)?.f32s())
        {
            self.context
                .pool()
                .run_chunks(&mut a[..n], ADD_LEN, |i, a| {
                    a.iter_mut()
                        .zip(&b[i * ADD_LEN..])
                        .for_each(|(a, b)| *a += b);
                });
        }
        Ok(Some(sum))
    }

    fn fused(&mut self, step: &Step, fused: &Fused) -> Result<Vec<Tensor>, Fault> {
        let result = match fused {
            Fused::Linear { x, products, then } => return self.linear(step, *x, products, *then),
            Fused::Append {
                state,
                update,
                begin,
                end,
            } => {
                self.append(*state, *update, [*begin, *end])?;
                return Ok(Vec::new());
            }
            Fused::Gather { indices, weight } => self.gather(*indices, weight)?,
            Fused::RmsNorm { x, weight, epsilon } => self.rms_norm(*x, weight, *epsilon)?,
            Fused::Rope { x, cos, sin, style } => self.rope(step, *x, [*cos, *sin], *style)?,
            Fused::Gated { gate, up, op } => {
                let up = self.get(*up)?.clone();
                let mut gate = self.take(step, *gate)?;
                if gate.shape != up.shape {
                    return Err("gate and up differ in shape".to_owned());
                }
                gated(
                    self.context,
                    *op,
                    floats_mut(&mut gate, self.pool)?,
                    floats(&up)?,
                );
                gate
            }
            Fused::Attention { query, cached } => self.attention(*query, *cached)?,
            Fused::RowsAttention(attention) => self.rows_attention(step, attention)?,
            Fused::Attend {
                query,
                key,
                value,
                mask,
                by_row,
            } => self.attend([*query, *key, *value], *mask, *by_row)?,
            Fused::LayerNorm {
                x,
                weight,
                bias,
                epsilon,
            } => self.layer_norm(*x, weight.as_ref(), bias.as_ref(), *epsilon)?,
            Fused::MatMul { x, y, transpose_y } => self.matmul([*x, *y], *transpose_y)?,
            Fused::HalfLinear { x, weight, bias } => self.half_linear(*x, weight, bias.as_ref())?,
            Fused::Pointwise { x, weight, bias } => self.pointwise(*x, weight, bias.as_ref())?,
        };
        Ok(vec![result])
    }

    fn gather(&mut self, indices: ValueId, weight: &Matrix) -> Result<Tensor, Fault> {
        let indices = self.get(indices)?;
        let ids = indices
            .to_ints()
            .ok_or("`indices` does not hold integers")?;
        let ids = ids
            .into_iter()
            .map(|id| row(id, weight.n_rows))
            .collect::<Result<Vec<_>, _>>()?;
        let shape = [indices.shape.as_slice(), &[weight.n_cols]].concat();
        let (mut out, n) = self.pool.take_checked(&shape)?;
        if weight.bytes.is_released() {
            self.gather_copied(weight, &ids, &mut out[..n])?;
        } else {
            dequantize_rows_gather(self.context, &weight.weight(), &ids, &mut out[..n]);
        }
        if let Numerics::Ane(effects) = self.numerics {
            ane::round_constants(self.context, &mut out[..n], effects);
        }
        Ok(Tensor::new(DType::Fp32, shape, Buffer::F32(out)))
    }

    /// The values of some rows, which are read from their file: a map would bring in what lies
    /// around each, up to 2 MiB.
    fn gather_copied(
        &mut self,
        weight: &Matrix,
        ids: &[usize],
        out: &mut [f32],
    ) -> Result<(), Fault> {
        let row_bytes = weight.bytes.len() / weight.n_rows.max(1);
        let mut rows = self.pool.take(out.len())?;
        let bytes = &mut bytemuck::cast_slice_mut(&mut rows)[..ids.len() * row_bytes];
        self.context
            .pool()
            .run_chunks(&mut *bytes, row_bytes.max(1), |i, row| {
                // Each id is below the number of rows.
                let _ = weight.bytes.read(ids[i] * row_bytes, row);
            });
        let copied = Weight {
            ty: weight.ty,
            bytes,
            n_rows: ids.len(),
            n_cols: weight.n_cols,
        };
        dequantize_rows_gather(self.context, &copied, &Vec::from_iter(0..ids.len()), out);
        self.pool.give_f32(rows);
        Ok(())
    }

    fn rms_norm(&mut self, x: ValueId, weight: &Tensor, epsilon: f32) -> Result<Tensor, Fault> {
        let shape = self.get(x)?.shape.clone();
        let (mut out, n) = self.pool.take_checked(&shape)?;
        let x = floats(self.get(x)?)?;
        rms_norm(
            self.context,
            x,
            weight.f32s(),
            epsilon,
            weight.len(),
            &mut out[..n],
        );
        Ok(Tensor::new(DType::Fp32, shape, Buffer::F32(out)))
    }

    fn rope(
        &mut self,
        step: &Step,
        x: ValueId,
        angles: [ValueId; 2],
        style: RopeStyle,
    ) -> Result<Tensor, Fault> {
        let mut x = self.take(step, x)?;
        let &[batch, n_heads, n_tokens, head_dim] = x.shape.as_slice() else {
            return Err("x is not of rank 4".to_owned());
        };
        let (n_heads, head_stride) = (batch * n_heads, n_tokens * head_dim);
        let shape = RopeShape {
            n_heads,
            n_tokens,
            rotary_dim: head_dim,
            head_stride,
            token_stride: head_dim,
        };
        let values = floats_mut(&mut x, self.pool)?;
        self.rotate(values, shape, angles, style)?;
        Ok(x)
    }

    /// Rotate heads in place by angles of this frame.
    pub fn rotate(
        &self,
        x: &mut [f32],
        shape: RopeShape,
        angles: [ValueId; 2],
        style: RopeStyle,
    ) -> Result<(), Fault> {
        let [cos, sin] = [floats(self.get(angles[0])?)?, floats(self.get(angles[1])?)?];
        if cos.len() != shape.n_tokens * shape.rotary_dim / 2 || sin.len() != cos.len() {
            return Err("the angles do not fit the tokens".to_owned());
        }
        rope(self.context, x, shape, cos, sin, style);
        Ok(())
    }
}

/// Whether a truth value of one element is true.
fn is_true(t: &Tensor) -> bool {
    t.to_ints()
        .is_some_and(|v| v.first().is_some_and(|v| *v != 0))
}

/// The elements of a tensor of fp32.
pub fn floats(t: &Tensor) -> Result<&[f32], Fault> {
    t.f32s()
        .ok_or_else(|| format!("{} stands where fp32 is due", t.dtype))
}

/// The same to be changed, in a buffer that nothing else holds.
pub fn floats_mut<'t>(t: &'t mut Tensor, pool: &mut Pool) -> Result<&'t mut [f32], Fault> {
    let (n, dtype) = (t.len(), t.dtype);
    match pool.own(t)? {
        Buffer::F32(values) => Ok(&mut values[..n]),
        _ => Err(format!("{dtype} stands where fp32 is due")),
    }
}

/// The shape under which a reshaping op, or a transposition, gives the elements of its first
/// argument in their order; none where it moves them.
pub fn view_shape(
    def: &'static OpDef,
    args: &[Option<Value>],
    pool: &Pool,
) -> Result<Option<Vec<usize>>, Fault> {
    let Some(Some(Value::Tensor(x))) = args.first() else {
        return Err("`x` is missing".to_owned());
    };
    if def.name == "transpose" && !moves_nothing(x, args) {
        return Ok(None);
    }
    let shape = infer(def, args)?[0]
        .known_shape()
        .ok_or("the shape is not known")?;
    pool.check(x.dtype, &shape)?;
    Ok(Some(shape))
}

/// Whether only axes of size 1 change their place.
fn moves_nothing(x: &Tensor, args: &[Option<Value>]) -> bool {
    let Some(Some(Value::Tensor(perm))) = args.get(1) else {
        return false;
    };
    let rank = x.shape.len() as i64;
    let axes = perm
        .to_ints()
        .unwrap_or_default()
        .into_iter()
        .map(|p| (if p < 0 { p + rank } else { p }) as usize);
    let moving: Vec<usize> = axes
        .filter(|a| x.shape.get(*a).is_some_and(|n| *n != 1))
        .collect();
    moving.is_sorted()
}
