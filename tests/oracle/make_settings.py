"""Makes tests/models/settings.json: what transformers takes a `config.json` for that leaves a key out, or has it twice.

    python3 tests/oracle/make_settings.py

Each row changes the configuration of a checkpoint in tests/models/tiny: it removes keys and sets others. `same` has the
changes that name what transformers took; it is null where transformers refuses the changed configuration. Models of both
configurations, with the same random weights, must have the same logits, or the script ends with an error. `generation` has
what `GenerationConfig.from_model_config` takes of a model with a text part, by the values of a key in that part (`text`) and
outside (`whole`, without which the key is absent there). `mpnet_tokens` says how many tokens MPNet takes, by the rows of its
table.
Needs torch, transformers.
"""

import copy
import json
import sys
import tempfile
from pathlib import Path

from golden import MODELS, need, write_json

need("torch", "transformers")

import torch
import transformers

KV, ORIGINAL = "num_key_value_heads", "original_max_position_embeddings"
FAMILIES = (
    "arcee", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3", "glm4", "granite", "lfm2-plain", "llama-bias", "ministral",
    "ministral3", "mistral", "mixtral", "olmo2", "olmoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_5", "qwen3_moe", "seed_oss",
    "smollm3", "stablelm", "starcoder2",
)
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
# What each class of transformers 4 can write, and no decoder reads.
UNREAD = {
    "add_cross_attention": False, "chunk_size_feed_forward": 3, "finetuning_task": "x", "gradient_checkpointing": True,
    "is_decoder": False, "is_encoder_decoder": False, "prefix": "", "problem_type": "regression", "pruned_heads": {},
    "sep_token_id": 3, "task_specific_params": {"x": 1}, "tf_legacy_loss": True, "tie_encoder_decoder": True,
    "tokenizer_class": "x", "torchscript": True, "use_bfloat16": True,
}
# What published files of Qwen3.5 have, and its class does not read.
UNREAD_BY_QWEN = {
    "mlp_only_layers": [], "output_router_logits": False, "router_aux_loss_coef": 0.5, "output_gate_type": "swish",
    "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "mamba_ssm_dtype": "float32",
}
# What no class reads, with nothing in it.
UNKNOWN = {"made_up_list": [], "made_up_text": ""}
SLIDES = {"use_sliding_window": True, "sliding_window": 8, "num_hidden_layers": 4}


def read(name):
    return json.loads((MODELS / "tiny" / name / "config.json").read_text())


def without(settings, *keys):
    return {key: value for key, value in settings.items() if key not in keys}


def loaded(settings):
    """The configuration, and the logits of a model of it; nothing if transformers refuses either."""
    try:
        # As AutoConfig, which reads this class in one of two ways, has it of a file.
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(settings))
            config = transformers.AutoConfig.from_pretrained(folder)
        parts = settings["model_type"] == "mistral3"
        auto = transformers.AutoModelForImageTextToText if parts else transformers.AutoModelForCausalLM
        model = auto.from_config(config, **EAGER).float().eval()
        torch.manual_seed(1)
        # The text part first: its numbers are those of the model that is the text part alone.
        parameters = sorted(model.named_parameters(), key=lambda named: "vision" in named[0] or "projector" in named[0])
        for _, parameter in parameters:
            parameter.data = 0.4 * torch.randn_like(parameter)
        with torch.no_grad():
            # Longer than windows and contexts of training.
            logits = model(torch.arange(1, 41)[None], use_cache=False).logits
        return model.config.get_text_config(), logits
    except Exception as error:
        print(f"refused: {error!r:.200}")
        return None


def row(name, change, remove=(), took=None, taken_from=()):
    """A row; `took` gives the settings that say what transformers took, beside removing the keys `taken_from`."""
    changed = without(read(name), *remove) | change
    found = loaded(changed)
    if found is None:
        return {"checkpoint": name, "set": change, "remove": list(remove), "same": None}
    settings = took(found[0]) if took else {}
    remove_too = [*remove, *taken_from]
    same = {"set": without(change, *taken_from) | settings, "remove": [key for key in remove_too if key not in settings]}
    explicit = loaded(without(read(name), *same["remove"]) | same["set"])
    if explicit is None or not torch.equal(explicit[1], found[1]):
        sys.exit(f"{name} {change}: {same} has other logits")
    return {"checkpoint": name, "set": change, "remove": list(remove), "same": same}


def kv_heads(name):
    """The key is absent, in a model with twice as many heads as the default of its class, or null."""
    kind = type(transformers.AutoConfig.for_model(read(name)["model_type"]))
    default = getattr(kind, KV, None)
    sizes = {"num_attention_heads": 2 * default, "hidden_size": 4 * default} if default else {}
    took = lambda config: {KV: getattr(config, KV)}
    return [row(name, sizes, [KV], took), row(name, {KV: None}, [], took)]


def original_context(name, key):
    """The context length of training in neither place, in both, in either, with other values."""
    rope, took = read(name)[key], lambda config: {
        ORIGINAL: config.rope_parameters[ORIGINAL], key: without(read(name)[key], ORIGINAL),
    }
    both = {ORIGINAL: 32, key: rope | {ORIGINAL: 16}}
    return [row(name, {key: without(rope, ORIGINAL)}, [ORIGINAL], took),
            row(name, both, [], took), row(name, without(both, ORIGINAL), [ORIGINAL], took),
            row(name, both | {key: without(rope, ORIGINAL)}, [], took)]


def in_two_places(name, key):
    """The context length of training outside the parameters, which Ministral 3 also scales queries by, beside that inside or alone."""
    rope = read(name)[key]
    took = lambda config: {key: rope | {ORIGINAL: config.rope_parameters[ORIGINAL]}}
    for change, remove in (({ORIGINAL: 7}, []), ({ORIGINAL: 7, key: without(rope, ORIGINAL)}, []), ({key: without(rope, ORIGINAL)}, [])):
        yield row(name, change, remove, took, [ORIGINAL])


def yarn_by_layer_type(name):
    """YaRN in a class with an embedding for each layer type, which reads neither key where this file has it."""
    yarn = {"rope_type": "yarn", "factor": 3.0, "beta_fast": 4.0, ORIGINAL: 32}
    kinds, old = ("full_attention", "sliding_attention"), ["rope_scaling", "rope_theta", "rope_local_base_freq"]
    plain = {kind: yarn | {"rope_theta": 700.0 + index} for index, kind in enumerate(kinds)}
    unset = {kind: without(rope, ORIGINAL) for kind, rope in plain.items()}
    most = {kind: rope | {ORIGINAL: read(name)["max_position_embeddings"]} for kind, rope in plain.items()}
    for truncate in ({"truncate": False}, {"truncate": None}, {}):
        nested = {kind: rope | truncate for kind, rope in plain.items()}
        yield row(name, {"rope_parameters": nested, ORIGINAL: 60}, old, lambda config: {"rope_parameters": plain}, [ORIGINAL])
    # Gemma 4 refuses YaRN without the key.
    if name != "gemma4":
        yield row(name, {"rope_parameters": unset, ORIGINAL: 60}, old, lambda config: {"rope_parameters": most}, [ORIGINAL])


def old_yarn_by_layer_type(name):
    """The same in the old spelling."""
    yarn = {"rope_type": "yarn", "factor": 3.0, "beta_fast": 4.0, ORIGINAL: 32}
    change = {"rope_scaling": yarn | {"truncate": False}, "rope_theta": 700.0, ORIGINAL: 60}
    took = lambda config: {"rope_parameters": {
        kind: without(rope, "truncate") for kind, rope in config.rope_parameters.items()}}
    return row(name, change, ["rope_parameters"], took, [*change, "rope_local_base_freq"])


def share_by_layer_type(name):
    """A share of rotated elements, which the class ignores without a scaling, and fails on with another than `proportional`."""
    ropes = read(name)["rope_parameters"]
    for kind in ropes:
        plain = {"rope_type": "default", "rope_theta": 900.0}
        took = lambda config: {"rope_parameters": ropes | {kind: plain}}
        yield row(name, {"rope_parameters": ropes | {kind: plain | {"partial_rotary_factor": 0.5}}}, [], took)
        scaled = {"rope_type": "linear", "rope_theta": 900.0, "factor": 2.0, "partial_rotary_factor": 0.5}
        yield row(name, {"rope_parameters": ropes | {kind: scaled}})


def as_text_part(name, more={}, unused=()):
    """The checkpoint, with more keys of which some are not used, as the text part of a model that sees images."""
    text = read(name) | more
    vision = dict(
        model_type="pixtral", hidden_size=12, intermediate_size=10, num_hidden_layers=1, num_attention_heads=1, head_dim=12,
        image_size=8, patch_size=4)
    # A part without a type is Mistral.
    part = without(text, "model_type") if name == "mistral" else text
    change = {"model_type": "mistral3", "text_config": part, "vision_config": vision, "tie_word_embeddings": False}
    used = without(text, *unused)
    return row(name, change, [key for key in text if key not in change], lambda _: used, ["text_config", "vision_config"])


def rows():
    for name in FAMILIES:
        yield from kv_heads(name)
    layer_types = lambda config: {"layer_types": config.layer_types}
    for name in ("qwen2", "qwen2_moe", "qwen3"):
        for first in (0, 1, 3):
            yield row(name, SLIDES | {"max_window_layers": first}, ["layer_types"], layer_types)
        yield row(name, SLIDES, ["layer_types", "max_window_layers"], layer_types)
    for name, key in (("phi3-long", "rope_scaling"), ("qwen2-yarn", "rope_scaling"), ("llama-rope3", "rope_scaling")):
        yield from original_context(name, key)
    # What is not used.
    dynamic = read("qwen2-dynamic")["rope_parameters"]
    for key, change in (
        ("rope_parameters", {"rope_parameters": dynamic | {ORIGINAL: 16}}), (ORIGINAL, {ORIGINAL: 16}),
    ):
        unused = lambda config: {"rope_parameters": dynamic}
        yield row("qwen2-dynamic", change | {"max_position_embeddings": 24}, [], unused, [ORIGINAL])
    for name in ("mistral", "ministral", "ministral3"):
        yield as_text_part(name)
    yield from in_two_places("ministral3", "rope_parameters")
    yield as_text_part("ministral3", {ORIGINAL: 7})
    for name in ("gemma3", "gemma4", "olmo3"):
        yield from yarn_by_layer_type(name)
    yield from share_by_layer_type("gemma4")
    for name in ("gemma3", "olmo3-old"):
        yield old_yarn_by_layer_type(name)
    for name, key in (("arcee", "rope_parameters"), ("qwen2-yarn", "rope_scaling"), ("ministral3", "rope_parameters")):
        rope = read(name)[key]
        yield row(name, {key: rope | {"truncate": None}}, [], lambda config: {key: rope | {"truncate": False}})
    dynamic_by_alpha = read("hunyuan")["rope_parameters"] | {"alpha": 5.0}
    change = {"rope_scaling": without(dynamic_by_alpha, "rope_theta"), "rope_theta": dynamic_by_alpha["rope_theta"]}
    yield row("hunyuan", change, ["rope_parameters"], lambda config: {"rope_parameters": dynamic_by_alpha}, list(change))
    for name in ("llama-bias", "gpt2"):
        yield row(name, UNREAD, [], None, list(UNREAD))
    yield row("qwen3_5", UNREAD_BY_QWEN, [], None, list(UNREAD_BY_QWEN))
    for name in ("qwen3_5", "gemma3", "llama-bias", "gpt2"):
        yield row(name, UNKNOWN, [], None, list(UNKNOWN))
    for pattern in ({"_sliding_window_pattern": 2}, {"sliding_window_pattern": 2}, {}):
        yield row("gemma3", {"_sliding_window_pattern": 3} | pattern, ["layer_types"], layer_types,
                  ["_sliding_window_pattern", "sliding_window_pattern"])
    yield row("ministral3", {"layer_types": ["full_attention", "sliding_attention"]}, [], None, ["layer_types"])
    for kinds in (["full_attention", "sliding_attention"], ["full_attention"] * 2, None):
        change = {"layer_types": kinds, "sliding_window": 6}
        yield row("mistral", change, [], lambda config: {"model_type": "ministral", "layer_types": config.layer_types})
    # The text part of a model that sees images is of the class that it names.
    yield as_text_part("mistral", {"layer_types": ["full_attention", "sliding_attention"]}, ["layer_types"])
    yield row("gemma3", {"hidden_act": "relu"}, ["hidden_activation"], None, ["hidden_act"])
    yield row("gemma3", {"hidden_act": "relu"}, [], None, ["hidden_act"])
    used = lambda rope: without(rope, "type", "factor") if rope["rope_type"] == "default" else rope
    ropes = lambda config: {"rope_parameters": {kind: used(rope) for kind, rope in config.rope_parameters.items()}}
    for name in ("gemma3", "olmo3-old"):
        # The old name of `rope_type`, which these classes do not read.
        for scaling in ({"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2.0}):
            change = {"rope_scaling": scaling, "rope_theta": 700.0}
            yield row(name, change, ["rope_parameters"], ropes, ["rope_scaling", "rope_theta", "rope_local_base_freq"])
    full, sliding = ({"rope_type": "linear", "factor": factor, "rope_theta": 50.0} for factor in (2.0, 3.0))
    for change in (
        {"rope_parameters": {"sliding_attention": sliding}, "rope_theta": 700.0},
        {"rope_parameters": {"full_attention": None, "sliding_attention": sliding}, "rope_theta": 700.0},
        {"rope_parameters": {"full_attention": full}, "rope_local_base_freq": 70.0},
    ):
        # What is said outside of a layer type that is not described.
        yield row("gemma3", change, [], ropes, ["rope_theta", "rope_local_base_freq"])
    for theta in ({}, {"rope_theta": 700.0}):
        rope = lambda config: {"rope_parameters": config.rope_parameters}
        change = {"rope_scaling": {"rope_type": "default", "rope_theta": 700.0}, "rope_parameters": {"rope_type": "default"} | theta}
        yield row("llama-bias", change, [], rope, ["rope_scaling", "rope_theta"])
    # The base is that of the whole file, or of the class.
    for name, more in (("llama-bias", {"rope_theta": 700.0}), ("llama-bias", {"rope_theta": 10_000.0}), ("llama-bias", {}),
                       ("mixtral", {}), ("cohere", {})):
        theta = more.get("rope_theta") or transformers.AutoConfig.for_model(read(name)["model_type"]).default_theta
        rope = lambda config: {"rope_parameters": config.rope_parameters}
        change = {"rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_type": "default", "rope_theta": theta}}
        yield row(name, change | more, [] if more else ["rope_theta"], rope, ["rope_scaling", "rope_theta"])
    yield row("lfm2", {"rms_norm_eps": 0.5}, [], None, ["rms_norm_eps"])


def generation():
    """What the generation of a model takes of its configuration, whose text part may say what the whole does not."""
    found = []
    for name in ("gemma3-image", "qwen3_5-image"):
        for key, whole, text in (
            ("eos_token_id", {}, [5, 6]), ("eos_token_id", None, 5), ("eos_token_id", 3, 5), ("eos_token_id", [3, 4], None),
            ("repetition_penalty", {}, 1.5), ("repetition_penalty", 1.25, 1.5), ("suppress_tokens", None, [7, 8]),
            ("max_length", {}, 30), ("max_length", 40, 30), ("do_sample", False, True),
        ):
            settings = without(read(name), key) | ({} if whole == {} else {key: whole})
            settings["text_config"] = settings["text_config"] | {key: text}
            # `generate` gives it the file as it is, without the defaults of the class.
            took = getattr(transformers.GenerationConfig.from_model_config(copy.deepcopy(settings)), key)
            found.append({"checkpoint": name, "key": key, "text": text, "value": took} | ({} if whole == {} else {"whole": whole}))
    return found


def mpnet_tokens():
    """The most tokens that MPNet takes, by the rows of its table of biases. Up to there, the rows that are left do not count."""
    sizes = dict(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    whole = transformers.MPNetModel(transformers.MPNetConfig(**sizes)).eval()
    found = {}
    for rows in range(18, 32):
        part = transformers.MPNetModel(transformers.MPNetConfig(**sizes, relative_attention_num_buckets=rows)).eval()
        weights = whole.state_dict()
        weights["encoder.relative_attention_bias.weight"] = weights["encoder.relative_attention_bias.weight"][:rows]
        part.load_state_dict(weights)
        for n in range(1, 513):
            ids = torch.arange(n)[None] % 7 + 2
            try:
                with torch.no_grad():
                    answer = part(ids).last_hidden_state
                    assert torch.equal(answer, whole(ids).last_hidden_state)
            except IndexError:
                break
            found[str(rows)] = n
    return found


def main():
    table = list(rows())
    write_json(MODELS / "settings.json", {
        "made_by": "tests/oracle/make_settings.py", "transformers": transformers.__version__, "rows": table, "generation": generation(),
        "mpnet_tokens": mpnet_tokens(),
    })
    print(f"{len(table)} rows, {sum(row['same'] is None for row in table)} refused")


if __name__ == "__main__":
    main()
