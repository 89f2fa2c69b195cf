#!/usr/bin/env python3
"""Attacks every parser of `thane` with malformed inputs, from a seed:

    python3 scripts/attack.py THANE [--count N] [--seed S] [--only NAME[,NAME..]] [--kills N]

Inputs are changes of the valid files of this repository, and files that grammars make; none is stored. Each is read by
the command that reads such files, in a process of its own with `--memory 1GB`, and is a failure where the process

- panics, aborts, or ends by a signal;
- ends with a code that the table of exit codes does not have for it, or with an error and not a word;
- takes longer than 10 s;
- holds more than the budget and 256 MB, for the program itself and what third-party parsers are capped at;
- fails and leaves a file behind that was not there.

An input that takes too long is tried once more, alone, and counts only when it used the time itself. What fails is
kept in target/attack, with the command that shows it again; `--only NAME --index I` makes the same input anew.
`--kills N` stops conversions and embeddings N times at random moments instead; see attacks/kills.py.
"""

import argparse
import json
import multiprocessing
import os
import re
import resource
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from attacks import kills, parsers

MEMORY = 1_000_000_000
MARGIN = 256_000_000
ADDRESS_SPACE = 8 << 30
FILE_BYTES = 512 << 20
KEPT = parsers.ROOT / "target" / "attack"
SIGNS = re.compile(
    rb"panicked at|overflowed its stack|memory allocation of|RUST_BACKTRACE|internal error"
)


class Outcome:
    """How a process ended."""

    def __init__(self, code, seconds, cpu_s, peak, stderr):
        self.code, self.seconds, self.cpu_s, self.peak, self.stderr = (
            code,
            seconds,
            cpu_s,
            peak,
            stderr,
        )

    def first_line(self):
        lines = self.stderr.decode(errors="replace").splitlines() or [""]
        return next((line for line in lines if SIGNS.search(line.encode())), lines[0])[:160]


def start(thane, case, folder, stderr):
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "THANE_CACHE": str(folder / "cache")}
    env |= {"HF_ENDPOINT": "http://127.0.0.1:9", "NO_PROXY": "*", **case.env}
    command = [thane, "--memory", "1GB", *map(str, case.args)]
    with open(folder / case.stdin if case.stdin else os.devnull, "rb") as stdin:
        return subprocess.Popen(
            command, cwd=folder, env=env, stdin=stdin, stdout=subprocess.DEVNULL, stderr=stderr
        )


def run(thane, case, folder, limit_s):
    """Runs a case to its end, or kills it after `limit_s` seconds."""
    with tempfile.TemporaryFile() as stderr:
        begin = time.monotonic()
        process = start(thane, case, folder, stderr)
        for what, limit in [
            (resource.RLIMIT_AS, ADDRESS_SPACE),
            (resource.RLIMIT_FSIZE, FILE_BYTES),
        ]:
            try:
                resource.prlimit(process.pid, what, (limit, limit))
            except ProcessLookupError:
                pass
        handle = os.pidfd_open(process.pid)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        ended = bool(poll.poll(limit_s * 1000))
        if not ended:
            process.kill()
        os.close(handle)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        stderr.seek(0)
        said = stderr.read(20000)
        code = process.returncode if ended else None
        return Outcome(
            code,
            time.monotonic() - begin,
            usage.ru_utime + usage.ru_stime,
            usage.ru_maxrss * 1024,
            said,
        )


def fault(case, outcome, left):
    """What is wrong with how a case ended, by kind; nothing where all is well."""
    if outcome.code is None:
        return "hang"
    if outcome.code < 0:
        return f"signal {-outcome.code}"
    if SIGNS.search(outcome.stderr):
        return "panic"
    if outcome.code not in case.codes:
        return f"exit {outcome.code}"
    if outcome.peak > MEMORY + MARGIN:
        return "memory"
    if outcome.code != 0 and not outcome.stderr.strip():
        return "silent"
    if outcome.code != 0 and left:
        return "left"
    return None


def attack(thane, name, number, seed, seeds, limit_s=None):
    """Makes and runs one input: its result as plain data."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-{number}-"))
    try:
        case = parsers.make(name, seed, number, folder, seeds)
        before = set(os.listdir(folder))
        outcome = run(thane, case, folder, limit_s or case.limit_s)
        left = [n for n in set(os.listdir(folder)) - before if not n.startswith(case.keeps or "\0")]
        left = [n for n in left if n != "cache" or os.listdir(folder / n)]
        kind = fault(case, outcome, left)
        detail = f"{outcome.first_line()}" if kind != "left" else f"{left}: {outcome.first_line()}"
        return {"name": name, "number": number, "kind": kind, "code": outcome.code, "seconds": outcome.seconds,
                "cpu_s": outcome.cpu_s, "peak": outcome.peak, "detail": detail, "limit_s": case.limit_s}  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_worker = {}


def _prepare(*what):
    _worker["args"] = what
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _one(task):
    thane, seed, seeds = _worker["args"]
    return attack(thane, *task, seed, seeds)


def shares(count, only):
    """Inputs of each parser: of a named one all, else its share of `count`."""
    if only:
        return {name: max(1, count // len(only)) for name in only}
    wanted = {
        name: max(1, round(n * count / parsers.TOTAL)) for name, (n, _) in parsers.PARSERS.items()
    }
    return wanted


def keep(thane, result, seed, seeds):
    """Makes a failing input again where it can be looked at, and says how to run it."""
    folder = KEPT / f"{result['name']}-{result['number']}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    case = parsers.make(result["name"], seed, result["number"], folder, seeds)
    command = shlex.join([thane, "--memory", "1GB", *map(str, case.args)])
    # Those that a server answers, or that lie in the seeds, are to be run anew.
    (folder / "command").write_text(command + "\n")
    return folder, command


def report(thane, results, seed, seeds, seconds):
    """A table of the parsers, then the failures by kind; how many there are."""
    print(
        f"{'parser':<12} {'inputs':>7} {'ok':>7} {'refused':>8} {'failures':>9} {'slowest':>8} {'peak':>8}"
    )
    by_name = defaultdict(list)
    for result in results:
        by_name[result["name"]].append(result)
    rows = [(name, by_name[name]) for name in parsers.PARSERS if name in by_name] + [
        ("all", results)
    ]
    for name, of in rows:
        failed = sum(1 for r in of if r["kind"])
        ok = sum(1 for r in of if r["code"] == 0 and not r["kind"])
        slowest, peak = max(r["seconds"] for r in of), max(r["peak"] for r in of) / 1e6
        refused = len(of) - ok - failed
        print(
            f"{name:<12} {len(of):>7} {ok:>7} {refused:>8} {failed:>9} {slowest:>6.1f} s {peak:>5.0f} MB"
        )
    groups = defaultdict(list)
    for result in results:
        if result["kind"]:
            place = re.sub(r"\(\d+\) |\d{4,}", "", result["detail"])
            groups[(result["name"], result["kind"], place)].append(result)
    for (name, kind, _), of in sorted(groups.items(), key=lambda g: -len(g[1])):
        first = min(of, key=lambda r: r["number"])
        folder, command = keep(thane, first, seed, seeds)
        print(f"\n{name}: {kind}, {len(of)} of them: {first['detail']}")
        print(
            f"  again: python3 scripts/attack.py {thane} --seed {seed} --only {name} --index {first['number']}"
        )
        print(f"  kept:  cd {folder.relative_to(parsers.ROOT)} && {command[:300]}")
    failures = sum(1 for r in results if r["kind"])
    print(f"\n{len(results)} inputs in {seconds:.0f} s from seed {seed}: {failures} failures")
    return failures


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("thane", type=Path)
    parser.add_argument(
        "--count", type=int, default=parsers.TOTAL, help=f"inputs [default: {parsers.TOTAL}]"
    )
    parser.add_argument("--seed", type=int, default=30)
    parser.add_argument("--only", help="these parsers: " + ", ".join(parsers.PARSERS))
    parser.add_argument(
        "--index", type=int, help="one input of --only: made, kept, run, and its end shown"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, help="add every result to this file, a line each")
    parser.add_argument("--kills", type=int, help="stop conversions and embeddings so many times")
    args = parser.parse_args()
    thane = str(args.thane.resolve(strict=True))
    only = args.only.split(",") if args.only else []
    unknown = set(only) - set(parsers.PARSERS)
    if unknown or args.index is not None and len(only) != 1:
        parser.error(f"parsers are {', '.join(parsers.PARSERS)}; --index is of one")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(prefix="thane-attack-") as work:
        tempfile.tempdir = work
        if args.kills:
            sys.exit(kills.run(thane, args.kills, args.seed, Path(work)) > 0)
        seeds = parsers.Seeds(thane, Path(work) / "seeds")
        if args.index is not None:
            result = attack(thane, only[0], args.index, args.seed, seeds)
            folder, command = keep(thane, result, args.seed, seeds)
            print(json.dumps(result, indent=1), f"\ncd {folder} && {command[:2000]}")
            sys.exit(result["kind"] is not None)
        tasks = [
            (name, number) for name, n in shares(args.count, only).items() for number in range(n)
        ]
        # Those that take long, and those that take none, in turns.
        tasks.sort(key=lambda task: (task[1] * 2654435761 % 2**32, task[0]))
        begin = time.monotonic()
        pool = multiprocessing.get_context("fork").Pool(
            args.jobs, _prepare, (thane, args.seed, seeds)
        )
        with pool:
            results = []
            for result in pool.imap_unordered(_one, tasks, chunksize=4):
                results.append(result)
                if args.json:
                    with args.json.open("a") as lines:
                        lines.write(json.dumps(result) + "\n")
        for at, result in enumerate(results):
            if result["kind"] == "hang":
                again = attack(
                    thane, result["name"], result["number"], args.seed, seeds, 30 * result["limit_s"]
                )
                limit = result["limit_s"]
                used = again["seconds"] > limit and (
                    again["cpu_s"] > 0.9 * limit or again["kind"] == "hang"
                )
                results[at] = again | (
                    {"kind": "hang", "detail": f"{again['seconds']:.0f} s"} if used else {}
                )
        failures = report(thane, results, args.seed, seeds, time.monotonic() - begin)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
