//! Tables whose rows are constants of the program, so that a package has their numbers once: in its
//! weight file, where the contract says at which byte.
//!
//! A matrix may be several constants, in several packages. Each contract has those of its package,
//! and the rows of all packages together are the table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use thane_mil::data::{Bytes, Data};
use thane_mil::literal::Literal;
use thane_mil::package::Written;
use thane_mil::program::{Arg, Program};
use thane_mil::types::{DType, TensorType};
use thane_models::Table;

use crate::contract::{Contract, StoredRows, TableFacts};
use crate::error::{ContractError, RuntimeError};
use crate::tables::{HostTable, Tables, map};

/// The weight file of a package.
pub const WEIGHTS: &str = "Data/com.apple.CoreML/weights/weight.bin";

/// Rows of a table that are a constant of a program.
#[derive(Clone, Debug)]
pub struct SharedRows {
    input: String,
    factor: f32,
    first: usize,
    n_columns: usize,
    dtype: DType,
    data: Data,
}

impl SharedRows {
    /// Whether a program has these rows as a constant.
    fn are_in(&self, program: &Program) -> bool {
        is_constant(program, (self.dtype, &self.data))
    }

    fn count(&self) -> usize {
        let row_bytes = self.n_columns * (self.dtype.bits() / 8);
        self.data.byte_len() / row_bytes.max(1)
    }
}

/// Parts the tables of a model into those that need a file and the rows of those whose numbers the
/// program has.
pub fn part(program: &Program, tables: &[Table]) -> (Vec<Table>, Vec<SharedRows>) {
    let is_shared = |table: &&Table| {
        let mut parts = table.parts.iter();
        table.scales.is_none() && parts.all(|part| is_constant(program, (table.dtype, part)))
    };
    let (shared, own): (Vec<&Table>, Vec<&Table>) = tables.iter().partition(is_shared);
    let shared = shared.into_iter().flat_map(rows_of).collect();
    (own.into_iter().cloned().collect(), shared)
}

fn rows_of(table: &Table) -> Vec<SharedRows> {
    let mut first = 0;
    let parts = table.parts.iter().map(|part| {
        let rows = SharedRows {
            input: table.input.clone(),
            factor: table.factor,
            first,
            n_columns: table.n_columns,
            dtype: table.dtype,
            data: part.clone(),
        };
        first += rows.count();
        rows
    });
    parts.collect()
}

/// All constants of a program; those that functions share, for each of them.
pub fn constants(program: &Program) -> impl Iterator<Item = (&TensorType, &Data)> {
    let functions = program.functions().iter();
    let ops = functions.flat_map(|f| f.body().ops.iter().map(|op| f.op(*op)));
    let args = ops.filter(|op| op.def.is_const()).flat_map(|op| &op.args);
    args.filter_map(|arg| match arg {
        Some(Arg::Literal(Literal::Tensor(ty, data))) => Some((ty, data)),
        _ => None,
    })
}

/// Whether a program has a constant of this data. What is computed is not compared, and scalars are
/// not in the weight file.
fn is_constant(program: &Program, (dtype, data): (DType, &Data)) -> bool {
    let tensors = constants(program).filter(|(ty, _)| ty.dtype == dtype && ty.rank() > 0);
    let mut tensors = tensors.map(|(_, known)| known);
    tensors.any(|known| match (known, data) {
        (Data::Bytes(_), Data::Bytes(_)) => known == data,
        _ => known.is_same(data),
    })
}

/// Parts rows into tables that need a file, since the program does not have their numbers any more,
/// and those that it has. A table whose other rows are in another package cannot be a file.
pub fn part_again(
    program: &Program,
    shared: Vec<SharedRows>,
    n_rows: usize,
) -> Result<(Vec<Table>, Vec<SharedRows>), ContractError> {
    let is_lost = |rows: &SharedRows| !rows.are_in(program);
    let lost: BTreeSet<String> = shared
        .iter()
        .filter(|rows| is_lost(rows))
        .map(|rows| rows.input.clone())
        .collect();
    let (lost, kept): (Vec<_>, Vec<_>) = shared
        .into_iter()
        .partition(|rows| lost.contains(&rows.input));
    let mut tables: Vec<Table> = Vec::new();
    for rows in lost {
        let count = rows.count();
        match tables.last_mut().filter(|table| table.input == rows.input) {
            Some(table) => {
                table.n_rows += count;
                table.parts.push(rows.data);
            }
            None => tables.push(Table {
                input: rows.input,
                by_token: true,
                n_rows: count,
                n_columns: rows.n_columns,
                dtype: rows.dtype,
                parts: vec![rows.data],
                factor: rows.factor,
                scales: None,
            }),
        }
    }
    match tables.iter().find(|table| table.n_rows != n_rows) {
        None => Ok((tables, kept)),
        Some(table) => Err(ContractError::RowsElsewhere {
            input: table.input.clone(),
            expected: n_rows,
            found: table.n_rows,
        }),
    }
}

/// Says in a contract where a package has rows of tables. Those of other packages are left out.
pub fn place(contract: &mut Contract, shared: &[SharedRows], written: Written<'_>) {
    contract.tables.retain(|_, facts| facts.rows.is_empty());
    for rows in shared {
        let Some(offset) = written.elements_at(rows.dtype, &rows.data) else {
            continue;
        };
        let facts = TableFacts {
            factor: rows.factor,
            rows: Vec::new(),
        };
        let entry = contract.tables.entry(rows.input.clone());
        entry.or_insert(facts).rows.push(StoredRows {
            first: rows.first,
            count: rows.count(),
            columns: rows.n_columns,
            dtype: rows.dtype.name().to_owned(),
            offset,
        });
    }
}

/// The rows that the contract of a package at `path` places in its weight file, which is mapped.
pub fn read(path: &Path, contract: &Contract) -> Result<Vec<SharedRows>, RuntimeError> {
    let mut tables = contract.tables.iter();
    if let Some((input, facts)) = tables.find(|(_, facts)| !facts.factor.is_normal()) {
        let found = facts.factor;
        let what = format!("table `{input}`: expected a finite factor, not 0, found {found}");
        return Err(fault(path, what));
    }
    let stored = contract.tables.iter();
    let stored =
        stored.flat_map(|(input, facts)| facts.rows.iter().map(move |r| (input, facts, r)));
    let mut weights = None;
    let rows = stored.map(|(input, facts, rows)| {
        let weights = match &weights {
            Some(known) => known,
            None => weights.insert(map(&path.join(WEIGHTS))?),
        };
        let (dtype, data) = slice(weights, rows).ok_or_else(|| {
            let what = format!(
                "table `{input}`: expected rows of fp16 or fp32 in a weight file of {} bytes, \
                 found {} of {} {} numbers at byte {}",
                weights.len(),
                rows.count,
                rows.columns,
                rows.dtype,
                rows.offset
            );
            fault(path, what)
        })?;
        Ok(SharedRows {
            input: input.clone(),
            factor: facts.factor,
            first: rows.first,
            n_columns: rows.columns,
            dtype,
            data,
        })
    });
    rows.collect()
}

/// The bytes of some rows, which must be within the file.
fn slice(weights: &Bytes, rows: &StoredRows) -> Option<(DType, Data)> {
    let dtype = DType::from_name(&rows.dtype);
    let dtype = dtype.filter(|dtype| [DType::Fp16, DType::Fp32].contains(dtype))?;
    let n_elements = rows.count.checked_mul(rows.columns).filter(|n| *n > 0)?;
    let start = usize::try_from(rows.offset).ok()?;
    let end = start.checked_add(dtype.byte_len(n_elements)?)?;
    Some((dtype, Data::Bytes(weights.slice(start..end)?)))
}

/// The tables that the rows in all packages of the model at `path` are.
pub fn join(path: &Path, mut all: Vec<SharedRows>) -> Result<Tables, RuntimeError> {
    all.sort_by(|a, b| (&a.input, a.first).cmp(&(&b.input, b.first)));
    let mut tables: BTreeMap<String, HostTable> = BTreeMap::new();
    for rows in all {
        let input = rows.input.clone();
        let table = tables.entry(rows.input.clone()).or_insert(HostTable {
            dtype: rows.dtype,
            parts: Vec::new(),
            n_rows: 0,
            n_columns: rows.n_columns,
            factor: rows.factor,
            scales: None,
        });
        let expected = (table.n_rows, table.n_columns, table.dtype, table.factor);
        if (rows.first, rows.n_columns, rows.dtype, rows.factor) != expected {
            let what = format!(
                "table `{input}`: expected rows from {} on, all of one length, type and factor, \
                 found rows from {} on of {} {} numbers times {}",
                table.n_rows,
                rows.first,
                rows.n_columns,
                rows.dtype.name(),
                rows.factor
            );
            return Err(fault(path, what));
        }
        table.n_rows += rows.count();
        table.parts.push(rows.data);
    }
    let tables = tables.into_iter();
    Ok(tables
        .map(|(input, table)| (input, Arc::new(table)))
        .collect())
}

fn fault(path: &Path, what: String) -> RuntimeError {
    let path = path.to_owned();
    ContractError::Model { path, what }.into()
}
