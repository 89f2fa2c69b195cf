//! Files of `thane embed`: what Parquet takes, inputs of several files, and rows without a text.

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use parquet::basic::Compression as Codec;
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::{Value, json};

use crate::embed::{embed, many, model, parquet, with_texts};
use crate::fixture::{Home, assert_ends, json as report, stdout};

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Issue 56, 2.1: a list of INT32 took four bytes for each int8. A file takes what its vectors have
/// in their format, and a small part more.
#[test]
fn small_vectors_make_small_parquet_files() {
    let (n, texts) = (1000, many(1000));
    let (home, file) = with_texts(texts.iter().map(String::as_str));
    let (out, lined) = (home.path("x.parquet"), home.path("x.jsonl"));
    for (format, packing, stored_bytes) in [
        ("float", None, 42 * 4),
        ("float16", None, 42 * 2),
        ("int8", None, 42),
        ("binary", None, 6),
        ("ubinary", None, 6),
        // A bit for each number, which is 1 or -1.
        ("binary", Some("pplx"), 6),
    ] {
        let write = |path: &Path, more: &[&str]| {
            let packing = packing.map(|packing| ["--packing", packing]);
            let packing = packing.as_ref().map_or(&[][..], |packing| packing);
            let path = path.to_str().unwrap();
            let flags = ["--file", &file, "--format", format, "--force", "-o", path];
            assert_ends(
                &embed(&home, "bert-mean", &[&flags, packing, more].concat()),
                0,
                &[],
            );
            std::fs::read(path).unwrap().len()
        };
        let plain = write(&out, &["--compression", "none"]);
        assert_eq!(codecs(&out), [Codec::UNCOMPRESSED; 2]);
        let packed = write(&out, &[]);
        assert!(
            codecs(&out)
                .iter()
                .all(|codec| matches!(codec, Codec::ZSTD(_)))
        );
        // Metadata has some hundred bytes, a dictionary of 256 numbers 1,024.
        let most = n * stored_bytes * 103 / 100 + 2_200;
        assert!(
            packed < plain && packed <= most && plain <= most * 5 / 4,
            "{format}: {packed}, {plain}, {most}"
        );
        write(&lined, &[]);
        let expected: Vec<Vec<f32>> =
            serde_json::from_value(lines(&std::fs::read_to_string(&lined).unwrap()).into())
                .unwrap();
        assert_eq!(parquet(&std::fs::read(&out).unwrap()), expected, "{format}");
    }
    let flags = ["a", "--compression", "none", "-o", "x.npy"];
    let said = "--compression is of .parquet files, and x.npy is none";
    assert_ends(&embed(&home, "bert-mean", &flags), 2, &[said]);
}

/// The codecs of the columns of the first row group.
fn codecs(path: &Path) -> Vec<Codec> {
    let reader = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let group = reader.metadata().row_group(0).clone();
    group
        .columns()
        .iter()
        .map(|column| column.compression())
        .collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut to = GzEncoder::new(Vec::new(), Compression::default());
    to.write_all(bytes).unwrap();
    to.finish().unwrap()
}

/// Rows of several files have the vectors that they have in one, and a run over them resumes.
#[test]
fn files_are_read_one_after_the_other() {
    let texts = many(30);
    let (home, whole) = with_texts(texts.iter().map(String::as_str));
    let path = |name: &str| home.path(name).to_str().unwrap().to_owned();
    let line = |text: &String| format!("{}\n", json!({"text": text}));
    let part = |texts: &[String]| texts.iter().map(line).collect::<String>();
    std::fs::create_dir(home.path("in")).unwrap();
    std::fs::write(path("in/a.jsonl"), part(&texts[..10])).unwrap();
    std::fs::write(path("in/b.jsonl.gz"), gzip(part(&texts[10..20]).as_bytes())).unwrap();
    let table: String = texts[20..]
        .iter()
        .map(|text| format!("\"{text}\";0\n"))
        .collect();
    std::fs::write(path("in/c.csv"), format!("text;n\n{table}")).unwrap();
    let expected = stdout(&embed(&home, "bert-mean", &["--file", &whole]));
    let separated = ["--separator", ";"];
    let named = [path("in/a.jsonl"), path("in/b.jsonl.gz"), path("in/c.csv")];
    let [a, b, c] = &named;
    for files in [
        &["--file", a, b, c][..],
        &["--file", a, "--file", b, "--file", c],
        &["--file", &path("in/*")],
    ] {
        let output = embed(&home, "bert-mean", &[files, &separated].concat());
        assert_ends(&output, 0, &[]);
        assert!(stdout(&output) == expected, "{files:?}");
    }
    let output = embed(&home, "bert-mean", &["--file", c]);
    let said = "c.csv: it has no column `text`, it has text;n; --field NAME names another; \
                --separator ';' splits it";
    assert_ends(&output, 2, &[said]);
    let output = embed(&home, "bert-mean", &["--file", c, "--separator", ";;"]);
    let said = "expected one ASCII character other than a quote, or tab";
    assert_ends(&output, 2, &["invalid value ';;' for '--separator", said]);
    let output = embed(&home, "bert-mean", &["--file", &path("in/*.txt")]);
    assert_ends(&output, 2, &["*.txt: no file matches this pattern"]);
    let output = embed(
        &home,
        "bert-mean",
        &["--file", a, c, "--separator", ";", "-o", a, "--force"],
    );
    assert_ends(
        &output,
        2,
        &["a.jsonl is not written: it would replace the input"],
    );
}

/// Rows whose text is null or missing end the run, are left out, or have null for a vector.
#[test]
fn rows_without_a_text_are_refused_left_out_or_kept() {
    let home = Home::new();
    let rows = [
        json!({"id": 1, "text": null}),
        json!({"id": 2, "text": "the sea"}),
        json!({"id": 3}),
        json!({"id": 4, "text": "a cat"}),
    ];
    let text = rows.map(|row| format!("{row}\n")).concat();
    std::fs::write(home.path("x.jsonl"), text).unwrap();
    let path = |name: &str| home.path(name).to_str().unwrap().to_owned();
    let run = |flags: &[&str]| {
        let file = path("x.jsonl");
        embed(&home, "bert-mean", &[&["--file", &file], flags].concat())
    };
    let said = [
        "x.jsonl, line 1: expected `text` to be a string, found null",
        "x.jsonl, line 3: it has no field `text`, it has id",
    ];
    assert_ends(&run(&[]), 2, &said);
    assert_ends(&run(&["--on-null", "error"]), 2, &said);
    let plain = lines(&stdout(&embed(&home, "bert-mean", &["the sea", "a cat"])));
    let row = |id: u64, vector: &Value| json!({"id": id, "embedding": vector});
    let kept = [
        row(1, &Value::Null),
        row(2, &plain[0]),
        row(3, &Value::Null),
        row(4, &plain[1]),
    ];
    let left = [kept[1].clone(), kept[3].clone()];
    for (how, expected, said) in [
        (
            "keep",
            &kept[..],
            "without a text and kept with null: 2 of 4 rows",
        ),
        ("skip", &left, "without a text and left out: 2 of 4 rows"),
    ] {
        let output = run(&["--on-null", how]);
        assert_ends(&output, 0, &[said]);
        assert_eq!(lines(&stdout(&output)), expected, "{how}");
        let found = report(&run(&["--on-null", how, "--json"]));
        assert_eq!((&found["rows"], &found["nulls"]), (&json!(4), &json!(2)));
        assert_eq!(found["ids"].as_array().unwrap().len(), expected.len());
        for name in ["o.jsonl", "o.parquet"] {
            let output = run(&["--on-null", how, "--force", "-o", &path(name)]);
            assert_ends(&output, 0, &[said, "2 texts, 2 vectors of 42 dimensions"]);
        }
        let written = std::fs::read_to_string(path("o.jsonl")).unwrap();
        assert_eq!(lines(&written), expected, "{how}");
        let ids: Vec<&Value> = expected.iter().map(|row| &row["id"]).collect();
        assert_eq!(found["ids"], json!(ids));
        let found = parquet_rows(&home.path("o.parquet"));
        let numbers = |id: &Value| (id.as_i64().unwrap() - 1, id.as_i64().unwrap());
        let is_null = |row: &Value| row["embedding"].is_null();
        let rows: Vec<_> = expected
            .iter()
            .map(|row| (numbers(&row["id"]), is_null(row)))
            .collect();
        assert_eq!(found, rows, "{how}");
    }
    let said = [
        "o.npy: such a file has no place for a vector that is null",
        "try: -o with a .jsonl or .parquet file",
    ];
    assert_ends(&run(&["--on-null", "keep", "-o", "o.npy"]), 2, &said);
    assert_ends(&run(&["--on-null", "skip", "-o", &path("o.npy")]), 0, &[]);
    assert_eq!(
        std::fs::read(path("o.npy")).unwrap().len(),
        128 + 2 * 42 * 4
    );
    let said = "expected texts in `body`, found none in all 4 rows; --field NAME names another";
    assert_ends(&run(&["--on-null", "skip", "--field", "body"]), 2, &[said]);
    let flags = ["a", "--on-null", "skip"];
    let said = "--on-null is of a field of rows, and lines have none";
    assert_ends(&embed(&home, "bert-mean", &flags), 2, &[said]);
}

/// Row, id and whether the vector is null, of each row.
fn parquet_rows(path: &Path) -> Vec<((i64, i64), bool)> {
    use parquet::record::{Field, RowAccessor as _};
    let reader = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap();
    let row = |row: Result<parquet::record::Row, _>| {
        let row = row.unwrap();
        let is_null = row
            .get_column_iter()
            .any(|(_, field)| *field == Field::Null);
        (
            (row.get_long(0).unwrap(), row.get_long(2).unwrap()),
            is_null,
        )
    };
    rows.map(row).collect()
}

/// A run over several files, of which one is in gzip, and with rows without a text, goes on after
/// `kill -9`; other texts than those that are done are named by file and line.
#[cfg(unix)]
#[test]
fn a_run_over_several_files_goes_on() {
    use std::process::Stdio;

    use crate::fixture::until;

    let home = Home::new();
    let path = |name: &str| home.path(name).to_str().unwrap().to_owned();
    let row = |(i, text): (usize, &String)| match i % 5 {
        0 => "{\"text\": null}\n".to_owned(),
        _ => format!("{}\n", json!({"text": text})),
    };
    let rows: Vec<String> = many(6_000).iter().enumerate().map(row).collect();
    let whole = rows.concat();
    std::fs::write(path("whole.jsonl"), &whole).unwrap();
    std::fs::write(path("a.jsonl"), rows[..500].concat()).unwrap();
    std::fs::write(path("b.jsonl.gz"), gzip(rows[500..].concat().as_bytes())).unwrap();
    let model = model("bert-mean").to_str().unwrap().to_owned();
    let (a, b, out) = (path("a.jsonl"), path("b.jsonl.gz"), path("x.jsonl"));
    let how = ["--batch-tokens", "1", "--on-null", "keep"];
    let args = [&["embed", &model, "--file", &a, &b, "-o", &out], &how[..]].concat();
    let mut command = home.thane(&args);
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let partial = path("x.jsonl.partial");
    until("the first texts are done", || {
        std::fs::metadata(&partial).is_ok_and(|m| m.len() >= 400_000)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let changed = rows[500..]
        .concat()
        .replacen("{\"text\": null}", "{\"text\": \"x\"}", 1);
    std::fs::write(&b, gzip(changed.as_bytes())).unwrap();
    let said = "b.jsonl.gz, line 1: this is not the text that was embedded";
    assert_ends(&home.run(&args), 2, &[said]);
    std::fs::write(&b, gzip(rows[500..].concat().as_bytes())).unwrap();
    let said = [
        "resuming after ",
        "kept with null: 1200 of 6000 rows",
        "4800 texts",
    ];
    assert_ends(&home.run(&args), 0, &said);
    let (file, other) = (path("whole.jsonl"), path("y.jsonl"));
    let args = [&["embed", &model, "--file", &file, "-o", &other], &how[..]].concat();
    assert_ends(&home.run(&args), 0, &[]);
    assert!(std::fs::read(out).unwrap() == std::fs::read(other).unwrap());
}
