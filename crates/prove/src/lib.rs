//! Decides whether two forms of a function compute the same, by running both on inputs that cover
//! the domain.
//!
//! A rewrite that is exact in real arithmetic may part from the original by roundings alone. How
//! far roundings go is measured: each op's result is put off by one rounding of f32, without a
//! pattern, and the two forms may be apart by a few times what that moves. Where values are
//! declared fp16 the new form may stray no further than the old one, and a few roundings of fp16.
//! This is asked of the ops that changed ([`local`]), and of the whole function against the
//! original ([`whole`]), so that rewrites are judged alone and together. A lossy rewrite is asked
//! only the second, and by a bound that the user sets.
//!
//! Ops are computed by a backend that implements [`Evaluate`]. This crate does not know where
//! programs come from, and no chips. Start at [`ByRunning`].

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use thane_compile::proof::{Forms, Numbers, Proof, Prover, Stage};
use thane_mil::backend::Limits;
use thane_mil::budget::Budget;
use thane_mil::evaluate::{Evaluate, HostTensor};
use thane_mil::program::{Function, ValueId};
use thane_mil::types::TensorType;

mod diff;
mod inputs;
mod local;
mod rounding;
mod rows;
mod walk;
mod whole;

pub use inputs::Sample;
use local::{Claims, Fault, Memo, Seen};
use walk::{Env, Mode, Stop, Walk};
use whole::{Found, Judge, Reference};

/// Hears what is done.
pub type Progress<'a> = Box<dyn FnMut(Stage<'_>) + 'a>;

/// What may be spent, and on what.
#[derive(Default)]
pub struct Settings<'a> {
    /// What tensors are counted against.
    pub budget: Budget,
    /// What one call may take.
    pub limits: Limits,
    /// What all proofs together may take.
    pub time_limit: Option<Duration>,
    /// How far lossy rewrites may be off, over the largest magnitude of an output; none are tried
    /// where this is none.
    pub max_error: Option<f64>,
    /// Inputs of the user's.
    pub samples: Vec<Sample>,
    /// Hears what is done.
    pub progress: Option<Progress<'a>>,
}

/// Proves by running forms of functions.
pub struct ByRunning<'a, E: Evaluate> {
    env: Env<E>,
    max_error: Option<f64>,
    samples: Vec<Sample>,
    progress: Option<Progress<'a>>,
    time_limit: Option<Duration>,
    /// By the name of the function.
    known: HashMap<String, Known<E::Tensor>>,
}

/// What is known of a function from running it.
struct Known<T> {
    reference: Reference<T>,
    /// Values by set of inputs, as far as they were asked for.
    memos: Vec<Memo<T>>,
}

/// What the runs of an original may take, where the whole is not limited; the first set is run in
/// any case.
const REFERENCE_TIME: Duration = Duration::from_secs(6);
/// What the runs of one rewrite may take; where one run takes longer, the whole is run when all is
/// done.
const TRIAL_TIME: Duration = Duration::from_secs(6);
/// Why a form is neither right nor wrong.
const UNSTEADY: &str = "roundings move its numbers by as much as they are";
/// Sets whose inner values are held.
const MOST_MEMOS: usize = 3;
/// Bytes of inner values that are held of a set; of more, only what was asked for.
const MEMO_BYTES: usize = 1 << 29;

impl<'a, E: Evaluate> ByRunning<'a, E> {
    /// On this backend, with these settings; the clock runs from here.
    pub fn new(mut backend: E, settings: Settings<'a>) -> Self {
        let deadline = settings
            .time_limit
            .and_then(|limit| Instant::now().checked_add(limit));
        backend.stop_at(deadline);
        Self {
            env: Env {
                backend,
                budget: settings.budget,
                limits: settings.limits,
                deadline,
            },
            max_error: settings.max_error,
            samples: settings.samples,
            progress: settings.progress,
            time_limit: settings.time_limit,
            known: HashMap::new(),
        }
    }

    /// What is known of an original, which is run where it was not.
    fn known(&mut self, f: &Function) -> Result<(), Stop> {
        if self.known.contains_key(&f.name) {
            return Ok(());
        }
        let most = self.time_limit.map_or(REFERENCE_TIME, |limit| limit / 4);
        let reference = Reference::new(f, &self.samples, most, &self.env)?;
        self.known.insert(
            f.name.clone(),
            Known {
                reference,
                memos: Vec::new(),
            },
        );
        Ok(())
    }

    /// The ops that changed, by themselves.
    fn local(&mut self, forms: &Forms<'_>) -> Result<Seen, Fault> {
        let claims =
            Claims::of(forms.before, forms.after).map_err(|why| Fault::Stop(Stop::Op(why)))?;
        let Some(known) = self.known.get_mut(&forms.original.name) else {
            return Ok(Seen::default());
        };
        let wanted = claims.taken(forms.before, forms.after);
        let is_slow = known.reference.run_time > TRIAL_TIME / 6;
        let n_memos = known
            .reference
            .n_cases()
            .min(if is_slow { 1 } else { MOST_MEMOS });
        known
            .memos
            .resize_with(n_memos.max(known.memos.len()), Memo::new);
        let mut seen = Seen::default();
        for at in 0..n_memos {
            known
                .reference
                .fill(at, &mut known.memos[at], forms.before, &wanted, &self.env)?;
            local::check(
                forms.before,
                forms.after,
                &claims,
                &known.memos[at],
                &mut seen,
                &self.env,
            )?;
        }
        if seen.n_values == 0 && seen.n_absurd > 0 {
            return Err(Fault::Stop(Stop::Op(UNSTEADY.to_owned())));
        }
        Ok(seen)
    }

    fn whole(
        &mut self,
        original: &str,
        after: &Function,
        n_sets: usize,
        judge: Judge,
    ) -> Result<Found, Stop> {
        let Some(known) = self.known.get_mut(original) else {
            return Ok(Found::default());
        };
        known.reference.judge(after, n_sets, judge, &self.env)
    }

    /// Sets that a rewrite is run on as a whole.
    fn n_trial_sets(&self, original: &str) -> usize {
        let Some(known) = self.known.get(original) else {
            return 0;
        };
        let one = known.reference.run_time.as_secs_f64() * 2.0;
        ((TRIAL_TIME.as_secs_f64() / one.max(1e-9)) as usize).min(known.reference.n_cases())
    }

    fn exact(&mut self, forms: &Forms<'_>) -> Result<Proof, Stop> {
        let seen = match self.local(forms) {
            Ok(seen) => Ok(seen),
            Err(Fault::Differs(how)) => return Ok(Proof::Differs(how)),
            Err(Fault::Stop(Stop::Op(why))) => Err(why),
            Err(Fault::Stop(stop)) => return Err(stop),
        };
        let n_sets = self.n_trial_sets(&forms.original.name);
        // What cannot be judged by itself is judged as a whole, whatever that takes.
        let n_sets = if seen.is_err() { n_sets.max(1) } else { n_sets };
        if let (true, Some(most)) = (forms.is_lossy, self.max_error) {
            let proof = self.lossy(forms.original, forms.after, n_sets, most)?;
            return Ok(match (seen, proof) {
                (seen @ Ok(_), Proof::Lossy { .. }) => {
                    Proof::Equal(told(Some(&seen), &Found::default()))
                }
                (_, proof) => proof,
            });
        }
        let found = self.whole(&forms.original.name, forms.after, n_sets, Judge::Exact)?;
        if let Some(fault) = found.fault {
            return Ok(Proof::Differs(fault));
        }
        if seen.is_err() && found.n_values == 0 {
            return Ok(Proof::Unknown(UNSTEADY.to_owned()));
        }
        // How many sets there was time for depends on the machine: `confirm` runs all, and tells.
        Ok(Proof::Equal(told(Some(&seen), &Found::default())))
    }

    fn lossy(
        &mut self,
        original: &Function,
        after: &Function,
        n_sets: usize,
        most: f64,
    ) -> Result<Proof, Stop> {
        if let Some(Known { reference, .. }) = self.known.get(&original.name)
            && reference.n_measured() == 0
        {
            let why = reference.note.clone();
            return Ok(Proof::Unknown(
                why.unwrap_or_else(|| "it has no inputs to run on".to_owned()),
            ));
        }
        // Which inputs a loss shows on is not known before all are run.
        if self
            .known
            .get(&original.name)
            .is_some_and(|known| !known.reference.is_complete)
        {
            return Ok(Proof::Unknown(
                "there was no time to run it on all inputs; --time-limit allows more".to_owned(),
            ));
        }
        let found = self.whole(&original.name, after, n_sets, Judge::Lossy(most))?;
        if let Some(fault) = found.fault {
            return Ok(Proof::Differs(fault));
        }
        let how = format!(
            "off by {:.1e} of the largest output, for {}; bound {most:.1e}, inputs: {}",
            found.error,
            found.worst,
            found.labels.join(", ")
        );
        Ok(Proof::Lossy {
            error: found.error,
            how,
        })
    }

    /// Whether there is a set to judge on; else why not.
    fn is_judged(&self, original: &str) -> Result<(), String> {
        match self.known.get(original) {
            Some(known) if known.reference.n_cases() > 0 => Ok(()),
            _ => Err("it has no inputs to run on".to_owned()),
        }
    }
}

/// How equality was seen.
fn told(seen: Option<&Result<Seen, String>>, found: &Found) -> String {
    let mut parts = Vec::new();
    match seen {
        Some(Ok(seen)) => parts.push(format!(
            "the ops by themselves are off by {:.1e}, where roundings allow {:.1e}",
            seen.error, seen.allowed
        )),
        Some(Err(why)) => parts.push(format!("the ops were not run by themselves, since {why}")),
        None => {}
    }
    if !found.labels.is_empty() {
        parts.push(format!(
            "the function is off by {:.1e} of the largest output, where roundings allow {:.1e}, for {}",
            found.error,
            found.allowed,
            found.labels.join(", ")
        ));
    }
    parts.join("; ")
}

impl<E: Evaluate> Prover for ByRunning<'_, E> {
    fn prove(&mut self, forms: &Forms<'_>, numbers: Numbers) -> Proof {
        let done = self.known(forms.original).and_then(|()| {
            if let Err(why) = self.is_judged(&forms.original.name) {
                return Ok(Proof::Unknown(why));
            }
            let exact = match numbers {
                Numbers::Exact => self.exact(forms)?,
                Numbers::Lossy => {
                    Proof::Unknown("it changes precision; --lossy MAX_ERROR allows that".to_owned())
                }
            };
            match (exact, self.max_error) {
                (Proof::Differs(_) | Proof::Unknown(_), Some(most)) => {
                    let n_sets = self.n_trial_sets(&forms.original.name).max(1);
                    self.lossy(forms.original, forms.after, n_sets, most)
                }
                (exact, _) => Ok(exact),
            }
        });
        done.unwrap_or_else(|stop| Proof::Unknown(stop.to_string()))
    }

    fn confirm(&mut self, original: &Function, done: &Function, is_lossy: bool) -> Proof {
        let done = self.known(original).and_then(|()| {
            if let Err(why) = self.is_judged(&original.name) {
                return Ok(Proof::Unknown(why));
            }
            if let (true, Some(most)) = (is_lossy, self.max_error) {
                return self.lossy(original, done, usize::MAX, most);
            }
            let found = self.whole(&original.name, done, usize::MAX, Judge::Exact)?;
            Ok(match found.fault {
                Some(fault) => Proof::Differs(fault),
                None if found.n_values == 0 => Proof::Unknown(UNSTEADY.to_owned()),
                None => Proof::Equal(told(None, &found)),
            })
        });
        done.unwrap_or_else(|stop| Proof::Unknown(stop.to_string()))
    }

    fn takes_lossy(&self) -> bool {
        self.max_error.is_some()
    }

    fn is_over(&self) -> bool {
        self.env.is_over()
    }

    fn announce(&mut self, stage: Stage<'_>) {
        if let Some(progress) = &mut self.progress {
            progress(stage);
        }
    }
}

impl<T: HostTensor> Reference<T> {
    /// Computes the values of a form that are wanted, on one set of inputs, as far as they are not
    /// at hand.
    fn fill<E: Evaluate<Tensor = T>>(
        &self,
        at: usize,
        memo: &mut Memo<T>,
        f: &Function,
        wanted: &HashSet<ValueId>,
        env: &Env<E>,
    ) -> Result<(), Stop> {
        let missing: Vec<ValueId> = wanted
            .iter()
            .copied()
            .filter(|v| !memo.contains_key(v))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let mut walk = Walk::new(f, env, Mode::Wide);
        if !memo.is_empty() {
            let (ops, given) = local::region(f, &missing, |v| memo.contains_key(&v));
            if given.iter().all(|v| memo.contains_key(v))
                && !ops.iter().any(|id| is_stateful(f, *id))
            {
                walk.slots = given
                    .iter()
                    .filter_map(|v| Some((*v, memo.get(v)?.clone())))
                    .collect();
                walk.ops(&ops)?;
                for v in missing {
                    memo.insert(v, walk.value(v)?);
                }
                return Ok(());
            }
        }
        let n_bytes = |v: &ValueId| {
            f.value(*v)
                .ty
                .tensor()
                .and_then(TensorType::n_elements)
                .unwrap_or(0)
                * 4
        };
        let results = f
            .body()
            .ops
            .iter()
            .filter(|id| !f.op(**id).def.is_constexpr())
            .flat_map(|id| &f.op(*id).results);
        let holds_all = results.map(n_bytes).fold(0, usize::saturating_add)
            < MEMO_BYTES.min(env.budget.limit_bytes() / 8);
        let kept: HashSet<ValueId> = wanted.iter().copied().chain(memo.keys().copied()).collect();
        self.run_into(at, &mut walk, if holds_all { None } else { Some(&kept) })?;
        *memo = std::mem::take(&mut walk.slots);
        Ok(())
    }
}

fn is_stateful(f: &Function, op: thane_mil::program::OpId) -> bool {
    matches!(
        f.op(op).def.name,
        "read_state" | "coreml_update_state" | "write_state"
    )
}
