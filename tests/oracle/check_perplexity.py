"""Measures how far the perplexity of `--numerics fast` is from that of `f32`, by how weights are stored.

    python3 tests/oracle/check_perplexity.py THANE [--models DIR] [--seeds N] [--tokens N]

For each type of weights and seed a small random Llama is written (2 layers, 256 wide, all matrices of the type, the tokenizer of
tests/models/tiny-chat), and both perplexities of tests/models/perplexity.txt are taken with every instruction set of this machine.
With --models, the real models in that folder are measured too. Prints the largest distance of each, and ends with 1 where one is
beyond the bound that README.md states. Random models are the hard case: their logits are as large as those of a trained model, and
nothing in them was trained to bear rounding.
Needs torch, transformers, gguf, numpy.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from golden import MODELS, need

need("torch", "transformers", "gguf", "numpy")

import gguf
import numpy
from gguf import GGMLQuantizationType

from make_tiny_gguf import HALVES, random_blocks

# What README.md says, as a share of the perplexity in f32.
BOUNDS = {"F32": 0.001, "F16": 0.001, "BF16": 0.005} | dict.fromkeys(HALVES, 0.03)
REAL_BOUND = 0.01
REAL = ("SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf")

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, LAYERS = 256, 8, 2, 32, 512, 2


def tokenizer(writer):
    """The lists of the tiny chat model."""
    reader = gguf.GGUFReader(MODELS / "tiny-chat/tiny-chat.gguf")
    value = {name: field.contents() for name, field in reader.fields.items() if name.startswith("tokenizer.")}
    writer.add_tokenizer_model(value["tokenizer.ggml.model"])
    writer.add_tokenizer_pre(value["tokenizer.ggml.pre"])
    writer.add_token_list(value["tokenizer.ggml.tokens"])
    writer.add_token_types(value["tokenizer.ggml.token_type"])
    writer.add_token_merges(value["tokenizer.ggml.merges"])
    writer.add_eos_token_id(value["tokenizer.ggml.eos_token_id"])
    return len(value["tokenizer.ggml.tokens"])


def write_model(path, ty, seed):
    random = numpy.random.RandomState(seed)
    writer = gguf.GGUFWriter(path, "llama")
    vocabulary = tokenizer(writer)
    writer.add_block_count(LAYERS)
    writer.add_context_length(1024)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)

    def matrix(name, rows, columns, size):
        if ty == "F32":
            return writer.add_tensor(name, (size * random.standard_normal((rows, columns))).astype(numpy.float32))
        blocks, _ = random_blocks(random, (rows, columns), ty, size)
        writer.add_tensor(name, blocks, raw_dtype=GGMLQuantizationType[ty])

    def norm(name):
        writer.add_tensor(name, (1 + 0.4 * random.standard_normal(HIDDEN)).astype(numpy.float32))

    matrix("token_embd.weight", vocabulary, HIDDEN, 0.5)
    # Logits of about 2.4 standard deviations, as trained models have them.
    matrix("output.weight", vocabulary, HIDDEN, 2.4 / HIDDEN**0.5)
    norm("output_norm.weight")
    for i in range(LAYERS):
        shapes = {
            "attn_q": (HEADS * HEAD_DIM, HIDDEN), "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN), "attn_output": (HIDDEN, HEADS * HEAD_DIM),
            "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER),
        }  # fmt: skip
        for name, (rows, columns) in shapes.items():
            matrix(f"blk.{i}.{name}.weight", rows, columns, 1.6 / columns**0.5)
        norm(f"blk.{i}.attn_norm.weight")
        norm(f"blk.{i}.ffn_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def perplexity(thane, model, tokens, numerics, isa):
    command = [thane, "perplexity", str(model), "--file", str(MODELS / "perplexity.txt"), "--tokens", str(tokens), "--json"]
    done = subprocess.run(command + ["--numerics", numerics, "--isa", isa], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{model}, {numerics}, {isa}: {done.stderr}")
    return json.loads(done.stdout)["perplexity"]


def distance(thane, model, tokens, isas):
    """The largest, as a share, and the instruction set that has it."""
    exact = perplexity(thane, model, tokens, "f32", isas[0])
    return max((abs(perplexity(thane, model, tokens, "fast", isa) / exact - 1), isa) for isa in isas)


def instruction_sets(thane):
    """Those that this machine has, by what the command says of one that it has not."""
    said = subprocess.run([thane, "ls", "--isa", "none"], capture_output=True, text=True, check=False).stderr
    return said.split("this machine has ")[1].split("\n")[0].replace(",", "").split()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("thane")
    parser.add_argument("--models", type=pathlib.Path, help="the folder with the real models")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=600)
    arguments = parser.parse_args()
    thane, isas = arguments.thane, instruction_sets(arguments.thane)
    print(f"instruction sets: {', '.join(isas)}; {arguments.seeds} seeds, {arguments.tokens} tokens")
    failed = False

    def judge(name, found, bound):
        nonlocal failed
        (share, isa) = found
        failed |= share > bound
        print(f"{name:<34} {100 * share:7.3f} % ({isa}), bound {100 * bound:g} %{'  BEYOND' if share > bound else ''}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "model.gguf"
        for ty, bound in BOUNDS.items():
            found = []
            for seed in range(arguments.seeds):
                write_model(model, ty, seed)
                found.append(distance(thane, model, arguments.tokens, isas))
            judge(f"random, {ty}", max(found), bound)
    for name in REAL if arguments.models else ():
        # Of few tokens, the error of the difference is itself half a hundredth.
        judge(name, distance(thane, arguments.models / name, 2000, isas), REAL_BOUND)
    sys.exit(failed)


if __name__ == "__main__":
    main()
