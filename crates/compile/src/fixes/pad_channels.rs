//! Adds output channels of zeros to products whose outputs do not fill the cores or a row of
//! memory.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [1, 64, 1, 2000]> x) {
//!     tensor<fp16, [500, 64, 1, 1]> w = const()[val = tensor<fp16, [500, 64, 1, 1]>(BLOBFILE(path = string("noise"), offset = uint64(0)))];
//!     tensor<fp16, [96, 500, 1, 1]> v = const()[val = tensor<fp16, [96, 500, 1, 1]>(BLOBFILE(path = string("noise"), offset = uint64(1)))];
//!     tensor<fp16, [1, 500, 1, 2000]> h = conv(x = x, weight = w);
//!     tensor<fp16, [1, 500, 1, 2000]> a = relu(x = h);
//!     tensor<fp16, [1, 96, 1, 2000]> y = conv(x = a, weight = v);
//! } -> (y);
//! ```
//!
//! becomes the same with 512 channels between the two: w has 12 rows of zeros more, v 12 columns.
//! What is elementwise in between stays as wide; anything else gets a slice.

use std::collections::{BTreeSet, HashMap};

use thane_mil::program::Arg;

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "pad_channels",
    rules: &["ANE122", "ANE063"],
    what: "a product with outputs of zeros up to a multiple of 32",
    numbers: Numbers::Exact,
    pattern: ANY_OP,
    write,
};

/// Ops that give each element by itself, and something finite of what is finite: 0 times it is 0.
const UNARY: [&str; 17] = [
    "abs",
    "ceil",
    "clip",
    "cos",
    "erf",
    "exp",
    "floor",
    "gelu",
    "leaky_relu",
    "relu",
    "relu6",
    "round",
    "sigmoid",
    "silu",
    "sin",
    "softsign",
    "tanh",
];
const BINARY: [&str; 5] = ["add", "sub", "mul", "maximum", "minimum"];

/// Ops that are looked back through from an operand.
const DEEPEST: usize = 8;
/// Ops of a region; more are no layer.
const MOST: usize = 64;

fn write(new: &Rewrite<'_>) -> Answer {
    let (graph, id) = (new.graph, new.root());
    let product = Product::of(graph, id)?;
    let (n, row) = (product.n, new.limits.row);
    if n.is_multiple_of(row) {
        return Err("its outputs are a multiple of 32 already");
    }
    let mut region = Region {
        graph,
        axis: product.axis,
        n,
        ops: BTreeSet::from([place(graph, id)?]),
    };
    region.grow()?;
    Writer {
        region: &region,
        new,
        wide: HashMap::new(),
        len: n.next_multiple_of(row),
    }
    .write()
}

/// An op's position in the body, and the op.
fn place(graph: &Graph<'_>, id: OpId) -> Result<(usize, OpId), &'static str> {
    let at = graph.f.body().ops.iter().position(|op| *op == id);
    at.map(|at| (at, id)).ok_or("it is in a nested block")
}

/// A product with a plain constant.
struct Product {
    /// The parameter that is constant.
    param: &'static str,
    weight: Constant,
    /// Axes of the weight for outputs and for what is summed.
    outputs: usize,
    inputs: usize,
    bias: Option<Constant>,
    /// Outputs, and their axis in the result; in x that of what is summed is the same.
    n: usize,
    axis: usize,
}

impl Product {
    fn of(graph: &Graph<'_>, id: OpId) -> Result<Self, &'static str> {
        let op = graph.op(id);
        let (_, x) = operand(graph, id, "x")?;
        let out = result_shape(graph, id)?;
        let last = out
            .len()
            .checked_sub(1)
            .filter(|_| out.len() == x.len())
            .ok_or("its result has other axes")?;
        let (param, axis) = match op.def.name {
            "linear" => ("weight", last),
            "conv" if int(graph, id, "groups").unwrap_or(1) == 1 => ("weight", 1),
            "matmul" if int(graph, id, "transpose_x") != Some(1) => ("y", last),
            _ => return Err("only products with constants are padded"),
        };
        let weight =
            Constant::of(graph, op, param).ok_or("its weight is compressed or no constant")?;
        let first = weight
            .shape
            .len()
            .checked_sub(2)
            .ok_or("its weight is a vector")?;
        let (outputs, inputs) = match op.def.name {
            "matmul" if int(graph, id, "transpose_y") != Some(1) => (first + 1, first),
            "matmul" => (first, first + 1),
            _ => (0, 1),
        };
        let bias = match op.arg("bias") {
            None => None,
            Some(_) => {
                Some(Constant::of(graph, op, "bias").ok_or("its bias is no plain constant")?)
            }
        };
        Ok(Self {
            param,
            n: out[axis],
            weight,
            outputs,
            inputs,
            bias,
            axis,
        })
    }
}

/// Ops whose results get wider together.
struct Region<'a> {
    graph: &'a Graph<'a>,
    axis: usize,
    n: usize,
    ops: BTreeSet<(usize, OpId)>,
}

impl Region<'_> {
    fn has(&self, value: ValueId) -> bool {
        let of = |(_, op): &(usize, OpId)| self.graph.op(*op).results.contains(&value);
        self.ops.iter().any(of)
    }

    /// Take in the elementwise ops that follow, as long as all that they take can be as wide.
    fn grow(&mut self) -> Result<(), &'static str> {
        let mut open: Vec<OpId> = self.ops.iter().map(|(_, op)| *op).collect();
        while let Some(op) = open.pop() {
            for &user in self.graph.users(self.graph.op(op).results[0]) {
                let Ok(at) = place(self.graph, user) else {
                    continue;
                };
                let mut taken = BTreeSet::new();
                if self.ops.contains(&at) || !self.widens(user, DEEPEST, &mut taken) {
                    continue;
                }
                open.extend(taken.iter().map(|(_, op)| *op));
                self.ops.extend(taken);
                if self.ops.len() > MOST {
                    return Err("too much depends on its width");
                }
            }
        }
        Ok(())
    }

    /// Whether an elementwise op can give a wider result; `taken` gets it and what has to be wider
    /// for it.
    fn widens(&self, id: OpId, left: usize, taken: &mut BTreeSet<(usize, OpId)>) -> bool {
        let (op, Some(left)) = (self.graph.op(id), left.checked_sub(1)) else {
            return false;
        };
        let Ok(at) = place(self.graph, id) else {
            return false;
        };
        let [result] = op.results[..] else {
            return false;
        };
        let shape = self.graph.known_shape(result);
        if shape.as_ref().and_then(|s| s.get(self.axis)) != Some(&self.n) || op.def.name == "const"
        {
            return false;
        }
        let operands: &[&str] = match op.def.name {
            name if UNARY.contains(&name) => &["x"],
            name if BINARY.contains(&name) => &["x", "y"],
            _ => {
                let fits =
                    Product::of(self.graph, id).is_ok_and(|p| (p.axis, p.n) == (self.axis, self.n));
                if fits {
                    taken.insert(at);
                }
                return fits;
            }
        };
        let rank = shape.map_or(0, |s| s.len());
        let wide = operands.iter().all(|name| match op.value_arg(name) {
            Some(v) if !self.graph.is_constant(v) => {
                let as_wide = self
                    .graph
                    .known_shape(v)
                    .and_then(|s| s.get(self.axis).copied())
                    == Some(self.n);
                let known = self.has(v)
                    || taken
                        .iter()
                        .any(|(_, op)| self.graph.op(*op).results.contains(&v));
                let Some(from) = self.graph.maker(v) else {
                    return false;
                };
                as_wide && (known || self.widens(from, left, taken))
            }
            _ => Constant::of(self.graph, op, name).is_some_and(|c| c.shape.len() <= rank),
        });
        if wide {
            taken.insert(at);
        }
        wide
    }
}

struct Writer<'a> {
    region: &'a Region<'a>,
    new: &'a Rewrite<'a>,
    wide: HashMap<ValueId, Value<'a>>,
    /// The new width.
    len: usize,
}

impl<'a> Writer<'a> {
    fn write(mut self) -> Answer {
        let graph = self.region.graph;
        for &(_, id) in &self.region.ops {
            self.new.before(id);
            let made = match Product::of(graph, id) {
                Ok(product) => self.product(id, &product),
                Err(_) => self.elementwise(id)?,
            };
            self.wide.insert(graph.op(id).results[0], made);
        }
        let mut consumers = BTreeSet::new();
        for &(_, id) in &self.region.ops {
            let value = graph.op(id).results[0];
            let users = graph
                .users(value)
                .iter()
                .filter(|user| !self.region.ops.iter().any(|(_, op)| op == *user));
            let mut is_seen = graph.is_output(value);
            for &user in users {
                match (place(graph, user), self.sums(user, value)) {
                    (Ok(at), true) => {
                        consumers.insert(at);
                    }
                    _ => is_seen = true,
                }
            }
            if is_seen {
                self.new.before(id);
                let shape = graph.known_shape(value).ok_or("its shape is not fixed")?;
                let mut wide = shape.clone();
                wide[self.region.axis] = self.len;
                let (axis, n) = (self.region.axis, self.region.n);
                let part = self.wide[&value].slice_axis(&wide, axis, 0, n);
                self.new.replace(value, part);
            }
            self.new.remove(id);
        }
        for (_, id) in consumers {
            let (op, product) = (graph.op(id), Product::of(graph, id)?);
            self.new.before(id);
            let weight = self
                .new
                .literal(product.weight.padded(product.inputs, self.len).literal());
            let x = op
                .value_arg("x")
                .and_then(|x| self.wide.get(&x).copied())
                .ok_or("its operand is not wider")?;
            let y = self.new.again(op, &[("x", x), (product.param, weight)]);
            self.new.replace(op.results[0], y);
            self.new.remove(id);
        }
        Ok(self.new.finish())
    }

    /// Whether an op is a product that sums over the wider axis of a value.
    fn sums(&self, id: OpId, value: ValueId) -> bool {
        let takes = self.region.graph.op(id).value_arg("x") == Some(value);
        takes && Product::of(self.region.graph, id).is_ok_and(|p| p.axis == self.region.axis)
    }

    fn product(&mut self, id: OpId, product: &Product) -> Value<'a> {
        let weight = self
            .new
            .literal(product.weight.padded(product.outputs, self.len).literal());
        let mut others = vec![(product.param, weight)];
        if let Some(bias) = &product.bias {
            others.push(("bias", self.new.literal(bias.padded(0, self.len).literal())));
        }
        self.new.again(self.region.graph.op(id), &others)
    }

    fn elementwise(&mut self, id: OpId) -> Result<Value<'a>, &'static str> {
        let graph = self.region.graph;
        let (op, rank) = (graph.op(id), result_shape(graph, id)?.len());
        let mut others = Vec::new();
        for name in ["x", "y"] {
            let wide = op.value_arg(name).and_then(|v| self.wide.get(&v).copied());
            if let Some(wide) = wide {
                others.push((name, wide));
            } else if matches!(op.arg(name), Some(Arg::Value(_) | Arg::Literal(_))) {
                let constant =
                    Constant::of(graph, op, name).ok_or("an operand of it is compressed")?;
                debug_assert!(matches!(constant.dtype, DType::Fp16 | DType::Fp32));
                // Its own axis for outputs, where it has one.
                let own = (self.region.axis + constant.shape.len()).checked_sub(rank);
                if let Some(own) = own.filter(|own| constant.shape[*own] == self.region.n) {
                    others.push((
                        name,
                        self.new.literal(constant.padded(own, self.len).literal()),
                    ));
                }
            }
        }
        Ok(self.new.again(op, &others))
    }
}
