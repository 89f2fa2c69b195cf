//! Elements in another order: transposed, reversed.

use super::{Call, Eval, Fault, Runs, copy_runs, place, strides};
use crate::tensor::Buffer;

pub(super) static OPS: &[(&str, Eval)] = &[
    ("transpose", transpose),
    ("reverse", reverse),
    ("reverse_sequence", reverse_sequence),
];

fn transpose(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let rank = x.shape.len() as i64;
    let own = strides(&x.shape);
    let perm = call.ints("perm").ok_or("`perm` is not known")?;
    let moved: Vec<usize> = perm
        .into_iter()
        .map(|p| own[(if p < 0 { p + rank } else { p }) as usize])
        .collect();
    place(call.context, &call.shape(0), &moved, 0, x, &mut out[0])
}

fn reverse(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let rank = x.shape.len();
    let own = strides(&x.shape);
    let axes = call
        .ints("axes")
        .unwrap_or_else(|| (0..rank as i64).collect());
    let mut turned = vec![false; rank];
    for a in axes {
        // Turned twice is as it was.
        let a = usize::try_from(if a < 0 { a + rank as i64 } else { a })
            .ok()
            .filter(|a| *a < rank);
        turned[a.ok_or("`axes` names an axis that x has not")?] ^= true;
    }
    // Behind the last axis that is turned, elements stay together; where none is behind it, those
    // along it are turned together.
    let end = turned
        .iter()
        .rposition(|turned| *turned)
        .map_or(0, |a| a + 1);
    let is_turned = end > 0 && x.shape[end..].iter().product::<usize>() == 1;
    let outer = &x.shape[..end - usize::from(is_turned)];
    let runs = Runs {
        n_runs: outer.iter().product(),
        len: x.shape[outer.len()..].iter().product(),
        is_turned,
    };
    copy_runs(call.context, runs, x, &mut out[0], |i| {
        let mut rest = i;
        let along = (0..outer.len()).rev().map(|a| {
            let k = rest % x.shape[a];
            rest /= x.shape[a];
            own[a] * if turned[a] { x.shape[a] - 1 - k } else { k }
        });
        along.sum()
    })
}

fn reverse_sequence(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let (seq, batch) = (
        call.axis("seq_axis", 0, x.shape.len())?,
        call.axis("batch_axis", 0, x.shape.len())?,
    );
    if seq == batch {
        return Err(format!(
            "`seq_axis` and `batch_axis` are both {seq}: a sequence has one element then"
        ));
    }
    let own = strides(&x.shape);
    let lengths = call
        .ints("lengths")
        .ok_or("`lengths` does not hold integers")?;
    let lengths: Option<Vec<usize>> = lengths
        .into_iter()
        .map(|n| usize::try_from(n).ok().filter(|n| *n <= x.shape[seq]))
        .collect();
    let lengths = lengths
        .ok_or_else(|| format!("a length does not fit the {} of axis {seq}", x.shape[seq]))?;
    // Behind both axes, elements stay together.
    let n = own[seq].min(own[batch]);
    copy_runs(
        call.context,
        Runs::new(x.len() / n.max(1), n),
        x,
        &mut out[0],
        |run| {
            let i = run * n;
            let (k, n) = (
                i / own[seq] % x.shape[seq],
                lengths[i / own[batch] % x.shape[batch]],
            );
            if k < n {
                i - k * own[seq] + (n - 1 - k) * own[seq]
            } else {
                i
            }
        },
    )
}
