//! The short notation in which published probes describe an op: `64ch 32x32 k13x13 same`,
//! `[1,128,256]@[256,512]`, `axis w`.
//!
//! A description is words, lists of numbers in brackets and `key=value`. What it does not say is
//! left open.

use thane_mil::types::DType;

/// What a description says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notation {
    /// Shapes of operands, in order.
    pub shapes: Vec<Vec<usize>>,
    /// Shape of a weight, as in `w[64,64,3,3]`.
    pub weight: Option<Vec<usize>>,
    /// Shape of a mask, as in `mask[1,1,128,128]`.
    pub mask: bool,
    /// Axes, as in `axes[2,3]`, `axis1`, `axis w`.
    pub axes: Vec<i64>,
    /// Sizes of a window, as in `k7`, `k1x9`.
    pub kernel: Vec<usize>,
    /// As in `s2`, `stride 4`.
    pub stride: Option<i64>,
    /// As in `g2`, `groups 2`.
    pub groups: Option<i64>,
    /// As in `d2`, `dilation 2`.
    pub dilation: Option<i64>,
    /// What a product sums over, as in `K=16384`.
    pub k: Option<usize>,
    /// As in `64ch`.
    pub channels: Option<usize>,
    /// Sizes of an image, as in `32x32`.
    pub image: Vec<usize>,
    /// As in `seq16`.
    pub seq_len: Option<usize>,
    /// Spatial dimensions, as in `3D`.
    pub n_spatial: Option<usize>,
    /// As in `mode=EXACT`, or a word that is the mode of an op.
    pub mode: Option<String>,
    /// Element types, in order.
    pub dtypes: Vec<DType>,
    /// All words, in lower case.
    words: Vec<String>,
    /// Numbers in brackets after the name of a parameter.
    lists: Vec<(String, Vec<i64>)>,
    /// `key=value`.
    values: Vec<(String, String)>,
}

impl Notation {
    /// Read a description; what it says itself goes before what the `title` of the case adds.
    pub fn parse(title: &str, description: &str) -> Self {
        let mut own = Self::read(description);
        let other = Self::read(title);
        own.words.extend(other.words);
        if own.dtypes.len() < other.dtypes.len() {
            own.dtypes = other.dtypes;
        }
        if own.axes.is_empty() {
            own.axes = other.axes;
        }
        if own.kernel.is_empty() {
            own.kernel = other.kernel;
        }
        own.stride = own.stride.or(other.stride);
        own.groups = own.groups.or(other.groups);
        own.dilation = own.dilation.or(other.dilation);
        own.n_spatial = own.n_spatial.or(other.n_spatial);
        own.mode = own.mode.or(other.mode);
        own
    }

    /// Whether one of these words stands in it.
    pub fn says(&self, words: &[&str]) -> bool {
        self.words.iter().any(|w| words.contains(&w.as_str()))
    }

    fn read(text: &str) -> Self {
        let mut notation = Self::default();
        let mut rest = text;
        while let Some(start) =
            rest.find(|c: char| c.is_ascii_alphanumeric() || matches!(c, '[' | '-'))
        {
            rest = notation.token(&rest[start..]);
        }
        notation
    }

    /// Read what a text begins with; what follows.
    fn token<'a>(&mut self, text: &'a str) -> &'a str {
        if let Some(inner) = text.strip_prefix('[') {
            let Some((list, behind)) = inner.split_once(']') else {
                return inner;
            };
            let tag = self
                .words
                .last()
                .filter(|w| TAGS.contains(&w.as_str()))
                .cloned();
            self.lists(tag.as_deref().unwrap_or_default(), list);
            return behind;
        }
        let key = text
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(text.len());
        if let Some(value) = text[key..].strip_prefix('=').filter(|_| key > 0) {
            return self.pair(&text[..key].to_ascii_lowercase(), value);
        }
        let sign = usize::from(text.starts_with('-'));
        let end = text[sign..]
            .find(|c: char| !c.is_ascii_alphanumeric())
            .map_or(text.len(), |n| n + sign);
        let (word, behind) = text.split_at(end);
        match behind
            .strip_prefix('[')
            .and_then(|inner| inner.split_once(']'))
        {
            Some((list, behind)) if !word.is_empty() => {
                self.words.push(word.to_ascii_lowercase());
                self.lists(&word.to_ascii_lowercase(), list);
                behind
            }
            _ => {
                self.word(word);
                behind
            }
        }
    }

    /// `key=value`; what follows.
    fn pair<'a>(&mut self, key: &str, value: &'a str) -> &'a str {
        if let Some((list, behind)) = value
            .strip_prefix('[')
            .and_then(|inner| inner.split_once(']'))
        {
            self.lists(key, list);
            return behind;
        }
        let end = value.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '.' | '-'));
        let (word, behind) = value.split_at(end.unwrap_or(value.len()));
        self.words.push(key.to_owned());
        match word.parse::<i64>() {
            Ok(n) => self.number(key, n),
            Err(_) if key == "mode" => self.mode = Some(word.to_owned()),
            Err(_) => self.word(word),
        }
        self.values.push((key.to_owned(), word.to_owned()));
        behind
    }

    /// Reads a list in brackets, with the word in front of it, if there is one.
    fn lists(&mut self, tag: &str, text: &str) {
        if let Some(list) = numbers(text) {
            self.list(tag, &list);
        }
    }

    fn list(&mut self, tag: &str, list: &[i64]) {
        let sizes = || {
            list.iter()
                .map(|n| usize::try_from(*n).unwrap_or(0))
                .collect::<Vec<_>>()
        };
        match tag {
            "axes" | "axis" => self.axes = list.to_vec(),
            "w" | "weight" | "weights" => self.weight = Some(sizes()),
            "mask" => self.mask = true,
            "k" | "kernel" => self.kernel = sizes(),
            tag if TAGS.contains(&tag) => {}
            _ => return self.shapes.push(sizes()),
        }
        self.lists.push((tag.to_owned(), list.to_vec()));
    }

    fn word(&mut self, word: &str) {
        let lower = word.to_ascii_lowercase();
        let before = self.words.last().cloned().unwrap_or_default();
        if let Some(dtype) = dtype(&lower) {
            self.dtypes.push(dtype);
        } else if let Ok(n) = lower.parse::<i64>() {
            self.number(&before, n);
        } else if matches!(lower.as_str(), "w" | "h" | "c" | "n") && self.axes.is_empty() {
            self.axes.extend(
                "nchw"
                    .find(lower.as_str())
                    .and_then(|axis| i64::try_from(axis).ok()),
            );
        } else if matches!(
            lower.as_str(),
            "reflect" | "replicate" | "constant" | "exact"
        ) {
            self.mode = Some(word.to_owned());
        } else {
            self.letters_and_sizes(&lower);
        }
        self.words.push(lower);
    }

    fn number(&mut self, before: &str, n: i64) {
        match before {
            "s" | "stride" | "strides" => self.stride = Some(n),
            "g" | "groups" | "group" => self.groups = Some(n),
            "d" | "dilation" | "dilations" | "dil" => self.dilation = Some(n),
            "axis" | "axes" => self.axes = vec![n],
            "kernel" => self.kernel = vec![usize::try_from(n).unwrap_or(0)],
            "k" => self.k = usize::try_from(n).ok(),
            "seq" => self.seq_len = usize::try_from(n).ok(),
            _ => {}
        }
    }

    /// Words such as `k2s2`, `64ch`, `32x32`, `axis1`, `3d`.
    fn letters_and_sizes(&mut self, lower: &str) {
        let n = |text: &str| text.parse::<usize>().ok();
        let sizes = |text: &str| text.split('x').map(n).collect::<Option<Vec<usize>>>();
        let digits = lower
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(lower.len());
        let (letters, rest) = lower.split_at(digits);
        let d = lower
            .strip_suffix('d')
            .and_then(|w| w.chars().last()?.to_digit(10))
            .filter(|d| (1..=3).contains(d));
        if let Some(channels) = lower.strip_suffix("ch").and_then(n) {
            self.channels = Some(channels);
        } else if let Some(list) = sizes(lower).filter(|s| s.len() > 1) {
            self.sizes(list);
        } else if let Some(d) = d {
            self.n_spatial = Some(d as usize);
        } else if let Some((kernel, stride)) =
            lower.strip_prefix('k').and_then(|k| k.split_once('s'))
        {
            self.kernel = sizes(kernel).unwrap_or_default();
            self.stride = stride.parse().ok();
        } else if let Some(kernel) = lower.strip_prefix('k').and_then(sizes) {
            self.kernel = kernel;
        } else if let Ok(n) = rest.parse() {
            self.number(letters, n);
        }
    }

    /// `32x32` is an image, and `3x3` a kernel: kernels end at 16, and of two the larger is the
    /// image.
    fn sizes(&mut self, list: Vec<usize>) {
        let is_kernel = list.iter().all(|n| *n <= 16);
        match is_kernel && self.kernel.is_empty() {
            true => self.kernel = list,
            false => self.image = list,
        }
    }

    /// What is said of a parameter by its name: `axes=[1]`, `k=5`.
    pub fn said(&self, param: &str) -> Option<Said<'_>> {
        let list = self
            .lists
            .iter()
            .find(|(name, _)| name == param)
            .map(|(_, list)| Said::List(list));
        list.or_else(|| {
            self.values
                .iter()
                .find(|(name, _)| name == param)
                .map(|(_, value)| Said::Value(value))
        })
    }
}

/// What is said of a parameter.
pub enum Said<'a> {
    /// Numbers.
    List(&'a [i64]),
    /// A number or a word.
    Value(&'a str),
}

/// Words before numbers in brackets that are no shape of an operand.
const TAGS: [&str; 14] = [
    "axes",
    "axis",
    "weight",
    "weights",
    "mask",
    "kernel",
    "perm",
    "begin",
    "end",
    "size",
    "reps",
    "pad",
    "strides",
    "dilations",
];

fn numbers(list: &str) -> Option<Vec<i64>> {
    list.split(',').map(|n| n.trim().parse().ok()).collect()
}

fn dtype(word: &str) -> Option<DType> {
    Some(match word {
        "f16" | "fp16" | "half" => DType::Fp16,
        "f32" | "fp32" | "float" => DType::Fp32,
        "i32" | "int32" | "int" => DType::Int32,
        "i16" | "int16" => DType::Int16,
        "u16" | "uint16" => DType::Uint16,
        "i8" | "int8" => DType::Int8,
        "u8" | "uint8" => DType::Uint8,
        "bool" => DType::Bool,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_read() {
        let n = Notation::parse("conv_k13", "64ch 32x32 k13x13 same");
        assert_eq!(
            (n.channels, n.image, n.kernel),
            (Some(64), vec![32, 32], vec![13, 13])
        );
        let n = Notation::parse("", "[1,128,256]@[256,512] K=40000 transpose_y");
        assert_eq!(
            (n.shapes, n.k),
            (vec![vec![1, 128, 256], vec![256, 512]], Some(40_000))
        );
        assert!(!Notation::default().says(&["transpose"]) && n.words.contains(&"y".to_owned()));
        let n = Notation::parse("avg_pool3d", "3D k2s2 axes[2,3] w[8,8,1,1]");
        assert_eq!(
            (n.n_spatial, n.kernel, n.stride, n.axes),
            (Some(3), vec![2], Some(2), vec![2, 3])
        );
        assert_eq!(n.weight, Some(vec![8, 8, 1, 1]));
        let n = Notation::parse(
            "cast_f16_i32",
            "[1,64,32,32] mode=TANH_APPROXIMATION stride 4 groups 2",
        );
        assert_eq!(n.dtypes, [DType::Fp16, DType::Int32]);
        assert_eq!((n.stride, n.groups), (Some(4), Some(2)));
        assert_eq!(Notation::parse("", "axis h").axes, [2]);
        assert_eq!(Notation::parse("softmax_c", "").axes, [1]);
        let n = Notation::parse(
            "",
            "[1,64,32,32] 3x3 axis=-1 perm=[0,2,1] reps [1,2] seq16 1d",
        );
        assert_eq!(
            (n.kernel.as_slice(), n.axes.as_slice(), n.shapes.len()),
            (&[3, 3][..], &[-1][..], 1)
        );
        assert_eq!(
            (n.lists.len(), n.seq_len, n.n_spatial),
            (2, Some(16), Some(1))
        );
        let n = Notation::parse("", "mode=TANH_APPROXIMATION k=5");
        assert_eq!(
            (n.mode.as_deref(), n.k),
            (Some("TANH_APPROXIMATION"), Some(5))
        );
    }

    #[test]
    fn whatever_is_written_is_read_to_its_end() {
        for text in [
            "[",
            "[1,2",
            "]]",
            "--",
            "-",
            "w[",
            "=[1]",
            "a=[x]",
            "k=",
            "[a,b]",
            "k99999999999999999999x1",
            "é[1]-x",
        ] {
            Notation::parse(text, text);
        }
    }
}
