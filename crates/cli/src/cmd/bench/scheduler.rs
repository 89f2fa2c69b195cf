//! Measures what the scheduler adds to a decode step: the same steps with and without it, over the
//! same caches.

use std::time::{Duration, Instant};

use thane_engine::schedule::{Request, Scheduler, StepLimits};
use thane_engine::sessions::Sessions;
use thane_engine::text::Tokenizer;

use super::Bench;
use super::language::next;
use super::texts::ids;
use crate::exit::{Failure, Outcome, interrupted, usage};

impl Bench<'_> {
    /// Measures decode steps of one answer through the scheduler beside bare ones.
    pub fn scheduler(&self, figures: &mut Vec<serde_json::Value>) -> Outcome {
        let model = self.open()?;
        let language = model.language(&self.app.budget)?;
        let mut sessions = model.sessions(&self.backend(), 1)?;
        for length in self.prompts()? {
            let prompt = ids(length, model.info.vocab_size, 1);
            let ratios = self.rounds(&mut || {
                let bare = self.bare(&mut sessions, &prompt)?;
                let scheduled = self.scheduled(&mut sessions, &prompt, &language.tokenizer)?;
                Ok(scheduled.as_secs_f64() / bare.as_secs_f64())
            })?;
            let mut figure = self.figure(&model.name, [length, length], ratios, "ratio");
            figure.answer_tokens = Some(self.args.tokens);
            self.say(figure, figures)?;
        }
        Ok(())
    }

    /// The median time of a step that decodes a token and takes the likeliest next one.
    fn bare(&self, sessions: &mut Sessions, prompt: &[u32]) -> Result<Duration, Failure> {
        let stopped = || self.app.interrupt.is_set();
        if !sessions.feed(&[(0, prompt)], &stopped).map_err(usage)? {
            return Err(interrupted());
        }
        let mut token = next(&sessions.logits(0).map_err(usage)?);
        self.median(|| {
            sessions.decode(&[(0, token)], Some(1)).map_err(usage)?;
            token = next(&sessions.logits(0).map_err(usage)?);
            Ok(())
        })
    }

    /// The median time of a step of a scheduler that answers the prompt alone.
    fn scheduled(
        &self,
        sessions: &mut Sessions,
        prompt: &[u32],
        tokenizer: &Tokenizer,
    ) -> Result<Duration, Failure> {
        let mut scheduler = Scheduler::new(sessions, tokenizer, StepLimits::default());
        let n_tokens = usize::from(self.args.tokens) + 1;
        let request = Request {
            prompt: prompt.to_vec(),
            min_tokens: n_tokens,
            max_tokens: n_tokens,
            ..Request::default()
        };
        scheduler.submit(request).map_err(usage)?;
        while scheduler.totals().answer_tokens == 0 {
            if scheduler.is_idle() {
                return Err(usage!("the model gave no first token"));
            }
            scheduler.step();
        }
        self.median(|| {
            scheduler.step();
            Ok(())
        })
    }

    /// The median time of a step, of as many as an answer has tokens.
    fn median(&self, mut step: impl FnMut() -> Outcome) -> Result<Duration, Failure> {
        let mut times = Vec::with_capacity(usize::from(self.args.tokens));
        for _ in 0..self.args.tokens {
            if self.app.interrupt.is_set() {
                return Err(interrupted());
            }
            let start = Instant::now();
            step()?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        Ok(times[times.len() / 2])
    }
}
