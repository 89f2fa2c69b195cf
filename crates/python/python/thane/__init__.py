"""Core ML programs for the Apple Neural Engine, from checkpoints: convert, audit, run.

>>> import thane
>>> embedder = thane.Embedder("tests/models/tiny-embed/bert-mean")
>>> embedder.encode(["a cat", "a kitten"]).shape
(2, 42)

Models run on this machine's CPU. Verbs that write or judge files (`convert`, `compress`, `audit`, `plan`) run the program
`thane` of this package, and say what it says. Every error is a `ThaneError`, or a `ValueError` for an argument that cannot be.
"""

from ._models import Answer, Embedder, Generator, Ranked, Reranker, Tokenizer
from ._package import Feature, Op, Package, Prediction, predict
from ._program import Report, audit, compress, convert, plan, program
from ._thane import ThaneError

__all__ = [
    "Answer", "Embedder", "Feature", "Generator", "Op", "Package", "Prediction", "Ranked", "Report", "Reranker",
    "ThaneError", "Tokenizer", "audit", "compress", "convert", "plan", "predict", "program",
]
