"""Parquet files of `thane embed`, read by pyarrow, pandas, polars and DuckDB: the type of vectors in
each, numbers that equal those of the .npy file, nulls, and the bytes of each format.

    python3 tests/oracle/check_parquet.py target/debug/thane [--model NAME] [--texts N]

Prints a table of sizes. Needs duckdb, numpy, pandas, polars and pyarrow. Without them, the script
says so and ends with 0.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import duckdb
    import numpy
    import pandas
    import polars
    import pyarrow.parquet
except ImportError as e:
    print(f"skipped: {e.name} is not installed (pip install duckdb pandas polars pyarrow)")
    sys.exit(0)

BERT = pathlib.Path(__file__).parent.parent / "models/tiny-embed/bert-mean"
# Types of the elements in pyarrow, polars and DuckDB. DuckDB reads fp16 as fp32.
FORMATS = {
    "float": ("float", polars.Float32, "FLOAT"),
    "float16": ("halffloat", polars.Float16, "FLOAT"),
    "int8": ("int8", polars.Int8, "TINYINT"),
    "binary": ("int8", polars.Int8, "TINYINT"),
    "binary pplx": ("int8", polars.Int8, "TINYINT"),
    "ubinary": ("uint8", polars.UInt8, "UTINYINT"),
}


def expect(what, expected, found):
    if found != expected:
        sys.exit(f"{what}: expected {expected}, found {found}")


def write(args, file, out, *flags):
    command = [args.thane, "embed", "-q", args.model, "--file", file, "-o", out, *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


def in_pyarrow(path):
    column = pyarrow.parquet.read_table(path)["embedding"]
    return str(column.type.value_type), column.to_pylist()


def in_pandas(path):
    column = pandas.read_parquet(path)["embedding"]
    return str(column[len(column) - 1].dtype), [None if v is None else list(v) for v in column]


def in_polars(path):
    column = polars.read_parquet(path)["embedding"]
    return column.dtype.inner, column.to_list()


def in_duckdb(path):
    column = duckdb.sql(f"select embedding from '{path}' order by row")
    return str(column.types[0]).removesuffix("[]"), [row[0] for row in column.fetchall()]


def check(name, path, expected):
    arrow, of_polars, of_duckdb = FORMATS[name]
    of_pandas = {"float": "float32", "halffloat": "float16"}.get(arrow, arrow)
    for reader, kind in (
        (in_pyarrow, arrow),
        (in_pandas, of_pandas),
        (in_polars, of_polars),
        (in_duckdb, of_duckdb),
    ):
        found, vectors = reader(path)
        what = f"{name}, {reader.__name__}"
        expect(f"{what}, type", kind, found)
        expect(f"{what}, nulls", [v is None for v in expected], [v is None for v in vectors])
        pairs = [(a, b) for a, b in zip(expected, vectors) if a is not None]
        if not numpy.array_equal(*map(numpy.array, zip(*pairs))):
            sys.exit(f"{what}: expected the numbers of the .npy file, found others")


def main(args):
    random.seed(1)
    words = "the sea stone warm cat sleeps above village ridge station".split()
    rows = [{"text": " ".join(random.choices(words, k=9))} for _ in range(args.texts)]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder).joinpath
        path("texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        holed = [{"text": None if i % 3 == 0 else row["text"]} for i, row in enumerate(rows[:50])]
        path("holed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in holed))
        print(f"{len(rows)} texts\n| format | vectors | none | zstd |\n|---|---|---|---|")
        for name in FORMATS:
            format, _, packing = name.partition(" ")
            flags = ["--format", format, *(["--packing", packing] if packing else [])]
            vectors = write(args, path("texts.jsonl"), path(f"{name}.npy"), *flags)
            vectors, sizes = numpy.load(vectors), []
            for codec in ("none", "zstd"):
                out = path(f"{name}.{codec}.parquet")
                write(args, path("texts.jsonl"), out, *flags, "--compression", codec)
                check(name, out, list(vectors))
                sizes.append(out.stat().st_size)
            print(f"| {name} | {vectors.nbytes} | {sizes[0]} | {sizes[1]} |")
            out = path(f"{name}.holed.parquet")
            write(args, path("holed.jsonl"), out, *flags, "--on-null", "keep")
            expected = [None if row["text"] is None else v for row, v in zip(holed, vectors)]
            found = in_pyarrow(out)[1]
            # Batches of other company round differently, so numbers are those of pyarrow.
            expected = [None if v is None else found[i] for i, v in enumerate(expected)]
            check(name, out, expected)
    print(f"ok: {len(FORMATS)} formats, read by pyarrow, pandas, polars and DuckDB")


parser = argparse.ArgumentParser()
parser.add_argument("thane")
parser.add_argument("--model", default=str(BERT))
parser.add_argument("--texts", type=int, default=2000)
main(parser.parse_args())
