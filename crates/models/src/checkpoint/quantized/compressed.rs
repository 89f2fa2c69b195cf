//! compressed-tensors: whole numbers, packed or one a byte, and 8-bit floats, with scales for the
//! matrix, for each row, or for each group of columns.
//!
//! | tensor | meaning |
//! |---|---|
//! | `weight` | I8 or F8_E4M3 [rows, columns] (`int-quantized`, `float-quantized`, `naive-quantized`) |
//! | `weight_packed` | I32 [rows, columns * bits / 32]: numbers plus 2^(bits - 1), lowest bits first (`pack-quantized`) |
//! | `weight_shape` | rows and columns of a packed matrix |
//! | `weight_scale` | [1], [rows, 1], [rows, groups], or one for each block |
//! | `weight_zero_point` | like the scales; packed along rows beside `weight_packed` |
//! | `weight_g_idx` | the group of each column, if columns were permuted |
//!
//! Which module is quantized how is read from its tensors; `config_groups` must allow for that. If
//! there are several groups, `targets` say which one a module has: its name before patterns of
//! names, and those before classes, each in the order of the texts.
//! Source: the package `compressed-tensors`, 0.20.

use std::collections::BTreeMap;

use fancy_regex::Regex;

use super::super::config::Config;
use super::super::scaled::{Axis, Codes, Number, Packing, Scaled};
use super::super::tensor::{Tensor, TensorType};
use super::words::permuted;
use super::{
    Module, QuantizationError, Settings, byte_codes, check, fp8, grid, matrix_shape, scales,
    unsupported,
};

const NAME: &str = "compressed-tensors";

const FORMATS: [&str; 5] = [
    "pack-quantized",
    "int-quantized",
    "naive-quantized",
    "float-quantized",
    "mixed-precision",
];

/// How the weights of one group of modules are quantized.
#[derive(Clone, Copy, Debug)]
struct Scheme {
    bits: usize,
    is_float: bool,
    group_len: Option<usize>,
    block: Option<[usize; 2]>,
    /// Whether zero points are 0 whatever is stored, as compressed-tensors 0.20 has it.
    symmetric: bool,
}

pub(super) fn read(settings: &Config) -> Result<Settings, QuantizationError> {
    settings.acknowledge(&[
        "global_compression_ratio",
        "ignore",
        "quantization_status",
        "version",
    ]);
    check_format(settings)?;
    let schemes = [
        (
            "kv_cache_scheme",
            "it quantizes the KV cache, which Thane keeps in fp16 or fp32: remove the key to run \
             the model so",
        ),
        (
            "sparsity_config",
            "take the checkpoint that has its weights dense",
        ),
        (
            "transform_config",
            "take the checkpoint that was quantized, or one without transforms",
        ),
    ];
    for (key, remedy) in schemes {
        let Some(value) = settings.value(key) else {
            continue;
        };
        // A dense sparsity says nothing.
        let is_dense = value.get("format").and_then(|f| f.as_str()) == Some("dense");
        if !is_dense && !value.as_object().is_some_and(|o| o.is_empty()) {
            return Err(unsupported(
                NAME,
                format!("{key} is not supported: {remedy}"),
            ));
        }
    }
    let groups = settings.object("config_groups")?;
    let mut schemes = Vec::new();
    let mut targets = Targets::default();
    let mut activations = false;
    for name in groups.keys() {
        let group = groups.object(name)?;
        let named = group.opt_strs("targets")?.unwrap_or_default();
        check_format(&group)?;
        for key in ["input_activations", "output_activations"] {
            activations |= has_dynamic_scales(&group, key)?;
        }
        if let Some(weights) = group.opt_object("weights")? {
            targets.add(&named, schemes.len());
            schemes.push(scheme(&weights)?);
        }
    }
    if schemes.len() > 1 {
        targets.read()?;
    }
    Ok(Settings {
        matrix: Box::new(move |module| {
            if schemes.len() < 2 {
                return matrix(module, &schemes);
            }
            let at = targets.of(&module.name)?;
            matrix(module, &schemes[at..=at])
        }),
        marks: vec![
            ("weight_packed", None),
            ("weight", Some(TensorType::I8)),
            ("weight", Some(TensorType::F8E4M3)),
        ],
        activations,
    })
}

/// Which group of `config_groups` a module has.
#[derive(Default)]
struct Targets {
    /// By text: a later group takes the place of an earlier one.
    groups: BTreeMap<String, usize>,
    /// Those that are patterns, in the order of their texts.
    patterns: Vec<(Regex, usize)>,
}

impl Targets {
    /// What begins a pattern.
    const PATTERN: &str = "re:";
    /// The classes that a matrix is of.
    const CLASSES: [&str; 2] = ["Linear", "Module"];

    fn add(&mut self, targets: &[&str], group: usize) {
        let targets = targets.iter().map(|target| ((*target).to_owned(), group));
        self.groups.extend(targets);
    }

    fn read(&mut self) -> Result<(), QuantizationError> {
        for (target, group) in &self.groups {
            let Some(pattern) = target.strip_prefix(Self::PATTERN) else {
                continue;
            };
            // Python matches from the start of a name.
            let read = Regex::new(&format!(r"\A(?:{pattern})"));
            let read = read.map_err(|error| {
                unsupported(NAME, format!("targets: the pattern {pattern}: {error}"))
            })?;
            self.patterns.push((read, *group));
        }
        Ok(())
    }

    /// The group of a module.
    fn of(&self, module: &str) -> Result<usize, String> {
        if let Some(group) = self.groups.get(module) {
            return Ok(*group);
        }
        for (pattern, group) in &self.patterns {
            let found = pattern.is_match(module);
            if found.map_err(|error| format!("`{module}`: targets: {error}"))? {
                return Ok(*group);
            }
        }
        let class = Self::CLASSES
            .iter()
            .find_map(|class| self.groups.get(*class));
        class.copied().ok_or_else(|| {
            format!("`{module}` is quantized, and no target of config_groups names it")
        })
    }
}

/// True if activations are quantized with scales that are found while the model runs. Static
/// scales are a part of what the weights were trained or corrected for, so that they are refused.
fn has_dynamic_scales(group: &Config, key: &str) -> Result<bool, QuantizationError> {
    let Some(scheme) = group.value(key) else {
        return Ok(false);
    };
    match scheme.get("dynamic").is_some_and(|d| *d != false) {
        true => Ok(true),
        false => Err(unsupported(
            NAME,
            format!("{key}: {}", super::STATIC_SCALES),
        )),
    }
}

fn check_format(settings: &Config) -> Result<(), QuantizationError> {
    match settings.opt_str("format")? {
        Some(format) if !FORMATS.contains(&format) => Err(unsupported(
            NAME,
            format!(
                "format: expected one of {}, found {format}",
                FORMATS.join(", ")
            ),
        )),
        _ => Ok(()),
    }
}

fn scheme(weights: &Config) -> Result<Scheme, QuantizationError> {
    weights.acknowledge(&[
        "actorder",
        "dynamic",
        "observer",
        "observer_kwargs",
        "scale_dtype",
        "zp_dtype",
    ]);
    let (bits, ty) = (weights.usize("num_bits")?, weights.str("type")?);
    let is_float = match (ty, bits) {
        ("int", 2 | 4 | 8) => false,
        ("float", 8) => true,
        _ => {
            let reason = format!(
                "expected int weights of 2, 4 or 8 bits or float weights of 8, \
                 found {ty} of {bits}"
            );
            return Err(unsupported(NAME, reason));
        }
    };
    let strategy = weights.str("strategy")?;
    if !["tensor", "channel", "group", "block"].contains(&strategy) {
        let reason =
            format!("strategy: expected tensor, channel, group or block, found {strategy}");
        return Err(unsupported(NAME, reason));
    }
    // -1 stands for all columns.
    let group_len = weights.opt_f64("group_size")?.filter(|len| *len != -1.0);
    if let Some(len) = group_len.filter(|len| *len < 1.0 || len.fract() != 0.0) {
        let reason = format!("group_size: expected -1 or a whole number above 0, found {len}");
        return Err(unsupported(NAME, reason));
    }
    let block = match weights.opt_usizes("block_structure")?.as_deref() {
        None => None,
        Some(&[rows, columns]) if rows > 0 && columns > 0 => Some([rows, columns]),
        Some(other) => {
            let reason = format!("block_structure: expected two sizes above 0, found {other:?}");
            return Err(unsupported(NAME, reason));
        }
    };
    Ok(Scheme {
        bits,
        is_float,
        group_len: (strategy == "group")
            .then_some(group_len)
            .flatten()
            .map(|len| len as usize),
        block,
        symmetric: weights.bool_or("symmetric", true)?,
    })
}

fn matrix(module: &mut Module<'_>, schemes: &[Scheme]) -> Result<Tensor, String> {
    // Scales of activations, which are not quantized here.
    for parameter in [
        "input_scale",
        "input_zero_point",
        "output_scale",
        "output_zero_point",
    ] {
        module.take(parameter);
    }
    if let Some(packed) = module.take("weight_packed") {
        return packed_matrix(module, packed, schemes);
    }
    let weight = module.need("weight")?;
    let scale = module.need("weight_scale")?;
    let shape = matrix_shape(&weight)?;
    let is_float = weight.ty != TensorType::I8;
    let fits = |s: &Scheme| s.is_float == is_float && s.bits == 8;
    let block = block_of(module, &scale, shape, schemes, fits)?;
    if is_float {
        module.take("weight_zero_point");
        return fp8::float_matrix(module, weight, Some(scale), Some(block));
    }
    let codes = byte_codes(&weight, Number::Signed, shape[1]);
    let symmetric = is_symmetric(schemes, fits);
    let offsets = match module.take("weight_zero_point").filter(|_| !symmetric) {
        None => None,
        Some(zero) => {
            check(&zero, TensorType::I8, &scale.shape)?;
            let grid = grid(&zero, shape, block)?;
            let packing = Packing::bytes(grid.strides);
            Some(Codes {
                bytes: zero.bytes,
                packing,
                number: Number::Signed,
            })
        }
    };
    integers(module, weight, codes, scale, offsets, block)
}

fn packed_matrix(
    module: &mut Module<'_>,
    packed: Tensor,
    schemes: &[Scheme],
) -> Result<Tensor, String> {
    let scale = module.need("weight_scale")?;
    let [rows, words] = matrix_shape(&packed)?;
    check(&packed, TensorType::I32, &[rows, words])?;
    let shape = stored_shape(&module.need("weight_shape")?)?;
    let bits_of = |s: &Scheme| shape[1].checked_mul(s.bits).map(|n| n.div_ceil(32));
    let fits = |s: &Scheme| !s.is_float && shape[0] == rows && bits_of(s) == Some(words);
    let Some(bits) = schemes.iter().find(|s| fits(s)).map(|s| s.bits) else {
        return Err(format!(
            "`{}`: a matrix of the shape {shape:?} does not fill {:?} words with any of the \
             configured numbers of bits",
            packed.name, packed.shape
        ));
    };
    let block = block_of(module, &scale, shape, schemes, fits)?;
    let codes = Codes {
        bytes: packed.bytes.clone(),
        packing: Packing::words(bits, Axis::Columns, [words, 1]),
        number: Number::Biased,
    };
    let symmetric = is_symmetric(schemes, fits);
    let offsets = match module.take("weight_zero_point").filter(|_| !symmetric) {
        None => None,
        Some(zero) => {
            let groups = shape[1].div_ceil(block[1]);
            check(
                &zero,
                TensorType::I32,
                &[(rows * bits).div_ceil(32), groups],
            )?;
            Some(Codes {
                bytes: zero.bytes,
                packing: Packing::words(bits, Axis::Rows, [groups, 1]),
                number: Number::Biased,
            })
        }
    };
    integers(
        module,
        Tensor {
            shape: shape.to_vec(),
            ..packed
        },
        codes,
        scale,
        offsets,
        block,
    )
}

/// Whether the first scheme that a matrix fits has no zero points.
fn is_symmetric(schemes: &[Scheme], fits: impl Fn(&Scheme) -> bool) -> bool {
    schemes
        .iter()
        .find(|scheme| fits(scheme))
        .is_some_and(|scheme| scheme.symmetric)
}

/// A matrix of whole numbers. `stored` has the shape of the matrix.
fn integers(
    module: &mut Module<'_>,
    stored: Tensor,
    codes: Codes,
    scale: Tensor,
    offsets: Option<Codes>,
    block: [usize; 2],
) -> Result<Tensor, String> {
    let shape @ [_, columns] = matrix_shape(&stored)?;
    let grid = grid(&scale, shape, block)?;
    let n_groups = columns.div_ceil(grid.block[1]);
    let groups = match module.take("weight_g_idx") {
        Some(index) => permuted(&index, columns, grid.block[1], n_groups)?,
        None => None,
    };
    let scaled = Scaled {
        shape,
        first_row: 0,
        block: grid.block,
        codes,
        scales: Some(scales(scale, grid.strides)?),
        offsets,
        groups: groups.map(Into::into),
    };
    Ok(module.matrix(scaled, stored))
}

/// Rows and columns that share a scale, by the first scheme that the scales fit.
fn block_of(
    module: &Module<'_>,
    scale: &Tensor,
    shape @ [_, columns]: [usize; 2],
    schemes: &[Scheme],
    fits: impl Fn(&Scheme) -> bool,
) -> Result<[usize; 2], String> {
    let mut fault = format!(
        "`{}`: no group of config_groups describes such weights",
        module.path("weight")
    );
    for scheme in schemes.iter().filter(|s| fits(s)) {
        let one_row = [1, scheme.group_len.unwrap_or(columns)];
        let block = scheme.block.unwrap_or(one_row);
        match grid(scale, shape, block) {
            Ok(_) => return Ok(block),
            Err(other) => fault = other,
        }
    }
    Err(fault)
}

/// The two numbers of `weight_shape`.
fn stored_shape(tensor: &Tensor) -> Result<[usize; 2], String> {
    let bytes = tensor.bytes.as_slice();
    let numbers: Vec<i64> = match tensor.ty {
        TensorType::I64 => {
            let numbers = bytes.as_chunks().0.iter();
            numbers.map(|b| i64::from_le_bytes(*b)).collect()
        }
        TensorType::I32 => {
            let numbers = bytes.as_chunks().0.iter();
            numbers.map(|b| i32::from_le_bytes(*b).into()).collect()
        }
        _ => Vec::new(),
    };
    match numbers[..] {
        [rows, columns] if rows > 0 && columns > 0 && columns < 1 << 32 => {
            Ok([rows as usize, columns as usize])
        }
        _ => Err(format!(
            "`{}`: expected two sizes above 0, found {numbers:?} of type {} and shape {:?}",
            tensor.name, tensor.ty, tensor.shape
        )),
    }
}
