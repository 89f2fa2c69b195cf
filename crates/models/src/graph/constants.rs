//! Constants from the tensors of a checkpoint. Start reading at [`Graph::weight`].

use std::collections::{BTreeMap, HashMap};

use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::program::Arg;
use thane_mil::types::{DType, TensorType};

use super::{Graph, ValueResult};
use crate::Table;
use crate::checkpoint::{Tensor, TensorType as StoredType};
use crate::numbers::StoredWeight;
use crate::quant;

/// The constants that all functions of a program share.
#[derive(Debug, Default)]
pub struct Constants {
    /// Constants that were derived from tensors, by name, so that a package stores each of them
    /// once.
    derived: HashMap<String, Data>,
    /// The tensors that constants were made from, by name.
    used: BTreeMap<String, StoredWeight>,
    /// The tables that callers look up for inputs of functions, by input.
    tables: BTreeMap<String, Table>,
}

impl Constants {
    /// The tables that callers look up.
    pub fn tables(&self) -> Vec<Table> {
        self.tables.values().cloned().collect()
    }

    /// The tensors that constants were made from.
    pub fn stored(&self) -> Vec<StoredWeight> {
        self.used.values().cloned().collect()
    }
}

impl Graph {
    /// A constant with the numbers of a checkpoint tensor, in the element type of the form. A
    /// block-quantized tensor stays quantized in fp32 programs.
    pub fn weight(&mut self, tensor: &Tensor) -> ValueResult {
        self.weight_of_rank(tensor, tensor.shape.len(), 1.0)
    }

    /// A constant with the numbers of a vector, followed by dimensions of 1 up to `rank`.
    pub fn vector(&mut self, tensor: &Tensor, rank: usize) -> ValueResult {
        self.weight_of_rank(tensor, rank, 1.0)
    }

    /// Like [`Self::vector`], of `(number + plus) * factor` for every number.
    pub fn vector_plus(
        &mut self,
        tensor: &Tensor,
        rank: usize,
        plus: f32,
        factor: f32,
    ) -> ValueResult {
        if plus == 0.0 && factor == 1.0 {
            return self.vector(tensor, rank);
        }
        let name = format!("{}+{plus}", tensor.name);
        let key = (name.clone(), rank, factor.to_bits());
        if let Some(value) = self.weights.get(&key) {
            return Ok(*value);
        }
        self.note_use(tensor, factor.recip());
        let stored = dense(tensor).to_vec();
        let stored = stored.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
        let numbers: Vec<f32> = stored.map(|v| (v + plus) * factor).collect();
        let data = Data::owned(self.bytes_of(&numbers));
        let data = self.derive(&format!("{name}*{factor}"), data);
        let ones = rank.saturating_sub(tensor.shape.len());
        let shape = tensor.shape.iter().copied();
        let ty = TensorType::new(
            self.spelling.float,
            shape.chain(std::iter::repeat_n(1, ones)),
        );
        let value = self
            .builder
            .constant(&tensor.name, Literal::Tensor(ty, data))?;
        self.weights.insert(key, value);
        Ok(value)
    }

    /// Like [`Self::weight`], with every number divided by `divisor`.
    pub fn divided_weight(&mut self, tensor: &Tensor, divisor: f32) -> ValueResult {
        self.weight_of_rank(tensor, tensor.shape.len(), divisor)
    }

    /// Like [`Self::weight`], with dimensions of 1 appended up to `rank`, and every number divided
    /// by `divisor`.
    pub(super) fn weight_of_rank(
        &mut self,
        tensor: &Tensor,
        rank: usize,
        divisor: f32,
    ) -> ValueResult {
        let key = (tensor.name.clone(), rank, divisor.to_bits());
        if let Some(value) = self.weights.get(&key) {
            return Ok(*value);
        }
        self.note_use(tensor, divisor);
        let ones = rank.saturating_sub(tensor.shape.len());
        let as_stored = self.spelling.float == DType::Fp32 && ones == 0 && divisor == 1.0;
        let value = match parts(tensor) {
            Some((parts, groups)) if as_stored => self.quantized(tensor, parts, groups)?,
            _ if as_stored && is_half(tensor) => self.half(tensor)?,
            _ => {
                let shape = tensor
                    .shape
                    .iter()
                    .copied()
                    .chain(std::iter::repeat_n(1, ones));
                let ty = TensorType::new(self.spelling.float, shape);
                let data = self.numbers(tensor, divisor);
                self.builder
                    .constant(&tensor.name, Literal::Tensor(ty, data))?
            }
        };
        self.weights.insert(key, value);
        Ok(value)
    }

    /// A constant of these numbers, in the element type of the form.
    pub fn constant(&mut self, name: &str, shape: &[usize], data: Data) -> ValueResult {
        let ty = TensorType::new(self.spelling.float, shape.iter().copied());
        self.builder.constant(name, Literal::Tensor(ty, data))
    }

    /// The numbers of a tensor divided by `divisor`, for a table beside the program; those of a
    /// constant of the program if there is one of the same tensor and divisor.
    pub fn table_numbers(&self, tensor: &Tensor, divisor: f32) -> Data {
        self.note_use(tensor, divisor);
        self.numbers(tensor, divisor)
    }

    /// The same as int8 codes with an fp16 scale for each row of `n_columns`.
    pub fn int8_table(&self, tensor: &Tensor, divisor: f32, n_columns: usize) -> (Data, Data) {
        self.note_use(tensor, divisor);
        quant::int8_rows(
            quant::divided(dense(tensor), divisor, DType::Fp32),
            n_columns,
        )
    }

    /// Notes the table that callers look up for an input; it is the same in all functions.
    pub fn add_table(&self, table: Table) {
        let tables = &mut self.shared.borrow_mut().tables;
        tables.entry(table.input.clone()).or_insert(table);
    }

    /// Records that a constant was made from `tensor`, with the smallest divisor of all its
    /// constants.
    pub fn note_use(&self, tensor: &Tensor, divisor: f32) {
        let first = || StoredWeight {
            tensor: tensor.clone(),
            divisor,
            float: self.spelling.float,
        };
        let mut shared = self.shared.borrow_mut();
        let weight = shared.used.entry(tensor.name.clone()).or_insert_with(first);
        weight.divisor = weight.divisor.min(divisor);
    }

    /// The numbers of a tensor divided by `divisor`, in the element type of the form.
    fn numbers(&self, tensor: &Tensor, divisor: f32) -> Data {
        match self.spelling.float {
            DType::Fp16 if is_half(tensor) && divisor == 1.0 => Data::Bytes(tensor.bytes.clone()),
            DType::Fp32 if divisor == 1.0 => self.derive(&tensor.name, dense(tensor)),
            float => {
                let data = quant::divided(dense(tensor), divisor, float);
                self.derive(&format!("{}/{divisor}", tensor.name), data)
            }
        }
    }

    /// An fp16 tensor as it is stored, followed by a `constexpr_cast` to fp32. The bytes are not
    /// copied.
    fn half(&mut self, tensor: &Tensor) -> ValueResult {
        let ty = TensorType::new(DType::Fp16, tensor.shape.iter().copied());
        let literal = Literal::Tensor(ty, Data::Bytes(tensor.bytes.clone()));
        let stored = self
            .builder
            .constant(&format!("{}_fp16", tensor.name), literal)?;
        let dtype = self.string("fp32")?;
        let args = [
            ("source_val", Arg::Value(stored)),
            ("output_dtype", Arg::Value(dtype)),
        ];
        self.builder.op("constexpr_cast", &tensor.name, args)
    }

    /// Stores `data` under `name` for all functions of the program; returns the earlier data if
    /// there is some.
    pub(super) fn derive(&self, name: &str, data: Data) -> Data {
        self.shared
            .borrow_mut()
            .derived
            .entry(name.to_owned())
            .or_insert(data)
            .clone()
    }

    /// Like [`Self::derive`], with data that is made only if there is none.
    pub fn derive_with(&self, name: &str, make: impl FnOnce(&Self) -> Data) -> Data {
        if let Some(data) = self.shared.borrow().derived.get(name) {
            return data.clone();
        }
        self.derive(name, make(self))
    }

    /// A quantized matrix as `constexpr_blockwise_shift_scale` (and `constexpr_lut_to_dense`
    /// if the type has a lookup table) over its codes, scales and offsets. There are `groups` rows
    /// and columns of scales.
    fn quantized(
        &mut self,
        tensor: &Tensor,
        parts: quant::QuantizedConstants,
        groups: [usize; 2],
    ) -> ValueResult {
        let (rows, cols) = (tensor.shape[0], tensor.shape[1]);
        let groups = TensorType::new(DType::Fp32, groups);
        let part = |suffix: &str| format!("{}_{suffix}", tensor.name);
        let codes = self.derive(&part("codes"), parts.codes);
        let codes = Literal::Tensor(TensorType::new(parts.code_type, [rows, cols]), codes);
        let mut data = self.builder.constant(&part("codes"), codes)?;
        if let Some(table) = parts.table {
            let entries = table.map(i8::cast_unsigned).to_vec();
            let ty = TensorType::new(DType::Int8, [1usize, 1, table.len(), 1]);
            let lut = self.literal(Literal::Tensor(ty, Data::owned(entries)))?;
            let args = [("indices", Arg::Value(data)), ("lut", Arg::Value(lut))];
            data = self
                .builder
                .op("constexpr_lut_to_dense", &part("levels"), args)?;
        }
        let scales = self.derive(&part("scale"), parts.scales);
        let scale = self
            .builder
            .constant(&part("scale"), Literal::Tensor(groups.clone(), scales))?;
        let (data, scale) = (("data", Arg::Value(data)), ("scale", Arg::Value(scale)));
        let op = "constexpr_blockwise_shift_scale";
        match parts.offsets {
            None => self.builder.op(op, &tensor.name, [data, scale]),
            Some(offsets) => {
                let offsets = self.derive(&part("offset"), offsets);
                let offset = self
                    .builder
                    .constant(&part("offset"), Literal::Tensor(groups, offsets))?;
                self.builder.op(
                    op,
                    &tensor.name,
                    [data, scale, ("offset", Arg::Value(offset))],
                )
            }
        }
    }
}

/// The constants of a quantized matrix, and how many rows and columns of scales it has; `None` for
/// other tensors.
fn parts(tensor: &Tensor) -> Option<(quant::QuantizedConstants, [usize; 2])> {
    let &[rows, columns] = tensor.shape.as_slice() else {
        return None;
    };
    if let Some(scaled) = &tensor.scaled {
        let parts = scaled.parts()?;
        let groups = parts.groups;
        return Some((
            quant::QuantizedConstants::of_scaled(parts, columns / groups[1]),
            groups,
        ));
    }
    let parts = quant::parts(tensor.ty, &tensor.bytes)?;
    let groups = [rows, columns / parts.group_len];
    Some((parts, groups))
}

/// Whether a tensor is fp16 and has as many bytes as its shape needs.
fn is_half(tensor: &Tensor) -> bool {
    let n = tensor
        .shape
        .iter()
        .try_fold(2usize, |n, d| n.checked_mul(*d));
    tensor.ty == StoredType::F16 && n == Some(tensor.bytes.len())
}

/// The numbers of a tensor as fp32. A tensor with too few bytes gives zeros;
/// [`crate::weights::Weights`] reports it.
pub fn dense(tensor: &Tensor) -> Data {
    let byte_len = tensor
        .shape
        .iter()
        .try_fold(4usize, |n, d| n.checked_mul(*d))
        .unwrap_or(usize::MAX);
    if let Some(scaled) = &tensor.scaled {
        return scaled.values();
    }
    match quant::widened(tensor.ty, &tensor.bytes)
        .or_else(|| quant::dequantized(tensor.ty, &tensor.bytes))
    {
        Some(data) if data.byte_len() == byte_len => data,
        None if tensor.bytes.len() == byte_len => Data::Bytes(tensor.bytes.clone()),
        _ => Data::zeros(byte_len),
    }
}
