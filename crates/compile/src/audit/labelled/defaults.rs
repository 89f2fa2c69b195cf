//! What the parameters of ops are bound to where a description does not say.

use thane_mil::literal::Literal;
use thane_mil::opset::{Accepts, OpDef, Param};
use thane_mil::types::{DType, TensorType, Type};

use super::call::{Argument, Call};
use super::notation::Notation;

/// Shape of the first operand.
pub fn first_shape(op: &str, n: &Notation) -> Vec<usize> {
    if let Some(shape) = n.shapes.first() {
        return shape.clone();
    }
    let channels =
        n.channels.or_else(|| Some(*n.weight.as_ref()?.get(1)? * usize::try_from(n.groups.unwrap_or(1)).ok()?));
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

/// Element type of the operands: what is said first, unless it is said of indices, results or the edge of the program.
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
pub fn argument(call: &Call<'_>, param: &Param) -> Option<Argument> {
    structured(call, param)
        .or_else(|| sized(call, param))
        .or_else(|| named(call, param))
        .or_else(|| by_kind(call, param))
}

/// Operands and weights whose shapes follow from one another.
fn structured(call: &Call<'_>, param: &Param) -> Option<Argument> {
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
        ("linear", "weight") => half(vec![n.shapes.get(1).and_then(|s| s.first().copied()).unwrap_or(512), last]),
        ("matmul", "y") => {
            let transposed = n.says(&["transpose"]);
            let plain = if transposed { vec![1, 128, last] } else { vec![1, last, 128] };
            let shape = n.shapes.get(1).cloned().unwrap_or(plain);
            if n.says(&["const"]) { half(shape) } else { Some(Argument::Input(call.dtype, shape)) }
        }
        ("matmul", "transpose_y") => n.says(&["transpose"]).then(|| Argument::Is(Literal::bool(true))),
        ("einsum", "values") => Some(Argument::Inputs(vec![vec![1, 64, 1, 128], vec![1, 128, 1, 64]])),
        ("einsum", "equation") => Some(Argument::Is(Literal::string("nchw,nwhr->nchr"))),
        ("fill" | "fill_like", "value") => half(Vec::new()),
        ("scaled_dot_product_attention", "attn_mask") => {
            let rows = x[x.len().checked_sub(2)?];
            Some(if n.mask || n.says(&["mask"]) {
                Argument::Input(call.dtype, vec![1, 1, rows, rows])
            } else {
                Argument::Left
            })
        }
        (_, "weight_ih") => half(vec![gates * 64, last]),
        (_, "weight_hh") => half(vec![gates * 64, 64]),
        (_, "initial_h" | "initial_c") => Some(Argument::Input(call.dtype, vec![x.get(1).copied().unwrap_or(1), 64])),
        ("batch_norm", "mean" | "variance") | ("prelu", "alpha") | ("softplus_parametric", "alpha" | "beta") => {
            half(vec![*x.get(1)?])
        }
        ("affine", "transform_matrix") => Some(Argument::Input(call.dtype, vec![1, 6])),
        ("resample", "coordinates") => Some(Argument::Input(call.dtype, vec![*x.first()?, 32, 32, 2])),
        ("crop_resize", "boxes") => Some(Argument::Input(call.dtype, vec![1, 4])),
        ("non_maximum_suppression", "boxes") => Some(Argument::Input(call.dtype, vec![1, 4, 100])),
        ("non_maximum_suppression", "scores") => Some(Argument::Input(call.dtype, vec![1, 8, 100])),
        ("classify", "classes") => {
            let names = (0..10).map(|i| Literal::string(format!("class{i}"))).collect();
            Some(Argument::Is(Literal::List(Type::Tensor(TensorType::scalar(DType::String)), names)))
        }
        ("classify", "probabilities") => Some(Argument::Input(DType::Fp32, vec![10])),
        _ => None,
    }
}

fn conv_weight(call: &Call<'_>) -> Vec<usize> {
    let n = call.notation;
    if let Some(weight) = &n.weight {
        return weight.clone();
    }
    let channels = call.x.get(1).copied().unwrap_or(64);
    let groups = n.groups.and_then(|g| usize::try_from(g).ok()).unwrap_or(1).max(1);
    let kernel = window(call, if call.def.name == "conv" { 3 } else { 2 });
    [vec![channels, (channels / groups).max(1)], kernel].concat()
}

/// The sizes of a window: one for each spatial axis.
fn window(call: &Call<'_>, usual: usize) -> Vec<usize> {
    let n_spatial = call.x.len().saturating_sub(2).max(1);
    match &call.notation.kernel[..] {
        [] => vec![usual; n_spatial],
        [k] => vec![*k; n_spatial],
        kernel => kernel.to_vec(),
    }
}

/// Integers that say sizes, places and axes.
fn sized(call: &Call<'_>, param: &Param) -> Option<Argument> {
    let (n, x) = (call.notation, &call.x);
    let rank = x.len();
    let spatial = rank.saturating_sub(2).max(1);
    let ints = |v: &[i64]| {
        Some(Argument::Is(Literal::i32s(&v.iter().map(|i| i32::try_from(*i).unwrap_or(i32::MAX)).collect::<Vec<_>>())))
    };
    let int = |v: i64| Some(Argument::Is(Literal::i32(i32::try_from(v).unwrap_or(i32::MAX))));
    let runtime = n.says(&["runtime", "dynamic", "dyn"]);
    let dims: Vec<i64> = x.iter().map(|d| i64::try_from(*d).unwrap_or(i64::MAX)).collect();
    match (call.def.name, param.name) {
        ("slice_by_index" | "slice_by_size" | "slice_update", "begin" | "end" | "size")
            if runtime && param.name != "size" =>
        {
            Some(Argument::Input(DType::Int32, vec![rank]))
        }
        ("slice_by_index" | "slice_by_size" | "slice_update", "begin") => ints(&vec![0; rank]),
        ("slice_by_index" | "slice_by_size" | "slice_update", "end" | "size") => ints(
            &dims.iter().enumerate().map(|(i, d)| if i + 1 == rank { (d / 2).max(1) } else { *d }).collect::<Vec<_>>(),
        ),
        ("slice_by_index", "stride") => {
            ints(&(0..rank).map(|i| if i + 1 == rank { n.stride.unwrap_or(1) } else { 1 }).collect::<Vec<_>>())
        }
        ("slice_update", "update") => {
            let half = x.iter().enumerate().map(|(i, d)| if i + 1 == rank { (d / 2).max(1) } else { *d });
            Some(Argument::Input(call.dtype, half.collect()))
        }
        ("reshape", "shape") if runtime => Some(Argument::Input(DType::Int32, vec![rank])),
        ("reshape", "shape") => match n.shapes.get(1) {
            Some(to) => ints(&to.iter().map(|d| i64::try_from(*d).unwrap_or(i64::MAX)).collect::<Vec<_>>()),
            None => ints(&[dims.first().copied().unwrap_or(1), -1]),
        },
        ("resize", "shape") => Some(Argument::Filled(DType::Int32, vec![2], 64.0)),
        ("resize", "resized_dims") => Some(Argument::Filled(DType::Uint32, Vec::new(), 2.0)),
        (_, "shape") => ints(&[1, 64, 32, 32]),
        ("tile", "reps") => ints(&(0..rank).map(|i| if i + 1 == rank { 2 } else { 1 }).collect::<Vec<_>>()),
        ("pad", "pad") => ints(&(0..2 * rank).map(|i| i64::from(i + 4 >= 2 * rank)).collect::<Vec<_>>()),
        ("transpose", "perm") => {
            let mut perm: Vec<i64> = (0..i64::try_from(rank).unwrap_or(0)).collect();
            perm.swap(rank.checked_sub(1)?, rank.checked_sub(2)?);
            ints(&perm)
        }
        ("squeeze" | "expand_dims", "axes") => ints(&[0]),
        ("reverse_sequence", "lengths") => ints(&vec![1; *x.first()?]),
        ("split", "num_splits") => int(2),
        (_, "lower" | "upper") => int(2),
        (_, "kernel_sizes") => {
            ints(&window(call, 2).iter().map(|k| i64::try_from(*k).unwrap_or(i64::MAX)).collect::<Vec<_>>())
        }
        (_, "strides") => n.stride.and_then(|s| ints(&vec![s; spatial])),
        (_, "dilations") => n.dilation.and_then(|d| ints(&vec![d; spatial])),
        (_, "groups") => n.groups.and_then(int),
        ("stack" | "concat" | "split" | "sliding_windows" | "scatter" | "scatter_along_axis", "axis") => int(n
            .axes
            .first()
            .copied()
            .filter(|a| *a < i64::try_from(rank).unwrap_or(0))
            .unwrap_or(0)
            .max(i64::from(rank > 2))),
        (_, "axis") => n.axes.first().and_then(|a| int(*a)),
        (_, "axes") => (!n.axes.is_empty()).then(|| ints(&n.axes)).flatten().or_else(|| ints(&[-1])),
        (_, "block_size" | "upscale_factor") => int(2),
        (_, "downscale_factor") => Some(Argument::Filled(DType::Uint32, Vec::new(), 2.0)),
        (_, "block_shape") => ints(&[2, 2]),
        (_, "paddings" | "crops") => Some(Argument::Filled(DType::Int32, vec![2, 2], 0.0)),
        (_, "scale_factor_height" | "scale_factor_width") => int(2),
        (
            _,
            "target_size_height" | "target_size_width" | "target_height" | "target_width" | "output_height"
            | "output_width",
        ) => int(64),
        (_, "size") | ("topk", "k") => int(3),
        ("crop", "crop_height" | "crop_width") => ints(&[2, 2]),
        (_, "max_boxes") => int(16),
        _ => None,
    }
}

/// Words, and indices.
fn named(call: &Call<'_>, param: &Param) -> Option<Argument> {
    let (n, x) = (call.notation, &call.x);
    let word = |w: &str| Some(Argument::Is(Literal::string(w)));
    let index = |shape: Vec<usize>| {
        let dtype = n.dtypes.iter().copied().find(|d| matches!(d, DType::Int32 | DType::Int16 | DType::Uint16));
        let constant = n.says(&["const", "static"]);
        let dtype = dtype.unwrap_or(DType::Int32);
        Some(if constant { Argument::Filled(dtype, shape, 0.0) } else { Argument::Input(dtype, shape) })
    };
    match (call.def.name, param.name) {
        ("gather_along_axis", "indices") => {
            let mut shape = x.clone();
            shape.first_mut().into_iter().for_each(|d| *d = 1);
            index(shape)
        }
        ("scatter_along_axis", "indices") => Some(Argument::Input(DType::Int32, vec![4, *x.last()?])),
        ("gather_nd" | "scatter_nd", "indices") => index(vec![4, 1]),
        (_, "indices") => index(vec![4]),
        ("scatter" | "scatter_nd" | "scatter_along_axis", "updates") => {
            Some(Argument::Input(call.dtype, vec![4, *x.last()?]))
        }
        ("list_write" | "list_scatter", "value") => {
            Some(Argument::Input(DType::Fp32, if call.def.name == "list_write" { vec![4] } else { vec![4, 4] }))
        }
        (_, "index") => Some(Argument::Is(Literal::i32(0))),
        (_, "one_hot_vector_size") => Some(Argument::Is(Literal::i32(10))),
        ("cast", "dtype") => word(n.dtypes.get(1).map_or("fp32", |d| d.name())),
        ("quantize", "output_dtype") => word("int8"),
        (_, "mode") => n.mode.as_deref().and_then(word),
        (_, "pad_type") => {
            word(if n.says(&["same"]) || param.required || call.def.name == "conv" { "same" } else { "valid" })
        }
        (_, "sampling_mode") if param.required => word("bilinear"),
        (_, "padding_mode") => word("constant"),
        (_, "coordinates_mode") => word("normalized_minus_one_to_one"),
        (_, "interleave") => n.says(&["interleave"]).then(|| Argument::Is(Literal::bool(true))),
        ("make_list", "elem_shape") => Some(Argument::Is(Literal::i32(4))),
        _ => None,
    }
}

/// A tensor of the call where one can be, a plain number where a constant must be.
fn by_kind(call: &Call<'_>, param: &Param) -> Option<Argument> {
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
            let dtype = if dtypes.contains(&call.dtype) { call.dtype } else { *dtypes.first()? };
            let at = call.def.params.iter().filter(|p| p.required && !p.constant).position(|p| p.name == param.name)?;
            let shape = if dtypes == [DType::Bool] && call.def.params.len() > 2 {
                x
            } else {
                call.notation.shapes.get(at).cloned().unwrap_or(x)
            };
            Some(Argument::Input(dtype, shape))
        }
        (Accepts::Tensor(dtypes), true) => {
            let dtype = if dtypes.contains(&call.dtype) { call.dtype } else { *dtypes.first()? };
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
