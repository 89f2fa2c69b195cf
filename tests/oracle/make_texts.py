"""Files with texts as pyarrow and pandas write them, for the readers of `thane embed`.

    pip install pyarrow==25.0.1 pandas==3.1.1
    python tests/oracle/make_texts.py

Writes `tests/embed/texts/`: each file holds the rows of `expected.json`, with ids as its name says.
"""

import decimal
import json
import pathlib
import sys

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

OUT = pathlib.Path(__file__).parent.parent / "embed" / "texts"

WORDS = "the sea a stone warm cat sleeps above village ridge station".split()


def texts():
    """Texts that are empty, long, quoted, of several lines, of several scripts, and the same again."""
    rows = ["", "a", 'say "no", or\r\n\tyes', "Zürich, 東京, 🦀", "x" * 3000, "line\none\n\ntwo"]
    rows += [" ".join(WORDS[(i * 7 + k * k) % len(WORDS)] for k in range(1 + i % 9)) for i in range(34)]
    return rows


def ids(kind, n):
    match kind:
        case "int32":
            return pa.array([i * 1000 - 7 for i in range(n)], pa.int32())
        case "int64":
            return pa.array([None if i == 3 else i - (1 << 40) for i in range(n)], pa.int64())
        case "uint8":
            return pa.array([i + 200 for i in range(n)], pa.uint8())
        case "uint64":
            return pa.array([i + (1 << 63) for i in range(n)], pa.uint64())
        case "string":
            return pa.array([f"0{i}" if i else None for i in range(n)], pa.string())
        case "dictionary":
            return pa.array([f"part {i % 3}" for i in range(n)], pa.string()).dictionary_encode()


# Name, type of the texts, kind of the ids, and how the file is written.
PLAIN = {"use_dictionary": False, "column_encoding": {"text": "PLAIN"}}
FILES = [
    ("string-none", pa.string(), "int64", {"compression": "none"}),
    ("string-snappy", pa.string(), "int32", {"compression": "snappy", "row_group_size": 7}),
    ("string-gzip", pa.string(), "string", {"compression": "gzip", "data_page_version": "2.0"}),
    ("string-zstd", pa.string(), "uint64", {"compression": "zstd"}),
    ("string-zstd-v2", pa.string(), "int64", {"compression": "zstd", "data_page_version": "2.0", **PLAIN}),
    ("string-lz4", pa.string(), None, {"compression": "lz4", "data_page_size": 64, "write_batch_size": 3}),
    ("large-zstd", pa.large_string(), "dictionary", {"compression": "zstd", "data_page_size": 64, "write_batch_size": 5}),
    ("view-zstd", pa.string_view(), "uint8", {"compression": "zstd"}),
    ("dictionary-zstd", pa.dictionary(pa.int32(), pa.string()), "string", {"compression": "zstd"}),
    ("dictionary-large", pa.dictionary(pa.int8(), pa.large_string()), "int64", {"data_page_version": "2.0"}),
    ("binary-plain", pa.binary(), "int64", PLAIN),
    ("delta-length", pa.string(), None, {"use_dictionary": False, "column_encoding": {"text": "DELTA_LENGTH_BYTE_ARRAY"}}),
    (
        "delta-prefix",
        pa.string(),
        "int64",
        {
            "use_dictionary": False,
            "data_page_size": 200,
            "write_batch_size": 11,
            "column_encoding": {"text": "DELTA_BYTE_ARRAY", "id": "DELTA_BINARY_PACKED"},
        },
    ),
]


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    rows = texts()
    expected = {"texts": rows, "ids": {}, "files": {}}
    for name, kind, id_kind, options in FILES:
        column = pa.array([row.encode() for row in rows], kind) if kind == pa.binary() else pa.array(rows, pa.string())
        table = {"n": pa.array([[i] for i in range(len(rows))]), "text": column.cast(kind)}
        if id_kind:
            table["id"] = ids(id_kind, len(rows))
            expected["ids"][id_kind] = table["id"].to_pylist()
        pq.write_table(pa.table(table), OUT / f"{name}.parquet", **options)
        expected["files"][f"{name}.parquet"] = id_kind
        back = pq.read_table(OUT / f"{name}.parquet").column("text").to_pylist()
        assert [b if isinstance(b, str) else b.decode() for b in back] == rows, name
    frame = pd.DataFrame({"id": [f"0{i}" for i in range(len(rows))], "text": rows})
    expected["ids"]["frame"] = list(frame["id"])
    frame.to_parquet(OUT / "pandas.parquet", compression="zstd", index=True)
    frame.to_csv(OUT / "pandas.csv", index=True)
    frame.to_csv(OUT / "pandas.tsv", index=False, sep="\t", lineterminator="\r\n")
    frame.to_json(OUT / "pandas.jsonl", orient="records", lines=True)
    for end in ["parquet", "csv", "tsv", "jsonl"]:
        expected["files"][f"pandas.{end}"] = "frame"
    # Columns whose values are no ids, and a name that two columns have.
    n = 3
    typed = {
        "text": pa.array(rows[1 : 1 + n]),
        "id": pa.array([i + 0.5 for i in range(n)], pa.float64()),
        "at": pa.array(range(n), pa.timestamp("ns")),
        "day": pa.array(range(n), pa.date32()),
        "price": pa.array([decimal.Decimal(i) for i in range(n)], pa.decimal128(9, 2)),
    }
    pq.write_table(pa.table(typed), OUT / "no-ids.parquet")
    pq.write_table(pa.table([typed["text"]] * 2, names=["text"] * 2), OUT / "twice.parquet")
    # One row of 300 MB, which zstd makes small.
    row = pa.table({"text": pa.array([" " * 300_000_000], pa.large_string())})
    options = {"compression": "zstd", "compression_level": 22, "use_dictionary": False, "write_statistics": False}
    pq.write_table(row, OUT / "bomb.parquet", **options)
    expected["made_by"] = {"pyarrow": pa.__version__, "pandas": pd.__version__, "python": sys.version.split()[0]}
    (OUT / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


main()
