"""Shared by the oracle scripts: the import check and the golden pair (a JSON file and a float32 file).

A golden is `<stem>.json` beside `<stem>.bin`. The .bin is nothing but little-endian float32 values; the JSON holds all
integers and names each run of floats as `{"offset": first float, "shape": [...]}`.
"""

import importlib.util
import json
import sys
from pathlib import Path

MODELS = Path(__file__).resolve().parent.parent / "models"


def need(*modules):
    """Ends the script with one clear line when a module it needs is not installed."""
    # protobuf is the one package that is not called as its module is.
    homes = {"protobuf": "google"}
    missing = [name for name in modules if importlib.util.find_spec(homes.get(name, name)) is None]
    if missing:
        sys.exit(f"{Path(sys.argv[0]).name}: needs {', '.join(missing)}: python3 -m pip install {' '.join(missing)}")


class Floats:
    """Collects arrays for one .bin file; `add` answers where the array will lie."""

    def __init__(self):
        self.parts = []
        self.length = 0

    def add(self, array):
        import numpy

        array = numpy.ascontiguousarray(array, dtype="<f4")
        place = {"offset": self.length, "shape": list(array.shape)}
        self.parts.append(array.tobytes())
        self.length += array.size
        return place

    def write(self, path):
        path.write_bytes(b"".join(self.parts))


def make_named(cases, make):
    """Makes the cases that the command line names, or all of them."""
    for name in sys.argv[1:] or cases:
        if name not in cases:
            sys.exit(f"no such checkpoint: {name}; there are {', '.join(cases)}")
        make(name, cases[name])


def write_json(path, value):
    """Indented, but a list of scalars stays on one line: the files are read by people too."""
    path.write_text(_render(value, 0) + "\n", encoding="utf-8")


def _render(value, depth):
    pad = "  " * (depth + 1)
    if isinstance(value, dict) and value:
        rows = [f"{pad}{json.dumps(key)}: {_render(item, depth + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + "  " * depth + "}"
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        rows = [pad + _render(item, depth + 1) for item in value]
        return "[\n" + ",\n".join(rows) + "\n" + "  " * depth + "]"
    return json.dumps(value, ensure_ascii=False)
