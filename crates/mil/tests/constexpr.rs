//! Which constexpr ops are legal.
#![allow(clippy::unwrap_used)]

use thane_mil::text::parse;
use thane_mil::valid;

/// Parses and validates a function with this body; returns the error, or an empty string.
fn check(opset: &str, body: &str) -> String {
    let text =
        format!("program(1.3) {{ func main<{opset}>(tensor<fp32, [1]> x) {{ {body} }} -> (y); }}");
    match parse(&text, &|_, _, _| None) {
        Err(e) => e.to_string(),
        Ok(program) => valid::check(&program).map_or_else(
            |e| {
                e.iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join("; ")
            },
            |()| String::new(),
        ),
    }
}

#[test]
fn packed_forms_must_match_their_shape() {
    let lut = |indices: &str, lut: &str, shape: &str| {
        format!(
            "tensor<fp32, [3, 3]> y = constexpr_lut_to_dense()[indices = {indices}, lut = {lut}, \
             shape = {shape}];"
        )
    };
    let sparse = |data: &str, mask: &str, shape: &str| {
        format!(
            "tensor<fp32, [3, 3]> y = constexpr_sparse_to_dense()[nonzero_data = {data}, mask = \
             {mask}, shape = {shape}];"
        )
    };
    let (two, three) = (
        "tensor<uint8, [2]>([7, 1])",
        "tensor<uint8, [3]>([7, 8, 9])",
    );
    let (pair, four) = (
        "tensor<fp32, [2]>([1, 2])",
        "tensor<fp32, [4]>([1, 2, 3, 4])",
    );
    let nine = "tensor<uint32, [2]>([3, 3])";
    for (body, message) in [
        (lut(two, pair, nine), ""),
        (lut(three, four, nine), ""),
        (
            lut(three, pair, nine),
            "`indices`: expected 9 elements of 1 bits, found 3 bytes",
        ),
        (
            lut(two, "tensor<fp32, [3]>([1, 2, 3])", nine),
            "`lut`: expected 2, 4, 16, 64 or 256 entries, found 3",
        ),
        (
            lut(two, "tensor<fp32, [1, 2]>([[1, 2]])", nine),
            "`lut`: expected a vector, found tensor<fp32, [1, 2]>",
        ),
        (
            lut(
                two,
                pair,
                "tensor<uint32, [3]>([4294967295, 4294967295, 4294967295])",
            ),
            "`shape`: too many dimensions or elements",
        ),
        (
            lut(two, pair, "tensor<uint32, [2]>([4294967295, 4294967295])"),
            "elements of 1 bits, found 2 bytes",
        ),
        (
            lut(two, pair, "tensor<uint32, [1]>([9])"),
            "found declared type",
        ),
        (sparse(four, two, nine), ""),
        (
            sparse(pair, two, nine),
            "one element for each of the 4 ones of `mask`, found 2",
        ),
        (
            sparse(four, "tensor<uint8, [2]>([7, 2])", nine),
            "`mask`: expected 0 bits after the last element",
        ),
        (
            sparse(four, three, nine),
            "`mask`: expected 9 elements of 1 bits, found 3 bytes",
        ),
    ] {
        let found = check("ios16", &body);
        assert!(
            found.contains(message) && found.is_empty() == message.is_empty(),
            "{body}: {found}"
        );
    }
}

#[test]
fn parameters_must_fit_each_other() {
    let mask = "tensor<uint1, [2, 3]>([[1, 0, 1], [0, 1, 0]])";
    for (opset, body, message) in [
        (
            "ios17",
            "tensor<fp32, [2]> y = constexpr_affine_dequantize()[quantized_data = tensor<int8, \
             [2]>([1, 2]), \
             zero_point = int8(1), scale = tensor<fp32, [3]>([1, 2, 3]), axis = int32(0)];",
            "`scale`: expected a scalar or a vector of length 2, found tensor<fp32, [3]>",
        ),
        (
            "ios18",
            "tensor<fp32, [2]> y = constexpr_affine_dequantize()[quantized_data = tensor<int8, \
             [2]>([1, 2]), \
             zero_point = int8(1), scale = fp32(1), axis = int32(1)];",
            "expected an axis of a tensor of rank 1, found axis 1",
        ),
        (
            "ios16",
            "tensor<fp16, [1]> y = constexpr_cast()[source_val = tensor<fp16, [1]>([1]), \
             output_dtype = string(\"fp16\")];",
            "`output_dtype`: expected `fp32`, found `fp16`",
        ),
        (
            "ios18",
            &format!(
                "tensor<int8, [2, 3]> y = constexpr_sparse_to_dense(nonzero_data = tensor<int8, \
                 [2]>([1, 2]), mask = {mask});"
            ),
            "one element for each of the 3 ones of `mask`, found 2",
        ),
        (
            "ios18",
            &format!(
                "tensor<uint1, [2, 3]> m, tensor<fp32, [3]> y = \
                 constexpr_sparse_blockwise_shift_scale(data_mask = {mask}, \
                 nonzero_data = tensor<int4, [3]>([1, 2, 3]), scale = tensor<fp32, [1, 2]>([[1, \
                 2]]));"
            ),
            "`scale`: expected dimensions that divide those of `data_mask` [2, 3], found [1, 2]",
        ),
        (
            "ios18",
            &format!(
                "tensor<uint1, [2, 6]> m, tensor<fp32, [6]> y = \
                 constexpr_lut_to_sparse(indices_mask = {mask}, \
                 indices_nonzero_data = tensor<uint1, [3]>([1, 0, 1]), lut = tensor<fp32, [1, 1, \
                 2, 2]>([[[[1, 2], [3, 4]]]]));"
            ),
            "expected nonempty vectors with a `vector_axis`",
        ),
        (
            "ios18",
            "tensor<int8, [2]> y = constexpr_lut_to_dense(indices = tensor<uint1, [2]>([1, 0]), \
             lut = tensor<int8, [1, 2, 1]>([[[1], [3]]]), vector_axis = int32(1));",
            "expected an axis of a tensor of rank 1, found axis 1",
        ),
    ] {
        let found = check(opset, body);
        assert!(found.contains(message), "{body}: {found}");
    }
}

/// A lookup table for indices of rank 4 has rank 6. Only constexpr ops may use such a constant.
#[test]
fn ranks_above_5_are_for_constexpr_ops() {
    let lut = "tensor<fp32, [1, 1, 1, 1, 2, 1]> lut = const()[val = tensor<fp32, [1, 1, 1, 1, 2, \
               1]>([[[[[[1], [2]]]]]])];";
    let dense = "tensor<fp32, [1, 1, 1, 1, 1, 2]> dense = constexpr_sparse_to_dense(nonzero_data \
                 = tensor<fp32, [1]>([1]), \
                 mask = tensor<uint1, [1, 1, 1, 1, 1, 2]>([[[[[[1, 0]]]]]]));";
    for (body, message) in [
        (
            format!(
                "{lut} tensor<fp32, [1, 1, 1, 2]> y = constexpr_lut_to_dense(indices = \
                 tensor<uint1, [1, 1, 1, 2]>([[[[1, 0]]]]), lut = lut);"
            ),
            "",
        ),
        (
            format!(
                "{lut} tensor<fp32, [2]> y = reshape(x = lut, shape = tensor<int32, [1]>([2]));"
            ),
            "operands of rank 5 or less, found tensor<fp32, [1, 1, 1, 1, 2, 1]>",
        ),
        (
            format!(
                "{dense} tensor<fp32, [2]> y = reshape(x = dense, shape = tensor<int32, [1]>([2]));"
            ),
            "operands of rank 5 or less, found tensor<fp32, [1, 1, 1, 1, 1, 2]>",
        ),
        (format!("{dense} tensor<fp32, [1]> y = relu(x = x);"), ""),
        (
            dense.replace("dense =", "y ="),
            "expected an output of rank 5 or less, found tensor<fp32, [1, 1, 1, 1, 1, 2]>",
        ),
    ] {
        let found = check("ios18", &body);
        assert!(
            found.contains(message) && found.is_empty() == message.is_empty(),
            "{body}: {found}"
        );
    }
}
