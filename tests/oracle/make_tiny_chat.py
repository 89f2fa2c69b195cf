"""Makes tests/models/tiny-chat: a small random chat model with a tokenizer, as a GGUF file and as a Hugging Face folder.

    python3 tests/oracle/make_tiny_chat.py

For the tests of the command: it has all that a real chat model has (byte-level BPE, control tokens, a ChatML template, end
tokens) and answers in milliseconds. Both forms hold the same float16 values. expected.json has what transformers answers
to three conversations (token ids of the rendered prompt, greedy tokens up to the end of the turn) and how well it predicts
a text.

Rows of the output matrix for tokens that do not print are zero, so that answers are readable ASCII, and the seed is the
first with which all answers end by themselves within LENGTHS tokens and no step is closer than GAP. Needs torch,
transformers, tokenizers, safetensors, gguf, numpy.
"""

import itertools
import json

from golden import MODELS, need, write_json

need("torch", "transformers", "tokenizers", "safetensors", "gguf", "numpy")

import gguf
import numpy
import safetensors.torch
import torch
import transformers

FOLDER = MODELS / "tiny-chat"
NAME = "tiny-chat"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
EOS, START, END = SPECIALS
MERGES = "t h|th e|Ġ the|i n|a n|Ġ a|e r|o n|Ġ s|r e|an d|Ġ and|l o|h e|s y|sy s|t e|te m|sys tem|u s|us er|a s|as s".split("|")
VOCAB = 256 + len(MERGES) + len(SPECIALS)
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": None,
    "eos_token_id": 0,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 48,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": None,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vocab_size": VOCAB,
}
# The answer of None is what the model said to the same messages before it.
CONVERSATIONS = [
    [("user", "hello")],
    [("user", "hello"), ("assistant", None), ("user", "and the sea?")],
    [("system", "Be brief."), ("user", "Why is the sky blue?")],
]
TEXT = "The sea is the air's mirror,\nand the system has 42 users.\n"
LENGTHS = range(4, 25)
# Smallest distance of the best logit from the second: wide enough that both numerics give these tokens.
GAP = 0.1


def byte_letters():
    """GPT-2's letter for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    others = (byte for byte in range(256) if byte not in letters)
    letters.update({byte: chr(256 + i) for i, byte in enumerate(others)})
    return [letters[byte] for byte in range(256)]


def vocabulary():
    return SPECIALS + byte_letters() + [merge.replace(" ", "") for merge in MERGES]


def tokenizer_json(tokens):
    split = {"type": "Digits", "individual_digits": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False}
            for i, token in enumerate(SPECIALS)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)}, "merges": MERGES,
        },
    }


def random_model(seed, tokens):
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).eval()
    printable = {chr(c) for c in range(33, 127)} | {"Ġ"}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            wide = 0.25 if name.endswith("proj.weight") else 1.0
            weight.copy_(torch.randn_like(weight) * wide + ("norm" in name))
            weight.copy_(weight.half().float())
        for i, token in enumerate(tokens):
            if token != END and not set(token) <= printable or token in (EOS, START):
                model.lm_head.weight[i] = 0
    return model


def render(tokenizer, conversation):
    messages = [{"role": role, "content": content} for role, content in conversation]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def answer(model, ids, end):
    """The greedy tokens before the end of the turn; none when it does not come or when a step is close."""
    tokens = []
    with torch.no_grad():
        while len(tokens) < LENGTHS.stop:
            logits = model(torch.tensor([ids + tokens])).logits[0, -1]
            best, second = torch.topk(logits, 2).values.tolist()
            if best - second < GAP:
                return None
            token = int(logits.argmax())
            if token == end:
                return tokens if len(tokens) in LENGTHS else None
            tokens.append(token)
    return None


def converse(model, tokenizer, end):
    """What the model answers to each conversation; none when one answer will not do."""
    rows, before = [], None
    for conversation in CONVERSATIONS:
        said = [(role, before if text is None else text) for role, text in conversation]
        ids = render(tokenizer, said)
        tokens = answer(model, ids, end)
        if tokens is None:
            return None
        before = tokenizer.decode(tokens)
        messages = [{"role": role, "content": text} for role, text in said]
        rows.append({"messages": messages, "ids": ids, "tokens": tokens, "text": before})
    return rows


def mean_nll(model, ids):
    """Mean negative logarithm of the probability of each token after the first."""
    with torch.no_grad():
        scores = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return -scores[range(len(ids) - 1), ids[1:]].mean().item()


def write_gguf(state, tokens):
    c = CONFIG
    writer = gguf.GGUFWriter(FOLDER / f"{NAME}.gguf", "llama")
    writer.add_name(NAME)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(c["vocab_size"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(c["head_dim"])
    writer.add_value_length(c["head_dim"])
    writer.add_rope_dimension_count(c["head_dim"])
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if token in SPECIALS else normal for token in tokens])
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for name, weight in state.items():
        if name.endswith("q_proj.weight"):
            weight = interleaved(weight, c["num_attention_heads"])
        if name.endswith("k_proj.weight"):
            weight = interleaved(weight, c["num_key_value_heads"])
        kind = numpy.float32 if "norm" in name else numpy.float16
        writer.add_tensor(gguf_name(name), weight.numpy().astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name):
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, CONFIG["num_hidden_layers"])
    found = names.get_name(name, try_suffixes=(".weight",))
    assert found, name
    return found


def interleaved(weight, n_heads):
    """Rows so that the two numbers that rotary embedding turns together lie side by side, as GGUF's `llama` has them."""
    rows, columns = weight.shape
    return weight.reshape(n_heads, 2, rows // n_heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def main():
    tokens = vocabulary()
    assert len(tokens) == VOCAB == len(set(tokens))
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens), ensure_ascii=False) + "\n", encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": EOS, "chat_template": TEMPLATE}
    write_json(FOLDER / "tokenizer_config.json", settings)
    write_json(FOLDER / "config.json", CONFIG)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(FOLDER)
    end = tokens.index(END)
    for seed in itertools.count():
        model = random_model(seed, tokens)
        rows = converse(model, tokenizer, end)
        if rows is not None:
            break
    state = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
    halves = {name: weight.half() for name, weight in state.items()}
    (FOLDER / "model.safetensors").write_bytes(safetensors.torch.save(halves, metadata={"format": "pt"}))
    write_gguf(state, tokens)
    scored = {"text": TEXT, "mean_nll": mean_nll(model, tokenizer(TEXT, add_special_tokens=False)["input_ids"])}
    found = {"seed": seed, "transformers": transformers.__version__, "conversations": rows, "perplexity": scored}
    write_json(FOLDER / "expected.json", found)
    size = sum(path.stat().st_size for path in FOLDER.iterdir())
    print(f"seed {seed}, {size} bytes, answers {[row['text'] for row in rows]}")


if __name__ == "__main__":
    main()
