"""Whether `plan`, `audit` and `convert` give one answer for the models of the catalog, on every chip and in every form.

    cargo build --release -p thane-cli && python3 scripts/one_answer.py target/release/thane [CHIP,CHIP..]

Each model that is in the cache is converted once for each form, for all chips at once. Then the verdict, the times and the memory
that `convert` printed, those of `audit` of the checkpoint, those of `audit` of what was written and, where no flag names the
form, those of `plan` must be equal to the last digit. Of embedding models, so must the times of `audit` and `buckets` be. Prints a line
for each comparison, and fails at the end where one failed.

Needs disk for one package of fp16 weights, and some minutes.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

DECODERS = ["smollm2-135m", "gemma3-270m"]
ENCODERS = ["minilm"]
CONTEXT = ["--context", "1024"]
FORMS = [
    [],
    ["--form", "portable"],
    # A divisor is an op where the program looks up tokens. Which one a model needs depends on weights,
    # which only `convert` reads.
    ["--form", "ane", "--kv", "state", "--lookup", "inside", "--residual-divisor", "2"],
    ["--kv", "state", "--contexts", "256", "--block", "64"],
    ["--kv", "explicit", "--head", "host", "--verify", "2,4"],
    ["--lookup", "host-int8", "--head", "top5"],
    ["--kv", "explicit", "--lanes", "2", "--head", "logits"],
    ["--kv", "explicit", "--attention-window", "64"],
    ["--split", "2", "--head", "argmax"],
]
LENGTHS = [32, 128, 256]


def run(thane, *args):
    """What a verb prints as JSON."""
    ran = subprocess.run([thane, *args, "--json", "--quiet"], capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(args)}: exit status {ran.returncode}: {ran.stderr}")
    return json.loads(ran.stdout)


def all_chips(thane):
    """Every chip, as the error for an unknown one lists them."""
    ran = subprocess.run([thane, "audit", "minilm", "--target", "?"], capture_output=True, text=True)
    listed = ran.stderr.split("  chips ")[1].split("  systems ")[0]
    return "".join(listed.split())


def row(of, loaded):
    """What verbs must agree about, on one target."""
    return [of.get(key) for key in ("target", "answer", "verdict", "ane_ops", "ops")] + [loaded]


def of_audit(report):
    rows = []
    for target in report["targets"]:
        own = [m["bytes"] for m in target["memory"] if m["route"] == target["route"]]
        rows.append(row(target, own[0] if own else None))
    return rows


def answers(thane, model, flags, out):
    """Rows by the verb that gave them; what is written into `out` is removed."""
    with tempfile.TemporaryDirectory(dir=out) as folder:
        return rows_of(thane, model, flags, pathlib.Path(folder) / "x.mlpackage")


def rows_of(thane, model, flags, out):
    if "--split" in flags or "--task" in flags:
        out = out.with_suffix("")
    try:
        written = run(thane, "convert", model, *flags, "--force", "-o", str(out))
    except RuntimeError as e:
        # The plan cuts the model into several packages.
        if "-o FOLDER" not in str(e):
            raise
        out = out.with_suffix("")
        written = run(thane, "convert", model, *flags, "--force", "-o", str(out))
    rows = {"convert": [row(a, a["loaded_bytes"]) for a in written["audits"]]}
    rows["audit of the package"] = of_audit(run(thane, "audit", str(out)))
    if "--task" not in flags:
        rows["audit of the checkpoint"] = of_audit(run(thane, "audit", model, *flags))
    if "--form" not in flags and "--task" not in flags:
        planned = run(thane, "plan", model, *flags)["targets"]
        rows["plan"] = [row({**t["chosen"], "target": t["target"]}, t["chosen"]["loaded_bytes"]) for t in planned]
    return rows


def compare(name, rows):
    """Whether all rows are equal; says so."""
    first, expected = next(iter(rows.items()))
    wrong = []
    for verb, found in rows.items():
        pairs = [(e, f) for e, f in zip(expected, found) if e != f]
        if len(found) != len(expected) or pairs:
            wrong.append(f"{verb} differs from {first}: {pairs[:1] or [len(found), len(expected)]}")
    print(f"{'differs' if wrong else 'equal':8} {name}: {len(expected)} targets", *wrong, sep="\n    " if wrong else "", flush=True)
    return not wrong


def lengths_agree(thane, model, chip, folder):
    """Whether `buckets` and `audit` give one mean time for a text of each length."""
    counts = folder / "counts.json"
    counts.write_text(json.dumps({str(n): 1 for n in LENGTHS}))
    plans = run(thane, "buckets", model, "--target", chip, "--histogram", str(counts), "--align", "32")
    buckets = ",".join(map(str, LENGTHS))
    report = run(thane, "audit", model, "--target", chip, "--buckets", buckets, "--no-flexible")
    times = [f["latency"]["ms"] for f in report["targets"][0]["functions"]]
    mean, found = sum(times) / len(times), plans["unlimited"]["ms_per_text"]
    agree = abs(mean - found) <= 1e-12 * mean
    print(f"{'equal' if agree else 'differs':8} {model}: buckets {found} ms and audit {mean} ms a text on {chip}", flush=True)
    return agree


def main():
    thane = sys.argv[1]
    chips = sys.argv[2] if len(sys.argv) > 2 else all_chips(thane)
    held = True
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for model in DECODERS:
            for flags in FORMS:
                flags = ["--target", chips, *CONTEXT, *flags]
                name = " ".join([model, *flags[2:]])
                held &= compare(name, answers(thane, model, flags, folder))
        for model in ENCODERS:
            flags = ["--target", chips, "--task", "embed"]
            held &= compare(model, answers(thane, model, flags, folder))
            for chip in chips.split(","):
                held &= lengths_agree(thane, model, chip, folder)
    sys.exit(not held)


main()
