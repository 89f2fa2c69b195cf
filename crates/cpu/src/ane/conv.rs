//! Convolution by the engine's accumulator: the patch that a filter covers, times the filter.

use super::effects::Effects;
use super::half::Tally;
use super::product::{Product, Values, by_rows, read};
use crate::ops::{Call, Fault, f32_out, strides};
use crate::tensor::Buffer;

/// Elements of patches that are held at once, 4 MiB.
const PATCHES: usize = 1 << 20;

pub(super) fn conv(
    call: &Call<'_>,
    out: &mut [Buffer],
    effects: Effects,
    tally: &mut Tally,
) -> Result<(), Fault> {
    let isa = call.context.isa();
    let (x, weight) = (call.tensor("x")?, call.tensor("weight")?);
    let shape = call.shape(0);
    let [n_batch, n_out, places] = match shape.as_slice() {
        [n, c, rest @ ..] => [*n, *c, rest.iter().product()],
        _ => return Err("the result is not [batch, channels, ..]".to_owned()),
    };
    let window = Window::new(call, &x.shape, &weight.shape, &shape)?;
    let n_groups = usize::try_from(call.int_or("groups", 1))
        .ok()
        .filter(|g| *g > 0)
        .ok_or("`groups` is not positive")?;
    let [channels, len] = [weight.shape[1], window.kernel.iter().product()];
    let fits = channels.checked_mul(n_groups) == Some(x.shape[1])
        && weight.shape[0] == n_out
        && n_out % n_groups == 0;
    let bias = call
        .opt_tensor("bias")
        .map(|b| read(isa, b, effects))
        .transpose()?;
    if !fits || channels * len == 0 || bias.as_ref().is_some_and(|b| b.len() != n_out) {
        return Err(format!(
            "{:?} in {n_groups} groups does not fit filters {:?}",
            x.shape, weight.shape
        ));
    }
    let (x, weight) = (
        Values::new(isa, x, effects)?,
        Values::new(isa, weight, effects)?,
    );
    let (n_cols, filters) = (channels * len, n_out / n_groups);
    let z = f32_out(&mut out[0], shape.iter().product())?;
    let most = (PATCHES / n_cols).clamp(1, places.max(1));
    let (mut patches, mut y) = (vec![0f32; most * n_cols], vec![0f32; most * filters]);
    for group in 0..n_batch * n_groups {
        let (n, g) = (group / n_groups, group % n_groups);
        let row = |r: usize, out: &mut [f32]| weight.copy((g * filters + r) * n_cols, 1, out);
        for start in (0..places).step_by(most) {
            let n_places = most.min(places - start);
            for (i, patch) in patches[..n_places * n_cols].chunks_mut(n_cols).enumerate() {
                window.patch(&x, (n * n_groups + g) * channels, start + i, patch);
            }
            let bias = bias.as_ref().map(|b| &b[g * filters..][..filters]);
            let product = Product {
                size: [filters, n_cols],
                row: &row,
                x: &patches,
                bias,
            };
            *tally += by_rows(
                call.context,
                &product,
                effects,
                &mut y[..n_places * filters],
            );
            for (i, y) in y[..n_places * filters].chunks(filters.max(1)).enumerate() {
                y.iter()
                    .enumerate()
                    .for_each(|(c, y)| z[(n * n_out + g * filters + c) * places + start + i] = *y);
            }
        }
    }
    Ok(())
}

/// Where a filter lies over x, along the axes after batch and channels.
struct Window {
    x: Vec<usize>,
    out: Vec<usize>,
    kernel: Vec<usize>,
    steps: Vec<usize>,
    dilations: Vec<usize>,
    /// Zeros before x.
    before: Vec<usize>,
    /// Whether it covers the place of the result and nothing else.
    is_pointwise: bool,
}

impl Window {
    fn new(call: &Call<'_>, x: &[usize], weight: &[usize], out: &[usize]) -> Result<Self, Fault> {
        let rank = x.len().saturating_sub(2);
        if weight.len() != x.len() || out.len() != x.len() || rank == 0 {
            return Err(format!("filters {weight:?} do not fit {x:?}"));
        }
        let sizes = |name: &str| -> Result<Vec<usize>, Fault> {
            let given = call.ints(name).unwrap_or_else(|| vec![1; rank]);
            let sizes: Option<Vec<usize>> = given
                .iter()
                .map(|v| usize::try_from(*v).ok().filter(|v| *v > 0))
                .collect();
            sizes
                .filter(|s| s.len() == rank)
                .ok_or_else(|| format!("`{name}` is {given:?}, {rank} axes are due"))
        };
        let (steps, dilations) = (sizes("strides")?, sizes("dilations")?);
        let (x, out, kernel) = (x[2..].to_vec(), out[2..].to_vec(), weight[2..].to_vec());
        let pad = call.ints("pad").unwrap_or_else(|| vec![0; 2 * rank]);
        let reach = |n: usize, step: usize| n.saturating_sub(1).saturating_mul(step);
        let before = |a: usize| {
            let covered = reach(out[a], steps[a])
                .saturating_add(reach(kernel[a], dilations[a]))
                .saturating_add(1);
            let missing = covered.saturating_sub(x[a]);
            match call.string("pad_type") {
                Some("custom") => pad
                    .get(2 * a)
                    .and_then(|p| usize::try_from(*p).ok())
                    .unwrap_or(0),
                Some("same") => missing / 2,
                Some("same_lower") => missing.div_ceil(2),
                _ => 0,
            }
        };
        let before: Vec<usize> = (0..rank).map(before).collect();
        let ones = |sizes: &[usize]| sizes.iter().all(|n| *n == 1);
        let is_pointwise =
            ones(&kernel) && ones(&steps) && x == out && before.iter().all(|n| *n == 0);
        Ok(Self {
            is_pointwise,
            x,
            out,
            kernel,
            steps,
            dilations,
            before,
        })
    }

    /// What the filter covers at a place of the result, channel by channel from `channel` on, zeros
    /// beside x.
    fn patch(&self, x: &Values<'_>, channel: usize, place: usize, patch: &mut [f32]) {
        if self.is_pointwise {
            let size = self.x.iter().product();
            x.copy(channel * size + place, size, patch);
            return;
        }
        let (own, taps) = (strides(&self.x), strides(&self.kernel));
        let places = strides(&self.out);
        let size: usize = self.x.iter().product();
        let len: usize = self.kernel.iter().product();
        for (i, to) in patch.iter_mut().enumerate() {
            let (c, tap) = (i / len, i % len);
            let at = (0..self.x.len()).try_fold(0, |at, a| {
                let start = (place / places[a] % self.out[a]).checked_mul(self.steps[a])?;
                let tap = (tap / taps[a] % self.kernel[a]).checked_mul(self.dilations[a])?;
                let index = start
                    .checked_add(tap)?
                    .checked_sub(self.before[a])
                    .filter(|i| *i < self.x[a])?;
                Some(at + index * own[a])
            });
            match at {
                Some(at) => x.copy((channel + c) * size + at, 1, std::slice::from_mut(to)),
                None => *to = 0.0,
            }
        }
    }
}
