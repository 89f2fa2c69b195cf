"""Runs the steps of action.yml and the hook of .pre-commit-hooks.yaml on a repository with a changed package.

    python3 tests/oracle/check_ci_files.py THANE

Needs PyYAML and git; pre-commit itself runs the hook if it is installed.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def repository(folder):
    """Two packages and a text, of which the second commit changes one package and removes the other."""
    git(folder, "init", "-q")
    for name in ("a.mlpackage", "gone.mlpackage"):
        shutil.copytree(ROOT / "tests/packages/ios16_half.mlpackage", folder / "models" / name)
    (folder / "models/my text.txt").write_text("a")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    base = git(folder, "rev-parse", "HEAD")
    manifest = folder / "models/a.mlpackage/Manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    (folder / "models/my text.txt").write_text("b")
    shutil.rmtree(folder / "models/gone.mlpackage")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "second")
    return base


def run_action(folder, thane, inputs):
    """Each step as a runner starts it: with `bash -eo pipefail`, its variables, and expressions filled in."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    given = {name: inputs.get(name, known.get("default", "")) for name, known in action["inputs"].items()}

    def filled(text):
        return re.sub(r"\$\{\{\s*inputs\.(\w+)\s*\}\}", lambda found: given[found[1]], text)

    bin_folder = folder.parent / "bin"
    bin_folder.mkdir(exist_ok=True)
    shutil.copy(thane, bin_folder / "thane")
    output, status = "", 0
    for step in action["runs"]["steps"]:
        assert step["shell"] == "bash"
        variables = {key: filled(value) for key, value in step.get("env", {}).items()}
        environment = {**os.environ, **variables, "GITHUB_ACTION_PATH": str(ROOT), "PATH": f"{bin_folder}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", filled(step["run"])], cwd=folder,
                              env=environment, capture_output=True, text=True)
        output, status = output + done.stdout + done.stderr, done.returncode
        if status:
            break
    return status, output


def main():
    thane = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "repository"
        folder.mkdir()
        base = repository(folder)
        status, output = run_action(folder, thane, {"base": base, "flags": "--target m4,a18"})
        assert status == 0 and output.count("== ") == 1 and "== models/a.mlpackage" in output, output
        reports = list((folder / "thane-sarif").iterdir())
        assert [report.name for report in reports] == ["models-a.mlpackage.sarif"], reports
        status, output = run_action(folder, thane, {"base": base, "flags": "--target m4 --require-ane 100"})
        assert status == 1, output
        status, output = run_action(folder, thane, {"base": "HEAD", "flags": ""})
        assert status == 0 and "no package was changed" in output, output
        status, output = run_action(folder, thane, {"base": "nonsense", "flags": ""})
        assert status == 128 and "nonsense" in output and "no package" not in output, output
        # A new branch has no revision before it.
        status, output = run_action(folder, thane, {"base": "0" * 40, "flags": "--target m4"})
        assert status == 0 and "== models/a.mlpackage" in output, output

        hook = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())[0]
        files = [file for file in git(folder, "diff", "--name-only", base).splitlines() if re.search(hook["files"], file)]
        environment = {**os.environ, "THANE": str(thane)}
        command = [ROOT / hook["entry"], "--flags", "--target m4 --require-ane 100", *files]
        done = subprocess.run([str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 1 and "== models/a.mlpackage" in done.stdout, done.stdout + done.stderr
    print("action.yml and .pre-commit-hooks.yaml: ok")


if __name__ == "__main__":
    main()
