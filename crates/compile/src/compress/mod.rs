//! Compresses the constant weights of a program: tables of values (palettes), integers with scales,
//! and sparsity, in the ops that Core ML decompresses with (`constexpr_*`).
//!
//! [`Encoding`] is the vocabulary: how a tensor is stored, what follows from it (opset, types and
//! bytes of the parts) and which tensors it fits. A file per method computes the parts: `palette`
//! (with `kmeans`), `vectors`, `integers`; `sparse` says which elements are kept. [`job`] computes
//! the parts of a tensor once, when they are first read, `sample` estimates its error, and `ways`
//! decides on scales; `sites` finds the weights of a program, `write` writes their compressed form,
//! `activations` quantizes what enters their products, and [`program`] does all three; [`rows`]
//! reads rows of compressed matrices, and compresses tables that no program has; [`report`] says
//! what was done and what it costs. `text` parses and prints encodings.
//!
//! This module must not know chips or files: which encodings a chip streams is the audit's to say,
//! and a [`job::Store`] keeps parts where its owner wants them. Start reading at
//! [`program::Compression`].
//!
//! Glossary: a *channel* is an output channel, an index along the axis of the weight that its
//! product keeps; *codes* are small integers, one for each element or vector; a *table* has the
//! values that codes stand for; the *relative error* is `sqrt(sum (w - q)^2 / sum w^2)`.

mod activations;
mod importance;
mod integers;
pub mod job;
mod kmeans;
mod palette;
pub mod program;
pub mod report;
pub mod rows;
mod sample;
mod sites;
mod sparse;
mod text;
mod values;
mod vectors;
mod ways;
mod write;

use thane_mil::opset::Opset;
use thane_mil::types::DType;

pub use text::NoEncoding;
pub use values::Matrix;

/// How a tensor is stored: which elements are kept, and what their values become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Encoding {
    /// Which elements are kept, the others being 0; `None` for all.
    pub sparsity: Option<Sparsity>,
    /// What the values of kept elements become; `None` if they stay floating point.
    pub codes: Option<Codes>,
}

/// Which elements of a tensor are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sparsity {
    /// All but so many percent, those of the least magnitude.
    Percent(usize),
    /// The `n` greatest of each `m` consecutive inputs of a channel.
    Ratio(usize, usize),
}

/// What values become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codes {
    /// Indices of this many bits into tables, one for each group of so many channels; `None` for
    /// one table.
    Palette(usize, Option<usize>),
    /// Indices into one table of so many entries, each a vector of so many consecutive channels.
    Vectors {
        /// Numbers in a vector.
        width: usize,
        /// Vectors in the table.
        entries: usize,
    },
    /// Integers of this many bits, times a scale for each block.
    Integers(usize, Blocks),
}

/// What shares a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blocks {
    /// The whole tensor.
    Tensor,
    /// A channel.
    Channel,
    /// So many consecutive inputs of a channel.
    Inputs(usize),
}

/// Where the scales of channels beside a palette stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scale {
    /// There are none.
    None,
    /// In the constant: tables give values that `constexpr_blockwise_shift_scale` multiplies.
    Inside,
    /// In a `mul` behind the product that uses the weight.
    Behind,
}

impl Scale {
    /// `none`, `inside` or `behind`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Inside => "inside",
            Self::Behind => "behind",
        }
    }
}

/// The bits that indices may have: the types `uint1` to `uint8`.
const INDEX_BITS: [(usize, DType); 6] = [
    (1, DType::Uint1),
    (2, DType::Uint2),
    (3, DType::Uint3),
    (4, DType::Uint4),
    (6, DType::Uint6),
    (8, DType::Uint8),
];
/// Most numbers in an entry of a vector table, and in the whole table, that the Neural Engine
/// takes.
const MOST_WIDTH: usize = 16;
const MOST_TABLE: usize = 256;

/// What a part of a compressed tensor is: the parameter that it is bound to, and its type.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Name of the parameter.
    pub name: &'static str,
    /// Element type.
    pub dtype: DType,
    /// Lengths of its axes.
    pub shape: Vec<usize>,
}

impl Part {
    fn new(name: &'static str, dtype: DType, shape: Vec<usize>) -> Self {
        Self { name, dtype, shape }
    }

    /// Bytes of the packed elements.
    pub fn byte_len(&self) -> usize {
        let n = self.shape.iter().product();
        self.dtype.byte_len(n).unwrap_or(usize::MAX)
    }
}

/// The unsigned type of indices of this many bits.
fn index_type(bits: usize) -> DType {
    let known = INDEX_BITS.iter().find(|(n, _)| *n == bits);
    known.map_or(DType::Uint8, |(_, dtype)| *dtype)
}

impl Encoding {
    /// Integers of 8 bits with a scale for each channel.
    pub const INT8: Self = Self {
        sparsity: None,
        codes: Some(Codes::Integers(8, Blocks::Channel)),
    };

    /// Palettes of this many bits, one table for a tensor.
    pub const fn palette(bits: usize) -> Self {
        Self {
            sparsity: None,
            codes: Some(Codes::Palette(bits, None)),
        }
    }

    /// The oldest opset that has the ops; with scales inside a palette, it is that of iOS 18.
    pub fn oldest_opset(&self, scale: Scale) -> Opset {
        let is_plain = match (self.sparsity, self.codes) {
            (None, Some(Codes::Palette(bits, None))) => bits != 3 && scale != Scale::Inside,
            (None, Some(Codes::Integers(8, Blocks::Tensor | Blocks::Channel))) => true,
            (Some(_), None) => true,
            _ => false,
        };
        match is_plain {
            true => Opset::CoreMl6,
            false => Opset::CoreMl8,
        }
    }

    /// Whether scales of channels can stand beside it.
    pub fn takes_scales(&self) -> bool {
        match self.codes {
            Some(Codes::Palette(_, group)) => group != Some(1) && self.sparsity.is_none(),
            Some(Codes::Vectors { .. }) => self.sparsity.is_none(),
            Some(Codes::Integers(..)) | None => false,
        }
    }

    /// How many elements of a matrix are kept.
    pub fn n_kept(&self, of: &Matrix) -> usize {
        let n = of.len();
        match self.sparsity {
            None => n,
            Some(Sparsity::Percent(percent)) => n - n * percent / 100,
            Some(Sparsity::Ratio(kept, among)) => n / among * kept,
        }
    }

    /// The parts that a tensor of `float` numbers is stored as, the scales of channels last if
    /// there are any. `fits` must hold.
    pub fn parts(&self, of: &Matrix, float: DType, has_scales: bool) -> Vec<Part> {
        let is_sparse = self.sparsity.is_some();
        let kept = vec![self.n_kept(of)];
        let each = |dense: &Vec<usize>| {
            if is_sparse {
                kept.clone()
            } else {
                dense.clone()
            }
        };
        let named = |dense, sparse| if is_sparse { sparse } else { dense };
        let mask = |name| is_sparse.then(|| Part::new(name, DType::Uint1, of.shape.clone()));
        let mut parts = Vec::new();
        match self.codes {
            None => {
                parts.extend(mask("mask"));
                parts.push(Part::new("nonzero_data", float, kept.clone()));
            }
            Some(Codes::Palette(bits, group)) => {
                parts.extend(mask("indices_mask"));
                let name = named("indices", "indices_nonzero_data");
                parts.push(Part::new(name, index_type(bits), each(&of.shape)));
                let groups = group.map_or(1, |n| of.channels() / n);
                let lut = [of.along_channels(groups), vec![1 << bits, 1]].concat();
                parts.push(Part::new("lut", float, lut));
            }
            Some(Codes::Vectors { width, entries }) => {
                let mut shape = of.shape.clone();
                shape[of.axis] /= width;
                let bits = entries.ilog2() as usize;
                parts.push(Part::new("indices", index_type(bits), shape));
                let lut = [of.along_channels(1), vec![entries, width]].concat();
                parts.push(Part::new("lut", float, lut));
            }
            Some(Codes::Integers(bits, blocks)) => {
                parts.extend(mask("data_mask"));
                let dtype = if bits == 4 { DType::Int4 } else { DType::Int8 };
                let name = named("data", "nonzero_data");
                parts.push(Part::new(name, dtype, each(&of.shape)));
                let shape = match blocks {
                    Blocks::Tensor => of.along_channels(1),
                    Blocks::Channel => of.along_channels(of.channels()),
                    Blocks::Inputs(n) => {
                        let mut shape = of.along_channels(of.channels());
                        shape[of.input] = of.shape[of.input] / n;
                        shape
                    }
                };
                parts.push(Part::new("scale", float, shape));
            }
        }
        if has_scales {
            parts.push(Part::new("scale", float, of.along_channels(of.channels())));
        }
        parts
    }

    /// Bytes of a tensor with its tables and scales.
    pub fn byte_len(&self, of: &Matrix, float: DType, has_scales: bool) -> usize {
        let parts = self.parts(of, float, has_scales);
        parts.iter().map(Part::byte_len).sum()
    }

    /// Why a tensor cannot be stored so, if it cannot.
    pub fn fits(&self, of: &Matrix, float: DType) -> Result<(), String> {
        let channels = of.channels();
        let whole = |what: &str, n: usize, of: usize| match of.is_multiple_of(n) {
            true => Ok(()),
            false => Err(format!("expected a multiple of {n} {what}, found {of}")),
        };
        match self.codes {
            Some(Codes::Palette(_, Some(group))) => whole("output channels", group, channels)?,
            Some(Codes::Vectors { width, .. }) => whole("output channels", width, channels)?,
            Some(Codes::Integers(_, Blocks::Inputs(n))) => {
                of.has_inputs()?;
                whole("inputs", n, of.shape[of.input])?;
            }
            _ => {}
        }
        if let Some(Sparsity::Ratio(_, among)) = self.sparsity {
            of.has_inputs()?;
            whole("inputs", among, of.shape[of.input])?;
        }
        let (plain, own) = (of.len() * float.bits() / 8, self.byte_len(of, float, false));
        if own >= plain {
            return Err(format!(
                "it would take {own} bytes, and takes {plain} as it is"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_count_tables_and_scales() {
        let matrix = Matrix::new(vec![64, 32, 1, 1], 0, 1);
        for (text, has_scales, bytes, opset) in [
            ("pal4", false, 1024 + 32, Opset::CoreMl6),
            ("pal4", true, 1024 + 32 + 128, Opset::CoreMl8),
            ("pal3", false, 768 + 16, Opset::CoreMl8),
            ("pal4g8", false, 1024 + 8 * 32, Opset::CoreMl8),
            ("2x16", false, 512 + 64, Opset::CoreMl8),
            ("int8", false, 2048 + 128, Opset::CoreMl6),
            ("int4t", false, 1024 + 2, Opset::CoreMl8),
            ("int4b8", false, 1024 + 2 * 256, Opset::CoreMl8),
            ("sparse50", false, 256 + 2048, Opset::CoreMl6),
            ("1:4+pal4", false, 256 + 256 + 32, Opset::CoreMl8),
        ] {
            let encoding: Encoding = text.parse().unwrap();
            assert_eq!(
                encoding.byte_len(&matrix, DType::Fp16, has_scales),
                bytes,
                "{text}"
            );
            let scale = [Scale::None, Scale::Inside][usize::from(has_scales)];
            assert_eq!(encoding.oldest_opset(scale), opset, "{text}");
            assert_eq!(encoding.fits(&matrix, DType::Fp16), Ok(()), "{text}");
        }
    }

    #[test]
    fn what_does_not_fit_says_why() {
        let matrix = Matrix::new(vec![30, 20], 0, 1);
        for (text, why) in [
            (
                "pal4g8",
                "expected a multiple of 8 output channels, found 30",
            ),
            ("4x16", "expected a multiple of 4 output channels, found 30"),
            ("int4b32", "expected a multiple of 32 inputs, found 20"),
            ("2:16", "expected a multiple of 16 inputs, found 20"),
            (
                "pal8g1",
                "it would take 15960 bytes, and takes 1200 as it is",
            ),
        ] {
            let encoding: Encoding = text.parse().unwrap();
            assert_eq!(encoding.fits(&matrix, DType::Fp16).unwrap_err(), why);
        }
    }
}
