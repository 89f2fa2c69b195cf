"""Makes GGUF files of tiny embedding checkpoints: tests/models/tiny-embed-gguf/<name>.gguf.

    python3 tests/oracle/make_tiny_embed_gguf.py

The files hold the tensors of tests/models/tiny-embed/<name> under the names and with the keys of llama.cpp's converter
(conversion/bert.py), so the goldens of those folders hold for them. Their vocabularies mark the beginning of words by `▁` and
leave out `##`. Names and keys are those of the gguf package.

Decoders that embed have the names of decoders, a pooling type, and, for `gemma-embedding`, the dense layers behind the
pooling (as with the converter's option for modules of sentence-transformers). Norms of gemma are stored with the 1 added.
GGUF cannot say `query_pre_attn_scalar`: the query norms are multiplied by what is missing. Needs gguf, torch, safetensors,
numpy.
"""

import json

from golden import MODELS, need

need("gguf", "torch", "safetensors", "numpy")

import gguf
import safetensors.numpy
import safetensors.torch

FOLDER = MODELS / "tiny-embed-gguf"
LAYER = {
    "bert": {
        "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    },
    "nomic-bert": {
        "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm1": "attn_output_norm", "mlp.fc11": "ffn_up",
        "mlp.fc12": "ffn_gate", "mlp.fc2": "ffn_down", "norm2": "layer_output_norm",
    },
}
WHOLE = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
    "emb_ln": "token_embd_norm",
}


def name_of(architecture, name):
    """llama.cpp's name of a tensor, or None if its converter leaves it out."""
    name = name.removeprefix("bert.")
    module, parameter = name.rsplit(".", 1)
    if module in WHOLE:
        return f"{WHOLE[module]}.{parameter}"
    for prefix in ("encoder.layer.", "encoder.layers."):
        if module.startswith(prefix):
            number, part = module.removeprefix(prefix).split(".", 1)
            return f"blk.{number}.{LAYER[architecture][part]}.{parameter}"
    return None


def write_vocabulary(writer, folder, n_types, cls_key):
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    vocab = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)

    def marked(token):
        if token in special:
            return token
        return token[2:] if token.startswith("##") else f"▁{token}"

    writer.add_token_type_count(n_types)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list([marked(token) for token in vocab])
    types = gguf.TokenType
    writer.add_token_types([types.CONTROL if token in special else types.NORMAL for token in vocab])
    writer.add_unk_token_id(special["[UNK]"])
    writer.add_sep_token_id(special["[SEP]"])
    writer.add_pad_token_id(special["[PAD]"])
    # The package has no method for the older key.
    writer.add_uint32(cls_key, special["[CLS]"])
    writer.add_mask_token_id(special["[MASK]"])


def make(name, architecture, pooling, cls_key):
    folder = MODELS / "tiny-embed" / name
    config = json.loads((folder / "config.json").read_text())

    def value(*keys):
        return next(config[key] for key in keys if key in config)

    writer = gguf.GGUFWriter(FOLDER / f"{name}.gguf", architecture)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_block_count(value("num_hidden_layers", "n_layer"))
    writer.add_context_length(value("max_position_embeddings", "n_positions"))
    writer.add_embedding_length(value("hidden_size", "n_embd"))
    writer.add_feed_forward_length(value("intermediate_size", "n_inner"))
    writer.add_head_count(value("num_attention_heads", "n_head"))
    writer.add_layer_norm_eps(value("layer_norm_eps", "layer_norm_epsilon"))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    if architecture == "nomic-bert":
        writer.add_rope_freq_base(config["rotary_emb_base"])
    write_vocabulary(writer, folder, config["type_vocab_size"], cls_key)
    for tensor, values in safetensors.numpy.load_file(folder / "model.safetensors").items():
        if (theirs := name_of(architecture, tensor)) is not None:
            writer.add_tensor(theirs, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{name}: {(FOLDER / f'{name}.gguf').stat().st_size} bytes")


DECODER = {
    "embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
NORMS = {
    "qwen3": {"post_attention_layernorm": "ffn_norm"},
    "gemma-embedding": {
        "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
}


def decoder_name(architecture, name):
    module, parameter = name.removeprefix("model.").rsplit(".", 1)
    names = DECODER | NORMS[architecture]
    if module.startswith("layers."):
        _, number, part = module.split(".", 2)
        return f"blk.{number}.{names[part]}.{parameter}"
    return f"{names[module]}.{parameter}"


def write_bpe(writer, tokenizer, end):
    """A byte-level BPE vocabulary whose texts end in a token."""
    vocab = tokenizer["model"]["vocab"]
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocab | special, key=(vocab | special).get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    types = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([types.CONTROL if token in special else types.NORMAL for token in tokens])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(special[end])
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(True)


def make_decoder(name, architecture, pooling):
    folder = MODELS / "tiny-embed" / name
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    is_gemma = architecture == "gemma-embedding"
    writer = gguf.GGUFWriter(FOLDER / f"{name}.gguf", architecture)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_pooling_type(pooling)
    if is_gemma:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
        writer.add_rope_freq_base_swa(config["rope_local_base_freq"])
    else:
        write_bpe(writer, tokenizer, "<|endoftext|>")
    missing = (config["head_dim"] / config["query_pre_attn_scalar"]) ** 0.5 if is_gemma else 1
    for tensor, values in safetensors.torch.load_file(folder / "model.safetensors").items():
        if tensor.startswith("lm_head"):
            continue
        values = values.float()
        if is_gemma and "norm" in tensor:
            values = (values + 1) * (missing if "q_norm" in tensor else 1)
        writer.add_tensor(decoder_name(architecture, tensor), values.contiguous().numpy())
    for number in (2, 3):
        path = folder / f"{number}_Dense/model.safetensors"
        if path.exists():
            weight = safetensors.torch.load_file(path)["linear.weight"].float().numpy()
            writer.add_tensor(f"dense_{number}.weight", weight)
            writer.add_uint32(f"{architecture}.dense_{number}_feat_in", weight.shape[1])
            writer.add_uint32(f"{architecture}.dense_{number}_feat_out", weight.shape[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{name}: {(FOLDER / f'{name}.gguf').stat().st_size} bytes")


def main():
    FOLDER.mkdir(exist_ok=True)
    make_decoder("qwen3-embedding", "qwen3", gguf.PoolingType.LAST)
    make_decoder("embeddinggemma", "gemma-embedding", gguf.PoolingType.MEAN)
    make("bert-cls", "bert", gguf.PoolingType.CLS, "tokenizer.ggml.cls_token_id")
    make("nomic-bert", "nomic-bert", gguf.PoolingType.MEAN, gguf.Keys.Tokenizer.BOS_ID)


if __name__ == "__main__":
    main()
