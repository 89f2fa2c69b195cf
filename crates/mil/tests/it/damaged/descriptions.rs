//! Descriptions that do not fit their program.

use super::*;

pub(super) const DESCRIPTIONS: &[Change<proto::Model>] = &[
    (
        "missing input",
        |m| description(m).input.clear(),
        "input `x`: the function has this feature, the description does not",
    ),
    (
        "missing output",
        |m| {
            description(m).output.pop();
        },
        "output `k`: the function has this feature, the description does not",
    ),
    (
        "missing state",
        |m| description(m).state.clear(),
        "state `cache`: the function has this feature, the description does not",
    ),
    (
        "more",
        |m| {
            let mut more = input(m).clone();
            more.name = "more".to_owned();
            description(m).input.push(more);
        },
        "input `more`: the description has this feature, the function does not",
    ),
    (
        "no type",
        |m| input(m).r#type = None,
        "the description has no type",
    ),
    (
        "no kind",
        |m| input(m).r#type.as_mut().unwrap().r#type = None,
        "the description has no type",
    ),
    (
        "other kind",
        |m| {
            input(m).r#type.as_mut().unwrap().r#type =
                Some(feature_type::Type::Int64(proto::Empty {}))
        },
        "the description is of another kind",
    ),
    (
        "state without type",
        |m| {
            description(m).state[0].r#type.as_mut().unwrap().r#type =
                Some(feature_type::Type::State(proto::StateFeatureType::default()));
        },
        "the description has no type",
    ),
    (
        "other element type",
        |m| array(m).data_type = 65552,
        "expected tensor<fp32, [3, ?]> as in the function, found the description fp16",
    ),
    (
        "unknown element type",
        |m| array(m).data_type = 7,
        "found the description element type 7",
    ),
    (
        "other shape",
        |m| array(m).shape = vec![4, 1],
        "found the described shape [4, 1]",
    ),
    (
        "other rank",
        |m| array(m).shape = vec![3],
        "found the described shape [3]",
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
        "size ranges",
    ),
    (
        "range of a known size",
        |m| ranges(m)[0].upper_bound = 9,
        "size ranges",
    ),
    (
        "range upside down",
        |m| {
            ranges(m)[1] = proto::SizeRange {
                lower_bound: 9,
                upper_bound: 3,
            }
        },
        "expected a range of sizes, found 9 to 3",
    ),
    (
        "default outside",
        |m| ranges(m)[1].lower_bound = 2,
        "size ranges",
    ),
    (
        "no shapes",
        |m| {
            array(m).flexibility = Some(array_feature_type::ShapeFlexibility::Enumerated(
                array_feature_type::EnumeratedShapes::default(),
            ));
        },
        "enumerated shapes",
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
        "enumerated shapes",
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
        "function `other`: the description has this function, the program does not",
    ),
];
