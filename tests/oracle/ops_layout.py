"""Cases of the ops that give elements another place or shape."""

import numpy as np
import ops_core
from case import *
from ops_gather import NUMBERS, as_of

SHAPE_INTS = (I32, I16, I8)


def both(op):
    """The cases of an op that iOS 17 gave more types, and those of them that iOS 15 takes."""
    newest = getattr(ops_core, op)(op)
    return newest + as_of("ios15", newest, BASIC)


def expand_dims(op):
    return both(op)


def squeeze(op):
    return both(op)


def transpose(op):
    return both(op)


def slice_by_index(op):
    r = Random(f"{op} older")
    narrow = Case({"x": r.floats(3, 5)}, {"begin": np.array([0, -2], I16), "end": np.array([2, 5], I16)})
    given = Case({"x": r.floats(4, 3), "begin": np.array([1, 0], I8), "end": np.array([4, 2], I8)})
    return both(op) + [narrow, given]


def slice_update(op):
    r = Random(f"{op} more")
    bounds = {"begin": np.array([0, -2], I16), "end": np.array([2, 5], I16), "stride": np.array([1, 1], I16)}
    return ops_core.slice_update(op) + [Case({"x": r.floats(3, 5), "update": r.floats(2, 2)}, bounds)]


def reshape(op):
    newest = ops_core.reshape(op)
    r = Random(f"{op} older")
    # Before iOS 17 a 0 needs the rank of x.
    old = [c for c in newest if "shape" not in c.constants or 0 not in c.constants["shape"]]
    old += [Case({"x": r.floats(2, 3, 4)}, {"shape": i32s(0, -1, 0)}), Case({"x": r.floats(2, 6)}, {"shape": i32s(0, 0)})]
    more = [Case({"x": r.floats(2, 6)}, {"shape": np.array([4, -1], I16)}), Case({"x": r.floats(2, 6), "shape": np.array([-1, 2], I8)})]
    return newest + more + as_of("ios15", old, BASIC)


def reshape_like(op):
    r = Random(op)

    def case(x, refs, begins, ends, masks):
        scalars = {"begins": [I32(v) for v in begins], "ends": [I32(v) for v in ends], "end_masks": [BOOL(v) for v in masks]}

        def formula(x, ref_tensors, begins, ends, end_masks):
            shape = []
            for ref, begin, end, mask in zip(ref_tensors, begins, ends, end_masks):
                shape += ref.shape[int(begin) :] if mask else ref.shape[int(begin) : int(end)]
            return [x.reshape(shape)]

        return Case({"x": x, "ref_tensors": refs}, scalars, formula)

    newest = [case(r.any(d, 6, 20), [r.floats(2, 3, 4), r.floats(1, 5, 4)], [0, 1], [2, 0], [False, True]) for d in ALL]
    newest += [
        case(r.floats(4, 6), [r.ints(2, 3, 4)], [0], [0], [True]),
        case(r.floats(4, 6), [r.bools(2, 3, 4), r.floats(5, 12, dtype=F16)], [0, -1], [-2, 2], [False, False]),
        case(r.floats(5, 2), [r.floats(5, 7), r.floats(3, 2)], [0, 1], [1, 9], [False, False]),
        case(r.floats(6), [r.floats(2, 4), r.floats(3, 5), r.floats(7, 1)], [0, 0, 1], [1, 1, 0], [False, False, True]),
    ]
    return newest + as_of("ios16", newest, BASIC)


def reverse(op):
    r = Random(op)
    newest = [Case({"x": r.any(d, 3, 4)}, {"axes": i32s(1)}) for d in ALL]
    newest += [
        Case({"x": r.floats(2, 3, 4)}),
        Case({"x": r.floats(2, 3, 4)}, {"axes": i32s(-3, 2)}),
        Case({"x": r.floats(2, 1, 3, 2, 4)}, {"axes": i32s(0, -1, 2)}),
        Case({"x": r.floats(5)}, {"axes": i32s(-1)}),
    ]
    return newest + as_of("ios15", newest, BASIC)


def reverse_sequence(op):
    r = Random(op)

    def turned(x, lengths, seq_axis=0, batch_axis=0):
        out = np.moveaxis(x.copy(), (int(batch_axis), int(seq_axis)), (0, 1))
        for row, n in zip(out, lengths):
            row[: int(n)] = row[: int(n)][::-1].copy()
        return [np.moveaxis(out, (0, 1), (int(batch_axis), int(seq_axis)))]

    def case(x, lengths, constants, constant=False):
        given = {"lengths": lengths}
        return Case({"x": x} | ({} if constant else given), constants | (given if constant else {}), turned, "numpy, from tf.reverse_sequence", open=not constant)

    newest = [case(r.any(d, 3, 5), i32s(4, 0, 5), {"seq_axis": I32(1), "batch_axis": I32(0)}) for d in ALL]
    newest += [
        case(r.floats(4, 3, 2), np.array([1, 3], I16), {"seq_axis": I32(0), "batch_axis": I32(-1)}),
        case(r.floats(5, 3), np.array([2, 5, 3], I8), {"batch_axis": I32(1)}),
        case(r.floats(2, 3, 4), i32s(3, 2), {"seq_axis": I32(-1)}),
        case(r.floats(2, 1, 3, 4, 2), i32s(2, 1, 2), {"seq_axis": I32(4), "batch_axis": I32(2)}),
    ]
    return newest + as_of("ios15", newest, BASIC)


def slice_by_size(op):
    r = Random(op)

    def part(x, begin, size):
        ends = [(int(b) % n if b < 0 else int(b), int(s)) for b, s, n in zip(begin, size, x.shape)]
        return [x[tuple(slice(b, None if s == -1 else b + s) for b, s in ends)]]

    newest = [Case({"x": r.any(d, 3, 4)}, {"begin": i32s(1, 0), "size": i32s(2, 3)}) for d in ALL]
    newest += [
        Case({"x": r.floats(4, 5)}, {"begin": i32s(2, 1), "size": i32s(-1, 2)}),
        Case({"x": r.floats(2, 3, 4)}, {"begin": np.array([0, 1, 2], I16), "size": np.array([1, -1, -1], I16)}),
        Case({"x": r.floats(2, 1, 3, 2, 4)}, {"begin": np.array([1, 0, 0, 1, 2], I8), "size": np.array([1, 1, 2, 1, 2], I8)}),
        Case({"x": r.floats(4, 5), "begin": i32s(1, 2)}, {"size": i32s(2, 3)}),
        Case({"x": r.floats(4, 5), "begin": i32s(3, 0), "size": i32s(1, -1)}),
        Case({"x": r.floats(6, 2)}, {"begin": i32s(-3, 0), "size": i32s(2, 2)}),
        # coremltools' type has no negative begin with a size of -1, its value no size of 0.
        Case({"x": r.floats(6)}, {"begin": i32s(5), "size": i32s(1)}, part),
    ]
    return newest + as_of("ios15", newest, BASIC)


def sliding_windows(op):
    r = Random(op)

    def windows(x, axis, size, stride=1):
        axis = int(axis) % x.ndim
        starts = range(0, x.shape[axis] - int(size) + 1, int(stride))
        return [np.stack([np.take(x, range(s, s + int(size)), axis) for s in starts], axis)]

    def case(x, axis, size, stride=None):
        constants = {"axis": I32(axis), "size": I32(size)} | ({} if stride is None else {"stride": I32(stride)})
        return Case({"x": x}, constants, windows)

    newest = [case(r.any(d, 2, 7), 1, 3, 2) for d in ALL]
    newest += [
        case(r.floats(5, 3), 0, 2),
        case(r.floats(2, 6, 3), -2, 4, 1),
        case(r.floats(2, 3, 1, 9), -1, 2, 3),
        case(r.floats(4), 0, 4, 5),
    ]
    return newest + as_of("ios15", newest, BASIC, x=NUMBERS)


def images(op, factors, constants, formula, source="numpy"):
    """`factors(dims)`: images of these sizes, given by the sizes of the smaller one and a factor."""
    r = Random(op)
    cases = []
    for (n, c, h, w), f in [((2, 3, 4, 5), 2), ((1, 2, 3, 1), 3), ((3, 1, 2, 2), 2), ((1, 3, 2, 5), 1)]:
        for dtype in (F32, F16):
            cases.append(Case({"x": r.floats(*factors(n, c, h, w, f), dtype=dtype)}, constants(f), formula, source))
    return cases


def depth_to_space(op):
    def formula(x, block_size):
        b, (n, c, h, w) = int(block_size), x.shape
        out = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
        return [out.reshape(n, c // (b * b), h * b, w * b)]

    factors = lambda n, c, h, w, f: (n, c * f * f, h, w)
    return images(op, factors, lambda f: {"block_size": I32(f)}, formula, "numpy, from tf.nn.depth_to_space")


def space_to_depth(op):
    def formula(x, block_size):
        b, (n, c, h, w) = int(block_size), x.shape
        out = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
        return [out.reshape(n, c * b * b, h // b, w // b)]

    factors = lambda n, c, h, w, f: (n, c, h * f, w * f)
    return images(op, factors, lambda f: {"block_size": I32(f)}, formula, "numpy, from tf.nn.space_to_depth")


def pixel_shuffle(op):
    def formula(x, upscale_factor):
        f, (n, c, h, w) = int(upscale_factor), x.shape
        out = x.reshape(n, c // (f * f), f, f, h, w).transpose(0, 1, 4, 2, 5, 3)
        return [out.reshape(n, c // (f * f), h * f, w * f)]

    factors = lambda n, c, h, w, f: (n, c * f * f, h, w)
    return images(op, factors, lambda f: {"upscale_factor": I32(f)}, formula, "numpy, from torch.nn.PixelShuffle")


def pixel_unshuffle(op):
    def formula(x, downscale_factor):
        f, (n, c, h, w) = int(downscale_factor), x.shape
        out = x.reshape(n, c, h // f, f, w // f, f).transpose(0, 1, 3, 5, 2, 4)
        return [out.reshape(n, c * f * f, h // f, w // f)]

    factors = lambda n, c, h, w, f: (n, c, h * f, w * f)
    return images(op, factors, lambda f: {"downscale_factor": np.uint32(f)}, formula, "numpy, from torch.nn.PixelUnshuffle")


BATCHES = [
    ((2, 3, 4, 6), (2, 3), ((0, 0), (0, 0))),
    ((1, 2, 5, 3), (2, 2), ((1, 2), (0, 1))),
    ((3, 1, 2, 7), (1, 3), ((0, 0), (2, 0))),
    ((2, 2, 3, 4), (3, 1), ((2, 1), (1, 2))),
]


def space_to_batch(op):
    r = Random(op)

    def formula(x, block_shape, paddings):
        (a, b), (n, c) = map(int, block_shape), x.shape[:2]
        x = np.pad(x, [(0, 0), (0, 0)] + [tuple(p) for p in paddings])
        h, w = x.shape[2] // a, x.shape[3] // b
        return [x.reshape(n, c, h, a, w, b).transpose(3, 5, 0, 1, 2, 4).reshape(n * a * b, c, h, w)]

    return [
        Case({"x": r.floats(*dims, dtype=d)}, {"block_shape": i32s(*block), "paddings": i32s(*borders)}, formula, "numpy, from tf.space_to_batch")
        for dims, block, borders in BATCHES
        for d in (F32, F16)
    ]


def batch_to_space(op):
    r = Random(op)

    def formula(x, block_shape, crops):
        (a, b), (n, c, h, w) = map(int, block_shape), x.shape
        x = x.reshape(a, b, n // (a * b), c, h, w).transpose(2, 3, 4, 0, 5, 1).reshape(n // (a * b), c, h * a, w * b)
        (top, bottom), (left, right) = crops
        return [x[:, :, top : h * a - bottom, left : w * b - right]]

    return [
        Case(
            {"x": r.floats(n * a * b, c, h, w, dtype=d)},
            {"block_shape": i32s(a, b), "crops": i32s(*borders)},
            formula,
            "numpy, from tf.batch_to_space",
        )
        for (n, c, h, w), (a, b), borders in BATCHES
        for d in (F32, F16)
    ]


FUNCTIONS = [expand_dims, squeeze, transpose, slice_by_index, slice_update, reshape, reshape_like, reverse, reverse_sequence]
FUNCTIONS += [slice_by_size, sliding_windows, depth_to_space, space_to_depth, pixel_shuffle, pixel_unshuffle]
FUNCTIONS += [space_to_batch, batch_to_space]
CASES = {f.__name__: f for f in FUNCTIONS}
COMPUTES = set()
