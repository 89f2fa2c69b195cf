"""Makes tests/ane/sums.json: sums of fp16 products in the Neural Engine's accumulator.

    python3 tests/oracle/make_ane.py            # write the file
    python3 tests/oracle/make_ane.py --check    # compare with the file that is there

Two kinds of cases, fp16 as bits:
- `measured`: what an M4 and an M6 gave (751K/Apple-Neural-Engine-Microarchitecture-Study-M6, data/06_numerics, October 2026,
  macOS 27.0.1; the file is named with each case). The model below must give every one of them, or nothing is written.
- `computed`: random sums by that model, in exact fractions, with all effects and with each of the accumulator's switched off.
The script also holds numpy's fp16 against the rule that the Rust test uses for rounding half way to the even number.
Needs numpy; all seeds are literals.
"""

import json
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np

PATH = Path(__file__).resolve().parents[1] / "ane" / "sums.json"
UNIT = Fraction(1, 1 << 16)
INF = float("inf")
SWITCHES = ["fixed-point-accumulator", "accumulator-overflow", "drop-small-products", "round-half-away", "decode-specials"]


def bits(value):
    return int(np.float16(value).view(np.uint16))


def decoded(half, off):
    """The number that an operand counts as."""
    sign, exponent, fraction = half >> 15, half >> 10 & 31, half & 1023
    if exponent == 31 and "decode-specials" in off:
        return float(np.uint16(half).view(np.float16))
    # A cast before makes NaN quiet.
    fraction |= 512 if exponent == 31 and fraction else 0
    magnitude = Fraction(fraction, 1024) if exponent == 0 else 1 + Fraction(fraction, 1024)
    return (-1 if sign else 1) * magnitude * Fraction(2) ** (max(exponent, 1) - 15)


def exponent(half):
    return max(half >> 10 & 31, 1) - 15


def half_away(x):
    """The nearest integer, half way away from zero."""
    n = int(abs(x) + Fraction(1, 2))
    return n if x >= 0 else -n


def to_half(x, off):
    """fp16 bits of an exact number."""
    if isinstance(x, float):
        return bits(x)
    if x == 0:
        return 0
    size, sign = abs(x), 0x8000 if x < 0 else 0
    power = -14
    while size >= Fraction(2) ** (power + 1):
        power += 1
    step = Fraction(2) ** (power - 10)
    n, rest = divmod(size, step)
    up = rest * 2 > step or (rest * 2 == step and ("round-half-away" not in off or n % 2 == 1))
    rounded = (n + up) * step
    return sign | (0x7C00 if rounded > 65504 else bits(float(rounded)))


def total(x, w, bias, off):
    fixed, limited = "fixed-point-accumulator" not in off, "accumulator-overflow" not in off
    x_values, w_values = [decoded(v, off) for v in x], [decoded(v, off) for v in w]
    if any(isinstance(v, float) for v in x_values + w_values):
        return sum((float(a) * float(b) for a, b in zip(x_values, w_values)), start=float(decoded(bias, off)))
    align = (lambda v: half_away(v / UNIT) * UNIT) if fixed else float
    sum_ = align(decoded(bias, off))
    for i, (a, b) in enumerate(zip(x_values, w_values)):
        if limited and abs(sum_) >= 32768:
            break
        if "drop-small-products" in off or exponent(x[i]) + exponent(w[i]) >= -16:
            sum_ += align(a * b)
    if limited and abs(sum_) >= 32768:
        return INF if sum_ > 0 else -INF
    return Fraction(sum_)


def answer(case, off=()):
    return to_half(total(case["x"], case["w"], case["bias"], off), off)


def case(x, w=None, bias=0.0, **more):
    w = [1.0] * len(x) if w is None else w
    return {"x": [v if isinstance(v, int) else bits(v) for v in x], "w": [bits(v) for v in w], "bias": bits(bias), **more}


def measured():
    def m4(x, y, w=None):
        yield case([float(v) for v in x], w and [float(v) for v in w], source="numerics2_m4.txt", expected=bits(y))

    for v in [16384, 24576, 30000, 32000, 32736, 32752, -32752]:
        yield from m4([v], v)
    for v in [32768, 32784, 40000, 49152, 65504]:
        yield from m4([v], INF)
    for v in [-32768, -65504]:
        yield from m4([v], -INF)
    for x, y in [
        ((16000, 16000), 32000), ((16376, 16376), 32752), ((16384, 16368), 32752), ((16384, 16376), 32768),
        ((16384, 16384), INF), ((30000, 2752), 32752), ((30000, 2768), INF),
    ]:  # fmt: skip
        yield from m4(x, y)
    for k in range(13, 25):
        yield from m4([2.0**-k], 2.0 ** -min(k, 16) if k <= 17 else 0)
    for k, y in [(13, 1.5 * 2.0**-13), (14, 1.5 * 2.0**-14), (15, 1.5 * 2.0**-15), (16, 2.0**-15), (17, 2.0**-16)]:
        yield from m4([1.5 * 2.0**-k], y)
    for k in range(18, 24):
        yield from m4([1.5 * 2.0**-k], 0)
    for x, y in [
        ((2048, 1), 2050), ((-2048, -1), -2050), ((2050, 1), 2052), ((-2050, -1), -2052), ((1, 2**-11), 1 + 2**-10),
        ((-1, -(2**-11)), -1 - 2**-10), ((1, 2**-12), 1), ((1, 2**-11, 2**-13), 1 + 2**-10), ((1, 2**-11, -(2**-13)), 1),
        ((1, 2**-13), 1), ((4096, 2), 4100), ((4096, 6), 4104), ((-4096, -2), -4100),
    ]:  # fmt: skip
        yield from m4(x, y)
    for big in [1024, 16384]:
        for k in range(0, 26, 2):
            yield from m4((big, 2.0**-k, -big), 2.0**-k if k <= 16 else 0)
    for x in [(16384, 16384, -16384, -16384, 1), (16384,) * 3 + (-16384,) * 3 + (1,), (30000, 30000, -30000, -30000, 1)]:
        yield from m4(x, INF)
    yield from m4((16384, 16384, 1) + (0,) * 59 + (-16384, -16384), INF)
    for x, y in [(127, 32512), (128, INF), (129, INF), (2**-8, 1), (2**-10, 0.25), (2**-14, 2**-6), (2**-16, 2**-8), (3, 768)]:
        yield from m4([x], y, [256])
    for x, y in [(127, 0.49609375), (129, 0.50390625), (2**-8, 2**-16), (2**-10, 0), (2**-14, 0), (2**-16, 0), (3, 3 / 256)]:
        yield from m4([x], y, [2**-8])

    def m6(source, x, w, bias, y):
        return case(x, w, bias, source=source, expected=bits(y))

    biases = "numerics5_m6.txt"
    for bias, x, y in [
        (-16384, (16384, 16384), 16384), (-16384, (16384,), 0), (-16384, (0,), -16384), (-16384, (32752,), 16368),
        (-16384, (16384, 16384, 16384), INF), (32, (32752,), INF), (32, (32736,), INF), (32, (0,), 32),
        (32, (16384, 16368), INF), (2**-20, (0,), 0), (2**-20, (2**-16,), 2**-16), (2**-20, (2**-17,), 2**-16),
        (2**-17, (0,), 2**-16), (2**-17, (2**-17,), 2**-15), (2**-17, (2**-16,), 2**-15), (2**-12, (0,), 2**-12),
        (2**-12, (1,), 1), (2**-12, (2**-16,), 2**-12 + 2**-16), (1000.5, (0.25,), 1001), (-1, (1,), 0),
        (-1, (0.5,), -0.5), (-1, (2**-17,), -1),
    ]:  # fmt: skip
        yield m6(biases, [float(v) for v in x], None, bias, y)
    lsb = 2.0**-16
    for w in [2.0**-12, 2.0**-8, 2.0**-4]:
        for n, y in [(0.25, 0), (0.5, 0), (0.75, 0), (1, 1), (1.5, 2), (2.5, 3), (3.5, 4), (-0.5, 0), (-1.5, -2), (-2.5, -3)]:
            yield m6(biases, [n * lsb / w], [w], 0, y * lsb)
    for w in [0.25, 0.5, 1.0, 2.0]:
        for n, y in [(0.25, 0), (0.5, 1), (0.75, 1), (1, 1), (1.5, 2), (2.5, 3), (3.5, 4), (-0.5, -1), (-1.5, -2), (-2.5, -3)]:
            yield m6(biases, [n * lsb / w], [w], 0, y * lsb)
    for w, xs in [
        (0.234375, (0.00011444091796875, 6.103515625e-05, 9.1552734375e-05, 6.0439109802246094e-05)),
        (0.248779296875, (0.0001214742660522461, 6.103515625e-05, 5.4955482482910156e-05)),
        (0.09375, (0.00018310546875, 0.0002319812774658203, 0.0001220703125, 0.00011599063873291016)),
        (0.060546875, (0.00023651123046875, 0.0004730224609375, 0.000244140625)),
        (0.199951171875, (6.0439109802246094e-05, 4.881620407104492e-05, 6.103515625e-05)),
    ]:
        for x in xs:
            yield m6("numerics6_m6.txt", [x], [w], 0, 0)
    for w in [2.0**-12, 2.0**-4]:
        for x, y in [
            (0x7C00, 65536), (0xFC00, -65536), (0x7E00, 98304), (0x7C01, 98368), (0x7FFF, 131008), (0xFE00, -98304),
            (0x7BFF, 65504), (0x8000, 0),
        ]:  # fmt: skip
            yield m6("numerics4_m6.txt", [x], [w], 0, y * w)


def computed():
    random = np.random.RandomState(20261003)
    for n, scale in [(1, 1), (5, 40), (16, 0.004), (17, 30), (33, 1), (64, 0.003), (100, 25), (257, 9), (48, 100), (31, 90)]:
        for _ in range(3):
            x, w = (random.standard_normal(n) * scale).astype(np.float16), random.standard_normal(n).astype(np.float16)
            # Powers of two on both sides make ties and products near the limit frequent.
            w = np.where(random.rand(n) < 0.5, np.float16(2.0) ** random.randint(-9, 6), w).astype(np.float16)
            bias = np.float16(random.standard_normal() * scale)
            yield case([float(v) for v in x], [float(v) for v in w], float(bias))
    yield case([30000.0, 30000.0, -30000.0, 2049.0], [1.0, 1.0, 1.0, 1.0])
    yield case([0x7C00, 3.0, 0x7E01], [0.125, 2.0, -0.0625], 1.0)


def check_rounding():
    """Half way between fp16 numbers numpy takes the even one: bits i stay, or become i + 1 where i is odd."""
    halves = np.arange(0x7C00, dtype=np.uint16)
    above = np.append(halves[1:].view(np.float16).astype(np.float64), 65536.0)
    middle = (halves.view(np.float16).astype(np.float64) + above) / 2
    with np.errstate(over="ignore"):
        assert (middle.astype(np.float16).view(np.uint16) == halves + halves % 2).all()
        assert ((-middle).astype(np.float16).view(np.uint16) == (halves + halves % 2) + 0x8000).all()


def main():
    check_rounding()
    known = list(measured())
    wrong = [c for c in known if answer(c) & 0x7FFF != c["expected"] & 0x7FFF or (answer(c) ^ c["expected"]) & 0x8000 and c["expected"] & 0x7FFF]
    assert not wrong, wrong
    found = list(computed())
    for c in found:
        c["expected"] = {"": answer(c), **{off: answer(c, (off,)) for off in SWITCHES}, "all": answer(c, SWITCHES)}
    lines = ",\n".join(json.dumps(c) for c in known), ",\n".join(json.dumps(c) for c in found)
    text = '{"measured": [\n%s\n], "computed": [\n%s\n]}\n' % lines
    if "--check" in sys.argv:
        sys.exit(0 if PATH.read_text() == text else f"{PATH} differs")
    PATH.write_text(text)
    print(f"{len(known)} measured, {len(found)} computed")


if __name__ == "__main__":
    main()
