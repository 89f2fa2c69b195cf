"""Makes tests/models/<name>.{json,bin}: the reference answers of the two real GGUF files to tests/models/prompts.json.

    python3 tests/oracle/make_goldens.py --models DIR [NAME ...]

For each prompt: the token ids, the float32 logits at the last position (a fixed random subset of the vocabulary, the
top 64, and the norm of the whole vector), the 64 greedy tokens that follow (an end token does not stop them), the
runner-up of each step and the gap to it. The layout is in tests/models/README.md. The greedy run uses the KV cache;
every step is computed again in one pass without a cache, and the two must choose the same tokens.
CPU only, one thread, a few minutes; all seeds are literals.
"""

import argparse
import json
import sys

from golden import MODELS, Floats, need, write_json

need("torch", "transformers", "gguf", "numpy", "tokenizers", "sentencepiece", "protobuf", "jinja2")

import numpy
import torch
import transformers

from reference import FILES, Tokenizer, load_model

GREEDY_LEN = 64
TOP_LEN = 64
SUBSET_LEN = 4096
SUBSET_SEED = 20


def greedy(model, ids):
    """Logits of the last position and of the `GREEDY_LEN - 1` greedy steps after it // [GREEDY_LEN, vocab]"""
    rows, tokens, cache, step = [], [], None, ids
    for _ in range(GREEDY_LEN):
        out = model(torch.tensor([step]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        rows.append(out.logits[0, -1])
        tokens.append(int(rows[-1].argmax()))
        step = tokens[-1:]
    return torch.stack(rows), tokens


def answer(model, ids, subset, floats):
    rows, tokens = greedy(model, ids)
    again = model(torch.tensor([ids + tokens[:-1]]), use_cache=False, logits_to_keep=GREEDY_LEN).logits[0]
    if again.argmax(-1).tolist() != tokens:
        sys.exit("the cached and the uncached run choose different tokens: a tie; change the prompt")
    best = rows.topk(2)
    last = rows[0]
    top = last.topk(TOP_LEN)
    noise = float((again - rows).norm() / rows.norm())
    return {
        "ids": ids,
        "logits": {
            "norm": float(last.double().norm()),
            "subset": floats.add(last[subset].numpy()),
            "top_ids": top.indices.tolist(),
            "top": floats.add(top.values.numpy()),
        },
        "greedy": tokens,
        "runner_up": best.indices[:, 1].tolist(),
        "gaps": floats.add((best.values[:, 0] - best.values[:, 1]).numpy()),
        "cache_noise": noise,
    }


def encode(tokenizer, prompt):
    """The prompt's text and ids: rendered by the template where there are messages and a template."""
    rendered = tokenizer.render(prompt["messages"]) if "messages" in prompt else None
    head = {"name": prompt["name"], "chat": rendered is not None, "text": rendered or prompt["text"]}
    return head, tokenizer.encode(head["text"])


def make(models, name):
    tokenizer = Tokenizer(models, name)
    model = load_model(models, name)
    vocabulary = model.config.vocab_size
    subset = numpy.sort(numpy.random.RandomState(SUBSET_SEED).permutation(vocabulary)[:SUBSET_LEN])
    floats, prompts = Floats(), []
    for prompt in json.loads((MODELS / "prompts.json").read_text(encoding="utf-8")):
        head, ids = encode(tokenizer, prompt)
        with torch.no_grad():
            prompts.append(head | answer(model, ids, torch.from_numpy(subset), floats))
        smallest = float(numpy.frombuffer(floats.parts[-1], "<f4").min())
        print(f"{name} {head['name']}: {len(ids)} tokens, smallest gap {smallest:.4f}, "
              f"cache noise {prompts[-1]['cache_noise']:.1e}", flush=True)
    floats.write(MODELS / f"{name}.bin")
    write_json(MODELS / f"{name}.json", {
        "made_by": "tests/oracle/make_goldens.py", "file": FILES[name],
        "transformers": transformers.__version__, "torch": torch.__version__,
        "vocabulary": vocabulary, "subset_ids": subset.tolist(), "prompts": prompts,
    })


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
