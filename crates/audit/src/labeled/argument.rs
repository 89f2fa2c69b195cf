//! An op that is to be called, and what its parameters can be bound to.

use thane_mil::literal::Literal;
use thane_mil::opset::OpDef;
use thane_mil::types::DType;

use super::notation::Notation;

/// An op that is to be called.
pub struct OpCall<'a> {
    /// Its row in the opset.
    pub def: &'static OpDef,
    /// What the description says.
    pub notation: &'a Notation,
    /// Shape of its first operand.
    pub x: Vec<usize>,
    /// Element type of its operands.
    pub dtype: DType,
}

impl OpCall<'_> {
    /// The type of the operands if a parameter takes that, else the first that it takes.
    pub fn taken(&self, dtypes: &[DType]) -> Option<DType> {
        let own = dtypes.iter().find(|d| **d == self.dtype);
        own.or(dtypes.first()).copied()
    }
}

/// An argument before it is part of a function.
pub enum Argument {
    /// Left unbound.
    Left,
    /// A tensor input of this type and shape.
    Input(DType, Vec<usize>),
    /// Several tensor inputs of the operands' type.
    Inputs(Vec<Vec<usize>>),
    /// A constant of one number, repeated.
    Filled(DType, Vec<usize>, f64),
    /// A constant.
    Is(Literal),
}
