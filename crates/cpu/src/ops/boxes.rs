//! Boxes in images.

use thane_mil::opset::Opset;

use super::{Call, Eval, Fault, f32_out};
use crate::tensor::Buffer;

pub(super) static OPS: &[(&str, Eval)] = &[("non_maximum_suppression", suppression)];

/// Rows of boxes: which axis counts the boxes differs between opsets.
#[derive(Clone, Copy)]
struct Rows {
    n_boxes: usize,
    width: usize,
    boxes_last: bool,
}

impl Rows {
    fn at(&self, batch: usize, item: usize, column: usize) -> usize {
        let start = batch * self.n_boxes * self.width;
        start
            + if self.boxes_last {
                column * self.n_boxes + item
            } else {
                item * self.width + column
            }
    }
}

/// The class of a box is that of its highest score, which is the box's score too. Results that no
/// box fills are 0, their indices -1 (the layer of the older neural-network format does so;
/// unverified for MIL).
fn suppression(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (boxes, scores) = (call.f32s("boxes")?, call.f32s("scores")?);
    let boxes_last = call.def.since >= Opset::CoreMl7;
    let &[n_batches, second, third] = call.tensor("scores")?.shape.as_slice() else {
        return Err("`scores` is not of rank 3".to_owned());
    };
    let (n_boxes, n_classes) = if boxes_last {
        (third, second)
    } else {
        (second, third)
    };
    let most = call.shape(2)[1];
    let rows = |width, n_boxes| Rows {
        n_boxes,
        width,
        boxes_last,
    };
    let (box_rows, score_rows) = (rows(4, n_boxes), rows(n_classes, n_boxes));
    let [coordinates, best, indices, counts @ ..] = out else {
        return Err("the op has three results".to_owned());
    };
    let (coordinates, best) = (
        f32_out(coordinates, n_batches * 4 * most)?,
        f32_out(best, n_batches * n_classes * most)?,
    );
    let Buffer::I32(indices) = indices else {
        return Err("the indices are not int32".to_owned());
    };
    coordinates.fill(0.0);
    best.fill(0.0);
    indices.fill(-1);
    for b in 0..n_batches {
        let candidates: Vec<Candidate> = (0..n_boxes)
            .map(|i| {
                let corner = |c| boxes[box_rows.at(b, i, c)];
                Candidate::new(
                    [0, 1, 2, 3].map(corner),
                    (0..n_classes).map(|k| scores[score_rows.at(b, i, k)]),
                )
            })
            .collect();
        let chosen = choose(call, &candidates, most)?;
        for (k, &i) in chosen.iter().enumerate() {
            (0..4)
                .for_each(|c| coordinates[rows(4, most).at(b, k, c)] = boxes[box_rows.at(b, i, c)]);
            let classes = 0..n_classes;
            classes.for_each(|c| {
                best[rows(n_classes, most).at(b, k, c)] = scores[score_rows.at(b, i, c)]
            });
            indices[b * most + k] = i as i32;
        }
        if let [Buffer::I32(counts)] = counts {
            counts[b] = chosen.len() as i32;
        }
    }
    Ok(())
}

/// A box by its corners, with its best score.
struct Candidate {
    low: [f32; 2],
    high: [f32; 2],
    score: f32,
    class: usize,
}

impl Candidate {
    /// Of a box given by center and size.
    fn new([x, y, width, height]: [f32; 4], scores: impl Iterator<Item = f32>) -> Self {
        let best = scores
            .enumerate()
            .fold((0, f32::NEG_INFINITY), |b, s| if s.1 > b.1 { s } else { b });
        let half = [width / 2.0, height / 2.0];
        Self {
            low: [x - half[0], y - half[1]],
            high: [x + half[0], y + half[1]],
            score: best.1,
            class: best.0,
        }
    }

    fn area(&self) -> f32 {
        (self.high[0] - self.low[0]) * (self.high[1] - self.low[1])
    }

    /// Intersection over union.
    fn overlap(&self, other: &Self) -> f32 {
        let side =
            |a: usize| (self.high[a].min(other.high[a]) - self.low[a].max(other.low[a])).max(0.0);
        let common = side(0) * side(1);
        let union = self.area() + other.area() - common;
        if union > 0.0 { common / union } else { 0.0 }
    }
}

/// The boxes that stay, best first.
fn choose(call: &Call<'_>, candidates: &[Candidate], most: usize) -> Result<Vec<usize>, Fault> {
    let iou_threshold = call.f32_or("iou_threshold", 0.0)?;
    let score_threshold = call.f32_or("score_threshold", f32::NEG_INFINITY)?;
    let per_class = call.bool_or("per_class_suppression", false);
    let mut order: Vec<usize> = (0..candidates.len())
        .filter(|i| candidates[*i].score >= score_threshold)
        .collect();
    order.sort_by(|a, b| candidates[*b].score.total_cmp(&candidates[*a].score));
    let mut chosen: Vec<usize> = Vec::new();
    for i in order {
        if chosen.len() == most || call.context.is_over() {
            break;
        }
        let is_rival = |k: &usize| {
            let (kept, this) = (&candidates[*k], &candidates[i]);
            (!per_class || kept.class == this.class) && kept.overlap(this) > iou_threshold
        };
        if !chosen.iter().any(is_rival) {
            chosen.push(i);
        }
    }
    Ok(chosen)
}
