"""What an audit takes: of 3,000 ops, of 10,000, and of 2 GB of weights, which must not be read.

    cargo build --release -p thane-cli && python3 scripts/audit_time.py target/release/thane [RUNS]

Prints wall time, the start of the process and the reading of the text included, and the most memory that the process held: pages
of weights that were read would be in it. Weights are a file with holes, which takes no disk. Fails where 10,000 ops take more
than seven times the processor time of 3,000: they are 3.3 times as many, and other work on the machine does not count.
"""

import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

from audit_program import OPS_A_LAYER, program

RECORD = 64
WIDTH = 4096
# Most that an audit of 10,000 ops may take, in processor times of one of 3,000.
MOST_TIMES = 7


def weights(path, n):
    """A weight file of n square fp16 matrices; only their records are written. Gives the offsets of the records."""
    size = WIDTH * WIDTH * 2
    offsets = [RECORD + i * (RECORD + size) for i in range(n)]
    with open(path, "wb") as f:
        f.write(struct.pack("<II", n, 2))
        for at in offsets:
            f.seek(at)
            # Sentinel, fp16, bytes, where the data begins.
            f.write(struct.pack("<IIQQ", 0xDEADBEEF, 1, size, at + RECORD))
        f.truncate(offsets[-1] + RECORD + size)
    return offsets


def large(folder, n):
    """A program with n weights of 32 MiB."""
    (folder / "weights").mkdir()
    offsets = iter(weights(folder / "weights/weight.bin", n))

    def weight(name, width):
        ty = f"tensor<fp16, [{width}, {width}, 1, 1]>"
        blob = f'BLOBFILE(path = string("@model_path/weights/weight.bin"), offset = uint64({next(offsets)}))'
        return f"        {ty} {name} = const()[val = {ty}({blob})];"

    # Seven weights a layer.
    return program(n // 7 * OPS_A_LAYER, WIDTH, 64, weight)


def measure(thane, runs, mil, *args):
    """The least wall time of some runs in ms, the least processor time in s, and the most memory of one in MB."""
    best, least, peak = float("inf"), float("inf"), 0
    for _ in range(runs):
        start = time.perf_counter()
        child = subprocess.Popen([thane, "audit", mil, *args], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        best, peak = min(best, time.perf_counter() - start), max(peak, usage.ru_maxrss)
        least = min(least, usage.ru_utime + usage.ru_stime)
        if status:
            sys.exit(f"audit ended with {status}")
    return best * 1e3, least, peak / 1024


def main():
    thane, spent = sys.argv[1], {}
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for n in (3000, 10000):
            mil = folder / f"{n}.mil"
            mil.write_text(program(n))
            for form in ("text", "json", "html"):
                ms, seconds, mb = measure(thane, runs, mil, "--format", form)
                print(f"{n} ops as {form}: {ms:.0f} ms, {mb:.0f} MB")
                spent.setdefault(form, []).append(seconds)
        n = 63
        mil = folder / "large.mil"
        mil.write_text(large(folder, n))
        size = (folder / "weights/weight.bin").stat().st_size / 1e9
        ms, _, mb = measure(thane, runs, mil)
        print(f"{size:.2f} GB of weights: {ms:.0f} ms, {mb:.0f} MB at most")
        if mb > 200:
            sys.exit("weights were read")
    slow = [f"{form}: {most:.2f} s and {least:.2f} s" for form, (least, most) in spent.items() if most > MOST_TIMES * least]
    if slow:
        sys.exit(f"10,000 ops take over {MOST_TIMES} times the processor time of 3,000: {', '.join(slow)}")


if __name__ == "__main__":
    main()
