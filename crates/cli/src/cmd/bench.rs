//! `thane bench`: how fast a model is on this machine, a JSON line for each figure.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::builder::FalseyValueParser;
use serde::Serialize;
use thane_cpu::Profile;
use thane_engine::embed::Watch;
use thane_models::EncoderOptions;

use crate::app::App;
use crate::embed::encoder::{self, Run};
use crate::exit::{Code, Failure, Outcome};
use crate::model::{self, NumericsFlag, ProgramFlags, RunFlags};
use crate::profile;
use crate::talk::peak_memory;

/// Measure how fast a model is here: a JSON line for each figure, the median of some rounds with the least and the most.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to measure.
    #[arg(value_enum)]
    what: What,
    /// A path, hf:org/name with @revision after it, or a name of the catalogue.
    model: String,
    /// Rounds, behind one that is not counted.
    #[arg(long, env = "THANE_ROUNDS", value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Threads; more than one number makes a figure for each [default: the physical cores].
    #[arg(long, env = "THANE_THREADS", value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,
    /// Tokens of the prompt; for embed, of a text, or from-to for lengths between, short ones more often [default: 512, for
    /// decode 128, for cold 30, for embed 8-256].
    #[arg(long, env = "THANE_LENGTHS", value_name = "N", value_delimiter = ',', value_parser = length)]
    lengths: Vec<Length>,
    /// Tokens of an answer of decode.
    #[arg(long, env = "THANE_TOKENS", value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    tokens: u16,
    /// Texts that embed has at once.
    #[arg(long, env = "THANE_BATCH", value_name = "N", value_delimiter = ',', default_value = "1,32", value_parser = clap::value_parser!(u16).range(1..))]
    batch: Vec<u16>,
    /// Texts of a round of embed [default: 128, or the largest --batch where that is more].
    #[arg(long, env = "THANE_TEXTS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    texts: Option<u16>,
    /// How to compute: fast takes quantised weights as they are, f32 is the reference, ane is fp16 after each op with the sums
    /// of the Apple Neural Engine.
    #[arg(long, env = "THANE_NUMERICS", value_name = "HOW", value_enum, default_value_t = NumericsFlag::Fast)]
    numerics: NumericsFlag,
    /// Say behind each figure where the time went, warming up included; cold has no profile.
    #[arg(long, env = "THANE_PROFILE", value_parser = FalseyValueParser::new())]
    profile: bool,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Tokens of a prompt, a second.
    Prefill,
    /// Tokens of an answer, a second, one after another.
    Decode,
    /// Texts made vectors, a second.
    Embed,
    /// From the start of the process to the end of the first token, with the files in the page cache.
    Cold,
}

/// Lengths of texts: from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Length(usize, usize);

fn length(text: &str) -> Result<Length, String> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let (from, to) = (from.trim().parse().ok(), to.trim().parse().ok());
    from.zip(to)
        .filter(|(from, to)| 0 < *from && from <= to && *to <= 1 << 20)
        .map(|(from, to)| Length(from, to))
        .ok_or_else(|| "a length such as 512, or two such as 8-256".to_owned())
}

/// A figure.
#[derive(Serialize)]
struct Figure<'a> {
    /// `prefill`, `decode`, `embed` or `cold`.
    bench: &'static str,
    model: &'a str,
    /// Of Thane, and the commit where the build was told it (`THANE_COMMIT`).
    version: &'static str,
    commit: Option<&'static str>,
    machine: Machine,
    numerics: String,
    threads: u16,
    /// Tokens of the prompt or, for embed, of the shortest and the longest text.
    tokens: [usize; 2],
    /// Tokens of the answer; null where there is none.
    answer_tokens: Option<u16>,
    /// Texts at once; null where there are none.
    batch: Option<u16>,
    /// What `median`, `least` and `most` count.
    unit: &'static str,
    median: f64,
    least: f64,
    most: f64,
    rounds: usize,
    /// Tokens that `embed` makes vectors of in a second, padding not counted; null for others.
    tokens_per_s: Option<f64>,
    /// Most memory that the process held so far; null where the system does not tell, and for cold.
    peak_memory_bytes: Option<u64>,
}

/// What the figures were measured on.
#[derive(Clone, Serialize)]
struct Machine {
    cpu: String,
    /// Instruction set of the kernels.
    isa: &'static str,
    cores: usize,
}

impl Machine {
    fn here() -> Self {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let cpu = name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned());
        Self { cpu, isa: thane_kernels::Isa::detect().name(), cores: num_cpus::get_physical() }
    }
}

/// What is measured at one number of threads.
struct Bench<'a> {
    args: &'a Args,
    app: &'a App,
    threads: u16,
    machine: Machine,
    profile: Option<Arc<Profile>>,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let usual = u16::try_from(num_cpus::get_physical()).unwrap_or(1);
    let all = if args.threads.is_empty() { vec![usual] } else { args.threads.clone() };
    let machine = Machine::here();
    let mut figures = Vec::new();
    for threads in all {
        let bench = Bench { args, app, threads, machine: machine.clone(), profile: profile::wanted(args.profile) };
        match args.what {
            What::Prefill | What::Decode => bench.language(&mut figures)?,
            What::Embed => bench.embed(&mut figures)?,
            What::Cold => bench.cold(&mut figures)?,
        }
    }
    if app.output.is_json() {
        app.output.json(&serde_json::json!({ "figures": figures }))?;
    }
    Ok(())
}

impl<'a> Bench<'a> {
    fn lengths(&self) -> Vec<Length> {
        let usual = match self.args.what {
            What::Prefill => Length(512, 512),
            What::Decode => Length(128, 128),
            What::Embed => Length(8, 256),
            What::Cold => Length(30, 30),
        };
        if self.args.lengths.is_empty() { vec![usual] } else { self.args.lengths.clone() }
    }

    /// Prompts have one length.
    fn prompts(&self) -> Result<Vec<usize>, Failure> {
        let one = |Length(from, to): Length| {
            let error = || Failure::new(Code::Usage, anyhow::anyhow!("--lengths {from}-{to}: a prompt has one length"));
            if from == to { Ok(from) } else { Err(error()) }
        };
        self.lengths().into_iter().map(one).collect()
    }

    fn language(&self, figures: &mut Vec<serde_json::Value>) -> Outcome {
        let flags = RunFlags {
            program: ProgramFlags { context: self.context()?, numerics: self.args.numerics },
            threads: Some(self.threads),
            profile: self.profile.clone(),
        };
        let opened = model::open(&self.args.model, &flags.program.options(false), self.app)?;
        let mut session = model::session(&opened, &flags)?;
        let vocab = opened.model.info.vocab_size;
        let other = |e: thane_engine::generate::GenerateError| Failure::new(Code::Other, e);
        for length in self.prompts()? {
            let rates = self.rounds(&mut || {
                session.reset();
                let prompt = ids(length, vocab, 1);
                let start = Instant::now();
                let logits = session.feed(&prompt, &|| self.app.interrupt.is_set()).map_err(other)?;
                let Some(mut logits) = logits else { return Err(interrupted()) };
                if self.args.what == What::Prefill {
                    return Ok(length as f64 / start.elapsed().as_secs_f64());
                }
                let start = Instant::now();
                for _ in 0..self.args.tokens {
                    logits = session.decode(likeliest(&logits)).map_err(other)?;
                }
                Ok(f64::from(self.args.tokens) / start.elapsed().as_secs_f64())
            })?;
            let answer = (self.args.what == What::Decode).then_some(self.args.tokens);
            let figure = self.figure(&opened.name, [length, length], rates, "tokens/s");
            self.say(Figure { answer_tokens: answer, peak_memory_bytes: peak_memory(), ..figure }, figures)?;
        }
        Ok(())
    }

    /// What the longest prompt and its answer need.
    fn context(&self) -> Result<Option<usize>, Failure> {
        Ok(self.prompts()?.into_iter().max().map(|n| n + usize::from(self.args.tokens)))
    }

    fn embed(&self, figures: &mut Vec<serde_json::Value>) -> Outcome {
        let how = Run {
            numerics: self.args.numerics,
            threads: Some(self.threads),
            batch_tokens: super::embed::BATCH_TOKENS,
            max_length: None,
            profile: self.profile.clone(),
        };
        let n_texts = self.n_texts()?;
        let mut encoder = encoder::open(&self.args.model, &EncoderOptions::default(), &how, self.app)?;
        for length @ Length(from, to) in self.lengths() {
            if to > encoder.max_tokens() {
                let error = anyhow::anyhow!("texts of {to} tokens, the model takes {}", encoder.max_tokens());
                return Err(Failure::new(Code::Usage, error).remedy(format!("--lengths {}", encoder.max_tokens())));
            }
            let texts: Vec<Vec<u32>> = lengths(length, n_texts)
                .into_iter()
                .zip(7..)
                .map(|(n, seed)| ids(n, encoder.info.vocab_size, seed))
                .collect();
            let n_tokens: usize = texts.iter().map(Vec::len).sum();
            for batch in &self.args.batch {
                let rates = self.rounds(&mut || {
                    let start = Instant::now();
                    for texts in texts.chunks(usize::from(*batch)) {
                        let stop = || self.app.interrupt.is_set();
                        let mut watch = Watch { interrupted: &stop, progress: &mut |_| {} };
                        let done = encoder.embedder.texts(texts, &mut watch);
                        if done.map_err(|e| Failure::new(Code::Other, e))?.is_none() {
                            return Err(interrupted());
                        }
                    }
                    Ok(texts.len() as f64 / start.elapsed().as_secs_f64())
                })?;
                let figure = self.figure(&encoder.name, [from, to], rates, "texts/s");
                let tokens_per_s = Some(figure.median * n_tokens as f64 / texts.len() as f64);
                let memory = peak_memory();
                let figure = Figure { batch: Some(*batch), tokens_per_s, peak_memory_bytes: memory, ..figure };
                self.say(figure, figures)?;
            }
        }
        Ok(())
    }

    /// A batch is never smaller than what its figure says.
    fn n_texts(&self) -> Result<usize, Failure> {
        let batch = self.args.batch.iter().copied().max().unwrap_or(1);
        match self.args.texts {
            Some(texts) if texts < batch => {
                let error = anyhow::anyhow!("--texts {texts}: fewer than the {batch} of --batch");
                Err(Failure::new(Code::Usage, error).remedy(format!("--texts {batch}")))
            }
            texts => Ok(usize::from(texts.unwrap_or(batch.max(128)))),
        }
    }

    /// Another process each time: what it has loaded is gone with it.
    fn cold(&self, figures: &mut Vec<serde_json::Value>) -> Outcome {
        let other = |e: std::io::Error| Failure::new(Code::Other, e);
        let program = std::env::current_exe().map_err(other)?;
        for length in self.prompts()? {
            let times = self.rounds(&mut || {
                let start = Instant::now();
                let status = Command::new(&program)
                    .args(["run", "--quiet", "--raw", "--temperature", "0", "--max-tokens", "1"])
                    .args(["--threads", &self.threads.to_string(), "--numerics"])
                    .arg(format!("{:?}", self.args.numerics).to_lowercase())
                    // A word is about a token.
                    .args([&self.args.model, &"word ".repeat(length)])
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .status()
                    .map_err(other)?;
                let took = start.elapsed();
                if self.app.interrupt.is_set() {
                    return Err(interrupted());
                }
                if !status.success() {
                    return Err(Failure::new(Code::Other, anyhow::anyhow!("thane run ended with {status}")));
                }
                Ok(took.as_secs_f64() * 1e3)
            })?;
            let figure = self.figure(&self.args.model, [length, length], times, "ms");
            self.say(Figure { answer_tokens: Some(1), ..figure }, figures)?;
        }
        Ok(())
    }

    /// The results of all rounds but the first, which warms up, rising.
    fn rounds(&self, round: &mut dyn FnMut() -> Result<f64, Failure>) -> Result<Vec<f64>, Failure> {
        round()?;
        // A machine that was just busy with another thing is given a moment.
        std::thread::sleep(Duration::from_millis(20));
        let mut results = (0..self.args.rounds).map(|_| round()).collect::<Result<Vec<f64>, Failure>>()?;
        results.sort_by(f64::total_cmp);
        Ok(results)
    }

    fn figure<'b>(&self, model: &'b str, tokens: [usize; 2], results: Vec<f64>, unit: &'static str) -> Figure<'b> {
        let n = results.len();
        let name = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
        let bench = match self.args.what {
            What::Prefill => "prefill",
            What::Decode => "decode",
            What::Embed => "embed",
            What::Cold => "cold",
        };
        Figure {
            bench,
            model,
            version: env!("CARGO_PKG_VERSION"),
            commit: option_env!("THANE_COMMIT"),
            machine: self.machine.clone(),
            numerics: name(&self.args.numerics),
            threads: self.threads,
            tokens,
            answer_tokens: None,
            batch: None,
            unit,
            median: (results[(n - 1) / 2] + results[n / 2]) / 2.0,
            least: results[0],
            most: results[n - 1],
            rounds: n,
            tokens_per_s: None,
            peak_memory_bytes: None,
        }
    }

    fn say(&self, figure: Figure<'_>, figures: &mut Vec<serde_json::Value>) -> Outcome {
        let value = serde_json::to_value(&figure).map_err(|e| Failure::new(Code::Other, e))?;
        if !self.app.output.is_json() {
            self.app.output.data(&format!("{value}\n"))?;
        }
        figures.push(value);
        if self.args.what != What::Cold {
            profile::say(self.profile.as_ref(), usize::from(self.threads), &self.app.output);
        }
        Ok(())
    }
}

fn interrupted() -> Failure {
    Failure::new(Code::Interrupted, anyhow::anyhow!("interrupted"))
}

fn likeliest(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(0, |(id, _)| u32::try_from(id).unwrap_or(0))
}

/// The high bits of a linear congruential generator (Knuth's MMIX constants).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Tokens that mean nothing, the same each time.
fn ids(n: usize, vocab_size: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    // The first of most vocabularies are special.
    let first = if vocab_size > 2000 { 1000 } else { 0 };
    (0..n).map(|_| first + (next(&mut state) % (vocab_size - first as usize).max(1) as u64) as u32).collect()
}

/// Lengths between two, equally often in each power of two: as sentences and paragraphs are.
fn lengths(Length(from, to): Length, n: usize) -> Vec<usize> {
    let mut state = 5;
    let (low, high) = ((from as f64).ln(), (to as f64).ln());
    let mut at = || low + (high - low) * (next(&mut state) as f64 / (1u64 << 31) as f64);
    (0..n).map(|_| (at().exp().round() as usize).clamp(from, to)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_lie_between_and_differ() {
        let all = lengths(Length(8, 256), 128);
        assert!(all.iter().all(|n| (8..=256).contains(n)), "{all:?}");
        let short = all.iter().filter(|n| **n < 45).count();
        // Half of them below the geometric mean.
        assert!((40..90).contains(&short), "{short}");
        assert_eq!(lengths(Length(12, 12), 9), vec![12; 9]);
        assert!(length("0").is_err() && length("9-8").is_err() && length("x").is_err());
        assert_eq!(length("8-256"), Ok(Length(8, 256)));
    }

    #[test]
    fn tokens_are_of_the_vocabulary() {
        for vocab in [1, 100, 3000] {
            assert!(ids(200, vocab, 3).iter().all(|id| (*id as usize) < vocab));
        }
    }
}
