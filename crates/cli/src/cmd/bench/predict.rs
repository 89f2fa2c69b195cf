//! Measures one call of a function of a package.

use std::path::Path;
use std::time::{Duration, Instant};

use thane_mil::backend::Instance;

use super::Bench;
use crate::exit::{Failure, Outcome, interrupted, usage};
use crate::{call, source};

/// A round of a fast function has so many calls that it takes about this long.
const ROUND: Duration = Duration::from_millis(100);

impl Bench<'_> {
    pub fn predict(&self, figures: &mut Vec<serde_json::Value>) -> Outcome {
        let start = Instant::now();
        let package = source::open_whole(Path::new(&self.args.model), self.app)?;
        let f = self.args.call.function(&package)?;
        let (_, mut instance) = call::start(f, &self.backend())?;
        let load = start.elapsed();

        let given = self
            .args
            .call
            .fill(instance.as_mut(), f, &package, self.app)?;
        if figures.is_empty() {
            call::say_made_up(&given.rows, self.app);
        }
        // Memory that only this command needs.
        drop(given);

        let first = self.call(instance.as_mut(), &f.name)?;
        // A later call is often faster than the first.
        let usual = if first < ROUND {
            self.call(instance.as_mut(), &f.name)?
        } else {
            first
        };
        let n_calls = n_calls(usual);
        let times = self.rounds(&mut || {
            let mut time = Duration::ZERO;
            for _ in 0..n_calls {
                time += self.call(instance.as_mut(), &f.name)?;
            }
            Ok(ms(time) / f64::from(n_calls))
        })?;
        let mut figure = self.figure(&self.args.model, [0, 0], times, "ms");
        figure.function = Some(&f.name);
        figure.calls = Some(n_calls);
        figure.load_ms = Some(ms(load));
        figure.first_ms = Some(ms(load + first));
        self.say(figure, figures)
    }

    /// The time of one call.
    fn call(&self, instance: &mut dyn Instance, function: &str) -> Result<Duration, Failure> {
        if self.app.interrupt.is_set() {
            return Err(interrupted());
        }
        let start = Instant::now();
        instance.run(function).map_err(usage)?;
        Ok(start.elapsed())
    }

    /// Refuses flags of `predict` for other measurements.
    pub fn check_flags(&self) -> Outcome {
        let Some(flag) = self.args.call.first_given() else {
            return Ok(());
        };
        Err(usage!("{flag} is a flag of `thane bench predict` only")
            .remedy(format!("the same without {flag}")))
    }
}

/// Calls of a round, if one takes so long.
fn n_calls(call: Duration) -> u16 {
    const MOST: f64 = 1000.0;
    let n = (ROUND.as_secs_f64() / call.as_secs_f64()).ceil();
    n.clamp(1.0, MOST) as u16
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_takes_about_a_tenth_of_a_second_or_one_call() {
        let calls = |us| n_calls(Duration::from_micros(us));
        assert_eq!(
            [calls(0), calls(1), calls(30_000), calls(100_000)],
            [1000, 1000, 4, 1]
        );
        assert_eq!(n_calls(Duration::from_secs(90)), 1);
    }
}
