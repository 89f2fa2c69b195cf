//! The file of `--config`: values for the flags of a verb, and models with values of their own.
//!
//! A key is the name of a flag. What the file says is put on the command line, unless a flag or a
//! variable says it already, so that every value is checked as that of its flag.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use thane_mil::nearest::did_you_mean;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::exit::Failure;
use crate::small::read_small;

/// Flags that the file cannot have: the file itself, and what says how the command is shown.
const NO_KEYS: [&str; 4] = ["config", "help", "json", "version"];

/// A file that was read.
#[derive(Debug)]
pub struct Config {
    path: PathBuf,
    settings: Vec<Setting>,
    /// The models, in the order of the file.
    pub models: Vec<ModelEntry>,
}

/// A model of the file.
#[derive(Debug, Default)]
pub struct ModelEntry {
    /// What to serve.
    pub spec: String,
    /// Other names of the model.
    pub aliases: Vec<String>,
    settings: Vec<Setting>,
}

/// The values of a flag.
#[derive(Debug)]
struct Setting {
    id: String,
    flag: String,
    values: Vec<String>,
    /// `None` where the flag has values; otherwise whether it is given.
    is_on: Option<bool>,
    line: usize,
}

/// The flags that keys can name.
struct Keys<'a> {
    of_verb: Vec<&'a Arg>,
    of_model: Vec<&'a str>,
}

/// Reads the text of a file, in which places have lines.
struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    keys: Keys<'a>,
}

type Item<'i> = Spanned<DeValue<'i>>;

impl Config {
    /// Reads a file for `verb`. Flags of `model` can also be given for one model.
    pub fn read(
        path: &Path,
        command: &Command,
        verb: &str,
        model: &Command,
    ) -> Result<Self, Failure> {
        let text = read_text(path)?;
        let of_verb = command.find_subcommand(verb).into_iter();
        let flags = of_verb.flat_map(Command::get_arguments);
        let flags = flags.chain(command.get_arguments());
        let is_key = |arg: &&Arg| arg.get_long().is_some_and(|flag| !NO_KEYS.contains(&flag));
        let keys = Keys {
            of_verb: flags.filter(is_key).collect(),
            of_model: model.get_arguments().filter_map(Arg::get_long).collect(),
        };
        let text = text.as_str();
        Reader { path, text, keys }.read()
    }

    /// The command line with what the file says of all models, or of one of them.
    pub fn arguments(
        &self,
        given: impl IntoIterator<Item = OsString>,
        matches: &ArgMatches,
        model: Option<&ModelEntry>,
    ) -> Vec<OsString> {
        let mut given: Vec<OsString> = given.into_iter().collect();
        let of_model = model.map_or(&[][..], |model| &model.settings);
        let general = self.settings.iter().filter(|setting| {
            let is_same = |own: &Setting| own.flag == setting.flag;
            !of_model.iter().any(is_same)
        });
        let is_given = |setting: &&Setting| {
            let source = matches.value_source(&setting.id);
            source.is_some_and(|source| source != ValueSource::DefaultValue)
        };
        let settings = of_model.iter().chain(general);
        let added = settings.filter(|setting| !is_given(setting));
        // What follows `--` are no flags.
        let end = given.iter().position(|arg| arg == "--");
        let end = end.unwrap_or(given.len());
        let added: Vec<OsString> = added.flat_map(Setting::arguments).collect();
        given.splice(end..end, added);
        given
    }

    /// The failure of a command line that has what the file says.
    pub fn refused(&self, error: &clap::Error, model: Option<&ModelEntry>) -> Failure {
        let flag = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(flag)) => flag.split(' ').next().unwrap_or_default(),
            _ => "",
        };
        let name = flag.trim_start_matches("--");
        let own = model.into_iter().flat_map(|model| &model.settings);
        let setting = own.chain(&self.settings).find(|s| s.flag == name);
        let text = error.render().to_string();
        let text = text.split("\n\n").next().unwrap_or_default();
        let text = text.trim_start_matches("error: ");
        refused(&self.path, setting.map(|s| s.line), text)
    }
}

impl Setting {
    fn arguments(&self) -> Vec<OsString> {
        let flag = &self.flag;
        match self.is_on {
            Some(true) => vec![format!("--{flag}").into()],
            Some(false) => Vec::new(),
            None => {
                let values = self.values.iter();
                values.map(|v| format!("--{flag}={v}").into()).collect()
            }
        }
    }
}

fn read_text(path: &Path) -> Result<String, Failure> {
    let text = String::from_utf8(read_small(path)?);
    text.map_err(|_| refused(path, None, "expected UTF-8, found other bytes"))
}

fn refused(path: &Path, line: Option<usize>, text: &str) -> Failure {
    let line = line.map_or_else(String::new, |line| format!(":{line}"));
    usage!("{}{line}: {text}", path.display())
}

impl Reader<'_> {
    fn read(&self) -> Result<Config, Failure> {
        let parsed = DeTable::parse(self.text);
        let table = parsed.map_err(|e| {
            let at = e.span().map_or(0, |span| span.start);
            self.refused(at, e.message())
        })?;
        let mut config = Config {
            path: self.path.to_owned(),
            settings: Vec::new(),
            models: Vec::new(),
        };
        for (key, value) in table.get_ref() {
            if key.get_ref() == "models" {
                config.models = self.models(value)?;
            } else {
                config.settings.push(self.setting(key, value, false)?);
            }
        }
        config.settings.sort_by_key(|setting| setting.line);
        Ok(config)
    }

    /// `models` is a list of names, or of tables with a key `model`.
    fn models(&self, value: &Item<'_>) -> Result<Vec<ModelEntry>, Failure> {
        let Some(items) = value.get_ref().as_array() else {
            return Err(self.unexpected(value, "a list of models"));
        };
        items.iter().map(|item| self.model(item)).collect()
    }

    fn model(&self, item: &Item<'_>) -> Result<ModelEntry, Failure> {
        if let Some(spec) = item.get_ref().as_str() {
            return Ok(ModelEntry {
                spec: spec.to_owned(),
                ..ModelEntry::default()
            });
        }
        let Some(table) = item.get_ref().as_table() else {
            return Err(self.unexpected(item, "a model, or a table with the key `model`"));
        };
        let mut entry = ModelEntry::default();
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "model" => entry.spec = self.text_of(value)?,
                "alias" => entry.aliases = self.texts_of(value)?,
                _ => entry.settings.push(self.setting(key, value, true)?),
            }
        }
        if entry.spec.trim().is_empty() {
            let text = "expected the key `model`, which says what to serve";
            return Err(self.refused(item.span().start, text));
        }
        Ok(entry)
    }

    fn setting(
        &self,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Item<'_>,
        of_model: bool,
    ) -> Result<Setting, Failure> {
        let (name, at) = (key.get_ref().as_ref(), key.span().start);
        let found = |arg: &&&Arg| arg.get_long() == Some(name);
        let arg = self.keys.of_verb.iter().find(found);
        let Some(arg) = arg.filter(|_| !of_model || self.keys.of_model.contains(&name)) else {
            return Err(self.unknown(name, at, of_model, arg.is_some()));
        };
        let takes_values = arg.get_action().takes_values();
        let is_on = (!takes_values).then(|| value.get_ref().as_bool());
        if is_on == Some(None) {
            return Err(self.unexpected(value, "true or false"));
        }
        let values = match takes_values {
            true => self.texts_of(value)?,
            false => Vec::new(),
        };
        Ok(Setting {
            id: arg.get_id().to_string(),
            flag: name.to_owned(),
            values,
            is_on: is_on.flatten(),
            line: self.line(at),
        })
    }

    fn unknown(&self, name: &str, at: usize, of_model: bool, is_of_verb: bool) -> Failure {
        if of_model && is_of_verb {
            let text = format!("`{name}` holds for all models: put it above the first [[models]]");
            return self.refused(at, &text);
        }
        let (what, guess) = match of_model {
            true => {
                let known = self.keys.of_model.iter().copied();
                let guess = did_you_mean(name, known.chain(["model", "alias"]));
                ("a model has no key", guess)
            }
            false => {
                let known = self.keys.of_verb.iter().filter_map(|arg| arg.get_long());
                ("unknown key", did_you_mean(name, known.chain(["models"])))
            }
        };
        self.refused(at, &format!("{what} `{name}`{guess}"))
    }

    fn texts_of(&self, value: &Item<'_>) -> Result<Vec<String>, Failure> {
        match value.get_ref().as_array() {
            Some(items) => items.iter().map(|item| self.text_of(item)).collect(),
            None => Ok(vec![self.text_of(value)?]),
        }
    }

    fn text_of(&self, value: &Item<'_>) -> Result<String, Failure> {
        match value.get_ref() {
            DeValue::String(text) => Ok(text.clone().into_owned()),
            DeValue::Integer(number) => Ok(number.to_string()),
            DeValue::Float(number) => Ok(number.to_string()),
            _ => Err(self.unexpected(value, "a text or a number")),
        }
    }

    fn unexpected(&self, value: &Item<'_>, expected: &str) -> Failure {
        let found = value.get_ref().type_str();
        let text = format!("expected {expected}, found a value of type {found}");
        self.refused(value.span().start, &text)
    }

    fn refused(&self, at: usize, text: &str) -> Failure {
        refused(self.path, Some(self.line(at)), text)
    }

    /// The line of a place in the text, from 1.
    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().iter().take(at);
        1 + before.filter(|byte| **byte == b'\n').count()
    }
}
