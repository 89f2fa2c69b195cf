"""Forms that `thane plan` chooses for decoders of their full sizes, with what they are predicted to take.

    PYTHON scripts/peers/planned.py FOLDER [--only NAME,..] [--targets m4,a19] [--contexts 512,1024,2048,4096]
        [--thane target/release/thane] [--write docs/forms.md]

PYTHON has torch and transformers (`packages-env` of setup.sh). FOLDER gets a checkpoint of each model, of which
only the headers are real: the weights are a hole in the file, since no weight is read to choose a form. The table
is printed, or written between the markers of a page.
"""

import argparse
import json
import pathlib
import struct
import subprocess
import sys

from full_size import MODELS

SMOLLM2 = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192, "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
}  # fmt: skip
ALL = {"SmolLM2-135M": ("LlamaConfig", SMOLLM2)} | {name: MODELS[name] for name in MODELS}
BEGIN, END = "<!-- planned.py: begin -->\n", "<!-- planned.py: end -->\n"
HEAD = (
    "| model | chip | context | form | decode ms, before | decode ms | tokens/s | times the floor | ops a layer | on the engine | GB loaded |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|\n"
)


def make(name, folder):
    """config.json, and model.safetensors with a hole instead of weights."""
    import torch
    import transformers

    kind, sizes = ALL[name]
    config = getattr(transformers, kind)(**sizes, dtype="float16")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    folder.mkdir(parents=True, exist_ok=True)
    config.to_json_file(folder / "config.json")
    header, at = {}, 0
    for key, value in model.state_dict().items():
        if key == "lm_head.weight" and sizes["tie_word_embeddings"]:
            continue
        size = 2 * value.numel()
        header[key] = {"dtype": "F16", "shape": list(value.shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + at)


def thane(args, verb, model, target, context, *more):
    command = [args.thane, verb, model, "--target", target, "--context", str(context), "--json", *more]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        # Without the name of the file, which comes first.
        raise ValueError("refused: " + run.stderr.strip().replace("\n", " ").split("because: ")[-1])
    return json.loads(run.stdout)


def plan(*args):
    return thane(*args)["targets"][0]["chosen"]


def short(chosen):
    """The form as the table of `thane plan` has it."""
    head = {"logits": [], "host": ["cpu"]}.get(chosen["head"], [chosen["head"]])
    contexts = [f"+{context}" for context in chosen["contexts"]]
    programs = [f"{chosen['programs']} programs"] if chosen["programs"] > 1 else []
    return ", ".join([chosen["kv"], chosen["lookup"], f"block {chosen['block']}", *head, *contexts, *programs])


def answer_ops(*args):
    """Ops of a call that takes one token with a full cache, and those of them on the engine."""
    chains = thane(*args)["chains"]
    call = max((chain for chain in chains if chain["tokens"] == 1), key=lambda chain: chain["to"])
    return call["ops"], call["ane_ops"]


def rows(args, name):
    model = args.folder / name
    make(name, model)
    n_layers = ALL[name][1]["num_hidden_layers"]
    for target in args.targets.split(","):
        for context in map(int, args.contexts.split(",")):
            try:
                chosen = plan(args, "plan", model, target, context)
            except ValueError as fault:
                yield f"| {name} | {target} | {context} | {fault} | | | | | | | |\n"
                break
            try:
                more = ["--kv", "state", "--lookup", "inside", "--contexts", str(context), "--split", "1",
                        "--head", "logits"]
                before = f"{plan(args, 'plan', model, target, context, *more)['decode_ms']:.2f}"
            except ValueError:
                before = "-"
            ms, floor = chosen["decode_ms"], chosen["floor_ms"]
            ops, ane_ops = answer_ops(args, "audit", model, target, context)
            yield (
                f"| {name} | {target} | {context} | {short(chosen)} | {before} | {ms:.2f} | {1e3 / ms:.0f}"
                f" | {ms / floor:.2f} | {ops / n_layers:.0f} | {100 * ane_ops / ops:.0f} %"
                f" | {chosen['loaded_bytes'] / 1e9:.2f} |\n"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default=",".join(ALL))
    parser.add_argument("--targets", default="m4,a19")
    parser.add_argument("--contexts", default="512,1024,2048,4096")
    parser.add_argument("--thane", default="target/release/thane")
    parser.add_argument("--write", type=pathlib.Path)
    args = parser.parse_args()
    table = HEAD
    for name in args.only.split(","):
        for row in rows(args, name):
            print(row, end="", file=sys.stderr, flush=True)
            table += row
    if not args.write:
        return print(table, end="")
    before, _, rest = args.write.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    args.write.write_text(before + BEGIN + "\n" + table + "\n" + END + after)


if __name__ == "__main__":
    main()
