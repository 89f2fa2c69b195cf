//! `thane bench`: measures how fast a model is on this machine.

mod encoder;
mod figure;
mod language;
mod predict;
mod process;
mod scheduler;
mod texts;

use std::sync::Arc;
use std::time::Duration;

use figure::{Figure, Machine};
use thane_cpu::Profile;

use crate::app::App;
use crate::call::CallFlags;
use crate::exit::{Failure, Outcome, other};
use crate::memory::peak_memory;
use crate::model::{self, NumericsFlag, Processor};
use crate::profile;

/// Measure how fast a model is on this machine, as a JSON line for each figure.
///
/// A figure is the median of several rounds, with minimum and maximum.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Measure.
    #[arg(value_enum)]
    what: What,
    /// A path, hf:org/name[/file][@revision], or a name of the catalog; for predict a package.
    model: String,
    /// Rounds, after one warm-up round.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Numbers of threads, with a figure for each [default: the physical cores].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,
    /// Tokens of the prompt; for embed of a text, or a range such as 8-256.
    ///
    /// In a range, short texts are more frequent [default: 512, for decode, verify and scheduler
    /// 128, for batch 16, for cold 30, for embed 8-256].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = length)]
    lengths: Vec<Length>,
    /// Tokens of an answer, for decode, batch and scheduler.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    tokens: u16,
    /// Batch sizes: texts or sequences at once [default: 1,32, for batch 8,32].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    batch: Vec<u16>,
    /// Numbers of tokens that a call of verify takes [default: 1,2,4,8,16].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=4096))]
    verify: Vec<u16>,
    /// Texts per round of embed [default: 128, or the largest --batch if that is more].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    texts: Option<u16>,
    /// Numerics to use.
    ///
    /// fast multiplies quantized weights without dequantizing them, int8 also quantizes float
    /// weights, f32 is the reference, and ane rounds like the Apple Neural Engine.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = NumericsFlag::Fast)]
    numerics: NumericsFlag,
    /// Print the time of each kernel after each figure, and the ops below a tenth of what this
    /// machine can do; without the warm-up round; not for cold and convert.
    #[arg(long)]
    profile: bool,
    #[command(flatten, next_help_heading = "Flags of predict")]
    call: CallFlags,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Prefill throughput: tokens of a prompt per second.
    Prefill,
    /// Decode throughput: tokens of an answer per second.
    Decode,
    /// Decode throughput of a batch: tokens of all answers per second.
    Batch,
    /// Latency of the logits of several tokens, as speculative decoding needs them. A package
    /// without the function verify computes them one by one.
    Verify,
    /// What the scheduler of the server adds to the decode steps of one answer: the time of such a
    /// step, divided by the time of the bare step at the same position.
    Scheduler,
    /// Embedding throughput: texts per second.
    Embed,
    /// Time from the start of the process to the first token, with files in the page cache.
    Cold,
    /// Time to convert a model, from the start of the process.
    Convert,
    /// Latency of a function of any package, and the time from loading to the first result.
    Predict,
}

/// A range of lengths.
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

/// A measurement with one number of threads.
struct Bench<'a> {
    args: &'a Args,
    app: &'a App,
    threads: u16,
    machine: Machine,
    profile: Option<Arc<Profile>>,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let usual = u16::try_from(num_cpus::get_physical()).unwrap_or(1);
    let all = if args.threads.is_empty() {
        vec![usual]
    } else {
        args.threads.clone()
    };
    let machine = Machine::here(app);
    let mut figures = Vec::new();
    for threads in all {
        let bench = Bench {
            args,
            app,
            threads,
            machine: machine.clone(),
            profile: profile::wanted(args.profile),
        };
        if args.what != What::Predict {
            bench.check_flags()?;
        }
        let done = match args.what {
            What::Prefill | What::Decode => bench.language(&mut figures),
            What::Batch => bench.batch(&mut figures),
            What::Verify => bench.verify(&mut figures),
            What::Scheduler => bench.scheduler(&mut figures),
            What::Embed => bench.embed(&mut figures),
            What::Cold => bench.cold(&mut figures),
            What::Convert => bench.convert(&mut figures),
            What::Predict => bench.predict(&mut figures),
        };
        // A package that is measured as it is has no lengths to choose.
        done.map_err(|e| match args.what {
            What::Predict => e,
            _ => e.without_flag("--context", "--lengths and --tokens, with fewer tokens"),
        })?;
    }
    if app.output.is_json() {
        app.output
            .json(&serde_json::json!({ "figures": figures }))?;
    }
    Ok(())
}

impl<'a> Bench<'a> {
    fn backend(&self) -> Processor {
        Processor {
            cpu: model::cpu(self.args.numerics, Some(self.threads), self.app),
            profile: self.profile.clone(),
        }
    }

    fn lengths(&self) -> Vec<Length> {
        let usual = match self.args.what {
            What::Prefill => Length(512, 512),
            What::Decode | What::Verify | What::Scheduler => Length(128, 128),
            What::Batch => Length(16, 16),
            What::Embed => Length(8, 256),
            What::Cold => Length(30, 30),
            What::Convert | What::Predict => Length(0, 0),
        };
        if self.args.lengths.is_empty() {
            vec![usual]
        } else {
            self.args.lengths.clone()
        }
    }

    /// The batch sizes.
    fn batches(&self, usual: &[u16]) -> Vec<u16> {
        if self.args.batch.is_empty() {
            usual.to_vec()
        } else {
            self.args.batch.clone()
        }
    }

    /// Lengths of prompts; a range is an error.
    fn prompts(&self) -> Result<Vec<usize>, Failure> {
        let one = |Length(from, to): Length| {
            let error = || usage!("--lengths {from}-{to}: a prompt has one length");
            if from == to { Ok(from) } else { Err(error()) }
        };
        self.lengths().into_iter().map(one).collect()
    }

    /// The results of all rounds but the first, which warms up; ascending.
    fn rounds(&self, round: &mut dyn FnMut() -> Result<f64, Failure>) -> Result<Vec<f64>, Failure> {
        self.app
            .output
            .count("rounds", Some(u64::from(self.args.rounds)), 0);
        round()?;
        self.profile.iter().for_each(|profile| profile.clear());
        // Give a machine that was just busy a moment.
        std::thread::sleep(Duration::from_millis(20));
        let one = |_| round().inspect(|_| self.app.output.advance(1));
        let mut results = (0..self.args.rounds)
            .map(one)
            .collect::<Result<Vec<f64>, Failure>>()?;
        self.app.output.clear();
        results.sort_by(f64::total_cmp);
        Ok(results)
    }

    fn figure<'b>(
        &self,
        model: &'b str,
        tokens: [usize; 2],
        results: Vec<f64>,
        unit: &'static str,
    ) -> Figure<'b> {
        let n = results.len();
        let name = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
        Figure {
            bench: name(&self.args.what),
            model,
            version: env!("CARGO_PKG_VERSION"),
            commit: option_env!("THANE_COMMIT"),
            machine: self.machine.clone(),
            numerics: name(&self.args.numerics),
            threads: self.threads,
            tokens,
            unit,
            median: (results[(n - 1) / 2] + results[n / 2]) / 2.0,
            least: results[0],
            most: results[n - 1],
            rounds: n,
            peak_memory_bytes: peak_memory(),
            ..Figure::default()
        }
    }

    fn say(&self, mut figure: Figure<'_>, figures: &mut Vec<serde_json::Value>) -> Outcome {
        let is_own_process = matches!(self.args.what, What::Cold | What::Convert);
        let profile = self.profile.as_ref().filter(|_| !is_own_process);
        let measured = profile::measured(profile, &self.backend().cpu);
        figure.slow_ops = measured.as_ref().map(|measured| measured.slow_ops());
        let value = serde_json::to_value(&figure).map_err(other)?;
        if !self.app.output.is_json() {
            self.app.output.data(&format!("{value}\n"))?;
        }
        figures.push(value);
        if let Some(measured) = measured {
            measured.say(&self.app.output);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_one_number_or_two() {
        assert!(length("0").is_err() && length("9-8").is_err() && length("x").is_err());
        assert_eq!(
            (length("512"), length("8-256")),
            (Ok(Length(512, 512)), Ok(Length(8, 256)))
        );
    }
}
