"""Writes the seeds that are files of checkpoints (models of one layer, as small as their formats allow), chat templates,
texts and answers of a Hub.

Run as `python3 fuzz/make_seeds.py` where the packages gguf, safetensors and numpy are installed. The output depends on
nothing but this script and those packages (seeds are literals).
"""

import gzip
import hashlib
import json
import pathlib
import random
import sys

try:
    import gguf
    import numpy as np
    import safetensors.numpy
except ImportError as missing:
    sys.exit(f"{missing}: pip install gguf safetensors numpy")

SEEDS = pathlib.Path(__file__).parent / "seeds"
RNG = np.random.default_rng(20261121)
VOCAB, CONTEXT = 7, 16


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def quantized(kind, rows, cols):
    """Random blocks; the halves that are scales are made finite."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = RNG.integers(0, 256, (rows, cols // block * size), dtype=np.uint8)
    data[:, 1::2] &= 0xBF
    return data


def gguf_model(name, architecture, kind, hidden, gemma):
    """One layer with one head of `hidden` elements."""
    writer = gguf.GGUFWriter(SEEDS / "gguf" / name, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100.0)
    if gemma:
        writer.add_key_length(hidden)
        writer.add_value_length(hidden)
        writer.add_sliding_window(3)
    writer.add_token_list(["a", "b", "", "<s>", "\u2581d", "e", "f"])

    def matrix(name, rows, kind=kind):
        data = floats(rows, hidden) if kind is None else quantized(kind, rows, hidden)
        writer.add_tensor(name + ".weight", data, raw_dtype=kind)

    matrix("token_embd", VOCAB)
    norms = ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"]
    if gemma:
        norms += ["blk.0.post_attention_norm", "blk.0.post_ffw_norm", "blk.0.attn_q_norm", "blk.0.attn_k_norm"]
    for norm in norms:
        writer.add_tensor(norm + ".weight", floats(hidden))
    for part in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]:
        matrix("blk.0." + part, hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def safetensors_model(name, config, gemma):
    hidden, heads, kv_heads, head_dim, between = 6, 2, 1, 4, 5
    config |= {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": between,
        "num_hidden_layers": 1,
        "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    layer = "model.layers.0."
    tensors = {"model.embed_tokens.weight": floats(VOCAB, hidden), "model.norm.weight": floats(hidden)}
    norms = ["input_layernorm", "post_attention_layernorm"]
    if gemma:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for norm in ["q_norm", "k_norm"]:
            tensors[f"{layer}self_attn.{norm}.weight"] = floats(head_dim)
    for norm in norms:
        tensors[f"{layer}{norm}.weight"] = floats(hidden)
    for part, rows, cols in [
        ("self_attn.q_proj", heads * head_dim, hidden),
        ("self_attn.k_proj", kv_heads * head_dim, hidden),
        ("self_attn.v_proj", kv_heads * head_dim, hidden),
        ("self_attn.o_proj", hidden, heads * head_dim),
        ("mlp.gate_proj", between, hidden),
        ("mlp.up_proj", between, hidden),
        ("mlp.down_proj", hidden, between),
    ]:
        tensors[f"{layer}{part}.weight"] = floats(rows, cols).astype(np.float16 if gemma else np.float32)
    metadata = {"config.json": json.dumps(config)}
    safetensors.numpy.save_file(tensors, SEEDS / "safetensors" / name, metadata)


for kind in ["Q4_0", "Q5_1", "Q8_0", "IQ4_NL"]:
    gguf_model(f"llama_{kind.lower()}.gguf", "llama", gguf.GGMLQuantizationType[kind], 32, False)
gguf_model("llama_f32.gguf", "llama", None, 4, False)
gguf_model("gemma3_q4_1.gguf", "gemma3", gguf.GGMLQuantizationType.Q4_1, 32, True)
rope = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
rope["original_max_position_embeddings"] = 8
safetensors_model("llama.safetensors", {"model_type": "llama", "rope_parameters": rope}, False)
gemma = {"model_type": "gemma3_text", "sliding_window": 3, "layer_types": ["sliding_attention"]}
safetensors_model("gemma3.safetensors", gemma | {"query_pre_attn_scalar": 4, "rope_theta": 100.0}, True)


def rows(name, kind, data):
    """A file of texts behind the letter of its kind."""
    (SEEDS / "rows" / name).write_bytes(kind + data)


def answers(name, *parts):
    (SEEDS / "hub" / name).write_bytes(b"\n====\n".join(parts))


def answer(status, headers, body=b""):
    lines = [f"HTTP/1.1 {status} X", "Connection: close", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def hub_seeds():
    """A model of two files, each with a head and its bytes; a large one is behind a redirect. And refusals."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    small, large = b"{}", bytes(range(64))
    blob = hashlib.sha1(b"blob 2\0" + small).hexdigest()
    sha256 = hashlib.sha256(large).hexdigest()
    names = [{"rfilename": n} for n in ["config.json", "model.safetensors"]]
    listing = answer(200, [], json.dumps({"sha": commit, "siblings": names}).encode())
    of_commit = f"X-Repo-Commit: {commit}"
    linked = [of_commit, f'X-Linked-ETag: "{sha256}"', f"X-Linked-Size: {len(large)}", "Location: /large"]
    config = answer(200, [of_commit, f'ETag: "{blob}"'], small)
    answers("model", listing, config, config, answer(302, linked), answer(200, [], large))
    rest = answer(206, ["Content-Range: bytes 55-63/64"], large[55:])
    answers("pieces", listing, config, config, answer(302, linked), answer(200, [], large)[:-9], rest)
    answers("refused", answer(401, ["X-Error-Code: GatedRepo", "X-Error-Message: no"]))
    answers("busy", answer(429, ["Retry-After: 1"]), listing)
    answers("chunked", b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")


def request_seeds():
    """Bodies behind the letter of their route, which the target `requests` lists."""
    hello = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    chat = {"model": "tiny-chat", "messages": hello, "max_tokens": 3, "temperature": 0}
    text = {"model": "tiny-chat", "prompt": ["the sea", "sky"], "max_tokens": 3}
    schema = {"type": "object", "properties": {"sky": {"enum": ["blue", "gray"]}}, "required": ["sky"]}
    form = {"type": "json_schema", "json_schema": {"name": "sky", "schema": schema}}
    samplers = {"top_k": 5, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.9, "xtc_probability": 0.5, "mirostat": 2, "seed": 7}
    penalties = {"repetition_penalty": 1.1, "presence_penalty": 1, "dry_multiplier": 0.8, "logit_bias": {"5": 2}}
    vectors = {"model": "bert-mean", "input": ["a cat", "the sea is deep"]}
    options = {"num_predict": 3, "temperature": 0, "stop": ["e"], "repeat_last_n": -1}
    bodies = {
        "chat": ("a", {**chat, "logprobs": True, "top_logprobs": 2, "n": 2, "stop": "e", "stream": True}),
        "schema": ("a", {**chat, "response_format": form, "stop_token_ids": [5], "min_tokens": 1}),
        "tools": ("a", {**chat, "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"}),
        "regex": ("b", {**text, **samplers, "prompt": [5, 9], "structured_outputs": {"regex": "(ab|c)+[0-9]{2}"}}),
        "lark": ("b", {**text, **penalties, "structured_outputs": {"grammar": 'start: "a" | NUM\nNUM: /[0-9]+/'}}),
        "echo": ("b", {**text, "echo": True, "logprobs": 2}),
        "responses": ("c", {"model": "tiny-chat", "input": hello, "max_output_tokens": 3, "instructions": "x"}),
        "embeddings": ("d", {**vectors, "encoding_format": "base64_int8", "dimensions": 4}),
        "ids": ("d", {**vectors, "input": [[2, 5, 3], [2, 3]]}),
        "ranks": ("e", {"model": "bert", "query": "a cat", "documents": ["a", {"text": "b"}], "top_n": 1}),
        "messages": ("f", {**chat, "messages": hello[1:], "system": "x", "stop_sequences": ["e"], "stream": True}),
        "count": ("g", {"model": "tiny-chat", "messages": hello[1:]}),
        "perplexity": ("h", {**vectors, "encoding_format": "base64_binary"}),
        "chunks": ("i", {**vectors, "input": [["a cat", "sleeps"], ["rain"]]}),
        "ollama_chat": ("j", {"model": "tiny-chat", "messages": hello, "options": options, "format": schema}),
        "generate": ("k", {"model": "tiny-chat", "prompt": "the sea", "raw": True, "options": options}),
        "embed": ("l", {**vectors, "truncate": True}),
        "embedding": ("m", {"model": "bert-mean", "prompt": "a cat"}),
        "show": ("n", {"model": "tiny-chat"}),
        "tei": ("o", {"inputs": ["a cat"], "truncate": True, "truncation_direction": "left"}),
        "all": ("p", {"inputs": [2, 5, 3]}),
        "similarity": ("q", {"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}}),
        "tokenize": ("r", {"inputs": "a cat", "add_special_tokens": False}),
        "decode": ("s", {"ids": [2, 5, 3], "skip_special_tokens": False}),
        "tei_ranks": ("t", {"query": "a", "texts": ["b", "c"], "raw_scores": True, "return_text": True}),
        "continued": ("u", {"inputs": "the sea", "parameters": {"max_new_tokens": 3, "stop": ["e"]}}),
    }
    for name, (route, body) in bodies.items():
        (SEEDS / "requests" / name).write_text(route + json.dumps(body))


TEMPLATES = {
    "chatml": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{{ '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "namespace": "{%- set ns = namespace(system='') -%}{%- for m in messages -%}{%- if m.role == 'system' -%}"
    "{%- set ns.system = ns.system ~ m.content -%}{%- elif loop.first -%}{{ bos_token }}{%- endif -%}{%- endfor -%}"
    "{{ ns.system | trim }}{{ messages[1:] | tojson(indent=2) }}",
    "macro": "{% macro turn(m, n=1) -%}{{ m.content.split(' ')[-1].strip().replace('a', 'b', n) | upper | indent(2) }}"
    "{%- endmacro %}{% for m in messages if m.role is defined and m.content is string %}{{ turn(m) }}"
    "{% generation %}{{ m['content'][::-1] }}{% endgeneration %}{% endfor %}",
    "refuses": "{% if messages | length % 2 %}{{ raise_exception('odd ' ~ messages | map(attribute='role') | join) }}"
    "{% endif %}{{ strftime_now('%d %b %Y') }}{{ range(3) | list | sum }}{{ '%s'|format(1) }}",
}
for name, text in TEMPLATES.items():
    (SEEDS / "template" / name).write_text(text)
rows("lines.jsonl", b"j", b'{"id": 1, "text": "one"}\n\n{"text": ["a", "b"], "x": {"y": [null, 1e5]}}\n')
# Level and time are fixed, so that the bytes are.
rows("lines.jsonl.gz", b"z", gzip.compress(b'{"id": 1, "text": "one"}\n{"text": null}\n', 9, mtime=0))
rows("lines.txt", b"t", b"\xef\xbb\xbfone\r\n\ntwo")
rows("table.csv", b"c", b'id,text\n1,"a, ""b""\nc"\n2,\xc3\xa9\n')
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "scripts"))
from attacks import formats  # noqa: E402: lies in scripts, which is no package

for number in range(6):
    rows(f"table{number}.parquet", b"p", formats.parquet(random.Random(number), ["one", "two words", "\u00e9"], False))
hub_seeds()
request_seeds()
