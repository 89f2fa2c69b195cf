//! Prices encodings of the weights of one program, finds those that its targets cannot have, and
//! chooses one.
//!
//! The caller makes the packages for an encoding; what a chip computes wrong or not at all is what
//! the rules of the audit find in them, and not in the same packages without compressed weights.

use thane_audit::Rule;
use thane_audit::report::{Subject, SubjectAudit};
use thane_audit::target::Target;
use thane_compile::compress::program::Settings;
use thane_compile::compress::{Codes, Encoding, Scale};
use thane_mil::opset::Opset;

use crate::compress::{CompressOptions, sampled_error};
use crate::error::RuntimeError;

/// Makes the packages with compressed weights, or without.
pub type MakeSubject<'a> = dyn Fn(Option<&CompressOptions>) -> Result<Subject, RuntimeError> + 'a;

/// Encodings whose relative error is at most this many times the least are of one class.
const ERROR_CLASS: f64 = 1.1;
/// Channels that share a table.
const GROUPS: [usize; 3] = [32, 16, 8];

/// A rule that finds compressed weights that a target does not run, or computes wrong.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The rule.
    pub rule: &'static Rule,
    /// What it found first.
    pub message: String,
}

/// What packages take on a target.
#[derive(Clone, Debug)]
pub struct EncodingPrice {
    /// Milliseconds of a token of an answer in the greatest context; of a model that gives no
    /// answers, of a call of each function.
    pub ms: f64,
    /// Bytes of the packages.
    pub disk_bytes: u64,
    /// Bytes of memory once all functions are loaded.
    pub loaded_bytes: Option<f64>,
    /// What they cannot have there because of their encoding.
    pub faults: Vec<Fault>,
}

/// An encoding that was tried.
#[derive(Clone, Debug)]
pub struct TriedEncoding {
    /// Encoding and scales.
    pub settings: Settings,
    /// The relative error, estimated from samples.
    pub error: f64,
    /// What it takes on each target.
    pub prices: Vec<EncodingPrice>,
    /// The time over that of the fastest without faults, on the target where that is worst.
    ratio: f64,
}

/// What each of these ways to store weights takes on each target; `None` is no compression.
pub fn price_encodings(
    make: &MakeSubject<'_>,
    ways: &[Option<CompressOptions>],
    targets: &[Target],
) -> Result<Vec<Vec<EncodingPrice>>, RuntimeError> {
    let plain = make(None)?;
    let known: Vec<Vec<&str>> = targets
        .iter()
        .map(|target| {
            let audit = SubjectAudit::of(&plain, target);
            audit.faults().iter().map(|fault| fault.rule.id).collect()
        })
        .collect();
    let prices = |way: &Option<CompressOptions>| {
        let made = way.as_ref().map(|options| make(Some(options)));
        let made = made.transpose()?;
        let subject = made.as_ref().unwrap_or(&plain);
        let targets = targets.iter().zip(&known);
        Ok(targets
            .map(|(target, known)| price(subject, target, known))
            .collect())
    };
    ways.iter().map(prices).collect()
}

fn price(subject: &Subject, target: &Target, known: &[&str]) -> EncodingPrice {
    let audit = SubjectAudit::of(subject, target);
    let answer = audit.priced_calls().answer().map(|answer| answer.token.ms);
    let faults = audit.faults().into_iter();
    EncodingPrice {
        ms: answer.unwrap_or_else(|| audit.latencies().map(|latency| latency.ms).sum()),
        disk_bytes: subject.disk_bytes,
        loaded_bytes: audit.memory().map(|row| row.bytes),
        faults: faults
            .filter(|fault| !known.contains(&fault.rule.id))
            .map(|fault| Fault {
                rule: fault.rule,
                message: fault.message.clone(),
            })
            .collect(),
    }
}

/// The settings that stand for 4-bit palettes until one is chosen; no weight is read for them.
pub fn pricing_settings(scale: Option<Scale>, tables: Option<Encoding>) -> Settings {
    Settings {
        encoding: Encoding::palette(4),
        tables,
        scale: Some(scale.unwrap_or(Scale::None)),
        ..Settings::default()
    }
}

/// Chooses a palette of 4 bits: of one table or tables for groups of channels, without scales or
/// with scales behind products (or as `scale` says), and in an opset. Of those whose error is at
/// most 1.1 times the least, the fastest where it is worst of the targets comes first.
pub fn choose_encoding(
    make: &MakeSubject<'_>,
    start: &CompressOptions,
    (scale, opset): (Option<Scale>, Opset),
    targets: &[Target],
) -> Result<Vec<TriedEncoding>, RuntimeError> {
    let ways: Vec<Option<CompressOptions>> = candidates(&start.settings, scale, opset)
        .into_iter()
        .map(|settings| {
            Some(CompressOptions {
                settings,
                ..start.clone()
            })
        })
        .collect();
    let plain = make(None)?;
    let prices = price_encodings(make, &ways, targets)?;
    let mut tried = Vec::new();
    for (way, prices) in ways.iter().flatten().zip(prices) {
        let mut squares = 0.0;
        for part in &plain.parts {
            squares += sampled_error(&part.program, way)?.powi(2);
        }
        tried.push(TriedEncoding {
            settings: way.settings,
            error: (squares / plain.parts.len().max(1) as f64).sqrt(),
            prices,
            ratio: 1.0,
        });
    }
    sort(&mut tried);
    Ok(tried)
}

fn candidates(start: &Settings, scale: Option<Scale>, opset: Opset) -> Vec<Settings> {
    let scales = match scale {
        Some(scale) => vec![scale],
        None => vec![Scale::None, Scale::Behind],
    };
    let tables = std::iter::once(None).chain(GROUPS.map(Some));
    let each = tables.flat_map(|group| {
        let encoding = Encoding {
            codes: Some(Codes::Palette(4, group)),
            ..Encoding::palette(4)
        };
        scales.iter().map(move |scale| Settings {
            encoding,
            scale: Some(*scale),
            ..*start
        })
    });
    each.filter(|way| way.oldest_opset() <= opset).collect()
}

/// Puts the chosen one first: without faults, of the class of the least error, the fastest.
fn sort(tried: &mut [TriedEncoding]) {
    let n_faults = |one: &TriedEncoding| one.prices.iter().map(|p| p.faults.len()).sum::<usize>();
    let fewest = tried.iter().map(n_faults).min();
    let is_fit = |one: &TriedEncoding| Some(n_faults(one)) == fewest;
    let fit = || tried.iter().filter(|one| is_fit(one));
    let least = fit().map(|one| one.error).fold(f64::INFINITY, f64::min);
    let n_targets = tried.first().map_or(0, |one| one.prices.len());
    let fastest: Vec<f64> = (0..n_targets)
        .map(|at| {
            fit()
                .map(|one| one.prices[at].ms)
                .fold(f64::INFINITY, f64::min)
        })
        .collect();
    for one in tried.iter_mut() {
        let ratios = one.prices.iter().zip(&fastest);
        one.ratio = ratios
            .map(|(price, best)| price.ms / best)
            .fold(1.0, f64::max);
    }
    let rank = |one: &TriedEncoding| {
        let is_worse = one.error > ERROR_CLASS * least;
        (n_faults(one), is_worse)
    };
    tried.sort_by(|a, b| {
        let by_time = a.ratio.total_cmp(&b.ratio);
        rank(a)
            .cmp(&rank(b))
            .then(by_time)
            .then(a.error.total_cmp(&b.error))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(encoding: &str, error: f64, ms: &[f64]) -> TriedEncoding {
        let price = |ms: &f64| EncodingPrice {
            ms: *ms,
            disk_bytes: 0,
            loaded_bytes: None,
            faults: Vec::new(),
        };
        TriedEncoding {
            settings: Settings {
                encoding: encoding.parse().unwrap(),
                ..Settings::default()
            },
            error,
            prices: ms.iter().map(price).collect(),
            ratio: 1.0,
        }
    }

    #[test]
    fn the_fastest_of_the_least_errors_is_first() {
        let mut all = [
            tried("pal4", 0.12, &[1.0, 1.0]),
            tried("pal4g32", 0.105, &[1.2, 1.5]),
            tried("pal4g16", 0.103, &[1.3, 1.3]),
            tried("pal4g8", 0.1, &[1.6, 1.4]),
        ];
        sort(&mut all);
        let names = all.map(|one| one.settings.encoding.to_string());
        assert_eq!(names, ["pal4g16", "pal4g32", "pal4g8", "pal4"]);
    }

    #[test]
    fn what_a_target_cannot_have_is_last() {
        let mut all = [tried("pal4", 0.1, &[1.0]), tried("pal4g8", 0.1, &[2.0])];
        let rule = thane_audit::rules::all()
            .find(|rule| rule.id == "ANE083")
            .unwrap();
        all[0].prices[0].faults.push(Fault {
            rule,
            message: String::new(),
        });
        sort(&mut all);
        assert_eq!(all[0].settings.encoding.to_string(), "pal4g8");
    }
}
