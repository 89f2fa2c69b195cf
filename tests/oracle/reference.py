"""The reference for the two real GGUF files: transformers' model with the file's own dequantized weights, and
tokenizers built from the file's vocabulary. Needs torch, transformers, gguf, numpy, tokenizers, sentencepiece,
protobuf, jinja2.

What transformers does with the file was read and checked: the gguf package dequantizes every block to float32, Llama's
q and k rows are taken back from GGUF's interleaved rotary order, Gemma's norm weights lose the 1 that GGUF added, an
absent output matrix means a tied one. `EXPECTED` holds what the files do not say (Gemma's local theta, the layer
pattern, the attention scale), so a change of transformers' defaults ends the script instead of moving a golden.
"""

import sys
from pathlib import Path

GEMMA_LAYERS = (["sliding_attention"] * 5 + ["full_attention"]) * 3

FILES = {
    "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3-270m": "gemma-3-270m-q4_k_m.gguf",
}

EXPECTED = {
    "smollm2-135m": dict(
        model_type="llama", num_hidden_layers=30, hidden_size=576, intermediate_size=1536, num_attention_heads=9,
        num_key_value_heads=3, head_dim=64, vocab_size=49152, hidden_act="silu", tie_word_embeddings=True,
        attention_bias=False, mlp_bias=False, rms_norm_eps=1e-5,
        rope_parameters={"rope_theta": 100000.0, "rope_type": "default"},
    ),
    "gemma3-270m": dict(
        model_type="gemma3_text", num_hidden_layers=18, hidden_size=640, intermediate_size=2048, num_attention_heads=4,
        num_key_value_heads=1, head_dim=256, vocab_size=262144, hidden_activation="gelu_pytorch_tanh",
        tie_word_embeddings=True, attention_bias=False, rms_norm_eps=1e-6, query_pre_attn_scalar=256,
        sliding_window=512, layer_types=GEMMA_LAYERS, final_logit_softcapping=None, attn_logit_softcapping=None,
        use_bidirectional_attention=False,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
        },
    ),
}


def file_of(models, name):
    path = Path(models) / FILES[name]
    if not path.is_file():
        sys.exit(f"{path}: no such file (--models names the folder with {', '.join(FILES.values())})")
    return path


def load_model(models, name):
    """The float32 model, its config checked against `EXPECTED`."""
    import torch
    from transformers import AutoModelForCausalLM

    path = file_of(models, name)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for key, expected in EXPECTED[name].items():
        found = getattr(model.config, key)
        # The file's epsilon is a float32: 1e-6 reads back as 9.999999974752427e-07.
        same = abs(found - expected) < 1e-6 * expected if key == "rms_norm_eps" else found == expected
        if not same:
            sys.exit(f"{name}: transformers read {key} = {found}, expected {expected}")
    return model


class Tokenizer:
    """Text to ids as the model's own tokenizer does it, the beginning token included where the file asks for one."""

    def __init__(self, models, name):
        from gguf import GGUFReader

        reader = GGUFReader(file_of(models, name))
        self.fields = reader.fields
        self.bos = self._value("bos_token_id") if self._value("add_bos_token") else None
        kind = self._value("model"), self._value("pre")
        builders = {("gpt2", "smollm"): self._byte_level, ("llama", "default"): self._sentencepiece}
        if kind not in builders:
            sys.exit(f"{name}: no reference for a tokenizer of kind {kind}")
        self.encode_plain = builders[kind]()

    def _value(self, key):
        return self.fields[f"tokenizer.ggml.{key}"].contents()

    def _byte_level(self):
        """GGUF's "smollm": every digit alone, then GPT-2's byte-level split; control tokens are found in the text.

        transformers' own GGUF reader leaves the digits out: it splits a blank line before "1." into two tokens.
        """
        from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

        tokens = self._value("tokens")
        merges = [tuple(merge.split(" ")) for merge in self._value("merges")]
        bpe = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
        bpe.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ])
        control = [token for token, kind in zip(tokens, self._value("token_type")) if kind == 3]
        bpe.add_special_tokens([AddedToken(token, normalized=False) for token in control])
        return lambda text: bpe.encode(text, add_special_tokens=False).ids

    def _sentencepiece(self):
        """Gemma's SentencePiece model put together again: BPE with byte fallback, no normalization, no dummy prefix."""
        import sentencepiece
        from sentencepiece import sentencepiece_model_pb2

        proto = sentencepiece_model_pb2.ModelProto()
        proto.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.BPE
        proto.trainer_spec.byte_fallback = True
        proto.trainer_spec.vocab_size = len(self._value("tokens"))
        proto.trainer_spec.unk_id = self._value("unknown_token_id")
        proto.trainer_spec.bos_id = self._value("bos_token_id")
        proto.trainer_spec.eos_id = self._value("eos_token_id")
        proto.trainer_spec.pad_id = self._value("padding_token_id")
        proto.normalizer_spec.name = "identity"
        proto.normalizer_spec.add_dummy_prefix = self._value("add_space_prefix")
        proto.normalizer_spec.remove_extra_whitespaces = False
        proto.normalizer_spec.escape_whitespaces = True
        # GGUF numbers the kinds of token as SentencePiece does (1 normal ... 6 byte).
        for token, score, kind in zip(self._value("tokens"), self._value("scores"), self._value("token_type")):
            # The runs of spaces (user-defined pieces) are the only ones that GGUF writes unescaped.
            piece = token.replace(" ", "\u2581") if kind == proto.SentencePiece.USER_DEFINED else token
            proto.pieces.add(piece=piece, score=score, type=kind)
        return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString()).encode

    def encode(self, text):
        ids = self.encode_plain(text)
        return ids if self.bos is None else [self.bos] + ids

    def render(self, messages):
        """The file's chat template with the turn of the assistant opened, or None when the file has no template."""
        import jinja2

        if "tokenizer.chat_template" not in self.fields:
            return None
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        template = environment.from_string(self.fields["tokenizer.chat_template"].contents())
        return template.render(messages=messages, add_generation_prompt=True)
