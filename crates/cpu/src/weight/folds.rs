//! What functions of one program share: constants that were computed, and weights that were packed
//! or rounded.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use thane_kernels::linear::{Int8Block, PackedColumn, int8_len, pack, pack_int8, packed_len};
use thane_kernels::{BlockType, Context, Weight};
use thane_mil::budget::{Budget, OverBudget};
use thane_mil::data::{Bytes, Data, DataId};
use thane_mil::literal::Literal;
use thane_mil::opset::OpDef;
use thane_mil::program::{Arg, Definition, Function, ValueId};
use thane_mil::types::DType;

use super::compressed::Compressed;
use super::packs::Packs;
use super::stored::{Held, Stored, WeightId};
use super::{Form, Matrix, Place, Tables};
use crate::ops::Fault;
use crate::tensor::{Buffer, Pool, Tensor};

/// Constants that were computed, by what they were computed from, and matrices that were packed, by
/// which constants they are: functions of one program share them.
#[derive(Debug)]
pub struct Folds {
    tensors: RefCell<HashMap<Vec<KeyPart>, Tensor>>,
    panels: RefCell<HashMap<WeightId, Arc<Held<PackedColumn>>>>,
    places: RefCell<HashMap<WeightId, Option<Place>>>,
    /// The fewest rows that a function multiplies each matrix with.
    least_rows: RefCell<HashMap<WeightId, usize>>,
    blocks: RefCell<HashMap<WeightId, Option<Blocks>>>,
    /// Where codes with tables are packed, by their bits.
    table_places: RefCell<HashMap<(WeightId, usize), Option<Place>>>,
    ordered: RefCell<HashMap<CodesId, Arc<Held<u8>>>>,
    packs: Arc<Packs>,
    int8: RefCell<HashMap<WeightId, Arc<Held<Int8Block>>>>,
    budget: Budget,
    /// What was refused last.
    refused: RefCell<Option<OverBudget>>,
}

/// Which codes were put in order, and whether they are two's complement.
type CodesId = (WeightId, bool);

/// Codes that are packed as blocks of a type.
type Blocks = (Arc<Compressed>, BlockType, Place);

impl Folds {
    /// Nothing yet; what is kept counts against `budget`.
    pub fn new(budget: &Budget) -> Self {
        let (tensors, panels, places, blocks, ordered, int8, refused) = Default::default();
        let (least_rows, table_places) = Default::default();
        let packs = Arc::new(Packs::new(budget.clone()));
        Self {
            tensors,
            panels,
            places,
            least_rows,
            blocks,
            table_places,
            ordered,
            packs,
            int8,
            budget: budget.clone(),
            refused,
        }
    }

    /// What `compute` makes, in a pool whose tensors take at most `most_bytes`.
    pub fn within<T>(
        &self,
        most_bytes: usize,
        compute: impl FnOnce(&mut Pool) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut pool = Pool::new(most_bytes, &self.budget);
        let result = compute(&mut pool);
        if let Err(reason) = &result
            && let Some(refused) = pool.refusal(reason)
        {
            self.refused.replace(Some(refused));
        }
        result
    }

    /// What was refused, if that is the reason of this failure.
    pub fn refusal(&self, reason: &str) -> Option<OverBudget> {
        self.refused
            .borrow_mut()
            .take_if(|refused| reason.ends_with(&refused.to_string()))
    }

    /// The numbers of a constant, in memory; none where there is none for them.
    pub(super) fn read(&self, data: &Data) -> Option<Bytes> {
        let held = self
            .budget
            .reserve(data.byte_len(), || "a weight that is derived".to_owned())
            .ok()?;
        Some(Bytes::new(Held::new(data.to_vec(), held)))
    }

    /// The matrix, in panels too if it is of f32, or of bf16 where the machine multiplies that, and
    /// there is memory for them.
    pub fn pack(&self, context: &Context, mut matrix: Matrix) -> Matrix {
        if matrix.stored.ty == BlockType::F16 {
            return matrix;
        }
        let known = self.panels.borrow().get(&matrix.stored.id).cloned();
        let panels = known.or_else(|| {
            let panels = self.panels_of(context, &matrix.weight())?;
            // What is packed takes the place of the mapped file in memory.
            matrix.stored.bytes.release();
            let mut all = self.panels.borrow_mut();
            all.insert(matrix.stored.id.clone(), panels.clone());
            Some(panels)
        });
        if let Some(panels) = panels {
            matrix.form = Form::Panels(matrix.stored.ty, panels);
        }
        matrix
    }

    /// The matrix in panels of fp32, where it is of fp16 and there is memory for them.
    pub fn pack_wide(&self, context: &Context, mut matrix: Matrix) -> Matrix {
        if matrix.stored.ty != BlockType::F16 {
            return matrix;
        }
        let known = self.panels.borrow().get(&matrix.stored.id).cloned();
        let panels = known.or_else(|| {
            let panels = self.panels_of(context, &matrix.weight())?;
            let mut all = self.panels.borrow_mut();
            all.insert(matrix.stored.id.clone(), panels.clone());
            Some(panels)
        });
        if let Some(panels) = panels {
            matrix.stored.bytes.release();
            matrix.form = Form::Panels(BlockType::F32, panels);
        }
        matrix
    }

    /// A matrix of these values, in panels alone where there is memory for them.
    pub fn packed(&self, context: &Context, values: Vec<f32>, shape: [usize; 2]) -> Option<Matrix> {
        let [n_rows, n_cols] = shape;
        let Some(panels) = self.panels_of(context, &wide_weight(&values, shape)) else {
            let values = Buffer::F32(values.into());
            return Matrix::computed(Tensor::new(DType::Fp32, shape.to_vec(), values));
        };
        let bytes = Bytes::new([0u8; 0]);
        let id = WeightId::Data(Data::Bytes(bytes.clone()).id(), shape);
        let stored = Stored {
            ty: BlockType::F32,
            bytes,
            n_rows,
            n_cols,
            id,
        };
        let mut matrix = Matrix::new(stored);
        matrix.form = Form::Panels(BlockType::F32, panels);
        Some(matrix)
    }

    /// The panels of a weight of f32 or bf16, or of f16 as f32, where there is memory for them.
    fn panels_of(&self, context: &Context, weight: &Weight) -> Option<Arc<Held<PackedColumn>>> {
        let ty = match weight.ty {
            BlockType::F16 => BlockType::F32,
            ty => ty,
        };
        let len = packed_len(context.isa(), ty, weight.n_rows, weight.n_cols)?;
        let n_bytes = len.saturating_mul(size_of::<PackedColumn>());
        let held = self.budget.reserve(n_bytes, || "packed weights".to_owned());
        let mut values = vec![PackedColumn::ZERO; held.is_ok().then_some(len)?];
        pack(context, weight, &mut values);
        Some(Arc::new(Held::new(values, held.ok()?)))
    }

    /// The matrix of floats, rounded to integers; as it is where these are too many to count.
    pub fn round(&self, context: &Context, mut matrix: Matrix) -> Result<Matrix, Fault> {
        let weight = matrix.weight();
        let Some(len) = int8_len(weight.n_rows, weight.n_cols) else {
            return Ok(matrix);
        };
        let mut all = self.int8.borrow_mut();
        if let Some(int8) = all.get(&matrix.stored.id) {
            let int8 = int8.clone();
            matrix.form = Form::Int8(int8);
            return Ok(matrix);
        }
        let what = || {
            format!(
                "a weight [{}, {}] rounded to int8",
                weight.n_rows, weight.n_cols
            )
        };
        let held = self
            .budget
            .reserve(len.saturating_mul(size_of::<Int8Block>()), what);
        let held = held.map_err(|refused| self.refused.borrow_mut().insert(refused).to_string())?;
        let mut values = vec![Int8Block::ZERO; len];
        pack_int8(context, &weight, &mut values);
        // What is rounded takes the place of the mapped file in memory.
        matrix.stored.bytes.release();
        let int8 = Arc::new(Held::new(values, held));
        all.insert(matrix.stored.id.clone(), int8.clone());
        matrix.form = Form::Int8(int8);
        Ok(matrix)
    }

    /// Notes that a function multiplies the matrix with so many rows.
    pub fn count_rows(&self, matrix: &Matrix, n_rows: usize) {
        let mut all = self.least_rows.borrow_mut();
        let least = all.entry(matrix.stored.id.clone()).or_insert(n_rows);
        *least = n_rows.min(*least);
    }

    /// The fewest rows that a function multiplies the matrix with, of those that were counted.
    pub fn least_rows(&self, matrix: &Matrix) -> usize {
        let all = self.least_rows.borrow();
        all.get(&matrix.stored.id).copied().unwrap_or(usize::MAX)
    }

    /// The matrix, to be packed when products of few rows with it begin, if its type is packed.
    pub fn pack_when_used(&self, context: &Context, mut matrix: Matrix) -> Matrix {
        let mut all = self.places.borrow_mut();
        let place = all.entry(matrix.stored.id.clone()).or_insert_with(|| {
            Some(Place {
                packs: self.packs.clone(),
                range: self.packs.add(context.isa(), &matrix.stored)?,
                n_asked: Arc::default(),
            })
        });
        if let Some(place) = place {
            matrix.form = Form::PackedWhenUsed(place.clone());
        }
        matrix
    }

    /// The matrix of codes, to be packed when products of few rows with it begin: as blocks, where
    /// its codes and scales are those of a block type, or in the order of codes with tables.
    pub fn pack_codes_when_used(&self, matrix: Matrix) -> Matrix {
        self.pack_tables_when_used(self.pack_blocks_when_used(matrix))
    }

    fn pack_tables_when_used(&self, mut matrix: Matrix) -> Matrix {
        let Form::Compressed(codes) = &matrix.form else {
            return matrix;
        };
        let mut all = self.table_places.borrow_mut();
        // The same codes may have other tables elsewhere, for which they lie the same.
        let key = (matrix.stored.id.clone(), codes.n_bits);
        let place = all.entry(key).or_insert_with(|| {
            Some(Place {
                packs: self.packs.clone(),
                range: self.packs.add_tables(codes)?,
                n_asked: Arc::default(),
            })
        });
        let is_packed = codes.weight().table_codes_len().is_some();
        if let Some(place) = place.clone().filter(|_| is_packed) {
            let (bytes, factors) = codes.weight().table_bytes();
            let tables = Arc::new(Tables { bytes, factors });
            matrix.form = Form::TablesWhenUsed(codes.clone(), tables, place);
        }
        matrix
    }

    fn pack_blocks_when_used(&self, mut matrix: Matrix) -> Matrix {
        let Form::Compressed(codes) = &matrix.form else {
            return matrix;
        };
        let mut all = self.blocks.borrow_mut();
        let known = all.entry(matrix.stored.id.clone()).or_insert_with(|| {
            let ty = codes.block_type()?;
            let place = Place {
                packs: self.packs.clone(),
                range: self.packs.add_codes(codes, ty)?,
                n_asked: Arc::default(),
            };
            Some((codes.clone(), ty, place))
        });
        // The same codes may have other scales elsewhere.
        if let Some((known, ty, place)) = known.clone()
            && known.has_coding_of(codes)
        {
            matrix.form = Form::BlocksWhenUsed(known, ty, place);
        }
        matrix
    }

    /// The matrix of codes, with these in the order in which products read them, where there is one
    /// and memory for it.
    pub fn order_codes(&self, context: &Context, mut matrix: Matrix) -> Matrix {
        let Form::Compressed(compressed) = &matrix.form else {
            return matrix;
        };
        // The same codes may have other scales, or tables, elsewhere, for which they lie the same.
        let key = (matrix.stored.id.clone(), compressed.coding.is_signed());
        let known = self.ordered.borrow().get(&key).cloned();
        let order = || {
            let weight = compressed.weight();
            let len = weight.ordered_len()?;
            let held = self
                .budget
                .reserve(len, || "the codes of a weight".to_owned())
                .ok()?;
            let mut values = vec![0; len];
            weight.write_ordered(context, &mut values);
            // What is in order takes the place of the mapped file in memory.
            compressed.codes.release();
            let ordered = Arc::new(Held::new(values, held));
            let mut all = self.ordered.borrow_mut();
            all.insert(key, ordered.clone());
            Some(ordered)
        };
        let known = known.filter(|c| compressed.weight().ordered_len() == Some(c.values.len()));
        let n_bytes = compressed.weight().ordered_scaling_len() * size_of::<f32>();
        let held = self
            .budget
            .reserve(n_bytes, || "the scales of a weight".to_owned());
        if let (Ok(held), Some(ordered)) = (held, known.or_else(order)) {
            let scaling = Held::new(compressed.weight().ordered_scaling(), held);
            matrix.form = Form::Ordered(compressed.clone(), ordered, Arc::new(scaling));
        }
        matrix
    }

    /// The tensor behind `value`, where a constexpr op makes it and another function had it
    /// computed, else `compute`.
    pub fn get(
        &self,
        f: &Function,
        value: ValueId,
        compute: impl FnOnce() -> Result<Tensor, Fault>,
    ) -> Result<Tensor, Fault> {
        let mut key = Vec::new();
        if f.definer(value).is_none_or(|op| op.def.is_const()) || !identify(f, value, &mut key) {
            return compute();
        }
        if let Some(tensor) = self.tensors.borrow().get(&key) {
            return Ok(tensor.clone());
        }
        let tensor = compute()?;
        self.tensors.borrow_mut().insert(key, tensor.clone());
        Ok(tensor)
    }
}

fn wide_weight(values: &[f32], [n_rows, n_cols]: [usize; 2]) -> Weight<'_> {
    Weight {
        ty: BlockType::F32,
        bytes: bytemuck::cast_slice(values),
        n_rows,
        n_cols,
    }
}

/// A part of what identifies a constant.
#[derive(Debug, PartialEq, Eq, Hash)]
enum KeyPart {
    /// An op, by its definition, and which of its results.
    Op(*const OpDef, usize),
    /// An argument that is left out.
    Missing,
    /// Element type and shape of a literal.
    Type(DType, Vec<Option<usize>>),
    /// What a small literal holds.
    Small(Vec<u8>),
    /// Which bytes a large literal is.
    Data(DataId),
    /// A string.
    Text(String),
}

/// Append what identifies a constant; `false` where nothing does.
fn identify(f: &Function, value: ValueId, key: &mut Vec<KeyPart>) -> bool {
    /// Scalars and tables are told apart by what they hold, larger constants by which bytes they
    /// are.
    const SMALL: usize = 256;
    // Longer than any that a checkpoint or a compressor makes; strangers chain constants without
    // end.
    const LONGEST: usize = 1024;
    if key.len() > LONGEST {
        return false;
    }
    let Definition::Result(id, index) = f.value(value).definition else {
        return false;
    };
    let op = f.op(id);
    if !op.def.is_constexpr() {
        return false;
    }
    key.push(KeyPart::Op(op.def, index));
    op.args.iter().all(|arg| match arg {
        None => {
            key.push(KeyPart::Missing);
            true
        }
        Some(Arg::Value(v)) => identify(f, *v, key),
        Some(Arg::Literal(Literal::Tensor(ty, data))) => {
            let shape = ty.shape.iter().map(|d| d.known()).collect();
            key.push(KeyPart::Type(ty.dtype, shape));
            key.push(match data.byte_len() {
                ..=SMALL => KeyPart::Small(data.to_vec()),
                _ => KeyPart::Data(data.id()),
            });
            true
        }
        Some(Arg::Literal(Literal::String(s))) => {
            key.push(KeyPart::Text(s.clone()));
            true
        }
        Some(Arg::Values(_) | Arg::Literal(_)) => false,
    })
}
