#!/usr/bin/env python3
"""How far the engine form of each family drifts from f32, layer by layer, in the Neural Engine's numbers.

    PYTHON scripts/drift.py THANE [--before OTHER] [--real FOLDER] [--only NAME,..] [--write docs/drift.md]

PYTHON has numpy. Each tiny checkpoint of tests/models/tiny, and SmolLM2 of FOLDER (target/models of scripts/models.sh),
is converted by THANE, and by OTHER, a build of an earlier commit. THANE runs `prefill` of both packages by
`predict --numerics ane`, which compares with f32 op by op.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import numpy

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- drift.py: begin -->\n", "<!-- drift.py: end -->\n"
TOKENS = 16
HEAD = "before | before, exact activations | now | now, subnormals flushed"
REAL = "SmolLM2-135M-Instruct.Q4_1.gguf"


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip().replace("\n", " "))
    return done.stdout


def layers(args, binary, model, ids, *effects):
    """Drift and largest magnitude behind each layer, of the form that `binary` writes."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        package = folder / "model.mlpackage"
        form = ["--form", "ane", "--context", "64", "--block", str(TOKENS)]
        try:
            run(binary, "convert", model, *form, "-o", package)
        except ValueError as fault:
            if "explicit cache" not in str(fault):
                raise
            run(binary, "convert", model, *form, "--kv", "explicit", "-o", package)
        numpy.save(folder / "ids.npy", ids.reshape(1, -1).astype(numpy.int32))
        given = ["--function", "prefill", "--input", f"input_ids={folder / 'ids.npy'}"]
        numerics = ["--numerics", "ane", "--tolerance", "1e9", "--json", "-o", folder / "out"]
        effects = [part for effect in effects for part in ("--effect", effect)]
        found = json.loads(run(args.thane, "predict", package, *given, *numerics, *effects))
    return [(layer["drift"], layer["largest"]) for layer in found["ane"]["layers"]]


def cell(found):
    return " ".join(f"{drift:.1e}" for drift, _ in found) if found else "-"


def columns(args, model, ids):
    """Drifts of the form before, of the same without tables of activations, and of the form now, also flushed."""
    now, flushed = layers(args, args.thane, model, ids), layers(args, args.thane, model, ids, "flush-subnormals=on")
    if not args.before:
        return [None, None, now, flushed]
    before = layers(args, args.before, model, ids)
    exact = layers(args, args.before, model, ids, "silu-table=off", "sigmoid-table=off", "softplus-overflow=off")
    return [before, exact, now, flushed]


def tiny(args):
    yield f"| family | {HEAD} |\n|---|---|---|---|---|\n"
    for model in sorted((ROOT / "tests/models/tiny").iterdir()):
        if args.only and model.name not in args.only.split(","):
            continue
        ids = numpy.random.default_rng(7).integers(3, 60, TOKENS)
        try:
            cells = map(cell, columns(args, model, ids))
        except ValueError as fault:
            print(f"{model.name}: {fault}")
            continue
        yield f"| {model.name} | {' | '.join(cells)} |\n"


def real(args):
    model = args.real / REAL
    goldens = json.loads((ROOT / "tests/models/smollm2-135m.json").read_text())
    ids = numpy.array(goldens["prompts"][0]["ids"][:TOKENS])
    found = columns(args, model, ids)
    yield f"\nSmolLM2-135M:\n\n| layer | largest | {HEAD} |\n|---|---|---|---|---|---|\n"
    for i, (_, largest) in enumerate(found[2]):
        drifts = " | ".join(cell(column and column[i : i + 1]) for column in found)
        yield f"| {i} | {largest:.1f} | {drifts} |\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("thane", type=pathlib.Path)
    parser.add_argument("--before", type=pathlib.Path)
    parser.add_argument("--real", type=pathlib.Path)
    parser.add_argument("--only")
    parser.add_argument("--write", type=pathlib.Path)
    args = parser.parse_args()
    lines = list(tiny(args)) + (list(real(args)) if args.real else [])
    table = "".join(lines)
    if not args.write:
        print(table)
        return
    page = args.write.read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    args.write.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


main()
