"""Models that run on this machine's CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _thane

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

Tokenizer = _thane.Tokenizer
Path = "str | PathLike[str]"


class Embedder:
    """A running embedding model.

    `model` is a path, a package, `hf:org/name`, or a name of the catalog. `threads` is as many as there are cores by
    default, and `memory` limits what the model takes beside its file, in bytes. Load a model after a fork, in the worker.

    >>> embedder = Embedder("tests/models/tiny-embed/bert-mean", threads=1)
    >>> embedder.encode("a cat").dtype
    dtype('float32')
    """

    def __init__(
        self, model: str | PathLike[str], *, max_tokens: int | None = None, numerics: str = "fast",
        threads: int | None = None, memory: int | None = None, cache: str | PathLike[str] | None = None,
    ) -> None:
        self._given = {"max_tokens": max_tokens, "numerics": numerics, "threads": threads, "memory": memory, "cache": cache}
        self.name = str(model)
        _check(max_tokens=max_tokens, threads=threads, memory=memory)
        self._model = _thane.Embedder(self.name, **self._given)

    def encode(
        self, sentences: str | Sequence[str], prompt_name: str | None = None, prompt: str | None = None,
        batch_size: int | None = None, show_progress_bar: bool | None = None, *, precision: str = "float32",
        packing: str | None = None, normalize_embeddings: bool = False, truncate_dim: int | None = None,
        truncate: bool = True,
    ) -> NDArray[Any]:
        """Vectors of texts, as `SentenceTransformer.encode` gives them: [texts, dimension], or [dimension] of one text.

        `prompt_name` names a prompt of the model, and `prompt` is one. `precision` is `float32`, or a format of
        `thane embed --format`: `float16`, `int8`, `binary` and `ubinary`, where `packing` says which (`pplx`,
        `sentence-transformers`, `lsb`; by default as the command has it for the model). A text that is too long is cut, or refused without `truncate`. Texts of similar
        length share a call whatever `batch_size` says, which is taken for the sake of callers, as is `show_progress_bar`.
        """
        is_one = isinstance(sentences, str)
        texts = [sentences] if is_one else list(sentences)
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"sentences[{index}]: expected a text, found {type(text).__name__}")
        vectors = self._model.encode(
            texts, prompt_name=prompt_name, prompt=prompt, truncate=truncate, truncate_dim=truncate_dim,
            normalize=normalize_embeddings,
        )
        if precision != "float32":
            vectors = _stored(self._model, vectors, precision, packing)
        return vectors[0] if is_one else vectors

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> NDArray[Any]:
        """Vectors of queries: `encode` with the model's prompt `query`, if it has one."""
        return self.encode(sentences, **{"prompt_name": "query", **options})

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> NDArray[Any]:
        """Vectors of documents: `encode` with the model's prompt `document` (or `passage`, `corpus`), if it has one."""
        names = [name for name in ("document", "passage", "corpus") if name in self.prompts]
        return self.encode(sentences, **{"prompt_name": names[0] if names else "document", **options})

    def encode_chunks(self, chunks: Sequence[str]) -> NDArray[numpy.float32]:
        """Vectors of the chunks of one document, each of which is computed in the light of the others."""
        if isinstance(chunks, str):
            raise ValueError("chunks: expected a list of texts, found one text")
        return self._model.encode_chunks(list(chunks))

    def similarity(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        """The similarity of each row of `a` with each row of `b`, by the model's own function."""
        import numpy

        a, b = (numpy.atleast_2d(numpy.asarray(x, dtype=numpy.float64)) for x in (a, b))
        kind = self.similarity_fn_name
        if kind == "dot":
            return a @ b.T
        if kind in ("euclidean", "manhattan"):
            order = 2 if kind == "euclidean" else 1
            return -numpy.linalg.norm(a[:, None] - b[None], ord=order, axis=-1)
        unit = [x / numpy.maximum(numpy.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (a, b)]
        return unit[0] @ unit[1].T

    def tokenize(self, text: str) -> list[int]:
        """The ids of a text, with the tokens that the model has around it."""
        return self._model.tokenize(text)

    @property
    def dimension(self) -> int:
        """Elements of a vector."""
        return self._model.dimension

    def get_sentence_embedding_dimension(self) -> int:
        """Elements of a vector, by the name of sentence-transformers."""
        return self._model.dimension

    @property
    def max_seq_length(self) -> int:
        """Most tokens of a text."""
        return self._model.max_tokens

    @property
    def prompts(self) -> dict[str, str]:
        """The model's prompts by name."""
        return dict(self._model.prompts)

    @property
    def similarity_fn_name(self) -> str:
        """`cosine`, `dot`, `euclidean` or `manhattan`."""
        return self._model.similarity_fn_name or "cosine"

    def __reduce__(self) -> tuple[Any, ...]:
        """A model that is pickled is loaded again where it arrives."""
        return _embedder, (self.name, self._given)

    def __repr__(self) -> str:
        return f"Embedder({self.name!r})"


def _check(**numbers: int | None) -> None:
    """Refuses numbers below 0, for which Rust's own words are no help."""
    for name, number in numbers.items():
        if number is not None and number < 0:
            raise ValueError(f"{name}: expected 0 or more, found {number}")


def _embedder(name: str, given: dict[str, Any]) -> Embedder:
    return Embedder(name, **given)


def _stored(model: Any, vectors: NDArray[numpy.float32], precision: str, packing: str | None) -> NDArray[Any]:
    rows = model.stored(vectors, precision, packing)
    kinds = {"float16": "float16", "int8": "int8", "binary": "int8", "ubinary": "uint8", "float": "float32"}
    return rows.view(kinds[precision])


class Ranked(NamedTuple):
    """A text of `Reranker.rank`."""

    index: int
    """Where it was in the list."""
    score: float
    """Its score, by the model's own activation."""
    logit: float
    """What the activation was computed from."""


class Reranker:
    """A running reranker, whose arguments are those of `Embedder`.

    >>> reranker = Reranker("tests/models/tiny-rerank/bert", threads=1)
    >>> len(reranker.rank("a cat", ["a dog", "a kitten"]))
    2
    """

    def __init__(
        self, model: str | PathLike[str], *, max_tokens: int | None = None, numerics: str = "fast",
        threads: int | None = None, memory: int | None = None, cache: str | PathLike[str] | None = None,
    ) -> None:
        self.name = str(model)
        _check(max_tokens=max_tokens, threads=threads, memory=memory)
        self._model = _thane.Reranker(
            self.name, max_tokens=max_tokens, numerics=numerics, threads=threads, memory=memory, cache=cache
        )

    def rank(self, query: str, texts: Sequence[str], top_k: int | None = None) -> list[Ranked]:
        """The texts, best first; equal scores keep their order. `top_k` is how many of them are given."""
        if isinstance(texts, str):
            raise ValueError("texts: expected a list of texts, found one text")
        if top_k is not None and top_k < 0:
            raise ValueError(f"top_k: expected 0 or more, found {top_k}")
        return [Ranked(*row) for row in self._model.rank(query, list(texts))[:top_k]]

    def predict(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """A score for each pair of a query and a text, in their order, as `CrossEncoder.predict` gives them."""
        by_query: dict[str, list[int]] = {}
        if any(isinstance(pair, str) or len(pair) != 2 for pair in pairs):
            raise ValueError("pairs: expected pairs of a query and a text")
        for index, (query, _) in enumerate(pairs):
            by_query.setdefault(query, []).append(index)
        scores = [0.0] * len(pairs)
        for query, where in by_query.items():
            for row in self.rank(query, [pairs[index][1] for index in where]):
                scores[where[row.index]] = row.score
        return scores

    @property
    def max_seq_length(self) -> int:
        """Most tokens of a query and a text."""
        return self._model.max_tokens


class Answer(NamedTuple):
    """A generated answer."""

    text: str
    tokens: list[int]
    """Without the token that ends the turn."""
    finish_reason: str
    """`stop`, `length`, `context` or `interrupted`."""
    prompt_tokens: int
    """Tokens of the prompt that were computed; others were in the KV cache."""


Messages = "str | Sequence[Mapping[str, Any]]"


class Generator:
    """A running language model.

    `context` is the length of the KV cache in tokens, which stays filled between calls: a conversation computes its new
    tokens only. Other arguments are those of `Embedder`.

    >>> chat = Generator("tests/models/tiny-chat", threads=1)
    >>> chat.generate("Hello there", max_tokens=4).finish_reason
    'length'
    """

    def __init__(
        self, model: str | PathLike[str], *, context: int | None = None, numerics: str = "fast",
        threads: int | None = None, memory: int | None = None, cache: str | PathLike[str] | None = None,
    ) -> None:
        self.name = str(model)
        _check(context=context, threads=threads, memory=memory)
        self._model = _thane.Generator(
            self.name, context=context, numerics=numerics, threads=threads, memory=memory, cache=cache
        )

    def generate(
        self, messages: str | Sequence[Mapping[str, Any]], *, max_tokens: int | None = None,
        temperature: float | None = None, top_k: int | None = None, top_p: float | None = None,
        min_p: float | None = None, repetition_penalty: float | None = None, seed: int = 0,
        stop: Sequence[str] = (), tools: Sequence[Mapping[str, Any]] = (), schema: Mapping[str, Any] | str | None = None,
        regex: str | None = None, grammar: str | None = None, on_text: Callable[[str], Any] | None = None,
    ) -> Answer:
        """An answer to messages (dictionaries with `role` and `content`), or to one message of a user.

        What is not given is as the model's files recommend. `schema` is a JSON schema, `regex` a regular expression, and
        `grammar` one in Lark's syntax, that the answer follows. `on_text` gets each piece of text; False ends the answer.
        A call of a tool is in the text, in the model's own form.
        """
        import json

        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if not messages:
            raise ValueError("messages: expected at least one, found none")
        options = {
            "max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
            "repetition_penalty": repetition_penalty, "seed": seed, "stop": stop, "tools": list(tools), "schema": schema,
            "regex": regex, "grammar": grammar,
        }
        return self._run(json.dumps(list(messages)), None, options, on_text)

    def complete(self, prompt: str, *, on_text: Callable[[str], Any] | None = None, **options: Any) -> Answer:
        """The continuation of a text, without the chat template; options are those of `generate`, but for `tools`."""
        if options.get("tools"):
            raise ValueError("tools: a chat template tells the model of them, and `complete` has none")
        return self._run(None, prompt, options, on_text)

    def stream(self, messages: str | Sequence[Mapping[str, Any]], **options: Any) -> Iterator[str]:
        """The pieces of an answer as they become certain. Leaving the loop ends the answer."""
        import queue
        import threading

        pieces: queue.Queue[Any] = queue.Queue(maxsize=64)
        is_over = threading.Event()

        def tell(text: str) -> bool:
            while not is_over.is_set():
                try:
                    pieces.put(text, timeout=0.1)
                    return True
                except queue.Full:
                    continue
            return False

        def work() -> None:
            try:
                self.generate(messages, on_text=tell, **options)
                end: Any = None
            except BaseException as error:  # It is raised in the thread that reads.
                end = error
            while not is_over.is_set():
                try:
                    return pieces.put((end,), timeout=0.1)
                except queue.Full:
                    continue

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        try:
            while isinstance(piece := pieces.get(), str):
                yield piece
            if piece[0] is not None:
                raise piece[0]
        finally:
            is_over.set()
            worker.join()

    def _run(
        self, messages: str | None, prompt: str | None, options: Mapping[str, Any],
        on_text: Callable[[str], Any] | None,
    ) -> Answer:
        import json

        options = dict(options)
        _check(**{name: options.get(name) for name in ("max_tokens", "top_k", "seed")})
        stop = options.pop("stop", ())
        if isinstance(stop, str):
            raise ValueError("stop: expected a list of texts, found one text")
        schema = options.pop("schema", None)
        if isinstance(schema, str):
            schema = json.loads(schema)
        options |= {"stop": list(stop), "schema": schema, "lark": options.pop("grammar", None)}
        tell = None if on_text is None else (lambda text: on_text(text) is not False)
        return Answer(*self._model.generate(messages, prompt, json.dumps(options), tell))

    @property
    def context(self) -> int:
        """Tokens that the KV cache can hold."""
        return self._model.context

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template; without one, only `complete` works."""
        return self._model.has_template
