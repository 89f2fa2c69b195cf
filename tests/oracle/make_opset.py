"""Makes crates/cli/data/opset.json: the ops that coremltools registers, form by form.

    python3 tests/oracle/make_opset.py            # write the file
    python3 tests/oracle/make_opset.py --check    # compare with the file that is there

An op has a form for each opset from ios15 to ios18 that registers another class for it, and a form lists its parameters:
name, whether it must be bound, whether it must be constant, and what it takes. That is element types, or `list`, `tuple`
(one or more values), `state` or `any`. Python functions, which become nested blocks, are no parameters. Ops that only
frontends have (dialects other than `coreml`) are left out, and so is `_const_symbolic`, which no file has.
"""

import json
import sys
from pathlib import Path

from golden import need

need("coremltools", "numpy")
import coremltools
from coremltools.converters.mil.mil import types
from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

PATH = Path(__file__).resolve().parents[2] / "crates/cli/data/opset.json"
OPSETS = ("iOS15", "iOS16", "iOS17", "iOS18")
KINDS = {"ListInputType": "list", "TupleInputType": "tuple", "StateInputType": "state", "ListOrTensorOrDictInputType": "any"}
BLOCKS = {"PyFunctionInputType"}


def parameter(op, name, spec):
    """One parameter, or None for what becomes a nested block."""
    kind = type(spec).__name__
    if kind in BLOCKS or name == "_existing_blocks":
        return None
    takes = "any" if kind == "InternalInputType" else KINDS.get(kind)
    if takes is None:
        domain = op.type_domains[spec.type_domain_id] if spec.type_domain_id else spec.type_domain
        domain = domain if isinstance(domain, tuple) else (domain,)
        takes = sorted(types.builtin_to_string(dtype) for dtype in domain)
    return {"name": name, "required": not spec.optional, "constant": bool(spec.const), "takes": takes}


def forms(versions):
    """The forms of an op, oldest first."""
    seen = []
    for name in OPSETS:
        op = versions.get(getattr(coremltools.target, name))
        if op is None or any(op is other for other, _ in seen):
            continue
        seen.append((op, name.lower()))
    for op, since in seen:
        params = (parameter(op, name, spec) for name, spec in op.input_spec.input_types.items())
        yield {"since": since, "params": [p for p in params if p]}


def text():
    ops = {name: list(forms(v)) for name, v in SSAOpRegistry.core_ops.items() if name != "_const_symbolic"}
    for name, op in SSAOpRegistry.dialect_ops.items():
        if op._dialect_namespace == "coreml":
            # A dialect has no opset; states came with iOS 18.
            ops[name] = list(forms({coremltools.target.iOS18: op}))
    rows = [f'    {{"name": "{name}", "forms": {json.dumps(ops[name])}}}' for name in sorted(ops)]
    return f'{{\n  "source": "coremltools {coremltools.__version__}",\n  "ops": [\n' + ",\n".join(rows) + "\n  ]\n}\n"


def main():
    made = text()
    if sys.argv[1:] == ["--check"]:
        if PATH.read_text() != made:
            sys.exit(f"{PATH.name} is not what coremltools {coremltools.__version__} registers")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        PATH.write_text(made)
    n_forms = made.count("since")
    print(f"{n_forms} forms")


if __name__ == "__main__":
    main()
