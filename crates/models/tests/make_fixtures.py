"""Writes checkpoint/fixtures: small files made by the packages that define the formats, and what they contain.

Run as `python3 crates/models/tests/make_fixtures.py` where the packages gguf, safetensors, numpy and torch are
installed. The output depends on nothing but this script and those packages (seeds are literals). The expectations are
written from the values put in, and checked here against the packages' own readers.
"""

import json
import pathlib
import sys

try:
    import gguf
    import numpy as np
    import safetensors
    import safetensors.torch
    import torch
except ImportError as missing:
    sys.exit(f"{missing}: pip install gguf safetensors numpy torch")

FOLDER = pathlib.Path(__file__).parent / "checkpoint" / "fixtures"
RNG = np.random.default_rng(20260917)

SCALARS = {
    "test.u8": ("uint8", 200),
    "test.i8": ("int8", -100),
    "test.u16": ("uint16", 60000),
    "test.i16": ("int16", -30000),
    "test.u32": ("uint32", 4000000000),
    "test.i32": ("int32", -2000000000),
    "test.u64": ("uint64", 2**63 + 5),
    "test.i64": ("int64", -(2**62)),
    "test.f32": ("float32", 0.15625),
    "test.f64": ("float64", 1e-300),
    "test.bool": ("bool", True),
    "test.string": ("string", "thane \u00e6\u65e5\u672c \U0001f600"),
}
ARRAYS = {
    "test.i32s": ("int32", [3, -1, 2147483647]),
    "test.f32s": ("float32", [0.5, -2.0, 1024.25]),
    "test.bools": ("bool", [True, False, True]),
    "test.strings": ("string", ["<s>", "", "\u2581the", "\u00e9"]),
    "test.nested": ("array", [[1, 2], [3], [4, 5, 6]]),
}
# Enough types that each block size is seen; the quantized bytes are random, for nothing here reads numbers.
TYPES = [
    "F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
]  # fmt: skip


def make_gguf():
    path = FOLDER / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, (kind, value) in SCALARS.items():
        add = {"bool": writer.add_bool, "string": writer.add_string}.get(kind)
        add = add or getattr(writer, "add_" + kind)
        add(key, value)
    for key, (_, values) in ARRAYS.items():
        writer.add_array(key, values)
    tensors = {}
    for number, name in enumerate(TYPES):
        kind = gguf.GGMLQuantizationType[name]
        block_len, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        row_len = block_len if block_len > 1 else 3 + number
        shape = (2, row_len) if number % 2 else (3, 1, row_len)
        rows = int(np.prod(shape[:-1]))
        raw = RNG.integers(0, 256, (rows, row_len // block_len * block_bytes), dtype=np.uint8)
        raw = raw.reshape(*shape[:-1], -1)
        writer.add_tensor(f"tensor.{name}", raw, raw_shape=None, raw_dtype=kind)
        tensors[f"tensor.{name}"] = {"type": name, "shape": list(shape), "hex": raw.tobytes().hex()}
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    reader = gguf.GGUFReader(path)
    for key, (_, value) in (SCALARS | ARRAYS).items():
        if key != "test.nested":  # the package's reader does not nest
            assert reader.fields[key].contents() == value, key
    for tensor in reader.tensors:
        expected = tensors[tensor.name]
        assert [int(dim) for dim in reversed(tensor.shape)] == expected["shape"], tensor.name
        assert tensor.tensor_type.name == expected["type"], tensor.name
        assert np.ascontiguousarray(tensor.data).tobytes().hex() == expected["hex"], tensor.name
    assert len(reader.tensors) == len(tensors)
    expected = {"scalars": SCALARS, "arrays": ARRAYS, "tensors": tensors}
    (FOLDER / "small.gguf.json").write_text(json.dumps(expected, indent=1) + "\n")


def make_safetensors():
    generator = torch.Generator().manual_seed(7)
    types = {
        "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64, "I8": torch.int8,
        "I16": torch.int16, "I32": torch.int32, "I64": torch.int64, "U8": torch.uint8, "BOOL": torch.bool,
    }  # fmt: skip
    tensors = {}
    for number, (name, dtype) in enumerate(types.items()):
        values = torch.randint(0, 100, (2, 3 + number), generator=generator)
        tensors[f"tensor.{name}"] = (values % 2 if dtype is torch.bool else values - 50 * dtype.is_signed).to(dtype)
    tensors["scalar"] = torch.tensor(-1.5)
    tensors["empty"] = torch.zeros((0, 3), dtype=torch.float16)
    path = FOLDER / "small.safetensors"
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt", "made_by": "make_fixtures.py"})
    back = safetensors.torch.load_file(path)
    names = {dtype: name for name, dtype in types.items()}
    expected = {}
    for name, tensor in tensors.items():
        assert torch.equal(back[name], tensor), name
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        expected[name] = {"type": names[tensor.dtype], "shape": list(tensor.shape), "hex": raw.hex()}
    (FOLDER / "small.safetensors.json").write_text(json.dumps({"tensors": expected}, indent=1) + "\n")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    make_gguf()
    make_safetensors()
    print(f"wrote {FOLDER} with gguf, safetensors {safetensors.__version__}, torch {torch.__version__}")
