"""LangChain: embeddings of this machine's CPU. Needs the package langchain-core."""

from __future__ import annotations

from typing import Any

from langchain_core.embeddings import Embeddings

from ._models import Embedder


class ThaneEmbeddings(Embeddings):
    """Embeddings of a model, with its own prompts for queries and documents. Options are those of `thane.Embedder`."""

    def __init__(self, model: str, **options: Any) -> None:
        self.embedder = Embedder(model, **options)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.embedder.encode_document(texts).tolist()

    def embed_query(self, text: str) -> list[float]:
        return self.embedder.encode_query(text).tolist()
