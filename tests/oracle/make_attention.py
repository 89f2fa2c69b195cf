"""Makes tests/models/attention/<name>.{json,bin}: logits of transformers with attention that sees a part of the tokens.

    python3 tests/oracle/make_attention.py

The checkpoints are those of tests/models/tiny. transformers runs them with an attention function that is registered
here: a token sees the first tokens (sinks), those less than a window of positions before it, and possibly older ones as
means of keys and values of so many tokens, with ln of their number added to the score; some key heads see all tokens.
Tokens of one block are either all seen as they are or all as a mean.
"""

import json

from golden import MODELS, Floats, need, write_json

need("torch", "transformers", "numpy")

import torch
import transformers
from transformers import AttentionInterface

CASES = {
    "window": {"checkpoint": "qwen3", "sinks": 3, "window": 9},
    "pool": {"checkpoint": "qwen3", "sinks": 2, "window": 10, "pool": 4},
    "heads": {"checkpoint": "qwen3", "sinks": 1, "window": 9, "retrieval": [[0, 1], [1, 1]]},
    "heads-pool": {"checkpoint": "llama-bias", "sinks": 0, "window": 8, "pool": 3, "retrieval": [[1, 0], [0, 1]]},
    "capped": {"checkpoint": "gemma2", "sinks": 2, "window": 12, "pool": 5},
}


def attend(case, cap):
    sinks, window, pool = case["sinks"], case["window"], case.get("pool")
    retrieval = case.get("retrieval")

    def run(module, query, key, value, attention_mask, scaling, **_):
        n, group = query.shape[2], query.shape[1] // key.shape[1]
        sliding = getattr(module, "sliding_window", None)
        out = torch.zeros_like(query)
        for head in range(query.shape[1]):
            k, v = key[0, head // group], value[0, head // group]
            sees_all = retrieval is not None and retrieval[module.layer_idx][head // group]
            for q in range(n):
                bias = torch.zeros(0)
                if sliding:
                    seen = [p for p in range(q + 1) if q - p < sliding]
                    keys, values = k[seen], v[seen]
                elif sees_all:
                    keys, values = k[: q + 1], v[: q + 1]
                else:
                    first = max(q + 1 - window, sinks)
                    if pool:
                        first -= (first - sinks) % pool
                    seen = [p for p in range(q + 1) if p < sinks or p >= first]
                    keys, values = k[seen], v[seen]
                    if pool:
                        starts = range(sinks, first, pool)
                        means = [[x[at : at + pool].mean(0) for at in starts] for x in (k, v)]
                        if means[0]:
                            keys = torch.cat([keys, torch.stack(means[0])])
                            values = torch.cat([values, torch.stack(means[1])])
                            bias = torch.tensor([float(pool)] * len(starts)).log()
                scores = keys @ query[0, head, q] * scaling
                if cap:
                    scores = torch.tanh(scores / cap) * cap
                scores[len(scores) - len(bias) :] += bias
                out[0, head, q] = scores.softmax(0) @ values
        return out.transpose(1, 2).contiguous(), None

    return run


def main():
    folder = MODELS / "attention"
    folder.mkdir(exist_ok=True)
    for name, case in CASES.items():
        path = MODELS / "tiny" / case["checkpoint"]
        config = transformers.AutoConfig.from_pretrained(path)
        AttentionInterface.register("kept", attend(case, getattr(config, "attn_logit_softcapping", None)))
        model = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="kept", dtype=torch.float32)
        golden = json.loads((path / "golden.json").read_text())
        ids = max((s["ids"] for s in golden["sequences"]), key=len)
        floats = Floats()
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0]
        sequence = {"ids": ids, "logits": floats.add(logits.numpy())}
        write_json(folder / f"{name}.json", case | {"sequences": [sequence]})
        floats.write(folder / f"{name}.bin")
        # What is not seen must matter.
        usual = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        with torch.no_grad():
            other = usual(torch.tensor([ids]), use_cache=False).logits[0]
        print(name, len(ids), "tokens; difference to all tokens", float((logits - other).norm() / other.norm()))


main()
