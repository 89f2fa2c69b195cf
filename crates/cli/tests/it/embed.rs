//! `thane embed` from end to end, on tiny models whose vectors sentence-transformers computed
//! (`tests/models/README.md`).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::fixture::{Home, assert_ends, json as report, stderr, stdout};

/// The embedding models.
fn names() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny-embed");
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() > 5, "expected models, found {names:?}");
    names
}

pub fn model(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/models/tiny-embed")
        .join(name);
    folder.canonicalize().unwrap()
}

/// What the reference says.
struct Golden {
    json: Value,
    floats: Vec<f32>,
}

impl Golden {
    fn of(name: &str) -> Self {
        let file = |end: &str| std::fs::read(model(name).join(format!("golden.{end}"))).unwrap();
        let floats = file("bin")
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        Self {
            json: serde_json::from_slice(&file("json")).unwrap(),
            floats,
        }
    }

    fn array(&self, at: &Value) -> &[f32] {
        let n: u64 = at["shape"]
            .as_array()
            .unwrap()
            .iter()
            .map(|d| d.as_u64().unwrap())
            .product();
        &self.floats[at["offset"].as_u64().unwrap() as usize..][..n as usize]
    }

    /// Texts with this prompt, and their vectors.
    fn texts(&self, prompt: &Value) -> Vec<(&str, &[f32])> {
        let texts = self.json["texts"].as_array().unwrap().iter();
        let of_prompt = texts.filter(|t| t["prompt"] == *prompt && t["n_tokens"] != 0);
        of_prompt
            .map(|t| (t["text"].as_str().unwrap(), self.array(&t["embedding"])))
            .collect()
    }
}

/// A folder with texts as JSON lines.
pub fn with_texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> (Home, String) {
    let home = Home::new();
    let file = home.path("texts.jsonl");
    let lines = texts
        .into_iter()
        .map(|text| format!("{}\n", json!({"text": text})));
    std::fs::write(&file, lines.collect::<String>()).unwrap();
    (home, file.to_str().unwrap().to_owned())
}

pub fn embed(home: &Home, name: &str, flags: &[&str]) -> Output {
    home.run(&[&["embed", model(name).to_str().unwrap()], flags].concat())
}

/// The vectors of stdout's lines.
fn vectors(output: &Output) -> Vec<Vec<f32>> {
    assert_ends(output, 0, &[]);
    stdout(output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Norm of the difference over the norm of what is expected.
fn error(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let sum = |terms: &mut dyn Iterator<Item = f64>| terms.map(|v| v * v).sum::<f64>();
    let difference = sum(&mut found.iter().zip(expected).map(|(a, b)| f64::from(a - b)));
    (difference / sum(&mut expected.iter().map(|v| f64::from(*v)))).sqrt()
}

/// Texts of several lengths, each another.
pub fn many(n: usize) -> Vec<String> {
    let words = [
        "the", "sea", "stone", "warm", "cat", "sleeps", "above", "village", "ridge", "station",
    ];
    let text = |i: usize| -> String {
        let word = |k: usize| format!("{} ", words[(i * 7 + k * k + i * k) % words.len()]);
        (0..1 + i * 13 % 9)
            .map(word)
            .chain([i.to_string()])
            .collect()
    };
    (0..n).map(text).collect()
}

#[test]
fn vectors_are_those_of_the_reference() {
    for name in &names() {
        let golden = Golden::of(name);
        let prompts = golden.json["prompts"]
            .as_object()
            .unwrap()
            .keys()
            .map(|name| Value::from(name.as_str()));
        for prompt in prompts.chain([Value::Null]) {
            let texts = golden.texts(&prompt);
            if texts.is_empty() {
                continue;
            }
            let (home, file) = with_texts(texts.iter().map(|(text, _)| *text));
            let flags = [
                "--file",
                &file,
                "--truncate",
                "--numerics",
                "f32",
                "--format",
                "float",
            ];
            // The reference was given no name, so the model's default holds.
            let named = prompt.as_str().map(|name| ["--prompt", name]);
            let named = named.as_ref().map_or(&[][..], |named| named);
            let found = vectors(&embed(&home, name, &[&flags, named].concat()));
            assert_eq!(found.len(), texts.len());
            for (found, (text, expected)) in found.iter().zip(&texts) {
                let error = error(found, expected);
                assert!(error < 2e-5, "{name}, {prompt}, {text:?}: {error}");
            }
        }
    }
}

/// Texts become the same tokens by the vocabulary of a GGUF file as by `tokenizer.json`.
#[test]
fn vectors_of_gguf_files_are_those_of_the_reference() {
    for name in ["bert-cls", "nomic-bert", "qwen3-embedding"] {
        let golden = Golden::of(name);
        let texts = golden.json["texts"].as_array().unwrap().iter();
        // The file has no prompts, and takes longer texts than the folder does.
        let texts: Vec<(&str, &[f32])> = texts
            .filter(|t| t["prompt"].is_null() && t["name"] != "too long")
            .map(|t| (t["text"].as_str().unwrap(), golden.array(&t["embedding"])))
            .collect();
        let (home, file) = with_texts(texts.iter().map(|(text, _)| *text));
        let model = model("bert-cls")
            .join("../../tiny-embed-gguf")
            .join(format!("{name}.gguf"));
        let model = model.to_str().unwrap();
        let found = vectors(&home.run(&["embed", model, "--file", &file, "--numerics", "f32"]));
        for (found, (text, expected)) in found.iter().zip(&texts) {
            let length = expected.iter().map(|v| v * v).sum::<f32>().sqrt();
            let expected: Vec<f32> = expected.iter().map(|v| v / length).collect();
            let error = error(found, &expected);
            assert!(error < 1e-5, "{name}, {text:?}: {error}");
        }
    }
}

/// Two poolings that are joined, then a dense layer.
#[test]
fn joined_poolings_are_those_of_the_reference() {
    let golden = Golden::of("bert-weighted");
    let texts = golden.texts(&Value::from("document"));
    let (home, file) = with_texts(texts.iter().map(|(text, _)| *text));
    let flags = [
        "--file",
        &file,
        "--truncate",
        "--numerics",
        "f32",
        "--prompt",
        "document",
    ];
    let found = vectors(&embed(&home, "bert-weighted", &flags));
    for (found, (text, expected)) in found.iter().zip(&texts) {
        let error = error(found, expected);
        assert!(error < 1e-5, "{text:?}: {error}");
    }
    let shown = report(&home.run(&["show", "--json", model("bert-weighted").to_str().unwrap()]));
    assert_eq!(shown["pooling"], "weightedmean+max");
}

/// Also more dimensions than a model keeps by itself.
#[test]
fn fewer_dimensions_are_those_of_the_reference() {
    for name in ["bert-cls", "bert-steps", "bert-prompt"] {
        let golden = Golden::of(name);
        let texts = golden.texts(&Value::Null);
        let all = golden.json["texts"].as_array().unwrap();
        let (home, file) = with_texts(texts.iter().map(|(text, _)| *text));
        for cut in golden.json["dimensions"].as_array().unwrap() {
            let n = cut["n"].as_u64().unwrap() as usize;
            let flags = ["--file", &file, "--truncate", "--numerics", "f32"];
            let dimensions = ["--dimensions", &n.to_string()];
            let rows = golden.array(&cut["embeddings"]).chunks(n);
            let expected = rows.zip(all).filter(|(_, text)| text["prompt"].is_null());
            let found = vectors(&embed(&home, name, &[&flags[..], &dimensions].concat()));
            for (found, (expected, text)) in found.iter().zip(expected) {
                let error = error(found, expected);
                assert!(error < 2e-5, "{name}, {n}, {}: {error}", text["name"]);
            }
        }
    }
}

/// What a model keeps of its vectors by itself is not brought to length 1 again, and vectors of
/// tokens have all dimensions.
#[test]
fn a_model_says_how_many_dimensions_are_kept() {
    let home = Home::new();
    let path = model("bert-steps");
    let shown = report(&home.run(&["show", "--json", path.to_str().unwrap()]));
    assert_eq!(
        (&shown["dimensions"], &shown["truncate_dim"]),
        (&json!(38), &json!(19))
    );
    let shown = home.run(&["show", path.to_str().unwrap()]);
    assert_ends(&shown, 0, &[]);
    assert!(stdout(&shown).contains("38 dimensions, of which 19 are kept"));
    let found =
        |flags: &[&str]| vectors(&embed(&home, "bert-steps", &[&["the sea"], flags].concat()));
    let length = |v: &[f32]| v.iter().map(|v| v * v).sum::<f32>().sqrt();
    let (kept, asked, whole) = (
        &found(&[])[0],
        &found(&["--dimensions", "19"])[0],
        &found(&["--dimensions", "38"])[0],
    );
    assert_eq!(kept[..], whole[..19]);
    assert!(length(kept) < 0.95 && (length(asked) - 1.0).abs() < 1e-5);
    let tokens = embed(&home, "bert-steps", &["the sea", "--multi-vector"]);
    let tokens: Vec<Vec<f32>> = serde_json::from_str(stdout(&tokens).trim()).unwrap();
    assert_eq!(tokens[0].len(), 38);
}

#[test]
fn similarities_are_those_of_the_reference() {
    let golden = Golden::of("bert-cls");
    let texts = golden.texts(&Value::Null);
    let all: Vec<&Value> = golden.json["texts"].as_array().unwrap().iter().collect();
    let home = Home::new();
    let similarities = golden.array(&golden.json["similarities"]);
    let found = embed(
        &home,
        "bert-cls",
        &["--similarity", texts[2].0, texts[3].0, "--numerics", "f32"],
    );
    assert_ends(&found, 0, &[]);
    let found: f64 = stdout(&found).trim().parse().unwrap();
    assert!(
        (found - f64::from(similarities[2 * all.len() + 3])).abs() < 2e-5,
        "{found}"
    );
}

/// Late chunking, with chunks of no token and of one, and the model's own int8.
#[test]
fn chunks_are_those_of_the_reference() {
    let golden = Golden::of("qwen3-pplx");
    let documents = golden.json["documents"].as_array().unwrap();
    let home = Home::new();
    let file = home.path("documents.jsonl");
    let lines = documents
        .iter()
        .map(|d| format!("{}\n", json!({"text": d["chunks"]})));
    std::fs::write(&file, lines.collect::<String>()).unwrap();
    let flags = [
        "--chunks",
        "--file",
        file.to_str().unwrap(),
        "--truncate",
        "--numerics",
        "f32",
        "--format",
    ];
    let run = |format: &str| {
        let output = embed(&home, "qwen3-pplx", &[&flags[..], &[format]].concat());
        assert_ends(&output, 0, &["cut to what the model takes: 1 of 7 texts"]);
        stdout(&output)
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect::<Vec<Vec<Vec<f32>>>>()
    };
    let (floats, integers) = (run("float"), run("int8"));
    for ((document, floats), integers) in documents.iter().zip(&floats).zip(&integers) {
        let name = &document["name"];
        let dim = golden.json["dimension"].as_u64().unwrap() as usize;
        let expected: Vec<&[f32]> = golden.array(&document["embeddings"]).chunks(dim).collect();
        assert_eq!(
            floats.len(),
            document["chunks"].as_array().unwrap().len(),
            "{name}"
        );
        for (i, found) in floats.iter().enumerate() {
            // The reference has no row for chunks behind the cut.
            let none = vec![0.0; dim];
            let expected = expected.get(i).copied().unwrap_or(&none);
            let is_same = found == expected || error(found, expected) < 2e-5;
            assert!(is_same, "{name}, chunk {i}");
            let quantised = document["int8"][i].as_array();
            for (d, v) in quantised.into_iter().flatten().enumerate() {
                // At a half a change of the last bit shows.
                assert!(
                    (integers[i][d] - v.as_f64().unwrap() as f32).abs() <= 1.0,
                    "{name}, chunk {i}, {d}"
                );
            }
        }
    }
    let one = report(&embed(
        &home,
        "qwen3-pplx",
        &["--chunks", "a cat", "", "a dog", "--json"],
    ));
    assert_eq!(
        (&one["rows"], &one["vectors"], &one["format"]),
        (&json!(1), &json!(3), &json!("int8"))
    );
    assert_eq!(
        one["embeddings"][0][1],
        json!(vec![0; golden.json["dimension"].as_u64().unwrap() as usize])
    );
    assert_ends(
        &embed(&home, "qwen3-pplx", &["a", ""]),
        2,
        &["the command line, text 2: expected at least one token, found none"],
    );
}

/// A model that does not normalise gives the hidden states.
#[test]
fn each_token_has_a_vector() {
    let golden = Golden::of("qwen3-pplx");
    let home = Home::new();
    let text = &golden.json["texts"][2];
    let flags = [
        "--multi-vector",
        "--numerics",
        "f32",
        "--format",
        "float",
        text["text"].as_str().unwrap(),
    ];
    let output = embed(&home, "qwen3-pplx", &flags);
    assert_ends(&output, 0, &[]);
    let found: Vec<Vec<f32>> = serde_json::from_str(stdout(&output).trim()).unwrap();
    assert_eq!(found.len() as u64, text["n_tokens"]);
    assert!(error(&found.concat(), golden.array(&text["hidden"])) < 2e-5);
    let out = home.path("x.safetensors");
    let output = embed(
        &home,
        "qwen3-pplx",
        &[&flags[..], &["a", "-o", out.to_str().unwrap()]].concat(),
    );
    let dim = golden.json["dimension"].as_u64().unwrap() as usize;
    assert_ends(
        &output,
        0,
        &[&format!("2 texts, 28 vectors of {dim} dimensions")],
    );
    let bytes = std::fs::read(out).unwrap();
    let data = &bytes[8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize..];
    let offsets: Vec<i64> = data[..24]
        .as_chunks()
        .0
        .iter()
        .map(|b| i64::from_le_bytes(*b))
        .collect();
    assert_eq!(offsets, [0, 27, 28]);
    assert_eq!(data.len(), 24 + 28 * dim * 4);
    let alike = embed(
        &home,
        "qwen3-pplx",
        &[
            "--multi-vector",
            "--similarity",
            "the sea",
            "the sea",
            "--format",
            "float",
        ],
    );
    let value: f64 = stdout(&alike).trim().parse().unwrap();
    assert!(
        (value - value.round()).abs() < 1e-5 && value > 1.0,
        "each token is its own likest: {value}"
    );
}

/// Whatever shares a call with a text, its vector is the same.
#[test]
fn batches_change_nothing() {
    let texts = many(300);
    let (home, file) = with_texts(texts.iter().map(String::as_str));
    let run = |budget: &str| {
        vectors(&embed(
            &home,
            "bert-mean",
            &["--file", &file, "--batch-tokens", budget],
        ))
    };
    let (single, batch) = (run("1"), run("4096"));
    assert_eq!(single.len(), texts.len());
    for (single, batch) in single.iter().zip(&batch) {
        assert!(error(batch, single) < 1e-6);
    }
    let alone = vectors(&embed(&home, "bert-mean", &[&texts[17]]));
    assert!(error(&alone[0], &batch[17]) < 1e-6, "the order is kept");
}

#[test]
fn each_kind_of_file_has_the_same_numbers() {
    let texts = many(40);
    let (home, file) = with_texts(texts.iter().map(String::as_str));
    for (format, stored, dtype, tensor) in [
        ("float", 42, "<f4", "F32"),
        ("float16", 42, "<f2", "F16"),
        ("int8", 42, "|i1", "I8"),
        ("ubinary", 6, "|u1", "U8"),
    ] {
        let write = |name: &str| {
            let out = home.path(name);
            let flags = [
                "--file",
                &file,
                "--format",
                format,
                "-o",
                out.to_str().unwrap(),
                "--force",
            ];
            let output = embed(&home, "bert-mean", &flags);
            assert_ends(&output, 0, &["40 texts, 40 vectors of 42 dimensions"]);
            assert_eq!(stdout(&output).trim(), out.to_str().unwrap());
            std::fs::read(out).unwrap()
        };
        let lines = vectors(&embed(
            &home,
            "bert-mean",
            &["--file", &file, "--format", format],
        ));
        let text = String::from_utf8(write("x.jsonl")).unwrap();
        let rows: Vec<Vec<f32>> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(rows, lines);
        assert_eq!(rows.concat().len(), 40 * stored, "{format}");
        let npy = write("x.npy");
        let header = String::from_utf8_lossy(&npy[..128]).into_owned();
        assert!(
            header.contains(&format!("'{dtype}'")) && header.contains(&format!("(40, {stored})")),
            "{header}"
        );
        let tensors = write("x.safetensors");
        let header_len = u64::from_le_bytes(*tensors.first_chunk().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&tensors[8..8 + header_len]).unwrap();
        assert_eq!(header["embeddings"]["dtype"], tensor);
        assert_eq!(header["embeddings"]["shape"], json!([40, stored]));
        assert_eq!(header["__metadata__"]["format"], format);
        assert_eq!(&tensors[8 + header_len..], &npy[128..], "{format}");
        let rows_of_parquet = parquet(&write("x.parquet"));
        assert_eq!(rows_of_parquet.len(), 40);
        assert_eq!(rows_of_parquet, rows, "{format}");
        if format == "float" {
            let floats: Vec<f32> = npy[128..]
                .as_chunks()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b))
                .collect();
            assert_eq!(floats, rows.concat());
        }
    }
    let left: Vec<_> = home
        .files("")
        .into_iter()
        .filter(|n| n.contains("partial") || n.contains(".new"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The lists of the column `embedding`.
pub fn parquet(bytes: &[u8]) -> Vec<Vec<f32>> {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::{Field, Row, RowAccessor as _};
    let home = Home::new();
    std::fs::write(home.path("x"), bytes).unwrap();
    let reader = SerializedFileReader::new(std::fs::File::open(home.path("x")).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap();
    let number = |field: &Field| match field {
        Field::Float(v) => *v,
        Field::Float16(v) => v.to_f32(),
        Field::Byte(v) => f32::from(*v),
        Field::UByte(v) => f32::from(*v),
        other => panic!("{other}"),
    };
    let vector = |(i, row): (usize, Result<Row, _>)| {
        let row = row.unwrap();
        assert_eq!(row.get_long(0).unwrap(), i as i64);
        row.get_list(1)
            .unwrap()
            .elements()
            .iter()
            .map(number)
            .collect()
    };
    rows.enumerate().map(vector).collect()
}

#[test]
fn texts_from_parquet() {
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::writer::SerializedFileWriter;
    let home = Home::new();
    let write = |name: &str, texts: &[Option<&str>]| {
        let schema = parquet::schema::parser::parse_message_type(
            "message m { OPTIONAL BYTE_ARRAY body (STRING); }",
        );
        let file = std::fs::File::create(home.path(name)).unwrap();
        let mut writer =
            SerializedFileWriter::new(file, schema.unwrap().into(), Default::default()).unwrap();
        for half in texts.chunks(2) {
            let mut group = writer.next_row_group().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let values: Vec<ByteArray> =
                half.iter().flatten().map(|t| ByteArray::from(*t)).collect();
            let defined: Vec<i16> = half.iter().map(|t| i16::from(t.is_some())).collect();
            column
                .typed::<ByteArrayType>()
                .write_batch(&values, Some(&defined), None)
                .unwrap();
            column.close().unwrap();
            group.close().unwrap();
        }
        writer.close().unwrap();
        home.path(name).to_str().unwrap().to_owned()
    };
    let texts = ["the sea", "a cat", "", "the stone", "above"];
    let whole = write("whole.parquet", &texts.map(Some));
    let rows = vectors(&embed(
        &home,
        "bert-mean",
        &["--file", &whole, "--field", "body"],
    ));
    assert_eq!(rows, vectors(&embed(&home, "bert-mean", &texts)));
    let holed = write("holed.parquet", &[Some("a"), None, Some("b"), None]);
    let null = [
        "holed.parquet, row 2: expected `body` to be a string, found null",
        "holed.parquet, row 4: ",
    ];
    assert_ends(
        &embed(&home, "bert-mean", &["--file", &holed, "--field", "body"]),
        2,
        &null,
    );
    let other = "holed.parquet: it has no column `text`, it has body; --field NAME names another";
    assert_ends(&embed(&home, "bert-mean", &["--file", &holed]), 2, &[other]);
    std::fs::write(home.path("no.parquet"), "no").unwrap();
    assert_ends(
        &embed(
            &home,
            "bert-mean",
            &["--file", home.path("no.parquet").to_str().unwrap()],
        ),
        2,
        &["no.parquet"],
    );
}

#[test]
fn lines_from_stdin() {
    let home = Home::new();
    let run = |flags: &[&str], input: &[u8]| {
        let mut command =
            home.thane(&[&["embed", model("bert-cls").to_str().unwrap()], flags].concat());
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap()
    };
    // An empty line is an empty text, as sentence-transformers has it.
    let plain = vectors(&run(&[], b"the sea\n\nthe stone\n"));
    assert_eq!(plain.len(), 3);
    assert_eq!(
        vectors(&run(
            &["--field", "t"],
            b"{\"t\": \"the sea\"}\n{\"t\": \"\"}\n{\"t\": \"the stone\"}"
        )),
        plain
    );
    assert_ends(&run(&[], b""), 2, &["stdin: there are no texts"]);
    assert_ends(
        &run(&[], b"the sea\n\xff\n"),
        2,
        &["stdin, line 2: invalid UTF-8 at byte 1"],
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "most lines are cases")]
fn what_cannot_be_embedded_is_named_before_anything_is_lost() {
    let home = Home::new();
    let write = |name: &str, text: &[u8]| {
        std::fs::write(home.path(name), text).unwrap();
        home.path(name).to_str().unwrap().to_owned()
    };
    let mixed = write(
        "mixed.jsonl",
        b"{\"text\": \"a\"}\n{\"id\": 2}\n{\"text\": 7}\n\xff\n{\"text\": \"b\"}\n",
    );
    let empty = write("empty.txt", b"");
    let long = write(
        "long.txt",
        format!("short\n{}\n", "the sea ".repeat(25_000)).as_bytes(),
    );
    let there = write("there.npy", b"x");
    let odd = write("odd.xlsx", b"x");
    let lines = write("lines.txt", b"a");
    let cases: &[(&[&str], &[&str])] = &[
        (
            &["--file", &mixed],
            &[
                "mixed.jsonl, line 2: it has no field `text`, it has id; --field NAME names another",
                "mixed.jsonl, line 3: expected `text` to be a string, found a number",
                "mixed.jsonl, line 4: invalid UTF-8",
            ],
        ),
        (&["--file", &empty], &["empty.txt: there are no texts"]),
        (
            &["--file", "/nowhere.txt"],
            &["/nowhere.txt", "No such file"],
        ),
        (
            &["--file", &odd],
            &["odd.xlsx: texts are read from .txt, .jsonl, .csv, .tsv and .parquet files"],
        ),
        (
            &["--file", &lines, "--id", "n"],
            &["--id names a field of rows, and lines have none"],
        ),
        (
            &["a", "--id", "n"],
            &["--id names a field of rows, and lines have none"],
        ),
        (
            &["--file", &lines, "--field", "n"],
            &["--field names a field of rows, and lines have none"],
        ),
        (
            &["--file", &mixed, "--id", "n", "-o", "x.npy"],
            &["x.npy: such a file has no place for --id", "try: -o with"],
        ),
        (
            &["--file", &mixed, "-o", &mixed, "--force"],
            &["mixed.jsonl is not written: it would replace the input"],
        ),
        (
            &["--file", &long],
            &[
                "long.txt, line 2: expected at most 52 tokens, found 100002",
                "try: --truncate",
            ],
        ),
        (
            &["a", "-o", "x.csv"],
            &["x.csv: vectors are written to .npy, .jsonl, .parquet and .safetensors"],
        ),
        (
            &["a", "-o", &there],
            &["there.npy exists already", "try: --force"],
        ),
        (
            &["a", "--prompt", "walk"],
            &[
                "the model has no prompt `walk`",
                "try: --prompt document or query",
            ],
        ),
        (
            &["a", "--dimensions", "36"],
            &["does not offer 36 dimensions", "try: --dimensions 1 to 35"],
        ),
        (
            &["a", "--dimensions", "0"],
            &["does not offer 0 dimensions"],
        ),
        (
            &["a", "--packing", "lsb"],
            &["--packing is of bits", "try: --format binary"],
        ),
        (
            &["a", "--format", "binary", "--packing", "lsb"],
            &[
                "no packing lsb",
                "try: --packing pplx or sentence-transformers",
            ],
        ),
        (
            &["a", "--pooling", "sum"],
            &[
                "invalid value 'sum'",
                "expected mean, mean_sqrt_len_tokens, cls, lasttoken, max, weightedmean, or several",
            ],
        ),
        (
            &["--similarity", "a"],
            &["--similarity: expected two texts, found 1"],
        ),
        (
            &["a", "--multi-vector", "-o", "x.npy"],
            &["x.npy: texts have several vectors each"],
        ),
        (
            &[
                "--similarity",
                "--multi-vector",
                "--format",
                "ubinary",
                "a",
                "b",
            ],
            &["a vector of bits for each token"],
        ),
    ];
    for (flags, texts) in cases {
        let output = embed(&home, "bert-cls", flags);
        assert_ends(&output, 2, texts);
        assert!(
            output.stdout.is_empty() && !stderr(&output).contains("panicked"),
            "{flags:?}"
        );
    }
    // Issue 30, 3.5: opening a pipe waits for its writer.
    for name in ["x.jsonl", "x.csv", "x.parquet", "c.json"] {
        assert!(
            std::process::Command::new("mkfifo")
                .arg(home.path(name))
                .status()
                .unwrap()
                .success()
        );
        let pipe = home.path(name);
        let flag = if name == "c.json" {
            "--catalogue"
        } else {
            "--file"
        };
        assert_ends(
            &embed(&home, "bert-cls", &[flag, pipe.to_str().unwrap()]),
            2,
            &[name, "regular file"],
        );
    }
    for name in ["out.npy", "out.parquet"] {
        let pipe = home.path(name);
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let flags = ["a", "--force", "-o", pipe.to_str().unwrap()];
        let said = "expected a regular file, found a pipe";
        assert_ends(&embed(&home, "bert-cls", &flags), 2, &[name, said]);
    }
    let held = embed(&home, "bert-mean", &["--chunks", "a", "b [SEP] c"]);
    assert_ends(
        &held,
        2,
        &["the command line, text 1: chunk 2 holds the separator"],
    );
    let cut = embed(
        &home,
        "bert-cls",
        &["--file", &long, "--truncate", "--json"],
    );
    assert_ends(&cut, 0, &[]);
    assert_eq!(
        (&report(&cut)["truncated"], &report(&cut)["rows"]),
        (&json!(1), &json!(2))
    );
}

/// Issue 30, 2.5: CSV, and ids that are kept beside the vectors.
#[test]
fn ids_are_kept_in_the_output() {
    let home = Home::new();
    let write = |name: &str, text: &str| {
        std::fs::write(home.path(name), text).unwrap();
        home.path(name).to_str().unwrap().to_owned()
    };
    let out = |name: &str| home.path(name).to_str().unwrap().to_owned();
    let csv = write("x.csv", "id,body\n07,\"the sea,\nthe stone\"\n,a cat\n");
    let rows = |text: &str| -> Vec<Value> {
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let plain = rows(&stdout(&embed(
        &home,
        "bert-mean",
        &["the sea,\nthe stone", "a cat"],
    )));
    let named = |first: Value, second: Value| {
        [
            json!({"id": first, "embedding": plain[0]}),
            json!({"id": second, "embedding": plain[1]}),
        ]
    };
    let from_csv = ["--file", &csv, "--field", "body"];
    let (jsonl, parquet_file, npy) = (out("o.jsonl"), out("o.parquet"), out("o.npy"));
    for (file, more) in [(&jsonl, &[][..]), (&parquet_file, &[]), (&npy, &[])] {
        assert_ends(
            &embed(
                &home,
                "bert-mean",
                &[&from_csv[..], &["-o", file], more].concat(),
            ),
            0,
            &["2 texts, 2 vectors"],
        );
    }
    let expected = named("07".into(), "".into());
    assert_eq!(rows(&std::fs::read_to_string(&jsonl).unwrap()), expected);
    assert_eq!(
        rows(&stdout(&embed(&home, "bert-mean", &from_csv))),
        expected
    );
    let found = report(&embed(
        &home,
        "bert-mean",
        &[&from_csv[..], &["--json"]].concat(),
    ));
    assert_eq!(
        (&found["ids"], found["embeddings"].as_array().unwrap().len()),
        (&json!(["07", ""]), 2)
    );
    let none = embed(&home, "bert-mean", &[&from_csv[..], &["--id", ""]].concat());
    assert_eq!(rows(&stdout(&none)), plain);
    assert_eq!(
        report(&embed(&home, "bert-mean", &["a", "--json"]))["ids"],
        Value::Null
    );
    assert_eq!(ids_of(&parquet_file), ["\"07\"", "\"\""]);
    // Integers stay integers, and what was written is read again.
    let numbers = write(
        "n.jsonl",
        "{\"key\": -7, \"text\": \"a\"}\n{\"key\": null, \"text\": \"b\"}\n",
    );
    let flags = [
        "--file",
        &numbers,
        "--id",
        "key",
        "--force",
        "-o",
        &parquet_file,
    ];
    assert_ends(&embed(&home, "bert-mean", &flags), 0, &[]);
    assert_eq!(ids_of(&parquet_file), ["-7", "null"]);
}

/// The column `id`, as text.
fn ids_of(path: &str) -> Vec<String> {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let reader = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap().map(|row| row.unwrap());
    rows.map(|row| {
        row.get_column_iter()
            .find(|(name, _)| *name == "id")
            .unwrap()
            .1
            .to_string()
    })
    .collect()
}

/// Issue 30, 3.5: what one row takes is bounded by `--memory`, and the error says what needed how
/// much.
#[test]
fn a_long_row_is_refused_by_its_size() {
    let home = Home::new();
    let line = format!("{{\"text\": \"{}\"}}\n", "the sea ".repeat(2_000_000));
    std::fs::write(home.path("long.jsonl"), line).unwrap();
    let file = home.path("long.jsonl").to_str().unwrap().to_owned();
    let output = embed(
        &home,
        "bert-mean",
        &["--file", &file, "--truncate", "--memory", "40MB"],
    );
    assert_ends(
        &output,
        2,
        &[
            "long.jsonl, line 1",
            "because: a row of ",
            " of memory",
            "try: --memory SIZE",
        ],
    );
    let output = embed(
        &home,
        "bert-mean",
        &["--file", &file, "--truncate", "--memory", "200MB"],
    );
    assert_ends(
        &output,
        2,
        &[
            "the tokens of ",
            "long.jsonl, line 1 needs ",
            "try: --memory SIZE",
        ],
    );
}

/// A window holds some ids, and what is printed as one document all of them.
#[test]
fn long_ids_count_against_the_memory() {
    let home = Home::new();
    let id = "i".repeat(1_000_000);
    let lines: String = (0..40)
        .map(|i| format!("{{\"text\": \"a\", \"id\": \"{i}{id}\"}}\n"))
        .collect();
    std::fs::write(home.path("ids.jsonl"), lines).unwrap();
    let [file, out] = ["ids.jsonl", "out.jsonl"].map(|name| home.path(name));
    let file = ["--file", file.to_str().unwrap()];
    let run = |memory: &str, more: &[&str]| {
        embed(
            &home,
            "bert-mean",
            &[&file, more, &["--memory", memory]].concat(),
        )
    };
    let said = ["the vectors to print needs", "-o FILE", "--memory SIZE"];
    assert_ends(&run("35MB", &["--json"]), 2, &said);
    assert!(run("35MB", &["-o", out.to_str().unwrap()]).status.success());
    let written = std::fs::read_to_string(&out).unwrap();
    assert_eq!(written.lines().count(), 40);
    assert!(written.lines().all(|line| line.contains(&id)));
    let said = ["the id of ", "ids.jsonl, line ", "--memory SIZE"];
    assert_ends(&run("16MB", &[]), 2, &said);
}
