//! The chips that a cost is predicted for: a row of numbers each, and how each number is known.
//!
//! Bandwidths of weights are those of anemll-bench; peaks, dispatch and activations those of the M6
//! microarchitecture study (751K), ANEForge, maderix/ANE and qwen-ane, on macOS 15 to 27, as they
//! published them. None was measured here. Where a source gives a range, its middle stands here.
//! What nobody published for a chip is taken from a related one and [`Evidence::Inferred`]. What a
//! generation shares is in [`Family`].

mod table;

use super::{Evidence, Family, Figure, Host, Route, System};

pub use table::CHIPS;

/// Chips of iPads. Source: Apple's specifications of iPad, iPad mini, iPad Air and iPad Pro, 2020
/// to 2025.
const IN_IPADS: [&str; 9] = ["m1", "m2", "m3", "m4", "m5", "a14", "a15", "a16", "a17-pro"];

const APPLE: &str = "Apple's specifications";

/// The end of calls that take this long or longer is noticed latest, in microseconds: where the cost
/// of completion is at its most on M6.
pub const ASLEEP_US: Figure = Figure::measured(660.0, 660.0, 660.0).by("M6 study, M6, macOS 27");

/// Channels, and so logits of an output, that a tensor has at most on every chip: for programs that
/// are written for no chip in particular.
pub fn most_channels() -> usize {
    let channels = CHIPS.iter().map(|chip| chip.family.caps.channels);
    channels.fold(usize::MAX, usize::min)
}

/// A chip and the figures that predictions use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chip {
    /// Name, as users write it.
    pub name: &'static str,
    /// Name, as Apple sells it.
    pub marketing: &'static str,
    /// Name of the engine as Apple's compiler writes it; a name that ends in `?` is a guess.
    pub arch: &'static str,
    /// Generation of its engine, as Apple's compiler counts: `h13` is that of M1 and A14.
    pub generation: u8,
    /// The figures that the generation shares.
    pub family: &'static Family,
    /// Engines that one program runs on.
    pub engines: u8,
    /// Cores of the GPU, of the largest version.
    pub gpu_cores: u8,
    /// Memory of the largest device with the chip, in GiB: Apple's specifications; a guess for M6,
    /// A20 and A20 Pro.
    pub memory_gib: u16,
    /// fp16 products of one engine at their best, in 10^12 operations/s; a multiplication and an
    /// addition are two.
    pub peak_tflops: Figure,
    /// Peak of products of int8 weights with int8 activations on one engine, in 10^12 operations/s.
    pub int8_tops: Option<Figure>,
    /// Bandwidth of weights from memory, in 10^9 bytes/s.
    pub weight_gbps: Figure,
    /// Bandwidth of activations from and to memory, in 10^9 bytes/s.
    pub activation_gbps: Figure,
    /// Bandwidth of activations between ops inside the engine, in 10^9 bytes/s.
    pub local_gbps: Figure,
    /// Throughput of elementwise ops, in 10^9 results/s.
    pub element_gps: Figure,
    /// What ops on the CPU read and write of memory, in 10^9 bytes/s.
    pub cpu_gbps: Figure,
    /// What ops take on the CPU and GPU.
    pub host: Host,
    /// Dispatch latency of a call through Core ML, in microseconds.
    pub dispatch_us: Figure,
    /// Dispatch latency of a call on the direct route, in microseconds.
    pub direct_us: Figure,
    /// How much more it costs to notice the end of a long call, in microseconds: the waiting CPU
    /// falls asleep.
    pub idle_us: Figure,
}

impl Chip {
    /// What is known of a chip whose engine is like this one's, but not the same.
    const fn related(self) -> Self {
        let int8_tops = match self.int8_tops {
            Some(figure) => Some(figure.related()),
            None => None,
        };
        Self {
            peak_tflops: self.peak_tflops.related(),
            int8_tops,
            weight_gbps: self.weight_gbps.related(),
            activation_gbps: self.activation_gbps.related(),
            local_gbps: self.local_gbps.related(),
            element_gps: self.element_gps.related(),
            dispatch_us: self.dispatch_us.related(),
            direct_us: self.direct_us.related(),
            idle_us: self.idle_us.related(),
            ..self
        }
    }

    /// What is expected of a newer chip, of which nothing is published: the figures of this one,
    /// each with a wider range.
    const fn newer(self) -> Self {
        let int8_tops = match self.int8_tops {
            Some(figure) => Some(figure.widened()),
            None => None,
        };
        Self {
            peak_tflops: self.peak_tflops.widened(),
            int8_tops,
            weight_gbps: self.weight_gbps.widened(),
            activation_gbps: self.activation_gbps.widened(),
            local_gbps: self.local_gbps.widened(),
            element_gps: self.element_gps.widened(),
            cpu_gbps: self.cpu_gbps.widened(),
            host: self.host.widened(),
            dispatch_us: self.dispatch_us.widened(),
            direct_us: self.direct_us.widened(),
            idle_us: self.idle_us.widened(),
            ..self
        }
    }

    /// The chip of a name, in capitals or not; `M4 Max` is `m4-max` too.
    pub fn from_name(name: &str) -> Option<&'static Self> {
        let name = name.trim().replace([' ', '_'], "-");
        CHIPS
            .iter()
            .find(|chip| chip.name.eq_ignore_ascii_case(&name))
    }

    /// The chip that a text names as people write it: `M4 Max`, `iPhone 17 Pro (A19 Pro)`,
    /// `M6 single ANE`, `M1 (Air)`.
    pub fn from_marketing(text: &str) -> Option<&'static Self> {
        let text: Vec<String> = text
            .split(|c: char| !c.is_ascii_alphanumeric())
            .map(str::to_ascii_lowercase)
            .collect();
        let names = |chip: &Chip| {
            let name: Vec<&str> = chip.name.split('-').collect();
            text.windows(name.len())
                .any(|words| words.iter().zip(&name).all(|(a, b)| a == b))
        };
        CHIPS
            .iter()
            .filter(|chip| names(chip))
            .max_by_key(|chip| chip.name.len())
    }

    /// Whether a device with this chip runs the system.
    pub fn runs(&self, system: System) -> bool {
        match system {
            System::Mac => self.name.starts_with('m'),
            System::Phone => self.name.starts_with('a'),
            System::Pad => IN_IPADS.contains(&self.name),
        }
    }

    /// The first system that runs on it.
    pub fn first_system(&self) -> System {
        match self.runs(System::Mac) {
            true => System::Mac,
            false => System::Phone,
        }
    }

    /// Memory of the largest device with the chip, in bytes.
    pub fn memory_bytes(&self) -> f64 {
        f64::from(self.memory_gib) * 1_073_741_824.0
    }

    /// The overhead of a call with `busy` seconds of work, in seconds.
    pub fn dispatch_seconds(&self, route: Route, busy: f64) -> f64 {
        let base = match route {
            Route::CoreMl => self.dispatch_us,
            Route::Direct => self.direct_us,
        };
        let asleep = (busy * 1e6 / ASLEEP_US.value).clamp(0.0, 1.0);
        (base.value + self.idle_us.value * asleep) / 1e6
    }

    /// What is counted: engines, cores, memory, columns, by field name.
    pub fn counts(&self) -> [(&'static str, Figure); 4] {
        let (engines, columns) = (
            f64::from(self.engines.max(1)),
            self.family.min_columns as f64,
        );
        let gib = f64::from(self.memory_gib);
        let cores = f64::from(self.gpu_cores);
        let guess = |n: f64| Figure::inferred(n, n, n).by("a guess: nobody published it");
        let measured = |n: f64, by| match self.is_unpublished() {
            true => guess(n),
            false => Figure::measured(n, n, n).by(by),
        };
        let documented = |n: f64, is_guess| match is_guess {
            true => guess(n),
            false => Figure::documented(n).by(APPLE),
        };
        let is_guess = self.is_unpublished();
        [
            ("engines", measured(engines, "M6 study; ANEForge")),
            ("gpu_cores", documented(cores, is_guess)),
            ("memory_gib", documented(gib, is_guess || self.name == "m6")),
            (
                "min_columns",
                measured(columns, "M6 study; ANEForge; qwen-ane"),
            ),
        ]
    }

    /// Whether nobody published anything that was measured on the chip.
    pub(crate) fn is_unpublished(&self) -> bool {
        self.generation > 18
    }

    /// The figures of the chip, by field name.
    pub fn figures(&self) -> Vec<(&'static str, Figure)> {
        let mut figures = vec![
            ("peak_tflops", self.peak_tflops),
            ("weight_gbps", self.weight_gbps),
            ("activation_gbps", self.activation_gbps),
            ("local_gbps", self.local_gbps),
            ("element_gps", self.element_gps),
            ("cpu_gbps", self.cpu_gbps),
            ("dispatch_us", self.dispatch_us),
            ("direct_us", self.direct_us),
            ("idle_us", self.idle_us),
            ("winograd", self.family.winograd),
        ];
        figures.extend(self.int8_tops.map(|f| ("int8_tops", f)));
        figures.extend(self.host.figures());
        figures
    }

    /// Names of the figures that were not measured on this chip.
    pub fn inferred(&self) -> Vec<&'static str> {
        self.figures()
            .into_iter()
            .filter(|(_, f)| f.evidence == Evidence::Inferred)
            .map(|(name, _)| name)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chips_are_found_as_people_write_them() {
        let cases = [
            ("M5 Pro", "m5-pro"),
            ("M5", "m5"),
            ("M5 (2)", "m5"),
            ("M1 (Air)", "m1"),
            ("M1 Ultra", "m1-ultra"),
            ("M6 single ANE", "m6"),
            ("iPhone 17 Pro (A19 Pro)", "a19-pro"),
            ("iPhone 18 Pro (A20 Pro)", "a20-pro"),
            ("M-series (M5?)", "m5"),
        ];
        for (text, name) in cases {
            assert_eq!(
                Chip::from_marketing(text).map(|c| c.name),
                Some(name),
                "{text}"
            );
        }
        for text in ["Mac Studio", "", "iPhone 13", "M55"] {
            assert_eq!(Chip::from_marketing(text), None, "{text}");
        }
    }

    #[test]
    fn every_number_has_a_source_and_lies_in_its_interval() {
        for chip in CHIPS {
            for (name, f) in chip.figures() {
                assert!(!f.source.is_empty(), "{} {name}", chip.name);
                let inside =
                    f.low <= f.value && f.value <= f.high && f.low >= 0.0 && f.high.is_finite();
                assert!(inside, "{} {name}: {f:?}", chip.name);
            }
            assert_eq!(chip.generation, chip.family.number, "{}", chip.name);
            assert_eq!(Chip::from_marketing(chip.marketing), Some(chip));
        }
    }

    #[test]
    fn a_chip_without_measurements_has_wider_ranges_than_the_one_before() {
        let figures = |name| Chip::from_name(name).expect("a row").figures();
        for (name, newer) in figures("a20-pro") {
            let mut older = figures("a19-pro").into_iter();
            let older = older.find(|(n, _)| *n == name).expect("the same figures").1;
            assert_eq!(newer.evidence, Evidence::Inferred, "{name}");
            assert_eq!(newer.value, older.value, "{name}");
            assert!(newer.low <= older.low && older.high < newer.high, "{name}");
        }
    }

    #[test]
    fn a_long_call_is_noticed_later() {
        let m6 = Chip::from_name("m6").expect("a row");
        let us = |busy| m6.dispatch_seconds(Route::CoreMl, busy) * 1e6;
        assert!(
            (us(0.0) - 160.0).abs() < 1e-9 && (us(1.0) - 355.0).abs() < 1e-9,
            "0.16 to 0.36 ms"
        );
    }
}
