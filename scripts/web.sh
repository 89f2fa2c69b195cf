#!/usr/bin/env bash
# Build the auditor for pages and Node into a folder, which is a static page and an npm package in one:
#
#   bash scripts/web.sh [--dev] [OUT]
#
# OUT is target/web by default. --dev builds what tests need, in less time and larger. Prints the size of
# each file, and of the module as brotli packs it where `brotli` or Python's module of that name is there.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=web
if [ "${1:-}" = --dev ]; then
    profile=dev
    shift
fi
out=${1:-target/web}
# A folder of its own keeps what is built for this machine.
folder=target/wasm
# Programs are nested; this is the stack of a main thread on Linux.
cargo rustc --quiet -p thane-web --profile "$profile" --target wasm32-unknown-unknown --target-dir "$folder" \
    --crate-type cdylib -- -C link-arg=-zstack-size=8388608
built=$folder/wasm32-unknown-unknown/${profile/dev/debug}/thane_audit_web.wasm
page=crates/web/page
mkdir -p "$out"
cp "$page"/*.js "$page"/*.ts "$page"/*.css "$page/README.md" LICENSE-MIT LICENSE-APACHE "$out/"
cp "$built" "$out/thane_audit.wasm"

python3 - "$page" "$out" <<'END'
import base64
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys

page, out = map(pathlib.Path, sys.argv[1:])
report = pathlib.Path("crates/audit/src/format/html")


def digest(name):
    """The hash by which the page allows the report's own style sheet and script: `STYLE` and `SCRIPT`."""
    text = b"\n" + (report / name).read_bytes()
    return "'sha256-" + base64.b64encode(hashlib.sha256(text).digest()).decode() + "'"


html = (page / "index.html").read_text()
html = html.replace("REPORT_SCRIPT", digest("page.js")).replace("REPORT_STYLE", digest("page.css"))
(out / "index.html").write_text(html)

# The version of the workspace.
version = re.search(r'^version = "(.*)"$', pathlib.Path("Cargo.toml").read_text(), re.M).group(1)
package = json.loads((page / "package.json").read_text())
(out / "package.json").write_text(json.dumps({"name": package.pop("name"), "version": version, **package}, indent=2) + "\n")

wasm = (out / "thane_audit.wasm").read_bytes()
packed = None
if shutil.which("brotli"):
    packed = len(subprocess.run(["brotli", "--stdout", "-q", "11", "-w", "24"], input=wasm, stdout=subprocess.PIPE, check=True).stdout)
else:
    try:
        import brotli

        packed = len(brotli.compress(wasm, quality=11, lgwin=24))
    except ImportError:
        pass
for file in sorted(out.iterdir()):
    print(f"{file.stat().st_size:>10} {file}")
if packed is not None:
    print(f"{packed:>10} {out}/thane_audit.wasm by brotli")
END
