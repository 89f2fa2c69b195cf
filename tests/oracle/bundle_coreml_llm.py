"""CoreML-LLM bundles of tiny random checkpoints: Gemma 4 in chunks that take and give their caches, and a model in one
package with a state.

Written from a description of the published contract; no code of CoreML-LLM is used. The tables of angles are those of
transformers, so layers of full attention rotate only a part of their pairs.
"""

import json

import numpy
import torch
import torch.nn.functional as F
import transformers

import bundle_case as case
from bundle_case import HALF, INT, Layer, attention, gated, heads, package, rms_norm, rotate

SLIDING, FULL = "sliding_attention", "full_attention"
# Key heads, and the width of a head in sliding layers and in others; the configuration has them by layer.
N_KV, HEAD_DIM, WIDE = 2, 8, 12


def quantized(folder, name, table):
    """Writes rows as int8 with a float16 scale each; returns the values that they stand for."""
    scale = table.abs().amax(dim=1, keepdim=True).half()
    codes = (table * 127 / scale.float()).round().clamp(-127, 127)
    (folder / f"{name}_q8.bin").write_bytes(codes.to(torch.int8).numpy().tobytes())
    (folder / f"{name}_scales.bin").write_bytes(scale.numpy().tobytes())
    return codes * (scale.float() / 127)


def write_half(folder, name, tensor):
    (folder / name).write_bytes(tensor.detach().half().numpy().tobytes())


def config_and_tokens():
    tokens = case.vocabulary()
    return tokens, transformers.Gemma4TextConfig(
        vocab_size=len(tokens), hidden_size=38, intermediate_size=31, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=N_KV, head_dim=HEAD_DIM, global_head_dim=WIDE, max_position_embeddings=256, rms_norm_eps=1e-2,
        sliding_window=8, layer_types=[SLIDING, SLIDING, FULL, SLIDING, FULL, SLIDING, FULL, FULL],
        num_kv_shared_layers=3, use_double_wide_mlp=True, final_logit_softcapping=30.0, hidden_size_per_layer_input=6,
        vocab_size_per_layer_input=len(tokens), tie_word_embeddings=False, bos_token_id=2, eos_token_id=0,
        rope_parameters={SLIDING: {"rope_type": "default", "rope_theta": 700.0},
                         FULL: {"rope_type": "proportional", "rope_theta": 900.0, "partial_rotary_factor": 0.5}})


class Chunk:
    """Layers `begin` to `end`: names of inputs and outputs, and what is computed."""

    def __init__(self, weights, config, context, begin, end):
        self.weights, self.config, self.context, self.begin, self.end = weights, config, context, begin, end
        self.n_layers = config.num_hidden_layers
        self.n_own = self.n_layers - config.num_kv_shared_layers
        kinds = config.layer_types
        own = [i for i in range(begin, min(end, self.n_own))]
        self.slots = {kind: [i for i in own if kinds[i] == kind] for kind in (SLIDING, FULL)}
        self.producers = {kind: max(i for i in range(self.n_own) if kinds[i] == kind) for kind in (SLIDING, FULL)}
        self.is_first, self.is_last, self.has_caches = begin == 0, end == self.n_layers, bool(own)
        self.gives_shared = self.has_caches and end >= self.n_own and not self.is_last
        self.takes_shared = begin >= self.n_own

    def inputs(self):
        c, w = self.config, self.config.sliding_window
        layers = self.n_layers * c.hidden_size_per_layer_input
        heads, dim, wide = N_KV, HEAD_DIM, WIDE
        out = [("hidden_states", (1, 1, c.hidden_size)), ("causal_mask_full", (1, 1, 1, self.context)),
               ("causal_mask_sliding", (1, 1, 1, w)), ("update_mask", (1, 1, self.context, 1)),
               ("per_layer_raw" if self.is_first else "per_layer_combined", (1, 1, layers)),
               ("cos_s", (1, 1, 1, dim)), ("sin_s", (1, 1, 1, dim)), ("cos_f", (1, 1, 1, wide)), ("sin_f", (1, 1, 1, wide))]
        for kind, name, length in ((SLIDING, "sliding", w), (FULL, "full", self.context)):
            n = len(self.slots[kind])
            out += [(f"{x}_{name}_in", (n, heads, length, wide)) for x in "KV" if n]
        if self.takes_shared:
            out += [(f"kv13_{x}", (1, heads, w, dim)) for x in "kv"]
            out += [(f"kv14_{x}", (1, heads, self.context, wide)) for x in "kv"]
        return [(name, shape, HALF) for name, shape in out]

    def outputs(self):
        names = [("token_id", INT), ("token_logit", HALF)] if self.is_last else []
        names += [("hidden_states_out", HALF)]
        names += [(f"{x}_{name}_out", HALF) for kind, name in ((SLIDING, "sliding"), (FULL, "full"))
                  for x in "KV" if self.slots[kind]]
        names += [("per_layer_combined_out", HALF)] if self.is_first else []
        if self.gives_shared:
            names += [(f"kv1{n}_{x}", HALF) for n in "34" for x in "kv"]
        return names

    def combined(self, hidden, raw):
        """What each layer adds, from the token's own row and a product of its embedding."""
        c = self.config
        x = F.linear(hidden, self.weights["model.per_layer_model_projection.weight"]) * c.hidden_size ** -0.5
        x = x.view(1, 1, self.n_layers, c.hidden_size_per_layer_input)
        x = rms_norm(x, self.weights["model.per_layer_projection_norm.weight"], c.rms_norm_eps)
        return (x.view(1, 1, -1) + raw) * 2 ** -0.5

    def updated(self, kind, cache, new, update_mask):
        """[1, heads, length, wide]: shifted by one row, or replaced where the mask is 1."""
        new = F.pad(new, (0, WIDE - int(new.shape[-1])))
        if kind == SLIDING:
            return torch.cat([cache[:, :, 1:], new], dim=2)
        return cache * (1 - update_mask) + new * update_mask

    def __call__(self, _, *values):
        c, given = self.config, dict(zip([name for name, _, _ in self.inputs()], values))
        hidden, eps = given["hidden_states"], c.rms_norm_eps
        combined = self.combined(hidden, given["per_layer_raw"]) if self.is_first else given["per_layer_combined"]
        caches = {SLIDING: ([], []), FULL: ([], [])}
        shared = {}
        if self.takes_shared:
            shared = {kind: tuple(given[f"kv1{n}_{x}"] for x in "kv") for kind, n in ((SLIDING, 3), (FULL, 4))}
        for i in range(self.begin, self.end):
            prefix, kind = f"model.layers.{i}.", c.layer_types[i]
            name, dim = ("sliding", HEAD_DIM) if kind == SLIDING else ("full", WIDE)
            cos, sin = (given[f"{x}_{name[0]}"] for x in ("cos", "sin"))
            weight = lambda n: self.weights[prefix + n + ".weight"]
            x = rms_norm(hidden, weight("input_layernorm"), eps)
            q = heads(F.linear(x, weight("self_attn.q_proj")), c.num_attention_heads)
            q = rotate(rms_norm(q, weight("self_attn.q_norm"), eps), cos, sin)
            if i < self.n_own:
                k, v = (heads(F.linear(x, weight(f"self_attn.{n}_proj")), N_KV) for n in "kv")
                k = rotate(rms_norm(k, weight("self_attn.k_norm"), eps), cos, sin)
                v = rms_norm(v, None, eps)
                slot = len(caches[kind][0])
                k, v = (self.updated(kind, given[f"{n}_{name}_in"][slot:slot + 1], new, given["update_mask"])
                        for n, new in (("K", k), ("V", v)))
                caches[kind][0].append(k)
                caches[kind][1].append(v)
                k, v = k[..., :dim], v[..., :dim]
                if i == self.producers[kind]:
                    shared[kind] = (k, v)
            else:
                k, v = shared[kind]
            out = attention(q, k, v, given[f"causal_mask_{name}"], 1.0)
            hidden = hidden + rms_norm(F.linear(out, weight("self_attn.o_proj")), weight("post_attention_layernorm"), eps)
            x = rms_norm(hidden, weight("pre_feedforward_layernorm"), eps)
            gelu = lambda x: F.gelu(x, approximate="tanh")
            x = gated(x, self.weights, prefix + "mlp.", gelu)
            hidden = hidden + rms_norm(x, weight("post_feedforward_layernorm"), eps)
            own = combined[..., i * c.hidden_size_per_layer_input:(i + 1) * c.hidden_size_per_layer_input]
            x = F.linear(gelu(F.linear(hidden, weight("per_layer_input_gate"))) * own, weight("per_layer_projection"))
            hidden = hidden + rms_norm(x, weight("post_per_layer_input_norm"), eps)
            hidden = hidden * self.weights[prefix + "layer_scalar"]
        results = []
        if self.is_last:
            hidden = rms_norm(hidden, self.weights["model.norm.weight"], eps)
            logits = F.linear(hidden, self.weights["lm_head.weight"]).view(1, c.vocab_size)
            logits = torch.tanh(logits / c.final_logit_softcapping) * c.final_logit_softcapping
            results += [logits.argmax(-1).to(torch.int32), logits.max(-1).values]
        results.append(hidden)
        for kind in (SLIDING, FULL):
            results += [torch.cat(rows) for rows in caches[kind] if rows]
        results += [combined] if self.is_first else []
        if self.gives_shared:
            results += [*shared[SLIDING], *shared[FULL]]
        return tuple(results)


def gemma(folder, names_and_layers, context=48):
    """Gemma 4 in chunks that decode one token, with embeddings, tables and masks from the host."""
    tokens, config = config_and_tokens()

    def random(seed):
        model = case.random_weights(transformers.Gemma4ForCausalLM(config), seed, 0)
        case.silence(model.lm_head.weight, tokens)
        with torch.no_grad():
            for layer in model.model.layers:
                layer.layer_scalar.copy_((torch.rand(1) * 0.5 + 0.5).half().float())
            for table, name in ((model.model.embed_tokens, "embed_tokens"),
                                (model.model.embed_tokens_per_layer, "embed_tokens_per_layer")):
                table.weight.copy_(quantized(folder, name, table.weight))
        return model

    def build(model):
        c = config
        weights = model.state_dict()
        write_half(folder, "per_layer_projection.bin", weights["model.per_layer_model_projection.weight"])
        write_half(folder, "per_layer_norm_weight.bin", weights["model.per_layer_projection_norm.weight"])
        positions = torch.arange(context)[None]
        for kind, name in ((SLIDING, "sliding"), (FULL, "full")):
            cos, sin = model.model.rotary_emb(torch.zeros(1, 1), positions, kind)
            numpy.save(folder / f"cos_{name}.npy", cos[0].half().numpy())
            numpy.save(folder / f"sin_{name}.npy", sin[0].half().numpy())
        for name, begin, end in names_and_layers:
            chunk = Chunk(weights, config, context, begin, end)
            package(Layer(chunk), chunk.inputs(), chunk.outputs(), folder / f"{name}.mlpackage")
        write_config(folder, {
            "model_name": "tiny-gemma4", "architecture": "gemma4", "hidden_size": c.hidden_size,
            "num_hidden_layers": c.num_hidden_layers, "num_attention_heads": c.num_attention_heads,
            "num_key_value_heads": N_KV, "head_dim": HEAD_DIM, "global_head_dim": WIDE,
            "vocab_size": c.vocab_size, "context_length": context, "sliding_window": c.sliding_window,
            "per_layer_dim": c.hidden_size_per_layer_input, "num_layers": c.num_hidden_layers,
            "num_kv_shared_layers": c.num_kv_shared_layers, "layer_types": c.layer_types,
            "embed_scale": c.hidden_size ** 0.5, "per_layer_embed_scale": c.hidden_size_per_layer_input ** 0.5,
            "per_layer_model_projection_scale": c.hidden_size ** -0.5, "per_layer_input_scale": 2 ** -0.5,
            "rms_norm_eps": c.rms_norm_eps, "bos_token_id": 2, "eos_token_id": 0,
            "final_logit_softcapping": c.final_logit_softcapping, "quantization": "int4",
            "compute_units": "CPU_AND_NE", "tokenizer_repo": "none",
        })
        (folder / "hf_model/config.json").write_text(config.to_json_string())

    for seed in range(1, 400):
        model = random(seed)
        if case.answers(model, context):
            return (seed, model), build, context
    raise SystemExit("no seed will do")


def write_config(folder, config):
    (folder / "model_config.json").write_text(json.dumps(config, indent=2) + "\n")


def chunks(folder):
    """Four chunks: layers with caches of their own in two, and layers that share them in two."""
    return gemma(folder, [("chunk1", 0, 3), ("chunk2", 3, 5), ("chunk3", 5, 6), ("chunk4", 6, 8)])


def merged(folder):
    """Three chunks: the second is the second and third of four."""
    return gemma(folder, [("chunk1", 0, 3), ("chunk2_3way", 3, 6), ("chunk3_3way", 6, 8)])


def monolithic(folder):
    """Qwen 2 from ids to the best token, with one state that a mask writes."""
    context, tokens = 40, case.vocabulary()
    config = transformers.Qwen2Config(
        vocab_size=len(tokens), hidden_size=48, intermediate_size=53, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=3e-3, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 800.0})
    n_layers, dim = config.num_hidden_layers, config.hidden_size // config.num_attention_heads

    def build(model):
        weights = model.state_dict()
        angles = torch.outer(torch.arange(context).float(), 800.0 ** (-torch.arange(0, dim, 2).float() / dim))
        cos_table, sin_table = (torch.cat([t, t], dim=-1) for t in (angles.cos(), angles.sin()))

        def forward(self, ids, position_ids, causal_mask, update_mask):
            hidden = F.embedding(ids, weights["model.embed_tokens.weight"])
            cos, sin = cos_table[position_ids], sin_table[position_ids]
            for i in range(n_layers):
                prefix = f"model.layers.{i}."
                linear = lambda x, name: F.linear(
                    x, weights[f"{prefix}self_attn.{name}_proj.weight"], weights.get(f"{prefix}self_attn.{name}_proj.bias"))
                x = rms_norm(hidden, weights[prefix + "input_layernorm.weight"], config.rms_norm_eps)
                q = rotate(heads(linear(x, "q"), config.num_attention_heads), cos, sin)
                k = rotate(heads(linear(x, "k"), config.num_key_value_heads), cos, sin)
                v = heads(linear(x, "v"), config.num_key_value_heads)
                for row, new in ((i, k), (n_layers + i, v)):
                    old = self.kv_cache_0[row:row + 1].float()
                    self.kv_cache_0[row:row + 1] = (old * (1 - update_mask) + new * update_mask).half()
                cached = [self.kv_cache_0[row:row + 1].float() for row in (i, n_layers + i)]
                hidden = hidden + linear(attention(q, *cached, causal_mask, dim ** -0.5), "o")
                x = rms_norm(hidden, weights[prefix + "post_attention_layernorm.weight"], config.rms_norm_eps)
                hidden = hidden + gated(x, weights, prefix + "mlp.", F.silu)
            hidden = rms_norm(hidden, weights["model.norm.weight"], config.rms_norm_eps)
            logits = F.linear(hidden, weights["lm_head.weight"]).view(1, -1)
            return logits.argmax(-1).to(torch.int32), logits.max(-1).values

        state = [("kv_cache_0", (2 * n_layers, config.num_key_value_heads, context, dim))]
        inputs = [("input_ids", (1, 1), INT), ("position_ids", (1,), INT), ("causal_mask", (1, 1, 1, context), HALF),
                  ("update_mask", (1, 1, context, 1), HALF)]
        package(Layer(forward, state), inputs, [("token_id", INT), ("token_logit", HALF)], folder / "model.mlpackage")
        write_config(folder, {
            "model_name": "tiny-qwen2", "architecture": "qwen2", "hidden_size": config.hidden_size,
            "num_hidden_layers": n_layers, "num_attention_heads": config.num_attention_heads,
            "num_key_value_heads": config.num_key_value_heads, "head_dim": dim, "vocab_size": config.vocab_size,
            "context_length": context, "rms_norm_eps": config.rms_norm_eps, "bos_token_id": 0, "eos_token_id": 0,
            "quantization": "none", "compute_units": "CPU_AND_NE", "tokenizer_repo": "none",
            "parts": {"model": "model.mlpackage"},
        })

    for seed in range(1, 400):
        model = case.random_weights(transformers.Qwen2ForCausalLM(config), seed, 0)
        case.silence(model.lm_head.weight, tokens)
        if case.answers(model, context):
            return (seed, model), build, context
    raise SystemExit("no seed will do")
