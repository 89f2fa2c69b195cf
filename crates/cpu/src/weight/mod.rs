//! Constant matrices in the form that kernels multiply: the stored blocks where there are some,
//! else fp32.

mod compressed;
mod folds;
mod packs;
mod stored;
mod suit;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use compressed::{Coding, Compressed};
pub use folds::Folds;
use packs::Packs;
pub use stored::Stored;
use stored::{Held, WeightId};
pub use suit::{Product, Suit};
use thane_kernels::BlockType;
use thane_kernels::Context;
use thane_kernels::Weight;
use thane_kernels::linear::{
    self, HalfPanels, Int8Block, Int8Weight, Operand, Packed, PackedCodes, PackedColumn, TableBytes,
};
use thane_mil::data::{Bytes, Data};
use thane_mil::literal::Literal;
use thane_mil::program::{Function, ValueId};
use thane_mil::types::DType;

use crate::tensor::Tensor;

/// A constant matrix, in the form that its products read.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// As it is stored.
    pub stored: Stored,
    form: Form,
    /// Whether ruling out rows pays.
    screening: Arc<Screening>,
}

/// In which form products read a matrix.
#[derive(Clone, Debug)]
enum Form {
    /// As it is stored.
    Stored,
    /// Floats of this type in the order that products of many rows read them.
    Panels(BlockType, Arc<Held<PackedColumn>>),
    /// As stored until products of few rows, or of 16-bit floats some, with most matrices have come
    /// twice, then in the order, or the pages, that these read fastest.
    PackedWhenUsed(Place),
    /// Rounded to integers.
    Int8(Arc<Held<Int8Block>>),
    /// Codes with tables or scales, which are not unpacked.
    Compressed(Arc<Compressed>),
    /// The same, with the codes in the order in which products read them.
    Ordered(Arc<Compressed>, Arc<Held<u8>>, Arc<Held<f32>>),
    /// Codes with scales that are blocks of this type, which are packed as those are.
    BlocksWhenUsed(Arc<Compressed>, BlockType, Place),
    /// Codes with tables, packed as their products read them.
    TablesWhenUsed(Arc<Compressed>, Arc<Tables>, Place),
}

/// The tables of a matrix of codes, and the factors of its rows.
#[derive(Debug)]
struct Tables {
    bytes: Vec<TableBytes>,
    factors: Vec<f32>,
}

/// What a product asks of a matrix that may be packed.
#[derive(Clone, Copy, Debug)]
pub enum Demand {
    /// The matrix as it is stored.
    Stored,
    /// It counts as so many products of few rows, which may have the matrix packed.
    Few(usize),
    /// It has more rows, which the packing of all matrices would keep waiting.
    Some,
    /// It has so many rows that packing pays where values would be multiplied otherwise.
    Many,
}

impl Demand {
    /// A product that counts twice.
    pub fn twice(self) -> Self {
        match self {
            Self::Few(n_asks) => Self::Few(2 * n_asks),
            _ => self,
        }
    }
}

/// A matrix among those that are packed.
#[derive(Clone, Debug)]
struct Place {
    packs: Arc<Packs>,
    /// Where it is in [`Packs::bytes`].
    range: Range<usize>,
    n_asked: Arc<AtomicUsize>,
}

impl Place {
    /// The packed bytes.
    fn bytes(&self, context: &Context, demand: Demand) -> Option<&[u8]> {
        let n_asks = match demand {
            Demand::Stored => return None,
            Demand::Few(n_asks) => n_asks,
            Demand::Some | Demand::Many => 0,
        };
        let mut bytes = self.packs.bytes(context, 0, &self.range);
        for _ in 0..n_asks {
            let n_asked = self.n_asked.fetch_add(1, Ordering::Relaxed);
            bytes = self.packs.bytes(context, n_asked, &self.range);
        }
        bytes
    }
}

/// Whether products of a matrix are to rule out rows: as long as that reads less. Then it is tried
/// ever more seldom.
#[derive(Debug, Default)]
pub struct Screening {
    /// Products to leave alone.
    left: AtomicUsize,
    /// How many there were to leave alone, last.
    pause: AtomicUsize,
}

impl Screening {
    /// Products between two that find out whether it pays, at most: these take up to 1.7 times as
    /// long.
    const LONGEST: usize = 127;

    fn is_due(&self) -> bool {
        let less = |left: usize| left.checked_sub(1);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_err()
    }

    /// What it came to.
    pub fn tell(&self, pays: bool) {
        let pause = if pays {
            0
        } else {
            (2 * self.pause.load(Ordering::Relaxed) + 1).min(Self::LONGEST)
        };
        self.pause.store(pause, Ordering::Relaxed);
        self.left.store(pause, Ordering::Relaxed);
    }
}

impl Matrix {
    fn new(stored: Stored) -> Self {
        Self {
            stored,
            form: Form::Stored,
            screening: Arc::default(),
        }
    }

    /// The matrix behind `value`, where its bytes can be used as they are stored.
    pub fn stored(f: &Function, value: ValueId) -> Option<Self> {
        Stored::find(f, value).map(Self::new)
    }

    /// An fp32 matrix of a tensor that was computed, over the tensor's own buffer.
    pub fn computed(tensor: Tensor) -> Option<Self> {
        Stored::computed(tensor).map(Self::new)
    }

    /// The matrix [rows, cols, 1, ..] behind `value`, where it is made of codes that products can
    /// read, and, if they are to be exact, give the program's values. It has no bytes of values.
    pub fn compressed(f: &Function, value: ValueId, is_due_exactly: bool) -> Option<Self> {
        let compressed = Compressed::find(f, value)?;
        (!is_due_exactly || compressed.is_exact()).then_some(())?;
        let [n_rows, n_cols] = compressed.shape();
        let mut matrix = Self::new(Stored {
            ty: BlockType::F32,
            bytes: Bytes::new([0u8; 0]),
            n_rows,
            n_cols,
            id: WeightId::Data(Data::Bytes(compressed.codes.clone()).id(), [n_rows, n_cols]),
        });
        matrix.form = Form::Compressed(Arc::new(compressed));
        Some(matrix)
    }

    /// The codes, where it was not unpacked.
    pub fn codes(&self) -> Option<linear::Compressed<'_>> {
        match &self.form {
            Form::Compressed(compressed)
            | Form::Ordered(compressed, ..)
            | Form::BlocksWhenUsed(compressed, ..)
            | Form::TablesWhenUsed(compressed, ..) => Some(compressed.weight()),
            _ => None,
        }
    }

    /// Whether products multiply its codes, not its values.
    pub fn multiplies_codes(&self) -> bool {
        let is_coded = matches!(
            self.form,
            Form::BlocksWhenUsed(..) | Form::TablesWhenUsed(..)
        );
        is_coded || self.stored.has_codes()
    }

    /// The matrix behind a constant [rows, cols, 1, ..], where its bytes can be used as they are
    /// stored.
    pub fn pointwise(f: &Function, value: ValueId, folds: &Folds) -> Option<Self> {
        let shape = f.value(value).ty.tensor()?.known_shape()?;
        let (shape, _) = shape.split_first_chunk::<2>()?;
        let Literal::Tensor(ty, data) = f.constant(value)? else {
            return None;
        };
        let block_type = match ty.dtype {
            DType::Fp16 => BlockType::F16,
            DType::Fp32 => BlockType::F32,
            _ => return None,
        };
        let bytes = match data {
            Data::Bytes(bytes) => bytes.clone(),
            // Numbers that are derived: read once, and kept.
            derived => folds.read(derived)?,
        };
        Stored::checked(block_type, bytes, *shape).map(Self::new)
    }

    /// As kernels take it where it is neither packed nor rounded.
    pub fn weight(&self) -> Weight<'_> {
        self.stored.weight()
    }

    /// The form that a product reads.
    pub fn operand(&self, context: &Context, demand: Demand) -> Operand<'_> {
        let Stored {
            ty, n_rows, n_cols, ..
        } = self.stored;
        match &self.form {
            Form::Stored => Operand::Stored(self.weight()),
            Form::Panels(ty, panels) => Operand::Panels(Packed {
                ty: *ty,
                panels: &panels.values,
                n_rows,
                n_cols,
            }),
            Form::Int8(int8) => Operand::Int8(Int8Weight {
                blocks: &int8.values,
                n_rows,
                n_cols,
            }),
            Form::Compressed(compressed) => Operand::Compressed(compressed.weight()),
            Form::Ordered(compressed, codes, scaling) => {
                let weight = compressed.weight();
                Operand::Compressed(weight.ordered(&codes.values, &scaling.values))
            }
            Form::TablesWhenUsed(compressed, tables, place) => {
                let packed = match demand {
                    // To put codes in order takes less time than such a product of their values.
                    Demand::Some | Demand::Many => place.packs.bytes_now(context, &place.range),
                    _ => place.bytes(context, demand),
                };
                let tables = (tables.bytes.as_slice(), tables.factors.as_slice());
                packed
                    .and_then(|codes| compressed.table_codes(codes, tables))
                    .map_or(Operand::Compressed(compressed.weight()), Operand::Tables)
            }
            Form::BlocksWhenUsed(compressed, ty, place) => {
                let packed = match demand {
                    Demand::Many => place.packs.bytes_now(context, &place.range),
                    _ => place.bytes(context, demand),
                };
                match packed {
                    None => Operand::Compressed(compressed.weight()),
                    Some(bytes) => Operand::Codes(self.packed_codes(*ty, bytes)),
                }
            }
            Form::PackedWhenUsed(place) => {
                let has_rows = ty == BlockType::Bf16 && context.isa().has_bf16();
                let demand = match demand {
                    // They are transposed for each product. Of many rows that is a small part.
                    Demand::Some if !has_rows && !self.stored.has_codes() => Demand::Few(1),
                    demand => demand,
                };
                match place.bytes(context, demand) {
                    None => Operand::Stored(self.weight()),
                    Some(bytes) if self.stored.has_codes() => {
                        Operand::Codes(self.packed_codes(ty, bytes))
                    }
                    Some(bytes) if has_rows => Operand::Stored(Weight {
                        bytes,
                        ..self.weight()
                    }),
                    Some(bytes) => HalfPanels::new(ty, bytes, [n_rows, n_cols])
                        .map_or(Operand::Stored(self.weight()), Operand::Halves),
                }
            }
        }
    }

    fn packed_codes<'a>(&self, ty: BlockType, bytes: &'a [u8]) -> PackedCodes<'a> {
        PackedCodes {
            ty,
            bytes,
            n_rows: self.stored.n_rows,
            n_cols: self.stored.n_cols,
        }
    }

    /// Whether it was rounded to integers.
    pub fn is_int8(&self) -> bool {
        matches!(self.form, Form::Int8(_))
    }

    /// Bytes that a product reads.
    pub fn n_bytes(&self) -> usize {
        match &self.form {
            Form::Int8(blocks) => size_of_val(blocks.values.as_slice()),
            Form::Panels(_, panels) => size_of_val(panels.values.as_slice()),
            Form::Compressed(compressed) => compressed.codes.len(),
            Form::Ordered(_, codes, _) => codes.values.len(),
            Form::BlocksWhenUsed(_, _, place) | Form::TablesWhenUsed(_, _, place) => {
                place.range.len()
            }
            _ => self.stored.bytes.len(),
        }
    }

    /// The matrix and how to keep count of it, where its rows can be
    /// [ruled out](thane_kernels::linear::linear_codes_best), and that has paid.
    pub fn screened(&self, context: &Context) -> Option<(PackedCodes<'_>, &Screening)> {
        let codes = match &self.form {
            Form::BlocksWhenUsed(_, ty, place) => {
                self.packed_codes(*ty, place.bytes(context, Demand::Some)?)
            }
            Form::PackedWhenUsed(place) if self.stored.has_codes() => {
                self.packed_codes(self.stored.ty, place.bytes(context, Demand::Some)?)
            }
            _ => return None,
        };
        (codes.is_split() && self.screening.is_due()).then_some((codes, &self.screening))
    }
}
