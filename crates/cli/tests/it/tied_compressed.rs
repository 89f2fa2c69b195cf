//! Where weights are compressed, a matrix that a program multiplies and a caller looks up has its
//! codes once, and tables that no program has are codes in a file.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thane_compile::compress::Scale;
use thane_compile::compress::program::Settings;
use thane_cpu::{Cpu, Numerics};
use thane_mil::data::Data;
use thane_mil::literal::{Literal, f16_to_f32};
use thane_mil::package::Package;
use thane_mil::program::{Arg, Program};
use thane_mil::types::DType;
use thane_models::Table;
use thane_runtime::{
    CompressOptions, LanguageModel, PackageOptions, WrittenTables, items, read_contents,
};

use crate::decoder::{model, sequences};
use crate::decompress::decompressed;
use crate::fixture::{Home, assert_ends};
use crate::tied::{COLUMNS, NAME, ROWS, contract, form, forms, packages, read};

const WEIGHTS: &str = "Data/com.apple.CoreML/weights/weight.bin";

/// With where scales stand; the rows of the last cannot be read one by one.
const ENCODINGS: [(&str, Option<Scale>); 7] = [
    ("pal4", Some(Scale::None)),
    ("pal4", Some(Scale::Behind)),
    ("pal6", Some(Scale::Inside)),
    ("pal3", Some(Scale::Behind)),
    ("int8", None),
    ("int4", None),
    ("sparse50", None),
];

fn options((text, scale): (&str, Option<Scale>), least: usize) -> PackageOptions {
    let settings = Settings {
        encoding: text.parse().unwrap(),
        scale,
        least,
        ..Settings::default()
    };
    PackageOptions {
        compress: Some(CompressOptions::new(settings, 1)),
        ..PackageOptions::default()
    }
}

fn written(home: &Home, of: &LanguageModel, name: &str, options: &PackageOptions) -> PathBuf {
    let extension = if of.n_chunks() == 1 { "mlpackage" } else { "" };
    let path = home.path(&name.replace(' ', "-")).with_extension(extension);
    of.write(&path, options, &()).unwrap();
    path
}

/// The rows of a table by the contracts of all packages, each with its package.
fn stored(path: &Path, input: &str) -> Vec<(PathBuf, Value)> {
    let mut all = Vec::new();
    for package in packages(path) {
        let contract = contract(&package);
        let rows = contract["tables"][input]["rows"].as_array().cloned();
        let rows = rows.into_iter().flatten();
        all.extend(rows.map(|rows| (package.clone(), rows)));
    }
    all.sort_by_key(|(_, rows)| rows["first"].as_u64());
    all
}

fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

/// How often bytes are in the files of packages.
fn count(path: &Path, bytes: &[u8]) -> usize {
    let files = packages(path).into_iter().flat_map(|package| {
        let own = package.join("Data/ai.thane");
        let own = fs::read_dir(own)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        own.chain([package.join(WEIGHTS)]).collect::<Vec<_>>()
    });
    let count = |file: PathBuf| {
        let content = fs::read(file).unwrap();
        content.windows(bytes.len()).filter(|w| w == &bytes).count()
    };
    files.map(count).sum()
}

#[test]
fn codes_are_stored_once_over_functions_chunks_and_contexts() {
    let home = Home::new();
    for (k, (name, form, n_parts)) in forms().into_iter().enumerate() {
        let built = model(NAME, "", Some(form.into()));
        for encoding in ENCODINGS.into_iter().skip(k % 2).step_by(2) {
            let case = format!("{name} {} {:?}", encoding.0, encoding.1);
            let path = written(&home, &built, &case, &options(encoding, 64));
            assert_ends(&home.run(&["check", path.to_str().unwrap()]), 0, &[]);
            let rows = stored(&path, "embedding");
            let n_rows: usize = rows.iter().map(|(_, rows)| number(&rows["count"])).sum();
            assert_eq!((rows.len(), n_rows), (n_parts, ROWS), "{case}");
            for (package, rows) in rows {
                assert!(
                    !package.join("Data/ai.thane/embedding.npy").exists(),
                    "{case}"
                );
                let is_sparse = encoding.0.starts_with("sparse");
                assert_eq!(rows["file"].is_null(), !is_sparse, "{case}");
                assert_eq!(rows["encoding"].is_null(), is_sparse, "{case}");
                if is_sparse {
                    continue;
                }
                let weights = fs::read(package.join(WEIGHTS)).unwrap();
                let codes = rows["encoding"]["codes"].as_str().unwrap();
                let bits = DType::from_name(codes).unwrap().bits();
                let n = number(&rows["count"]) * COLUMNS * bits / 8;
                let codes = &weights[number(&rows["offset"])..][..n];
                assert_eq!(count(&path, codes), 1, "{case}");
            }
            let model = read(&path);
            assert!(logits(&model).iter().all(|x| x.is_finite()), "{case}");
        }
    }
}

fn logits(model: &LanguageModel) -> Vec<f32> {
    let (ids, _) = sequences(NAME).pop().unwrap();
    let mut session = model.session(&Cpu::new(Numerics::F32, 1)).unwrap();
    session.verify(&ids).unwrap()
}

/// The numbers of the last constant of a program that has so many elements: functions share one,
/// and those that it was computed from are before it.
fn constants(program: &Program, n: usize) -> Option<Vec<f32>> {
    let functions = program.functions().iter();
    let ops = functions.flat_map(|f| f.all_ops().into_iter().map(|op| f.op(op)));
    let mut all = ops
        .flat_map(|op| op.args.iter().flatten())
        .filter_map(|arg| {
            let Arg::Literal(Literal::Tensor(ty, data)) = arg else {
                return None;
            };
            (ty.dtype == DType::Fp16 && ty.n_elements() == Some(n)).then(|| data.to_vec())
        });
    let bytes = all.next_back()?;
    let halves = bytes.as_chunks::<2>().0.iter();
    Some(halves.map(|h| f16_to_f32(u16::from_le_bytes(*h))).collect())
}

/// A package of the same model with decompressed weights, whose table is a file of f32.
fn dense(home: &Home, from: &Path, (case, is_behind): (&str, bool)) -> PathBuf {
    let package = Package::open(from).unwrap();
    let contents = read_contents(from, &package.program).unwrap().unwrap();
    let mut contract = contents.contract;
    let program = decompressed(&package.program);
    let mut numbers = constants(&program, ROWS * COLUMNS).unwrap();
    if is_behind {
        let scales = constants(&program, ROWS).unwrap();
        let rows = numbers.chunks_mut(COLUMNS).zip(scales);
        rows.for_each(|(row, scale)| row.iter_mut().for_each(|x| *x *= scale));
    }
    let facts = contract.tables.remove("embedding").unwrap();
    let table = Table {
        input: "embedding".to_owned(),
        by_token: true,
        n_rows: ROWS,
        n_columns: COLUMNS,
        dtype: DType::Fp32,
        parts: vec![Data::owned(
            numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
        )],
        factor: facts.factor,
        scales: None,
    };
    let tables = WrittenTables {
        files: &[table],
        shared: Vec::new(),
    };
    // Other tables are as they were.
    let angles = fs::read_dir(from.join("Data/ai.thane")).unwrap();
    let angles = angles.map(|entry| entry.unwrap().path());
    let angles = angles.filter(|path| path.extension().is_some_and(|e| e == "npy"));
    let mut all: Vec<thane_mil::package::Item> = angles
        .map(|path| thane_mil::package::Item {
            author: "ai.thane".to_owned(),
            name: path.file_name().unwrap().to_string_lossy().into_owned(),
            description: String::new(),
            content: thane_mil::package::Content::File(path),
        })
        .collect();
    all.extend(items(contract, contents.language.as_ref(), None, tables, None).unwrap());
    let to = home.path(&format!("{case} dense.mlpackage").replace(' ', "-"));
    let package = Package { program, ..package };
    package.write(&to, &all).unwrap();
    to
}

#[test]
fn logits_are_those_of_decompressed_weights_and_a_table_of_f32() {
    let home = Home::new();
    let built = model(NAME, "", Some(form().into()));
    for encoding in &ENCODINGS[..6] {
        let case = format!("{} {:?}", encoding.0, encoding.1);
        let path = written(&home, &built, &case, &options(*encoding, 64));
        let dense = dense(&home, &path, (&case, encoding.1 == Some(Scale::Behind)));
        assert!(dense.join("Data/ai.thane/embedding.npy").exists());
        assert_eq!(logits(&read(&path)), logits(&read(&dense)), "{case}");
    }
}

/// Each table by the rule of the contract, without the code that reads it.
#[test]
fn tables_that_no_program_has_are_codes_too() {
    let home = Home::new();
    let built = model("tiny/gemma4", "", Some(form().into()));
    let plain = written(&home, &built, "plain", &PackageOptions::default());
    let files = |path: &Path| {
        let entries = fs::read_dir(path.join("Data/ai.thane")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|n| n.to_string_lossy().into_owned()).collect();
        names.retain(|name| name.ends_with(".bin") || name.ends_with(".npy"));
        names.sort();
        names
    };
    for (flags, encoding) in [("pal4", ("pal4", None)), ("int8", ("int8", None))] {
        let at_once = written(&home, &built, flags, &options(encoding, 2048));
        let later = home.path(&format!("later-{flags}.mlpackage"));
        let [from, to] = [&plain, &later].map(|path| path.to_str().unwrap());
        let done = home.run(&["compress", from, "-o", to, "--compress", flags]);
        assert_ends(&done, 0, &[]);
        assert_ends(&home.run(&["check", to]), 0, &[]);
        assert_eq!(
            contract(&at_once)["tables"],
            contract(&later)["tables"],
            "{flags}"
        );
        assert_eq!(files(&at_once), files(&later));
        let made: Vec<String> = files(&later)
            .into_iter()
            .filter(|n| n.ends_with(".bin"))
            .collect();
        assert_eq!(made.len(), 1, "{flags}: {made:?}");
        let input = made[0].strip_suffix(".bin").unwrap();
        assert!(files(&plain).contains(&format!("{input}.npy")));
        let bytes = |path: &Path| fs::read(path.join("Data/ai.thane").join(&made[0])).unwrap();
        assert_eq!(bytes(&at_once), bytes(&later));
        assert_eq!(
            stored(&later, input)[0].1["file"],
            json!(format!("Data/ai.thane/{}", made[0]))
        );
        let before = fs::metadata(plain.join(format!("Data/ai.thane/{input}.npy"))).unwrap();
        let after = bytes(&later).len() as u64;
        assert!(
            after < before.len() * 6 / 10,
            "{flags}: {} {after}",
            before.len()
        );
        assert!(read(&later).program.functions().len() == built.program.functions().len());
    }
}

/// The head may be in another package than the first, and codes that do not fit a file are refused.
#[test]
fn a_package_of_a_head_is_compressed_and_damaged_codes_refused() {
    let home = Home::new();
    let mut cut = forms().into_iter();
    let (_, cut, n_parts) = cut
        .find(|(name, ..)| *name == "a package for the head")
        .unwrap();
    let built = model(NAME, "", Some(cut.into()));
    let plain = written(&home, &built, "plain", &PackageOptions::default());
    for (flags, made) in [("pal4", "encoding"), ("sparse50", "file")] {
        let small = home.path(&format!("small-{flags}"));
        let [from, to] = [&plain, &small].map(|path| path.to_str().unwrap());
        let done = home.run(&["compress", from, "-o", to, "--compress", flags]);
        assert_ends(&done, 0, &[]);
        assert_ends(&home.run(&["check", to]), 0, &[]);
        let rows = stored(&small, "embedding");
        assert_eq!(rows.len(), n_parts, "{flags}");
        assert!(
            rows.iter().all(|(_, rows)| !rows[made].is_null()),
            "{flags}: {rows:?}"
        );
        assert!(
            rows.iter()
                .all(|(package, _)| *package != packages(&small)[0])
        );
        assert_eq!(logits(&read(&small)).len(), logits(&built).len());
    }
    let whole = model(NAME, "", Some(form().into()));
    let whole = written(
        &home,
        &whole,
        "whole",
        &options(("pal4", Some(Scale::Behind)), 64),
    );
    let file = whole.join("Data/ai.thane/contract.json");
    let known = contract(&whole);
    let outside = "149 of 44 fp16 numbers at byte";
    let entries = "expected 16 entries for codes of uint4, found";
    for (place, value, said) in [
        ("/offset", json!(u64::MAX), outside),
        ("/encoding/codes", json!("int4"), "from codes of int4"),
        ("/encoding/codes", json!("fp16"), outside),
        ("/encoding/table/entries", json!(u64::MAX), entries),
        ("/encoding/table/entries", json!(0), entries),
        ("/encoding/table/entries", json!(15), entries),
        ("/encoding/codes", json!("uint1"), "expected 2 entries"),
        ("/encoding/codes", json!("uint3"), "expected 8 entries"),
        ("/encoding/table/width", json!(0), outside),
        ("/encoding/table/rows", json!(10), outside),
        ("/encoding/table/numbers/offset", json!(1u64 << 40), outside),
        ("/encoding/scale/columns", json!(0), outside),
        ("/encoding/scale/rows", json!(2), outside),
    ] {
        let mut edited = known.clone();
        let rows = &mut edited["tables"]["embedding"]["rows"][0];
        *rows.pointer_mut(place).unwrap() = value;
        fs::write(&file, edited.to_string()).unwrap();
        let output = home.run(&["check", whole.to_str().unwrap()]);
        assert_ends(&output, 2, &["contract.json", said]);
    }
    let mut edited = known;
    edited["tables"]["embedding"]["rows"][0]["file"] = json!("../other.bin");
    fs::write(&file, edited.to_string()).unwrap();
    let output = home.run(&["check", whole.to_str().unwrap()]);
    assert_ends(&output, 2, &["that `files` lists, found `../other.bin`"]);
}
