"""Converts an encoder of the shape of Qwen3-0.6B with random weights, and compares its program in the Neural Engine's numbers
with the reference.

    python3 scripts/full_encoder.py FOLDER [--thane target/release/thane] [--buckets 512,1024] [--tokens 128] [--checkpoint-only]

FOLDER gets the checkpoint (1.2 GB, made once, bfloat16 as published models have it) and the packages. Prints the sha256 of each
package's weights, which must be one; the bytes on disk; the time and peak memory of the conversion; and the cosine of a text of so
many tokens in `--numerics ane` and in f32, as pooled, as int8, and chunk by chunk. Needs numpy.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import numpy

CONFIG = {
    "architectures": ["PPLXQwen3Model"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 32768,
    "model_type": "bidirectional_pplx_qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "use_bidirectional_attention": True,
    "vocab_size": 151936,
}


def shapes():
    hidden, inner, head = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    queries, keys = CONFIG["num_attention_heads"] * head, CONFIG["num_key_value_heads"] * head
    yield "embed_tokens.weight", (CONFIG["vocab_size"], hidden)
    for i in range(CONFIG["num_hidden_layers"]):
        layer = f"layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}{name}.weight", (hidden,)
        for name in ("q_norm", "k_norm"):
            yield f"{layer}self_attn.{name}.weight", (head,)
        for name, shape in {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            yield f"{layer}{name}.weight", shape
    yield "norm.weight", (hidden,)


def make_checkpoint(folder, tokenizer):
    folder.mkdir(parents=True)
    random = numpy.random.default_rng(11)
    header, offset = {}, 0
    for name, shape in shapes():
        size = 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes():
            values = random.standard_normal(shape, dtype=numpy.float32)
            # As trained models have them: norms around 1, the rows of products of about the length of their input.
            values = 1 + 0.2 * values if len(shape) == 1 else values / numpy.float32(shape[1]) ** numpy.float32(0.5)
            out.write((values.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes())
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / name)


def run(thane, *args):
    start = time.monotonic()
    process = subprocess.Popen([thane, *args], stdout=subprocess.PIPE)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"thane {' '.join(args)} ended with {status}")
    return json.loads(out), {"seconds": round(time.monotonic() - start, 1), "peak_mb": round(usage.ru_maxrss * 1024 / 1e6)}


def cosines(a, b):
    a, b = (numpy.asarray(v, dtype=numpy.float64).reshape(-1, CONFIG["hidden_size"]) for v in (a, b))
    return ((a * b).sum(1) / numpy.linalg.norm(a, axis=1) / numpy.linalg.norm(b, axis=1)).tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--thane", default="target/release/thane")
    parser.add_argument("--buckets", default="512,1024")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--checkpoint-only", action="store_true", help="make the checkpoint and end")
    args = parser.parse_args()
    checkpoint, packages = args.folder / "qwen3-0.6b-random", args.folder / "packages"
    if not (checkpoint / "tokenizer_config.json").exists():
        shutil.rmtree(checkpoint, ignore_errors=True)
        make_checkpoint(checkpoint, pathlib.Path(__file__).parent.parent / "tests/models/tiny-embed/qwen3-pplx")
    if args.checkpoint_only:
        return
    common = ("convert", "--json", "--force", "--task", "embed", str(checkpoint), "--buckets")
    report, cost = run(args.thane, *common, args.buckets, "--layout", "folder", "-o", str(packages))
    print(json.dumps({"converted": report["buckets"], "bytes": report["bytes"], "disk_bytes": report["disk_bytes"]} | cost))
    hashes = {}
    for weights in sorted(packages.glob("*.mlpackage/Data/com.apple.CoreML/weights/weight.bin")):
        with open(weights, "rb") as file:
            hashes[weights.parts[-5]] = hashlib.file_digest(file, "sha256").hexdigest()
    print(json.dumps({"weight.bin": hashes, "one": len(set(hashes.values())) == 1}), flush=True)

    words = " ".join(f"word{i * 7919 % 997}" for i in range(args.tokens))
    chunks = args.folder / "chunks.jsonl"
    chunks.write_text(json.dumps({"text": [words[: len(words) // 8], words[len(words) // 8 : len(words) // 4]]}) + "\n")
    one = args.folder / "one.mlpackage"
    for kind, extra, texts in (("text", (), (words,)), ("chunks", ("--chunks",), ("--chunks", "--file", str(chunks)))):
        run(args.thane, *common, str(args.tokens), "--no-flexible", *extra, "-o", str(one))
        flags = ("embed", "--json", "--truncate", "--max-length", str(args.tokens), "--format", "float")
        found, ane = run(args.thane, *flags, "--numerics", "ane", str(one), *texts)
        expected, f32 = run(args.thane, *flags, "--numerics", "f32", str(checkpoint), *texts)
        found, expected = (numpy.array(r["embeddings"], dtype=numpy.float64) for r in (found, expected))
        int8 = [numpy.round(numpy.tanh(v) * 127) for v in (found, expected)]
        row = {"of": kind, "tokens": args.tokens, "cosine": cosines(found, expected), "int8": cosines(*int8)}
        print(json.dumps(row | {"ane_s": ane["seconds"], "f32_s": f32["seconds"]}), flush=True)


if __name__ == "__main__":
    main()
