#!/usr/bin/env python3
"""Run the commands that README.md and docs/*.md show, and compare or rewrite what they print.

    python3 scripts/transcripts.py --check [THANE]     exit 1 with a diff where a page differs
    python3 scripts/transcripts.py --write [THANE]     rewrite the pages

THANE is the program, target/debug/thane by default. A transcript is a block ```console; its commands begin with `$ `.
The commands of a page run one after another in a folder of its own, which has the repository's tests/ and
scripts/ in it, so that a command can use what an earlier one wrote.

- What stands below a command is what it prints. A line `..` stands for lines that are left out: what is before and
  behind it is as many lines as the page has there.
- A command below which nothing stands must succeed, whatever it prints.
- A command that fails must say `thane: ` in what the page shows.
- What differs from run to run and from machine to machine (times, rates, the cache's folder, answers of language models)
  is not compared.
- Commands on models that are not in the cache, or that would take long, are skipped and listed.
"""

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 96
MODELS = ["smollm2-135m", "gemma3-270m", "minilm"]
# Command, why it is not run.
LEFT_OUT = [
    (r"^thane pull", "it fetches from the network"),
    (r"^thane bench", "it measures this machine"),
    (r"--numerics ane", "it takes a minute"),
    (r"^thane quality (smollm2|minilm)", "it takes minutes"),
    (r"--compress auto|^thane compress", "it takes minutes"),
    (r"^thane perplexity .*--numerics f32", "it takes a minute; the test of real models has its figure"),
]
# Answers depend on the instruction set: the first token that two are equally likely for.
ANSWERS = re.compile(r"^thane run\b")
# Numbers that depend on the instruction set are compared to four digits.
ABOUT = re.compile(r"^thane (embed|verify|perplexity|quality|buckets|diff)\b")
# What a run changes, and what stands for it.
MASKS = [
    (re.compile(r"\b\d+(\.\d+)? (s|ms|MB/s|texts/s|tokens/s)\b"), "N \\2"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "DATE"),
]
# Times that are predicted are the same everywhere.
PREDICTS = re.compile(r"^thane (audit|buckets|explain|bisect|convert|plan)\b")


class Transcript:
    """A command with the output that a page shows."""

    def __init__(self, command, shown):
        self.command, self.shown = command, shown


def parse(lines):
    """The page as a list of lines and transcripts."""
    out, i, is_console = [], 0, False
    while i < len(lines):
        if lines[i].startswith("```"):
            is_console = lines[i] == "```console"
        if not is_console or not lines[i].startswith("$ "):
            out.append(lines[i])
            i += 1
            continue
        command, i = lines[i][2:], i + 1
        while command.endswith("\\"):
            command, i = command + "\n" + lines[i], i + 1
        shown = []
        while not lines[i].startswith(("$ ", "```")):
            shown.append(lines[i])
            i += 1
        trailing = []
        while shown and not shown[-1].strip():
            trailing.append(shown.pop())
        out.append(Transcript(command, shown))
        out += trailing
    return out


def why_not(command, absent):
    for pattern, reason in LEFT_OUT:
        if re.search(pattern, command):
            return reason
    missing = [name for name in absent if re.search(rf"\b{re.escape(name)}\b", command)]
    return f"{missing[0]} is not in the cache" if missing else None


def normal(line, command):
    """A line without what differs between runs."""
    if not PREDICTS.search(command):
        for pattern, with_what in MASKS:
            line = pattern.sub(with_what, line)
    if ABOUT.search(command):
        line = re.sub(r"\d+\.\d{3,}", lambda m: f"{float(m[0]):.4g}", line)
    return line


def wrapped(output):
    """Lines that fit on a page: answers of models are one long line."""
    lines = []
    for line in output.rstrip("\n").split("\n"):
        line = line.rstrip()
        is_prose = len(line) > COLUMNS and not line.startswith((" ", "{", "["))
        lines += textwrap.wrap(line, COLUMNS, break_long_words=False, break_on_hyphens=False) if is_prose else [line]
    return lines


def elided(lines, shown):
    """What the page is to show of the output: lines are left out where the page leaves some out."""
    marks = [i for i, line in enumerate(shown) if line.strip() == ".."]
    if not marks:
        return lines
    if len(marks) > 1:
        raise SystemExit(f"a transcript can have one line `..`: {shown[0]}")
    head, tail = marks[0], len(shown) - marks[0] - 1
    if head + tail >= len(lines):
        return lines
    return lines[:head] + [shown[marks[0]]] + (lines[-tail:] if tail else [])


def run(command, folder, env):
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=env, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900)
    cache = env.get("THANE_CACHE") or str(Path(env.get("XDG_CACHE_HOME") or Path(env["HOME"]) / ".cache") / "thane")
    output = done.stdout.replace(cache, "/home/ada/.cache/thane").replace(str(folder), "/home/ada")
    return done.returncode, wrapped(output) if output else []


def page(path, env, absent, skipped, faults):
    """The lines that the page should have."""
    before = path.read_text().split("\n")
    after = []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder).resolve()
        for name in ["tests", "scripts"]:
            (folder / name).symlink_to(ROOT / name)
        for part in parse(before):
            if isinstance(part, str):
                after.append(part)
                continue
            shown = part.shown
            after += f"$ {part.command}".split("\n")
            reason = why_not(part.command, absent)
            if reason:
                skipped.append(f"{path.name}: {part.command}: {reason}")
            else:
                start = time.monotonic()
                code, lines = run(part.command, folder, env)
                if code != 0 and not any(line.startswith("thane: ") for line in shown):
                    faults.append(f"{path.name}: `{part.command}` ends with {code}:\n  " + "\n  ".join(lines[-12:]))
                if time.monotonic() - start > 10:
                    print(f"slow: {part.command}: {time.monotonic() - start:.0f} s", file=sys.stderr)
                if shown:
                    new = elided(lines, shown)
                    key = lambda lines: [normal(line, part.command) for line in lines]
                    is_same = key(new) == key(shown) or bool(new) and ANSWERS.search(part.command) and code == 0
                    shown = shown if is_same else new
            after += shown
    return before, after


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--check", action="store_true")
    how.add_argument("--write", action="store_true")
    parser.add_argument("thane", nargs="?", default=ROOT / "target/debug/thane", type=Path)
    parser.add_argument("--page", action="append", type=Path, help="only this page")
    args = parser.parse_args()
    thane = args.thane.resolve()
    bin_folder = tempfile.TemporaryDirectory()
    Path(bin_folder.name, "thane").symlink_to(thane)
    env = {k: v for k, v in os.environ.items() if not k.startswith("THANE_") or k == "THANE_CACHE"}
    env |= {"PATH": f"{bin_folder.name}:{env['PATH']}", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    pull = [thane, "pull", "--offline"]
    absent = [name for name in MODELS if subprocess.run([*pull, name], env=env, capture_output=True).returncode != 0]
    skipped, faults, differ = [], [], False
    for path in args.page or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        before, after = page(path, env, absent, skipped, faults)
        if before != after and args.write:
            path.write_text("\n".join(after))
            print(f"{path.name}: rewritten")
        elif before != after:
            differ = True
            diff = difflib.unified_diff(before, after, path.name, "as it runs", lineterm="")
            print(*diff, sep="\n")
    for line in skipped:
        print(f"skipped: {line}")
    for line in faults:
        print(f"failed: {line}")
    if differ:
        print("python3 scripts/transcripts.py --write brings the pages up to date")
    sys.exit(1 if faults or differ else 0)


if __name__ == "__main__":
    main()
