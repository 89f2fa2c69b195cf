"""Makes the tiny random rerankers of tests/models/tiny-rerank/<name> and their goldens.

    python3 tests/oracle/make_tiny_rerank.py [NAME ...]

Each folder is what CrossEncoder of sentence-transformers loads: config.json, model.safetensors, tokenizer. A case that is
`saved` is what CrossEncoder itself saves of that folder, with modules.json and its other files. golden.json holds what
CrossEncoder answers (eager attention, float32) to one query and texts from nothing to longer than the model takes: token ids
and types of the pairs, logits, scores, and the order of the texts.

As in make_tiny_embed.py every weight is random, and before a golden is written:
- the ids and types are those of the tokenizers library with the truncation `longest_first`;
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
from embed_encoders import BERT_TOKENIZER, MODERNBERT_SPECIALS, MODERNBERT_TOKENIZER, bert_config, modernbert_config
from embed_families import NAMES, SPECIALS, roberta_config
from make_tiny_embed import QUERIES_AND_KEYS, TEXTS, distance, respelled, write, write_tensors

BITES = 3e-3
SENTENCE = "config_sentence_transformers.json"
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


CASES = {
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
    model = transformers.AutoModelForSequenceClassification.from_config(config).float()
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
            model = load(shutil.move(folder, Path(other) / "base"), **case["saved"])
            model.save(str(folder), create_model_card=False)
        (folder / "model.safetensors").chmod(0o644)


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
        encoding = backend.encode(prompt + QUERY, text)
        if ids != encoding.ids or ("token_type_ids" in features and types != encoding.type_ids):
            sys.exit(f"'{text[:40]}': the reference gives other tokens than tokenizer.json")
        rows.append((ids, types, bool(encoding.overflowing)))
    return rows


def scores(model, texts, **options):
    return numpy.array([model.predict([[QUERY, text]], show_progress_bar=False, **options)[0] for text in texts.values()])


def make(name, case):
    folder = MODELS / "tiny-rerank" / name
    save(case, folder)
    model, texts = load(folder), texts_of(case)
    pairs = pairs_of(case, model, texts)
    logits, found = scores(model, texts, activation_fn=torch.nn.Identity()), scores(model, texts)
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
