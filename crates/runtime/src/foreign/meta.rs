//! Reads the YAML of a bundle: maps, lists and scalars by their path, with line numbers for errors.
//!
//! Anchors and aliases are refused: no generator writes them, and they can grow without bound.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use saphyr_parser::{Event, Parser};

use super::fault::ForeignError;

/// The scalars of a YAML file by their path, such as `model_info.parameters.batch_size`.
pub(super) struct Meta {
    path: PathBuf,
    scalars: BTreeMap<String, Scalar>,
    lists: BTreeMap<String, Vec<String>>,
}

struct Scalar {
    text: String,
    line: usize,
}

/// A map or list that is being read.
enum Open {
    Map {
        path: String,
        key: Option<String>,
    },
    List {
        path: String,
        /// Number of maps and lists in it so far.
        n: usize,
    },
}

impl Meta {
    /// Reads the text of the file at `path`.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ForeignError> {
        let mut meta = Self {
            path: path.to_owned(),
            scalars: BTreeMap::new(),
            lists: BTreeMap::new(),
        };
        let mut open: Vec<Open> = Vec::new();
        for event in Parser::new_from_str(text) {
            let (event, span) = event.map_err(|e| {
                let at = format!("line {}", e.marker().line());
                ForeignError::new(path, at).found(format!("expected YAML: {}", e.info()))
            })?;
            let line = span.start.line();
            match event {
                Event::MappingStart(..) => {
                    let path = meta.child(&mut open, line)?;
                    open.push(Open::Map { path, key: None });
                }
                Event::SequenceStart(..) => {
                    let path = meta.child(&mut open, line)?;
                    meta.lists.insert(path.clone(), Vec::new());
                    open.push(Open::List { path, n: 0 });
                }
                Event::MappingEnd | Event::SequenceEnd => drop(open.pop()),
                Event::Scalar(text, ..) => meta.scalar(&mut open, &text, line)?,
                Event::Alias(_) => {
                    return Err(meta.at(line, "expected a value, found an alias"));
                }
                _ => {}
            }
        }
        Ok(meta)
    }

    /// The path of the map or list that begins here.
    fn child(&self, open: &mut [Open], line: usize) -> Result<String, ForeignError> {
        match open.last_mut() {
            None => Ok(String::new()),
            Some(Open::Map { path, key }) => {
                let key = key.take();
                let key =
                    key.ok_or_else(|| self.at(line, "expected a key, found a map or list"))?;
                Ok(joined(path, &key))
            }
            Some(Open::List { path, n }) => {
                *n += 1;
                Ok(format!("{path}[{n}]"))
            }
        }
    }

    fn scalar(&mut self, open: &mut [Open], text: &str, line: usize) -> Result<(), ForeignError> {
        match open.last_mut() {
            Some(Open::Map { path, key }) => match key.take() {
                None => *key = Some(text.to_owned()),
                Some(name) => {
                    let place = joined(path, &name);
                    let text = text.to_owned();
                    if self.scalars.insert(place, Scalar { text, line }).is_some() {
                        return Err(self.at(line, format!("the key `{name}` stands here twice")));
                    }
                }
            },
            Some(Open::List { path, .. }) => {
                let list = self.lists.entry(path.clone()).or_default();
                list.push(text.to_owned());
            }
            None => return Err(self.at(line, "expected a map")),
        }
        Ok(())
    }

    fn at(&self, line: usize, what: impl Into<String>) -> ForeignError {
        ForeignError::new(&self.path, format!("line {line}")).found(what)
    }

    /// A fault of the value of a key.
    pub fn fault(&self, key: &str, what: impl Into<String>) -> ForeignError {
        let name = key.rsplit('.').next().unwrap_or(key);
        let place = match self.scalars.get(key) {
            Some(scalar) => format!("line {}: `{name}`", scalar.line),
            None => format!("`{name}`"),
        };
        ForeignError::new(&self.path, place).found(what)
    }

    /// The keys that begin with `prefix`, without it.
    pub fn keys<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        let all = self.scalars.keys().chain(self.lists.keys());
        all.filter_map(move |key| key.strip_prefix(prefix))
    }

    /// Text.
    pub fn text(&self, key: &str) -> Option<&str> {
        Some(self.scalars.get(key)?.text.trim())
    }

    /// A number of at least 1.
    pub fn count(&self, key: &str) -> Result<Option<usize>, ForeignError> {
        let Some(text) = self.text(key) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(n) if n > 0 => Ok(Some(n)),
            _ => Err(self.fault(key, format!("expected a number above 0, found `{text}`"))),
        }
    }

    /// `true` or `false`; an absent key is false.
    pub fn flag(&self, key: &str) -> Result<bool, ForeignError> {
        match self.text(key).map(str::to_ascii_lowercase).as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(self.fault(key, format!("expected true or false, found `{other}`"))),
        }
    }

    /// A list of numbers.
    pub fn counts(&self, key: &str) -> Result<Option<Vec<usize>>, ForeignError> {
        let Some(list) = self.lists.get(key) else {
            return Ok(None);
        };
        let numbers = list.iter().map(|text| text.trim().parse().ok());
        let numbers: Option<Vec<usize>> = numbers.collect();
        let what = || format!("expected numbers, found {}", list.join(", "));
        numbers.ok_or_else(|| self.fault(key, what())).map(Some)
    }
}

fn joined(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Meta, ForeignError> {
        Meta::parse(Path::new("meta.yaml"), text)
    }

    #[test]
    fn keys_have_paths_and_lists_have_elements() {
        let text = "# comment\nmodel_info:\n  description: |\n    two\n    lines\n  parameters:\n    \
                    n: 7 # seven\n    sizes: [3, 4]\n    more:\n    - 5\n    yes: True\n";
        let meta = parse(text).unwrap();
        let key = |name: &str| format!("model_info.parameters.{name}");
        assert_eq!(meta.count(&key("n")).unwrap(), Some(7));
        assert_eq!(meta.counts(&key("sizes")).unwrap(), Some(vec![3, 4]));
        assert_eq!(meta.counts(&key("more")).unwrap(), Some(vec![5]));
        assert!(meta.flag(&key("yes")).unwrap());
        assert_eq!(meta.text("model_info.description"), Some("two\nlines"));
    }

    #[test]
    fn faults_name_the_line_and_the_key() {
        let meta = parse("a:\n  b: x\n").unwrap();
        let error = meta.count("a.b").unwrap_err();
        assert_eq!(
            error.to_string(),
            "meta.yaml: line 2: `b`: expected a number above 0, found `x`"
        );
        for (text, what) in [
            (
                "a: &x 1\nb: *x\n",
                "line 2: expected a value, found an alias",
            ),
            ("a: 1\na: 2\n", "line 2: the key `a` stands here twice"),
            ("a: [1\n", "expected YAML"),
            (
                "? [1]\n: 2\n",
                "line 1: expected a key, found a map or list",
            ),
        ] {
            let error = parse(text).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
