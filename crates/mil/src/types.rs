//! Element types, dimensions, and the types of values.

use std::fmt;

macro_rules! dtypes {
    ($($variant:ident $text:literal $bits:literal $doc:literal;)*) => {
        /// An element type of MIL.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DType { $(#[doc = $doc] $variant,)* }

        impl DType {
            /// All element types.
            pub const ALL: &'static [DType] = &[$(DType::$variant,)*];

            /// The name in MIL text, such as `fp16`.
            pub fn name(self) -> &'static str {
                match self { $(DType::$variant => $text,)* }
            }

            /// Bits per element in a tensor; 0 for strings, which have no fixed size.
            pub fn bits(self) -> usize {
                match self { $(DType::$variant => $bits,)* }
            }
        }
    };
}

dtypes! {
    Bool "bool" 8 "Boolean, one byte each.";
    String "string" 0 "UTF-8 text; scalars only.";
    Fp16 "fp16" 16 "IEEE 754 binary16.";
    Fp32 "fp32" 32 "IEEE 754 binary32.";
    Fp64 "fp64" 64 "IEEE 754 binary64.";
    Bf16 "bf16" 16 "bfloat16.";
    Int4 "int4" 4 "Two's complement, two to a byte, low nibble first.";
    Int8 "int8" 8 "Two's complement.";
    Int16 "int16" 16 "Two's complement.";
    Int32 "int32" 32 "Two's complement.";
    Int64 "int64" 64 "Two's complement.";
    Uint1 "uint1" 1 "Packed, least significant bit first.";
    Uint2 "uint2" 2 "Packed, least significant bits first.";
    Uint3 "uint3" 3 "Packed, least significant bits first; elements straddle bytes.";
    Uint4 "uint4" 4 "Packed, low nibble first.";
    Uint6 "uint6" 6 "Packed, least significant bits first; elements straddle bytes.";
    Uint8 "uint8" 8 "Unsigned.";
    Uint16 "uint16" 16 "Unsigned.";
    Uint32 "uint32" 32 "Unsigned.";
    Uint64 "uint64" 64 "Unsigned.";
    Fp8E4M3 "fp8e4m3fn" 8 "8-bit float, 4 exponent bits, no infinities.";
    Fp8E5M2 "fp8e5m2" 8 "8-bit float, 5 exponent bits.";
}

impl DType {
    /// The element type with this name in MIL text.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|d| d.name() == name)
    }

    /// Bytes of `n_elements` packed elements, rounded up, or `None` if the number of bits
    /// overflows.
    pub fn byte_len(self, n_elements: usize) -> Option<usize> {
        // Bits of what 32-bit addresses can hold pass 32 bits.
        let bits = (n_elements as u64).checked_mul(self.bits() as u64)?;
        usize::try_from(bits.div_ceil(8)).ok()
    }

    /// Whether the type is floating point.
    pub fn is_float(self) -> bool {
        matches!(
            self,
            DType::Fp16 | DType::Fp32 | DType::Fp64 | DType::Bf16 | DType::Fp8E4M3 | DType::Fp8E5M2
        )
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Identifies a dimension whose size is known only at run time. Dimensions with equal symbols have
/// equal sizes in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol(pub u32);

/// One dimension of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A size that is fixed in the program.
    Known(usize),
    /// A size that each call chooses; printed as `?`.
    Symbol(Symbol),
}

impl Dim {
    /// The size if the program fixes it.
    pub fn known(self) -> Option<usize> {
        match self {
            Dim::Known(n) => Some(n),
            Dim::Symbol(_) => None,
        }
    }

    /// Whether both dimensions can have the same size in one call; true if either is symbolic.
    pub fn compatible(self, other: Dim) -> bool {
        match (self, other) {
            (Dim::Known(a), Dim::Known(b)) => a == b,
            _ => true,
        }
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Self {
        Dim::Known(n)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Known(n) => write!(f, "{n}"),
            Dim::Symbol(_) => f.write_str("?"),
        }
    }
}

/// Maximum rank of any tensor. Only constants that constexpr ops use may exceed rank 5; see
/// [`valid`](crate::valid).
pub const MAX_RANK: usize = 32;

/// Whether `word` starts a type in MIL text, so that it cannot name a value.
pub fn is_type_word(word: &str) -> bool {
    matches!(word, "tensor" | "state" | "list" | "tuple" | "dict")
        || DType::from_name(word).is_some()
}

/// Element type and shape of a tensor; the shape of a scalar is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Vec<Dim>,
}

impl TensorType {
    /// A tensor type with known and symbolic dimensions.
    pub fn new(dtype: DType, shape: impl IntoIterator<Item = impl Into<Dim>>) -> Self {
        Self {
            dtype,
            shape: shape.into_iter().map(Into::into).collect(),
        }
    }

    /// The type of a scalar.
    pub fn scalar(dtype: DType) -> Self {
        Self {
            dtype,
            shape: Vec::new(),
        }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Whether a tensor of this type can have this shape.
    pub fn fits(&self, shape: &[usize]) -> bool {
        let mut pairs = self.shape.iter().zip(shape);
        shape.len() == self.rank() && pairs.all(|(d, n)| d.compatible(Dim::Known(*n)))
    }

    /// The shape if every dimension is known.
    pub fn known_shape(&self) -> Option<Vec<usize>> {
        self.shape.iter().map(|d| d.known()).collect()
    }

    /// Number of elements, or `None` if a dimension is symbolic or the product overflows.
    pub fn n_elements(&self) -> Option<usize> {
        self.shape
            .iter()
            .try_fold(1usize, |n, d| n.checked_mul(d.known()?))
    }

    /// Bytes of the packed elements, or `None` if a dimension is symbolic or the product overflows.
    pub fn byte_len(&self) -> Option<usize> {
        self.dtype.byte_len(self.n_elements()?)
    }

    /// Whether both types can have the same shape in one call.
    pub fn compatible(&self, other: &TensorType) -> bool {
        self.dtype == other.dtype
            && self.rank() == other.rank()
            && self
                .shape
                .iter()
                .zip(&other.shape)
                .all(|(a, b)| a.compatible(*b))
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.shape.is_empty() {
            return write!(f, "{}", self.dtype);
        }
        write!(f, "tensor<{}, [", self.dtype)?;
        for (i, dim) in self.shape.iter().enumerate() {
            write!(f, "{}{dim}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str("]>")
    }
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// A tensor or scalar.
    Tensor(TensorType),
    /// A tensor that keeps its content between calls; `read_state` reads it and
    /// `coreml_update_state` writes it.
    State(TensorType),
    /// A list of elements of one type and its length (`None`: any length).
    List(Box<Type>, Option<usize>),
    /// A fixed sequence of types.
    Tuple(Vec<Type>),
    /// A dictionary with its key type and value type.
    Dict(Box<Type>, Box<Type>),
}

impl Type {
    /// The tensor type, if this is a tensor.
    pub fn tensor(&self) -> Option<&TensorType> {
        match self {
            Type::Tensor(t) => Some(t),
            _ => None,
        }
    }

    /// The tensor type, if this is a tensor or a state.
    pub fn tensor_or_state(&self) -> Option<&TensorType> {
        match self {
            Type::Tensor(t) | Type::State(t) => Some(t),
            _ => None,
        }
    }

    /// Whether both types can describe the same value in one call.
    pub fn compatible(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Tensor(a), Type::Tensor(b)) | (Type::State(a), Type::State(b)) => {
                a.compatible(b)
            }
            (Type::List(a, n), Type::List(b, m)) => {
                a.compatible(b) && (n.is_none() || m.is_none() || n == m)
            }
            (Type::Tuple(a), Type::Tuple(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.compatible(b))
            }
            (Type::Dict(k, v), Type::Dict(l, w)) => k.compatible(l) && v.compatible(w),
            _ => false,
        }
    }
}

impl Type {
    /// Replaces symbolic dimensions by the known ones of `declared`, a compatible type.
    pub(crate) fn refine(&mut self, declared: &Type) {
        if let (Type::Tensor(a), Type::Tensor(b)) = (self, declared) {
            for (x, y) in a.shape.iter_mut().zip(&b.shape) {
                if x.known().is_none() && y.known().is_some() {
                    *x = *y;
                }
            }
        }
    }
}

impl From<TensorType> for Type {
    fn from(t: TensorType) -> Self {
        Type::Tensor(t)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Tensor(t) => write!(f, "{t}"),
            Type::State(t) => write!(f, "state<{t}>"),
            Type::List(t, Some(n)) => write!(f, "list<{t}, {n}>"),
            Type::List(t, None) => write!(f, "list<{t}, ?>"),
            Type::Dict(k, v) => write!(f, "dict<{k}, {v}>"),
            Type::Tuple(types) => {
                f.write_str("tuple<")?;
                for (i, t) in types.iter().enumerate() {
                    write!(f, "{}{t}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str(">")
            }
        }
    }
}
