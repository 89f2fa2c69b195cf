//! Converts updates of states to and from their form in files: a write followed by a read.
//!
//! `y = coreml_update_state(state = s, value = x)` is `write_state(input = s, data = x); y =
//! read_state(input = s)` in files.

use crate::opset::{self, OpDef, Opset};
use crate::program::{Arg, Function, Op, OpId, Program, ValueId};

/// The rows of the update op and of the two ops that replace it in files.
struct Rows {
    update: &'static OpDef,
    write: &'static OpDef,
    read: &'static OpDef,
}

impl Rows {
    fn of(opset: Opset) -> Option<Self> {
        let find = |name| opset::find_in(name, opset);
        Some(Self {
            update: find("coreml_update_state")?,
            write: find("write_state")?,
            read: find("read_state")?,
        })
    }
}

/// Splits each update of a state into a write and a read.
pub(super) fn split(program: &Program) -> Program {
    let mut out = program.clone();
    for f in &mut out.functions {
        let Some(rows) = Rows::of(f.opset) else {
            continue;
        };
        for block in 0..f.blocks.len() {
            let old = std::mem::take(&mut f.blocks[block].ops);
            let new = old
                .into_iter()
                .flat_map(|id| split_op(f, &rows, id))
                .collect();
            f.blocks[block].ops = new;
        }
    }
    out
}

fn split_op(f: &mut Function, rows: &Rows, id: OpId) -> Vec<OpId> {
    let op = f.op(id);
    let (true, Some(state), Some(value)) = (
        op.def == rows.update,
        op.value_arg("state"),
        op.value_arg("value"),
    ) else {
        return vec![id];
    };
    let label = op
        .name
        .clone()
        .or_else(|| Some(f.value(*op.results.first()?).name.clone()));
    let write = Op {
        def: rows.write,
        args: bound(rows.write, &[("input", state), ("data", value)]),
        results: Vec::new(),
        blocks: Vec::new(),
        name: label.map(|n| format!("{n}_write_state")),
        origin: op.origin.clone(),
    };
    let new = OpId(u32::try_from(f.ops.len()).expect("fewer than 2^32 ops fit in memory"));
    f.ops.push(write);
    let read = &mut f.ops[id.index()];
    read.def = rows.read;
    read.args = bound(rows.read, &[("input", state)]);
    vec![new, id]
}

/// Merges each write of a state and the read right after it into one update.
pub(super) fn merge(f: &mut Function) {
    let Some(rows) = Rows::of(f.opset) else {
        return;
    };
    for block in 0..f.blocks.len() {
        let old = std::mem::take(&mut f.blocks[block].ops);
        let mut new: Vec<OpId> = Vec::with_capacity(old.len());
        for id in old {
            if let Some(args) = new.last().and_then(|last| merged(f, &rows, *last, id)) {
                new.pop();
                f.ops[id.index()].def = rows.update;
                f.ops[id.index()].args = args;
            }
            new.push(id);
        }
        f.blocks[block].ops = new;
    }
}

fn merged(f: &Function, rows: &Rows, write: OpId, read: OpId) -> Option<Vec<Option<Arg>>> {
    let (write, read) = (f.op(write), f.op(read));
    let (state, value) = (write.value_arg("input")?, write.value_arg("data")?);
    let pair =
        write.def == rows.write && read.def == rows.read && read.value_arg("input") == Some(state);
    pair.then(|| bound(rows.update, &[("state", state), ("value", value)]))
}

fn bound(def: &OpDef, args: &[(&str, ValueId)]) -> Vec<Option<Arg>> {
    let arg = |name| {
        args.iter()
            .find(|(n, _)| *n == name)
            .map(|(_, v)| Arg::Value(*v))
    };
    def.params.iter().map(|p| arg(p.name)).collect()
}
