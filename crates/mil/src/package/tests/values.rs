//! Constants and types that a model file must not hold.

use super::*;

pub(super) const VALUES: &[Change<proto::Model>] = &[
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
