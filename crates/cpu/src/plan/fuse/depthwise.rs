//! `conv` of each channel by itself, along one axis, without padding.

use super::*;

pub(super) const FUSIONS: &[Fusion] = &[Fusion::new(
    "depthwise",
    pattern!(conv(x, weight)),
    depthwise,
)];

/// Channels that a task convolves.
const CHANNELS: usize = 64;

/// Of each channel of x [batch, channels, places], sums over its taps [channels, 1, taps].
#[derive(Debug)]
struct Depthwise {
    x: ValueId,
    taps: Tensor,
}

fn depthwise(p: &mut Planner<'_>, found: Match<'_>) -> Option<Vec<Found>> {
    let (f, op) = (p.f, p.f.op(found.root));
    let x = found.value("x").filter(|x| is_float32(p, *x))?;
    let weight = found.value("weight")?;
    let &[channels, 1, _] = p.known_shape(weight)?.as_slice() else {
        return None;
    };
    let groups = i64::try_from(channels).ok()?;
    let valid =
        op.arg("pad_type").is_none() || f.literal_arg(op, "pad_type")?.as_str() == Some("valid");
    let is_plain = valid
        && op.arg("bias").is_none()
        && is_all(p, op, "strides", 1)
        && is_all(p, op, "dilations", 1);
    let is_depthwise = op.arg("groups").is_some() && is_all(p, op, "groups", groups);
    if !is_plain || !is_depthwise {
        return None;
    }
    let taps = p.constant(weight).filter(|taps| taps.f32s().is_some())?;
    one(found, Depthwise { x, taps })
}

impl Kernel for Depthwise {
    fn facts(&self) -> Facts<'_> {
        Facts::new("depthwise convolution", [self.x])
    }

    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let (x, taps) = (frame.get(self.x)?.clone(), &self.taps);
        let (&[batch, channels, n], &[_, _, n_taps]) = (x.shape.as_slice(), taps.shape.as_slice())
        else {
            return Err("the convolution is not of one axis".to_owned());
        };
        let len = (n + 1).saturating_sub(n_taps);
        if len == 0 || channels * n_taps != taps.len() {
            return Err(format!(
                "{:?} has no place for taps {:?}",
                x.shape, taps.shape
            ));
        }
        let shape = vec![batch, channels, len];
        let (mut out, size) = frame.pool.take_checked(&shape)?;
        let (from, taps) = (floats(&x)?, floats(taps)?);
        let pool = frame.context.pool();
        pool.run_chunks(&mut out[..size], len * CHANNELS, |task, out| {
            for (i, out) in out.chunks_exact_mut(len).enumerate() {
                let channel = task * CHANNELS + i;
                let own = &taps[channel % channels * n_taps..][..n_taps];
                let row = &from[channel * n..][..n];
                out.fill(0.0);
                for (tap, row) in own.iter().zip(row.windows(len)) {
                    out.iter_mut().zip(row).for_each(|(out, v)| *out += tap * v);
                }
            }
        });
        Ok(vec![Tensor::fp32(shape, out)])
    }
}
