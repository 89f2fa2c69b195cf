//! Prompts read and answers made: of one sequence, or of many at once.

use std::time::Instant;

use thane_engine::generate::GenerateError;
use thane_engine::sample::argmax;
use thane_engine::sessions::Sessions;

use super::figure::Figure;
use super::texts::ids;
use super::{Bench, What, interrupted};
use crate::exit::{Code, Failure, Outcome};
use crate::model::{self, Opened, ProgramFlags, RunFlags};
use crate::talk::peak_memory;

impl Bench<'_> {
    /// Prefill and decode.
    pub fn language(&self, figures: &mut Vec<serde_json::Value>) -> Outcome {
        let (opened, flags) = self.open()?;
        let mut session = model::session(&opened, &flags, self.app)?;
        // Answers are greedy.
        session.want_greatest(Some(1));
        for length in self.prompts()? {
            let rates = self.rounds(&mut || {
                session.reset();
                let prompt = ids(length, opened.model.info.vocab_size, 1);
                let start = Instant::now();
                let logits = session
                    .feed(&prompt, &|| self.app.interrupt.is_set())
                    .map_err(failed)?;
                let Some(logits) = logits else {
                    return Err(interrupted());
                };
                if self.args.what == What::Prefill {
                    return Ok(length as f64 / start.elapsed().as_secs_f64());
                }
                let mut token = next(&logits);
                let start = Instant::now();
                for _ in 0..self.args.tokens {
                    token = next(&session.decode(token).map_err(failed)?);
                }
                Ok(f64::from(self.args.tokens) / start.elapsed().as_secs_f64())
            })?;
            let answer = (self.args.what == What::Decode).then_some(self.args.tokens);
            let figure = self.figure(&opened.name, [length, length], rates, "tokens/s");
            self.say(
                Figure {
                    answer_tokens: answer,
                    peak_memory_bytes: peak_memory(),
                    ..figure
                },
                figures,
            )?;
        }
        Ok(())
    }

    /// Many sequences at once: the tokens of all answers.
    pub fn batch(&self, figures: &mut Vec<serde_json::Value>) -> Outcome {
        let (opened, flags) = self.open()?;
        for length in self.prompts()? {
            for batch in self.batches(&[8, 32]) {
                let mut sessions = model::sessions(&opened, &flags, usize::from(batch), self.app)?;
                let vocab_size = opened.model.info.vocab_size;
                let prompts: Vec<Vec<u32>> = (0..u64::from(batch))
                    .map(|i| ids(length, vocab_size, 7 + i))
                    .collect();
                let rates = self.rounds(&mut || self.answers(&mut sessions, &prompts))?;
                let figure = self.figure(&opened.name, [length, length], rates, "tokens/s");
                let (answer, memory) = (Some(self.args.tokens), peak_memory());
                self.say(
                    Figure {
                        answer_tokens: answer,
                        batch: Some(batch),
                        peak_memory_bytes: memory,
                        ..figure
                    },
                    figures,
                )?;
            }
        }
        Ok(())
    }

    /// Tokens a second of the steps behind the prompts.
    fn answers(&self, sessions: &mut Sessions, prompts: &[Vec<u32>]) -> Result<f64, Failure> {
        (0..prompts.len())
            .try_for_each(|idx| sessions.reset(idx))
            .map_err(failed)?;
        let work: Vec<(usize, &[u32])> = prompts.iter().map(Vec::as_slice).enumerate().collect();
        if !sessions
            .feed(&work, &|| self.app.interrupt.is_set())
            .map_err(failed)?
        {
            return Err(interrupted());
        }
        let next = |sessions: &Sessions| {
            let one = |idx| Ok((idx, next(&sessions.logits(idx)?)));
            (0..prompts.len())
                .map(one)
                .collect::<Result<Vec<_>, GenerateError>>()
                .map_err(failed)
        };
        let start = Instant::now();
        let mut tokens = next(sessions)?;
        for _ in 0..self.args.tokens {
            if self.app.interrupt.is_set() {
                return Err(interrupted());
            }
            sessions.decode(&tokens).map_err(failed)?;
            tokens = next(sessions)?;
        }
        Ok(prompts.len() as f64 * f64::from(self.args.tokens) / start.elapsed().as_secs_f64())
    }

    fn open(&self) -> Result<(Opened, RunFlags), Failure> {
        let flags = RunFlags {
            program: ProgramFlags {
                context: self.context()?,
                numerics: self.args.numerics,
            },
            threads: Some(self.threads),
            profile: self.profile.clone(),
        };
        let opened = model::open(&self.args.model, &flags.program.options(false), self.app)?;
        Ok((opened, flags))
    }

    /// What the longest prompt and its answer need.
    fn context(&self) -> Result<Option<usize>, Failure> {
        Ok(self
            .prompts()?
            .into_iter()
            .max()
            .map(|n| n + usize::from(self.args.tokens)))
    }
}

fn failed(error: GenerateError) -> Failure {
    Failure::new(Code::Usage, error)
}

/// The token with the largest logit.
fn next(logits: &[f32]) -> u32 {
    argmax(logits)
        .and_then(|id| u32::try_from(id).ok())
        .unwrap_or(0)
}
