//! Where a caller looks tokens up in the matrix that the output head multiplies, a package has its
//! numbers once: in the weight file, where the contract says.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thane_calls::{CacheForm, Form, Head, Lookup, Split};
use thane_cpu::{Cpu, Numerics};
use thane_mil::literal::f64_to_f16;
use thane_mil::types::DType;
use thane_models::checkpoint::Checkpoint;
use thane_models::{AneDecoder, Options};
use thane_runtime::{LanguageModel, LanguageOptions, Model, PackageOptions};

use crate::decoder::{BLOCK, BOUND, CONTEXT, files, model, models, sequences, worst};
use crate::fixture::{Home, assert_ends, stdout};

/// Its embedding is 149 rows of 44, and is scaled by the square root of 44 over the divisor of the
/// residual stream, which is no power of two.
pub const NAME: &str = "tiny/gemma3";
pub const ROWS: usize = 149;
pub const COLUMNS: usize = 44;

pub fn form() -> Form {
    Form {
        block: Some(BLOCK),
        cache: CacheForm::Explicit,
        lookup: Lookup::Host,
        ..Form::default()
    }
}

/// Forms with their names, and the number of constants that the output matrix is.
pub fn forms() -> [(&'static str, Form, usize); 5] {
    let layers = vec![0..2, 2..4];
    [
        ("one matrix", form(), 1),
        (
            "contexts and verify",
            Form {
                contexts: vec![24],
                verify: vec![3],
                ..form()
            },
            1,
        ),
        (
            "two parts in a package",
            Form {
                block: None,
                direct: Some(96),
                ..form()
            },
            2,
        ),
        (
            "a package for the head",
            Form {
                split: Split::Ranges { layers, head: true },
                ..form()
            },
            1,
        ),
        (
            "packages for parts of the head",
            Form {
                split: Split::Within(4096),
                ..form()
            },
            3,
        ),
    ]
}

pub fn read(path: &Path) -> LanguageModel {
    let read = Model::from_files(files(path.to_owned())).unwrap();
    read.language_model(&LanguageOptions::default(), &())
        .unwrap()
}

fn written(home: &Home, of: &LanguageModel, name: &str) -> PathBuf {
    let extension = if of.n_chunks() == 1 { "mlpackage" } else { "" };
    let path = home.path(&name.replace(' ', "-")).with_extension(extension);
    of.write(&path, &PackageOptions::default(), &()).unwrap();
    path
}

/// The packages of a model, of one that is not cut the model itself.
pub fn packages(path: &Path) -> Vec<PathBuf> {
    if path.join("Data").is_dir() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let mut packages: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    packages.retain(|path| path.is_dir());
    packages.sort();
    packages
}

pub fn contract(package: &Path) -> Value {
    let text = fs::read(package.join("Data/ai.thane/contract.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// The rows of the table `embedding` that contracts place in weight files, as bytes, and the number
/// of parts that they are.
fn stored(path: &Path) -> (Vec<u8>, usize) {
    let mut parts = Vec::new();
    for package in packages(path) {
        let weights = fs::read(package.join("Data/com.apple.CoreML/weights/weight.bin")).unwrap();
        let contract = contract(&package);
        for rows in contract["tables"]["embedding"]["rows"]
            .as_array()
            .into_iter()
            .flatten()
        {
            assert_eq!(
                (&rows["dtype"], &rows["columns"]),
                (&json!("fp16"), &json!(COLUMNS))
            );
            let number = |key: &str| rows[key].as_u64().unwrap() as usize;
            let bytes = &weights[number("offset")..][..2 * COLUMNS * number("count")];
            parts.push((number("first"), bytes.to_vec()));
        }
    }
    parts.sort();
    let n = parts.len();
    (parts.into_iter().flat_map(|(_, bytes)| bytes).collect(), n)
}

#[test]
fn the_output_matrix_is_stored_once_and_looked_up() {
    let home = Home::new();
    let checkpoint = Checkpoint::open(&models().join(NAME)).unwrap();
    let numbers = checkpoint.tensors.get("model.embed_tokens.weight").unwrap();
    let numbers = numbers.bytes.as_slice().as_chunks().0.iter();
    let numbers = numbers.map(|b| f64_to_f16(f64::from(f32::from_le_bytes(*b))));
    let expected: Vec<u8> = numbers.flat_map(u16::to_le_bytes).collect();
    assert_eq!(expected.len(), 2 * ROWS * COLUMNS);
    for (name, form, n_parts) in forms() {
        let built = model(NAME, "", Some(form.into()));
        let path = written(&home, &built, name);
        assert_ends(&home.run(&["check", path.to_str().unwrap()]), 0, &[]);
        for package in packages(&path) {
            let table = package.join("Data/ai.thane/embedding.npy");
            assert!(!table.exists(), "{name}");
        }
        assert_eq!(stored(&path), (expected.clone(), n_parts), "{name}");
        let read = read(&path);
        let found = worst(NAME, &read, Numerics::F32);
        assert!(found < BOUND, "{name}: {found:.1e} off transformers");
        let (ids, _) = sequences(NAME).pop().unwrap();
        let logits = |model: &LanguageModel| {
            let mut session = model.session(&Cpu::new(Numerics::F32, 1)).unwrap();
            session.verify(&ids).unwrap()
        };
        assert_eq!(logits(&read), logits(&built), "{name}");
    }
}

/// A matrix that no program has is a file, with the numbers of the checkpoint: looked-up rows are
/// multiplied, and logits are not.
#[test]
fn a_matrix_on_the_host_is_the_table_of_embeddings_whatever_their_factor() {
    let home = Home::new();
    let on_host = Form {
        head: Head::Host(()),
        ..form()
    };
    let built = model(NAME, "", Some(on_host.into()));
    let path = written(&home, &built, "head-host");
    let contract = contract(&path);
    assert_eq!(
        contract["model"]["fixed"]["head"]["host"]["matrix"],
        "embedding"
    );
    assert_eq!(contract["model"]["fixed"]["head"]["host"]["factor"], 1.0);
    let table = &contract["tables"]["embedding"];
    let factor = table["factor"].as_f64().unwrap() as f32;
    assert_ne!(factor.log2().fract(), 0.0);
    assert!(table["rows"].is_null(), "{table}");
    assert!(!path.join("Data/ai.thane/output_matrix.npy").exists());
    let found = worst(NAME, &read(&path), Numerics::F32);
    assert!(found < BOUND, "{found:.1e} off transformers");
}

/// What is said of the disk before anything is written counts the matrix once, too: with tables
/// inside, a program has it once and the rotations as constants.
#[test]
fn the_predicted_size_counts_the_matrix_once() {
    let checkpoint = Checkpoint::open(&models().join(NAME)).unwrap();
    let bytes = |form: Form| {
        let options = Options {
            context: Some(CONTEXT),
            cache: DType::Fp16,
            ane: Some(AneDecoder::from(form)),
            ..Options::default()
        };
        let (subject, _) = thane_runtime::decoder_subject("", &checkpoint, &options, &()).unwrap();
        subject.disk_bytes
    };
    let inside = bytes(Form {
        lookup: Lookup::Inside,
        ..form()
    });
    let matrix = (2 * ROWS * COLUMNS) as u64;
    let plain = bytes(form());
    assert!(plain.abs_diff(inside) < matrix / 8, "{plain}, {inside}");
    // Parts and contexts have a few numbers more.
    for (name, form, _) in forms() {
        let host = bytes(form);
        assert!(host < inside + matrix / 2, "{name}: {host}, {inside}");
    }
    let on_host = bytes(Form {
        head: Head::Host(()),
        ..form()
    });
    assert!(on_host.abs_diff(inside) < matrix / 8, "{on_host}, {inside}");
}

#[test]
fn rows_that_a_weight_file_does_not_have_are_refused() {
    let home = Home::new();
    let path = written(&home, &model(NAME, "", Some(form().into())), "damaged");
    let file = path.join("Data/ai.thane/contract.json");
    let written = contract(&path);
    let outside = "expected rows of fp16 or fp32 in a weight file of";
    let apart = "expected rows from 0 on";
    for (place, value, said) in [
        (
            "/factor",
            json!(0.0),
            "expected a finite factor, not 0, found 0",
        ),
        ("/factor", json!(1e300), "expected a finite factor"),
        ("/rows/0/offset", json!(u64::MAX), outside),
        ("/rows/0/count", json!(u64::MAX), outside),
        ("/rows/0/count", json!(0), outside),
        ("/rows/0/dtype", json!("int8"), "44 int8 numbers at byte"),
        ("/rows/0/first", json!(3), apart),
        (
            "/rows/0/count",
            json!(148),
            "expected a table of 149 rows, found 148",
        ),
        ("/rows/0/columns", json!(22), "embedding"),
        ("/rows", json!([]), "expected a table, found none"),
    ] {
        let mut edited = written.clone();
        *edited["tables"]["embedding"].pointer_mut(place).unwrap() = value.clone();
        fs::write(&file, edited.to_string()).unwrap();
        let output = home.run(&["check", path.to_str().unwrap()]);
        assert_ends(&output, 2, &["contract.json", said, "convert again"]);
    }
}

/// A rewrite may move what is in the weight file.
#[test]
fn a_package_that_was_fixed_says_where_its_rows_are() {
    let home = Home::new();
    let greatest = Form {
        head: Head::Greatest(1),
        ..form()
    };
    let path = written(&home, &model(NAME, "", Some(greatest.into())), "greatest");
    let to = home.path("fixed.mlpackage");
    let [from, out] = [&path, &to].map(|path| path.to_str().unwrap());
    let flags = ["--fix", "--target", "m4", "-o", out];
    let fixed = home.run(&[&["audit", from][..], &flags].concat());
    assert_ends(&fixed, 0, &[]);
    assert!(stdout(&fixed).contains("fixed ANE005"));
    assert_eq!(stored(&to), stored(&path));
    assert_ends(&home.run(&["check", out]), 0, &[]);
}
