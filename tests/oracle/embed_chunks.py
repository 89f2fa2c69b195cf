"""What pplx-embed does behind the hidden states: late chunking, and its int8 and binary vectors.

A document is its chunks joined by the separator token, in one pass. A chunk's vector is the mean of the hidden states from
the separator before it to the one behind it, both excluded; the mean of no token is zero. What is cut off has no vector.
"""

import sys

import numpy
import torch

CHUNKS = {
    "one chunk": ["The cat sleeps on the warm stone above the sea."],
    "two chunks": ["The station stood on a ridge above the village.", "Nobody went there."],
    "empty and one token": ["The cat sleeps.", "", "a", "猫が眠る。", "It has 42 stones, and the sea."],
    "empty at the ends": ["", "a cat", ""],
    "only empty": ["", ""],
    "thirty-two chunks": [" ".join(["sea", "the", "cat", "42"][: 1 + i % 2]) for i in range(32)],
    "too long": ["The table still hung on the wall of the hut, yellow and curled at the edges"] * 6,
}


# Nearer than this to a half of a code, two good tanhs in float32 can round it to both sides: they differ by 1e-7.
HALF = 3e-5


def tanh_codes(vector):
    """int8, binary and packed binary // [dimension] float32 -> lists of integers"""
    exact = numpy.tanh(vector.astype("float64")) * 127
    if numpy.abs(exact - numpy.floor(exact) - 0.5).min() < HALF:
        sys.exit("an int8 code is too near to a half: change the seed")
    codes = numpy.clip(numpy.round(numpy.tanh(vector) * 127), -128, 127).astype("int8")
    again = torch.clamp(torch.round(torch.tanh(torch.from_numpy(vector)) * 127), -128, 127).to(torch.int8).numpy()
    if not numpy.array_equal(codes, again):
        sys.exit("numpy and torch give other int8 codes")
    bits = vector >= 0
    return {
        "int8": codes.tolist(), "binary": numpy.where(bits, 1, -1).tolist(),
        "ubinary": numpy.packbits(bits).tolist(),
    }


def spans_of(ids, separator):
    """[start, end) of each chunk"""
    ends = [i for i, token in enumerate(ids) if token == separator] + [len(ids)]
    return list(zip([0] + [end + 1 for end in ends[:-1]], ends))


def documents_of(model, floats):
    tokenizer = model.tokenizer
    rows = []
    for name, chunks in CHUNKS.items():
        features = model.preprocess([tokenizer.sep_token.join(chunks)])
        ids = features["input_ids"][0].tolist()
        with torch.no_grad():
            hidden = model[0](features)["token_embeddings"][0].numpy()
        spans = spans_of(ids, tokenizer.sep_token_id)
        vectors = numpy.stack([
            hidden[start:end].mean(0) if end > start else numpy.zeros(hidden.shape[1], "float32") for start, end in spans
        ])
        check_pool_matrix(hidden, spans, vectors)
        codes = [tanh_codes(vector) for vector in vectors]
        rows.append({
            "name": name, "chunks": chunks, "ids": ids, "spans": [list(span) for span in spans],
            "embeddings": floats.add(vectors),
        } | {kind: [row[kind] for row in codes] for kind in codes[0]})
    return rows


def check_pool_matrix(hidden, spans, vectors):
    """The same as one product: rows of 1/n over the tokens of a chunk."""
    matrix = numpy.zeros((len(spans), len(hidden)))
    for row, (start, end) in zip(matrix, spans):
        row[start:end] = 1 / max(end - start, 1)
    if numpy.abs(matrix @ hidden.astype("float64") - vectors).max() > 1e-6 * max(1, numpy.abs(vectors).max()):
        sys.exit("the mean of a chunk is not its row of the pool matrix")
