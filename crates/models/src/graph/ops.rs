//! The ops that layers are written with, as methods of [`Graph`].

use std::ops::Range;

use thane_mil::build::BuildError;
use thane_mil::program::{Arg, ValueId};
use thane_mil::types::{DType, Type};

use super::{Graph, Layout, ValueResult};
use crate::checkpoint::Tensor;

impl Graph {
    /// `x @ weight^T + bias` along the features, in the layout of the graph.
    pub fn linear(
        &mut self,
        name: &str,
        x: ValueId,
        weight: &Tensor,
        bias: Option<&Tensor>,
    ) -> ValueResult {
        self.product(name, x, weight, bias, 1.0)
    }

    /// Like [`Self::linear`], for an `x` whose features are the last axis in either layout.
    pub fn rows_linear(
        &mut self,
        name: &str,
        x: ValueId,
        weight: &Tensor,
        bias: Option<&Tensor>,
    ) -> ValueResult {
        let bias = bias.map(|b| self.weight(b)).transpose()?;
        let weight = self.weight(weight)?;
        self.linear_of(name, x, weight, bias)
    }

    fn linear_of(
        &mut self,
        name: &str,
        x: ValueId,
        weight: ValueId,
        bias: Option<ValueId>,
    ) -> ValueResult {
        match bias {
            None => self.op("linear", name, [("x", x), ("weight", weight)]),
            Some(bias) => self.op(
                "linear",
                name,
                [("x", x), ("weight", weight), ("bias", bias)],
            ),
        }
    }

    /// Like [`Self::linear`], for a product that is added to the residual stream.
    pub fn linear_to_residual(
        &mut self,
        name: &str,
        x: ValueId,
        weight: &Tensor,
        bias: Option<&Tensor>,
    ) -> ValueResult {
        self.product(name, x, weight, bias, self.residual_divisor)
    }

    /// Like [`Self::linear`], of a weight and a bias that are divided by `divisor`.
    pub fn product(
        &mut self,
        name: &str,
        x: ValueId,
        weight: &Tensor,
        bias: Option<&Tensor>,
        divisor: f32,
    ) -> ValueResult {
        let bias = bias
            .map(|b| self.weight_of_rank(b, 1, divisor))
            .transpose()?;
        if self.spelling.layout == Layout::Rows {
            let weight = self.weight_of_rank(weight, 2, divisor)?;
            return self.linear_of(name, x, weight, bias);
        }
        let weight = self.weight_of_rank(weight, 4, divisor)?; // [out, in, 1, 1]
        self.conv(name, (x, weight), 1, bias)
    }

    /// A convolution of `x` [1, in, ..] with `weight` [out, in / groups, ..], without padding.
    pub fn conv(
        &mut self,
        name: &str,
        (x, weight): (ValueId, ValueId),
        groups: usize,
        bias: Option<ValueId>,
    ) -> ValueResult {
        let n_axes = self.shape(weight).len() - 2;
        let (ones, zeros) = (
            self.ints(&vec![1; n_axes])?,
            self.ints(&vec![0; 2 * n_axes])?,
        );
        let (groups, valid) = (self.int(groups as i32)?, self.string("valid")?);
        let args = [
            ("x", x),
            ("weight", weight),
            ("strides", ones),
            ("pad_type", valid),
            ("pad", zeros),
            ("dilations", ones),
            ("groups", groups),
        ];
        let Some(bias) = bias else {
            return self.op("conv", name, args);
        };
        let [x, weight, strides, kind, pad, dilations, groups] = args;
        let bias = ("bias", bias);
        let args = [x, weight, strides, kind, pad, dilations, groups, bias];
        self.op("conv", name, args)
    }

    /// Looks up rows of a table [rows, features] by indices [batch, tokens], divided by the divisor
    /// of the residual stream: [batch, tokens, features].
    pub fn rows_to_residual(&mut self, table: &Tensor, indices: ValueId) -> ValueResult {
        let table = self.weight_of_rank(table, 2, self.residual_divisor)?;
        self.gather(table, indices)
    }

    /// A constant with the numbers of a tensor divided by the divisor of the residual stream.
    pub fn weight_for_residual(&mut self, tensor: &Tensor) -> ValueResult {
        self.weight_of_rank(tensor, tensor.shape.len(), self.residual_divisor)
    }

    /// Looks up rows of a table by indices: `table[indices]`.
    pub fn gather(&mut self, table: ValueId, indices: ValueId) -> ValueResult {
        let axis = self.int(0)?;
        self.op(
            "gather",
            "rows",
            [("x", table), ("indices", indices), ("axis", axis)],
        )
    }

    /// Reduces `x` along `axis`, which remains as a dimension of 1.
    pub fn reduce(&mut self, op: &str, x: ValueId, axis: i32) -> ValueResult {
        let (axes, keep) = (self.ints(&[axis])?, self.bool(true)?);
        self.op(op, op, [("x", x), ("axes", axes), ("keep_dims", keep)])
    }

    /// The index of the greatest element of `x` along `axis`, which remains as a dimension of 1.
    pub fn argmax(&mut self, x: ValueId, axis: i32) -> ValueResult {
        let (axis, keep) = (self.int(axis)?, self.bool(true)?);
        let args = [("x", x), ("axis", axis), ("keep_dims", keep)];
        self.op("reduce_argmax", "argmax", args)
    }

    /// The number of axes of `x` from `axis` to the last one.
    pub fn rank_from(&self, x: ValueId, axis: i32) -> usize {
        let rank = self.shape(x).len();
        usize::try_from(axis).map_or(axis.unsigned_abs() as usize, |at| rank - at)
    }

    /// `x + y`.
    pub fn add(&mut self, x: ValueId, y: ValueId) -> ValueResult {
        self.op("add", "add", [("x", x), ("y", y)])
    }

    /// `x - y`.
    pub fn sub(&mut self, x: ValueId, y: ValueId) -> ValueResult {
        self.op("sub", "sub", [("x", x), ("y", y)])
    }

    /// `x * y`.
    pub fn mul(&mut self, x: ValueId, y: ValueId) -> ValueResult {
        self.op("mul", "mul", [("x", x), ("y", y)])
    }

    /// `x * factor`.
    pub fn scale(&mut self, x: ValueId, factor: f32) -> ValueResult {
        let factor = self.float(factor)?;
        self.mul(x, factor)
    }

    /// `x` in another shape; -1 stands for the remaining elements.
    pub fn reshape(&mut self, x: ValueId, shape: &[i32]) -> ValueResult {
        let shape = self.ints(shape)?;
        self.op("reshape", "reshape", [("x", x), ("shape", shape)])
    }

    /// `x` with permuted axes.
    pub fn transpose(&mut self, x: ValueId, perm: &[i32]) -> ValueResult {
        let perm = self.ints(perm)?;
        self.op("transpose", "transpose", [("x", x), ("perm", perm)])
    }

    /// `x` with dimensions of 1 inserted at `axes`.
    pub fn expand_dims(&mut self, x: ValueId, axes: &[i32]) -> ValueResult {
        let axes = self.ints(axes)?;
        self.op("expand_dims", "expand_dims", [("x", x), ("axes", axes)])
    }

    /// `x` without the axes `axes`, which have size 1.
    pub fn squeeze(&mut self, x: ValueId, axes: &[i32]) -> ValueResult {
        let axes = self.ints(axes)?;
        self.op("squeeze", "squeeze", [("x", x), ("axes", axes)])
    }

    /// The last element along `axis`, which remains as a dimension of 1.
    pub fn last(&mut self, x: ValueId, axis: usize) -> ValueResult {
        let rank = self.shape(x).len();
        let is_axis = |i: usize| i == axis;
        let begin: Vec<i32> = (0..rank).map(|i| -i32::from(is_axis(i))).collect();
        let all_but_axis: Vec<bool> = (0..rank).map(|i| !is_axis(i)).collect();
        let (begin, end) = (self.ints(&begin)?, self.ints(&vec![0; rank])?);
        let (begin_mask, end_mask) = (self.bools(&all_but_axis)?, self.bools(&vec![true; rank])?);
        self.slice("last", x, [begin, end], [begin_mask, end_mask])
    }

    /// The elements of `range` along `axis`.
    pub fn part(
        &mut self,
        name: &str,
        x: ValueId,
        axis: usize,
        range: Range<usize>,
    ) -> ValueResult {
        let rank = self.shape(x).len();
        let corner = |at: usize| -> Vec<i32> {
            let of_axis = |i: usize| if i == axis { at as i32 } else { 0 };
            (0..rank).map(of_axis).collect()
        };
        let others: Vec<bool> = (0..rank).map(|i| i != axis).collect();
        let (begin, end) = (
            self.ints(&corner(range.start))?,
            self.ints(&corner(range.end))?,
        );
        let others = self.bools(&others)?;
        self.slice(name, x, [begin, end], [others; 2])
    }

    /// `x` from `begin` to `end`; along axes where `masks` are true, from its begin or to its end.
    pub fn slice(
        &mut self,
        name: &str,
        x: ValueId,
        [begin, end]: [ValueId; 2],
        masks: [ValueId; 2],
    ) -> ValueResult {
        let (begin, end) = (("begin", begin), ("end", end));
        let (from, to) = (("begin_mask", masks[0]), ("end_mask", masks[1]));
        self.op("slice_by_index", name, [("x", x), begin, end, from, to])
    }

    /// `x` with `update` in its place from `begin` to `end`, which is whole along axes where `mask`
    /// is true.
    pub fn slice_update(
        &mut self,
        x: ValueId,
        update: ValueId,
        [begin, end]: [ValueId; 2],
        mask: ValueId,
    ) -> ValueResult {
        let (begin, end) = (("begin", begin), ("end", end));
        let (from, to) = (("begin_mask", mask), ("end_mask", mask));
        let args = [("x", x), ("update", update), begin, end, from, to];
        self.op("slice_update", "updated", args)
    }

    /// Writes a state; the result is what it then holds.
    pub fn store(&mut self, name: &str, state: ValueId, value: ValueId) -> ValueResult {
        let args = [("state", state), ("value", value)];
        self.op("coreml_update_state", name, args)
    }

    /// The number of columns of `input_ids` [rows, tokens], int32 [1].
    pub fn n_tokens(&mut self, input_ids: ValueId) -> ValueResult {
        let shape = self.op("shape", "shape", [("x", input_ids)])?;
        let (one, two) = (self.ints(&[1])?, self.ints(&[2])?);
        let args = [("x", shape), ("begin", one), ("end", two)];
        self.op("slice_by_index", "n_tokens", args)
    }

    /// The element `idx` along `axis`, which remains as a dimension of 1.
    pub fn element(&mut self, name: &str, x: ValueId, axis: usize, idx: usize) -> ValueResult {
        self.part(name, x, axis, idx..idx + 1)
    }

    /// Splits `x` into two halves along `axis`.
    pub fn halves(&mut self, x: ValueId, axis: i32) -> Result<[ValueId; 2], BuildError> {
        let halves = self.split(x, 2, axis)?;
        Ok([halves[0], halves[1]])
    }

    /// Splits `x` into `n` equal parts along `axis`.
    pub fn split(&mut self, x: ValueId, n: i32, axis: i32) -> Result<Vec<ValueId>, BuildError> {
        let (n, axis) = (self.int(n)?, self.int(axis)?);
        let name = self.name("split");
        let args = [
            ("x", Arg::Value(x)),
            ("num_splits", Arg::Value(n)),
            ("axis", Arg::Value(axis)),
        ];
        self.builder.op_results("split", &name, args)
    }

    /// Splits `x` into parts of these sizes along `axis`.
    pub fn split_sizes(
        &mut self,
        x: ValueId,
        sizes: &[i32],
        axis: i32,
    ) -> Result<Vec<ValueId>, BuildError> {
        let (sizes, axis) = (self.ints(sizes)?, self.int(axis)?);
        let name = self.name("split");
        let args = [
            ("x", Arg::Value(x)),
            ("split_sizes", Arg::Value(sizes)),
            ("axis", Arg::Value(axis)),
        ];
        self.builder.op_results("split", &name, args)
    }

    /// The `n` greatest elements of `x` along its last axis, in falling order, and their indices.
    pub fn top(&mut self, x: ValueId, n: i32) -> Result<[ValueId; 2], BuildError> {
        let (n, axis) = (self.int(n)?, self.int(-1)?);
        let name = self.name("top");
        let args = [
            ("x", Arg::Value(x)),
            ("k", Arg::Value(n)),
            ("axis", Arg::Value(axis)),
        ];
        let results = self.builder.op_results("topk", &name, args)?;
        Ok([results[0], results[1]])
    }

    /// Runs `body` while `more` gives true. Both get the variables, which `body` replaces; they may
    /// use constants that the function has, and must not make new ones.
    pub fn while_loop(
        &mut self,
        name: &str,
        initial: &[ValueId],
        more: impl FnOnce(&mut Self, &[ValueId]) -> Result<Vec<ValueId>, BuildError>,
        body: impl FnOnce(&mut Self, &[ValueId]) -> Result<Vec<ValueId>, BuildError>,
    ) -> Result<Vec<ValueId>, BuildError> {
        let variables = self.begin_loop_block(initial);
        let outputs = more(self, &variables)?;
        let more = self.builder.end_block(&outputs);
        let variables = self.begin_loop_block(initial);
        let outputs = body(self, &variables)?;
        let body = self.builder.end_block(&outputs);
        let name = self.name(name);
        let args = vec![("loop_vars", Arg::Values(initial.to_vec()))];
        self.builder
            .op_with_blocks("while_loop", &name, args, vec![more, body])
    }

    /// Begins a block of a loop and returns its variables. Unknown sizes become symbols of their
    /// own, as those of a program that is read are.
    fn begin_loop_block(&mut self, initial: &[ValueId]) -> Vec<ValueId> {
        let types = initial
            .iter()
            .map(|v| self.builder.function().value(*v).ty.clone());
        let mut types: Vec<Type> = types.collect();
        for ty in &mut types {
            if let Type::Tensor(tensor) = ty {
                for dim in tensor.shape.iter_mut().filter(|dim| dim.known().is_none()) {
                    *dim = self.builder.symbol();
                }
            }
        }
        let inputs: Vec<(&str, Type)> = types.into_iter().map(|ty| ("variable", ty)).collect();
        self.builder.begin_block(&inputs)
    }

    /// Joins `values` along `axis`, by the op `concat` or `stack`.
    pub fn join(&mut self, op: &str, values: &[ValueId], axis: i32) -> ValueResult {
        let axis = self.int(axis)?;
        self.op_with(
            op,
            op,
            [
                ("values", Arg::Values(values.to_vec())),
                ("axis", Arg::Value(axis)),
            ],
        )
    }

    /// `x` in another element type; `x` itself if it already has that type.
    pub fn cast(&mut self, x: ValueId, dtype: DType) -> ValueResult {
        if self
            .builder
            .function()
            .value(x)
            .ty
            .tensor()
            .is_some_and(|t| t.dtype == dtype)
        {
            return Ok(x);
        }
        let dtype = self.string(dtype.name())?;
        self.op("cast", "cast", [("x", x), ("dtype", dtype)])
    }
}
