"""Runs the tests and doctests of the module: python3 run.py LIBRARY [PROGRAM], in the root of the repository.

The module is put together in a temporary folder from its Python files and the library. Tests that need the program are
skipped without it.
"""

import doctest
import importlib
import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main():
    library = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder) / "thane"
        shutil.copytree(HERE.parent / "python/thane", module)
        shutil.copy(library, module / ("_thane.pyd" if library.suffix == ".dll" else "_thane.abi3.so"))
        sys.path[:0] = [folder, str(HERE)]
        os.environ["PYTHONPATH"] = folder
        if len(sys.argv) > 2 and (program := Path(sys.argv[2]).resolve()).exists():
            os.environ["THANE_PROGRAM"] = str(program)
        suite = unittest.defaultTestLoader.loadTestsFromName("test_thane")
        names = ["thane", "thane._models", "thane._package"]
        names += ["thane._program"] if "THANE_PROGRAM" in os.environ else []
        for name in names:
            suite.addTests(doctest.DocTestSuite(importlib.import_module(name)))
        page = HERE.parents[2] / "docs/python.md"
        suite.addTests(doctest.DocFileSuite(str(page), module_relative=False, encoding="utf-8"))
        ended = unittest.TextTestRunner(verbosity=1).run(suite)
    return 0 if ended.wasSuccessful() and ended.testsRun > 10 else 1


if __name__ == "__main__":
    sys.exit(main())
