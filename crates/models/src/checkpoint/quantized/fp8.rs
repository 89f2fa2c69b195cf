//! 8-bit floats with scales, as DeepSeek-V3 and Qwen3 publish them: a matrix `weight` and one scale
//! for each block of 128 x 128 in `weight_scale_inv`. In spite of its name, weights are multiplied
//! by that scale. Source: `finegrained_fp8.py` of transformers.
//!
//! Every value is the product of an 8-bit float and its scale, rounded once to fp32.

use super::super::config::Config;
use super::super::scaled::{Number, Scaled};
use super::super::tensor::{Tensor, TensorType};
use super::{
    Module, QuantizationError, Settings, byte_codes, grid, matrix_shape, scales, unsupported,
};

const NAME: &str = "fp8";

/// The marks of matrices that are stored in 8 bits.
const MARKS: [(&str, Option<TensorType>); 2] = [
    ("weight", Some(TensorType::F8E4M3)),
    ("weight", Some(TensorType::F8E5M2)),
];

pub(super) fn read(settings: &Config) -> Result<Settings, QuantizationError> {
    // The tensors themselves say which modules are quantized.
    settings.acknowledge(&[
        "fmt",
        "modules_to_convert",
        "modules_to_not_convert",
        "ignored_layers",
        "dequantize",
    ]);
    let scale_format = settings.opt_str("scale_fmt")?.unwrap_or("float");
    if !["float", "ue8m0"].contains(&scale_format) {
        return Err(unsupported(
            NAME,
            format!("scale_fmt: expected float or ue8m0, found {scale_format}"),
        ));
    }
    let block = match settings.opt_usizes("weight_block_size")?.as_deref() {
        None => None,
        Some(&[rows, columns]) if rows > 0 && columns > 0 => Some([rows, columns]),
        Some(other) => {
            return Err(unsupported(
                NAME,
                format!("weight_block_size: expected two sizes above 0, found {other:?}"),
            ));
        }
    };
    let scheme = settings.opt_str("activation_scheme")?.unwrap_or("dynamic");
    match scheme {
        "dynamic" => {}
        "static" => {
            let reason = format!("activation_scheme: {}", super::STATIC_SCALES);
            return Err(unsupported(NAME, reason));
        }
        other => {
            let reason = format!("activation_scheme: expected dynamic, found {other}");
            return Err(unsupported(NAME, reason));
        }
    }
    let experts = settings.opt_str("expert_dtype")?.unwrap_or("fp8");
    if experts != "fp8" {
        let reason = format!("expert_dtype: expected fp8, found {experts}");
        return Err(unsupported(NAME, reason));
    }
    Ok(Settings {
        matrix: Box::new(move |module| matrix(module, block)),
        marks: MARKS.to_vec(),
        activations: true,
    })
}

/// Matrices of 8-bit floats without scales.
pub(super) fn plain() -> Settings {
    Settings {
        matrix: Box::new(|module| {
            let weight = module.need("weight")?;
            float_matrix(module, weight, None, None)
        }),
        marks: MARKS.to_vec(),
        activations: false,
    }
}

fn matrix(module: &mut Module<'_>, block: Option<[usize; 2]>) -> Result<Tensor, String> {
    let weight = module.need("weight")?;
    let scale = module.need("weight_scale_inv")?;
    // Scales of activations, which are not quantized here.
    module.take("activation_scale");
    module.take("input_scale");
    float_matrix(module, weight, Some(scale), block)
}

/// A matrix of 8-bit floats. Without a block size, one scale is that of the whole matrix, and one
/// for each row is that of the row.
pub(super) fn float_matrix(
    module: &Module<'_>,
    weight: Tensor,
    scale: Option<Tensor>,
    block: Option<[usize; 2]>,
) -> Result<Tensor, String> {
    let number = match weight.ty {
        TensorType::F8E4M3 => Number::E4m3,
        TensorType::F8E5M2 => Number::E5m2,
        other => {
            return Err(format!(
                "`{}`: expected the type F8_E4M3 or F8_E5M2, found {other}",
                weight.name
            ));
        }
    };
    let shape @ [_, columns] = matrix_shape(&weight)?;
    let (block, scales) = match scale {
        None => (shape, None),
        Some(scale) => {
            let grid = grid(&scale, shape, block.unwrap_or([1, columns]))?;
            (grid.block, Some(scales(scale, grid.strides)?))
        }
    };
    let scaled = Scaled {
        shape,
        first_row: 0,
        block,
        codes: byte_codes(&weight, number, columns),
        scales,
        offsets: None,
        groups: None,
    };
    Ok(module.matrix(scaled, weight))
}
