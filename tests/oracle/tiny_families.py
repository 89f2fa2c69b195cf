"""The tiny checkpoints of families other than Llama, Qwen3 and Gemma 3, for make_tiny.py.

Each has what its family alone has: a window shorter than the texts, layers without rotary embedding, soft caps, factors.
"""

from dataclasses import dataclass, field

import torch
import transformers


@dataclass
class Case:
    seed: int
    config: object
    respell: object  # config dict as transformers 5 writes it -> config dict to commit
    dtype: torch.dtype = torch.float32
    max_shard_size: str = "1GB"
    mutations: dict = field(default_factory=dict)
    # The smallest relative change of the logits that counts, for settings that move them less than others.
    weak: dict = field(default_factory=dict)
    # Lengths of the texts, where the usual ones will not do.
    lengths: tuple = ()
    # Ends of the names of tensors that change nothing, because they add the same to all scores of a query.
    idle: tuple = ()


def keep(config):
    """The new spelling, as transformers 5 writes it."""
    return config


def old(config):
    """transformers 4: `rope_theta` beside `rope_scaling`, `torch_dtype`."""
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    config["torch_dtype"] = config.pop("dtype")
    config.pop("transformers_version")
    return config


def null_share(config):
    """A share that is there and says nothing."""
    config = old(config)
    config["partial_rotary_factor"] = None
    return config


def idle_share(config):
    """A share that the class does not read."""
    config["partial_rotary_factor"] = 0.5
    config["rope_parameters"]["partial_rotary_factor"] = 0.5
    return config


def published_gemma4(config):
    """As the models are published: the sizes of full-attention layers by name, not by layer."""
    wide = next(iter(config.pop("per_layer_config").values()))
    config["global_head_dim"] = wide["head_dim"]
    config["num_global_key_value_heads"] = wide.get("num_key_value_heads")
    return config


def published_qwen3_moe(config):
    """As the models are published: the number of experts under its own name, and a key of another class."""
    config["num_experts"] = config.pop("num_local_experts")
    config["max_window_layers"] = config["num_hidden_layers"]
    return old(config)


def published_qwen3_5(config):
    """As the models are published: keys of other programs, and the interval beside the layers."""
    config["text_config"] |= {
        "full_attention_interval": 4, "attn_output_gate": True, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
    }
    config["text_config"]["rope_parameters"] |= {"mrope_interleaved": True, "mrope_section": [1, 1, 0]}
    return config


def old_olmo3(config):
    """As published: the scaling is that of full-attention layers. So is the base, of which transformers takes the default
    in the others."""
    config["rope_parameters"] = config["rope_parameters"][FULL]
    return old(config)


def rope(kind="default", theta=700.0, **more):
    return {"rope_type": kind, "rope_theta": theta} | more


def tiny(kind, **changes):
    settings = dict(
        vocab_size=97, hidden_size=36, intermediate_size=41, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        rope_parameters=rope(),
    )
    return getattr(transformers, kind)(**(settings | changes))


def rope_of(**changes):
    """A mutation of the rotary parameters."""
    return {"rope_parameters": lambda config: config.rope_parameters | changes}


def epsilon(key="rms_norm_eps"):
    return {key: {key: 1e-6}}


THETA = {"theta": rope_of(rope_theta=1300.0)}
WINDOW = {"window longer": {"sliding_window": 9}, "window shorter": {"sliding_window": 7}}
LAYERS = {"layer order": {"layer_types": lambda config: config.layer_types[1:] + config.layer_types[:1]}}
EXPERTS = {"experts": {"num_experts_per_tok": 3}}
QWEN3_5 = dict(
    head_dim=12, rms_norm_eps=3e-2, linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=8,
    linear_value_head_dim=10, linear_conv_kernel_dim=4, rope_parameters=rope(partial_rotary_factor=0.5),
)
QWEN3_5_MUTATIONS = THETA | epsilon() | {"share": rope_of(partial_rotary_factor=1.0)}
LINEAR = "linear_attention"
SLIDING, FULL = "sliding_attention", "full_attention"


def full_rope(**changes):
    """A mutation of the rotary parameters of full-attention layers."""
    return {"rope_parameters": lambda config: config.rope_parameters | {FULL: config.rope_parameters[FULL] | changes}}


# The share: as if all pairs of a head were rotated.
FULL_ROPE = {"full theta": full_rope(rope_theta=1300.0), "share": full_rope(partial_rotary_factor=1.0)}


def cases():
    # Pairs 0 and 1 are kept, 2 to 3 interpolated, and the others divided.
    yarn = rope("yarn", theta=100.0, factor=4.0, original_max_position_embeddings=64, beta_fast=2.0, beta_slow=0.5)
    short = [1.0, 1.3, 1.7]
    long = [1.5, 2.5, 4.0]
    longrope = rope("longrope", short_factor=short, long_factor=long, partial_rotary_factor=1.0)
    gemma = dict(hidden_size=38, num_attention_heads=4, num_key_value_heads=2, head_dim=10, rms_norm_eps=1e-2)
    gemma4 = dict(
        vocab_size=97, hidden_size=38, intermediate_size=31, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        global_head_dim=12, max_position_embeddings=256, rms_norm_eps=1e-2, sliding_window=8, rope_parameters={
            SLIDING: rope(), FULL: rope("proportional", theta=900.0, partial_rotary_factor=0.5),
        })
    return {
        "mistral": Case(
            401, tiny("MistralConfig", head_dim=8, rms_norm_eps=3e-3, sliding_window=8), old,
            mutations=THETA | WINDOW | epsilon()),
        "ministral": Case(
            402, tiny("MinistralConfig", num_hidden_layers=3, head_dim=10, rms_norm_eps=3e-3, sliding_window=8,
                      layer_types=[SLIDING, FULL, SLIDING]), keep, mutations=THETA | WINDOW | LAYERS | epsilon()),
        "ministral3": Case(
            1403, tiny("Ministral3Config", head_dim=12, rms_norm_eps=3e-3, rope_parameters=rope(
                "yarn", theta=100.0, factor=16.0, original_max_position_embeddings=16, beta_fast=0.5, beta_slow=0.1, mscale=1.0,
                mscale_all_dim=1.0, llama_4_scaling_beta=0.15, max_position_embeddings=256)), keep,
            mutations=THETA | epsilon() | {
                "query scaling": rope_of(llama_4_scaling_beta=0.05), "factor": rope_of(factor=4.0),
                "fast": rope_of(beta_fast=4.0),
                "slow": rope_of(beta_slow=0.3), "mscale": rope_of(mscale=0.5),
            }),
        "qwen2": Case(
            404, tiny("Qwen2Config", rms_norm_eps=3e-3, num_hidden_layers=3, use_sliding_window=True, sliding_window=8,
                      max_window_layers=1, tie_word_embeddings=True), old,
            mutations=THETA | WINDOW | epsilon() | {"layers": {"max_window_layers": 2, "layer_types": None}}),
        "qwen2-yarn": Case(
            405, tiny("Qwen2Config", hidden_size=60, num_attention_heads=5, num_key_value_heads=1, rms_norm_eps=3e-3,
                      rope_parameters=yarn), old, torch.bfloat16, mutations=THETA | epsilon() | {
                          "factor": rope_of(factor=2.0), "fast": rope_of(beta_fast=8.0),
                          "slow": rope_of(beta_slow=2.0), "original": rope_of(original_max_position_embeddings=32),
                      }),
        "qwen2-dynamic": Case(
            406, tiny("Qwen2Config", rms_norm_eps=3e-3, rope_parameters=rope("dynamic", factor=2.0)), keep,
            mutations=THETA | epsilon()),
        "qwen3-sliding": Case(
            407, tiny("Qwen3Config", num_hidden_layers=3, head_dim=10, rms_norm_eps=3e-3, use_sliding_window=True,
                      sliding_window=8, layer_types=[FULL, SLIDING, SLIDING], attention_bias=True), keep,
            mutations=THETA | WINDOW | LAYERS | epsilon()),
        "gemma": Case(
            408, tiny("GemmaConfig", **gemma), old, mutations=THETA | epsilon() | {"activation": {"hidden_act": "relu"}}),
        "gemma2": Case(
            409, tiny("Gemma2Config", **gemma | dict(num_hidden_layers=3, hidden_size=40), query_pre_attn_scalar=17,
                      sliding_window=8, layer_types=[SLIDING, FULL, SLIDING], attn_logit_softcapping=3.0,
                      final_logit_softcapping=2.0), keep,
            mutations=THETA | WINDOW | LAYERS | epsilon() | {
                "scores": {"attn_logit_softcapping": 6.0}, "logits": {"final_logit_softcapping": 4.0},
                "scale": {"query_pre_attn_scalar": 10},
            }),
        "gemma4": Case(
            435, transformers.Gemma4TextConfig(
                **gemma4, num_hidden_layers=5, layer_types=[SLIDING, FULL, SLIDING, SLIDING, FULL],
                num_kv_shared_layers=2, use_double_wide_mlp=True, final_logit_softcapping=2.0,
                hidden_size_per_layer_input=6, vocab_size_per_layer_input=97), published_gemma4,
            mutations=WINDOW | epsilon() | FULL_ROPE | {"logits": {"final_logit_softcapping": 4.0}}),
        "gemma4-plain": Case(
            436, transformers.Gemma4TextConfig(
                **gemma4, num_hidden_layers=3, layer_types=[SLIDING, SLIDING, FULL], attention_k_eq_v=True,
                num_global_key_value_heads=1, hidden_size_per_layer_input=0, tie_word_embeddings=False), keep,
            mutations=WINDOW | epsilon() | FULL_ROPE),
        "phi3": Case(
            410, tiny("Phi3Config", rms_norm_eps=3e-3, sliding_window=8, tie_word_embeddings=False,
                      rope_parameters=rope(partial_rotary_factor=1.0)), keep, mutations=THETA | WINDOW | epsilon()),
        "phi3-long": Case(
            411, tiny("Phi3Config", hidden_size=48, rms_norm_eps=3e-3, original_max_position_embeddings=16,
                      rope_parameters=longrope | {"partial_rotary_factor": 0.75}), old,
            mutations=THETA | epsilon() | {"long factors": rope_of(long_factor=short)}, lengths=(19, 33, 61)),
        "phi3-short": Case(
            412, tiny("Phi3Config", rms_norm_eps=3e-3, original_max_position_embeddings=64, rope_parameters=longrope),
            keep, mutations=THETA | epsilon() | {"short factors": rope_of(short_factor=long)}),
        "smollm3": Case(
            413, tiny("SmolLM3Config", num_hidden_layers=4, rms_norm_eps=3e-3, no_rope_layers=[1, 0, 1, 0],
                      tie_word_embeddings=True), keep,
            mutations=THETA | epsilon() | {"layers": {"no_rope_layers": [1, 1, 0, 0]}}),
        "smollm3-sliding": Case(
            414, tiny("SmolLM3Config", num_hidden_layers=3, rms_norm_eps=3e-3, no_rope_layer_interval=2,
                      use_sliding_window=True, sliding_window=8, attention_bias=True, mlp_bias=True), keep,
            mutations=THETA | WINDOW | epsilon(), idle=("layers.1.self_attn.k_proj.bias",)),
        "olmo2": Case(
            415, tiny("Olmo2Config", rms_norm_eps=3e-2), old, mutations=THETA | epsilon()),
        "olmo3": Case(
            416, tiny("Olmo3Config", num_hidden_layers=3, rms_norm_eps=3e-2, sliding_window=8,
                      layer_types=[SLIDING, FULL, SLIDING], rope_parameters={
                          SLIDING: rope(), FULL: yarn | {"attention_factor": 1.2},
                      }), keep, mutations=WINDOW | LAYERS | epsilon()),
        "granite": Case(
            417, tiny("GraniteConfig", rms_norm_eps=3e-3, embedding_multiplier=1.7, logits_scaling=2.3,
                      residual_multiplier=0.6, attention_multiplier=0.29, tie_word_embeddings=True), old,
            mutations=THETA | epsilon() | {
                "embedding": {"embedding_multiplier": 1.0}, "logits": {"logits_scaling": 1.0},
                "residual": {"residual_multiplier": 1.0}, "scores": {"attention_multiplier": 0.4},
            }),
        "exaone4": Case(
            418, tiny("Exaone4Config", num_hidden_layers=3, rms_norm_eps=3e-2, sliding_window=8,
                      sliding_window_pattern="LLG", layer_types=[SLIDING, SLIDING, FULL]), keep,
            mutations=THETA | WINDOW | LAYERS | epsilon()),
        "exaone4-full": Case(
            419, tiny("Exaone4Config", rms_norm_eps=3e-2, sliding_window=None, layer_types=[FULL, FULL]), keep, mutations=THETA | epsilon()),
        "glm4": Case(
            420, tiny("Glm4Config", head_dim=12, rms_norm_eps=3e-3, rope_parameters=rope(partial_rotary_factor=0.5)),
            old, mutations=THETA | epsilon() | {"share": rope_of(partial_rotary_factor=1.0)}),
        # A null is not the half of a head that the family rotates, but all of it.
        "glm4-null": Case(
            451, tiny("Glm4Config", head_dim=10, rms_norm_eps=3e-3, rope_parameters=rope(partial_rotary_factor=1.0)),
            null_share, torch.bfloat16, mutations=THETA | epsilon() | {"share": rope_of(partial_rotary_factor=0.4)}),
        "starcoder2": Case(
            421, tiny("Starcoder2Config", norm_epsilon=3e-3, sliding_window=8), keep,
            mutations=THETA | WINDOW | epsilon("norm_epsilon") | {"activation": {"hidden_act": "relu"}}),
        "ernie4_5": Case(
            422, tiny("Ernie4_5Config", head_dim=8, rms_norm_eps=3e-3, use_bias=True), keep,
            mutations=THETA | epsilon()),
        "seed_oss": Case(
            423, tiny("SeedOssConfig", head_dim=8, rms_norm_eps=3e-3, attention_out_bias=False), keep,
            mutations=THETA | epsilon()),
        "arcee": Case(
            450, tiny("ArceeConfig", head_dim=8, rms_norm_eps=3e-3, rope_parameters=yarn, attention_bias=True), keep,
            torch.bfloat16, mutations=THETA | epsilon() | {"activation": {"hidden_act": "relu"}}),
        # As published: llama.cpp reads no bias of the output projection.
        "arcee-plain": Case(
            452, tiny("ArceeConfig", head_dim=10, rms_norm_eps=3e-3, rope_parameters=yarn), keep, torch.bfloat16,
            mutations=THETA | epsilon()),
        "hunyuan": Case(
            424, tiny("HunYuanDenseV1Config", head_dim=10, rms_norm_eps=3e-2, tie_word_embeddings=True,
                      rope_parameters=rope("dynamic", alpha=50.0, factor=1.0)), keep,
            mutations=THETA | epsilon() | {"alpha": rope_of(alpha=5.0)}),
        "stablelm": Case(
            425, tiny("StableLmConfig", hidden_size=48, num_attention_heads=3, num_key_value_heads=1, layer_norm_eps=3e-2, use_qkv_bias=True,
                      rope_parameters=rope(partial_rotary_factor=0.25)), old,
            mutations=THETA | epsilon("layer_norm_eps") | {"share": rope_of(partial_rotary_factor=0.5)}),
        "stablelm-parallel": Case(
            426, tiny("StableLmConfig", hidden_size=48, layer_norm_eps=3e-2, use_parallel_residual=True, qk_layernorm=True,
                      rope_parameters=rope(partial_rotary_factor=0.5)), keep,
            mutations=THETA | epsilon("layer_norm_eps")),
        "cohere": Case(
            427, tiny("CohereConfig", layer_norm_eps=3e-2, logit_scale=0.4, use_qk_norm=True), old,
            mutations=THETA | epsilon("layer_norm_eps") | {"logits": {"logit_scale": 0.3}}),
        "cohere2": Case(
            428, tiny("Cohere2Config", num_hidden_layers=3, layer_norm_eps=3e-2, logit_scale=0.4, sliding_window=8,
                      layer_types=[SLIDING, SLIDING, FULL], attention_bias=True), keep,
            mutations=THETA | WINDOW | LAYERS | epsilon("layer_norm_eps"), idle=("layers.2.self_attn.k_proj.bias",)),
        "gpt2": Case(
            429, transformers.GPT2Config(
                vocab_size=97, n_embd=36, n_layer=2, n_head=6, n_inner=41, n_positions=128, layer_norm_epsilon=3e-2,
                bos_token_id=1, eos_token_id=2), keep,
            mutations=epsilon("layer_norm_epsilon") | {"activation": {"activation_function": "relu"}}),
        "gpt2-f16": Case(
            430, transformers.GPT2Config(
                vocab_size=97, n_embd=40, n_layer=3, n_head=5, n_positions=128, layer_norm_epsilon=3e-2,
                bos_token_id=1, eos_token_id=2, activation_function="gelu", scale_attn_by_inverse_layer_idx=True), keep,
            torch.float16, mutations=epsilon("layer_norm_epsilon") | {"scale": {"scale_attn_by_inverse_layer_idx": False}}),
        "lfm2": Case(
            432, transformers.Lfm2Config(
                vocab_size=97, hidden_size=36, intermediate_size=66, num_hidden_layers=4, num_attention_heads=6,
                num_key_value_heads=2, max_position_embeddings=256, norm_eps=3e-2, conv_L_cache=4, conv_bias=True,
                block_multiple_of=8, block_ffn_dim_multiplier=1.1, layer_types=["conv", "full_attention", "conv", "conv"],
                rope_parameters=rope()), keep, mutations=THETA | epsilon("norm_eps")),
        "lfm2-plain": Case(
            434, transformers.Lfm2Config(
                vocab_size=97, hidden_size=40, intermediate_size=41, num_hidden_layers=3, num_attention_heads=5,
                num_key_value_heads=1, max_position_embeddings=256, norm_eps=3e-2, conv_L_cache=3,
                block_auto_adjust_ff_dim=False, full_attn_idxs=[0, 2], tie_word_embeddings=False,
                rope_parameters=rope()), old, torch.bfloat16, mutations=THETA | epsilon("norm_eps")),
        # What GGUF can say, where it cannot say all that the cases above have.
        "smollm3-plain": Case(
            435, tiny("SmolLM3Config", num_hidden_layers=4, rms_norm_eps=3e-3, tie_word_embeddings=True), keep,
            torch.float16, mutations=THETA | epsilon() | {"layers": {"no_rope_layers": [1, 1, 1, 1]}}),
        "starcoder2-full": Case(
            436, tiny("Starcoder2Config", norm_epsilon=3e-3, sliding_window=None), keep, torch.float16,
            mutations=THETA | epsilon("norm_epsilon")),
        "ernie4_5-plain": Case(
            437, tiny("Ernie4_5Config", head_dim=8, rms_norm_eps=3e-3, use_bias=False, tie_word_embeddings=False), keep,
            torch.float16, mutations=THETA | epsilon()),
        "cohere-plain": Case(
            438, tiny("CohereConfig", layer_norm_eps=3e-2, logit_scale=0.4, use_qk_norm=False), keep, torch.float16,
            mutations=THETA | epsilon("layer_norm_eps") | {"logits": {"logit_scale": 0.3}}),
        "cohere2-plain": Case(
            439, tiny("Cohere2Config", num_hidden_layers=4, layer_norm_eps=3e-2, logit_scale=0.4, sliding_window=8), keep,
            torch.float16, mutations=THETA | WINDOW | LAYERS | epsilon("layer_norm_eps")),
        "olmo3-old": Case(
            440, tiny("Olmo3Config", num_hidden_layers=4, rms_norm_eps=3e-2, sliding_window=8,
                      rope_parameters={SLIDING: rope(theta=5e5), FULL: yarn | {"rope_theta": 5e5}}), old_olmo3, torch.float16,
            mutations=WINDOW | LAYERS | epsilon()),
        # The seeds of mixtures of experts are those that leave the widest gaps between scores of experts.
        "qwen3_moe": Case(
            724, tiny("Qwen3MoeConfig", head_dim=10, rms_norm_eps=3e-3, num_experts=5,
                      num_experts_per_tok=2, moe_intermediate_size=15, norm_topk_prob=True), keep,
            mutations=THETA | epsilon() | EXPERTS | {"shares": {"norm_topk_prob": False}}),
        # Only the second layer has experts.
        "qwen3_moe-sliding": Case(
            746, tiny("Qwen3MoeConfig", num_hidden_layers=4, hidden_size=32, head_dim=8, rms_norm_eps=3e-3, num_experts=7,
                      num_experts_per_tok=3, moe_intermediate_size=13, decoder_sparse_step=2, mlp_only_layers=[3], use_sliding_window=True,
                      sliding_window=8, attention_bias=True, tie_word_embeddings=True), published_qwen3_moe, torch.bfloat16,
            mutations=THETA | epsilon() | WINDOW | {"experts": {"num_experts_per_tok": 2}, "shares": {"norm_topk_prob": True}}),
        "mixtral": Case(
            608, tiny("MixtralConfig", head_dim=8, rms_norm_eps=3e-3, intermediate_size=19, num_local_experts=6,
                      num_experts_per_tok=2, sliding_window=None), old, mutations=THETA | epsilon() | EXPERTS),
        "qwen2_moe": Case(
            665, tiny("Qwen2MoeConfig", rms_norm_eps=3e-3, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=13,
                      shared_expert_intermediate_size=17), keep,
            mutations=THETA | epsilon() | EXPERTS | {"shares": {"norm_topk_prob": True}}),
        "olmoe": Case(
            722, tiny("OlmoeConfig", num_key_value_heads=6, rms_norm_eps=3e-2, intermediate_size=19, num_experts=5, num_experts_per_tok=2), old,
            mutations=THETA | epsilon() | EXPERTS | {"shares": {"norm_topk_prob": True}}),
        # Small, because it differs from the one before by the bound alone.
        "olmoe-clip": Case(
            714, tiny("OlmoeConfig", vocab_size=31, hidden_size=18, num_attention_heads=3, num_key_value_heads=3,
                      rms_norm_eps=3e-2, intermediate_size=7, num_experts=3, num_experts_per_tok=1, clip_qkv=0.9), keep,
            mutations=THETA | {"bound": {"clip_qkv": 1.1}, "experts": {"num_experts_per_tok": 2}}),
        # Three value heads for a key head.
        "qwen3_5": Case(
            446, tiny("Qwen3_5TextConfig", **QWEN3_5, num_hidden_layers=5, layer_types=[LINEAR, FULL, LINEAR, FULL, LINEAR]),
            keep, mutations=QWEN3_5_MUTATIONS),
        "qwen3_5-image": Case(
            447, transformers.Qwen3_5Config(
                text_config=tiny("Qwen3_5TextConfig", **QWEN3_5 | dict(
                    linear_num_value_heads=2, num_hidden_layers=4, hidden_size=40), tie_word_embeddings=True).to_dict(),
                vision_config=dict(
                    depth=1, hidden_size=8, intermediate_size=10, num_heads=2, out_hidden_size=40, patch_size=4,
                    num_position_embeddings=4),
                image_token_id=96, video_token_id=95, vision_start_token_id=94, vision_end_token_id=93,
                tie_word_embeddings=True), published_qwen3_5, torch.bfloat16, mutations=THETA | epsilon()),
        "llama-relu": Case(
            431, tiny("LlamaConfig", head_dim=8, rms_norm_eps=3e-3, hidden_act="relu2"), idle_share,
            mutations=THETA | epsilon() | {"activation": {"hidden_act": "relu"}}),
    }
