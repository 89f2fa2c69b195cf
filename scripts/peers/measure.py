"""Runs a program to its end: its last JSON line, the most memory that it held, and how busy others were meanwhile."""

import contextlib
import json
import os
import pathlib
import subprocess
import tempfile
import threading
import time


class Fault(Exception):
    """Why there is no figure, in a line."""


def busy_seconds():
    """CPU time of all processes since the system started; None where it does not tell."""
    try:
        with open("/proc/stat") as file:
            user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def run(command, seconds):
    """What a program prints; see `run_counted`."""
    return run_counted(command, seconds)[0]


def run_counted(command, seconds):
    """Standard output; the most bytes that the process or one of its children held at once; the processors that others used meanwhile."""
    # Not pipes: a full one would stop a program that says much, and wait4 does not read.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        except OSError as error:
            raise Fault(f"{command[0]} does not start: {error.strerror}") from error
        start, busy = time.monotonic(), busy_seconds()
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            # Linux: starts at what this process holds, so nothing large is imported here.
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            # An interrupt that came to both may have ended it, and been told here behind that.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, 0)
            raise
        finally:
            late = not timer.is_alive()
            timer.cancel()
        others = None
        if busy is not None:
            others = max(0.0, busy_seconds() - busy - usage.ru_utime - usage.ru_stime) / (time.monotonic() - start)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        text, said = out.read(), err.read()
    if process.returncode != 0:
        if late:
            raise Fault(f"{pathlib.Path(command[0]).name} took more than {seconds} s")
        lines = [line for line in (said or text).splitlines() if line.strip()]
        # Python says it last, but behind an abort come the frames of a debugger.
        telling = [line for line in lines if line.startswith("error:") or "ASSERT" in line or "Error:" in line]
        line = (telling or lines[-1:] or ["it said nothing"])[0]
        raise Fault(f"ended with {process.returncode}: {line.strip()}")
    return text, usage.ru_maxrss * 1024, others


def figure(command, seconds):
    """The JSON line of a program that measures, with its memory as the system counted it."""
    text, memory, others = run_counted(command, seconds)
    try:
        row = json.loads(text.strip().splitlines()[-1])
        row |= {"median": float(row["median"]), "peak_memory_bytes": memory}
        return row | {"others": None if others is None else round(others, 2)}
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise Fault(f"{pathlib.Path(command[0]).name} printed no figure") from error
