"""Haystack: embedders of this machine's CPU. Needs the package haystack-ai."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict

from ._models import Embedder


class _Lazy:
    """A model that is loaded at `warm_up`, or at the first run."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        self.model, self.options = model, options
        self.embedder: Embedder | None = None

    def load(self) -> Embedder:
        if self.embedder is None:
            self.embedder = Embedder(self.model, **self.options)
        return self.embedder


@component
class ThaneTextEmbedder:
    """Embeds a query, with the model's own prompt. Options are those of `thane.Embedder`."""

    def __init__(self, model: str, **options: Any) -> None:
        self._lazy = _Lazy(model, options)

    def warm_up(self) -> None:
        """Loads the model."""
        self._lazy.load()

    def to_dict(self) -> dict[str, Any]:
        """What a pipeline stores of this component."""
        return default_to_dict(self, model=self._lazy.model, **self._lazy.options)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ThaneTextEmbedder:
        """The component of a stored pipeline."""
        return default_from_dict(cls, data)

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, Any]:
        return {"embedding": self._lazy.load().encode_query(text).tolist()}


@component
class ThaneDocumentEmbedder:
    """Embeds documents, with the model's own prompt. `meta_fields` are put before their text, a line each."""

    def __init__(self, model: str, *, meta_fields: list[str] | None = None, **options: Any) -> None:
        self._lazy, self._meta_fields = _Lazy(model, options), meta_fields or []

    def warm_up(self) -> None:
        """Loads the model."""
        self._lazy.load()

    def to_dict(self) -> dict[str, Any]:
        """What a pipeline stores of this component."""
        return default_to_dict(self, model=self._lazy.model, meta_fields=self._meta_fields, **self._lazy.options)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ThaneDocumentEmbedder:
        """The component of a stored pipeline."""
        return default_from_dict(cls, data)

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        def text(document: Document) -> str:
            fields = (document.meta.get(key) for key in self._meta_fields)
            return "\n".join([*(str(field) for field in fields if field), document.content or ""])

        rows = self._lazy.load().encode_document([text(document) for document in documents]).tolist()
        return {"documents": [replace(document, embedding=row) for document, row in zip(documents, rows)]}
