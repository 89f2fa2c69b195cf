//! Ops on boxes in images.
//!
//! Source: coremltools `ops/defs/iOS15/tensor_operation.py`, `iOS17/tensor_operation.py`.

use super::OpKind::Other;
use super::*;
use crate::types::{DType, TensorType};

const BOXES: Param = tensor("boxes", FLOAT);
const SCORES: Param = tensor("scores", FLOAT);
const IOU_THRESHOLD: Param = constant("iou_threshold", FLOAT);
const MAX_BOXES: Param = constant("max_boxes", INT32);
const PER_CLASS: Param = constant("per_class_suppression", BOOL).optional();

pub(super) static OPS: &[OpDef] = &[
    // Keeps boxes in the order of decreasing score, and drops a box whose overlap (intersection
    // over union) with a kept box exceeds `iou_threshold`. Results: coordinates, scores, indices
    // and number of the kept boxes. boxes [n, boxes, 4] (center and size), scores [n, boxes,
    // classes].
    OpDef::new(
        "non_maximum_suppression",
        Other,
        Opset::CoreMl5,
        &[
            BOXES,
            SCORES,
            IOU_THRESHOLD,
            constant("score_threshold", FLOAT),
            MAX_BOXES,
            PER_CLASS,
        ],
        suppression,
    ),
    // The same for boxes [n, 4, boxes] and scores [n, classes, boxes], without the number of kept
    // boxes.
    OpDef::new(
        "non_maximum_suppression",
        Other,
        Opset::CoreMl7,
        &[BOXES, SCORES, IOU_THRESHOLD, MAX_BOXES, PER_CLASS],
        suppression,
    ),
];

fn suppression(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (boxes, scores) = (i.ty("boxes")?, i.ty("scores")?);
    let boxes_last = i.def.since >= Opset::CoreMl7;
    let (n, class, item) = if boxes_last { (0, 1, 2) } else { (0, 2, 1) };
    let fits = boxes.rank() == 3
        && scores.rank() == 3
        && boxes.shape[class].compatible(Dim::Known(4))
        && [n, item]
            .iter()
            .all(|a| boxes.shape[*a].compatible(scores.shape[*a]));
    let thresholds = ["iou_threshold", "score_threshold"]
        .into_iter()
        .filter(|name| i.has(name));
    let types = thresholds
        .map(|name| i.ty(name))
        .collect::<Result<Vec<_>, _>>()?;
    if !fits
        || boxes.dtype != scores.dtype
        || types
            .iter()
            .any(|t| t.dtype != boxes.dtype || t.rank() != 0)
    {
        return Err(TypeError::new(format_args!(
            "expected `boxes`, `scores` and scalar thresholds of one element type and matching \
                 shapes, found `boxes` {boxes} and `scores` {scores}"
        )));
    }
    let most = i.int_or("max_boxes", 0)?;
    let most = Dim::Known(usize::try_from(most).map_err(|_| {
        TypeError::new(format_args!(
            "`max_boxes`: expected 0 or more, found {most}"
        ))
    })?);
    let (batch, classes) = (scores.shape[n], scores.shape[class]);
    let pairs = |inner: Dim| {
        if boxes_last {
            vec![batch, inner, most]
        } else {
            vec![batch, most, inner]
        }
    };
    let ty = |dtype, shape| Type::Tensor(TensorType { dtype, shape });
    let mut results = vec![
        ty(boxes.dtype, pairs(Dim::Known(4))),
        ty(boxes.dtype, pairs(classes)),
        ty(DType::Int32, vec![batch, most]),
    ];
    if !boxes_last {
        results.push(ty(DType::Int32, vec![batch]));
    }
    Ok(results)
}
