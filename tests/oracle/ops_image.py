"""Cases of resizing, cropping and resampling. coremltools evaluates none of these ops: formulas are those that it documents.
Where points lie is computed in fractions, so that the element next to a point is never a matter of rounding."""

import itertools
from fractions import Fraction

import numpy as np
from case import *

SAMPLING = ["DEFAULT", "STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "UNALIGN_CORNERS", "OFFSET_CORNERS"]


def grid(mode, size, n):
    """n points of an axis from 0 to size - 1, as `resize_bilinear` documents."""
    size = Fraction(size)
    if mode == "UNALIGN_CORNERS":
        points = [(i + Fraction(1, 2)) * size / n - Fraction(1, 2) for i in range(n)]
    elif mode == "OFFSET_CORNERS":
        points = [(i + Fraction(1, 2)) * max(1, size - 1) / n for i in range(n)]
    elif mode == "DEFAULT":
        points = [i * size / n for i in range(n)]
    elif n == 1:
        points = [(size - 1) / 2 if mode == "ALIGN_CORNERS" else Fraction(0)]
    else:
        return [i * (size - 1) / (n - 1) for i in range(n)]
    return [min(size - 1, max(Fraction(0), p)) for p in points]


def between(x, axis, points):
    """x with an axis at these points."""
    low = [int(p) for p in points]
    high = [min(i + 1, x.shape[axis] - 1) for i in low]
    share = np.array([float(p - i) for p, i in zip(points, low)]).reshape(-1, *[1] * (x.ndim - 1 - axis))
    return np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share


def linear(x, axes, mode, sizes):
    x = x.astype(np.float64)
    for axis, n in zip(axes, sizes):
        x = between(x, axis, grid(mode, x.shape[axis], int(n)))
    return [x]


def nearest(x, axes, mode, sizes):
    for axis, n in zip(axes, sizes):
        points = grid(mode, x.shape[axis], int(n))
        half = Fraction(0) if mode == "DEFAULT" else Fraction(1, 2)
        x = np.take(x, [int(p + half) for p in points], axis)
    return [x]


def last(x, n=2):
    return range(x.ndim - n, x.ndim)


def crop(op):
    r = Random(op)

    def formula(x, crop_height, crop_width):
        (top, bottom), (left, right) = crop_height, crop_width
        return [x[..., top : x.shape[-2] - bottom, left : x.shape[-1] - right]]

    def case(*shape, height, width, dtype=F32):
        return Case({"x": r.floats(*shape, dtype=dtype)}, {"crop_height": i32s(*height), "crop_width": i32s(*width)}, formula)

    return [
        case(2, 5, 6, height=(1, 2), width=(0, 3)),
        case(2, 3, 4, 5, height=(0, 0), width=(2, 1)),
        case(1, 2, 2, 6, 3, height=(3, 2), width=(1, 0)),
        case(3, 4, 3, height=(1, 0), width=(0, 1), dtype=F16),
    ]


def resize_nearest_neighbor(op):
    r = Random(op)

    def formula(x, target_size_height, target_size_width):
        return nearest(x, last(x), "DEFAULT", [target_size_height, target_size_width])

    def case(*shape, height, width, dtype=F32):
        target = {"target_size_height": I32(height), "target_size_width": I32(width)}
        return Case({"x": r.floats(*shape, dtype=dtype)}, target, formula)

    return [
        case(2, 3, 4, height=6, width=8),
        case(1, 2, 5, 3, height=3, width=7),
        case(2, 1, 2, 4, 6, height=1, width=4),
        case(2, 3, 2, height=4, width=5, dtype=F16),
    ]


def upsample_nearest_neighbor(op):
    r = Random(op)

    def formula(x, scale_factor_height=1, scale_factor_width=1):
        sizes = [np.floor(factor * n) for factor, n in zip((scale_factor_height, scale_factor_width), x.shape[-2:])]
        return nearest(x, last(x), "DEFAULT", sizes)

    def case(*shape, dtype=F32, **factors):
        return Case({"x": r.floats(*shape, dtype=dtype)}, {f"scale_factor_{k}": v for k, v in factors.items()}, formula)

    return [
        case(2, 3, 4, height=I32(2), width=I32(3)),
        case(1, 2, 3, 5, height=F32(1.5), width=F32(2.3)),
        case(1, 2, 4, 3, height=F32(0.8)),
        case(2, 3, 4),
        case(2, 1, 2, 3, 2, width=I32(2)),
        case(3, 2, 2, dtype=F16, height=F32(2), width=F32(1.5)),
    ]


def resize_bilinear(op):
    r = Random(op)

    def formula(x, target_size_height=1, target_size_width=1, sampling_mode="DEFAULT"):
        return linear(x, last(x), sampling_mode, [target_size_height, target_size_width])

    cases = []
    for mode in [None, *SAMPLING]:
        given = {} if mode is None else {"sampling_mode": mode}
        for shape, height, width in [((2, 3, 4), 5, 7), ((1, 2, 5, 6), 3, 1), ((1, 1, 2, 2, 3), 1, 4), ((2, 1, 5), 3, 5)]:
            target = {"target_size_height": I32(height), "target_size_width": I32(width)}
            cases.append(Case({"x": r.floats(*shape)}, target | given, formula))
    return cases + [
        Case({"x": r.floats(2, 3, 4)}, {}, formula),
        Case({"x": r.floats(2, 3, 2, dtype=F16)}, {"target_size_height": I32(4)}, formula),
    ]


def upsample_bilinear(op):
    r = Random(op)

    def formula(x, scale_factor_height=1, scale_factor_width=1, align_corners=True, half_pixel_centers=None):
        sizes = [np.floor(factor * n) for factor, n in zip((scale_factor_height, scale_factor_width), x.shape[-2:])]
        half = not align_corners if half_pixel_centers is None else half_pixel_centers
        mode = "STRICT_ALIGN_CORNERS" if align_corners else "UNALIGN_CORNERS" if half else "DEFAULT"
        return linear(x, last(x), mode, sizes)

    def case(*shape, dtype=F32, opset="ios18", align=None, half=None, **factors):
        constants = {f"scale_factor_{k}": v for k, v in factors.items()}
        constants |= {} if align is None else {"align_corners": BOOL(align)}
        constants |= {} if half is None else {"half_pixel_centers": BOOL(half)}
        return Case({"x": r.floats(*shape, dtype=dtype)}, constants, formula, opset=opset)

    cases = []
    for opset in ("ios18", "ios15"):
        for align in (None, True, False):
            cases += [
                case(2, 3, 4, height=I32(2), width=I32(3), align=align, opset=opset),
                case(1, 2, 3, 5, height=F32(1.5), width=F32(2.3), align=align, opset=opset),
                case(1, 2, 1, 3, width=I32(2), align=align, opset=opset),
                case(2, 1, 2, 4, 3, height=F32(0.5), width=F32(0.7), align=align, opset=opset),
            ]
        cases.append(case(2, 3, 2, height=F32(1.7), dtype=F16, opset=opset))
    return cases + [
        case(2, 3, 4, height=I32(2), width=I32(3), align=False, half=False),
        case(2, 4, 3, height=F32(1.3), width=F32(0.8), align=False, half=True),
        case(1, 3, 3, height=I32(3), align=True, half=False),
        case(2, 2, 3, height=I32(2), half=False),
    ]


def resize(op):
    r = Random(op)

    def formula(x, shape, resized_dims, interpolation_mode="LINEAR", sampling_mode="DEFAULT"):
        n = int(resized_dims)
        axes = last(x, n)
        sizes = [int(size) or x.shape[axis] for size, axis in zip(shape[len(shape) - n :], axes)]
        return (linear if interpolation_mode == "LINEAR" else nearest)(x, axes, sampling_mode, sizes)

    def case(x, shape, n, mode=None, sampling=None, given=False):
        words = {"interpolation_mode": mode, "sampling_mode": sampling}
        constants = {"resized_dims": U32(n)} | {k: v for k, v in words.items() if v is not None}
        if given:
            return Case({"x": x, "shape": shape}, constants, formula)
        return Case({"x": x}, {"shape": shape} | constants, formula)

    cases = []
    for mode, sampling in itertools.product(("LINEAR", "NEAREST_NEIGHBOR"), SAMPLING):
        cases += [
            case(r.floats(1, 2, 3, 4), i32s(1, 5, 7), 2, mode, sampling),
            case(r.floats(2, 5, 6), i32s(3, 4), 2, mode, sampling),
            case(r.floats(2, 1, 5), i32s(3, 1), 2, mode, sampling),
        ]
    return cases + [
        case(r.floats(1, 2, 3, 4), i32s(1, 0, 6), 2),
        case(r.floats(2, 3, 4), i32s(4, 5, 3), 3),
        case(r.floats(2, 3, 4), np.array([7, 5], U16), 1),
        case(r.floats(2, 3, 4), np.array([2, 5], I16), 2, given=True),
        case(r.floats(2, 2, 3), np.array([5], U32), 1, given=True),
        case(r.floats(2, 3, 2), np.array([0, 3], U16), 2, "NEAREST_NEIGHBOR", given=True),
        case(r.floats(3, 2), i32s(6), 0),
        case(r.floats(1, 2, 2, 3, 2), i32s(2, 3, 1, 2, 4), 5),
        case(r.ints(2, 3, 4), i32s(2, 7), 2, "NEAREST_NEIGHBOR"),
        case(r.floats(2, 3, 4, dtype=F16), i32s(5, 6), 2),
        case(r.floats(2, 3, 4, dtype=F16), i32s(2, 6), 2, "NEAREST_NEIGHBOR", "ALIGN_CORNERS", given=True),
    ]


def crop_resize(op):
    r = Random(op)

    def cropped(image, box, height, width, normalized, scale, mode, sampling, pad_value):
        """A box of an image [C, H, W]."""
        a, b, c, d = (Fraction(float(v)) for v in box)
        extents = [(a, c), (b, d)] if mode.endswith("HEIGHT_FIRST") else [(b, d), (a, c)]
        axes = []
        for (first, second), size, n in zip(extents, image.shape[1:], (height, width)):
            unit = Fraction(float(scale)) * (size - 1 if normalized else 1)
            first, second = first * unit, second * unit
            start, end = (first - second / 2, first + second / 2) if mode.startswith("CENTER") else (first, second)
            axes.append([start + p for p in grid(sampling, end - start + 1, n)])
        y = np.full((len(image), height, width), float(pad_value))
        for (i, p), (j, q) in itertools.product(*map(enumerate, axes)):
            if 0 <= p <= image.shape[1] - 1 and 0 <= q <= image.shape[2] - 1:
                y[:, i, j] = between(between(image, 1, [p]), 2, [q])[:, 0, 0]
        return y

    def formula(
        x,
        roi=None,
        boxes=None,
        box_indices=None,
        target_height=1,
        target_width=1,
        normalized_coordinates=False,
        spatial_scale=1,
        box_coordinate_mode="CORNERS_HEIGHT_FIRST",
        sampling_mode="DEFAULT",
        pad_value=0,
    ):
        x = x.astype(np.float64)
        options = [int(target_height), int(target_width), normalized_coordinates, spatial_scale]
        options += [box_coordinate_mode, sampling_mode, pad_value]
        if roi is None:
            indices = range(len(boxes)) if box_indices is None else box_indices
            return [np.stack([cropped(x[b], box, *options) for b, box in zip(indices, boxes)])]
        roi = roi.reshape(len(roi), -1)
        if roi.shape[1] == 5:
            return [np.stack([[cropped(x[int(box[0])], box[1:], *options)] for box in roi])]
        return [np.stack([[cropped(image, box, *options) for image in x] for box in roi])]

    corners = [[0.5, 1, 2.5, 4], [-1, 0.25, 2, 6.5], [1, 2, 1, 2]]
    centres = [[1.5, 2, 3, 2.5], [0.5, 1, 2.25, 7]]
    size = {"target_height": I32(3), "target_width": I32(4)}

    def case(boxes, opset, dtype=F32, of=None, x=(2, 3, 4, 6), indices=None, given=(), **more):
        boxes = np.array(boxes)
        inputs = {"x": r.floats(*x, dtype=dtype)}
        if opset == "ios18":
            inputs |= {"boxes": boxes.astype(of or dtype)} | ({} if indices is None else {"box_indices": indices})
        else:
            inputs["roi"] = boxes.astype(dtype).reshape(len(boxes), 1, -1, 1, 1)
        return Case(inputs, more, formula, opset=opset)

    cases = []
    for opset in ("ios18", "ios15", "ios16"):
        pad = {} if opset == "ios15" else {"pad_value": F32(-1.5)}
        each = {"indices": i32s(1, 0, 1)} if opset == "ios18" else {}
        for sampling in [None, *SAMPLING]:
            named = {} if sampling is None else {"sampling_mode": sampling}
            cases.append(case(corners, opset, **size, **named, **pad, **each))
        pairs = each and {"indices": i32s(1, 0)}
        for mode in ("CORNERS_HEIGHT_FIRST", "CORNERS_WIDTH_FIRST", "CENTER_SIZE_HEIGHT_FIRST", "CENTER_SIZE_WIDTH_FIRST"):
            aligned = {"box_coordinate_mode": mode, "sampling_mode": "ALIGN_CORNERS"} | size | pairs
            cases.append(case(centres, opset, **aligned))
            unit = {"normalized_coordinates": BOOL(True), "spatial_scale": F32(0.75)}
            cases.append(case([[0.125, 0.25, 1, 0.75], [0, 0, 1, 1]], opset, **aligned, **unit))
        cases += [
            case(corners[:2], opset, target_width=I32(2), **pairs),
            case(centres, opset, normalized_coordinates=BOOL(False), spatial_scale=F32(0.5), **pairs),
            case(centres, opset, F16, **size, **pairs),
            # Flipped, as in TensorFlow.
            case([[2.5, 4, 0, 1]], opset, **size, sampling_mode="STRICT_ALIGN_CORNERS"),
        ]
    for opset in ("ios15", "ios16"):
        cases += [
            case([[1, *corners[0]], [0, *corners[1]]], opset, **size),
            case([[2, *corners[0]]], opset, x=(3, 1, 5, 4), sampling_mode="OFFSET_CORNERS", **size),
        ]
    cases += [
        case([[0, 1, 3, 5], [1, 2, 2, 3]], "ios18", of=U16, **size),
        case([[0, 1, 3, 5], [1, 2, 2, 3], [0, 0, 3, 3]], "ios18", of=U16, indices=np.array([1, 1, 0], U16), **size),
        case(centres, "ios18", of=F16, pad_value=F32(2), **size),
        case(corners, "ios18", F16, of=F32, indices=i32s(0, 1, 1), pad_value=F16(0.5), **size),
    ]
    return cases


def sampled(image, rows, columns, mode, padding, value):
    """An image [C, H, W] at places; it is really padded, as the documentation draws it."""
    beyond = 40
    kinds = {"constant": {"constant_values": value}, "border": {}, "reflection": {}, "symmetric": {}}
    kind = {"border": "edge", "reflection": "reflect"}.get(padding, padding)
    image = np.pad(image.astype(np.float64), [(0, 0), (beyond, beyond), (beyond, beyond)], kind, **kinds[padding])
    rows, columns = rows + beyond, columns + beyond
    if mode == "nearest":
        return image[:, np.rint(rows).astype(int), np.rint(columns).astype(int)]
    r, c = np.floor(rows).astype(int), np.floor(columns).astype(int)
    p, q = rows - r, columns - c
    above = image[:, r, c] * (1 - q) + image[:, r, c + 1] * q
    return above * (1 - p) + (image[:, r + 1, c] * (1 - q) + image[:, r + 1, c + 1] * q) * p


def unnormalized(v, size, mode, align):
    """Coordinates in elements, of -1 to 1 or 0 to 1."""
    if mode == "unnormalized":
        return v
    v = (v + 1) / 2 if mode == "normalized_minus_one_to_one" else v
    return v * (size - 1) if align else v * size - 0.5


def resample(op):
    r = Random(op)

    def formula(x, coordinates, sampling_mode, padding_mode, padding_value, coordinates_mode, align_corners):
        out = []
        for image, at in zip(x, coordinates.astype(np.float64)):
            columns, rows = (
                unnormalized(at[..., k], x.shape[3 - k], coordinates_mode, align_corners) for k in (0, 1)
            )
            out.append(sampled(image, rows, columns, sampling_mode, padding_mode, float(padding_value)))
        return [np.stack(out)]

    # How far coordinates reach, so that some are outside of the image.
    reach = {"unnormalized": (-7, 9), "normalized_minus_one_to_one": (-2.5, 2.5), "normalized_zero_to_one": (-1, 2)}

    def case(mode, padding, coordinates, align, dtype=F32, of=F32, opset="ios18", value=0.0, x=(2, 3, 4, 5)):
        low, high = reach[coordinates]
        shape = (x[0], 3, 2, 2)
        if of in (F32, F16):
            at = r.floats(*shape, low=low, high=high, dtype=of)
        else:
            at = r.ints(*shape, low=0 if of in (U8, U16) else -5, high=7, dtype=of)
        words = {"sampling_mode": mode, "padding_mode": padding, "coordinates_mode": coordinates}
        constants = words | {"padding_value": dtype(value), "align_corners": BOOL(align)}
        return Case({"x": r.floats(*x, dtype=dtype), "coordinates": at}, constants, formula, opset=opset)

    cases = []
    for opset in ("ios18", "ios15", "ios16"):
        for mode, padding in itertools.product(("bilinear", "nearest"), ("constant", "border", "reflection", "symmetric")):
            for i, coordinates in enumerate(reach):
                align = (i + (mode == "nearest") + (padding in ("border", "symmetric"))) % 2 == 0
                cases.append(case(mode, padding, coordinates, align, opset=opset, value=0.5))
        cases += [
            case("bilinear", "constant", "normalized_minus_one_to_one", True, opset=opset),
            case("bilinear", "reflection", "normalized_minus_one_to_one", False, opset=opset, x=(1, 2, 1, 3)),
            case("bilinear", "constant", "unnormalized", False, F16, F32, opset, 1.5),
            case("nearest", "symmetric", "unnormalized", True, of=I32, opset=opset),
        ]
    for of in (I8, U8, I16, U16, F16):
        cases.append(case("bilinear", "border", "unnormalized", True, of=of))
        cases.append(case("nearest", "constant", "unnormalized", False, of=of, value=-2))
    cases.append(case("bilinear", "border", "normalized_zero_to_one", True, F16, F16, "ios16"))
    return cases


def affine(op):
    r = Random(op)

    def formula(x, transform_matrix, output_height, output_width, align_corners, padding_value, **modes):
        height, width = int(output_height), int(output_width)

        def coordinates(n):
            if align_corners:
                return np.linspace(-1, 1, n) if n > 1 else np.zeros(1)
            return (2 * np.arange(n) + 1) / n - 1

        v, u = np.meshgrid(coordinates(height), coordinates(width), indexing="ij")
        out = []
        for b, image in enumerate(x):
            m = transform_matrix[b if len(transform_matrix) > 1 else 0].astype(np.float64)
            at = [m[0] * u + m[1] * v + m[2], m[3] * u + m[4] * v + m[5]]
            columns, rows = (unnormalized(p, n, "normalized_minus_one_to_one", align_corners) for p, n in zip(at, x.shape[:1:-1]))
            out.append(sampled(image, rows, columns, "bilinear", "constant", float(padding_value)))
        return [np.stack(out)]

    def case(*x, n=1, height=3, width=4, align=True, dtype=F32, given=True, capital=False):
        words = {"sampling_mode": "bilinear", "padding_mode": "constant", "coordinates_mode": "normalized_minus_one_to_one"}
        words = {k: v.upper() if capital else v for k, v in words.items()}
        matrix = {"transform_matrix": r.floats(n, 6, low=-1.3, high=1.3, dtype=dtype)}
        constants = words | {"output_height": I32(height), "output_width": I32(width)}
        constants |= {"padding_value": dtype(0), "align_corners": BOOL(align)} | ({} if given else matrix)
        return Case({"x": r.floats(*x, dtype=dtype)} | (matrix if given else {}), constants, formula)

    return [
        case(2, 3, 4, 5),
        case(2, 3, 4, 5, n=2, height=5, width=2, given=False),
        case(3, 1, 3, 6, n=3, align=False),
        case(1, 2, 5, 4, height=1, width=3),
        case(1, 2, 5, 4, height=4, width=1, align=False, capital=True),
        case(2, 1, 4, 3, dtype=F16),
    ]


ALONE = [affine, crop, crop_resize, resample, resize, resize_bilinear, resize_nearest_neighbor, upsample_bilinear]
CASES = {f.__name__: f for f in ALONE + [upsample_nearest_neighbor]}
COMPUTES = set()
