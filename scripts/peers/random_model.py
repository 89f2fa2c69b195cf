"""Writes a model of 0.5B parameters with random weights as GGUF, one file for each type of its matrices.

    PEER/bin/python scripts/peers/random_model.py FOLDER --tokenizer FILE.gguf [--types q4_0,q8_0,bf16] [--force]

FOLDER gets random-0.5b-TYPE.gguf: the sizes of Qwen2.5-0.5B with the ops of llama, 494M parameters, 14 query heads on 2 of keys and
values, the head tied to 151,936 embeddings. All types are of the same numbers, drawn once. The tokenizer is that of FILE, and
names like ` r49152` for the tokens behind its own. PEER is an environment with `gguf` and `numpy` (llama.cpp's of setup.sh has them).
Needs as much disk as the files have, 1.8 GB for all three, and 0.7 GB of memory.
"""

import argparse
import pathlib
import sys

import gguf
import numpy

NAME = "random-0.5b"
LAYERS, HIDDEN, INNER, HEAD = 24, 896, 4864, 64
QUERY_HEADS, KEY_HEADS, VOCAB, CONTEXT = 14, 2, 151_936, 8192
# Of the normal distribution that a logit has. At 1 the two likeliest of 152k tokens are 0.2 apart, within what 4-bit weights
# and 8-bit activations change; at 4 most greedy steps are as clear as those of a trained model.
LOGIT_SPREAD = 4.0
# Rows that are drawn and quantized at once: 29 MB in fp32 of the widest matrix.
ROWS = 1536


def shapes():
    """Name and [rows, columns] or [elements] of each tensor."""
    yield "token_embd.weight", (VOCAB, HIDDEN)
    for i in range(LAYERS):
        yield f"blk.{i}.attn_norm.weight", (HIDDEN,)
        yield f"blk.{i}.attn_q.weight", (QUERY_HEADS * HEAD, HIDDEN)
        yield f"blk.{i}.attn_k.weight", (KEY_HEADS * HEAD, HIDDEN)
        yield f"blk.{i}.attn_v.weight", (KEY_HEADS * HEAD, HIDDEN)
        yield f"blk.{i}.attn_output.weight", (HIDDEN, QUERY_HEADS * HEAD)
        yield f"blk.{i}.ffn_norm.weight", (HIDDEN,)
        yield f"blk.{i}.ffn_gate.weight", (INNER, HIDDEN)
        yield f"blk.{i}.ffn_up.weight", (INNER, HIDDEN)
        yield f"blk.{i}.ffn_down.weight", (HIDDEN, INNER)
    yield "output_norm.weight", (HIDDEN,)


def layout(shape, ty):
    """Type, shape and elements as they are stored: of blocks the bytes; vectors stay fp32."""
    if len(shape) == 1:
        return gguf.GGMLQuantizationType.F32, shape, numpy.float32
    return ty, gguf.quant_shape_to_byte_shape(shape, ty), numpy.uint8


def parts(name, shape, random):
    """The tensor in fp32, some rows at a time."""
    if len(shape) == 1:
        around = LOGIT_SPREAD if name.startswith("output_norm") else 1.0
        yield (around * (1 + 0.2 * random.standard_normal(shape, dtype=numpy.float32))).astype(numpy.float32)
        return
    for start in range(0, shape[0], ROWS):
        rows = (min(ROWS, shape[0] - start), shape[1])
        # As trained models have them, about as long as their input: each product keeps the size of what goes through it.
        yield random.standard_normal(rows, dtype=numpy.float32) / numpy.float32(shape[1]) ** numpy.float32(0.5)


def add_tokenizer(writer, fields):
    prefix = "tokenizer."
    for key, field in fields.items():
        # The template is of a model that was taught it.
        if not key.startswith(prefix) or key == "tokenizer.chat_template":
            continue
        value, ty = field.contents(), field.types[0]
        sub = field.types[1] if ty == gguf.GGUFValueType.ARRAY else None
        if key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.scores"):
            if len(value) > VOCAB:
                sys.exit(f"the tokenizer has {len(value)} tokens, the model {VOCAB}: take a file with fewer")
            fill = {"tokens": lambda i: f"\u0120r{i}", "token_type": lambda _: int(gguf.TokenType.NORMAL), "scores": lambda _: -1e9}
            value = value + [fill[key.rsplit(".", 1)[1]](i) for i in range(len(value), VOCAB)]
        writer.add_key_value(key, value, ty, sub)


def open_writer(path, fields, ty):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"random 0.5B {ty.name}")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(QUERY_HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(VOCAB)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{ty.name}"])
    add_tokenizer(writer, fields)
    for name, shape in shapes():
        kind, stored, dtype = layout(shape, ty)
        n_bytes = int(numpy.prod(stored)) * numpy.dtype(dtype).itemsize
        writer.add_tensor_info(name, stored, numpy.dtype(dtype), n_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    return writer


def make(paths, tokenizer):
    """Writes a file for each type: `paths` by type."""
    try:
        fields = gguf.GGUFReader(tokenizer).fields
    except (OSError, ValueError) as error:
        sys.exit(f"{tokenizer}: no GGUF file to take the tokenizer of: {error}")
    if "tokenizer.ggml.tokens" not in fields:
        sys.exit(f"{tokenizer} has no tokenizer.ggml.tokens: take a GGUF file with a tokenizer")
    unfinished = {ty: path.with_suffix(".part") for ty, path in paths.items()}
    writers = {ty: open_writer(path, fields, ty) for ty, path in unfinished.items()}
    random = numpy.random.default_rng(5)
    for name, shape in shapes():
        stored = {ty: numpy.empty(*layout(shape, ty)[1:]) for ty in writers}
        start = 0
        for part in parts(name, shape, random):
            for ty, whole in stored.items():
                whole[start : start + len(part)] = part if part.ndim == 1 else gguf.quants.quantize(part, ty)
            start += len(part)
        for ty, whole in stored.items():
            writers[ty].write_tensor_data(whole)
    for ty, writer in writers.items():
        writer.close()
        # Whole or not there.
        unfinished[ty].rename(paths[ty])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--types", default="q4_0,q8_0,bf16")
    parser.add_argument("--force", action="store_true", help="write anew what is there")
    args = parser.parse_args()
    known = {name: gguf.GGMLQuantizationType[name.upper()] for name in ("q4_0", "q8_0", "bf16")}
    unknown = [name for name in args.types.split(",") if name not in known]
    if unknown:
        parser.error(f"--types {unknown[0]}: the types are {', '.join(known)}")
    args.folder.mkdir(parents=True, exist_ok=True)
    paths = {known[name]: args.folder / f"{NAME}-{name}.gguf" for name in args.types.split(",")}
    wanted = {ty: path for ty, path in paths.items() if args.force or not path.exists()}
    if wanted:
        make(wanted, args.tokenizer)
    for path in paths.values():
        print(path)


if __name__ == "__main__":
    main()
