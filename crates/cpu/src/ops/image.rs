//! Resizing and cropping of the last axes, computed in f64.

use super::{Call, Eval, Fault, SHARED_LEN, place, strides};
use crate::tensor::{Buffer, alike};

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
struct Grid<'a, F> {
    call: &'a Call<'a>,
    from: Vec<usize>,
    to: Vec<usize>,
    strides: Vec<usize>,
    /// The place of a point of the result from its index, the number of points and the elements of
    /// x.
    place: F,
}

impl<'a, F: Fn(usize, usize, usize) -> Place + Sync> Grid<'a, F> {
    /// A grid over the last `n` axes.
    fn new(call: &'a Call<'a>, n: usize, place: F) -> Result<Self, Fault> {
        let (from, to) = (&call.tensor("x")?.shape, call.shape(0));
        let (mut from, mut to) = (from[from.len() - n..].to_vec(), to[to.len() - n..].to_vec());
        if n == 0 {
            // Each element by itself.
            (from, to) = (vec![1], vec![1]);
        }
        let mut axes = from.iter().zip(&to);
        if let Some((_, to)) = axes.find(|(from, to)| **from == 0 && **to > 0) {
            return Err(format!(
                "an axis without elements cannot be resized to {to}"
            ));
        }
        Ok(Self {
            call,
            strides: strides(&from),
            from,
            to,
            place,
        })
    }

    /// Call `row` for the result `y`, a row along the last axis or a part of one at a time, with
    /// where its run of these axes begins in x, its places along the axes before, and those of its
    /// elements.
    fn rows<T: Send>(
        &self,
        y: &mut [T],
        row: impl Fn(usize, &[Place], &[Place], &mut [T]) + Sync,
    ) -> Result<(), Fault> {
        let n = self.call.shape(0).iter().product();
        let y = y.get_mut(..n).ok_or("the result has too few elements")?;
        let (Some((&n_last, outer)), Some((&from_last, from_outer))) =
            (self.to.split_last(), self.from.split_last())
        else {
            return Err("no axis is resized".to_owned());
        };
        let along_last = |i| (self.place)(i, n_last, from_last);
        // Places of a row that is longer are made for each part of it.
        let shared = if n_last <= SHARED_LEN { n_last } else { 0 };
        let shared: Vec<Place> = (0..shared).map(along_last).collect();
        let n_from: usize = self.from.iter().product();
        let n_rows: usize = outer.iter().product();
        let chunk_len = SHARED_LEN.next_multiple_of(n_last.clamp(1, SHARED_LEN));
        let pool = self.call.context.pool();
        pool.run_chunks(y, chunk_len, |i, mut y| {
            let mut at = i * chunk_len;
            let mut places = vec![Place::element(0); outer.len()];
            let mut own = Vec::new();
            while !y.is_empty() {
                let (i, first) = (at / n_last, at % n_last);
                let (part, rest) = y.split_at_mut(y.len().min(n_last - first));
                let mut left = i;
                let axes = outer.iter().zip(from_outer);
                for (place, (to, from)) in places.iter_mut().zip(axes).rev() {
                    *place = (self.place)(left % to, *to, *from);
                    left /= to;
                }
                let last = if shared.is_empty() {
                    own.clear();
                    own.extend((first..first + part.len()).map(along_last));
                    &own
                } else {
                    &shared
                };
                row(i / n_rows * n_from, &places, last, part);
                at += part.len();
                y = rest;
            }
        });
        Ok(())
    }

    fn linear(&self, out: &mut [Buffer]) -> Result<(), Fault> {
        let x = self.call.f32s("x")?;
        let Buffer::F32(y) = &mut out[0] else {
            return Err("the result does not hold fp32".to_owned());
        };
        self.rows(y, |start, outer, last, y| {
            let mut sums = vec![0.0; y.len()];
            mixed_row(x, (outer, last), &self.strides, start, &mut sums);
            y.iter_mut().zip(sums).for_each(|(y, sum)| *y = sum as f32);
        })
    }

    fn nearest(&self, out: &mut [Buffer]) -> Result<(), Fault> {
        let x = self.call.tensor("x")?;
        let mut done = Ok(());
        let is_alike = alike!(&mut out[0], &*x.data, |y, x| {
            done = self.rows(y, |start, outer, last, y| {
                let along = outer.iter().zip(&self.strides);
                let start = start + along.map(|(p, stride)| p.low * stride).sum::<usize>();
                y.iter_mut()
                    .zip(last)
                    .for_each(|(y, p)| *y = x[start + p.low]);
            });
            true
        });
        if is_alike {
            return done;
        }
        Err(format!(
            "{} is not defined for these element types",
            self.call.def.name
        ))
    }
}

/// The elements of a row of the result, as [`between`] has each of them.
fn mixed_row(
    x: &[f32],
    (outer, last): (&[Place], &[Place]),
    strides: &[usize],
    at: usize,
    out: &mut [f64],
) {
    let (Some((place, outer)), Some((stride, strides))) =
        (outer.split_first(), strides.split_first())
    else {
        let value = |element: usize| f64::from(x[at + element]);
        for (out, place) in out.iter_mut().zip(last) {
            *out = match place.weight {
                0.0 => value(place.low),
                1.0 => value(place.high),
                weight => value(place.low) * (1.0 - weight) + value(place.high) * weight,
            };
        }
        return;
    };
    let side = |element: usize, out: &mut [f64]| {
        mixed_row(x, (outer, last), strides, at + element * stride, out);
    };
    match place.weight {
        0.0 => side(place.low, out),
        1.0 => side(place.high, out),
        weight => {
            let mut high = vec![0.0; out.len()];
            side(place.low, out);
            side(place.high, &mut high);
            for (out, high) in out.iter_mut().zip(high) {
                *out = *out * (1.0 - weight) + high * weight;
            }
        }
    }
}

/// Point i is element floor(i * size / n).
fn start_of_pixel(i: usize, n: usize, size: usize) -> Place {
    Place::element((i as u128 * size as u128 / n as u128) as usize)
}

/// The factors of `upsample_nearest_neighbor` are taken anew from the sizes, as `upsample_bilinear`
/// documents.
fn nearest_neighbor(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    Grid::new(call, 2, start_of_pixel)?.nearest(out)
}

fn bilinear(call: &Call<'_>, out: &mut [Buffer], sampling: Sampling) -> Result<(), Fault> {
    Grid::new(call, 2, |i, n, size| on_axis(sampling, i, n, size))?.linear(out)
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
        return Grid::new(call, n, nearest)?.nearest(out);
    }
    if call.tensor("x")?.f32s().is_none() {
        return Err("`x` holds int32: how LINEAR rounds to integers is not documented".to_owned());
    }
    Grid::new(call, n, |i, n, size| on_axis(sampling, i, n, size))?.linear(out)
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
