"""Core ML packages: what they hold, and calls of their functions on this machine's CPU."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _thane

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DTYPES = {
    "bool": "bool", "fp16": "float16", "fp32": "float32", "fp64": "float64", "int8": "int8", "int16": "int16",
    "int32": "int32", "int64": "int64", "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
}


class Feature(NamedTuple):
    """An input, an output or a state of a function."""

    name: str
    dtype: str
    """The element type as MIL names it, such as `fp16`."""
    shape: tuple[int | None, ...]
    """None for a dimension that the caller chooses."""


class Op(NamedTuple):
    """An op of a function."""

    kind: str
    results: list[str]


class Prediction(NamedTuple):
    """The results of a call."""

    outputs: dict[str, NDArray[Any]]
    states: dict[str, NDArray[Any]]
    """The states after the call."""


class Package:
    """A package (`.mlpackage`) or a compiled model (`.mlmodelc`).

    >>> package = Package("tests/packages/ios16_half.mlpackage")
    >>> package.functions
    ['main']
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = fspath(path)
        self._package = _thane.Package(self.path)

    @property
    def functions(self) -> list[str]:
        """Names of functions."""
        return self._package.functions

    def inputs(self, function: str | None = None) -> list[Feature]:
        """What a function takes, the default one unless it is named."""
        return _features(self._package.features(self._name(function))[0])

    def outputs(self, function: str | None = None) -> list[Feature]:
        """What a function gives."""
        return _features(self._package.features(self._name(function))[1])

    def states(self, function: str | None = None) -> list[Feature]:
        """What a function keeps between calls."""
        return _features(self._package.features(self._name(function))[2])

    def ops(self, function: str | None = None) -> list[Op]:
        """The ops of a function in order, with those of nested blocks."""
        return [Op(*op) for op in self._package.ops(self._name(function))]

    def constant(self, name: str, function: str | None = None) -> NDArray[Any]:
        """A constant tensor by the name of its result in `ops`."""
        return _array(self._package.constant(self._name(function), name))[1]

    def predict(
        self, inputs: Mapping[str, Any], function: str | None = None, *, states: Mapping[str, Any] | None = None,
        numerics: str = "f32", threads: int | None = None, memory: int | None = None,
    ) -> Prediction:
        """Calls a function once. States are zeros unless they are given.

        Arrays become the types of the function where numpy's rule `same_kind` takes them and their values fit: float64
        becomes fp16, unless a number is larger than fp16 holds. Others raise `ValueError`. `numerics` is `f32`, the
        reference, `fast`, `int8`, or `ane`, which rounds as the Neural Engine does.
        """
        import numpy

        name = self._name(function)
        taken, _, kept = (_features(features) for features in self._package.features(name))

        def cast(values: Mapping[str, Any], features: list[Feature], what: str) -> list[tuple[str, Any]]:
            known = {feature.name: feature.dtype for feature in features}
            for key in values:
                if key not in known:
                    raise ValueError(f"function `{name}` has no {what} `{key}`, but {', '.join(known) or 'none'}")
            if what == "input" and (missing := [key for key in known if key not in values]):
                raise ValueError(f"function `{name}`: expected the input `{missing[0]}`")
            return [(key, _cast(key, numpy.asarray(value), known[key])) for key, value in values.items()]

        outputs, after = self._package.predict(
            name,
            [(key, list(array.shape), array.tobytes()) for key, array in cast(inputs, taken, "input")],
            [(key, list(array.shape), array.tobytes()) for key, array in cast(states or {}, kept, "state")],
            numerics=numerics, threads=threads, memory=memory,
        )
        return Prediction(dict(map(_array, outputs)), dict(map(_array, after)))

    def _name(self, function: str | None) -> str:
        return function or self._package.default_function

    def __repr__(self) -> str:
        return f"Package({self.path!r})"


def predict(package: str | PathLike[str], inputs: Mapping[str, Any], function: str | None = None, **options: Any) -> Prediction:
    """Calls a function of a package once: `Package(package).predict(..)`."""
    return Package(package).predict(inputs, function, **options)


def _features(features: list[Any]) -> list[Feature]:
    return [Feature(name, dtype, tuple(shape)) for name, dtype, shape in features]


def _dtype(name: str, dtype: str) -> str:
    if dtype not in _DTYPES:
        raise _thane.ThaneError(f"`{name}`: numpy has no type for elements of {dtype}")
    return _DTYPES[dtype]


def _cast(name: str, array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """An array in the type of an input. What it cannot hold is refused: another kind, and values out of its range."""
    import numpy

    to = numpy.dtype(_dtype(name, dtype))
    are_integers = array.dtype.kind in "iu" and to.kind in "iu"
    if not are_integers and not numpy.can_cast(array.dtype, to, "same_kind"):
        raise ValueError(
            f"`{name}`: expected {dtype}, found {array.dtype}, which numpy does not cast to it: "
            f"array.astype('{to.name}') does, if that is meant"
        )
    with numpy.errstate(over="ignore", invalid="ignore"):
        # A number becomes an array of one.
        cast = numpy.ascontiguousarray(array, dtype=to)
    fits = cast == array if are_integers else numpy.isfinite(cast) | ~numpy.isfinite(array)
    if not fits.all():
        limits = numpy.iinfo(to) if to.kind in "iu" else numpy.finfo(to)
        worst = array[~fits].flat[0] if array.ndim else array[()]
        raise ValueError(f"`{name}`: {worst} does not fit in {dtype}, which holds {limits.min} to {limits.max}")
    return cast


def _array(of: tuple[str, str, list[int], bytes]) -> tuple[str, NDArray[Any]]:
    import numpy

    name, dtype, shape, data = of
    return name, numpy.frombuffer(data, dtype=_dtype(name, dtype)).reshape(shape)
