"""How llama.cpp's converter writes each family, for make_tiny_gguf.py.

Facts about the files: the metadata keys and tensor names of the gguf package, and what llama.cpp's converter writes
and its loader asks for (b11434). A family is a `Form`; what is not said in it is as in Llama.
"""

import math
from dataclasses import dataclass, field

import gguf
import numpy

BEFORE = {"post_attention_layernorm": "ffn_norm"}
AROUND = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@dataclass
class Form:
    """How one family is stored."""

    architecture: str
    # Names of tensors in addition to the common ones.
    names: dict = field(default_factory=lambda: BEFORE)
    # Whether the rows of query and key are permuted, so that rotary pairs lie side by side.
    permuted: bool = False
    # Whether the factors of norms are stored with the 1 added.
    plus_one: bool = False
    # The type of norms, which is part of the key of their epsilon.
    layer_norm: bool = False
    # Whether the keys tell the size of the heads; otherwise it is hidden size / heads.
    head_size: bool = False
    vocab_size: bool = False
    # Whether the number of rotated elements is written.
    rotated: bool = False
    # Adds what only this family has: (writer, config, tensors) -> tensors.
    more: object = None


def gemma2(writer, config, tensors):
    """The file does not have `query_pre_attn_scalar`: the loader takes the width of a head (hidden / heads for 27B), so
    what is missing goes into the query's rows. That each second layer slides is not in the file either."""
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)
    width = config.hidden_size // config.num_attention_heads if config.num_hidden_layers == 46 else config.head_dim
    factor = numpy.float32(math.sqrt(width / config.query_pre_attn_scalar))
    return {name: array * factor if "q_proj" in name else array for name, array in tensors.items()}


def phi3(writer, config, tensors):
    """The window is 0 if there is none; the length before extension is written in any case."""
    rope = config.rope_parameters
    original = config.original_max_position_embeddings
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_sliding_window(config.sliding_window or 0)
    if rope["rope_type"] != "longrope":
        return tensors
    scale = config.max_position_embeddings / original
    writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
    factors = {
        f"rope_factors_{kind}.weight": numpy.array(rope[f"{kind}_factor"], numpy.float32) for kind in ("long", "short")
    }
    return factors | tensors


def window(writer, config, tensors):
    """A window, and for each layer whether it slides."""
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    return tensors


def granite(writer, config, tensors):
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)
    return tensors


def hunyuan(writer, config, tensors):
    """The base is raised by alpha as dynamic NTK does, and the file says that nothing else is scaled."""
    rope, dim = config.rope_parameters, config.head_dim
    writer.add_rope_freq_base(rope["rope_theta"] * rope["alpha"] ** (dim / (dim - 2)))
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    writer.add_rope_scaling_factor(1)
    writer.add_rope_scaling_orig_ctx_len(256 * 1024)
    return tensors


def stablelm(writer, config, tensors):
    """The norms of all heads of a layer are one tensor."""
    writer.add_parallel_residual(config.use_parallel_residual)
    return stacked(tensors, ".norms.")


def cohere(writer, config, tensors):
    writer.add_logit_scale(config.logit_scale)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    return tensors


def cohere2(writer, config, tensors):
    """That each fourth layer has full attention is not in the file."""
    writer.add_sliding_window(config.sliding_window)
    return cohere(writer, config, tensors)


def ministral3(writer, config, tensors):
    rope = config.rope_parameters
    writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    return tensors


def gpt2(writer, config, tensors):
    """Matrices are turned to [outputs, inputs]."""
    inner = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    return {name: array.T if name.endswith(inner) else array for name, array in tensors.items()}


def lfm2(writer, config, tensors):
    """Layers of convolutions have no key heads; the taps are a matrix."""
    writer.add_shortconv_l_cache(config.conv_L_cache)
    return {name: array.squeeze(1) if name.endswith("conv.conv.weight") else array for name, array in tensors.items()}


def gemma4(writer, config, tensors):
    """Keys without `_swa` are of layers with full attention. A pair that these do not rotate has a huge divisor."""
    config.allow_global_per_layer_attribute_access = True
    wide = tensors[f"model.layers.{config.layer_types.index('full_attention')}.self_attn.q_norm.weight"].size
    for size, add in (
        (wide, (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count)),
        (config.head_dim, (writer.add_key_length_swa, writer.add_value_length_swa, writer.add_rope_dimension_count_swa)),
    ):
        for key in add:
            key(size)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    # A cap of 0 means that there is none: without the key, llama.cpp takes 30.
    writer.add_final_logit_softcapping(config.final_logit_softcapping or 0.0)
    n_rotated = int(wide * config.rope_parameters["full_attention"]["partial_rotary_factor"] / 2)
    divisors = [1.0] * n_rotated + [1e30] * (wide // 2 - n_rotated)
    return {"rope_freqs.weight": numpy.array(divisors, numpy.float32)} | window(writer, config, tensors)


def gemma4_sizes(config, tensors):
    """Key heads and the size of the feed-forward layer, one for all layers or one for each."""
    heads, inner = [], []
    for i, kind in enumerate(config.layer_types):
        at = f"model.layers.{i}."
        keys = tensors.get(f"{at}self_attn.k_proj.weight")
        same = keys is None or config.num_kv_shared_layers or kind == "sliding_attention"
        heads.append(config.num_key_value_heads if same else keys.shape[0] // tensors[f"{at}self_attn.q_norm.weight"].size)
        inner.append(tensors[f"{at}mlp.down_proj.weight"].shape[1])
    return [sizes if len(set(sizes)) > 1 else sizes[0] for sizes in (heads, inner)]


def qwen3_5(writer, config, tensors):
    """The 1 is added to the factors of norms, except those of delta nets. Of the value heads of a key head, the first
    ones of all key heads are stored first, then the second ones. The decay is stored as it is multiplied."""
    n_keys, n_values = config.linear_num_key_heads, config.linear_num_value_heads
    size = config.linear_value_head_dim
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(n_keys)
    writer.add_ssm_time_step_rank(n_values)
    writer.add_ssm_inner_size(size * n_values)
    recurrent = [kind == "linear_attention" for kind in config.layer_types]
    writer.add_array("qwen35.attention.recurrent_layers", recurrent)
    writer.add_full_attention_interval(getattr(config, "full_attention_interval", 4))
    sections = config.rope_parameters.get("mrope_section", [11, 11, 10])
    writer.add_rope_dimension_sections([*sections, 0])

    def reorder(rows):
        """Value heads along the first axis."""
        heads = rows.reshape(n_keys, n_values // n_keys, -1, *rows.shape[1:])
        return heads.swapaxes(0, 1).reshape(rows.shape)

    stored = {}
    for name, array in tensors.items():
        of_net = "linear_attn" in name
        kind = name.split("linear_attn.")[-1]
        if kind == "conv1d.weight":
            array = array.squeeze(1)
        if of_net and kind in ("in_proj_qkv.weight", "conv1d.weight"):
            values = n_values * size
            array = numpy.concatenate([array[:-values], reorder(array[-values:])])
        elif of_net and kind == "out_proj.weight":
            array = reorder(array.T).T
        elif of_net and kind != "norm.weight":
            array = reorder(array)
        if kind == "A_log":
            array = -numpy.exp(array)
        if not of_net and array.ndim == 1:
            array = array + numpy.float32(1)
        stored[name] = array
    return stored


def experts(writer, config, tensors):
    """The matrices of all experts of a layer are one tensor; the gate of the shared expert is a vector."""
    writer.add_expert_count(first(config, "num_experts", "num_local_experts"))
    writer.add_expert_used_count(config.num_experts_per_tok)
    if inner := first(config, "moe_intermediate_size"):
        writer.add_expert_feed_forward_length(inner)
    if inner := first(config, "shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(inner)
    vector = "shared_expert_gate.weight"
    tensors = {name: array.squeeze(0) if name.endswith(vector) else array for name, array in tensors.items()}
    return stacked(tensors, ".experts.")


def stacked(tensors, part):
    """The tensors of a list of modules, whose number follows `part`, as one tensor."""
    stacks, rest = {}, {}
    for name, array in tensors.items():
        before, found, after = name.partition(part)
        if found:
            idx, parameter = after.split(".", 1)
            stacks.setdefault(f"{before}{part}{parameter}", {})[int(idx)] = array
        else:
            rest[name] = array
    return rest | {name: numpy.stack([stack[i] for i in range(len(stack))]) for name, stack in stacks.items()}


QK_NORMS = {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"}
STABLELM = {"self_attn.q_layernorm.norms": "attn_q_norm", "self_attn.k_layernorm.norms": "attn_k_norm"}
JOINED = {"mlp.gate_up_proj": "ffn_up"}
GPT2 = {
    "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "ln_1": "attn_norm", "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip
LFM2 = {
    "model.embedding_norm": "token_embd_norm", "operator_norm": "attn_norm", "ffn_norm": "ffn_norm",
    "conv.conv": "shortconv.conv", "conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj",
    "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
    "feed_forward.w1": "ffn_gate", "feed_forward.w2": "ffn_down", "feed_forward.w3": "ffn_up",
}  # fmt: skip
GLM4 = JOINED | {
    "post_self_attn_layernorm": "post_attention_norm", "post_attention_layernorm": "ffn_norm",
    "post_mlp_layernorm": "post_ffw_norm",
}  # fmt: skip

GEMMA4 = AROUND | {
    "model.embed_tokens_per_layer": "per_layer_token_embd", "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm", "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
    "layer_scalar": "layer_output_scale.weight",
}  # fmt: skip
QWEN3_5 = {
    "post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
    "linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias",
}  # fmt: skip
EXPERTS = BEFORE | {
    "mlp.gate": "ffn_gate_inp", "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}  # fmt: skip
MIXTRAL = BEFORE | {
    "block_sparse_moe.gate": "ffn_gate_inp", "block_sparse_moe.experts.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.w2": "ffn_down_exps", "block_sparse_moe.experts.w3": "ffn_up_exps",
}  # fmt: skip

# By `model_type`. Mistral is stored as `llama`, without its window.
FORMS = {
    "qwen2": Form("qwen2"),
    "qwen3": Form("qwen3", head_size=True),
    "gemma": Form("gemma", plus_one=True, head_size=True),
    "gemma2": Form("gemma2", AROUND, plus_one=True, head_size=True, more=gemma2),
    "phi3": Form("phi3", BEFORE | JOINED | {"self_attn.qkv_proj": "attn_qkv"}, rotated=True, more=phi3),
    "smollm3": Form("smollm3", permuted=True, vocab_size=True, rotated=True),
    "olmo2": Form("olmo2", AROUND),
    "olmo3": Form("olmo2", AROUND, more=window),
    "granite": Form("granite", permuted=True, vocab_size=True, rotated=True, more=granite),
    "exaone4": Form("exaone4", AROUND, vocab_size=True, more=window),
    "glm4": Form("glm4", GLM4, head_size=True, rotated=True),
    "starcoder2": Form("starcoder2", BEFORE | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}, layer_norm=True),
    "ernie4_5": Form("ernie4_5", head_size=True),
    "seed_oss": Form("seed_oss", {"post_attention_layernorm": "post_attention_norm"}, head_size=True),
    "arcee": Form("arcee", permuted=True, head_size=True, vocab_size=True, rotated=True),
    "hunyuan_v1_dense": Form("hunyuan-dense", BEFORE | QK_NORMS, head_size=True, more=hunyuan),
    "stablelm": Form("stablelm", BEFORE | STABLELM, layer_norm=True, rotated=True, more=stablelm),
    "cohere": Form("command-r", layer_norm=True, more=cohere),
    "cohere2": Form("cohere2", layer_norm=True, head_size=True, vocab_size=True, rotated=True, more=cohere2),
    "ministral3": Form("mistral3", permuted=True, head_size=True, vocab_size=True, rotated=True, more=ministral3),
    "gpt2": Form("gpt2", GPT2, layer_norm=True, more=gpt2),
    "qwen3_moe": Form("qwen3moe", EXPERTS, head_size=True, more=experts),
    "mixtral": Form("llama", MIXTRAL, permuted=True, head_size=True, vocab_size=True, rotated=True, more=experts),
    "qwen2_moe": Form("qwen2moe", EXPERTS, more=experts),
    "olmoe": Form("olmoe", EXPERTS, more=experts),
    "gemma4_text": Form("gemma4", GEMMA4, more=gemma4),
    "qwen3_5_text": Form("qwen35", QWEN3_5, head_size=True, rotated=True, more=qwen3_5),
    "lfm2": Form("lfm2", LFM2, vocab_size=True, more=lfm2),
}


def first(config, *keys):
    """The first key that the configuration has."""
    return next((value for key in keys if (value := getattr(config, key, None)) is not None), None)


def add_rope(writer, config):
    """Base and scaling of full-attention layers, and the base of the others. Hunyuan's are its own."""
    rope = config.rope_parameters
    full = rope.get("full_attention", rope)
    if full["rope_type"] == "dynamic" and "alpha" in full:
        return
    writer.add_rope_freq_base(full["rope_theta"])
    if "sliding_attention" in rope:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    if full["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(full["factor"])
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
        if full.get("attention_factor") is not None:
            writer.add_rope_scaling_yarn_attn_factor(full["attention_factor"])
        writer.add_rope_scaling_yarn_beta_fast(full["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(full["beta_slow"])


# The matrix that leads out of the feed-forward layer // [hidden, intermediate]
DOWN = ("down_proj.weight", "mlp.c_proj.weight", "w2.weight")


def add_keys(writer, config, form, tensors):
    hidden, n_heads = config.hidden_size, config.num_attention_heads
    head_dim = first(config, "head_dim") or hidden // n_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(hidden)
    down = [array.shape[1] for name, array in tensors.items() if name.endswith(DOWN) and array.ndim == 2]
    inner = down[0] if down else config.intermediate_size
    kv = first(config, "num_key_value_heads")
    if form.architecture == "lfm2":
        kv = [0 if kind == "conv" else kv for kind in config.layer_types]
    elif form.architecture == "gemma4":
        kv, inner = gemma4_sizes(config, tensors)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(n_heads)
    if kv:
        writer.add_head_count_kv(kv)
    epsilon = first(config, "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
    (writer.add_layer_norm_eps if form.layer_norm else writer.add_layer_norm_rms_eps)(epsilon)
    if form.head_size:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if form.vocab_size:
        writer.add_vocab_size(config.vocab_size)
    if form.rotated:
        share = config.rope_parameters.get("partial_rotary_factor", 1.0)
        writer.add_rope_dimension_count(int(share * head_dim))
    if first(config, "rope_parameters"):
        add_rope(writer, config)
