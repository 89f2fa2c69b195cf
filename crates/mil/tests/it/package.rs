//! Writes packages, reads them and writes them again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use thane_mil::build::FunctionBuilder;
use thane_mil::data::{Data, Source};
use thane_mil::literal::Literal;
use thane_mil::opset::Opset;
use thane_mil::package::{
    Content, DefaultValue, Feature, Interface, Item, Package, Shape, SizeRange, check, items,
};
use thane_mil::program::{Arg, Program, difference};
use thane_mil::text::parse;
use thane_mil::types::{DType, Dim, TensorType, Type};

/// A computed constant. None of its bytes form an infinity or NaN.
struct Computed(usize, u8);

impl Source for Computed {
    fn byte_len(&self) -> usize {
        self.0
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        out.iter_mut()
            .enumerate()
            .for_each(|(i, b)| *b = ((offset + i) * 37 % 101) as u8 ^ self.1);
    }

    fn packed(&self) -> Option<thane_mil::data::Packed> {
        None
    }
}

fn computed(dtype: DType, shape: &[usize], seed: u8) -> Literal {
    let ty = TensorType::new(dtype, shape.iter().copied());
    let len = ty.byte_len().unwrap();
    Literal::Tensor(ty, Data::Source(std::sync::Arc::new(Computed(len, seed))))
}

/// A package with large and small weights of several types, a state, an input of flexible shape and
/// an input with a default value.
fn sample() -> Package {
    let mut b = FunctionBuilder::new("main", Opset::CoreMl8);
    let n = b.symbol();
    let x = b.input(
        "x",
        TensorType::new(DType::Fp16, [Dim::Known(3), n, Dim::Known(8)]),
    );
    let offset = b.input("offset", TensorType::new(DType::Fp16, [1usize]));
    let cache = b.input(
        "cache",
        Type::State(TensorType::new(DType::Fp16, [3usize, 11])),
    );
    let codes = computed(DType::Uint4, &[6, 8], 0);
    let scales = computed(DType::Fp16, &[6, 2], 1);
    let w = b.op(
        "constexpr_blockwise_shift_scale",
        "w",
        [
            ("data", Arg::Literal(codes)),
            ("scale", Arg::Literal(scales)),
        ],
    );
    let bias = b.constant("bias", computed(DType::Fp16, &[6], 2)).unwrap();
    let args = [
        ("x", Arg::Value(x)),
        ("weight", Arg::Value(w.unwrap())),
        ("bias", Arg::Value(bias)),
    ];
    let y = b.op("linear", "y", args).unwrap();
    let z = b
        .op(
            "add",
            "z",
            [("x", Arg::Value(y)), ("y", Arg::Value(offset))],
        )
        .unwrap();
    let read = b
        .op("read_state", "read", [("input", Arg::Value(cache))])
        .unwrap();
    let twice = b
        .op(
            "add",
            "twice",
            [("x", Arg::Value(read)), ("y", Arg::Value(read))],
        )
        .unwrap();
    let kept = b
        .op(
            "coreml_update_state",
            "kept",
            [("state", Arg::Value(cache)), ("value", Arg::Value(twice))],
        )
        .unwrap();
    let f = b.finish(&[("out", z), ("kept", kept)]);
    let mut package = Package::new(Program::new(vec![f]));
    package.metadata.author = "somebody".to_owned();
    package.metadata.user_defined = BTreeMap::from([
        ("b".to_owned(), "2".to_owned()),
        ("a".to_owned(), "1".to_owned()),
    ]);
    package
        .interfaces
        .insert("main".to_owned(), sample_interface());
    package
}

/// A range of sizes for `x` and a default value for `offset`.
fn sample_interface() -> Interface {
    let bounds = |lower, upper| SizeRange { lower, upper };
    let ranges = vec![bounds(3, Some(3)), bounds(2, Some(77)), bounds(8, Some(8))];
    let flexible = Feature {
        shape: Shape::Ranges {
            default: vec![3, 5, 8],
            ranges,
        },
        ..Feature::default()
    };
    let optional = Feature {
        optional: true,
        default_value: Some(DefaultValue::Float(0.5)),
        ..Feature::default()
    };
    let features = BTreeMap::from([("x".to_owned(), flexible), ("offset".to_owned(), optional)]);
    Interface {
        features,
        ..Interface::default()
    }
}

/// Every file of a folder with its bytes.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut out, mut pending) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(next) = pending.pop() {
        for entry in fs::read_dir(next).unwrap().map(|e| e.unwrap().path()) {
            if entry.is_dir() {
                pending.push(entry);
            } else {
                out.insert(
                    entry.strip_prefix(folder).unwrap().to_owned(),
                    fs::read(&entry).unwrap(),
                );
            }
        }
    }
    out
}

/// Writes and reads a package, and checks that the read package is written as the same bytes.
fn round_trip(package: &Package) -> Package {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a.mlpackage", "b.mlpackage"].map(|name| folder.path().join(name));
    package.write(&a, &[]).unwrap_or_else(|e| panic!("{e}"));
    let back = Package::open(&a).unwrap_or_else(|e| panic!("{e}"));
    back.write(&b, &[]).unwrap();
    assert!(contents(&a) == contents(&b), "the bytes differ");
    assert_eq!(back.metadata, package.metadata);
    assert_eq!(back.default_function, package.default_function);
    back
}

#[test]
fn a_package_survives_a_round_trip() {
    let package = sample();
    let back = round_trip(&package);
    assert_eq!(difference(&package.program, &back.program), None);
    let features = |p: &Package| p.interfaces["main"].features.clone();
    for (name, feature) in features(&package) {
        assert_eq!(features(&back)[&name], feature);
    }
}

#[test]
fn equal_constants_are_stored_once() {
    let mut b = FunctionBuilder::new("main", Opset::CoreMl7);
    let x = b.input("x", TensorType::new(DType::Fp32, [3usize, 50]));
    let shared = computed(DType::Fp32, &[3, 50], 7);
    let mut y = x;
    for (i, literal) in [
        shared.clone(),
        shared,
        computed(DType::Fp32, &[3, 50], 7),
        computed(DType::Fp32, &[3, 50], 8),
    ]
    .into_iter()
    .enumerate()
    {
        let c = b.constant(&format!("c{i}"), literal).unwrap();
        y = b
            .op("add", "y", [("x", Arg::Value(y)), ("y", Arg::Value(c))])
            .unwrap();
    }
    let package = Package::new(Program::new(vec![b.finish(&[("out", y)])]));
    let folder = tempfile::tempdir().unwrap();
    let summary = package
        .write(&folder.path().join("a.mlpackage"), &[])
        .unwrap();
    assert_eq!(
        (summary.n_constants, summary.weight_bytes),
        (2, 64 + 64 + 640 + 64 + 600)
    );
    round_trip(&package);
}

#[test]
fn a_package_is_lowered_to_its_oldest_opset() {
    for (dtype, opset) in [(DType::Fp32, Opset::CoreMl5), (DType::Fp16, Opset::CoreMl6)] {
        let mut b = FunctionBuilder::new("main", Opset::CoreMl8);
        let x = b.input("x", TensorType::new(dtype, [3usize, 5]));
        let y = b.op("tanh", "y", [("x", Arg::Value(x))]).unwrap();
        let package = Package::new(Program::new(vec![b.finish(&[("out", y)])])).in_lowest_opset();
        assert_eq!(round_trip(&package).program.functions()[0].opset, opset);
    }
    assert_eq!(
        sample().in_lowest_opset().program.functions()[0].opset,
        Opset::CoreMl8
    );
}

#[test]
fn items_are_stored_with_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mlpackage");
    let file = folder.path().join("vocabulary.txt");
    fs::write(&file, "a\nb\n").unwrap();
    let item = |author: &str, name: &str, content| Item {
        author: author.to_owned(),
        name: name.to_owned(),
        description: "contract".to_owned(),
        content,
    };
    let bytes = || Content::Bytes(b"{}".to_vec());
    let two = [
        item("ai.thane", "contract.json", bytes()),
        item("ai.thane", "vocabulary.txt", Content::File(file)),
    ];
    assert_eq!(sample().write(&path, &two).unwrap().item_bytes, 6);
    let mut stored = items(&path).unwrap();
    stored.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(
        stored.iter().map(|i| i.name.as_str()).collect::<Vec<_>>(),
        ["contract.json", "vocabulary.txt"]
    );
    assert_eq!(fs::read(&stored[0].path).unwrap(), b"{}");
    assert!(stored[0].path.ends_with("Data/ai.thane/contract.json"));
    Package::open(&path).unwrap();

    for (author, name, message) in [
        ("com.apple.CoreML", "model.mlmodel", "reserved for Core ML"),
        ("..", "contract.json", "valid file names"),
        ("ai.thane", "a/b", "valid file names"),
    ] {
        let error = sample()
            .write(
                &folder.path().join("b.mlpackage"),
                &[item(author, name, bytes())],
            )
            .unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        2,
        "a failed write leaves nothing"
    );
}

#[test]
fn a_package_is_replaced_only_on_demand() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mlpackage");
    sample().write(&path, &[]).unwrap();
    assert!(
        sample()
            .write(&path, &[])
            .unwrap_err()
            .to_string()
            .contains("already exists")
    );
    let mut other = sample();
    other.metadata.version = "2".to_owned();
    let opened = Package::open(&path).unwrap();
    other.replace(&path, &[]).unwrap();
    assert_eq!(Package::open(&path).unwrap().metadata.version, "2");
    assert_eq!(
        difference(&opened.program, &other.program),
        None,
        "the mapped data stays valid"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let taken = folder.path().join("notes");
    fs::create_dir(&taken).unwrap();
    assert!(
        sample()
            .replace(&taken, &[])
            .unwrap_err()
            .to_string()
            .contains("is not a package")
    );
}

/// Every function of the op fixtures whose inputs and outputs a package can have. Functions of
/// ios18 share one package.
#[test]
fn every_op_survives_a_package() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/ops");
    let mut n = 0;
    for file in fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
        let program = parse(&fs::read_to_string(&file).unwrap(), &|_, _, _| None).unwrap();
        let single = program.functions().iter().map(|f| {
            let mut f = f.clone();
            f.name = "main".to_owned();
            Package::new(Program::new(vec![f]))
        });
        let good: Vec<Package> = single.filter(|package| check(package).is_ok()).collect();
        n += good.len();
        match program.functions()[0].opset {
            Opset::CoreMl8 => {
                let f = |(i, p): (usize, &Package)| {
                    let mut f = p.program.functions()[0].clone();
                    f.name = format!("case_{i}");
                    f
                };
                if !good.is_empty() {
                    round_trip(&Package::new(Program::new(
                        good.iter().enumerate().map(f).collect(),
                    )));
                }
            }
            _ => good.iter().for_each(|package| _ = round_trip(package)),
        }
    }
    assert!(n > 300, "{n} functions");
}

/// Packages written by coremltools (tests/oracle/make_packages.py) survive a round trip.
#[test]
fn packages_of_coremltools_survive_a_round_trip() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/packages");
    let mut faults = Vec::new();
    let mut n = 0;
    for path in fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
        n += 1;
        match Package::open(&path) {
            Ok(package) => {
                let back = round_trip(&package);
                assert_eq!(
                    difference(&package.program, &back.program),
                    None,
                    "{}",
                    path.display()
                );
                assert_eq!(back.interfaces, package.interfaces, "{}", path.display());
            }
            Err(e) => faults.push(e.to_string()),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(n >= 21, "{n} packages");
}

/// A compiled model contains the same program as its package.
#[test]
fn compiled_models_survive_a_round_trip() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/packages");
    let read = |name: &str| Package::open(&folder.join(name).with_extension("mlpackage")).unwrap();
    let mut packages = vec![("sample".to_owned(), sample())];
    for entry in fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()) {
        let name = entry.file_stem().unwrap().to_string_lossy().into_owned();
        packages.extend((name != "enumerated").then(|| (name.clone(), read(&name))));
    }
    assert!(packages.len() >= 21, "{} packages", packages.len());
    for (name, package) in packages {
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = ["a.mlmodelc", "b.mlmodelc"].map(|name| folder.path().join(name));
        let summary = package.write_compiled(&a).unwrap();
        let mut back = Package::open(&a).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(
            (back.metadata.clone(), &back.default_function),
            (package.metadata.clone(), &package.default_function)
        );
        if package.program.attributes.is_empty() {
            back.program.attributes.clear();
        }
        assert_eq!(difference(&package.program, &back.program), None, "{name}");
        assert_eq!(back.write_compiled(&b).unwrap(), summary);
        assert!(contents(&a) == contents(&b), "{name}: the bytes differ");
        assert!(
            package
                .write_compiled(&a)
                .unwrap_err()
                .to_string()
                .contains("already exists")
        );
    }
    let error = read("enumerated")
        .write_compiled(&std::env::temp_dir().join("none.mlmodelc"))
        .unwrap_err();
    assert!(
        error.to_string().contains("enumerated shapes of `x`"),
        "{error}"
    );
}

/// Inputs with a single shape are not listed. Source: published files of Apple's compiler.
#[test]
fn compiled_text_has_the_shapes_of_flexible_inputs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mlmodelc");
    sample().write_compiled(&path).unwrap();
    let text = fs::read_to_string(path.join("model.mil")).unwrap();
    for shapes in [
        r#"("DefaultShapes", {{"x", [3, 5, 8]}})"#,
        r#"("RangeDims", {{"x", [[3, 3], [2, 77], [8, 8]]}})"#,
    ] {
        assert!(text.contains(shapes), "{text}");
    }
}

/// Source of the layout: published files of Apple's compiler.
#[test]
fn compiled_descriptions_have_a_header() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mlmodelc");
    sample().write_compiled(&path).unwrap();
    let file = path.join("coremldata.bin");
    let good = fs::read(&file).unwrap();
    assert_eq!(good[..8], [0xf6, 1, 0, 0, 9, 0, 0, 0]);
    assert_eq!(good[0x1c..0x2c], *b"\x07\0\0\0\0\0\0\0generic\x09");
    assert_eq!(
        usize::from(good[0x4b]) + 256 * usize::from(good[0x4c]),
        good.len() - 0x53 - 16
    );
    assert_eq!(good[good.len() - 16..][..5], [0xf6, 1, 0, 0, 0]);
    for (at, byte, message) in [
        (0, 0, "of kind 256"),
        (0x24, 0, "a header of unknown layout"),
        (0x4f, 1, "bytes of description"),
        (0x53, 0xff, ""),
    ] {
        let mut bad = good.clone();
        bad[at] = byte;
        fs::write(&file, bad).unwrap();
        let error = Package::open(&path).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    fs::write(&file, &good[..0x40]).unwrap();
    assert!(
        Package::open(&path)
            .unwrap_err()
            .to_string()
            .contains("is truncated inside its header")
    );
    fs::write(&file, &good).unwrap();
    let text = fs::read_to_string(path.join("model.mil")).unwrap();
    for (from, to, message) in [
        (
            "offset = uint64(64)",
            "offset = uint64(65)",
            "expected a multiple of 64",
        ),
        (
            "@model_path/weights/weight.bin",
            "@model_path/../weight.bin",
            "which is not inside the package",
        ),
        ("linear(", "frob(", "opset ios18 has no op `frob`"),
        ("\n    func", "\n    funk", "line 4"),
    ] {
        let changed = text.replace(from, to);
        assert_ne!(changed, text, "{from}");
        fs::write(path.join("model.mil"), changed).unwrap();
        let error = Package::open(&path).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}
