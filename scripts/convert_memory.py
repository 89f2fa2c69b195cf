"""Peak memory of `thane convert` against its bound: python3 scripts/convert_memory.py THANE MODEL..

The bound is the mapped checkpoint, 1.25 x its largest tensor and 100 MB; the figure is the process's largest resident set, so
pages of the mapped file count. Fails when a figure is above its bound.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    thane, *models = sys.argv[1:]
    failed = False
    for model in models:
        shown = json.loads(subprocess.run([thane, "show", "--json", model], check=True, capture_output=True).stdout)
        size = pathlib.Path(model).stat().st_size
        bound = size + 1.25 * max(t["bytes"] for t in shown["tensors"]) + 100e6
        with tempfile.TemporaryDirectory() as folder:
            command = [thane, "convert", "--quiet", model, "-o", f"{folder}/model.mlpackage"]
            measured = subprocess.run([sys.executable, "-c", MEASURE, *command], check=True, capture_output=True)
        peak = int(measured.stdout)
        failed |= peak > bound
        name = pathlib.Path(model).name
        print(f"{name}: {size / 1e6:.0f} MB, convert peaks at {peak / 1e6:.0f} MB, bound {bound / 1e6:.0f} MB")
    sys.exit(failed)


if __name__ == "__main__":
    main()
