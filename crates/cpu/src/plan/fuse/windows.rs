//! Windows over images whose channels are last: `transpose, op, transpose`, as
//! [`order`](crate::plan::rewrite) leaves them.

use thane_kernels::spatial::{Axis, Window};
use thane_mil::opset::window::Windows;

use super::{Fault, Match, Op, Planner, ValueId, ints, is_float32};

/// Whether an op brings channels to the end (`last`), or back.
fn turns(p: &Planner<'_>, op: &Op, last: bool) -> Option<()> {
    let perm = ints(p, op, "perm")?;
    let rank = perm.len() as i64;
    let expected: Vec<i64> = if last {
        std::iter::once(0).chain(2..rank).chain([1]).collect()
    } else {
        [0, rank - 1].into_iter().chain(1..rank - 1).collect()
    };
    ((3..=5).contains(&rank) && perm == expected).then_some(())
}

/// The op `made` whose result `rows` turns, and the `x` that is turned for it by `turned`.
pub(super) fn turned<'a>(p: &Planner<'_>, found: &Match<'a>) -> Option<(&'a Op, ValueId)> {
    turns(p, found.op("rows")?, true)?;
    turns(p, found.op("turned")?, false)?;
    let x = found.value("x").filter(|x| is_float32(p, *x))?;
    Some((found.op("made")?, x))
}

/// The windows of an op, whose kernel has these sizes.
pub(super) fn windows(p: &Planner<'_>, op: &Op, kernel: Vec<usize>) -> Option<Windows> {
    let pad_type = p.f.literal_arg(op, "pad_type");
    let pad_type = pad_type.map_or(Some("valid"), |l| l.as_str())?;
    let all = ["strides", "dilations", "pad"];
    let is_known = all
        .iter()
        .all(|name| op.arg(name).is_none() || ints(p, op, name).is_some());
    let pad_type = pad_type.to_ascii_lowercase();
    let windows = Windows::new(kernel, &pad_type, |name| Ok(ints(p, op, name)));
    is_known.then(|| windows.ok())?
}

/// A window over x [n, .., channels], whose places are known or follow from the sizes.
pub(super) fn window(shape: &[usize], windows: &Windows) -> Result<Window, Fault> {
    let (Some((&n, rest)), Some(&channels)) = (shape.split_first(), shape.last()) else {
        return Err("an image has no axes".to_owned());
    };
    let sizes = &rest[..rest.len().saturating_sub(1)];
    let none = Axis {
        size: 1,
        n_places: 1,
        kernel: 1,
        stride: 1,
        dilation: 1,
        before: 0,
    };
    let mut axes = [none; 3];
    let lacking = 3usize
        .checked_sub(sizes.len())
        .ok_or("an image has more than three axes")?;
    for (axis, &size) in sizes.iter().enumerate() {
        let window = windows.along(axis, size).map_err(|e| e.0)?;
        axes[lacking + axis] = Axis {
            size,
            n_places: window.places(size, false).map_err(|e| e.0)?,
            kernel: window.kernel,
            stride: window.stride,
            dilation: window.dilation,
            before: window.before,
        };
    }
    Ok(Window { n, channels, axes })
}

/// The shape of the result of a window.
pub(super) fn result_shape(shape: &[usize], window: &Window, channels: usize) -> Vec<usize> {
    let n_axes = shape.len() - 2;
    let places = window.axes[3 - n_axes..].iter().map(|a| a.n_places);
    std::iter::once(shape[0])
        .chain(places)
        .chain([channels])
        .collect()
}
