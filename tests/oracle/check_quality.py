"""Compares `thane quality` with transformers on SmolLM2-135M, with its own weights and with coarser ones.

    python3 tests/oracle/check_quality.py THANE --models DIR [--tokens N] [--bits N]

DIR holds SmolLM2-135M-Instruct.Q4_1.gguf. Its weights in f32 are written as a Hugging Face folder, and again with every matrix
rounded to N bits by row; THANE compares the two in f32. Prints what both say of perplexity.txt, and ends with 1 where a mean
differs by more than 1e-4. Some minutes and 2 GB on the disk.
Needs torch, transformers, gguf, scipy, numpy.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from golden import MODELS, need

need("torch", "transformers", "gguf", "scipy", "numpy")

import torch
import transformers

from make_quality import decoders
from reference import FILES, load_model

NAME = "smollm2-135m"


def rounded(weight, bits):
    """By row, to whole multiples of a step."""
    step = weight.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    return torch.where(step > 0, (weight / step).round() * step, weight)


def write(models, folder, bits):
    loaded = load_model(models, NAME)
    # What was read of a GGUF file cannot be saved; a model of the same configuration can.
    config = loaded.config.to_dict()
    config.pop("quantization_config", None)
    model = transformers.AutoModelForCausalLM.from_config(type(loaded.config).from_dict(config), dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    tokenizer = transformers.AutoTokenizer.from_pretrained(models, gguf_file=FILES[NAME])
    model.save_pretrained(folder / "reference")
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.copy_(rounded(weight, bits))
    model.save_pretrained(folder / "model")
    for name in ("reference", "model"):
        tokenizer.save_pretrained(folder / name)
    return folder / "model", folder / "reference"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("thane")
    parser.add_argument("--models", required=True, help="the folder with the GGUF file")
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--bits", type=int, default=6)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, reference = write(arguments.models, Path(folder), arguments.bits)
        command = [arguments.thane, "quality", str(model), str(reference), "--file", str(MODELS / "perplexity.txt"),
                   "--numerics", "f32", "--tokens", str(arguments.tokens), "--window", "256", "--answers", "4",
                   "--answer-tokens", "24", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        found = json.loads(done.stdout)["language"]
        expected = decoders(reference, model, arguments.tokens, 256)
    failed = False
    rows = [(key, found[key]["value"], expected[key])
            for key in ("perplexity", "reference_perplexity", "same_first", "same_five", "cosine")]
    rows += [("kl mean", found["kl"]["mean"]["value"], expected["kl"]["mean"])]
    rows += [(f"kl {key}", found["kl"][key], expected["kl"][key]) for key in ("median", "p90", "p99", "worst")]
    for name, ours, theirs in rows:
        is_near = abs(ours - theirs) <= 1e-4 * max(1, abs(theirs))
        failed |= not is_near
        print(f"{name:<22} {ours:.6f}  {theirs:.6f}{'' if is_near else '  DIFFERS'}")
    answers = [[answer["tokens"] for answer in side] for side in (found["answers"], expected["greedy"])]
    failed |= answers[0] != answers[1]
    print(f"tokens before answers part: {answers[0]}, {answers[1]}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
