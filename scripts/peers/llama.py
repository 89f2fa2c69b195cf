"""What llama.cpp or ik_llama.cpp reach on a GGUF file: tokens a second, as JSON lines with the names of `thane bench`.

    PEER/bin/python scripts/peers/llama.py WHAT FILE.gguf [--threads 1] [--lengths 512] [--answer 128] [--batch 8] [--rounds 3]

WHAT is `prefill`, `decode`, `batch`, or `cold`: milliseconds from loading to the first token. PEER is an environment with `llama-cpp-python` or `ik-llama-cpp-python` (setup.sh makes both);
the one that is there is run, through its binding of the C functions, so that no sampling or text is in the time. Tokens are random
and the same for each peer; what follows is the likeliest token, as `thane bench` takes it. Behind a round that does not count.
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


class Model:
    def __init__(self, path, n_threads, n_ctx, n_seqs):
        api.llama_backend_init()
        load = getattr(api, "llama_model_load_from_file", None) or api.llama_load_model_from_file
        self.model = load(path.encode(), api.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"{PEER} does not load {path}")
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = n_ctx, 2048, 512, n_seqs
        params.n_threads = params.n_threads_batch = n_threads
        if PEER == "ik_llama.cpp":
            # Its kernel of attention ends the process where a batch has several sequences.
            params.flash_attn = n_seqs == 1
        self.ctx = api.llama_init_from_model(self.model, params)
        if not self.ctx:
            raise SystemExit(f"{PEER} makes no context for {path}")
        self.n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.batch = api.llama_batch_init(2048, 0, 1)

    def clear(self):
        if hasattr(api, "llama_kv_cache_clear"):
            api.llama_kv_cache_clear(self.ctx)
        else:
            api.llama_memory_clear(api.llama_get_memory(self.ctx), True)

    def decode(self, rows, wanted):
        """Runs (token, position, sequence) rows; the likeliest next token of those that are wanted."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, position, 1, sequence
            batch.logits[i] = i in wanted
        code = api.llama_decode(self.ctx, batch)
        if code != 0:
            raise SystemExit(f"{PEER}: llama_decode gave {code}")
        return [self.likeliest(i) for i in sorted(wanted)]

    def likeliest(self, i):
        logits = ctypes.cast(api.llama_get_logits_ith(self.ctx, i), ctypes.POINTER(ctypes.c_float))
        return int(numpy.ctypeslib.as_array(logits, (self.n_vocab,)).argmax())


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["prefill", "decode", "batch", "cold"])
    parser.add_argument("file")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lengths", type=int, help="tokens of the prompt [default: 512, for decode 128, for batch 16, for cold 30]")
    parser.add_argument("--answer", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
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
    rates = rates[1:] or rates
    row = {"bench": args.what, "peer": PEER, "model": args.file, "threads": args.threads, "tokens": [length, length]}
    row |= {"answer_tokens": args.answer if args.what in ("decode", "batch") else None, "batch": n_seqs}
    row |= {"unit": "ms" if args.what == "cold" else "tokens/s", "median": statistics.median(rates), "least": min(rates), "most": max(rates), "rounds": len(rates)}
    print(json.dumps(row | {"peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


if __name__ == "__main__":
    main()
