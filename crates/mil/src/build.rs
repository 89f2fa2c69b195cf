//! [`FunctionBuilder`] makes a function op by op and infers each result type as the op is added.

use std::collections::HashMap;

use crate::literal::Literal;
use crate::opset::{self, Accepts, ArgType, BlockTypes, Infer, Known, OpDef, Opset, TypeError};
use crate::program::{Arg, Block, BlockId, Definition, Function, Op, OpId, Origin, Value, ValueId};
use crate::shorten::shorten;
use crate::types::{Dim, Type, is_type_word};

/// Why an op cannot be added to a function.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The opset has no op with this name.
    #[error("opset {} has no op `{op}`", opset.name())]
    UnknownOp {
        /// Op name.
        op: String,
        /// The opset of the function.
        opset: Opset,
    },
    /// The op has no parameter with this name.
    #[error("op `{op}` has no parameter `{param}`")]
    UnknownParam {
        /// Op name.
        op: String,
        /// Parameter name.
        param: String,
    },
    /// The arguments do not fit the op.
    #[error("op `{op}` with result `{result}`: {source}")]
    Type {
        /// Op name.
        op: String,
        /// Name of the first result.
        result: String,
        /// What does not fit.
        source: TypeError,
    },
}

/// Builds a [`Function`]; [`FunctionBuilder::finish`] returns it.
#[derive(Debug)]
pub struct FunctionBuilder {
    function: Function,
    origin: Origin,
    /// Open blocks, innermost last.
    open: Vec<BlockId>,
}

impl FunctionBuilder {
    /// A builder of a function without inputs and ops.
    pub fn new(name: impl Into<String>, opset: Opset) -> Self {
        Self {
            function: Function::new(name.into(), opset),
            origin: Origin::default(),
            open: vec![Function::BODY],
        }
    }

    /// A builder that continues a copy of `function` under another name, without its outputs.
    pub fn continuing(function: &Function, name: impl Into<String>) -> Self {
        let mut function = function.clone();
        function.name = name.into();
        function.blocks[0].outputs.clear();
        Self {
            function,
            origin: Origin::default(),
            open: vec![Function::BODY],
        }
    }

    /// A builder of a function with the name, opset, attributes and symbolic dimensions of
    /// `function`, and none of its inputs and ops.
    pub fn rewriting(function: &Function) -> Self {
        let mut new = Self::new(function.name.clone(), function.opset);
        new.function.attributes = function.attributes.clone();
        new.function.n_symbols = function.n_symbols;
        new
    }

    /// The function built so far.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// A new symbolic dimension, whose size each call chooses.
    pub fn symbol(&mut self) -> Dim {
        Dim::Symbol(self.function.fresh_symbol())
    }

    /// Sets the [`Origin::place`] of the ops added from here on.
    pub fn set_place(&mut self, place: &str) {
        self.origin = Origin {
            place: place.into(),
            pass: None,
        };
    }

    /// Adds an input of the function. The name is made unique.
    pub fn input(&mut self, name: &str, ty: impl Into<Type>) -> ValueId {
        self.function.append_input(Function::BODY, name, ty.into())
    }

    /// Begins a nested block and returns its inputs, in order. Ops are added to this block until
    /// [`Self::end_block`].
    pub fn begin_block(&mut self, inputs: &[(&str, Type)]) -> Vec<ValueId> {
        let block = self.function.append_block();
        self.open.push(block);
        inputs
            .iter()
            .map(|(name, ty)| self.function.append_input(block, name, ty.clone()))
            .collect()
    }

    /// Ends the innermost open block, so that an op can run it. Panics if no block is open.
    pub fn end_block(&mut self, outputs: &[ValueId]) -> BlockId {
        let block = self
            .open
            .pop()
            .filter(|b| *b != Function::BODY)
            .expect("a block was begun");
        self.function.blocks[block.index()].outputs = outputs.to_vec();
        block
    }

    /// Adds a `const` op.
    pub fn constant(&mut self, name: &str, literal: Literal) -> Result<ValueId, BuildError> {
        self.op("const", name, [("val", Arg::Literal(literal))])
    }

    /// Adds an op and returns its first result. `name` names the op and its result.
    pub fn op<const N: usize>(
        &mut self,
        op: &str,
        name: &str,
        args: [(&'static str, Arg); N],
    ) -> Result<ValueId, BuildError> {
        Ok(self.op_results(op, name, args)?[0])
    }

    /// Adds an op and returns its results in order, also for an op without results.
    pub fn op_results<const N: usize>(
        &mut self,
        op: &str,
        name: &str,
        args: [(&'static str, Arg); N],
    ) -> Result<Vec<ValueId>, BuildError> {
        self.op_with_blocks(op, name, args.into(), Vec::new())
    }

    /// Adds an op by its row of the opset, which may be of another version than the function's, and
    /// returns its results in order.
    pub fn op_of(
        &mut self,
        def: &'static OpDef,
        name: &str,
        args: Vec<(&'static str, Arg)>,
        blocks: Vec<BlockId>,
    ) -> Result<Vec<ValueId>, BuildError> {
        let block = *self.open.last().expect("the body is never ended");
        let id = self
            .function
            .append_op(block, def, args, blocks, name, self.origin.clone())?;
        Ok(self.function.op(id).results.clone())
    }

    /// Adds an op that runs nested blocks and returns its results in order.
    pub fn op_with_blocks(
        &mut self,
        op: &str,
        name: &str,
        args: Vec<(&'static str, Arg)>,
        blocks: Vec<BlockId>,
    ) -> Result<Vec<ValueId>, BuildError> {
        let opset = self.function.opset;
        let def = opset::find_in(op, opset).ok_or_else(|| BuildError::UnknownOp {
            op: op.to_owned(),
            opset,
        })?;
        self.op_of(def, name, args, blocks)
    }

    /// As [`Self::finish`] with names that stay as they are: another value that has one of them
    /// gets another. Each value can be an output once.
    pub fn finish_under(mut self, outputs: &[(&str, ValueId)]) -> Function {
        let named: HashMap<&str, ValueId> = outputs.iter().copied().collect();
        for idx in 0..self.function.values.len() {
            let name = &self.function.values[idx].name;
            if named.get(name.as_str()).is_some_and(|v| v.index() != idx) {
                let name = name.clone();
                self.function.values[idx].name = self.function.unique_name(&name);
            }
        }
        for (name, value) in outputs {
            self.function.values[value.index()].name = (*name).to_owned();
            self.function.blocks[0].outputs.push(*value);
        }
        self.function
    }

    /// Declares the outputs, each under a name, and returns the function.
    pub fn finish(mut self, outputs: &[(&str, ValueId)]) -> Function {
        for (name, value) in outputs {
            let name = self.function.unique_name(name);
            self.function.values[value.index()].name = name;
            self.function.blocks[0].outputs.push(*value);
        }
        self.function
    }
}

impl Function {
    pub(crate) fn new(name: String, opset: Opset) -> Self {
        Self {
            name,
            opset,
            attributes: Vec::new(),
            values: Vec::new(),
            ops: Vec::new(),
            blocks: vec![Block::default()],
            names: Default::default(),
            n_symbols: 0,
        }
    }

    pub(crate) fn append_input(&mut self, block: BlockId, name: &str, ty: Type) -> ValueId {
        let name = self.unique_name(name);
        let id = self.append_value(name, ty, Definition::Input(block));
        self.blocks[block.index()].inputs.push(id);
        id
    }

    pub(crate) fn append_block(&mut self) -> BlockId {
        let id = BlockId(
            u32::try_from(self.blocks.len()).expect("fewer than 2^32 blocks fit in memory"),
        );
        self.blocks.push(Block::default());
        id
    }

    fn append_value(&mut self, name: String, ty: Type, definition: Definition) -> ValueId {
        let id = ValueId(
            u32::try_from(self.values.len()).expect("fewer than 2^32 values fit in memory"),
        );
        self.values.push(Value {
            name,
            ty,
            definition,
        });
        id
    }

    /// Appends an op that runs `nested` to `block`, with inferred result types.
    pub(crate) fn append_op(
        &mut self,
        block: BlockId,
        def: &'static OpDef,
        args: Vec<(&'static str, Arg)>,
        nested: Vec<BlockId>,
        name: &str,
        origin: Origin,
    ) -> Result<OpId, BuildError> {
        let mut slots: Vec<Option<Arg>> = vec![None; def.params.len()];
        for (param, arg) in args {
            let at = def
                .param_index(param)
                .ok_or_else(|| BuildError::UnknownParam {
                    op: def.name.to_owned(),
                    param: param.to_owned(),
                })?;
            slots[at] = Some(arg);
        }
        let types = self
            .infer(def, &slots, &nested)
            .map_err(|source| BuildError::Type {
                op: def.name.to_owned(),
                result: shorten(name),
                source,
            })?;
        let id = OpId(u32::try_from(self.ops.len()).expect("fewer than 2^32 ops fit in memory"));
        let n = types.len();
        let results: Vec<ValueId> = (0..n)
            .zip(types)
            .map(|(k, ty)| {
                let name = if n == 1 {
                    name.to_owned()
                } else {
                    format!("{name}_{k}")
                };
                let name = self.unique_name(&name);
                self.append_value(name, ty, Definition::Result(id, k))
            })
            .collect();
        let name = results
            .first()
            .map_or(name.to_owned(), |r| self.value(*r).name.clone());
        self.ops.push(Op {
            def,
            args: slots,
            results,
            blocks: nested,
            name: Some(name),
            origin,
        });
        self.blocks[block.index()].ops.push(id);
        Ok(id)
    }

    /// Infers the result types of `def` over `args` and nested blocks.
    fn infer(
        &mut self,
        def: &'static OpDef,
        args: &[Option<Arg>],
        nested: &[BlockId],
    ) -> Result<Vec<Type>, TypeError> {
        let mut next_symbol = self.n_symbols;
        let types = self.infer_with(def, args, nested, &mut next_symbol);
        self.n_symbols = next_symbol;
        types
    }

    /// Like [`Self::infer`], but numbers new symbols from `next_symbol` on.
    pub(crate) fn infer_with(
        &self,
        def: &'static OpDef,
        args: &[Option<Arg>],
        nested: &[BlockId],
        next_symbol: &mut u32,
    ) -> Result<Vec<Type>, TypeError> {
        let types = |values: &[ValueId]| values.iter().map(|v| self.value(*v).ty.clone()).collect();
        let blocks: Vec<BlockTypes> = nested
            .iter()
            .map(|b| self.block(*b))
            .map(|b| BlockTypes {
                inputs: types(&b.inputs),
                outputs: types(&b.outputs),
            })
            .collect();
        let view = |v: ValueId| {
            let known = self.constant(v).map_or(Known::No, Known::Literal);
            (&self.value(v).ty, known)
        };
        infer(def, args, &blocks, &view, next_symbol)
    }

    /// Turns `name` into an unused identifier: other characters become `_`, a type word or a
    /// leading digit gets a `_` prefix, and a taken name gets a number.
    pub(crate) fn unique_name(&mut self, name: &str) -> String {
        let mut base: String = name
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || c == '_' {
                    c
                } else {
                    '_'
                }
            })
            .collect();
        if is_type_word(&base) || !base.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            base.insert(0, '_');
        }
        if !self.names.contains_key(&base) {
            self.names.insert(base.clone(), 0);
            return base;
        }
        loop {
            let n = self.names.entry(base.clone()).or_insert(0);
            *n += 1;
            let candidate = format!("{base}_{n}");
            if let std::collections::hash_map::Entry::Vacant(e) =
                self.names.entry(candidate.clone())
            {
                e.insert(0);
                return candidate;
            }
        }
    }
}

/// Infers the result types of an op from what `view` says of the values that it takes. New symbols
/// are numbered from `next_symbol` on.
pub fn infer<'a>(
    def: &'static OpDef,
    args: &'a [Option<Arg>],
    blocks: &'a [BlockTypes],
    view: &dyn Fn(ValueId) -> (&'a Type, Known<'a>),
    next_symbol: &mut u32,
) -> Result<Vec<Type>, TypeError> {
    let literals: Vec<Option<Type>> = args
        .iter()
        .map(|a| match a {
            Some(Arg::Literal(l)) => Some(l.ty()),
            _ => None,
        })
        .collect();
    let args: Vec<Option<ArgType<'_>>> = args
        .iter()
        .zip(&literals)
        .map(|(arg, ty)| match (arg, ty) {
            (Some(Arg::Literal(l)), Some(ty)) => Some(ArgType::One(ty, Known::Literal(l))),
            (Some(Arg::Value(v)), _) => {
                let (ty, known) = view(*v);
                Some(ArgType::One(ty, known))
            }
            (Some(Arg::Values(vs)), _) => {
                Some(ArgType::Many(vs.iter().map(|v| view(*v)).collect()))
            }
            _ => None,
        })
        .collect();
    check_params(def, &args)?;
    if blocks.len() != def.n_blocks {
        let (due, found) = (def.n_blocks, blocks.len());
        let said = format!("expected {due} nested blocks, found {found}");
        return Err(TypeError(said));
    }
    Infer::new(def, &args, next_symbol)
        .with_blocks(blocks)
        .run()
}

/// Checks that each parameter is bound to a value that it accepts.
fn check_params(def: &OpDef, args: &[Option<ArgType<'_>>]) -> Result<(), TypeError> {
    for (param, arg) in def.params.iter().zip(args) {
        let name = param.name;
        match (arg, param.accepts) {
            (None, _) if param.required => {
                return Err(TypeError::new(format_args!("`{name}` is missing")));
            }
            (None, _) | (Some(_), Accepts::Any) => {}
            (Some(ArgType::One(Type::Tensor(t), _)), Accepts::Tensor(dtypes))
                if dtypes.contains(&t.dtype) => {}
            (Some(ArgType::Many(_)), Accepts::Tensors)
            | (Some(ArgType::One(Type::State(_), _)), Accepts::State)
            | (Some(ArgType::One(Type::List(..), _)), Accepts::List) => {}
            (Some(ArgType::One(ty, _)), Accepts::Tensor(dtypes)) => {
                let names = dtypes.iter().map(|d| d.name().to_owned()).collect();
                return Err(TypeError::new(format_args!(
                    "`{name}`: expected {}, found {ty}",
                    opset::alternatives(names)
                )));
            }
            (Some(arg), accepts) => {
                return Err(TypeError::new(format_args!(
                    "`{name}`: expected {accepts}, found {}",
                    arg.describe()
                )));
            }
        }
    }
    Ok(())
}
