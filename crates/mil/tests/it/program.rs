//! Builds, prints, parses, validates and patches programs.

use thane_mil::build::FunctionBuilder;
use thane_mil::data::Data;
use thane_mil::edit::{New, NewArg, Patch};
use thane_mil::literal::Literal;
use thane_mil::opset::{Opset, find};
use thane_mil::program::{Arg, Origin, Program, ValueId, difference};
use thane_mil::text::{Blobs, WEIGHT_PATH, parse, print};
use thane_mil::types::{DType, Dim, TensorType, Type};
use thane_mil::valid;

fn arg(v: ValueId) -> Arg {
    Arg::Value(v)
}

/// Weights, a state, symbols, several results, a variadic parameter, every kind of literal.
fn sample() -> Program {
    let mut b = FunctionBuilder::new("main", Opset::CoreMl8);
    let n = b.symbol();
    let x = b.input(
        "x",
        TensorType::new(DType::Fp32, [Dim::Known(3), n, Dim::Known(8)]),
    );
    let cache = b.input(
        "cache",
        Type::State(TensorType::new(DType::Fp32, [3usize, 11])),
    );
    let w = quantized_weight(&mut b);
    let bias = b
        .constant("bias", Literal::f32s(&[0.1, -1e4, 3.0, 0.0, -0.0, 1e-40]))
        .unwrap();
    let y = b
        .op(
            "linear",
            "y",
            [("x", arg(x)), ("weight", arg(w)), ("bias", arg(bias))],
        )
        .unwrap();
    let (two, last) = (
        b.constant("two", Literal::i32(2)).unwrap(),
        b.constant("last", Literal::i32(-1)).unwrap(),
    );
    let halves = b
        .op_results(
            "split",
            "half",
            [("x", arg(y)), ("num_splits", arg(two)), ("axis", arg(last))],
        )
        .unwrap();
    let joined = b.op(
        "concat",
        "joined",
        [
            ("values", Arg::Values(vec![halves[1], halves[0]])),
            ("axis", arg(last)),
        ],
    );
    let mode = b
        .constant("mode", Literal::string("TANH_APPROXIMATION"))
        .unwrap();
    let z = b
        .op(
            "gelu",
            "z",
            [("x", arg(joined.unwrap())), ("mode", arg(mode))],
        )
        .unwrap();
    let read = b.op("read_state", "read", [("input", arg(cache))]).unwrap();
    let twice = b
        .op("add", "twice", [("x", arg(read)), ("y", arg(read))])
        .unwrap();
    b.op(
        "coreml_update_state",
        "kept",
        [("state", arg(cache)), ("value", arg(twice))],
    )
    .unwrap();
    let mut f = b.finish(&[("out", z)]);
    f.attributes.push(("note".to_owned(), note()));
    Program::new(vec![f])
}

/// A weight `[6, 8]` of int8 codes with fp32 scales, one for 4 codes of a row.
fn quantized_weight(b: &mut FunctionBuilder) -> ValueId {
    let bytes: Vec<u8> = (0..6 * 8).map(|i| (i * 37 % 251) as u8).collect();
    let codes = Literal::Tensor(
        TensorType::new(DType::Int8, [6usize, 8]),
        Data::owned(bytes),
    );
    let codes = b.constant("codes", codes).unwrap();
    let scales: Vec<u8> = (0..12)
        .flat_map(|i| (0.25f32 * i as f32 - 0.7).to_le_bytes())
        .collect();
    let scales = Literal::Tensor(
        TensorType::new(DType::Fp32, [6usize, 2]),
        Data::owned(scales),
    );
    let scales = b.constant("scales", scales).unwrap();
    b.op(
        "constexpr_blockwise_shift_scale",
        "w",
        [("data", arg(codes)), ("scale", arg(scales))],
    )
    .unwrap()
}

/// A tuple of a dictionary, whose strings need escapes, and an empty list.
fn note() -> Literal {
    let string = || Type::Tensor(TensorType::scalar(DType::String));
    let dict = Literal::Dict(
        string(),
        string(),
        vec![(Literal::string("a \"q\" \\"), Literal::string("b\n"))],
    );
    Literal::Tuple(vec![dict, Literal::List(string(), vec![])])
}

#[test]
fn a_copy_of_a_function_is_continued() {
    let first = sample().functions()[0].clone();
    let last = first.body().outputs[0];
    let mut b = FunctionBuilder::continuing(&first, "more");
    let y = b.op("relu", "y", [("x", arg(last))]).unwrap();
    let second = b.finish(&[("most", y)]);
    assert_eq!(
        (second.name.as_str(), &second.body().outputs),
        ("more", &vec![y])
    );
    assert_eq!(second.value(y).name, "most");
    assert_eq!(second.all_ops().len(), first.all_ops().len() + 1);
    assert_eq!(first.body().outputs, [last]);
    valid::check(&Program::new(vec![first, second])).unwrap();
}

#[test]
fn text_survives_a_round_trip() {
    let program = sample();
    valid::check(&program).unwrap();
    let mut blobs = Blobs::default();
    let text = print(&program, &mut blobs);
    assert_eq!(blobs.len(), 2);
    let resolve = |path: &str, offset: u64, ty: &TensorType| {
        blobs.get(offset, ty).filter(|_| path == WEIGHT_PATH)
    };
    let back = parse(&text, &resolve).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(difference(&program, &back), None, "{text}");
    valid::check(&back).unwrap();
    assert_eq!(print(&back, &mut Blobs::default()), text);
}

#[test]
fn differences_are_found() {
    let text = print(&sample(), &mut Blobs::default());
    for (from, to) in [
        ("0x1.8p+1", "0x1.9p+1"),
        ("values = (half_1, half_0)", "values = (half_0, half_1)"),
        ("tensor<fp32, [3, ?, 8]> x", "tensor<fp32, [3, 5, 8]> x"),
    ] {
        let changed = text.replace(from, to);
        assert_ne!(changed, text, "{from}");
        let mut blobs = Blobs::default();
        print(&sample(), &mut blobs);
        let changed = parse(&changed, &|_: &str, o, t: &TensorType| blobs.get(o, t)).unwrap();
        assert!(difference(&sample(), &changed).is_some(), "{from}");
    }
}

/// A text like the output of Apple's compiler: several functions, old string types, hexadecimal
/// floats.
#[test]
fn text_of_apples_compiler_is_parsed() {
    let text = r#"program(1.3)
[buildInfo = dict<string, string>({{"coremlc-component-MIL", "3600.16.1"},
    {"coremlc-version", "3600.25.1"}})]
{
    func main<ios17>(tensor<fp32, [?]> input) [FlexibleShapeInformation =
            tuple<tuple<string, dict<string, tensor<int32, [?]>>>,
            tuple<string, dict<string, list<tensor<int32, [2]>, ?>>>>((
            ("DefaultShapes", {{"input", [4]}}), ("RangeDims", {{"input", [[0, 4]]}})))] {
            fp32 const_0 = const()[val = fp32(0x1p-1)];
            tensor<fp32, [?]> output = mul(x = input, y = const_0)[name = string("output")];
        } -> (output);
    func other<ios17>(tensor<fp16, [2, 3]> a) {
            tensor<fp16, [2, 1]> m = const()[name = tensor<string, []>("m"),
                val = tensor<fp16, [2, 1]>([[-0x1.388p+13], [0x1.8p-3]])];
            tensor<fp16, [2, 3]> b = maximum(x = a, y = m);
        } -> (b);
}
"#;
    let program = parse(text, &|_, _, _| None).unwrap();
    valid::check(&program).unwrap();
    let scale = program.functions()[0].body().ops[0];
    assert_eq!(
        program.functions()[0].literal_arg(program.functions()[0].op(scale), "val"),
        Some(&Literal::f32(0.5))
    );
    assert!(
        print(&program, &mut Blobs::default()).contains("((\"DefaultShapes\", {{\"input\", [4]}})")
    );
}

#[test]
fn invalid_texts_are_rejected_with_their_position() {
    let wrap = |body: &str| {
        format!(
            "program(1.3)\n{{\n func main<ios18>(tensor<fp32, [2, 3]> x) {{\n{body}\n}} -> (y);\n}}"
        )
    };
    for (text, message) in [
        (
            wrap("tensor<fp32, [2, 3]> y = frob(x = x);"),
            "line 4, column 30: opset ios18 has no op `frob`",
        ),
        (
            wrap("tensor<fp32, [2, 4]> y = relu(x = x);"),
            "found declared type tensor<fp32, [2, 4]>",
        ),
        (
            wrap("tensor<fp32, [2, 3]> y = relu(x = z);"),
            "expected a defined value, found `z`",
        ),
        (
            wrap("tensor<fp32, [2, 3]> y = relu(z = x);"),
            "has no parameter `z`",
        ),
        (
            wrap("tensor<fp32, [2, 3]> y = relu(x = x, x = x);"),
            "bound twice",
        ),
        (
            wrap("int8 y = const()[val = int8(300)];"),
            "expected a number of type int8, found `300`",
        ),
        (
            wrap("tensor<int32, [2]> y = const()[val = tensor<int32, [2]>([1, 2, 3])];"),
            "expected the elements of a tensor<int32, [2]>",
        ),
        (
            wrap(&format!(
                "{}int8{} y = relu(x = x);",
                "list<".repeat(99),
                ", ?>".repeat(99)
            )),
            "nested deeper",
        ),
        (
            wrap("fp32 y = const()[val = fp32(nanx)];"),
            "expected a number of type fp32, found `nanx`",
        ),
        (
            wrap("int32 y = const()[val = int32(inf)];"),
            "expected a number of type int32, found `inf`",
        ),
        // Rounding would give an infinity that the text does not contain.
        (
            wrap("fp16 y = const()[val = fp16(1e6)];"),
            "expected a number of type fp16, found `1e6`",
        ),
        (
            wrap("fp32 y = const()[val = fp32(0x1p+128)];"),
            "expected a number of type fp32, found `0x1p+128`",
        ),
        (
            "program(1.3) { func main<ios99>() {} -> (); }".to_owned(),
            "expected an opset from ios15 to ios18, found `ios99`",
        ),
        ("program(1.3) {".to_owned(), "the end of the text"),
    ] {
        let error = parse(&text, &|_, _, _| None).unwrap_err().to_string();
        assert!(error.contains(message), "{error:?} lacks {message:?}");
    }
}

#[test]
fn the_validator_collects_all_errors() {
    let text = "program(1.0) { func main<ios18>(tensor<fp32, [2, 3]> x,
            state<tensor<fp32, [2, 3]>> s) {
        tensor<fp32, [2, 3]> r = read_state(input = s);
        tensor<fp32, [3, 3]> w = const()[val =
            tensor<fp32, [3, 3]>([[1, 2, 3], [1, 2, 3], [1, 2, 3]])];
        tensor<fp32, [3, 3]> v = add(x = w, y = w);
        tensor<fp32, [2, 3]> y = linear(x = x, weight = v);
        tensor<fp32, [1, 1, 1, 1, 2, 3]> z = expand_dims(x = y,
            axes = tensor<int32, [4]>([0, 1, 2, 3]));
    } -> (z); func main<ios17>(tensor<fp32, [2]> x) { } -> (x); }";
    assert!(
        parse(text, &|_, _, _| None)
            .unwrap_err()
            .message
            .contains("function `main` is defined twice")
    );
    let program = parse(
        &text.replace("func main<ios17>", "func more<ios17>"),
        &|_, _, _| None,
    )
    .unwrap();
    let errors: Vec<String> = valid::check(&program)
        .unwrap_err()
        .iter()
        .map(ToString::to_string)
        .collect();
    let expected = [
        "main: linear `y`: `weight`: expected a constant",
        "main: expand_dims `z`: `z`: expected rank 5 or less, found tensor<fp32, [1, 1, 1, 1, 2",
        "more: function: expected the opset of the first function",
    ];
    assert_eq!(errors.len(), expected.len(), "{errors:#?}");
    for (error, expected) in errors.iter().zip(expected) {
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn a_patch_inserts_redirects_and_removes() {
    let mut b = FunctionBuilder::new("main", Opset::CoreMl8);
    let x = b.input("x", TensorType::new(DType::Fp32, [2usize, 3]));
    let s = b.op("sigmoid", "s", [("x", arg(x))]).unwrap();
    let y = b.op("mul", "y", [("x", arg(x)), ("y", arg(s))]).unwrap();
    let mut f = b.finish(&[("out", y)]);
    let ops = f.body().ops.clone();
    let mut patch = Patch::new();
    let origin = Origin {
        pass: Some("fuse_silu"),
        ..Origin::default()
    };
    let silu = patch.insert(
        ops[1],
        find("silu").unwrap(),
        vec![("x", NewArg::One(New::Value(x)))],
        "silu",
        origin,
    );
    patch.replace(y, silu);
    patch.remove(ops[0]);
    patch.remove(ops[1]);
    patch.apply(&mut f).unwrap();
    let program = Program::new(vec![f]);
    valid::check(&program).unwrap();
    let text = print(&program, &mut Blobs::default());
    assert!(
        text.contains("tensor<fp32, [2, 3]> out = silu(x = x)"),
        "{text}"
    );
    assert!(
        !text.contains("sigmoid") && !text.contains("mul("),
        "{text}"
    );

    let mut f = program.functions()[0].clone();
    let mut patch = Patch::new();
    patch.remove(f.body().ops[0]);
    assert!(
        patch
            .apply(&mut f)
            .unwrap_err()
            .to_string()
            .contains("still used")
    );
}
