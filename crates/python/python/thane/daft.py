"""Daft: columns that models compute, by a class UDF. Needs the package daft.

>>> import daft, thane.daft                                        # doctest: +SKIP
>>> vectors = thane.daft.embed(daft.read_parquet("texts"), "minilm")  # doctest: +SKIP
>>> vectors.write_parquet("vectors")                               # doctest: +SKIP
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ._columns import KINDS, check_columns, check_rerank

if TYPE_CHECKING:
    from daft import DataFrame, DataType


def _map(
    frame: DataFrame, kind: str, model: str, output: str, dtype: DataType, workers: int, threads: int, flags: dict[str, Any]
) -> DataFrame:
    import daft

    model = os.fspath(model)
    check_columns(frame.column_names, flags)
    columns = [name for name in (flags["column"], flags.get("query_column")) if name]
    flags = {**flags, "threads": threads}

    @daft.cls(cpus=threads, max_concurrency=workers, use_process=workers > 1, name_override=f"thane.{kind}")
    class Compute:
        """Loads the model once in each worker."""

        def __init__(self) -> None:
            self.compute = KINDS[kind](model, **flags)

        @daft.method.batch(return_dtype=dtype)
        def __call__(self, *series: Any) -> Any:
            from thane._columns import numbers

            return numbers(self.compute({name: column.to_pylist() for name, column in zip(columns, series)}))

    return frame.with_column(output, Compute()(*(daft.col(name) for name in columns)))


def embed(
    frame: DataFrame, model: str, column: str = "text", output: str = "embedding", *, workers: int = 1, threads: int = 1,
    **flags: Any,
) -> DataFrame:
    """The rows with a column of vectors: embeddings of float32, or fixed-size lists of int8 and uint8.

    The model is opened here to know the length of its vectors, and loaded once in each of `workers` processes (in this one
    if there is one). Flags are those of `thane.Embedder` and its `encode`. A row whose text is null fails the job.
    """
    from daft import DataType

    flags = {"column": column, **flags}
    check_columns(frame.column_names, flags)
    row = KINDS["embed"](model, **flags, threads=1)({column: ["a"]})
    kinds = {"float32": DataType.float32(), "int8": DataType.int8(), "uint8": DataType.uint8()}
    if row.dtype.name not in kinds:
        raise ValueError(f"precision: expected float32, int8, binary or ubinary, found {flags.get('precision')}")
    inner = kinds[row.dtype.name]
    is_float = row.dtype.name == "float32"
    dtype = DataType.embedding(inner, row.shape[1]) if is_float else DataType.fixed_size_list(inner, row.shape[1])
    return _map(frame, "embed", model, output, dtype, workers, threads, flags)


def rerank(
    frame: DataFrame, model: str, column: str = "text", output: str = "score", *, workers: int = 1, threads: int = 1,
    **flags: Any,
) -> DataFrame:
    """The rows with a column of scores for `query`, or for the queries of `query_column`."""
    from daft import DataType

    check_rerank(flags)
    return _map(frame, "rerank", model, output, DataType.float32(), workers, threads, {"column": column, **flags})


def generate(
    frame: DataFrame, model: str, column: str = "text", output: str = "answer", *, workers: int = 1, threads: int = 1,
    **flags: Any,
) -> DataFrame:
    """The rows with a column of answers. Flags are those of `thane.Generator` and its `generate`."""
    from daft import DataType

    return _map(frame, "generate", model, output, DataType.string(), workers, threads, {"column": column, **flags})
