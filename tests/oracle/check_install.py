"""Packs the program as a release, serves it on loopback, and installs it as users would.

    python3 tests/oracle/check_install.py THANE

The install script runs against a whole release, one whose archive was changed, and one without a build for this machine.
The steps of the Homebrew formula are done by hand: its URL is fetched, its hash compared, what it installs is there.
"""

import functools
import hashlib
import http.server
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = {"x86_64": "x86_64-unknown-linux-musl", "aarch64": "aarch64-unknown-linux-musl"}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def install(url, prefix, **more):
    environment = {**os.environ, "THANE_URL": url, "THANE_PREFIX": str(prefix), **more}
    script = (ROOT / "packaging/install.sh").read_text()
    # As `curl .. | sh` runs it.
    return subprocess.run(["sh"], input=script, env=environment, capture_output=True, text=True)


def main():
    if sys.platform != "linux" or platform.machine() not in TARGET:
        print("skipped: the archive is made for Linux")
        return
    thane, target = Path(sys.argv[1]).resolve(), TARGET[platform.machine()]
    with tempfile.TemporaryDirectory() as temporary:
        site = Path(temporary) / "site"
        version = subprocess.run([thane, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
        release = site / f"v{version}"
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        pack = ["bash", str(ROOT / "packaging/release.sh"), str(thane), target, str(release), url]
        subprocess.run(pack, check=True, capture_output=True)
        (site / "latest").write_text(version + "\n")
        archive = release / f"thane-{version}-{target}.tar.gz"
        first = archive.read_bytes()
        subprocess.run(pack, check=True, capture_output=True)
        assert archive.read_bytes() == first, "the same program gives another archive"

        prefix = Path(temporary) / "prefix"
        done = install(url, prefix)
        assert done.returncode == 0, done.stderr
        installed = prefix / "bin/thane"
        said = subprocess.run([installed, "--version"], capture_output=True, text=True, check=True).stdout
        assert said.split()[-1] == version and f'export PATH="{prefix}/bin' in done.stdout, done.stdout
        for name in ("bash-completion/completions/thane", "zsh/site-functions/_thane", "fish/vendor_completions.d/thane.fish",
                     "man/man1/thane.1", "man/man1/thane-convert.1"):
            assert (prefix / "share" / name).stat().st_size > 200, name
        # Again, over itself.
        assert install(url, prefix, THANE_VERSION=version).returncode == 0

        formula = (release / "thane.rb").read_text()
        places = re.findall(r'url "(.*)"\n    sha256 "(.*)"', formula)
        assert len(places) == (target.startswith("x86_64")), formula
        for place, expected in places:
            with urllib.request.urlopen(place) as answer:
                data = answer.read()
            assert hashlib.sha256(data).hexdigest() == expected
        with tarfile.open(archive) as opened:
            names = {name.split("/", 1)[1] for name in opened.getnames() if "/" in name}
        for name in re.findall(r'install "([^"]+)"', formula):
            assert name in names, name

        other = Path(temporary) / "other"
        archive.write_bytes(first[:-1] + bytes([first[-1] ^ 1]))
        done = install(url, other)
        assert done.returncode == 1 and "expected the SHA-256" in done.stderr and not other.exists(), done.stderr
        (release / "SHA256SUMS").write_text("0  thane-x.tar.gz\n")
        done = install(url, other)
        assert done.returncode == 1 and "has no build for" in done.stderr and not other.exists(), done.stderr
        for bad in ({"THANE_VERSION": "9.9.9"}, {"THANE_VERSION": "../../x"}, {"THANE_URL": url + "/nowhere"}):
            done = install(url, other, **bad)
            assert done.returncode == 1 and "thane is not installed" in done.stderr and not other.exists(), (bad, done.stderr)
        server.shutdown()
    print("install: ok")


if __name__ == "__main__":
    main()
