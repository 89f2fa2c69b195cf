//! Descriptions that do not fit their program.

use super::*;

pub(super) const DESCRIPTIONS: &[Change<proto::Model>] = &[
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
