"""Stops work at random moments, by SIGKILL and by SIGINT, and looks at what is left.

What holds after each: the output is the old one or the new one, byte for byte, or there is none where none was; a run
that was interrupted has removed what it began; and after the next run that ends, nothing is left of those before.
"""

import hashlib
import json
import random
import shutil
import signal
import subprocess
import time

from . import lying_hub, parsers


def digest(path):
    """A hash of a file or of all files of a folder with their names; nothing where there is none."""
    if not path.exists():
        return None
    found = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        found.update(
            str(file.relative_to(path)).encode()
            + b"\0"
            + hashlib.sha256(file.read_bytes()).digest()
        )
    return found.hexdigest()


class Work:
    """A command with an output, and one that makes what is there before."""

    def __init__(self, name, out, command, before=None, goes_on=(), whole=None):
        self.name, self.out, self.command, self.before = name, out, command, before
        # Beginnings of names that a run may leave for the next to go on from.
        self.goes_on, self.whole = goes_on, whole

    def of(self, thane, folder):
        return [thane, *map(str, self.command)]


def works(folder, hub):
    tiny = parsers.TINY
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": f"row {i} " * 5}) + "\n" for i in range(1500)))
    chat = ["convert", "--quiet", parsers.CHAT, "-o", "out.mlpackage"]
    encoder = tiny / "tiny-embed" / "bert-mean"
    many = [
        "convert",
        "--quiet",
        encoder,
        "-o",
        "out",
        "--task",
        "embed",
        "--layout",
        "folder",
        "--buckets",
        "8,16,24,32",
    ]
    embed = ["embed", "--quiet", encoder, "-f", rows, "--batch-tokens", "256", "-o"]
    return [
        Work("convert", "out.mlpackage", [*chat, "--context", "64"]),
        Work(
            "convert --force",
            "out.mlpackage",
            [*chat, "--context", "64", "--force"],
            [*chat, "--context", "16"],
        ),
        Work("convert to a folder", "out", many),
        Work("convert to a folder --force", "out", [*many, "--force"], [*many[:-1], "8"]),
        Work("embed", "out.npy", [*embed, "out.npy"], goes_on=("out.npy", ".out.npy")),
        Work(
            "embed --force",
            "out.jsonl",
            [*embed, "out.jsonl", "--force"],
            [*embed[:2], encoder, "a", "-o", "out.jsonl"],
            ("out.jsonl", ".out.jsonl"),
        ),
        Work("pull", "cache/snapshot", ["pull", "--quiet", "hf:org/name"], goes_on=("cache",)),
    ]


def finish(command, folder, env):
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr.decode(errors='replace')[:500]}")


def stop(command, folder, env, delay, sign):
    """The exit code of a command that gets a signal after a while."""
    process = subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(delay)
    process.send_signal(sign)
    return process.wait(timeout=300)


def snapshot(folder):
    """The files of a pulled model by their names, whatever the cache calls their bytes."""
    root = folder / "cache-hub" / "models--org--name" / "snapshots" / lying_hub.COMMIT
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(root.glob("*"))}


def one(thane, work, rng, folder, env, whole, seconds):
    """Stops one run of `work`: what is wrong after it, and whether it was stopped midway."""
    faults, sign = [], rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT])
    command = work.of(thane, folder)
    if work.before:
        finish([thane, *map(str, work.before)], folder, env)
    old, names = digest(folder / work.out), {p.name for p in folder.iterdir()}
    code = stop(command, folder, env, rng.uniform(0, 1.1 * seconds), sign)
    midway = code != 0
    if work.name == "pull":
        wrong = {name: sha for name, sha in snapshot(folder).items() if whole.get(name) != sha}
        if wrong:
            faults.append(f"files that are not whole have their names: {sorted(wrong)}")
    elif digest(folder / work.out) not in (old, whole):
        faults.append(f"{work.out} is neither the old one nor the new one")
    left = [
        p.name
        for p in folder.iterdir()
        if p.name not in names | {work.out} and not p.name.startswith(work.goes_on or "\0")
    ]
    if sign == signal.SIGINT:
        if code not in (0, 130, -signal.SIGINT):
            faults.append(f"an interrupted run ended with {code}")
        if left:
            faults.append(f"an interrupted run left {left}")
    again = (
        command
        if work.before or not (folder / work.out).exists() or work.name == "pull"
        else [*command, "--force"]
    )
    try:
        finish(again, folder, env)
    except RuntimeError as e:
        return [*faults, f"the next run failed: {e}"], midway, sign
    if work.name == "pull":
        if snapshot(folder) != whole:
            faults.append("the next run did not complete the model")
    elif digest(folder / work.out) != whole:
        faults.append("the next run wrote something else")
    left = [
        p.name for p in folder.iterdir() if p.name not in names | {work.out, "cache-hub", "cache"}
    ]
    if left:
        faults.append(f"behind the next run are still {left}")
    return faults, midway, sign


def run(thane, count, seed, folder):
    """Stops `count` runs, prints a table, and gives the number of failures."""
    files = {
        "config.json": b"{}" * 50,
        "tokenizer.json": b"[1]" * 9000,
        "model.safetensors": bytes(range(256)) * 20000,
    }
    hub = lying_hub.LyingHub(files)
    hub.begin([])
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "HF_ENDPOINT": hub.url, "NO_PROXY": "*"}
    env |= {"THANE_CACHE": str(folder / "thane"), "THANE_THREADS": "1"}
    failures = 0
    print(f"{'work':<28} {'stopped':>8} {'midway':>7} {'killed':>7} {'failures':>9}")
    all_works = works(folder, hub)
    for at, work in enumerate(all_works):
        place = folder / f"work-{at}"
        place.mkdir()
        env["HF_HUB_CACHE"] = str(place / "cache-hub")
        begin = time.monotonic()
        finish(
            work.of(thane, place)
            if not work.before
            else [a for a in work.of(thane, place) if a != "--force"],
            place,
            env,
        )
        seconds = time.monotonic() - begin
        whole = snapshot(place) if work.name == "pull" else digest(place / work.out)
        stopped = midway = killed = failed = 0
        for number in range(at, count, len(all_works)):
            rng = random.Random(f"{seed}/{work.name}/{number}")
            for path in place.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            faults, was_midway, sign = one(thane, work, rng, place, env, whole, seconds)
            stopped, midway, killed = (
                stopped + 1,
                midway + was_midway,
                killed + (sign == signal.SIGKILL),
            )
            failed += bool(faults)
            for fault in faults:
                print(f"  {work.name}, stop {number} ({sign.name}): {fault}")
        print(f"{work.name:<28} {stopped:>8} {midway:>7} {killed:>7} {failed:>9}", flush=True)
        failures += failed
    print(f"\n{count} runs stopped from seed {seed}: {failures} failures")
    return failures
