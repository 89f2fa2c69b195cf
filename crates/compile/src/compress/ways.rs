//! The ways in which a tensor may be stored: with scales of channels or without, and which of the
//! two is worth it.

use std::sync::{Arc, OnceLock};

use super::job::{Job, NotFinite, Store, Tensor};
use super::{Encoding, Scale, sample};

/// Scales stand behind a product where they leave at most this share of the error of a sample: less
/// is not worth an op.
const WORTH_A_MUL: f64 = 0.97;

/// The ways in which a tensor may be stored, which all its uses share.
#[derive(Clone)]
pub(super) enum Ways {
    One(Scale, Arc<Job>),
    /// Without scales, or with scales behind products.
    Better(Arc<Better>),
}

/// Two jobs of one tensor, of which the better one is done.
pub(super) struct Better {
    plain: Arc<Job>,
    scaled: Arc<Job>,
    taken: OnceLock<Result<Taken, NotFinite>>,
}

/// The way that is taken.
#[derive(Clone, Copy)]
struct Taken {
    is_scaled: bool,
    /// The relative error of a sample without scales.
    without: f64,
}

impl Better {
    fn taken(&self) -> Result<Taken, NotFinite> {
        let decide = || {
            let error = |job: &Job| sample::squares(job).map(relative);
            let without = error(&self.plain)?;
            Ok(Taken {
                is_scaled: error(&self.scaled)? <= WORTH_A_MUL * without,
                without,
            })
        };
        self.taken.get_or_init(decide).clone()
    }
}

pub(super) fn relative([error, energy]: [f64; 2]) -> f64 {
    match energy > 0.0 {
        true => (error / energy).sqrt(),
        false => 0.0,
    }
}

impl Ways {
    /// The ways in which a tensor may be stored. `takes_mul` says whether scales can stand behind
    /// it.
    pub(super) fn of(
        tensor: &Tensor,
        takes_mul: bool,
        (encoding, scale): (Encoding, Option<Scale>),
        store: &Arc<dyn Store>,
    ) -> Self {
        let job = |has_scales| Job::new(tensor.clone(), encoding, has_scales, Arc::clone(store));
        match scale {
            _ if !encoding.takes_scales() => Self::One(Scale::None, job(false)),
            Some(Scale::Behind) if !takes_mul => Self::One(Scale::None, job(false)),
            Some(scale) => Self::One(scale, job(scale != Scale::None)),
            None if takes_mul => Self::Better(Arc::new(Better {
                plain: job(false),
                scaled: job(true),
                taken: OnceLock::new(),
            })),
            None => Self::One(Scale::None, job(false)),
        }
    }

    pub(super) fn jobs(&self) -> impl Iterator<Item = &Arc<Job>> {
        let jobs = match self {
            Self::One(_, job) => [Some(job), None],
            Self::Better(better) => [Some(&better.plain), Some(&better.scaled)],
        };
        jobs.into_iter().flatten()
    }

    /// The way that is taken, and the error of a sample without scales if both were tried.
    pub(super) fn taken(&self) -> Result<(Scale, &Arc<Job>, Option<f64>), NotFinite> {
        match self {
            Self::One(scale, job) => Ok((*scale, job, None)),
            Self::Better(better) => {
                let Taken { is_scaled, without } = better.taken()?;
                Ok(match is_scaled {
                    true => (Scale::Behind, &better.scaled, Some(without)),
                    false => (Scale::None, &better.plain, Some(without)),
                })
            }
        }
    }
}
