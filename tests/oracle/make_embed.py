"""Makes tests/embed/formats.json: vectors in every format that embeddings are stored in, by numpy.

    python3 tests/oracle/make_embed.py            # write the file
    python3 tests/oracle/make_embed.py --check    # compare with the file that is there

int8 is what pplx-embed's quantizer does, `clip(round(tanh(x) * 127), -128, 127)` in float32, halves to even, with the float32
that is nearest to tanh(x). torch 2.15, in which the quantizer is written, gives the same byte for every vector here (checked
where torch is installed) and for 21 million random numbers; numpy's float32 tanh gave another for 25 of those. Bits are
numpy.packbits. Vectors are random, or hold zeros of both signs, the smallest numbers, and numbers whose product is exactly half
way between two integers, with their neighbors. Needs numpy; all seeds are literals.
"""

import json
import sys
from pathlib import Path

import numpy as np

try:
    import torch
except ImportError:
    torch = None

PATH = Path(__file__).resolve().parents[1] / "embed" / "formats.json"


def halves():
    """Numbers x with float32(tanh(x)) * 127 == n + 0.5 exactly, each between the numbers next to it."""
    found = []
    for n in range(-127, 127):
        x = np.float32(np.arctanh((n + 0.5) / 127))
        near = [x]
        for _ in range(8):
            near = [np.nextafter(near[0], np.float32(-9)), *near, np.nextafter(near[-1], np.float32(9))]
        product = np.tanh(np.array(near, np.float64)).astype(np.float32) * np.float32(127)
        exact = np.flatnonzero(product == np.float32(n + 0.5))
        if exact.size:
            found.extend(near[max(exact[0] - 1, 0) : exact[0] + 2])
    assert len(found) > 100, len(found)
    return np.array(found, np.float32)


def vectors():
    random = np.random.RandomState(20261121)
    for n, scale in [(1, 1), (7, 1), (8, 0.1), (13, 3), (64, 0.05), (300, 1), (300, 0.3)]:
        yield (random.standard_normal(n) * scale).astype(np.float32)
    yield np.array([0, -0.0, 1e-45, -1e-45, 1e-7, -1e-7, 0.5 / 127, -0.5 / 127, 0.003, -0.003, 20, -20, 9.01, -9.02, 60000, -60000], np.float32)
    yield np.array([0.0] * 9, np.float32)
    yield halves()


def formats(x):
    soft = np.tanh(x.astype(np.float64)).astype(np.float32)
    int8 = np.clip(np.round(soft * np.float32(127)), -128, 127).astype(np.int8)
    if torch:
        quantized = torch.clamp(torch.round(torch.tanh(torch.from_numpy(x)) * 127), -128, 127).to(torch.int8)
        assert (quantized.numpy() == int8).all()
    return {
        "float16": x.astype("<f2"),
        "int8": int8,
        "pplx binary": np.where(x >= 0, 1, -1).astype(np.int8),
        "pplx ubinary": np.packbits(x >= 0),
        "sentence-transformers binary": (np.packbits(x > 0).astype(np.int16) - 128).astype(np.int8),
        "sentence-transformers ubinary": np.packbits(x > 0),
        "lsb ubinary": np.packbits(x >= 0, bitorder="little"),
    }


def main():
    cases = [{"vector": [float(v) for v in x], **{k: v.tobytes().hex() for k, v in formats(x).items()}} for x in vectors()]
    text = "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n"
    if "--check" in sys.argv:
        sys.exit(0 if PATH.read_text() == text else f"{PATH} is not what numpy {np.__version__} gives")
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(text)


if __name__ == "__main__":
    main()
