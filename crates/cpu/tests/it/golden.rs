//! Reading goldens, and running a model's functions.

use std::path::{Path, PathBuf};

use serde_json::Value;
use thane_cpu::{Cpu, Numerics};
use thane_kernels::Isa;
use thane_mil::backend::{Backend, Instance};
use thane_mil::program::Program;
use thane_models::checkpoint::Checkpoint;

/// The folder of goldens.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models")
}

/// Opens a tiny checkpoint: a file, a folder, or the file of llama2.c in a folder.
pub fn open(path: &Path) -> Checkpoint {
    let file = path.join("model.bin");
    let path = if file.is_file() { &file } else { path };
    Checkpoint::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The names in one of the folders of goldens, without the extension `.gguf`: a new checkpoint is
/// tested without being listed.
pub fn names(kind: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder().join(kind)).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap())
        .filter_map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            match name.strip_suffix(".gguf") {
                Some(stem) => Some(stem.to_owned()),
                None => entry.path().is_dir().then_some(name),
            }
        })
        .collect();
    names.sort();
    assert!(
        names.len() > 5,
        "expected checkpoints in {kind}, found {names:?}"
    );
    names
}

/// The names of all embedding models.
pub fn embedding_models() -> Vec<String> {
    names("tiny-embed")
}

/// A golden: its JSON, and the floats that it points into.
pub struct Golden {
    pub json: Value,
    floats: Vec<f32>,
}

impl Golden {
    pub fn read(stem: &Path) -> Self {
        let file =
            |extension: &str| std::fs::read(format!("{}.{extension}", stem.display())).unwrap();
        let json = serde_json::from_slice(&file("json")).unwrap();
        let bytes = file("bin");
        let floats = bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        Self { json, floats }
    }

    pub fn array(&self, at: &Value) -> &[f32] {
        let offset = at["offset"].as_u64().unwrap() as usize;
        let n: u64 = at["shape"]
            .as_array()
            .unwrap()
            .iter()
            .map(|d| d.as_u64().unwrap())
            .product();
        &self.floats[offset..offset + n as usize]
    }
}

pub fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_u64().unwrap() as u32)
        .collect()
}

pub fn instance(program: &Program, numerics: Numerics, n_threads: usize) -> Box<dyn Instance> {
    Cpu::new(numerics, n_threads)
        .load(program)
        .unwrap()
        .instantiate()
        .unwrap()
}

/// An instance for each instruction set of this machine, with its name.
pub fn on_each_isa(
    program: &Program,
    numerics: Numerics,
    n_threads: usize,
) -> impl Iterator<Item = (&'static str, Box<dyn Instance>)> {
    Isa::available().into_iter().map(move |isa| {
        let cpu = Cpu::new(numerics, n_threads).with_isa(Some(isa));
        (
            isa.name(),
            cpu.load(program).unwrap().instantiate().unwrap(),
        )
    })
}

/// Logits of `function` over `tokens` that follow `position` others.
pub fn call(
    instance: &mut dyn Instance,
    function: &str,
    tokens: &[u32],
    position: usize,
) -> Vec<f32> {
    let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_ne_bytes()).collect();
    instance
        .input("input_ids", &[1, tokens.len()])
        .unwrap()
        .copy_from_slice(&bytes);
    instance
        .input("position", &[1])
        .unwrap()
        .copy_from_slice(&(position as i32).to_ne_bytes());
    instance.run(function).unwrap();
    let view = instance.output("logits").unwrap();
    view.bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_ne_bytes(*b))
        .collect()
}

/// Norm of the difference over the norm of what is expected.
pub fn relative_error(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let square = |x: f64| x * x;
    let difference: f64 = found
        .iter()
        .zip(expected)
        .map(|(f, e)| square(f64::from(*f) - f64::from(*e)))
        .sum();
    let norm: f64 = expected.iter().map(|e| square(f64::from(*e))).sum();
    (difference / norm).sqrt()
}

/// A copy of a tiny fp32 model with the numbers of one tensor multiplied by `factor`.
pub fn with_scaled(from: &Path, tensor: &str, factor: f32) -> PathBuf {
    let name = from.file_name().unwrap().to_str().unwrap();
    let to = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{tensor}-{factor}"));
    copy(from, &to);
    let file = to.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..start]).unwrap();
    let range = ids(&header[tensor]["data_offsets"]);
    for v in bytes[start + range[0] as usize..start + range[1] as usize]
        .as_chunks_mut::<4>()
        .0
    {
        *v = (f32::from_le_bytes(*v) * factor).to_le_bytes();
    }
    std::fs::write(file, bytes).unwrap();
    to
}

/// A copy of a tiny model with one key of `config.json` set.
pub fn with_key(from: &Path, key: &str, value: &Value) -> PathBuf {
    with_key_in(from, "config.json", key, value)
}

/// A copy of a folder with a key of one of its files set to a value.
pub fn with_key_in(from: &Path, file: &str, key: &str, value: &Value) -> PathBuf {
    let name = from.file_name().unwrap().to_str().unwrap();
    let to = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{key}-{value}"));
    copy(from, &to);
    let file = to.join(file);
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    config[key] = value.clone();
    std::fs::write(file, config.to_string()).unwrap();
    to
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in from.read_dir().unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::write(to, std::fs::read(entry.path()).unwrap()).unwrap();
        }
    }
}
