"""Compare decode and prefill with llama.cpp on the same files, in pairs in one run, by medians.

    python3 scripts/compare_decode.py LLAMA_BENCH FILE.gguf.. [--thane target/release/thane] [--rounds 5] [--threads 2]

LLAMA_BENCH is llama.cpp's own `llama-bench`. Each round runs both programs after each other: a prompt of about 512 tokens
and 64 tokens that follow it. Prints one JSON line for each file and figure: medians, and the ratio of each round.
"""

import argparse
import json
import pathlib
import statistics
import subprocess

PROMPT = pathlib.Path(__file__).parent.parent / "tests/models/perplexity.txt"
PROMPT_CHARACTERS = 2_300  # about 512 tokens of either tokenizer
N_DECODE = 64


def thane(binary, file, threads):
    text = PROMPT.read_text()[:PROMPT_CHARACTERS]
    # A repeated end token must not end the answer early: nothing is sampled that the model would not say, so the text
    # is long enough for both models to go on.
    command = [binary, "run", "--json", "--raw", "--threads", str(threads), "--max-tokens", str(N_DECODE), file, text]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    times = report["timings"]
    assert times["decode_tokens"] >= N_DECODE // 2, f"only {times['decode_tokens']} tokens came"
    return {"prompt": times["prefill_tokens"], "prefill": times["prefill_tokens_per_s"], "decode": times["decode_tokens_per_s"]}


def llama(binary, file, threads, n_prompt):
    command = [binary, "-m", file, "-t", str(threads), "-p", str(n_prompt), "-n", str(N_DECODE), "-r", "1", "-o", "json"]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return {("prefill" if row["n_gen"] == 0 else "decode"): row["avg_ts"] for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_bench")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--thane", default="target/release/thane")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    for file in args.files:
        pairs = []
        for _ in range(args.rounds):
            ours = thane(args.thane, file, args.threads)
            pairs.append((ours, llama(args.llama_bench, file, args.threads, ours["prompt"])))
        for figure in ["prefill", "decode"]:
            ratios = sorted(ours[figure] / theirs[figure] for ours, theirs in pairs)
            print(json.dumps({
                "file": pathlib.Path(file).name,
                "figure": figure,
                "threads": args.threads,
                "prompt_tokens": pairs[0][0]["prompt"],
                "decode_tokens": N_DECODE,
                "thane_tokens_per_s": round(statistics.median(ours[figure] for ours, _ in pairs), 1),
                "llama_cpp_tokens_per_s": round(statistics.median(theirs[figure] for _, theirs in pairs), 1),
                "median_ratio": round(statistics.median(ratios), 2),
                "ratios": [round(r, 2) for r in ratios],
            }))


if __name__ == "__main__":
    main()
