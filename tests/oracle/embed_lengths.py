"""lengths.{json,bin} of make_tiny_embed.py: vectors of sequences of 1 to 512 tokens, by sentence-transformers.

The sequences are beginnings of one row of random tokens. A rotary model takes as many tokens as its configuration says, so
these vectors are for a configuration that says 512; `positions_key` names the key that has to be changed. A model with a table of
positions has one of 512 or more, or is compared up to the end of its table.
"""

import sys
from types import SimpleNamespace

import numpy
import torch

from embed_case import CONFIG
from embed_check import check_masks, check_pooling

MOST = 512
# Around what kernels, buckets and windows are multiples of.
LENGTHS = (1, 2, 3, 17, 63, 64, 65, 96, 127, 128, 129, 256, 257, 511, 512)
# Ten times the bound of the comparison: a token that is cut off or added must show.
LEAST_STEP = 1e-4


def lengths_of(case, folder, load, floats):
    """The golden, which points into `floats`."""
    key = None
    n_positions = case.config.get("max_position_embeddings", 0)
    if is_rotary(case):
        key = "n_positions" if "n_positions" in case.config else "max_position_embeddings"
        n_positions = MOST
    model = load(folder, case.reference, {CONFIG: {"max_position_embeddings": MOST}} if key else {})
    row = tokens_of(case, model)
    lengths = [n for n in LENGTHS if n <= n_positions]
    answers = [answer_of(model, row[:n]) for n in lengths]
    for answer in answers:
        check_masks(case, model, answer)
        check_pooling(case, folder, model, answer)
    for n, shorter, longer in zip(lengths[1:], answers, answers[1:]):
        moved = numpy.linalg.norm(longer.embedding - shorter.embedding) / numpy.linalg.norm(longer.embedding)
        if moved < LEAST_STEP:
            sys.exit(f"the tokens up to {n} move the vector by {moved:.1e} only")
    return {
        "positions_key": key, "positions": MOST, "ids": row[: lengths[-1]], "lengths": lengths,
        "embeddings": floats.add(numpy.stack([answer.embedding for answer in answers])),
    }


def is_rotary(case):
    """Whether positions are angles, of which there is no table in the file."""
    config = case.config
    return any(key in config for key in ("rope_theta", "rope_parameters", "rotary_emb_base", "global_rope_theta"))


def tokens_of(case, model):
    """Without padding tokens, which RoBERTa does not count."""
    padding = model.tokenizer.pad_token_id
    random = numpy.random.RandomState(case.seed + 1)
    return [int(token) for token in random.randint(0, case.config["vocab_size"], 2 * MOST) if token != padding][:MOST]


def answer_of(model, ids):
    features = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.int64)}
    with torch.no_grad():
        hidden = model[0](dict(features))["token_embeddings"][0].float().numpy()
        embedding = model(features)["sentence_embedding"][0].float().numpy()
    return SimpleNamespace(ids=ids, prompt_len=0, hidden=hidden, embedding=embedding)
