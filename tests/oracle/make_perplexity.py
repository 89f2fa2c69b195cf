"""Makes tests/models/<name>.perplexity.{json,bin}: the reference perplexity of tests/models/perplexity.txt.

    python3 tests/oracle/make_perplexity.py --models DIR [NAME ...]

The first 2,000 ids (Gemma's begin with <bos>) go through the model in one pass; position p is scored by the
negative logarithm of the probability that positions 0..p-1 give it, for p = 1..1999. Perplexity is exp of the mean.
CPU only, one thread, about a minute.
"""

import argparse
import sys

from golden import MODELS, Floats, need, write_json

need("torch", "transformers", "gguf", "numpy", "tokenizers", "sentencepiece", "protobuf", "jinja2")

import torch
import transformers

from reference import FILES, Tokenizer, load_model

CONTEXT_LEN = 2000
# Rows of logits at a time: 2,000 rows of Gemma's 262,144 would be 2 GB.
CHUNK_LEN = 100


def negative_log_likelihoods(model, ids):
    """One value for each of the positions 1.. // [len - 1]"""
    hidden = model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
    targets = torch.tensor(ids[1:])
    parts = []
    for start in range(0, len(targets), CHUNK_LEN):
        chunk = slice(start, min(start + CHUNK_LEN, len(targets)))
        logits = model.lm_head(hidden[chunk])
        parts.append(torch.nn.functional.cross_entropy(logits, targets[chunk], reduction="none"))
    return torch.cat(parts)


def make(models, name):
    text = (MODELS / "perplexity.txt").read_text(encoding="utf-8")
    ids = Tokenizer(models, name).encode(text)
    if len(ids) < CONTEXT_LEN:
        sys.exit(f"{name}: the text has {len(ids)} tokens only")
    model = load_model(models, name)
    with torch.no_grad():
        scores = negative_log_likelihoods(model, ids[:CONTEXT_LEN])
    mean = scores.double().mean()
    floats = Floats()
    place = floats.add(scores.numpy())
    floats.write(MODELS / f"{name}.perplexity.bin")
    write_json(MODELS / f"{name}.perplexity.json", {
        "made_by": "tests/oracle/make_perplexity.py", "file": FILES[name], "text": "perplexity.txt",
        "transformers": transformers.__version__, "torch": torch.__version__,
        "context_len": CONTEXT_LEN, "mean_nll": float(mean), "perplexity": float(mean.exp()),
        "nll": place, "ids": ids,
    })
    print(f"{name}: {len(ids)} tokens, perplexity over the first {CONTEXT_LEN} {float(mean.exp()):.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", required=True, metavar="DIR", help="the folder with the GGUF files")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FILES)}; all when none is given")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.names or FILES:
        if name not in FILES:
            parser.error(f"no such model: {name}")
        make(arguments.models, name)


if __name__ == "__main__":
    main()
