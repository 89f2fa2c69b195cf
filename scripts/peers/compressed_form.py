"""A compressed package in the form for the Neural Engine beside the checkpoint itself, in turn on this CPU.

    python3 scripts/peers/compressed_form.py PEERS MODEL.gguf.. [--encodings pal4] [--contexts 2048] [--threads 1,2]
        [--turns 3] [--only PATTERN,..] [--out ROWS.jsonl] [--thane target/release/thane]

Packages are made once in PEERS/compressed: MODEL converted with `--form ane --compress ENCODING` for each context. The
other program is `thane` on MODEL as it is. Rows are `compressed/MODEL ENCODING WORK CONTEXT/THREADS`: decode is 128
tokens behind 128, prefill a prompt of 384 tokens, in tokens a second. Goals: 0.8 times the checkpoint in decode, 0.7 in
prefill; and peak memory of at most 1.3 times the package, the KV cache and 40 MB. Exits with 1 where memory is above.
"""

import argparse
import pathlib
import sys

import engine_form
import measure
import rows

GOALS = {"decode": 0.8, "prefill": 0.7}
# Of the package, and bytes beside it and the KV cache.
SHARE, MORE = 1.3, 40e6


class Packages(engine_form.Forms):
    def __init__(self, args):
        self.args, self.folder = args, args.peers / "compressed"

    def package(self, model, encoding, context):
        path = self.folder / f"{model.stem}-{encoding}-{context}.mlpackage"
        form = ["--form", "ane", "--context", context, "--compress", encoding]
        return self.made(path, self.args.thane, "convert", model, *form, "-o", path)

    def row(self, model, encoding, work, context, threads):
        programs = {
            "Thane": lambda: self.bench(work, self.package(model, encoding, context), context, threads),
            "Thane portable": lambda: self.bench(work, model, context, threads),
        }
        return rows.Row("compressed", f"{model.stem} {encoding} {work} {context}", threads, programs, GOALS[work])

    def bound(self, model, encoding, context):
        """Bytes that a process may hold at once."""
        package = self.package(model, encoding, context)
        size = sum(path.stat().st_size for path in package.rglob("*") if path.is_file())
        shown = measure.run([self.args.thane, "show", "--json", package], self.args.limit)
        return SHARE * size + cache_bytes(shown) + MORE


def cache_bytes(shown):
    """The number called `cache_bytes` in what `show --json` prints."""
    _, found, rest = shown.partition('"cache_bytes":')
    digits = "".join(char for char in rest.split(",")[0].split("}")[0] if char.isdigit())
    if not found or not digits:
        raise measure.Fault("`thane show --json` names no cache_bytes")
    return int(digits)


def is_within(packages, line):
    """Prints the memory of a row beside its bound."""
    model, encoding, _, context = line["row"].split("/")[1].split(" ")
    path = next(path for path in packages.args.models if path.stem == model)
    bound = packages.bound(path, encoding, int(context)) / 2**20
    peak = line["memory_mib"]["Thane"]
    print(f"{line['row']}: {peak} MiB at most, bound {bound:.0f} MiB")
    return peak <= bound


def main():
    text = lambda value: value.split(",")
    numbers = lambda value: [int(n) for n in text(value)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("peers", type=pathlib.Path)
    parser.add_argument("models", type=pathlib.Path, nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--encodings", type=text, default=["pal4"])
    parser.add_argument("--contexts", type=numbers, default=[2048])
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--turns", type=int, default=3, help="processes of each program, in turn")
    parser.add_argument("--only", default="*", help="patterns of names of rows, with commas")
    parser.add_argument("--thane", default="target/release/thane")
    parser.add_argument("--limit", type=int, default=1800, help="seconds that a process may take")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    packages = Packages(args)
    sizes = [(m, e, w, c, t) for m in args.models for e in args.encodings for w in GOALS for c in args.contexts for t in args.threads]
    lines = engine_form.measure_all(args, [packages.row(*size) for size in sizes])
    if not all([is_within(packages, line) for line in lines]):
        sys.exit("more memory than the goal allows")


if __name__ == "__main__":
    main()
