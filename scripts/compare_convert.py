"""Convert one fp16 checkpoint with coremltools, through torch's tracing, and with Thane: wall time and peak memory of both.

    python3 scripts/compare_convert.py FOLDER [--thane target/release/thane] [--rounds 3] [--layers 24]

FOLDER gets the checkpoint (a llama-family model of the size of Qwen2.5-0.5B with random weights, 1 GB, made once) and what
is converted. Each round runs both programs after each other, each in a process of its own. coremltools converts a forward
pass over a fixed length without a cache, the least that can be asked of it; Thane writes both functions with their cache.
Prints one JSON line a round and one with the medians. Needs torch, transformers, coremltools and, for its tracing, numpy below 2.3.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

LENGTH = 64  # tokens that the traced model takes
SHAPE = dict(hidden_size=896, intermediate_size=4864, num_attention_heads=14, num_key_value_heads=2, vocab_size=151936)


def make_checkpoint(folder, n_layers):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(num_hidden_layers=n_layers, max_position_embeddings=32768, tie_word_embeddings=True, **SHAPE)
    model = LlamaForCausalLM(config).to(torch.float16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder, max_shard_size="10GB")


def convert_with_coremltools(checkpoint, package):
    """Runs in a process of its own."""
    import coremltools
    import numpy
    import torch
    from transformers import LlamaForCausalLM

    class Forward(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model
            # A mask of its own: coremltools has no rule for an op that transformers makes one with.
            self.register_buffer("mask", torch.triu(torch.full((1, 1, LENGTH, LENGTH), -1e4), diagonal=1))
            self.register_buffer("positions", torch.arange(LENGTH)[None])

        def forward(self, ids):
            hidden = self.model.model(ids, attention_mask=self.mask, position_ids=self.positions, use_cache=False)
            return self.model.lm_head(hidden.last_hidden_state[:, -1:])

    model = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.arange(LENGTH)[None]
    with torch.no_grad():
        traced = torch.jit.trace(Forward(model), ids, check_trace=False)
    made = coremltools.convert(
        traced,
        inputs=[coremltools.TensorType("ids", ids.shape, numpy.int32)],
        convert_to="mlprogram",
        minimum_deployment_target=coremltools.target.iOS18,
        compute_precision=coremltools.precision.FLOAT16,
        skip_model_load=True,
    )
    made.save(str(package))


def measure(command):
    """Wall time in seconds and peak resident memory in MB of a process."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    error = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    if status != 0:
        sys.exit(f"{' '.join(command)} ended with {status}:\n{error.decode()[-2000:]}")
    return {"seconds": round(seconds, 2), "peak_mb": round(usage.ru_maxrss * 1024 / 1e6)}


def folder_mb(path):
    return round(sum(p.stat().st_size for p in path.rglob("*") if p.is_file()) / 1e6)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--thane", default="target/release/thane")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--coremltools", nargs=2, metavar=("CHECKPOINT", "PACKAGE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.coremltools:
        return convert_with_coremltools(*args.coremltools)
    checkpoint = args.folder / f"llama-{args.layers}"
    if not (checkpoint / "config.json").exists():
        make_checkpoint(checkpoint, args.layers)
    packages = {"coremltools": args.folder / "coremltools.mlpackage", "thane": args.folder / "thane.mlpackage"}
    commands = {
        "coremltools": [sys.executable, __file__, str(args.folder), "--coremltools", str(checkpoint), str(packages["coremltools"])],
        "thane": [args.thane, "convert", str(checkpoint), "-o", str(packages["thane"])],
    }
    rounds = []
    for _ in range(args.rounds):
        row = {}
        for name, command in commands.items():
            shutil.rmtree(packages[name], ignore_errors=True)
            row[name] = measure(command) | {"package_mb": folder_mb(packages[name])}
        row["times_faster"] = round(row["coremltools"]["seconds"] / row["thane"]["seconds"], 1)
        row["times_less_memory"] = round(row["coremltools"]["peak_mb"] / row["thane"]["peak_mb"], 1)
        print(json.dumps(row), flush=True)
        rounds.append(row)
    medians = {key: statistics.median(row[key] for row in rounds) for key in ("times_faster", "times_less_memory")}
    print(json.dumps({"rounds": len(rounds), "median": medians}))


if __name__ == "__main__":
    main()
