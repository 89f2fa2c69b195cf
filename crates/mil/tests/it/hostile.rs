//! Texts and programs that are made to break what reads them: each is an error with a reason, or
//! reads back equal.

use thane_mil::build::FunctionBuilder;
use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::opset::Opset;
use thane_mil::program::{Program, difference};
use thane_mil::text::{Blobs, ParseError, parse, print};
use thane_mil::types::{DType, TensorType};
use thane_mil::valid;

/// A function of these statements; constants of a weight file are bytes of the offset's value.
fn parsed(body: &str) -> Result<Program, ParseError> {
    let text = format!(
        "program(1.3)\n{{\n func main<ios18>(tensor<fp32, [2, 3]> x) {{\n{body}\n}} -> (x);\n}}"
    );
    let resolve = |_: &str, offset: u64, ty: &TensorType| {
        Some(Data::owned(vec![offset as u8; ty.byte_len()?]))
    };
    parse(&text, &resolve)
}

fn blob(ty: &str, offset: u64) -> String {
    format!(
        "{ty} y = const()[val = {ty}(BLOBFILE(path = string(\"w\"), offset = uint64({offset})))];"
    )
}

#[test]
fn texts_are_refused_with_a_reason() {
    let nested = format!(
        "uint64(BLOBFILE(path = string(\"w\"), offset = {}",
        "uint64(BLOBFILE(offset = ".repeat(50_000)
    );
    for (body, message) in [
        // The smallest exponent has no absolute value.
        ("fp32 y = const()[val = fp32(0x1p-2147483648)];".to_owned(), "is no fp32"),
        (format!("uint64 y = const()[val = {nested}];"), "nested deeper"),
        (format!("tensor<fp32, [{}1]> y = relu(x = x);", "1, ".repeat(32)), "33 dimensions"),
        ("tensor<fp32, [2, 3]> fp16 = relu(x = x);".to_owned(), "`fp16` is a type and cannot name a value"),
        (blob("string", 0), "there is no string"),
        ("tensor<fp32, [2, 3]> y = reduce_sum(x = x, axes = tensor<int32, [2]>([0, -2]));".to_owned(), "axis 0 twice"),
        ("tensor<fp32, [2, 3]> y = expand_dims(x = x, axes = tensor<int32, [2]>([1, 1]));".to_owned(), "axis 1 twice"),
        (
            "tensor<fp32, [2, 3]> y = gather(x = x, indices = tensor<int32, [3, 1]>([[0], [0], [0]]), axis = int32(1), \
             batch_dims = int32(1));"
                .to_owned(),
            "differ in the first 1 axes",
        ),
    ] {
        let error = parsed(&body).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(message), "{error:?} lacks {message:?}");
    }
}

/// What is accepted can be printed and read back, so what has no text is refused.
#[test]
fn constants_without_a_text_are_not_valid() {
    for (ty, offset, message) in [
        ("fp64", 0xff, "have no text"),
        ("tensor<bool, [3]>", 2, "no bool"),
        ("tensor<int4, [3]>", 0xff, "no int4"),
        (
            "tensor<fp32, [1099511627776, 0]>",
            0,
            "is empty and cannot be written",
        ),
    ] {
        let program = parsed(&blob(ty, offset)).unwrap();
        let errors = valid::check(&program).unwrap_err();
        assert!(
            errors.iter().any(|e| e.message.contains(message)),
            "{ty}: {errors:?} lacks {message:?}"
        );
    }
    let mut program = parsed("").unwrap();
    let payload = Literal::f32(f32::from_bits(0x7fc0_0001));
    let tuple = Literal::Tuple(vec![payload]);
    program.attributes.push(("a".to_owned(), tuple));
    assert_eq!(valid::check(&program).unwrap_err()[0].place, "attributes");
}

/// Issue 30, 3.5: a constant whose file is not there takes as much as the text says.
#[test]
fn constants_that_are_absent_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mil");
    for (ty, is_read) in [
        ("tensor<fp16, [262144, 5376]>", true),
        ("tensor<fp16, [1099511627776]>", false),
        ("tensor<int32, [1073741824]>", false),
        ("tensor<bool, [4096]>", false),
    ] {
        let blob = blob(ty, 64).replace("\"w\"", "\"@model_path/weights/weight.bin\"");
        let more = blob.replace(" y = ", " z = ");
        let text = format!(
            "program(1.3)\n{{\n func main<ios18>(tensor<fp32, [2, 3]> x) {{\n{blob}\n{more}\n}} -> (x);\n}}"
        );
        std::fs::write(&path, text).unwrap();
        match thane_mil::package::read_source(&path) {
            Ok(source) => {
                assert!(is_read && source.n_absent == 2, "{ty}");
                // Zeros are equal without a look at them.
                assert!(
                    print(&source.program, &mut Blobs::default())
                        .matches("uint64(64)")
                        .count()
                        == 2
                );
            }
            Err(e) => assert!(
                !is_read && e.to_string().contains("no weight file holds"),
                "{ty}: {e}"
            ),
        }
    }
}

/// What text cannot spell goes to the weight file, however small it is.
#[test]
fn nan_with_a_payload_reads_back_equal() {
    for (ty, offset) in [
        ("fp32", 0xff),
        ("tensor<bf16, [3]>", 0xff),
        ("tensor<fp8e5m2, [3]>", 1),
        ("fp16", 0x7c),
    ] {
        let program = parsed(&blob(ty, offset)).unwrap();
        valid::check(&program).unwrap();
        let mut blobs = Blobs::default();
        let text = print(&program, &mut blobs);
        let back = parse(&text, &|_, offset, ty: &TensorType| blobs.get(offset, ty)).unwrap();
        assert_eq!(
            (difference(&program, &back), blobs.len()),
            (None, 1),
            "{text}"
        );
    }
}

/// Issue 30, 2.2: infinities and NaN, spelled as Apple's compiler spells them, are legal and read
/// back equal.
#[test]
fn infinities_and_nan_are_legal_in_text() {
    let body = "
        tensor<fp16, []> a = const()[name = tensor<string, []>(\"a\"), val = tensor<fp16, []>(inf)];
        tensor<fp16, [2]> b = const()[val = tensor<fp16, [2]>([-inf, 0x1.ffcp+15])];
        tensor<fp32, [3]> c = const()[val = tensor<fp32, [3]>([nan, -nan, -inf])];
        tensor<bf16, [2]> d = const()[val = tensor<bf16, [2]>([inf, nan])];
        tensor<fp64, []> e = const()[val = tensor<fp64, []>(-inf)];
        tensor<fp32, [2, 3]> y = clip(x = x, alpha = fp32(-inf), beta = fp32(+inf));
        list<fp16, 2> f = const()[val = list<fp16, 2>([nan, -0x1p-24])];";
    let program = parsed(body).unwrap();
    valid::check(&program).unwrap();
    let f = &program.functions()[0];
    let bits = |name: &str| {
        let op = f
            .all_ops()
            .into_iter()
            .map(|id| f.op(id))
            .find(|op| f.value(op.results[0]).name == name)
            .unwrap();
        let Some(Literal::Tensor(_, data)) = f.literal_arg(op, "val") else {
            panic!("{name}")
        };
        data.to_vec()
    };
    assert_eq!(bits("a"), 0x7c00u16.to_le_bytes());
    assert_eq!(
        bits("b"),
        [0xfc00u16, 0x7bff].map(u16::to_le_bytes).concat()
    );
    assert_eq!(
        bits("c"),
        [0x7fc0_0000u32, 0xffc0_0000, 0xff80_0000]
            .map(u32::to_le_bytes)
            .concat()
    );
    assert_eq!(
        bits("d"),
        [0x7f80u16, 0x7fc0].map(u16::to_le_bytes).concat()
    );
    assert_eq!(bits("e"), f64::NEG_INFINITY.to_le_bytes());
    let mut blobs = Blobs::default();
    let text = print(&program, &mut blobs);
    assert!(
        text.contains("([nan, -nan, -inf])") && text.contains("(inf)") && blobs.is_empty(),
        "{text}"
    );
    assert_eq!(
        difference(&program, &parse(&text, &|_, _, _| None).unwrap()),
        None,
        "{text}"
    );
}

#[test]
fn literals_read_back_equal() {
    let body = "
        tensor<bf16, [2]> a = const()[val = tensor<bf16, [2]>([0x1.8p+1, -0x1.fep+127])];
        tensor<fp32, [?, 3]> b = relu(x = x);
        list<tensor<int32, [?]>, ?> c = const()[val = list<tensor<int32, [?]>, 2>([[1], [2, 3]])];
        tensor<int64, [2, 0]> d = const()[val = tensor<int64, [2, 0]>([[], []])];";
    let program = parsed(body).unwrap();
    valid::check(&program).unwrap();
    let text = print(&program, &mut Blobs::default());
    assert_eq!(
        difference(&program, &parse(&text, &|_, _, _| None).unwrap()),
        None,
        "{text}"
    );
}

#[test]
fn names_of_types_are_changed_and_ranks_of_inputs_are_checked() {
    let mut b = FunctionBuilder::new("main", Opset::CoreMl8);
    let x = b.input("tensor", TensorType::new(DType::Fp32, [1usize; 6]));
    let program = Program::new(vec![b.finish(&[("int32", x)])]);
    assert_eq!(program.functions()[0].value(x).name, "_int32");
    let errors = valid::check(&program).unwrap_err();
    assert!(
        errors.iter().all(|e| e.message.contains("ranks above 5")),
        "{errors:?}"
    );
}

#[test]
fn constants_of_high_rank_are_for_constexpr_ops() {
    let ty = "tensor<fp32, [1, 1, 1, 1, 2, 3]>";
    let body = format!(
        "{} tensor<fp32, [1, 1, 1, 1, 2, 1]> z = reduce_sum(x = y, axes = tensor<int32, [1]>([5]), keep_dims = bool(true));",
        blob(ty, 1)
    );
    let errors = valid::check(&parsed(&body).unwrap()).unwrap_err();
    assert!(
        errors[0]
            .message
            .contains("ranks above 5 are for what constexpr ops use"),
        "{errors:?}"
    );
}
