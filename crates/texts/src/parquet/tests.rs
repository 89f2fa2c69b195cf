//! Files that pyarrow and pandas wrote (`tests/oracle/make_texts.py`), and what becomes of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::Value;
use thane_mil::budget::{Budget, OverBudget};

use super::pages::unpack;
use crate::row::{Fields, Id};
use crate::rows::{Source, Texts};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/embed/texts")
}

fn texts(path: &Path, id: Id, budget: &Budget) -> Texts {
    Texts::new(
        Source::file(path).unwrap(),
        Fields {
            id,
            ..Fields::text("text")
        },
        false,
        budget,
    )
    .unwrap()
}

/// The text and id of each row.
fn read(path: &Path, id: Id, budget: &Budget) -> anyhow::Result<Vec<(String, Option<Value>)>> {
    texts(path, id, budget)
        .rows()
        .map(|row| row.map(|mut row| (row.texts.remove(0), row.id)))
        .collect()
}

/// Issue 30, 2.5: zstd, large strings, views, dictionaries, CSV, and ids that are kept.
#[test]
fn texts_are_those_that_pyarrow_and_pandas_wrote() {
    let expected: Value =
        serde_json::from_slice(&std::fs::read(folder().join("expected.json")).unwrap()).unwrap();
    let (texts, files) = (
        expected["texts"].as_array().unwrap(),
        expected["files"].as_object().unwrap(),
    );
    assert_eq!(files.len(), 17);
    for (name, ids) in files {
        let budget = Budget::new(1 << 20);
        let rows = read(&folder().join(name), Id::IfAny, &budget)
            .unwrap_or_else(|e| panic!("{name}: {e:#}"));
        assert_eq!(rows.len(), texts.len(), "{name}");
        for (i, (text, id)) in rows.iter().enumerate() {
            assert_eq!(texts[i], *text, "{name}, row {i}");
            let expected = ids.as_str().map(|kind| &expected["ids"][kind][i]);
            assert_eq!(id.as_ref(), expected, "{name}, row {i}");
        }
        assert_eq!(budget.used_bytes(), 0, "{name}: all is given back");
        let without = read(&folder().join(name), Id::None, &budget).unwrap();
        assert!(without.iter().all(|(_, id)| id.is_none()), "{name}");
    }
}

#[test]
fn columns_that_are_no_texts_are_named() {
    let path = folder().join("string-none.parquet");
    let budget = Budget::unlimited();
    let error = |text: &str, id: Id| {
        let texts = Texts::new(
            Source::file(&path).unwrap(),
            Fields {
                id,
                ..Fields::text(text)
            },
            false,
            &budget,
        );
        format!("{:#}", texts.unwrap().rows().next().unwrap().unwrap_err())
    };
    let end = |error: String| {
        error
            .split_once("string-none.parquet: ")
            .unwrap()
            .1
            .to_owned()
    };
    assert_eq!(
        end(error("n", Id::IfAny)),
        "expected column `n` to hold strings, found a list or a group"
    );
    assert_eq!(
        end(error("id", Id::IfAny)),
        "expected column `id` to hold strings, found INT64"
    );
    assert_eq!(
        end(error("x", Id::IfAny)),
        "it has no column `x`, it has n, text, id; --field NAME names another"
    );
    assert_eq!(
        end(error("text", Id::Named("x".into()))),
        "it has no column `x`, it has n, text, id; --id NAME names another"
    );
    assert_eq!(
        end(error("text", Id::Named("n".into()))),
        "expected column `n` to hold strings, found a list or a group"
    );
}

#[test]
fn columns_that_hold_no_ids_are_said_or_refused() {
    let path = folder().join("no-ids.parquet");
    let budget = Budget::unlimited();
    let silent = texts(&path, Id::IfAny, &budget);
    assert!(silent.rows().all(|row| row.unwrap().id.is_none()));
    // Read again: it is said once.
    assert_eq!(silent.rows().count(), 3);
    let said = |kind: &str| {
        format!("is {kind}, and ids are strings or integers; cast it, or --id \"\" for none")
    };
    let notes = silent.new_notes();
    let [note] = &notes[..] else {
        panic!("{notes:?}");
    };
    let expected = format!("ids are not kept: column `id` {}", said("DOUBLE"));
    assert!(note.ends_with(&expected), "{note}");
    assert!(silent.new_notes().is_empty());
    for (column, kind) in [
        ("id", "DOUBLE"),
        ("at", "TIMESTAMP"),
        ("day", "DATE"),
        ("price", "DECIMAL"),
    ] {
        let error = read(&path, Id::Named(column.into()), &budget).unwrap_err();
        let expected = format!("column `{column}` {}", said(kind));
        assert!(format!("{error:#}").ends_with(&expected), "{error:#}");
    }
    let none = texts(&path, Id::None, &budget);
    assert_eq!((none.rows().count(), none.new_notes().len()), (3, 0));
    let rows = read(&path, Id::Named("text".into()), &budget).unwrap();
    assert!(
        rows.iter()
            .all(|(text, id)| *id == Some(text.as_str().into()))
    );
    let error = read(&folder().join("twice.parquet"), Id::IfAny, &budget).unwrap_err();
    assert!(
        format!("{error:#}")
            .ends_with("it has column `text` several times; give each another name"),
        "{error:#}"
    );
}

/// Issue 30, 3.5: a row of 300 MB in a file of some kB.
#[test]
fn a_row_of_parquet_counts_against_the_budget() {
    let path = folder().join("bomb.parquet");
    assert!(path.metadata().unwrap().len() < 100_000);
    let budget = Budget::new(100_000_000);
    let error = read(&path, Id::IfAny, &budget).unwrap_err();
    assert!(
        error.chain().any(|cause| cause.is::<OverBudget>()),
        "{error:#}"
    );
    assert!(
        format!("{error:#}").contains("a page of a Parquet file needs 300.0 MB of memory"),
        "{error:#}"
    );
    assert_eq!(budget.used_bytes(), 0);
    let error = format!(
        "{:#}",
        read(&path, Id::IfAny, &Budget::new(400_000_000)).unwrap_err()
    );
    assert!(
        error.ends_with("bomb.parquet, row 1: it is longer than 67108864 bytes"),
        "{error}"
    );
}

/// A page that unpacks to more than its header says ends there.
#[test]
fn no_page_unpacks_further_than_it_said() {
    let bytes = vec![7u8; 1 << 20];
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut gzip, &bytes).unwrap();
    let hadoop = {
        let block = lz4_flex::block::compress(&bytes);
        [
            &(bytes.len() as u32).to_be_bytes(),
            &(block.len() as u32).to_be_bytes(),
            block.as_slice(),
        ]
        .concat()
    };
    for (codec, packed) in [
        (
            Compression::GZIP(Default::default()),
            gzip.finish().unwrap(),
        ),
        (
            Compression::ZSTD(Default::default()),
            zstd::bulk::compress(&bytes, 3).unwrap(),
        ),
        (
            Compression::SNAPPY,
            snap::raw::Encoder::new().compress_vec(&bytes).unwrap(),
        ),
        (Compression::LZ4_RAW, lz4_flex::block::compress(&bytes)),
        (Compression::LZ4, hadoop),
    ] {
        assert_eq!(
            unpack(codec, &packed, bytes.len()).unwrap(),
            bytes,
            "{codec}"
        );
        let less = unpack(codec, &packed, 1000);
        assert!(
            less.as_ref()
                .map_or(true, |less| less.len() == 1001 && less.capacity() < 10_000),
            "{codec}"
        );
    }
}

/// A row group, or a column in it, that says another number of rows than the file.
#[test]
fn lost_rows_are_errors() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("x.parquet");
    let whole = std::fs::read(folder().join("string-snappy.parquet")).unwrap();
    // Groups of 7 rows; integers of the metadata have twice their value. Field 3 of a RowGroup and
    // then field 5; field 4 of a ColumnMetaData, which is snappy, and then field 5.
    let n = 14;
    for (pattern, at, expected) in [
        (&[0x16, n, 0x26][..], 1, "in its row groups"),
        (&[0x15, 2, 0x16, n, 0x16], 3, "one for each row"),
    ] {
        let mut bytes = whole.clone();
        let places = whole.windows(pattern.len()).enumerate();
        let places = places.filter(|(_, window)| *window == pattern);
        let places: Vec<usize> = places.map(|(place, _)| place + at).collect();
        assert!(!places.is_empty(), "{pattern:?}");
        places.iter().for_each(|place| bytes[*place] -= 2);
        std::fs::write(&path, &bytes).unwrap();
        let found = Texts::new(
            Source::file(&path).unwrap(),
            Fields::text("text"),
            false,
            &Budget::unlimited(),
        );
        let found = found.and_then(|texts| texts.rows().collect::<Result<Vec<_>, _>>());
        let found = format!("{:#}", found.map(|_| ()).unwrap_err());
        assert!(found.contains(expected), "{found}");
    }
}

/// Bytes that are cut off or are others: an error, or other texts; never a panic, and nothing stays
/// reserved.
#[test]
fn damaged_files_are_errors() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("x.parquet");
    let budget = Budget::new(16 << 20);
    // xorshift64
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % below
    };
    let (mut n_read, mut n_refused) = (0, 0);
    for name in [
        "string-snappy",
        "string-zstd-v2",
        "dictionary-large",
        "delta-prefix",
        "delta-length",
        "binary-plain",
    ] {
        let whole = std::fs::read(folder().join(name).with_extension("parquet")).unwrap();
        for i in 0..200 {
            let mut bytes = whole.clone();
            match i % 4 {
                0 => bytes.truncate(random(whole.len())),
                // The metadata is at the end, and most of what is believed is in it.
                1 => (0..1 + random(3)).for_each(|_| {
                    bytes[whole.len() - 8 - random(whole.len() / 3)] = random(256) as u8
                }),
                _ => {
                    (0..1 + random(4)).for_each(|_| bytes[random(whole.len())] = random(256) as u8)
                }
            }
            std::fs::write(&path, &bytes).unwrap();
            match read(&path, Id::IfAny, &budget) {
                Ok(_) => n_read += 1,
                Err(_) => n_refused += 1,
            }
            assert_eq!(budget.used_bytes(), 0, "{name}, {i}");
        }
    }
    assert!(
        n_read > 50 && n_refused > 500,
        "{n_read} read, {n_refused} refused"
    );
}

/// A dictionary has a long id once, and each row has it.
#[test]
fn the_id_of_a_row_counts_against_the_budget() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("x.parquet");
    let schema =
        "message m { REQUIRED BYTE_ARRAY text (STRING); REQUIRED BYTE_ARRAY id (STRING); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = std::fs::File::create(&path).unwrap();
    let mut file = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
    let mut group = file.next_row_group().unwrap();
    let id = "i".repeat(1 << 20);
    for value in ["a", &id] {
        let mut column = group.next_column().unwrap().unwrap();
        let values = vec![ByteArray::from(value); 9];
        let typed = column.typed::<ByteArrayType>();
        typed.write_batch(&values, None, None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    file.close().unwrap();
    for (megabytes, fits) in [(2, false), (5, true)] {
        let budget = Budget::new(megabytes << 20);
        let read = texts(&path, Id::IfAny, &budget);
        let ids: Result<Vec<usize>, _> = read.rows().map(|row| Ok(row?.id_bytes())).collect();
        match ids {
            Ok(ids) => assert!(fits && ids == [1 << 20; 9], "{ids:?}"),
            Err::<_, anyhow::Error>(e) => {
                assert!(
                    !fits && e.chain().any(|cause| cause.is::<OverBudget>()),
                    "{e:#}"
                );
            }
        }
        assert_eq!(budget.used_bytes(), 0);
    }
}
