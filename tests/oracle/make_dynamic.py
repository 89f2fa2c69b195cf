"""Makes tests/models/dynamic/<name>.{json,bin}: logits of transformers beyond the length that a model was trained for.

    python3 tests/oracle/make_dynamic.py

The checkpoints are those of tests/models/tiny, with a configuration that says `dynamic` and a length of training that is
shorter than most texts. transformers raises the base of the rotary frequencies by the length of a text that it computes in one
pass. A program has one base, that of its context, so the texts here are compared in programs whose context is their length.
The longest text has the length of training times the factor: there vLLM has the same base, for texts of all lengths.

A text is written only if the unscaled base would give other logits, or, up to the length of training, the same.
Needs torch, transformers, numpy.
"""

import json
import sys

from golden import MODELS, Floats, need, write_json

need("torch", "transformers", "numpy")

import torch
import transformers

TRAINED, FACTOR = 24, 2.0
LENGTHS = (TRAINED, TRAINED + 1, int(TRAINED * FACTOR))
DYNAMIC = {"rope_type": "dynamic", "factor": FACTOR}
# As in make_tiny.py.
BITES = 3e-3
SLIDING, FULL = "sliding_attention", "full_attention"
CASES = {
    "qwen2-dynamic": {},
    # Half of each head.
    "glm4": {"rope_scaling": DYNAMIC},
    # Full-attention layers alone.
    "gemma3": {
        "rope_parameters": {SLIDING: {"rope_type": "default", "rope_theta": 300.0}, FULL: DYNAMIC | {"rope_theta": 900.0}},
    },
}


def read(name, config):
    """The model, with some keys of its configuration replaced."""
    path = MODELS / "tiny" / name
    keys = json.loads((path / "config.json").read_text()) | config
    config = transformers.AutoConfig.for_model(**keys)
    kind = {"attn_implementation": "eager", "dtype": torch.float32}
    return transformers.AutoModelForCausalLM.from_pretrained(path, config=config, **kind).eval()


def logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def main():
    folder = MODELS / "dynamic"
    folder.mkdir(exist_ok=True)
    for name, changes in CASES.items():
        config = {"max_position_embeddings": TRAINED} | changes
        golden = json.loads((MODELS / "tiny" / name / "golden.json").read_text())
        tokens = max((s["ids"] for s in golden["sequences"]), key=len)
        floats, rows = Floats(), []
        for n in LENGTHS:
            # A model that was used keeps the base of its longest text.
            found = logits(read(name, config), tokens[:n])
            plain = logits(read(name, config | {"max_position_embeddings": n}), tokens[:n])
            moved = float((found - plain).norm() / plain.norm())
            if (moved != 0) if n <= TRAINED else (moved < BITES / 10):
                sys.exit(f"{name}: the length of {n} tokens moves the logits by {moved:.1e}")
            print(f"{name}: {n} tokens, moved by {moved:.1e}")
            rows.append({"ids": tokens[:n], "logits": floats.add(found.numpy())})
        write_json(folder / f"{name}.json", {"checkpoint": name, "config": config, "sequences": rows})
        floats.write(folder / f"{name}.bin")


main()
