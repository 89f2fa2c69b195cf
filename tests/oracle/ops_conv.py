"""Cases of convolutions and pools. coremltools evaluates none of them: formulas are those that it documents, in fp64, with
padding where `SamePadding` of its NeuralNetwork.proto puts it."""

import itertools

import numpy as np
from case import *


def paddings(pad_type, sizes, kernel, strides, dilations, pad):
    """(before, after) of each axis."""
    if pad_type == "valid":
        return [(0, 0)] * len(sizes)
    if pad_type == "custom":
        return [(int(pad[2 * i]), int(pad[2 * i + 1])) for i in range(len(sizes))]
    out = []
    for n, k, s, d in zip(sizes, kernel, strides, dilations):
        total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
        less, more = total // 2, total - total // 2
        out.append((more, less) if pad_type == "same_lower" else (less, more))
    return out


def steps(x, strides, dilations):
    ones = [1] * (x.ndim - 2)
    return [int(s) for s in (ones if strides is None else strides)], [int(d) for d in (ones if dilations is None else dilations)]


def convolved(x, weight, bias=None, strides=None, pad_type="valid", pad=None, dilations=None, groups=1):
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    strides, dilations = steps(x, strides, dilations)
    kernel, n_axes = weight.shape[2:], x.ndim - 2
    pad = [0] * 2 * n_axes if pad is None else pad
    x = np.pad(x, [(0, 0), (0, 0)] + paddings(pad_type, x.shape[2:], kernel, strides, dilations, pad))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    sizes = [(n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, strides)]
    y = np.zeros((x.shape[0], weight.shape[0], *sizes))
    per_group = weight.shape[0] // int(groups)
    for o in range(weight.shape[0]):
        first = o // per_group * weight.shape[1]
        mine = x[:, first : first + weight.shape[1]]
        for at in itertools.product(*map(range, sizes)):
            window = tuple(slice(p * s, p * s + r, d) for p, s, r, d in zip(at, strides, reach, dilations))
            y[(slice(None), o, *at)] = (mine[(slice(None), slice(None), *window)] * weight[o]).sum(tuple(range(1, x.ndim)))
    return [y if bias is None else y + bias.astype(np.float64).reshape(-1, *[1] * n_axes)]


def transposed(x, weight, bias=None, pad=None, output_shape=None, pad_type="valid", strides=None, dilations=None, groups=1):
    x, weight, groups = x.astype(np.float64), weight.astype(np.float64), int(groups)
    strides, dilations = steps(x, strides, dilations)
    kernel, n_axes = weight.shape[2:], x.ndim - 2
    full = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(x.shape[2:], strides, kernel, dilations)]
    pad = [0] * 2 * n_axes if pad is None else [int(p) for p in pad]
    y = np.zeros((x.shape[0], weight.shape[1] * groups, *full))
    c, o = x.shape[1] // groups, weight.shape[1]
    for g, at, k in itertools.product(range(groups), itertools.product(*map(range, x.shape[2:])), itertools.product(*map(range, kernel))):
        to = tuple(i * s + j * d for i, s, j, d in zip(at, strides, k, dilations))
        product = x[(slice(None), slice(g * c, g * c + c), *at)] @ weight[(slice(g * c, g * c + c), slice(None), *k)]
        y[(slice(None), slice(g * o, g * o + o), *to)] += product
    if output_shape is not None:
        sizes = [int(n) for n in output_shape[2:]]
    elif pad_type == "same":
        sizes = [n * s for n, s in zip(x.shape[2:], strides)]
    else:
        sizes = [n - a - b for n, a, b in zip(full, pad[::2], pad[1::2])] if pad_type == "custom" else full
    # A wanted size is that of the input of a convolution whose padding is `same`: the gradient of that is the result.
    before = pad[::2] if pad_type == "custom" else [max(0, f - n) // 2 for f, n in zip(full, sizes)]
    if pad_type == "valid" and output_shape is None:
        before = [0] * n_axes
    y = np.pad(y, [(0, 0), (0, 0)] + [(0, max(0, b + n - f)) for b, n, f in zip(before, sizes, full)])
    y = y[(slice(None), slice(None), *(slice(b, b + n) for b, n in zip(before, sizes)))]
    return [y if bias is None else y + bias.astype(np.float64).reshape(-1, *[1] * n_axes)]


def window(strides=None, pad_type=None, pad=None, dilations=None, groups=None):
    """Constants, of those that are given."""
    lists = {"strides": strides, "pad": pad, "dilations": dilations}
    out = {name: i32s(*v) for name, v in lists.items() if v is not None}
    out |= {} if pad_type is None else {"pad_type": pad_type}
    return out | ({} if groups is None else {"groups": I32(groups)})


# (shape of x, shape of weight, window)
CONVS = [
    ((2, 3, 7), (4, 3, 3), {}),
    ((1, 4, 9), (6, 2, 3), {"strides": [2], "pad_type": "same", "groups": 2}),
    ((2, 3, 8), (2, 3, 4), {"pad_type": "same"}),
    ((1, 2, 11), (3, 2, 3), {"strides": [3], "pad_type": "custom", "pad": [2, 1], "dilations": [2]}),
    ((2, 3, 5, 6), (2, 3, 3, 2), {"pad_type": "custom", "pad": [1, 0, 2, 1]}),
    ((1, 4, 6, 5), (4, 1, 3, 3), {"strides": [1, 2], "pad_type": "same", "groups": 4}),
    ((2, 9, 4, 1), (5, 9, 1, 1), {"pad_type": "valid", "strides": [1, 1]}),
    ((1, 2, 7, 9), (3, 2, 2, 3), {"strides": [2, 1], "pad_type": "same", "dilations": [1, 3]}),
    # Padding that is not asked for is not used.
    ((1, 2, 4, 5), (2, 2, 2, 2), {"pad_type": "valid", "pad": [1, 1, 1, 1]}),
    ((1, 2, 4, 5, 3), (3, 2, 2, 3, 2), {"strides": [2, 1, 1], "pad_type": "same"}),
    ((2, 4, 3, 4, 5), (2, 2, 2, 1, 3), {"pad_type": "custom", "pad": [1, 0, 0, 2, 1, 1], "groups": 2, "dilations": [1, 1, 2]}),
]
LOWER = [
    ((2, 3, 8), (2, 3, 4), {"pad_type": "same_lower"}),
    ((1, 2, 7, 6), (3, 2, 2, 3), {"strides": [2, 1], "pad_type": "same_lower", "dilations": [3, 2]}),
]


def conv(op):
    r = Random(op)

    def weight(shape, dtype=F32):
        return r.floats(*shape, low=-1, high=1, dtype=dtype)

    cases = []
    for opset in ("ios18", "ios15", "ios16"):
        for i, (x, w, more) in enumerate(CONVS + (LOWER if opset != "ios15" else [])):
            bias = {"bias": r.floats(w[0])} if i % 2 else {}
            constants = {"weight": weight(w)} | bias | window(**more)
            cases.append(Case({"x": r.floats(*x)}, constants, convolved, opset=opset))
        cases += [
            Case({"x": r.floats(2, 3, 5), "weight": weight((4, 3, 2))}, window(pad_type="same"), convolved, opset=opset),
            Case(
                {"x": r.floats(1, 4, 5, 4, dtype=F16)},
                {"weight": weight((2, 2, 3, 3), F16), "bias": r.floats(2, dtype=F16)} | window(groups=2),
                convolved,
                opset=opset,
            ),
        ]
    given = {"x": r.floats(1, 2, 6, 5), "weight": weight((4, 1, 3, 2)), "bias": r.floats(4)}
    mixed = {"weight": weight((4, 3, 3)), "bias": r.floats(4)}
    return cases + [
        Case(given, window(strides=[1, 2], groups=2), convolved),
        Case({"x": r.floats(2, 3, 6, dtype=F16)}, mixed | window(pad_type="same"), convolved),
        Case({"x": r.floats(2, 3, 6)}, {"weight": weight((2, 3, 3), F16)}, convolved),
    ]


def conv_quantized(op):
    r = Random(op)

    def formula(x, weight, quantization_type, quant_scale, quant_bias, nbits=8, bias=None, **rest):
        per_channel = [-1] + [1] * (x.ndim - 1)
        scale, shift = (np.asarray(v, np.float64).reshape(per_channel) for v in (quant_scale, quant_bias))
        # Weights are fp32 once they are no longer quantized.
        return convolved(x, (weight * scale + shift).astype(F32), bias, **rest)

    def case(x, w, n_factors=None, dtype=F32, bits=None, bias=False, opset="ios18", given=False, **more):
        factors = () if n_factors is None else (n_factors,)
        constants = {
            "quantization_type": "linear",
            "quant_scale": r.floats(*factors, low=0.01, high=0.2, dtype=dtype),
            "quant_bias": r.floats(*factors, low=-2, high=0, dtype=dtype),
        }
        constants |= {} if bits is None else {"nbits": I32(bits)}
        constants |= {"bias": r.ints(w[0], low=0, high=9, dtype=U8)} if bias else {}
        weight = {"weight": r.ints(*w, low=0, high=2 ** (bits or 8), dtype=U8)}
        inputs = {"x": r.floats(*x, dtype=dtype)} | (weight if given else {})
        return Case(inputs, constants | ({} if given else weight) | window(**more), formula, opset=opset)

    cases = []
    for opset in ("ios18", "ios15"):
        cases += [
            case((2, 3, 7), (4, 3, 3), 1, opset=opset),
            case((1, 4, 6, 5), (6, 2, 3, 2), 6, bits=4, strides=[2, 1], pad_type="same", groups=2, opset=opset),
            case((1, 2, 5, 6), (3, 2, 2, 3), bias=True, bits=8, pad_type="custom", pad=[1, 0, 2, 1], dilations=[2, 1], opset=opset),
            case((1, 2, 3, 4, 3), (2, 2, 2, 2, 1), 2, opset=opset),
            case((2, 3, 6), (2, 3, 2), 2, F16, given=True, opset=opset),
        ]
    return cases + [case((2, 3, 6), (2, 3, 4), 1, pad_type="same_lower")]


def conv_transpose(op):
    r = Random(op)

    def case(x, w, groups=None, bias=False, dtype=F32, of=None, given=False, opset="ios18", output_shape=None, **more):
        of = of or dtype
        weights = {"weight": r.floats(*w, low=-1, high=1, dtype=of)}
        weights |= {"bias": r.floats(w[1] * (groups or 1), dtype=of)} if bias else {}
        constants = window(groups=groups, **more)
        constants |= {} if output_shape is None else {"output_shape": i32s(*output_shape)}
        x = {"x": r.floats(*x, dtype=dtype)}
        if given:
            return Case(x | weights, constants, transposed, opset=opset)
        return Case(x, weights | constants, transposed, opset=opset)

    cases = []
    for opset in ("ios18", "ios15"):
        cases += [
            case((2, 3, 4), (3, 2, 3), opset=opset),
            case((1, 4, 5), (4, 3, 4), groups=2, bias=True, strides=[2], pad_type="same", opset=opset),
            case((1, 2, 4), (2, 3, 2), strides=[3], pad_type="same", opset=opset),
            case((2, 3, 3, 4), (3, 2, 3, 2), strides=[2, 3], pad_type="custom", pad=[1, 0, 1, 2], bias=True, opset=opset),
            case((1, 3, 4, 2), (3, 2, 2, 3), strides=[1, 2], dilations=[3, 2], pad_type="valid", opset=opset),
            case((1, 4, 3, 2), (4, 1, 3, 3), groups=4, strides=[2, 2], pad_type="same", opset=opset),
            case((1, 2, 3, 4), (2, 3, 3, 3), strides=[2, 2], pad_type="same", output_shape=[1, 3, 5, 7], opset=opset),
            case((1, 2, 3, 4), (2, 3, 3, 3), strides=[2, 2], pad_type="valid", output_shape=[1, 3, 8, 9], opset=opset),
            case((2, 2, 3), (2, 3, 4), strides=[2], pad_type="custom", pad=[1, 1], output_shape=[2, 3, 7], opset=opset),
            case((1, 2, 2, 3, 2), (2, 2, 2, 1, 3), strides=[2, 1, 2], bias=True, opset=opset),
            case((1, 4, 2, 2, 3), (4, 1, 2, 3, 2), groups=2, pad_type="custom", pad=[0, 1, 1, 1, 0, 0], opset=opset),
            case((2, 3, 4), (3, 2, 3), dtype=F16, bias=True, strides=[2], opset=opset),
        ]
    return cases + [
        case((1, 4, 3, 2), (4, 3, 2, 2), groups=2, bias=True, given=True, strides=[2, 1]),
        case((2, 3, 4), (3, 2, 3), dtype=F16, of=F32, bias=True),
    ]


def pooled(join):
    def formula(x, kernel_sizes, pad_type, strides=None, pad=None, ceil_mode=False, exclude_padding_from_average=False):
        strides, ones = steps(x, strides, None)
        kernel, n_axes = [int(k) for k in kernel_sizes], x.ndim - 2
        pad = [0] * 2 * n_axes if pad is None else pad
        around = paddings(pad_type.lower(), x.shape[2:], kernel, strides, ones, pad)
        sizes = []
        for n, k, s, (before, after) in zip(x.shape[2:], kernel, strides, around):
            room = n + before + after - k
            places = (-(-room // s) if ceil_mode else room // s) + 1
            is_beyond = (places - 1) * s >= n + (before + after) / 2
            sizes.append(places - 1 if ceil_mode and before + after > 0 and is_beyond else places)
        y = np.zeros((*x.shape[:2], *sizes))
        for at in itertools.product(*map(range, sizes)):
            starts = [p * s - before for p, s, (before, _) in zip(at, strides, around)]
            inside = tuple(slice(max(0, p), max(0, p + k)) for p, k in zip(starts, kernel))
            # What stands out beyond the padding does not count, as in PyTorch.
            ends = [min(p + k, n + after) for p, k, n, (_, after) in zip(starts, kernel, x.shape[2:], around)]
            n_padded = np.prod([end - p for p, end in zip(starts, ends)])
            elements = x[(slice(None), slice(None), *inside)].astype(np.float64).reshape(*x.shape[:2], -1)
            y[(slice(None), slice(None), *at)] = join(elements, elements.shape[2] if exclude_padding_from_average else n_padded)
        return [y]

    return formula


JOINS = {
    "avg_pool": lambda v, n: v.sum(2) / n,
    "l2_pool": lambda v, n: np.sqrt((v**2).sum(2)),
    "max_pool": lambda v, n: v.max(2),
}
# (shape of x, kernel, window and options)
POOLS = [
    ((2, 3, 7), [3], {"pad_type": "valid"}),
    ((2, 1, 8), [4], {"pad_type": "same", "strides": [2]}),
    ((1, 2, 9), [4], {"pad_type": "custom", "pad": [2, 2], "strides": [3], "ceil_mode": BOOL(True)}),
    ((1, 2, 8), [3], {"pad_type": "valid", "strides": [3], "ceil_mode": BOOL(True)}),
    ((2, 3, 5, 6), [2, 3], {"pad_type": "valid", "strides": [2, 1], "ceil_mode": BOOL(False)}),
    ((1, 3, 6, 5), [3, 2], {"pad_type": "same"}),
    ((1, 2, 7, 8), [3, 4], {"pad_type": "custom", "pad": [1, 0, 2, 1], "strides": [2, 3]}),
    ((1, 2, 7, 6), [3, 3], {"pad_type": "custom", "pad": [1, 1, 1, 1], "strides": [2, 2], "ceil_mode": BOOL(True)}),
    ((1, 2, 7, 9), [2, 2], {"pad_type": "VALID", "strides": [3, 4], "ceil_mode": BOOL(True)}),
    # The last place would start in the padding.
    ((1, 2, 5), [2], {"pad_type": "custom", "pad": [1, 1], "strides": [3], "ceil_mode": BOOL(True)}),
    ((1, 2, 4, 5, 3), [2, 3, 2], {"pad_type": "valid", "strides": [1, 2, 1]}),
    ((2, 1, 3, 4, 5), [3, 2, 2], {"pad_type": "same", "strides": [2, 1, 3]}),
    ((1, 2, 3, 4, 3), [2, 2, 3], {"pad_type": "custom", "pad": [1, 0, 1, 1, 0, 2]}),
]
LOWER_POOLS = [
    ((2, 3, 8), [4], {"pad_type": "same_lower", "strides": [2]}),
    ((1, 2, 7, 6), [2, 3], {"pad_type": "same_lower", "strides": [2, 1], "ceil_mode": BOOL(True)}),
]


def pool(op):
    r = Random(op)
    cases = []
    for opset in ("ios18", "ios15"):
        for x, kernel, more in POOLS + (LOWER_POOLS if opset == "ios18" else []):
            if op == "l2_pool" and len(kernel) == 3:
                continue
            options = {k: i32s(*v) if isinstance(v, list) else v for k, v in more.items()}
            constants = {"kernel_sizes": i32s(*kernel)} | options
            excludes = [{}, {"exclude_padding_from_average": BOOL(True)}] if op == "avg_pool" else [{}]
            cases += [Case({"x": r.floats(*x)}, constants | e, pooled(JOINS[op]), opset=opset) for e in excludes]
        half = {"kernel_sizes": i32s(2, 3), "pad_type": "same", "strides": i32s(1, 2)}
        cases.append(Case({"x": r.floats(1, 3, 4, 5, dtype=F16)}, half, pooled(JOINS[op]), opset=opset))
    return cases


CASES = {f.__name__: f for f in [conv, conv_quantized, conv_transpose]} | {op: pool for op in JOINS}
COMPUTES = set()
