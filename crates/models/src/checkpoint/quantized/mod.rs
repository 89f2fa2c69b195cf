//! Reads the quantized tensors of Hugging Face checkpoints, as `quantization_config` of
//! `config.json` says.
//!
//! Each method stores a matrix `module.weight` as several tensors. [`apply`] replaces these tensors
//! by one tensor of that name, whose numbers are computed from the stored ones when they are read
//! ([`Scaled`]). Families then see the same names and shapes as in a plain checkpoint. Modules that
//! a method leaves alone stay as they are. A method without a row in `METHODS` is an error.
//!
//! Only weights are quantized here. Some methods round activations too; [`apply`] then returns a
//! note, because the numbers are those of the weights alone.

mod compressed;
mod fp8;
mod words;

use super::Tensors;
use super::config::{Config, ConfigError};
use super::scaled::{Codes, Number, Packing, ScaleType, Scaled, Scales};
use super::tensor::{Tensor, TensorType};

/// Why quantized tensors cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages describe the fields
pub enum QuantizationError {
    #[error("config.json: {0}")]
    Config(#[from] ConfigError),
    #[error(
        "the weights are quantized with {method}, which is not supported; supported are \
         compressed-tensors, gptq, awq and fp8: use such a version of the model, a GGUF file, or \
         the original weights"
    )]
    Method { method: String },
    #[error("config.json: quantization_config ({method}): {reason}")]
    Setting {
        method: &'static str,
        reason: String,
    },
    #[error(
        "the tensors are not those of {method}: {}; the file is damaged, or config.json belongs \
         to another version of the model",
        faults.join("; ")
    )]
    Tensors {
        method: &'static str,
        faults: Vec<String>,
    },
}

/// Largest number of tensors that an error lists.
const MAX_FAULTS: usize = 8;

/// A method: its name in the file, and the function that reads its settings.
type Method = (
    &'static str,
    fn(&Config) -> Result<Settings, QuantizationError>,
);

static METHODS: [Method; 4] = [
    ("compressed-tensors", compressed::read),
    ("gptq", words::read_gptq),
    ("awq", words::read_awq),
    ("fp8", fp8::read),
];

/// Why activations with scales of the checkpoint are refused, and what to take instead.
const STATIC_SCALES: &str = "expected dynamic scales of activations, found static ones, which are \
                             part of the model: take the checkpoint that was quantized, or one \
                             with dynamic scales or weights alone";

/// Makes the matrix of a module from its tensors, or says what is wrong with them.
type ReadMatrix = Box<dyn Fn(&mut Module<'_>) -> Result<Tensor, String>>;

/// What a method's settings say.
struct Settings {
    /// Makes the matrix of a module from its tensors.
    matrix: ReadMatrix,
    /// The parameter that only quantized modules have, or, with a type, in which they differ.
    marks: Vec<(&'static str, Option<TensorType>)>,
    /// Whether activations are quantized when the reference runs the model.
    activations: bool,
}

/// Replaces the quantized tensors of a checkpoint. Returns notes for the user.
///
/// # Errors
///
/// The method or a setting is not supported, or tensors are missing or have another type or shape.
pub fn apply(config: &Config, tensors: &mut Tensors) -> Result<Vec<String>, QuantizationError> {
    let Some(settings) = settings(config)? else {
        replace("fp8", &fp8::plain(), tensors)?;
        return Ok(Vec::new());
    };
    let (name, read) = method(&settings)?;
    let settings = read(&settings)?;
    replace(name, &settings, tensors)?;
    // A module that this method does not quantize may still be stored in 8 bits.
    replace("fp8", &fp8::plain(), tensors)?;
    let note = format!(
        "the checkpoint is made for quantized activations ({name}): Thane computes with the \
         quantized weights and does not quantize activations, so results differ slightly from \
         those of software that does"
    );
    Ok(settings.activations.then_some(note).into_iter().collect())
}

/// The settings of the whole model, or else those of its text part, as in transformers.
fn settings(config: &Config) -> Result<Option<Config>, ConfigError> {
    const KEY: &str = "quantization_config";
    let whole = config.opt_object(KEY)?;
    if whole.is_some() {
        return Ok(whole);
    }
    let text = config.opt_object("text_config")?;
    Ok(text.map(|text| text.opt_object(KEY)).transpose()?.flatten())
}

/// A setting whose value is not supported.
fn unsupported(method: &'static str, reason: String) -> QuantizationError {
    QuantizationError::Setting { method, reason }
}

fn method(settings: &Config) -> Result<&'static Method, QuantizationError> {
    let bits = |key: &str| settings.opt_bool(key).ok().flatten().unwrap_or(false);
    let name = match settings.opt_str("quant_method")? {
        Some(name) => name,
        // Files from before the key was written.
        None if bits("load_in_8bit") || bits("load_in_4bit") => "bitsandbytes",
        // mlx-lm writes no method.
        None if settings.has("group_size") && settings.has("bits") => "MLX",
        None => settings.str("quant_method")?,
    };
    METHODS
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| QuantizationError::Method {
            method: name.to_owned(),
        })
}

fn replace(
    method: &'static str,
    settings: &Settings,
    tensors: &mut Tensors,
) -> Result<(), QuantizationError> {
    let is_marked = |module: &str, parameter: &str, tensor: &Tensor| {
        !module.is_empty()
            && tensor.scaled.is_none()
            && settings
                .marks
                .iter()
                .any(|(mark, ty)| *mark == parameter && ty.is_none_or(|ty| ty == tensor.ty))
    };
    let modules: Vec<String> = tensors
        .iter()
        .filter_map(|(name, tensor)| {
            let (module, parameter) = name.rsplit_once('.')?;
            is_marked(module, parameter, tensor).then(|| module.to_owned())
        })
        .collect();
    let mut faults = Vec::new();
    for name in modules {
        let mut module = Module { name, tensors };
        match (settings.matrix)(&mut module) {
            Ok(matrix) => {
                tensors.insert(matrix.name.clone(), matrix);
            }
            Err(fault) => faults.push(fault),
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    let n_more = faults.len().saturating_sub(MAX_FAULTS);
    faults.truncate(MAX_FAULTS);
    if n_more > 0 {
        faults.push(format!("... and {n_more} more"));
    }
    Err(QuantizationError::Tensors { method, faults })
}

/// The tensors of one module.
struct Module<'a> {
    name: String,
    tensors: &'a mut Tensors,
}

impl Module<'_> {
    fn path(&self, parameter: &str) -> String {
        format!("{}.{parameter}", self.name)
    }

    /// Takes a tensor out of the checkpoint, if there is one.
    fn take(&mut self, parameter: &str) -> Option<Tensor> {
        self.tensors.remove(&self.path(parameter))
    }

    /// Takes a tensor out of the checkpoint.
    fn need(&mut self, parameter: &str) -> Result<Tensor, String> {
        self.take(parameter)
            .ok_or_else(|| format!("`{}` is missing", self.path(parameter)))
    }

    /// The matrix `module.weight`. `stored` is the tensor of its codes.
    fn matrix(&self, scaled: Scaled, stored: Tensor) -> Tensor {
        let ty = match (scaled.codes.number, scaled.codes.packing.bits) {
            (Number::E4m3, _) => TensorType::F8E4M3,
            (Number::E5m2, _) => TensorType::F8E5M2,
            (Number::Unsigned, 8) => TensorType::U8,
            (Number::Unsigned, _) => TensorType::U4,
            (_, 8) => TensorType::I8,
            (_, _) => TensorType::I4,
        };
        Tensor {
            name: self.path("weight"),
            ty,
            shape: scaled.shape.to_vec(),
            bytes: stored.bytes,
            scaled: Some(scaled.into()),
        }
    }
}

/// Rows and columns of a matrix.
fn matrix_shape(tensor: &Tensor) -> Result<[usize; 2], String> {
    match tensor.shape[..] {
        [rows, columns] if rows > 0 && columns > 0 => Ok([rows, columns]),
        _ => Err(format!(
            "`{}`: expected a matrix, found the shape {:?}",
            tensor.name, tensor.shape
        )),
    }
}

/// Checks type and shape of a tensor.
fn check(tensor: &Tensor, ty: TensorType, shape: &[usize]) -> Result<(), String> {
    if tensor.ty == ty && tensor.shape == shape {
        return Ok(());
    }
    Err(format!(
        "`{}`: expected the type {ty} and the shape {shape:?}, found {} and {:?}",
        tensor.name, tensor.ty, tensor.shape
    ))
}

/// Scales with these strides, of a tensor whose shape the caller checks.
fn scales(tensor: Tensor, strides: [usize; 2]) -> Result<Scales, String> {
    let ty = match tensor.ty {
        TensorType::F32 => ScaleType::F32,
        TensorType::F16 => ScaleType::F16,
        TensorType::BF16 => ScaleType::Bf16,
        other => {
            return Err(format!(
                "`{}`: expected the type F32, F16 or BF16, found {other}",
                tensor.name
            ));
        }
    };
    Ok(Scales {
        bytes: tensor.bytes,
        ty,
        strides,
    })
}

/// A grid of scales: rows and columns that share one, and the strides of the stored scales.
struct Grid {
    block: [usize; 2],
    strides: [usize; 2],
}

/// The grid of scales of this shape for a matrix: one for all, one for each row, or one for each
/// block of `columns` columns (and `rows` rows). Error: what was expected.
fn grid(
    scale: &Tensor,
    [rows, columns]: [usize; 2],
    [block_rows, block_columns]: [usize; 2],
) -> Result<Grid, String> {
    let blocks = [
        rows.div_ceil(block_rows.max(1)),
        columns.div_ceil(block_columns.max(1)),
    ];
    match scale.shape[..] {
        [] | [1] | [1, 1] => Ok(Grid {
            block: [rows, columns],
            strides: [0, 0],
        }),
        [n] if n == rows && blocks[1] == 1 => Ok(Grid {
            block: [1, columns],
            strides: [1, 0],
        }),
        [a, b] if [a, b] == blocks => Ok(Grid {
            block: [block_rows, block_columns],
            strides: [b, 1],
        }),
        _ => Err(format!(
            "`{}`: expected the shape {blocks:?} for a matrix of {rows} rows and {columns} \
             columns, found {:?}",
            scale.name, scale.shape
        )),
    }
}

/// One code a byte.
fn byte_codes(tensor: &Tensor, number: Number, columns: usize) -> Codes {
    Codes {
        bytes: tensor.bytes.clone(),
        packing: Packing::bytes([columns, 1]),
        number,
    }
}
