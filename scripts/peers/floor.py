#!/usr/bin/env python3
"""How near decoding comes to what memory gives: bytes of the model read for each token, over the memory's speed measured right after.

    python3 scripts/peers/floor.py FILE.gguf.. [--thane target/release/thane] [--threads 1,2] [--turns 5]

A JSON line for each file and number of threads: of several turns of `thane bench decode --profile`, the least, the median and the
most of the share, and the median of tokens and of GB a second. For models whose head is their embedding: a token reads the whole file.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys


def turn(thane, file, threads):
    """Tokens a second, and GB a second that as many threads read from memory."""
    command = [thane, "bench", "decode", file, "--threads", threads, "--rounds", "1", "--profile"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    read = re.search(r"measured now: ([0-9.]+) GB/s", done.stderr)
    if done.returncode != 0 or not read:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout)["median"], float(read[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+")
    parser.add_argument("--thane", default="target/release/thane")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    for file in args.files:
        size = os.path.getsize(file)
        for threads in args.threads.split(","):
            turns = [turn(args.thane, file, threads) for _ in range(args.turns)]
            shares = [size * tokens / 1e9 / read for tokens, read in turns]
            line = {"file": os.path.basename(file), "threads": int(threads), "share": round(statistics.median(shares), 2)}
            line |= {"least": round(min(shares), 2), "most": round(max(shares), 2)}
            line |= {"tokens_per_s": round(statistics.median(tokens for tokens, _ in turns), 1)}
            line |= {"read_gb_per_s": round(statistics.median(read for _, read in turns), 1)}
            print(json.dumps(line), flush=True)


main()
