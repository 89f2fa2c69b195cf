"""Thane beside other programs on the same files, in turn in one run: medians, and ratios to the best of the others.

    python3 scripts/peers/table.py PEERS FILE.gguf.. [--thane target/release/thane] [--threads 1,2] [--rounds 3] [--works prefill,decode,cold]

PEERS is the folder of setup.sh. Each round runs Thane and each of the others after another, each warmed up once, on random tokens
of the same number: prefill of 512, decode of 128 behind 128, and cold, the milliseconds to the first token behind 30, with the file in
the page cache (Thane's from the start of the process, the others' from loading, behind the start of Python). Prints a JSON line for each
measurement, then the table. A ratio above 1 says that Thane is faster, or holds less memory.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
PEERS = {"llama.cpp": "llama.py", "ik_llama.cpp": "llama.py", "OpenVINO GenAI": "genai.py"}


def measure(name, args, what, file, threads):
    if name == "Thane":
        command = [args.thane, "bench", what, file, "--threads", str(threads), "--rounds", "1"]
    else:
        folder = "openvino" if name == "OpenVINO GenAI" else name
        python = args.peers / folder / "bin/python"
        command = [python, HERE / PEERS[name], what, file, "--threads", str(threads), "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return None, (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    row = json.loads(done.stdout.strip().splitlines()[-1])
    return (row["median"], row["peak_memory_bytes"]), None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", type=pathlib.Path)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--thane", default="target/release/thane")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--works", default="prefill,decode,cold")
    args = parser.parse_args()
    names = ["Thane", *PEERS]
    table = []
    for file, what, threads in itertools.product(args.files, args.works.split(","), map(int, args.threads.split(","))):
        found = {name: [] for name in names}
        for _ in range(args.rounds):
            for name in list(found):
                measured, fault = measure(name, args, what, file, threads)
                if measured is None:
                    print(f"{name}: no {what} of {pathlib.Path(file).name}: {fault}", file=sys.stderr)
                    del found[name]
                    continue
                found[name].append(measured)
        rates = {name: [rate for rate, _ in rows] for name, rows in found.items()}
        sign = -1 if what == "cold" else 1
        best = max((n for n in rates if n != "Thane"), key=lambda n: sign * statistics.median(rates[n]))
        ratios = [(ours / theirs) ** sign for ours, theirs in zip(rates["Thane"], rates[best])]
        # None where it was not asked for.
        memory = {name: max(b for _, b in rows) for name, rows in found.items() if rows[0][1] is not None}
        row = {"file": pathlib.Path(file).name, "work": what, "threads": threads, "medians": {n: round(statistics.median(r), 1) for n, r in rates.items()}}
        row |= {"best": best, "ratio": round(statistics.median(ratios), 2), "ratios": sorted(round(r, 2) for r in ratios)}
        row |= {"memory_mib": {n: round(b / 2**20) for n, b in memory.items()}}
        print(json.dumps(row), flush=True)
        table.append(row)
    print("\n| file | work | threads | " + " | ".join(names) + " | ratio to the best (least, most) | memory, Thane and least of the others |")
    print("|---|---|---|" + "---|" * (len(names) + 2))
    for row in table:
        cells = [str(row["medians"].get(name, "-")) for name in names]
        least = min(b for n, b in row["memory_mib"].items() if n != "Thane")
        ours = row["memory_mib"].get("Thane", "-")
        ratio = f"{row['ratio']} ({row['ratios'][0]}, {row['ratios'][-1]})"
        memory = f"{ours}, {least} MiB"
        print(f"| {row['file']} | {row['work']} | {row['threads']} | {' | '.join(cells)} | {ratio} | {memory} |")


if __name__ == "__main__":
    main()
