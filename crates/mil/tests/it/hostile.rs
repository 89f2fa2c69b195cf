//! Hostile texts and programs: each gives an error with a reason, or survives a round trip.

use thane_mil::build::FunctionBuilder;
use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::opset::Opset;
use thane_mil::package::PackageError;
use thane_mil::program::{Program, difference};
use thane_mil::text::{Blobs, ParseError, parse, print};
use thane_mil::types::{DType, TensorType};
use thane_mil::valid;

/// Parses a function with this body. Every byte of a constant in a weight file is its offset.
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
fn hostile_texts_are_rejected_with_a_reason() {
    let nested = format!(
        "uint64(BLOBFILE(path = string(\"w\"), offset = {}",
        "uint64(BLOBFILE(offset = ".repeat(50_000)
    );
    for (body, message) in [
        // The smallest exponent has no absolute value.
        (
            "fp32 y = const()[val = fp32(0x1p-2147483648)];".to_owned(),
            "expected a number of type \
                                                                       fp32",
        ),
        (
            format!("uint64 y = const()[val = {nested}];"),
            "nested deeper",
        ),
        (
            format!("tensor<fp32, [{}1]> y = relu(x = x);", "1, ".repeat(32)),
            "found rank 33",
        ),
        (
            "tensor<fp32, [2, 3]> fp16 = relu(x = x);".to_owned(),
            "`fp16` is the name of a type and \
                                                                 cannot name a value",
        ),
        (blob("string", 0), "found no string"),
        (
            "tensor<fp32, [2, 3]> y = reduce_sum(x = x, axes = tensor<int32, [2]>([0, \
          -2]));"
                .to_owned(),
            "expected distinct axes, found 0 twice",
        ),
        (
            "tensor<fp32, [2, 3]> y = expand_dims(x = x, axes = tensor<int32, [2]>([1, \
          1]));"
                .to_owned(),
            "expected distinct axes, found 1 twice",
        ),
        (
            "tensor<fp32, [2, 3]> y = gather(x = x, indices = tensor<int32, [3, 1]>([[0], [0], \
             [0]]), axis = int32(1), \
             batch_dims = int32(1));"
                .to_owned(),
            "expected the first 1 dimensions of `x`",
        ),
    ] {
        let error = parsed(&body).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(message), "{error:?} lacks {message:?}");
    }
}

/// Every valid program can be printed and parsed, so constants without a text form are invalid.
#[test]
fn constants_without_a_text_form_are_invalid() {
    for (ty, offset, message) in [
        ("fp64", 0xff, "have no text form"),
        ("tensor<bool, [3]>", 2, "not a valid bool"),
        ("tensor<int4, [3]>", 0xff, "not a valid int4"),
        (
            "tensor<fp32, [1099511627776, 0]>",
            0,
            "is empty and too long to print",
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

/// A constant in a missing weight file could claim any size.
#[test]
fn constants_in_missing_files_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mil");
    for (ty, refused) in [
        ("tensor<fp16, [262144, 5376]>", None),
        (
            "tensor<fp16, [1099511627776]>",
            Some("2199023255552 bytes: expected at most 8589934592 bytes"),
        ),
        (
            "tensor<int32, [1073741824]>",
            Some("4294967296 bytes: expected at most 67108864 bytes"),
        ),
        ("tensor<bool, [4096]>", Some("weight files hold no bool")),
    ] {
        let blob = blob(ty, 64).replace("\"w\"", "\"@model_path/weights/weight.bin\"");
        let more = blob.replace(" y = ", " z = ");
        let text = format!(
            "program(1.3)\n{{\n func main<ios18>(tensor<fp32, [2, 3]> x) {{\n{blob}\n{more}\n}} \
             -> (x);\n}}"
        );
        std::fs::write(&path, text).unwrap();
        match thane_mil::package::read_source(&path) {
            Ok(source) => {
                assert!(refused.is_none() && source.n_absent == 2, "{ty}");
                // Zeros compare equal without reading them.
                assert!(
                    print(&source.program, &mut Blobs::default())
                        .matches("uint64(64)")
                        .count()
                        == 2
                );
            }
            Err(e) => {
                let (said, why) = (e.to_string(), refused.expect("a type that is refused"));
                assert!(
                    said.contains(why) && said.contains("in the missing file"),
                    "{ty}: {said}"
                );
            }
        }
    }
}

/// Elements that text cannot express go to the weight file, however few there are.
#[test]
fn nan_with_a_payload_survives_a_round_trip() {
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

/// Infinities and NaN in the spelling of Apple's compiler are legal and survive a round trip.
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
fn literals_survive_a_round_trip() {
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
fn type_names_are_renamed_and_input_ranks_are_checked() {
    let mut b = FunctionBuilder::new("main", Opset::CoreMl8);
    let x = b.input("tensor", TensorType::new(DType::Fp32, [1usize; 6]));
    let program = Program::new(vec![b.finish(&[("int32", x)])]);
    assert_eq!(program.functions()[0].value(x).name, "_int32");
    let errors = valid::check(&program).unwrap_err();
    assert!(
        errors.iter().all(|e| e.message.contains("rank 5 or less")),
        "{errors:?}"
    );
}

#[test]
fn only_constexpr_ops_take_constants_of_high_rank() {
    let ty = "tensor<fp32, [1, 1, 1, 1, 2, 3]>";
    let body = format!(
        "{} tensor<fp32, [1, 1, 1, 1, 2, 1]> z = reduce_sum(x = y, axes = tensor<int32, \
         [1]>([5]), keep_dims = bool(true));",
        blob(ty, 1)
    );
    let errors = valid::check(&parsed(&body).unwrap()).unwrap_err();
    assert!(
        errors[0]
            .message
            .contains("only constexpr ops take higher ranks"),
        "{errors:?}"
    );
}

/// Each of many violations could repeat names that are as long as the program.
#[test]
fn violations_are_bounded() {
    let name = "n".repeat(100_000);
    let op = |i: usize| format!("tensor<fp32, [2]> v.{i} = relu(x = x);\n");
    let ops: String = (0..2000).map(op).collect();
    let text = format!(
        "program(1.3)\n{{\n func {name}<ios18>(tensor<fp32, [2]> x) {{\n{ops}}} -> (x);\n}}"
    );
    let program = parse(&text, &|_, _, _| None);
    let violations = valid::check(&program.unwrap()).unwrap_err();
    assert_eq!(violations.len(), valid::MAX_VIOLATIONS);
    let told = PackageError::Invalid {
        path: "m".into(),
        violations: violations.clone(),
    };
    assert!(
        told.to_string()
            .starts_with("m violates at least 1000 rules\n")
    );
    let n_bytes = |v: &valid::Violation| v.function.len() + v.place.len() + v.message.len();
    assert!(violations.iter().map(n_bytes).max() <= Some(3000));
}

/// A value of a nested block is not visible behind it, and those before the block still are.
#[test]
fn values_of_nested_blocks_end_with_them() {
    let block = "block() { tensor<fp32, [2, 3]> a = relu(x = x); } -> (a);";
    let other = block.replace("a =", "b =").replace("(a)", "(b)");
    let after = |used: &str| {
        format!(
            "tensor<fp32, [2, 3]> c = relu(x = x);\n\
             tensor<fp32, [2, 3]> y = cond(pred = bool(true)) {{ {block} {other} }};\n\
             tensor<fp32, [2, 3]> z = add(x = c, y = {used});"
        )
    };
    valid::check(&parsed(&after("y")).unwrap()).unwrap();
    let error = parsed(&after("a")).map(|_| ()).unwrap_err().to_string();
    assert!(
        error.contains("expected a defined value, found `a`"),
        "{error}"
    );
}

/// An error has at most 400 characters of a long message, its start and its end.
#[test]
fn errors_quote_little_of_a_long_text() {
    let long = "q".repeat(5000);
    for (body, expected) in [
        (
            format!(
                "tensor<fp16, [4]> y = einsum(values = (x, x), equation = string(\"{long}\"));"
            ),
            "`equation`: expected the form",
        ),
        (
            format!("tensor<fp16, [4]> y = {long}(x = x);"),
            "has no op `qqq",
        ),
        (format!("{long} y = tan(x = x);"), "unknown type `qqq"),
        (format!("int32 {long} = tan(x = x);"), "`qqq"),
    ] {
        let found = parsed(&body).unwrap_err().message;
        assert!(found.chars().count() <= 400, "{found}");
        assert!(found.contains(expected), "{found}");
    }
}
