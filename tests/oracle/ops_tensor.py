"""Cases of the ops that make, fill, order, join and lengthen tensors."""

import numpy as np
from case import *
from ops_gather import FALSE, NUMBERS, TRUE, VALUES, as_of, without


def band_part(op):
    r = Random(op)

    def special(x, lower=-1, upper=-1):
        return [np.triu(np.tril(x, int(upper) if upper >= 0 else x.shape[-1]), -int(lower) if lower >= 0 else -x.shape[-2])]

    cases = [Case({"x": r.any(d, 3, 4)}, {"lower": I32(1), "upper": I32(0)}) for d in BASIC]
    return cases + [
        Case({"x": r.floats(2, 5, 3)}, {"lower": I32(0)}),
        Case({"x": r.floats(2, 1, 3, 2, 5)}, {"upper": I32(1)}),
        Case({"x": r.floats(4, 3)}, {"lower": I32(-1), "upper": I32(-1)}),
        Case({"x": r.floats(2, 3)}),
        Case({"x": r.floats(5, 4)}, {"lower": I32(2), "upper": I32(-2)}),
        # Outside of the band is 0, as documented; coremltools multiplies by 0.
        Case({"x": np.array([[INF, NAN, 1], [NAN, -INF, 2]], F32)}, {"lower": I32(0), "upper": I32(0)}, special),
    ]


def cumsum(op):
    r = Random(op)

    def sums(x, axis=0, exclusive=False, reverse=False):
        x = x.astype(F32) if x.dtype == F16 else x
        x = np.flip(x, axis) if reverse else x
        out = np.cumsum(x, axis=axis, dtype=x.dtype)
        if exclusive:
            first = np.zeros_like(np.take(out, [0], axis))
            out = np.concatenate([first, np.delete(out, -1, axis)], axis=axis)
        return [np.flip(out, axis) if reverse else out]

    # coremltools fails on `exclusive`, and widens int32.
    cases = [Case({"x": r.any(d, 4, 3)}, {"axis": I32(1)}, sums) for d in NUMBERS]
    cases += [Case({"x": r.floats(2, 5, 3)}, {"axis": I32(1), "exclusive": e, "reverse": b}, sums, open=True) for e in (TRUE, FALSE) for b in (TRUE, FALSE)]
    return cases + [
        Case({"x": r.floats(2, 3, 2, 1, 4)}, {"axis": I32(-1), "exclusive": TRUE}, sums, open=True),
        Case({"x": r.floats(6)}),
        Case({"x": i32s(2**31 - 1, 1, 5)}, {"reverse": FALSE}, sums),
        Case({"x": r.floats(7, dtype=F16)}, {"reverse": TRUE}, sums),
    ]


def fill(op):
    values = [F32(2.5), F16(-1.25), I32(7), BOOL(True)]
    cases = [Case({}, {"shape": i32s(2, 3), "value": v}) for v in values]
    return cases + [
        Case({}, {"shape": i32s(4)}),
        Case({"shape": i32s(3, 1, 2)}, {"value": F32(-3)}),
        Case({"shape": i32s(1, 2, 1, 3, 2)}, {"value": I32(-9)}),
    ]


def fill_like(op):
    r = Random(op)
    values = [F32(2.5), F16(-1.25), I32(7), BOOL(True)]
    cases = [Case({"ref_tensor": r.any(d, 2, 3)}, {"value": v}) for d, v in zip(BASIC, values)]
    return cases + [
        Case({"ref_tensor": r.ints(4, 1, 2)}),
        Case({"ref_tensor": r.floats(2, 1, 3, 1, 2)}, {"value": I32(-4)}),
        Case({"ref_tensor": r.floats(5)}, {"value": BOOL(False)}),
    ]


def one_hot(op):
    r = Random(op)

    def rows(indices, one_hot_vector_size, axis=-1, on_value=I32(1), off_value=I32(0)):
        n = int(one_hot_vector_size)
        axis = int(axis) % (indices.ndim + 1)
        hot = np.expand_dims(indices, axis) == np.arange(n).reshape([n if a == axis else 1 for a in range(indices.ndim + 1)])
        return [np.where(hot, on_value, off_value).astype(np.asarray(on_value).dtype)]

    def case(indices, n, constants, constant=True):
        size = {"one_hot_vector_size": I32(n)}
        return Case({"indices": indices} | ({} if constant else size), (size if constant else {}) | constants, rows)

    pairs = [(F32(2.5), F32(-1)), (F16(0.5), F16(0.25)), (I32(7), I32(-2)), (BOOL(True), BOOL(False)), (BOOL(False), BOOL(True))]
    cases = [case(r.ints(4, low=0, high=5), 5, {"on_value": on, "off_value": off}) for on, off in pairs]
    return cases + [
        case(r.ints(2, 3, low=0, high=4), 4, {}),
        case(r.ints(2, 3, low=0, high=4), 4, {"axis": I32(0)}),
        case(r.ints(2, 3, 2, low=0, high=5), 5, {"axis": I32(1), "on_value": I32(3)}, constant=False),
        case(r.ints(2, 1, 3, 2, low=0, high=3), 3, {"axis": I32(-3), "off_value": I32(9)}),
        # An index that is no place.
        case(i32s(3, 0, -1, 2), 3, {"axis": I32(-2)}),
    ]


def pad(op):
    r = Random(op)
    cases = [Case({"x": r.any(d, 2, 3)}, {"pad": i32s(1, 0, 2, 1)}) for d in (F32, F16)]
    for mode in ("constant", "reflect", "replicate"):
        cases += [
            Case({"x": r.floats(4, 3)}, {"pad": i32s(0, 3, 2, 1), "mode": mode}),
            Case({"x": r.floats(2, 3, 5, dtype=F16)}, {"pad": i32s(1, 2, 4, 0), "mode": mode}),
            Case({"x": r.floats(2, 3, 2, 1, 4)}, {"pad": i32s(3, 2), "mode": mode}),
            Case({"x": r.floats(3, 4), "pad": i32s(1, 2, 0, 3)}, {"mode": mode}),
        ]
    return cases + [
        Case({"x": r.floats(2, 4)}, {"pad": i32s(0, 1, 2, 0), "constant_val": F32(-1.5)}),
        Case({"x": r.floats(3, dtype=F16)}, {"pad": i32s(2, 1), "constant_val": F16(9)}),
        Case({"x": r.floats(3, 2)}, {"pad": i32s(0, 4, 5, 0), "mode": "replicate", "constant_val": F32(2)}),
        Case({"x": r.floats(3, 2)}, {"pad": i32s(0, 0, 0, 0)}),
    ]


def argsort(op):
    r = Random(op)

    def case(x, constants):
        return Case({"x": x}, constants, order, "numpy, stable")

    def order(x, axis=-1, ascending=False):
        # coremltools' evaluation orders equal elements by chance.
        values = x.astype(np.float64)
        return [np.argsort(values if ascending else -values, axis=int(axis), kind="stable").astype(I32)]

    cases = [case(r.any(d, 4, 5), {"axis": I32(0), "ascending": a}) for d in NUMBERS for a in (TRUE, FALSE)]
    return cases + [
        case(r.floats(2, 5, 3), {"axis": I32(-2)}),
        case(r.floats(2, 1, 3, 2, 4), {"axis": I32(2), "ascending": TRUE}),
        case(r.floats(7), {}),
        case(f32s(1, NAN, -INF, INF, 1, 0, NAN, 1), {"ascending": TRUE}),
        case(f32s(1, NAN, -INF, INF, 1, 0, NAN, 1), {}),
    ]


def topk(op):
    r = Random(op)

    def best(x, k=1, axis=-1, ascending=False, sort=True, return_indices=True, output_indices_dtype="int32"):
        values = x.astype(np.float64)
        order = np.argsort(values if ascending else -values, axis=int(axis), kind="stable")
        count = x.shape[int(axis)] if k == -1 else int(k)
        order = np.take(order, range(count), axis=int(axis))
        found = np.take_along_axis(x, order, axis=int(axis))
        return [found, order.astype(I32)] if return_indices else [found]

    def case(x, constants):
        # coremltools' evaluation negates unsigned integers, and orders equal elements by chance.
        return Case({"x": x}, constants, best, "numpy, stable")

    newest = [case(r.any(d, 4, 5), {"k": I32(3), "axis": I32(0), "ascending": a}) for d in VALUES for a in (TRUE, FALSE)]
    newest += [
        case(r.floats(2, 5, 3), {"k": I32(2), "axis": I32(-2)}),
        case(r.floats(2, 1, 3, 2, 4), {"k": I32(3), "axis": I32(2), "ascending": TRUE}),
        case(r.floats(3, 6), {}),
        case(r.floats(3, 6), {"k": I32(6)}),
        case(f32s(1, NAN, -INF, INF, 1, 0, NAN, 1), {"k": I32(7)}),
        case(r.floats(3, 4), {"k": I32(2), "sort": TRUE, "return_indices": TRUE}),
        case(r.floats(3, 4), {"k": I32(2), "sort": FALSE, "axis": I32(0)}),
        case(r.floats(3, 4), {"k": I32(3), "return_indices": FALSE}),
        case(r.floats(2, 5), {"k": I8(2), "output_indices_dtype": "uint16"}),
        case(r.floats(5, 2), {"k": I16(4), "axis": I32(0), "output_indices_dtype": "int32"}),
        case(r.floats(2, 5), {"k": I32(-1), "return_indices": FALSE}),
        case(r.ints(4, 3, dtype=I8), {"k": I8(-1), "axis": I32(0)}),
    ]
    older = [c for c in without(newest, "output_indices_dtype") if c.constants.get("k") != -1]
    return newest + as_of("ios16", older, NUMBERS) + as_of("ios15", without(older, "sort", "return_indices"), NUMBERS)


def flatten2d(op):
    r = Random(op)

    def flat(dims, axis):
        # coremltools fails on a product of no sizes.
        n = int(np.prod(dims[:axis], dtype=int))
        return Case({"x": r.floats(*dims)}, {"axis": I32(axis)}, lambda x, axis: [x.reshape(n, -1)], open=True)

    cases = [Case({"x": r.any(d, 2, 3, 4)}, {"axis": I32(2)}) for d in BASIC]
    return cases + [
        Case({"x": r.floats(2, 3, 4)}),
        Case({"x": r.floats(2, 3, 2)}, {"axis": I32(-1)}),
        flat((3,), -1),
        flat((3,), 1),
        Case({"x": r.floats(2, 1, 3, 2, 2)}, {"axis": I32(-4)}),
        flat((5, 2), 0),
    ]


def non_maximum_suppression(op):
    r = Random(op)

    def overlap(a, b):
        def ends(box):
            return box[:2] - box[2:] / F32(2), box[:2] + box[2:] / F32(2)

        (low, high), (other_low, other_high) = ends(a), ends(b)
        common = np.prod(np.maximum(np.minimum(high, other_high) - np.maximum(low, other_low), 0))
        union = np.prod(high - low) + np.prod(other_high - other_low) - common
        return common / union if union > 0 else 0

    def chosen(boxes, scores, iou_threshold, score_threshold, max_boxes, per_class):
        best, classes = scores.max(-1), scores.argmax(-1)
        keep = []
        for i in np.argsort(-best, kind="stable"):
            rivals = [k for k in keep if not per_class or classes[k] == classes[i]]
            if best[i] >= score_threshold and not any(overlap(boxes[k], boxes[i]) > iou_threshold for k in rivals):
                keep.append(i)
        return keep[: int(max_boxes)]

    def suppress(boxes, scores, iou_threshold, max_boxes, score_threshold=None, per_class_suppression=False):
        last = score_threshold is None
        wide = [v.astype(F32) for v in (boxes, scores)]
        wide = [np.swapaxes(v, 1, 2) for v in wide] if last else wide
        n, m = len(boxes), int(max_boxes)
        out = [np.zeros((n, m, 4), F32), np.zeros((n, m, wide[1].shape[2]), F32), np.full((n, m), -1, I32), np.zeros(n, I32)]
        for b in range(n):
            threshold = -INF if last else F32(score_threshold)
            keep = chosen(wide[0][b], wide[1][b], F32(iou_threshold), threshold, max_boxes, per_class_suppression)
            out[0][b, : len(keep)], out[1][b, : len(keep)] = wide[0][b][keep], wide[1][b][keep]
            out[2][b, : len(keep)], out[3][b] = keep, len(keep)
        return [np.swapaxes(out[0], 1, 2), np.swapaxes(out[1], 1, 2), out[2]] if last else out

    def case(opset, n, count, classes, iou, most, more=None, dtype=F32, score=0.3):
        centres, sizes = r.floats(n, count, 2, low=0, high=2), r.floats(n, count, 2, low=0.5, high=2)
        boxes = np.concatenate([centres, sizes], axis=-1).astype(dtype)
        scores = r.floats(n, count, classes, low=0, high=1, dtype=dtype)
        constants = {"iou_threshold": dtype(iou), "max_boxes": I32(most)} | (more or {})
        if opset == "ios15":
            constants["score_threshold"] = dtype(score)
        else:
            boxes, scores = boxes.swapaxes(1, 2).copy(), scores.swapaxes(1, 2).copy()
        return Case({"boxes": boxes, "scores": scores}, constants, suppress, opset=opset)

    cases = []
    for opset in ("ios18", "ios15"):
        cases += [
            case(opset, 1, 7, 1, 0.2, 5),
            case(opset, 2, 9, 3, 0.3, 4, {"per_class_suppression": TRUE}),
            case(opset, 3, 6, 2, 0.1, 6, {"per_class_suppression": FALSE}),
            case(opset, 2, 8, 3, 0.25, 12, dtype=F16),
            case(opset, 2, 5, 4, 0.5, 2, score=0.9),
        ]
    return cases


FUNCTIONS = [band_part, cumsum, fill, fill_like, one_hot, pad, argsort, topk, flatten2d, non_maximum_suppression]
CASES = {f.__name__: f for f in FUNCTIONS}
COMPUTES = set()
