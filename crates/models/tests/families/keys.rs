//! The keys of `config.json`, each set to another value: what changes the outputs of transformers
//! changes the program or is refused by name, and what changes nothing is accepted.
//!
//! `tests/oracle/make_keys.py` ran transformers with each of these values.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;
use thane_mil::program::{Program, difference};
use thane_models::{
    EncoderOptions, ModelError, Options, Pooling, Target, build, build_classifier, build_encoder,
    families,
};

use crate::checkpoint::builder::Folder;
use crate::checkpoint::keys as table;

/// What transformers does with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// The class has this value where the key is absent.
    Default,
    Same,
    Differs,
    Refused,
}

/// A row of the table.
#[derive(Debug)]
struct Row {
    key: String,
    effect: Effect,
    value: Value,
}

/// Keys that may be refused although they change no number: what they ask for, Thane does not do.
const REFUSED: &[&str] = &[
    // `generate` of transformers looks for an encoder.
    "is_encoder_decoder",
    // It changes no number if it names a size that the layer does not have.
    "per_layer_config",
];

/// Keys that bound the context, which transformers does not.
const BOUNDS: &[&str] = &["max_position_embeddings", "n_positions"];

/// The rows of each checkpoint.
fn rows() -> BTreeMap<String, Vec<Row>> {
    let mut rows = BTreeMap::new();
    for table::Row {
        key,
        effect,
        value,
        of,
    } in table::rows("config.json")
    {
        let effect = match effect.as_str() {
            "default" => Effect::Default,
            "same" => Effect::Same,
            "differs" => Effect::Differs,
            "refused" => Effect::Refused,
            other => panic!("{other}: not an effect"),
        };
        for checkpoint in of {
            let (key, value) = (key.clone(), value.clone());
            let row = Row { key, effect, value };
            rows.entry(checkpoint).or_insert_with(Vec::new).push(row);
        }
    }
    rows
}

/// A tiny checkpoint, and its program.
struct Tiny {
    kind: String,
    config: Value,
    weights: Vec<u8>,
    usual: Option<Lowered>,
}

struct Lowered {
    program: Program,
    info: String,
}

impl Tiny {
    /// `kind/name`, and another `model_type` behind a colon.
    fn new(checkpoint: &str) -> Self {
        let (name, model_type) = checkpoint.split_once(':').unwrap_or((checkpoint, ""));
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/models")
            .join(name);
        let text = fs::read(folder.join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&text).unwrap();
        if !model_type.is_empty() {
            config["model_type"] = model_type.into();
        }
        let mut tiny = Self {
            kind: name.split('/').next().unwrap().to_owned(),
            config,
            weights: fs::read(folder.join("model.safetensors")).unwrap(),
            usual: None,
        };
        tiny.usual = Some(tiny.lowered(&tiny.config).unwrap());
        tiny
    }

    fn lowered(&self, config: &Value) -> Result<Lowered, ModelError> {
        let folder = Folder::new()
            .with("config.json", config.to_string())
            .with("model.safetensors", &self.weights);
        let checkpoint = folder.open("")?;
        Ok(match self.kind.as_str() {
            "tiny" => {
                let model = build(&checkpoint, &Options::default())?;
                let info = format!("{:?}", model.info);
                Lowered {
                    program: model.program,
                    info,
                }
            }
            "tiny-embed" => {
                let options = EncoderOptions {
                    pooling: Some(Pooling::Mean.into()),
                    ..EncoderOptions::default()
                };
                let model = build_encoder(&checkpoint, &options)?;
                let info = format!("{:?}", model.info);
                Lowered {
                    program: model.program,
                    info,
                }
            }
            _ => {
                let model = build_classifier(&checkpoint, &Target::default())?;
                let info = format!("{:?}", model.info);
                Lowered {
                    program: model.program,
                    info,
                }
            }
        })
    }

    fn moves(&self, other: &Lowered) -> Option<String> {
        difference(&self.usual.as_ref().unwrap().program, &other.program)
    }

    /// What is wrong with how a value is taken.
    fn fault(&self, row: &Row) -> Option<String> {
        let found = self.lowered(&set(&self.config, &row.key, Some(&row.value)));
        let last = row.key.rsplit('.').next().unwrap();
        match (row.effect, found) {
            (Effect::Same, Ok(found)) => {
                let moves = self.moves(&found).filter(|_| !BOUNDS.contains(&last));
                moves.map(|how| format!("changes the program: {how}"))
            }
            (Effect::Same, Err(error)) => {
                let text = error.to_string();
                let is_right = REFUSED.contains(&last) || says_contradiction(&text);
                (!is_right).then(|| format!("is refused: {text}"))
            }
            (Effect::Differs, Ok(found)) => {
                let usual = self.usual.as_ref().unwrap();
                let is_read = self.moves(&found).is_some() || found.info != usual.info;
                (!is_read).then(|| "is ignored".to_owned())
            }
            (Effect::Differs, Err(ModelError::Tensors(_))) => None,
            (Effect::Differs, Err(error)) => {
                let text = error.to_string();
                let names = row.key.split('.').any(|part| text.contains(part));
                (!names && !row.value.is_object()).then(|| format!("is not named: {text}"))
            }
            (Effect::Refused | Effect::Default, _) => None,
        }
    }

    /// What is wrong with a default: a key that is absent must mean what it means in transformers.
    fn fault_of_default(&self, row: &Row) -> Option<String> {
        let absent = self.lowered(&set(&self.config, &row.key, None));
        let given = self.lowered(&set(&self.config, &row.key, Some(&row.value)));
        match (absent, given) {
            (Ok(absent), Ok(given)) => {
                let moved = difference(&absent.program, &given.program);
                moved.map(|how| format!("is not the default: {how}"))
            }
            (Ok(_), Err(error)) if says_contradiction(&error.to_string()) => None,
            (Ok(_), Err(error)) => Some(format!("is refused: {error}")),
            // Required.
            (Err(error), _)
                if error
                    .to_string()
                    .contains(&format!("{:?} is missing", row.key)) =>
            {
                None
            }
            (Err(absent), Ok(_)) => Some(format!("is missing: {absent}")),
            (Err(absent), Err(given)) => {
                let (absent, given) = (absent.to_string(), given.to_string());
                (absent != given).then(|| format!("is not the default: {absent} AND {given}"))
            }
        }
    }
}

/// Whether an error is about two keys of the file, of which transformers takes one.
fn says_contradiction(error: &str) -> bool {
    error.contains("contradict each other") || error.contains(", the value of ")
}

/// The object with a dotted key replaced, or removed.
fn set(config: &Value, key: &str, value: Option<&Value>) -> Value {
    let mut config = config.clone();
    let (path, last) = match key.rsplit_once('.') {
        Some((path, last)) => (path.split('.').collect(), last),
        None => (Vec::new(), key),
    };
    let inner = path
        .into_iter()
        .fold(&mut config, |inner, part| &mut inner[part]);
    match value {
        Some(value) => inner[last] = value.clone(),
        None => {
            if let Some(object) = inner.as_object_mut() {
                object.remove(last);
            }
        }
    }
    config
}

#[test]
fn keys_are_honored_harmless_or_refused_as_in_transformers() {
    let mut faults = Vec::new();
    for (checkpoint, rows) in rows() {
        let tiny = Tiny::new(&checkpoint);
        let same: Vec<&Row> = rows
            .iter()
            .filter(|row| row.effect == Effect::Same)
            .collect();
        let all = same.iter().fold(tiny.config.clone(), |config, row| {
            set(&config, &row.key, Some(&row.value))
        });
        let all_same = tiny
            .lowered(&all)
            .is_ok_and(|found| tiny.moves(&found).is_none());
        for row in rows
            .iter()
            .filter(|row| !all_same || row.effect != Effect::Same)
        {
            if let Some(fault) = tiny.fault(row) {
                faults.push(format!(
                    "{checkpoint}: `{}` = {} {fault}",
                    row.key, row.value
                ));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "{} keys:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

#[test]
fn absent_keys_have_the_defaults_of_transformers() {
    let mut faults = Vec::new();
    for (checkpoint, rows) in rows() {
        let tiny = Tiny::new(&checkpoint);
        for row in rows.iter().filter(|row| row.effect == Effect::Default) {
            if let Some(fault) = tiny.fault_of_default(row) {
                faults.push(format!(
                    "{checkpoint}: `{}` = {} {fault}",
                    row.key, row.value
                ));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "{} keys:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// Names of architectures without rows.
const WITHOUT_ROWS: &[&str] = &[
    // Of GGUF files and those of llama2.c.
    "command-r",
    "hunyuan-dense",
    "llama2.c",
    "nomic-bert",
    "qwen2moe",
    "qwen35",
    "qwen3moe",
    // transformers has no such class.
    "bidirectional_pplx_qwen3",
    // Models that take images, without a tiny checkpoint; the rows of their text part hold.
    "gemma4",
    "mistral3",
];

#[test]
fn every_architecture_of_folders_has_rows() {
    let types: BTreeSet<String> = rows()
        .keys()
        .map(|checkpoint| {
            let config = Tiny::new(checkpoint).config;
            config["model_type"].as_str().unwrap().to_owned()
        })
        .collect();
    for family in families::supported() {
        if family.decodes_hugging_face || family.encodes_hugging_face {
            for name in family.names {
                let has_rows = types.contains(*name);
                assert!(has_rows != WITHOUT_ROWS.contains(name), "{name}");
            }
        }
    }
}
