"""LlamaIndex: embeddings of this machine's CPU. Needs the package llama-index-core."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

from ._models import Embedder


class ThaneEmbedding(BaseEmbedding):
    """Embeddings of a model, with its own prompts for queries and documents. Options are those of `thane.Embedder`."""

    _embedder: Embedder = PrivateAttr()

    def __init__(self, model: str, *, embed_batch_size: int = 256, callback_manager: Any = None, **options: Any) -> None:
        super().__init__(model_name=model, embed_batch_size=embed_batch_size, callback_manager=callback_manager)
        self._embedder = Embedder(model, **options)

    @classmethod
    def class_name(cls) -> str:
        return "ThaneEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._embedder.encode_query(query).tolist()

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._embedder.encode_document(text).tolist()

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._embedder.encode_document(texts).tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        import asyncio

        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        import asyncio

        return await asyncio.to_thread(self._get_text_embedding, text)
