"""What attention to a part of the tokens costs in quality and is predicted to save in time.

    PYTHON scripts/peers/attention.py MODEL.gguf FOLDER [--text tests/models/perplexity.txt] [--tokens 2000]
        [--target m4] [--thane target/release/thane] [--write docs/forms.md]

PYTHON has torch, transformers, gguf and accelerate (`packages-env` of setup.sh). For each option FOLDER gets a package with a
context of 2,048, whose perplexity over the text is measured, and `thane plan` prices the form. The heads that see all
tokens are those whose attention reaches furthest: transformers runs the text, and for each key head the share of
attention on positions that the window leaves out is averaged; the half with the greatest share keeps all. That is a
cheap stand-in for DuoAttention, which learns the heads.
"""

import argparse
import json
import pathlib
import shutil
import subprocess

CONTEXT = 2048
SINKS, WINDOW, POOL = 4, 512, 8
BEGIN, END = "<!-- attention.py: begin -->\n", "<!-- attention.py: end -->\n"


def heads(args, path):
    """Writes the file of retrieval heads: for each layer and key head, whether it keeps all tokens."""
    import torch
    import transformers

    model = pathlib.Path(args.model)
    options = {"gguf_file": model.name, "attn_implementation": "eager"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    network = transformers.AutoModelForCausalLM.from_pretrained(model.parent, **options, dtype=torch.float32)
    ids = tokenizer(pathlib.Path(args.text).read_text(), return_tensors="pt").input_ids[:, : args.tokens]
    with torch.no_grad():
        attentions = network(ids, output_attentions=True, use_cache=False).attentions
    n = ids.shape[1]
    query, key = torch.arange(n)[:, None], torch.arange(n)[None]
    left_out = (key <= query - WINDOW) & (key >= SINKS)
    kv_heads = network.config.num_key_value_heads
    # [layers, key heads]: the mean over the queries that have something left out.
    shares = [(a[0] * left_out).sum(-1)[:, WINDOW + SINKS :].mean(-1) for a in attentions]
    shares = torch.stack([share.reshape(kv_heads, -1).amax(-1) for share in shares])
    least = shares.flatten().median()
    path.write_text("".join("\t".join(f"{int(x >= least)}" for x in row) + "\n" for row in shares))


def thane(args, *command):
    run = subprocess.run([args.thane, *command], capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {run.stderr}")
    return run.stdout


def row(args, name, flags, folder):
    package = folder / "kept.mlpackage"
    shutil.rmtree(package, ignore_errors=True)
    form = ["--context", CONTEXT, "--kv", "explicit", "--lookup", "host", *flags]
    form = [str(flag) for flag in form]
    thane(args, "convert", args.model, "--form", "ane", "--verify", "64", *form, "-o", package)
    text = ["--file", args.text, "--tokens", str(args.tokens), "--json"]
    quality = json.loads(thane(args, "perplexity", str(package), *text))
    mb = sum(f.stat().st_size for f in package.rglob("*") if f.is_file()) / 1e6
    shutil.rmtree(package)
    chosen = json.loads(thane(args, "plan", args.model, "--target", args.target, "--json", *form, "--split", "1"))["chosen"]
    print(name, quality, chosen["decode_ms"], mb, flush=True)
    return f"| {name} | {quality['perplexity']:.2f} | {chosen['decode_ms']:.2f} | {chosen['decode_ops']} | {chosen['on_engine']:.0f} % |\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--text", default="tests/models/perplexity.txt")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--target", default="m4")
    parser.add_argument("--thane", default="target/release/thane")
    parser.add_argument("--write", type=pathlib.Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    retrieval = args.folder / "heads.tsv"
    heads(args, retrieval)
    window = ["--attention-window", WINDOW, "--attention-sinks", SINKS]
    cases = {
        "all tokens": [],
        "all tokens, in tiles of 512 rows": ["--attention-tile", 512],
        f"{SINKS} first and {WINDOW} last": window,
        f"{WINDOW} last": ["--attention-window", WINDOW, "--attention-sinks", 0],
        f"{SINKS} first and {WINDOW} last, older ones by {POOL}": [*window, "--attention-pool", POOL],
        f"half of the heads all, the others {SINKS} first and {WINDOW} last": [*window, "--retrieval-heads", retrieval],
    }
    table = "| attention sees | perplexity | decode ms | ops | on the engine |\n|---|---|---|---|---|\n"
    table += "".join(row(args, name, flags, args.folder) for name, flags in cases.items())
    about = (
        f"{pathlib.Path(args.model).stem.split('.')[0]}, a context of {CONTEXT:,}, predicted for {args.target};"
        f" perplexity of {args.tokens:,}\ntokens of prose (`scripts/peers/attention.py`):\n\n"
    )
    if args.write is None:
        print(about + table)
        return
    page = args.write.read_text()
    before, rest = page.split(BEGIN)
    args.write.write_text(before + BEGIN + "\n" + about + table + "\n" + END + rest.split(END)[1])


main()
