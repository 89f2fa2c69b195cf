"""The chunks of CoreML-LLM's Gemma 4 E2B at their full size, priced beside ours.

    PYTHON scripts/peers/published.py FOLDER [--context 2048] [--targets m4,a19] [--chunks 4,3,2,1]
        [--thane target/release/thane] [--write docs/forms.md]

Each chunk is rebuilt from the published contract (inputs, outputs, layers of a chunk, caches that are shifted or
written by a mask, keys repeated for each head, argmax inside; tests/oracle/bundle_coreml_llm.py) with random fp16
weights, by coremltools, one after the other. Matrices are `linear` ops, where the project has convolutions of size 1.
The head of the last chunk is a package by itself, since both together take more memory than 16 GB to convert.
`thane audit` prices each chunk, and `thane plan` the form that it would choose for the same model, and the same chunks.
FOLDER has the checkpoint of planned.py, and gets a package, which is deleted. PYTHON has torch, transformers and
coremltools (`packages-env` of setup.sh). Needs 16 GB of memory and some minutes.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys

import torch
import torch.nn.functional as F
import transformers

from full_size import MODELS, in_child

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent / "tests/oracle"))
import bundle_coreml_llm as published  # noqa: E402
from bundle_case import HALF, INT, Layer, package, rms_norm  # noqa: E402

NAME = "Gemma-4-E2B"
# By their number: the default for phones until 2026, the one since, and two that are published as too slow or too large.
LAYOUTS = {
    4: [(0, 8), (8, 15), (15, 25), (25, 35)],
    3: [(0, 8), (8, 25), (25, 35)],
    2: [(0, 15), (15, 35)],
    1: [(0, 35)],
}
BEGIN, END = "<!-- published.py: begin -->\n", "<!-- published.py: end -->\n"


def weights(config, begin, end):
    """Random tensors of the layers `begin` to `end`, and what is beside them in the first chunk."""
    with torch.device("meta"):
        model = transformers.Gemma4ForCausalLM(config)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    own = {}
    for name, shape in shapes.items():
        layer = name.removeprefix("model.layers.").split(".")[0]
        wanted = begin <= int(layer) < end if name.startswith("model.layers.") else (
            begin == 0 and "per_layer_" in name and "embed_tokens" not in name)
        if wanted:
            own[name] = torch.randn(shape) * (0.02 if len(shape) > 1 else 0.1) + (1.0 if len(shape) < 2 else 0.0)
    return own


def head(config, path):
    """Norm, logits with their soft cap, and the best token."""
    hidden, vocab, cap = config.hidden_size, config.vocab_size, config.final_logit_softcapping
    matrix, norm = torch.randn(vocab, hidden) * 0.02, torch.randn(hidden) * 0.1 + 1

    def forward(_, x):
        x = rms_norm(x, norm, config.rms_norm_eps)
        logits = torch.tanh(F.linear(x, matrix).view(1, vocab) / cap) * cap
        return logits.argmax(-1).to(torch.int32), logits.max(-1).values, x

    outputs = [("token_id", INT), ("token_logit", HALF), ("hidden_states_out", HALF)]
    package(Layer(forward), [("hidden_states", (1, 1, hidden), HALF)], outputs, path)


def thane(args, *command):
    run = subprocess.run([args.thane, *map(str, command)], capture_output=True, text=True)
    try:
        return json.loads(run.stdout)
    except json.JSONDecodeError:
        raise SystemExit(f"{' '.join(map(str, command))}: {run.stderr}") from None


def price(args, path, target):
    """Milliseconds, ops, and ops on the engine of the function `main`."""
    report = thane(args, "audit", path, "--target", target, "--json")
    (function,) = report["targets"][0]["functions"]
    return function["latency"]["ms"], function["ops"], function["ane_ops"]


def build(context, begin, end, path):
    """Writes the package of a chunk; `end` is None for the head."""
    kind, sizes = MODELS[NAME]
    config = getattr(transformers, kind)(**sizes)
    if end is None:
        return head(config, path)
    published.N_KV, published.HEAD_DIM, published.WIDE = (
        sizes["num_key_value_heads"], sizes["head_dim"], sizes["global_head_dim"])
    chunk = published.Chunk(weights(config, begin, end), config, context, begin, end)
    chunk.is_last = False
    package(Layer(chunk), chunk.inputs(), chunk.outputs(), path)


def rebuilt(args, n_layers, targets):
    """For each chunk and target: milliseconds, ops and ops on the engine."""
    found = {}
    path = args.folder / "chunk.mlpackage"
    for begin, end in sorted({chunk for n in args.chunks for chunk in LAYOUTS[n]}) + [(n_layers, None)]:
        # Another process for each, whose memory goes with it.
        in_child(build, args.context, begin, end, path)
        for target in targets:
            found[begin, end, target] = price(args, path, target)
            print(target, begin, end, found[begin, end, target], flush=True)
        shutil.rmtree(path)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--targets", default="m4,a19")
    parser.add_argument(
        "--chunks", type=lambda text: [int(n) for n in text.split(",")], default=list(LAYOUTS), help="4,3,2,1")
    parser.add_argument("--thane", default="target/release/thane")
    parser.add_argument("--write", type=pathlib.Path)
    args = parser.parse_args()
    targets = args.targets.split(",")
    table = "| chip | program | decode ms | ops | on the engine |\n|---|---|---|---|---|\n"
    n_layers = MODELS[NAME][1]["num_hidden_layers"]
    found = rebuilt(args, n_layers, targets)

    def ours(target, name, *split):
        plan = thane(
            args, "plan", args.folder / NAME, "--target", target, "--json", "--context", args.context, *split)["chosen"]
        n = plan["programs"]
        return (
            f"| {target} | Thane, {name} ({n} program{'s' * (n > 1)}) | {plan['decode_ms']:.2f} | {plan['decode_ops']} |"
            f" {plan['on_engine']:.1f} % |\n")

    for target in targets:
        for n in args.chunks:
            parts = [found[begin, end, target] for begin, end in [*LAYOUTS[n], (n_layers, None)]]
            ms, ops, on_engine = (sum(column) for column in zip(*parts))
            table += f"| {target} | CoreML-LLM, chunks: {n} | {ms:.2f} | {ops} | {100 * on_engine / ops:.1f} % |\n"
            ranges = ",".join(f"{begin}-{end}" for begin, end in LAYOUTS[n])
            table += ours(target, "the same chunks", "--split", ranges)
        table += ours(target, "as planned")
    about = (
        f"Gemma 4 E2B in fp16 at a context of {args.context:,}, rebuilt from CoreML-LLM's published contract and"
        " priced\nby the same model (`scripts/peers/published.py`):\n\n")
    if args.write is None:
        print(about + table)
        return
    page = args.write.read_text()
    before, rest = page.split(BEGIN)
    args.write.write_text(before + BEGIN + "\n" + about + table + "\n" + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
