"""Load on `thane serve`: requests from many connections at once, with clients that leave, read slowly,
send half a request, or send what is no request at all.

    python3 tests/oracle/load_serve.py target/debug/thane                      # 10,000 requests, 64 connections
    python3 tests/oracle/load_serve.py target/debug/thane --requests 400 --connections 16
    python3 tests/oracle/load_serve.py target/debug/thane --minutes 30
    python3 tests/oracle/load_serve.py target/debug/thane --chat FOLDER --embed FOLDER

The arithmetic is f32 and answers are greedy, so an answer under load must be the one that the request
gets alone, before the load; those of tiny-chat are also compared with transformers. Vectors and scores
may differ in the last digits. Every request must be answered, or refused with the status that it
deserves (a full queue may refuse any of them: 429). The load comes in two rounds; the second must not
take more memory than the first. Afterwards the server must be idle, answer, and end with 0 on SIGTERM.

Then a server with `--prompt-cache` is killed (SIGKILL) under load and started again, several times,
and one cannot write beyond the first bytes of a file, as on a full disk: answers must stay the same.

Prints a row for docs/serve.md. Needs nothing but Python.
"""

import argparse
import asyncio
import base64
import collections
import json
import pathlib
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time

MODELS = pathlib.Path(__file__).parent.parent / "models"
TINY = {"chat": MODELS / "tiny-chat", "embed": MODELS / "tiny-embed/bert-mean", "rank": MODELS / "tiny-rerank/bert"}
TOLERANCE = 1e-4
# A request that takes longer is not answered.
PATIENCE = 600
MIB = 1 << 20
# What a long prompt that is refused takes meanwhile, of which the allocator keeps some.
SLACK_MIB = 64
JSON = "Content-Type: application/json\r\n"
WORDS = "the sea is deep and the sky is blue over a cat that sleeps near rain".split()


class Wrong(Exception):
    """What the server must not do."""


class Refused(Exception):
    """A status that is not 200."""

    def __init__(self, status, body, head):
        super().__init__(f"{status} {body[:300]!r}")
        self.status, self.body, self.head = status, body, head


class Connection:
    """A connection that is kept, and opened again when the server has closed it."""

    def __init__(self, port):
        self.port, self.reader, self.writer = port, None, None

    async def open(self):
        if self.writer is None or self.reader.at_eof():
            self.close()
            # A small buffer, so that a slow reader is felt by the server.
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 16)

    def close(self):
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None

    def head(self, path, rest):
        method = "GET" if rest is None else "POST"
        return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n{rest or ''}\r\n".encode()

    async def send(self, path, body=None, rest=JSON):
        await self.open()
        if body is None:
            self.writer.write(self.head(path, None))
        else:
            self.writer.write(self.head(path, f"{rest}Content-Length: {len(body)}\r\n") + body)
        # A server may refuse a body that it has not read to its end.
        try:
            await self.writer.drain()
        except ConnectionError:
            pass

    async def read_head(self):
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        return int(head.split(" ")[1]), head

    async def pieces(self, head):
        """The body of a response, as it comes."""
        length = re.search(r"\r\ncontent-length: (\d+)", head)
        if length:
            yield await self.reader.readexactly(int(length[1]))
        elif "transfer-encoding: chunked" in head:
            while n := int(await self.reader.readline(), 16):
                yield (await self.reader.readexactly(n + 2))[:-2]
            await self.reader.readexactly(2)
        else:
            raise Wrong(f"a response without a length: {head}")

    async def receive(self, pause=0.0):
        """The body of a response with status 200."""
        status, head = await self.read_head()
        body = b""
        async for piece in self.pieces(head):
            body += piece
            if pause:
                await asyncio.sleep(pause)
        if "connection: close" in head:
            self.close()
        if status != 200:
            raise Refused(status, body, head)
        return body

    async def ask(self, path, fields=None, pause=0.0):
        await self.send(path, None if fields is None else json.dumps(fields).encode())
        return await self.receive(pause)


# What is asked, and how the answer is read from the body.


def events(body):
    found = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(data) for data in found if data != "[DONE]"]


def chat_stream(body):
    if not body.endswith(b"data: [DONE]\n\n"):
        raise Wrong(f"a stream without its end: {body[-200:]!r}")
    deltas = [choice["delta"] for event in events(body) for choice in event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def message_stream(body):
    found = events(body)
    if found[-1]["type"] != "message_stop":
        raise Wrong(f"a stream without its end: {found[-1]}")
    return "".join(event["delta"]["text"] for event in found if event["type"] == "content_block_delta")


def ollama_stream(body):
    found = [json.loads(line) for line in body.splitlines()]
    if not found[-1]["done"]:
        raise Wrong(f"a stream without its end: {found[-1]}")
    return "".join(event["message"]["content"] for event in found)


def f32(text):
    data = base64.b64decode(text)
    return struct.unpack(f"<{len(data) // 4}f", data)


class Case:
    """A request that has one answer."""

    def __init__(self, name, path, fields, read, is_stream=False, expected=None):
        self.name, self.path, self.fields, self.is_stream = name, path, fields, is_stream
        self.read, self.expected = read, expected

    def compare(self, body):
        found = self.read(body)
        if isinstance(found, str):
            is_same = found == self.expected
        else:
            flat = lambda rows: [x for row in rows for x in row]
            pairs = zip(flat(found), flat(self.expected), strict=True)
            is_same = max(abs(a - b) for a, b in pairs) < TOLERANCE
        if not is_same:
            raise Wrong(f"{self.name}: expected {str(self.expected)[:300]}, found {str(found)[:300]}")


def language_cases(model, conversations):
    """Those of the APIs that answer texts."""
    text = lambda path: lambda body: path(json.loads(body))
    for at, (messages, n, expected) in enumerate(conversations):
        chat = {"model": model, "messages": messages, "temperature": 0, "max_tokens": n}
        said = text(lambda a: a["choices"][0]["message"]["content"])
        yield Case(f"chat {at}", "/v1/chat/completions", chat, said, expected=expected)
        yield Case(f"chat stream {at}", "/v1/chat/completions", {**chat, "stream": True}, chat_stream, True, expected)
        system = [m["content"] for m in messages if m["role"] == "system"]
        rest = [m for m in messages if m["role"] != "system"]
        fields = {**chat, "messages": rest, **({"system": system[0]} if system else {})}
        yield Case(f"messages {at}", "/v1/messages", fields, text(lambda a: a["content"][0]["text"]), expected=expected)
        yield Case(f"messages stream {at}", "/v1/messages", {**fields, "stream": True}, message_stream, True, expected)
        options = {"temperature": 0, "num_predict": n}
        fields = {"model": model, "messages": messages, "options": options}
        yield Case(f"ollama {at}", "/api/chat", fields, ollama_stream, True, expected)
        fields = {"model": model, "input": messages, "temperature": 0, "max_output_tokens": n}
        said = text(lambda a: a["output"][0]["content"][0]["text"])
        yield Case(f"responses {at}", "/v1/responses", fields, said, expected=expected)
    rng = random.Random(5)
    for at in range(24):
        # Some begin alike, so that they share pages of the prefix tree.
        begin = random.Random(at % 4).choices(WORDS, k=40)
        prompt = " ".join(begin + rng.choices(WORDS, k=rng.randint(1, 60)))
        fields = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": rng.randint(1, 40)}
        yield Case(f"completion {at}", "/v1/completions", fields, text(lambda a: a["choices"][0]["text"]))
    schema = {"type": "object", "properties": {"sky": {"enum": ["blue", "gray"]}}, "required": ["sky"]}
    form = {"type": "json_schema", "json_schema": {"name": "sky", "schema": {**schema, "additionalProperties": False}}}
    fields = {"model": model, "messages": conversations[0][0], "temperature": 0, "max_tokens": 40, "response_format": form}
    yield Case("schema", "/v1/chat/completions", fields, text(lambda a: a["choices"][0]["message"]["content"]))


def vector_cases(model, ranker):
    rng = random.Random(7)
    for at in range(8):
        texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 20))) for _ in range(rng.choice([1, 1, 2, 8, 30]))]
        fields = {"model": model, "input": texts}
        rows = lambda body: [row["embedding"] for row in json.loads(body)["data"]]
        yield Case(f"embeddings {at}", "/v1/embeddings", fields, rows)
        packed = lambda body: [f32(row["embedding"]) for row in json.loads(body)["data"]]
        yield Case(f"base64 {at}", "/v1/embeddings", {**fields, "encoding_format": "base64"}, packed)
        yield Case(f"ollama embed {at}", "/api/embed", fields, lambda body: json.loads(body)["embeddings"])
        yield Case(f"TEI {at}", "/embed", {"inputs": texts}, json.loads)
        if ranker:
            scored = lambda body: [[r["index"], r["relevance_score"]] for r in json.loads(body)["results"]]
            fields = {"model": ranker, "query": texts[0], "documents": texts}
            yield Case(f"rank {at}", "/v1/rerank", fields, scored)


# What no server answers: the status, the path, the body.


def bad_requests(model, embed):
    chat, vectors = "/v1/chat/completions", "/v1/embeddings"
    hello = [{"role": "user", "content": "hello"}]
    dumped = lambda **fields: json.dumps({"model": model, "messages": hello, **fields}).encode()
    deep = b"[" * 100_000
    bad = [
        (400, chat, b"{"),
        (400, chat, b'{"model": "\xff\xfe"}'),
        (400, chat, b'{"model": ' + deep),
        (400, chat, b'{"model": "\\ud800"}'),
        (400, chat, b'{"model": 1e999}'),
        (400, chat, b""),
        (400, chat, b"[]"),
        (400, chat, dumped(messages=5)),
        (400, chat, dumped(temperature=-1)),
        (400, chat, dumped(n=1_000_000)),
        (400, chat, dumped(top_logprobs=10**30, logprobs=True)),
        (400, chat, dumped(stop=["x"] * 1000)),
        (400, chat, dumped(logit_bias={str(k): 1 for k in range(20_000)})),
        (400, chat, dumped(unknown=True)),
        (400, chat, dumped(messages=[{"role": "user", "content": "word " * 3000}])),
        (400, chat, dumped(response_format={"type": "json_schema", "json_schema": {"schema": {"type": "what"}}})),
        (404, chat, dumped(model="gpt-4o")),
        (400, vectors, json.dumps({"model": embed, "input": ["a"] * 5000}).encode()),
        (400, vectors, json.dumps({"model": embed, "input": ""[:0], "dimensions": -1}).encode()),
        (404, "/v1/nothing", b"{}"),
        (405, "/v1/models", b"{}"),
        (400, "/v1/messages", b'{"max_tokens": "many"}'),
        (400, "/api/chat", b'{"model": 5}'),
        (413, vectors, b" " * (4 * MIB + 1)),
    ]
    return [(f"bad {at}", *request) for at, request in enumerate(bad)]


class Load:
    """Sends requests of all kinds, and counts what became of them."""

    def __init__(self, port, cases, bad, seed):
        self.port, self.cases, self.bad = port, cases, bad
        self.streams = [case for case in cases if case.is_stream]
        self.rng, self.counts = random.Random(seed), collections.Counter()
        self.times, self.failures = [], []

    async def answer(self, connection, pause=0.0):
        case = self.rng.choice(self.streams if pause else self.cases)
        start = time.monotonic()
        try:
            case.compare(await connection.ask(case.path, case.fields, pause))
        except Refused as refused:
            if refused.status != 429 or "\r\nretry-after: " not in refused.head:
                raise Wrong(f"{case.name}: {refused}") from refused
            self.counts["refused: the queue is full"] += 1
            return
        if not pause:
            self.times.append(time.monotonic() - start)
        self.counts["answered to slow readers" if pause else "answered"] += 1

    async def slow(self, connection):
        await self.answer(connection, 0.002)

    async def malformed(self, connection, request=None):
        name, status, path, body = request or self.rng.choice(self.bad)
        await connection.send(path, body)
        try:
            found = (200, await connection.receive())
        except Refused as refused:
            found = (refused.status, refused.body)
        except (ConnectionError, asyncio.IncompleteReadError):
            # The system drops an answer when the peer still sends what nobody reads.
            if status != 413:
                raise
            found = (413, b"")
        connection.close() if status == 413 else None
        if found[0] not in (status, 429):
            raise Wrong(f"{name}: expected {status}, found {found[0]} {found[1][:300]!r}")
        self.counts["refused: malformed or oversized"] += 1

    async def leaves(self, connection):
        """A client that goes at once, or within the answer."""
        case = self.rng.choice(self.cases)
        await connection.send(case.path, json.dumps(case.fields).encode())
        if case.is_stream and self.rng.random() < 0.7:
            status, head = await connection.read_head()
            pieces = connection.pieces(head)
            if status == 200:
                for _ in range(self.rng.randint(1, 5)):
                    await anext(pieces, None)
        else:
            await asyncio.sleep(self.rng.random() * 0.02)
        connection.close()
        self.counts["left by the client"] += 1

    async def half(self, connection):
        """A client that goes before its request is complete."""
        case = self.rng.choice(self.cases)
        await connection.open()
        body = json.dumps(case.fields).encode()
        whole = connection.head(case.path, f"{JSON}Content-Length: {len(body)}\r\n") + body
        connection.writer.write(whole[: self.rng.randrange(1, len(whole))])
        await asyncio.sleep(self.rng.random() * 0.02)
        connection.close()
        self.counts["half-sent"] += 1

    async def one(self, connection):
        kinds = [self.answer, self.leaves, self.slow, self.malformed, self.half]
        (kind,) = self.rng.choices(kinds, [70, 10, 5, 10, 5])
        for attempt in (1, 2):
            try:
                return await asyncio.wait_for(kind(connection), PATIENCE)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                # A kept connection may be closed as the request is sent; a new one may not.
                is_new = connection.is_new
                connection.close()
                if is_new or attempt == 2:
                    self.failures.append(f"{kind.__name__}: {error!r}")
            except TimeoutError:
                connection.close()
                self.failures.append(f"{kind.__name__}: no answer within {PATIENCE} s")
                return
            except Wrong as wrong:
                connection.close()
                self.failures.append(str(wrong))
                return

    async def run(self, n_connections, goes_on):
        async def client():
            connection = Connection(self.port)
            while goes_on() and len(self.failures) < 20:
                connection.is_new = connection.writer is None
                await self.one(connection)
            connection.close()

        await asyncio.gather(*(client() for _ in range(n_connections)))


class Server:
    """`thane serve` as a process."""

    def __init__(self, thane, models, flags, limits=None):
        self.stderr = tempfile.TemporaryFile("w+")
        args = [thane, "serve", *map(str, models), "--port", "0", "--numerics", "f32", *flags]
        pipes = {"stdout": subprocess.PIPE, "stderr": self.stderr, "text": True}
        self.process = subprocess.Popen(args, **pipes, preexec_fn=limits, restore_signals=limits is None)
        address = self.process.stdout.readline().strip()
        if not address.startswith("http://"):
            sys.exit(f"the server does not start: {self.said()}")
        self.port = int(address.rsplit(":", 1)[1])

    def said(self):
        self.stderr.seek(0)
        return self.stderr.read()

    async def get(self, path):
        connection = Connection(self.port)
        try:
            return (await connection.ask(path)).decode()
        finally:
            connection.close()

    async def metric(self, name):
        return float(re.search(rf"^{name}\S* (\S+)", await self.get("/metrics"), re.M)[1])

    async def resident(self):
        return await self.metric("process_resident_memory_bytes") / MIB

    async def is_idle(self):
        """Whether all places become free: the server sees that clients have left."""
        for _ in range(3000):
            if json.loads(await self.get("/health"))["requests"] == 0:
                return True
            await asyncio.sleep(0.1)
        return False

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=300)


def conversations(path):
    """Messages, the most tokens, and what transformers answers."""
    expected = path / "expected.json"
    if expected.exists():
        cases = json.loads(expected.read_text())["conversations"]
        return [(case["messages"], len(case["tokens"]), case["text"]) for case in cases]
    asked = ["Why is the sky blue?", "Name three colors.", "What is the capital of France?"]
    return [([{"role": "user", "content": text}], 24, None) for text in asked]


async def alone(server, cases):
    """Notes what each request gets alone."""
    connection = Connection(server.port)
    for case in cases:
        found = case.read(await connection.ask(case.path, case.fields))
        if case.expected is not None and found != case.expected:
            sys.exit(f"{case.name} alone: expected {case.expected!r}, found {found!r}")
        case.expected = found
    connection.close()


def full_disk():
    """Of a file only the first bytes can be written. (A program that does not ignore the signal ends.)"""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))


def kept_prompts(args, cases):
    """Servers with a folder of prompts that are killed under load, and one whose folder cannot grow."""
    cases = [case for case in cases if not isinstance(case.expected, list)]
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--context", "512", "--slots", "2", "--prompt-memory", "1MB", "--prompt-cache", folder]
        n_cached = []

        async def killed(server):
            load = Load(server.port, cases, bad_requests("", ""), args.seed)
            running = asyncio.create_task(load.run(16, lambda: True))
            while load.counts["answered"] < 50 and not running.done():
                await asyncio.sleep(0.01)
            server.process.kill()
            server.process.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        for _ in range(args.kills):
            server = Server(args.thane, [args.chat], flags)
            try:
                asyncio.run(alone(server, cases))
                n_cached.append(asyncio.run(server.metric("thane_prompt_tokens_cached_total")))
                asyncio.run(killed(server))
            finally:
                server.process.kill()
        n_files = sum(1 for file in pathlib.Path(folder).rglob("*.page"))
        server = Server(args.thane, [args.chat], flags)
        try:
            asyncio.run(alone(server, cases))
            found = asyncio.run(server.metric("thane_prompt_tokens_cached_total")) - n_cached[0]
            print(f"killed {args.kills} times under load: {n_files} pages, {found:.0f} tokens found after a restart")
            if found <= 0:
                sys.exit("after kills: expected kept prompts, found none")
            if code := server.end():
                sys.exit(f"after kills: expected exit code 0, found {code}")
        finally:
            server.process.kill()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args.thane, [args.chat], [*flags[:-1], folder], full_disk)
        try:
            asyncio.run(alone(server, cases))
            code, said = server.end(), server.said()
            print(f"with a full disk the server says: {said.splitlines()[0]}")
            left = [file.name for file in pathlib.Path(folder).rglob("*") if file.is_file()]
            if code != 0 or said.count("prompts") != 1 or left:
                sys.exit(f"full disk: exit code {code}, the server said: {said}, files: {left}")
        finally:
            server.process.kill()


def percentile(times, p):
    return sorted(times)[min(int(len(times) * p), len(times) - 1)]


async def check(server, args):
    ids = [model["id"] for model in json.loads(await server.get("/v1/models"))["data"]]
    cases = list(language_cases(ids[0], conversations(args.chat)))
    cases += vector_cases(ids[1], ids[2] if len(ids) > 2 else None)
    await alone(server, cases)
    bad = bad_requests(ids[0], ids[1])
    warm = Load(server.port, cases, bad, args.seed)
    await asyncio.gather(*(warm.malformed(Connection(server.port), request) for request in bad * 2))
    start, counts, times, resident = time.monotonic(), collections.Counter(), [], []
    for at in range(2):
        load = Load(server.port, cases, bad, args.seed + at)
        if args.minutes:
            until = start + (at + 1) * args.minutes * 30
            goes_on = lambda: time.monotonic() < until
        else:
            left = iter(range(args.requests // 2))
            goes_on = lambda: next(left, None) is not None
        await load.run(args.connections, goes_on)
        if not load.failures and not await server.is_idle():
            load.failures.append(f"after the load: {await server.get('/health')}")
        if load.failures:
            sys.exit("\n".join([*load.failures, f"the server said: {server.said()}"]))
        counts += load.counts
        times += load.times
        resident.append(await server.resident())
        print(f"round {at + 1}: {load.counts.total()} requests, {resident[-1]:.0f} MiB, {dict(load.counts)}", flush=True)
    seconds = time.monotonic() - start
    await alone(server, cases)
    return cases, counts, times, resident, seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("thane")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--minutes", type=float, help="instead of a number of requests")
    parser.add_argument("--kills", type=int, default=3, help="times that a server with kept prompts is killed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chat", type=pathlib.Path, default=TINY["chat"])
    parser.add_argument("--embed", type=pathlib.Path, default=TINY["embed"])
    parser.add_argument("--p99", type=float, help="most seconds of 99 of 100 answers (default: any)")
    args = parser.parse_args()
    # 36 places for 64 connections: the queue is full now and then.
    flags = ["--context", "512", "--slots", "4", "--queue", "32"]
    models = [args.chat, args.embed] + ([TINY["rank"]] if args.embed == TINY["embed"] else [])
    server = Server(args.thane, models, flags)
    try:
        cases, counts, times, resident, seconds = asyncio.run(check(server, args))
        code = server.end()
    finally:
        server.process.kill()
    for name, n in counts.most_common():
        print(f"{n:8} {name}")
    p50, p99 = percentile(times, 0.5), percentile(times, 0.99)
    print(f"answers within {p50 * 1e3:.0f} ms (p50), {p99 * 1e3:.0f} ms (p99)")
    problems = []
    if code != 0:
        problems.append(f"expected exit code 0, found {code}")
    if server.said() != "thane: stopping; running answers finish first\n":
        problems.append(f"the server said: {server.said()}")
    if args.p99 and p99 > args.p99:
        problems.append(f"expected a p99 of at most {args.p99} s, found {p99:.2f} s")
    if resident[1] > resident[0] * 1.1 + SLACK_MIB:
        problems.append(f"memory grew from {resident[0]:.0f} to {resident[1]:.0f} MiB")
    if problems:
        sys.exit("\n".join(problems))
    if args.kills:
        kept_prompts(args, cases)
    names = " and ".join(path.name for path in models[:2])
    n = counts.total()
    refused = counts["refused: malformed or oversized"]
    gone = counts["left by the client"] + counts["half-sent"]
    full = counts["refused: the queue is full"]
    answered = counts["answered"] + counts["answered to slow readers"]
    print(
        f"| {names} | {n:,} | {args.connections} | {seconds / 60:.1f} | {answered:,} | {full:,} | {refused:,} | {gone:,} |"
        f" {p50 * 1e3:.0f} | {p99 * 1e3:.0f} | {resident[0]:.0f} | {resident[1]:.0f} |"
    )


if __name__ == "__main__":
    main()
