"""ONNX Runtime on one file: how long a call takes, and whether its outputs agree with expected ones.

    python onnx_run.py time FILE.onnx INPUTS [--threads N] [--rounds N]
    python onnx_run.py run FILE.onnx INPUTS OUTPUTS
    python onnx_run.py compare EXPECTED OUTPUTS

INPUTS has NAME.npy for each input. `time` prints a JSON line with the fields of
`thane bench predict`: milliseconds of a call, `load_ms` to load the file, `first_ms` to the first
result. As there, a round has as many calls as take 0.1 s. `compare` prints the largest relative
error of an output: the norm of the difference divided by the norm of the expected output.
"""

import argparse
import json
import math
import pathlib
import resource
import statistics
import time

import numpy as np

ROUND_S = 0.1
MOST_CALLS = 1000


def arrays(folder):
    return {path.stem: np.load(path) for path in sorted(folder.glob("*.npy"))}


def load(file, threads):
    # Not needed to compare files.
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return lambda: onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def taken(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def timed(args):
    inputs, session = arrays(args.inputs), load(args.file, args.threads)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    start = time.perf_counter()
    session = session()
    loaded = time.perf_counter() - start
    call = lambda: session.run(None, inputs)
    first = taken(call)
    usual = taken(call) if first < ROUND_S else first
    n_calls = min(max(math.ceil(ROUND_S / usual), 1), MOST_CALLS)
    one_round = lambda: sum(taken(call) for _ in range(n_calls)) / n_calls * 1e3
    one_round()
    times = sorted(one_round() for _ in range(args.rounds))
    row = {"unit": "ms", "median": statistics.median(times), "least": times[0], "most": times[-1]}
    row |= {"rounds": args.rounds, "calls": n_calls, "load_ms": loaded * 1e3}
    print(json.dumps(row | {"first_ms": (loaded + first) * 1e3, "baseline_memory_bytes": before}))


def run(args):
    session = load(args.file, 2)()
    args.outputs.mkdir(parents=True, exist_ok=True)
    names = [output.name for output in session.get_outputs()]
    for name, value in zip(names, session.run(None, arrays(args.inputs))):
        np.save(args.outputs / f"{name}.npy", value)


def error(expected, found):
    if expected.shape != found.shape:
        return math.inf
    wide = expected.astype(np.float64)
    worst = float(np.linalg.norm(wide - found) / max(np.linalg.norm(wide), 1e-30))
    return worst if math.isfinite(worst) else math.inf


def compare(args):
    expected, found = arrays(args.expected), arrays(args.outputs)
    print(json.dumps({"error": max(error(value, found[name]) for name, value in expected.items())}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("time")
    verb.set_defaults(verb=timed)
    verb.add_argument("file")
    verb.add_argument("inputs", type=pathlib.Path)
    verb.add_argument("--threads", type=int, default=2)
    verb.add_argument("--rounds", type=int, default=3)
    verb = verbs.add_parser("run")
    verb.set_defaults(verb=run)
    verb.add_argument("file")
    verb.add_argument("inputs", type=pathlib.Path)
    verb.add_argument("outputs", type=pathlib.Path)
    verb = verbs.add_parser("compare")
    verb.set_defaults(verb=compare)
    verb.add_argument("expected", type=pathlib.Path)
    verb.add_argument("outputs", type=pathlib.Path)
    args = parser.parse_args()
    args.verb(args)


if __name__ == "__main__":
    main()
