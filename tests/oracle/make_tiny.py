"""Makes the tiny random checkpoints of tests/models/tiny/<name> and their goldens.

    python3 tests/oracle/make_tiny.py [NAME ...]

Each folder holds config.json, safetensors and golden.{json,bin}: the float32 logits at every position of three token
sequences, computed by transformers (eager attention, float32, weights upcast from the stored dtype). No size divides
another more than the class demands, and every weight, norm, scale and bias is random. Before a golden is written:
- the folder, config.json respelled, is loaded again and must give the very same logits;
- each setting in `Case.mutations` is changed alone and must move the logits by `BITES` at least, and so must a 5 %
  change of each single tensor: a reader that ignores one of them cannot pass.
The golden also has a prompt and the 64 greedy tokens that follow it, none of which is a close choice.
Needs torch, transformers, safetensors, numpy. CPU only; all seeds are literals.
"""

import copy
import json
import shutil
import sys

from golden import MODELS, Floats, make_named, need, write_json

need("torch", "transformers", "safetensors", "numpy")

import numpy
import torch
import transformers
from transformers import (
    AutoModelForCausalLM, AutoModelForImageTextToText, Gemma3Config, Gemma3TextConfig, LlamaConfig, Qwen3Config, SiglipVisionConfig,
)

import tiny_families
from tiny_families import Case

SEQUENCE_LENS = (7, 33, 61)
# The plain loops of transformers: its kernels for experts take sizes of 16 bytes only.
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
# Smallest relative change of the logits that counts as "this setting matters": 30x the 1e-4 of the tightest promise.
BITES = 3e-3
# Smallest difference between the scores of an expert that a token uses and of one that it does not use.
LEAST_GAP = 1e-2
# Greedy tokens after a prompt, and how far the best logit must lead the next one, as a share of the norm of all.
N_GREEDY, LEAST_LEAD = 64, 1e-4


def keep(config):
    """The new spelling, as transformers 5 writes it."""
    return config


def old_llama(config):
    """transformers 4: `rope_theta` beside `rope_scaling`, `torch_dtype`."""
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    config["torch_dtype"] = config.pop("dtype")
    config.pop("transformers_version")
    return config


def oldest_llama(config):
    """Before 4.43 the scaling's kind was called `type`."""
    config = old_llama(config)
    config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")
    return config


def bare_llama(config):
    """The first Llama configs: no head_dim, no bias switches, no scaling key."""
    config = old_llama(config)
    for key in ("head_dim", "attention_bias", "mlp_bias", "rope_scaling", "attention_dropout", "pretraining_tp"):
        config.pop(key, None)
    return config


def old_gemma(config):
    """transformers 4.50: two thetas by name, scaling meant for the full layers, the pattern as a number. No word on the
    head: Gemma's is tied unless a config says otherwise."""
    rope = config.pop("rope_parameters")
    full = dict(rope["full_attention"])
    config["rope_theta"] = full.pop("rope_theta")
    config["rope_scaling"] = full if full["rope_type"] != "default" else None
    config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    config["sliding_window_pattern"] = config.pop("layer_types").index("full_attention") + 1
    config["torch_dtype"] = config.pop("dtype")
    config.pop("transformers_version")
    config.pop("_sliding_window_pattern", None)
    config.pop("tie_word_embeddings")
    return config


def middle_gemma(config):
    """transformers 4.54, as the 270M is published: the layer list and the pattern too, under a private name."""
    layer_types = config["layer_types"]
    config = old_gemma(config)
    config["_sliding_window_pattern"] = config.pop("sliding_window_pattern")
    config["layer_types"] = layer_types
    return config


def contradicting_head(config):
    """A config that ties the head although the file has another one: transformers then uses the file's."""
    config["tie_word_embeddings"] = True
    return config


def published_image_gemma(config):
    """As the multimodal sizes are published: sizes of the text part that are the class's defaults are left out."""
    text = config["text_config"]
    for key in ("num_attention_heads", "num_key_value_heads"):
        del text[key]
    return config


def llama(**overrides):
    settings = dict(
        vocab_size=149, hidden_size=54, intermediate_size=61, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=10, max_position_embeddings=512, rms_norm_eps=3e-3, bos_token_id=1,
        eos_token_id=2, rope_parameters={"rope_type": "default", "rope_theta": 700.0},
    )
    return LlamaConfig(**(settings | overrides))


def gemma(**overrides):
    settings = dict(
        vocab_size=149, hidden_size=44, intermediate_size=31, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=1, head_dim=14, max_position_embeddings=512, rms_norm_eps=1e-2, sliding_window=8,
        query_pre_attn_scalar=23,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
        },
    )
    return Gemma3TextConfig(**(settings | overrides))


def image_gemma(**overrides):
    """Gemma 3 with eyes: the text model is a part of it, and its answers to text alone do not depend on the others."""
    text = gemma(num_attention_heads=8, num_key_value_heads=4, hidden_size=40, head_dim=12, **overrides)
    vision = SiglipVisionConfig(
        hidden_size=6, intermediate_size=10, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14,
    )
    return Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=1, image_token_index=148, boi_token_index=147,
        eoi_token_index=146,
    )


def qwen(**overrides):
    settings = dict(
        vocab_size=149, hidden_size=46, intermediate_size=59, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=12, max_position_embeddings=512, rms_norm_eps=3e-3, bos_token_id=1,
        eos_token_id=2, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 900.0},
    )
    return Qwen3Config(**(settings | overrides))


LLAMA3 = {
    # Wavelengths of the five pairs: 6, 22, 75, 262, 907 positions; bounds 64/4 and 64/1 put them on all three branches.
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 300.0, "factor": 4.0}


def rope_of(**changes):
    """A mutation of a Llama config's rope parameters."""
    return {"rope_parameters": lambda config: config.rope_parameters | changes}


def rope_of_layers(kind, **changes):
    """A mutation of the rope parameters of one kind of Gemma layer."""
    return {"rope_parameters": lambda config: config.rope_parameters | {kind: config.rope_parameters[kind] | changes}}


LLAMA_MUTATIONS = {"rms_norm_eps": {"rms_norm_eps": 1e-6}, "theta": rope_of(rope_theta=900.0)}
GEMMA_MUTATIONS = {
    "rms_norm_eps": {"rms_norm_eps": 1e-6},
    "window longer": {"sliding_window": 9},
    "window shorter": {"sliding_window": 7},
    "layer order": {"layer_types": lambda config: config.layer_types[1:] + config.layer_types[:1]},
    "scale by head_dim": {"query_pre_attn_scalar": lambda config: config.head_dim},
    "activation": {"hidden_activation": "gelu"},
    "local theta": rope_of_layers("sliding_attention", rope_theta=5000.0),
    "global theta": rope_of_layers("full_attention", rope_theta=300.0),
}
# erf-gelu differs from tanh-gelu by at most 5e-4 in the value: it moves the logits by 2.6e-4 to 4e-4 here.
WEAK_MUTATIONS = {"activation": 2e-4}


def cases():
    untied = dict(hidden_size=48, intermediate_size=57, tie_word_embeddings=False)
    scaled = LLAMA_MUTATIONS | {
        "no scaling": rope_of(rope_type="default"),
        "factor": rope_of(factor=4.0),
        "low_freq_factor": rope_of(low_freq_factor=2.0),
        "high_freq_factor": rope_of(high_freq_factor=2.0),
        "original length": rope_of(original_max_position_embeddings=32),
    }
    linear = LLAMA_MUTATIONS | {"no scaling": rope_of(rope_type="default"), "factor": rope_of(factor=2.0)}
    gemma_linear = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 900.0, "factor": 8.0},
    }
    gemma_linear_mutations = GEMMA_MUTATIONS | {
        "no scaling": rope_of_layers("full_attention", rope_type="default"),
        "scaling everywhere": rope_of_layers("sliding_attention", rope_type="linear", factor=8.0),
    }
    gemma_real_rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
    }
    alternating = ["sliding_attention", "full_attention"] * 2
    gemma_bf16_mutations = GEMMA_MUTATIONS | {
        "window longer": {"sliding_window": 6}, "window shorter": {"sliding_window": 4},
    }
    return {
        "llama-bias": Case(
            101, llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=True), keep, mutations=LLAMA_MUTATIONS),
        "llama-rope3": Case(102, llama(**untied, rope_parameters=LLAMA3), old_llama, mutations=scaled),
        "llama-linear": Case(
            103, llama(tie_word_embeddings=True, rope_parameters=LINEAR), oldest_llama, max_shard_size="80KB",
            mutations=linear),
        "llama-bf16": Case(
            104, llama(num_hidden_layers=3, num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True,
                       rope_parameters=LLAMA3), keep, torch.bfloat16, mutations=scaled),
        "llama-f16": Case(
            105, llama(num_hidden_layers=3, hidden_size=50, num_attention_heads=5, num_key_value_heads=5, head_dim=None,
                       tie_word_embeddings=False), bare_llama, torch.float16, mutations=LLAMA_MUTATIONS),
        "llama-head": Case(
            107, llama(hidden_size=42, intermediate_size=47, tie_word_embeddings=False), contradicting_head,
            mutations=LLAMA_MUTATIONS),
        "qwen3": Case(106, qwen(), keep, mutations=LLAMA_MUTATIONS | {"theta": rope_of(rope_theta=1300.0)}),
        "gemma3": Case(201, gemma(), keep, mutations=GEMMA_MUTATIONS),
        "gemma3-linear": Case(
            202, gemma(hidden_size=42, intermediate_size=29, num_attention_heads=6, num_key_value_heads=2, head_dim=10,
                       rope_parameters=gemma_linear), old_gemma, mutations=gemma_linear_mutations),
        "gemma3-bf16": Case(
            203, gemma(hidden_size=60, num_attention_heads=5, head_dim=18, sliding_window=5, layer_types=alternating,
                       rope_parameters=gemma_real_rope), middle_gemma, torch.bfloat16, mutations=gemma_bf16_mutations),
        "gemma3-image": Case(204, image_gemma(), published_image_gemma, torch.bfloat16, mutations=GEMMA_MUTATIONS),
    } | tiny_families.cases()


def sees_text(name):
    """Whether a tensor has a part in answers to text alone."""
    return not any(part in name for part in ("vision_tower", "multi_modal_projector", "visual"))


def randomise(model, seed, dtype):
    """Fills every parameter, then rounds it to the stored dtype; projections are wide enough for sharp attention."""
    # RandomState: its stream is frozen by numpy's compatibility promise, unlike torch's.
    random = numpy.random.RandomState(seed)
    kind = model.config.get_text_config().model_type
    gemma = kind in ("gemma", "gemma2", "gemma3_text")
    plus_one = gemma or kind == "qwen3_5_text"
    columns = {id(module.weight) for module in model.modules() if type(module).__name__ == "Conv1D"}
    for name, parameter in model.named_parameters():
        draw = random.standard_normal(tuple(parameter.shape))
        if name.endswith(("bias", "A_log")):
            draw = 0.5 * draw
        elif draw.ndim == 1 or "norm" in name:
            is_minus_one = plus_one and not name.endswith("linear_attn.norm.weight")
            draw = 0.4 * draw if is_minus_one else 1.0 + 0.4 * draw
        elif "embed_tokens" in name or ".wte" in name or ".wpe" in name:
            # Gemma multiplies by sqrt(hidden_size): keep the residual from drowning the layers.
            draw = 0.15 * draw if gemma else 0.5 * draw
        else:
            transposed = id(parameter) in columns
            draw = 1.6 * draw / numpy.sqrt(inputs(parameter, transposed, "experts" in name))
        parameter.data = torch.tensor(draw, dtype=torch.float32).to(dtype).float()
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            draw = 1.0 + 0.4 * random.standard_normal(tuple(buffer.shape))
            buffer.data = torch.tensor(draw, dtype=torch.float32).to(dtype).float()


def inputs(parameter, transposed, stacked):
    """Numbers that a sum runs over."""
    shape = parameter.shape[stacked:]
    return shape[0] if transposed else numpy.prod(shape[1:])


def vocabulary(config):
    """Ids that stand for text; those of images, at the end, stand for none."""
    for key in ("eoi_token_index", "vision_end_token_id"):
        if hasattr(config, key):
            return getattr(config, key)
    return config.get_text_config().vocab_size


def run(model, sequences):
    with torch.no_grad():
        return [model(torch.tensor([ids])).logits[0] for ids in sequences]


def distance(ours, theirs):
    """Relative error over all sequences together."""
    ours, theirs = torch.cat(ours), torch.cat(theirs)
    return float((ours - theirs).norm() / theirs.norm())


def check_settings(case, model, sequences, logits):
    """Every mutated setting must move the logits; answers the smallest move."""
    weakest = float("inf")
    for label, change in case.mutations.items():
        text = case.config.get_text_config()
        changed = text.to_dict()
        for key, value in change.items():
            changed[key] = value(text) if callable(value) else value
        config = type(text)(**changed)
        if text is not case.config:
            config, config.text_config = copy.deepcopy(case.config), config
        other = type(model)(config).eval()
        other.set_attn_implementation("eager")
        other.set_experts_implementation("eager")
        other.load_state_dict(model.state_dict())
        moved = distance(run(other, sequences), logits)
        if moved < case.weak.get(label, WEAK_MUTATIONS.get(label, BITES)):
            sys.exit(f"setting '{label}' moves the logits by {moved:.1e} only")
        weakest = min(weakest, moved)
    return weakest


def check_tensors(model, sequences, logits, idle):
    """A 5 % change of any one tensor must move the logits; answers the smallest move."""
    weakest = float("inf")
    for name, parameter in model.named_parameters():
        if not sees_text(name) or name.endswith(idle):
            continue
        saved = parameter.data
        # Not a plain factor: a norm after q_proj would hide it.
        ramp = torch.linspace(0.95, 1.05, saved.shape[0]).reshape(-1, *[1] * (saved.dim() - 1))
        parameter.data = saved * ramp
        moved = distance(run(model, sequences), logits)
        parameter.data = saved
        if moved < BITES / 10:
            sys.exit(f"tensor '{name}' moves the logits by {moved:.1e} only")
        weakest = min(weakest, moved)
    return weakest


def check_choices(model, sequences):
    """No score of an expert that a token uses may be close to one of an expert that the token does not use: a rounding of
    the cache would change the choice."""
    scores, n_used = [], getattr(model.config.get_text_config(), "num_experts_per_tok", None)
    routers = [module for module in model.modules() if type(module).__name__.endswith("Router")]
    hooks = [router.register_forward_hook(lambda _, __, output: scores.append(output[0])) for router in routers]
    run(model, sequences)
    for hook in hooks:
        hook.remove()
    for layer in scores:
        ordered = layer.sort(dim=-1, descending=True).values
        gap = float((ordered[:, n_used - 1] - ordered[:, n_used]).min())
        if gap < LEAST_GAP:
            sys.exit(f"scores of experts are {gap:.1e} apart")


def greedy_of(model, sequences):
    """A prompt, and the greedy tokens after it. The prompt is one that rounding cannot lead to other tokens."""
    longest, n = sequences[-1], len(sequences[0])
    for start in range(len(longest) - n + 1):
        prompt = longest[start: start + n]
        tokens = greedy_tokens(model, prompt)
        if tokens:
            return {"prompt": prompt, "tokens": tokens}
    sys.exit("each prompt leads to a close choice between two tokens")


def greedy_tokens(model, prompt):
    """The greedy tokens after a prompt, each from all tokens before it; none if a choice is close."""
    # With more tokens, LongRoPE has other frequencies, which a cache of the first ones does not have.
    first = getattr(model.config.get_text_config(), "original_max_position_embeddings", None) or 0
    n_tokens = min(N_GREEDY, first - len(prompt)) if len(prompt) <= first else N_GREEDY
    ids = list(prompt)
    for _ in range(n_tokens):
        logits = run(model, [ids])[0][-1]
        best, second = logits.topk(2).values
        if best - second < LEAST_LEAD * logits.norm():
            return []
        ids.append(int(logits.argmax()))
    return ids[len(prompt):]


def save(case, model, folder):
    shutil.rmtree(folder, ignore_errors=True)
    model.config.dtype = case.dtype
    # On a copy: `to` would round the rope frequencies of the model that computes the golden.
    stored = type(model)(case.config).to(case.dtype)
    stored.load_state_dict(model.state_dict())
    stored.save_pretrained(folder, max_shard_size=case.max_shard_size)
    (folder / "generation_config.json").unlink(missing_ok=True)
    for path in folder.glob("*.safetensors"):
        path.chmod(0o644)  # safetensors leaves its files readable by their owner only
    config = case.respell(json.loads((folder / "config.json").read_text()))
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def make(name, case):
    folder = MODELS / "tiny" / name
    # For this one, that class is the text part alone.
    auto = AutoModelForImageTextToText if case.config.model_type == "qwen3_5" else AutoModelForCausalLM
    model = auto.from_config(case.config, **EAGER).float().eval()
    randomise(model, case.seed, case.dtype)
    random = numpy.random.RandomState(case.seed + 1000)
    sequences = [random.randint(0, vocabulary(case.config), length).tolist() for length in case.lengths or SEQUENCE_LENS]
    logits = run(model, sequences)

    save(case, model, folder)
    reread = auto.from_pretrained(folder, dtype=torch.float32, **EAGER).eval()
    if any(not torch.equal(ours, theirs) for ours, theirs in zip(run(reread, sequences), logits)):
        sys.exit(f"{name}: the folder does not give the logits of the model it was saved from")
    check_choices(model, sequences)
    setting = check_settings(case, model, sequences, logits)
    tensor = check_tensors(model, sequences, logits, case.idle)

    floats = Floats()
    golden = {
        "made_by": "tests/oracle/make_tiny.py", "transformers": transformers.__version__, "torch": torch.__version__,
        "seed": case.seed, "stored_dtype": str(case.dtype).removeprefix("torch."),
        "sequences": [{"ids": ids, "logits": floats.add(rows.numpy())} for ids, rows in zip(sequences, logits)],
        "greedy": greedy_of(model, sequences),
    }
    floats.write(folder / "golden.bin")
    write_json(folder / "golden.json", golden)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    print(f"{name}: {size} bytes of weights, weakest setting {setting:.1e}, weakest tensor {tensor:.1e}")


def main():
    torch.set_num_threads(1)
    make_named(cases(), make)


if __name__ == "__main__":
    main()
