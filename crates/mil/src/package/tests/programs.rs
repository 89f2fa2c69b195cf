//! Programs and functions that a model file must not hold.

use super::*;

pub(super) const PROGRAMS: &[Change<proto::Model>] = &[
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
