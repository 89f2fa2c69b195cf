"""What llama.cpp or ik_llama.cpp reach on a GGUF file: tokens a second, as JSON lines with the names of `thane bench`.

    PEER/bin/python scripts/peers/llama.py WHAT FILE.gguf [--threads 1] [--lengths 512] [--answer 128] [--batch 8] [--rounds 3]
    PEER/bin/python scripts/peers/llama.py embed FILE.gguf --ids FILE.jsonl [--threads 1] [--rounds 3] [--vectors OUT.jsonl]

WHAT is `prefill`, `decode`, `batch`, or `cold`: milliseconds from loading to the first token. PEER is an environment with
`llama-cpp-python` or `ik-llama-cpp-python` (setup.sh makes both); the one that is there is run, through its binding of the C functions,
so that no sampling or text is in the time. Tokens are random and the same for each peer; what follows is the likeliest token, as
`thane bench` takes it. `embed` makes a vector of each list of tokens (rows of `--ids`, their field `ids`), seen both ways, their
mean; `--vectors` writes them. Behind a round that does not count.
"""

import argparse
import ctypes
import json
import resource
import statistics
import time

import numpy

try:
    import ik_llama_cpp._ctypes_api as api

    PEER = "ik_llama.cpp"
except ImportError:
    import llama_cpp as api

    PEER = "llama.cpp"

NON_CAUSAL = 1  # enum llama_attention_type


def peak_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# What Python and the binding hold before there is a model.
BASELINE = peak_memory()


class Model:
    def __init__(self, path, n_threads, n_ctx, n_seqs, embeds=False):
        api.llama_backend_init()
        load = getattr(api, "llama_model_load_from_file", None) or api.llama_load_model_from_file
        self.model = load(path.encode(), api.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"{PEER} does not load {path}")
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = n_ctx, 2048, 512, n_seqs
        if embeds:
            # A text is one block: each of its tokens sees all.
            params.n_batch = params.n_ubatch = n_ctx
            params.embeddings, params.pooling_type, params.attention_type = True, api.LLAMA_POOLING_TYPE_MEAN, NON_CAUSAL
        params.n_threads = params.n_threads_batch = n_threads
        if PEER == "ik_llama.cpp":
            # Its kernel of attention ends the process where a batch has several sequences, or tokens see both ways.
            params.flash_attn = n_seqs == 1 and not embeds
        self.ctx = api.llama_init_from_model(self.model, params)
        if not self.ctx:
            raise SystemExit(f"{PEER} makes no context for {path}")
        self.n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.n_embd = (getattr(api, "llama_model_n_embd", None) or api.llama_n_embd)(self.model)
        self.batch = api.llama_batch_init(max(2048, n_ctx if embeds else 0), 0, 1)

    def clear(self):
        if hasattr(api, "llama_kv_cache_clear"):
            api.llama_kv_cache_clear(self.ctx)
        else:
            api.llama_memory_clear(api.llama_get_memory(self.ctx), True)

    def run(self, rows, wanted):
        """Runs (token, position, sequence) rows, for the outputs of those that are wanted."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, position, 1, sequence
            batch.logits[i] = i in wanted
        code = api.llama_decode(self.ctx, batch)
        if code != 0:
            raise SystemExit(f"{PEER}: llama_decode gave {code}")

    def decode(self, rows, wanted):
        """The likeliest next token behind each row that is wanted."""
        self.run(rows, wanted)
        return [int(self.logits(i).argmax()) for i in sorted(wanted)]

    def logits(self, i):
        logits = ctypes.cast(api.llama_get_logits_ith(self.ctx, i), ctypes.POINTER(ctypes.c_float))
        return numpy.ctypeslib.as_array(logits, (self.n_vocab,))

    def embed(self, ids):
        self.clear()
        self.run([(token, i, 0) for i, token in enumerate(ids)], set(range(len(ids))))
        pooled = ctypes.cast(api.llama_get_embeddings_seq(self.ctx, 0), ctypes.POINTER(ctypes.c_float))
        return numpy.ctypeslib.as_array(pooled, (self.n_embd,)).copy()


def round_of(args, model, prompts):
    """Seconds of reading the prompts and of the steps behind, all sequences together."""
    model.clear()
    start = time.perf_counter()
    last = []
    for sequence, prompt in enumerate(prompts):
        rows = [(int(token), i, sequence) for i, token in enumerate(prompt)]
        last += model.decode(rows, {len(rows) - 1})
    read = time.perf_counter()
    if args.what in ("decode", "batch"):
        for step in range(args.answer):
            rows = [(token, len(prompts[0]) + step, sequence) for sequence, token in enumerate(last)]
            last = model.decode(rows, set(range(len(rows))))
    return read - start, time.perf_counter() - read


def embed(args):
    """Texts a second of each round, behind one that does not count."""
    if not args.ids:
        raise SystemExit("embed needs --ids FILE.jsonl")
    with open(args.ids) as file:
        texts = [json.loads(line)["ids"] for line in file]
    model = Model(args.file, args.threads, max(map(len, texts)), 1, embeds=True)
    if args.vectors:
        with open(args.vectors, "w") as out:
            out.writelines(json.dumps(model.embed(ids).tolist()) + "\n" for ids in texts)
        raise SystemExit(0)
    rates = []
    for _ in range(args.rounds + 1):
        start = time.perf_counter()
        for ids in texts:
            model.embed(ids)
        rates.append(len(texts) / (time.perf_counter() - start))
    lengths = list(map(len, texts))
    return rates[1:], {"tokens": [min(lengths), max(lengths)], "batch": 1, "unit": "texts/s"}


def generate(args):
    length = args.lengths or {"prefill": 512, "decode": 128, "batch": 16, "cold": 30}[args.what]
    n_seqs = args.batch if args.what == "batch" else 1
    start = time.perf_counter()
    model = Model(args.file, args.threads, n_seqs * (length + args.answer + 32), n_seqs)
    prompts = numpy.random.default_rng(7).integers(0, min(model.n_vocab, 30_000), (n_seqs, length))
    rates = []
    for _ in range(1 if args.what == "cold" else args.rounds + 1):
        read, answered = round_of(args, model, prompts)
        if args.what == "cold":
            rates.append((time.perf_counter() - start) * 1e3)
        else:
            rates.append(length / read if args.what == "prefill" else n_seqs * args.answer / answered)
    row = {"tokens": [length, length], "answer_tokens": args.answer if args.what in ("decode", "batch") else None}
    return rates[1:] or rates, row | {"batch": n_seqs, "unit": "ms" if args.what == "cold" else "tokens/s"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["prefill", "decode", "batch", "cold", "embed"])
    parser.add_argument("file")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lengths", type=int, help="tokens of the prompt [default: 512, for decode 128, for batch 16, for cold 30]")
    parser.add_argument("--answer", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ids")
    parser.add_argument("--vectors")
    args = parser.parse_args()
    rates, found = embed(args) if args.what == "embed" else generate(args)
    row = {"bench": args.what, "peer": PEER, "model": args.file, "threads": args.threads} | found
    row |= {"median": statistics.median(rates), "least": min(rates), "most": max(rates), "rounds": len(rates)}
    print(json.dumps(row | {"peak_memory_bytes": peak_memory(), "baseline_memory_bytes": BASELINE}))


if __name__ == "__main__":
    main()
