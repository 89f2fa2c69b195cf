"""Makes tests/types/symbolic.mil: the types that coremltools infers where sizes are symbols.

    python3 tests/oracle/make_types.py            # write the file
    python3 tests/oracle/make_types.py --check    # compare with the file that is there

A function a case; `// case_0 = tensor<fp32, [?, 3]>` has the types of its results, `?` for every size that is not a number.
"""

import sys
from pathlib import Path

import coremltools
import numpy as np
from case import BOOL, F16, F32, I32, SOURCE, argument, bools, i32s
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Function, get_new_symbol, types
from make_ops import dtype_of, literal, type_text

PATH = Path(__file__).resolve().parents[1] / "types" / "symbolic.mil"


class Given:
    """An input of a function; None is a size that each call tells."""

    def __init__(self, *dims, dtype=F32):
        self.dims, self.dtype = dims, dtype


def ints(*dims):
    return Given(*dims, dtype=I32)


# (op, parameters)
CASES = [
    ("gather", {"x": Given(None, 4, 3), "indices": ints(5), "axis": I32(1)}),
    ("gather", {"x": Given(2, 4, None), "indices": ints(2, None), "axis": I32(-2), "batch_dims": I32(1)}),
    ("gather_along_axis", {"x": Given(None, 4), "indices": ints(3, None), "axis": I32(1)}),
    ("gather_nd", {"x": Given(None, 4, 5), "indices": ints(None, 2)}),
    ("gather_nd", {"x": Given(3, 4, None), "indices": ints(3, 2, 1), "batch_dims": I32(1)}),
    ("scatter", {"data": Given(None, 3), "indices": ints(2), "updates": Given(2, 3)}),
    ("scatter_nd", {"data": Given(None, 3), "indices": ints(None, 1), "updates": Given(None, 3)}),
    ("argsort", {"x": Given(None, 3), "axis": I32(0)}),
    ("band_part", {"x": Given(2, None, None)}),
    ("concat", {"values": [Given(None, 3), Given(2, 3)], "axis": I32(0)}),
    ("concat", {"values": [Given(None, 3), Given(None, 4)], "axis": I32(1)}),
    ("cumsum", {"x": Given(None, 3)}),
    ("fill", {"shape": ints(2), "value": F16(2)}),
    ("fill_like", {"ref_tensor": Given(None, 2), "value": I32(3)}),
    ("flatten2d", {"x": Given(None, 3, 4)}),
    ("flatten2d", {"x": Given(2, 3, None), "axis": I32(-1)}),
    ("identity", {"x": Given(None, 2)}),
    ("non_maximum_suppression", {"boxes": Given(None, 4, None), "scores": Given(None, 3, None), "iou_threshold": F32(0.5), "max_boxes": I32(7)}),
    ("non_zero", {"x": Given(None, 3, 2)}),
    ("one_hot", {"indices": ints(None, 2), "one_hot_vector_size": I32(5), "axis": I32(1), "on_value": F32(1), "off_value": F32(0)}),
    ("pad", {"x": Given(None, 3), "pad": i32s(1, 2)}),
    ("pad", {"x": Given(None, 3), "pad": i32s(0, 1, 0, 0)}),
    ("pad", {"x": Given(None, 3), "pad": ints(4)}),
    ("shape", {"x": Given(None, 3)}),
    ("split", {"x": Given(None, 6), "num_splits": I32(2), "axis": I32(1)}),
    ("split", {"x": Given(None, 5), "split_sizes": i32s(2, 3), "axis": I32(-1)}),
    ("stack", {"values": [Given(3, 2), Given(None, 2)], "axis": I32(-1)}),
    ("stack", {"values": [Given(None, 2), Given(3, 2)], "axis": I32(0)}),
    ("tile", {"x": Given(None, 3), "reps": i32s(1, 2)}),
    ("tile", {"x": Given(None, 3), "reps": i32s(2, 1)}),
    ("tile", {"x": Given(None, 3), "reps": ints(2)}),
    ("topk", {"x": Given(None, 5), "k": I32(2)}),
    ("topk", {"x": Given(None, 5), "k": I32(2), "axis": I32(0), "output_indices_dtype": "uint16"}),
    ("batch_to_space", {"x": Given(8, 3, None, 5), "block_shape": i32s(2, 2), "crops": i32s(1, 0, 0, 2).reshape(2, 2)}),
    ("depth_to_space", {"x": Given(None, 8, 3, None), "block_size": I32(2)}),
    ("expand_dims", {"x": Given(None, 3), "axes": i32s(0, -1)}),
    ("pixel_shuffle", {"x": Given(None, 9, None, 4), "upscale_factor": I32(3)}),
    ("pixel_unshuffle", {"x": Given(None, 2, None, 4), "downscale_factor": np.uint32(2)}),
    ("reshape", {"x": Given(None, 6), "shape": i32s(-1, 3)}),
    ("reshape", {"x": Given(4, 6), "shape": ints(3)}),
    ("reverse", {"x": Given(None, 3), "axes": i32s(0)}),
    ("reverse_sequence", {"x": Given(None, 3), "lengths": ints(None), "seq_axis": I32(1)}),
    ("select", {"cond": Given(None, 3, dtype=BOOL), "a": Given(None, 3), "b": Given(1, 3)}),
    ("slice_by_index", {"x": Given(None, 5), "begin": i32s(0, 1), "end": i32s(0, 4), "end_mask": bools(1, 0)}),
    ("slice_by_index", {"x": Given(None, 5), "begin": i32s(-1, 1), "end": i32s(0, 4), "squeeze_mask": bools(1, 0)}),
    ("slice_by_index", {"x": Given(4, 5), "begin": ints(2), "end": ints(2)}),
    ("slice_by_size", {"x": Given(None, 5), "begin": i32s(0, 1), "size": i32s(-1, -1)}),
    ("slice_by_size", {"x": Given(None, 5), "begin": i32s(1, 1), "size": i32s(3, 2)}),
    ("slice_by_size", {"x": Given(4, 5), "begin": ints(2), "size": ints(2)}),
    ("slice_update", {"x": Given(None, 5), "update": Given(2, 5), "begin": i32s(1, 0), "end": i32s(3, 5)}),
    ("sliding_windows", {"x": Given(2, None, 4), "axis": I32(1), "size": I32(3), "stride": I32(2)}),
    ("space_to_batch", {"x": Given(None, 3, 4, None), "block_shape": i32s(2, 2), "paddings": i32s(1, 1, 0, 2).reshape(2, 2)}),
    ("space_to_depth", {"x": Given(None, 2, 4, None), "block_size": I32(2)}),
    ("squeeze", {"x": Given(None, 1, 3), "axes": i32s(1)}),
    ("transpose", {"x": Given(None, 2, 3), "perm": i32s(2, 0, 1)}),
]


def given(name, value):
    """(name, input) of the inputs of a parameter."""
    values = value if isinstance(value, list) else [value]
    names = [f"{name}_{i}" for i in range(len(values))] if isinstance(value, list) else [name]
    return [(n, v) for n, v in zip(names, values) if isinstance(v, Given)]


def function(index, op, parameters):
    inputs = dict(pair for name, value in parameters.items() for pair in given(name, value))
    placeholders = {
        name: mb.placeholder(
            shape=[get_new_symbol() if d is None else d for d in v.dims], dtype=types.numpy_type_to_builtin_type(v.dtype)
        )
        for name, v in inputs.items()
    }
    with Function(placeholders, opset_version=coremltools.target.iOS18) as f:

        def bound(name, value):
            if isinstance(value, list):
                return [f.inputs[n] for n, _ in given(name, value)]
            return f.inputs[name] if name in inputs else argument(value)

        results = getattr(mb, op)(**{name: bound(name, value) for name, value in parameters.items()})
    results = results if isinstance(results, (list, tuple)) else [results]

    def size(d):
        return "?" if d is None or hasattr(d, "free_symbols") and d.free_symbols else int(d)

    found = [type_text(types.builtin_to_string(r.dtype), [size(d) for d in r.shape]) for r in results]
    header = ", ".join(f"{type_text(dtype_of(np.zeros(0, v.dtype)), [size(d) for d in v.dims])} {n}" for n, v in inputs.items())

    def text(name, value):
        if isinstance(value, list):
            return f"({', '.join(n for n, _ in given(name, value))})"
        return name if name in inputs else literal(value)

    arguments = ", ".join(f"{name} = {text(name, value)}" for name, value in parameters.items())
    names = [f"y_{i}" for i in range(len(found))]
    body = f"{', '.join(f'{t} {n}' for t, n in zip(found, names))} = {op}({arguments});"
    case = f"case_{index}"
    lines = [f"// {case} = {'; '.join(found)}", f"func {case}<ios18>({header}) {{", f"    {body}", f"}} -> ({', '.join(names)});"]
    return "\n".join(f"    {line}" for line in lines)


def main():
    functions = [function(i, *case) for i, case in enumerate(CASES)]
    text = f"// Made by tests/oracle/make_types.py.\n// source: {SOURCE}\nprogram(1.3)\n{{\n" + "\n".join(functions) + "\n}\n"
    if sys.argv[1:] == ["--check"]:
        if PATH.read_text() != text:
            sys.exit(f"{PATH.name} differs")
        print(f"{PATH.name} agrees")
        return
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(text)
    print(f"{len(functions)} cases written")


if __name__ == "__main__":
    main()
