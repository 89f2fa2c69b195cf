"""Ray Data: columns that models compute, in a pool of actors. Needs the package ray[data].

>>> import ray, thane.ray                                           # doctest: +SKIP
>>> texts = ray.data.read_parquet("texts")                          # doctest: +SKIP
>>> vectors = thane.ray.embed(texts, "minilm", workers=2, threads=1)  # doctest: +SKIP
>>> thane.ray.write_parquet(vectors, "vectors")                     # doctest: +SKIP
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from ._columns import KINDS, check_rerank

if TYPE_CHECKING:
    from ray.data import Dataset


class _Column:
    """An actor's work: a batch with one column more."""

    def __init__(self, kind: str, output: str, model: str, flags: dict[str, Any]) -> None:
        self.output, self.compute = output, KINDS[kind](model, **flags)

    def __call__(self, batch: Any) -> Any:
        from ._columns import numbers

        column = numbers(self.compute({name: batch.column(name).to_pylist() for name in self._names(batch)}))
        if self.output in batch.column_names:
            return batch.set_column(batch.column_names.index(self.output), self.output, column)
        return batch.append_column(self.output, column)

    def _names(self, batch: Any) -> list[str]:
        wanted = [self.compute.column, getattr(self.compute, "query_column", None)]
        return [name for name in wanted if name in batch.column_names]


def _map(
    dataset: Dataset, kind: str, model: str, output: str, workers: int, threads: int, batch_size: int, flags: dict[str, Any]
) -> Dataset:
    from ray.data import ActorPoolStrategy

    return dataset.map_batches(
        _Column,
        fn_constructor_args=(kind, output, os.fspath(model), {**flags, "threads": threads}),
        compute=ActorPoolStrategy(size=workers),
        num_cpus=threads,
        batch_size=batch_size,
        batch_format="pyarrow",
    )


def embed(
    dataset: Dataset, model: str, column: str = "text", output: str = "embedding", *, workers: int = 1, threads: int = 1,
    batch_size: int = 1024, **flags: Any,
) -> Dataset:
    """The rows with a column of vectors: fixed-size lists of float32, or of what `precision` names.

    Each of `workers` actors loads the model once and computes with `threads` threads, which Ray counts as its CPUs. Flags are
    those of `thane.Embedder` and its `encode`. A row whose text is null fails the job.
    """
    return _map(dataset, "embed", model, output, workers, threads, batch_size, {"column": column, **flags})


def rerank(
    dataset: Dataset, model: str, column: str = "text", output: str = "score", *, workers: int = 1, threads: int = 1,
    batch_size: int = 256, **flags: Any,
) -> Dataset:
    """The rows with a column of scores for `query`, or for the queries of `query_column`."""
    check_rerank(flags)
    return _map(dataset, "rerank", model, output, workers, threads, batch_size, {"column": column, **flags})


def generate(
    dataset: Dataset, model: str, column: str = "text", output: str = "answer", *, workers: int = 1, threads: int = 1,
    batch_size: int = 16, **flags: Any,
) -> Dataset:
    """The rows with a column of answers. Flags are those of `thane.Generator` and its `generate`."""
    return _map(dataset, "generate", model, output, workers, threads, batch_size, {"column": column, **flags})


def write_parquet(dataset: Dataset, folder: str) -> int:
    """Writes Parquet files named by their content, and returns the number of rows.

    A file appears whole, by a rename. A job that is run again over the same blocks writes the same names, so rows are
    neither lost nor doubled where a worker was killed between. Files of other jobs in the folder are left alone.
    """
    os.makedirs(folder, exist_ok=True)
    folder = os.path.abspath(folder)
    written = dataset.map_batches(_write, fn_args=(folder,), batch_format="pyarrow", batch_size=None)
    return sum(row["rows"] for row in written.iter_rows())


def _write(table: Any, folder: str) -> Any:
    import pyarrow
    from pyarrow import parquet

    if table.num_rows == 0:
        return pyarrow.table({"rows": pyarrow.array([], pyarrow.int64())})
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    data = sink.getvalue()
    path = os.path.join(folder, f"part-{hashlib.sha256(data).hexdigest()[:32]}.parquet")
    partial = f"{path}.{os.getpid()}.partial"
    with open(partial, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    return pyarrow.table({"rows": [table.num_rows]})
