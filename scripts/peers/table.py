"""Thane beside other programs on the same files, in turn in one run: medians, and ratios to the best of the others.

    python3 scripts/peers/table.py PEERS [FILE.gguf..] [--thane target/release/thane] [--threads 1,2] [--rounds 3] [--only PATTERN,..]
        [--out ROWS.jsonl]
    python3 scripts/peers/table.py --read ROWS.jsonl..

PEERS is the folder of setup.sh; what has to be made (models with random weights, ONNX, int8 forms) is made once in PEERS/models.
Of FILEs it measures the works of language models, else everything: those of the catalog, a model of 0.5B in three types, MiniLM
in fp32 and int8, an encoder of the shape of Qwen3-0.6B. `--only` selects rows by their names, such as
`decode/smollm2*,batch-8/*/2`; `--list` prints the names. Each round runs Thane and each of the others after another, each warmed
up once, on random tokens of the same number:

prefill   of 512 tokens, tokens a second
decode    of 128 tokens behind 128, tokens a second
batch-N   of 32 tokens behind 16 in each of N sequences, tokens a second of all
cold      milliseconds to the first token behind 30, with the file in the page cache (Thane's from the start of the process, the
          others' from loading, behind the start of Python)
embed-N   texts of 8 to 256 tokens, N at hand at once, or one of 512 tokens for the encoder of 0.6B, texts a second
cosine    no time: the least cosine of each program's vectors to those of torch in fp32, behind the rows of embed

Memory is the most that a process held, as the system counts it; that of the others has Python and their libraries in it, what
they hold before they load a model is printed beside it. What fails is said and left out. JSON lines come as soon as they are
known and go to `--out` too, behind what is there; `--read` prints the table of such files. Rows are named beside which other
processes were busy: measure them again. A ratio above 1 says that Thane is faster.
"""

import argparse
import fnmatch
import json
import math
import os
import pathlib
import statistics
import sys
import tempfile

import measure
import rows


class Log:
    """JSON lines, on standard output and behind a file."""

    def __init__(self, path):
        self.file = open(path, "a") if path else None

    def line(self, row):
        text = json.dumps(row)
        print(text, flush=True)
        if self.file:
            print(text, file=self.file, flush=True)


def measured(args, row, log):
    """Each program's figures, round by round; what fails is left out."""
    found = {name: [] for name in row.programs}
    for number in range(args.rounds):
        for name in list(found):
            try:
                # How many texts a call has is looked for in the first round.
                last = found[name][-1].get("call") if found[name] else None
                command = [*row.programs[name](), *(["--call", last] if last else [])]
                figure = measure.figure(command, args.limit)
            except measure.Fault as fault:
                log.line({"row": row.name, "program": name, "fault": str(fault)})
                del found[name]
                continue
            found[name].append(figure)
            log.line({"row": row.name, "program": name, "round": number, "figure": figure})
    return found


def ratios_of(found, sign):
    """The best of the others, and Thane's ratio to it in each round."""
    medians = {name: statistics.median(f["median"] for f in figures) for name, figures in found.items()}
    others = [name for name in medians if name != "Thane"]
    best = max(others, key=lambda name: sign * medians[name], default=None)
    if best is None or "Thane" not in found:
        return medians, best, []
    pairs = zip(found["Thane"], found[best])
    return medians, best, sorted((ours["median"] / theirs["median"]) ** sign for ours, theirs in pairs)


def summary(commands, row, found):
    medians, best, ratios = ratios_of(found, -1 if row.work in rows.TIMES else 1)
    line = {"row": row.name, "medians": {name: round(value, 2) for name, value in medians.items()}, "best": best}
    line |= {"ratios": [round(r, 2) for r in ratios], "goal": round(row.goal, 2)}
    line["memory_mib"] = {name: round(max(f["peak_memory_bytes"] for f in figures) / 2**20) for name, figures in found.items()}
    baselines = {name: max(f.get("baseline_memory_bytes") or 0 for f in figures) for name, figures in found.items()}
    line["baseline_mib"] = {name: round(b / 2**20) for name, b in baselines.items() if b}
    if row.work == "package":
        firsts = {name: statistics.median(f["first_ms"] for f in figures) for name, figures in found.items()}
        line["first_ms"] = {name: round(value, 1) for name, value in firsts.items()}
    line["others"] = max((f["others"] or 0 for figures in found.values() for f in figures), default=0)
    if row.work == "decode" and found:
        # The heads of these models are their embeddings: a token reads the whole file.
        size = os.path.getsize(commands.model(row.model))
        line["gb_per_s"] = {name: round(size * value / 1e9, 1) for name, value in medians.items()}
    return line


def vectors(command, limit):
    """What a program prints, or writes where it is told to."""
    if "--rounds" not in command:
        text = measure.run(command, limit)
        return [json.loads(line) for line in text.strip().splitlines()]
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as out:
        measure.run([*command, "--vectors", out.name], limit)
        return [json.loads(line) for line in out]


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def compare(args, commands, name, log):
    """The cosines of all programs of `cosine/MODEL NUMERICS`."""
    model, numerics = name.split("/")[1].split(" ")
    programs, reference = commands.cosines(model, numerics, max(args.threads))
    try:
        expected = vectors(reference(), args.limit)
    except measure.Fault as fault:
        return log.line({"row": name, "program": "torch in fp32", "fault": str(fault)})
    line = {"row": name, "texts": len(expected), "least": {}, "median": {}}
    for program, command in programs.items():
        try:
            found = vectors(command(), args.limit)
            cosines = [cosine(a, b) for a, b in zip(found, expected, strict=True)]
        except (measure.Fault, ValueError, ZeroDivisionError) as fault:
            log.line({"row": name, "program": program, "fault": str(fault)})
            continue
        line["least"][program], line["median"][program] = round(min(cosines), 7), round(statistics.median(cosines), 7)
    log.line(line)


def memory_cell(line):
    memory = line["memory_mib"]
    others = {name: mib for name, mib in memory.items() if name != "Thane"}
    least = min(others, key=others.get, default=None)
    if least is None:
        return f"{memory.get('Thane', '-')}"
    return f"{memory.get('Thane', '-')}, {others[least]} ({line['baseline_mib'].get(least, 0)}) {least}"


def ratio_cell(line):
    if not line["ratios"]:
        return "-"
    return f"{statistics.median(line['ratios']):.2f} ({line['ratios'][0]} to {line['ratios'][-1]})"


def table(lines):
    """Markdown of the rows; of one that was measured again the last counts."""
    last = {line["row"]: line for line in lines}
    rates = [line for line in last.values() if "ratios" in line]
    names = list(dict.fromkeys(["Thane", *(name for line in rates for name in line["medians"])]))
    memory = "MiB: Thane, least of the others (before its model)"
    head = ["work", "model", "threads", *names, "ratio (least to most)", "goal", memory]
    out = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for line in rates:
        cells = [str(line["medians"].get(name, "-")) for name in names]
        cells = [*line["row"].split("/"), *cells, ratio_cell(line), str(line["goal"]), memory_cell(line)]
        out.append(f"| {' | '.join(cells)} |")
    reads = [line for line in rates if "gb_per_s" in line]
    out += ["", *(f"{line['row']}: GB/s " + ", ".join(f"{n} {v}" for n, v in line["gb_per_s"].items()) for line in reads)]
    # A twentieth of a processor is what an idle system does.
    noisy = [f"{line['row']} {line['others']}" for line in rates if line.get("others", 0) > 0.05]
    if noisy:
        out.append("processors that other processes used meanwhile, at most: " + ", ".join(noisy))
    for line in last.values():
        if "least" in line:
            cosines = (f"{n} {v} (median {line['median'][n]})" for n, v in line["least"].items())
            out.append(f"{line['row']}, {line['texts']} texts, least: " + ", ".join(cosines))
    return "\n".join(out)


def read(paths):
    """The finished rows of earlier runs."""
    lines = []
    for path in paths:
        with open(path) as file:
            found = [json.loads(line) for line in file if line.startswith("{")]
        lines += [line for line in found if "ratios" in line or "least" in line]
    return lines


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(n) for n in text.split(",")]
    parser.add_argument("peers", type=pathlib.Path, nargs="?")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--thane", default="target/release/thane")
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--answer", type=int, default=128, help="tokens that decode makes")
    parser.add_argument("--only", default="*", help="patterns of names of rows, with commas")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    parser.add_argument("--int8", default="int8", help="Thane's --numerics in the rows of int8")
    parser.add_argument("--limit", type=int, default=900, help="seconds that a process may take")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--read", nargs="+", metavar="ROWS.jsonl")
    args = parser.parse_args()
    if args.read:
        return args
    if args.peers is None or not args.peers.is_dir():
        parser.error(f"PEERS {args.peers or ''}: no folder; make it with: bash scripts/peers/setup.sh PEERS")
    missing = [file for file in args.files if not pathlib.Path(file).is_file()]
    if missing:
        parser.error(f"{missing[0]}: no such file")
    if args.rounds < 1 or min(args.threads) < 1:
        parser.error("--rounds and --threads are at least 1")
    return args


def main():
    args = arguments()
    if args.read:
        return print(table(read(args.read)))
    commands = rows.Commands(args)
    wanted = lambda name: any(fnmatch.fnmatch(name, pattern) for pattern in args.only.split(","))
    every = list(rows.all_rows(commands, args.threads))
    chosen = [row for row in every if wanted(row.name)]
    embeds = dict.fromkeys(f"cosine/{row.model}" for row in every if row.work == "embed")
    cosines = [name for name in embeds if wanted(name)]
    if not chosen and not cosines:
        sys.exit(f"--only {args.only}: no such row; --list has their names")
    if args.list:
        return print("\n".join([*(row.name for row in chosen), *cosines]))
    log, lines = Log(args.out), []
    keep = log.line
    log.line = lambda row: (lines.append(row), keep(row))
    try:
        for row in chosen:
            log.line(summary(commands, row, measured(args, row, log)))
        for name in cosines:
            compare(args, commands, name, log)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    print("\n" + table([line for line in lines if "ratios" in line or "least" in line]))


if __name__ == "__main__":
    main()
