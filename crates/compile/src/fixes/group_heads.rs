//! Multiplies queries with keys or values that are repeated for each group of heads, without the
//! repetition.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [1, 6, 5, 8]> q, tensor<fp16, [1, 2, 9, 8]> k) {
//!     tensor<fp16, [1, 2, 1, 9, 8]> e = expand_dims(x = k, axes = tensor<int32, [1]>([2]));
//!     tensor<fp16, [1, 2, 3, 9, 8]> t = tile(x = e, reps = tensor<int32, [5]>([1, 1, 3, 1, 1]));
//!     tensor<fp16, [1, 6, 9, 8]> r = reshape(x = t, shape = tensor<int32, [4]>([1, 6, 9, 8]));
//!     tensor<fp16, [1, 6, 5, 9]> y = matmul(x = q, y = r, transpose_y = bool(true));
//! } -> (y);
//! ```
//!
//! becomes a product of k with q as [1, 2, 15, 8]: the three heads that share a key head are rows
//! of it. It does attention in one op too, where keys and values are both repeated and no mask has
//! a row for each query.

use thane_mil::program::Arg;

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "group_heads",
    rules: &["ANE136"],
    what: "heads that share keys as rows of one product",
    numbers: Numbers::Exact,
    pattern: ANY_OP,
    write,
};

const ATTENTION: &str = "scaled_dot_product_attention";

/// Views between a repetition and a product.
const FURTHEST: usize = 4;

fn write(new: &Rewrite<'_>) -> Answer {
    let mut refusal = "no product of queries of as many heads takes what it repeats";
    let mut n_written = 0;
    for repeated in Repeated::of(new, new.root())? {
        let (mut views, mut uses) = (Vec::new(), Vec::new());
        let copies = new.graph.op(new.root()).results[0];
        repeated.follow(copies, repeated.is_apart, &mut views, &mut uses);
        for taken in uses {
            match repeated.write(&taken) {
                Ok(()) => n_written += 1,
                Err(why) => refusal = why,
            }
        }
    }
    if n_written == 0 {
        Err(refusal)
    } else {
        Ok(new.finish())
    }
}

/// Keys or values before each of their heads is repeated.
#[derive(Clone)]
struct Repeated<'w> {
    new: &'w Rewrite<'w>,
    /// What is repeated, of this shape where it has an axis more.
    source: ValueId,
    /// Heads, positions and features last.
    shape: Vec<usize>,
    /// How often.
    times: usize,
    /// Whether the copies of a head lie along an axis of their own, which a reshape merges.
    is_apart: bool,
}

/// A product that takes repeated heads, by way of views.
struct Use {
    op: OpId,
    views: Vec<OpId>,
}

impl<'w> Repeated<'w> {
    /// What an op repeats. Copies of something with an axis of length 1 there are those of one
    /// head, or lie along an axis of their own: both are told, and what takes them decides.
    fn of(new: &'w Rewrite<'w>, id: OpId) -> Result<Vec<Self>, &'static str> {
        let graph = new.graph;
        let (source, axis, times) = copies(graph, id)?;
        let is_new = new.kind(id) == "stack";
        let shape = graph.known_shape(source).ok_or("its shape is not fixed")?;
        // Heads, positions and features are the last three axes, and copies of a head lie behind
        // it.
        let heads = (shape.len() + usize::from(is_new))
            .checked_sub(3)
            .ok_or("it has no axis of heads")?;
        if axis != heads {
            return Err("it repeats along another axis than that of heads");
        }
        let merged = Self {
            new,
            source,
            shape,
            times,
            is_apart: is_new,
        };
        if is_new {
            return Ok(vec![merged]);
        }
        let is_one = merged.shape[axis] == 1;
        if !is_one && !new.flag(id, "interleave") {
            return Err("all heads are repeated in turn, not each by itself");
        }
        let apart = (is_one && heads > 0).then(|| {
            let mut apart = merged.clone();
            apart.shape.remove(axis);
            apart.is_apart = true;
            apart
        });
        Ok(apart.into_iter().chain([merged]).collect())
    }

    fn heads(&self) -> usize {
        self.shape.len().saturating_sub(3)
    }

    /// The shape with every copy.
    fn merged(&self) -> Vec<usize> {
        let mut merged = self.shape.clone();
        merged[self.heads()] *= self.times;
        merged
    }

    /// The products that take `value`, by way of views that leave heads where they are.
    fn follow(&self, value: ValueId, is_apart: bool, views: &mut Vec<OpId>, uses: &mut Vec<Use>) {
        if views.len() > FURTHEST {
            return;
        }
        let graph = self.new.graph;
        for &user in graph.users(value) {
            let op = graph.op(user);
            if is_apart {
                let merged = self.merged();
                let merges = op.def.name == "reshape"
                    && result_shape(graph, user).is_ok_and(|s| s == merged);
                if merges {
                    self.follow(op.results[0], false, views, uses);
                }
                continue;
            }
            let keeps = match op.def.name {
                "cast" => true,
                "transpose" => ints(graph, user, "perm").is_some_and(|perm| {
                    let rank = perm.len();
                    perm.iter()
                        .take(self.heads() + 1)
                        .enumerate()
                        .all(|(i, p)| wrap(*p, rank) == Some(i))
                }),
                _ => false,
            };
            if keeps {
                views.push(user);
                self.follow(op.results[0], false, views, uses);
                views.pop();
            } else if op.def.name == "matmul" && op.value_arg("y") == Some(value)
                || op.def.name == ATTENTION
            {
                uses.push(Use {
                    op: user,
                    views: views.clone(),
                });
            }
        }
    }

    fn write(&self, taken: &Use) -> Result<(), &'static str> {
        let (new, op) = (self.new, self.new.graph.op(taken.op));
        if op.def.name == ATTENTION {
            return self.write_attention(taken.op);
        }
        if new.flag(taken.op, "transpose_x") {
            return Err("its queries are transposed in the product");
        }
        let queries = self.grouped(taken.op, "x")?;
        new.before(taken.op);
        let again = |y, id: &OpId| new.again(new.graph.op(*id), &[("x", y)]);
        let y = taken.views.iter().fold(self.once(), again);
        self.instead(taken.op, ("x", queries), &[("y", y)])
    }

    /// Queries as the product takes them, and the shape in which those that share a head are rows
    /// of it.
    fn grouped(&self, id: OpId, queries: &str) -> Result<(Value<'w>, Vec<usize>), &'static str> {
        let (q, mut shape) = self.new.operand(id, queries)?;
        let heads = self.heads();
        let fits = shape.len() == self.shape.len()
            && shape[..heads] == self.shape[..heads]
            && shape[heads] == self.shape[heads] * self.times;
        if !fits {
            return Err("its queries have other heads than it repeats");
        }
        shape[heads] = self.shape[heads];
        shape[heads + 1] *= self.times;
        Ok((q, shape))
    }

    /// What is repeated, each head once.
    fn once(&self) -> Value<'w> {
        let source = self.new.of(self.source);
        let shape = self.new.graph.known_shape(self.source);
        if shape.is_some_and(|s| s == self.shape) {
            source
        } else {
            source.reshape(&self.shape)
        }
    }

    fn instead(
        &self,
        id: OpId,
        (name, (queries, shape)): (&'static str, (Value<'w>, Vec<usize>)),
        others: &[(&'static str, Value<'w>)],
    ) -> Result<(), &'static str> {
        let (new, op) = (self.new, self.new.graph.op(id));
        let q = queries.reshape(&shape);
        let made = new.again(op, &[&[(name, q)], others].concat());
        let made = made.reshape(&result_shape(new.graph, id)?);
        new.replace(op.results[0], made);
        new.remove(id);
        Ok(())
    }

    fn write_attention(&self, id: OpId) -> Result<(), &'static str> {
        let graph = self.new.graph;
        let op = graph.op(id);
        let repeated = |name: &str| {
            let taken = op
                .value_arg(name)
                .ok_or("keys or values are written in place")?;
            let from = repetition(graph, taken).ok_or("keys or values are not repeated")?;
            let mut found = Self::of(self.new, from)?.into_iter();
            let found = found.find(|f| graph.known_shape(taken).is_some_and(|s| s == f.merged()));
            let found = found.ok_or("keys or values are split otherwise than into heads")?;
            let alike = found.times == self.times
                && found.shape[..=found.heads()] == self.shape[..=self.heads()];
            if alike {
                Ok(found)
            } else {
                Err("keys and values are repeated otherwise")
            }
        };
        let (key, value) = (repeated("key")?, repeated("value")?);
        if let Some(mask) = op.arg("attn_mask") {
            let [mask] = mask.values() else {
                return Err("its mask is written in place");
            };
            let mask = graph.known_shape(*mask);
            let mask = mask.ok_or("the shape of its mask is not fixed")?;
            if mask.iter().rev().skip(1).take(2).any(|n| *n != 1) {
                return Err("its mask has a row for each query, or for each head");
            }
        }
        let queries = self.grouped(id, "query")?;
        self.new.before(id);
        let (key, value) = (key.once(), value.once());
        self.instead(id, ("query", queries), &[("key", key), ("value", value)])
    }
}

/// What an op repeats, along which axis, and how often.
fn copies(graph: &Graph<'_>, id: OpId) -> Result<(ValueId, usize, usize), &'static str> {
    let op = graph.op(id);
    match op.def.name {
        "tile" => {
            let reps = ints(graph, id, "reps").ok_or("only the call knows how often it repeats")?;
            let mut along = reps.iter().enumerate().filter(|(_, n)| **n != 1);
            let (Some((axis, times)), None) = (along.next(), along.next()) else {
                return Err("it repeats along several axes");
            };
            let times = usize::try_from(*times).map_err(|_| "it repeats less than once")?;
            Ok((op.value_arg("x").ok_or(IN_PLACE)?, axis, times))
        }
        "concat" | "stack" => {
            let Some(Arg::Values(values)) = op.arg("values") else {
                return Err("it joins nothing");
            };
            let first = *values.first().ok_or("it joins nothing")?;
            if values.iter().any(|v| *v != first) {
                return Err("it joins different tensors");
            }
            let rank = result_shape(graph, id)?.len();
            let axis = int(graph, id, "axis")
                .and_then(|a| wrap(a, rank))
                .ok_or("its axis is none")?;
            Ok((first, axis, values.len()))
        }
        _ => Err("only tile, concat and stack repeat"),
    }
}

/// The op that repeats a value, which a reshape may follow.
fn repetition(graph: &Graph<'_>, value: ValueId) -> Option<OpId> {
    let op = graph.maker(value)?;
    match graph.op(op).def.name {
        "tile" | "concat" | "stack" => Some(op),
        "reshape" => graph.maker(graph.op(op).value_arg("x")?),
        _ => None,
    }
}
