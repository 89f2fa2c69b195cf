"""Writes blocks.bin: random blocks of every quantised type with the values that the gguf package gives them.

    python3 make_blocks.py            writes blocks.bin beside this file
    python3 make_blocks.py --check    says whether blocks.bin is what it would write

Needs numpy and gguf (pip install gguf). The f16 scales are finite, of any size and sign; all other bits are random.

The file: for each type the name (8 bytes, zero-padded), the number of blocks, the bytes and the values of a block (u32 each, little endian),
then the bytes of the blocks, then the values (f32, little endian).
"""

import struct
import sys
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

SEED = 20261121
N_BLOCKS = {32: 12, 256: 4}
# Where the f16 values of a block are.
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
}


def blocks_of(name, rng):
    ty = GGMLQuantizationType[name]
    block_len, block_bytes = GGML_QUANT_SIZES[ty]
    n_blocks = N_BLOCKS[block_len]
    blocks = rng.integers(0, 256, (n_blocks, block_bytes), dtype=np.uint8)
    for at in HALVES[name]:
        halves = rng.integers(0, 1 << 16, n_blocks, dtype=np.uint16)
        # An exponent of 31 is infinity or NaN.
        halves = np.where(halves >> 10 & 31 == 31, halves & np.uint16(0xBFFF), halves).astype("<u2")
        # The first block has a subnormal scale, the second a zero.
        halves[0] = 0x8155
        halves[1] = 0
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(n_blocks, 2)
    values = dequantize(blocks, ty).astype("<f4")
    assert values.shape == (n_blocks, block_len) and np.isfinite(values).all(), name
    head = struct.pack("<8sIII", name.encode(), n_blocks, block_bytes, block_len)
    return head + blocks.tobytes() + values.tobytes()


def main():
    rng = np.random.default_rng(SEED)
    content = b"".join(blocks_of(name, rng) for name in HALVES)
    path = Path(__file__).with_name("blocks.bin")
    if "--check" in sys.argv[1:]:
        same = path.read_bytes() == content
        print(f"{path.name} is {'as generated' if same else 'NOT as generated'}")
        return 0 if same else 1
    path.write_bytes(content)
    print(f"wrote {len(content)} bytes to {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
