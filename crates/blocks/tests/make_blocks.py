"""Write blocks.bin: blocks of every quantized type with the values that the gguf package gives.

    python3 crates/blocks/tests/make_blocks.py            write blocks.bin, print the errors by type
    python3 crates/blocks/tests/make_blocks.py --check    say whether blocks.bin is up to date

Needs numpy and gguf (pip install gguf). All scales are finite; seeds are literals.

For each type the file holds the name (8 bytes, zero-padded), the number of blocks, the bytes and
the values of a block (u32 each, little endian), then the bytes of the blocks, then the values (f32,
little endian).

The errors are those of `scale * (code - offset)`, the form of the MIL constants (see
crates/models/src/quant.rs). They are measured from the package alone: the minimum of a group is its
value where all codes are 0, its scale the value where all codes are 1 and the minimum is 0. The
formula is then computed in float32, as a backend does.
"""

import importlib.util
import struct
import sys
from pathlib import Path

missing = [name for name in ("numpy", "gguf") if importlib.util.find_spec(name) is None]
if missing:
    install = f"python3 -m pip install {' '.join(missing)}"
    sys.exit(f"make_blocks.py: needs {', '.join(missing)}: {install}")

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

PATH = Path(__file__).with_name("blocks.bin")
SEED = 20261201
# Committed blocks beside the edges, and blocks that are measured (of each kind of scale).
N_BLOCKS = {32: 12, 256: 5}
N_MEASURED = 4096

# Type: offset of the fp16 scale of a block, and of its fp16 minimum; bytes of the small scales; bytes
# of the codes and the byte that makes every code 1.
TYPES = {
    "Q4_0": (0, None, None, None),
    "Q4_1": (0, 2, None, (4, 20, 0x11)),
    "Q5_0": (0, None, None, None),
    "Q5_1": (0, 2, None, (8, 24, 0x11)),
    "Q8_0": (0, None, None, None),
    "Q2_K": (80, 82, (0, 16), (16, 80, 0x55)),
    "Q3_K": (108, None, (96, 108), None),
    "Q4_K": (0, 2, (4, 16), (16, 144, 0x11)),
    "Q5_K": (0, 2, (4, 16), (48, 176, 0x11)),
    "Q6_K": (208, None, (192, 208), None),
    "IQ4_NL": (0, None, None, None),
    "IQ4_XS": (0, None, (2, 8), None),
    "MXFP4": (None, None, None, None),
}
# Where a block has an exponent in E8M0. From 252 on, 12 times the scale is infinite.
E8M0 = {"MXFP4": 0}
E8M0_EDGES = [0, 1, 2, 127, 251]
# Where the fifth bits are: 0 in the probes.
FIFTH = {"Q5_1": (4, 8), "Q5_K": (16, 48)}

# fp16 bits: one; minus one; zero; minus zero; the largest; the smallest subnormal; a negative
# subnormal; 0.0123.
ONE, MINUS, ZERO, MINUS_ZERO = 0x3C00, 0xBC00, 0, 0x8000
MOST, LEAST, TINY, COMMON = 0x7BFF, 1, 0x8155, 0x224C
EDGES = [
    (ZERO, COMMON), (ZERO, MINUS), (MINUS_ZERO, MOST), (ZERO, LEAST), (ZERO, ZERO), (COMMON, ZERO),
    (MINUS, COMMON), (MINUS, MINUS_ZERO), (MOST, LEAST), (LEAST, MOST), (MOST, 0xFBFF),
    (LEAST, LEAST), (TINY, TINY), (ONE, ONE),
]  # fmt: skip
# The small scales of some of the edges: all zero; the first scales of Q4_K and Q5_K zero and every
# minimum at its largest.
SMALL = {5: bytes(16), 6: bytes(4) + b"\xff" * 4 + b"\xf0" * 8}


def set_halves(blocks, at, halves):
    if at is not None:
        blocks[:, at : at + 2] = np.asarray(halves, "<u2").view(np.uint8).reshape(-1, 2)


def random_blocks(name, n_blocks, rng, common):
    """Random bits; scales of any size and sign, or (`common`) of the size that weights have."""
    scale, minimum, _, _ = TYPES[name]
    block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    blocks = rng.integers(0, 256, (n_blocks, block_bytes), dtype=np.uint8)
    for at, size in ((scale, 0.01), (minimum, 0.05)):
        halves = rng.integers(0, 1 << 16, n_blocks, dtype=np.uint16)
        # An exponent of 31 is infinity or NaN.
        halves = np.where(halves >> 10 & 31 == 31, halves & np.uint16(0xBFFF), halves)
        usual = (size * rng.standard_normal(n_blocks)).astype(np.float16).view(np.uint16)
        set_halves(blocks, at, usual if common else halves)
    if name in E8M0:
        least, most = (116, 128) if common else (0, 251)
        blocks[:, E8M0[name]] = rng.integers(least, most + 1, n_blocks, dtype=np.uint8)
    return blocks


def edge_blocks(name, rng):
    scale, minimum, small, _ = TYPES[name]
    blocks = random_blocks(name, len(EDGES), rng, True)
    set_halves(blocks, scale, [edge[0] for edge in EDGES])
    set_halves(blocks, minimum, [edge[1] for edge in EDGES])
    if name in E8M0:
        blocks[: len(E8M0_EDGES), E8M0[name]] = E8M0_EDGES
    for index, content in SMALL.items():
        if small:
            blocks[index, small[0] : small[1]] = list(content[: small[1] - small[0]])
    return blocks


def values_of(name, blocks):
    values = dequantize(blocks, GGMLQuantizationType[name]).astype("<f4")
    assert np.isfinite(values).all(), name
    return values


def probe(name, blocks, codes=None, no_minimum=False):
    """The values of the blocks with every code set to 0 or 1, or with the minimum at 0."""
    _, minimum, _, (start, end, ones) = TYPES[name]
    blocks = blocks.copy()
    if codes is not None:
        blocks[:, start:end] = ones * codes
        start, end = FIFTH.get(name, (0, 0))
        blocks[:, start:end] = 0
    if no_minimum:
        set_halves(blocks, minimum, np.zeros(len(blocks)))
    return values_of(name, blocks)


def formula_errors(name, blocks):
    """|ours - theirs| / (|scale * code| + |minimum|), 0 where both terms are."""
    theirs = values_of(name, blocks)
    minimum = probe(name, blocks, codes=0)
    scale = probe(name, blocks, codes=1, no_minimum=True)
    product = probe(name, blocks, no_minimum=True)
    huge = np.float32(2**30)
    with np.errstate(divide="ignore", invalid="ignore"):
        # 31, the largest, where the scale is 0 and the code does not show.
        code = np.where(scale == 0, np.float32(31), np.rint(product / scale))
        offset = np.where(minimum == 0, np.float32(0), -minimum / scale)
        alone = (scale == 0) & (minimum != 0)
        offset = np.where(alone, -np.copysign(huge, minimum), offset)
        scale = np.where(alone, np.abs(minimum) / huge, scale)
        ours = scale * (code - offset)
        assert ours.dtype == np.float32 and np.isfinite(ours).all(), name
        size = np.abs(product.astype(np.float64)) + np.abs(minimum.astype(np.float64))
        return np.where(size == 0, np.abs(ours), np.abs(ours.astype(np.float64) - theirs) / size)


def measure():
    rng = np.random.default_rng(SEED + 1)
    for name, (_, minimum, _, _) in TYPES.items():
        if minimum is None:
            continue
        kinds = {"any scale": False, "common scale": True}
        worst = {
            kind: formula_errors(name, random_blocks(name, N_MEASURED, rng, common)).max()
            for kind, common in kinds.items()
        }
        worst["edges"] = formula_errors(name, edge_blocks(name, rng)).max()
        errors = ", ".join(f"{error:.3g} ({kind})" for kind, error in worst.items())
        print(f"{name}: worst error {errors}")


def content():
    rng = np.random.default_rng(SEED)
    parts = []
    for name in TYPES:
        block_len, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
        n = N_BLOCKS[block_len]
        blocks = np.concatenate([
            edge_blocks(name, rng),
            random_blocks(name, n, rng, False),
            random_blocks(name, n, rng, True),
        ])
        parts.append(struct.pack("<8sIII", name.encode(), len(blocks), block_bytes, block_len))
        parts += [blocks.tobytes(), values_of(name, blocks).tobytes()]
    return b"".join(parts)


def main():
    if "--check" in sys.argv[1:]:
        same = PATH.is_file() and PATH.read_bytes() == content()
        print(f"{PATH.name} is {'as generated' if same else 'NOT as generated'}")
        return 0 if same else 1
    print(f"wrote {PATH.write_bytes(content())} bytes to {PATH.name}")
    measure()
    return 0


if __name__ == "__main__":
    sys.exit(main())
