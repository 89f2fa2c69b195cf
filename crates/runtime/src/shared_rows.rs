//! Tables whose rows a package has once: as constants of the program, plain or as codes, or in a
//! file of their own. [`placed_rows`](crate::placed_rows) writes and reads them.

use thane_compile::compress::program::CompressError;
use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Program};
use thane_mil::types::{DType, TensorType};
use thane_models::Table;

use crate::compress::Compressed;
use crate::tables::Stored;

/// Rows of a table that follow each other.
#[derive(Clone, Debug)]
pub struct SharedRows {
    pub(crate) input: String,
    pub(crate) factor: f32,
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) n_columns: usize,
    pub(crate) dtype: DType,
    pub(crate) stored: Stored,
    /// Whether they are in the file of the table; otherwise they are constants of the program.
    pub(crate) is_file: bool,
}

impl SharedRows {
    /// Whether a program has these rows as a constant.
    fn are_in(&self, program: &Program) -> bool {
        match &self.stored {
            Stored::Plain(data) => is_constant(program, (&[self.dtype], data)),
            // Older opsets have packed codes as bytes.
            Stored::Coded(coded) => {
                is_constant(program, (&[coded.code, DType::Uint8], &coded.codes))
            }
        }
    }

    /// As the program has them that these weights became; in a file if it does not have them.
    fn within(
        mut self,
        program: &Program,
        made: Option<&Compressed>,
    ) -> Result<Self, CompressError> {
        self.is_file |= !self.are_in(program);
        let (Some(made), Stored::Plain(data), true) = (made, &self.stored, self.is_file) else {
            return Ok(self);
        };
        if let Some(coded) = made.compression.coded(self.dtype, data)?
            && (coded.n_rows, coded.n_columns) == (self.count, self.n_columns)
        {
            self.stored = Stored::Coded(coded);
            self.is_file = !self.are_in(program);
        }
        Ok(self)
    }
}

/// The tables of a model: those that are NumPy files, and the rows of the others, which a package
/// has once.
#[derive(Clone, Debug, Default)]
pub struct Parted {
    /// The tables that are files.
    pub files: Vec<Table>,
    /// The rows of the others.
    pub rows: Vec<SharedRows>,
}

impl Parted {
    /// Parts the tables by the constants of a program that is not compressed yet.
    pub fn new(program: &Program, tables: &[Table]) -> Self {
        let is_shared = |table: &&Table| {
            let mut parts = table.parts.iter();
            let is_constant = |part| is_constant(program, (&[table.dtype], part));
            table.scales.is_none() && parts.all(is_constant)
        };
        let (shared, own): (Vec<&Table>, Vec<&Table>) = tables.iter().partition(is_shared);
        let rows_of = |table: &Table| {
            let stored = table.parts.iter().cloned().map(Stored::Plain).collect();
            rows_of(table, stored, false)
        };
        Self {
            rows: shared.into_iter().flat_map(rows_of).collect(),
            files: own.into_iter().cloned().collect(),
        }
    }

    /// The files that are looked up by a token and may be compressed: angles of positions are
    /// exact, and callers that multiply a matrix need its numbers.
    pub fn looked_up(&self, multiplied: &[&str]) -> Vec<Table> {
        let is_looked_up = |table: &&Table| {
            let is_multiplied = multiplied.contains(&table.input.as_str());
            table.by_token && table.scales.is_none() && !is_multiplied
        };
        self.files.iter().filter(is_looked_up).cloned().collect()
    }

    /// Bytes of all files of tables.
    pub fn file_bytes(&self) -> u64 {
        let files = self.files.iter().map(table_bytes);
        let rows = self.rows.iter().filter(|rows| rows.is_file);
        let rows = rows.map(|rows| rows.stored.byte_len() as u64);
        files.chain(rows).sum()
    }

    /// The tables of a program that was compressed, and was this one before.
    pub fn compressed(mut self, made: &Compressed) -> Result<Self, CompressError> {
        self.rows = place_again(&made.program, self.rows, Some(made))?;
        let mut files = Vec::new();
        for table in self.files {
            match coded(&table, made)? {
                None => files.push(table),
                Some(rows) => self.rows.extend(rows),
            }
        }
        self.files = files;
        Ok(self)
    }
}

/// Bytes of a table that the host looks up, with its scales.
pub fn table_bytes(table: &Table) -> u64 {
    let data = table.parts.iter().chain(&table.scales);
    data.map(|data| data.byte_len() as u64).sum()
}

/// The rows of a table that was compressed; `None` if it was left as it is.
pub fn coded(table: &Table, made: &Compressed) -> Result<Option<Vec<SharedRows>>, CompressError> {
    let parts = made.compression.coded_table(&table.input)?;
    let stored: Vec<Stored> = parts.into_iter().map(Stored::Coded).collect();
    Ok((!stored.is_empty()).then(|| rows_of(table, stored, true)))
}

fn rows_of(table: &Table, stored: Vec<Stored>, is_file: bool) -> Vec<SharedRows> {
    let row_bytes = table.n_columns * (table.dtype.bits() / 8);
    let mut first = 0;
    let parts = stored.into_iter().map(|stored| {
        let count = match &stored {
            Stored::Plain(data) => data.byte_len() / row_bytes.max(1),
            Stored::Coded(coded) => coded.n_rows,
        };
        first += count;
        SharedRows {
            input: table.input.clone(),
            factor: table.factor,
            first: first - count,
            count,
            n_columns: table.n_columns,
            dtype: table.dtype,
            stored,
            is_file,
        }
    });
    parts.collect()
}

/// All constants of a program; those that functions share, for each of them.
pub fn constants(program: &Program) -> impl Iterator<Item = (&TensorType, &Data)> {
    let functions = program.functions().iter();
    let ops = functions.flat_map(|f| f.body().ops.iter().map(|op| f.op(*op)));
    let args = ops
        .filter(|op| op.def.is_constexpr())
        .flat_map(|op| &op.args);
    args.filter_map(|arg| match arg {
        Some(Arg::Literal(Literal::Tensor(ty, data))) => Some((ty, data)),
        _ => None,
    })
}

/// Whether a program has a constant of this data. What is computed is not compared, and scalars are
/// not in the weight file.
fn is_constant(program: &Program, (dtypes, data): (&[DType], &Data)) -> bool {
    let is_one = |ty: &TensorType| dtypes.contains(&ty.dtype) && ty.rank() > 0;
    let mut tensors = constants(program).filter(|(ty, _)| is_one(ty));
    tensors.any(|(_, known)| match (known, data) {
        (Data::Bytes(_), Data::Bytes(_)) => known == data,
        _ => known.is_same(data),
    })
}

/// Rows as a program has them that was another one, of which weights were compressed or not. Rows
/// that it does not have go into a file.
pub fn place_again(
    program: &Program,
    rows: Vec<SharedRows>,
    made: Option<&Compressed>,
) -> Result<Vec<SharedRows>, CompressError> {
    let rows = rows.into_iter();
    rows.map(|rows| rows.within(program, made)).collect()
}

/// Rows that only one package of several has.
pub fn are_in_file(rows: &SharedRows) -> bool {
    rows.is_file
}
