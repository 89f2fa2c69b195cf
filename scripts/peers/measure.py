"""Runs a program to its end: its last JSON line, and the most memory that it held."""

import json
import os
import pathlib
import subprocess
import tempfile
import threading


class Fault(Exception):
    """Why there is no figure, in a line."""


def run(command, seconds):
    """Standard output, and the most bytes that the process or one of its children held at once."""
    # Not pipes: a full one would stop a program that says much, and wait4 does not read.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        except OSError as error:
            raise Fault(f"{command[0]} does not start: {error.strerror}") from error
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            # Linux: starts at what this process holds, so nothing large is imported here.
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            os.waitpid(process.pid, 0)
            raise
        finally:
            late = not timer.is_alive()
            timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        text, said = out.read(), err.read()
    if process.returncode != 0:
        if late:
            raise Fault(f"{pathlib.Path(command[0]).name} took more than {seconds} s")
        lines = [line for line in (said or text).strip().splitlines() if line.strip()]
        # Clap says what is wrong first, Python last.
        line = next((line for line in lines if line.startswith("error:")), lines[-1] if lines else "it said nothing")
        raise Fault(f"ended with {process.returncode}: {line.strip()}")
    return text, usage.ru_maxrss * 1024


def figure(command, seconds):
    """The JSON line of a program that measures, with its memory as the system counted it."""
    text, memory = run(command, seconds)
    try:
        row = json.loads(text.strip().splitlines()[-1])
        return row | {"median": float(row["median"]), "peak_memory_bytes": memory}
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise Fault(f"{pathlib.Path(command[0]).name} printed no figure") from error
