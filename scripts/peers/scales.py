#!/usr/bin/env python3
"""What shared scales cost: how far a llama-family model strays when its products are rounded to 8 bits.

    PEERS/encoders/bin/python scripts/peers/scales.py MODEL.gguf [TEXT]

For each pair of numbers of columns that share a scale, of activations and of weights (0: not rounded), with columns as they are and with
64 at a time multiplied by a Hadamard matrix before they are rounded, a JSON line with the mean Kullback-Leibler divergence of a position's
outputs from those without rounding, in nats, and the perplexities. The head is left alone. The model is transformers', in f32.
"""

import json
import math
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PAIRS = [(32, 0), (64, 0), (0, 64), (0, 256), (32, 64), (32, 256), (64, 64), (64, 128), (128, 128), (256, 256)]
ROTATED_PAIRS = [(32, 256), (64, 64), (128, 128), (256, 256)]
ROTATED = 64
WINDOW = 512


def rounded(x, n_cols):
    """The values of codes of 8 bits, of which this many columns share a scale."""
    if n_cols == 0:
        return x
    n = x.shape[-1]
    groups = torch.nn.functional.pad(x, (0, -n % n_cols)).unflatten(-1, (-1, n_cols))
    scale = groups.abs().amax(-1, keepdim=True) / 127
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return ((groups / scale).round() * scale).flatten(-2)[..., :n]


def rotated(x):
    """Groups of columns times a Hadamard matrix, whose rows are as long as one."""
    matrix = torch.ones(1, 1)
    while len(matrix) < ROTATED:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    return (x.unflatten(-1, (-1, ROTATED)) @ matrix / math.sqrt(ROTATED)).flatten(-2)


def main():
    path = Path(sys.argv[1])
    text = Path(sys.argv[2] if len(sys.argv) > 2 else "tests/models/perplexity.txt").read_text()
    names = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(**names, dtype=torch.float32).eval()
    ids = AutoTokenizer.from_pretrained(**names)(text, return_tensors="pt").input_ids[0]
    windows = [window for window in ids.split(WINDOW) if len(window) == WINDOW]
    products = [m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and "lm_head" not in name]
    weights = [product.weight.data for product in products]
    shared, turn = [0], [lambda x: x]
    for product in products:
        product.register_forward_pre_hook(lambda _, args: (rounded(turn[0](args[0]), shared[0]), *args[1:]))

    def outputs():
        with torch.no_grad():
            return [torch.log_softmax(model(window[None]).logits[0], -1) for window in windows]

    def perplexity(logs):
        losses = [-log[:-1].gather(1, window[1:, None]).mean() for log, window in zip(logs, windows)]
        return math.exp(sum(losses) / len(losses))

    reference = outputs()
    cases = [(*pair, False) for pair in PAIRS] + [(*pair, True) for pair in ROTATED_PAIRS]
    for activations, of_weights, is_rotated in cases:
        shared[0], turn[0] = activations, rotated if is_rotated else lambda x: x
        for product, weight in zip(products, weights):
            product.weight.data = rounded(turn[0](weight), of_weights)
        logs = outputs()
        divergence = [(r.exp() * (r - log)).sum(-1).mean().item() for r, log in zip(reference, logs)]
        line = {"activations": activations, "weights": of_weights, "rotated": is_rotated, "divergence": sum(divergence) / len(divergence)}
        line |= {"perplexity": perplexity(logs), "perplexity_f32": perplexity(reference), "tokens": WINDOW * len(windows)}
        print(json.dumps(line), flush=True)


main()
