"""Report the size of the source, and what the latest additions touched.

    python3 scripts/size.py               # the working tree
    python3 scripts/size.py --since REV   # and the growth of each crate since a commit

A line is a line of a `.rs` file, blank lines and comments included. Everything in a crate's `src` and
`build.rs` is source, except that what follows `#[cfg(test)]` on a module counts as tests, as do all
files of `tests`, `benches` and `examples`, and files that only a test module has (`mod tests;`).

An addition is all commits with the same trailer `Adds: KIND NAME` (KIND: family, mode, pass, fix, kernel,
method, ..). Families, passes, fixes and kernels that came without one are found by the file that they
added, modes by the list below. Its touch count is the number of `.rs` source files, test files and
other files in its commits.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES_OF = {
    "family": r"crates/models/src/families/(?!mod)\w+\.rs$",
    "pass": r"crates/compile/src/passes/(?!mod)\w+\.rs$",
    "fix": r"crates/(?:audit/src/fix|compile/src/(?:audit/fix|fixes))/(?!mod)\w+\.rs$",
    "kernel": r"crates/cpu/src/(?:plan/fuse|fused)/(?!mod)\w+\.rs$",
}
WITHOUT_TRAILER = {"6152914e": ("mode", "verify")}
KINDS = ("family", "mode", "pass", "fix", "kernel", "method")
TESTS = re.compile(r"^#\[cfg\((?:test|all\(test\b.*)\)\]\n(?:#\[.*\]\n)*(?:pub )?mod \w+( \{|;)", re.M)
FUNCTION = re.compile(r"^( *)(?:pub(?:\([\w: ]+\))? )?(?:const |async |unsafe |extern \"C\" )*fn (\w+)")


def git(*arguments):
    done = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def split(text):
    """The source of a file, and how many of its lines are tests."""
    for found in TESTS.finditer(text):
        if found[1] == " {":
            end = text.find("\n}\n", found.end())
            inside = text[found.start() : end + 3 if end >= 0 else len(text)]
            text = text.replace(inside, "", 1)
            rest, tests = split(text)
            return rest, tests + inside.count("\n")
    return text, 0


def test_modules(path, text):
    """Files that `mod tests;` behind `#[cfg(test)]` names."""
    folder = path.parent if path.stem in ("mod", "lib", "main") else path.parent / path.stem
    for found in TESTS.finditer(text):
        if found[1] == ";":
            name = re.search(r"mod (\w+)", found[0])[1]
            yield from ((folder / f"{name}.rs").as_posix(), (folder / name / "mod.rs").as_posix())


def sources(read, paths):
    """(crate, path, source, lines of tests) of each Rust file below `crates`."""
    texts = {path: read(path) for path in paths}
    only_tests = {t for path, text in texts.items() for t in test_modules(pathlib.PurePosixPath(path), text)}
    for path, text in texts.items():
        _, crate, place, *_ = path.split("/")
        if place in ("tests", "benches", "examples") or path in only_tests:
            yield crate, path, "", text.count("\n")
        else:
            yield crate, path, *split(text)


def working_tree():
    paths = [p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "crates").glob("*/**/*.rs"))]
    return list(sources(lambda path: (ROOT / path).read_text(), paths))


def at_commit(commit):
    listed = git("ls-tree", "-r", "--name-only", commit, "crates")
    if listed is None:
        sys.exit(f"size.py: expected a commit of this repository, found `{commit}`")
    paths = [p for p in listed.splitlines() if p.endswith(".rs")]
    return list(sources(lambda path: git("show", f"{commit}:{path}"), paths))


def by_crate(files):
    lines = collections.defaultdict(lambda: [0, 0])
    for crate, _, source, tests in files:
        lines[crate][0] += source.count("\n")
        lines[crate][1] += tests
    lines["all"] = [sum(c[i] for c in lines.values()) for i in (0, 1)]
    return lines


def functions(files):
    for _, path, source, _ in files:
        opened = []
        for number, line in enumerate(source.splitlines(), 1):
            if (found := FUNCTION.match(line)) and not line.rstrip().endswith((";", "}")):
                opened.append((found[1], found[2], number))
            elif opened and line == opened[-1][0] + "}":
                _, name, first = opened.pop()
                yield number - first + 1, f"{path}:{first} {name}"


def additions():
    """The latest addition of each kind: its name, date, and the files of its commits."""
    log = git("log", "-M", "-l0", "--name-status", "--format=\x01%h %cs\x02%(trailers:key=Adds,valueonly)\x02")
    if not log:
        return {}
    names, latest, touched = {}, {}, collections.defaultdict(set)
    for entry in log.split("\x01")[1:]:
        head, trailer, changes = entry.split("\x02")
        changes = [line.split("\t") for line in changes.splitlines() if "\t" in line]
        found = [tuple(t.split(None, 1)) for t in trailer.splitlines() if len(t.split(None, 1)) == 2]
        commit = head.split()[0][:8]
        if not found and commit in WITHOUT_TRAILER:
            found = [WITHOUT_TRAILER[commit]]
        elif not found:
            found = [
                (kind, pathlib.PurePosixPath(path).stem)
                for kind, pattern in FILES_OF.items()
                for status, *_, path in changes
                if status == "A" and re.match(pattern, path)
            ]
        for kind, name in found:
            latest.setdefault(kind, (name, head))
            touched[kind, name].update(path for *_, path in changes)
    for kind, (name, head) in latest.items():
        names[kind] = (name, head, touched[kind, name])
    return names


def count(paths):
    rust = [p for p in paths if p.endswith(".rs") and p.startswith("crates/")]
    tests = [p for p in rust if p.split("/")[2] in ("tests", "benches", "examples")]
    return len(rust) - len(tests), len(tests), len(paths) - len(rust)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--since", metavar="REV", help="print the growth of each crate since this commit")
    options.add_argument("--top", type=int, default=5, help="how many of the longest files and functions to name")
    options = options.parse_args()
    files = working_tree()
    now = by_crate(files)
    before = by_crate(at_commit(options.since)) if options.since else None
    print(f"{'crate':10} {'source':>8} {'tests':>8}" + (f"   since {options.since}" if before else ""))
    for crate, (source, tests) in sorted(now.items(), key=lambda item: (item[0] == "all", item[0])):
        grown = f" {source - before[crate][0]:+8} {tests - before[crate][1]:+8}" if before else ""
        print(f"{crate:10} {source:8} {tests:8}{grown}")
    print("longest files:")
    for lines, path in sorted(((s.count("\n"), p) for _, p, s, _ in files), reverse=True)[: options.top]:
        print(f"  {lines:5} {path}")
    print("longest functions:")
    for lines, place in sorted(functions(files), reverse=True)[: options.top]:
        print(f"  {lines:5} {place}")
    print("files of the latest addition (source, tests, other):")
    found = additions()
    for kind in KINDS:
        if kind in found:
            name, head, touched = found[kind]
            print(f"  {kind:8} {name:24} {' '.join(f'{n:4}' for n in count(touched))}   {head}")
        else:
            print(f"  {kind:8} no commit in this history adds one, or has the trailer `Adds: {kind} NAME`")


try:
    main()
except BrokenPipeError:
    sys.stderr.close()
