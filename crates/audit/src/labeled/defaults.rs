//! Default arguments for parameters that a description leaves out.

use thane_mil::literal::Literal;
use thane_mil::opset::{Accepts, OpDef, Param};
use thane_mil::types::{DType, TensorType, Type};

use super::argument::{Argument, OpCall};
use super::notation::{Notation, Said};
use super::sizes::{groups, sized, window};

/// Shape of the first operand.
pub fn first_shape(op: &str, n: &Notation) -> Vec<usize> {
    if let Some(shape) = n.shapes.first() {
        return shape.clone();
    }
    let channels = n.channels.or_else(|| {
        Some(*n.weight.as_ref()?.get(1)? * usize::try_from(n.groups.unwrap_or(1)).ok()?)
    });
    let channels = channels.unwrap_or(64);
    let spatial = match (n.n_spatial, &n.image[..], n.weight.as_ref().map(Vec::len)) {
        (_, image @ [_, ..], _) => image.to_vec(),
        (Some(1), ..) | (_, _, Some(3)) => vec![128],
        (Some(3), ..) | (_, _, Some(5)) => vec![8, 32, 32],
        _ => vec![32, 32],
    };
    match op {
        "matmul" => vec![1, 64, n.k.unwrap_or(256)],
        "linear" => vec![128, n.k.unwrap_or(256)],
        "einsum" | "scaled_dot_product_attention" => vec![1, 8, 128, 64],
        "lstm" | "gru" | "rnn" => vec![n.seq_len.unwrap_or(16), 1, 64],
        "one_hot" | "random_categorical" | "classify" => vec![1, 10],
        "sliding_windows" | "scatter" | "scatter_nd" | "scatter_along_axis" => vec![64, 32],
        "range_1d" => Vec::new(),
        "batch_to_space" => vec![4, channels, 32, 32],
        _ => [vec![1, channels], spatial].concat(),
    }
}

/// Element type of the operands: what is said first, unless it is said of indices, results or the
/// edge of the program.
pub fn element_type(def: &OpDef, n: &Notation) -> DType {
    let first = match def.params.first().map(|p| p.accepts) {
        Some(Accepts::Tensor(dtypes)) if !dtypes.contains(&DType::Fp16) => {
            dtypes.first().copied().unwrap_or(DType::Fp16)
        }
        _ => DType::Fp16,
    };
    let of_others = n.says(&["idx", "index", "indices", "begin", "output", "io", "o"]);
    match n.dtypes.first() {
        Some(said) if !of_others || def.name == "cast" => *said,
        _ => first,
    }
}

/// What a parameter is bound to; `None` where nothing is known of it.
pub fn argument(call: &OpCall<'_>, param: &Param) -> Option<Argument> {
    let named_or_plain = || named(call, param).or_else(|| by_kind(call, param));
    said(call, param)
        .or_else(|| structured(call, param))
        .or_else(|| sized(call, param))
        .or_else(named_or_plain)
}

/// What the description says of a parameter by its name; sizes that are said once for all axes are
/// none of these.
fn said(call: &OpCall<'_>, param: &Param) -> Option<Argument> {
    let Accepts::Tensor(dtypes) = param.accepts else {
        return None;
    };
    match call.notation.said(param.name)? {
        Said::List(list) if dtypes.contains(&DType::Int32) => {
            let list: Option<Vec<i32>> = list.iter().map(|n| i32::try_from(*n).ok()).collect();
            Some(Argument::Is(Literal::i32s(&list?)))
        }
        Said::List(_) => None,
        Said::Value(word) if dtypes == [DType::String] => Some(Argument::Is(Literal::string(word))),
        Said::Value(number)
            if !matches!(
                param.name,
                "strides" | "dilations" | "kernel_sizes" | "axes"
            ) =>
        {
            let dtype = call.taken(dtypes)?;
            param.constant.then_some(())?;
            Some(Argument::Filled(dtype, Vec::new(), number.parse().ok()?))
        }
        Said::Value(_) => None,
    }
}

/// Weights and operands whose shapes follow from the first operand.
fn structured(call: &OpCall<'_>, param: &Param) -> Option<Argument> {
    weights(call, param).or_else(|| operands(call, param))
}

fn weights(call: &OpCall<'_>, param: &Param) -> Option<Argument> {
    let (n, x) = (call.notation, &call.x);
    let last = x.last().copied().unwrap_or(1);
    let half = |shape: Vec<usize>| Some(Argument::Filled(call.dtype, shape, 0.5));
    let gates = match call.def.name {
        "lstm" => 4,
        "gru" => 3,
        _ => 1,
    };
    match (call.def.name, param.name) {
        ("conv", "weight") if n.says(&["runtime", "dynamic", "dynw", "dyn"]) => {
            Some(Argument::Input(call.dtype, conv_weight(call)))
        }
        ("conv" | "conv_transpose", "weight") => half(conv_weight(call)),
        ("linear", "weight") => half(vec![
            n.shapes
                .get(1)
                .and_then(|s| s.first().copied())
                .unwrap_or(512),
            last,
        ]),
        ("matmul", "y") => {
            let transposed = n.says(&["transpose"]);
            let plain = if transposed {
                vec![1, 128, last]
            } else {
                vec![1, last, 128]
            };
            let shape = n.shapes.get(1).cloned().unwrap_or(plain);
            if n.says(&["const"]) {
                half(shape)
            } else {
                Some(Argument::Input(call.dtype, shape))
            }
        }
        ("matmul", "transpose_y") => n
            .says(&["transpose"])
            .then(|| Argument::Is(Literal::bool(true))),
        ("fill" | "fill_like", "value") => half(Vec::new()),
        (_, "weight_ih") => half(vec![gates * 64, last]),
        (_, "weight_hh") => half(vec![gates * 64, 64]),
        ("batch_norm", "mean" | "variance")
        | ("prelu", "alpha")
        | ("softplus_parametric", "alpha" | "beta") => half(vec![*x.get(1)?]),
        _ => None,
    }
}

fn operands(call: &OpCall<'_>, param: &Param) -> Option<Argument> {
    let (n, x) = (call.notation, &call.x);
    let input = |shape: Vec<usize>| Some(Argument::Input(call.dtype, shape));
    match (call.def.name, param.name) {
        ("einsum", "values") => Some(Argument::Inputs(vec![
            vec![1, 64, 1, 128],
            vec![1, 128, 1, 64],
        ])),
        ("einsum", "equation") => Some(Argument::Is(Literal::string("nchw,nwhr->nchr"))),
        ("scaled_dot_product_attention", "attn_mask") => {
            let rows = x[x.len().checked_sub(2)?];
            if n.mask || n.says(&["mask"]) {
                input(vec![1, 1, rows, rows])
            } else {
                Some(Argument::Left)
            }
        }
        (_, "initial_h" | "initial_c") => input(vec![x.get(1).copied().unwrap_or(1), 64]),
        ("affine", "transform_matrix") => input(vec![1, 6]),
        ("resample", "coordinates") => input(vec![*x.first()?, 32, 32, 2]),
        ("crop_resize", "boxes") => input(vec![1, 4]),
        ("non_maximum_suppression", "boxes") => input(vec![1, 4, 100]),
        ("non_maximum_suppression", "scores") => input(vec![1, 8, 100]),
        ("classify", "classes") => {
            let names = (0..10)
                .map(|i| Literal::string(format!("class{i}")))
                .collect();
            Some(Argument::Is(Literal::List(
                Type::Tensor(TensorType::scalar(DType::String)),
                names,
            )))
        }
        ("classify", "probabilities") => Some(Argument::Input(DType::Fp32, vec![10])),
        _ => None,
    }
}

fn conv_weight(call: &OpCall<'_>) -> Vec<usize> {
    let n = call.notation;
    if let Some(weight) = &n.weight {
        return weight.clone();
    }
    let channels = call.x.get(1).copied().unwrap_or(64);
    let groups = usize::try_from(groups(call)).unwrap_or(1).max(1);
    let kernel = window(call, if call.def.name == "conv" { 3 } else { 2 });
    [vec![channels, (channels / groups).max(1)], kernel].concat()
}

/// Words, and indices.
fn named(call: &OpCall<'_>, param: &Param) -> Option<Argument> {
    let (n, x) = (call.notation, &call.x);
    let word = |w: &str| Some(Argument::Is(Literal::string(w)));
    let index = |shape: Vec<usize>| {
        let dtype = n
            .dtypes
            .iter()
            .copied()
            .find(|d| matches!(d, DType::Int32 | DType::Int16 | DType::Uint16));
        let constant = n.says(&["const", "static"]);
        let dtype = dtype.unwrap_or(DType::Int32);
        Some(if constant {
            Argument::Filled(dtype, shape, 0.0)
        } else {
            Argument::Input(dtype, shape)
        })
    };
    match (call.def.name, param.name) {
        ("gather_along_axis", "indices") => {
            let mut shape = x.clone();
            shape.first_mut().into_iter().for_each(|d| *d = 1);
            index(shape)
        }
        ("scatter_along_axis", "indices") => {
            Some(Argument::Input(DType::Int32, vec![4, *x.last()?]))
        }
        ("gather_nd" | "scatter_nd", "indices") => index(vec![4, 1]),
        (_, "indices") => index(vec![4]),
        ("scatter" | "scatter_nd" | "scatter_along_axis", "updates") => {
            Some(Argument::Input(call.dtype, vec![4, *x.last()?]))
        }
        ("list_write" | "list_scatter", "value") => Some(Argument::Input(
            DType::Fp32,
            if call.def.name == "list_write" {
                vec![4]
            } else {
                vec![4, 4]
            },
        )),
        (_, "index") => Some(Argument::Is(Literal::i32(0))),
        (_, "one_hot_vector_size") => Some(Argument::Is(Literal::i32(10))),
        ("cast", "dtype") => word(n.dtypes.get(1).map_or("fp32", |d| d.name())),
        ("quantize", "output_dtype") => word("int8"),
        (_, "mode") => n.mode.as_deref().and_then(word),
        (_, "pad_type") => word(
            if n.says(&["same"]) || param.required || call.def.name == "conv" {
                "same"
            } else {
                "valid"
            },
        ),
        (_, "sampling_mode") if param.required => word("bilinear"),
        (_, "padding_mode") => word("constant"),
        (_, "coordinates_mode") => word("normalized_minus_one_to_one"),
        (_, "interleave") => n
            .says(&["interleave"])
            .then(|| Argument::Is(Literal::bool(true))),
        ("make_list", "elem_shape") => Some(Argument::Is(Literal::i32(4))),
        _ => None,
    }
}

/// A tensor of the call where one can be, a plain number where a constant must be.
fn by_kind(call: &OpCall<'_>, param: &Param) -> Option<Argument> {
    if !param.required {
        return Some(Argument::Left);
    }
    let x = call.x.clone();
    match (param.accepts, param.constant) {
        (Accepts::Tensors, false) if call.def.n_blocks > 0 => Some(Argument::Inputs(vec![x])),
        (Accepts::Tensors, false) => Some(Argument::Inputs(if call.notation.shapes.len() > 1 {
            call.notation.shapes.clone()
        } else {
            vec![x.clone(), x]
        })),
        (Accepts::State | Accepts::List, _) => Some(Argument::Input(call.dtype, x)),
        (Accepts::Tensor(dtypes), false) => {
            let dtype = call.taken(dtypes)?;
            let at = call
                .def
                .params
                .iter()
                .filter(|p| p.required && !p.constant)
                .position(|p| p.name == param.name)?;
            let shape = if dtypes == [DType::Bool] && call.def.params.len() > 2 {
                x
            } else {
                call.notation.shapes.get(at).cloned().unwrap_or(x)
            };
            Some(Argument::Input(dtype, shape))
        }
        (Accepts::Tensor(dtypes), true) => {
            let dtype = call.taken(dtypes)?;
            // A lower bound is below an upper one, and what pads an image is 0.
            let number = match param.name {
                "padding_value" => 0.0,
                "beta" => 2.0,
                _ => 1.0,
            };
            (dtype != DType::String).then(|| Argument::Filled(dtype, Vec::new(), number))
        }
        _ => None,
    }
}
