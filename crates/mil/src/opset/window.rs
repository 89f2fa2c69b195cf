//! The windows that convolutions and pools move over the spatial axes: which elements they cover,
//! and how many positions they have.
//!
//! Source: coremltools `ops/defs/_utils.py`, and for the distribution of padding `SamePadding` of
//! `NeuralNetwork.proto`.

use super::TypeError;
use crate::types::Dim;

/// How an axis is padded.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Padding {
    /// No padding.
    Valid,
    /// Enough for `ceil(size / stride)` positions. An odd element goes after the axis, or before it
    /// if `lower`.
    Same { lower: bool },
    /// These numbers of elements, before and after each axis.
    Custom(Vec<i64>),
}

/// A window over all spatial axes: kernel sizes, strides, dilations and padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    kernel: Vec<usize>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    padding: Padding,
}

/// A window along one axis of known size. All fields count elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Size of the kernel.
    pub kernel: usize,
    /// Distance between consecutive positions of the window.
    pub stride: usize,
    /// Distance between consecutive elements of the kernel.
    pub dilation: usize,
    /// Padding before the axis.
    pub before: usize,
    /// Padding after the axis.
    pub after: usize,
}

impl Windows {
    /// The window of a kernel of these sizes. `ints` returns the values of `strides`, `dilations`
    /// and `pad`, or `None` for those that are not bound.
    pub fn new(
        kernel: Vec<usize>,
        pad_type: &str,
        ints: impl Fn(&str) -> Result<Option<Vec<i64>>, TypeError>,
    ) -> Result<Self, TypeError> {
        let n = kernel.len();
        let steps = |name: &str| -> Result<Vec<i64>, TypeError> {
            let steps = ints(name)?.unwrap_or_else(|| vec![1; n]);
            if steps.len() == n && steps.iter().all(|s| *s >= 1) {
                return Ok(steps);
            }
            Err(TypeError::new(format_args!(
                "`{name}`: expected {n} positive numbers, found {steps:?}"
            )))
        };
        let padding = match pad_type {
            "valid" => Padding::Valid,
            "same" => Padding::Same { lower: false },
            "same_lower" => Padding::Same { lower: true },
            "custom" => Padding::Custom(ints("pad")?.unwrap_or_else(|| vec![0; 2 * n])),
            other => {
                return Err(TypeError::new(format_args!(
                    "`pad_type`: expected valid, same, same_lower or custom, found `{other}`"
                )));
            }
        };
        if let Padding::Custom(pad) = &padding
            && (pad.len() != 2 * n || pad.iter().any(|p| *p < 0))
        {
            return Err(TypeError::new(format_args!(
                "`pad`: expected {} numbers of 0 or more, found {pad:?}",
                2 * n
            )));
        }
        if kernel.contains(&0) {
            return Err(TypeError::new(format_args!(
                "expected a kernel without sizes of 0, found {kernel:?}"
            )));
        }
        Ok(Self {
            kernel,
            strides: steps("strides")?,
            dilations: steps("dilations")?,
            padding,
        })
    }

    /// The window along spatial axis `axis` of `size` elements.
    pub fn along(&self, axis: usize, size: usize) -> Result<Window, TypeError> {
        let total = match &self.padding {
            Padding::Valid => 0,
            Padding::Custom(pad) => {
                return self.window(
                    axis,
                    i128::from(pad[2 * axis]),
                    i128::from(pad[2 * axis + 1]),
                );
            }
            Padding::Same { .. } => {
                let (size, stride) = (size as i128, i128::from(self.strides[axis]));
                ((size + stride - 1) / stride - 1) * stride + self.reach(axis) - size
            }
        };
        let (less, more) = (total.max(0) / 2, total.max(0) - total.max(0) / 2);
        let is_lower = self.padding == Padding::Same { lower: true };
        if is_lower {
            self.window(axis, more, less)
        } else {
            self.window(axis, less, more)
        }
    }

    /// The number of positions of the window along spatial axis `axis`, or `None` if it is unknown.
    /// With `ceil` the number is rounded up: the last window may reach beyond the padding.
    pub fn places(&self, axis: usize, size: Dim, ceil: bool) -> Result<Option<Dim>, TypeError> {
        match size {
            Dim::Known(n) => self
                .along(axis, n)?
                .places(n, ceil)
                .map(|n| Some(Dim::Known(n))),
            Dim::Symbol(_) => Ok(self.keeps_size(axis).then_some(size)),
        }
    }

    /// Whether the number of positions equals the number of elements for every size.
    fn keeps_size(&self, axis: usize) -> bool {
        let total = match &self.padding {
            Padding::Valid => 0,
            Padding::Custom(pad) => i128::from(pad[2 * axis]) + i128::from(pad[2 * axis + 1]),
            Padding::Same { .. } => self.reach(axis) - 1,
        };
        self.strides[axis] == 1 && total == self.reach(axis) - 1
    }

    /// How a transposed convolution spreads the `size` elements of an axis, and the size of the
    /// result: `wanted`, or the size that the padding leaves.
    ///
    /// Element i and kernel element k contribute to element `i * stride + k * dilation - before` of
    /// the result. With a `wanted` size, the padding is that of a `same` convolution from the
    /// result to the input with these strides.
    pub fn spread(
        &self,
        axis: usize,
        size: usize,
        wanted: Option<usize>,
    ) -> Result<(Window, usize), TypeError> {
        let stride = i128::from(self.strides[axis]);
        let full = (size as i128 - 1) * stride + self.reach(axis);
        let (before, n) = match (&self.padding, wanted.map(|n| n as i128)) {
            (Padding::Custom(pad), Some(n)) => (i128::from(pad[2 * axis]), n),
            (Padding::Custom(pad), None) => {
                let (before, after) = (i128::from(pad[2 * axis]), i128::from(pad[2 * axis + 1]));
                (before, full - before - after)
            }
            (_, Some(n)) => ((full - n).max(0) / 2, n),
            (Padding::Valid, None) => (0, full),
            (Padding::Same { .. }, None) => (
                (full - size as i128 * stride).max(0) / 2,
                size as i128 * stride,
            ),
        };
        match usize::try_from(n) {
            Ok(elements) if elements > 0 => Ok((self.window(axis, before, 0)?, elements)),
            _ => Err(TypeError::new(format_args!(
                "expected a positive size of the result, found {n} for spatial axis {axis} of \
                 {size} elements"
            ))),
        }
    }

    /// Number of elements from the first to the last that the kernel covers.
    fn reach(&self, axis: usize) -> i128 {
        (self.kernel[axis] as i128 - 1) * i128::from(self.dilations[axis]) + 1
    }

    fn window(&self, axis: usize, before: i128, after: i128) -> Result<Window, TypeError> {
        let too_large = || {
            TypeError::new(format_args!(
                "the kernel {:?} is too large along spatial axis {axis}",
                self.kernel
            ))
        };
        // Positions are computed in isize.
        let number = |v: i128| {
            isize::try_from(v)
                .ok()
                .filter(|v| v.unsigned_abs() < usize::MAX >> 4)
        };
        let steps = [self.strides[axis], self.dilations[axis]].map(i128::from);
        match [self.reach(axis), before, after, steps[0], steps[1]]
            .map(|v| number(v).map(isize::unsigned_abs))
        {
            [
                Some(_),
                Some(before),
                Some(after),
                Some(stride),
                Some(dilation),
            ] => Ok(Window {
                kernel: self.kernel[axis],
                stride,
                dilation,
                before,
                after,
            }),
            _ => Err(too_large()),
        }
    }
}

impl Window {
    /// The window of one element at every place.
    pub const ONE: Self = Self {
        kernel: 1,
        stride: 1,
        dilation: 1,
        before: 0,
        after: 0,
    };

    /// The number of positions of the window over `size` elements; see [`Windows::places`].
    pub fn places(&self, size: usize, ceil: bool) -> Result<usize, TypeError> {
        let (stride, padding) = (
            self.stride as i128,
            self.before as i128 + self.after as i128,
        );
        let reach = (self.kernel as i128 - 1) * self.dilation as i128 + 1;
        let room = size as i128 + padding - reach + if ceil { stride - 1 } else { 0 };
        let mut n = if room < 0 { 0 } else { room / stride + 1 };
        // A window must not start beyond the elements and the first half of the padding.
        if ceil && padding > 0 && 2 * (n - 1) * stride >= 2 * size as i128 + padding {
            n -= 1;
        }
        match usize::try_from(n) {
            Ok(n) if n > 0 => Ok(n),
            _ => Err(TypeError::new(format_args!(
                "expected at least the {reach} elements that the kernel covers, found {size} and \
                 padding {padding}"
            ))),
        }
    }
}
