//! Damaged packages: opening each one is an error that names the fault.

mod descriptions;
mod ops;
mod programs;
mod values;

use std::fs;
use std::path::PathBuf;

use prost::Message;

use thane_mil::data::Data;
use thane_mil::package::Package;
use thane_mil::package::proto::{
    self, array_feature_type, binding, dimension, feature_type, immediate_value, tensor_value,
    value, value_type,
};
use thane_mil::program::difference;
use thane_mil::text::parse;
use thane_mil::types::TensorType;

const MODEL: &str = "Data/com.apple.CoreML/model.mlmodel";
const WEIGHTS: &str = "Data/com.apple.CoreML/weights/weight.bin";

const TEXT: &str = r#"program(1.3)
[buildInfo = dict<string, string>({{"tool", "1"}})]
{
    func main<ios18>(tensor<fp32, [3, ?]> x, state<tensor<fp16, [3, 11]>> cache) {
        tensor<fp32, [4, 12]> w = const()[val =
            tensor<fp32, [4, 12]>(BLOBFILE(path = string("w"), offset = uint64(1)))];
        tensor<fp16, [4, 12]> p = constexpr_blockwise_shift_scale(
            data = tensor<int4, [4, 12]>(BLOBFILE(path = string("w"), offset = uint64(2))),
            scale = tensor<fp16, [4, 3]>(BLOBFILE(path = string("w"), offset = uint64(3))));
        tensor<fp32, [4]> b = const()[val = tensor<fp32, [4]>([0x1p-1, 2, -3, 4])];
        tensor<int32, [2]> axes = const()[val = tensor<int32, [2]>([0, 1])];
        tensor<fp32, [3, 12]> a = slice_by_index(
            x = x, begin = tensor<int32, [2]>([0, 0]), end = tensor<int32, [2]>([3, 12]));
        tensor<fp32, [3, 4]> y = linear(x = a, weight = w, bias = b);
        fp32 sum = reduce_sum(x = y, axes = axes, keep_dims = bool(false));
        bool small = less(x = sum, y = fp32(0x1p+3));
        tensor<fp32, [3, 4]> z = cond(pred = small) {
            block() { tensor<fp32, [3, 4]> t = relu(x = y); } -> (t);
            block() { tensor<fp32, [3, 4]> u = tanh(x = y); } -> (u);
        };
        tensor<fp32, [6, 4]> j = concat(values = (z, y), axis = int32(0), interleave = bool(false));
        tensor<fp16, [3, 11]> r = read_state(input = cache);
        tensor<fp16, [3, 11]> k = coreml_update_state(state = cache, value = r);
    } -> (j, k);
}
"#;

fn sample() -> Package {
    let resolve = |_: &str, seed: u64, ty: &TensorType| {
        Some(Data::owned(
            (0..ty.byte_len()?)
                .map(|i| (i * 37 % 101) as u8 ^ seed as u8)
                .collect(),
        ))
    };
    Package::new(parse(TEXT, &resolve).unwrap())
}

/// A temporary folder with the sample package.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        sample().write(&folder.path(), &[]).unwrap();
        folder
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("a.mlpackage")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    fn model(&self) -> proto::Model {
        proto::Model::decode(fs::read(self.file(MODEL)).unwrap().as_slice()).unwrap()
    }

    /// What opening it says other than `message`, if anything.
    fn fault(&self, case: &str, message: &str) -> Option<String> {
        match Package::open(&self.path()) {
            Ok(_) => Some(format!("{case}: it is opened")),
            Err(e) if !e.to_string().contains(message) => {
                Some(format!("{case}: {e} lacks {message:?}"))
            }
            Err(_) => None,
        }
    }
}

type Change<T> = (&'static str, fn(&mut T), &'static str);

fn main_function(model: &mut proto::Model) -> &mut proto::Function {
    model
        .ml_program
        .as_mut()
        .unwrap()
        .functions
        .get_mut("main")
        .unwrap()
}

fn body(model: &mut proto::Model) -> &mut proto::Block {
    main_function(model)
        .block_specializations
        .get_mut("CoreML8")
        .unwrap()
}

/// The first op of a type.
fn op<'a>(model: &'a mut proto::Model, ty: &str) -> &'a mut proto::Operation {
    body(model)
        .operations
        .iter_mut()
        .find(|o| o.r#type == ty)
        .unwrap()
}

fn description(model: &mut proto::Model) -> &mut proto::ModelDescription {
    model.description.as_mut().unwrap()
}

fn input(model: &mut proto::Model) -> &mut proto::FeatureDescription {
    &mut description(model).input[0]
}

fn array(model: &mut proto::Model) -> &mut proto::ArrayFeatureType {
    match input(model)
        .r#type
        .as_mut()
        .unwrap()
        .r#type
        .as_mut()
        .unwrap()
    {
        feature_type::Type::MultiArray(array) => array,
        other => panic!("{other:?}"),
    }
}

fn ranges(model: &mut proto::Model) -> &mut Vec<proto::SizeRange> {
    match array(model).flexibility.as_mut().unwrap() {
        array_feature_type::ShapeFlexibility::Range(range) => &mut range.size_ranges,
        other => panic!("{other:?}"),
    }
}

fn tensor(ty: &mut Option<proto::ValueType>) -> &mut proto::TensorType {
    match ty.as_mut().unwrap().r#type.as_mut().unwrap() {
        value_type::Type::Tensor(t) => t,
        other => panic!("{other:?}"),
    }
}

fn size(n: u64) -> proto::Dimension {
    proto::Dimension {
        dimension: Some(dimension::Dimension::Constant(dimension::Constant {
            size: n,
        })),
    }
}

/// The value of the n-th constant.
fn constant(model: &mut proto::Model, n: usize) -> &mut proto::Value {
    let op = body(model)
        .operations
        .iter_mut()
        .filter(|o| o.r#type == "const")
        .nth(n)
        .unwrap();
    op.attributes.get_mut("val").unwrap()
}

fn blob(model: &mut proto::Model) -> &mut value::BlobFileValue {
    match constant(model, 0).value.as_mut().unwrap() {
        value::Value::BlobFile(blob) => blob,
        other => panic!("{other:?}"),
    }
}

fn immediate(value: &mut proto::Value) -> &mut proto::ImmediateValue {
    match value.value.as_mut().unwrap() {
        value::Value::Immediate(value) => value,
        other => panic!("{other:?}"),
    }
}

fn elements(value: &mut proto::Value) -> &mut tensor_value::Value {
    match immediate(value).value.as_mut().unwrap() {
        immediate_value::Value::Tensor(t) => t.value.as_mut().unwrap(),
        other => panic!("{other:?}"),
    }
}

fn names(list: &[&str]) -> proto::Argument {
    let binding = |name: &&str| proto::Binding {
        binding: Some(binding::Binding::Name((*name).to_owned())),
    };
    proto::Argument {
        arguments: list.iter().map(binding).collect(),
    }
}

/// Found by fuzzing: ops that were read without names were written with names, so that the program
/// changed.
#[test]
fn ops_without_a_name_get_the_name_of_their_result() {
    fn forget(block: &mut proto::Block) {
        for op in &mut block.operations {
            op.attributes.remove("name");
            op.blocks.iter_mut().for_each(forget);
        }
    }
    let folder = Folder::new();
    let named = Package::open(&folder.path()).unwrap();
    let mut model = folder.model();
    forget(body(&mut model));
    fs::write(folder.file(MODEL), model.encode_to_vec()).unwrap();
    let unnamed = Package::open(&folder.path()).unwrap();
    assert_eq!(difference(&named.program, &unnamed.program), None);
}

#[test]
fn inconsistent_models_are_rejected() {
    let folder = Folder::new();
    let good = fs::read(folder.file(MODEL)).unwrap();
    let mut faults = Vec::new();
    for (case, change, message) in [
        programs::PROGRAMS,
        ops::OPS,
        values::VALUES,
        descriptions::DESCRIPTIONS,
    ]
    .into_iter()
    .flatten()
    {
        let mut model = folder.model();
        change(&mut model);
        fs::write(folder.file(MODEL), model.encode_to_vec()).unwrap();
        faults.extend(folder.fault(case, message));
        fs::write(folder.file(MODEL), &good).unwrap();
    }
    Package::open(&folder.path()).unwrap();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Changes single bytes of the header and of the first record.
#[test]
fn damaged_weight_files_are_rejected() {
    let folder = Folder::new();
    let offset = blob(&mut folder.model()).offset as usize;
    let good = fs::read(folder.file(WEIGHTS)).unwrap();
    let mut faults = Vec::new();
    for (at, byte, message) in [
        (4, 1, "has weight storage version 1,"),
        (7, 1, "has weight storage version 16777218"),
        (
            offset,
            0,
            "expected a record that starts with 0xdeadbeef, found 0xdeadbe00",
        ),
        (offset + 3, 0, "expected a record that starts with"),
        (
            offset + 4,
            1,
            "expected tensor<fp32, [4, 12]> as the program declares, found fp16",
        ),
        (offset + 4, 99, "found an unknown type"),
        (offset + 7, 1, "found an unknown type"),
        (offset + 8, 0, "as the program declares, found 0 bytes"),
        (
            offset + 15,
            255,
            "expected tensor<fp32, [4, 12]> as the program declares",
        ),
        (offset + 17, 255, "reaches beyond the end"),
        (offset + 23, 255, "reaches beyond the end"),
        (offset + 16, 0, "inside the header"),
    ] {
        let mut bad = good.clone();
        bad[at] = byte;
        fs::write(folder.file(WEIGHTS), bad).unwrap();
        faults.extend(folder.fault(&format!("byte {at}"), message));
    }
    for n in [0, 7, 63] {
        fs::write(folder.file(WEIGHTS), &good[..n]).unwrap();
        faults.extend(folder.fault(&format!("{n} bytes"), "is truncated inside its header"));
    }
    for n in (64..good.len()).step_by(17) {
        fs::write(folder.file(WEIGHTS), &good[..n]).unwrap();
        faults.extend(folder.fault(&format!("{n} bytes"), "beyond the end"));
    }
    fs::remove_file(folder.file(WEIGHTS)).unwrap();
    faults.extend(folder.fault("no weights", "weight.bin"));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn damaged_folders_are_rejected() {
    let folder = Folder::new();
    let manifest = fs::read_to_string(folder.file("Manifest.json")).unwrap();
    let mut faults = Vec::new();
    for (from, to, message) in [
        ("\"1.0.0\"", "\"2.0.0\"", "has format version \"2.0.0\""),
        (
            "\"fileFormatVersion\"",
            "\"version\"",
            "is not a valid manifest: missing field",
        ),
        (
            "\"rootModelIdentifier\": \"",
            "\"rootModelIdentifier\": \"0",
            "does not name the item that is the model",
        ),
        (
            "com.apple.CoreML/model.mlmodel",
            "com.apple.CoreML/other.mlmodel",
            "other.mlmodel",
        ),
        (
            "com.apple.CoreML/model.mlmodel",
            "com.apple.CoreML",
            "is not a regular file",
        ),
        (
            "com.apple.CoreML/model.mlmodel",
            "../../secret",
            "is not in the package's folder",
        ),
        (
            "com.apple.CoreML/model.mlmodel",
            "/etc/passwd",
            "is not in the package's folder",
        ),
        (
            "com.apple.CoreML/model.mlmodel",
            "",
            "is not in the package's folder",
        ),
        (
            "com.apple.CoreML/model.mlmodel",
            "com.apple.CoreML/../com.apple.CoreML/model.mlmodel",
            "is not in the package's folder",
        ),
        ("{", "[", "is not a valid manifest"),
    ] {
        let changed = manifest.replacen(from, to, if from == "{" { 1 } else { 9 });
        assert_ne!(changed, manifest, "{from}");
        fs::write(folder.file("Manifest.json"), changed).unwrap();
        faults.extend(folder.fault(to, message));
    }
    for n in [0, 1, manifest.len() / 2, manifest.len() - 3] {
        fs::write(folder.file("Manifest.json"), &manifest[..n]).unwrap();
        faults.extend(folder.fault(&format!("{n} bytes"), "is not a valid manifest"));
    }
    fs::write(folder.file("Manifest.json"), " ".repeat(2 << 20)).unwrap();
    faults.extend(folder.fault("a long manifest", "is longer than"));
    fs::write(folder.file("Manifest.json"), &manifest).unwrap();
    fs::remove_file(folder.file(MODEL)).unwrap();
    faults.extend(folder.fault("no model", "model.mlmodel"));
    fs::remove_file(folder.file("Manifest.json")).unwrap();
    faults.extend(folder.fault("no manifest", "has no Manifest.json"));
    fs::remove_dir_all(folder.path()).unwrap();
    faults.extend(folder.fault("nothing", "a.mlpackage"));
    fs::write(folder.path(), "x").unwrap();
    faults.extend(folder.fault("a file", "is a file"));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[cfg(unix)]
#[test]
fn links_out_of_a_package_are_rejected() {
    for name in [
        MODEL,
        WEIGHTS,
        "Manifest.json",
        "Data/com.apple.CoreML/weights",
    ] {
        let folder = Folder::new();
        let outside = folder.0.path().join("outside");
        fs::rename(folder.file(name), &outside).unwrap();
        std::os::unix::fs::symlink(&outside, folder.file(name)).unwrap();
        assert_eq!(folder.fault(name, "is a link out of the package"), None);
        // A link that stays inside is resolved.
        fs::remove_file(folder.file(name)).unwrap();
        fs::rename(&outside, folder.file("inside")).unwrap();
        std::os::unix::fs::symlink(folder.file("inside"), folder.file(name)).unwrap();
        Package::open(&folder.path()).unwrap();
    }
}

/// Truncated model files and flipped bits give an error or another model, never a panic.
#[test]
fn damaged_model_files_do_not_panic() {
    let folder = Folder::new();
    let good = fs::read(folder.file(MODEL)).unwrap();
    for n in (0..good.len()).step_by(29) {
        fs::write(folder.file(MODEL), &good[..n]).unwrap();
        assert_eq!(folder.fault(&format!("{n} bytes"), "model.mlmodel"), None);
    }
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    for _ in 0..200 {
        let mut bad = good.clone();
        for _ in 0..2 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let at = (random >> 33) as usize % bad.len();
            bad[at] ^= 1 << (random >> 60 & 7);
        }
        fs::write(folder.file(MODEL), bad).unwrap();
        if let Ok(package) = Package::open(&folder.path()) {
            let _ = package.replace(&folder.0.path().join("b.mlpackage"), &[]);
        }
    }
}
