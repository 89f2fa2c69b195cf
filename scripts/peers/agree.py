"""Says whether Thane and llama.cpp (or ik_llama.cpp) compute the same of a GGUF file: greedy answers, token by token.

    PEER/bin/python scripts/peers/agree.py FILE.gguf.. [--thane target/release/thane] [--numerics fast] [--tokens 24] [--tolerance 0.25]

PEER is an environment of setup.sh. Thane answers some prompts; the peer must make the same tokens of each prompt, and give each token
of Thane's answer the largest logit behind those before, or one that is less by no more than `--tolerance` standard deviations of
its logits: both round activations to 8 bits, each in its own way, so that close ones may change places. The largest of 150,000
logits that have nothing to do with each other is 4 deviations above their mean, so a wrong answer is told from a close one. Prints a JSON
line for each file; ends with 1 where one does not agree.
"""

import argparse
import json
import subprocess
import sys

from llama import PEER, Model, api

PROMPTS = [
    "The sea was calm and",
    "for i in range(10):\n    print(",
    "Paris, London, Rome and 1 2 3 4 5 6 7 8 9 are",
    "Once upon a time there was a river that ran under the old stone bridge, slowly, because every night the wind came from "
    "the sea and the light of the house went out. Nobody knew why, and nobody asked until",
]


def tokens_of(model, text):
    data = text.encode()
    found = (api.llama_token * (len(data) + 8))()
    # The older form asks the model, not its vocabulary.
    vocab = model.model if PEER == "ik_llama.cpp" else api.llama_model_get_vocab(model.model)
    count = api.llama_tokenize(vocab, data, len(data), found, len(found), True, False)
    return list(found[:count])


def gaps_of(model, prompt, answer):
    """How far the logit of each token of the answer is below the largest, in standard deviations of the logits."""
    model.clear()
    ids = prompt + answer[:-1]
    wanted = set(range(len(prompt) - 1, len(ids)))
    model.run([(token, i, 0) for i, token in enumerate(ids)], wanted)
    rows = [model.logits(i) for i in sorted(wanted)]
    return [float((row.max() - row[token]) / row.std()) for row, token in zip(rows, answer)]


def compare(args, file):
    model = Model(file, args.threads, 512, 1)
    gaps, faults = [], []
    for text in PROMPTS:
        command = [args.thane, "run", "--raw", "--json", "--numerics", args.numerics, "--max-tokens", str(args.tokens), file, text]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            faults.append(f"thane: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
            continue
        said = json.loads(done.stdout)
        if (theirs := tokens_of(model, text)) != said["prompt_tokens"]:
            faults.append(f"{text[:20]!r} is {theirs[:8]} for {PEER}, {said['prompt_tokens'][:8]} for Thane")
        elif said["tokens"]:
            gaps += gaps_of(model, said["prompt_tokens"], said["tokens"])
    if not gaps:
        faults.append("no token to compare")
    over = [gap for gap in gaps if not gap <= args.tolerance]
    row = {"file": file, "peer": PEER, "numerics": args.numerics, "tokens": len(gaps), "likeliest": sum(gap == 0 for gap in gaps)}
    row |= {"largest_gap": max(gaps, default=None), "over_tolerance": len(over), "faults": faults}
    print(json.dumps(row), flush=True)
    return not over and not faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--thane", default="target/release/thane")
    parser.add_argument("--numerics", default="fast")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--tolerance", type=float, default=0.25)
    args = parser.parse_args()
    # Each file, also behind one that does not agree.
    if not all([compare(args, file) for file in args.files]):
        sys.exit(1)


if __name__ == "__main__":
    main()
