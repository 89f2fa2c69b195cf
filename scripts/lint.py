"""Clippy and the lints of documents for every crate of the workspace that was built.

`cargo clippy` and `cargo doc` check each dependency again, since they use none of what a build made.
Here the calls of the compiler that scripts/record.sh wrote down are made again, with clippy's
compiler and with rustdoc, beside the libraries that the build left. On a checkout with nothing built
that saves half of the time; otherwise `cargo clippy --workspace --all-targets` does the same.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

# Options of code that is not made here, of outputs and of messages.
LEFT_OUT = ("--emit=", "--error-format=", "--json=", "--diagnostic-width=")
LEFT_OUT_WITH_NEXT = ("-C", "--out-dir")


def recorded(file):
    """The environment, folder and arguments of a call."""
    variables, call = file.read_bytes().split(b"\0\0", 1)
    folder, compiler, *arguments = call.decode().rstrip("\0").split("\0")
    environment = dict(v.split("=", 1) for v in variables.decode().split("\0") if v)
    # The job server of the build is gone.
    environment.pop("CARGO_MAKEFLAGS", None)
    return environment, folder, compiler, arguments


def kept(arguments):
    out, rest = [], iter(arguments)
    for argument in rest:
        if argument in LEFT_OUT_WITH_NEXT:
            next(rest)
        elif not argument.startswith(LEFT_OUT):
            out.append(argument)
    return out


def run(command, environment, folder):
    found = subprocess.run(command, env=os.environ | environment, cwd=folder, capture_output=True, text=True)
    sys.stderr.write(found.stderr)
    return found.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("calls", type=pathlib.Path, help="the folder with the calls that record.sh wrote down")
    folder_of_calls = parser.parse_args().calls
    files = sorted(folder_of_calls.iterdir()) if folder_of_calls.is_dir() else []
    if not files:
        sys.exit(f"{folder_of_calls}: no calls; build with RUSTC_WORKSPACE_WRAPPER=scripts/record.sh")
    out = pathlib.Path(tempfile.mkdtemp())
    clippy = {"CLIPPY_ARGS": "-Dwarnings__CLIPPY_HACKERY__"}
    failed, n_documents = 0, 0
    try:
        for file in files:
            environment, folder, compiler, arguments = recorded(file)
            arguments = kept(arguments)
            outputs = ["--emit=metadata", "--out-dir", str(out)]
            failed += not run(["clippy-driver", compiler, *arguments, *outputs], environment | clippy, folder)
            if "--test" not in arguments and "lib" in arguments:
                n_documents += 1
                outputs = ["-Dwarnings", "--out-dir", str(out / "doc")]
                failed += not run(["rustdoc", *arguments, *outputs], environment, folder)
    finally:
        shutil.rmtree(out)
    print(f"clippy: {len(files)} crates, documents: {n_documents}, {failed} with findings")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
