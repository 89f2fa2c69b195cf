"""Makes tests/models/generation.json: what transformers does with the keys of generation_config.json.

    python3 tests/oracle/make_generation.py

`greedy` are the tokens that `generate` answers with, by tests/models/tiny-chat with each file beside it; `sampled` are the
probabilities that the logits processors of a file leave of given logits. Each file must change what it is about, and no
greedy choice is closer than GAP. Needs torch, transformers, numpy.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from golden import MODELS, need, write_json

need("torch", "transformers", "numpy")

import numpy
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

FOLDER = MODELS / "tiny-chat"
TOKENIZER = AutoTokenizer.from_pretrained(FOLDER)
ENDS = [0, 2]
# Tokens of an answer where the file does not say.
N_TOKENS = 40
# Smallest lead of a chosen token.
GAP = 1e-3


def folder_with(path, generation, config):
    """A copy of the model with these keys in generation_config.json (none: no such file) and config.json."""
    shutil.copytree(FOLDER, path)
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    whole = json.loads((path / "config.json").read_text()) | config
    (path / "config.json").write_text(json.dumps(whole))
    return path


def greedy(prompt, generation, config):
    """The answer of `generate`, without the token that ends it."""
    with tempfile.TemporaryDirectory() as root:
        model = AutoModelForCausalLM.from_pretrained(folder_with(Path(root) / "m", generation, config), dtype=torch.float32)
    settings = model.generation_config
    limit = {} if settings.max_length or settings.max_new_tokens else {"max_new_tokens": N_TOKENS}
    if settings.stop_strings:
        limit["tokenizer"] = TOKENIZER
    out = model.generate(torch.tensor([prompt]), output_scores=True, return_dict_in_generate=True, **limit)
    for scores in out.scores:
        best, second = scores[0].topk(2).values
        if best - second < GAP:
            sys.exit(f"{generation} {config}: a choice is {best - second:.1e} close")
    tokens = out.sequences[0, len(prompt):].tolist()
    return tokens[:-1] if tokens[-1] in ENDS else tokens


def greedy_cases():
    random = numpy.random.RandomState(7)
    prompt = [1, 279, 13, 272, 111, 271, 2, 13, 1, 281, 108, 118, 119, 263, 119, 13]
    # Longer than the 64 tokens that a caller's own penalty considers.
    long = random.randint(3, 282, 150).tolist()
    ends = {"eos_token_id": ENDS}
    plain, plain_long = greedy(prompt, ends, {}), greedy(long, ends, {})
    third = plain[:3]
    # The text of the third token ends an answer before its least length.
    stop = TOKENIZER.decode(third[2:]).strip()
    files = [
        {"stop_strings": [stop], "min_new_tokens": len(plain)},
        {"stop_strings": [stop], "min_length": len(prompt) + len(plain)},
        {"suppress_tokens": plain[:2] + [-1, 9999]},
        {"begin_suppress_tokens": [plain[0]]},
        {"bad_words_ids": [[plain[1]], third]},
        {"bad_words_ids": [[2], third]},
        {"sequence_bias": [[[plain[0]], -30.0], [[plain[0], 90], 50.0], [[40], 4.0]]},
        {"no_repeat_ngram_size": 1},
        {"no_repeat_ngram_size": 2, "min_new_tokens": 30},
        {"encoder_no_repeat_ngram_size": 1},
        {"encoder_repetition_penalty": 2.5},
        {"repetition_penalty": 1.4},
        {"min_new_tokens": len(plain) + 5},
        {"min_length": len(prompt) + len(plain) + 3},
        {"min_length": 3, "min_new_tokens": len(plain) + 2},
        {"max_new_tokens": 3},
        {"max_length": len(prompt) + 4},
        {"max_length": len(prompt) + 2, "max_new_tokens": 5},
        {"exponential_decay_length_penalty": [2, 1.9], "suppress_tokens": [plain[3]]},
        {"exponential_decay_length_penalty": [1, 6.0]},
        {"do_sample": False, "temperature": 0.1, "top_k": 3, "suppress_tokens": [plain[2]]},
        {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "suppress_tokens": [plain[0]], "min_new_tokens": 20},
    ]
    cases = [{"generation_config": ends, "config": {}, "prompt": prompt, "tokens": plain}]
    for file in files:
        for ids, unchanged in ((prompt, plain), (long, plain_long)):
            if any(key in file for key in ("max_length", "min_length")) and ids is long:
                continue
            tokens = greedy(ids, ends | file, {})
            if ids is prompt and tokens == unchanged:
                sys.exit(f"{file} changes nothing")
            cases.append({"generation_config": ends | file, "config": {}, "prompt": ids, "tokens": tokens})
    # Without the file, the keys of config.json count; beside one, they do not.
    for file in ({"repetition_penalty": 1.4}, {"bad_words_ids": [[plain[1]]]}, {"max_new_tokens": 4}):
        for generation in (None, ends):
            config = ends | file
            tokens = greedy(prompt, generation, config)
            if (tokens == plain) != (generation is not None):
                sys.exit(f"{file} of config.json beside {generation}: {tokens}")
            cases.append({"generation_config": generation, "config": config, "prompt": prompt, "tokens": tokens})
    config = {"eos_token_id": [plain[1]]}
    for generation, n_tokens, n_kept in ((None, 2, 1), ({"max_new_tokens": 4}, 4, 4)):
        if greedy(prompt, generation, config) != plain[:n_tokens]:
            sys.exit(f"{config} of config.json beside {generation}")
        cases.append({"generation_config": generation, "config": config, "prompt": prompt, "tokens": plain[:n_kept]})
    return cases


def sampled_cases():
    random = numpy.random.RandomState(11)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    files = [
        {}, {"top_k": 0}, {"temperature": 0.6, "top_p": 0.8}, {"temperature": 1.7, "top_p": 0.8, "top_k": 0},
        {"temperature": 0.5, "min_p": 0.2}, {"temperature": 1.5, "min_p": 0.1, "top_k": 0}, {"typical_p": 0.6, "top_k": 0},
        {"typical_p": 0.7, "temperature": 1.6, "top_p": 0.9}, {"epsilon_cutoff": 0.02, "top_k": 0},
        {"eta_cutoff": 0.05, "top_k": 0, "temperature": 1.4}, {"top_h": 0.4, "top_k": 0}, {"top_h": 0.7, "temperature": 1.8},
        {"epsilon_cutoff": 0.9}, {"top_p": 0.0}, {"top_p": 0.9, "min_p": 0.05, "typical_p": 0.8, "epsilon_cutoff": 0.01, "eta_cutoff": 0.01},
        {"repetition_penalty": 1.3, "temperature": 0.8, "top_p": 0.9}, {"no_repeat_ngram_size": 2, "suppress_tokens": [5, 9]},
        {"sequence_bias": [[[7], 2.5], [[30, 8], -6.0]], "encoder_repetition_penalty": 1.5, "renormalize_logits": True},
    ]
    cases = []
    for file in files:
        file = {"do_sample": True, "eos_token_id": ENDS} | file
        prompt, answer = random.randint(3, 60, 90).tolist(), random.randint(3, 60, 9).tolist() + [30]
        logits = random.normal(0, 2.5, 282).round(3).tolist()
        model.generation_config = GenerationConfig(**file)
        config, _ = model._prepare_generation_config(None)
        model._prepare_special_tokens(config, True, device="cpu")
        ids = torch.tensor([prompt])
        processors = model._get_logits_processor(
            config, input_ids_seq_length=len(prompt), encoder_input_ids=ids, device="cpu", model_kwargs={})
        scores = processors(torch.tensor([prompt + answer]), torch.tensor([logits], dtype=torch.float64))[0]
        shares = scores.softmax(-1)
        kept = [index for index, share in enumerate(shares.tolist()) if share > 1e-30]
        cases.append({
            "generation_config": file, "prompt": prompt, "answer": answer, "logits": logits, "ids": kept,
            "p": [float(f"{float(shares[index]):.7g}") for index in kept],
        })
    return cases


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    value = {
        "made_by": "tests/oracle/make_generation.py", "transformers": transformers.__version__, "n_tokens": N_TOKENS,
        "greedy": greedy_cases(), "sampled": sampled_cases(),
    }
    write_json(MODELS / "generation.json", value)
    print(f"{len(value['greedy'])} greedy answers, {len(value['sampled'])} distributions")


if __name__ == "__main__":
    main()
