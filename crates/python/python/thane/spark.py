"""Spark: columns that models compute, by `mapInArrow`. Needs the package pyspark[sql].

>>> import thane.spark                                        # doctest: +SKIP
>>> vectors = thane.spark.embed(frame, "minilm", threads=1)   # doctest: +SKIP
>>> vectors.write.parquet("vectors")                          # doctest: +SKIP

A worker of Spark's daemon loads a model after it was forked, once for each partition that it takes: partitions of some
10,000 rows keep the loading small. Spark's own committer writes files, each task's as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ELEMENTS = {"float32": "float", "int8": "tinyint", "binary": "tinyint", "ubinary": "smallint"}


def _map(frame: DataFrame, kind: str, model: str, output: str, type_of: str, flags: dict[str, Any]) -> DataFrame:
    from pyspark.sql.types import StructField, StructType, _parse_datatype_string

    from thane._columns import check_columns

    check_columns(frame.columns, flags)
    fields = [field for field in frame.schema.fields if field.name != output]
    schema = StructType([*fields, StructField(output, _parse_datatype_string(type_of), False)])
    names = [field.name for field in fields]
    model = os.fspath(model)

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        from thane._columns import KINDS

        compute = None
        for batch in batches:
            if batch.num_rows == 0:
                continue
            # A partition without rows loads no model.
            compute = compute or KINDS[kind](model, **flags)
            values = compute(batch.to_pydict())
            rows = values.tolist() if hasattr(values, "tolist") else values
            column = pyarrow.array(rows, type=_arrow_type(type_of))
            kept = [batch.column(name) for name in names]
            yield pyarrow.RecordBatch.from_arrays([*kept, column], names=[*names, output])

    return frame.mapInArrow(work, schema)


def _arrow_type(of: str) -> Any:
    import pyarrow

    single = {
        "float": pyarrow.float32(), "tinyint": pyarrow.int8(), "smallint": pyarrow.int16(), "string": pyarrow.string(),
    }
    inner = of.removeprefix("array<").removesuffix(">")
    return single[inner] if inner == of else pyarrow.list_(single[inner])


def embed(
    frame: DataFrame, model: str, column: str = "text", output: str = "embedding", *, threads: int = 1, **flags: Any
) -> DataFrame:
    """The rows with a column of vectors: arrays of float, of tinyint for int8 and binary, of smallint for ubinary.

    Flags are those of `thane.Embedder` and its `encode`; `threads` is what a task computes with. A row whose text is null
    fails the job.
    """
    precision = flags.get("precision", "float32")
    if precision not in _ELEMENTS:
        raise ValueError(f"precision: expected {', '.join(_ELEMENTS)}, found {precision}")
    flags = {"column": column, "threads": threads, **flags}
    return _map(frame, "embed", model, output, f"array<{_ELEMENTS[precision]}>", flags)


def rerank(
    frame: DataFrame, model: str, column: str = "text", output: str = "score", *, threads: int = 1, **flags: Any
) -> DataFrame:
    """The rows with a column of scores for `query`, or for the queries of `query_column`."""
    from ._columns import check_rerank

    check_rerank(flags)
    return _map(frame, "rerank", model, output, "float", {"column": column, "threads": threads, **flags})


def generate(
    frame: DataFrame, model: str, column: str = "text", output: str = "answer", *, threads: int = 1, **flags: Any
) -> DataFrame:
    """The rows with a column of answers. Flags are those of `thane.Generator` and its `generate`."""
    return _map(frame, "generate", model, output, "string", {"column": column, "threads": threads, **flags})
