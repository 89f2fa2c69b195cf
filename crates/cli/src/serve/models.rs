//! The models of a server: what the user names, opened, loaded and known to clients by names.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use thane_hub::{Check, Progress, one_line};
use thane_mil::nearest::did_you_mean;
use thane_runtime::{Model, Observer};
use thane_serve::{
    KeepAlive, KeptPrompts, LoadError, Loadable, ModelOptions, ModelTask, Pull, PullProgress,
    Served, lock,
};

use crate::app::{App, size};
use crate::exit::{Failure, without_os_numbers};
use crate::grammars;
use crate::model::{KvFlag, RunFlags};
use crate::output::for_stderr;

/// How models are served.
#[derive(Clone, Debug, clap::Args)]
pub struct ModelFlags {
    /// Answers of a model that run side by side.
    ///
    /// Each has a KV cache of its own, whose memory is taken as it fills.
    #[arg(long, value_name = "N", default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    slots: u16,
    /// Most requests that wait for a model; more are refused with status 429.
    #[arg(long, value_name = "N", default_value_t = 64)]
    queue: u16,
    /// End answers that take longer than this, waiting included, such as 2m.
    ///
    /// They have what they have by then; vectors and scores are refused.
    #[arg(long, value_name = "TIME", default_value = "never")]
    pub answer_time: KeepAlive,
    /// Give a text the same vector, bit by bit, whatever else is asked.
    ///
    /// Each text is embedded alone, which is slower. Otherwise, texts of all requests are embedded
    /// together, and the last digits depend on the company.
    #[arg(long)]
    deterministic: bool,
    /// Load a model when it is first asked for.
    #[arg(long)]
    lazy: bool,
    /// Unload a model that is idle for so long, such as 30m.
    ///
    /// It is loaded again when it is asked for.
    #[arg(long, value_name = "TIME", default_value = "never")]
    keep_alive: KeepAlive,
    /// Memory, for each language model, for prompts that no slot holds any more; 0 keeps none.
    ///
    /// A prompt that begins like an earlier one is computed from where they part.
    #[arg(long, value_name = "SIZE", default_value = "512MB", value_parser = size_or_none)]
    prompt_memory: usize,
    /// Also keep prompts in this folder, beyond that memory and for the next start.
    #[arg(long, value_name = "FOLDER")]
    prompt_cache: Option<PathBuf>,
    /// Most bytes in that folder, for each language model.
    #[arg(long, value_name = "SIZE", default_value = "8GB", value_parser = size,
        requires = "prompt_cache")]
    prompt_cache_size: usize,
    /// How prompts are kept that no slot holds: exact, or int8, in half the memory.
    ///
    /// `thane perplexity --kv int8` measures what that changes.
    #[arg(
        long,
        value_name = "FORM",
        value_enum,
        hide_possible_values = true,
        default_value = "exact"
    )]
    prompt_kv: KvFlag,
    #[command(flatten)]
    flags: RunFlags,
}

/// Tells the user what goes wrong while the server runs.
pub fn complain(what: &str) {
    // Nobody is left to be told of a stderr that is closed.
    // Clients, files and other servers have their say in it, and one line is one complaint.
    let what = one_line(&without_os_numbers(what));
    let _ = writeln!(io::stderr(), "{}", for_stderr(&format!("thane: {what}")));
}

/// Parses a size, or 0.
fn size_or_none(text: &str) -> Result<usize, String> {
    match text.trim() {
        "0" => Ok(0),
        text => size(text),
    }
}

impl ModelFlags {
    fn options(&self, app: &App) -> ModelOptions {
        let folder = self.prompt_cache.clone();
        ModelOptions {
            language: self.flags.program.served_options(),
            n_slots: usize::from(self.slots),
            n_queue: usize::from(self.queue),
            answer_time: self.answer_time.0,
            deterministic: self.deterministic,
            budget: app.budget.clone(),
            grammars: Some(grammars::program()),
            prompts: KeptPrompts {
                memory: self.prompt_memory,
                folder: folder.map(|folder| (folder, self.prompt_cache_size as u64)),
                form: self.prompt_kv.form(),
                numerics: format!("{:?}", self.flags.program.numerics),
                complain,
            },
        }
    }
}

/// Another name of a model: `NAME=MODEL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// The name that clients use.
    pub name: String,
    /// The model, as the user or as clients name it.
    pub model: String,
}

impl Alias {
    /// Parses the value of `--alias`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').map(|(a, b)| (a.trim(), b.trim()));
        match parts {
            Some((name, model)) if !name.is_empty() && !model.is_empty() => Ok(Self {
                name: name.to_owned(),
                model: model.to_owned(),
            }),
            _ => Err("expected NAME=MODEL, such as gpt-4o=smollm2-135m".to_owned()),
        }
    }
}

/// A model that the user asks for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// A path, a name of the catalog, or one of the Hub.
    pub spec: String,
    /// How it is served.
    pub flags: ModelFlags,
}

/// Opens models, so that they can be loaded. Every name is that of one model.
pub fn open(asked: &[Asked], aliases: &[Alias], app: &App) -> Result<Vec<Loadable>, Failure> {
    let mut opened = Vec::with_capacity(asked.len());
    for one in asked {
        opened.push(Model::from_files(app.hub.resolve(&one.spec)?)?);
    }
    let specs: Vec<&str> = asked.iter().map(|one| one.spec.as_str()).collect();
    let names = opened.iter().map(thane_serve::name_of);
    let ids: Vec<String> = names.collect();
    let aliases = assign(&specs, &ids, aliases)?;
    let models = asked.iter().zip(opened).zip(aliases);
    let models = models.map(|((one, model), aliases)| loadable(one, model, aliases, app));
    models.collect()
}

fn loadable(
    asked: &Asked,
    model: Model,
    aliases: Vec<String>,
    app: &App,
) -> Result<Loadable, Failure> {
    let id = thane_serve::name_of(&model);
    Ok(Loadable {
        task: ModelTask::of(&model)?,
        at_start: !asked.flags.lazy,
        keep_alive: asked.flags.keep_alive,
        n_queue: usize::from(asked.flags.queue),
        load: Box::new(loader(asked, model, &id, app)),
        id,
        aliases,
    })
}

/// Downloads models that clients ask for, and opens them as those that are loaded when they are
/// first asked for.
pub fn puller(flags: &ModelFlags, app: &App) -> Pull {
    let mut flags = flags.clone();
    flags.lazy = true;
    let app = app.clone();
    Arc::new(move |name, progress| {
        let mut hub = app.hub.clone();
        hub.progress = Arc::new(Telling {
            progress,
            download: Mutex::new(("manifest".to_owned(), 0, None)),
        });
        let pulled = || -> Result<Loadable, Failure> {
            let files = hub.pull(name, Check::Record)?;
            let asked = Asked {
                spec: name.to_owned(),
                flags: flags.clone(),
            };
            loadable(&asked, Model::from_files(files)?, Vec::new(), &app)
        };
        pulled().map_err(LoadError::new)
    })
}

/// Tells a client how far a download is.
struct Telling {
    progress: PullProgress,
    /// What is being downloaded, the bytes that are there, and its bytes in all.
    download: Mutex<(String, u64, Option<u64>)>,
}

impl Progress for Telling {
    fn start(&self, what: &str, total: Option<u64>, done: u64) {
        *lock(&self.download) = (what.to_owned(), done, total);
        self.is_wanted();
    }

    fn set(&self, done: u64) {
        lock(&self.download).1 = done;
        self.is_wanted();
    }

    /// Tells the client how far the download is, and whether the client is still there.
    fn is_wanted(&self) -> bool {
        let (what, done, total) = &*lock(&self.download);
        (self.progress)(what, *done, *total)
    }

    fn finish(&self) {}

    fn note(&self, line: &str) {
        complain(line);
    }

    fn detail(&self, _: &str) {}
}

/// Loads a model, as often as it is asked to, from its files as they are then. What was opened
/// serves the first time.
fn loader(
    asked: &Asked,
    model: Model,
    id: &str,
    app: &App,
) -> impl Fn() -> Result<Served, LoadError> + Send + Sync + use<> {
    let (spec, id) = (asked.spec.clone(), id.to_owned());
    let named = spec.clone();
    let path = model.path.display().to_string();
    let (flags, app) = (asked.flags.clone(), app.clone());
    let first = Mutex::new((!asked.flags.lazy).then_some(model));
    let start = move || {
        let first = lock(&first).take();
        // Nobody waits at a terminal for what is loaded later.
        let observer: &dyn Observer = match &first {
            Some(_) => app.output.as_ref(),
            None => &(),
        };
        let model = match first {
            Some(model) => model,
            None => Model::open(&spec, &app.hub, observer)?,
        };
        // Whether the model fits is known once it is loaded: nothing is lost for it that its
        // clients could not have again. What it takes later is taken for a request.
        let (budget, _loading) = app.budget.sparing_data();
        let app = App {
            budget,
            ..app.clone()
        };
        let (backend, options) = (flags.flags.backend(&app), flags.options(&app));
        Served::start(model, &id, &backend, &options, observer)
    };
    move || {
        start().map_err(|error| {
            let failure = Failure::from(error).naming(&path, &named);
            LoadError {
                lacks_memory: failure.lacks_memory() && !failure.never_fits(),
                cause: Box::new(failure),
            }
        })
    }
}

/// The aliases of each model. Two models, or a model and an alias, with one name are an error.
fn assign(specs: &[&str], ids: &[String], aliases: &[Alias]) -> Result<Vec<Vec<String>>, Failure> {
    let refused = |text: String| usage!(text);
    let mut taken: BTreeMap<&str, &str> = BTreeMap::new();
    for id in ids {
        if taken.insert(id, id).is_some() {
            let text = format!("expected models with different names, found `{id}` twice");
            let remedy = "a link with another name to one of the folders or files";
            return Err(refused(text).remedy(remedy));
        }
    }
    let mut assigned = vec![Vec::new(); ids.len()];
    for Alias { name, model } in aliases {
        let by_spec = specs.iter().position(|spec| spec == model);
        let idx = by_spec.or_else(|| ids.iter().position(|id| id == model));
        let Some(idx) = idx else {
            let known = ids.join(", ");
            let guess = did_you_mean(model, ids.iter().map(String::as_str));
            let text = format!("alias {name}: expected one of {known}, found `{model}`");
            return Err(refused(text + &guess));
        };
        match taken.insert(name, &ids[idx]) {
            Some(other) if other == name => {
                let text = format!("alias {name}: expected a name that is no model's");
                return Err(refused(text));
            }
            Some(other) if other != ids[idx] => {
                let (both, text) = (&ids[idx], "expected one model, found");
                return Err(refused(format!("alias {name}: {text} {other} and {both}")));
            }
            Some(_) => {}
            None => assigned[idx].push(name.clone()),
        }
    }
    Ok(assigned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aliases(texts: &[&str]) -> Vec<Alias> {
        texts.iter().map(|t| Alias::parse(t).unwrap()).collect()
    }

    #[test]
    fn an_alias_stands_for_one_model() {
        let (specs, ids) = (["a/b.gguf", "c"], ["b.gguf".to_owned(), "c".to_owned()]);
        let assigned = |texts: &[&str]| assign(&specs, &ids, &aliases(texts));
        let found = assigned(&["x=a/b.gguf", "y=b.gguf", "z=c", "x=b.gguf"]).unwrap();
        assert_eq!(found, [vec!["x", "y"], vec!["z"]]);
        for (texts, said) in [
            (&["x=d"][..], "expected one of b.gguf, c, found `d`"),
            (&["c=b.gguf"], "alias c: expected a name that is no model's"),
            (
                &["x=c", "x=b.gguf"],
                "expected one model, found c and b.gguf",
            ),
        ] {
            let error = assigned(texts).unwrap_err().error().to_string();
            assert!(error.contains(said), "{error}");
        }
        for text in ["", "x", "=c", "x="] {
            Alias::parse(text).unwrap_err();
        }
    }
}
