"""What a subject of `make_zoo.py` is, and how to build one without its weights in memory."""

from collections.abc import Callable
from dataclasses import dataclass

import coremltools as ct
import torch

COMPRESSIONS = {
    *(f"lut{bits}" for bits in (1, 2, 3, 4, 6, 8)),
    *(f"lut{bits}_g{group}" for bits in (1, 2, 3, 4, 6, 8) for group in (1, 2, 4, 8, 16, 32)),
    "int8",
    "w8a8",
    "sparse50",
    "sparse75",
    "sparse90",
}


@dataclass(frozen=True)
class Subject:
    """One public model, which becomes one function of the zoo."""

    build: Callable[[], tuple[torch.nn.Module, list[ct.TensorType]]]  # eval() module, its inputs
    precision: str = "float16"  # compute precision
    target: str = "iOS17"  # minimum deployment target
    compress: str | None = None  # one of COMPRESSIONS
    n_ops: int | None = None  # ops that the source publishes, consts excluded
    n_params: int | None = None  # parameters that the source publishes
    outputs: list[ct.TensorType] | None = None  # as of ct.convert
    states: list[ct.StateType] | None = None  # as of ct.convert; needs iOS18
    without: tuple[str, ...] = ()  # passes that the source's release of coremltools lacked

    def __post_init__(self):
        assert self.compress is None or self.compress in COMPRESSIONS, self.compress


def tensor(*shape, dtype=None, name=None):
    """An input of the shape; its type is float32 unless a numpy type is given."""
    return ct.TensorType(name=name, shape=shape, dtype=dtype)


class _MetaParameters:
    """While modules are made, drops the values of their parameters and skips `torch.nn.init`."""

    def __enter__(self):
        self.register = torch.nn.Module.register_parameter

        def register(module, name, parameter):
            if parameter is not None and parameter.device.type != "meta":
                parameter = torch.nn.Parameter(parameter.to("meta"), requires_grad=False)
            self.register(module, name, parameter)

        torch.nn.Module.register_parameter = register

    def __exit__(self, *error):
        torch.nn.Module.register_parameter = self.register


def stretch(module):
    """Makes every parameter one number, stretched to its shape by strides of 0.

    Neighbors differ, for the converter merges ops of equal inputs, such as the projections of
    query and key; and no number is 0 or 1, for it drops additions of 0 and products with 1.
    """
    kept = {}  # tied parameters stay tied
    for part in module.modules():
        for name, value in list(part._parameters.items()):
            if value is None:
                continue
            if id(value) not in kept:
                number = 2.0**-6 * (1 + (len(kept) + 1) * 389 % 1024 / 1024)
                flat = torch.full((1,), number, dtype=torch.float32).expand(value.shape)
                kept[id(value)] = (torch.nn.Parameter(flat, requires_grad=False), value)
            part._parameters[name] = kept[id(value)][0]
    return module.eval()


def empty(make):
    """Calls `make` for a module whose parameters never have values in memory, and stretches it.

    Buffers are real: tables of rotary positions and statistics of norms are computed from values.
    """
    with _MetaParameters():
        module = make()
    return stretch(module)
