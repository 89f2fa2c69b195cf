"""Cases of gathering and scattering."""

import dataclasses

import numpy as np
import ops_core
from case import *

NUMBERS = (F32, F16, I32)
VALUES = NUMBERS + (I16, U16, I8, U8)
MODES = ("update", "add", "sub", "mul", "div", "max", "min")
TRUE, FALSE = BOOL(True), BOOL(False)


def as_of(opset, cases, keep, **more):
    """Those of the cases that an older opset takes: parameters are of the types `keep`, or of `more` by name."""

    def fits(name, value):
        values = value if isinstance(value, list) else [value]
        types = {np.asarray(v).dtype.type for v in values if not isinstance(v, str)}
        return types <= set(more.get(name, (*keep, BOOL)))

    def is_older(case):
        return all(fits(name, value) for name, value in (case.inputs | case.constants).items())

    return [dataclasses.replace(case, opset=opset) for case in cases if is_older(case)]


def without(cases, *names):
    """The cases that do not bind these parameters."""
    return [case for case in cases if not set(names) & set(case.inputs | case.constants)]


def negative(op):
    """Negative indices, which the first two opsets define."""
    return [Case({"x": Random(op).floats(4, 3), "indices": i32s(-1, 0, -4)}, {"axis": I32(-2)})]


def gather(op):
    newest = ops_core.gather(op)
    older = without(newest, "validate_indices") + negative(op)
    r = Random(f"{op} older")
    batch = [
        Case({"x": r.floats(2, 3, 4), "indices": r.ints(2, 5, low=0, high=4, dtype=d)}, {"axis": I32(2), "batch_dims": I32(1)})
        for d in (I32, I16, U16)
    ]
    first = [Case({"x": r.any(d, 3, 4), "indices": r.ints(2, 2, low=0, high=4)}, {"axis": I32(1)}) for d in NUMBERS]
    newest.append(Case({"x": r.floats(3, 5), "indices": r.ints(2, 2, low=0, high=5, dtype=U16)}, {"axis": I32(1), "validate_indices": FALSE}))
    return (
        newest
        + as_of("ios16", older + batch, NUMBERS, indices=(I32, I16, U16))
        + as_of("ios15", without(older, "batch_dims") + first, NUMBERS, indices=[I32])
    )


def gather_along_axis(op):
    r = Random(op)

    def case(dims, axis, n, dtype=F32, index=I32, constants=None):
        x = r.any(dtype, *dims)
        shape = list(dims)
        shape[axis] = n
        return Case({"x": x, "indices": r.ints(*shape, low=0, high=dims[axis], dtype=index)}, {"axis": I32(axis)} | (constants or {}))

    newest = [case((4, 3), 0, 2, d) for d in VALUES]
    newest += [case((2, 5, 3), 1, 4, index=d) for d in (I32, I16, U16, I8, U8)]
    newest += [
        case((2, 3, 4), -1, 6, constants={"validate_indices": TRUE}),
        case((2, 3, 2, 1, 4), -4, 2, constants={"validate_indices": FALSE}),
        Case({"x": r.floats(5), "indices": i32s(4, 0, 4)}),
    ]
    older = without(newest, "validate_indices") + [Case({"x": r.floats(3, 4), "indices": r.ints(3, 2, low=-4, high=4)}, {"axis": I32(1)})]
    return newest + as_of("ios16", older, NUMBERS, indices=(I32, I16, U16)) + as_of("ios15", older, NUMBERS, indices=[I32])


def gather_nd(op):
    r = Random(op)

    def take(x, indices, batch_dims=0, validate_indices=None):
        def flat(x, indices):
            rows = indices.reshape(-1, indices.shape[-1]).astype(np.int64)
            parts = [x[tuple(row)] for row in rows]
            return np.array(parts, x.dtype).reshape(indices.shape[:-1] + x.shape[indices.shape[-1] :])

        def over(x, indices, n):
            if n == 0:
                return flat(x, indices)
            return np.stack([over(a, b, n - 1) for a, b in zip(x, indices)])

        return [over(x, indices, int(batch_dims))]

    def case(x, places, constants=None, index=I32, low=0, dims=None):
        """`places`: the shape of the indices but for the last axis; `dims`: the axes of x that a place names."""
        indices = np.stack([r.ints(*places, low=-n if low else 0, high=n, dtype=index) for n in dims], axis=-1)
        return Case({"x": x, "indices": indices}, constants or {}, take)

    newest = [case(r.any(d, 4, 3), (5,), dims=(4, 3)) for d in VALUES]
    newest += [case(r.floats(2, 5, 3), (2, 2), index=d, dims=(2, 5)) for d in (I32, I16, U16, I8, U8)]
    newest += [
        case(r.floats(4, 2, 3), (3,), dims=(4,)),
        # coremltools validates as if a place named all axes.
        case(r.floats(4, 2, 3), (5,), {"validate_indices": TRUE}, dims=(4, 2, 3)),
        case(r.floats(2, 3, 4, 2), (2,), {"batch_dims": I32(0), "validate_indices": FALSE}, dims=(2, 3, 4, 2)),
        case(r.floats(2, 5, 3), (2, 4), {"batch_dims": I32(1)}, dims=(5,)),
        case(r.floats(2, 3, 4, 2), (2, 3, 2), {"batch_dims": I32(2)}, dims=(4, 2)),
        case(r.floats(2, 3, 4), (2, 3), {"batch_dims": I32(2)}, dims=(4,)),
    ]
    older = without(newest, "validate_indices") + [case(r.floats(4, 3, 2), (3,), low=-1, dims=(4, 3))]
    return newest + as_of("ios16", older, NUMBERS, indices=(I32, I16, U16)) + as_of("ios15", without(older, "batch_dims"), NUMBERS, indices=[I32])


def merged(mode, old, new):
    """One element changed by an update; integers are divided towards zero."""
    if mode == "update":
        return new
    if mode == "div":
        return old / new if isinstance(old, np.floating) else int(np.trunc(int(old) / int(new)))
    return {"add": old + new, "sub": old - new, "mul": old * new, "max": max(old, new), "min": min(old, new)}[mode]


def written(place_of):
    """The formula of a scatter: `place_of(data, indices, updates, at, axis)` is where the update at `at` goes."""

    def formula(data, indices, updates, axis=0, mode="add", validate_indices=None):
        out = data.astype(F32) if data.dtype == F16 else data.copy()
        changes = updates.astype(F32) if data.dtype == F16 else updates
        for at in np.ndindex(*updates.shape):
            to = place_of(data, indices, at, int(axis) % max(data.ndim, 1))
            out[to] = merged(mode, out[to], changes[at])
        return [out]

    return formula


def scatters(op, case):
    """`case(dims, dtype, constants, low)` for all that the three ops share."""
    newest = [case(d, {"mode": mode}) for mode in MODES for d in NUMBERS]
    newest += [case(F32, {}), case(F32, {"mode": "max", "validate_indices": TRUE}), case(I32, {"validate_indices": FALSE})]
    older = without(newest, "validate_indices") + [case(F32, {"mode": "sub"}, low=-1)]
    return newest + as_of("ios15", older, NUMBERS, indices=[I32])


def nonzero(r, dtype, *dims):
    """Values that can divide."""
    values = r.any(dtype, *dims)
    return np.where(np.abs(values) < 1, dtype(2), values).astype(dtype)


def scatter(op):
    r = Random(op)

    def place(data, indices, at, axis):
        return at[:axis] + (int(indices[at[axis : axis + indices.ndim]]),) + at[axis + indices.ndim :]

    shapes = [((4, 3), 0, (3,)), ((2, 5, 3), 1, (4,)), ((3, 2, 4), -1, (5,)), ((2, 3, 4), -2, (2, 2))]

    def case(dtype, constants, low=0, turn=[0]):
        dims, axis, count = shapes[turn[0] % len(shapes)]
        turn[0] += 1
        n, at = dims[axis], axis % len(dims)
        update = dims[:at] + count + dims[at + 1 :]
        indices = r.ints(*count, low=-n if low else 0, high=n)
        inputs = {"data": r.any(dtype, *dims), "indices": indices, "updates": nonzero(r, dtype, *update)}
        return Case(inputs, {"axis": I32(axis)} | constants, written(place))

    default = Case({"data": r.floats(5, 2), "indices": i32s(4, 1, 4), "updates": r.floats(3, 2)}, {}, written(place))
    return scatters(op, case) + [default]


def scatter_along_axis(op):
    r = Random(op)

    def place(data, indices, at, axis):
        return at[:axis] + (int(indices[at]),) + at[axis + 1 :]

    shapes = [((4, 3), 0, 3), ((2, 5, 3), 1, 4), ((3, 2, 4), -1, 5), ((2, 3, 1, 4, 2), -4, 2)]

    def case(dtype, constants, low=0, turn=[0]):
        dims, axis, count = shapes[turn[0] % len(shapes)]
        turn[0] += 1
        shape = list(dims)
        shape[axis] = count
        indices = r.ints(*shape, low=-dims[axis] if low else 0, high=dims[axis])
        inputs = {"data": r.any(dtype, *dims), "indices": indices, "updates": nonzero(r, dtype, *shape)}
        # coremltools evaluates every mode as `update`, against its documentation.
        return Case(inputs, {"axis": I32(axis)} | constants, written(place))

    return scatters(op, case) + [Case({"data": r.floats(5, 2), "indices": r.ints(3, 2, low=0, high=5), "updates": r.floats(3, 2)}, {}, written(place))]


def scatter_nd(op):
    r = Random(op)

    def place(data, indices, at, axis):
        n = indices.ndim - 1
        return tuple(int(v) for v in indices[at[:n]]) + at[n:]

    shapes = [((4, 3), (5,), 2), ((2, 5, 3), (2, 2), 2), ((2, 3, 2), (4,), 3), ((4, 2, 3), (3,), 1)]

    def case(dtype, constants, low=0, turn=[0]):
        dims, places, depth = shapes[turn[0] % len(shapes)]
        turn[0] += 1
        indices = np.stack([r.ints(*places, low=-n if low else 0, high=n) for n in dims[:depth]], axis=-1)
        inputs = {"data": r.any(dtype, *dims), "indices": indices, "updates": nonzero(r, dtype, *places, *dims[depth:])}
        return Case(inputs, constants, written(place))

    return scatters(op, case)


CASES = {f.__name__: f for f in [gather, gather_along_axis, gather_nd, scatter, scatter_along_axis, scatter_nd]}
COMPUTES = set()
