//! Measures prefill and decode of one sequence or of a batch.

use std::time::{Duration, Instant};

use thane_engine::generate::GenerateError;
use thane_engine::sample::{SampleOptions, argmax};
use thane_engine::sessions::Sessions;
use thane_runtime::{Files, LanguageModel, Model};

use super::texts::ids;
use super::{Bench, What};
use crate::exit::{Failure, Outcome, interrupted, usage};
use crate::model::{self, ProgramFlags};

impl Bench<'_> {
    /// Measures prefill or decode of one sequence.
    pub fn language(&self, figures: &mut Vec<serde_json::Value>) -> Outcome {
        let model = self.open()?;
        let mut session = model.session(&self.backend())?;
        for length in self.prompts()? {
            let rates = self.rounds(&mut || {
                session.reset();
                let prompt = ids(length, model.info.vocab_size, 1);
                let start = Instant::now();
                let logits = session
                    .feed(&prompt, &|| self.app.interrupt.is_set())
                    .map_err(usage)?;
                let Some(logits) = logits else {
                    return Err(interrupted());
                };
                if self.args.what == What::Prefill {
                    return Ok(length as f64 / start.elapsed().as_secs_f64());
                }
                let mut token = next(&logits);
                let start = Instant::now();
                for _ in 0..self.args.tokens {
                    // Decoding is greedy.
                    token = next(&session.decode_greatest(token, Some(1)).map_err(usage)?);
                }
                Ok(f64::from(self.args.tokens) / start.elapsed().as_secs_f64())
            })?;
            let answer = (self.args.what == What::Decode).then_some(self.args.tokens);
            let mut figure = self.figure(&model.name, [length, length], rates, "tokens/s");
            figure.answer_tokens = answer;
            self.say(figure, figures)?;
        }
        Ok(())
    }

    /// Measures calls that give the logits of several tokens after a prompt.
    pub fn verify(&self, figures: &mut Vec<serde_json::Value>) -> Outcome {
        let model = self.open()?;
        let vocab_size = model.info.vocab_size;
        let stopped = || self.app.interrupt.is_set();
        if !model.has_function("verify") {
            let path = model.path.display();
            return Err(usage!("{path}: expected a function `verify`, found none")
                .remedy("bench the checkpoint, or thane convert MODEL --form ane --verify N"));
        }
        model.require_all_logits("bench verify")?;
        let mut session = model.session_of_any_functions(&self.backend())?;
        for length in self.prompts()? {
            let prompt = ids(length, vocab_size, 1);
            for n in self.verified() {
                let drafted = ids(usize::from(n), vocab_size, 2);
                let times = self.rounds(&mut || {
                    let mut time = Duration::ZERO;
                    for _ in 0..VERIFY_CALLS {
                        // Goes back to the prompt, as if no token had been accepted.
                        if session.feed(&prompt, &stopped).map_err(usage)?.is_none() {
                            return Err(interrupted());
                        }
                        let start = Instant::now();
                        session.verify(&drafted).map_err(usage)?;
                        time += start.elapsed();
                    }
                    Ok(1e3 * time.as_secs_f64() / f64::from(VERIFY_CALLS))
                })?;
                let mut figure = self.figure(&model.name, [length, length], times, "ms");
                (figure.verify_tokens, figure.calls) = (Some(n), Some(VERIFY_CALLS));
                self.say(figure, figures)?;
            }
        }
        Ok(())
    }

    /// Numbers of tokens of a call of `verify`.
    fn verified(&self) -> Vec<u16> {
        match self.args.verify.as_slice() {
            [] => vec![1, 2, 4, 8, 16],
            asked => asked.to_vec(),
        }
    }

    /// Measures decode of a batch.
    pub fn batch(&self, figures: &mut Vec<serde_json::Value>) -> Outcome {
        let model = self.open()?;
        for length in self.prompts()? {
            for batch in self.batches(&[8, 32]) {
                let mut sessions = model.sessions(&self.backend(), usize::from(batch))?;
                let vocab_size = model.info.vocab_size;
                let prompts: Vec<Vec<u32>> = (0..u64::from(batch))
                    .map(|i| ids(length, vocab_size, 7 + i))
                    .collect();
                let rates = self.rounds(&mut || self.answers(&mut sessions, &prompts))?;
                let mut figure = self.figure(&model.name, [length, length], rates, "tokens/s");
                (figure.answer_tokens, figure.batch) = (Some(self.args.tokens), Some(batch));
                self.say(figure, figures)?;
            }
        }
        Ok(())
    }

    /// Decodes all answers; returns tokens per second, without prefill.
    fn answers(&self, sessions: &mut Sessions, prompts: &[Vec<u32>]) -> Result<f64, Failure> {
        (0..prompts.len())
            .try_for_each(|idx| sessions.reset(idx))
            .map_err(usage)?;
        let work: Vec<(usize, &[u32])> = prompts.iter().map(Vec::as_slice).enumerate().collect();
        if !sessions
            .feed(&work, &|| self.app.interrupt.is_set())
            .map_err(usage)?
        {
            return Err(interrupted());
        }
        let next = |sessions: &mut Sessions| {
            let one = |idx| Ok((idx, next(&sessions.logits(idx)?)));
            (0..prompts.len())
                .map(one)
                .collect::<Result<Vec<_>, GenerateError>>()
                .map_err(usage)
        };
        let start = Instant::now();
        let mut tokens = next(sessions)?;
        for _ in 0..self.args.tokens {
            if self.app.interrupt.is_set() {
                return Err(interrupted());
            }
            // Decoding is greedy.
            sessions.decode(&tokens, Some(1)).map_err(usage)?;
            tokens = next(sessions)?;
        }
        Ok(prompts.len() as f64 * f64::from(self.args.tokens) / start.elapsed().as_secs_f64())
    }

    pub fn open(&self) -> Result<LanguageModel, Failure> {
        let spec = &self.args.model;
        let answer = match self.args.what {
            What::Verify => self.verified().into_iter().max().unwrap_or(1),
            _ => self.args.tokens,
        };
        let answer = usize::from(answer);
        let longest = self.prompts()?.into_iter().max().unwrap_or(0);
        let model = Model::open(spec, &self.app.hub, self.app.output.as_ref())?;
        // The context of a package is fixed.
        let is_package = matches!(
            model.files,
            Files::Package | Files::Bundle | Files::Foreign(_)
        );
        let flags = ProgramFlags {
            context: (!is_package).then_some(longest + answer),
            numerics: self.args.numerics,
        };
        let options = match self.args.what {
            What::Decode | What::Batch => flags.sampling_options(&SampleOptions::default()),
            What::Scheduler => flags.served_options(),
            what => flags.options(what == What::Verify),
        };
        let model = model::lower(model, spec, &options, self.app)?;
        let is_prefill = self.args.what == What::Prefill;
        let needed = if is_prefill {
            longest
        } else {
            longest + answer
        };
        if needed > model.info.context {
            return Err(self.too_long(needed, model.info.context));
        }
        Ok(model)
    }

    /// The failure of lengths that a package has no context for.
    fn too_long(&self, needed: usize, context: usize) -> Failure {
        let failure = usage!(
            "{}: expected a context of {needed} tokens or more, found {context}",
            self.args.model
        );
        if self.args.what == What::Prefill {
            return failure.remedy(format!("--lengths {context}, or less"));
        }
        let flag = match self.args.what {
            What::Verify => "--verify",
            _ => "--tokens",
        };
        failure.remedy(format!(
            "--lengths and {flag} that are at most {context} together"
        ))
    }
}

/// Calls of `verify` in a round, whose mean is the result of the round.
const VERIFY_CALLS: u16 = 8;

/// The most likely token.
pub fn next(logits: &[f32]) -> u32 {
    argmax(logits)
        .and_then(|id| u32::try_from(id).ok())
        .unwrap_or(0)
}
