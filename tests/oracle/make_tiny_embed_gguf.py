"""Makes GGUF files of tiny embedding checkpoints: tests/models/tiny-embed-gguf/<name>.gguf.

    python3 tests/oracle/make_tiny_embed_gguf.py

The files hold the tensors of tests/models/tiny-embed/<name> under the names and with the keys of llama.cpp's converter
(conversion/bert.py), so the goldens of those folders hold for them. Their vocabularies mark the beginning of words by `▁` and
leave out `##`. Names and keys are those of the gguf package. Needs gguf, safetensors, numpy.
"""

import json

from golden import MODELS, need

need("gguf", "safetensors", "numpy")

import gguf
import safetensors.numpy

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


def main():
    FOLDER.mkdir(exist_ok=True)
    make("bert-cls", "bert", gguf.PoolingType.CLS, "tokenizer.ggml.cls_token_id")
    make("nomic-bert", "nomic-bert", gguf.PoolingType.MEAN, gguf.Keys.Tokenizer.BOS_ID)


if __name__ == "__main__":
    main()
