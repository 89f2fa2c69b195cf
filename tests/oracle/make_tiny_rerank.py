"""Makes the tiny random rerankers of tests/models/tiny-rerank/<name> and their goldens.

    python3 tests/oracle/make_tiny_rerank.py [NAME ...]

Each folder is what CrossEncoder of sentence-transformers loads: config.json, model.safetensors, tokenizer. A case that is
`saved` is what CrossEncoder itself saves of that folder, with modules.json and its other files. golden.json holds what
CrossEncoder answers (eager attention, float32) to one query and texts from nothing to longer than the model takes: token ids
and types of the pairs, logits, scores, and the order of the texts.

As in make_tiny_embed.py every weight is random, and before a golden is written:
- the ids and types are those of the tokenizers library with the truncation `longest_first`, or those of a rendered chat
  template whose end replaces the last tokens of what was cut;
- one batch of all pairs gives what each pair gives alone, to 2e-6;
- each setting in MUTATIONS is changed alone and must move the logits by 3e-3 at least, and so must a 5 % change of each single
  tensor (3e-4); tensors that are said to be idle must not move them.
Needs torch, transformers, sentence-transformers, safetensors, tokenizers, numpy. CPU only; all seeds are literals.
"""

import json
import logging
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

from golden import MODELS, need, write_json

need("torch", "transformers", "sentence_transformers", "safetensors", "tokenizers", "numpy")

import numpy
import sentence_transformers
import tokenizers
import torch
import transformers

import embed_tokenizers
from embed_case import CONFIG, REMOVED
from embed_decoders import QWEN_SPECIALS, QWEN_TOKENIZER, qwen_config
from embed_encoders import BERT_TOKENIZER, MODERNBERT_SPECIALS, MODERNBERT_TOKENIZER, bert_config, modernbert_config
from embed_families import NAMES, SPECIALS, roberta_config
from make_tiny_embed import QUERIES_AND_KEYS, TEXTS, distance, respelled, write, write_tensors

BITES = 3e-3
SENTENCE, BERT = "config_sentence_transformers.json", "sentence_bert_config.json"
LOGIT = "1_LogitScore/config.json"
QUERY = "where does the cat sleep"
LABEL = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}


def bert():
    """ms-marco-MiniLM: the texts have types, and scores are logits by the key of sentence-transformers before 4."""
    tokenizer = embed_tokenizers.wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], 60)
    return {
        "seed": 501,
        "config": bert_config(
            embed_tokenizers.size(tokenizer), architectures=["BertForSequenceClassification"], hidden_size=30,
            num_attention_heads=5, intermediate_size=43, max_position_embeddings=56,
            sbert_ce_default_activation_function="torch.nn.modules.linear.Identity", **LABEL),
        "tokenizer": tokenizer,
        "tokenizer_config": BERT_TOKENIZER | {"model_max_length": 48},
        "idle": ("self.key.bias",),
        "mutations": {
            "activation": {CONFIG: {"hidden_act": "relu"}}, "layer_norm_eps": {CONFIG: {"layer_norm_eps": 1e-12}},
            "heads": {CONFIG: {"num_attention_heads": 3}},
            "length": {"tokenizer_config.json": {"model_max_length": 30}},
            "score": {CONFIG: {"sbert_ce_default_activation_function": REMOVED}},
        },
        "max_len": 48,
    }


def xlm_roberta():
    """bge-reranker: no types, two separators between the texts, and a sigmoid because no file says otherwise."""
    tokenizer = embed_tokenizers.unigram(SPECIALS, "<mask>", 60)
    return {
        "seed": 502,
        "config": roberta_config(
            embed_tokenizers.size(tokenizer), architectures=["XLMRobertaForSequenceClassification"],
            model_type="xlm-roberta", hidden_size=27, intermediate_size=38, max_position_embeddings=70, output_past=True,
            classifier_dropout=None, **LABEL),
        "tokenizer": tokenizer,
        "tokenizer_config": NAMES | {"model_max_length": 64, "tokenizer_class": "PreTrainedTokenizerFast"},
        "idle": ("self.key.bias",),
        "mutations": {
            "padding": {CONFIG: {"pad_token_id": 0}},
            "score": {CONFIG: {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}},
        },
        "max_len": 64,
    }


def distilbert():
    """Another head, and the activation by the key of sentence-transformers since 4."""
    tokenizer = embed_tokenizers.wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], 40)
    return {
        "seed": 503,
        "config": {
            "activation": "gelu", "architectures": ["DistilBertForSequenceClassification"], "attention_dropout": 0.1,
            "dim": 32, "dropout": 0.1, "hidden_dim": 45, "initializer_range": 0.02, "max_position_embeddings": 60,
            "model_type": "distilbert", "n_heads": 4, "n_layers": 2, "pad_token_id": 0, "qa_dropout": 0.1,
            "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True,
            "transformers_version": "4.50.0", "vocab_size": embed_tokenizers.size(tokenizer),
            "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "4.1.0"},
            **LABEL,
        },
        "tokenizer": tokenizer,
        "tokenizer_config": BERT_TOKENIZER | {"model_max_length": 60, "tokenizer_class": "DistilBertTokenizer"},
        "idle": ("k_lin.bias",),
        "mutations": {
            "heads": {CONFIG: {"n_heads": 2}},
            "score": {CONFIG: {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}},
        },
        "max_len": 60,
    }


def modernbert():
    """gte-reranker-modernbert-base: the mean of all tokens, and a head whose layers have no biases but the last."""
    tokenizer = embed_tokenizers.modernbert(MODERNBERT_SPECIALS, 30)
    return {
        "seed": 504,
        "config": modernbert_config(
            tokenizer, architectures=["ModernBertForSequenceClassification"], global_attn_every_n_layers=3,
            global_rope_theta=4000.0, local_rope_theta=150.0, num_hidden_layers=4, problem_type=None,
            max_position_embeddings=60, transformers_version="4.48.0", torch_dtype="float32", **LABEL),
        "tokenizer": tokenizer,
        "tokenizer_config": MODERNBERT_TOKENIZER | {"model_max_length": 8192},
        "idle": (),
        "mutations": {
            "pooling": {CONFIG: {"classifier_pooling": "cls"}},
            "activation of the head": {CONFIG: {"classifier_activation": "relu"}},
            "norm_eps": {CONFIG: {"norm_eps": 1e-5}},
            "length": {CONFIG: {"max_position_embeddings": 50}},
        },
        "max_len": 60,
    }


def modernbert_saved():
    """The first token, all biases, and what a trained CrossEncoder saves: another length, no sigmoid, a prompt."""
    tokenizer = embed_tokenizers.modernbert(MODERNBERT_SPECIALS, 30)
    return {
        "seed": 505,
        "config": modernbert_config(
            tokenizer, architectures=["ModernBertForSequenceClassification"], attention_bias=True, mlp_bias=True,
            norm_bias=True, classifier_bias=True, classifier_pooling="cls", classifier_activation="silu",
            num_hidden_layers=3, max_position_embeddings=60, **LABEL),
        "tokenizer": tokenizer,
        "tokenizer_config": MODERNBERT_TOKENIZER | {"model_max_length": 60},
        "saved": {
            "max_length": 44, "activation_fn": torch.nn.Identity(),
            "prompts": {"question": "query: ", "other": "title: "}, "default_prompt_name": "question",
        },
        "idle": (),
        "mutations": {
            "pooling": {CONFIG: {"classifier_pooling": "mean"}},
            "activation of the head": {CONFIG: {"classifier_activation": "gelu"}},
            "score": {SENTENCE: {"activation_fn": None}},
            "prompt": {SENTENCE: {"default_prompt_name": None}},
            "kind": {SENTENCE: {"model_type": "SentenceTransformer"}},
            "length": {"tokenizer_config.json": {"model_max_length": 30}},
        },
        "prompt": "query: ",
        "max_len": 44,
    }


# Qwen3-Reranker's form with other words: the prompt is the instruction, and the generation prompt has an empty thought.
JUDGE = "<|im_start|>system\nJudge the document: yes or no.<|im_end|>\n<|im_start|>user\n"
ANSWER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
FLAT_TEMPLATE = (
    JUDGE
    + '<Instruct>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first '
    '| default("find what answers the query") }}\n'
    '<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}\n'
    '<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}'
    "{%- if add_generation_prompt %}{{- " + json.dumps(ANSWER) + " }}{%- endif %}"
)
PARTS_TEMPLATE = (
    '<|im_start|>user\n{{ (messages | selectattr("role", "eq", "document") | first).content[0].text }}<|im_end|>\n'
    '<|im_start|>user\n{{ (messages | selectattr("role", "eq", "query") | first).content[0].text }}<|im_end|>\n'
    '{%- if reason is defined and reason %}{{- "<|im_start|>" + reason }}{%- endif %}'
)
SHORT_END = "<|im_end|>\n\n"
SHORT_TEMPLATE = (
    '{% for message in messages %}{{- "<|im_start|>" + message.role + " " + message.content }}{% endfor %}'
    "{{- " + json.dumps(SHORT_END) + " }}"
)
CHAT_SPECIALS = [*QWEN_SPECIALS[:1], "<|im_start|>", *QWEN_SPECIALS[1:]]
CHAT_TOKENIZER = QWEN_TOKENIZER | {"eos_token": "<|im_end|>"}


def qwen3(seed, tokenizer, kind, **changes):
    """A tiny Qwen3; rerankers read the last token."""
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    return {
        "seed": seed,
        "config": qwen_config(
            embed_tokenizers.size(tokenizer), architectures=[f"Qwen3For{kind}"], model_type="qwen3", rope_theta=600.0,
            rope_scaling=None, max_position_embeddings=150, dtype="float32", use_cache=True, hidden_size=22,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=31,
            pad_token_id=ids["<|endoftext|>"], eos_token_id=ids["<|im_end|>"]) | changes,
        "tokenizer": tokenizer,
        "idle": (),
    }


def qwen3_yes_no():
    """Qwen3-Reranker: the logit of one token less that of another behind a chat template whose end no cut removes."""
    tokenizer = embed_tokenizers.qwen(CHAT_SPECIALS, 60)
    prompt = "which text says where the cat is"
    return qwen3(506, tokenizer, "CausalLM") | {
        "tokenizer_config": CHAT_TOKENIZER | {"model_max_length": 140, "chat_template": FLAT_TEMPLATE},
        "saved": {
            "task": "text-generation", "tokens": {"true_token_id": 271, "false_token_id": 93},
            "processing_kwargs": {"chat_template": {"add_generation_prompt": True}},
            "prompts": {"web": prompt, "other": "x"}, "default_prompt_name": "web", "activation_fn": torch.nn.Identity(),
        },
        "mutations": {
            "generation prompt": {BERT: {"processing_kwargs": {}}},
            "cut end": {BERT: {"processing_kwargs": {
                "chat_template": {"add_generation_prompt": True, "restore_suffix": False}}}},
            "score": {SENTENCE: {"activation_fn": None}},
            "instruction": {SENTENCE: {"default_prompt_name": None}},
            "false token": {LOGIT: {"false_token_id": None}}, "true token": {LOGIT: {"true_token_id": 270}},
            "theta": {CONFIG: {"rope_parameters": {"rope_theta": 900.0, "rope_type": "default"}}},
        },
        "prompt": prompt,
        "end": ANSWER,
        "max_len": 140,
    }


def qwen3_token():
    """zerank: the logit of one token, of a head of its own; parts of messages, and a variable of the template."""
    tokenizer = embed_tokenizers.qwen(CHAT_SPECIALS, 60)
    return qwen3(507, tokenizer, "CausalLM", tie_word_embeddings=False) | {
        "tokenizer_config": CHAT_TOKENIZER | {"model_max_length": 100, "chat_template": PARTS_TEMPLATE},
        "saved": {
            "task": "text-generation", "tokens": {"true_token_id": 201},
            "processing_kwargs": {"chat_template": {"reason": "yes no"}},
        },
        "mutations": {
            "token": {LOGIT: {"true_token_id": 200}},
            "variable": {BERT: {"processing_kwargs": {}}},
            "score": {SENTENCE: {"activation_fn": "torch.nn.modules.linear.Identity"}},
        },
        "end": "<|im_end|><|im_start|>yes no",
        "max_len": 100,
    }


def qwen3_labels():
    """Qwen3-Reranker as a sequence classifier, saved with its template: the last token that is no padding."""
    tokenizer = embed_tokenizers.qwen(CHAT_SPECIALS, 60)
    last = tokenizers.Tokenizer.from_str(json.dumps(tokenizer)).encode(SHORT_END).ids[-1]
    return qwen3(508, tokenizer, "SequenceClassification", **LABEL) | {
        "tokenizer_config": CHAT_TOKENIZER | {"model_max_length": 120, "chat_template": SHORT_TEMPLATE},
        "saved": {"task": "sequence-classification"},
        "mutations": {
            "padding": {CONFIG: {"pad_token_id": last}},
            "score": {SENTENCE: {"activation_fn": "torch.nn.modules.linear.Identity"}},
        },
        "end": SHORT_END,
        "max_len": 120,
    }


def qwen3_pairs():
    """A sequence classifier without a template: two texts one after the other, whose end is a token of padding."""
    tokenizer = embed_tokenizers.qwen(CHAT_SPECIALS, 40, end="<|endoftext|>")
    return qwen3(509, tokenizer, "SequenceClassification", **LABEL) | {
        "tokenizer_config": CHAT_TOKENIZER | {"model_max_length": 64},
        "mutations": {
            "padding": {CONFIG: {"pad_token_id": tokenizer["added_tokens"][1]["id"]}},
            "score": {CONFIG: {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}},
            "length": {"tokenizer_config.json": {"model_max_length": 50}},
        },
        "max_len": 64,
    }


CASES = {
    "qwen3-yes-no": qwen3_yes_no, "qwen3-token": qwen3_token, "qwen3-labels": qwen3_labels, "qwen3-pairs": qwen3_pairs,
    "bert": bert, "xlm-roberta": xlm_roberta, "distilbert": distilbert, "modernbert": modernbert,
    "modernbert-saved": modernbert_saved,
}


def texts_of(case):
    """{name: text} // with one so long that it is cut, and one that is as long as it may be"""
    prose = (MODELS / "perplexity.txt").read_text(encoding="utf-8").split()
    return TEXTS | {"long": " ".join(prose[:400]), "middle": " ".join(prose[:12])}


def save(case, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write(folder / "config.json", dict(sorted(case["config"].items())))
    (folder / "tokenizer.json").write_text(json.dumps(case["tokenizer"], ensure_ascii=False) + "\n", encoding="utf-8")
    write(folder / "tokenizer_config.json", case["tokenizer_config"])
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = "CausalLM" if config.architectures[0].endswith("CausalLM") else "SequenceClassification"
    model = getattr(transformers, f"AutoModelFor{kind}").from_config(config).float()
    random = numpy.random.RandomState(case["seed"])
    tensors = {}
    for name, parameter in model.named_parameters():
        draw = random.standard_normal(tuple(parameter.shape))
        if "norm" in name.lower() and name.endswith("weight"):
            draw = 1.0 + 0.4 * draw
        elif name.endswith("bias"):
            draw = 0.5 * draw
        elif "embed" in name:
            draw = 0.5 * draw
        else:
            draw = (2.4 if name.endswith(QUERIES_AND_KEYS) else 1.6) * draw / numpy.sqrt(parameter.shape[1])
        tensors[name] = torch.tensor(draw, dtype=torch.float32)
    write_tensors(folder / "model.safetensors", dict(sorted(tensors.items())))
    if "saved" in case:
        with tempfile.TemporaryDirectory() as other:
            model = of_modules(shutil.move(folder, Path(other) / "base"), **case["saved"])
            model.save(str(folder), create_model_card=False)
        (folder / "model.safetensors").chmod(0o644)


def of_modules(folder, task=None, tokens=None, processing_kwargs=None, **options):
    """A CrossEncoder of the folder, or with a task one of modules that it is made of."""
    if task is None:
        return load(folder, **options)
    transformer = sentence_transformers.base.modules.Transformer(
        str(folder), transformer_task=task, processing_kwargs=processing_kwargs)
    modules = [transformer]
    if tokens is not None:
        modules.append(sentence_transformers.cross_encoder.modules.LogitScore(**tokens))
    return sentence_transformers.CrossEncoder(modules=modules, device="cpu", **options)


def load(folder, change=None, **options):
    with tempfile.TemporaryDirectory() as other:
        return sentence_transformers.CrossEncoder(
            str(respelled(folder, change or {}, other)), device="cpu",
            model_kwargs={"dtype": torch.float32, "attn_implementation": "eager"}, **options)


def pairs_of(case, model, texts):
    """Ids, types, and whether tokens were cut by the reference, which must be those of the tokenizers library."""
    backend = tokenizers.Tokenizer.from_str(json.dumps(case["tokenizer"] | {"truncation": None, "padding": None}))
    backend.enable_truncation(case["max_len"], strategy="longest_first")
    rows = []
    for text in texts.values():
        prompt = case.get("prompt", "")
        features = model.preprocess([[QUERY, text]], prompt=prompt or None)
        ids = features["input_ids"][0].tolist()
        types = features["token_type_ids"][0].tolist() if "token_type_ids" in features else [0] * len(ids)
        if "end" in case:
            expected, is_cut = of_template(case, model, backend, text)
        else:
            encoding = backend.encode(prompt + QUERY, text)
            expected, is_cut = encoding.ids, bool(encoding.overflowing)
        if ids != expected or ("token_type_ids" in features and types != encoding.type_ids):
            sys.exit(f"'{text[:40]}': the reference gives other tokens than tokenizer.json")
        rows.append((ids, types, is_cut))
    return rows


def of_template(case, model, backend, text):
    """The tokens of a rendered pair, whose end is in place of the last ones where it was cut, and whether it was."""
    parts = ".content[0].text" in case["tokenizer_config"]["chat_template"]
    pairs = [("system", case.get("prompt")), ("query", QUERY), ("document", text)]
    messages = [
        {"role": role, "content": [{"type": "text", "text": said}] if parts else said} for role, said in pairs if said is not None]
    variables = case["saved"].get("processing_kwargs", {}).get("chat_template", {})
    rendered = model.tokenizer.apply_chat_template(messages, tokenize=False, **variables)
    backend.no_truncation()
    ids, end = (backend.encode(part, add_special_tokens=False).ids for part in (rendered, case["end"]))
    if not rendered.endswith(case["end"]):
        sys.exit(f"'{rendered[-60:]}' has another end")
    most = case["max_len"]
    return (ids, False) if len(ids) <= most else (ids[: most - len(end)] + end, True)


def scores(model, texts, **options):
    return numpy.array([model.predict([[QUERY, text]], show_progress_bar=False, **options)[0] for text in texts.values()])


def make(name, case):
    folder = MODELS / "tiny-rerank" / name
    save(case, folder)
    model, texts = load(folder), texts_of(case)
    pairs = pairs_of(case, model, texts)
    logits, found = scores(model, texts, activation_fn=torch.nn.Identity()), scores(model, texts)
    if numpy.ptp(logits) < 0.3:
        sys.exit(f"all logits are about {logits[0]:.2f}")
    batch = model.predict([[QUERY, text] for text in texts.values()], batch_size=64, show_progress_bar=False)
    if numpy.abs(batch - found).max() > 2e-6 * max(1, numpy.abs(found).max()):
        sys.exit(f"one batch differs from single pairs by {numpy.abs(batch - found).max():.1e}")
    for label, change in case["mutations"].items():
        if (moved := distance(scores(load(folder, change), texts), found)) < BITES:
            sys.exit(f"setting '{label}' moves the scores by {moved:.1e} only")
    weakest = ("", float("inf"))
    for tensor, parameter in model.named_parameters():
        saved = parameter.data
        parameter.data = saved * torch.linspace(0.95, 1.05, max(saved.shape[0], 2))[:saved.shape[0]].reshape(
            -1, *[1] * (saved.dim() - 1))
        moved = distance(scores(model, texts, activation_fn=torch.nn.Identity()), logits)
        parameter.data = saved
        is_idle = any(part in tensor for part in case["idle"])
        if moved > 2e-6 if is_idle else moved < BITES / 10:
            sys.exit(f"tensor '{tensor}' moves the logits by {moved:.1e}")
        weakest = weakest if is_idle or moved > weakest[1] else (tensor, moved)
    order = [row["corpus_id"] for row in model.rank(QUERY, list(texts.values()), show_progress_bar=False)]
    write_json(folder / "golden.json", {
        "made_by": "tests/oracle/make_tiny_rerank.py", "transformers": transformers.__version__,
        "sentence_transformers": sentence_transformers.__version__, "torch": torch.__version__, "seed": case["seed"],
        "max_tokens": case["max_len"], "query": QUERY, "order": order,
        "texts": [
            {"name": name, "text": text, "ids": ids, "types": types, "cut": cut, "logit": float(logit), "score": float(score)}
            for (name, text), (ids, types, cut), logit, score in zip(texts.items(), pairs, logits, found)
        ],
    })
    bytes_ = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{name}: {bytes_} bytes, logits {logits.min():.2f} to {logits.max():.2f}, weakest tensor {weakest}", flush=True)


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for library in ("transformers", "sentence_transformers"):
        logging.getLogger(library).setLevel(logging.ERROR)
    for name in sys.argv[1:] or CASES:
        make(name, CASES[name]())


if __name__ == "__main__":
    main()
