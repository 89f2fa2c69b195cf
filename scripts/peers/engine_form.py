"""The form for the Neural Engine beside the portable form of the same checkpoint, both in fp16, in turn on this CPU.

    python3 scripts/peers/engine_form.py PEERS MODEL.gguf.. [--contexts 512,2048,8192] [--threads 1,2] [--turns 3]
        [--only PATTERN,..] [--out ROWS.jsonl] [--thane target/release/thane] [--python PYTHON]

Files are made once in PEERS/engine: MODEL with its quantized tensors widened to fp16 (widen_gguf.py; PYTHON has gguf) and
converted with `--form ane` for each context. The portable form is the widened file itself. Rows are
`engine/MODEL WORK CONTEXT/THREADS`: decode is 128 tokens behind 128, decode-full the last tokens of the context,
prefill a prompt of 384 tokens, all in tokens a second. The goal is 0.7 times the portable form, with any context.
"""

import argparse
import fnmatch
import pathlib
import sys

import measure
import rows
import table

HERE = pathlib.Path(__file__).parent
GOAL = 0.7
# Tokens of an answer of decode, and of the one that ends with the context.
ANSWER, LAST = 128, 32
PROMPT = 384


class Forms:
    def __init__(self, args):
        self.args, self.folder = args, args.peers / "engine"

    def made(self, path, *command):
        if not path.exists():
            self.folder.mkdir(exist_ok=True)
            print(f"making {path.name}", flush=True)
            measure.run(command, self.args.limit)
        return path

    def portable(self, model):
        path = self.folder / f"{model.stem}-f16.gguf"
        return self.made(path, self.args.python, HERE / "widen_gguf.py", model, path)

    def engine(self, model, context, *flags):
        name = "".join(f"{flag.removeprefix('--')}-".replace("=", "-") for flag in flags)
        path = self.folder / f"{model.stem}-{name}{context}.mlpackage"
        form = ["--form", "ane", "--context", context]
        return self.made(path, self.args.thane, "convert", self.portable(model), *form, *flags, "-o", path)

    def bench(self, work, path, context, threads):
        how = {
            "decode": ["decode", "--lengths", 128, "--tokens", ANSWER],
            "decode-full": ["decode", "--lengths", context - LAST - 1, "--tokens", LAST],
            "prefill": ["prefill", "--lengths", PROMPT],
        }[work]
        return [self.args.thane, "bench", how[0], path, *how[1:], "--threads", threads, "--rounds", 1]

    def row(self, model, work, context, threads):
        programs = {
            "Thane": lambda: self.bench(work, self.engine(model, context), context, threads),
            "Thane portable": lambda: self.bench(work, self.portable(model), context, threads),
        }
        return rows.Row("engine", f"{model.stem} {work} {context}", threads, programs, GOAL)


def arguments(text):
    numbers = lambda text: [int(n) for n in text.split(",")]
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("peers", type=pathlib.Path)
    parser.add_argument("models", type=pathlib.Path, nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--contexts", type=numbers, default=[512, 2048, 8192])
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--turns", type=int, default=3, help="processes of each form, in turn")
    parser.add_argument("--only", default="*", help="patterns of names of rows, with commas")
    parser.add_argument("--thane", default="target/release/thane")
    parser.add_argument("--python", type=pathlib.Path, help="[default: PEERS/packages-env/bin/python]")
    parser.add_argument("--limit", type=int, default=1800, help="seconds that a process may take")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    args.python = args.python or args.peers / "packages-env/bin/python"
    return args


def measure_all(args, every):
    """Measures the rows that --only names, prints a table of them, and returns them."""
    chosen = [row for row in every if any(fnmatch.fnmatch(row.name, pattern) for pattern in args.only.split(","))]
    if not chosen:
        sys.exit(f"--only {args.only}: no such row")
    log, lines = table.Log(args.out), []
    once = argparse.Namespace(rounds=args.turns, limit=args.limit)
    try:
        for row in chosen:
            line = table.summary(None, row, table.measured(once, row, log))
            lines.append(line)
            log.line(line)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    print("\n" + table.table(lines))
    return lines


def main():
    args = arguments(__doc__)
    forms = Forms(args)
    works = ("decode", "decode-full", "prefill")
    measure_all(args, [forms.row(m, w, c, t) for m in args.models for w in works for c in args.contexts for t in args.threads])


if __name__ == "__main__":
    main()
