//! Programs and functions that a model file must not hold.

use super::*;

pub(super) const PROGRAMS: &[Change<proto::Model>] = &[
    ("no program", |m| m.ml_program = None, "holds no ML Program"),
    (
        "updatable",
        |m| m.is_updatable = true,
        "is an updatable model",
    ),
    (
        "no description",
        |m| m.description = None,
        "the function has this feature, the description does not",
    ),
    (
        "version",
        |m| m.ml_program.as_mut().unwrap().version = 2,
        "expected version 1, found 2",
    ),
    (
        "no functions",
        |m| m.ml_program.as_mut().unwrap().functions.clear(),
        "the description has this function, the program does not",
    ),
    (
        "attribute",
        |m| {
            let program = m.ml_program.as_mut().unwrap();
            let info = program.attributes["buildInfo"].clone();
            program.attributes.insert("extra".to_owned(), info);
        },
        "expected only the attribute `buildInfo`, found `extra`",
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
        "CoreML8, found \"CoreML99\"",
    ),
    (
        "no body",
        |m| main_function(m).opset = "CoreML7".to_owned(),
        "found bodies for [\"CoreML8\"]",
    ),
    (
        "body with inputs",
        |m| {
            let input = main_function(m).inputs[0].clone();
            body(m).inputs.push(input);
        },
        "expected a body without inputs",
    ),
    (
        "name of a function",
        |m| {
            let program = m.ml_program.as_mut().unwrap();
            let f = program.functions.remove("main").unwrap();
            program.functions.insert("a b".to_owned(), f);
            description(m).default_function_name = "a b".to_owned();
        },
        "a b: function: expected a unique identifier",
    ),
    (
        "default function",
        |m| description(m).default_function_name = "other".to_owned(),
        "the description has this function, the program does not",
    ),
];
