"""Models over columns of a table, for engines that work on batches; each engine has a module of its own.

An object here is made once in each worker, where its model is loaded, and called with the columns of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ._models import Embedder, Generator, Reranker
from ._thane import ThaneError


def texts_of(batch: Mapping[str, Any], column: str) -> list[str]:
    """The texts of a column. Nulls and other types are refused, since a vector for them would be made up."""
    if column not in batch:
        raise ThaneError(f"the rows have no column `{column}`, but {', '.join(map(str, batch))}")
    texts = list(batch[column])
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            found = "null" if text is None else type(text).__name__
            raise ThaneError(f"column `{column}`, row {row} of the batch: expected a text, found {found}: drop or fill such rows")
    return texts


class Embed:
    """Vectors of a column of texts, as an array [rows, elements]."""

    def __init__(
        self, model: str, column: str = "text", *, precision: str = "float32", packing: str | None = None,
        prompt_name: str | None = None, normalize_embeddings: bool = False, truncate_dim: int | None = None,
        **options: Any,
    ) -> None:
        self.column = column
        self.flags = {
            "precision": precision, "packing": packing, "prompt_name": prompt_name,
            "normalize_embeddings": normalize_embeddings, "truncate_dim": truncate_dim,
        }
        self.embedder = Embedder(model, **options)

    def __call__(self, batch: Mapping[str, Any]) -> Any:
        return self.embedder.encode(texts_of(batch, self.column), **self.flags)


class Rerank:
    """Scores of a column of texts for a query, or for a column of queries."""

    def __init__(
        self, model: str, column: str = "text", *, query: str | None = None, query_column: str | None = None, **options: Any
    ) -> None:
        check_rerank({"query": query, "query_column": query_column})
        self.column, self.query, self.query_column = column, query, query_column
        self.reranker = Reranker(model, **options)

    def __call__(self, batch: Mapping[str, Any]) -> Any:
        import numpy

        texts = texts_of(batch, self.column)
        queries = [self.query] * len(texts) if self.query_column is None else texts_of(batch, self.query_column)
        return numpy.asarray(self.reranker.predict(list(zip(queries, texts))), dtype="float32")


class Generate:
    """Answers to a column of texts. `system` is a message before each; flags are those of `Generator.generate`."""

    def __init__(
        self, model: str, column: str = "text", *, system: str | None = None, context: int | None = None,
        numerics: str = "fast", threads: int | None = None, memory: int | None = None, cache: str | None = None,
        **flags: Any,
    ) -> None:
        self.column, self.flags = column, flags
        self.before = [] if system is None else [{"role": "system", "content": system}]
        self.generator = Generator(
            model, context=context, numerics=numerics, threads=threads, memory=memory, cache=cache
        )

    def __call__(self, batch: Mapping[str, Any]) -> list[str]:
        def answer(text: str) -> str:
            messages = [*self.before, {"role": "user", "content": text}]
            return self.generator.generate(messages, **self.flags).text

        return [answer(text) for text in texts_of(batch, self.column)]


def check_rerank(flags: Mapping[str, Any]) -> None:
    """Refuses flags of `Rerank` that cannot be, before a job begins."""
    if (flags.get("query") is None) == (flags.get("query_column") is None):
        raise ValueError("expected either `query`, one for all rows, or `query_column`")


def check_columns(known: Sequence[str], flags: Mapping[str, Any]) -> None:
    """Refuses columns that a table does not have, before a job begins."""
    for name in (flags["column"], flags.get("query_column")):
        if name is not None and name not in known:
            raise ValueError(f"the table has no column `{name}`, but {', '.join(known)}")


KINDS = {"embed": Embed, "rerank": Rerank, "generate": Generate}


def numbers(values: Sequence[Any] | Any) -> Any:
    """An Arrow column of what an object gives: fixed-size lists of vectors, floats or texts."""
    import numpy
    import pyarrow

    if not isinstance(values, numpy.ndarray):
        return pyarrow.array(values, type=pyarrow.string())
    if values.ndim == 1:
        return pyarrow.array(values)
    flat = pyarrow.array(numpy.ascontiguousarray(values).reshape(-1))
    return pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
