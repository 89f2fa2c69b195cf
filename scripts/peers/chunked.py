"""Decoders of their full sizes in the form that `thane convert --target` chooses: whether coremltools loads each
package, and what the audit finds.

    PYTHON scripts/peers/chunked.py FOLDER [--only NAME,..] [--target a19] [--audit m4,a19] [--context 2048]
        [--more NAME:FLAGS ..] [--thane target/release/thane] [--write docs/forms.md]

For each model, one at a time, FOLDER gets a checkpoint with random weights (full_size.py; that of Gemma 4 has zeros,
as a hole in the file, to save 9 GB of disk) and what `thane convert --target` writes. coremltools builds each program
anew, which infers each type and reads each constant (tests/oracle/check_packages.py). `thane audit` must find no error
for each chip, and gives the ops and bytes of the largest program. PYTHON has torch, transformers and coremltools
(`packages-env` of setup.sh). Each --more is another row, of a model with flags of convert: by default Qwen2.5 for
direct access to the engine, for which the audit judges it then, LFM2 and Qwen3.5 with lanes, and Gemma 4 in the
chunks that CoreML-LLM ships or tried. Needs 12 GB of disk and 12 GB of memory for Gemma 4.
"""

import argparse
import json
import pathlib
import shutil
import subprocess

import full_size
import planned

BEGIN, END = "<!-- chunked.py: begin -->\n", "<!-- chunked.py: end -->\n"
ZEROS = {"Gemma-4-E2B"}


def thane(args, *command):
    run = subprocess.run([args.thane, *map(str, command)], capture_output=True, text=True)
    if run.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(map(str, command))}: {run.stderr}")
    return run.stdout


LANES = "--kv explicit --lanes 32"
MORE = ["Qwen2.5-0.5B:--direct --split 3", f"LFM2-350M:{LANES}", f"Qwen3.5-0.8B:{LANES}"] + [
    f"Gemma-4-E2B:--split {split}"
    for split in ("0-8,8-15,15-25,25-35", "0-8,8-25,25-35", "0-15,15-35", "0-35")
]


def checked(args, name, flags=()):
    """The row of a model that is converted with these flags."""
    model, out = args.folder / name, args.folder / f"{name}-chunks"
    for path in (model, out):
        shutil.rmtree(path, ignore_errors=True)
    if name in ZEROS:
        planned.make(name, model)
    else:
        full_size.in_child(full_size.make, name, model)
    form = ["--target", args.target, "--context", args.context]
    form += flags
    direct = [flag for flag in flags if flag == "--direct"]
    chosen = json.loads(thane(args, "plan", model, "--json", *form))["chosen"]
    if chosen["programs"] == 1:
        out = out.with_suffix(".mlpackage")
        shutil.rmtree(out, ignore_errors=True)
    thane(args, "convert", "--quiet", model, *form, "-o", out)
    shutil.rmtree(model)
    packages = sorted(out.glob("*.mlpackage")) or [out]
    values = sum(full_size.check(package) for package in packages)
    gigabytes = max(sum(f.stat().st_size for f in p.rglob("*.bin")) for p in packages) / 1e9
    errors, ops, on_engine = [], 0, []
    for chip in args.audit.split(","):
        report = json.loads(thane(args, "audit", out, "--target", chip, "--json", *direct))
        (target,) = report["targets"]
        errors.append(target["errors"])
        ops = max(function["ops"] for function in target["functions"])
        on_engine.append(100 * target["ane_ops"] / target["ops"])
    shutil.rmtree(out)
    chips = ", ".join(f"{chip} {n}" for chip, n in zip(args.audit.split(","), errors))
    row = (
        f"| {' '.join([name, *flags])} | {len(packages)} | {gigabytes:.2f} | {ops} | {values} | {chips} |"
        f" {min(on_engine):.1f} % |\n"
    )
    print(row, end="", flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default=",".join(full_size.MODELS))
    parser.add_argument("--target", default="a19")
    parser.add_argument("--audit", default="m4,a19")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--more", nargs="*", default=MORE)
    parser.add_argument("--thane", default="target/release/thane")
    parser.add_argument("--write", type=pathlib.Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    table = (
        "| model | packages | GB of the largest | ops of the largest function | values that coremltools checks |"
        " errors of the audit | on the engine, at least |\n|---|---|---|---|---|---|---|\n"
    )
    table += "".join(checked(args, name) for name in args.only.split(",") if name)
    for name, _, flags in (more.partition(":") for more in args.more):
        table += checked(args, name, flags.split())
    about = (
        f"Packages for {args.target} at a context of {args.context:,}, with all functions, which coremltools loads\n"
        "(`scripts/peers/chunked.py`):\n\n")
    if args.write is None:
        return
    page = args.write.read_text()
    before, rest = page.split(BEGIN)
    args.write.write_text(before + BEGIN + "\n" + about + table + "\n" + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
