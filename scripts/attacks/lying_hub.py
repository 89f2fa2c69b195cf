"""A Hub on loopback that tells the truth but for what a plan says: `org/name` with a few files.

A plan is a list of lies, drawn from a seed. A lie changes one kind of answer (the listing, a file's head, a small file, a
large one) each time or once.
"""

import gzip
import hashlib
import json
import socket
import threading
import time

from .mutate import FLOATS, INTEGERS, WORDS, change_bytes, change_json

COMMIT = "0123456789abcdef0123456789abcdef01234567"
KINDS = ["listing", "head", "small", "large"]
# A client that takes all of it is refused by the size of the files that it may write.
ENDLESS_BYTES = 400 << 20


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Answer:
    """What is sent, in parts that a lie may replace."""

    def __init__(self, status, headers, body):
        self.line, self.headers, self.body = f"HTTP/1.1 {status} X", headers, body
        # `raw` takes the place of all; `after` sends more behind the body, by itself.
        self.raw = self.after = None


def _wrong_status(rng, answer):
    status = rng.choice(
        [
            100,
            101,
            199,
            200,
            204,
            206,
            301,
            304,
            307,
            400,
            401,
            403,
            404,
            416,
            429,
            500,
            503,
            599,
            999,
        ]
    )
    line = f"HTTP/1.1 {status} X"
    answer.line = rng.choice(
        [line, line, line, "HTTP/1.1", "HTTP/9.9 200 OK", "ICY 200 OK", "HTTP/1.1 2000 X", ""]
    )
    if status in (429, 503):
        answer.headers["Retry-After"] = str(
            rng.choice([0, 1, -1, "soon", "Wed, 21 Oct 2026 07:28:00 GMT", 10**30])
        )
    answer.headers["X-Error-Code"] = rng.choice(["RepoNotFound", "GatedRepo", "\x1b[31m", ""])
    answer.headers["X-Error-Message"] = rng.choice(["no", "\x1b]0;x\x07", "a" * 9000])


def _wrong_header(rng, answer):
    names = [
        "Content-Length",
        "ETag",
        "X-Linked-Etag",
        "X-Linked-Size",
        "X-Repo-Commit",
        "Location",
        "Content-Range",
    ]
    names += ["Content-Encoding", "Transfer-Encoding"]
    name = rng.choice(names)
    odd = [
        *map(str, INTEGERS),
        *FLOATS,
        *[w.replace("\r\n", "") for w in WORDS],
        '"' + "0" * 64 + '"',
        COMMIT.upper(),
    ]
    odd += [
        "gzip",
        "br",
        "chunked",
        "identity",
        "bytes 5-9/10",
        "bytes */0",
        '"../../../../tmp/x"',
        'W/"a"',
        '"a/b"',
    ]
    odd += [
        "http://127.0.0.1:1/x",
        "file:///etc/passwd",
        "//",
        "/loop",
        "http://[::1",
        "ftp://x/",
        "https://127.0.0.1:1/",
    ]
    change = rng.randrange(5)
    if change == 0:
        answer.headers.pop(name, None)
    elif change == 1:
        answer.headers[name] = rng.choice(odd)
    elif change == 2:
        answer.headers |= {f"X-{i}": "a" * 100 for i in range(rng.choice([10, 200, 3000]))}
    elif change == 3:
        answer.headers["X"] = "a" * rng.choice([9000, 70000, 1 << 21])
    else:
        answer.headers[rng.choice(["", "a b", "\0", "é", name + " "])] = rng.choice(odd)


def _wrong_length(rng, answer):
    n = len(answer.body)
    answer.headers["Content-Length"] = str(rng.choice([0, n - 1, n + 1, n * 2, *INTEGERS]))


def _cut(rng, answer):
    answer.headers.setdefault("Content-Length", str(len(answer.body)))
    answer.body = answer.body[: rng.randrange(len(answer.body) + 1)]


def _change_body(rng, answer):
    if answer.body[:1] in (b"{", b"[") and rng.random() < 0.8:
        answer.body = change_json(rng, answer.body.decode()).encode("utf-8", "surrogatepass")
    else:
        answer.body = change_bytes(rng, answer.body)
    answer.headers["Content-Length"] = str(len(answer.body))


def _listing(rng, answer):
    """Names of files that lead out of the folder, or are very many."""
    names = [
        "../../../evil",
        "/etc/evil",
        "a/../../../evil/config.json",
        "..",
        "",
        ".",
        "a\\..\\..\\evil",
        "\0",
        "tokenizer\x1b[31m",
    ]
    names += [
        "config.json/x",
        "tokenizer.json/../../../evil",
        "C:\\evil",
        "tokenizer" + "a" * 5000,
        "1_/config.json",
    ]
    names += [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer\nx",
        "model.gguf",
        "../x.gguf",
    ]
    some = [rng.choice(names) for _ in range(rng.choice([1, 3, 8]))] * rng.choice([1, 1, 1, 2000])
    siblings = [{"rfilename": n} for n in some + ["config.json", "model.safetensors"]]
    sha = rng.choice([COMMIT, COMMIT, COMMIT, "../" * 14, "", "0" * 39, COMMIT.upper(), "0" * 64])
    answer.body = json.dumps({"sha": sha, "siblings": siblings}).encode()
    answer.headers["Content-Length"] = str(len(answer.body))


def _chunked(rng, answer):
    answer.headers.pop("Content-Length", None)
    answer.headers["Transfer-Encoding"] = "chunked"
    size = rng.choice(
        [
            f"{len(answer.body):x}",
            "ffffffffffffffff",
            "zz",
            "-1",
            "",
            "0" * 9000 + "1",
            "5;" + "x" * 9000,
        ]
    )
    answer.body = (
        size.encode()
        + b"\r\n"
        + answer.body
        + rng.choice([b"\r\n0\r\n\r\n", b"", b"\r\n", b"0\r\nX: y\r\n"])
    )


def _bomb(rng, answer):
    """Few bytes that unpack to very many."""
    packed = gzip.compress(bytes(1 << 20), 1) * rng.choice([1, 300])
    answer.headers |= {"Content-Encoding": "gzip", "Content-Length": str(len(packed))}
    answer.body = packed


def _endless(rng, answer):
    """A body without an end, or a head without one."""
    where = rng.randrange(3)
    if where == 0:
        answer.raw, answer.after = b"HTTP/1.1 200 X\r\nX: ", b"a" * 65536
    elif where == 1:
        answer.raw, answer.after = (
            b"HTTP/1.1 200 X\r\n",
            b"X-a: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n" * 1000,
        )
    else:
        answer.headers.pop("Content-Length", None)
        answer.after = rng.choice(
            [b"[" * 65536, b" " * 65536, b'{"sha": "' + b"a" * 65536, bytes(65536)]
        )


def _noise(rng, answer):
    answer.raw = rng.choice(
        [
            b"",
            b"\0" * 100,
            b"GGUF",
            bytes(rng.randrange(256) for _ in range(300)),
            b"\r\n" * 5000,
            b"HTTP/1.1 200",
        ]
    )


def _redirects(rng, answer):
    """To itself, in circles, to other hosts."""
    answer.line = f"HTTP/1.1 {rng.choice([301, 302, 303, 307, 308])} X"
    to = [
        "/loop",
        "//127.0.0.1:1/x",
        "file:///etc/passwd",
        "http://127.0.0.1:9/x",
        "?",
        "",
        "x" * 9000,
        "http://",
        "\x1b[31m",
        "gopher://x",
    ]
    answer.headers["Location"] = rng.choice(to)


LIES = [
    _wrong_status,
    _wrong_header,
    _wrong_header,
    _wrong_length,
    _cut,
    _change_body,
    _change_body,
    _listing,
    _chunked,
    _bomb,
]
LIES += [_endless, _noise, _redirects]


class LyingHub:
    """A server for one input after another, in a thread; `plan` is the lies of the present input."""

    def __init__(self, files):
        self.files = files
        self.large = {
            f"/large/{sha256(data)}": data
            for name, data in files.items()
            if not name.endswith(".json")
        }
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.plan, self.count, self.slow = [], 0, False
        threading.Thread(target=self._accept, daemon=True).start()

    def begin(self, plan, slow=False):
        """Lies as (kind of answer, nth of this kind or none, function, its random numbers)."""
        self.plan, self.slow, self.count = plan, slow, {kind: 0 for kind in KINDS}

    def _accept(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection:
            connection.settimeout(300)
            try:
                head = b""
                while b"\r\n\r\n" not in head:
                    part = connection.recv(65536)
                    if not part:
                        return
                    head += part
                method, path = head.split(b"\r\n")[0].decode().split(" ")[:2]
                headers = dict(
                    line.lower().split(": ", 1)
                    for line in head.decode().split("\r\n")[1:]
                    if ": " in line
                )
                self._send(connection, method, *self._answer(method, path, headers))
            except (OSError, ValueError):
                pass

    def _answer(self, method, path, headers):
        if path.startswith("/api/models/"):
            siblings = [{"rfilename": name} for name in self.files]
            return "listing", Answer(
                200, {}, json.dumps({"sha": COMMIT, "siblings": siblings}).encode()
            )
        if path.startswith("/small/"):
            data = self.files.get(path.removeprefix("/small/"), b"")
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            return "small", Answer(200, {"X-Repo-Commit": COMMIT, "ETag": f'"{blob}"'}, data)
        if path in self.large:
            data, begin = self.large[path], headers.get("range", "")
            if (
                begin.startswith("bytes=")
                and begin[6:-1].isdigit()
                and int(begin[6:-1]) < len(data)
            ):
                at = int(begin[6:-1])
                return "large", Answer(
                    206, {"Content-Range": f"bytes {at}-{len(data) - 1}/{len(data)}"}, data[at:]
                )
            return "large", Answer(200, {}, data)
        name = path.split("/resolve/")[-1].partition("/")[2]
        if path == "/loop":
            return "head", Answer(302, {"Location": "/loop"}, b"")
        if name not in self.files:
            return "head", Answer(404, {"X-Error-Code": "EntryNotFound"}, b"")
        if name.endswith(".json"):
            return "head", Answer(307, {"Location": f"/small/{name}", "X-Repo-Commit": COMMIT}, b"")
        data = self.files[name]
        linked = {
            "X-Linked-Etag": f'"{sha256(data)}"',
            "X-Linked-Size": str(len(data)),
            "X-Repo-Commit": COMMIT,
        }
        return "head", Answer(302, {"Location": f"/large/{sha256(data)}", **linked}, b"")

    def _send(self, connection, method, kind, answer):
        nth = self.count[kind]
        self.count[kind] += 1
        for of, only, lie, rng in self.plan:
            if of == kind and only in (None, nth):
                lie(rng, answer)
        answer.headers.setdefault(
            "Content-Length", str(len(answer.body))
        ) if answer.after is None and "Transfer-Encoding" not in answer.headers else None
        lines = [
            answer.line,
            "Connection: close",
            *(f"{k}: {v}" for k, v in answer.headers.items()),
        ]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogatepass")
        if self.slow:
            # A byte a second, of the head or of the body.
            whole = head + answer.body
            for at in range(len(whole)):
                connection.sendall(whole[at : at + 1])
                time.sleep(1)
            return
        if answer.raw is not None:
            connection.sendall(answer.raw)
        else:
            connection.sendall(head)
            if method != "HEAD":
                connection.sendall(answer.body)
        sent = 0
        while answer.after and sent < ENDLESS_BYTES:
            connection.sendall(answer.after)
            sent += len(answer.after)


def plan(rng):
    """One or two lies."""
    lies = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        lie = rng.choice(LIES)
        kind = "listing" if lie is _listing else rng.choice(KINDS)
        lies.append((kind, rng.choice([None, None, 0]), lie, rng))
    return lies
