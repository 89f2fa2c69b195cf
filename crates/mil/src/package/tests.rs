//! Packages that are made to break what reads them: each is an error that names what is wrong.

use std::fs;
use std::path::PathBuf;

use prost::Message;

use super::Package;
use super::proto::{
    self, array_feature_type, binding, dimension, feature_type, immediate_value, tensor_value,
    value, value_type,
};
use crate::data::Data;
use crate::program::difference;
use crate::text::parse;
use crate::types::TensorType;

const MODEL: &str = "Data/com.apple.CoreML/model.mlmodel";
const WEIGHTS: &str = "Data/com.apple.CoreML/weights/weight.bin";

const TEXT: &str = r#"program(1.3)
[buildInfo = dict<string, string>({{"tool", "1"}})]
{
    func main<ios18>(tensor<fp32, [3, ?]> x, state<tensor<fp16, [3, 11]>> cache) {
        tensor<fp32, [4, 12]> w = const()[val = tensor<fp32, [4, 12]>(BLOBFILE(path = string("w"), offset = uint64(1)))];
        tensor<fp16, [4, 12]> p = constexpr_blockwise_shift_scale(data = tensor<int4, [4, 12]>(BLOBFILE(path = string("w"), offset = uint64(2))), scale = tensor<fp16, [4, 3]>(BLOBFILE(path = string("w"), offset = uint64(3))));
        tensor<fp32, [4]> b = const()[val = tensor<fp32, [4]>([0x1p-1, 2, -3, 4])];
        tensor<int32, [2]> axes = const()[val = tensor<int32, [2]>([0, 1])];
        tensor<fp32, [3, 12]> a = slice_by_index(x = x, begin = tensor<int32, [2]>([0, 0]), end = tensor<int32, [2]>([3, 12]));
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

/// A package in a folder of its own.
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

const PROGRAMS: &[Change<proto::Model>] = &[
    ("no program", |m| m.ml_program = None, "holds no ML Program"),
    ("updatable", |m| m.is_updatable = true, "is updatable"),
    (
        "no description",
        |m| m.description = None,
        "the description does not have it",
    ),
    (
        "version",
        |m| m.ml_program.as_mut().unwrap().version = 2,
        "it is of version 2",
    ),
    (
        "no functions",
        |m| m.ml_program.as_mut().unwrap().functions.clear(),
        "the program has none",
    ),
    (
        "attribute",
        |m| {
            let program = m.ml_program.as_mut().unwrap();
            let info = program.attributes["buildInfo"].clone();
            program.attributes.insert("extra".to_owned(), info);
        },
        "`extra` is not `buildInfo`",
    ),
    (
        "empty attribute",
        |m| {
            m.ml_program
                .as_mut()
                .unwrap()
                .attributes
                .insert("buildInfo".to_owned(), proto::Value::default());
        },
        "a type is missing",
    ),
    (
        "unknown opset",
        |m| main_function(m).opset = "CoreML99".to_owned(),
        "it is of opset \"CoreML99\"; CoreML5",
    ),
    (
        "no body",
        |m| main_function(m).opset = "CoreML7".to_owned(),
        "has a body for [\"CoreML8\"] only",
    ),
    (
        "body with inputs",
        |m| {
            let input = main_function(m).inputs[0].clone();
            body(m).inputs.push(input);
        },
        "its body has inputs of its own",
    ),
    (
        "name of a function",
        |m| {
            let program = m.ml_program.as_mut().unwrap();
            let f = program.functions.remove("main").unwrap();
            program.functions.insert("a b".to_owned(), f);
            description(m).default_function_name = "a b".to_owned();
        },
        "its name is not an identifier",
    ),
    (
        "default function",
        |m| description(m).default_function_name = "other".to_owned(),
        "the program has none",
    ),
];

const OPS: &[Change<proto::Model>] = &[
    (
        "unknown op",
        |m| op(m, "linear").r#type = "frob".to_owned(),
        "ops that are not known: `frob` (ios18)",
    ),
    (
        "unknown nested op",
        |m| op(m, "cond").blocks[0].operations[0].r#type = "frob".to_owned(),
        "`frob` (ios18)",
    ),
    (
        "unknown input",
        |m| {
            op(m, "linear")
                .inputs
                .insert("frob".to_owned(), names(&["a"]));
        },
        "op `linear` `y`: it has no input `frob`",
    ),
    (
        "missing input",
        |m| {
            op(m, "linear").inputs.remove("x");
        },
        "`x` is missing",
    ),
    (
        "undefined value",
        |m| {
            op(m, "linear")
                .inputs
                .insert("x".to_owned(), names(&["nobody"]));
        },
        "input `x`: `nobody` is used before it is defined",
    ),
    (
        "own result",
        |m| {
            op(m, "linear").inputs.insert("x".to_owned(), names(&["y"]));
        },
        "`y` is used before it is defined",
    ),
    (
        "later value",
        |m| {
            op(m, "linear").inputs.insert("x".to_owned(), names(&["z"]));
        },
        "`z` is used before it is defined",
    ),
    (
        "value of a block",
        |m| {
            op(m, "concat")
                .inputs
                .insert("values".to_owned(), names(&["t", "y"]));
        },
        "`t` is used before it is defined",
    ),
    (
        "two values",
        |m| {
            op(m, "linear")
                .inputs
                .insert("x".to_owned(), names(&["a", "a"]));
        },
        "input `x` takes one value, not 2",
    ),
    (
        "no value",
        |m| {
            op(m, "linear").inputs.insert("x".to_owned(), names(&[]));
        },
        "input `x` takes one value, not 0",
    ),
    (
        "empty tuple",
        |m| {
            op(m, "concat")
                .inputs
                .insert("values".to_owned(), names(&[]));
        },
        "`values` must be a tuple",
    ),
    (
        "empty binding",
        |m| op(m, "linear").inputs.get_mut("x").unwrap().arguments[0].binding = None,
        "bound to nothing",
    ),
    (
        "wrong operand",
        |m| {
            op(m, "linear")
                .inputs
                .insert("weight".to_owned(), names(&["axes"]));
        },
        "`weight` is tensor<int32, [2]>",
    ),
    (
        "state as a tensor",
        |m| {
            op(m, "linear")
                .inputs
                .insert("x".to_owned(), names(&["cache"]));
        },
        "`x` is state<",
    ),
    (
        "tensor as a state",
        |m| {
            op(m, "read_state")
                .inputs
                .insert("input".to_owned(), names(&["y"]));
        },
        "State",
    ),
    (
        "attribute",
        |m| {
            let name = op(m, "linear").attributes["name"].clone();
            op(m, "linear").attributes.insert("frob".to_owned(), name);
        },
        "it has no attribute `frob`",
    ),
    (
        "name",
        |m| {
            let value = constant(m, 1).clone();
            op(m, "linear").attributes.insert("name".to_owned(), value);
        },
        "its attribute `name` is no string",
    ),
    (
        "const by input",
        |m| {
            op(m, "const")
                .inputs
                .insert("val".to_owned(), names(&["x"]));
        },
        "it has no input `val`",
    ),
    (
        "const without value",
        |m| {
            op(m, "const").attributes.remove("val");
        },
        "`val` is missing",
    ),
    (
        "fewer results",
        |m| op(m, "linear").outputs.clear(),
        "it gives 1 results, the file declares 0",
    ),
    (
        "more results",
        |m| {
            let output = op(m, "linear").outputs[0].clone();
            op(m, "linear").outputs.push(output);
        },
        "it gives 1 results, the file declares 2",
    ),
    (
        "no type",
        |m| op(m, "linear").outputs[0].r#type = None,
        "result `y`: a type is missing",
    ),
    (
        "other element type",
        |m| tensor(&mut op(m, "linear").outputs[0].r#type).data_type = 10,
        "`y` is declared tensor<fp16, [3, 4]>, the op gives tensor<fp32, [3, 4]>",
    ),
    (
        "other shape",
        |m| tensor(&mut op(m, "linear").outputs[0].r#type).dimensions[1] = size(5),
        "`y` is declared tensor<fp32, [3, 5]>",
    ),
    (
        "other rank",
        |m| {
            let ty = tensor(&mut op(m, "linear").outputs[0].r#type);
            ty.rank = 3;
            ty.dimensions.push(size(1));
        },
        "`y` is declared tensor<fp32, [3, 4, 1]>",
    ),
    (
        "false rank",
        |m| tensor(&mut op(m, "linear").outputs[0].r#type).rank = 3,
        "a tensor of rank 3 has 2 dimensions",
    ),
    (
        "negative rank",
        |m| tensor(&mut op(m, "linear").outputs[0].r#type).rank = -1,
        "a tensor of rank -1",
    ),
    (
        "unknown element type",
        |m| tensor(&mut op(m, "linear").outputs[0].r#type).data_type = 99,
        "element type 99 is unknown",
    ),
    (
        "no element type",
        |m| tensor(&mut op(m, "linear").outputs[0].r#type).data_type = 0,
        "element type 0 is unknown",
    ),
    (
        "no dimension",
        |m| tensor(&mut op(m, "linear").outputs[0].r#type).dimensions[0].dimension = None,
        "a dimension without size",
    ),
    (
        "variadic",
        |m| {
            let unknown = dimension::Dimension::Unknown(dimension::Unknown { variadic: true });
            tensor(&mut op(m, "linear").outputs[0].r#type).dimensions[0].dimension = Some(unknown);
        },
        "a tensor of unknown rank",
    ),
    (
        "many dimensions",
        |m| {
            let ty = tensor(&mut op(m, "linear").outputs[0].r#type);
            ty.dimensions = vec![size(1); 33];
            ty.rank = 33;
        },
        "a tensor of 33 dimensions",
    ),
    (
        "twice",
        |m| op(m, "linear").outputs[0].name = "x".to_owned(),
        "`x` is defined twice",
    ),
    (
        "twice in a block",
        |m| op(m, "cond").blocks[0].operations[0].outputs[0].name = "y".to_owned(),
        "`y` is defined twice",
    ),
    (
        "bad name",
        |m| {
            op(m, "concat").outputs[0].name = "a b".to_owned();
            body(m).outputs[0] = "a b".to_owned();
            description(m).output[0].name = "a b".to_owned();
        },
        "its name is not an identifier",
    ),
    (
        "empty name",
        |m| {
            op(m, "concat").outputs[0].name.clear();
            body(m).outputs[0].clear();
            description(m).output[0].name.clear();
        },
        "its name is not an identifier",
    ),
    (
        "one block",
        |m| {
            op(m, "cond").blocks.pop();
        },
        "it runs 1 blocks, 2 are due",
    ),
    (
        "a block too much",
        |m| {
            let block = op(m, "cond").blocks[0].clone();
            op(m, "concat").blocks.push(block);
        },
        "it runs 1 blocks, 0 are due",
    ),
    (
        "block without output",
        |m| op(m, "cond").blocks[1].outputs.clear(),
        "the first block gives",
    ),
    (
        "block of undefined output",
        |m| op(m, "cond").blocks[1].outputs[0] = "nobody".to_owned(),
        "output `nobody` is used before",
    ),
    (
        "nested without end",
        |m| {
            let mut deep = op(m, "cond").clone();
            for _ in 0..40 {
                let mut outer = deep.clone();
                outer.blocks[0].operations = vec![deep];
                deep = outer;
            }
            *op(m, "cond") = deep;
        },
        "its blocks are nested deeper than 32 levels",
    ),
    (
        "no output",
        |m| body(m).outputs.clear(),
        "it is described, the function has none",
    ),
    (
        "undefined output",
        |m| body(m).outputs[0] = "nobody".to_owned(),
        "output `nobody` is used before",
    ),
    (
        "state as output",
        |m| body(m).outputs[0] = "cache".to_owned(),
        "the description does not have it",
    ),
    (
        "write of another state",
        |m| {
            op(m, "write_state")
                .inputs
                .insert("data".to_owned(), names(&["y"]));
        },
        "`data` is tensor<fp32, [3, 4]>, the state holds tensor<fp16, [3, 11]>",
    ),
];

const VALUES: &[Change<proto::Model>] = &[
    (
        "no value",
        |m| constant(m, 1).value = None,
        "a value is missing",
    ),
    (
        "no type",
        |m| constant(m, 1).r#type = None,
        "a type is missing",
    ),
    (
        "empty immediate",
        |m| immediate(constant(m, 1)).value = None,
        "a value is missing",
    ),
    (
        "no elements",
        |m| {
            immediate(constant(m, 1)).value =
                Some(immediate_value::Value::Tensor(proto::TensorValue::default()))
        },
        "a tensor has no elements",
    ),
    (
        "fewer elements",
        |m| {
            *elements(constant(m, 1)) = tensor_value::Value::Floats(tensor_value::Floats {
                values: vec![1.0; 3],
            })
        },
        "12 bytes of elements stand for tensor<fp32, [4]>",
    ),
    (
        "more elements",
        |m| {
            *elements(constant(m, 1)) = tensor_value::Value::Floats(tensor_value::Floats {
                values: vec![1.0; 5],
            })
        },
        "20 bytes of elements",
    ),
    (
        "integers as floats",
        |m| {
            *elements(constant(m, 1)) =
                tensor_value::Value::Ints(tensor_value::Ints { values: vec![1; 4] })
        },
        "stand in the field of another type",
    ),
    (
        "floats as integers",
        |m| {
            *elements(constant(m, 2)) = tensor_value::Value::Floats(tensor_value::Floats {
                values: vec![1.0; 2],
            })
        },
        "stand in the field of another type",
    ),
    (
        "strings as integers",
        |m| {
            *elements(constant(m, 2)) = tensor_value::Value::Strings(tensor_value::Strings {
                values: vec![String::new(); 2],
            })
        },
        "stand in the field of another type",
    ),
    (
        "truth values as integers",
        |m| {
            *elements(constant(m, 2)) = tensor_value::Value::Bools(tensor_value::Bools {
                values: vec![true; 2],
            })
        },
        "stand in the field of another type",
    ),
    (
        "doubles as floats",
        |m| {
            *elements(constant(m, 1)) = tensor_value::Value::Doubles(tensor_value::Doubles {
                values: vec![1.0; 4],
            })
        },
        "stand in the field of another type",
    ),
    (
        "absurd shape",
        |m| tensor(&mut constant(m, 1).r#type).dimensions[0] = size(u64::MAX),
        "bytes of elements",
    ),
    (
        "unknown size",
        |m| {
            let unknown = dimension::Dimension::Unknown(dimension::Unknown { variadic: false });
            tensor(&mut constant(m, 1).r#type).dimensions[0].dimension = Some(unknown);
        },
        "bytes of elements",
    ),
    (
        "too wide",
        |m| {
            tensor(&mut constant(m, 2).r#type).data_type = 22;
            *elements(constant(m, 2)) = tensor_value::Value::Ints(tensor_value::Ints {
                values: vec![70_000, 1],
            });
        },
        "stand in the field of another type",
    ),
    (
        "list",
        |m| {
            immediate(constant(m, 1)).value =
                Some(immediate_value::Value::List(proto::Values::default()))
        },
        "of another kind than its type",
    ),
    (
        "tuple",
        |m| {
            immediate(constant(m, 1)).value =
                Some(immediate_value::Value::Tuple(proto::Values::default()))
        },
        "of another kind than its type",
    ),
    (
        "dictionary",
        |m| {
            immediate(constant(m, 1)).value = Some(immediate_value::Value::Dictionary(
                proto::DictionaryValue::default(),
            ))
        },
        "of another kind than its type",
    ),
    (
        "strings",
        |m| {
            let info = m
                .ml_program
                .as_mut()
                .unwrap()
                .attributes
                .get_mut("buildInfo")
                .unwrap();
            let Some(immediate_value::Value::Dictionary(d)) = &mut immediate(info).value else {
                panic!()
            };
            *elements(d.values[0].key.as_mut().unwrap()) =
                tensor_value::Value::Strings(tensor_value::Strings { values: vec![] });
        },
        "0 strings stand for string",
    ),
    (
        "half an entry",
        |m| {
            let info = m
                .ml_program
                .as_mut()
                .unwrap()
                .attributes
                .get_mut("buildInfo")
                .unwrap();
            let Some(immediate_value::Value::Dictionary(d)) = &mut immediate(info).value else {
                panic!()
            };
            d.values[0].value = None;
        },
        "an entry lacks its key or value",
    ),
    (
        "entry of another type",
        |m| {
            let other = constant(m, 1).clone();
            let info = m
                .ml_program
                .as_mut()
                .unwrap()
                .attributes
                .get_mut("buildInfo")
                .unwrap();
            let Some(immediate_value::Value::Dictionary(d)) = &mut immediate(info).value else {
                panic!()
            };
            d.values[0].value = Some(other);
        },
        "is not of its type",
    ),
    (
        "offset of the header",
        |m| blob(m).offset = 0,
        "records stand at multiples of 64",
    ),
    (
        "offset between records",
        |m| blob(m).offset = 65,
        "records stand at multiples of 64",
    ),
    (
        "offset of data",
        |m| blob(m).offset += 64,
        "no record stands here",
    ),
    (
        "offset beyond",
        |m| blob(m).offset = 1 << 40,
        "it is beyond the end",
    ),
    (
        "offset at the top",
        |m| blob(m).offset = !63,
        "it is beyond the end",
    ),
    (
        "another constant",
        |m| tensor(&mut constant(m, 0).r#type).dimensions[0] = size(5),
        "the program says tensor<fp32, [5, 12]>",
    ),
    (
        "another element type",
        |m| tensor(&mut constant(m, 0).r#type).data_type = 23,
        "it holds fp32, the program says tensor<int32",
    ),
    (
        "type that is in no file",
        |m| tensor(&mut constant(m, 0).r#type).data_type = 1,
        "it holds fp32, the program says tensor<bool",
    ),
    (
        "absurd constant",
        |m| tensor(&mut constant(m, 0).r#type).dimensions[0] = size(1 << 62),
        "the program says tensor<fp32",
    ),
    (
        "other file",
        |m| blob(m).file_name = "@model_path/weights/other.bin".to_owned(),
        "other.bin",
    ),
    (
        "no model path",
        |m| blob(m).file_name = "weights/weight.bin".to_owned(),
        "does not begin with @model_path/",
    ),
    (
        "upwards",
        |m| blob(m).file_name = "@model_path/../../../etc/passwd".to_owned(),
        "not a path inside of the package",
    ),
    (
        "root",
        |m| blob(m).file_name = "@model_path//etc/passwd".to_owned(),
        "not a path inside of the package",
    ),
    (
        "folder",
        |m| blob(m).file_name = "@model_path/weights".to_owned(),
        "no regular file",
    ),
    (
        "the folder itself",
        |m| blob(m).file_name = "@model_path/".to_owned(),
        "not a path inside of the package",
    ),
];

const DESCRIPTIONS: &[Change<proto::Model>] = &[
    (
        "missing input",
        |m| description(m).input.clear(),
        "input `x`: the description does not have it",
    ),
    (
        "missing output",
        |m| {
            description(m).output.pop();
        },
        "output `k`: the description does not have it",
    ),
    (
        "missing state",
        |m| description(m).state.clear(),
        "state `cache`: the description does not have it",
    ),
    (
        "more",
        |m| {
            let mut more = input(m).clone();
            more.name = "more".to_owned();
            description(m).input.push(more);
        },
        "input `more`: it is described, the function has none",
    ),
    (
        "no type",
        |m| input(m).r#type = None,
        "it is described without a type",
    ),
    (
        "no kind",
        |m| input(m).r#type.as_mut().unwrap().r#type = None,
        "it is described without a type",
    ),
    (
        "other kind",
        |m| {
            input(m).r#type.as_mut().unwrap().r#type =
                Some(feature_type::Type::Int64(proto::Empty {}))
        },
        "another kind of feature",
    ),
    (
        "state without type",
        |m| {
            description(m).state[0].r#type.as_mut().unwrap().r#type =
                Some(feature_type::Type::State(proto::StateFeatureType::default()));
        },
        "it is described without a type",
    ),
    (
        "other element type",
        |m| array(m).data_type = 65552,
        "it is described as fp16, the function has tensor<fp32",
    ),
    (
        "unknown element type",
        |m| array(m).data_type = 7,
        "it is described as element type 7",
    ),
    (
        "other shape",
        |m| array(m).shape = vec![4, 1],
        "it is described with shape [4, 1]",
    ),
    (
        "other rank",
        |m| array(m).shape = vec![3],
        "it is described with shape [3]",
    ),
    (
        "negative",
        |m| array(m).shape = vec![3, -1],
        "a dimension of -1",
    ),
    (
        "range of another rank",
        |m| {
            ranges(m).pop();
        },
        "its ranges of sizes",
    ),
    (
        "range of a known size",
        |m| ranges(m)[0].upper_bound = 9,
        "its ranges of sizes",
    ),
    (
        "range upside down",
        |m| {
            ranges(m)[1] = proto::SizeRange {
                lower_bound: 9,
                upper_bound: 3,
            }
        },
        "its sizes range from 9 to 3",
    ),
    (
        "default outside",
        |m| ranges(m)[1].lower_bound = 2,
        "its ranges of sizes",
    ),
    (
        "no shapes",
        |m| {
            array(m).flexibility = Some(array_feature_type::ShapeFlexibility::Enumerated(
                array_feature_type::EnumeratedShapes::default(),
            ));
        },
        "its enumerated shapes",
    ),
    (
        "other shapes",
        |m| {
            let shapes = vec![
                array_feature_type::Shape { shape: vec![3, 1] },
                array_feature_type::Shape { shape: vec![4, 1] },
            ];
            array(m).flexibility = Some(array_feature_type::ShapeFlexibility::Enumerated(
                array_feature_type::EnumeratedShapes { shapes },
            ));
        },
        "its enumerated shapes",
    ),
    (
        "prediction",
        |m| description(m).predicted_feature_name = "label".to_owned(),
        "the function has no such output",
    ),
    (
        "function",
        |m| {
            description(m).functions.push(proto::FunctionDescription {
                name: "other".to_owned(),
                ..Default::default()
            });
        },
        "function `other`: it is described, the program has none",
    ),
];

/// Found by fuzzing: what was read without names was written with them, and was another program
/// then.
#[test]
fn ops_without_a_name_get_that_of_their_result() {
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
fn models_that_say_what_cannot_be_are_refused() {
    let folder = Folder::new();
    let good = fs::read(folder.file(MODEL)).unwrap();
    let mut faults = Vec::new();
    for (case, change, message) in [PROGRAMS, OPS, VALUES, DESCRIPTIONS].into_iter().flatten() {
        let mut model = folder.model();
        change(&mut model);
        fs::write(folder.file(MODEL), model.encode_to_vec()).unwrap();
        faults.extend(folder.fault(case, message));
        fs::write(folder.file(MODEL), &good).unwrap();
    }
    Package::open(&folder.path()).unwrap();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Weight files whose header or first record is changed at a byte.
#[test]
fn weight_files_that_are_damaged_are_refused() {
    let folder = Folder::new();
    let offset = blob(&mut folder.model()).offset as usize;
    let good = fs::read(folder.file(WEIGHTS)).unwrap();
    let mut faults = Vec::new();
    for (at, byte, message) in [
        (4, 1, "is weight storage of version 1"),
        (7, 1, "is weight storage of version 16777218"),
        (
            offset,
            0,
            "no record stands here: it begins with 0xdeadbe00",
        ),
        (offset + 3, 0, "no record stands here"),
        (
            offset + 4,
            1,
            "it holds fp16, the program says tensor<fp32, [4, 12]>",
        ),
        (offset + 4, 99, "it holds an unknown type"),
        (offset + 7, 1, "it holds an unknown type"),
        (offset + 8, 0, "it holds 0 bytes, the program says"),
        (offset + 15, 255, "the program says tensor<fp32, [4, 12]>"),
        (offset + 17, 255, "reach beyond the end"),
        (offset + 23, 255, "reach beyond the end"),
        (offset + 16, 0, "inside of the header"),
    ] {
        let mut bad = good.clone();
        bad[at] = byte;
        fs::write(folder.file(WEIGHTS), bad).unwrap();
        faults.extend(folder.fault(&format!("byte {at}"), message));
    }
    for n in [0, 7, 63] {
        fs::write(folder.file(WEIGHTS), &good[..n]).unwrap();
        faults.extend(folder.fault(&format!("{n} bytes"), "ends inside of its header"));
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
fn folders_that_are_damaged_are_refused() {
    let folder = Folder::new();
    let manifest = fs::read_to_string(folder.file("Manifest.json")).unwrap();
    let mut faults = Vec::new();
    for (from, to, message) in [
        ("\"1.0.0\"", "\"2.0.0\"", "has format version \"2.0.0\""),
        (
            "\"fileFormatVersion\"",
            "\"version\"",
            "is no manifest: missing field",
        ),
        (
            "\"rootModelIdentifier\": \"",
            "\"rootModelIdentifier\": \"0",
            "which of its items is the model",
        ),
        (
            "com.apple.CoreML/model.mlmodel",
            "com.apple.CoreML/other.mlmodel",
            "other.mlmodel",
        ),
        (
            "com.apple.CoreML/model.mlmodel",
            "com.apple.CoreML",
            "is no regular file",
        ),
        (
            "com.apple.CoreML/model.mlmodel",
            "../../secret",
            "is not below the package's folder",
        ),
        (
            "com.apple.CoreML/model.mlmodel",
            "/etc/passwd",
            "is not below the package's folder",
        ),
        (
            "com.apple.CoreML/model.mlmodel",
            "",
            "is not below the package's folder",
        ),
        (
            "com.apple.CoreML/model.mlmodel",
            "com.apple.CoreML/../com.apple.CoreML/model.mlmodel",
            "is not below",
        ),
        ("{", "[", "is no manifest"),
    ] {
        let changed = manifest.replacen(from, to, if from == "{" { 1 } else { 9 });
        assert_ne!(changed, manifest, "{from}");
        fs::write(folder.file("Manifest.json"), changed).unwrap();
        faults.extend(folder.fault(to, message));
    }
    for n in [0, 1, manifest.len() / 2, manifest.len() - 3] {
        fs::write(folder.file("Manifest.json"), &manifest[..n]).unwrap();
        faults.extend(folder.fault(&format!("{n} bytes"), "is no manifest"));
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
fn links_out_of_a_package_are_refused() {
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
        // One that stays inside is followed.
        fs::remove_file(folder.file(name)).unwrap();
        fs::rename(&outside, folder.file("inside")).unwrap();
        std::os::unix::fs::symlink(folder.file("inside"), folder.file(name)).unwrap();
        Package::open(&folder.path()).unwrap();
    }
}

/// A model file that ends too early, or has other bits, is an error or another model, and never a
/// panic.
#[test]
fn model_files_that_are_damaged_do_not_panic() {
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
