//! GPTQ and AWQ: codes of 4 or 8 bits, several in an int32 word.
//!
//! A matrix [outputs, inputs] is stored transposed, with one scale and one zero point for each
//! group of inputs of an output:
//!
//! | tensor | GPTQ | AWQ |
//! |---|---|---|
//! | `qweight` | [inputs * bits / 32, outputs], words along inputs | [inputs, outputs / 8], words along outputs |
//! | `qzeros` | [groups, outputs * bits / 32], words along outputs | [groups, outputs / 8] |
//! | `scales` | [groups, outputs] | [groups, outputs] |
//! | `g_idx` | [inputs]: the group of each input | |
//!
//! `value = scale * (code - zero)`. GPTQ's format `gptq` stores zero points less one, and
//! `gptq_v2` as they are. As GPTQModel does, 1 is added to each code of a word by one addition of
//! words. In AWQ's words, output `i` of 8 is at place 0, 4, 1, 5, 2, 6, 3 or 7. Sources: GPTQModel,
//! AutoAWQ.

use super::super::config::Config;
use super::super::scaled::{Axis, Codes, Number, Packing, Scaled};
use super::super::tensor::{Tensor, TensorType};
use super::{Module, QuantizationError, Settings, check, matrix_shape, scales, unsupported};

/// The place in an AWQ word of each of its outputs.
const AWQ_ORDER: [u8; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Keys of GPTQ that say how the codes were found, or how some software runs them.
const GPTQ_NOTES: &[&str] = &[
    "act_group_aware",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "damp_auto_increment",
    "damp_percent",
    "dataset",
    "desc_act",
    "disable_exllama",
    "exllama_config",
    "hyb_act",
    "is_marlin_format",
    "lm_head",
    "max_input_length",
    "meta",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "mse",
    "pad_token_id",
    "static_groups",
    "sym",
    "tokenizer",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
];

/// Keys of AWQ that say which modules stay plain, or how some software runs the others.
/// transformers 5.24 writes those of GPTQ too.
const AWQ_NOTES: &[&str] = &[
    "do_fuse",
    "exllama_config",
    "fuse_max_seq_len",
    "modules_to_fuse",
    "modules_to_not_convert",
    "zero_point",
];

/// The settings that both methods have.
#[derive(Clone, Copy)]
struct Layout {
    bits: usize,
    /// Inputs of a group; `None` for one group.
    group_len: Option<usize>,
    /// Added to each word of zero points.
    added: u32,
}

pub(super) fn read_gptq(settings: &Config) -> Result<Settings, QuantizationError> {
    const NAME: &str = "gptq";
    settings.acknowledge(GPTQ_NOTES);
    let bits = bits(settings, NAME, &[4, 8], None)?;
    // GPTQModel writes the same under the newer key `format`.
    let formats = [
        settings.opt_str("checkpoint_format")?,
        settings.opt_str("format")?,
    ];
    let format = formats.into_iter().flatten().next().unwrap_or("gptq");
    let added = match format.to_ascii_lowercase().as_str() {
        "gptq_v2" => 0,
        "gptq" if bits == 4 => 0x1111_1111,
        "gptq" => 0x0101_0101,
        other => {
            return Err(unsupported(
                NAME,
                format!("checkpoint_format: expected gptq or gptq_v2, found {other}"),
            ));
        }
    };
    let pack_type = settings.opt_str("pack_dtype")?.unwrap_or("int32");
    if pack_type != "int32" {
        let reason = format!("pack_dtype: expected int32, found {pack_type}");
        return Err(unsupported(NAME, reason));
    }
    let is_empty = |value: &serde_json::Value| value.as_object().is_some_and(|o| o.is_empty());
    if settings
        .value("dynamic")
        .is_some_and(|value| !is_empty(value))
    {
        let reason = "dynamic: settings that differ by module are not supported";
        return Err(unsupported(NAME, reason.to_owned()));
    }
    let layout = Layout {
        bits,
        group_len: group_len(settings, NAME)?,
        added,
    };
    Ok(Settings {
        matrix: Box::new(move |module| gptq(module, layout)),
        marks: vec![("qweight", None)],
        activations: false,
    })
}

pub(super) fn read_awq(settings: &Config) -> Result<Settings, QuantizationError> {
    const NAME: &str = "awq";
    let backend = settings.opt_str("backend")?.unwrap_or("auto");
    if backend == "llm-awq" {
        let reason = "backend: expected a layout that AutoAWQ writes, found llm-awq";
        return Err(unsupported(NAME, reason.to_owned()));
    }
    settings.acknowledge(AWQ_NOTES);
    settings.acknowledge(GPTQ_NOTES);
    // The newer key counts where there is no version.
    let format = settings.opt_str("format")?;
    let version = settings.opt_str("version")?.or(format).unwrap_or("gemm");
    if !version.eq_ignore_ascii_case("gemm") {
        let reason = format!("version: expected gemm, found {version}");
        return Err(unsupported(NAME, reason));
    }
    let layout = Layout {
        bits: bits(settings, NAME, &[4], Some(4))?,
        group_len: group_len(settings, NAME)?,
        added: 0,
    };
    Ok(Settings {
        matrix: Box::new(move |module| awq(module, layout)),
        marks: vec![("qweight", None)],
        activations: false,
    })
}

/// Bits of a code, under either of the keys that files have.
/// Bits of a code, by default those of the method's own class in transformers.
fn bits(
    settings: &Config,
    method: &'static str,
    supported: &[usize],
    default: Option<usize>,
) -> Result<usize, QuantizationError> {
    let bits = match settings.opt_usize("w_bit")? {
        Some(bits) => bits,
        None => match default {
            Some(default) => settings.opt_usize("bits")?.unwrap_or(default),
            None => settings.usize("bits")?,
        },
    };
    if supported.contains(&bits) {
        return Ok(bits);
    }
    let reason = format!("bits: expected one of {supported:?}, found {bits}");
    Err(unsupported(method, reason))
}

/// Inputs of a group, 128 by default as in transformers; -1 means that all inputs share a scale.
fn group_len(settings: &Config, method: &'static str) -> Result<Option<usize>, QuantizationError> {
    let key = if settings.has("q_group_size") {
        "q_group_size"
    } else {
        "group_size"
    };
    match settings.opt_f64(key)?.unwrap_or(128.0) {
        -1.0 => Ok(None),
        len if len >= 1.0 && len <= f64::from(u32::MAX) && len.fract() == 0.0 => {
            Ok(Some(len as usize))
        }
        other => {
            let reason = format!("{key}: expected -1 or a whole number above 0, found {other}");
            Err(unsupported(method, reason))
        }
    }
}

fn gptq(module: &mut Module<'_>, layout: Layout) -> Result<Tensor, String> {
    let qweight = module.need("qweight")?;
    let per_word = 32 / layout.bits;
    let [words, outputs] = matrix_shape(&qweight)?;
    let inputs = size(words, per_word, &qweight)?;
    check(&qweight, TensorType::I32, &[words, outputs])?;
    if !outputs.is_multiple_of(per_word) {
        return Err(format!(
            "`{}`: expected a multiple of {per_word} outputs, found {outputs}",
            qweight.name
        ));
    }
    let packing = Packing::words(layout.bits, Axis::Columns, [1, outputs]);
    let zeros = Packing {
        added: layout.added,
        ..Packing::words(layout.bits, Axis::Rows, [1, outputs / per_word])
    };
    matrix(module, qweight, layout, [outputs, inputs], [packing, zeros])
}

fn awq(module: &mut Module<'_>, layout: Layout) -> Result<Tensor, String> {
    let qweight = module.need("qweight")?;
    let per_word = 32 / layout.bits;
    let [inputs, words] = matrix_shape(&qweight)?;
    let outputs = size(words, per_word, &qweight)?;
    check(&qweight, TensorType::I32, &[inputs, words])?;
    let packing = Packing {
        order: Some(&AWQ_ORDER),
        ..Packing::words(layout.bits, Axis::Rows, [1, words])
    };
    matrix(module, qweight, layout, [outputs, inputs], [packing; 2])
}

/// Elements of so many words.
fn size(words: usize, per_word: usize, tensor: &Tensor) -> Result<usize, String> {
    let n = words.checked_mul(per_word);
    n.ok_or_else(|| format!("`{}`: the shape {:?} overflows", tensor.name, tensor.shape))
}

/// A matrix of these codes, with scales and zero points [groups, outputs].
fn matrix(
    module: &mut Module<'_>,
    qweight: Tensor,
    layout: Layout,
    [outputs, inputs]: [usize; 2],
    [codes, zeros]: [Packing; 2],
) -> Result<Tensor, String> {
    let group_len = layout.group_len.unwrap_or(inputs).min(inputs);
    let n_groups = inputs.div_ceil(group_len);
    let qzeros = module.need("qzeros")?;
    let zero_words = outputs / zeros.per_word();
    check(&qzeros, TensorType::I32, &[n_groups, zero_words])?;
    let scale = module.need("scales")?;
    check(&scale, scale.ty, &[n_groups, outputs])?;
    let groups = match module.take("g_idx") {
        Some(index) => permuted(&index, inputs, group_len, n_groups)?,
        None => None,
    };
    let number = Number::Unsigned;
    let scaled = Scaled {
        shape: [outputs, inputs],
        first_row: 0,
        block: [1, group_len],
        codes: Codes {
            bytes: qweight.bytes.clone(),
            packing: codes,
            number,
        },
        scales: Some(scales(scale, [1, outputs])?),
        offsets: Some(Codes {
            bytes: qzeros.bytes,
            packing: zeros,
            number,
        }),
        groups: groups.map(Into::into),
    };
    Ok(module.matrix(scaled, qweight))
}

/// The group of each input, or `None` if groups are those of consecutive inputs.
pub(super) fn permuted(
    index: &Tensor,
    inputs: usize,
    group_len: usize,
    n_groups: usize,
) -> Result<Option<Vec<u32>>, String> {
    check(index, TensorType::I32, &[inputs])?;
    let groups: Vec<u32> = index
        .bytes
        .as_slice()
        .as_chunks()
        .0
        .iter()
        .map(|b| u32::from_le_bytes(*b))
        .collect();
    if let Some(at) = groups.iter().position(|g| *g as usize >= n_groups) {
        return Err(format!(
            "`{}`: expected groups below {n_groups}, found {} at {at}",
            index.name,
            groups[at].cast_signed()
        ));
    }
    let is_plain = |(at, group): (usize, &u32)| at / group_len == *group as usize;
    Ok((!groups.iter().enumerate().all(is_plain)).then_some(groups))
}
