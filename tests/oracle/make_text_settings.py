"""Makes tests/models/text-settings.json: tiny models with some settings changed, and what sentence-transformers computes then.

    python3 tests/oracle/make_text_settings.py

A row has the folder of the model, the files that are changed (keys replaced, null for keys that are removed, "<null>" for keys
that become null; a file that the folder lacks is made), texts, and what the reference answers: of rerankers (CrossEncoder) the
logits, scores and order for a query, of embedding models the vectors. Every change must move something, unless the row says
that it is idle. Rows with `refused` are settings that are refused by that name: the reference computes something else, or ends
with an error.

It also makes tests/models/text-classes.json (text_classes.py): what the classes of tokenizers rebuild of a tokenizer.json.
`make_text_settings.py classes` makes that file alone.

It also holds WITH_TYPES of crates/models/src/checkpoint/token_types.rs to the classes of transformers, of which the row
`classes` says whether they give token types.
Needs what make_tiny_rerank.py needs.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from golden import MODELS, need, write_json

need("torch", "transformers", "sentence_transformers")

import numpy
import sentence_transformers
import text_classes
import torch
import transformers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

OPTIONS = {"device": "cpu", "model_kwargs": {"dtype": torch.float32, "attn_implementation": "eager"}}
QUERY = "where does the cat sleep"
TOKENIZER, POOL, NULL = "tokenizer_config.json", "1_Pooling/config.json", "<null>"
SENTENCE = "config_sentence_transformers.json"
NAMES = {"model_input_names": ["input_ids", "attention_mask"]}
TYPED = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
MODULES, BERT = "modules.json", "sentence_bert_config.json"
ROWS = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}]
CROSS = {"model_type": "CrossEncoder"}
TASK = {"transformer_task": "sequence-classification"}
LOGITS = {"method": "forward", "method_output_name": "logits"}
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}<|im_end|>{% endfor %}a"
SHORT = TASK | {"max_seq_length": 20}
PROMPT = {"prompts": {"question": "title: the sea "}, "default_prompt_name": "question"}
LEFT = {"direction": "Left", "max_length": 20, "strategy": "LongestFirst", "stride": 0}
POSITIONS = {"max_position_embeddings": 64}
LONGER = {"config.json": POSITIONS, BERT: {"max_seq_length": 150}}
LATE = {TOKENIZER: {"tokenizer_class": "TokenizersBackend"}, "tokenizer.json": {"normalizer": {
    "type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": "T"}, "content": "q"}, {"type": "Lowercase"}]}}}
SIGMOID = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
TANGENT = {"activation_fn": "torch.nn.modules.activation.Tanh"}
HIDDEN = {"method": "forward", "method_output_name": ["last_hidden_state"]}
TOKENS = {"module_output_name": "token_embeddings"}
# A token with capital letters, which is searched for in the normalized text.
NORMALIZED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": True}
CAPITAL = {TOKENIZER: {"tokenizer_class": "TokenizersBackend"}, "tokenizer.json": {
    "normalizer": None, "added_tokens": [{"id": 5, "content": "[MASK]"} | NORMALIZED]}}


def padded(side, **how):
    """A text alone is padded."""
    return {BERT: {"processing_kwargs": {"text": how}}, TOKENIZER: {"padding_side": side}}



# (model, label, files, whether nothing may move)
RERANK = [
    ("bert", "no names of types", {TOKENIZER: NAMES}, False),
    ("bert", "generic class", {TOKENIZER: {"tokenizer_class": "TokenizersBackend"}}, False),
    ("bert", "old generic class", {TOKENIZER: {"tokenizer_class": "PreTrainedTokenizerFast"}}, False),
    ("bert", "generic class with names", {TOKENIZER: {"tokenizer_class": "TokenizersBackend"} | TYPED}, True),
    ("bert", "fast class", {TOKENIZER: {"tokenizer_class": "BertTokenizerFast"}}, True),
    ("bert", "class of another model", {TOKENIZER: {"tokenizer_class": "DistilBertTokenizer"}}, False),
    ("bert", "class of a descendant", {TOKENIZER: {"tokenizer_class": "ElectraTokenizerFast"}}, True),
    ("bert", "unknown class", {TOKENIZER: {"tokenizer_class": "NoTokenizer"}}, False),
    ("bert", "no class", {TOKENIZER: {"tokenizer_class": None}}, True),
    ("bert", "class in config.json", {TOKENIZER: {"tokenizer_class": None},
                                      "config.json": {"tokenizer_class": "DistilBertTokenizer"}}, False),
    ("bert", "cut at the left", {TOKENIZER: {"truncation_side": "left"}}, False),
    ("bert", "cut at the left by tokenizer.json", {"tokenizer.json": {"truncation": LEFT}}, False),
    ("bert", "cut at the right, against tokenizer.json", {"tokenizer.json": {"truncation": LEFT},
                                                          TOKENIZER: {"truncation_side": "right"}}, True),
    ("xlm-roberta", "cut at the left", {TOKENIZER: {"truncation_side": "left"}}, False),
    # The files of sentence-transformers count beside a modules.json of CrossEncoder only.
    ("bert", "no modules", {SENTENCE: CROSS | SIGMOID, BERT: SHORT}, True),
    ("bert", "modules of no class", {MODULES: ROWS, SENTENCE: SIGMOID, BERT: SHORT}, True),
    ("bert", "modules of no class and no file", {MODULES: ROWS, BERT: SHORT}, True),
    ("bert", "modules of another class",
     {MODULES: ROWS, SENTENCE: {"model_type": "SentenceTransformer"} | SIGMOID, BERT: SHORT}, True),
    ("bert", "modules and no settings", {MODULES: ROWS, SENTENCE: CROSS, BERT: TASK}, True),
    ("bert", "score", {MODULES: ROWS, SENTENCE: CROSS | SIGMOID, BERT: TASK}, False),
    ("bert", "score is a tangent", {MODULES: ROWS, SENTENCE: CROSS | TANGENT, BERT: TASK}, False),
    ("bert", "score is null", {MODULES: ROWS, SENTENCE: CROSS | {"activation_fn": None}, BERT: TASK}, True),
    ("bert", "score in config.json is null", {"config.json": {"sentence_transformers": {"activation_fn": None}}}, False),
    ("bert", "length", {MODULES: ROWS, SENTENCE: CROSS, BERT: SHORT}, False),
    ("bert", "length of a call",
     {MODULES: ROWS, SENTENCE: CROSS, BERT: TASK | {"processing_kwargs": {"text": {"max_length": 20}}}}, False),
    ("bert", "prompt", {MODULES: ROWS, SENTENCE: CROSS | PROMPT, BERT: TASK}, False),
    ("bert", "prompt of no modules", {SENTENCE: CROSS | PROMPT, BERT: TASK}, True),
    ("bert", "prompt that is not the default", {MODULES: ROWS, SENTENCE: CROSS | {"prompts": {"a": "b"}}, BERT: TASK},
     True),
    ("bert", "empty prompt", {MODULES: ROWS, SENTENCE: CROSS | {"prompts": {"a": ""}, "default_prompt_name": "a"},
                              BERT: TASK}, True),
    ("qwen3-yes-no", "format by the template", {BERT: {"modality_config": {"text": LOGITS, "message": LOGITS}}}, True),
    ("qwen3-yes-no", "texts alone", {BERT: {"modality_config": {"text": LOGITS}}}, False),
    ("qwen3-yes-no", "no modalities", {BERT: {"modality_config": None}}, False),
    ("qwen3-yes-no", "end that is cut",
     {BERT: {"processing_kwargs": {"chat_template": {"add_generation_prompt": True, "restore_suffix": False}}}}, False),
    ("qwen3-yes-no", "length of a call",
     {BERT: {"processing_kwargs": {"chat_template": {"add_generation_prompt": True}, "text": {"max_length": 90}}}}, False),
    ("qwen3-yes-no", "cut at the left", {TOKENIZER: {"truncation_side": "left"}}, False),
    ("qwen3-yes-no", "no mask of tokens", {TOKENIZER: {"model_input_names": ["input_ids"]}}, False),
    ("bert", "no class and two labels", {"config.json": {"architectures": NULL, "id2label": {"0": "a", "1": "b"},
                                                         "label2id": {"a": 0, "b": 1}}}, True),
    ("bert", "another class and two labels", {"config.json": {"architectures": ["BertModel"], "id2label": {"0": "a", "1": "b"},
                                                              "label2id": {"a": 0, "b": 1}}}, True),
    ("qwen3-pairs", "padding alone", {}, True),
    ("qwen3-pairs", "template of no modules", {TOKENIZER: {"chat_template": TEMPLATE}}, False),
    ("qwen3-pairs", "template of parts of no modules",
     {TOKENIZER: {"chat_template": TEMPLATE.replace("message.content", "message.content[0].text")}}, False),
]
# The query and the texts of the rows of these labels, where they are not the usual ones.
OWN = {"capital letters of a token": (None, ["a [MASK] sleeps", "the [mask]", "[Mask]s"]),
       "padding alone": ("<|endoftext|>", ["<|endoftext|>", "<|endoftext|><|endoftext|>", "a cat"])}
EMBED = [
    ("bert-mean", "cut at the left", {TOKENIZER: {"truncation_side": "left"}}, False),
    ("bert-mean", "cut at the left by tokenizer.json", {"tokenizer.json": {"truncation": LEFT}}, False),
    ("bert-mean", "no names of types", {TOKENIZER: NAMES}, True),
    ("bert-mean", "feed-forward layers in chunks", {"config.json": {"chunk_size_feed_forward": 1}}, True),
    ("bert-mean", "generic class", {TOKENIZER: {"tokenizer_class": "TokenizersBackend"}}, True),
    ("xlm-roberta", "cut at the left", {TOKENIZER: {"truncation_side": "left"}}, False),
    ("qwen3-embedding", "cut at the left", {TOKENIZER: {"truncation_side": "left"}}, False),
    ("nomic-bert-new", "longer than its positions", LONGER, False),
    ("modernbert-mean", "longer than its positions", LONGER, False),
    ("qwen3-embedding", "longer than its positions", LONGER, False),
    ("qwen3-embedding", "the tokenizer's length beyond its positions",
     {"config.json": POSITIONS, TOKENIZER: {"model_max_length": 150}, BERT: {"max_seq_length": None}}, False),
    ("bert-mean", "lowercased by two files", {BERT: {"do_lower_case": True}}, True),
    ("bert-mean", "lowercased behind other steps", LATE, False),
    ("bert-mean", "lowercased by two files behind other steps", LATE | {BERT: {"do_lower_case": True}}, False),
    ("bert-mean", "capital letters of a token", CAPITAL | {BERT: {"do_lower_case": True}}, False),
    ("bert-mean", "letters as they are", {TOKENIZER: {"do_lower_case": False}}, False),
    ("bert-mean", "letters as they are in tokenizer.json", {"tokenizer.json": {"normalizer": None}}, True),
    ("bert-mean", "a map of special tokens", {"special_tokens_map.json": {"cls_token": "[MASK]"},
                                              TOKENIZER: {"added_tokens_decoder": None}}, False),
    ("bert-mean", "an output by a list of one name", {BERT: TOKENS | {"modality_config": {"text": HIDDEN}}}, True),
    ("bert-mean", "padding behind a text", padded("right", padding="max_length"), True),
    ("bert-cls", "padding to a multiple behind a text", padded("right", pad_to_multiple_of=13), True),
    ("bert-mean", "no padding", padded("left", padding=False), True),
    ("mpnet", "padding before a text", padded("left", padding="max_length"), True),
    ("qwen3-embedding", "padding before a text", padded("left", padding="max_length"), True),
    ("roberta", "a space before the text", {TOKENIZER: {"add_prefix_space": True}}, False),
    ("bert-mean", "a prompt", {SENTENCE: PROMPT}, False),
    ("bert-mean", "a prompt whose name is empty",
     {SENTENCE: {"prompts": {"": "title: the sea "}, "default_prompt_name": ""}}, False),
    ("bert-mean", "a prompt that is not pooled", {SENTENCE: PROMPT, POOL: {"include_prompt": False}}, False),
    ("bert-mean", "a prompt of a pooling whose key is null", {SENTENCE: PROMPT, POOL: {"include_prompt": NULL}}, False),
    ("bert-mean", "the tokenizer's length is null beside its old name",
     {BERT: {"max_seq_length": None}, TOKENIZER: {"model_max_length": NULL, "max_len": 9}}, False),
    ("modernbert-mean", "bases outside of layer types", {"config.json": {
        "rope_parameters": {"full_attention": {"rope_type": "default"}}, "global_rope_theta": 30.0, "local_rope_theta": 9.0}}, False),
    ("bert-mean", "the length of a call is null", {BERT: {"processing_kwargs": {"text": {"max_length": None}}}}, True),
]
# (model, label, files, what is refused)
REFUSED_RERANK = [
    ("bert", "class of a language model", {"config.json": {"architectures": ["BertForCausalLM"]}}, "architectures"),
    ("qwen3-pairs", "class of a language model", {"config.json": {"architectures": ["Qwen3ForCausalLM"]}}, "architectures"),
]
REFUSED_EMBED = [
    ("bert-mean", "no truncation", {BERT: {"processing_kwargs": {"text": {"truncation": None}}}},
     "processing_kwargs.text.truncation"),
    ("bert-mean", "no truncation of anything", {BERT: {"processing_kwargs": {"common": {"truncation": None}}}},
     "processing_kwargs.common.truncation"),
    ("bert-mean", "no special tokens", {BERT: {"processing_kwargs": {"text": {"add_special_tokens": None}}}},
     "processing_kwargs.text.add_special_tokens"),
    ("bert-mean", "no length", {BERT: {"tokenizer_args": {"model_max_length": None}}}, "tokenizer_args.model_max_length"),
    ("bert-cls", "no class", {SENTENCE: {"model_type": NULL}}, "model_type"),
    ("bert-mean", "no prompts", {SENTENCE: {"prompts": NULL}}, "prompts"),
    ("bert-steps", "no input of a normalization", {"10_Normalize/config.json": {"module_input_name": NULL}}, "module_input_name"),
]


def texts():
    words = (MODELS / "perplexity.txt").read_text(encoding="utf-8").split()
    return ["a cat sleeps on the mat", "the sea", " ".join(words[:150]), " ".join(words[200:420])]


def changed(folder, files, other):
    """A copy of the folder in `other` with some settings changed."""
    other = Path(other) / "model"
    shutil.copytree(folder, other)
    for name, keys in files.items():
        path = other / name
        if isinstance(keys, list):
            value = keys
        else:
            value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            value = {key: None if new == NULL else new for key, new in (value | keys).items() if new is not None}
        path.write_text(json.dumps(value), encoding="utf-8")
    return str(other)


def rerank(folder, files, label=None):
    query, others = OWN.get(label, (QUERY, texts()))
    with tempfile.TemporaryDirectory() as other:
        model = sentence_transformers.CrossEncoder(changed(folder, files, other), **OPTIONS)
        pairs = [[query, text] for text in others]
        # One by one: padding has no part in it.
        logits = [float(model.predict([pair], activation_fn=torch.nn.Identity())[0]) for pair in pairs]
        scores = [float(model.predict([pair])[0]) for pair in pairs]
        return {"query": query, "logits": logits, "scores": scores} | ({"texts": others} if label in OWN else {})


def embed(folder, files, label=None):
    _, others = OWN.get(label, (None, texts()))
    with tempfile.TemporaryDirectory() as other:
        model = sentence_transformers.SentenceTransformer(changed(folder, files, other), **OPTIONS)
        return {"vectors": [[float(f"{x:.7g}") for x in model.encode(text)] for text in others]} | (
            {"texts": others} if label in OWN else {})


def numbers(answer):
    return numpy.concatenate([numpy.ravel(answer[key]) for key in ("logits", "scores", "vectors") if key in answer])


def rows(kind, cases, answer):
    found, usual = [], {}
    for name, label, files, is_idle in cases:
        folder = MODELS / kind / name
        asked = (name, label if label in OWN else None)
        if asked not in usual:
            usual[asked] = answer(folder, {}, label)
        answered = answer(folder, files, label)
        moved = float(numpy.abs(numbers(answered) - numbers(usual[asked])).max())
        if moved > 1e-6 if is_idle else moved < 1e-3:
            raise SystemExit(f"{kind}/{name}, {label}: moves by {moved:.1e}")
        found.append({"model": f"{kind}/{name}", "label": label, "files": files} | answered)
        print(f"{kind}/{name}, {label}: {moved:.1e}", flush=True)
    return found


def refused(kind, cases, answer):
    found = []
    for name, label, files, key in cases:
        try:
            moved = float(numpy.abs(numbers(answer(MODELS / kind / name, files)) - numbers(answer(MODELS / kind / name, {}))).max())
            if moved < 1e-3:
                raise SystemExit(f"{kind}/{name}, {label}: moves by {moved:.1e}")
        except Exception as error:
            moved = f"{error!r:.80}"
        found.append({"model": f"{kind}/{name}", "label": label, "files": files, "refused": key})
        print(f"{kind}/{name}, {label}: {moved}", flush=True)
    return found


def classes():
    """{name: whether the class of that name gives token types}"""
    names = {name for name in dir(transformers) if name.endswith(("Tokenizer", "TokenizerFast"))}
    names |= {name for name in TOKENIZER_MAPPING_NAMES.values() if name} | {"ElectraTokenizer", "ElectraTokenizerFast"}
    given = {}
    for name in sorted(names):
        try:
            found = tokenizer_class_from_name(name)
            given[name] = found is not None and "token_type_ids" in found.model_input_names
        except (ImportError, AttributeError):
            print(f"{name}: not installed")
    return given


def main():
    torch.set_num_threads(1)
    text_classes.write_all(MODELS / "text-classes.json")
    if sys.argv[1:] == ["classes"]:
        return
    write_json(MODELS / "text-settings.json", {
        "made_by": "tests/oracle/make_text_settings.py", "transformers": transformers.__version__,
        "sentence_transformers": sentence_transformers.__version__, "torch": torch.__version__, "texts": texts(),
        "rows": rows("tiny-rerank", RERANK, rerank) + rows("tiny-embed", EMBED, embed),
        "refused": refused("tiny-rerank", REFUSED_RERANK, rerank) + refused("tiny-embed", REFUSED_EMBED, embed),
        "classes": classes(),
    })


if __name__ == "__main__":
    main()
