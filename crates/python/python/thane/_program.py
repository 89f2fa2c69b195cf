"""Verbs that the program `thane` runs, with what it prints as JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from ._thane import ThaneError


def program() -> str:
    """The program's path: `$THANE_PROGRAM`, else the script of this package, else the first on the PATH."""
    if given := os.environ.get("THANE_PROGRAM"):
        return given
    import shutil
    import sysconfig

    name = "thane.exe" if sys.platform == "win32" else "thane"
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    for folder in folders:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    found = shutil.which(name)
    if found is None:
        raise ThaneError(f"expected the program {name} in {folders[0]} or on the PATH: reinstall thane, or set THANE_PROGRAM")
    return found


class Report(dict[str, Any]):
    """What a verb prints with `--json`, by the names of docs/json.md; keys are attributes too.

    >>> report = audit("tests/packages/ios16_half.mlpackage", target="m4")
    >>> report.targets[0].verdict
    'off-engine'
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the report has no `{name}`, but {', '.join(self)}") from None

    def rows(self) -> Iterator[dict[str, Any]]:
        """A flat row for each target, function and finding, for pandas.DataFrame or polars.DataFrame."""
        for target in self.get("targets", []):
            for finding in target.get("findings", []):
                flat = {key: value for key, value in finding.items() if not isinstance(value, (dict, list))}
                yield {"target": target.get("target"), "verdict": target.get("verdict"), **flat}


def convert(model: str | PathLike[str], out: str | PathLike[str], **flags: Any) -> Report:
    """Writes a package: `thane convert MODEL -o OUT`.

    Flags are the command's, with `_` for `-`: `target="a19"`, `compress="pal4"`, `force=True`, `buckets=[128, 512]`.
    """
    return _run("convert", model, {"out": out, **flags})


def compress(package: str | PathLike[str], out: str | PathLike[str], **flags: Any) -> Report:
    """Writes a package with compressed weights: `thane compress PACKAGE -o OUT`."""
    return _run("compress", package, {"out": out, **flags})


def audit(model: str | PathLike[str], **flags: Any) -> Report:
    """Predicts where each op of a package or checkpoint runs, and how fast: `thane audit MODEL`."""
    return _run("audit", model, flags)


def plan(model: str | PathLike[str], **flags: Any) -> Report:
    """Prices the forms of a model on chips, and chooses: `thane plan MODEL`."""
    return _run("plan", model, flags)


def _arguments(flags: Mapping[str, Any]) -> Iterator[str]:
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            yield flag
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield f"{flag}={','.join(map(str, value))}"
        else:
            yield f"{flag}={fspath(value) if isinstance(value, PathLike) else value}"


def _run(verb: str, subject: str | PathLike[str], flags: Mapping[str, Any]) -> Report:
    # Loaded where they are needed: they take half the time of `import thane`.
    import json
    import subprocess

    command = [program(), verb, *_arguments(flags), "--json", "--quiet", "--", fspath(subject)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            output, errors = child.communicate()
        except BaseException:
            # Ctrl-C reached the program as well, unless it came to this process alone.
            child.terminate()
            child.wait()
            raise
    try:
        report = json.loads(output, object_pairs_hook=Report)
    except ValueError:
        report = None
    # An audit that fails a wish, such as --require-ane, has a report and ends with 1.
    if child.returncode not in (0, 1) or not isinstance(report, Report):
        text = errors.strip().removeprefix("thane: ").removeprefix("error: ")
        raise ThaneError(text or f"{verb} ended with exit status {child.returncode}")
    return report
