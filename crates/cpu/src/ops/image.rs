//! Resizing and cropping of the last axes, computed in f64.

use super::{Call, Eval, Fault, f32_out, place, strides};
use crate::tensor::Buffer;

pub(super) static OPS: &[(&str, Eval)] = &[
    ("crop", crop),
    ("resize", resize),
    ("resize_bilinear", resize_bilinear),
    ("resize_nearest_neighbor", nearest_neighbor),
    ("upsample_bilinear", upsample_bilinear),
    ("upsample_nearest_neighbor", nearest_neighbor),
];

/// How points lie over an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sampling {
    /// From its start on, as far from another as pixels of the result are.
    Start,
    /// From its first end to its last; one point is at its start.
    StrictCorners,
    /// From its first end to its last; one point is in the middle.
    Corners,
    /// In the middles of equal parts, where pixels reach half a pixel beyond the ends.
    Centers,
    /// In the middles of equal parts of what lies between the ends, which is at least a pixel.
    Offset,
}

impl Sampling {
    /// The mode of that name in MIL.
    pub(super) fn named(name: Option<&str>) -> Result<Self, Fault> {
        Ok(match name {
            None | Some("DEFAULT") => Self::Start,
            Some("STRICT_ALIGN_CORNERS") => Self::StrictCorners,
            Some("ALIGN_CORNERS") => Self::Corners,
            Some("UNALIGN_CORNERS") => Self::Centers,
            Some("OFFSET_CORNERS") => Self::Offset,
            Some(other) => return Err(format!("`sampling_mode` is `{other}`")),
        })
    }

    /// Where point `i` of `n` lies in an interval from 0 to `last`, which has last + 1 pixels.
    ///
    /// Each is one quotient of whole numbers where `last` is whole, so that it is exact where it is
    /// whole itself.
    pub(super) fn point(self, i: usize, n: usize, last: f64) -> f64 {
        let (size, i, n) = (last + 1.0, i as f64, n as f64);
        match self {
            Self::Start => i * size / n,
            Self::Corners if n == 1.0 => last / 2.0,
            Self::StrictCorners | Self::Corners => i * last / (n - 1.0).max(1.0),
            Self::Centers => ((2.0 * i + 1.0) * size - n) / (2.0 * n),
            Self::Offset => (2.0 * i + 1.0) * last.max(1.0) / (2.0 * n),
        }
    }
}

/// A place on an axis: between two elements, of which `high` has the share `weight`.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub low: usize,
    pub high: usize,
    pub weight: f64,
}

impl Place {
    /// The place `at`, which is in an axis of `size` elements.
    pub(super) fn new(at: f64, size: usize) -> Self {
        let low = (at.max(0.0) as usize).min(size.saturating_sub(1));
        Self {
            low,
            high: (low + 1).min(size.saturating_sub(1)),
            weight: (at - low as f64).clamp(0.0, 1.0),
        }
    }

    fn element(at: usize) -> Self {
        Self {
            low: at,
            high: at,
            weight: 0.0,
        }
    }
}

/// The element at these places, one an axis; what has no share counts for nothing, even where it is
/// no number.
pub(super) fn between(x: &[f32], places: &[Place], strides: &[usize], at: usize) -> f64 {
    let (Some((place, places)), Some((stride, strides))) =
        (places.split_first(), strides.split_first())
    else {
        return f64::from(x[at]);
    };
    let side = |element: usize| between(x, places, strides, at + element * stride);
    match place.weight {
        0.0 => side(place.low),
        1.0 => side(place.high),
        weight => side(place.low) * (1.0 - weight) + side(place.high) * weight,
    }
}

/// The last axes of x, at places along each of them.
struct Grid<F> {
    from: Vec<usize>,
    to: Vec<usize>,
    strides: Vec<usize>,
    /// The place of a point of the result from its index, the number of points and the elements of
    /// x.
    place: F,
}

impl<F: Fn(usize, usize, usize) -> Place> Grid<F> {
    /// A grid over the last `n` axes.
    fn new(call: &Call<'_>, n: usize, place: F) -> Result<Self, Fault> {
        let (from, to) = (&call.tensor("x")?.shape, call.shape(0));
        let (from, to) = (from[from.len() - n..].to_vec(), to[to.len() - n..].to_vec());
        if let Some((_, to)) = from
            .iter()
            .zip(&to)
            .find(|(from, to)| **from == 0 && **to > 0)
        {
            return Err(format!(
                "an axis without elements cannot be resized to {to}"
            ));
        }
        Ok(Self {
            strides: strides(&from),
            from,
            to,
            place,
        })
    }

    /// Call `each` for the elements of a result of `n`, with where its run of these axes begins in
    /// x and the places of the element.
    fn each(&self, n: usize, mut each: impl FnMut(usize, usize, &[Place])) {
        if n == 0 {
            return;
        }
        let (n_from, n_to): (usize, usize) = (self.from.iter().product(), self.to.iter().product());
        let place = |axis: usize, i: usize| (self.place)(i, self.to[axis], self.from[axis]);
        let mut index = vec![0; self.to.len()];
        let mut places: Vec<Place> = (0..self.to.len()).map(|axis| place(axis, 0)).collect();
        for i in 0..n {
            each(i, i / n_to * n_from, &places);
            for axis in (0..self.to.len()).rev() {
                index[axis] = (index[axis] + 1) % self.to[axis];
                places[axis] = place(axis, index[axis]);
                if index[axis] > 0 {
                    break;
                }
            }
        }
    }

    fn linear(&self, call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
        let (x, n) = (call.f32s("x")?, call.shape(0).iter().product());
        let y = f32_out(&mut out[0], n)?;
        self.each(n, |i, start, places| {
            y[i] = between(x, places, &self.strides, start) as f32
        });
        Ok(())
    }

    fn nearest(&self, call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
        let n = call.shape(0).iter().product();
        let from = |start: usize, places: &[Place]| {
            start
                + places
                    .iter()
                    .zip(&self.strides)
                    .map(|(p, stride)| p.low * stride)
                    .sum::<usize>()
        };
        match (&*call.tensor("x")?.data, &mut out[0]) {
            (Buffer::F32(x), Buffer::F32(y)) => {
                self.each(n, |i, start, places| y[i] = x[from(start, places)])
            }
            (Buffer::I32(x), Buffer::I32(y)) => {
                self.each(n, |i, start, places| y[i] = x[from(start, places)])
            }
            _ => {
                return Err(format!(
                    "{} is not defined for these element types",
                    call.def.name
                ));
            }
        }
        Ok(())
    }
}

/// Point i is element floor(i * size / n).
fn start_of_pixel(i: usize, n: usize, size: usize) -> Place {
    Place::element((i as u128 * size as u128 / n as u128) as usize)
}

/// The factors of `upsample_nearest_neighbor` are taken anew from the sizes, as `upsample_bilinear`
/// documents.
fn nearest_neighbor(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    Grid::new(call, 2, start_of_pixel)?.nearest(call, out)
}

fn bilinear(call: &Call<'_>, out: &mut [Buffer], sampling: Sampling) -> Result<(), Fault> {
    Grid::new(call, 2, |i, n, size| on_axis(sampling, i, n, size))?.linear(call, out)
}

fn on_axis(sampling: Sampling, i: usize, n: usize, size: usize) -> Place {
    Place::new(sampling.point(i, n, size as f64 - 1.0), size)
}

fn resize_bilinear(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    bilinear(call, out, Sampling::named(call.string("sampling_mode"))?)
}

fn upsample_bilinear(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let corners = call.bool_or("align_corners", true);
    let sampling = match (corners, call.bool_or("half_pixel_centers", !corners)) {
        (true, false) => Sampling::StrictCorners,
        (false, true) => Sampling::Centers,
        (false, false) => Sampling::Start,
        (true, true) => {
            return Err("`align_corners` and `half_pixel_centers` exclude each other".to_owned());
        }
    };
    bilinear(call, out, sampling)
}

/// The nearest element to a point is the one below for `DEFAULT`, which makes it
/// `resize_nearest_neighbor`; for the other modes it is the one that is nearest, the upper of two:
/// coremltools does not say.
fn resize(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let n = usize::try_from(call.int_or("resized_dims", 0))
        .map_err(|_| "`resized_dims` is negative")?;
    let sampling = Sampling::named(call.string("sampling_mode"))?;
    if call.string("interpolation_mode") == Some("NEAREST_NEIGHBOR") {
        let nearest = |i, n, size: usize| match sampling {
            Sampling::Start => start_of_pixel(i, n, size),
            _ => {
                let at = (sampling.point(i, n, size as f64 - 1.0) + 0.5).floor();
                Place::element((at.max(0.0) as usize).min(size.saturating_sub(1)))
            }
        };
        return Grid::new(call, n, nearest)?.nearest(call, out);
    }
    if call.tensor("x")?.f32s().is_none() {
        return Err("`x` holds int32: how LINEAR rounds to integers is not documented".to_owned());
    }
    Grid::new(call, n, |i, n, size| on_axis(sampling, i, n, size))?.linear(call, out)
}

fn crop(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let first = |name: &str| {
        usize::try_from(call.int_or(name, 0)).map_err(|_| format!("`{name}` is negative"))
    };
    let (x, to) = (call.tensor("x")?, call.shape(0));
    let (top, left) = (first("crop_height")?, first("crop_width")?);
    let own = strides(&x.shape);
    let start = top * own[to.len() - 2] + left;
    place(call.context, &to, &own, start, x, &mut out[0])
}
