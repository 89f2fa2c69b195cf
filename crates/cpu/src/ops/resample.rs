//! Images at places that are given at run time, computed in f64.

use super::image::{Place, Sampling, between};
use super::{Call, Eval, Fault, f32_out};
use crate::tensor::{Buffer, Tensor};

pub(super) static OPS: &[(&str, Eval)] = &[
    ("affine", affine),
    ("crop_resize", crop_resize),
    ("resample", resample),
];

/// What an image is beyond its border.
#[derive(Clone, Copy)]
enum Border {
    /// This number.
    Constant(f64),
    /// The last element.
    Edge,
    /// The elements before the last, back from it.
    Reflection,
    /// The elements from the last on, back from it.
    Symmetric,
}

impl Border {
    /// The element of an axis of `size` that stands at `at`.
    fn element(self, at: i64, size: usize) -> Option<usize> {
        let last = i64::try_from(size).ok()? - 1;
        let element = match self {
            Border::Constant(_) => Some(at).filter(|at| (0..=last).contains(at)),
            Border::Edge => Some(at.clamp(0, last)),
            Border::Reflection => {
                let at = at.rem_euclid((2 * last).max(1));
                Some(if at > last { 2 * last - at } else { at })
            }
            Border::Symmetric => {
                let at = at.rem_euclid(2 * last + 2);
                Some(if at > last { 2 * last + 1 - at } else { at })
            }
        };
        element.and_then(|at| usize::try_from(at).ok())
    }
}

/// How images [B, C, height, width] are read between their elements.
struct Reader<'a> {
    x: &'a [f32],
    channels: usize,
    size: [usize; 2],
    border: Border,
    is_nearest: bool,
}

impl<'a> Reader<'a> {
    fn new(call: &Call<'a>, border: Border, is_nearest: bool) -> Result<Self, Fault> {
        let &[_, channels, height, width] = call.tensor("x")?.shape.as_slice() else {
            return Err("`x` is not of rank 4".to_owned());
        };
        if height == 0 || width == 0 {
            return Err("an image without elements cannot be read".to_owned());
        }
        Ok(Self {
            x: call.f32s("x")?,
            channels,
            size: [height, width],
            border,
            is_nearest,
        })
    }

    /// The elements around a place of one axis that have a share in it, and their shares.
    fn around(&self, at: f64, size: usize) -> [(Option<usize>, f64); 2] {
        if self.is_nearest {
            // Halves go to the even element, as in PyTorch.
            return [
                (self.border.element(at.round_ties_even() as i64, size), 1.0),
                (None, 0.0),
            ];
        }
        let low = at.floor();
        // A place beyond all numbers has no fraction.
        let share = if (at - low).is_finite() {
            at - low
        } else {
            0.0
        };
        let [a, b] =
            [low as i64, (low as i64).saturating_add(1)].map(|at| self.border.element(at, size));
        [(a, 1.0 - share), (b, share)]
    }

    /// Fill a plane of `n` elements for each channel of image `b`: element `i` is at row and column
    /// `at(i)`.
    fn read(&self, b: usize, n: usize, at: impl Fn(usize) -> [f64; 2], y: &mut [f32]) {
        let n_image = self.size[0] * self.size[1];
        for i in 0..n {
            let [row, column] = at(i);
            let (rows, columns) = (
                self.around(row, self.size[0]),
                self.around(column, self.size[1]),
            );
            for c in 0..self.channels {
                let image = &self.x[(b * self.channels + c) * n_image..][..n_image];
                let value = |r: Option<usize>, c: Option<usize>| match (r, c, self.border) {
                    (Some(r), Some(c), _) => f64::from(image[r * self.size[1] + c]),
                    (_, _, Border::Constant(v)) => v,
                    _ => f64::NAN,
                };
                let mut sum = if row.is_nan() || column.is_nan() {
                    f64::NAN
                } else {
                    0.0
                };
                for (r, row_share) in rows.into_iter().filter(|r| r.1 > 0.0) {
                    let of_row = columns
                        .into_iter()
                        .filter(|c| c.1 > 0.0)
                        .map(|(c, share)| share * value(r, c));
                    sum += row_share * of_row.sum::<f64>();
                }
                y[c * n + i] = sum as f32;
            }
        }
    }
}

/// The element that a coordinate from -1 to 1 is at: these are the first and the last element, or
/// with `edges` the outer edges of both.
fn from_minus_one(v: f64, size: usize, edges: bool) -> f64 {
    let size = size as f64;
    if edges {
        ((v + 1.0) * size - 1.0) / 2.0
    } else {
        (v + 1.0) / 2.0 * (size - 1.0)
    }
}

/// The coordinate from -1 to 1 of an element; see [`from_minus_one`]. The only element of an axis
/// is in the middle.
fn to_minus_one(i: usize, size: usize, edges: bool) -> f64 {
    match (size, edges) {
        (_, true) => (2 * i + 1) as f64 / size as f64 - 1.0,
        (1, false) => 0.0,
        (_, false) => 2.0 * i as f64 / (size - 1) as f64 - 1.0,
    }
}

fn affine(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let reader = Reader::new(
        call,
        Border::Constant(f64::from(call.f32_or("padding_value", 0.0)?)),
        false,
    )?;
    let edges = !call.bool_or("align_corners", true);
    let matrices = call.f32s("transform_matrix")?;
    let &[n, channels, height, width] = call.shape(0).as_slice() else {
        return Err("the result is not of rank 4".to_owned());
    };
    let (n_plane, [rows, columns]) = (height * width, reader.size);
    let y = f32_out(&mut out[0], n * channels * n_plane)?;
    for (b, y) in y.chunks_mut((channels * n_plane).max(1)).enumerate() {
        let m: Vec<f64> = matrices[if matrices.len() == 6 { 0 } else { b * 6 }..][..6]
            .iter()
            .copied()
            .map(f64::from)
            .collect();
        let at = |i: usize| {
            let (v, u) = (
                to_minus_one(i / width, height, edges),
                to_minus_one(i % width, width, edges),
            );
            let (column, row) = (m[0] * u + m[1] * v + m[2], m[3] * u + m[4] * v + m[5]);
            [
                from_minus_one(row, rows, edges),
                from_minus_one(column, columns, edges),
            ]
        };
        reader.read(b, n_plane, at, y);
    }
    Ok(())
}

fn resample(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let border = match call.string("padding_mode") {
        Some("constant") => Border::Constant(f64::from(call.f32_or("padding_value", 0.0)?)),
        Some("border") => Border::Edge,
        Some("reflection") => Border::Reflection,
        Some("symmetric") => Border::Symmetric,
        _ => return Err("`padding_mode` is none that is known".to_owned()),
    };
    let reader = Reader::new(
        call,
        border,
        call.string("sampling_mode") == Some("nearest"),
    )?;
    let edges = !call.bool_or("align_corners", true);
    let mode = call.string("coordinates_mode");
    let place = |v: f64, size: usize| match mode {
        Some("normalized_minus_one_to_one") => from_minus_one(v, size, edges),
        Some("normalized_zero_to_one") => from_minus_one(2.0 * v - 1.0, size, edges),
        _ => v,
    };
    let coordinates = numbers(call.tensor("coordinates")?);
    let &[n, channels, height, width] = call.shape(0).as_slice() else {
        return Err("the result is not of rank 4".to_owned());
    };
    let n_plane = height * width;
    let y = f32_out(&mut out[0], n * channels * n_plane)?;
    for (b, y) in y.chunks_mut((channels * n_plane).max(1)).enumerate() {
        let pairs = coordinates[b * n_plane * 2..][..n_plane * 2]
            .as_chunks::<2>()
            .0;
        let at = |i: usize| {
            [
                place(pairs[i][1], reader.size[0]),
                place(pairs[i][0], reader.size[1]),
            ]
        };
        reader.read(b, n_plane, at, y);
    }
    Ok(())
}

fn numbers(t: &Tensor) -> Vec<f64> {
    let mut numbers = Vec::with_capacity(t.len());
    t.each(|_, v| numbers.push(v));
    numbers
}

/// One box: where its rows and columns begin and end in the image.
struct Extent([[f64; 2]; 2]);

impl Extent {
    /// The box of four numbers, as `box_coordinate_mode` says.
    fn new(call: &Call<'_>, numbers: &[f64], size: [usize; 2]) -> Result<Self, Fault> {
        let is_normalized = call.bool_or("normalized_coordinates", false);
        let scale = f64::from(call.f32_or("spatial_scale", 1.0)?);
        let mode = call
            .string("box_coordinate_mode")
            .unwrap_or("CORNERS_HEIGHT_FIRST");
        let [a, b, c, d] = *numbers else {
            return Err("a box has not four numbers".to_owned());
        };
        let pairs = if mode.ends_with("HEIGHT_FIRST") {
            [[a, c], [b, d]]
        } else {
            [[b, d], [a, c]]
        };
        let mut ends = [[0.0; 2]; 2];
        for axis in 0..2 {
            let unit = if is_normalized {
                size[axis] as f64 - 1.0
            } else {
                1.0
            };
            let [first, second] = pairs[axis].map(|v| v * unit * scale);
            let is_center = mode.starts_with("CENTER");
            ends[axis] = if is_center {
                [first - second / 2.0, first + second / 2.0]
            } else {
                [first, second]
            };
        }
        if ends.iter().flatten().all(|v| v.is_finite()) {
            return Ok(Self(ends));
        }
        Err(format!("a box has the coordinates {numbers:?}"))
    }

    /// The place of point `i` of `n` along an axis of `size` elements; none for one outside of it.
    fn place(
        &self,
        axis: usize,
        sampling: Sampling,
        [i, n]: [usize; 2],
        size: usize,
    ) -> Option<Place> {
        let [start, end] = self.0[axis];
        let point = start + sampling.point(i, n, end - start);
        let point = point.max(start.min(end)).min(start.max(end));
        (0.0..=size as f64 - 1.0)
            .contains(&point)
            .then(|| Place::new(point, size))
    }
}

/// The image that box `n` is of; none for one that is of all images.
fn image_of(
    call: &Call<'_>,
    n: usize,
    numbers: &[f64],
    images: Option<&[i64]>,
) -> Result<Option<usize>, Fault> {
    let image = match (call.opt_tensor("roi"), images) {
        (Some(_), _) if numbers.len() == 4 => return Ok(None),
        (Some(_), _) => numbers[0],
        (None, Some(images)) => images.get(n).copied().unwrap_or(-1) as f64,
        (None, None) => n as f64,
    };
    let n_images = call.tensor("x")?.shape[0];
    if image >= 0.0 && image < n_images as f64 {
        return Ok(Some(image as usize));
    }
    Err(format!("box {n} is of image {image}, there are {n_images}"))
}

/// Points outside of the image are `pad_value`, not mixed with it: as `extrapolation_value` of
/// TensorFlow, which the documentation refers to.
fn crop_resize(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (x, shape) = (call.f32s("x")?, &call.tensor("x")?.shape);
    let (n_images, size, n_image) = (shape[0], [shape[2], shape[3]], shape[2] * shape[3]);
    let sampling = Sampling::named(call.string("sampling_mode"))?;
    let pad_value = f64::from(call.f32_or("pad_value", 0.0)?);
    let to = call.shape(0);
    let [height, width] = [to[to.len() - 2], to[to.len() - 1]];
    let y = f32_out(&mut out[0], to.iter().product())?;
    let mut planes = y.chunks_mut((height * width).max(1));
    let boxes = call.tensor(if call.opt_tensor("roi").is_some() {
        "roi"
    } else {
        "boxes"
    })?;
    let n_numbers = if boxes.shape.len() == 5 {
        boxes.shape[2]
    } else {
        4
    };
    let images = call.ints("box_indices");
    for (n, numbers) in numbers(boxes).chunks(n_numbers).enumerate() {
        let extent = Extent::new(call, &numbers[n_numbers - 4..], size)?;
        let images = match image_of(call, n, numbers, images.as_deref())? {
            None => 0..n_images,
            Some(b) => b..b + 1,
        };
        let channels = images.flat_map(|b| (0..shape[1]).map(move |c| b * shape[1] + c));
        for (channel, plane) in channels.zip(&mut planes) {
            let image = &x[channel * n_image..][..n_image];
            for (i, y) in plane.iter_mut().enumerate() {
                let row = extent.place(0, sampling, [i / width, height], size[0]);
                let column = extent.place(1, sampling, [i % width, width], size[1]);
                let value = match (row, column) {
                    (Some(row), Some(column)) => between(image, &[row, column], &[size[1], 1], 0),
                    _ => pad_value,
                };
                *y = value as f32;
            }
        }
    }
    Ok(())
}
