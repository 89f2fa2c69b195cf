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

use thane_mil::edit::New;
use thane_mil::program::{Arg, Definition, OpId, ValueId};

use super::rewrite::{Rewrite, operand, result_shape};
use super::{Answer, Fix, Numbers};
use crate::rules::query::{int, ints, wrap};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "group_heads",
    rules: &["ANE136"],
    what: "heads that share keys as rows of one product",
    numbers: Numbers::Exact,
    run,
};

const ATTENTION: &str = "scaled_dot_product_attention";

/// Views between a repetition and a product.
const FURTHEST: usize = 4;

fn run(view: &View<'_>, id: OpId) -> Answer {
    let mut new = Rewrite::new(view, id, FIX.name);
    let mut refusal = "no product of queries of as many heads takes what it repeats";
    let mut n_written = 0;
    for repeated in Repeated::of(view, id)? {
        let mut uses = Vec::new();
        repeated.follow(
            view.op(id).results[0],
            repeated.is_apart,
            &mut Vec::new(),
            &mut uses,
        );
        for taken in uses {
            match repeated.write(&mut new, &taken) {
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
struct Repeated<'a> {
    view: &'a View<'a>,
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

impl<'a> Repeated<'a> {
    /// What an op repeats. Copies of something with an axis of length 1 there are those of one
    /// head, or lie along an axis of their own: both are told, and what takes them decides.
    fn of(view: &'a View<'a>, id: OpId) -> Result<Vec<Self>, &'static str> {
        let (source, axis, times) = copies(view, id)?;
        let is_new = view.op(id).def.name == "stack";
        let shape = view.known_shape(source).ok_or("its shape is not fixed")?;
        // Heads, positions and features are the last three axes, and copies of a head lie behind
        // it.
        let heads = (shape.len() + usize::from(is_new))
            .checked_sub(3)
            .ok_or("it has no axis of heads")?;
        if axis != heads {
            return Err("it repeats along another axis than that of heads");
        }
        if is_new {
            return Ok(vec![Self {
                view,
                source,
                shape,
                times,
                is_apart: true,
            }]);
        }
        let is_one = shape[axis] == 1;
        if !is_one && int(view, id, "interleave") != Some(1) {
            return Err("all heads are repeated in turn, not each by itself");
        }
        let mut found = Vec::new();
        if is_one && heads > 0 {
            let mut shape = shape.clone();
            shape.remove(axis);
            found.push(Self {
                view,
                source,
                shape,
                times,
                is_apart: true,
            });
        }
        found.push(Self {
            view,
            source,
            shape,
            times,
            is_apart: false,
        });
        Ok(found)
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
        let view = self.view;
        for &user in view.users(value) {
            let op = view.op(user);
            if is_apart {
                let merged = self.merged();
                let merges =
                    op.def.name == "reshape" && result_shape(view, user).is_ok_and(|s| s == merged);
                if merges {
                    self.follow(op.results[0], false, views, uses);
                }
                continue;
            }
            let keeps = match op.def.name {
                "cast" => true,
                "transpose" => ints(view, user, "perm").is_some_and(|perm| {
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

    fn write(&self, new: &mut Rewrite<'_>, taken: &Use) -> Result<(), &'static str> {
        let view = self.view;
        let op = view.op(taken.op);
        if op.def.name == ATTENTION {
            return self.write_attention(new, taken.op);
        }
        if int(view, taken.op, "transpose_x") == Some(1) {
            return Err("its queries are transposed in the product");
        }
        let shape = self.grouped(taken.op, "x")?;
        new.before(taken.op);
        let mut y = self.once(new);
        for id in &taken.views {
            y = new.again(view.op(*id), &[("x", y)]);
        }
        self.instead(new, taken.op, ("x", &shape), &[("y", y)])
    }

    /// Queries as the product takes them, those that share a head as rows of it.
    fn grouped(&self, id: OpId, queries: &str) -> Result<Vec<usize>, &'static str> {
        let (_, _, mut shape) = operand(self.view, id, queries)?;
        let heads = self.heads();
        let fits = shape.len() == self.shape.len()
            && shape[..heads] == self.shape[..heads]
            && shape[heads] == self.shape[heads] * self.times;
        if !fits {
            return Err("its queries have other heads than it repeats");
        }
        shape[heads] = self.shape[heads];
        shape[heads + 1] *= self.times;
        Ok(shape)
    }

    /// What is repeated, each head once.
    fn once(&self, new: &mut Rewrite<'_>) -> New {
        let source = New::Value(self.source);
        let is_so = self
            .view
            .known_shape(self.source)
            .is_some_and(|s| s == self.shape);
        if is_so {
            source
        } else {
            new.reshape(source, &self.shape)
        }
    }

    fn instead(
        &self,
        new: &mut Rewrite<'_>,
        id: OpId,
        (queries, shape): (&'static str, &[usize]),
        others: &[(&'static str, New)],
    ) -> Result<(), &'static str> {
        let op = self.view.op(id);
        let q = op
            .value_arg(queries)
            .ok_or("its queries are written in place")?;
        let q = new.reshape(New::Value(q), shape);
        let made = new.again(op, &[&[(queries, q)], others].concat());
        let made = new.reshape(made, &result_shape(self.view, id)?);
        new.replace(op.results[0], made);
        new.remove(id);
        Ok(())
    }

    fn write_attention(&self, new: &mut Rewrite<'_>, id: OpId) -> Result<(), &'static str> {
        let view = self.view;
        let op = view.op(id);
        let repeated = |name: &str| {
            let taken = op
                .value_arg(name)
                .ok_or("keys or values are written in place")?;
            let found = Self::of(
                view,
                repetition(view, taken).ok_or("keys or values are not repeated")?,
            )?;
            let found = found
                .into_iter()
                .find(|f| view.known_shape(taken).is_some_and(|s| s == f.merged()));
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
            let mask = view
                .known_shape(*mask)
                .ok_or("the shape of its mask is not fixed")?;
            if mask.iter().rev().skip(1).take(2).any(|n| *n != 1) {
                return Err("its mask has a row for each query, or for each head");
            }
        }
        let shape = self.grouped(id, "query")?;
        new.before(id);
        let (key, value) = (key.once(new), value.once(new));
        self.instead(
            new,
            id,
            ("query", &shape),
            &[("key", key), ("value", value)],
        )
    }
}

/// What an op repeats, along which axis, and how often.
fn copies(view: &View<'_>, id: OpId) -> Result<(ValueId, usize, usize), &'static str> {
    let op = view.op(id);
    match op.def.name {
        "tile" => {
            let reps = ints(view, id, "reps").ok_or("only the call knows how often it repeats")?;
            let mut along = reps.iter().enumerate().filter(|(_, n)| **n != 1);
            let (Some((axis, times)), None) = (along.next(), along.next()) else {
                return Err("it repeats along several axes");
            };
            let times = usize::try_from(*times).map_err(|_| "it repeats less than once")?;
            Ok((
                op.value_arg("x").ok_or("its operand is written in place")?,
                axis,
                times,
            ))
        }
        "concat" | "stack" => {
            let Some(Arg::Values(values)) = op.arg("values") else {
                return Err("it joins nothing");
            };
            let first = *values.first().ok_or("it joins nothing")?;
            if values.iter().any(|v| *v != first) {
                return Err("it joins different tensors");
            }
            let rank = result_shape(view, id)?.len();
            let axis = int(view, id, "axis")
                .and_then(|a| wrap(a, rank))
                .ok_or("its axis is none")?;
            Ok((first, axis, values.len()))
        }
        _ => Err("only tile, concat and stack repeat"),
    }
}

/// The op that repeats a value, which a reshape may follow.
fn repetition(view: &View<'_>, value: ValueId) -> Option<OpId> {
    let Definition::Result(op, _) = view.f.value(value).definition else {
        return None;
    };
    match view.op(op).def.name {
        "tile" | "concat" | "stack" => Some(op),
        "reshape" => match view.f.value(view.op(op).value_arg("x")?).definition {
            Definition::Result(from, _) => Some(from),
            Definition::Input(_) => None,
        },
        _ => None,
    }
}
