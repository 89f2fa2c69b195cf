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
        "expected the elements of tensor<fp32, [4]>, found 12 bytes",
    ),
    (
        "more elements",
        |m| {
            *elements(constant(m, 1)) = tensor_value::Value::Floats(tensor_value::Floats {
                values: vec![1.0; 5],
            })
        },
        "found 20 bytes",
    ),
    (
        "integers as floats",
        |m| {
            *elements(constant(m, 1)) =
                tensor_value::Value::Ints(tensor_value::Ints { values: vec![1; 4] })
        },
        "are in the field of another type",
    ),
    (
        "floats as integers",
        |m| {
            *elements(constant(m, 2)) = tensor_value::Value::Floats(tensor_value::Floats {
                values: vec![1.0; 2],
            })
        },
        "are in the field of another type",
    ),
    (
        "strings as integers",
        |m| {
            *elements(constant(m, 2)) = tensor_value::Value::Strings(tensor_value::Strings {
                values: vec![String::new(); 2],
            })
        },
        "are in the field of another type",
    ),
    (
        "truth values as integers",
        |m| {
            *elements(constant(m, 2)) = tensor_value::Value::Bools(tensor_value::Bools {
                values: vec![true; 2],
            })
        },
        "are in the field of another type",
    ),
    (
        "doubles as floats",
        |m| {
            *elements(constant(m, 1)) = tensor_value::Value::Doubles(tensor_value::Doubles {
                values: vec![1.0; 4],
            })
        },
        "are in the field of another type",
    ),
    (
        "absurd shape",
        |m| tensor(&mut constant(m, 1).r#type).dimensions[0] = size(u64::MAX),
        "expected the elements of tensor<fp32",
    ),
    (
        "unknown size",
        |m| {
            let unknown = dimension::Dimension::Unknown(dimension::Unknown { variadic: false });
            tensor(&mut constant(m, 1).r#type).dimensions[0].dimension = Some(unknown);
        },
        "expected the elements of tensor<fp32",
    ),
    (
        "too wide",
        |m| {
            tensor(&mut constant(m, 2).r#type).data_type = 22;
            *elements(constant(m, 2)) = tensor_value::Value::Ints(tensor_value::Ints {
                values: vec![70_000, 1],
            });
        },
        "are in the field of another type",
    ),
    (
        "list",
        |m| {
            immediate(constant(m, 1)).value =
                Some(immediate_value::Value::List(proto::Values::default()))
        },
        "found another kind",
    ),
    (
        "tuple",
        |m| {
            immediate(constant(m, 1)).value =
                Some(immediate_value::Value::Tuple(proto::Values::default()))
        },
        "found another kind",
    ),
    (
        "dictionary",
        |m| {
            immediate(constant(m, 1)).value = Some(immediate_value::Value::Dictionary(
                proto::DictionaryValue::default(),
            ))
        },
        "found another kind",
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
        "expected one string for the scalar type string, found 0",
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
        "an entry of a dictionary lacks its key or value",
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
        "an entry of a dictionary does not match its type",
    ),
    (
        "offset of the header",
        |m| blob(m).offset = 0,
        "expected a multiple of 64 after the header",
    ),
    (
        "offset between records",
        |m| blob(m).offset = 65,
        "expected a multiple of 64 after the header",
    ),
    (
        "offset of data",
        |m| blob(m).offset += 64,
        "expected a record that starts with 0xdeadbeef",
    ),
    (
        "offset beyond",
        |m| blob(m).offset = 1 << 40,
        "the offset is beyond the end of the file",
    ),
    (
        "offset at the top",
        |m| blob(m).offset = !63,
        "the offset is beyond the end of the file",
    ),
    (
        "another constant",
        |m| tensor(&mut constant(m, 0).r#type).dimensions[0] = size(5),
        "expected tensor<fp32, [5, 12]> as the program declares",
    ),
    (
        "another element type",
        |m| tensor(&mut constant(m, 0).r#type).data_type = 23,
        "as the program declares, found fp32",
    ),
    (
        "type that is in no file",
        |m| tensor(&mut constant(m, 0).r#type).data_type = 1,
        "as the program declares, found fp32",
    ),
    (
        "absurd constant",
        |m| tensor(&mut constant(m, 0).r#type).dimensions[0] = size(1 << 62),
        "expected tensor<fp32",
    ),
    (
        "other file",
        |m| blob(m).file_name = "@model_path/weights/other.bin".to_owned(),
        "other.bin",
    ),
    (
        "no model path",
        |m| blob(m).file_name = "weights/weight.bin".to_owned(),
        "starts with @model_path/",
    ),
    (
        "upwards",
        |m| blob(m).file_name = "@model_path/../../../etc/passwd".to_owned(),
        "which is not inside the package",
    ),
    (
        "root",
        |m| blob(m).file_name = "@model_path//etc/passwd".to_owned(),
        "which is not inside the package",
    ),
    (
        "folder",
        |m| blob(m).file_name = "@model_path/weights".to_owned(),
        "expected a regular file, found a folder",
    ),
    (
        "the folder itself",
        |m| blob(m).file_name = "@model_path/".to_owned(),
        "which is not inside the package",
    ),
];
