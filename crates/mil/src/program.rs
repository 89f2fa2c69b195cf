//! The data structures of a program: program, function, block, op and value.
//!
//! Ops, values and blocks live in arenas of their [`Function`] and are addressed by typed ids. A
//! function is in static single assignment form: each [`Value`] is a function input, a block input
//! or one result of one op, and is defined before it is used.
//!
//! Any code can read a program. [`FunctionBuilder`](crate::build::FunctionBuilder) makes functions
//! and [`Patch`](crate::edit::Patch) changes them; nothing else can.

use std::collections::HashMap;
use std::sync::Arc;

use crate::data::{Data, Truncated};
use crate::literal::Literal;
use crate::opset::{OpDef, Opset};
use crate::types::{Dim, Symbol, Type};

macro_rules! ids {
    ($($name:ident $doc:literal;)*) => {$(
        #[doc = $doc]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) u32);

        impl $name {
            /// Index into the function's arena. Indices are dense, so a table indexed by them has
            /// no holes.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    ValueId "Identifies a [`Value`] of one function.";
    OpId "Identifies an [`Op`] of one function.";
    BlockId "Identifies a [`Block`] of one function.";
}

/// Where an op comes from: the part of the checkpoint that it computes, and the pass that made it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The module or tensor of the checkpoint, such as `model.layers.3.self_attn`.
    pub place: Arc<str>,
    /// The name of the pass that made this op, or `None` if the importer made it.
    pub pass: Option<&'static str>,
}

/// What a parameter of an op is bound to.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// One value: an op's result or an input.
    Value(ValueId),
    /// The values of a variadic parameter, such as `values` of `concat`.
    Values(Vec<ValueId>),
    /// A literal written at the op itself. All parameters of `const`, and of constexpr ops up to
    /// iOS17, are literals.
    Literal(Literal),
}

/// One operation.
#[derive(Clone, Debug)]
pub struct Op {
    /// The op's row in the opset.
    pub def: &'static OpDef,
    /// One entry per parameter of `def`, in the order of `def.params`; `None` if it is not bound.
    pub args: Vec<Option<Arg>>,
    /// The values that the op defines, in order.
    pub results: Vec<ValueId>,
    /// The nested blocks that the op runs, in order.
    pub blocks: Vec<BlockId>,
    /// The attribute `name`, which tools display.
    pub name: Option<String>,
    /// Where the op comes from.
    pub origin: Origin,
}

impl Arg {
    /// The values that the argument refers to; none for a literal.
    pub fn values(&self) -> &[ValueId] {
        match self {
            Arg::Value(v) => std::slice::from_ref(v),
            Arg::Values(vs) => vs,
            Arg::Literal(_) => &[],
        }
    }
}

impl Op {
    /// The argument of the parameter `name`, if it is bound.
    pub fn arg(&self, name: &str) -> Option<&Arg> {
        self.args.get(self.def.param_index(name)?)?.as_ref()
    }

    /// The value that the parameter `name` is bound to; `None` if it is unbound, variadic or a
    /// literal.
    pub fn value_arg(&self, name: &str) -> Option<ValueId> {
        match self.arg(name)? {
            Arg::Value(v) => Some(*v),
            _ => None,
        }
    }

    /// Every value that the op's own arguments use, in the order of parameters; see
    /// [`Function::uses`] for nested blocks.
    pub fn uses(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.args.iter().flatten().flat_map(Arg::values).copied()
    }
}

/// Where a value is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Definition {
    /// The value is an input of this block.
    Input(BlockId),
    /// The value is the result of this op at this position, counted from 0.
    Result(OpId, usize),
}

/// A named, typed value.
#[derive(Clone, Debug)]
pub struct Value {
    /// The name, unique in the function.
    pub name: String,
    /// The type.
    pub ty: Type,
    /// Where the value is defined.
    pub definition: Definition,
}

/// A sequence of ops with its own inputs and outputs.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// Values bound when the block is entered.
    pub inputs: Vec<ValueId>,
    /// The ops, in execution order.
    pub ops: Vec<OpId>,
    /// The values that the block returns.
    pub outputs: Vec<ValueId>,
}

/// One callable computation: a body of ops between inputs and outputs.
#[derive(Clone, Debug)]
pub struct Function {
    /// The name, unique in the program.
    pub name: String,
    /// The opset that all ops of the function belong to.
    pub opset: Opset,
    /// Attributes such as `FlexibleShapeInformation`.
    pub attributes: Vec<(String, Literal)>,
    pub(crate) values: Vec<Value>,
    pub(crate) ops: Vec<Op>,
    pub(crate) blocks: Vec<Block>,
    /// Names in use, each with the last number that was appended to make it unique.
    pub(crate) names: HashMap<String, u32>,
    pub(crate) n_symbols: u32,
}

impl Function {
    /// The id of the body, the block that runs when the function is called. Its inputs and outputs
    /// are those of the function.
    pub const BODY: BlockId = BlockId(0);

    /// The body, whose id is [`Self::BODY`].
    pub fn body(&self) -> &Block {
        &self.blocks[0]
    }

    /// The value with this id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// The op with this id.
    pub fn op(&self, id: OpId) -> &Op {
        &self.ops[id.index()]
    }

    /// The block with this id.
    pub fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id.index()]
    }

    /// Number of values ever made, removed ones included; every [`ValueId::index`] is below it.
    pub fn n_values(&self) -> usize {
        self.values.len()
    }

    /// Every value, in the order of [`ValueId::index`].
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// Calls `visit` with each op that `block` runs, in execution order. Ops of nested blocks come
    /// before the op that runs the blocks.
    pub fn visit(&self, block: BlockId, visit: &mut dyn FnMut(OpId)) {
        for &id in &self.block(block).ops {
            self.op(id)
                .blocks
                .iter()
                .for_each(|b| self.visit(*b, visit));
            visit(id);
        }
    }

    /// Every op that the function runs, in the order of [`Self::visit`].
    pub fn all_ops(&self) -> Vec<OpId> {
        let mut out = Vec::with_capacity(self.ops.len());
        self.visit(Self::BODY, &mut |id| out.push(id));
        out
    }

    /// Every value that the op uses, including uses inside its nested blocks.
    pub fn uses(&self, id: OpId) -> Vec<ValueId> {
        let mut out: Vec<ValueId> = self.op(id).uses().collect();
        for &block in &self.op(id).blocks {
            self.visit(block, &mut |inner| {
                out.extend(self.op(inner).uses());
                self.op(inner)
                    .blocks
                    .iter()
                    .for_each(|b| out.extend(&self.block(*b).outputs));
            });
            out.extend(&self.block(block).outputs);
        }
        out
    }

    /// The op that makes `value`, or `None` if `value` is an input.
    pub fn maker(&self, value: ValueId) -> Option<OpId> {
        match self.value(value).definition {
            Definition::Input(_) => None,
            Definition::Result(op, _) => Some(op),
        }
    }

    /// [`Self::maker`] itself.
    pub fn definer(&self, value: ValueId) -> Option<&Op> {
        self.maker(value).map(|op| self.op(op))
    }

    /// The literal that defines `value`, if a `const` op does.
    pub fn constant(&self, value: ValueId) -> Option<&Literal> {
        let op = self.definer(value)?;
        match op.args.first() {
            Some(Some(Arg::Literal(literal))) if op.def.is_const() => Some(literal),
            _ => None,
        }
    }

    /// The literal that the parameter `name` of `op` is bound to, directly or through a `const` op.
    pub fn literal_arg<'a>(&'a self, op: &'a Op, name: &str) -> Option<&'a Literal> {
        match op.arg(name)? {
            Arg::Literal(literal) => Some(literal),
            Arg::Value(v) => self.constant(*v),
            Arg::Values(_) => None,
        }
    }

    /// A symbol that no dimension of this function uses yet.
    pub(crate) fn fresh_symbol(&mut self) -> Symbol {
        self.n_symbols += 1;
        Symbol(self.n_symbols - 1)
    }
}

/// A set of functions over shared constants.
///
/// ```
/// let text = "program(1.3) { func main<ios18>(tensor<fp16, [2, 3]> x) { \
///             tensor<fp16, [2, 3]> y = relu(x = x); } -> (y); }";
/// let program = thane_mil::text::parse(text, &|_, _, _| None)?;
/// let main = program.function("main").unwrap();
/// let names: Vec<&str> = main.all_ops().iter().map(|id| main.op(*id).def.name).collect();
/// assert_eq!(names, ["relu"]);
/// # Ok::<(), thane_mil::text::ParseError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Attributes such as `buildInfo`.
    pub attributes: Vec<(String, Literal)>,
    pub(crate) functions: Vec<Function>,
}

impl Program {
    /// Checks that the files behind mapped constants are as long as when they were opened; see
    /// [`Bytes::check_len`](crate::data::Bytes::check_len).
    pub fn check_files(&self) -> Result<(), Truncated> {
        let ops = self
            .functions
            .iter()
            .flat_map(|f| f.all_ops().into_iter().map(|id| f.op(id)));
        let literals = ops.flat_map(|op| op.args.iter().flatten());
        let data = literals.filter_map(|arg| match arg {
            Arg::Literal(Literal::Tensor(_, data)) => Some(data),
            _ => None,
        });
        data.into_iter().try_for_each(Data::check_len)
    }

    /// A program made of these functions, without attributes.
    pub fn new(functions: Vec<Function>) -> Self {
        Self {
            attributes: Vec::new(),
            functions,
        }
    }

    /// The functions, in order.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// The function called `name`.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|f| f.name == name)
    }
}

/// The first difference between two programs, or `None` if they are equal.
///
/// The comparison covers order, names, types, arguments and constants. It ignores ids, the numbers
/// of symbols, and origins.
pub fn difference(a: &Program, b: &Program) -> Option<String> {
    if a.attributes != b.attributes {
        return Some("the attributes of the programs differ".to_owned());
    }
    let names = |p: &Program| {
        p.functions
            .iter()
            .map(|f| f.name.clone())
            .collect::<Vec<_>>()
    };
    if names(a) != names(b) {
        return Some(format!(
            "the functions differ: {:?} and {:?}",
            names(a),
            names(b)
        ));
    }
    a.functions.iter().zip(&b.functions).find_map(|(a, b)| {
        Comparison {
            a,
            b,
            symbols: HashMap::new(),
        }
        .run()
    })
}

struct Comparison<'a> {
    a: &'a Function,
    b: &'a Function,
    symbols: HashMap<Symbol, Symbol>,
}

impl Comparison<'_> {
    fn run(&mut self) -> Option<String> {
        let (a, b) = (self.a, self.b);
        let at = |what: String| Some(format!("function `{}`: {what}", a.name));
        if a.opset != b.opset || a.attributes != b.attributes {
            return at("opset or attributes differ".to_owned());
        }
        self.blocks(Function::BODY, Function::BODY).and_then(at)
    }

    fn blocks(&mut self, x: BlockId, y: BlockId) -> Option<String> {
        let (a, b) = (self.a, self.b);
        let (x, y) = (a.block(x), b.block(y));
        if (x.inputs.len(), x.ops.len(), x.outputs.len())
            != (y.inputs.len(), y.ops.len(), y.outputs.len())
        {
            return Some("the number of inputs, ops or outputs differs".to_owned());
        }
        if let Some(v) = x
            .inputs
            .iter()
            .zip(&y.inputs)
            .find_map(|(v, w)| self.values(*v, *w))
        {
            return Some(v);
        }
        for (o, p) in x.ops.iter().zip(&y.ops) {
            if let Some(found) = self.ops(a.op(*o), b.op(*p)) {
                return Some(found);
            }
        }
        x.outputs
            .iter()
            .zip(&y.outputs)
            .find_map(|(v, w)| self.values(*v, *w))
    }

    fn ops(&mut self, o: &Op, p: &Op) -> Option<String> {
        let same = o.def == p.def
            && o.name == p.name
            && o.results.len() == p.results.len()
            && o.blocks.len() == p.blocks.len()
            && o.args
                .iter()
                .zip(&p.args)
                .all(|(x, y)| self.args(x.as_ref(), y.as_ref()));
        if !same {
            let names = |f: &Function, o: &Op| {
                o.results
                    .first()
                    .map_or(String::new(), |r| f.value(*r).name.clone())
            };
            let (n, m) = (names(self.a, o), names(self.b, p));
            return Some(format!(
                "ops differ: `{}` with result `{n}` and `{}` with result `{m}`",
                o.def.name, p.def.name
            ));
        }
        let nested = o
            .blocks
            .iter()
            .zip(&p.blocks)
            .find_map(|(x, y)| self.blocks(*x, *y));
        nested.or_else(|| {
            o.results
                .iter()
                .zip(&p.results)
                .find_map(|(v, w)| self.values(*v, *w))
        })
    }

    fn args(&self, x: Option<&Arg>, y: Option<&Arg>) -> bool {
        let name = |f: &Function, v: ValueId| f.value(v).name.clone();
        match (x, y) {
            (None, None) => true,
            (Some(Arg::Value(v)), Some(Arg::Value(w))) => name(self.a, *v) == name(self.b, *w),
            (Some(Arg::Values(v)), Some(Arg::Values(w))) => {
                v.len() == w.len()
                    && v.iter()
                        .zip(w)
                        .all(|(v, w)| name(self.a, *v) == name(self.b, *w))
            }
            (Some(Arg::Literal(l)), Some(Arg::Literal(m))) => l == m,
            _ => false,
        }
    }

    fn values(&mut self, v: ValueId, w: ValueId) -> Option<String> {
        let (v, w) = (self.a.value(v), self.b.value(w));
        let types = match (v.ty.tensor_or_state(), w.ty.tensor_or_state()) {
            (Some(s), Some(t)) => {
                s.dtype == t.dtype && s.rank() == t.rank() && self.shapes(&s.shape, &t.shape)
            }
            _ => v.ty == w.ty,
        };
        let same = v.name == w.name && types;
        (!same).then(|| {
            format!(
                "values differ: `{}` of type {} and `{}` of type {}",
                v.name, v.ty, w.name, w.ty
            )
        })
    }

    fn shapes(&mut self, s: &[Dim], t: &[Dim]) -> bool {
        s.iter().zip(t).all(|pair| match pair {
            (Dim::Known(n), Dim::Known(m)) => n == m,
            (Dim::Symbol(x), Dim::Symbol(y)) => *self.symbols.entry(*x).or_insert(*y) == *y,
            _ => false,
        })
    }
}
