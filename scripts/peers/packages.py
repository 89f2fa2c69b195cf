"""Core ML packages: `thane bench predict` beside ONNX Runtime on the same torch modules, in turn.

    python3 scripts/peers/packages.py PEERS [--folder FOLDER] [--only PATTERN,..] [--threads 1,2]
        [--rounds 3] [--out ROWS.jsonl] [--thane target/release/thane] [--python PYTHON]
    python3 scripts/peers/packages.py PEERS --slow-ops [--folder FOLDER] [--only PATTERN,..]
    python3 scripts/peers/packages.py --read ROWS.jsonl..

PEERS is the folder of setup.sh; models are made once in FOLDER, by default PEERS/packages
(package_models.py, with random weights: 9 GB). A row is MODEL/FORM/BATCH/THREADS, and `--only`
selects rows by such names: `mobilenet_v2/*`, `*/fp16/1/*`. `--list` prints them; `--make` only makes
the models. `--slow-ops` compares nothing: it fails where ops of one kind that stay below a tenth of the
peak rates of the machine take over 1 % of the time (`bench predict --profile`), but for ops of a few
microseconds each: to run any op behind one that has filled the caches takes as long.

For fp32 and fp16, the other program is ONNX Runtime on the ONNX file that torch.onnx exports of the
same module. ONNX Runtime computes in fp32 in both: its CPU provider has few fp16 kernels, so for fp16
the file stores the weights in fp16 and casts them. The other of a compressed package is Thane on the
fp16 package. All programs read the same inputs. The decoder has its caches as states in the package,
and as inputs and outputs in the ONNX file.

Before a row is timed, the outputs of both programs are compared with those of torch in fp32; a row
whose relative error is above the bound of its form is said and not timed. A ratio above 1 says that
Thane is faster. First is milliseconds from the start of loading to the first result, behind the start
of Python, with the files in the page cache. Memory is the most that a process held, mapped weights
included, as the system counted it; that of ONNX Runtime has Python in it (`baseline_mib`).
"""

import argparse
import fnmatch
import json
import pathlib
import sys
import tempfile

import measure
import rows
import table

HERE = pathlib.Path(__file__).parent
MODELS = ["mobilenet_v2", "resnet50", "distilbert", "siglip", "whisper_tiny", "lstm", "unet_block", "decoder"]
# Forms of one model of convolutions and one of products, compressed at batch 1.
COMPRESSED = {"mobilenet_v2": ["lut4", "lut6", "int8", "int4"], "distilbert": ["lut4", "lut6", "int8", "int4"]}
BATCHES = (1, 16)
GOALS = {"fp32": 0.7, "fp16": 0.7}
COMPRESSED_GOAL = 1.0
# What any op may take.
SMALL_OP_MS = 0.005
# Largest relative error to torch. Compressed weights differ from torch's; they are compared with the
# package itself in f32, so the bound is on the numerics that are timed.
BOUNDS = {"fp32": 1e-3, "fp16": 3e-2}
COMPRESSED_BOUND = 3e-2


class Packages:
    """Where the models are, and how each program is asked."""

    def __init__(self, args):
        self.folder, self.thane, self.limit = args.folder, args.thane, args.limit
        self.python, self.numerics = args.python, args.numerics

    def made(self, model, batch):
        """The folder of a model, which is made once."""
        path = self.folder / f"{model}-b{batch}"
        if not path.exists():
            print(f"making {path.name}", flush=True)
            forms = COMPRESSED.get(model, []) if batch == 1 else []
            script = [self.python, HERE / "package_models.py", path, model, batch]
            measure.run([*script, "--compress", ",".join(forms)], self.limit)
        return path

    def given(self, folder):
        """Flags for the inputs and states of a package."""
        flags = []
        for kind in ("inputs", "states"):
            for path in sorted((folder / kind).glob("*.npy")):
                flags += [f"--{kind.removesuffix('s')}", f"{path.stem}={path}"]
        return flags

    def bench(self, folder, form, threads, rounds):
        package = folder / f"{form}.mlpackage"
        how = ["--threads", threads, "--rounds", rounds, "--numerics", self.numerics]
        return [self.thane, "bench", "predict", package, *how, *self.given(folder)]

    def onnx(self, what, folder, form, *options):
        return [self.python, HERE / "onnx_run.py", what, folder / f"{form}.onnx", folder / "onnx", *options]

    def row(self, model, form, batch, threads, rounds):
        folder = self.folder / f"{model}-b{batch}"
        programs = {"Thane": lambda: self.bench(folder, form, threads, rounds)}
        if form in GOALS:
            options = ["--threads", threads, "--rounds", rounds]
            programs["onnxruntime"] = lambda: self.onnx("time", folder, form, *options)
        else:
            programs["Thane fp16"] = lambda: self.bench(folder, "fp16", threads, rounds)
        goal = GOALS.get(form, COMPRESSED_GOAL)
        return rows.Row("package", f"{model} {form}", threads, programs, goal, batch)

    def predict(self, folder, form, numerics, out):
        package = folder / f"{form}.mlpackage"
        how = ["--numerics", numerics, "--out", out, "--quiet"]
        measure.run([self.thane, "predict", package, *how, *self.given(folder)], self.limit)

    def errors(self, model, form, batch):
        """The relative error of each program, and the bound."""
        folder, found = self.made(model, batch), {}
        with tempfile.TemporaryDirectory() as made:
            made = pathlib.Path(made)
            expected = folder / "expected"
            self.predict(folder, form, self.numerics, made / "Thane")
            if form in GOALS:
                measure.run(self.onnx("run", folder, form, made / "onnxruntime"), self.limit)
            else:
                expected = made / "f32"
                self.predict(folder, form, "f32", expected)
            for program in ("Thane", "onnxruntime"):
                if (made / program).exists():
                    compare = [self.python, HERE / "onnx_run.py", "compare", expected, made / program]
                    found[program] = json.loads(measure.run(compare, self.limit))["error"]
        return found, BOUNDS.get(form, COMPRESSED_BOUND)


def all_rows(packages, args):
    for model in MODELS:
        for batch in BATCHES:
            compressed = COMPRESSED.get(model, []) if batch == 1 else []
            for form in [*GOALS, *compressed]:
                for threads in args.threads:
                    name = f"{model}/{form}/{batch}/{threads}"
                    yield name, (model, form, batch), packages.row(model, form, batch, threads, args.rounds)


def measured(args, packages, chosen, log):
    checked = {}
    for name, subject, row in chosen:
        if subject not in checked:
            try:
                errors, bound = packages.errors(*subject)
            except (measure.Fault, KeyError, ValueError) as fault:
                errors, bound = {}, 0
                log.line({"row": row.name, "program": "any", "fault": f"outputs: {fault}"})
            checked[subject] = errors, errors and all(error <= bound for error in errors.values())
            if errors and not checked[subject][1]:
                log.line({"row": row.name, "program": "any", "fault": f"relative errors {errors}"})
        errors, agree = checked[subject]
        if agree:
            once = argparse.Namespace(rounds=args.turns, limit=args.limit)
            line = table.summary(None, row, table.measured(once, row, log))
            log.line(line | {"errors": {k: float(f"{v:.1e}") for k, v in errors.items()}})


def slow_ops(args, packages, chosen):
    """How many rows have ops that are slow and take long; all slow ones are printed."""
    n_slow = 0
    for name, (model, form, batch), row in chosen:
        folder = packages.made(model, batch)
        line = measure.run([*packages.bench(folder, form, row.threads, args.rounds), "--profile", "--json"], args.limit)
        figure = json.loads(line.splitlines()[-1])["figures"][0]
        found = figure["slow_ops"]
        per_op = [figure["median"] * op["share_of_time"] / op["n_ops"] for op in found]
        n_slow += any(ms > SMALL_OP_MS for ms in per_op)
        print(f"{name}: {json.dumps(found) if found else 'none'}", flush=True)
    return n_slow


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    numbers = lambda text: [int(n) for n in text.split(",")]
    parser.add_argument("peers", type=pathlib.Path, nargs="?", default=pathlib.Path("peers"))
    parser.add_argument("--folder", type=pathlib.Path, help="models [default: PEERS/packages]")
    parser.add_argument("--python", type=pathlib.Path, help="[default: PEERS/packages-env/bin/python]")
    parser.add_argument("--thane", default="target/release/thane")
    parser.add_argument("--numerics", default="fast")
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--turns", type=int, default=3, help="processes of each program, in turn")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each process")
    parser.add_argument("--only", default="*", help="patterns of names of rows, with commas")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    parser.add_argument("--make", action="store_true", help="make the models and measure nothing")
    parser.add_argument("--slow-ops", action="store_true", help="fail where slow ops take over 1 %% of the time")
    parser.add_argument("--limit", type=int, default=1800, help="seconds that a process may take")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--read", nargs="+", metavar="ROWS.jsonl")
    args = parser.parse_args()
    args.folder = args.folder or args.peers / "packages"
    args.python = args.python or args.peers / "packages-env/bin/python"
    if not args.read and not args.list and not args.python.exists():
        parser.error(f"{args.python}: not there; make it with: bash scripts/peers/setup.sh PEERS")
    return args


def main():
    args = arguments()
    if args.read:
        return print(table.table(table.read(args.read)))
    packages = Packages(args)
    wanted = lambda name: any(fnmatch.fnmatch(name, pattern) for pattern in args.only.split(","))
    chosen = [row for row in all_rows(packages, args) if wanted(row[0])]
    if not chosen:
        sys.exit(f"--only {args.only}: no such row; --list has their names")
    if args.list:
        return print("\n".join(name for name, _, _ in chosen))
    for model, _, batch in dict.fromkeys(subject for _, subject, _ in chosen):
        packages.made(model, batch)
    if args.make:
        return None
    if args.slow_ops:
        n_slow = slow_ops(args, packages, chosen)
        return sys.exit(f"{n_slow} of {len(chosen)} have slow ops") if n_slow else None
    log, lines = table.Log(args.out), []
    keep = log.line
    log.line = lambda row: (lines.append(row), keep(row))
    try:
        measured(args, packages, chosen, log)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    print("\n" + table.table([line for line in lines if "ratios" in line]))
    faults = [line for line in lines if line.get("fault")]
    return sys.exit(f"{len(faults)} faults, which stand above") if faults else None


if __name__ == "__main__":
    main()
