"""What OpenVINO GenAI reaches on a GGUF file, as JSON lines with the names of `thane bench`.

    PEER/bin/python scripts/peers/genai.py WHAT FILE.gguf [--threads 1] [--lengths 512] [--answer 128] [--rounds 3]

WHAT is `prefill`, `decode` or `cold`; PEER is an environment with `openvino-genai` (setup.sh makes it). Times are those of the library's own
counters: to the first token, and of each token behind it. Prompts are random tokens, new ones in each round, since it keeps what it
has read. `cold` has the time from loading to the first token.
"""

import argparse
import json
import resource
import statistics
import time

import numpy
import openvino
import openvino_genai


def peak_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# What Python and the libraries hold before there is a model.
BASELINE = peak_memory()

def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["prefill", "decode", "cold"])
    parser.add_argument("file")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lengths", type=int)
    parser.add_argument("--answer", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    length = args.lengths or {"prefill": 512, "decode": 128, "cold": 30}[args.what]
    start = time.perf_counter()
    pipe = openvino_genai.LLMPipeline(args.file, "CPU", INFERENCE_NUM_THREADS=args.threads)
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = args.answer if args.what == "decode" else 1, True, False
    random = numpy.random.default_rng(7)
    values = []
    for _ in range(1 if args.what == "cold" else args.rounds + 1):
        ids = openvino.Tensor(random.integers(0, 30_000, (1, length)).astype(numpy.int64))
        mask = openvino.Tensor(numpy.ones((1, length), dtype=numpy.int64))
        metrics = pipe.generate(openvino_genai.TokenizedInputs(ids, mask), config).perf_metrics
        if args.what == "cold":
            values.append((time.perf_counter() - start) * 1e3)
        elif args.what == "prefill":
            values.append(length / metrics.get_ttft().mean * 1e3)
        else:
            values.append(1e3 / metrics.get_tpot().mean)
    values = values[1:] or values
    row = {"bench": args.what, "peer": "OpenVINO GenAI", "model": args.file, "threads": args.threads, "tokens": [length, length]}
    row |= {"unit": "ms" if args.what == "cold" else "tokens/s", "median": statistics.median(values), "rounds": len(values)}
    print(json.dumps(row | {"peak_memory_bytes": peak_memory(), "baseline_memory_bytes": BASELINE}))


if __name__ == "__main__":
    main()
